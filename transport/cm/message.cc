#include "transport/cm/message.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "transport/wire/byte_order.h"

namespace verbena::transport::cm {
namespace {

using wire::LoadBe16;
using wire::LoadBe32;
using wire::LoadBe64;
using wire::StoreBe16;
using wire::StoreBe32;
using wire::StoreBe64;

// Spec: IBTA 13.4.4, 16.7.1
constexpr uint8_t kBaseVersion = 1;
constexpr uint8_t kCmClass = 0x07;
constexpr uint8_t kCmClassVersion = 2;
constexpr uint8_t kMethodSend = 0x03;
constexpr uint32_t kAttributeModifierAt = 20;

// --- numbers and names to bits ------------------------------------------------------------------

template <typename T>
uint64_t ToBits(const T& value) {
  if constexpr (std::is_same_v<T, Psn>) {
    return value.value();
  } else if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
    return static_cast<uint64_t>(value);
  } else {
    return value.value;
  }
}

template <typename T>
void FromBits(uint64_t bits, T& out) {
  if constexpr (std::is_same_v<T, Psn>) {
    out = Psn(static_cast<uint32_t>(bits));
  } else if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
    out = static_cast<T>(bits);
  } else {
    out.value = static_cast<decltype(out.value)>(bits);
  }
}

// A field is `width` bits that begin `bit` bits after byte `at` of the data, the most significant
// first; it may cross bytes.
class Writer {
 public:
  explicit Writer(std::byte* data) : data_(data) {}
  template <typename T>
  void Field(uint32_t at, uint32_t bit, uint32_t width, const T& value) {
    const uint64_t bits = ToBits(value);
    for (uint32_t i = 0; i < width; ++i) {
      if ((bits >> (width - 1 - i) & 1) == 0) continue;
      data_[at + (bit + i) / 8] |= std::byte{0x80} >> (bit + i) % 8;
    }
  }
  template <typename T, size_t kBytes>
  void Bytes(uint32_t at, const std::array<T, kBytes>& bytes) {
    std::memcpy(data_ + at, bytes.data(), kBytes);
  }

 private:
  std::byte* data_;
};

class Reader {
 public:
  explicit Reader(const std::byte* data) : data_(data) {}
  template <typename T>
  void Field(uint32_t at, uint32_t bit, uint32_t width, T& value) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < width; ++i) {
      const std::byte mask = std::byte{0x80} >> (bit + i) % 8;
      bits = bits << 1 | ((data_[at + (bit + i) / 8] & mask) != std::byte{0} ? 1 : 0);
    }
    FromBits(bits, value);
  }
  template <typename T, size_t kBytes>
  void Bytes(uint32_t at, std::array<T, kBytes>& bytes) {
    std::memcpy(bytes.data(), data_ + at, kBytes);
  }

 private:
  const std::byte* data_;
};

// --- where each field is ------------------------------------------------------------------------
// One list for both directions: V is Writer with a const message, or Reader.

template <typename V, typename Path>
void VisitReqPath(V& v, uint32_t at, Path& path) {
  v.Field(at + 0, 0, 16, path.local_lid);
  v.Field(at + 2, 0, 16, path.remote_lid);
  v.Bytes(at + 4, path.local_gid.raw);
  v.Bytes(at + 20, path.remote_gid.raw);
  v.Field(at + 36, 0, 20, path.flow_label);
  v.Field(at + 39, 2, 6, path.packet_rate);
  v.Field(at + 40, 0, 8, path.traffic_class);
  v.Field(at + 41, 0, 8, path.hop_limit);
  v.Field(at + 42, 0, 4, path.sl);
  v.Field(at + 42, 4, 1, path.is_subnet_local);
  v.Field(at + 43, 0, 5, path.local_ack_timeout);
}

template <typename V, typename M>
void VisitCommIds(V& v, M& m) {
  v.Field(0, 0, 32, m.local_comm_id);
  v.Field(4, 0, 32, m.remote_comm_id);
}

// 24 bits of which each byte is elsewhere, the most significant first.
template <typename V, typename T>
void VisitBytesOf(V& v, T& value, const std::array<uint32_t, 3>& at) {
  std::remove_const_t<T> whole = 0;
  for (int i = 0; i < 3; ++i) {
    uint8_t byte = static_cast<uint8_t>(value >> (16 - 8 * i));
    v.Field(at[i], 0, 8, byte);
    whole = whole << 8 | byte;
  }
  if constexpr (!std::is_const_v<T>) value = whole;
}

// Spec: IBTA 12.6.5
template <typename V, typename M>
void VisitReq(V& v, M& m) {
  v.Field(0, 0, 32, m.local_comm_id);
  v.Field(5, 0, 24, m.ece.vendor_id);
  v.Field(8, 0, 64, m.service_id);
  v.Field(16, 0, 64, m.local_ca_guid);
  v.Field(28, 0, 32, m.local_qkey);
  v.Field(32, 0, 24, m.local_qpn);
  v.Field(35, 0, 8, m.responder_resources);
  v.Field(36, 0, 24, m.local_eecn);
  v.Field(39, 0, 8, m.initiator_depth);
  v.Field(40, 0, 24, m.remote_eecn);
  v.Field(43, 0, 5, m.remote_cm_response_timeout);
  v.Field(43, 5, 2, m.transport_type);
  v.Field(43, 7, 1, m.has_end_to_end_credits);
  v.Field(44, 0, 24, m.starting_psn);
  v.Field(47, 0, 5, m.local_cm_response_timeout);
  v.Field(47, 5, 3, m.retry_count);
  v.Field(48, 0, 16, m.pkey);
  v.Field(50, 0, 4, m.path_mtu);
  v.Field(50, 4, 1, m.has_rdc);
  v.Field(50, 5, 3, m.rnr_retry_count);
  v.Field(51, 0, 4, m.max_cm_retries);
  v.Field(51, 4, 1, m.has_srq);
  v.Field(51, 5, 3, m.extended_transport_type);
  VisitReqPath(v, 52, m.primary);
  VisitReqPath(v, 96, m.alternate);
  v.Bytes(140, m.private_data);
}

// Spec: IBTA 12.6.6
template <typename V, typename M>
void VisitMra(V& v, M& m) {
  VisitCommIds(v, m);
  v.Field(8, 0, 2, m.about);
  v.Field(9, 0, 5, m.service_timeout);
  v.Bytes(10, m.private_data);
}

// Spec: IBTA 12.6.7
template <typename V, typename M>
void VisitRej(V& v, M& m) {
  VisitCommIds(v, m);
  v.Field(8, 0, 2, m.about);
  v.Field(9, 0, 7, m.info_bytes);
  v.Field(10, 0, 16, m.reason);
  v.Bytes(12, m.info);
  v.Bytes(84, m.private_data);
}

// Spec: IBTA 12.6.8
template <typename V, typename M>
void VisitRep(V& v, M& m) {
  VisitCommIds(v, m);
  VisitBytesOf(v, m.ece.vendor_id, {15, 19, 23});
  v.Field(8, 0, 32, m.local_qkey);
  v.Field(12, 0, 24, m.local_qpn);
  v.Field(16, 0, 24, m.local_eecn);
  v.Field(20, 0, 24, m.starting_psn);
  v.Field(24, 0, 8, m.responder_resources);
  v.Field(25, 0, 8, m.initiator_depth);
  v.Field(26, 0, 5, m.target_ack_delay);
  v.Field(26, 5, 2, m.failover_accepted);
  v.Field(26, 7, 1, m.has_end_to_end_credits);
  v.Field(27, 0, 3, m.rnr_retry_count);
  v.Field(27, 3, 1, m.has_srq);
  v.Field(28, 0, 64, m.local_ca_guid);
  v.Bytes(36, m.private_data);
}

// RTU and DREP.   Spec: IBTA 12.6.9, 12.6.11
template <typename V, typename M>
void VisitPlain(V& v, M& m) {
  VisitCommIds(v, m);
  v.Bytes(8, m.private_data);
}

// Spec: IBTA 12.6.10
template <typename V, typename M>
void VisitDreq(V& v, M& m) {
  VisitCommIds(v, m);
  v.Field(8, 0, 24, m.remote_qpn);
  v.Bytes(12, m.private_data);
}

// The path has another layout than a REQ's.   Spec: IBTA 12.8.2
template <typename V, typename M>
void VisitLap(V& v, M& m) {
  VisitCommIds(v, m);
  v.Field(12, 0, 24, m.remote_qpn);
  v.Field(15, 0, 5, m.remote_cm_response_timeout);
  v.Field(20, 0, 16, m.alternate.local_lid);
  v.Field(22, 0, 16, m.alternate.remote_lid);
  v.Bytes(24, m.alternate.local_gid.raw);
  v.Bytes(40, m.alternate.remote_gid.raw);
  v.Field(56, 0, 20, m.alternate.flow_label);
  v.Field(59, 0, 8, m.alternate.traffic_class);
  v.Field(60, 0, 8, m.alternate.hop_limit);
  v.Field(61, 2, 6, m.alternate.packet_rate);
  v.Field(62, 0, 4, m.alternate.sl);
  v.Field(62, 4, 1, m.alternate.is_subnet_local);
  v.Field(63, 0, 5, m.alternate.local_ack_timeout);
  v.Bytes(64, m.private_data);
}

// Spec: IBTA 12.8.3
template <typename V, typename M>
void VisitApr(V& v, M& m) {
  VisitCommIds(v, m);
  v.Field(8, 0, 8, m.info_bytes);
  v.Field(9, 0, 8, m.status);
  v.Bytes(12, m.info);
  v.Bytes(84, m.private_data);
}

// Spec: IBTA 12.11.1
template <typename V, typename M>
void VisitSidrReq(V& v, M& m) {
  v.Field(0, 0, 32, m.request_id);
  v.Field(4, 0, 16, m.pkey);
  v.Field(8, 0, 64, m.service_id);
  v.Bytes(16, m.private_data);
}

// Spec: IBTA 12.11.2
template <typename V, typename M>
void VisitSidrRep(V& v, M& m) {
  v.Field(0, 0, 32, m.request_id);
  v.Field(4, 0, 8, m.status);
  v.Field(5, 0, 8, m.info_bytes);
  v.Field(8, 0, 24, m.qpn);
  v.Field(12, 0, 64, m.service_id);
  VisitBytesOf(v, m.ece.vendor_id, {6, 7, 11});
  v.Field(20, 0, 32, m.qkey);
  v.Bytes(24, m.info);
  v.Bytes(96, m.private_data);
}

template <typename V, typename M>
void Visit(V& v, M& m) {
  using T = std::remove_const_t<M>;
  if constexpr (std::is_same_v<T, Req>) VisitReq(v, m);
  if constexpr (std::is_same_v<T, Mra>) VisitMra(v, m);
  if constexpr (std::is_same_v<T, Rej>) VisitRej(v, m);
  if constexpr (std::is_same_v<T, Rep>) VisitRep(v, m);
  if constexpr (std::is_same_v<T, Rtu> || std::is_same_v<T, Drep>) VisitPlain(v, m);
  if constexpr (std::is_same_v<T, Dreq>) VisitDreq(v, m);
  if constexpr (std::is_same_v<T, Lap>) VisitLap(v, m);
  if constexpr (std::is_same_v<T, Apr>) VisitApr(v, m);
  if constexpr (std::is_same_v<T, SidrReq>) VisitSidrReq(v, m);
  if constexpr (std::is_same_v<T, SidrRep>) VisitSidrRep(v, m);
}

// Makes `out` hold the alternative that has this attribute. False: none has.
template <size_t kIndex = 0>
bool Emplace(uint16_t attribute, Body* out) {
  if constexpr (kIndex == std::variant_size_v<Body>) {
    return false;
  } else {
    using T = std::variant_alternative_t<kIndex, Body>;
    if (attribute != static_cast<uint16_t>(T::kAttribute))
      return Emplace<kIndex + 1>(attribute, out);
    out->emplace<T>();
    return true;
  }
}

Attribute AttributeOf(const Body& body) {
  return std::visit([](const auto& m) { return std::decay_t<decltype(m)>::kAttribute; }, body);
}

template <typename... Args>
std::string Format(const char* format, Args... args) {
  char text[160];
  snprintf(text, sizeof text, format, args...);
  return text;
}

}  // namespace

const char* NameOf(Attribute attribute) {
  switch (attribute) {
    case Attribute::kReq:
      return "REQ";
    case Attribute::kMra:
      return "MRA";
    case Attribute::kRej:
      return "REJ";
    case Attribute::kRep:
      return "REP";
    case Attribute::kRtu:
      return "RTU";
    case Attribute::kDreq:
      return "DREQ";
    case Attribute::kDrep:
      return "DREP";
    case Attribute::kSidrReq:
      return "SIDR_REQ";
    case Attribute::kSidrRep:
      return "SIDR_REP";
    case Attribute::kLap:
      return "LAP";
    case Attribute::kApr:
      return "APR";
  }
  return "?";
}

const char* NameOf(DecodeError error) {
  switch (error) {
    case DecodeError::kNone:
      return "none";
    case DecodeError::kWrongLength:
      return "wrong length";
    case DecodeError::kBadVersion:
      return "bad version";
    case DecodeError::kWrongClass:
      return "wrong class";
    case DecodeError::kBadClassVersion:
      return "bad class version";
    case DecodeError::kBadMethod:
      return "bad method";
    case DecodeError::kUnknownAttribute:
      return "unknown attribute";
  }
  return "?";
}

Mad Encode(const Message& message) {
  Mad mad{};
  mad[0] = std::byte{kBaseVersion};
  mad[1] = std::byte{kCmClass};
  mad[2] = std::byte{kCmClassVersion};
  mad[3] = std::byte{kMethodSend};
  StoreBe64(message.transaction_id, &mad[8]);
  StoreBe16(static_cast<uint16_t>(AttributeOf(message.body)), &mad[16]);
  Writer writer(mad.data() + kMadHeaderBytes);
  std::visit(
      [&](const auto& m) {
        Visit(writer, m);
        if constexpr (requires { m.ece; }) StoreBe32(m.ece.options, &mad[kAttributeModifierAt]);
      },
      message.body);
  return mad;
}

DecodeError Decode(const std::byte* bytes, size_t length, Message* out) {
  if (length != kMadBytes) return DecodeError::kWrongLength;
  if (bytes[0] != std::byte{kBaseVersion}) return DecodeError::kBadVersion;
  if (bytes[1] != std::byte{kCmClass}) return DecodeError::kWrongClass;
  if (bytes[3] != std::byte{kMethodSend}) return DecodeError::kBadMethod;
  out->transaction_id = LoadBe64(bytes + 8);
  if (bytes[2] != std::byte{kCmClassVersion}) return DecodeError::kBadClassVersion;
  if (!Emplace(LoadBe16(bytes + 16), &out->body)) return DecodeError::kUnknownAttribute;
  Reader reader(bytes + kMadHeaderBytes);
  std::visit(
      [&](auto& m) {
        Visit(reader, m);
        if constexpr (requires { m.ece; }) m.ece.options = LoadBe32(bytes + kAttributeModifierAt);
      },
      out->body);
  return DecodeError::kNone;
}

std::string Describe(const Message& message) {
  std::string text = NameOf(AttributeOf(message.body));
  std::visit(
      [&](const auto& m) {
        using T = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<T, Req>) {
          text += Format(" comm 0x%08x, service 0x%016llx, QPN 0x%06x, PSN 0x%06x",
                         m.local_comm_id.value, static_cast<unsigned long long>(m.service_id.value),
                         m.local_qpn.value, m.starting_psn.value());
        } else if constexpr (std::is_same_v<T, SidrReq>) {
          text += Format(" request 0x%08x, service 0x%016llx", m.request_id.value,
                         static_cast<unsigned long long>(m.service_id.value));
        } else if constexpr (std::is_same_v<T, SidrRep>) {
          text += Format(" request 0x%08x, status %u, QPN 0x%06x", m.request_id.value,
                         static_cast<unsigned>(m.status), m.qpn.value);
        } else {
          text += Format(" comm 0x%08x to 0x%08x", m.local_comm_id.value, m.remote_comm_id.value);
        }
        if constexpr (std::is_same_v<T, Rep>) {
          text += Format(", QPN 0x%06x, PSN 0x%06x", m.local_qpn.value, m.starting_psn.value());
        }
        if constexpr (std::is_same_v<T, Rej>) {
          text += Format(", reason %u", static_cast<unsigned>(m.reason));
        }
        if constexpr (std::is_same_v<T, Dreq>) text += Format(", QPN 0x%06x", m.remote_qpn.value);
      },
      message.body);
  return text;
}

}  // namespace verbena::transport::cm
