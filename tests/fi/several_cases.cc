// What several endpoints, peers, threads or processes do at one object: what is one's must not be
// another's.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/fi/fabric.h"
#include "tests/fi/waiting.h"

namespace verbena::fi_test {
namespace {

struct Lone : Peer {
  explicit Lone(const Wish& wish) : Peer(wish) { Start(); }
};

ssize_t SendTo(Peer& from, fi_addr_t to, Memory& memory, uint64_t flags) {
  const iovec iov = {memory.data(), memory.size()};
  void* desc = memory.desc();
  const fi_msg message = {&iov, &desc, 1, to, ContextOf(1), 0};
  return Post([&] { return fi_sendmsg(from.ep, &message, flags | FI_COMPLETION); });
}

// --- FI_MORE -----------------------------------------------------------------------------------

FI_CASE("msg.more_to_another_peer", kAddressed) {
  Pair pair;
  Lone third({});
  const fi_addr_t to_third = pair.a().Insert(third);
  Memory out(pair.a(), 64), in(pair.b(), 64), other(third, 64);
  out.Fill(1);
  // What is set up with the first message to a peer has been.
  Receive(pair.b(), in);
  Receive(third, other);
  Need(SendTo(pair.a(), pair.a().other, out, 0), "fi_sendmsg");
  Need(SendTo(pair.a(), to_third, out, 0), "fi_sendmsg");
  Await(pair.b().rx_cq, "the first receive of one peer");
  Await(third.rx_cq, "the first receive of the other");
  Receive(pair.b(), in);
  Receive(third, other);
  Need(SendTo(pair.a(), pair.a().other, out, FI_MORE), "fi_sendmsg with FI_MORE");
  Need(SendTo(pair.a(), to_third, out, 0), "fi_sendmsg");
  Await(third.rx_cq, "what went without FI_MORE");
  Await(pair.b().rx_cq, "what went with FI_MORE, before it");
}

FI_CASE("msg.more_before_a_refused_one", kAddressed) {
  Pair pair;
  Memory out(pair.a(), 64), in(pair.b(), 64);
  Receive(pair.b(), in);
  Send(pair.a(), out);
  Await(pair.b().rx_cq, "the first receive");
  Receive(pair.b(), in);
  Need(SendTo(pair.a(), pair.a().other, out, FI_MORE), "fi_sendmsg with FI_MORE");
  const ssize_t refused = SendTo(pair.a(), 7777, out, 0);
  if (refused == 0) DoesNotApply("an address that is not in the AV is accepted");
  Await(pair.b().rx_cq, "what went with FI_MORE before a refused one");
}

// --- shared receive contexts -------------------------------------------------------------------

// Two endpoints of one domain that share a CQ and a receive context, and a sender to each. The
// first one's sender is the second source that its NIC numbers, and the second one's the first.
struct TwoAtOne {
  explicit TwoAtOne(uint64_t caps);
  Wish wish;
  std::unique_ptr<Peer> home;
  Fid<fid_ep> srx;
  std::vector<Fid<fid_cntr>> counters;
  std::vector<Fid<fid_ep>> eps;
  std::vector<std::unique_ptr<Lone>> senders;
  fi_addr_t numbers[2] = {};  // of the senders, to `home`
};

TwoAtOne::TwoAtOne(uint64_t caps) : wish{.caps = caps} {
  wish.chosen = [](fi_info* info) { info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT; };
  home = std::make_unique<Peer>(wish);
  home->info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
  Need(fi_srx_context(home->domain, home->info->rx_attr, srx.Out(), nullptr), "fi_srx_context");
  for (int i = 0; i < 2; ++i) {
    counters.push_back(OpenCntr(home->domain));
    Fid<fid_ep> ep;
    Need(fi_endpoint(home->domain, home->info.get(), ep.Out(), nullptr), "fi_endpoint");
    Need(fi_ep_bind(ep, home->av.Base(), 0), "fi_ep_bind AV");
    Need(fi_ep_bind(ep, home->tx_cq.Base(), FI_TRANSMIT), "fi_ep_bind CQ");
    Need(fi_ep_bind(ep, home->rx_cq.Base(), FI_RECV), "fi_ep_bind CQ");
    Need(fi_ep_bind(ep, srx.Base(), 0), "fi_ep_bind shared receive context");
    Need(fi_ep_bind(ep, counters.back().Base(), FI_RECV), "fi_ep_bind counter");
    Need(fi_enable(ep), "fi_enable");
    eps.push_back(std::move(ep));
    senders.push_back(std::make_unique<Lone>(Wish{.caps = caps}));
    senders[i]->other = senders[i]->Insert(eps[i]);
    numbers[i] = home->Insert(*senders[i]);
  }
}

FI_CASE("srx.source_and_counter_of_each", kRdm) {
  TwoAtOne two(FI_MSG | FI_SOURCE);
  Memory in(*two.home, 4 * 64);
  for (int i = 0; i < 4; ++i) {
    Need(fi_recv(two.srx, in.data() + 64 * i, 64, in.desc(), FI_ADDR_UNSPEC, ContextOf(i)),
         "fi_recv of the shared context");
  }
  for (const int i : {1, 0, 1, 1}) {
    Memory out(*two.senders[i], 64);
    Send(*two.senders[i], out);
    const Completion got = Await(two.home->rx_cq, "a receive");
    Expect(got.source == two.numbers[i], "a message of %lld is said to come from %lld",
           static_cast<long long>(two.numbers[i]), static_cast<long long>(got.source));
    Await(two.senders[i]->tx_cq, "a send");
  }
  const uint64_t first = fi_cntr_read(two.counters[0]), second = fi_cntr_read(two.counters[1]);
  Expect(first == 1 && second == 3, "counted: %lu of 1 and %lu of 3", first, second);
}

FI_CASE("srx.directed_recv", kRdm) {
  TwoAtOne two(FI_MSG | FI_SOURCE | FI_DIRECTED_RECV);
  Memory in(*two.home, 2 * 64);
  for (const int i : {1, 0}) {
    Need(fi_recv(two.srx, in.data() + 64 * i, 64, in.desc(), two.numbers[i], ContextOf(i)),
         "fi_recv of the shared context, of one sender");
  }
  for (const int i : {0, 1}) {
    Memory out(*two.senders[i], 64);
    out.Fill(i + 1);
    Send(*two.senders[i], out);
    Expect(Await(two.home->rx_cq, "a receive").context == ContextOf(i), "another's receive");
    Expect(in.Has(i + 1, 64, 64 * i), "wrong bytes");
    Await(two.senders[i]->tx_cq, "a send");
  }
}

// --- counters ----------------------------------------------------------------------------------

FI_CASE("cntr.survives_another_endpoint", kAddressed) {
  Fid<fid_cntr> cntr;
  Wish counted;
  counted.unenabled = [&](Peer& peer) {
    cntr = OpenCntr(peer.domain);
    Need(fi_ep_bind(peer.ep, cntr.Base(), FI_SEND | FI_RECV), "fi_ep_bind counter");
  };
  Pair pair(counted, {});
  Peer& a = pair.a();
  Fid<fid_ep> second;
  Need(fi_endpoint(a.domain, a.info.get(), second.Out(), nullptr), "fi_endpoint");
  Need(fi_ep_bind(second, a.av.Base(), 0), "fi_ep_bind AV");
  Need(fi_ep_bind(second, a.tx_cq.Base(), FI_TRANSMIT), "fi_ep_bind CQ");
  Need(fi_ep_bind(second, a.rx_cq.Base(), FI_RECV), "fi_ep_bind CQ");
  Need(fi_ep_bind(second, cntr.Base(), FI_SEND | FI_RECV), "fi_ep_bind counter");
  Need(fi_enable(second), "fi_enable");
  Need(a.ep.Close(), "fi_close of the other endpoint");
  Memory out(a, 64), in(pair.b(), 64);
  Receive(pair.b(), in);
  Need(Post([&] { return fi_send(second, out.data(), 64, out.desc(), a.other, ContextOf(1)); }),
       "fi_send");
  // Of this end nothing but the counter is looked at.
  const long end_ms = NowMs() + 4000L * Patience();
  uint64_t value = 0;
  while ((value = fi_cntr_read(cntr)) == 0 && NowMs() < end_ms) {
    fi_cq_read(pair.b().rx_cq, nullptr, 0);
  }
  Expect(value == 1, "%lu counted of the endpoint that is left", value);
  Need(second.Close(), "fi_close");
}

// --- threads -----------------------------------------------------------------------------------

std::atomic<bool> g_is_stopped, g_has_ended;

// The thread stands still until another one has been told of the connection's end.
void StandStill(int) {
  g_is_stopped = true;
  for (const long end_ms = NowMs() + 300; !g_has_ended && NowMs() < end_ms;) continue;
}

// What one round is: messages wait, and while one thread reads them, anywhere in that, another one
// learns of the connection's end by the EQ. Each receive completes once, with a message or flushed.
void EndWhileReading(const Wish& wish, int round) {
  constexpr int kMessages = 300, kReceives = 350;
  Pair pair(wish);
  const pthread_t reader = pthread_self();
  Memory out(pair.a(), 8), in(pair.b(), 8);
  for (int i = 0; i < kReceives; ++i) Receive(pair.b(), in, i);
  for (int i = 0; i < kMessages; ++i) {
    Need(Post([&] {
           fi_cq_data_entry entry;
           fi_cq_read(pair.a().tx_cq, &entry, 1);
           return fi_send(pair.a().ep, out.data(), 8, out.desc(), pair.a().other, ContextOf(i));
         }),
         "fi_send");
  }
  g_is_stopped = g_has_ended = false;
  std::atomic<bool> reads = false, is_over = false;
  std::thread looks_at_eq([&] {
    uint8_t raw[1024];
    uint32_t event = 0;
    while (!is_over) {
      if (fi_eq_read(*pair.b().eq, &event, raw, sizeof(raw), 0) > 0) g_has_ended = true;
    }
  });
  std::thread ends([&] {
    while (!reads) continue;
    for (int i = 0; i < round * 100; ++i) reads.load();
    pthread_kill(reader, SIGUSR1);
    while (!g_is_stopped) continue;
    fi_shutdown(pair.a().ep, 0);
  });
  std::vector<int> times(kReceives);
  int told = 0;
  reads = true;
  const long end_ms = NowMs() + 4000L * Patience();
  while (told < kReceives && NowMs() < end_ms) {
    const auto got = PollCq(pair.b().rx_cq);
    if (!got) continue;
    const long at =
        static_cast<fi_context2*>(got->context) - static_cast<fi_context2*>(ContextOf(0));
    if (at >= 0 && at < kReceives) ++times[at];
    ++told;
  }
  is_over = true;
  ends.join();
  looks_at_eq.join();
  for (int i = 0; i < kReceives; ++i) {
    Expect(times[i] == 1, "round %d, %d told: receive %d came %d times", round, told, i, times[i]);
  }
}

// Control interfaces are thread-safe by every model (fi_domain(3)): who reads an EQ may be another
// thread than the domain's.
void EqInAnotherThread(fi_threading threading) {
  Wish wish;
  wish.hints = [=](fi_info* hints) {
    hints->domain_attr->threading = threading;
    hints->rx_attr->size = 512;
  };
  signal(SIGUSR1, StandStill);
  for (int round = 0; round < 40; ++round) EndWhileReading(wish, round);
}
FI_CASE("threading.domain_eq_in_another_thread", kMsg, 60) { EqInAnotherThread(FI_THREAD_DOMAIN); }
FI_CASE("threading.completion_eq_in_another_thread", kMsg, 60) {
  EqInAnotherThread(FI_THREAD_COMPLETION);
}

// Who waits for nothing but a CQ or a counter is woken by what another thread's look at the EQ
// ends.
FI_CASE("threading.domain_shutdown_wakes", kMsg, 30) {
  for (const bool is_counter : {false, true}) {
    std::vector<Fid<fid_cntr>> counters;
    Wish wish;
    wish.wait = FI_WAIT_UNSPEC;
    wish.hints = [](fi_info* hints) { hints->domain_attr->threading = FI_THREAD_DOMAIN; };
    wish.unenabled = [&](Peer& peer) {
      counters.push_back(OpenCntr(peer.domain, FI_WAIT_UNSPEC));
      Need(fi_ep_bind(peer.ep, counters.back().Base(), FI_RECV), "fi_ep_bind counter");
    };
    Pair pair(wish);
    Memory in(pair.b(), 64);
    Receive(pair.b(), in, 1);
    std::atomic<bool> is_over = false;
    std::thread waits([&] {
      uint8_t raw[1024];
      uint32_t event = 0;
      while (!is_over) fi_eq_sread(*pair.b().eq, &event, raw, sizeof(raw), 10, 0);
    });
    std::thread ends([&] { fi_shutdown(pair.a().ep, 0); });
    fi_cq_data_entry entry;
    const long got = is_counter ? fi_cntr_wait(counters[1], 1, 4000)
                                : fi_cq_sread(pair.b().rx_cq, &entry, 1, nullptr, 4000);
    is_over = true;
    waits.join();
    ends.join();
    Expect(got == -FI_EAVAIL, "%s: %s", is_counter ? "fi_cntr_wait" : "fi_cq_sread",
           NameOf(got).c_str());
    pair.a().ep.Close();
    pair.b().ep.Close();
  }
}

// --- processes ---------------------------------------------------------------------------------

// A child that closes what it inherited leaves its parent's as it is.
void ChildCloses(fi_wait_obj wait) {
  Wish wish;
  wish.wait = wait;
  Pair pair(wish);
  Memory out(pair.a(), 64), in(pair.b(), 64);
  Receive(pair.b(), in, 1);
  const pid_t child = fork();
  if (child == 0) {
    // Not by what ends a case: its answer would be the case's.
    fi_close(pair.b().ep.Base());
    fi_close(pair.b().rx_cq.Base());
    _exit(0);
  }
  int status = 0;
  const int end_fd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  const bool has_ended = IsReadable(end_fd, 4000 * Patience());
  close(end_fd);
  if (!has_ended) kill(child, SIGKILL);
  Expect(waitpid(child, &status, 0) == child && has_ended && WIFEXITED(status),
         "the child does not come to its end");
  fid_t waited = pair.b().rx_cq.Base();
  fi_mutex_cond pair_of_wait = {};
  const bool has_cond = wait == FI_WAIT_MUTEX_COND;
  if (has_cond) Need(fi_control(waited, FI_GETWAIT, &pair_of_wait), "FI_GETWAIT");
  std::thread sender([&] {
    AwaitSleepOf(getpid());
    Send(pair.a(), out, 2);
    while (!PollCq(pair.a().tx_cq)) {
    }
  });
  fi_cq_data_entry entry;
  long got = 0;
  if (has_cond) {
    timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 4;
    pthread_mutex_lock(pair_of_wait.mutex);
    int timed_out = 0;
    while (timed_out == 0 && fi_trywait(pair.b().fabric, &waited, 1) == 0) {
      timed_out = pthread_cond_timedwait(pair_of_wait.cond, pair_of_wait.mutex, &until);
    }
    pthread_mutex_unlock(pair_of_wait.mutex);
    got = timed_out != 0 ? -timed_out : fi_cq_read(pair.b().rx_cq, &entry, 1);
  } else {
    got = fi_cq_sread(pair.b().rx_cq, &entry, 1, nullptr, 4000);
  }
  sender.join();
  Expect(got == 1, "who waits for a message is not woken: %s", NameOf(got).c_str());
}
FI_CASE("fork.child_closes", kAll, 20) { ChildCloses(FI_WAIT_UNSPEC); }
FI_CASE("fork.child_closes_mutex_cond", kAll, 20) { ChildCloses(FI_WAIT_MUTEX_COND); }

}  // namespace
}  // namespace verbena::fi_test
