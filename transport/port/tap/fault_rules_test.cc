#include "transport/port/tap/fault_rules.h"

#include <gtest/gtest.h>

#include "transport/port/sim/sim_random.h"

namespace verbena::transport::tap {
namespace {

FaultRule ParseOne(const std::string& line) {
  FaultRules rules;
  std::string error;
  EXPECT_TRUE(ParseFaultRules(line, &rules, &error)) << error;
  if (rules.rules.size() != 1) {
    ADD_FAILURE() << line << ": " << rules.rules.size() << " rules";
    return {};
  }
  return rules.rules[0];
}

std::string ErrorOf(const std::string& text) {
  FaultRules rules;
  rules.seed = 99;
  std::string error;
  EXPECT_FALSE(ParseFaultRules(text, &rules, &error)) << text;
  EXPECT_EQ(rules.seed, 99u) << "changed the result in spite of an error";
  return error;
}

Pdu PduOf(Opcode opcode, AckType ack_type = AckType::kAck) {
  Pdu pdu;
  pdu.opcode = opcode;
  pdu.ack_type = ack_type;
  return pdu;
}

TEST(FaultRules, CommentsEmptyLinesAndSeed) {
  FaultRules rules;
  std::string error;
  ASSERT_TRUE(ParseFaultRules(
      "# nothing\n\n seed 0x2A # the answer\r\n  drop # all\n\ndelay for=1s", &rules, &error))
      << error;
  EXPECT_TRUE(rules.has_seed);
  EXPECT_EQ(rules.seed, 42u);
  ASSERT_EQ(rules.rules.size(), 2u);
  EXPECT_EQ(rules.rules[0].line, 4u);
  EXPECT_EQ(rules.rules[0].text, "drop");
  EXPECT_EQ(rules.rules[1].line, 6u);
}

TEST(FaultRules, MatchKeys) {
  FaultRule rule = ParseOne(
      "DROP nic=v0 dir=in service=ud qp=0x12 src_qp=3 dest_qp=16777215 peer=10.0.0.2 after=5ms "
      "until=3s name=first");
  EXPECT_EQ(rule.action, FaultAction::kDrop);
  EXPECT_EQ(rule.match.nic, "v0");
  EXPECT_TRUE(rule.match.in);
  EXPECT_FALSE(rule.match.out);
  EXPECT_EQ(rule.match.services, 1u << static_cast<uint32_t>(Service::kUd));
  EXPECT_EQ(rule.match.qpn, 0x12u);
  EXPECT_EQ(rule.match.source_qpn, 3u);
  EXPECT_EQ(rule.match.dest_qpn, 0xff'ffffu);
  EXPECT_EQ(rule.match.peer, Gid::FromIpv4(0x0a00'0002));
  EXPECT_EQ(rule.match.after, Milliseconds(5));
  EXPECT_EQ(rule.match.until, Instant{Seconds(3).ns});
  EXPECT_EQ(rule.name, "first");
  EXPECT_EQ(ParseOne("drop peer=fe80::1").match.peer.raw[0], 0xfe);
}

TEST(FaultRules, Schedules) {
  EXPECT_EQ(ParseOne("drop").schedule.repeat, 0u);
  FaultSchedule nth = ParseOne("drop nth=3").schedule;
  EXPECT_EQ(nth.nth, 3u);
  EXPECT_EQ(nth.repeat, 1u);
  FaultSchedule every = ParseOne("drop every=10").schedule;
  EXPECT_EQ(every.nth, 10u);
  EXPECT_EQ(every.every, 10u);
  EXPECT_EQ(every.repeat, 0u);
  EXPECT_EQ(ParseOne("drop nth=3 repeat=2").schedule.repeat, 2u);
  EXPECT_EQ(ParseOne("drop percent=0.5").schedule.per_million, 5'000u);
  EXPECT_EQ(ParseOne("drop percent=100").schedule.per_million, kMillion);
  EXPECT_EQ(ParseOne("drop percent=0.0001").schedule.per_million, 1u);
}

TEST(FaultRules, Parameters) {
  EXPECT_EQ(ParseOne("duplicate").copies, 1u);
  EXPECT_EQ(ParseOne("duplicate copies=16").copies, 16u);
  FaultRule reorder = ParseOne("reorder");
  EXPECT_EQ(reorder.by_packets, 1u);
  EXPECT_EQ(reorder.hold, Milliseconds(10));
  FaultRule by_time = ParseOne("reorder for=200us");
  EXPECT_EQ(by_time.by_packets, 0u);
  EXPECT_EQ(by_time.hold, Microseconds(200));
  FaultRule delay = ParseOne("delay for=5ms jitter=100ns");
  EXPECT_EQ(delay.hold, Milliseconds(5));
  EXPECT_EQ(delay.jitter, Nanoseconds(100));
  EXPECT_EQ(ParseOne("corrupt").bit, -1);
  EXPECT_EQ(ParseOne("corrupt bit=0").bit, 0);
  FaultRule rate = ParseOne("rate bytes_per_s=10M queue=64k");
  EXPECT_EQ(rate.bytes_per_second, 10'000'000u);
  EXPECT_EQ(rate.queue_bytes, 64'000u);
}

TEST(FaultRules, OpcodesAndClasses) {
  OpcodeSet named = ParseOne("drop opcode=send_only,Read_Request").match.opcodes;
  EXPECT_TRUE(named.Has(PduOf(Opcode::kSendOnly)));
  EXPECT_TRUE(named.Has(PduOf(Opcode::kReadRequest)));
  EXPECT_FALSE(named.Has(PduOf(Opcode::kSendOnlyWithImm)));

  OpcodeSet request = ParseOne("drop opcode=request").match.opcodes;
  EXPECT_TRUE(request.Has(PduOf(Opcode::kFetchAdd)));
  EXPECT_FALSE(request.Has(PduOf(Opcode::kAcknowledge)));
  OpcodeSet response = ParseOne("drop opcode=response").match.opcodes;
  EXPECT_TRUE(response.Has(PduOf(Opcode::kAtomicAcknowledge)));
  EXPECT_TRUE(response.Has(PduOf(Opcode::kReadResponseMiddle)));
  EXPECT_FALSE(response.Has(PduOf(Opcode::kReadRequest)));
  OpcodeSet read = ParseOne("drop opcode=read_response").match.opcodes;
  EXPECT_TRUE(read.Has(PduOf(Opcode::kReadResponseLast)));
  EXPECT_FALSE(read.Has(PduOf(Opcode::kAcknowledge)));
  OpcodeSet middle = ParseOne("drop opcode=middle").match.opcodes;
  EXPECT_TRUE(middle.Has(PduOf(Opcode::kWriteMiddle)));
  EXPECT_FALSE(middle.Has(PduOf(Opcode::kWriteLast)));
  EXPECT_TRUE(ParseOne("drop").match.opcodes.Has(PduOf(Opcode::kWriteLast)));
}

TEST(FaultRules, AcknowledgementsByWhatTheySay) {
  OpcodeSet acks = ParseOne("drop opcode=ack").match.opcodes;
  EXPECT_TRUE(acks.Has(PduOf(Opcode::kAcknowledge, AckType::kAck)));
  EXPECT_FALSE(acks.Has(PduOf(Opcode::kAcknowledge, AckType::kNak)));
  EXPECT_FALSE(acks.Has(PduOf(Opcode::kReadResponseOnly, AckType::kAck)));
  OpcodeSet naks = ParseOne("drop opcode=nak,rnr_nak").match.opcodes;
  EXPECT_TRUE(naks.Has(PduOf(Opcode::kAcknowledge, AckType::kNak)));
  EXPECT_TRUE(naks.Has(PduOf(Opcode::kAcknowledge, AckType::kRnrNak)));
  EXPECT_FALSE(naks.Has(PduOf(Opcode::kAcknowledge, AckType::kAck)));
  OpcodeSet all = ParseOne("drop opcode=acknowledge").match.opcodes;
  EXPECT_TRUE(all.Has(PduOf(Opcode::kAcknowledge, AckType::kRnrNak)));
}

TEST(FaultRules, ErrorsNameTheLineAndWhatIsAllowed) {
  EXPECT_EQ(
      ErrorOf("drop\n\nlose"),
      "line 3: no action 'lose'; allowed: drop, duplicate, reorder, delay, corrupt, rate; and "
      "`seed NUMBER`");
  EXPECT_EQ(ErrorOf("drop dir=up"), "line 1: dir=up: allowed: in, out");
  EXPECT_EQ(ErrorOf("corrupt copies=2"),
            "line 1: no key 'copies' with corrupt; allowed: bit, name, nic, dir, opcode, service, "
            "qp, src_qp, dest_qp, peer, nth, every, repeat, percent, after, until");
  EXPECT_EQ(ErrorOf("duplicate copies=17"), "line 1: copies=17: allowed: 1 to 16");
  EXPECT_EQ(ErrorOf("drop percent=101"), "line 1: percent=101: allowed: 0.0001 to 100");
  EXPECT_EQ(ErrorOf("drop dir=in dir=out"), "line 1: dir is given twice");
  EXPECT_EQ(ErrorOf("drop all"), "line 1: 'all' is not of the form key=value");
  EXPECT_NE(ErrorOf("drop opcode=sendonly").find("send_only"), std::string::npos);
}

TEST(FaultRules, RefusesWhatMakesNoSense) {
  for (const char* line : {"drop qp=0x1000000",
                           "drop qp=-1",
                           "drop qp=0x",
                           "drop nth=0",
                           "drop percent=0",
                           "drop percent=1.",
                           "drop percent=.5",
                           "drop percent=1e3",
                           "drop percent=0.00001",
                           "drop peer=10.0.0",
                           "drop after=5",
                           "drop after=2s until=1s",
                           "drop until=0s",
                           "delay",
                           "delay for=0ms",
                           "delay for=4000s",
                           "rate",
                           "rate bytes_per_s=0",
                           "rate bytes_per_s=2000M",
                           "reorder packets=0",
                           "reorder packets=1001",
                           "corrupt bit=-1",
                           "corrupt bit=x",
                           "seed",
                           "seed x",
                           "seed 1 2",
                           "seed 0x10000000000000000",
                           "drop =1",
                           "drop nth=",
                           "drop service=xrc",
                           "drop opcode=,",
                           "drop nth=99999999999999999999"}) {
    EXPECT_EQ(ErrorOf(line).substr(0, 8), "line 1: ") << line;
  }
}

TEST(FaultRules, LimitsAreKept) {
  std::string many;
  for (uint32_t i = 0; i < kRulesMax; ++i) many += "drop\n";
  FaultRules rules;
  std::string error;
  EXPECT_TRUE(ParseFaultRules(many, &rules, &error));
  EXPECT_EQ(ErrorOf(many + "drop"), "line 257: more than 256 rules");
  EXPECT_EQ(ErrorOf("drop name=" + std::string(2000, 'x')), "line 1: longer than 1000 characters");
}

// Any text is refused or understood; nothing else (under the sanitizers this is worth more).
TEST(FaultRules, AnyTextEnds) {
  sim::SimRandom random(1);
  const std::string words[] = {"drop ",    "delay ", "for=",  "1",    "ms",      "=",   "\n",
                               "#",        "seed ",  "nth=",  "\xff", "opcode=", "ack", ",",
                               "percent=", ".",      "rate ", "0x",   " "};
  uint32_t good = 0;
  for (int run = 0; run < 20'000; ++run) {
    std::string text;
    for (uint32_t i = random.Below(8); i > 0; --i) text += words[random.Below(std::size(words))];
    FaultRules rules;
    std::string error;
    bool parsed = ParseFaultRules(text, &rules, &error);
    EXPECT_EQ(parsed, error.empty()) << text;
    good += parsed && !rules.rules.empty();
  }
  EXPECT_GT(good, 100u);
}

}  // namespace
}  // namespace verbena::transport::tap
