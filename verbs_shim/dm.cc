// Device memory: the NIC's, which this process maps to copy to and from it.
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "core/client/no_cancel.h"
#include "verbs_shim/memory.h"
#include "verbs_shim/objects.h"
#include "verbs_shim/symver.h"

namespace verbena::verbs {
namespace {

// By a session of this process: device memory is the context's, and a forked child may use it.
template <typename Request>
int ExecuteHere(ibv_context* context, shm::CommandOp op, const Request& request, void* reply,
                uint32_t reply_bytes) {
  client::Session* session = ToContext(context)->session->ForThisProcess();
  if (session == nullptr) return errno;
  return session->Execute(op, &request, sizeof(request), reply, reply_bytes);
}

// Hardware's rules, to which programs keep: whole words of 4 bytes within the memory.
int CheckCopy(const Dm& dm, uint64_t offset, size_t length) {
  if (offset > dm.length || length > dm.length - offset) return EFAULT;
  return (offset | length) % 4 == 0 ? 0 : EINVAL;
}

// Each word is written, or read, at once: the NIC's atomics see no half of it.
int MemcpyToDm(ibv_dm* base, uint64_t offset, const void* from, size_t length) {
  Dm* dm = ToDm(base);
  int error = CheckCopy(*dm, offset, length);
  if (error != 0) return error;
  auto* to = reinterpret_cast<uint32_t*>(dm->data + offset);
  for (size_t i = 0; i < length / 4; ++i) {
    uint32_t word;
    memcpy(&word, static_cast<const uint8_t*>(from) + 4 * i, sizeof(word));
    __atomic_store_n(&to[i], word, __ATOMIC_RELAXED);
  }
  __atomic_thread_fence(__ATOMIC_RELEASE);
  return 0;
}

int MemcpyFromDm(void* to, ibv_dm* base, uint64_t offset, size_t length) {
  Dm* dm = ToDm(base);
  int error = CheckCopy(*dm, offset, length);
  if (error != 0) return error;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  const auto* from = reinterpret_cast<const uint32_t*>(dm->data + offset);
  for (size_t i = 0; i < length / 4; ++i) {
    const uint32_t word = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
    memcpy(static_cast<uint8_t*>(to) + 4 * i, &word, sizeof(word));
  }
  return 0;
}

}  // namespace

ibv_dm* MapDm(ibv_context* base, const shm::DmReply& reply) {
  auto* dm = new (std::nothrow) Dm();
  uint64_t bytes = 0;
  client::Session* session = ToContext(base)->session->ForThisProcess();
  int fd = session == nullptr ? -1 : session->TakeMemoryFd(reply.dm, &bytes);
  void* data = MAP_FAILED;
  if (fd >= 0 && reply.length <= bytes) {
    data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  int error = fd < 0 ? errno : ENOMEM;
  if (fd >= 0) close(fd);
  if (dm == nullptr || data == MAP_FAILED) {
    if (data != MAP_FAILED) munmap(data, bytes);
    delete dm;
    return Fail<ibv_dm>(error);
  }
  dm->base.context = base;
  dm->base.memcpy_to_dm = MemcpyToDm;
  dm->base.memcpy_from_dm = MemcpyFromDm;
  dm->base.handle = reply.dm;
  dm->data = static_cast<uint8_t*>(data);
  dm->mapped_bytes = bytes;
  dm->length = reply.length;
  return &dm->base;
}

void UnmapDm(Dm* dm) {
  munmap(dm->data, dm->mapped_bytes);
  delete dm;
}

// nullptr with errno: EINVAL: no bytes, more than max_dm_size, an alignment above 4 KiB, an unknown
// bit in comp_mask; ENOMEM: not that much is free.
ibv_dm* AllocDm(ibv_context* base, ibv_alloc_dm_attr* attr) {
  if (attr->comp_mask != 0) return Fail<ibv_dm>(EINVAL);
  client::NoCancel no_cancel;
  shm::DmReply reply = {};
  int error =
      ExecuteHere(base, shm::CommandOp::kAllocDm,
                  shm::AllocDmRequest{attr->length, attr->log_align_req, 0}, &reply, sizeof(reply));
  if (error != 0) return Fail<ibv_dm>(error);
  ibv_dm* dm = MapDm(base, reply);
  if (dm != nullptr) return dm;
  error = errno;
  ExecuteHere(base, shm::CommandOp::kFreeDm, shm::HandleRequest{reply.dm, 0}, nullptr, 0);
  return Fail<ibv_dm>(error);
}

// Errors: EBUSY while a region of it is registered.
int FreeDm(ibv_dm* base) {
  const client::Session* session = ToContext(base->context)->session;
  int error = ExecuteHere(base->context, shm::CommandOp::kFreeDm,
                          shm::HandleRequest{base->handle, 0}, nullptr, 0);
  // With the daemon its memory is gone.
  if (error != 0 && !(error == EIO && !session->IsForkedCopy() && session->KnownDead())) {
    return error;
  }
  UnmapDm(ToDm(base));
  return 0;
}

// nullptr with errno: EINVAL: not zero-based, a right that device memory does not have, a range
// beyond it, another context's PD; ENOMEM.
ibv_mr* RegDmMr(ibv_pd* pd, ibv_dm* dm, uint64_t dm_offset, size_t length, unsigned int wanted) {
  if (dm->context != pd->context) return Fail<ibv_mr>(EINVAL);
  auto* mr = new (std::nothrow) Mr();
  if (mr == nullptr) return Fail<ibv_mr>(ENOMEM);
  shm::RegMrReply reply = {};
  int error =
      Execute(ToContext(pd->context), shm::CommandOp::kRegDmMr,
              shm::RegDmMrRequest{pd->handle, dm->handle, dm_offset, length, wanted, 0}, &reply);
  if (error != 0) {
    delete mr;
    return Fail<ibv_mr>(error);
  }
  return Introduce(mr, MrKind::kDm, pd, length, reply);
}

}  // namespace verbena::verbs
