#include "fi_shim/av_table.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <vector>

#include "fi_shim/av_shared.h"

namespace verbena::fi {
namespace {

SockAddress At(uint32_t host, uint16_t port) {
  SockAddress address = {};
  address.in.sin_family = AF_INET;
  address.in.sin_addr.s_addr = htonl(0x7f000000 + host);
  address.in.sin_port = htons(port);
  return address;
}

class AvTableTest : public ::testing::Test {
 protected:
  AvTableTest() { table_.SetStore(&store_); }
  uint64_t Insert(const SockAddress& address) {
    uint64_t number = FI_ADDR_NOTAVAIL;
    EXPECT_EQ(table_.Insert(address, &number), 0);
    return number;
  }

  PrivateAvStore store_;
  AvTable table_;
};

TEST_F(AvTableTest, NumbersFollowEachOther) {
  for (uint32_t i = 0; i < 1000; ++i) EXPECT_EQ(Insert(At(i, 7)), i);
  for (uint32_t i = 0; i < 1000; ++i) {
    uint64_t number;
    ASSERT_TRUE(table_.Find(At(i, 7), &number));
    EXPECT_EQ(number, i);
    SockAddress address;
    ASSERT_TRUE(table_.Lookup(i, &address));
    EXPECT_TRUE(IsSame(address, At(i, 7)));
  }
  uint64_t number;
  EXPECT_FALSE(table_.Find(At(1, 8), &number)) << "another port";
  EXPECT_FALSE(table_.Find(At(1000, 7), &number));
}

TEST_F(AvTableTest, TheLowestFreeNumberIsTaken) {
  for (uint32_t i = 0; i < 5; ++i) Insert(At(i, 7));
  bool is_gone = false;
  ASSERT_EQ(table_.Remove(3, &is_gone), 0);
  EXPECT_TRUE(is_gone);
  ASSERT_EQ(table_.Remove(1, &is_gone), 0);
  uint64_t number;
  EXPECT_FALSE(table_.Find(At(1, 7), &number));
  SockAddress address;
  EXPECT_FALSE(table_.Lookup(1, &address));
  EXPECT_EQ(Insert(At(100, 7)), 1u);
  EXPECT_EQ(Insert(At(101, 7)), 3u);
  EXPECT_EQ(Insert(At(102, 7)), 5u);
}

TEST_F(AvTableTest, AnAddressTwiceIsRemovedTwice) {
  EXPECT_EQ(Insert(At(1, 7)), 0u);
  EXPECT_EQ(Insert(At(1, 7)), 0u);
  bool is_gone = true;
  EXPECT_EQ(table_.Remove(0, &is_gone), 0);
  EXPECT_FALSE(is_gone);
  EXPECT_EQ(table_.Remove(0, &is_gone), 0);
  EXPECT_TRUE(is_gone);
  EXPECT_EQ(table_.Remove(0, &is_gone), -FI_EINVAL);
}

TEST_F(AvTableTest, DatagramsEndpointsDifferByWhatIsNoPort) {
  SockAddress a = At(1, 0), b = At(1, 0);
  a.in.sin_zero[0] = 1;
  b.in.sin_zero[0] = 2;
  EXPECT_NE(Insert(a), Insert(b));
  // Where there is a port programs may leave anything there.
  a.in.sin_port = b.in.sin_port = htons(9);
  EXPECT_EQ(Insert(a), Insert(b));
}

class SharedAvTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/avXXXXXX";
    directory_ = ::mkdtemp(name.data());
    path_ = directory_ + "/av";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  SharedAvStore* Open(bool read_only, fi_av_type type = FI_AV_TABLE, int expected = 0) {
    SharedAvStore* store = nullptr;
    EXPECT_EQ(SharedAvStore::Open(path_, type, read_only, &store), expected);
    return store;
  }

  std::string directory_, path_;
};

TEST_F(SharedAvTest, WhatOneInsertsTheOtherFinds) {
  Open(true, FI_AV_TABLE, -FI_ENOENT);
  SharedAvStore* writer = Open(false);
  SharedAvStore* reader = Open(true);
  AvTable in, out;
  in.SetStore(writer);
  out.SetStore(reader);
  for (uint32_t i = 0; i < 3000; ++i) {
    uint64_t number;
    ASSERT_EQ(in.Insert(At(i, 7), &number), 0);
    ASSERT_TRUE(out.Find(At(i, 7), &number));
    EXPECT_EQ(number, i);
    i += 100;
    for (uint32_t more = i - 99; more <= i; ++more) in.Insert(At(more, 7), &number);
  }
  SockAddress address;
  EXPECT_TRUE(out.Lookup(2000, &address));
  uint64_t number;
  EXPECT_EQ(out.Insert(At(1, 1), &number), -FI_EPERM);
  Open(false, FI_AV_MAP, -FI_EINVAL);
  delete writer;
  EXPECT_TRUE(std::filesystem::exists(path_)) << "somebody reads it";
  delete reader;
}

TEST_F(SharedAvTest, TheLastOneRemovesIt) {
  SharedAvStore* a = Open(false);
  SharedAvStore* b = Open(false);
  delete a;
  EXPECT_TRUE(std::filesystem::exists(path_));
  delete b;
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(SharedAvTest, WhatTheDeadLeftIsNotShared) {
  SharedAvStore* first = Open(false);
  AvTable table;
  table.SetStore(first);
  uint64_t number;
  table.Insert(At(1, 7), &number);
  const std::string left = path_ + "-left";
  std::filesystem::copy_file(path_, left);
  delete first;
  std::filesystem::rename(left, path_);
  SharedAvStore* second = Open(false);
  EXPECT_EQ(second->Count(), 0u);
  delete second;
}

}  // namespace
}  // namespace verbena::fi
