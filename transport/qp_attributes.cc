#include "transport/qp_attributes.h"

#include <cerrno>
#include <cstring>

#include "transport/qp_transitions.h"

namespace verbena::transport {
namespace {

namespace qp_mask = shm::qp_mask;

constexpr uint32_t kPortCount = 1;
constexpr uint32_t kPkeyTableEntries = 1;
constexpr uint32_t kTimeoutExpMax = 31;    // 5 bits, IBTA 9.7.6.1.3
constexpr uint32_t kRetryCountMax = 7;     // 3 bits, IBTA 9.7.5.2.8 and 9.9.2.4.1
constexpr uint32_t kRnrTimerCodeMax = 31;  // 5 bits, IBTA 9.7.5.2.8
constexpr uint32_t kQpnMax = 0x00ff'ffff;
constexpr uint32_t kPathMigStateMax = 2;  // IBV_MIG_ARMED
constexpr uint32_t kKnownAccess = access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead |
                                  access::kRemoteAtomic | access::kMwBind | access::kZeroBased |
                                  access::kOnDemand | access::kHugetlb | access::kFlushGlobal |
                                  access::kFlushPersistent | access::kOptionalMask;

// Whether the attribute `bit` is being set to more than `max`.
bool IsAbove(uint32_t mask, uint32_t bit, uint32_t value, uint32_t max) {
  return (mask & bit) != 0 && value > max;
}

// The states a program may name as the one it believes the QP is in.  Spec: IBTA 11.2.5.2.
bool MayBeCurrent(QpState state) {
  return state == QpState::kRtr || state == QpState::kRts || state == QpState::kSqd ||
         state == QpState::kSqe;
}

}  // namespace

int QpAttributes::Modify(const shm::QpAttr& attr, uint32_t mask, QpHost& host) {
  if ((mask & qp_mask::kState) != 0 && attr.qp_state >= kQpStateCount) return EINVAL;
  QpState to = (mask & qp_mask::kState) != 0 ? static_cast<QpState>(attr.qp_state) : state_;
  if (int error = CheckTransition(attr, mask, to); error != 0) return error;
  if (int error = CheckValues(attr, mask); error != 0) return error;

  Path path = path_;
  if ((mask & qp_mask::kAv) != 0) {
    if (int error = CheckAddress(attr.ah_attr, host, &path); error != 0) return error;
  }
  path_ = path;
  Apply(attr, mask, to);
  return 0;
}

int QpAttributes::CheckTransition(const shm::QpAttr& attr, uint32_t mask, QpState to) const {
  // A program that is wrong about the state (the QP failed meanwhile) must learn it, not resume.
  if ((mask & qp_mask::kCurState) != 0) {
    if (attr.cur_qp_state >= kQpStateCount) return EINVAL;
    auto believed = static_cast<QpState>(attr.cur_qp_state);
    if (!MayBeCurrent(believed) || believed != state_) return EINVAL;
  }
  const QpTransition* row = FindQpTransition(state_, to, config_.service);
  if (row == nullptr) return EINVAL;
  if ((mask & row->required) != row->required) return EINVAL;
  if ((mask & ~(row->required | row->optional | qp_mask::kState)) != 0) return EINVAL;
  // Attributes of work in flight may not change under it.  Spec: IBTA 10.3.1.5.
  if (state_ == QpState::kSqd && sq_draining_ && to != QpState::kErr && to != QpState::kReset) {
    return EINVAL;
  }
  return 0;
}

int QpAttributes::CheckValues(const shm::QpAttr& attr, uint32_t mask) const {
  if ((mask & qp_mask::kPathMtu) != 0) {
    uint32_t mtu_bytes = MtuBytes(attr.path_mtu);
    if (mtu_bytes == 0 || mtu_bytes > config_.port_mtu_bytes) return EINVAL;
  }
  if ((mask & qp_mask::kPort) != 0 && attr.port_num != kPortCount) return EINVAL;
  if (IsAbove(mask, qp_mask::kPkeyIndex, attr.pkey_index, kPkeyTableEntries - 1) ||
      IsAbove(mask, qp_mask::kTimeout, attr.timeout, kTimeoutExpMax) ||
      IsAbove(mask, qp_mask::kRetryCnt, attr.retry_cnt, kRetryCountMax) ||
      IsAbove(mask, qp_mask::kRnrRetry, attr.rnr_retry, kRetryCountMax) ||
      IsAbove(mask, qp_mask::kMinRnrTimer, attr.min_rnr_timer, kRnrTimerCodeMax) ||
      IsAbove(mask, qp_mask::kDestQpn, attr.dest_qp_num, kQpnMax) ||
      IsAbove(mask, qp_mask::kPathMigState, attr.path_mig_state, kPathMigStateMax) ||
      IsAbove(mask, qp_mask::kMaxQpRdAtomic, attr.max_rd_atomic, config_.max_rd_atomic) ||
      IsAbove(mask, qp_mask::kRateLimit, attr.rate_limit, kRateLimitMaxKbps) ||
      IsAbove(mask, qp_mask::kMaxDestRdAtomic, attr.max_dest_rd_atomic,
              config_.max_dest_rd_atomic)) {
    return EINVAL;
  }
  if ((mask & qp_mask::kAccessFlags) != 0 && (attr.qp_access_flags & ~kKnownAccess) != 0) {
    return EINVAL;
  }
  return 0;
}

// RoCE addresses are GIDs: without a global route there is nowhere to send.  Spec: RoCEv2 annex
// A17.
int QpAttributes::CheckAddress(const shm::AhAttr& ah, QpHost& host, Path* out) const {
  if (ah.is_global == 0 || ah.port_num != kPortCount) return EINVAL;
  Path path;
  if (!host.ResolveGid(GidIndex(ah.sgid_index), &path.sgid)) return EINVAL;
  std::memcpy(path.dgid.raw.data(), ah.dgid, sizeof(ah.dgid));
  if (path.dgid.IsZero()) return EINVAL;
  path.flow_label = ah.flow_label & 0x000f'ffff;
  path.traffic_class = ah.traffic_class;
  path.hop_limit = ah.hop_limit;
  path.sl = ah.sl;
  path.sgid_index = ah.sgid_index;
  *out = path;
  return 0;
}

void QpAttributes::Apply(const shm::QpAttr& attr, uint32_t mask, QpState to) {
  if (to == QpState::kReset) {
    const PduLimits limits = pdu_limits_;
    *this = QpAttributes(config_);
    pdu_limits_ = limits;
    return;
  }
  shm::QpAttr& v = values_;
  if ((mask & qp_mask::kEnSqdAsyncNotify) != 0) v.en_sqd_async_notify = attr.en_sqd_async_notify;
  if ((mask & qp_mask::kAccessFlags) != 0) {
    v.qp_access_flags = access_flags_ = attr.qp_access_flags;
  }
  if ((mask & qp_mask::kPkeyIndex) != 0) v.pkey_index = attr.pkey_index;
  if ((mask & qp_mask::kPort) != 0) v.port_num = attr.port_num;
  if ((mask & qp_mask::kQkey) != 0) v.qkey = attr.qkey;
  if ((mask & qp_mask::kAv) != 0) v.ah_attr = attr.ah_attr;
  if ((mask & qp_mask::kPathMtu) != 0) {
    v.path_mtu = attr.path_mtu;
    mtu_bytes_ = MtuBytes(attr.path_mtu);
  }
  if ((mask & qp_mask::kTimeout) != 0) v.timeout = attr.timeout;
  if ((mask & qp_mask::kRetryCnt) != 0) v.retry_cnt = attr.retry_cnt;
  if ((mask & qp_mask::kRnrRetry) != 0) v.rnr_retry = attr.rnr_retry;
  if ((mask & qp_mask::kRqPsn) != 0) v.rq_psn = attr.rq_psn & Psn::kMask;
  if ((mask & qp_mask::kSqPsn) != 0) v.sq_psn = attr.sq_psn & Psn::kMask;
  if ((mask & qp_mask::kMaxQpRdAtomic) != 0) v.max_rd_atomic = attr.max_rd_atomic;
  if ((mask & qp_mask::kMaxDestRdAtomic) != 0) v.max_dest_rd_atomic = attr.max_dest_rd_atomic;
  if ((mask & qp_mask::kMinRnrTimer) != 0) v.min_rnr_timer = attr.min_rnr_timer;
  if ((mask & qp_mask::kPathMigState) != 0) v.path_mig_state = attr.path_mig_state;
  if ((mask & qp_mask::kDestQpn) != 0) {
    v.dest_qp_num = attr.dest_qp_num;
    remote_qpn_ = Qpn(attr.dest_qp_num);
  }
  if ((mask & qp_mask::kRateLimit) != 0) v.rate_limit = attr.rate_limit;

  if (to == QpState::kSqd && state_ != QpState::kSqd) {
    sq_draining_ = true;
    // Asked anew with each transition to SQD; a request of an earlier one does not linger.
    if ((mask & qp_mask::kEnSqdAsyncNotify) == 0) v.en_sqd_async_notify = 0;
  }
  if (to != QpState::kSqd) sq_draining_ = false;
  state_ = to;
}

void QpAttributes::Query(shm::QpAttr& out) const {
  out = values_;
  out.qp_state = out.cur_qp_state = static_cast<uint32_t>(state_);
  out.sq_draining = sq_draining_ ? 1 : 0;
  out.max_send_wr = config_.max_send_wr;
  out.max_recv_wr = config_.max_recv_wr;
  out.max_send_sge = config_.max_send_sge;
  out.max_recv_sge = config_.max_recv_sge;
  out.max_inline_bytes = config_.max_inline_bytes;
}

}  // namespace verbena::transport
