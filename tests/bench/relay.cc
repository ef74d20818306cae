// The least that a message between two hosts costs where a process besides the program has the
// network: on each host a program that spins and a relay, which do nothing else than to hand 8
// bytes on. What libfabric's and verbs' round trips between two hosts are to be seen beside.
//
//   relay OWN_ADDRESS PEER_ADDRESS PORT answers       until the other one ends
//   relay OWN_ADDRESS PEER_ADDRESS PORT asks MS       prints {"half_us": N}
//
// A program writes to memory it shares with its relay, and wakes it by an eventfd if it sleeps; the
// relay sends a datagram, and sleeps when nothing is left to do, as a NIC has to that shares two
// CPUs with three others. It asks for short turns, as ours does. Nothing is acknowledged.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/base/sched_attr.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kEnd = UINT64_MAX;
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
  Relay(const sockaddr_in& own, const sockaddr_in& peer) {
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    Check(memory != MAP_FAILED, "mmap");
    shared_ = new (memory) Shared;
    socket_ = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    event_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    Check(socket_ >= 0 && event_ >= 0, "a socket and an eventfd");
    Check(bind(socket_, reinterpret_cast<const sockaddr*>(&own), sizeof(own)) == 0, "bind");
    Check(connect(socket_, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) == 0, "connect");
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
    shared_->value = value;
    shared_->posted.store(++posted_, std::memory_order_release);
    // Full fence between the message and the look; pairs with the one in Sleep.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!shared_->is_asleep.load(std::memory_order_relaxed)) return;
    const uint64_t one = 1;
    Check(write(event_, &one, sizeof(one)) == sizeof(one), "write");
  }
  // Spins until something else than `last` has come. False: nothing did for so long.
  bool Await(uint64_t last, uint64_t* value, Clock::duration patience = kSilenceMax) {
    for (auto end = Clock::now() + patience;;) {
      for (int looks = 0; looks < 10'000; ++looks) {
        const uint64_t arrived = shared_->arrived.load(std::memory_order_acquire);
        if (arrived != last) {
          *value = arrived;
          return true;
        }
        __builtin_ia32_pause();
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
    uint64_t value = 0;
    alignas(64) std::atomic<uint64_t> arrived{0};
    alignas(64) std::atomic<uint32_t> sent{0};
    alignas(64) std::atomic<uint32_t> is_asleep{0};
  };

  [[noreturn]] void Serve() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    verbena::SchedulingAttributes turns = {};
    if (syscall(SYS_sched_getattr, 0, &turns, sizeof(turns), 0) == 0) {
      turns.flags = 0;
      turns.runtime_ns = verbena::kShortTurnNs;
      syscall(SYS_sched_setattr, 0, &turns, 0);
    }
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLET;
    Check(epoll_ctl(epoll, EPOLL_CTL_ADD, event_, &event) == 0, "epoll_ctl");
    event.events = EPOLLIN;
    Check(epoll_ctl(epoll, EPOLL_CTL_ADD, socket_, &event) == 0, "epoll_ctl");
    for (uint32_t seen = 0;;) {
      bool has_worked = false;
      if (shared_->posted.load(std::memory_order_acquire) != seen) {
        // Nobody may be there yet, and then nothing answers.
        (void)!send(socket_, &shared_->value, sizeof(shared_->value), 0);
        shared_->sent.store(++seen, std::memory_order_release);
        has_worked = true;
      }
      uint64_t value;
      if (recv(socket_, &value, sizeof(value), 0) == sizeof(value)) {
        shared_->arrived.store(value, std::memory_order_release);
        has_worked = true;
      }
      if (!has_worked) Sleep(epoll, seen);
    }
  }
  void Sleep(int epoll, uint32_t seen) {
    shared_->is_asleep.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    epoll_event events[2];
    if (shared_->posted.load(std::memory_order_relaxed) == seen) epoll_wait(epoll, events, 2, -1);
    shared_->is_asleep.store(0, std::memory_order_relaxed);
  }

  Shared* shared_ = nullptr;
  int socket_ = -1;
  int event_ = -1;
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
  const bool asks = argc == 6 && strcmp(argv[4], "asks") == 0;
  if (!asks && (argc != 5 || strcmp(argv[4], "answers") != 0)) {
    fprintf(stderr, "usage: relay OWN_ADDRESS PEER_ADDRESS PORT answers | asks MS\n");
    return 2;
  }
  Relay relay(AddressOf(argv[1], argv[3]), AddressOf(argv[2], argv[3]));
  return asks ? Ask(relay, atoi(argv[5])) : Answer(relay);
}
