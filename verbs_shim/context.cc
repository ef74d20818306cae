// Opening and closing a device; what the device can do.
#include <endian.h>
#include <string.h>
#include <time.h>

#include <cstdarg>
#include <cstdio>
#include <new>
#include <string>

#include "core/client/instance.h"
#include "core/client/no_cancel.h"
#include "core/client/no_memory.h"
#include "verbs_shim/objects.h"
#include "verbs_shim/symver.h"

#undef ibv_query_port

namespace verbena::verbs {
namespace {

int64_t ClockNs(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void SetOps(Context* context) {
  ibv_context_ops& ops = Base(context)->ops;
  SetWindowOps(&ops);
  ops.poll_cq = PollCq;
  ops.req_notify_cq = ReqNotifyCq;
  ops.post_srq_recv = PostSrqRecv;
  ops.post_send = PostSend;
  ops.post_recv = PostRecv;
  // Programs built before the size of ibv_port_attr was negotiated come through these.
  ops._compat_query_device = ibv_query_device;
  ops._compat_query_port = ibv_query_port;
  // What stays null is answered with EOPNOTSUPP by the inlines of verbs.h.
  verbs_context& vctx = context->vctx;
  vctx.query_port = QueryPortSized;
  vctx.query_device_ex = QueryDeviceEx;
  vctx.query_rt_values = QueryRtValues;
  vctx.create_cq_ex = CreateCqEx;
  vctx.modify_cq = ModifyCq;
  vctx.modify_qp_rate_limit = ModifyQpRateLimit;
  vctx.create_qp_ex = CreateQpEx;
  vctx.create_srq_ex = CreateSrqEx;
  vctx.alloc_td = AllocTd;
  vctx.dealloc_td = DeallocTd;
  vctx.alloc_parent_domain = AllocParentDomain;
  vctx.alloc_null_mr = AllocNullMr;
  vctx.alloc_dm = AllocDm;
  vctx.free_dm = FreeDm;
  vctx.reg_dm_mr = RegDmMr;
}

// Attaches, starting the instance again if it ended since the device was listed. 0 or errno. Throws
// where there is no memory.
int OpenSession(const Device& device, client::Session** session) {
  bool may_start = client::AutostartAllowed();
  client::StartOptions options;
  options.directory = client::InstanceDirectory(may_start);
  if (options.directory.empty()) return errno;
  std::string text;
  int error = client::OpenSession(options, may_start, device.nic.index, session, &text);
  if (error != 0) Debug("opening %s: %s", device.nic.name, text.c_str());
  return error;
}

Context* NewContext(Device* device, client::Session* session) {
  auto* context = new (std::nothrow) Context();
  if (context == nullptr) return nullptr;
  context->session = session;
  context->device = device;
  pthread_mutex_init(&context->table_mutex, nullptr);
  context->vctx.sz = kVerbsContextBytesV64;
  ibv_context* base = Base(context);
  base->device = &device->base.device;
  base->cmd_fd = session->cmd_fd();
  base->async_fd = session->async_fd();
  base->abi_compat = __VERBS_ABI_IS_EXTENDED;
  pthread_mutex_init(&base->mutex, nullptr);
  SetOps(context);
  return context;
}

}  // namespace

int ExecuteDestroy(Context* context, shm::CommandOp op, shm::Handle handle) {
  int error = ExecuteHandle(context, op, handle);
  return error == EIO && !context->session->IsAlive() ? 0 : error;
}

void Debug(const char* format, ...) {
  static const bool enabled = getenv("VERBENA_DEBUG") != nullptr;
  if (!enabled) return;
  int saved_errno = errno;
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  fprintf(stderr, "verbena: %s\n", line);
  errno = saved_errno;
}

void AwaitAcks(pthread_mutex_t* mutex, pthread_cond_t* cond, const uint32_t* completed,
               uint32_t reported) {
  // No guard: a thread may be cancelled here, as with rdma-core, and then must not meet cleanups.
  pthread_mutex_lock(mutex);
  // Counts wrap. Whoever acknowledges more than was reported must not wait for ever.
  while (static_cast<int32_t>(reported - *completed) > 0) pthread_cond_wait(cond, mutex);
  pthread_mutex_unlock(mutex);
}

// Errors: ENODEV: no such NIC any more; EPROTO: a daemon of another version; ENOMEM.
VERBENA_EXPORT ibv_context* ibv_open_device(ibv_device* device) {
  client::Session* session = nullptr;
  client::NoCancel no_cancel;
  int error = client::OrNoMemory([&] { return OpenSession(*ToDevice(device), &session); });
  return error == 0 ? OpenContext(ToDevice(device), session) : Fail<ibv_context>(error);
}

ibv_context* OpenContext(Device* device, client::Session* session) {
  Context* context = NewContext(device, session);
  if (context == nullptr) {
    session->Close();
    return Fail<ibv_context>(ENOMEM);
  }
  int error = ExecuteEmpty(context, shm::CommandOp::kQueryDevice, &context->attr);
  if (error != 0) {
    ibv_close_device(Base(context));
    return Fail<ibv_context>(error);
  }
  Base(context)->num_comp_vectors = static_cast<int>(context->attr.num_comp_vectors);
  return Base(context);
}

// Ends the session; the NIC destroys what the program left behind. Always 0.
VERBENA_EXPORT int ibv_close_device(ibv_context* base) {
  Context* context = ToContext(base);
  context->session->Close();
  context->table.Destroy();
  pthread_mutex_destroy(&context->table_mutex);
  pthread_mutex_destroy(&base->mutex);
  PostOrder::Free(context->post_order);
  delete context;
  return 0;
}

void FillDeviceAttr(const shm::QueryDeviceReply& reply, ibv_device_attr* attr) {
  *attr = {};
  memcpy(attr->fw_ver, reply.fw_ver, sizeof(attr->fw_ver));
  attr->fw_ver[sizeof(attr->fw_ver) - 1] = '\0';
  attr->node_guid = reply.node_guid;
  attr->sys_image_guid = reply.sys_image_guid;
  attr->max_mr_size = reply.max_mr_size;
  attr->page_size_cap = reply.page_size_cap;
  attr->vendor_id = reply.vendor_id;
  attr->vendor_part_id = reply.vendor_part_id;
  attr->hw_ver = reply.hw_ver;
  attr->max_qp = static_cast<int>(reply.max_qp);
  attr->max_qp_wr = static_cast<int>(reply.max_qp_wr);
  attr->device_cap_flags = reply.device_cap_flags;
  attr->max_sge = static_cast<int>(reply.max_sge);
  attr->max_sge_rd = static_cast<int>(reply.max_sge_rd);
  attr->max_cq = static_cast<int>(reply.max_cq);
  attr->max_cqe = static_cast<int>(reply.max_cqe);
  attr->max_mr = static_cast<int>(reply.max_mr);
  attr->max_pd = static_cast<int>(reply.max_pd);
  attr->max_qp_rd_atom = static_cast<int>(reply.max_qp_rd_atom);
  attr->max_res_rd_atom = static_cast<int>(reply.max_res_rd_atom);
  attr->max_qp_init_rd_atom = static_cast<int>(reply.max_qp_init_rd_atom);
  attr->atomic_cap = static_cast<ibv_atomic_cap>(reply.atomic_cap);
  attr->max_mw = static_cast<int>(reply.max_mw);
  attr->max_mcast_grp = static_cast<int>(reply.max_mcast_grp);
  attr->max_mcast_qp_attach = static_cast<int>(reply.max_mcast_qp_attach);
  attr->max_total_mcast_qp_attach = static_cast<int>(reply.max_total_mcast_qp_attach);
  attr->max_ah = static_cast<int>(reply.max_ah);
  attr->max_srq = static_cast<int>(reply.max_srq);
  attr->max_srq_wr = static_cast<int>(reply.max_srq_wr);
  attr->max_srq_sge = static_cast<int>(reply.max_srq_sge);
  attr->max_pkeys = static_cast<uint16_t>(reply.max_pkeys);
  attr->local_ca_ack_delay = static_cast<uint8_t>(reply.local_ca_ack_delay);
  attr->phys_port_cnt = static_cast<uint8_t>(reply.phys_port_cnt);
}

VERBENA_EXPORT int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  FillDeviceAttr(ToContext(context)->attr, attr);
  return 0;
}

// Fills what fits into attr_bytes; what this library does not know reads as zero.
int QueryDeviceEx(ibv_context* base, const ibv_query_device_ex_input* input,
                  ibv_device_attr_ex* attr, size_t attr_bytes) {
  if (input != nullptr && input->comp_mask != 0) return EINVAL;
  if (attr_bytes < sizeof(attr->orig_attr)) return EINVAL;
  const shm::QueryDeviceReply& reply = ToContext(base)->attr;
  ibv_device_attr_ex full = {};
  FillDeviceAttr(reply, &full.orig_attr);
  full.completion_timestamp_mask = reply.completion_timestamp_mask;
  full.hca_core_clock = reply.hca_core_clock_khz;
  full.device_cap_flags_ex = reply.device_cap_flags_ex | reply.device_cap_flags;
  full.phys_port_cnt_ex = reply.phys_port_cnt;
  full.packet_pacing_caps = {reply.qp_rate_limit_min_kbps, reply.qp_rate_limit_max_kbps,
                             reply.rate_limit_qpts};
  full.cq_mod_caps.max_cq_count = static_cast<uint16_t>(reply.max_cq_moderation_count);
  full.cq_mod_caps.max_cq_period = static_cast<uint16_t>(reply.max_cq_moderation_period_us);
  full.max_dm_size = reply.max_dm_size;
  memset(static_cast<void*>(attr), 0, attr_bytes);
  memcpy(static_cast<void*>(attr), &full, attr_bytes < sizeof(full) ? attr_bytes : sizeof(full));
  return 0;
}

// The device's clock is the machine's monotonic one, in nanoseconds.
int QueryRtValues(ibv_context* base, ibv_values_ex* values) {
  if (ToContext(base)->attr.completion_timestamp_mask == 0) return EOPNOTSUPP;
  uint32_t wanted = values->comp_mask;
  if ((wanted & ~uint32_t{IBV_VALUES_MASK_RAW_CLOCK}) != 0) return EINVAL;
  values->comp_mask = 0;
  if (wanted & IBV_VALUES_MASK_RAW_CLOCK) {
    // Raw clock ticks, as completions carry them: split as every provider does, all of it in ns.
    uint64_t ticks = static_cast<uint64_t>(ClockNs(CLOCK_MONOTONIC));
    values->raw_clock.tv_sec = 0;
    values->raw_clock.tv_nsec = static_cast<long>(ticks);
    values->comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  }
  return 0;
}

// --- fork: everything shared with the NIC is handled by the session -----------------------------

VERBENA_EXPORT int ibv_fork_init() { return 0; }
VERBENA_EXPORT ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }
VERBENA_EXPORT int ibv_dontfork_range(void*, size_t) { return 0; }
VERBENA_EXPORT int ibv_dofork_range(void*, size_t) { return 0; }

}  // namespace verbena::verbs

VERBENA_VERSION_1_1(ibv_open_device);
VERBENA_VERSION_1_1(ibv_close_device);
VERBENA_VERSION_1_1(ibv_query_device);
