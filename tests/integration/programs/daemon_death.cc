// A client whose daemon dies: everything it waits in must return.
// Says "ready" with one thread in every kind of call, waits for standard input to end (the daemon
// has just been killed), and then gives all of them one second.
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

// A call in a thread of its own, and whether it has come back for good.
struct Waiter {
  std::string name;
  std::atomic<bool> entered = false, done = false;
  std::thread thread;
};

std::atomic<bool> daemon_is_dead = false;
std::vector<std::unique_ptr<Waiter>> waiters;

void Start(const std::string& name, const std::function<void()>& body) {
  waiters.push_back(std::make_unique<Waiter>());
  Waiter* waiter = waiters.back().get();
  waiter->name = name;
  waiter->thread = std::thread([waiter, body] {
    waiter->entered = true;
    body();
    waiter->done = true;
  });
}

bool Connect(Side& a, Side& b) {
  return a.ToInit() == 0 && b.ToInit() == 0 && a.ToRtr(b.qp->qp_num, b.gid(), {}) == 0 &&
         b.ToRtr(a.qp->qp_num, a.gid(), {}) == 0 && a.ToRts({}) == 0 && b.ToRts({}) == 0;
}

void StartBlockedCalls(Side& a, Side& b) {
  Start("ibv_get_cq_event", [&a] {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(a.channel, &cq, &context) == 0) ibv_ack_cq_events(cq, 1);
  });
  Start("ibv_get_async_event", [&a] {
    ibv_async_event event = {};
    if (ibv_get_async_event(a.context, &event) == 0) {
      if (event.event_type != IBV_EVENT_DEVICE_FATAL) {
        std::fprintf(stderr, "async event %d, not DEVICE_FATAL\n", event.event_type);
      }
      ibv_ack_async_event(&event);
    }
  });
  Start("poll on the channel's fd", [&b] {
    pollfd fd = {b.channel->fd, POLLIN, 0};
    poll(&fd, 1, -1);
  });
  Start("poll on the async fd", [&b] {
    pollfd fd = {b.context->async_fd, POLLIN, 0};
    poll(&fd, 1, -1);
  });
}

// Loops of calls that must end: each single call returns, with success or an error.
void StartLoops(Side& a, Side& b) {
  Start("ibv_reg_mr", [&a] {
    while (!daemon_is_dead) {
      ibv_mr* mr = ibv_reg_mr(a.pd, a.buffer.data(), 4096, kAllAccess);
      if (mr != nullptr) ibv_dereg_mr(mr);
    }
  });
  Start("ibv_create_cq", [&b] {
    while (!daemon_is_dead) {
      ibv_cq* cq = ibv_create_cq(b.context, 10, nullptr, nullptr, 0);
      if (cq != nullptr) ibv_destroy_cq(cq);
    }
  });
  Start("ibv_query_qp", [&b] {
    while (!daemon_is_dead) b.State();
  });
  Start("ibv_get_device_list", [] {
    while (!daemon_is_dead) {
      int count = 0;
      ibv_device** list = ibv_get_device_list(&count);
      if (list != nullptr) ibv_free_device_list(list);
    }
  });
}

// Posts and polls until work fails: the completions of lost work must be flushes.
void StartTraffic(Side& a, Side& b) {
  Start("ibv_post_send and ibv_poll_cq", [&a, &b] {
    uint64_t posted = 0, completed = 0;
    bool failed = false;
    while (!failed || completed < posted) {
      if (!failed && posted - completed < 16) {
        if (a.Rdma(IBV_WR_RDMA_WRITE, posted, 0, 64, b, 0) != 0) {
          failed = true;
        } else {
          ++posted;
        }
      }
      ibv_wc wc = {};
      int n = ibv_poll_cq(a.send_cq, 1, &wc);
      if (n < 0) {  // nothing will ever come, but all that was posted must have
        if (completed < posted) std::fprintf(stderr, "completions lost\n");
        return;
      }
      if (n == 1) {
        if (wc.wr_id != completed) std::fprintf(stderr, "completion lost\n");
        ++completed;
        if (wc.status != IBV_WC_SUCCESS) failed = true;
      }
    }
  });
}

// What waits in an SRQ is no QP's and is not flushed: the CQ says that nothing will come.
void StartWaitForSrq(Side& a) {
  Start("ibv_poll_cq for a receive of an SRQ", [&a] {
    ibv_wc wc = {};
    while (ibv_poll_cq(a.recv_cq, 1, &wc) == 0) {
    }
  });
}

bool AllDoneWithin(Milliseconds limit) {
  bool all = Eventually(
      [] {
        for (auto& waiter : waiters) {
          if (!waiter->done) return false;
        }
        return true;
      },
      limit);
  for (auto& waiter : waiters) {
    if (!waiter->done) std::fprintf(stderr, "still in %s\n", waiter->name.c_str());
  }
  return all;
}

// With the daemon gone, every clean-up call must return, too.
bool CleansUp(std::unique_ptr<Side>& side) {
  auto begin = Clock::now();
  side.reset();
  return Clock::now() - begin < Milliseconds(1000);
}

int Main() {
  SideOptions options = {.with_channel = true};
  auto a = std::make_unique<Side>(options);
  options.nic = 1;
  auto b = std::make_unique<Side>(options);
  auto c = std::make_unique<Side>(SideOptions{}), d = std::make_unique<Side>(SideOptions{.nic = 1});
  auto e = std::make_unique<Side>(SideOptions{.with_srq = true});
  auto f = std::make_unique<Side>(SideOptions{.nic = 1});
  if (!Connect(*a, *b) || !Connect(*c, *d) || !Connect(*e, *f)) return 1;
  if (e->PostRecv(1, 0, 64) != 0) return 1;
  if (ibv_req_notify_cq(a->recv_cq, 0) != 0 || ibv_req_notify_cq(b->recv_cq, 0) != 0) return 1;
  StartBlockedCalls(*a, *b);
  StartLoops(*a, *b);
  StartTraffic(*c, *d);
  StartWaitForSrq(*e);
  for (auto& waiter : waiters) {
    if (!Eventually([&] { return waiter->entered.load(); })) return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  char byte;
  while (read(0, &byte, 1) > 0) {
  }
  daemon_is_dead = true;
  if (!AllDoneWithin(Milliseconds(1000))) _exit(1);
  for (auto& waiter : waiters) waiter->thread.join();
  for (auto* side : {&a, &b, &c, &d, &e, &f}) {
    if (!CleansUp(*side)) {
      std::fprintf(stderr, "cleaning up took more than a second\n");
      return 1;
    }
  }
  std::puts("every call returned");
  return 0;
}

}  // namespace
}  // namespace verbena::conformance

int main() { return verbena::conformance::Main(); }
