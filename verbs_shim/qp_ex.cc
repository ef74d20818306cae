// Extended QPs: work requests built by ibv_wr_* calls between ibv_wr_start and ibv_wr_complete.
//
// The requests go straight into the queue, unpublished. An error is kept until ibv_wr_complete
// reports it; then, as after ibv_wr_abort, nothing of the batch was posted.
#include "verbs_shim/ece.h"
#include "verbs_shim/post.h"

namespace verbena::verbs {
namespace {

shm::SendWqe* SetError(Qp* qp, int error) {
  if (qp->wr_error == 0) qp->wr_error = error;
  qp->wr = nullptr;
  return nullptr;
}

// Begins the next request with the program's wr_id and wr_flags. nullptr after an error.
shm::SendWqe* Begin(ibv_qp_ex* base, ibv_wr_opcode opcode) {
  Qp* qp = ToQp(base);
  if (qp->wr_error != 0) return nullptr;
  auto* wqe = static_cast<shm::SendWqe*>(qp->sq.ring.Reserve());
  if (wqe == nullptr) return SetError(qp, ENOMEM);
  ++qp->wr_count;
  *wqe = {};
  wqe->wr_id = base->wr_id;
  wqe->opcode = static_cast<uint8_t>(opcode);
  // Inline is decided by the setter of the data, not by the flag.
  wqe->flags = static_cast<uint8_t>(base->wr_flags & ~uint32_t{IBV_SEND_INLINE});
  qp->wr = wqe;
  return wqe;
}

shm::SendWqe* BeginRemote(ibv_qp_ex* base, ibv_wr_opcode opcode, uint32_t rkey, uint64_t addr) {
  shm::SendWqe* wqe = Begin(base, opcode);
  if (wqe != nullptr) {
    wqe->rkey = rkey;
    wqe->remote_addr = addr;
  }
  return wqe;
}

void WrSend(ibv_qp_ex* qp) { Begin(qp, IBV_WR_SEND); }
void WrSendImm(ibv_qp_ex* qp, __be32 imm_data) {
  if (shm::SendWqe* wqe = Begin(qp, IBV_WR_SEND_WITH_IMM)) wqe->imm_or_rkey = imm_data;
}
void WrSendInv(ibv_qp_ex* qp, uint32_t rkey) {
  if (shm::SendWqe* wqe = Begin(qp, IBV_WR_SEND_WITH_INV)) wqe->imm_or_rkey = rkey;
}
void WrRdmaWrite(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr) {
  BeginRemote(qp, IBV_WR_RDMA_WRITE, rkey, addr);
}
void WrRdmaWriteImm(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, __be32 imm_data) {
  shm::SendWqe* wqe = BeginRemote(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr);
  if (wqe != nullptr) wqe->imm_or_rkey = imm_data;
}
void WrRdmaRead(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr) {
  BeginRemote(qp, IBV_WR_RDMA_READ, rkey, addr);
}
void WrAtomicCmpSwp(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap) {
  shm::SendWqe* wqe = BeginRemote(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr);
  if (wqe != nullptr) wqe->atomic = {compare, swap};
}
void WrAtomicFetchAdd(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, uint64_t add) {
  shm::SendWqe* wqe = BeginRemote(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr);
  if (wqe != nullptr) wqe->atomic = {add, 0};
}
// Begins an operation that the peer need not know.
shm::SendWqe* BeginPlacement(ibv_qp_ex* base, ibv_wr_opcode opcode, uint32_t rkey, uint64_t addr) {
  Qp* qp = ToQp(base);
  return EceAllows(*qp, opcode) ? BeginRemote(base, opcode, rkey, addr) : SetError(qp, EOPNOTSUPP);
}
void WrAtomicWrite(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, const void* value) {
  shm::SendWqe* wqe = BeginPlacement(qp, IBV_WR_ATOMIC_WRITE, rkey, addr);
  if (wqe != nullptr) memcpy(&wqe->atomic.compare_add, value, sizeof(wqe->atomic.compare_add));
}

// What is refused here would only fail the QP later. A RETH has 32 bits for the length, which of a
// whole region nobody looks at.
void WrFlush(ibv_qp_ex* base, uint32_t rkey, uint64_t addr, size_t len, uint8_t type,
             uint8_t level) {
  shm::SendWqe* wqe = BeginPlacement(base, static_cast<ibv_wr_opcode>(kWrFlushV64), rkey, addr);
  if (wqe == nullptr) return;
  constexpr unsigned kTypes = kFlushGlobalV64 | kFlushPersistentV64;
  const bool is_known = type != 0 && (type & ~kTypes) == 0 && level <= kFlushMrV64;
  if (!is_known || (level == kFlushRangeV64 && len > UINT32_MAX)) {
    SetError(ToQp(base), EINVAL);
    return;
  }
  wqe->flush = {level == kFlushRangeV64 ? len : 0, type, level};
}

void WrLocalInv(ibv_qp_ex* qp, uint32_t rkey) {
  if (shm::SendWqe* wqe = Begin(qp, IBV_WR_LOCAL_INV)) wqe->imm_or_rkey = rkey;
}

void WrBindMw(ibv_qp_ex* base, ibv_mw* mw, uint32_t rkey, const ibv_mw_bind_info* info) {
  shm::SendWqe* wqe = Begin(base, IBV_WR_BIND_MW);
  if (wqe == nullptr) return;
  if (int error = CheckBind(mw, *info, IBV_MW_TYPE_2); error != 0) {
    SetError(ToQp(base), error);
    return;
  }
  FillBind(*ToQp(base), mw, rkey, *info, wqe);
}

void WrSetUdAddr(ibv_qp_ex* base, ibv_ah* ah, uint32_t remote_qpn, uint32_t remote_qkey) {
  Qp* qp = ToQp(base);
  if (qp->wr == nullptr) return;
  if (ah == nullptr) {
    SetError(qp, EINVAL);
    return;
  }
  qp->wr->ah = HandleIn(qp->context, ah);
  qp->wr->remote_qpn = remote_qpn;
  qp->wr->remote_qkey = remote_qkey;
}

void WrSetSgeList(ibv_qp_ex* base, size_t num_sge, const ibv_sge* sge) {
  Qp* qp = ToQp(base);
  if (qp->wr == nullptr) return;
  if (num_sge > qp->sq.max_sge) {
    SetError(qp, EINVAL);
    return;
  }
  const size_t bytes = num_sge * sizeof(shm::Sge);
  CopyBytes(shm::PlaceSendBody(qp->wr, bytes), sge, bytes);
  qp->wr->num_sge = static_cast<uint8_t>(num_sge);
  // Data given inline before count no more: what was said last does.
  qp->wr->flags &= static_cast<uint8_t>(~shm::kSendInline);
}
void WrSetSge(ibv_qp_ex* base, uint32_t lkey, uint64_t addr, uint32_t length) {
  ibv_sge sge = {addr, length, lkey};
  WrSetSgeList(base, 1, &sge);
}

void WrSetInlineDataList(ibv_qp_ex* base, size_t num_buf, const ibv_data_buf* buf) {
  Qp* qp = ToQp(base);
  if (qp->wr == nullptr) return;
  size_t bytes = 0;
  for (size_t i = 0; i < num_buf; ++i) {
    if (buf[i].length > qp->max_inline_bytes - bytes || !OpcodeCarriesData(qp->wr->opcode)) {
      SetError(qp, EINVAL);
      return;
    }
    bytes += buf[i].length;
  }
  std::byte* out = shm::PlaceSendBody(qp->wr, bytes);
  for (size_t i = 0; i < num_buf; ++i) {
    CopyBytes(out, buf[i].addr, buf[i].length);
    out += buf[i].length;
  }
  qp->wr->flags |= shm::kSendInline;
  qp->wr->inline_bytes = static_cast<uint32_t>(bytes);
}
void WrSetInlineData(ibv_qp_ex* base, void* addr, size_t length) {
  ibv_data_buf buf = {addr, length};
  WrSetInlineDataList(base, 1, &buf);
}

// Holds the send queue's lock until ibv_wr_complete or ibv_wr_abort.
void WrStart(ibv_qp_ex* base) {
  Qp* qp = ToQp(base);
  qp->context->session->PrepareDoorbell(qp->sq.doorbell);
  // A forked child may have inherited it locked for ever.
  if (!qp->context->session->IsForkedCopy()) qp->sq.lock.Lock();
  qp->wr = nullptr;
  qp->wr_count = 0;
  qp->wr_error = 0;
  if (!ReadyToSend(*qp)) {
    qp->wr_error = EINVAL;
  } else if (qp->context->session->KnownDead()) {
    qp->wr_error = EIO;
  }
}

void WrAbort(ibv_qp_ex* base) {
  Qp* qp = ToQp(base);
  qp->sq.ring.Unreserve(qp->wr_count);
  qp->wr = nullptr;
  qp->sq.lock.Unlock();
}

// 0, or the first error of the batch: EINVAL; ENOMEM: the queue is full; EIO: the daemon is gone.
int WrComplete(ibv_qp_ex* base) {
  Qp* qp = ToQp(base);
  int error = qp->wr_error;
  if (error != 0 || qp->wr_count == 0) {
    WrAbort(base);
    return error;
  }
  qp->sq.ring.Publish();
  NotePost(qp);
  qp->wr = nullptr;
  qp->sq.lock.Unlock();
  qp->context->session->RingDoorbell(qp->sq.doorbell);
  return 0;
}

}  // namespace

bool SendOpsSupported(ibv_qp_type type, uint64_t send_ops_flags) {
  constexpr uint64_t kUd = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
  constexpr uint64_t kUc = kUd | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_RDMA_WRITE |
                           IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_LOCAL_INV |
                           IBV_QP_EX_WITH_BIND_MW;
  constexpr uint64_t kRc = kUc | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                           IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_WRITE |
                           kQpExWithFlushV64;
  uint64_t supported = type == IBV_QPT_RC ? kRc : type == IBV_QPT_UC ? kUc : kUd;
  return (send_ops_flags & ~supported) == 0;
}

// An operation's pointer is set only if it was asked for, as in libibverbs.
void SetSendOps(Qp* qp, uint64_t flags) {
  ibv_qp_ex& ex = qp->ex.ex;
  if (flags & IBV_QP_EX_WITH_SEND) ex.wr_send = WrSend;
  if (flags & IBV_QP_EX_WITH_SEND_WITH_IMM) ex.wr_send_imm = WrSendImm;
  if (flags & IBV_QP_EX_WITH_SEND_WITH_INV) ex.wr_send_inv = WrSendInv;
  if (flags & IBV_QP_EX_WITH_RDMA_WRITE) ex.wr_rdma_write = WrRdmaWrite;
  if (flags & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM) ex.wr_rdma_write_imm = WrRdmaWriteImm;
  if (flags & IBV_QP_EX_WITH_RDMA_READ) ex.wr_rdma_read = WrRdmaRead;
  if (flags & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP) ex.wr_atomic_cmp_swp = WrAtomicCmpSwp;
  if (flags & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD) ex.wr_atomic_fetch_add = WrAtomicFetchAdd;
  if (flags & IBV_QP_EX_WITH_ATOMIC_WRITE) ex.wr_atomic_write = WrAtomicWrite;
  if (flags & kQpExWithFlushV64) qp->ex.wr_flush = WrFlush;
  if (flags & IBV_QP_EX_WITH_LOCAL_INV) ex.wr_local_inv = WrLocalInv;
  if (flags & IBV_QP_EX_WITH_BIND_MW) ex.wr_bind_mw = WrBindMw;
  ex.wr_set_ud_addr = WrSetUdAddr;
  ex.wr_set_sge = WrSetSge;
  ex.wr_set_sge_list = WrSetSgeList;
  ex.wr_set_inline_data = WrSetInlineData;
  ex.wr_set_inline_data_list = WrSetInlineDataList;
  ex.wr_start = WrStart;
  ex.wr_complete = WrComplete;
  ex.wr_abort = WrAbort;
}

}  // namespace verbena::verbs
