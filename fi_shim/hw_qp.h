// Queues of the NIC, as endpoints use them: send queues with their QPs, and SRQs for all receives.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/types.h"
#include "core/ring/work_queue.h"
#include "core/shm/cm.h"
#include "fi_shim/hw_cq.h"
#include "fi_shim/linger.h"
#include "fi_shim/objects.h"

namespace verbena::fi {

// One QP. Its receives come from a SRQ; of a lane of an RDM endpoint there are none.
struct HwQp {
  Domain* domain = nullptr;
  shm::Handle handle = 0;
  uint32_t qpn = 0;
  WorkQueueProducer sq;
  client::Doorbell doorbell;
  uint32_t max_send_sge = 0, max_inline_bytes = 0;
  HwCq* send_cq = nullptr;
  HwCq* recv_cq = nullptr;
  Endpoint* endpoint = nullptr;
};

struct QpSpec {
  Service service;  // core/base/types.h: kRc, kUd
  HwCq* send_cq = nullptr;
  HwCq* recv_cq = nullptr;
  shm::Handle pd = 0;
  shm::Handle srq = 0;
  uint64_t cookie = 0;  // wr_id of completions of data that come with WRITEs
  uint32_t max_send_wr = 0, max_send_sge = 0, max_inline_bytes = 0;
};
// Errors: -FI_ENOMEM; -FI_EINVAL: more than the NIC can; -FI_EIO: the daemon is gone.
int CreateHwQp(Domain* domain, const QpSpec& spec, HwQp* out);
// Its completions that nobody has taken go with it. Operations of its sends are not given back.
void DestroyHwQp(HwQp* qp);
// `mask`: shm::qp_mask.
int ModifyHwQp(HwQp* qp, uint32_t mask, const shm::QpAttr& attr);
// To the error state: what is posted is flushed, but for what the peer is known to have carried out
// (`peer_psn`: all requests before it).
int FailHwQp(HwQp* qp, std::optional<uint32_t> peer_psn = std::nullopt);
// -FI_EINVAL: there is no such QP; -FI_EIO: the daemon is gone.
int QueryHwQp(const HwQp& qp, shm::QueryQpReply* out);
// Whether to wait longer for what was posted to send, as the NIC says now.
bool IsWorthWaiting(const HwQp& qp, Linger* linger);
// To INIT, with what peers may do.
int InitHwQp(HwQp* qp, uint32_t access);

// Receives of one endpoint, or of a shared receive context.
struct HwSrq {
  Domain* domain = nullptr;
  shm::Handle handle = 0;
  WorkQueueProducer ring;
  uint32_t max_sge = 0;
  uint32_t entries = 0;
};
int CreateHwSrq(Domain* domain, shm::Handle pd, uint32_t max_wr, uint32_t max_sge, HwSrq* out);
void DestroyHwSrq(HwSrq* srq);

}  // namespace verbena::fi
