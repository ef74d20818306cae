// What a UD queue pair sends, what it takes in, and what it drops.
#include "transport/ud/ud_qp.h"

#include "gtest/gtest.h"
#include "transport/common/qp_script.h"
#include "transport/ud/grh.h"

namespace verbena::transport {
namespace {

using shm::VendorErr;
using shm::WrOpcode;

constexpr uint32_t kAh = 3;

class UdScript : public QpScript {
 protected:
  void SetUp() override {
    service_ = Service::kUd;
    path_.sgid = Gid::FromIpv4(0x7f00'0001);
    path_.dgid = Gid::FromIpv4(0x7f00'0002);
    path_.traffic_class = 0xb8;
    path_.hop_limit = 7;
    host_.address_handles[kAh] = path_;
    Build(Config(Service::kUd));
  }
  void Build(const QpConfig& config) {
    qp_ = std::make_unique<UdQp>(config, host_);
    BringUp(QpState::kRts);
  }
  SendWork Send(uint64_t wr_id, uint32_t length, WrOpcode opcode = WrOpcode::kSend) {
    SendWork work = Work(wr_id, opcode, {NewBuffer(length)});
    work.wqe.ah = kAh;
    work.wqe.remote_qpn = kRemoteQpn.value;
    work.wqe.remote_qkey = 0x99;
    return work;
  }
  // A datagram of `data` that carries the QP's Q_Key.
  Pdu Datagram(const std::string& data, Opcode opcode = Opcode::kSendOnly) {
    data_ = data;
    Pdu pdu;
    pdu.service = Service::kUd;
    pdu.opcode = opcode;
    pdu.src_qpn = kRemoteQpn;
    pdu.dest_qpn = kLocalQpn;
    pdu.qkey = QKey(kQKey);
    pdu.path = &path_;
    pdu.payload.length = static_cast<uint32_t>(data_.size());
    pdu.payload.bytes = reinterpret_cast<const std::byte*>(data_.data());
    return pdu;
  }

  Path path_;
  std::string data_;
};

// --- requester
// ------------------------------------------------------------------------------------

TEST_F(UdScript, EachSendIsOneDatagramToItsAddressHandle) {
  SendWork work = Send(1, 20, WrOpcode::kSendWithImm);
  work.wqe.imm_or_rkey = 0x42;
  PostSend(work);
  PostSend(Send(2, 0));
  Pdu pdu = NextRequest();
  EXPECT_EQ(pdu.service, Service::kUd);
  EXPECT_EQ(pdu.opcode, Opcode::kSendOnlyWithImm);
  EXPECT_EQ(pdu.imm_or_rkey, 0x42u);
  EXPECT_EQ(pdu.dest_qpn, kRemoteQpn);
  EXPECT_EQ(pdu.src_qpn, kLocalQpn);
  EXPECT_EQ(pdu.qkey, QKey(0x99));
  EXPECT_EQ(pdu.psn, Psn(kSqPsn));
  EXPECT_EQ(pdu.payload.length, 20u);
  ASSERT_NE(pdu.path, nullptr);
  EXPECT_EQ(pdu.path->dgid, path_.dgid);
  ExpectCompletion(1, WcStatus::kSuccess);
  Pdu next = NextRequest();
  EXPECT_EQ(next.opcode, Opcode::kSendOnly);
  EXPECT_EQ(next.psn, Psn(kSqPsn + 1));
  ExpectCompletion(2, WcStatus::kSuccess);
}

TEST_F(UdScript, QKeyWithTheTopBitStandsForTheQpsOwn) {
  SendWork work = Send(1, 1);
  work.wqe.remote_qkey = 0x8000'0099;
  PostSend(work);
  EXPECT_EQ(NextRequest().qkey, QKey(kQKey));
}

TEST_F(UdScript, DatagramOfExactlyOneMtuLeavesAndOneByteMoreIsALengthError) {
  PostSend(Send(1, kMtu));
  PostSend(Send(2, kMtu + 1));
  PostSend(Send(3, 1));
  EXPECT_EQ(NextRequest().payload.length, kMtu);
  ExpectNoRequest();
  ExpectCompletion(1, WcStatus::kSuccess);
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.status, WcStatus::kLocLenErr);
  EXPECT_EQ(wc.vendor_err, VendorErr::kMessageTooLong);
  ExpectCompletion(3, WcStatus::kWrFlushErr);
  EXPECT_EQ(qp_->state(), QpState::kSqe);
  ASSERT_EQ(MoveTo(QpState::kRts), 0);
  PostSend(Send(4, 1));
  NextRequest();
}

TEST_F(UdScript, OnlySendsAreDatagrams) {
  for (WrOpcode opcode : {WrOpcode::kRdmaWrite, WrOpcode::kRdmaWriteWithImm, WrOpcode::kRdmaRead,
                          WrOpcode::kSendWithInv, WrOpcode::kAtomicFetchAndAdd}) {
    Build(Config(Service::kUd));
    PostSend(Send(1, 1, opcode));
    ExpectNoRequest();
    ExpectCompletion(1, WcStatus::kLocQpOpErr);
  }
}

TEST_F(UdScript, UnknownAddressHandleIsAnOperationError) {
  SendWork work = Send(1, 1);
  work.wqe.ah = kAh + 1;
  PostSend(work);
  ExpectNoRequest();
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.status, WcStatus::kLocQpOpErr);
  EXPECT_EQ(wc.vendor_err, VendorErr::kBadAh);
}

TEST_F(UdScript, BadLKeyIsAProtectionError) {
  SendWork work = Send(1, 8);
  work.sge[0].lkey = 0xdead;
  PostSend(work);
  ExpectNoRequest();
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.status, WcStatus::kLocProtErr);
  EXPECT_EQ(wc.vendor_err, VendorErr::kBadLKey);
}

TEST_F(UdScript, DatagramsReleasedOutOfOrderCompleteInOrder) {
  QpConfig config = Config(Service::kUd);
  config.reports_release = true;
  Build(config);
  PostSend(Send(1, 8));
  PostSend(Send(2, 8));
  Pdu one = NextRequest();
  Pdu two = NextRequest();
  Release(two);
  ExpectNoCompletion();
  Release(one);
  ExpectCompletion(1, WcStatus::kSuccess);
  ExpectCompletion(2, WcStatus::kSuccess);
}

// --- responder
// ------------------------------------------------------------------------------------

TEST_F(UdScript, DatagramLandsBehindFortyBytesOfHeader) {
  shm::Sge buffer = NewBuffer(100, 0xee);
  PostRecv(4, {buffer});
  Pdu pdu = Datagram("hello", Opcode::kSendOnlyWithImm);
  pdu.imm_or_rkey = 0x77;
  pdu.solicited = true;
  Deliver(pdu);
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.wr_id, 4u);
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.opcode, shm::WcOpcode::kRecv);
  EXPECT_EQ(wc.byte_len, 45u);
  EXPECT_EQ(wc.src_qpn, kRemoteQpn);
  EXPECT_EQ(wc.wc_flags, shm::kWcGrh | shm::kWcWithImm);
  EXPECT_EQ(wc.imm_or_rkey, 0x77u);
  EXPECT_EQ(wc.sl, 10);
  EXPECT_TRUE(wc.solicited);
  EXPECT_EQ(ByteAt(buffer, 0), 0);
  EXPECT_EQ(ByteAt(buffer, 20), 0x45);
  EXPECT_EQ(ByteAt(buffer, 40), 'h');
  EXPECT_EQ(ByteAt(buffer, 44), 'o');
  EXPECT_EQ(ByteAt(buffer, 45), 0xee);
}

TEST_F(UdScript, HeaderAndPayloadAreScatteredTogether) {
  shm::Sge head = NewBuffer(42);
  shm::Sge tail = NewBuffer(10);
  PostRecv(4, {head, tail});
  Deliver(Datagram("hello"));
  EXPECT_EQ(NextCompletion().byte_len, 45u);
  EXPECT_EQ(ByteAt(head, 41), 'e');
  EXPECT_EQ(ByteAt(tail, 0), 'l');
}

TEST_F(UdScript, EmptyDatagramIsFortyBytes) {
  PostRecv(4, {NewBuffer(40)});
  Deliver(Datagram(""));
  EXPECT_EQ(NextCompletion().byte_len, 40u);
}

TEST_F(UdScript, Ipv6SourceShowsInServiceLevel) {
  path_.sgid = path_.dgid = Gid{};
  path_.sgid.raw[0] = path_.dgid.raw[0] = 0xfe;
  PostRecv(4, {NewBuffer(100)});
  Deliver(Datagram("x"));
  EXPECT_EQ(NextCompletion().sl, 9);
}

TEST_F(UdScript, WrongQKeyIsDroppedAndCounted) {
  PostRecv(1, {NewBuffer(100)});
  Pdu pdu = Datagram("x");
  pdu.qkey = QKey(kQKey + 1);
  Deliver(pdu);
  ExpectNoCompletion();
  EXPECT_EQ(qp_->counters().qkey_violation, 1u);
  EXPECT_EQ(host_.recvs.size(), 1u);
}

TEST_F(UdScript, PsnsDontMatter) {
  PostRecv(1, {NewBuffer(100)});
  PostRecv(2, {NewBuffer(100)});
  Pdu pdu = Datagram("x");
  pdu.psn = Psn(500);
  Deliver(pdu);
  Deliver(pdu);
  ExpectCompletion(1, WcStatus::kSuccess);
  ExpectCompletion(2, WcStatus::kSuccess);
}

TEST_F(UdScript, NoReceiveWqeDropsTheDatagram) {
  Deliver(Datagram("x"));
  EXPECT_EQ(qp_->counters().out_of_buffer, 1u);
  PostRecv(1, {NewBuffer(100)});
  ExpectNoCompletion();
  Deliver(Datagram("y"));
  ExpectCompletion(1, WcStatus::kSuccess);
}

TEST_F(UdScript, WritesAndOversizeDatagramsAreDropped) {
  PostRecv(1, {NewBuffer(4 * kMtu)});
  Deliver(Datagram("x", Opcode::kWriteOnly));
  Deliver(Datagram("x", Opcode::kSendFirst));
  Deliver(Datagram(std::string(kMtu + 1, 'x')));
  ExpectNoCompletion();
  Deliver(Datagram(std::string(kMtu, 'x')));
  ExpectCompletion(1, WcStatus::kSuccess);
}

TEST_F(UdScript, BufferWithoutRoomForTheHeaderIsALengthErrorAndFailsTheQp) {
  PostRecv(1, {NewBuffer(44)});
  PostRecv(2, {NewBuffer(100)});
  Deliver(Datagram("hello"));
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.status, WcStatus::kLocLenErr);
  EXPECT_EQ(wc.vendor_err, VendorErr::kReceiveTooShort);
  ExpectCompletion(2, WcStatus::kWrFlushErr);
  EXPECT_EQ(qp_->state(), QpState::kErr);
}

TEST_F(UdScript, BadReceiveLKeyIsAProtectionError) {
  shm::Sge buffer = NewBuffer(100);
  memory_.region(buffer.lkey).access = 0;
  PostRecv(1, {buffer});
  Deliver(Datagram("x"));
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.status, WcStatus::kLocProtErr);
  EXPECT_EQ(wc.vendor_err, VendorErr::kLKeyAccess);
}

TEST_F(UdScript, OfATruncatingSrqAReceiveFailsAlone) {
  QpConfig config = Config(Service::kUd);
  config.has_srq = config.truncates = true;
  Build(config);
  hold_placements_ = true;
  shm::Sge forbidden = NewBuffer(100);
  memory_.region(forbidden.lkey).access = 0;
  PostRecv(1, {NewBuffer(100)});
  PostRecv(2, {NewBuffer(100)});
  PostRecv(3, {forbidden});
  PostRecv(4, {NewBuffer(100)});
  Deliver(Datagram("gone"));
  Deliver(Datagram("behind it"));
  FinishPlacement(DmaStatus::kDestinationFault);
  FinishPlacement();
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.status, WcStatus::kLocProtErr);
  EXPECT_EQ(wc.vendor_err, VendorErr::kMemoryFault);
  ExpectCompletion(2, WcStatus::kSuccess);
  Deliver(Datagram("refused"));
  ExpectCompletion(3, WcStatus::kLocProtErr);
  EXPECT_EQ(qp_->state(), QpState::kRts);
  Deliver(Datagram("well"));
  FinishPlacement();
  ExpectCompletion(4, WcStatus::kSuccess);
  PostSend(Send(5, 8));
  NextRequest();
  ExpectCompletion(5, WcStatus::kSuccess);
}

TEST_F(UdScript, SourceFaultIsALostDatagram) {
  hold_placements_ = true;
  PostRecv(1, {NewBuffer(100)});
  Deliver(Datagram("x"));
  FinishPlacement(DmaStatus::kSourceFault);
  ExpectNoCompletion();
  Deliver(Datagram("y"));
  FinishPlacement();
  ExpectCompletion(1, WcStatus::kSuccess);
}

TEST_F(UdScript, ReceivesFromRtrWithoutSayingEstablished) {
  qp_ = std::make_unique<UdQp>(Config(Service::kUd), host_);
  ASSERT_EQ(MoveTo(QpState::kInit), 0);
  PostRecv(1, {NewBuffer(100)});
  Deliver(Datagram("x"));
  ExpectNoCompletion();
  ASSERT_EQ(MoveTo(QpState::kRtr), 0);
  Deliver(Datagram("x"));
  ExpectCompletion(1, WcStatus::kSuccess);
  ExpectNoEvent();
}

// --- the header
// -----------------------------------------------------------------------------------

std::string Hex(const std::byte* bytes, uint32_t count) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (uint32_t i = 0; i < count; ++i) {
    auto b = static_cast<uint8_t>(bytes[i]);
    out += {kDigits[b >> 4], kDigits[b & 15]};
  }
  return out;
}

TEST(GrhTest, Ipv4HeaderStandsBehindTwentyZeros) {
  Path path;
  path.sgid = Gid::FromIpv4(0x7f00'0001);
  path.dgid = Gid::FromIpv4(0x7f00'0002);
  path.traffic_class = 0xb8;
  path.hop_limit = 7;
  std::byte grh[kGrhBytes];
  WriteGrh(path, 5, /*has_imm=*/true, grh);
  // 20 IP + 8 UDP + 12 BTH + 8 DETH + 4 ImmDt + 8 padded payload + 4 ICRC = 64 = 0x40.
  EXPECT_EQ(Hex(grh, 40), std::string(40, '0') +
                              "45b80040"
                              "00004000"
                              "071174f2"
                              "7f000001"
                              "7f000002");
}

TEST(GrhTest, WhatTheWireSaidStandsInIt) {
  Path path;
  path.sgid = Gid::FromIpv4(0x0a00'0001);
  path.dgid = Gid::FromIpv4(0x0a00'0002);
  path.traffic_class = 0xb9;
  path.hop_limit = 7;
  path.ip_id = 0x7f9d;
  std::byte grh[kGrhBytes];
  WriteGrh(path, 5, /*has_imm=*/false, grh);
  const uint8_t expected[20] = {0x45, 0xb9, 0,  60, 0x7f, 0x9d, 0x40, 0, 7, 17,
                                0,    0,    10, 0,  0,    1,    10,   0, 0, 2};
  for (int i = 0; i < 20; ++i) {
    if (i == 10 || i == 11) continue;  // the checksum, which another test adds up
    EXPECT_EQ(static_cast<uint8_t>(grh[20 + i]), expected[i]) << i;
  }
}

TEST(GrhTest, Ipv4ChecksumIsRightForEveryLength) {
  Path path;
  path.sgid = Gid::FromIpv4(0xc0a8'fffe);
  path.dgid = Gid::FromIpv4(0xfffe'ffff);
  for (uint32_t length = 0; length <= 4096; ++length) {
    std::byte grh[kGrhBytes];
    WriteGrh(path, length, false, grh);
    uint32_t sum = 0;
    for (int i = 20; i < 40; i += 2) {
      sum += static_cast<uint32_t>(grh[i]) * 256 + static_cast<uint32_t>(grh[i + 1]);
    }
    EXPECT_EQ((sum & 0xffff) + (sum >> 16), 0xffffu) << length;
  }
}

TEST(GrhTest, Ipv6HeaderFillsAllForty) {
  Path path;
  path.sgid.raw[0] = path.dgid.raw[0] = 0xfe;
  path.sgid.raw[15] = 1;
  path.dgid.raw[15] = 2;
  path.traffic_class = 0x12;
  path.flow_label = 0x34567;
  std::byte grh[kGrhBytes];
  WriteGrh(path, 4, false, grh);
  EXPECT_EQ(Hex(grh, 8), "6123456700241140") << "hop limit 0 means the usual 64";
  EXPECT_EQ(Hex(grh + 8, 16), "fe000000000000000000000000000001");
  EXPECT_EQ(Hex(grh + 24, 16), "fe000000000000000000000000000002");
}

}  // namespace
}  // namespace verbena::transport
