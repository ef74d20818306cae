#include "softnic/control/port_holder.h"

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace verbena::softnic {

namespace fs = std::filesystem;

namespace {

// A socket's address as /proc/net/udp* prints it: 32-bit words in host order.
std::string ProcText(const Gid& gid, bool is_ipv4) {
  std::string text;
  for (int word = is_ipv4 ? 3 : 0; word < 4; ++word) {
    uint32_t value;
    std::memcpy(&value, gid.raw.data() + 4 * word, 4);
    char digits[9];
    std::snprintf(digits, sizeof(digits), "%08X", value);
    text += digits;
  }
  return text;
}

// Inodes of the sockets bound to the port on the address, or on the wildcard.
std::vector<std::string> InodesOf(const char* table, const std::string& address, uint16_t port) {
  std::vector<std::string> inodes;
  std::ifstream in(table);
  std::string line;
  std::getline(in, line);
  char port_text[6];
  std::snprintf(port_text, sizeof(port_text), ":%04X", port);
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    std::string number, local, skip, inode;
    fields >> number >> local;
    for (int i = 0; i < 7; ++i) fields >> skip;
    fields >> inode;
    size_t colon = local.find(':');
    if (colon == std::string::npos || local.substr(colon) != port_text) continue;
    std::string bound = local.substr(0, colon);
    bool is_wildcard = bound.find_first_not_of('0') == std::string::npos;
    if (is_wildcard || address.empty() || bound == address) inodes.push_back(inode);
  }
  return inodes;
}

std::string ProcessWith(const std::vector<std::string>& inodes) {
  std::error_code ignored;
  for (const fs::directory_entry& process : fs::directory_iterator("/proc", ignored)) {
    std::string pid = process.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code denied;
    for (const fs::directory_entry& fd : fs::directory_iterator(process.path() / "fd", denied)) {
      std::error_code gone;
      std::string target = fs::read_symlink(fd.path(), gone);
      for (const std::string& inode : inodes) {
        if (target != "socket:[" + inode + "]") continue;
        std::ifstream comm(process.path() / "comm");
        std::string name;
        std::getline(comm, name);
        return name + " (pid " + pid + ")";
      }
    }
  }
  return "";
}

}  // namespace

std::string HolderOfUdpPort(const Gid& address, uint16_t port) {
  bool is_any = address.IsZero();
  bool is_ipv4 = address.IsIpv4Mapped();
  std::vector<std::string> inodes;
  if (is_any || is_ipv4) {
    inodes = InodesOf("/proc/net/udp", is_any ? "" : ProcText(address, true), port);
  }
  std::vector<std::string> more =
      InodesOf("/proc/net/udp6", is_any || is_ipv4 ? "" : ProcText(address, false), port);
  inodes.insert(inodes.end(), more.begin(), more.end());
  std::string process = ProcessWith(inodes);
  if (!process.empty()) return process;
  // A kernel module's socket is in the tables, and no process's.
  if (fs::exists("/sys/module/rdma_rxe")) return "the kernel's rdma_rxe (rmmod rdma_rxe frees it)";
  return inodes.empty() ? "" : "a process of another user";
}

}  // namespace verbena::softnic
