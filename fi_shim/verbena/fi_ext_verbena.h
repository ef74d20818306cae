// Verbena's own controls of a libfabric domain:
// fi_open_ops(&domain->fid, FI_VERBENA_DOMAIN_OPS, 0, (void**)&ops, NULL).
#pragma once

#include <rdma/fabric.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FI_VERBENA_DOMAIN_OPS "verbena_domain_ops_1"

struct fi_verbena_domain_info {
  size_t size;            // of this structure; filled in by the caller
  uint32_t nic;           // its index in the instance
  uint32_t session;       // number in `verbena show`
  uint32_t dma_backends;  // bit 0: process_vm_readv, 1: memory that both map, 2: a helper
  uint32_t pd;            // handle in `verbena show`
};

struct fi_verbena_domain_ops {
  size_t size;
  // 0; -FI_EINVAL: no domain of ours, or no size known.
  int (*query)(struct fid_domain* domain, struct fi_verbena_domain_info* info);
  // 1 as long as the NIC serves the domain, then 0.
  int (*is_alive)(struct fid_domain* domain);
};

#ifdef __cplusplus
}
#endif
