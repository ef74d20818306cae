// Queues of the NIC, as endpoints use them: send queues with their QPs, and SRQs for all receives.
#pragma once

#include <cstdint>

#include "core/base/types.h"
#include "core/ring/work_queue.h"
#include "fi_shim/hw_cq.h"
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
  uint32_t max_send_wr = 0, max_send_sge = 0, max_inline_bytes = 0;
};
int CreateHwQp(Domain* domain, const QpSpec& spec, HwQp* out);
void DestroyHwQp(HwQp* qp);

// Receives of one endpoint, or of a shared receive context.
struct HwSrq {
  Domain* domain = nullptr;
  shm::Handle handle = 0;
  WorkQueueProducer ring;
  client::Doorbell doorbell;
  uint32_t max_sge = 0;
  uint32_t entries = 0;
};
int CreateHwSrq(Domain* domain, shm::Handle pd, uint32_t max_wr, uint32_t max_sge, HwSrq* out);
void DestroyHwSrq(HwSrq* srq);

}  // namespace verbena::fi
