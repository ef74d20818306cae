// The kernel's structures of rdma_cm and ours.
#pragma once

#include <rdma/rdma_user_cm.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "core/shm/cm.h"

namespace verbena::ucm {

// Bytes of an address of a family that rdma_cm knows; 0: of another.
size_t AddressBytes(uint16_t family);
// EINVAL: of no family that rdma_cm knows; EAFNOSUPPORT: AF_IB, which no NIC of ours has.
int ToCmAddress(const void* address, shm::CmAddress* out);
// The same of one whose size was given; EINVAL: another than its family's.
int ToSizedCmAddress(const void* address, size_t bytes, shm::CmAddress* out);

void ToCmConnParam(const rdma_ucm_conn_param& from, shm::CmConnParam* to);

void CopyEvent(const shm::CmEvent& from, rdma_ucm_event_resp* to);
void CopyQpAttr(const shm::CmQpAttr& from, uint32_t asked_state, ib_uverbs_qp_attr* to);
void CopyPath(const shm::CmQuery& from, ib_user_path_rec* to);
// As a path record on the wire.   Spec: IBTA 15.2.5.16
void PackPath(const shm::CmQuery& from, uint32_t (&record)[16]);

// What the kernel has beside its API (rdma/ib.h there).
struct SockaddrIb {
  uint16_t family;
  uint16_t pkey;       // big-endian
  uint32_t flow_info;  // big-endian
  uint8_t addr[16];
  uint64_t sid, sid_mask;  // big-endian
  uint64_t scope_id;
};
static_assert(sizeof(SockaddrIb) == 48);
SockaddrIb ToSockaddrIb(const shm::CmQuery& query, const uint8_t (&gid)[16]);

}  // namespace verbena::ucm
