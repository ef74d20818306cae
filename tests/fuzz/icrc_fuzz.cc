// Any bytes as a packet with an ICRC: whatever VerifyIcrc accepts is right by ComputeIcrc, it finds
// every identification, and all implementations of the CRC agree.
#include <algorithm>
#include <vector>

#include "core/base/check.h"
#include "tests/fuzz/input.h"
#include "transport/wire/crc32.h"
#include "transport/wire/icrc.h"
#include "transport/wire/packet.h"

namespace verbena::fuzz {
namespace {

using namespace transport::wire;  // NOLINT: the target is about nothing else

PacketAddress TakeAddress(Input& input) {
  PacketAddress address;
  bool is_ipv4 = input.Take<uint8_t>() % 2 == 0;
  if (is_ipv4) {
    address.source = Gid::FromIpv4(input.Take<uint32_t>());
    address.destination = Gid::FromIpv4(input.Take<uint32_t>());
  } else {
    input.TakeBytes(address.source.raw.data(), 16);
    input.TakeBytes(address.destination.raw.data(), 16);
  }
  address.source_port = input.Take<uint16_t>();
  return address;
}

void CheckImplementations(const std::byte* bytes, uint32_t length, uint32_t cut) {
  uint32_t crc = UpdateCrc32Portable(kCrc32Start, bytes, length);
  uint32_t first = UpdateCrc32(kCrc32Start, bytes, cut);
  VERBENA_CHECK(UpdateCrc32(first, bytes + cut, length - cut) == crc);
  if (HasClmul()) VERBENA_CHECK(UpdateCrc32Clmul(kCrc32Start, bytes, length) == crc);
  if (HasWideClmul()) VERBENA_CHECK(UpdateCrc32WideClmul(kCrc32Start, bytes, length) == crc);
  const uint32_t rest = UpdateCrc32(0, bytes + cut, length - cut);
  VERBENA_CHECK((AdvanceCrc32(first, length - cut) ^ rest) == crc);
  if (!HasWideClmul()) return;
  std::vector<std::byte> copy(length - cut);
  VERBENA_CHECK(CopyCrc32WideClmul(first, copy.data(), bytes + cut, length - cut) == crc);
  VERBENA_CHECK(std::equal(copy.begin(), copy.end(), bytes + cut));
}

// Told the CRC of any part of a packet that a payload may be, ComputeIcrc gives what it gives
// anyway.
void CheckKnownPayload(const PacketAddress& address, const std::byte* bytes, uint32_t length,
                       uint32_t header_bytes, uint32_t payload_bytes) {
  if (length < kBthBytes) return;
  header_bytes = kBthBytes + header_bytes % (length - kBthBytes + 1);
  payload_bytes %= length - header_bytes + 1;
  const uint32_t crc = UpdateCrc32(0, bytes + header_bytes, payload_bytes);
  VERBENA_CHECK(ComputeIcrc(address, 1, bytes, length, {header_bytes, payload_bytes, crc}) ==
                ComputeIcrc(address, 1, bytes, length));
}

void Check(Input input) {
  PacketAddress address = TakeAddress(input);
  auto expected_id = input.Take<uint16_t>();
  auto true_id = input.Take<uint16_t>();
  std::vector<std::byte> packet(input.left());
  input.TakeBytes(packet.data(), packet.size());
  auto length = static_cast<uint32_t>(packet.size());
  CheckImplementations(packet.data(), length, length == 0 ? 0 : true_id % length);
  if (length < kIcrcBytes) return;

  CheckKnownPayload(address, packet.data(), length - kIcrcBytes, expected_id % 64, true_id);

  // As it came: what is said of it is true.
  uint32_t covered = length - kIcrcBytes;
  uint32_t received = 0;
  for (uint32_t i = 0; i < kIcrcBytes; ++i) {
    received |= std::to_integer<uint32_t>(packet[covered + i]) << 8 * i;
  }
  auto is_right_for = [&](uint16_t id) {
    return ComputeIcrc(address, id, packet.data(), covered) == received;
  };
  uint16_t id = 0;
  IcrcCheck check = VerifyIcrc(address, expected_id, packet.data(), length, &id);
  VERBENA_CHECK((check == IcrcCheck::kExact) == is_right_for(expected_id));
  if (check == IcrcCheck::kSolved) {
    VERBENA_CHECK(address.IsIpv4() && id != expected_id && is_right_for(id));
  }

  // With the right ICRC of some identification: that one is found.
  StoreIcrc(ComputeIcrc(address, true_id, packet.data(), covered), packet.data() + covered);
  check = VerifyIcrc(address, expected_id, packet.data(), length, &id);
  bool is_exact = !address.IsIpv4() || true_id == expected_id;
  VERBENA_CHECK(check == (is_exact ? IcrcCheck::kExact : IcrcCheck::kSolved));
  VERBENA_CHECK(id == (address.IsIpv4() ? true_id : expected_id));
}

}  // namespace
}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size <= 60'000) verbena::fuzz::Check({data, size});
  return 0;
}
