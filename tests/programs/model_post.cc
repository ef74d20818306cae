// Posting, and what becomes of each work request.
#include <algorithm>
#include <cerrno>

#include "tests/programs/model.h"

namespace verbena::programs {
namespace {

constexpr uint32_t kAtomicBytes = 8;

// Spec: IBTA table 80.
bool IsOffered(ibv_qp_type type, ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return true;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_LOCAL_INV:
    case IBV_WR_BIND_MW:
      return type != IBV_QPT_UD;
    default:
      return type == IBV_QPT_RC;
  }
}

ibv_wc_opcode WcOpcode(ibv_wr_opcode opcode) {
  if (opcode == kWrFlush) return kWcFlush;
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    case IBV_WR_LOCAL_INV:
      return IBV_WC_LOCAL_INV;
    case IBV_WR_BIND_MW:
      return IBV_WC_BIND_MW;
    case IBV_WR_ATOMIC_WRITE:
      return IBV_WC_ATOMIC_WRITE;
    default:
      return IBV_WC_SEND;
  }
}

// rdma-core's wr_flush: at least one of two types, one of two levels.
bool IsFlushGood(const Wr& wr) {
  return wr.flush_type != 0 && wr.flush_type <= (kFlushGlobal | kFlushPersistent) &&
         wr.flush_level <= kFlushMr;
}

uint32_t AccessFor(ibv_wr_opcode opcode) {
  if (opcode == IBV_WR_RDMA_READ) return IBV_ACCESS_REMOTE_READ;
  return IsAtomic(opcode) ? IBV_ACCESS_REMOTE_ATOMIC : IBV_ACCESS_REMOTE_WRITE;
}

}  // namespace

// What the queue refuses, ibv_post_send(3); 0: it is taken.
int Model::CheckPost(const Qp& qp, const Wr& wr, bool is_extended) const {
  // docs/known-limits.md: struct ibv_send_wr can't say it.
  if (wr.opcode == kWrFlush && (!is_extended || !IsFlushGood(wr))) return EINVAL;
  if (!IsOffered(qp.type, wr.opcode)) return EINVAL;
  if (wr.sges.size() > qp.cap.max_send_sge) return EINVAL;
  const bool is_inline = (wr.flags & IBV_SEND_INLINE) != 0;
  if (wr.opcode == IBV_WR_ATOMIC_WRITE) {  // docs/known-limits.md: eight bytes, inline
    if (!is_inline || LengthOf(wr.sges) != kAtomicBytes) return EINVAL;
  } else if (is_inline) {
    if (wr.opcode == IBV_WR_RDMA_READ || IsAtomic(wr.opcode)) return EINVAL;
    if (LengthOf(wr.sges) > qp.cap.max_inline_data) return EINVAL;
  }
  if (qp.sends.size() >= qp.cap.max_send_wr) return ENOMEM;
  return 0;
}

// What the queue holds from now on. False: what the request names is not there, or of another side.
bool Model::MakeWork(const Qp& qp, const Wr& wr, Work* out) {
  out->wr = wr;
  if (qp.type == IBV_QPT_UD) {
    auto ah = ahs.find(wr.ah);
    if (ah == ahs.end()) return false;
  }
  if (wr.opcode == IBV_WR_BIND_MW) {
    auto mw = mws.find(wr.mw);
    auto mr = mrs.find(wr.bind_mr);
    if (mw == mws.end() || mr == mrs.end() || mw->second.type != IBV_MW_TYPE_2) {
      return false;
    }
    if (mw->second.is_unclear) return false;
    out->bind_key = ++mw->second.keys;
  }
  auto window = mws.find(wr.remote);
  if (IsInvalidation(wr.opcode)) {
    const int side = wr.opcode == IBV_WR_LOCAL_INV ? qp.side : 1 - qp.side;
    auto region = mrs.find(wr.remote);
    const bool is_there = window != mws.end() ? window->second.side == side
                                              : region != mrs.end() && region->second.side == side;
    if (!is_there) return false;
  }
  if (window != mws.end()) {
    if (window->second.is_unclear) return false;
    if (window->second.keys <= wr.key_age) return false;
    out->key_number = window->second.keys - wr.key_age;
  }
  for (const Sge& sge : wr.sges) {
    if (sge.offset + sge.length > kArenaBytes) return false;
    if ((wr.flags & IBV_SEND_INLINE) == 0) continue;
    Touch({qp.side, sge.offset, sge.length}, false);
    const uint8_t* from = memory(qp.side) + sge.offset;
    out->inline_data.insert(out->inline_data.end(), from, from + sge.length);
  }
  return true;
}

void Model::PostSend(const Step& step) {
  auto found = qps.find(step.id);
  if (found == qps.end() || found->second.side != step.side) return Open();
  Qp& qp = found->second;
  for (const Wr& wr : step.wrs) {  // without its objects a request can't even be written down
    if (wr.ah != 0 && ahs.find(wr.ah) == ahs.end()) return Open();
    if (wr.mw != 0 && mws.find(wr.mw) == mws.end()) return Open();
    if (wr.bind_mr != 0 && mrs.find(wr.bind_mr) == mrs.end()) return Open();
  }
  if (step.is_extended) return PostExtended(qp, step);
  if (qp.state == IBV_QPS_RESET || qp.state == IBV_QPS_INIT || qp.state == IBV_QPS_RTR) {
    out_.bad_index = 0;
    return Fail(EINVAL);  // IBTA C10-29
  }
  for (size_t i = 0; i < step.wrs.size(); ++i) {
    const Wr& wr = step.wrs[i];
    if (int error = CheckPost(qp, wr, false); error != 0) {
      out_.bad_index = static_cast<int>(i);
      Fail(error);
      break;
    }
    Work work;
    if (!MakeWork(qp, wr, &work)) return Open();
    qp.sends.push_back(std::move(work));
  }
  if (qp.state == IBV_QPS_ERR || qp.state == IBV_QPS_SQE) FlushSends(qp);
}

// ibv_wr_post(3): all of it or nothing.
void Model::PostExtended(Qp& qp, const Step& step) {
  if (!qp.is_extended) return Open();
  const auto sends = qp.sends;
  const auto windows = mws;
  bool is_good = qp.state != IBV_QPS_RESET && qp.state != IBV_QPS_INIT && qp.state != IBV_QPS_RTR;
  for (const Wr& wr : step.wrs) {
    // What is not offered has no function to call; what is not sent has no setter for inline data.
    const bool takes = wr.opcode == IBV_WR_RDMA_READ || IsAtomic(wr.opcode);
    const bool is_inline = (wr.flags & IBV_SEND_INLINE) != 0;
    if (!IsOffered(qp.type, wr.opcode) || (takes && is_inline)) return Open();
    if (IsAtomic(wr.opcode) && wr.sges.size() != 1) return Open();
    // ibv_wr_atomic_write takes eight bytes, and no flag or length.
    if (wr.opcode == IBV_WR_ATOMIC_WRITE &&
        (wr.sges.size() != 1 || LengthOf(wr.sges) != kAtomicBytes || !is_inline)) {
      return Open();
    }
    // Of pieces of inline data only the sum counts.
    if (is_inline && wr.sges.size() > qp.cap.max_send_sge) return Open();
    is_good = is_good && CheckPost(qp, wr, true) == 0;
    Work work;
    if (!MakeWork(qp, wr, &work)) return Open();
    qp.sends.push_back(std::move(work));
  }
  if (!is_good || step.is_aborted) {
    qp.sends = sends;
    mws = windows;
    out_.any_error = !step.is_aborted;
    return;
  }
  if (qp.state == IBV_QPS_ERR || qp.state == IBV_QPS_SQE) FlushSends(qp);
}

void Model::PostRecv(const Step& step) {
  const bool is_srq = step.op == Op::kPostSrqRecv;
  std::deque<Wr>* receives = nullptr;
  uint32_t max_wr = 0, max_sge = 0;
  Qp* qp = nullptr;
  if (is_srq) {
    auto found = srqs.find(step.id);
    if (found == srqs.end() || found->second.side != step.side) return Open();
    receives = &found->second.receives;
    max_wr = found->second.max_wr;
    max_sge = found->second.max_sge;
    // Of several that wait nobody knows which is first.
    int waiting = 0;
    for (const auto& [id, other] : qps) {
      auto peer = qps.find(other.peer);
      waiting += !other.sends.empty() && peer != qps.end() && peer->second.srq == step.id;
    }
    if (waiting > 1) return Open();
  } else {
    auto found = qps.find(step.id);
    if (found == qps.end() || found->second.side != step.side) return Open();
    qp = &found->second;
    if (qp->srq != 0 || qp->state == IBV_QPS_RESET) {  // IBTA C10-96
      out_.bad_index = 0;
      return Fail(EINVAL);
    }
    receives = &qp->receives;
    max_wr = qp->cap.max_recv_wr;
    max_sge = qp->cap.max_recv_sge;
  }
  for (size_t i = 0; i < step.wrs.size(); ++i) {
    const Wr& wr = step.wrs[i];
    int error = wr.sges.size() > max_sge ? EINVAL : receives->size() >= max_wr ? ENOMEM : 0;
    if (error != 0) {
      out_.bad_index = static_cast<int>(i);
      Fail(error);
      break;
    }
    receives->push_back(wr);
  }
  if (qp != nullptr && qp->state == IBV_QPS_ERR) FlushReceives(*qp);
}

void Model::Progress() {
  for (bool moved = true; moved && out_.applies;) {
    moved = false;
    for (auto& [id, qp] : qps) {
      const bool drains = qp.state == IBV_QPS_SQD && qp.is_draining;
      if ((qp.state != IBV_QPS_RTS && !drains) || qp.sends.empty()) continue;
      executing_ = id;
      const Verdict verdict = Execute(qp);
      if (verdict != Verdict::kWaits) moved = true;
      if (!out_.applies) return;
      if (!drains || verdict != Verdict::kDone) continue;
      qp.is_draining = false;
      if (qp.tells_drained) out_.events.push_back({IBV_EVENT_SQ_DRAINED, id});
    }
  }
}

Model::Verdict Model::Execute(Qp& qp) {
  const Work work = qp.sends.front();
  const Wr& wr = work.wr;
  // A fence waits for READs and atomics, not for datagrams (IBTA 10.8.3.3).
  if ((wr.flags & IBV_SEND_FENCE) != 0 && qp.type != IBV_QPT_UD) {
    under_way_.erase(std::remove_if(under_way_.begin(), under_way_.end(),
                                    [&qp](const auto& item) { return item.first == qp.id; }),
                     under_way_.end());
  }
  if (wr.opcode == IBV_WR_BIND_MW) return ExecuteBind(qp, work);
  if (wr.opcode == IBV_WR_LOCAL_INV) return ExecuteInvalidate(qp, work);
  const bool is_inline = (wr.flags & IBV_SEND_INLINE) != 0;
  const bool takes = wr.opcode == IBV_WR_RDMA_READ || IsAtomic(wr.opcode);
  if (IsAtomic(wr.opcode) && LengthOf(wr.sges) != kAtomicBytes) {
    Open();
    return Verdict::kFailed;
  }
  if (takes && Overlap(wr.sges, qp.side)) Open();
  const bool is_too_long =
      qp.type == IBV_QPT_UD && LengthOf(wr.sges) > 4096;  // beyond any port's MTU
  const bool keys_are_good =
      is_inline || LocalRangesAllow(qp, wr.sges, takes ? IBV_ACCESS_LOCAL_WRITE : 0);
  if (is_too_long && !keys_are_good) Open();
  if (is_too_long) return FailSend(qp, {IBV_WC_LOC_LEN_ERR});
  if (!keys_are_good) {
    if (qp.type == IBV_QPT_UD && !MaySendBy(qp, wr.ah)) Open();  // either may be told
    return FailSend(qp, {IBV_WC_LOC_PROT_ERR});
  }
  switch (qp.type) {
    case IBV_QPT_RC:
      return ExecuteRc(qp, work);
    case IBV_QPT_UC:
      return ExecuteUc(qp, work);
    default:
      return ExecuteUd(qp, work);
  }
}

Model::Verdict Model::ExecuteRc(Qp& qp, const Work& work) {
  auto found = qps.find(qp.peer);
  if (found == qps.end() || !found->second.Receives()) {
    return FailSend(qp, {IBV_WC_RETRY_EXC_ERR});
  }
  Qp& peer = found->second;
  if (qp.attr.path_mtu != peer.attr.path_mtu || !qp.psns_known || !peer.psns_known) {
    Open();
    return Verdict::kFailed;
  }
  if (qp.next_psn != peer.epsn) {
    // Behind what the peer expects a request is a duplicate, whose answer depends on what was
    // first.
    if (((qp.next_psn - peer.epsn) & kPsnMask) > kPsnMask / 2) Open();
    if (peer.state == IBV_QPS_RTR) Establish(peer, false);
    return FailSend(qp, {IBV_WC_RETRY_EXC_ERR});
  }
  return ExecuteRemote(qp, peer, work, LengthOf(work.wr.sges));
}

Model::Verdict Model::Refuse(Qp& qp, Qp& peer, ibv_wc_status status, ibv_event_type event,
                             Told told) {
  Establish(peer, false);
  if (told != Told::kByReceive) {
    out_.events.push_back({event, peer.id, told == Told::kByEither});
  }
  GoError(peer);
  return FailSend(qp, {status});
}

// The questions that IBTA 9.7.4.1 asks of a request, in its order.
Model::Verdict Model::ExecuteRemote(Qp& qp, Qp& peer, const Work& work, uint32_t length) {
  const Wr& wr = work.wr;
  if (wr.opcode == kWrFlush) return ExecuteFlush(qp, peer, work);
  auto refuse = [&](ibv_wc_status status, ibv_event_type event, Told told = Told::kByEvent) {
    return Refuse(qp, peer, status, event, told);
  };
  const bool is_send = IsSend(wr.opcode);
  const bool has_response = wr.opcode == IBV_WR_RDMA_READ || IsAtomic(wr.opcode);
  const uint32_t access = is_send ? 0 : AccessFor(wr.opcode);
  if ((peer.attr.qp_access_flags & access) != access) {
    return refuse(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
  }
  if (has_response &&
      (qp.attr.max_rd_atomic == 0 || qp.attr.max_rd_atomic > peer.attr.max_dest_rd_atomic)) {
    Open();
  }
  Range remote;
  const bool needs_key = !is_send && length != 0;
  const bool key_is_good = !needs_key || Resolve(peer, work, length, access, &remote);
  const bool takes_receive = is_send || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  const bool is_one_packet = PsnsOf(length, qp.attr.path_mtu) == 1;
  std::deque<Wr>& receives = ReceivesOf(peer);
  if (takes_receive && receives.empty()) {
    if (!is_send && (!key_is_good || !is_one_packet)) Open();
    Establish(peer, false);
    for (size_t i = 1; i < qp.sends.size(); ++i) {  // a bind may overtake what waits
      if (qp.sends[i].bind_key != 0 || qp.sends[i].wr.opcode == IBV_WR_LOCAL_INV) Open();
    }
    if (qp.attr.rnr_retry == 7) return Verdict::kWaits;
    return FailSend(qp, {IBV_WC_RNR_RETRY_EXC_ERR});
  }
  const bool needs_alignment = IsAtomic(wr.opcode) || wr.opcode == IBV_WR_ATOMIC_WRITE;
  // By a zero-based window an aligned address may name memory that is not.
  if (needs_alignment && key_is_good && (remote.offset - wr.remote_offset) % kAtomicBytes != 0) {
    Open();
  }
  if (needs_alignment && wr.remote_offset % kAtomicBytes != 0) {
    if (!key_is_good) Open();
    return refuse(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
  }
  if (!key_is_good) {
    // Whether the receive was taken before the key was looked at, nobody says.
    if (takes_receive) {
      if (peer.srq != 0) Open();
      FailReceive(peer, {IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR});
    }
    return refuse(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR,
                  takes_receive ? Told::kByEither : Told::kByEvent);
  }
  if (is_send) {
    const Fit fit = Judge(peer, receives.front(), length);
    if (fit == Fit::kUnclear || Overlap(receives.front().sges, peer.side)) Open();
    if (fit != Fit::kFits) {
      CheckHazards(work, qp.side, PlacesOf(peer.side, receives.front().sges));  // a part may come
      Forget(peer.side, receives.front().sges);
      const bool is_short = fit == Fit::kTooShort;
      FailReceive(peer, {is_short ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR});
      return refuse(is_short ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR, IBV_EVENT_QP_REQ_ERR,
                    Told::kByReceive);
    }
  } else if (takes_receive && Judge(peer, receives.front(), 1) == Fit::kBadKey) {
    Open();  // it is taken, and its buffers are not
  }
  if (wr.opcode == IBV_WR_SEND_WITH_INV) {
    if (!under_way_.empty()) Open();  // what the key let in may come before or after
    if (!Invalidate(peer, work)) {
      Forget(peer.side, receives.front().sges);
      FailReceive(peer, {IBV_WC_REM_INV_REQ_ERR});
      return refuse(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR, Told::kByReceive);
    }
  }
  Establish(peer, true);
  std::vector<Range> touched;
  if (needs_key) touched.push_back(remote);
  if (is_send && length != 0) {
    for (const Range& range : PlacesOf(peer.side, receives.front().sges)) touched.push_back(range);
  }
  CheckHazards(work, qp.side, touched);
  const std::vector<uint8_t> data = has_response ? std::vector<uint8_t>() : Gather(qp, work);
  if (IsAtomic(wr.opcode)) {
    Touch(remote, false);
    uint64_t before = 0;
    const uint8_t* place = memory(remote.side) + remote.offset;
    std::copy(place, place + kAtomicBytes, reinterpret_cast<uint8_t*>(&before));
    uint64_t after = before + wr.compare_add;
    if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) after = before == wr.compare_add ? wr.swap : before;
    Write(remote, reinterpret_cast<const uint8_t*>(&after));
    const auto* bytes = reinterpret_cast<const uint8_t*>(&before);
    Scatter(qp.side, wr.sges, {bytes, bytes + kAtomicBytes});
  } else if (has_response) {
    Touch(remote, false);
    const uint8_t* place = memory(remote.side) + remote.offset;
    Scatter(qp.side, wr.sges, {place, place + length});
  } else if (is_send) {
    Scatter(peer.side, receives.front().sges, data);
  } else if (needs_key) {
    Write(remote, data.data());
  }
  if (has_response) {
    if (needs_key) under_way_.push_back({qp.id, remote});
    for (const Sge& sge : wr.sges) under_way_.push_back({qp.id, Place(qp.side, sge)});
  }
  if (takes_receive) CompleteReceive(peer, qp, work, length);
  const uint32_t psns = PsnsOf(length, qp.attr.path_mtu);
  qp.next_psn = (qp.next_psn + psns) & kPsnMask;
  peer.epsn = (peer.epsn + psns) & kPsnMask;
  return CompleteSend(qp);
}

// IBTA 10.3.1.7 and 10.3.1.6: a connection is over; an unreliable queue only stops sending.
Model::Verdict Model::FailSend(Qp& qp, std::vector<ibv_wc_status> statuses) {
  out_.completions.push_back(
      {qp.id, false, qp.send_cq, qp.sends.front().wr.wr_id, std::move(statuses)});
  qp.sends.pop_front();
  if (qp.type == IBV_QPT_RC) {
    GoError(qp);
  } else {
    Moved(qp, IBV_QPS_SQE);
    LoseWindows(qp);
    FlushSends(qp);
  }
  return Verdict::kFailed;
}

Model::Verdict Model::CompleteSend(Qp& qp) {
  const Wr& wr = qp.sends.front().wr;
  if (qp.sq_sig_all || (wr.flags & IBV_SEND_SIGNALED) != 0) {
    Completion completion = {qp.id, false, qp.send_cq, wr.wr_id, {IBV_WC_SUCCESS}};
    completion.opcode = WcOpcode(wr.opcode);
    out_.completions.push_back(completion);
  } else if (qp.sends.size() == 1) {
    out_.is_silent = true;  // nor does what comes after it tell that it is done
  }
  qp.sends.pop_front();
  return Verdict::kDone;
}

}  // namespace verbena::programs
