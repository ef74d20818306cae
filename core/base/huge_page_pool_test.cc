#include "core/base/huge_page_pool.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace verbena {
namespace {

bool IsAligned(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % 64 == 0; }

TEST(HugePagePoolTest, PiecesAreApartAndAlignedOverManyBlocks) {
  constexpr size_t kBytes = 3000;
  constexpr int kCount = 3000;  // of 3008 bytes: more than four blocks
  std::vector<unsigned char*> pieces;
  for (int i = 0; i < kCount; ++i) {
    pieces.push_back(static_cast<unsigned char*>(AllocateOnHugePages(kBytes)));
    ASSERT_TRUE(IsAligned(pieces.back()));
    std::memset(pieces.back(), i & 0xff, kBytes);
  }
  for (int i = 0; i < kCount; ++i) {
    for (size_t at = 0; at < kBytes; ++at) ASSERT_EQ(pieces[i][at], i & 0xff) << i;
    FreeOnHugePages(pieces[i], kBytes);
  }
}

TEST(HugePagePoolTest, SizesOfTheHeapWorkToo) {
  for (size_t bytes : {size_t{1}, size_t{64}, size_t{65}, size_t{16 << 10}, size_t{1 << 20}}) {
    void* memory = AllocateOnHugePages(bytes);
    EXPECT_TRUE(IsAligned(memory));
    std::memset(memory, 0xa5, bytes);
    FreeOnHugePages(memory, bytes);
  }
  FreeOnHugePages(nullptr, 64);
}

struct Base {
  virtual ~Base() = default;
};
struct Big final : Base, OnHugePages {
  char bytes[5000];
};

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(HugePagePoolTest, WhatIsFreedServesTheNextOfItsSize) {
  std::vector<void*> first, second;
  for (int i = 0; i < 100; ++i) first.push_back(AllocateOnHugePages(777));
  for (void* memory : first) FreeOnHugePages(memory, 777);
  for (int i = 0; i < 100; ++i) second.push_back(AllocateOnHugePages(777));
  EXPECT_TRUE(std::is_permutation(first.begin(), first.end(), second.begin(), second.end()));
  for (void* memory : second) FreeOnHugePages(memory, 777);
}

TEST(HugePagePoolTest, AnObjectDeletedAsItsBaseGoesBack) {
  std::unique_ptr<Base> one = std::make_unique<Big>();
  void* place = one.get();
  one.reset();
  auto two = std::make_unique<Big>();
  EXPECT_EQ(static_cast<Base*>(two.get()), place);
}
#endif

}  // namespace
}  // namespace verbena
