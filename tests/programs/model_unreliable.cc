// Work of UC and UD, of which no peer tells what became of it.
#include <algorithm>

#include "tests/programs/model.h"

namespace verbena::programs {

// Nobody answers: what the peer does not want is lost (IBTA 9.8.2.2).
Model::Verdict Model::ExecuteUc(Qp& qp, const Work& work) {
  const Wr& wr = work.wr;
  const uint32_t length = LengthOf(wr.sges);
  const uint32_t psns = PsnsOf(length, qp.attr.path_mtu);
  qp.next_psn = (qp.next_psn + psns) & kPsnMask;
  auto found = qps.find(qp.peer);
  auto lost = [&] {
    out_.is_silent = true;
    return CompleteSend(qp);
  };
  if (found == qps.end() || !found->second.Receives()) return lost();
  Qp& peer = found->second;
  if (qp.attr.path_mtu != peer.attr.path_mtu) Open();
  Establish(peer, false);
  peer.epsn = qp.next_psn;
  const bool is_send = IsSend(wr.opcode);
  const bool takes_receive = is_send || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  Range remote;
  if (!is_send) {
    if ((peer.attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) return lost();
    if (length != 0 && !Resolve(peer, work, length, IBV_ACCESS_REMOTE_WRITE, &remote))
      return lost();
  }
  std::deque<Wr>& receives = ReceivesOf(peer);
  if (takes_receive && receives.empty()) {
    if (!is_send && length != 0) {
      Touch(remote, true);
      out_.unknown.push_back(remote);
    }
    return lost();
  }
  if (takes_receive && Overlap(receives.front().sges, peer.side)) Open();
  if (is_send) {
    const Fit fit = Judge(peer, receives.front(), length);
    if (fit == Fit::kUnclear) Open();
    if (fit != Fit::kFits) {
      Forget(peer.side, receives.front().sges);
      FailReceive(peer, {fit == Fit::kTooShort ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR});
      GoError(peer);
      return lost();
    }
  } else if (takes_receive && Judge(peer, receives.front(), 1) == Fit::kBadKey) {
    Open();
  }
  const std::vector<uint8_t> data = Gather(qp, work);
  if (is_send) {
    Scatter(peer.side, receives.front().sges, data);
  } else if (length != 0) {
    Write(remote, data.data());
  }
  if (takes_receive) CompleteReceive(peer, qp, work, length);
  return CompleteSend(qp);
}

// IBTA C10-14: of another PD; what the completion says is left open. docs/errors.md: another
// context's is one of another PD.
bool Model::MaySendBy(const Qp& qp, Id ah) const {
  auto found = ahs.find(ah);
  return found != ahs.end() && found->second.side == qp.side &&
         Protection(found->second.pd) == Protection(qp.pd);
}

Model::Verdict Model::ExecuteUd(Qp& qp, const Work& work) {
  const Wr& wr = work.wr;
  auto ah = ahs.find(wr.ah);
  if (ah == ahs.end()) {
    Open();
    return Verdict::kFailed;
  }
  if (!MaySendBy(qp, wr.ah)) {
    return FailSend(qp, {IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_EEC_OP_ERR});
  }
  qp.next_psn = (qp.next_psn + 1) & kPsnMask;
  // What an earlier one of them brings to this side may come before or after it is read.
  CheckHazards(work, qp.side, {});
  if ((wr.flags & IBV_SEND_INLINE) == 0) {
    for (const Sge& sge : wr.sges) sent_from_.push_back(Place(qp.side, sge));
  }
  const int to_side = ah->second.to_self ? qp.side : 1 - qp.side;
  auto takes = [&](const Qp& other) {
    return other.Receives() && other.type == IBV_QPT_UD && other.attr.qkey == wr.qkey;
  };
  // By different ways one may overtake the other.
  (ah->second.to_group ? sent_to_group_ : sent_to_one_) = true;
  if (sent_to_group_ && sent_to_one_) Open();
  if (ah->second.to_group) {
    if (qp.in_group) Open();  // whether it hears itself
    std::vector<const Srq*> seen;
    for (auto& [id, other] : qps) {
      if (!other.in_group || !takes(other)) continue;
      Deliver(qp, other, work);
      // Of several receivers of one SRQ nobody knows who takes which.
      const Srq* srq = other.srq != 0 ? &srqs.at(other.srq) : nullptr;
      if (srq != nullptr && std::find(seen.begin(), seen.end(), srq) != seen.end()) Open();
      seen.push_back(srq);
    }
    out_.is_silent = true;
    return CompleteSend(qp);
  }
  auto found = qps.find(wr.remote_qp);
  // A number is of its NIC: on the other one it may be nobody's, or somebody's.
  if (found != qps.end() && found->second.side != to_side) Open();
  if (found == qps.end() || found->second.side != to_side || !takes(found->second)) {
    out_.is_silent = true;
  } else {
    Deliver(qp, found->second, work);
  }
  return CompleteSend(qp);
}

// A datagram at one that it is for.
void Model::Deliver(Qp& qp, Qp& peer, const Work& work) {
  const Wr& wr = work.wr;
  std::deque<Wr>& receives = ReceivesOf(peer);
  if (receives.empty()) {
    out_.is_silent = true;
    return;
  }
  const uint32_t length = LengthOf(wr.sges);
  const Fit fit = Judge(peer, receives.front(), length + kGrhBytes);
  if (fit == Fit::kUnclear || Overlap(receives.front().sges, peer.side)) Open();
  if (fit != Fit::kFits) {
    if (peer.id == qp.id) return Open();  // it fails while it sends
    Forget(peer.side, receives.front().sges);
    FailReceive(peer, {fit == Fit::kTooShort ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR});
    GoError(peer);
    out_.is_silent = true;
    return;
  }
  std::vector<uint8_t> data = Gather(qp, work);
  data.insert(data.begin(), kGrhBytes, 0);
  if (peer.side == qp.side) {
    for (const Range& from : sent_from_) {
      for (const Sge& to : receives.front().sges) {
        if (from.length != 0 && from.Meets(Place(qp.side, to))) Open();
      }
    }
  }
  // Of two receivers nobody knows who gets its bytes first.
  for (const Sge& to : receives.front().sges) {
    const Range range = Place(peer.side, to);
    for (const auto& [other, place] : delivered_) {
      if (other != peer.id && range.length != 0 && range.Meets(place)) Open();
    }
    delivered_.push_back({peer.id, range});
  }
  Scatter(peer.side, receives.front().sges, data);
  // The 40 bytes in front: what of a GRH an IPv4 header leaves is undefined.
  uint32_t left = kGrhBytes;
  for (const Sge& sge : receives.front().sges) {
    const uint32_t bytes = std::min(left, sge.length);
    Range range = Place(peer.side, sge);
    range.length = std::min(range.length, bytes);
    out_.unknown.push_back(range);
    left -= bytes;
  }
  // When it arrives only its receive tells: what comes behind it may be sent before.
  if (peer.side == qp.side) {
    for (const Sge& to : receives.front().sges) {
      under_way_.push_back({qp.id, Place(qp.side, to)});
    }
  }
  CompleteReceive(peer, qp, work, length + kGrhBytes);
}

}  // namespace verbena::programs
