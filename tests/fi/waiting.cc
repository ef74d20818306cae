#include "tests/fi/waiting.h"

#include <poll.h>
#include <sched.h>

#include <fstream>
#include <string>

namespace verbena::fi_test {

void OneMessage(Pair& pair, Memory& out, Memory& in) {
  Receive(pair.b(), in, 1);
  Send(pair.a(), out, 2);
}

Wish Waiting(fi_wait_obj wait) {
  Wish wish;
  wish.wait = wait;
  return wish;
}

bool IsReadable(int fd, int limit_ms) {
  pollfd readable = {fd, POLLIN, 0};
  return poll(&readable, 1, limit_ms) == 1;
}

void AwaitSleepOf(int thread) {
  constexpr int kLimitMs = 300;
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/stat";
  const long end_ms = NowMs() + kLimitMs;
  for (char state = 'R'; state != 'S' && NowMs() < end_ms; sched_yield()) {
    std::ifstream stat(path);
    std::string text;
    std::getline(stat, text);
    const size_t name_end = text.rfind(") ");
    if (name_end != std::string::npos) state = text[name_end + 2];
  }
}

void MakeError(Pair& pair) {
  Memory out(pair.a(), 64), target(pair.b(), 64, FI_REMOTE_WRITE);
  Need(Post([&] {
         return fi_write(pair.a().ep, out.data(), 64, out.desc(), pair.a().other, target.Remote(),
                         target.key() ^ 0x5A5A, ContextOf(1));
       }),
       "fi_write");
  fi_cq_data_entry entry;
  ssize_t got = 0;
  WaitUntil([&] { return (got = fi_cq_read(pair.a().tx_cq, &entry, 1)) != -FI_EAGAIN; });
  Expect(got == -FI_EAVAIL, "a write by a wrong key: %s",
         got == 1 ? "success" : NameOf(got).c_str());
}

}  // namespace verbena::fi_test
