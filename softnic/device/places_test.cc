// Places, their lanes and sources: what connection management asks for, and what peers send.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "core/shm/rdm.h"
#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

using shm::CommandOp;
using shm::RdmRejectReason;

shm::CmAddress At(uint32_t host, uint16_t port) {
  shm::CmAddress address{};
  address.family = AF_INET;
  address.port = htons(port);
  const uint32_t ipv4 = htonl(0x7f00'0001 + host);
  std::memcpy(address.addr, &ipv4, sizeof(ipv4));
  return address;
}

shm::Sge MarkOf(uint32_t flags, uint32_t min_free_bytes = 0, uint32_t source = 0) {
  const shm::RecvMark mark{flags, min_free_bytes, source, 0};
  shm::Sge sge;
  std::memcpy(&sge, &mark, sizeof(sge));
  return sge;
}

class Places : public ::testing::Test {
 protected:
  static constexpr uint64_t kCookie = 0x5e9;

  // A peer's QP and its lane.
  struct Peer {
    TestClient* client = nullptr;
    uint16_t port = 0;
    TestQp qp;
    LaneAnswer lane;
  };

  Places() : world(2), a(world.AddClient(0)), b(world.AddClient(1)) {
    for (size_t i = 0; i < sizeof(memory_a); ++i)
      memory_a[i] = static_cast<uint8_t>(i * 7 + i / 256);
    world.device->SetLaneEndHandler([this](LaneId lane) { ended.push_back(lane); });
    mr_a = a.MustRegMr(memory_a, sizeof(memory_a), access::kLocalWrite);
    cq_a = a.MustCreateCq();
    shm::HandleReply pd;
    EXPECT_EQ(b.ExecuteRaw(CommandOp::kAllocOwnKeyPd, nullptr, 0, &pd, sizeof(pd)), 0);
    b.pd = pd.handle;
    EXPECT_EQ(b.RegMr(b.pd, memory_b, sizeof(memory_b), access::kLocalWrite, &mr_b), 0);
    cq_b = b.MustCreateCq();
    EXPECT_EQ(b.CreateSrq(16, 3, &srq, shm::kSrqMarked | shm::kSrqTruncates), 0);
    EXPECT_EQ(MakePlace(), 0);
  }
  shm::CreatePlaceRequest PlaceRequest(uint8_t token) const {
    shm::CreatePlaceRequest request{};
    request.pd = b.pd;
    request.srq = srq.handle;
    request.recv_cq = cq_b.handle;
    request.access_flags = access::kRemoteWrite | access::kRemoteRead;
    request.token[3] = token;
    request.cookie = kCookie;
    return request;
  }
  int MakePlace(uint32_t lanes_max = 0) {
    shm::CreatePlaceRequest request = PlaceRequest(7);
    request.lanes_max = lanes_max;
    shm::CreatePlaceReply reply;
    const int error = b.Execute(CommandOp::kCreatePlace, request, &reply);
    place = reply.place;
    return error;
  }
  LaneRequest RequestOf(const Peer& peer) const {
    LaneRequest request;
    request.token[3] = 7;
    request.nic = 1;
    request.local = TestWorld::GidOf(1);
    request.remote = TestWorld::GidOf(peer.client->nic);
    request.source = At(peer.client->nic, peer.port);
    request.remote_qpn = peer.qp.qpn;
    request.first_psn = Psn(0x123456);
    request.path_mtu = 3;
    request.hop_limit = 64;
    request.reads_max = 4;
    return request;
  }
  Peer ConnectPeer(uint16_t port) {
    Peer peer{&a, port, a.MustCreateQp(Service::kRc, cq_a), {}};
    peer.lane = world.device->MakeLane(world.now, RequestOf(peer));
    if (peer.lane.reason != RdmRejectReason::kNone) return peer;
    EXPECT_EQ(a.ToInit(peer.qp, Service::kRc), 0);
    EXPECT_EQ(a.ToRtr(peer.qp, Service::kRc, TestWorld::GidOf(1), peer.lane.qpn), 0);
    EXPECT_EQ(a.ToRts(peer.qp, Service::kRc), 0);
    return peer;
  }
  void Send(Peer& peer, uint32_t at, uint32_t length) {
    a.Post(peer.qp, MakeWqe(shm::WrOpcode::kSend, at), {SgeOf(memory_a + at, length, mr_a.lkey)});
  }
  void PostRecv(uint64_t wr_id, uint32_t at, uint32_t length, shm::Sge mark = MarkOf(0)) {
    b.PostSrqRecv(srq, wr_id, {mark, SgeOf(memory_b + at, length, mr_b.lkey)});
  }
  // Of 500 bytes to a receive of 1000 that takes several. DMA is held, so its placement stays under
  // way.
  void DropLaneAmidMessage() {
    Peer peer = ConnectPeer(1'000);
    PostRecv(1, 0, 1'000, MarkOf(shm::kRecvMulti, 100));
    world.dma.is_held = true;
    Send(peer, 0, 500);
    world.device->Run(world.now, 64);
    world.device->DropLane(world.now, peer.lane.lane);
  }
  int Query(uint32_t source, shm::QuerySourceReply* reply) {
    return b.Execute(CommandOp::kQuerySource, shm::QuerySourceRequest{place, source}, reply);
  }
  uint32_t Name(const shm::CmAddress& address) {
    shm::HandleReply reply;
    EXPECT_EQ(b.Execute(CommandOp::kNameSource, shm::NameSourceRequest{place, address}, &reply), 0);
    return reply.handle;
  }
  uint64_t Qps() const { return world.device->Show(ShowKind::kQp).size(); }

  alignas(64) uint8_t memory_a[16'384];
  alignas(64) uint8_t memory_b[16'384] = {};
  std::vector<LaneId> ended;
  TestWorld world;
  TestClient& a;
  TestClient& b;
  TestMr mr_a, mr_b;
  TestCq cq_a, cq_b;
  TestSrq srq;
  shm::Handle place = 0;
};

TEST_F(Places, MessagesComeByLanesAndTellTheirSource) {
  Peer one = ConnectPeer(1'000), two = ConnectPeer(2'000);
  ASSERT_NE(one.lane.lane, two.lane.lane);
  for (uint64_t i = 0; i < 3; ++i) PostRecv(i, 4'096 * static_cast<uint32_t>(i), 4'096);
  Send(one, 0, 3'000);
  world.Settle();
  Send(two, 100, 8);
  world.Settle();
  Send(one, 200, 8);
  world.Settle();
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), 3u);
  EXPECT_EQ(wcs[0].src_qpn, wcs[2].src_qpn);
  EXPECT_NE(wcs[0].src_qpn, wcs[1].src_qpn);
  EXPECT_EQ(wcs[0].qpn, one.lane.qpn.value);
  EXPECT_EQ(wcs[0].qp_handle, 0u);
  EXPECT_EQ(wcs[0].place, place);
  EXPECT_EQ(std::memcmp(memory_b, memory_a, 3'000), 0);
  shm::QuerySourceReply reply;
  ASSERT_EQ(Query(wcs[1].src_qpn, &reply), 0);
  EXPECT_EQ(reply.address.port, htons(2'000));
  EXPECT_EQ(std::memcmp(reply.address.addr, At(0, 0).addr, 16), 0);
  EXPECT_EQ(reply.lanes, 1u);
  EXPECT_EQ(Query(99, &reply), ENOENT);
  EXPECT_EQ(a.PollAll(cq_a).size(), 3u);
}

TEST_F(Places, ASendersQpBeginsWithWhatWasPostedBeforeItWasConnected) {
  // Of `b`, which has a place; to another QP, as a lane would be.
  TestQp qp = b.MustCreateQp(Service::kRc, cq_b), other = a.MustCreateQp(Service::kRc, cq_a);
  ASSERT_EQ(b.ToInit(qp, Service::kRc), 0);
  ASSERT_EQ(a.ToInit(other, Service::kRc), 0);
  ASSERT_EQ(a.ToRtr(other, Service::kRc, TestWorld::GidOf(1), qp.qpn), 0);
  a.PostRecv(other, 9, {SgeOf(memory_a, 64, mr_a.lkey)});
  b.Post(qp, MakeWqe(shm::WrOpcode::kSend, 1), {SgeOf(memory_b, 8, mr_b.lkey)});
  world.Settle();
  LaneSender sender;
  sender.token[3] = 7;
  sender.nic = 1;
  sender.qpn = qp.qpn;
  namespace mask = shm::qp_mask;
  sender.rtr.qp_state = static_cast<uint8_t>(QpState::kRtr);
  sender.rtr.mask = mask::kState | mask::kAv | mask::kPathMtu | mask::kDestQpn | mask::kRqPsn |
                    mask::kMaxDestRdAtomic | mask::kMinRnrTimer;
  sender.rtr.path_mtu = 3;
  sender.rtr.dest_qp_num = other.qpn.value;
  sender.rtr.ah.port_num = 1;
  sender.rtr.ah.hop_limit = 64;
  sender.rtr.ah.sgid_index = 1;
  std::memcpy(sender.rtr.ah.dgid, TestWorld::GidOf(0).raw.data(), 16);
  sender.rts.qp_state = static_cast<uint8_t>(QpState::kRts);
  sender.rts.mask = mask::kState | mask::kSqPsn | mask::kTimeout | mask::kRetryCnt |
                    mask::kRnrRetry | mask::kMaxQpRdAtomic;
  sender.rts.retry_cnt = sender.rts.rnr_retry = 7;
  sender.rts.timeout = 14;
  sender.rts.sq_psn = 0x123456;  // TestClient's

  LaneSender wrong = sender;
  wrong.token[3] = 8;
  EXPECT_EQ(world.device->ConnectSender(world.now, wrong), ENOENT);
  wrong = sender;
  wrong.nic = 0;
  EXPECT_EQ(world.device->ConnectSender(world.now, wrong), EINVAL);
  TestClient& stranger = world.AddClient(1);
  const TestQp foreign = stranger.MustCreateQp(Service::kRc, stranger.MustCreateCq());
  ASSERT_EQ(stranger.ToInit(foreign, Service::kRc), 0);
  for (const Qpn not_its_own : {foreign.qpn, ConnectPeer(1'000).lane.qpn, Qpn{0x12345}}) {
    wrong = sender;
    wrong.qpn = not_its_own;
    EXPECT_EQ(world.device->ConnectSender(world.now, wrong), EINVAL) << not_its_own.value;
  }
  wrong = sender;
  wrong.rtr.path_mtu = 77;
  EXPECT_EQ(world.device->ConnectSender(world.now, wrong), EINVAL);
  EXPECT_EQ(b.StateOf(qp), QpState::kInit);

  ASSERT_EQ(world.device->ConnectSender(world.now, sender), 0);
  world.Settle();
  EXPECT_EQ(b.Poll(cq_b).value_or(Wc{}).status, WcStatus::kSuccess);
  EXPECT_EQ(a.Poll(cq_a).value_or(Wc{}).wr_id, 9u);
  // Once.
  EXPECT_EQ(world.device->ConnectSender(world.now, sender), EINVAL);
}

TEST_F(Places, AWriteWithImmediateIsTheEndpoints) {
  shm::RegMrRequest region{};
  region.pd = b.pd;
  region.access = access::kLocalWrite | access::kRemoteWrite;
  region.addr = region.iova = reinterpret_cast<uint64_t>(memory_b);
  region.length = 64;
  region.flags = shm::kRegMrOwnKey;
  region.own_key = 4;
  shm::RegMrReply reply;
  ASSERT_EQ(b.Execute(CommandOp::kRegMr, region, &reply), 0);
  Peer peer = ConnectPeer(1'000);
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWriteWithImm, 1);
  wqe.remote_addr = region.addr;
  wqe.rkey = 4;
  a.Post(peer.qp, wqe, {SgeOf(memory_a, 8, mr_a.lkey)});
  world.Settle();
  const Wc wc = b.Poll(cq_b).value_or(Wc{});
  EXPECT_EQ(wc.opcode, shm::WcOpcode::kRecvRdmaWithImm);
  EXPECT_EQ(wc.wr_id, kCookie);
  EXPECT_EQ(wc.src_qpn, Name(At(0, 1'000)));
}

TEST_F(Places, ADirectedReceiveIsForItsSourceAlone) {
  const uint32_t two_is = Name(At(0, 2'000));  // known before it connects
  Peer one = ConnectPeer(1'000), two = ConnectPeer(2'000);
  PostRecv(1, 0, 64, MarkOf(shm::kRecvDirected, 0, two_is));
  PostRecv(2, 64, 64, MarkOf(shm::kRecvDirected, 0, two_is));
  PostRecv(3, 128, 64);
  Send(one, 0, 10);
  world.Settle();
  Send(two, 100, 10);
  world.Settle();
  Send(two, 200, 10);
  world.Settle();
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), 3u);
  EXPECT_EQ(wcs[0].wr_id, 3u);
  EXPECT_NE(wcs[0].src_qpn, two_is);
  EXPECT_EQ(wcs[1].wr_id, 1u);
  EXPECT_EQ(wcs[2].wr_id, 2u);
  EXPECT_EQ(wcs[1].src_qpn, two_is);
  // In the order posted, whether for anybody or for one.
  PostRecv(4, 192, 64);
  PostRecv(5, 256, 64, MarkOf(shm::kRecvDirected, 0, two_is));
  Send(two, 300, 10);
  world.Settle();
  EXPECT_EQ(b.Poll(cq_b)->wr_id, 4u);
  // None for the other: it waits, and fails when its retries are over.
  Send(one, 400, 10);
  ASSERT_TRUE(world.RunUntil([&] { return a.StateOf(one.qp) == QpState::kErr; }));
  EXPECT_TRUE(b.PollAll(cq_b).empty());
}

TEST_F(Places, WhatIsForAnyLaneIsForNoQpOfAnotherKind) {
  TestQp plain, peer = a.MustCreateQp(Service::kRc, cq_a);
  shm::CreateQpRequest request = b.QpRequest(Service::kRc, cq_b.handle);
  request.srq = srq.handle;
  ASSERT_EQ(b.CreateQp(request, &plain), 0);
  Connect(a, peer, b, plain, Service::kRc);
  PostRecv(1, 0, 64, MarkOf(shm::kRecvDirected, 0, Name(At(0, 1'000))));
  PostRecv(2, 64, 64);
  a.Post(peer, MakeWqe(shm::WrOpcode::kSend, 1), {SgeOf(memory_a, 8, mr_a.lkey)});
  world.Settle();
  const Wc wc = b.Poll(cq_b).value_or(Wc{});
  EXPECT_EQ(wc.wr_id, 2u);
  EXPECT_EQ(wc.src_qpn, peer.qpn.value);
  EXPECT_EQ(wc.qp_handle, plain.handle);
}

TEST_F(Places, APeerThatConnectsAgainReplacesItsLane) {
  Peer first = ConnectPeer(1'000);
  PostRecv(1, 0, 64);
  Send(first, 0, 8);
  world.Settle();
  const uint32_t source = b.Poll(cq_b)->src_qpn;
  const uint64_t qps = Qps();
  Peer again = ConnectPeer(1'000);
  EXPECT_EQ(ended, std::vector<LaneId>{first.lane.lane});
  EXPECT_EQ(Qps(), qps + 1);  // the peer's own
  PostRecv(2, 0, 64);
  Send(again, 0, 8);
  world.Settle();
  EXPECT_EQ(b.Poll(cq_b)->src_qpn, source);
  // The lane that went is nobody's any more.
  world.device->DropLane(world.now, first.lane.lane);
  PostRecv(3, 0, 64);
  Send(again, 0, 8);
  world.Settle();
  EXPECT_EQ(b.PollAll(cq_b).size(), 1u);
  world.device->DropLane(world.now, again.lane.lane);
  EXPECT_EQ(ended.size(), 1u);  // who asked for it knows
  shm::QuerySourceReply reply;
  ASSERT_EQ(Query(source, &reply), 0);
  EXPECT_EQ(reply.lanes, 0u);
}

TEST_F(Places, AtTheLimitTheLaneUnusedLongestGoes) {
  ASSERT_EQ(b.DoHandle(CommandOp::kDestroyPlace, place), 0);
  ASSERT_EQ(MakePlace(/*lanes_max=*/2), 0);
  Peer one = ConnectPeer(1'000), two = ConnectPeer(2'000);
  world.now = world.now + Microseconds(5);
  PostRecv(1, 0, 64);
  Send(one, 0, 8);
  world.Settle();
  Peer three = ConnectPeer(3'000);
  EXPECT_EQ(ended, std::vector<LaneId>{two.lane.lane});
  EXPECT_EQ(three.lane.reason, RdmRejectReason::kNone);
  // Nothing may be under way on one that goes.
  world.dma.is_held = true;
  PostRecv(2, 0, 64);
  PostRecv(3, 64, 64);
  Send(one, 0, 8);
  Send(three, 0, 8);
  world.device->Run(world.now, 64);
  EXPECT_EQ(ConnectPeer(4'000).lane.reason, RdmRejectReason::kNoResources);
  world.dma.is_held = false;
}

// ... whichever way its messages take: here a step that is over at once.
TEST_F(Places, AWriteInOneStepIsAUse) {
  ASSERT_EQ(b.DoHandle(CommandOp::kDestroyPlace, place), 0);
  ASSERT_EQ(MakePlace(/*lanes_max=*/2), 0);
  Peer one = ConnectPeer(1'000), two = ConnectPeer(2'000);
  PostRecv(1, 0, 64);
  PostRecv(2, 64, 64);
  for (Peer* peer : {&one, &two}) {
    world.now = world.now + Microseconds(5);
    Send(*peer, 0, 8);
    world.Settle();
  }
  world.now = world.now + Microseconds(5);
  a.Post(one.qp, MakeWqe(shm::WrOpcode::kRdmaWrite, 3), {});
  const uint64_t pdus_before = world.device->Stats().pdus;
  world.Settle();
  EXPECT_EQ(world.device->Stats().pdus, pdus_before + 2);
  ConnectPeer(3'000);
  EXPECT_EQ(ended, std::vector<LaneId>{two.lane.lane});
}

TEST_F(Places, WhoIsNotThereIsSaidToBeSo) {
  Peer peer{&a, 1'000, a.MustCreateQp(Service::kRc, cq_a), {}};
  auto reason_of = [this](const LaneRequest& request) {
    return world.device->MakeLane(world.now, request).reason;
  };
  LaneRequest request = RequestOf(peer);
  request.token[0] = 1;
  EXPECT_EQ(reason_of(request), RdmRejectReason::kNoPlace);
  request = RequestOf(peer);
  request.nic = 0;
  EXPECT_EQ(reason_of(request), RdmRejectReason::kNoPlace);
  request = RequestOf(peer);
  request.source.port = 0;
  EXPECT_EQ(reason_of(request), RdmRejectReason::kBadRequest);
  request = RequestOf(peer);
  request.local = TestWorld::GidOf(5);
  EXPECT_EQ(reason_of(request), RdmRejectReason::kBadRequest);
  request = RequestOf(peer);
  request.path_mtu = 9;
  EXPECT_EQ(reason_of(request), RdmRejectReason::kBadRequest);
  EXPECT_EQ(Qps(), 1u);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyPlace, place), 0);
  EXPECT_EQ(reason_of(RequestOf(peer)), RdmRejectReason::kNoPlace);
}

TEST_F(Places, WhatAPlaceNeedsStaysWhileItIsThere) {
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroySrq, srq.handle), EBUSY);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyCq, cq_b.handle), EBUSY);
  Peer peer = ConnectPeer(1'000);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyPlace, place), 0);
  EXPECT_EQ(ended, std::vector<LaneId>{peer.lane.lane});
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyPlace, place), ENOENT);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroySrq, srq.handle), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyCq, cq_b.handle), 0);
}

TEST_F(Places, ThingsThatMakeNoPlaceAreRefused) {
  shm::CreatePlaceReply reply;
  auto error_of = [&](auto change) {
    shm::CreatePlaceRequest request = PlaceRequest(8);
    change(request);
    return b.Execute(CommandOp::kCreatePlace, request, &reply);
  };
  TestSrq plain;
  ASSERT_EQ(b.CreateSrq(8, 2, &plain), 0);
  EXPECT_EQ(error_of([](auto& r) { r.token[3] = 0; }), EINVAL);  // no token
  EXPECT_EQ(error_of([](auto& r) { r.token[3] = 7; }), EEXIST);
  EXPECT_EQ(error_of([&](auto& r) { r.srq = plain.handle; }), EINVAL);
  EXPECT_EQ(error_of([](auto& r) { r.pd += 1; }), EINVAL);
  EXPECT_EQ(error_of([](auto& r) { r.recv_cq += 1; }), EINVAL);
  EXPECT_EQ(error_of([](auto& r) { r.access_flags = 1u << 9; }), EINVAL);
  EXPECT_EQ(error_of([](auto& r) { r.lanes_max = 1u << 20; }), EINVAL);
  EXPECT_EQ(error_of([](auto& r) { r.read_counter = 5; }), EINVAL);
  EXPECT_EQ(world.device->Show(ShowKind::kPlace).size(), 1u);
}

TEST_F(Places, NoCommandReachesALane) {
  Peer peer = ConnectPeer(1'000);
  // Its handle, as it happens, is what the first QP of the session would have.
  TestQp own = b.MustCreateQp(Service::kRc, cq_b);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyQp, own.handle), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyQp, own.handle), ENOENT);
  PostRecv(1, 0, 64);
  Send(peer, 0, 8);
  world.Settle();
  EXPECT_EQ(b.PollAll(cq_b).size(), 1u);
  EXPECT_TRUE(b.TakeAsyncEvents().empty());
}

// A key that the target refuses fails the lane; nothing that others have.
TEST_F(Places, ARefusedKeyFailsTheLaneAlone) {
  Peer one = ConnectPeer(1'000), two = ConnectPeer(2'000);
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
  wqe.remote_addr = reinterpret_cast<uint64_t>(memory_b);
  wqe.rkey = 0xbad;
  a.Post(one.qp, wqe, {SgeOf(memory_a, 8, mr_a.lkey)});
  ASSERT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
  EXPECT_EQ(a.Poll(cq_a)->status, WcStatus::kRemAccessErr);
  EXPECT_TRUE(b.PollAll(cq_b).empty());
  EXPECT_TRUE(b.TakeAsyncEvents().empty());
  PostRecv(1, 0, 64);
  Send(two, 0, 8);
  world.Settle();
  EXPECT_EQ(b.PollAll(cq_b).size(), 1u);
  Peer again = ConnectPeer(1'000);
  EXPECT_EQ(again.lane.reason, RdmRejectReason::kNone);
  EXPECT_EQ(ended, std::vector<LaneId>{one.lane.lane});
}

// A peer that ends amid a message leaves the receive to the next.
TEST_F(Places, AReceiveOutlivesTheLaneThatHadIt) {
  DropLaneAmidMessage();
  Peer two = ConnectPeer(2'000);
  world.dma.is_held = false;
  world.Settle();
  Send(two, 1'000, 400);
  ASSERT_TRUE(world.RunUntil([&] { return cq_b.ring.Peek() != nullptr; }));
  const Wc wc = b.Poll(cq_b).value_or(Wc{});
  EXPECT_EQ(wc.recv_offset, 0u);
  EXPECT_EQ(std::memcmp(memory_b, memory_a + 1'000, 400), 0);
}

// ... which gets it when nothing writes there any more.
TEST_F(Places, AReceiveIsTheDroppedLanesUntilItsPlacementIsDone) {
  DropLaneAmidMessage();
  Peer two = ConnectPeer(2'000);
  Send(two, 1'000, 400);
  world.device->Run(world.now, 64);
  world.dma.is_held = false;
  ASSERT_TRUE(world.RunUntil([&] { return cq_b.ring.Peek() != nullptr; }));
  EXPECT_EQ(b.Poll(cq_b).value_or(Wc{}).recv_offset, 500u) << "two write to one place";
  EXPECT_EQ(std::memcmp(memory_b + 500, memory_a + 1'000, 400), 0);
}

TEST_F(Places, AKilledClientLeavesNothing) {
  Peer peer = ConnectPeer(1'000);
  PostRecv(1, 0, 1'000);
  world.dma.is_held = true;
  Send(peer, 0, 500);
  world.device->Run(world.now, 64);
  world.Close(b);
  EXPECT_EQ(ended, std::vector<LaneId>{peer.lane.lane});
  world.dma.is_held = false;
  world.Settle();
  EXPECT_EQ(Qps(), 1u);
  EXPECT_TRUE(world.device->Show(ShowKind::kPlace).empty());
  EXPECT_EQ(ConnectPeer(1'000).lane.reason, RdmRejectReason::kNoPlace);
}

TEST_F(Places, SourcesAreForgottenOnlyWhenThereAreTooMany) {
  Sources sources;
  const uint32_t first = sources.NumberOf(At(0, 1));
  const uint32_t named = sources.NumberOf(At(0, 2));
  sources.Name(named);
  const uint32_t with_lane = sources.NumberOf(At(0, 3));
  sources.SetLane(with_lane, 5);
  for (uint32_t i = 0; sources.size() < Sources::kMax; ++i)
    sources.NumberOf(At(1 + i / 60'000, 4 + i % 60'000));
  EXPECT_NE(sources.Find(first), nullptr);
  const uint32_t newest = sources.NumberOf(At(9, 9));
  EXPECT_EQ(sources.Find(first), nullptr);
  EXPECT_EQ(sources.size(), Sources::kMax);
  EXPECT_EQ(sources.NumberOf(At(0, 2)), named);
  EXPECT_EQ(sources.NumberOf(At(0, 3)), with_lane);
  EXPECT_EQ(sources.NumberOf(At(9, 9)), newest);
  EXPECT_GT(sources.NumberOf(At(0, 1)), newest);  // as new
}

}  // namespace
}  // namespace verbena::softnic::testing
