// The device list: the NICs of this process's instance.
#include <pthread.h>
#include <string.h>

#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "core/client/instance.h"
#include "core/client/no_cancel.h"
#include "core/client/no_memory.h"
#include "verbs_shim/objects.h"
#include "verbs_shim/symver.h"

namespace verbena::verbs {
namespace {

// Never freed: programs keep device pointers after ibv_free_device_list, and there are few.
pthread_mutex_t g_devices_mutex = PTHREAD_MUTEX_INITIALIZER;
Device* g_devices = nullptr;
bool g_fork_handler_registered = false;

// The parent's other threads may have held it. The list is whole: devices are put in front of it.
void AfterForkInChild() { g_devices_mutex = PTHREAD_MUTEX_INITIALIZER; }

// Under the lock.
void RegisterForkHandler() {
  if (g_fork_handler_registered) return;
  g_fork_handler_registered = pthread_atfork(nullptr, nullptr, AfterForkInChild) == 0;
}

// Not the operations of any provider, and so never equal to what libmlx5 and libefa look for.
struct {
  const char* name;
  void* nothing[15];
} g_device_ops = {"verbena", {}};

bool SameNic(const shm::NicInfo& a, const shm::NicInfo& b) {
  return a.index == b.index && a.node_guid == b.node_guid &&
         strncmp(a.name, b.name, sizeof(a.name)) == 0;
}

Device* NewDevice(const shm::NicInfo& nic) {
  auto* device = new (std::nothrow) Device();
  if (device == nullptr) return nullptr;
  ibv_device& base = device->base.device;
  base.node_type = IBV_NODE_CA;
  base.transport_type = IBV_TRANSPORT_IB;
  char name[shm::kNicNameBytes];
  snprintf(name, sizeof(name), "%.*s", static_cast<int>(sizeof(nic.name) - 1), nic.name);
  memcpy(base.name, name, sizeof(name));
  snprintf(base.dev_name, sizeof(base.dev_name), "uverbs%u", nic.index);
  snprintf(base.dev_path, sizeof(base.dev_path), "/sys/class/infiniband_verbs/uverbs%u", nic.index);
  snprintf(base.ibdev_path, sizeof(base.ibdev_path), "/sys/class/infiniband/%s", name);
  device->base.ops = &g_device_ops;
  device->base.refcount = 1;
  device->nic = nic;
  return device;
}

// The device of `nic`, the same pointer each time, as programs compare them.
Device* FindOrAddDevice(const shm::NicInfo& nic) {
  for (Device* device = g_devices; device != nullptr; device = device->next) {
    if (SameNic(device->nic, nic)) return device;
  }
  Device* device = NewDevice(nic);
  if (device == nullptr) return nullptr;
  device->next = g_devices;
  g_devices = device;
  return device;
}

}  // namespace

Device* DeviceOf(const shm::NicInfo& nic) {
  MutexGuard guard(g_devices_mutex);
  RegisterForkHandler();
  return FindOrAddDevice(nic);
}

namespace {

// 0, or errno. No instance, and none to be started, is an empty list and no error.
int ListNics(std::vector<shm::NicInfo>* nics) {
  bool may_start = client::AutostartAllowed();
  client::StartOptions options;
  options.directory = client::InstanceDirectory(may_start);
  std::string text;
  int error =
      options.directory.empty() ? errno : client::ListInstanceNics(options, may_start, nics, &text);
  if (error == 0) return 0;
  Debug("no devices: %s", text.empty() ? strerror(error) : text.c_str());
  nics->clear();
  return error == ENOMEM || error == EPROTO ? error : 0;
}

ibv_device** MakeList(const std::vector<shm::NicInfo>& nics, int* count) {
  auto** list = static_cast<ibv_device**>(calloc(nics.size() + 1, sizeof(ibv_device*)));
  if (list == nullptr) return Fail<ibv_device*>(ENOMEM);
  MutexGuard guard(g_devices_mutex);
  RegisterForkHandler();
  for (const shm::NicInfo& nic : nics) {
    Device* device = FindOrAddDevice(nic);
    if (device == nullptr) {
      free(list);
      *count = 0;
      return Fail<ibv_device*>(ENOMEM);
    }
    list[(*count)++] = &device->base.device;
  }
  return list;
}

}  // namespace

// Errors: ENOMEM; EPROTO when a daemon of another version serves this user.
VERBENA_EXPORT ibv_device** ibv_get_device_list(int* num_devices) {
  if (num_devices != nullptr) *num_devices = 0;
  client::NoCancel no_cancel;
  int saved_errno = errno;
  std::vector<shm::NicInfo> nics;
  int error = client::OrNoMemory([&] { return ListNics(&nics); });
  if (error != 0) return Fail<ibv_device*>(error);
  int count = 0;
  ibv_device** list = MakeList(nics, &count);
  if (list == nullptr) return nullptr;
  if (num_devices != nullptr) *num_devices = count;
  errno = saved_errno;  // an empty list is no error
  return list;
}

VERBENA_EXPORT void ibv_free_device_list(ibv_device** list) { free(list); }

VERBENA_EXPORT const char* ibv_get_device_name(ibv_device* device) { return device->name; }

VERBENA_EXPORT __be64 ibv_get_device_guid(ibv_device* device) {
  return ToDevice(device)->nic.node_guid;
}

VERBENA_EXPORT int ibv_get_device_index(ibv_device* device) {
  return static_cast<int>(ToDevice(device)->nic.index);
}

}  // namespace verbena::verbs

VERBENA_VERSION_1_1(ibv_get_device_list);
VERBENA_VERSION_1_1(ibv_free_device_list);
VERBENA_VERSION_1_1(ibv_get_device_name);
VERBENA_VERSION_1_1(ibv_get_device_guid);
