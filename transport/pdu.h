// Protocol data units as the roles exchange them: header fields unserialised, payload by reference.
//
// A PDU may stand for several packets of a message: its psn_count is their number, and it is FIRST,
// MIDDLE, LAST or ONLY by what of the message it carries. On the local port that is the whole
// message; for a network the NIC makes packets of it at its edge (SegmentOpcode), and of packets
// that come together one PDU again. All forms consume the same PSNs and run the same rows.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/psn.h"
#include "core/base/types.h"

namespace verbena::transport {

// Operation part (low five bits) of the BTH opcode; the service is the top three.
// Spec: IBTA 9.2.1, table of OpCodes.
enum class Opcode : uint8_t {
  kSendFirst = 0x00,
  kSendMiddle = 0x01,
  kSendLast = 0x02,
  kSendLastWithImm = 0x03,
  kSendOnly = 0x04,
  kSendOnlyWithImm = 0x05,
  kWriteFirst = 0x06,
  kWriteMiddle = 0x07,
  kWriteLast = 0x08,
  kWriteLastWithImm = 0x09,
  kWriteOnly = 0x0a,
  kWriteOnlyWithImm = 0x0b,
  kReadRequest = 0x0c,
  kReadResponseFirst = 0x0d,
  kReadResponseMiddle = 0x0e,
  kReadResponseLast = 0x0f,
  kReadResponseOnly = 0x10,
  kAcknowledge = 0x11,
  kAtomicAcknowledge = 0x12,
  kCompareSwap = 0x13,
  kFetchAdd = 0x14,
  kSendLastWithInvalidate = 0x16,
  kSendOnlyWithInvalidate = 0x17,
  kFlush = 0x1c,
  kAtomicWrite = 0x1d,
};

// Credit count of an AETH: end-to-end flow control is not in use.  Spec: IBTA 9.7.7.2.
inline constexpr uint8_t kCreditsNotInUse = 31;

// AETH syndrome classes and NAK codes.  Spec: IBTA 9.7.5.2.
enum class AckType : uint8_t { kAck, kRnrNak, kNak };
enum class NakCode : uint8_t {
  kPsnSequenceError = 0,
  kInvalidRequest = 1,
  kRemoteAccessError = 2,
  kRemoteOperationalError = 3,
  kInvalidRdRequest = 4,
};

// What a FETH asks for: bits of its placement type, and its selectivity level. Values equal those
// of enum ibv_placement_type and enum ibv_selectivity_level.  Spec: IBTA annex A19.
namespace flush {
inline constexpr uint8_t kGlobal = 1u << 0;      // global visibility
inline constexpr uint8_t kPersistent = 1u << 1;  // persistence
inline constexpr uint8_t kRange = 0;
inline constexpr uint8_t kMr = 1;  // all that the key leads to, whatever the RETH says

constexpr bool IsPlacementType(uint32_t type) {
  return type != 0 && (type & ~uint32_t{kGlobal | kPersistent}) == 0;
}
// The rights that a QP and a key need for it.
constexpr uint32_t AccessNeeded(uint32_t type) {
  return ((type & kGlobal) != 0 ? access::kFlushGlobal : 0) |
         ((type & kPersistent) != 0 ? access::kFlushPersistent : 0);
}
}  // namespace flush

// Where bytes of client memory are. `memory` names a region known to softnic/dma (or to a test's
// model memory); addr is an address in the process that owns the region.
using MemoryId = uint32_t;
struct DmaSegment {
  MemoryId memory = 0;
  uint32_t length = 0;
  uint64_t addr = 0;
};

// `length` bytes: either at `bytes` (inline data, packet data), or within a segment list, starting
// `offset` bytes into its concatenation. Pointers are good until the next input to the QP that
// produced the PDU.
struct Payload {
  uint32_t length = 0;
  uint16_t segment_count = 0;
  const std::byte* bytes = nullptr;
  const DmaSegment* segments = nullptr;
  uint64_t offset = 0;
  // Data of several packets taken as one PDU: `piece_bytes` each, so far apart from `bytes` on; the
  // last may be shorter. 0: in one piece.
  uint32_t piece_bytes = 0;
  uint32_t piece_stride_bytes = 0;

  // Calls with each piece: address, bytes. Precondition: the payload is at `bytes`, or empty.
  template <typename Take>
  void ForEachPiece(const Take& take) const {
    const uint32_t whole = piece_bytes == 0 ? length : piece_bytes;
    const std::byte* from = bytes;
    for (uint32_t done = 0; done < length; done += whole, from += piece_stride_bytes) {
      take(from, std::min(whole, length - done));
    }
  }
  void AppendTo(std::vector<std::byte>* out) const {
    ForEachPiece(
        [out](const std::byte* from, uint32_t n) { out->insert(out->end(), from, from + n); });
  }
};

// The way to a peer: what an address vector resolves to. Of a PDU that came over a wire, what its
// IP header says: sgid and dgid are its source and destination, traffic_class TOS, hop_limit TTL.
struct Path {
  Gid sgid;
  Gid dgid;
  uint32_t flow_label = 0;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
  uint8_t sl = 0;
  uint8_t sgid_index = 0;
  uint16_t ip_id = 0;  // IPv4, received PDUs: the identification their ICRC proved
};

struct Pdu {
  Service service = Service::kRc;
  Opcode opcode = Opcode::kSendOnly;
  bool ack_request = false;
  bool solicited = false;
  PKey pkey;
  uint8_t flush_type = 0;   // FETH: placement type
  uint8_t flush_level = 0;  // FETH: selectivity level
  Qpn src_qpn;  // known to the local port and in DETH; not on the wire of connected services
  Qpn dest_qpn;
  Psn psn;
  PsnCount psn_count{1};
  const Path* path = nullptr;

  // RETH, or AtomicETH
  uint64_t remote_addr = 0;
  RKey rkey;
  uint32_t dma_length = 0;
  uint64_t compare = 0;
  uint64_t swap_or_add = 0;

  // AETH, AtomicAckETH
  AckType ack_type = AckType::kAck;
  NakCode nak_code = NakCode::kPsnSequenceError;
  uint8_t rnr_timer_code = 0;
  uint8_t credits = kCreditsNotInUse;  // code of the receive WQEs ready
  Msn msn;
  uint64_t atomic_original = 0;

  // DETH, ImmDt or IETH
  QKey qkey;
  uint32_t imm_or_rkey = 0;

  Payload payload;
};

// The opcode table as data: what each opcode carries and where it stands in a message.
struct OpcodeInfo {
  const char* name;
  bool is_request, is_send, is_write, is_read_response, is_atomic;
  bool is_atomic_write;               // eight bytes at once; answered as a READ of nothing is
  bool is_flush;                      // moves no bytes; is answered likewise
  bool is_first, is_middle, is_last;  // an ONLY is first and last
  bool has_feth, has_reth, has_atomic_eth, has_aeth, has_imm, has_ieth;
  uint8_t services;  // bit 1 << Service
};
namespace internal {
extern const std::array<OpcodeInfo, 0x1e> kOpcodes;
}
// nullptr for values that are no opcode.
inline const OpcodeInfo* LookUpOpcode(Opcode opcode) {
  const auto index = static_cast<size_t>(opcode);
  if (index >= internal::kOpcodes.size()) return nullptr;
  const OpcodeInfo& info = internal::kOpcodes[index];
  return info.name != nullptr ? &info : nullptr;
}

// The opcode of one packet of the PDU's several: its first one, its last one, or one between.
// Precondition: a PDU of a SEND, a WRITE or a READ response; not both is_first and is_last.
Opcode SegmentOpcode(Opcode opcode, bool is_first, bool is_last);
// The opcode of both as one PDU, the message going on from the first to the second.
// Precondition: two parts of one SEND or of one WRITE, the former no LAST, the latter no FIRST.
Opcode JoinedOpcode(Opcode opcode, Opcode next);

}  // namespace verbena::transport
