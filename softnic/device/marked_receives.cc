#include "softnic/device/marked_receives.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"

namespace verbena::softnic {
namespace {

constexpr uint32_t kAnybody = 0;

// What of `sges` lies behind the first `offset` bytes. Returns how many elements that is.
uint32_t Skip(const std::vector<shm::Sge>& sges, uint64_t offset, shm::Sge* out) {
  uint32_t count = 0;
  for (const shm::Sge& sge : sges) {
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const auto skipped = static_cast<uint32_t>(offset);
    out[count++] = {sge.addr + skipped, sge.length - skipped, sge.lkey};
    offset = 0;
  }
  return count;
}

}  // namespace

bool MarkedReceives::Add(const transport::RecvWork& work) {
  if (work.num_sge == 0) return false;
  shm::RecvMark mark;
  std::memcpy(&mark, &work.sge[0], sizeof(mark));
  const bool is_directed = (mark.flags & shm::kRecvDirected) != 0;
  if ((mark.flags & ~shm::kRecvKnown) != 0 || is_directed != (mark.source != kAnybody))
    return false;
  const uint64_t ticket = next_ticket_++;
  Receive& receive = receives_[ticket];
  receive.wr_id = work.wr_id;
  receive.flags = mark.flags;
  receive.min_free_bytes = std::max(mark.min_free_bytes, 1u);
  receive.source = mark.source;
  receive.sges.assign(work.sge + 1, work.sge + work.num_sge);
  for (const shm::Sge& sge : receive.sges) receive.total_bytes += sge.length;
  by_wr_id_.emplace(receive.wr_id, ticket);
  Offer(ticket, receive);
  return true;
}

void MarkedReceives::Offer(uint64_t ticket, const Receive& receive) {
  available_[receive.source].insert(ticket);
}

void MarkedReceives::Withdraw(uint64_t ticket, const Receive& receive) {
  auto found = available_.find(receive.source);
  if (found == available_.end()) return;
  found->second.erase(ticket);
  if (found->second.empty()) available_.erase(found);
}

uint64_t MarkedReceives::Find(uint32_t source) const {
  uint64_t first = kNoTicket;
  for (uint32_t wanted : {kAnybody, source}) {
    auto found = available_.find(wanted);
    if (found == available_.end()) continue;
    const uint64_t ticket = *found->second.begin();
    if (first == kNoTicket || ticket < first) first = ticket;
  }
  return first;
}

HeldReceive MarkedReceives::Take(uint64_t ticket, transport::RecvWork* out) {
  Receive& receive = receives_.at(ticket);
  VERBENA_CHECK(!receive.is_busy && !receive.is_spent);
  ++receive.unfinished;
  if (receive.IsMulti()) {
    receive.is_busy = true;
  } else {
    Withdraw(ticket, receive);
  }
  out->wr_id = receive.wr_id;
  out->ticket = next_part_;
  out->offset_bytes = static_cast<uint32_t>(receive.used_bytes);
  out->num_sge = Skip(receive.sges, receive.used_bytes, out->sge);
  return {next_part_++, ticket, receive.used_bytes, 0, false};
}

void MarkedReceives::Settle(HeldReceive* held, uint64_t bytes) {
  Receive& receive = receives_.at(held->ticket);
  held->is_settled = true;
  if (!receive.IsMulti()) return;
  VERBENA_CHECK(receive.is_busy && bytes <= receive.total_bytes - receive.used_bytes);
  held->taken_bytes = bytes;
  receive.is_busy = false;
  receive.used_bytes += bytes;
  // Cqe.recv_offset_bytes has 32 bits.
  const bool is_full = receive.total_bytes - receive.used_bytes < receive.min_free_bytes ||
                       receive.used_bytes > UINT32_MAX;
  if (is_full) Spend(held->ticket, &receive);
}

bool MarkedReceives::Reopen(HeldReceive* held) {
  Receive& receive = receives_.at(held->ticket);
  if (!held->is_settled) return true;
  if (!receive.IsMulti()) {
    held->is_settled = false;
    return true;
  }
  const bool is_last = receive.used_bytes == held->offset_bytes + held->taken_bytes;
  if (!is_last || receive.is_busy) return false;
  receive.used_bytes = held->offset_bytes;
  receive.is_busy = true;
  held->is_settled = false;
  if (std::exchange(receive.is_spent, false)) Offer(held->ticket, receive);
  return true;
}

void MarkedReceives::Spend(uint64_t ticket, Receive* receive) {
  if (receive->is_spent) return;
  receive->is_spent = true;
  Withdraw(ticket, *receive);
}

MarkedReceives::After MarkedReceives::Finish(const HeldReceive& held, bool has_failed) {
  Receive& receive = receives_.at(held.ticket);
  --receive.unfinished;
  ++receive.finished;
  if (!held.is_settled) receive.is_busy = false;
  // Where one message could not be written, the next can't be either.
  if (has_failed || !receive.IsMulti()) Spend(held.ticket, &receive);
  return EndIfDone(held.ticket, receive);
}

MarkedReceives::After MarkedReceives::Return(const HeldReceive& held) {
  Receive& receive = receives_.at(held.ticket);
  --receive.unfinished;
  if (!receive.IsMulti()) {
    Offer(held.ticket, receive);
    return After::kStays;
  }
  if (!held.is_settled) {
    receive.is_busy = false;
  } else if (!receive.is_busy && receive.used_bytes == held.offset_bytes + held.taken_bytes) {
    receive.used_bytes = held.offset_bytes;
    // Room for one more; of a receive that was cancelled or can't be written, too: the next message
    // ends it as this one would have.
    if (std::exchange(receive.is_spent, false)) Offer(held.ticket, receive);
  }
  return EndIfDone(held.ticket, receive);
}

MarkedReceives::After MarkedReceives::EndIfDone(uint64_t ticket, const Receive& receive) {
  if (!receive.is_spent || receive.unfinished != 0) return After::kStays;
  Erase(ticket, receive);
  return After::kReleased;
}

void MarkedReceives::Erase(uint64_t ticket, const Receive& receive) {
  Withdraw(ticket, receive);
  by_wr_id_.erase({receive.wr_id, ticket});
  receives_.erase(ticket);
}

MarkedReceives::Cancelled MarkedReceives::Cancel(uint64_t wr_id) {
  for (auto it = by_wr_id_.lower_bound({wr_id, 0}); it != by_wr_id_.end() && it->first == wr_id;
       ++it) {
    const uint64_t ticket = it->second;
    Receive& receive = receives_.at(ticket);
    if (receive.unfinished != 0) {
      // The last message under way ends it.
      if (receive.IsMulti() && !receive.is_busy) Spend(ticket, &receive);
      continue;
    }
    const uint32_t messages = receive.finished;
    Erase(ticket, receive);
    return {true, messages};
  }
  return {};
}

}  // namespace verbena::softnic
