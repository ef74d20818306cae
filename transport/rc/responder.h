// The responder: checks requests in order, executes them, and answers.
//
// Every accepted request, and every answer to a refused one, waits in one queue (`ops_`) behind the
// placements before it: an acknowledgement or completion never overtakes the effects it tells of.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/instant.h"
#include "core/base/prefetch.h"
#include "core/base/psn.h"
#include "transport/pdu.h"
#include "transport/qp_attributes.h"
#include "transport/qp_host.h"
#include "transport/qp_transport.h"
#include "transport/rc/growing_ring.h"
#include "transport/rc/responder_checks.h"
#include "transport/rc/responder_faults.h"
#include "transport/rc/send_window.h"

namespace verbena::transport::rc {

// A fault that failed the QP, for the event it may raise.
struct ResponderFailure {
  bool has_event = false;
  EventType event = EventType::kQpFatal;
};

class Responder {
 public:
  Responder(QpHost* host, QpAttributes* attributes, QpCounters* counters)
      : host_(host), attributes_(attributes), counters_(counters) {}

  // Asks for the lines of what a message in one step touches; of what the others do besides.
  void Expect() const { PrefetchLines(this, &message_); }
  void ExpectRest() const { PrefetchLines(&message_, &failure_); }
  void Reset();
  void Start(Psn rq_psn);  // INIT to RTR
  void OnModify();         // settings may have changed
  // The QP failed: nothing more is executed or acknowledged; receives taken will be flushed.
  void Halt();

  bool CanAccept(const Pdu& pdu) const;
  Psn expected_psn() const { return epsn_; }
  Psn done_psn() const { return done_psn_; }  // all before it is done, or answered in part
  bool IsNext(Psn psn) const { return !is_halted_ && psn == epsn_; }
  // True if the request was the one expected, and is executed.
  bool OnPdu(const Pdu& pdu, const OpcodeInfo& info);
  // The oldest placement or atomic outstanding is done.
  void OnDmaDone(const DmaResult& result);
  // Payload of the response at `psn` could not be read.
  void OnSourceFault(Psn psn);
  // The invalidation of the SEND at the front is done.
  void OnKeysSettled();

  // --- rc_direct.cc
  // Whether the request may be carried out in one step. Has its receive WQE at hand then.
  // `psns`: as the requester counts them.
  bool TakesDirect(Psn psn, PsnCount psns, const SendRecord& rec);
  bool TakesDirectWrite(Psn psn, PsnCount psns, uint32_t bytes) const;
  bool TakesDirectRead(Psn psn, PsnCount psns, uint32_t bytes) const;
  // Whether the next message that takes a receive WQE will find one, as far as can be told.
  bool HasReceive() const { return receives_.size() > receives_used_ || host_->HasRecv(); }
  const RecvWork& NextReceive() const { return receives_[receives_used_]; }
  // What the receive WQE for the current message holds.
  uint64_t ReceiveRoomBytes() const {
    const RecvWork& work = NextReceive();
    uint64_t room = 0;
    for (uint32_t i = 0; i < work.num_sge; ++i) room += work.sge[i].length;
    return room;
  }
  void EndDirect(const SendRecord& rec);
  void EndDirectWrite(Psn psn, PsnCount psns);
  // ---

  bool PollResponse(Pdu& out);
  // At most one of each OnPdu.
  bool PollDma(DmaRequest& out);
  bool PollCompletion(Completion& out);
  // True once, if a fault failed the QP since.
  bool TakeFailure(ResponderFailure* out) {
    if (!has_failure_) return false;
    has_failure_ = false;
    *out = failure_;
    return true;
  }
  // In the error state: nothing taken or under way is left.
  bool IsFlushed() const {
    return completions_.IsEmpty() && receives_.IsEmpty() && dma_outstanding_ == 0;
  }

 private:
  enum class OpKind : uint8_t {
    kPlacement,
    kRead,
    kAtomic,
    kAtomicReplay,
    kAckAgain,
    kFault,
    kAtomicWrite,
    kFlush,
  };
  enum class Message : uint8_t { kNone, kSend, kWrite };
  // Since the last request taken. A peer that got an RNR NAK sends again of itself, and what it
  // loses then is worth another NAK; after any other there is none.
  enum class NakSent : uint8_t { kNone, kNotReady, kLast };

  // Where the message being received stands.
  struct MessageState {
    Message kind = Message::kNone;
    RKey rkey;
    uint32_t received_bytes = 0;
    uint32_t total_bytes = 0;  // WRITE: as its RETH says
    uint32_t room_bytes = 0;   // SEND: of the receive WQE
    uint64_t next_addr = 0;    // WRITE
  };

  // What every kind of op has.
  struct OpHead {
    OpKind kind = OpKind::kPlacement;
    ResponderFault fault = ResponderFault::kNone;
    shm::VendorErr vendor_err = shm::VendorErr::kNone;
    bool dma_outstanding = false;
    bool is_duplicate = false;
    bool wants_ack = false;
    bool ends_message = false;
    bool is_send = false;
    bool takes_receive = false;
    bool tells_write = false;  // completes without a receive
    bool invalidates = false;
    bool solicited = false;
    shm::WcOpcode wc_opcode = shm::WcOpcode::kRecv;
    uint16_t wc_flags = 0;
    uint32_t bytes = 0;  // of the message, for its completion; of a READ's response
    uint32_t imm_or_rkey = 0;
    Psn psn;
    PsnCount psn_count{1};
    MemoryId written_memory = 0;  // by a WRITE
  };
  // The rest is stale but for the kinds that set it: clearing it would cost more than using it.
  struct Op : OpHead {
    DmaSegment segment;  // READ, atomic
    uint64_t compare = 0;
    uint64_t swap_or_add = 0;
    uint64_t original = 0;
    MessageState before;  // requests: to take one back if its payload can't be read
  };

  struct ReceiveCompletion {
    uint64_t wr_id = 0;
    uint64_t ticket = 0;
    uint32_t offset_bytes = 0;
    uint32_t bytes = 0;
    uint32_t imm_or_rkey = 0;
    uint16_t wc_flags = 0;
    shm::WcOpcode wc_opcode = shm::WcOpcode::kRecv;
    WcStatus status = WcStatus::kSuccess;
    shm::VendorErr vendor_err = shm::VendorErr::kNone;
    bool solicited = false;
  };

  struct AtomicResource {  // to replay a duplicate.  Spec: IBTA 9.4.5, C9-150
    Psn psn;
    uint64_t original = 0;
  };

  // The chain.
  ResponderFault RunChecks(const Pdu& pdu, const OpcodeInfo& info);
  ResponderFault Check(ResponderCheck check, const Pdu& pdu, const OpcodeInfo& info);
  ResponderFault CheckPsn(Psn psn) const;
  bool MayTellOfGap(int32_t distance) const;
  ResponderFault CheckOpcodeSequence(const OpcodeInfo& info) const;
  ResponderFault CheckOpcodeSupported(const Pdu& pdu, const OpcodeInfo& info) const;
  ResponderFault CheckResource(const Pdu& pdu, const OpcodeInfo& info);
  ResponderFault CheckLength(const Pdu& pdu, const OpcodeInfo& info) const;
  ResponderFault CheckRkey(const Pdu& pdu, const OpcodeInfo& info);
  uint32_t RdAtomicsWaiting() const;
  ResponderFault EnsureReceive();
  ResponderFault ResolveReceive(uint64_t bytes);
  // Gives receives of a marked SRQ back that no message has, but for the first `keep`.
  void ReturnReceives(uint32_t keep);

  void Execute(const Pdu& pdu, const OpcodeInfo& info);
  // --- responder_atomic_write.cc
  ResponderFault CheckAtomicWriteLength(const Pdu& pdu) const;
  ResponderFault CheckAtomicWriteRkey(const Pdu& pdu);
  void ExecuteAtomicWrite(const Pdu& pdu);
  void ReplayAtomicWrite(const Pdu& pdu);
  void BuildEmptyResponse(Op& op, Pdu& out);
  // --- responder_flush.cc
  ResponderFault CheckFlush(const Pdu& pdu) const;
  ResponderFault CheckFlushLength(const Pdu& pdu) const;
  ResponderFault CheckFlushRkey(const Pdu& pdu);
  void ExecuteFlush(const Pdu& pdu);
  void ReplayFlush(const Pdu& pdu);
  // ---
  void ExecutePlacement(const Pdu& pdu, const OpcodeInfo& info, Op& op);
  void ExecuteDuplicate(const Pdu& pdu, const OpcodeInfo& info);
  PsnCount PacketAtFault(const Pdu& pdu, const OpcodeInfo& info, ResponderFault fault) const;
  void OnFault(const Pdu& pdu, const OpcodeInfo& info, ResponderFault fault);
  Op& PushOp(OpKind kind, Psn psn, PsnCount count);
  void TakeBack(uint32_t op_index);

  void Drain();
  bool TakeKeyAway(Op& op);
  void Finish(Op& op);
  void ApplyFault(const Op& op);
  void PushWriteCompletion(const Op& op);
  void PushReceiveCompletion(const Op& op, WcStatus status, shm::VendorErr why);
  void BuildReadResponse(Op& op, Pdu& out);
  void BuildHeader(Opcode opcode, Psn psn, Pdu& out) const;
  void BuildNak(Pdu& out);
  bool FlushOne(Completion& out);
  void Fill(const ReceiveCompletion& in, Completion& out) const;
  void SaveAtomic(Psn psn, uint64_t original);
  void GrowAtomics(uint32_t size);
  const AtomicResource* FindAtomic(Psn psn) const;
  bool IsAtomicUnderWay(Psn psn) const;
  bool IsIdle(Psn psn, PsnCount psns, uint32_t bytes) const;  // rc_direct.cc
  PsnCount PsnsOf(uint32_t bytes) const { return PsnsOfMessage(bytes, mtu_bytes_); }
  bool WantsResponse(const Op& op) const {
    return op.kind == OpKind::kRead || op.kind == OpKind::kAtomic ||
           op.kind == OpKind::kAtomicReplay || op.kind == OpKind::kAtomicWrite ||
           op.kind == OpKind::kFlush;
  }

  const QpConfig& config() const { return attributes_->config(); }

  // What a message in one step touches comes first, and is in two cache lines (RcQp).
  QpHost* host_;
  QpAttributes* attributes_;
  QpCounters* counters_;

  uint32_t mtu_bytes_ = 256;
  uint32_t mtu_shift_ = 8;
  uint32_t pdu_bytes_max_ = 256;
  bool reads_hold_back_ = true;

  Psn epsn_;      // expected next
  Psn done_psn_;  // one past the newest that is done, and so may be acknowledged
  Msn msn_;       // messages completed
  bool is_halted_ = true;
  NakSent nak_sent_ = NakSent::kNone;
  bool ack_due_ = false;
  bool nak_due_ = false;
  bool dma_due_ = false;
  // The key of the SEND at the front is dead, and what it has let in is under way still.
  bool awaits_settled_keys_ = false;
  bool has_failure_ = false;
  bool check_took_receive_ = false;  // of the request being checked
  static constexpr uint32_t kOpsMax = 64;
  GrowingRing<Op, kOpsMax> ops_;
  GrowingRing<ReceiveCompletion, 2 * kOpsMax> completions_;
  uint32_t dma_outstanding_ = 0;  // results still to come
  MessageState message_;

  uint32_t results_to_ignore_ = 0;  // the next so many are of requests taken back or abandoned
  uint32_t receives_used_ = 0;
  // Receive WQEs fetched and not completed, oldest first; ops_ use the first receives_used_.
  GrowingRing<RecvWork, 2 * kOpsMax> receives_;

  // From here on: what messages of one PDU and without a fault do not touch.
  ResponderFailure failure_;
  shm::VendorErr check_vendor_err_ = shm::VendorErr::kNone;  // of the request being checked
  int32_t seen_psns_ = 0;       // since an RNR NAK, from epsn_ to the newest packet that came
  uint32_t reads_waiting_ = 0;  // READs in ops_
  uint32_t invalidations_waiting_ = 0;  // SENDs with invalidate in ops_
  uint32_t read_sent_bytes_ = 0;        // of the READ at the front

  // Each resolved anew for a request; polled at once.
  std::unique_ptr<DmaSegment[]> receive_segments_;
  uint16_t receive_segment_count_ = 0;
  DmaSegment remote_segment_;

  std::unique_ptr<AtomicResource[]> atomics_;
  uint32_t atomics_size_ = 0;
  uint32_t atomics_next_ = 0;
  uint32_t atomics_valid_ = 0;

  DmaRequest::Kind dma_kind_ = DmaRequest::Kind::kCopy;
  Payload dma_source_;
  const DmaSegment* dma_destination_ = nullptr;
  uint16_t dma_destination_count_ = 0;
  uint64_t dma_destination_offset_ = 0;

  AckType nak_type_ = AckType::kNak;
  NakCode nak_code_ = NakCode::kPsnSequenceError;
  Psn nak_psn_;
};

}  // namespace verbena::transport::rc
