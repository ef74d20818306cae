#include "tests/fi/suite.h"

#include <dirent.h>
#include <poll.h>
#include <rdma/fi_errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>

// LeakSanitizer's, where it is built in: whether something is leaked, which it then reports.
extern "C" int __lsan_do_recoverable_leak_check() __attribute__((weak));

namespace verbena::fi_test {
namespace {

Target g_asked;
int g_patience = 1;
std::string g_note;
int g_answers = -1;  // where the process of a case answers
std::vector<fid*> g_busy;

std::string Format(const char* format, va_list arguments) {
  char text[600];
  vsnprintf(text, sizeof(text), format, arguments);
  return text;
}

long NowMs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

// Says so at once and ends: what a provider does to objects that it has broken is no answer.
void AnswerAndEnd(const Answer& answer) {
  const std::string text = std::to_string(static_cast<int>(answer.verdict)) + answer.reason;
  const ssize_t written = write(g_answers, text.data(), text.size());
  _exit(written > 0 ? 0 : 1);
}

// Segments that a crashed user of shm leaves behind would fill /dev/shm in the end.
void RemoveSegmentsOf(pid_t pid) {
  DIR* directory = opendir("/dev/shm");
  if (directory == nullptr) return;
  const std::string own = std::to_string(pid);
  while (const dirent* entry = readdir(directory)) {
    if (strstr(entry->d_name, own.c_str()) != nullptr) {
      unlink((std::string("/dev/shm/") + entry->d_name).c_str());
    }
  }
  closedir(directory);
}

// Whether something is leaked of what could be closed.
bool LeavesLeaks() {
  if (__lsan_do_recoverable_leak_check == nullptr) return false;
  while (std::erase_if(g_busy, [](fid* one) { return fi_close(one) == 0; }) != 0) {
  }
  return __lsan_do_recoverable_leak_check() != 0;
}

[[noreturn]] void Leave(const Answer& answer) {
  if (g_answers >= 0) AnswerAndEnd(answer);
  throw answer;
}

void EndGroup(pid_t pid) {
  kill(-pid, SIGKILL);
  while (waitpid(-pid, nullptr, 0) > 0) {
  }
}

}  // namespace

#define VERBENA_THROW(verdict)                        \
  va_list arguments;                                  \
  va_start(arguments, format);                        \
  const std::string text = Format(format, arguments); \
  va_end(arguments);                                  \
  Leave({verdict, text})

void Fail(const char* format, ...) { VERBENA_THROW(Verdict::kNo); }
void Refuse(const char* format, ...) { VERBENA_THROW(Verdict::kRefused); }
void DoesNotApply(const char* format, ...) { VERBENA_THROW(Verdict::kNotApplicable); }
void Expect(bool condition, const char* format, ...) {
  if (condition) return;
  VERBENA_THROW(Verdict::kNo);
}

void Note(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_note += (g_note.empty() ? "" : "; ") + Format(format, arguments);
  va_end(arguments);
}

std::string NameOf(long error) {
  static const struct {
    int value;
    const char* name;
  } kNames[] = {{FI_EAGAIN, "EAGAIN"},
                {FI_EINVAL, "EINVAL"},
                {FI_ENOSYS, "ENOSYS"},
                {FI_ENODATA, "ENODATA"},
                {FI_EOPNOTSUPP, "EOPNOTSUPP"},
                {FI_ENOMEM, "ENOMEM"},
                {FI_EBUSY, "EBUSY"},
                {FI_EIO, "EIO"},
                {FI_ENOENT, "ENOENT"},
                {FI_EACCES, "EACCES"},
                {FI_EPERM, "EPERM"},
                {FI_EMSGSIZE, "EMSGSIZE"},
                {FI_ECONNREFUSED, "ECONNREFUSED"},
                {FI_ECONNABORTED, "ECONNABORTED"},
                {FI_ECONNRESET, "ECONNRESET"},
                {FI_ENOTCONN, "ENOTCONN"},
                {FI_ESHUTDOWN, "ESHUTDOWN"},
                {FI_ETIMEDOUT, "ETIMEDOUT"},
                {FI_EADDRNOTAVAIL, "EADDRNOTAVAIL"},
                {FI_EKEYREJECTED, "EKEYREJECTED"},
                {FI_ECANCELED, "ECANCELED"},
                {FI_EREMOTEIO, "EREMOTEIO"},
                {FI_ENOPROTOOPT, "ENOPROTOOPT"},
                {FI_EOVERFLOW, "EOVERFLOW"},
                {FI_EOPBADSTATE, "EOPBADSTATE"},
                {FI_EAVAIL, "EAVAIL"},
                {FI_EBADFLAGS, "EBADFLAGS"},
                {FI_ENOEQ, "ENOEQ"},
                {FI_EDOMAIN, "EDOMAIN"},
                {FI_ENOCQ, "ENOCQ"},
                {FI_ETRUNC, "ETRUNC"},
                {FI_ENOKEY, "ENOKEY"},
                {FI_ENOAV, "ENOAV"},
                {FI_EOVERRUN, "EOVERRUN"},
                {FI_ENORX, "ENORX"},
                {FI_ETOOSMALL, "ETOOSMALL"},
                {FI_EOTHER, "EOTHER"}};
  if (error == 0) return "success";
  for (const auto& known : kNames) {
    if (known.value == error) return std::string("FI_") + known.name;
    if (known.value == -error) return std::string("-FI_") + known.name;
  }
  return std::to_string(error);
}

void Need(long result, const char* what) {
  if (result >= 0) return;
  const std::string text = std::string(what) + ": " + NameOf(result);
  if (result == -FI_ENOSYS || result == -FI_EOPNOTSUPP || result == -FI_ENODATA ||
      result == -FI_ENOPROTOOPT || result == -FI_EBADFLAGS) {
    Refuse("%s", text.c_str());
  }
  Fail("%s", text.c_str());
}

void ExpectError(long result, long error, const char* what) {
  Expect(result == error, "%s: %s, not %s", what, NameOf(result).c_str(), NameOf(error).c_str());
}

std::vector<Case>& Cases() {
  static std::vector<Case> cases;
  return cases;
}

Registration::Registration(std::string name, std::function<void()> run, unsigned endpoints,
                           unsigned limit_s) {
  Cases().push_back({std::move(name), endpoints, std::move(run), limit_s});
}

const EndpointType* FindEndpointType(const std::string& name) {
  for (const EndpointType& known : kEndpointTypes) {
    if (name == known.name) return &known;
  }
  return nullptr;
}

const Target& Asked() { return g_asked; }
void Ask(const Target& target) { g_asked = target; }

void CloseLater(fid* busy) { g_busy.push_back(busy); }

int Patience() { return g_patience; }
void SetPatience(int times) { g_patience = times; }

void BeAnother() {
  close(g_answers);
  g_answers = -1;
}

Answer RunIsolated(const Case& test) {
  int words[2];
  if (pipe(words) != 0) return {Verdict::kNo, "pipe"};
  fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    close(words[0]);
    g_answers = words[1];
    test.run();
    if (LeavesLeaks()) AnswerAndEnd({Verdict::kNo, "memory is leaked"});
    AnswerAndEnd({Verdict::kYes, g_note});
  }
  setpgid(pid, pid);
  close(words[1]);
  std::string said;
  const long limit_s = static_cast<long>(test.limit_s) * g_patience;
  const long end_ms = NowMs() + limit_s * 1000;
  bool in_time = true;
  for (;;) {
    pollfd readable = {words[0], POLLIN, 0};
    const long left_ms = end_ms - NowMs();
    if (left_ms <= 0 || poll(&readable, 1, static_cast<int>(left_ms)) == 0) {
      in_time = false;
      break;
    }
    char buffer[700];
    const ssize_t got = read(words[0], buffer, sizeof(buffer));
    if (got <= 0) break;
    said.append(buffer, got);
    if (!said.empty()) break;
  }
  close(words[0]);
  if (!in_time) {
    EndGroup(pid);
    RemoveSegmentsOf(pid);
    return {Verdict::kHung, "no answer within " + std::to_string(limit_s) + " s"};
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EndGroup(pid);
  RemoveSegmentsOf(pid);
  if (!said.empty()) return {static_cast<Verdict>(said[0] - '0'), said.substr(1)};
  if (WIFSIGNALED(status)) {
    return {Verdict::kCrashed, std::string("killed by signal: ") + strsignal(WTERMSIG(status))};
  }
  return {Verdict::kCrashed,
          "exited " + std::to_string(WEXITSTATUS(status)) + " without an answer"};
}

}  // namespace verbena::fi_test
