// Clients whose pages hang in userfaultfd: they wait for themselves, and nobody waits for them.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "softnic/dma/fake_helper.h"
#include "softnic/dma/process_dma.h"
#include "softnic/dma/test_target.h"

namespace verbena::softnic {
namespace {

using transport::DmaRequest;
using transport::DmaSegment;
using transport::DmaStatus;
using transport::MemoryId;

constexpr uint64_t kPage = 4096;
constexpr auto kDeadline = std::chrono::seconds(20);

// What the child needs to let its second page be.
int g_uffd = -1;
std::byte* g_page = nullptr;

void LetGo() {
  uffdio_zeropage zero = {};
  zero.range.start = reinterpret_cast<uint64_t>(g_page);
  zero.range.len = kPage;
  ioctl(g_uffd, UFFDIO_ZEROPAGE, &zero);
}

// In the child: whoever touches the second page hangs until SIGUSR1.
void HangSecondPage(std::byte* block) {
  g_page = block + kPage;
  g_uffd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api = {};
  api.api = UFFD_API;
  uffdio_register range = {};
  range.range.start = reinterpret_cast<uint64_t>(g_page);
  range.range.len = kPage;
  range.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (g_uffd < 0 || ioctl(g_uffd, UFFDIO_API, &api) != 0 ||
      ioctl(g_uffd, UFFDIO_REGISTER, &range) != 0) {
    _exit(1);
  }
}

bool UserfaultfdWorks() {
  int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  if (fd < 0) return false;
  close(fd);
  return true;
}

class HangingClientTest : public ::testing::Test {
 protected:
  explicit HangingClientTest(uint32_t threads_max = CopyCrew::kThreadsMax) : crew_(threads_max) {}
  void SetUp() override {
    if (!UserfaultfdWorks()) {
      GTEST_SKIP() << "userfaultfd is refused here (" << strerror(errno)
                   << "): nothing can hang that way";
    }
    crew_.Start([this](CopyThread& me) { Lead(me); }, [this] { Wake(); });
  }
  void TearDown() override { EXPECT_TRUE(crew_.Stop(10'000)); }

  // The engine's loop in small: closures, copies, results. No lock is held during copies.
  void Lead(CopyThread& me) {
    while (!crew_.IsStopping()) {
      std::function<void()> closure;
      {
        std::unique_lock lock(mutex_);
        wake_.wait_for(lock, std::chrono::milliseconds(1),
                       [&] { return !closures_.empty() || crew_.IsStopping(); });
        if (!closures_.empty()) {
          closure = std::move(closures_.front());
          closures_.pop_front();
        }
      }
      if (closure) closure();
      dma_.RequestAttention();
      while (dma_.HasWork()) {
        if (dma_.RunBatch(me, 1 << 20) == ProcessDma::Batch::kDeposed) return;
      }
      Collect();
    }
  }
  void Wake() { wake_.notify_all(); }
  void Collect() {
    std::lock_guard lock(mutex_);
    ProcessDma::Done done;
    while (dma_.PollDone(&done)) done_.push_back(done);
    uint64_t fence;
    while (dma_.PollFence(&fence)) fences_.push_back(fence);
    wake_.notify_all();
  }

  // Runs `work` on the leader and returns when it has run.
  template <typename Work>
  void OnLeader(Work work) {
    std::promise<void> ran;
    {
      std::lock_guard lock(mutex_);
      closures_.push_back([&] {
        work();
        ran.set_value();
      });
    }
    Wake();
    ASSERT_EQ(ran.get_future().wait_for(kDeadline), std::future_status::ready);
  }
  MemoryId Attach(SessionId session, const TestTarget& target) {
    MemoryId id = 0;
    OnLeader([&] {
      dma_.AttachSession(session, target.pid());
      dma_.SetReachable(session, true);
      EXPECT_EQ(dma_.AddRegion(session, {.addr = target.addr(), .length = 4 * kPage}, &id), 0);
    });
    return id;
  }
  void Copy(uint64_t stream, uint64_t cookie, DmaSegment from, DmaSegment to) {
    OnLeader([&] { Submit(stream, cookie, {from}, {to}); });
  }
  // Leader. No source: as many bytes of the request's own.
  void Submit(uint64_t stream, uint64_t cookie, const std::vector<DmaSegment>& from,
              const std::vector<DmaSegment>& to) {
    DmaRequest request;
    for (const DmaSegment& segment : to) request.source.length += segment.length;
    const std::vector<std::byte> own(request.source.length, std::byte{7});
    if (from.empty()) request.source.bytes = own.data();
    request.source.segments = from.data();
    request.source.segment_count = static_cast<uint16_t>(from.size());
    request.destination = to.data();
    request.destination_count = static_cast<uint16_t>(to.size());
    dma_.Submit(stream, cookie, request);
  }
  void AwaitSlow(uint32_t processes) {
    bool is_slow = false;
    while (!is_slow) OnLeader([&] { is_slow = dma_.slow_processes() == processes; });
  }
  static uint64_t WordAt(const TestTarget& target, uint64_t addr) {
    uint64_t word = 0;
    iovec local = {&word, 8}, remote = {reinterpret_cast<void*>(addr), 8};
    EXPECT_EQ(process_vm_readv(target.pid(), &local, 1, &remote, 1, 0), 8);
    return word;
  }
  bool WaitUntil(std::function<bool()> condition) {
    std::unique_lock lock(mutex_);
    return wake_.wait_for(lock, kDeadline, condition);
  }
  bool HasDone(uint64_t cookie) {
    for (const auto& done : done_) {
      if (done.cookie == cookie) return true;
    }
    return false;
  }
  bool WaitDone(uint64_t cookie) {
    return WaitUntil([&] { return HasDone(cookie); });
  }
  DmaStatus StatusOf(uint64_t cookie) {
    std::lock_guard lock(mutex_);
    for (const auto& done : done_) {
      if (done.cookie == cookie) return done.status;
    }
    ADD_FAILURE() << "not done: " << cookie;
    return DmaStatus::kOk;
  }
  DmaFault FaultOf(uint64_t cookie) {
    std::lock_guard lock(mutex_);
    for (const auto& done : done_) {
      if (done.cookie == cookie) return done.fault;
    }
    return DmaFault::kMemory;
  }
  bool IsDone(uint64_t cookie) {
    std::lock_guard lock(mutex_);
    return HasDone(cookie);
  }

  CopyCrew crew_;
  ProcessDma dma_{&crew_};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> closures_;
  std::vector<ProcessDma::Done> done_;
  std::vector<uint64_t> fences_;
};

TEST_F(HangingClientTest, OthersGoOnWhileOneHangsAsDestination) {
  TestTarget a(4 * kPage), hung(4 * kPage, HangSecondPage, LetGo), c(4 * kPage);
  MemoryId ra = Attach(1, a), rh = Attach(2, hung), rc = Attach(3, c);
  Copy(1, 10, {ra, 8, a.addr()}, {rh, 8, hung.addr() + kPage});
  for (uint64_t i = 0; i < 100; ++i) {
    Copy(2, 1000 + i, {ra, 8, a.addr()}, {rc, 8, c.addr()});
    ASSERT_TRUE(WaitDone(1000 + i)) << i;
  }
  EXPECT_FALSE(IsDone(10));
  EXPECT_GE(crew_.takeovers(), 1u);
  // A fence of a session that has nothing to do with it comes at once.
  OnLeader([&] { dma_.Fence(3, 77); });
  EXPECT_TRUE(WaitUntil([&] { return fences_ == std::vector<uint64_t>{77}; }));

  ASSERT_EQ(kill(hung.pid(), SIGUSR1), 0);
  ASSERT_TRUE(WaitDone(10));
  EXPECT_EQ(StatusOf(10), DmaStatus::kOk);
}

TEST_F(HangingClientTest, OthersGoOnWhileOneHangsAsSource) {
  TestTarget a(4 * kPage), hung(4 * kPage, HangSecondPage, LetGo), c(4 * kPage);
  MemoryId ra = Attach(1, a), rh = Attach(2, hung), rc = Attach(3, c);
  Copy(1, 10, {rh, 8, hung.addr() + kPage}, {ra, 8, a.addr()});
  Copy(2, 11, {ra, 8, a.addr()}, {rc, 8, c.addr()});
  ASSERT_TRUE(WaitDone(11));
  EXPECT_FALSE(IsDone(10));
  ASSERT_EQ(kill(hung.pid(), SIGUSR1), 0);
  ASSERT_TRUE(WaitDone(10));
  EXPECT_EQ(StatusOf(10), DmaStatus::kOk);
}

// What goes to the same process, and comes from elsewhere: from another one, or from no memory. A
// turn begins with stream 0, whose lane is the first.
class OneOfManySendersHangs : public HangingClientTest {
 protected:
  void OthersGoOn(uint64_t streams_of_hanging, uint64_t streams_without_source) {
    TestTarget a(4 * kPage), hung(4 * kPage, HangSecondPage, LetGo), c(4 * kPage);
    MemoryId ra = Attach(1, a), rh = Attach(2, hung), rc = Attach(3, c);
    OnLeader([&] {
      for (uint64_t i = 0; i < 8; ++i) {  // of one turn
        Submit(streams_of_hanging + i, i, {{rh, 8, hung.addr() + kPage}}, {{ra, 8, a.addr()}});
        Submit(streams_without_source + i, 10 + i, {}, {{ra, 8, a.addr() + 8}});
        Submit(20 + i, 20 + i, {{rc, 8, c.addr()}}, {{ra, 8, a.addr() + 16}});
      }
    });
    for (uint64_t i = 0; i < 8; ++i) {
      ASSERT_TRUE(WaitDone(10 + i)) << i;
      ASSERT_TRUE(WaitDone(20 + i)) << i;
      EXPECT_EQ(StatusOf(10 + i), DmaStatus::kOk);
      EXPECT_EQ(StatusOf(20 + i), DmaStatus::kOk);
      EXPECT_FALSE(IsDone(i));
    }
    ASSERT_EQ(kill(hung.pid(), SIGUSR1), 0);
    for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(WaitDone(i));
  }
};

TEST_F(OneOfManySendersHangs, WhereItComesFirst) { OthersGoOn(0, 10); }
TEST_F(OneOfManySendersHangs, WhereOneWithoutSourceDoes) { OthersGoOn(10, 0); }

TEST_F(HangingClientTest, StreamKeepsItsOrderThroughTheSlowPath) {
  TestTarget a(4 * kPage), hung(4 * kPage, HangSecondPage, LetGo), c(4 * kPage);
  MemoryId ra = Attach(1, a), rh = Attach(2, hung), rc = Attach(3, c);
  // One stream: hangs, then goes elsewhere, then to the hanging client's good page.
  for (uint64_t i = 0; i < 30; ++i) {
    if (i % 3 == 0) Copy(5, i, {ra, 8, a.addr()}, {rh, 8, hung.addr() + kPage + 8 * i});
    if (i % 3 == 1) Copy(5, i, {ra, 8, a.addr()}, {rc, 8, c.addr()});
    if (i % 3 == 2) Copy(5, i, {ra, 8, a.addr()}, {rh, 8, hung.addr()});
  }
  // Another stream to the same hanging client waits too, and one that avoids it does not.
  Copy(6, 100, {ra, 8, a.addr()}, {rh, 8, hung.addr()});
  Copy(7, 101, {ra, 8, a.addr()}, {rc, 8, c.addr()});
  ASSERT_TRUE(WaitDone(101));
  EXPECT_FALSE(IsDone(0));
  EXPECT_FALSE(IsDone(1));
  ASSERT_EQ(kill(hung.pid(), SIGUSR1), 0);
  ASSERT_TRUE(WaitDone(29));
  ASSERT_TRUE(WaitDone(100));
  std::lock_guard lock(mutex_);
  std::vector<uint64_t> order;
  for (const auto& done : done_) {
    EXPECT_EQ(done.status, DmaStatus::kOk);
    if (done.cookie < 30) order.push_back(done.cookie);
  }
  ASSERT_EQ(order.size(), 30u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_F(HangingClientTest, ClientThatProvesFastReturnsToTheFastPath) {
  TestTarget a(4 * kPage), hung(4 * kPage, HangSecondPage, LetGo);
  MemoryId ra = Attach(1, a), rh = Attach(2, hung);
  Copy(1, 10, {ra, 8, a.addr()}, {rh, 8, hung.addr() + kPage});
  bool is_slow = false;
  while (!is_slow) OnLeader([&] { is_slow = dma_.slow_processes() == 1; });
  ASSERT_EQ(kill(hung.pid(), SIGUSR1), 0);
  ASSERT_TRUE(WaitDone(10));
  for (uint64_t i = 0; is_slow && i < 10'000; ++i) {
    Copy(1, 100 + i, {ra, 8, a.addr()}, {rh, 8, hung.addr() + kPage});
    ASSERT_TRUE(WaitDone(100 + i));
    OnLeader([&] { is_slow = dma_.slow_processes() != 0; });
  }
  EXPECT_FALSE(is_slow);
}

TEST_F(HangingClientTest, KilledWhileHangingFaultsAndLetsItsFenceGo) {
  TestTarget a(4 * kPage), hung(4 * kPage, HangSecondPage, LetGo);
  MemoryId ra = Attach(1, a), rh = Attach(2, hung);
  Copy(1, 10, {ra, 8, a.addr()}, {rh, 8, hung.addr() + kPage});
  OnLeader([&] { dma_.Fence(2, 5); });
  bool is_slow = false;
  while (!is_slow) OnLeader([&] { is_slow = dma_.slow_processes() == 1; });
  EXPECT_FALSE(IsDone(10));
  hung.Kill();
  ASSERT_TRUE(WaitDone(10));
  // Its status is the kernel's business: the dying address space may still take the bytes.
  EXPECT_TRUE(WaitUntil([&] { return fences_ == std::vector<uint64_t>{5}; }));
  OnLeader([&] {
    EXPECT_TRUE(dma_.IsIdle(2));
    dma_.DetachSession(2);
  });
}

TEST_F(HangingClientTest, AtomicsOnAHangingWordHappenOnceEach) {
  TestTarget hung(4 * kPage, HangSecondPage, LetGo);
  MemoryId rh = Attach(2, hung);
  for (uint64_t i = 0; i < 20; ++i) {
    OnLeader([&] {
      DmaSegment to = {rh, 8, hung.addr() + kPage};
      DmaRequest request;
      request.kind = DmaRequest::Kind::kFetchAdd;
      request.swap_or_add = 1;
      request.destination = &to;
      request.destination_count = 1;
      dma_.Submit(i, i, request);  // a stream each: nothing but the word orders them
    });
  }
  ASSERT_EQ(kill(hung.pid(), SIGUSR1), 0);
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(WaitDone(i));
  uint64_t word = 0;
  iovec local = {&word, 8}, remote = {reinterpret_cast<void*>(hung.addr() + kPage), 8};
  ASSERT_EQ(process_vm_readv(hung.pid(), &local, 1, &remote, 1, 0), 8);
  EXPECT_EQ(word, 20u);
  std::lock_guard lock(mutex_);
  uint64_t seen = 0;
  for (const auto& done : done_) seen |= 1ull << done.atomic_original;
  EXPECT_EQ(seen, (1ull << 20) - 1);
}

TEST_F(HangingClientTest, EightHangingClientsAtOnceStopNobody) {
  TestTarget a(4 * kPage), c(4 * kPage);
  MemoryId ra = Attach(1, a), rc = Attach(2, c);
  std::deque<TestTarget> hung;
  for (uint64_t i = 0; i < 8; ++i) {
    hung.emplace_back(4 * kPage, HangSecondPage, LetGo);
    MemoryId rh = Attach(static_cast<SessionId>(10 + i), hung.back());
    Copy(100 + i, i, {ra, 8, a.addr()}, {rh, 8, hung.back().addr() + kPage});
    Copy(1, 1000 + i, {ra, 8, a.addr()}, {rc, 8, c.addr()});
    ASSERT_TRUE(WaitDone(1000 + i));
    EXPECT_FALSE(IsDone(i));
  }
  for (auto& target : hung) ASSERT_EQ(kill(target.pid(), SIGUSR1), 0);
  for (uint64_t i = 0; i < 8; ++i) EXPECT_TRUE(WaitDone(i));
}

// What an honest client needs to deregister memory or to end, whoever it talked to.
TEST_F(HangingClientTest, FenceDoesNotWaitForAPeerThatHangs) {
  for (bool as_source : {false, true}) {
    SessionId honest = as_source ? 11 : 1, hanging = honest + 1;
    uint64_t base = as_source ? 500 : 0;
    TestTarget a(4 * kPage), hung(4 * kPage, HangSecondPage, LetGo);
    MemoryId ra = Attach(honest, a), rh = Attach(hanging, hung);
    DmaSegment mine = {ra, 8, a.addr()}, theirs = {rh, 8, hung.addr() + kPage};
    for (uint64_t i = 0; i < 3; ++i) {  // one in a thread's hands, others queued
      Copy(honest, base + i, as_source ? theirs : mine, as_source ? mine : theirs);
      Copy(honest + 100, base + 10 + i, as_source ? theirs : mine, as_source ? mine : theirs);
    }
    OnLeader([&] { dma_.Fence(honest, base + 99); });
    EXPECT_TRUE(WaitUntil([&] { return std::count(fences_.begin(), fences_.end(), base + 99); }));
    EXPECT_FALSE(IsDone(base));
    // What comes later in the order of one that was revoked does not overtake it, whosever it is.
    DmaSegment elsewhere = {rh, 8, hung.addr()};
    Copy(honest, base + 50, elsewhere, elsewhere);
    Copy(honest + 200, base + 51, elsewhere, elsewhere);
    // The session may go now; nothing of it is touched when the peer comes back.
    OnLeader([&] {
      EXPECT_TRUE(dma_.IsIdle(honest));
      dma_.DetachSession(honest);
    });
    ASSERT_EQ(kill(hung.pid(), SIGUSR1), 0);
    for (uint64_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(WaitDone(base + i));
      ASSERT_TRUE(WaitDone(base + 10 + i));
    }
    ASSERT_TRUE(WaitDone(base + 50));
    ASSERT_TRUE(WaitDone(base + 51));
    for (uint64_t i : {2, 11, 12, 50}) {
      EXPECT_EQ(StatusOf(base + i), DmaStatus::kSourceFault) << i;
      EXPECT_EQ(FaultOf(base + i), DmaFault::kRevoked) << i;
    }
    EXPECT_EQ(StatusOf(base + 51), DmaStatus::kOk);
    if (as_source) {
      EXPECT_EQ(StatusOf(base), DmaStatus::kSourceFault);  // read, and never written
    }
  }
}

// Nor does whoever has memory of the NIC's, when others' is beside the page that hangs; and it may
// be anybody's afterwards.
TEST_F(HangingClientTest, FenceOfNicMemoryDoesNotWaitForAProcess) {
  enum { kToAnother, kToItself, kFromNowhere, kFromNicMemory, kCases };
  for (uint64_t i = 0; i < kCases; ++i) {
    const SessionId honest = static_cast<SessionId>(10 * i + 1), hanging = honest + 1;
    TestTarget a(4 * kPage), hung(4 * kPage, HangSecondPage, LetGo);
    MemoryId ra = Attach(honest, a), rh = Attach(hanging, hung), rn = 0;
    std::vector<uint8_t> nic(64, 3);
    const auto nic_addr = reinterpret_cast<uint64_t>(nic.data());
    OnLeader([&] {
      ASSERT_EQ(dma_.AddRegion(kNicSession, {.addr = nic_addr, .length = 64}, &rn), 0);
      const std::vector<DmaSegment> mixed = {{rh, 8, hung.addr() + kPage}, {rn, 8, nic_addr}};
      if (i == kToAnother) Submit(1, i, mixed, {{ra, 16, a.addr()}});
      if (i == kToItself) Submit(1, i, mixed, {{rh, 16, hung.addr()}});
      if (i == kFromNowhere) Submit(1, i, {}, mixed);
      if (i == kFromNicMemory) Submit(1, i, {{rn, 16, nic_addr + 16}}, mixed);
    });
    AwaitSlow(1);
    OnLeader([&] {
      dma_.Fence(kNicSession, 100 + i);
      dma_.Fence(hanging, 200 + i);
    });
    ASSERT_TRUE(WaitUntil([&] { return std::count(fences_.begin(), fences_.end(), 100 + i); }))
        << i;
    EXPECT_FALSE(IsDone(i));
    OnLeader([&] {
      EXPECT_TRUE(dma_.IsIdle(kNicSession));
      EXPECT_FALSE(dma_.IsIdle(hanging));
      dma_.RemoveRegion(rn);
      nic.assign(64, 5);
    });
    ASSERT_EQ(kill(hung.pid(), SIGUSR1), 0);
    ASSERT_TRUE(WaitDone(i));
    EXPECT_EQ(StatusOf(i), DmaStatus::kSourceFault) << i;
    EXPECT_EQ(nic, std::vector<uint8_t>(64, 5)) << i;
    EXPECT_EQ(WordAt(a, a.addr()), 0u);
    EXPECT_EQ(WordAt(hung, hung.addr()), 0u);
    EXPECT_TRUE(WaitUntil([&] { return std::count(fences_.begin(), fences_.end(), 200 + i); }));
    OnLeader([&] { dma_.DetachSession(hanging); });
  }
}

// A leader, a watchdog, and one more.
class FewThreadsTest : public HangingClientTest {
 protected:
  FewThreadsTest() : HangingClientTest(3) {}
};

// It is slow and has nothing under way; what a hanging peer is to send to it waits for a thread,
// which nobody gets before another slow one.
TEST_F(FewThreadsTest, WhoWaitsForAThreadMayGo) {
  TestTarget a(4 * kPage), hung(4 * kPage, HangSecondPage, LetGo);
  TestTarget other(4 * kPage, HangSecondPage, LetGo), leaver(4 * kPage, HangSecondPage, LetGo);
  MemoryId ra = Attach(1, a), rh = Attach(2, hung), ro = Attach(3, other), rl = Attach(4, leaver);
  const DmaSegment mine = {ra, 8, a.addr()};
  Copy(1, 1, mine, {ro, 8, other.addr() + kPage});
  AwaitSlow(1);
  ASSERT_EQ(kill(other.pid(), SIGUSR1), 0);
  ASSERT_TRUE(WaitDone(1));
  Copy(2, 2, mine, {rl, 8, leaver.addr() + kPage});
  AwaitSlow(2);
  ASSERT_EQ(kill(leaver.pid(), SIGUSR1), 0);
  ASSERT_TRUE(WaitDone(2));
  Copy(3, 3, {rh, 8, hung.addr() + kPage}, mine);
  AwaitSlow(3);
  OnLeader([&] {
    Submit(4, 4, {mine}, {{ro, 8, other.addr()}});
    Submit(5, 5, {{rh, 8, hung.addr()}}, {{rl, 8, leaver.addr()}});
    Submit(5, 6, {mine}, {mine});  // after that, and so not before
  });
  OnLeader([&] { dma_.Fence(4, 99); });
  ASSERT_TRUE(WaitUntil([&] { return std::count(fences_.begin(), fences_.end(), 99u); }));
  OnLeader([&] {
    EXPECT_TRUE(dma_.IsIdle(4));
    dma_.DetachSession(4);
  });
  ASSERT_TRUE(WaitDone(6));
  EXPECT_EQ(StatusOf(5), DmaStatus::kSourceFault);
  EXPECT_FALSE(IsDone(3));
  EXPECT_FALSE(IsDone(4));
  ASSERT_EQ(kill(hung.pid(), SIGUSR1), 0);
  ASSERT_TRUE(WaitDone(3));
  ASSERT_TRUE(WaitDone(4));
}

TEST_F(HangingClientTest, HangingProbeStopsNobody) {
  TestTarget a(4 * kPage), hung(4 * kPage, HangSecondPage, LetGo), c(4 * kPage);
  MemoryId ra = Attach(1, a), rc = Attach(3, c);
  Attach(2, hung);
  OnLeader([&] { dma_.SubmitProbe(2, hung.addr() + kPage, kPage, 1); });
  Copy(2, 11, {ra, 8, a.addr()}, {rc, 8, c.addr()});
  ASSERT_TRUE(WaitDone(11));
  OnLeader([&] { EXPECT_FALSE(dma_.IsIdle(2)); });
  ASSERT_EQ(kill(hung.pid(), SIGUSR1), 0);
  bool is_idle = false;
  while (!is_idle) OnLeader([&] { is_idle = dma_.IsIdle(2); });
}

// A session of this process that is reached by a helper, which is silent at first. Copies from it
// to a neighbour, whose fence waits for that.
class HangingHelperTest : public HangingClientTest {
 protected:
  void SetUp() override {
    HangingClientTest::SetUp();
    if (IsSkipped()) return;
    neighbour_ = std::make_unique<TestTarget>(4 * kPage);
    const MemoryId to = Attach(1, *neighbour_);
    MemoryId from = 0;
    OnLeader([&] {
      dma_.AttachSession(2, getpid());
      Assistant::ClientFds fds;
      ASSERT_EQ(dma_.OpenAssist(2, &fds.file, &fds.socket), 0);
      helper_ = std::make_unique<FakeHelper>(fds);
      helper_->is_silent = true;
      ASSERT_EQ(dma_.AddRegion(2, {.addr = reinterpret_cast<uint64_t>(&word_), .length = 8}, &from),
                0);
    });
    Copy(1, 10, {from, 8, reinterpret_cast<uint64_t>(&word_)}, {to, 8, neighbour_->addr()});
    bool is_slow = false;
    while (!is_slow) OnLeader([&] { is_slow = dma_.slow_processes() == 1; });
    OnLeader([&] { dma_.Fence(1, 5); });
  }
  void TearDown() override {
    if (helper_ != nullptr) helper_->Leave();
    HangingClientTest::TearDown();
  }
  uint64_t WordOfNeighbour() {
    uint64_t word = 0;
    iovec local = {&word, 8}, remote = {reinterpret_cast<void*>(neighbour_->addr()), 8};
    EXPECT_EQ(process_vm_readv(neighbour_->pid(), &local, 1, &remote, 1, 0), 8);
    return word;
  }

  uint64_t word_ = 4711;
  std::unique_ptr<TestTarget> neighbour_;
  std::unique_ptr<FakeHelper> helper_;
};

// It waits for a CPU, for all that is known.
TEST_F(HangingHelperTest, HasSomeTimeUntilOthersAreLetGo) {
  for (int i = 0; i < 20; ++i) OnLeader([&] { dma_.RequestAttention(); });
  helper_->is_silent = false;
  ASSERT_TRUE(WaitDone(10));
  EXPECT_EQ(StatusOf(10), DmaStatus::kOk);
  EXPECT_EQ(WordOfNeighbour(), 4711u);
  EXPECT_TRUE(WaitUntil([&] { return fences_ == std::vector<uint64_t>{5}; }));
}

TEST_F(HangingHelperTest, ThenTheyAreLetGo) {
  ASSERT_TRUE(WaitUntil([&] { return fences_ == std::vector<uint64_t>{5}; }));
  EXPECT_FALSE(IsDone(10));
  helper_->is_silent = false;
  ASSERT_TRUE(WaitDone(10));
  EXPECT_EQ(StatusOf(10), DmaStatus::kSourceFault);
  EXPECT_EQ(WordOfNeighbour(), 0u) << "written to memory that its owner was told is its own again";
}

}  // namespace
}  // namespace verbena::softnic
