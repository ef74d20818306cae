// A QP's state and attributes: what Modify may set, and the settings in the units roles compute
// with.
//
// Owns: the state. Roles move it by Modify (the application asked) or set_state (an error did).
#pragma once

#include <bit>
#include <cstdint>

#include "core/base/instant.h"
#include "core/base/psn.h"
#include "core/base/types.h"
#include "core/shm/command.h"
#include "transport/qp_host.h"
#include "transport/qp_transport.h"

namespace verbena::transport {

// Shortest time before a requester may retry after an RNR NAK, in µs by the 5-bit code.
// Spec: IBTA 9.7.5.2.8, encoding for RNR NAK timer field.
inline constexpr int64_t kRnrDelayUs[32] = {
    655'360, 10,     20,     30,     40,     60,      80,      120,     160,     240,    320,
    480,     640,    960,    1'280,  1'920,  2'560,   3'840,   5'120,   7'680,   10'240, 15'360,
    20'480,  30'720, 40'960, 61'440, 81'920, 122'880, 163'840, 245'760, 327'680, 491'520};
constexpr Duration RnrDelay(uint8_t rnr_timer_code) {
  return Microseconds(kRnrDelayUs[rnr_timer_code & 31]);
}

// 4.096 µs · 2^exp.  Spec: IBTA 9.7.6.1.3. Precondition: exp in 1..31 (0 means "never").
constexpr Duration AckTimeout(uint8_t timeout_exp) {
  return Nanoseconds(int64_t{4'096} << timeout_exp);
}

// enum ibv_mtu (1 = 256 … 5 = 4096) to bytes; 0 if it is none.
constexpr uint32_t MtuBytes(uint32_t mtu_code) {
  return mtu_code >= 1 && mtu_code <= 5 ? 128u << mtu_code : 0;
}

// Number of PSNs a message of `bytes` consumes: at least one.  Spec: IBTA 9.2.
constexpr PsnCount PsnsOfMessage(uint32_t bytes, uint32_t mtu_bytes) {
  if (bytes <= mtu_bytes) return {1};
  return {static_cast<int32_t>((uint64_t{bytes} + mtu_bytes - 1) >> std::countr_zero(mtu_bytes))};
}

inline constexpr uint8_t kRetryForever = 7;  // rnr_retry only.  Spec: IBTA 9.7.5.2.8

class QpAttributes {
 public:
  // Keeps pointers to neither: `config` is copied.
  explicit QpAttributes(const QpConfig& config)
      : config_(config), pdu_limits_{config.max_pdu_bytes, 0} {}

  // Validates against the transition table and the limits, then applies all or nothing.
  // Errors: EINVAL as ibv_modify_qp(3). `host` resolves sgid_index.
  // Moving to kReset forgets every attribute. RTS→SQD sets sq_draining: the requester clears it.
  [[nodiscard]] int Modify(const shm::QpAttr& attr, uint32_t mask, QpHost& host);
  // Fills everything of struct ibv_qp_attr, capabilities included.
  void Query(shm::QpAttr& out) const;

  QpState state() const { return state_; }
  // A transition no application asked for: to kErr, or to kSqe.
  void set_state(QpState state) {
    state_ = state;
    if (state != QpState::kSqd) sq_draining_ = false;
  }
  // The SQ is in SQD and has work in flight. Modify out of SQD (but to ERR, RESET) waits for it.
  bool sq_draining() const { return sq_draining_; }
  void set_sq_draining(bool draining) { sq_draining_ = draining; }
  // Whether kSqDrained was asked for with the transition to SQD.
  bool wants_sq_drained_event() const { return values_.en_sqd_async_notify != 0; }

  // What receives are taken in, and what sends are worked on.
  bool CanReceive() const {
    return state_ == QpState::kRtr || state_ == QpState::kRts || state_ == QpState::kSqd ||
           state_ == QpState::kSqe;
  }
  bool CanStartSends() const { return state_ == QpState::kRts; }

  Service service() const { return config_.service; }
  const QpConfig& config() const { return config_; }

  // UD and before RTR: the port's MTU.
  uint32_t mtu_bytes() const { return mtu_bytes_ != 0 ? mtu_bytes_ : config_.port_mtu_bytes; }
  Qpn remote_qpn() const { return remote_qpn_; }
  const Path& path() const { return path_; }
  PKey pkey() const { return PKey(0xffff); }  // the only entry of the P_Key table
  QKey qkey() const { return QKey(values_.qkey); }
  Psn sq_psn() const { return Psn(values_.sq_psn); }  // as last set, not as advanced
  Psn rq_psn() const { return Psn(values_.rq_psn); }
  uint32_t access_flags() const { return access_flags_; }
  uint8_t max_rd_atomic() const { return values_.max_rd_atomic; }
  uint8_t max_dest_rd_atomic() const { return values_.max_dest_rd_atomic; }
  uint8_t min_rnr_timer_code() const { return values_.min_rnr_timer; }
  bool has_ack_timeout() const { return values_.timeout != 0; }
  Duration ack_timeout() const { return AckTimeout(values_.timeout); }
  uint8_t retry_count_max() const { return values_.retry_cnt; }
  uint8_t rnr_retry_count_max() const { return values_.rnr_retry; }  // kRetryForever: no limit

  // What the device says of the way to the peer; a reset keeps it.
  const PduLimits& pdu_limits() const { return pdu_limits_; }
  void set_pdu_limits(const PduLimits& limits) { pdu_limits_ = limits; }
  // Payload of a PDU that is not its message's last: whole packets, so that each starts at a PSN.
  uint32_t pdu_bytes_max() const {
    uint32_t whole = pdu_limits_.max_pdu_bytes / mtu_bytes() * mtu_bytes();
    return whole == 0 ? mtu_bytes() : whole;
  }

  PsnCount PsnsOf(uint32_t bytes) const { return PsnsOfMessage(bytes, mtu_bytes()); }

 private:
  int CheckTransition(const shm::QpAttr& attr, uint32_t mask, QpState to) const;
  int CheckValues(const shm::QpAttr& attr, uint32_t mask) const;
  int CheckAddress(const shm::AhAttr& ah, QpHost& host, Path* out) const;
  void Apply(const shm::QpAttr& attr, uint32_t mask, QpState to);

  // What messages touch comes first: it is in one cache line (RcQp).
  QpState state_ = QpState::kReset;
  bool sq_draining_ = false;
  uint32_t mtu_bytes_ = 0;
  // As `values_` has them.
  Qpn remote_qpn_;
  uint32_t access_flags_ = 0;
  QpConfig config_;
  PduLimits pdu_limits_;
  shm::QpAttr values_ = {};
  Path path_;
};

}  // namespace verbena::transport
