// Events on request.
#include <gtest/gtest.h>

#include <string>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

using Kind = EventTarget::Kind;

class InjectTest : public ::testing::Test {
 protected:
  InjectTest() : a(world.AddClient(0)), b(world.AddClient(0)), c(world.AddClient(1)) {}

  uint32_t Inject(const char* event, Kind kind = Kind::kPort, uint32_t number = 0,
                  SessionId session = 0, const char* nic = nullptr) {
    error.clear();
    EventTarget target{nic != nullptr ? nic : TestWorld::ConfigOf(0).name, kind, number, session};
    return world.device->InjectEvent(world.now, event, target, &error);
  }

  TestWorld world;
  TestClient& a;
  TestClient& b;
  TestClient& c;
  std::string error;
};

TEST_F(InjectTest, APortsEventGoesToAllWhoHaveTheNicOpen) {
  const std::pair<const char*, EventType> kEvents[] = {
      {"device_fatal", EventType::kDeviceFatal},
      {"port_active", EventType::kPortActive},
      {"port_err", EventType::kPortErr},
      {"lid_change", EventType::kLidChange},
      {"pkey_change", EventType::kPkeyChange},
      {"sm_change", EventType::kSmChange},
      {"client_reregister", EventType::kClientReregister},
      {"gid_change", EventType::kGidChange},
      {"device_speed_change", EventType::kDeviceSpeedChange},
  };
  for (const auto& [name, event] : kEvents) {
    EXPECT_EQ(Inject(name), 2u) << name;
    EXPECT_EQ(error, "");
    EXPECT_EQ(a.services.async_events.back().object, kPortNumber);
    EXPECT_EQ(a.TakeAsyncEvents(), std::vector<EventType>{event});
    EXPECT_EQ(b.TakeAsyncEvents(), std::vector<EventType>{event});
    EXPECT_TRUE(c.TakeAsyncEvents().empty()) << "another NIC's";
  }
}

TEST_F(InjectTest, AQpsEventGoesToItsOwner) {
  TestCq cq = a.MustCreateCq();
  TestQp qp = a.MustCreateQp(Service::kRc, cq);
  const std::pair<const char*, EventType> kEvents[] = {
      {"qp_fatal", EventType::kQpFatal},
      {"qp_req_err", EventType::kQpReqErr},
      {"qp_access_err", EventType::kQpAccessErr},
      {"comm_est", EventType::kCommEst},
      {"sq_drained", EventType::kSqDrained},
      {"path_mig", EventType::kPathMig},
      {"path_mig_err", EventType::kPathMigErr},
      {"qp_last_wqe_reached", EventType::kQpLastWqeReached},
  };
  for (const auto& [name, event] : kEvents) {
    EXPECT_EQ(Inject(name, Kind::kQp, qp.qpn.value), 1u) << name;
    EXPECT_EQ(a.services.async_events.back().object, qp.handle);
    EXPECT_EQ(a.TakeAsyncEvents(), std::vector<EventType>{event});
    EXPECT_TRUE(b.TakeAsyncEvents().empty());
  }
  EXPECT_EQ(a.StateOf(qp), QpState::kReset) << "nothing happened to it";
}

TEST_F(InjectTest, CqsAndSrqsHaveTheirs) {
  TestCq cq = a.MustCreateCq();
  EXPECT_EQ(Inject("cq_err", Kind::kCq, cq.handle, a.id), 1u);
  EXPECT_EQ(a.TakeAsyncEvents(), std::vector<EventType>{EventType::kCqErr});
  TestQp qp;
  EXPECT_EQ(a.CreateQp(a.QpRequest(Service::kRc, cq.handle), &qp), 0) << "it is as it was";
  TestSrq srq;
  ASSERT_EQ(b.CreateSrq(8, 1, &srq), 0);
  EXPECT_EQ(Inject("srq_err", Kind::kSrq, srq.reply.srqn), 1u);
  EXPECT_EQ(Inject("srq_limit_reached", Kind::kSrq, srq.reply.srqn), 1u);
  EXPECT_EQ(b.TakeAsyncEvents(),
            (std::vector<EventType>{EventType::kSrqErr, EventType::kSrqLimitReached}));
}

TEST_F(InjectTest, SaysWhatIsWrong) {
  EXPECT_EQ(Inject("nonsense"), 0u);
  EXPECT_NE(error.find("path_mig_err"), std::string::npos) << error;
  EXPECT_EQ(Inject("port_err", Kind::kQp, 17), 0u);
  EXPECT_EQ(error, "port_err is an event of the port, not of a QP");
  EXPECT_EQ(Inject("path_mig"), 0u);
  EXPECT_EQ(error, "path_mig is an event of a QP, not of the port");
  EXPECT_EQ(Inject("path_mig", Kind::kQp, 0xabcdef), 0u);
  EXPECT_NE(error.find("no such object"), std::string::npos) << error;
  EXPECT_EQ(Inject("cq_err", Kind::kCq, 1, 77), 0u);
  EXPECT_NE(error, "");
  EXPECT_EQ(Inject("port_err", Kind::kPort, 0, 0, "eth0"), 0u);
  EXPECT_EQ(error, "there is no NIC \"eth0\"");
  EXPECT_TRUE(a.TakeAsyncEvents().empty());
}

}  // namespace
}  // namespace verbena::softnic::testing
