#include "fi_shim/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

namespace verbena::fi {
namespace {

constexpr char kAnyPrefix[] = "fi_sockaddr://";
constexpr char kInPrefix[] = "fi_sockaddr_in://";
constexpr char kIn6Prefix[] = "fi_sockaddr_in6://";
constexpr size_t kNodeBytesMax = 256;

bool BeginsWith(const char* text, const char* prefix) {
  return strncmp(text, prefix, strlen(prefix)) == 0;
}

// `text` is "node:service" or "[node]:service", with an optional query behind it.
bool Split(const char* text, char (&node)[kNodeBytesMax], char (&service)[32]) {
  const size_t length = strcspn(text, "?");
  if (length >= kNodeBytesMax) return false;
  memcpy(node, text, length);
  node[length] = '\0';
  service[0] = '\0';
  char* begin = node;
  char* end = nullptr;
  char* colon = nullptr;
  if (node[0] == '[') {
    begin = node + 1;
    end = strchr(begin, ']');
    if (end == nullptr) return false;
    colon = end[1] == ':' ? end + 1 : nullptr;
    *end = '\0';
  } else {
    colon = strrchr(node, ':');
    if (colon != nullptr) *colon = '\0';
  }
  if (colon != nullptr) snprintf(service, sizeof(service), "%s", colon + 1);
  memmove(node, begin, strlen(begin) + 1);
  return true;
}

int FamilyOf(uint32_t addr_format) {
  if (addr_format == FI_SOCKADDR_IN) return AF_INET;
  return addr_format == FI_SOCKADDR_IN6 ? AF_INET6 : AF_UNSPEC;
}

// getaddrinfo takes numbers modulo 2^16.
bool IsNoPort(const char* service) {
  char* end;
  const long number = strtol(service, &end, 10);
  return end != service && *end == '\0' && (number < 0 || number > UINT16_MAX);
}

}  // namespace

size_t AddressBytes(const void* address) {
  sa_family_t family;
  memcpy(&family, address, sizeof(family));
  if (family == AF_INET) return sizeof(sockaddr_in);
  return family == AF_INET6 ? sizeof(sockaddr_in6) : 0;
}

bool HasFormat(uint32_t addr_format, const sockaddr* address) {
  const int family = FamilyOf(addr_format);
  return family == AF_UNSPEC ? AddressBytes(address) != 0 : address->sa_family == family;
}

uint32_t FormatOf(const SockAddress& address) {
  return address.sa.sa_family == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
}

bool IsSame(const SockAddress& a, const SockAddress& b) {
  if (a.sa.sa_family != b.sa.sa_family) return false;
  if (a.sa.sa_family == AF_INET) {
    return a.in.sin_port == b.in.sin_port && a.in.sin_addr.s_addr == b.in.sin_addr.s_addr &&
           (a.in.sin_port != 0 || memcmp(a.in.sin_zero, b.in.sin_zero, sizeof(a.in.sin_zero)) == 0);
  }
  return a.in6.sin6_port == b.in6.sin6_port &&
         memcmp(&a.in6.sin6_addr, &b.in6.sin6_addr, sizeof(in6_addr)) == 0 &&
         (a.in6.sin6_port != 0 || a.in6.sin6_flowinfo == b.in6.sin6_flowinfo);
}

uint32_t HashOf(const SockAddress& address) {
  uint64_t hash = PortOf(address);
  if (address.sa.sa_family == AF_INET) {
    hash = hash << 32 | address.in.sin_addr.s_addr;
  } else {
    uint64_t words[2];
    memcpy(words, &address.in6.sin6_addr, sizeof(words));
    hash ^= words[0] * 0x9e3779b97f4a7c15 ^ words[1];
  }
  // Of datagrams' endpoints all of one NIC fall together but for this.
  if (PortOf(address) == 0 && address.sa.sa_family == AF_INET) {
    uint64_t rest;
    memcpy(&rest, address.in.sin_zero, sizeof(rest));
    hash ^= rest;
  }
  hash *= 0x9e3779b97f4a7c15;
  return static_cast<uint32_t>(hash >> 32);
}

uint16_t PortOf(const SockAddress& address) {
  return ntohs(address.sa.sa_family == AF_INET ? address.in.sin_port : address.in6.sin6_port);
}
void SetPort(SockAddress* address, uint16_t port) {
  (address->sa.sa_family == AF_INET ? address->in.sin_port : address->in6.sin6_port) = htons(port);
}

bool IsAny(const SockAddress& address) {
  if (address.sa.sa_family == AF_INET) return address.in.sin_addr.s_addr == INADDR_ANY;
  return IN6_IS_ADDR_UNSPECIFIED(&address.in6.sin6_addr);
}

bool Advance(SockAddress* address, uint64_t steps) {
  uint8_t* bytes = address->sa.sa_family == AF_INET
                       ? reinterpret_cast<uint8_t*>(&address->in.sin_addr)
                       : address->in6.sin6_addr.s6_addr;
  const int count = address->sa.sa_family == AF_INET ? 4 : 16;
  for (int i = count; i-- > 0 && steps != 0;) {
    steps += bytes[i];
    bytes[i] = static_cast<uint8_t>(steps);
    steps >>= 8;
  }
  return steps == 0;
}

int Resolve(const char* node, const char* service, bool is_numeric, uint32_t addr_format,
            SockAddress* out) {
  char node_part[kNodeBytesMax], service_part[32];
  int family = FamilyOf(addr_format);
  for (const char* prefix : {kAnyPrefix, kInPrefix, kIn6Prefix}) {
    if (node == nullptr || !BeginsWith(node, prefix)) continue;
    // Instead of a service.
    if (service != nullptr || !Split(node + strlen(prefix), node_part, service_part)) {
      return -FI_EINVAL;
    }
    if (prefix != kAnyPrefix) family = prefix == kInPrefix ? AF_INET : AF_INET6;
    if (FamilyOf(addr_format) != AF_UNSPEC && family != FamilyOf(addr_format)) return -FI_ENODATA;
    node = node_part[0] != '\0' ? node_part : nullptr;
    service = service_part[0] != '\0' ? service_part : nullptr;
    break;
  }
  if (service != nullptr && IsNoPort(service)) return -FI_EINVAL;
  addrinfo hints = {};
  hints.ai_family = node == nullptr && family == AF_UNSPEC ? AF_INET : family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = (node == nullptr ? AI_PASSIVE : 0) | (is_numeric ? AI_NUMERICHOST : 0);
  // A port without a node, and a node without a port, are both resolved.
  addrinfo* found = nullptr;
  const int result = getaddrinfo(node, service != nullptr ? service : "0", &hints, &found);
  if (result != 0) return result == EAI_SERVICE ? -FI_EINVAL : -FI_ENODATA;
  *out = {};
  memcpy(out, found->ai_addr, std::min<size_t>(found->ai_addrlen, sizeof(*out)));
  freeaddrinfo(found);
  return 0;
}

size_t Write(const SockAddress& address, char* buf, size_t len) {
  char host[INET6_ADDRSTRLEN] = "";
  const bool is_v4 = address.sa.sa_family == AF_INET;
  inet_ntop(address.sa.sa_family,
            is_v4 ? static_cast<const void*>(&address.in.sin_addr)
                  : static_cast<const void*>(&address.in6.sin6_addr),
            host, sizeof(host));
  char* const to = len == 0 ? nullptr : buf;
  const int length = is_v4 ? snprintf(to, len, "%s%s:%u", kInPrefix, host, PortOf(address))
                           : snprintf(to, len, "%s[%s]:%u", kIn6Prefix, host, PortOf(address));
  return static_cast<size_t>(length) + 1;
}

}  // namespace verbena::fi
