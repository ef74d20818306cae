// Several threads that sleep on one object: each is woken by what it waits for, whatever the others
// wait for.
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <thread>

#include "tests/fi/fabric.h"
#include "tests/fi/waiting.h"

namespace verbena::fi_test {
namespace {

// What waits for ever returns after this, late enough to be told from who is woken.
constexpr int kSleepMs = 4000;
constexpr int kWokenMs = 2000;

// A thread that sleeps in `call` when its constructor returns.
class Sleeping {
 public:
  explicit Sleeping(const std::function<long()>& call)
      : thread_([this, call] {
          id_.store(gettid());
          result_.store(call());
          has_returned_.store(true);
        }) {
    while (id_.load() == 0) std::this_thread::yield();
    AwaitSleepOf(id_.load());
  }
  ~Sleeping() { thread_.join(); }
  void ExpectWoken(long result, const char* what) {
    Expect(WaitUntil([&] { return has_returned_.load(); }, kWokenMs), "%s sleeps on", what);
    Expect(result_.load() == result, "%s: %s", what, NameOf(result_.load()).c_str());
  }

 private:
  std::atomic<int> id_{0};
  std::atomic<long> result_{0};
  std::atomic<bool> has_returned_{false};
  std::thread thread_;
};

Wish AnyThread() {
  Wish wish = Waiting(FI_WAIT_UNSPEC);
  wish.hints = [](fi_info* hints) { hints->domain_attr->threading = FI_THREAD_SAFE; };
  return wish;
}

FI_CASE("sleepers.thresholds_of_a_counter", kOnce, 30) {
  Ground ground(AnyThread());
  Fid<fid_cntr> counter = OpenCntr(ground.domain, FI_WAIT_UNSPEC);
  std::map<uint64_t, Sleeping> sleepers;  // by threshold
  for (const uint64_t threshold : {6, 3, 1, 2, 5, 4}) {
    sleepers.try_emplace(
        threshold, [&counter, threshold] { return fi_cntr_wait(counter, threshold, kSleepMs); });
  }
  for (auto& [threshold, next] : sleepers) {
    Need(fi_cntr_add(counter, 1), "fi_cntr_add");
    next.ExpectWoken(0, "who waits for the next value");
  }
}

FI_CASE("sleepers.messages_of_a_counter", kAll, 30) {
  std::vector<Fid<fid_cntr>> counters;
  Wish wish = AnyThread();
  wish.unenabled = [&](Peer& peer) {
    counters.push_back(OpenCntr(peer.domain, FI_WAIT_UNSPEC));
    Need(fi_ep_bind(peer.ep, counters.back().Base(), FI_RECV), "fi_ep_bind counter");
  };
  {
    Pair pair(wish);
    Memory out(pair.a(), 64), in(pair.b(), 64);
    fid_cntr* const counter = counters[1];
    for (int i = 0; i < 3; ++i) Receive(pair.b(), in, 1);
    Sleeping last([=] { return fi_cntr_wait(counter, 3, kSleepMs); });
    Sleeping second([=] { return fi_cntr_wait(counter, 2, kSleepMs); });
    Sleeping first([=] { return fi_cntr_wait(counter, 1, kSleepMs); });
    for (Sleeping* next : {&first, &second, &last}) {
      Send(pair.a(), out, 2);
      next->ExpectWoken(0, "who waits for the next message");
    }
    pair.a().ep.Close();
    pair.b().ep.Close();
  }
}

// Who waits for many and who waits for one, in either order.
FI_CASE("sleepers.thresholds_of_a_cq", kAll, 30) {
  for (const bool is_many_first : {true, false}) {
    Wish wish = AnyThread();
    wish.cq_attr = [](fi_cq_attr& attr, Ground&) { attr.wait_cond = FI_CQ_COND_THRESHOLD; };
    Pair pair(wish);
    Memory out(pair.a(), 64), in(pair.b(), 64);
    for (int i = 0; i < 4; ++i) Receive(pair.b(), in, 1);
    fid_cq* const cq = pair.b().rx_cq;
    const auto read = [cq](size_t threshold) {
      fi_cq_data_entry entries[4];
      return fi_cq_sread(cq, entries, threshold, reinterpret_cast<void*>(threshold), kSleepMs);
    };
    std::optional<Sleeping> many, one;
    if (is_many_first) many.emplace([&] { return read(3); });
    one.emplace([&] { return read(1); });
    if (!is_many_first) many.emplace([&] { return read(3); });
    Send(pair.a(), out, 2);
    one->ExpectWoken(1, "who waits for one completion");
    for (int i = 0; i < 3; ++i) Send(pair.a(), out, 2);
    many->ExpectWoken(3, "who waits for three completions");
  }
}

FI_CASE("sleepers.events_of_an_eq", kOnce, 30) {
  Ground ground(AnyThread());
  Fid<fid_eq> eq = OpenEq(ground.fabric, FI_WAIT_UNSPEC, FI_WRITE);
  const fi_eq_entry entry = {};
  const auto read = [&] {
    fi_eq_entry read = {};
    uint32_t event = 0;
    return fi_eq_sread(eq, &event, &read, sizeof(read), kSleepMs, 0);
  };
  for (int round = 0; round < 50; ++round) {
    Sleeping one(read), other(read);
    for (int i = 0; i < 2; ++i) {
      Expect(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof(entry), 0) == sizeof(entry), "fi_eq_write");
    }
    one.ExpectWoken(sizeof(entry), "one that waits for an event");
    other.ExpectWoken(sizeof(entry), "the other that waits for an event");
  }
}

FI_CASE("sleepers.signal_of_a_cq", kOnce, 30) {
  Ground ground(AnyThread());
  fi_cq_attr attr = {};
  attr.wait_obj = FI_WAIT_UNSPEC;
  Fid<fid_cq> cq = OpenCq(ground.domain, attr);
  const auto read = [&](int limit_ms) {
    fi_cq_data_entry entry;
    return fi_cq_sread(cq, &entry, 1, nullptr, limit_ms);
  };
  std::jthread beside([&](std::stop_token end) {
    while (!end.stop_requested()) read(1);
  });
  for (int round = 0; round < 50; ++round) {
    Sleeping one([&] { return read(kSleepMs); }), other([&] { return read(kSleepMs); });
    Need(fi_cq_signal(cq), "fi_cq_signal");
    one.ExpectWoken(-FI_EAGAIN, "one that sleeps");
    other.ExpectWoken(-FI_EAGAIN, "the other that sleeps");
  }
}

// What is not read yet wakes all that wait for the set.
FI_CASE("sleepers.wait_set", kOnce, 30) {
  Ground ground(AnyThread());
  fi_wait_attr wait_attr = {};
  wait_attr.wait_obj = FI_WAIT_UNSPEC;
  Fid<fid_wait> set;
  Need(fi_wait_open(ground.fabric, &wait_attr, set.Out()), "fi_wait_open");
  Fid<fid_eq> eq;
  fi_eq_attr attr = {};
  attr.wait_obj = FI_WAIT_SET;
  attr.wait_set = set;
  attr.flags = FI_WRITE;
  Need(fi_eq_open(ground.fabric, &attr, eq.Out(), nullptr), "fi_eq_open");
  for (int round = 0; round < 50; ++round) {
    Sleeping one([&] { return fi_wait(set, kSleepMs); });
    Sleeping other([&] { return fi_wait(set, kSleepMs); });
    fi_eq_entry entry = {};
    Expect(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof(entry), 0) == sizeof(entry), "fi_eq_write");
    one.ExpectWoken(0, "one that waits");
    other.ExpectWoken(0, "the other that waits");
    uint32_t event = 0;
    Expect(fi_eq_read(eq, &event, &entry, sizeof(entry), 0) == sizeof(entry), "fi_eq_read");
  }
}

// Who sleeps already when an endpoint begins to count there.
FI_CASE("sleepers.counter_of_an_endpoint_enabled_later", kAddressed, 30) {
  Peer sender(AnyThread());
  sender.Start();
  Ground ground(AnyThread());
  Fid<fid_cntr> counter = OpenCntr(ground.domain, FI_WAIT_UNSPEC);
  Fid<fid_av> av = OpenAv(ground.domain);
  Fid<fid_ep> ep;
  Need(fi_endpoint(ground.domain, ground.info.get(), ep.Out(), nullptr), "fi_endpoint");
  Need(fi_ep_bind(ep, av.Base(), 0), "fi_ep_bind AV");
  Need(fi_ep_bind(ep, counter.Base(), FI_SEND | FI_RECV), "fi_ep_bind counter");
  Sleeping waits([&] { return fi_cntr_wait(counter, 1, kSleepMs); });
  Need(fi_enable(ep), "fi_enable");
  sender.other = sender.Insert(ep);
  Memory out(sender, 64), in(ground, 128);
  Need(fi_recv(ep, in.data(), in.size(), in.desc(), FI_ADDR_UNSPEC, ContextOf(1)), "fi_recv");
  Send(sender, out, 2);
  waits.ExpectWoken(0, "who waits for the first message");
}

}  // namespace
}  // namespace verbena::fi_test
