#include "softnic/dma/process_dma.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "softnic/dma/test_leader.h"
#include "softnic/dma/test_target.h"

namespace verbena::softnic {
namespace {

using transport::DmaRequest;
using transport::DmaSegment;
using transport::DmaStatus;
using transport::MemoryId;

constexpr uint64_t kPage = 4096;
constexpr SessionId kA = 1, kB = 2;

class DmaTest : public DmaFixture {
 protected:
  void Attach(SessionId session, const TestTarget& target) {
    std::lock_guard lock(mutex_);
    dma_.AttachSession(session, target.pid());
    dma_.SetReachable(session, true);
  }
  MemoryId Add(SessionId session, uint64_t addr, uint64_t length) {
    std::lock_guard lock(mutex_);
    MemoryId id = 0;
    EXPECT_EQ(dma_.AddRegion(session, {.addr = addr, .length = length}, &id), 0);
    return id;
  }
  void Copy(uint64_t stream, uint64_t cookie, std::vector<DmaSegment> from,
            std::vector<DmaSegment> to, uint32_t length, uint64_t from_offset = 0,
            uint64_t to_offset = 0) {
    std::lock_guard lock(mutex_);
    Submit(stream, cookie, from, to, length, from_offset, to_offset);
  }
  // Precondition: mutex_ is held.
  void Submit(uint64_t stream, uint64_t cookie, const std::vector<DmaSegment>& from,
              const std::vector<DmaSegment>& to, uint32_t length, uint64_t from_offset = 0,
              uint64_t to_offset = 0) {
    DmaRequest request;
    request.source.length = length;
    request.source.segments = from.data();
    request.source.segment_count = static_cast<uint16_t>(from.size());
    request.source.offset = from_offset;
    request.destination = to.data();
    request.destination_count = static_cast<uint16_t>(to.size());
    request.destination_offset = to_offset;
    dma_.Submit(stream, cookie, request);
  }

  static void Poke(const TestTarget& t, uint64_t addr, const void* from, size_t n) {
    iovec local = {const_cast<void*>(from), n}, remote = {reinterpret_cast<void*>(addr), n};
    ASSERT_EQ(process_vm_writev(t.pid(), &local, 1, &remote, 1, 0), static_cast<ssize_t>(n));
  }
  static std::string Peek(const TestTarget& t, uint64_t addr, size_t n) {
    std::string text(n, '\0');
    iovec local = {text.data(), n}, remote = {reinterpret_cast<void*>(addr), n};
    EXPECT_EQ(process_vm_readv(t.pid(), &local, 1, &remote, 1, 0), static_cast<ssize_t>(n));
    return text;
  }
  static uint64_t PeekWord(const TestTarget& t, uint64_t addr) {
    uint64_t word;
    std::memcpy(&word, Peek(t, addr, sizeof(word)).data(), sizeof(word));
    return word;
  }
};

TEST_F(DmaTest, CopiesBetweenTwoProcesses) {
  TestTarget a(kPage), b(kPage);
  Attach(kA, a);
  Attach(kB, b);
  Poke(a, a.addr(), "from a to b", 11);
  MemoryId ra = Add(kA, a.addr(), kPage), rb = Add(kB, b.addr(), kPage);
  Copy(7, 70, {{ra, 11, a.addr()}}, {{rb, 11, b.addr() + 100}}, 11);
  auto done = Run();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].cookie, 70u);
  EXPECT_EQ(done[0].status, DmaStatus::kOk);
  EXPECT_EQ(Peek(b, b.addr() + 100, 11), "from a to b");
  EXPECT_EQ(dma_.process_bytes(), 11u);
}

TEST_F(DmaTest, ScattersAndGathersWithOffsets) {
  TestTarget a(kPage), b(kPage);
  Attach(kA, a);
  Attach(kB, b);
  Poke(a, a.addr(), "abcdefghij", 10);
  MemoryId ra = Add(kA, a.addr(), kPage), rb = Add(kB, b.addr(), kPage);
  // Source "abcde" ++ "fghij" from offset 3: "defghi"; destination pieces of 4, from offset 1.
  Copy(1, 1, {{ra, 5, a.addr()}, {ra, 5, a.addr() + 5}},
       {{rb, 4, b.addr()}, {rb, 4, b.addr() + 64}}, 6, 3, 1);
  auto done = Run();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, DmaStatus::kOk);
  EXPECT_EQ(Peek(b, b.addr() + 1, 3), "def");
  EXPECT_EQ(Peek(b, b.addr() + 64, 3), "ghi");
}

TEST_F(DmaTest, MegabyteGoesInChunksAndArrivesWhole) {
  constexpr uint32_t kBytes = (1 << 20) + 12345;
  TestTarget a(2 << 20), b(2 << 20);
  Attach(kA, a);
  Attach(kB, b);
  std::string pattern(kBytes, '\0');
  for (uint32_t i = 0; i < kBytes; ++i) pattern[i] = static_cast<char>(i * 31 + (i >> 9));
  Poke(a, a.addr() + 3, pattern.data(), kBytes);
  MemoryId ra = Add(kA, a.addr(), 2 << 20), rb = Add(kB, b.addr(), 2 << 20);
  Copy(1, 1, {{ra, kBytes, a.addr() + 3}}, {{rb, kBytes, b.addr() + 5}}, kBytes);
  auto done = Run();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, DmaStatus::kOk);
  EXPECT_EQ(Peek(b, b.addr() + 5, kBytes), pattern);
}

TEST_F(DmaTest, InlineBytesAndPrefixNeedNoSource) {
  TestTarget b(kPage);
  Attach(kB, b);
  MemoryId rb = Add(kB, b.addr(), kPage);
  DmaRequest request;
  request.prefix_bytes = 40;
  std::memset(request.prefix, 'G', 40);
  const char text[] = "inline";
  request.source.length = 6;
  request.source.bytes = reinterpret_cast<const std::byte*>(text);
  DmaSegment to = {rb, 100, b.addr()};
  request.destination = &to;
  request.destination_count = 1;
  {
    std::lock_guard lock(mutex_);
    dma_.Submit(1, 5, request);
  }
  ASSERT_EQ(Run().size(), 1u);
  EXPECT_EQ(Peek(b, b.addr(), 46), std::string(40, 'G') + "inline");
}

TEST_F(DmaTest, ManySmallOperationsShareSystemCallsAndKeepOrder) {
  TestTarget a(kPage), b(kPage);
  Attach(kA, a);
  Attach(kB, b);
  MemoryId ra = Add(kA, a.addr(), kPage), rb = Add(kB, b.addr(), kPage);
  for (int i = 0; i < 16; ++i) {
    char c = static_cast<char>('a' + i);
    Poke(a, a.addr() + static_cast<uint64_t>(i), &c, 1);
  }
  // All go to the same byte: the last one must win.
  for (uint64_t i = 0; i < 16; ++i) Copy(3, i, {{ra, 1, a.addr() + i}}, {{rb, 1, b.addr()}}, 1);
  auto done = Run();
  ASSERT_EQ(done.size(), 16u);
  for (uint64_t i = 0; i < 16; ++i) EXPECT_EQ(done[i].cookie, i);
  EXPECT_EQ(Peek(b, b.addr(), 1), "p");
  EXPECT_EQ(dma_.units(), 1u);
}

TEST_F(DmaTest, IsFullWhileEnoughWaitsForItsTurn) {
  constexpr uint64_t kBytes = 1 << 20;
  TestTarget a(kBytes);
  Attach(kA, a);
  const MemoryId ra = Add(kA, a.addr(), kBytes);
  auto submit = [&](uint64_t stream, uint32_t length) {
    Submit(stream, stream, {{ra, length, a.addr()}}, {{ra, length, a.addr() + kBytes / 2}}, length);
  };
  auto submit_one_too_few = [&] {
    for (uint64_t i = 1; i < ProcessDma::kQueuedMax; ++i) submit(i, 1);
  };
  {
    std::lock_guard lock(mutex_);
    submit_one_too_few();
    EXPECT_FALSE(dma_.IsFull());
    submit(0, kBytes / 2);  // in parts, between which it is put back
    EXPECT_TRUE(dma_.IsFull());
  }
  EXPECT_EQ(Run().size(), ProcessDma::kQueuedMax);
  {
    std::lock_guard lock(mutex_);
    submit_one_too_few();
    EXPECT_FALSE(dma_.IsFull());
  }
  Run();
}

// What does not fit together is carried out by turns, however soon each of them comes again.
TEST_F(DmaTest, StreamsThatDoNotFitTogetherTakeTurns) {
  for (uint32_t count : {2u, 3u, 4u, 5u}) {
    std::vector<std::unique_ptr<TestTarget>> targets;
    std::vector<MemoryId> regions;
    for (uint32_t i = 0; i < count; ++i) {
      const SessionId session = 100 * count + i;
      targets.push_back(std::make_unique<TestTarget>(kPage));
      Attach(session, *targets[i]);
      regions.push_back(Add(session, targets[i]->addr(), kPage));
    }
    auto submit = [&](uint64_t i) {
      const uint64_t addr = targets[i]->addr();
      Submit(i + 1, i, {{regions[i], 64, addr}}, {{regions[i], 64, addr + 1024}}, 64);
    };
    constexpr uint32_t kTurnsEach = 50;
    std::vector<uint32_t> turns(count);
    uint32_t left = kTurnsEach * count;
    {
      std::lock_guard lock(mutex_);
      batch_bytes_ = 1;  // one system call each way
      after_batch_ = [&] {
        for (const ProcessDma::Done& done : PollAll()) {
          ++turns[done.cookie];
          if (left != 0 && --left >= count) submit(done.cookie);
        }
      };
      for (uint32_t i = 0; i < count; ++i) submit(i);
    }
    Run();
    std::lock_guard lock(mutex_);
    after_batch_ = nullptr;
    // Then a worker serves the process it was copying for, at its own pace.
    if (crew_.takeovers() != 0) GTEST_SKIP() << "a leader that had no CPU was deposed";
    EXPECT_EQ(left, 0u);
    for (uint32_t each : turns) EXPECT_EQ(each, kTurnsEach) << count << " streams";
  }
}

TEST_F(DmaTest, ReadAfterWriteWithinOneProcessSeesTheWrite) {
  TestTarget a(kPage);
  Attach(kA, a);
  MemoryId ra = Add(kA, a.addr(), kPage);
  Poke(a, a.addr(), "x", 1);
  Copy(3, 1, {{ra, 1, a.addr()}}, {{ra, 1, a.addr() + 10}}, 1);
  Copy(3, 2, {{ra, 1, a.addr() + 10}}, {{ra, 1, a.addr() + 20}}, 1);
  ASSERT_EQ(Run().size(), 2u);
  EXPECT_EQ(Peek(a, a.addr() + 20, 1), "x");
}

TEST_F(DmaTest, UnmappedSourceIsASourceFaultAndWritesNothing) {
  TestTarget a(2 * kPage, [](std::byte* block) { munmap(block + kPage, kPage); });
  TestTarget b(2 * kPage);
  Attach(kA, a);
  Attach(kB, b);
  MemoryId ra = Add(kA, a.addr(), 2 * kPage), rb = Add(kB, b.addr(), 2 * kPage);
  Poke(a, a.addr() + kPage - 8, "12345678", 8);
  Poke(b, b.addr(), "................", 16);
  Copy(1, 1, {{ra, 16, a.addr() + kPage - 8}}, {{rb, 16, b.addr()}}, 16);
  auto done = Run();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, DmaStatus::kSourceFault);
  EXPECT_EQ(Peek(b, b.addr(), 16), "................");
}

TEST_F(DmaTest, UnmappedDestinationIsADestinationFault) {
  TestTarget a(kPage);
  TestTarget b(2 * kPage, [](std::byte* block) { munmap(block + kPage, kPage); });
  Attach(kA, a);
  Attach(kB, b);
  MemoryId ra = Add(kA, a.addr(), kPage), rb = Add(kB, b.addr(), 2 * kPage);
  Copy(1, 1, {{ra, 16, a.addr()}}, {{rb, 16, b.addr() + kPage - 8}}, 16);
  auto done = Run();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, DmaStatus::kDestinationFault);
  EXPECT_EQ(done[0].fault, DmaFault::kMemory);
}

TEST_F(DmaTest, ReadOnlyDestinationIsADestinationFault) {
  TestTarget a(kPage);
  TestTarget b(kPage, [](std::byte* block) { mprotect(block, kPage, PROT_READ); });
  Attach(kA, a);
  Attach(kB, b);
  MemoryId ra = Add(kA, a.addr(), kPage), rb = Add(kB, b.addr(), kPage);
  Copy(1, 1, {{ra, 16, a.addr()}}, {{rb, 16, b.addr()}}, 16);
  auto done = Run();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, DmaStatus::kDestinationFault);
}

TEST_F(DmaTest, OneFaultInABatchHarmsNobodyElse) {
  for (bool bad_source : {true, false}) {
    TestTarget a(2 * kPage, [](std::byte* block) { munmap(block + kPage, kPage); });
    TestTarget b(2 * kPage, [](std::byte* block) { munmap(block + kPage, kPage); });
    SessionId sa = bad_source ? 11 : 21, sb = bad_source ? 12 : 22;
    Attach(sa, a);
    Attach(sb, b);
    MemoryId ra = Add(sa, a.addr(), 2 * kPage), rb = Add(sb, b.addr(), 2 * kPage);
    Poke(a, a.addr(), "0123456789", 10);
    for (uint64_t i = 0; i < 10; ++i) {
      uint64_t bad = i == 4 ? kPage : 0;
      Copy(1, i, {{ra, 1, a.addr() + i + (bad_source ? bad : 0)}},
           {{rb, 1, b.addr() + i + (bad_source ? 0 : bad)}}, 1);
    }
    auto done = Run();
    ASSERT_EQ(done.size(), 10u);
    for (uint64_t i = 0; i < 10; ++i) {
      EXPECT_EQ(done[i].cookie, i);
      DmaStatus expected = i != 4       ? DmaStatus::kOk
                           : bad_source ? DmaStatus::kSourceFault
                                        : DmaStatus::kDestinationFault;
      EXPECT_EQ(done[i].status, expected) << i;
    }
    EXPECT_EQ(Peek(b, b.addr(), 10), std::string("0123\0"
                                                 "56789",
                                                 10));
  }
}

TEST_F(DmaTest, DeadProcessFaultsAndIsKnownToBeGone) {
  TestTarget a(kPage), b(kPage);
  Attach(kA, a);
  Attach(kB, b);
  MemoryId ra = Add(kA, a.addr(), kPage), rb = Add(kB, b.addr(), kPage);
  b.Kill();
  Copy(1, 1, {{ra, 8, a.addr()}}, {{rb, 8, b.addr()}}, 8);
  auto done = Run();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, DmaStatus::kDestinationFault);
  EXPECT_EQ(done[0].fault, DmaFault::kOwnerGone);
  Copy(1, 2, {{rb, 8, b.addr()}}, {{ra, 8, a.addr()}}, 8);
  done = Run();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, DmaStatus::kSourceFault);
  EXPECT_EQ(done[0].fault, DmaFault::kOwnerGone);
}

TEST_F(DmaTest, ProcessSeenDeadIsNeverTouchedEvenIfItsPidLivesOn) {
  TestTarget a(kPage);
  Attach(kA, a);
  MemoryId ra = Add(kA, a.addr(), kPage);
  {
    std::lock_guard lock(mutex_);
    dma_.MarkProcessDead(kA);
  }
  Copy(1, 1, {{ra, 8, a.addr()}}, {{ra, 8, a.addr() + 8}}, 8);
  auto done = Run();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, DmaStatus::kSourceFault);
}

TEST_F(DmaTest, StoppedProcessIsServed) {
  TestTarget a(kPage), b(kPage);
  Attach(kA, a);
  Attach(kB, b);
  MemoryId ra = Add(kA, a.addr(), kPage), rb = Add(kB, b.addr(), kPage);
  ASSERT_EQ(kill(b.pid(), SIGSTOP), 0);
  Poke(a, a.addr(), "stopped", 7);
  Copy(1, 1, {{ra, 7, a.addr()}}, {{rb, 7, b.addr()}}, 7);
  auto done = Run();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, DmaStatus::kOk);
  EXPECT_EQ(Peek(b, b.addr(), 7), "stopped");
}

TEST_F(DmaTest, AtomicsReadModifyWrite) {
  TestTarget b(kPage);
  Attach(kB, b);
  MemoryId rb = Add(kB, b.addr(), kPage);
  uint64_t word = 40;
  Poke(b, b.addr() + 8, &word, 8);
  DmaSegment to = {rb, 8, b.addr() + 8};
  DmaRequest request;
  request.destination = &to;
  request.destination_count = 1;
  auto submit = [&](DmaRequest::Kind kind, uint64_t compare, uint64_t value) {
    request.kind = kind;
    request.compare = compare;
    request.swap_or_add = value;
    std::lock_guard lock(mutex_);
    dma_.Submit(1, 0, request);
  };
  submit(DmaRequest::Kind::kFetchAdd, 0, 2);
  submit(DmaRequest::Kind::kCompareSwap, 41, 7);  // fails: it is 42
  submit(DmaRequest::Kind::kCompareSwap, 42, 8);
  auto done = Run();
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].atomic_original, 40u);
  EXPECT_EQ(done[1].atomic_original, 42u);
  EXPECT_EQ(done[2].atomic_original, 42u);
  EXPECT_EQ(PeekWord(b, b.addr() + 8), 8u);
}

TEST_F(DmaTest, StaleAndForeignRegionsAreRefused) {
  TestTarget a(2 * kPage), b(kPage);
  Attach(kA, a);
  Attach(kB, b);
  MemoryId ra = Add(kA, a.addr(), kPage), rb = Add(kB, b.addr(), kPage);
  Copy(1, 1, {{ra, 8, a.addr() + kPage - 4}}, {{rb, 8, b.addr()}}, 8);  // beyond the region
  {
    std::lock_guard lock(mutex_);
    dma_.RemoveRegion(ra);
  }
  MemoryId again = Add(kA, a.addr(), kPage);
  EXPECT_NE(again, ra);  // same place, other generation
  Copy(1, 2, {{ra, 8, a.addr()}}, {{rb, 8, b.addr()}}, 8);
  Copy(1, 3, {{again, 8, a.addr()}}, {{rb, 8, b.addr()}}, 8);
  auto done = Run();
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].status, DmaStatus::kSourceFault);
  EXPECT_EQ(done[1].status, DmaStatus::kSourceFault);
  EXPECT_EQ(done[2].status, DmaStatus::kOk);
  EXPECT_EQ(done[2].cookie, 3u);
}

TEST_F(DmaTest, FenceComesAfterWhatWasSubmittedBefore) {
  TestTarget a(kPage), b(kPage);
  Attach(kA, a);
  Attach(kB, b);
  MemoryId ra = Add(kA, a.addr(), kPage), rb = Add(kB, b.addr(), kPage);
  uint64_t cookie = 0;
  {
    std::lock_guard lock(mutex_);
    dma_.Fence(kA, 1);
    EXPECT_TRUE(dma_.PollFence(&cookie));  // nothing in flight
    EXPECT_EQ(cookie, 1u);
  }
  Copy(1, 1, {{ra, 8, a.addr()}}, {{rb, 8, b.addr()}}, 8);
  {
    std::lock_guard lock(mutex_);
    dma_.Fence(kA, 2);
    dma_.Fence(kB, 3);
    EXPECT_FALSE(dma_.PollFence(&cookie));
    EXPECT_FALSE(dma_.IsIdle(kA));
  }
  ASSERT_EQ(Run().size(), 1u);
  std::lock_guard lock(mutex_);
  EXPECT_TRUE(dma_.PollFence(&cookie));
  EXPECT_EQ(cookie, 2u);
  EXPECT_TRUE(dma_.PollFence(&cookie));
  EXPECT_EQ(cookie, 3u);
  EXPECT_TRUE(dma_.IsIdle(kA));
}

TEST_F(DmaTest, ProbeTellsWhetherMemoryIsThere) {
  TestTarget a(2 * kPage, [](std::byte* block) { munmap(block + kPage, kPage); });
  Attach(kA, a);
  uint64_t word = 0x1234;
  Poke(a, a.addr(), &word, 8);
  {
    std::lock_guard lock(mutex_);
    dma_.SubmitProbe(kA, a.addr(), 8, 1);
    dma_.SubmitProbe(kA, a.addr(), kPage, 2);
    dma_.SubmitProbe(kA, a.addr(), 2 * kPage, 3);  // the last page is missing
  }
  Run();
  std::lock_guard lock(mutex_);
  int errors[4] = {-1, -1, -1, -1};
  ProcessDma::ProbeDone probe;
  while (dma_.PollProbe(&probe)) {
    errors[probe.cookie] = probe.error;
    if (probe.cookie == 1) {
      EXPECT_EQ(probe.word, 0x1234u);
    }
  }
  EXPECT_EQ(errors[1], 0);
  EXPECT_EQ(errors[2], 0);
  EXPECT_EQ(errors[3], EFAULT);
}

TEST_F(DmaTest, SessionTakesItsRegionsWithIt) {
  TestTarget a(kPage), b(kPage);
  Attach(kA, a);
  Attach(kB, b);
  std::vector<MemoryId> of_a, of_b;
  for (int i = 0; i < 4; ++i) {
    of_a.push_back(Add(kA, a.addr(), kPage));
    of_b.push_back(Add(kB, b.addr(), kPage));
  }
  // One of the first, of the middle and of the last is gone already.
  dma_.RemoveRegion(of_a[0]);
  dma_.RemoveRegion(of_a[2]);
  dma_.RemoveRegion(of_b[3]);
  MemoryId copy = 0;
  ASSERT_EQ(dma_.CopyRegion(of_a[1], &copy), 0);
  of_a.push_back(copy);
  dma_.DetachSession(kA);
  for (MemoryId id : of_a) EXPECT_STREQ(dma_.BackendName(id), "none");
  for (size_t i = 0; i < 3; ++i) EXPECT_STREQ(dma_.BackendName(of_b[i]), "process");
  EXPECT_STREQ(dma_.BackendName(of_b[3]), "none");
  dma_.DetachSession(kB);
  for (MemoryId id : of_b) EXPECT_STREQ(dma_.BackendName(id), "none");
}

// Not what others once had.
TEST_F(DmaTest, EndOfASessionCostsWhatItHas) {
  auto cpu_ns = [] {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
  };
  TestTarget a(kPage);
  Attach(kA, a);
  const int64_t begin = cpu_ns();
  std::vector<MemoryId> many(400'000);
  for (MemoryId& id : many) dma_.AddRegion(kA, {.addr = a.addr(), .length = kPage}, &id);
  for (MemoryId id : many) dma_.RemoveRegion(id);
  const int64_t had = cpu_ns();
  for (SessionId i = 0; i < 300; ++i) {
    Attach(kB, a);
    Add(kB, a.addr(), kPage);
    dma_.DetachSession(kB);
  }
  EXPECT_LT(cpu_ns() - had, had - begin);
}

TEST_F(DmaTest, UnreachableSessionGetsNoRegion) {
  TestTarget a(kPage);
  Attach(kA, a);
  std::lock_guard lock(mutex_);
  dma_.SetReachable(kA, false);
  MemoryId id;
  EXPECT_EQ(dma_.AddRegion(kA, {.addr = a.addr(), .length = kPage}, &id), EOPNOTSUPP);
  dma_.SetReachable(kA, true);
  dma_.SetProbed(EFAULT);
  EXPECT_EQ(dma_.AddRegion(kA, {.addr = a.addr(), .length = kPage}, &id), EFAULT);
  EXPECT_EQ(dma_.AddRegion(kA, {.addr = a.addr(), .length = kPage}, &id), 0);
}

}  // namespace
}  // namespace verbena::softnic
