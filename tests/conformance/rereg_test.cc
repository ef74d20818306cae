// Regions that change while their keys stay, regions by other addresses than their own, and the
// region that is no memory.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

constexpr int kMove = IBV_REREG_MR_CHANGE_TRANSLATION;
constexpr int kPd = IBV_REREG_MR_CHANGE_PD;
constexpr int kAccess = IBV_REREG_MR_CHANGE_ACCESS;
constexpr int kLocalOnly = IBV_ACCESS_LOCAL_WRITE;

class RegionTest : public VerbsTest {
 protected:
  void SetUp() override { MakePair(); }
  // WRITEs of a to b, 8 bytes.
  ibv_wc_status Write(uint64_t address, uint32_t rkey) {
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = address;
    wr.wr.rdma.rkey = rkey;
    return Post(wr, {a->Sge(0, 8)});
  }
  ibv_wc_status Post(const ibv_send_wr& wr, const std::vector<ibv_sge>& sges) {
    EXPECT_EQ(a->Post(wr, sges), 0);
    ibv_wc wc = a->WaitSend();
    if (wc.status != IBV_WC_SUCCESS) Restart();
    return wc.status;
  }
  ibv_wc_status Atomic(uint64_t address, uint32_t rkey) {
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.atomic.remote_addr = address;
    wr.wr.atomic.rkey = rkey;
    wr.wr.atomic.compare_add = 5;
    return Post(wr, {a->Sge(64, 8)});
  }
  void Restart() {
    EXPECT_EQ(a->ToState(IBV_QPS_RESET), 0);
    EXPECT_EQ(b->ToState(IBV_QPS_RESET), 0);
    ibv_wc wc;
    while (ibv_poll_cq(a->send_cq, 1, &wc) > 0 || ibv_poll_cq(a->recv_cq, 1, &wc) > 0) {
    }
    while (ibv_poll_cq(b->recv_cq, 1, &wc) > 0 || ibv_poll_cq(b->send_cq, 1, &wc) > 0) {
    }
    Connect(*a, *b, {});
  }
};

using Verb_ibv_rereg_mr = RegionTest;
using Verb_ibv_alloc_null_mr = RegionTest;
using Verb_ibv_reg_mr = RegionTest;
using Verb_ibv_reg_mr_iova = RegionTest;
using Verb_ibv_reg_mr_iova2 = RegionTest;
using Unsupported = RegionTest;

TEST_F(Verb_ibv_rereg_mr, AccessChangesUnderTheSameKeys) {
  const uint32_t lkey = b->mr->lkey, rkey = b->mr->rkey;
  EXPECT_EQ(Write(b->buffer.address(), rkey), IBV_WC_SUCCESS);
  ASSERT_EQ(ibv_rereg_mr(b->mr, kAccess, nullptr, nullptr, 0, kLocalOnly), 0);
  EXPECT_EQ(b->mr->lkey, lkey);
  EXPECT_EQ(b->mr->rkey, rkey);
  EXPECT_EQ(Write(b->buffer.address(), rkey), IBV_WC_REM_ACCESS_ERR);
  ASSERT_EQ(ibv_rereg_mr(b->mr, kAccess, nullptr, nullptr, 0, kLocalOnly | IBV_ACCESS_REMOTE_WRITE),
            0);
  EXPECT_EQ(Write(b->buffer.address(), rkey), IBV_WC_SUCCESS);
}

TEST_F(Verb_ibv_rereg_mr, AtomicsComeAndGoWithTheRight) {
  ASSERT_EQ(ibv_rereg_mr(b->mr, kAccess, nullptr, nullptr, 0,
                         kLocalOnly | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE),
            0);
  b->buffer.words()[0] = 40;
  EXPECT_EQ(Atomic(b->buffer.address(), b->mr->rkey), IBV_WC_REM_ACCESS_ERR);
  ASSERT_EQ(ibv_rereg_mr(b->mr, kAccess, nullptr, nullptr, 0, kAllAccess), 0);
  EXPECT_EQ(Atomic(b->buffer.address(), b->mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(b->buffer.words()[0], 45u);
  EXPECT_EQ(a->buffer.words()[8], 40u);
}

TEST_F(Verb_ibv_rereg_mr, PdChangesAndHoldsTheNewOneOnly) {
  ibv_pd* other = ibv_alloc_pd(b->context);
  ASSERT_NE(other, nullptr);
  ASSERT_EQ(ibv_rereg_mr(b->mr, kPd, other, nullptr, 0, 0), 0);
  EXPECT_EQ(b->mr->pd, other);
  EXPECT_EQ(Write(b->buffer.address(), b->mr->rkey), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dealloc_pd(other), EBUSY);
  ASSERT_EQ(ibv_rereg_mr(b->mr, kPd, b->pd, nullptr, 0, 0), 0);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
  EXPECT_EQ(Write(b->buffer.address(), b->mr->rkey), IBV_WC_SUCCESS);
}

TEST_F(Verb_ibv_rereg_mr, TranslationMovesTheRegion) {
  Memory elsewhere(8'192);
  const size_t half = b->buffer.size() / 2;
  ASSERT_EQ(ibv_rereg_mr(b->mr, kMove, nullptr, elsewhere.data(), elsewhere.size(), 0), 0);
  EXPECT_EQ(b->mr->addr, elsewhere.data());
  EXPECT_EQ(b->mr->length, elsewhere.size());
  a->buffer.words()[0] = 0x1234;
  EXPECT_EQ(Write(b->buffer.address(), b->mr->rkey), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(Write(elsewhere.address() + 8'184, b->mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(elsewhere.words()[1'023], 0x1234u);
  EXPECT_EQ(Write(elsewhere.address() + 8'185, b->mr->rkey), IBV_WC_REM_ACCESS_ERR);
  // Into memory that overlaps it, with another PD and other rights.
  ibv_pd* other = ibv_alloc_pd(b->context);
  ASSERT_EQ(
      ibv_rereg_mr(b->mr, kMove | kPd | kAccess, other, elsewhere.data() + 100, 64, kLocalOnly), 0);
  ASSERT_EQ(
      ibv_rereg_mr(b->mr, kMove | kPd | kAccess, b->pd, b->buffer.data() + half, half, kAllAccess),
      0);
  EXPECT_EQ(Write(b->buffer.address() + half, b->mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(b->buffer.words()[half / 8], 0x1234u);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
}

// A receive request that names the old range is not carried out there.
TEST_F(Verb_ibv_rereg_mr, PostedReceiveOfTheOldRangeFails) {
  Memory elsewhere(4'096);
  ASSERT_EQ(b->PostRecv(1, 0, 64), 0);
  ASSERT_EQ(ibv_rereg_mr(b->mr, kMove, nullptr, elsewhere.data(), elsewhere.size(), 0), 0);
  memset(b->buffer.data(), 0xee, 64);
  ASSERT_EQ(a->Send(2, 0, 64), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_REM_OP_ERR);
  EXPECT_EQ(b->WaitRecv().status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(b->buffer[0], 0xee);
}

TEST_F(Verb_ibv_rereg_mr, InputErrorsChangeNothing) {
  ibv_pd* foreign = a->pd;
  void* addr = b->buffer.data();
  auto expect_refused = [&](int flags, ibv_pd* pd, void* at, size_t length, int access) {
    errno = 0;
    EXPECT_EQ(ibv_rereg_mr(b->mr, flags, pd, at, length, access), IBV_REREG_MR_ERR_INPUT);
    EXPECT_EQ(errno, EINVAL);
  };
  expect_refused(8, nullptr, nullptr, 0, 0);
  expect_refused(kMove, nullptr, nullptr, 4'096, 0);
  expect_refused(kMove, nullptr, addr, 0, 0);
  expect_refused(kPd, nullptr, nullptr, 0, kAllAccess);
  expect_refused(kPd, foreign, nullptr, 0, 0);
  expect_refused(kMove, nullptr, addr, 64, kAllAccess);
  EXPECT_EQ(Write(b->buffer.address(), b->mr->rkey), IBV_WC_SUCCESS);
}

TEST_F(Verb_ibv_rereg_mr, FailedChangeLeavesTheRegionAsItWas) {
  ibv_pd* other = ibv_alloc_pd(b->context);
  auto* hole = static_cast<uint8_t*>(
      mmap(nullptr, 8'192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(hole, MAP_FAILED);
  ASSERT_EQ(munmap(hole + 4'096, 4'096), 0);
  auto expect_failed = [&](int flags, void* at, size_t length, int access, int error) {
    errno = 0;
    EXPECT_EQ(ibv_rereg_mr(b->mr, flags, other, at, length, access), IBV_REREG_MR_ERR_CMD);
    EXPECT_EQ(errno, error);
  };
  expect_failed(0, nullptr, 0, 0, EINVAL);
  expect_failed(kMove | kPd, hole, 8'192, 0, EFAULT);
  expect_failed(kPd | kAccess, nullptr, 0, IBV_ACCESS_REMOTE_WRITE, EINVAL);
  expect_failed(kPd | kAccess, nullptr, 0, kLocalOnly | IBV_ACCESS_ON_DEMAND, EOPNOTSUPP);
  ASSERT_EQ(mprotect(hole, 4'096, PROT_READ), 0);
  expect_failed(kMove | kPd, hole, 4'096, 0, EFAULT);
  EXPECT_EQ(b->mr->pd, b->pd);
  EXPECT_EQ(b->mr->addr, b->buffer.data());
  EXPECT_EQ(Write(b->buffer.address() + b->buffer.size() - 8, b->mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
  EXPECT_EQ(munmap(hole, 4'096), 0);
}

TEST_F(Verb_ibv_rereg_mr, RightToWriteNeedsWritableMemory) {
  void* page = mmap(nullptr, 4'096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  ibv_mr* mr = ibv_reg_mr(b->pd, page, 4'096, IBV_ACCESS_REMOTE_READ);
  if (mr != nullptr) {  // not where all must be mapped by the NIC: that is for what can be written
    EXPECT_EQ(ibv_rereg_mr(mr, kAccess, nullptr, nullptr, 0, kAllAccess), IBV_REREG_MR_ERR_CMD);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
  munmap(page, 4'096);
}

TEST_F(Verb_ibv_rereg_mr, RegionIsDeregisteredAsAnyOther) {
  Memory elsewhere(4'096);
  const uint32_t rkey = b->mr->rkey;
  ibv_mr* mr = ibv_reg_mr(b->pd, b->buffer.data(), 64, kAllAccess);
  ASSERT_NE(mr, nullptr);
  ASSERT_EQ(ibv_rereg_mr(mr, kMove, nullptr, elsewhere.data(), elsewhere.size(), 0), 0);
  const uint32_t dead = mr->rkey;
  EXPECT_NE(dead, rkey);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(Write(elsewhere.address(), dead), IBV_WC_REM_ACCESS_ERR);
}

// --- by other addresses
// ---------------------------------------------------------------------------

TEST_F(Verb_ibv_reg_mr, ZeroBasedIsNamedByOffset) {
  constexpr unsigned kHints = IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_HUGETLB;
  for (unsigned more : {0u, kHints}) {
    ibv_mr* mr =
        ibv_reg_mr(b->pd, b->buffer.data() + 64, 64, kAllAccess | IBV_ACCESS_ZERO_BASED | more);
    ASSERT_NE(mr, nullptr) << strerror(errno);
    EXPECT_EQ(mr->addr, b->buffer.data() + 64);
    a->buffer.words()[0] = 0x77 + more;
    EXPECT_EQ(Write(56, mr->rkey), IBV_WC_SUCCESS);
    EXPECT_EQ(b->buffer.words()[15], 0x77 + more);
    EXPECT_EQ(Write(57, mr->rkey), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(Write(b->buffer.address() + 64, mr->rkey), IBV_WC_REM_ACCESS_ERR);
    // And by its lkey.
    ASSERT_EQ(b->PostRecv(1, {{8, 16, mr->lkey}}), 0);
    ASSERT_EQ(a->Send(2, 0, 16), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
    EXPECT_EQ(b->WaitRecv().status, IBV_WC_SUCCESS);
    EXPECT_EQ(b->buffer.words()[9], 0x77 + more);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
}

TEST_F(Verb_ibv_reg_mr_iova, ZeroIsAsZeroBased) {
  ibv_mr* mr = ibv_reg_mr_iova(b->pd, b->buffer.data(), 4'096, 0, kAllAccess);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(Write(4'088, mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(Write(4'089, mr->rkey), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Verb_ibv_reg_mr_iova2, ZeroBasedWinsAndMovesWithTheRegion) {
  ibv_mr* mr = ibv_reg_mr_iova2(b->pd, b->buffer.data(), 4'096, 0x10'0000,
                                kAllAccess | IBV_ACCESS_ZERO_BASED);
  ASSERT_NE(mr, nullptr);
  a->buffer.words()[0] = 0x99;
  EXPECT_EQ(Write(0x10'0000, mr->rkey), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(Write(8, mr->rkey), IBV_WC_SUCCESS);
  ASSERT_EQ(ibv_rereg_mr(mr, kMove, nullptr, b->buffer.data() + 4'096, 4'096, 0), 0);
  EXPECT_EQ(Write(8, mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(b->buffer.words()[513], 0x99u);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// --- no memory ----------------------------------------------------------------------------------

TEST_F(Verb_ibv_alloc_null_mr, ReadsAsZeroes) {
  ibv_mr* null = ibv_alloc_null_mr(a->pd);
  ASSERT_NE(null, nullptr) << strerror(errno);
  EXPECT_EQ(null->pd, a->pd);
  EXPECT_EQ(null->addr, nullptr);
  EXPECT_EQ(null->length, SIZE_MAX);
  memset(a->buffer.data(), 0x11, 64);
  memset(b->buffer.data(), 0xee, 64 * 1'024);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = b->buffer.address();
  wr.wr.rdma.rkey = b->mr->rkey;
  ASSERT_EQ(Post(wr, {{0x1234, 8, null->lkey}, a->Sge(0, 8), {~uint64_t{0}, 20'000, null->lkey}}),
            IBV_WC_SUCCESS);
  for (size_t i = 0; i < 20'020; ++i) {
    ASSERT_EQ(b->buffer[i], i < 8 ? 0 : i < 16 ? 0x11 : i < 20'016 ? 0 : 0xee) << i;
  }
  EXPECT_EQ(ibv_dereg_mr(null), 0);
}

TEST_F(Verb_ibv_alloc_null_mr, DiscardsWhatIsWritten) {
  ibv_mr* null = ibv_alloc_null_mr(b->pd);
  ASSERT_NE(null, nullptr);
  memset(b->buffer.data(), 0xee, 4'096);
  for (int i = 0; i < 4'096; ++i) a->buffer[i] = static_cast<uint8_t>(i % 251);
  ASSERT_EQ(b->PostRecv(1, {b->Sge(0, 16), {0, 4'000, null->lkey}, b->Sge(16, 80)}), 0);
  ASSERT_EQ(a->Send(2, 0, 4'096), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  ibv_wc wc = b->WaitRecv();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, 4'096u);
  for (int i = 0; i < 96; ++i) {
    ASSERT_EQ(b->buffer[i], (i < 16 ? i : i + 4'000) % 251) << i;
  }
  EXPECT_EQ(b->buffer[96], 0xee);
  ASSERT_EQ(b->PostRecv(1, {{0, 4'096, null->lkey}}), 0);
  ASSERT_EQ(a->Send(2, 0, 4'096), 0);
  EXPECT_EQ(b->WaitRecv().status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dereg_mr(null), 0);
}

TEST_F(Verb_ibv_alloc_null_mr, HasNoRkeyAndIsNotReregistered) {
  ibv_mr* null = ibv_alloc_null_mr(b->pd);
  ASSERT_NE(null, nullptr);
  EXPECT_EQ(Write(0, null->lkey), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(Write(0, null->rkey), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_rereg_mr(null, kAccess, nullptr, nullptr, 0, kAllAccess), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(ibv_dereg_mr(null), 0);
}

TEST_F(Verb_ibv_alloc_null_mr, HoldsItsPd) {
  ibv_pd* pd = ibv_alloc_pd(b->context);
  ibv_mr* null = ibv_alloc_null_mr(pd);
  ASSERT_NE(null, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(null), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

// --- advice
// ---------------------------------------------------------------------------------------

TEST_F(Unsupported, AdviceSaysSo) {
  ibv_sge sge = a->Sge(0, 64);
  for (ibv_advise_mr_advice advice :
       {IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT}) {
    EXPECT_EQ(ibv_advise_mr(a->pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1), EOPNOTSUPP);
  }
}

}  // namespace
}  // namespace verbena::conformance
