// Packets to one destination collected for one system call (UDP_SEGMENT), and the pool of them.
//
// A batch is segments of equal length, the last perhaps shorter: copied ones lie in its own memory,
// lent ones where their lender has them (docs/adr/0010). What lies back to back is one part for the
// kernel. It numbers the IPv4 packets it cuts from a batch 0, 1, 2..., and the ICRC covers that
// number, so it is computed here, when a packet's place is known. (facts: measured; a socket
// sending single packets unconnected and with DF numbers all of them 0.)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "transport/port/packet_port.h"
#include "transport/port/udp/udp_socket.h"
#include "transport/wire/packet.h"

namespace verbena::transport {

// UDP_MAX_SEGMENTS of the kernel is 64 before Linux 6.9.
inline constexpr uint32_t kBatchSegmentsMax = 64;
// The kernel takes 65 507 bytes over IPv4 and 65 527 over IPv6.
inline constexpr uint32_t kBatchBytesMax = 65'000;

struct SendBatch {
  uint32_t index = 0;                // among its collector's
  std::unique_ptr<std::byte[]> own;  // of copied packets
  uint32_t own_bytes = 0;
  uint32_t used_bytes = 0;
  uint32_t segment_bytes = 0;
  uint32_t segment_count = 0;
  bool last_is_shorter = false;
  bool open = false;        // takes more packets
  bool one_by_one = false;  // no UDP_SEGMENT to this destination: every IPv4 packet has ID 0
  uint16_t endpoint = 0;
  uint32_t next_segment = 0;  // one_by_one: those before it are gone
  uint32_t retries = 0;
  uint64_t sequence = 0;
  wire::PacketAddress address;
  struct Segment {
    std::byte* bytes = nullptr;
    int32_t corrupt_bit = -1;
    PacketLender* lender = nullptr;  // nullptr: its bytes are in `own`
    void* block = nullptr;
  };
  std::array<Segment, kBatchSegmentsMax> segments;

  // What sendmsg gets.
  SocketAddress name;
  uint32_t part_count = 0;
  std::array<iovec, kBatchSegmentsMax> parts;
  iovec one{};  // a segment that goes alone
  alignas(cmsghdr) std::array<char, 96> control{};
  msghdr message{};

  uint32_t SegmentLength(uint32_t index) const;
  // The next segment's bytes for the kernel.
  void AddPart(std::byte* bytes, uint32_t length);
  // Fills `message` for the whole batch, or for one segment. `hop_limit`: to tell the kernel, if
  // not 0 (HopLimitToTell).
  void PrepareWhole(uint8_t hop_limit);
  void PrepareSegment(uint32_t index, uint8_t hop_limit);
  // Computes the ICRCs anew, for packets that go out one by one: IPv4 identification 0.
  void BecomeOneByOne();
  // Lent packets go back to their lenders.
  void GiveBack();

 private:
  void Prepare(uint8_t hop_limit, iovec* parts, uint32_t part_count, uint32_t gso_bytes);
};

// Collects packets into batches, several destinations at a time. Packets of one endpoint to one
// destination keep their order.
class SendCollector {
 public:
  explicit SendCollector(uint32_t batches);
  ~SendCollector();

  // Copies the packet, or takes what is lent; appends its ICRC. `address` with the ports as they
  // will be on the wire. False: every batch is taken. Precondition: packet.length + kIcrcBytes <=
  // kPacketBytesMax.
  bool Add(uint16_t endpoint, const Endpoint& from, const wire::PacketAddress& address,
           const OutPacket& packet, bool one_by_one);

  // Ends all open batches.
  void CloseAll();
  // The next batch to hand to the kernel, in order of their beginnings, passing over endpoints that
  // are blocked; nullptr: none.
  SendBatch* TakeReady(const std::vector<bool>& blocked);
  bool HasReady(const std::vector<bool>& blocked) const;
  bool IsEmpty() const { return open_.empty() && ready_.empty(); }
  // It could not be sent now: back to its place.
  void PutBack(SendBatch* batch);
  // It is sent, or lost.
  void Release(SendBatch* batch);

  SendBatch* at(uint32_t index) { return all_[index].get(); }

 private:
  void Close(size_t open_index);
  SendBatch* BatchFor(uint16_t endpoint, const Endpoint& from, const wire::PacketAddress& address,
                      uint32_t length, bool one_by_one);

  std::vector<std::unique_ptr<SendBatch>> all_;
  std::vector<SendBatch*> free_;
  std::vector<SendBatch*> open_;  // oldest first
  std::deque<SendBatch*> ready_;  // by sequence
  uint64_t next_sequence_ = 0;
};

}  // namespace verbena::transport
