// Stories about the window: how far a requester runs ahead of what its peer acknowledged.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "transport/rc/rc_pair.h"

namespace verbena::transport::rc {
namespace {

using shm::WrOpcode;

constexpr uint32_t kA = RcPair::kA;
constexpr bool kSends = true;
constexpr int32_t kWindow = 16;
constexpr uint32_t kMtu = 1024;   // of RcPair
constexpr Psn kStart(0xff'fffa);  // wraps in all of these stories

// Follows what side A sends and gets: how many PSNs are outstanding at most.
class WindowMeter {
 public:
  explicit WindowMeter(RcPair* pair) : unacked_(kStart) {
    pair->fabric.set_drop_filter([this](const Pdu& pdu) {
      const OpcodeInfo& info = *LookUpOpcode(pdu.opcode);
      if (info.is_request) {
        const Psn end = pdu.psn + pdu.psn_count;
        most_ = std::max(most_, Psn::Delta(unacked_, end).value);
        if (pdu.opcode == Opcode::kReadRequest) reads_.push_back(pdu);
      }
      return false;
    });
    pair->fabric.set_arrival_observer([this](const Pdu& pdu) {
      if (LookUpOpcode(pdu.opcode)->is_request) return;
      const Psn end = pdu.psn + pdu.psn_count;
      if (unacked_.Before(end)) unacked_ = end;
    });
  }
  int32_t most() const { return most_; }
  const std::vector<Pdu>& reads() const { return reads_; }

 private:
  Psn unacked_;
  int32_t most_ = 0;
  std::vector<Pdu> reads_;
};

class RcWindow : public ::testing::TestWithParam<uint32_t> {
 protected:
  static RcPairOptions Options() {
    RcPairOptions options;
    options.max_pdu_bytes = GetParam();
    options.max_unacked_psns = kWindow;
    options.sq_psn = kStart.value();
    options.timeout_exp = 0;  // what stops for good shows
    return options;
  }
  static SendWork Transfer(RcPair& pair, uint64_t id, WrOpcode opcode, MemoryId mine,
                           MemoryId theirs) {
    auto length = static_cast<uint32_t>(pair.memory.region(mine).bytes.size());
    return pair.Remote(RcPair::Work(id, opcode, {pair.memory.SgeOf(mine, 0, length)}), theirs);
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, RcWindow, ::testing::Values(0u, 4096u, 1u << 20),
                         [](const auto& form) {
                           return form.param == 0      ? "Packets"
                                  : form.param == 4096 ? "Parts"
                                                       : "Messages";
                         });

TEST_P(RcWindow, LongWriteStaysWithinItAndUsesItUp) {
  RcPair pair(Options());
  WindowMeter meter(&pair);
  MemoryId from = pair.NewPattern(200 * kMtu + 5);
  MemoryId to = pair.NewRegion(200 * kMtu + 5);
  pair.Post(kA, Transfer(pair, 1, WrOpcode::kRdmaWrite, from, to));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  EXPECT_TRUE(pair.SameBytes(from, to));
  EXPECT_EQ(meter.most(), kWindow);
}

TEST_P(RcWindow, ManyShortWritesStayWithinIt) {
  RcPair pair(Options());
  WindowMeter meter(&pair);
  MemoryId from = pair.NewPattern(kMtu);
  MemoryId to = pair.NewRegion(kMtu);
  for (uint64_t id = 0; id < 100; ++id) {
    pair.Queue(kA, Transfer(pair, id, WrOpcode::kRdmaWrite, from, to));
  }
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.fabric.completions(kA).size(), 100u);
  EXPECT_EQ(meter.most(), kWindow);
}

TEST_P(RcWindow, LongReadIsAskedForInPiecesThatFit) {
  RcPair pair(Options());
  WindowMeter meter(&pair);
  const uint32_t bytes = 50 * kMtu + 7;
  MemoryId theirs = pair.NewPattern(bytes);
  MemoryId mine = pair.NewRegion(bytes);
  pair.Post(kA, Transfer(pair, 1, WrOpcode::kRdmaRead, mine, theirs));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  EXPECT_TRUE(pair.SameBytes(theirs, mine));
  EXPECT_EQ(meter.most(), kWindow);
  uint32_t asked = 0;
  for (const Pdu& read : meter.reads()) {
    EXPECT_EQ(read.remote_addr, pair.memory.region(theirs).addr + asked);
    EXPECT_EQ(Psn::Delta(kStart, read.psn).value, static_cast<int32_t>(asked / kMtu));
    EXPECT_LE(read.psn_count.value, kWindow);
    asked += read.dma_length;
  }
  EXPECT_EQ(asked, bytes);
  EXPECT_EQ(meter.reads().size(), 7u);  // 8 packets each
}

TEST_P(RcWindow, PiecesOfAReadCountAsReadsOutstanding) {
  for (uint8_t limit : {1, 2, 3}) {
    RcPairOptions options = Options();
    options.max_rd_atomic = limit;
    RcPair pair(options);
    int outstanding = 0;
    int most = 0;
    pair.fabric.set_drop_filter([&](const Pdu& pdu) {
      if (pdu.opcode == Opcode::kReadRequest) most = std::max(most, ++outstanding);
      return false;
    });
    pair.fabric.set_arrival_observer([&](const Pdu& pdu) {
      const OpcodeInfo& info = *LookUpOpcode(pdu.opcode);
      if (info.is_read_response && info.is_last) --outstanding;
    });
    MemoryId theirs = pair.NewPattern(20 * kMtu);
    MemoryId mine = pair.NewRegion(20 * kMtu);
    MemoryId little = pair.NewRegion(100);  // fits beside the last piece of a long one
    for (uint64_t id = 0; id < 4; ++id) {
      pair.Queue(kA, Transfer(pair, id, WrOpcode::kRdmaRead, id % 2 == 0 ? mine : little, theirs));
    }
    pair.Ring(kA);
    ASSERT_TRUE(pair.Run());
    EXPECT_EQ(pair.TakeCompletions(kA, kSends), "0:ok 1:ok 2:ok 3:ok");
    EXPECT_TRUE(pair.SameBytes(theirs, mine));
    EXPECT_LE(most, limit);
  }
}

TEST_P(RcWindow, ReadInPiecesResumesWithinThePieceThatWasLost) {
  RcPair pair(Options());
  std::vector<Pdu> reads;
  int responses = 0;
  pair.fabric.set_drop_filter([&](const Pdu& pdu) {
    if (pdu.opcode == Opcode::kReadRequest) reads.push_back(pdu);
    return LookUpOpcode(pdu.opcode)->is_read_response && GetParam() == 0 && responses++ == 3;
  });
  MemoryId theirs = pair.NewPattern(24 * kMtu);
  MemoryId mine = pair.NewRegion(24 * kMtu);
  pair.Post(kA, Transfer(pair, 1, WrOpcode::kRdmaRead, mine, theirs));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  EXPECT_TRUE(pair.SameBytes(theirs, mine));
  if (GetParam() != 0) return;
  // Asked for again from the fourth packet on, but not beyond the end of the first request: a peer
  // may keep each request as a resource of its own.
  ASSERT_GE(reads.size(), 3u);
  EXPECT_EQ(reads[2].psn, kStart + PsnCount{3});
  EXPECT_EQ(reads[2].dma_length, 5 * kMtu);
}

TEST_P(RcWindow, WindowOfOneStillMoves) {
  RcPairOptions options = Options();
  options.max_unacked_psns = 1;
  RcPair pair(options);
  WindowMeter meter(&pair);
  MemoryId from = pair.NewPattern(10 * kMtu);
  MemoryId to = pair.NewRegion(10 * kMtu);
  MemoryId back = pair.NewRegion(10 * kMtu);
  pair.Queue(kA, Transfer(pair, 1, WrOpcode::kRdmaWrite, from, to));
  pair.Queue(kA, Transfer(pair, 2, WrOpcode::kRdmaRead, back, to));
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  EXPECT_TRUE(pair.SameBytes(from, back));
  EXPECT_EQ(meter.most(), 1);
}

TEST_P(RcWindow, LimitsHoldFromOneConnectionToTheNext) {
  RcPair pair(Options());
  for (uint32_t side : {kA, RcPair::kB}) {
    ASSERT_EQ(pair.ModifyTo(side, QpState::kReset), 0);
    pair.qps[side]->SetPduLimits({1u << 20, 0});
  }
  for (QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
    for (uint32_t side : {kA, RcPair::kB}) ASSERT_EQ(pair.ModifyTo(side, state), 0);
  }
  MemoryId from = pair.NewPattern(100 * kMtu);
  MemoryId to = pair.NewRegion(100 * kMtu);
  const uint64_t before = pair.fabric.pdus_sent();
  pair.Post(kA, Transfer(pair, 1, WrOpcode::kRdmaWrite, from, to));
  EXPECT_EQ(pair.fabric.pdus_sent() - before, 1u);  // one PDU of the whole message
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
}

// As many as the window has records, over and over: a record's slot is the next one's at once.
TEST(RcWindowRecords, AreAllInUse) {
  for (uint32_t psns : {0, 100, 256}) {
    RcPairOptions options;
    options.max_unacked_psns = psns;
    options.sq_psn = kStart.value();
    options.max_rd_atomic = SendWindow::kRecords;
    options.timeout_exp = 0;  // what stops for good shows
    RcPair pair(options);
    constexpr uint32_t kAtomics = 5 * SendWindow::kRecords / 2;
    MemoryId from = pair.NewRegion(8 * kAtomics);
    MemoryId to = pair.NewRegion(8);
    std::string all;
    for (uint32_t i = 0; i < kAtomics; ++i) {
      SendWork work =
          RcPair::Work(i, WrOpcode::kAtomicFetchAndAdd, {pair.memory.SgeOf(from, 8 * i, 8)});
      work.wqe.atomic.compare_add = 1;
      pair.Queue(kA, pair.Remote(work, to));
      all += (all.empty() ? "" : " ") + std::to_string(i) + ":ok";
    }
    pair.Ring(kA);
    ASSERT_TRUE(pair.Run());
    EXPECT_EQ(pair.TakeCompletions(kA, kSends), all) << psns;
    const auto& values = pair.memory.region(from).bytes;
    for (uint32_t i = 0; i < kAtomics; ++i) {
      uint64_t original;
      std::memcpy(&original, values.data() + 8 * i, 8);
      EXPECT_EQ(original, i) << psns;
    }
  }
}

TEST(RcWindowAcks, AreAskedForEachQuarterOfTheWindow) {
  RcPairOptions options;
  options.max_unacked_psns = 64;
  options.sq_psn = kStart.value();
  RcPair pair(options);
  std::vector<int32_t> asked;
  pair.fabric.set_drop_filter([&](const Pdu& pdu) {
    if (LookUpOpcode(pdu.opcode)->is_request && pdu.ack_request) {
      asked.push_back(Psn::Delta(kStart, pdu.psn).value);
    }
    return pdu.opcode == Opcode::kAcknowledge;  // so that the window stays where it is
  });
  MemoryId from = pair.NewPattern(100 * kMtu);
  MemoryId to = pair.NewRegion(100 * kMtu);
  pair.Post(
      kA, pair.Remote(
              RcPair::Work(1, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, 100 * kMtu)}), to));
  EXPECT_EQ(asked, (std::vector<int32_t>{15, 31, 47, 63}));
  EXPECT_EQ(pair.fabric.pdus_sent(), 64u);
}

TEST(RcWindowAcks, TheLastPduBeforeAStopAsksEvenOutOfStep) {
  RcPairOptions options;
  options.max_unacked_psns = 64;
  options.sq_psn = kStart.value();
  RcPair pair(options);
  Psn last;
  bool last_asked = false;
  pair.fabric.set_drop_filter([&](const Pdu& pdu) {
    last = pdu.psn;
    last_asked = pdu.ack_request;
    return true;
  });
  MemoryId from = pair.NewPattern(100 * kMtu);
  MemoryId to = pair.NewRegion(100 * kMtu);
  auto write = [&](uint64_t id, uint32_t bytes) {
    pair.Queue(
        kA, pair.Remote(RcPair::Work(id, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, bytes)}),
                        to));
  };
  write(1, 5 * kMtu);  // the long message's quarters don't meet the window's end
  write(2, 100 * kMtu);
  pair.Ring(kA);
  EXPECT_EQ(last, kStart + PsnCount{63});
  EXPECT_TRUE(last_asked);
}

}  // namespace
}  // namespace verbena::transport::rc
