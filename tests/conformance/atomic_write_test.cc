// ATOMIC_WRITE: eight bytes at once, after all that was written before.
#include <atomic>
#include <cerrno>
#include <cstring>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

constexpr uint64_t kDeviceAtomicWrite = uint64_t{1} << 40;  // IB_UVERBS_DEVICE_ATOMIC_WRITE
constexpr uint64_t kValue = 0x1122'3344'5566'7788;

class Verb_ibv_wr_atomic_write : public VerbsTest {
 protected:
  void Make(unsigned qp_access = kRemoteAccess, unsigned mr_access = kAllAccess) {
    SideOptions options;
    options.send_ops = IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_RDMA_WRITE;
    options.max_inline_bytes = 0;  // it needs none of it
    options.mr_access = mr_access;
    ConnectOptions connect;
    connect.qp_access = qp_access;
    MakePair(options, connect);
    ex = ibv_qp_to_qp_ex(a->qp);
    ASSERT_NE(ex, nullptr);
  }
  void Begin(uint64_t wr_id, unsigned flags = IBV_SEND_SIGNALED) {
    ibv_wr_start(ex);
    ex->wr_id = wr_id;
    ex->wr_flags = flags;
  }
  ibv_wc WriteWord(uint64_t value, uint64_t addr) {
    Begin(7);
    ibv_wr_atomic_write(ex, b->mr->rkey, addr, &value);
    EXPECT_EQ(ibv_wr_complete(ex), 0);
    return a->WaitSend();
  }

  ibv_qp_ex* ex = nullptr;
};

TEST_F(Verb_ibv_wr_atomic_write, IsTold) {
  Make();
  ibv_device_attr_ex attr = {};
  ASSERT_EQ(ibv_query_device_ex(a->context, nullptr, &attr), 0);
  EXPECT_NE(attr.device_cap_flags_ex & kDeviceAtomicWrite, 0u);
}

TEST_F(Verb_ibv_wr_atomic_write, WritesAWord) {
  Make();
  memset(b->buffer.data(), 0xee, 64);
  ibv_wc wc = WriteWord(kValue, b->buffer.address() + 8);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_ATOMIC_WRITE);
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_EQ(b->buffer.words()[0], 0xeeee'eeee'eeee'eeeeu);
  EXPECT_EQ(b->buffer.words()[1], kValue);
  EXPECT_EQ(b->buffer.words()[2], 0xeeee'eeee'eeee'eeeeu);
}

// Who sees the word sees all that was written before it.
TEST_F(Verb_ibv_wr_atomic_write, FollowsTheWritesBeforeIt) {
  Make();
  constexpr uint32_t kBytes = 32 * 1024;
  std::atomic_ref<uint64_t> flag(b->buffer.words()[kBytes / 8]);
  for (uint64_t round = 1; round <= 200; ++round) {
    memset(a->buffer.data(), static_cast<int>(round), kBytes);
    Begin(round, 0);
    ibv_wr_rdma_write(ex, b->mr->rkey, b->buffer.address());
    ibv_wr_set_sge(ex, a->mr->lkey, a->buffer.address(), kBytes);
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_atomic_write(ex, b->mr->rkey, b->buffer.address() + kBytes, &round);
    ASSERT_EQ(ibv_wr_complete(ex), 0);
    ASSERT_TRUE(Eventually([&] { return flag.load(std::memory_order_acquire) == round; }));
    for (uint32_t i = 0; i < kBytes; i += 997) {
      ASSERT_EQ(b->buffer[i], static_cast<uint8_t>(round)) << "round " << round;
    }
    ASSERT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  }
}

// Half of one value beside half of another is never seen.
TEST_F(Verb_ibv_wr_atomic_write, IsNeverSeenInPart) {
  Make();
  std::atomic_ref<uint64_t> word(b->buffer.words()[0]);
  int done = 0;
  for (uint64_t i = 0; done < 20'000;) {
    ibv_wr_start(ex);
    for (int k = 0; k < 16; ++k) {
      ++i;
      const uint64_t value = (i & 0xffff'ffff) << 32 | (i & 0xffff'ffff);
      ex->wr_id = i;
      ex->wr_flags = k == 15 ? IBV_SEND_SIGNALED : 0;
      ibv_wr_atomic_write(ex, b->mr->rkey, b->buffer.address(), &value);
    }
    ASSERT_EQ(ibv_wr_complete(ex), 0);
    ibv_wc wc = {};
    for (int n = 0; n == 0;) {
      const uint64_t seen = word.load(std::memory_order_relaxed);
      ASSERT_EQ(seen >> 32, seen & 0xffff'ffff);
      n = ibv_poll_cq(a->send_cq, 1, &wc);
    }
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    done += 16;
  }
}

TEST_F(Verb_ibv_wr_atomic_write, RefusesAnUnalignedAddress) {
  Make();
  EXPECT_EQ(WriteWord(kValue, b->buffer.address() + 4).status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(b->buffer.words()[0], 0u);
  EXPECT_EQ(b->buffer.words()[1], 0u);
  EXPECT_TRUE(b->WaitEvent(IBV_EVENT_QP_REQ_ERR));
}

TEST_F(Verb_ibv_wr_atomic_write, NeedsARegionForRemoteWriting) {
  Make(kRemoteAccess, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
  EXPECT_EQ(WriteWord(kValue, b->buffer.address()).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(b->buffer.words()[0], 0u);
}

TEST_F(Verb_ibv_wr_atomic_write, NeedsAQpForRemoteWriting) {
  Make(IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
  EXPECT_EQ(WriteWord(kValue, b->buffer.address()).status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(b->buffer.words()[0], 0u);
}

TEST_F(Verb_ibv_wr_atomic_write, KeepsToItsRegion) {
  Make();
  EXPECT_EQ(WriteWord(kValue, b->buffer.address() + b->buffer.size()).status,
            IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Verb_ibv_wr_atomic_write, IsNotForUcAndUd) {
  for (ibv_qp_type type : {IBV_QPT_UC, IBV_QPT_UD}) {
    a = std::make_unique<Side>(SideOptions{});
    ibv_qp_init_attr_ex init = {};
    init.qp_type = type;
    init.send_cq = init.recv_cq = a->send_cq;
    init.cap = {1, 1, 1, 1, 0};
    init.pd = a->pd;
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE;
    errno = 0;
    EXPECT_EQ(ibv_create_qp_ex(a->context, &init), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
  }
}

// By ibv_post_send its bytes are inline data.
TEST_F(Verb_ibv_wr_atomic_write, GoesByPostSendToo) {
  Make();
  uint64_t value = kValue;
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_ATOMIC_WRITE;
  wr.wr.rdma = {b->buffer.address(), b->mr->rkey};
  ibv_sge sge = {reinterpret_cast<uint64_t>(&value), 8, 0};
  wr.send_flags = IBV_SEND_SIGNALED;
  EXPECT_EQ(a->Post(wr, {sge}), EINVAL) << "not inline";
  wr.send_flags |= IBV_SEND_INLINE;
  sge.length = 4;
  EXPECT_EQ(a->Post(wr, {sge}), EINVAL) << "not eight bytes";
  ibv_sge high = {reinterpret_cast<uint64_t>(&value) + 4, 4, 0};
  ASSERT_EQ(a->Post(wr, {sge, high}), 0);
  value = 0;  // the bytes were taken
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->buffer.words()[0], kValue);
}

}  // namespace
}  // namespace verbena::conformance
