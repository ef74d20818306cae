// A PDU the local port keeps while its destination can't take it, with what its pointers named:
// those are good only until the next input to the QP that made it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/shm/layout.h"
#include "transport/pdu.h"

namespace verbena::transport::local {

class HeldPdu {
 public:
  // Copies `pdu` and all it refers to.
  void Hold(const Pdu& pdu);
  const Pdu& pdu() const { return pdu_; }

 private:
  Pdu pdu_;
  Path path_;
  std::vector<DmaSegment> segments_;
  std::vector<std::byte> bytes_;
};

class HeldPduPool;
struct ReturnToPool {
  HeldPduPool* pool = nullptr;
  void operator()(HeldPdu* held) const;
};
using HeldPduPtr = std::unique_ptr<HeldPdu, ReturnToPool>;

// Keeps used HeldPdus with their capacity, so that holding allocates nothing in the steady state.
class HeldPduPool {
 public:
  HeldPduPtr Hold(const Pdu& pdu);
  size_t free_count() const { return free_.size(); }

 private:
  friend struct ReturnToPool;
  static constexpr size_t kMaxFree = 256;
  std::vector<std::unique_ptr<HeldPdu>> free_;
};

}  // namespace verbena::transport::local
