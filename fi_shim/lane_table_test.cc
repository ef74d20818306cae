#include "fi_shim/lane_table.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "fi_shim/rdm.h"

namespace verbena::fi {
namespace {

SockAddress Ipv4(uint32_t address, uint16_t port) {
  SockAddress out = {};
  out.in.sin_family = AF_INET;
  out.in.sin_port = htons(port);
  out.in.sin_addr.s_addr = htonl(address);
  return out;
}

SockAddress Ipv6(uint8_t last, uint16_t port) {
  SockAddress out = {};
  out.in6.sin6_family = AF_INET6;
  out.in6.sin6_port = htons(port);
  out.in6.sin6_addr.s6_addr[15] = last;
  return out;
}

struct LaneTableTest : testing::Test {
  Lane* Add(const SockAddress& peer) {
    lanes.push_back(std::make_unique<Lane>());
    lanes.back()->peer = peer;
    EXPECT_TRUE(table.Add(lanes.back().get()));
    return lanes.back().get();
  }

  LaneTable table;
  std::vector<std::unique_ptr<Lane>> lanes;
};

TEST_F(LaneTableTest, FindsNothingWhenEmpty) {
  EXPECT_EQ(table.Find(0), nullptr);
  EXPECT_EQ(table.Find(UINT64_MAX), nullptr);
  EXPECT_EQ(table.FindPeer(Ipv4(0x7f00'0001, 1)), nullptr);
}

TEST_F(LaneTableTest, TellsPeersApartByAddressAndPort) {
  Lane* a = Add(Ipv4(0x7f00'0001, 1000));
  Lane* b = Add(Ipv4(0x7f00'0001, 1001));
  Lane* c = Add(Ipv4(0x7f00'0002, 1000));
  Lane* d = Add(Ipv6(1, 1000));
  EXPECT_EQ(table.FindPeer(Ipv4(0x7f00'0001, 1000)), a);
  EXPECT_EQ(table.FindPeer(Ipv4(0x7f00'0001, 1001)), b);
  EXPECT_EQ(table.FindPeer(Ipv4(0x7f00'0002, 1000)), c);
  EXPECT_EQ(table.FindPeer(Ipv6(1, 1000)), d);
  EXPECT_EQ(table.FindPeer(Ipv6(2, 1000)), nullptr);
}

TEST_F(LaneTableTest, SeveralNumbersNameOneLane) {
  Lane* lane = Add(Ipv4(0x7f00'0001, 1000));
  ASSERT_TRUE(table.Name(3, lane));
  ASSERT_TRUE(table.Name(500, lane));
  EXPECT_EQ(table.Find(3), lane);
  EXPECT_EQ(table.Find(500), lane);
  EXPECT_EQ(table.Find(4), nullptr);
  EXPECT_EQ(lane->names, 2u);
  table.Unname(3);
  table.Unname(3);
  table.Unname(100'000);
  EXPECT_EQ(table.Find(3), nullptr);
  EXPECT_EQ(lane->names, 1u);
}

TEST_F(LaneTableTest, ANumberIsTakenOverByAnotherLane) {
  Lane* a = Add(Ipv4(1, 1));
  Lane* b = Add(Ipv4(2, 1));
  ASSERT_TRUE(table.Name(0, a));
  ASSERT_TRUE(table.Name(0, b));
  EXPECT_EQ(table.Find(0), b);
  EXPECT_EQ(a->names, 0u);
  EXPECT_EQ(b->names, 1u);
}

TEST_F(LaneTableTest, RefusesNumbersThatNoAvGives) {
  Lane* lane = Add(Ipv4(1, 1));
  EXPECT_FALSE(table.Name(UINT64_MAX, lane));
  EXPECT_FALSE(table.Name(uint64_t{1} << 24, lane));
  EXPECT_EQ(lane->names, 0u);
}

TEST_F(LaneTableTest, KeepsThousandsAndLosesThoseRemoved) {
  constexpr uint32_t kLanes = 3'000;
  for (uint32_t i = 0; i < kLanes; ++i) {
    ASSERT_TRUE(table.Name(i, Add(Ipv4(0x0a00'0000 + i, 7))));
  }
  EXPECT_EQ(table.size(), kLanes);
  for (uint32_t i = 0; i < kLanes; i += 2) table.Remove(lanes[i].get());
  EXPECT_EQ(table.size(), kLanes / 2);
  for (uint32_t i = 0; i < kLanes; ++i) {
    Lane* expected = i % 2 == 0 ? nullptr : lanes[i].get();
    EXPECT_EQ(table.Find(i), expected) << i;
    EXPECT_EQ(table.FindPeer(Ipv4(0x0a00'0000 + i, 7)), expected) << i;
  }
  size_t listed = 0;
  for (const Lane* lane = table.first(); lane != nullptr; lane = lane->next) ++listed;
  EXPECT_EQ(listed, kLanes / 2);
}

}  // namespace
}  // namespace verbena::fi
