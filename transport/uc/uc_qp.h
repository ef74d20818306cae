// A UC queue pair.
#pragma once

#include "transport/common/unreliable_qp.h"
#include "transport/uc/uc_requester.h"
#include "transport/uc/uc_responder.h"

namespace verbena::transport {

class UcQp final : public UnreliableQp {
 public:
  // `host` outlives the QP. config.service is kUc.
  UcQp(const QpConfig& config, QpHost& host)
      : UnreliableQp(config, host),
        requester_(context_, send_queue_),
        responder_(context_, receive_queue_) {}

 private:
  void StartRequester(Psn psn) override { requester_.Start(psn); }
  Psn NextSendPsn() const override { return requester_.next_psn(); }
  bool CheckWqe() override { return requester_.CheckWqe(); }
  void MakePdu(Pdu& out) override { requester_.MakePdu(out); }
  void StartResponder(Psn psn) override { responder_.Start(psn); }
  Psn ExpectedPsn() const override { return responder_.expected_psn(); }
  void Respond(const Pdu& pdu) override { responder_.OnPdu(pdu); }
  bool PollPlacement(DmaRequest& out) override { return responder_.PollPlacement(out); }
  void OnMessageBroken(const ReceiveQueue::Broken& broken) override {
    responder_.OnMessageBroken(broken);
  }
  void AbandonMessage() override { responder_.AbandonMessage(); }

  UcRequester requester_;
  UcResponder responder_;
};

}  // namespace verbena::transport
