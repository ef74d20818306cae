// Two devices and a network between them: PDUs become packets, and back.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <numeric>
#include <vector>

#include "softnic/device/test_world.h"
#include "transport/wire/icrc.h"

namespace verbena::softnic::testing {
namespace {

namespace wire = transport::wire;
using transport::InPacket;
using transport::OutPacket;

struct Datagram {
  wire::PacketAddress address;
  std::vector<std::byte> bytes;
};

// One end of a cable; what it sends the other end receives, if the filter lets it.
class CablePort final : public transport::PacketPort {
 public:
  bool Send(Instant now, const OutPacket& packet) override {
    if (room == 0) return false;
    if (room != kUnlimited) --room;
    Datagram datagram;
    datagram.address = packet.address;
    datagram.bytes.assign(packet.bytes, packet.bytes + packet.length);
    datagram.bytes.resize(packet.length + wire::kIcrcBytes);
    wire::StoreIcrc(wire::ComputeIcrc(packet.address, 0, packet.bytes, packet.length),
                    datagram.bytes.data() + packet.length);
    ++counters_.sent_packets;
    if (filter && !filter(datagram)) return true;
    other->inbox.push_back(std::move(datagram));
    return true;
  }
  void Flush(Instant now) override {
    if (room != kUnlimited) room = room_per_flush;
  }
  bool Receive(Instant now, InPacket* out) override {
    if (served_ == batch_.size() && !TakeBatch()) return false;
    out->address = address_;
    out->bytes = batch_.data() + served_;
    out->length = static_cast<uint32_t>(std::min(packet_bytes_, batch_.size() - served_));
    out->expected_ip_id = 0;
    served_ += out->length;
    out->more_follow = served_ != batch_.size();
    return true;
  }
  int JoinGroup(const Gid& group) override {
    groups.push_back(group);
    return 0;
  }
  void LeaveGroup(const Gid& group) override { std::erase(groups, group); }
  const transport::PortCounters& counters() const override { return counters_; }

  static constexpr uint32_t kUnlimited = ~0u;
  CablePort* other = nullptr;
  std::deque<Datagram> inbox;
  bool batches = false;                   // what comes, comes as UDP_GRO gives it
  std::function<bool(Datagram&)> filter;  // false: lost
  uint32_t room = kUnlimited;             // packets until the next Flush
  uint32_t room_per_flush = kUnlimited;
  std::vector<Gid> groups;

 private:
  // Packets of one length, the last perhaps shorter, back to back.
  bool TakeBatch() {
    batch_.clear();
    served_ = 0;
    for (bool ends = false; !inbox.empty() && !ends;) {
      Datagram& next = inbox.front();
      if (batch_.empty()) {
        address_ = next.address;
        packet_bytes_ = next.bytes.size();
      } else if (next.bytes.size() > packet_bytes_ || next.address.source != address_.source) {
        break;
      }
      ends = !batches || next.bytes.size() < packet_bytes_ || batch_.size() > 60'000;
      batch_.insert(batch_.end(), next.bytes.begin(), next.bytes.end());
      inbox.pop_front();
    }
    return !batch_.empty();
  }

  wire::PacketAddress address_;
  std::vector<std::byte> batch_;
  size_t packet_bytes_ = 0, served_ = 0;
  transport::PortCounters counters_;
};

// Two hosts with a NIC and a client each. Host k is 127.0.0.(k + 1), as the worlds number NICs:
// host 0 has only NIC 0, host 1 has NIC 1 in use.
// Both hosts' packets come one by one, or in batches.
class Wire : public ::testing::TestWithParam<bool> {
 protected:
  Wire() : a(MakeHost(0)), b(MakeHost(1)), alice(a->AddClient(0)), bob(b->AddClient(0)) {
    ports[0].other = &ports[1];
    ports[1].other = &ports[0];
    ports[0].batches = ports[1].batches = GetParam();
    a->device->AttachPort(0, &ports[0]);
    b->device->AttachPort(0, &ports[1]);
    std::iota(from.begin(), from.end(), uint8_t{1});
    mr_a = alice.MustRegMr(from.data(), from.size(), kAll);
    mr_b = bob.MustRegMr(to.data(), to.size(), kAll);
    cq_a = alice.MustCreateCq();
    cq_b = bob.MustCreateCq();
  }
  ~Wire() override {
    a->device->AttachPort(0, nullptr);
    b->device->AttachPort(0, nullptr);
  }

  static std::unique_ptr<TestWorld> MakeHost(uint32_t number) {
    auto world = std::make_unique<TestWorld>(0);
    NicConfig config = TestWorld::ConfigOf(number);
    world->device->AddNic(config);
    return world;
  }
  static Gid GidOf(uint32_t host) { return TestWorld::GidOf(host); }

  void Connect(Service service) {
    qp_a = alice.MustCreateQp(service, cq_a);
    qp_b = bob.MustCreateQp(service, cq_b);
    ASSERT_EQ(alice.ToInit(qp_a, service), 0);
    ASSERT_EQ(bob.ToInit(qp_b, service), 0);
    ASSERT_EQ(alice.ToRtr(qp_a, service, GidOf(1), qp_b.qpn), 0);
    ASSERT_EQ(bob.ToRtr(qp_b, service, GidOf(0), qp_a.qpn), 0);
    ASSERT_EQ(alice.ToRts(qp_a, service), 0);
    ASSERT_EQ(bob.ToRts(qp_b, service), 0);
  }

  void Settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (TestWorld* world : {a.get(), b.get()}) {
        world->Settle();
        moved |= world->device->FlushPorts(world->now);
        moved |= world->device->PollPorts(world->now, 16);
        world->Settle();
        moved |= world->device->FlushPorts(world->now);
      }
      moved |= !ports[0].inbox.empty() || !ports[1].inbox.empty();
    }
  }
  // Settles, and lets time pass to the next timer of either host, until `done`.
  bool RunUntil(const std::function<bool()>& done) {
    for (int i = 0; i < 500; ++i) {
      Settle();
      if (done()) return true;
      Instant due = std::min(a->device->PollTimeout(), b->device->PollTimeout());
      if (due.IsNever()) return false;
      for (TestWorld* world : {a.get(), b.get()}) {
        world->now = std::max(world->now, due);
        world->device->OnTimeout(world->now);
      }
    }
    return false;
  }
  // What host 0 has to send, in the time it takes, without answers.
  void SendAll() {
    do {
      a->Settle();
    } while (a->AdvanceToTimer());
  }
  WcStatus Wait(TestClient& client, TestCq& cq) {
    std::optional<Wc> wc;
    EXPECT_TRUE(RunUntil([&] { return (wc = client.Poll(cq)).has_value(); }));
    last = wc.value_or(Wc{});
    return last.status;
  }
  shm::SendWqe Rdma(shm::WrOpcode opcode, uint64_t offset = 0) {
    shm::SendWqe wqe = MakeWqe(opcode, 7);
    wqe.remote_addr = reinterpret_cast<uint64_t>(to.data()) + offset;
    wqe.rkey = mr_b.rkey;
    return wqe;
  }
  const WireCounters& CountersOf(int host) {
    counters_[host] = (host == 0 ? a : b)->device->ListNicStatuses().at(0).wire;
    return counters_[host];
  }

  static constexpr uint32_t kAll =
      access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
  static constexpr uint32_t kBytes = 300'000;

  std::unique_ptr<TestWorld> a, b;
  TestClient& alice;
  TestClient& bob;
  CablePort ports[2];
  alignas(8) std::vector<uint8_t> from = std::vector<uint8_t>(kBytes);
  alignas(8) std::vector<uint8_t> to = std::vector<uint8_t>(kBytes);
  TestMr mr_a, mr_b;
  TestCq cq_a, cq_b;
  TestQp qp_a, qp_b;
  Wc last;

 private:
  WireCounters counters_[2];
};

TEST_P(Wire, AWriteOfManyPacketsArrives) {
  Connect(Service::kRc);
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(from, to);
  EXPECT_GE(CountersOf(0).tx_packets, kBytes / 4096);
  EXPECT_EQ(CountersOf(0).tx_packets, CountersOf(1).rx_packets);
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

TEST_P(Wire, KnowsThatItIsAmidAMessage) {
  Connect(Service::kRc);
  EXPECT_FALSE(a->device->IsMidMessage());
  alice.Post(qp_a, Rdma(shm::WrOpcode::kRdmaWrite), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  a->Settle();  // the window is smaller than the message
  a->device->FlushPorts(a->now);
  EXPECT_TRUE(a->device->IsMidMessage());
  EXPECT_FALSE(b->device->IsMidMessage());
  b->device->PollPorts(b->now, 16);
  EXPECT_TRUE(b->device->IsMidMessage());
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_FALSE(a->device->IsMidMessage());
  EXPECT_FALSE(b->device->IsMidMessage());
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

INSTANTIATE_TEST_SUITE_P(Packets, Wire, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "InBatches" : "OneByOne"; });

}  // namespace
}  // namespace verbena::softnic::testing
