#include "transport/wire/packet.h"

#include <arpa/inet.h>

#include <array>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "core/base/check.h"
#include "transport/wire/byte_order.h"

namespace verbena::transport::wire {
namespace {

// --- Opcodes ------------------------------------------------------------------------------------

struct ServiceRow {
  const char* name;
  uint8_t prefix;  // top three bits of the BTH opcode
};
// Indexed by Service.  Spec: IBTA 9.2.1, OpCode table.
constexpr std::array<ServiceRow, kServiceCount> kServices = {{
    {"RC", 0x00},
    {"UC", 0x20},
    {"UD", 0x60},
}};
constexpr uint8_t kServiceBits = 0xe0;

constexpr bool Serves(const OpcodeInfo& info, Service service) {
  return (info.services & (1u << static_cast<uint32_t>(service))) != 0;
}

// --- Fields that share a byte -------------------------------------------------------------------

// BTH byte 1: solicited event, migration state (0, as rxe sends it), pad count, version.
constexpr uint8_t kSolicited = 0x80;
constexpr uint32_t kPadShift = 4;
constexpr uint8_t kPadMask = 0x3;
constexpr uint8_t kVersionMask = 0x0f;
// BTH byte 8.
constexpr uint8_t kAckRequest = 0x80;

// AETH syndrome: a class in the top three bits, its value below.  Spec: IBTA 9.7.5.2.
constexpr uint8_t kSyndromeClassBits = 0xe0;
constexpr uint8_t kSyndromeValueBits = 0x1f;
constexpr uint8_t kSyndromeAck = 0x00;
constexpr uint8_t kSyndromeRnrNak = 0x20;
constexpr uint8_t kSyndromeNak = 0x60;

uint8_t SyndromeOf(const Pdu& pdu) {
  switch (pdu.ack_type) {
    case AckType::kAck:
      return kSyndromeAck | (pdu.credits & kSyndromeValueBits);
    case AckType::kRnrNak:
      return kSyndromeRnrNak | (pdu.rnr_timer_code & kSyndromeValueBits);
    case AckType::kNak:
      break;
  }
  return kSyndromeNak | (static_cast<uint8_t>(pdu.nak_code) & kSyndromeValueBits);
}

// False: a reserved class or NAK code.
bool ReadSyndrome(uint8_t syndrome, Pdu* out) {
  uint8_t value = syndrome & kSyndromeValueBits;
  switch (syndrome & kSyndromeClassBits) {
    case kSyndromeAck:
      out->ack_type = AckType::kAck;
      out->credits = value;
      return true;
    case kSyndromeRnrNak:
      out->ack_type = AckType::kRnrNak;
      out->rnr_timer_code = value;
      return true;
    case kSyndromeNak:
      out->ack_type = AckType::kNak;
      out->nak_code = static_cast<NakCode>(value);
      return value <= static_cast<uint8_t>(NakCode::kInvalidRdRequest);
    default:
      return false;
  }
}

// FETH: placement type, selectivity level, and reserved bits above.  Spec: IBTA annex A19.
constexpr uint32_t kPlacementMask = 0x0f;
constexpr uint32_t kSelectivityMask = 0x30;
constexpr uint32_t kSelectivityShift = 4;

// --- Extension headers --------------------------------------------------------------------------

constexpr uint32_t kDethBytes = 8;
constexpr uint32_t kFethBytes = 4;
constexpr uint32_t kRethBytes = 16;
constexpr uint32_t kAtomicEthBytes = 28;
constexpr uint32_t kAethBytes = 4;
constexpr uint32_t kAtomicAckEthBytes = 8;
constexpr uint32_t kImmDtBytes = 4;
constexpr uint32_t kIethBytes = 4;

// Calls the visitor for each extension header that follows the BTH, in wire order: the only place
// that knows it.  Spec: IBTA 9.2 and 9.3.
template <typename Visitor>
inline void VisitExtensions(Service service, const OpcodeInfo& info, Visitor& visitor) {
  if (service == Service::kUd) visitor.Deth();
  if (info.has_feth) visitor.Feth();
  if (info.has_reth) visitor.Reth();
  if (info.has_atomic_eth) visitor.AtomicEth();
  if (info.has_aeth) visitor.Aeth();
  if (info.has_aeth && info.is_atomic) visitor.AtomicAckEth();
  if (info.has_imm) visitor.ImmDt();
  if (info.has_ieth) visitor.Ieth();
}

struct Measure {
  uint32_t bytes = kBthBytes;
  void Deth() { bytes += kDethBytes; }
  void Feth() { bytes += kFethBytes; }
  void Reth() { bytes += kRethBytes; }
  void AtomicEth() { bytes += kAtomicEthBytes; }
  void Aeth() { bytes += kAethBytes; }
  void AtomicAckEth() { bytes += kAtomicAckEthBytes; }
  void ImmDt() { bytes += kImmDtBytes; }
  void Ieth() { bytes += kIethBytes; }
};

struct Encoder {
  const Pdu& pdu;
  std::byte* out;

  void Deth() {
    StoreBe32(pdu.qkey.value, out);
    out[4] = std::byte{0};
    StoreBe24(pdu.src_qpn.value, out + 5);
    out += kDethBytes;
  }
  void Feth() {
    const uint32_t level = uint32_t{pdu.flush_level} << kSelectivityShift & kSelectivityMask;
    StoreBe32(level | (pdu.flush_type & kPlacementMask), out);
    out += kFethBytes;
  }
  void Reth() {
    StoreBe64(pdu.remote_addr, out);
    StoreBe32(pdu.rkey.value, out + 8);
    StoreBe32(pdu.dma_length, out + 12);
    out += kRethBytes;
  }
  void AtomicEth() {
    StoreBe64(pdu.remote_addr, out);
    StoreBe32(pdu.rkey.value, out + 8);
    StoreBe64(pdu.swap_or_add, out + 12);
    StoreBe64(pdu.compare, out + 20);
    out += kAtomicEthBytes;
  }
  void Aeth() {
    out[0] = std::byte{SyndromeOf(pdu)};
    StoreBe24(pdu.msn.value, out + 1);
    out += kAethBytes;
  }
  void AtomicAckEth() {
    StoreBe64(pdu.atomic_original, out);
    out += kAtomicAckEthBytes;
  }
  // Immediate data are the program's four bytes, which the verbs call big-endian: not turned.
  void ImmDt() {
    std::memcpy(out, &pdu.imm_or_rkey, kImmDtBytes);
    out += kImmDtBytes;
  }
  void Ieth() {
    StoreBe32(pdu.imm_or_rkey, out);
    out += kIethBytes;
  }
};

struct Decoder {
  const std::byte* bytes;
  Pdu* pdu;
  bool is_reserved = false;

  void Deth() {
    pdu->qkey = QKey(LoadBe32(bytes));
    pdu->src_qpn = Qpn(LoadBe24(bytes + 5));
    bytes += kDethBytes;
  }
  void Feth() {
    const uint32_t feth = LoadBe32(bytes);
    pdu->flush_type = feth & kPlacementMask;
    pdu->flush_level = (feth & kSelectivityMask) >> kSelectivityShift;
    bytes += kFethBytes;
  }
  void Reth() {
    pdu->remote_addr = LoadBe64(bytes);
    pdu->rkey = RKey(LoadBe32(bytes + 8));
    pdu->dma_length = LoadBe32(bytes + 12);
    bytes += kRethBytes;
  }
  void AtomicEth() {
    pdu->remote_addr = LoadBe64(bytes);
    pdu->rkey = RKey(LoadBe32(bytes + 8));
    pdu->swap_or_add = LoadBe64(bytes + 12);
    pdu->compare = LoadBe64(bytes + 20);
    bytes += kAtomicEthBytes;
  }
  void Aeth() {
    is_reserved |= !ReadSyndrome(std::to_integer<uint8_t>(bytes[0]), pdu);
    pdu->msn = Msn(LoadBe24(bytes + 1));
    bytes += kAethBytes;
  }
  void AtomicAckEth() {
    pdu->atomic_original = LoadBe64(bytes);
    bytes += kAtomicAckEthBytes;
  }
  void ImmDt() {
    std::memcpy(&pdu->imm_or_rkey, bytes, kImmDtBytes);
    bytes += kImmDtBytes;
  }
  void Ieth() {
    pdu->imm_or_rkey = LoadBe32(bytes);
    bytes += kIethBytes;
  }
};

// --- Text ---------------------------------------------------------------------------------------

__attribute__((format(printf, 2, 3))) void Append(std::string& text, const char* format, ...) {
  char piece[128];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(piece, sizeof(piece), format, arguments);
  va_end(arguments);
  text += piece;
}

const char* NameOfNak(NakCode code) {
  switch (code) {
    case NakCode::kPsnSequenceError:
      return "PSN sequence error";
    case NakCode::kInvalidRequest:
      return "invalid request";
    case NakCode::kRemoteAccessError:
      return "remote access error";
    case NakCode::kRemoteOperationalError:
      return "remote operational error";
    case NakCode::kInvalidRdRequest:
      return "invalid RD request";
  }
  return "reserved code";
}

struct Describer {
  const Pdu& pdu;
  std::string& text;

  void Deth() {
    Append(text, "; DETH Q_Key 0x%08x from QP 0x%06x", pdu.qkey.value, pdu.src_qpn.value);
  }
  void Feth() { Append(text, "; FETH type 0x%x level %u", pdu.flush_type, pdu.flush_level); }
  void Reth() {
    Append(text, "; RETH address 0x%" PRIx64 " rkey 0x%08x length %u", pdu.remote_addr,
           pdu.rkey.value, pdu.dma_length);
  }
  void AtomicEth() {
    Append(text, "; AtomicETH address 0x%" PRIx64 " rkey 0x%08x", pdu.remote_addr, pdu.rkey.value);
    Append(text, " swap/add 0x%" PRIx64 " compare 0x%" PRIx64, pdu.swap_or_add, pdu.compare);
  }
  void Aeth() {
    switch (pdu.ack_type) {
      case AckType::kAck:
        Append(text, "; AETH ACK credits %u", pdu.credits);
        break;
      case AckType::kRnrNak:
        Append(text, "; AETH RNR NAK timer %u", pdu.rnr_timer_code);
        break;
      case AckType::kNak:
        Append(text, "; AETH NAK %s", NameOfNak(pdu.nak_code));
        break;
    }
    Append(text, " MSN %u", pdu.msn.value);
  }
  void AtomicAckEth() { Append(text, "; AtomicAckETH 0x%" PRIx64, pdu.atomic_original); }
  void ImmDt() { Append(text, "; ImmDt 0x%08x", __builtin_bswap32(pdu.imm_or_rkey)); }
  void Ieth() { Append(text, "; IETH rkey 0x%08x", pdu.imm_or_rkey); }
};

}  // namespace

uint32_t EncodeHeaders(const Pdu& pdu, std::byte* out) {
  const OpcodeInfo* info = LookUpOpcode(pdu.opcode);
  VERBENA_CHECK(info != nullptr && Serves(*info, pdu.service));
  const ServiceRow& service = kServices[static_cast<size_t>(pdu.service)];
  uint32_t pad = PadBytes(pdu.payload.length);
  out[0] = static_cast<std::byte>(service.prefix | static_cast<uint8_t>(pdu.opcode));
  out[1] = static_cast<std::byte>((pdu.solicited ? kSolicited : 0) | pad << kPadShift);
  StoreBe16(pdu.pkey.value, out + 2);
  out[4] = std::byte{0};
  StoreBe24(pdu.dest_qpn.value, out + 5);
  out[8] = static_cast<std::byte>(pdu.ack_request ? kAckRequest : 0);
  StoreBe24(pdu.psn.value(), out + 9);
  Encoder encoder{pdu, out + kBthBytes};
  VisitExtensions(pdu.service, *info, encoder);
  return static_cast<uint32_t>(encoder.out - out);
}

const char* NameOf(DecodeError error) {
  switch (error) {
    case DecodeError::kNone:
      return "none";
    case DecodeError::kTooShort:
      return "too short for its headers and ICRC";
    case DecodeError::kUnknownOpcode:
      return "unknown opcode";
    case DecodeError::kBadVersion:
      return "unknown transport version";
    case DecodeError::kBadPad:
      return "pad does not fit the length";
    case DecodeError::kTooLong:
      return "more payload than any path MTU";
    case DecodeError::kReservedSyndrome:
      return "reserved AETH syndrome";
  }
  return "unknown";
}

DecodeError Decode(const std::byte* bytes, uint32_t length, Pdu* out) {
  *out = Pdu{};
  if (length < kBthBytes + kIcrcBytes) return DecodeError::kTooShort;
  uint8_t opcode = std::to_integer<uint8_t>(bytes[0]);
  uint8_t flags = std::to_integer<uint8_t>(bytes[1]);
  if ((flags & kVersionMask) != 0) return DecodeError::kBadVersion;
  size_t service = 0;
  while (service < kServices.size() && kServices[service].prefix != (opcode & kServiceBits)) {
    ++service;
  }
  if (service == kServices.size()) return DecodeError::kUnknownOpcode;
  out->service = static_cast<Service>(service);
  out->opcode = static_cast<Opcode>(opcode & ~kServiceBits);
  const OpcodeInfo* info = LookUpOpcode(out->opcode);
  if (info == nullptr || !Serves(*info, out->service)) return DecodeError::kUnknownOpcode;

  Measure headers;
  VisitExtensions(out->service, *info, headers);
  if (length < headers.bytes + kIcrcBytes) return DecodeError::kTooShort;
  uint32_t padded = length - headers.bytes - kIcrcBytes;
  uint32_t pad = flags >> kPadShift & kPadMask;
  if (padded % 4 != 0 || pad > padded) return DecodeError::kBadPad;
  if (padded - pad > kPayloadBytesMax) return DecodeError::kTooLong;

  out->solicited = (flags & kSolicited) != 0;
  out->pkey = PKey(LoadBe16(bytes + 2));
  out->dest_qpn = Qpn(LoadBe24(bytes + 5));
  out->ack_request = (std::to_integer<uint8_t>(bytes[8]) & kAckRequest) != 0;
  out->psn = Psn(LoadBe24(bytes + 9));
  Decoder decoder{bytes + kBthBytes, out};
  VisitExtensions(out->service, *info, decoder);
  if (decoder.is_reserved) return DecodeError::kReservedSyndrome;
  out->payload.bytes = decoder.bytes;
  out->payload.length = padded - pad;
  return DecodeError::kNone;
}

std::string Describe(const Pdu& pdu) {
  auto service = static_cast<size_t>(pdu.service);
  const OpcodeInfo* info = LookUpOpcode(pdu.opcode);
  std::string text = service < kServices.size() ? kServices[service].name : "?";
  if (info == nullptr) {
    Append(text, " opcode 0x%02x", static_cast<uint32_t>(pdu.opcode));
  } else {
    Append(text, " %s", info->name);
  }
  Append(text, " to QP 0x%06x PSN %u", pdu.dest_qpn.value, pdu.psn.value());
  if (pdu.psn_count != PsnCount{1}) Append(text, "+%d", pdu.psn_count.value);
  if (pdu.pkey.value != 0xffff) Append(text, " P_Key 0x%04x", pdu.pkey.value);
  if (pdu.ack_request) text += " AckReq";
  if (pdu.solicited) text += " SE";
  Describer describer{pdu, text};
  if (info != nullptr) VisitExtensions(pdu.service, *info, describer);
  if (pdu.payload.length != 0) Append(text, "; %u bytes", pdu.payload.length);
  return text;
}

std::string AddressText(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (gid.IsIpv4Mapped()) {
    inet_ntop(AF_INET, gid.raw.data() + 12, text, sizeof text);
  } else {
    inet_ntop(AF_INET6, gid.raw.data(), text, sizeof text);
  }
  return text;
}

}  // namespace verbena::transport::wire
