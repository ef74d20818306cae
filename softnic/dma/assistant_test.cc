// The NIC's end of a helper: what it does, and what it takes from one that lies.
#include "softnic/dma/assistant.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "softnic/dma/fake_helper.h"
#include "softnic/dma/test_leader.h"
#include "softnic/dma/test_target.h"

namespace verbena::softnic {
namespace {

using transport::DmaRequest;
using transport::DmaSegment;
using transport::DmaStatus;
using transport::MemoryId;

constexpr uint64_t kPage = 4096;
constexpr auto kDeadline = std::chrono::seconds(20);

iovec Piece(const void* p, size_t bytes) { return {const_cast<void*>(p), bytes}; }

class AssistantTest : public ::testing::Test {
 protected:
  void TearDown() override { assistant_->End(); }
  void Open(FakeHelper::Answer answer = nullptr) {
    Assistant::ClientFds fds;
    int error = 0;
    assistant_ = Assistant::Create(&fds, &error);
    ASSERT_NE(assistant_, nullptr) << strerror(error);
    helper_ = std::make_unique<FakeHelper>(fds, std::move(answer));
  }
  int64_t Read(void* to, const void* from, size_t bytes) {
    const iovec local = Piece(to, bytes), remote = Piece(from, bytes);
    return assistant_->Read(&local, 1, &remote, 1);
  }
  int64_t Write(const void* from, void* to, size_t bytes) {
    const iovec local = Piece(from, bytes), remote = Piece(to, bytes);
    return assistant_->Write(&local, 1, &remote, 1);
  }
  // Begins a Read that is not answered.
  std::future<int64_t> ReadInVain() {
    helper_->is_silent = true;
    auto result = std::async(std::launch::async, [this] {
      uint64_t to = 0, from = 0;
      return Read(&to, &from, 8);
    });
    while (helper_->requests == 0) poll(nullptr, 0, 1);
    return result;
  }

  std::unique_ptr<Assistant> assistant_;
  std::unique_ptr<FakeHelper> helper_;
};

TEST_F(AssistantTest, ScattersAndGathers) {
  Open();
  char from[] = "abcdef", to[8] = {};
  const iovec remote[] = {Piece(from, 2), Piece(from + 4, 2)};
  const iovec local[] = {Piece(to, 1), Piece(to + 2, 3)};
  EXPECT_EQ(assistant_->Read(local, 2, remote, 2), 4);
  EXPECT_EQ(std::string(to, 5), std::string("a\0bef", 5));
  EXPECT_EQ(assistant_->Write(remote, 2, local, 2), 4);
  EXPECT_EQ(std::string(to, 5), std::string("a\0bef", 5));
  for (uint32_t i = 0; i < 2000; ++i) {
    uint32_t seen = 0;
    ASSERT_EQ(Write(&i, &seen, 4), 4);
    ASSERT_EQ(seen, i);
  }
}

TEST_F(AssistantTest, BadAddressIsAFault) {
  Open();
  uint64_t word = 0;
  EXPECT_EQ(Read(&word, reinterpret_cast<void*>(64), 8), -EFAULT);
  EXPECT_EQ(Read(&word, &word, 8), 8) << "and the end of that request only";
}

TEST_F(AssistantTest, MoreThanWasAskedIsNotBelieved) {
  std::atomic<int64_t> lie = 0;
  Open([&](const shm::AssistArea&, int64_t) { return lie.load(); });
  uint64_t guarded[3] = {1, 2, 3}, from = 9;
  for (int64_t said : {9l, 4096l, 65537l, 1l << 40, INT64_MAX, INT64_MIN, -1l, -100'000l}) {
    lie = said;
    EXPECT_EQ(Read(&guarded[1], &from, 8), -EFAULT) << said;
    EXPECT_EQ(Write(&from, &guarded[1], 8), -EFAULT) << said;
  }
  EXPECT_EQ(guarded[0], 1u);
  EXPECT_EQ(guarded[2], 3u);
}

TEST_F(AssistantTest, RequestChangedUnderwayChangesNothingHere) {
  Open([](const shm::AssistArea& shared, int64_t truth) {
    auto& area = const_cast<shm::AssistArea&>(shared);
    std::memset(area.pieces, 0xff, sizeof(area.pieces));
    area.piece_count = ~0u;
    area.kind = ~0u;
    return truth;
  });
  uint64_t from = 9, to = 0;
  EXPECT_EQ(Read(&to, &from, 8), 8);
  EXPECT_EQ(to, 9u);
}

TEST_F(AssistantTest, HelperThatLeavesEndsTheWait) {
  Open();
  auto result = ReadInVain();
  helper_->Leave();
  ASSERT_EQ(result.wait_for(kDeadline), std::future_status::ready);
  EXPECT_EQ(result.get(), -EIO);
  EXPECT_TRUE(assistant_->HasEnded());
  uint64_t word = 0;
  EXPECT_EQ(Read(&word, &word, 8), -EIO) << "for good";
}

TEST_F(AssistantTest, EndEndsTheWaitOfAllWhoWait) {
  Open();
  auto first = ReadInVain();
  auto second = std::async(std::launch::async, [this] {
    uint64_t to = 0, from = 0;
    return Write(&from, &to, 8);
  });
  assistant_->End();
  ASSERT_EQ(first.wait_for(kDeadline), std::future_status::ready);
  ASSERT_EQ(second.wait_for(kDeadline), std::future_status::ready);
  EXPECT_EQ(first.get(), -EIO);
  EXPECT_EQ(second.get(), -EIO);
}

TEST_F(AssistantTest, HelperThatOnlyRingsIsLeft) {
  Open();
  auto result = ReadInVain();
  const std::string bells(4096, 'x');
  auto is_done = [&] {
    return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  for (int i = 0; i < 1'000'000 && !is_done(); ++i) {
    send(helper_->socket(), bells.data(), bells.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  ASSERT_EQ(result.wait_for(kDeadline), std::future_status::ready);
  EXPECT_EQ(result.get(), -EIO);
}

TEST_F(AssistantTest, LateAnswerIsTakenAsOne) {
  Open();
  auto result = ReadInVain();
  helper_->is_silent = false;
  ASSERT_EQ(result.wait_for(kDeadline), std::future_status::ready);
  EXPECT_EQ(result.get(), 8);
}

TEST_F(AssistantTest, ItsFileCanNotBeCutOff) {
  Assistant::ClientFds fds;
  int error = 0;
  assistant_ = Assistant::Create(&fds, &error);
  EXPECT_NE(ftruncate(fds.file, 0), 0);
  EXPECT_NE(ftruncate(fds.file, 1 << 20), 0);
  EXPECT_NE(fcntl(fds.file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  helper_ = std::make_unique<FakeHelper>(fds);
}

// --- the engine with helpers --------------------------------------------------------------------

constexpr SessionId kA = 1, kB = 2;

// Sessions of this process, which the engine takes for one that it can't reach.
class AssistedDmaTest : public DmaFixture {
 protected:
  void SetUp() override {
    DmaFixture::SetUp();
    block_ = static_cast<std::byte*>(
        mmap(nullptr, 64 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  void TearDown() override {
    DmaFixture::TearDown();
    helpers_.clear();
    munmap(block_, 64 * kPage);
  }
  FakeHelper* Attach(SessionId session, bool is_reachable = false) {
    std::lock_guard lock(mutex_);
    dma_.AttachSession(session, getpid());
    dma_.SetReachable(session, is_reachable);
    Assistant::ClientFds fds;
    EXPECT_EQ(dma_.OpenAssist(session, &fds.file, &fds.socket), 0);
    helpers_.push_back(std::make_unique<FakeHelper>(fds));
    return helpers_.back().get();
  }
  MemoryId Add(SessionId session, bool must_be_assisted = true) {
    std::lock_guard lock(mutex_);
    MemoryId id = 0;
    RegionSpec spec = {.addr = addr(), .length = 64 * kPage};
    spec.must_be_assisted = must_be_assisted;
    EXPECT_EQ(dma_.AddRegion(session, spec, &id), 0);
    return id;
  }
  DmaStatus Copy(MemoryId from, uint64_t from_addr, MemoryId to, uint64_t to_addr, uint32_t bytes) {
    {
      std::lock_guard lock(mutex_);
      const DmaSegment source = {from, bytes, from_addr}, destination = {to, bytes, to_addr};
      DmaRequest request;
      request.source.length = bytes;
      request.source.segments = &source;
      request.source.segment_count = 1;
      request.destination = &destination;
      request.destination_count = 1;
      dma_.Submit(1, 1, request);
    }
    auto done = Run();
    EXPECT_EQ(done.size(), 1u);
    return done.empty() ? DmaStatus::kSourceFault : done[0].status;
  }
  uint64_t addr() const { return reinterpret_cast<uint64_t>(block_); }

  std::byte* block_ = nullptr;
  std::vector<std::unique_ptr<FakeHelper>> helpers_;
};

// Who polls the last byte of a message finds the others, as with process_vm (visible_order_test).
TEST_F(AssistedDmaTest, TheLastCacheLineIsAPieceOfItsOwn) {
  FakeHelper* helper = Attach(kA);
  const MemoryId a = Add(kA);
  ASSERT_EQ(Copy(a, addr(), a, addr() + 2 * kPage, kPage), DmaStatus::kOk);
  const shm::AssistArea& request = *helper->area();
  ASSERT_EQ(request.kind, static_cast<uint32_t>(shm::AssistKind::kScatter));
  ASSERT_EQ(request.piece_count, 2u);
  EXPECT_EQ(request.pieces[0].bytes, kPage - 64);
  EXPECT_EQ(request.pieces[1].bytes, 64u);
  EXPECT_EQ(request.pieces[1].addr, addr() + 3 * kPage - 64);
}

TEST_F(AssistedDmaTest, CopiesBetweenItsOwnAndOthers) {
  TestTarget other(kPage);
  Attach(kA);
  {
    std::lock_guard lock(mutex_);
    dma_.AttachSession(kB, other.pid());
    dma_.SetReachable(kB, true);
  }
  const MemoryId a = Add(kA);
  MemoryId b = 0;
  {
    std::lock_guard lock(mutex_);
    ASSERT_EQ(dma_.AddRegion(kB, {.addr = other.addr(), .length = kPage}, &b), 0);
    EXPECT_STREQ(dma_.BackendName(a), "assisted");
    EXPECT_STREQ(dma_.BackendName(b), "process");
  }
  std::memcpy(block_, "to the other and back", 21);
  EXPECT_EQ(Copy(a, addr(), b, other.addr(), 21), DmaStatus::kOk);
  EXPECT_EQ(Copy(b, other.addr(), a, addr() + kPage, 21), DmaStatus::kOk);
  EXPECT_EQ(std::memcmp(block_ + kPage, "to the other and back", 21), 0);
  EXPECT_EQ(dma_.assisted_bytes(), 42u);
  EXPECT_EQ(dma_.process_bytes(), 0u);
}

TEST_F(AssistedDmaTest, LargeCopiesGoInChunks) {
  Attach(kA);
  const MemoryId a = Add(kA);
  constexpr uint32_t kBytes = 30 * kPage + 123;
  for (uint32_t i = 0; i < kBytes; ++i) block_[i] = static_cast<std::byte>(i * 7 + (i >> 8));
  EXPECT_EQ(Copy(a, addr(), a, addr() + 32 * kPage + 1, kBytes), DmaStatus::kOk);
  EXPECT_EQ(std::memcmp(block_, block_ + 32 * kPage + 1, kBytes), 0);
}

TEST_F(AssistedDmaTest, AtomicsReadModifyAndWrite) {
  Attach(kA);
  const MemoryId a = Add(kA);
  auto* word = reinterpret_cast<uint64_t*>(block_);
  *word = 40;
  const DmaSegment to = {a, 8, addr()};
  auto carry_out = [&](DmaRequest::Kind kind, uint64_t compare, uint64_t value) {
    {
      std::lock_guard lock(mutex_);
      DmaRequest request;
      request.kind = kind;
      request.compare = compare;
      request.swap_or_add = value;
      request.destination = &to;
      request.destination_count = 1;
      dma_.Submit(1, 1, request);
    }
    auto done = Run();
    EXPECT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, DmaStatus::kOk);
    return done[0].atomic_original;
  };
  EXPECT_EQ(carry_out(DmaRequest::Kind::kFetchAdd, 0, 2), 40u);
  EXPECT_EQ(*word, 42u);
  EXPECT_EQ(carry_out(DmaRequest::Kind::kCompareSwap, 41, 7), 42u);
  EXPECT_EQ(*word, 42u);
  EXPECT_EQ(carry_out(DmaRequest::Kind::kCompareSwap, 42, 7), 42u);
  EXPECT_EQ(*word, 7u);
}

TEST_F(AssistedDmaTest, MissingPageIsTheFaultOfWhoseItIs) {
  Attach(kA);
  const MemoryId a = Add(kA);
  // Not unmapped: somebody else's mapping might take the place.
  mprotect(block_ + 8 * kPage, kPage, PROT_NONE);
  EXPECT_EQ(Copy(a, addr() + 8 * kPage, a, addr(), 8), DmaStatus::kSourceFault);
  EXPECT_EQ(Copy(a, addr(), a, addr() + 8 * kPage, 8), DmaStatus::kDestinationFault);
  EXPECT_EQ(Copy(a, addr(), a, addr() + kPage, 8), DmaStatus::kOk);
}

TEST_F(AssistedDmaTest, RegionIsByTheHelperIfItMustBeOrThereIsNoOtherWay) {
  Attach(kA, /*is_reachable=*/true);
  const MemoryId forced = Add(kA, true), usual = Add(kA, false);
  Attach(kB, /*is_reachable=*/false);
  const MemoryId only = Add(kB, false);
  std::lock_guard lock(mutex_);
  EXPECT_STREQ(dma_.BackendName(forced), "assisted");
  EXPECT_STREQ(dma_.BackendName(usual), "process");
  EXPECT_STREQ(dma_.BackendName(only), "assisted");
  MemoryId copy;
  ASSERT_EQ(dma_.CopyRegion(forced, &copy), 0);
  EXPECT_STREQ(dma_.BackendName(copy), "assisted");
}

TEST_F(AssistedDmaTest, NoHelperNoRegion) {
  FakeHelper* helper = Attach(kA, /*is_reachable=*/true);
  const MemoryId a = Add(kA);
  helper->Leave();
  EXPECT_EQ(Copy(a, addr(), a, addr() + kPage, 8), DmaStatus::kSourceFault);
  std::lock_guard lock(mutex_);
  RegionSpec spec = {.addr = addr(), .length = kPage};
  spec.must_be_assisted = true;
  MemoryId id;
  EXPECT_EQ(dma_.AddRegion(kA, spec, &id), EOPNOTSUPP) << "never silently another way";
  int file, socket;
  EXPECT_EQ(dma_.OpenAssist(kA, &file, &socket), EBUSY) << "one for each session";
  dma_.AttachSession(kB, getpid());
  dma_.SetReachable(kB, true);
  EXPECT_EQ(dma_.AddRegion(kB, spec, &id), EOPNOTSUPP);
}

// In one turn, and to one place: what each session names goes by its own helper.
TEST_F(AssistedDmaTest, OneHelpersEndIsNotAnothers) {
  Attach(kA);
  FakeHelper* gone = Attach(kB);
  const MemoryId a = Add(kA), b = Add(kB);
  gone->Leave();
  {
    std::lock_guard lock(mutex_);
    for (uint64_t i = 0; i < 8; ++i) {
      const DmaSegment source = {i % 2 == 0 ? b : a, 8, addr()};
      const DmaSegment destination = {a, 8, addr() + kPage + 8 * i};
      DmaRequest request;
      request.source.length = 8;
      request.source.segments = &source;
      request.source.segment_count = 1;
      request.destination = &destination;
      request.destination_count = 1;
      dma_.Submit(1, i, request);
    }
  }
  const auto done = Run();
  ASSERT_EQ(done.size(), 8u);
  for (const auto& one : done) {
    EXPECT_EQ(one.status, one.cookie % 2 == 0 ? DmaStatus::kSourceFault : DmaStatus::kOk);
  }
}

TEST_F(AssistedDmaTest, ProbeGoesTheSameWay) {
  FakeHelper* helper = Attach(kA, /*is_reachable=*/true);
  {
    std::lock_guard lock(mutex_);
    dma_.SubmitProbe(kA, addr(), 2 * kPage, 1, /*by_helper=*/true);
  }
  Run();
  EXPECT_EQ(helper->requests, 2u) << "the first and the last byte";
}

}  // namespace
}  // namespace verbena::softnic
