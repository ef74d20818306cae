// Registration of memory.
#include "fi_shim/mr.h"

#include <string.h>
#include <sys/random.h>
#include <sys/uio.h>

#include <new>

#include "core/base/types.h"
#include "core/client/no_cancel.h"
#include "core/shm/rdm.h"
#include "fi_shim/enums.h"
#include "fi_shim/hmem.h"
#include "fi_shim/protection.h"

namespace verbena::fi {
namespace {

constexpr uint64_t kKnownAccess =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
// Numbers drawn until one is free: with half of all taken, one in 2^32 gets none.
constexpr int kDrawsMax = 32;

uint32_t AccessOf(const Domain* domain, const Mr::State& state) {
  uint32_t bits = 0;
  // Remote rights to write need the local one, as with verbs.  Spec: IBTA 11.2.8.2.
  if ((state.access & (FI_RECV | FI_READ | FI_REMOTE_WRITE)) != 0) bits |= access::kLocalWrite;
  if ((state.access & FI_REMOTE_READ) != 0) bits |= access::kRemoteRead;
  if ((state.access & FI_REMOTE_WRITE) != 0) bits |= access::kRemoteWrite;
  if ((domain->mr_mode & FI_MR_VIRT_ADDR) == 0) bits |= access::kZeroBased;
  return bits;
}

// What a desc of the domain's regions has in its upper half, so that others are recognised.
uint64_t DescTag(const Domain* domain) {
  const auto address = reinterpret_cast<uintptr_t>(domain);
  return (static_cast<uint64_t>(address >> 4) | 1u << 31) << 32;
}

// What libfabric's own layers (ofi_rxm) say to each other: not to be kept in a cache.
constexpr uint64_t kNotCached = 1ULL << 60;

int CheckFlags(const Domain* domain, uint64_t flags, uint64_t access) {
  if ((flags & ~(FI_RMA_EVENT | kNotCached)) != 0) return -FI_EBADFLAGS;
  if ((access & FI_COLLECTIVE) != 0) return -FI_EBADFLAGS;
  if ((access & ~kKnownAccess) != 0) return -FI_EINVAL;
  if ((flags & FI_RMA_EVENT) != 0 && (domain->caps & FI_RMA_EVENT) == 0) return -FI_EBADFLAGS;
  return 0;
}

int CheckAttr(const Domain* domain, const fi_mr_attr* attr, uint64_t flags) {
  if (attr == nullptr || attr->mr_iov == nullptr || attr->iov_count == 0) return -FI_EINVAL;
  if (attr->iov_count > kMrIovLimit || attr->offset != 0) return -FI_EINVAL;
  const auto addr = reinterpret_cast<uintptr_t>(attr->mr_iov[0].iov_base);
  const size_t length = attr->mr_iov[0].iov_len;
  if (length == 0 || addr + length < addr) return -FI_EINVAL;
  if (int error = CheckFlags(domain, flags, attr->access); error != 0) return error;
  // Without the program's own functions there is nobody to move bytes of devices.
  const bool names_iface = (domain->caps & FI_HMEM) != 0 && domain->hmem == nullptr;
  if (names_iface && NumberOf(attr->iface) != FI_HMEM_SYSTEM) return -FI_ENOSYS;
  if (domain->hmem != nullptr && !IsUpTo(attr->iface, FI_HMEM_SYNAPSEAI)) return -FI_EINVAL;
  const bool chooses_key = (domain->mr_mode & FI_MR_PROV_KEY) == 0;
  if (chooses_key && attr->requested_key > kMrKeyMax) return -FI_EKEYREJECTED;
  return 0;
}

// Asks for one key, or draws until one is free.
int Execute(Domain* domain, bool draws, shm::RegMrRequest* request, shm::RegMrReply* reply) {
  for (int i = 0;; ++i) {
    if (draws && getrandom(&request->own_key, sizeof(request->own_key), 0) < 0) return EAGAIN;
    const int error =
        client::ExecuteWithHelp(domain->session, shm::CommandOp::kRegMr, request, request, reply);
    if (error != EEXIST || !draws || i == kDrawsMax) return error;
  }
}

void Introduce(Domain* domain, Mr* mr) {
  domain->users.fetch_add(1);
  client::MutexGuard guard(domain->keys_mutex);
  mr->state->next = domain->mrs;
  if (domain->mrs != nullptr) domain->mrs->state->previous = mr;
  domain->mrs = mr;
}

void Destroy(Domain* domain, Mr* mr) {
  if (mr->state->protection != nullptr) LetGo(domain, mr->state->protection);
  delete mr->state;
  delete mr;
}

void Leave(Domain* domain, Mr* mr) {
  {
    client::MutexGuard guard(domain->keys_mutex);
    if (mr->state->next != nullptr) mr->state->next->state->previous = mr->state->previous;
    if (mr->state->previous != nullptr) {
      mr->state->previous->state->next = mr->state->next;
    } else {
      domain->mrs = mr->state->next;
    }
  }
  domain->users.fetch_sub(1);
}

// Errors: -FI_EBUSY: the endpoint that it is bound to is open still. Counters are closed after
// their regions.  Spec: fi_mr(3), fi_cntr(3).
int Close(fid* fid) {
  Mr* mr = reinterpret_cast<Mr*>(fid);
  Domain* domain = mr->domain;
  client::NoCancel no_cancel;
  ForgetPending(mr);
  {
    client::MutexGuard guard(domain->keys_mutex);
    if (mr->state->endpoint != nullptr) return -FI_EBUSY;
  }
  Deregister(mr);
  UnbindCounters(mr);
  RemoveDeviceRange(domain, mr->state->device_range);
  Leave(domain, mr);
  Destroy(domain, mr);
  return 0;
}

// The pages are there now, or others are: what of it is shared with the NIC is found anew. With
// `iov`, only what it names has to be there.
int Refresh(Mr* mr, const fi_mr_modify* modify) {
  Mr::State& state = *mr->state;
  if (modify == nullptr || modify->flags != 0) return -FI_EINVAL;
  if (state.handle == 0) return -FI_EOPBADSTATE;
  const bool writes = (AccessOf(mr->domain, state) & access::kLocalWrite) != 0;
  const bool is_partial = modify->attr.mr_iov != nullptr && modify->attr.iov_count != 0;
  const iovec whole = {reinterpret_cast<void*>(state.addr), state.length};
  const iovec* iov = is_partial ? modify->attr.mr_iov : &whole;
  const size_t count = is_partial ? modify->attr.iov_count : 1;
  for (size_t i = 0; i < count; ++i) {
    const auto begin = reinterpret_cast<uintptr_t>(iov[i].iov_base);
    const bool is_inside = begin >= state.addr && begin - state.addr <= state.length &&
                           iov[i].iov_len <= state.length - (begin - state.addr);
    if (!is_inside) return -FI_EINVAL;
  }
  for (size_t i = 0; i < count; ++i) {
    const int error = client::PopulateForRegistration(iov[i].iov_base, iov[i].iov_len, writes);
    if (error != 0) return -error;
  }
  auto* registration = new (std::nothrow) client::Registration();
  if (registration == nullptr) return -FI_ENOMEM;
  shm::ReregMrRequest request = {};
  request.mr = state.handle;
  request.changes = shm::kReregTranslation;
  request.region.access = AccessOf(mr->domain, state);
  request.region.addr = state.addr;
  request.region.length = state.length;
  request.region.flags = shm::kRegMrUnprobed;
  shm::RegMrReply reply = {};
  int error = client::PrepareRegion(mr->domain->session, client::Population::kLater, registration,
                                    &request.region);
  if (error == 0) {
    error = client::ExecuteWithHelp(mr->domain->session, shm::CommandOp::kReregMr, &request,
                                    &request.region, &reply);
  }
  delete (error == 0 ? state.registration : registration);
  if (error == 0) state.registration = registration;
  return -error;
}

int Control(fid* fid, int command, void* arg) {
  Mr* mr = reinterpret_cast<Mr*>(fid);
  client::NoCancel no_cancel;
  switch (command) {
    case FI_GET_RAW_MR:
      return RawAttr(mr, static_cast<const struct fi_mr_raw_attr*>(arg));
    case FI_REFRESH:
      return Refresh(mr, static_cast<const fi_mr_modify*>(arg));
    case FI_ENABLE:
      return EnableMr(mr);
    default:
      return -FI_ENOSYS;
  }
}

fi_ops g_fid_ops = {
    .size = sizeof(fi_ops),
    .close = Close,
    .bind = BindMr,
    .control = Control,
    .ops_open = [](fid*, const char*, uint64_t, void**, void*) { return -FI_ENOSYS; },
    .tostr = [](const fid*, char*, size_t) { return -FI_ENOSYS; },
    .ops_set = [](fid*, const char*, uint64_t, void*, void*) { return -FI_ENOSYS; },
};

// Errors: -FI_EINVAL; -FI_EKEYREJECTED: more bits than mr_key_size has; -FI_ENOKEY; -FI_EBADFLAGS;
// -FI_ENOSYS: memory of a device; -FI_EFAULT; -FI_ENOMEM: no room for it (mr_cnt); -FI_EIO.
int RegAttr(fid* fid, const fi_mr_attr* attr, uint64_t flags, fid_mr** out) {
  auto* domain = reinterpret_cast<Domain*>(fid);
  if (out == nullptr) return -FI_EINVAL;
  if (int error = CheckAttr(domain, attr, flags); error != 0) return error;
  client::NoCancel no_cancel;
  auto* mr = new (std::nothrow) Mr();
  auto* state = new (std::nothrow) Mr::State();
  if (mr == nullptr || state == nullptr) {
    delete mr;
    delete state;
    return -FI_ENOMEM;
  }
  mr->domain = domain;
  mr->state = state;
  mr->fid.fid = {FI_CLASS_MR, attr->context, &g_fid_ops};
  mr->fid.key = FI_KEY_NOTAVAIL;
  state->addr = reinterpret_cast<uintptr_t>(attr->mr_iov[0].iov_base);
  state->length = attr->mr_iov[0].iov_len;
  state->access = attr->access;
  state->requested_key = attr->requested_key;
  state->may_be_absent = (domain->mr_mode & FI_MR_ALLOCATED) == 0;
  state->begins_disabled =
      (domain->mr_mode & FI_MR_ENDPOINT) != 0 ||
      ((domain->mr_mode & FI_MR_RMA_EVENT) != 0 && (flags & FI_RMA_EVENT) != 0);
  int error = AddDeviceRange(domain, state->addr, state->length, *attr, &state->device_range);
  if (error == 0 && attr->auth_key_size != 0 &&
      FI_VERSION_GE(domain->api_version, FI_VERSION(1, 5))) {
    error = ProtectionOf(domain, attr->auth_key, attr->auth_key_size, &state->protection);
  }
  if (error == 0 && (domain->mr_mode & FI_MR_ENDPOINT) == 0 && !domain->reports_mr_by_eq) {
    error = Register(mr, PdOf(mr));
  }
  if (error != 0) {
    RemoveDeviceRange(domain, state->device_range);
    Destroy(domain, mr);
    return error;
  }
  Introduce(domain, mr);
  *out = &mr->fid;
  if (domain->reports_mr_by_eq) RegisterLater(mr);
  return 0;
}

int RegV(fid* fid, const iovec* iov, size_t count, uint64_t access, uint64_t offset,
         uint64_t requested_key, uint64_t flags, fid_mr** out, void* context) {
  fi_mr_attr attr = {};
  attr.mr_iov = iov;
  attr.iov_count = count;
  attr.access = access;
  attr.offset = offset;
  attr.requested_key = requested_key;
  attr.context = context;
  return RegAttr(fid, &attr, flags, out);
}

int Reg(fid* fid, const void* buf, size_t length, uint64_t access, uint64_t offset,
        uint64_t requested_key, uint64_t flags, fid_mr** out, void* context) {
  const iovec iov = {const_cast<void*>(buf), length};
  return RegV(fid, &iov, 1, access, offset, requested_key, flags, out, context);
}

}  // namespace

fi_ops_mr mr_ops = {
    .size = sizeof(fi_ops_mr),
    .reg = Reg,
    .regv = RegV,
    .regattr = RegAttr,
};

shm::Handle PdOf(const Mr* mr) {
  const Mr::State& state = *mr->state;
  return state.protection != nullptr ? state.protection->pd : mr->domain->pd;
}

int Register(Mr* mr, shm::Handle pd) {
  Domain* domain = mr->domain;
  Mr::State& state = *mr->state;
  auto* registration = new (std::nothrow) client::Registration();
  if (registration == nullptr) return -FI_ENOMEM;
  shm::RegMrRequest request = {};
  request.pd = pd;
  request.access = AccessOf(domain, state);
  request.addr = state.addr;
  request.length = state.length;
  request.iova = state.addr;
  request.flags = shm::kRegMrOwnKey;
  request.own_key = static_cast<uint32_t>(state.requested_key);
  if (state.may_be_absent) request.flags |= shm::kRegMrUnprobed;
  if (state.begins_disabled && !state.is_enabled) request.flags |= shm::kRegMrDisabled;
  shm::RegMrReply reply = {};
  const auto population =
      state.may_be_absent ? client::Population::kLater : client::Population::kNow;
  int error = client::PrepareRegion(domain->session, population, registration, &request);
  if (error == 0) {
    error = Execute(domain, (domain->mr_mode & FI_MR_PROV_KEY) != 0, &request, &reply);
  }
  if (error != 0) {
    delete registration;
    return error == EEXIST ? -FI_ENOKEY : -error;
  }
  state.registration = registration;
  state.handle = reply.mr;
  state.key = reply.rkey;
  mr->lkey = reply.lkey;
  mr->fid.mem_desc = reinterpret_cast<void*>(DescTag(domain) | reply.lkey);
  if ((domain->mr_mode & FI_MR_RAW) == 0) mr->fid.key = reply.rkey;
  return 0;
}

void Deregister(Mr* mr) {
  Mr::State& state = *mr->state;
  if (state.handle == 0) return;
  const shm::HandleRequest request = {state.handle, 0};
  // Fails only when the daemon is gone, and the region with it.
  mr->domain->session->Execute(shm::CommandOp::kDeregMr, &request, sizeof(request), nullptr, 0);
  delete state.registration;
  state.registration = nullptr;
  state.handle = 0;
  mr->fid.key = FI_KEY_NOTAVAIL;
}

int LocalKey(const Domain* domain, uint32_t whole_process_lkey, const void* desc, uint32_t* lkey) {
  if ((domain->mr_mode & FI_MR_LOCAL) == 0) {
    *lkey = whole_process_lkey;
    return 0;
  }
  const auto bits = reinterpret_cast<uint64_t>(desc);
  constexpr uint64_t kUpperHalf = ~uint64_t{UINT32_MAX};
  if ((bits & kUpperHalf) != DescTag(domain)) return -FI_EINVAL;
  // Of a PD that is not the domain's the key is that of all memory.
  *lkey = whole_process_lkey != 0 ? whole_process_lkey : static_cast<uint32_t>(bits);
  return 0;
}

}  // namespace verbena::fi
