#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "fi_shim/endpoint.h"

namespace verbena::fi {
namespace {

TEST(OperationPool, HasAsManyAsWereAskedFor) {
  OperationPool pool;
  ASSERT_EQ(pool.Init(nullptr, nullptr, 3), 0);
  Operation* first = pool.Take();
  ASSERT_NE(first, nullptr);
  ASSERT_NE(pool.Take(), nullptr);
  ASSERT_NE(pool.Take(), nullptr);
  EXPECT_EQ(pool.Take(), nullptr);
  EXPECT_EQ(pool.taken(), 3u);
  pool.Give(first);
  EXPECT_EQ(pool.taken(), 2u);
  EXPECT_EQ(pool.Take(), first);
}

TEST(OperationPool, FindsTheOldestWhateverPlaceItHas) {
  OperationPool pool;
  ASSERT_EQ(pool.Init(nullptr, nullptr, 3), 0);
  Operation* a = pool.Take();
  Operation* b = pool.Take();
  pool.Give(a);
  Operation* again = pool.Take();  // the place of a, after b
  EXPECT_EQ(again, a);
  EXPECT_EQ(pool.Oldest(), b);
  pool.Give(b);
  EXPECT_EQ(pool.Oldest(), again);
  pool.Give(again);
  EXPECT_EQ(pool.Oldest(), nullptr);
}

TEST(OperationPool, WhatTheNicHasDoneIsNobodysOldest) {
  OperationPool pool;
  ASSERT_EQ(pool.Init(nullptr, nullptr, 2), 0);
  Operation* a = pool.Take();
  Operation* b = pool.Take();
  a->is_done = true;
  EXPECT_EQ(pool.Oldest(), b);
  pool.Give(a);
  EXPECT_EQ(pool.Take(), a);
  EXPECT_FALSE(a->is_done);
}

// In the order of posting, whatever order their places have: what is taken meanwhile comes last.
TEST(OperationPool, TheOldestOfManyComeInTheOrderOfPosting) {
  constexpr size_t kCount = 1'000;
  OperationPool pool;
  ASSERT_EQ(pool.Init(nullptr, nullptr, kCount), 0);
  uint32_t random = 1;
  const auto next = [&random] { return random = random * 1664525 + 1013904223; };
  std::set<Operation*> mixed;  // by address
  for (size_t i = 0; i < kCount; ++i) mixed.insert(pool.Take());
  std::vector<Operation*> order(mixed.begin(), mixed.end());
  for (size_t i = kCount - 1; i != 0; --i) std::swap(order[i], order[(next() >> 8) % (i + 1)]);
  for (Operation* operation : order) pool.Give(operation);
  std::deque<Operation*> model;
  for (size_t i = 0; i < kCount; ++i) model.push_back(pool.Take());
  for (uint32_t step = 0; !model.empty(); ++step) {
    ASSERT_EQ(pool.Oldest(), model.front());
    switch ((next() >> 16) % 5) {
      case 0: {  // another thread gives back one of the middle, and has its place again
        const size_t index = (next() >> 8) % model.size();
        pool.Give(model[index]);
        model.erase(model.begin() + static_cast<std::ptrdiff_t>(index));
        if (step < 2 * kCount) model.push_back(pool.Take());
        break;
      }
      case 1:
        model.front()->is_done = true;
        model.pop_front();
        break;
      default:
        pool.Give(model.front());
        model.pop_front();
    }
  }
  EXPECT_EQ(pool.Oldest(), nullptr);
}

// A scan of all for each would take a minute.
TEST(OperationPool, ManyAreFlushedOneByOne) {
  constexpr size_t kCount = 200'000;
  OperationPool pool;
  ASSERT_EQ(pool.Init(nullptr, nullptr, kCount), 0);
  for (size_t i = 0; i < kCount; ++i) ASSERT_NE(pool.Take(), nullptr);
  for (uint64_t i = 0; i < kCount; ++i) {
    Operation* oldest = pool.Oldest();
    ASSERT_NE(oldest, nullptr);
    ASSERT_EQ(oldest->sequence, i);
    pool.Give(oldest);
  }
  EXPECT_EQ(pool.Oldest(), nullptr);
}

TEST(OperationPool, FindsByContextTheOneThatWasPostedFirst) {
  OperationPool pool;
  ASSERT_EQ(pool.Init(nullptr, nullptr, 4), 0);
  int context, other;
  Operation* a = pool.Take();
  a->context = &other;
  Operation* b = pool.Take();
  b->context = &context;
  Operation* c = pool.Take();
  c->context = &context;
  EXPECT_EQ(pool.Find(&context), b);
  pool.Give(b);
  EXPECT_EQ(pool.Find(&context), c);
  pool.Give(c);
  EXPECT_EQ(pool.Find(&context), nullptr);
}

// Some contexts are several operations'. What is found is what a scan would find.
TEST(OperationPool, FindsAmongManyWhatIsTakenNow) {
  constexpr size_t kCount = 300, kContexts = 200;
  char contexts[kContexts];
  OperationPool pool;
  ASSERT_EQ(pool.Init(nullptr, nullptr, kCount), 0);
  std::vector<Operation*> model;  // in the order of posting
  std::vector<Operation*> done;
  uint32_t random = 1;
  const auto next = [&random] { return (random = random * 1664525 + 1013904223) >> 8; };
  for (int step = 0; step < 100'000; ++step) {
    const void* context = &contexts[next() % kContexts];
    // Times when all is posted, and times when nothing is.
    if (next() % 8 < ((step / 2'000) % 2 == 0 ? 5u : 2u)) {
      Operation* taken = pool.Take();
      if (taken == nullptr) continue;
      taken->context = const_cast<void*>(context);
      model.push_back(taken);
      continue;
    }
    const auto expected = std::find_if(model.begin(), model.end(), [context](auto* operation) {
      return operation->context == context;
    });
    Operation* found = pool.Find(context);
    ASSERT_EQ(found, expected == model.end() ? nullptr : *expected) << step;
    if (found == nullptr) continue;
    const uint32_t what = next() % 8;
    if (what == 0) continue;
    if (what == 1) {  // its last message is under way
      found->is_done = true;
      done.push_back(found);
    } else {
      pool.Give(found);
    }
    model.erase(expected);
    if (done.size() < 20) continue;
    for (Operation* operation : done) pool.Give(operation);
    done.clear();
  }
}

// In any order, or of one context: scans would take minutes.
TEST(OperationPool, ManyAreCancelledOneByOne) {
  constexpr size_t kCount = 200'000;
  std::vector<char> contexts(kCount);
  for (const int way : {0, 1, 2}) {
    OperationPool pool;
    ASSERT_EQ(pool.Init(nullptr, nullptr, kCount), 0);
    for (size_t i = 0; i < kCount; ++i) pool.Take()->context = &contexts[way == 2 ? 0 : i];
    for (size_t i = 0; i < kCount; ++i) {
      const size_t wanted = way == 0 ? i : kCount - 1 - i;
      Operation* found = pool.Find(&contexts[way == 2 ? 0 : wanted]);
      ASSERT_NE(found, nullptr);
      ASSERT_EQ(found->sequence, way == 2 ? i : wanted);
      pool.Give(found);
    }
    EXPECT_EQ(pool.Find(contexts.data()), nullptr);
  }
}

TEST(OperationPool, SharesWhatSeveralHaveTogether) {
  TransmitCredits credits;
  credits.limit = 3;
  OperationPool first;
  ASSERT_EQ(first.Init(nullptr, nullptr, 3), 0);
  first.Share(&credits);
  Operation* one = first.Take();
  {
    OperationPool second;
    ASSERT_EQ(second.Init(nullptr, nullptr, 3), 0);
    second.Share(&credits);
    ASSERT_NE(second.Take(), nullptr);
    ASSERT_NE(second.Take(), nullptr);
    EXPECT_EQ(second.Take(), nullptr) << "one of its own is left";
    EXPECT_EQ(first.Take(), nullptr);
    first.Give(one);
    one = first.Take();
    ASSERT_NE(one, nullptr);
  }
  EXPECT_EQ(credits.taken, 1u) << "what a pool had goes with it";
  EXPECT_NE(first.Take(), nullptr);
}

}  // namespace
}  // namespace verbena::fi
