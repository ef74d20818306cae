// A network cable between two network namespaces that treats RoCE packets badly: a TAP interface in
// each, and this process between them.
//   lossy_link NAME PID1 PID2 SEED [loss=PPM] [duplicate=PPM] [reorder=PPM] [corrupt=PPM]
// PPM: of a million packets so many. Lines of such words on standard input change the faults; its
// end is the end, and the last line printed says what was done. Frames that are not UDP to port
// 4791 pass untouched. The seed makes the choices; the moments are the machine's.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace verbena {
namespace {

constexpr size_t kFrameBytesMax = 10'000;
constexpr uint32_t kMillion = 1'000'000;
constexpr uint16_t kRocePort = 4791;
// A frame held back goes after so many later ones, or when the cable has been idle this long.
constexpr int kHeldFramesMax = 8;
constexpr int kIdleMs = 2;
constexpr int kFramesPerTurn = 64;

struct Faults {
  uint32_t loss = 0, duplicate = 0, reorder = 0, corrupt = 0;
};

struct Figures {
  uint64_t packets = 0, lost = 0, duplicated = 0, reordered = 0, corrupted = 0;
};

using Frame = std::vector<uint8_t>;

struct HeldFrame {
  Frame frame;
  int later_frames;  // that must pass first
};

struct End {
  int fd = -1;
  std::deque<HeldFrame> held;  // towards this end
};

bool Apply(const std::string& text, Faults* faults) {
  std::istringstream words(text);
  std::string word;
  while (words >> word) {
    size_t equals = word.find('=');
    std::string name = word.substr(0, equals);
    uint32_t value = equals == std::string::npos
                         ? kMillion + 1
                         : static_cast<uint32_t>(strtoul(word.c_str() + equals + 1, nullptr, 10));
    if (value > kMillion) return false;
    if (name == "loss") {
      faults->loss = value;
    } else if (name == "duplicate") {
      faults->duplicate = value;
    } else if (name == "reorder") {
      faults->reorder = value;
    } else if (name == "corrupt") {
      faults->corrupt = value;
    } else {
      return false;
    }
  }
  return true;
}

bool IsIpv6(const Frame& frame) { return frame[12] == 0x86 && frame[13] == 0xdd; }

// Offset of the UDP payload of a RoCE packet; 0: it is something else.
size_t RocePayloadOf(const Frame& frame) {
  size_t at = 14;  // behind the Ethernet header
  if (frame.size() < at + 20) return 0;
  uint16_t type = static_cast<uint16_t>(frame[12] << 8 | frame[13]);
  uint8_t protocol = 0;
  if (type == 0x0800) {
    protocol = frame[at + 9];
    at += size_t{4} * (frame[at] & 0xf);
  } else if (type == 0x86dd) {
    protocol = frame[at + 6];
    at += 40;
  }
  if (protocol != IPPROTO_UDP || frame.size() < at + 8) return 0;
  uint16_t port = static_cast<uint16_t>(frame[at + 2] << 8 | frame[at + 3]);
  return port == kRocePort ? at + 8 : 0;
}

int OpenTap(const char* name, const char* pid) {
  std::string path = std::string("/proc/") + pid + "/ns/net";
  int ns = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (ns < 0 || setns(ns, CLONE_NEWNET) != 0) return -1;
  close(ns);
  int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
  ifreq request = {};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  if (fd >= 0 && ioctl(fd, TUNSETIFF, &request) != 0) return -1;
  return fd;
}

class Cable {
 public:
  Cable(uint64_t seed, const Faults& faults) : faults(faults), random_(seed) {}

  // False: the interface is gone.
  bool Forward(End& from, End& to) {
    for (int i = 0; i < kFramesPerTurn; ++i) {
      buffer_.resize(kFrameBytesMax);
      ssize_t bytes = read(from.fd, buffer_.data(), buffer_.size());
      if (bytes < 0) return errno == EAGAIN || errno == EINTR || errno == EIO;
      buffer_.resize(static_cast<size_t>(bytes));
      Take(to, buffer_);
    }
    return true;
  }

  void ReleaseAll(End& end) {
    for (const HeldFrame& held : end.held) Write(end, held.frame);
    end.held.clear();
  }

  Faults faults;
  Figures figures;

 private:
  bool Happens(uint32_t ppm) { return random_() % kMillion < ppm; }

  void Take(End& to, Frame& frame) {
    size_t payload = RocePayloadOf(frame);
    if (payload == 0) return Write(to, frame);
    ++figures.packets;
    if (Happens(faults.loss)) {
      ++figures.lost;
      return;
    }
    if (Happens(faults.corrupt) && payload < frame.size()) {
      frame[payload + random_() % (frame.size() - payload)] ^= 1u << random_() % 8;
      // Over IPv6 without the UDP checksum, so that the ICRC alone must find it. Over IPv4 a
      // receiver that can't see the IP ID may take one damaged packet of 65536 for a sound one.
      if (IsIpv6(frame)) frame[payload - 2] = frame[payload - 1] = 0;
      ++figures.corrupted;
    }
    if (Happens(faults.reorder)) {
      ++figures.reordered;
      to.held.push_back({frame, 1 + static_cast<int>(random_() % kHeldFramesMax)});
      return;
    }
    Write(to, frame);
    if (Happens(faults.duplicate)) {
      ++figures.duplicated;
      Write(to, frame);
    }
    for (auto held = to.held.begin(); held != to.held.end();) {
      if (--held->later_frames > 0) {
        ++held;
        continue;
      }
      Write(to, held->frame);
      held = to.held.erase(held);
    }
  }

  // What an interface that is down or full does not take is lost, as on any cable.
  static void Write(const End& to, const Frame& frame) {
    (void)!write(to.fd, frame.data(), frame.size());
  }

  std::mt19937_64 random_;
  Frame buffer_;
};

int Main(int argc, char** argv) {
  if (argc < 5) return 2;
  Faults faults;
  for (int i = 5; i < argc; ++i) {
    if (!Apply(argv[i], &faults)) return 2;
  }
  End ends[2];
  for (int i = 0; i < 2; ++i) {
    ends[i].fd = OpenTap(argv[1], argv[2 + i]);
    if (ends[i].fd < 0) {
      std::perror("TAP interface");
      return 1;
    }
  }
  Cable cable(strtoull(argv[4], nullptr, 10), faults);
  std::puts("ready");
  std::fflush(stdout);
  std::string commands;
  for (;;) {
    pollfd fds[3] = {{ends[0].fd, POLLIN, 0}, {ends[1].fd, POLLIN, 0}, {0, POLLIN, 0}};
    bool holds = !ends[0].held.empty() || !ends[1].held.empty();
    int ready = poll(fds, 3, holds ? kIdleMs : -1);
    if (ready < 0 && errno != EINTR) return 1;
    for (int i = 0; i < 2; ++i) {
      if (ready == 0) cable.ReleaseAll(ends[i]);
      if ((fds[i].revents & POLLIN) != 0 && !cable.Forward(ends[i], ends[1 - i])) return 1;
    }
    if (fds[2].revents == 0) continue;
    char text[256];
    ssize_t bytes = read(0, text, sizeof(text));
    if (bytes <= 0) break;
    commands.append(text, static_cast<size_t>(bytes));
    for (size_t end; (end = commands.find('\n')) != std::string::npos;) {
      if (!Apply(commands.substr(0, end), &cable.faults)) return 2;
      commands.erase(0, end + 1);
      std::puts("changed");
      std::fflush(stdout);
    }
  }
  const Figures& f = cable.figures;
  std::printf("packets=%lu loss=%lu duplicate=%lu reorder=%lu corrupt=%lu\n",
              static_cast<unsigned long>(f.packets), static_cast<unsigned long>(f.lost),
              static_cast<unsigned long>(f.duplicated), static_cast<unsigned long>(f.reordered),
              static_cast<unsigned long>(f.corrupted));
  return 0;
}

}  // namespace
}  // namespace verbena

int main(int argc, char** argv) { return verbena::Main(argc, argv); }
