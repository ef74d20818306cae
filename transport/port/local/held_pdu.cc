#include "transport/port/local/held_pdu.h"

namespace verbena::transport::local {

void HeldPdu::Hold(const Pdu& pdu) {
  pdu_ = pdu;
  if (pdu.path != nullptr) {
    path_ = *pdu.path;
    pdu_.path = &path_;
  }
  segments_.clear();
  bytes_.clear();
  if (pdu.payload.bytes != nullptr) {
    pdu.payload.AppendTo(&bytes_);
    pdu_.payload.bytes = bytes_.data();
    pdu_.payload.piece_bytes = 0;
  } else if (pdu.payload.segments != nullptr) {
    segments_.assign(pdu.payload.segments, pdu.payload.segments + pdu.payload.segment_count);
    pdu_.payload.segments = segments_.data();
  }
}

void ReturnToPool::operator()(HeldPdu* held) const {
  std::unique_ptr<HeldPdu> owned(held);
  if (pool->free_.size() < HeldPduPool::kMaxFree) pool->free_.push_back(std::move(owned));
}

HeldPduPtr HeldPduPool::Hold(const Pdu& pdu) {
  HeldPduPtr held(nullptr, ReturnToPool{this});
  if (free_.empty()) {
    held.reset(new HeldPdu);
  } else {
    held.reset(free_.back().release());
    free_.pop_back();
  }
  held->Hold(pdu);
  return held;
}

}  // namespace verbena::transport::local
