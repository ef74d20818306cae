// The shell of a QP of an unreliable service (UC, UD): state, queues, events. What goes into PDUs
// and what becomes of received ones is the business of the derived QP's requester and responder.
#pragma once

#include "core/base/check.h"
#include "transport/common/qp_context.h"
#include "transport/common/receive_queue.h"
#include "transport/common/send_queue.h"
#include "transport/qp_transport.h"

namespace verbena::transport {

class UnreliableQp : public QpTransport {
 public:
  void OnDoorbell(Instant now) final { send_queue_.OnDoorbell(); }
  void OnPdu(Instant now, const Pdu& pdu) final;
  void OnDmaDone(Instant now, const DmaResult& result) final;
  void OnSourceFault(Instant now, Opcode opcode, Psn psn) final;
  void OnPayloadReleased(Instant now, Psn psn) final { send_queue_.OnPayloadReleased(psn); }
  void OnKeysSettled(Instant now, QpRole waiter) final;
  void OnTimeout(Instant now) final {}  // nothing is ever sent again
  ModifyResult Modify(Instant now, const shm::QpAttr& attr, uint32_t mask) final;
  void SetPduLimits(const PduLimits& limits) final {
    VERBENA_CHECK(state() == QpState::kReset || state() == QpState::kInit ||
                  state() == QpState::kSqd);
    context_.attributes.set_pdu_limits(limits);
  }
  void Fail(Instant now, EventType event) final;

  bool PollRequest(Instant now, Pdu& out) final;
  bool PollResponse(Instant now, Pdu& out) final { return false; }
  bool PollDma(DmaRequest& out) final;
  bool PollCompletion(Completion& out) final;
  bool PollEvent(EventType& out) final { return context_.events.Poll(out); }
  Instant PollTimeout() const final { return Instant::Never(); }

  bool CanAccept(const Pdu& pdu) const final { return !receive_queue_.IsFull(); }
  bool HasRequestWork() const final;
  QpState state() const final { return context_.state(); }
  Qpn remote_qpn() const final { return context_.attributes.remote_qpn(); }
  const Path& path() const final { return context_.attributes.path(); }
  void Query(shm::QpAttr& out) const final;
  const QpCounters& counters() const final { return context_.counters; }

 protected:
  UnreliableQp(const QpConfig& config, QpHost& host)
      : context_(config, host), send_queue_(context_), receive_queue_(context_) {}

  QpContext context_;
  SendQueue send_queue_;
  ReceiveQueue receive_queue_;

 private:
  // The roles. Requester: PSNs start at `psn`; makes the next PDU of the open WQE; checks a WQE
  // just opened (false: it has failed).
  virtual void StartRequester(Psn psn) = 0;
  virtual Psn NextSendPsn() const = 0;
  virtual bool CheckWqe() = 0;
  virtual void MakePdu(Pdu& out) = 0;
  // Responder: expects `psn`; takes one PDU, and has at most one movement of payload to show for
  // it.
  virtual void StartResponder(Psn psn) = 0;
  virtual Psn ExpectedPsn() const = 0;  // zero of a service that expects none
  virtual void Respond(const Pdu& pdu) = 0;
  virtual bool PollPlacement(DmaRequest& out) = 0;
  virtual void OnMessageBroken(const ReceiveQueue::Broken& broken) = 0;
  // Gives back the WQE of a message that will never be whole.
  virtual void AbandonMessage() = 0;

  bool SendsAreFlushed() const { return state() == QpState::kErr || state() == QpState::kSqe; }
  void CheckDrained();
  void CheckLastWqe();

  bool last_wqe_reported_ = false;
  bool established_reported_ = false;
};

}  // namespace verbena::transport
