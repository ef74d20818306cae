// Rate limits of QPs.
#include "softnic/device/qp_rate.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "softnic/device/test_wire.h"

namespace verbena::softnic::testing {
namespace {

namespace qp_mask = shm::qp_mask;
constexpr uint32_t kAll = access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead;

TEST(RateLimitTest, KeepsToTheRate) {
  RateLimit limit;
  limit.Set(8'000, 10'000);  // a byte each microsecond
  Instant now{1'000'000};
  uint64_t bytes = 0;
  const Instant end = now + Milliseconds(100);
  while (now < end) {
    const Instant next = limit.OnSent(now, 1'000 - RateLimit::kPacketOverheadBytes, 1);
    bytes += 1'000;
    now = std::max(now, next);
  }
  EXPECT_GE(bytes, 100'000u);
  EXPECT_LE(bytes, 100'000u + 10'000 + 1'000);
}

TEST(RateLimitTest, ABurstIsNotSavedUpWithoutEnd) {
  RateLimit limit;
  limit.Set(8'000, 10'000);
  Instant now{Seconds(100).ns};  // long idle
  int sent = 0;
  for (Instant next = now; next <= now; ++sent) next = limit.OnSent(now, 942, 1);
  EXPECT_EQ(sent, 11);
}

class QpRateTest : public ::testing::TestWithParam<Service> {
 protected:
  QpRateTest()
      : a(world.AddClient(0)),
        b(world.AddClient(1)),
        cq_a(a.MustCreateCq(1'024)),
        cq_b(b.MustCreateCq(1'024)),
        mr_a(a.MustRegMr(memory, sizeof(memory), kAll)) {
    for (auto [client, cq, qp] : {std::tuple{&a, &cq_a, &qp_a}, std::tuple{&b, &cq_b, &qp_b}}) {
      shm::CreateQpRequest request = client->QpRequest(GetParam(), cq->handle);
      request.max_send_wr = request.max_recv_wr = 64;
      EXPECT_EQ(client->CreateQp(request, qp), 0);
    }
    Connect(a, qp_a, b, qp_b, GetParam());
    if (GetParam() == Service::kUd) ah = a.CreateAh(world.GidOf(1));
  }
  int Limit(uint32_t kbps, uint32_t burst_bytes = 0, uint32_t packet_bytes = 0) {
    shm::ModifyQpRequest request{};
    request.qp = qp_a.handle;
    request.mask = qp_mask::kRateLimit;
    request.attr.rate_limit = kbps;
    request.max_burst_bytes = burst_bytes;
    request.typical_packet_bytes = packet_bytes;
    shm::ModifyQpReply reply;
    return a.Execute(shm::CommandOp::kModifyQp, request, &reply);
  }
  uint32_t Rate() {
    shm::HandleRequest request{qp_a.handle, 0};
    shm::QueryQpReply reply{};
    EXPECT_EQ(a.Execute(shm::CommandOp::kQueryQp, request, &reply), 0);
    return reply.attr.rate_limit;
  }
  // Posts so many messages of 942 bytes, 1000 with their headers. When all have completed.
  Duration TimeToSend(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, i);
      if (GetParam() == Service::kUd) {
        wqe.opcode = static_cast<uint8_t>(shm::WrOpcode::kSend);
        wqe.ah = ah;
        wqe.remote_qpn = qp_b.qpn.value;
        wqe.remote_qkey = 0x1111;
      }
      if (GetParam() != Service::kUd) {
        mr_b = b_mr();
        wqe.remote_addr = reinterpret_cast<uint64_t>(target);
        wqe.rkey = mr_b.rkey;
      }
      a.Post(qp_a, wqe, {SgeOf(memory, 942, mr_a.lkey)});
    }
    const Instant begin = world.now;
    Instant last = begin;
    uint32_t done = 0;
    EXPECT_TRUE(world.RunUntil(
        [&] {
          const auto polled = a.PollAll(cq_a);
          if (!polled.empty()) last = world.now;
          return (done += static_cast<uint32_t>(polled.size())) == count;
        },
        5'000));
    return last - begin;
  }
  TestMr b_mr() {
    if (mr_b.handle == 0) mr_b = b.MustRegMr(target, sizeof(target), kAll);
    return mr_b;
  }

  alignas(64) uint8_t memory[4'096] = {};
  alignas(64) uint8_t target[4'096] = {};
  TestWorld world;
  TestClient& a;
  TestClient& b;
  TestCq cq_a, cq_b;
  TestQp qp_a, qp_b;
  TestMr mr_a, mr_b;
  shm::Handle ah = 0;
};
std::string NameOfService(const ::testing::TestParamInfo<Service>& info) {
  return info.param == Service::kRc ? "Rc" : info.param == Service::kUc ? "Uc" : "Ud";
}
INSTANTIATE_TEST_SUITE_P(Services, QpRateTest,
                         ::testing::Values(Service::kRc, Service::kUc, Service::kUd),
                         NameOfService);

TEST_P(QpRateTest, SendsNoFasterThanItsLimit) {
  ASSERT_EQ(Limit(8'000, 2'000), 0);  // 1000 bytes in a millisecond
  EXPECT_EQ(Rate(), 8'000u);
  const Duration time = TimeToSend(50);
  EXPECT_GE(time, Milliseconds(47));
  EXPECT_LE(time, Milliseconds(51));
}

TEST_P(QpRateTest, ANewLimitHoldsAndZeroEndsIt) {
  ASSERT_EQ(Limit(8'000, 2'000), 0);
  EXPECT_GE(TimeToSend(10), Milliseconds(7));
  ASSERT_EQ(Limit(80'000, 2'000), 0);
  const Duration time = TimeToSend(50);
  EXPECT_LE(time, Milliseconds(8));
  EXPECT_GE(time, Milliseconds(4));
  ASSERT_EQ(Limit(0), 0);
  EXPECT_EQ(Rate(), 0u);
  EXPECT_EQ(TimeToSend(50), Duration{0});
}

TEST_P(QpRateTest, AResetForgetsTheLimit) {
  ASSERT_EQ(Limit(8'000, 2'000), 0);
  TimeToSend(10);
  ASSERT_EQ(a.ToReset(qp_a), 0);
  ASSERT_EQ(b.ToReset(qp_b), 0);
  EXPECT_EQ(Rate(), 0u);
  Connect(a, qp_a, b, qp_b, GetParam());
  EXPECT_EQ(TimeToSend(50), Duration{0});
}

TEST_P(QpRateTest, ADestroyedQpIsNotWaitedFor) {
  ASSERT_EQ(Limit(8, 1), 0);
  a.Post(qp_a, MakeWqe(shm::WrOpcode::kRdmaRead, 1), {});  // fails in the end, but not yet
  a.Post(qp_a, MakeWqe(shm::WrOpcode::kRdmaRead, 2), {});
  ASSERT_EQ(a.DoHandle(shm::CommandOp::kDestroyQp, qp_a.handle), 0);
  world.RunUntil([] { return false; }, 10);
  EXPECT_TRUE(world.device->PollTimeout().IsNever());
}

TEST_P(QpRateTest, RefusesWhatItDoesNotOffer) {
  EXPECT_EQ(Limit(100'000'000), 0);
  EXPECT_EQ(Limit(100'000'001), EINVAL);
  EXPECT_EQ(Limit(0, 1'000), EINVAL) << "a burst without a rate";
  EXPECT_EQ(Limit(0, 0, 1'000), EINVAL) << "a packet size without a rate";
  EXPECT_EQ(Limit(1'000, 1'000, 1'000), 0);
  EXPECT_EQ(Rate(), 1'000u);
  shm::ModifyQpRequest request{};  // a burst without naming the attribute
  request.qp = qp_a.handle;
  request.max_burst_bytes = 1'000;
  shm::ModifyQpReply reply;
  EXPECT_EQ(a.Execute(shm::CommandOp::kModifyQp, request, &reply), EINVAL);
  ASSERT_EQ(a.ToReset(qp_a), 0);
  EXPECT_EQ(Limit(1'000), EINVAL) << "in RESET";
}

// Over a network, where a message is made of parts: RC must not take its own pauses for losses.
class QpRateWire : public Wire {
 protected:
  // At the largest path MTU, where a part of a message by itself asks for no acknowledgement.
  int ToRtr(TestClient& client, const TestQp& qp, const Gid& dgid, Qpn remote) {
    shm::QpAttr attr{};
    attr.qp_state = static_cast<uint32_t>(QpState::kRtr);
    std::memcpy(attr.ah_attr.dgid, dgid.raw.data(), 16);
    attr.ah_attr.is_global = attr.ah_attr.sgid_index = attr.ah_attr.port_num = 1;
    attr.ah_attr.hop_limit = 64;
    attr.path_mtu = 5;
    attr.dest_qp_num = remote.value;
    attr.rq_psn = 0x123456;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 1;
    return client.Modify(qp, attr,
                         qp_mask::kState | qp_mask::kAv | qp_mask::kPathMtu | qp_mask::kDestQpn |
                             qp_mask::kRqPsn | qp_mask::kMaxDestRdAtomic | qp_mask::kMinRnrTimer);
  }
  void ConnectWithLargeMtu() {
    qp_a = alice.MustCreateQp(Service::kRc, cq_a);
    qp_b = bob.MustCreateQp(Service::kRc, cq_b);
    ASSERT_EQ(alice.ToInit(qp_a, Service::kRc), 0);
    ASSERT_EQ(bob.ToInit(qp_b, Service::kRc), 0);
    ASSERT_EQ(ToRtr(alice, qp_a, GidOf(1), qp_b.qpn), 0);
    ASSERT_EQ(ToRtr(bob, qp_b, GidOf(0), qp_a.qpn), 0);
    ASSERT_EQ(alice.ToRts(qp_a, Service::kRc), 0);
    ASSERT_EQ(bob.ToRts(qp_b, Service::kRc), 0);
  }
};
INSTANTIATE_TEST_SUITE_P(Cable, QpRateWire, ::testing::Bool(), Wire::NameOf);

TEST_P(QpRateWire, PausesAreNoLosses) {
  ConnectWithLargeMtu();
  shm::QpAttr attr{};
  attr.rate_limit = 800;  // a part of 56 KB takes half a second, the ACK timeout is an eighth
  ASSERT_EQ(alice.Modify(qp_a, attr, qp_mask::kRateLimit), 0);
  const Instant begin = a->now;
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  ASSERT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(from, to);
  EXPECT_GE(a->now - begin, Milliseconds(2'200));
  EXPECT_LE(a->now - begin, Milliseconds(3'300));
  EXPECT_EQ(ports[0].counters().sent_packets, (kBytes + 4'095) / 4'096);
}

TEST_P(QpRateWire, UcIsPacedPartByPart) {
  Connect(Service::kUc);
  shm::QpAttr attr{};
  attr.rate_limit = 8'000;
  ASSERT_EQ(alice.Modify(qp_a, attr, qp_mask::kRateLimit), 0);
  const Instant begin = a->now;
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  ASSERT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_GE(a->now - begin, Milliseconds(220));
  EXPECT_LE(a->now - begin, Milliseconds(330));
}

}  // namespace
}  // namespace verbena::softnic::testing
