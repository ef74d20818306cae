// Stories about links that fail for a while, hosts that stand still, and packets that arrive
// broken.
#include <gtest/gtest.h>

#include "transport/rc/rc_pair.h"

namespace verbena::transport::rc {
namespace {

using shm::WrOpcode;

constexpr uint32_t kA = RcPair::kA;
constexpr uint32_t kB = RcPair::kB;
constexpr bool kSends = true;
constexpr uint32_t kBytes = 100'000;

class RcOutage : public ::testing::Test {
 protected:
  static RcPairOptions Options() {
    RcPairOptions options;
    options.max_unacked_psns = 32;
    options.link.keeps_refused = false;
    return options;
  }
  struct Regions {
    explicit Regions(RcPair& pair)
        : from(pair.NewPattern(kBytes)), to(pair.NewRegion(kBytes)), back(pair.NewRegion(kBytes)) {}
    MemoryId from, to, back;
  };
  static void PostWriteAndRead(RcPair& pair, const Regions& at) {
    pair.Queue(kA, pair.Remote(RcPair::Work(1, WrOpcode::kRdmaWrite,
                                            {pair.memory.SgeOf(at.from, 0, kBytes)}),
                               at.to));
    pair.Queue(kA, pair.Remote(
                       RcPair::Work(2, WrOpcode::kRdmaRead, {pair.memory.SgeOf(at.back, 0, kBytes)},
                                    shm::kSendSignaled | shm::kSendFence),
                       at.to));
    pair.Ring(kA);
  }
};

TEST_F(RcOutage, PartitionShorterThanTheRetriesIsSurvived) {
  RcPairOptions options = Options();
  options.link.partitions.push_back({Instant{0} + Microseconds(5), Instant{0} + Milliseconds(5)});
  RcPair pair(options);
  Regions at(pair);
  PostWriteAndRead(pair, at);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  EXPECT_TRUE(pair.SameBytes(at.from, at.back));
  EXPECT_GT(pair.fabric.pdus_cut_off(), 0u);
}

TEST_F(RcOutage, PartitionLongerThanTheRetriesEndsInsideTheirBound) {
  RcPairOptions options = Options();
  options.retry_count = 3;
  options.link.partitions.push_back({Instant{0} + Microseconds(5), Instant{0} + Seconds(10)});
  RcPair pair(options);
  Regions at(pair);
  PostWriteAndRead(pair, at);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:retry-exc 2:flush");
  // One time-out after each of the four tries, and what went before the partition.
  EXPECT_LE(pair.fabric.now() - Instant{0}, AckTimeout(8) * 4 * 4 + Microseconds(50));
}

TEST_F(RcOutage, CorruptPacketsAreLostPackets) {
  RcPairOptions options = Options();
  options.link.corrupt_per_mille = 50;
  RcPair pair(options);
  Regions at(pair);
  PostWriteAndRead(pair, at);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  EXPECT_TRUE(pair.SameBytes(at.from, at.back));
  EXPECT_GT(pair.fabric.pdus_corrupted(), 0u);
}

TEST_F(RcOutage, ResponderThatStandsStillIsTriedAgainAndThenCatchesUp) {
  RcPair pair(Options());
  Regions at(pair);
  pair.fabric.Pause(kB, Instant{0} + Milliseconds(5));
  PostWriteAndRead(pair, at);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  EXPECT_TRUE(pair.SameBytes(at.from, at.back));
  // The tries it slept through all came to it at once.
  EXPECT_GT(pair.qps[kB]->counters().duplicate_request, 0u);
}

TEST_F(RcOutage, RequesterThatStandsStillTakesItsAnswersLate) {
  RcPair pair(Options());
  Regions at(pair);
  PostWriteAndRead(pair, at);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(pair.fabric.Step());
  pair.fabric.Pause(kA, pair.fabric.now() + Milliseconds(50));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  EXPECT_TRUE(pair.SameBytes(at.from, at.back));
  EXPECT_GE(pair.fabric.now(), Instant{0} + Milliseconds(50));
}

TEST_F(RcOutage, AfterTwoTriesInVainTheOldestPacketGoesOutTwice) {
  RcPairOptions options = Options();
  options.retry_count = 3;
  RcPair pair(options);
  std::vector<int32_t> sent;
  std::vector<bool> asked;
  pair.fabric.set_drop_filter([&](const Pdu& pdu) {
    sent.push_back(Psn::Delta(Psn(100), pdu.psn).value);
    asked.push_back(pdu.ack_request);
    return true;
  });
  MemoryId from = pair.NewPattern(3000), to = pair.NewRegion(3000);
  pair.Post(kA, pair.Remote(
                    RcPair::Work(1, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, 3000)}), to));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:retry-exc");
  EXPECT_EQ(sent, (std::vector<int32_t>{0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 0, 0, 1, 2}));
  // Only the first time does the last packet ask for all.
  for (size_t i = 0; i < asked.size(); ++i) EXPECT_EQ(asked[i], i >= 2) << i;
}

TEST_F(RcOutage, WireTimeIsPaidPerByte) {
  RcPairOptions options = Options();
  options.link.wire_ps_per_byte = 1000;  // 1 GB/s
  RcPair pair(options);
  MemoryId from = pair.NewPattern(kBytes), to = pair.NewRegion(kBytes);
  pair.Post(
      kA,
      pair.Remote(RcPair::Work(1, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, kBytes)}), to));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  EXPECT_GE(pair.fabric.now() - Instant{0}, Nanoseconds(kBytes));
  EXPECT_LE(pair.fabric.now() - Instant{0}, Nanoseconds(kBytes) + Microseconds(20));
}

}  // namespace
}  // namespace verbena::transport::rc
