#include "fi_shim/nic_attr.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "core/client/port_speed.h"
#include "fi_shim/fids.h"

namespace verbena::fi {
namespace {

constexpr uint32_t kPortActive = 4;         // enum ibv_port_state
constexpr uint32_t kLinkLayerEthernet = 2;  // IBV_LINK_LAYER_ETHERNET
constexpr size_t kTextBytesMax = 64;

bool CopyString(const char* from, char** to) {
  *to = from == nullptr ? nullptr : strdup(from);
  return from == nullptr || *to != nullptr;
}

template <typename T>
bool CopyPart(const T* from, T** to) {
  *to = nullptr;
  if (from == nullptr) return true;
  *to = static_cast<T*>(calloc(1, sizeof(T)));
  return *to != nullptr;
}

bool CopyDevice(const fi_device_attr* from, fi_device_attr** to) {
  if (!CopyPart(from, to)) return false;
  return from == nullptr ||
         (CopyString(from->name, &(*to)->name) && CopyString(from->device_id, &(*to)->device_id) &&
          CopyString(from->device_version, &(*to)->device_version) &&
          CopyString(from->vendor_id, &(*to)->vendor_id) &&
          CopyString(from->driver, &(*to)->driver) && CopyString(from->firmware, &(*to)->firmware));
}

bool CopyLink(const fi_link_attr* from, fi_link_attr** to) {
  if (!CopyPart(from, to)) return false;
  if (from == nullptr) return true;
  **to = *from;
  (*to)->network_type = nullptr;
  return CopyString(from->address, &(*to)->address) &&
         CopyString(from->network_type, &(*to)->network_type);
}

int Close(fid* fid) {
  auto* nic = reinterpret_cast<fid_nic*>(fid);
  if (fi_device_attr* device = nic->device_attr; device != nullptr) {
    for (char* text : {device->name, device->device_id, device->device_version, device->vendor_id,
                       device->driver, device->firmware}) {
      free(text);
    }
  }
  if (nic->link_attr != nullptr) {
    free(nic->link_attr->address);
    free(nic->link_attr->network_type);
  }
  free(nic->device_attr);
  free(nic->bus_attr);
  free(nic->link_attr);
  free(nic);
  return 0;
}

// Appends to what stands in `buf`, as much as fits.
__attribute__((format(printf, 3, 4))) void Append(char* buf, size_t len, const char* format, ...) {
  const size_t used = strnlen(buf, len);
  if (used + 1 >= len) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(buf + used, len - used, format, arguments);
  va_end(arguments);
}

void AppendText(char* buf, size_t len, const char* name, const char* text) {
  Append(buf, len, "            %s: %s\n", name, text != nullptr ? text : "(null)");
}

const char* StateName(fi_link_state state) {
  if (state == FI_LINK_UP) return "FI_LINK_UP";
  return state == FI_LINK_DOWN ? "FI_LINK_DOWN" : "FI_LINK_UNKNOWN";
}

// In the manner of fi_tostr(3), which calls it for its lines of the NIC.
int ToString(const fid* fid, char* buf, size_t len) {
  const auto* nic = reinterpret_cast<const fid_nic*>(fid);
  Append(buf, len, "    nic:\n");
  if (const fi_device_attr* device = nic->device_attr; device != nullptr) {
    Append(buf, len, "        fi_device_attr:\n");
    AppendText(buf, len, "name", device->name);
    AppendText(buf, len, "device_id", device->device_id);
    AppendText(buf, len, "device_version", device->device_version);
    AppendText(buf, len, "vendor_id", device->vendor_id);
    AppendText(buf, len, "driver", device->driver);
    AppendText(buf, len, "firmware", device->firmware);
  }
  if (nic->bus_attr != nullptr) {
    Append(buf, len, "        fi_bus_attr:\n            bus_type: FI_BUS_UNKNOWN\n");
  }
  if (const fi_link_attr* link = nic->link_attr; link != nullptr) {
    Append(buf, len, "        fi_link_attr:\n");
    AppendText(buf, len, "address", link->address);
    Append(buf, len, "            mtu: %zu\n            speed: %zu\n            state: %s\n",
           link->mtu, link->speed, StateName(link->state));
    AppendText(buf, len, "network_type", link->network_type);
  }
  return 0;
}

// fi_dupinfo asks for its copy by FI_DUP; of who refuses it both infos have the same one, and free
// it.
int Control(fid* fid, int command, void* arg) {
  if (command != FI_DUP || arg == nullptr) return -FI_ENOSYS;
  fid_nic* copy = CopyNic(reinterpret_cast<const fid_nic*>(fid));
  if (copy == nullptr) return -FI_ENOMEM;
  *static_cast<fid_nic**>(arg) = copy;
  return 0;
}

fi_ops g_ops = {
    .size = sizeof(fi_ops),
    .close = Close,
    .bind = NoBind,
    .control = Control,
    .ops_open = NoOpsOpen,
    .tostr = ToString,
    .ops_set = NoOpsSet,
};

char* Hex(uint32_t number) {
  char text[kTextBytesMax];
  snprintf(text, sizeof(text), "0x%04x", number);
  return strdup(text);
}

bool Describe(const char* name, const shm::QueryDeviceReply& device, fi_device_attr* attr) {
  char firmware[sizeof(device.fw_ver) + 1] = {};
  memcpy(firmware, device.fw_ver, sizeof(device.fw_ver));
  attr->name = strdup(name);
  attr->device_id = Hex(device.vendor_part_id);
  attr->device_version = Hex(device.hw_ver);
  attr->vendor_id = Hex(device.vendor_id);
  attr->driver = strdup("verbena");
  attr->firmware = strdup(firmware);
  return attr->name != nullptr && attr->device_id != nullptr && attr->device_version != nullptr &&
         attr->vendor_id != nullptr && attr->driver != nullptr && attr->firmware != nullptr;
}

// The GUID of a NIC on Ethernet has its MAC address on both sides of ff:fe, and a bit of it the
// other way round.  Spec: RFC 4291, appendix A.
char* MacOf(uint64_t node_guid) {
  constexpr uint8_t kUniversal = 0x02;
  uint8_t eui[sizeof(node_guid)];
  memcpy(eui, &node_guid, sizeof(eui));
  char text[kTextBytesMax];
  snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", eui[0] ^ kUniversal, eui[1], eui[2],
           eui[5], eui[6], eui[7]);
  return strdup(text);
}

bool Describe(uint64_t node_guid, const shm::QueryPortReply& port, fi_link_attr* attr) {
  constexpr uint32_t kMtuMax = 5;  // enum ibv_mtu
  constexpr uint64_t kHundredMega = 100'000'000;
  attr->address = MacOf(node_guid);
  attr->mtu = size_t{128} << std::min(port.active_mtu, kMtuMax);
  attr->speed = client::PortSpeed100Mbps(port.active_speed, port.active_width) * kHundredMega;
  attr->state = port.state == kPortActive ? FI_LINK_UP : FI_LINK_DOWN;
  attr->network_type = strdup(port.link_layer == kLinkLayerEthernet ? "Ethernet" : "InfiniBand");
  return attr->network_type != nullptr && attr->address != nullptr;
}

}  // namespace

fid_nic* MakeNic(const char* name, const shm::QueryDeviceReply& device,
                 const shm::QueryPortReply& port) {
  auto* nic = static_cast<fid_nic*>(calloc(1, sizeof(fid_nic)));
  if (nic == nullptr) return nullptr;
  nic->fid.fclass = FI_CLASS_NIC;
  nic->fid.ops = &g_ops;
  nic->device_attr = static_cast<fi_device_attr*>(calloc(1, sizeof(fi_device_attr)));
  nic->bus_attr = static_cast<fi_bus_attr*>(calloc(1, sizeof(fi_bus_attr)));
  nic->link_attr = static_cast<fi_link_attr*>(calloc(1, sizeof(fi_link_attr)));
  const bool has_all =
      nic->device_attr != nullptr && nic->bus_attr != nullptr && nic->link_attr != nullptr;
  if (has_all && Describe(name, device, nic->device_attr) &&
      Describe(device.node_guid, port, nic->link_attr)) {
    nic->bus_attr->bus_type = FI_BUS_UNKNOWN;  // on none
    return nic;
  }
  FreeNic(nic);
  return nullptr;
}

fid_nic* CopyNic(const fid_nic* nic) {
  if (nic == nullptr) return nullptr;
  auto* copy = static_cast<fid_nic*>(calloc(1, sizeof(fid_nic)));
  if (copy == nullptr) return nullptr;
  copy->fid = nic->fid;
  copy->fid.ops = &g_ops;
  if (CopyDevice(nic->device_attr, &copy->device_attr) &&
      CopyPart(nic->bus_attr, &copy->bus_attr) && CopyLink(nic->link_attr, &copy->link_attr)) {
    if (nic->bus_attr != nullptr) *copy->bus_attr = *nic->bus_attr;
    return copy;
  }
  FreeNic(copy);
  return nullptr;
}

void FreeNic(fid_nic* nic) {
  if (nic != nullptr) Close(&nic->fid);
}

}  // namespace verbena::fi
