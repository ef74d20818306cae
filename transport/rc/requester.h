// The requester: turns send WQEs into request PDUs, and sends again what is lost.
#pragma once

#include <cstdint>

#include "core/base/instant.h"
#include "core/base/prefetch.h"
#include "core/base/psn.h"
#include "transport/pdu.h"
#include "transport/qp_attributes.h"
#include "transport/qp_host.h"
#include "transport/qp_transport.h"
#include "transport/rc/requester_events.h"
#include "transport/rc/send_window.h"

namespace verbena::transport::rc {

// Distance between MSNs: serial numbers of as many bits as PSNs.
constexpr int32_t MsnDelta(Msn from, Msn to) {
  return Psn::Delta(Psn(from.value), Psn(to.value)).value;
}

// Something that happened to a WQE, as the completer or the network tells it.
struct RequesterInput {
  RequesterEvent event = RequesterEvent::kNone;
  uint32_t index = 0;  // of the record in the window
  Psn psn;             // where to go back to
  uint8_t rnr_timer_code = 0;
  shm::VendorErr vendor_err = shm::VendorErr::kNone;
};

class Requester {
 public:
  Requester(QpHost* host, QpAttributes* attributes, QpCounters* counters, SendWindow* window)
      : host_(host), attributes_(attributes), w_(window), counters_(counters) {}

  // Asks for the lines of what messages touch that do not go in one step.
  void ExpectRest() const { PrefetchLines(&window_psns_, this + 1); }

  // RTR to RTS.
  void Start(Psn sq_psn);
  // Timers, and what stands between messages, as after creation.
  void Reset();
  // Settings may have changed (MTU, retry counts), or the state allows sends again.
  void OnModify();

  bool PollRequest(Instant now, Pdu& out);
  // --- rc_direct.cc
  enum class NextDirect { kNone, kWork, kRecord };
  // The next WQE that may go in one step as far as this end is concerned: `work`, taken out of the
  // queue, which the window need not know of; or the record at the cursor, which stays there.
  NextDirect FetchDirect(SendWork& work);
  // It goes the usual way after all.
  void KeepDirect(const SendWork& work) { LoadRecord(work, w_->Push()); }
  bool FitsDirect(uint32_t bytes) const;
  void EndDirect(Instant now, SendRecord& rec);
  void EndDirectWrite(Instant now, PsnCount psns);
  // ---
  // The peer, which is this device's, had no receive, and it is time to look whether it has one.
  bool IsLookingForReceive() const { return !rnr_deadline_.IsNever() && is_looking_; }
  bool awaits_receive() const { return !rnr_deadline_.IsNever(); }
  void OnLookedForReceive(bool is_there);
  PsnCount PsnsOf(uint32_t bytes) const { return PsnsOfMessage(bytes, mtu_bytes_); }
  void OnHeldUp(Instant now) {
    if (ack_deadline_ <= now) ArmAckTimer(now);
  }
  void OnTimeout(Instant now);
  Instant PollTimeout() const {
    return ack_deadline_ < rnr_deadline_ ? ack_deadline_ : rnr_deadline_;
  }

  // Applies the event's row to its WQE.
  void Apply(Instant now, const RequesterInput& input);
  // The peer acknowledged something new: the retry counters start over.
  void OnProgress(Instant now);
  // Part of a message was acknowledged.
  void OnPartAcked(SendRecord& rec);
  // The bind or invalidation begun is done. In the error state, too, that is waited for: a flush
  // would tell the program that its memory is its own again.
  void OnKeysSettled(Instant now);
  void ForgetKeys() { awaits_settled_keys_ = false; }
  bool awaits_settled_keys() const { return awaits_settled_keys_; }
  bool has_credit_limit() const { return has_credit_limit_; }
  // As QpTransport::RequestsLost.
  uint64_t requests_lost() const { return requests_lost_; }
  // What the peer said of its receive queue, in an acknowledgement of all messages up to `msn`.
  void OnCredits(Msn msn, uint8_t credit_code);
  // Where in its message the READ request ends that asks for the byte at `offset`.
  uint32_t ReadRequestEnd(const SendRecord& rec, uint32_t offset) const;
  // Payload of the request PDU at `psn` could not be read.
  void OnSourceFault(Instant now, Psn psn);
  // True once: the SQ's memory lies.
  bool TakeCorruptQueue() {
    bool was = corrupt_queue_;
    corrupt_queue_ = false;
    return was;
  }

 private:
  bool EnsureRecord();
  bool FetchWork(SendWork& work);
  void LoadRecord(const SendWork& work, SendRecord& rec);
  bool MayStart(const SendRecord& rec);
  uint32_t ReadRequestsOutstanding(const SendRecord& rec) const;
  uint32_t RdAtomicSlotsUsed();
  uint32_t PduBytesMax(const SendRecord& rec) const;
  bool FitsLimits(SendRecord& rec);
  bool IsBeyondCredits(const SendRecord& rec) const;
  void AssignPsns(SendRecord& rec);
  void EndDirect(Instant now);  // rc_direct.cc
  void ApplyWindow();
  void StartRecord(Instant now, SendRecord& rec);
  RequesterInput CheckRecord(SendRecord& rec) const;
  bool AreOlderDone() const;
  void StartLocalOperation(Instant now, SendRecord& rec);
  bool Resolve(SendRecord& rec, shm::VendorErr* why);
  void BuildPdu(SendRecord& rec, Pdu& out);
  void RewindOne(SendRecord& rec, uint32_t index, uint32_t sent_bytes);
  void BuildRead(SendRecord& rec, Pdu& out);
  void BuildAtomic(SendRecord& rec, Pdu& out);
  void BuildAtomicWrite(SendRecord& rec, Pdu& out);
  void BuildFlush(SendRecord& rec, Pdu& out);
  void BuildMessagePart(SendRecord& rec, Pdu& out);
  void Retry(Instant now, const RequesterInput& input);
  void RetryAfterRnr(Instant now, const RequesterInput& input);
  void GoBackTo(Psn psn);
  void PlanLook(Instant now);
  void Fail(const RequesterInput& input, const RequesterEventRow& row);
  void ArmAckTimer(Instant now);

  const QpConfig& config() const { return attributes_->config(); }

  // What a message in one step touches comes first, and is in one cache line (RcQp).
  QpHost* host_;
  QpAttributes* attributes_;
  SendWindow* w_;
  Instant ack_deadline_ = Instant::Never();
  Instant rnr_deadline_ = Instant::Never();  // of the wait after an RNR NAK, or of a look before
  uint32_t mtu_bytes_ = 256;
  uint32_t pdu_bytes_max_ = 256;
  Msn next_ssn_;
  uint8_t retry_count_max_ = 0;
  uint8_t rnr_retry_count_max_ = 0;  // kRetryForever: no limit
  uint8_t retries_left_ = 0;
  uint8_t rnr_retries_left_ = 0;
  bool is_limited_ = false;  // by a window or by credits
  bool corrupt_queue_ = false;
  // A bind or invalidation was begun and waits for what the old key has let in.
  bool awaits_settled_keys_ = false;
  // After a loss: PDUs that each ask for an acknowledgement, and whether the oldest goes out twice.
  uint8_t cautious_pdus_ = 0;
  bool repeat_due_ = false;
  // An implied NAK was acted on and nothing new came since: the responses still under way from
  // before would each imply the same NAK again.
  bool implied_nak_served_ = false;
  bool is_looking_ = false;

  // PSNs outstanding, a READ's expected responses included; 0: the PSN space is the only limit.
  int32_t window_psns_ = 0;
  int32_t ack_request_every_psns_ = 64;
  uint32_t read_request_bytes_max_ = UINT32_MAX;
  // End-to-end credits: messages up to this one find a receive WQE.  Spec: IBTA 9.7.7.2.
  bool has_credit_limit_ = false;
  Msn credit_limit_;
  Msn credit_msn_;           // of the acknowledgement that set it
  Duration ack_timeout_{0};  // 0: none
  // Of the bind or invalidation begun; the cursor may be at something lost before it.
  uint32_t local_operation_ = 0;
  uint32_t mtu_shift_ = 8;
  uint64_t requests_lost_ = 0;
  QpCounters* counters_;
  // The wait after the last RNR NAK: of which request, until when, how long until the next look.
  Psn rnr_psn_;
  Instant rnr_end_{0};
  Duration look_after_{0};
};

}  // namespace verbena::transport::rc
