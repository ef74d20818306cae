#include "tests/programs/generator.h"

#include <algorithm>

namespace verbena::programs {
namespace {

constexpr uint32_t kRemoteAll = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                IBV_ACCESS_REMOTE_ATOMIC | kAccessFlushGlobal;
constexpr uint32_t kAll = kRemoteAll | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
constexpr uint32_t kQKey = 0x1111'1111;
constexpr size_t kPairsMax = 5;

}  // namespace

Program Generate(uint64_t seed, const GeneratorOptions& options) {
  return Generator(seed).Whole(options);
}

Program Generator::Whole(const GeneratorOptions& options) {
  SetStage();
  const size_t end = program_.size() + static_cast<size_t>(options.steps);
  while (program_.size() < end) Next();
  return std::move(program_);
}

bool Generator::Add(Step step) {
  Model next = model_;
  const Outcome outcome = next.Apply(step);
  if (!outcome.applies) return false;
  model_ = std::move(next);
  program_.push_back(std::move(step));
  return true;
}

Step Generator::New(Op op, int side) {
  Step step;
  step.op = op;
  step.side = side;
  if (IsMaker(op)) step.id = NewId();
  return step;
}

void Generator::SetStage() {
  for (int side : {0, 1}) {
    Step pd = New(Op::kAllocPd, side);
    Add(pd);
    Step mr = New(Op::kRegMr, side);
    mr.pd = pd.id;
    mr.length = kArenaBytes;
    mr.access = kAll;
    Add(mr);
    MakeMr(side, pd.id);
    if (random_.Percent(40)) MakeOddMr(side, pd.id);
    if (random_.Percent(50)) {  // what belongs to somebody else
      Step other_pd = New(Op::kAllocPd, side);
      Add(other_pd);
      mr.id = NewId();
      mr.pd = other_pd.id;
      Add(mr);
    }
    Step cq = New(Op::kCreateCq, side);
    cq.entries = 512;
    cq.is_extended = random_.Percent(30);
    Add(cq);
    Step srq = New(Op::kCreateSrq, side);
    srq.pd = pd.id;
    srq.entries = 16u << random_.Below(2);
    srq.cap.max_recv_sge = random_.Between(1, 4);
    Add(srq);
  }
  for (uint32_t i = random_.Between(1, 3); i > 0; --i) MakePair();
}

void Generator::Next() {
  const uint32_t choice = random_.Below(100);
  if (choice < 5) {
    const uint32_t which = random_.Below(5);
    const bool is_drawn = which == 0   ? Unpolled()
                          : which == 1 ? Drain()
                          : which == 2 ? LowWater()
                                       : MulticastTraffic();
    if (!is_drawn) Traffic();
  } else if (choice < 48) {
    Traffic();
  } else if (choice < 58) {
    if (!Together()) Traffic();
  } else if (choice < 66) {
    if (!random_.Percent(10) || !InvalidateRegion()) Window();
  } else if (choice < 78) {
    if (!Repair()) Traffic();
  } else if (choice < 84) {
    RandomModify();
  } else if (choice < 90) {
    MakeSomething();
  } else if (choice < 94) {
    DestroySomething();
  } else {
    ChangeSomething();
  }
}

uint32_t Generator::SomeAccess() {
  if (random_.Percent(50)) return kAll;
  if (random_.Percent(2)) return kAll | kAccessFlushPersistent;
  return random_.Below(512) & kAll;
}

bool Generator::MakeMr(int side, Id pd) {
  Step mr = New(Op::kRegMr, side);
  mr.pd = pd;
  mr.offset = random_.Below(kArenaBytes / 8) * 4;
  mr.length = random_.Between(1, kArenaBytes - mr.offset);
  mr.access = SomeAccess();
  if ((mr.access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
      random_.Percent(90)) {
    mr.access |= IBV_ACCESS_LOCAL_WRITE;
  }
  return Add(mr);
}

// Of no memory, or of the device's.
bool Generator::MakeOddMr(int side, Id pd) {
  Step mr = New(random_.Percent(30) ? Op::kAllocNullMr : Op::kRegDmMr, side);
  mr.pd = pd;
  if (mr.op == Op::kAllocNullMr) return Add(mr);
  mr.offset = random_.Below(kDmBytes / 8) * 4;
  mr.length = random_.Between(1, (kDmBytes - mr.offset) / 4) * 4;
  mr.access = (SomeAccess() & ~uint32_t{IBV_ACCESS_MW_BIND}) | IBV_ACCESS_ZERO_BASED;
  if (random_.Percent(80)) mr.access |= IBV_ACCESS_LOCAL_WRITE;
  if (random_.Percent(5)) {
    mr.access &= ~uint32_t{IBV_ACCESS_ZERO_BASED};
    mr.wrong = "not zero-based";
  } else if (random_.Percent(5)) {
    mr.length += kDmBytes;
    mr.wrong = "beyond the device memory";
  }
  return Add(mr);
}

bool Generator::MakePair() {
  if (model_.qps.size() >= 2 * kPairsMax) return false;
  const uint32_t choice = random_.Below(10);
  const ibv_qp_type type = choice < 6 ? IBV_QPT_RC : choice < 8 ? IBV_QPT_UC : IBV_QPT_UD;
  Id ids[2] = {NewId(), NewId()};
  for (int side : {0, 1}) {
    Step qp = New(Op::kCreateQp, side);
    qp.id = ids[side];
    qp.peer = ids[1 - side];
    qp.type = type;
    qp.pd = AnyOf(model_.pds, side);
    qp.send_cq = AnyOf(model_.cqs, side);
    qp.recv_cq = AnyOf(model_.cqs, side);
    if (random_.Percent(25)) qp.srq = AnyOf(model_.srqs, side);
    qp.cap = {8u << random_.Below(2), 8u << random_.Below(2), random_.Between(1, 4),
              random_.Between(1, 4), random_.Percent(50) ? 64u : 0u};
    if (qp.srq != 0) qp.cap.max_recv_wr = qp.cap.max_recv_sge = 0;
    qp.sq_sig_all = random_.Percent(20);
    qp.is_extended = random_.Percent(40);
    if (!Add(qp)) return false;
  }
  if (model_.qps.count(ids[0]) != 0) Connect(ids[0]);
  return true;
}

// What `state` needs, from where the QP is.
Step Generator::ModifyTo(const Qp& qp, ibv_qp_state state) {
  Step step = New(Op::kModifyQp, qp.side);
  step.id = qp.id;
  step.peer = qp.peer;
  step.attr.qp_state = state;
  uint32_t required = 0, optional = 0;
  Transition(qp.type, qp.state, state, &required, &optional);
  step.mask = IBV_QP_STATE | required;
  ibv_qp_attr& attr = step.attr;
  attr.port_num = 1;
  attr.qkey = kQKey;
  attr.qp_access_flags = random_.Percent(85) ? kRemoteAll : random_.Below(512) & kRemoteAll;
  if (random_.Percent(30)) attr.qp_access_flags |= kAccessFlushPersistent;
  attr.rq_psn = psns_[qp.peer];
  attr.sq_psn = psns_[qp.id];
  // The same at both ends: drawn from the pair's lower number.
  Random of_pair(std::min(qp.id, qp.peer) * 7919u + (psns_[std::min(qp.id, qp.peer)]));
  attr.path_mtu = static_cast<ibv_mtu>(IBV_MTU_256 + of_pair.Below(3));
  attr.max_rd_atomic = attr.max_dest_rd_atomic = static_cast<uint8_t>(1 + of_pair.Below(8));
  attr.min_rnr_timer = 6;  // 0.08 ms
  attr.timeout = 12;       // 17 ms: a NIC that waits for its CPU is no peer that has gone
  attr.retry_cnt = static_cast<uint8_t>(random_.Between(4, 6));
  attr.rnr_retry = static_cast<uint8_t>(random_.Percent(50) ? 7 : random_.Below(4));
  if (state == IBV_QPS_SQD) {
    step.mask |= IBV_QP_EN_SQD_ASYNC_NOTIFY;
    attr.en_sqd_async_notify = static_cast<uint8_t>(random_.Below(2));
  }
  return step;
}

void Generator::Connect(Id id) {
  const Id ids[2] = {id, model_.qps.at(id).peer};
  for (Id one : ids) {
    if (model_.qps.find(one) == model_.qps.end()) return;
  }
  // Near the wrap of 24 bits, now and then.
  for (Id one : ids) {
    psns_[one] = random_.Percent(30) ? kPsnMask - random_.Below(8) : random_.Below(kPsnMask + 1);
  }
  for (Id one : ids) {
    if (model_.qps.at(one).state != IBV_QPS_RESET) {
      Add(ModifyTo(model_.qps.at(one), IBV_QPS_RESET));
    }
  }
  for (ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    for (Id one : ids) {
      if (state == IBV_QPS_RTS && one == ids[1] && random_.Percent(15)) continue;
      Add(ModifyTo(model_.qps.at(one), state));
    }
  }
}

bool Generator::Repair() {
  std::vector<Id> broken;
  for (const auto& [id, qp] : model_.qps) {
    auto peer = model_.qps.find(qp.peer);
    if (peer == model_.qps.end()) continue;
    if (qp.state != IBV_QPS_RTS || peer->second.state != IBV_QPS_RTS) broken.push_back(id);
  }
  if (broken.empty()) return false;
  Qp& qp = model_.qps.at(random_.Of(broken));
  if (qp.state == IBV_QPS_SQE || qp.state == IBV_QPS_SQD) return Add(ModifyTo(qp, IBV_QPS_RTS));
  Connect(qp.id);
  return true;
}

bool Generator::RandomModify() {
  const Id id = AnyOf(model_.qps, static_cast<int>(random_.Below(2)));
  if (id == 0) return false;
  const Qp& qp = model_.qps.at(id);
  // ERR and RESET often enough come by themselves.
  const ibv_qp_state to = random_.Percent(70) && qp.state == IBV_QPS_RTS
                              ? (random_.Percent(60) ? IBV_QPS_SQD : IBV_QPS_RTS)
                              : static_cast<ibv_qp_state>(random_.Below(7));
  Step step = ModifyTo(qp, to);
  switch (random_.Below(8)) {
    case 0: {
      step.mask &= ~(1u << random_.Between(3, 20));
      step.wrong = "an attribute may be missing";
      break;
    }
    case 1:
      step.mask |= 1u << random_.Between(1, 20);
      step.mask &= ~uint32_t{IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_CAP};
      step.attr.cur_qp_state = qp.state;
      step.wrong = "an attribute too many, perhaps";
      break;
    case 2:
      step.attr.port_num = 2;
      step.wrong = "port 2";
      break;
    case 3:
      step.attr.pkey_index = 0x7fff;
      step.wrong = "no such P_Key";
      break;
    case 4:
      step.mask |= IBV_QP_CUR_STATE;
      step.attr.cur_qp_state = static_cast<ibv_qp_state>(random_.Below(6));
      step.wrong = "current state, perhaps wrong";
      break;
    default:
      break;
  }
  return Add(step);
}

bool Generator::MakeSomething() {
  const int side = static_cast<int>(random_.Below(2));
  const Id pd = AnyOf(model_.pds, side);
  switch (random_.Below(10)) {
    case 9:
      return Foreign();
    case 8:
      return MakeOddMr(side, pd);
    case 0:
      return Add(New(Op::kAllocPd, side));
    case 1: {
      Step step = New(Op::kParentDomain, side);
      step.pd = pd;
      return Add(step);
    }
    case 2:
    case 3:
      return MakeMr(side, pd);
    case 4: {
      Step step = New(Op::kCreateCq, side);
      step.entries = random_.Percent(10) ? 0 : 512;
      step.is_extended = random_.Percent(50);
      if (step.entries == 0) step.wrong = "no entries";
      return Add(step);
    }
    case 5: {
      Step step = New(Op::kCreateSrq, side);
      step.pd = pd;
      step.entries = random_.Percent(10) ? 0 : 16;
      step.cap.max_recv_sge = random_.Between(1, 4);
      if (step.entries == 0) step.wrong = "no entries";
      return Add(step);
    }
    case 6: {
      Step step = New(Op::kCreateAh, side);
      step.pd = pd;
      step.to_self = random_.Percent(30);
      step.to_group = !step.to_self && random_.Percent(20);
      return Add(step);
    }
    default:
      return MakePair();
  }
}

bool Generator::DestroySomething() {
  const int side = static_cast<int>(random_.Below(2));
  auto destroy = [&](Op op, Id id) {
    if (id == 0) return false;
    Step step = New(op, side);
    step.id = id;
    return Add(step);
  };
  switch (random_.Below(8)) {
    case 0:
      return destroy(Op::kDeallocPd, AnyOf(model_.pds, side));
    case 1:
    case 2:
      return destroy(Op::kDeregMr, AnyOf(model_.mrs, side));
    case 3:
      return destroy(Op::kDestroyCq, AnyOf(model_.cqs, side));
    case 4:
      return destroy(Op::kDestroySrq, AnyOf(model_.srqs, side));
    case 5:
      return destroy(Op::kDestroyAh, AnyOf(model_.ahs, side));
    case 6:
      return destroy(Op::kDeallocMw, AnyOf(model_.mws, side));
    default:
      return destroy(Op::kDestroyQp, AnyOf(model_.qps, side));
  }
}

bool Generator::ChangeSomething() {
  const int side = static_cast<int>(random_.Below(2));
  switch (random_.Below(10)) {
    case 0: {
      Step step = New(Op::kModifySrq, side);
      step.id = AnyOf(model_.srqs, side);
      step.mask = random_.Percent(50) ? uint32_t{IBV_SRQ_LIMIT} : random_.Between(1, 3);
      step.limit = random_.Below(random_.Percent(20) ? 64 : 6);
      step.entries = random_.Percent(80) ? 4u << random_.Below(5) : random_.Below(8);
      if (random_.Percent(3)) step.entries = 1u << 30;
      return Add(step);
    }
    case 1: {
      Step step = New(Op::kQuerySrq, side);
      step.id = AnyOf(model_.srqs, side);
      return Add(step);
    }
    case 2: {
      Step step = New(Op::kReregMr, side);
      step.id = AnyOf(model_.mrs, side);
      step.mask = random_.Between(1, 7);
      step.pd = AnyOf(model_.pds, side);
      step.offset = random_.Below(kArenaBytes / 8) * 4;
      step.length = random_.Between(1, kArenaBytes - step.offset);
      if ((step.mask & IBV_REREG_MR_CHANGE_ACCESS) != 0 || random_.Percent(10)) {
        step.access = SomeAccess();
      }
      return Add(step);
    }
    case 3: {
      Step step = New(Op::kResizeCq, side);
      step.id = AnyOf(model_.cqs, side);
      step.entries = 256u << random_.Below(3);
      return Add(step);
    }
    case 4: {
      Step step = New(random_.Percent(60) ? Op::kAttachMcast : Op::kDetachMcast, side);
      step.id = AnyOf(model_.qps, side);
      return Add(step);
    }
    case 5:
    case 6:
    case 7: {
      Step step = New(Op::kNotifyCq, side);
      step.id = AnyOf(model_.cqs, side);
      step.to_self = random_.Percent(50);
      return Add(step);
    }
    default: {
      Step step = New(Op::kQueryQp, side);
      step.id = AnyOf(model_.qps, side);
      return Add(step);
    }
  }
}

}  // namespace verbena::programs
