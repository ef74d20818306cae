// Queues in trouble: CQs that nobody polls, queues that drain, objects of another context, groups.
#include "tests/programs/generator.h"

namespace verbena::programs {
namespace {

constexpr uint32_t kQKey = 0x1111'1111;

}  // namespace

// Objects of the other side's context, where there must be one's own.
bool Generator::Foreign() {
  const int side = static_cast<int>(random_.Below(2));
  if (random_.Percent(20)) {
    Step cq = New(Op::kCreateCq, side);
    cq.entries = 16;
    cq.is_extended = random_.Percent(50);
    cq.other_channel = true;
    cq.wrong = "another context's channel";
    return Add(cq);
  }
  Step qp = New(Op::kCreateQp, side);
  qp.peer = NewId();
  qp.type = random_.Percent(50) ? IBV_QPT_RC : IBV_QPT_UD;
  qp.pd = AnyOf(model_.pds, side);
  qp.send_cq = AnyOf(model_.cqs, side);
  qp.recv_cq = AnyOf(model_.cqs, side);
  qp.cap = {8, 8, 1, 1, 0};
  qp.is_extended = random_.Percent(50);
  switch (random_.Below(4)) {
    case 0:
      qp.pd = AnyOf(model_.pds, 1 - side);
      break;
    case 1:
      qp.send_cq = AnyOf(model_.cqs, 1 - side);
      break;
    case 2:
      qp.recv_cq = AnyOf(model_.cqs, 1 - side);
      break;
    default:
      qp.srq = AnyOf(model_.srqs, 1 - side);
      qp.cap.max_recv_wr = qp.cap.max_recv_sge = 0;
      break;
  }
  qp.wrong = "an object of another context";
  return Add(qp);
}

// Fills a CQ that nobody polls: to its end and no further, or by one more.
bool Generator::Unpolled() {
  const int side = static_cast<int>(random_.Below(2));
  Step cq = New(Op::kCreateCq, side);
  cq.entries = 8u << random_.Below(2);
  cq.is_extended = random_.Percent(50);
  if (!Add(cq)) return false;
  const Id ids[2] = {NewId(), NewId()};
  for (int i : {0, 1}) {
    const int of = i == 0 ? side : 1 - side;
    Step qp = New(Op::kCreateQp, of);
    qp.id = ids[i];
    qp.peer = ids[1 - i];
    qp.type = IBV_QPT_RC;
    qp.pd = AnyOf(model_.pds, of);
    qp.send_cq = i == 0 ? cq.id : AnyOf(model_.cqs, of);
    qp.recv_cq = random_.Percent(50) && i == 0 ? cq.id : AnyOf(model_.cqs, of);
    qp.cap = {64, 8, 1, 1, 0};
    if (!Add(qp)) return false;
  }
  Connect(ids[0]);
  if (random_.Percent(50)) Receives(model_.qps.at(ids[0]), 2);
  Step hold = New(Op::kHoldCq, side);
  hold.id = cq.id;
  if (!Add(hold)) return false;
  auto write = [&](uint32_t count) {
    Step step = New(Op::kPostSend, side);
    step.id = ids[0];
    for (uint32_t i = 0; i < count; ++i) {
      Wr wr;
      wr.wr_id = NewWrId(false);
      wr.opcode = IBV_WR_RDMA_WRITE;
      wr.flags = IBV_SEND_SIGNALED;
      step.wrs.push_back(wr);
    }
    return Add(step);
  };
  const uint32_t spare = random_.Below(3);
  if (!write(cq.entries - spare)) return false;
  if (random_.Percent(30)) {
    Step resize = New(Op::kResizeCq, side);
    resize.id = cq.id;
    resize.entries = random_.Percent(50) ? cq.entries * 2 : random_.Between(1, cq.entries);
    Add(resize);
  }
  const uint32_t room = model_.cqs.at(cq.id).entries - (cq.entries - spare);
  if (room != 0) write(room);
  if (random_.Percent(40)) {
    hold.op = Op::kReleaseCq;
    return Add(hold);
  }
  write(1);
  Step destroy = New(Op::kDestroyQp, side);
  destroy.id = ids[0];
  Add(destroy);
  destroy.op = Op::kDestroyCq;
  destroy.id = cq.id;
  return Add(destroy);
}

// To SQD while a SEND waits for its receive.
bool Generator::Drain() {
  std::vector<Id> able;
  for (const auto& [id, qp] : model_.qps) {
    auto peer = model_.qps.find(qp.peer);
    if (qp.type == IBV_QPT_RC && qp.state == IBV_QPS_RTS && peer != model_.qps.end() &&
        peer->second.Receives() && model_.ReceivesOf(peer->second).empty()) {
      able.push_back(id);
    }
  }
  if (able.empty()) return false;
  const Id id = random_.Of(able);
  const Qp qp = model_.qps.at(id);
  auto send = [&] {
    Step step = New(Op::kPostSend, qp.side);
    step.id = id;
    Wr wr;
    wr.wr_id = NewWrId(false);
    wr.flags = IBV_SEND_SIGNALED;
    if (!DrawSges(qp, random_.Between(1, 200), 0, 1, &wr.sges)) return false;
    step.wrs.push_back(wr);
    return Add(step);
  };
  if (qp.sends.empty() && !send()) return false;
  if (model_.qps.at(id).state != IBV_QPS_RTS) return true;  // it would not wait
  Add(ModifyTo(model_.qps.at(id), IBV_QPS_SQD));
  Step query = New(Op::kQueryQp, qp.side);
  query.id = id;
  Add(query);
  if (random_.Percent(50)) send();
  Receives(model_.qps.at(qp.peer), random_.Between(1, 3));
  Add(query);
  return Add(ModifyTo(model_.qps.at(id), IBV_QPS_RTS));
}

// A limit that the next messages reach.
bool Generator::LowWater() {
  std::vector<Id> able;
  for (const auto& [id, qp] : model_.qps) {
    auto peer = model_.qps.find(qp.peer);
    if (qp.srq == 0 || peer == model_.qps.end() || !qp.Receives()) continue;
    if (peer->second.state == IBV_QPS_RTS && peer->second.type != IBV_QPT_UD) able.push_back(id);
  }
  if (able.empty()) return false;
  const Id id = random_.Of(able);
  const Id srq = model_.qps.at(id).srq, peer = model_.qps.at(id).peer;
  if (model_.srqs.at(srq).receives.size() < 3) Receives(model_.qps.at(id), 3);
  const auto waiting = static_cast<uint32_t>(model_.srqs.at(srq).receives.size());
  Step modify = New(Op::kModifySrq, model_.qps.at(id).side);
  modify.id = srq;
  modify.mask = IBV_SRQ_LIMIT;
  modify.limit = waiting - random_.Below(2);
  if (!Add(modify)) return false;
  const Qp qp = model_.qps.at(peer);
  Step send = New(Op::kPostSend, qp.side);
  send.id = peer;
  for (int i = 0; i < 2; ++i) {
    Wr wr;
    wr.wr_id = NewWrId(false);
    wr.flags = IBV_SEND_SIGNALED;
    if (!DrawSges(qp, random_.Below(40), 0, 1, &wr.sges)) return false;
    send.wrs.push_back(wr);
  }
  return Add(send);
}

// To all that are attached.
bool Generator::MulticastTraffic() {
  std::vector<Id> able;
  for (const auto& [id, qp] : model_.qps) {
    if (qp.type == IBV_QPT_UD && qp.state == IBV_QPS_RTS) able.push_back(id);
  }
  if (able.size() < 2) return false;
  const Id sender = random_.Of(able);
  for (Id id : able) {
    if (id == sender || !random_.Percent(70)) continue;
    Step attach = New(Op::kAttachMcast, model_.qps.at(id).side);
    attach.id = id;
    Add(attach);
    if (random_.Percent(90)) Receives(model_.qps.at(id), 2);
  }
  const Qp qp = model_.qps.at(sender);
  Step ah = New(Op::kCreateAh, qp.side);
  ah.pd = qp.pd;
  ah.to_group = true;
  if (!Add(ah)) return false;
  Step step = New(Op::kPostSend, qp.side);
  step.id = sender;
  for (uint32_t i = random_.Between(1, 2); i > 0; --i) {
    Wr wr;
    wr.wr_id = NewWrId(false);
    wr.flags = IBV_SEND_SIGNALED;
    wr.ah = ah.id;
    wr.qkey = random_.Percent(95) ? kQKey : 5;
    if (!DrawSges(qp, random_.Below(201), 0, 1, &wr.sges)) return false;
    step.wrs.push_back(wr);
  }
  return Add(step);
}

}  // namespace verbena::programs
