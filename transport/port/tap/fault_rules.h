// Fault rules: which packets something is done to, and what. docs/faults.md is their reference.
//
// One rule a line, `ACTION key=value…`, so that a rule can also stand on a command line, a file can
// have comments, and an error has a line number.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/instant.h"
#include "core/base/types.h"
#include "transport/pdu.h"

namespace verbena::transport::tap {

enum class FaultAction : uint8_t { kDrop, kDuplicate, kReorder, kDelay, kCorrupt, kRate };
enum class Direction : uint8_t { kIn, kOut };

// Sets of opcodes: those named, and what an ACKNOWLEDGE says (AETH), which opcodes don't tell.
struct OpcodeSet {
  uint32_t opcodes = 0;  // bit 1 << opcode
  bool acks = false;
  bool naks = false;
  bool rnr_naks = false;

  bool IsAny() const { return opcodes == 0 && !acks && !naks && !rnr_naks; }
  bool Has(const Pdu& pdu) const;
};

inline constexpr uint32_t kAnyQpn = ~0u;
inline constexpr uint32_t kMillion = 1'000'000;

struct FaultMatch {
  std::string nic;  // empty: all
  bool in = true;
  bool out = true;
  OpcodeSet opcodes;
  uint8_t services = 0;    // bit 1 << Service; 0: all
  uint32_t qpn = kAnyQpn;  // source or destination
  uint32_t source_qpn = kAnyQpn;
  uint32_t dest_qpn = kAnyQpn;
  bool has_peer = false;
  Gid peer;
  Duration after{0};                 // since the rules began to hold
  Instant until = Instant::Never();  // likewise
};

// Which of the matching packets it fires for.
struct FaultSchedule {
  uint64_t nth = 1;                 // the first one, counted from 1
  uint64_t every = 1;               // from then on every so-manieth
  uint64_t repeat = 0;              // at most so often; 0: without end
  uint32_t per_million = kMillion;  // of these, by chance
};

struct FaultRule {
  uint32_t line = 0;
  std::string text;
  std::string name;  // empty: "rule N"
  FaultAction action = FaultAction::kDrop;
  FaultMatch match;
  FaultSchedule schedule;

  uint32_t copies = 1;               // duplicate
  uint32_t by_packets = 0;           // reorder: until so many others have passed,
  Duration hold{0};                  // … or so long; delay: so long
  Duration jitter{0};                // delay: up to so much longer
  int32_t bit = -1;                  // corrupt; -1: any that the ICRC covers
  uint64_t bytes_per_second = 0;     // rate
  uint64_t queue_bytes = 64 * 1024;  // rate: more than that waiting is dropped
};

struct FaultRules {
  std::vector<FaultRule> rules;
  bool has_seed = false;
  uint64_t seed = 0;
};

inline constexpr uint32_t kRulesMax = 256;
inline constexpr uint32_t kRuleBytesMax = 1000;
inline constexpr uint32_t kCopiesMax = 16;
inline constexpr uint32_t kReorderPacketsMax = 1000;

// False: `error` has the line and says what is allowed.
bool ParseFaultRules(std::string_view text, FaultRules* out, std::string* error);

const char* NameOf(FaultAction action);

}  // namespace verbena::transport::tap
