// Progress and threading models of fi_domain(3), and the attributes of a domain that are neither.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tests/fi/fabric.h"
#include "tests/fi/locks.h"

namespace verbena::fi_test {
namespace {

constexpr uint64_t kRemote = FI_REMOTE_READ | FI_REMOTE_WRITE;

Wish Progress(fi_progress data, uint64_t caps = FI_MSG | FI_RMA) {
  Wish wish = {.caps = caps};
  wish.hints = [=](fi_info* hints) {
    hints->domain_attr->data_progress = data;
    hints->domain_attr->control_progress = data;
  };
  return wish;
}

// --- a target in a process that calls nothing ---------------------------------------------------

struct Offer {
  uint64_t address, key;
  size_t bytes, address_bytes;
};

constexpr size_t kTargetBytes = 20000;

// The far end: offers memory (and one posted receive), then lets `idle` be idle; at the end tells
// what stands in its memory, without a call into libfabric in between.
void OfferMemory(const Wish& wish, int socket) {
  std::optional<Listener> listener;
  if (IsConnected()) {
    listener.emplace(wish);
    Tell(socket, listener->address.size());
    Tell(socket, listener->address.data(), listener->address.size());
  }
  Peer peer(wish);
  if (IsConnected()) {
    peer.request.reset(AwaitEvent(*listener->eq, FI_CONNREQ, "the listener's").info);
  }
  peer.Start();
  if (IsConnected()) {
    Need(fi_accept(peer.ep, nullptr, 0), "fi_accept");
    AwaitEvent(*peer.eq, FI_CONNECTED, "the passive side's");
  } else {
    const auto own = peer.Address();
    Tell(socket, own.size());
    Tell(socket, own.data(), own.size());
  }
  Memory target(peer, kTargetBytes, (wish.caps & FI_RMA) != 0 ? kRemote : 0), in(peer, 64);
  target.Fill(1);
  Receive(peer, in, 1);
  Tell(socket, Offer{target.Remote(), target.key(), target.size(), 0});
  Hear<int>(socket);  // no call into libfabric until here
  Tell(socket, target.Has(2, kTargetBytes));
  Tell(socket, in.Has(3, 64));
  Hear<int>(socket);
}

struct Near {
  explicit Near(const Wish& wish)
      : other([wish](int socket) { OfferMemory(wish, socket); }), peer(nullptr) {
    std::vector<uint8_t> address(Hear<size_t>(other.socket()));
    Hear(other.socket(), address.data(), address.size());
    peer = std::make_unique<Peer>(wish);
    peer->Start();
    if (IsConnected()) {
      Need(fi_connect(peer->ep, address.data(), nullptr, 0), "fi_connect");
      AwaitEvent(*peer->eq, FI_CONNECTED, "the active side's");
    } else {
      Expect(fi_av_insert(peer->av, address.data(), 1, &peer->other, 0, nullptr) == 1,
             "fi_av_insert");
    }
    offer = Hear<Offer>(other.socket());
  }
  void Use(bool is_stopped);
  Other other;
  std::unique_ptr<Peer> peer;
  Offer offer;
};

// Reads, writes and sends; all has to complete while the target calls nothing, or is stopped.
void Near::Use(bool is_stopped) {
  if (is_stopped) other.Kill(SIGSTOP);
  const auto done = [&](const char* what) {
    const auto got = AwaitAny(peer->tx_cq, 3000 * Patience());
    Expect(got.has_value(), "%s does not complete while the target %s", what,
           is_stopped ? "is stopped" : "calls nothing");
    Expect(got->error == 0, "%s: %s", what, NameOf(got->error).c_str());
  };
  Memory memory(*peer, kTargetBytes), message(*peer, 64);
  const bool has_rma = (peer->info->caps & FI_RMA) != 0;
  if (has_rma) {
    Need(Post([&] {
           return fi_read(peer->ep, memory.data(), kTargetBytes, memory.desc(), peer->other,
                          offer.address, offer.key, ContextOf(1));
         }),
         "fi_read");
    done("a read");
    Expect(memory.Has(1, kTargetBytes), "the read brings other bytes");
    memory.Fill(2);
    iovec from = {memory.data(), kTargetBytes};
    void* desc = memory.desc();
    const fi_rma_iov to = {offer.address, kTargetBytes, offer.key};
    const fi_msg_rma write = {&from, &desc, 1, peer->other, &to, 1, ContextOf(2), 0};
    Need(Post([&] { return fi_writemsg(peer->ep, &write, FI_DELIVERY_COMPLETE | FI_COMPLETION); }),
         "fi_writemsg");
    done("a write");
  }
  message.Fill(3);
  const iovec from = {message.data(), 64};
  void* desc = message.desc();
  const fi_msg send = {&from, &desc, 1, peer->other, ContextOf(3), 0};
  const uint64_t level = IsReliable() ? FI_DELIVERY_COMPLETE : 0;
  Need(Post([&] { return fi_sendmsg(peer->ep, &send, level | FI_COMPLETION); }), "fi_sendmsg");
  done("a send");
  if (is_stopped) other.Kill(SIGCONT);
  Tell(other.socket(), 1);
  Expect(Hear<bool>(other.socket()) || !has_rma,
         "the written bytes are not in the target's memory");
  Expect(Hear<bool>(other.socket()) || !IsReliable(), "the message is not in the target's memory");
}

FI_CASE("progress.auto_target_calls_nothing", kReliable, 20) {
  Near(Progress(FI_PROGRESS_AUTO)).Use(false);
}
FI_CASE("progress.auto_target_stopped", kReliable, 20) {
  Near(Progress(FI_PROGRESS_AUTO)).Use(true);
}
FI_CASE("progress.auto_datagrams", kDgram, 20) {
  Near(Progress(FI_PROGRESS_AUTO, FI_MSG)).Use(false);
}

// What Fill(4) made, while nothing of libfabric is called.
void ExpectItComesWithoutACall(const Memory& target, long limit_ms) {
  const long end_ms = NowMs() + limit_ms;
  while (!target.Has(4, target.size()) && NowMs() < end_ms) usleep(1000);
  Expect(target.Has(4, target.size()), "nothing moves without calls");
}

FI_CASE("progress.auto_initiator_calls_nothing", kReliable) {
  // Posted, and then nothing is called at all: the bytes arrive all the same.
  Wish wish = Progress(FI_PROGRESS_AUTO);
  Pair pair(wish);
  Memory out(pair.a(), 300'000), target(pair.b(), 300'000, kRemote), small(pair.a(), 8);
  out.Fill(4);
  // What is set up with the first operation has been.
  Need(Write(pair.a(), small, target, 1), "fi_writemsg");
  Await(pair.a().tx_cq, "a small write");
  const long posted = fi_write(pair.a().ep, out.data(), out.size(), out.desc(), pair.a().other,
                               target.Remote(), target.key(), ContextOf(2));
  Need(posted, "fi_write");
  ExpectItComesWithoutACall(target, 3000);
}

FI_CASE("progress.auto_first_operation_calls_nothing", kReliable, 20) {
  // So does the first one to its peer, whatever has to be set up for it.
  Wish wish = Progress(FI_PROGRESS_AUTO);
  Pair pair(wish);
  Memory out(pair.a(), 5'000), target(pair.b(), 5'000, kRemote);
  out.Fill(4);
  Need(Write(pair.a(), out, target, 1), "fi_writemsg");
  ExpectItComesWithoutACall(target, 3000L * Patience());
}

FI_CASE("progress.auto_done_though_the_peer_closes", kReliable, 20) {
  // The sender calls nothing until its peer has all, and has closed its endpoint.
  Wish wish = Progress(FI_PROGRESS_AUTO, FI_MSG);
  Pair pair(wish);
  constexpr size_t kMessages = 3;
  Memory out(pair.a(), 64), in(pair.b(), 64 * kMessages);
  for (size_t i = 0; i < kMessages; ++i) {
    Need(fi_recv(pair.b().ep, in.data() + 64 * i, 64, in.desc(), FI_ADDR_UNSPEC, ContextOf(i)),
         "fi_recv");
  }
  for (size_t i = 0; i < kMessages; ++i) Send(pair.a(), out, 10 + i);
  for (size_t i = 0; i < kMessages; ++i) Await(pair.b().rx_cq, "a message");
  Need(pair.b().ep.Close(), "fi_close");
  usleep(500'000);  // what is measured is that nobody calls anything before all news are there
  for (size_t i = 0; i < kMessages; ++i) Await(pair.a().tx_cq, "a send whose message was received");
}

void Manual(bool by_counter) {
  Wish wish = Progress(FI_PROGRESS_MANUAL);
  Info info = GetInfo(wish);
  Expect(info->domain_attr->data_progress == FI_PROGRESS_MANUAL, "the output says otherwise");
  Pair pair(wish);
  Memory out(pair.a(), 4096), in(pair.b(), 4096);
  out.Fill(5);
  Receive(pair.b(), in, 1);
  Send(pair.a(), out, 2);
  if (by_counter) {
    Fid<fid_poll> set;
    fi_poll_attr attr = {};
    Need(fi_poll_open(pair.b().domain, &attr, set.Out()), "fi_poll_open");
    Need(fi_poll_add(set, pair.b().rx_cq.Base(), 0), "fi_poll_add");
    void* found = nullptr;
    Expect(WaitUntil([&] {
             fi_cq_read(pair.a().tx_cq, nullptr, 0);
             return fi_poll(set, &found, 1) == 1;
           }),
           "fi_poll does not progress");
    Need(fi_poll_del(set, pair.b().rx_cq.Base(), 0), "fi_poll_del");
  }
  Await(pair.b().rx_cq, "the receive");
  Expect(in.Has(5, 4096), "wrong bytes");
}
FI_CASE("progress.manual", kReliable) { Manual(false); }
FI_CASE("progress.manual_poll_set", kReliable) { Manual(true); }

FI_CASE("progress.manual_nothing_without_a_call", kReliable) {
  // The completion becomes visible in a call on its queue, not on its wait object alone.
  Wish wish = Progress(FI_PROGRESS_MANUAL, FI_MSG);
  wish.wait = FI_WAIT_UNSPEC;
  Pair pair(wish);
  Memory out(pair.a(), 64), in(pair.b(), 64);
  Receive(pair.b(), in, 1);
  std::thread sender([&] {
    Send(pair.a(), out, 2);
    while (!PollCq(pair.a().tx_cq)) {
    }
  });
  fi_cq_data_entry entry;
  const ssize_t got = fi_cq_sread(pair.b().rx_cq, &entry, 1, nullptr, 4000);
  sender.join();
  Expect(got == 1, "fi_cq_sread, which has to progress: %s", NameOf(got).c_str());
}

constexpr int kComesWithinMs = 1000;

FI_CASE("progress.control_auto", kMsg, 20) {
  // The other end is told of the request while its program waits in no call of libfabric's.
  Wish wish = Progress(FI_PROGRESS_AUTO, FI_MSG);
  Other other([&](int socket) {
    const Listener listener(wish, FI_WAIT_FD);
    int fd = -1;
    Need(fi_control(listener.eq->Base(), FI_GETWAIT, &fd), "FI_GETWAIT");
    Tell(socket, listener.address.size());
    Tell(socket, listener.address.data(), listener.address.size());
    pollfd readable = {fd, POLLIN, 0};
    poll(&readable, 1, kComesWithinMs * Patience());
    Tell(socket, NextEvent(*listener.eq, 0).kind == FI_CONNREQ);
    Hear<int>(socket);
  });
  std::vector<uint8_t> address(Hear<size_t>(other.socket()));
  Hear(other.socket(), address.data(), address.size());
  Peer peer(wish);
  peer.Start();
  Need(fi_connect(peer.ep, address.data(), nullptr, 0), "fi_connect");
  bool is_there = false;
  Hear(other.socket(), &is_there, sizeof(is_there), 2 * kComesWithinMs);
  Expect(is_there, "the request is not there at the first look");
  Tell(other.socket(), 1);
}

// --- threading ---------------------------------------------------------------------------------

Wish Threads(fi_threading threading, uint64_t caps = FI_MSG) {
  Wish wish = {.caps = caps};
  wish.hints = [=](fi_info* hints) { hints->domain_attr->threading = threading; };
  return wish;
}

// Messages there and back, each compared; by one thread for both ends.
void Converse(Pair& pair, int rounds, uint32_t seed) {
  Memory out(pair.a(), 200), in(pair.b(), 200);
  for (int i = 0; i < rounds; ++i) {
    out.Fill(seed + i);
    Need(Post([&] {
           return fi_recv(pair.b().ep, in.data(), 200, in.desc(), FI_ADDR_UNSPEC, ContextOf(1));
         }),
         "fi_recv");
    Need(Post([&] {
           return fi_send(pair.a().ep, out.data(), 200, out.desc(), pair.a().other, ContextOf(2));
         }),
         "fi_send");
    int left = 2;
    const long end_ms = NowMs() + 6000;
    while (left > 0) {
      Expect(NowMs() < end_ms, "a round never ends");
      if (PollCq(pair.a().tx_cq)) --left;
      if (PollCq(pair.b().rx_cq)) --left;
    }
    Expect(in.Has(seed + i, 200), "wrong bytes");
  }
}

// Threads that share nothing but the library: what every model allows.
void Apart(fi_threading threading) {
  Pair one(Threads(threading)), two(Threads(threading));
  std::thread other([&] { Converse(two, 300, 1000); });
  Converse(one, 300, 1);
  other.join();
}
FI_CASE("threading.fid", kAll, 20) { Apart(FI_THREAD_FID); }
FI_CASE("threading.endpoint", kAll, 20) { Apart(FI_THREAD_ENDPOINT); }
FI_CASE("threading.completion", kAll, 20) { Apart(FI_THREAD_COMPLETION); }
FI_CASE("threading.domain", kAll, 20) { Apart(FI_THREAD_DOMAIN); }

// What FI_THREAD_FID and FI_THREAD_ENDPOINT leave to threads: each at an object of its own, though
// what one posts completes in another's CQ, and counts in a third one's counter.
void AnObjectEach(fi_threading threading) {
  // So few on their way that no datagram is lost for want of room.
  constexpr int kMessages = 3000, kUnderWay = 64;
  std::vector<Fid<fid_cntr>> counters;
  Wish wish = Threads(threading);
  wish.unenabled = [&](Peer& peer) {
    fi_cntr_attr attr = {};
    Fid<fid_cntr> counter;
    if (fi_cntr_open(peer.domain, &attr, counter.Out(), nullptr) != 0) return;
    if (fi_ep_bind(peer.ep, &counter->fid, FI_SEND | FI_RECV) != 0) return;
    counters.push_back(std::move(counter));
  };
  Pair pair(wish);
  Memory out(pair.a(), 8 * kMessages), in(pair.b(), 8 * kMessages);
  for (int i = 0; i < kMessages; ++i) memcpy(out.data() + 8 * i, &i, sizeof(i));
  const long end_ms = NowMs() + 20000;
  std::atomic<bool> is_over = false;
  std::atomic<int> received = 0, sent = 0;
  std::thread reads_sends([&] {
    while (sent < kMessages && NowMs() < end_ms) sent += PollCq(pair.a().tx_cq) ? 1 : 0;
  });
  std::thread reads_receives([&] {
    while (received < kMessages && NowMs() < end_ms) received += PollCq(pair.b().rx_cq) ? 1 : 0;
  });
  std::thread counts([&] {
    while (!is_over) {
      for (auto& counter : counters) fi_cntr_read(counter);
    }
  });
  int done = 0;
  for (bool has_receive = false; done < kMessages && NowMs() < end_ms;) {
    const size_t at = 8 * done;
    if (done - received >= kUnderWay) continue;
    if (!has_receive) {
      has_receive =
          fi_recv(pair.b().ep, in.data() + at, 8, in.desc(), FI_ADDR_UNSPEC, ContextOf(done)) == 0;
    } else if (fi_send(pair.a().ep, out.data() + at, 8, out.desc(), pair.a().other,
                       ContextOf(done)) == 0) {
      has_receive = false;
      ++done;
    }
  }
  reads_sends.join();
  reads_receives.join();
  is_over = true;
  counts.join();
  Expect(sent == kMessages && received == kMessages, "%d posted, %d sent, %d received of %d", done,
         sent.load(), received.load(), kMessages);
  for (auto& counter : counters) {
    const uint64_t counted = fi_cntr_read(counter);
    Expect(counted == kMessages, "%lu counted", counted);
  }
  Expect(memcmp(in.data(), out.data(), in.size()) == 0, "wrong bytes");
  for (Peer* peer : {&pair.a(), &pair.b()}) peer->ep.Close();
  counters.clear();
}
FI_CASE("threading.fid_an_object_each", kAll, 40) { AnObjectEach(FI_THREAD_FID); }
FI_CASE("threading.endpoint_an_object_each", kAll, 40) { AnObjectEach(FI_THREAD_ENDPOINT); }

FI_CASE("threading.safe", kReliable, 30) {
  // Four threads send by one endpoint and read one CQ; each message arrives once.
  constexpr int kThreads = 4, kEach = 250;
  Wish wish = Threads(FI_THREAD_SAFE);
  Pair pair(wish);
  Memory in(pair.b(), 8 * kThreads * kEach);
  std::atomic<int> completed = 0;
  std::atomic<bool> is_over = false;
  std::vector<std::thread> threads;
  Memory out(pair.a(), 8 * kThreads * kEach);
  for (int i = 0; i < kThreads * kEach; ++i) memcpy(out.data() + 8 * i, &i, sizeof(i));
  const auto work = [&](int thread) {
    for (int i = 0; i < kEach && !is_over;) {
      const int number = thread * kEach + i;
      if (fi_send(pair.a().ep, out.data() + 8 * number, 8, out.desc(), pair.a().other,
                  ContextOf(number)) == 0) {
        ++i;
      }
      if (PollCq(pair.a().tx_cq)) ++completed;
    }
    while (completed < kThreads * kEach && !is_over) {
      if (PollCq(pair.a().tx_cq)) ++completed;
    }
  };
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  int posted = 0, received = 0;
  const long end_ms = NowMs() + 25000;
  while (received < kThreads * kEach && NowMs() < end_ms) {
    if (posted < kThreads * kEach && fi_recv(pair.b().ep, in.data() + 8 * posted, 8, in.desc(),
                                             FI_ADDR_UNSPEC, ContextOf(posted)) == 0) {
      ++posted;
    }
    if (PollCq(pair.b().rx_cq)) ++received;
  }
  while (completed < kThreads * kEach && NowMs() < end_ms) usleep(1000);
  is_over = true;
  for (auto& thread : threads) thread.join();
  Expect(received == kThreads * kEach && completed == kThreads * kEach,
         "%d received, %d completed of %d", received, completed.load(), kThreads * kEach);
  std::vector<int> seen(kThreads * kEach);
  for (int i = 0; i < kThreads * kEach; ++i) {
    int number = -1;
    memcpy(&number, in.data() + 8 * i, sizeof(number));
    Expect(number >= 0 && number < kThreads * kEach, "a message of nobody");
    ++seen[number];
  }
  for (const int times : seen) Expect(times == 1, "a message came %d times", times);
}

// The same calls by each model, without loops: receives, sends, looks at both CQs.
// Nothing completes while it is counted: how much does is the NIC's pace, which is not asked about.
// What is left of that (whom posting wakes) makes the least of several.
size_t LocksOf(fi_threading threading) {
  constexpr int kCalls = 8, kTimes = 3;
  Pair pair(Threads(threading));
  if (pair.a().info->domain_attr->threading != threading) Refuse("the output says another model");
  Converse(pair, 3, 1);
  Memory out(pair.a(), 64), in(pair.b(), 64);
  size_t least = SIZE_MAX;
  for (int time = 0; time < kTimes; ++time) {
    const size_t locked = CountLocks([&] {
      fi_cq_data_entry entry;
      for (int i = 0; i < kCalls; ++i) {
        fi_recv(pair.b().ep, in.data(), 64, in.desc(), FI_ADDR_UNSPEC, ContextOf(1));
        fi_cq_read(pair.a().tx_cq, &entry, 1);
        fi_cq_read(pair.b().rx_cq, &entry, 1);
      }
      for (int i = 0; i < kCalls; ++i) {
        fi_send(pair.a().ep, out.data(), 64, out.desc(), pair.a().other, ContextOf(2));
      }
    });
    least = std::min(least, locked);
    for (int left = 2 * kCalls; left > 0; --left) {
      WaitUntil([&] { return PollCq(pair.a().tx_cq) || PollCq(pair.b().rx_cq); }, 1000);
    }
  }
  return least;
}

void DropsLocks(fi_threading threading) {
  const size_t safe = LocksOf(FI_THREAD_SAFE), weak = LocksOf(threading);
  Note("%zu atomic instructions in 32 calls, %zu with FI_THREAD_SAFE", weak, safe);
  Expect(weak < safe, "%zu atomic instructions in 32 calls, %zu with FI_THREAD_SAFE", weak, safe);
}
FI_CASE("threading.fid_drops_locks", kAll, 60) { DropsLocks(FI_THREAD_FID); }
FI_CASE("threading.endpoint_drops_locks", kAll, 60) { DropsLocks(FI_THREAD_ENDPOINT); }
FI_CASE("threading.completion_drops_locks", kAll, 60) { DropsLocks(FI_THREAD_COMPLETION); }
FI_CASE("threading.domain_drops_locks", kAll, 60) { DropsLocks(FI_THREAD_DOMAIN); }

}  // namespace
}  // namespace verbena::fi_test
