// Any bytes as a RoCEv2 packet: the decoder stays within them, what it accepts describes itself in
// one line, and encodes to the bytes it came from, reserved bits aside.
#include <algorithm>
#include <vector>

#include "core/base/check.h"
#include "tests/fuzz/input.h"
#include "transport/wire/packet.h"

namespace verbena::fuzz {
namespace {

using namespace transport;  // NOLINT: the target is about nothing else

// Bits of a header that a sender sets to zero and a receiver ignores.
void ClearReserved(const Pdu& pdu, std::vector<std::byte>& headers) {
  headers[1] &= ~std::byte{0x40};  // MigReq
  headers[4] = std::byte{0};       // FECN, BECN, reserved
  headers[8] &= std::byte{0x80};
  if (pdu.service == Service::kUd) headers[wire::kBthBytes + 4] = std::byte{0};
  if (pdu.opcode == Opcode::kFlush) {  // of the FETH all but the last six bits
    for (uint32_t i = 0; i < 3; ++i) headers[wire::kBthBytes + i] = std::byte{0};
    headers[wire::kBthBytes + 3] &= std::byte{0x3f};
  }
}

void Check(const std::byte* bytes, uint32_t length) {
  Pdu pdu;
  wire::DecodeError error = wire::Decode(bytes, length, &pdu);
  VERBENA_CHECK(wire::NameOf(error) != nullptr);
  std::string text = wire::Describe(pdu);
  VERBENA_CHECK(!text.empty() && text.find('\n') == std::string::npos);
  if (error != wire::DecodeError::kNone) {
    VERBENA_CHECK(pdu.payload.length == 0 && pdu.payload.bytes == nullptr);
    return;
  }
  VERBENA_CHECK(pdu.payload.bytes >= bytes + wire::kBthBytes);
  VERBENA_CHECK(pdu.payload.bytes + pdu.payload.length + wire::kIcrcBytes <= bytes + length);
  VERBENA_CHECK(pdu.payload.length <= wire::kPayloadBytesMax);
  VERBENA_CHECK(length <= wire::kPacketBytesMax);

  auto header_bytes = static_cast<uint32_t>(pdu.payload.bytes - bytes);
  std::byte again[wire::kHeaderBytesMax];
  VERBENA_CHECK(wire::EncodeHeaders(pdu, again) == header_bytes);
  std::vector<std::byte> expected(bytes, bytes + header_bytes);
  ClearReserved(pdu, expected);
  VERBENA_CHECK(std::equal(expected.begin(), expected.end(), again));
}

}  // namespace
}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  verbena::fuzz::Check(reinterpret_cast<const std::byte*>(data), static_cast<uint32_t>(size));
  return 0;
}
