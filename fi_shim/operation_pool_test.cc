#include <gtest/gtest.h>

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
