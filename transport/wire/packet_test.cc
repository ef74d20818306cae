// Packets to bytes and back, for every opcode of every service; and bytes that are no packets.
#include "transport/wire/packet.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

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

std::string ToHex(const std::byte* bytes, size_t length) {
  std::string hex;
  for (size_t i = 0; i < length; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", std::to_integer<unsigned>(bytes[i]));
    hex += digits;
  }
  return hex;
}

std::string Encoded(const Pdu& pdu) {
  std::byte out[kHeaderBytesMax];
  uint32_t bytes = EncodeHeaders(pdu, out);
  return ToHex(out, bytes);
}

// The whole packet: headers, payload, pad, and any ICRC.
Bytes Packet(const Pdu& pdu) {
  Bytes packet(kHeaderBytesMax);
  packet.resize(EncodeHeaders(pdu, packet.data()));
  packet.insert(packet.end(), pdu.payload.bytes, pdu.payload.bytes + pdu.payload.length);
  packet.resize(packet.size() + PadBytes(pdu.payload.length) + kIcrcBytes);
  return packet;
}

DecodeError Decode(const Bytes& packet, Pdu* out) {
  return wire::Decode(packet.data(), static_cast<uint32_t>(packet.size()), out);
}

struct Kind {
  Service service;
  Opcode opcode;
  const OpcodeInfo* info;
};
std::vector<Kind> AllKinds() {
  std::vector<Kind> kinds;
  for (int service = 0; service < kServiceCount; ++service) {
    for (int opcode = 0; opcode < 32; ++opcode) {
      const OpcodeInfo* info = LookUpOpcode(static_cast<Opcode>(opcode));
      if (info == nullptr || (info->services & 1 << service) == 0) continue;
      kinds.push_back({static_cast<Service>(service), static_cast<Opcode>(opcode), info});
    }
  }
  return kinds;
}

Pdu RandomPdu(const Kind& kind, std::mt19937& random, const Bytes& payload) {
  auto random64 = [&random] { return static_cast<uint64_t>(random()) << 32 | random(); };
  Pdu pdu;
  pdu.service = kind.service;
  pdu.opcode = kind.opcode;
  pdu.ack_request = random() % 2 != 0;
  pdu.solicited = random() % 2 != 0;
  pdu.pkey = PKey(static_cast<uint16_t>(random()));
  pdu.dest_qpn = Qpn(random() & 0xff'ffff);
  pdu.psn = Psn(random());
  if (kind.service == Service::kUd) {
    pdu.qkey = QKey(random());
    pdu.src_qpn = Qpn(random() & 0xff'ffff);
  }
  if (kind.info->has_reth || kind.info->has_atomic_eth) {
    pdu.remote_addr = random64();
    pdu.rkey = RKey(random());
  }
  if (kind.info->has_reth) pdu.dma_length = random();
  if (kind.info->has_feth) {
    pdu.flush_type = random() % 16;
    pdu.flush_level = random() % 4;
  }
  if (kind.info->has_atomic_eth) {
    pdu.compare = random64();
    pdu.swap_or_add = random64();
  }
  if (kind.info->has_aeth) {
    pdu.ack_type = static_cast<AckType>(random() % 3);
    if (pdu.ack_type == AckType::kAck) pdu.credits = random() % 32;
    if (pdu.ack_type == AckType::kRnrNak) pdu.rnr_timer_code = random() % 32;
    if (pdu.ack_type == AckType::kNak) pdu.nak_code = static_cast<NakCode>(random() % 5);
    pdu.msn = Msn(random() & 0xff'ffff);
    if (kind.info->is_atomic) pdu.atomic_original = random64();
  }
  if (kind.info->has_imm || kind.info->has_ieth) pdu.imm_or_rkey = random();
  pdu.payload.bytes = payload.data();
  pdu.payload.length = static_cast<uint32_t>(payload.size());
  return pdu;
}

Bytes RandomBytes(std::mt19937& random, size_t length) {
  Bytes bytes(length);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

void ExpectSame(const Pdu& a, const Pdu& b) {
  EXPECT_EQ(a.service, b.service);
  EXPECT_EQ(a.opcode, b.opcode);
  EXPECT_EQ(a.ack_request, b.ack_request);
  EXPECT_EQ(a.solicited, b.solicited);
  EXPECT_EQ(a.pkey, b.pkey);
  EXPECT_EQ(a.src_qpn, b.src_qpn);
  EXPECT_EQ(a.dest_qpn, b.dest_qpn);
  EXPECT_EQ(a.psn, b.psn);
  EXPECT_EQ(a.psn_count, b.psn_count);
  EXPECT_EQ(a.flush_type, b.flush_type);
  EXPECT_EQ(a.flush_level, b.flush_level);
  EXPECT_EQ(a.path, b.path);
  EXPECT_EQ(a.remote_addr, b.remote_addr);
  EXPECT_EQ(a.rkey, b.rkey);
  EXPECT_EQ(a.dma_length, b.dma_length);
  EXPECT_EQ(a.compare, b.compare);
  EXPECT_EQ(a.swap_or_add, b.swap_or_add);
  EXPECT_EQ(a.ack_type, b.ack_type);
  EXPECT_EQ(a.nak_code, b.nak_code);
  EXPECT_EQ(a.rnr_timer_code, b.rnr_timer_code);
  EXPECT_EQ(a.credits, b.credits);
  EXPECT_EQ(a.msn, b.msn);
  EXPECT_EQ(a.atomic_original, b.atomic_original);
  EXPECT_EQ(a.qkey, b.qkey);
  EXPECT_EQ(a.imm_or_rkey, b.imm_or_rkey);
  ASSERT_EQ(a.payload.length, b.payload.length);
  EXPECT_TRUE(std::equal(a.payload.bytes, a.payload.bytes + a.payload.length, b.payload.bytes));
}

// --- bytes, written down ------------------------------------------------------------------------

TEST(PacketTest, UdSendBytes) {
  Pdu pdu;
  pdu.service = Service::kUd;
  pdu.opcode = Opcode::kSendOnly;
  pdu.solicited = true;
  pdu.pkey = PKey(0xffff);
  pdu.dest_qpn = Qpn(0x11);
  pdu.psn = Psn(0x102);
  pdu.qkey = QKey(0x1111'1111);
  pdu.src_qpn = Qpn(0x12);
  pdu.payload.length = 5;
  EXPECT_EQ(Encoded(pdu),
            "64b0ffff"  // UD SEND_ONLY; SE, pad 3, version 0; P_Key
            "00000011"  // reserved; destination QP
            "00000102"  // no AckReq; PSN
            "11111111"  // DETH: Q_Key
            "00000012");
}

TEST(PacketTest, WriteWithImmediateBytes) {
  Pdu pdu;
  pdu.opcode = Opcode::kWriteOnlyWithImm;
  pdu.ack_request = true;
  pdu.pkey = PKey(0x8001);
  pdu.dest_qpn = Qpn(0xab'cdef);
  pdu.psn = Psn(0x12'3456);
  pdu.remote_addr = 0x1122'3344'5566'7788;
  pdu.rkey = RKey(0x99aa'bbcc);
  pdu.dma_length = 6;
  const uint8_t immediate[4] = {1, 2, 3, 4};  // as it lies in the program's memory
  std::memcpy(&pdu.imm_or_rkey, immediate, sizeof(immediate));
  pdu.payload.length = 6;
  EXPECT_EQ(Encoded(pdu),
            "0b208001"
            "00abcdef"
            "80123456"
            "112233445566778899aabbcc00000006"
            "01020304");
}

TEST(PacketTest, AcknowledgeBytes) {
  Pdu pdu;
  pdu.opcode = Opcode::kAcknowledge;
  pdu.pkey = PKey(0xffff);
  pdu.dest_qpn = Qpn(0x42);
  pdu.psn = Psn(0xff'fffe);
  pdu.msn = Msn(1);
  const std::string bth = "1100ffff0000004200fffffe";
  EXPECT_EQ(Encoded(pdu), bth + "1f000001");  // what rxe sends too
  pdu.credits = 5;
  pdu.msn = Msn(0xff'ffff);
  EXPECT_EQ(Encoded(pdu), bth + "05ffffff");
  pdu.ack_type = AckType::kRnrNak;
  pdu.rnr_timer_code = 14;
  EXPECT_EQ(Encoded(pdu), bth + "2effffff");
  pdu.ack_type = AckType::kNak;
  pdu.nak_code = NakCode::kRemoteAccessError;
  EXPECT_EQ(Encoded(pdu), bth + "62ffffff");
}

TEST(PacketTest, AtomicBytes) {
  Pdu pdu;
  pdu.opcode = Opcode::kCompareSwap;
  pdu.remote_addr = 0x10;
  pdu.rkey = RKey(2);
  pdu.swap_or_add = 0x0102'0304'0506'0708;
  pdu.compare = 0x1112'1314'1516'1718;
  EXPECT_EQ(Encoded(pdu),
            "130000000000000000000000"
            "000000000000001000000002"
            "01020304050607081112131415161718");
  pdu.opcode = Opcode::kAtomicAcknowledge;
  pdu.msn = Msn(3);
  pdu.atomic_original = 0x2122'2324'2526'2728;
  EXPECT_EQ(Encoded(pdu),
            "120000000000000000000000"
            "1f000003"
            "2122232425262728");
}

TEST(PacketTest, InvalidateBytes) {
  Pdu pdu;
  pdu.opcode = Opcode::kSendOnlyWithInvalidate;
  pdu.imm_or_rkey = 0x0102'0304;  // an rkey is a number
  EXPECT_EQ(Encoded(pdu), "17000000000000000000000001020304");
}

// The FETH stands before the RETH: type in the low four bits, level in the two above.
TEST(PacketTest, FlushBytes) {
  Pdu pdu;
  pdu.opcode = Opcode::kFlush;
  pdu.flush_type = flush::kPersistent;
  pdu.flush_level = flush::kMr;
  pdu.remote_addr = 0x1122'3344'5566'7788;
  pdu.rkey = RKey(0x99aa'bbcc);
  pdu.dma_length = 6;
  EXPECT_EQ(Encoded(pdu),
            "1c0000000000000000000000"
            "00000012"
            "112233445566778899aabbcc00000006");
  EXPECT_NE(Describe(pdu).find("RC FLUSH"), std::string::npos);
  EXPECT_NE(Describe(pdu).find("FETH type 0x2 level 1"), std::string::npos);
}

TEST(PacketTest, ServicesAndLengths) {
  // First byte and header bytes, by hand from the OpCode table.
  struct Row {
    Service service;
    Opcode opcode;
    uint8_t first_byte;
    uint32_t header_bytes;
  };
  for (const Row& row : {Row{Service::kRc, Opcode::kSendFirst, 0x00, 12},
                         Row{Service::kRc, Opcode::kReadRequest, 0x0c, 28},
                         Row{Service::kRc, Opcode::kReadResponseFirst, 0x0d, 16},
                         Row{Service::kRc, Opcode::kReadResponseMiddle, 0x0e, 12},
                         Row{Service::kRc, Opcode::kFetchAdd, 0x14, 40},
                         Row{Service::kRc, Opcode::kSendLastWithInvalidate, 0x16, 16},
                         Row{Service::kRc, Opcode::kFlush, 0x1c, 32},
                         Row{Service::kRc, Opcode::kAtomicWrite, 0x1d, 28},
                         Row{Service::kUc, Opcode::kSendFirst, 0x20, 12},
                         Row{Service::kUc, Opcode::kSendOnlyWithImm, 0x25, 16},
                         Row{Service::kUc, Opcode::kWriteOnly, 0x2a, 28},
                         Row{Service::kUc, Opcode::kWriteOnlyWithImm, 0x2b, 32},
                         Row{Service::kUd, Opcode::kSendOnly, 0x64, 20},
                         Row{Service::kUd, Opcode::kSendOnlyWithImm, 0x65, 24}}) {
    Pdu pdu;
    pdu.service = row.service;
    pdu.opcode = row.opcode;
    std::byte out[kHeaderBytesMax];
    EXPECT_EQ(EncodeHeaders(pdu, out), row.header_bytes);
    EXPECT_EQ(std::to_integer<uint8_t>(out[0]), row.first_byte);
  }
}

// --- there and back -----------------------------------------------------------------------------

TEST(PacketTest, EveryOpcodeComesBack) {
  std::vector<Kind> kinds = AllKinds();
  ASSERT_EQ(kinds.size(), 25u + 12u + 2u);
  std::mt19937 random(1);
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(kind.info->name);
    for (int i = 0; i < 200; ++i) {
      size_t length = i < 20 ? static_cast<size_t>(i) : random() % (kPayloadBytesMax + 1);
      Bytes payload = RandomBytes(random, length);
      Pdu sent = RandomPdu(kind, random, payload);
      Bytes packet = Packet(sent);
      ASSERT_LE(packet.size(), kPacketBytesMax);
      ASSERT_EQ(packet.size() % 4, 0u);
      Pdu received;
      ASSERT_EQ(Decode(packet, &received), DecodeError::kNone);
      ExpectSame(sent, received);
      EXPECT_NE(Describe(received).find(kind.info->name), std::string::npos);
    }
  }
}

TEST(PacketTest, BitsThatSayNothingAreIgnored) {
  std::mt19937 random(2);
  for (const Kind& kind : AllKinds()) {
    Bytes payload = RandomBytes(random, 8);
    Pdu sent = RandomPdu(kind, random, payload);
    Bytes packet = Packet(sent);
    packet[1] |= std::byte{0x40};  // MigReq
    packet[4] = std::byte{0xff};   // FECN, BECN, reserved
    packet[8] |= std::byte{0x7f};  // reserved
    if (kind.service == Service::kUd) packet[16] = std::byte{0xff};
    if (kind.info->has_feth) {
      for (int i = 12; i < 15; ++i) packet[i] = std::byte{0xff};
      packet[15] |= std::byte{0xc0};
    }
    Pdu received;
    ASSERT_EQ(Decode(packet, &received), DecodeError::kNone);
    ExpectSame(sent, received);
  }
}

// --- what is no packet --------------------------------------------------------------------------

TEST(PacketTest, EveryTruncationIsRefusedOrShorter) {
  std::mt19937 random(3);
  for (const Kind& kind : AllKinds()) {
    SCOPED_TRACE(kind.info->name);
    Bytes payload = RandomBytes(random, 13);
    Pdu sent = RandomPdu(kind, random, payload);
    Bytes whole = Packet(sent);
    std::byte headers[kHeaderBytesMax];
    size_t header_bytes = EncodeHeaders(sent, headers);
    for (size_t length = 0; length < whole.size(); ++length) {
      Bytes packet(whole.begin(), whole.begin() + length);  // of exactly this size, for ASan
      Pdu received;
      DecodeError error = Decode(packet, &received);
      if (length < header_bytes + kIcrcBytes) {
        EXPECT_EQ(error, DecodeError::kTooShort);
      } else if (length % 4 != 0 || length == header_bytes + kIcrcBytes) {
        EXPECT_EQ(error, DecodeError::kBadPad);  // which says 3
      } else {
        EXPECT_EQ(error, DecodeError::kNone);
        EXPECT_EQ(received.payload.length, length - header_bytes - kIcrcBytes - 3);
      }
      EXPECT_EQ(received.payload.bytes != nullptr, error == DecodeError::kNone);
    }
  }
}

TEST(PacketTest, OpcodesOfNoServiceAreRefused) {
  int known = 0;
  for (int first_byte = 0; first_byte < 256; ++first_byte) {
    Bytes packet(64);
    packet[0] = static_cast<std::byte>(first_byte);
    Pdu received;
    DecodeError error = Decode(packet, &received);
    EXPECT_TRUE(error == DecodeError::kNone || error == DecodeError::kUnknownOpcode);
    known += error == DecodeError::kNone;
  }
  EXPECT_EQ(known, 39);
  // A READ by UC, a WRITE by UD, any RD and XRC packet.
  for (int first_byte : {0x2c, 0x6a, 0x15, 0x18, 0x44, 0xa4, 0x81, 0xff}) {
    Bytes packet(64);
    packet[0] = static_cast<std::byte>(first_byte);
    Pdu received;
    EXPECT_EQ(Decode(packet, &received), DecodeError::kUnknownOpcode) << first_byte;
  }
}

TEST(PacketTest, VersionPadAndLengthAreChecked) {
  Bytes packet(12 + 4 + kPayloadBytesMax);
  packet[0] = std::byte{0x04};
  Pdu received;
  ASSERT_EQ(Decode(packet, &received), DecodeError::kNone);
  EXPECT_EQ(received.payload.length, kPayloadBytesMax);
  packet.resize(packet.size() + 4);
  EXPECT_EQ(Decode(packet, &received), DecodeError::kTooLong);
  packet[1] = std::byte{0x30};
  EXPECT_EQ(Decode(packet, &received), DecodeError::kTooLong);  // by one byte
  packet.resize(16);
  EXPECT_EQ(Decode(packet, &received), DecodeError::kBadPad);
  packet[1] = std::byte{0x00};
  EXPECT_EQ(Decode(packet, &received), DecodeError::kNone);
  packet.resize(17);
  EXPECT_EQ(Decode(packet, &received), DecodeError::kBadPad);
  packet[1] = std::byte{0x01};
  EXPECT_EQ(Decode(packet, &received), DecodeError::kBadVersion);
}

TEST(PacketTest, ReservedSyndromesAreRefused) {
  int taken = 0;
  for (int syndrome = 0; syndrome < 256; ++syndrome) {
    Bytes packet(20);
    packet[0] = std::byte{0x11};
    packet[12] = static_cast<std::byte>(syndrome);
    Pdu received;
    DecodeError error = Decode(packet, &received);
    bool is_defined = syndrome < 0x40 || (syndrome >= 0x60 && syndrome <= 0x64);
    EXPECT_EQ(error, is_defined ? DecodeError::kNone : DecodeError::kReservedSyndrome) << syndrome;
    taken += error == DecodeError::kNone;
  }
  EXPECT_EQ(taken, 69);
}

TEST(PacketTest, GarbageIsReadWithinItsBounds) {
  std::mt19937 random(4);
  int decoded = 0;
  for (int i = 0; i < 100'000; ++i) {
    Bytes packet = RandomBytes(random, random() % 80);
    if (packet.size() > 1) packet[1] &= std::byte{0xf0};  // else most fail by their version
    Pdu received;
    if (Decode(packet, &received) != DecodeError::kNone) continue;
    ++decoded;
    // The payload lies between the headers and the ICRC.
    ASSERT_GE(received.payload.bytes, packet.data() + kBthBytes);
    ASSERT_LE(received.payload.bytes + received.payload.length,
              packet.data() + packet.size() - kIcrcBytes);
    EXPECT_FALSE(Describe(received).empty());
  }
  EXPECT_GT(decoded, 100);
}

// --- text ---------------------------------------------------------------------------------------

TEST(PacketTest, DescribesInOneLine) {
  auto describe = [](const std::string& hex) {
    Pdu pdu;
    Bytes packet = FromHex(hex);
    packet.resize(packet.size() + kIcrcBytes);
    EXPECT_EQ(Decode(packet, &pdu), DecodeError::kNone);
    return Describe(pdu);
  };
  EXPECT_EQ(describe("64b0ffff0000001100000102111111110000001268656c6c6f000000"),
            "UD SEND_ONLY to QP 0x000011 PSN 258 SE; DETH Q_Key 0x11111111 from QP 0x000012; "
            "5 bytes");
  EXPECT_EQ(
      describe("0ba0800100abcdef80123456112233445566778899aabbcc000000060102030476657262656e0000"),
      "RC WRITE_ONLY_WITH_IMM to QP 0xabcdef PSN 1193046 P_Key 0x8001 AckReq SE; RETH address "
      "0x1122334455667788 rkey 0x99aabbcc length 6; ImmDt 0x01020304; 6 bytes");
  EXPECT_EQ(describe("1100ffff0000004200fffffe1f000001"),
            "RC ACKNOWLEDGE to QP 0x000042 PSN 16777214; AETH ACK credits 31 MSN 1");
  EXPECT_EQ(describe("1100ffff0000004200fffffe2e000001"),
            "RC ACKNOWLEDGE to QP 0x000042 PSN 16777214; AETH RNR NAK timer 14 MSN 1");
  EXPECT_EQ(describe("1100ffff0000004200fffffe60000001"),
            "RC ACKNOWLEDGE to QP 0x000042 PSN 16777214; AETH NAK PSN sequence error MSN 1");
  EXPECT_EQ(describe("1300ffff00000001000000020000000000000010000000020000000000000003"
                     "0000000000000004"),
            "RC COMPARE_SWAP to QP 0x000001 PSN 2; AtomicETH address 0x10 rkey 0x00000002 "
            "swap/add 0x3 compare 0x4");
  EXPECT_EQ(
      describe("1200ffff00000001000000021f0000030000000000000004"),
      "RC ATOMIC_ACKNOWLEDGE to QP 0x000001 PSN 2; AETH ACK credits 31 MSN 3; AtomicAckETH 0x4");
  EXPECT_EQ(describe("1700ffff000000010000000200000009"),
            "RC SEND_ONLY_WITH_INVALIDATE to QP 0x000001 PSN 2; IETH rkey 0x00000009");
}

TEST(PacketTest, DescribesPdusThatNoDecoderMade) {
  Pdu pdu;
  pdu.service = static_cast<Service>(9);
  pdu.opcode = static_cast<Opcode>(0x1f);
  pdu.psn_count = PsnCount{7};
  EXPECT_EQ(Describe(pdu), "? opcode 0x1f to QP 0x000000 PSN 0+7 P_Key 0x0000");
  pdu.opcode = Opcode::kAcknowledge;
  pdu.ack_type = AckType::kNak;
  pdu.nak_code = static_cast<NakCode>(30);
  EXPECT_NE(Describe(pdu).find("NAK reserved code"), std::string::npos);
}

TEST(PacketTest, EveryErrorHasAName) {
  std::vector<std::string> names;
  for (int error = 0; error <= static_cast<int>(DecodeError::kReservedSyndrome); ++error) {
    names.emplace_back(NameOf(static_cast<DecodeError>(error)));
    EXPECT_NE(names.back(), "unknown");
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
  EXPECT_STREQ(NameOf(static_cast<DecodeError>(99)), "unknown");
}

TEST(AddressText, OfBothFamilies) {
  Gid v6;
  v6.raw = {0xfe, 0x80};
  v6.raw[15] = 1;
  EXPECT_EQ(AddressText(v6), "fe80::1");
  EXPECT_EQ(AddressText(Gid::FromIpv4(0x0a00'0002)), "10.0.0.2");
}

}  // namespace
}  // namespace verbena::transport::wire
