#include "tests/programs/check.h"

#include <algorithm>
#include <cstring>

namespace verbena::programs {
namespace {

std::string Error(int error) {
  return error == 0 ? "0" : error == -1 ? "NULL without errno" : std::string(strerror(error));
}

std::string EventText(ibv_event_type type, Id object) {
  return std::string("event '") + ibv_event_type_str(type) + "' of " + std::to_string(object);
}

}  // namespace

std::string ToString(const Completion& c) {
  std::string text = "completion of qp" + std::to_string(c.qp) +
                     (c.is_receive ? " receive" : " send") + " wr_id " + std::to_string(c.wr_id);
  for (size_t i = 0; i < c.statuses.size(); ++i) {
    text += (i == 0 ? " " : " or ") + std::string(ibv_wc_status_str(c.statuses[i]));
  }
  return text;
}

std::string ToString(const SeenCompletion& seen) {
  return "completion of qp" + std::to_string(seen.qp) + " in cq" + std::to_string(seen.cq) +
         " wr_id " + std::to_string(seen.wc.wr_id) + " " + ibv_wc_status_str(seen.wc.status) +
         ", vendor_err " + std::to_string(seen.wc.vendor_err);
}

void Due::Add(const Outcome& outcome) {
  for (const Completion& completion : outcome.completions) {
    completions_[{completion.cq, completion.qp, completion.is_receive}].push_back(completion);
  }
  for (const Event& event : outcome.events) events_[event.object].push_back(event);
  for (Id cq : outcome.cq_events) ++cq_events_[cq];
}

void Due::Forget(Id object) {
  events_.erase(object);
  for (auto it = completions_.begin(); it != completions_.end();) {
    it = it->first.qp == object ? completions_.erase(it) : std::next(it);
  }
}

std::string Due::Take(const SeenCompletion& seen, const Executor& executor) {
  // wr_ids of receives are odd.
  const Stream stream = {seen.cq, seen.qp, seen.wc.wr_id % 2 == 1};
  auto found = completions_.find(stream);
  if (found == completions_.end() || found->second.empty()) return "unexpected: " + ToString(seen);
  const Completion due = found->second.front();
  found->second.pop_front();
  auto wrong = [&](const std::string& what) {
    return what + ": expected " + ToString(due) + ", came " + ToString(seen);
  };
  if (seen.wc.wr_id != due.wr_id) return wrong("order");
  if (std::find(due.statuses.begin(), due.statuses.end(), seen.wc.status) == due.statuses.end()) {
    return wrong("status");
  }
  if (seen.wc.status != IBV_WC_SUCCESS) return "";
  if (seen.wc.opcode != due.opcode) {
    return wrong("opcode " + std::to_string(seen.wc.opcode) + ", not " +
                 std::to_string(due.opcode));
  }
  if (!due.is_receive) return "";
  if (seen.wc.byte_len != due.byte_len) {
    return wrong("byte_len " + std::to_string(seen.wc.byte_len) + ", not " +
                 std::to_string(due.byte_len));
  }
  // ibv_poll_cq(3): GRH is valid for UD only.
  const unsigned flags =
      IBV_WC_WITH_IMM | IBV_WC_WITH_INV | (due.src_qp != 0 ? unsigned{IBV_WC_GRH} : 0u);
  if ((seen.wc.wc_flags & flags) != due.flags) return wrong("wc_flags");
  if ((due.flags & IBV_WC_WITH_IMM) != 0 && seen.wc.imm_data != due.imm) return wrong("imm_data");
  if (due.src_qp != 0 && seen.wc.src_qp != executor.QpnOf(due.src_qp)) return wrong("src_qp");
  if (due.invalidated != 0 && !executor.HadKey(due.invalidated, seen.wc.invalidated_rkey)) {
    return wrong("invalidated_rkey");
  }
  return "";
}

std::string Due::Take(const SeenEvent& seen) {
  std::deque<Event>& due = events_[seen.object];
  // Those that may be missing are passed over.
  while (!due.empty() && due.front().type != seen.type && due.front().may_be_missing)
    due.pop_front();
  if (due.empty()) return "unexpected: " + EventText(seen.type, seen.object);
  const Event event = due.front();
  due.pop_front();
  if (event.type == seen.type) return "";
  return "expected " + EventText(event.type, event.object) + ", came " +
         EventText(seen.type, seen.object);
}

std::string Due::TakeCqEvent(Id cq) {
  return --cq_events_[cq] >= 0 ? "" : "unexpected: channel event of cq" + std::to_string(cq);
}

bool Due::IsEmpty() const {
  for (const auto& [cq, count] : cq_events_) {
    if (count > 0) return false;
  }
  for (const auto& [stream, due] : completions_) {
    if (!due.empty()) return false;
  }
  for (const auto& [object, due] : events_) {
    for (const Event& event : due) {
      if (!event.may_be_missing) return false;
    }
  }
  return true;
}

std::string Due::Missing() const {
  for (const auto& [cq, count] : cq_events_) {
    if (count > 0) return "did not come: channel event of cq" + std::to_string(cq);
  }
  for (const auto& [stream, due] : completions_) {
    if (!due.empty()) return "did not come: " + ToString(due.front());
  }
  for (const auto& [object, due] : events_) {
    for (const Event& event : due) {
      if (!event.may_be_missing) return "did not come: " + EventText(event.type, object);
    }
  }
  return "";
}

std::string CheckCall(const Step& step, const Outcome& outcome, const Actual& actual,
                      const Model& model) {
  if (outcome.any_error) return actual.error != 0 ? "" : "expected an error, returned 0";
  if (actual.error != outcome.error) {
    return "expected " + Error(outcome.error) + ", returned " + Error(actual.error);
  }
  if (actual.bad_index != outcome.bad_index) {
    return "expected bad_wr " + std::to_string(outcome.bad_index) + ", is " +
           std::to_string(actual.bad_index);
  }
  if (actual.error != 0) return "";
  switch (step.op) {
    case Op::kQueryQp:
      return CheckQuery(step, actual, model);
    case Op::kQuerySrq: {
      const Srq& srq = model.srqs.at(step.id);
      return actual.srq.max_wr == srq.max_wr && actual.srq.max_sge >= srq.max_sge &&
                     actual.srq.srq_limit == srq.limit
                 ? ""
                 : "the SRQ's attributes: max_wr " + std::to_string(actual.srq.max_wr) +
                       ", srq_limit " + std::to_string(actual.srq.srq_limit);
    }
    case Op::kCreateCq:
    case Op::kResizeCq:
    case Op::kCreateSrq:
      return actual.entries >= step.entries ? "" : "less than was asked for";
    case Op::kModifySrq:
      return (step.mask & IBV_SRQ_MAX_WR) == 0 || actual.entries >= step.entries
                 ? ""
                 : "less than was asked for";
    case Op::kCreateQp: {
      const ibv_qp_cap &got = actual.cap, &asked = step.cap;
      const bool has_rq = step.srq == 0;
      return got.max_send_wr >= asked.max_send_wr && got.max_send_sge >= asked.max_send_sge &&
                     got.max_inline_data >= asked.max_inline_data &&
                     (!has_rq || (got.max_recv_wr >= asked.max_recv_wr &&
                                  got.max_recv_sge >= asked.max_recv_sge))
                 ? ""
                 : "less than was asked for";
    }
    default:
      return "";
  }
}

// ibv_query_qp(3): what was set, and the PSNs where it is known how many packets there were.
std::string CheckQuery(const Step& step, const Actual& actual, const Model& model) {
  const Qp& qp = model.qps.at(step.id);
  const ibv_qp_attr& got = actual.attr;
  std::string text;
  auto check = [&text](const char* what, uint64_t is, uint64_t due) {
    if (is == due || !text.empty()) return;
    text = std::string(what) + " is " + std::to_string(is) + ", not " + std::to_string(due);
  };
  check("qp_state", got.qp_state, qp.state);
  check("cur_qp_state", got.cur_qp_state, qp.state);
  check("max_send_wr", got.cap.max_send_wr, qp.cap.max_send_wr);
  check("max_send_sge", got.cap.max_send_sge, qp.cap.max_send_sge);
  check("max_inline_data", got.cap.max_inline_data, qp.cap.max_inline_data);
  check("qp_type", actual.init.qp_type, qp.type);
  check("sq_sig_all", static_cast<uint64_t>(actual.init.sq_sig_all), qp.sq_sig_all);
  const bool was_rtr =
      qp.state == IBV_QPS_RTR || qp.state == IBV_QPS_RTS || qp.state == IBV_QPS_SQD;
  const bool was_rts = was_rtr && qp.state != IBV_QPS_RTR;
  const bool is_connected = qp.type != IBV_QPT_UD;
  const bool is_rc = qp.type == IBV_QPT_RC;
  if (qp.state == IBV_QPS_RESET || qp.state == IBV_QPS_ERR || qp.state == IBV_QPS_SQE) return text;
  check("port_num", got.port_num, 1);
  if (is_connected) check("qp_access_flags", got.qp_access_flags, qp.attr.qp_access_flags);
  if (!is_connected) check("qkey", got.qkey, qp.attr.qkey);
  if (was_rtr && is_connected) {
    check("path_mtu", got.path_mtu, qp.attr.path_mtu);
    check("is_global", got.ah_attr.is_global, 1);
  }
  if (was_rtr && is_rc) {
    check("rq_psn", got.rq_psn, qp.epsn);
    check("min_rnr_timer", got.min_rnr_timer, qp.attr.min_rnr_timer);
    check("max_dest_rd_atomic", got.max_dest_rd_atomic, qp.attr.max_dest_rd_atomic);
  }
  if (qp.state == IBV_QPS_SQD && is_rc) check("sq_draining", got.sq_draining, qp.is_draining);
  if (was_rts && is_rc) {
    if (qp.sends.empty()) check("sq_psn", got.sq_psn, qp.next_psn);
    check("timeout", got.timeout, qp.attr.timeout);
    check("retry_cnt", got.retry_cnt, qp.attr.retry_cnt);
    check("rnr_retry", got.rnr_retry, qp.attr.rnr_retry);
    check("max_rd_atomic", got.max_rd_atomic, qp.attr.max_rd_atomic);
  }
  return text;
}

}  // namespace verbena::programs
