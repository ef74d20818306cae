#include "tools/cli/probes.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>

#include "core/client/assist.h"
#include "core/client/instance.h"
#include "tools/cli/paths.h"
#include "tools/cli/probes_internal.h"
#include "tools/cli/table.h"

namespace verbena::cli {
namespace {

constexpr int kKernelMajor = 5;
constexpr int kKernelMinor = 9;  // close_range; pidfd_open and F_SEAL_FUTURE_WRITE are older
constexpr rlim_t kWantedFds = 1024;

// Runs `probe` in a child process and returns its result, so that what it changes dies with it.
int InChild(const std::function<int()>& probe) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno;
  const pid_t child = ::fork();
  if (child == 0) {
    const int result = probe();
    const bool sent = ::write(ends[1], &result, sizeof result) == sizeof result;
    ::_exit(sent ? 0 : 1);
  }
  ::close(ends[1]);
  int result = child < 0 ? errno : ECHILD;
  if (child > 0) {
    if (::read(ends[0], &result, sizeof result) != sizeof result) result = ECHILD;
    ::waitpid(child, nullptr, 0);
  }
  ::close(ends[0]);
  return result;
}

// What a daemon does to a client: a process that is no ancestor reads and writes our memory.
int CopyFromUnrelated() {
  static uint64_t word = 0x76657262656e61;
  const pid_t target = ::getpid();
  return InChild([target] {
    uint64_t copy = 0;
    iovec local = {&copy, sizeof copy};
    iovec remote = {&word, sizeof word};
    if (::process_vm_readv(target, &local, 1, &remote, 1, 0) != sizeof copy) return errno;
    if (::process_vm_writev(target, &local, 1, &remote, 1, 0) != sizeof copy) return errno;
    return 0;
  });
}

Finding Kernel() {
  utsname name;
  ::uname(&name);
  int major = 0;
  int minor = 0;
  const bool parsed = std::sscanf(name.release, "%d.%d", &major, &minor) == 2;
  const bool recent =
      parsed && (major > kKernelMajor || (major == kKernelMajor && minor >= kKernelMinor));
  return {"kernel",
          "Kernel",
          recent ? Verdict::kOk : Verdict::kMissing,
          std::string(name.sysname) + " " + name.release,
          recent ? "" : "Verbena needs Linux 5.9 or newer (close_range, pidfd, memfd seals).",
          recent ? "" : "Boot a newer kernel."};
}

Finding Memfd() {
  Finding finding = {"memfd", "Sealed shared memory (memfd)", Verdict::kOk, "works", "", ""};
  const int fd =
      static_cast<int>(::memfd_create("verbena-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Enlarging a file beyond `ulimit -f` is a signal, if that is not ignored.
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  const bool sealed = fd >= 0 && (::ftruncate(fd, 4096) == 0 || errno == EFBIG) &&
                      ::fcntl(fd, F_ADD_SEALS,
                              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0;
  const int error = errno;
  ::signal(SIGXFSZ, before);
  if (!sealed) {
    finding.verdict = Verdict::kMissing;
    finding.found = std::string("refused: ") + strerror(error);
    finding.effect = "Queues between programs and the NIC cannot be shared; nothing works.";
    finding.fix = "Allow memfd_create and fcntl(F_ADD_SEALS) in the container's seccomp profile.";
  }
  if (fd >= 0) ::close(fd);
  return finding;
}

// Queues of a session are in files of memory of this size (ArenaLimits in softnic/control/arena.h).
constexpr rlim_t kArenaBytes = 64 << 20;

Finding FileSize() {
  Finding finding = {"file_size", "Size of files (ulimit -f)", Verdict::kOk, "unlimited", "", ""};
  rlimit limit = {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return finding;
  finding.found = "at most " + HumanBytes(limit.rlim_max);
  finding.fix = "ulimit -H -f unlimited, as whoever sets it";
  if (limit.rlim_max < kArenaBytes) {
    finding.verdict = Verdict::kMissing;
    finding.effect = "The NIC cannot make the shared memory of queues; programs cannot open it.";
  } else {
    finding.verdict = Verdict::kLimited;
    finding.effect =
        "Memory cannot be mapped: --dma=mapped fails, --dma=auto copies by system calls.";
  }
  return finding;
}

Finding ProcessVm() {
  Finding finding = {
      "process_vm", "Copy between own processes (process_vm_readv)", Verdict::kOk, "works", "", ""};
  int error = CopyFromUnrelated();
  if (error == 0) return finding;
  const std::string yama = ReadText("/proc/sys/kernel/yama/ptrace_scope");
  if (::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) == 0) {
    error = CopyFromUnrelated();
    ::prctl(PR_SET_PTRACER, 0, 0, 0, 0);
    if (error == 0) {
      finding.found = "works once a program names its reader (Yama ptrace_scope " + Trim(yama) +
                      "), which Verbena's library does";
      return finding;
    }
  }
  const bool has_helpers = client::TryHelper() == 0;
  finding.verdict = has_helpers ? Verdict::kLimited : Verdict::kMissing;
  finding.found = std::string("refused: ") + strerror(error) +
                  (yama.empty() ? "" : ", Yama ptrace_scope " + Trim(yama));
  finding.effect = has_helpers
                       ? "Helpers in the programs copy for the NIC (assisted), which is slower."
                       : "The NIC cannot reach programs' buffers.";
  finding.fix = yama.empty() || Trim(yama) < "2"
                    ? "Allow process_vm_readv and process_vm_writev in the container's seccomp "
                      "profile (Docker does since 19.03 on kernels from 4.8)."
                    : "sudo sysctl kernel.yama.ptrace_scope=1";
  return finding;
}

// Only where the kernel does not copy between processes, or a user asks for it.
Finding Helpers() {
  Finding finding = {
      "assisted", "Copy by a helper in the program (clone)", Verdict::kOk, "works", "", ""};
  const int error = client::TryHelper();
  if (error == 0) return finding;
  finding.verdict = Verdict::kLimited;
  finding.found = std::string("refused: ") + strerror(error);
  finding.effect = "--dma=assisted fails; where process_vm_readv is refused, too, nothing works.";
  finding.fix =
      "Allow clone(CLONE_VM), close_range, pidfd_open and pidfd_send_signal in the "
      "container's seccomp profile, and files of 68 KB (ulimit -H -f).";
  return finding;
}

Finding IoUring() {
  Finding finding = {
      "io_uring", "io_uring", Verdict::kOk, "works; used with --set net-io=uring only", "", ""};
  io_uring_params params = {};
  // As young as what the NIC's receives need; without it there is no such flag.
  params.flags = IORING_SETUP_SINGLE_ISSUER;
  const int fd = static_cast<int>(::syscall(SYS_io_uring_setup, 2, &params));
  if (fd >= 0) {
    ::close(fd);
    return finding;
  }
  const int error = errno;
  finding.verdict = Verdict::kLimited;
  finding.effect = "Only --set net-io=uring needs it; epoll is the default.";
  if (error == EINVAL || error == ENOSYS) {
    finding.found = "this kernel's is too old, or missing";
    finding.fix = "Not needed. Linux 6.0 has what Verbena would use.";
    return finding;
  }
  finding.found = std::string("refused: ") + strerror(error);
  const std::string disabled = Trim(ReadText("/proc/sys/kernel/io_uring_disabled"));
  finding.fix = disabled == "1" || disabled == "2"
                    ? "sudo sysctl kernel.io_uring_disabled=0"
                    : "Not needed. A container's seccomp profile can allow io_uring_setup, "
                      "io_uring_enter and io_uring_register.";
  return finding;
}

Finding Userfaultfd() {
  const int fd =
      static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
  const std::string found = fd >= 0 ? "works" : std::string("refused: ") + strerror(errno);
  if (fd >= 0) ::close(fd);
  return {"userfaultfd", "userfaultfd", Verdict::kOk, found + "; Verbena does not use it", "", ""};
}

Finding RealTime() {
  const int error = InChild([] {
    const sched_param param = {.sched_priority = 1};
    return ::sched_setscheduler(0, SCHED_FIFO, &param) == 0 ? 0 : errno;
  });
  Finding finding = {"sched_fifo", "Real-time scheduling (SCHED_FIFO)",
                     Verdict::kOk, "allowed, and not used",
                     "",           ""};
  if (error != 0) {
    finding.verdict = Verdict::kLimited;
    finding.found = std::string("refused: ") + strerror(error);
    finding.effect = "Nothing: verbenad runs with normal scheduling.";
    finding.fix = "Not needed.";
  }
  return finding;
}

std::string LimitText(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
}

Finding OpenFiles() {
  rlimit limit;
  ::getrlimit(RLIMIT_NOFILE, &limit);
  Finding finding = {
      "nofile",     "Open files (ulimit -n)",
      Verdict::kOk, LimitText(limit.rlim_cur) + ", at most " + LimitText(limit.rlim_max),
      "",           ""};
  if (limit.rlim_max < kWantedFds) {
    finding.verdict = Verdict::kLimited;
    finding.effect = "The NIC runs out of files at about " + std::to_string(limit.rlim_max / 6) +
                     " programs at once.";
    finding.fix = "ulimit -Hn 4096, or docker run --ulimit nofile=4096:4096";
  }
  return finding;
}

Finding LockedMemory() {
  rlimit limit;
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string size =
      limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur / 1024) + " KB";
  return {"memlock",    "Locked memory (ulimit -l)",
          Verdict::kOk, size + "; Verbena locks none, any amount can be registered",
          "",           ""};
}

Finding Cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  std::string found = std::to_string(count);
  const int quota = CpusOfQuota(ReadText("/sys/fs/cgroup/cpu.max"));
  if (quota > 0 && quota < count) {
    found += ", of which the container may use the time of " + std::to_string(quota);
    count = quota;
  }
  Finding finding = {"cpus", "CPUs", Verdict::kOk, found, "", ""};
  if (count < 3) {
    finding.verdict = Verdict::kLimited;
    finding.effect =
        "Two polling programs leave no CPU to the NIC: some microseconds per message "
        "instead of fractions of one.";
    finding.fix = "Not needed. Latency is best with one CPU more than polling programs.";
  }
  return finding;
}

Finding InstanceFiles() {
  const std::string directory = client::InstanceDirectory(true);
  if (!directory.empty()) {
    return {"directory", "Instance directory", Verdict::kOk, directory, "", ""};
  }
  return {"directory",
          "Instance directory",
          Verdict::kMissing,
          std::string("cannot be made: ") + strerror(errno),
          "No instance can be started.",
          "Make /tmp writable, or set VERBENA_INSTANCE to a directory of your own (mode 0700)."};
}

Finding Libraries() {
  std::string directory;
  std::string error;
  if (!LibraryDirectory(&directory, &error)) {
    return {"libraries", "Verbena's libraries",  Verdict::kMissing,
            error,       "`run` does not work.", "Run tools/stage, or unpack the tarball again."};
  }
  const std::string daemon = client::DaemonPath();
  if (daemon.empty()) {
    return {"libraries",
            "Verbena's libraries",
            Verdict::kMissing,
            "verbenad is missing",
            "No instance can be started.",
            "Run tools/stage, or unpack the tarball again."};
  }
  return {"libraries", "Verbena's libraries", Verdict::kOk, directory + ", daemon " + daemon, "",
          ""};
}

}  // namespace

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kLimited:
      return "limited";
    case Verdict::kMissing:
      return "missing";
  }
  return "?";
}

int CpusOfQuota(const std::string& cpu_max) {
  long long quota_us = 0;
  long long period_us = 0;
  if (std::sscanf(cpu_max.c_str(), "%lld %lld", &quota_us, &period_us) != 2 || quota_us <= 0 ||
      period_us <= 0) {
    return 0;
  }
  return static_cast<int>((quota_us + period_us - 1) / period_us);
}

std::vector<Finding> RunProbes() {
  return {Kernel(),      Libraries(),   InstanceFiles(), Memfd(),      FileSize(),  ProcessVm(),
          Helpers(),     IoUring(),     RealTime(),      Cpus(),       OpenFiles(), LockedMemory(),
          SharedMount(), Userfaultfd(), RocePort(),      RealDevices()};
}

}  // namespace verbena::cli
