// The NICs as this process has opened them: one context and one PD each, shared by identifiers.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "core/client/no_cancel.h"
#include "verbs_shim/rdmacm/objects.h"

namespace verbena::rdmacm {
namespace {

pthread_mutex_t g_devices_mutex = PTHREAD_MUTEX_INITIALIZER;  // guards the rest
// Open as long as the library is loaded, of daemons that are gone, too: the program may have made
// PDs, MRs and CQs on a context, which it destroys when it likes.
Device* g_devices = nullptr;
bool g_fork_handler_registered = false;

// The parent's other threads may have held it. What the child asks for is of another session, and
// so another device; those of the parent stay as they are.
void AfterForkInChild() { g_devices_mutex = PTHREAD_MUTEX_INITIALIZER; }

void CloseDomains(Device* device) {
  if (device->xrcd != nullptr) ibv_close_xrcd(device->xrcd);
  if (device->pd != nullptr) ibv_dealloc_pd(device->pd);
  device->xrcd = nullptr;
  device->pd = nullptr;
}

// 0 or errno.
int OpenDevice(client::CmSession* session, ibv_device* listed, Device** out) {
  auto* device = static_cast<Device*>(calloc(1, sizeof(Device)));
  if (device == nullptr) return ENOMEM;
  device->session = session;
  device->guid = ibv_get_device_guid(listed);
  device->verbs = ibv_open_device(listed);
  if (device->verbs == nullptr) {
    free(device);
    return ENODEV;
  }
  ibv_device_attr attr;
  if (int error = ibv_query_device(device->verbs, &attr); error != 0) {
    ibv_close_device(device->verbs);
    free(device);
    return error;
  }
  device->max_initiator_depth = static_cast<uint8_t>(attr.max_qp_init_rd_atom);
  device->max_responder_resources = static_cast<uint8_t>(attr.max_qp_rd_atom);
  Device** end = &g_devices;
  while (*end != nullptr) end = &(*end)->next;
  *end = device;
  *out = device;
  return 0;
}

Device* Find(const client::CmSession* session, uint64_t guid) {
  for (Device* device = g_devices; device != nullptr; device = device->next) {
    if (device->session == session && device->guid == guid) return device;
  }
  return nullptr;
}

int FindOrOpen(client::CmSession* session, uint64_t guid, Device** out) {
  *out = Find(session, guid);
  if (*out != nullptr) return 0;
  ibv_device** list = ibv_get_device_list(nullptr);
  if (list == nullptr) return ENODEV;
  int error = ENODEV;
  for (ibv_device** listed = list; *listed != nullptr; ++listed) {
    if (ibv_get_device_guid(*listed) != guid) continue;
    error = OpenDevice(session, *listed, out);
    break;
  }
  ibv_free_device_list(list);
  return error;
}

void RegisterForkHandler() {
  if (g_fork_handler_registered) return;
  g_fork_handler_registered = pthread_atfork(nullptr, nullptr, AfterForkInChild) == 0;
}

// Opens all NICs that are listed. Their number.
int OpenAll(client::CmSession* session) {
  ibv_device** list = ibv_get_device_list(nullptr);
  if (list == nullptr) return 0;
  int count = 0;
  for (ibv_device** listed = list; *listed != nullptr; ++listed) {
    Device* device = Find(session, ibv_get_device_guid(*listed));
    if (device != nullptr || OpenDevice(session, *listed, &device) == 0) ++count;
  }
  ibv_free_device_list(list);
  return count;
}

}  // namespace

int AcquireDevice(client::CmSession* session, uint64_t guid, Device** out) {
  client::NoCancel no_cancel;
  client::ScopedLock lock(&g_devices_mutex);
  RegisterForkHandler();
  if (int error = FindOrOpen(session, guid, out); error != 0) return error;
  Device* device = *out;
  if (device->pd == nullptr) {
    device->pd = ibv_alloc_pd(device->verbs);
    if (device->pd == nullptr) return errno;
  }
  ++device->users;
  return 0;
}

void ReleaseDevice(Device* device) {
  client::NoCancel no_cancel;
  client::ScopedLock lock(&g_devices_mutex);
  // With a daemon that is gone no domain refuses to go, as one does that the program has MRs in.
  if (--device->users == 0 && device->session->IsAlive()) CloseDomains(device);
}

ibv_xrcd* XrcdOf(Device* device) {
  client::NoCancel no_cancel;
  client::ScopedLock lock(&g_devices_mutex);
  if (device->xrcd == nullptr) {
    ibv_xrcd_init_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    attr.fd = -1;
    attr.oflags = O_CREAT;
    device->xrcd = ibv_open_xrcd(device->verbs, &attr);
  }
  return device->xrcd;
}

// Errors: ENODEV: no instance, or it has no NIC; ENOMEM.
// Source: rdma_get_devices(3).
VERBENA_EXPORT ibv_context** rdma_get_devices(int* num_devices) {
  client::NoCancel no_cancel;
  if (num_devices != nullptr) *num_devices = 0;
  client::CmSession* session;
  if (int error = client::CmSession::ForThisProcess(&session); error != 0) {
    errno = error;
    return nullptr;
  }
  client::ScopedLock lock(&g_devices_mutex);
  RegisterForkHandler();
  const int count = OpenAll(session);
  if (count == 0) {
    errno = ENODEV;
    return nullptr;
  }
  auto** list =
      static_cast<ibv_context**>(calloc(static_cast<size_t>(count) + 1, sizeof(ibv_context*)));
  if (list == nullptr) return nullptr;
  int filled = 0;
  for (Device* device = g_devices; device != nullptr && filled < count; device = device->next) {
    if (device->session != session) continue;
    ++device->users;
    list[filled++] = device->verbs;
  }
  if (num_devices != nullptr) *num_devices = filled;
  return list;
}

VERBENA_EXPORT void rdma_free_devices(ibv_context** list) {
  for (ibv_context** verbs = list; *verbs != nullptr; ++verbs) {
    Device* device;
    {
      client::ScopedLock lock(&g_devices_mutex);
      device = g_devices;
      while (device != nullptr && device->verbs != *verbs) device = device->next;
    }
    if (device != nullptr) ReleaseDevice(device);
  }
  free(list);
}

}  // namespace verbena::rdmacm
