#include "transport/rc/rc_workload.h"

#include <algorithm>
#include <cstring>

namespace verbena::transport::rc {

using shm::WcOpcode;
using shm::WrOpcode;

RcWorkload::RcWorkload(uint64_t seed, const RcPairOptions& pair_options,
                       const WorkloadOptions& options)
    : options_(options), random_(seed ^ 0x5eed), pair_(pair_options) {
  const uint32_t bytes = options.wqes_per_side * (options.message_bytes_max + 8) + 8;
  for (uint32_t i : {RcPair::kA, RcPair::kB}) {
    Side& side = sides_[i];
    side.source = pair_.NewPattern(options.message_bytes_max, i + 1);
    side.area = pair_.NewRegion(kAreaBytes);
    side.result = pair_.NewRegion(bytes);
    side.inbox = pair_.NewRegion(bytes);
    side.area_model.resize(kAreaBytes);
    side.result_model.resize(bytes);
    side.inbox_model.resize(bytes);
  }
  for (uint32_t i : {RcPair::kA, RcPair::kB}) MakeWork(i);
}

// --- making work, and executing it in the model
// ----------------------------------------------------

void RcWorkload::MakeWork(uint32_t side) {
  for (uint64_t id = 0; id < options_.wqes_per_side; ++id) {
    switch (random_.Below(10)) {
      case 0:
      case 1:
        AddWrite(side, id, false);
        break;
      case 2:
        AddWrite(side, id, true);
        break;
      case 3:
      case 4:
        AddRead(side, id);
        break;
      case 5:
        AddAtomic(side, id);
        break;
      case 6:
        AddAtomicWrite(side, id);
        break;
      case 7:
        AddFlush(side, id);
        break;
      default:
        AddSend(side, id);
        break;
    }
  }
}

std::vector<shm::Sge> RcWorkload::RandomSges(MemoryId region, uint32_t offset, uint32_t length) {
  uint32_t first = length == 0 ? 0 : random_.Below(length + 1);
  if (first == 0 || first == length) return {pair_.memory.SgeOf(region, offset, length)};
  return {pair_.memory.SgeOf(region, offset, first),
          pair_.memory.SgeOf(region, offset + first, length - first)};
}

void RcWorkload::Push(uint32_t side, SendWork work) {
  const bool signaled = random_.Chance(700);
  work.wqe.flags = signaled ? shm::kSendSignaled : 0;
  Side& s = sides_[side];
  const auto opcode = static_cast<WrOpcode>(work.wqe.opcode);
  const bool reads = opcode == WrOpcode::kRdmaRead;
  // A WRITE or atomic may overtake a READ whose response was lost: programs put a fence between.
  if (!reads && s.has_read_since_fence) {
    work.wqe.flags |= shm::kSendFence;
    s.has_read_since_fence = false;
  }
  s.has_read_since_fence = s.has_read_since_fence || reads;
  if (signaled) s.expected_sends.push_back(work.wqe.wr_id);
  to_post_[side].push_back(work);
}

void RcWorkload::AddWrite(uint32_t side, uint64_t wr_id, bool with_imm) {
  Side& s = sides_[side];
  const uint32_t length = random_.Below(options_.message_bytes_max);
  const uint32_t first = kAtomicWords * 8;
  const uint32_t to = first + random_.Below(kAreaBytes - first - length);
  const uint32_t from = random_.Below(options_.message_bytes_max - length + 1);
  SendWork work = pair_.Remote(
      RcPair::Work(wr_id, with_imm ? WrOpcode::kRdmaWriteWithImm : WrOpcode::kRdmaWrite,
                   RandomSges(s.source, from, length)),
      s.area, to);
  work.wqe.imm_or_rkey = static_cast<uint32_t>(wr_id) * 7;
  auto& source = pair_.memory.region(s.source).bytes;
  std::copy_n(source.begin() + from, length, s.area_model.begin() + to);
  if (with_imm) {
    // It takes a receive and leaves its buffer alone.
    ExpectReceive(1 - side, length, work.wqe.imm_or_rkey, shm::kWcGrh | shm::kWcWithImm,
                  WcOpcode::kRecvRdmaWithImm);
  }
  Push(side, work);
}

void RcWorkload::AddRead(uint32_t side, uint64_t wr_id) {
  Side& s = sides_[side];
  const uint32_t length = random_.Below(options_.message_bytes_max);
  const uint32_t from = random_.Below(kAreaBytes - length);
  std::copy_n(s.area_model.begin() + from, length, s.result_model.begin() + s.result_used);
  Push(side, pair_.Remote(RcPair::Work(wr_id, WrOpcode::kRdmaRead,
                                       RandomSges(s.result, s.result_used, length)),
                          s.area, from));
  s.result_used += length;
}

void RcWorkload::AddAtomic(uint32_t side, uint64_t wr_id) {
  Side& s = sides_[side];
  const uint32_t at = random_.Below(kAtomicWords) * 8;
  uint64_t word;
  std::memcpy(&word, s.area_model.data() + at, 8);
  const bool swap = random_.Chance(400);
  SendWork work = pair_.Remote(
      RcPair::Work(wr_id, swap ? WrOpcode::kAtomicCmpAndSwp : WrOpcode::kAtomicFetchAndAdd,
                   {pair_.memory.SgeOf(s.result, s.result_used, 8)}),
      s.area, at);
  std::memcpy(s.result_model.data() + s.result_used, &word, 8);
  s.result_used += 8;
  if (swap) {
    work.wqe.atomic.compare_add = random_.Chance(700) ? word : word + 1;
    work.wqe.atomic.swap = random_.Next();
    if (work.wqe.atomic.compare_add == word) word = work.wqe.atomic.swap;
  } else {
    work.wqe.atomic.compare_add = random_.Below(1000) + 1;
    word += work.wqe.atomic.compare_add;
  }
  std::memcpy(s.area_model.data() + at, &word, 8);
  Push(side, work);
}

void RcWorkload::AddAtomicWrite(uint32_t side, uint64_t wr_id) {
  Side& s = sides_[side];
  const uint32_t at = random_.Below(kAtomicWords) * 8;
  SendWork work = pair_.Remote(RcPair::Work(wr_id, WrOpcode::kAtomicWrite, {}), s.area, at);
  work.wqe.atomic.compare_add = random_.Next();
  std::memcpy(s.area_model.data() + at, &work.wqe.atomic.compare_add, 8);
  Push(side, work);
}

void RcWorkload::AddFlush(uint32_t side, uint64_t wr_id) {
  const uint32_t length = random_.Below(options_.message_bytes_max);
  const uint32_t at = random_.Below(kAreaBytes - length);
  SendWork work = pair_.Remote(RcPair::Work(wr_id, WrOpcode::kFlush, {}), sides_[side].area, at);
  work.wqe.flush = {length, flush::kGlobal, random_.Chance(300) ? flush::kMr : flush::kRange};
  Push(side, work);
}

void RcWorkload::AddSend(uint32_t side, uint64_t wr_id) {
  Side& s = sides_[side];
  const uint32_t length = random_.Below(options_.message_bytes_max);
  const bool with_imm = random_.Chance(500);
  SendWork work = RcPair::Work(wr_id, with_imm ? WrOpcode::kSendWithImm : WrOpcode::kSend,
                               RandomSges(s.source, 0, length));
  work.wqe.imm_or_rkey = static_cast<uint32_t>(wr_id) * 11;
  Side& peer = sides_[1 - side];
  auto& source = pair_.memory.region(s.source).bytes;
  std::copy_n(source.begin(), length,
              peer.inbox_model.begin() + peer.receives_needed * options_.message_bytes_max);
  ExpectReceive(1 - side, length, with_imm ? work.wqe.imm_or_rkey : 0,
                with_imm ? shm::kWcGrh | shm::kWcWithImm : shm::kWcGrh, WcOpcode::kRecv);
  Push(side, work);
}

void RcWorkload::ExpectReceive(uint32_t side, uint32_t bytes, uint32_t imm, uint16_t flags,
                               WcOpcode opcode) {
  sim::SimCompletion wc;
  wc.wr_id = sides_[side].receives_needed++;
  wc.byte_len = bytes;
  wc.imm_or_rkey = imm;
  wc.wc_flags = flags;
  wc.opcode = opcode;
  sides_[side].expected_receives.push_back(wc);
}

// --- running
// ---------------------------------------------------------------------------------------

// Posts some of the sends left, and a few receives ahead of need.
void RcWorkload::PostSome(uint32_t side) {
  Side& s = sides_[side];
  while (s.receives_posted < s.receives_needed &&
         s.receives_posted < s.receives.size() + options_.receives_ahead_max &&
         random_.Chance(100)) {
    const uint32_t slot = s.receives_posted++;
    pair_.PostRecv(
        side, slot,
        RandomSges(s.inbox, slot * options_.message_bytes_max, options_.message_bytes_max));
  }
  if (to_post_[side].empty() || !random_.Chance(300)) return;
  for (uint32_t n = 1 + random_.Below(6); n != 0 && !to_post_[side].empty(); --n) {
    pair_.Queue(side, to_post_[side].front());
    to_post_[side].pop_front();
  }
  pair_.Ring(side);
}

void RcWorkload::CollectCompletions(uint32_t side) {
  auto& all = pair_.fabric.completions(side);
  for (const sim::SimCompletion& wc : all) {
    (wc.is_send ? sides_[side].sends : sides_[side].receives).push_back(wc);
  }
  all.clear();
}

std::string RcWorkload::Run(Duration faulty_time) {
  const Instant quiet = Instant{0} + faulty_time;
  const Instant limit = quiet + Seconds(120);
  bool is_quiet = false;
  for (uint64_t steps = 0;; ++steps) {
    if (steps == sim::SimFabric::kStepsMax) return "the network goes round in circles";
    for (uint32_t side : {RcPair::kA, RcPair::kB}) PostSome(side);
    bool any = pair_.fabric.Step();
    for (uint32_t side : {RcPair::kA, RcPair::kB}) CollectCompletions(side);
    if (!is_quiet && pair_.fabric.now() > quiet) {
      is_quiet = true;
      pair_.fabric.set_options(sim::SimOptions{});
    }
    if (pair_.fabric.now() > limit) return "work is left long after the faults stopped";
    bool all_posted = to_post_[0].empty() && to_post_[1].empty() &&
                      sides_[0].receives_posted == sides_[0].receives_needed &&
                      sides_[1].receives_posted == sides_[1].receives_needed;
    if (!any && all_posted) break;
  }
  for (uint32_t side : {RcPair::kA, RcPair::kB}) {
    std::string wrong = Judge(side);
    if (!wrong.empty()) return "side " + std::to_string(side) + ": " + wrong;
  }
  return "";
}

std::string RcWorkload::Judge(uint32_t side) {
  Side& s = sides_[side];
  if (s.sends.size() != s.expected_sends.size()) {
    return std::to_string(s.sends.size()) + " send completions of " +
           std::to_string(s.expected_sends.size());
  }
  for (size_t i = 0; i < s.sends.size(); ++i) {
    if (s.sends[i].wr_id != s.expected_sends[i]) return "send completions out of order";
    if (s.sends[i].status != WcStatus::kSuccess) {
      return "send " + std::to_string(s.sends[i].wr_id) + " " + StatusName(s.sends[i].status);
    }
  }
  if (s.receives.size() != s.expected_receives.size()) return "receives missing or too many";
  for (size_t i = 0; i < s.receives.size(); ++i) {
    const sim::SimCompletion& got = s.receives[i];
    const sim::SimCompletion& expected = s.expected_receives[i];
    if (got.wr_id != expected.wr_id || got.byte_len != expected.byte_len ||
        got.status != WcStatus::kSuccess || got.wc_flags != expected.wc_flags ||
        got.opcode != expected.opcode ||
        ((got.wc_flags & shm::kWcWithImm) != 0 && got.imm_or_rkey != expected.imm_or_rkey)) {
      return "receive " + std::to_string(i) + " is not what was sent";
    }
  }
  if (pair_.memory.region(s.area).bytes != s.area_model) return "remote memory differs";
  if (pair_.memory.region(s.result).bytes != s.result_model) return "READ or atomic results differ";
  if (pair_.memory.region(s.inbox).bytes != s.inbox_model) return "received bytes differ";
  if (pair_.hosts[side]->sends_released != options_.wqes_per_side) return "send slots not released";
  if (pair_.hosts[side]->recvs_released != s.receives_needed) return "receive slots not released";
  if (pair_.qps[side]->state() != QpState::kRts) return "not in RTS";
  if (!pair_.fabric.events(side).empty()) return "an event nobody caused";
  return "";
}

std::string RcWorkload::Outcome() {
  std::string text;
  for (const Side& side : sides_) {
    for (const auto* list : {&side.sends, &side.receives}) {
      for (const sim::SimCompletion& wc : *list) {
        text += std::to_string(wc.wr_id) + ':' + StatusName(wc.status) + ':' +
                std::to_string(wc.byte_len) + ':' + std::to_string(wc.imm_or_rkey) + ' ';
      }
      text += '\n';
    }
  }
  return text;
}

}  // namespace verbena::transport::rc
