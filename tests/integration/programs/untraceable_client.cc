// A client that can't be traced any more at some moment, as after a change of its user: its memory
// is out of reach of a daemon without privileges from then on. What it registers afterwards works,
// by a helper; what it registered before fails. Says "ready", and leaves when its input ends.
//   untraceable_client        runs as the daemon's user, and forbids tracing
//   untraceable_client UID    runs as root, and opens its devices as the daemon's user UID: it
//   can't be
//                             traced from the beginning, and all of its memory goes by helpers
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

int Fail(const char* what) {
  std::perror(what);
  return 1;
}

bool Connect(Side& a, Side& b) {
  return a.ToInit() == 0 && b.ToInit() == 0 && a.ToRtr(b.qp->qp_num, b.gid(), {}) == 0 &&
         b.ToRtr(a.qp->qp_num, a.gid(), {}) == 0 && a.ToRts({}) == 0 && b.ToRts({}) == 0;
}

ibv_wc_status Write(Side& a, ibv_mr* from, ibv_mr* to) {
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(to->addr);
  wr.wr.rdma.rkey = to->rkey;
  if (a.Post(wr, {{reinterpret_cast<uint64_t>(from->addr), 8, from->lkey}}) != 0) {
    return IBV_WC_GENERAL_ERR;
  }
  return a.WaitSend(Milliseconds(20'000)).status;
}

void AwaitEndOfInput() {
  std::puts("ready");
  std::fflush(stdout);
  char byte;
  while (read(0, &byte, 1) > 0) {
  }
}

int OfTwoUsers(uid_t daemon_user) {
  if (seteuid(daemon_user) != 0) return Fail("seteuid");
  Side a(SideOptions{.buffer_bytes = 4096}), b(SideOptions{.nic = 1, .buffer_bytes = 4096});
  if (seteuid(0) != 0) return Fail("seteuid back");
  if (!Connect(a, b)) return Fail("connecting");
  a.buffer.words()[0] = 4711;
  if (Write(a, a.mr, b.mr) != IBV_WC_SUCCESS) return Fail("a write");
  if (b.buffer.words()[0] != 4711) return Fail("what was written");
  AwaitEndOfInput();
  return 0;
}

int OfOneUser() {
  Side a(SideOptions{.buffer_bytes = 4096}), b(SideOptions{.nic = 1, .buffer_bytes = 4096});
  if (!Connect(a, b)) return Fail("connecting");
  if (Write(a, a.mr, b.mr) != IBV_WC_SUCCESS) return Fail("a write before");
  if (prctl(PR_SET_DUMPABLE, 0) != 0) return Fail("PR_SET_DUMPABLE");
  Memory from(4096), to(4096);
  ibv_mr* from_mr = ibv_reg_mr(a.pd, from.data(), from.size(), kAllAccess);
  if (from_mr == nullptr) return Fail("ibv_reg_mr");
  ibv_mr* to_mr = ibv_reg_mr(b.pd, to.data(), to.size(), kAllAccess);
  if (to_mr == nullptr) return Fail("ibv_reg_mr of the other");
  from.words()[0] = 4711;
  const ibv_wc_status now = Write(a, from_mr, to_mr);
  if (now != IBV_WC_SUCCESS || to.words()[0] != 4711) {
    std::fprintf(stderr, "a write of what was registered after: %s\n", ibv_wc_status_str(now));
    return 1;
  }
  AwaitEndOfInput();
  const ibv_wc_status old = Write(a, from_mr, b.mr);
  std::printf("a write to what was registered before: %s\n", ibv_wc_status_str(old));
  if (ibv_dereg_mr(from_mr) != 0 || ibv_dereg_mr(to_mr) != 0) return Fail("ibv_dereg_mr");
  return old == IBV_WC_REM_OP_ERR ? 0 : 1;
}

}  // namespace
}  // namespace verbena::conformance

int main(int argc, char** argv) {
  if (argc == 1) return verbena::conformance::OfOneUser();
  return verbena::conformance::OfTwoUsers(static_cast<uid_t>(std::atoi(argv[1])));
}
