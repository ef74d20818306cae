// FLUSH: its answer says that what was written before it is where it was asked to be.
//
// It moves no bytes. Those before it are visible to the program that owns them once their
// placements are done, in whatever way the program looks at them, so global visibility is a matter
// of waiting behind them. Persistence is another: no memory is known to have it, and no key grants
// it. Spec: IBTA annex A19.
#include "transport/rc/responder.h"

namespace verbena::transport::rc {

// A reserved value asks for what nobody can say was done.
ResponderFault Responder::CheckFlush(const Pdu& pdu) const {
  if (!flush::IsPlacementType(pdu.flush_type) || pdu.flush_level > flush::kMr) {
    return ResponderFault::kUnsupportedOpcode;
  }
  const uint32_t needed = flush::AccessNeeded(pdu.flush_type);
  return (attributes_->access_flags() & needed) == needed ? ResponderFault::kNone
                                                          : ResponderFault::kAccessDisabled;
}

ResponderFault Responder::CheckFlushLength(const Pdu& pdu) const {
  const bool is_range = pdu.flush_level == flush::kRange;
  const bool is_too_long = is_range && pdu.dma_length > config().max_message_bytes;
  return pdu.payload.length != 0 || is_too_long ? ResponderFault::kBadLength
                                                : ResponderFault::kNone;
}

// The key must be good even where the range is empty, as rxe has it.
ResponderFault Responder::CheckFlushRkey(const Pdu& pdu) {
  const uint32_t needed = flush::AccessNeeded(pdu.flush_type);
  check_vendor_err_ = pdu.flush_level == flush::kMr
                          ? host_->CheckRemoteKey(pdu.rkey, needed)
                          : host_->ResolveRemote(pdu.rkey, pdu.remote_addr, pdu.dma_length, needed,
                                                 &remote_segment_);
  return check_vendor_err_ == shm::VendorErr::kNone ? ResponderFault::kNone
                                                    : ResponderFault::kRkeyViolation;
}

// Its place behind the placements before it is all that it needs.
void Responder::ExecuteFlush(const Pdu& pdu) {
  Op& op = PushOp(OpKind::kFlush, pdu.psn, PsnCount{1});
  op.before = message_;
  epsn_ = op.psn.Next();
}

// What was flushed once still is.
void Responder::ReplayFlush(const Pdu& pdu) {
  if (!pdu.psn.Before(done_psn_)) return;  // its first answer is on its way
  PushOp(OpKind::kFlush, pdu.psn, PsnCount{1}).is_duplicate = true;
}

}  // namespace verbena::transport::rc
