#include "verbs_shim/post_order.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <thread>
#include <vector>

namespace verbena::verbs {
namespace {

struct Deleter {
  void operator()(PostOrder* order) const { PostOrder::Free(order); }
};

class PostOrderTest : public testing::Test {
 protected:
  struct Lines {
    char qp, head, entry;
  };
  PostLines LinesOf(uint32_t number) {
    Lines& lines = lines_[number % lines_.size()];
    return {&lines.qp, &lines.head, &lines.entry};
  }
  // Posts to a QP; which one's lines are named then, or -1: none are known.
  int Post(uint32_t number) {
    const PostLines next = order_->OnPost(number, LinesOf(number));
    next.Expect();  // whatever it is
    if (next.qp == nullptr) return -1;
    for (uint32_t i = 0; i < lines_.size(); ++i) {
      const PostLines its = LinesOf(i);
      if (its.qp != next.qp) continue;
      EXPECT_EQ(next.head, its.head);
      EXPECT_EQ(next.entry, its.entry);
      return static_cast<int>(i);
    }
    ADD_FAILURE() << "lines of no QP";
    return -1;
  }
  std::vector<int> PostTo(const std::vector<uint32_t>& numbers) {
    std::vector<int> named;
    for (uint32_t number : numbers) named.push_back(Post(number));
    return named;
  }

  std::array<Lines, 8> lines_{};
  std::unique_ptr<PostOrder, Deleter> order_{PostOrder::Make()};
};

TEST_F(PostOrderTest, NamesTheOneAfterTheNextOfTheLapBefore) {
  ASSERT_NE(order_, nullptr);
  PostTo({1, 2, 3, 4, 5, 1, 2});
  EXPECT_EQ(PostTo({3, 4, 5, 1, 2}), (std::vector<int>{5, 1, 2, 3, 4}));
  // Another way from there, and from then on that.
  PostTo({5, 3, 1, 4, 2, 5, 3});
  EXPECT_EQ(PostTo({1, 4, 2, 5, 3}), (std::vector<int>{2, 5, 3, 1, 4}));
}

// Also where there was another before it: sooner or later at the same address.
TEST_F(PostOrderTest, KnowsNothingOfWhatIsNew) {
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(PostTo({3, 4, 5}), (std::vector<int>{3, -1, -1}));
    order_.reset();
    order_.reset(PostOrder::Make());
    ASSERT_NE(order_, nullptr);
  }
}

TEST_F(PostOrderTest, TheSameQpAgainIsAnOrderToo) {
  PostTo({6, 6, 6});
  EXPECT_EQ(Post(6), 6);
}

TEST_F(PostOrderTest, ThreadsHaveTheirOwn) {
  PostTo({1, 2, 3, 1, 2});
  std::thread([this] {
    PostTo({4, 5, 6, 4, 5});
    EXPECT_EQ(PostTo({6, 4, 5}), (std::vector<int>{5, 6, 4}));
  }).join();
  EXPECT_EQ(PostTo({3, 1, 2}), (std::vector<int>{2, 3, 1})) << "as before the other's";
}

// What a thread recalls of another context says nothing.
TEST_F(PostOrderTest, AnotherOrderBeginsAnew) {
  PostTo({1, 2, 3, 1, 2, 3});
  std::unique_ptr<PostOrder, Deleter> first = std::move(order_);
  order_.reset(PostOrder::Make());
  EXPECT_EQ(PostTo({2, 3}), (std::vector<int>{2, -1}));
}

TEST_F(PostOrderTest, TakesAnyNumber) {
  PostTo({0, 0xffff'ffff, 0x8000'0001, 0, 0xffff'ffff});
  EXPECT_EQ(Post(0x8000'0001), 7);
}

}  // namespace
}  // namespace verbena::verbs
