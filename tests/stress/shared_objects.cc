// Many threads of one process at the same objects: context, PD, CQs, SRQ, QPs, an event fd. Verbs
// are safe for that by themselves (ibv_alloc_td(3)), so under a thread sanitizer nothing may be
// reported, and every request completes exactly once. Each thread has objects of a thread domain
// beside them, which take no locks.
//
//   shared_objects [THREADS] [STEPS]
#include <infiniband/verbs.h>
#include <poll.h>
#include <sched.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/conformance/connect_rc.h"

namespace {

using verbena::conformance::AddressOf;
using verbena::conformance::ConnectRc;
using verbena::conformance::ToInit;

constexpr int kPairs = 4;
constexpr int kCqs = 3;
constexpr int kReceives = 512;
constexpr uint64_t kReceiveId = uint64_t{1} << 63;
constexpr size_t kBufferBytes = 64 * 1024;
constexpr int kGidIndex = 1;
constexpr auto kPatience = std::chrono::seconds(120);

[[noreturn]] void Die(const char* what, int error = errno) {
  fprintf(stderr, "shared_objects: %s: %s\n", what, strerror(error));
  exit(1);
}
void Check(int error, const char* what) {
  if (error != 0) Die(what, error);
}
template <typename T>
T* Made(T* object, const char* what) {
  if (object == nullptr) Die(what);
  return object;
}

// What all threads share.
struct Shared {
  ibv_context* context;
  ibv_pd* pd;
  ibv_mr* mr;
  ibv_comp_channel* channel;
  ibv_cq* cqs[kCqs];
  ibv_srq* srq;
  ibv_qp* qps[2 * kPairs];
  ibv_gid gid;
  std::vector<std::atomic<uint8_t>> completed;  // by number of the send
  std::atomic<uint64_t> next_send{0};
  std::atomic<uint64_t> posted{0}, sent{0}, received{0};
  std::atomic<bool> is_over{false};
  uint8_t* buffer;
};

ibv_qp_init_attr QpInit(Shared& s, int i) {
  ibv_qp_init_attr init = {};
  init.send_cq = s.cqs[i % kCqs];
  init.recv_cq = s.cqs[(i + 1) % kCqs];
  init.srq = s.srq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {64, 0, 1, 0, 16};
  return init;
}

void Connect(Shared& s, ibv_qp* qp, const ibv_qp* peer) {
  Check(ConnectRc(qp, 0, peer->qp_num, s.gid, kGidIndex), "connecting a QP");
}

void PostReceive(Shared& s, uint64_t number) {
  ibv_sge sge = {reinterpret_cast<uint64_t>(s.buffer + 64 * (number % kReceives)), 64, s.mr->lkey};
  ibv_recv_wr wr = {};
  wr.wr_id = kReceiveId | number;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  Check(ibv_post_srq_recv(s.srq, &wr, &bad), "ibv_post_srq_recv");
}

void PostSend(Shared& s, ibv_qp* qp, uint64_t sends_max) {
  const uint64_t number = s.next_send.fetch_add(1);
  if (number >= sends_max) return;
  uint64_t word = number;
  ibv_sge sge = {reinterpret_cast<uint64_t>(&word), sizeof(word), 0};
  ibv_send_wr wr = {};
  wr.wr_id = number;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(qp, &wr, &bad);
  if (error == ENOMEM) {
    s.completed[number].fetch_add(1);  // the queue is full: it will not come
    return;
  }
  Check(error, "ibv_post_send");
  s.posted.fetch_add(1);
}

void Poll(Shared& s, ibv_cq* cq) {
  ibv_wc wcs[8];
  const int count = ibv_poll_cq(cq, 8, wcs);
  if (count < 0) Die("ibv_poll_cq", EIO);
  for (int i = 0; i < count; ++i) {
    if (wcs[i].status != IBV_WC_SUCCESS) {
      fprintf(stderr, "wr_id 0x%lx: %s\n", wcs[i].wr_id, ibv_wc_status_str(wcs[i].status));
      exit(1);
    }
    if ((wcs[i].wr_id & kReceiveId) != 0) {
      s.received.fetch_add(1);
      PostReceive(s, wcs[i].wr_id & ~kReceiveId);
    } else {
      if (s.completed[wcs[i].wr_id].fetch_add(1) != 0) Die("a send completed twice", EPROTO);
      s.sent.fetch_add(1);
    }
  }
}

// Objects of a thread's own, made and destroyed while the others work on the shared ones.
void MakeAndDestroy(Shared& s, uint32_t dice) {
  switch (dice % 6) {
    case 0: {
      ibv_mr* mr = Made(ibv_reg_mr(s.pd, s.buffer, kBufferBytes, IBV_ACCESS_LOCAL_WRITE), "MR");
      Check(ibv_dereg_mr(mr), "ibv_dereg_mr");
      return;
    }
    case 1: {
      ibv_ah_attr attr = AddressOf(s.gid, kGidIndex);
      Check(ibv_destroy_ah(Made(ibv_create_ah(s.pd, &attr), "AH")), "ibv_destroy_ah");
      return;
    }
    case 2: {
      ibv_qp_init_attr init = QpInit(s, static_cast<int>(dice / 6 % kCqs));
      ibv_qp* qp = Made(ibv_create_qp(s.pd, &init), "QP");
      Check(ToInit(qp, 0), "INIT");
      Check(ibv_destroy_qp(qp), "ibv_destroy_qp");
      return;
    }
    case 3: {
      ibv_cq* cq = Made(ibv_create_cq(s.context, 16, nullptr, s.channel, 0), "CQ");
      Check(ibv_destroy_cq(cq), "ibv_destroy_cq");
      return;
    }
    case 4: {
      ibv_pd* pd = Made(ibv_alloc_pd(s.context), "PD");
      ibv_parent_domain_init_attr init = {};
      init.pd = pd;
      ibv_pd* parent = Made(ibv_alloc_parent_domain(s.context, &init), "parent domain");
      Check(ibv_dealloc_pd(parent), "ibv_dealloc_pd");
      Check(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
      return;
    }
    default: {
      ibv_qp_attr attr;
      ibv_qp_init_attr init;
      Check(ibv_query_qp(s.qps[dice / 6 % (2 * kPairs)], &attr, IBV_QP_STATE, &init), "query");
      ibv_srq_attr srq_attr;
      Check(ibv_query_srq(s.srq, &srq_attr), "ibv_query_srq");
      return;
    }
  }
}

// What a thread has in a thread domain of its own: a QP connected to itself, and its CQ.
class Alone {
 public:
  explicit Alone(Shared& s) : s_(s) {
    ibv_td_init_attr td_init = {};
    td_ = Made(ibv_alloc_td(s.context, &td_init), "ibv_alloc_td");
    ibv_parent_domain_init_attr pd_init = {};
    pd_init.pd = s.pd;
    pd_init.td = td_;
    pd_ = Made(ibv_alloc_parent_domain(s.context, &pd_init), "parent domain");
    ibv_cq_init_attr_ex cq_init = {};
    cq_init.cqe = 16;
    cq_init.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
    cq_init.parent_domain = pd_;
    cq_ = ibv_cq_ex_to_cq(Made(ibv_create_cq_ex(s.context, &cq_init), "ibv_create_cq_ex"));
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = cq_;
    init.qp_type = IBV_QPT_RC;
    init.cap = {4, 4, 1, 1, 16};
    qp_ = Made(ibv_create_qp(pd_, &init), "ibv_create_qp");
    Connect(s, qp_, qp_);
  }
  ~Alone() {
    Check(ibv_destroy_qp(qp_), "ibv_destroy_qp");
    Check(ibv_destroy_cq(cq_), "ibv_destroy_cq");
    Check(ibv_dealloc_pd(pd_), "ibv_dealloc_pd");
    Check(ibv_dealloc_td(td_), "ibv_dealloc_td");
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

  // A message to itself, there and done.
  void Step() {
    uint64_t word = 1;
    ibv_recv_wr receive = {};
    ibv_recv_wr* bad_receive = nullptr;
    ibv_sge to = {reinterpret_cast<uint64_t>(s_.buffer), 64, s_.mr->lkey};
    receive.sg_list = &to;
    receive.num_sge = 1;
    Check(ibv_post_recv(qp_, &receive, &bad_receive), "ibv_post_recv");
    ibv_sge from = {reinterpret_cast<uint64_t>(&word), sizeof(word), 0};
    ibv_send_wr wr = {};
    wr.sg_list = &from;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    ibv_send_wr* bad = nullptr;
    Check(ibv_post_send(qp_, &wr, &bad), "ibv_post_send");
    for (int done = 0; done < 2;) {
      ibv_wc wc;
      const int polled = ibv_poll_cq(cq_, 1, &wc);
      if (polled < 0 || (polled == 1 && wc.status != IBV_WC_SUCCESS)) Die("alone", EPROTO);
      done += polled;
      if (polled == 0) sched_yield();
    }
  }

 private:
  Shared& s_;
  ibv_td* td_;
  ibv_pd* pd_;
  ibv_cq* cq_;
  ibv_qp* qp_;
};

void Work(Shared& s, unsigned seed, int steps, uint64_t sends_max) {
  std::minstd_rand dice(seed);
  Alone alone(s);
  for (int step = 0; step < steps; ++step) {
    const uint32_t roll = static_cast<uint32_t>(dice());
    const uint32_t kind = roll / 7 % 64;
    if (kind < 28) {
      PostSend(s, s.qps[roll % (2 * kPairs)], sends_max);
    } else if (kind < 56) {
      Poll(s, s.cqs[roll % kCqs]);
    } else if (kind < 59) {
      Check(ibv_req_notify_cq(s.cqs[roll % kCqs], static_cast<int>(roll & 1)), "notify");
    } else if (kind == 59) {
      // Room for all that may be in it.
      Check(ibv_resize_cq(s.cqs[roll % kCqs], 4096 << (roll & 1)), "ibv_resize_cq");
    } else if (kind == 60) {
      ibv_srq_attr attr = {static_cast<uint32_t>(1024 << (roll & 1)), 0, 0};
      Check(ibv_modify_srq(s.srq, &attr, IBV_SRQ_MAX_WR), "ibv_modify_srq");
    } else if (kind == 61) {
      alone.Step();
    } else {
      MakeAndDestroy(s, roll / 448);
    }
  }
}

// Events of the shared CQs, until all is over.
void TakeEvents(Shared& s) {
  while (!s.is_over.load()) {
    pollfd fd = {s.channel->fd, POLLIN, 0};
    if (poll(&fd, 1, 10) <= 0) continue;
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(s.channel, &cq, &context) == 0) ibv_ack_cq_events(cq, 1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? atoi(argv[1]) : 32;
  const int steps = argc > 2 ? atoi(argv[2]) : 2'000;
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  if (count == 0) Die("no device", ENODEV);
  Shared s = {};
  s.context = Made(ibv_open_device(devices[0]), "ibv_open_device");
  s.pd = Made(ibv_alloc_pd(s.context), "ibv_alloc_pd");
  s.buffer = static_cast<uint8_t*>(aligned_alloc(4096, kBufferBytes));
  memset(s.buffer, 0, kBufferBytes);
  s.mr = Made(ibv_reg_mr(s.pd, s.buffer, kBufferBytes, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
  s.channel = Made(ibv_create_comp_channel(s.context), "ibv_create_comp_channel");
  for (ibv_cq*& cq : s.cqs) {
    cq = Made(ibv_create_cq(s.context, 4096, nullptr, s.channel, 0), "ibv_create_cq");
  }
  ibv_srq_init_attr srq_init = {};
  srq_init.attr = {1024, 1, 0};
  s.srq = Made(ibv_create_srq(s.pd, &srq_init), "ibv_create_srq");
  Check(ibv_query_gid(s.context, 1, kGidIndex, &s.gid), "ibv_query_gid");
  for (int i = 0; i < 2 * kPairs; ++i) {
    ibv_qp_init_attr init = QpInit(s, i);
    s.qps[i] = Made(ibv_create_qp(s.pd, &init), "ibv_create_qp");
  }
  for (int i = 0; i < 2 * kPairs; ++i) Connect(s, s.qps[i], s.qps[i ^ 1]);
  for (uint64_t i = 0; i < kReceives; ++i) PostReceive(s, i);
  const auto sends_max = static_cast<uint64_t>(threads) * static_cast<uint64_t>(steps);
  s.completed = std::vector<std::atomic<uint8_t>>(sends_max);

  std::thread events([&] { TakeEvents(s); });
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&, i] { Work(s, static_cast<unsigned>(i) + 1, steps, sends_max); });
  }
  for (std::thread& worker : workers) worker.join();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (s.sent.load() != s.posted.load() || s.received.load() != s.posted.load()) {
    for (ibv_cq* cq : s.cqs) Poll(s, cq);
    if (std::chrono::steady_clock::now() > deadline) break;
    sched_yield();
  }
  s.is_over = true;
  events.join();
  printf("%lu posted, %lu sent, %lu received\n", s.posted.load(), s.sent.load(), s.received.load());
  const bool is_complete = s.sent.load() == s.posted.load() && s.received.load() == s.posted.load();
  for (ibv_qp* qp : s.qps) Check(ibv_destroy_qp(qp), "ibv_destroy_qp");
  Check(ibv_destroy_srq(s.srq), "ibv_destroy_srq");
  for (ibv_cq* cq : s.cqs) Check(ibv_destroy_cq(cq), "ibv_destroy_cq");
  Check(ibv_destroy_comp_channel(s.channel), "ibv_destroy_comp_channel");
  Check(ibv_dereg_mr(s.mr), "ibv_dereg_mr");
  Check(ibv_dealloc_pd(s.pd), "ibv_dealloc_pd");
  Check(ibv_close_device(s.context), "ibv_close_device");
  ibv_free_device_list(devices);
  free(s.buffer);
  return is_complete && s.posted.load() != 0 ? 0 : 1;
}
