#include "core/ring/work_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

namespace verbena {
namespace {

using Peek = WorkQueueConsumer::Peek;

constexpr uint32_t kStride = 32;
// Around the wrap of the 32-bit index, and a plain one.
constexpr uint32_t kStarts[] = {0, 0xffff'fffcu, 0xffff'ffffu};

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};

// A queue's memory and both of its ends.
struct Queue {
  Queue(uint32_t entries, uint32_t limit, uint32_t start)
      : bytes(WorkQueueBytes(entries, kStride)),
        base(std::aligned_alloc(64, (bytes + 63) / 64 * 64)),
        memory(base.get(), bytes) {
    std::memset(base.get(), 0, bytes);
    producer = WorkQueueProducer(memory, entries, kStride, limit);
    consumer = WorkQueueConsumer(memory, entries, kStride);
    producer.Reset(start);
    consumer.Reset(start);
  }
  // What a hostile client writes.
  void ClaimProducer(uint32_t index) {
    memory.StoreRelease(offsetof(shm::WorkQueueHead, producer), index);
  }

  uint64_t bytes;
  std::unique_ptr<void, FreeDeleter> base;
  RingMemory memory;
  WorkQueueProducer producer;
  WorkQueueConsumer consumer;
};

bool Post(Queue& queue, uint64_t value) {
  void* entry = queue.producer.Reserve();
  if (entry == nullptr) return false;
  std::memcpy(entry, &value, sizeof(value));
  return true;
}

enum class Op { kPost, kPostTwo, kAbort, kFetch, kRelease, kCount };

// The queue as it should behave: values posted and not fetched, and how many slots are taken.
struct Model {
  uint32_t limit;
  std::deque<uint64_t> waiting;
  uint32_t fetched = 0;
  uint64_t next = 1;

  uint32_t taken() const { return static_cast<uint32_t>(waiting.size()) + fetched; }
};

void PostOne(Queue& queue, Model& model) {
  bool fits = model.taken() < model.limit;
  ASSERT_EQ(Post(queue, model.next), fits);
  if (fits) model.waiting.push_back(model.next++);
}

void Apply(Op op, Queue& queue, Model& model) {
  switch (op) {
    case Op::kPostTwo:
      PostOne(queue, model);
      [[fallthrough]];
    case Op::kPost:
      PostOne(queue, model);
      queue.producer.Publish();
      break;
    case Op::kAbort:
      if (Post(queue, ~uint64_t{0})) queue.producer.Unreserve(1);
      break;
    case Op::kFetch: {
      Peek expected = model.waiting.empty() ? Peek::kEmpty : Peek::kReady;
      ASSERT_EQ(queue.consumer.Available(), expected);
      if (model.waiting.empty()) break;
      uint64_t value = 0;
      queue.consumer.Fetch(&value, sizeof(value));
      queue.consumer.Advance();
      ASSERT_EQ(value, model.waiting.front());
      model.waiting.pop_front();
      ++model.fetched;
      break;
    }
    case Op::kRelease:
      if (model.fetched == 0) break;
      queue.consumer.Release(1);
      --model.fetched;
      break;
    case Op::kCount:
      break;
  }
}

// Every sequence of seven operations, on every small queue, from each start: the ends behave as a
// bounded FIFO whose slots are free again once released.
TEST(WorkQueue, EverySequenceIsABoundedFifo) {
  constexpr int kDepth = 7;
  constexpr auto kOps = static_cast<uint64_t>(Op::kCount);
  uint64_t sequences = 1;
  for (int i = 0; i < kDepth; ++i) sequences *= kOps;
  for (uint32_t entries : {1u, 2u, 4u}) {
    for (uint32_t limit : {entries, (entries + 1) / 2}) {
      for (uint32_t start : kStarts) {
        Queue queue(entries, limit, start);
        for (uint64_t s = 0; s < sequences; ++s) {
          queue.producer.Reset(start);
          queue.consumer.Reset(start);
          Model model = {.limit = limit, .waiting = {}};
          uint64_t rest = s;
          for (int i = 0; i < kDepth; ++i, rest /= kOps) {
            Apply(static_cast<Op>(rest % kOps), queue, model);
            ASSERT_FALSE(testing::Test::HasFatalFailure())
                << "entries " << entries << " limit " << limit << " start " << start << " sequence "
                << s << " step " << i;
          }
        }
      }
    }
  }
}

// Whatever the client claims: never more entries than the queue has, fetched and unreleased
// included; and an honest claim afterwards works again.
TEST(WorkQueue, EveryLieNearTheTruthIsRefused) {
  constexpr uint32_t kEntries = 4;
  for (uint32_t start : kStarts) {
    for (uint32_t fetched = 0; fetched <= kEntries; ++fetched) {
      for (uint32_t released = 0; released <= fetched; ++released) {
        for (int32_t lie = -20; lie <= 20; ++lie) {
          Queue queue(kEntries, kEntries, start);
          for (uint32_t i = 0; i < kEntries; ++i) ASSERT_TRUE(Post(queue, i));
          queue.producer.Publish();
          for (uint32_t i = 0; i < fetched; ++i) {
            ASSERT_EQ(queue.consumer.Available(), Peek::kReady);
            queue.consumer.Advance();
          }
          queue.consumer.Release(released);
          // The consumer looks at the claim only once what it saw before is used up.
          for (uint32_t i = fetched; i < kEntries && fetched > 0; ++i) queue.consumer.Advance();
          uint32_t at = queue.consumer.fetch_index();
          uint32_t claim = at + static_cast<uint32_t>(lie);
          queue.ClaimProducer(claim);
          uint32_t unreleased = claim - queue.consumer.release_index();
          Peek expected = Peek::kReady;
          if (lie < 0 || unreleased > kEntries) {
            expected = Peek::kInvalid;
          } else if (lie == 0) {
            expected = Peek::kEmpty;
          }
          ASSERT_EQ(queue.consumer.Available(), expected)
              << "start " << start << " fetched " << fetched << " released " << released << " lie "
              << lie;
          ASSERT_EQ(queue.consumer.fetch_index(), at) << "a claim moves nothing";
          queue.ClaimProducer(at);
          if (expected != Peek::kReady) {
            ASSERT_EQ(queue.consumer.Available(), Peek::kEmpty);
          }
        }
      }
    }
  }
}

TEST(WorkQueue, ExtremeLies) {
  for (uint32_t start : kStarts) {
    Queue queue(8, 8, start);
    for (uint32_t distance : {9u, 0x7fff'ffffu, 0x8000'0000u, 0xffff'fff8u, 0xffff'ffffu}) {
      queue.ClaimProducer(start + distance);
      EXPECT_EQ(queue.consumer.Available(), Peek::kInvalid) << distance;
    }
    queue.ClaimProducer(start + 8);
    EXPECT_EQ(queue.consumer.Available(), Peek::kReady);
    EXPECT_EQ(queue.consumer.Waiting(), 8u);
  }
}

// A full queue is full even if its entry count and the index range meet at the wrap.
TEST(WorkQueue, ReserveFailsBeforeAnythingIsOverwritten) {
  Queue queue(2, 2, 0xffff'ffffu);
  EXPECT_TRUE(Post(queue, 1));
  EXPECT_TRUE(Post(queue, 2));
  EXPECT_EQ(queue.producer.Reserve(), nullptr);
  queue.producer.Publish();
  EXPECT_EQ(queue.producer.Reserve(), nullptr);
  ASSERT_EQ(queue.consumer.Available(), Peek::kReady);
  uint64_t value = 0;
  queue.consumer.FetchAt(0, &value, sizeof(value));
  EXPECT_EQ(value, 1u);
  queue.consumer.Advance();
  EXPECT_EQ(queue.producer.Reserve(), nullptr) << "fetched, not released";
  queue.consumer.Release(1);
  EXPECT_TRUE(Post(queue, 3));
}

TEST(WorkQueue, UnpublishedEntriesAreUnseen) {
  Queue queue(4, 4, 0xffff'fffeu);
  EXPECT_TRUE(Post(queue, 1));
  EXPECT_TRUE(Post(queue, 2));
  EXPECT_EQ(queue.consumer.Available(), Peek::kEmpty);
  queue.producer.Unreserve(1);
  queue.producer.Publish();
  EXPECT_EQ(queue.consumer.Waiting(), 1u);
}

TEST(WorkQueue, AGlanceTakesNothing) {
  for (uint32_t start : kStarts) {
    Queue queue(4, 4, start);
    uint64_t value = 0;
    EXPECT_FALSE(queue.consumer.Glance(&value, sizeof(value)));
    ASSERT_TRUE(Post(queue, 7));
    EXPECT_FALSE(queue.consumer.Glance(&value, sizeof(value))) << "not published";
    queue.producer.Publish();
    ASSERT_TRUE(queue.consumer.Glance(&value, sizeof(value)));
    EXPECT_EQ(value, 7u);
    EXPECT_EQ(queue.consumer.Waiting(), 1u);
    ASSERT_EQ(queue.consumer.Available(), Peek::kReady);
    queue.consumer.Advance();
    EXPECT_FALSE(queue.consumer.Glance(&value, sizeof(value)));
  }
  uint64_t value = 0;
  EXPECT_FALSE(WorkQueueConsumer().Glance(&value, sizeof(value))) << "a queue without memory";
  Queue queue(4, 4, 0);
  WorkQueueConsumer staged(queue.memory, 4, kStride, true);
  queue.ClaimProducer(1);
  EXPECT_FALSE(staged.Glance(&value, sizeof(value))) << "the entry is elsewhere still";
}

// A lie has it look at some entry of the queue, and no further.
TEST(WorkQueue, AGlanceStaysInTheQueue) {
  Queue queue(4, 4, 0xffff'ffffu);
  queue.ClaimProducer(0x7fff'ffff);
  std::array<std::byte, kStride> out;
  EXPECT_TRUE(queue.consumer.Glance(out.data(), kStride));
}

// Resizing keeps what waits, in order, whichever size it becomes and wherever the indices stand.
TEST(WorkQueue, MoveKeepsWhatWaits) {
  for (uint32_t start : kStarts) {
    for (uint32_t from : {1u, 2u, 4u, 8u}) {
      for (uint32_t to : {1u, 2u, 4u, 16u}) {
        for (uint32_t waiting = 0; waiting <= from; ++waiting) {
          Queue old_queue(from, from, start);
          Queue new_queue(to, to, 0);
          for (uint32_t i = 0; i < waiting; ++i) ASSERT_TRUE(Post(old_queue, 100 + i));
          old_queue.producer.Publish();
          bool fits = waiting <= to;
          ASSERT_EQ(old_queue.consumer.MoveTo(new_queue.consumer), fits);
          if (!fits) continue;
          old_queue.producer.MoveTo(new_queue.memory, to, to);
          for (uint32_t i = waiting; i < to; ++i) ASSERT_TRUE(Post(old_queue, 100 + i));
          ASSERT_EQ(old_queue.producer.Reserve(), nullptr);
          old_queue.producer.Publish();
          for (uint32_t i = 0; i < to; ++i) {
            ASSERT_EQ(new_queue.consumer.Available(), Peek::kReady);
            uint64_t value = 0;
            new_queue.consumer.Fetch(&value, sizeof(value));
            ASSERT_EQ(value, 100 + i);
            new_queue.consumer.Advance();
            new_queue.consumer.Release(1);
          }
          ASSERT_EQ(new_queue.consumer.Available(), Peek::kEmpty);
        }
      }
    }
  }
}

TEST(WorkQueue, MoveRefusesALie) {
  Queue old_queue(4, 4, 7);
  Queue new_queue(64, 64, 0);
  old_queue.ClaimProducer(7 + 5);
  EXPECT_FALSE(old_queue.consumer.MoveTo(new_queue.consumer));
  old_queue.ClaimProducer(6);
  EXPECT_FALSE(old_queue.consumer.MoveTo(new_queue.consumer));
}

TEST(WorkQueue, TwoThreadsAcrossTheWrap) {
  constexpr uint64_t kValues = 200'000;
  Queue queue(8, 8, static_cast<uint32_t>(0) - 100'000);
  std::thread client([&] {
    for (uint64_t i = 0; i < kValues;) {
      if (Post(queue, i)) {
        queue.producer.Publish();
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < kValues;) {
    Peek peek = queue.consumer.Available();
    if (peek != Peek::kReady) {
      wrong += peek == Peek::kInvalid ? 1 : 0;
      std::this_thread::yield();
      continue;
    }
    uint64_t value = ~uint64_t{0};
    queue.consumer.Fetch(&value, sizeof(value));
    queue.consumer.Advance();
    queue.consumer.Release(1);
    wrong += value == i++ ? 0 : 1;
  }
  client.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(WorkQueue, TheClientRingsWhenItIsAskedTo) {
  Queue queue(4, 4, 0);
  EXPECT_FALSE(queue.producer.WantsDoorbell());
  queue.consumer.AskForDoorbells(true);
  EXPECT_TRUE(queue.producer.WantsDoorbell());
  queue.consumer.AskForDoorbells(false);
  EXPECT_FALSE(queue.producer.WantsDoorbell());
}

// Either the client sees that it has to ring, or the NIC sees what it published.
TEST(WorkQueue, NothingIsPublishedUnseenWhileTheNicBeginsToAsk) {
  for (int round = 0; round < 2000; ++round) {
    Queue queue(4, 4, 0);
    std::atomic<int> ready{0};
    bool rings = false;
    std::thread client([&] {
      ready.fetch_add(1);
      while (ready.load() < 2) {
      }
      Post(queue, 1);
      queue.producer.Publish();
      rings = queue.producer.WantsDoorbell();
    });
    ready.fetch_add(1);
    while (ready.load() < 2) {
    }
    queue.consumer.AskForDoorbells(true);
    const bool is_seen = queue.consumer.Available() == Peek::kReady;
    client.join();
    ASSERT_TRUE(rings || is_seen) << "round " << round;
  }
}

}  // namespace
}  // namespace verbena
