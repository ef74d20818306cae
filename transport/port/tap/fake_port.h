// A port for tests: keeps what is sent, gives what the test puts in.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "transport/port/packet_port.h"
#include "transport/wire/icrc.h"

namespace verbena::transport::tap {

class FakePort : public PacketPort {
 public:
  struct Sent {
    Instant at;
    wire::PacketAddress address;
    std::vector<std::byte> bytes;
    int32_t corrupt_bit = -1;
  };
  struct Arrival {
    wire::PacketAddress address;
    std::vector<std::byte> bytes;
    uint16_t expected_ip_id = 0;
  };

  bool Send(Instant now, const OutPacket& packet) override {
    if (room == 0) return false;
    --room;
    sent.push_back(
        {now, packet.address, {packet.bytes, packet.bytes + packet.length}, packet.corrupt_bit});
    return packet.GiveBack();
  }
  void Flush(Instant now) override { ++flushes; }
  bool Receive(Instant now, InPacket* out) override {
    // What was given before is good until now: freed, so that ASan sees who still reads it.
    current_ = Arrival{};
    if (arrivals.empty()) return false;
    current_ = std::move(arrivals.front());
    arrivals.pop_front();
    *out = {current_.address, current_.bytes.data(), static_cast<uint32_t>(current_.bytes.size()),
            current_.expected_ip_id};
    out->received_at = now + receive_takes;
    return true;
  }
  void LearnIpId(const InPacket& packet, uint16_t ip_id) override { learned.push_back(ip_id); }
  void WantGrh(bool is_wanted) override { wants_grh = is_wanted; }
  Instant PollTimeout() const override { return timeout; }
  int JoinGroup(const Gid& group) override { return 0; }
  void LeaveGroup(const Gid& group) override {}
  bool PrepareToSleep() override { return arrivals.empty(); }
  const PortCounters& counters() const override { return counters_; }

  uint32_t room = ~0u;  // packets Send takes
  std::vector<Sent> sent;
  std::deque<Arrival> arrivals;
  std::vector<uint16_t> learned;
  Duration receive_takes;  // from the call of Receive to the packet
  uint32_t flushes = 0;
  bool wants_grh = true;
  Instant timeout = Instant::Never();

 private:
  Arrival current_;
  PortCounters counters_;
};

// The packet of `pdu` with payload bytes 1, 2, 3, …, without ICRC.
inline std::vector<std::byte> MakePacket(Pdu pdu, uint32_t payload_bytes) {
  std::vector<std::byte> bytes(wire::kPacketBytesMax);
  pdu.payload.length = payload_bytes;
  uint32_t length = wire::EncodeHeaders(pdu, bytes.data());
  for (uint32_t i = 0; i < payload_bytes; ++i) bytes[length++] = static_cast<std::byte>(i + 1);
  bytes.resize(length + wire::PadBytes(payload_bytes));
  return bytes;
}

// As it arrives, sent with identification `ip_id`.
inline FakePort::Arrival MakeArrival(const Pdu& pdu, uint32_t payload_bytes,
                                     const wire::PacketAddress& address, uint16_t ip_id = 0) {
  std::vector<std::byte> bytes = MakePacket(pdu, payload_bytes);
  const auto length = static_cast<uint32_t>(bytes.size());
  const uint32_t icrc = wire::ComputeIcrc(address, ip_id, bytes.data(), length);
  bytes.resize(length + wire::kIcrcBytes);
  wire::StoreIcrc(icrc, bytes.data() + length);
  return {address, std::move(bytes), 0};
}

inline OutPacket AsOut(const std::vector<std::byte>& bytes, const wire::PacketAddress& address) {
  return {address, bytes.data(), static_cast<uint32_t>(bytes.size()), -1};
}

}  // namespace verbena::transport::tap
