// When the shard sleeps, and how it is woken without losing a doorbell.
#include <sched.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "core/clock/monotonic_clock.h"
#include "softnic/engine/shard.h"
#include "softnic/engine/spin_policy.h"

namespace verbena::softnic {

namespace {

constexpr Duration kRecentlyActive = Milliseconds(1);
// Each costs a store to a cache line of the client's at every sleep and waking.
constexpr size_t kRecentPolledMax = 8;
constexpr int kEventsPerWait = 64;
// A client on this CPU is not kept waiting for longer by packets that follow each other.
constexpr Duration kAwakeMax = Milliseconds(1);

}  // namespace

Shard::Wait Shard::WaitForWork() {
  TellCpu();
  SpinPolicy policy(polls_on_cpu_, spin_times_);
  for (size_t i = 0; i < recent_.size();) {
    ClientPort* port = recent_[i];
    if (now_ - port->last_ring > kRecentlyActive) {
      port->is_recent = false;
      recent_[i] = recent_.back();
      recent_.pop_back();
      continue;
    }
    policy.AddClient(port->LastCpu(), port == rang_last_);
    if (port->follows && port == rang_last_) policy.ExpectLastToFollow();
    ++i;
  }
  const bool is_quiet = IsNetworkQuiet();
  if (!is_quiet && now_ - awake_since_ < kAwakeMax && device_->ExpectsPackets()) {
    policy.ExpectPackets();
  }
  if (!is_quiet && contention_.IsContended(now_)) policy.MakeRoom();
  Wait wait = {policy.Limit(), policy.Limit(), policy.SharesCpu()};
  if (yield_policy_.MayYield(now_)) {
    wait.quiet = policy.QuietLimit(!is_quiet);
    wait.limit = std::max(wait.limit, policy.YieldingLimit());
  }
  return wait;
}

// Short turns bring a sleeping thread its CPU soon (docs/adr/0022), but who takes shorter ones than
// the others has to yield many times before it is theirs: a kernel that shares by deadlines lets a
// thread that yields off with the rest of its turn.
void Shard::TakeTurns(uint64_t turn_ns) {
  if (turn_ns_ == turn_ns) return;
  turn_ns_ = turn_ns;
  AskForTurns(turn_ns);
}

void Shard::Yield() {
  TakeTurns(kOrdinaryTurnNs);
  const Instant begin = ReadMonotonicClock();
  sched_yield();
  now_ = ReadMonotonicClock();
  Count(yields_);
  if (yield_policy_.OnYielded(now_, now_ - begin)) Count(late_yields_);
}

void Shard::EndYields(bool shares_cpu) {
  TakeTurns(kShortTurnNs);
  if (!yield_policy_.HasYielded()) return;
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  yield_policy_.OnSleep(now_, static_cast<uint64_t>(usage.ru_nivcsw), shares_cpu);
}

// Those who poll in vain on this CPU then let us have it.
void Shard::TellCpu() {
  const auto cpu = static_cast<uint32_t>(sched_getcpu());
  if (cpu == polls_on_cpu_) return;
  polls_on_cpu_ = cpu;
  for (ClientPort* port : active_) port->status->cpu.store(cpu, std::memory_order_relaxed);
}

bool Shard::HasNews() {
  for (const ClientPort* port : active_) {
    if (port->doorbells.HasRung(port->area->doorbells)) return true;
  }
  if (!networks_.empty() && !device_->PreparePortsToSleep()) return true;
  return !mailbox_.IsEmpty() || attention_.load(std::memory_order_relaxed) || dma_->HasWork();
}

Instant Shard::NextDeadline() const {
  Instant due = device_->PollTimeout();
  if (flush_due_) due = std::min(due, next_flush_);
  for (const ClientPort* port : active_) {
    if (port->deferred_commands != 0) due = std::min(due, port->commands.due());
  }
  if (!suspended_.empty()) due = std::min(due, suspended_.front().until);
  return due;
}

// A timeout of the wait itself would be set up and torn down in each sleep. A timer that is armed
// for an earlier deadline is let fire: deadlines that move on with each message cost one waking now
// and then.
void Shard::ArmTimer(Instant due) {
  if (due >= timer_due_) return;
  itimerspec spec = {};
  spec.it_value = {due.ns / 1'000'000'000, due.ns % 1'000'000'000};
  if (timerfd_settime(timer_, TFD_TIMER_ABSTIME, &spec, nullptr) == 0) timer_due_ = due;
}

// Everyone is told to ring its eventfd; those who do, and those who were active just before, are
// polled again, the others stay parked and cost nothing from then on.
void Shard::Sleep(bool shares_cpu) {
  Instant due = NextDeadline();
  if (due <= now_) {
    now_ = ReadMonotonicClock();
    return;
  }
  EndYields(shares_cpu);
  is_asleep_.store(true, std::memory_order_relaxed);
  for (ClientPort* port : active_) Park(port);
  // Full fence between saying "sleeping" and the last look; pairs with each client's between its
  // doorbell and its look at `sleeping`, and with the one in Mailbox::Post.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool has_news = HasNews();
  scratch_.swap(active_);
  active_.clear();
  if (!has_news) {
    Count(sleeps_);
    slept_on_cpu_ = static_cast<uint32_t>(sched_getcpu());
    ArmTimer(due);
    WaitForEvents(true);
  }
  is_asleep_.store(false, std::memory_order_relaxed);
  now_ = ReadMonotonicClock();
  if (has_news) network_looks_.MakeDue();  // theirs, perhaps
  TellCpu();
  if (!has_news) {
    last_parked_poll_ = awake_since_ = now_;
    LookForRivals();
  }
  UnparkRecent();
  for (ClientPort* port : scratch_) {
    if (port->is_parked &&
        (port->doorbells.HasRung(port->area->doorbells) || port->deferred_commands != 0))
      Unpark(port);
  }
}

// Only between hosts: within one the clients say where they are.
void Shard::LookForRivals() {
  if (IsNetworkQuiet() || !contention_.OnSlept()) return;
  Duration waited;
  if (run_delay_.Read(&waited)) contention_.OnLook(now_, waited);
}

// A client's answer to what comes next is then seen without a system call on either side.
void Shard::UnparkRecent() {
  size_t count = std::min(recent_.size(), kRecentPolledMax);
  for (size_t i = 0; i < count; ++i) {
    ClientPort* port = recent_[i];
    if (port->is_parked && port->MayBePolled()) Poll(port);
  }
}

void Shard::WaitForEvents(bool may_block) {
  epoll_event events[kEventsPerWait];
  int n = epoll_wait(epoll_, events, kEventsPerWait, may_block ? -1 : 0);
  bool was_rung = false;
  for (int i = 0; i < n; ++i) {
    void* what = events[i].data.ptr;
    if (what == &timer_) {
      timer_due_ = Instant::Never();
      continue;
    }
    was_rung = true;
    if (what == &networks_) {
      network_looks_.MakeDue();
      continue;
    }
    if (what != nullptr) Unpark(static_cast<ClientPort*>(what));
  }
  if (may_block && was_rung) Count(wakeups_);
}

bool Shard::AddNetwork(transport::PacketPort* port) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = &networks_;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, port->poll_fd(), &event) != 0) return false;
  networks_.push_back(port);
  return true;
}

void Shard::RemoveNetwork(transport::PacketPort* port) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, port->poll_fd(), nullptr);
  std::erase(networks_, port);
}

// Parked clients ring while the shard is awake with others.
void Shard::PollParked() {
  last_parked_poll_ = now_;
  WaitForEvents(false);
}

}  // namespace verbena::softnic
