// RoCEv2 packets: from a PDU's fields to bytes and back.
//
// "Packet" is the UDP payload: BTH, extension headers, payload, pad, ICRC. Offsets and order of the
// extension headers come from the opcode table (transport/pdu.h).   Spec: IBTA 9.2 to 9.6, A17.
//
// Trust: bytes to decode are anybody's. Decode reads nothing outside them and fills fields with
// whatever they say; whether they make sense is the roles' business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/pdu.h"
#include "transport/wire/address.h"

namespace verbena::transport::wire {

inline constexpr uint32_t kBthBytes = 12;
inline constexpr uint32_t kIcrcBytes = 4;
// The longest run of headers: BTH, RETH, ImmDt (WRITE_ONLY_WITH_IMM); and room to spare.
inline constexpr uint32_t kHeaderBytesMax = 48;
inline constexpr uint32_t kPayloadBytesMax = 4096;
inline constexpr uint32_t kPacketBytesMax = kHeaderBytesMax + kPayloadBytesMax + kIcrcBytes;

constexpr uint32_t PadBytes(uint32_t payload_bytes) { return (4 - payload_bytes % 4) % 4; }

// Writes BTH and extension headers of `pdu`, whose payload is payload.length bytes, to `out` (room
// for kHeaderBytesMax); returns how many. The caller appends payload and PadBytes() zero bytes.
// Precondition: the opcode is one of the service's.
uint32_t EncodeHeaders(const Pdu& pdu, std::byte* out);

enum class DecodeError : uint8_t {
  kNone,
  kTooShort,          // for its headers and ICRC
  kUnknownOpcode,     // reserved, or of a service Verbena does not have
  kBadVersion,        // BTH transport version is not 0
  kBadPad,            // more pad than there is payload, or not a multiple of four bytes in all
  kTooLong,           // more payload than any path MTU
  kReservedSyndrome,  // AETH of a reserved class or NAK code: says nothing, so as if lost
};
const char* NameOf(DecodeError error);

// Fields of the packet in [bytes, bytes + length), ICRC included (but not checked). The payload of
// `out` points into `bytes`; psn_count is 1, path is nullptr; src_qpn is DETH's for UD, else 0.
// A packet with any other error than kNone is to be dropped; `out` then holds no payload.
DecodeError Decode(const std::byte* bytes, uint32_t length, Pdu* out);

// One line: opcode, QPs, PSN and what its headers say. For traces, captures and fault reports.
std::string Describe(const Pdu& pdu);
// "10.0.0.2" or "fe80::1".
std::string AddressText(const Gid& gid);

}  // namespace verbena::transport::wire
