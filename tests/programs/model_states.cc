// States of a queue pair: what ibv_modify_qp takes, and what a change does to the work in its
// queues.
#include <cerrno>

#include "tests/programs/model.h"

namespace verbena::programs {
namespace {

struct Row {
  ibv_qp_state from, to;
  uint32_t required_rc, required_uc, required_ud;
  uint32_t optional_rc, optional_uc, optional_ud;
};

constexpr uint32_t kInitConnected = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr uint32_t kInitUd = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
constexpr uint32_t kRtrUc = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr uint32_t kRtrRc = kRtrUc | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr uint32_t kRtsRc =
    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT;
constexpr uint32_t kRtsMoreRc = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER;
constexpr uint32_t kRtsMoreUc = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS;
constexpr uint32_t kRtsMoreUd = IBV_QP_CUR_STATE | IBV_QP_QKEY;
constexpr uint32_t kNotify = IBV_QP_EN_SQD_ASYNC_NOTIFY;

// ibv_modify_qp(3), IBTA table 91. To RESET and ERR: from everywhere, with nothing more.
constexpr Row kRows[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, kInitConnected, kInitConnected, kInitUd, 0, 0, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, 0, 0, kInitConnected, kInitConnected, kInitUd},
    {IBV_QPS_INIT, IBV_QPS_RTR, kRtrRc, kRtrUc, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
     IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX, IBV_QP_QKEY | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS, kRtsRc, IBV_QP_SQ_PSN, IBV_QP_SQ_PSN, kRtsMoreRc, kRtsMoreUc,
     kRtsMoreUd},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, 0, 0, kRtsMoreRc, kRtsMoreUc, kRtsMoreUd},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, 0, 0, kNotify, kNotify, kNotify},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, 0, 0, kRtsMoreRc, kRtsMoreUc, kRtsMoreUd},
    {IBV_QPS_SQE, IBV_QPS_RTS, 0, 0, 0, 0, kRtsMoreUc, kRtsMoreUd},
};

uint32_t Of(ibv_qp_type type, uint32_t rc, uint32_t uc, uint32_t ud) {
  return type == IBV_QPT_RC ? rc : type == IBV_QPT_UC ? uc : ud;
}

}  // namespace

bool Transition(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, uint32_t* required,
                uint32_t* optional) {
  *required = *optional = 0;
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return true;
  for (const Row& row : kRows) {
    if (row.from != from || row.to != to) continue;
    if (from == IBV_QPS_SQE && type == IBV_QPT_RC) return false;
    *required = Of(type, row.required_rc, row.required_uc, row.required_ud);
    *optional = Of(type, row.optional_rc, row.optional_uc, row.optional_ud);
    return true;
  }
  return false;
}

void Model::ModifyQp(const Step& step) {
  auto found = qps.find(step.id);
  if (found == qps.end() || found->second.side != step.side) return Open();
  Qp& qp = found->second;
  const ibv_qp_state from = qp.state;
  const bool names_state = (step.mask & IBV_QP_STATE) != 0;
  const ibv_qp_state to = names_state ? step.attr.qp_state : from;
  // What the tables leave to implementations: staying without saying so, and changes in SQD.
  if (!names_state || (from == IBV_QPS_SQD && to == IBV_QPS_SQD)) return Open();
  const uint32_t mask = step.mask & ~uint32_t{IBV_QP_STATE};
  uint32_t required = 0, optional = 0;
  if (!Transition(qp.type, from, to, &required, &optional) || (mask & required) != required ||
      (mask & ~(required | optional)) != 0) {
    return Fail(EINVAL);
  }
  const ibv_qp_attr& attr = step.attr;
  const bool values_are_good = ((mask & IBV_QP_PORT) == 0 || attr.port_num == 1) &&
                               ((mask & IBV_QP_PKEY_INDEX) == 0 || attr.pkey_index == 0) &&
                               ((mask & IBV_QP_CUR_STATE) == 0 || attr.cur_qp_state == from) &&
                               ((mask & IBV_QP_PATH_MTU) == 0 ||
                                (attr.path_mtu >= IBV_MTU_256 && attr.path_mtu <= IBV_MTU_4096)) &&
                               ((mask & IBV_QP_TIMEOUT) == 0 || attr.timeout < 32) &&
                               ((mask & IBV_QP_RETRY_CNT) == 0 || attr.retry_cnt < 8) &&
                               ((mask & IBV_QP_RNR_RETRY) == 0 || attr.rnr_retry < 8) &&
                               ((mask & IBV_QP_MIN_RNR_TIMER) == 0 || attr.min_rnr_timer < 32);
  if (!values_are_good) return Fail(EINVAL);
  // A queue drains what it has begun: that is what waits for its peer; of more nobody knows.
  if (to == IBV_QPS_SQD && !qp.sends.empty() &&
      (qp.sends.size() > 1 || qp.type != IBV_QPT_RC || from != IBV_QPS_RTS)) {
    return Open();
  }
  if (from == IBV_QPS_SQD && to == IBV_QPS_RTS && qp.is_draining) return Open();
  // What it had to tell is in a CQ that nobody polls.
  if (to == IBV_QPS_RESET && IsHeld(qp)) return Open();
  if (IsDead(qp.send_cq) || IsDead(qp.recv_cq)) return Open();
  Enter(qp, step);
}

void Model::Enter(Qp& qp, const Step& step) {
  const ibv_qp_state from = qp.state;
  const ibv_qp_attr& attr = step.attr;
  auto take = [&](uint32_t bit, auto member) {
    if ((step.mask & bit) != 0) qp.attr.*member = attr.*member;
  };
  take(IBV_QP_ACCESS_FLAGS, &ibv_qp_attr::qp_access_flags);
  take(IBV_QP_QKEY, &ibv_qp_attr::qkey);
  take(IBV_QP_PATH_MTU, &ibv_qp_attr::path_mtu);
  take(IBV_QP_TIMEOUT, &ibv_qp_attr::timeout);
  take(IBV_QP_RETRY_CNT, &ibv_qp_attr::retry_cnt);
  take(IBV_QP_RNR_RETRY, &ibv_qp_attr::rnr_retry);
  take(IBV_QP_MIN_RNR_TIMER, &ibv_qp_attr::min_rnr_timer);
  take(IBV_QP_MAX_QP_RD_ATOMIC, &ibv_qp_attr::max_rd_atomic);
  take(IBV_QP_MAX_DEST_RD_ATOMIC, &ibv_qp_attr::max_dest_rd_atomic);
  if ((step.mask & IBV_QP_RQ_PSN) != 0) qp.epsn = attr.rq_psn;
  if ((step.mask & IBV_QP_SQ_PSN) != 0) qp.next_psn = attr.sq_psn;
  switch (attr.qp_state) {
    case IBV_QPS_RESET:
      LoseWindows(qp);
      qp.attr = {};
      qp.sends.clear();
      qp.receives.clear();
      qp.next_psn = qp.epsn = 0;
      qp.psns_known = true;
      qp.established = Qp::kNotYet;
      qp.state = IBV_QPS_RESET;
      qp.is_draining = false;
      return;
    case IBV_QPS_ERR:
      if (from == IBV_QPS_ERR) return;
      if (from == IBV_QPS_RESET && qp.srq != 0) return Open();
      return GoError(qp);
    case IBV_QPS_SQD:
      qp.tells_drained = (step.mask & kNotify) != 0 && attr.en_sqd_async_notify != 0;
      qp.is_draining = !qp.sends.empty();
      if (qp.tells_drained && !qp.is_draining) {
        out_.events.push_back({IBV_EVENT_SQ_DRAINED, qp.id});
      }
      break;
    default:
      break;
  }
  qp.state = attr.qp_state;
}

void Model::Moved(Qp& qp, ibv_qp_state state) {
  qp.state = state;
  qp.psns_known = false;
  out_.moved_qps.push_back(qp.id);
}

// IBTA 10.3.1.7: all that is in the queues completes, flushed.
void Model::GoError(Qp& qp) {
  if (qp.state == IBV_QPS_ERR) return;
  // IBTA 11.6.3.1: that it has drained. Failing is an end, too: nobody says which.
  if (qp.is_draining && qp.tells_drained) {
    out_.events.push_back({IBV_EVENT_SQ_DRAINED, qp.id, true});
  }
  qp.is_draining = false;
  Moved(qp, IBV_QPS_ERR);
  LoseWindows(qp);
  FlushSends(qp);
  if (qp.srq == 0) return FlushReceives(qp);
  out_.events.push_back({IBV_EVENT_QP_LAST_WQE_REACHED, qp.id});  // IBTA 11.6.3.1
}

void Model::FlushSends(Qp& qp) {
  for (const Work& work : qp.sends) {
    out_.completions.push_back({qp.id, false, qp.send_cq, work.wr.wr_id, {IBV_WC_WR_FLUSH_ERR}});
  }
  qp.sends.clear();
}

void Model::FlushReceives(Qp& qp) {
  for (const Wr& wr : qp.receives) {
    out_.completions.push_back({qp.id, true, qp.recv_cq, wr.wr_id, {IBV_WC_WR_FLUSH_ERR}});
  }
  qp.receives.clear();
}

}  // namespace verbena::programs
