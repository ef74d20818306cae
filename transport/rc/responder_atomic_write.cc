// ATOMIC_WRITE: eight bytes that are written at once, after all that was to be written before them.
//
// It takes one of the resources that READs and atomics share, and is answered as a READ of nothing
// is. Executing it again would undo what was written since, so a duplicate is answered only.
// Spec: IBTA annex A19.
#include "transport/rc/responder.h"

namespace verbena::transport::rc {
namespace {

constexpr uint32_t kBytes = 8;

}  // namespace

ResponderFault Responder::CheckAtomicWriteLength(const Pdu& pdu) const {
  if (pdu.dma_length != kBytes || pdu.payload.length != kBytes) return ResponderFault::kBadLength;
  return pdu.remote_addr % kBytes == 0 ? ResponderFault::kNone : ResponderFault::kMisalignedAtomic;
}

ResponderFault Responder::CheckAtomicWriteRkey(const Pdu& pdu) {
  check_vendor_err_ = host_->ResolveRemote(pdu.rkey, pdu.remote_addr, kBytes, access::kRemoteWrite,
                                           &remote_segment_);
  if (check_vendor_err_ != shm::VendorErr::kNone) return ResponderFault::kRkeyViolation;
  // A region's addresses on the wire need not be aligned as those in the process.
  return remote_segment_.addr % kBytes == 0 ? ResponderFault::kNone
                                            : ResponderFault::kMisalignedAtomic;
}

// Placements of one connection are carried out in order, and eight aligned bytes in one piece.
void Responder::ExecuteAtomicWrite(const Pdu& pdu) {
  Op& op = PushOp(OpKind::kAtomicWrite, pdu.psn, PsnCount{1});
  op.before = message_;
  op.dma_outstanding = true;
  ++dma_outstanding_;
  dma_due_ = true;
  dma_kind_ = DmaRequest::Kind::kCopy;
  dma_source_ = pdu.payload;
  dma_destination_ = &remote_segment_;
  dma_destination_count_ = 1;
  dma_destination_offset_ = 0;
  epsn_ = op.psn.Next();
}

void Responder::ReplayAtomicWrite(const Pdu& pdu) {
  if (!pdu.psn.Before(done_psn_)) return;  // its first answer is on its way
  PushOp(OpKind::kAtomicWrite, pdu.psn, PsnCount{1}).is_duplicate = true;
}

// What was asked for is done: a READ response of no bytes.
void Responder::BuildEmptyResponse(Op& op, Pdu& out) {
  if (!op.is_duplicate) {
    msn_ = Msn((msn_.value + 1) & Psn::kMask);
    done_psn_ = op.psn.Next();
    nak_due_ = false;
  }
  BuildHeader(Opcode::kReadResponseOnly, op.psn, out);
  ops_.PopFront();
  Drain();
}

}  // namespace verbena::transport::rc
