#include "softnic/control/path_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "softnic/control/unique_fd.h"

namespace verbena::softnic {

namespace {

constexpr char kClass[] = "/sys/class/infiniband/";
constexpr char kVerbsClass[] = "/sys/class/infiniband_verbs/";
constexpr char kVerbsAbi[] = "6";   // IB_USER_VERBS_ABI_VERSION
constexpr char kDriverAbi[] = "2";  // of rxe's, whose driver id our library gives
constexpr char kEndOfLine[] = "\n";

std::string Hex(const char* format, uint32_t value) {
  char text[32];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

// Four groups of four digits, as the kernel prints GUIDs.
std::string GuidText(uint64_t big_endian) {
  uint8_t raw[8];
  std::memcpy(raw, &big_endian, sizeof(raw));
  char text[24];
  std::snprintf(text, sizeof(text), "%02x%02x:%02x%02x:%02x%02x:%02x%02x", raw[0], raw[1], raw[2],
                raw[3], raw[4], raw[5], raw[6], raw[7]);
  return text;
}

std::string GidText(const Gid& gid) {
  std::string text;
  for (size_t i = 0; i < gid.raw.size(); i += 2) {
    text += (i == 0 ? "" : ":") + Hex("%02x", gid.raw[i]) + Hex("%02x", gid.raw[i + 1]);
  }
  return text;
}

// A number with the name that the kernel prints behind it.
std::string Named(uint32_t value, const char* const* names, size_t count) {
  return std::to_string(value) + ": " + (value < count ? names[value] : "<unknown>");
}

std::string StateText(uint32_t state) {
  static const char* const kNames[] = {"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"};
  return Named(state, kNames, std::size(kNames));
}

std::string PhysStateText(uint32_t state) {
  static const char* const kNames[] = {
      "<unknown>",         "Sleep",   "Polling", "Disabled", "PortConfigurationTraining", "LinkUp",
      "LinkErrorRecovery", "Phy Test"};
  return Named(state, kNames, std::size(kNames));
}

// "100 Gb/sec (4X EDR)", of IBTA's speeds per lane and widths.
std::string RateText(uint32_t width, uint32_t speed) {
  struct Speed {
    uint32_t code, per_lane_tenths;
    const char* name;
  };
  static const Speed kSpeeds[] = {{1, 25, ""},        {2, 50, " DDR"},    {4, 100, " QDR"},
                                  {8, 100, " FDR10"}, {16, 140, " FDR"},  {32, 250, " EDR"},
                                  {64, 500, " HDR"},  {128, 1000, " NDR"}};
  const uint32_t lanes = width == 1 ? 1 : width == 2 ? 4 : width == 4 ? 8 : width == 8 ? 12 : 2;
  for (const Speed& known : kSpeeds) {
    if (known.code != speed) continue;
    const uint32_t tenths = known.per_lane_tenths * lanes;
    return std::to_string(tenths / 10) + (tenths % 10 != 0 ? ".5" : "") + " Gb/sec (" +
           std::to_string(lanes) + "X" + known.name + ")";
  }
  return "0 Gb/sec";
}

// All CPUs are as near as each other. In groups of 32, as the kernel prints masks.
std::string AllCpus() {
  const long count = std::max(sysconf(_SC_NPROCESSORS_CONF), 1L);
  std::string mask;
  for (long first = (count - 1) / 32 * 32; first >= 0; first -= 32) {
    const long here = std::min(count - first, 32L);
    const auto bits = static_cast<uint32_t>((uint64_t{1} << here) - 1);
    mask += mask.empty() ? Hex("%x", bits) : "," + Hex("%08x", bits);
  }
  return mask;
}

using Interfaces = std::unique_ptr<ifaddrs, decltype(&freeifaddrs)>;

Interfaces ReadInterfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) list = nullptr;
  return Interfaces(list, freeifaddrs);
}

// The interface that has the address; empty: none.
std::string InterfaceOf(const ifaddrs* list, const Gid& gid) {
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    if (entry->ifa_addr->sa_family == AF_INET6) {
      const auto* address = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      if (std::memcmp(&address->sin6_addr, gid.raw.data(), 16) == 0) return entry->ifa_name;
    } else if (entry->ifa_addr->sa_family == AF_INET && gid.IsIpv4Mapped()) {
      const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
      // Loopback has all of 127.0.0.0/8.
      if (std::memcmp(&address->sin_addr, gid.raw.data() + 12, 4) == 0 ||
          (gid.raw[12] == 127 && (entry->ifa_flags & IFF_LOOPBACK) != 0)) {
        return entry->ifa_name;
      }
    }
  }
  return "";
}

std::string NameOf(const shm::NicInfo& info) {
  return std::string(info.name, strnlen(info.name, sizeof(info.name)));
}

}  // namespace

PathTree::PathTree(std::string instance_directory)
    : root_(std::move(instance_directory) + "/paths") {}

void PathTree::Clear() {
  std::error_code ignored;  // a file that stays is written anew, or hides nothing
  std::filesystem::remove_all(root_, ignored);
  written_.clear();
}

std::string PathTree::Show(const std::vector<NicStatus>& nics,
                           const transport::NetworkNamespaces& namespaces) {
  error_.clear();
  Write(std::string(kVerbsClass) + "abi_version", kVerbsAbi);
  for (const NicStatus& nic : nics) {
    const transport::NamespaceVisit visit(namespaces.Of(nic.netns));  // for its interfaces' names
    ShowNic(nic);
  }
  return error_;
}

void PathTree::ShowNic(const NicStatus& nic) {
  const shm::QueryDeviceReply& device = nic.device_attributes;
  const std::string directory = kClass + NameOf(nic.info) + "/";
  const char* fw_ver = reinterpret_cast<const char*>(device.fw_ver);
  Write(directory + "node_type", "1: CA");
  Write(directory + "node_guid", GuidText(device.node_guid));
  Write(directory + "sys_image_guid", GuidText(device.sys_image_guid));
  Write(directory + "node_desc", NameOf(nic.info));
  Write(directory + "fw_ver", std::string(fw_ver, strnlen(fw_ver, sizeof(device.fw_ver))));
  Write(directory + "hw_rev", std::to_string(device.hw_ver));
  Write(directory + "hca_type", "Verbena");
  Write(directory + "board_id", "Verbena");
  ShowBus(directory + "device/", nic);
  ShowPort(directory + "ports/1/", nic);
  ShowInterfaces(directory + "device/net/", nic);
  const std::string uverbs = kVerbsClass + ("uverbs" + std::to_string(nic.info.index)) + "/";
  Write(uverbs + "ibdev", NameOf(nic.info));
  Write(uverbs + "abi_version", kDriverAbi);
  Write(uverbs + "dev", "1:3");  // of what stat says of the device, which is /dev/null
  ShowBus(uverbs + "device/", nic);
  LinkDevice(nic.info.index);
}

// What sysfs has of the device on its bus.
void PathTree::ShowBus(const std::string& directory, const NicStatus& nic) {
  // PCI's numbers have 16 bits; all ones are nobody's.
  Write(directory + "vendor", Hex("0x%04x", nic.device_attributes.vendor_id & 0xffff));
  Write(directory + "device", Hex("0x%04x", nic.device_attributes.vendor_part_id));
  Write(directory + "numa_node", "-1");
  Write(directory + "local_cpus", AllCpus());
  const long cpus = std::max(sysconf(_SC_NPROCESSORS_CONF), 1L);
  Write(directory + "local_cpulist", cpus == 1 ? "0" : "0-" + std::to_string(cpus - 1));
}

void PathTree::ShowPort(const std::string& port, const NicStatus& nic) {
  const shm::QueryPortReply& attributes = nic.port_attributes;
  Write(port + "state", StateText(attributes.state));
  Write(port + "phys_state", PhysStateText(attributes.phys_state));
  Write(port + "link_layer", "Ethernet");
  Write(port + "rate", RateText(attributes.active_width, attributes.active_speed));
  Write(port + "lid", Hex("0x%x", attributes.lid));
  Write(port + "lid_mask_count", std::to_string(attributes.lmc));
  Write(port + "sm_lid", Hex("0x%x", attributes.sm_lid));
  Write(port + "sm_sl", std::to_string(attributes.sm_sl));
  Write(port + "cap_mask", Hex("0x%08x", attributes.port_cap_flags));
  for (uint32_t i = 0; i < attributes.pkey_tbl_len; ++i) {
    Write(port + "pkeys/" + std::to_string(i), "0xffff");
  }
  ShowGids(port, nic);
}

void PathTree::ShowGids(const std::string& port, const NicStatus& nic) {
  const Interfaces interfaces = ReadInterfaces();
  // A GID made of the NIC's own MAC belongs where its addresses are.
  std::string of_the_nic;
  for (size_t i = nic.gids.size(); i-- > 0;) {
    const std::string name = InterfaceOf(interfaces.get(), nic.gids[i]);
    if (!name.empty()) of_the_nic = name;
  }
  for (size_t i = 0; i < nic.gids.size(); ++i) {
    const std::string index = std::to_string(i);
    Write(port + "gids/" + index, GidText(nic.gids[i]));
    if (nic.gids[i].IsZero()) continue;
    Write(port + "gid_attrs/types/" + index, "RoCE v2");
    std::string name = InterfaceOf(interfaces.get(), nic.gids[i]);
    if (name.empty()) name = of_the_nic;
    if (!name.empty()) Write(port + "gid_attrs/ndevs/" + index, name);
  }
}

// The interfaces that have the NIC's addresses, where programs look for an address to connect by.
void PathTree::ShowInterfaces(const std::string& directory, const NicStatus& nic) {
  const Interfaces interfaces = ReadInterfaces();
  for (const Gid& gid : nic.gids) {
    const std::string name = InterfaceOf(interfaces.get(), gid);
    if (name.empty()) continue;
    Write(directory + name + "/dev_id", "0x0");
    Write(directory + name + "/dev_port", "0");
  }
}

void PathTree::Failed(const std::string& path) {
  if (error_.empty()) error_ = "can't write " + root_ + path + ": " + strerror(errno);
}

bool PathTree::MakeParents(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path(), error);
  if (error) errno = error.value();
  return !error;
}

void PathTree::Write(const std::string& path, const std::string& line) {
  const std::string text = line + kEndOfLine;
  std::string& written = written_[path];
  if (written == text) return;
  const std::string name = root_ + path, fresh = name + ".new";
  UniqueFd fd(open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0444));
  if (!fd.IsValid() && errno == ENOENT && MakeParents(path)) {
    fd.Reset(open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0444));
  }
  if (!fd.IsValid() || write(fd.get(), text.data(), text.size()) != std::ssize(text) ||
      rename(fresh.c_str(), name.c_str()) != 0) {
    Failed(path);
    unlink(fresh.c_str());
    return;
  }
  written = text;
}

void PathTree::LinkDevice(uint32_t index) {
  const std::string path = "/dev/infiniband/uverbs" + std::to_string(index);
  if (!written_.emplace(path, "/dev/null").second) return;
  if (MakeParents(path) && symlink("/dev/null", (root_ + path).c_str()) == 0) return;
  Failed(path);
  written_.erase(path);
}

}  // namespace verbena::softnic
