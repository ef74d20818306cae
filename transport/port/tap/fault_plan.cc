#include <algorithm>

#include "transport/port/tap/faults.h"

namespace verbena::transport::tap {
namespace {

// SplitMix64: small, the same everywhere, and good enough to choose packets with.
uint64_t Draw(uint64_t* state) {
  uint64_t z = (*state += 0x9e37'79b9'7f4a'7c15u);
  z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9u;
  z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11ebu;
  return z ^ (z >> 31);
}

// 0 … bound - 1; bound at most 2^32.
uint64_t DrawBelow(uint64_t* state, uint64_t bound) { return (Draw(state) >> 32) * bound >> 32; }

std::string LabelOf(const FaultRule& rule) {
  return rule.name.empty() ? "line " + std::to_string(rule.line) : rule.name;
}

std::string TimeText(Duration time) {
  return time.ns % 1000 == 0 ? std::to_string(time.ns / 1000) + " us"
                             : std::to_string(time.ns) + " ns";
}

bool SeesPdu(const FaultMatch& match) {
  return !match.opcodes.IsAny() || match.services != 0 || match.qpn != kAnyQpn ||
         match.source_qpn != kAnyQpn || match.dest_qpn != kAnyQpn;
}

// Which QP the packet comes from, kAnyQpn if that can't be known.
uint32_t SourceOf(const FaultSubject& subject) {
  const Pdu& pdu = *subject.pdu;
  if (pdu.service == Service::kUd) return pdu.src_qpn.value;
  if (subject.source_qp == nullptr || !*subject.source_qp) return kAnyQpn;
  Qpn qpn = (*subject.source_qp)(*subject.address, pdu, subject.direction == Direction::kOut);
  return qpn.value == 0 ? kAnyQpn : qpn.value;
}

bool MatchesPdu(const FaultMatch& match, const FaultSubject& subject) {
  if (subject.pdu == nullptr) return false;
  const Pdu& pdu = *subject.pdu;
  if (!match.opcodes.Has(pdu)) return false;
  if (match.services != 0 && (match.services >> static_cast<uint32_t>(pdu.service) & 1) == 0) {
    return false;
  }
  if (match.dest_qpn != kAnyQpn && match.dest_qpn != pdu.dest_qpn.value) return false;
  if (match.source_qpn != kAnyQpn && match.source_qpn != SourceOf(subject)) return false;
  return match.qpn == kAnyQpn || match.qpn == pdu.dest_qpn.value || match.qpn == SourceOf(subject);
}

// Bit of a packet that a random corruption flips: not in BTH byte 4 (FECN, BECN, reserved), which
// the ICRC leaves out because switches change it, so that it would be no fault at all.
constexpr uint32_t kUncoveredBit = 32;
constexpr uint32_t kUncoveredBits = 8;

int32_t DrawBit(uint64_t* random, uint32_t bytes) {
  if (8 * bytes <= kUncoveredBit + kUncoveredBits) return 0;
  auto bit = static_cast<uint32_t>(DrawBelow(random, 8 * bytes - kUncoveredBits));
  return static_cast<int32_t>(bit < kUncoveredBit ? bit : bit + kUncoveredBits);
}

}  // namespace

void FaultPlan::SetRules(FaultRules rules, Instant now) {
  seed_ = given_seed_.value_or(rules.has_seed ? rules.seed : 0);
  start_ = now;
  needs_pdu_ = false;
  overflow_drops_ = 0;
  rules_.clear();
  for (FaultRule& rule : rules.rules) {
    needs_pdu_ |= SeesPdu(rule.match);
    RuleState state;
    // Neighbouring seeds and rules must not draw alike: the first draw mixes both.
    state.random = seed_ + 0x632b'e59b'd9b4'e019u * (rules_.size() + 1);
    Draw(&state.random);
    state.rule = std::move(rule);
    state.free_at = now;
    rules_.push_back(std::move(state));
  }
}

bool FaultPlan::Matches(const RuleState& state, Instant now, const FaultSubject& subject) const {
  const FaultMatch& match = state.rule.match;
  if (!(subject.direction == Direction::kIn ? match.in : match.out)) return false;
  if (!match.nic.empty() && match.nic != subject.nic) return false;
  const Duration age = now - start_;
  if (age < match.after || Instant{age.ns} >= match.until) return false;
  if (match.has_peer) {
    const wire::PacketAddress& address = *subject.address;
    if (match.peer !=
        (subject.direction == Direction::kIn ? address.source : address.destination)) {
      return false;
    }
  }
  if (state.rule.bit >= 0 && static_cast<uint32_t>(state.rule.bit) >= 8 * subject.finished_bytes) {
    return false;  // the packet has no such bit
  }
  return !SeesPdu(match) || MatchesPdu(match, subject);
}

// Counts a match and says whether the schedule picks it.
bool FaultPlan::IsTurn(RuleState* state) {
  const FaultSchedule& schedule = state->rule.schedule;
  ++state->matches;
  if (state->matches < schedule.nth) return false;
  if ((state->matches - schedule.nth) % schedule.every != 0) return false;
  if (schedule.repeat != 0 && state->firings >= schedule.repeat) return false;
  return schedule.per_million == kMillion ||
         DrawBelow(&state->random, kMillion) < schedule.per_million;
}

// False: the rule's turn, but there was nothing to do (a rate that is not exceeded).
bool FaultPlan::Apply(RuleState* state, Instant now, const FaultSubject& subject,
                      FaultVerdict* verdict) {
  const FaultRule& rule = state->rule;
  std::string did;
  switch (rule.action) {
    case FaultAction::kDrop:
      verdict->drop = true;
      did = "dropped";
      break;
    case FaultAction::kDuplicate:
      verdict->copies = std::min(verdict->copies + rule.copies, kCopiesMax);
      did = "duplicated " + std::to_string(rule.copies) + " times";
      break;
    case FaultAction::kReorder:
      verdict->hold_packets = std::max(verdict->hold_packets, rule.by_packets);
      verdict->due = std::max(verdict->due, now + rule.hold);
      did = rule.by_packets != 0 ? "held back for " + std::to_string(rule.by_packets) + " packets"
                                 : "held back for " + TimeText(rule.hold);
      break;
    case FaultAction::kDelay: {
      // In steps of nanoseconds, coarser where one draw can't reach them all (above 4 s).
      const auto steps = static_cast<uint64_t>(rule.jitter.ns);
      const uint64_t unit = steps / 0xffff'ffffu + 1;
      const auto extra = static_cast<int64_t>(DrawBelow(&state->random, steps / unit + 1) * unit);
      const Duration delay = rule.hold + Nanoseconds(extra);
      verdict->due = verdict->due + delay;
      did = "delayed " + TimeText(delay);
      break;
    }
    case FaultAction::kCorrupt:
      // One bit per packet: the first rule's.
      if (verdict->corrupt_bit >= 0) return false;
      verdict->corrupt_bit =
          rule.bit >= 0 ? rule.bit : DrawBit(&state->random, subject.finished_bytes);
      did = "bit " + std::to_string(verdict->corrupt_bit) + " flipped";
      break;
    case FaultAction::kRate: {
      const uint64_t bytes = subject.finished_bytes + 8 + (subject.address->IsIpv4() ? 20 : 40);
      const Instant leaves = std::max(now, state->free_at);
      const Duration wait = leaves - now;
      // Both products fit: queue_bytes and rate are at most 10^9.
      if (wait.ns >
          static_cast<int64_t>(rule.queue_bytes * 1'000'000'000 / rule.bytes_per_second)) {
        verdict->drop = true;
        did = "dropped by a full queue";
        break;
      }
      state->free_at =
          leaves + Nanoseconds(static_cast<int64_t>(bytes * 1'000'000'000 / rule.bytes_per_second));
      if (wait.ns == 0) return false;
      verdict->due = std::max(verdict->due, leaves);
      did = "queued " + TimeText(wait);
      break;
    }
  }
  verdict->note += (verdict->note.empty() ? "fault: " : ", ") + did + " (" + LabelOf(rule) + ")";
  return true;
}

FaultVerdict FaultPlan::Judge(Instant now, const FaultSubject& subject) {
  FaultVerdict verdict;
  verdict.due = now;
  for (RuleState& state : rules_) {
    if (!Matches(state, now, subject) || !IsTurn(&state)) continue;
    if (Apply(&state, now, subject, &verdict)) ++state.firings;
    if (verdict.drop) break;  // there is no packet for the rules below
  }
  return verdict;
}

std::string FaultPlan::Report() const {
  if (rules_.empty()) return "";
  std::string text = "seed " + std::to_string(seed_) + "\n";
  for (const RuleState& state : rules_) {
    text += "line " + std::to_string(state.rule.line) + ": " + state.rule.text + ": matched " +
            std::to_string(state.matches) + ", fired " + std::to_string(state.firings) + "\n";
  }
  if (overflow_drops_ != 0) {
    text += std::to_string(overflow_drops_) + " packets lost, as too many were held back\n";
  }
  return text;
}

std::vector<std::string> FaultPlan::UnfiredRules() const {
  std::vector<std::string> unfired;
  for (const RuleState& state : rules_) {
    if (state.firings != 0) continue;
    unfired.push_back("line " + std::to_string(state.rule.line) + ": " + state.rule.text +
                      ": never fired (" + std::to_string(state.matches) + " packets matched)");
  }
  return unfired;
}

}  // namespace verbena::transport::tap
