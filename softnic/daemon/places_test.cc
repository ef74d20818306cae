// Places through the daemon: a session of the NIC makes one, a session of connection management
// serves it, and peers' lanes come and go without either doing anything.
#include <gtest/gtest.h>

#include "core/shm/rdm.h"
#include "softnic/daemon/cm_test_client.h"

namespace verbena::softnic {
namespace {

using shm::CmHandle;
using shm::CmOp;
using shm::CommandOp;

class Places : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr uint16_t kPort = 4'000;
  static constexpr char kKey[] = "a key";

  static std::vector<std::string> Flags(bool is_wire) {
    std::vector<std::string> flags = {"--nics=2"};
    if (is_wire) flags.push_back("--wire=1");
    return flags;
  }
  Places() : daemon(Flags(GetParam())), server(daemon), client(daemon) {
    server_channel = server.CreateChannel();
    client_channel = client.CreateChannel();
    shm::Hello hello = nic.hello();
    hello.nic = 1;
    EXPECT_TRUE(nic.Attach(daemon.directory(), hello));
  }
  shm::CmAddress AddressOf(int of, uint16_t port) const {
    const std::string devices = daemon.Ask("{\"op\":\"devices\"}");
    size_t at = 0;
    for (int i = 0; i <= of; ++i) at = devices.find("\"ipv4\":\"", at) + 8;
    return CmAddressOf(devices.substr(at, devices.find('"', at) - at).c_str(), port);
  }
  void CreatePlace() {
    shm::HandleReply pd;
    ASSERT_EQ(nic.Command(CommandOp::kAllocOwnKeyPd, nullptr, 0, &pd, sizeof(pd)), 0);
    shm::CreateCqRequest cq_request = {};
    cq_request.entries = 16;
    shm::CreateCqReply cq;
    ASSERT_EQ(nic.Command(CommandOp::kCreateCq, &cq_request, sizeof(cq_request), &cq, sizeof(cq)),
              0);
    shm::CreateSrqRequest srq_request = {};
    srq_request.pd = pd.handle;
    srq_request.max_wr = 16;
    srq_request.max_sge = 2;
    srq_request.flags = shm::kSrqMarked | shm::kSrqTruncates;
    shm::CreateSrqReply srq;
    ASSERT_EQ(
        nic.Command(CommandOp::kCreateSrq, &srq_request, sizeof(srq_request), &srq, sizeof(srq)),
        0);
    shm::CreatePlaceRequest request = {};
    request.pd = pd.handle;
    request.srq = srq.srq;
    request.recv_cq = cq.cq;
    request.token[5] = 5;
    shm::CreatePlaceReply reply;
    ASSERT_EQ(
        nic.Command(CommandOp::kCreatePlace, &request, sizeof(request), &reply, sizeof(reply)), 0);
    place = reply.place;
  }
  void Serve() {
    place_id = server.CreateId(server_channel, 1, shm::kPortSpaceRdm);
    ASSERT_EQ(server.Bind(place_id, AddressOf(1, kPort)), 0);
    shm::CmRequest request = CmTestClient::RequestOf(CmOp::kServePlace, place_id);
    request.place.token[5] = 5;
    request.place.auth_key_bytes = sizeof(kKey);
    std::memcpy(request.place.auth_key, kKey, sizeof(kKey));
    ASSERT_EQ(server.Ask(request), 0);
  }
  // As far as the answer to the REQ.
  uint32_t ConnectLane(CmHandle* id) {
    *id = client.CreateId(client_channel, 7, shm::kPortSpaceRdm);
    shm::CmRequest request = CmTestClient::RequestOf(CmOp::kResolveAddr, *id);
    request.resolve.source = AddressOf(0, kPort);
    request.resolve.destination = AddressOf(1, kPort);
    request.resolve.timeout_ms = 2000;
    EXPECT_EQ(client.Ask(request), 0);
    EXPECT_EQ(client.NextEvent(client_channel), kAddrResolved);
    EXPECT_EQ(client.Ask(CmOp::kResolveRoute, *id, 2000), 0);
    EXPECT_EQ(client.NextEvent(client_channel), kRouteResolved);
    shm::RdmRequestData data = {};
    data.version = shm::kRdmVersion;
    data.auth_key_bytes = sizeof(kKey);
    std::memcpy(data.auth_key, kKey, sizeof(kKey));
    const std::string bytes(reinterpret_cast<const char*>(&data), sizeof(data));
    EXPECT_EQ(client.Connect(CmOp::kConnect, *id, 7, 0x111, bytes), 0);
    return client.NextEvent(client_channel);
  }
  CmHandle MakeLane() {
    CmHandle id = 0;
    EXPECT_EQ(ConnectLane(&id), kConnectResponse);
    EXPECT_EQ(client.Ask(CmOp::kEstablish, id), 0);
    return id;
  }
  // The RTU may still be under way when the other end goes; then that is what the end answers, by a
  // REJ.
  void ExpectEnd() {
    const uint32_t event = client.NextEvent(client_channel);
    EXPECT_TRUE(event == kDisconnected || event == kRejected) << event;
  }
  bool HasLanes(size_t count) const {
    const std::string rows = daemon.Ask("{\"op\":\"show\",\"kind\":\"place\"}");
    return rows.find("\"lanes\":\"" + std::to_string(count) + "\"") != std::string::npos;
  }
  bool HasPlace() const {
    return daemon.Ask("{\"op\":\"show\",\"kind\":\"place\"}").find("\"lanes\"") !=
           std::string::npos;
  }

  TestDaemon daemon;
  TestClient nic;
  CmTestClient server, client;
  CmHandle server_channel = 0, client_channel = 0, place_id = 0;
  shm::Handle place = 0;
};

TEST_P(Places, LanesComeAndGoAndAreShown) {
  CmHandle id;
  EXPECT_EQ(ConnectLane(&id), kRejected);
  EXPECT_EQ(client.reply.event.status, 8);  // nobody is there
  ASSERT_NO_FATAL_FAILURE(Serve());
  EXPECT_EQ(ConnectLane(&id), kRejected);
  EXPECT_EQ(client.reply.event.status, 28);
  shm::RdmRejectData why;
  std::memcpy(&why, client.reply.event.param.private_data, sizeof(why));
  EXPECT_EQ(why.reason, static_cast<uint8_t>(shm::RdmRejectReason::kNoPlace));
  ASSERT_NO_FATAL_FAILURE(CreatePlace());
  id = MakeLane();
  EXPECT_TRUE(HasLanes(1));
  EXPECT_NE(daemon.Ask("{\"op\":\"show\",\"kind\":\"qp\"}").find(":4000\""), std::string::npos);
  EXPECT_EQ(client.Ask(CmOp::kDisconnect, id), 0);
  EXPECT_EQ(client.NextEvent(client_channel), kDisconnected);
  EXPECT_TRUE(Eventually([&] { return HasLanes(0); }));
  EXPECT_FALSE(server.IsReadable(server_channel));  // it never hears of any
}

TEST_P(Places, AKilledPeerLeavesNoLane) {
  ASSERT_NO_FATAL_FAILURE(CreatePlace());
  ASSERT_NO_FATAL_FAILURE(Serve());
  MakeLane();
  EXPECT_TRUE(HasLanes(1));
  client.CloseSocket();
  EXPECT_TRUE(Eventually([&] { return HasLanes(0); }));
}

TEST_P(Places, PeersHearOfAKilledEndpoint) {
  ASSERT_NO_FATAL_FAILURE(CreatePlace());
  ASSERT_NO_FATAL_FAILURE(Serve());
  MakeLane();
  nic.Close();
  ExpectEnd();
  EXPECT_TRUE(Eventually([&] { return !HasPlace(); }));
}

TEST_P(Places, PeersHearWhenAPlaceIsServedNoMore) {
  ASSERT_NO_FATAL_FAILURE(CreatePlace());
  ASSERT_NO_FATAL_FAILURE(Serve());
  MakeLane();
  EXPECT_EQ(server.Ask(CmOp::kDestroyId, place_id), 0);
  ExpectEnd();
  EXPECT_TRUE(Eventually([&] { return HasLanes(0); }));
}

INSTANTIATE_TEST_SUITE_P(Fabrics, Places, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Wire" : "Local");
});

}  // namespace
}  // namespace verbena::softnic
