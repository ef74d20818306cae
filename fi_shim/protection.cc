#include "fi_shim/protection.h"

#include <string.h>

#include <new>

#include "core/base/types.h"
#include "core/client/registration.h"
#include "core/shm/rdm.h"
#include "fi_shim/endpoint.h"

namespace verbena::fi {
namespace {

bool HasKey(const Protection& protection, const uint8_t* auth_key, size_t bytes) {
  return protection.auth_key_bytes == bytes && memcmp(protection.auth_key, auth_key, bytes) == 0;
}

bool IsTheDomains(const Domain* domain, const uint8_t* auth_key, size_t bytes) {
  return bytes == 0 ||
         (bytes == domain->auth_key_size && memcmp(domain->auth_key, auth_key, bytes) == 0);
}

// Where the program registers what its own operations use, nothing else is to be in their reach.
int RegisterWholeProcess(Domain* domain, shm::Handle pd, shm::RegMrReply* reply) {
  shm::RegMrRequest request = {};
  request.pd = pd;
  request.access = access::kLocalWrite;
  request.flags = shm::kRegMrWholeProcess;
  int error = client::PrepareWholeProcess(domain->session, &request);
  if (error == 0) {
    error =
        client::ExecuteWithHelp(domain->session, shm::CommandOp::kRegMr, &request, &request, reply);
  }
  return -error;
}

}  // namespace

namespace {

int Make(Domain* domain, bool needs_whole_process, shm::Handle* pd, shm::Handle* whole_process_mr,
         uint32_t* whole_process_lkey) {
  shm::HandleReply made = {};
  int error =
      -domain->session->Execute(shm::CommandOp::kAllocOwnKeyPd, nullptr, 0, &made, sizeof(made));
  if (error != 0) return error;
  *pd = made.handle;
  if (!needs_whole_process) return 0;
  shm::RegMrReply reply = {};
  error = RegisterWholeProcess(domain, made.handle, &reply);
  if (error != 0) {
    UnmakeProtection(domain, made.handle, 0);
    return error;
  }
  *whole_process_mr = reply.mr;
  *whole_process_lkey = reply.lkey;
  return 0;
}

}  // namespace

int MakeProtection(Domain* domain, shm::Handle* pd, shm::Handle* whole_process_mr,
                   uint32_t* whole_process_lkey) {
  const bool needs_whole_process = (domain->mr_mode & FI_MR_LOCAL) == 0;
  return Make(domain, needs_whole_process, pd, whole_process_mr, whole_process_lkey);
}

void UnmakeProtection(Domain* domain, shm::Handle pd, shm::Handle whole_process_mr) {
  // Fails only when the daemon is gone, and all of it with it.
  if (whole_process_mr != 0) {
    const shm::HandleRequest request = {whole_process_mr, 0};
    domain->session->Execute(shm::CommandOp::kDeregMr, &request, sizeof(request), nullptr, 0);
  }
  if (pd == 0) return;
  const shm::HandleRequest request = {pd, 0};
  domain->session->Execute(shm::CommandOp::kDeallocPd, &request, sizeof(request), nullptr, 0);
}

int ProtectionOf(Domain* domain, const uint8_t* auth_key, size_t bytes, Protection** out) {
  *out = nullptr;
  if (bytes > sizeof(Protection::auth_key) || (bytes != 0 && auth_key == nullptr)) {
    return -FI_EINVAL;
  }
  if (IsTheDomains(domain, auth_key, bytes)) return 0;
  client::MutexGuard guard(domain->keys_mutex);
  for (Protection* known = domain->protections; known != nullptr; known = known->next) {
    if (!HasKey(*known, auth_key, bytes)) continue;
    ++known->users;
    *out = known;
    return 0;
  }
  auto* made = new (std::nothrow) Protection();
  if (made == nullptr) return -FI_ENOMEM;
  // What the program registered for local use is in the domain's PD.
  const int error = Make(domain, /*needs_whole_process=*/true, &made->pd, &made->whole_process_mr,
                         &made->whole_process_lkey);
  if (error != 0) {
    delete made;
    return error;
  }
  memcpy(made->auth_key, auth_key, bytes);
  made->auth_key_bytes = bytes;
  made->users = 1;
  made->next = domain->protections;
  domain->protections = made;
  *out = made;
  return 0;
}

void LetGo(Domain* domain, Protection* protection) {
  client::MutexGuard guard(domain->keys_mutex);
  if (--protection->users != 0) return;
  Protection** link = &domain->protections;
  while (*link != protection) link = &(*link)->next;
  *link = protection->next;
  UnmakeProtection(domain, protection->pd, protection->whole_process_mr);
  delete protection;
}

int Protect(Endpoint* ep) {
  Domain* domain = ep->domain;
  if ((domain->mr_mode & FI_MR_ENDPOINT) != 0) {
    return MakeProtection(domain, &ep->pd, &ep->own_whole_process_mr, &ep->whole_process_lkey);
  }
  const fi_ep_attr* attr = ep->info != nullptr ? ep->info->ep_attr : nullptr;
  if (attr != nullptr && attr->auth_key != nullptr) {
    const int error = ProtectionOf(domain, attr->auth_key, attr->auth_key_size, &ep->protection);
    if (error != 0) return error;
  }
  const Protection* own = ep->protection;
  ep->pd = own != nullptr ? own->pd : domain->pd;
  ep->whole_process_lkey = own != nullptr ? own->whole_process_lkey : domain->whole_process_lkey;
  return 0;
}

void Unprotect(Endpoint* ep) {
  ForgetEndpoint(ep);
  if (ep->protection != nullptr) {
    LetGo(ep->domain, ep->protection);
    ep->protection = nullptr;
  } else if (ep->pd != 0 && ep->pd != ep->domain->pd) {
    UnmakeProtection(ep->domain, ep->pd, ep->own_whole_process_mr);
  }
  ep->pd = ep->own_whole_process_mr = 0;
}

}  // namespace verbena::fi
