// Places of RDM endpoints: lanes that the service accepts by itself, and their ends.
#include <errno.h>

#include <set>

#include "core/shm/rdm.h"
#include "softnic/cm/ip_header.h"
#include "softnic/cm/test_world.h"

namespace verbena::softnic {
namespace {

using shm::CmOp;
using shm::kPortSpaceRdm;
using shm::RdmRejectReason;
using transport::cm::Dreq;
using transport::cm::Rej;
using transport::cm::Rep;
using transport::cm::Req;

constexpr uint16_t kPort = 4'000;

class CmLanes : public CmWorld {
 protected:
  CmLanes() : client_(StartProgram(0)), server_(StartProgram(1)) {}

  // An identifier as an endpoint has: of its address and port.
  shm::CmHandle NewEndpoint(const Program& program, uint16_t port = kPort) {
    const shm::CmHandle id = NewId(program, kPortSpaceRdm);
    EXPECT_EQ(Bind(program, id, At(IpOf(program.host).c_str(), port)), 0);
    return id;
  }
  int Serve(const Program& program, shm::CmHandle id, const std::string& key = "") {
    shm::CmRequest request = RequestOf(CmOp::kServePlace, id);
    request.place.token[0] = 42;
    request.place.auth_key_bytes = static_cast<uint8_t>(key.size());
    std::memcpy(request.place.auth_key, key.data(), std::min<size_t>(key.size(), 32));
    return Ask(program, request).error;
  }
  static std::string DataWith(const std::string& key, uint8_t version = shm::kRdmVersion) {
    shm::RdmRequestData data{};
    data.version = version;
    data.auth_key_bytes = static_cast<uint8_t>(key.size());
    std::memcpy(data.auth_key, key.data(), key.size());
    return std::string(reinterpret_cast<const char*>(&data), sizeof(data));
  }
  // From the client's own address and port, up to the REQ's departure.
  shm::CmHandle RequestLane(uint32_t qpn, const std::string& data = DataWith(""),
                            uint16_t source_port = kPort) {
    const shm::CmHandle id = NewId(client_, kPortSpaceRdm);
    EXPECT_EQ(
        ResolveAddress(client_, id, At(IpOf(1).c_str(), kPort), At(IpOf(0).c_str(), source_port)),
        0);
    EXPECT_EQ(Take(client_)->event, RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(Ask(client_, CmOp::kResolveRoute, id, 2000).error, 0);
    EXPECT_EQ(Take(client_)->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
    shm::CmRequest request = RequestOf(CmOp::kConnect, id);
    request.connect.param = ParamOf(qpn, data);
    request.connect.place_token[0] = own_token_;
    request.connect.qp_rnr_retry = 5;
    EXPECT_EQ(Ask(client_, request).error, 0);
    return id;
  }
  // ... up to its arrival.
  shm::CmHandle ConnectLane(uint32_t qpn, const std::string& data = DataWith(""),
                            uint16_t source_port = kPort) {
    const shm::CmHandle id = RequestLane(qpn, data, source_port);
    Settle();
    return id;
  }
  // What the device is asked for; each lane is made, unless `refuses_` says otherwise.
  std::vector<CmService::LaneOrder> Obey(int host = 1) {
    std::vector<CmService::LaneOrder> orders;
    CmService::LaneOrder order;
    while (hosts_[host]->PollLaneOrder(&order)) {
      orders.push_back(order);
      if (order.kind != CmService::LaneOrder::Kind::kMake) continue;
      LaneAnswer answer{refuses_, 0, {}};
      if (refuses_ == RdmRejectReason::kNone) {
        answer = {refuses_, next_lane_, Qpn{0x76 + static_cast<uint32_t>(next_lane_)}};
        ++next_lane_;
      }
      hosts_[host]->OnLaneMade(now_, order.nic, order.comm, answer);
      Drain(host);
    }
    return orders;
  }
  // Established, and the lane's number.
  LaneId MakeLane(uint32_t qpn, shm::CmHandle* id) {
    *id = ConnectLane(qpn);
    EXPECT_EQ(Obey().size(), 1u);
    EXPECT_EQ(Take(client_)->event, RDMA_CM_EVENT_CONNECT_RESPONSE);
    EXPECT_EQ(Do(client_, CmOp::kEstablish, *id), 0);
    Settle();
    return next_lane_ - 1;
  }
  RdmRejectReason ReasonOf(const shm::CmEvent& event) {
    EXPECT_EQ(event.event, RDMA_CM_EVENT_REJECTED);
    EXPECT_EQ(event.status, 28);
    shm::RdmRejectData data;
    std::memcpy(&data, event.param.private_data, sizeof(data));
    EXPECT_EQ(data.version, shm::kRdmVersion);
    return static_cast<RdmRejectReason>(data.reason);
  }
  void ExpectNothingIsLeft() {
    Rest();
    for (int host = 0; host < kHosts; ++host) EXPECT_EQ(CountersOf(host).communications, 0u);
  }

  Program client_, server_;
  RdmRejectReason refuses_ = RdmRejectReason::kNone;
  uint8_t own_token_ = 0;  // 0: the program sets its QP by itself
  LaneId next_lane_ = 1;
};

TEST_F(CmLanes, ALaneIsAcceptedWithoutTheProgram) {
  const shm::CmHandle place = NewEndpoint(server_);
  ASSERT_EQ(Serve(server_, place, "key"), 0);
  const shm::CmHandle id = ConnectLane(0x11, DataWith("key"));
  const std::vector<CmService::LaneOrder> orders = Obey();
  ASSERT_EQ(orders.size(), 1u);
  const LaneRequest& request = orders[0].request;
  EXPECT_EQ(request.token[0], 42);
  EXPECT_EQ(request.nic, 0u);
  EXPECT_EQ(request.local, GidOf(At(IpOf(1).c_str())));
  EXPECT_EQ(request.remote, GidOf(At(IpOf(0).c_str())));
  EXPECT_TRUE(IsSameHost(request.source, At(IpOf(0).c_str())));
  EXPECT_EQ(request.source.port, htons(kPort));
  EXPECT_EQ(request.remote_qpn.value, 0x11u);
  EXPECT_EQ(request.path_mtu, IBV_MTU_1024);
  EXPECT_EQ(request.reads_max, 3);
  ASSERT_NO_FATAL_FAILURE(Expect(client_, RDMA_CM_EVENT_CONNECT_RESPONSE));
  EXPECT_EQ(last_.param.qp_num, 0x77u);
  EXPECT_EQ(last_.param.srq, 1);
  // The QP sends from the PSN that the lane expects.
  const shm::CmReply rtr = Ask(client_, CmOp::kInitQpAttr, id, IBV_QPS_RTS);
  EXPECT_EQ(rtr.qp_attr.sq_psn, request.first_psn.value());
  EXPECT_EQ(rtr.qp_attr.rnr_retry, 7);
  ASSERT_EQ(Do(client_, CmOp::kEstablish, id), 0);
  Settle();
  ExpectSilence(server_);

  ASSERT_EQ(Do(client_, CmOp::kDisconnect, id), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(client_, RDMA_CM_EVENT_DISCONNECTED));
  const std::vector<CmService::LaneOrder> end = Obey();
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(end[0].lane, 1u);
  ExpectSilence(server_);
  ExpectNothingIsLeft();
}

TEST_F(CmLanes, TheSendersQpIsConnectedWithoutItsProgram) {
  ASSERT_EQ(Serve(server_, NewEndpoint(server_)), 0);
  own_token_ = 43;
  const shm::CmHandle id = ConnectLane(0x11);
  const LaneRequest lane = Obey().at(0).request;
  Settle();
  // All that the program would set, at once, and nothing for it to do.
  const std::vector<CmService::LaneOrder> orders = Obey(0);
  ASSERT_EQ(orders.size(), 1u);
  ASSERT_EQ(orders[0].kind, CmService::LaneOrder::Kind::kConnectSender);
  const LaneSender& sender = orders[0].sender;
  EXPECT_EQ(sender.token[0], 43);
  EXPECT_EQ(sender.nic, 0u);
  EXPECT_EQ(sender.qpn.value, 0x11u);
  EXPECT_EQ(sender.rtr.qp_state, IBV_QPS_RTR);
  EXPECT_EQ(sender.rtr.dest_qp_num, 0x77u);
  EXPECT_EQ(sender.rts.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(sender.rts.sq_psn, lane.first_psn.value());
  EXPECT_EQ(sender.rts.rnr_retry, 5);
  ExpectSilence(client_);
  hosts_[0]->OnSenderConnected(now_, orders[0].nic, orders[0].comm, 0);
  Drain(0);
  ASSERT_NO_FATAL_FAILURE(Expect(client_, RDMA_CM_EVENT_ESTABLISHED));
  Settle();
  ExpectSilence(server_);
  ASSERT_EQ(Do(client_, CmOp::kDisconnect, id), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(client_, RDMA_CM_EVENT_DISCONNECTED));
  EXPECT_EQ(Obey().size(), 1u);
  ExpectNothingIsLeft();
}

TEST_F(CmLanes, ASenderThatTheDeviceRefusesIsToldAndItsLaneGoes) {
  ASSERT_EQ(Serve(server_, NewEndpoint(server_)), 0);
  own_token_ = 43;
  ConnectLane(0x11);
  Obey();
  Settle();
  const std::vector<CmService::LaneOrder> orders = Obey(0);
  ASSERT_EQ(orders.size(), 1u);
  hosts_[0]->OnSenderConnected(now_, orders[0].nic, orders[0].comm, ENOENT);
  Drain(0);
  ASSERT_NO_FATAL_FAILURE(Expect(client_, RDMA_CM_EVENT_CONNECT_ERROR, -ENOENT));
  Settle();
  const std::vector<CmService::LaneOrder> end = Obey();
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(end[0].kind, CmService::LaneOrder::Kind::kDrop);
  ExpectNothingIsLeft();
}

TEST_F(CmLanes, ASenderThatGoesMeanwhileIsNotToldOf) {
  ASSERT_EQ(Serve(server_, NewEndpoint(server_)), 0);
  own_token_ = 43;
  const shm::CmHandle id = ConnectLane(0x11);
  Obey();
  Settle();
  const std::vector<CmService::LaneOrder> orders = Obey(0);
  ASSERT_EQ(orders.size(), 1u);
  Destroy(client_, id);
  hosts_[0]->OnSenderConnected(now_, orders[0].nic, orders[0].comm, 0);
  Drain(0);
  ExpectSilence(client_);
  Settle();
  EXPECT_EQ(Obey().size(), 1u);  // the lane's end
  ExpectNothingIsLeft();
}

TEST_F(CmLanes, OnlyLanesHaveTheirQpsConnected) {
  shm::CmRequest request = RequestOf(CmOp::kConnect, NewId(client_));
  Resolve(client_, request.handle, At(IpOf(1).c_str(), kPort));
  request.connect.param = ParamOf(0x11);
  request.connect.place_token[0] = 43;
  EXPECT_EQ(Ask(client_, request).error, EINVAL);
}

TEST_F(CmLanes, AnEndpointsPortIsItsPlacesAndAllItsLanes) {
  // Both programs have one, and each connects to the other and to itself.
  const shm::CmHandle own = NewEndpoint(client_), place = NewEndpoint(server_);
  ASSERT_EQ(Serve(client_, own), 0);
  ASSERT_EQ(Serve(server_, place), 0);
  shm::CmHandle ids[3];
  for (uint32_t i = 0; i < 3; ++i) MakeLane(0x11 + i, &ids[i]);
  // Nobody else has it, and no other identifier serves there.
  const Program other = StartProgram(0);
  const shm::CmHandle thief = NewId(other, kPortSpaceRdm);
  EXPECT_EQ(SetOption(other, thief, /*name=*/1, 1), 0);  // reuse of addresses
  EXPECT_EQ(Bind(other, thief, At(IpOf(0).c_str(), kPort)), EADDRINUSE);
  EXPECT_EQ(Serve(client_, NewEndpoint(client_)), EADDRINUSE);
  // It is free when the last is gone.
  Destroy(client_, own);
  for (shm::CmHandle id : ids) Destroy(client_, id);
  Destroy(client_, NewEndpoint(client_));
  Close(client_);
  EXPECT_EQ(Bind(other, thief, At(IpOf(0).c_str(), kPort)), 0);
}

TEST_F(CmLanes, WhatIsNoPlaceIsRefused) {
  const shm::CmHandle tcp = NewId(server_);
  ASSERT_EQ(Bind(server_, tcp, At(IpOf(1).c_str(), kPort)), 0);
  EXPECT_EQ(Serve(server_, tcp), EINVAL);
  EXPECT_EQ(Serve(server_, NewId(server_, kPortSpaceRdm)), EINVAL);  // not bound
  const shm::CmHandle everywhere = NewId(server_, kPortSpaceRdm);
  ASSERT_EQ(Bind(server_, everywhere, At("0.0.0.0", 4'001)), 0);
  EXPECT_EQ(Serve(server_, everywhere), EINVAL);
  const shm::CmHandle id = NewEndpoint(server_);
  EXPECT_EQ(Serve(server_, id, std::string(33, 'k')), EINVAL);
  EXPECT_EQ(Listen(server_, id), EINVAL);
  EXPECT_EQ(Serve(server_, id), 0);
  EXPECT_EQ(Serve(server_, id), EINVAL);
}

TEST_F(CmLanes, APeerLearnsWhyItIsRefused) {
  ConnectLane(0x11);
  ASSERT_NO_FATAL_FAILURE(Expect(client_, RDMA_CM_EVENT_REJECTED, 8));  // nobody is there
  ASSERT_EQ(Serve(server_, NewEndpoint(server_), "key"), 0);
  for (const std::string wrong : {"", "ke", "kez", "key2"}) {
    ConnectLane(0x11, DataWith(wrong));
    EXPECT_EQ(ReasonOf(Take(client_).value()), RdmRejectReason::kAuthKey) << wrong;
  }
  ConnectLane(0x11, DataWith("key", /*version=*/9));
  EXPECT_EQ(ReasonOf(Take(client_).value()), RdmRejectReason::kBadRequest);
  ConnectLane(0x11, "");
  EXPECT_EQ(ReasonOf(Take(client_).value()), RdmRejectReason::kBadRequest);
  EXPECT_TRUE(Obey().empty());
  for (RdmRejectReason why : {RdmRejectReason::kNoPlace, RdmRejectReason::kNoResources}) {
    refuses_ = why;
    ConnectLane(0x11, DataWith("key"));
    Obey();
    EXPECT_EQ(ReasonOf(Take(client_).value()), why);
  }
  ExpectNothingIsLeft();
}

TEST_F(CmLanes, APeerSpeaksForItsOwnAddressAlone) {
  ASSERT_EQ(Serve(server_, NewEndpoint(server_)), 0);
  RequestLane(0x11);
  ASSERT_EQ(flights_.size(), 1u);
  transport::cm::Mad& mad = flights_[0].mad;
  transport::cm::Message message;
  ASSERT_EQ(transport::cm::Decode(mad.data(), mad.size(), &message),
            transport::cm::DecodeError::kNone);
  std::byte* data = std::get<Req>(message.body).private_data.data();
  IpHeader header;
  ASSERT_TRUE(DecodeIpHeader(data, &header));
  header.source = At("10.0.0.9", kPort);
  EncodeIpHeader(header, data);
  mad = transport::cm::Encode(message);
  Settle();
  EXPECT_TRUE(Obey().empty());
  EXPECT_EQ(ReasonOf(Take(client_).value()), RdmRejectReason::kBadRequest);
  ExpectNothingIsLeft();
}

TEST_F(CmLanes, AnEndpointThatGoesTakesItsLanesAlong) {
  const shm::CmHandle place = NewEndpoint(server_);
  ASSERT_EQ(Serve(server_, place), 0);
  shm::CmHandle one, two;
  const LaneId lane_one = MakeLane(0x11, &one), lane_two = MakeLane(0x12, &two);
  Destroy(server_, place);
  std::set<LaneId> dropped;
  for (const CmService::LaneOrder& order : Obey()) dropped.insert(order.lane);
  EXPECT_EQ(dropped, (std::set<LaneId>{lane_one, lane_two}));
  ASSERT_NO_FATAL_FAILURE(Expect(client_, RDMA_CM_EVENT_DISCONNECTED));
  ASSERT_NO_FATAL_FAILURE(Expect(client_, RDMA_CM_EVENT_DISCONNECTED));
  ConnectLane(0x13);
  ASSERT_NO_FATAL_FAILURE(Expect(client_, RDMA_CM_EVENT_REJECTED, 8));
}

TEST_F(CmLanes, AKilledProgramTakesItsLanesAlong) {
  ASSERT_EQ(Serve(server_, NewEndpoint(server_)), 0);
  shm::CmHandle id;
  const LaneId lane = MakeLane(0x11, &id);
  Close(client_);  // the active side: its DREQ ends the lane
  Settle();
  std::vector<CmService::LaneOrder> orders = Obey();
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].lane, lane);
  ExpectNothingIsLeft();
}

TEST_F(CmLanes, TheDeviceMayEndALane) {
  ASSERT_EQ(Serve(server_, NewEndpoint(server_)), 0);
  shm::CmHandle id;
  const LaneId lane = MakeLane(0x11, &id);
  hosts_[1]->OnLaneEnded(now_, lane);
  Drain(1);
  ASSERT_NO_FATAL_FAILURE(Expect(client_, RDMA_CM_EVENT_DISCONNECTED));
  EXPECT_TRUE(Obey().empty()) << "it knows";
  hosts_[1]->OnLaneEnded(now_, lane);  // once more is no matter
}

// Between the order and the answer everything may have changed.
TEST_F(CmLanes, ALaneThatNobodyWantsAnyMoreIsDropped) {
  const shm::CmHandle place = NewEndpoint(server_);
  ASSERT_EQ(Serve(server_, place), 0);
  ConnectLane(0x11);
  CmService::LaneOrder order;
  ASSERT_TRUE(hosts_[1]->PollLaneOrder(&order));
  Destroy(server_, place);
  hosts_[1]->OnLaneMade(now_, order.nic, order.comm, {RdmRejectReason::kNone, 9, Qpn{0x77}});
  std::vector<CmService::LaneOrder> orders = Obey();
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].lane, 9u);
}

// A peer that never says RTU holds nothing for ever.
TEST_F(CmLanes, APeerThatIsGoneIsNotWaitedForLong) {
  ASSERT_EQ(Serve(server_, NewEndpoint(server_)), 0);
  ConnectLane(0x11);
  Obey();
  is_cut_ = true;
  Rest();
  std::vector<CmService::LaneOrder> orders = Obey();
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].lane, 1u);
}

TEST_F(CmLanes, ANicThatGoesTakesItsPlacesAlong) {
  ASSERT_EQ(Serve(server_, NewEndpoint(server_)), 0);
  shm::CmHandle id;
  const LaneId lane = MakeLane(0x11, &id);
  std::vector<CmNic> nics = NicsOf(1);
  nics.erase(nics.begin());
  hosts_[1]->SetNics(now_, nics);
  Drain(1);
  std::vector<CmService::LaneOrder> orders = Obey();
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].lane, lane);
}

}  // namespace
}  // namespace verbena::softnic
