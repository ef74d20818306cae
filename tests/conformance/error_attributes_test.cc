// ibv_modify_qp: every pair of states of every service, each required attribute missing, each
// attribute that does not belong there; values out of range. The attributes of SRQs. A refusal
// changes nothing.
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

constexpr ibv_qp_state kStates[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
                                    IBV_QPS_SQD,   IBV_QPS_SQE,  IBV_QPS_ERR};
constexpr const char* kStateNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
constexpr ibv_qp_type kTypes[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};

constexpr int kConnected = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kDatagram = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
constexpr int kPeer = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr int kLive = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
constexpr int kLiveUd = IBV_QP_CUR_STATE | IBV_QP_QKEY;
constexpr int kTryAgain = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;

// Spec: IBTA 11.2.5.2, table of state transition properties, as Linux (ib_modify_qp_is_ok) has it;
// but the rate limit, which Linux knows of raw packet QPs, and RESET to ERR, which it refuses.
// Alternate paths it takes on InfiniBand only.
struct Transition {
  ibv_qp_state from, to;
  struct {
    int required, optional;
  } rc, uc, ud;
};
constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, {kConnected, 0}, {kConnected, 0}, {kDatagram, 0}},
    {IBV_QPS_INIT, IBV_QPS_INIT, {0, kConnected}, {0, kConnected}, {0, kDatagram}},
    {IBV_QPS_INIT,
     IBV_QPS_RTR,
     {kPeer | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
      IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
     {kPeer, IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
     {0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY}},
    {IBV_QPS_RTR,
     IBV_QPS_RTS,
     {kTryAgain | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
      kLive | IBV_QP_MIN_RNR_TIMER | IBV_QP_RATE_LIMIT},
     {IBV_QP_SQ_PSN, kLive | IBV_QP_RATE_LIMIT},
     {IBV_QP_SQ_PSN, kLiveUd | IBV_QP_RATE_LIMIT}},
    {IBV_QPS_RTS,
     IBV_QPS_RTS,
     {0, kLive | IBV_QP_MIN_RNR_TIMER | IBV_QP_RATE_LIMIT},
     {0, kLive | IBV_QP_RATE_LIMIT},
     {0, kLiveUd | IBV_QP_RATE_LIMIT}},
    {IBV_QPS_RTS,
     IBV_QPS_SQD,
     {0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
     {0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
     {0, IBV_QP_EN_SQD_ASYNC_NOTIFY}},
    {IBV_QPS_SQD, IBV_QPS_RTS, {0, kLive | IBV_QP_MIN_RNR_TIMER}, {0, kLive}, {0, kLiveUd}},
    {IBV_QPS_SQD,
     IBV_QPS_SQD,
     {0, IBV_QP_PORT | IBV_QP_AV | kTryAgain | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |
             IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER |
             IBV_QP_PATH_MIG_STATE},
     {0, IBV_QP_AV | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE},
     {0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY}},
    {IBV_QPS_SQE, IBV_QPS_RTS, {0, 0}, {0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS}, {0, kLiveUd}},
};

struct Masks {
  bool is_allowed;
  int required, optional;
};

Masks MasksOf(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to) {
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return {true, 0, 0};
  for (const Transition& row : kTransitions) {
    if (row.from != from || row.to != to) continue;
    const auto& masks = type == IBV_QPT_RC ? row.rc : type == IBV_QPT_UC ? row.uc : row.ud;
    return {true, masks.required, masks.optional};
  }
  return {false, 0, 0};
}

class AttributesTest : public VerbsTest {
 protected:
  void Make(ibv_qp_type type) {
    a = std::make_unique<Side>(SideOptions{.type = type});
    b = std::make_unique<Side>(SideOptions{.nic = 1, .type = type});
  }
  // Values that are right wherever they may be given.
  ibv_qp_attr Good(ibv_qp_state to, ibv_qp_state from) const {
    ibv_qp_attr attr = {};
    attr.qp_state = to;
    attr.cur_qp_state = from;
    attr.path_mtu = IBV_MTU_1024;
    attr.path_mig_state = IBV_MIG_MIGRATED;
    attr.qkey = kQKey;
    attr.dest_qp_num = b->qp->qp_num;
    attr.qp_access_flags = kRemoteAccess;
    attr.ah_attr = attr.alt_ah_attr = AddressOf(b->gid());
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1;
    attr.port_num = attr.alt_port_num = 1;
    attr.timeout = 10;
    attr.min_rnr_timer = 12;
    return attr;
  }
  // From RESET to `state`, by whatever way. False: this service has no such state.
  bool Reach(ibv_qp_state state) {
    const ibv_qp_type type = a->options.type;
    if (state == IBV_QPS_SQE && type == IBV_QPT_RC) return false;
    EXPECT_EQ(a->ToState(IBV_QPS_RESET), 0);
    if (state == IBV_QPS_RESET) return true;
    EXPECT_EQ(a->ToInit(), 0);
    if (state == IBV_QPS_INIT) return true;
    if (state == IBV_QPS_ERR) {
      EXPECT_EQ(a->ToState(IBV_QPS_ERR), 0);
      return true;
    }
    EXPECT_EQ(a->ToRtr(b->qp->qp_num, b->gid(), {}), 0);
    if (state == IBV_QPS_RTR) return true;
    EXPECT_EQ(a->ToRts({}), 0);
    if (state == IBV_QPS_SQE) Fail();
    if (state == IBV_QPS_SQD) {
      EXPECT_EQ(a->ToState(IBV_QPS_SQD), 0);
      EXPECT_TRUE(Eventually([&] { return IsDrained(); }));
    }
    EXPECT_EQ(a->State(), state);
    return true;
  }
  // A send that UC and UD report by the SQ error state.
  void Fail() {
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    ibv_ah* ah = nullptr;
    if (a->options.type == IBV_QPT_UD) {
      ibv_ah_attr attr = AddressOf(b->gid());
      ah = ibv_create_ah(a->pd, &attr);
      wr.wr.ud.ah = ah;
    }
    EXPECT_EQ(a->Post(wr, {{a->buffer.address(), 8, a->mr->lkey ^ 1}}), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_LOC_PROT_ERR);
    if (ah != nullptr) {
      EXPECT_EQ(ibv_destroy_ah(ah), 0);
    }
  }
  bool IsDrained() const {
    ibv_qp_attr attr = {};
    ibv_qp_init_attr init = {};
    return ibv_query_qp(a->qp, &attr, 0, &init) == 0 && attr.sq_draining == 0;
  }
  // All that a query tells.
  std::string Snapshot() const {
    ibv_qp_attr attr;
    ibv_qp_init_attr init;
    memset(&attr, 0, sizeof(attr));
    EXPECT_EQ(ibv_query_qp(a->qp, &attr, 0xff'ffff, &init), 0);
    return std::string(reinterpret_cast<const char*>(&attr), sizeof(attr));
  }
};
using Verb_ibv_modify_qp = AttributesTest;

TEST_F(Verb_ibv_modify_qp, EveryTransitionOfEveryService) {
  for (ibv_qp_type type : kTypes) {
    Make(type);
    for (ibv_qp_state from : kStates) {
      for (ibv_qp_state to : kStates) {
        SCOPED_TRACE(std::string("type ") + std::to_string(type) + " " + kStateNames[from] +
                     " to " + kStateNames[to]);
        if (!Reach(from)) continue;
        const Masks masks = MasksOf(type, from, to);
        ibv_qp_attr attr = Good(to, from);
        int error = ibv_modify_qp(a->qp, &attr, IBV_QP_STATE | masks.required);
        EXPECT_EQ(error, masks.is_allowed ? 0 : EINVAL);
        EXPECT_EQ(a->State(), masks.is_allowed ? to : from);
        if (!masks.is_allowed || !Reach(from)) continue;
        attr = Good(to, from);
        error = ibv_modify_qp(a->qp, &attr, IBV_QP_STATE | masks.required | masks.optional);
        EXPECT_EQ(error, 0) << "with all that is optional";
      }
    }
  }
}

TEST_F(Verb_ibv_modify_qp, EveryAttributeOfEveryTransition) {
  for (ibv_qp_type type : kTypes) {
    Make(type);
    for (ibv_qp_state from : kStates) {
      for (ibv_qp_state to : kStates) {
        const Masks masks = MasksOf(type, from, to);
        if (!masks.is_allowed || !Reach(from)) continue;
        SCOPED_TRACE(std::string("type ") + std::to_string(type) + " " + kStateNames[from] +
                     " to " + kStateNames[to]);
        const std::string before = Snapshot();
        for (int bit = 1; bit < 31; ++bit) {
          const int attribute = 1 << bit;
          if ((masks.optional & attribute) != 0) continue;
          ibv_qp_attr attr = Good(to, from);
          // One that is missing, or one too many.
          const int mask = (IBV_QP_STATE | masks.required) ^ attribute;
          ASSERT_EQ(ibv_modify_qp(a->qp, &attr, mask), EINVAL) << "bit " << bit;
        }
        EXPECT_EQ(Snapshot(), before);
      }
    }
  }
}

TEST_F(Verb_ibv_modify_qp, ABelievedStateMustBeTheStateItIs) {
  Make(IBV_QPT_RC);
  for (ibv_qp_state from : {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD}) {
    for (ibv_qp_state believed : kStates) {
      SCOPED_TRACE(std::string(kStateNames[from]) + " believed " + kStateNames[believed]);
      ASSERT_TRUE(Reach(from));
      ibv_qp_attr attr = Good(IBV_QPS_RTS, believed);
      const int mask =
          IBV_QP_STATE | IBV_QP_CUR_STATE | MasksOf(IBV_QPT_RC, from, IBV_QPS_RTS).required;
      EXPECT_EQ(ibv_modify_qp(a->qp, &attr, mask), believed == from ? 0 : EINVAL);
    }
  }
}

TEST_F(Verb_ibv_modify_qp, ValuesOutOfRange) {
  ibv_device_attr device = {};
  Make(IBV_QPT_RC);
  ASSERT_EQ(ibv_query_device(a->context, &device), 0);
  using Set = std::function<void(ibv_qp_attr&)>;
  struct Case {
    const char* what;
    ibv_qp_state from, to;
    int also;  // optional attributes
    Set set;
    int error;
  };
  constexpr ibv_qp_state kInit = IBV_QPS_INIT, kRtr = IBV_QPS_RTR, kRts = IBV_QPS_RTS;
  const int rd_atomic = device.max_qp_rd_atom;
  const Case cases[] = {
      {"port 0", IBV_QPS_RESET, kInit, 0, [](auto& v) { v.port_num = 0; }, EINVAL},
      {"port 2", IBV_QPS_RESET, kInit, 0, [](auto& v) { v.port_num = 2; }, EINVAL},
      {"P_Key index", IBV_QPS_RESET, kInit, 0, [](auto& v) { v.pkey_index = 1; }, EINVAL},
      {"access bits nobody knows", IBV_QPS_RESET, kInit, 0,
       [](auto& v) { v.qp_access_flags = 1u << 15; }, EINVAL},
      {"no such state", IBV_QPS_RESET, kInit, 0,
       [](auto& v) { v.qp_state = static_cast<ibv_qp_state>(7); }, EINVAL},
      {"MTU 0", kInit, kRtr, 0, [](auto& v) { v.path_mtu = static_cast<ibv_mtu>(0); }, EINVAL},
      {"MTU 6", kInit, kRtr, 0, [](auto& v) { v.path_mtu = static_cast<ibv_mtu>(6); }, EINVAL},
      {"QPN of 25 bits", kInit, kRtr, 0, [](auto& v) { v.dest_qp_num = 1u << 24; }, EINVAL},
      {"PSN of 25 bits: the low 24 count", kInit, kRtr, 0, [](auto& v) { v.rq_psn = 1u << 24; }, 0},
      {"more READs than the device", kInit, kRtr, 0,
       [&](auto& v) { v.max_dest_rd_atomic = static_cast<uint8_t>(rd_atomic + 1); }, EINVAL},
      {"as many as the device", kInit, kRtr, 0,
       [&](auto& v) { v.max_dest_rd_atomic = static_cast<uint8_t>(rd_atomic); }, 0},
      {"RNR timer code 32", kInit, kRtr, 0, [](auto& v) { v.min_rnr_timer = 32; }, EINVAL},
      {"no GRH", kInit, kRtr, 0, [](auto& v) { v.ah_attr.is_global = 0; }, EINVAL},
      {"an empty GID index", kInit, kRtr, 0, [](auto& v) { v.ah_attr.grh.sgid_index = 200; },
       EINVAL},
      {"GID of zeroes", kInit, kRtr, 0, [](auto& v) { v.ah_attr.grh.dgid = {}; }, EINVAL},
      {"address of port 2", kInit, kRtr, 0, [](auto& v) { v.ah_attr.port_num = 2; }, EINVAL},
      {"timeout 32", kRtr, kRts, 0, [](auto& v) { v.timeout = 32; }, EINVAL},
      {"8 retries", kRtr, kRts, 0, [](auto& v) { v.retry_cnt = 8; }, EINVAL},
      {"8 RNR retries", kRtr, kRts, 0, [](auto& v) { v.rnr_retry = 8; }, EINVAL},
      {"more READs under way than the device", kRtr, kRts, 0,
       [&](auto& v) { v.max_rd_atomic = static_cast<uint8_t>(rd_atomic + 1); }, EINVAL},
      {"a path migration state nobody knows", kRtr, kRts, IBV_QP_PATH_MIG_STATE,
       [](auto& v) { v.path_mig_state = static_cast<ibv_mig_state>(3); }, EINVAL},
      {"a rate beyond the port's", kRtr, kRts, IBV_QP_RATE_LIMIT,
       [](auto& v) { v.rate_limit = 100'000'001; }, EINVAL},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(row.what);
    ASSERT_TRUE(Reach(row.from));
    ibv_qp_attr attr = Good(row.to, row.from);
    row.set(attr);
    const int mask = IBV_QP_STATE | MasksOf(IBV_QPT_RC, row.from, row.to).required | row.also;
    EXPECT_EQ(ibv_modify_qp(a->qp, &attr, mask), row.error);
    EXPECT_EQ(a->State(), row.error == 0 ? row.to : row.from);
  }
}

using Verb_ibv_modify_srq = AttributesTest;
using Verb_ibv_create_srq_ex = AttributesTest;

TEST_F(Verb_ibv_modify_srq, MasksAndValues) {
  a = std::make_unique<Side>(SideOptions{.with_srq = true});
  ibv_device_attr device = {};
  ibv_srq_attr before = {};
  ASSERT_EQ(ibv_query_device(a->context, &device), 0);
  for (uint64_t id = 0; id < 40; ++id) ASSERT_EQ(a->PostRecv(id, 0, 64), 0);
  ASSERT_EQ(ibv_query_srq(a->srq, &before), 0);
  const auto most = static_cast<uint32_t>(device.max_srq_wr);
  struct Case {
    const char* what;
    int mask;
    uint32_t max_wr, limit;
  };
  for (const Case& row :
       {Case{"a bit nobody knows", 1 << 2, 64, 0}, Case{"no entries", IBV_SRQ_MAX_WR, 0, 0},
        Case{"more than the device has", IBV_SRQ_MAX_WR, most + 1, 0},
        Case{"fewer than wait there", IBV_SRQ_MAX_WR, 16, 0},
        Case{"a limit beyond its size", IBV_SRQ_LIMIT, 0, before.max_wr + 1},
        Case{"a limit beyond its new size", IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT, 128, 129}}) {
    SCOPED_TRACE(row.what);
    ibv_srq_attr attr = {row.max_wr, 0, row.limit};
    EXPECT_EQ(ibv_modify_srq(a->srq, &attr, row.mask), EINVAL);
    ibv_srq_attr after = {};
    ASSERT_EQ(ibv_query_srq(a->srq, &after), 0);
    EXPECT_EQ(after.max_wr, before.max_wr);
    EXPECT_EQ(after.srq_limit, before.srq_limit);
  }
}

TEST_F(Verb_ibv_create_srq_ex, MasksAndTypes) {
  a = std::make_unique<Side>(SideOptions{});
  struct Case {
    const char* what;
    uint32_t mask;
    ibv_srq_type type;
    int error;
  };
  constexpr uint32_t kPd = IBV_SRQ_INIT_ATTR_PD, kType = IBV_SRQ_INIT_ATTR_TYPE;
  for (const Case& row :
       {Case{"basic", kPd | kType, IBV_SRQT_BASIC, 0},
        Case{"no type is basic", kPd, IBV_SRQT_TM, 0}, Case{"no PD", kType, IBV_SRQT_BASIC, EINVAL},
        Case{"a bit nobody knows", kPd | 1u << 7, IBV_SRQT_BASIC, EOPNOTSUPP},
        Case{"XRC", kPd | kType, IBV_SRQT_XRC, EOPNOTSUPP},
        Case{"tag matching", kPd | kType, IBV_SRQT_TM, EOPNOTSUPP}}) {
    SCOPED_TRACE(row.what);
    ibv_srq_init_attr_ex init = {};
    init.attr = {16, 1, 0};
    init.comp_mask = row.mask;
    init.srq_type = row.type;
    init.pd = a->pd;
    errno = 0;
    ibv_srq* srq = ibv_create_srq_ex(a->context, &init);
    EXPECT_EQ(srq == nullptr ? errno : 0, row.error);
    if (srq != nullptr) {
      EXPECT_EQ(ibv_destroy_srq(srq), 0);
    }
  }
}

}  // namespace
}  // namespace verbena::conformance
