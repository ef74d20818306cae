// Runs a program under a seccomp filter that refuses io_uring_setup and userfaultfd with EPERM, as
// the default profile of container runtimes does:  refuse_syscalls PROGRAM [ARGUMENT]…
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const auto refuse = static_cast<unsigned>(SECCOMP_RET_ERRNO) | EPERM;
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, refuse),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::perror("seccomp");
    return 2;
  }
  // The filter must be what it says, or the test that uses it proves nothing.
  if (syscall(SYS_io_uring_setup, 1, nullptr) != -1 || errno != EPERM) return 2;
  if (syscall(SYS_userfaultfd, 0) != -1 || errno != EPERM) return 2;
  execvp(argv[1], argv + 1);
  std::perror(argv[1]);
  return 2;
}
