// A fault plan decides what happens to packets; a fault tap does it.
//
// The same packets in the same order, at the same times, with the same seed give the same
// decisions: every rule draws from a generator of its own, so that one rule's luck is not
// another's.
//
// Thread: the shard's, plan and taps alike. One plan serves the taps of all NICs.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/port/tap/fault_rules.h"
#include "transport/port/tap/held_packets.h"
#include "transport/port/tap/tap_port.h"

namespace verbena::transport::tap {

// The QP that a packet of a connected service comes from: headers name the destination only.
// Zero: not known, and then src_qp rules don't match.
using SourceQp = std::function<Qpn(const wire::PacketAddress&, const Pdu&, bool is_sent)>;

// What rules look at.
struct FaultSubject {
  std::string_view nic;
  Direction direction = Direction::kOut;
  const wire::PacketAddress* address = nullptr;
  const Pdu* pdu = nullptr;     // nullptr: no RoCEv2 packet Verbena knows
  uint32_t finished_bytes = 0;  // BTH to ICRC
  const SourceQp* source_qp = nullptr;
};

struct FaultVerdict {
  bool drop = false;
  uint32_t copies = 0;  // besides the packet itself
  int32_t corrupt_bit = -1;
  Instant due;                // later than now: to be held so long …
  uint32_t hold_packets = 0;  // … or, if not 0, until so many others have passed
  std::string note;           // empty: nothing is to be done
};

class FaultPlan {
 public:
  // `seed`, if given (--seed), wins over the rule file's.
  explicit FaultPlan(std::optional<uint64_t> seed = std::nullopt) : given_seed_(seed) {}

  // Replaces all rules: counts start from zero, and `after`, `until` from `now`. What a tap already
  // holds back comes when it is due.
  void SetRules(FaultRules rules, Instant now);
  bool has_rules() const { return !rules_.empty(); }
  // Whether Judge wants to see a decoded PDU.
  bool needs_pdu() const { return needs_pdu_; }
  uint64_t seed() const { return seed_; }

  FaultVerdict Judge(Instant now, const FaultSubject& subject);

  struct RuleState {
    FaultRule rule;
    uint64_t matches = 0;  // packets that the rule's match describes
    uint64_t firings = 0;  // those something was done to
    uint64_t random = 0;
    Instant free_at;  // rate: when the last packet let through has left
  };
  const std::vector<RuleState>& rules() const { return rules_; }
  // A packet was lost because a tap held too much back already. Counts from SetRules on.
  void OnOverflow() { ++overflow_drops_; }
  uint64_t overflow_drops() const { return overflow_drops_; }
  // A line per rule with its counts, the seed, and what was lost for want of room. Empty: no rules.
  std::string Report() const;
  // A line for each rule that never fired: the run did not test what it was meant to.
  std::vector<std::string> UnfiredRules() const;

 private:
  bool Matches(const RuleState& state, Instant now, const FaultSubject& subject) const;
  static bool IsTurn(RuleState* state);
  static bool Apply(RuleState* state, Instant now, const FaultSubject& subject,
                    FaultVerdict* verdict);

  std::optional<uint64_t> given_seed_;
  uint64_t seed_ = 0;
  Instant start_;
  bool needs_pdu_ = false;
  std::vector<RuleState> rules_;
  uint64_t overflow_drops_ = 0;
};

inline constexpr uint64_t kHeldBytesMax = 32u << 20;

struct FaultTapOptions {
  std::string nic;
  FaultNotes* notes = nullptr;  // a capture tap directly below, or nullptr
  SourceQp source_qp;
  uint64_t held_bytes_max = kHeldBytesMax;  // per direction; more is dropped, and counted
};

class FaultTap : public TapPort {
 public:
  FaultTap(PacketPort* inner, FaultPlan* plan, FaultTapOptions options);

  bool Send(Instant now, const OutPacket& packet) override;
  void Flush(Instant now) override;
  bool Receive(Instant now, InPacket* out) override;
  // Not of packets held back: theirs say nothing about what comes next.
  void LearnIpId(const InPacket& packet, uint16_t ip_id) override;
  // When the earliest held packet is due; a received one until Receive has given it.
  Instant PollTimeout() const override;
  void OnTimeout(Instant now) override;
  bool PrepareToSleep() override;

  // Puts it over another port, with a capture in between or no more; what it holds it keeps.
  void MoveOver(PacketPort* inner, FaultNotes* notes);

  uint64_t held_packets() const { return held_out_.size() + held_in_.size(); }

 private:
  FaultVerdict JudgeSent(Instant now, const OutPacket& packet);
  FaultVerdict JudgeReceived(const InPacket& packet);
  void Emit(Instant now, const OutPacket& packet, const std::string& note);
  void EmitHeld(Instant now, HeldPacket packet);
  void Lose(Instant now, const OutPacket& packet, const std::string& note);
  void HoldReceived(const InPacket& packet, const FaultVerdict& verdict);
  bool DrainRefused(Instant now);
  void ReleaseDue(Instant now);

  FaultPlan* plan_;
  FaultTapOptions options_;
  HeldPackets held_out_;
  HeldPackets held_in_;
  // Packets that the inner port had no room for after they were judged: the caller must not have
  // them judged again. Non-empty: nothing else is taken.
  std::deque<HeldPacket> refused_;
  HeldPacket current_;  // what Receive gave last, if it was held or changed
  Instant last_now_;
  bool has_unflushed_ = false;
  // Sent packets come without their ICRC, which Decode counts on.
  std::array<std::byte, wire::kPacketBytesMax> decode_room_{};
};

}  // namespace verbena::transport::tap
