// Queue pairs: creation, modification, destruction.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "softnic/device/device_core.h"

namespace verbena::softnic {
namespace {

shm::QueuePlace PlaceOf(const QueueMemory& queue, const WorkQueueConsumer& ring,
                        uint32_t doorbell) {
  shm::QueuePlace place{};
  place.arena = queue.arena;
  place.stride_bytes = ring.stride_bytes();
  place.offset = queue.offset;
  place.bytes = queue.bytes;
  place.entries = ring.entries();
  place.doorbell = doorbell;
  return place;
}

// As an ACK of all requests before `psn` would be.
transport::Pdu AckBefore(Psn psn) {
  transport::Pdu ack;
  ack.opcode = transport::Opcode::kAcknowledge;
  ack.psn = psn - PsnCount{1};
  ack.ack_type = transport::AckType::kAck;
  ack.credits = transport::kCreditsNotInUse;
  return ack;
}

}  // namespace

int DeviceCore::CheckQpLimits(const Nic& nic, const shm::CreateQpRequest& request) const {
  const DeviceLimits& limits = nic.limits();
  if (request.service >= static_cast<uint32_t>(kServiceCount)) return EOPNOTSUPP;
  if (request.create_flags != 0) return EOPNOTSUPP;
  if (request.max_send_wr > limits.max_qp_wr || request.max_send_sge > limits.max_sge) {
    return EINVAL;
  }
  if (request.srq == 0 &&
      (request.max_recv_wr > limits.max_qp_wr || request.max_recv_sge > limits.max_sge)) {
    return EINVAL;
  }
  if (request.max_inline_bytes > limits.max_inline_bytes) return EINVAL;
  return nic.counts.qps >= limits.max_qp ? ENOMEM : 0;
}

int DeviceCore::FindQpObjects(Session& session, const shm::CreateQpRequest& request,
                              DeviceQp* qp) const {
  qp->pd = session.pds.Find(request.pd);
  qp->send_cq = session.cqs.Find(request.send_cq);
  qp->recv_cq = session.cqs.Find(request.recv_cq);
  if (qp->pd == nullptr || qp->send_cq == nullptr || qp->recv_cq == nullptr) return EINVAL;
  // A CQ in error takes no completions: its QP could never report anything.
  if (qp->send_cq->is_in_error || qp->recv_cq->is_in_error) return EINVAL;
  if (request.td != 0) {
    qp->td = session.tds.Find(request.td);
    if (qp->td == nullptr) return EINVAL;
  }
  if (request.srq == 0) return 0;
  qp->srq = session.srqs.Find(request.srq);
  if (qp->srq == nullptr || qp->srq->pd != qp->pd || qp->srq->is_in_error) return EINVAL;
  return 0;
}

int DeviceCore::AllocateQpQueues(const shm::CreateQpRequest& request, DeviceQp* qp) {
  const Session& session = *qp->session;
  if (qp->srq != nullptr && request.rq_memory != 0) return EINVAL;
  int error =
      AllocateWorkQueue(session, WorkQueueEntries(request.max_send_wr),
                        SendEntryBytes(qp->config.max_send_sge, qp->config.max_inline_bytes),
                        request.sq_memory, &qp->send_queue, &qp->send_ring, &qp->send_entries);
  if (error != 0 || qp->srq != nullptr) return error;
  error = AllocateWorkQueue(session, WorkQueueEntries(request.max_recv_wr),
                            RecvEntryBytes(qp->config.max_recv_sge), request.rq_memory,
                            &qp->recv_queue, &qp->recv_ring, &qp->recv_entries);
  if (error != 0) Discard(session, qp->send_queue, qp->send_entries);
  return error;
}

int DeviceCore::CreateQp(Command& command) {
  Session& session = *command.session;
  Nic& nic = *session.nic;
  auto request = command.Request<shm::CreateQpRequest>();
  if (int error = CheckQpLimits(nic, request); error != 0) return error;
  auto owned = std::make_unique<DeviceQp>(this);
  DeviceQp* qp = owned.get();
  qp->session = &session;
  qp->nic = &nic;
  qp->cookie = request.cookie;
  if (int error = FindQpObjects(session, request, qp); error != 0) return error;

  if (session.qps.IsFull()) return ENOMEM;
  transport::QpConfig& config = qp->config;
  config.service = static_cast<Service>(request.service);
  config.sq_sig_all = request.sq_sig_all != 0;
  config.has_srq = qp->srq != nullptr;
  config.truncates = config.has_srq && qp->srq->truncates;
  config.writes_take_no_receive = config.has_srq && qp->srq->marked != nullptr;
  // Depths are reported as what the ring holds: at least what was asked for.
  config.max_send_wr = WorkQueueEntries(request.max_send_wr);
  config.max_recv_wr = config.has_srq ? 0 : WorkQueueEntries(request.max_recv_wr);
  config.max_send_sge = std::max(request.max_send_sge, 1u);
  config.max_recv_sge = config.has_srq ? qp->srq->max_sge : std::max(request.max_recv_sge, 1u);
  // An entry has as much room as its SGEs need. As rxe_qp_init_req, say so: rdma_xclient and others
  // send inline without asking for it.
  config.max_inline_bytes =
      std::max(request.max_inline_bytes,
               std::min(config.max_send_sge * static_cast<uint32_t>(sizeof(shm::Sge)),
                        nic.limits().max_inline_bytes));
  SetNicLimits(nic, &config);
  config.reports_release = config.service != Service::kRc;  // RC has acknowledges for that

  if (int error = AllocateQpNumbers(qp); error != 0) return error;
  if (int error = AllocateQpQueues(request, qp); error != 0) {
    nic.qpns.Free(qp->qpn);
    session.doorbells.Free(qp->doorbell);
    return error;
  }
  qp->handle = session.qps.Insert(std::move(owned));
  InstallQp(*qp);
  ReplyCreated(command, *qp);
  return 0;
}

void DeviceCore::SetNicLimits(const Nic& nic, transport::QpConfig* config) {
  config->max_message_bytes = nic.limits().max_message_bytes;
  config->port_mtu_bytes = nic.config().mtu_bytes;
  config->max_rd_atomic = nic.limits().max_qp_rd_atom;
  config->max_dest_rd_atomic = nic.limits().max_qp_rd_atom;
  config->max_pdu_bytes = nic.limits().max_message_bytes;
}

int DeviceCore::AllocateQpNumbers(DeviceQp* qp) {
  const uint32_t page = qp->td != nullptr ? qp->td->page : DoorbellTable::kNoPage;
  qp->doorbell = qp->session->doorbells.AllocateIn(page, qp);
  if (qp->doorbell == 0) return ENOMEM;
  qp->qpn = qp->nic->qpns.Allocate(qp);
  if (qp->qpn == Qpn{0}) {
    qp->session->doorbells.Free(qp->doorbell);
    return ENOMEM;
  }
  qp->config.qpn = qp->qpn;
  return 0;
}

void DeviceCore::InstallQp(DeviceQp& qp) {
  uint32_t slot;
  if (!free_qp_slots_.IsEmpty()) {
    slot = free_qp_slots_.Pop(qp_slots_);
  } else {
    slot = static_cast<uint32_t>(qp_slots_.size());
    qp_slots_.emplace_back();
  }
  qp_slots_[slot].qp = &qp;
  if (qp.service() == Service::kUd && qp.nic->ud_qps++ == 0) WantGrh(*qp.nic);
  qp.self = {slot, next_life_++};
  qp.stream = next_stream_++;
  qp.transport = make_transport_(qp.config, &qp);
  qp.send_cq->senders.PushBack(qp.send_cq_hook);
  qp.recv_cq->receivers.PushBack(qp.recv_cq_hook);
  ++qp.send_cq->users;
  ++qp.recv_cq->users;
  ++qp.pd->users;
  if (qp.srq != nullptr) ++qp.srq->users;
  if (qp.td != nullptr) ++qp.td->users;
  ++qp.nic->counts.qps;
}

void DeviceCore::ReplyCreated(Command& command, const DeviceQp& qp) {
  shm::CreateQpReply reply{};
  reply.qp = qp.handle;
  reply.qpn = qp.qpn.value;
  reply.max_send_wr = qp.config.max_send_wr;
  reply.max_recv_wr = qp.config.max_recv_wr;
  reply.max_send_sge = qp.config.max_send_sge;
  reply.max_recv_sge = qp.srq != nullptr ? 0 : qp.config.max_recv_sge;
  reply.max_inline_bytes = qp.config.max_inline_bytes;
  reply.sq = PlaceOf(qp.send_queue, qp.send_ring, qp.doorbell);
  // Receives share the doorbell: those posted to a QP in the error state are flushed at once.
  if (qp.srq == nullptr) reply.rq = PlaceOf(qp.recv_queue, qp.recv_ring, qp.doorbell);
  command.Reply(reply);
}

int DeviceCore::ModifyQp(Command& command) {
  auto request = command.Request<shm::ModifyQpRequest>();
  DeviceQp* qp = command.session->qps.Find(request.qp);
  if (qp == nullptr) return EINVAL;
  if (int error = Modify(*qp, request); error != 0) return error;
  QpState state = qp->transport->state();
  command.Reply(shm::ModifyQpReply{static_cast<uint32_t>(state), 0});
  if (state == QpState::kReset) {
    Retired retired;
    ResetQp(*qp, &retired);
    FinishAfterFence(command, std::move(retired));
  }
  AfterInput(*qp);
  return 0;
}

int DeviceCore::Modify(DeviceQp& qp, shm::ModifyQpRequest& request) {
  if (int error = CheckRate(request); error != 0) return error;
  if (request.has_peer_psn != 0) {
    const bool ends = request.mask == shm::qp_mask::kState &&
                      request.attr.qp_state == static_cast<uint32_t>(QpState::kErr);
    if (qp.service() != Service::kRc || !ends) return EINVAL;
    qp.transport->OnPdu(now_, AckBefore(Psn(request.peer_psn)));
  }
  if ((request.mask & shm::qp_mask::kAv) != 0) ResolveLid(*qp.nic, &request.attr.ah_attr);
  bool has_path = (request.mask & (shm::qp_mask::kAv | shm::qp_mask::kPathMtu)) ==
                  (shm::qp_mask::kAv | shm::qp_mask::kPathMtu);
  Gid dgid;
  std::memcpy(dgid.raw.data(), request.attr.ah_attr.dgid, dgid.raw.size());
  if (has_path && qp.transport->state() == QpState::kInit) {
    qp.path_mtu_bytes = 128u << std::clamp(request.attr.path_mtu, 1u, 5u);
    LeadTo(qp, dgid);
  }
  const Gid old_dgid = qp.transport->path().dgid;
  transport::ModifyResult result = qp.transport->Modify(now_, request.attr, request.mask);
  if (result.error != 0) return result.error;
  if ((request.mask & shm::qp_mask::kAv) != 0) {
    ++path_epoch_;
    //= IBTA 10.3.1.5: nothing is under way, and what comes may go elsewhere
    if (qp.transport->state() == QpState::kSqd && dgid != old_dgid) LeadTo(qp, dgid);
  }
  if ((request.mask & shm::qp_mask::kRateLimit) != 0) {
    SetRate(qp, request.attr.rate_limit, request.max_burst_bytes);
  }
  return 0;
}

void DeviceCore::ResetQp(DeviceQp& qp, Retired* retired) {
  ReturnHeld(qp, retired);
  retired->others.Add(std::exchange(qp.owners, {}));
  qp.self.life = next_life_++;
  qp.is_blocked = qp.is_paced = false;
  // What is under way ends for the life before.
  qp.reads_in_flight = qp.moves_in_flight = 0;
  qp.held_up_since = Instant::Never();
  qp.has_more_output = false;
  qp.peer = {};
  qp.last_stream = 0;
  qp.send_ring.Reset();
  if (qp.srq == nullptr) qp.recv_ring.Reset();
  // What is being fetched is for the life before.
  qp.send_entries.is_busy = qp.recv_entries.is_busy = false;
  qp.awaits_srq = false;
  timers_.Remove(qp.timer);
  SetRate(qp, 0, 0);
  DropWaiting(qp);
  DropTx(qp);
  LeavePeer(qp);
}

int DeviceCore::QueryQp(Command& command) {
  DeviceQp* qp = command.session->qps.Find(command.Request<shm::HandleRequest>().handle);
  if (qp == nullptr) return EINVAL;
  shm::QueryQpReply reply{};
  qp->transport->Query(reply.attr);
  reply.attr.qp_state = static_cast<uint32_t>(qp->transport->state());
  reply.attr.max_send_wr = qp->config.max_send_wr;
  reply.attr.max_recv_wr = qp->config.max_recv_wr;
  reply.attr.max_send_sge = qp->config.max_send_sge;
  reply.attr.max_recv_sge = qp->srq != nullptr ? 0 : qp->config.max_recv_sge;
  reply.attr.max_inline_bytes = qp->config.max_inline_bytes;
  const transport::SendProgress progress = qp->transport->Progress();
  reply.unacked_psn = progress.unacked_psn.value();
  reply.has_unfinished = progress.has_unfinished;
  reply.awaits_receive = progress.awaits_receive;
  command.Reply(reply);
  return 0;
}

// The QP is gone for everybody now; the command ends when no DMA of its work is in flight.
int DeviceCore::DestroyQp(Command& command) {
  DeviceQp* qp = command.session->qps.Find(command.Request<shm::HandleRequest>().handle);
  if (qp == nullptr) return ENOENT;
  if (!qp->mcast_groups.empty()) return EBUSY;
  Retired retired;
  RemoveQp(*qp, &retired);
  FinishAfterFence(command, std::move(retired));
  return 0;
}

void DeviceCore::RemoveQp(DeviceQp& qp, Retired* retired) {
  Session& session = *qp.session;
  qp.windows.ForEach([this](Mw& mw) { UnbindWindow(mw); });
  ReturnHeld(qp, retired);
  retired->others.Add(qp.owners);
  qp.counters.Set({});
  DropWaiting(qp);
  DropTx(qp);
  LeavePeer(qp);
  // What was dropped, here or with a QP that went before it, may have been this one's own.
  if (qp.is_in_drain) std::erase(drain_, &qp);
  timers_.Remove(qp.timer);
  SetRate(qp, 0, 0);
  qp.ready_hook.Unlink();
  if (session.ready.IsEmpty()) session.ready_hook.Unlink();
  qp.send_cq_hook.Unlink();
  qp.recv_cq_hook.Unlink();
  --qp.send_cq->users;
  --qp.recv_cq->users;
  --qp.pd->users;
  if (qp.srq != nullptr) --qp.srq->users;
  if (qp.td != nullptr) --qp.td->users;
  --qp.nic->counts.qps;
  if (qp.service() == Service::kUd && --qp.nic->ud_qps == 0) WantGrh(*qp.nic);
  qp.nic->qpns.Free(qp.qpn);
  if (qp.doorbell != 0) session.doorbells.Free(qp.doorbell);
  qp_slots_[qp.self.slot].qp = nullptr;
  free_qp_slots_.Push(qp_slots_, qp.self.slot);
  if (qp.place != nullptr) {
    session.lanes.Remove(qp.handle);  // it has no queues
    return;
  }
  Retire(session, qp.send_queue, qp.send_entries, retired);
  if (qp.srq == nullptr) Retire(session, qp.recv_queue, qp.recv_entries, retired);
  session.qps.Remove(qp.handle);
}

}  // namespace verbena::softnic
