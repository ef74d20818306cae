// The field's numbers as types, so that an LKey is never passed where an RKey belongs.
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstdint>
#include <cstring>

namespace verbena {

// A number with a name. Tag makes each one a type of its own.
template <typename Tag, typename Rep>
struct Number {
  Rep value = 0;
  constexpr Number() = default;
  constexpr explicit Number(Rep v) : value(v) {}
  friend constexpr auto operator<=>(Number, Number) = default;
};

using Qpn = Number<struct QpnTag, uint32_t>;  // 24 bits
using QKey = Number<struct QKeyTag, uint32_t>;
using PKey = Number<struct PKeyTag, uint16_t>;  // 15-bit key, top bit = full member
using LKey = Number<struct LKeyTag, uint32_t>;  // index << 8 | key byte, as all HCAs do
using RKey = Number<struct RKeyTag, uint32_t>;
using Msn = Number<struct MsnTag, uint32_t>;  // 24 bits, IBTA 9.7.7.1
using GidIndex = Number<struct GidIndexTag, uint8_t>;

inline constexpr Qpn kQpnSmi{0};
inline constexpr Qpn kQpnGsi{1};
inline constexpr Qpn kMulticastQpn{0xff'ffff};  // IBTA 10.5.1

// A 128-bit port address in network byte order. RoCE v2 over IPv4 uses ::ffff:a.b.c.d.
struct Gid {
  std::array<uint8_t, 16> raw{};

  friend constexpr auto operator<=>(const Gid&, const Gid&) = default;
  // By words: a NIC compares addresses several times for each packet.
  friend constexpr bool operator==(const Gid& a, const Gid& b) {
    const Words x = a.words(), y = b.words();
    return ((x.high ^ y.high) | (x.low ^ y.low)) == 0;
  }
  constexpr bool IsZero() const { return *this == Gid{}; }
  // An IPv6 group, or the mapped form of an IPv4 one, which RoCEv2 uses for those.
  constexpr bool IsMulticast() const {
    return raw[0] == 0xff || (IsIpv4Mapped() && (raw[12] & 0xf0) == 0xe0);
  }

  static constexpr Gid FromIpv4(uint32_t host_order) {
    Gid g;
    g.raw[10] = g.raw[11] = 0xff;
    for (int i = 0; i < 4; ++i) g.raw[12 + i] = static_cast<uint8_t>(host_order >> (24 - 8 * i));
    return g;
  }
  constexpr bool IsIpv4Mapped() const {
    using Bytes = std::array<uint8_t, 8>;
    constexpr auto kMask = std::bit_cast<uint64_t>(Bytes{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0});
    constexpr auto kPrefix = std::bit_cast<uint64_t>(Bytes{0, 0, 0xff, 0xff, 0, 0, 0, 0});
    const Words own = words();
    return own.high == 0 && (own.low & kMask) == kPrefix;
  }

 private:
  // Its bytes as they lie in memory.
  struct Words {
    uint64_t high, low;
  };
  constexpr Words words() const { return std::bit_cast<Words>(raw); }
};

// Transport services. Values are ours; the shim maps ibv_qp_type to them.
enum class Service : uint8_t { kRc = 0, kUc = 1, kUd = 2 };
inline constexpr int kServiceCount = 3;

// QP states. Values equal enum ibv_qp_state, so that the ABI carries them unchanged.
enum class QpState : uint8_t {
  kReset = 0,
  kInit = 1,
  kRtr = 2,
  kRts = 3,
  kSqd = 4,
  kSqe = 5,
  kErr = 6,
};
inline constexpr int kQpStateCount = 7;

// Completion status. Values equal enum ibv_wc_status.
enum class WcStatus : uint8_t {
  kSuccess = 0,
  kLocLenErr = 1,
  kLocQpOpErr = 2,
  kLocEecOpErr = 3,
  kLocProtErr = 4,
  kWrFlushErr = 5,
  kMwBindErr = 6,
  kBadRespErr = 7,
  kLocAccessErr = 8,
  kRemInvReqErr = 9,
  kRemAccessErr = 10,
  kRemOpErr = 11,
  kRetryExcErr = 12,
  kRnrRetryExcErr = 13,
  kLocRddViolErr = 14,
  kRemInvRdReqErr = 15,
  kRemAbortErr = 16,
  kInvEecnErr = 17,
  kInvEecStateErr = 18,
  kFatalErr = 19,
  kRespTimeoutErr = 20,
  kGeneralErr = 21,
};

// Asynchronous events. Values equal enum ibv_event_type.
enum class EventType : uint8_t {
  kCqErr = 0,
  kQpFatal = 1,
  kQpReqErr = 2,
  kQpAccessErr = 3,
  kCommEst = 4,
  kSqDrained = 5,
  kPathMig = 6,
  kPathMigErr = 7,
  kDeviceFatal = 8,
  kPortActive = 9,
  kPortErr = 10,
  kLidChange = 11,
  kPkeyChange = 12,
  kSmChange = 13,
  kSrqErr = 14,
  kSrqLimitReached = 15,
  kQpLastWqeReached = 16,
  kClientReregister = 17,
  kGidChange = 18,
  kWqFatal = 19,
  kDeviceSpeedChange = 20,
};

// Memory access rights. Values equal enum ibv_access_flags.
namespace access {
inline constexpr uint32_t kLocalWrite = 1u << 0;
inline constexpr uint32_t kRemoteWrite = 1u << 1;
inline constexpr uint32_t kRemoteRead = 1u << 2;
inline constexpr uint32_t kRemoteAtomic = 1u << 3;
inline constexpr uint32_t kMwBind = 1u << 4;
inline constexpr uint32_t kZeroBased = 1u << 5;
inline constexpr uint32_t kOnDemand = 1u << 6;
inline constexpr uint32_t kHugetlb = 1u << 7;
inline constexpr uint32_t kFlushGlobal = 1u << 8;
inline constexpr uint32_t kFlushPersistent = 1u << 9;
inline constexpr uint32_t kRelaxedOrdering = 1u << 20;
inline constexpr uint32_t kOptionalMask = 0x3ff0'0000;  // IBV_ACCESS_OPTIONAL_RANGE
}  // namespace access

}  // namespace verbena
