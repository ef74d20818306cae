// Memory windows. What only the NIC can judge, states and keys, comes back as the completion of the
// bind (IBV_WC_MW_BIND_ERR).
#include <new>

#include "verbs_shim/post.h"

namespace verbena::verbs {
namespace {

// ibv_bind_mw(3), and LOCAL_WRITE, which rdma-core's own tests pass and every driver ignores.
constexpr unsigned kWindowAccess =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
    IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | access::kFlushGlobal | access::kOptionalMask;

// Errors: EINVAL: no such type; ENOMEM.
ibv_mw* AllocMw(ibv_pd* pd, ibv_mw_type type) {
  auto* mw = new (std::nothrow) Mw();
  if (mw == nullptr) return Fail<ibv_mw>(ENOMEM);
  shm::AllocMwRequest request = {pd->handle, static_cast<uint32_t>(type)};
  shm::AllocMwReply reply = {};
  int error = Execute(ToContext(pd->context), shm::CommandOp::kAllocMw, request, &reply);
  if (error != 0) {
    delete mw;
    return Fail<ibv_mw>(error);
  }
  mw->base.context = pd->context;
  mw->base.pd = pd;
  mw->base.handle = reply.mw;
  mw->base.rkey = reply.rkey;
  mw->base.type = type;
  Use(pd);
  return &mw->base;
}

int DeallocMw(ibv_mw* mw) {
  int error = ExecuteDestroy(ToContext(mw->context), shm::CommandOp::kDeallocMw, mw->handle);
  if (error != 0) return error;
  Unuse(mw->pd);
  delete ToMw(mw);
  return 0;
}

int CheckBindMw(const Qp& qp, const ibv_mw* mw, const ibv_mw_bind& bind) {
  const ibv_mw_bind_info& info = bind.bind_info;
  if (int error = CheckBind(mw, info, IBV_MW_TYPE_1); error != 0) return error;
  if (!OpcodeAllowed(qp.ex.ex.qp_base.qp_type, IBV_WR_BIND_MW) || !ReadyToSend(qp)) return EINVAL;
  if ((bind.send_flags & ~unsigned{IBV_SEND_FENCE | IBV_SEND_SIGNALED}) != 0) return EINVAL;
  if (info.mr == nullptr && (info.addr != 0 || info.length != 0)) return EINVAL;
  if (info.mr != nullptr && info.mr->pd != mw->pd) return EPERM;
  return qp.context->session->KnownDead() ? EIO : 0;
}

// Type 1: the new key is the library's to choose, and is in mw->rkey when this returns 0.
// Errors: EINVAL; EPERM: the region is another PD's; ENOMEM: the queue is full; EIO.
int BindMw(ibv_qp* base, ibv_mw* mw, ibv_mw_bind* bind) {
  Qp* qp = ToQp(base);
  if (int error = CheckBindMw(*qp, mw, *bind); error != 0) return error;
  qp->context->session->PrepareDoorbell(qp->sq.doorbell);
  {
    SpinGuard guard(qp->sq.lock);
    auto* wqe = static_cast<shm::SendWqe*>(qp->sq.ring.Reserve());
    if (wqe == nullptr) return ENOMEM;
    *wqe = {};
    wqe->wr_id = bind->wr_id;
    wqe->opcode = IBV_WR_BIND_MW;
    wqe->flags = static_cast<uint8_t>(bind->send_flags);
    const uint32_t rkey = ibv_inc_rkey(mw->rkey);
    FillBind(*qp, mw, rkey, bind->bind_info, wqe);
    mw->rkey = rkey;
    qp->sq.ring.Publish();
  }
  qp->context->session->RingDoorbell(qp->sq.doorbell);
  return 0;
}

// Keys count by NIC: the number of another one's may be that of some region here.
uint32_t LKeyIn(const Context& context, const ibv_mr* mr) {
  return mr != nullptr && mr->context->device == context.vctx.context.device ? mr->lkey : 0;
}

}  // namespace

int CheckBind(const ibv_mw* mw, const ibv_mw_bind_info& info, ibv_mw_type type) {
  if (mw == nullptr || mw->type != type) return EINVAL;
  if ((info.mw_access_flags & ~kWindowAccess) != 0) return EINVAL;
  if (type == IBV_MW_TYPE_2) return info.mr == nullptr ? EINVAL : 0;
  return (info.mw_access_flags & IBV_ACCESS_ZERO_BASED) != 0 ? EINVAL : 0;
}

void FillBind(const Qp& qp, const ibv_mw* mw, uint32_t rkey, const ibv_mw_bind_info& info,
              shm::SendWqe* wqe) {
  wqe->num_sge = 0;
  wqe->inline_bytes = 0;
  wqe->imm_or_rkey = rkey;
  wqe->rkey = LKeyIn(*qp.context, info.mr);
  wqe->remote_addr = info.addr;
  wqe->bind.length = info.length;
  wqe->bind.mw = HandleIn(qp.context, mw);
  wqe->bind.access = info.mw_access_flags;
}

void SetWindowOps(ibv_context_ops* ops) {
  ops->alloc_mw = AllocMw;
  ops->bind_mw = BindMw;
  ops->dealloc_mw = DeallocMw;
}

}  // namespace verbena::verbs
