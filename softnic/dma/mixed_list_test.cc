// Lists of which not all pieces are in the same place: in a process, mapped here, or nowhere.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "softnic/dma/process_dma.h"
#include "softnic/dma/test_leader.h"

namespace verbena::softnic {
namespace {

using transport::DmaRequest;
using transport::DmaSegment;
using transport::DmaStatus;
using transport::MemoryId;

constexpr SessionId kClient = 1;

class MixedLists : public DmaFixture {
 protected:
  void SetUp() override {
    DmaFixture::SetUp();
    dma_.AttachSession(kClient, getpid());
    dma_.SetReachable(kClient, true);
  }
  void TearDown() override {
    dma_.DetachSession(kClient);
    DmaFixture::TearDown();
  }

  MemoryId Add(SessionId session, std::vector<uint8_t>& bytes) {
    std::lock_guard lock(mutex_);
    MemoryId id = 0;
    const RegionSpec spec = {Address(bytes), bytes.size(), 0, nullptr, 0};
    EXPECT_EQ(dma_.AddRegion(session, spec, &id), 0);
    return id;
  }
  static uint64_t Address(const std::vector<uint8_t>& bytes) {
    return reinterpret_cast<uint64_t>(bytes.data());
  }
  static DmaSegment Null(uint32_t bytes) { return {kNullMemory, bytes, 12'345}; }
  void Copy(uint64_t cookie, const std::vector<DmaSegment>& from, uint64_t offset, uint32_t length,
            const std::vector<DmaSegment>& to) {
    DmaRequest request;
    request.prefix_bytes = prefix_bytes_;
    std::memset(request.prefix, 0x77, sizeof(request.prefix));
    request.source.length = length;
    request.source.offset = static_cast<uint32_t>(offset);
    request.source.segments = from.data();
    request.source.segment_count = static_cast<uint16_t>(from.size());
    request.destination = to.data();
    request.destination_count = static_cast<uint16_t>(to.size());
    std::lock_guard lock(mutex_);
    dma_.Submit(1, cookie, request);
  }
  DmaStatus Outcome() {
    auto done = Run();
    EXPECT_EQ(done.size(), 1u);
    return done.empty() ? DmaStatus::kSourceFault : done[0].status;
  }

  uint32_t prefix_bytes_ = 0;
};

TEST_F(MixedLists, NullMemoryReadsAsZeroesAndSwallows) {
  std::vector<uint8_t> from(300'000, 1), to(600'000, 2);
  MemoryId a = Add(kClient, from), b = Add(kClient, to);
  // Longer than what goes at once, at both ends.
  Copy(1, {{a, 100'000, Address(from)}, Null(200'000), {a, 200'000, Address(from) + 100'000}}, 50,
       499'950, {Null(10), {b, 499'940, Address(to)}});
  EXPECT_EQ(Outcome(), DmaStatus::kOk);
  for (size_t i = 0; i < to.size(); ++i) {
    const size_t at = i + 60;  // in the source
    const uint8_t expected = i >= 499'940 ? 2 : at < 100'000 || at >= 300'000 ? 1 : 0;
    ASSERT_EQ(to[i], expected) << i;
  }
}

TEST_F(MixedLists, NullMemoryAlone) {
  std::vector<uint8_t> to(5'000, 2);
  MemoryId b = Add(kClient, to);
  Copy(1, {Null(5'000)}, 0, 5'000, {{b, 5'000, Address(to)}});
  EXPECT_EQ(Outcome(), DmaStatus::kOk);
  EXPECT_EQ(to, std::vector<uint8_t>(5'000, 0));
  Copy(2, {{b, 5'000, Address(to)}}, 0, 5'000, {Null(5'000)});
  EXPECT_EQ(Outcome(), DmaStatus::kOk);
  Copy(3, {Null(1u << 30)}, 0, 1u << 30, {Null(1u << 30)});
  EXPECT_EQ(Outcome(), DmaStatus::kOk);
}

TEST_F(MixedLists, NicMemoryIsMovedAtOnce) {
  std::vector<uint8_t> nic(64, 3), other(64, 4);
  MemoryId n = Add(kNicSession, nic), m = Add(kNicSession, other);
  EXPECT_STREQ(dma_.BackendName(n), "nic");
  Copy(1, {{n, 8, Address(nic)}}, 0, 8, {{m, 8, Address(other)}});
  EXPECT_EQ(TakeDone().size(), 1u);
  EXPECT_EQ(other[7], 3);
  EXPECT_EQ(other[8], 4);
  const DmaSegment word = {n, 8, Address(nic)};
  DmaRequest request;
  request.kind = DmaRequest::Kind::kFetchAdd;
  request.destination = &word;
  request.destination_count = 1;
  request.swap_or_add = 1;
  {
    std::lock_guard lock(mutex_);
    dma_.Submit(1, 1, request);
  }
  EXPECT_EQ(Outcome(), DmaStatus::kOk);
  EXPECT_EQ(nic[0], 4);
  dma_.RemoveRegion(n);
  dma_.RemoveRegion(m);
}

TEST_F(MixedLists, NicMemoryBesideAProcesss) {
  std::vector<uint8_t> nic(64, 3), own(64, 4), to(96, 5);
  MemoryId n = Add(kNicSession, nic), o = Add(kClient, own), t = Add(kClient, to);
  Copy(1, {{o, 32, Address(own)}, {n, 32, Address(nic)}, Null(32)}, 0, 96, {{t, 96, Address(to)}});
  // Fences of either wait for it.
  dma_.Fence(kClient, 1);
  dma_.Fence(kNicSession, 2);
  uint64_t cookie = 0;
  EXPECT_FALSE(dma_.PollFence(&cookie));
  EXPECT_EQ(Outcome(), DmaStatus::kOk);
  EXPECT_TRUE(dma_.PollFence(&cookie));
  EXPECT_TRUE(dma_.PollFence(&cookie));
  for (size_t i = 0; i < 96; ++i) ASSERT_EQ(to[i], i < 32 ? 4 : i < 64 ? 3 : 0) << i;
  Copy(2, {{t, 64, Address(to)}}, 0, 64, {{n, 16, Address(nic)}, {o, 48, Address(own)}});
  EXPECT_EQ(Outcome(), DmaStatus::kOk);
  EXPECT_EQ(nic[15], 4);
  EXPECT_EQ(own[15], 4);
  EXPECT_EQ(own[16], 3);
  dma_.RemoveRegion(n);
}

// A list of two processes' memory is nobody's.
TEST_F(MixedLists, TwoProcessesAreRefused) {
  dma_.AttachSession(2, getpid());
  dma_.SetReachable(2, true);
  std::vector<uint8_t> one(64, 1), two(64, 2);
  MemoryId a = Add(kClient, one), b = Add(2, two);
  Copy(1, {{a, 8, Address(one)}, {b, 8, Address(two)}}, 0, 16, {{a, 16, Address(one) + 32}});
  EXPECT_EQ(Outcome(), DmaStatus::kSourceFault);
  dma_.DetachSession(2);
}

TEST_F(MixedLists, PrefixMayEndAmidAPiece) {
  prefix_bytes_ = 40;
  std::vector<uint8_t> from(64, 1), to(104, 2);
  MemoryId a = Add(kClient, from), b = Add(kClient, to);
  Copy(1, {{a, 64, Address(from)}}, 0, 64,
       {{b, 30, Address(to)}, Null(4), {b, 60, Address(to) + 30}, Null(10)});
  EXPECT_EQ(Outcome(), DmaStatus::kOk);
  for (size_t i = 0; i < to.size(); ++i) {
    ASSERT_EQ(to[i], i < 36 ? 0x77 : i < 90 ? 1 : 2) << i;
  }
}

TEST_F(MixedLists, FaultIsThatOfThePieceThatIsNotThere) {
  std::vector<uint8_t> from(64, 1);
  MemoryId a = Add(kClient, from);
  std::vector<uint8_t> gone;
  MemoryId none = 0;
  ASSERT_EQ(dma_.AddRegion(kClient, {4096, 64, 0, nullptr, 0}, &none), 0);
  Copy(1, {Null(8), {none, 8, 4096}}, 0, 16, {{a, 16, Address(from)}});
  EXPECT_EQ(Outcome(), DmaStatus::kSourceFault);
  EXPECT_EQ(from[0], 1) << "nothing is written before all is read";
  Copy(2, {{a, 16, Address(from)}}, 0, 16, {Null(8), {none, 8, 4096}});
  EXPECT_EQ(Outcome(), DmaStatus::kDestinationFault);
}

// Whatever thread copies, and in whatever way.
TEST_F(MixedLists, APageThatCantBeHadIsAnErrorOfTheCopy) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "TSan takes what runs after a jump out of a handler for a part of the handler";
#endif
  constexpr uint32_t kBytes = 256 * 1024;  // more than what moves within Submit
  const int fd = memfd_create("mixed_list_test", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, kBytes / 2), 0);
  void* map = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  const auto address = reinterpret_cast<uint64_t>(map);
  MemoryId half = 0;
  ASSERT_EQ(dma_.AddRegion(kNicSession, {.addr = address, .length = kBytes}, &half), 0);
  const DmaSegment whole = {half, kBytes, address};
  std::vector<uint8_t> nic(kBytes, 3), own(kBytes, 4);
  MemoryId n = Add(kNicSession, nic), o = Add(kClient, own);
  const DmaSegment here = {n, kBytes, Address(nic)}, there = {o, kBytes, Address(own)};
  Copy(1, {whole}, 0, kBytes, {there});
  EXPECT_EQ(Outcome(), DmaStatus::kSourceFault);
  Copy(2, {there}, 0, kBytes, {whole});
  EXPECT_EQ(Outcome(), DmaStatus::kDestinationFault);
  Copy(3, {whole}, 0, kBytes, {here});
  EXPECT_EQ(Outcome(), DmaStatus::kSourceFault);
  Copy(4, {Null(8), whole}, 0, kBytes, {there});
  EXPECT_EQ(Outcome(), DmaStatus::kSourceFault);
  Copy(5, {there}, 0, kBytes, {Null(8), whole});
  EXPECT_EQ(Outcome(), DmaStatus::kDestinationFault);
  dma_.RemoveRegion(half);
  dma_.RemoveRegion(n);
  munmap(map, kBytes);
  close(fd);
}

TEST_F(MixedLists, IntoPackets) {
  std::vector<uint8_t> from(64, 1);
  MemoryId a = Add(kClient, from);
  std::byte packets[2][40];
  std::memset(packets, 5, sizeof(packets));
  const transport::LocalPiece pieces[] = {{packets[0], 40, nullptr}, {packets[1], 8, nullptr}};
  const DmaSegment segments[] = {{a, 32, Address(from)}, Null(16)};
  DmaRequest request;
  request.source.length = 48;
  request.source.segments = segments;
  request.source.segment_count = 2;
  request.local_pieces = pieces;
  request.local_piece_count = 2;
  {
    std::lock_guard lock(mutex_);
    dma_.Submit(1, 1, request);
  }
  EXPECT_EQ(Outcome(), DmaStatus::kOk);
  EXPECT_EQ(packets[0][31], std::byte{1});
  EXPECT_EQ(packets[0][32], std::byte{0});
  EXPECT_EQ(packets[1][7], std::byte{0});
  EXPECT_EQ(packets[1][8], std::byte{5});
}

TEST_F(MixedLists, NoAtomicsOnNullMemory) {
  const DmaSegment null = Null(8);
  DmaRequest request;
  request.kind = DmaRequest::Kind::kFetchAdd;
  request.destination = &null;
  request.destination_count = 1;
  {
    std::lock_guard lock(mutex_);
    dma_.Submit(1, 1, request);
  }
  EXPECT_EQ(Outcome(), DmaStatus::kDestinationFault);
}

TEST_F(MixedLists, CopyOfARegionIsTheSameMemoryByAnotherName) {
  std::vector<uint8_t> from(64, 1), to(64, 2);
  MemoryId a = Add(kClient, from), b = Add(kClient, to), c = 0;
  ASSERT_EQ(dma_.CopyRegion(a, &c), 0);
  EXPECT_NE(a, c);
  dma_.RemoveRegion(a);
  Copy(1, {{a, 8, Address(from)}}, 0, 8, {{b, 8, Address(to)}});
  EXPECT_EQ(Outcome(), DmaStatus::kSourceFault);
  Copy(2, {{c, 8, Address(from)}}, 0, 8, {{b, 8, Address(to)}});
  EXPECT_EQ(Outcome(), DmaStatus::kOk);
  EXPECT_EQ(to[7], 1);
}

}  // namespace
}  // namespace verbena::softnic
