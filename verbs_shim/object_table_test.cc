#include "verbs_shim/object_table.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace verbena::verbs {
namespace {

class ObjectTableTest : public testing::Test {
 protected:
  ~ObjectTableTest() override { table.Destroy(); }
  ObjectTable table;
  int a = 0, b = 0;
};

TEST_F(ObjectTableTest, FindsWhatWasAdded) {
  uint64_t first = table.Add(ObjectKind::kCq, &a);
  uint64_t second = table.Add(ObjectKind::kQp, &b);
  EXPECT_NE(first, 0u);
  EXPECT_NE(first, second);
  EXPECT_EQ(table.Lookup(ObjectKind::kCq, first), &a);
  EXPECT_EQ(table.Lookup(ObjectKind::kQp, second), &b);
}

TEST_F(ObjectTableTest, AnotherKindIsNotFound) {
  uint64_t cookie = table.Add(ObjectKind::kCq, &a);
  EXPECT_EQ(table.Lookup(ObjectKind::kQp, cookie), nullptr);
  EXPECT_EQ(table.Lookup(ObjectKind::kFree, cookie), nullptr);
}

TEST_F(ObjectTableTest, AStaleCookieNeverNamesTheNextObject) {
  uint64_t cookie = table.Add(ObjectKind::kCq, &a);
  for (int i = 0; i < 1000; ++i) {
    table.Remove(cookie);
    EXPECT_EQ(table.Lookup(ObjectKind::kCq, cookie), nullptr);
    uint64_t next = table.Add(ObjectKind::kCq, &b);
    EXPECT_NE(next, cookie);
    EXPECT_EQ(table.Lookup(ObjectKind::kCq, cookie), nullptr);
    EXPECT_EQ(table.Lookup(ObjectKind::kCq, next), &b);
    cookie = next;
  }
}

TEST_F(ObjectTableTest, RemovingTwiceIsHarmless) {
  uint64_t cookie = table.Add(ObjectKind::kCq, &a);
  table.Remove(cookie);
  uint64_t next = table.Add(ObjectKind::kCq, &b);
  table.Remove(cookie);
  EXPECT_EQ(table.Lookup(ObjectKind::kCq, next), &b);
}

TEST_F(ObjectTableTest, GrowsAndKeepsEveryCookie) {
  std::vector<int> objects(5000);
  std::vector<uint64_t> cookies;
  for (int& object : objects) cookies.push_back(table.Add(ObjectKind::kQp, &object));
  EXPECT_EQ(std::set<uint64_t>(cookies.begin(), cookies.end()).size(), objects.size());
  for (size_t i = 0; i < objects.size(); ++i) {
    EXPECT_EQ(table.Lookup(ObjectKind::kQp, cookies[i]), &objects[i]);
  }
}

TEST_F(ObjectTableTest, NonsenseIsNotFound) {
  table.Add(ObjectKind::kCq, &a);
  for (uint64_t cookie : {uint64_t{0}, ~uint64_t{0}, uint64_t{64}, uint64_t{1} << 32}) {
    EXPECT_EQ(table.Lookup(ObjectKind::kCq, cookie), nullptr) << cookie;
    table.Remove(cookie);
  }
}

}  // namespace
}  // namespace verbena::verbs
