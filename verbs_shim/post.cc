// Posting work requests: each list is checked, copied into the queue, published once, and announced
// by one doorbell.
#include "verbs_shim/post.h"

#include "verbs_shim/ece.h"

namespace verbena::verbs {
namespace {

constexpr uint64_t kAtomicBytes = 8;

uint64_t TotalBytes(const ibv_sge* sge, int num_sge) {
  uint64_t bytes = 0;
  for (int i = 0; i < num_sge; ++i) bytes += sge[i].length;
  return bytes;
}

// EINVAL for what no queue of this service takes, EOPNOTSUPP for what its ECE options leave out.
// What only the NIC can judge (keys, states that changed meanwhile) comes back as a completion.
int CheckSend(const Qp& qp, const ibv_send_wr& wr) {
  ibv_qp_type type = qp.ex.ex.qp_base.qp_type;
  if (!OpcodeAllowed(type, wr.opcode)) return EINVAL;
  if (!EceAllows(qp, wr.opcode)) return EOPNOTSUPP;
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > qp.sq.max_sge) return EINVAL;
  if (type == IBV_QPT_UD && wr.wr.ud.ah == nullptr) return EINVAL;
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    if (!OpcodeCarriesData(wr.opcode)) return EINVAL;
    const uint64_t bytes = TotalBytes(wr.sg_list, wr.num_sge);
    if (wr.opcode == IBV_WR_ATOMIC_WRITE) return bytes == kAtomicBytes ? 0 : EINVAL;
    if (bytes > qp.max_inline_bytes) return EINVAL;
  }
  if (wr.opcode == IBV_WR_BIND_MW) {
    return CheckBind(wr.bind_mw.mw, wr.bind_mw.bind_info, IBV_MW_TYPE_2);
  }
  // Its eight bytes travel in the request itself.
  return wr.opcode == IBV_WR_ATOMIC_WRITE ? EINVAL : 0;
}

void CopyInline(const ibv_send_wr& wr, shm::SendWqe* wqe) {
  const auto bytes = static_cast<uint32_t>(TotalBytes(wr.sg_list, wr.num_sge));
  std::byte* out = shm::PlaceSendBody(wqe, bytes);
  for (int i = 0; i < wr.num_sge; ++i) {
    const ibv_sge& sge = wr.sg_list[i];
    CopyBytes(out, reinterpret_cast<const void*>(sge.addr), sge.length);
    out += sge.length;
  }
  wqe->inline_bytes = bytes;
  wqe->num_sge = 0;
}

void FillAtomicWrite(const ibv_send_wr& wr, shm::SendWqe* wqe) {
  auto* out = reinterpret_cast<char*>(&wqe->atomic.compare_add);
  for (int i = 0; i < wr.num_sge; ++i) {
    CopyBytes(out, reinterpret_cast<const void*>(wr.sg_list[i].addr), wr.sg_list[i].length);
    out += wr.sg_list[i].length;
  }
  wqe->flags &= static_cast<uint8_t>(~shm::kSendInline);
  wqe->inline_bytes = 0;
  wqe->num_sge = 0;
}

void FillSend(const Qp& qp, const ibv_send_wr& wr, shm::SendWqe* wqe) {
  wqe->wr_id = wr.wr_id;
  wqe->opcode = static_cast<uint8_t>(wr.opcode);
  wqe->flags = static_cast<uint8_t>(wr.send_flags);
  wqe->reserved0 = 0;
  wqe->imm_or_rkey = wr.imm_data;  // shares its place with invalidate_rkey
  wqe->srqn = 0;
  if (wr.opcode == IBV_WR_BIND_MW) {
    FillBind(qp, wr.bind_mw.mw, wr.bind_mw.rkey, wr.bind_mw.bind_info, wqe);
    return;
  }
  if (qp.ex.ex.qp_base.qp_type == IBV_QPT_UD) {
    wqe->remote_addr = 0;
    wqe->rkey = 0;
    wqe->ah = HandleIn(qp.context, wr.wr.ud.ah);
    wqe->remote_qpn = wr.wr.ud.remote_qpn;
    wqe->remote_qkey = wr.wr.ud.remote_qkey;
  } else if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    wqe->remote_addr = wr.wr.atomic.remote_addr;
    wqe->rkey = wr.wr.atomic.rkey;
    wqe->atomic.compare_add = wr.wr.atomic.compare_add;
    wqe->atomic.swap = wr.wr.atomic.swap;
  } else {
    wqe->remote_addr = wr.wr.rdma.remote_addr;
    wqe->rkey = wr.wr.rdma.rkey;
  }
  if (wr.opcode == IBV_WR_ATOMIC_WRITE) return FillAtomicWrite(wr, wqe);
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    CopyInline(wr, wqe);
    return;
  }
  wqe->inline_bytes = 0;
  wqe->num_sge = static_cast<uint8_t>(wr.num_sge);
  const size_t sge_bytes = static_cast<size_t>(wr.num_sge) * sizeof(shm::Sge);
  CopyBytes(shm::PlaceSendBody(wqe, sge_bytes), wr.sg_list, sge_bytes);
}

int PostOneSend(Qp* qp, const ibv_send_wr& wr) {
  int error = CheckSend(*qp, wr);
  if (error != 0) return error;
  auto* wqe = static_cast<shm::SendWqe*>(qp->sq.ring.Reserve());
  if (wqe == nullptr) return ENOMEM;
  FillSend(*qp, wr, wqe);
  return 0;
}

int PostOneRecv(PostQueue* queue, const ibv_recv_wr& wr) {
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > queue->max_sge) return EINVAL;
  auto* wqe = static_cast<shm::RecvWqe*>(queue->ring.Reserve());
  if (wqe == nullptr) return ENOMEM;
  wqe->wr_id = wr.wr_id;
  wqe->num_sge = static_cast<uint32_t>(wr.num_sge);
  wqe->reserved0 = 0;
  CopyBytes(wqe + 1, wr.sg_list, static_cast<size_t>(wr.num_sge) * sizeof(shm::Sge));
  return 0;
}

// Posts a list. What precedes a bad request stays posted, as the verb says. `is_to_ring` says of
// the queue whether the NIC has to be told.
template <typename Wr, typename PostOne, typename IsToRing>
int PostList(Context* context, PostQueue* queue, Wr* wr, Wr** bad_wr, PostOne post_one,
             IsToRing is_to_ring) {
  int error = 0;
  {
    SpinGuard guard(queue->lock);
    Wr* first = wr;
    while (wr != nullptr) {
      error = post_one(*wr);
      if (error != 0) {
        *bad_wr = wr;
        break;
      }
      wr = wr->next;
    }
    if (wr == first) return error;
    queue->ring.Publish();
    if (!is_to_ring()) return error;
  }
  context->session->RingDoorbell(queue->doorbell);
  return error;
}

template <typename Wr>
int Refuse(int error, Wr* wr, Wr** bad_wr) {
  *bad_wr = wr;
  return error;
}

int PostReceives(Context* context, PostQueue* queue, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  if (__builtin_expect(context->session->KnownDead(), 0)) return Refuse(EIO, wr, bad_wr);
  return PostList(
      context, queue, wr, bad_wr,
      [queue](const ibv_recv_wr& one) { return PostOneRecv(queue, one); },
      [queue] { return queue->ring.WantsDoorbell(); });
}

}  // namespace

// Errors: EINVAL: the QP is not ready to send, or the request is wrong (*bad_wr); ENOMEM: the queue
// is full; EIO: the daemon is gone.
int PostSend(ibv_qp* base, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  Qp* qp = ToQp(base);
  if (!ReadyToSend(*qp)) return Refuse(EINVAL, wr, bad_wr);
  if (__builtin_expect(qp->context->session->KnownDead(), 0)) return Refuse(EIO, wr, bad_wr);
  qp->context->session->PrepareDoorbell(qp->sq.doorbell);
  return PostList(
      qp->context, &qp->sq, wr, bad_wr,
      [qp](const ibv_send_wr& one) { return PostOneSend(qp, one); },
      [qp] {
        NotePost(qp);
        return true;
      });
}

// Errors: EINVAL: the QP is in RESET or has an SRQ, or too many SGEs; ENOMEM; EIO.
int PostRecv(ibv_qp* base, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  Qp* qp = ToQp(base);
  if (!qp->has_rq || qp->state.load(std::memory_order_relaxed) == IBV_QPS_RESET) {
    return Refuse(EINVAL, wr, bad_wr);
  }
  return PostReceives(qp->context, &qp->rq, wr, bad_wr);
}

// Errors: EINVAL: too many SGEs; ENOMEM; EIO.
int PostSrqRecv(ibv_srq* base, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  Srq* srq = ToSrq(base);
  return PostReceives(srq->context, &srq->queue, wr, bad_wr);
}

}  // namespace verbena::verbs
