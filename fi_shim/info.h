// fi_info: what endpoints there are, and copies of it.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>

#include "core/shm/command.h"
#include "fi_shim/objects.h"

namespace verbena::fi {

// Which types of endpoints are made so far, and so listed.
inline constexpr bool kHasMsg = false;
inline constexpr bool kHasDgram = false;
inline constexpr bool kHasRdm = false;

inline constexpr char kFabricName[] = "verbena";
inline constexpr size_t kAuthKeyBytesMax = 32;
inline constexpr size_t kErrDataBytesMax = 160;
inline constexpr size_t kCqDataBytes = 4;
inline constexpr size_t kMrKeyBytes = 4;

// What a NIC and its limits allow endpoints to be; the names are those of fi_info's attributes.
struct Limits {
  size_t max_msg_size = 0;
  size_t dgram_msg_size = 0;
  size_t inject_size = 0;
  size_t tx_size = 0, rx_size = 0;  // at most
  size_t iov_limit = 0;
  size_t cq_cnt = 0, ep_cnt = 0, mr_cnt = 0, cntr_cnt = 0, srx_cnt = 0;
};
Limits LimitsOf(const shm::QueryDeviceReply& device, const shm::QueryPortReply& port);

// A NIC as getinfo lists it.
struct NicFacts {
  uint32_t index = 0;
  const char* name = "";
  Limits limits;
  uint32_t mtu_bytes = 4096;
};

// Fills in what an endpoint of `type` of a NIC can do, before hints narrow it. The attributes of
// `info` are there. False: no memory.
bool Describe(const NicFacts& nic, fi_ep_type type, fi_info* info);
// Applies hints (may be nullptr) to what Describe gave: nullptr, or the reason why nothing fits.
const char* Narrow(uint32_t version, const fi_info* hints, const Limits& limits, fi_info* info);

// The length of an address of this family; 0: none.
size_t AddressBytes(const sockaddr* address);

}  // namespace verbena::fi
