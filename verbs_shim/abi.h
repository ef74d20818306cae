// The binary interface the shim offers: rdma-core v64's layouts on top of Debian's v44 headers.
//
// Programs built against any rdma-core from v17 to v64 look into these structures through the
// inlines of verbs.h, so every object is allocated in v64 size: what v64 appended is declared here.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

// Defines a function the library exports under the version node that versions.lds gives it.
#define VERBENA_EXPORT extern "C" __attribute__((visibility("default")))

namespace verbena::verbs {

// What v64 put in front of v44's verbs_context. `sz` tells a program that they are there; null
// pointers mean "not supported", as for every other operation.
struct VerbsContextFront {
  void (*free_buf)(void* buf);
  void* (*alloc_buf)(ibv_pd* pd, size_t size, void** buf);
  int (*dm_export_dmabuf_fd)(ibv_dm* dm);
  ibv_mr* (*reg_mr_ex)(ibv_pd* pd, void* init_attr);
  int (*dealloc_dmah)(void* dmah);
  void* (*alloc_dmah)(ibv_context* context, void* init_attr);
};
static_assert(sizeof(VerbsContextFront) == 6 * sizeof(void*));

inline constexpr size_t kVerbsContextBytesV64 = sizeof(VerbsContextFront) + sizeof(verbs_context);

// ibv_qp_ex with the pointer v64 appended.
struct QpExV64 {
  ibv_qp_ex ex;
  void (*wr_flush)(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, size_t len, uint8_t type,
                   uint8_t level);
};

// ibv_port_attr with the field v64 appended; verbs.h passes the size the program knows.
struct PortAttrV64 {
  ibv_port_attr attr;
  uint32_t active_speed_ex;
};

// The part of ibv_port_attr that the exported ibv_query_port fills: programs that call it directly
// (not through the inline) were built when the structure ended here.
inline constexpr size_t kPortAttrBytesCompat = 48;

// ibv_mr_init_attr and its mask, v64 (ibv_reg_mr_ex).
struct MrInitAttrV64 {
  size_t length;
  int access;
  uint64_t comp_mask;
  uint64_t iova;
  void* addr;
  int fd;
  uint64_t fd_offset;
  void* dmah;
  void* buf;
};
inline constexpr uint64_t kRegMrMaskIova = 1u << 0;
inline constexpr uint64_t kRegMrMaskAddr = 1u << 1;
inline constexpr uint64_t kRegMrMaskFd = 1u << 2;
inline constexpr uint64_t kRegMrMaskFdOffset = 1u << 3;
inline constexpr uint64_t kRegMrMaskDmah = 1u << 4;
inline constexpr uint64_t kRegMrMaskBuf = 1u << 5;

// ibv_dmah_init_attr and its mask, v64 (ibv_alloc_dmah).
struct DmahInitAttrV64 {
  uint32_t comp_mask;
  uint32_t cpu_id;
  uint8_t ph;
  uint8_t tph_mem_type;
};
inline constexpr uint32_t kDmahMaskCpuId = 1u << 0;
inline constexpr uint32_t kDmahMaskPh = 1u << 1;
inline constexpr uint32_t kDmahMaskMemType = 1u << 2;
inline constexpr uint8_t kTphMemTypeVm = 0;
inline constexpr uint8_t kTphMemTypePm = 1;

// Values that v64's enums add.
inline constexpr uint32_t kParentDomainAllowCcUnprotectedAllocV64 = 1u << 2;
inline constexpr int kEventDeviceSpeedChangeV64 = IBV_EVENT_WQ_FATAL + 1;
inline constexpr int kWrFlushV64 = 14;
inline constexpr uint64_t kQpExWithFlushV64 = 1u << 11;
inline constexpr uint8_t kFlushGlobalV64 = 1u << 0;  // enum ibv_placement_type
inline constexpr uint8_t kFlushPersistentV64 = 1u << 1;
inline constexpr uint8_t kFlushRangeV64 = 0;  // enum ibv_selectivity_level
inline constexpr uint8_t kFlushMrV64 = 1;
inline constexpr uint32_t kDataInOrderReturnCapsV64 = 1u << 0;
inline constexpr uint32_t kDataInOrderDeviceOnlyV64 = 1u << 1;

// libmlx5 and libefa look for their own operations right behind the 664 bytes of an ibv_device
// (struct verbs_device of driver.h, the same from v44 to v64) to tell whether a device is theirs.
struct VerbsDevice {
  ibv_device device;
  const void* ops;
  int refcount;
  void* list_next;
  void* list_prev;
  void* sysfs;
  uint64_t core_support;
};

// The layouts of v44, which the headers we build against must give.
static_assert(sizeof(ibv_device) == 664);
static_assert(offsetof(VerbsDevice, ops) == 664);
static_assert(sizeof(ibv_context) == 328);
static_assert(offsetof(ibv_context, ops) == 8);
static_assert(offsetof(ibv_context, cmd_fd) == 264);
static_assert(offsetof(ibv_context, abi_compat) == 320);
static_assert(sizeof(verbs_context) == 648);
static_assert(offsetof(verbs_context, context) == 320);
static_assert(sizeof(ibv_cq) == 128);
static_assert(sizeof(ibv_cq_ex) == 288);
static_assert(sizeof(ibv_qp) == 160);
static_assert(sizeof(ibv_qp_ex) == 352);
static_assert(sizeof(ibv_srq) == 128);
static_assert(sizeof(ibv_mr) == 48);
static_assert(sizeof(ibv_pd) == 16);
static_assert(sizeof(ibv_wc) == 48);
static_assert(sizeof(ibv_send_wr) == 128);
static_assert(sizeof(ibv_device_attr) == 232);
static_assert(sizeof(ibv_device_attr_ex) == 400);
static_assert(sizeof(ibv_port_attr) == 52);
static_assert(sizeof(ibv_gid_entry) == 32);
// And v64's.
static_assert(kVerbsContextBytesV64 == 696);
static_assert(sizeof(QpExV64) == 360);
static_assert(offsetof(QpExV64, wr_flush) == 352);
static_assert(sizeof(PortAttrV64) == 56);
static_assert(sizeof(MrInitAttrV64) == 72);
static_assert(sizeof(DmahInitAttrV64) == 12);

}  // namespace verbena::verbs
