// Keys, bounds, protection domains and rights: the exact outcome on both sides of each violation.
#include <sys/mman.h>

#include <cstring>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

// What one work request of `a` does at `b`, and what must be seen.
struct Violation {
  ibv_wc_status status;
  bool peer_fails = true;  // b's QP goes to the error state
};

class AccessTest : public VerbsTest {
 protected:
  void SetUp() override {
    MakePair();
    memset(a->buffer.data(), 0xaa, a->buffer.size());
    memset(b->buffer.data(), 0xbb, b->buffer.size());
  }

  // After a failed request: status, both QPs' states, and b's memory untouched.
  void ExpectViolation(const Violation& expected) {
    ibv_wc wc = a->WaitSend();
    EXPECT_EQ(wc.status, expected.status)
        << ibv_wc_status_str(wc.status) << " vendor_err " << std::hex << wc.vendor_err;
    EXPECT_EQ(wc.wr_id, 7u);
    EXPECT_EQ(wc.qp_num, a->qp->qp_num);
    EXPECT_EQ(a->State(), IBV_QPS_ERR);
    if (expected.peer_fails) {
      EXPECT_TRUE(Eventually([&] { return b->State() == IBV_QPS_ERR; }));
    } else {
      EXPECT_EQ(b->State(), IBV_QPS_RTS);
    }
    for (size_t i = 0; i < b->buffer.size(); ++i) ASSERT_EQ(b->buffer[i], 0xbb) << "byte " << i;
  }

  int Remote(ibv_wr_opcode opcode, uint64_t address, uint32_t rkey, uint32_t length) {
    ibv_send_wr wr = {};
    wr.wr_id = 7;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
      wr.wr.atomic.remote_addr = address;
      wr.wr.atomic.rkey = rkey;
      wr.wr.atomic.compare_add = 1;
    } else {
      wr.wr.rdma.remote_addr = address;
      wr.wr.rdma.rkey = rkey;
    }
    return a->Post(wr, {a->Sge(0, length)});
  }
  int RemoteWithMr(ibv_wr_opcode opcode, ibv_mr* mr) {
    return Remote(opcode, reinterpret_cast<uint64_t>(mr->addr), mr->rkey, 8);
  }
};

constexpr ibv_wr_opcode kRemoteOpcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                            IBV_WR_ATOMIC_FETCH_AND_ADD};

using Verb_ibv_reg_mr = AccessTest;
using Verb_ibv_dereg_mr = AccessTest;
using Verb_ibv_modify_qp = AccessTest;
using Verb_ibv_post_send = AccessTest;
using Verb_ibv_post_recv = AccessTest;
using Verb_ibv_alloc_pd = AccessTest;

TEST_F(Verb_ibv_post_send, BadLkeyIsALocalProtectionError) {
  ibv_send_wr wr = {};
  wr.wr_id = 7;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  ASSERT_EQ(b->PostRecv(1, 0, 64), 0);
  ASSERT_EQ(a->Post(wr, {{a->buffer.address(), 64, a->mr->lkey ^ 1}}), 0);
  ExpectViolation({IBV_WC_LOC_PROT_ERR, false});
}

TEST_F(Verb_ibv_post_send, LocalRangeBeyondTheMrIsALocalProtectionError) {
  ibv_send_wr wr = {};
  wr.wr_id = 7;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = b->buffer.address();
  wr.wr.rdma.rkey = b->mr->rkey;
  ASSERT_EQ(a->Post(wr, {{a->buffer.address() + a->buffer.size() - 32, 33, a->mr->lkey}}), 0);
  ExpectViolation({IBV_WC_LOC_PROT_ERR, false});
}

TEST_F(Verb_ibv_post_send, LocalRangeThatWrapsTheAddressSpaceIsALocalProtectionError) {
  ibv_send_wr wr = {};
  wr.wr_id = 7;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = b->buffer.address();
  wr.wr.rdma.rkey = b->mr->rkey;
  ASSERT_EQ(a->Post(wr, {{~uint64_t{0} - 7, 64, a->mr->lkey}}), 0);
  ExpectViolation({IBV_WC_LOC_PROT_ERR, false});
}

TEST_F(Verb_ibv_alloc_pd, LkeyOfAnotherPdIsALocalProtectionError) {
  ibv_pd* other = ibv_alloc_pd(a->context);
  ibv_mr* mr = ibv_reg_mr(other, a->buffer.data(), a->buffer.size(), kAllAccess);
  ASSERT_NE(mr, nullptr);
  ibv_send_wr wr = {};
  wr.wr_id = 7;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  EXPECT_EQ(a->Post(wr, {{a->buffer.address(), 64, mr->lkey}}), 0);
  ExpectViolation({IBV_WC_LOC_PROT_ERR, false});
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
}

TEST_F(Verb_ibv_alloc_pd, RkeyOfAnotherPdIsARemoteAccessError) {
  ibv_pd* other = ibv_alloc_pd(b->context);
  ibv_mr* mr = ibv_reg_mr(other, b->buffer.data(), b->buffer.size(), kAllAccess);
  ASSERT_NE(mr, nullptr);
  for (ibv_wr_opcode opcode : kRemoteOpcodes) {
    SCOPED_TRACE(opcode);
    ASSERT_EQ(RemoteWithMr(opcode, mr), 0);
    ExpectViolation({IBV_WC_REM_ACCESS_ERR});
    if (HasFatalFailure()) break;
    a.reset();
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_dealloc_pd(other), 0);
    b.reset();
    SetUp();
    other = ibv_alloc_pd(b->context);
    mr = ibv_reg_mr(other, b->buffer.data(), b->buffer.size(), kAllAccess);
  }
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
}

TEST_F(Verb_ibv_reg_mr, BadRkeyIsARemoteAccessError) {
  for (ibv_wr_opcode opcode : kRemoteOpcodes) {
    SCOPED_TRACE(opcode);
    ASSERT_EQ(Remote(opcode, b->buffer.address(), b->mr->rkey ^ 1, 8), 0);
    ExpectViolation({IBV_WC_REM_ACCESS_ERR});
    SetUp();
  }
}

TEST_F(Verb_ibv_reg_mr, BadRkeyRaisesAnAccessEventAtThePeer) {
  ASSERT_EQ(Remote(IBV_WR_RDMA_WRITE, b->buffer.address(), b->mr->rkey ^ 1, 8), 0);
  ExpectViolation({IBV_WC_REM_ACCESS_ERR});
  EXPECT_TRUE(b->WaitEvent(IBV_EVENT_QP_ACCESS_ERR));
}

TEST_F(Verb_ibv_reg_mr, RemoteRangeOutsideTheMrIsARemoteAccessError) {
  auto size = static_cast<int64_t>(b->buffer.size());
  for (int64_t offset : {int64_t{-1}, size - 7, size, int64_t{1} << 62}) {
    SCOPED_TRACE(offset);
    uint64_t address = b->buffer.address() + static_cast<uint64_t>(offset);
    ASSERT_EQ(Remote(IBV_WR_RDMA_WRITE, address, b->mr->rkey, 8), 0);
    ExpectViolation({IBV_WC_REM_ACCESS_ERR});
    SetUp();
  }
}

TEST_F(Verb_ibv_reg_mr, RemoteRangeThatWrapsTheAddressSpaceIsARemoteAccessError) {
  ASSERT_EQ(Remote(IBV_WR_RDMA_WRITE, ~uint64_t{0} - 3, b->mr->rkey, 8), 0);
  ExpectViolation({IBV_WC_REM_ACCESS_ERR});
}

TEST_F(Verb_ibv_reg_mr, LastBytesOfTheMrAreReachable) {
  uint64_t last = b->buffer.address() + b->buffer.size() - 8;
  ASSERT_EQ(Remote(IBV_WR_RDMA_WRITE, last, b->mr->rkey, 8), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->buffer[b->buffer.size() - 1], 0xaa);
  EXPECT_EQ(b->buffer[b->buffer.size() - 9], 0xbb);
}

TEST_F(Verb_ibv_reg_mr, RightsAreCheckedPerOperation) {
  struct Row {
    ibv_wr_opcode opcode;
    unsigned without;
  };
  for (Row row : {Row{IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE},
                  Row{IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ},
                  Row{IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC}}) {
    SCOPED_TRACE(row.opcode);
    unsigned access = kAllAccess & ~row.without;
    ibv_mr* mr = ibv_reg_mr(b->pd, b->buffer.data(), b->buffer.size(), access);
    ASSERT_NE(mr, nullptr);
    ASSERT_EQ(RemoteWithMr(row.opcode, mr), 0);
    ExpectViolation({IBV_WC_REM_ACCESS_ERR});
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    SetUp();
  }
}

TEST_F(Verb_ibv_reg_mr, ReadIntoMemoryWithoutLocalWriteIsALocalProtectionError) {
  ibv_mr* mr = ibv_reg_mr(a->pd, a->buffer.data(), a->buffer.size(), 0);
  ASSERT_NE(mr, nullptr);
  ibv_send_wr wr = {};
  wr.wr_id = 7;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = b->buffer.address();
  wr.wr.rdma.rkey = b->mr->rkey;
  ASSERT_EQ(a->Post(wr, {{a->buffer.address(), 64, mr->lkey}}), 0);
  ExpectViolation({IBV_WC_LOC_PROT_ERR, false});
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// Hardware pins the pages, so that a WRITE to them succeeds and nobody sees it: so it does with
// memory that is shared. What is reached by system calls is gone.
TEST_F(Verb_ibv_reg_mr, MemoryUnmappedAfterRegistrationIsNoCrash) {
  const char* set = getenv("VERBENA_DMA");
  const std::string before = set != nullptr ? set : "";
  for (const char* backend : {"mapped", "process", "assisted"}) {
    MakePair();  // the last one's QPs have failed
    memset(b->buffer.data(), 0xbb, b->buffer.size());
    setenv("VERBENA_DMA", backend, 1);
    auto lost = std::make_unique<Memory>(8192);
    ibv_mr* mr = ibv_reg_mr(b->pd, lost->data(), 8192, kAllAccess);
    ASSERT_NE(mr, nullptr);
    uint64_t address = lost->address();
    lost.reset();
    ASSERT_EQ(Remote(IBV_WR_RDMA_WRITE, address, mr->rkey, 8), 0);
    if (std::string(backend) == "mapped") {
      EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
    } else {
      ExpectViolation({IBV_WC_REM_OP_ERR});
    }
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
  if (set != nullptr) setenv("VERBENA_DMA", before.c_str(), 1);
  if (set == nullptr) unsetenv("VERBENA_DMA");
}

TEST_F(Verb_ibv_dereg_mr, OldKeyNoLongerWorks) {
  ibv_mr* mr = ibv_reg_mr(b->pd, b->buffer.data(), b->buffer.size(), kAllAccess);
  uint32_t old_rkey = mr->rkey;
  ASSERT_EQ(ibv_dereg_mr(mr), 0);
  ibv_mr* next = ibv_reg_mr(b->pd, b->buffer.data(), b->buffer.size(), kAllAccess);
  ASSERT_NE(next, nullptr);
  ASSERT_EQ(Remote(IBV_WR_RDMA_WRITE, b->buffer.address(), old_rkey, 8), 0);
  ExpectViolation({IBV_WC_REM_ACCESS_ERR});
  EXPECT_EQ(ibv_dereg_mr(next), 0);
}

TEST_F(Verb_ibv_modify_qp, OperationNotEnabledOnTheQpIsRefused) {
  struct Row {
    ibv_wr_opcode opcode;
    unsigned without;
  };
  for (Row row : {Row{IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE},
                  Row{IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ},
                  Row{IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC}}) {
    SCOPED_TRACE(row.opcode);
    a.reset();
    b.reset();
    MakePair({}, ConnectOptions{.qp_access = kRemoteAccess & ~row.without});
    memset(b->buffer.data(), 0xbb, b->buffer.size());
    ASSERT_EQ(Remote(row.opcode, b->buffer.address(), b->mr->rkey, 8), 0);
    // IBTA C9-87 and what rxe and hardware answer: NAK invalid request.
    ExpectViolation({IBV_WC_REM_INV_REQ_ERR});
  }
}

TEST_F(Verb_ibv_post_send, MisalignedAtomicIsAnInvalidRequest) {
  ASSERT_EQ(Remote(IBV_WR_ATOMIC_FETCH_AND_ADD, b->buffer.address() + 4, b->mr->rkey, 8), 0);
  ExpectViolation({IBV_WC_REM_INV_REQ_ERR});
}

TEST_F(Verb_ibv_post_recv, BadLkeyFailsBothSides) {
  std::vector<ibv_sge> bad = {{b->buffer.address(), 64, b->mr->lkey ^ 1}};
  ASSERT_EQ(b->PostRecv(3, bad), 0);
  ASSERT_EQ(a->Send(7, 0, 64), 0);
  ibv_wc wc = b->WaitRecv();
  EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(wc.wr_id, 3u);
  ExpectViolation({IBV_WC_REM_OP_ERR});
}

TEST_F(Verb_ibv_post_recv, TooShortABufferFailsBothSides) {
  ASSERT_EQ(b->PostRecv(3, 0, 63), 0);
  ASSERT_EQ(a->Send(7, 0, 64), 0);
  ibv_wc wc = b->WaitRecv();
  EXPECT_EQ(wc.status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(wc.wr_id, 3u);
  ExpectViolation({IBV_WC_REM_INV_REQ_ERR});
}

TEST_F(Verb_ibv_post_recv, SgeLongerThanTheMrIsFineWhenTheMessageIsNot) {
  size_t offset = b->buffer.size() - 64;
  std::vector<ibv_sge> longer = {{b->buffer.address() + offset, 4096, b->mr->lkey}};
  ASSERT_EQ(b->PostRecv(3, longer), 0);
  ASSERT_EQ(a->Send(7, 0, 64), 0);
  EXPECT_EQ(b->WaitRecv().status, IBV_WC_SUCCESS);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->buffer[offset], 0xaa);
}

TEST_F(Verb_ibv_post_send, ZeroLengthNeedsNoKey) {
  ibv_send_wr wr = {};
  wr.wr_id = 7;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  ASSERT_EQ(a->Post(wr, {}), 0);  // address 0, key 0
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->State(), IBV_QPS_RTS);
}

}  // namespace
}  // namespace verbena::conformance
