// Packets as lines of a script: made of one, and compared with one.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/wire_scripts/script.h"
#include "tests/wire_scripts/subject.h"
#include "transport/pdu.h"

namespace verbena::wire_scripts {

// Byte `position` of the pattern that payloads and memory are compared with. It repeats after 64 K.
constexpr std::byte PatternByte(uint32_t position) {
  return static_cast<std::byte>(position * 167 + (position >> 8) * 59 + 1);
}
// Bytes [from, from + length) of it; in scripts LENGTH, or LENGTH@FROM.
struct PatternRange {
  uint32_t length = 0, from = 0;

  static PatternRange Parse(std::string_view text);
  std::vector<std::byte> Bytes() const;
};

// A number, or one that only the subject knows: "mr" and "mr+N" is the address of its region, and
// as an rkey the region's; "wrong" is an rkey that is nobody's.
struct Value {
  enum class Base : uint8_t { kNumber, kAddress, kRKey };
  Base base = Base::kNumber;
  uint64_t number = 0;

  static Value Parse(std::string_view key, std::string_view text);
  uint64_t In(const Opened& subject) const;
};

struct PacketField;

// What both ends of the wire know of each other.
struct Ends {
  Opened subject;
  uint32_t peer_qpn = 0;
};

class PacketSpec {
 public:
  // Of a packet that goes to the subject, or of one that has to come from it, which has to name all
  // fields but those with a default and those that its sender is free in.
  static PacketSpec Parse(Service service, Words* words, bool is_expected);

  // BTH to ICRC.
  std::vector<std::byte> Build(const Ends& ends, const transport::wire::PacketAddress& path) const;
  // Empty: it is as the script says. Else what it is instead.
  std::string Mismatch(const Packet& packet, const Ends& ends) const;

 private:
  transport::Pdu PduFor(const Ends& ends, Qpn destination) const;
  bool IsNamed(const PacketField& field) const;

  Service service_ = Service::kRc;
  transport::Opcode opcode_{};
  transport::AckType ack_type_ = transport::AckType::kAck;
  transport::NakCode nak_code_ = transport::NakCode::kPsnSequenceError;
  std::vector<std::pair<const PacketField*, Value>> fields_;
  PatternRange payload_;
  // Of packets to the subject alone.
  std::optional<uint32_t> qpn_;     // another QP than the subject's
  std::optional<uint32_t> cut_to_;  // only so many bytes, and an ICRC that fits them
  std::optional<uint8_t> version_;  // of the BTH
  bool has_wrong_icrc_ = false;
};

}  // namespace verbena::wire_scripts
