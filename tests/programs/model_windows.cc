// Memory windows: binds, and what takes them away.
#include <cerrno>

#include "tests/programs/model.h"

namespace verbena::programs {

// ibv_bind_mw(3): a work request with a key that the library draws.
void Model::BindType1(const Step& step) {
  auto qp = qps.find(step.qp);
  auto mw = mws.find(step.id);
  auto mr = mrs.find(step.mr);
  if (qp == qps.end() || mw == mws.end() || mr == mrs.end() || qp->second.side != step.side ||
      mw->second.side != step.side || mr->second.side != step.side ||
      mw->second.type != IBV_MW_TYPE_1 || qp->second.state != IBV_QPS_RTS ||
      qp->second.type == IBV_QPT_UD || !qp->second.sends.empty() || mw->second.is_unclear ||
      step.wrs.size() != 1) {
    return Open();
  }
  if (mr->second.kind != Mr::kMemory) return Open();
  if (mw->second.pd != mr->second.pd) {
    // As the providers of rdma-core have it; the manual page is silent.
    if (Protection(mw->second.pd) == Protection(mr->second.pd)) return Open();
    return Fail(EPERM);
  }
  Work work;
  work.wr = step.wrs[0];
  work.wr.mw = step.id;
  work.wr.bind_mr = step.mr;
  work.bind_key = ++mw->second.keys;
  qp->second.sends.push_back(work);
}

// IBTA 10.6.7.2.2.
Model::Verdict Model::ExecuteBind(Qp& qp, const Work& work) {
  const Wr& wr = work.wr;
  if (mws.find(wr.mw) == mws.end() || mrs.find(wr.bind_mr) == mrs.end()) {
    Open();
    return Verdict::kFailed;
  }
  Mw& mw = mws.at(wr.mw);
  const Mr& mr = mrs.at(wr.bind_mr);
  if (mr.is_unclear || mr.kind != Mr::kMemory) Open();
  constexpr uint32_t kWriting = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  const bool is_inside =
      wr.bind_offset >= mr.offset && wr.bind_offset + wr.bind_length <= mr.offset + mr.length;
  const bool is_good =
      Protection(mw.pd) == Protection(qp.pd) && Protection(mr.pd) == Protection(qp.pd) &&
      mw.side == qp.side && mr.side == qp.side && !mr.is_invalidated &&
      (mr.access & IBV_ACCESS_MW_BIND) != 0 && is_inside &&
      ((wr.bind_access & kWriting) == 0 || (mr.access & IBV_ACCESS_LOCAL_WRITE) != 0) &&
      (mw.type == IBV_MW_TYPE_1 || (!mw.is_bound && wr.bind_length != 0));
  if (!is_good) return FailSend(qp, {IBV_WC_MW_BIND_ERR});
  mw.is_bound = wr.bind_length != 0;
  mw.live_key = work.bind_key;
  mw.mr = wr.bind_mr;
  mw.qp = qp.id;
  mw.offset = wr.bind_offset;
  mw.length = wr.bind_length;
  mw.access = wr.bind_access;
  return CompleteSend(qp);
}

Model::Verdict Model::ExecuteInvalidate(Qp& qp, const Work& work) {
  if (!Invalidate(qp, work)) return FailSend(qp, {IBV_WC_LOC_QP_OP_ERR, IBV_WC_MW_BIND_ERR});
  return CompleteSend(qp);
}

// IBTA 10.6.5 and 10.6.7.2.6; `by`: whose key it is. False: nothing happens, it is refused.
bool Model::Invalidate(const Qp& by, const Work& work) {
  const Wr& wr = work.wr;
  if (auto found = mrs.find(wr.remote); found != mrs.end()) {
    Mr& mr = found->second;
    // docs/known-limits.md: of an ordinary region, if it was opened to others.
    constexpr uint32_t kRemote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                 IBV_ACCESS_REMOTE_ATOMIC | kAccessFlushGlobal;
    if (mr.is_unclear || mr.kind != Mr::kMemory || (mr.access & kRemote) == 0 ||
        MayHaveWindows(wr.remote) || IsPinned(wr.remote, executing_)) {
      Open();
    }
    for (const auto& [id, mw] : mws) {
      if (mw.is_bound && mw.mr == wr.remote) return false;
    }
    if (mr.is_invalidated || mr.side != by.side || wr.remote_flip != 0 ||
        Protection(mr.pd) != Protection(by.pd)) {
      return false;
    }
    mr.is_invalidated = true;
    return true;
  }
  auto found = mws.find(wr.remote);
  if (found == mws.end()) {
    Open();
    return false;
  }
  Mw& mw = found->second;
  const bool is_good = mw.is_bound && mw.type == IBV_MW_TYPE_2 && mw.qp == by.id &&
                       wr.remote_flip == 0 && work.key_number == mw.live_key &&
                       Protection(mw.pd) == Protection(by.pd);
  if (is_good) mw.is_bound = false;
  return is_good;
}

// A bind may begin while work before it is still under way: of one that was posted in time and then
// flushed nobody says whether it was done.
void Model::LoseWindows(const Qp& qp) {
  for (const Work& work : qp.sends) {
    const bool invalidates = work.wr.opcode == IBV_WR_LOCAL_INV;
    if (!invalidates && work.bind_key == 0) continue;
    auto region = mrs.find(work.wr.remote);
    if (invalidates && region != mrs.end()) region->second.is_unclear = true;
    auto window = mws.find(invalidates ? work.wr.remote : work.wr.mw);
    if (window != mws.end()) window->second.is_unclear = true;
  }
}

}  // namespace verbena::programs
