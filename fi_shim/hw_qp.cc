// Queues of the NIC: made, set to their states, and destroyed, by commands.
#include "fi_shim/hw_qp.h"

#include <cstring>

#include "core/clock/monotonic_clock.h"
#include "fi_shim/endpoint.h"

namespace verbena::fi {
namespace {

bool MapQueue(Domain* domain, const shm::QueuePlace& place, uint32_t max_wr,
              WorkQueueProducer* ring) {
  RingMemory memory = domain->session->MapRing(place);
  if (!memory.IsValid()) return false;
  *ring = WorkQueueProducer(memory, place.entries, place.stride_bytes, max_wr);
  return true;
}

void Destroy(Domain* domain, shm::CommandOp op, shm::Handle handle) {
  const shm::HandleRequest request = {handle, 0};
  domain->session->Execute(op, &request, sizeof(request), nullptr, 0);
}

void DropCompletions(HwCq* hw, shm::Handle qp) {
  if (hw == nullptr) return;
  Guard guard(hw->lock);
  hw->ring.Remove([qp](const shm::Cqe& cqe) {
    if (cqe.qp_handle != qp) return false;
    ForgetReceive(cqe);
    return true;
  });
}

}  // namespace

int CreateHwQp(Domain* domain, const QpSpec& spec, HwQp* out) {
  shm::CreateQpRequest request = {};
  request.pd = spec.pd;
  request.send_cq = spec.send_cq->handle;
  request.recv_cq = spec.recv_cq->handle;
  request.srq = spec.srq;
  request.cookie = spec.cookie;
  request.service = static_cast<uint32_t>(spec.service);
  request.max_send_wr = spec.max_send_wr;
  request.max_send_sge = spec.max_send_sge;
  request.max_inline_bytes = spec.max_inline_bytes;
  shm::CreateQpReply reply = {};
  const int error = Execute(domain, shm::CommandOp::kCreateQp, request, &reply);
  if (error != 0) return error;
  if (!MapQueue(domain, reply.sq, reply.max_send_wr, &out->sq)) {
    Destroy(domain, shm::CommandOp::kDestroyQp, reply.qp);
    return -FI_ENOMEM;
  }
  out->doorbell.number = reply.sq.doorbell;
  out->domain = domain;
  out->handle = reply.qp;
  out->qpn = reply.qpn;
  out->max_send_sge = reply.max_send_sge;
  out->max_inline_bytes = reply.max_inline_bytes;
  out->send_cq = spec.send_cq;
  out->recv_cq = spec.recv_cq;
  return 0;
}

void DestroyHwQp(HwQp* qp) {
  if (qp->handle == 0) return;
  Destroy(qp->domain, shm::CommandOp::kDestroyQp, qp->handle);
  DropCompletions(qp->send_cq, qp->handle);
  if (qp->recv_cq != qp->send_cq) DropCompletions(qp->recv_cq, qp->handle);
  *qp = HwQp();
}

int ModifyHwQp(HwQp* qp, uint32_t mask, const shm::QpAttr& attr) {
  shm::ModifyQpRequest request = {};
  request.qp = qp->handle;
  request.mask = mask;
  request.attr = attr;
  shm::ModifyQpReply reply = {};
  return Execute(qp->domain, shm::CommandOp::kModifyQp, request, &reply);
}

int FailHwQp(HwQp* qp, std::optional<uint32_t> peer_psn) {
  shm::ModifyQpRequest request = {};
  request.qp = qp->handle;
  request.mask = shm::qp_mask::kState;
  request.attr.qp_state = static_cast<uint32_t>(QpState::kErr);
  request.has_peer_psn = peer_psn.has_value();
  request.peer_psn = peer_psn.value_or(0);
  shm::ModifyQpReply reply = {};
  return Execute(qp->domain, shm::CommandOp::kModifyQp, request, &reply);
}

int QueryHwQp(const HwQp& qp, shm::QueryQpReply* out) {
  return Execute(qp.domain, shm::CommandOp::kQueryQp, shm::HandleRequest{qp.handle, 0}, out);
}

bool IsWorthWaiting(const HwQp& qp, Linger* linger) {
  if (linger->is_over()) return false;
  shm::QueryQpReply now = {};
  if (QueryHwQp(qp, &now) != 0) return false;
  return linger->Waits(ReadMonotonicClock().ns / 1'000'000, now);
}

int InitHwQp(HwQp* qp, uint32_t access) {
  shm::QpAttr attr = {};
  attr.qp_state = static_cast<uint32_t>(QpState::kInit);
  attr.port_num = 1;
  attr.qp_access_flags = access;
  return ModifyHwQp(qp,
                    shm::qp_mask::kState | shm::qp_mask::kPkeyIndex | shm::qp_mask::kPort |
                        shm::qp_mask::kAccessFlags,
                    attr);
}

int CreateHwSrq(Domain* domain, shm::Handle pd, uint32_t max_wr, uint32_t max_sge, HwSrq* out) {
  shm::CreateSrqRequest request = {};
  request.pd = pd;
  request.max_wr = max_wr;
  request.max_sge = max_sge;
  request.flags = shm::kSrqMarked | shm::kSrqTruncates;
  shm::CreateSrqReply reply = {};
  const int error = Execute(domain, shm::CommandOp::kCreateSrq, request, &reply);
  if (error != 0) return error;
  if (!MapQueue(domain, reply.place, reply.max_wr, &out->ring)) {
    Destroy(domain, shm::CommandOp::kDestroySrq, reply.srq);
    return -FI_ENOMEM;
  }
  out->domain = domain;
  out->handle = reply.srq;
  out->max_sge = reply.max_sge;
  out->entries = reply.max_wr;
  return 0;
}

void DestroyHwSrq(HwSrq* srq) {
  if (srq->handle == 0) return;
  Destroy(srq->domain, shm::CommandOp::kDestroySrq, srq->handle);
  *srq = HwSrq();
}

}  // namespace verbena::fi
