#include "softnic/daemon/options.h"

#include <bit>
#include <charconv>
#include <cstring>
#include <string_view>

#include "core/base/read_file.h"
#include "transport/qp_transport.h"

namespace verbena::softnic {

namespace {

struct LimitFlag {
  const char* name;
  uint32_t DeviceLimits::*member;
  uint32_t max;               // what the shared-memory ABI, the object tables or a transport allow
  bool is_ring_size = false;  // a power of two, as a ring has no other size
};

constexpr LimitFlag kLimitFlags[] = {
    {"max-qp", &DeviceLimits::max_qp, 1u << 22},
    {"max-qp-wr", &DeviceLimits::max_qp_wr, 1u << 20, true},
    {"max-sge", &DeviceLimits::max_sge, shm::kMaxSge},
    {"max-sge-rd", &DeviceLimits::max_sge_rd, shm::kMaxSge},
    {"max-inline-bytes", &DeviceLimits::max_inline_bytes, shm::kMaxInlineBytes},
    {"max-cq", &DeviceLimits::max_cq, 1u << 22},
    {"max-cqe", &DeviceLimits::max_cqe, 1u << 24, true},
    {"max-mr", &DeviceLimits::max_mr, 1u << 22},
    {"max-mw", &DeviceLimits::max_mw, 1u << 22},
    {"max-pd", &DeviceLimits::max_pd, 1u << 22},
    {"max-ah", &DeviceLimits::max_ah, 1u << 22},
    {"max-srq", &DeviceLimits::max_srq, 1u << 22},
    {"max-srq-wr", &DeviceLimits::max_srq_wr, 1u << 20, true},
    {"max-srq-sge", &DeviceLimits::max_srq_sge, shm::kMaxSge},
    {"max-qp-rd-atom", &DeviceLimits::max_qp_rd_atom, 255},
    {"max-mcast-grp", &DeviceLimits::max_mcast_grp, 1u << 20},
    {"max-mcast-qp-attach", &DeviceLimits::max_mcast_qp_attach, 1u << 20},
    {"max-message-bytes", &DeviceLimits::max_message_bytes, transport::kMessageBytesMax},
    {"comp-vectors", &DeviceLimits::comp_vectors, 1024},
};

std::string ParseNumber(std::string_view flag, std::string_view text, uint64_t min, uint64_t max,
                        uint64_t* out) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty() || value < min ||
      value > max) {
    return "--" + std::string(flag) + " takes a number from " + std::to_string(min) + " to " +
           std::to_string(max) + ", not \"" + std::string(text) + "\"";
  }
  *out = value;
  return "";
}

template <typename T>
std::string ParseInto(std::string_view flag, std::string_view text, uint64_t min, uint64_t max,
                      T* out) {
  uint64_t value = 0;
  std::string error = ParseNumber(flag, text, min, max, &value);
  if (error.empty()) *out = static_cast<T>(value);
  return error;
}

std::string ParseLogLevel(std::string_view value, LogLevel* out) {
  if (value == "error")
    *out = LogLevel::kError;
  else if (value == "info")
    *out = LogLevel::kInfo;
  else if (value == "debug")
    *out = LogLevel::kDebug;
  else
    return "--log-level is error, info or debug, not \"" + std::string(value) + "\"";
  return "";
}

std::string ParseMtu(std::string_view value, uint32_t* out) {
  for (uint32_t mtu : {256u, 512u, 1024u, 2048u, 4096u}) {
    if (value == std::to_string(mtu)) {
      *out = mtu;
      return "";
    }
  }
  return "--mtu is 256, 512, 1024, 2048 or 4096, not \"" + std::string(value) + "\"";
}

std::string ParseNetIo(std::string_view value, transport::NetIo* out) {
  if (value == "epoll")
    *out = transport::NetIo::kEpoll;
  else if (value == "uring")
    *out = transport::NetIo::kUring;
  else
    return "--net-io is epoll or uring, not \"" + std::string(value) + "\"";
  return "";
}

std::string ReadFaults(const std::string& path, transport::tap::FaultRules* out) {
  std::string text;
  if (const int error = ReadFile(path, kSettingsFileBytesMax, &text); error != 0) {
    return "--faults=" + path + ": can't be read: " + strerror(error);
  }
  std::string error;
  if (ParseFaultRules(text, out, &error)) return "";
  return path + ": " + error;
}

std::string ParsePrefix(std::string_view value, std::string* out) {
  // The number of the NIC must still fit into an ibv_device name with its terminating zero.
  if (value.empty() || value.size() > shm::kNicNameBytes - 4 ||
      value.find('/') != std::string_view::npos) {
    return "--name-prefix takes 1 to " + std::to_string(shm::kNicNameBytes - 4) +
           " characters without /";
  }
  *out = value;
  return "";
}

std::string ParseFlag(std::string_view name, std::string_view value, DaemonOptions* out) {
  if (name == "directory") {
    out->control.directory = value;
    return value.empty() ? "--directory takes a path" : "";
  }
  if (name == "nics") return ParseInto(name, value, 1, shm::kMaxNics, &out->nics);
  if (name == "nic") {
    NicSpec spec;
    std::string error = ParseNicSpec(value, &spec);
    out->network.nics.push_back(std::move(spec));
    return error;
  }
  if (name == "wire") return ParseInto(name, value, 0, 1, &out->network.is_wire);
  if (name == "faults") return ReadFaults(std::string(value), &out->network.faults);
  if (name == "capture") {
    out->network.capture_path = value;
    return value.empty() ? "--capture takes the name of a file" : "";
  }
  if (name == "trace") {
    out->network.trace_path = value;
    return value.empty() ? "--trace takes the name of a file" : "";
  }
  if (name == "seed") {
    uint64_t seed = 0;
    std::string error = ParseNumber(name, value, 0, UINT64_MAX, &seed);
    if (error.empty()) out->network.seed = seed;
    return error;
  }
  if (name == "net-io") return ParseNetIo(value, &out->network.net_io);
  if (name == "name-prefix") return ParsePrefix(value, &out->control.name_prefix);
  if (name == "mtu") return ParseMtu(value, &out->control.mtu_bytes);
  if (name == "idle-exit-s") return ParseInto(name, value, 0, 1'000'000, &out->control.idle_exit_s);
  if (name == "ready-fd") return ParseInto(name, value, 0, 1'000'000, &out->ready_fd);
  if (name == "log-level") return ParseLogLevel(value, &out->log_level);
  if (name == "max-sessions") {
    return ParseInto(name, value, 1, 100'000, &out->control.sessions_max);
  }
  if (name == "max-session-mib") {
    uint64_t mib = 0;
    std::string error = ParseNumber(name, value, 1, 1u << 20, &mib);
    if (error.empty()) out->control.session.arenas.session_bytes_max = mib << 20;
    return error;
  }
  for (const LimitFlag& flag : kLimitFlags) {
    if (name != flag.name) continue;
    uint32_t& limit = out->limits.*flag.member;
    std::string error = ParseInto(name, value, 1, flag.max, &limit);
    if (error.empty() && flag.is_ring_size && !std::has_single_bit(limit)) {
      return "--" + std::string(name) + " is a power of two, such as " +
             std::to_string(std::bit_floor(limit)) + ", not \"" + std::string(value) + "\"";
    }
    return error;
  }
  return "unknown flag --" + std::string(name) + " (see --help)";
}

}  // namespace

std::string ParseOptions(int argc, const char* const* argv, DaemonOptions* out) {
  for (int i = 1; i < argc; ++i) {
    std::string_view arg = argv[i];
    if (arg == "--help" || arg == "-h") {
      out->wants_help = true;
      return "";
    }
    if (arg.substr(0, 2) != "--") return "unexpected argument \"" + std::string(arg) + "\"";
    arg.remove_prefix(2);
    size_t equals = arg.find('=');
    std::string_view value;
    if (equals != std::string_view::npos) {
      value = arg.substr(equals + 1);
    } else if (i + 1 < argc) {
      value = argv[++i];
    } else {
      return "--" + std::string(arg) + " needs a value";
    }
    const std::string_view name = arg.substr(0, equals);
    std::string error = ParseFlag(name, value, out);
    if (!error.empty()) return error;
    out->control.flags.push_back("--" + std::string(name) + "=" + std::string(value));
  }
  bool has_network = out->network.is_wire || !out->network.nics.empty();
  if (!has_network && (!out->network.faults.rules.empty() || !out->network.capture_path.empty() ||
                       !out->network.trace_path.empty())) {
    return "--faults, --capture and --trace need packets: add --wire=1 or --nic";
  }
  if (out->control.directory.empty()) return "--directory=DIR is needed: where to put the socket";
  return "";
}

std::string HelpText() {
  std::string text =
      "verbenad: the software NIC. Usually started by `verbena run` or by the first program\n"
      "that asks for RDMA devices.\n\n"
      "  --directory=DIR       where the instance's socket is made (DIR/sock)\n"
      "  --nics=N              number of NICs (default 1, at most 64)\n"
      "  --nic=ip=ADDRESS[,ip=ADDRESS][,name=NAME][,netns=NAME]\n"
      "                        a NIC on this host's network, or that of a network namespace,\n"
      "                        instead of --nics; may be repeated\n"
      "  --wire=1              the NICs talk UDP even to each other: by --nic, or on loopback\n"
      "  --faults=FILE         break packets by rules (docs/faults.md)\n"
      "  --seed=N              what chance in fault rules draws from\n"
      "  --capture=FILE        record all packets (pcapng)\n"
      "  --trace=FILE          write a line about each packet\n"
      "  --net-io=KIND         what drives the sockets: epoll (default) or uring (io_uring)\n"
      "  --name-prefix=NAME    NIC k is NAMEk (default verbena)\n"
      "  --mtu=BYTES           active MTU: 256, 512, 1024, 2048 or 4096 (default)\n"
      "  --idle-exit-s=N       end when no client was there for N seconds (default 0: never)\n"
      "  --ready-fd=FD         write R there when listening, or E and what is wrong\n"
      "  --log-level=LEVEL     error, info (default) or debug\n"
      "  --max-sessions=N      clients at a time (default 1024)\n"
      "  --max-session-mib=N   queue memory of one client (default 8192)\n\n"
      "Limits of each NIC:\n";
  const DeviceLimits defaults;
  for (const LimitFlag& flag : kLimitFlags) {
    std::string name = std::string("  --") + flag.name + "=N";
    name.resize(std::max<size_t>(name.size() + 1, 28), ' ');
    text += name + "default " + std::to_string(defaults.*flag.member) + "\n";
  }
  return text;
}

}  // namespace verbena::softnic
