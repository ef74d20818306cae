// What endpoints do where hints say nothing.
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "core/shm/rdm.h"
#include "fi_shim/domain_attr.h"
#include "fi_shim/info.h"
#include "fi_shim/mr.h"

namespace verbena::fi {
namespace {

constexpr size_t kDefaultSize = 256;
constexpr size_t kDefaultInject = 256;
constexpr size_t kDefaultIovLimit = 4;
constexpr size_t kIovLimitMax = 16;
constexpr size_t kRmaIovLimitMax = 8;
// Elements of a receive that are not the program's: its mark, and where a GRH goes (receive.cc).
constexpr size_t kOwnReceiveSges = 2;
// Counters are memory; the NIC has as many of its own.
constexpr size_t kCounters = 65'536;

// What RC keeps: nothing passes what was posted before, but for what follows a READ, which may be
// carried out while the READ's data is on its way.  Spec: IBTA 10.8.3.3, table of ordering rules.
constexpr uint64_t kReliableOrder = FI_ORDER_RAR | FI_ORDER_RAW | FI_ORDER_RAS | FI_ORDER_WAW |
                                    FI_ORDER_WAS | FI_ORDER_SAW | FI_ORDER_SAS | FI_ORDER_RMA_RAR |
                                    FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAW;

void DescribeEndpoint(fi_ep_type type, const Limits& limits, fi_ep_attr* attr) {
  const bool is_datagram = type == FI_EP_DGRAM;
  attr->type = type;
  attr->protocol = kProtocolRdm;
  if (type == FI_EP_MSG) attr->protocol = FI_PROTO_RDMA_CM_IB_RC;
  if (is_datagram) attr->protocol = FI_PROTO_IB_UD;
  attr->protocol_version = kProtocolVersion;
  attr->max_msg_size = is_datagram ? limits.dgram_msg_size : limits.max_msg_size;
  attr->max_order_raw_size = is_datagram ? 0 : SIZE_MAX;
  attr->max_order_waw_size = is_datagram ? 0 : SIZE_MAX;
  attr->tx_ctx_cnt = 1;
  attr->rx_ctx_cnt = 1;
}

void DescribeDomain(const Limits& limits, fi_domain_attr* attr) {
  attr->threading = FI_THREAD_SAFE;
  attr->control_progress = FI_PROGRESS_AUTO;
  attr->data_progress = FI_PROGRESS_AUTO;
  attr->resource_mgmt = FI_RM_ENABLED;
  attr->av_type = FI_AV_UNSPEC;
  attr->mr_key_size = kMrKeyBytes;
  attr->cq_data_size = kCqDataBytes;
  attr->cq_cnt = limits.cq_cnt;
  attr->ep_cnt = limits.ep_cnt;
  attr->tx_ctx_cnt = limits.ep_cnt;
  attr->rx_ctx_cnt = limits.ep_cnt;
  attr->max_ep_tx_ctx = 1;
  attr->max_ep_rx_ctx = 1;
  attr->max_ep_stx_ctx = limits.ep_cnt;
  attr->max_ep_srx_ctx = limits.ep_cnt;
  attr->cntr_cnt = limits.cntr_cnt;
  attr->mr_iov_limit = kMrIovLimit;
  attr->caps = kDomainCaps;
  attr->max_err_data = kErrDataBytesMax;
  attr->mr_cnt = limits.mr_cnt;
}

void DescribeContexts(fi_ep_type type, const Limits& limits, fi_info* info) {
  const uint64_t order = type == FI_EP_DGRAM ? FI_ORDER_NONE : kReliableOrder;
  fi_tx_attr* tx = info->tx_attr;
  tx->caps = info->caps & kTxCaps;
  tx->msg_order = order;
  tx->comp_order = FI_ORDER_STRICT;
  tx->inject_size = std::min(kDefaultInject, limits.inject_size);
  tx->size = std::min(kDefaultSize, limits.send_entries);
  tx->iov_limit = std::min(kDefaultIovLimit, limits.iov_limit);
  tx->rma_iov_limit = type == FI_EP_DGRAM ? 0 : 1;
  fi_rx_attr* rx = info->rx_attr;
  rx->caps = info->caps & kRxCaps;
  rx->msg_order = order;
  rx->comp_order = FI_ORDER_STRICT | (type == FI_EP_DGRAM ? 0 : FI_ORDER_DATA);
  rx->size = std::min(kDefaultSize, limits.rx_size);
  rx->iov_limit = std::min(kDefaultIovLimit, limits.iov_limit);
}

}  // namespace

Limits LimitsOf(const shm::QueryDeviceReply& device, const shm::QueryPortReply& port) {
  Limits limits;
  const size_t mtu_bytes = size_t{128} << std::min(port.active_mtu, 5u);  // enum ibv_mtu
  limits.max_msg_size = port.max_msg_sz;
  limits.dgram_msg_size = std::min<size_t>(mtu_bytes, port.max_msg_sz);
  limits.inject_size = device.max_inline_bytes;
  limits.send_entries = device.max_qp_wr;
  limits.rx_size = device.max_srq_wr;
  const size_t receive_sges =
      device.max_srq_sge > kOwnReceiveSges ? device.max_srq_sge - kOwnReceiveSges : 1;
  limits.iov_limit = std::min({kIovLimitMax, receive_sges, size_t{device.max_sge}});
  limits.rma_iov_limit = kRmaIovLimitMax;
  limits.cq_cnt = device.max_cq;
  limits.ep_cnt = std::min(device.max_qp, device.max_srq);  // each has one of both
  limits.cntr_cnt = kCounters;
  // One is the domain's own: of all the process's memory.
  limits.mr_cnt = device.max_mr > 1 ? device.max_mr - 1 : 0;
  return limits;
}

void DescribeNumbers(fi_ep_type type, const Limits& limits, fi_info* info) {
  GrantCaps(type, 0, &info->caps);
  info->mode = 0;
  DescribeEndpoint(type, limits, info->ep_attr);
  DescribeDomain(limits, info->domain_attr);
  if (type == FI_EP_DGRAM) info->domain_attr->max_ep_srx_ctx = 0;
  if (type == FI_EP_RDM) {
    info->domain_attr->ep_cnt = std::min<size_t>(limits.ep_cnt, shm::kPlacesMax);
  }
  DescribeContexts(type, limits, info);
}

bool Describe(const char* nic_name, fi_ep_type type, const Limits& limits, fi_info* info) {
  DescribeNumbers(type, limits, info);
  info->domain_attr->name = strdup(nic_name);
  info->fabric_attr->name = strdup(kFabricName);
  return info->domain_attr->name != nullptr && info->fabric_attr->name != nullptr;
}

bool MoveToNic(const char* nic_name, const Limits& limits, fi_info* info) {
  char* name = strdup(nic_name);
  if (name == nullptr) return false;
  fi_domain_attr* domain = info->domain_attr;
  free(domain->name);
  domain->name = name;
  domain->domain = nullptr;
  fi_domain_attr most = {};
  DescribeDomain(limits, &most);
  for (size_t fi_domain_attr::*count :
       {&fi_domain_attr::cq_cnt, &fi_domain_attr::ep_cnt, &fi_domain_attr::tx_ctx_cnt,
        &fi_domain_attr::rx_ctx_cnt, &fi_domain_attr::max_ep_stx_ctx,
        &fi_domain_attr::max_ep_srx_ctx, &fi_domain_attr::cntr_cnt, &fi_domain_attr::mr_cnt}) {
    domain->*count = std::min(domain->*count, most.*count);
  }
  if (info->ep_attr != nullptr) {
    size_t& bytes = info->ep_attr->max_msg_size;
    bytes = std::min(bytes, limits.max_msg_size);
  }
  if (fi_tx_attr* tx = info->tx_attr; tx != nullptr) {
    tx->inject_size = std::min(tx->inject_size, limits.inject_size);
    tx->iov_limit = std::min(tx->iov_limit, limits.iov_limit);
    tx->rma_iov_limit = std::min(tx->rma_iov_limit, limits.rma_iov_limit);
    const size_t parts = std::max<size_t>(tx->rma_iov_limit, 1);
    tx->size = std::min(tx->size, limits.send_entries / parts);
  }
  if (fi_rx_attr* rx = info->rx_attr; rx != nullptr) {
    rx->size = std::min(rx->size, limits.rx_size);
    rx->iov_limit = std::min(rx->iov_limit, limits.iov_limit);
  }
  return true;
}

}  // namespace verbena::fi
