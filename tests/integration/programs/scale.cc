// Many objects in one client, several times over; prints how long the first and the last of them
// took in the round where they differ least: the scheduler may well put client and NIC on one CPU,
// or on two, in the middle of a round.
//   scale QPS MRS
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

constexpr int kSample = 1000;
constexpr int kRounds = 5;

double MicrosecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// Microseconds of creating numbers [from, from + kSample) out of `times`: the lowest decile, which
// a busy machine does not move.
double Cost(std::vector<double> times, size_t from) {
  std::vector<double> part(times.begin() + static_cast<ptrdiff_t>(from),
                           times.begin() + static_cast<ptrdiff_t>(from + kSample));
  std::nth_element(part.begin(), part.begin() + kSample / 10, part.end());
  return part[kSample / 10];
}

struct Figures {
  size_t count;
  double first_us, last_us, destroy_us;

  double growth() const { return last_us / first_us; }
};

Figures Summarize(const std::vector<double>& times, double destroy_us) {
  return {times.size(), Cost(times, 0), Cost(times, times.size() - kSample),
          destroy_us / static_cast<double>(times.size())};
}

void Print(const char* what, const Figures& figures) {
  std::printf(
      "\"%s\": {\"count\": %zu, \"first_us\": %.2f, \"last_us\": %.2f, "
      "\"destroy_us\": %.2f}",
      what, figures.count, figures.first_us, figures.last_us, figures.destroy_us);
}

bool ManyQps(Side& side, Side& peer, size_t count, Figures* figures) {
  std::vector<double> times;
  std::vector<ibv_qp*> qps;
  ibv_qp_init_attr init = {};
  init.send_cq = side.send_cq;
  init.recv_cq = side.recv_cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {4, 4, 1, 1, 0};
  while (qps.size() < count) {
    auto begin = Clock::now();
    qps.push_back(ibv_create_qp(side.pd, &init));
    times.push_back(MicrosecondsSince(begin));
    if (qps.back() == nullptr) {
      std::fprintf(stderr, "QP %zu: %m\n", qps.size());
      return false;
    }
  }
  // The first, one in the middle and the last carry data.
  for (size_t i : {size_t{0}, count / 2, count - 1}) {
    std::swap(side.qp, qps[i]);
    bool ok = peer.ToState(IBV_QPS_RESET) == 0 && side.ToInit() == 0 && peer.ToInit() == 0 &&
              side.ToRtr(peer.qp->qp_num, peer.gid(), {}) == 0 &&
              peer.ToRtr(side.qp->qp_num, side.gid(), {}) == 0 && side.ToRts({}) == 0 &&
              peer.ToRts({}) == 0 && side.Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, peer, 0) == 0 &&
              side.WaitSend().status == IBV_WC_SUCCESS;
    std::swap(side.qp, qps[i]);
    if (!ok) {
      std::fprintf(stderr, "QP %zu carries no data\n", i);
      return false;
    }
  }
  auto begin = Clock::now();
  for (ibv_qp* qp : qps) {
    if (ibv_destroy_qp(qp) != 0) return false;
  }
  *figures = Summarize(times, MicrosecondsSince(begin));
  return true;
}

bool ManyMrs(Side& side, size_t count, Figures* figures) {
  std::vector<double> times;
  std::vector<ibv_mr*> mrs;
  Memory memory(count * 4096);
  for (size_t i = 0; i < memory.size(); i += 4096) memory[i] = 1;  // pages that exist
  while (mrs.size() < count) {
    auto begin = Clock::now();
    mrs.push_back(ibv_reg_mr(side.pd, memory.data() + mrs.size() * 4096, 4096, kAllAccess));
    times.push_back(MicrosecondsSince(begin));
    if (mrs.back() == nullptr) {
      std::fprintf(stderr, "MR %zu: %m\n", mrs.size());
      return false;
    }
  }
  auto begin = Clock::now();
  for (ibv_mr* mr : mrs) {
    if (ibv_dereg_mr(mr) != 0) return false;
  }
  *figures = Summarize(times, MicrosecondsSince(begin));
  return true;
}

// The round that grew least. `many` makes the objects and takes them away again.
template <typename Many>
bool Measure(const char* what, Many many) {
  Figures best = {};
  for (int round = 0; round < kRounds; ++round) {
    Figures figures;
    if (!many(&figures)) return false;
    if (round == 0 || figures.growth() < best.growth()) best = figures;
  }
  Print(what, best);
  return true;
}

int Main(int argc, char** argv) {
  if (argc != 3) return 2;
  const size_t qps = strtoul(argv[1], nullptr, 10), mrs = strtoul(argv[2], nullptr, 10);
  Side side(SideOptions{}), peer(SideOptions{.nic = 1});
  std::printf("{");
  if (!Measure("qp", [&](Figures* f) { return ManyQps(side, peer, qps, f); })) return 1;
  std::printf(", ");
  if (!Measure("mr", [&](Figures* f) { return ManyMrs(side, mrs, f); })) return 1;
  std::printf("}\n");
  return 0;
}

}  // namespace
}  // namespace verbena::conformance

int main(int argc, char** argv) { return verbena::conformance::Main(argc, argv); }
