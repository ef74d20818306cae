// What rdma-core v64 declares and Debian's headers lack. The functions are found in the library
// that the program runs with.
#pragma once

#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

namespace verbena::conformance::v64 {

struct Buf;
struct Dmah {
  ibv_context* context;
};

struct DmahInitAttr {
  uint32_t comp_mask;
  uint32_t cpu_id;
  uint8_t ph;
  uint8_t tph_mem_type;
};
enum : uint32_t { kDmahCpuId = 1, kDmahPh = 2, kDmahMemType = 4 };
enum : uint8_t { kMemTypeVolatile = 0, kMemTypePersistent = 1 };

struct MrInitAttr {
  size_t length;
  int access;
  uint64_t comp_mask;
  uint64_t iova;
  void* addr;
  int fd;
  uint64_t fd_offset;
  Dmah* dmah;
  Buf* buf;
};
enum : uint64_t { kMrIova = 1, kMrAddr = 2, kMrFd = 4, kMrFdOffset = 8, kMrDmah = 16, kMrBuf = 32 };

// FLUSH.
struct QpEx {
  ibv_qp_ex ex;
  void (*wr_flush)(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr, size_t len, uint8_t type,
                   uint8_t level);
};
inline constexpr uint64_t kQpExWithFlush = 1u << 11;
inline constexpr auto kWrFlush = static_cast<ibv_wr_opcode>(14);
inline constexpr auto kWcFlush = static_cast<ibv_wc_opcode>(8);
inline constexpr uint32_t kAccessFlushGlobal = 1u << 8, kAccessFlushPersistent = 1u << 9;
inline constexpr uint8_t kFlushGlobal = 1, kFlushPersistent = 2;  // enum ibv_placement_type
inline constexpr uint8_t kFlushRange = 0, kFlushMr = 1;           // enum ibv_selectivity_level

inline constexpr uint32_t kParentDomainAllowCcUnprotectedAlloc = 1u << 2;

template <typename Function>
Function* Find(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

inline void* AllocBuf(ibv_pd* pd, size_t size, Buf** buf) {
  return Find<void*(ibv_pd*, size_t, Buf**)>("ibv_alloc_buf")(pd, size, buf);
}
inline void FreeBuf(Buf* buf) { Find<void(Buf*)>("ibv_free_buf")(buf); }
inline ibv_mr* RegBufMr(ibv_pd* pd, Buf* buf, void* addr, size_t length, int access) {
  return Find<ibv_mr*(ibv_pd*, Buf*, void*, size_t, int)>("ibv_reg_buf_mr")(pd, buf, addr, length,
                                                                            access);
}
inline ibv_mr* RegMrEx(ibv_pd* pd, MrInitAttr* attr) {
  return Find<ibv_mr*(ibv_pd*, MrInitAttr*)>("ibv_reg_mr_ex")(pd, attr);
}
inline Dmah* AllocDmah(ibv_context* context, DmahInitAttr* attr) {
  return Find<Dmah*(ibv_context*, DmahInitAttr*)>("ibv_alloc_dmah")(context, attr);
}
inline int DeallocDmah(Dmah* dmah) { return Find<int(Dmah*)>("ibv_dealloc_dmah")(dmah); }
inline int QueryPortSpeed(ibv_context* context, uint32_t port, uint64_t* speed) {
  return Find<int(ibv_context*, uint32_t, uint64_t*)>("ibv_query_port_speed")(context, port, speed);
}
inline int DmExportDmabufFd(ibv_dm* dm) {
  return Find<int(ibv_dm*)>("ibv_dm_export_dmabuf_fd")(dm);
}

}  // namespace verbena::conformance::v64
