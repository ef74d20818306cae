#include "verbs_shim/ucm/convert.h"

#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "core/client/cm_address.h"

namespace verbena::ucm {
namespace {

constexpr uint16_t kFamilyIb = 27;      // AF_IB
constexpr uint8_t kExactly = 2;         // IBTA 15.2.5.16: the selector of a path record
constexpr uint32_t kReversible = 0x80;  // ... and its first bit, before the number of paths

void CopyAddressHandle(const shm::CmAddressHandle& from, ib_uverbs_ah_attr* to) {
  memcpy(to->grh.dgid, from.dgid, sizeof(from.dgid));
  to->grh.flow_label = from.flow_label;
  to->grh.sgid_index = from.sgid_index;
  to->grh.hop_limit = from.hop_limit;
  to->grh.traffic_class = from.traffic_class;
  to->dlid = from.dlid;
  to->sl = from.sl;
  to->static_rate = from.static_rate;
  to->is_global = 1;
  to->port_num = from.port_num;
}

}  // namespace

size_t AddressBytes(uint16_t family) {
  switch (family) {
    case AF_INET:
      return sizeof(sockaddr_in);
    case AF_INET6:
      return sizeof(sockaddr_in6);
    case kFamilyIb:
      return sizeof(SockaddrIb);
    default:
      return 0;
  }
}

int ToCmAddress(const void* address, shm::CmAddress* out) {
  if (client::ToCmAddress(address, out)) return 0;
  uint16_t family;
  memcpy(&family, address, sizeof(family));
  return family == kFamilyIb ? EAFNOSUPPORT : EINVAL;
}

int ToSizedCmAddress(const void* address, size_t bytes, shm::CmAddress* out) {
  uint16_t family;
  memcpy(&family, address, sizeof(family));
  if (bytes == 0 || bytes != AddressBytes(family)) return EINVAL;
  return ToCmAddress(address, out);
}

void ToCmConnParam(const rdma_ucm_conn_param& from, shm::CmConnParam* to) {
  *to = {};
  static_assert(sizeof(to->private_data) == sizeof(from.private_data));
  to->private_data_len = from.private_data_len;
  to->responder_resources = from.responder_resources;
  to->initiator_depth = from.initiator_depth;
  to->flow_control = from.flow_control;
  to->retry_count = from.retry_count;
  to->rnr_retry_count = from.rnr_retry_count;
  to->srq = from.srq;
  to->qp_num = from.qp_num;
  to->qkey = from.qkey;
  memcpy(to->private_data, from.private_data, sizeof(from.private_data));
}

void CopyEvent(const shm::CmEvent& from, rdma_ucm_event_resp* to) {
  memset(to, 0, sizeof(*to));
  to->uid = from.cookie;
  to->event = from.event;
  to->status = static_cast<uint32_t>(from.status);
  to->ece.vendor_id = from.param.ece_vendor_id;
  to->ece.attr_mod = from.param.ece_options;
  if (from.event == shm::kCmEventUser || from.event == shm::kCmEventInternal) {
    memcpy(&to->param, &from.arg, sizeof(from.arg));
    return;
  }
  if (from.is_ud != 0) {
    rdma_ucm_ud_param& ud = to->param.ud;
    ud.qp_num = from.param.qp_num;
    ud.qkey = from.param.qkey;
    CopyAddressHandle(from.ah, &ud.ah_attr);
    ud.private_data_len = from.param.private_data_len;
    memcpy(ud.private_data, from.param.private_data, sizeof(ud.private_data));
    return;
  }
  rdma_ucm_conn_param& conn = to->param.conn;
  conn.qp_num = from.param.qp_num;
  conn.private_data_len = from.param.private_data_len;
  conn.srq = from.param.srq;
  conn.responder_resources = from.param.responder_resources;
  conn.initiator_depth = from.param.initiator_depth;
  conn.flow_control = from.param.flow_control;
  conn.retry_count = from.param.retry_count;
  conn.rnr_retry_count = from.param.rnr_retry_count;
  memcpy(conn.private_data, from.param.private_data, sizeof(conn.private_data));
}

void CopyQpAttr(const shm::CmQpAttr& from, uint32_t asked_state, ib_uverbs_qp_attr* to) {
  memset(to, 0, sizeof(*to));
  to->qp_attr_mask = from.mask;
  to->qp_state = asked_state;
  to->path_mtu = from.path_mtu;
  to->qkey = from.qkey;
  to->rq_psn = from.rq_psn;
  to->sq_psn = from.sq_psn;
  to->dest_qp_num = from.dest_qp_num;
  to->qp_access_flags = from.qp_access_flags;
  CopyAddressHandle(from.ah, &to->ah_attr);
  to->pkey_index = from.pkey_index;
  to->max_rd_atomic = from.max_rd_atomic;
  to->max_dest_rd_atomic = from.max_dest_rd_atomic;
  to->min_rnr_timer = from.min_rnr_timer;
  to->port_num = from.port_num;
  to->timeout = from.timeout;
  to->retry_cnt = from.retry_cnt;
  to->rnr_retry = from.rnr_retry;
}

void CopyPath(const shm::CmQuery& from, ib_user_path_rec* to) {
  memset(to, 0, sizeof(*to));
  memcpy(to->dgid, from.dgid, sizeof(from.dgid));
  memcpy(to->sgid, from.sgid, sizeof(from.sgid));
  to->flow_label = htobe32(from.ah.flow_label);
  to->reversible = 1;
  to->mtu = from.mtu;
  to->pkey = from.pkey;
  to->hop_limit = from.ah.hop_limit;
  to->traffic_class = from.ah.traffic_class;
  to->numb_path = 1;
  to->sl = from.ah.sl;
  to->mtu_selector = kExactly;
  to->rate_selector = kExactly;
  to->rate = from.rate;
  to->packet_life_time_selector = kExactly;
  to->packet_life_time = from.packet_life_time;
}

void PackPath(const shm::CmQuery& from, uint32_t (&record)[16]) {
  uint8_t bytes[sizeof(record)] = {};
  memcpy(bytes + 8, from.dgid, 16);
  memcpy(bytes + 24, from.sgid, 16);
  const uint32_t flow_and_hops = htobe32(from.ah.flow_label << 8 | from.ah.hop_limit);
  memcpy(bytes + 44, &flow_and_hops, 4);
  bytes[48] = from.ah.traffic_class;
  bytes[49] = kReversible | 1;
  memcpy(bytes + 50, &from.pkey, 2);
  bytes[53] = from.ah.sl & 0xf;
  bytes[54] = static_cast<uint8_t>(kExactly << 6 | from.mtu);
  bytes[55] = static_cast<uint8_t>(kExactly << 6 | from.rate);
  bytes[56] = static_cast<uint8_t>(kExactly << 6 | from.packet_life_time);
  memcpy(record, bytes, sizeof(bytes));
}

SockaddrIb ToSockaddrIb(const shm::CmQuery& query, const uint8_t (&gid)[16]) {
  SockaddrIb address = {};
  address.family = kFamilyIb;
  address.pkey = query.pkey;
  memcpy(address.addr, gid, sizeof(gid));
  address.sid_mask = UINT64_MAX;
  return address;
}

}  // namespace verbena::ucm
