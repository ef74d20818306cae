// What an operation costs with few and with many active QPs: WRITEs of 8 bytes, in turn over all of
// them, a bounded number under way. Each QP is connected to itself, so one process and the NIC are
// all there is. Prints one JSON object: nanoseconds an operation, medians over rounds that
// alternate between the counts.
//
//   active_qps COUNTS WINDOW OPERATIONS ROUNDS     e.g. active_qps 10,10000 128 200000 9
//   active_qps COUNTS WINDOWeach OPERATIONS ROUNDS e.g. active_qps 10,10000 1each 200000 9
//
// The former has WINDOW under way on all QPs together, the latter on each of them, so that a
// doorbell says as much with many as with few.
// With a count of 1 and a window of 1 it is the round trip of a process that writes to itself.
#include <infiniband/verbs.h>

#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tests/bench/machine.h"
#include "tests/conformance/connect_rc.h"

namespace {

using verbena::bench::Median;

constexpr uint32_t kGidIndex = 1;
constexpr size_t kSlotBytes = 64;  // of memory, for each QP; written to the latter half

void Check(bool is_ok, const char* what) {
  if (is_ok) return;
  perror(what);
  exit(1);
}

// How many may be under way: of all QPs, or of each.
struct Window {
  int size = 0;
  bool is_of_each = false;

  int OfAll(size_t count) const { return is_of_each ? size * static_cast<int>(count) : size; }
};

// COUNT QPs that share a CQ and a region.
class Group {
 public:
  Group(ibv_context* context, size_t count, const Window& window)
      : memory_(count * kSlotBytes), under_way_(count) {
    ibv_gid gid;
    Check(ibv_query_gid(context, 1, kGidIndex, &gid) == 0, "ibv_query_gid");
    pd_ = ibv_alloc_pd(context);
    Check(pd_ != nullptr, "ibv_alloc_pd");
    mr_ = ibv_reg_mr(pd_, memory_.data(), memory_.size(),
                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    Check(mr_ != nullptr, "ibv_reg_mr");
    cq_ = ibv_create_cq(context, window.OfAll(count), nullptr, nullptr, 0);
    Check(cq_ != nullptr, "ibv_create_cq");
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = cq_;
    init.qp_type = IBV_QPT_RC;
    // One of few may have all that is under way.
    const bool may_be_of_one = count < 1000 || window.is_of_each;
    init.cap = {may_be_of_one ? static_cast<uint32_t>(window.size) : 16, 1, 1, 1, 8};
    init.sq_sig_all = 1;
    for (size_t i = 0; i < count; ++i) {
      ibv_qp* qp = ibv_create_qp(pd_, &init);
      Check(qp != nullptr, "ibv_create_qp");
      Check(verbena::conformance::ConnectRc(qp, IBV_ACCESS_REMOTE_WRITE, qp->qp_num, gid,
                                            kGidIndex) == 0,
            "connecting a QP");
      qps_.push_back(qp);
    }
  }
  ~Group() {
    for (ibv_qp* qp : qps_) ibv_destroy_qp(qp);
    ibv_destroy_cq(cq_);
    ibv_dereg_mr(mr_);
    ibv_dealloc_pd(pd_);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  size_t size() const { return qps_.size(); }

  // Nanoseconds an operation.
  double Run(const Window& window, int operations) {
    const int window_of_all = window.OfAll(size());
    const int window_of_one = window.is_of_each ? window.size : INT_MAX;
    const auto begin = std::chrono::steady_clock::now();
    int posted = 0, done = 0;
    while (done < operations) {
      while (posted < operations && posted - done < window_of_all &&
             under_way_[next_] < window_of_one) {
        Post(next_);
        next_ = next_ + 1 == qps_.size() ? 0 : next_ + 1;
        ++posted;
      }
      ibv_wc wcs[16];
      const int count = ibv_poll_cq(cq_, 16, wcs);
      Check(count >= 0, "ibv_poll_cq");
      for (int i = 0; i < count; ++i) {
        --under_way_[wcs[i].wr_id];
        if (wcs[i].status == IBV_WC_SUCCESS) continue;
        fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wcs[i].status));
        exit(1);
      }
      done += count;
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    return took.count() / operations;
  }

 private:
  void Post(size_t index) {
    uint8_t* slot = &memory_[index * kSlotBytes];
    ibv_sge sge = {reinterpret_cast<uint64_t>(slot), 8, mr_->lkey};
    ibv_send_wr wr = {}, *bad = nullptr;
    wr.wr_id = index;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_INLINE;
    wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(slot + kSlotBytes / 2);
    wr.wr.rdma.rkey = mr_->rkey;
    Check(ibv_post_send(qps_[index], &wr, &bad) == 0, "ibv_post_send");
    ++under_way_[index];
  }

  std::vector<uint8_t> memory_;
  std::vector<int> under_way_;  // on each QP
  ibv_pd* pd_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_cq* cq_ = nullptr;
  std::vector<ibv_qp*> qps_;
  size_t next_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: active_qps COUNTS WINDOW[each] OPERATIONS ROUNDS\n");
    return 2;
  }
  char* unit = nullptr;
  Window window = {static_cast<int>(strtol(argv[2], &unit, 10)), strcmp(unit, "each") == 0};
  const int operations = atoi(argv[3]), rounds = atoi(argv[4]);
  int device_count = 0;
  ibv_device** devices = ibv_get_device_list(&device_count);
  Check(device_count > 0, "no device");
  ibv_context* context = ibv_open_device(devices[0]);
  Check(context != nullptr, "ibv_open_device");
  std::vector<std::unique_ptr<Group>> groups;
  for (char* count = strtok(argv[1], ","); count != nullptr; count = strtok(nullptr, ",")) {
    groups.push_back(std::make_unique<Group>(context, strtoul(count, nullptr, 10), window));
  }
  std::vector<std::vector<double>> times(groups.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < groups.size(); ++i)
      times[i].push_back(groups[i]->Run(window, operations));
  }
  printf("{");
  for (size_t i = 0; i < groups.size(); ++i) {
    printf("%s\"%zu\": %.1f", i == 0 ? "" : ", ", groups[i]->size(), Median(std::move(times[i])));
  }
  printf("}\n");
  groups.clear();
  ibv_close_device(context);
  ibv_free_device_list(devices);
  return 0;
}
