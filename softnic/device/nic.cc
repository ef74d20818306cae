#include "softnic/device/nic.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace verbena::softnic {
namespace {

// Values of <infiniband/verbs.h>, whose numbers the ABI carries.
constexpr uint32_t kPortDown = 1;           // IBV_PORT_DOWN
constexpr uint32_t kPortActive = 4;         // IBV_PORT_ACTIVE
constexpr uint32_t kPhysDisabled = 3;       // IB_PORT_PHYS_STATE_DISABLED
constexpr uint32_t kPhysLinkUp = 5;         // IB_PORT_PHYS_STATE_LINK_UP
constexpr uint32_t kLinkLayerEthernet = 2;  // IBV_LINK_LAYER_ETHERNET
constexpr uint32_t kWidth4x = 2;
constexpr uint32_t kSpeedEdr = 32;             // 25 Gb/s a lane
constexpr uint32_t kPortCapCm = 1u << 16;      // IBV_PORT_CM_SUP
constexpr uint32_t kPortCapIpGids = 1u << 26;  // IBV_PORT_IP_BASED_GIDS
constexpr uint32_t kAtomicHca = 1;             // IBV_ATOMIC_HCA
constexpr uint32_t kGidTypeRoceV2 = 2;         // IBV_GID_TYPE_ROCE_V2

// What is implemented, and nothing else.
constexpr uint32_t kCapBadQkeyCounter = 1u << 2;  // IBV_DEVICE_BAD_QKEY_CNTR
constexpr uint32_t kCapCurrentQpState = 1u << 7;  // IBV_DEVICE_CURR_QP_STATE_MOD
constexpr uint32_t kCapPortActiveEvent = 1u << 10;
constexpr uint32_t kCapSysImageGuid = 1u << 11;
constexpr uint32_t kCapRcRnrNak = 1u << 12;
constexpr uint32_t kCapSrqResize = 1u << 13;
constexpr uint32_t kCapMemWindow = 1u << 17;
constexpr uint32_t kCapMemMgtExtensions = 1u << 21;  // SEND with invalidate, LOCAL_INV
constexpr uint32_t kCapMemWindowType2B = 1u << 24;
constexpr uint32_t kDeviceCaps = kCapBadQkeyCounter | kCapCurrentQpState | kCapPortActiveEvent |
                                 kCapSysImageGuid | kCapRcRnrNak | kCapSrqResize | kCapMemWindow |
                                 kCapMemMgtExtensions | kCapMemWindowType2B;

constexpr uint64_t kCapFlushGlobal = uint64_t{1} << 38;  // IB_UVERBS_DEVICE_FLUSH_GLOBAL
constexpr uint64_t kCapAtomicWrite = uint64_t{1} << 40;  // IB_UVERBS_DEVICE_ATOMIC_WRITE
constexpr uint64_t kDeviceCapsEx = kDeviceCaps | kCapFlushGlobal | kCapAtomicWrite;

constexpr uint32_t kRateLimitQpts = 1u << 2 | 1u << 3 | 1u << 4;  // IBV_QPT_RC, UC, UD

constexpr uint32_t kVendorId = 0xffffff;  // what software devices say: no registered vendor
constexpr uint32_t kVendorPartId = 1;
constexpr uint32_t kAckDelayExp = 15;           // as rxe
constexpr uint64_t kPageSizeCap = 0xffff'f000;  // any power of two from 4 KiB
constexpr uint32_t kClockKhz = 1'000'000;       // timestamps are nanoseconds

// enum ibv_mtu.
uint32_t MtuCode(uint32_t bytes) {
  uint32_t code = 1;
  while (code < 5 && (256u << code) <= bytes) ++code;
  return code;
}

uint64_t ToBigEndian(const std::array<uint8_t, 8>& bytes) {
  uint64_t value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

// Spec: RFC 4291 appendix A (modified EUI-64), as RoCE drivers make GUIDs and link-local GIDs.
std::array<uint8_t, 8> Eui64Of(const uint8_t mac[6]) {
  return {static_cast<uint8_t>(mac[0] ^ 2), mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]};
}

}  // namespace

Gid LinkLocalGidOf(const NicConfig& config) {
  Gid gid;
  gid.raw[0] = 0xfe;
  gid.raw[1] = 0x80;
  std::array<uint8_t, 8> eui = Eui64Of(config.mac);
  std::copy(eui.begin(), eui.end(), gid.raw.begin() + 8);
  return gid;
}

DeviceLimits Clamp(const DeviceLimits& limits) {
  DeviceLimits out = limits;
  out.max_qp = std::min(out.max_qp, QpnTable<DeviceQp>::kCapacity);
  out.max_qp_wr = std::clamp(out.max_qp_wr, 1u, 1u << 20);
  out.max_srq_wr = std::clamp(out.max_srq_wr, 1u, 1u << 20);
  out.max_cqe = std::clamp(out.max_cqe, 1u, 1u << 24);
  out.max_mr = std::min(out.max_mr, (1u << 20) - 1);
  out.max_mw = std::min(out.max_mw, (1u << 20) - 1);
  out.max_sge = std::clamp(out.max_sge, 1u, shm::kMaxSge);
  out.max_sge_rd = std::clamp(out.max_sge_rd, 1u, shm::kMaxSge);
  out.max_srq_sge = std::clamp(out.max_srq_sge, 1u, shm::kMaxSge);
  out.max_inline_bytes = std::min(out.max_inline_bytes, shm::kMaxInlineBytes);
  out.max_qp_rd_atom = std::min(out.max_qp_rd_atom, 255u);  // the attribute has 8 bits
  out.comp_vectors = std::max(out.comp_vectors, 1u);
  return out;
}

Nic::Nic(uint32_t index, const NicConfig& config, const DeviceLimits& limits)
    : index_(index), config_(config), limits_(Clamp(limits)) {
  gids_[0] = LinkLocalGidOf(config);
  gids_[1] = Gid::FromIpv4(config.ipv4);
  if (config.gids.empty()) return;
  gids_.fill(Gid{});
  std::copy_n(config.gids.begin(), std::min<size_t>(config.gids.size(), gids_.size()),
              gids_.begin());
}

std::array<uint8_t, 8> Nic::Eui64() const { return Eui64Of(config_.mac); }

bool Nic::FindGid(GidIndex index, Gid* out) const {
  if (index.value >= kGidTableEntries || gids_[index.value].IsZero()) return false;
  *out = gids_[index.value];
  return true;
}

uint16_t Nic::Lid() const {
  return static_cast<uint16_t>(config_.has_subnet_lids ? config_.ipv4 : index_ + 1);
}

uint32_t Nic::Ipv4OfLid(uint16_t lid) const {
  if (lid == Lid()) return config_.ipv4;
  return config_.has_subnet_lids ? (config_.ipv4 & 0xffff'0000) | lid : 0;
}

shm::NicInfo Nic::Info() const {
  shm::NicInfo info{};
  std::snprintf(info.name, sizeof(info.name), "%s", config_.name.c_str());
  info.node_guid = ToBigEndian(Eui64());
  info.index = index_;
  info.ports = 1;
  for (int i = 0; i < 4; ++i) info.ipv4[i] = static_cast<uint8_t>(config_.ipv4 >> (24 - 8 * i));
  return info;
}

void Nic::DescribeDevice(shm::QueryDeviceReply* out) const {
  *out = {};
  std::snprintf(reinterpret_cast<char*>(out->fw_ver), sizeof(out->fw_ver), "%s", "1.0.0");
  out->node_guid = out->sys_image_guid = ToBigEndian(Eui64());
  out->max_mr_size = ~uint64_t{0};
  out->page_size_cap = kPageSizeCap;
  out->vendor_id = kVendorId;
  out->vendor_part_id = kVendorPartId;
  out->max_qp = limits_.max_qp;
  out->max_qp_wr = limits_.max_qp_wr;
  out->device_cap_flags = kDeviceCaps;
  out->device_cap_flags_ex = kDeviceCapsEx;
  out->max_sge = limits_.max_sge;
  out->max_sge_rd = limits_.max_sge_rd;
  out->max_cq = limits_.max_cq;
  out->max_cqe = limits_.max_cqe;
  out->max_mr = limits_.max_mr;
  out->max_mw = limits_.max_mw;
  out->max_pd = limits_.max_pd;
  out->max_qp_rd_atom = limits_.max_qp_rd_atom;
  out->max_qp_init_rd_atom = limits_.max_qp_rd_atom;
  out->max_res_rd_atom = static_cast<uint32_t>(
      std::min<uint64_t>(uint64_t{limits_.max_qp} * limits_.max_qp_rd_atom, 0x7fff'ffff));
  out->atomic_cap = kAtomicHca;
  out->max_mcast_grp = limits_.max_mcast_grp;
  out->max_mcast_qp_attach = limits_.max_mcast_qp_attach;
  out->max_total_mcast_qp_attach = static_cast<uint32_t>(std::min<uint64_t>(
      uint64_t{limits_.max_mcast_grp} * limits_.max_mcast_qp_attach, 0x7fff'ffff));
  out->max_ah = limits_.max_ah;
  out->max_srq = limits_.max_srq;
  out->max_srq_wr = limits_.max_srq_wr;
  out->max_srq_sge = limits_.max_srq_sge;
  out->max_pkeys = kPkeyTableEntries;
  out->local_ca_ack_delay = kAckDelayExp;
  out->phys_port_cnt = 1;
  out->max_inline_bytes = limits_.max_inline_bytes;
  out->num_comp_vectors = limits_.comp_vectors;
  out->completion_timestamp_mask = ~uint64_t{0};
  out->hca_core_clock_khz = kClockKhz;
  out->max_cq_moderation_count = kCqModerationCountMax;
  out->max_cq_moderation_period_us = kCqModerationPeriodMaxUs;
  out->qp_rate_limit_min_kbps = 1;
  out->qp_rate_limit_max_kbps = transport::kRateLimitMaxKbps;
  out->rate_limit_qpts = kRateLimitQpts;
  out->max_dm_size = limits_.max_dm_bytes;
}

void Nic::DescribePort(shm::QueryPortReply* out) const {
  *out = {};
  out->state = is_up ? kPortActive : kPortDown;
  out->max_mtu = MtuCode(4096);
  out->active_mtu = MtuCode(config_.mtu_bytes);
  out->gid_tbl_len = kGidTableEntries;
  out->port_cap_flags = kPortCapCm | kPortCapIpGids;
  out->max_msg_sz = limits_.max_message_bytes;
  out->bad_pkey_cntr = static_cast<uint32_t>(std::min<uint64_t>(wire.rx_bad_pkey, UINT32_MAX));
  out->qkey_viol_cntr = qkey_violations;
  out->pkey_tbl_len = kPkeyTableEntries;
  out->max_vl_num = 1;
  out->active_width = kWidth4x;
  out->active_speed = kSpeedEdr;
  out->phys_state = is_up ? kPhysLinkUp : kPhysDisabled;
  out->link_layer = kLinkLayerEthernet;
  out->lid = Lid();
}

void Nic::DescribeGids(uint32_t first_index, shm::QueryGidTableReply* out) const {
  *out = {};
  for (uint32_t i = first_index; i < kGidTableEntries; ++i) {
    if (gids_[i].IsZero()) continue;
    if (out->count == shm::kGidEntriesPerReply) {
      out->next_index = i;
      return;
    }
    shm::GidEntry& entry = out->entries[out->count++];
    std::copy(gids_[i].raw.begin(), gids_[i].raw.end(), entry.raw);
    entry.index = i;
    entry.type = kGidTypeRoceV2;
  }
}

}  // namespace verbena::softnic
