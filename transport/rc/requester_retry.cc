// What befalls WQEs on their way: losses, retries, acknowledgements, timers.
#include "transport/rc/requester.h"

namespace verbena::transport::rc {
namespace {

using shm::VendorErr;

// On a network that loses much, an acknowledgement every few dozen packets comes never: the first
// packets sent again each ask for one.
constexpr uint8_t kCautiousPdus = 8;
// The spec allows [T, 4T]. Twice the interval keeps a busy machine from seeing losses.
constexpr int64_t kAckTimeoutFactor = 2;
// Allowance for moving the bytes of whole-message PDUs: 1 GB/s, well below any backend's rate.
constexpr int64_t kSendNsPerByte = 1;
// As long as a program that has just got its CPU needs to take a queue of messages and to post
// receives again.
constexpr Duration kFirstLook = Microseconds(40);

// Receive WQEs by the AETH's credit code.  Spec: IBTA 9.7.7.2, encoding of the credit count.
constexpr uint16_t kCredits[kCreditsNotInUse] = {
    0,     1,     2,     3,     4,     6,      8,      12,     16,    24,    32,
    48,    64,    96,    128,   192,   256,    384,    512,    768,   1'024, 1'536,
    2'048, 3'072, 4'096, 6'144, 8'192, 12'288, 16'384, 24'576, 32'768};

}  // namespace

// --- events --------------------------------------------------------------------------------------

void Requester::Apply(Instant now, const RequesterInput& input) {
  const RequesterEventRow& row = LookUpRequesterEvent(input.event);
  SendRecord& rec = w_->At(input.index);
  if (!row.AppliesIn(rec.state)) return;
  if (row.counter != nullptr) ++(counters_->*row.counter);
  switch (row.action) {
    case RequesterAction::kRetry:
      Retry(now, input);
      return;  // every WQE from there on changes state, or fails by another row
    case RequesterAction::kRnrRetry:
      RetryAfterRnr(now, input);
      return;
    case RequesterAction::kAssignPsns:
      AssignPsns(rec);
      break;
    case RequesterAction::kFail:
      Fail(input, row);
      break;
    case RequesterAction::kRetire:
      if (rec.HasResponse()) {
        --w_->rd_atomic_outstanding;
        if (rec.length > read_request_bytes_max_) --w_->split_reads;
      }
      w_->WakeSender();
      break;
    case RequesterAction::kReopen:
      rec.is_taken = false;
      ArmAckTimer(now);
      break;
    case RequesterAction::kNone:
      break;
  }
  rec.state = row.next;
}

void Requester::AssignPsns(SendRecord& rec) {
  rec.psn_count = PsnsOf(rec.length);
  rec.first_psn = w_->next_psn;
  w_->next_psn = w_->next_psn + rec.psn_count;
  uint32_t messages = 1;  // as the peer counts them
  if (rec.HasResponse()) {
    ++w_->rd_atomic_outstanding;
    if (rec.length > read_request_bytes_max_) {
      ++w_->split_reads;
      messages = (rec.length - 1) / read_request_bytes_max_ + 1;
    }
  }
  rec.ssn = Msn((next_ssn_.value + messages - 1) & Psn::kMask);
  next_ssn_ = Msn((rec.ssn.value + 1) & Psn::kMask);
}

void Requester::Fail(const RequesterInput& input, const RequesterEventRow& row) {
  SendRecord& rec = w_->At(input.index);
  if (row.status != WcStatus::kSuccess) rec.status = row.status;
  rec.vendor_err = input.vendor_err != VendorErr::kNone ? input.vendor_err : row.vendor_err;
}

void Requester::Retry(Instant now, const RequesterInput& input) {
  // While the peer is given time, all from the packet it could not take on waits to be sent again.
  // Kernel rxe complains about the packets behind that one, too: no loss, and no retry used.
  if (input.event == RequesterEvent::kSequenceNak && !rnr_deadline_.IsNever()) return;
  // A timeout is news of its own; implied NAKs for one loss count once.
  if (input.event == RequesterEvent::kImpliedNak) {
    if (implied_nak_served_) return;
    implied_nak_served_ = true;
  } else {
    ++requests_lost_;
    if (input.event == RequesterEvent::kTimeout) implied_nak_served_ = false;
  }
  if (retries_left_ == 0) {
    ack_deadline_ = Instant::Never();
    Apply(now, {RequesterEvent::kRetryExceeded, input.index, input.psn, 0, VendorErr::kNone});
    return;
  }
  --retries_left_;
  // A second try in vain: one packet lost each time must not end the connection, so it gets two
  // chances from now on. Between local peers nothing is lost, and a PDU may be a whole message.
  repeat_due_ = window_psns_ != 0 && retries_left_ + 1 < retry_count_max_;
  cautious_pdus_ = kCautiousPdus;
  GoBackTo(input.psn);
  ack_deadline_ = Instant::Never();  // armed again with the first PDU sent again
}

void Requester::RetryAfterRnr(Instant now, const RequesterInput& input) {
  if (rnr_retries_left_ == 0) {
    Apply(now, {RequesterEvent::kRnrRetryExceeded, input.index, input.psn, 0, VendorErr::kNone});
    return;
  }
  if (rnr_retry_count_max_ != kRetryForever) --rnr_retries_left_;
  // The request came there, and so did the answer. A peer that is not ready for long would use up,
  // on a network that loses some, the retries of all that is lost meanwhile.
  retries_left_ = retry_count_max_;
  GoBackTo(input.psn);
  ack_deadline_ = Instant::Never();
  rnr_end_ = now + RnrDelay(input.rnr_timer_code);
  if (input.psn != rnr_psn_ || look_after_.ns == 0) look_after_ = kFirstLook;
  rnr_psn_ = input.psn;
  PlanLook(now);
}

// A peer in this device need not be asked to be known: it is looked at after 40 µs, 80 more, 160
// ..., so that the wait is twice what it had to be at most, and whoever waits for long costs
// little. (docs/adr/0025)
void Requester::PlanLook(Instant now) {
  is_looking_ = false;
  rnr_deadline_ = rnr_end_;
  const bool is_behind_a_network = window_psns_ != 0;
  if (is_behind_a_network || rnr_end_ <= now + look_after_) return;
  rnr_deadline_ = now + look_after_;
  look_after_ = look_after_ * 2;
}

// If another QP takes it first, this was no retry.
void Requester::OnLookedForReceive(bool is_there) {
  is_looking_ = false;
  if (!is_there) return;
  rnr_deadline_ = Instant::Never();
  if (rnr_retries_left_ < rnr_retry_count_max_) ++rnr_retries_left_;
}

// Everything from `psn` on is to be sent again, but for WQEs whose response came.
void Requester::GoBackTo(Psn psn) {
  const RequesterEventRow& row = LookUpRequesterEvent(RequesterEvent::kTimeout);
  uint32_t first = w_->tail;
  for (uint32_t i = w_->acked; i != w_->tail; ++i) {
    SendRecord& rec = w_->At(i);
    if (!rec.IsInFlight() || rec.is_taken) continue;
    int32_t psns_done = Psn::Delta(rec.first_psn, psn).value;
    if (psns_done >= rec.psn_count.value) continue;  // wholly before
    rec.sent_bytes = rec.IsRead()    ? rec.received_bytes
                     : psns_done > 0 ? static_cast<uint32_t>(psns_done) << mtu_shift_
                                     : 0;
    rec.is_resolved = false;  // a key may have been revoked since
    rec.state = row.next;
    if (first == w_->tail) first = i;
  }
  if (first != w_->tail) w_->cursor = first;
  w_->may_send = true;
}

void Requester::OnProgress(Instant now) {
  retries_left_ = retry_count_max_;
  rnr_retries_left_ = rnr_retry_count_max_;
  implied_nak_served_ = repeat_due_ = false;
  if (w_->unacked_psn == w_->sent_psn) {
    ack_deadline_ = Instant::Never();
  } else {
    ArmAckTimer(now);
  }
  w_->WakeSender();
}

void Requester::OnPartAcked(SendRecord& rec) {
  // Acknowledged after all, after a loss was presumed: it need not be sent again.
  const int32_t psns = Psn::Delta(rec.first_psn, w_->unacked_psn).value;
  const uint32_t bytes = static_cast<uint32_t>(psns) << mtu_shift_;
  if (rec.sent_bytes < bytes) rec.sent_bytes = bytes;
}

void Requester::OnCredits(Msn msn, uint8_t credit_code) {
  if (MsnDelta(credit_msn_, msn) < 0) return;  // an older answer that came late
  credit_msn_ = msn;
  has_credit_limit_ = credit_code < kCreditsNotInUse;
  is_limited_ = window_psns_ != 0 || has_credit_limit_;
  if (has_credit_limit_) credit_limit_ = Msn((msn.value + kCredits[credit_code]) & Psn::kMask);
  w_->WakeSender();
}

void Requester::OnSourceFault(Instant now, Psn psn) {
  for (uint32_t i = w_->acked; i != w_->tail; ++i) {
    SendRecord& rec = w_->At(i);
    if (!rec.IsInFlight()) continue;
    int32_t distance = Psn::Delta(rec.first_psn, psn).value;
    if (distance < 0 || distance >= rec.psn_count.value) continue;
    Apply(now, {RequesterEvent::kSourceFault, i, psn, 0, VendorErr::kNone});
    return;
  }
}

// --- timers --------------------------------------------------------------------------------------

void Requester::ArmAckTimer(Instant now) {
  // While the peer is given time nothing is expected of it.
  if (ack_timeout_.ns == 0 || !rnr_deadline_.IsNever()) {
    ack_deadline_ = Instant::Never();
    return;
  }
  ack_deadline_ = now + ack_timeout_ * kAckTimeoutFactor;
  if (window_psns_ != 0 || pdu_bytes_max_ == mtu_bytes_) return;
  // The interval counts from the last packet sent. A whole-message PDU is not "sent" until its
  // bytes have moved, and no packet inside it is acknowledged meanwhile.
  int64_t bytes = int64_t{Psn::Delta(w_->unacked_psn, w_->sent_psn).value} * mtu_bytes_;
  ack_deadline_ = ack_deadline_ + Nanoseconds(bytes * kSendNsPerByte);
}

void Requester::OnTimeout(Instant now) {
  if (rnr_deadline_ <= now) {
    if (now < rnr_end_) {
      PlanLook(now);
      is_looking_ = true;
    } else {
      rnr_deadline_ = Instant::Never();
      is_looking_ = false;
    }
    w_->may_send = true;
  }
  if (ack_deadline_ > now) return;
  ack_deadline_ = Instant::Never();
  for (uint32_t i = w_->acked; i != w_->tail; ++i) {
    SendRecord& rec = w_->At(i);
    if (!rec.IsInFlight() || rec.is_taken) continue;
    Apply(now, {RequesterEvent::kTimeout, i, w_->unacked_psn, 0, VendorErr::kNone});
    return;
  }
}

}  // namespace verbena::transport::rc
