// The completer: the requester's response half. Takes acknowledgements and responses, places what
// they carry, and completes send WQEs in order.
#pragma once

#include <cstdint>

#include "core/base/prefetch.h"
#include "transport/pdu.h"
#include "transport/qp_attributes.h"
#include "transport/qp_host.h"
#include "transport/qp_transport.h"
#include "transport/rc/growing_ring.h"
#include "transport/rc/requester.h"
#include "transport/rc/send_window.h"

namespace verbena::transport::rc {

class Completer {
 public:
  Completer(QpHost* host, QpAttributes* attributes, Requester* requester, SendWindow* window)
      : host_(host), attributes_(attributes), requester_(requester), w_(window) {}

  // Asks for the lines of what messages without a response of their own touch.
  void Expect() const { PrefetchLines(this, &dma_source_); }
  void Reset();
  bool CanAccept() const { return !placements_.IsFull(); }
  // An acknowledgement or a response. Stale and impossible ones are ignored.
  void OnPdu(Instant now, const Pdu& pdu, const OpcodeInfo& info);
  // The oldest placement outstanding is done.
  void OnDmaDone(Instant now, const DmaResult& result);
  // At most one placement comes of each OnPdu.
  bool PollDma(DmaRequest& out);
  // Completions of WQEs retired; in the error state, flushes of all others.
  bool PollCompletion(Completion& out);
  // What a completion says of its WQE.
  struct Completed {
    uint64_t wr_id;
    shm::WrOpcode opcode;
    uint32_t length;
  };
  static void Fill(Qpn qpn, const Completed& what, WcStatus status, shm::VendorErr why,
                   Completion& out);

 private:
  struct Placement {
    uint32_t index;   // of the record
    uint32_t offset;  // into its message
    uint32_t length;
  };

  bool AckThrough(Instant now, Psn psn);
  void OnAck(Instant now, const Pdu& pdu);
  void OnReadResponse(Instant now, const Pdu& pdu, const OpcodeInfo& info);
  void OnAtomicAck(Instant now, const Pdu& pdu);
  SendRecord* FindResponseRecord(Instant now, Psn psn);
  void Take(Instant now, SendRecord& rec, uint32_t bytes);
  bool Place(Instant now, SendRecord& rec, const Payload& payload);
  void Reopen(Instant now, const Placement& placement);
  bool FlushOne(Completion& out);
  Psn ExpectedPsn(const SendRecord& rec) const;
  static Completed Of(const SendRecord& rec) { return {rec.wr_id, rec.opcode, rec.length}; }
  void Fill(const Completed& what, WcStatus status, shm::VendorErr why, Completion& out) const {
    Fill(config().qpn, what, status, why, out);
  }
  const QpConfig& config() const { return attributes_->config(); }

  QpHost* host_;
  QpAttributes* attributes_;
  Requester* requester_;
  SendWindow* w_;

  static constexpr uint32_t kPlacementsMax = 64;
  GrowingRing<Placement, kPlacementsMax> placements_;  // in the order polled
  bool dma_due_ = false;
  bool failure_told_ = false;  // by a completion, since the last reset
  Payload dma_source_;
};

}  // namespace verbena::transport::rc
