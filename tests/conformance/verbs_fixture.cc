#include "tests/conformance/verbs_fixture.h"

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include "tests/conformance/connect_rc.h"

namespace verbena::conformance {

bool Eventually(const std::function<bool()>& condition, Milliseconds limit) {
  auto end = Clock::now() + limit;
  while (!condition()) {
    if (Clock::now() > end) return false;
    sched_yield();  // two cores are shared with the NIC
  }
  return true;
}

bool NeverWithin(const std::function<bool()>& condition, Milliseconds span) {
  return !Eventually(condition, span);
}

Memory::Memory(size_t bytes) : bytes_(bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  data_ = p == MAP_FAILED ? nullptr : static_cast<uint8_t*>(p);
}

Memory::~Memory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

ibv_context* OpenNic(int nic) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ibv_context* context = nullptr;
  if (list != nullptr && nic < count) context = ibv_open_device(list[nic]);
  if (list != nullptr) ibv_free_device_list(list);
  return context;
}

ibv_td* NewTd(ibv_context* context) {
  ibv_td_init_attr attr = {};
  return ibv_alloc_td(context, &attr);
}

ibv_pd* ParentOf(ibv_pd* pd, ibv_td* td) {
  ibv_parent_domain_init_attr attr = {};
  attr.pd = pd;
  attr.td = td;
  return ibv_alloc_parent_domain(pd->context, &attr);
}

ibv_cq_ex* NewCqIn(ibv_context* context, ibv_pd* parent_domain, int cqe,
                   ibv_comp_channel* channel) {
  ibv_cq_init_attr_ex init = {};
  init.cqe = static_cast<uint32_t>(cqe);
  init.channel = channel;
  init.wc_flags = IBV_WC_STANDARD_FLAGS;
  init.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
  init.parent_domain = parent_domain;
  return ibv_create_cq_ex(context, &init);
}

ibv_ah_attr AddressOf(const ibv_gid& gid) { return AddressOf(gid, kGidIndex); }

Side::Side(const SideOptions& side_options)
    : options(side_options), buffer(side_options.buffer_bytes) {
  context = OpenNic(options.nic);
  if (context == nullptr) throw std::runtime_error("no such NIC: is an instance running?");
  CreateDomain();
  mr = ibv_reg_mr(pd, buffer.data(), buffer.size(), options.mr_access);
  if (options.with_channel) channel = ibv_create_comp_channel(context);
  send_cq = CreateCq();
  recv_cq = CreateCq();
  if (options.with_srq) {
    ibv_srq_init_attr init = {};
    init.attr.max_wr = options.max_recv_wr;
    init.attr.max_sge = options.max_sge;
    srq = ibv_create_srq(pd, &init);
  }
  CreateQp();
  bool complete = pd && mr && send_cq && recv_cq && qp && (channel || !options.with_channel) &&
                  (srq || !options.with_srq) && ibv_query_gid(context, 1, kGidIndex, &gid_) == 0;
  if (!complete) throw std::runtime_error(std::string("creating objects: ") + strerror(errno));
}

void Side::CreateDomain() {
  pd = ibv_alloc_pd(context);
  if (!options.with_td && options.domain == nullptr) return;
  base_pd = pd;
  if (options.domain != nullptr) {
    ibv_parent_domain_init_attr attr = *options.domain;
    attr.pd = base_pd;
    pd = ibv_alloc_parent_domain(context, &attr);
  } else {
    td = NewTd(context);
    pd = td != nullptr ? ParentOf(base_pd, td) : nullptr;
  }
  if (pd == nullptr) throw std::runtime_error(std::string("parent domain: ") + strerror(errno));
}

ibv_cq* Side::CreateCq() {
  if (base_pd == nullptr) return ibv_create_cq(context, options.cqe, nullptr, channel, 0);
  ibv_cq_ex* cq = NewCqIn(context, pd, options.cqe, channel);
  return cq != nullptr ? ibv_cq_ex_to_cq(cq) : nullptr;
}

void Side::CreateQp() {
  ibv_qp_init_attr_ex init = {};
  init.send_cq = send_cq;
  init.recv_cq = recv_cq;
  init.srq = srq;
  init.qp_type = options.type;
  init.sq_sig_all = options.sq_sig_all ? 1 : 0;
  init.cap.max_send_wr = options.max_send_wr;
  init.cap.max_recv_wr = options.with_srq ? 0 : options.max_recv_wr;
  init.cap.max_send_sge = options.max_sge;
  init.cap.max_recv_sge = options.with_srq ? 0 : options.max_sge;
  init.cap.max_inline_data = options.max_inline_bytes;
  init.pd = pd;
  init.comp_mask = IBV_QP_INIT_ATTR_PD;
  if (options.send_ops != 0) {
    init.send_ops_flags = options.send_ops;
    init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  }
  qp = ibv_create_qp_ex(context, &init);
}

Side::~Side() {
  auto done = [](const char* what, int error) { EXPECT_EQ(error, 0) << what; };
  if (qp != nullptr) done("ibv_destroy_qp", ibv_destroy_qp(qp));
  if (srq != nullptr) done("ibv_destroy_srq", ibv_destroy_srq(srq));
  if (send_cq != nullptr) done("ibv_destroy_cq", ibv_destroy_cq(send_cq));
  if (recv_cq != nullptr) done("ibv_destroy_cq", ibv_destroy_cq(recv_cq));
  if (channel != nullptr) done("ibv_destroy_comp_channel", ibv_destroy_comp_channel(channel));
  if (mr != nullptr) done("ibv_dereg_mr", ibv_dereg_mr(mr));
  if (pd != nullptr) done("ibv_dealloc_pd", ibv_dealloc_pd(pd));
  if (base_pd != nullptr) done("ibv_dealloc_pd", ibv_dealloc_pd(base_pd));
  if (td != nullptr) done("ibv_dealloc_td", ibv_dealloc_td(td));
  if (context != nullptr) done("ibv_close_device", ibv_close_device(context));
}

int Side::ToInit(unsigned access) {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  if (options.type == IBV_QPT_UD) {
    attr.qkey = kQKey;
    mask |= IBV_QP_QKEY;
  } else {
    attr.qp_access_flags = access;
    mask |= IBV_QP_ACCESS_FLAGS;
  }
  return ibv_modify_qp(qp, &attr, mask);
}

int Side::ToRtr(uint32_t peer_qpn, const ibv_gid& peer_gid, const ConnectOptions& connect) {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTR;
  int mask = IBV_QP_STATE;
  if (options.type != IBV_QPT_UD) {
    attr.path_mtu = connect.mtu;
    attr.dest_qp_num = peer_qpn;
    attr.rq_psn = connect.psn;
    attr.ah_attr = AddressOf(peer_gid);
    mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  }
  if (options.type == IBV_QPT_RC) {
    attr.max_dest_rd_atomic = connect.rd_atomic;
    attr.min_rnr_timer = connect.min_rnr_timer;
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  }
  return ibv_modify_qp(qp, &attr, mask);
}

int Side::ToRts(const ConnectOptions& connect) {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = connect.psn;
  int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (options.type == IBV_QPT_RC) {
    attr.timeout = connect.timeout;
    attr.retry_cnt = connect.retry_cnt;
    attr.rnr_retry = connect.rnr_retry;
    attr.max_rd_atomic = connect.rd_atomic;
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  return ibv_modify_qp(qp, &attr, mask);
}

int Side::ToState(ibv_qp_state state) {
  ibv_qp_attr attr = {};
  attr.qp_state = state;
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

ibv_qp_state Side::State() const {
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  if (ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) != 0) return IBV_QPS_UNKNOWN;
  return attr.qp_state;
}

ibv_sge Side::Sge(size_t offset, uint32_t length) const {
  return {buffer.address() + offset, length, mr->lkey};
}

int Side::PostRecv(uint64_t wr_id, size_t offset, uint32_t length) {
  return PostRecv(wr_id, {Sge(offset, length)});
}

int Side::PostRecv(uint64_t wr_id, const std::vector<ibv_sge>& sges) {
  ibv_recv_wr wr = {};
  wr.wr_id = wr_id;
  wr.sg_list = const_cast<ibv_sge*>(sges.data());
  wr.num_sge = static_cast<int>(sges.size());
  ibv_recv_wr* bad = nullptr;
  return srq != nullptr ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
}

int Side::Post(ibv_send_wr wr, const std::vector<ibv_sge>& sges) {
  wr.sg_list = const_cast<ibv_sge*>(sges.data());
  wr.num_sge = static_cast<int>(sges.size());
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad);
}

int Side::Send(uint64_t wr_id, size_t offset, uint32_t length, unsigned flags) {
  ibv_send_wr wr = {};
  wr.wr_id = wr_id;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = flags;
  return Post(wr, {Sge(offset, length)});
}

int Side::Rdma(ibv_wr_opcode opcode, uint64_t wr_id, size_t offset, uint32_t length,
               const Side& peer, size_t peer_offset, unsigned flags) {
  ibv_send_wr wr = {};
  wr.wr_id = wr_id;
  wr.opcode = opcode;
  wr.send_flags = flags;
  wr.wr.rdma.remote_addr = peer.buffer.address() + peer_offset;
  wr.wr.rdma.rkey = peer.mr->rkey;
  return Post(wr, {Sge(offset, length)});
}

int Side::Atomic(ibv_wr_opcode opcode, uint64_t wr_id, size_t offset, const Side& peer,
                 size_t peer_offset, uint64_t compare_add, uint64_t swap) {
  ibv_send_wr wr = {};
  wr.wr_id = wr_id;
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.atomic.remote_addr = peer.buffer.address() + peer_offset;
  wr.wr.atomic.rkey = peer.mr->rkey;
  wr.wr.atomic.compare_add = compare_add;
  wr.wr.atomic.swap = swap;
  return Post(wr, {Sge(offset, 8)});
}

ibv_wc Side::Wait(ibv_cq* cq, Milliseconds limit) {
  ibv_wc wc = {};
  int n = 0;
  bool came = Eventually([&] { return (n = ibv_poll_cq(cq, 1, &wc)) != 0; }, limit);
  EXPECT_TRUE(came) << "no completion";
  EXPECT_GE(n, 0) << "ibv_poll_cq failed";
  if (!came) wc.status = IBV_WC_GENERAL_ERR;
  return wc;
}

bool Side::WaitEvent(ibv_event_type type, Milliseconds limit) {
  auto end = Clock::now() + limit;
  for (;;) {
    auto left = std::chrono::duration_cast<Milliseconds>(end - Clock::now()).count();
    pollfd fd = {context->async_fd, POLLIN, 0};
    if (left < 0 || poll(&fd, 1, static_cast<int>(left)) != 1) return false;
    ibv_async_event event = {};
    if (ibv_get_async_event(context, &event) != 0) return false;
    ibv_ack_async_event(&event);
    if (event.event_type == type) return true;
  }
}

void VerbsTest::MakePair(SideOptions options, ConnectOptions connect) {
  SideOptions other = options;
  other.nic = 1;
  MakePair(options, other, connect);
}

void VerbsTest::MakePair(SideOptions a_options, SideOptions b_options, ConnectOptions connect) {
  a = std::make_unique<Side>(a_options);
  b = std::make_unique<Side>(b_options);
  Connect(*a, *b, connect);
}

void VerbsTest::MakeUdPair(SideOptions options) {
  options.type = IBV_QPT_UD;
  MakePair(options);
}

void VerbsTest::Connect(Side& a, Side& b, const ConnectOptions& options) {
  ASSERT_EQ(a.ToInit(options.qp_access), 0);
  ASSERT_EQ(b.ToInit(options.qp_access), 0);
  ASSERT_EQ(a.ToRtr(b.qp->qp_num, b.gid(), options), 0);
  ASSERT_EQ(b.ToRtr(a.qp->qp_num, a.gid(), options), 0);
  ASSERT_EQ(a.ToRts(options), 0);
  ASSERT_EQ(b.ToRts(options), 0);
}

}  // namespace verbena::conformance
