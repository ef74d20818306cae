#include "transport/pdu.h"

#include <array>

namespace verbena::transport {
namespace {

constexpr uint8_t kRc = 1u << static_cast<int>(Service::kRc);
constexpr uint8_t kUc = 1u << static_cast<int>(Service::kUc);
constexpr uint8_t kUd = 1u << static_cast<int>(Service::kUd);

// What an opcode does, where it stands in its message, and what follows the BTH.
enum Trait : uint32_t {
  kSend = 1u << 0,
  kWrite = 1u << 1,
  kReadResponse = 1u << 2,
  kAtomic = 1u << 3,
  kRequest = 1u << 4,
  kFirst = 1u << 5,
  kMiddle = 1u << 6,
  kLast = 1u << 7,
  kReth = 1u << 8,
  kAtomicEth = 1u << 9,
  kAeth = 1u << 10,
  kImm = 1u << 11,
  kIeth = 1u << 12,
  kAtomicWrite = 1u << 13,
  kFlush = 1u << 14,
  kFeth = 1u << 15,
  kOnly = kFirst | kLast,
};

constexpr OpcodeInfo Row(const char* name, uint8_t services, uint32_t traits) {
  auto has = [traits](Trait trait) { return (traits & trait) != 0; };
  OpcodeInfo info = {};
  info.name = name;
  info.services = services;
  info.is_request = has(kRequest);
  info.is_send = has(kSend);
  info.is_write = has(kWrite);
  info.is_read_response = has(kReadResponse);
  info.is_atomic = has(kAtomic);
  info.is_atomic_write = has(kAtomicWrite);
  info.is_flush = has(kFlush);
  info.is_first = has(kFirst);
  info.is_middle = has(kMiddle);
  info.is_last = has(kLast);
  info.has_feth = has(kFeth);
  info.has_reth = has(kReth);
  info.has_atomic_eth = has(kAtomicEth);
  info.has_aeth = has(kAeth);
  info.has_imm = has(kImm);
  info.has_ieth = has(kIeth);
  return info;
}

}  // namespace

// Indexed by opcode; a row without a name is a reserved value.  Spec: IBTA 9.2.1, OpCode table;
// annex A19 (memory placement extensions).
constinit const std::array<OpcodeInfo, 0x1e> internal::kOpcodes = {
    Row("SEND_FIRST", kRc | kUc, kRequest | kSend | kFirst),
    Row("SEND_MIDDLE", kRc | kUc, kRequest | kSend | kMiddle),
    Row("SEND_LAST", kRc | kUc, kRequest | kSend | kLast),
    Row("SEND_LAST_WITH_IMM", kRc | kUc, kRequest | kSend | kLast | kImm),
    Row("SEND_ONLY", kRc | kUc | kUd, kRequest | kSend | kOnly),
    Row("SEND_ONLY_WITH_IMM", kRc | kUc | kUd, kRequest | kSend | kOnly | kImm),
    Row("WRITE_FIRST", kRc | kUc, kRequest | kWrite | kFirst | kReth),
    Row("WRITE_MIDDLE", kRc | kUc, kRequest | kWrite | kMiddle),
    Row("WRITE_LAST", kRc | kUc, kRequest | kWrite | kLast),
    Row("WRITE_LAST_WITH_IMM", kRc | kUc, kRequest | kWrite | kLast | kImm),
    Row("WRITE_ONLY", kRc | kUc, kRequest | kWrite | kOnly | kReth),
    Row("WRITE_ONLY_WITH_IMM", kRc | kUc, kRequest | kWrite | kOnly | kReth | kImm),
    Row("READ_REQUEST", kRc, kRequest | kOnly | kReth),
    Row("READ_RESPONSE_FIRST", kRc, kReadResponse | kFirst | kAeth),
    Row("READ_RESPONSE_MIDDLE", kRc, kReadResponse | kMiddle),
    Row("READ_RESPONSE_LAST", kRc, kReadResponse | kLast | kAeth),
    Row("READ_RESPONSE_ONLY", kRc, kReadResponse | kOnly | kAeth),
    Row("ACKNOWLEDGE", kRc, kOnly | kAeth),
    Row("ATOMIC_ACKNOWLEDGE", kRc, kOnly | kAeth | kAtomic),
    Row("COMPARE_SWAP", kRc, kRequest | kOnly | kAtomic | kAtomicEth),
    Row("FETCH_ADD", kRc, kRequest | kOnly | kAtomic | kAtomicEth),
    OpcodeInfo{},  // 0x15 is reserved
    Row("SEND_LAST_WITH_INVALIDATE", kRc, kRequest | kSend | kLast | kIeth),
    Row("SEND_ONLY_WITH_INVALIDATE", kRc, kRequest | kSend | kOnly | kIeth),
    OpcodeInfo{},  // 0x18 to 0x1b are reserved
    OpcodeInfo{},
    OpcodeInfo{},
    OpcodeInfo{},
    Row("FLUSH", kRc, kRequest | kOnly | kFlush | kFeth | kReth),
    Row("ATOMIC_WRITE", kRc, kRequest | kOnly | kAtomicWrite | kReth),
};

Opcode SegmentOpcode(Opcode opcode, bool is_first, bool is_last) {
  const OpcodeInfo& info = *LookUpOpcode(opcode);
  const bool starts = is_first && info.is_first, ends = is_last && info.is_last;
  if (info.is_read_response) {
    return starts ? Opcode::kReadResponseFirst
                  : (ends ? Opcode::kReadResponseLast : Opcode::kReadResponseMiddle);
  }
  if (starts) return info.is_send ? Opcode::kSendFirst : Opcode::kWriteFirst;
  if (!ends) return info.is_send ? Opcode::kSendMiddle : Opcode::kWriteMiddle;
  if (info.is_write) return info.has_imm ? Opcode::kWriteLastWithImm : Opcode::kWriteLast;
  if (info.has_ieth) return Opcode::kSendLastWithInvalidate;
  return info.has_imm ? Opcode::kSendLastWithImm : Opcode::kSendLast;
}

Opcode JoinedOpcode(Opcode opcode, Opcode next) {
  const OpcodeInfo& info = *LookUpOpcode(opcode);
  const OpcodeInfo& end = *LookUpOpcode(next);
  if (!info.is_first) return next;
  if (!end.is_last) return opcode;
  if (info.is_write) return end.has_imm ? Opcode::kWriteOnlyWithImm : Opcode::kWriteOnly;
  if (end.has_ieth) return Opcode::kSendOnlyWithInvalidate;
  return end.has_imm ? Opcode::kSendOnlyWithImm : Opcode::kSendOnly;
}

}  // namespace verbena::transport
