// A client's process as the copy engine sees it: one record for all sessions of that process.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>

namespace verbena::softnic {

struct DmaOp;

struct TargetProcess {
  pid_t pid = 0;
  // Set when the process is seen to have ended, so that a reused pid is never written to.
  std::atomic<bool> dead{false};

  // Helpers that have owed an answer for so long that nobody else need wait for it. Any thread.
  std::atomic<uint32_t> hanging_helpers{0};

  // The rest belongs to the leader.
  uint32_t sessions = 0;
  // A slow process is one whose memory made a copy hang; its copies run on a worker, one at a time.
  bool slow = false;
  uint32_t charges = 0;  // units busy with it on workers (or deposed leaders)
  uint32_t times_slow = 0;
  uint32_t quick_streak = 0;
  std::deque<DmaOp*> waiting;  // for that worker, in order
};

}  // namespace verbena::softnic
