// FLUSH, IBTA annex A19: what came before it is to be seen where it went.
#include "tests/programs/model.h"

namespace verbena::programs {

Model::Verdict Model::ExecuteFlush(Qp& qp, Qp& peer, const Work& work) {
  const Wr& wr = work.wr;
  const uint32_t access = ((wr.flush_type & kFlushGlobal) != 0 ? kAccessFlushGlobal : 0) |
                          ((wr.flush_type & kFlushPersistent) != 0 ? kAccessFlushPersistent : 0);
  if ((peer.attr.qp_access_flags & access) != access) {
    return Refuse(qp, peer, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
  }
  if (qp.attr.max_rd_atomic == 0 || qp.attr.max_rd_atomic > peer.attr.max_dest_rd_atomic) Open();
  Range range;
  uint32_t base = 0;
  const bool is_whole = wr.flush_level == kFlushMr;
  const bool is_good = is_whole ? FindTarget(peer, work, access, &range, &base)
                                : Resolve(peer, work, wr.flush_length, access, &range);
  if (!is_good) {
    if (!is_whole && wr.flush_length == 0) Open();  // whether no bytes need a key
    return Refuse(qp, peer, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  }
  Establish(peer, true);
  Touch(range, false);
  const bool is_told = (qp.sq_sig_all || (wr.flags & IBV_SEND_SIGNALED) != 0) &&
                       !cqs.at(qp.send_cq).is_held;  // nobody waits for what nobody polls
  // Of another QP's WRITEs a FLUSH says nothing, and those of UC may still be on their way.
  if (is_told) out_.flushed.push_back(range);
  qp.next_psn = (qp.next_psn + 1) & kPsnMask;
  peer.epsn = (peer.epsn + 1) & kPsnMask;
  return CompleteSend(qp);
}

}  // namespace verbena::programs
