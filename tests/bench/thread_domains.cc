// What a thread domain saves: the time of ibv_post_send, each with a doorbell, by one thread and by
// two at once, every thread with a QP of its own, all of one context. Prints one JSON object:
// nanoseconds for a request, medians over batches.
//
//   thread_domains BATCHES
#include <infiniband/verbs.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "tests/bench/machine.h"
#include "tests/conformance/connect_rc.h"

namespace {

using verbena::bench::Median;

constexpr int kPostsPerBatch = 16;
constexpr int kGidIndex = 1;

[[noreturn]] void Die(const char* what) {
  perror(what);
  exit(1);
}
void Check(bool is_ok, const char* what) {
  if (!is_ok) Die(what);
}

// A QP connected to itself, and all it needs; in a thread domain or not.
class Loop {
 public:
  Loop(ibv_context* context, bool with_td) {
    base_pd_ = pd_ = ibv_alloc_pd(context);
    Check(pd_ != nullptr, "ibv_alloc_pd");
    ibv_cq_init_attr_ex cq_init = {};
    cq_init.cqe = 64;
    if (with_td) {
      ibv_td_init_attr td_init = {};
      td_ = ibv_alloc_td(context, &td_init);
      Check(td_ != nullptr, "ibv_alloc_td");
      ibv_parent_domain_init_attr init = {};
      init.pd = base_pd_;
      init.td = td_;
      pd_ = ibv_alloc_parent_domain(context, &init);
      Check(pd_ != nullptr, "ibv_alloc_parent_domain");
      cq_init.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
      cq_init.parent_domain = pd_;
    }
    mr_ =
        ibv_reg_mr(pd_, memory_, sizeof(memory_), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    Check(mr_ != nullptr, "ibv_reg_mr");
    cq_ = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &cq_init));
    Check(cq_ != nullptr, "ibv_create_cq_ex");
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = cq_;
    init.qp_type = IBV_QPT_RC;
    init.cap = {64, 1, 1, 1, 16};
    qp_ = ibv_create_qp(pd_, &init);
    Check(qp_ != nullptr, "ibv_create_qp");
    Connect(context);
  }
  ~Loop() {
    ibv_destroy_qp(qp_);
    ibv_destroy_cq(cq_);
    ibv_dereg_mr(mr_);
    if (td_ != nullptr) {
      ibv_dealloc_pd(pd_);
      ibv_dealloc_td(td_);
    }
    ibv_dealloc_pd(base_pd_);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Nanoseconds a request, of each batch.
  void Run(int batches, std::vector<double>* out) {
    ibv_sge sge = {reinterpret_cast<uint64_t>(memory_), 8, mr_->lkey};
    ibv_send_wr wr = {};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(memory_ + 8);
    wr.wr.rdma.rkey = mr_->rkey;
    for (int batch = 0; batch < batches; ++batch) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kPostsPerBatch; ++i) {
        wr.send_flags = IBV_SEND_INLINE | (i + 1 == kPostsPerBatch ? IBV_SEND_SIGNALED : 0);
        ibv_send_wr* bad = nullptr;
        Check(ibv_post_send(qp_, &wr, &bad) == 0, "ibv_post_send");
      }
      const std::chrono::duration<double, std::nano> took =
          std::chrono::steady_clock::now() - begin;
      out->push_back(took.count() / kPostsPerBatch);
      ibv_wc wc;
      int polled = 0;
      while (polled == 0) polled = ibv_poll_cq(cq_, 1, &wc);
      Check(polled == 1 && wc.status == IBV_WC_SUCCESS, "completion");
    }
  }

 private:
  void Connect(ibv_context* context) {
    ibv_gid gid;
    Check(ibv_query_gid(context, 1, kGidIndex, &gid) == 0, "ibv_query_gid");
    const int error =
        verbena::conformance::ConnectRc(qp_, IBV_ACCESS_REMOTE_WRITE, qp_->qp_num, gid, kGidIndex);
    Check(error == 0, "connecting a QP");
  }

  alignas(64) uint8_t memory_[64] = {};
  ibv_pd* base_pd_ = nullptr;
  ibv_td* td_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
};

double Measure(ibv_context* context, bool with_td, int thread_count, int batches) {
  std::vector<std::unique_ptr<Loop>> loops;
  std::vector<std::vector<double>> results(static_cast<size_t>(thread_count));
  for (int i = 0; i < thread_count; ++i) loops.push_back(std::make_unique<Loop>(context, with_td));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < loops.size(); ++i) {
    threads.emplace_back([&, i] { loops[i]->Run(batches, &results[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> all;
  for (const auto& one : results) all.insert(all.end(), one.begin(), one.end());
  return Median(all);
}

}  // namespace

int main(int argc, char** argv) {
  const int batches = argc > 1 ? atoi(argv[1]) : 20'000;
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  Check(count > 0, "no device");
  ibv_context* context = ibv_open_device(devices[0]);
  Check(context != nullptr, "ibv_open_device");
  constexpr int kRounds = 7;
  printf("{");
  for (int thread_count : {1, 2}) {
    std::vector<double> with, without;
    for (int round = 0; round < kRounds; ++round) {
      without.push_back(Measure(context, false, thread_count, batches));
      with.push_back(Measure(context, true, thread_count, batches));
    }
    printf("%s\"threads_%d\": {\"with_ns\": %.2f, \"without_ns\": %.2f}",
           thread_count == 1 ? "" : ", ", thread_count, Median(with), Median(without));
  }
  printf("}\n");
  ibv_close_device(context);
  ibv_free_device_list(devices);
  return 0;
}
