// Address handles and multicast groups.
#include <arpa/inet.h>
#include <endian.h>
#include <netinet/ip.h>
#include <string.h>

#include <new>
#include <vector>

#include "core/client/instance.h"
#include "core/client/no_cancel.h"
#include "core/client/no_memory.h"
#include "verbs_shim/objects.h"
#include "verbs_shim/symver.h"

namespace verbena::verbs {
namespace {

constexpr size_t kIpv4InGrhBytes = 20;  // RoCE v2 over IPv4: the header fills the second half
constexpr uint16_t kNoVlan = 0xffff;
constexpr uint8_t kNextHeaderIba = 0x1b;  // RoCE v1, IBTA A16

uint16_t Ipv4HeaderChecksum(const iphdr& header) {
  uint16_t words[10];
  memcpy(words, &header, sizeof(words));
  uint32_t sum = 0;
  for (uint16_t word : words) sum += word;
  sum = (sum & 0xffff) + (sum >> 16);
  sum += sum >> 16;
  return static_cast<uint16_t>(~sum);
}

// 4, 6, or 0: what the 40 bytes in front of a UD payload hold. A first nibble of 6 may be stale
// memory in front of an IPv4 header, whose checksum then decides.
int GrhVersion(const ibv_grh& grh, iphdr* ipv4) {
  memcpy(ipv4, reinterpret_cast<const char*>(&grh) + kIpv4InGrhBytes, sizeof(*ipv4));
  if (be32toh(grh.version_tclass_flow) >> 28 != 6) return ipv4->version == 4 ? 4 : 0;
  if (ipv4->ihl != 5) return 6;
  iphdr zeroed = *ipv4;
  zeroed.check = 0;
  return Ipv4HeaderChecksum(zeroed) == ipv4->check ? 4 : 6;
}

void MapIpv4(uint32_t address, ibv_gid* gid) {
  *gid = {};
  gid->raw[10] = gid->raw[11] = 0xff;
  memcpy(gid->raw + 12, &address, sizeof(address));
}

// 0 or errno.
int FindGidIndex(Context* context, uint8_t port, const ibv_gid& gid, uint32_t type,
                 uint8_t* index) {
  for (uint32_t i = 0;; ++i) {
    ibv_gid_entry entry = {};
    int error = QueryGid(context, port, i, &entry);
    if (error == ENODATA) continue;
    if (error != 0) return error;
    if (entry.gid_type == type && memcmp(&entry.gid, &gid, sizeof(gid)) == 0) {
      *index = static_cast<uint8_t>(i);
      return 0;
    }
  }
}

int InitFromIpv4(Context* context, uint8_t port, const iphdr& header, ibv_ah_attr* attr) {
  if (IN_MULTICAST(ntohl(header.daddr))) return EINVAL;  // no entry of ours
  ibv_gid local;
  MapIpv4(header.daddr, &local);
  int error = FindGidIndex(context, port, local, IBV_GID_TYPE_ROCE_V2, &attr->grh.sgid_index);
  if (error != 0) return error;
  MapIpv4(header.saddr, &attr->grh.dgid);
  attr->grh.hop_limit = header.ttl;
  attr->grh.traffic_class = header.tos;
  return 0;
}

int InitFromIpv6(Context* context, uint8_t port, const ibv_grh& grh, ibv_ah_attr* attr) {
  if (grh.dgid.raw[0] == 0xff) return EINVAL;
  uint32_t type;
  if (grh.next_hdr == IPPROTO_UDP) {
    type = IBV_GID_TYPE_ROCE_V2;
  } else if (grh.next_hdr == kNextHeaderIba) {
    type = IBV_GID_TYPE_ROCE_V1;
  } else {
    return EPROTONOSUPPORT;
  }
  int error = FindGidIndex(context, port, grh.dgid, type, &attr->grh.sgid_index);
  if (error != 0) return error;
  attr->grh.dgid = grh.sgid;
  attr->grh.hop_limit = grh.hop_limit;
  attr->grh.traffic_class = static_cast<uint8_t>(be32toh(grh.version_tclass_flow) >> 20);
  return 0;
}

int InitAhFromWc(Context* context, uint8_t port, const ibv_wc& wc, const ibv_grh* grh,
                 ibv_ah_attr* attr) {
  *attr = {};
  attr->dlid = wc.slid;
  attr->sl = wc.sl;
  attr->src_path_bits = wc.dlid_path_bits;
  attr->port_num = port;
  if ((wc.wc_flags & IBV_WC_GRH) == 0) return 0;
  attr->is_global = 1;
  attr->grh.flow_label = be32toh(grh->version_tclass_flow) & 0xf'ffff;
  iphdr ipv4;
  switch (GrhVersion(*grh, &ipv4)) {
    case 4:
      return InitFromIpv4(context, port, ipv4, attr);
    case 6:
      return InitFromIpv6(context, port, *grh, attr);
    default:
      return EPROTONOSUPPORT;
  }
}

// EUI-64 with the universal bit turned, as link-local addresses and GUIDs carry it.
void MacFromEui64(const uint8_t* eui, uint8_t* mac) {
  memcpy(mac, eui, 3);
  memcpy(mac + 3, eui + 5, 3);
  mac[0] ^= 2;
}

int McastExecute(ibv_qp* qp, const ibv_gid* gid, uint16_t lid, shm::CommandOp op) {
  shm::McastRequest request = {};
  request.qp = qp->handle;
  request.lid = lid;
  memcpy(request.gid, gid->raw, sizeof(request.gid));
  return Execute(ToContext(qp->context), op, request);
}

}  // namespace

shm::AhAttr ToShm(const ibv_ah_attr& attr) {
  shm::AhAttr out = {};
  memcpy(out.dgid, attr.grh.dgid.raw, sizeof(out.dgid));
  out.flow_label = attr.grh.flow_label;
  out.sgid_index = attr.grh.sgid_index;
  out.hop_limit = attr.grh.hop_limit;
  out.traffic_class = attr.grh.traffic_class;
  out.is_global = attr.is_global;
  out.dlid = attr.dlid;
  out.sl = attr.sl;
  out.src_path_bits = attr.src_path_bits;
  out.static_rate = attr.static_rate;
  out.port_num = attr.port_num;
  return out;
}

void FromShm(const shm::AhAttr& attr, ibv_ah_attr* out) {
  memcpy(out->grh.dgid.raw, attr.dgid, sizeof(attr.dgid));
  out->grh.flow_label = attr.flow_label;
  out->grh.sgid_index = attr.sgid_index;
  out->grh.hop_limit = attr.hop_limit;
  out->grh.traffic_class = attr.traffic_class;
  out->is_global = attr.is_global;
  out->dlid = attr.dlid;
  out->sl = attr.sl;
  out->src_path_bits = attr.src_path_bits;
  out->static_rate = attr.static_rate;
  out->port_num = attr.port_num;
}

// Errors: EINVAL: neither a GRH nor the LID of a NIC of this instance, no such port or GID; ENOMEM.
VERBENA_EXPORT ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  auto* ah = new (std::nothrow) Ah();
  if (ah == nullptr) return Fail<ibv_ah>(ENOMEM);
  shm::CreateAhRequest request = {};
  request.pd = pd->handle;
  request.attr = ToShm(*attr);
  shm::HandleReply reply = {};
  int error = Execute(ToContext(pd->context), shm::CommandOp::kCreateAh, request, &reply);
  if (error != 0) {
    delete ah;
    return Fail<ibv_ah>(error);
  }
  ah->base.context = pd->context;
  ah->base.pd = pd;
  ah->base.handle = reply.handle;
  Use(pd);
  return &ah->base;
}

VERBENA_EXPORT int ibv_destroy_ah(ibv_ah* ah) {
  int error = ExecuteDestroy(ToContext(ah->context), shm::CommandOp::kDestroyAh, ah->handle);
  if (error != 0) return error;
  Unuse(ah->pd);
  delete ToAh(ah);
  return 0;
}

// -1 with errno: EINVAL: the packet came to no address of the port; EPROTONOSUPPORT: no GRH that
// RoCE knows.
VERBENA_EXPORT int ibv_init_ah_from_wc(ibv_context* context, uint8_t port, ibv_wc* wc, ibv_grh* grh,
                                       ibv_ah_attr* attr) {
  int error = InitAhFromWc(ToContext(context), port, *wc, grh, attr);
  if (error == 0) return 0;
  errno = error;
  return -1;
}

VERBENA_EXPORT ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, uint8_t port) {
  ibv_ah_attr attr;
  int error = InitAhFromWc(ToContext(pd->context), port, *wc, grh, &attr);
  if (error != 0) return Fail<ibv_ah>(error);
  return ibv_create_ah(pd, &attr);
}

// Errors: EINVAL: not a UD QP, or not a multicast GID; ENOMEM: the device's limit.
VERBENA_EXPORT int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  return McastExecute(qp, gid, lid, shm::CommandOp::kAttachMcast);
}
VERBENA_EXPORT int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  return McastExecute(qp, gid, lid, shm::CommandOp::kDetachMcast);
}

// The Ethernet address behind a GID: of a link-local one by its form, of an IPv4 one when a NIC of
// this instance has it. Errors: -EHOSTUNREACH; -ENOMEM.
VERBENA_EXPORT int ibv_resolve_eth_l2_from_gid(ibv_context*, ibv_ah_attr* attr, uint8_t* mac,
                                               uint16_t* vid) {
  if (vid != nullptr) *vid = kNoVlan;
  const uint8_t* gid = attr->grh.dgid.raw;
  if (gid[0] == 0xfe && gid[1] == 0x80) {
    MacFromEui64(gid + 8, mac);
    return 0;
  }
  if (gid[0] == 0xff) {  // RFC 2464 section 7
    mac[0] = mac[1] = 0x33;
    memcpy(mac + 2, gid + 12, 4);
    return 0;
  }
  client::NoCancel no_cancel;
  std::vector<shm::NicInfo> nics;
  const int error = client::OrNoMemory([&] {
    client::StartOptions options;
    options.directory = client::InstanceDirectory(false);
    if (options.directory.empty()) return errno;
    return client::ListInstanceNics(options, false, &nics, nullptr);
  });
  if (error != 0) return error == ENOMEM ? -ENOMEM : -EHOSTUNREACH;
  for (const shm::NicInfo& nic : nics) {
    if (memcmp(nic.ipv4, gid + 12, sizeof(nic.ipv4)) != 0) continue;
    uint8_t guid[8];
    memcpy(guid, &nic.node_guid, sizeof(guid));
    MacFromEui64(guid, mac);
    return 0;
  }
  return -EHOSTUNREACH;
}

}  // namespace verbena::verbs

VERBENA_VERSION_1_1(ibv_create_ah);
VERBENA_VERSION_1_1(ibv_destroy_ah);
VERBENA_VERSION_1_1(ibv_attach_mcast);
VERBENA_VERSION_1_1(ibv_detach_mcast);
