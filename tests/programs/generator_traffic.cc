// Work requests: right ones, and such as are wrong in one way.
#include <algorithm>

#include "tests/programs/generator.h"

namespace verbena::programs {
namespace {

constexpr uint32_t kQKey = 0x1111'1111;
constexpr uint32_t kAtomicBytes = 8;

template <typename Map>
std::vector<Id> OfSide(const Map& map, int side) {
  std::vector<Id> ids;
  for (const auto& [id, object] : map) {
    if (object.side == side) ids.push_back(id);
  }
  return ids;
}

// The address a peer begins with.
uint32_t FirstOf(const Mr& mr) { return mr.kind == Mr::kDevice ? 0 : mr.offset; }

}  // namespace

uint32_t Generator::SomeLength() {
  const uint32_t choice = random_.Below(100);
  if (choice < 8) return 0;
  if (choice < 50) return random_.Between(1, 64);
  if (choice < 80) return random_.Between(65, 1024);
  return random_.Between(1025, 6000);
}

bool Generator::Traffic() {
  std::vector<Id> ready;
  for (const auto& [id, qp] : model_.qps) {
    auto peer = model_.qps.find(qp.peer);
    if (qp.state == IBV_QPS_RTS && peer != model_.qps.end() && peer->second.Receives()) {
      ready.push_back(id);
    }
  }
  // Now and then in any state.
  if (ready.empty() || random_.Percent(6)) {
    ready = OfSide(model_.qps, static_cast<int>(random_.Below(2)));
  }
  if (ready.empty()) return MakePair();
  Qp& qp = model_.qps.at(random_.Of(ready));
  const Id id = qp.id;
  if (random_.Percent(4)) return FullQueue(qp);
  auto peer = model_.qps.find(qp.peer);
  if (peer != model_.qps.end() && random_.Percent(60) &&
      model_.ReceivesOf(peer->second).size() < 4) {
    Receives(peer->second, random_.Between(1, 4));
  }
  return Sends(model_.qps.at(id));
}

bool Generator::DrawSges(const Qp& qp, uint32_t length, uint32_t access, uint32_t max_sges,
                         std::vector<Sge>* out) {
  std::vector<Id> fit;
  for (const auto& [id, mr] : model_.mrs) {
    if (mr.side == qp.side && model_.Protection(mr.pd) == model_.Protection(qp.pd) &&
        (mr.access & access) == access && mr.length >= length) {
      fit.push_back(id);
    }
  }
  if (fit.empty()) return false;
  const uint32_t count = length == 0 ? random_.Below(2) : random_.Between(1, max_sges);
  uint32_t left = length;
  for (uint32_t i = 0; i < count; ++i) {
    const Id id = random_.Of(fit);
    const Mr& mr = model_.mrs.at(id);
    const uint32_t bytes = i + 1 == count ? left : random_.Below(left + 1);
    out->push_back({id, mr.offset + random_.Below(mr.length - bytes + 1), bytes, 0});
    left -= bytes;
  }
  return true;
}

bool Generator::DrawRemote(const Qp& qp, uint32_t length, uint32_t access, uint32_t alignment,
                           Wr* wr) {
  auto found = model_.qps.find(qp.peer);
  if (found == model_.qps.end()) {
    wr->remote = 0;
    return true;
  }
  const Qp& peer = found->second;
  struct Target {
    Id id;
    uint32_t first, bytes;
  };
  std::vector<Target> fit;
  for (const auto& [id, mr] : model_.mrs) {
    if (mr.side == peer.side && model_.Protection(mr.pd) == model_.Protection(peer.pd) &&
        (mr.access & access) == access) {
      fit.push_back({id, FirstOf(mr), mr.length});
    }
  }
  for (const auto& [id, mw] : model_.mws) {
    if (mw.side != peer.side || !mw.is_bound || (mw.access & access) != access) continue;
    if (model_.Protection(mw.pd) != model_.Protection(peer.pd)) continue;
    if (mw.type == IBV_MW_TYPE_2 && mw.qp != peer.id) continue;
    const uint32_t first = (mw.access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : mw.offset;
    for (int weight = 0; weight < 3; ++weight) fit.push_back({id, first, mw.length});
  }
  fit.erase(std::remove_if(fit.begin(), fit.end(),
                           [&](const Target& t) { return t.bytes < length + alignment; }),
            fit.end());
  if (fit.empty()) return false;
  const Target target = random_.Of(fit);
  wr->remote = target.id;
  const uint32_t room = target.bytes - length - alignment;
  wr->remote_offset = target.first + random_.Below(room + 1);
  if (alignment > 1) wr->remote_offset = (wr->remote_offset + alignment - 1) & ~(alignment - 1);
  if (auto mw = model_.mws.find(target.id); mw != model_.mws.end()) {
    wr->key_age = mw->second.keys - mw->second.live_key;
  }
  return true;
}

bool Generator::DrawSend(const Qp& qp, bool is_extended, Wr* wr) {
  static const std::vector<ibv_wr_opcode> kRc = {
      IBV_WR_SEND,        IBV_WR_SEND_WITH_IMM,       IBV_WR_RDMA_WRITE,
      IBV_WR_RDMA_WRITE,  IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
      IBV_WR_RDMA_READ,   IBV_WR_ATOMIC_CMP_AND_SWP,  IBV_WR_ATOMIC_FETCH_AND_ADD,
      IBV_WR_ATOMIC_WRITE};
  static const std::vector<ibv_wr_opcode> kUc = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
                                                 IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM};
  static const std::vector<ibv_wr_opcode> kUd = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM};
  wr->wr_id = NewWrId(false);
  wr->opcode = random_.Of(qp.type == IBV_QPT_RC ? kRc : qp.type == IBV_QPT_UC ? kUc : kUd);
  if (qp.type == IBV_QPT_RC && random_.Percent(is_extended ? 12 : 1)) wr->opcode = kWrFlush;
  wr->flags = random_.Percent(70) ? IBV_SEND_SIGNALED : 0;
  if (random_.Percent(30)) wr->flags |= IBV_SEND_FENCE;
  if (random_.Percent(10)) wr->flags |= IBV_SEND_SOLICITED;
  uint32_t length = SomeLength();
  if (wr->opcode == kWrFlush) {
    wr->flush_length = length;
    wr->flush_level = static_cast<uint8_t>(random_.Below(2));
    return DrawRemote(qp, length, kAccessFlushGlobal, 1, wr);
  }
  const bool takes = wr->opcode == IBV_WR_RDMA_READ || IsAtomic(wr->opcode);
  const bool is_atomic_write = wr->opcode == IBV_WR_ATOMIC_WRITE;
  if (IsAtomic(wr->opcode) || is_atomic_write) length = kAtomicBytes;
  if (qp.type == IBV_QPT_UD) length = std::min(length, 1024u);
  if (IsSend(wr->opcode) && qp.type != IBV_QPT_UD) {
    // Mostly what the receive there has room for.
    auto peer = model_.qps.find(qp.peer);
    if (peer != model_.qps.end() && random_.Percent(90)) {
      const auto& receives = model_.ReceivesOf(peer->second);
      uint32_t room = receives.empty() ? length : ~0u;
      for (const Wr& receive : receives) room = std::min(room, LengthOf(receive.sges));
      length = std::min(length, room);
    }
  }
  if (is_atomic_write) {
    wr->flags |= IBV_SEND_INLINE;
  } else if (!takes && qp.cap.max_inline_data != 0 && random_.Percent(25)) {
    wr->flags |= IBV_SEND_INLINE;
    length = std::min(length, qp.cap.max_inline_data);
  }
  const uint32_t max_sges = IsAtomic(wr->opcode) ? 1 : qp.cap.max_send_sge;
  if (!DrawSges(qp, length, takes ? IBV_ACCESS_LOCAL_WRITE : 0, max_sges, &wr->sges)) return false;
  if (HasImm(wr->opcode)) wr->imm = static_cast<uint32_t>(random_.Next());
  if (qp.type == IBV_QPT_UD) {
    wr->ah = OfPd(model_.ahs, qp.side, qp.pd);
    if (wr->ah == 0) {
      Step ah = New(Op::kCreateAh, qp.side);
      ah.pd = qp.pd;
      Add(ah);
      wr->ah = ah.id;
    }
    wr->remote_qp = model_.ahs.at(wr->ah).to_self ? qp.id : qp.peer;
    wr->qkey = kQKey;
    return true;
  }
  if (IsSend(wr->opcode)) return true;
  const uint32_t access = wr->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ
                          : takes                        ? IBV_ACCESS_REMOTE_ATOMIC
                                                         : IBV_ACCESS_REMOTE_WRITE;
  wr->compare_add = random_.Next();
  wr->swap = random_.Next();
  if (!DrawRemote(qp, length, access, IsAtomic(wr->opcode) || is_atomic_write ? 8 : 1, wr))
    return false;
  if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP && random_.Percent(60) && wr->remote != 0 &&
      wr->remote_offset + kAtomicBytes <= kArenaBytes) {
    const uint8_t* place = model_.memory(1 - qp.side) + wr->remote_offset;
    std::copy(place, place + kAtomicBytes, reinterpret_cast<uint8_t*>(&wr->compare_add));
  }
  return true;
}

// What a WRITE or ATOMIC_WRITE has written, or a part of it.
Wr Generator::DrawFlushOf(const Wr& write) {
  Wr wr;
  wr.wr_id = NewWrId(false);
  wr.opcode = kWrFlush;
  wr.flags = IBV_SEND_SIGNALED;
  wr.remote = write.remote;
  wr.key_age = write.key_age;
  wr.flush_level = static_cast<uint8_t>(random_.Below(2));
  const uint32_t length = LengthOf(write.sges), skipped = random_.Below(length + 1);
  wr.remote_offset = write.remote_offset + skipped;
  wr.flush_length = random_.Below(length - skipped + 1);
  return wr;
}

// Makes one thing wrong; nullptr: there was nothing to spoil.
const char* Generator::Spoil(const Qp& qp, Wr* wr) {
  const bool has_sge = !wr->sges.empty() && wr->sges[0].length != 0;
  const bool is_inline = (wr->flags & IBV_SEND_INLINE) != 0;
  const uint32_t bytes_there = wr->opcode == kWrFlush ? wr->flush_length : LengthOf(wr->sges);
  switch (random_.Below(20)) {
    case 0:
      if (!has_sge || is_inline) return nullptr;
      wr->sges[0].key_flip = 1u << random_.Below(8);
      return "lkey";
    case 1: {
      if (!has_sge || is_inline) return nullptr;
      const Mr& mr = model_.mrs.at(wr->sges[0].mr);
      wr->sges[0].offset = mr.offset + mr.length - wr->sges[0].length + 1;
      return wr->sges[0].offset + wr->sges[0].length <= kArenaBytes ? "one byte beyond the region"
                                                                    : nullptr;
    }
    case 2: {
      if (!has_sge || is_inline) return nullptr;
      wr->sges[0].mr = AnyOf(model_.mrs, qp.side);
      return "another region's lkey";
    }
    case 3:
      if (wr->sges.empty()) return nullptr;
      while (wr->sges.size() <= qp.cap.max_send_sge) {
        wr->sges.push_back(wr->sges[0]);
        wr->sges.back().length = 0;
      }
      return "too many SGEs";
    case 4:
    case 5:
      if (wr->remote == 0) return nullptr;
      wr->remote_flip = 1u << random_.Below(8);
      return "rkey";
    case 6:
    case 7: {
      if (IsAtomic(wr->opcode) || wr->opcode == IBV_WR_ATOMIC_WRITE) return nullptr;
      if (auto mw = model_.mws.find(wr->remote); mw != model_.mws.end()) {
        const bool from_zero = (mw->second.access & IBV_ACCESS_ZERO_BASED) != 0;
        wr->remote_offset =
            (from_zero ? 0 : mw->second.offset) + mw->second.length - bytes_there + 1;
        return "one byte beyond the window";
      }
      auto mr = model_.mrs.find(wr->remote);
      if (mr == model_.mrs.end()) return nullptr;
      const Mr& of = mr->second;
      if (random_.Percent(50) && FirstOf(of) > 0) {
        wr->remote_offset = of.offset - 1;
        return "one byte before the remote region";
      }
      wr->remote_offset = FirstOf(of) + of.length - bytes_there + 1;
      return "one byte beyond the remote region";
    }
    case 8:
    case 9:
      if (wr->remote == 0) return nullptr;
      wr->remote = AnyOf(model_.mrs, 1 - qp.side);
      wr->key_age = 0;
      if (wr->remote == 0) return nullptr;
      if (const Mr& mr = model_.mrs.at(wr->remote); mr.length >= bytes_there) {
        wr->remote_offset = FirstOf(mr) + random_.Below(mr.length - bytes_there + 1);
        if (IsAtomic(wr->opcode)) wr->remote_offset &= ~7u;
      }
      return "another region's rkey";
    case 10:
      if (!IsAtomic(wr->opcode) && wr->opcode != IBV_WR_ATOMIC_WRITE) return nullptr;
      wr->remote_offset += random_.Between(1, 7);
      return "alignment";
    case 11: {
      const Id window = AnyOf(model_.mws, 1 - qp.side);
      if (wr->remote == 0 || window == 0) return nullptr;
      const Mw& mw = model_.mws.at(window);
      wr->remote = window;
      wr->key_age = random_.Percent(60) ? mw.keys - mw.live_key : random_.Below(mw.keys);
      if ((mw.access & IBV_ACCESS_ZERO_BASED) == 0 && mw.length != 0) {
        const uint32_t bytes = std::min(bytes_there, mw.length);
        wr->remote_offset = mw.offset + random_.Below(mw.length - bytes + 1);
        if (IsAtomic(wr->opcode)) wr->remote_offset &= ~7u;
      }
      return "a window's key, of some age";
    }
    case 12:
      if (!is_inline || wr->sges.empty()) return nullptr;
      wr->sges.resize(1);
      wr->sges[0].offset = 0;
      wr->sges[0].length = qp.cap.max_inline_data + 1;
      return "too much inline";
    case 13:
      if (wr->opcode != IBV_WR_RDMA_READ && !IsAtomic(wr->opcode)) return nullptr;
      wr->flags |= IBV_SEND_INLINE;
      return "inline of what is not sent";
    case 14:
      if (qp.type == IBV_QPT_RC) return nullptr;
      wr->opcode = qp.type == IBV_QPT_UD ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
      return "an operation of other services";
    case 15:
      if (wr->opcode != kWrFlush) return nullptr;
      wr->flush_type = static_cast<uint8_t>(random_.Below(5));
      if (random_.Percent(20)) wr->flush_level = static_cast<uint8_t>(random_.Below(4));
      return "type or level, perhaps";
    case 16:
    case 17: {
      if (is_inline || IsAtomic(wr->opcode) || wr->opcode == kWrFlush) return nullptr;
      for (Sge& sge : wr->sges) {
        sge.length = 0;
        sge.key_flip = 1u << random_.Below(8);
      }
      wr->remote_flip = 1u << random_.Below(8);
      wr->remote_offset += kArenaBytes;
      return "no bytes, of wrong keys";
    }
    case 18: {
      if (is_inline || IsAtomic(wr->opcode) || wr->sges.size() >= qp.cap.max_send_sge) {
        return nullptr;
      }
      wr->sges.insert(wr->sges.begin(), {AnyOf(model_.mrs, qp.side), 64, 0, 1});
      return "an SGE of no bytes with a wrong key";
    }
    default:
      if (qp.type != IBV_QPT_UD) return nullptr;
      if (random_.Percent(50)) {
        wr->qkey ^= 0x10;
        return "Q_Key";
      }
      if (const Id other = AnyOf(model_.ahs, 1 - qp.side); other != 0 && random_.Percent(30)) {
        wr->ah = other;
        return "another context's AH";
      }
      wr->ah = AnyOf(model_.ahs, qp.side);
      return "some AH";
  }
}

// Requests of several QPs under way at the same time.
bool Generator::Together() {
  std::vector<Id> ready;
  for (const auto& [id, qp] : model_.qps) {
    auto peer = model_.qps.find(qp.peer);
    if (qp.type == IBV_QPT_UD || qp.state != IBV_QPS_RTS || peer == model_.qps.end()) continue;
    if (peer->second.Receives()) ready.push_back(id);
  }
  for (Id id : ready) {
    Qp& peer = model_.qps.at(model_.qps.at(id).peer);
    if (model_.ReceivesOf(peer).size() < 3) Receives(peer, 3);
  }
  uint32_t posted = 0;
  for (int i = 0; i < 6 && !ready.empty(); ++i) {
    posted += Sends(model_.qps.at(random_.Of(ready)), true);
  }
  if (posted == 0) return false;
  program_.back().with_next = false;
  model_.EndTogether();
  return true;
}

bool Generator::Sends(Qp& qp, bool with_next) {
  Step step = New(Op::kPostSend, qp.side);
  step.id = qp.id;
  const Qp copy = qp;  // Add() may be called while drawing
  step.is_extended = copy.is_extended && random_.Percent(50);
  const uint32_t count = random_.Percent(50) ? 1 : random_.Between(2, 6);
  const uint32_t spoiled = random_.Percent(30) ? random_.Below(count) : count;
  for (uint32_t i = 0; i < count; ++i) {
    Wr wr;
    if (!DrawSend(copy, step.is_extended, &wr)) continue;
    if (i == spoiled) {
      const Wr good = wr;
      const char* what = Spoil(copy, &wr);
      if (what != nullptr) {
        step.wrong = std::string(what) + " of " + std::to_string(wr.wr_id);
      } else {
        wr = good;
      }
    }
    step.wrs.push_back(wr);
    const bool writes = wr.opcode == IBV_WR_RDMA_WRITE || wr.opcode == IBV_WR_ATOMIC_WRITE;
    if (step.is_extended && writes && copy.type == IBV_QPT_RC && random_.Percent(40)) {
      step.wrs.push_back(DrawFlushOf(wr));
    }
  }
  if (step.wrs.empty()) return false;
  step.with_next = with_next;
  step.wrs.back().flags |= IBV_SEND_SIGNALED;  // tells when all of it is done
  if (step.is_extended) {
    step.is_aborted = random_.Percent(5);
    if (Add(step)) return true;
    step.is_extended = step.is_aborted = false;
  }
  return Add(step);
}

bool Generator::Receives(Qp& qp, uint32_t count) {
  const bool is_srq = qp.srq != 0;
  Step step = New(is_srq ? Op::kPostSrqRecv : Op::kPostRecv, qp.side);
  step.id = is_srq ? qp.srq : qp.id;
  const uint32_t max_sge = is_srq ? model_.srqs.at(qp.srq).max_sge : qp.cap.max_recv_sge;
  for (uint32_t i = 0; i < count; ++i) {
    Wr wr;
    wr.wr_id = NewWrId(true);
    const uint32_t length = random_.Percent(80) ? random_.Between(256, 6000) : SomeLength();
    if (!DrawSges(qp, length, IBV_ACCESS_LOCAL_WRITE, max_sge, &wr.sges)) return false;
    if (!wr.sges.empty() && random_.Percent(4)) {
      wr.sges[0].key_flip = 1u << random_.Below(8);
      step.wrong = "lkey of " + std::to_string(wr.wr_id);
    } else if (wr.sges.size() < max_sge && random_.Percent(4)) {
      wr.sges.insert(wr.sges.begin(), {AnyOf(model_.mrs, qp.side), 64, 0, 1});
      step.wrong = "an SGE of no bytes with a wrong lkey in " + std::to_string(wr.wr_id);
    } else if (random_.Percent(2) && !wr.sges.empty()) {
      while (wr.sges.size() <= max_sge) wr.sges.push_back(wr.sges[0]);
      step.wrong = "too many SGEs in " + std::to_string(wr.wr_id);
    }
    step.wrs.push_back(wr);
  }
  return Add(step);
}

// Up to one more than there is room for.
bool Generator::FullQueue(const Qp& qp) {
  const bool receives = random_.Percent(50);
  if (receives && qp.srq != 0) return false;
  Step step = New(receives ? Op::kPostRecv : Op::kPostSend, qp.side);
  step.id = qp.id;
  const uint32_t room = receives ? qp.cap.max_recv_wr - static_cast<uint32_t>(qp.receives.size())
                                 : qp.cap.max_send_wr - static_cast<uint32_t>(qp.sends.size());
  for (uint32_t i = 0; i < room + random_.Below(2); ++i) {
    Wr wr;
    wr.wr_id = NewWrId(receives);
    wr.opcode = qp.type == IBV_QPT_UD ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
    wr.flags = IBV_SEND_SIGNALED;
    if (qp.type == IBV_QPT_UD) {
      wr.ah = OfPd(model_.ahs, qp.side, qp.pd);
      if (wr.ah == 0) return false;
      wr.remote_qp = model_.ahs.at(wr.ah).to_self ? qp.id : qp.peer;
      wr.qkey = kQKey;
    }
    step.wrs.push_back(wr);
  }
  if (step.wrs.empty()) return false;
  step.wrong = "as many as there is room for, or one more";
  return Add(step);
}

// Something with memory windows: make, bind, invalidate from here or there.
bool Generator::Window() {
  const int side = static_cast<int>(random_.Below(2));
  std::vector<Id> able;
  for (const auto& [id, qp] : model_.qps) {
    if (qp.side == side && qp.type != IBV_QPT_UD && qp.state == IBV_QPS_RTS) able.push_back(id);
  }
  if (able.empty()) return false;
  const Qp qp = model_.qps.at(random_.Of(able));
  Id window = random_.Percent(85) ? OfPd(model_.mws, side, qp.pd) : AnyOf(model_.mws, side);
  if (window == 0 || random_.Percent(20)) {
    Step step = New(Op::kAllocMw, side);
    step.pd = qp.pd;
    step.mw_type = random_.Percent(60) ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1;
    Add(step);
    window = step.id;
  }
  const Mw& mw = model_.mws.at(window);
  Wr wr;
  wr.wr_id = NewWrId(false);
  wr.flags = IBV_SEND_SIGNALED;
  const bool invalidates = mw.is_bound && random_.Percent(50);
  if (invalidates || random_.Percent(5)) {
    // Mostly by the right QP, and with the right key.
    auto bound = model_.qps.find(mw.qp);
    const Qp* by = bound != model_.qps.end() && random_.Percent(85) ? &bound->second : &qp;
    const bool remotely = by->type == IBV_QPT_RC && random_.Percent(50);
    wr.remote = window;
    wr.key_age =
        random_.Percent(90) && mw.is_bound ? mw.keys - mw.live_key : random_.Below(mw.keys);
    if (remotely) {
      const Id sender = by->peer;
      if (model_.qps.find(sender) == model_.qps.end()) return false;
      Receives(model_.qps.at(by->id), 1);
      by = &model_.qps.at(sender);
    }
    wr.opcode = remotely ? IBV_WR_SEND_WITH_INV : IBV_WR_LOCAL_INV;
    Step step = New(Op::kPostSend, by->side);
    step.id = by->id;
    step.wrs.push_back(wr);
    return Add(step);
  }
  std::vector<Id> regions;
  for (const auto& [id, mr] : model_.mrs) {
    if ((mr.side != side && !random_.Percent(3)) || mr.length < 64) continue;
    const bool fits = (mr.access & IBV_ACCESS_MW_BIND) != 0 &&
                      model_.Protection(mr.pd) == model_.Protection(qp.pd);
    for (int weight = fits ? 8 : 1; weight > 0; --weight) regions.push_back(id);
  }
  if (regions.empty()) return false;
  wr.bind_mr = random_.Of(regions);
  const Mr& mr = model_.mrs.at(wr.bind_mr);
  wr.bind_length = random_.Between(1, mr.length);
  wr.bind_offset = mr.offset + random_.Below(mr.length - wr.bind_length + 1);
  if (random_.Percent(5)) wr.bind_length = mr.offset + mr.length - wr.bind_offset + 1;
  wr.bind_access = random_.Below(8) << 1;
  if (random_.Percent(30)) wr.bind_access |= kAccessFlushGlobal;
  if (mw.type == IBV_MW_TYPE_2 && random_.Percent(20)) wr.bind_access |= IBV_ACCESS_ZERO_BASED;
  Step step = New(mw.type == IBV_MW_TYPE_2 ? Op::kPostSend : Op::kBindMw, side);
  if (step.op == Op::kPostSend) {
    step.id = qp.id;
    wr.opcode = IBV_WR_BIND_MW;
    wr.mw = window;
  } else {
    step.id = window;
    step.qp = qp.id;
    step.mr = wr.bind_mr;
    wr.opcode = IBV_WR_BIND_MW;
  }
  step.wrs.push_back(wr);
  return Add(step);
}

// From here or there; what it was is of no more use, so seldom of what everything uses.
bool Generator::InvalidateRegion() {
  const int side = static_cast<int>(random_.Below(2));
  Id region = AnyOf(model_.mrs, side);
  if (random_.Percent(70)) region = std::max(region, AnyOf(model_.mrs, side));
  std::vector<Id> able;
  for (const auto& [id, qp] : model_.qps) {
    if (qp.side == side && qp.type != IBV_QPT_UD && qp.state == IBV_QPS_RTS) able.push_back(id);
  }
  if (able.empty() || region == 0) return false;
  const Qp qp = model_.qps.at(random_.Of(able));
  const bool remotely = qp.type == IBV_QPT_RC && random_.Percent(50);
  if (remotely && model_.qps.count(qp.peer) == 0) return false;
  if (remotely) Receives(model_.qps.at(qp.id), 1);
  Wr wr;
  wr.wr_id = NewWrId(false);
  wr.flags = IBV_SEND_SIGNALED;
  wr.opcode = remotely ? IBV_WR_SEND_WITH_INV : IBV_WR_LOCAL_INV;
  wr.remote = region;
  if (random_.Percent(5)) wr.remote_flip = 1u << random_.Below(8);
  Step step = New(Op::kPostSend, remotely ? 1 - side : side);
  step.id = remotely ? qp.peer : qp.id;
  step.wrs.push_back(wr);
  return Add(step);
}

}  // namespace verbena::programs
