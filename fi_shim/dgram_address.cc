#include "fi_shim/dgram_address.h"

#include <endian.h>

#include <cstring>

namespace verbena::fi {
namespace {

constexpr uint32_t kMark = 0xfbu << 24;  // tells a QPN from what programs leave there
constexpr uint32_t kMarkMask = 0xffu << 24;
constexpr uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

}  // namespace

uint32_t QpnOf(const SockAddress& address) {
  uint32_t word = 0;
  if (address.sa.sa_family == AF_INET) {
    memcpy(&word, address.in.sin_zero, sizeof(word));
  } else if (address.sa.sa_family == AF_INET6) {
    word = address.in6.sin6_flowinfo;
  }
  word = be32toh(word);
  return (word & kMarkMask) == kMark ? word & ~kMarkMask : 0;
}

void SetQpn(uint32_t qpn, SockAddress* address) {
  const uint32_t word = htobe32(kMark | (qpn & ~kMarkMask));
  if (address->sa.sa_family == AF_INET) {
    memcpy(address->in.sin_zero, &word, sizeof(word));
  } else {
    address->in6.sin6_flowinfo = word;
  }
}

bool GidOf(const SockAddress& address, uint8_t (*gid)[16]) {
  if (address.sa.sa_family == AF_INET) {
    memcpy(*gid, kMappedPrefix, sizeof(kMappedPrefix));
    memcpy(*gid + sizeof(kMappedPrefix), &address.in.sin_addr, sizeof(address.in.sin_addr));
    return true;
  }
  if (address.sa.sa_family != AF_INET6) return false;
  memcpy(*gid, &address.in6.sin6_addr, sizeof(*gid));
  return true;
}

void SetGid(const uint8_t* gid, SockAddress* address) {
  *address = {};
  if (memcmp(gid, kMappedPrefix, sizeof(kMappedPrefix)) == 0) {
    address->in.sin_family = AF_INET;
    memcpy(&address->in.sin_addr, gid + sizeof(kMappedPrefix), sizeof(address->in.sin_addr));
  } else {
    address->in6.sin6_family = AF_INET6;
    memcpy(&address->in6.sin6_addr, gid, sizeof(address->in6.sin6_addr));
  }
}

}  // namespace verbena::fi
