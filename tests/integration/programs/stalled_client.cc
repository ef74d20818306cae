// A client whose memory answers nobody: its registered pages are taken away and watched by a
// userfaultfd that is never served, so that every access to them waits for ever. Sends them to
// itself, says "ready", and stays until its standard input ends. Exit 77: not allowed here.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

constexpr int kNotAllowed = 77;

// Every later access to `memory` waits. False: this user may not.
bool Stall(Memory& memory) {
  int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  if (fd < 0) return false;
  uffdio_api api = {};
  api.api = UFFD_API;
  if (ioctl(fd, UFFDIO_API, &api) != 0) return false;
  if (madvise(memory.data(), memory.size(), MADV_DONTNEED) != 0) return false;
  uffdio_register range = {};
  range.range.start = memory.address();
  range.range.len = memory.size();
  range.mode = UFFDIO_REGISTER_MODE_MISSING;
  return ioctl(fd, UFFDIO_REGISTER, &range) == 0;
}

bool Connect(Side& a, Side& b) {
  return a.ToInit() == 0 && b.ToInit() == 0 && a.ToRtr(b.qp->qp_num, b.gid(), {}) == 0 &&
         b.ToRtr(a.qp->qp_num, a.gid(), {}) == 0 && a.ToRts({}) == 0 && b.ToRts({}) == 0;
}

int Main() {
  Side a(SideOptions{}), b(SideOptions{.nic = 1});
  if (!Connect(a, b)) return 1;
  if (!Stall(a.buffer)) return kNotAllowed;
  for (uint64_t i = 0; i < 32; ++i) {
    if (a.Rdma(IBV_WR_RDMA_WRITE, i, i * 1024, 1024, b, 0) != 0) return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  char byte;
  while (read(0, &byte, 1) > 0) {
  }
  _exit(0);  // without tidying up: the memory would not answer
}

}  // namespace
}  // namespace verbena::conformance

int main() { return verbena::conformance::Main(); }
