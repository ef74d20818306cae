// fi_domain: a session with one NIC, and what is opened in it.
#include "fi_shim/domain.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <new>

#include "core/client/no_cancel.h"
#include "fi_shim/av.h"
#include "fi_shim/cntr.h"
#include "fi_shim/completion_queue.h"
#include "fi_shim/domain_attr.h"
#include "fi_shim/endpoint.h"
#include "fi_shim/enums.h"
#include "fi_shim/fids.h"
#include "fi_shim/hmem.h"
#include "fi_shim/host.h"
#include "fi_shim/nics.h"
#include "fi_shim/open_list.h"
#include "fi_shim/poll.h"
#include "fi_shim/protection.h"
#include "fi_shim/unsupported.h"
#include "fi_shim/verbena/fi_ext_verbena.h"

namespace verbena::fi {
namespace {

OpenList<Domain> g_open;

Domain* Of(fid_domain* base) { return reinterpret_cast<Domain*>(base); }
Domain* Of(fid* base) { return reinterpret_cast<Domain*>(base); }

// Asked by who reads the EQ. The NIC's events are those of QPs, whose completions tell more; the
// end of the stream is the end of the NIC.
void AskNic(void* source) {
  auto* domain = static_cast<Domain*>(source);
  client::NoCancel no_cancel;
  const int saved_errno = errno;
  ssize_t bytes;
  do {
    shm::AsyncEventMessage message;
    bytes = recv(domain->session->async_fd(), &message, sizeof(message), MSG_DONTWAIT);
  } while (bytes > 0);
  errno = saved_errno;
  if (bytes == 0) domain->session->MarkDead();
  if (!domain->session->KnownDead() || domain->has_told_death) return;
  domain->has_told_death = true;
  static constexpr char kText[] = "the NIC (verbenad) is gone";
  fi_eq_err_entry entry = {};
  entry.fid = &domain->fid.fid;
  entry.context = domain->fid.fid.context;
  entry.err = FI_ENODEV;
  entry.prov_errno = 1000 + static_cast<int>(shm::VendorErr::kDeviceGone);
  PostError(domain->eq, entry, kText, sizeof(kText));
  // Readable for ever now, and with nothing more to tell.
  RemoveSource(domain->eq, domain->session->async_fd());
}

void LetGoOfEq(Domain* domain) {
  if (domain->eq == nullptr) return;
  if (!domain->has_told_death) RemoveSource(domain->eq, domain->session->async_fd());
  if (domain->reports_mr_by_eq) StopReportingMrs(domain);
  ForgetEvents(domain->eq, &domain->fid.fid);
  domain->eq->users.fetch_sub(1);
  domain->eq = nullptr;
}

void Destroy(Domain* domain) {
  LetGoOfEq(domain);
  if (domain->pd != 0) UnmakeProtection(domain, domain->pd, domain->whole_process_mr);
  domain->session->Close();
  EndOverride(domain);
  delete domain;
}

int Close(fid* base) {
  Domain* domain = Of(base);
  if (domain->users.load() != 0) return -FI_EBUSY;
  client::NoCancel no_cancel;
  g_open.Remove(domain);
  if (domain->owner != nullptr) domain->owner->users.fetch_sub(1);
  domain->fabric->users.fetch_sub(1);
  Destroy(domain);
  return 0;
}

int Bind(fid* base, fid* other, uint64_t flags) {
  Domain* domain = Of(base);
  if ((flags & ~FI_REG_MR) != 0) return -FI_EBADFLAGS;
  if (other == nullptr || other->fclass != FI_CLASS_EQ) return -FI_EINVAL;
  auto* eq = reinterpret_cast<Eq*>(other);
  if (domain->eq != nullptr || eq->fabric != domain->fabric) return -FI_EINVAL;
  client::NoCancel no_cancel;
  if ((flags & FI_REG_MR) != 0) {
    if (const int error = StartReportingMrs(domain, eq); error != 0) return error;
  }
  domain->eq = eq;
  domain->reports_mr_by_eq = (flags & FI_REG_MR) != 0;
  eq->users.fetch_add(1);
  const int error = AddSource(eq, domain->session->async_fd(), AskNic, domain);
  if (error != 0) LetGoOfEq(domain);
  return error;
}

int Control(fid* base, int command, void* arg) {
  if (command != FI_MAP_RAW_MR && command != FI_UNMAP_KEY) return -FI_ENOSYS;
  return ControlRawKeys(Of(base), command, arg);
}

int Query(fid_domain* base, fi_verbena_domain_info* info) {
  if (base == nullptr || info == nullptr || base->fid.fclass != FI_CLASS_DOMAIN ||
      info->size < sizeof(*info)) {
    return -FI_EINVAL;
  }
  const Domain* domain = Of(base);
  info->nic = domain->nic;
  info->session = domain->session->welcome().session;
  info->dma_backends = domain->session->welcome().dma_backends;
  info->pd = domain->pd;
  return 0;
}
int IsAlive(fid_domain* base) { return Of(base)->session->IsAlive() ? 1 : 0; }

fi_verbena_domain_ops g_verbena_ops = {sizeof(fi_verbena_domain_ops), Query, IsAlive};

int OpenOps(fid*, const char* name, uint64_t flags, void** ops, void*) {
  if (name == nullptr || ops == nullptr) return -FI_EINVAL;
  if (flags != 0) return -FI_EBADFLAGS;
  if (strcmp(name, FI_VERBENA_DOMAIN_OPS) != 0) return -FI_ENOSYS;
  *ops = &g_verbena_ops;
  return 0;
}

int SetOps(fid* base, const char* name, uint64_t flags, void* ops, void* context) {
  return SetDomainOps(Of(base), name, flags, ops, context);
}

int OpenActive(fid_domain* base, fi_info* info, fid_ep** ep, void* context) {
  if (info == nullptr || ep == nullptr || info->ep_attr == nullptr) return -FI_EINVAL;
  switch (NumberOf(info->ep_attr->type)) {
    case FI_EP_MSG:
      return OpenMsgEndpoint(Of(base), info, ep, context);
    case FI_EP_DGRAM:
      return OpenDgramEndpoint(Of(base), info, ep, context);
    case FI_EP_RDM:
      return OpenRdmEndpoint(Of(base), info, ep, context);
    default:
      return -FI_EINVAL;
  }
}
int OpenActive2(fid_domain* base, fi_info* info, fid_ep** ep, uint64_t flags, void* context) {
  return flags == 0 ? OpenActive(base, info, ep, context) : -FI_EINVAL;
}
int OpenSrx(fid_domain* base, fi_rx_attr* attr, fid_ep** ep, void* context) {
  if (ep == nullptr) return -FI_EINVAL;
  return OpenSharedReceives(Of(base), attr, ep, context);
}

int OpenStx(fid_domain* base, fi_tx_attr* attr, fid_stx** stx, void* context) {
  return OpenSharedTransmits(Of(base), attr, stx, context);
}

fi_ops g_fid_ops = {sizeof(fi_ops), Close, Bind, Control, OpenOps, NoToString, SetOps};
fi_ops_domain g_ops = {
    sizeof(fi_ops_domain),
    OpenAv,
    OpenCq,
    OpenActive,
    kUnsupported,  // scalable endpoints
    OpenCntr,
    OpenPollSet,
    OpenStx,
    OpenSrx,
    kUnsupported,  // atomics
    kUnsupported,  // collectives
    OpenActive2,
};

int AskLimits(Domain* domain) {
  shm::QueryDeviceReply device = {};
  shm::QueryPortReply port = {};
  const int error = QueryNumbers(domain->session, &device, &port);
  if (error == 0) domain->limits = LimitsOf(device, port);
  return -error;
}

int OpenError(int error) {
  if (error == ENOMEM) return -FI_ENOMEM;
  return error == EMFILE ? -FI_EMFILE : -FI_ENODEV;
}

// 0 or a negative FI errno; the session is the domain's afterwards.
int Attach(Domain* domain, const char* name) {
  std::vector<shm::NicInfo> nics;
  std::string text;
  if (const int error = ListNics(&nics, &text); error != 0) {
    VERBENA_FI_WARN(FI_LOG_DOMAIN, "there is no NIC: %s", text.c_str());
    return OpenError(error);
  }
  const shm::NicInfo* found = nullptr;
  for (const shm::NicInfo& nic : nics) {
    if (name == nullptr || strncmp(nic.name, name, sizeof(nic.name)) == 0) {
      found = &nic;
      break;
    }
  }
  if (found == nullptr) {
    VERBENA_FI_WARN(FI_LOG_DOMAIN, "there is no NIC %s", name == nullptr ? "at all" : name);
    return -FI_ENODATA;
  }
  domain->nic = found->index;
  memcpy(domain->name, found->name, sizeof(domain->name));
  const int error = OpenSession(found->index, &domain->session, &text);
  if (error == 0) return 0;
  VERBENA_FI_WARN(FI_LOG_DOMAIN, "%s: %s", domain->name, text.c_str());
  return OpenError(error);
}

}  // namespace

int OpenDomain(fid_fabric* base, fi_info* info, fid_domain** out, void* context) {
  if (info == nullptr || out == nullptr || info->domain_attr == nullptr) return -FI_EINVAL;
  client::NoCancel no_cancel;
  auto* domain = new (std::nothrow) Domain();
  if (domain == nullptr) return -FI_ENOMEM;
  domain->fid.fid = {FI_CLASS_DOMAIN, context, &g_fid_ops};
  domain->fid.ops = &g_ops;
  domain->fid.mr = &mr_ops;
  domain->fabric = reinterpret_cast<Fabric*>(base);
  domain->api_version = domain->fabric->api_version;
  if (const char* wrong = TakeOver(*info, domain); wrong != nullptr) {
    VERBENA_FI_WARN(FI_LOG_DOMAIN, "domain_attr.%s can't be had", wrong);
    delete domain;
    return -FI_EINVAL;
  }
  if (const int error = Attach(domain, info->domain_attr->name); error != 0) {
    delete domain;
    return error;
  }
  int error = AskLimits(domain);
  if (error == 0) {
    error =
        MakeProtection(domain, &domain->pd, &domain->whole_process_mr, &domain->whole_process_lkey);
  }
  if (error != 0) {
    Destroy(domain);
    return error;
  }
  domain->fabric->users.fetch_add(1);
  g_open.Add(domain);
  *out = &domain->fid;
  return 0;
}

// A peer's domain: another provider opens this one below its own. What we do for it is what we do
// for anybody; its domain is none of our business, but must be there.  See fi_peer(3).
int OpenDomain2(fid_fabric* base, fi_info* info, fid_domain** out, uint64_t flags, void* context) {
  if ((flags & ~FI_PEER) != 0) return -FI_EBADFLAGS;
  if ((flags & FI_PEER) == 0) return OpenDomain(base, info, out, context);
  const auto* peer = static_cast<const fi_peer_domain_context*>(context);
  if (peer == nullptr || peer->size < sizeof(*peer) || peer->domain == nullptr ||
      peer->domain->fid.fclass != FI_CLASS_DOMAIN) {
    return -FI_EINVAL;
  }
  const int error = OpenDomain(base, info, out, peer->domain->fid.context);
  if (error != 0) return error;
  // One of ours stays as long as its peer; of another provider's that is the program's promise.
  char name[64];
  if (NameOfOpen(peer->domain, &name)) {
    Of(*out)->owner = Of(peer->domain);
    Of(*out)->owner->users.fetch_add(1);
  }
  return 0;
}

fid_domain* FirstOpen(const char* name) {
  fid_domain* first = nullptr;
  g_open.With(
      [name](const Domain& domain) { return strncmp(domain.name, name, sizeof(domain.name)) == 0; },
      [&](Domain& domain) { first = &domain.fid; });
  return first;
}

bool NameOfOpen(const fid_domain* base, char (*name)[64]) {
  return g_open.With([base](const Domain& domain) { return &domain.fid == base; },
                     [name](const Domain& domain) { memcpy(*name, domain.name, sizeof(*name)); });
}

}  // namespace verbena::fi
