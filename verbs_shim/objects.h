// The shim's objects. Each begins with the public structure the program holds a pointer to; the
// shim's own fields follow it.
//
// Locks, in the order they are taken: Cq::lock, Context::qps_lock, SendQueue/RecvQueue::lock.
// EventStream::mutex comes before Context::table_mutex, which, as the mutexes of the public
// structures, is a leaf of control paths.
#pragma once

#include <errno.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/types.h"
#include "core/client/empty_polls.h"
#include "core/client/payload.h"
#include "core/client/session.h"
#include "core/client/sync.h"
#include "core/ring/completion_queue.h"
#include "core/ring/work_queue.h"
#include "core/shm/attach.h"
#include "core/shm/command.h"
#include "core/shm/layout.h"
#include "verbs_shim/abi.h"
#include "verbs_shim/object_table.h"
#include "verbs_shim/post_order.h"

namespace verbena::verbs {

using client::MutexGuard;
using client::SpinGuard;
using client::SpinLock;

struct Device {
  VerbsDevice base;  // must be first
  shm::NicInfo nic;
  Device* next;
};

struct Qp;

// The receiving end of a socket of event messages.
struct EventStream {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // who takes a message holds it
  // An object was destroyed while messages waited: some may be about it.
  bool may_hold_stale = false;
};

struct Context {
  VerbsContextFront front;
  verbs_context vctx;  // programs hold a pointer to its last member
  client::Session* session;
  Device* device;
  shm::QueryDeviceReply attr;
  pthread_mutex_t table_mutex;  // guards `table` and the *_reported counts of events
  ObjectTable table;
  SpinLock qps_lock;  // guards the list below
  Qp* qps;            // every QP: who must be flushed when the daemon is gone
  uint32_t qp_count;
  std::atomic<PostOrder*> post_order;  // from the kManyQps-th QP on; else nullptr
  std::atomic<bool> fatal_reported;
  EventStream async_events;
};
static_assert(offsetof(Context, vctx) == sizeof(VerbsContextFront));

struct Td {
  ibv_td base;  // must be first
  std::atomic<uint32_t> users;  // parent domains
  shm::Handle handle;
  shm::ThreadDoorbellPage* doorbells;  // nullptr: the context's
};

// A protection domain, or a parent domain: one with things of its own beside those of `parent_of`,
// whose handle it has.
struct Pd {
  ibv_pd base;  // must be first
  // Parent domains of it, and buffers; of a parent domain also all other objects.
  std::atomic<uint32_t> users;
  ibv_pd* parent_of;            // nullptr: a protection domain
  // Of a parent domain; each may be nullptr.
  Td* td;
  void* (*alloc)(ibv_pd* pd, void* pd_context, size_t size, size_t alignment, uint64_t type);
  void (*free)(ibv_pd* pd, void* pd_context, void* memory, uint64_t type);
  void* pd_context;
};

// Memory for a queue's entries that a parent domain's allocator gave, or none: they are in the
// arena then. A queue has one or the other for ever.
struct EntryBuffer {
  ibv_pd* pd;
  void* memory;
  uint64_t type;
};

// A hint for the bus between a NIC and memory. struct ibv_dmah of v64 has only the context.
struct Dmah {
  ibv_context* context;         // must be first
  std::atomic<uint32_t> users;  // regions
};

enum class MrKind : uint8_t { kProcess, kNull, kDm, kImported };

struct Mr {
  ibv_mr base;  // must be first
  MrKind kind;
  uint32_t access;
  client::Registration* registration;  // kProcess
  Dmah* dmah;                          // or nullptr
};

struct Dm {
  ibv_dm base;  // must be first
  uint8_t* data;  // mapped
  uint64_t mapped_bytes;
  uint64_t length;
};

struct Mw {
  ibv_mw base;
};

struct Ah {
  ibv_ah base;
};

struct Channel {
  ibv_comp_channel base;
  shm::Handle handle;
  EventStream events;
};

struct Cq {
  union {  // must be first: one object serves as both
    ibv_cq base;
    ibv_cq_ex ex;
  };
  Context* context;
  uint64_t cookie;
  uint32_t comp_events_reported;   // table_mutex
  uint32_t async_events_reported;  // table_mutex
  ibv_pd* parent_domain;  // or nullptr
  SpinLock lock;
  // The rest under `lock`.
  CqConsumer ring;
  EntryBuffer entries;
  bool has_own_entries;  // constant
  const shm::Cqe* current;  // of an extended poll
  bool current_is_flush;
  bool is_at_end;  // the daemon is gone, and nothing is left to tell
  shm::Cqe flush;  // made here when the daemon is gone
  client::EmptyPolls empty_polls;  // told without the lock
};
static_assert(offsetof(Cq, context) == sizeof(ibv_cq_ex));

// What a send queue and a receive queue have in common.
// What posting touches comes first.
struct PostQueue {
  SpinLock lock;
  uint32_t max_sge;
  WorkQueueProducer ring;  // lock
  client::Doorbell doorbell;
  EntryBuffer entries;  // lock
  bool flushing;         // lock: the daemon is gone and flush_index counts
  uint32_t flush_index;  // lock: next entry to be reported as flushed
};

struct Srq {
  ibv_srq base;  // must be first
  bool has_own_entries;  // constant
  Context* context;
  uint64_t cookie;
  uint32_t events_reported;  // table_mutex
  uint32_t srqn;
  PostQueue queue;
};

// With many QPs each line that ibv_post_send touches comes from far away: that of the ibv_qp, and
// two side by side, which processors fetch together.
inline constexpr size_t kLinePairBytes = 128;

struct alignas(kLinePairBytes) Qp {
  QpExV64 ex;  // must be first; its own first member is the ibv_qp
  alignas(kLinePairBytes) Context* context;
  std::atomic<uint32_t> state;        // ibv_qp_state as last learnt
  std::atomic<uint32_t> ece_options;  // verbenadv_ece_options
  uint32_t max_inline_bytes;
  PostQueue sq;
  PostQueue rq;
  uint64_t cookie;
  uint32_t events_reported;  // table_mutex
  bool is_extended;          // created with IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
  bool sq_sig_all;
  bool has_rq;
  ibv_qp_cap cap;
  // One ibv_wr_start … ibv_wr_complete, under sq.lock.
  shm::SendWqe* wr;   // being built; nullptr after an error
  uint32_t wr_count;  // entries reserved
  int wr_error;
  Qp* next;
  Qp* previous;

  ibv_qp* base() { return &ex.ex.qp_base; }
};

inline Context* ToContext(ibv_context* context) {
  return reinterpret_cast<Context*>(reinterpret_cast<char*>(context) -
                                    offsetof(verbs_context, context) - sizeof(VerbsContextFront));
}
inline ibv_context* Base(Context* context) { return &context->vctx.context; }
inline Device* ToDevice(ibv_device* device) { return reinterpret_cast<Device*>(device); }
inline Pd* ToPd(ibv_pd* pd) { return reinterpret_cast<Pd*>(pd); }
inline Td* ToTd(ibv_td* td) { return reinterpret_cast<Td*>(td); }
inline Mr* ToMr(ibv_mr* mr) { return reinterpret_cast<Mr*>(mr); }
inline Mw* ToMw(ibv_mw* mw) { return reinterpret_cast<Mw*>(mw); }
inline Dm* ToDm(ibv_dm* dm) { return reinterpret_cast<Dm*>(dm); }
inline Ah* ToAh(ibv_ah* ah) { return reinterpret_cast<Ah*>(ah); }
inline Channel* ToChannel(ibv_comp_channel* channel) { return reinterpret_cast<Channel*>(channel); }
inline Cq* ToCq(ibv_cq* cq) { return reinterpret_cast<Cq*>(cq); }
inline Cq* ToCq(ibv_cq_ex* cq) { return reinterpret_cast<Cq*>(cq); }
inline Srq* ToSrq(ibv_srq* srq) { return reinterpret_cast<Srq*>(srq); }
inline Qp* ToQp(ibv_qp* qp) { return reinterpret_cast<Qp*>(qp); }
inline Qp* ToQp(ibv_qp_ex* qp) { return reinterpret_cast<Qp*>(qp); }

// --- commands -----------------------------------------------------------------------------------

template <typename Request, typename Reply>
int Execute(Context* context, shm::CommandOp op, const Request& request, Reply* reply) {
  return context->session->Execute(op, &request, sizeof(request), reply, sizeof(*reply));
}
template <typename Request>
int Execute(Context* context, shm::CommandOp op, const Request& request) {
  return context->session->Execute(op, &request, sizeof(request), nullptr, 0);
}
template <typename Reply>
int ExecuteEmpty(Context* context, shm::CommandOp op, Reply* reply) {
  return context->session->Execute(op, nullptr, 0, reply, sizeof(*reply));
}
inline int ExecuteHandle(Context* context, shm::CommandOp op, shm::Handle handle) {
  return Execute(context, op, shm::HandleRequest{handle, 0});
}
// Destroying succeeds when the daemon is gone: the object is gone with it, and a program must be
// able to give back its memory.
int ExecuteDestroy(Context* context, shm::CommandOp op, shm::Handle handle);

// Sets errno to `error`, for verbs that return a pointer or -1.
template <typename T = void>
T* Fail(int error) {
  errno = error;
  return nullptr;
}

// Text to stderr when VERBENA_DEBUG is set, nothing otherwise.
void Debug(const char* format, ...) __attribute__((format(printf, 1, 2)));

// --- domains ------------------------------------------------------------------------------------

// An object made with the domain comes to be, and ends. The NIC counts those of a protection
// domain, and does not know parent domains. Null is nobody's.
inline void Use(ibv_pd* pd) {
  if (pd != nullptr && ToPd(pd)->parent_of != nullptr) ToPd(pd)->users.fetch_add(1);
}
inline void Unuse(ibv_pd* pd) {
  if (pd != nullptr && ToPd(pd)->parent_of != nullptr) ToPd(pd)->users.fetch_sub(1);
}
// Asks the domain's allocator, if there is one, for `bytes` of memory; it comes zeroed. On the
// caller's thread, and without locks: an allocator may call verbs.  Errors: ENOMEM: the allocator
// says so; EINVAL: it gave memory that is not aligned as was asked.
int AllocateEntries(ibv_pd* pd, uint64_t bytes, uint32_t resource, EntryBuffer* out);
// To whom it came from; once.
void FreeEntries(EntryBuffer* entries);
inline shm::EntryAddress AddressOf(const EntryBuffer& entries) {
  return reinterpret_cast<shm::EntryAddress>(entries.memory);
}
// The handle by which work requests of `context` name the object: none if it is another context's,
// whose handles count on their own.
template <typename Object>
shm::Handle HandleIn(const Context* context, const Object* object) {
  return object->context == &context->vctx.context ? object->handle : 0;
}
inline bool HasThreadDomain(ibv_pd* pd) { return pd != nullptr && ToPd(pd)->td != nullptr; }

// --- between the files of the shim -------------------------------------------------------------

// The device of `nic`, the same pointer each time; nullptr: no memory.
Device* DeviceOf(const shm::NicInfo& nic);
// Takes the session. nullptr with errno.
ibv_context* OpenContext(Device* device, client::Session* session);
// Device memory whose fd is on its way. nullptr with errno.
ibv_dm* MapDm(ibv_context* context, const shm::DmReply& reply);
void UnmapDm(Dm* dm);
void FillDeviceAttr(const shm::QueryDeviceReply& reply, ibv_device_attr* attr);
int QueryPort(Context* context, uint32_t port, PortAttrV64* out);
// 0, ENODATA for an empty entry, EINVAL beyond the table, or EIO.
int QueryGid(Context* context, uint32_t port, uint32_t index, ibv_gid_entry* out);
shm::AhAttr ToShm(const ibv_ah_attr& attr);
void FromShm(const shm::AhAttr& attr, ibv_ah_attr* out);
int CreateQp(Context* context, ibv_qp_init_attr_ex* attr, ibv_qp** out);
void SetSendOps(Qp* qp, uint64_t send_ops_flags);
bool SendOpsSupported(ibv_qp_type type, uint64_t send_ops_flags);
inline constexpr uint64_t kWcFlagsTimestamps =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
Cq* CreateCq(Context* context, const ibv_cq_init_attr_ex& attr);
void SetReadOps(Cq* cq, uint64_t wc_flags);

void SetWindowOps(ibv_context_ops* ops);

// Entry points reached through function pointers in ibv_context and verbs_context.
int PollCq(ibv_cq* cq, int num_entries, ibv_wc* wc);
int ReqNotifyCq(ibv_cq* cq, int solicited_only);
int ModifyCq(ibv_cq* cq, ibv_modify_cq_attr* attr);
int ModifyQpRateLimit(ibv_qp* qp, ibv_qp_rate_limit_attr* attr);
int PostSend(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);
int PostRecv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);
int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);
int QueryPortSized(ibv_context* context, uint8_t port, ibv_port_attr* attr, size_t attr_bytes);
int QueryDeviceEx(ibv_context* context, const ibv_query_device_ex_input* input,
                  ibv_device_attr_ex* attr, size_t attr_bytes);
int QueryRtValues(ibv_context* context, ibv_values_ex* values);
ibv_cq_ex* CreateCqEx(ibv_context* context, ibv_cq_init_attr_ex* attr);
ibv_qp* CreateQpEx(ibv_context* context, ibv_qp_init_attr_ex* attr);
ibv_srq* CreateSrqEx(ibv_context* context, ibv_srq_init_attr_ex* attr);
ibv_mr* AllocNullMr(ibv_pd* pd);
ibv_dm* AllocDm(ibv_context* context, ibv_alloc_dm_attr* attr);
int FreeDm(ibv_dm* dm);
ibv_mr* RegDmMr(ibv_pd* pd, ibv_dm* dm, uint64_t dm_offset, size_t length, unsigned int wanted);
ibv_td* AllocTd(ibv_context* context, ibv_td_init_attr* attr);
int DeallocTd(ibv_td* td);
ibv_pd* AllocParentDomain(ibv_context* context, ibv_parent_domain_init_attr* attr);

// The next completion of a CQ whose lock is held, or nullptr; and its consumption. Completions of
// queues that a dead daemon left behind come after those it wrote.
const shm::Cqe* NextCompletion(Cq* cq);
void ConsumeCompletion(Cq* cq);

// The events of an object that has just left the table are nobody's: as with the kernel, a program
// does not find its fd readable for them. Asynchronous events; completion events of a channel.
void DropStaleEvents(Context* context);
void DropStaleEvents(Context* context, Channel* channel);

// Waits until the program acknowledged every event it got of an object that goes away.
void AwaitAcks(pthread_mutex_t* mutex, pthread_cond_t* cond, const uint32_t* completed,
               uint32_t reported);

}  // namespace verbena::verbs
