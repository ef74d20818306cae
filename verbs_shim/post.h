// What a send queue accepts: shared by ibv_post_send and the ibv_wr_* calls.
#pragma once

#include <string.h>

#include "verbs_shim/objects.h"

namespace verbena::verbs {

// Programs pass null for no bytes, which memcpy does not allow.
inline void CopyBytes(void* to, const void* from, size_t bytes) {
  if (bytes != 0) memcpy(to, from, bytes);
}

// IBTA 10.8.2 (C10-29): requests are accepted from RTS on, and in ERR are flushed.
inline bool ReadyToSend(const Qp& qp) {
  uint32_t state = qp.state.load(std::memory_order_relaxed);
  return state != IBV_QPS_RESET && state != IBV_QPS_INIT && state != IBV_QPS_RTR;
}

// Something was published of its send queue. Under its lock.
inline void NotePost(Qp* qp) {
  PostOrder* order = qp->context->post_order.load(std::memory_order_acquire);
  if (order == nullptr) return;
  const PostLines next = {&qp->context, qp->sq.ring.head(), qp->sq.ring.NextEntry()};
  order->OnPost(qp->ex.ex.qp_base.handle, next).Expect();
}

// Spec: IBTA table 80 (operations per transport service).
inline bool OpcodeAllowed(ibv_qp_type type, uint32_t opcode) {
  constexpr uint32_t kUd = 1u << IBV_WR_SEND | 1u << IBV_WR_SEND_WITH_IMM;
  constexpr uint32_t kUc = kUd | 1u << IBV_WR_SEND_WITH_INV | 1u << IBV_WR_RDMA_WRITE |
                           1u << IBV_WR_RDMA_WRITE_WITH_IMM | 1u << IBV_WR_LOCAL_INV |
                           1u << IBV_WR_BIND_MW;
  constexpr uint32_t kRc = kUc | 1u << IBV_WR_RDMA_READ | 1u << IBV_WR_ATOMIC_CMP_AND_SWP |
                           1u << IBV_WR_ATOMIC_FETCH_AND_ADD | 1u << IBV_WR_ATOMIC_WRITE;
  uint32_t allowed = type == IBV_QPT_RC ? kRc : type == IBV_QPT_UC ? kUc : kUd;
  return opcode < 32 && (allowed >> opcode & 1) != 0;
}

// Whether the request's SGEs are read (and may so be given inline), not written.
inline bool OpcodeCarriesData(uint32_t opcode) {
  constexpr uint32_t kData = 1u << IBV_WR_SEND | 1u << IBV_WR_SEND_WITH_IMM |
                             1u << IBV_WR_SEND_WITH_INV | 1u << IBV_WR_RDMA_WRITE |
                             1u << IBV_WR_RDMA_WRITE_WITH_IMM | 1u << IBV_WR_ATOMIC_WRITE;
  return opcode < 32 && (kData >> opcode & 1) != 0;
}

// mw.cc. 0, or EINVAL for what no window takes; and the part of a WQE that says where to bind.
int CheckBind(const ibv_mw* mw, const ibv_mw_bind_info& info, ibv_mw_type type);
void FillBind(const Qp& qp, const ibv_mw* mw, uint32_t rkey, const ibv_mw_bind_info& info,
              shm::SendWqe* wqe);

}  // namespace verbena::verbs
