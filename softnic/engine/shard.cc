#include "softnic/engine/shard.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/check.h"
#include "core/clock/monotonic_clock.h"
#include "softnic/engine/wakeup_cost.h"

namespace verbena::softnic {

namespace {

// Work per turn: enough to batch, little enough that whoever rings next waits tens of microseconds.
constexpr uint32_t kPdusPerTurn = 64;
constexpr uint32_t kPacketsPerTurn = 64;
// While enough copies wait: less than a turn makes of small ones, so that their number falls, but
// nobody who wants none waits for it.
constexpr uint32_t kPdusPerFullTurn = 16;
// A part of a large message goes out, or is acknowledged, while its peer is at the one before it.
constexpr uint64_t kDmaBytesPerTurn = 64 * 1024;
constexpr size_t kClosuresPerTurn = 16;
constexpr Duration kParkedPollInterval = Microseconds(20);
constexpr Duration kFlushBackoffMin = Microseconds(100);
constexpr Duration kFlushBackoffMax = Milliseconds(10);

}  // namespace

Shard::Shard(Device* device, ProcessDma* dma, CopyCrew* crew)
    : device_(device), dma_(dma), crew_(crew) {}

Shard::~Shard() {
  if (epoll_ >= 0) close(epoll_);
  if (wake_event_ >= 0) close(wake_event_);
  if (timer_ >= 0) close(timer_);
}

bool Shard::Open() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (epoll_ < 0 || wake_event_ < 0 || timer_ < 0) return false;
  // Edge-triggered: each write wakes once and nobody has to read the counter back.
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLET;
  event.data.ptr = &timer_;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, timer_, &event) != 0) return false;
  event.data.ptr = nullptr;
  return epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_event_, &event) == 0;
}

void Shard::Start() {
  const Duration wakeup_cost = MeasureWakeupCost();
  spin_times_ = SpinTimes::ForWakeup(wakeup_cost);
  contention_ = CpuContention(wakeup_cost);
  yield_policy_ = YieldPolicy(wakeup_cost);
  crew_->Start([this](CopyThread& me) { Lead(me); },
               [this] {
                 attention_.store(true, std::memory_order_seq_cst);
                 uint64_t one = 1;
                 (void)!write(wake_event_, &one, sizeof(one));
               });
}

bool Shard::Stop(int wait_ms) { return crew_->Stop(wait_ms); }

void Shard::Post(std::function<void()> closure) {
  mailbox_.Post(std::move(closure));
  // Pairs with the fence in Sleep: either the leader sees the closure or this sees it asleep.
  if (!is_asleep_.load(std::memory_order_seq_cst)) return;
  uint64_t one = 1;
  (void)!write(wake_event_, &one, sizeof(one));
}

ShardCounters Shard::counters() const {
  ShardCounters c;
  c.turns = turns_.load(std::memory_order_relaxed);
  c.sleeps = sleeps_.load(std::memory_order_relaxed);
  c.wakeups = wakeups_.load(std::memory_order_relaxed);
  c.spins = spins_.load(std::memory_order_relaxed);
  c.short_spins = short_spins_.load(std::memory_order_relaxed);
  c.yields = yields_.load(std::memory_order_relaxed);
  c.late_yields = late_yields_.load(std::memory_order_relaxed);
  c.thread_rings = thread_rings_.load(std::memory_order_relaxed);
  c.takeovers = crew_->takeovers();
  return c;
}

void Shard::Probe(SessionId session, uint64_t addr, uint64_t bytes, bool by_helper,
                  std::function<void(int, uint64_t)> done) {
  uint32_t index;
  if (free_probes_.empty()) {
    index = static_cast<uint32_t>(pending_probes_.size());
    pending_probes_.emplace_back();
  } else {
    index = free_probes_.back();
    free_probes_.pop_back();
  }
  pending_probes_[index] = {std::move(done), true};
  dma_->SubmitProbe(session, addr, bytes, index, by_helper);
}

void Shard::RunMailbox() {
  if (closures_.empty()) {
    mailbox_.Take(&closures_);
    std::reverse(closures_.begin(), closures_.end());
  }
  for (size_t i = 0; i < kClosuresPerTurn && !closures_.empty(); ++i) {
    std::function<void()> closure = std::move(closures_.back());
    closures_.pop_back();
    closure();
  }
}

bool Shard::DeliverDma() {
  bool any = false;
  ProcessDma::Done done;
  while (dma_->PollDone(&done)) {
    device_->OnDmaDone(now_, done.cookie, done.status, done.atomic_original, done.fault);
    any = true;
  }
  uint64_t cookie;
  while (dma_->PollFence(&cookie)) {
    device_->OnDmaFence(now_, cookie);
    any = true;
  }
  ProcessDma::ProbeDone probe;
  while (dma_->PollProbe(&probe)) {
    uint32_t index = static_cast<uint32_t>(probe.cookie);
    VERBENA_CHECK(index < pending_probes_.size() && pending_probes_[index].is_used);
    std::function<void(int, uint64_t)> callback = std::move(pending_probes_[index].done);
    pending_probes_[index] = {};
    free_probes_.push_back(index);
    callback(probe.error, probe.word);
    any = true;
  }
  return any;
}

bool Shard::RunTimers() {
  bool any = false;
  Instant due = device_->PollTimeout();
  if (!due.IsNever() && due <= now_) {
    device_->OnTimeout(now_);
    network_looks_.MakeDue();  // for what was delayed on its way
    any = true;
  }
  if (flush_due_ && next_flush_ <= now_) {
    flush_due_ = false;
    device_->FlushEvents();  // asks for another flush if something still does not fit
    if (flush_due_) {
      flush_backoff_ = std::min(std::max(flush_backoff_ * 2, kFlushBackoffMin), kFlushBackoffMax);
    } else {
      flush_backoff_ = {0};
    }
    next_flush_ = now_ + flush_backoff_;
  }
  return any;
}

void Shard::WhenGone(SessionId session, std::function<void()> gone) {
  closing_.push_back({session, std::move(gone)});
}

void Shard::ReapClosed() {
  for (size_t i = 0; i < closing_.size();) {
    SessionId session = closing_[i].session;
    if (!device_->SessionIsGone(session) || !dma_->IsIdle(session)) {
      ++i;
      continue;
    }
    std::function<void()> gone = std::move(closing_[i].gone);
    closing_[i] = std::move(closing_.back());
    closing_.pop_back();
    dma_->DetachSession(session);
    gone();
  }
}

// A look at the network is a system call. What a client has just asked for goes out before it, but
// not in two turns one after the other.
bool Shard::PollNetworks(bool has_rung) {
  uint64_t packets = 0;
  for (const transport::PacketPort* port : networks_) {
    packets += port->counters().sent_packets + port->counters().received_packets;
  }
  network_looks_.OnTurn(now_, packets);
  if (!network_looks_.IsDue(now_, networks_.size())) return false;
  skipped_networks_ = has_rung && !skipped_networks_;
  if (skipped_networks_) return false;
  network_looks_.OnLook(now_);
  return device_->PollPorts(now_, kPacketsPerTurn);
}

// What clients post waits in their queues rather than as copies, which get no faster by being many.
void Shard::RunDevice() {
  device_busy_ = device_->Run(now_, dma_->IsFull() ? kPdusPerFullTurn : kPdusPerTurn);
}

// Copies are made while no frame of the device is on the stack: a thread that hangs in one leaves
// the device whole for its successor. What this turn's inputs led to is copied in this turn.
bool Shard::Turn(CopyThread& me, bool* worked) {
  Count(turns_);
  if (attention_.load(std::memory_order_relaxed)) {
    attention_.store(false, std::memory_order_seq_cst);
    dma_->RequestAttention();
  }
  if (!closures_.empty() || !mailbox_.IsEmpty()) {
    RunMailbox();
    *worked = true;
  }
  if (!suspended_.empty()) EndSuspensions();
  const bool has_rung = PollPorts();
  *worked |= has_rung;
  if (!networks_.empty()) *worked |= PollNetworks(has_rung);
  *worked |= RunTimers();
  RunDevice();
  if (dma_->HasWork()) {
    ProcessDma::Batch batch = dma_->RunBatch(me, kDmaBytesPerTurn);
    if (batch == ProcessDma::Batch::kDeposed) return false;
    *worked |= batch == ProcessDma::Batch::kWorked;
  }
  if (DeliverDma()) {
    *worked = true;
    RunDevice();
  }
  if (!networks_.empty()) device_busy_ |= device_->FlushPorts(now_);
  if (!closing_.empty()) ReapClosed();
  return true;
}

bool Shard::HasWorkLeft() const {
  return device_busy_ || ports_busy_ || dma_->HasWork() || dma_->HasDone() || !closures_.empty() ||
         !mailbox_.IsEmpty();
}

// The clock is read once between two turns, here or by Sleep.
void Shard::Lead(CopyThread& me) {
  run_delay_.OpenOfThisThread();
  contention_.OnNewThread();
  turn_ns_ = kShortTurnNs;  // the crew's, all of them
  now_ = ReadMonotonicClock();
  while (!crew_->IsStopping()) {
    bool worked = false;
    if (!Turn(me, &worked)) return;
    if (HasWorkLeft()) {
      was_idle_ = false;
    } else {
      if (!worked) {
        Count(spins_);
        if (!was_idle_) idle_since_ = now_;
      }
      was_idle_ = !worked;
      const Duration idle = worked ? Duration{0} : now_ - idle_since_;
      const Wait wait = WaitForWork();
      if (idle >= wait.limit) {
        if (wait.shares_cpu) Count(short_spins_);
        Sleep(wait.shares_cpu);
        was_idle_ = false;
        continue;
      }
      if (idle >= wait.quiet) {
        Yield();
      } else {
        __builtin_ia32_pause();
      }
    }
    if (active_.size() < ports_.size() && now_ - last_parked_poll_ >= kParkedPollInterval) {
      PollParked();
    }
    now_ = ReadMonotonicClock();
  }
}

}  // namespace verbena::softnic
