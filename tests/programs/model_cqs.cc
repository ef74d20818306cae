// CQs that nobody polls, until they overrun.
#include <algorithm>

#include "tests/programs/model.h"

namespace verbena::programs {

bool Model::IsDead(Id cq) const {
  auto found = cqs.find(cq);
  return found != cqs.end() && found->second.is_dead;
}

// Whether completions of the QP may wait where nobody polls.
bool Model::IsHeld(const Qp& qp) const {
  for (Id id : {qp.send_cq, qp.recv_cq}) {
    auto cq = cqs.find(id);
    if (cq != cqs.end() && cq->second.is_held && !cq->second.is_dead) return true;
  }
  return false;
}

void Model::ApplyHold(const Step& step) {
  auto found = cqs.find(step.id);
  if (found == cqs.end() || found->second.side != step.side) return Open();
  Cq& cq = found->second;
  if (cq.is_dead || cq.armed != Cq::kQuiet) return Open();
  if (step.op == Op::kHoldCq) {
    cq.is_held = true;
    return;
  }
  cq.is_held = false;
  out_.completions = std::move(cq.backlog);
  cq.backlog.clear();
}

// Puts aside what is not polled. True: a CQ overran, and there may be more to come.
bool Model::HoldCompletions() {
  for (auto& [id, cq] : cqs) {
    if (!cq.is_held) continue;
    std::vector<Completion> held, others;
    for (Completion& completion : out_.completions) {
      (completion.cq == id ? held : others).push_back(std::move(completion));
    }
    out_.completions = std::move(others);
    if (cq.is_dead || held.empty()) continue;
    out_.is_silent = true;  // nobody sees them come
    for (const Completion& completion : held) {
      // What fails may take its time; and the order of two queues nobody knows.
      if (completion.statuses.front() != IBV_WC_SUCCESS || completion.qp != held.front().qp ||
          completion.is_receive) {
        Open();
      }
    }
    cq.backlog.insert(cq.backlog.end(), held.begin(), held.end());
    if (cq.backlog.size() <= cq.entries) continue;
    if (cq.backlog.size() > cq.entries + 1 || goes_on_ || !touched_before_.empty()) Open();
    Overrun(id);
    return true;
  }
  return false;
}

// Of more completions than there is room for, it counts who is faster: they and who polls them.
void Model::CheckRoom() {
  for (const Completion& completion : out_.completions) {
    auto cq = cqs.find(completion.cq);
    if (cq != cqs.end() && ++came_before_[completion.cq] > cq->second.entries) Open();
  }
}

// IBTA 11.6.3.2: the CQ is lost, and so are its QPs.
void Model::Overrun(Id id) {
  Cq& cq = cqs.at(id);
  cq.is_dead = true;
  out_.events.push_back({IBV_EVENT_CQ_ERR, id});
  for (auto& [qp_id, qp] : qps) {
    if (qp.send_cq != id && qp.recv_cq != id) continue;
    if (qp.state != IBV_QPS_RTS || qp.srq != 0 || !qp.sends.empty()) Open();
    for (Id other : {qp.send_cq, qp.recv_cq}) {
      if (other != id && cqs.at(other).is_held) Open();
    }
    out_.events.push_back({IBV_EVENT_QP_FATAL, qp_id});
    GoError(qp);
  }
}

}  // namespace verbena::programs
