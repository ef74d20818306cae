// What all roles of one QP share: its settings, state, events and counters.
#pragma once

#include <cstdint>

#include "core/base/types.h"
#include "transport/qp_attributes.h"
#include "transport/qp_host.h"
#include "transport/qp_transport.h"

namespace verbena::transport {

// Asynchronous events waiting to be polled. A kind raised twice before it is polled is one event.
class EventSet {
 public:
  void Raise(EventType event) { waiting_ |= Bit(event); }
  void Clear() { waiting_ = 0; }
  bool Poll(EventType& out) {
    if (waiting_ == 0) return false;
    out = static_cast<EventType>(__builtin_ctz(waiting_));
    waiting_ &= waiting_ - 1;
    return true;
  }

 private:
  static uint32_t Bit(EventType event) { return 1u << static_cast<uint8_t>(event); }
  uint32_t waiting_ = 0;
};

struct QpContext {
  QpContext(const QpConfig& qp_config, QpHost& qp_host)
      : config(qp_config), host(qp_host), attributes(qp_config) {}

  const QpConfig config;
  QpHost& host;
  QpAttributes attributes;
  EventSet events;
  QpCounters counters;

  QpState state() const { return attributes.state(); }
  void EnterError() { attributes.set_state(QpState::kErr); }
  // The queue's memory lies: there is no completion that could say so.
  void EnterFatalError() {
    EnterError();
    events.Raise(EventType::kQpFatal);
  }
  // A send failed on an unreliable service: receiving goes on.  Spec: IBTA 10.3.1.6.
  void EnterSendError() {
    if (state() == QpState::kRts || state() == QpState::kSqd) {
      attributes.set_state(QpState::kSqe);
    }
  }
};

}  // namespace verbena::transport
