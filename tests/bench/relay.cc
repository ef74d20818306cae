// The least that a message between two hosts costs where a process besides the program has the
// network: on each host a program that spins and a relay, which do nothing else than to hand a
// message on. What libfabric's and verbs' round trips between two hosts are to be seen beside.
//
//   relay OWN_ADDRESS PEER_ADDRESS PORT BYTES answers       until the other one ends
//   relay OWN_ADDRESS PEER_ADDRESS PORT BYTES asks MS       prints {"half_us": N}
//
// A program writes to memory it shares with its relay, the relay sends a datagram from there, and
// receives one into it. Of the four processes, which share two CPUs, each gives its CPU away while
// it waits for something. Nothing is acknowledged, checked or copied besides.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kEnd = UINT64_MAX;
constexpr size_t kBytesMin = sizeof(uint64_t), kBytesMax = 60 << 10;
constexpr int kPacketBytes = 4096;  // a longer message goes as several, in one piece
constexpr auto kSilenceMax = std::chrono::seconds(10);
constexpr auto kHelloEvery = std::chrono::milliseconds(10);

void Check(bool is_ok, const char* what) {
  if (is_ok) return;
  perror(what);
  exit(1);
}

sockaddr_in AddressOf(const char* address, const char* port) {
  sockaddr_in in = {};
  in.sin_family = AF_INET;
  in.sin_port = htons(static_cast<uint16_t>(atoi(port)));
  if (inet_pton(AF_INET, address, &in.sin_addr) != 1) {
    fprintf(stderr, "relay: %s is no IPv4 address\n", address);
    exit(2);
  }
  return in;
}

// One host's relay, a child, and the program's end of it.
class Relay {
 public:
  Relay(const sockaddr_in& own, const sockaddr_in& peer, size_t bytes) : bytes_(bytes) {
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    Check(memory != MAP_FAILED, "mmap");
    shared_ = new (memory) Shared;
    socket_ = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    Check(socket_ >= 0, "a socket");
    Check(bind(socket_, reinterpret_cast<const sockaddr*>(&own), sizeof(own)) == 0, "bind");
    Check(connect(socket_, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) == 0, "connect");
    if (bytes > kPacketBytes) {
      const int together = 1;
      Check(setsockopt(socket_, IPPROTO_UDP, UDP_SEGMENT, &kPacketBytes, sizeof(int)) == 0,
            "UDP_SEGMENT");
      Check(setsockopt(socket_, IPPROTO_UDP, UDP_GRO, &together, sizeof(int)) == 0, "UDP_GRO");
    }
    child_ = fork();
    Check(child_ >= 0, "fork");
    if (child_ == 0) Serve();
  }
  ~Relay() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  void Post(uint64_t value) {
    memcpy(shared_->outbound, &value, sizeof(value));
    shared_->posted.store(++posted_, std::memory_order_release);
  }
  // Until something else than `last` has come. False: nothing did for so long.
  bool Await(uint64_t last, uint64_t* value, Clock::duration patience = kSilenceMax) {
    for (auto end = Clock::now() + patience;;) {
      for (int looks = 0; looks < 1'000; ++looks) {
        const uint64_t arrived = shared_->arrived.load(std::memory_order_acquire);
        if (arrived != last) {
          *value = arrived;
          return true;
        }
        sched_yield();
      }
      if (Clock::now() > end) return false;
    }
  }
  // Until what was posted has left.
  void Flush() {
    while (shared_->sent.load(std::memory_order_acquire) != posted_) sched_yield();
  }

 private:
  struct Shared {
    alignas(64) std::atomic<uint32_t> posted{0};
    alignas(64) std::atomic<uint64_t> arrived{0};
    alignas(64) std::atomic<uint32_t> sent{0};
    alignas(64) char outbound[kBytesMax] = {}, inbound[kBytesMax] = {};
  };

  [[noreturn]] void Serve() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint32_t seen = 0;;) {
      bool has_worked = false;
      if (shared_->posted.load(std::memory_order_acquire) != seen) {
        // Nobody may be there yet, and then nothing answers.
        (void)!send(socket_, shared_->outbound, bytes_, 0);
        shared_->sent.store(++seen, std::memory_order_release);
        has_worked = true;
      }
      if (recv(socket_, shared_->inbound, bytes_, 0) == static_cast<ssize_t>(bytes_)) {
        uint64_t value;
        memcpy(&value, shared_->inbound, sizeof(value));
        shared_->arrived.store(value, std::memory_order_release);
        has_worked = true;
      }
      if (!has_worked) sched_yield();
    }
  }

  const size_t bytes_;
  Shared* shared_ = nullptr;
  int socket_ = -1;
  pid_t child_ = -1;
  uint32_t posted_ = 0;
};

int Answer(Relay& relay) {
  for (uint64_t last = 0, value; relay.Await(last, &value); last = value) {
    if (value == kEnd) return 0;
    relay.Post(value);
  }
  fprintf(stderr, "relay: nobody asks\n");
  return 1;
}

int Ask(Relay& relay, int ms) {
  // Datagrams to who is not there yet are lost.
  uint64_t value = 0;
  const auto patience_end = Clock::now() + kSilenceMax;
  do {
    relay.Post(1);
  } while (!relay.Await(0, &value, kHelloEvery) && Clock::now() < patience_end);
  uint64_t asked = 0;
  const auto begin = Clock::now();
  while (value == asked + 1 && Clock::now() - begin < std::chrono::milliseconds(ms)) {
    ++asked;
    relay.Post(asked + 1);
    if (!relay.Await(asked, &value)) break;
  }
  const std::chrono::duration<double, std::micro> took = Clock::now() - begin;
  if (value != asked + 1) {
    fprintf(stderr, "relay: no answer\n");
    return 1;
  }
  relay.Post(kEnd);
  relay.Flush();
  printf("{\"half_us\": %.3f}\n", took.count() / static_cast<double>(2 * asked));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool asks = argc == 7 && strcmp(argv[5], "asks") == 0;
  const size_t bytes = argc > 4 ? strtoul(argv[4], nullptr, 10) : 0;
  if ((!asks && (argc != 6 || strcmp(argv[5], "answers") != 0)) || bytes < kBytesMin ||
      bytes > kBytesMax) {
    fprintf(stderr, "usage: relay OWN_ADDRESS PEER_ADDRESS PORT BYTES answers | asks MS\n");
    return 2;
  }
  Relay relay(AddressOf(argv[1], argv[3]), AddressOf(argv[2], argv[3]), bytes);
  return asks ? Ask(relay, atoi(argv[6])) : Answer(relay);
}
