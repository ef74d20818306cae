// What connection management says of a QP, as a NIC takes it.
#pragma once

#include <cstring>

#include "core/shm/cm.h"
#include "core/shm/command.h"

namespace verbena::shm {

inline QpAttr QpAttrOf(const CmQpAttr& from) {
  QpAttr to = {};
  to.qp_state = from.qp_state;
  to.path_mtu = from.path_mtu;
  to.qkey = from.qkey;
  to.rq_psn = from.rq_psn;
  to.sq_psn = from.sq_psn;
  to.dest_qp_num = from.dest_qp_num;
  to.qp_access_flags = from.qp_access_flags;
  to.pkey_index = from.pkey_index;
  to.max_rd_atomic = from.max_rd_atomic;
  to.max_dest_rd_atomic = from.max_dest_rd_atomic;
  to.min_rnr_timer = from.min_rnr_timer;
  to.port_num = from.port_num;
  to.timeout = from.timeout;
  to.retry_cnt = from.retry_cnt;
  to.rnr_retry = from.rnr_retry;
  AhAttr& ah = to.ah_attr;
  std::memcpy(ah.dgid, from.ah.dgid, sizeof(ah.dgid));
  ah.flow_label = from.ah.flow_label;
  ah.sgid_index = from.ah.sgid_index;
  ah.hop_limit = from.ah.hop_limit;
  ah.traffic_class = from.ah.traffic_class;
  ah.is_global = 1;
  ah.dlid = from.ah.dlid;
  ah.sl = from.ah.sl;
  ah.static_rate = from.ah.static_rate;
  ah.port_num = from.ah.port_num;
  return to;
}

}  // namespace verbena::shm
