// Random work over random networks: seeded, judged by a model, replayed exactly.
#include <gtest/gtest.h>

#include "transport/rc/rc_workload.h"

namespace verbena::transport::rc {
namespace {

constexpr uint64_t kSeeds = 1500;

RcPairOptions RandomOptions(uint64_t seed) {
  sim::SimRandom random(seed);
  RcPairOptions options;
  options.seed = seed;
  options.link.loss_per_mille = random.Below(80);
  options.link.duplicate_per_mille = random.Below(50);
  options.link.reorder_per_mille = random.Below(100);
  options.link.corrupt_per_mille = random.Chance(300) ? random.Below(50) : 0;
  if (random.Chance(200)) {
    const Instant begin = Instant{0} + Microseconds(random.Below(300));
    options.link.partitions.push_back({begin, begin + Microseconds(random.Below(3000))});
  }
  options.link.dma_delay = Nanoseconds(random.Chance(500) ? 0 : random.Below(4000));
  options.link.keeps_refused = random.Chance(500);
  options.link.by_reference = random.Chance(300);
  options.mtu_code = 1 + random.Below(5);
  // Packets, messages in a few parts, whole messages.
  const uint32_t pdu_bytes[] = {0, 0, 4096, 1u << 20};
  options.max_pdu_bytes = pdu_bytes[random.Below(4)];
  const uint32_t windows[] = {0, 0, 1, 2, 5, 16};
  options.max_unacked_psns = windows[random.Below(6)];
  options.sq_psn = random.Chance(500) ? 0xff'fff0 : random.Below(1u << 24);
  options.max_rd_atomic = static_cast<uint8_t>(1 + random.Below(8));
  options.min_rnr_timer_code = 1;
  return options;
}

TEST(RcRandom, NoProgramCanTellANetworkWithFaultsFromAPerfectOne) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    RcWorkload workload(seed, RandomOptions(seed), WorkloadOptions{});
    ASSERT_EQ(workload.Run(Milliseconds(500)), "") << "seed " << seed;
  }
}

TEST(RcRandom, WorkGetsThroughWhereAFifthOfAllPacketsIsLost) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    RcPairOptions options = RandomOptions(seed);
    options.max_pdu_bytes = 0;
    options.max_unacked_psns = 4u << seed % 6;
    options.link.loss_per_mille = 200;
    options.link.keeps_refused = false;
    RcWorkload workload(seed, options, WorkloadOptions{});
    ASSERT_EQ(workload.Run(Seconds(600)), "") << "seed " << seed;
  }
}

TEST(RcRandom, AFaultyNetworkIsReallyFaulty) {
  QpCounters sum;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    RcWorkload workload(seed, RandomOptions(seed), WorkloadOptions{});
    ASSERT_EQ(workload.Run(Milliseconds(500)), "") << "seed " << seed;
    for (auto& qp : workload.pair().qps) {
      sum.duplicate_request += qp->counters().duplicate_request;
      sum.out_of_seq_request += qp->counters().out_of_seq_request;
      sum.rcvd_seq_err += qp->counters().rcvd_seq_err;
      sum.rcvd_rnr_err += qp->counters().rcvd_rnr_err;
    }
  }
  EXPECT_GT(sum.duplicate_request, 100u);
  EXPECT_GT(sum.out_of_seq_request, 100u);
  EXPECT_GT(sum.rcvd_seq_err, 100u);
  EXPECT_GT(sum.rcvd_rnr_err, 100u);
}

TEST(RcRandom, ASeedReplaysItsTraceByteForByte) {
  for (uint64_t seed : {7u, 8u, 9u}) {
    std::string traces[2];
    for (std::string& trace : traces) {
      RcWorkload workload(seed, RandomOptions(seed), WorkloadOptions{});
      workload.pair().fabric.set_keeps_trace(true);
      ASSERT_EQ(workload.Run(Milliseconds(500)), "") << "seed " << seed;
      trace = workload.pair().fabric.trace();
    }
    EXPECT_GT(traces[0].size(), 1000u);
    EXPECT_EQ(traces[0], traces[1]);
  }
}

// One transport for both forms: the same work gives the same completions and consumes the same
// PSNs.
TEST(RcRandom, MessagesAndPacketsGiveEqualResults) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::string outcomes[2];
    Psn last_psns[2][2];
    for (int form = 0; form < 2; ++form) {
      RcPairOptions options;
      options.seed = seed;
      options.max_pdu_bytes = form == 0 ? 0 : 1u << 20;
      RcWorkload workload(seed, options, WorkloadOptions{});
      workload.pair().fabric.set_drop_filter([&](const Pdu& pdu) {
        if (LookUpOpcode(pdu.opcode)->is_request) {
          Psn end = pdu.psn + pdu.psn_count;
          Psn& last = last_psns[form][pdu.src_qpn == RcPair::QpnOf(0) ? 0 : 1];
          if (last == Psn(0) || last.Before(end)) last = end;
        }
        return false;
      });
      ASSERT_EQ(workload.Run(Milliseconds(1)), "") << "seed " << seed;
      outcomes[form] = workload.Outcome();
    }
    EXPECT_EQ(outcomes[0], outcomes[1]) << "seed " << seed;
    EXPECT_EQ(last_psns[0][0], last_psns[1][0]) << "seed " << seed;
    EXPECT_EQ(last_psns[0][1], last_psns[1][1]) << "seed " << seed;
  }
}

TEST(RcRandom, ADeadNetworkEndsAllWorkWithErrors) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    RcPairOptions options = RandomOptions(seed);
    options.link.loss_per_mille = 0;
    RcPair pair(options);
    MemoryId region = pair.NewPattern(5000);
    int delivered = 0;
    pair.fabric.set_drop_filter(
        [&](const Pdu&) { return ++delivered > static_cast<int>(seed * 2); });
    for (uint64_t id = 0; id < 50; ++id) {
      pair.Queue(RcPair::kA, pair.Remote(RcPair::Work(id,
                                                      id % 3 == 0 ? shm::WrOpcode::kRdmaRead
                                                                  : shm::WrOpcode::kRdmaWrite,
                                                      {pair.memory.SgeOf(region, 0, 5000)}),
                                         region));
    }
    pair.Ring(RcPair::kA);
    ASSERT_TRUE(pair.Run());
    auto& all = pair.fabric.completions(RcPair::kA);
    ASSERT_EQ(all.size(), 50u);
    size_t i = 0;
    while (i < 50 && all[i].status == WcStatus::kSuccess) ++i;
    ASSERT_LT(i, 50u);
    EXPECT_EQ(all[i].status, WcStatus::kRetryExcErr);
    for (size_t rest = 0; rest < 50; ++rest) {
      EXPECT_EQ(all[rest].wr_id, rest);
      if (rest > i) {
        EXPECT_EQ(all[rest].status, WcStatus::kWrFlushErr);
      }
    }
  }
}

}  // namespace
}  // namespace verbena::transport::rc
