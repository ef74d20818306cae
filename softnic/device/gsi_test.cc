// QP1: MADs between the NICs of one instance, and of two with a cable between them.
#include "softnic/device/gsi.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "softnic/device/test_wire.h"

namespace verbena::softnic::testing {
namespace {

namespace wire = transport::wire;

struct ReceivedMad {
  uint32_t nic;
  Gid local, remote;
  std::vector<std::byte> bytes;
};

class MadLog {
 public:
  explicit MadLog(DeviceCore* device) {
    device->SetMadHandler([this](uint32_t nic, const Gid& local, const Gid& remote,
                                 const std::byte* bytes, size_t length) {
      mads.push_back({nic, local, remote, {bytes, bytes + length}});
    });
  }
  std::vector<ReceivedMad> mads;
};

std::array<std::byte, kMadBytes> MadOf(uint8_t fill) {
  std::array<std::byte, kMadBytes> mad;
  mad.fill(std::byte{fill});
  mad[0] = std::byte{1};  // base version
  return mad;
}

int Send(TestWorld& world, uint32_t nic, const Gid& sgid, const Gid& dgid,
         const std::array<std::byte, kMadBytes>& mad) {
  return world.device->SendMad(world.now, nic, sgid, dgid, mad.data(), mad.size());
}

TEST(GsiTest, AMadReachesANicOfTheInstance) {
  TestWorld world(2);
  MadLog log(world.device.get());
  ASSERT_EQ(Send(world, 0, TestWorld::GidOf(0), TestWorld::GidOf(1), MadOf(7)), 0);
  ASSERT_EQ(log.mads.size(), 1u);
  EXPECT_EQ(log.mads[0].nic, 1u);
  EXPECT_EQ(log.mads[0].local, TestWorld::GidOf(1));
  EXPECT_EQ(log.mads[0].remote, TestWorld::GidOf(0));
  EXPECT_EQ(std::memcmp(log.mads[0].bytes.data(), MadOf(7).data(), kMadBytes), 0);
}

TEST(GsiTest, ItsLinkLocalAddressIsTheNicsToo) {
  TestWorld world(2);
  MadLog log(world.device.get());
  const Gid from = LinkLocalGidOf(TestWorld::ConfigOf(0));
  const Gid to = LinkLocalGidOf(TestWorld::ConfigOf(1));
  ASSERT_EQ(Send(world, 0, from, to, MadOf(7)), 0);
  ASSERT_EQ(log.mads.size(), 1u);
  EXPECT_EQ(log.mads[0].local, to);
  EXPECT_EQ(log.mads[0].remote, from);
}

TEST(GsiTest, ANicTalksToItself) {
  TestWorld world(1);
  MadLog log(world.device.get());
  ASSERT_EQ(Send(world, 0, TestWorld::GidOf(0), TestWorld::GidOf(0), MadOf(7)), 0);
  EXPECT_EQ(log.mads.size(), 1u);
}

TEST(GsiTest, WhatNobodyCanSendIsRefused) {
  TestWorld world(2);
  MadLog log(world.device.get());
  const Gid own = TestWorld::GidOf(0), other = TestWorld::GidOf(1);
  std::array<std::byte, kMadBytes + 1> longer{};
  EXPECT_EQ(world.device->SendMad(world.now, 0, own, other, longer.data(), longer.size()), EINVAL);
  EXPECT_EQ(world.device->SendMad(world.now, 0, own, other, longer.data(), kMadBytes - 1), EINVAL);
  EXPECT_EQ(Send(world, 2, own, other, MadOf(1)), EINVAL) << "no such NIC";
  EXPECT_EQ(Send(world, 0, other, own, MadOf(1)), EADDRNOTAVAIL) << "the other NIC's address";
  Gid group;
  group.raw[0] = 0xff;
  EXPECT_EQ(Send(world, 0, own, group, MadOf(1)), EINVAL);
  EXPECT_EQ(Send(world, 0, own, Gid::FromIpv4(0x0a00'0001), MadOf(1)), 0) << "lost, as on a wire";
  EXPECT_TRUE(log.mads.empty());
}

TEST(GsiTest, APortThatIsDownNeitherSendsNorReceives) {
  TestWorld world(2);
  MadLog log(world.device.get());
  for (uint32_t down : {0u, 1u}) {
    world.device->SetPortState(world.now, down, false);
    EXPECT_EQ(Send(world, 0, TestWorld::GidOf(0), TestWorld::GidOf(1), MadOf(7)), 0);
    EXPECT_TRUE(log.mads.empty());
    world.device->SetPortState(world.now, down, true);
  }
  EXPECT_EQ(Send(world, 0, TestWorld::GidOf(0), TestWorld::GidOf(1), MadOf(7)), 0);
  EXPECT_EQ(log.mads.size(), 1u);
}

TEST(GsiTest, ADatagramOfAClientDoesNotReachQp1) {
  TestWorld world(2);
  MadLog log(world.device.get());
  TestClient& client = world.AddClient(0);
  TestCq cq = client.MustCreateCq();
  TestQp qp = client.MustCreateQp(Service::kUd, cq);
  EXPECT_GT(qp.qpn.value, kQpnGsi.value);
  ASSERT_EQ(client.ToInit(qp, Service::kUd), 0);
  ASSERT_EQ(client.ToRtr(qp, Service::kUd, {}, {}), 0);
  ASSERT_EQ(client.ToRts(qp, Service::kUd), 0);
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kSend, 1);
  wqe.ah = client.CreateAh(TestWorld::GidOf(1));
  wqe.remote_qpn = kQpnGsi.value;
  wqe.remote_qkey = kGsiQkey.value;
  std::array<std::byte, kMadBytes> mad = MadOf(1);
  TestMr mr = client.MustRegMr(mad.data(), mad.size(), access::kLocalWrite);
  client.Post(qp, wqe, {SgeOf(mad.data(), kMadBytes, mr.lkey)});
  world.Settle();
  EXPECT_EQ(client.Poll(cq)->status, WcStatus::kSuccess);
  EXPECT_TRUE(log.mads.empty());
}

class GsiWire : public Wire {
 protected:
  GsiWire() : log(b->device.get()) {}

  int SendToB(uint8_t fill) { return Send(*a, 0, GidOf(0), GidOf(1), MadOf(fill)); }
  // What host 1 gets when a packet goes out with these header fields.
  void SendRaw(const transport::Pdu& pdu, uint32_t payload_bytes) {
    std::vector<std::byte> bytes(wire::kHeaderBytesMax + payload_bytes);
    transport::Pdu with_length = pdu;
    with_length.payload.length = payload_bytes;
    transport::OutPacket out;
    out.address.source = GidOf(0);
    out.address.destination = GidOf(1);
    out.length = wire::EncodeHeaders(with_length, bytes.data()) + payload_bytes;
    out.bytes = bytes.data();
    ASSERT_TRUE(ports[0].Send(a->now, out));
    Settle();
  }
  static transport::Pdu HeadersOfMad() {
    transport::Pdu pdu;
    pdu.service = Service::kUd;
    pdu.opcode = transport::Opcode::kSendOnly;
    pdu.pkey = kDefaultPkey;
    pdu.qkey = kGsiQkey;
    pdu.src_qpn = pdu.dest_qpn = kQpnGsi;
    return pdu;
  }

  MadLog log;
};

TEST_P(GsiWire, AMadCrossesTheNetwork) {
  std::vector<Datagram> seen;
  ports[0].filter = [&](Datagram& datagram) {
    seen.push_back(datagram);
    return true;
  };
  ASSERT_EQ(SendToB(1), 0);
  ASSERT_EQ(SendToB(2), 0);
  Settle();
  ASSERT_EQ(log.mads.size(), 2u);
  EXPECT_EQ(log.mads[0].nic, 0u);
  EXPECT_EQ(log.mads[0].local, GidOf(1));
  EXPECT_EQ(log.mads[0].remote, GidOf(0));
  EXPECT_EQ(std::memcmp(log.mads[1].bytes.data(), MadOf(2).data(), kMadBytes), 0);
  // What kernel rxe asks of it: facts as in IBTA 9.8.3.
  transport::Pdu pdu;
  ASSERT_EQ(wire::Decode(seen[1].bytes.data(), static_cast<uint32_t>(seen[1].bytes.size()), &pdu),
            wire::DecodeError::kNone);
  EXPECT_EQ(pdu.service, Service::kUd);
  EXPECT_EQ(pdu.opcode, transport::Opcode::kSendOnly);
  EXPECT_EQ(pdu.dest_qpn, Qpn{1});
  EXPECT_EQ(pdu.src_qpn, Qpn{1});
  EXPECT_EQ(pdu.qkey, QKey{0x8001'0000});
  EXPECT_EQ(pdu.pkey, PKey{0xffff});
  EXPECT_EQ(pdu.psn, Psn{1});
  EXPECT_EQ(pdu.payload.length, 256u);
  EXPECT_EQ(CountersOf(0).tx_packets, 2u);
  EXPECT_EQ(CountersOf(1).rx_packets, 2u);
}

TEST_P(GsiWire, APacketLikeAMadIsOne) {
  SendRaw(HeadersOfMad(), kMadBytes);
  EXPECT_EQ(log.mads.size(), 1u);
}

TEST_P(GsiWire, AWrongQkeyIsCountedAndDropped) {
  transport::Pdu pdu = HeadersOfMad();
  pdu.qkey = QKey{0x8001'0001};
  SendRaw(pdu, kMadBytes);
  EXPECT_TRUE(log.mads.empty());
  EXPECT_EQ(b->device->ListNicStatuses().at(0).qkey_violations, 1u);
}

TEST_P(GsiWire, AWrongLengthIsDropped) {
  SendRaw(HeadersOfMad(), kMadBytes + 4);
  SendRaw(HeadersOfMad(), kMadBytes - 4);
  SendRaw(HeadersOfMad(), 0);
  EXPECT_TRUE(log.mads.empty());
  EXPECT_EQ(CountersOf(1).rx_malformed, 3u);
}

TEST_P(GsiWire, OnlyAQp1SpeaksToIt) {
  transport::Pdu pdu = HeadersOfMad();
  pdu.src_qpn = Qpn{17};
  SendRaw(pdu, kMadBytes);
  EXPECT_TRUE(log.mads.empty());
  EXPECT_EQ(CountersOf(1).rx_wrong_peer, 1u);
}

TEST_P(GsiWire, OtherServicesAndPartitionsDoNotReachIt) {
  transport::Pdu pdu = HeadersOfMad();
  pdu.service = Service::kRc;
  SendRaw(pdu, kMadBytes);
  EXPECT_EQ(CountersOf(1).rx_no_qp, 1u);
  pdu = HeadersOfMad();
  pdu.pkey = PKey{0x8001};
  SendRaw(pdu, kMadBytes);
  EXPECT_EQ(CountersOf(1).rx_bad_pkey, 1u);
  pdu = HeadersOfMad();
  pdu.opcode = transport::Opcode::kSendOnlyWithImm;
  SendRaw(pdu, kMadBytes);
  EXPECT_EQ(CountersOf(1).rx_malformed, 1u);
  EXPECT_TRUE(log.mads.empty());
}

TEST_P(GsiWire, ABrokenMadIsDropped) {
  ports[0].filter = [](Datagram& datagram) {
    datagram.bytes[40] ^= std::byte{1};
    return true;
  };
  ASSERT_EQ(SendToB(1), 0);
  Settle();
  EXPECT_TRUE(log.mads.empty());
  EXPECT_EQ(CountersOf(1).rx_icrc_errors, 1u);
}

TEST_P(GsiWire, APortThatIsDownDropsIt) {
  a->device->SetPortState(a->now, 0, false);
  EXPECT_EQ(SendToB(1), 0);
  a->device->SetPortState(a->now, 0, true);
  b->device->SetPortState(b->now, 0, false);
  EXPECT_EQ(SendToB(2), 0);
  Settle();
  EXPECT_TRUE(log.mads.empty());
  EXPECT_EQ(CountersOf(0).tx_dropped, 1u);
}

TEST_P(GsiWire, WaitsForRoomInOrder) {
  ports[0].room = 0;
  ports[0].room_per_flush = 1;
  for (uint8_t i = 0; i < 5; ++i) ASSERT_EQ(SendToB(i), 0);
  EXPECT_TRUE(ports[1].inbox.empty());
  for (int i = 0; i < 5; ++i) Settle();
  ASSERT_EQ(log.mads.size(), 5u);
  for (uint8_t i = 0; i < 5; ++i) EXPECT_EQ(log.mads[i].bytes[1], std::byte{i});
}

TEST_P(GsiWire, WhatWaitsIsBounded) {
  ports[0].room = 0;
  for (size_t i = 0; i < GsiQueue::kPacketsMax + 10; ++i) ASSERT_EQ(SendToB(1), 0);
  EXPECT_EQ(CountersOf(0).tx_dropped, 10u);
  ports[0].room = CablePort::kUnlimited;
  Settle();
  EXPECT_EQ(log.mads.size(), GsiQueue::kPacketsMax);
}

TEST_P(GsiWire, WhatWaitedIsLostWithThePort) {
  ports[0].room = 0;
  ASSERT_EQ(SendToB(1), 0);
  a->device->AttachPort(0, nullptr);
  a->device->FlushPorts(a->now);
  a->device->AttachPort(0, &ports[0]);
  ports[0].room = CablePort::kUnlimited;
  Settle();
  EXPECT_TRUE(log.mads.empty());
}

INSTANTIATE_TEST_SUITE_P(Packets, GsiWire, ::testing::Bool(), Wire::NameOf);

TEST(GsiWireOnly, NicsOfOneInstanceTalkByTheNetworkToo) {
  TestWorld world(0);
  MadLog log(world.device.get());
  for (uint32_t nic : {0u, 1u}) {
    NicConfig config = TestWorld::ConfigOf(nic);
    config.is_wire_only = true;
    world.device->AddNic(config);
  }
  CablePort ports[2];
  ports[0].other = &ports[1];
  ports[1].other = &ports[0];
  for (uint32_t nic : {0u, 1u}) world.device->AttachPort(nic, &ports[nic]);
  ASSERT_EQ(Send(world, 0, TestWorld::GidOf(0), TestWorld::GidOf(1), MadOf(3)), 0);
  EXPECT_EQ(ports[1].inbox.size(), 1u);
  EXPECT_TRUE(world.device->PollPorts(world.now, 16));
  ASSERT_EQ(log.mads.size(), 1u);
  EXPECT_EQ(log.mads[0].nic, 1u);
  for (uint32_t nic : {0u, 1u}) world.device->AttachPort(nic, nullptr);
}

}  // namespace
}  // namespace verbena::softnic::testing
