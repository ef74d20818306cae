// Runs a program under a seccomp filter that refuses io_uring_setup and userfaultfd with EPERM, as
// the default profile of container runtimes does; with --tracing also what reads or writes other
// processes:  refuse_syscalls [--tracing] PROGRAM [ARGUMENT]…
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

int main(int argc, char** argv) {
  std::vector<long> refused = {SYS_io_uring_setup, SYS_userfaultfd};
  if (argc > 1 && std::strcmp(argv[1], "--tracing") == 0) {
    refused.insert(refused.end(), {SYS_process_vm_readv, SYS_process_vm_writev, SYS_ptrace});
    ++argv;
    --argc;
  }
  if (argc < 2) return 2;
  std::vector<sock_filter> filter = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (long number : refused) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, static_cast<unsigned>(SECCOMP_RET_ERRNO) | EPERM));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::perror("seccomp");
    return 2;
  }
  // The filter must be what it says, or the test that uses it proves nothing.
  for (long number : refused) {
    if (syscall(number, 0, nullptr, 0, nullptr, 0, 0) != -1 || errno != EPERM) return 2;
  }
  execvp(argv[1], argv + 1);
  std::perror(argv[1]);
  return 2;
}
