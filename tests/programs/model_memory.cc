// Keys, bytes, and receives.
#include <algorithm>

#include "tests/programs/model.h"

namespace verbena::programs {

Range Model::Place(int side, const Sge& sge) const {
  auto mr = mrs.find(sge.mr);
  if (mr == mrs.end() || mr->second.kind == Mr::kMemory) return {side, sge.offset, sge.length};
  return {side + 2, sge.offset, mr->second.kind == Mr::kNull ? 0 : sge.length};
}

std::vector<Range> Model::PlacesOf(int side, const std::vector<Sge>& sges) const {
  std::vector<Range> places;
  for (const Sge& sge : sges) places.push_back(Place(side, sge));
  return places;
}

bool Model::Overlap(const std::vector<Sge>& sges, int side) const {
  for (size_t i = 0; i < sges.size(); ++i) {
    const Range range = Place(side, sges[i]);
    for (size_t j = 0; j < i; ++j) {
      if (range.length != 0 && range.Meets(Place(side, sges[j]))) return true;
    }
  }
  return false;
}

// IBTA 10.6.3.1. Of no bytes nothing is asked.
bool Model::LocalRangesAllow(const Qp& qp, const std::vector<Sge>& sges, uint32_t access) {
  for (const Sge& sge : sges) {
    if (sge.length == 0) continue;
    auto found = mrs.find(sge.mr);
    if (found == mrs.end() || sge.key_flip != 0) return false;
    const Mr& mr = found->second;
    if (mr.is_unclear) Open();
    if (mr.is_invalidated) return false;  // IBTA 10.6.5: neither key is good
    if (mr.side != qp.side || Protection(mr.pd) != Protection(qp.pd)) return false;
    if (mr.kind == Mr::kNull) continue;  // ibv_alloc_null_mr(3): of the maximum length
    if ((mr.access & access) != access) return false;
    if (sge.offset < mr.offset || sge.offset + sge.length > mr.offset + mr.length) return false;
  }
  return true;
}

bool Model::FindTarget(const Qp& peer, const Work& work, uint32_t access, Range* whole,
                       uint32_t* base) {
  const Wr& wr = work.wr;
  *base = 0;
  if (wr.remote_flip != 0) return false;
  if (auto found = mrs.find(wr.remote); found != mrs.end()) {
    const Mr& mr = found->second;
    if (mr.is_unclear) Open();
    if (mr.is_invalidated || mr.side != peer.side) return false;
    if (Protection(mr.pd) != Protection(peer.pd) || (mr.access & access) != access) return false;
    if (mr.kind == Mr::kNull) return false;  // it has none
    *whole = {mr.kind == Mr::kDevice ? mr.side + 2 : mr.side, mr.offset, mr.length};
    if (mr.kind == Mr::kDevice) *base = mr.offset;  // ibv_reg_dm_mr(3): zero-based
    return true;
  }
  auto found = mws.find(wr.remote);
  if (found == mws.end()) return false;
  const Mw& mw = found->second;
  if (mw.side != peer.side || Protection(mw.pd) != Protection(peer.pd) || !mw.is_bound)
    return false;
  if (work.key_number != mw.live_key || (mw.access & access) != access) return false;
  if (mw.type == IBV_MW_TYPE_2 && mw.qp != peer.id) return false;  // IBTA 10.6.7.2.3
  *whole = {mw.side, mw.offset, mw.length};
  if ((mw.access & IBV_ACCESS_ZERO_BASED) != 0) *base = mw.offset;
  return true;
}

bool Model::Resolve(const Qp& peer, const Work& work, uint32_t length, uint32_t access,
                    Range* out) {
  Range whole;
  uint32_t base = 0;
  if (!FindTarget(peer, work, access, &whole, &base)) return false;
  const uint64_t start = uint64_t{base} + work.wr.remote_offset;
  if (start < whole.offset || start + length > uint64_t{whole.offset} + whole.length) return false;
  *out = {whole.side, static_cast<uint32_t>(start), length};
  return true;
}

std::vector<uint8_t> Model::Gather(const Qp& qp, const Work& work) {
  if ((work.wr.flags & IBV_SEND_INLINE) != 0) return work.inline_data;
  std::vector<uint8_t> data;
  for (const Sge& sge : work.wr.sges) {
    const Range range = Place(qp.side, sge);
    Touch(range, false);
    const uint8_t* from = memory(range.side) + range.offset;
    data.insert(data.end(), from, from + range.length);
    data.resize(data.size() + sge.length - range.length);  // of a null MR: zeros
  }
  return data;
}

void Model::Scatter(int side, const std::vector<Sge>& sges, const std::vector<uint8_t>& data) {
  uint32_t done = 0;
  for (const Sge& sge : sges) {
    const uint32_t bytes = std::min(sge.length, static_cast<uint32_t>(data.size()) - done);
    Range range = Place(side, sge);
    range.length = std::min(range.length, bytes);
    Write(range, data.data() + done);
    done += bytes;
  }
}

void Model::Write(const Range& range, const uint8_t* data) {
  if (range.length == 0) return;
  Touch(range, true);
  out_.flushed.erase(std::remove_if(out_.flushed.begin(), out_.flushed.end(),
                                    [&](const Range& other) { return range.Meets(other); }),
                     out_.flushed.end());
  // What work that waits would send is the program's to keep.
  for (const auto& [id, qp] : qps) {
    if (id == executing_) continue;
    for (const Work& work : qp.sends) {
      for (const Sge& sge : work.wr.sges) {
        if (range.Meets(Place(qp.side, sge))) Open();
      }
    }
  }
  std::copy(data, data + range.length, memory(range.side) + range.offset);
}

void Model::Forget(int side, const std::vector<Sge>& sges) {
  for (const Sge& sge : sges) {
    Touch(Place(side, sge), true);
    out_.unknown.push_back(Place(side, sge));
  }
}

// IBTA 10.8.3.3: a READ's or atomic's bytes may be under way when the next request begins, unless
// that is fenced.
void Model::CheckHazards(const Work& work, int side, const std::vector<Range>& remote) {
  auto check = [this](const Range& range) {
    for (const auto& [qp, other] : under_way_) {
      if (range.length != 0 && range.Meets(other)) Open();
    }
  };
  if ((work.wr.flags & IBV_SEND_INLINE) == 0) {
    for (const Sge& sge : work.wr.sges) check(Place(side, sge));
  }
  for (const Range& range : remote) check(range);
}

Model::Fit Model::Judge(const Qp& peer, const Wr& receive, uint32_t length) {
  const bool fits = LengthOf(receive.sges) >= length;
  if (LocalRangesAllow(peer, receive.sges, IBV_ACCESS_LOCAL_WRITE)) {
    return fits ? Fit::kFits : Fit::kTooShort;
  }
  // A key that is not needed may stay unseen, and so may bytes that nothing is written to; with two
  // faults either may be told.
  Sge first = receive.sges.front();
  first.length = std::min(first.length, length);
  const bool first_is_bad = !LocalRangesAllow(peer, {first}, IBV_ACCESS_LOCAL_WRITE);
  return fits && first_is_bad && length != 0 ? Fit::kBadKey : Fit::kUnclear;
}

void Model::CompleteReceive(Qp& peer, const Qp& from, const Work& work, uint32_t byte_len) {
  const Wr& wr = work.wr;
  Completion completion = {
      peer.id, true, peer.recv_cq, ReceivesOf(peer).front().wr_id, {IBV_WC_SUCCESS}};
  completion.opcode = IsSend(wr.opcode) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
  completion.byte_len = byte_len;
  if (HasImm(wr.opcode)) {
    completion.flags |= IBV_WC_WITH_IMM;
    completion.imm = wr.imm;
  }
  completion.is_solicited = (wr.flags & IBV_SEND_SOLICITED) != 0;
  if (wr.opcode == IBV_WR_SEND_WITH_INV) {
    completion.flags |= IBV_WC_WITH_INV;
    completion.invalidated = wr.remote;
  }
  if (peer.type == IBV_QPT_UD) {
    completion.flags |= IBV_WC_GRH;
    completion.src_qp = from.id;
  }
  out_.completions.push_back(completion);
  TakenFromSrq(peer);
}

void Model::FailReceive(Qp& peer, std::vector<ibv_wc_status> statuses) {
  out_.completions.push_back(
      {peer.id, true, peer.recv_cq, ReceivesOf(peer).front().wr_id, std::move(statuses)});
  TakenFromSrq(peer);
}

void Model::TakenFromSrq(Qp& peer) {
  ReceivesOf(peer).pop_front();
  if (peer.srq == 0) return;
  Srq& srq = srqs.at(peer.srq);
  if (srq.limit == 0 || srq.receives.size() >= srq.limit) return;
  out_.events.push_back({IBV_EVENT_SRQ_LIMIT_REACHED, peer.srq});
  srq.limit = 0;  // ibv_modify_srq(3): once
}

// IBTA 11.6.3.1, COMM_EST: of a packet that came in RTR. Whether one that is not taken counts, is
// open.
void Model::Establish(Qp& peer, bool is_sure) {
  if (peer.state != IBV_QPS_RTR || peer.type == IBV_QPT_UD || peer.established == Qp::kTold) return;
  if (peer.established == Qp::kNotYet || is_sure) {
    const bool may_have_come = peer.established == Qp::kPerhaps;
    out_.events.push_back({IBV_EVENT_COMM_EST, peer.id, !is_sure || may_have_come});
  }
  peer.established = is_sure ? Qp::kTold : Qp::kPerhaps;
}

}  // namespace verbena::programs
