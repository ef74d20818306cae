// Memory that the client and the engine both map: the test is its own client.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "softnic/dma/process_dma.h"
#include "softnic/dma/test_leader.h"

namespace verbena::softnic {
namespace {

using transport::DmaRequest;
using transport::DmaSegment;
using transport::DmaStatus;
using transport::MemoryId;

constexpr uint64_t kPage = 4096;
constexpr SessionId kA = 1, kB = 2;

class MappedDma : public DmaFixture {
 protected:
  void SetUp() override {
    DmaFixture::SetUp();
    for (SessionId session : {kA, kB}) {
      dma_.AttachSession(session, getpid());
      dma_.SetReachable(session, true);
    }
    ASSERT_EQ(dma_.OpenPayload(kA, nullptr, 0, &payload_, &fd_), 0);
    ASSERT_GE(fd_, 0);
  }
  void TearDown() override {
    for (SessionId session : {kA, kB}) dma_.DetachSession(session);
    for (auto [base, bytes] : maps_) munmap(base, bytes);
    DmaFixture::TearDown();
  }

  // Client memory: `pages` of the payload file from slot `slot` on.
  std::byte* MapSlot(uint64_t slot, uint64_t pages) {
    void* base = mmap(nullptr, pages * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd_,
                      static_cast<off_t>(slot * shm::kPayloadSlotBytes));
    EXPECT_NE(base, MAP_FAILED);
    maps_.emplace_back(base, pages * kPage);
    return static_cast<std::byte*>(base);
  }
  shm::MappedPiece Piece(const void* at, uint64_t bytes, uint64_t slot, uint64_t from = 0) {
    return {reinterpret_cast<uint64_t>(at), bytes, slot * shm::kPayloadSlotBytes + from};
  }
  int TryAdd(SessionId session, const void* at, uint64_t bytes,
             const std::vector<shm::MappedPiece>& pieces, MemoryId* out) {
    std::lock_guard lock(mutex_);
    return dma_.AddRegion(session,
                          {reinterpret_cast<uint64_t>(at), bytes, payload_, pieces.data(),
                           static_cast<uint32_t>(pieces.size())},
                          out);
  }
  MemoryId Add(const void* at, uint64_t bytes, const std::vector<shm::MappedPiece>& pieces) {
    MemoryId id = 0;
    EXPECT_EQ(TryAdd(kA, at, bytes, pieces, &id), 0);
    return id;
  }
  static DmaSegment Segment(MemoryId id, const void* at, uint32_t bytes) {
    return {id, bytes, reinterpret_cast<uint64_t>(at)};
  }
  void Copy(uint64_t stream, uint64_t cookie, const DmaSegment& from, const DmaSegment& to) {
    DmaRequest request;
    request.source.length = from.length;
    request.source.segments = &from;
    request.source.segment_count = 1;
    request.destination = &to;
    request.destination_count = 1;
    Submit(stream, cookie, request);
  }
  void Submit(uint64_t stream, uint64_t cookie, const DmaRequest& request) {
    std::lock_guard lock(mutex_);
    dma_.Submit(stream, cookie, request);
  }
  uint64_t payload_ = 0;
  int fd_ = -1;
  std::vector<std::pair<void*, size_t>> maps_;
};

TEST_F(MappedDma, IsDoneWithinSubmitAndCounted) {
  std::byte* a = MapSlot(0, 2);
  std::byte* b = MapSlot(1, 2);
  std::memcpy(a + 100, "from a to b", 11);
  MemoryId ra = Add(a, 2 * kPage, {Piece(a, 2 * kPage, 0)});
  MemoryId rb = Add(b, 2 * kPage, {Piece(b, 2 * kPage, 1)});
  EXPECT_STREQ(dma_.BackendName(ra), "mapped");
  Copy(1, 10, Segment(ra, a + 100, 11), Segment(rb, b + kPage - 5, 11));
  auto done = TakeDone();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, DmaStatus::kOk);
  EXPECT_EQ(std::memcmp(b + kPage - 5, "from a to b", 11), 0);
  EXPECT_EQ(dma_.mapped_bytes(), 11u);
  EXPECT_EQ(dma_.process_bytes(), 0u);
}

// It is a hint: of whatever there is, nothing changes.
TEST_F(MappedDma, MovesNowWhatIsExpectedAndWhatIsNot) {
  std::byte* a = MapSlot(0, 2);
  std::byte* b = MapSlot(1, 2);
  MemoryId ra = Add(a, 2 * kPage, {Piece(a, 2 * kPage, 0)});
  MemoryId half = Add(b, 2 * kPage, {Piece(b, kPage, 1)});
  a[0] = std::byte{7};
  b[1] = std::byte{1};
  const DmaSegment from = Segment(ra, a, 1);
  transport::Payload source;
  source.length = 1;
  source.segments = &from;
  source.segment_count = 1;
  const DmaSegment to = Segment(half, b + 1, 1);
  std::lock_guard lock(mutex_);
  for (MemoryId id : {ra, half, MemoryId{99}, kNullMemory}) {
    for (const std::byte* at : {a, b + 1, b + kPage, b + 2 * kPage}) {
      dma_.ExpectMove(id, reinterpret_cast<uint64_t>(at));
      EXPECT_EQ(dma_.mapped_bytes(), 0u);
    }
  }
  EXPECT_EQ(b[1], std::byte{1});
  EXPECT_TRUE(dma_.MoveNow(source, &to, 1));
  EXPECT_EQ(b[1], std::byte{7});
}

TEST_F(MappedDma, MovesNowWhatIsMappedAndNothingElse) {
  std::byte* a = MapSlot(0, 2);
  std::byte* b = MapSlot(1, 2);
  MemoryId ra = Add(a, 2 * kPage, {Piece(a, 2 * kPage, 0)});
  MemoryId rb = Add(b, 2 * kPage, {Piece(b, 2 * kPage, 1)});
  MemoryId half = Add(b, 2 * kPage, {Piece(b, kPage, 1)});
  std::memcpy(a, "in three pieces", 15);
  const DmaSegment from[] = {Segment(ra, a, 3), Segment(ra, a + 3, 12)};
  transport::Payload source;
  source.length = 15;
  source.segments = from;
  source.segment_count = 2;
  auto moves_to = [&](const DmaSegment& to) {
    std::lock_guard lock(mutex_);
    return dma_.MoveNow(source, &to, 1);
  };
  EXPECT_TRUE(moves_to(Segment(rb, b + kPage - 4, 15)));
  EXPECT_EQ(std::memcmp(b + kPage - 4, "in three pieces", 15), 0);
  EXPECT_EQ(dma_.mapped_bytes(), 15u);
  EXPECT_FALSE(moves_to(Segment(half, b + kPage - 4, 15))) << "a part is not mapped";
  EXPECT_FALSE(moves_to(Segment(rb, b + 2 * kPage - 4, 15))) << "beyond the region";
  EXPECT_FALSE(moves_to(Segment(99, b, 15))) << "no region";
  EXPECT_FALSE(moves_to(Segment(kNullMemory, b, 15)));
  // What was submitted and is not reported comes first.
  Copy(1, 1, Segment(ra, a, 8), Segment(rb, b, 8));
  EXPECT_FALSE(moves_to(Segment(rb, b, 15)));
  EXPECT_EQ(TakeDone().size(), 1u);
  EXPECT_TRUE(moves_to(Segment(rb, b, 15)));
}

// By either way, in one go and in several, and only as long as the region is the one that was told.
TEST_F(MappedDma, MovesAllToARegionOfRelaxedOrder) {
  constexpr size_t kPages = 24, kBytes = kPages * kPage;
  std::byte* a = MapSlot(0, kPages);
  std::byte* b = MapSlot(1, kPages);
  MemoryId ra = Add(a, kBytes, {Piece(a, kBytes, 0)});
  MemoryId rb = Add(b, kBytes, {Piece(b, kBytes, 1)});
  {
    std::lock_guard lock(mutex_);
    dma_.RelaxOrder(rb);
    dma_.RelaxOrder(99);  // nobody's
  }
  for (size_t bytes : {size_t{40'001}, kBytes - 33}) {
    for (size_t i = 0; i < kBytes; ++i) a[i] = static_cast<std::byte>(i * 31 + (i >> 8) + bytes);
    std::memset(b, 0, kBytes);
    const DmaSegment from = Segment(ra, a, static_cast<uint32_t>(bytes));
    transport::Payload source;
    source.length = static_cast<uint32_t>(bytes);
    source.segments = &from;
    source.segment_count = 1;
    const DmaSegment to = Segment(rb, b + 33, static_cast<uint32_t>(bytes));
    {
      std::lock_guard lock(mutex_);
      EXPECT_TRUE(dma_.MoveNow(source, &to, 1));
    }
    EXPECT_EQ(std::memcmp(b + 33, a, bytes), 0);
    EXPECT_EQ(b[32], std::byte{0});
    std::memset(b, 0, kBytes);
    Copy(1, 1, from, to);
    EXPECT_EQ(Run().size(), 1u);
    EXPECT_EQ(std::memcmp(b + 33, a, bytes), 0);
    EXPECT_EQ(b[32], std::byte{0});
  }
}

TEST_F(MappedDma, ReadsNowWhatIsMappedAndNothingElse) {
  std::byte* a = MapSlot(0, 2);
  MemoryId ra = Add(a, 2 * kPage, {Piece(a, 2 * kPage, 0)});
  MemoryId half = Add(a, 2 * kPage, {Piece(a, kPage, 0)});
  std::memcpy(a + kPage - 5, "in two pieces", 13);
  std::byte to[16] = {};
  auto reads = [&](const DmaSegment& first, const DmaSegment& second) {
    const DmaSegment from[] = {first, second};
    transport::Payload source;
    source.length = 13;
    source.segments = from;
    source.segment_count = 2;
    std::lock_guard lock(mutex_);
    return dma_.ReadNow(source, to);
  };
  EXPECT_TRUE(reads(Segment(ra, a + kPage - 5, 7), Segment(ra, a + kPage + 2, 6)));
  EXPECT_EQ(std::memcmp(to, "in two pieces", 13), 0);
  EXPECT_EQ(to[13], std::byte{0});
  EXPECT_EQ(dma_.mapped_bytes(), 13u);
  EXPECT_FALSE(reads(Segment(half, a + kPage - 5, 7), Segment(half, a + kPage + 2, 6)));
  EXPECT_FALSE(reads(Segment(ra, a, 7), Segment(99, a, 6)));
  Copy(1, 1, Segment(ra, a, 8), Segment(ra, a + kPage, 8));
  EXPECT_FALSE(reads(Segment(ra, a, 7), Segment(ra, a, 6))) << "what was submitted comes first";
  EXPECT_EQ(TakeDone().size(), 1u);
}

TEST_F(MappedDma, LargeCopiesTakeTurnsAndKeepTheirOrder) {
  constexpr uint32_t kBytes = 1 << 20;
  std::byte* a = MapSlot(0, 2 * kBytes / kPage);
  std::byte* b = MapSlot(1, 2 * kBytes / kPage);
  for (uint32_t i = 0; i < kBytes; ++i) a[i] = static_cast<std::byte>(i * 31 + (i >> 9));
  MemoryId ra = Add(a, 2 * kBytes, {Piece(a, 2 * kBytes, 0)});
  MemoryId rb = Add(b, 2 * kBytes, {Piece(b, 2 * kBytes, 1)});
  Copy(1, 1, Segment(ra, a, kBytes), Segment(rb, b + 3, kBytes));
  a[kBytes] = std::byte{77};
  Copy(1, 2, Segment(ra, a + kBytes, 1), Segment(rb, b + 3, 1));  // after the first, not before
  EXPECT_TRUE(TakeDone().empty());
  auto done = Run();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].cookie, 1u);
  EXPECT_EQ(done[1].cookie, 2u);
  EXPECT_EQ(std::memcmp(b + 4, a + 1, kBytes - 1), 0);
  EXPECT_EQ(b[3], std::byte{77});
}

TEST_F(MappedDma, WhatOneTurnMovesAtOnceIsBounded) {
  constexpr uint32_t kBytes = 64 * 1024;
  std::byte* a = MapSlot(0, kBytes / kPage);
  std::byte* b = MapSlot(1, kBytes / kPage);
  MemoryId ra = Add(a, kBytes, {Piece(a, kBytes, 0)});
  MemoryId rb = Add(b, kBytes, {Piece(b, kBytes, 1)});
  for (uint64_t i = 0; i < 20; ++i) Copy(i, i, Segment(ra, a, kBytes), Segment(rb, b, kBytes));
  const size_t at_once = TakeDone().size();
  EXPECT_GE(at_once, 1u);
  EXPECT_LE(at_once, 5u);
  EXPECT_EQ(Run().size(), 20 - at_once);
  Copy(1, 1, Segment(ra, a, kBytes), Segment(rb, b, kBytes));
  EXPECT_EQ(TakeDone().size(), 1u) << "a new turn";
}

// One end mapped, the other reached by system calls; and a region that is half of each kind.
TEST_F(MappedDma, MeetsMemoryThatIsNotMapped) {
  std::byte* a = MapSlot(0, 1);
  std::vector<std::byte> own(3 * kPage), back(3 * kPage);
  for (size_t i = 0; i < kPage; ++i) a[i] = static_cast<std::byte>(i * 7);
  MemoryId ra = Add(a, kPage, {Piece(a, kPage, 0)});
  MemoryId ro = Add(own.data(), own.size(), {});
  MemoryId rb = Add(back.data(), back.size(), {});
  EXPECT_STREQ(dma_.BackendName(ro), "process");
  Copy(1, 1, Segment(ra, a + 1, 4000), Segment(ro, own.data() + 5, 4000));
  Copy(1, 2, Segment(ro, own.data() + 5, 4000), Segment(rb, back.data(), 4000));
  Copy(1, 3, Segment(rb, back.data(), 2000), Segment(ra, a + 2001, 2000));
  auto done = Run();
  ASSERT_EQ(done.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(done[i].cookie, i + 1);
    EXPECT_EQ(done[i].status, DmaStatus::kOk) << i;
  }
  EXPECT_EQ(back[1999], static_cast<std::byte>(2000 * 7 & 0xff));
  EXPECT_EQ(a[2001], static_cast<std::byte>(7));
  EXPECT_EQ(std::memcmp(a + 2001, a + 1, 2000), 0);
}

TEST_F(MappedDma, PartsOfARegionMayBeOfDifferentSlotsOrOfNone) {
  // Three pages in a row: of slot 5, of none, of slot 6.
  void* area = mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(area, MAP_FAILED);
  maps_.emplace_back(area, 3 * kPage);
  auto* at = static_cast<std::byte*>(area);
  auto place = [&](std::byte* page, uint64_t slot) {
    ASSERT_EQ(mmap(page, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_,
                   static_cast<off_t>(slot * shm::kPayloadSlotBytes)),
              page);
  };
  place(at, 5);
  place(at + 2 * kPage, 6);
  MemoryId region = Add(at, 3 * kPage, {Piece(at, kPage, 5), Piece(at + 2 * kPage, kPage, 6)});
  EXPECT_STREQ(dma_.BackendName(region), "mapped, process");
  std::byte* from = MapSlot(0, 3);
  for (size_t i = 0; i < 3 * kPage; ++i) from[i] = static_cast<std::byte>(i * 5 + (i >> 8));
  MemoryId source = Add(from, 3 * kPage, {Piece(from, 3 * kPage, 0)});
  Copy(1, 1, Segment(source, from, 3 * kPage), Segment(region, at, 3 * kPage));
  auto done = Run();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, DmaStatus::kOk);
  EXPECT_EQ(std::memcmp(at, from, 3 * kPage), 0);
}

TEST_F(MappedDma, AtomicsAreTheCpus) {
  std::byte* a = MapSlot(0, 1);
  MemoryId region = Add(a, kPage, {Piece(a, kPage, 0)});
  auto* word = reinterpret_cast<uint64_t*>(a + 64);
  *word = 40;
  DmaSegment at = Segment(region, word, 8);
  DmaRequest request;
  request.kind = DmaRequest::Kind::kFetchAdd;
  request.destination = &at;
  request.destination_count = 1;
  request.swap_or_add = 2;
  Submit(1, 1, request);
  request.kind = DmaRequest::Kind::kCompareSwap;
  request.compare = 41;
  request.swap_or_add = 7;
  Submit(1, 2, request);
  request.compare = 42;
  Submit(1, 3, request);
  auto done = TakeDone();
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].atomic_original, 40u);
  EXPECT_EQ(done[1].atomic_original, 42u) << "not equal: what is there";
  EXPECT_EQ(done[2].atomic_original, 42u);
  EXPECT_EQ(*word, 7u);
}

TEST_F(MappedDma, PiecesThatLieAreRefused) {
  std::byte* a = MapSlot(0, 4);
  MemoryId id = 0;
  auto refused = [&](const std::vector<shm::MappedPiece>& pieces) {
    return TryAdd(kA, a, 4 * kPage, pieces, &id);
  };
  EXPECT_EQ(refused({Piece(a - kPage, kPage, 0)}), EINVAL) << "before the region";
  EXPECT_EQ(refused({Piece(a + kPage, 4 * kPage, 0)}), EINVAL) << "beyond its end";
  EXPECT_EQ(refused({Piece(a, ~0ull, 0)}), EINVAL) << "round the end of all";
  EXPECT_EQ(refused({Piece(a, kPage, 0), Piece(a, kPage, 0)}), EINVAL) << "twice";
  EXPECT_EQ(refused({Piece(a + kPage, kPage, 0), Piece(a, kPage, 0)}), EINVAL) << "backwards";
  EXPECT_EQ(refused({Piece(a, kPage, 0, 1)}), EINVAL) << "at another place in its page";
  EXPECT_EQ(refused({Piece(a, 0, 0)}), EINVAL) << "nothing";
  EXPECT_EQ(refused({Piece(a, kPage, shm::kPayloadSlots)}), EINVAL) << "beyond the file";
  EXPECT_EQ(refused({Piece(a, kPage, shm::kPayloadSlots - 1, shm::kPayloadSlotBytes)}), EINVAL);
  EXPECT_EQ(TryAdd(kB, a, kPage, {Piece(a, kPage, 0)}, &id), EINVAL) << "it has no file";
  payload_ += 1;
  EXPECT_EQ(refused({Piece(a, kPage, 0)}), EINVAL) << "another file";
  payload_ -= 1;
  EXPECT_EQ(refused({Piece(a, 4 * kPage, 0)}), 0);
}

TEST_F(MappedDma, SessionsOfOneProcessShareItsFileIfItKnowsIt) {
  uint64_t id = 0;
  int fd = -1;
  ASSERT_EQ(dma_.OpenPayload(kB, &payload_, 1, &id, &fd), 0);
  EXPECT_EQ(id, payload_);
  EXPECT_EQ(fd, -1) << "it has it";
  constexpr SessionId kC = 3;
  dma_.AttachSession(kC, getpid());
  const uint64_t another = payload_ + 1;
  ASSERT_EQ(dma_.OpenPayload(kC, &another, 1, &id, &fd), 0);
  EXPECT_NE(id, payload_) << "the program that ran here before may have had that file";
  EXPECT_GE(fd, 0);
  dma_.DetachSession(kC);
}

TEST_F(MappedDma, TheFileCanNotBeCutOff) {
  EXPECT_NE(ftruncate(fd_, 0), 0);
  EXPECT_NE(ftruncate(fd_, static_cast<off_t>(2 * shm::kPayloadFileBytes)), 0);
  std::byte* a = MapSlot(0, 1);
  MemoryId region = Add(a, kPage, {Piece(a, kPage, 0)});
  a[0] = std::byte{1};
  ASSERT_EQ(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPage), 0);
  std::byte* b = MapSlot(1, 1);
  MemoryId to = Add(b, kPage, {Piece(b, kPage, 1)});
  b[0] = std::byte{2};
  Copy(1, 1, Segment(region, a, 1), Segment(to, b, 1));
  ASSERT_EQ(TakeDone().size(), 1u);
  EXPECT_EQ(b[0], std::byte{0}) << "a hole reads as zeroes";
}

// One mapping here serves them all, and goes when nobody has used it for a while.
TEST_F(MappedDma, ManyRegionsOfOneBufferCostOneMapping) {
  std::byte* a = MapSlot(0, 16);
  std::vector<MemoryId> ids;
  for (int i = 0; i < 100'000; ++i) ids.push_back(Add(a, 16 * kPage, {Piece(a, 16 * kPage, 0)}));
  FILE* maps = fopen("/proc/self/maps", "re");
  ASSERT_NE(maps, nullptr);
  int lines = 0;
  char line[512];
  while (fgets(line, sizeof(line), maps) != nullptr) {
    lines += strstr(line, "verbena-payload") != nullptr;
  }
  fclose(maps);
  EXPECT_EQ(lines, 2) << "the client's and the engine's";
  for (MemoryId id : ids) dma_.RemoveRegion(id);
}

// A client may name as many bytes of its file as it likes; it gets no more addresses than its
// share.
TEST_F(MappedDma, AddressesAreNotUsedUp) {
  std::vector<MemoryId> ids;
  std::byte* at = MapSlot(0, 1);
  size_t mapped = 0;
  for (uint64_t slot = 0; slot < 100; ++slot) {
    const uint64_t bytes = shm::kPayloadSlotBytes / 2;
    ids.push_back(Add(at, bytes, {Piece(at, bytes, slot)}));
    mapped += std::string(dma_.BackendName(ids.back())) == "mapped";
  }
  EXPECT_GT(mapped, 1u);
  EXPECT_LT(mapped, 10u);
  for (MemoryId id : ids) dma_.RemoveRegion(id);
  MemoryId again = Add(at, kPage, {Piece(at, kPage, 99)});
  EXPECT_STREQ(dma_.BackendName(again), "mapped") << "what is idle gives way";
}

TEST_F(MappedDma, AProcessThatCanNotBeReachedHasWhatItShares) {
  dma_.SetReachable(kA, false);
  std::byte* a = MapSlot(0, 2);
  MemoryId id = 0;
  EXPECT_EQ(TryAdd(kA, a, 2 * kPage, {Piece(a, 2 * kPage, 0)}, &id), 0);
  EXPECT_EQ(TryAdd(kA, a, 2 * kPage, {Piece(a, kPage, 0)}, &id), EOPNOTSUPP);
}

}  // namespace
}  // namespace verbena::softnic
