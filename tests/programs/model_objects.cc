// Objects: who may use what, and what keeps it alive.
#include <algorithm>
#include <cerrno>

#include "tests/programs/model.h"
#include "tests/programs/random.h"

namespace verbena::programs {
namespace {

constexpr uint32_t kNeedsLocalWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

// ibv_reg_mr(3): remote write and atomic need local write.
bool IsAccessGood(uint32_t access) {
  return (access & kNeedsLocalWrite) == 0 || (access & IBV_ACCESS_LOCAL_WRITE) != 0;
}

template <typename Map>
bool Has(const Map& map, Id id, int side) {
  auto found = map.find(id);
  return found != map.end() && found->second.side == side;
}

}  // namespace

Model::Model(uint64_t seed) {
  for (int arena = 0; arena < kArenas; ++arena) {
    arenas_[arena].resize(BytesOf(arena));
    Fill(seed, arena, arenas_[arena].data());
  }
}

void Model::Fill(uint64_t seed, int arena, uint8_t* bytes) {
  Random random(seed * kArenas + static_cast<uint64_t>(arena) + 77);
  for (uint32_t i = 0; i < BytesOf(arena); ++i) bytes[i] = static_cast<uint8_t>(random.Next());
}

void Model::LearnEntries(Id id, uint32_t entries) {
  if (auto cq = cqs.find(id); cq != cqs.end()) cq->second.entries = entries;
  if (auto srq = srqs.find(id); srq != srqs.end()) srq->second.max_wr = entries;
}

Id Model::Protection(Id pd) const {
  auto found = pds.find(pd);
  return found != pds.end() && found->second.base != 0 ? found->second.base : pd;
}

std::deque<Wr>& Model::ReceivesOf(Qp& qp) {
  return qp.srq != 0 ? srqs.at(qp.srq).receives : qp.receives;
}

bool Model::InUse(Id pd) const {
  for (const auto& [id, object] : pds) {
    if (object.base == pd) return true;
  }
  auto uses = [pd](const auto& map) {
    for (const auto& [id, object] : map) {
      if (object.pd == pd) return true;
    }
    return false;
  };
  return uses(mrs) || uses(mws) || uses(srqs) || uses(qps) || uses(ahs);
}

bool Model::IsPinned(Id mr, Id except) const {
  for (const auto& [id, qp] : qps) {
    if (id == except) continue;
    for (const Work& work : qp.sends) {
      if (work.wr.remote == mr || work.wr.bind_mr == mr || work.wr.mw == mr) return true;
      for (const Sge& sge : work.wr.sges) {
        if (sge.mr == mr) return true;
      }
    }
  }
  return false;
}

bool Model::MayHaveWindows(Id mr) const {
  auto found = mrs.find(mr);
  for (const auto& [id, mw] : mws) {
    if (mw.is_unclear && found != mrs.end() && mw.side == found->second.side) return true;
  }
  return false;
}

void Model::BeginStep(const Step& step) {
  if (!goes_on_) {
    touched_before_.clear();
    came_before_.clear();
    used_before_.clear();
  } else {
    touched_before_.insert(touched_before_.end(), touched_now_.begin(), touched_now_.end());
  }
  touched_now_.clear();
  const bool is_alone = !goes_on_ && !step.with_next;
  goes_on_ = step.with_next;
  if (is_alone) return;
  auto qp = qps.find(step.id);
  if (step.op != Op::kPostSend || qp == qps.end()) return Open();
  // A datagram may go to any QP, and a bind be seen by any.
  if (qp->second.type == IBV_QPT_UD) return Open();
  for (const Wr& wr : step.wrs) {
    if (wr.mw != 0 || mws.find(wr.remote) != mws.end() || IsInvalidation(wr.opcode)) return Open();
  }
  auto peer = qps.find(qp->second.peer);
  for (Id id :
       {step.id, qp->second.peer, qp->second.srq, peer != qps.end() ? peer->second.srq : Id{0}}) {
    if (id == 0) continue;
    if (std::find(used_before_.begin(), used_before_.end(), id) != used_before_.end()) Open();
    used_before_.push_back(id);
  }
}

// IBTA 11.4.2.2: one event, for the next completion, or the next that is solicited or failed.
void Model::TellChannels() {
  for (const Completion& completion : out_.completions) {
    auto cq = cqs.find(completion.cq);
    if (cq == cqs.end() || cq->second.armed == Cq::kQuiet) continue;
    const bool has_failed = completion.statuses.front() != IBV_WC_SUCCESS;
    if (cq->second.armed == Cq::kSolicited && !completion.is_solicited && !has_failed) continue;
    cq->second.armed = Cq::kQuiet;
    out_.cq_events.push_back(cq->first);
  }
}

void Model::Touch(const Range& range, bool writes) {
  for (const Touched& other : touched_before_) {
    if ((writes || other.writes) && range.length != 0 && range.Meets(other.range)) Open();
  }
  for (const Range& other : out_.unknown) {
    if (!writes && range.length != 0 && range.Meets(other)) Open();  // it may hold anything
  }
  touched_now_.push_back({range, writes});
}

Outcome Model::Apply(const Step& step) {
  out_ = {};
  under_way_.clear();
  delivered_.clear();
  sent_from_.clear();
  sent_to_group_ = sent_to_one_ = false;
  BeginStep(step);
  switch (step.op) {
    case Op::kModifyQp:
      ModifyQp(step);
      break;
    case Op::kPostSend:
      PostSend(step);
      break;
    case Op::kPostRecv:
    case Op::kPostSrqRecv:
      PostRecv(step);
      break;
    case Op::kBindMw:
      BindType1(step);
      break;
    case Op::kHoldCq:
    case Op::kReleaseCq:
      ApplyHold(step);
      break;
    default:
      ApplyObject(step);
  }
  do {
    if (out_.applies) Progress();
    TellChannels();
  } while (HoldCompletions());
  CheckRoom();
  // Work that waits for its peer: that it has begun, nobody is told of.
  if (auto qp = qps.find(step.id); qp != qps.end() && qp->second.state == IBV_QPS_RTS) {
    out_.is_silent |= !qp->second.sends.empty();
  }
  return std::move(out_);
}

void Model::ApplyObject(const Step& step) {
  auto busy_or_gone = [this, &step](auto& map, auto is_busy) {
    if (map.find(step.id) == map.end()) return Open();
    if (is_busy()) return Fail(EBUSY);
    map.erase(step.id);
  };
  auto of_cq = [&step](const auto& item) {
    return item.second.send_cq == step.id || item.second.recv_cq == step.id;
  };
  auto any_qp = [this](auto matches) {
    for (const auto& item : qps) {
      if (matches(item)) return true;
    }
    return false;
  };
  switch (step.op) {
    case Op::kAllocPd:
      pds[step.id] = {step.side, 0};
      return;
    case Op::kParentDomain:
      if (!Has(pds, step.pd, step.side)) return Open();
      if (pds.at(step.pd).base != 0) return Open();
      pds[step.id] = {step.side, step.pd};
      return;
    case Op::kDeallocPd:
      return busy_or_gone(pds, [&] { return InUse(step.id); });
    case Op::kRegMr:
      return RegMr(step);
    case Op::kRegDmMr:
      return RegMr(step);
    case Op::kAllocNullMr:
      if (!Has(pds, step.pd, step.side)) return Open();
      mrs[step.id] = {step.side, step.pd, 0, kArenaBytes, IBV_ACCESS_LOCAL_WRITE};
      mrs[step.id].kind = Mr::kNull;
      return;
    case Op::kReregMr:
      return ReregMr(step);
    case Op::kDeregMr:
      if (IsPinned(step.id) || MayHaveWindows(step.id)) return Open();
      return busy_or_gone(mrs, [&] {
        for (const auto& [id, mw] : mws) {
          if (mw.is_bound && mw.mr == step.id) return true;  // IBTA 10.6.7.2.6
        }
        return false;
      });
    case Op::kAllocMw:
      if (!Has(pds, step.pd, step.side)) return Open();
      mws[step.id] = {step.side, step.pd, step.mw_type};
      return;
    case Op::kDeallocMw:
      if (IsPinned(step.id)) return Open();
      return busy_or_gone(mws, [] { return false; });
    case Op::kCreateCq:
      if (step.other_channel) return Fail(EBADF);  // docs/errors.md: as the kernel
      if (step.entries == 0) return Fail(EINVAL);
      cqs[step.id] = {step.side, step.entries};
      return;
    case Op::kResizeCq:
      if (!Has(cqs, step.id, step.side)) return Open();
      if (IsDead(step.id)) return Open();
      if (step.entries == 0) return Fail(EINVAL);
      // ibv_resize_cq(3): what waits there has to fit, in what is given, which may be more.
      if (const size_t waiting = cqs.at(step.id).backlog.size(); step.entries < waiting) {
        return step.entries * 2 < waiting ? Fail(EINVAL) : Open();
      }
      cqs.at(step.id).entries = step.entries;
      return;
    case Op::kDestroyCq:
      return busy_or_gone(cqs, [&] { return any_qp(of_cq); });
    case Op::kNotifyCq:
      if (!Has(cqs, step.id, step.side)) return Open();
      if (cqs.at(step.id).is_held) return Open();
      // Armed for all it stays so: ibv_req_notify_cq(3).
      if (cqs.at(step.id).armed != Cq::kAny) {
        cqs.at(step.id).armed = step.to_self ? Cq::kSolicited : Cq::kAny;
      }
      return;
    case Op::kCreateSrq:
      if (!Has(pds, step.pd, step.side)) return Open();
      if (step.entries == 0) return Fail(EINVAL);
      srqs[step.id] = {step.side, step.pd, step.entries, step.cap.max_recv_sge, step.limit, {}};
      return;
    case Op::kModifySrq:
      return ModifySrq(step);
    case Op::kQuerySrq:
      if (!Has(srqs, step.id, step.side)) return Open();
      return;
    case Op::kDestroySrq:
      return busy_or_gone(srqs, [&] {
        return any_qp([&](const auto& item) { return item.second.srq == step.id; });
      });
    case Op::kCreateQp:
      return CreateQp(step);
    case Op::kQueryQp:
      if (!Has(qps, step.id, step.side)) return Open();
      return;
    case Op::kDestroyQp:
      return DestroyQp(step);
    case Op::kCreateAh:
      if (!Has(pds, step.pd, step.side)) return Open();
      ahs[step.id] = {step.side, step.pd, step.to_self, step.to_group};
      return;
    case Op::kDestroyAh:
      for (const auto& [id, qp] : qps) {
        for (const Work& work : qp.sends) {
          if (work.wr.ah == step.id) return Open();
        }
      }
      return busy_or_gone(ahs, [] { return false; });
    case Op::kAttachMcast: {
      if (!Has(qps, step.id, step.side)) return Open();
      Qp& qp = qps.at(step.id);
      if (qp.type != IBV_QPT_UD) return Fail(EINVAL);  // ibv_attach_mcast(3)
      if (qp.in_group) return Open();
      qp.in_group = true;
      return;
    }
    case Op::kDetachMcast: {
      if (!Has(qps, step.id, step.side) || !qps.at(step.id).in_group) return Open();
      qps.at(step.id).in_group = false;
      return;
    }
    default:
      return Open();
  }
}

void Model::RegMr(const Step& step) {
  if (!Has(pds, step.pd, step.side)) return Open();
  const bool is_device = step.op == Op::kRegDmMr;
  if (is_device && uint64_t{step.offset} + step.length > kDmBytes) return Fail(EINVAL);
  // ibv_reg_dm_mr(3): it is zero-based, and has to be said to be.
  if (is_device && (step.access & IBV_ACCESS_ZERO_BASED) == 0) return Fail(EINVAL);
  if (!IsAccessGood(step.access)) return Fail(EINVAL);
  if ((step.access & kAccessFlushPersistent) != 0) {
    if (!is_device) return Fail(EOPNOTSUPP);
    out_.any_error = true;  // a right that it can't have, or one that nothing has
    return;
  }
  mrs[step.id] = {step.side, step.pd, step.offset, step.length, step.access};
  if (is_device) mrs[step.id].kind = Mr::kDevice;
}

void Model::ReregMr(const Step& step) {
  if (!Has(mrs, step.id, step.side) || IsPinned(step.id) || MayHaveWindows(step.id)) {
    return Open();
  }
  for (const auto& [id, mw] : mws) {
    if (mw.is_bound && mw.mr == step.id) return Open();
  }
  const Mr& before = mrs.at(step.id);
  if (before.is_invalidated || before.is_unclear || before.kind != Mr::kMemory) return Open();
  if (step.access != 0 && (step.mask & IBV_REREG_MR_CHANGE_ACCESS) == 0) return Fail(EINVAL);
  Mr changed = mrs.at(step.id);
  if ((step.mask & IBV_REREG_MR_CHANGE_PD) != 0) {
    if (!Has(pds, step.pd, step.side)) return Open();
    changed.pd = step.pd;
  }
  if ((step.mask & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
    changed.offset = step.offset;
    changed.length = step.length;
  }
  if ((step.mask & IBV_REREG_MR_CHANGE_ACCESS) != 0) {
    if ((step.access & kAccessFlushPersistent) != 0) return Open();
    if (!IsAccessGood(step.access)) return Fail(EINVAL);
    changed.access = step.access;
  }
  mrs.at(step.id) = changed;
}

void Model::ModifySrq(const Step& step) {
  if (!Has(srqs, step.id, step.side)) return Open();
  Srq& srq = srqs.at(step.id);
  constexpr uint32_t kTooMany = 1u << 28;  // of any device
  if (step.mask == 0 || (step.mask & ~uint32_t{IBV_SRQ_LIMIT | IBV_SRQ_MAX_WR}) != 0) return Open();
  const uint32_t max_wr = (step.mask & IBV_SRQ_MAX_WR) != 0 ? step.entries : srq.max_wr;
  const uint32_t limit = (step.mask & IBV_SRQ_LIMIT) != 0 ? step.limit : srq.limit;
  // ibv_modify_srq(3), docs/errors.md: nothing changes.
  if (max_wr == 0 || max_wr > kTooMany) return Fail(EINVAL);
  // What waits, and the limit, has to fit in what is given: of a new size that may be more.
  const size_t needed = std::max<size_t>(srq.receives.size(), limit);
  if (needed > max_wr) {
    return (step.mask & IBV_SRQ_MAX_WR) != 0 && needed <= max_wr * 2 ? Open() : Fail(EINVAL);
  }
  // It tells of falling below; not of being there already.
  if ((step.mask & IBV_SRQ_LIMIT) != 0 && srq.receives.size() < limit) return Open();
  srq.max_wr = max_wr;
  srq.limit = limit;
}

void Model::CreateQp(const Step& step) {
  if (pds.count(step.pd) == 0 || cqs.count(step.send_cq) == 0 || cqs.count(step.recv_cq) == 0 ||
      (step.srq != 0 && srqs.count(step.srq) == 0) || IsDead(step.send_cq) ||
      IsDead(step.recv_cq)) {
    return Open();
  }
  const int side = step.side;
  const bool has_own_srq = step.srq == 0 || Has(srqs, step.srq, side);
  if (!Has(pds, step.pd, side)) {
    // Of the PD's context, unless it is said: then all is as it should be, but elsewhere.
    if (!Has(cqs, step.send_cq, side) || !Has(cqs, step.recv_cq, side) || !has_own_srq)
      return Open();
    return Fail(EINVAL);
  }
  // docs/errors.md, IBTA 11.2.5.1.
  if (!Has(cqs, step.send_cq, side) || !Has(cqs, step.recv_cq, side) || !has_own_srq) {
    return Fail(EINVAL);
  }
  if (step.srq != 0) {
    // IBTA 10.2.9.1 has the SRQ's own PD count; we ask for the same.
    if (Protection(srqs.at(step.srq).pd) != Protection(step.pd)) return Fail(EINVAL);
  }
  Qp qp;
  qp.id = step.id;
  qp.peer = step.peer;
  qp.side = step.side;
  qp.pd = step.pd;
  qp.send_cq = step.send_cq;
  qp.recv_cq = step.recv_cq;
  qp.srq = step.srq;
  qp.type = step.type;
  qp.cap = step.cap;
  qp.sq_sig_all = step.sq_sig_all;
  qp.is_extended = step.is_extended;
  qps[step.id] = qp;
}

void Model::DestroyQp(const Step& step) {
  if (!Has(qps, step.id, step.side)) return Open();
  if (qps.at(step.id).in_group) return Fail(EBUSY);
  if (IsHeld(qps.at(step.id))) return Open();  // what it had to tell
  for (auto& [id, mw] : mws) {                 // IBTA 10.6.7.2.4: of type 2 they are free again
    if (mw.is_bound && mw.type == IBV_MW_TYPE_2 && mw.qp == step.id) mw.is_bound = false;
  }
  qps.erase(step.id);
}

}  // namespace verbena::programs
