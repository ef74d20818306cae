#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "tests/conformance/connect_rc.h"
#include "tests/remap/agent.h"
#include "tests/remap/state.h"
#include "tests/remap/world.h"

namespace verbena::remap {

static constexpr uint8_t kReadsMax = 4;
static constexpr int64_t kFlagLimitNs = 60'000'000'000;
static thread_local bool is_registering __attribute__((tls_model("initial-exec"))) = false;

bool IsRegistering() { return is_registering; }

ibv_mr* Register(void* at, size_t bytes, uint32_t access) {
  is_registering = true;
  ibv_mr* mr = ibv_reg_mr(state.pd, at, bytes, static_cast<int>(access));
  const int saved = errno;
  is_registering = false;
  if (IsWorldStopped()) LetWorldGo();  // stopped by the hook of open(2)
  errno = saved;
  return mr;
}

static ibv_qp* CreateQp() {
  ibv_qp_init_attr attr = {};
  attr.send_cq = state.cq;
  attr.recv_cq = state.peer_cq;
  attr.cap = {16, 1, 1, 1, 0};
  attr.qp_type = IBV_QPT_RC;
  return ibv_create_qp(state.unlocked_pd, &attr);
}

static bool ConnectQps() {
  state.qp = CreateQp();
  state.peer = CreateQp();
  if (state.qp == nullptr || state.peer == nullptr) return false;
  return conformance::ConnectRc(state.qp, kAll, state.peer->qp_num, state.gid, 0, kReadsMax) == 0 &&
         conformance::ConnectRc(state.peer, kAll, state.qp->qp_num, state.gid, 0, kReadsMax) == 0;
}

static void* MapOwn(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

bool OpenNic() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr || count == 0) return false;
  state.context = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  if (state.context == nullptr) return false;
  state.pd = ibv_alloc_pd(state.context);
  state.cq = ibv_create_cq(state.context, 64, nullptr, nullptr, 0);
  state.peer_cq = ibv_create_cq(state.context, 64, nullptr, nullptr, 0);
  // Without locks, which the NIC might see held.
  ibv_td_init_attr td_attr = {};
  state.td = ibv_alloc_td(state.context, &td_attr);
  if (state.pd == nullptr || state.cq == nullptr || state.peer_cq == nullptr ||
      state.td == nullptr) {
    return false;
  }
  ibv_parent_domain_init_attr domain = {};
  domain.pd = state.pd;
  domain.td = state.td;
  state.unlocked_pd = ibv_alloc_parent_domain(state.context, &domain);
  if (state.unlocked_pd == nullptr) return false;
  if (state.seen == nullptr) {
    state.seen = static_cast<uint8_t*>(MapOwn(kRangeBytesMax + 2 * kPageBytes));
    state.snapshot = static_cast<uint8_t*>(MapOwn(kRangeBytesMax + 2 * kPageBytes));
    state.flag = static_cast<uint64_t*>(MapOwn(kPageBytes));
    if (state.seen == nullptr || state.snapshot == nullptr || state.flag == nullptr) return false;
  }
  std::memset(state.seen, 1, kRangeBytesMax + 2 * kPageBytes);
  std::memset(state.snapshot, 1, kRangeBytesMax + 2 * kPageBytes);
  state.seen_mr = Register(state.seen, kRangeBytesMax + kPageBytes, kAll);
  state.flag_mr = Register(state.flag, 2 * sizeof(uint64_t), kAll);
  if (state.seen_mr == nullptr || state.flag_mr == nullptr) return false;
  return ibv_query_gid(state.context, 1, 0, &state.gid) == 0 && ConnectQps();
}

void Reconnect() {
  state.has_failed = false;
  ++state.counts.errors;
  if (state.qp != nullptr) ibv_destroy_qp(state.qp);
  if (state.peer != nullptr) ibv_destroy_qp(state.peer);
  ibv_wc wc;
  while (ibv_poll_cq(state.cq, 1, &wc) > 0 || ibv_poll_cq(state.peer_cq, 1, &wc) > 0) {
  }
  if (!ConnectQps()) state.is_broken = true;
}

ibv_send_wr Request(ibv_wr_opcode opcode, ibv_sge* sge, uint64_t remote, uint32_t rkey) {
  ibv_send_wr wr = {};
  wr.opcode = opcode;
  wr.sg_list = sge;
  wr.num_sge = 1;
  wr.wr.rdma.remote_addr = remote;
  wr.wr.rdma.rkey = rkey;
  return wr;
}

bool Execute(ibv_send_wr* request) {
  const uint64_t number = state.flag[1] + 1;
  state.flag[1] = number;
  ibv_sge from = {reinterpret_cast<uint64_t>(&state.flag[1]), 8, state.flag_mr->lkey};
  ibv_send_wr flag = Request(IBV_WR_RDMA_WRITE, &from, reinterpret_cast<uint64_t>(state.flag),
                             state.flag_mr->rkey);
  flag.send_flags = IBV_SEND_FENCE | IBV_SEND_SIGNALED;
  request->next = &flag;
  ibv_send_wr gate = Request(IBV_WR_SEND, nullptr, 0, 0);
  gate.num_sge = 0;
  gate.next = request;
  ibv_send_wr* bad;
  ibv_recv_wr go = {}, *bad_go;
  ibv_wc wc;
  while (ibv_poll_cq(state.peer_cq, 1, &wc) > 0) {
  }
  if (ibv_post_send(state.qp, &gate, &bad) != 0) return false;
  if (ibv_post_recv(state.peer, &go, &bad_go) != 0) return false;
  const int64_t end_ns = NowNs() + kFlagLimitNs;
  for (uint32_t i = 0; __atomic_load_n(state.flag, __ATOMIC_ACQUIRE) != number; ++i) {
    if (i < 100'000) {
      __builtin_ia32_pause();
      continue;
    }
    // Failed, or slow.
    const int found = ibv_poll_cq(state.cq, 1, &wc);
    if (found < 0 || (found == 1 && wc.status != IBV_WC_SUCCESS)) return false;
    if (found == 1) return true;
    if (NowNs() > end_ns) Differ("a request never completed");
    i = 0;
    syscall(SYS_sched_yield);
  }
  while (ibv_poll_cq(state.cq, 1, &wc) == 0) {
  }
  return wc.status == IBV_WC_SUCCESS;
}

bool NicReads(const ibv_mr* mr, uintptr_t at, size_t bytes, uint8_t** seen) {
  *seen = state.seen + Draw().Below(64);
  ibv_sge sge;
  ibv_send_wr wr;
  if (Draw().Percent(50)) {
    sge = {at, static_cast<uint32_t>(bytes), mr->lkey};
    wr = Request(IBV_WR_RDMA_WRITE, &sge, reinterpret_cast<uint64_t>(*seen), state.seen_mr->rkey);
  } else {
    sge = {reinterpret_cast<uint64_t>(*seen), static_cast<uint32_t>(bytes), state.seen_mr->lkey};
    wr = Request(IBV_WR_RDMA_READ, &sge, at, mr->rkey);
  }
  return Execute(&wr);
}

}  // namespace verbena::remap
