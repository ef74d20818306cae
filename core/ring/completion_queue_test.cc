#include "core/ring/completion_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

namespace verbena {
namespace {

constexpr uint32_t kStarts[] = {0, 0xffff'fffau, 0xffff'fffeu, 0xffff'ffffu};

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};

struct Cq {
  Cq(uint32_t entries, uint32_t start)
      : base(std::aligned_alloc(64, CqBytes(entries))), memory(base.get(), CqBytes(entries)) {
    std::memset(base.get(), 0, CqBytes(entries));
    producer = CqProducer(memory, entries);
    consumer = CqConsumer(memory, entries);
    producer.StartAt(start);
    consumer.StartAt(start);
  }
  bool Push(uint64_t wr_id) {
    shm::Cqe cqe = {};
    cqe.wr_id = wr_id;
    return producer.Push(cqe);
  }
  bool Hold(uint64_t wr_id) {
    shm::Cqe cqe = {};
    cqe.wr_id = wr_id;
    return producer.Hold(cqe);
  }
  // What a hostile client writes.
  void ClaimConsumer(uint32_t index) {
    memory.StoreRelease(offsetof(shm::CqHead, consumer), index);
  }
  uint32_t Bits() const { return producer.LoadArm() & (shm::kArmAny | shm::kArmSolicited); }

  std::unique_ptr<void, FreeDeleter> base;
  RingMemory memory;
  CqProducer producer;
  CqConsumer consumer;
};

// The wr_id of the oldest entry, consumed; ~0 if there is none.
uint64_t Poll(CqConsumer& consumer) {
  const shm::Cqe* cqe = consumer.Peek();
  if (cqe == nullptr) return ~uint64_t{0};
  uint64_t wr_id = cqe->wr_id;
  consumer.Consume();
  return wr_id;
}

// Every sequence of pushes, polls and publications: a bounded FIFO, full until polls are published.
TEST(CompletionQueue, EverySequenceIsABoundedFifo) {
  constexpr uint32_t kDepth = 11;
  for (uint32_t entries : {1u, 2u, 4u}) {
    for (uint32_t start : kStarts) {
      for (uint32_t sequence = 0; sequence < 177'147; ++sequence) {  // 3^11
        Cq cq(entries, start);
        uint64_t pushed = 0, polled = 0, published = 0;
        uint32_t rest = sequence;
        for (uint32_t step = 0; step < kDepth; ++step, rest /= 3) {
          switch (rest % 3) {
            case 0:
              ASSERT_EQ(cq.Push(pushed), pushed - published < entries);
              pushed += pushed - published < entries ? 1 : 0;
              break;
            case 1:
              ASSERT_EQ(Poll(cq.consumer), polled == pushed ? ~uint64_t{0} : polled);
              polled += polled == pushed ? 0 : 1;
              break;
            default:
              cq.consumer.Publish();
              published = polled;
              break;
          }
          ASSERT_FALSE(HasFatalFailure()) << entries << " " << start << " " << sequence;
        }
      }
    }
  }
}

// The entry of index 2^32 - 1 has valid word 0, like memory never written.
TEST(CompletionQueue, FreshMemoryIsEmptyAtTheWrap) {
  for (uint32_t entries : {1u, 2u, 8u}) {
    Cq cq(entries, 0xffff'ffffu);
    EXPECT_EQ(cq.consumer.Peek(), nullptr);
    EXPECT_TRUE(cq.Push(5));
    EXPECT_EQ(Poll(cq.consumer), 5u);
    EXPECT_EQ(cq.consumer.Peek(), nullptr);
  }
}

// A consumer index beyond what was written, or behind what was claimed before, changes nothing; and
// no claim makes the NIC hold more than `entries` that it does not believe polled.
TEST(CompletionQueue, LiesAboutPollingGainNothing) {
  constexpr uint32_t kEntries = 4;
  for (uint32_t start : kStarts) {
    for (uint32_t honest = 0; honest <= kEntries; ++honest) {
      for (int32_t lie = -20; lie <= 20; ++lie) {
        Cq cq(kEntries, start);
        cq.ClaimConsumer(start);
        for (uint32_t i = 0; i < kEntries; ++i) ASSERT_TRUE(cq.Push(i));
        cq.ClaimConsumer(start + honest);
        for (uint32_t i = 0; i < honest; ++i) ASSERT_TRUE(cq.Push(i));
        ASSERT_FALSE(cq.Push(99)) << "full again";

        cq.ClaimConsumer(start + static_cast<uint32_t>(lie));
        auto believed = static_cast<int32_t>(honest);
        bool credible = lie >= believed && lie <= static_cast<int32_t>(kEntries) + believed;
        int32_t more = 0;
        while (more < 100 && cq.Push(10)) ++more;
        ASSERT_EQ(more, credible ? lie - believed : 0)
            << "start " << start << " honest " << honest << " lie " << lie;
      }
    }
  }
}

TEST(CompletionQueue, OverrunLeavesUnpolledEntriesAlone) {
  for (uint32_t start : kStarts) {
    Cq cq(2, start);
    EXPECT_TRUE(cq.Push(1));
    EXPECT_TRUE(cq.Push(2));
    for (uint32_t lie : {start + 3, start - 1, start + 0x8000'0000u, ~start}) {
      cq.ClaimConsumer(lie);
      if (lie - start <= 2) continue;
      EXPECT_FALSE(cq.Push(3)) << lie;
    }
    EXPECT_EQ(Poll(cq.consumer), 1u);
    EXPECT_EQ(Poll(cq.consumer), 2u);
    EXPECT_EQ(cq.consumer.Peek(), nullptr);
  }
}

TEST(CompletionQueue, WhatIsHeldIsSeenTogether) {
  for (uint32_t start : kStarts) {
    Cq cq(4, start);
    for (uint32_t lap = 0; lap < 3; ++lap) {
      ASSERT_TRUE(cq.Hold(1));
      ASSERT_TRUE(cq.Hold(2));
      ASSERT_TRUE(cq.Push(3));
      ASSERT_TRUE(cq.Hold(4));
      EXPECT_FALSE(cq.Hold(5)) << "full";
      EXPECT_EQ(cq.consumer.Peek(), nullptr);
      cq.producer.PublishHeld();
      for (uint64_t i = 1; i <= 4; ++i) EXPECT_EQ(Poll(cq.consumer), i);
      EXPECT_EQ(cq.consumer.Peek(), nullptr);
      EXPECT_FALSE(cq.Hold(6)) << "full until polls are published";
      cq.consumer.Publish();
      cq.producer.PublishHeld();
      EXPECT_EQ(cq.consumer.Peek(), nullptr) << "nothing was held";
      ASSERT_TRUE(cq.Push(7));
      EXPECT_EQ(Poll(cq.consumer), 7u);
      cq.consumer.Publish();
    }
  }
}

TEST(CompletionQueue, HeldInTheSmallestQueues) {
  for (uint32_t start : kStarts) {
    for (uint32_t entries : {1u, 2u}) {
      Cq cq(entries, start);
      for (uint32_t lap = 0; lap < 5; ++lap) {
        for (uint32_t i = 0; i < entries; ++i) ASSERT_TRUE(cq.Hold(i));
        for (uint32_t lie : {start - 1, start + 7, ~start}) {
          if (lie - start <= 5 * entries) continue;
          cq.ClaimConsumer(lie);
          EXPECT_FALSE(cq.Hold(99)) << lie;
        }
        EXPECT_EQ(cq.consumer.Peek(), nullptr);
        cq.producer.PublishHeld();
        for (uint32_t i = 0; i < entries; ++i) EXPECT_EQ(Poll(cq.consumer), i);
        EXPECT_EQ(cq.consumer.Peek(), nullptr);
        cq.consumer.Publish();
      }
    }
  }
}

// ibv_resize_cq at every fill, in both directions, around the wrap: nothing lost, nothing made up.
TEST(CompletionQueue, MoveKeepsWhatIsUnpolled) {
  for (uint32_t start : kStarts) {
    for (uint32_t from : {1u, 2u, 4u, 8u}) {
      for (uint32_t to : {1u, 2u, 4u, 16u}) {
        for (uint32_t unpolled = 0; unpolled <= from; ++unpolled) {
          Cq old_cq(from, start);
          Cq new_cq(to, 0);
          old_cq.consumer.Arm(true);
          for (uint32_t i = 0; i < unpolled; ++i) ASSERT_TRUE(old_cq.Push(i));
          bool fits = unpolled <= to;
          ASSERT_EQ(old_cq.producer.MoveTo(new_cq.producer), fits);
          if (!fits) {
            ASSERT_EQ(Poll(old_cq.consumer), 0u) << "the old ring goes on";
            continue;
          }
          ASSERT_EQ(new_cq.producer.LoadArm(), old_cq.producer.LoadArm());
          ASSERT_EQ(new_cq.producer.Unpolled(), unpolled);
          CqConsumer consumer = old_cq.consumer;
          consumer.MoveTo(new_cq.memory, to);
          for (uint32_t i = unpolled; i < to; ++i) ASSERT_TRUE(new_cq.Push(i));
          ASSERT_FALSE(new_cq.Push(99)) << "full at its new size";
          for (uint32_t i = 0; i < to; ++i) ASSERT_EQ(Poll(consumer), i);
          consumer.Publish();
          // One more lap: no entry of the new memory looks written before it is.
          for (uint32_t i = 0; i < 2 * to; ++i) {
            ASSERT_EQ(consumer.Peek(), nullptr) << "start " << start << " to " << to;
            ASSERT_TRUE(new_cq.Push(200 + i));
            ASSERT_EQ(Poll(consumer), 200 + i);
            consumer.Publish();
          }
        }
      }
    }
  }
}

TEST(CompletionQueue, MoveHonoursPollsNotYetSeen) {
  Cq old_cq(4, 0xffff'fffeu);
  Cq new_cq(2, 0);
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(old_cq.Push(i));
  EXPECT_FALSE(old_cq.producer.MoveTo(new_cq.producer));
  Poll(old_cq.consumer);
  Poll(old_cq.consumer);
  old_cq.consumer.Publish();
  EXPECT_TRUE(old_cq.producer.MoveTo(new_cq.producer));
  old_cq.consumer.MoveTo(new_cq.memory, 2);
  EXPECT_EQ(Poll(old_cq.consumer), 2u);
  EXPECT_EQ(Poll(old_cq.consumer), 3u);
  EXPECT_EQ(old_cq.consumer.Peek(), nullptr);
}

TEST(CompletionQueue, EachArmHasASequenceOfItsOwn) {
  Cq cq(4, 0);
  uint32_t last = cq.producer.LoadArm();
  for (int i = 0; i < 10; ++i) {
    cq.consumer.Arm(i % 2 == 0);
    EXPECT_NE(cq.producer.LoadArm() >> shm::kArmSequenceShift, last >> shm::kArmSequenceShift);
    last = cq.producer.LoadArm();
  }
}

TEST(CompletionQueue, UnansweredRequestForAnyIsNotWeakened) {
  for (uint32_t start : kStarts) {
    Cq cq(4, start);
    cq.consumer.Arm(true);
    EXPECT_EQ(cq.Bits(), shm::kArmSolicited);
    cq.consumer.Arm(false);
    EXPECT_EQ(cq.Bits(), shm::kArmAny);
    cq.consumer.Arm(true);
    EXPECT_EQ(cq.Bits(), shm::kArmAny) << "still unanswered";
    ASSERT_TRUE(cq.Push(1));
    cq.consumer.Arm(true);
    EXPECT_EQ(cq.Bits(), shm::kArmSolicited) << "answered by the entry, polled or not";
    cq.consumer.Arm(false);
    cq.consumer.Arm(true);
    EXPECT_EQ(cq.Bits(), shm::kArmAny) << "an entry from before the request is no answer";
    Poll(cq.consumer);
    cq.consumer.Arm(true);
    EXPECT_EQ(cq.Bits(), shm::kArmAny);
    ASSERT_TRUE(cq.Push(2));
    Poll(cq.consumer);
    cq.consumer.Arm(true);
    EXPECT_EQ(cq.Bits(), shm::kArmSolicited);
  }
}

// The NIC pushes, fences, reads `arm`; the client arms, fences, polls: one of them sees the other.
TEST(CompletionQueue, NoWakeUpIsLost) {
  constexpr uint64_t kValues = 50'000;
  Cq cq(8, static_cast<uint32_t>(0) - 1000);
  std::atomic<uint32_t> events{0};
  std::thread nic([&] {
    uint32_t fired = 0;
    for (uint64_t i = 0; i < kValues;) {
      if (!cq.Push(i)) {
        std::this_thread::yield();
        continue;
      }
      ++i;
      std::atomic_thread_fence(std::memory_order_seq_cst);
      uint32_t sequence = cq.producer.LoadArm() >> shm::kArmSequenceShift;
      if (sequence == fired) continue;
      fired = sequence;
      events.fetch_add(1);
    }
  });
  // Sleeps only after arming and an empty poll: were a wake-up lost, this would never end.
  uint32_t seen = 0;
  uint64_t next = 0;
  auto drain = [&] {
    bool any = false;
    for (uint64_t id = Poll(cq.consumer); id != ~uint64_t{0}; id = Poll(cq.consumer)) {
      ASSERT_EQ(id, next);
      ++next;
      any = true;
    }
    if (any) cq.consumer.Publish();
  };
  while (next < kValues) {
    cq.consumer.Arm(false);
    drain();
    if (next == kValues) break;
    while (events.load() == seen) std::this_thread::yield();
    ++seen;
    drain();
  }
  nic.join();
  EXPECT_EQ(next, kValues);
}

TEST(CompletionQueue, EntriesTakenOutLeaveTheOthersInOrder) {
  for (uint32_t start : kStarts) {
    Cq cq(8, start);
    for (uint64_t id = 0; id < 8; ++id) ASSERT_TRUE(cq.Push(id));
    cq.consumer.Remove([](const shm::Cqe& cqe) { return cqe.wr_id % 3 == 0; });
    for (uint64_t id : {1, 2, 4}) {
      const shm::Cqe* cqe = cq.consumer.Peek();
      ASSERT_NE(cqe, nullptr);
      EXPECT_EQ(cqe->wr_id, id);
      cq.consumer.Consume();
    }
    cq.consumer.Publish();
    // Room for what was taken out and what was polled, and no more.
    for (uint64_t id = 8; id < 14; ++id) EXPECT_TRUE(cq.Push(id));
    EXPECT_FALSE(cq.Push(14));
    cq.consumer.Remove([](const shm::Cqe& cqe) { return cqe.wr_id != 7; });
    ASSERT_NE(cq.consumer.Peek(), nullptr);
    EXPECT_EQ(cq.consumer.Peek()->wr_id, 7u);
    cq.consumer.Consume();
    EXPECT_EQ(cq.consumer.Peek(), nullptr);
    cq.consumer.Publish();
    EXPECT_TRUE(cq.Push(15));
    ASSERT_NE(cq.consumer.Peek(), nullptr);
    EXPECT_EQ(cq.consumer.Peek()->wr_id, 15u);
  }
}

}  // namespace
}  // namespace verbena
