// Binds and invalidations in both queues: their turn, what they wait for, and what waits for them.
#include <gtest/gtest.h>

#include "transport/rc/rc_pair.h"

namespace verbena::transport::rc {
namespace {

using shm::VendorErr;
using shm::WrOpcode;

constexpr uint32_t kA = RcPair::kA;
constexpr uint32_t kB = RcPair::kB;
constexpr bool kSends = true;
constexpr bool kReceives = false;

class RcKeys : public ::testing::Test {
 protected:
  RcKeys() {
    pair.hosts[kA]->bind_fault = VendorErr::kNone;
    pair.PostRecv(kB, 100, {pair.memory.SgeOf(to, 0, 64)});
  }
  SendWork Write(uint64_t id) {
    return pair.Remote(RcPair::Work(id, WrOpcode::kRdmaWrite, {pair.memory.SgeOf(from, 0, 8)}), to);
  }
  SendWork Bind(uint64_t id) {
    SendWork work = RcPair::Work(id, WrOpcode::kBindMw, {});
    work.wqe.imm_or_rkey = 0x8000'0102;
    work.wqe.rkey = 0x77;
    work.wqe.remote_addr = 0x5000;
    work.wqe.bind = {0x1'0000'0000, 9, access::kRemoteRead};
    return work;
  }
  SendWork Invalidate(uint64_t id, MemoryId region) {
    SendWork work = RcPair::Work(id, WrOpcode::kLocalInv, {});
    work.wqe.imm_or_rkey = pair.memory.region(region).key;
    return work;
  }
  void Settle(uint32_t side, QpRole role) {
    pair.hosts[side]->keys_are_settled = true;
    pair.qps[side]->OnKeysSettled(pair.fabric.now(), role);
    pair.fabric.Drive(side);
    ASSERT_TRUE(pair.Run());
  }
  void LoseFirst(Opcode opcode) {
    pair.fabric.set_drop_filter([opcode, is_first = true](const Pdu& pdu) mutable {
      return pdu.opcode == opcode && std::exchange(is_first, false);
    });
  }

  RcPair pair;
  MemoryId from = pair.NewPattern(64);
  MemoryId to = pair.NewRegion(64);
  MemoryId key = pair.NewRegion(64);
};

TEST_F(RcKeys, ABindSaysWhatItsRequestSays) {
  pair.Post(kA, Bind(1));
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  ASSERT_EQ(pair.hosts[kA]->binds.size(), 1u);
  const WindowBind& bind = pair.hosts[kA]->binds[0];
  EXPECT_EQ(bind.window, 9u);
  EXPECT_EQ(bind.rkey, RKey(0x8000'0102));
  EXPECT_EQ(bind.lkey, 0x77u);
  EXPECT_EQ(bind.addr, 0x5000u);
  EXPECT_EQ(bind.length, 0x1'0000'0000u);
  EXPECT_EQ(bind.access, access::kRemoteRead);
}

TEST_F(RcKeys, WorkBehindABindWaitsUntilItsKeysHaveSettled) {
  pair.hosts[kA]->keys_are_settled = false;
  pair.Queue(kA, Write(1));
  pair.Queue(kA, Bind(2));
  pair.Queue(kA, Write(3));
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.hosts[kA]->binds.size(), 1u);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  Settle(kA, QpRole::kRequester);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "2:ok 3:ok");
  EXPECT_EQ(pair.hosts[kA]->binds.size(), 1u);  // done once
}

// What was lost before a bind is sent again while the bind waits.
TEST_F(RcKeys, ALossBeforeABindThatWaitsIsMended) {
  pair.hosts[kA]->keys_are_settled = false;
  LoseFirst(Opcode::kWriteOnly);
  pair.Queue(kA, Write(1));
  pair.Queue(kA, Bind(2));
  pair.Queue(kA, Write(3));
  pair.Ring(kA);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok");
  Settle(kA, QpRole::kRequester);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "2:ok 3:ok");
}

// The bind's keys settle while something before it waits to be sent again.
TEST_F(RcKeys, KeysMaySettleWhileAPeerIsNotReady) {
  pair.hosts[kA]->keys_are_settled = false;
  pair.Queue(kA, RcPair::Inline(1, WrOpcode::kSend, "x"));
  pair.Queue(kA, RcPair::Inline(2, WrOpcode::kSend, "x"));
  pair.Queue(kA, Bind(3));
  pair.Ring(kA);
  ASSERT_TRUE(pair.fabric.RunUntil([&] { return pair.qps[kA]->counters().rcvd_rnr_err != 0; },
                                   Instant{0} + Seconds(1)));
  EXPECT_EQ(pair.hosts[kA]->binds.size(), 1u);
  pair.PostRecv(kB, 101, {pair.memory.SgeOf(to, 0, 64)});
  Settle(kA, QpRole::kRequester);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok 3:ok");
}

TEST_F(RcKeys, LocalInvalidateWaitsForTheLostToArrive) {
  LoseFirst(Opcode::kWriteOnly);
  pair.Queue(kA, Write(1));
  pair.Queue(kA, Invalidate(2, key));
  pair.Ring(kA);
  ASSERT_TRUE(pair.fabric.RunUntil([&] { return pair.qps[kA]->RequestsLost() != 0; },
                                   Instant{0} + Seconds(1)));
  EXPECT_TRUE(pair.memory.region(key).is_valid);
  ASSERT_TRUE(pair.Run());
  EXPECT_FALSE(pair.memory.region(key).is_valid);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
}

TEST_F(RcKeys, ASendWithInvalidateIsAcknowledgedWhenItsKeyHasSettled) {
  pair.hosts[kB]->keys_are_settled = false;
  SendWork send = RcPair::Inline(1, WrOpcode::kSendWithInv, "x");
  send.wqe.imm_or_rkey = pair.memory.region(key).key;
  pair.Queue(kA, send);
  pair.Queue(kA, Write(2));
  pair.Ring(kA);
  // Its sender gives it up for lost meanwhile, and what it sends again changes nothing.
  ASSERT_TRUE(pair.fabric.RunUntil([&] { return pair.qps[kA]->RequestsLost() != 0; },
                                   Instant{0} + Seconds(1)));
  EXPECT_FALSE(pair.memory.region(key).is_valid);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "");
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "");
  Settle(kB, QpRole::kResponder);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:ok 2:ok");
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "100:ok");
  EXPECT_EQ(pair.qps[kB]->state(), QpState::kRts);
}

TEST_F(RcKeys, ErrorFlushesWhenTheKeysHaveSettled) {
  pair.hosts[kA]->keys_are_settled = pair.hosts[kB]->keys_are_settled = false;
  SendWork send = RcPair::Inline(1, WrOpcode::kSendWithInv, "x");
  send.wqe.imm_or_rkey = pair.memory.region(key).key;
  pair.Queue(kA, send);
  pair.Queue(kA, Bind(2));
  pair.Ring(kA);
  ASSERT_TRUE(pair.fabric.RunUntil([&] { return !pair.memory.region(key).is_valid; },
                                   Instant{0} + Seconds(1)));
  for (uint32_t side : {kA, kB}) EXPECT_EQ(pair.ModifyTo(side, QpState::kErr), 0);
  ASSERT_TRUE(pair.Run());
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "");
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "");
  Settle(kA, QpRole::kRequester);
  Settle(kB, QpRole::kResponder);
  EXPECT_EQ(pair.TakeCompletions(kA, kSends), "1:flush 2:flush");
  EXPECT_EQ(pair.TakeCompletions(kB, kReceives), "100:flush");
}

}  // namespace
}  // namespace verbena::transport::rc
