#include "softnic/device/tables.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "core/base/psn.h"
#include "softnic/device/intrusive_list.h"
#include "softnic/device/timer_heap.h"

namespace verbena::softnic {
namespace {

TEST(HandleTable, StaleHandleIsNeverTakenForANewObject) {
  HandleTable<int> table;
  std::set<shm::Handle> seen;
  // More reuses than a slot has generations: the slot retires, and its handles stay dead.
  for (int i = 0; i < 10'000; ++i) {
    shm::Handle handle = table.Insert(std::make_unique<int>(i));
    EXPECT_TRUE(seen.insert(handle).second);
    EXPECT_NE(handle, 0u);
    EXPECT_EQ(*table.Find(handle), i);
    table.Remove(handle);
    EXPECT_EQ(table.Find(handle), nullptr);
  }
  for (shm::Handle handle : seen) EXPECT_EQ(table.Find(handle), nullptr);
}

TEST(HandleTable, AnyValueMayBeLookedUp) {
  HandleTable<int> table;
  shm::Handle handle = table.Insert(std::make_unique<int>(7));
  for (shm::Handle wrong : {0u, 1u, 0xffff'ffffu, handle + 1, handle + (1u << 20)}) {
    EXPECT_EQ(table.Find(wrong), nullptr) << wrong;
  }
}

TEST(HandleTable, ForEachAllowsRemovalOfTheVisited) {
  HandleTable<int> table;
  std::vector<shm::Handle> handles;
  for (int i = 0; i < 5; ++i) handles.push_back(table.Insert(std::make_unique<int>(i)));
  int visited = 0;
  table.ForEach([&](int& value) {
    table.Remove(handles[value]);
    ++visited;
  });
  EXPECT_EQ(visited, 5);
  EXPECT_EQ(table.size(), 0u);
}

TEST(KeyTable, ReusedIndexHasANewKeyByte) {
  KeyTable<int> table;
  int a = 0, b = 0;
  uint32_t first = table.Allocate(&a);
  EXPECT_NE(first >> 8, 0u);  // index 0 is no key
  table.Free(first);
  uint32_t second = table.Allocate(&b);
  EXPECT_EQ(first >> 8, second >> 8);
  EXPECT_NE(first, second);
  EXPECT_EQ(table.Find(first), nullptr);
  EXPECT_EQ(table.Find(second), &b);
}

TEST(KeyTable, FreedIndexRestsWhileOthersAreFree) {
  KeyTable<int> table;
  int region = 0;
  uint32_t a = table.Allocate(&region);
  uint32_t b = table.Allocate(&region);
  table.Free(a);
  table.Free(b);
  EXPECT_EQ(table.Allocate(&region) >> 8, a >> 8);  // the one freed first
  EXPECT_EQ(table.Allocate(&region) >> 8, b >> 8);
}

TEST(QpnTable, NumberOfADestroyedQpComesBackLate) {
  QpnTable<int> table;
  int qp = 0;
  std::set<uint32_t> seen;
  for (int i = 0; i < 128; ++i) {
    Qpn qpn = table.Allocate(&qp);
    EXPECT_TRUE(seen.insert(qpn.value).second);
    EXPECT_LE(qpn.value, Psn::kMask);
    table.Free(qpn);
    EXPECT_EQ(table.Find(qpn), nullptr);
  }
}

TEST(QpnTable, FillsUpWithoutTheReservedNumbers) {
  QpnTable<int> table;
  int qp = 0;
  for (uint32_t i = 0; i < QpnTable<int>::kCapacity; ++i) {
    Qpn qpn = table.Allocate(&qp);
    ASSERT_GE(qpn.value, QpnTable<int>::kFirstIndex);
    ASSERT_NE(qpn, kMulticastQpn);
  }
  EXPECT_EQ(table.Allocate(&qp), Qpn{0});
}

TEST(CookieTable, RecordIsTakenOnce) {
  CookieTable<int> table;
  uint64_t cookie = table.Insert(3);
  int value = 0;
  EXPECT_TRUE(table.Take(cookie, &value));
  EXPECT_EQ(value, 3);
  EXPECT_FALSE(table.Take(cookie, &value));
  uint64_t next = table.Insert(4);
  EXPECT_NE(next, cookie);
  EXPECT_FALSE(table.Take(cookie, &value));
  EXPECT_EQ(table.Find(cookie), nullptr);
  EXPECT_EQ(*table.Find(next), 4);
}

struct Item {
  explicit Item(int n) : number(n), hook(this) {}
  int number;
  ListHook<Item> hook;
};

TEST(IntrusiveList, KeepsOrderAndLetsElementsLeave) {
  Item a(1), b(2), c(3);
  IntrusiveList<Item> list;
  list.PushBack(a.hook);
  list.PushBack(b.hook);
  list.PushBack(c.hook);
  b.hook.Unlink();
  b.hook.Unlink();  // again is nothing
  EXPECT_EQ(list.PopFront(), &a);
  EXPECT_EQ(list.PopFront(), &c);
  EXPECT_EQ(list.PopFront(), nullptr);
}

TEST(TimerHeap, FiresInOrderOfTimeThenSetting) {
  TimerHeap heap;
  int marks[3];
  Timer late(&marks[0]), early(&marks[1]), also_early(&marks[2]);
  heap.Set(late, Instant{20});
  heap.Set(early, Instant{10});
  heap.Set(also_early, Instant{10});
  EXPECT_EQ(heap.Earliest(), &early);
  heap.Remove(early);
  EXPECT_EQ(heap.Earliest(), &also_early);
  heap.Set(also_early, Instant{30});  // moved
  EXPECT_EQ(heap.Earliest(), &late);
  heap.Remove(late);
  heap.Remove(late);
  heap.Remove(also_early);
  EXPECT_EQ(heap.Earliest(), nullptr);
}

TEST(TimerHeap, AgreesWithASortedSetUnderRandomUse) {
  TimerHeap heap;
  std::mt19937 random(1);
  std::vector<std::unique_ptr<Timer>> timers;
  for (int i = 0; i < 100; ++i) timers.push_back(std::make_unique<Timer>(nullptr));
  std::set<std::pair<int64_t, int>> model;
  for (int step = 0; step < 20'000; ++step) {
    int i = static_cast<int>(random() % timers.size());
    Timer& timer = *timers[i];
    if (timer.IsSet()) model.erase({timer.deadline.ns, i});
    if (random() % 3 == 0) {
      heap.Remove(timer);
    } else {
      heap.Set(timer, Instant{static_cast<int64_t>(random() % 1'000)});
      model.insert({timer.deadline.ns, i});
    }
    ASSERT_EQ(heap.size(), model.size());
    if (!model.empty()) {
      ASSERT_EQ(heap.Earliest()->deadline.ns, model.begin()->first);
    }
  }
}

}  // namespace
}  // namespace verbena::softnic
