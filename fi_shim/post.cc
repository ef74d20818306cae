// Posting messages and RMA: each call of fi_ops_msg and fi_ops_rma becomes a request, a request
// becomes entries of a send queue.
#include <endian.h>

#include <algorithm>
#include <cstring>

#include "fi_shim/endpoint.h"
#include "fi_shim/hmem.h"

namespace verbena::fi {
namespace {

// Of calls that return nothing: fi_inject and its like.
constexpr uint64_t kSilent = 1ULL << 63;

// A sum of lengths that has no number is the largest one, which no message has.
size_t AddLengths(size_t a, size_t b) { return a + b < a ? SIZE_MAX : a + b; }

size_t TotalBytes(const iovec* iov, size_t count) {
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) bytes = AddLengths(bytes, iov[i].iov_len);
  return bytes;
}

bool IsRead(shm::WrOpcode opcode) { return opcode == shm::WrOpcode::kRdmaRead; }
bool IsMessage(shm::WrOpcode opcode) {
  return opcode == shm::WrOpcode::kSend || opcode == shm::WrOpcode::kSendWithImm;
}

// Walks through the request's local memory, a target's length at a time.
struct Walk {
  const SendRequest& request;
  size_t index = 0;
  size_t offset = 0;

  // The next piece of what is left of `bytes`; nothing of no length.
  iovec Next(size_t* bytes) {
    while (offset == request.iov[index].iov_len) {
      ++index;
      offset = 0;
    }
    const iovec& from = request.iov[index];
    iovec piece = {static_cast<char*>(from.iov_base) + offset,
                   std::min(*bytes, from.iov_len - offset)};
    offset += piece.iov_len;
    *bytes -= piece.iov_len;
    return piece;
  }
};

// The payload, or where it is, of one entry. 0 or a negative FI errno.
int FillBody(Endpoint* ep, const HwQp& qp, bool is_inline, size_t bytes, Walk* walk,
             shm::SendWqe* wqe) {
  if (is_inline) {
    std::byte* out = shm::PlaceSendBody(wqe, bytes);
    wqe->inline_bytes = static_cast<uint32_t>(bytes);
    while (bytes != 0) {
      const iovec piece = walk->Next(&bytes);
      if (__builtin_expect(ep->domain->hmem != nullptr, 0)) {
        if (!CopyFromProgram(ep->domain, out, piece.iov_base, piece.iov_len)) return -FI_EFAULT;
      } else {
        memcpy(out, piece.iov_base, piece.iov_len);
      }
      out += piece.iov_len;
    }
    return 0;
  }
  // An element for each part that has bytes for this target.
  const size_t sge_bytes_max = walk->request.iov_count * sizeof(shm::Sge);
  auto* sge = reinterpret_cast<shm::Sge*>(shm::PlaceSendBody(wqe, sge_bytes_max));
  while (bytes != 0) {
    const iovec piece = walk->Next(&bytes);
    if (wqe->num_sge == qp.max_send_sge) return -FI_EINVAL;
    const void* desc = walk->request.desc == nullptr ? nullptr : walk->request.desc[walk->index];
    uint32_t lkey;
    const int error = LocalKey(ep->domain, ep->whole_process_lkey, desc, &lkey);
    if (error != 0) return error;
    // A region of the domain's serves endpoints of any authorization key, for what is local.
    if (ep->protection != nullptr) lkey = ep->whole_process_lkey;
    sge[wqe->num_sge++] = {reinterpret_cast<uint64_t>(piece.iov_base),
                           static_cast<uint32_t>(piece.iov_len), lkey};
  }
  return 0;
}

void FillHead(const SendRequest& request, bool is_last, bool is_inline, Operation* operation,
              shm::SendWqe* wqe) {
  *wqe = {};
  wqe->wr_id = reinterpret_cast<uint64_t>(operation);
  shm::WrOpcode opcode = request.opcode;
  if (opcode == shm::WrOpcode::kRdmaWriteWithImm && !is_last) opcode = shm::WrOpcode::kRdmaWrite;
  wqe->opcode = static_cast<uint8_t>(opcode);
  wqe->flags = shm::kSendSignaled;
  if (is_inline) wqe->flags |= shm::kSendInline;
  if ((request.flags & FI_FENCE) != 0) wqe->flags |= shm::kSendFence;
  wqe->imm_or_rkey = htobe32(static_cast<uint32_t>(request.data));
  wqe->ah = request.ah;
  wqe->remote_qpn = request.remote_qpn;
  wqe->remote_qkey = request.remote_qkey;
}

void FillOperation(Endpoint* ep, const SendRequest& request, size_t parts, Operation* operation) {
  operation->context = request.context;
  operation->flags = IsMessage(request.opcode) ? FI_SEND | FI_MSG
                     : IsRead(request.opcode)  ? FI_READ | FI_RMA
                                               : FI_WRITE | FI_RMA;
  operation->buf = nullptr;
  operation->len = 0;
  operation->peer = request.dest;
  operation->parts = static_cast<uint16_t>(parts);
  operation->failed_status = 0;
  operation->failed_vendor = 0;
  operation->is_inject = (request.flags & kSilent) != 0;
  operation->wants_completion =
      !operation->is_inject && (!ep->tx_selective || (request.flags & FI_COMPLETION) != 0);
}

// 0, or a negative FI errno: what no endpoint of these attributes takes.
int Check(const Endpoint& ep, const SendRequest& request, size_t bytes) {
  const bool is_message = IsMessage(request.opcode);
  if ((request.flags & FI_INJECT) != 0) {
    if (IsRead(request.opcode)) return -FI_EINVAL;
    if (bytes > ep.inject_bytes) return -FI_EMSGSIZE;
  }
  if (bytes > ep.info->ep_attr->max_msg_size) return -FI_EMSGSIZE;
  if (is_message) return 0;
  if (request.target_count == 0 || request.target_count > ep.info->tx_attr->rma_iov_limit) {
    return -FI_EINVAL;
  }
  size_t remote_bytes = 0;
  for (size_t i = 0; i < request.target_count; ++i) {
    if (request.targets[i].key > UINT32_MAX) return -FI_EINVAL;
    remote_bytes = AddLengths(remote_bytes, request.targets[i].len);
  }
  return remote_bytes == bytes ? 0 : -FI_EINVAL;
}

}  // namespace

int FillSendWqe(Endpoint* ep, HwQp* qp, const SendRequest& request, Operation* operation) {
  if (request.iov_count > ep->info->tx_attr->iov_limit) return -FI_EINVAL;
  const size_t total_bytes = TotalBytes(request.iov, request.iov_count);
  int error = Check(*ep, request, total_bytes);
  if (error != 0) return error;
  const size_t parts = IsMessage(request.opcode) ? 1 : request.target_count;
  const bool is_inline = !IsRead(request.opcode) && total_bytes <= qp->max_inline_bytes;
  Walk walk{request};
  uint32_t reserved = 0;
  for (size_t i = 0; i < parts && error == 0; ++i) {
    auto* wqe = static_cast<shm::SendWqe*>(qp->sq.Reserve());
    if (wqe == nullptr) {
      error = -FI_EAGAIN;
      break;
    }
    ++reserved;
    FillHead(request, i + 1 == parts, is_inline, operation, wqe);
    size_t bytes = total_bytes;
    if (request.target_count != 0) {
      wqe->remote_addr = request.targets[i].addr;
      wqe->rkey = static_cast<uint32_t>(request.targets[i].key);
      bytes = request.targets[i].len;
    }
    error = FillBody(ep, *qp, is_inline, bytes, &walk, wqe);
  }
  if (error != 0) {
    qp->sq.Unreserve(reserved);
    return error;
  }
  FillOperation(ep, request, parts, operation);
  return 0;
}

ssize_t PostToQp(Endpoint* ep, HwQp* qp, const SendRequest& request) {
  client::Session* session = ep->domain->session;
  Operation* operation = ep->sends.Take();
  int error = operation == nullptr ? -FI_EAGAIN : FillSendWqe(ep, qp, request, operation);
  if (error == 0) qp->sq.Publish();
  // What waits for more must not wait for what there is no room for.
  if ((request.flags & FI_MORE) == 0 || error != 0) session->RingDoorbell(qp->doorbell);
  if (error != 0 && operation != nullptr) ep->sends.Give(operation);
  return error;
}

namespace {

uint64_t CapOf(shm::WrOpcode opcode) {
  if (IsMessage(opcode)) return FI_SEND;
  return IsRead(opcode) ? FI_READ : FI_WRITE;
}

ssize_t Submit(Endpoint* ep, const SendRequest& request) {
  if (__builtin_expect((ep->caps & CapOf(request.opcode)) == 0, 0)) return -FI_EOPNOTSUPP;
  if (__builtin_expect(!ep->is_enabled, 0)) return -FI_EOPBADSTATE;
  ssize_t result = ep->kind->post(ep, request);
  if (result != -FI_EAGAIN) return result;
  // Perhaps something is done that nobody has asked for yet.
  Progress(ep->tx_hw);
  return ep->kind->post(ep, request);
}

struct One {
  iovec iov;
  void* desc;
};

SendRequest RequestOf(const One& one, fi_addr_t dest, void* context, uint64_t flags) {
  SendRequest request;
  request.iov = &one.iov;
  request.desc = &one.desc;
  request.iov_count = 1;
  request.dest = dest;
  request.context = context;
  request.flags = flags;
  return request;
}

One OneOf(const void* buf, size_t len, void* desc) { return {{const_cast<void*>(buf), len}, desc}; }

// An endpoint, and the flags of calls that take none, by the endpoint's own fid and by an alias's.
struct Itself {
  static Endpoint* Ep(fid_ep* fid) { return ToEndpoint(fid); }
  static uint64_t TxFlags(fid_ep* fid) { return ToEndpoint(fid)->tx_op_flags; }
  static uint64_t RxFlags(fid_ep* fid) { return ToEndpoint(fid)->rx_op_flags; }
};
struct Alias {
  static EndpointAlias* Of(fid_ep* fid) { return reinterpret_cast<EndpointAlias*>(fid); }
  static Endpoint* Ep(fid_ep* fid) { return Of(fid)->endpoint; }
  static uint64_t TxFlags(fid_ep* fid) { return Of(fid)->tx_op_flags; }
  static uint64_t RxFlags(fid_ep* fid) { return Of(fid)->rx_op_flags; }
};

// --- fi_ops_msg
// -----------------------------------------------------------------------------------

template <typename Of>
ssize_t Send(fid_ep* fid, const void* buf, size_t len, void* desc, fi_addr_t dest, void* context) {
  Endpoint* ep = Of::Ep(fid);
  const One one = OneOf(buf, len, desc);
  return Submit(ep, RequestOf(one, dest, context, Of::TxFlags(fid)));
}

template <typename Of>
ssize_t SendV(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t dest,
              void* context) {
  Endpoint* ep = Of::Ep(fid);
  SendRequest request;
  request.iov = iov;
  request.desc = desc;
  request.iov_count = count;
  request.dest = dest;
  request.context = context;
  request.flags = Of::TxFlags(fid);
  return Submit(ep, request);
}

template <typename Of>
ssize_t SendMsg(fid_ep* fid, const fi_msg* msg, uint64_t flags) {
  constexpr uint64_t kKnown = FI_COMPLETION | FI_INJECT | FI_REMOTE_CQ_DATA | FI_FENCE | FI_MORE |
                              FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE |
                              FI_MATCH_COMPLETE | FI_PRIORITY;
  if ((flags & ~kKnown) != 0) return -FI_EBADFLAGS;
  SendRequest request;
  request.iov = msg->msg_iov;
  request.desc = msg->desc;
  request.iov_count = msg->iov_count;
  request.dest = msg->addr;
  request.context = msg->context;
  request.flags = flags;
  request.data = msg->data;
  if ((flags & FI_REMOTE_CQ_DATA) != 0) request.opcode = shm::WrOpcode::kSendWithImm;
  return Submit(Of::Ep(fid), request);
}

template <typename Of>
ssize_t Inject(fid_ep* fid, const void* buf, size_t len, fi_addr_t dest) {
  const One one = OneOf(buf, len, nullptr);
  return Submit(Of::Ep(fid), RequestOf(one, dest, nullptr, FI_INJECT | kSilent));
}

template <typename Of>
ssize_t SendData(fid_ep* fid, const void* buf, size_t len, void* desc, uint64_t data,
                 fi_addr_t dest, void* context) {
  Endpoint* ep = Of::Ep(fid);
  const One one = OneOf(buf, len, desc);
  SendRequest request = RequestOf(one, dest, context, Of::TxFlags(fid) | FI_REMOTE_CQ_DATA);
  request.opcode = shm::WrOpcode::kSendWithImm;
  request.data = data;
  return Submit(ep, request);
}

template <typename Of>
ssize_t InjectData(fid_ep* fid, const void* buf, size_t len, uint64_t data, fi_addr_t dest) {
  const One one = OneOf(buf, len, nullptr);
  SendRequest request = RequestOf(one, dest, nullptr, FI_INJECT | FI_REMOTE_CQ_DATA | kSilent);
  request.opcode = shm::WrOpcode::kSendWithImm;
  request.data = data;
  return Submit(Of::Ep(fid), request);
}

ssize_t Receive(Endpoint* ep, const ReceiveRequest& request) {
  if (__builtin_expect((ep->caps & FI_RECV) == 0, 0)) return -FI_EOPNOTSUPP;
  if (__builtin_expect(ep->receives == nullptr || !ep->is_enabled, 0)) return -FI_EOPBADSTATE;
  if (ep->receives->is_shared) return -FI_EOPNOTSUPP;  // they are posted to the shared context
  ssize_t result = PostReceive(ep->receives, request);
  if (result != -FI_EAGAIN) return result;
  Progress(ep->rx_hw);
  return PostReceive(ep->receives, request);
}

template <typename Of>
ssize_t Recv(fid_ep* fid, void* buf, size_t len, void* desc, fi_addr_t source, void* context) {
  Endpoint* ep = Of::Ep(fid);
  const One one = {{buf, len}, desc};
  return Receive(ep, {&one.iov, &one.desc, 1, source, context, Of::RxFlags(fid)});
}

template <typename Of>
ssize_t RecvV(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t source,
              void* context) {
  Endpoint* ep = Of::Ep(fid);
  return Receive(ep, {iov, desc, count, source, context, Of::RxFlags(fid)});
}

template <typename Of>
ssize_t RecvMsg(fid_ep* fid, const fi_msg* msg, uint64_t flags) {
  if ((flags & ~kReceiveFlags) != 0) return -FI_EBADFLAGS;
  return Receive(Of::Ep(fid),
                 {msg->msg_iov, msg->desc, msg->iov_count, msg->addr, msg->context, flags});
}

// --- fi_ops_rma
// -----------------------------------------------------------------------------------

ssize_t SubmitRma(Endpoint* ep, SendRequest* request, shm::WrOpcode opcode, uint64_t addr,
                  uint64_t key) {
  const fi_rma_iov target = {addr, TotalBytes(request->iov, request->iov_count), key};
  request->opcode = opcode;
  request->targets = &target;
  request->target_count = 1;
  return Submit(ep, *request);
}

template <typename Of>
ssize_t RmaOne(fid_ep* fid, shm::WrOpcode opcode, const void* buf, size_t len, void* desc,
               fi_addr_t peer, uint64_t addr, uint64_t key, void* context, uint64_t flags,
               uint64_t data) {
  const One one = OneOf(buf, len, desc);
  SendRequest request = RequestOf(one, peer, context, flags);
  request.data = data;
  return SubmitRma(Of::Ep(fid), &request, opcode, addr, key);
}

template <typename Of>
ssize_t RmaV(fid_ep* fid, shm::WrOpcode opcode, const iovec* iov, void** desc, size_t count,
             fi_addr_t peer, uint64_t addr, uint64_t key, void* context) {
  Endpoint* ep = Of::Ep(fid);
  SendRequest request;
  request.iov = iov;
  request.desc = desc;
  request.iov_count = count;
  request.dest = peer;
  request.context = context;
  request.flags = Of::TxFlags(fid);
  if (IsRead(opcode)) request.flags &= ~FI_INJECT;              // a default that is not for reads
  if (count > ep->info->tx_attr->iov_limit) return -FI_EINVAL;  // before they are counted
  return SubmitRma(ep, &request, opcode, addr, key);
}

template <typename Of>
ssize_t RmaMsg(fid_ep* fid, shm::WrOpcode opcode, const fi_msg_rma* msg, uint64_t flags) {
  SendRequest request;
  request.iov = msg->msg_iov;
  request.desc = msg->desc;
  request.iov_count = msg->iov_count;
  request.dest = msg->addr;
  request.context = msg->context;
  request.flags = flags;
  request.data = msg->data;
  request.opcode = opcode;
  request.targets = msg->rma_iov;
  request.target_count = msg->rma_iov_count;
  return Submit(Of::Ep(fid), request);
}

template <typename Of>
ssize_t Read(fid_ep* fid, void* buf, size_t len, void* desc, fi_addr_t peer, uint64_t addr,
             uint64_t key, void* context) {
  return RmaOne<Of>(fid, shm::WrOpcode::kRdmaRead, buf, len, desc, peer, addr, key, context,
                    Of::TxFlags(fid) & ~FI_INJECT, 0);
}

template <typename Of>
ssize_t ReadV(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
              uint64_t addr, uint64_t key, void* context) {
  return RmaV<Of>(fid, shm::WrOpcode::kRdmaRead, iov, desc, count, peer, addr, key, context);
}

template <typename Of>
ssize_t ReadMsg(fid_ep* fid, const fi_msg_rma* msg, uint64_t flags) {
  constexpr uint64_t kKnown = FI_COMPLETION | FI_FENCE | FI_MORE | FI_INJECT_COMPLETE |
                              FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE |
                              FI_PRIORITY;
  if ((flags & ~kKnown) != 0) return -FI_EBADFLAGS;
  return RmaMsg<Of>(fid, shm::WrOpcode::kRdmaRead, msg, flags);
}

template <typename Of>
ssize_t Write(fid_ep* fid, const void* buf, size_t len, void* desc, fi_addr_t peer, uint64_t addr,
              uint64_t key, void* context) {
  return RmaOne<Of>(fid, shm::WrOpcode::kRdmaWrite, buf, len, desc, peer, addr, key, context,
                    Of::TxFlags(fid), 0);
}

template <typename Of>
ssize_t WriteV(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
               uint64_t addr, uint64_t key, void* context) {
  return RmaV<Of>(fid, shm::WrOpcode::kRdmaWrite, iov, desc, count, peer, addr, key, context);
}

template <typename Of>
ssize_t WriteMsg(fid_ep* fid, const fi_msg_rma* msg, uint64_t flags) {
  constexpr uint64_t kKnown = FI_COMPLETION | FI_INJECT | FI_REMOTE_CQ_DATA | FI_FENCE | FI_MORE |
                              FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE |
                              FI_MATCH_COMPLETE | FI_PRIORITY;
  if ((flags & ~kKnown) != 0) return -FI_EBADFLAGS;
  const bool has_data = (flags & FI_REMOTE_CQ_DATA) != 0;
  return RmaMsg<Of>(fid, has_data ? shm::WrOpcode::kRdmaWriteWithImm : shm::WrOpcode::kRdmaWrite,
                    msg, flags);
}

template <typename Of>
ssize_t InjectWrite(fid_ep* fid, const void* buf, size_t len, fi_addr_t peer, uint64_t addr,
                    uint64_t key) {
  return RmaOne<Of>(fid, shm::WrOpcode::kRdmaWrite, buf, len, nullptr, peer, addr, key, nullptr,
                    FI_INJECT | kSilent, 0);
}

template <typename Of>
ssize_t WriteData(fid_ep* fid, const void* buf, size_t len, void* desc, uint64_t data,
                  fi_addr_t peer, uint64_t addr, uint64_t key, void* context) {
  return RmaOne<Of>(fid, shm::WrOpcode::kRdmaWriteWithImm, buf, len, desc, peer, addr, key, context,
                    Of::TxFlags(fid), data);
}

template <typename Of>
ssize_t InjectWriteData(fid_ep* fid, const void* buf, size_t len, uint64_t data, fi_addr_t peer,
                        uint64_t addr, uint64_t key) {
  return RmaOne<Of>(fid, shm::WrOpcode::kRdmaWriteWithImm, buf, len, nullptr, peer, addr, key,
                    nullptr, FI_INJECT | kSilent, data);
}

template <typename Of>
constexpr fi_ops_msg kMessageOps = {
    .size = sizeof(fi_ops_msg),
    .recv = Recv<Of>,
    .recvv = RecvV<Of>,
    .recvmsg = RecvMsg<Of>,
    .send = Send<Of>,
    .sendv = SendV<Of>,
    .sendmsg = SendMsg<Of>,
    .inject = Inject<Of>,
    .senddata = SendData<Of>,
    .injectdata = InjectData<Of>,
};

template <typename Of>
constexpr fi_ops_rma kRmaOps = {
    .size = sizeof(fi_ops_rma),
    .read = Read<Of>,
    .readv = ReadV<Of>,
    .readmsg = ReadMsg<Of>,
    .write = Write<Of>,
    .writev = WriteV<Of>,
    .writemsg = WriteMsg<Of>,
    .inject = InjectWrite<Of>,
    .writedata = WriteData<Of>,
    .injectdata = InjectWriteData<Of>,
};

}  // namespace

fi_ops_msg message_ops = kMessageOps<Itself>;
fi_ops_msg alias_message_ops = kMessageOps<Alias>;
fi_ops_rma rma_ops = kRmaOps<Itself>;
fi_ops_rma alias_rma_ops = kRmaOps<Alias>;

}  // namespace verbena::fi
