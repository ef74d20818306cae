#include "tests/wire_scripts/packet_spec.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "transport/wire/icrc.h"
#include "transport/wire/packet.h"

namespace verbena::wire_scripts {

using transport::AckType;
using transport::NakCode;
using transport::Opcode;
using transport::OpcodeInfo;
using transport::Pdu;
namespace wire = transport::wire;

// Of a field that the line of an expected packet does not name.
enum class Unnamed : uint8_t {
  kMistake,  // the line's
  kDefault,  // it has to have the value that packets usually have
  kFree,     // the sender's choice
};

// A header field that lines can name.
struct PacketField {
  const char* key;
  uint64_t (*get)(const Pdu&);
  void (*set)(Pdu&, uint64_t);
  bool (*is_in)(const OpcodeInfo&, Service);
  Unnamed unnamed;
};

namespace {

bool HasReth(const OpcodeInfo& info, Service) { return info.has_reth; }
bool HasAtomicEth(const OpcodeInfo& info, Service) { return info.has_atomic_eth; }
bool HasAddress(const OpcodeInfo& info, Service) { return info.has_reth || info.has_atomic_eth; }
bool HasAeth(const OpcodeInfo& info, Service) { return info.has_aeth; }
bool HasImm(const OpcodeInfo& info, Service) { return info.has_imm; }
bool HasDeth(const OpcodeInfo&, Service service) { return service == Service::kUd; }
bool IsAny(const OpcodeInfo&, Service) { return true; }

constexpr Unnamed kMistake = Unnamed::kMistake, kDefault = Unnamed::kDefault,
                  kFree = Unnamed::kFree;

constexpr PacketField kFields[] = {
    {"psn", [](const Pdu& p) -> uint64_t { return p.psn.value(); },
     [](Pdu& p, uint64_t v) { p.psn = Psn(static_cast<uint32_t>(v)); }, IsAny, kMistake},
    {"ackreq", [](const Pdu& p) -> uint64_t { return p.ack_request; },
     [](Pdu& p, uint64_t v) { p.ack_request = v != 0; }, IsAny, kFree},
    {"se", [](const Pdu& p) -> uint64_t { return p.solicited; },
     [](Pdu& p, uint64_t v) { p.solicited = v != 0; }, IsAny, kDefault},
    {"pkey", [](const Pdu& p) -> uint64_t { return p.pkey.value; },
     [](Pdu& p, uint64_t v) { p.pkey = PKey(static_cast<uint16_t>(v)); }, IsAny, kDefault},
    {"remote", [](const Pdu& p) -> uint64_t { return p.remote_addr; },
     [](Pdu& p, uint64_t v) { p.remote_addr = v; }, HasAddress, kMistake},
    {"rkey", [](const Pdu& p) -> uint64_t { return p.rkey.value; },
     [](Pdu& p, uint64_t v) { p.rkey = RKey(static_cast<uint32_t>(v)); }, HasAddress, kMistake},
    {"length", [](const Pdu& p) -> uint64_t { return p.dma_length; },
     [](Pdu& p, uint64_t v) { p.dma_length = static_cast<uint32_t>(v); }, HasReth, kMistake},
    {"compare", [](const Pdu& p) -> uint64_t { return p.compare; },
     [](Pdu& p, uint64_t v) { p.compare = v; }, HasAtomicEth, kFree},
    {"swap_or_add", [](const Pdu& p) -> uint64_t { return p.swap_or_add; },
     [](Pdu& p, uint64_t v) { p.swap_or_add = v; }, HasAtomicEth, kMistake},
    {"msn", [](const Pdu& p) -> uint64_t { return p.msn.value; },
     [](Pdu& p, uint64_t v) { p.msn = Msn(static_cast<uint32_t>(v)); }, HasAeth, kMistake},
    {"credits", [](const Pdu& p) -> uint64_t { return p.credits; },
     [](Pdu& p, uint64_t v) { p.credits = static_cast<uint8_t>(v); }, HasAeth, kFree},
    {"timer", [](const Pdu& p) -> uint64_t { return p.rnr_timer_code; },
     [](Pdu& p, uint64_t v) { p.rnr_timer_code = static_cast<uint8_t>(v); }, HasAeth, kFree},
    {"original", [](const Pdu& p) -> uint64_t { return p.atomic_original; },
     [](Pdu& p, uint64_t v) { p.atomic_original = v; },
     [](const OpcodeInfo& info, Service) { return info.has_aeth && info.is_atomic; }, kMistake},
    // Programs see immediate data in network byte order, scripts as a number.
    {"imm", [](const Pdu& p) -> uint64_t { return __builtin_bswap32(p.imm_or_rkey); },
     [](Pdu& p, uint64_t v) { p.imm_or_rkey = __builtin_bswap32(static_cast<uint32_t>(v)); },
     HasImm, kMistake},
    {"qkey", [](const Pdu& p) -> uint64_t { return p.qkey.value; },
     [](Pdu& p, uint64_t v) { p.qkey = QKey(static_cast<uint32_t>(v)); }, HasDeth, kMistake},
};

struct Acknowledgement {
  const char* name;
  AckType type;
  NakCode code;
};
constexpr Acknowledgement kAcknowledgements[] = {
    {"ACK", AckType::kAck, {}},
    {"RNR_NAK", AckType::kRnrNak, {}},
    {"NAK_PSN_SEQUENCE", AckType::kNak, NakCode::kPsnSequenceError},
    {"NAK_INVALID_REQUEST", AckType::kNak, NakCode::kInvalidRequest},
    {"NAK_REMOTE_ACCESS", AckType::kNak, NakCode::kRemoteAccessError},
    {"NAK_REMOTE_OPERATIONAL", AckType::kNak, NakCode::kRemoteOperationalError},
};

constexpr PKey kDefaultPKey{0xffff};
// Of an rkey's index, so that it leads nowhere.
constexpr uint32_t kWrongRKeyBits = 0x5500;

std::string Hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

Opcode OpcodeNamed(const std::string& name) {
  for (uint32_t value = 0; value < 0x20; ++value) {
    const OpcodeInfo* info = transport::LookUpOpcode(static_cast<Opcode>(value));
    if (info != nullptr && name == info->name) return static_cast<Opcode>(value);
  }
  throw ScriptError("no such packet: '" + name + "'");
}

}  // namespace

PatternRange PatternRange::Parse(std::string_view text) {
  const size_t at = text.find('@');
  PatternRange range;
  range.length = static_cast<uint32_t>(ParseNumber(text.substr(0, at)));
  if (at != std::string_view::npos) {
    range.from = static_cast<uint32_t>(ParseNumber(text.substr(at + 1)));
  }
  return range;
}

std::vector<std::byte> PatternRange::Bytes() const {
  std::vector<std::byte> bytes(length);
  for (uint32_t i = 0; i < length; ++i) bytes[i] = PatternByte(from + i);
  return bytes;
}

Value Value::Parse(std::string_view key, std::string_view text) {
  if (text == "wrong" && key == "rkey") return {Base::kRKey, kWrongRKeyBits};
  if (!text.starts_with("mr")) return {Base::kNumber, ParseNumber(text)};
  text.remove_prefix(2);
  if (text.empty()) return {key == "rkey" ? Base::kRKey : Base::kAddress, 0};
  if (!text.starts_with('+')) throw ScriptError("after 'mr' only +N may follow");
  return {Base::kAddress, ParseNumber(text.substr(1))};
}

uint64_t Value::In(const Opened& subject) const {
  switch (base) {
    case Base::kNumber:
      return number;
    case Base::kAddress:
      return subject.address + number;
    case Base::kRKey:
      return subject.rkey.value ^ number;
  }
  return 0;
}

PacketSpec PacketSpec::Parse(Service service, Words* words, bool is_expected) {
  PacketSpec spec;
  spec.service_ = service;
  const std::string name = words->Take();
  const auto* ack = std::find_if(std::begin(kAcknowledgements), std::end(kAcknowledgements),
                                 [&](const Acknowledgement& row) { return name == row.name; });
  if (ack != std::end(kAcknowledgements)) {
    spec.opcode_ = Opcode::kAcknowledge;
    spec.ack_type_ = ack->type;
    spec.nak_code_ = ack->code;
  } else {
    spec.opcode_ = OpcodeNamed(name);
  }
  const OpcodeInfo& info = *transport::LookUpOpcode(spec.opcode_);
  if ((info.services & (1u << static_cast<uint32_t>(service))) == 0) {
    throw ScriptError("the service of this QP has no " + name);
  }
  for (const PacketField& field : kFields) {
    if (!field.is_in(info, service)) continue;
    if (std::optional<std::string> value = words->TakeOption(field.key)) {
      spec.fields_.emplace_back(&field, Value::Parse(field.key, *value));
    } else if (is_expected && field.unnamed == Unnamed::kMistake) {
      throw ScriptError("an expected " + name + " has to say its '" + field.key + "='");
    }
  }
  if (auto range = words->TakeOption("payload")) spec.payload_ = PatternRange::Parse(*range);
  if (is_expected) return spec;
  if (auto qpn = words->TakeNumber("qpn")) spec.qpn_ = static_cast<uint32_t>(*qpn);
  if (auto bytes = words->TakeNumber("cut_to")) spec.cut_to_ = static_cast<uint32_t>(*bytes);
  if (auto version = words->TakeNumber("version")) spec.version_ = static_cast<uint8_t>(*version);
  spec.has_wrong_icrc_ = words->TakeOption("wrong_icrc").has_value();
  return spec;
}

bool PacketSpec::IsNamed(const PacketField& field) const {
  return std::any_of(fields_.begin(), fields_.end(),
                     [&](const auto& named) { return named.first == &field; });
}

Pdu PacketSpec::PduFor(const Ends& ends, Qpn destination) const {
  Pdu pdu;
  pdu.service = service_;
  pdu.opcode = opcode_;
  pdu.ack_type = ack_type_;
  pdu.nak_code = nak_code_;
  pdu.pkey = kDefaultPKey;
  pdu.dest_qpn = destination;
  for (const auto& [field, value] : fields_) field->set(pdu, value.In(ends.subject));
  return pdu;
}

std::vector<std::byte> PacketSpec::Build(const Ends& ends, const wire::PacketAddress& path) const {
  Pdu pdu = PduFor(ends, qpn_ ? Qpn(*qpn_) : ends.subject.qpn);
  pdu.src_qpn = Qpn(ends.peer_qpn);
  const std::vector<std::byte> payload = payload_.Bytes();
  pdu.payload.length = payload_.length;
  std::vector<std::byte> bytes(wire::kHeaderBytesMax);
  bytes.resize(wire::EncodeHeaders(pdu, bytes.data()));
  if (version_) bytes[1] |= std::byte{*version_};
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  bytes.resize(bytes.size() + wire::PadBytes(payload_.length));
  if (cut_to_) bytes.resize(std::min<size_t>(bytes.size(), *cut_to_));
  const auto covered = static_cast<uint32_t>(bytes.size());
  uint32_t icrc = wire::ComputeIcrc(path, 0, bytes.data(), covered);
  if (has_wrong_icrc_) icrc ^= 1;
  bytes.resize(covered + wire::kIcrcBytes);
  wire::StoreIcrc(icrc, bytes.data() + covered);
  return bytes;
}

std::string PacketSpec::Mismatch(const Packet& packet, const Ends& ends) const {
  const auto length = static_cast<uint32_t>(packet.bytes.size());
  Pdu got;
  const wire::DecodeError error = wire::Decode(packet.bytes.data(), length, &got);
  if (error != wire::DecodeError::kNone) return std::string("no packet: ") + NameOf(error);
  std::string wrong;
  auto note = [&](const std::string& text) { wrong += (wrong.empty() ? "" : ", ") + text; };
  uint16_t ip_id = 0;
  if (VerifyIcrc(packet.address, 0, packet.bytes.data(), length, &ip_id) ==
      wire::IcrcCheck::kWrong) {
    note("wrong ICRC");
  }
  const Pdu wanted = PduFor(ends, Qpn(ends.peer_qpn));
  const OpcodeInfo& info = *transport::LookUpOpcode(opcode_);
  const bool is_kind = got.service == wanted.service && got.opcode == wanted.opcode &&
                       (!info.has_aeth || got.ack_type == wanted.ack_type) &&
                       (wanted.ack_type != AckType::kNak || got.nak_code == wanted.nak_code);
  if (!is_kind) {
    note("another packet");
  } else {
    for (const PacketField& field : kFields) {
      const bool is_free = field.unnamed == Unnamed::kFree && !IsNamed(field);
      if (!field.is_in(info, service_) || is_free) continue;
      const uint64_t is = field.get(got), shall = field.get(wanted);
      if (is != shall) note(std::string(field.key) + " is " + Hex(is) + ", not " + Hex(shall));
    }
  }
  if (got.dest_qpn != wanted.dest_qpn) note("to QP " + Hex(got.dest_qpn.value));
  if (service_ == Service::kUd && got.src_qpn != ends.subject.qpn) note("not from the subject");
  std::vector<std::byte> payload;
  got.payload.AppendTo(&payload);
  if (is_kind && payload != payload_.Bytes()) {
    note(payload.size() != payload_.length ? std::to_string(payload.size()) + " bytes of payload"
                                           : "other bytes of payload");
  }
  return wrong.empty() ? "" : wrong + ": " + wire::Describe(got);
}

}  // namespace verbena::wire_scripts
