// Real sockets on the loopback interface, the same stories for every kind of port.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "core/clock/monotonic_clock.h"
#include "transport/port/udp/open_udp_port.h"
#include "transport/port/udp/udp_options.h"
#include "transport/port/udp/udp_port_test_util.h"

namespace verbena::transport {
namespace {

using wire::IcrcCheck;

struct Kind {
  const char* name;
  NetIo net_io;
};

// Loopback addresses that no other run of this test uses at the same time.
Gid Loopback(uint8_t host) {
  const auto run = static_cast<uint32_t>(getpid());
  return V4(127, static_cast<uint8_t>(100 + (run >> 16) % 100), static_cast<uint8_t>(run >> 8),
            static_cast<uint8_t>((run & 0xe0) + host));
}

class UdpPortTest : public testing::TestWithParam<Kind> {
 protected:
  static std::unique_ptr<UdpPort> OpenKind(const UdpPortConfig& config, UdpPortError* error) {
    return OpenUdpPort(config, GetParam().net_io, error);
  }

  // The first free UDP port; where kernel rxe is loaded, 4791 never is.
  std::unique_ptr<UdpPort> Open(const Gid& gid, uint16_t* udp_port) {
    UdpPortError error;
    for (uint16_t candidate = 24'791; candidate < 24'791 + 64; ++candidate) {
      auto port = OpenKind({.addresses = {{gid}}, .port = candidate}, &error);
      if (port != nullptr) {
        *udp_port = candidate;
        return port;
      }
      if (error.kind != UdpPortErrorKind::kPortBusy) break;
    }
    if (error.kind == UdpPortErrorKind::kNoUring) {
      skipped_ = error.text;
    } else if (!gid.IsIpv4Mapped() && error.error != EADDRINUSE) {
      skipped_ = "no IPv6 here: " + error.text;
    } else {
      ADD_FAILURE() << error.text;
    }
    return nullptr;
  }

  bool OpenPair(const Gid& a, const Gid& b) {
    a_ = Open(a, &a_udp_port_);
    if (a_ != nullptr) b_ = Open(b, &b_udp_port_);
    to_b_.source = a;
    to_b_.destination = b;
    to_b_.destination_port = b_udp_port_;
    return b_ != nullptr;
  }
  bool OpenV4Pair() { return OpenPair(Loopback(1), Loopback(2)); }

  // Sends and, when the port has no room, flushes.
  void Send(PacketPort* port, const wire::PacketAddress& address,
            const std::vector<std::byte>& bytes, int32_t corrupt_bit = -1) {
    const OutPacket packet{.address = address,
                           .bytes = bytes.data(),
                           .length = static_cast<uint32_t>(bytes.size()),
                           .corrupt_bit = corrupt_bit};
    while (!port->Send({}, packet)) port->Flush({});
  }

  void RoundTripOfAllSizes(IcrcCheck expected);

  std::unique_ptr<UdpPort> a_, b_;
  uint16_t a_udp_port_ = 0, b_udp_port_ = 0;
  wire::PacketAddress to_b_;
  std::string skipped_;
};

#define OPEN_OR_SKIP(call)                           \
  if (!(call)) {                                     \
    if (!skipped_.empty()) GTEST_SKIP() << skipped_; \
    return;                                          \
  }

void UdpPortTest::RoundTripOfAllSizes(IcrcCheck expected) {
  const uint32_t longest = wire::kPacketBytesMax - wire::kIcrcBytes;
  for (uint32_t length = wire::kBthBytes; length <= longest; length += length < 128 ? 4 : 52) {
    const auto bytes = MakePacket(length, length);
    Send(a_.get(), to_b_, bytes);
    a_->Flush({});
    Received there;
    ASSERT_TRUE(ReceiveOne(b_.get(), &there)) << length;
    ASSERT_EQ(there.bytes, bytes);
    ASSERT_EQ(there.check, expected) << length;
    EXPECT_EQ(there.address.source, to_b_.source);
    EXPECT_EQ(there.address.destination, to_b_.destination);
    EXPECT_EQ(there.address.source_port, a_udp_port_);
    EXPECT_EQ(there.address.destination_port, b_udp_port_);

    // And back to where it says it came from.
    wire::PacketAddress back{.source = there.address.destination,
                             .destination = there.address.source,
                             .destination_port = there.address.source_port};
    Send(b_.get(), back, there.bytes);
    b_->Flush({});
    Received here;
    ASSERT_TRUE(ReceiveOne(a_.get(), &here)) << length;
    ASSERT_EQ(here.bytes, bytes);
    ASSERT_EQ(here.check, expected);
  }
  EXPECT_EQ(a_->counters().sent_packets, b_->counters().received_packets);
  EXPECT_EQ(a_->counters().sent_bytes, b_->counters().received_bytes);
  EXPECT_EQ(a_->counters().send_errors, 0u);
}

TEST_P(UdpPortTest, PacketsOfAllSizesGoThereAndBackOverIpv4) {
  OPEN_OR_SKIP(OpenV4Pair());
  RoundTripOfAllSizes(IcrcCheck::kExact);
}

TEST_P(UdpPortTest, PacketsOfAllSizesGoThereAndBackOverIpv6) {
  OPEN_OR_SKIP(OpenPair(V6Loopback(), V6Loopback()));
  RoundTripOfAllSizes(IcrcCheck::kExact);
}

TEST_P(UdpPortTest, APacketsTimeIsReadWhenItHasCome) {
  OPEN_OR_SKIP(OpenV4Pair());
  for (uint32_t i = 0; i < 3; ++i) {
    const Instant before = ReadMonotonicClock();
    Send(a_.get(), to_b_, MakePacket(40, i));
    a_->Flush({});
    InPacket packet;
    ASSERT_TRUE(ReceiveAwake(b_.get(), &packet));
    EXPECT_GT(packet.received_at, before);
    EXPECT_LT(packet.received_at, ReadMonotonicClock());
  }
}

TEST_P(UdpPortTest, ABatchIsOneCallAndEveryIcrcIsRight) {
  OPEN_OR_SKIP(OpenV4Pair());
  std::vector<std::vector<std::byte>> sent;
  for (uint32_t i = 0; i < kBatchSegmentsMax; ++i) {
    sent.push_back(MakePacket(i + 1 < kBatchSegmentsMax ? 996 : 40, i));
    Send(a_.get(), to_b_, sent.back());
  }
  a_->Flush({});
  for (uint32_t i = 0; i < sent.size(); ++i) {
    Received got;
    ASSERT_TRUE(ReceiveOne(b_.get(), &got)) << i;
    EXPECT_EQ(got.bytes, sent[i]) << i;
    EXPECT_EQ(got.ip_id, i);
    EXPECT_EQ(got.check, IcrcCheck::kExact) << i;
  }
  if (a_->counters().errors[PortError::kBatchRefused] == 0) {
    EXPECT_EQ(a_->counters().sent_batches, 1u);
  }
  EXPECT_EQ(a_->counters().sent_packets, kBatchSegmentsMax);
}

// Without UDP_GRO the kernel cuts the batch before it arrives: what a NIC would put on the wire.
TEST_P(UdpPortTest, EachPacketOfABatchStandsAlone) {
  uint16_t udp_port = 0;
  a_ = Open(Loopback(1), &udp_port);
  OPEN_OR_SKIP(a_ != nullptr);
  const int plain = socket(AF_INET, SOCK_DGRAM, 0);
  SocketAddress name = MakeSocketAddress(Loopback(3), 0, 0);
  ASSERT_EQ(bind(plain, name.get(), name.length), 0);
  ASSERT_EQ(getsockname(plain, name.get(), &name.length), 0);
  Gid gid;
  to_b_.source = Loopback(1);
  ASSERT_TRUE(ReadSocketAddress(name.get(), &gid, &to_b_.destination_port));
  to_b_.destination = gid;
  to_b_.source_port = udp_port;
  const uint32_t count = 10;
  for (uint32_t i = 0; i < count; ++i) Send(a_.get(), to_b_, MakePacket(512, i));
  a_->Flush({});
  for (uint32_t i = 0; i < count; ++i) {
    std::vector<std::byte> bytes(2000);
    const ssize_t got = recv(plain, bytes.data(), bytes.size(), 0);
    ASSERT_EQ(got, 512 + 4);
    uint16_t ip_id = 0xffff;
    EXPECT_EQ(wire::VerifyIcrc(to_b_, static_cast<uint16_t>(i), bytes.data(), 516, &ip_id),
              IcrcCheck::kExact)
        << i;
    if (i > 0) {
      EXPECT_EQ(wire::VerifyIcrc(to_b_, 0, bytes.data(), 516, &ip_id), IcrcCheck::kSolved);
      EXPECT_EQ(ip_id, i);
    }
  }
  close(plain);
}

TEST_P(UdpPortTest, DestinationsTakeTurnsWithoutLosingTheirBatches) {
  OPEN_OR_SKIP(OpenV4Pair());
  uint16_t c_udp_port = 0;
  auto c = Open(Loopback(4), &c_udp_port);
  ASSERT_NE(c, nullptr);
  wire::PacketAddress to_c = to_b_;
  to_c.destination = Loopback(4);
  to_c.destination_port = c_udp_port;
  const uint32_t count = 30;
  for (uint32_t i = 0; i < count; ++i) {
    Send(a_.get(), to_b_, MakePacket(700, i));
    Send(a_.get(), to_c, MakePacket(300, 1000 + i));
  }
  a_->Flush({});
  for (uint32_t i = 0; i < count; ++i) {
    Received got;
    ASSERT_TRUE(ReceiveOne(b_.get(), &got));
    EXPECT_EQ(got.bytes, MakePacket(700, i));
    EXPECT_EQ(got.check, IcrcCheck::kExact);
    ASSERT_TRUE(ReceiveOne(c.get(), &got));
    EXPECT_EQ(got.bytes, MakePacket(300, 1000 + i));
    EXPECT_EQ(got.check, IcrcCheck::kExact);
  }
  if (a_->counters().errors[PortError::kBatchRefused] == 0) {
    EXPECT_EQ(a_->counters().sent_batches, 2u);
  }
}

TEST_P(UdpPortTest, MixedLengthsToOneDestinationKeepTheirOrder) {
  OPEN_OR_SKIP(OpenV4Pair());
  const uint32_t lengths[] = {1036, 1036, 24, 1036, 16, 16, 4140, 4140, 16, 4140, 1036, 2060};
  for (uint32_t i = 0; i < std::size(lengths); ++i) {
    Send(a_.get(), to_b_, MakePacket(lengths[i], i));
  }
  a_->Flush({});
  for (uint32_t i = 0; i < std::size(lengths); ++i) {
    Received got;
    ASSERT_TRUE(ReceiveOne(b_.get(), &got));
    EXPECT_EQ(got.bytes, MakePacket(lengths[i], i)) << i;
    EXPECT_EQ(got.check, IcrcCheck::kExact) << i;
  }
}

TEST_P(UdpPortTest, ManyMegabytesArriveWhole) {
  OPEN_OR_SKIP(OpenV4Pair());
  // As many at a time as any receive buffer holds.
  const uint32_t total = (24u << 20) / 4112, window = 12;
  for (uint32_t sent = 0, received = 0; received < total;) {
    while (sent < total && sent - received < window)
      Send(a_.get(), to_b_, MakePacket(4108, sent++));
    a_->Flush({});
    for (; received < sent; ++received) {
      Received got;
      ASSERT_TRUE(ReceiveOne(b_.get(), &got)) << received;
      ASSERT_EQ(got.check, IcrcCheck::kExact);
      ASSERT_EQ(got.bytes, MakePacket(4108, received));
    }
  }
  EXPECT_GT(b_->counters().received_bytes, 16u << 20);
  EXPECT_EQ(b_->counters().receive_drops, 0u);
}

TEST_P(UdpPortTest, TrafficClassAndHopLimitTravelWithEachPacket) {
  OPEN_OR_SKIP(OpenV4Pair());
  const struct {
    uint8_t traffic_class, hop_limit;
  } wanted[] = {{0, 64}, {0xb8, 64}, {0xb8, 3}, {0, 255}, {0x28, 1}};
  for (const auto& want : wanted) {
    to_b_.traffic_class = want.traffic_class;
    to_b_.hop_limit = want.hop_limit;
    Send(a_.get(), to_b_, MakePacket(64, want.hop_limit));
  }
  a_->Flush({});
  for (const auto& want : wanted) {
    Received got;
    ASSERT_TRUE(ReceiveOne(b_.get(), &got));
    EXPECT_EQ(got.address.traffic_class, want.traffic_class);
    EXPECT_EQ(got.address.hop_limit, want.hop_limit);
    EXPECT_EQ(got.check, IcrcCheck::kExact);
  }
}

TEST_P(UdpPortTest, EachHopLimitIsRightHoweverOftenItIsAskedFor) {
  for (bool v4 : {true, false}) {
    OPEN_OR_SKIP(v4 ? OpenV4Pair() : OpenPair(V6Loopback(), V6Loopback()));
    uint8_t unasked = 0;
    auto arrives_with = [&](uint8_t hop_limit) {
      to_b_.hop_limit = hop_limit;
      Send(a_.get(), to_b_, MakePacket(64, hop_limit));
      a_->Flush({});
      Received got;
      EXPECT_TRUE(ReceiveOne(b_.get(), &got));
      return got.address.hop_limit;
    };
    unasked = arrives_with(0);
    EXPECT_GT(unasked, 0);
    EXPECT_NE(unasked, 7);
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < 40; ++i) ASSERT_EQ(arrives_with(7), 7) << i;
      EXPECT_EQ(arrives_with(0), unasked);
      EXPECT_EQ(arrives_with(9), 9);
      EXPECT_EQ(arrives_with(7), 7);
      for (int i = 0; i < 40; ++i) ASSERT_EQ(arrives_with(0), unasked) << i;
      EXPECT_EQ(arrives_with(255), 255);
    }
  }
}

TEST_P(UdpPortTest, WhoWantsNoGrhGetsNone) {
  OPEN_OR_SKIP(OpenV4Pair());
  to_b_.traffic_class = 0xb8;
  to_b_.hop_limit = 3;
  const wire::PacketAddress untold;
  for (bool is_wanted : {false, true, false}) {
    b_->WantGrh(is_wanted);
    Send(a_.get(), to_b_, MakePacket(64, 1));
    a_->Flush({});
    Received got;
    ASSERT_TRUE(ReceiveOne(b_.get(), &got));
    EXPECT_EQ(got.address.traffic_class, is_wanted ? 0xb8 : untold.traffic_class);
    EXPECT_EQ(got.address.hop_limit, is_wanted ? 3 : untold.hop_limit);
    EXPECT_EQ(got.check, IcrcCheck::kExact);
  }
}

TEST_P(UdpPortTest, Ipv6CarriesClassHopLimitAndFlowLabel) {
  OPEN_OR_SKIP(OpenPair(V6Loopback(), V6Loopback()));
  to_b_.traffic_class = 0x2e;
  to_b_.hop_limit = 9;
  to_b_.flow_label = 0x1'2345;
  Send(a_.get(), to_b_, MakePacket(64, 1));
  to_b_.flow_label = 0;
  Send(a_.get(), to_b_, MakePacket(64, 2));
  a_->Flush({});
  Received got;
  ASSERT_TRUE(ReceiveOne(b_.get(), &got));
  EXPECT_EQ(got.address.traffic_class, 0x2e);
  EXPECT_EQ(got.address.hop_limit, 9);
  EXPECT_EQ(got.address.flow_label, 0x1'2345u);
  ASSERT_TRUE(ReceiveOne(b_.get(), &got));
  EXPECT_EQ(got.address.flow_label, 0u);
}

TEST_P(UdpPortTest, ACorruptedBitIsTheOnlyDifferenceAndTheIcrcShowsIt) {
  OPEN_OR_SKIP(OpenPair(V6Loopback(), V6Loopback()));
  const auto bytes = MakePacket(100, 7);
  // In the first, a middle and the last byte, ICRC included. Byte 4 of a BTH is masked: not there.
  const int32_t bits[] = {0, 8 * 50 + 3, 8 * 104 - 1};
  for (int32_t bit : bits) {
    Send(a_.get(), to_b_, bytes);
    Send(a_.get(), to_b_, bytes, bit);
  }
  a_->Flush({});
  for (int32_t bit : bits) {
    Received got;
    ASSERT_TRUE(ReceiveOne(b_.get(), &got));
    EXPECT_EQ(got.check, IcrcCheck::kExact);
    ASSERT_TRUE(ReceiveOne(b_.get(), &got));
    EXPECT_EQ(got.check, IcrcCheck::kWrong) << bit;
    auto expected = bytes;
    if (bit < 800) expected[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(got.bytes, expected);
  }
}

TEST_P(UdpPortTest, ABusyPortIsNamed) {
  OPEN_OR_SKIP(OpenV4Pair());
  UdpPortError error;
  auto second = OpenKind({.addresses = {{Loopback(1)}}, .port = a_udp_port_}, &error);
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(error.kind, UdpPortErrorKind::kPortBusy);
  EXPECT_EQ(error.error, EADDRINUSE);
  EXPECT_NE(error.text.find(TextOf({Loopback(1)}) + ":" + std::to_string(a_udp_port_)),
            std::string::npos)
      << error.text;
}

TEST_P(UdpPortTest, AClosedPortIsFreeAtOnce) {
  OPEN_OR_SKIP(OpenV4Pair());
  for (int i = 0; i < 20; ++i) {
    Send(a_.get(), to_b_, MakePacket(100, 1));
    a_->Flush({});
    b_.reset();
    UdpPortError error;
    b_ = OpenKind({.addresses = {{Loopback(2)}}, .port = b_udp_port_}, &error);
    ASSERT_NE(b_, nullptr) << error.text;
  }
}

TEST_P(UdpPortTest, AMissingAddressIsNamed) {
  UdpPortError error;
  // TEST-NET-2, for documentation.
  auto port = OpenKind({.addresses = {{V4(198, 51, 100, 77)}}, .port = 24'791}, &error);
  EXPECT_EQ(port, nullptr);
  if (error.kind == UdpPortErrorKind::kNoUring) GTEST_SKIP() << error.text;
  EXPECT_EQ(error.kind, UdpPortErrorKind::kNoSuchAddress) << error.text;
  EXPECT_NE(error.text.find("198.51.100.77"), std::string::npos) << error.text;
}

TEST_P(UdpPortTest, APortNeedsAnAddress) {
  UdpPortError error;
  EXPECT_EQ(OpenKind({}, &error), nullptr);
  if (error.kind == UdpPortErrorKind::kNoUring) GTEST_SKIP() << error.text;
  EXPECT_EQ(error.kind, UdpPortErrorKind::kBadConfig);
}

TEST_P(UdpPortTest, WhatCannotBeSentIsLostAndCounted) {
  OPEN_OR_SKIP(OpenV4Pair());
  const auto bytes = MakePacket(64, 1);
  wire::PacketAddress strange = to_b_;
  strange.source = Loopback(9);  // not ours
  Send(a_.get(), strange, bytes);
  EXPECT_EQ(a_->counters().errors[PortError::kNoSource], 1u);
  // From a loopback address nothing leaves the host.
  strange = to_b_;
  strange.destination = V4(198, 51, 100, 77);
  Send(a_.get(), strange, bytes);
  Send(a_.get(), strange, bytes);
  a_->Flush({});
  EXPECT_EQ(a_->counters().send_errors, 3u);
  EXPECT_EQ(a_->counters().sent_packets, 0u);
  // And the port goes on.
  Send(a_.get(), to_b_, bytes);
  a_->Flush({});
  Received got;
  EXPECT_TRUE(ReceiveOne(b_.get(), &got));
}

TEST_P(UdpPortTest, RuntsAreDroppedAndWhatFollowsIsNot) {
  OPEN_OR_SKIP(OpenV4Pair());
  const int plain = socket(AF_INET, SOCK_DGRAM, 0);
  const SocketAddress to = MakeSocketAddress(Loopback(2), b_udp_port_, 0);
  const auto bytes = MakePacket(15, 1);
  const uint64_t runts = 100;
  for (uint64_t i = 0; i < runts; ++i) {
    ASSERT_GE(sendto(plain, bytes.data(), i % 16, 0, to.get(), to.length), 0);
  }
  close(plain);
  Send(a_.get(), to_b_, MakePacket(64, 5));
  a_->Flush({});
  Received got;
  ASSERT_TRUE(ReceiveOne(b_.get(), &got));
  EXPECT_EQ(got.bytes, MakePacket(64, 5));
  EXPECT_EQ(b_->runts(), runts);
  EXPECT_EQ(b_->counters().received_packets, 1u);
}

// Two NICs of this host in one group: each gets a copy, the sender too (its NIC sorts that out).
TEST_P(UdpPortTest, AGroupsPacketsReachEveryLocalMember) {
  OPEN_OR_SKIP(OpenV4Pair());
  uint16_t c_udp_port = 0;
  auto c = Open(Loopback(4), &c_udp_port);
  ASSERT_NE(c, nullptr);
  if (a_udp_port_ != b_udp_port_ || c_udp_port != b_udp_port_) GTEST_SKIP() << "ports in use";
  const Gid group = V4(239, 1, 2, 3);
  if (int error = b_->JoinGroup(group); error == ENODEV || error == EADDRNOTAVAIL) {
    GTEST_SKIP() << "no multicast on the loopback interface here";
  } else {
    ASSERT_EQ(error, 0);
  }
  ASSERT_EQ(c->JoinGroup(group), 0);
  ASSERT_EQ(c->JoinGroup(group), 0);  // once more is nothing new
  wire::PacketAddress to_group = to_b_;
  to_group.destination = group;
  const auto bytes = MakePacket(200, 3);
  for (int i = 0; i < 3; ++i) Send(a_.get(), to_group, bytes);
  a_->Flush({});
  for (PacketPort* port : {static_cast<PacketPort*>(b_.get()), static_cast<PacketPort*>(c.get())}) {
    for (int i = 0; i < 3; ++i) {
      Received got;
      ASSERT_TRUE(ReceiveOne(port, &got));
      EXPECT_EQ(got.address.destination, group);
      EXPECT_EQ(got.address.source, Loopback(1));
      EXPECT_EQ(got.bytes, bytes);
      EXPECT_EQ(got.check, IcrcCheck::kExact);
    }
  }
  // Who left hears no more; a unicast packet sent after shows that nothing came before it.
  c->LeaveGroup(group);
  Send(a_.get(), to_group, bytes);
  wire::PacketAddress to_c = to_b_;
  to_c.destination = Loopback(4);
  Send(a_.get(), to_c, MakePacket(80, 4));
  a_->Flush({});
  Received got;
  ASSERT_TRUE(ReceiveOne(c.get(), &got));
  EXPECT_EQ(got.address.destination, Loopback(4));
  EXPECT_EQ(c->counters().received_packets, 4u);
  ASSERT_TRUE(ReceiveOne(b_.get(), &got));
  EXPECT_EQ(got.address.destination, group);
}

TEST_P(UdpPortTest, OnlyGroupsOfItsFamiliesCanBeJoined) {
  OPEN_OR_SKIP(OpenV4Pair());
  EXPECT_EQ(a_->JoinGroup(Loopback(5)), EINVAL);
  Gid v6_group;
  v6_group.raw = {0xff, 0x12};
  EXPECT_EQ(a_->JoinGroup(v6_group), EADDRNOTAVAIL);
}

TEST_P(UdpPortTest, AFloodThatFindsNoRoomIsCountedWhereItWasLost) {
  OPEN_OR_SKIP(OpenV4Pair());
  const uint64_t sent = 4 * b_->receive_buffer_bytes() / 4112 + 64;
  const auto bytes = MakePacket(4108, 1);
  for (uint64_t i = 0; i < sent; ++i) Send(a_.get(), to_b_, bytes);
  a_->Flush({});
  // Drops are told with the next packet that finds room: ask for one after the flood is read.
  Received got;
  uint64_t received = 0;
  while (ReceiveOne(b_.get(), &got, 0)) ++received;
  Send(a_.get(), to_b_, MakePacket(64, 2));
  a_->Flush({});
  ASSERT_TRUE(ReceiveOne(b_.get(), &got));
  EXPECT_LT(received, sent);
  EXPECT_GT(b_->counters().receive_drops, 0u);
}

TEST_P(UdpPortTest, WhoWasAwakeForLongIsWokenAllTheSame) {
  OPEN_OR_SKIP(OpenV4Pair());
  auto send = [&] {
    Send(a_.get(), to_b_, MakePacket(64, 1));
    a_->Flush({});
  };
  InPacket packet;
  for (int sleeps = 0; sleeps < 3; ++sleeps) {
    for (int i = 0; i < 200; ++i) {
      send();
      ASSERT_TRUE(ReceiveAwake(b_.get(), &packet));
    }
    EXPECT_EQ(ReceiveAll(b_.get()), 0);
    // What comes after the last look, and before the sleep.
    send();
    if (b_->PrepareToSleep()) {
      ASSERT_TRUE(IsReadable(b_.get(), kPatienceMs));
    }
    ASSERT_TRUE(ReceiveAwake(b_.get(), &packet));
    // What comes amid it.
    EXPECT_EQ(ReceiveAll(b_.get()), 0);
    ASSERT_TRUE(b_->PrepareToSleep());
    EXPECT_FALSE(IsReadable(b_.get(), 0));
    send();
    ASSERT_TRUE(IsReadable(b_.get(), kPatienceMs));
    ASSERT_TRUE(ReceiveAwake(b_.get(), &packet));
  }
}

TEST_P(UdpPortTest, ABusyAddressHidesNoOther) {
  OPEN_OR_SKIP(OpenV4Pair());
  UdpPortError error;
  b_.reset();
  b_ = OpenKind({.addresses = {{Loopback(2)}, {Loopback(3)}}, .port = b_udp_port_}, &error);
  ASSERT_NE(b_, nullptr) << error.text;
  wire::PacketAddress to_other = to_b_;
  to_other.destination = Loopback(3);
  auto send = [&](const wire::PacketAddress& to) {
    Send(a_.get(), to, MakePacket(64, 1));
    a_->Flush({});
  };
  for (int sleeps = 0; sleeps < 3; ++sleeps) {
    InPacket packet;
    for (int i = 0; i < 200; ++i) {
      send(to_b_);
      ASSERT_TRUE(ReceiveAwake(b_.get(), &packet));
    }
    // More than one look takes from the busy one, and something for the other.
    for (int i = 0; i < 100; ++i) send(to_b_);
    send(to_other);
    std::map<Gid, int> received;
    for (int i = 0; i < 101; ++i) {
      ASSERT_TRUE(ReceiveAwake(b_.get(), &packet)) << i;
      ++received[packet.address.destination];
    }
    EXPECT_EQ(received[Loopback(2)], 100);
    EXPECT_EQ(received[Loopback(3)], 1);
    // Each of them wakes.
    for (const wire::PacketAddress& to : {to_b_, to_other}) {
      do {
        EXPECT_EQ(ReceiveAll(b_.get()), 0);
      } while (!b_->PrepareToSleep());
      send(to);
      ASSERT_TRUE(IsReadable(b_.get(), kPatienceMs));
      ASSERT_TRUE(ReceiveAwake(b_.get(), &packet));
      EXPECT_EQ(packet.address.destination, to.destination);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, UdpPortTest,
                         testing::Values(Kind{"epoll", NetIo::kEpoll},
                                         Kind{"uring", NetIo::kUring}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace verbena::transport
