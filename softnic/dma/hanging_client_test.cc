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
    OnLeader([&] {
      DmaRequest request;
      request.source.length = from.length;
      request.source.segments = &from;
      request.source.segment_count = 1;
      request.destination = &to;
      request.destination_count = 1;
      dma_.Submit(stream, cookie, request);
    });
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
