// What a program's own QP is to be set to for its connection (rdma_init_qp_attr), as Linux's
// ib_cm_init_qp_attr has it.
#include <errno.h>

#include "softnic/cm/core.h"

namespace verbena::softnic {
namespace {

using transport::cm::State;

// enum ibv_qp_attr_mask.
namespace mask {
constexpr uint32_t kState = 1 << 0, kAccessFlags = 1 << 3, kPkeyIndex = 1 << 4, kPort = 1 << 5,
                   kQkey = 1 << 6, kAv = 1 << 7, kPathMtu = 1 << 8, kTimeout = 1 << 9,
                   kRetryCount = 1 << 10, kRnrRetry = 1 << 11, kRqPsn = 1 << 12,
                   kMaxQpRdAtomic = 1 << 13, kMinRnrTimer = 1 << 15, kSqPsn = 1 << 16,
                   kMaxDestRdAtomic = 1 << 17, kDestQpn = 1 << 20;
}  // namespace mask

// The peer's half is known.
bool KnowsPeer(State state) {
  switch (state) {
    case State::kReqRcvd:
    case State::kMraReqSent:
    case State::kRepRcvd:
    case State::kMraRepSent:
    case State::kRepSent:
    case State::kMraRepRcvd:
    case State::kEstablished:
      return true;
    default:
      return false;
  }
}

void ToInit(const CmIdentifier& id, shm::CmQpAttr* attr) {
  attr->mask = mask::kState | mask::kPkeyIndex | mask::kPort;
  attr->port_num = 1;
  if (id.qp_type == kQpTypeUd) {
    attr->mask |= mask::kQkey;
    attr->qkey = id.qkey.value;
    return;
  }
  attr->mask |= mask::kAccessFlags;
  if (!id.has_comm) return;
  attr->qp_access_flags = access::kRemoteWrite;
  if (id.connection.responder_resources != 0) {
    attr->qp_access_flags |= access::kRemoteRead | access::kRemoteAtomic;
  }
}

void ToRtr(const CmIdentifier& id, shm::CmQpAttr* attr) {
  const CmConnection& connection = id.connection;
  attr->mask = mask::kState | mask::kAv | mask::kPathMtu | mask::kDestQpn | mask::kRqPsn;
  attr->path_mtu = connection.path_mtu;
  attr->dest_qp_num = connection.remote_qpn.value;
  attr->rq_psn = connection.rq_psn.value();
  if (id.qp_type == kQpTypeRc || id.qp_type == kQpTypeXrcRecv) {
    attr->mask |= mask::kMaxDestRdAtomic | mask::kMinRnrTimer;
    attr->max_dest_rd_atomic = connection.responder_resources;
  }
}

void ToRts(const CmIdentifier& id, shm::CmQpAttr* attr) {
  const CmConnection& connection = id.connection;
  attr->mask = mask::kState | mask::kSqPsn;
  attr->sq_psn = connection.sq_psn.value();
  if (id.qp_type == kQpTypeRc || id.qp_type == kQpTypeXrcSend) {
    attr->mask |= mask::kRetryCount | mask::kRnrRetry | mask::kMaxQpRdAtomic;
    attr->retry_cnt = connection.retry_count;
    attr->rnr_retry = connection.rnr_retry_count;
    attr->max_rd_atomic = connection.initiator_depth;
  }
  if (id.qp_type != kQpTypeUc) {
    attr->mask |= mask::kTimeout;
    attr->timeout = id.ack_timeout_exp.value_or(connection.ack_timeout_exp);
  }
}

}  // namespace

int CmCore::InitQpAttr(CmIdentifier& id, uint32_t qp_state, Reply* reply) const {
  shm::CmQpAttr* attr = &reply->qp_attr;
  if (!id.place.has_value()) return EINVAL;
  attr->qp_state = static_cast<uint8_t>(qp_state);
  if (id.qp_type == kQpTypeUd) {
    // Whatever the state: the rest is the same for all.
    if (qp_state > static_cast<uint32_t>(QpState::kErr)) return EINVAL;
    if (id.qkey.value == 0) id.qkey = QKey{kUdpQkey};
    ToInit(id, attr);
    return 0;
  }
  const State state = StateOf(id);
  switch (static_cast<QpState>(qp_state)) {
    case QpState::kInit:
      if (id.has_comm && !KnowsPeer(state) && state != State::kReqSent &&
          state != State::kMraReqRcvd) {
        return EINVAL;
      }
      ToInit(id, attr);
      return 0;
    case QpState::kRtr:
      if (!KnowsPeer(state)) return EINVAL;
      ToRtr(id, attr);
      attr->ah = AddressHandleOf(id, id.remote_gid);
      return 0;
    case QpState::kRts:
      if (!KnowsPeer(state)) return EINVAL;
      ToRts(id, attr);
      return 0;
    default:
      return EINVAL;
  }
}

}  // namespace verbena::softnic
