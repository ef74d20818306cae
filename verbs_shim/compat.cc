// Historic exports that librdmacm and others still call: sysfs helpers, and conversions from the
// kernel's structures.
#include <fcntl.h>
#include <infiniband/sa.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <string.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "verbs_shim/abi.h"

namespace verbena::verbs {
namespace {

// Both path records have the same fields in the same units; only the GIDs' types differ.
template <typename To, typename From>
void CopyPathRec(To* to, const From& from) {
  to->dlid = from.dlid;
  to->slid = from.slid;
  to->raw_traffic = static_cast<decltype(to->raw_traffic)>(from.raw_traffic);
  to->flow_label = from.flow_label;
  to->hop_limit = static_cast<decltype(to->hop_limit)>(from.hop_limit);
  to->traffic_class = from.traffic_class;
  to->reversible = static_cast<decltype(to->reversible)>(from.reversible);
  to->numb_path = from.numb_path;
  to->pkey = from.pkey;
  to->sl = from.sl;
  to->mtu_selector = from.mtu_selector;
  to->mtu = from.mtu;
  to->rate_selector = from.rate_selector;
  to->rate = from.rate;
  to->packet_life_time_selector = from.packet_life_time_selector;
  to->packet_life_time = from.packet_life_time;
  to->preference = from.preference;
}

}  // namespace

// SYSFS_PATH of the environment without trailing slashes, unless the program runs with another
// user's rights; else /sys. The string lives as long as the process.
VERBENA_EXPORT const char* ibv_get_sysfs_path() {
  static const char* const path = [] {
    const char* wish = getuid() == geteuid() ? getenv("SYSFS_PATH") : nullptr;
    if (wish == nullptr) return "/sys";
    static char copy[IBV_SYSFS_PATH_MAX];
    snprintf(copy, sizeof(copy), "%s", wish);
    for (size_t n = strlen(copy); n > 0 && copy[n - 1] == '/'; --n) copy[n - 1] = '\0';
    return static_cast<const char*>(copy);
  }();
  return path;
}

// The file's length without its last newline, NUL-terminated; -1 when unreadable or too long.
VERBENA_EXPORT int ibv_read_sysfs_file(const char* dir, const char* file, char* buf, size_t size) {
  char path[4096];
  int length = snprintf(path, sizeof(path), "%s/%s", dir, file);
  if (length < 0 || static_cast<size_t>(length) >= sizeof(path)) return -1;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t n = read(fd, buf, size);
  close(fd);
  if (n <= 0) return static_cast<int>(n);
  if (buf[n - 1] == '\n') {
    buf[--n] = '\0';
  } else if (static_cast<size_t>(n) < size) {
    buf[n] = '\0';
  } else {
    return -1;
  }
  return static_cast<int>(n);
}

VERBENA_EXPORT void ibv_copy_ah_attr_from_kern(ibv_ah_attr* dst, ib_uverbs_ah_attr* src) {
  memcpy(dst->grh.dgid.raw, src->grh.dgid, sizeof(dst->grh.dgid.raw));
  dst->grh.flow_label = src->grh.flow_label;
  dst->grh.sgid_index = src->grh.sgid_index;
  dst->grh.hop_limit = src->grh.hop_limit;
  dst->grh.traffic_class = src->grh.traffic_class;
  dst->dlid = src->dlid;
  dst->sl = src->sl;
  dst->src_path_bits = src->src_path_bits;
  dst->static_rate = src->static_rate;
  dst->is_global = src->is_global;
  dst->port_num = src->port_num;
}

// qp_state stays what the caller set: rdma_init_qp_attr asks for the other attributes of a state.
VERBENA_EXPORT void ibv_copy_qp_attr_from_kern(ibv_qp_attr* dst, ib_uverbs_qp_attr* src) {
  dst->cur_qp_state = static_cast<ibv_qp_state>(src->cur_qp_state);
  dst->path_mtu = static_cast<ibv_mtu>(src->path_mtu);
  dst->path_mig_state = static_cast<ibv_mig_state>(src->path_mig_state);
  dst->qkey = src->qkey;
  dst->rq_psn = src->rq_psn;
  dst->sq_psn = src->sq_psn;
  dst->dest_qp_num = src->dest_qp_num;
  dst->qp_access_flags = src->qp_access_flags;
  dst->cap.max_send_wr = src->max_send_wr;
  dst->cap.max_recv_wr = src->max_recv_wr;
  dst->cap.max_send_sge = src->max_send_sge;
  dst->cap.max_recv_sge = src->max_recv_sge;
  dst->cap.max_inline_data = src->max_inline_data;
  ibv_copy_ah_attr_from_kern(&dst->ah_attr, &src->ah_attr);
  ibv_copy_ah_attr_from_kern(&dst->alt_ah_attr, &src->alt_ah_attr);
  dst->pkey_index = src->pkey_index;
  dst->alt_pkey_index = src->alt_pkey_index;
  dst->en_sqd_async_notify = src->en_sqd_async_notify;
  dst->sq_draining = src->sq_draining;
  dst->max_rd_atomic = src->max_rd_atomic;
  dst->max_dest_rd_atomic = src->max_dest_rd_atomic;
  dst->min_rnr_timer = src->min_rnr_timer;
  dst->port_num = src->port_num;
  dst->timeout = src->timeout;
  dst->retry_cnt = src->retry_cnt;
  dst->rnr_retry = src->rnr_retry;
  dst->alt_port_num = src->alt_port_num;
  dst->alt_timeout = src->alt_timeout;
}

VERBENA_EXPORT void ibv_copy_path_rec_from_kern(ibv_sa_path_rec* dst, ib_user_path_rec* src) {
  memcpy(dst->dgid.raw, src->dgid, sizeof(dst->dgid.raw));
  memcpy(dst->sgid.raw, src->sgid, sizeof(dst->sgid.raw));
  CopyPathRec(dst, *src);
}

VERBENA_EXPORT void ibv_copy_path_rec_to_kern(ib_user_path_rec* dst, ibv_sa_path_rec* src) {
  memcpy(dst->dgid, src->dgid.raw, sizeof(dst->dgid));
  memcpy(dst->sgid, src->sgid.raw, sizeof(dst->sgid));
  CopyPathRec(dst, *src);
}

}  // namespace verbena::verbs
