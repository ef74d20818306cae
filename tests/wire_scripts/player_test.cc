// Scripts that are wrong, and subjects that do other than their script says: each is found, at its
// line.
#include "tests/wire_scripts/player.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/wire_scripts/sim_subject.h"

namespace verbena::wire_scripts {
namespace {

// What a story of these lines, the first of which is line 2, fails with; empty: it comes true.
std::string FailureOf(const std::string& lines, const PlayOptions& options = {}) {
  SimSubject subject({});
  try {
    for (const Story& story : ParseStories("s.wire", "story of a test\n" + lines)) {
      Player(&subject, options).Play(story);
    }
  } catch (const ScriptError& error) {
    return error.what();
  }
  return "";
}

void ExpectFailure(const std::string& lines, const std::string& at, const std::string& what) {
  const std::string failure = FailureOf(lines);
  EXPECT_TRUE(failure.starts_with("s.wire:" + at + ": ")) << failure;
  EXPECT_NE(failure.find(what), std::string::npos) << failure;
}

constexpr char kSend[] =
    "qp rc mtu=256 rq_psn=5\n"
    "recv at=0 len=64\n"
    "> SEND_ONLY psn=5 ackreq payload=8\n";

TEST(Player, TellsAPacketThatIsNotAsExpected) {
  const std::string begin = kSend;
  EXPECT_EQ(FailureOf(begin + "< ACK psn=5 msn=1\nwc recv success len=8\n"), "");
  ExpectFailure(begin + "< ACK psn=5 msn=2\n", "5", "msn is 0x1, not 0x2");
  ExpectFailure(begin + "< ACK psn=6 msn=1\n", "5", "psn is 0x5, not 0x6");
  ExpectFailure(begin + "< RNR_NAK psn=5 msn=0\n", "5", "another packet: RC ACKNOWLEDGE");
  ExpectFailure(begin + "< ACK psn=5 msn=1\n< ACK psn=5 msn=1\n", "6", "no packet came");
}

TEST(Player, TellsACompletionThatIsNotAsExpected) {
  const std::string begin = std::string(kSend) + "< ACK psn=5 msn=1\n";
  ExpectFailure(begin + "wc recv success len=9\n", "6", "another length");
  ExpectFailure(begin + "wc recv success len=8 imm=1\n", "6", "no immediate data");
  ExpectFailure(begin + "wc send success\n", "6", "no completion");
  ExpectFailure(begin + "wc recv wr_flush_err\n", "6", "another status");
  ExpectFailure(begin + "wc recv success len=8\nwc recv success len=8\n", "7", "no completion");
}

TEST(Player, TellsWhatIsLeftAtTheEnd) {
  ExpectFailure(std::string(kSend) + "< ACK psn=5 msn=1\n", "5", "there is a completion");
  ExpectFailure(std::string(kSend) + "wc recv success len=8\n", "5", "there is a packet");
}

TEST(Player, TellsOtherBytesAndStates) {
  const std::string begin = std::string(kSend) + "< ACK psn=5 msn=1\nwc recv success len=8\n";
  ExpectFailure(begin + "holds at=0 pattern=9\n", "7", "byte 8 of the region is 0");
  ExpectFailure(begin + "holds at=0 zeros=8\n", "7", "byte 0 of the region is 1, not 0");
  ExpectFailure(begin + "state err\n", "7", "the QP's state is rts");
  ExpectFailure(
      "qp rc sq_psn=1\nfill at=0 pattern=8\npost send len=8\n"
      "< SEND_ONLY psn=1 payload=8@1\n",
      "5", "other bytes of payload");
}

TEST(Player, TellsAnAnswerThatComesTooEarlyOrTooLate) {
  const std::string begin =
      "qp rc sq_psn=1 timeout=14\n"
      "post send len=0\n"
      "< SEND_ONLY psn=1\n";
  ExpectFailure(begin + "< SEND_ONLY psn=1 after_us=9000000\n", "5", "after the last thing done");
  ExpectFailure(begin + "< SEND_ONLY psn=1 before_us=1000\n", "5", "after the last thing done");
}

TEST(Player, RefusesAScriptThatIsWrong) {
  ExpectFailure("recv len=8\n", "2", "begins with its 'qp'");
  ExpectFailure("qp rc mtv=256\n", "2", "not understood: 'mtv=256'");
  ExpectFailure("qp rc\nsleep 1\n", "3", "no such line: 'sleep'");
  ExpectFailure("qp rc\n> SEND_NONE psn=1\n", "3", "no such packet");
  ExpectFailure("qp ud\n> READ_REQUEST psn=1\n", "3", "has no READ_REQUEST");
  ExpectFailure("qp rc\n< ACK psn=1\n", "3", "has to say its 'msn='");
  ExpectFailure("qp rc\n> ACK psn=x\n", "3", "not a number: 'x'");
}

TEST(Player, TakesLinesForRxeFromRxeAlone) {
  const std::string begin = "rxe differs: for a test\n" + std::string(kSend);
  const std::string end =
      "others: < ACK psn=5 msn=1\nrxe: < ACK psn=5 msn=9\nwc recv success len=8\n";
  EXPECT_EQ(FailureOf(begin + end), "");
  EXPECT_NE(FailureOf(begin + end, {.is_rxe = true}).find("not 0x9"), std::string::npos);
  ExpectFailure(kSend + end, "5", "no 'rxe differs:' says why");
  ExpectFailure("rxe differs:\n", "2", "says no reason");
}

}  // namespace
}  // namespace verbena::wire_scripts
