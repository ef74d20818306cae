// ICRCs against packets worked out by hand, and what the identification solver takes and refuses.
#include "transport/wire/icrc.h"

#include <gtest/gtest.h>
#include <isa-l/crc.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "transport/wire/crc32.h"
#include "transport/wire/packet.h"

namespace verbena::transport::wire {
namespace {

using Bytes = std::vector<std::byte>;

Bytes FromHex(const std::string& hex) {
  Bytes bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

PacketAddress Ipv4(uint32_t source, uint32_t destination, uint16_t source_port) {
  PacketAddress address;
  address.source = Gid::FromIpv4(source);
  address.destination = Gid::FromIpv4(destination);
  address.source_port = source_port;
  return address;
}

PacketAddress Ipv6() {
  PacketAddress address;
  address.source.raw = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  address.destination.raw = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};
  address.source_port = 49'152;
  return address;
}

Bytes RandomPacket(uint32_t length, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(length);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Bytes Finished(const PacketAddress& address, uint16_t ip_id, Bytes bytes) {
  uint32_t icrc = ComputeIcrc(address, ip_id, bytes.data(), static_cast<uint32_t>(bytes.size()));
  bytes.resize(bytes.size() + kIcrcBytes);
  StoreIcrc(icrc, bytes.data() + bytes.size() - kIcrcBytes);
  return bytes;
}

IcrcCheck Verify(const PacketAddress& address, uint16_t expected_ip_id, const Bytes& packet,
                 uint16_t* ip_id) {
  return VerifyIcrc(address, expected_ip_id, packet.data(), static_cast<uint32_t>(packet.size()),
                    ip_id);
}

// The packet, and by hand what its ICRC covers: eight bytes of ones, the IP and UDP headers with
// ones for TOS, TTL, checksums (IPv6: traffic class, flow label, hop limit), and the packet with
// ones for BTH byte 4. `icrc` is Python's zlib.crc32(covered).
struct Golden {
  const char* name;
  PacketAddress address;
  uint16_t ip_id;
  const char* packet;
  const char* covered;
  uint32_t icrc;
};

std::vector<Golden> Goldens() {
  return {
      {"UD SEND_ONLY of 'hello', pad 3, IPv4", Ipv4(0x0a00'0001, 0x0a00'0002, 57'236), 0x1234,
       "64b0ffff0000001100000102"
       "1111111100000012"
       "68656c6c6f000000",
       "ffffffffffffffff"
       "45ff003c12344000ff11ffff0a0000010a000002"
       "df9412b70028ffff"
       "64b0ffffff00001100000102"
       "1111111100000012"
       "68656c6c6f000000",
       0x9935'6469},
      {"the same with identification 0", Ipv4(0x0a00'0001, 0x0a00'0002, 57'236), 0,
       "64b0ffff0000001100000102"
       "1111111100000012"
       "68656c6c6f000000",
       "ffffffffffffffff"
       "45ff003c00004000ff11ffff0a0000010a000002"
       "df9412b70028ffff"
       "64b0ffffff00001100000102"
       "1111111100000012"
       "68656c6c6f000000",
       0xc0d3'8325},
      {"RC ACKNOWLEDGE, IPv4", Ipv4(0xc0a8'0709, 0xc0a8'0701, 50'340), 0xffff,
       "1100ffff0000004200fffffe"
       "1f000001",
       "ffffffffffffffff"
       "45ff0030ffff4000ff11ffffc0a80709c0a80701"
       "c4a412b7001cffff"
       "1100ffffff00004200fffffe"
       "1f000001",
       0x012c'2ec5},
      {"RC ACKNOWLEDGE, IPv6", Ipv6(), 0,
       "1100ffff0000004200fffffe"
       "1f000001",
       "ffffffffffffffff"
       "6fffffff001c11fffe80000000000000000000000000000120010db8000000000000000000000002"
       "c00012b7001cffff"
       "1100ffffff00004200fffffe"
       "1f000001",
       0xd790'5d23},
      {"RC WRITE_ONLY_WITH_IMM, pad 2, IPv6", Ipv6(), 0,
       "0ba0800100abcdef80123456"
       "112233445566778899aabbcc00000006"
       "01020304"
       "76657262656e0000",
       "ffffffffffffffff"
       "6fffffff003411fffe80000000000000000000000000000120010db8000000000000000000000002"
       "c00012b70034ffff"
       "0ba08001ffabcdef80123456"
       "112233445566778899aabbcc00000006"
       "01020304"
       "76657262656e0000",
       0x4fea'e666},
  };
}

TEST(IcrcTest, AgreesWithPacketsWorkedOutByHand) {
  for (const Golden& golden : Goldens()) {
    SCOPED_TRACE(golden.name);
    Bytes covered = FromHex(golden.covered);
    EXPECT_EQ(crc32_gzip_refl(0, reinterpret_cast<const uint8_t*>(covered.data()), covered.size()),
              golden.icrc);
    Bytes packet = FromHex(golden.packet);
    EXPECT_EQ(ComputeIcrc(golden.address, golden.ip_id, packet.data(),
                          static_cast<uint32_t>(packet.size())),
              golden.icrc);
    uint16_t ip_id = 0;
    EXPECT_EQ(Verify(golden.address, golden.ip_id, Finished(golden.address, golden.ip_id, packet),
                     &ip_id),
              IcrcCheck::kExact);
  }
}

TEST(IcrcTest, StandsLeastSignificantByteFirst) {
  // Seen on the wire: CRC-32 0x07cb199e goes as 9e 19 cb 07.
  std::byte bytes[4];
  StoreIcrc(0x07cb'199e, bytes);
  EXPECT_EQ(Bytes(bytes, bytes + 4), FromHex("9e19cb07"));
}

TEST(IcrcTest, LeavesOutWhatRoutersChange) {
  Bytes packet = RandomPacket(64, 1);
  for (PacketAddress address : {Ipv4(1, 2, 3), Ipv6()}) {
    uint32_t icrc = ComputeIcrc(address, 7, packet.data(), 64);
    PacketAddress changed = address;
    changed.traffic_class = 0xb9;
    changed.hop_limit = 1;
    changed.flow_label = 0xf'ffff;
    EXPECT_EQ(ComputeIcrc(changed, 7, packet.data(), 64), icrc);
    Bytes congested = packet;
    congested[4] ^= std::byte{0xff};
    EXPECT_EQ(ComputeIcrc(address, 7, congested.data(), 64), icrc);
  }
}

TEST(IcrcTest, CoversAddressesPortsLengthAndIdentification) {
  Bytes packet = RandomPacket(64, 2);
  for (bool is_ipv4 : {true, false}) {
    const PacketAddress address = is_ipv4 ? Ipv4(0x0a00'0001, 0x0a00'0002, 9) : Ipv6();
    uint32_t icrc = ComputeIcrc(address, 7, packet.data(), 64);
    auto differs = [&](auto change) {
      PacketAddress changed = address;
      change(changed);
      return ComputeIcrc(changed, 7, packet.data(), 64) != icrc;
    };
    EXPECT_TRUE(differs([](PacketAddress& a) { a.source_port ^= 0x100; }));
    EXPECT_TRUE(differs([](PacketAddress& a) { a.destination_port ^= 1; }));
    for (size_t i = is_ipv4 ? 12 : 0; i < 16; ++i) {
      EXPECT_TRUE(differs([i](PacketAddress& a) { a.source.raw[i] ^= 1; }));
      // Still of the same IP version.
      EXPECT_TRUE(differs([i](PacketAddress& a) { a.destination.raw[i] ^= 0x80; }));
    }
    EXPECT_NE(ComputeIcrc(address, 7, packet.data(), 60), icrc);
    EXPECT_EQ(ComputeIcrc(address, 8, packet.data(), 64) != icrc, is_ipv4);
  }
}

TEST(IcrcTest, SolvesEveryIdentification) {
  const PacketAddress address = Ipv4(0x0a00'0001, 0x0a00'0002, 50'000);
  // The shortest packet, an ACK, lengths around powers of two, the longest, any UDP datagram.
  for (uint32_t length : {12u, 16u, 252u, 1'052u, 4'144u, 65'503u}) {
    Bytes packet = RandomPacket(length, length);
    uint32_t zero = ComputeIcrc(address, 0, packet.data(), length);
    packet.resize(length + kIcrcBytes);
    for (uint32_t id = 0; id <= 0xffff; ++id) {
      // The whole CRC once in a while; between, its linearity: two IDs' contributions add up.
      if (length > 4'144 && id % 61 != 0) continue;
      if (length > 252 && id % 7 != 0) continue;
      uint32_t icrc = ComputeIcrc(address, static_cast<uint16_t>(id), packet.data(), length);
      ASSERT_TRUE(id == 0 || icrc != zero);
      StoreIcrc(icrc, packet.data() + length);
      uint16_t solved = 0;
      ASSERT_EQ(Verify(address, 0, packet, &solved),
                id == 0 ? IcrcCheck::kExact : IcrcCheck::kSolved);
      ASSERT_EQ(solved, id);
    }
  }
}

TEST(IcrcTest, TriesTheExpectedIdentificationFirst) {
  const PacketAddress address = Ipv4(1, 2, 3);
  Bytes packet = Finished(address, 0xbeef, RandomPacket(100, 3));
  uint16_t ip_id = 0;
  EXPECT_EQ(Verify(address, 0xbeef, packet, &ip_id), IcrcCheck::kExact);
  EXPECT_EQ(ip_id, 0xbeef);
  EXPECT_EQ(Verify(address, 0x1234, packet, &ip_id), IcrcCheck::kSolved);
  EXPECT_EQ(ip_id, 0xbeef);
}

TEST(IcrcTest, RandomCrcsPassOneTimeIn65536) {
  const PacketAddress address = Ipv4(0x0a00'0001, 0x0a00'0002, 50'000);
  std::mt19937 random(5);
  for (uint32_t length : {16u, 64u, 1'040u}) {
    Bytes packet = RandomPacket(length, length);
    packet.resize(length + kIcrcBytes);
    int passed = 0;
    for (int i = 0; i < 1 << 19; ++i) {
      StoreIcrc(random(), packet.data() + length);
      uint16_t ip_id;
      IcrcCheck check = Verify(address, 0, packet, &ip_id);
      passed += check != IcrcCheck::kWrong;
      if (check == IcrcCheck::kSolved) {
        // What it says it solved is so.
        EXPECT_EQ(Verify(address, ip_id, packet, &ip_id), IcrcCheck::kExact);
      }
    }
    EXPECT_GE(passed, 1);  // 8 expected
    EXPECT_LE(passed, 24);
  }
}

// Bits of a flipped packet that pass the check. With the right identification expected, a pass is
// never exact.
std::vector<uint32_t> FlipsThatPass(const PacketAddress& address, uint16_t ip_id, uint32_t length) {
  Bytes packet = Finished(address, ip_id, RandomPacket(length, length));
  std::vector<uint32_t> passed;
  for (uint32_t bit = 0; bit < 8 * packet.size(); ++bit) {
    if (bit / 8 == 4) continue;  // not covered
    packet[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    uint16_t solved;
    IcrcCheck check = Verify(address, ip_id, packet, &solved);
    EXPECT_NE(check, IcrcCheck::kExact) << bit;
    if (check != IcrcCheck::kWrong) passed.push_back(bit);
    packet[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
  return passed;
}

// Whether a flip passes depends on how far from the identification it is, and on nothing else: the
// longest packet stands for all.
TEST(IcrcTest, FlippedBitsAreSeen) {
  for (uint32_t length : {16u, 300u, kPacketBytesMax - kIcrcBytes}) {
    EXPECT_EQ(FlipsThatPass(Ipv6(), 0, length), std::vector<uint32_t>{}) << length;
    EXPECT_EQ(FlipsThatPass(Ipv4(0x0a00'0001, 0x0a00'0002, 9), 0x3333, length),
              std::vector<uint32_t>{})
        << length;
  }
}

TEST(IcrcTest, APayloadWhoseCrcIsKnownIsNotReadAgain) {
  for (const PacketAddress& address : {Ipv4(0x0a00'0001, 0x0a00'0002, 9), Ipv6()}) {
    for (uint32_t header_bytes : {kBthBytes, 28u, 44u}) {
      for (uint32_t payload_bytes : {0u, 1u, 2u, 3u, 4u, 8u, 256u, 1'023u, 4'096u}) {
        const uint32_t length = header_bytes + payload_bytes + PadBytes(payload_bytes);
        Bytes packet = RandomPacket(length, length);
        const uint32_t icrc = ComputeIcrc(address, 7, packet.data(), length);
        const KnownPayload known = {header_bytes, payload_bytes,
                                    UpdateCrc32(0, packet.data() + header_bytes, payload_bytes)};
        std::fill_n(packet.begin() + header_bytes, payload_bytes, std::byte{0xaa});
        EXPECT_EQ(ComputeIcrc(address, 7, packet.data(), length, known), icrc)
            << header_bytes << ", " << payload_bytes;
      }
    }
  }
}

// Short packets take a way of their own; what is known of a payload makes them take the other.
TEST(IcrcTest, IsTheSameBothWays) {
  for (const PacketAddress& address : {Ipv4(0x0a00'0001, 0x0a00'0002, 50'000), Ipv6()}) {
    for (uint32_t length = kBthBytes; length < 200; ++length) {
      const Bytes packet = RandomPacket(length, length);
      const uint32_t rest = length - kBthBytes;
      const uint32_t crc = UpdateCrc32(0, packet.data() + kBthBytes, rest);
      EXPECT_EQ(ComputeIcrc(address, 7, packet.data(), length),
                ComputeIcrc(address, 7, packet.data(), length, {kBthBytes, rest, crc}))
          << length;
    }
  }
}

TEST(IcrcTest, ReadsNothingOutsideAnyPacket) {
  for (const PacketAddress& address : {Ipv4(1, 2, 3), Ipv6()}) {
    for (uint32_t length = kIcrcBytes; length < 80; ++length) {
      Bytes packet = RandomPacket(length, length);
      uint16_t ip_id = 0;
      EXPECT_EQ(Verify(address, 0, packet, &ip_id), IcrcCheck::kWrong) << length;
      packet.resize(length - kIcrcBytes);
      packet = Finished(address, 0x55, packet);
      EXPECT_EQ(Verify(address, 0x55, packet, &ip_id), IcrcCheck::kExact) << length;
    }
    // Longer than any IPv4 packet: nothing can have been solved.
    Bytes packet = Finished(address, 1, RandomPacket(70'000, 1));
    uint16_t ip_id = 0;
    EXPECT_EQ(Verify(address, 2, packet, &ip_id),
              address.IsIpv4() ? IcrcCheck::kWrong : IcrcCheck::kExact);
  }
}

}  // namespace
}  // namespace verbena::transport::wire
