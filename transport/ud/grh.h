// The 40 bytes in front of every received datagram: the network header it came with.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/pdu.h"

namespace verbena::transport {

inline constexpr uint32_t kGrhBytes = 40;

// RoCE v2 over IPv6: the IPv6 header. Over IPv4: 20 zero bytes, then the IPv4 header.
// `payload_bytes` and `has_imm` give the header its length field.
// Spec: RoCEv2 annex A17.4.5.2 (IPv4 placement).
void WriteGrh(const Path& path, uint32_t payload_bytes, bool has_imm, std::byte out[kGrhBytes]);

// What a completion's sl says of the header: 10 for IPv4, 9 for IPv6. UCX tells them apart by it.
uint8_t ServiceLevelOf(const Path& path);

}  // namespace verbena::transport
