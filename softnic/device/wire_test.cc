// Two devices and a network between them: PDUs become packets, and back.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "softnic/device/test_wire.h"

namespace verbena::softnic::testing {
namespace {

namespace wire = transport::wire;

TEST_P(Wire, AWriteOfManyPacketsArrives) {
  Connect(Service::kRc);
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(from, to);
  EXPECT_GE(CountersOf(0).tx_packets, kBytes / 4096);
  EXPECT_EQ(CountersOf(0).tx_packets, CountersOf(1).rx_packets);
}

TEST_P(Wire, GrhsAreAskedForWhileSomebodyGetsThem) {
  Connect(Service::kRc);
  EXPECT_FALSE(ports[0].wants_grh);
  TestQp one = alice.MustCreateQp(Service::kUd, cq_a);
  TestQp other = alice.MustCreateQp(Service::kUd, cq_a);
  EXPECT_TRUE(ports[0].wants_grh);
  EXPECT_FALSE(ports[1].wants_grh);
  EXPECT_EQ(alice.DoHandle(shm::CommandOp::kDestroyQp, one.handle), 0);
  Settle();
  EXPECT_TRUE(ports[0].wants_grh);
  // A port that comes, or comes back.
  ports[0].wants_grh = false;
  a->device->AttachPort(0, nullptr);
  a->device->AttachPort(0, &ports[0]);
  EXPECT_TRUE(ports[0].wants_grh);
  EXPECT_EQ(alice.DoHandle(shm::CommandOp::kDestroyQp, other.handle), 0);
  Settle();
  EXPECT_FALSE(ports[0].wants_grh);
}

TEST_P(Wire, AReadOfManyPacketsArrives) {
  Connect(Service::kRc);
  std::iota(to.begin(), to.end(), uint8_t{9});
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaRead), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(from, to);
}

TEST_P(Wire, PacketsOfABatchAreOneCopy) {
  Connect(Service::kRc);
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  const uint64_t packets = CountersOf(0).tx_packets;
  EXPECT_LT(a->dma.streams.size(), packets / 3) << "payload is read for many packets at once";
  if (GetParam()) {
    EXPECT_LT(b->dma.streams.size(), packets / 2);
  } else {
    EXPECT_EQ(b->dma.streams.size(), packets);
  }
}

TEST_P(Wire, ExpectsPacketsAmidAMessage) {
  Connect(Service::kRc);
  EXPECT_FALSE(a->device->ExpectsPackets());
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  a->Settle();  // the window is smaller than the message
  a->device->FlushPorts(a->now);
  EXPECT_TRUE(a->device->ExpectsPackets());
  EXPECT_FALSE(b->device->ExpectsPackets());
  b->device->PollPorts(b->now, 16);
  EXPECT_TRUE(b->device->ExpectsPackets());
  b->device->PreparePortsToSleep();
  EXPECT_FALSE(b->device->ExpectsPackets()) << "its sender may be gone";
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_FALSE(a->device->ExpectsPackets());
  EXPECT_FALSE(b->device->ExpectsPackets());
}

TEST_P(Wire, ExpectsPacketsWhenMessagesComeWithoutAnAnswer) {
  Connect(Service::kRc);
  auto to_bob = [this] {
    alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), 64, mr_a.lkey)});
    EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  };
  to_bob();
  EXPECT_FALSE(b->device->ExpectsPackets()) << "one message says nothing about a next";
  to_bob();
  EXPECT_TRUE(b->device->ExpectsPackets()) << "nobody there has posted in between";
  EXPECT_FALSE(a->device->ExpectsPackets());
  b->device->PreparePortsToSleep();
  EXPECT_FALSE(b->device->ExpectsPackets()) << "none came in time";
  to_bob();
  to_bob();
  EXPECT_TRUE(b->device->ExpectsPackets());
  bob.Post(qp_b, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(to.data(), 64, mr_b.lkey)});
  EXPECT_FALSE(b->device->ExpectsPackets()) << "what comes next may be an answer";
}

TEST_P(Wire, SendsOfManyPacketsBringTheirImmediateAndInvalidation) {
  Connect(Service::kRc);
  constexpr uint32_t kLength = 5 * 4096 + 100;
  for (auto opcode : {shm::WrOpcode::kSendWithImm, shm::WrOpcode::kRdmaWriteWithImm,
                      shm::WrOpcode::kSendWithInv}) {
    std::fill(to.begin(), to.end(), uint8_t{0});
    bob.PostRecv(qp_b, 3, {SgeOf(to.data(), kBytes, mr_b.lkey)});
    shm::SendWqe wqe = Rdma(opcode);
    wqe.flags |= shm::kSendSolicited;
    wqe.imm_or_rkey = opcode == shm::WrOpcode::kSendWithInv ? mr_b.rkey : 0x1234'5678;
    alice.Post(qp_a, wqe, {SgeOf(from.data(), kLength, mr_a.lkey)});
    EXPECT_EQ(Wait(bob, cq_b), WcStatus::kSuccess);
    EXPECT_EQ(last.byte_len, kLength);
    EXPECT_EQ(last.imm, wqe.imm_or_rkey);
    EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
    EXPECT_EQ(std::memcmp(to.data(), from.data(), kLength), 0);
    EXPECT_EQ(to[kLength], 0);
  }
}

TEST_P(Wire, AnAtomicIsExecutedOnce) {
  Connect(Service::kRc);
  uint64_t before = 41;
  std::memcpy(to.data(), &before, 8);
  // The acknowledgement is lost once: the request comes again.
  int lost = 1;
  ports[1].filter = [&](Datagram&) { return lost-- <= 0; };
  shm::SendWqe wqe = Rdma(shm::WrOpcode::kAtomicFetchAndAdd);
  wqe.atomic.compare_add = 1;
  alice.Post(qp_a, wqe, {SgeOf(from.data(), 8, mr_a.lkey)});
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  uint64_t after, original;
  std::memcpy(&after, to.data(), 8);
  std::memcpy(&original, from.data(), 8);
  EXPECT_EQ(after, 42u);
  EXPECT_EQ(original, 41u);
}

TEST_P(Wire, SendsArriveInOrderWhateverIsInline) {
  Connect(Service::kRc);
  for (uint64_t i = 0; i < 8; ++i) {
    bob.PostRecv(qp_b, i, {SgeOf(to.data() + i * 16'384, 16'384, mr_b.lkey)});
  }
  for (uint64_t i = 0; i < 8; ++i) {
    // An inline one has nothing to be read, and must not overtake.
    if (i % 2 == 1) {
      alice.PostInline(qp_a, MakeWqe(shm::WrOpcode::kSend, i, shm::kSendSignaled), "inline");
    } else {
      alice.Post(qp_a, MakeWqe(shm::WrOpcode::kSend, i), {SgeOf(from.data(), 10'000, mr_a.lkey)});
    }
  }
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_EQ(Wait(bob, cq_b), WcStatus::kSuccess);
    EXPECT_EQ(last.wr_id, i);
    EXPECT_EQ(last.byte_len, i % 2 == 1 ? 6u : 10'000u);
  }
}

TEST_P(Wire, LossAndDamageAreRepaired) {
  Connect(Service::kRc);
  uint32_t count = 0;
  auto vandal = [&](Datagram& datagram) {
    ++count;
    if (count % 29 == 0) return false;
    if (count % 37 == 0) datagram.bytes[datagram.bytes.size() / 2] ^= std::byte{0x10};
    return true;
  };
  ports[0].filter = ports[1].filter = vandal;
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(from, to);
  EXPECT_GT(CountersOf(1).rx_icrc_errors, 0u);
}

TEST_P(Wire, APortWithoutRoomLosesNothing) {
  ports[0].room = ports[0].room_per_flush = 3;
  Connect(Service::kRc);
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(from, to);
  EXPECT_EQ(CountersOf(0).tx_dropped, 0u);
}

TEST_P(Wire, SourceMemoryThatIsGoneFailsTheWork) {
  Connect(Service::kRc);
  a->dma.bad_addr = reinterpret_cast<uint64_t>(from.data()) + 20'000;
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kLocProtErr);
}

// The turn may be the last one for long.
TEST_P(Wire, WhatFlushingMakesRoomForIsFlushed) {
  ports[0].room = ports[0].room_per_flush = 10;
  Connect(Service::kRc);
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  a->Settle();
  for (int turn = 0; turn < 8; ++turn) {
    EXPECT_TRUE(a->device->FlushPorts(a->now)) << "more could go";
    EXPECT_EQ(ports[0].sent_since_flush, 0u);
    while (a->dma.Step(*a->device, a->now)) {
    }
  }
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(from, to);
}

TEST_P(Wire, AQpGoesWhileItsPacketsAreBeingMade) {
  Connect(Service::kRc);
  a->dma.is_held = true;
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  a->device->Run(a->now, 64);
  shm::HandleRequest request{qp_a.handle, 0};
  uint32_t slot = alice.Begin(shm::CommandOp::kDestroyQp, &request, sizeof(request));
  a->dma.is_held = false;
  Settle();
  EXPECT_TRUE(alice.IsDone(slot));
  EXPECT_EQ(CountersOf(0).tx_packets, 0u);
}

TEST_P(Wire, UcCompletesWhenItsBuffersWereRead) {
  Connect(Service::kUc);
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), 50'000, mr_a.lkey)});
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  Settle();
  EXPECT_EQ(std::memcmp(from.data(), to.data(), 50'000), 0);
}

TEST_P(Wire, ADatagramBringsItsHeader) {
  qp_a = alice.MustCreateQp(Service::kUd, cq_a);
  qp_b = bob.MustCreateQp(Service::kUd, cq_b);
  for (auto [client, qp] : {std::pair{&alice, &qp_a}, std::pair{&bob, &qp_b}}) {
    ASSERT_EQ(client->ToInit(*qp, Service::kUd), 0);
    ASSERT_EQ(client->ToRtr(*qp, Service::kUd, {}, {}), 0);
    ASSERT_EQ(client->ToRts(*qp, Service::kUd), 0);
  }
  bob.PostRecv(qp_b, 5, {SgeOf(to.data(), 200, mr_b.lkey)});
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kSend, 6);
  wqe.ah = alice.CreateAh(GidOf(1));
  wqe.remote_qpn = qp_b.qpn.value;
  wqe.remote_qkey = 0x1111;
  alice.Post(qp_a, wqe, {SgeOf(from.data(), 100, mr_a.lkey)});
  ASSERT_EQ(Wait(bob, cq_b), WcStatus::kSuccess);
  EXPECT_EQ(last.byte_len, 140u);
  EXPECT_EQ(last.src_qpn, qp_a.qpn.value);
  EXPECT_EQ(std::memcmp(to.data() + 40, from.data(), 100), 0);
  const uint8_t addresses[8] = {127, 0, 0, 1, 127, 0, 0, 2};
  EXPECT_EQ(std::memcmp(to.data() + 32, addresses, 8), 0);
}

TEST_P(Wire, PacketsOfStrangersAreDropped) {
  Connect(Service::kRc);
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), 64, mr_a.lkey)});
  Datagram seen;
  ports[0].filter = [&](Datagram& datagram) {
    seen = datagram;
    return true;
  };
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  ports[0].filter = nullptr;
  auto give = [&](Datagram datagram, bool has_good_icrc) {
    uint32_t length = static_cast<uint32_t>(datagram.bytes.size()) - wire::kIcrcBytes;
    if (has_good_icrc) {
      wire::StoreIcrc(wire::ComputeIcrc(datagram.address, 0, datagram.bytes.data(), length),
                      datagram.bytes.data() + length);
    }
    ports[1].inbox.push_back(std::move(datagram));
    Settle();
  };
  Datagram stranger = seen;
  stranger.address.source = Gid::FromIpv4(0x0a00'0001);
  give(stranger, true);
  EXPECT_EQ(CountersOf(1).rx_wrong_peer, 1u);
  Datagram nobodys = seen;
  nobodys.bytes[5] ^= std::byte{0x40};  // destination QPN
  give(nobodys, true);
  EXPECT_EQ(CountersOf(1).rx_no_qp, 1u);
  Datagram foreign = seen;
  foreign.bytes[3] ^= std::byte{1};  // P_Key
  give(foreign, true);
  EXPECT_EQ(CountersOf(1).rx_bad_pkey, 1u);
  shm::QueryPortReply port;
  ASSERT_EQ(bob.Execute(shm::CommandOp::kQueryPort, shm::PortRequest{1, 0}, &port), 0);
  EXPECT_EQ(port.bad_pkey_cntr, 1u);
  EXPECT_EQ(port.qkey_viol_cntr, 0u);
  Datagram broken = seen;
  broken.bytes[20] ^= std::byte{1};
  give(broken, false);
  EXPECT_EQ(CountersOf(1).rx_icrc_errors, 1u);
  Datagram stump = seen;
  stump.bytes.resize(10);
  give(stump, false);
  EXPECT_EQ(CountersOf(1).rx_malformed, 1u);
}

TEST_P(Wire, PacketsThatNobodyAcknowledgesWaitInTheSocket) {
  Connect(Service::kUc);
  constexpr int kMessages = 6;
  for (int i = 0; i < kMessages; ++i) {
    alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  }
  SendAll();  // all of them lie in the socket before the receiver's first turn
  ASSERT_GT(ports[1].inbox.size(), 400u);
  // Each turn takes what it finds; the copies are done between two turns.
  while (!ports[1].inbox.empty()) {
    b->device->PollPorts(b->now, 10'000);
    b->Settle();
  }
  EXPECT_EQ(CountersOf(1).rx_dropped, 0u);
  EXPECT_EQ(from, to);
}

TEST_P(Wire, AQpThatTakesNothingHoldsUpNobody) {
  Connect(Service::kUc);
  for (int i = 0; i < 12; ++i) {
    alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  }
  SendAll();
  // Without copies it is full at once; after some turns what comes for it is dropped.
  b->device->PollPorts(b->now, 10'000);
  EXPECT_FALSE(ports[1].inbox.empty());
  b->device->PollPorts(b->now, 10'000);
  EXPECT_FALSE(ports[1].inbox.empty());
  for (int turn = 0; turn < 64; ++turn) b->device->PollPorts(b->now, 10'000);
  EXPECT_TRUE(ports[1].inbox.empty());
  EXPECT_GT(CountersOf(1).rx_dropped, 200u);
  b->Settle();
}

TEST_P(Wire, ATurnSendsWhatAReceiverTakesInOne) {
  Connect(Service::kUc);
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  EXPECT_TRUE(a->device->Run(a->now, 1'000));
  while (a->dma.Step(*a->device, a->now)) {
  }
  EXPECT_EQ(ports[1].inbox.size(), 16u);
}

TEST_P(Wire, WhatNobodyAcknowledgesLeavesAtTheRateOfALink) {
  Connect(Service::kUc);
  Instant begin = a->now;
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  a->Settle();
  // A burst at once, and with it the packet that exceeds it.
  int64_t cost_bytes = 1024 + UnackedPace::kPacketBytes;
  EXPECT_EQ(ports[1].inbox.size(), static_cast<size_t>(UnackedPace::kBurstBytes / cost_bytes));
  EXPECT_FALSE(a->device->Run(a->now, 64)) << "nothing to do before the time comes";
  SendAll();
  EXPECT_EQ(ports[1].inbox.size(), (kBytes + 1023) / 1024);
  int64_t paced_bytes = static_cast<int64_t>(ports[1].inbox.size()) * cost_bytes;
  int64_t least_ns = (paced_bytes - UnackedPace::kBurstBytes) * 4 / 5;
  EXPECT_GE((a->now - begin).ns, least_ns - UnackedPace::kBurstBytes);
  EXPECT_LE((a->now - begin).ns, least_ns + UnackedPace::kBurstBytes);
}

TEST_P(Wire, AResetForgetsThatAQpWaitedForPace) {
  Connect(Service::kUc);
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  a->device->Run(a->now, 1'000);  // a turn's part, and no more
  ASSERT_EQ(alice.ToReset(qp_a), 0);
  ASSERT_EQ(bob.ToReset(qp_b), 0);
  SendAll();
  ports[1].inbox.clear();
  Start(Service::kUc);
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  SendAll();
  EXPECT_EQ(ports[1].inbox.size(), (kBytes + 1023) / 1024);
}

// Nobody's copies hold up a QP that was reset since they began.
TEST_P(Wire, AResetForgetsTheCopiesOfTheLifeBefore) {
  Connect(Service::kRc);
  a->dma.is_held = true;
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  a->device->Run(a->now, 64);
  shm::ModifyQpRequest request{};
  request.qp = qp_a.handle;
  request.mask = shm::qp_mask::kState;
  request.attr.qp_state = static_cast<uint32_t>(QpState::kReset);
  const uint32_t slot = alice.Begin(shm::CommandOp::kModifyQp, &request, sizeof(request));
  a->dma.is_held = false;
  Settle();
  ASSERT_TRUE(alice.IsDone(slot));
  ASSERT_EQ(alice.ToReset(qp_a), 0);
  ASSERT_EQ(bob.ToReset(qp_b), 0);
  Start(Service::kRc);
  const uint64_t at_once = a->dma.moved_now;
  a->dma.moves_now = b->dma.moves_now = true;
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), 64, mr_a.lkey)});
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(a->dma.moved_now, at_once + 1) << "small payload is not read at once";
}

// Together they fill what may be under way to one address before any fills its own window.
TEST_P(Wire, QpsThatShareAnAddressNeedNoTimeouts) {
  constexpr size_t kQps = 8;
  std::vector<TestQp> senders;
  senders.reserve(kQps);
  for (size_t i = 0; i < kQps; ++i) {
    Connect(Service::kRc);
    senders.push_back(std::move(qp_a));
  }
  for (TestQp& sender : senders) {
    alice.Post(sender, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  }
  Settle();  // no time passes
  EXPECT_EQ(alice.PollAll(cq_a).size(), kQps);
}

TEST_P(Wire, ALargeSocketGetsMoreAtOnceUntilSomethingIsLost) {
  ports[0].receive_buffer = 8 << 20;
  Connect(Service::kRc);
  constexpr size_t kPackets = 2 * ((kBytes + 1023) / 1024);
  auto send = [&] {
    for (int i = 0; i < 2; ++i) {
      alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
    }
    a->Settle();
    return ports[1].inbox.size();
  };
  EXPECT_EQ(send(), kPackets);
  ports[1].inbox.erase(ports[1].inbox.begin() + 10);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(from, to);
  const size_t sent = send();  // and from now on no more than any socket holds
  EXPECT_GE(sent * (1024 + WirePeer::kPacketOverheadBytes), WirePeer::kRoomBytesMin);
  EXPECT_LT(sent, kPackets / 2);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
}

TEST_P(Wire, ATimeoutIsALossToo) {
  ports[0].receive_buffer = 8 << 20;
  Connect(Service::kRc);
  auto send = [&] {
    alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
    a->Settle();
    return ports[1].inbox.size();
  };
  const size_t all = send();
  EXPECT_EQ(all, (kBytes + 1023) / 1024);
  ports[1].inbox.clear();
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(from, to);
  EXPECT_LT(send(), all);
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
}

TEST(WirePeer, TakesItsSocketToBeLikeOurs) {
  EXPECT_EQ(WirePeer::RoomBytes(0), WirePeer::kRoomBytesMin);  // not known
  EXPECT_EQ(WirePeer::RoomBytes(2 * 212'992), WirePeer::kRoomBytesMin);
  EXPECT_EQ(WirePeer::RoomBytes(2 << 20), 512u << 10);
  EXPECT_EQ(WirePeer::RoomBytes(32 << 20), WirePeer::kRoomBytesMax);
}

// What a dead QP had under way to an address is no reason for others to send less.
TEST_P(Wire, AFailedQpLeavesItsShareToOthers) {
  constexpr size_t kQps = 4;
  size_t sent = 0;
  ports[0].filter = [&](Datagram&) { return ++sent == 0; };
  std::vector<TestQp> senders;
  senders.reserve(kQps);
  auto send = [&] {
    Connect(Service::kRc);
    senders.push_back(std::move(qp_a));
    alice.Post(senders.back(), Rdma(shm::WrOpcode::kRdmaWrite),
               {SgeOf(from.data(), kBytes, mr_a.lkey)});
  };
  send();
  Settle();
  const size_t sent_alone = sent;
  while (senders.size() != kQps) send();
  for (size_t i = 0; i < kQps; ++i) EXPECT_EQ(Wait(alice, cq_a), WcStatus::kRetryExcErr) << i;
  sent = 0;
  send();
  Settle();
  EXPECT_EQ(sent, sent_alone);
}

// A path may change while the send queue is drained: so does whose room the QP takes, and what its
// PDUs may be.
class WirePath : public Wire {
 protected:
  void Move(TestQp& qp, uint32_t host) {
    shm::QpAttr attr{};
    attr.qp_state = static_cast<uint32_t>(QpState::kSqd);
    ASSERT_EQ(alice.Modify(qp, attr, shm::qp_mask::kState), 0);
    Settle();
    std::memcpy(attr.ah_attr.dgid, GidOf(host).raw.data(), 16);
    attr.ah_attr.is_global = attr.ah_attr.sgid_index = attr.ah_attr.port_num = 1;
    attr.ah_attr.hop_limit = 64;
    ASSERT_EQ(alice.Modify(qp, attr, shm::qp_mask::kAv), 0);
    attr.qp_state = static_cast<uint32_t>(QpState::kRts);
    ASSERT_EQ(alice.Modify(qp, attr, shm::qp_mask::kState), 0);
  }
};

INSTANTIATE_TEST_SUITE_P(Both, WirePath, ::testing::Bool(), Wire::NameOf);

TEST_P(WirePath, CountsAtTheAddressThatItLeadsTo) {
  Connect(Service::kRc);
  [[maybe_unused]] const TestQp stays = std::move(qp_a);
  Connect(Service::kRc);
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  ASSERT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  Move(qp_a, 1);  // where it was
  EXPECT_EQ(a->device->Usage().peers.size(), 1u);
  Move(qp_a, 2);
  ASSERT_EQ(a->device->Usage().peers.size(), 2u);
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  a->Settle();
  const std::vector<DeviceUsage::Peer> peers = a->device->Usage().peers;
  EXPECT_EQ(peers[0].bytes, 0u) << "its old address";
  EXPECT_GT(peers[1].bytes, 0u);
  EXPECT_EQ(peers[1].users, 1u);
}

TEST_P(WirePath, LeadsFromTheInstanceToTheNetwork) {
  constexpr uint32_t kOther = 5;
  a->device->AddNic(TestWorld::ConfigOf(kOther));
  TestClient& carol = a->AddClient(1);
  TestCq cq_c = carol.MustCreateCq();
  Connect(Service::kRc);
  TestQp qp = alice.MustCreateQp(Service::kRc, cq_a);
  TestQp qp_c = carol.MustCreateQp(Service::kRc, cq_c);
  ASSERT_EQ(qp_c.qpn, qp_b.qpn) << "so that it finds bob's";
  ASSERT_EQ(alice.ToInit(qp, Service::kRc), 0);
  ASSERT_EQ(alice.ToRtr(qp, Service::kRc, GidOf(kOther), qp_c.qpn), 0);
  ASSERT_EQ(alice.ToRts(qp, Service::kRc), 0);
  ASSERT_EQ(bob.ToReset(qp_b), 0);
  ASSERT_EQ(bob.ToInit(qp_b, Service::kRc), 0);
  ASSERT_EQ(bob.ToRtr(qp_b, Service::kRc, GidOf(0), qp.qpn), 0);
  Move(qp, 1);
  alice.Post(qp, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(from, to);
  EXPECT_EQ(CountersOf(0).tx_dropped, 0u);
  // And it takes part in the bound for its address.
  EXPECT_EQ(a->device->Usage().peers.at(0).users, 2u);
}

TEST(WireShare, GoesBackWholeWhateverPsnsItStoodFor) {
  WirePeer peer;
  WireShare share;
  share.peer = &peer;
  share.Add(4000);
  share.psns = 4;
  share.Update(1);
  EXPECT_EQ(peer.bytes, 1000u);
  share.Update(0);
  EXPECT_EQ(peer.bytes, 0u);
  share.Add(1000);  // the oldest, to be sent twice: until it was, nothing counts as sent
  share.Update(0);
  EXPECT_EQ(share.bytes, 0u);
  EXPECT_EQ(peer.bytes, 0u);
}

// However long the turn has lasted by then.
TEST_P(Wire, AnRnrWaitBeginsWhenTheNakHasCome) {
  Connect(Service::kRc);
  std::vector<Instant> sent;
  ports[0].receive_takes = Microseconds(40);
  ports[0].filter = [&](Datagram&) {
    sent.push_back(a->now);
    return true;
  };
  alice.Post(qp_a, MakeWqe(shm::WrOpcode::kSend, 1), {SgeOf(from.data(), 8, mr_a.lkey)});
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kRnrRetryExcErr);
  ASSERT_EQ(sent.size(), 3u) << "two retries";
  EXPECT_EQ(sent[1] - sent[0], Microseconds(40 + 10));
  EXPECT_EQ(sent[2] - sent[1], Microseconds(40 + 10));
}

TEST_P(Wire, APeerThatIsGoneMeansRetryExceeded) {
  Connect(Service::kRc);
  ports[0].filter = [](Datagram&) { return false; };
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), 64, mr_a.lkey)});
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kRetryExcErr);
}

TEST_P(Wire, APortThatGoesDownTellsItsClients) {
  b->device->SetPortState(b->now, 0, false);
  b->device->SetPortState(b->now, 0, false);  // no news
  EXPECT_EQ(bob.TakeAsyncEvents(), std::vector<EventType>{EventType::kPortErr});
  b->device->SetPortState(b->now, 0, true);
  EXPECT_EQ(bob.TakeAsyncEvents(), std::vector<EventType>{EventType::kPortActive});
}

INSTANTIATE_TEST_SUITE_P(Packets, Wire, ::testing::Bool(), Wire::NameOf);

}  // namespace
}  // namespace verbena::softnic::testing
