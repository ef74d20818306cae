// What all endpoints have. MSG, DGRAM and RDM add their own by deriving (msg.h, dgram.h, rdm.h).
//
// An endpoint is set up by fi_ep_bind and made by fi_enable (or by connecting); then its queues
// exist, and stay until it is closed or disabled by an error (FI_RM, see Disable).
#pragma once

#include <cstdint>

#include "fi_shim/hw_qp.h"
#include "fi_shim/objects.h"

namespace verbena::fi {

// A fixed number of operations; none left is -FI_EAGAIN. Guarded by the lock of who owns it.
class OperationPool {
 public:
  OperationPool() = default;
  ~OperationPool();
  OperationPool(const OperationPool&) = delete;
  OperationPool& operator=(const OperationPool&) = delete;
  int Init(Endpoint* endpoint, size_t count);  // -FI_ENOMEM
  Operation* Take();                           // nullptr: none
  void Give(Operation* operation);
  size_t taken() const { return taken_; }

 private:
  Operation* all_ = nullptr;
  Operation* free_ = nullptr;
  size_t taken_ = 0;
};

// Where receives wait: an endpoint's own, or a shared receive context (fi_srx_context).
struct ReceiveContext {
  Domain* domain = nullptr;
  shm::Handle pd = 0;  // the endpoint's; of a shared one the domain's; and so the key
  uint32_t whole_process_lkey = 0;
  Lock lock;
  HwSrq srq;
  OperationPool operations;
  uint64_t op_flags = 0;
  uint32_t iov_limit = 1;
};

struct EndpointKind;  // what differs, as functions

struct Endpoint {
  fid_ep fid;
  const EndpointKind* kind = nullptr;
  Domain* domain = nullptr;
  // Whom its queues belong to. Usually the domain's, and the domain's lkey; an own one where
  // regions are of endpoints (FI_MR_ENDPOINT) or its auth_key is not the domain's (protection.h).
  shm::Handle pd = 0;
  uint32_t whole_process_lkey = 0;
  shm::Handle own_whole_process_mr = 0;  // of an own PD
  Protection* protection = nullptr;      // of its auth_key, or none
  Lock lock;                             // of the send side
  fi_info* info = nullptr;               // own copy, as granted
  Cq* tx_cq = nullptr;
  Cq* rx_cq = nullptr;
  bool tx_selective = false, rx_selective = false;  // FI_SELECTIVE_COMPLETION
  Cntr* cntr_tx = nullptr;                          // FI_SEND
  Cntr* cntr_rx = nullptr;                          // FI_RECV
  Cntr* cntr_read = nullptr;
  Cntr* cntr_write = nullptr;
  Cntr* cntr_remote_read = nullptr;
  Cntr* cntr_remote_write = nullptr;
  Eq* eq = nullptr;
  Av* av = nullptr;
  HwCq* tx_hw = nullptr;  // the CQ's, or its own where it has only counters
  HwCq* rx_hw = nullptr;
  OperationPool sends;
  ReceiveContext* receives = nullptr;  // its own, or that of the SRX bound
  bool owns_receives = false;
  uint64_t tx_op_flags = 0, rx_op_flags = 0;
  size_t inject_bytes = 0, min_multi_recv_bytes = 0;
  bool is_enabled = false;
  uint64_t local_key_access = 0;
};

// A message or RMA about to be posted, whatever call it came by.
struct SendRequest {
  const iovec* iov = nullptr;
  void* const* desc = nullptr;
  size_t iov_count = 0;
  fi_addr_t dest = FI_ADDR_UNSPEC;
  void* context = nullptr;
  uint64_t flags = 0;  // FI_COMPLETION, FI_INJECT, FI_REMOTE_CQ_DATA, FI_FENCE, completion levels …
  uint64_t data = 0;
  shm::WrOpcode opcode = shm::WrOpcode::kSend;
  uint64_t remote_addr = 0, remote_key = 0;  // RMA; of one target range
};

struct EndpointKind {
  // Makes what fi_enable makes. 0 or a negative FI errno.
  int (*enable)(Endpoint*);
  void (*destroy)(Endpoint*);
  // Posts one request: the endpoint's lock is not held. -FI_EAGAIN: no room, or its way to the peer
  // is not there yet.
  ssize_t (*post)(Endpoint*, const SendRequest&);
  // Of a completion of the NIC whose wr_id is `operation`. No lock is held.
  void (*on_send)(Endpoint*, Operation*, const shm::Cqe&);
  void (*on_receive)(Endpoint*, Operation*, const shm::Cqe&);
  // Advances what needs a program's calls (connecting); from Progress of its CQs. May be nullptr.
  void (*progress)(Endpoint*);
  // Once, from Progress, when the daemon is gone and the CQ's ring is empty: what is outstanding is
  // to be told as failed. No lock is held.
  void (*on_death)(Endpoint*);
};

// post.cc. Fills the next entry of a send queue from a request, of a pool's operation; the lock of
// the queue is held, and the caller publishes. -FI_EAGAIN; -FI_EINVAL: lengths, iov count, desc.
int FillSendWqe(Endpoint* ep, HwQp* qp, const SendRequest& request, Operation* operation);
// The fid's operations, for endpoints of every kind.
extern fi_ops_msg message_ops;
extern fi_ops_rma rma_ops;

// What domain.cc and fabric.cc make endpoints by (their fi_ops), for each kind one.
int OpenMsgEndpoint(Domain* domain, fi_info* info, fid_ep** ep, void* context);
int OpenDgramEndpoint(Domain* domain, fi_info* info, fid_ep** ep, void* context);
int OpenRdmEndpoint(Domain* domain, fi_info* info, fid_ep** ep, void* context);
int OpenSharedReceives(Domain* domain, fi_rx_attr* attr, fid_ep** ep, void* context);
int OpenPassiveEndpoint(Fabric* fabric, fi_info* info, fid_pep** pep, void* context);

// endpoint.cc. Progress calls it for each CQE, under no lock but that of the HwCq.
void OnCompletion(HwCq* hw, const shm::Cqe& cqe);
int OpenEndpoint(Domain* domain, const fi_info* info, const EndpointKind* kind, Endpoint* made,
                 void* context);
// What became of an operation, to CQ and counters, and the operation to its pool.
void Finish(Endpoint* ep, Operation* operation, const Completion& completion);
void FinishWithError(Endpoint* ep, Operation* operation, const Failure& failure);
// The FI errno and the words for a completion that failed; RNR gives FI_ENORX.
Failure FailureOf(const Operation& operation, const shm::Cqe& cqe);

}  // namespace verbena::fi
