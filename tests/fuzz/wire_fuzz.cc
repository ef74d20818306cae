// A hostile network: the input is a script of packets that arrive at a NIC whose QPs are at work.
// Addresses, ports and QP numbers are mostly right, PSNs near those expected, and ICRCs good, so
// that packets get past the first checks. Nothing faults, and only memory that was opened changes.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/base/check.h"
#include "softnic/device/test_world.h"
#include "tests/fuzz/input.h"
#include "transport/wire/icrc.h"
#include "transport/wire/packet.h"

namespace verbena::fuzz {
namespace {

using namespace softnic::testing;  // NOLINT: the target is about nothing else
namespace wire = transport::wire;
using transport::InPacket;
using transport::Opcode;
using transport::OutPacket;
using transport::Pdu;

constexpr uint32_t kRemote = access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead |
                             access::kRemoteAtomic | access::kFlushGlobal;
constexpr uint32_t kStepsMax = 200;
constexpr uint32_t kTimersMax = 20;
constexpr uint32_t kFirstPsn = 0x12'3456;  // both ways, as TestClient connects
constexpr Qpn kPeerQpn{0x77};

// The network's end of the NIC's cable.
class HostilePort final : public transport::PacketPort {
 public:
  bool Send(Instant now, const OutPacket& packet) override {
    if (room == 0) return false;
    --room;
    Pdu pdu;
    std::vector<std::byte> bytes(packet.bytes, packet.bytes + packet.length);
    bytes.resize(packet.length + wire::kIcrcBytes);
    // What the NIC sends is right, whatever it is sent.
    VERBENA_CHECK(wire::Decode(bytes.data(), static_cast<uint32_t>(bytes.size()), &pdu) ==
                  wire::DecodeError::kNone);
    last_psn = pdu.psn;
    ++counters_.sent_packets;
    return packet.GiveBack();
  }
  void Flush(Instant now) override { room = room_per_flush; }
  bool Receive(Instant now, InPacket* out) override {
    if (!is_waiting) return false;
    is_waiting = false;
    out->address = address;
    out->bytes = bytes.data();
    out->length = static_cast<uint32_t>(bytes.size());
    out->expected_ip_id = 0;
    out->received_at = now;
    return true;
  }
  int JoinGroup(const Gid& group) override { return 0; }
  void LeaveGroup(const Gid& group) override {}
  const transport::PortCounters& counters() const override { return counters_; }

  // The packet on its way in.
  bool is_waiting = false;
  wire::PacketAddress address;
  std::vector<std::byte> bytes;

  Psn last_psn;
  uint32_t room = 64, room_per_flush = 64;

 private:
  transport::PortCounters counters_;
};

class Stage {
 public:
  Stage() : world_(0), bob_(AddBob(world_)), cq_(bob_.MustCreateCq(128)) {
    world_.device->AttachPort(0, &port_);
    memory_.fill(0x52);
    open_ = bob_.MustRegMr(Window(), kWindowBytes, kRemote);
    for (Service service : {Service::kRc, Service::kUc, Service::kUd, Service::kRc}) {
      TestQp qp = bob_.MustCreateQp(service, cq_);
      VERBENA_CHECK(bob_.ToInit(qp, service) == 0);
      VERBENA_CHECK(bob_.ToRtr(qp, service, TestWorld::GidOf(1), kPeerQpn) == 0);
      VERBENA_CHECK(bob_.ToRts(qp, service) == 0);
      qps_.push_back(qp);
      services_.push_back(service);
    }
  }
  ~Stage() { world_.device->AttachPort(0, nullptr); }

  void Play(Input input) {
    for (uint32_t step = 0; step < kStepsMax && input.left() != 0; ++step) Step(input);
    world_.dma.is_held = false;
    Turn();
    auto is_guard = [](uint8_t byte) { return byte == 0x52; };
    VERBENA_CHECK(std::all_of(memory_.begin(), memory_.begin() + kGuardBytes, is_guard));
    VERBENA_CHECK(std::all_of(memory_.end() - kGuardBytes, memory_.end(), is_guard));
  }

 private:
  static constexpr size_t kGuardBytes = 512;
  static constexpr size_t kWindowBytes = 8'192;

  static TestClient& AddBob(TestWorld& world) {
    world.device->AddNic(TestWorld::ConfigOf(0));
    return world.AddClient(0);
  }
  uint8_t* Window() { return memory_.data() + kGuardBytes; }
  uint64_t WindowAddress(uint32_t offset) { return reinterpret_cast<uint64_t>(Window()) + offset; }

  // What the daemon's loop does in one turn.
  void Turn() {
    for (int i = 0; i < 4; ++i) {
      world_.device->PollPorts(world_.now, 8);
      world_.Settle();
      world_.device->FlushPorts(world_.now);
    }
    bob_.PollAll(cq_);
  }

  void Deliver(const wire::PacketAddress& address, std::vector<std::byte> bytes) {
    port_.address = address;
    port_.bytes = std::move(bytes);
    port_.bytes.shrink_to_fit();
    port_.is_waiting = true;
    world_.device->PollPorts(world_.now, 8);
  }

  wire::PacketAddress AddressOfPeer(Input& input) {
    wire::PacketAddress address;
    auto choice = input.Take<uint8_t>();
    address.source = TestWorld::GidOf(choice % 16 == 15 ? 2 : 1);
    address.destination = TestWorld::GidOf(0);
    if (choice == 0xff) input.TakeBytes(address.destination.raw.data(), 16);
    return address;
  }

  void AnyBytes(Input& input) {
    wire::PacketAddress address = AddressOfPeer(input);
    std::vector<std::byte> bytes(input.Take<uint8_t>());
    input.TakeBytes(bytes.data(), bytes.size());
    auto covered = static_cast<uint32_t>(bytes.size());
    uint32_t icrc = wire::ComputeIcrc(address, input.Take<uint8_t>() % 2, bytes.data(), covered);
    bytes.resize(covered + wire::kIcrcBytes);
    wire::StoreIcrc(icrc, bytes.data() + covered);
    Deliver(address, std::move(bytes));
  }

  // A packet that could be the peer's: requests as it would send them, answers to what bob asked.
  void LikelyPacket(Input& input) {
    size_t index = input.Take<uint8_t>() % qps_.size();
    Pdu pdu;
    pdu.service = services_[index];
    auto opcode_choice = input.Take<uint8_t>();
    const Opcode late = opcode_choice % 2 == 0 ? Opcode::kFlush : Opcode::kAtomicWrite;
    pdu.opcode = opcode_choice < 0xf0 ? static_cast<Opcode>(opcode_choice % 24) : late;
    const transport::OpcodeInfo* info = transport::LookUpOpcode(pdu.opcode);
    if (info == nullptr || (info->services & 1u << static_cast<int>(pdu.service)) == 0) return;
    auto flags = input.Take<uint8_t>();
    pdu.ack_request = flags % 2 != 0;
    pdu.solicited = flags / 2 % 2 != 0;
    pdu.pkey = PKey(flags >= 0xfc ? 0x8001 : 0xffff);
    pdu.dest_qpn = qps_[index].qpn;
    int delta = input.Take<int8_t>();
    Psn base = info->is_request ? expected_[index] : port_.last_psn;
    pdu.psn = base + PsnCount{flags / 4 % 4 != 0 ? 0 : delta};
    if (info->is_request) expected_[index] = pdu.psn.Next();
    pdu.flush_type = flags % 4 == 3 ? flags / 16 : transport::flush::kGlobal;
    pdu.flush_level = flags / 64;
    pdu.remote_addr = WindowAddress(input.Take<uint8_t>() * 8u);
    pdu.rkey = RKey(flags / 16 % 8 == 7 ? input.Take<uint32_t>() : open_.rkey);
    auto length_choice = input.Take<uint8_t>();
    pdu.payload.length = length_choice < 0x80   ? length_choice
                         : length_choice < 0xe0 ? 1'024
                                                : 8u * length_choice;
    pdu.dma_length = input.Take<uint8_t>() * 32u;
    if (pdu.dma_length % 64 == 0) pdu.dma_length = pdu.payload.length;
    pdu.compare = input.Take<uint8_t>();
    pdu.swap_or_add = 1;
    auto syndrome = input.Take<uint8_t>();
    pdu.ack_type = static_cast<transport::AckType>(syndrome % 3);
    pdu.nak_code = static_cast<transport::NakCode>(syndrome / 3 % 5);
    pdu.rnr_timer_code = pdu.credits = syndrome % 32;
    pdu.msn = Msn(input.Take<uint8_t>());
    pdu.qkey = QKey(0x1111);
    pdu.src_qpn = kPeerQpn;
    pdu.imm_or_rkey = open_.rkey;
    if (info->is_read_response && length_choice % 2 == 0) pdu.payload.length = asked_bytes_;
    Send(input, pdu);
  }

  void Send(Input& input, const Pdu& pdu) {
    wire::PacketAddress address = AddressOfPeer(input);
    std::vector<std::byte> bytes(wire::kHeaderBytesMax);
    bytes.resize(wire::EncodeHeaders(pdu, bytes.data()));
    bytes.resize(bytes.size() + pdu.payload.length + wire::PadBytes(pdu.payload.length),
                 std::byte{0x77});
    auto covered = static_cast<uint32_t>(bytes.size());
    uint32_t icrc = wire::ComputeIcrc(address, 0, bytes.data(), covered);
    bytes.resize(covered + wire::kIcrcBytes);
    wire::StoreIcrc(icrc, bytes.data() + covered);
    Deliver(address, std::move(bytes));
  }

  void Post(Input& input) {
    size_t index = input.Take<uint8_t>() % qps_.size();
    TestQp& qp = qps_[index];
    auto opcode = static_cast<shm::WrOpcode>(input.Take<uint8_t>() % 7);
    if (qp.sq.Reserve() == nullptr) return;
    qp.sq.Unreserve(1);
    shm::SendWqe wqe = MakeWqe(opcode, 1);
    wqe.remote_addr = 0x1000;
    wqe.rkey = 0x100;
    asked_bytes_ = input.Take<uint8_t>() * 16u;
    bool is_atomic =
        opcode == shm::WrOpcode::kAtomicCmpAndSwp || opcode == shm::WrOpcode::kAtomicFetchAndAdd;
    if (is_atomic) asked_bytes_ = 8;
    bob_.Post(qp, wqe, {SgeOf(Window(), asked_bytes_, open_.lkey)});
  }
  void PostReceive(Input& input) {
    TestQp& qp = qps_[input.Take<uint8_t>() % qps_.size()];
    if (qp.rq.Reserve() == nullptr) return;
    qp.rq.Unreserve(1);
    bob_.PostRecv(qp, 2, {SgeOf(Window(), input.Take<uint8_t>() * 32u, open_.lkey)});
  }
  // A QP that failed starts again.
  void Reconnect(Input& input) {
    size_t index = input.Take<uint8_t>() % qps_.size();
    TestQp& qp = qps_[index];
    world_.dma.is_held = false;  // a reset waits for it
    VERBENA_CHECK(bob_.ToReset(qp) == 0);
    VERBENA_CHECK(bob_.ToInit(qp, services_[index]) == 0);
    if (input.Take<uint8_t>() % 8 == 0) return;
    VERBENA_CHECK(bob_.ToRtr(qp, services_[index], TestWorld::GidOf(1), kPeerQpn) == 0);
    VERBENA_CHECK(bob_.ToRts(qp, services_[index]) == 0);
    expected_[index] = Psn(kFirstPsn);
  }

  void Step(Input& input) {
    switch (input.Take<uint8_t>() % 16) {
      case 0:
        return AnyBytes(input);
      case 1:
        for (uint32_t i = input.Take<uint8_t>() % kTimersMax; i != 0; --i) world_.AdvanceToTimer();
        return;
      case 2:
        world_.dma.is_held = !world_.dma.is_held;
        return;
      case 3:
        world_.dma.Step(*world_.device, world_.now);
        return;
      case 4:
        return Reconnect(input);
      case 5:
        port_.room_per_flush = input.Take<uint8_t>();
        return;
      case 6:
        world_.device->SetPortState(world_.now, 0, input.Take<uint8_t>() % 8 != 0);
        return;
      case 7:
      case 8:
        return Turn();
      case 9:
      case 10:
        return PostReceive(input);
      case 11:
      case 12:
        return Post(input);
      default:
        return LikelyPacket(input);
    }
  }

  alignas(64) std::array<uint8_t, kWindowBytes + 2 * kGuardBytes> memory_{};
  HostilePort port_;
  TestWorld world_;
  TestClient& bob_;
  TestCq cq_;
  TestMr open_;
  std::vector<TestQp> qps_;
  std::vector<Service> services_;
  std::array<Psn, 4> expected_ = {Psn(kFirstPsn), Psn(kFirstPsn), Psn(kFirstPsn), Psn(kFirstPsn)};
  uint32_t asked_bytes_ = 8;
};

}  // namespace
}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  verbena::fuzz::Stage stage;
  stage.Play({data, size});
  return 0;
}
