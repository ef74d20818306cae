// Names of enum values, and the arithmetic of link rates.
#include <cstddef>

#include "verbs_shim/abi.h"
#include "verbs_shim/symver.h"

namespace verbena::verbs {
namespace {

template <size_t kCount>
const char* NameOf(const char* const (&names)[kCount], int value) {
  if (value < 0 || static_cast<size_t>(value) >= kCount) return "unknown";
  return names[value] != nullptr ? names[value] : "unknown";
}

// In the order of enum ibv_event_type, v64.
constexpr const char* kEventNames[] = {
    "CQ error",
    "local work queue catastrophic error",
    "invalid request local work queue error",
    "local access violation work queue error",
    "communication established",
    "send queue drained",
    "path migrated",
    "path migration request error",
    "local catastrophic error",
    "port active",
    "port error",
    "LID change",
    "P_Key change",
    "SM change",
    "SRQ catastrophic error",
    "SRQ limit reached",
    "last WQE reached",
    "client reregistration",
    "GID table change",
    "WQ fatal",
    "Device link speed change",
};
static_assert(sizeof(kEventNames) / sizeof(kEventNames[0]) == kEventDeviceSpeedChangeV64 + 1);

constexpr const char* kStatusNames[] = {
    "success",
    "local length error",
    "local QP operation error",
    "local EE context operation error",
    "local protection error",
    "Work Request Flushed Error",
    "memory management operation error",
    "bad response error",
    "local access error",
    "remote invalid request error",
    "remote access error",
    "remote operation error",
    "transport retry counter exceeded",
    "RNR retry counter exceeded",
    "local RDD violation error",
    "remote invalid RD request",
    "aborted error",
    "invalid EE context number",
    "invalid EE context state",
    "fatal error",
    "response timeout error",
    "general error",
    "TM error",
    "TM software rendezvous",
};
static_assert(sizeof(kStatusNames) / sizeof(kStatusNames[0]) == IBV_WC_TM_RNDV_INCOMPLETE + 1);

constexpr const char* kOpcodeNames[] = {
    "rdma-write",
    "rdma-write-with-imm",
    "send",
    "send-with-imm",
    "rdma-read",
    "atomic-cmp-and-swp",
    "atomic-fetch-and-add",
    "local-inv",
    "bind-mw",
    "send-with-inv",
    "tso",
    "driver1",
    nullptr,
    nullptr,
    "flush",
    "atomic-write",
};

// One row per rate. multiple: of 2.5 Gb/s, 0 where none is defined.
struct RateRow {
  ibv_rate rate;
  int multiple;
  int mbps;
};
constexpr RateRow kRates[] = {
    {IBV_RATE_2_5_GBPS, 1, 2500},       {IBV_RATE_5_GBPS, 2, 5000},
    {IBV_RATE_10_GBPS, 4, 10000},       {IBV_RATE_20_GBPS, 8, 20000},
    {IBV_RATE_30_GBPS, 12, 30000},      {IBV_RATE_40_GBPS, 16, 40000},
    {IBV_RATE_60_GBPS, 24, 60000},      {IBV_RATE_80_GBPS, 32, 80000},
    {IBV_RATE_120_GBPS, 48, 120000},    {IBV_RATE_14_GBPS, 0, 14062},
    {IBV_RATE_56_GBPS, 0, 56250},       {IBV_RATE_112_GBPS, 0, 112500},
    {IBV_RATE_168_GBPS, 0, 168750},     {IBV_RATE_25_GBPS, 0, 25781},
    {IBV_RATE_100_GBPS, 0, 103125},     {IBV_RATE_200_GBPS, 0, 206250},
    {IBV_RATE_300_GBPS, 0, 309375},     {IBV_RATE_28_GBPS, 11, 28125},
    {IBV_RATE_50_GBPS, 20, 53125},      {IBV_RATE_400_GBPS, 160, 425000},
    {IBV_RATE_600_GBPS, 240, 637500},   {IBV_RATE_800_GBPS, 320, 850000},
    {IBV_RATE_1200_GBPS, 480, 1275000},
};

}  // namespace

VERBENA_EXPORT const char* ibv_node_type_str(ibv_node_type node_type) {
  static constexpr const char* kNames[] = {
      nullptr,
      "InfiniBand channel adapter",
      "InfiniBand switch",
      "InfiniBand router",
      "iWARP NIC",
      "usNIC",
      "usNIC UDP",
      "unspecified",
  };
  return NameOf(kNames, node_type);
}

VERBENA_EXPORT const char* ibv_port_state_str(ibv_port_state state) {
  static constexpr const char* kNames[] = {
      "no state change (NOP)", "down", "init", "armed", "active", "active defer",
  };
  return NameOf(kNames, state);
}

VERBENA_EXPORT const char* ibv_event_type_str(ibv_event_type event) {
  return NameOf(kEventNames, event);
}

VERBENA_EXPORT const char* ibv_wc_status_str(ibv_wc_status status) {
  return NameOf(kStatusNames, status);
}

VERBENA_EXPORT const char* ibv_wr_opcode_str(int opcode) { return NameOf(kOpcodeNames, opcode); }

VERBENA_EXPORT int ibv_rate_to_mult(ibv_rate rate) {
  for (const RateRow& row : kRates) {
    if (row.rate == rate && row.multiple != 0) return row.multiple;
  }
  return -1;
}

VERBENA_EXPORT ibv_rate mult_to_ibv_rate(int multiple) {
  for (const RateRow& row : kRates) {
    if (row.multiple == multiple && multiple != 0) return row.rate;
  }
  return IBV_RATE_MAX;
}

VERBENA_EXPORT int ibv_rate_to_mbps(ibv_rate rate) {
  for (const RateRow& row : kRates) {
    if (row.rate == rate) return row.mbps;
  }
  return -1;
}

VERBENA_EXPORT ibv_rate mbps_to_ibv_rate(int mbps) {
  for (const RateRow& row : kRates) {
    if (row.mbps == mbps) return row.rate;
  }
  return IBV_RATE_MAX;
}

}  // namespace verbena::verbs

VERBENA_IN_ALL_PRIVATE_NODES("function", ibv_wr_opcode_str);
