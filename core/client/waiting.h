// Bounded waits of the client library: futex words, file descriptors, and the clock behind both.
#pragma once

#include <atomic>
#include <cstdint>

namespace verbena::client {

inline constexpr int kLivenessIntervalMs = 100;  // how often a waiter asks whether the daemon lives

int64_t MonotonicMs();

// Waits until woken, `milliseconds` passed, a signal came, or `word` is not `expected`: the caller
// looks again in each case. False: a signal came. `shared`: the waker is another process.
bool FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, int milliseconds, bool shared);
// Those of this process.
void FutexWakeOne(std::atomic<uint32_t>& word);
void FutexWakeAll(std::atomic<uint32_t>& word);

// Waits until `fd` has input or hangs up; signals do not end the wait. False at `deadline_ms`
// (MonotonicMs) or if the fd is bad.
bool AwaitInput(int fd, int64_t deadline_ms);

}  // namespace verbena::client
