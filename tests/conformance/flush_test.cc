// FLUSH: what was written before it is where the program sees it, once it completes.
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>

#include "tests/conformance/v64.h"
#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

using namespace v64;

constexpr unsigned kMrAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | kAccessFlushGlobal;
constexpr unsigned kQpAccess = kRemoteAccess | kAccessFlushGlobal | kAccessFlushPersistent;

class Verb_ibv_wr_flush : public VerbsTest {
 protected:
  void Make(unsigned qp_access = kQpAccess, unsigned mr_access = kMrAccess) {
    SideOptions options;
    options.send_ops = kQpExWithFlush | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_WRITE;
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
  void Flush(uint32_t rkey, uint64_t addr, size_t len, uint8_t type = kFlushGlobal,
             uint8_t level = kFlushRange) {
    reinterpret_cast<QpEx*>(ex)->wr_flush(ex, rkey, addr, len, type, level);
  }
  void Write(uint32_t bytes) {
    ibv_wr_rdma_write(ex, b->mr->rkey, b->buffer.address());
    ibv_wr_set_sge(ex, a->mr->lkey, a->buffer.address(), bytes);
  }
  ibv_wc FlushOne(uint64_t addr, size_t len, uint8_t type = kFlushGlobal,
                  uint8_t level = kFlushRange) {
    Begin(7);
    Flush(b->mr->rkey, addr, len, type, level);
    EXPECT_EQ(ibv_wr_complete(ex), 0);
    return a->WaitSend();
  }

  ibv_qp_ex* ex = nullptr;
};

TEST_F(Verb_ibv_wr_flush, IsToldAndPersistenceIsNot) {
  Make();
  ibv_device_attr_ex attr = {};
  ASSERT_EQ(ibv_query_device_ex(a->context, nullptr, &attr), 0);
  EXPECT_EQ(attr.device_cap_flags_ex >> 38 & 3, 1u);  // FLUSH_GLOBAL, and not FLUSH_PERSISTENT
}

TEST_F(Verb_ibv_wr_flush, FlushesARange) {
  Make();
  memset(b->buffer.data(), 0xee, 64);
  for (size_t len : {size_t{0}, size_t{1}, size_t{4096}, b->buffer.size()}) {
    ibv_wc wc = FlushOne(b->buffer.address(), len);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, kWcFlush);
    EXPECT_EQ(wc.wr_id, 7u);
  }
  for (int i = 0; i < 64; ++i) EXPECT_EQ(b->buffer[i], 0xee);
}

// As test_qp_ex_rc_flush of rdma-core's suite: of a whole region the length says nothing.
TEST_F(Verb_ibv_wr_flush, FlushesAWholeRegion) {
  Make();
  std::mt19937 random(1);
  for (int i = 0; i < 100; ++i) {
    const size_t len = i == 0 ? 0 : random() % 12'345'678;
    EXPECT_EQ(FlushOne(b->buffer.address(), len, kFlushGlobal, kFlushMr).status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(FlushOne(1, ~size_t{0}, kFlushGlobal, kFlushMr).status, IBV_WC_SUCCESS);
}

// Its completion alone says that the bytes are there.
TEST_F(Verb_ibv_wr_flush, FollowsTheWritesBeforeIt) {
  Make();
  constexpr uint32_t kBytes = 48 * 1024;
  for (uint32_t round = 1; round <= 200; ++round) {
    memset(a->buffer.data(), static_cast<int>(round), kBytes);
    Begin(round, 0);
    Write(kBytes);
    ex->wr_flags = IBV_SEND_SIGNALED;
    Flush(b->mr->rkey, b->buffer.address(), kBytes, kFlushGlobal,
          round % 2 == 0 ? kFlushMr : kFlushRange);
    ASSERT_EQ(ibv_wr_complete(ex), 0);
    ibv_wc wc = a->WaitSend();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_EQ(wc.opcode, kWcFlush);
    ASSERT_EQ(wc.wr_id, round);
    ASSERT_EQ(memcmp(b->buffer.data(), a->buffer.data(), kBytes), 0) << "round " << round;
  }
}

// WRITE, FLUSH, ATOMIC_WRITE: who sees the word knows that the bytes were flushed.
TEST_F(Verb_ibv_wr_flush, ComesBeforeAnAtomicWriteBehindIt) {
  Make();
  constexpr uint32_t kBytes = 32 * 1024;
  std::atomic_ref<uint64_t> flag(b->buffer.words()[kBytes / 8]);
  for (uint64_t round = 1; round <= 100; ++round) {
    memset(a->buffer.data(), static_cast<int>(round), kBytes);
    Begin(round, 0);
    Write(kBytes);
    Flush(b->mr->rkey, b->buffer.address(), kBytes);
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

TEST_F(Verb_ibv_wr_flush, ManyAtOnceKeepToTheResources) {
  Make();
  Begin(0);
  for (uint64_t i = 0; i < 32; ++i) {
    ex->wr_id = i;
    Flush(b->mr->rkey, b->buffer.address(), 64);
  }
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  for (uint64_t i = 0; i < 32; ++i) {
    ibv_wc wc = a->WaitSend();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, i);
  }
}

// As test_qp_ex_rc_flush_type_violate of rdma-core's suite.
TEST_F(Verb_ibv_wr_flush, RefusesATypeThatTheRegionDoesNotAllow) {
  for (uint8_t type : {kFlushPersistent, uint8_t{kFlushPersistent | kFlushGlobal}}) {
    for (uint8_t level : {kFlushRange, kFlushMr}) {
      Make();
      EXPECT_EQ(FlushOne(b->buffer.address(), 64, type, level).status, IBV_WC_REM_ACCESS_ERR);
      EXPECT_TRUE(b->WaitEvent(IBV_EVENT_QP_ACCESS_ERR));
    }
  }
}

TEST_F(Verb_ibv_wr_flush, NeedsARegionThatAllowsIt) {
  for (uint8_t level : {kFlushRange, kFlushMr}) {
    Make(kQpAccess, kAllAccess);
    EXPECT_EQ(FlushOne(b->buffer.address(), 64, kFlushGlobal, level).status, IBV_WC_REM_ACCESS_ERR);
  }
}

TEST_F(Verb_ibv_wr_flush, NeedsAQpThatAllowsIt) {
  Make(kRemoteAccess);
  EXPECT_EQ(FlushOne(b->buffer.address(), 64).status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_TRUE(b->WaitEvent(IBV_EVENT_QP_REQ_ERR));
}

TEST_F(Verb_ibv_wr_flush, KeepsToItsRegion) {
  Make();
  EXPECT_EQ(FlushOne(b->buffer.address(), b->buffer.size() + 1).status, IBV_WC_REM_ACCESS_ERR);
  Make();
  EXPECT_EQ(FlushOne(b->buffer.address() - 1, 8).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Verb_ibv_wr_flush, NoMemoryIsCalledPersistent) {
  Make();
  for (unsigned access : {kAccessFlushPersistent, kMrAccess | kAccessFlushPersistent}) {
    errno = 0;
    EXPECT_EQ(ibv_reg_mr(b->pd, b->buffer.data(), 4096, static_cast<int>(access)), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
  }
}

TEST_F(Verb_ibv_wr_flush, RefusesWhatNoRequestCanSay) {
  Make();
  struct {
    size_t len;
    uint8_t type, level;
  } const kRows[] = {{64, 0, kFlushRange},
                     {64, 4, kFlushRange},
                     {64, kFlushGlobal | 8, kFlushMr},
                     {64, kFlushGlobal, kFlushMr + 1},
                     {64, kFlushGlobal, 0xff},
                     {size_t{1} << 32, kFlushGlobal, kFlushRange}};
  for (const auto& row : kRows) {
    Begin(1);
    Write(8);
    Flush(b->mr->rkey, b->buffer.address(), row.len, row.type, row.level);
    EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
  }
  // Nothing of those was posted.
  EXPECT_EQ(FlushOne(b->buffer.address(), 64).wr_id, 7u);
  // Longer than any message, which the length of a request can say.
  EXPECT_EQ(FlushOne(b->buffer.address(), (size_t{1} << 31) + 1).status, IBV_WC_LOC_LEN_ERR);
}

TEST_F(Verb_ibv_wr_flush, IsThereOnlyIfAskedFor) {
  SideOptions options;
  options.send_ops = IBV_QP_EX_WITH_RDMA_WRITE;
  a = std::make_unique<Side>(options);
  EXPECT_EQ(reinterpret_cast<QpEx*>(ibv_qp_to_qp_ex(a->qp))->wr_flush, nullptr);
}

TEST_F(Verb_ibv_wr_flush, IsNotForUcAndUd) {
  for (ibv_qp_type type : {IBV_QPT_UC, IBV_QPT_UD}) {
    a = std::make_unique<Side>(SideOptions{});
    ibv_qp_init_attr_ex init = {};
    init.qp_type = type;
    init.send_cq = init.recv_cq = a->send_cq;
    init.cap = {1, 1, 1, 1, 0};
    init.pd = a->pd;
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.send_ops_flags = kQpExWithFlush;
    errno = 0;
    EXPECT_EQ(ibv_create_qp_ex(a->context, &init), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
  }
}

// A window's rights are its own; the region need not allow it.
TEST_F(Verb_ibv_wr_flush, GoesByAWindowThatAllowsIt) {
  for (unsigned access :
       {IBV_ACCESS_REMOTE_WRITE | kAccessFlushGlobal, IBV_ACCESS_REMOTE_WRITE + 0u}) {
    Make(kQpAccess, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    ibv_mw* mw = ibv_alloc_mw(b->pd, IBV_MW_TYPE_1);
    ASSERT_NE(mw, nullptr);
    ibv_mw_bind bind = {};
    bind.send_flags = IBV_SEND_SIGNALED;
    bind.bind_info = {b->mr, b->buffer.address() + 4096, 4096, access};
    ASSERT_EQ(ibv_bind_mw(b->qp, mw, &bind), 0);
    ASSERT_EQ(b->WaitSend().status, IBV_WC_SUCCESS);
    for (uint8_t level : {kFlushRange, kFlushMr}) {
      Begin(level);
      Flush(mw->rkey, b->buffer.address() + 4096, 4096, kFlushGlobal, level);
      ASSERT_EQ(ibv_wr_complete(ex), 0);
      const bool is_allowed = (access & kAccessFlushGlobal) != 0;
      EXPECT_EQ(a->WaitSend().status, is_allowed          ? IBV_WC_SUCCESS
                                      : level == kFlushMr ? IBV_WC_WR_FLUSH_ERR
                                                          : IBV_WC_REM_ACCESS_ERR);
    }
    EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  }
}

// struct ibv_send_wr has no place for the type and the level.
TEST_F(Verb_ibv_wr_flush, DoesNotGoByPostSend) {
  Make();
  ibv_send_wr wr = {};
  wr.opcode = kWrFlush;
  wr.wr.rdma = {b->buffer.address(), b->mr->rkey};
  wr.send_flags = IBV_SEND_SIGNALED;
  EXPECT_EQ(a->Post(wr, {}), EINVAL);
}

}  // namespace
}  // namespace verbena::conformance
