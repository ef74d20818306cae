// Receives: posted to a SRQ, completed, cancelled, and flushed when their endpoint is over.
#include <endian.h>

#include <cstring>

#include "core/shm/rdm.h"
#include "fi_shim/endpoint.h"

namespace verbena::fi {
namespace {

constexpr uint32_t kGrhBytes = 40;

size_t Bucket(uint64_t receiver) {
  receiver ^= receiver >> 32;
  return (receiver ^ receiver >> 6 ^ receiver >> 12) % ReceiveContext::kBuckets;
}

// The lock is held.
Endpoint* FindAnyone(ReceiveContext* receives, const HwCq* hw) {
  for (Endpoint* ep : receives->by_qp) {
    while (ep != nullptr && ep->rx_hw != hw) ep = ep->next_by_qp;
    if (ep != nullptr) return ep;
  }
  return nullptr;
}

// The list of a receive: its mark, where the GRH goes if one comes, and the program's buffers.
// 0 or a negative FI errno.
int FillList(ReceiveContext* receives, const ReceiveRequest& request, const Operation& operation,
             shm::RecvWqe* wqe) {
  auto* sge = reinterpret_cast<shm::Sge*>(wqe + 1);
  shm::RecvMark mark = {};
  if ((request.flags & FI_MULTI_RECV) != 0) {
    mark.flags |= shm::kRecvMulti;
    mark.min_free_bytes = static_cast<uint32_t>(receives->min_multi_recv_bytes);
  }
  if (receives->source_of != nullptr && request.source != FI_ADDR_UNSPEC) {
    const int error = receives->source_of(receives, request.source, &mark.source);
    if (error != 0) return error;
    if (mark.source != 0) mark.flags |= shm::kRecvDirected;
  }
  static_assert(sizeof(mark) == sizeof(*sge));
  memcpy(static_cast<void*>(sge++), &mark, sizeof(mark));
  if (receives->grhs != nullptr) {
    *sge++ = {reinterpret_cast<uint64_t>(receives->GrhOf(operation)), kGrhBytes,
              receives->grh_lkey};
  }
  for (size_t i = 0; i < request.iov_count; ++i) {
    const iovec& piece = request.iov[i];
    if (piece.iov_len == 0) continue;
    if (piece.iov_len > UINT32_MAX) return -FI_EINVAL;
    const void* desc = request.desc == nullptr ? nullptr : request.desc[i];
    uint32_t lkey;
    const int error = LocalKey(receives->domain, receives->whole_process_lkey, desc, &lkey);
    if (error != 0) return error;
    // A region of the domain's serves endpoints of any authorization key, for what is local.
    const bool is_others = receives->pd != receives->domain->pd;
    if (is_others && receives->whole_process_lkey != 0) lkey = receives->whole_process_lkey;
    *sge++ = {reinterpret_cast<uint64_t>(piece.iov_base), static_cast<uint32_t>(piece.iov_len),
              lkey};
  }
  wqe->num_sge = static_cast<uint32_t>(sge - reinterpret_cast<shm::Sge*>(wqe + 1));
  return 0;
}

int Fill(ReceiveContext* receives, const ReceiveRequest& request, Operation* operation,
         shm::RecvWqe* wqe) {
  wqe->wr_id = reinterpret_cast<uint64_t>(operation);
  wqe->reserved0 = 0;
  const int error = FillList(receives, request, *operation, wqe);
  if (error != 0) return error;
  operation->context = request.context;
  operation->flags = FI_RECV | FI_MSG;
  operation->is_multi = (request.flags & FI_MULTI_RECV) != 0;
  operation->is_cancelled = false;
  operation->messages = 0;
  operation->buf = request.iov_count != 0 ? request.iov[0].iov_base : nullptr;
  operation->len = 0;
  for (size_t i = 0; i < request.iov_count; ++i) operation->len += request.iov[i].iov_len;
  operation->peer = request.source;
  operation->wants_completion = (request.flags & FI_COMPLETION) != 0;
  return 0;
}

bool IsReleased(const Operation& operation, const shm::Cqe& cqe) {
  return !operation.is_multi || (cqe.wc_flags & shm::kWcRecvReleased) != 0;
}

// What was posted, and the operation to its pool if this is the end of it: under the lock under
// which it was posted. `is_cancelled` of what it returns: that it ends is still to be told.
Operation Take(Operation* operation, const shm::Cqe& cqe) {
  ReceiveContext* receives = operation->receives;
  Guard guard(receives->lock);
  ++operation->messages;
  Operation posted = *operation;
  posted.is_cancelled = posted.is_cancelled && posted.messages == posted.messages_in_all;
  if (posted.is_cancelled || IsReleased(posted, cqe)) receives->operations.Give(operation);
  return posted;
}

void Tell(Endpoint* ep, bool is_wanted, const Completion& completion) {
  Count(ep->cntr_rx);
  if (ep->rx_cq != nullptr && (is_wanted || !ep->rx_selective)) Complete(ep->rx_cq, completion);
}

void TellFailure(Endpoint* ep, const Failure& failure) {
  CountError(ep->cntr_rx);
  if (ep->rx_cq != nullptr) Fail(ep->rx_cq, failure);
}

void TellCancelled(Endpoint* ep, const Operation& operation) {
  Failure failure;
  failure.context = operation.context;
  failure.flags = operation.flags;
  failure.buf = operation.buf;
  if (operation.is_multi) failure.flags |= FI_MULTI_RECV;
  failure.error = FI_ECANCELED;
  failure.text = "cancelled";
  TellFailure(ep, failure);
}

// The message is there; whose it is has to be looked up by its address.  Spec: fi_cq(3),
// FI_SOURCE_ERR.
void TellUnknown(Endpoint* ep, const Completion& completion, const SockAddress& source) {
  Failure failure;
  static_cast<Completion&>(failure) = completion;
  failure.error = FI_EADDRNOTAVAIL;
  failure.err_data = &source;
  failure.err_data_bytes =
      source.sa.sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  TellFailure(ep, failure);
}

// Of a receive of several messages that takes no more, though none of them was the last.
void TellReleased(Endpoint* ep, const Operation& operation) {
  Completion completion;
  completion.context = operation.context;
  completion.flags = FI_MULTI_RECV;
  if (ep->rx_cq != nullptr) Complete(ep->rx_cq, completion);
}

// That a buffer is released is told in any case.  Spec: fi_msg(3), FI_MULTI_RECV.
bool IsWanted(const Operation& operation, const Completion& completion) {
  return operation.wants_completion || (completion.flags & FI_MULTI_RECV) != 0;
}

// A write of a peer that brought data.
void TellRemoteWrite(Endpoint* ep, Completion completion, const shm::Cqe& cqe) {
  completion.flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA;
  completion.len = cqe.byte_len;
  completion.buf = nullptr;
  completion.data = be32toh(cqe.imm_or_rkey);
  if (!ep->counts_remote_by_nic) Count(ep->cntr_remote_write);
  if (ep->rx_cq != nullptr) Complete(ep->rx_cq, completion);
}

// A message, well or not.
void TellReceived(Endpoint* ep, const Operation& posted, const shm::Cqe& cqe, fi_addr_t source,
                  const SockAddress* unknown) {
  const auto status = static_cast<WcStatus>(cqe.status);
  Completion completion;
  completion.context = posted.context;
  completion.flags = FI_RECV | FI_MSG;
  completion.buf = posted.buf;
  completion.source = source;
  if (posted.is_multi) {
    completion.buf = static_cast<char*>(posted.buf) + cqe.recv_offset_bytes;
    if (IsReleased(posted, cqe)) completion.flags |= FI_MULTI_RECV;
  }
  if ((cqe.wc_flags & shm::kWcWithImm) != 0) {
    completion.flags |= FI_REMOTE_CQ_DATA;
    completion.data = be32toh(cqe.imm_or_rkey);
  }
  const uint32_t bytes =
      cqe.byte_len -
      (posted.receives->grhs != nullptr && cqe.byte_len >= kGrhBytes ? kGrhBytes : 0);
  if (status != WcStatus::kSuccess) {
    Failure failure = FailureOf(posted, cqe);
    static_cast<Completion&>(failure) = completion;
    const size_t room = posted.len - (posted.is_multi ? cqe.recv_offset_bytes : 0);
    if (failure.error == FI_ETRUNC) {
      failure.len = room < bytes ? room : bytes;
      failure.olen = bytes - failure.len;
    }
    TellFailure(ep, failure);
    return;
  }
  completion.len = bytes;
  if (cqe.opcode == static_cast<uint8_t>(shm::WcOpcode::kRecvRdmaWithImm)) {
    TellRemoteWrite(ep, completion, cqe);
  } else if (unknown != nullptr) {
    TellUnknown(ep, completion, *unknown);
  } else {
    Tell(ep, IsWanted(posted, completion), completion);
  }
}

}  // namespace

int InitReceives(ReceiveContext* receives, Endpoint* endpoint, size_t size, uint32_t iov_limit,
                 bool has_grhs) {
  Domain* domain = receives->domain;
  receives->iov_limit = iov_limit;
  int error = receives->operations.Init(endpoint, receives, size);
  if (error != 0) return error;
  if (has_grhs) {
    error = AllocateGrhs(receives, size * kGrhBytes);
    if (error != 0) return error;
  }
  // A shared context may serve endpoints whose CQs are different threads'.
  const bool is_alone =
      endpoint != nullptr ? IsAlone(domain->threading) : domain->threading == FI_THREAD_DOMAIN;
  if (is_alone) receives->lock.Elide();
  const uint32_t max_sge = iov_limit + 1 + (has_grhs ? 1 : 0);
  return CreateHwSrq(domain, receives->pd, static_cast<uint32_t>(size), max_sge, &receives->srq);
}

void DeinitReceives(ReceiveContext* receives) {
  DestroyHwSrq(&receives->srq);
  FreeGrhs(receives);
}

uint8_t* ReceiveContext::GrhOf(const Operation& operation) const {
  return grhs + operations.IndexOf(operation) * kGrhBytes;
}

ssize_t PostReceive(ReceiveContext* receives, const ReceiveRequest& request) {
  if (request.iov_count > receives->iov_limit) return -FI_EINVAL;
  const bool is_multi = (request.flags & FI_MULTI_RECV) != 0;
  if (is_multi && (receives->grhs != nullptr || request.iov_count != 1)) return -FI_EINVAL;
  if (receives->refuses_directed && request.source != FI_ADDR_UNSPEC) return -FI_EOPNOTSUPP;
  client::Session* session = receives->domain->session;
  if (__builtin_expect(session->KnownDead(), 0)) return -FI_ENODEV;
  Guard guard(receives->lock);
  if (receives->is_over) return -FI_EOPBADSTATE;
  Operation* operation = receives->operations.Take();
  auto* wqe =
      operation == nullptr ? nullptr : static_cast<shm::RecvWqe*>(receives->srq.ring.Reserve());
  int error = wqe == nullptr ? -FI_EAGAIN : Fill(receives, request, operation, wqe);
  if (error == 0) {
    receives->srq.ring.Publish();
  } else if (wqe != nullptr) {
    receives->srq.ring.Unreserve(1);
  }
  if (error != 0 && operation != nullptr) receives->operations.Give(operation);
  return error;
}

void FinishReceive(Endpoint* ep, Operation* operation, const shm::Cqe& cqe, fi_addr_t source,
                   const SockAddress* unknown) {
  if (operation == nullptr) {
    Completion completion;
    completion.source = source;
    return TellRemoteWrite(ep, completion, cqe);
  }
  const Operation posted = Take(operation, cqe);
  if ((cqe.wc_flags & shm::kWcRecvNoMessage) != 0) return TellReleased(ep, posted);
  TellReceived(ep, posted, cqe, source, unknown);
  // Whose the receives of a shared context are is known only when they have a message: nobody is
  // told of those that are cancelled.
  if (posted.is_cancelled && !posted.receives->is_shared) TellCancelled(ep, posted);
}

void ForgetReceive(const shm::Cqe& cqe) {
  if (cqe.is_send == 0 && !IsReceiveId(cqe.wr_id)) {
    Take(reinterpret_cast<Operation*>(cqe.wr_id), cqe);
  }
}

void ForgetReceives(HwCq* hw, const ReceiveContext* receives) {
  Guard guard(hw->lock);
  hw->ring.Remove([receives](const shm::Cqe& cqe) {
    if (cqe.is_send != 0 || IsReceiveId(cqe.wr_id)) return false;
    if (reinterpret_cast<Operation*>(cqe.wr_id)->receives != receives) return false;
    ForgetReceive(cqe);
    return true;
  });
}

void WakeReceiver(Endpoint* ep) {
  if (ep->rx_cq != nullptr) Wake(ep->rx_cq);
  if (ep->cntr_rx != nullptr) Wake(ep->cntr_rx);
}

void FlushReceives(Endpoint* ep) {
  ReceiveContext* receives = ep->receives;
  if (receives == nullptr || receives->is_shared) return;
  // What has a message is told by it.
  if (ep->rx_hw != nullptr) TakeAll(ep->rx_hw);
  {
    Guard guard(receives->lock);
    receives->is_over = true;
  }
  for (;;) {
    Failure failure;
    {
      Guard guard(receives->lock);
      Operation* operation = receives->operations.Oldest();
      if (operation == nullptr) return;
      failure.context = operation->context;
      failure.flags = operation->flags;
      failure.buf = operation->buf;
      if (operation->is_multi) failure.flags |= FI_MULTI_RECV;
      receives->operations.Give(operation);
    }
    const bool is_dead = receives->domain->session->KnownDead();
    failure.error = is_dead ? FI_ENODEV : FI_ECANCELED;
    failure.provider = static_cast<int>(WcStatus::kWrFlushErr);
    failure.text =
        is_dead ? "the NIC (verbenad) is gone" : "the endpoint takes no messages any more";
    TellFailure(ep, failure);
  }
}

namespace {

// The lock is held. 0: `cancelled` is to be told, if it is_cancelled; else its messages come first,
// with the last of which it ends. -FI_ENOENT: it completes.
int TakeBack(ReceiveContext* receives, Operation* operation, Operation* cancelled) {
  shm::CancelRecvRequest request = {};
  request.srq = receives->srq.handle;
  request.wr_id = reinterpret_cast<uint64_t>(operation);
  shm::CancelRecvReply reply = {};
  const int error = Execute(receives->domain, shm::CommandOp::kCancelRecv, request, &reply);
  if (error != 0) return error;
  if (reply.found == 0) return -FI_ENOENT;
  *cancelled = *operation;
  cancelled->is_cancelled = reply.messages == operation->messages;
  if (cancelled->is_cancelled) {
    receives->operations.Give(operation);
  } else {
    operation->is_cancelled = operation->is_done = true;
    operation->messages_in_all = reply.messages;
  }
  return 0;
}

}  // namespace

ssize_t CancelReceive(ReceiveContext* receives, Endpoint* ep, const void* context) {
  Operation cancelled;
  {
    Guard guard(receives->lock);
    Operation* operation = receives->operations.Find(context);
    if (operation == nullptr) return -FI_ENOENT;
    const int error = TakeBack(receives, operation, &cancelled);
    if (error != 0) return error;
  }
  if (ep != nullptr && cancelled.is_cancelled) TellCancelled(ep, cancelled);
  return 0;
}

void CancelReceives(Endpoint* ep) {
  ReceiveContext* receives = ep->receives;
  if (receives == nullptr || receives->is_shared) return;
  for (;;) {
    Operation cancelled;
    {
      Guard guard(receives->lock);
      Operation* operation = receives->operations.Oldest();
      if (operation == nullptr) return;
      const int error = TakeBack(receives, operation, &cancelled);
      if (error != 0 && error != -FI_ENOENT) return;
      if (error == -FI_ENOENT) operation->is_done = true;
    }
    if (cancelled.is_cancelled) TellCancelled(ep, cancelled);
  }
}

void RegisterReceiver(ReceiveContext* receives, Endpoint* ep) {
  Guard guard(receives->lock);
  Endpoint*& first = receives->by_qp[Bucket(ep->receive_qp)];
  ep->next_by_qp = first;
  first = ep;
}

void UnregisterReceiver(ReceiveContext* receives, Endpoint* ep) {
  Guard guard(receives->lock);
  Endpoint** link = &receives->by_qp[Bucket(ep->receive_qp)];
  while (*link != nullptr && *link != ep) link = &(*link)->next_by_qp;
  if (*link == ep) *link = ep->next_by_qp;
}

Endpoint* FindReceiver(ReceiveContext* receives, uint64_t receiver, const HwCq* hw) {
  Guard guard(receives->lock);
  if (receiver == 0) return FindAnyone(receives, hw);
  Endpoint* ep = receives->by_qp[Bucket(receiver)];
  while (ep != nullptr && (ep->receive_qp != receiver || ep->rx_hw != hw)) ep = ep->next_by_qp;
  return ep;
}

}  // namespace verbena::fi
