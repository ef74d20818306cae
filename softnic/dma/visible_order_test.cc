// In which order the kernel is asked to write into another process. It writes each piece by a
// string instruction, whose stores become visible in any order: who polls the last byte of a
// message must find the others, so its cache line is a piece of its own.
#include <errno.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <vector>

#include "softnic/dma/process_dma.h"
#include "softnic/dma/test_leader.h"

namespace {

struct Written {
  std::vector<uint64_t> pieces;  // lengths
  std::vector<iovec> to;
};
std::vector<Written> written;

}  // namespace

// Instead of libc's: the same call, noted.
extern "C" ssize_t process_vm_writev(pid_t pid, const iovec* from, unsigned long from_count,
                                     const iovec* to, unsigned long to_count,
                                     unsigned long flags) noexcept {
  Written& call = written.emplace_back();
  for (unsigned long i = 0; i < from_count; ++i) call.pieces.push_back(from[i].iov_len);
  call.to.assign(to, to + to_count);
  return syscall(SYS_process_vm_writev, pid, from, from_count, to, to_count, flags);
}

namespace verbena::softnic {
namespace {

using transport::DmaRequest;
using transport::DmaSegment;
using transport::DmaStatus;
using transport::MemoryId;

constexpr SessionId kClient = 1;
using Lengths = std::vector<uint64_t>;

class VisibleOrder : public DmaFixture {
 protected:
  void SetUp() override {
    DmaFixture::SetUp();
    written.clear();
    std::iota(from_.begin(), from_.end(), uint8_t{1});
    dma_.AttachSession(kClient, getpid());
    dma_.SetReachable(kClient, true);
    from_id_ = Add(from_);
    to_id_ = Add(to_);
  }
  void TearDown() override {
    dma_.DetachSession(kClient);
    DmaFixture::TearDown();
  }

  MemoryId Add(std::vector<uint8_t>& bytes) {
    std::lock_guard lock(mutex_);
    MemoryId id = 0;
    const RegionSpec spec = {.addr = reinterpret_cast<uint64_t>(bytes.data()),
                             .length = bytes.size()};
    EXPECT_EQ(dma_.AddRegion(kClient, spec, &id), 0);
    return id;
  }
  DmaSegment To(uint64_t offset, uint32_t length) {
    return {to_id_, length, reinterpret_cast<uint64_t>(to_.data()) + offset};
  }
  // `prefix`: bytes that the NIC has, before those of the process.
  void Submit(const std::vector<DmaSegment>& to, uint32_t length,
              const std::vector<uint8_t>& prefix = {}) {
    std::lock_guard lock(mutex_);
    const DmaSegment source = {from_id_, length, reinterpret_cast<uint64_t>(from_.data())};
    DmaRequest request;
    std::copy(prefix.begin(), prefix.end(), reinterpret_cast<uint8_t*>(request.prefix));
    request.prefix_bytes = static_cast<uint32_t>(prefix.size());
    request.source.length = length;
    request.source.segments = &source;
    request.source.segment_count = 1;
    request.destination = to.data();
    request.destination_count = static_cast<uint16_t>(to.size());
    dma_.Submit(/*stream=*/1, /*cookie=*/1, request);
  }
  // The first byte of to_ that is at the start of a page.
  uint64_t PageStart() const { return 4096 - reinterpret_cast<uint64_t>(to_.data()) % 4096; }

  std::vector<uint8_t> from_ = std::vector<uint8_t>(32'768);
  std::vector<uint8_t> to_ = std::vector<uint8_t>(32'768);
  MemoryId from_id_ = 0, to_id_ = 0;
};

TEST_F(VisibleOrder, TheLastCacheLineIsAPieceOfItsOwn) {
  struct Row {
    uint64_t offset;
    uint32_t length;
    Lengths pieces;
  };
  for (const Row& row :
       {Row{0, 4096, {4032, 64}}, Row{0, 4097, {4096, 1}}, Row{17, 4096, {4079, 17}},
        Row{0, 65, {64, 1}}, Row{0, 64, {64}}, Row{60, 8, {4, 4}}, Row{8, 1, {1}}}) {
    SCOPED_TRACE(testing::Message() << row.length << " bytes to " << row.offset);
    written.clear();
    const uint64_t at = PageStart() + row.offset;
    Submit({To(at, row.length)}, row.length);
    auto done = Run();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, DmaStatus::kOk);
    ASSERT_EQ(written.size(), 1u) << "one system call is enough";
    EXPECT_EQ(written[0].pieces, row.pieces);
    EXPECT_EQ(written[0].to.size(), 1u) << "the page is looked up once";
    for (uint32_t i = 0; i < row.length; ++i) ASSERT_EQ(to_[at + i], from_[i]) << "byte " << i;
  }
}

TEST_F(VisibleOrder, TheLastOfSeveralSegmentsCounts) {
  const uint64_t at = PageStart();
  Submit({To(at, 1000), To(at + 8192, 300)}, 1300);
  Run();
  ASSERT_EQ(written.size(), 1u);
  EXPECT_EQ(written[0].pieces, (Lengths{1256, 44})) << "300 is 44 after the last line's start";
}

TEST_F(VisibleOrder, EachMessageOfABatchHasItsOwn) {
  const uint64_t at = PageStart();
  Submit({To(at, 256)}, 256);
  Submit({To(at + 4096, 128)}, 128);
  Submit({To(at + 8192, 8)}, 8);
  ASSERT_EQ(Run().size(), 3u);
  ASSERT_EQ(written.size(), 1u) << "they go together";
  EXPECT_EQ(written[0].pieces, (Lengths{192, 64, 64, 64, 8}));
}

TEST_F(VisibleOrder, BytesThatTheNicHasComeFirst) {
  const uint64_t at = PageStart();
  Submit({To(at, 40 + 200)}, 200, std::vector<uint8_t>(40, 9));
  Run();
  ASSERT_EQ(written.size(), 1u);
  EXPECT_EQ(written[0].pieces, (Lengths{40, 152, 48}));
}

// After a fault the operations of a batch are written one by one.
TEST_F(VisibleOrder, OneByOneAsWell) {
  MemoryId bad = 0;
  {
    std::lock_guard lock(mutex_);
    ASSERT_EQ(dma_.AddRegion(kClient, {.addr = 4096, .length = 4096}, &bad), 0);
  }
  const uint64_t at = PageStart();
  Submit({{bad, 128, 4096}}, 128);
  Submit({To(at, 128)}, 128);
  auto done = Run();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, DmaStatus::kDestinationFault);
  EXPECT_EQ(done[1].status, DmaStatus::kOk);
  ASSERT_EQ(written.size(), 3u);
  EXPECT_EQ(written[2].pieces, (Lengths{64, 64}));
}

}  // namespace
}  // namespace verbena::softnic
