// What v64 adds to registration: buffers the library allocates, DMA handles, and one call with a
// description for every kind of region.
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <new>

#include "verbs_shim/memory.h"
#include "verbs_shim/objects.h"

namespace verbena::verbs {
namespace {

// struct ibv_buf is opaque to programs. It counts as a user of its PD.
struct Buf {
  void* addr;
  size_t size;
  ibv_pd* pd;
};

bool Has(const MrInitAttrV64& attr, uint64_t mask) { return (attr.comp_mask & mask) != 0; }

bool IsInside(const Buf& buf, const void* addr, size_t length) {
  const auto base = reinterpret_cast<uintptr_t>(buf.addr);
  const auto start = reinterpret_cast<uintptr_t>(addr);
  return start >= base && start - base <= buf.size && length <= buf.size - (start - base);
}

bool MayRunOn(uint32_t cpu) {
  const auto count = static_cast<size_t>(sysconf(_SC_NPROCESSORS_CONF));
  if (cpu >= count) return false;
  cpu_set_t* set = CPU_ALLOC(count);
  if (set == nullptr) return false;
  const size_t bytes = CPU_ALLOC_SIZE(count);
  CPU_ZERO_S(bytes, set);
  const bool may = sched_getaffinity(0, bytes, set) == 0 && CPU_ISSET_S(cpu, bytes, set);
  CPU_FREE(set);
  return may;
}

}  // namespace

// Zeroed memory of whole pages. Its PD is in use until ibv_free_buf.  Errors: ENOMEM.
VERBENA_EXPORT void* ibv_alloc_buf(ibv_pd* pd, size_t size, void** buf) {
  auto* handle = new (std::nothrow) Buf();
  if (handle == nullptr) return Fail<void>(ENOMEM);
  size_t page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  size_t bytes = (size + page_bytes - 1) / page_bytes * page_bytes;
  void* addr = nullptr;
  if (bytes < size || posix_memalign(&addr, page_bytes, bytes == 0 ? page_bytes : bytes) != 0) {
    delete handle;
    return Fail<void>(ENOMEM);
  }
  memset(addr, 0, bytes);
  *handle = {addr, size, pd};
  ToPd(pd)->users.fetch_add(1);
  *buf = handle;
  return addr;
}

VERBENA_EXPORT void ibv_free_buf(void* buf) {
  auto* handle = static_cast<Buf*>(buf);
  ToPd(handle->pd)->users.fetch_sub(1);
  free(handle->addr);
  delete handle;
}

// No bus lies between this NIC and memory, so what the handle hints at changes nothing; what it
// says is judged as the kernel does it for devices that have one. Errors: EINVAL: an unknown bit in
// comp_mask, a hint above 3, an unknown kind of memory; EPERM: a CPU that is not there, or that the
// caller may not run on; ENOMEM. Spec: ibv_alloc_dmah(3); UVERBS_METHOD_DMAH_ALLOC of the kernel.
VERBENA_EXPORT Dmah* ibv_alloc_dmah(ibv_context* context, DmahInitAttrV64* attr) {
  constexpr uint32_t kKnown = kDmahMaskCpuId | kDmahMaskPh | kDmahMaskMemType;
  constexpr uint8_t kPhMax = 3;
  if ((attr->comp_mask & ~kKnown) != 0) return Fail<Dmah>(EINVAL);
  if ((attr->comp_mask & kDmahMaskPh) != 0 && attr->ph > kPhMax) return Fail<Dmah>(EINVAL);
  if ((attr->comp_mask & kDmahMaskMemType) != 0 && attr->tph_mem_type > kTphMemTypePm) {
    return Fail<Dmah>(EINVAL);
  }
  if ((attr->comp_mask & kDmahMaskCpuId) != 0 && !MayRunOn(attr->cpu_id)) return Fail<Dmah>(EPERM);
  auto* dmah = new (std::nothrow) Dmah();
  if (dmah == nullptr) return Fail<Dmah>(ENOMEM);
  dmah->context = context;
  return dmah;
}

// Errors: EBUSY while a region has it.
VERBENA_EXPORT int ibv_dealloc_dmah(Dmah* dmah) {
  if (dmah->users.load() != 0) return EBUSY;
  delete dmah;
  return 0;
}

// Errors: EOPNOTSUPP: by file descriptor, or an unknown bit in comp_mask; EINVAL: not one of
// address and file descriptor, a range that is not inside the buffer, a buffer of another PD or
// with a file descriptor, a DMA handle of another device; and as ibv_reg_mr_iova2. Spec:
// ibv_reg_mr(3) of v64.
VERBENA_EXPORT ibv_mr* ibv_reg_mr_ex(ibv_pd* pd, MrInitAttrV64* attr) {
  constexpr uint64_t kByFile = kRegMrMaskFd | kRegMrMaskFdOffset;
  constexpr uint64_t kKnown =
      kRegMrMaskIova | kRegMrMaskAddr | kByFile | kRegMrMaskDmah | kRegMrMaskBuf;
  if ((attr->comp_mask & ~kKnown) != 0) return Fail<ibv_mr>(EOPNOTSUPP);
  if (Has(*attr, kRegMrMaskAddr) == Has(*attr, kByFile)) return Fail<ibv_mr>(EINVAL);
  if (Has(*attr, kRegMrMaskBuf)) {
    const Buf& buf = *static_cast<const Buf*>(attr->buf);
    if (Has(*attr, kByFile) || buf.pd != pd || !IsInside(buf, attr->addr, attr->length)) {
      return Fail<ibv_mr>(EINVAL);
    }
  }
  if (Has(*attr, kByFile)) return Fail<ibv_mr>(EOPNOTSUPP);
  Dmah* dmah = Has(*attr, kRegMrMaskDmah) ? static_cast<Dmah*>(attr->dmah) : nullptr;
  if (dmah != nullptr && dmah->context != pd->context) return Fail<ibv_mr>(EINVAL);
  const uint64_t iova =
      Has(*attr, kRegMrMaskIova) ? attr->iova : reinterpret_cast<uint64_t>(attr->addr);
  ibv_mr* mr = RegMr(pd, attr->addr, attr->length, iova, static_cast<uint32_t>(attr->access));
  if (mr == nullptr || dmah == nullptr) return mr;
  dmah->users.fetch_add(1);
  ToMr(mr)->dmah = dmah;
  return mr;
}

VERBENA_EXPORT ibv_mr* ibv_reg_buf_mr(ibv_pd* pd, void* buf, void* addr, size_t length,
                                      int wanted) {
  MrInitAttrV64 attr = {};
  attr.length = length;
  attr.access = wanted;
  attr.comp_mask = kRegMrMaskAddr | kRegMrMaskBuf;
  attr.addr = addr;
  attr.buf = buf;
  return ibv_reg_mr_ex(pd, &attr);
}

}  // namespace verbena::verbs
