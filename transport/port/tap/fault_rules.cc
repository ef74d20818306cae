#include "transport/port/tap/fault_rules.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>

namespace verbena::transport::tap {
namespace {

constexpr std::array<const char*, 6> kActionNames = {"drop",  "duplicate", "reorder",
                                                     "delay", "corrupt",   "rate"};
constexpr const char* kMatchKeys =
    "name, nic, dir, opcode, service, qp, src_qp, dest_qp, peer, nth, every, repeat, percent, "
    "after, until";
// What each action takes besides; in the order of FaultAction.
constexpr std::array<const char*, 6> kActionKeys = {
    "", "copies", "packets, for", "for, jitter", "bit", "bytes_per_s, queue"};

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string ToLower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), Lower);
  return lower;
}

std::string Quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

// Unsigned number: decimal, or hexadecimal with 0x. False also for what does not fit.
bool ParseNumber(std::string_view text, uint64_t* out) {
  uint32_t base = 10;
  if (text.size() > 2 && text[0] == '0' && Lower(text[1]) == 'x') {
    base = 16;
    text.remove_prefix(2);
  }
  if (text.empty()) return false;
  uint64_t value = 0;
  for (char raw : text) {
    char c = Lower(raw);
    uint32_t digit = 99;
    if (c >= '0' && c <= '9') digit = static_cast<uint32_t>(c - '0');
    if (c >= 'a' && c <= 'f') digit = static_cast<uint32_t>(c - 'a' + 10);
    if (digit >= base) return false;
    if (value > (std::numeric_limits<uint64_t>::max() - digit) / base) return false;
    value = value * base + digit;
  }
  *out = value;
  return true;
}

// "12.5" with up to `decimals` digits behind the point, as a whole number of 10^-decimals.
bool ParseFixed(std::string_view text, uint32_t decimals, uint64_t* out) {
  size_t point = text.find('.');
  std::string_view whole = text.substr(0, point);
  std::string_view rest = point == std::string_view::npos ? "" : text.substr(point + 1);
  if (rest.size() > decimals || (point != std::string_view::npos && rest.empty())) return false;
  if (whole.empty() || whole.size() > 9) return false;
  std::string digits(whole);
  digits.append(rest).append(decimals - rest.size(), '0');
  if (digits.find_first_not_of("0123456789") != std::string::npos) return false;
  return ParseNumber(digits, out);
}

struct Unit {
  const char* name;
  uint64_t factor;
};
constexpr std::array<Unit, 4> kTimeUnits = {
    {{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}}};
constexpr std::array<Unit, 4> kByteUnits = {
    {{"", 1}, {"k", 1'000}, {"m", 1'000'000}, {"g", 1'000'000'000}}};

template <size_t N>
bool ParseWithUnit(std::string_view text, const std::array<Unit, N>& units, uint64_t* out) {
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  uint64_t value = 0;
  if (digits > 9 || !ParseNumber(text.substr(0, digits), &value)) return false;
  std::string unit = ToLower(text.substr(digits));
  for (const Unit& known : units) {
    if (unit == known.name) {
      *out = value * known.factor;
      return true;
    }
  }
  return false;
}

bool ParseDuration(std::string_view text, Duration* out) {
  uint64_t ns = 0;
  if (!ParseWithUnit(text, kTimeUnits, &ns) || ns > 3'600'000'000'000) return false;
  *out = Nanoseconds(static_cast<int64_t>(ns));
  return true;
}

bool ParseAddress(std::string_view text, Gid* out) {
  std::string name(text);
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, name.c_str(), &v4) == 1) {
    *out = Gid::FromIpv4(ntohl(v4.s_addr));
    return true;
  }
  if (inet_pton(AF_INET6, name.c_str(), &v6) != 1) return false;
  std::memcpy(out->raw.data(), &v6, out->raw.size());
  return true;
}

// Named groups of opcodes; what the opcode table knows of each.
struct OpcodeClass {
  const char* name;
  bool (*has)(const OpcodeInfo& info);
};
constexpr OpcodeClass kClasses[] = {
    {"request", [](const OpcodeInfo& i) { return i.is_request; }},
    {"response", [](const OpcodeInfo& i) { return !i.is_request; }},
    {"send", [](const OpcodeInfo& i) { return i.is_send; }},
    {"write", [](const OpcodeInfo& i) { return i.is_write; }},
    {"read_response", [](const OpcodeInfo& i) { return i.is_read_response; }},
    {"atomic", [](const OpcodeInfo& i) { return i.is_atomic && i.is_request; }},
    {"first", [](const OpcodeInfo& i) { return i.is_first && !i.is_last; }},
    {"middle", [](const OpcodeInfo& i) { return i.is_middle; }},
    {"last", [](const OpcodeInfo& i) { return i.is_last && !i.is_first; }},
    {"only", [](const OpcodeInfo& i) { return i.is_first && i.is_last; }},
};

std::string AllowedOpcodes() {
  std::string text = "ack, nak, rnr_nak";
  for (const OpcodeClass& known : kClasses) text.append(", ").append(known.name);
  for (uint32_t code = 0; code < 32; ++code) {
    const OpcodeInfo* info = LookUpOpcode(static_cast<Opcode>(code));
    if (info != nullptr) text.append(", ").append(ToLower(info->name));
  }
  return text;
}

bool AddOpcode(const std::string& name, OpcodeSet* out) {
  if (name == "ack") return out->acks = true;
  if (name == "nak") return out->naks = true;
  if (name == "rnr_nak") return out->rnr_naks = true;
  bool found = false;
  for (uint32_t code = 0; code < 32; ++code) {
    const OpcodeInfo* info = LookUpOpcode(static_cast<Opcode>(code));
    if (info == nullptr) continue;
    bool is_in = name == ToLower(info->name);
    for (const OpcodeClass& known : kClasses) is_in |= name == known.name && known.has(*info);
    if (is_in) out->opcodes |= 1u << code;
    found |= is_in;
  }
  return found;
}

// Reads one line into one rule. Each function returns false with `error_` set.
class RuleParser {
 public:
  explicit RuleParser(FaultRule* rule) : rule_(rule) {}

  bool Parse(std::string_view line) {
    std::string_view word = NextWord(&line);
    const std::string action = ToLower(word);
    auto known = std::find(kActionNames.begin(), kActionNames.end(), action);
    if (known == kActionNames.end()) {
      return Fail("no action " + Quoted(word) +
                  "; allowed: drop, duplicate, reorder, delay, corrupt, rate; and `seed NUMBER`");
    }
    rule_->action = static_cast<FaultAction>(known - kActionNames.begin());
    while (!(word = NextWord(&line)).empty()) {
      if (!ParseWord(word)) return false;
    }
    return Complete();
  }
  const std::string& error() const { return error_; }

  static std::string_view NextWord(std::string_view* line) {
    size_t begin = line->find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) return {};
    size_t end = std::min(line->find_first_of(" \t\r", begin), line->size());
    std::string_view word = line->substr(begin, end - begin);
    line->remove_prefix(end);
    return word;
  }

 private:
  bool Fail(std::string text) {
    error_ = std::move(text);
    return false;
  }
  bool BadValue(const std::string& key, std::string_view value, const std::string& allowed) {
    return Fail(key + "=" + std::string(value) + ": allowed: " + allowed);
  }

  bool ParseWord(std::string_view word) {
    size_t equals = word.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == word.size()) {
      return Fail(Quoted(word) + " is not of the form key=value");
    }
    const std::string key = ToLower(word.substr(0, equals));
    const std::string_view value = word.substr(equals + 1);
    if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) {
      return Fail(key + " is given twice");
    }
    seen_.push_back(key);
    bool is_known = false;
    bool good = ParseMatch(key, value, &is_known);
    if (!is_known) good = ParseSchedule(key, value, &is_known);
    if (!is_known) good = ParseParameter(key, value, &is_known);
    if (is_known) return good;
    const char* own = kActionKeys[static_cast<size_t>(rule_->action)];
    return Fail("no key " + Quoted(key) + " with " + NameOf(rule_->action) + "; allowed: " + own +
                (*own != 0 ? ", " : "") + kMatchKeys);
  }

  bool ParseMatch(const std::string& key, std::string_view value, bool* is_known) {
    FaultMatch& match = rule_->match;
    *is_known = true;
    if (key == "name") return (rule_->name = value, true);
    if (key == "nic") return (match.nic = value, true);
    if (key == "dir") return ParseDirection(value);
    if (key == "opcode") return ParseOpcodes(value);
    if (key == "service") return ParseServices(value);
    if (key == "qp") return ParseQpn(key, value, &match.qpn);
    if (key == "src_qp") return ParseQpn(key, value, &match.source_qpn);
    if (key == "dest_qp") return ParseQpn(key, value, &match.dest_qpn);
    if (key == "peer") {
      match.has_peer = ParseAddress(value, &match.peer);
      return match.has_peer || BadValue(key, value, "an IPv4 or IPv6 address");
    }
    if (key == "after") return ParseTime(key, value, &match.after);
    if (key == "until") {
      Duration until;
      if (!ParseTime(key, value, &until)) return false;
      match.until = Instant{until.ns};
      return true;
    }
    *is_known = false;
    return false;
  }

  bool ParseSchedule(const std::string& key, std::string_view value, bool* is_known) {
    FaultSchedule& schedule = rule_->schedule;
    *is_known = true;
    if (key == "nth") return ParseCount(key, value, 1, 1u << 31, &schedule.nth);
    if (key == "every") return ParseCount(key, value, 1, 1u << 31, &schedule.every);
    if (key == "repeat") return ParseCount(key, value, 1, 1u << 31, &schedule.repeat);
    if (key == "percent") {
      uint64_t per_million = 0;
      if (!ParseFixed(value, 4, &per_million) || per_million == 0 || per_million > kMillion) {
        return BadValue(key, value, "0.0001 to 100");
      }
      schedule.per_million = static_cast<uint32_t>(per_million);
      return true;
    }
    *is_known = false;
    return false;
  }

  bool ParseParameter(const std::string& key, std::string_view value, bool* is_known) {
    FaultRule& rule = *rule_;
    *is_known = true;
    uint64_t number = 0;
    switch (rule.action) {
      case FaultAction::kDrop:
        break;
      case FaultAction::kDuplicate:
        if (key != "copies") break;
        if (!ParseCount(key, value, 1, kCopiesMax, &number)) return false;
        rule.copies = static_cast<uint32_t>(number);
        return true;
      case FaultAction::kReorder:
        if (key == "for") return ParseTime(key, value, &rule.hold);
        if (key != "packets") break;
        if (!ParseCount(key, value, 1, kReorderPacketsMax, &number)) return false;
        rule.by_packets = static_cast<uint32_t>(number);
        return true;
      case FaultAction::kDelay:
        if (key == "for") return ParseTime(key, value, &rule.hold);
        if (key == "jitter") return ParseTime(key, value, &rule.jitter);
        break;
      case FaultAction::kCorrupt:
        if (key != "bit") break;
        if (!ParseCount(key, value, 0, 8 * 8192, &number)) return false;
        rule.bit = static_cast<int32_t>(number);
        return true;
      case FaultAction::kRate:
        if (key == "bytes_per_s") return ParseBytes(key, value, &rule.bytes_per_second);
        if (key == "queue") return ParseBytes(key, value, &rule.queue_bytes);
        break;
    }
    *is_known = false;
    return false;
  }

  // What a rule must have, and what it means to leave things out.
  bool Complete() {
    FaultRule& rule = *rule_;
    auto has = [this](const char* key) {
      return std::find(seen_.begin(), seen_.end(), key) != seen_.end();
    };
    if (rule.match.until <= Instant{rule.match.after.ns}) {
      return Fail("until is not later than after");
    }
    if (rule.action == FaultAction::kDelay && rule.hold.ns == 0 && rule.jitter.ns == 0) {
      return Fail("delay needs for=TIME or jitter=TIME, for instance delay for=5ms");
    }
    if (rule.action == FaultAction::kRate && rule.bytes_per_second == 0) {
      return Fail("rate needs bytes_per_s=NUMBER, for instance rate bytes_per_s=10M queue=64K");
    }
    if (rule.action == FaultAction::kReorder) {
      if (!has("packets") && !has("for")) rule.by_packets = 1;
      // A packet must not wait for ever for others that never come.
      if (!has("for")) rule.hold = Milliseconds(10);
    }
    // nth alone means that one packet; every alone means the first one too is `every` packets on.
    if (has("nth") && !has("every") && !has("repeat")) rule.schedule.repeat = 1;
    if (has("every") && !has("nth")) rule.schedule.nth = rule.schedule.every;
    return true;
  }

  bool ParseDirection(std::string_view value) {
    std::string name = ToLower(value);
    if (name != "in" && name != "out") return BadValue("dir", value, "in, out");
    rule_->match.in = name == "in";
    rule_->match.out = name == "out";
    return true;
  }

  bool ParseOpcodes(std::string_view value) {
    while (!value.empty()) {
      size_t comma = std::min(value.find(','), value.size());
      std::string name = ToLower(value.substr(0, comma));
      if (!AddOpcode(name, &rule_->match.opcodes)) {
        return BadValue("opcode", name, AllowedOpcodes());
      }
      value.remove_prefix(std::min(comma + 1, value.size()));
    }
    return true;
  }

  bool ParseServices(std::string_view value) {
    constexpr std::array<const char*, kServiceCount> kNames = {"rc", "uc", "ud"};
    std::string name = ToLower(value);
    for (size_t i = 0; i < kNames.size(); ++i) {
      if (name == kNames[i]) return (rule_->match.services = static_cast<uint8_t>(1u << i), true);
    }
    return BadValue("service", value, "rc, uc, ud");
  }

  bool ParseQpn(const std::string& key, std::string_view value, uint32_t* out) {
    uint64_t number = 0;
    if (!ParseNumber(value, &number) || number > 0xff'ffff) {
      return BadValue(key, value, "a QP number, 0 to 0xffffff");
    }
    *out = static_cast<uint32_t>(number);
    return true;
  }

  bool ParseCount(const std::string& key, std::string_view value, uint64_t low, uint64_t high,
                  uint64_t* out) {
    if (ParseNumber(value, out) && *out >= low && *out <= high) return true;
    return BadValue(key, value, std::to_string(low) + " to " + std::to_string(high));
  }

  bool ParseBytes(const std::string& key, std::string_view value, uint64_t* out) {
    if (ParseWithUnit(value, kByteUnits, out) && *out > 0 && *out <= 1'000'000'000) return true;
    return BadValue(key, value, "1 to 1G; K, M and G are powers of 1000");
  }

  bool ParseTime(const std::string& key, std::string_view value, Duration* out) {
    return ParseDuration(value, out) ||
           BadValue(key, value, "a time as 20us, 5ms, 3s; at most 3600s");
  }

  FaultRule* rule_;
  std::vector<std::string> seen_;
  std::string error_;
};

}  // namespace

const char* NameOf(FaultAction action) { return kActionNames[static_cast<size_t>(action)]; }

bool OpcodeSet::Has(const Pdu& pdu) const {
  if (IsAny()) return true;
  if ((opcodes >> static_cast<uint32_t>(pdu.opcode) & 1) != 0) return true;
  if (pdu.opcode != Opcode::kAcknowledge) return false;
  switch (pdu.ack_type) {
    case AckType::kAck:
      return acks;
    case AckType::kNak:
      return naks;
    case AckType::kRnrNak:
      return rnr_naks;
  }
  return false;
}

bool ParseFaultRules(std::string_view text, FaultRules* out, std::string* error) {
  FaultRules result;
  uint32_t number = 0;
  auto fail = [&](const std::string& what) {
    *error = "line " + std::to_string(number) + ": " + what;
    return false;
  };
  while (!text.empty()) {
    ++number;
    size_t newline = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(std::min(newline + 1, text.size()));
    line = line.substr(0, line.find('#'));
    size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) continue;
    line = line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
    if (line.size() > kRuleBytesMax) {
      return fail("longer than " + std::to_string(kRuleBytesMax) + " characters");
    }
    std::string_view rest = line;
    if (RuleParser::NextWord(&rest) == "seed") {
      std::string_view value = RuleParser::NextWord(&rest);
      if (!ParseNumber(value, &result.seed) || !RuleParser::NextWord(&rest).empty()) {
        return fail("seed needs one number, as in `seed 42`");
      }
      result.has_seed = true;
      continue;
    }
    if (result.rules.size() == kRulesMax) {
      return fail("more than " + std::to_string(kRulesMax) + " rules");
    }
    FaultRule rule;
    rule.line = number;
    rule.text = line;
    RuleParser parser(&rule);
    if (!parser.Parse(line)) return fail(parser.error());
    result.rules.push_back(std::move(rule));
  }
  *out = std::move(result);
  return true;
}

}  // namespace verbena::transport::tap
