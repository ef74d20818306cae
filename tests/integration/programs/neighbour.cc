// An honest client that measures itself: writes and checks small blocks for some time, and prints
// the percentiles of its latency.
//   neighbour SECONDS [--until-eof]     with --until-eof: says "ready" first, ends with its input
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

constexpr uint64_t kOperationsMin = 1000;

bool Connect(Side& a, Side& b) {
  ConnectOptions options = {.timeout = 18, .retry_cnt = 7};
  return a.ToInit() == 0 && b.ToInit() == 0 && a.ToRtr(b.qp->qp_num, b.gid(), options) == 0 &&
         b.ToRtr(a.qp->qp_num, a.gid(), options) == 0 && a.ToRts(options) == 0 &&
         b.ToRts(options) == 0;
}

double At(std::vector<double>& sorted, double quantile) {
  return sorted[static_cast<size_t>(quantile * static_cast<double>(sorted.size() - 1))];
}

int Main(int argc, char** argv) {
  if (argc < 2) return 2;
  Side a(SideOptions{}), b(SideOptions{.nic = 1});
  if (!Connect(a, b)) return 1;
  std::puts("ready");
  std::fflush(stdout);
  auto end = Clock::now() + std::chrono::duration<double>(atof(argv[1]));
  bool until_eof = argc > 2;
  pollfd input = {0, POLLIN, 0};
  std::vector<double> microseconds;
  memset(b.buffer.data(), 0xbb, b.buffer.size());
  auto goes_on = [&] { return until_eof ? poll(&input, 1, 0) == 0 : Clock::now() < end; };
  // A few say nothing: its input may be over before it has begun.
  for (uint64_t i = 1; i <= kOperationsMin || goes_on(); ++i) {
    a.buffer.words()[0] = i;
    auto begin = Clock::now();
    if (a.Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, b, 1024) != 0) return 1;
    ibv_wc wc = {};
    while (ibv_poll_cq(a.send_cq, 1, &wc) == 0) {
    }
    microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    if (wc.status != IBV_WC_SUCCESS || wc.wr_id != i || b.buffer.words()[128] != i) {
      std::fprintf(stderr, "operation %lu: %s\n", static_cast<unsigned long>(i),
                   ibv_wc_status_str(wc.status));
      return 1;
    }
  }
  for (size_t i = 0; i < b.buffer.size(); ++i) {
    if (b.buffer[i] != 0xbb && (i < 1024 || i >= 1032)) {
      std::fprintf(stderr, "byte %zu of my memory was changed\n", i);
      return 1;
    }
  }
  std::sort(microseconds.begin(), microseconds.end());
  std::printf("{\"operations\": %zu, \"p50_us\": %.2f, \"p99_us\": %.2f, \"p999_us\": %.2f}\n",
              microseconds.size(), At(microseconds, 0.5), At(microseconds, 0.99),
              At(microseconds, 0.999));
  return 0;
}

}  // namespace
}  // namespace verbena::conformance

int main(int argc, char** argv) { return verbena::conformance::Main(argc, argv); }
