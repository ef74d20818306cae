// Messages of connection management, and their bytes in a MAD.
//
// A MAD is 256 bytes: a header of 24, and 232 that the attribute lays out. CM sends each as a UD
// message from QP1 to QP1.   Spec: IBTA 13.4.2 (header), 12.6 to 12.11 (messages), A11 (the header
// that RDMA IP CM puts in front of private data).
//
// Trust: bytes to decode are anybody's. Decode reads nothing outside them and fills fields with
// whatever they say; whether they make sense is for the state machine to judge.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "core/base/psn.h"
#include "core/base/types.h"

namespace verbena::transport::cm {

inline constexpr uint32_t kMadHeaderBytes = 24;
inline constexpr uint32_t kMadBytes = 256;

// What names a communication at one end; the other end repeats it.
using CommId = Number<struct CommIdTag, uint32_t>;
using ServiceId = Number<struct ServiceIdTag, uint64_t>;

enum class Attribute : uint16_t {
  kReq = 0x10,
  kMra = 0x11,
  kRej = 0x12,
  kRep = 0x13,
  kRtu = 0x14,
  kDreq = 0x15,
  kDrep = 0x16,
  kSidrReq = 0x17,
  kSidrRep = 0x18,
  kLap = 0x19,
  kApr = 0x1a,
};
const char* NameOf(Attribute attribute);

// Which message an MRA or REJ is about.
enum class About : uint8_t { kReq = 0, kRep = 1, kOther = 2 };

// Transport service type of a REQ. UD has no connections: it is asked for by SIDR_REQ.
enum class TransportType : uint8_t { kRc = 0, kUc = 1, kRd = 2, kExtended = 3 };

// Why a message was rejected.   Spec: IBTA 12.6.7.2
enum class RejectReason : uint16_t {
  kNoQp = 1,
  kNoEec = 2,
  kNoResources = 3,
  kTimeout = 4,
  kUnsupportedRequest = 5,
  kInvalidCommId = 6,
  kInvalidCommInstance = 7,
  kInvalidServiceId = 8,
  kInvalidTransportType = 9,
  kStaleConnection = 10,
  kRdcDoesNotExist = 11,
  kInvalidGid = 12,
  kInvalidLid = 13,
  kInvalidSl = 14,
  kInvalidTrafficClass = 15,
  kInvalidHopLimit = 16,
  kInvalidPacketRate = 17,
  kInvalidAltGid = 18,
  kInvalidAltLid = 19,
  kInvalidAltSl = 20,
  kInvalidAltTrafficClass = 21,
  kInvalidAltHopLimit = 22,
  kInvalidAltPacketRate = 23,
  kPortCmRedirect = 24,
  kPortRedirect = 25,
  kInvalidMtu = 26,
  kInsufficientResponderResources = 27,
  kConsumerDefined = 28,
  kInvalidRnrRetry = 29,
  kDuplicateLocalCommId = 30,
  kInvalidClassVersion = 31,
  kInvalidFlowLabel = 32,
  kInvalidAltFlowLabel = 33,
  kVendorOptionNotSupported = 35,
};

// How packets get from one end to the other, as the sender of a REQ or LAP sees it.
struct PathFields {
  uint16_t local_lid = 0;
  uint16_t remote_lid = 0;
  Gid local_gid{};
  Gid remote_gid{};
  uint32_t flow_label = 0;  // 20 bits
  uint8_t packet_rate = 0;  // 6 bits
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
  uint8_t sl = 0;  // 4 bits
  bool is_subnet_local = false;
  uint8_t local_ack_timeout = 0;  // 5 bits: 4.096 µs * 2^n

  friend bool operator==(const PathFields&, const PathFields&) = default;
};

template <size_t kBytes>
using PrivateData = std::array<std::byte, kBytes>;

// What a vendor's QPs can do beyond the specification (rdma_set_local_ece). In fields that the
// specification reserves, as Linux has them.
struct Ece {
  uint32_t vendor_id = 0;  // 24 bits
  uint32_t options = 0;    // the MAD's attribute modifier

  friend bool operator==(const Ece&, const Ece&) = default;
};

struct Req {
  static constexpr Attribute kAttribute = Attribute::kReq;
  CommId local_comm_id{};
  ServiceId service_id{};
  uint64_t local_ca_guid = 0;
  QKey local_qkey{};
  Qpn local_qpn{};
  uint8_t responder_resources = 0;
  uint32_t local_eecn = 0;
  uint8_t initiator_depth = 0;
  uint32_t remote_eecn = 0;
  uint8_t remote_cm_response_timeout = 0;  // 5 bits: 4.096 µs * 2^n
  TransportType transport_type = TransportType::kRc;
  bool has_end_to_end_credits = false;
  Psn starting_psn{};
  uint8_t local_cm_response_timeout = 0;  // 5 bits
  uint8_t retry_count = 0;                // 3 bits
  PKey pkey{};
  uint8_t path_mtu = 0;  // enum ibv_mtu
  bool has_rdc = false;
  uint8_t rnr_retry_count = 0;  // 3 bits
  uint8_t max_cm_retries = 0;   // 4 bits
  bool has_srq = false;
  uint8_t extended_transport_type = 0;  // 3 bits; 1: XRC
  Ece ece{};
  PathFields primary{};
  PathFields alternate{};
  PrivateData<92> private_data{};

  friend bool operator==(const Req&, const Req&) = default;
};

struct Mra {
  static constexpr Attribute kAttribute = Attribute::kMra;
  CommId local_comm_id{}, remote_comm_id{};
  About about = About::kReq;
  uint8_t service_timeout = 0;  // 5 bits: 4.096 µs * 2^n
  PrivateData<222> private_data{};

  friend bool operator==(const Mra&, const Mra&) = default;
};

struct Rej {
  static constexpr Attribute kAttribute = Attribute::kRej;
  CommId local_comm_id{}, remote_comm_id{};
  About about = About::kReq;
  uint8_t info_bytes = 0;  // 7 bits: of `info`
  RejectReason reason = RejectReason::kNoQp;
  std::array<std::byte, 72> info{};
  PrivateData<148> private_data{};

  friend bool operator==(const Rej&, const Rej&) = default;
};

struct Rep {
  static constexpr Attribute kAttribute = Attribute::kRep;
  CommId local_comm_id{}, remote_comm_id{};
  QKey local_qkey{};
  Qpn local_qpn{};
  uint32_t local_eecn = 0;
  Psn starting_psn{};
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t target_ack_delay = 0;   // 5 bits
  uint8_t failover_accepted = 0;  // 2 bits
  bool has_end_to_end_credits = false;
  uint8_t rnr_retry_count = 0;  // 3 bits
  bool has_srq = false;
  uint64_t local_ca_guid = 0;
  Ece ece{};
  PrivateData<196> private_data{};

  friend bool operator==(const Rep&, const Rep&) = default;
};

struct Rtu {
  static constexpr Attribute kAttribute = Attribute::kRtu;
  CommId local_comm_id{}, remote_comm_id{};
  PrivateData<224> private_data{};

  friend bool operator==(const Rtu&, const Rtu&) = default;
};

struct Dreq {
  static constexpr Attribute kAttribute = Attribute::kDreq;
  CommId local_comm_id{}, remote_comm_id{};
  Qpn remote_qpn{};
  PrivateData<220> private_data{};

  friend bool operator==(const Dreq&, const Dreq&) = default;
};

struct Drep {
  static constexpr Attribute kAttribute = Attribute::kDrep;
  CommId local_comm_id{}, remote_comm_id{};
  PrivateData<224> private_data{};

  friend bool operator==(const Drep&, const Drep&) = default;
};

struct Lap {
  static constexpr Attribute kAttribute = Attribute::kLap;
  CommId local_comm_id{}, remote_comm_id{};
  Qpn remote_qpn{};
  uint8_t remote_cm_response_timeout = 0;  // 5 bits
  PathFields alternate{};
  PrivateData<168> private_data{};

  friend bool operator==(const Lap&, const Lap&) = default;
};

// Spec: IBTA 12.8.3.1
enum class AprStatus : uint8_t {
  kAccepted = 0,
  kInvalidCommId = 1,
  kNotSupported = 2,
  kRejected = 3
};

struct Apr {
  static constexpr Attribute kAttribute = Attribute::kApr;
  CommId local_comm_id{}, remote_comm_id{};
  uint8_t info_bytes = 0;
  AprStatus status = AprStatus::kAccepted;
  std::array<std::byte, 72> info{};
  PrivateData<148> private_data{};

  friend bool operator==(const Apr&, const Apr&) = default;
};

struct SidrReq {
  static constexpr Attribute kAttribute = Attribute::kSidrReq;
  CommId request_id{};
  PKey pkey{};
  ServiceId service_id{};
  PrivateData<216> private_data{};

  friend bool operator==(const SidrReq&, const SidrReq&) = default;
};

// Spec: IBTA 12.11.2.1
enum class SidrStatus : uint8_t {
  kValid = 0,
  kServiceIdNotSupported = 1,
  kRejected = 2,
  kNoQp = 3,
  kRedirect = 4,
  kVersionNotSupported = 5,
};

struct SidrRep {
  static constexpr Attribute kAttribute = Attribute::kSidrRep;
  CommId request_id{};
  SidrStatus status = SidrStatus::kValid;
  uint8_t info_bytes = 0;
  Qpn qpn{};
  ServiceId service_id{};
  QKey qkey{};
  std::array<std::byte, 72> info{};
  Ece ece{};
  PrivateData<136> private_data{};

  friend bool operator==(const SidrRep&, const SidrRep&) = default;
};

using Body = std::variant<Req, Mra, Rej, Rep, Rtu, Dreq, Drep, Lap, Apr, SidrReq, SidrRep>;

struct Message {
  uint64_t transaction_id = 0;  // an answer has the question's
  Body body{};

  friend bool operator==(const Message&, const Message&) = default;
};

using Mad = std::array<std::byte, kMadBytes>;
Mad Encode(const Message& message);

enum class DecodeError : uint8_t {
  kNone,
  kWrongLength,       // a MAD is 256 bytes
  kBadVersion,        // of MADs in general: not 1
  kWrongClass,        // not communication management
  kBadClassVersion,   // not 2: answered by a REJ that says so
  kBadMethod,         // CM knows Send alone
  kUnknownAttribute,  // or one that Verbena has no use for
};
const char* NameOf(DecodeError error);
// Leaves `out` alone on an error, but for kBadClassVersion and kUnknownAttribute: then it has the
// transaction ID.
DecodeError Decode(const std::byte* bytes, size_t length, Message* out);

// One line, for traces and `verbena show`.
std::string Describe(const Message& message);

}  // namespace verbena::transport::cm
