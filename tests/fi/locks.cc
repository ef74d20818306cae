#include "tests/fi/locks.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

constexpr long kMostSteps = 1'000'000;

// Where the stepping ends: its address is the same in the forked tracer.
extern "C" __attribute__((noinline)) void VerbenaCountedEnd() { asm volatile(""); }

bool IsLocked(const uint8_t* code) {
  size_t i = 0;
  for (; i < 7; ++i) {
    switch (code[i]) {
      case 0xF0:
        return true;
      case 0x66:
      case 0x67:
      case 0x2E:
      case 0x36:
      case 0x3E:
      case 0x26:
      case 0x64:
      case 0x65:
      case 0xF2:
      case 0xF3:
        continue;
    }
    break;
  }
  if (i < 7 && (code[i] & 0xF0) == 0x40) ++i;
  return i < 7 && (code[i] == 0x86 || code[i] == 0x87) && code[i + 1] >> 6 != 3;
}

// The tracer: steps `pid` from its wake-up to VerbenaCountedEnd; the count, or -1.
long Step(pid_t pid, int wake) {
  if (ptrace(PTRACE_ATTACH, pid, nullptr, nullptr) != 0) return -1;
  int status = 0;
  if (waitpid(pid, &status, __WALL) != pid) return -1;
  const char byte = 1;
  if (write(wake, &byte, 1) != 1) return -1;
  const auto end = reinterpret_cast<unsigned long long>(&VerbenaCountedEnd);
  long locked = 0;
  for (long steps = 0; steps < kMostSteps; ++steps) {
    if (ptrace(PTRACE_SINGLESTEP, pid, nullptr, nullptr) != 0) return -1;
    if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status)) return -1;
    user_regs_struct registers;
    if (ptrace(PTRACE_GETREGS, pid, nullptr, &registers) != 0) return -1;
    if (registers.rip == end) {
      ptrace(PTRACE_DETACH, pid, nullptr, nullptr);
      return locked;
    }
    const long word = ptrace(PTRACE_PEEKTEXT, pid, registers.rip, nullptr);
    uint8_t code[9] = {};
    memcpy(code, &word, sizeof(word));
    if (IsLocked(code)) ++locked;
  }
  ptrace(PTRACE_DETACH, pid, nullptr, nullptr);
  return -1;
}

}  // namespace

size_t CountLocks(const std::function<void()>& work) {
  int go[2], wake[2], result[2];
  Expect(pipe(go) == 0 && pipe(wake) == 0 && pipe(result) == 0, "pipe");
  const pid_t self = getpid();
  const pid_t tracer = fork();
  if (tracer == 0) {
    BeAnother();
    char byte = 0;
    if (read(go[0], &byte, 1) != 1) _exit(1);  // PR_SET_PTRACER has been called
    const long count = Step(self, wake[1]);
    const ssize_t written = write(result[1], &count, sizeof(count));
    _exit(written == sizeof(count) ? 0 : 1);
  }
  prctl(PR_SET_PTRACER, tracer, 0, 0, 0);
  // The C library leaves LOCK prefixes out as long as a process has one thread.
  int held[2];
  Expect(pipe(held) == 0, "pipe");
  std::thread second([&] {
    char none;
    while (read(held[0], &none, 1) > 0) {
    }
  });
  char byte = 0;
  Expect(write(go[1], &byte, 1) == 1, "write");
  Expect(read(wake[0], &byte, 1) == 1, "the tracer is gone");  // it has attached
  work();
  VerbenaCountedEnd();
  long count = -1;
  Expect(read(result[0], &count, sizeof(count)) == sizeof(count), "the tracer is gone");
  waitpid(tracer, nullptr, 0);
  close(held[1]);
  second.join();
  close(held[0]);
  for (const int fd : {go[0], go[1], wake[0], wake[1], result[0], result[1]}) close(fd);
  if (count < 0) DoesNotApply("this machine does not let a process be stepped");
  return static_cast<size_t>(count);
}

}  // namespace verbena::fi_test
