// fi_info: what endpoints a NIC has, and how hints narrow it. Nothing here talks to a NIC.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>

#include "core/shm/command.h"

namespace verbena::fi {

inline constexpr char kFabricName[] = "verbena";
// RDM endpoints of other providers do not understand ours: a provider's own protocol.
inline constexpr uint32_t kProtocolRdm = FI_PROV_SPECIFIC | 0x7662;  // "vb"
inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr size_t kAuthKeyBytesMax = 32;
inline constexpr size_t kErrDataBytesMax = 160;
inline constexpr size_t kCqDataBytes = 4;  // a packet's immediate

// What a NIC's limits allow endpoints to be; the names are those of fi_info's attributes.
struct Limits {
  size_t max_msg_size = 0, dgram_msg_size = 0;
  size_t inject_size = 0;
  size_t send_entries = 0;  // tx_attr.size * tx_attr.rma_iov_limit
  size_t rx_size = 0;
  size_t iov_limit = 0, rma_iov_limit = 0;
  size_t cq_cnt = 0, ep_cnt = 0, cntr_cnt = 0, mr_cnt = 0;
};
Limits LimitsOf(const shm::QueryDeviceReply& device, const shm::QueryPortReply& port);

// Fills in what an endpoint of `type` does where hints say nothing. The attributes of `info` are
// there. False: no memory. DescribeNumbers: all but names.
void DescribeNumbers(fi_ep_type type, const Limits& limits, fi_info* info);
bool Describe(const char* nic_name, fi_ep_type type, const Limits& limits, fi_info* info);
// Makes an info of one NIC another's: its name, and of nothing more than that has. Not its `nic`.
// False: no memory.
bool MoveToNic(const char* nic_name, const Limits& limits, fi_info* info);

// Gives the info that Describe made what the hints ask for. nullptr, or what can't be had. Names,
// addresses and keys are not its business, except for whether they are of a kind that we have.
const char* Narrow(uint32_t version, const fi_info& hints, const Limits& limits, fi_info* info);

// Whether an endpoint, or a shared receive context, can have the attributes that a program opens it
// with: it may have changed what it was granted. nullptr, or what can't be had.
const char* CheckEndpoint(uint32_t version, const fi_info& info, const Limits& limits);
const char* CheckSharedReceives(const fi_rx_attr& attr, const Limits& limits);

// The capabilities of an endpoint that a program with hints.caps `wanted` gets. False: not to be
// had.
bool GrantCaps(fi_ep_type type, uint64_t wanted, uint64_t* granted);
// Those of them that concern one direction.
inline constexpr uint64_t kTxCaps =
    FI_MSG | FI_RMA | FI_SEND | FI_READ | FI_WRITE | FI_FENCE | FI_HMEM;
inline constexpr uint64_t kRxCaps = FI_MSG | FI_RMA | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE |
                                    FI_MULTI_RECV | FI_SOURCE | FI_SOURCE_ERR | FI_RMA_EVENT |
                                    FI_DIRECTED_RECV | FI_AV_USER_ID | FI_HMEM;

}  // namespace verbena::fi
