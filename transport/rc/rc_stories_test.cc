// Short stories about two connected QPs: what each operation does, and what its completions say.
#include <gtest/gtest.h>

#include "transport/rc/rc_pair.h"

namespace verbena::transport::rc {
namespace {

using shm::WcOpcode;
using shm::WrOpcode;

constexpr uint32_t kA = RcPair::kA;
constexpr uint32_t kB = RcPair::kB;
constexpr bool kSends = true;
constexpr bool kReceives = false;

// Every story is told over packets of the path MTU and over whole-message PDUs.
class RcStory : public ::testing::TestWithParam<uint32_t> {
 protected:
  static RcPairOptions Options() {
    RcPairOptions options;
    options.max_pdu_bytes = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, RcStory, ::testing::Values(0u, 1u << 20),
                         [](const auto& form) { return form.param == 0 ? "Packets" : "Messages"; });

TEST_P(RcStory, WriteMovesBytesAndCompletesOnce) {
  RcPair pair(Options());
  for (uint32_t length : {1u, 8u, 1023u, 1024u, 1025u, 5000u, 70'000u}) {
    MemoryId from = pair.NewPattern(length);
    MemoryId to = pair.NewRegion(length);
    pair.Post(kA, pair.Remote(RcPair::Work(length, WrOpcode::kRdmaWrite,
                                           {pair.memory.SgeOf(from, 0, length)}),
                              to));
    ASSERT_TRUE(pair.Run());
    EXPECT_TRUE(pair.SameBytes(from, to)) << length;
    EXPECT_EQ(pair.TakeCompletions(kA, kSends), std::to_string(length) + ":ok");
    EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "");
  }
  EXPECT_EQ(pair.hosts[kA]->sends_released, 7u);
}

TEST_P(RcStory, SendFillsReceiveSgesInOrder) {
  RcPair pair(Options());
  MemoryId from = pair.NewPattern(3000);
  MemoryId to = pair.NewRegion(3100);
  pair.PostRecv(kB, 7,
                {pair.memory.SgeOf(to, 0, 10), pair.memory.SgeOf(to, 10, 0),
                 pair.memory.SgeOf(to, 10, 1500), pair.memory.SgeOf(to, 1510, 1590)});
  pair.Post(kA, RcPair::Work(1, WrOpcode::kSend,
                             {pair.memory.SgeOf(from, 0, 1), pair.memory.SgeOf(from, 1, 2999)}));
  ASSERT_TRUE(pair.Run());
  ASSERT_EQ(pair.fabric.completions(kB).size(), 1u);
  const sim::SimCompletion& wc = pair.fabric.completions(kB)[0];
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_EQ(wc.byte_len, 3000u);
  EXPECT_EQ(wc.opcode, WcOpcode::kRecv);
  EXPECT_EQ(wc.wc_flags, shm::kWcGrh);
  auto& bytes = pair.memory.region(to).bytes;
  EXPECT_TRUE(
      std::equal(bytes.begin(), bytes.begin() + 3000, pair.memory.region(from).bytes.begin()));
  EXPECT_EQ(bytes[3000], std::byte{0});
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  EXPECT_EQ(pair.hosts[kB]->recvs_released, 1u);
}

TEST_P(RcStory, InlineSendWithImmediateIsSolicited) {
  RcPair pair(Options());
  MemoryId to = pair.NewRegion(64);
  pair.PostRecv(kB, 7, {pair.memory.SgeOf(to, 0, 64)});
  SendWork work = RcPair::Inline(1, WrOpcode::kSendWithImm, "hello");
  work.wqe.imm_or_rkey = 0x01020304;
  work.wqe.flags |= shm::kSendSolicited;
  pair.Post(kA, work);
  ASSERT_TRUE(pair.Run());
  ASSERT_EQ(pair.fabric.completions(kB).size(), 1u);
  const sim::SimCompletion& wc = pair.fabric.completions(kB)[0];
  EXPECT_EQ(wc.imm_or_rkey, 0x01020304u);
  EXPECT_EQ(wc.wc_flags, shm::kWcGrh | shm::kWcWithImm);
  EXPECT_TRUE(wc.solicited);
  EXPECT_EQ(std::memcmp(pair.memory.region(to).bytes.data(), "hello", 6), 0);
}

TEST_P(RcStory, WriteWithImmediateTakesAReceiveButNotItsBuffer) {
  RcPair pair(Options());
  MemoryId from = pair.NewPattern(4096);
  MemoryId to = pair.NewRegion(4096);
  pair.PostRecv(kB, 7, {});
  SendWork work = pair.Remote(
      RcPair::Work(1, WrOpcode::kRdmaWriteWithImm, {pair.memory.SgeOf(from, 0, 4096)}), to);
  work.wqe.imm_or_rkey = 99;
  pair.Post(kA, work);
  ASSERT_TRUE(pair.Run());
  ASSERT_EQ(pair.fabric.completions(kB).size(), 1u);
  EXPECT_EQ(pair.fabric.completions(kB)[0].opcode, WcOpcode::kRecvRdmaWithImm);
  EXPECT_EQ(pair.fabric.completions(kB)[0].byte_len, 4096u);
  EXPECT_EQ(pair.fabric.completions(kB)[0].imm_or_rkey, 99u);
  EXPECT_TRUE(pair.SameBytes(from, to));
}

TEST_P(RcStory, ReadFetchesIntoSges) {
  RcPair pair(Options());
  for (uint32_t length : {1u, 1024u, 4097u, 70'000u}) {
    MemoryId from = pair.NewPattern(length);
    MemoryId to = pair.NewRegion(length);
    std::vector<shm::Sge> sges = {pair.memory.SgeOf(to, 0, 1),
                                  pair.memory.SgeOf(to, 1, length - 1)};
    pair.Post(kA, pair.Remote(RcPair::Work(length, WrOpcode::kRdmaRead, sges), from));
    ASSERT_TRUE(pair.Run());
    EXPECT_TRUE(pair.SameBytes(from, to)) << length;
    ASSERT_EQ(pair.fabric.completions(kA).size(), 1u);
    EXPECT_EQ(pair.fabric.completions(kA)[0].opcode, WcOpcode::kRdmaRead);
    EXPECT_EQ(pair.fabric.completions(kA)[0].byte_len, length);
    pair.fabric.completions(kA).clear();
  }
}

TEST_P(RcStory, AtomicsReturnTheOldValue) {
  RcPair pair(Options());
  MemoryId word = pair.NewRegion(16);
  MemoryId result = pair.NewRegion(16);
  pair.SetWord(word, 8, 40);
  SendWork add = pair.Remote(
      RcPair::Work(1, WrOpcode::kAtomicFetchAndAdd, {pair.memory.SgeOf(result, 0, 8)}), word, 8);
  add.wqe.atomic.compare_add = 2;
  SendWork swap = pair.Remote(
      RcPair::Work(2, WrOpcode::kAtomicCmpAndSwp, {pair.memory.SgeOf(result, 8, 8)}), word, 8);
  swap.wqe.atomic.compare_add = 42;
  swap.wqe.atomic.swap = 7;
  pair.Queue(kA, add);
  pair.Queue(kA, swap);
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  EXPECT_EQ(pair.WordAt(result, 0), 40u);
  EXPECT_EQ(pair.WordAt(result, 8), 42u);
  EXPECT_EQ(pair.WordAt(word, 8), 7u);
}

TEST_P(RcStory, ZeroLengthOperationsNeedNoKey) {
  RcPair pair(Options());
  pair.PostRecv(kB, 7, {});
  for (WrOpcode opcode : {WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead, WrOpcode::kSend}) {
    SendWork work = RcPair::Work(static_cast<uint64_t>(opcode), opcode, {});
    work.wqe.rkey = 0xdead;
    pair.Queue(kA, work);
  }
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "0:ok 4:ok 2:ok");
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "7:ok");
}

TEST_P(RcStory, OnlySignaledWorkCompletesButAllIsReleased) {
  RcPair pair(Options());
  MemoryId from = pair.NewPattern(8);
  MemoryId to = pair.NewRegion(8);
  for (uint64_t id = 1; id <= 6; ++id) {
    pair.Queue(kA,
               pair.Remote(RcPair::Work(id, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, 8)},
                                        id % 3 == 0 ? shm::kSendSignaled : 0),
                           to));
  }
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "3:ok 6:ok");
  EXPECT_EQ(pair.hosts[kA]->sends_released, 6u);
}

TEST_P(RcStory, SendWithInvalidateRevokesTheKey) {
  RcPair pair(Options());
  MemoryId window = pair.NewRegion(64);
  MemoryId to = pair.NewRegion(64);
  pair.PostRecv(kB, 7, {pair.memory.SgeOf(to, 0, 64)});
  SendWork work = RcPair::Inline(1, WrOpcode::kSendWithInv, "x");
  work.wqe.imm_or_rkey = pair.memory.region(window).key;
  pair.Post(kA, work);
  ASSERT_TRUE(pair.Run());
  EXPECT_FALSE(pair.memory.region(window).is_valid);
  ASSERT_EQ(pair.fabric.completions(kB).size(), 1u);
  EXPECT_EQ(pair.fabric.completions(kB)[0].wc_flags, shm::kWcGrh | shm::kWcWithInv);
  EXPECT_EQ(pair.fabric.completions(kB)[0].imm_or_rkey, pair.memory.region(window).key);
}

TEST_P(RcStory, InvalidatingAKeyThatIsNoneFailsBothEnds) {
  RcPair pair(Options());
  MemoryId to = pair.NewRegion(64);
  pair.PostRecv(kB, 7, {pair.memory.SgeOf(to, 0, 64)});
  SendWork work = RcPair::Inline(1, WrOpcode::kSendWithInv, "x");
  work.wqe.imm_or_rkey = 0xbad;
  pair.Post(kA, work);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "7:rem-inv-req");
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:rem-access");
}

TEST_P(RcStory, LocalInvalidateCompletesInItsTurn) {
  RcPair pair(Options());
  MemoryId from = pair.NewPattern(8);
  MemoryId to = pair.NewRegion(8);
  MemoryId gone = pair.NewRegion(8);
  pair.Queue(
      kA, pair.Remote(RcPair::Work(1, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, 8)}), to));
  SendWork inv = RcPair::Work(2, WrOpcode::kLocalInv, {});
  inv.wqe.imm_or_rkey = pair.memory.region(gone).key;
  pair.Queue(kA, inv);
  pair.Ring(kA);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "");  // the WRITE before it is not done
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  EXPECT_FALSE(pair.memory.region(gone).is_valid);
}

TEST_P(RcStory, PsnWrapsAtItsEnd) {
  RcPairOptions options = Options();
  options.sq_psn = 0xff'fffd;
  RcPair pair(options);
  MemoryId from = pair.NewPattern(9000);
  MemoryId to = pair.NewRegion(9000);
  MemoryId back = pair.NewRegion(9000);
  pair.Queue(
      kA,
      pair.Remote(RcPair::Work(1, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, 9000)}), to));
  pair.Queue(kA,
             pair.Remote(RcPair::Work(2, WrOpcode::kRdmaRead, {pair.memory.SgeOf(back, 0, 9000)},
                                      shm::kSendSignaled | shm::kSendFence),
                         to));
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  EXPECT_TRUE(pair.SameBytes(from, to));
  EXPECT_TRUE(pair.SameBytes(from, back));
}

}  // namespace
}  // namespace verbena::transport::rc
