// One queue pair's transport: requester, completer and responder of one service behind the sans-IO
// shape. Same inputs, same outputs, byte for byte. No clock, socket, thread or log.
//
// Drive it so: after every input drain PollResponse, PollDma, PollCompletion and PollEvent; call
// PollRequest when the QP's turn to send comes; call OnTimeout when PollTimeout() is due (calling
// it early is a no-op).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/instant.h"
#include "core/base/prefetch.h"
#include "core/base/types.h"
#include "core/shm/command.h"
#include "core/shm/layout.h"
#include "transport/pdu.h"
#include "transport/qp_host.h"

namespace verbena::transport {

// Identifies one outstanding DMA request of one QP; the QP's business only.
using DmaToken = uint32_t;

// The CRC-32 register that bytes leave, started from 0 (transport/wire/crc32.h).
struct PieceCrc {
  uint32_t value = 0;
  bool is_known = false;
};

// A place in the NIC's own memory.
struct LocalPiece {
  std::byte* to;
  uint32_t bytes;
  // Where whoever copies may leave the CRC of what it copied (wire::KnownPayload); nullptr:
  // nowhere.
  PieceCrc* crc = nullptr;
};

// A movement of payload the role wants done. Requests of one QP are carried out in the order
// polled, and their results come back in that order. Pointers are good until the next input to the
// QP; who carries it out copies what it needs.
struct DmaRequest {
  enum class Kind : uint8_t { kCopy, kCompareSwap, kFetchAdd };
  Kind kind = Kind::kCopy;
  DmaToken token = 0;
  uint32_t prefix_bytes = 0;  // UD: 40 bytes of GRH before the payload
  std::byte prefix[40];
  Payload source;  // kCopy: source.length bytes
  const DmaSegment* destination = nullptr;
  uint16_t destination_count = 0;
  uint64_t destination_offset = 0;  // into the concatenation of `destination`
  // kCopy: into the NIC's own memory instead of `destination`: packets being made. What the pieces
  // name is good until the result comes.
  const LocalPiece* local_pieces = nullptr;
  uint16_t local_piece_count = 0;
  uint64_t compare = 0;  // atomics: one aligned 8-byte word at destination
  uint64_t swap_or_add = 0;
};
enum class DmaStatus : uint8_t {
  kOk,
  kSourceFault,       // the PDU's payload could not be read: as if the PDU had never come
  kDestinationFault,  // the QP's own memory could not be written (or read, for atomics)
};
struct DmaResult {
  DmaToken token = 0;
  DmaStatus status = DmaStatus::kOk;
  uint64_t atomic_original = 0;
};

// A completion for one of the QP's CQs. cqe.valid is left alone; the device fills timestamp_ns and
// qp_handle.
struct Completion {
  shm::Cqe cqe;
  bool is_send = false;
  bool solicited = false;    // counts for ibv_req_notify_cq(solicited_only)
  uint64_t recv_ticket = 0;  // RecvWork::ticket, with cqe.recv_offset_bytes
};

// What became of the next send WQE in one step.
enum class Direct : uint8_t {
  kNot,   // there is none (HasRequestWork tells then), or it is left to PollRequest
  kSent,  // it was sent; both QPs want to be drained
  // It is done, and neither has anything to drain. Its WQE is the caller's to release.
  kDone,
  kCompleted,  // the same, and this is its completion
};

inline constexpr uint32_t kRateLimitMaxKbps = 100'000'000;  // of a port of 100 Gb/s

// The longest message that RC can send at any path MTU. At 256, the 2^31 bytes that verbs know are
// a PSN too many.  Spec: IBTA 9.7.2 (less than half of the PSNs may be in flight)
inline constexpr uint32_t kMessageBytesMax = 0x7fff'ff00;

struct QpConfig {
  Service service = Service::kRc;
  bool sq_sig_all = false;
  bool has_srq = false;
  // A WRITE with immediate completes here without a receive (core/shm/rdm.h).
  bool writes_take_no_receive = false;
  // A SEND longer than its receive is cut off, and of UD a receive that fails does so alone
  // (core/shm/rdm.h).
  bool truncates = false;
  // Whether the port calls OnPayloadReleased. False: it has read the payload when PollRequest's
  // caller makes its next call to the QP.
  bool reports_release = false;
  Qpn qpn;
  uint32_t max_message_bytes = 0x4000'0000;  // port's max_msg_sz
  uint32_t max_inline_bytes = 0;
  uint32_t max_send_sge = 0;
  uint32_t max_recv_sge = 0;
  uint32_t max_send_wr = 0;
  uint32_t max_recv_wr = 0;
  uint32_t port_mtu_bytes = 4096;  // active_mtu: path_mtu may not be above it
  uint32_t max_rd_atomic = 0;      // device limits for the two attributes
  uint32_t max_dest_rd_atomic = 0;
  // Most payload bytes one PDU may carry: 0 = path MTU (packets), else whole messages up to this.
  uint32_t max_pdu_bytes = 0;
};

// How far a connected QP may run ahead, by where its peer is. The device says so before RTR: the
// same QP may be connected within the instance today and over a network tomorrow.
struct PduLimits {
  uint32_t max_pdu_bytes = 0;     // as QpConfig::max_pdu_bytes
  uint32_t max_unacked_psns = 0;  // requests in flight, READ responses included; 0: the PSN space
};

// Outcome of Modify: 0 or a positive errno (EINVAL as ibv_modify_qp(3)).
struct ModifyResult {
  int error = 0;
};

// How far what was posted to send has come.
struct SendProgress {
  Psn unacked_psn;              // of the oldest request that the peer has not acknowledged
  bool has_unfinished = false;  // something that was posted is not done
  bool awaits_receive = false;  // the peer has refused that request for want of a receive
};

// Counters, named as Linux names them.
struct QpCounters {
  uint64_t duplicate_request = 0;
  uint64_t out_of_seq_request = 0;
  uint64_t rcvd_seq_err = 0;
  uint64_t local_ack_timeout_err = 0;
  uint64_t rcvd_rnr_err = 0;
  uint64_t send_rnr_err = 0;
  uint64_t retry_exceeded_err = 0;
  uint64_t retry_rnr_exceeded_err = 0;
  uint64_t out_of_buffer = 0;  // UC, UD: messages dropped for want of a receive WQE
  // These are looked at after each message.
  uint64_t qkey_violation = 0;   // UD; the port's qkey_viol_cntr sums them up
  uint64_t access_disabled = 0;  // requests of a kind that the QP's access flags do not allow
};

class QpTransport {
 public:
  virtual ~QpTransport() = default;

  // --- hints ------------------------------------------------------------------------------------
  // A doorbell, or a message of a peer in this device, comes soon: asks for the cache lines of the
  // QP's own that it takes, and then, once these are there, for those of the next WQE's record.
  // Returns whether the next message most likely goes in one step, which takes fewer.
  virtual bool Expect() const { return false; }
  // Of those of what a doorbell touches, which are the first ones. (Not virtual: that would wait
  // for one of them.)
  void ExpectDoorbell() const {
    constexpr size_t kDoorbellBytes = 2 * kCacheLineBytes;
    PrefetchLines(this, reinterpret_cast<const char*>(this) + kDoorbellBytes);
  }
  virtual void ExpectRecord() const {}

  // --- inputs -----------------------------------------------------------------------------------
  virtual void OnDoorbell(Instant now) = 0;             // the SQ holds WQEs not fetched yet
  virtual void OnPdu(Instant now, const Pdu& pdu) = 0;  // P_Key and destination QPN already checked
  virtual void OnDmaDone(Instant now, const DmaResult& result) = 0;
  // Payload of a PDU this QP sent could not be read from its own memory. `psn` is the PDU's.
  virtual void OnSourceFault(Instant now, Opcode opcode, Psn psn) = 0;
  // The port has done with the payload of the request PDU with this PSN: placed, serialised or
  // dropped. Called only where QpConfig::reports_release says so, once for each request PDU whose
  // payload is segments and that had no OnSourceFault, in any order. UC and UD complete a WQE then,
  // because its buffers may be written again; RC has acknowledges for that.
  virtual void OnPayloadReleased(Instant now, Psn psn) {}
  // What QpHost::SettleKeys told `waiter` to wait for is over.
  virtual void OnKeysSettled(Instant now, QpRole waiter) {}
  // Before OnTimeout, if what is unacknowledged is known to be on its way still, as its bytes are
  // being copied: the ACK timer starts anew, and no retry is counted.
  virtual void OnHeldUp(Instant now) {}
  virtual void OnTimeout(Instant now) = 0;
  virtual ModifyResult Modify(Instant now, const shm::QpAttr& attr, uint32_t mask) = 0;
  // Precondition: the state is RESET or INIT, or SQD and the send queue is drained. Holds until the
  // next call; a reset keeps it.
  virtual void SetPduLimits(const PduLimits& limits) = 0;
  // Goes to the error state and flushes (CQ overrun, hostile ring, dead device).
  virtual void Fail(Instant now, EventType event) = 0;

  // The next send WQE goes to `peer`, the QP at the other end, which is this device's and of this
  // service, in one step: request, placement and acknowledgement.
  virtual Direct SendDirect(Instant now, QpTransport& peer, Completion& out) {
    return Direct::kNot;
  }

  // --- outputs ----------------------------------------------------------------------------------
  virtual bool PollRequest(Instant now, Pdu& out) = 0;
  virtual bool PollResponse(Instant now, Pdu& out) = 0;
  virtual bool PollDma(DmaRequest& out) = 0;
  // Flush completions are made one at a time as they are polled.
  virtual bool PollCompletion(Completion& out) = 0;
  virtual bool PollEvent(EventType& out) = 0;
  virtual Instant PollTimeout() const = 0;

  // --- questions --------------------------------------------------------------------------------
  // False: not now (placements outstanding). The port keeps the PDU and asks again after this QP's
  // next OnDmaDone. A wire port that can't keep it drops it.
  virtual bool CanAccept(const Pdu& pdu) const = 0;
  // Whether a request with this PSN is what comes next. RC only.
  virtual bool IsNextRequest(Psn psn) const { return false; }
  virtual bool HasRequestWork() const = 0;  // PollRequest might produce something now
  virtual QpState state() const = 0;
  virtual Qpn remote_qpn() const = 0;
  // PSNs sent and not acknowledged, READ responses included, but for those to be sent again.
  virtual uint32_t UnackedPsns() const { return 0; }
  // How often what it sent was lost on the way, as far as can be told: sequence NAKs and timeouts
  // that made it send again, since it was made.
  virtual uint64_t RequestsLost() const { return 0; }
  virtual SendProgress Progress() const { return {}; }  // RC
  virtual const Path& path() const = 0;                 // connected services
  virtual void Query(shm::QpAttr& out) const = 0;
  virtual const QpCounters& counters() const = 0;
};

}  // namespace verbena::transport
