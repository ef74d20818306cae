// One NIC: its identity, addresses and limits, and the tables all its sessions share.
//
// Thread: the shard.
#pragma once

#include <array>
#include <cstdint>

#include "core/base/types.h"
#include "core/shm/command.h"
#include "softnic/device/device.h"
#include "softnic/device/gsi.h"
#include "softnic/device/tables.h"
#include "softnic/device/window_keys.h"
#include "softnic/device/wire_pace.h"
#include "transport/port/packet_port.h"

namespace verbena::softnic {

class DeviceQp;
struct Mr;

inline constexpr uint32_t kGidTableEntries = 16;
inline constexpr GidIndex kIpv4GidIndex{1};  // 0 is the link-local GID
inline constexpr uint32_t kPkeyTableEntries = 1;
inline constexpr uint32_t kPortNumber = 1;  // the only port
// As mlx5 has them: 16 and 12 bits.
inline constexpr uint32_t kCqModerationCountMax = 0xffff;
inline constexpr uint32_t kCqModerationPeriodMaxUs = 0xfff;
inline constexpr PKey kDefaultPkey{0xffff};  // full member of the default partition, IBTA 10.9.1

// Objects alive on one NIC, over all its sessions; compared with the limits.
struct NicCounts {
  uint32_t pds = 0, mrs = 0, cqs = 0, qps = 0, srqs = 0, ahs = 0, mws = 0;
  uint64_t dm_bytes = 0;
};

class Nic {
 public:
  Nic(uint32_t index, const NicConfig& config, const DeviceLimits& limits);

  const std::string& name() const { return config_.name; }
  const NicConfig& config() const { return config_; }
  const DeviceLimits& limits() const { return limits_; }
  uint32_t index() const { return index_; }
  void SetMtu(uint32_t mtu_bytes) { config_.mtu_bytes = mtu_bytes; }

  // False: no such index, or an empty entry.
  bool FindGid(GidIndex index, Gid* out) const;
  // Programs that know only LIDs (qperf, pingpongs without -g) reach the NICs of one instance, or
  // of one subnet, by them; docs/adr/0004.
  uint16_t Lid() const;
  // The IPv4 address that a LID stands for on this NIC's subnet; 0: none.
  uint32_t Ipv4OfLid(uint16_t lid) const;
  shm::NicInfo Info() const;
  void DescribeDevice(shm::QueryDeviceReply* out) const;
  void DescribePort(shm::QueryPortReply* out) const;
  void DescribeGids(uint32_t first_index, shm::QueryGidTableReply* out) const;

  KeyTable<Mr> keys;
  WindowKeys windows;
  QpnTable<DeviceQp> qpns;
  NicCounts counts;
  uint32_t qkey_violations = 0;  // the port's counter
  Refusals refusals;
  transport::PacketPort* port = nullptr;  // nullptr: reaches NICs of its instance only
  bool is_up = true;
  uint32_t ud_qps = 0;
  UnackedPace pace;
  // A QP whose backlog is full, and for how many turns its packets may wait in the socket.
  Qpn backlogged;
  uint32_t backlog_turns_left = 0;
  WireCounters wire;
  GsiQueue gsi;

 private:
  std::array<uint8_t, 8> Eui64() const;

  const uint32_t index_;
  NicConfig config_;
  const DeviceLimits limits_;
  std::array<Gid, kGidTableEntries> gids_;  // zero: empty
};

// Limits as they can be kept: no more than the tables and the ABI hold.
DeviceLimits Clamp(const DeviceLimits& limits);

struct GidHash {
  size_t operator()(const Gid& gid) const;
};

}  // namespace verbena::softnic
