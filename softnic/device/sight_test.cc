// Whose packets are, as captures, traces and fault rules have it.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "softnic/device/gsi.h"
#include "softnic/device/test_wire.h"

namespace verbena::softnic::testing {
namespace {

// The worlds' clients are processes "test (pid 100)", "test (pid 101)", …
class Sight : public ::testing::Test {
 protected:
  Sight() : a(world.AddClient(0)), b(world.AddClient(1)) {
    cq_a = a.MustCreateCq();
    cq_b = b.MustCreateCq();
  }
  static std::string Text(Qpn qpn) {
    char text[16];
    std::snprintf(text, sizeof text, "QP 0x%x", qpn.value);
    return text;
  }
  // Of packets of NIC 0.
  std::string Sent(const Gid& to, const transport::Pdu& pdu) const {
    return world.device->DescribePacket(0, {TestWorld::GidOf(0), to}, pdu, true);
  }
  std::string Received(const Gid& to, const transport::Pdu& pdu) const {
    return world.device->DescribePacket(0, {Peer(), to}, pdu, false);
  }
  static transport::Pdu PduTo(Service service, Qpn qpn, Qpn source = Qpn{0}) {
    transport::Pdu pdu;
    pdu.service = service;
    pdu.dest_qpn = qpn;
    pdu.src_qpn = source;
    return pdu;
  }
  static Gid Peer() { return Gid::FromIpv4(0x0a00'0009); }
  static Gid Group() { return Gid::FromIpv4(0xe001'0203); }
  static Qpn Join(TestClient& client, TestCq& cq) {
    TestQp qp = client.MustCreateQp(Service::kUd, cq);
    shm::McastRequest request{qp.handle, 0, {}};
    std::memcpy(request.gid, Group().raw.data(), 16);
    EXPECT_EQ(client.ExecuteRaw(shm::CommandOp::kAttachMcast, &request, sizeof request, nullptr, 0),
              0);
    return qp.qpn;
  }

  TestWorld world;
  TestClient& a;
  TestClient& b;
  TestCq cq_a, cq_b;
};

TEST_F(Sight, ConnectedQpsAreFoundByTheirPeer) {
  TestQp qp = a.MustCreateQp(Service::kRc, cq_a);
  ASSERT_EQ(a.ToInit(qp, Service::kRc), 0);
  ASSERT_EQ(a.ToRtr(qp, Service::kRc, Peer(), Qpn{0x77}), 0);
  const std::string own = "test (pid 100) " + Text(qp.qpn);
  EXPECT_EQ(Sent(Peer(), PduTo(Service::kRc, Qpn{0x77})), own + " → 10.0.0.9 QP 0x77");
  EXPECT_EQ(Received(TestWorld::GidOf(0), PduTo(Service::kRc, qp.qpn)),
            own + " ← 10.0.0.9 QP 0x77");
}

TEST_F(Sight, DatagramsNameBothQps) {
  TestQp qp = a.MustCreateQp(Service::kUd, cq_a);
  const std::string own = "test (pid 100) " + Text(qp.qpn);
  EXPECT_EQ(Sent(Peer(), PduTo(Service::kUd, Qpn{0x77}, qp.qpn)), own + " → 10.0.0.9 QP 0x77");
  EXPECT_EQ(Received(TestWorld::GidOf(0), PduTo(Service::kUd, qp.qpn, Qpn{0x77})),
            own + " ← 10.0.0.9 QP 0x77");
  EXPECT_EQ(Received(TestWorld::GidOf(0), PduTo(Service::kUd, kQpnGsi, kQpnGsi)),
            "connection management QP 0x1 ← 10.0.0.9 QP 0x1");
}

TEST_F(Sight, AQpThatIsNobodysIsSaidToBe) {
  EXPECT_EQ(Received(TestWorld::GidOf(0), PduTo(Service::kRc, Qpn{0x4242})),
            "QP 0x4242 (nobody's) ← 10.0.0.9");
  EXPECT_EQ(Received(TestWorld::GidOf(0), PduTo(Service::kUd, Qpn{0x4242}, Qpn{0x77})),
            "QP 0x4242 (nobody's) ← 10.0.0.9 QP 0x77");
  EXPECT_EQ(Sent(Peer(), PduTo(Service::kRc, Qpn{0x77})), "a QP that is gone → 10.0.0.9 QP 0x77");
}

TEST_F(Sight, MulticastIsAGroupsAndItsMembersOnTheNic) {
  const transport::Pdu pdu = PduTo(Service::kUd, kMulticastQpn, Qpn{0x77});
  Join(b, cq_b);  // on NIC 1
  EXPECT_EQ(Received(Group(), pdu), "group 224.1.2.3: no member here ← 10.0.0.9 QP 0x77");
  const Qpn first = Join(a, cq_a);
  const std::string members = "group 224.1.2.3: test (pid 100) " + Text(first);
  EXPECT_EQ(Received(Group(), pdu), members + " ← 10.0.0.9 QP 0x77");
  const Qpn second = Join(a, cq_a);
  EXPECT_EQ(Received(Group(), pdu),
            members + ", test (pid 100) " + Text(second) + " ← 10.0.0.9 QP 0x77");
  for (int i = 0; i < 5; ++i) Join(a, cq_a);
  EXPECT_NE(Received(Group(), pdu).find(" and 3 more ← 10.0.0.9 QP 0x77"), std::string::npos)
      << Received(Group(), pdu);
  EXPECT_EQ(Sent(Group(), PduTo(Service::kUd, kMulticastQpn, first)),
            "test (pid 100) " + Text(first) + " → group 224.1.2.3 QP 0xffffff");
}

}  // namespace
}  // namespace verbena::softnic::testing
