// When the shard sleeps, and how it is woken without losing a doorbell.
#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "softnic/engine/shard.h"
#include "softnic/engine/spin_policy.h"

namespace verbena::softnic {

namespace {

constexpr Duration kRecentlyActive = Milliseconds(1);
// Each costs a store to a cache line of the client's at every sleep and waking.
constexpr size_t kRecentPolledMax = 8;
constexpr int kEventsPerWait = 64;

void Count(std::atomic<uint64_t>& counter) {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace

Duration Shard::SpinLimit(bool* shares_cpu) {
  SpinPolicy policy(static_cast<uint32_t>(sched_getcpu()));
  for (size_t i = 0; i < recent_.size();) {
    ClientPort* port = recent_[i];
    if (now_ - port->last_ring > kRecentlyActive) {
      port->is_recent = false;
      recent_[i] = recent_.back();
      recent_.pop_back();
      continue;
    }
    policy.AddClient(port->area->doorbells.last_cpu.load(std::memory_order_relaxed),
                     port == rang_last_);
    ++i;
  }
  *shares_cpu = policy.SharesCpu();
  return policy.Limit();
}

bool Shard::HasNews() const {
  for (const ClientPort* port : active_) {
    if (HasRung(*port)) return true;
  }
  return !mailbox_.IsEmpty() || attention_.load(std::memory_order_relaxed) || dma_->HasWork();
}

int64_t Shard::SleepTimeoutNs() const {
  Instant due = device_->PollTimeout();
  if (flush_due_) due = std::min(due, next_flush_);
  for (const ClientPort* port : active_) {
    if (port->deferred_commands != 0) due = std::min(due, port->commands_not_before);
  }
  if (due.IsNever()) return -1;
  return std::max<int64_t>((due - now_).ns, 0);
}

// Everyone is told to ring its eventfd; those who do, and those who were active just before, are
// polled again, the others stay parked and cost nothing from then on.
void Shard::Sleep() {
  int64_t timeout_ns = SleepTimeoutNs();
  if (timeout_ns == 0) return;
  is_asleep_.store(true, std::memory_order_seq_cst);
  for (ClientPort* port : active_) Park(port);
  // Full fence between saying "sleeping" and the last look; pairs with each client's between its
  // doorbell and its look at `sleeping`, and with the seq_cst store in Mailbox::Post.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool has_news = HasNews();
  scratch_.swap(active_);
  active_.clear();
  if (!has_news) {
    Count(sleeps_);
    WaitForEvents(timeout_ns, true);
  }
  is_asleep_.store(false, std::memory_order_relaxed);
  now_ = ReadClock();
  if (!has_news) last_parked_poll_ = now_;
  UnparkRecent();
  for (ClientPort* port : scratch_) {
    if (port->is_parked && (HasRung(*port) || port->deferred_commands != 0)) Unpark(port);
  }
}

// A client's answer to what comes next is then seen without a system call on either side.
void Shard::UnparkRecent() {
  size_t count = std::min(recent_.size(), kRecentPolledMax);
  for (size_t i = 0; i < count; ++i) {
    ClientPort* port = recent_[i];
    if (port->is_parked && !port->is_quarantined) Poll(port);
  }
}

void Shard::WaitForEvents(int64_t timeout_ns, bool sleeping) {
  epoll_event events[kEventsPerWait];
  int n = -1;
  if (has_pwait2_) {
    timespec t = {timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
    n = static_cast<int>(syscall(SYS_epoll_pwait2, epoll_, events, kEventsPerWait,
                                 timeout_ns < 0 ? nullptr : &t, nullptr, 0));
    if (n < 0 && (errno == ENOSYS || errno == EPERM)) has_pwait2_ = false;
  }
  if (!has_pwait2_) {
    // Rounded up: a timer is never early, and a zero timeout must not spin through the syscall.
    int64_t ms = timeout_ns < 0 ? -1 : (timeout_ns + 999'999) / 1'000'000;
    n = epoll_wait(epoll_, events, kEventsPerWait, static_cast<int>(std::min<int64_t>(ms, 60'000)));
  }
  if (sleeping && n > 0) Count(wakeups_);
  for (int i = 0; i < n; ++i) {
    auto* port = static_cast<ClientPort*>(events[i].data.ptr);
    if (port != nullptr) Unpark(port);
  }
}

// Parked clients ring while the shard is awake with others.
void Shard::PollParked() {
  last_parked_poll_ = now_;
  WaitForEvents(0, false);
}

}  // namespace verbena::softnic
