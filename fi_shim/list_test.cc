#include "fi_shim/list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>

namespace verbena::fi {
namespace {

TEST(Queue, GivesBackInTheOrderOfPushing) {
  Queue<int> queue;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(queue.Push(i));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(queue.First(), i);
    queue.RemoveFirst();
  }
  EXPECT_EQ(queue.size(), 0u);
  ASSERT_TRUE(queue.Push(7));
  EXPECT_EQ(queue.First(), 7);
}

// However full it is when something goes, and whatever comes in between.
TEST(Queue, IsLikeADeque) {
  Queue<uint32_t> queue;
  std::deque<uint32_t> model;
  uint32_t random = 1;
  for (uint32_t step = 0; step < 20'000; ++step) {
    random = random * 1664525 + 1013904223;
    const bool grows = (step / 500) % 2 == 0;
    if ((random >> 16) % 8 < (grows ? 5u : 3u)) {
      ASSERT_TRUE(queue.Push(step));
      model.push_back(step);
    } else if (!model.empty()) {
      ASSERT_EQ(queue.First(), model.front());
      queue.RemoveFirst();
      model.pop_front();
    }
    if (!model.empty() && step % 7 == 0) {
      const size_t at = random % model.size();
      queue.RemoveAt(at);
      model.erase(model.begin() + static_cast<std::ptrdiff_t>(at));
    }
    ASSERT_EQ(queue.size(), model.size());
    if (step % 512 == 0) {
      ASSERT_TRUE(std::equal(queue.begin(), queue.end(), model.begin(), model.end()));
    }
  }
}

// What is in the way of none is not moved: a quadratic one would take minutes.
TEST(Queue, ManyAreReadOneByOne) {
  struct Large {
    size_t number;
    char rest[312];
  };
  constexpr size_t kCount = 200'000;
  Queue<Large> queue;
  for (size_t i = 0; i < kCount; ++i) ASSERT_TRUE(queue.Push({i, {}}));
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(queue.First().number, i);
    queue.RemoveFirst();
  }
}

// One that is never empty does not grow without an end.
TEST(Queue, UsesThePlaceOfThoseThatAreGone) {
  Queue<size_t> queue;
  for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(queue.Push(i));
  const size_t* lowest = queue.begin();
  const size_t* highest = queue.begin();
  for (size_t i = 0; i < 1'000; ++i) {
    ASSERT_TRUE(queue.Push(i + 3));
    EXPECT_EQ(queue.First(), i);
    queue.RemoveFirst();
    if (i == 10) lowest = highest = queue.begin();
    if (i < 10) continue;
    lowest = std::min<const size_t*>(lowest, queue.begin());
    highest = std::max<const size_t*>(highest, queue.begin());
  }
  EXPECT_LE(highest - lowest, 8);
}

}  // namespace
}  // namespace verbena::fi
