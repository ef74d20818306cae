// fi_cntr(3) and fi_poll(3): counters, wait sets and poll sets.
#include <string.h>

#include <atomic>
#include <thread>

#include "tests/fi/fabric.h"
#include "tests/fi/waiting.h"

namespace verbena::fi_test {
namespace {

constexpr uint64_t kRemote = FI_REMOTE_READ | FI_REMOTE_WRITE;

// --- counters ----------------------------------------------------------------------------------

struct Counted {
  explicit Counted(uint64_t flags, fi_wait_obj wait = FI_WAIT_NONE, uint64_t caps = FI_MSG,
                   fi_wait_obj of_cqs = FI_WAIT_NONE) {
    Wish wish = {.caps = caps};
    wish.wait = of_cqs;
    wish.unenabled = [this, flags, wait](Peer& peer) {
      cntr.push_back(OpenCntr(peer.domain, wait));
      Need(fi_ep_bind(peer.ep, cntr.back().Base(), flags), "fi_ep_bind counter");
    };
    pair.emplace(wish, wish);
  }
  // Of end 0 (a) or 1 (b): MSG enables a first, as the others do.
  fid_cntr* Of(int end) { return cntr[end]; }
  std::vector<Fid<fid_cntr>> cntr;
  std::optional<Pair> pair;
};

bool Reaches(fid_cntr* cntr, uint64_t value) {
  return WaitUntil([=] { return fi_cntr_read(cntr) >= value; }) && fi_cntr_read(cntr) == value;
}

FI_CASE("cntr.send_and_receive", kAll) {
  for (const bool is_send : {true, false}) {
    Counted counted(is_send ? FI_SEND : FI_RECV);
    Pair& pair = *counted.pair;
    Memory out(pair.a(), 64), in(pair.b(), 64);
    for (int i = 0; i < 5; ++i) {
      OneMessage(pair, out, in);
      Await(pair.b().rx_cq, "the receive");
    }
    fid_cntr* cntr = counted.Of(is_send ? 0 : 1);
    Expect(Reaches(cntr, 5), "%s counter: %llu of 5", is_send ? "FI_SEND" : "FI_RECV",
           static_cast<unsigned long long>(fi_cntr_read(cntr)));
  }
}

FI_CASE("cntr.write_and_read", kReliable) {
  for (const bool is_write : {true, false}) {
    Counted counted(is_write ? FI_WRITE : FI_READ, FI_WAIT_NONE, FI_MSG | FI_RMA);
    Pair& pair = *counted.pair;
    Memory out(pair.a(), 64), target(pair.b(), 64, kRemote);
    for (int i = 0; i < 5; ++i) {
      Need(Post([&] {
             return is_write ? fi_write(pair.a().ep, out.data(), 64, out.desc(), pair.a().other,
                                        target.Remote(), target.key(), ContextOf(1))
                             : fi_read(pair.a().ep, out.data(), 64, out.desc(), pair.a().other,
                                       target.Remote(), target.key(), ContextOf(1));
           }),
           "posting");
      Await(pair.a().tx_cq, "an operation");
    }
    Expect(Reaches(counted.Of(0), 5), "%s counter: %llu of 5", is_write ? "FI_WRITE" : "FI_READ",
           static_cast<unsigned long long>(fi_cntr_read(counted.Of(0))));
  }
}

FI_CASE("cntr.counts_errors", kReliable) {
  Counted counted(FI_WRITE, FI_WAIT_NONE, FI_MSG | FI_RMA);
  MakeError(*counted.pair);
  Expect(WaitUntil([&] { return fi_cntr_readerr(counted.Of(0)) == 1; }), "fi_cntr_readerr %llu",
         static_cast<unsigned long long>(fi_cntr_readerr(counted.Of(0))));
  Expect(fi_cntr_read(counted.Of(0)) == 0, "an error counts as a success");
}

FI_CASE("cntr.add_and_set", kAll) {
  Ground ground;
  const Fid<fid_cntr> cntr = OpenCntr(ground.domain);
  Need(fi_cntr_set(cntr, 10), "fi_cntr_set");
  Need(fi_cntr_add(cntr, 5), "fi_cntr_add");
  Expect(Reaches(cntr, 15), "%llu, not 15", static_cast<unsigned long long>(fi_cntr_read(cntr)));
  Need(fi_cntr_seterr(cntr, 3), "fi_cntr_seterr");
  Need(fi_cntr_adderr(cntr, 4), "fi_cntr_adderr");
  Expect(WaitUntil([&] { return fi_cntr_readerr(cntr) == 7; }), "errors: not 7");
  Expect(fi_cntr_read(cntr) == 15, "the errors changed the value");
}

FI_CASE("cntr.wait", kAll) {
  Counted counted(FI_RECV, FI_WAIT_UNSPEC);
  Pair& pair = *counted.pair;
  Memory out(pair.a(), 64), in(pair.b(), 64);
  for (int i = 0; i < 3; ++i) Receive(pair.b(), in, i);
  std::thread sender([&] {
    for (int i = 0; i < 3; ++i) {
      Send(pair.a(), out, 5);
      while (!PollCq(pair.a().tx_cq)) {
      }
    }
  });
  const int result = fi_cntr_wait(counted.Of(1), 3, 4000);
  sender.join();
  Need(result, "fi_cntr_wait");
  Expect(fi_cntr_read(counted.Of(1)) >= 3, "back below the threshold");
}

FI_CASE("cntr.wait_timeout", kAll) {
  Ground ground;
  const Fid<fid_cntr> cntr = OpenCntr(ground.domain, FI_WAIT_UNSPEC);
  const long begin_ms = NowMs();
  ExpectError(fi_cntr_wait(cntr, 1, 60), -FI_ETIMEDOUT, "fi_cntr_wait");
  Expect(NowMs() - begin_ms >= 59, "back after %ld of 60 ms", NowMs() - begin_ms);
}

FI_CASE("cntr.wait_ends_with_an_error", kAll) {
  Ground ground;
  const Fid<fid_cntr> cntr = OpenCntr(ground.domain, FI_WAIT_UNSPEC);
  std::atomic<int> result = 1;
  std::thread waiter([&] { result = fi_cntr_wait(cntr, 100, 8000); });
  Expect(WaitUntil(
             [&] {
               fi_cntr_adderr(cntr, 1);
               return result != 1;
             },
             3000),
         "an error does not end the wait");
  waiter.join();
  Expect(result < 0, "the wait ends with success");
  Note("%s", NameOf(result).c_str());
}

FI_CASE("cntr.wait_without_wait_object", kAll) {
  Ground ground;
  const Fid<fid_cntr> cntr = OpenCntr(ground.domain);
  const int result = fi_cntr_wait(cntr, 1, 10);
  Expect(result < 0 && result != -FI_ETIMEDOUT, "FI_WAIT_NONE, and fi_cntr_wait says %s",
         NameOf(result).c_str());
}

FI_CASE("cntr.wait_fd", kAll) {
  Counted counted(FI_RECV, FI_WAIT_FD);
  Pair& pair = *counted.pair;
  int fd = -1;
  Need(fi_control(&counted.Of(1)->fid, FI_GETWAIT, &fd), "FI_GETWAIT");
  Memory out(pair.a(), 64), in(pair.b(), 64);
  OneMessage(pair, out, in);
  Expect(WaitUntil([&] {
           fi_cntr_read(counted.Of(1));
           return IsReadable(fd, 0) || fi_cntr_read(counted.Of(1)) == 1;
         }),
         "neither readable nor counted");
}

FI_CASE("cntr.trywait", kAll) {
  // Nothing waits: who asks may sleep, and what is counted wakes him.
  Counted counted(FI_RECV, FI_WAIT_FD, FI_MSG, FI_WAIT_FD);
  Pair& pair = *counted.pair;
  fid_cntr* cntr = counted.Of(1);
  int fd = -1;
  Need(fi_control(&cntr->fid, FI_GETWAIT, &fd), "FI_GETWAIT");
  fid_t waited = &cntr->fid;
  Memory out(pair.a(), 64), in(pair.b(), 64);
  Receive(pair.b(), in, 1);
  Expect(WaitUntil([&] { return fi_trywait(pair.b().fabric, &waited, 1) == 0; }, 1000),
         "fi_trywait of a counter that nothing happens to: %s",
         NameOf(fi_trywait(pair.b().fabric, &waited, 1)).c_str());
  std::thread sender([&] {
    Send(pair.a(), out, 2);
    while (!PollCq(pair.a().tx_cq)) {
    }
  });
  // A few looks, for what else may wake.
  bool is_counted = false;
  for (int i = 0; i < 100 && !is_counted; ++i) {
    if (fi_trywait(pair.b().fabric, &waited, 1) == 0 && !IsReadable(fd, 4000)) break;
    is_counted = fi_cntr_read(cntr) == 1;
  }
  sender.join();
  Expect(is_counted, "a message does not wake who waits for its counter");
}

FI_CASE("cntr.busy", kAll) {
  Counted counted(FI_SEND);
  ExpectError(counted.cntr[0].Close(), -FI_EBUSY, "closing it under an endpoint");
}

// --- wait sets and poll sets -------------------------------------------------------------------

FI_CASE("wait_set.wakes", kAll) {
  Fid<fid_wait> set;
  Wish passive = Waiting(FI_WAIT_SET);
  passive.cq_attr = [&](fi_cq_attr& attr, Ground& ground) {
    fi_wait_attr of_set = {FI_WAIT_UNSPEC, 0};
    if (!set) Need(fi_wait_open(ground.fabric, &of_set, set.Out()), "fi_wait_open");
    attr.wait_set = set;
  };
  {
    Pair pair({}, passive);
    const int result = fi_wait(set, 60);
    Expect(result == -FI_ETIMEDOUT || result == -FI_EAGAIN, "fi_wait with nothing: %s",
           NameOf(result).c_str());
    Memory out(pair.a(), 64), in(pair.b(), 64);
    Receive(pair.b(), in, 1);
    std::thread sender([&] {
      Send(pair.a(), out, 2);
      while (!PollCq(pair.a().tx_cq)) {
      }
    });
    const int woken = fi_wait(set, 4000);
    sender.join();
    Need(woken, "fi_wait");
    Await(pair.b().rx_cq, "the receive");
  }
  Need(set.Close(), "fi_close of the wait set");
}

FI_CASE("wait_set.cq_does_not_block", kAll) {
  Ground ground;
  Fid<fid_wait> set;
  fi_wait_attr attr = {FI_WAIT_UNSPEC, 0};
  Need(fi_wait_open(ground.fabric, &attr, set.Out()), "fi_wait_open");
  fi_cq_attr of_cq = {};
  of_cq.wait_obj = FI_WAIT_SET;
  of_cq.wait_set = set;
  Fid<fid_cq> cq = OpenCq(ground.domain, of_cq);
  fi_cq_data_entry entry;
  const ssize_t blocking = fi_cq_sread(cq, &entry, 1, nullptr, 10);
  cq.Close();
  Expect(blocking < 0 && blocking != -FI_EAGAIN, "fi_cq_sread with FI_WAIT_SET: %s",
         NameOf(blocking).c_str());
}

FI_CASE("wait_set.event_queue_wakes", kAll) {
  Ground ground;
  Fid<fid_wait> set;
  fi_wait_attr attr = {FI_WAIT_UNSPEC, 0};
  Need(fi_wait_open(ground.fabric, &attr, set.Out()), "fi_wait_open");
  fi_eq_attr of_eq = {};
  of_eq.wait_obj = FI_WAIT_SET;
  of_eq.wait_set = set;
  of_eq.flags = FI_WRITE;
  Fid<fid_eq> eq;
  Need(fi_eq_open(ground.fabric, &of_eq, eq.Out(), nullptr), "fi_eq_open");
  fi_eq_entry entry = {};
  std::thread writer([&] { fi_eq_write(eq, FI_NOTIFY, &entry, sizeof(entry), 0); });
  const int result = fi_wait(set, 4000);
  writer.join();
  Need(result, "fi_wait");
}

FI_CASE("poll_set.finds", kAll) {
  Pair pair;
  Fid<fid_poll> set;
  fi_poll_attr attr = {};
  Need(fi_poll_open(pair.b().domain, &attr, set.Out()), "fi_poll_open");
  int mine = 0;
  fi_cq_attr of_cq = {};
  of_cq.format = FI_CQ_FORMAT_DATA;
  Fid<fid_cq> idle;
  Need(fi_cq_open(pair.b().domain, &of_cq, idle.Out(), &mine), "fi_cq_open");
  pair.b().rx_cq->fid.context = &pair;
  Need(fi_poll_add(set, pair.b().rx_cq.Base(), 0), "fi_poll_add");
  Need(fi_poll_add(set, idle.Base(), 0), "fi_poll_add");
  void* found[4] = {};
  Expect(fi_poll(set, found, 4) == 0, "something is found in empty queues");
  Memory out(pair.a(), 64), in(pair.b(), 64);
  OneMessage(pair, out, in);
  int count = 0;
  WaitUntil([&] { return (count = fi_poll(set, found, 4)) != 0; });
  Expect(count == 1 && found[0] == &pair, "%d found", count);
  Await(pair.b().rx_cq, "the receive");
  Need(fi_poll_del(set, pair.b().rx_cq.Base(), 0), "fi_poll_del");
  Need(fi_poll_del(set, idle.Base(), 0), "fi_poll_del");
}

}  // namespace
}  // namespace verbena::fi_test
