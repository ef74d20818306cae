#include "tests/programs/executor.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "tests/conformance/connect_rc.h"

namespace verbena::programs {
namespace {

constexpr int kGidIndex = 1;  // the IPv4-mapped GID
constexpr auto kBarrierPatience = std::chrono::seconds(20);

ibv_ah_attr AddressOf(const ibv_gid& gid) { return conformance::AddressOf(gid, kGidIndex); }

// An IPv4 group, as rdma_cm names it; of this process, since others on this host may run, too.
ibv_gid Group() {
  ibv_gid group = {};
  const auto pid = static_cast<uint32_t>(getpid());
  group.raw[10] = group.raw[11] = 0xff;
  group.raw[12] = 239;
  group.raw[13] = static_cast<uint8_t>(1 + (pid >> 16) % 255);
  group.raw[14] = static_cast<uint8_t>(pid >> 8);
  group.raw[15] = static_cast<uint8_t>(pid);
  return group;
}

uint64_t OperationsOf(ibv_qp_type type) {
  constexpr uint64_t kUd = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
  constexpr uint64_t kUc = kUd | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                           IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
  constexpr uint64_t kRc = kUc | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_RDMA_READ |
                           IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
                           IBV_QP_EX_WITH_ATOMIC_WRITE | (1u << 11);  // IBV_QP_EX_WITH_FLUSH
  return type == IBV_QPT_RC ? kRc : type == IBV_QPT_UC ? kUc : kUd;
}

template <typename Map>
typename Map::mapped_type Find(const Map& map, Id id) {
  auto found = map.find(id);
  return found == map.end() ? typename Map::mapped_type{} : found->second;
}

}  // namespace

Executor::Executor() {
  OpenSide(0);
  OpenSide(1);
  ConnectBarrier(0);
  ConnectBarrier(1);
}

void Executor::OpenSide(int side) {
  Side& s = sides_[side];
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list != nullptr && side < count) s.context = ibv_open_device(list[side]);
  if (list != nullptr) ibv_free_device_list(list);
  if (s.context == nullptr)
    throw std::runtime_error("two NICs are needed: is an instance running?");
  void* p = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  s.arena = static_cast<uint8_t*>(p);
  const int flags = fcntl(s.context->async_fd, F_GETFL);
  s.channel = ibv_create_comp_channel(s.context);
  s.pd = ibv_alloc_pd(s.context);
  s.cq = ibv_create_cq(s.context, 64, nullptr, nullptr, 0);
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = s.cq;
  init.cap = {16, 16, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  s.qp = s.pd != nullptr && s.cq != nullptr ? ibv_create_qp(s.pd, &init) : nullptr;
  ibv_alloc_dm_attr dm_attr = {};
  dm_attr.length = kDmBytes;
  s.dm = ibv_alloc_dm(s.context, &dm_attr);
  if (p == MAP_FAILED || s.dm == nullptr || s.qp == nullptr || s.channel == nullptr ||
      ibv_query_gid(s.context, 1, kGidIndex, &s.gid) != 0 ||
      fcntl(s.context->async_fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    throw std::runtime_error("a side can't be made");
  }
}

void Executor::ConnectBarrier(int side) {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  int error = ibv_modify_qp(sides_[side].qp, &attr,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = sides_[1 - side].qp->qp_num;
  attr.min_rnr_timer = 1;
  attr.ah_attr = AddressOf(sides_[1 - side].gid);
  error |= ibv_modify_qp(sides_[side].qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 18;
  attr.retry_cnt = attr.rnr_retry = 7;
  error |= ibv_modify_qp(sides_[side].qp, &attr,
                         IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                             IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  if (error != 0) throw std::runtime_error("the barrier's QPs don't connect");
}

Executor::~Executor() {
  Clear();
  for (Side& s : sides_) {
    if (s.qp != nullptr) ibv_destroy_qp(s.qp);
    if (s.cq != nullptr) ibv_destroy_cq(s.cq);
    if (s.pd != nullptr) ibv_dealloc_pd(s.pd);
    if (s.channel != nullptr) ibv_destroy_comp_channel(s.channel);
    if (s.dm != nullptr) ibv_free_dm(s.dm);
    if (s.context != nullptr) ibv_close_device(s.context);
    if (s.arena != nullptr) munmap(s.arena, kArenaBytes);
  }
}

const uint8_t* Executor::memory(int arena) {
  if (arena < 2) return sides_[arena].arena;
  Side& s = sides_[arena - 2];
  if (ibv_memcpy_from_dm(s.dm_copy.data(), s.dm, 0, kDmBytes) != 0) {
    throw std::runtime_error("device memory can't be read");
  }
  return s.dm_copy.data();
}

void Executor::SetMemory(int arena, const uint8_t* bytes) {
  if (arena < 2) {
    memcpy(sides_[arena].arena, bytes, kArenaBytes);
  } else if (ibv_memcpy_to_dm(sides_[arena - 2].dm, 0, bytes, kDmBytes) != 0) {
    throw std::runtime_error("device memory can't be written");
  }
}

bool Executor::Barrier() {
  const auto end = std::chrono::steady_clock::now() + kBarrierPatience;
  for (int round = 0; round < 2; ++round) {
    for (Side& s : sides_) {
      ibv_recv_wr receive = {};
      ibv_recv_wr* bad_receive = nullptr;
      if (ibv_post_recv(s.qp, &receive, &bad_receive) != 0) return false;
    }
    for (Side& s : sides_) {
      ibv_send_wr send = {};
      ibv_send_wr* bad_send = nullptr;
      send.opcode = IBV_WR_SEND;
      send.send_flags = IBV_SEND_SIGNALED;
      if (ibv_post_send(s.qp, &send, &bad_send) != 0) return false;
    }
    for (Side& s : sides_) {
      for (int got = 0; got < 2;) {
        ibv_wc wc = {};
        const int n = ibv_poll_cq(s.cq, 1, &wc);
        if (n < 0 || (n == 1 && wc.status != IBV_WC_SUCCESS)) return false;
        got += n;
        if (n == 0) sched_yield();
        if (std::chrono::steady_clock::now() > end) return false;
      }
    }
  }
  return true;
}

uint32_t Executor::QpnOf(Id qp) const { return Find(qpns_, qp); }

ibv_qp_state Executor::QueryState(Id qp) {
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  return ibv_query_qp(qps_.at(qp), &attr, IBV_QP_STATE, &init) == 0 ? attr.qp_state
                                                                    : IBV_QPS_UNKNOWN;
}

Actual Executor::Run(const Step& step) {
  if (IsMaker(step.op)) return Make(step);
  Actual actual;
  switch (step.op) {
    case Op::kBindMw:
      return BindType1(step);
    case Op::kPostSend:
      return PostSends(step);
    case Op::kPostRecv:
    case Op::kPostSrqRecv:
      return PostReceives(step);
    case Op::kReregMr: {
      ibv_mr* mr = mrs_.at(step.id);
      const int flags = static_cast<int>(step.mask);
      errno = 0;
      const int result = ibv_rereg_mr(
          mr, flags, (flags & IBV_REREG_MR_CHANGE_PD) != 0 ? pds_.at(step.pd) : nullptr,
          sides_[step.side].arena + step.offset, step.length, static_cast<int>(step.access));
      // ibv_rereg_mr(3) returns a code of its own, and says the rest by errno.
      if (result != 0) actual.error = errno != 0 ? errno : EINVAL;
      lkeys_[step.id] = mr->lkey;
      rkeys_[step.id] = {{mr->rkey, false}};
      return actual;
    }
    case Op::kResizeCq:
      actual.error = ibv_resize_cq(cqs_.at(step.id), static_cast<int>(step.entries));
      actual.entries = static_cast<uint32_t>(cqs_.at(step.id)->cqe);
      return actual;
    case Op::kHoldCq:
      held_[step.id] = true;
      return actual;
    case Op::kReleaseCq:
      held_.erase(step.id);
      return actual;
    case Op::kNotifyCq:
      actual.error = ibv_req_notify_cq(cqs_.at(step.id), step.to_self ? 1 : 0);
      return actual;
    case Op::kModifySrq: {
      ibv_srq_attr attr = {step.entries, 0, step.limit};
      actual.error = ibv_modify_srq(srqs_.at(step.id), &attr, static_cast<int>(step.mask));
      // What it got instead, only a query tells.
      if (actual.error == 0) actual.error = ibv_query_srq(srqs_.at(step.id), &actual.srq);
      actual.entries = actual.srq.max_wr;
      return actual;
    }
    case Op::kQuerySrq:
      actual.error = ibv_query_srq(srqs_.at(step.id), &actual.srq);
      return actual;
    case Op::kModifyQp: {
      ibv_qp_attr attr = Attributes(step);
      actual.error = ibv_modify_qp(qps_.at(step.id), &attr, static_cast<int>(step.mask));
      return actual;
    }
    case Op::kQueryQp:
      actual.error = ibv_query_qp(qps_.at(step.id), &actual.attr, 0, &actual.init);
      return actual;
    case Op::kAttachMcast:
    case Op::kDetachMcast: {
      const ibv_gid group = Group();
      const bool attaches = step.op == Op::kAttachMcast;
      actual.error = attaches ? ibv_attach_mcast(qps_.at(step.id), &group, 0)
                              : ibv_detach_mcast(qps_.at(step.id), &group, 0);
      if (actual.error == 0) in_group_[step.id] = attaches;
      return actual;
    }
    default:
      return Destroy(step);
  }
}

Actual Executor::Make(const Step& step) {
  ibv_context* context = sides_[step.side].context;
  Actual actual;
  auto keep = [&](auto& map, auto* object) {
    if (object == nullptr) {
      actual.error = errno != 0 ? errno : -1;
    } else {
      map[step.id] = object;
    }
    return object != nullptr;
  };
  errno = 0;
  switch (step.op) {
    case Op::kAllocPd:
      keep(pds_, ibv_alloc_pd(context));
      break;
    case Op::kParentDomain: {
      ibv_td_init_attr td_attr = {};
      ibv_td* td = ibv_alloc_td(context, &td_attr);
      ibv_parent_domain_init_attr attr = {};
      attr.pd = pds_.at(step.pd);
      attr.td = td;
      if (td == nullptr || !keep(pds_, ibv_alloc_parent_domain(context, &attr))) {
        actual.error = errno;
      }
      if (td != nullptr) tds_[step.id] = td;
      break;
    }
    case Op::kRegMr: {
      ibv_mr* mr = ibv_reg_mr(pds_.at(step.pd), sides_[step.side].arena + step.offset, step.length,
                              static_cast<int>(step.access));
      if (!keep(mrs_, mr)) break;
      lkeys_[step.id] = mr->lkey;
      rkeys_[step.id] = {{mr->rkey, false}};
      break;
    }
    case Op::kAllocNullMr: {
      ibv_mr* mr = ibv_alloc_null_mr(pds_.at(step.pd));
      if (!keep(mrs_, mr)) break;
      lkeys_[step.id] = mr->lkey;
      rkeys_[step.id] = {{mr->rkey, false}};
      break;
    }
    case Op::kRegDmMr: {
      ibv_mr* mr = ibv_reg_dm_mr(pds_.at(step.pd), sides_[step.side].dm, step.offset, step.length,
                                 step.access);
      if (!keep(mrs_, mr)) break;
      lkeys_[step.id] = mr->lkey;
      rkeys_[step.id] = {{mr->rkey, true}};
      device_offsets_[step.id] = step.offset;
      break;
    }
    case Op::kAllocMw: {
      ibv_mw* mw = ibv_alloc_mw(pds_.at(step.pd), step.mw_type);
      if (keep(mws_, mw)) rkeys_[step.id] = {{mw->rkey, false}};
      break;
    }
    case Op::kCreateCq: {
      ibv_cq* cq = nullptr;
      if (step.is_extended) {
        ibv_cq_init_attr_ex init = {};
        init.cqe = step.entries;
        init.wc_flags = uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
        init.channel = sides_[step.other_channel ? 1 - step.side : step.side].channel;
        ibv_cq_ex* extended = ibv_create_cq_ex(context, &init);
        cq = extended != nullptr ? ibv_cq_ex_to_cq(extended) : nullptr;
        if (cq != nullptr) extended_cqs_[step.id] = extended;
      } else {
        cq = ibv_create_cq(context, static_cast<int>(step.entries), nullptr,
                           sides_[step.other_channel ? 1 - step.side : step.side].channel, 0);
      }
      if (keep(cqs_, cq)) actual.entries = static_cast<uint32_t>(cq->cqe);
      break;
    }
    case Op::kCreateSrq: {
      ibv_srq_init_attr init = {};
      init.attr = {step.entries, step.cap.max_recv_sge, step.limit};
      if (keep(srqs_, ibv_create_srq(pds_.at(step.pd), &init))) actual.entries = init.attr.max_wr;
      break;
    }
    case Op::kCreateQp:
      return MakeQp(step);
    case Op::kCreateAh: {
      ibv_ah_attr attr =
          AddressOf(step.to_group ? Group() : sides_[step.to_self ? step.side : 1 - step.side].gid);
      if (keep(ahs_, ibv_create_ah(pds_.at(step.pd), &attr)) && step.to_group) {
        groups_[step.id] = true;
      }
      break;
    }
    default:
      break;
  }
  return actual;
}

Actual Executor::MakeQp(const Step& step) {
  Actual actual;
  ibv_qp_init_attr init = {};
  init.send_cq = cqs_.at(step.send_cq);
  init.recv_cq = cqs_.at(step.recv_cq);
  init.srq = Find(srqs_, step.srq);
  init.cap = step.cap;
  init.qp_type = step.type;
  init.sq_sig_all = step.sq_sig_all ? 1 : 0;
  ibv_qp* qp = nullptr;
  if (step.is_extended) {
    ibv_qp_init_attr_ex extended = {};
    extended.send_cq = init.send_cq;
    extended.recv_cq = init.recv_cq;
    extended.srq = init.srq;
    extended.cap = init.cap;
    extended.qp_type = init.qp_type;
    extended.sq_sig_all = init.sq_sig_all;
    extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    extended.pd = pds_.at(step.pd);
    extended.send_ops_flags = OperationsOf(step.type);
    qp = ibv_create_qp_ex(sides_[step.side].context, &extended);
    init.cap = extended.cap;
  } else {
    qp = ibv_create_qp(pds_.at(step.pd), &init);
  }
  if (qp == nullptr) {
    actual.error = errno != 0 ? errno : -1;
    return actual;
  }
  qps_[step.id] = qp;
  qpns_[step.id] = qp->qp_num;
  actual.cap = init.cap;
  return actual;
}

Actual Executor::Destroy(const Step& step) {
  Actual actual;
  auto end = [&](auto& map, auto destroy) {
    actual.error = destroy(map.at(step.id));
    if (actual.error == 0) map.erase(step.id);
  };
  switch (step.op) {
    case Op::kDeallocPd:
      end(pds_, ibv_dealloc_pd);
      if (actual.error == 0 && tds_.count(step.id) != 0) {
        actual.error = ibv_dealloc_td(tds_.at(step.id));
        tds_.erase(step.id);
      }
      break;
    case Op::kDeregMr:
      end(mrs_, ibv_dereg_mr);
      break;
    case Op::kDeallocMw:
      end(mws_, ibv_dealloc_mw);
      break;
    case Op::kDestroyCq:
      end(cqs_, ibv_destroy_cq);
      if (actual.error == 0) extended_cqs_.erase(step.id);
      if (actual.error == 0) held_.erase(step.id);
      break;
    case Op::kDestroySrq:
      end(srqs_, ibv_destroy_srq);
      break;
    case Op::kDestroyQp:
      end(qps_, ibv_destroy_qp);
      break;
    case Op::kDestroyAh:
      end(ahs_, ibv_destroy_ah);
      break;
    default:
      actual.error = -1;
  }
  return actual;
}

ibv_qp_attr Executor::Attributes(const Step& step) const {
  ibv_qp_attr attr = step.attr;
  if (auto qp = qps_.find(step.id); qp != qps_.end()) {
    const int side = step.side;
    attr.ah_attr = AddressOf(sides_[1 - side].gid);
    attr.dest_qp_num = Find(qpns_, step.peer);
  }
  return attr;
}

std::string Executor::Clear() {
  std::string wrong;
  auto clear = [&wrong](const char* what, auto& map, auto destroy) {
    // From the newest on: a parent domain goes before its base.
    for (auto it = map.rbegin(); it != map.rend(); ++it) {
      if (int error = destroy(it->second); error != 0 && wrong.empty()) {
        wrong = std::string(what) + " of " + std::to_string(it->first) + ": " + strerror(error);
      }
    }
    map.clear();
  };
  for (const auto& [id, is_in] : in_group_) {
    if (!is_in || qps_.count(id) == 0) continue;
    Step detach;
    detach.op = Op::kDetachMcast;
    detach.id = id;
    Run(detach);
  }
  in_group_.clear();
  clear("ibv_destroy_qp", qps_, ibv_destroy_qp);
  clear("ibv_destroy_srq", srqs_, ibv_destroy_srq);
  clear("ibv_destroy_cq", cqs_, ibv_destroy_cq);
  clear("ibv_destroy_ah", ahs_, ibv_destroy_ah);
  clear("ibv_dealloc_mw", mws_, ibv_dealloc_mw);
  clear("ibv_dereg_mr", mrs_, ibv_dereg_mr);
  clear("ibv_dealloc_pd", pds_, ibv_dealloc_pd);
  clear("ibv_dealloc_td", tds_, ibv_dealloc_td);
  extended_cqs_.clear();
  held_.clear();
  groups_.clear();
  qpns_.clear();
  lkeys_.clear();
  device_offsets_.clear();
  rkeys_.clear();
  return wrong;
}

}  // namespace verbena::programs
