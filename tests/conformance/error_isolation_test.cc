// Protection: each way in which a key, an address or a domain can be wrong, by each operation of
// each service that uses it. Nothing is read or written, both ends learn what they should, and the
// NIC counts it (tests/integration/parts/conformance.py looks at the counters).
#include <functional>
#include <string>
#include <utility>

#include "tests/conformance/isolation_fixture.h"

namespace verbena::conformance {
namespace {

using Verb_ibv_post_send = IsolationTest;
using Verb_ibv_post_recv = IsolationTest;
using Verb_ibv_modify_qp = IsolationTest;

// What can be wrong with an SGE.
struct WrongSge {
  const char* what;
  std::function<ibv_sge(uint32_t length)> make;
  bool for_writing_only = false;  // is right where it is read
};

class SgesTest : public IsolationTest {
 protected:
  std::vector<WrongSge> WrongSgesOf(Side& side) {
    const uint64_t begin = side.buffer.address();
    const uint64_t end = begin + side.buffer.size();
    ibv_mr* mr = side.mr;
    return {
        {"key 0",
         [=](uint32_t n) {
           return ibv_sge{begin + kAt, n, 0};
         }},
        {"all ones",
         [=](uint32_t n) {
           return ibv_sge{begin + kAt, n, ~0u};
         }},
        {"another key byte",
         [=](uint32_t n) {
           return ibv_sge{begin + kAt, n, mr->lkey ^ 1};
         }},
        {"an index nobody has",
         [=](uint32_t n) {
           return ibv_sge{begin + kAt, n, mr->lkey + 0x40'0000};
         }},
        {"a region that is gone",
         [this, &side, begin](uint32_t n) {
           return ibv_sge{begin + kAt, n, DeadKey(side)};
         }},
        {"another PD's",
         [this, &side, begin](uint32_t n) {
           return ibv_sge{begin + kAt, n, Region(side, OtherPd(side), kAllAccess)->lkey};
         }},
        {"one byte before",
         [=](uint32_t n) {
           return ibv_sge{begin - 1, n, mr->lkey};
         }},
        {"one byte beyond",
         [=](uint32_t n) {
           return ibv_sge{end - n + 1, n, mr->lkey};
         }},
        {"round the address space",
         [=](uint32_t n) {
           return ibv_sge{~uint64_t{0} - n / 2, n, mr->lkey};
         }},
        {"no LOCAL_WRITE",
         [this, &side, begin](uint32_t n) {
           return ibv_sge{begin + kAt, n, Region(side, side.pd, IBV_ACCESS_REMOTE_READ)->lkey};
         },
         true},
    };
  }
};
using Verb_ibv_post_send_sges = SgesTest;
using Verb_ibv_post_recv_sges = SgesTest;

TEST_F(Verb_ibv_post_send_sges, EveryWrongSgeOfEveryOperation) {
  for (ibv_qp_type type : kTypes) {
    for (const Operation& op : kOperations) {
      if (!Has(op.services, type) || op.opcode == IBV_WR_ATOMIC_WRITE) continue;
      const size_t cases = 10;
      for (size_t i = 0; i < cases; ++i) {
        Make(type);
        const std::vector<WrongSge> wrong = WrongSgesOf(*a);
        ASSERT_EQ(wrong.size(), cases);
        SCOPED_TRACE(NameOf(type) + " " + op.name + " with " + wrong[i].what);
        if (wrong[i].for_writing_only && !op.writes_here) continue;
        ASSERT_EQ(b->PostRecv(1, 0, 256), 0);
        ASSERT_EQ(Post(op, wrong[i].make(LengthOf(op)), There(), b->mr->rkey), 0);
        ibv_wc wc = a->WaitSend();
        EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR) << ibv_wc_status_str(wc.status);
        EXPECT_EQ(wc.wr_id, 7u);
        EXPECT_EQ(a->State(), type == IBV_QPT_RC ? IBV_QPS_ERR : IBV_QPS_SQE);
        EXPECT_EQ(b->State(), IBV_QPS_RTS);
        EXPECT_EQ(ibv_poll_cq(b->recv_cq, 1, &wc), 0);
        if (!op.writes_here) ExpectUntouched(*b, 0xbb);
        ExpectUntouched(*a, 0xaa);
      }
    }
  }
}

TEST_F(Verb_ibv_post_recv_sges, EveryWrongSgeOfEveryService) {
  for (bool with_srq : {false, true}) {
    for (ibv_qp_type type : kTypes) {
      for (size_t i = 0; i < 10; ++i) {
        Make(type, with_srq);
        const std::vector<WrongSge> wrong = WrongSgesOf(*b);
        SCOPED_TRACE(NameOf(type) + (with_srq ? " with an SRQ, " : ", ") + wrong[i].what);
        // As long as the message: what no message reaches is not looked at.
        const uint32_t length = type == IBV_QPT_UD ? kBytes + kGrhBytes : kBytes;
        ASSERT_EQ(b->PostRecv(3, {wrong[i].make(length)}), 0);
        ASSERT_EQ(Post(kOperations[0], a->Sge(0, kBytes), 0, 0), 0);
        ibv_wc wc = b->WaitRecv();
        EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR) << ibv_wc_status_str(wc.status);
        EXPECT_EQ(wc.wr_id, 3u);
        wc = a->WaitSend();
        EXPECT_EQ(wc.status, type == IBV_QPT_RC ? IBV_WC_REM_OP_ERR : IBV_WC_SUCCESS);
        EXPECT_EQ(b->State(), IBV_QPS_ERR);
        ExpectUntouched(*b, 0xbb);
      }
    }
  }
}

// --- the peer's memory ---------------------------------------------------------------------------

struct WrongTarget {
  const char* what;
  std::function<std::pair<uint64_t, uint32_t>(const Operation&)> make;  // address and rkey
};

class TargetsTest : public IsolationTest {
 protected:
  std::vector<WrongTarget> WrongTargets() {
    using Target = std::pair<uint64_t, uint32_t>;
    const uint64_t end = b->buffer.address() + b->buffer.size();
    const uint32_t rkey = b->mr->rkey;
    return {
        {"key 0",
         [=, this](auto&) {
           return Target{There(), 0};
         }},
        {"all ones",
         [=, this](auto&) {
           return Target{There(), ~0u};
         }},
        {"another key byte",
         [=, this](auto&) {
           return Target{There(), rkey ^ 1};
         }},
        {"a region that is gone",
         [=, this](auto&) {
           return Target{There(), DeadKey(*b)};
         }},
        {"another PD's",
         [=, this](auto&) {
           return Target{There(), Region(*b, OtherPd(*b), kAllAccess)->rkey};
         }},
        {"a right missing",
         [=, this](const Operation& op) {
           return Target{There(), Region(*b, b->pd, kAllAccess & ~op.needs)->rkey};
         }},
        {"eight bytes before",
         [=, this](auto&) {
           return Target{b->buffer.address() - 8, rkey};
         }},
        {"reaching beyond",
         [=](const Operation& op) {
           return Target{end - LengthOf(op) + 8, rkey};
         }},
        {"round the address space",
         [=](auto&) {
           return Target{~uint64_t{0} - 7, rkey};
         }},
        {"the sender's own key, of another NIC",
         [=, this](auto&) {
           return Target{Here(), Region(*a, a->pd, kAllAccess)->rkey + 256};
         }},
        {"a window that is not bound",
         [=, this](auto&) {
           ibv_mw* mw = ibv_alloc_mw(b->pd, IBV_MW_TYPE_1);
           windows.push_back(mw);
           return Target{There(), mw->rkey};
         }},
    };
  }
  void TearDown() override {
    Free();
    IsolationTest::TearDown();
  }
  void Free() {
    for (ibv_mw* mw : windows) EXPECT_EQ(ibv_dealloc_mw(mw), 0);
    windows.clear();
  }
  std::vector<ibv_mw*> windows;
};
using Verb_ibv_post_send_targets = TargetsTest;

TEST_F(Verb_ibv_post_send_targets, EveryWrongTargetOfEveryOperation) {
  for (ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC}) {
    for (const Operation& op : kOperations) {
      if (!op.is_remote || !Has(op.services, type)) continue;
      for (size_t i = 0; i < 11; ++i) {
        Free();
        Make(type);
        const WrongTarget wrong = WrongTargets().at(i);
        SCOPED_TRACE(NameOf(type) + " " + op.name + " with " + wrong.what);
        ASSERT_EQ(b->PostRecv(1, 0, 256), 0);
        const auto [address, rkey] = wrong.make(op);
        ASSERT_EQ(Post(op, a->Sge(0, LengthOf(op)), address, rkey), 0);
        ibv_wc wc = a->WaitSend();
        if (type == IBV_QPT_RC) {
          EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR) << ibv_wc_status_str(wc.status);
          EXPECT_EQ(a->State(), IBV_QPS_ERR);
          // By the receive it took, or, if it took none, by an event.
          if (op.takes_receive) {
            EXPECT_EQ(b->WaitRecv().status, IBV_WC_REM_ACCESS_ERR);
          } else {
            EXPECT_TRUE(b->WaitEvent(IBV_EVENT_QP_ACCESS_ERR));
          }
          EXPECT_EQ(b->State(), IBV_QPS_ERR);
        } else {
          // Nobody is told: the message is dropped, and the next is as good as ever.
          EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
          ASSERT_EQ(a->Send(8, 0, 0), 0);
          EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
          wc = b->WaitRecv();
          EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
          EXPECT_EQ(wc.opcode, IBV_WC_RECV);
          EXPECT_EQ(b->State(), IBV_QPS_RTS);
        }
        ExpectUntouched(*b, 0xbb);
        ExpectUntouched(*a, 0xaa);
      }
    }
  }
}

TEST_F(Verb_ibv_modify_qp, EveryOperationTheQpIsNotOpenTo) {
  for (ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC}) {
    for (const Operation& op : kOperations) {
      if (!op.is_remote || !Has(op.services, type)) continue;
      SCOPED_TRACE(NameOf(type) + " " + op.name);
      SideOptions options;
      options.type = type;
      MakePair(options, ConnectOptions{.qp_access = kRemoteAccess & ~op.needs});
      memset(a->buffer.data(), 0xaa, a->buffer.size());
      memset(b->buffer.data(), 0xbb, b->buffer.size());
      ASSERT_EQ(b->PostRecv(1, 0, 256), 0);
      ASSERT_EQ(Post(op, a->Sge(0, LengthOf(op)), There(), b->mr->rkey), 0);
      ibv_wc wc = a->WaitSend();
      if (type == IBV_QPT_RC) {
        EXPECT_EQ(wc.status, IBV_WC_REM_INV_REQ_ERR) << ibv_wc_status_str(wc.status);
        EXPECT_TRUE(b->WaitEvent(IBV_EVENT_QP_REQ_ERR));
      } else {
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        ASSERT_EQ(a->Send(8, 0, 0), 0);
        EXPECT_EQ(b->WaitRecv().opcode, IBV_WC_RECV);
      }
      ExpectUntouched(*b, 0xbb);
    }
  }
}

// Spec: IBTA C9-88: no bytes, no key.
TEST_F(Verb_ibv_post_send, NoBytesNeedNoKeys) {
  for (ibv_qp_type type : kTypes) {
    for (const Operation& op : kOperations) {
      if (!Has(op.services, type) || LengthOf(op) == 8) continue;
      SCOPED_TRACE(NameOf(type) + " " + op.name);
      Make(type);
      ASSERT_EQ(b->PostRecv(1, {{b->buffer.address(), 256, b->mr->lkey}, {1, 0, ~0u}}), 0);
      ASSERT_EQ(Post(op, {1, 0, ~0u}, 1, ~0u), 0);
      EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
      if (op.takes_receive) {
        EXPECT_EQ(b->WaitRecv().status, IBV_WC_SUCCESS);
      }
    }
  }
}

TEST_F(Verb_ibv_post_send, InlineDataNeedNoKey) {
  for (ibv_qp_type type : kTypes) {
    for (const Operation& op : kOperations) {
      if (!Has(op.services, type) || op.writes_here) continue;
      SCOPED_TRACE(NameOf(type) + " " + op.name);
      Make(type);
      ASSERT_EQ(b->PostRecv(1, 0, 256), 0);
      const ibv_sge sge = {a->buffer.address(), LengthOf(op), ~0u};
      ASSERT_EQ(Post(op, sge, There(), b->mr->rkey, IBV_SEND_INLINE), 0);
      EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
      if (op.takes_receive) {
        EXPECT_EQ(b->WaitRecv().status, IBV_WC_SUCCESS);
      }
    }
  }
}

// --- lengths and alignment -----------------------------------------------------------------------

TEST_F(Verb_ibv_post_send, LengthsAndAlignment) {
  struct Case {
    const char* what;
    size_t operation;  // index into kOperations
    uint32_t length;
    uint32_t offset;    // of the peer's address
    uint32_t received;  // bytes that b can take
    ibv_wc_status here;
    ibv_wc_status there;  // success: no completion is looked for
  };
  const Case cases[] = {
      {"SEND longer than the receive", 0, 65, 0, 64, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR},
      {"SEND as long as the receive", 0, 64, 0, 64, IBV_WC_SUCCESS, IBV_WC_SUCCESS},
      {"many packets longer than the receive", 0, 8192, 0, 4097, IBV_WC_REM_INV_REQ_ERR,
       IBV_WC_LOC_LEN_ERR},
      {"SWAP at an address that is no multiple of 8", 5, 8, 4, 64, IBV_WC_REM_INV_REQ_ERR,
       IBV_WC_SUCCESS},
      {"ADD at an address that is no multiple of 8", 6, 8, 1, 64, IBV_WC_REM_INV_REQ_ERR,
       IBV_WC_SUCCESS},
      {"atomic write at an address that is no multiple of 8", 7, 8, 2, 64, IBV_WC_REM_INV_REQ_ERR,
       IBV_WC_SUCCESS},
      {"SWAP with room for 4 bytes", 5, 4, 0, 64, IBV_WC_LOC_LEN_ERR, IBV_WC_SUCCESS},
      {"ADD with room for 7 bytes", 6, 7, 0, 64, IBV_WC_LOC_LEN_ERR, IBV_WC_SUCCESS},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(row.what);
    Make(IBV_QPT_RC);
    ASSERT_EQ(b->PostRecv(3, 0, row.received), 0);
    const Operation& op = kOperations[row.operation];
    ASSERT_EQ(Post(op, a->Sge(kAt, row.length), There() + row.offset, b->mr->rkey), 0);
    ibv_wc wc = a->WaitSend();
    EXPECT_EQ(wc.status, row.here) << ibv_wc_status_str(wc.status);
    if (row.there != IBV_WC_SUCCESS) {
      wc = b->WaitRecv();
      EXPECT_EQ(wc.status, row.there) << ibv_wc_status_str(wc.status);
      EXPECT_EQ(wc.wr_id, 3u);
    } else if (row.here == IBV_WC_REM_INV_REQ_ERR) {
      EXPECT_TRUE(b->WaitEvent(IBV_EVENT_QP_REQ_ERR));
    }
  }
}

TEST_F(Verb_ibv_post_recv, AShortReceiveOfUcAndUdFailsHereAlone) {
  for (ibv_qp_type type : {IBV_QPT_UC, IBV_QPT_UD}) {
    SCOPED_TRACE(NameOf(type));
    Make(type);
    ASSERT_EQ(b->PostRecv(3, 0, 63), 0);
    ASSERT_EQ(Post(kOperations[0], a->Sge(0, 64), 0, 0), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
    ibv_wc wc = b->WaitRecv();
    EXPECT_EQ(wc.status, IBV_WC_LOC_LEN_ERR) << ibv_wc_status_str(wc.status);
    EXPECT_EQ(b->State(), IBV_QPS_ERR);
  }
}

}  // namespace
}  // namespace verbena::conformance
