// fi_stx_context: endpoints that share one number of sends under way. Each has queues of its own,
// which the NIC does not share; what they share is what the context's size bounds.
#include <new>

#include "fi_shim/endpoint.h"
#include "fi_shim/fids.h"
#include "fi_shim/unsupported.h"

namespace verbena::fi {
namespace {

constexpr size_t kDefaultSize = 1024;

int Close(fid* fid) {
  auto* context = reinterpret_cast<TransmitContext*>(fid);
  if (context->users.load() != 0) return -FI_EBUSY;
  context->domain->users.fetch_sub(1);
  delete context;
  return 0;
}

fi_ops g_fid_ops = FidOps(Close);
fi_ops_ep g_ops = {
    .size = sizeof(fi_ops_ep),
    .cancel = kUnsupported,
    .getopt = kUnsupported,
    .setopt = kUnsupported,
    .tx_ctx = kUnsupported,
    .rx_ctx = kUnsupported,
    .rx_size_left = kUnsupported,
    .tx_size_left = kUnsupported,
};

// Attributes that the program left out allow anything.
bool Allows(size_t limit, size_t wanted) { return limit == 0 || wanted <= limit; }

}  // namespace

int OpenSharedTransmits(Domain* domain, fi_tx_attr* attr, fid_stx** out, void* context) {
  if (out == nullptr) return -FI_EINVAL;
  auto* made = new (std::nothrow) TransmitContext();
  if (made == nullptr) return -FI_ENOMEM;
  made->domain = domain;
  if (attr != nullptr) {
    // Not as a whole: older programs have fewer fields.
    made->attr.caps = attr->caps;
    made->attr.size = attr->size;
    made->attr.inject_size = attr->inject_size;
    made->attr.iov_limit = attr->iov_limit;
    made->attr.rma_iov_limit = attr->rma_iov_limit;
  }
  made->credits.limit = made->attr.size != 0 ? made->attr.size : kDefaultSize;
  made->fid.fid = {FI_CLASS_STX_CTX, context, &g_fid_ops};
  made->fid.ops = &g_ops;
  domain->users.fetch_add(1);
  *out = &made->fid;
  return 0;
}

// What an endpoint of a context is has to be a part of what the context is.  Spec: fi_endpoint(3),
// fi_stx_context.
int BindSharedTransmits(Endpoint* ep, TransmitContext* context) {
  if (ep->transmits != nullptr || context->domain != ep->domain) return -FI_EINVAL;
  const fi_tx_attr& whole = context->attr;
  const fi_tx_attr& part = *ep->info->tx_attr;
  if (whole.caps != 0 && (part.caps & ~whole.caps) != 0) return -FI_EINVAL;
  if (!Allows(context->credits.limit, part.size) || !Allows(whole.inject_size, part.inject_size) ||
      !Allows(whole.iov_limit, part.iov_limit) ||
      !Allows(whole.rma_iov_limit, part.rma_iov_limit)) {
    return -FI_EINVAL;
  }
  ep->transmits = context;
  ep->sends.Share(&context->credits);
  context->users.fetch_add(1);
  return 0;
}

}  // namespace verbena::fi
