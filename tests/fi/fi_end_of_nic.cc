// What a program is told that waits for its peers alone when the daemon is killed: nothing of its
// own is under way that could fail.
//
//   fi_end_of_nic ENDPOINT WAIT     msg, rdm or dgram; one of kWaits
//   fi_end_of_nic --list ENDPOINT   what it can wait by, a line each
//
// Prints "waiting", waits without a limit, and prints what it was told: "-FI_EAVAIL".
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

// All that is posted or registered is there: the daemon may be killed from now on.
void SayWaiting() {
  printf("waiting\n");
  fflush(stdout);
}

long SleepOnCq(Peer& peer, fid_cntr*) {
  SayWaiting();
  fi_cq_data_entry entry;
  return fi_cq_sread(peer.rx_cq, &entry, 1, nullptr, -1);
}
long PollCqAlone(Peer& peer, fid_cntr*) {
  SayWaiting();
  fi_cq_data_entry entry;
  for (;;) {
    const long got = fi_cq_read(peer.rx_cq, &entry, 1);
    if (got != -FI_EAGAIN) return got;
  }
}
long SleepOnCounter(Peer&, fid_cntr* cntr) {
  SayWaiting();
  return fi_cntr_wait(cntr, 1, -1);
}
long PollCounter(Peer&, fid_cntr* cntr) {
  SayWaiting();
  while (fi_cntr_read(cntr) < 1) {
    if (fi_cntr_readerr(cntr) != 0) return -FI_EAVAIL;
  }
  return 0;
}
long SleepOnRegion(Peer& peer, fid_cntr* cntr) {
  uint8_t bytes[64];
  Fid<fid_mr> mr;
  Need(Register(peer, bytes, sizeof(bytes), FI_REMOTE_WRITE, mr.Out(), 0, FI_RMA_EVENT),
       "fi_mr_reg");
  Need(fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE), "fi_mr_bind");
  Need(fi_mr_enable(mr), "fi_mr_enable");
  const long told = SleepOnCounter(peer, cntr);
  mr.Close();
  return told;
}

// All that was posted is told before the end is.
long ReadAllReceives(Peer& peer, fid_cntr*) {
  constexpr int kReceives = 100;
  Memory in(peer, 64);
  for (int i = 0; i < kReceives; ++i) Receive(peer, in, i);
  SayWaiting();
  std::atomic<bool> is_over = false;
  std::thread reads_events([&] {
    while (!is_over && peer.eq.has_value()) {
      uint32_t kind;
      uint8_t raw[512];
      fi_eq_err_entry error = {};
      if (fi_eq_sread(*peer.eq, &kind, raw, sizeof(raw), 10, 0) == -FI_EAVAIL) {
        fi_eq_readerr(*peer.eq, &error, 0);
      }
    }
  });
  int failed = 0;
  long got = -FI_EAVAIL;
  while (got == -FI_EAVAIL || got == -FI_EAGAIN) {
    fi_cq_data_entry entry;
    fi_cq_err_entry error = {};
    got = fi_cq_sread(peer.rx_cq, &entry, 1, nullptr, -1);
    if (got != -FI_EAVAIL) continue;
    fi_cq_readerr(peer.rx_cq, &error, 0);
    failed += error.err == FI_ENODEV ? 1 : 0;
  }
  is_over = true;
  reads_events.join();
  return failed == kReceives ? got : failed;
}

constexpr struct {
  const char* name;
  long (*wait)(Peer&, fid_cntr*);
  uint64_t counts;  // what of the endpoint the counter is bound to; 0: none is
  unsigned endpoints;
} kWaits[] = {
    {"fi_cq_sread", SleepOnCq, 0, kAll},
    {"fi_cq_read", PollCqAlone, 0, kAll},
    {"fi_cq_sread_receives", ReadAllReceives, 0, kAll},
    {"fi_cntr_wait_receives", SleepOnCounter, FI_RECV, kAll},
    {"fi_cntr_read_receives", PollCounter, FI_RECV, kAll},
    {"fi_cntr_wait_writes", SleepOnCounter, FI_REMOTE_WRITE, kReliable},
    {"fi_cntr_read_writes", PollCounter, FI_REMOTE_WRITE, kReliable},
    {"fi_cntr_wait_region", SleepOnRegion, 0, kReliable},
};

int Run(const EndpointType& type, const char* name) {
  for (const auto& one : kWaits) {
    if (strcmp(one.name, name) != 0 || (one.endpoints & type.endpoints) == 0) continue;
    Target target;
    target.provider = "verbena";
    target.type = type.type;
    Ask(target);
    std::vector<Fid<fid_cntr>> counters;
    Wish wish;
    wish.wait = FI_WAIT_UNSPEC;
    if (IsReliable()) wish.caps = FI_MSG | FI_RMA | FI_RMA_EVENT;
    wish.unenabled = [&](Peer& peer) {
      counters.push_back(OpenCntr(peer.domain, FI_WAIT_UNSPEC));
      if (one.counts == 0) return;
      Need(fi_ep_bind(peer.ep, counters.back().Base(), one.counts), "fi_ep_bind counter");
    };
    Pair pair(wish);
    printf("%s\n", NameOf(one.wait(pair.a(), counters[0])).c_str());
    pair.a().ep.Close();
    pair.b().ep.Close();
    return 0;
  }
  fprintf(stderr, "no such way to wait: %s\n", name);
  return 2;
}

int Main(int argc, char** argv) {
  const bool is_list = argc == 3 && strcmp(argv[1], "--list") == 0;
  const EndpointType* type = argc == 3 ? FindEndpointType(argv[is_list ? 2 : 1]) : nullptr;
  if (type == nullptr) {
    fprintf(stderr, "usage: fi_end_of_nic msg|rdm|dgram WAIT, or --list msg|rdm|dgram\n");
    return 2;
  }
  if (!is_list) {
    try {
      return Run(*type, argv[2]);
    } catch (const Answer& answer) {
      fprintf(stderr, "%s\n", answer.reason.c_str());
      return 1;
    }
  }
  for (const auto& one : kWaits) {
    if ((one.endpoints & type->endpoints) != 0) printf("%s\n", one.name);
  }
  return 0;
}

}  // namespace
}  // namespace verbena::fi_test

int main(int argc, char** argv) { return verbena::fi_test::Main(argc, argv); }
