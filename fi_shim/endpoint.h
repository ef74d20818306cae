// What all endpoints have. MSG, DGRAM and RDM add their own by deriving (msg.h, dgram.h, rdm.h).
//
// An endpoint is set up by fi_ep_bind and made by fi_enable (or by connecting); then its queues
// exist, and stay until it is closed or disabled by an error (FI_RM, see Disable).
#pragma once

#include <cstdint>

#include "fi_shim/hw_qp.h"
#include "fi_shim/objects.h"

namespace verbena::fi {

// What several pools have together at most (fi_stx_context).
struct TransmitCredits {
  size_t limit = 0;
  std::atomic<size_t> taken{0};
};

// A fixed number of operations; none left is -FI_EAGAIN. Guarded by the lock of who owns it.
class OperationPool {
 public:
  OperationPool() = default;
  ~OperationPool();
  OperationPool(const OperationPool&) = delete;
  OperationPool& operator=(const OperationPool&) = delete;
  // Of an endpoint, or of what receives (of one endpoint, or shared). -FI_ENOMEM.
  int Init(Endpoint* endpoint, ReceiveContext* receives, size_t count);
  // Before the first is taken: of these, too, each one takes one.
  void Share(TransmitCredits* credits) { credits_ = credits; }
  Operation* Take();  // nullptr: none
  void Give(Operation* operation);
  size_t taken() const { return taken_; }
  size_t size() const { return count_; }
  // Of those taken, but not done, the one posted first; that of a context (of several the first).
  // nullptr: none. Who gives back (or marks as done) one oldest after the other spends n log n on
  // n, whatever is taken and given back meanwhile; so does who finds n one after the other.
  Operation* Oldest();
  Operation* Find(const void* context);
  size_t IndexOf(const Operation& operation) const {
    return static_cast<size_t>(&operation - all_);
  }

 private:
  void Order();
  bool Index();
  Operation*& BucketOf(const void* context);
  Operation* FindIndexed(const void* context);
  Operation* Scan(const void* context) const;

  Operation* all_ = nullptr;
  Operation* free_ = nullptr;
  size_t count_ = 0;
  size_t taken_ = 0;
  uint64_t sequence_ = 0;
  // Those with a sequence before `ordered_until_` that are taken and not done are in this list, in
  // the order of posting; what else is in it has been given back, or is done.
  Operation* ordered_ = nullptr;
  uint64_t ordered_until_ = 0;
  // The same of each context's bucket, made when scanning for contexts has cost as much.
  Operation** buckets_ = nullptr;
  int bucket_exponent_ = 0;
  uint64_t indexed_until_ = 0;
  int scans_ = 0;
  TransmitCredits* credits_ = nullptr;
};

// fi_stx_context.
struct TransmitContext {
  fid_stx fid;
  Domain* domain = nullptr;
  std::atomic<uint32_t> users{0};  // endpoints bound
  TransmitCredits credits;
  fi_tx_attr attr = {};  // what stx.cc compares
};

struct SharedRoom;

// Where receives wait: an endpoint's own, or a shared receive context (fi_srx_context).
struct ReceiveContext {
  fid_ep fid;  // of a shared one
  Domain* domain = nullptr;
  shm::Handle pd = 0;  // the endpoint's; of a shared one the domain's; and so the key
  uint32_t whole_process_lkey = 0;
  std::atomic<uint32_t> users{0};  // endpoints bound
  Lock lock;
  HwSrq srq;
  OperationPool operations;
  uint64_t op_flags = 0;
  uint32_t iov_limit = 1;
  size_t min_multi_recv_bytes = 0;
  bool is_shared = false;
  bool is_over = false;  // nothing comes any more; set by FlushReceives
  // Of a DGRAM endpoint: where each operation's GRH goes, by its index in the pool; else nullptr.
  uint8_t* grhs = nullptr;
  uint32_t grh_lkey = 0;
  shm::Handle grh_mr = 0;
  size_t grh_bytes = 0;
  uint8_t* GrhOf(const Operation& operation) const;
  // The number by which the NIC knows a source (shm::RecvMark); nullptr: all receives are anyone's.
  int (*source_of)(ReceiveContext*, fi_addr_t, uint32_t*) = nullptr;
  void* source_context = nullptr;
  // A shared one of endpoints with FI_DIRECTED_RECV: each of them numbers its sources for itself,
  // so that receives of one source can't be taken.
  bool refuses_directed = false;
  // Of a shared one, whose completions say whose they are: the endpoints, by their `receive_qp`.
  static constexpr size_t kBuckets = 64;
  Endpoint* by_qp[kBuckets] = {};
  pthread_mutex_t rooms_mutex = PTHREAD_MUTEX_INITIALIZER;
  SharedRoom* rooms = nullptr;  // what is reserved in CQs for a shared one's receives
};
// `pd`, `whole_process_lkey` and `domain` are set. -FI_ENOMEM; -FI_EINVAL; -FI_EIO.
int InitReceives(ReceiveContext* receives, Endpoint* endpoint, size_t size, uint32_t iov_limit,
                 bool has_grhs);
void DeinitReceives(ReceiveContext* receives);

// srx.cc. Room for a shared one's receives in a CQ, by each endpoint that completes them there.
int ReserveShared(ReceiveContext* receives, HwCq* hw);
void UnreserveShared(ReceiveContext* receives, HwCq* hw);

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
  uint64_t caps = 0;                     // of `info`
  Cq* tx_cq = nullptr;
  Cq* rx_cq = nullptr;
  bool tx_selective = false, rx_selective = false;  // FI_SELECTIVE_COMPLETION
  Cntr* cntr_tx = nullptr;                          // FI_SEND
  Cntr* cntr_rx = nullptr;                          // FI_RECV
  Cntr* cntr_read = nullptr;
  Cntr* cntr_write = nullptr;
  Cntr* cntr_remote_read = nullptr;
  Cntr* cntr_remote_write = nullptr;
  uint64_t watched_by = 0;  // counters that look at its CQs, by the flags they are bound by
  Eq* eq = nullptr;
  Av* av = nullptr;
  HwCq* tx_hw = nullptr;  // the CQ's, or its own where it has only counters
  HwCq* rx_hw = nullptr;
  OperationPool sends;
  TransmitContext* transmits = nullptr;  // that it shares
  ReceiveContext* receives = nullptr;    // its own, or that of the SRX bound
  bool owns_receives = false;
  bool has_shared_room = false;  // ReserveShared
  uint64_t tx_op_flags = 0, rx_op_flags = 0;
  size_t inject_bytes = 0, min_multi_recv_bytes = 0;
  size_t cm_data_bytes = 0;                        // FI_OPT_CM_DATA_SIZE; 0: it has none
  uint64_t send_entries = 0, receive_entries = 0;  // reserved in tx_hw and rx_hw
  bool is_enabled = false;
  // Readable when `progress` has something to do: who waits for its CQs waits for it, too.
  int progress_fd = -1;
  bool counts_remote_by_nic = false;  // FI_RMA_EVENT: the NIC counts in cntr_remote_…
  std::atomic<uint32_t> users{0};     // MRs bound
  Endpoint* next_by_qp = nullptr;     // ReceiveContext.by_qp
  uint64_t receive_qp = 0;            // whose completions of receives are its own: ReceiverOf
};

inline bool IsDatagram(const Endpoint* ep) { return ep->info->ep_attr->type == FI_EP_DGRAM; }

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
  // RMA; what is local is cut at the targets' ends.
  const fi_rma_iov* targets = nullptr;
  size_t target_count = 0;
  uint32_t ah = 0, remote_qpn = 0, remote_qkey = 0;  // of a datagram; its endpoint fills them in
};

// Of fi_recvmsg. Every receive completes as FI_TRANSMIT_COMPLETE asks for, or later.
inline constexpr uint64_t kReceiveFlags =
    FI_COMPLETION | FI_MULTI_RECV | FI_MORE | FI_TRANSMIT_COMPLETE;

// A receive about to be posted.
struct ReceiveRequest {
  const iovec* iov = nullptr;
  void* const* desc = nullptr;
  size_t iov_count = 0;
  fi_addr_t source = FI_ADDR_UNSPEC;
  void* context = nullptr;
  uint64_t flags = 0;  // FI_COMPLETION, FI_MULTI_RECV, FI_MORE
};

// fi_ep_alias: the same endpoint with other flags for calls that take none.
struct EndpointAlias {
  fid_ep fid;
  Endpoint* endpoint = nullptr;
  uint64_t tx_op_flags = 0, rx_op_flags = 0;
};
// alias.cc
int OpenAlias(Endpoint* ep, struct fi_alias* request);
// What FI_SETOPSFLAG and FI_GETOPSFLAG do with flags of an endpoint or an alias.
int SetOpFlags(uint64_t wanted, uint64_t* tx_op_flags, uint64_t* rx_op_flags);
int GetOpFlags(uint64_t tx_op_flags, uint64_t rx_op_flags, uint64_t* flags);

struct EndpointKind {
  // Makes what fi_enable makes. 0 or a negative FI errno.
  int (*enable)(Endpoint*);
  // Before it is closed: waits, for a while, until peers have what was posted. May be nullptr.
  void (*await_sends)(Endpoint*);
  void (*destroy)(Endpoint*);
  // Posts one request: the endpoint's lock is not held. -FI_EAGAIN: no room, or its way to the peer
  // is not there yet.
  ssize_t (*post)(Endpoint*, const SendRequest&);
  // Of a completion of the NIC whose wr_id is `operation`. No lock but the HwCq's is held. Data
  // that came with a WRITE have no operation (nullptr).
  void (*on_send)(Endpoint*, Operation*, const shm::Cqe&);
  void (*on_receive)(Endpoint*, Operation*, const shm::Cqe&);
  // Advances what needs a program's calls (connecting); from Progress of its CQs, and of which one.
  // May be nullptr.
  void (*progress)(Endpoint*, HwCq*);
  // Who waits for one of its CQs, with progress_fd among others, is about to sleep: all that
  // `progress` looks at only now and then. No lock is held. May be nullptr.
  void (*before_sleep)(Endpoint*);
  // Once for each of its CQs, from Progress, when the daemon is gone and the CQ's ring is empty:
  // what is outstanding there is to be told as failed. No lock is held.
  void (*on_death)(Endpoint*, HwCq*);
};

// post.cc. Fills the next entries of a send queue (one for each target range) from a request, of a
// pool's operation, whose fields it sets, too; the lock of the queue is held, and the caller
// publishes. Nothing is reserved on failure. -FI_EAGAIN; -FI_EINVAL: lengths, iov count, desc;
// -FI_EMSGSIZE.
int FillSendWqe(Endpoint* ep, HwQp* qp, const SendRequest& request, Operation* operation);
// The whole of posting to one QP: an operation, its WQEs, the doorbell. The lock is held.
ssize_t PostToQp(Endpoint* ep, HwQp* qp, const SendRequest& request);
// The fid's operations, for endpoints of every kind, and for their aliases.
extern fi_ops_msg message_ops, alias_message_ops;
extern fi_ops_rma rma_ops, alias_rma_ops;
// receive.cc. -FI_EAGAIN: rx_attr.size wait already.
ssize_t PostReceive(ReceiveContext* receives, const ReceiveRequest& request);
// on_receive of an endpoint whose receives are its SRQ's: to CQ and counter, the operation to its
// pool once the NIC has released it. `source`: FI_SOURCE. No operation: data that came with a
// WRITE. `unknown`: the address of a source that is not in the AV (FI_SOURCE_ERR); else nullptr.
void FinishReceive(Endpoint* ep, Operation* operation, const shm::Cqe& cqe, fi_addr_t source,
                   const SockAddress* unknown = nullptr);
// A completion that nobody is told of: the operation to its pool once the NIC has released it.
void ForgetReceive(const shm::Cqe& cqe);
// Of all that `hw` has of the context's. None comes any more.
void ForgetReceives(HwCq* hw, const ReceiveContext* receives);
// on_send of an endpoint whose sends are a QP's.
void FinishSend(Endpoint* ep, Operation* operation, const shm::Cqe& cqe);
// Who sleeps for its receives has something to do there (`progress`). Locks may be held.
void WakeReceiver(Endpoint* ep);
// All that waits fails with FI_ECANCELED (FI_ENODEV: the daemon is gone), in the order of posting.
// The NIC takes none any more.
void FlushReceives(Endpoint* ep);
void FlushSends(Endpoint* ep);
// fi_cancel of a receive. 0; -FI_ENOENT: none, or it has a message already. One of several messages
// that has some ends behind them.
ssize_t CancelReceive(ReceiveContext* receives, Endpoint* ep, const void* context);
// All that wait; those that the NIC has ended complete.
void CancelReceives(Endpoint* ep);
void RegisterReceiver(ReceiveContext* receives, Endpoint* ep);
void UnregisterReceiver(ReceiveContext* receives, Endpoint* ep);
// Who a completion of a shared receive says that it is of: the QP, or of an RDM endpoint the place,
// whose handles are other ones. 0: that a receive is released says nobody in particular; then it is
// an endpoint that has completions in `hw`.
inline uint64_t ReceiverOfPlace(shm::Handle place) { return uint64_t{place} << 32; }
inline uint64_t ReceiverOf(const shm::Cqe& cqe) {
  return cqe.place != 0 ? ReceiverOfPlace(cqe.place) : cqe.qp_handle;
}
Endpoint* FindReceiver(ReceiveContext* receives, uint64_t receiver, const HwCq* hw);
// grh.cc: where the GRHs of a DGRAM endpoint's receives go, apart from the program's buffers.
int AllocateGrhs(ReceiveContext* receives, size_t bytes);
void FreeGrhs(ReceiveContext* receives);

// no_operations.cc.
extern fi_ops_tagged no_tagged;
extern fi_ops_msg no_messages;
extern fi_ops_rma no_rma;
extern fi_ops_atomic no_atomics;

// What domain.cc and fabric.cc make endpoints by (their fi_ops), for each kind one.
int OpenMsgEndpoint(Domain* domain, fi_info* info, fid_ep** ep, void* context);
int OpenDgramEndpoint(Domain* domain, fi_info* info, fid_ep** ep, void* context);
int OpenRdmEndpoint(Domain* domain, fi_info* info, fid_ep** ep, void* context);
int OpenSharedReceives(Domain* domain, fi_rx_attr* attr, fid_ep** ep, void* context);
int OpenSharedTransmits(Domain* domain, fi_tx_attr* attr, fid_stx** stx, void* context);
int OpenPassiveEndpoint(Fabric* fabric, fi_info* info, fid_pep** pep, void* context);

// stx.cc. -FI_EINVAL: bound to one already, of another domain, or more than the context is.
int BindSharedTransmits(Endpoint* ep, TransmitContext* context);

// endpoint.cc. Progress calls it for each CQE, under no lock but that of the HwCq.
void OnCompletion(HwCq* hw, const shm::Cqe& cqe);
// Sets up what all endpoints have, of attributes that getinfo granted. `made` has its own kind's
// fid.cm from its caller.
int OpenEndpoint(Domain* domain, const fi_info* info, const EndpointKind* kind, Endpoint* made,
                 void* context);
// What fi_enable does of all kinds before theirs: CQs of the NIC, room in them, receives.
// `send_entries`: CQEs that sends may have outstanding.
int PrepareQueues(Endpoint* ep, uint64_t send_entries, uint64_t receive_entries);
void ReleaseQueues(Endpoint* ep);
// The cookie of a QP or place of the endpoint's.
uint64_t ReceiveIdOf(const Endpoint* ep);
inline bool IsReceiveId(uint64_t wr_id) { return (wr_id & 1) != 0; }
// What became of an operation, to CQ and counters, and the operation to its pool.
void Finish(Endpoint* ep, Operation* operation, const Completion& completion);
void FinishWithError(Endpoint* ep, Operation* operation, const Failure& failure);
// The FI errno and the words for a completion that failed; RNR gives FI_ENORX.
Failure FailureOf(const Operation& operation, const shm::Cqe& cqe);

// An error has disabled it, of which its EQ tells.  Spec: fi_endpoint(3), "critical error".
void ReportDisabled(Endpoint* ep, const Failure& failure);

// tclass.cc. The TOS byte of the packets that its traffic class asks for; 0: the network's default.
uint8_t TypeOfService(const Endpoint* ep);

// Its own authorization key, or the domain's.
struct AuthKey {
  const uint8_t* key;
  size_t bytes;
};
inline AuthKey AuthKeyOf(const Domain* domain, const fi_ep_attr* attr) {
  if (attr->auth_key_size != 0) return {attr->auth_key, attr->auth_key_size};
  return {domain->auth_key, domain->auth_key_size};
}

inline Endpoint* ToEndpoint(fid* fid) { return reinterpret_cast<Endpoint*>(fid); }
inline Endpoint* ToEndpoint(fid_ep* ep) { return reinterpret_cast<Endpoint*>(ep); }

}  // namespace verbena::fi
