// fi_getinfo: every NIC, each of its addresses, each type of endpoint, as far as hints want them.
#include "fi_shim/info.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "core/client/no_cancel.h"
#include "fi_shim/address.h"
#include "fi_shim/copy_info.h"
#include "fi_shim/domain.h"
#include "fi_shim/enums.h"
#include "fi_shim/host.h"
#include "fi_shim/nic_attr.h"
#include "fi_shim/nics.h"
#include "fi_shim/provider.h"

namespace verbena::fi {
namespace {

constexpr uint64_t kKnownFlags = FI_NUMERICHOST | FI_SOURCE | FI_PROV_ATTR_ONLY;
// libfabric marks calls of its own by bits up there.
constexpr uint64_t kFlagsOfLibfabric = ~uint64_t{0} << 54;
constexpr fi_ep_type kTypes[] = {FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM};

// What a call asks for, apart from attributes.
struct Question {
  uint32_t version = 0;
  const fi_info* hints = nullptr;  // never null; zeroes where the program gave none
  bool has_source = false, has_dest = false;
  SockAddress source = {}, dest = {};
};

struct Answer {
  fi_info* first = nullptr;
  fi_info** last = &first;
  bool has_memory = true;
};

fi_info* NewInfo() {
  auto* info = static_cast<fi_info*>(calloc(1, sizeof(fi_info)));
  if (info == nullptr) return nullptr;
  info->tx_attr = static_cast<fi_tx_attr*>(calloc(1, sizeof(fi_tx_attr)));
  info->rx_attr = static_cast<fi_rx_attr*>(calloc(1, sizeof(fi_rx_attr)));
  info->ep_attr = static_cast<fi_ep_attr*>(calloc(1, sizeof(fi_ep_attr)));
  info->domain_attr = static_cast<fi_domain_attr*>(calloc(1, sizeof(fi_domain_attr)));
  info->fabric_attr = static_cast<fi_fabric_attr*>(calloc(1, sizeof(fi_fabric_attr)));
  if (info->tx_attr != nullptr && info->rx_attr != nullptr && info->ep_attr != nullptr &&
      info->domain_attr != nullptr && info->fabric_attr != nullptr) {
    return info;
  }
  FreeInfo(info);
  return nullptr;
}

bool IsLoopback(const SockAddress& address) {
  constexpr uint8_t kLoopbackNet = 127;
  if (address.sa.sa_family == AF_INET) {
    return ntohl(address.in.sin_addr.s_addr) >> 24 == kLoopbackNet;
  }
  return IN6_IS_ADDR_LOOPBACK(&address.in6.sin6_addr);
}

bool SameHost(SockAddress a, const SockAddress& b) {
  if (a.sa.sa_family != b.sa.sa_family) return false;
  return a.sa.sa_family == AF_INET
             ? a.in.sin_addr.s_addr == b.in.sin_addr.s_addr
             : memcmp(&a.in6.sin6_addr, &b.in6.sin6_addr, sizeof(in6_addr)) == 0;
}

SockAddress AddressOf(const shm::GidEntry& gid) {
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  SockAddress address = {};
  if (memcmp(gid.raw, kMapped, sizeof(kMapped)) == 0) {
    address.in.sin_family = AF_INET;
    memcpy(&address.in.sin_addr, gid.raw + sizeof(kMapped), sizeof(in_addr));
    return address;
  }
  address.in6.sin6_family = AF_INET6;
  memcpy(&address.in6.sin6_addr, gid.raw, sizeof(in6_addr));
  if (IN6_IS_ADDR_LINKLOCAL(&address.in6.sin6_addr)) address.in6.sin6_scope_id = gid.ifindex;
  return address;
}

// Whether an endpoint at this address of a NIC is what the call asks for; its port is set then.
bool IsWanted(const Question& question, SockAddress* address) {
  const uint32_t format = question.hints->addr_format;
  if (format != FI_FORMAT_UNSPEC && !HasFormat(format, &address->sa)) return false;
  // On no network, and without an interface that could be named: other addresses serve as well.
  const bool is_link_local =
      address->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&address->in6.sin6_addr);
  if (is_link_local && !(question.has_source && SameHost(question.source, *address))) return false;
  if (question.has_source) {
    if (question.source.sa.sa_family != address->sa.sa_family) return false;
    if (!IsAny(question.source) && !SameHost(question.source, *address)) return false;
    SetPort(address, PortOf(question.source));
  }
  if (!question.has_dest) return true;
  if (question.dest.sa.sa_family != address->sa.sa_family) return false;
  // A NIC of 127/8 is on no network.
  return IsAny(question.dest) || IsLoopback(question.dest) || !IsLoopback(*address);
}

bool CopyKey(const uint8_t* from, size_t bytes, uint8_t** to, size_t* to_bytes) {
  if (from == nullptr || bytes == 0) return true;
  *to = static_cast<uint8_t*>(malloc(bytes));
  if (*to == nullptr) return false;
  memcpy(*to, from, bytes);
  *to_bytes = bytes;
  return true;
}

// What is not numbers: addresses, keys, handles, the domain that is open. False: no memory.
bool Fill(const Question& question, const SockAddress& source, fi_info* info) {
  const fi_info& hints = *question.hints;
  info->addr_format = FormatOf(source);
  if (hints.addr_format == FI_SOCKADDR) info->addr_format = FI_SOCKADDR;
  if (!SetAddress(&info->src_addr, &info->src_addrlen, &source, AddressBytes(&source.sa))) {
    return false;
  }
  if (question.has_dest) {
    SockAddress dest = question.dest;
    // A service alone: on this host.
    if (IsAny(dest)) {
      dest = source;
      SetPort(&dest, PortOf(question.dest));
    }
    if (!SetAddress(&info->dest_addr, &info->dest_addrlen, &dest, AddressBytes(&dest.sa))) {
      return false;
    }
  }
  if (hints.handle != nullptr && hints.handle->fclass == FI_CLASS_PEP) info->handle = hints.handle;
  info->domain_attr->domain = FirstOpen(info->domain_attr->name);
  if (hints.domain_attr != nullptr && hints.domain_attr->domain != nullptr) {
    info->domain_attr->domain = hints.domain_attr->domain;
  }
  info->fabric_attr->fabric = FirstOpenFabric();
  if (hints.fabric_attr != nullptr && hints.fabric_attr->fabric != nullptr) {
    info->fabric_attr->fabric = hints.fabric_attr->fabric;
  }
  if (FI_VERSION_LT(question.version, FI_VERSION(1, 5))) return true;
  return (hints.ep_attr == nullptr ||
          CopyKey(hints.ep_attr->auth_key, hints.ep_attr->auth_key_size, &info->ep_attr->auth_key,
                  &info->ep_attr->auth_key_size)) &&
         (hints.domain_attr == nullptr ||
          CopyKey(hints.domain_attr->auth_key, hints.domain_attr->auth_key_size,
                  &info->domain_attr->auth_key, &info->domain_attr->auth_key_size));
}

void Add(const Question& question, const char* nic, const NicFacts& facts, fi_ep_type type,
         const SockAddress& source, Answer* answer) {
  const Limits limits = LimitsOf(facts.device, facts.port);
  fi_info* info = NewInfo();
  answer->has_memory &= info != nullptr && Describe(nic, type, limits, info);
  if (!answer->has_memory) return FreeInfo(info);
  const char* wrong = Narrow(question.version, *question.hints, limits, info);
  if (wrong != nullptr) {
    VERBENA_FI_INFO(FI_LOG_FABRIC, "%s: endpoints of type %d do not have the %s asked for", nic,
                    static_cast<int>(type), wrong);
    return FreeInfo(info);
  }
  info->nic = MakeNic(nic, facts.device, facts.port);
  answer->has_memory = info->nic != nullptr && Fill(question, source, info);
  if (!answer->has_memory) return FreeInfo(info);
  *answer->last = info;
  answer->last = &info->next;
}

// Hints that name a domain or a fabric.
bool NamesNic(const Question& question, const char* name) {
  const fi_domain_attr* domain = question.hints->domain_attr;
  if (domain == nullptr) return true;
  if (domain->name != nullptr && strcmp(domain->name, name) != 0) return false;
  char open[64];
  return domain->domain == nullptr ||
         (NameOfOpen(domain->domain, &open) && strcmp(open, name) == 0);
}
bool NamesFabric(const Question& question) {
  const fi_fabric_attr* fabric = question.hints->fabric_attr;
  if (fabric == nullptr) return true;
  if (fabric->fabric != nullptr && !IsOpen(fabric->fabric)) return false;
  return fabric->name == nullptr || strcmp(fabric->name, kFabricName) == 0;
}

void AddNic(const Question& question, const shm::NicInfo& nic, Answer* answer) {
  char name[shm::kNicNameBytes + 1] = {};
  memcpy(name, nic.name, sizeof(nic.name));
  if (!NamesNic(question, name)) {
    return VERBENA_FI_INFO(FI_LOG_FABRIC, "%s is not the domain asked for", name);
  }
  NicFacts facts;
  std::string text;
  if (QueryNic(nic.index, &facts, &text) != 0) {
    return VERBENA_FI_INFO(FI_LOG_FABRIC, "%s can't be asked: %s", name, text.c_str());
  }
  const fi_ep_attr* hints = question.hints->ep_attr;
  const uint32_t wanted = hints != nullptr ? NumberOf(hints->type) : uint32_t{FI_EP_UNSPEC};
  bool has_address = false;
  for (const shm::GidEntry& gid : facts.gids) {
    SockAddress address = AddressOf(gid);
    if (!IsWanted(question, &address)) continue;
    has_address = true;
    for (const fi_ep_type type : kTypes) {
      if (wanted != FI_EP_UNSPEC && wanted != type) continue;
      Add(question, name, facts, type, address, answer);
    }
  }
  if (!has_address) VERBENA_FI_INFO(FI_LOG_FABRIC, "%s has no address as asked for", name);
}

// An address of the hints. False: none of ours.
bool TakeAddress(const void* from, size_t bytes, SockAddress* to) {
  sa_family_t family;
  if (bytes < sizeof(family)) return false;
  memcpy(&family, from, sizeof(family));
  to->sa.sa_family = family;
  const size_t needed = AddressBytes(&to->sa);
  if (needed == 0 || bytes < needed) return false;
  memcpy(to, from, needed);
  return true;
}

// Which addresses the call names: by node and service, or by hints. 0 or a negative FI errno.
int FindAddresses(const char* node, const char* service, uint64_t flags, Question* question) {
  const fi_info& hints = *question->hints;
  const bool is_source = (flags & FI_SOURCE) != 0;
  const bool is_named = node != nullptr || service != nullptr;
  if (is_source && !is_named) return -FI_EINVAL;
  if (!is_source && hints.src_addr != nullptr) {
    question->has_source = true;
    if (!TakeAddress(hints.src_addr, hints.src_addrlen, &question->source)) return -FI_ENODATA;
  }
  if ((is_source || !is_named) && hints.dest_addr != nullptr) {
    question->has_dest = true;
    if (!TakeAddress(hints.dest_addr, hints.dest_addrlen, &question->dest)) return -FI_ENODATA;
  }
  if (!is_named) return 0;
  SockAddress* to = is_source ? &question->source : &question->dest;
  (is_source ? question->has_source : question->has_dest) = true;
  const int error = Resolve(node, service, (flags & FI_NUMERICHOST) != 0, hints.addr_format, to);
  return error == -FI_EINVAL ? -FI_ENODATA : error;
}

int DescribeProvider(fi_info** info) {
  *info = NewInfo();
  return *info == nullptr ? -FI_ENOMEM : 0;
}

}  // namespace

int GetInfo(uint32_t version, const char* node, const char* service, uint64_t flags,
            const fi_info* hints, fi_info** out) {
  *out = nullptr;
  if ((flags & ~(kKnownFlags | kFlagsOfLibfabric)) != 0) return -FI_EBADFLAGS;
  if ((flags & FI_PROV_ATTR_ONLY) != 0) return DescribeProvider(out);
  client::NoCancel no_cancel;
  const fi_info nothing = {};
  Question question;
  question.version = version;
  question.hints = hints != nullptr ? hints : &nothing;
  if (const int error = FindAddresses(node, service, flags, &question); error != 0) {
    VERBENA_FI_INFO(FI_LOG_FABRIC, "no such address: node %s, service %s",
                    node != nullptr ? node : "-", service != nullptr ? service : "-");
    return error;
  }
  if (!NamesFabric(question)) {
    VERBENA_FI_INFO(FI_LOG_FABRIC, "the only fabric is %s", kFabricName);
    return -FI_ENODATA;
  }
  std::vector<shm::NicInfo> nics;
  std::string text;
  if (ListNics(&nics, &text) != 0 || nics.empty()) {
    VERBENA_FI_INFO(FI_LOG_FABRIC, "there is no NIC: %s", text.c_str());
    return -FI_ENODATA;
  }
  Answer answer;
  for (const shm::NicInfo& nic : nics) AddNic(question, nic, &answer);
  if (!answer.has_memory) {
    while (answer.first != nullptr) {
      fi_info* next = answer.first->next;
      FreeInfo(answer.first);
      answer.first = next;
    }
    return -FI_ENOMEM;
  }
  *out = answer.first;
  return answer.first != nullptr ? 0 : -FI_ENODATA;
}

}  // namespace verbena::fi
