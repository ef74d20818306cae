#include "softnic/dma/crew.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "core/base/check.h"
#include "core/base/sched_attr.h"
#include "core/clock/monotonic_clock.h"

namespace verbena::softnic {

namespace {

// Ticks without any copy after which the watchdog stops ticking: an idle daemon costs nothing, and
// a busy one does not pay for waking the watchdog more than ten times a second.
constexpr uint32_t kQuietTicksMax = 100;
// A leader that looks runnable is only waiting for a CPU; past this many ticks the difference does
// not matter to those who wait.
constexpr uint32_t kRunnableTicksMax = 20;

timespec AfterNs(int64_t ns) {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  t.tv_nsec += ns;
  t.tv_sec += t.tv_nsec / 1'000'000'000;
  t.tv_nsec %= 1'000'000'000;
  return t;
}

}  // namespace

CopyThread::CopyThread(CopyCrew* crew, uint32_t index)
    : crew_(crew), index_(index), copier_(this) {}

void CopyThread::Enter(TargetProcess* target) {
  target_.store(target, std::memory_order_relaxed);
  if (leads_) {
    entered_ = crew_->baton_.Enter();
  } else {
    copy_sequence_.fetch_add(1, std::memory_order_release);
  }
  // Pairs with the leader's seq_cst store to `revoked` and look at the target, and the watchdog's
  // store to its asleep flag and look at the baton.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  crew_->WakeWatchdogIfAsleep();
}

void CopyThread::Leave() {
  if (leads_) {
    // Deposed: from here on the rest of the unit is a worker's business.
    if (!crew_->baton_.Leave(entered_)) leads_ = false;
  } else {
    copy_sequence_.fetch_add(1, std::memory_order_seq_cst);
  }
}

bool CopyThread::ExecuteAsLeader(CopyUnit* unit) {
  VERBENA_CHECK(leads_);
  unit_.store(unit, std::memory_order_relaxed);
  copier_.Execute(*unit);
  unit_.store(nullptr, std::memory_order_relaxed);
  if (leads_) return true;
  crew_->PostFinished(unit);
  return false;
}

CopyCrew::CopyCrew(uint32_t threads_max) : threads_max_(threads_max) {
  VERBENA_CHECK(sem_init(&watchdog_wake_, 0, 0) == 0);
}

CopyCrew::~CopyCrew() {
  VERBENA_CHECK(!is_started_);
  sem_destroy(&watchdog_wake_);
}

CopyThread* CopyCrew::Spawn() {
  if (threads_.size() >= threads_max_) return nullptr;
  auto thread = std::make_unique<CopyThread>(this, static_cast<uint32_t>(threads_.size()));
  CopyThread* me = thread.get();
  // Signals are the control thread's, but for those of the thread's own instructions: blocked, they
  // would end the process whatever their handler does, and Guarded lives by one.
  sigset_t all, old;
  sigfillset(&all);
  for (int own : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, own);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  bool made = true;
  try {
    me->thread_ = std::thread([this, me] { ThreadMain(me); });
  } catch (const std::system_error&) {
    made = false;  // RLIMIT_NPROC: those who hang have to share
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (!made) return nullptr;
  running_threads_ += 1;
  threads_.push_back(std::move(thread));
  return me;
}

void CopyCrew::Start(std::function<void(CopyThread&)> lead, std::function<void()> attention) {
  std::lock_guard lock(mutex_);
  lead_ = std::move(lead);
  attention_ = std::move(attention);
  is_started_ = true;
  CopyThread* first = Spawn();
  VERBENA_CHECK(first != nullptr);
  Name(first);
  Spawn();
}

bool CopyCrew::Stop(int wait_ms) {
  stopping_.store(true, std::memory_order_release);
  std::unique_lock lock(mutex_);
  if (!is_started_) return true;
  spare_wanted_.notify_all();
  sem_post(&watchdog_wake_);
  lock.unlock();
  attention_();
  lock.lock();
  bool all = thread_ended_.wait_for(lock, std::chrono::milliseconds(wait_ms),
                                    [this] { return running_threads_ == 0; });
  if (!all) return false;
  lock.unlock();
  for (auto& thread : threads_) thread->thread_.join();
  is_started_ = false;
  return true;
}

void CopyCrew::ThreadMain(CopyThread* me) {
  me->tid_.store(static_cast<int>(syscall(SYS_gettid)), std::memory_order_release);
  pthread_setname_np(pthread_self(), ("verbena-" + std::to_string(me->index_)).c_str());
  AskForTurns(kShortTurnNs);
  std::unique_lock lock(mutex_);
  while (!IsStopping()) {
    if (std::exchange(me->is_named_, false)) {
      lock.unlock();
      LeadUntilDeposed(me);
      lock.lock();
    } else if (me->assigned_ != nullptr) {
      CopyUnit* unit = me->assigned_;
      me->assigned_ = nullptr;
      lock.unlock();
      RunAssigned(me, unit);
      lock.lock();
    } else if (!has_standby_) {
      has_standby_ = true;
      lock.unlock();
      bool took_over = Watch();
      lock.lock();
      has_standby_ = false;
      if (took_over) {
        Name(me);
        spare_wanted_.notify_all();
        // A new watchdog before anything else: the next client may hang at once.
        bool spare = false;
        for (auto& t : threads_) spare = spare || (t->idle_ && t->assigned_ == nullptr);
        if (!spare) Spawn();
      }
    } else {
      me->idle_ = true;
      spare_wanted_.wait(lock,
                         [&] { return IsStopping() || me->assigned_ != nullptr || !has_standby_; });
      me->idle_ = false;
    }
  }
  running_threads_ -= 1;
  thread_ended_.notify_all();
}

// To lead once. Who is deposed and back before the watchdog gets here must not lead again, though
// no other is named yet.
void CopyCrew::Name(CopyThread* leader) {
  leader->is_named_ = true;
  leader_.store(leader, std::memory_order_release);
}

void CopyCrew::LeadUntilDeposed(CopyThread* me) {
  me->leads_ = true;
  lead_(*me);
  VERBENA_CHECK(!me->leads_ || IsStopping());
  me->leads_ = false;
}

void CopyCrew::RunAssigned(CopyThread* me, CopyUnit* unit) {
  me->unit_.store(unit, std::memory_order_release);
  const Instant start = ReadMonotonicClock();
  me->copier_.Execute(*unit);
  unit->elapsed_ns = (ReadMonotonicClock() - start).ns;
  me->unit_.store(nullptr, std::memory_order_release);
  PostFinished(unit);
}

void CopyCrew::PostFinished(CopyUnit* unit) {
  {
    std::lock_guard lock(mutex_);
    finished_.push_back(unit);
    has_finished_.store(true, std::memory_order_release);
  }
  attention_();
}

void CopyCrew::TakeFinished(std::vector<CopyUnit*>* out) {
  std::lock_guard lock(mutex_);
  out->swap(finished_);
  finished_.clear();
  has_finished_.store(false, std::memory_order_release);
}

bool CopyCrew::Assign(CopyUnit* unit) {
  std::lock_guard lock(mutex_);
  CopyThread* chosen = nullptr;
  uint32_t idle = 0;
  for (auto& thread : threads_) {
    if (!thread->idle_ || thread->assigned_ != nullptr) continue;
    idle += 1;
    chosen = thread.get();
  }
  // While nobody watches, one idle thread is on its way to be the standby: it is not taken.
  if (chosen == nullptr || (!has_standby_ && idle < 2)) chosen = Spawn();
  if (chosen == nullptr) return false;
  chosen->assigned_ = unit;
  spare_wanted_.notify_all();
  return true;
}

TargetProcess* CopyCrew::CurrentTarget(const CopyUnit* unit) const {
  std::lock_guard lock(mutex_);
  for (const auto& thread : threads_) {
    if (thread->unit_.load(std::memory_order_acquire) != unit) continue;
    return thread->target_.load(std::memory_order_seq_cst);
  }
  return nullptr;
}

uint64_t CopyCrew::bytes_moved() const {
  std::lock_guard lock(mutex_);
  uint64_t total = 0;
  for (const auto& thread : threads_) total += thread->copier_.bytes_moved();
  return total;
}

uint64_t CopyCrew::assisted_bytes() const {
  std::lock_guard lock(mutex_);
  uint64_t total = 0;
  for (const auto& thread : threads_) total += thread->copier_.assisted_bytes();
  return total;
}

uint32_t CopyCrew::threads() const {
  std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(threads_.size());
}

void CopyCrew::WakeWatchdogIfAsleep() {
  // The caller's fence pairs with the store in Watch: one of the two sees the other.
  if (!watchdog_asleep_.load(std::memory_order_seq_cst)) return;
  if (watchdog_asleep_.exchange(false, std::memory_order_seq_cst)) sem_post(&watchdog_wake_);
}

bool CopyCrew::IsBlockedInKernel(int tid) const {
  char path[64], text[512];
  snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;  // no /proc here: time alone decides
  ssize_t n = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (n <= 0) return true;
  text[n] = 0;
  const char* name_end = strrchr(text, ')');
  return name_end == nullptr || name_end[1] == 0 || name_end[2] != 'R';
}

bool CopyCrew::WatchWorkers() {
  bool any = false, hung = false;
  {
    std::lock_guard lock(mutex_);
    for (auto& thread : threads_) {
      uint64_t sequence = thread->copy_sequence_.load(std::memory_order_acquire);
      if (sequence % 2 == 1) {
        CopyUnit* unit = thread->unit_.load(std::memory_order_acquire);
        // One that is known to hang needs no more ticks.
        bool is_known = unit == nullptr || unit->stuck.load(std::memory_order_relaxed);
        any = any || !is_known;
        if (!is_known && sequence == thread->seen_sequence_) {
          unit->stuck.store(true, std::memory_order_release);
          hung = true;
        }
      }
      thread->seen_sequence_ = sequence;
    }
  }
  if (hung) attention_();
  return any;
}

bool CopyCrew::Watch() {
  uint64_t last = baton_.Load();
  uint32_t quiet_ticks = 0, runnable_ticks = 0;
  while (!IsStopping()) {
    if (quiet_ticks >= kQuietTicksMax) {
      watchdog_asleep_.store(true, std::memory_order_seq_cst);
      if (baton_.Load() == last) {
        while (sem_wait(&watchdog_wake_) != 0 && errno == EINTR) {
        }
      }
      watchdog_asleep_.store(false, std::memory_order_seq_cst);
      quiet_ticks = 0;
    }
    timespec until = AfterNs(kTickNs);
    while (sem_clockwait(&watchdog_wake_, CLOCK_MONOTONIC, &until) != 0 && errno == EINTR) {
    }
    if (IsStopping()) break;
    uint64_t word = baton_.Load();
    bool workers_copy = WatchWorkers();
    bool same = word == last;
    last = word;
    if (!same || word % 2 == 0) {
      runnable_ticks = 0;
      quiet_ticks = same && !workers_copy ? quiet_ticks + 1 : 0;
      continue;
    }
    quiet_ticks = 0;
    // The leader has been in one copy for a whole tick.
    int tid = leader_.load(std::memory_order_acquire)->tid_.load(std::memory_order_acquire);
    if (++runnable_ticks < kRunnableTicksMax && !IsBlockedInKernel(tid)) continue;
    if (!baton_.Depose(word)) continue;
    takeovers_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace verbena::softnic
