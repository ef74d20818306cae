#include "fi_shim/kept_entries.h"

#include <gtest/gtest.h>

#include <vector>

namespace verbena::fi {
namespace {

constexpr uint32_t kEntries = 8;

struct Queue {
  explicit Queue(uint32_t first_index = 0)
      : stride_bytes(SendEntryBytes(2, 64)),
        bytes(WorkQueueBytes(kEntries, stride_bytes)),
        memory(bytes),
        ring(RingMemory(memory.data(), bytes), kEntries, stride_bytes, kEntries) {
    ring.Reset(first_index);
  }
  void Post(Operation* operation, uint64_t remote_addr, char payload = 0) {
    auto* wqe = static_cast<shm::SendWqe*>(ring.Reserve());
    ASSERT_NE(wqe, nullptr);
    *wqe = {};
    wqe->wr_id = reinterpret_cast<uint64_t>(operation);
    wqe->remote_addr = remote_addr;
    *reinterpret_cast<char*>(wqe + 1) = payload;
  }
  const shm::SendWqe& At(uint32_t index) const {
    return *static_cast<const shm::SendWqe*>(ring.Entry(index));
  }

  uint32_t stride_bytes;
  uint64_t bytes;
  std::vector<std::byte> memory;
  WorkQueueProducer ring;
};

TEST(KeptEntriesTest, KeepOrderAndPayload) {
  Operation operations[5];
  Queue from, to;
  for (uint64_t i = 0; i < 5; ++i) from.Post(&operations[i], i, static_cast<char>('a' + i));
  CopyKept(from.ring, 2, &to.ring);
  ASSERT_EQ(to.ring.producer_index(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(OperationOf(to.ring, i), &operations[2 + i]);
    EXPECT_EQ(to.At(i).remote_addr, 2u + i);
    EXPECT_EQ(*reinterpret_cast<const char*>(&to.At(i) + 1), static_cast<char>('c' + i));
  }
}

TEST(KeptEntriesTest, WhatIsLeftOfAFailedOperationStaysBehind) {
  Operation failed, good, other;
  failed.failed_status = 10;
  Queue from, to;
  from.Post(&failed, 0);
  from.Post(&failed, 1);
  from.Post(&good, 2);
  from.Post(&failed, 3);
  from.Post(&other, 4);
  CopyKept(from.ring, 1, &to.ring);
  ASSERT_EQ(to.ring.producer_index(), 2u);
  EXPECT_EQ(OperationOf(to.ring, 0), &good);
  EXPECT_EQ(OperationOf(to.ring, 1), &other);
}

TEST(KeptEntriesTest, GoOnBehindTheEndOfTheRingAndOfNumbers) {
  Operation operations[6];
  Queue from(UINT32_MAX - 2), to(UINT32_MAX);
  for (uint64_t i = 0; i < 6; ++i) from.Post(&operations[i], i);
  CopyKept(from.ring, UINT32_MAX - 1, &to.ring);
  ASSERT_EQ(to.ring.producer_index(), 4u);
  for (uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(OperationOf(to.ring, UINT32_MAX + i), &operations[1 + i]) << i;
  }
}

TEST(KeptEntriesTest, NothingIsKeptOfAnEmptyQueue) {
  Queue from(7), to;
  CopyKept(from.ring, 7, &to.ring);
  EXPECT_EQ(to.ring.producer_index(), 0u);
}

}  // namespace
}  // namespace verbena::fi
