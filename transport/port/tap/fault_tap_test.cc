#include <gtest/gtest.h>

#include <memory>

#include "transport/port/tap/fake_port.h"
#include "transport/port/tap/faults.h"

namespace verbena::transport::tap {
namespace {

constexpr Instant At(int64_t us) { return {us * 1000}; }

// Remembers what it is told.
class FakeNotes : public FaultNotes {
 public:
  void OnDropped(Instant now, const OutPacket& packet, std::string_view note) override {
    dropped.emplace_back(note);
  }
  void NoteNextSent(std::string_view note) override { sent.emplace_back(note); }
  void NoteLastReceived(std::string_view note) override { received.emplace_back(note); }

  std::vector<std::string> dropped, sent, received;
};

class FaultTapTest : public testing::Test {
 protected:
  FaultTapTest() {
    address_.source = Gid::FromIpv4(0x0a00'0001);
    address_.destination = Gid::FromIpv4(0x0a00'0002);
    Rebuild({});
  }

  void Rebuild(SourceQp source_qp, uint64_t held_bytes_max = kHeldBytesMax) {
    FaultTapOptions options;
    options.nic = "v0";
    options.notes = &notes_;
    options.source_qp = std::move(source_qp);
    options.held_bytes_max = held_bytes_max;
    tap_ = std::make_unique<FaultTap>(&port_, &plan_, std::move(options));
  }

  void Rules(const std::string& text, Instant now = At(0)) {
    FaultRules rules;
    std::string error;
    ASSERT_TRUE(ParseFaultRules(text, &rules, &error)) << error;
    plan_.SetRules(std::move(rules), now);
  }

  static Pdu PduOf(uint32_t psn, Opcode opcode = Opcode::kSendOnly) {
    Pdu pdu;
    pdu.opcode = opcode;
    pdu.psn = Psn(psn);
    pdu.dest_qpn = Qpn{0x12};
    return pdu;
  }
  bool Send(Instant now, const Pdu& pdu, uint32_t payload_bytes = 0) {
    const std::vector<std::byte> bytes = MakePacket(pdu, payload_bytes);
    return tap_->Send(now, AsOut(bytes, address_));
  }
  bool Send(Instant now, uint32_t psn) { return Send(now, PduOf(psn)); }
  void Arrive(const Pdu& pdu, uint32_t payload_bytes = 0) {
    wire::PacketAddress back = address_;
    std::swap(back.source, back.destination);
    port_.arrivals.push_back(MakeArrival(pdu, payload_bytes, back));
  }
  void Arrive(uint32_t psn) { Arrive(PduOf(psn)); }

  static uint32_t PsnOf(const std::byte* bytes) {
    return std::to_integer<uint32_t>(bytes[9]) << 16 | std::to_integer<uint32_t>(bytes[10]) << 8 |
           std::to_integer<uint32_t>(bytes[11]);
  }
  // PSNs that the inner port was given since the last call.
  std::vector<uint32_t> Sent() {
    std::vector<uint32_t> psns;
    for (const FakePort::Sent& packet : port_.sent) psns.push_back(PsnOf(packet.bytes.data()));
    port_.sent.clear();
    return psns;
  }
  std::vector<uint32_t> Receive(Instant now) {
    std::vector<uint32_t> psns;
    InPacket in;
    while (tap_->Receive(now, &in)) psns.push_back(PsnOf(in.bytes));
    return psns;
  }

  using Psns = std::vector<uint32_t>;
  FakePort port_;
  FakeNotes notes_;
  FaultPlan plan_;
  std::unique_ptr<FaultTap> tap_;
  wire::PacketAddress address_;
};

TEST_F(FaultTapTest, WithoutRulesEverythingPasses) {
  EXPECT_TRUE(Send(At(0), 1));
  Arrive(2);
  EXPECT_EQ(Sent(), Psns{1});
  EXPECT_EQ(Receive(At(0)), Psns{2});
  EXPECT_TRUE(tap_->PollTimeout().IsNever());
  EXPECT_TRUE(plan_.UnfiredRules().empty());
}

TEST_F(FaultTapTest, DropsTheNthAndSaysSo) {
  Rules("drop dir=out nth=2 name=second");
  for (uint32_t psn : {1, 2, 3, 4}) EXPECT_TRUE(Send(At(0), psn));
  EXPECT_EQ(Sent(), (Psns{1, 3, 4}));
  EXPECT_EQ(notes_.dropped, std::vector<std::string>{"fault: dropped (second)"});
  EXPECT_EQ(plan_.Report(), "seed 0\nline 1: drop dir=out nth=2 name=second: matched 4, fired 1\n");
}

TEST_F(FaultTapTest, EveryAndRepeat) {
  Rules("drop dir=in every=3 repeat=2");
  for (uint32_t psn = 1; psn <= 12; ++psn) Arrive(psn);
  EXPECT_EQ(Receive(At(0)), (Psns{1, 2, 4, 5, 7, 8, 9, 10, 11, 12}));
  EXPECT_EQ(notes_.received.size(), 2u);
}

TEST_F(FaultTapTest, MatchesByNicDirectionAndPeer) {
  Rules("drop nic=other\ndrop peer=10.0.0.3\ndrop dir=in peer=10.0.0.2");
  EXPECT_TRUE(Send(At(0), 1));
  Arrive(2);
  EXPECT_EQ(Sent(), Psns{1});
  EXPECT_EQ(Receive(At(0)), Psns{});
  EXPECT_EQ(
      plan_.UnfiredRules(),
      (std::vector<std::string>{"line 1: drop nic=other: never fired (0 packets matched)",
                                "line 2: drop peer=10.0.0.3: never fired (0 packets matched)"}));
}

TEST_F(FaultTapTest, MatchesByOpcodeAndQp) {
  Rules("drop opcode=ack\ndrop dest_qp=0x99\ndrop service=uc");
  Pdu uc = PduOf(3);
  uc.service = Service::kUc;
  Pdu other_qp = PduOf(4);
  other_qp.dest_qpn = Qpn{0x99};
  Pdu nak = PduOf(5, Opcode::kAcknowledge);
  nak.ack_type = AckType::kNak;
  for (const Pdu& pdu : {PduOf(1), PduOf(2, Opcode::kAcknowledge), uc, other_qp, nak}) {
    Send(At(0), pdu);
    Arrive(pdu);
  }
  EXPECT_EQ(Sent(), (Psns{1, 5}));
  EXPECT_EQ(Receive(At(0)), (Psns{1, 5}));
}

TEST_F(FaultTapTest, SourceQpOfConnectedServicesIsAskedFor) {
  Rules("drop src_qp=0x11");
  EXPECT_TRUE(Send(At(0), 1));
  EXPECT_EQ(Sent(), Psns{1}) << "nobody knows the source, so the rule may not match";

  Rebuild([](const wire::PacketAddress& address, const Pdu& pdu, bool is_sent) {
    return Qpn{is_sent && pdu.dest_qpn == Qpn{0x12} ? 0x11u : 0u};
  });
  Arrive(3);
  EXPECT_TRUE(Send(At(0), 2));
  EXPECT_EQ(Sent(), Psns{});
  EXPECT_EQ(Receive(At(0)), Psns{3});

  Rules("drop qp=0x31");
  Pdu datagram = PduOf(4);
  datagram.service = Service::kUd;
  datagram.src_qpn = Qpn{0x31};
  Send(At(0), datagram);
  EXPECT_EQ(Sent(), Psns{}) << "DETH tells";
}

TEST_F(FaultTapTest, TimeWindow) {
  Rules("drop after=10us until=20us", At(100));
  for (int64_t us : {109, 110, 119, 120}) Send(At(us), static_cast<uint32_t>(us));
  EXPECT_EQ(Sent(), (Psns{109, 120}));
}

TEST_F(FaultTapTest, GarbageMatchesOnlyRulesThatAskForNothing) {
  Rules("drop opcode=request");
  wire::PacketAddress address = address_;
  for (uint32_t length : {0u, 1u, 3u, 15u, 16u, 40u}) {
    port_.arrivals.push_back({address, std::vector<std::byte>(length, std::byte{0xff}), 0});
  }
  InPacket in;
  uint32_t count = 0;
  while (tap_->Receive(At(0), &in)) ++count;
  EXPECT_EQ(count, 6u);
  Rules("corrupt");
  for (uint32_t length : {0u, 1u, 3u, 5u, 6u}) {
    port_.arrivals.push_back({address, std::vector<std::byte>(length, std::byte{0xff}), 0});
  }
  while (tap_->Receive(At(0), &in)) ++count;
  EXPECT_EQ(count, 11u);
}

TEST_F(FaultTapTest, Duplicates) {
  Rules("duplicate copies=2 nth=1");
  Send(At(0), 1);
  Send(At(0), 2);
  EXPECT_EQ(Sent(), (Psns{1, 1, 1, 2}));
  Rules("duplicate copies=2 nth=1");
  Arrive(3);
  Arrive(4);
  EXPECT_EQ(Receive(At(0)), (Psns{3, 3, 3, 4}));
  EXPECT_EQ(notes_.sent.size(), 3u);
  EXPECT_EQ(notes_.received, std::vector<std::string>{"fault: duplicated 2 times (line 1)"});
}

TEST_F(FaultTapTest, ReordersByPackets) {
  Rules("reorder packets=2 nth=1");
  for (uint32_t psn : {1, 2, 3, 4}) Send(At(0), psn);
  EXPECT_EQ(Sent(), (Psns{2, 3, 1, 4}));
  Rules("reorder packets=2 nth=1");
  for (uint32_t psn : {1, 2, 3, 4}) Arrive(psn);
  EXPECT_EQ(Receive(At(0)), (Psns{2, 3, 1, 4}));
  EXPECT_TRUE(tap_->PollTimeout().IsNever());
}

TEST_F(FaultTapTest, AReorderedPacketComesThoughNoneFollows) {
  Rules("reorder packets=5 for=100us nth=1");
  Send(At(0), 1);
  EXPECT_EQ(tap_->PollTimeout(), At(100));
  tap_->OnTimeout(At(99));
  EXPECT_EQ(Sent(), Psns{});
  tap_->OnTimeout(At(100));
  EXPECT_EQ(Sent(), Psns{1});
  EXPECT_EQ(port_.flushes, 1u) << "nobody else would flush it";
}

TEST_F(FaultTapTest, DelaysSentPackets) {
  Rules("delay for=50us nth=1\n");
  Send(At(0), 1);
  Send(At(10), 2);
  EXPECT_EQ(Sent(), Psns{2});
  EXPECT_EQ(tap_->PollTimeout(), At(50));
  tap_->OnTimeout(At(50));
  EXPECT_EQ(port_.sent[0].at, At(50));
  EXPECT_EQ(Sent(), Psns{1});
  EXPECT_TRUE(tap_->PollTimeout().IsNever());
  EXPECT_EQ(tap_->held_packets(), 0u);
}

TEST_F(FaultTapTest, DelaysReceivedPackets) {
  Rules("delay for=50us dir=in nth=1");
  port_.receive_takes = Microseconds(7);
  Arrive(1);
  Arrive(2);
  EXPECT_EQ(Receive(At(0)), Psns{2});
  EXPECT_EQ(tap_->PollTimeout(), At(57)) << "from when it had come";
  EXPECT_TRUE(tap_->PrepareToSleep());
  tap_->OnTimeout(At(57));
  EXPECT_FALSE(tap_->PrepareToSleep()) << "it is there to be received";
  EXPECT_EQ(Receive(At(57)), Psns{1});
  EXPECT_TRUE(tap_->PrepareToSleep());
}

TEST_F(FaultTapTest, JitterStaysInItsBounds) {
  Rules("delay for=10us jitter=5us dir=out");
  int64_t least = 1'000'000, most = 0;
  for (uint32_t i = 0; i < 1000; ++i) Send(At(0), i);
  while (!tap_->PollTimeout().IsNever()) {
    const Instant due = tap_->PollTimeout();
    least = std::min(least, due.ns);
    most = std::max(most, due.ns);
    tap_->OnTimeout(due);
  }
  EXPECT_EQ(Sent().size(), 1000u);
  EXPECT_GE(least, 10'000);
  EXPECT_LE(most, 15'000);
  EXPECT_GT(most - least, 4'000);
}

TEST_F(FaultTapTest, HeldBytesAreBounded) {
  Rebuild({}, 10'000);
  Rules("delay for=1s");
  for (uint32_t i = 0; i < 1000; ++i) EXPECT_TRUE(Send(At(0), i));
  EXPECT_GT(plan_.overflow_drops(), 900u);
  EXPECT_LT(tap_->held_packets(), 100u);
  EXPECT_EQ(notes_.dropped.size(), plan_.overflow_drops());
  const std::string lost = std::to_string(plan_.overflow_drops()) + " packets lost, as too many";
  EXPECT_NE(plan_.Report().find(lost), std::string::npos) << plan_.Report();
  for (uint32_t i = 0; i < 1000; ++i) Arrive(i);
  Receive(At(0));
  EXPECT_LT(tap_->held_packets(), 100u);
  const uint64_t held = tap_->held_packets();
  tap_->OnTimeout(At(1'000'000));
  EXPECT_EQ(Receive(At(1'000'000)).size() + Sent().size(), held);
}

TEST_F(FaultTapTest, CorruptsTheGivenBit) {
  Rules("corrupt dir=out bit=77 nth=1\ncorrupt dir=in bit=77 nth=1");
  Send(At(0), 1);
  EXPECT_EQ(port_.sent[0].corrupt_bit, 77);
  Arrive(2);
  const std::vector<std::byte> before = port_.arrivals[0].bytes;
  InPacket in;
  ASSERT_TRUE(tap_->Receive(At(0), &in));
  std::vector<std::byte> after(in.bytes, in.bytes + in.length);
  EXPECT_NE(after, before);
  after[9] ^= std::byte{0x20};
  EXPECT_EQ(after, before);
}

TEST_F(FaultTapTest, ABitBeyondThePacketIsNoMatch) {
  Rules("corrupt bit=200");
  Send(At(0), 1);  // 16 bytes, 128 bits
  EXPECT_EQ(port_.sent[0].corrupt_bit, -1);
  EXPECT_EQ(plan_.UnfiredRules().size(), 1u);
}

TEST_F(FaultTapTest, RandomCorruptionIsSeenByTheIcrc) {
  Rules("corrupt dir=in");
  for (uint32_t i = 0; i < 500; ++i) {
    Arrive(i);
    InPacket in;
    ASSERT_TRUE(tap_->Receive(At(0), &in));
    uint16_t id = 0;
    EXPECT_EQ(wire::VerifyIcrc(in.address, 0, in.bytes, in.length, &id), wire::IcrcCheck::kWrong);
  }
}

TEST_F(FaultTapTest, RateQueuesThenDrops) {
  // 44 bytes each with IP and UDP: 1 ms apiece.
  Rules("rate bytes_per_s=44000 queue=100");
  for (uint32_t psn : {1, 2, 3, 4, 5, 6}) Send(At(0), psn);
  EXPECT_EQ(Sent(), Psns{1});
  EXPECT_EQ(notes_.dropped.size(), 3u) << "more than 100 bytes would wait";
  for (int64_t ms : {1, 2}) {
    EXPECT_EQ(tap_->PollTimeout(), At(ms * 1000));
    tap_->OnTimeout(At(ms * 1000));
    EXPECT_EQ(Sent(), Psns{static_cast<uint32_t>(ms) + 1});
  }
  EXPECT_TRUE(tap_->PollTimeout().IsNever());
  Send(At(10'000), 7);
  EXPECT_EQ(Sent(), Psns{7});
  EXPECT_EQ(plan_.rules()[0].matches, 7u);
  EXPECT_EQ(plan_.rules()[0].firings, 5u) << "what passed at once is no fault";
}

// Whatever becomes of it: the tap copies what it keeps.
TEST_F(FaultTapTest, WhatIsLentComesBackOnce) {
  struct Lender final : PacketLender {
    void TakeBack(void* block) override {
      EXPECT_EQ(block, this);
      ++taken_back;
    }
    int taken_back = 0;
  };
  const std::vector<std::byte> bytes = MakePacket(PduOf(1), 0);
  for (const char* rule :
       {"", "drop", "duplicate copies=2", "delay for=10us", "reorder packets=1", "corrupt"}) {
    Rules(rule);
    Lender lender;
    OutPacket packet = AsOut(bytes, address_);
    packet.lender = &lender;
    packet.block = &lender;
    ASSERT_TRUE(tap_->Send(At(0), packet)) << rule;
    EXPECT_EQ(lender.taken_back, 1) << rule;
    Rules("");
    tap_->OnTimeout(At(100));
    EXPECT_EQ(lender.taken_back, 1) << rule;
  }
  // Refused, it stays with its owner; taken while the port below has no room, it is copied.
  port_.room = 0;
  Lender lender;
  OutPacket packet = AsOut(bytes, address_);
  packet.lender = &lender;
  packet.block = &lender;
  EXPECT_FALSE(tap_->Send(At(100), packet));
  EXPECT_EQ(lender.taken_back, 0);
  Rules("duplicate");
  EXPECT_TRUE(tap_->Send(At(100), packet));
  EXPECT_EQ(lender.taken_back, 1);
  port_.room = 10;
  tap_->Flush(At(100));
  EXPECT_EQ(lender.taken_back, 1);
}

TEST_F(FaultTapTest, ARefusedPacketIsJudgedOnce) {
  Rules("duplicate copies=1");
  port_.room = 1;
  EXPECT_TRUE(Send(At(0), 1)) << "one copy went, the tap keeps the other";
  EXPECT_FALSE(Send(At(0), 2));
  EXPECT_FALSE(Send(At(0), 2));
  EXPECT_EQ(plan_.rules()[0].matches, 1u);
  port_.room = 10;
  tap_->Flush(At(0));
  EXPECT_TRUE(Send(At(0), 2));
  EXPECT_EQ(Sent(), (Psns{1, 1, 2, 2}));
}

TEST_F(FaultTapTest, RefusedPacketsGoWithTheNextReceive) {
  Rules("duplicate copies=1");
  port_.room = 1;
  Send(At(0), 1);
  port_.room = 10;
  Receive(At(0));
  EXPECT_EQ(Sent(), (Psns{1, 1}));
  EXPECT_EQ(port_.flushes, 1u);
}

TEST_F(FaultTapTest, DuePacketsThatFindNoRoomDoNotSpin) {
  Rules("delay for=10us");
  Send(At(0), 1);
  Send(At(0), 2);
  port_.room = 0;
  tap_->OnTimeout(At(10));
  EXPECT_TRUE(tap_->PollTimeout().IsNever()) << "room, not time, is what it waits for";
  port_.room = 10;
  tap_->Flush(At(20));
  EXPECT_EQ(Sent(), (Psns{1, 2}));
}

TEST_F(FaultTapTest, TheInnerPortsTimeoutCounts) {
  port_.timeout = At(5);
  Rules("delay for=10us");
  EXPECT_EQ(tap_->PollTimeout(), At(5));
  port_.timeout = At(50);
  Send(At(0), 1);
  EXPECT_EQ(tap_->PollTimeout(), At(10));
}

TEST_F(FaultTapTest, HandsOnWhatIsLearnedOfPacketsInTime) {
  Rules("delay for=10us dir=in nth=1");
  Arrive(1);
  Arrive(2);
  InPacket in;
  ASSERT_TRUE(tap_->Receive(At(0), &in));
  tap_->LearnIpId(in, 2);
  ASSERT_TRUE(tap_->Receive(At(10), &in));
  tap_->LearnIpId(in, 1);
  EXPECT_EQ(port_.learned, std::vector<uint16_t>{2});
}

TEST_F(FaultTapTest, ReplacedRulesLetHeldPacketsGo) {
  Rules("delay for=10us");
  Send(At(0), 1);
  Rules("");
  Send(At(5), 2);
  tap_->OnTimeout(At(10));
  EXPECT_EQ(Sent(), (Psns{2, 1}));
}

TEST_F(FaultTapTest, MovedOverAnotherPortItKeepsWhatItHas) {
  Rules("delay for=10us dir=out nth=1\ndelay for=10us dir=in nth=1");
  Send(At(0), 1);
  Arrive(3);
  EXPECT_EQ(Receive(At(0)), Psns{});
  port_.room = 0;
  EXPECT_TRUE(Send(At(0), 2)) << "judged, it is the tap's";
  FakePort other;
  tap_->MoveOver(&other, nullptr);
  tap_->OnTimeout(At(10));
  ASSERT_EQ(other.sent.size(), 2u);
  EXPECT_EQ(PsnOf(other.sent[0].bytes.data()), 2u);
  EXPECT_EQ(PsnOf(other.sent[1].bytes.data()), 1u);
  EXPECT_EQ(Receive(At(10)), Psns{3});
}

TEST_F(FaultTapTest, NewRulesCountOverflowAnew) {
  Rebuild({}, 1'000);
  Rules("delay for=1s");
  for (uint32_t i = 0; i < 10; ++i) Send(At(0), i);
  EXPECT_GT(plan_.overflow_drops(), 0u);
  Rules("delay for=1s");
  EXPECT_EQ(plan_.overflow_drops(), 0u);
}

TEST_F(FaultTapTest, FaultsCombineAndADropEndsIt) {
  Rules("duplicate nth=1\ndelay for=10us\ncorrupt bit=3\ndrop nth=2\ncorrupt nth=9");
  Send(At(0), 1);
  Send(At(0), 2);
  tap_->OnTimeout(At(10));
  ASSERT_EQ(port_.sent.size(), 2u);
  EXPECT_EQ(port_.sent[1].corrupt_bit, 3);
  EXPECT_EQ(Sent(), (Psns{1, 1}));
  EXPECT_EQ(notes_.sent[0],
            "fault: duplicated 1 times (line 1), delayed 10 us (line 2), bit 3 flipped (line 3)");
  EXPECT_EQ(plan_.rules()[4].matches, 1u) << "nothing sees a dropped packet";
}

// Which of many packets pass, as text.
std::string Pattern(const std::string& text, uint64_t seed) {
  FaultRules rules;
  std::string error;
  EXPECT_TRUE(ParseFaultRules(text, &rules, &error)) << error;
  FaultPlan plan(seed);
  plan.SetRules(rules, Instant{});
  wire::PacketAddress address;
  FaultSubject subject;
  subject.address = &address;
  subject.finished_bytes = 100;
  std::string pattern;
  for (int i = 0; i < 2000; ++i) {
    FaultVerdict verdict = plan.Judge(Instant{}, subject);
    pattern += verdict.drop ? 'x' : verdict.copies != 0 ? '2' : '.';
  }
  return pattern;
}

TEST(FaultPlan, ASeedRepeatsItself) {
  const std::string rules = "drop percent=20\nduplicate percent=20";
  EXPECT_EQ(Pattern(rules, 1), Pattern(rules, 1));
  EXPECT_NE(Pattern(rules, 1), Pattern(rules, 2));
  const std::string pattern = Pattern(rules, 1);
  EXPECT_NEAR(static_cast<double>(std::count(pattern.begin(), pattern.end(), 'x')), 400, 80);
  EXPECT_NEAR(static_cast<double>(std::count(pattern.begin(), pattern.end(), '2')), 320, 80);
}

TEST(FaultPlan, RulesDrawApart) {
  std::string both = Pattern("drop percent=20\nduplicate percent=20", 5);
  std::string alone = Pattern("drop percent=20", 5);
  std::replace(both.begin(), both.end(), '2', '.');
  EXPECT_EQ(both, alone);
}

TEST(FaultPlan, TheGivenSeedWins) {
  FaultRules rules;
  std::string error;
  ASSERT_TRUE(ParseFaultRules("seed 5", &rules, &error));
  FaultPlan given(7), file;
  given.SetRules(rules, Instant{});
  file.SetRules(rules, Instant{});
  EXPECT_EQ(given.seed(), 7u);
  EXPECT_EQ(file.seed(), 5u);
}

}  // namespace
}  // namespace verbena::transport::tap
