// What has come: completions, in either way of polling, and events.
#include <poll.h>

#include <cerrno>

#include "tests/programs/executor.h"

namespace verbena::programs {
namespace {

template <typename Map, typename Pointer>
Id IdOf(const Map& map, Pointer object) {
  for (const auto& [id, other] : map) {
    if (other == object) return id;
  }
  return 0;
}

}  // namespace

SeenCompletion Executor::Seen(Id cq, const ibv_wc& wc) const {
  SeenCompletion seen;
  seen.cq = cq;
  seen.wc = wc;
  for (const auto& [id, qp] : qps_) {
    const ibv_cq* of = cqs_.at(cq);
    if (qp->qp_num == wc.qp_num && (qp->send_cq == of || qp->recv_cq == of)) seen.qp = id;
  }
  return seen;
}

void Executor::PollCq(Id id, ibv_cq* cq, std::vector<SeenCompletion>* completions) {
  ibv_wc wcs[3] = {};
  for (int n = 3; n == 3;) {
    n = ibv_poll_cq(cq, 3, wcs);
    for (int i = 0; i < n; ++i) completions->push_back(Seen(id, wcs[i]));
  }
}

// ibv_create_cq_ex(3). What goes wrong with the calls themselves is told as a completion that
// nobody expects.
void Executor::PollExtended(Id id, ibv_cq_ex* cq, std::vector<SeenCompletion>* completions) {
  ibv_poll_cq_attr attr = {};
  int error = ibv_start_poll(cq, &attr);
  if (error == ENOENT) return;
  const bool has_begun = error == 0;
  for (; error == 0; error = ibv_next_poll(cq)) {
    ibv_wc wc = {};
    wc.wr_id = cq->wr_id;
    wc.status = cq->status;
    wc.qp_num = ibv_wc_read_qp_num(cq);
    wc.vendor_err = ibv_wc_read_vendor_err(cq);
    const bool has_time =
        ibv_wc_read_completion_ts(cq) != 0 && ibv_wc_read_completion_wallclock_ns(cq) != 0;
    if (!has_time) wc.wr_id = ~uint64_t{0};
    if (wc.status == IBV_WC_SUCCESS) {
      wc.opcode = ibv_wc_read_opcode(cq);
      wc.wc_flags = ibv_wc_read_wc_flags(cq);
      wc.byte_len = ibv_wc_read_byte_len(cq);
      wc.src_qp = ibv_wc_read_src_qp(cq);
      if ((wc.wc_flags & IBV_WC_WITH_INV) != 0) {
        wc.invalidated_rkey = ibv_wc_read_invalidated_rkey(cq);
      } else {
        wc.imm_data = ibv_wc_read_imm_data(cq);
      }
    }
    completions->push_back(Seen(id, wc));
  }
  if (has_begun) ibv_end_poll(cq);
  if (error == ENOENT) return;
  SeenCompletion wrong;
  wrong.cq = id;
  wrong.wc.status = IBV_WC_GENERAL_ERR;
  wrong.wc.vendor_err = static_cast<uint32_t>(error);
  completions->push_back(wrong);
}

void Executor::Poll(std::vector<SeenCompletion>* completions, std::vector<SeenEvent>* events,
                    std::vector<Id>* cq_events) {
  ++polls_;
  for (const auto& [id, cq] : cqs_) {
    if (held_.count(id) != 0) continue;
    auto extended = extended_cqs_.find(id);
    if (extended != extended_cqs_.end() && (polls_ + id) % 2 == 0) {
      PollExtended(id, extended->second, completions);
    } else {
      PollCq(id, cq, completions);
    }
  }
  for (const Side& s : sides_) {
    pollfd channel = {s.channel->fd, POLLIN, 0};
    while (poll(&channel, 1, 0) == 1) {
      ibv_cq* cq = nullptr;
      void* cq_context = nullptr;
      if (ibv_get_cq_event(s.channel, &cq, &cq_context) != 0) break;
      ibv_ack_cq_events(cq, 1);
      cq_events->push_back(IdOf(cqs_, cq));
    }
    pollfd fd = {s.context->async_fd, POLLIN, 0};
    while (poll(&fd, 1, 0) == 1) {
      ibv_async_event event = {};
      if (ibv_get_async_event(s.context, &event) != 0) break;
      SeenEvent seen;
      seen.type = event.event_type;
      if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED ||
          event.event_type == IBV_EVENT_SRQ_ERR) {
        seen.object = IdOf(srqs_, event.element.srq);
      } else if (event.event_type == IBV_EVENT_CQ_ERR) {
        seen.object = IdOf(cqs_, event.element.cq);
      } else {
        seen.object = IdOf(qps_, event.element.qp);
      }
      ibv_ack_async_event(&event);
      events->push_back(seen);
    }
  }
}

}  // namespace verbena::programs
