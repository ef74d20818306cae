// Which of the threads that sleep on one object has its descriptors.
//
// They are readable for all until a thread takes what makes them so, and one that had not woken up
// by then would sleep on. So one thread leads: it sleeps on them and takes what comes. The others
// sleep here, until it says that they are to look themselves.
#pragma once

#include <atomic>
#include <cstdint>

namespace verbena::fi {

class Turns {
 public:
  // Changes whenever who sleeps is to look once more: read before the look (AwaitNext).
  uint32_t now() const { return turn_.load(); }

  // Whether this thread leads from now on. It does, too, where the one that led is no more: it was
  // cancelled, or is the parent's, and this is a forked child.
  bool Lead();
  // Of the thread that leads: another one is to do so.
  void Leave();
  // All that sleep look once more.
  void Tell();

  // Until the turn is not `turn` any more, or for `timeout_ms` (negative: for ever). It may return
  // early. False: a signal has come to this thread.
  bool AwaitNext(uint32_t turn, int timeout_ms);

 private:
  std::atomic<int> leader_{0};     // its thread id
  std::atomic<uint32_t> turn_{0};  // futex word
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace verbena::fi
