// Cutting merged datagrams into packets, and guessing identifications.
#include "transport/port/udp/received_datagram.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>

#include "transport/port/udp/udp_options.h"
#include "transport/port/udp/udp_port_test_util.h"

namespace verbena::transport {
namespace {

// A message as recvmsg fills it.
struct Message {
  SocketAddress name;
  alignas(cmsghdr) char control[kReceiveControlBytes] = {};
  size_t used = 0;
  msghdr header{};

  explicit Message(const Gid& from) : name(MakeSocketAddress(from, 4791, 0)) {
    header.msg_name = name.get();
    header.msg_namelen = name.length;
    header.msg_control = control;
  }
  void Append(int level, int type, const void* data, size_t length) {
    auto* item = reinterpret_cast<cmsghdr*>(control + used);
    item->cmsg_level = level;
    item->cmsg_type = type;
    item->cmsg_len = CMSG_LEN(length);
    memcpy(CMSG_DATA(item), data, length);
    used += CMSG_SPACE(length);
    header.msg_controllen = used;
  }
};

class ReceivedDatagramTest : public testing::Test {
 protected:
  ReceivedDatagramTest() {
    endpoint_.address = {V4(10, 0, 0, 1), 1};
    endpoint_.bound = endpoint_.address.gid;
  }
  std::vector<InPacket> Cut(const Message& message, size_t length) {
    ReceivedDatagram datagram;
    datagram.Begin(message.header, bytes_.data(), length, 4791, &endpoint_, &hints_, &drops_);
    std::vector<InPacket> out;
    InPacket packet;
    while (datagram.Next(&hints_, &packet)) out.push_back(packet);
    return out;
  }

  const Gid peer_ = V4(10, 0, 0, 2);
  Endpoint endpoint_;
  IpIdHints hints_;
  uint64_t drops_ = 0;
  std::vector<std::byte> bytes_{4000};
};

TEST_F(ReceivedDatagramTest, AMergedOneIsCutAndTheLastMayBeShorter) {
  Message message(peer_);
  const int segment = 100, ttl = 9;
  const uint8_t tos = 0x2e;
  message.Append(SOL_UDP, UDP_GRO, &segment, sizeof segment);
  message.Append(IPPROTO_IP, IP_TOS, &tos, sizeof tos);
  message.Append(IPPROTO_IP, IP_TTL, &ttl, sizeof ttl);
  const auto packets = Cut(message, 250);
  ASSERT_EQ(packets.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(packets[i].bytes, bytes_.data() + 100 * i);
    EXPECT_EQ(packets[i].length, i < 2 ? 100u : 50u);
    EXPECT_EQ(packets[i].expected_ip_id, i);
    EXPECT_EQ(packets[i].address.source, peer_);
    EXPECT_EQ(packets[i].address.traffic_class, 0x2e);
    EXPECT_EQ(packets[i].address.hop_limit, 9);
  }
}

TEST_F(ReceivedDatagramTest, DropsAreToldOnceEachAndAcrossTheCountersWrap) {
  for (uint32_t total : {5u, 5u, 7u, 0xffff'ffffu, 2u}) {
    Message message(peer_);
    message.Append(SOL_SOCKET, SO_RXQ_OVFL, &total, sizeof total);
    Cut(message, 20);
  }
  EXPECT_EQ(drops_, 0x1'0000'0002u);
}

TEST_F(ReceivedDatagramTest, OddAncillaryDataIsPassedOver) {
  Message message(peer_);
  const int nonsense = -5;
  const uint8_t brief = 3;
  message.Append(SOL_UDP, UDP_GRO, &nonsense, sizeof nonsense);
  message.Append(SOL_UDP, UDP_GRO, &brief, sizeof brief);  // too short for its type
  message.Append(77, 77, &brief, sizeof brief);
  const auto packets = Cut(message, 64);
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_EQ(packets[0].length, 64u);
  Message nameless(peer_);
  nameless.header.msg_name = nullptr;
  EXPECT_TRUE(Cut(nameless, 64).empty());
}

TEST(IpIdHintsTest, ABatchSeenFromItsMiddleNeedsOneSolution) {
  IpIdHints hints;
  hints.Begin(V4(1, 2, 3, 4), 4791);
  EXPECT_EQ(hints.Next(), 0);
  hints.Learn(17);
  EXPECT_EQ(hints.Next(), 18);
  EXPECT_EQ(hints.Next(), 19);
  // Its next batch begins anew.
  hints.Begin(V4(1, 2, 3, 4), 4791);
  EXPECT_EQ(hints.Next(), 0);
}

TEST(IpIdHintsTest, ARunningNumberRunsOnThroughOtherPeersTraffic) {
  const Gid rxe = V4(10, 0, 0, 3), ours = V4(10, 0, 0, 2);
  IpIdHints hints;
  hints.Begin(rxe, 50'340);
  EXPECT_EQ(hints.Next(), 0);
  hints.Learn(0xfffe);
  hints.Begin(ours, 4791);
  EXPECT_EQ(hints.Next(), 0);
  EXPECT_EQ(hints.Next(), 1);
  hints.Begin(rxe, 50'340);
  EXPECT_EQ(hints.Next(), 0xffff);
  hints.Begin(rxe, 50'340);
  EXPECT_EQ(hints.Next(), 0);
  hints.Learn(400);  // jumped
  hints.Begin(rxe, 50'340);
  EXPECT_EQ(hints.Next(), 401);
}

}  // namespace
}  // namespace verbena::transport
