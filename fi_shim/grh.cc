// Where the GRHs of datagrams go: memory of the provider's own, so that what the program gave for
// its message holds the message alone.
#include <sys/mman.h>

#include "core/base/types.h"
#include "fi_shim/endpoint.h"

namespace verbena::fi {
namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

int AllocateGrhs(ReceiveContext* receives, size_t bytes) {
  bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return -FI_ENOMEM;
  receives->grhs = static_cast<uint8_t*>(memory);
  receives->grh_bytes = bytes;
  shm::RegMrRequest request = {};
  request.pd = receives->pd;
  request.access = access::kLocalWrite;
  request.addr = request.iova = reinterpret_cast<uint64_t>(memory);
  request.length = bytes;
  shm::RegMrReply reply = {};
  const int error = Execute(receives->domain, shm::CommandOp::kRegMr, request, &reply);
  if (error != 0) return error;
  receives->grh_mr = reply.mr;
  receives->grh_lkey = reply.lkey;
  return 0;
}

void FreeGrhs(ReceiveContext* receives) {
  if (receives->grh_mr != 0) {
    const shm::HandleRequest request = {receives->grh_mr, 0};
    receives->domain->session->Execute(shm::CommandOp::kDeregMr, &request, sizeof(request), nullptr,
                                       0);
  }
  if (receives->grhs != nullptr) munmap(receives->grhs, receives->grh_bytes);
  receives->grhs = nullptr;
  receives->grh_mr = 0;
}

}  // namespace verbena::fi
