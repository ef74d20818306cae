// A UD queue pair.
#pragma once

#include "transport/common/unreliable_qp.h"
#include "transport/ud/ud_requester.h"
#include "transport/ud/ud_responder.h"

namespace verbena::transport {

class UdQp final : public UnreliableQp {
 public:
  // `host` outlives the QP. config.service is kUd.
  UdQp(const QpConfig& config, QpHost& host)
      : UnreliableQp(config, host),
        requester_(context_, send_queue_),
        responder_(context_, receive_queue_) {}

 private:
  void StartRequester(Psn psn) override { requester_.Start(psn); }
  Psn NextSendPsn() const override { return requester_.next_psn(); }
  bool CheckWqe() override { return requester_.CheckWqe(); }
  void MakePdu(Pdu& out) override { requester_.MakePdu(out); }
  void StartResponder(Psn psn) override { responder_.Start(); }
  Psn ExpectedPsn() const override { return {}; }
  void Respond(const Pdu& pdu) override { responder_.OnPdu(pdu); }
  bool PollPlacement(DmaRequest& out) override { return responder_.PollPlacement(out); }
  // A datagram is whole or lost: nothing is ever under way between two PDUs.
  void OnMessageBroken(const ReceiveQueue::Broken& broken) override {}
  void AbandonMessage() override {}

  UdRequester requester_;
  UdResponder responder_;
};

}  // namespace verbena::transport
