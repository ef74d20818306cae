// Two hosts of one NIC each, and a cable between them that tests may cut, fill and listen at.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "softnic/device/test_world.h"
#include "transport/wire/icrc.h"

namespace verbena::softnic::testing {

struct Datagram {
  transport::wire::PacketAddress address;
  std::vector<std::byte> bytes;
};

// One end of a cable; what it sends the other end receives, if the filter lets it.
class CablePort final : public transport::PacketPort {
 public:
  bool Send(Instant now, const transport::OutPacket& packet) override {
    if (room == 0) return false;
    if (room != kUnlimited) --room;
    Datagram datagram;
    datagram.address = packet.address;
    datagram.bytes.assign(packet.bytes, packet.bytes + packet.length);
    datagram.bytes.resize(packet.length + transport::wire::kIcrcBytes);
    transport::wire::StoreIcrc(transport::wire::ComputeIcrc(packet.address, 0, packet.bytes,
                                                            packet.length, packet.payload),
                               datagram.bytes.data() + packet.length);
    ++counters_.sent_packets;
    ++sent_since_flush;
    if (filter && !filter(datagram)) return packet.GiveBack();
    other->inbox.push_back(std::move(datagram));
    return packet.GiveBack();
  }
  void Flush(Instant now) override {
    sent_since_flush = 0;
    if (room != kUnlimited) room = room_per_flush;
  }
  bool Receive(Instant now, transport::InPacket* out) override {
    if (served_ == batch_.size() && !TakeBatch()) return false;
    out->address = address_;
    out->bytes = batch_.data() + served_;
    out->length = static_cast<uint32_t>(std::min(packet_bytes_, batch_.size() - served_));
    out->expected_ip_id = 0;
    out->received_at = received_at_ = std::max(received_at_, now) + receive_takes;
    served_ += out->length;
    out->more_follow = served_ != batch_.size();
    return true;
  }
  void WantGrh(bool is_wanted) override { wants_grh = is_wanted; }
  int JoinGroup(const Gid& group) override {
    groups.push_back(group);
    return 0;
  }
  void LeaveGroup(const Gid& group) override { std::erase(groups, group); }
  uint32_t receive_buffer_bytes() const override { return receive_buffer; }
  const transport::PortCounters& counters() const override { return counters_; }

  static constexpr uint32_t kUnlimited = ~0u;
  CablePort* other = nullptr;
  std::deque<Datagram> inbox;
  bool batches = false;                   // what comes, comes as UDP_GRO gives it
  std::function<bool(Datagram&)> filter;  // false: lost
  uint32_t room = kUnlimited;             // packets until the next Flush
  uint32_t room_per_flush = kUnlimited;
  uint32_t sent_since_flush = 0;
  uint32_t receive_buffer = 0;  // bytes
  Duration receive_takes;       // each
  std::vector<Gid> groups;
  bool wants_grh = true;

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

  transport::wire::PacketAddress address_;
  std::vector<std::byte> batch_;
  size_t packet_bytes_ = 0, served_ = 0;
  Instant received_at_;
  transport::PortCounters counters_;
};

// Two hosts with a NIC and a client each. Host k is 127.0.0.(k + 1), as the worlds number NICs:
// host 0 has only NIC 0, host 1 has NIC 1 in use.
class WiredHosts {
 protected:
  // Both hosts' packets come one by one, or in batches.
  explicit WiredHosts(bool in_batches, uint32_t mtu_bytes = 4096)
      : a(MakeHost(0, mtu_bytes)),
        b(MakeHost(1, mtu_bytes)),
        alice(a->AddClient(0)),
        bob(b->AddClient(0)) {
    ports[0].other = &ports[1];
    ports[1].other = &ports[0];
    ports[0].batches = ports[1].batches = in_batches;
    a->device->AttachPort(0, &ports[0]);
    b->device->AttachPort(0, &ports[1]);
  }
  ~WiredHosts() {
    a->device->AttachPort(0, nullptr);
    b->device->AttachPort(0, nullptr);
  }

  static std::unique_ptr<TestWorld> MakeHost(uint32_t number, uint32_t mtu_bytes) {
    auto world = std::make_unique<TestWorld>(0);
    NicConfig config = TestWorld::ConfigOf(number);
    config.mtu_bytes = mtu_bytes;
    world->device->AddNic(config);
    return world;
  }
  static Gid GidOf(uint32_t host) { return TestWorld::GidOf(host); }

  void SettleHosts() {
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
  Instant NextTimeout() const {
    return std::min(a->device->PollTimeout(), b->device->PollTimeout());
  }
  void PassHostsTimeTo(Instant time) {
    for (TestWorld* world : {a.get(), b.get()}) {
      world->now = std::max(world->now, time);
      world->device->OnTimeout(world->now);
    }
  }

  std::unique_ptr<TestWorld> a, b;
  TestClient& alice;
  TestClient& bob;
  CablePort ports[2];
};

// Their QPs, and some memory.
class Wire : public ::testing::TestWithParam<bool>, protected WiredHosts {
 public:
  static std::string NameOf(const ::testing::TestParamInfo<bool>& info) {
    return info.param ? "InBatches" : "OneByOne";
  }

 protected:
  Wire() : WiredHosts(GetParam()) {
    std::iota(from.begin(), from.end(), uint8_t{1});
    mr_a = alice.MustRegMr(from.data(), from.size(), kAll);
    mr_b = bob.MustRegMr(to.data(), to.size(), kAll);
    cq_a = alice.MustCreateCq();
    cq_b = bob.MustCreateCq();
  }

  void Connect(Service service) {
    qp_a = alice.MustCreateQp(service, cq_a);
    qp_b = bob.MustCreateQp(service, cq_b);
    Start(service);
  }
  void Start(Service service) {
    ASSERT_EQ(alice.ToInit(qp_a, service), 0);
    ASSERT_EQ(bob.ToInit(qp_b, service), 0);
    ASSERT_EQ(alice.ToRtr(qp_a, service, GidOf(1), qp_b.qpn), 0);
    ASSERT_EQ(bob.ToRtr(qp_b, service, GidOf(0), qp_a.qpn), 0);
    ASSERT_EQ(alice.ToRts(qp_a, service), 0);
    ASSERT_EQ(bob.ToRts(qp_b, service), 0);
  }

  void Settle() { SettleHosts(); }
  // Settles, and lets time pass to the next timer of either host, until `done`.
  bool RunUntil(const std::function<bool()>& done) {
    for (int i = 0; i < 500; ++i) {
      Settle();
      if (done()) return true;
      const Instant due = NextTimeout();
      if (due.IsNever()) return false;
      PassHostsTimeTo(due);
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

  alignas(8) std::vector<uint8_t> from = std::vector<uint8_t>(kBytes);
  alignas(8) std::vector<uint8_t> to = std::vector<uint8_t>(kBytes);
  TestMr mr_a, mr_b;
  TestCq cq_a, cq_b;
  TestQp qp_a, qp_b;
  Wc last;

 private:
  WireCounters counters_[2];
};

}  // namespace verbena::softnic::testing
