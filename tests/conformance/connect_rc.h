// Brings RC QPs up, for programs that have no use for the fixture.
#pragma once

#include <infiniband/verbs.h>

namespace verbena::conformance {

// To INIT, opened to `access`; 0 or errno, as below.
inline int ToInit(ibv_qp* qp, unsigned access) {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = access;
  return ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

// An address vector towards `gid`, from one of this device's own.
inline ibv_ah_attr AddressOf(const ibv_gid& gid, uint8_t gid_index) {
  ibv_ah_attr attr = {};
  attr.is_global = 1;
  attr.grh.dgid = gid;
  attr.grh.sgid_index = gid_index;
  attr.grh.hop_limit = 64;
  attr.port_num = 1;
  return attr;
}

// From RESET to RTS towards the QP of that number at `gid`, one of this device's at `gid_index`.
// Patient: who waits for receives, or for a CPU, waits. READs and atomics only with `reads_max`.
inline int ConnectRc(ibv_qp* qp, unsigned access, uint32_t peer_qpn, const ibv_gid& gid,
                     uint8_t gid_index, uint8_t reads_max = 0) {
  int error = ToInit(qp, access);
  if (error != 0) return error;
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer_qpn;
  attr.min_rnr_timer = 1;
  attr.max_rd_atomic = attr.max_dest_rd_atomic = reads_max;
  attr.ah_attr = AddressOf(gid, gid_index);
  error = ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) return error;
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 18;
  attr.retry_cnt = attr.rnr_retry = 7;
  return ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                           IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
}

}  // namespace verbena::conformance
