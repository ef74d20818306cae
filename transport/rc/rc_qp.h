// A queue pair of the reliable connected service: three roles and what joins them.
//
// Spec: IBTA chapter 9.7 (reliable service), 10.3 (states).
#pragma once

#include <cstdint>

#include "core/base/huge_page_pool.h"
#include "core/base/prefetch.h"
#include "transport/qp_attributes.h"
#include "transport/qp_host.h"
#include "transport/qp_transport.h"
#include "transport/rc/completer.h"
#include "transport/rc/growing_ring.h"
#include "transport/rc/requester.h"
#include "transport/rc/responder.h"
#include "transport/rc/send_window.h"

namespace verbena::transport::rc {

class RcQp final : public QpTransport, public OnHugePages {
 public:
  // `host` outlives the QP.
  RcQp(const QpConfig& config, QpHost* host);
  RcQp(const RcQp&) = delete;
  RcQp& operator=(const RcQp&) = delete;

  bool Expect() const override {
    PrefetchForRead(this);
    PrefetchForRead(&attributes_);
    PrefetchForRead(&requester_);
    responder_.Expect();
    if (was_direct_) return true;
    PrefetchLines(&counters_.qkey_violation, &requester_);
    requester_.ExpectRest();
    responder_.ExpectRest();
    completer_.Expect();
    return false;
  }
  void ExpectRecord() const override {
    if (!was_direct_) window_.ExpectRecord();
  }
  void OnDoorbell(Instant now) override;
  void OnPdu(Instant now, const Pdu& pdu) override;
  void OnDmaDone(Instant now, const DmaResult& result) override;
  void OnSourceFault(Instant now, Opcode opcode, Psn psn) override;
  void OnKeysSettled(Instant now, QpRole waiter) override;
  void OnHeldUp(Instant now) override { requester_.OnHeldUp(now); }
  void OnTimeout(Instant now) override;
  ModifyResult Modify(Instant now, const shm::QpAttr& attr, uint32_t mask) override;
  void SetPduLimits(const PduLimits& limits) override;
  void Fail(Instant now, EventType event) override;

  // In rc_direct.cc.
  Direct SendDirect(Instant now, QpTransport& other, Completion& out) override;
  bool PollRequest(Instant now, Pdu& out) override;
  bool PollResponse(Instant now, Pdu& out) override;
  bool PollDma(DmaRequest& out) override;
  bool PollCompletion(Completion& out) override;
  bool PollEvent(EventType& out) override;
  Instant PollTimeout() const override { return requester_.PollTimeout(); }

  bool CanAccept(const Pdu& pdu) const override;
  bool IsNextRequest(Psn psn) const override { return responder_.IsNext(psn); }
  bool HasRequestWork() const override { return window_.may_send; }
  QpState state() const override { return attributes_.state(); }
  Qpn remote_qpn() const override { return attributes_.remote_qpn(); }
  uint32_t UnackedPsns() const override;
  SendProgress Progress() const override;
  const Path& path() const override { return attributes_.path(); }
  void Query(shm::QpAttr& out) const override;
  uint64_t RequestsLost() const override { return requester_.requests_lost(); }
  const QpCounters& counters() const override { return counters_; }

 private:
  void Settle();
  void EnterError();
  void Reset();
  void PushEvent(EventType event);
  // What a WRITE of its peer asks for, as far as its key goes (rc_direct.cc).
  bool AllowsWrite(const SendRecord& rec);
  bool FindDirect(const shm::Sge* sge, uint32_t num_sge, DirectMove* move);
  Direct WriteDirect(Instant now, RcQp& peer, const SendWork& work, Completion& out);
  Direct SendRecordDirect(Instant now, RcQp& peer);
  Direct ReadDirect(Instant now, RcQp& peer, SendRecord& rec);

  // In order of address: what a message touches lies in few lines, which Expect knows.
  QpHost* host_;
  bool comm_established_ = false;
  bool was_direct_ = false;  // the last message, of either direction: a WRITE in one step
  // Tells results of DMA from before a reset from today's.
  uint8_t epoch_ = 0;
  bool last_wqe_due_ = false;
  SendWindow window_;
  QpAttributes attributes_;
  QpCounters counters_;
  static constexpr uint32_t kEventsMax = 16;
  GrowingRing<EventType, kEventsMax> events_;
  alignas(kCacheLineBytes) Requester requester_;
  alignas(kCacheLineBytes) Responder responder_;
  Completer completer_;
};

}  // namespace verbena::transport::rc

namespace verbena::transport {
using rc::RcQp;
}  // namespace verbena::transport
