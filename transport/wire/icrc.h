// The invariant CRC of RoCEv2.   Spec: IBTA 7.8.1, A17.3.
//
// It covers the IP and UDP headers (fields that routers change count as ones), BTH, extension
// headers, payload and pad. Over IPv4 that includes the identification, which a UDP socket can
// neither choose nor see: see VerifyIcrc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/wire/address.h"

namespace verbena::transport::wire {

// ICRC of the packet [bytes, bytes + length), length without the ICRC, as it goes out with IPv4
// identification `ip_id` (nothing to IPv6) and DF set. Stored least significant byte first.
uint32_t ComputeIcrc(const PacketAddress& address, uint16_t ip_id, const std::byte* bytes,
                     uint32_t length);

// The CRC that whoever copied a payload computed on the way: the register that `bytes` bytes behind
// `header_bytes` of headers leave, started from 0.
struct KnownPayload {
  uint32_t header_bytes = 0;  // BTH and extension headers; 0: nothing is known
  uint32_t bytes = 0;
  uint32_t crc = 0;
};
// The same, without going through the payload again.
// Precondition: header_bytes >= kBthBytes, header_bytes + payload.bytes <= length.
uint32_t ComputeIcrc(const PacketAddress& address, uint16_t ip_id, const std::byte* bytes,
                     uint32_t length, const KnownPayload& payload);

void StoreIcrc(uint32_t icrc, std::byte* out);

enum class IcrcCheck : uint8_t {
  kExact,   // right; IPv6, or an IPv4 packet with identification `expected_ip_id`
  kSolved,  // right for some IPv4 identification: a random error passes one time in 65 536
  kWrong,
};
// Checks a received packet, `length` with the ICRC. IPv4: `expected_ip_id` is tried first; else the
// identification is solved for (CRCs are linear) and stored in `ip_id`.
// Precondition: length >= kIcrcBytes.
IcrcCheck VerifyIcrc(const PacketAddress& address, uint16_t expected_ip_id, const std::byte* bytes,
                     uint32_t length, uint16_t* ip_id);

}  // namespace verbena::transport::wire
