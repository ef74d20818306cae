// What may be posted where: every opcode, every operation of extended QPs and every state, for each
// service; full queues. The tables say what is expected of each case, docs/errors.md why.
#include <cerrno>
#include <cstring>
#include <string>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

constexpr ibv_qp_type kTypes[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};

const char* NameOf(ibv_qp_type type) {
  return type == IBV_QPT_RC ? "RC" : type == IBV_QPT_UC ? "UC" : "UD";
}

enum Services : unsigned { kNone = 0, kRc = 1, kUc = 2, kUd = 4 };

bool Has(unsigned services, ibv_qp_type type) {
  return (services & (type == IBV_QPT_RC ? kRc : type == IBV_QPT_UC ? kUc : kUd)) != 0;
}

// Spec: IBTA 11.4.1.1, table of operations per service.
struct Opcode {
  unsigned opcode;
  const char* name;
  unsigned services;
  uint64_t op;  // of extended QPs
  // Is taken, as by rxe and mlx5, and fails: the wire has no such opcode for it.
  unsigned fails = kNone;
};
constexpr Opcode kOpcodes[] = {
    {IBV_WR_RDMA_WRITE, "RDMA_WRITE", kRc | kUc, IBV_QP_EX_WITH_RDMA_WRITE},
    {IBV_WR_RDMA_WRITE_WITH_IMM, "RDMA_WRITE_WITH_IMM", kRc | kUc,
     IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM},
    {IBV_WR_SEND, "SEND", kRc | kUc | kUd, IBV_QP_EX_WITH_SEND},
    {IBV_WR_SEND_WITH_IMM, "SEND_WITH_IMM", kRc | kUc | kUd, IBV_QP_EX_WITH_SEND_WITH_IMM},
    {IBV_WR_RDMA_READ, "RDMA_READ", kRc, IBV_QP_EX_WITH_RDMA_READ},
    {IBV_WR_ATOMIC_CMP_AND_SWP, "ATOMIC_CMP_AND_SWP", kRc, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP},
    {IBV_WR_ATOMIC_FETCH_AND_ADD, "ATOMIC_FETCH_AND_ADD", kRc, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD},
    {IBV_WR_LOCAL_INV, "LOCAL_INV", kRc | kUc, IBV_QP_EX_WITH_LOCAL_INV},
    {IBV_WR_BIND_MW, "BIND_MW", kRc | kUc, IBV_QP_EX_WITH_BIND_MW},
    {IBV_WR_SEND_WITH_INV, "SEND_WITH_INV", kRc | kUc, IBV_QP_EX_WITH_SEND_WITH_INV, kUc},
    {IBV_WR_TSO, "TSO", kNone, IBV_QP_EX_WITH_TSO},
    {IBV_WR_DRIVER1, "DRIVER1", kNone, uint64_t{1} << 40},
    {IBV_WR_ATOMIC_WRITE, "ATOMIC_WRITE", kRc, IBV_QP_EX_WITH_ATOMIC_WRITE},
    {12, "12", kNone, 1u << 13},
    {16, "16", kNone, uint64_t{1} << 16},
    {31, "31", kNone, uint64_t{1} << 31},
    {32, "32", kNone, uint64_t{1} << 32},
    {255, "255", kNone, uint64_t{1} << 55},
    {~0u, "~0", kNone, uint64_t{1} << 63},
};

class PostingTest : public VerbsTest {
 protected:
  void TearDown() override {
    if (ah != nullptr) {
      EXPECT_EQ(ibv_destroy_ah(ah), 0);
    }
    if (mw != nullptr) {
      EXPECT_EQ(ibv_dealloc_mw(mw), 0);
    }
    for (ibv_mr* mr : {lent, lent_b}) {
      if (mr == nullptr) continue;
      EXPECT_EQ(ibv_dereg_mr(mr), 0);
    }
    ah = nullptr;
    mw = nullptr;
    lent = lent_b = nullptr;
  }
  void Make(ibv_qp_type type) {
    TearDown();
    SideOptions options;
    options.type = type;
    options.mr_access = kAllAccess | IBV_ACCESS_MW_BIND;
    MakePair(options);
    AddExtras();
  }
  void AddExtras() {
    ibv_ah_attr attr = AddressOf(b->gid());
    ah = ibv_create_ah(a->pd, &attr);
    mw = ibv_alloc_mw(a->pd, IBV_MW_TYPE_2);
    lent = ibv_reg_mr(a->pd, a->buffer.data(), 4096, kAllAccess);
    lent_b = ibv_reg_mr(b->pd, b->buffer.data(), 4096, kAllAccess);
    ASSERT_TRUE(ah && mw && lent && lent_b);
  }

  // A request of `opcode` that is right in all else.
  ibv_send_wr Request(unsigned opcode) {
    ibv_send_wr wr = {};
    wr.wr_id = 7;
    wr.opcode = static_cast<ibv_wr_opcode>(opcode);
    wr.send_flags = IBV_SEND_SIGNALED;
    if (a->options.type == IBV_QPT_UD) {
      wr.wr.ud.ah = ah;
      wr.wr.ud.remote_qpn = b->qp->qp_num;
      wr.wr.ud.remote_qkey = kQKey;
      return wr;
    }
    switch (opcode) {
      case IBV_WR_ATOMIC_CMP_AND_SWP:
      case IBV_WR_ATOMIC_FETCH_AND_ADD:
        wr.wr.atomic.remote_addr = b->buffer.address();
        wr.wr.atomic.rkey = b->mr->rkey;
        break;
      case IBV_WR_LOCAL_INV:
        wr.invalidate_rkey = lent->rkey;
        break;
      case IBV_WR_SEND_WITH_INV:
        wr.invalidate_rkey = lent_b->rkey;
        break;
      case IBV_WR_BIND_MW:
        wr.bind_mw.mw = mw;
        wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
        wr.bind_mw.bind_info = {a->mr, a->buffer.address(), 4096, IBV_ACCESS_REMOTE_WRITE};
        break;
      default:
        wr.wr.rdma.remote_addr = b->buffer.address();
        wr.wr.rdma.rkey = b->mr->rkey;
    }
    if (opcode == IBV_WR_ATOMIC_WRITE) wr.send_flags |= IBV_SEND_INLINE;
    return wr;
  }
  std::vector<ibv_sge> SgesOf(unsigned opcode) const {
    if (opcode == IBV_WR_LOCAL_INV || opcode == IBV_WR_BIND_MW) return {};
    return {a->Sge(0, 8)};
  }
  // Posts it between a good request and another. 0 or errno; *bad: its place in the list, or -1.
  int PostAmidOthers(unsigned opcode, int* bad) {
    ibv_sge sges[3] = {a->Sge(0, 8), a->Sge(0, 8), a->Sge(0, 8)};
    ibv_send_wr list[3] = {Request(IBV_WR_SEND), Request(opcode), Request(IBV_WR_SEND)};
    for (int i = 0; i < 3; ++i) {
      list[i].sg_list = &sges[i];
      list[i].num_sge = i == 1 ? static_cast<int>(SgesOf(opcode).size()) : 1;
      list[i].next = i < 2 ? &list[i + 1] : nullptr;
    }
    ibv_send_wr* bad_wr = nullptr;
    const int error = ibv_post_send(a->qp, &list[0], &bad_wr);
    *bad = bad_wr == nullptr ? -1 : static_cast<int>(bad_wr - list);
    return error;
  }

  ibv_ah* ah = nullptr;
  ibv_mw* mw = nullptr;
  ibv_mr* lent = nullptr;    // a's, to be invalidated
  ibv_mr* lent_b = nullptr;  // b's
};

using Verb_ibv_post_send = PostingTest;
using Verb_ibv_post_recv = PostingTest;
using Verb_ibv_post_srq_recv = PostingTest;
using Verb_ibv_create_qp = PostingTest;
using Verb_ibv_create_qp_ex = PostingTest;
using Verb_ibv_bind_mw = PostingTest;
using Verb_ibv_wr_start = PostingTest;
using Verb_ibv_attach_mcast = PostingTest;

TEST_F(Verb_ibv_post_send, EveryOpcodeOfEveryService) {
  for (ibv_qp_type type : kTypes) {
    for (const Opcode& row : kOpcodes) {
      SCOPED_TRACE(std::string(NameOf(type)) + " " + row.name);
      Make(type);
      if (HasFatalFailure()) return;
      for (uint64_t id = 0; id < 4; ++id) ASSERT_EQ(b->PostRecv(id, 0, 256), 0);
      int bad = -1;
      const int error = PostAmidOthers(row.opcode, &bad);
      const bool is_allowed = Has(row.services, type);
      EXPECT_EQ(error, is_allowed ? 0 : EINVAL);
      EXPECT_EQ(bad, is_allowed ? -1 : 1);
      // What was posted before it is carried out, what stands behind it was not posted.
      const bool fails = Has(row.fails, type);
      for (int i = 0; i < (is_allowed ? 3 : 1); ++i) {
        const ibv_wc_status expected = !fails || i == 0 ? IBV_WC_SUCCESS
                                       : i == 1         ? IBV_WC_LOC_QP_OP_ERR
                                                        : IBV_WC_WR_FLUSH_ERR;
        ibv_wc wc = a->WaitSend();
        ASSERT_EQ(wc.status, expected) << ibv_wc_status_str(wc.status) << ", number " << i;
      }
      ibv_wc wc = {};
      EXPECT_EQ(ibv_poll_cq(a->send_cq, 1, &wc), 0);
      EXPECT_EQ(a->State(), fails ? IBV_QPS_SQE : IBV_QPS_RTS);
    }
  }
}

// The function pointer of an operation.
bool IsSet(const ibv_qp_ex& qp, uint64_t op) {
  switch (op) {
    case IBV_QP_EX_WITH_RDMA_WRITE:
      return qp.wr_rdma_write != nullptr;
    case IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM:
      return qp.wr_rdma_write_imm != nullptr;
    case IBV_QP_EX_WITH_SEND:
      return qp.wr_send != nullptr;
    case IBV_QP_EX_WITH_SEND_WITH_IMM:
      return qp.wr_send_imm != nullptr;
    case IBV_QP_EX_WITH_RDMA_READ:
      return qp.wr_rdma_read != nullptr;
    case IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP:
      return qp.wr_atomic_cmp_swp != nullptr;
    case IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD:
      return qp.wr_atomic_fetch_add != nullptr;
    case IBV_QP_EX_WITH_LOCAL_INV:
      return qp.wr_local_inv != nullptr;
    case IBV_QP_EX_WITH_BIND_MW:
      return qp.wr_bind_mw != nullptr;
    case IBV_QP_EX_WITH_SEND_WITH_INV:
      return qp.wr_send_inv != nullptr;
    case IBV_QP_EX_WITH_TSO:
      return qp.wr_send_tso != nullptr;
    case IBV_QP_EX_WITH_ATOMIC_WRITE:
      return qp.wr_atomic_write != nullptr;
    default:
      return false;
  }
}

// Creates a QP on a's objects; nullptr with errno.
ibv_qp* NewQp(Side& side, ibv_qp_init_attr_ex init) {
  init.send_cq = init.send_cq != nullptr ? init.send_cq : side.send_cq;
  init.recv_cq = side.recv_cq;
  init.cap = {4, 4, 1, 1, 16};
  init.pd = side.pd;
  init.comp_mask |= IBV_QP_INIT_ATTR_PD;
  errno = 0;
  return ibv_create_qp_ex(side.context, &init);
}

TEST_F(Verb_ibv_create_qp_ex, EveryOperationOfEveryService) {
  a = std::make_unique<Side>(SideOptions{});
  for (ibv_qp_type type : kTypes) {
    for (const Opcode& row : kOpcodes) {
      SCOPED_TRACE(std::string(NameOf(type)) + " " + row.name);
      ibv_qp_init_attr_ex init = {};
      init.qp_type = type;
      init.send_ops_flags = row.op;
      init.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      ibv_qp* qp = NewQp(*a, init);
      if (!Has(row.services, type)) {
        EXPECT_EQ(qp, nullptr);
        EXPECT_EQ(errno, EOPNOTSUPP);
        continue;
      }
      ASSERT_NE(qp, nullptr) << strerror(errno);
      for (const Opcode& other : kOpcodes) {
        EXPECT_EQ(IsSet(*ibv_qp_to_qp_ex(qp), other.op), other.op == row.op) << other.name;
      }
      EXPECT_EQ(ibv_destroy_qp(qp), 0);
    }
  }
}

TEST_F(Verb_ibv_create_qp, OtherTypesAreNotSupported) {
  a = std::make_unique<Side>(SideOptions{});
  for (unsigned type : {unsigned{IBV_QPT_RAW_PACKET}, unsigned{IBV_QPT_DRIVER}, 0u, 1u, 5u, 6u, 7u,
                        11u, 31u, 32u, 77u, 0x102u}) {
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = a->send_cq;
    init.cap = {4, 4, 1, 1, 0};
    init.qp_type = static_cast<ibv_qp_type>(type);
    errno = 0;
    EXPECT_EQ(ibv_create_qp(a->pd, &init), nullptr) << type;
    EXPECT_EQ(errno, EOPNOTSUPP) << type;
  }
}

TEST_F(Verb_ibv_create_qp_ex, OtherMasksAndFlagsAreNotSupported) {
  a = std::make_unique<Side>(SideOptions{});
  for (uint32_t mask :
       {uint32_t{IBV_QP_INIT_ATTR_MAX_TSO_HEADER}, uint32_t{IBV_QP_INIT_ATTR_IND_TABLE},
        uint32_t{IBV_QP_INIT_ATTR_RX_HASH}, 1u << 7, 1u << 31}) {
    ibv_qp_init_attr_ex init = {};
    init.qp_type = IBV_QPT_RC;
    init.comp_mask = mask;
    EXPECT_EQ(NewQp(*a, init), nullptr) << mask;
    EXPECT_EQ(errno, EOPNOTSUPP) << mask;
  }
  for (uint32_t flag :
       {uint32_t{IBV_QP_CREATE_BLOCK_SELF_MCAST_LB}, uint32_t{IBV_QP_CREATE_SCATTER_FCS},
        uint32_t{IBV_QP_CREATE_CVLAN_STRIPPING}, uint32_t{IBV_QP_CREATE_SOURCE_QPN},
        uint32_t{IBV_QP_CREATE_PCI_WRITE_END_PADDING}, 1u << 0, 1u << 31}) {
    ibv_qp_init_attr_ex init = {};
    init.qp_type = IBV_QPT_UD;
    init.comp_mask = IBV_QP_INIT_ATTR_CREATE_FLAGS;
    init.create_flags = flag;
    EXPECT_EQ(NewQp(*a, init), nullptr) << flag;
    EXPECT_EQ(errno, EOPNOTSUPP) << flag;
  }
}

// --- states --------------------------------------------------------------------------------------

struct State {
  ibv_qp_state state;
  int send;  // what posting a SEND gives
  int recv;
  bool flushes_send;
  bool flushes_recv;
};
// Spec: IBTA 10.8.2 (C10-29), 10.3.1.
constexpr State kStates[] = {
    {IBV_QPS_RESET, EINVAL, EINVAL, false, false},
    {IBV_QPS_INIT, EINVAL, 0, false, false},
    {IBV_QPS_RTR, EINVAL, 0, false, false},
    {IBV_QPS_RTS, 0, 0, false, false},
    {IBV_QPS_SQD, 0, 0, false, false},
    {IBV_QPS_SQE, 0, 0, true, false},
    {IBV_QPS_ERR, 0, 0, true, true},
};

class StatesTest : public PostingTest {
 protected:
  // A pair of which a is in `state`; b can receive. False: the service has no such state.
  bool MakeIn(ibv_qp_type type, ibv_qp_state state) {
    if (state == IBV_QPS_SQE && type == IBV_QPT_RC) return false;
    TearDown();
    SideOptions options;
    options.type = type;
    options.send_ops = IBV_QP_EX_WITH_SEND;
    a = std::make_unique<Side>(options);
    options.nic = 1;
    b = std::make_unique<Side>(options);
    AddExtras();
    int error = b->ToInit();
    if (error == 0) error = b->ToRtr(a->qp->qp_num, a->gid(), {});
    if (state != IBV_QPS_RESET && error == 0) error = a->ToInit();
    if (state != IBV_QPS_RESET && state != IBV_QPS_INIT && error == 0) {
      error = a->ToRtr(b->qp->qp_num, b->gid(), {});
      if (state != IBV_QPS_RTR && error == 0) error = a->ToRts({});
    }
    if (error == 0 && (state == IBV_QPS_SQD || state == IBV_QPS_ERR)) error = a->ToState(state);
    EXPECT_EQ(error, 0);
    if (state == IBV_QPS_SQE) {
      ibv_send_wr wr = Request(IBV_WR_SEND);
      EXPECT_EQ(a->Post(wr, {{a->buffer.address(), 8, a->mr->lkey ^ 1}}), 0);
      EXPECT_EQ(a->WaitSend().status, IBV_WC_LOC_PROT_ERR);
    }
    EXPECT_EQ(a->State(), state);
    return true;
  }
};
using Verb_ibv_post_send_states = StatesTest;

TEST_F(Verb_ibv_post_send_states, EveryStateOfEveryService) {
  for (ibv_qp_type type : kTypes) {
    for (const State& row : kStates) {
      SCOPED_TRACE(std::string(NameOf(type)) + " in " + std::to_string(row.state));
      if (!MakeIn(type, row.state)) continue;
      ibv_send_wr wr = Request(IBV_WR_SEND);
      EXPECT_EQ(a->Post(wr, {a->Sge(0, 8)}), row.send);
      ibv_qp_ex* ex = ibv_qp_to_qp_ex(a->qp);
      ibv_wr_start(ex);
      ex->wr_id = 8;
      ex->wr_flags = IBV_SEND_SIGNALED;
      ibv_wr_send(ex);
      if (type == IBV_QPT_UD) ibv_wr_set_ud_addr(ex, ah, b->qp->qp_num, kQKey);
      ibv_wr_set_sge(ex, a->mr->lkey, a->buffer.address(), 8);
      EXPECT_EQ(ibv_wr_complete(ex), row.send);
      if (row.flushes_send) {
        for (uint64_t id : {7, 8}) {
          ibv_wc wc = a->WaitSend();
          EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
          EXPECT_EQ(wc.wr_id, id);
        }
      }
      EXPECT_EQ(a->PostRecv(9, 0, 256), row.recv);
      if (row.flushes_recv) {
        EXPECT_EQ(a->WaitRecv().status, IBV_WC_WR_FLUSH_ERR);
      }
      ibv_wc wc = {};
      if (!row.flushes_recv) {
        EXPECT_EQ(ibv_poll_cq(a->recv_cq, 1, &wc), 0);
      }
      EXPECT_EQ(a->State(), row.state);
    }
  }
}

TEST_F(Verb_ibv_post_send_states, WindowsAreBoundFromRtsOn) {
  for (const State& row : kStates) {
    if (!MakeIn(IBV_QPT_UC, row.state)) continue;
    SCOPED_TRACE(row.state);
    ibv_mw* type_1 = ibv_alloc_mw(a->pd, IBV_MW_TYPE_1);
    ASSERT_NE(type_1, nullptr);
    ibv_mw_bind bind = {1, IBV_SEND_SIGNALED, {nullptr, 0, 0, 0}};
    EXPECT_EQ(ibv_bind_mw(a->qp, type_1, &bind), row.send);
    EXPECT_EQ(ibv_dealloc_mw(type_1), 0);
  }
}

// --- what is in a request ------------------------------------------------------------------------

TEST_F(Verb_ibv_post_send, ShapesThatNoQueueTakes) {
  Make(IBV_QPT_RC);
  const int most = static_cast<int>(a->options.max_sge);
  std::vector<ibv_sge> many(most + 1, a->Sge(0, 1));
  struct Case {
    const char* what;
    ibv_wr_opcode opcode;
    unsigned flags;
    int num_sge;
    uint32_t length;
    int error;
  };
  const Case cases[] = {
      {"one SGE too many", IBV_WR_SEND, 0, most + 1, 1, EINVAL},
      {"as many SGEs as there may be", IBV_WR_RDMA_WRITE, 0, most, 1, 0},
      {"a negative number of SGEs", IBV_WR_SEND, 0, -1, 1, EINVAL},
      {"inline READ", IBV_WR_RDMA_READ, IBV_SEND_INLINE, 1, 8, EINVAL},
      {"inline atomic", IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_INLINE, 1, 8, EINVAL},
      {"more inline than the QP has", IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, 1, 65, EINVAL},
      {"as much inline as it has", IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, 1, 64, 0},
      {"lengths whose sum passes 32 bits", IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, 2, ~0u, EINVAL},
      {"atomic write that is not inline", IBV_WR_ATOMIC_WRITE, 0, 1, 8, EINVAL},
      {"atomic write of 4 bytes", IBV_WR_ATOMIC_WRITE, IBV_SEND_INLINE, 1, 4, EINVAL},
      {"checksum offload, which nobody offers: ignored", IBV_WR_RDMA_WRITE, IBV_SEND_IP_CSUM, 1, 8,
       0},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(row.what);
    for (ibv_sge& sge : many) sge.length = row.length;
    ibv_send_wr wr = Request(row.opcode);
    wr.send_flags = row.flags | IBV_SEND_SIGNALED;
    wr.sg_list = many.data();
    wr.num_sge = row.num_sge;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(a->qp, &wr, &bad), row.error);
    EXPECT_EQ(bad, row.error != 0 ? &wr : nullptr);
    if (row.error == 0) {
      EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
    }
  }
}

TEST_F(Verb_ibv_post_send, DatagramsNeedAnAddressHandle) {
  Make(IBV_QPT_UD);
  ibv_send_wr wr = Request(IBV_WR_SEND);
  wr.wr.ud.ah = nullptr;
  EXPECT_EQ(a->Post(wr, {a->Sge(0, 8)}), EINVAL);
}

TEST_F(Verb_ibv_post_recv, ShapesThatNoQueueTakes) {
  Make(IBV_QPT_RC);
  std::vector<ibv_sge> many(a->options.max_sge + 1, a->Sge(0, 1));
  EXPECT_EQ(a->PostRecv(1, many), EINVAL);
  ibv_recv_wr wr = {};
  wr.num_sge = -1;
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_recv(a->qp, &wr, &bad), EINVAL);
  EXPECT_EQ(bad, &wr);
  many.pop_back();
  EXPECT_EQ(a->PostRecv(1, many), 0);
}

// Lists end where the queue is full: what precedes stays posted, the first that did not fit is
// named, and there is room again when work is done.
TEST_F(Verb_ibv_post_srq_recv, AFullListNamesWhatDidNotFit) {
  SideOptions options;
  options.with_srq = true;
  options.max_recv_wr = 4;
  MakePair(options);
  AddExtras();
  ibv_srq_attr attr = {};
  ASSERT_EQ(ibv_query_srq(b->srq, &attr), 0);
  std::vector<ibv_recv_wr> list(attr.max_wr + 2);
  ibv_sge sge = b->Sge(0, 64);
  for (size_t i = 0; i < list.size(); ++i) {
    list[i] = {i, i + 1 < list.size() ? &list[i + 1] : nullptr, &sge, 1};
  }
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_srq_recv(b->srq, &list[0], &bad), ENOMEM);
  EXPECT_EQ(bad, &list[attr.max_wr]);
  ASSERT_EQ(a->Send(1, 0, 8), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->WaitRecv().wr_id, 0u);
  EXPECT_EQ(b->PostRecv(99, 0, 64), 0);
  EXPECT_EQ(b->PostRecv(99, 0, 64), ENOMEM);
  std::vector<ibv_sge> many(b->options.max_sge + 1, sge);
  EXPECT_EQ(b->PostRecv(99, many), EINVAL) << "that is looked at first";
}

TEST_F(Verb_ibv_attach_mcast, EveryKindOfQpAndGroup) {
  ibv_gid group = {};
  const uint8_t ipv4[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 9};
  memcpy(group.raw, ipv4, sizeof(ipv4));
  ibv_gid zero = {};
  for (ibv_qp_type type : kTypes) {
    SCOPED_TRACE(NameOf(type));
    a = std::make_unique<Side>(SideOptions{.type = type});
    const bool is_ud = type == IBV_QPT_UD;
    EXPECT_EQ(ibv_attach_mcast(a->qp, &group, 0), is_ud ? 0 : EINVAL);
    EXPECT_EQ(ibv_attach_mcast(a->qp, &group, 0), is_ud ? 0 : EINVAL) << "again: as once";
    EXPECT_EQ(ibv_attach_mcast(a->qp, &zero, 0), EINVAL);
    EXPECT_EQ(ibv_detach_mcast(a->qp, &zero, 0), EINVAL) << "never attached";
    if (is_ud) {
      EXPECT_EQ(ibv_destroy_qp(a->qp), EBUSY);
    }
    EXPECT_EQ(ibv_detach_mcast(a->qp, &group, 0), is_ud ? 0 : EINVAL);
    EXPECT_EQ(ibv_detach_mcast(a->qp, &group, 0), EINVAL) << "twice";
  }
}

}  // namespace
}  // namespace verbena::conformance
