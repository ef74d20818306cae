// One client of many: connects two of its QPs, writes, says "ready", waits for its standard input
// to end, writes again and leaves.
#include <unistd.h>

#include <cstdio>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

bool Connect(Side& a, Side& b) {
  return a.ToInit() == 0 && b.ToInit() == 0 && a.ToRtr(b.qp->qp_num, b.gid(), {}) == 0 &&
         b.ToRtr(a.qp->qp_num, a.gid(), {}) == 0 && a.ToRts({}) == 0 && b.ToRts({}) == 0;
}

bool Write(Side& a, Side& b, uint64_t value) {
  for (uint64_t i = 0; i < 50; ++i) {
    a.buffer.words()[0] = value + i;
    if (a.Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, b, 8) != 0) return false;
    if (a.WaitSend(Milliseconds(60'000)).status != IBV_WC_SUCCESS) return false;
    if (b.buffer.words()[1] != value + i) return false;
  }
  return true;
}

int Main() {
  Side a(SideOptions{.buffer_bytes = 4096}), b(SideOptions{.nic = 1, .buffer_bytes = 4096});
  if (!Connect(a, b) || !Write(a, b, 1000)) return 1;
  std::puts("ready");
  std::fflush(stdout);
  char byte;
  while (read(0, &byte, 1) > 0) {
  }
  return Write(a, b, 2000) ? 0 : 1;
}

}  // namespace
}  // namespace verbena::conformance

int main() { return verbena::conformance::Main(); }
