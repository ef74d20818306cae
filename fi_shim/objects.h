// The provider's objects and what they ask of each other; the index of this folder.
//
//   fi_getinfo                    info.cc; info_describe.cc, info_narrow.cc and nic_attr.cc, which
//                                 ask no NIC
//   fabric, domain                fabric.cc, domain.cc: a session with one NIC, its PD
//   EQ, CQ, counter, wait, poll   eq.cc, cq.cc, cntr.cc, poll.cc; wait.cc, turns.cc: who sleeps
//   AV                            av.cc over av_table.h; with a name in a file: av_shared.h
//   MR, PDs                       mr.h, protection.h
//   endpoints                     endpoint.cc (what all have), msg.cc and cm.cc, dgram.cc, rdm.cc
//   shared contexts               srx.cc, stx.cc
//   posting                       post.cc: messages and RMA, of all kinds of endpoints
//   the NIC's queues              hw_cq.h, hw_qp.h over core/ring
//
// Every fid is the first member of its object, so that a fid's address is the object's.
//
// Thread: an object's lock is dropped where the domain's threading model says that nobody needs it
// (Lock::Elide). Order of locks: EP before CQ before EQ, counter. No callbacks while one is held.
// Errors: negative FI_ errnos, as libfabric returns them. Nothing here throws, logs or aborts.
#pragma once

#include <netinet/in.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/client/cm_session.h"
#include "core/client/session.h"
#include "core/shm/command.h"
#include "fi_shim/info.h"
#include "fi_shim/lock.h"

namespace verbena::fi {

struct Cq;
struct Eq;
struct Cntr;
struct Av;
struct Mr;
struct DeviceRange;
struct Endpoint;
struct HmemOverride;
struct HwCq;
struct Lane;
struct PendingMrs;
struct Protection;
struct RawKey;
struct ReceiveContext;

struct Fabric {
  fid_fabric fid;
  std::atomic<uint32_t> users{0};  // domains, EQs, wait sets, passive endpoints
  uint32_t api_version = 0;        // that the program asked for
  Fabric* next_open = nullptr;     // all that are open, in order (fabric.cc)
};
// The first that is open. nullptr: none is.
fid_fabric* FirstOpenFabric();
bool IsOpen(const fid_fabric* fabric);

// An address of an endpoint: a NIC's IP address, and a port of rdma_cm; of a DGRAM endpoint the
// port is 0 and `qpn` names it.
union SockAddress {
  sockaddr sa;
  sockaddr_in in;
  sockaddr_in6 in6;
};

struct Domain {
  fid_domain fid;
  Fabric* fabric = nullptr;
  std::atomic<uint32_t> users{0};
  uint32_t api_version = 0;
  client::Session* session = nullptr;
  shm::Handle pd = 0;  // of its own key space; with FI_MR_PROV_KEY mr.cc draws the keys
  uint32_t nic = 0;
  Limits limits;  // of its endpoints
  // As granted (fi_domain_attr); what of it is decided once and asked often.
  fi_threading threading = FI_THREAD_SAFE;
  fi_progress control_progress = FI_PROGRESS_AUTO, data_progress = FI_PROGRESS_AUTO;
  fi_resource_mgmt resource_mgmt = FI_RM_ENABLED;
  fi_av_type av_type = FI_AV_UNSPEC;
  uint64_t mr_mode = 0;  // bits; the old BASIC and SCALABLE are resolved to bits
  uint64_t caps = 0, mode = 0;
  uint32_t addr_format = FI_FORMAT_UNSPEC;
  uint32_t tclass = 0;
  uint8_t auth_key[32] = {};
  size_t auth_key_size = 0;
  Eq* eq = nullptr;  // fi_domain_bind
  bool reports_mr_by_eq = false;
  shm::Handle whole_process_mr = 0;
  uint32_t whole_process_lkey =
      0;  // of all our memory: the program registers none (no FI_MR_LOCAL)
  // For other authorization keys than the domain's (protection.h), raw keys (mr_raw.cc), and all
  // regions.
  pthread_mutex_t keys_mutex = PTHREAD_MUTEX_INITIALIZER;
  Protection* protections = nullptr;
  RawKey* raw_keys = nullptr;
  Mr* mrs = nullptr;
  PendingMrs* pending_mrs = nullptr;  // mr_events.cc
  HmemOverride* hmem = nullptr;       // the program moves bytes by itself: hmem.h
  Domain* owner = nullptr;            // fi_domain2 with FI_PEER: the owner's
  // EQs are told once that the NIC is gone.
  bool has_told_death = false;
  Domain* next_open = nullptr;  // all that are open, in order (domain.cc)
  char name[64] = {};
};

// Runs a command of the domain's session: 0 or a negative FI errno.
template <typename Request, typename Reply>
int Execute(Domain* domain, shm::CommandOp op, const Request& request, Reply* reply) {
  return -domain->session->Execute(op, &request, sizeof(request), reply, sizeof(*reply));
}

// --- Operations and completions -----------------------------------------------------------------

// What an endpoint remembers of an operation it has posted; a work request's wr_id is its address.
// Of a fixed pool per direction: tx_attr.size, rx_attr.size, so that -FI_EAGAIN comes at those.
struct Operation {
  Endpoint* endpoint = nullptr;
  ReceiveContext* receives = nullptr;  // of a receive; `endpoint` is null if it is a shared one's
  Lane* lane = nullptr;                // of a RDM endpoint's send: the one it was posted to
  Operation* next = nullptr;           // free list
  void* context = nullptr;
  uint64_t flags = 0;  // of the completion: FI_SEND, FI_RECV, FI_MSG, FI_RMA, FI_READ, FI_WRITE …
  void* buf = nullptr;
  size_t len = 0;
  uint64_t data = 0;
  fi_addr_t peer = FI_ADDR_NOTAVAIL;
  uint64_t sequence = 0;         // of its pool, in the order of posting
  Operation* later = nullptr;    // of its pool: one posted later (OperationPool::Oldest)
  Operation* alike = nullptr;    // of its pool: one that may have the same context (Find)
  uint16_t parts = 0;            // WQEs not completed yet: an RMA of several targets has several
  uint8_t failed_status = 0;     // WcStatus of the first part that failed
  uint32_t failed_vendor = 0;    // VendorErr of it
  bool is_taken = false;         // of its pool
  bool is_done = false;          // the NIC has ended it, and nobody was told yet
  bool wants_completion = true;  // in the CQ; counters count in any case
  bool is_multi = false;         // a receive of several messages
  bool is_cancelled = false;     // it ends with the last of the messages that it has
  bool is_inject = false;        // neither succeeds visibly nor has a context
  uint32_t messages = 0;         // of is_multi: handed out
  uint32_t messages_in_all = 0;  // of is_cancelled
};

// What a CQ entry of any format is made of.
struct Completion {
  void* context = nullptr;
  uint64_t flags = 0;
  size_t len = 0;
  void* buf = nullptr;
  uint64_t data = 0;
  uint64_t tag = 0;
  fi_addr_t source = FI_ADDR_NOTAVAIL;
};
struct Failure : Completion {
  int error = 0;     // positive FI errno
  int provider = 0;  // prov_errno: a WcStatus or 1000 + VendorErr; fi_cq_strerror explains
  size_t olen = 0;   // what was cut off
  const char* text = nullptr;  // for err_data, if the program has room
  // Instead of a text (FI_EADDRNOTAVAIL: the address of the source). Both are copied.
  const void* err_data = nullptr;
  size_t err_data_bytes = 0;
};

// fi_cq. Its HwCq may serve several endpoints; what the program has not read yet waits here.
struct Cq {
  fid_cq fid;
  Domain* domain = nullptr;
  std::atomic<uint32_t> users{0};  // endpoints bound, wait sets, poll sets
  Lock lock;
  HwCq* hw = nullptr;
  struct State;
  State* state = nullptr;  // cq.cc
};
// To be called by an endpoint, under no CQ lock of its own; wakes who waits.
void Complete(Cq* cq, const Completion& completion);
void Fail(Cq* cq, const Failure& failure);
// For the counters of an operation's kind; either may be nullptr.
void Count(Cntr* cntr);
void CountError(Cntr* cntr);
// Who sleeps until something is there looks once more: another thread has left him something to do.
void Wake(Cq* cq);
void Wake(Cntr* cntr);

// Takes what the NIC has completed, and hands each to its endpoint (OnCompletion). What every read
// of a CQ, counter, EQ or poll set does first.
void Progress(HwCq* hw);

struct Cntr {
  fid_cntr fid;
  Domain* domain = nullptr;
  std::atomic<uint32_t> users{0};
  std::atomic<uint64_t> value{0}, errors{0};
  struct State;
  State* state = nullptr;  // cntr.cc: who is to be polled, who waits, the NIC's own counter
};

// The NIC's half of a counter, made on first use: it counts what happens at the target alone
// (FI_RMA_EVENT). Of no counter (nullptr) it is 0. -FI_ENOMEM; -FI_EIO.
int CounterOf(Cntr* cntr, shm::Handle* out);

struct Eq {
  fid_eq fid;
  Fabric* fabric = nullptr;
  std::atomic<uint32_t> users{0};
  Lock lock;
  struct State;
  State* state = nullptr;  // eq.cc
};
// Copies `bytes` of an entry (fi_eq_entry, fi_eq_cm_entry with its data).
void Post(Eq* eq, uint32_t event, const void* entry, size_t bytes);
void PostError(Eq* eq, const fi_eq_err_entry& entry, const void* err_data, size_t bytes);
// Of an object that is about to be closed, and of which nobody tells any more: a program could not
// do anything with what it is told, and another object may have the address by then.
void ForgetEvents(Eq* eq, fid_t object);
// A source of CM events that reading the EQ has to ask first, and its fd for who waits.
// Forget waits until nobody is in `ask` any more.
using AskSource = void (*)(void* source);
int AddSource(Eq* eq, int fd, AskSource ask, void* source);
void RemoveSource(Eq* eq, int fd);

struct Av {
  fid_av fid;
  Domain* domain = nullptr;
  std::atomic<uint32_t> users{0};
  // Raised by each removal (or new name, FI_AV_USER_ID), and each insertion, of this process; of a
  // named AV `others` counts both, of all processes.
  std::atomic<uint32_t> own_removals{0};
  std::atomic<uint32_t> own_insertions{0};
  const std::atomic<uint32_t>* others = nullptr;
  struct State;
  State* state = nullptr;  // av.cc

  // Another number than before: who remembers what an fi_addr_t stands for, or that nothing does,
  // asks anew. Numbers are small: an index for both types of AV.
  uint32_t removals() const { return own_removals.load(std::memory_order_acquire) + OfOthers(); }
  uint32_t insertions() const {
    return own_insertions.load(std::memory_order_acquire) + OfOthers();
  }

 private:
  uint32_t OfOthers() const {
    return others == nullptr ? 0 : others->load(std::memory_order_acquire);
  }
};
// False: none such. Both take an address as addr_format of the domain has it.
bool Lookup(Av* av, fi_addr_t addr, SockAddress* out);
// What completions call a source: its number, or the program's own (FI_AV_USER_ID); else
// FI_ADDR_NOTAVAIL.
fi_addr_t FindByAddress(Av* av, const SockAddress& address);

struct Mr {
  fid_mr fid;
  Domain* domain = nullptr;
  uint32_t lkey = 0;
  struct State;
  State* state = nullptr;  // mr.cc
};

// The lkey for a buffer of the program: of `desc` where FI_MR_LOCAL is on, else
// `whole_process_lkey` (of the endpoint or receive context that posts). -FI_EINVAL: no desc, or one
// of another domain.
int LocalKey(const Domain* domain, uint32_t whole_process_lkey, const void* desc, uint32_t* lkey);

// mr.cc, of the domain: fid_domain.mr, and its fi_control for raw keys (FI_MAP_RAW_MR,
// FI_UNMAP_KEY).
extern fi_ops_mr mr_ops;
int ControlRawKeys(Domain* domain, int command, void* arg);
// From fi_domain_bind with FI_REG_MR on; and when the domain is closed. -FI_ENOMEM; -FI_EMFILE.
int StartReportingMrs(Domain* domain, Eq* eq);
void StopReportingMrs(Domain* domain);
// Whom regions may be bound to is closed: before its PD goes.
void ForgetEndpoint(Endpoint* ep);

}  // namespace verbena::fi
