// Hints: what a program asks for is granted as it asks, or refused. Nothing is ignored but
// total_buffered_recv, which no provider has to heed: messages wait at their senders until there is
// a receive.  See fi_endpoint(3).
#include <string.h>

#include <algorithm>

#include "fi_shim/domain_attr.h"
#include "fi_shim/enums.h"
#include "fi_shim/info.h"

namespace verbena::fi {
namespace {

constexpr uint64_t kMessageModifiers = FI_SEND | FI_RECV;
constexpr uint64_t kRmaModifiers = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr uint64_t kCompletionLevels =
    FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE;
// What needs the other end's word. A datagram's completion says that it has left.
constexpr uint64_t kAcknowledgedLevels = FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE;

struct Capabilities {
  uint64_t all;
  // What a program gets that asks for nothing, and what costs nothing beside what it asked for.
  uint64_t usual, free;
};

constexpr uint64_t kEverywhere = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SHARED_AV;

Capabilities CapabilitiesOf(fi_ep_type type) {
  constexpr uint64_t kMessages = FI_MSG | kMessageModifiers;
  constexpr uint64_t kReliable = kMessages | FI_RMA | kRmaModifiers;
  constexpr uint64_t kDatagramFree = kEverywhere | FI_FENCE;
  constexpr uint64_t kFree = kDatagramFree | FI_MULTI_RECV;
  switch (type) {
    case FI_EP_MSG:
      return {kReliable | kFree | FI_HMEM | FI_RMA_EVENT, kReliable | kFree, kFree};
    case FI_EP_RDM:
      // A program that does not ask for it may write anything where a receive's source stands.
      return {kReliable | kFree | FI_HMEM | FI_SOURCE | FI_SOURCE_ERR | FI_AV_USER_ID |
                  FI_RMA_EVENT | FI_DIRECTED_RECV,
              kReliable | kFree | FI_SOURCE, kFree};
    case FI_EP_DGRAM:
      return {kMessages | kDatagramFree | FI_SOURCE | FI_SOURCE_ERR | FI_AV_USER_ID | FI_HMEM,
              kMessages | kDatagramFree | FI_SOURCE, kDatagramFree};
    default:
      return {0, 0, 0};
  }
}

// A number that is asked for is given if there are so many; the output has what there is.
bool AtMost(size_t asked, size_t limit) { return asked <= limit; }
// A number that is asked for is what the program gets, up to a limit; at least what is usual.
bool Raise(size_t asked, size_t limit, size_t* granted) {
  if (asked > limit) return false;
  *granted = std::max(*granted, asked);
  return true;
}

bool IsTclass(uint32_t tclass) {
  constexpr uint32_t kDscpMax = 63;
  if ((tclass & FI_TC_DSCP) != 0) return (tclass & ~FI_TC_DSCP) <= kDscpMax;
  return tclass == FI_TC_UNSPEC || (tclass >= FI_TC_LABEL && tclass <= FI_TC_NETWORK_CTRL);
}

const char* NarrowEndpoint(uint32_t version, const fi_ep_attr& hints, fi_info* info) {
  fi_ep_attr* attr = info->ep_attr;
  if (hints.protocol != FI_PROTO_UNSPEC && hints.protocol != attr->protocol) return "protocol";
  if (!AtMost(hints.protocol_version, attr->protocol_version)) return "protocol_version";
  if (!AtMost(hints.max_msg_size, attr->max_msg_size)) return "max_msg_size";
  if (hints.msg_prefix_size != 0) return "msg_prefix_size";
  if (!AtMost(hints.max_order_raw_size, attr->max_order_raw_size)) return "max_order_raw_size";
  if (!AtMost(hints.max_order_war_size, attr->max_order_war_size)) return "max_order_war_size";
  if (!AtMost(hints.max_order_waw_size, attr->max_order_waw_size)) return "max_order_waw_size";
  if (hints.tx_ctx_cnt == FI_SHARED_CONTEXT) {
    attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
  } else if (hints.tx_ctx_cnt > 1) {
    return "tx_ctx_cnt";
  }
  if (hints.rx_ctx_cnt == FI_SHARED_CONTEXT && info->domain_attr->max_ep_srx_ctx != 0) {
    attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
  } else if (hints.rx_ctx_cnt > 1) {
    return "rx_ctx_cnt";
  }
  const bool has_keys = FI_VERSION_GE(version, FI_VERSION(1, 5));
  return !has_keys || AtMost(hints.auth_key_size, kAuthKeyBytesMax) ? nullptr : "auth_key_size";
}

const char* NarrowModels(const fi_domain_attr& hints, fi_domain_attr* attr) {
  if (!IsUpTo(hints.threading, FI_THREAD_ENDPOINT)) return "threading";
  if (hints.threading != FI_THREAD_UNSPEC) attr->threading = hints.threading;
  if (!IsUpTo(hints.control_progress, FI_PROGRESS_MANUAL)) return "control_progress";
  if (hints.control_progress != FI_PROGRESS_UNSPEC) attr->control_progress = hints.control_progress;
  if (!IsUpTo(hints.data_progress, FI_PROGRESS_MANUAL)) return "data_progress";
  if (hints.data_progress != FI_PROGRESS_UNSPEC) attr->data_progress = hints.data_progress;
  if (!IsUpTo(hints.resource_mgmt, FI_RM_ENABLED)) return "resource_mgmt";
  if (hints.resource_mgmt != FI_RM_UNSPEC) attr->resource_mgmt = hints.resource_mgmt;
  if (!IsUpTo(hints.av_type, FI_AV_TABLE)) return "av_type";
  attr->av_type = hints.av_type;
  return nullptr;
}

const char* NarrowCounts(const fi_domain_attr& hints, const fi_domain_attr& attr) {
  if (!AtMost(hints.cq_cnt, attr.cq_cnt)) return "cq_cnt";
  if (!AtMost(hints.ep_cnt, attr.ep_cnt)) return "ep_cnt";
  if (!AtMost(hints.tx_ctx_cnt, attr.tx_ctx_cnt)) return "domain tx_ctx_cnt";
  if (!AtMost(hints.rx_ctx_cnt, attr.rx_ctx_cnt)) return "domain rx_ctx_cnt";
  if (!AtMost(hints.max_ep_tx_ctx, attr.max_ep_tx_ctx)) return "max_ep_tx_ctx";
  if (!AtMost(hints.max_ep_rx_ctx, attr.max_ep_rx_ctx)) return "max_ep_rx_ctx";
  if (!AtMost(hints.max_ep_stx_ctx, attr.max_ep_stx_ctx)) return "max_ep_stx_ctx";
  if (!AtMost(hints.max_ep_srx_ctx, attr.max_ep_srx_ctx)) return "max_ep_srx_ctx";
  if (!AtMost(hints.cntr_cnt, attr.cntr_cnt)) return "cntr_cnt";
  if (!AtMost(hints.mr_iov_limit, attr.mr_iov_limit)) return "mr_iov_limit";
  if (!AtMost(hints.mr_cnt, attr.mr_cnt)) return "mr_cnt";
  if (!AtMost(hints.mr_key_size, attr.mr_key_size)) return "mr_key_size";
  if (!AtMost(hints.cq_data_size, attr.cq_data_size)) return "cq_data_size";
  return AtMost(hints.max_err_data, attr.max_err_data) ? nullptr : "max_err_data";
}

// The bits a program names are those it can live with, and may want: it gets them. One that names
// bits which there are not can live with anything (fi_info does so), and none is needed.
const char* NarrowMrMode(uint32_t version, int mode, fi_info* info) {
  uint64_t bits = 0;
  if (FI_VERSION_GE(version, FI_VERSION(1, 5))) {
    constexpr int kOld = FI_MR_BASIC | FI_MR_SCALABLE;
    if ((mode & ~(kMrModes | kOld)) != 0) mode &= kOld;
    // Of capabilities that the endpoint has not got.
    mode &= ~FI_MR_COLLECTIVE;
    if ((info->caps & FI_HMEM) == 0) mode &= ~FI_MR_HMEM;
  }
  if (!ResolveMrMode(version, mode, false, &bits)) return "mr_mode";
  info->domain_attr->mr_mode = mode;
  const bool knows_bits = FI_VERSION_GE(version, FI_VERSION(1, 5));
  if (!knows_bits && mode == FI_MR_UNSPEC) info->domain_attr->mr_mode = FI_MR_SCALABLE;
  return nullptr;
}

const char* NarrowDomain(uint32_t version, const fi_domain_attr& hints, fi_info* info) {
  fi_domain_attr* attr = info->domain_attr;
  if (const char* wrong = NarrowModels(hints, attr); wrong != nullptr) return wrong;
  if (const char* wrong = NarrowCounts(hints, *attr); wrong != nullptr) return wrong;
  if (const char* wrong = NarrowMrMode(version, hints.mr_mode, info); wrong != nullptr) {
    return wrong;
  }
  if ((hints.caps & ~kDomainCaps) != 0) return "domain caps";
  if (FI_VERSION_GE(version, FI_VERSION(1, 5)) && hints.auth_key_size > kAuthKeyBytesMax) {
    return "domain auth_key_size";
  }
  if (FI_VERSION_GE(version, FI_VERSION(1, 9))) {
    if (!IsTclass(hints.tclass)) return "domain tclass";
    attr->tclass = hints.tclass;
  }
  return nullptr;
}

const char* NarrowTx(uint32_t version, const fi_tx_attr& hints, const Limits& limits,
                     fi_info* info) {
  fi_tx_attr* attr = info->tx_attr;
  if ((hints.caps & ~info->caps) != 0) return "tx caps";
  if (hints.caps != 0) attr->caps = hints.caps & kTxCaps;
  const bool is_datagram = info->ep_attr->type == FI_EP_DGRAM;
  const uint64_t levels =
      is_datagram ? kCompletionLevels & ~kAcknowledgedLevels : kCompletionLevels;
  if ((hints.op_flags & ~(FI_COMPLETION | FI_INJECT | levels)) != 0) return "tx op_flags";
  attr->op_flags = hints.op_flags;
  if ((hints.msg_order & ~attr->msg_order) != 0) return "tx msg_order";
  if ((hints.comp_order & ~attr->comp_order) != 0) return "tx comp_order";
  if (!Raise(hints.inject_size, limits.inject_size, &attr->inject_size)) return "inject_size";
  if (!Raise(hints.iov_limit, limits.iov_limit, &attr->iov_limit)) return "tx iov_limit";
  if (!Raise(hints.rma_iov_limit, is_datagram ? 0 : limits.rma_iov_limit, &attr->rma_iov_limit)) {
    return "rma_iov_limit";
  }
  // Each operation has room for the parts that its ranges need.
  const size_t parts = std::max<size_t>(attr->rma_iov_limit, 1);
  if (!Raise(hints.size, limits.send_entries / parts, &attr->size)) return "tx size";
  if (FI_VERSION_GE(version, FI_VERSION(1, 9))) {
    if (!IsTclass(hints.tclass)) return "tx tclass";
    if (hints.tclass != FI_TC_UNSPEC) attr->tclass = hints.tclass;
  }
  return nullptr;
}

const char* NarrowRx(const fi_rx_attr& hints, const Limits& limits, fi_info* info) {
  fi_rx_attr* attr = info->rx_attr;
  if ((hints.caps & ~info->caps) != 0) return "rx caps";
  if (hints.caps != 0) attr->caps = hints.caps & kRxCaps;
  const uint64_t known = FI_COMPLETION | (info->caps & FI_MULTI_RECV);
  if ((hints.op_flags & ~known) != 0) return "rx op_flags";
  attr->op_flags = hints.op_flags;
  if ((hints.msg_order & ~attr->msg_order) != 0) return "rx msg_order";
  if ((hints.comp_order & ~attr->comp_order) != 0) return "rx comp_order";
  if (!Raise(hints.size, limits.rx_size, &attr->size)) return "rx size";
  return Raise(hints.iov_limit, limits.iov_limit, &attr->iov_limit) ? nullptr : "rx iov_limit";
}

bool IsOurFormat(uint32_t addr_format) {
  return addr_format == FI_FORMAT_UNSPEC || addr_format == FI_SOCKADDR ||
         addr_format == FI_SOCKADDR_IN || addr_format == FI_SOCKADDR_IN6;
}

}  // namespace

bool GrantCaps(fi_ep_type type, uint64_t wanted, uint64_t* granted) {
  const Capabilities caps = CapabilitiesOf(type);
  if (wanted == 0) {
    *granted = caps.usual;
    return true;
  }
  if ((wanted & ~caps.all) != 0) return false;
  // What restricts something that is not asked for.
  if ((wanted & kMessageModifiers) != 0 && (wanted & FI_MSG) == 0) return false;
  if ((wanted & kRmaModifiers) != 0 && (wanted & FI_RMA) == 0) return false;
  if ((wanted & FI_MSG) != 0 && (wanted & kMessageModifiers) == 0) wanted |= kMessageModifiers;
  if ((wanted & FI_RMA) != 0 && (wanted & kRmaModifiers) == 0) wanted |= kRmaModifiers;
  if ((wanted & FI_RMA_EVENT) != 0 && (wanted & (FI_REMOTE_READ | FI_REMOTE_WRITE)) == 0)
    return false;
  if ((wanted & FI_SOURCE_ERR) != 0 && (wanted & FI_SOURCE) == 0) return false;
  *granted = wanted | caps.free;
  if ((wanted & FI_RECV) == 0) *granted &= ~FI_MULTI_RECV;
  return true;
}

const char* Narrow(uint32_t version, const fi_info& hints, const Limits& limits, fi_info* info) {
  if (!GrantCaps(info->ep_attr->type, hints.caps, &info->caps)) return "caps";
  if (!IsOurFormat(hints.addr_format)) return "addr_format";
  info->tx_attr->caps = info->caps & kTxCaps;
  info->rx_attr->caps = info->caps & kRxCaps;
  const char* wrong = nullptr;
  if (hints.ep_attr != nullptr) wrong = NarrowEndpoint(version, *hints.ep_attr, info);
  if (wrong == nullptr && hints.domain_attr != nullptr) {
    wrong = NarrowDomain(version, *hints.domain_attr, info);
  } else if (wrong == nullptr) {
    wrong = NarrowMrMode(version, FI_MR_UNSPEC, info);
  }
  // An endpoint has its domain's traffic class unless it asks for its own.
  info->tx_attr->tclass = info->domain_attr->tclass;
  if (wrong == nullptr && hints.tx_attr != nullptr) {
    wrong = NarrowTx(version, *hints.tx_attr, limits, info);
  }
  if (wrong == nullptr && hints.rx_attr != nullptr) wrong = NarrowRx(*hints.rx_attr, limits, info);
  return wrong;
}

const char* CheckEndpoint(uint32_t version, const fi_info& info, const Limits& limits) {
  if (FI_VERSION_GE(version, FI_VERSION(1, 5)) && info.ep_attr->auth_key_size != 0 &&
      info.ep_attr->auth_key == nullptr) {
    return "auth_key";
  }
  // As if it asked for it once more; its domain is open, and has what it has.
  fi_tx_attr tx = {};
  fi_rx_attr rx = {};
  fi_ep_attr ep = {};
  fi_domain_attr domain = {};
  fi_info most = {};
  most.tx_attr = &tx;
  most.rx_attr = &rx;
  most.ep_attr = &ep;
  most.domain_attr = &domain;
  DescribeNumbers(info.ep_attr->type, limits, &most);
  fi_info hints = info;
  hints.domain_attr = nullptr;
  return Narrow(version, hints, limits, &most);
}

const char* CheckSharedReceives(const fi_rx_attr& attr, const Limits& limits) {
  if ((attr.caps & ~kRxCaps) != 0) return "caps";
  if ((attr.op_flags & ~(FI_COMPLETION | FI_MULTI_RECV)) != 0) return "op_flags";
  if (attr.size > limits.rx_size) return "size";
  return attr.iov_limit <= limits.iov_limit ? nullptr : "iov_limit";
}

}  // namespace verbena::fi
