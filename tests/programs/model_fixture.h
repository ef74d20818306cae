// A model of two peers with a QP each, and short ways to have it do things.
#pragma once

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/programs/model.h"

namespace verbena::programs {

inline constexpr uint32_t kRemoteAll = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                       IBV_ACCESS_REMOTE_ATOMIC | kAccessFlushGlobal;
inline constexpr Id kPd[] = {1, 2}, kMr[] = {3, 4}, kCq[] = {5, 6}, kQp[] = {7, 8};

// Two QPs; side 0 sends to side 1.
class ModelTest : public ::testing::Test {
 protected:
  ModelTest() : model(1) {}

  Outcome Do(const Step& step) {
    Model next = model;
    Outcome outcome = next.Apply(step);
    if (outcome.applies) model = next;
    return outcome;
  }
  static Step Call(Op op, int side, Id id) {
    Step step;
    step.op = op;
    step.side = side;
    step.id = id;
    return step;
  }
  void Make(ibv_qp_type type = IBV_QPT_RC, uint32_t access = kRemoteAll | IBV_ACCESS_LOCAL_WRITE) {
    for (int side : {0, 1}) {
      Do(Call(Op::kAllocPd, side, kPd[side]));
      Step mr = Call(Op::kRegMr, side, kMr[side]);
      mr.pd = kPd[side];
      mr.length = 8192;
      mr.access = access;
      Do(mr);
      Step cq = Call(Op::kCreateCq, side, kCq[side]);
      cq.entries = 64;
      Do(cq);
      Step qp = Call(Op::kCreateQp, side, kQp[side]);
      qp.peer = kQp[1 - side];
      qp.pd = kPd[side];
      qp.send_cq = qp.recv_cq = kCq[side];
      qp.type = type;
      qp.cap = {4, 4, 2, 2, 16};
      EXPECT_EQ(Do(qp).error, 0);
    }
  }
  Outcome Move(int side, ibv_qp_state to, uint8_t rnr_retry = 7) {
    Step step = Call(Op::kModifyQp, side, kQp[side]);
    step.peer = kQp[1 - side];
    uint32_t required = 0, optional = 0;
    const Qp& qp = model.qps.at(kQp[side]);
    Transition(qp.type, qp.state, to, &required, &optional);
    step.mask = IBV_QP_STATE | required;
    step.attr.qp_state = to;
    step.attr.port_num = 1;
    step.attr.qp_access_flags = kRemoteAll;
    step.attr.path_mtu = IBV_MTU_1024;
    step.attr.max_rd_atomic = step.attr.max_dest_rd_atomic = 4;
    step.attr.rnr_retry = rnr_retry;
    return Do(step);
  }
  void Connect(uint8_t rnr_retry = 7) {
    for (ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
      for (int side : {0, 1}) ASSERT_EQ(Move(side, state, rnr_retry).error, 0);
    }
  }
  static Wr Request(ibv_wr_opcode opcode, uint32_t length, uint32_t flags = IBV_SEND_SIGNALED) {
    static uint64_t wr_id = 0;
    Wr wr;
    wr.wr_id = wr_id += 2;
    wr.opcode = opcode;
    wr.flags = flags;
    wr.sges = {{kMr[0], 0, length, 0}};
    wr.remote = kMr[1];
    return wr;
  }
  Outcome Post(std::vector<Wr> wrs) {
    Step step = Call(Op::kPostSend, 0, kQp[0]);
    step.wrs = std::move(wrs);
    return Do(step);
  }
  Outcome PostExtended(std::vector<Wr> wrs) {
    Step step = Call(Op::kPostSend, 0, kQp[0]);
    step.wrs = std::move(wrs);
    step.is_extended = true;
    model.qps.at(kQp[0]).is_extended = true;
    return Do(step);
  }
  static Wr Flush(uint32_t length) {
    Wr wr = Request(kWrFlush, 0);
    wr.sges.clear();
    wr.flush_length = length;
    return wr;
  }
  Step MakeGroupAh() {
    Step ah = Call(Op::kCreateAh, 0, 50);
    ah.pd = kPd[0];
    ah.to_group = true;
    Do(ah);
    return ah;
  }
  Outcome Receive(uint32_t length) {
    Step step = Call(Op::kPostRecv, 1, kQp[1]);
    Wr wr;
    wr.wr_id = 1001;
    wr.sges = {{kMr[1], 4096, length, 0}};
    step.wrs = {wr};
    return Do(step);
  }
  static ibv_wc_status StatusOf(const Outcome& outcome, size_t i) {
    return i < outcome.completions.size() ? outcome.completions[i].statuses.front()
                                          : IBV_WC_GENERAL_ERR;
  }

  Model model;
};

}  // namespace verbena::programs
