#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "tools/cli/probes_internal.h"
#include "tools/cli/table.h"

namespace verbena::cli {
namespace {

constexpr uint16_t kRoceV2Port = 4791;

std::vector<std::string> Entries(const std::string& directory) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(directory.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = ::readdir(dir)) {
    if (entry->d_name[0] != '.') names.push_back(entry->d_name);
  }
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

// "name (pid N)" of the process that has the socket open, as far as we may look.
std::string ProcessWithSocket(uint64_t inode) {
  const std::string wanted = "socket:[" + std::to_string(inode) + "]";
  for (const std::string& pid : Entries("/proc")) {
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string fds = "/proc/" + pid + "/fd";
    for (const std::string& fd : Entries(fds)) {
      char target[64];
      const ssize_t length = ::readlink((fds + "/" + fd).c_str(), target, sizeof target);
      if (length > 0 && std::string(target, static_cast<size_t>(length)) == wanted) {
        return Trim(ReadText("/proc/" + pid + "/comm")) + " (pid " + pid + ")";
      }
    }
  }
  return "a process of another user, or the kernel (rdma_rxe)";
}

std::string HolderOfPort(uint16_t port) {
  for (const char* table : {"/proc/net/udp", "/proc/net/udp6"}) {
    if (const uint64_t inode = UdpSocketInode(ReadText(table), port))
      return ProcessWithSocket(inode);
  }
  return "the kernel (rdma_rxe) or a process in hiding";
}

}  // namespace

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string Trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

uint64_t UdpSocketInode(const std::string& proc_net_udp, uint16_t port) {
  std::istringstream lines(proc_net_udp);
  std::string line;
  std::getline(lines, line);  // the header
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    // "sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ..."
    if (fields.size() < 10) continue;
    const size_t colon = fields[1].rfind(':');
    if (colon == std::string::npos) continue;
    if (strtoul(fields[1].c_str() + colon + 1, nullptr, 16) == port) {
      return strtoull(fields[9].c_str(), nullptr, 10);
    }
  }
  return 0;
}

Finding RocePort() {
  Finding finding = {"port_4791", "RoCEv2 port (UDP 4791)", Verdict::kOk, "free", "", ""};
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(kRoceV2Port);
  const bool bound =
      fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (bound) return finding;
  finding.verdict = Verdict::kLimited;
  finding.found = error == EADDRINUSE ? "held by " + HolderOfPort(kRoceV2Port)
                                      : std::string("cannot be bound: ") + strerror(error);
  finding.effect = "Programs of this machine reach each other; other hosts cannot be reached.";
  finding.fix = "End that process; for rdma_rxe: sudo rdma link delete NAME.";
  return finding;
}

Finding RealDevices() {
  Finding finding = {"real_devices", "RDMA devices of the machine", Verdict::kOk, "none", "", ""};
  std::string names;
  for (const std::string& name : Entries("/sys/class/infiniband")) {
    names += (names.empty() ? "" : ", ") + name;
  }
  if (!names.empty()) {
    finding.found = names;
    finding.effect = "Hidden from programs that run over Verbena.";
  }
  return finding;
}

Finding SharedMount() {
  struct statvfs fs;
  const std::string size = ::statvfs("/dev/shm", &fs) == 0
                               ? HumanBytes(static_cast<uint64_t>(fs.f_blocks) * fs.f_frsize)
                               : "not there";
  return {"dev_shm", "/dev/shm", Verdict::kOk, size + "; Verbena does not use it", "", ""};
}

}  // namespace verbena::cli
