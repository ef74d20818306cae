#include "transport/cm/message.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace verbena::transport::cm {
namespace {

Mad Random(std::mt19937& random, Attribute attribute) {
  Mad mad;
  for (std::byte& byte : mad) byte = static_cast<std::byte>(random());
  const Mad header = Encode({.transaction_id = 0x1122334455667788, .body = Rtu{}});
  std::copy_n(header.begin(), kMadHeaderBytes, mad.begin());
  mad[16] = std::byte{0};
  mad[17] = static_cast<std::byte>(attribute);
  return mad;
}

constexpr Attribute kAll[] = {Attribute::kReq,  Attribute::kMra,     Attribute::kRej,
                              Attribute::kRep,  Attribute::kRtu,     Attribute::kDreq,
                              Attribute::kDrep, Attribute::kSidrReq, Attribute::kSidrRep,
                              Attribute::kLap,  Attribute::kApr};

// Where a field's bits are, by the tables of IBTA 12.6 to 12.11: of 232 bytes of data.
struct Place {
  uint32_t byte, bit, width;
};

// The bits that differ between two messages.
std::vector<uint32_t> DifferentBits(const Mad& a, const Mad& b) {
  std::vector<uint32_t> bits;
  for (uint32_t i = 0; i < kMadBytes * 8; ++i) {
    const std::byte mask = std::byte{0x80} >> i % 8;
    if ((a[i / 8] & mask) != (b[i / 8] & mask)) bits.push_back(i);
  }
  return bits;
}

template <typename T>
void ExpectAt(const Place& place, const T& blank, const T& full) {
  const auto bits = DifferentBits(Encode({.body = blank}), Encode({.body = full}));
  std::vector<uint32_t> expected(place.width);
  std::iota(expected.begin(), expected.end(), (kMadHeaderBytes + place.byte) * 8 + place.bit);
  EXPECT_EQ(bits, expected) << "byte " << place.byte;
}

Gid FullGid() {
  Gid gid;
  gid.raw.fill(0xff);
  return gid;
}

TEST(CmMessage, HeaderIsThatOfACommunicationManagementMad) {
  const Mad mad = Encode({.transaction_id = 0x0102030405060708, .body = Dreq{}});
  const uint8_t expected[kMadHeaderBytes] = {1, 7, 2, 3, 0, 0,    0, 0, 1, 2, 3, 4,
                                             5, 6, 7, 8, 0, 0x15, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(std::memcmp(mad.data(), expected, sizeof expected), 0);
}

TEST(CmMessage, FieldsOfAReqAreWhereTheSpecificationHasThem) {
  const Req blank;
  auto expect = [&](const Place& place, auto member, auto full) {
    Req req;
    req.*member = full;
    ExpectAt(place, blank, req);
  };
  expect({0, 0, 32}, &Req::local_comm_id, CommId{0xffff'ffff});
  expect({8, 0, 64}, &Req::service_id, ServiceId{~uint64_t{0}});
  expect({16, 0, 64}, &Req::local_ca_guid, ~uint64_t{0});
  expect({28, 0, 32}, &Req::local_qkey, QKey{0xffff'ffff});
  expect({32, 0, 24}, &Req::local_qpn, Qpn{0xff'ffff});
  expect({35, 0, 8}, &Req::responder_resources, uint8_t{0xff});
  expect({39, 0, 8}, &Req::initiator_depth, uint8_t{0xff});
  expect({43, 0, 5}, &Req::remote_cm_response_timeout, uint8_t{31});
  expect({43, 5, 2}, &Req::transport_type, TransportType::kExtended);
  expect({43, 7, 1}, &Req::has_end_to_end_credits, true);
  expect({44, 0, 24}, &Req::starting_psn, Psn{0xff'ffff});
  expect({47, 0, 5}, &Req::local_cm_response_timeout, uint8_t{31});
  expect({47, 5, 3}, &Req::retry_count, uint8_t{7});
  expect({48, 0, 16}, &Req::pkey, PKey{0xffff});
  expect({50, 0, 4}, &Req::path_mtu, uint8_t{15});
  expect({50, 4, 1}, &Req::has_rdc, true);
  expect({50, 5, 3}, &Req::rnr_retry_count, uint8_t{7});
  expect({51, 0, 4}, &Req::max_cm_retries, uint8_t{15});
  expect({51, 4, 1}, &Req::has_srq, true);
  expect({51, 5, 3}, &Req::extended_transport_type, uint8_t{7});
  auto expect_path = [&](const Place& primary, auto member, auto full) {
    Req req;
    req.primary.*member = full;
    ExpectAt(primary, blank, req);
    req = {};
    req.alternate.*member = full;
    ExpectAt({primary.byte + 44, primary.bit, primary.width}, blank, req);
  };
  expect_path({52, 0, 16}, &PathFields::local_lid, uint16_t{0xffff});
  expect_path({54, 0, 16}, &PathFields::remote_lid, uint16_t{0xffff});
  expect_path({56, 0, 128}, &PathFields::local_gid, FullGid());
  expect_path({72, 0, 128}, &PathFields::remote_gid, FullGid());
  expect_path({88, 0, 20}, &PathFields::flow_label, uint32_t{0xf'ffff});
  expect_path({91, 2, 6}, &PathFields::packet_rate, uint8_t{63});
  expect_path({92, 0, 8}, &PathFields::traffic_class, uint8_t{255});
  expect_path({93, 0, 8}, &PathFields::hop_limit, uint8_t{255});
  expect_path({94, 0, 4}, &PathFields::sl, uint8_t{15});
  expect_path({94, 4, 1}, &PathFields::is_subnet_local, true);
  expect_path({95, 0, 5}, &PathFields::local_ack_timeout, uint8_t{31});
  Req req;
  req.private_data.fill(std::byte{0xff});
  ExpectAt({140, 0, 92 * 8}, blank, req);
}

// Where Linux has it (ibta_vol1_c12.h); the specification reserves these.
TEST(CmMessage, EceTakesReservedFields) {
  Req req;
  req.ece.vendor_id = 0xff'ffff;
  ExpectAt({5, 0, 24}, Req{}, req);
  auto bytes_of = [](const Mad& mad) {
    std::vector<uint32_t> at;
    for (uint32_t i = 0; i < kMadBytes; ++i) {
      if (mad[i] == std::byte{0xff}) at.push_back(i);
    }
    return at;
  };
  Rep rep;
  rep.ece.vendor_id = 0xff'ffff;
  EXPECT_EQ(bytes_of(Encode({.body = rep})), (std::vector<uint32_t>{39, 43, 47}));
  SidrRep sidr_rep;
  sidr_rep.ece.vendor_id = 0xff'ffff;
  EXPECT_EQ(bytes_of(Encode({.body = sidr_rep})), (std::vector<uint32_t>{30, 31, 35}));

  rep.ece = {.vendor_id = 0x123456, .options = 0x89abcdef};
  const Mad mad = Encode({.body = rep});
  EXPECT_EQ(mad[39], std::byte{0x12}) << "the most significant byte first";
  EXPECT_EQ(mad[20], std::byte{0x89});
  EXPECT_EQ(mad[23], std::byte{0xef});
  Message message;
  ASSERT_EQ(Decode(mad.data(), mad.size(), &message), DecodeError::kNone);
  EXPECT_EQ(std::get<Rep>(message.body).ece, rep.ece);
}

TEST(CmMessage, FieldsOfARepAreWhereTheSpecificationHasThem) {
  const Rep blank;
  auto expect = [&](const Place& place, auto member, auto full) {
    Rep rep;
    rep.*member = full;
    ExpectAt(place, blank, rep);
  };
  expect({0, 0, 32}, &Rep::local_comm_id, CommId{0xffff'ffff});
  expect({4, 0, 32}, &Rep::remote_comm_id, CommId{0xffff'ffff});
  expect({8, 0, 32}, &Rep::local_qkey, QKey{0xffff'ffff});
  expect({12, 0, 24}, &Rep::local_qpn, Qpn{0xff'ffff});
  expect({20, 0, 24}, &Rep::starting_psn, Psn{0xff'ffff});
  expect({24, 0, 8}, &Rep::responder_resources, uint8_t{0xff});
  expect({25, 0, 8}, &Rep::initiator_depth, uint8_t{0xff});
  expect({26, 0, 5}, &Rep::target_ack_delay, uint8_t{31});
  expect({26, 5, 2}, &Rep::failover_accepted, uint8_t{3});
  expect({26, 7, 1}, &Rep::has_end_to_end_credits, true);
  expect({27, 0, 3}, &Rep::rnr_retry_count, uint8_t{7});
  expect({27, 3, 1}, &Rep::has_srq, true);
  expect({28, 0, 64}, &Rep::local_ca_guid, ~uint64_t{0});
  Rep rep;
  rep.private_data.fill(std::byte{0xff});
  ExpectAt({36, 0, 196 * 8}, blank, rep);
}

TEST(CmMessage, FieldsOfTheOthersAreWhereTheSpecificationHasThem) {
  Rej rej;
  rej.reason = static_cast<RejectReason>(0xffff);
  ExpectAt({10, 0, 16}, Rej{.reason = static_cast<RejectReason>(0)}, rej);
  ExpectAt({8, 0, 2}, Rej{}, Rej{.about = static_cast<About>(3)});
  ExpectAt({9, 0, 7}, Rej{}, Rej{.info_bytes = 127});
  ExpectAt({8, 0, 2}, Mra{}, Mra{.about = static_cast<About>(3)});
  ExpectAt({9, 0, 5}, Mra{}, Mra{.service_timeout = 31});
  ExpectAt({8, 0, 24}, Dreq{}, Dreq{.remote_qpn = Qpn{0xff'ffff}});
  ExpectAt({12, 0, 24}, Lap{}, Lap{.remote_qpn = Qpn{0xff'ffff}});
  ExpectAt({15, 0, 5}, Lap{}, Lap{.remote_cm_response_timeout = 31});
  ExpectAt({40, 0, 128}, Lap{}, Lap{.alternate = {.remote_gid = FullGid()}});
  ExpectAt({59, 0, 8}, Lap{}, Lap{.alternate = {.traffic_class = 255}});
  ExpectAt({61, 2, 6}, Lap{}, Lap{.alternate = {.packet_rate = 63}});
  ExpectAt({9, 0, 8}, Apr{}, Apr{.status = static_cast<AprStatus>(255)});
  ExpectAt({4, 0, 16}, SidrReq{}, SidrReq{.pkey = PKey{0xffff}});
  ExpectAt({8, 0, 64}, SidrReq{}, SidrReq{.service_id = ServiceId{~uint64_t{0}}});
  ExpectAt({4, 0, 8}, SidrRep{}, SidrRep{.status = static_cast<SidrStatus>(255)});
  ExpectAt({8, 0, 24}, SidrRep{}, SidrRep{.qpn = Qpn{0xff'ffff}});
  ExpectAt({12, 0, 64}, SidrRep{}, SidrRep{.service_id = ServiceId{~uint64_t{0}}});
  ExpectAt({20, 0, 32}, SidrRep{}, SidrRep{.qkey = QKey{0xffff'ffff}});
}

TEST(CmMessage, WhatIsEncodedIsDecoded) {
  std::mt19937 random(1);
  for (Attribute attribute : kAll) {
    SCOPED_TRACE(NameOf(attribute));
    for (int round = 0; round < 50; ++round) {
      const Mad mad = Random(random, attribute);
      Message message, again;
      ASSERT_EQ(Decode(mad.data(), mad.size(), &message), DecodeError::kNone);
      EXPECT_EQ(message.transaction_id, 0x1122334455667788u);
      const Mad encoded = Encode(message);
      ASSERT_EQ(Decode(encoded.data(), encoded.size(), &again), DecodeError::kNone);
      EXPECT_EQ(again, message);
      // What was lost on the way is what is reserved: no more than the gaps between fields.
      EXPECT_LT(DifferentBits(mad, encoded).size(), 160u);
    }
  }
}

TEST(CmMessage, WhatIsNoCmMadIsRefused) {
  const Mad good = Encode({.transaction_id = 7, .body = Rtu{}});
  Message message;
  for (size_t length : {size_t{0}, size_t{23}, size_t{24}, size_t{255}, size_t{257}}) {
    std::vector<std::byte> bytes(length);
    std::copy_n(good.begin(), std::min(length, good.size()), bytes.begin());
    EXPECT_EQ(Decode(bytes.data(), length, &message), DecodeError::kWrongLength) << length;
  }
  auto refused = [&](size_t at, uint8_t value) {
    Mad bad = good;
    bad[at] = std::byte{value};
    Message out;
    return Decode(bad.data(), bad.size(), &out);
  };
  EXPECT_EQ(refused(0, 2), DecodeError::kBadVersion);
  EXPECT_EQ(refused(1, 3), DecodeError::kWrongClass);
  EXPECT_EQ(refused(3, 0x81), DecodeError::kBadMethod);
  EXPECT_EQ(refused(2, 1), DecodeError::kBadClassVersion);
  EXPECT_EQ(refused(17, 0x0f), DecodeError::kUnknownAttribute);
  EXPECT_EQ(refused(17, 0x1b), DecodeError::kUnknownAttribute);
  EXPECT_EQ(refused(16, 1), DecodeError::kUnknownAttribute);
}

TEST(CmMessage, TheTransactionOfAnotherVersionIsKnownSoThatItCanBeRejected) {
  Mad mad = Encode({.transaction_id = 7, .body = Rtu{}});
  mad[2] = std::byte{3};
  Message message;
  EXPECT_EQ(Decode(mad.data(), mad.size(), &message), DecodeError::kBadClassVersion);
  EXPECT_EQ(message.transaction_id, 7u);
}

TEST(CmMessage, IsDescribedInALine) {
  Req req;
  req.local_comm_id = CommId{0x10};
  req.service_id = ServiceId{0x0106'1234};
  req.local_qpn = Qpn{0x11};
  EXPECT_EQ(Describe({.body = req}),
            "REQ comm 0x00000010, service 0x0000000001061234, QPN 0x000011, PSN 0x000000");
  EXPECT_EQ(Describe({.body = Rej{.local_comm_id = CommId{1},
                                  .remote_comm_id = CommId{2},
                                  .reason = RejectReason::kConsumerDefined}}),
            "REJ comm 0x00000001 to 0x00000002, reason 28");
}

}  // namespace
}  // namespace verbena::transport::cm
