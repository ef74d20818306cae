#include "fi_shim/wait.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <new>

#include "core/clock/monotonic_clock.h"
#include "fi_shim/enums.h"
#include "fi_shim/fids.h"

// The version that glibc had before it moved the function: this library loads on older ones, too.
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_join, pthread_join@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask, pthread_sigmask@GLIBC_2.2.5");

namespace verbena::fi {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

int64_t NowNs() { return ReadMonotonicClock().ns; }

void CloseFd(int* fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

int FdError() { return errno == EMFILE || errno == ENFILE ? -FI_EMFILE : -FI_ENOMEM; }

void Write(int fd) {
  const uint64_t one = 1;
  (void)!write(fd, &one, sizeof(one));
}

}  // namespace

Deadline::Deadline(int timeout_ms) {
  if (timeout_ms >= 0) at_ns_ = NowNs() + timeout_ms * kNsPerMs;
}
bool Deadline::HasPassed() const { return at_ns_ >= 0 && NowNs() >= at_ns_; }
int Deadline::RemainingMs() const {
  if (at_ns_ < 0) return -1;
  const int64_t left_ns = at_ns_ - NowNs();
  if (left_ns <= 0) return 0;
  const int64_t left_ms = (left_ns + kNsPerMs - 1) / kNsPerMs;
  return left_ms > INT_MAX ? INT_MAX : static_cast<int>(left_ms);
}

int Waiter::Open(const fi_wait_obj& wanted, fid_wait* set, fid* owner) {
  if (!IsUpTo(wanted, FI_WAIT_POLLFD)) return -FI_EINVAL;
  const fi_wait_obj kind = wanted;
  switch (kind) {
    case FI_WAIT_NONE:
    case FI_WAIT_YIELD:
      kind_ = kind;
      return 0;
    case FI_WAIT_UNSPEC:
    case FI_WAIT_FD:
    case FI_WAIT_MUTEX_COND:
      break;
    case FI_WAIT_SET:
      if (set == nullptr) return -FI_EINVAL;
      break;
    case FI_WAIT_POLLFD:
      // Of a wait set: one fd, which stands for all.
      if (owner->fclass != FI_CLASS_WAIT) return -FI_ENOSYS;
      break;
    default:
      return -FI_EINVAL;
  }
  kind_ = kind;
  process_ = getpid();
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd_ >= 0) bell_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (bell_fd_ < 0) {
    const int error = FdError();
    Close();
    return error;
  }
  int error = AddFd(bell_fd_);
  if (error == 0 && kind == FI_WAIT_MUTEX_COND) error = StartSignaller();
  if (error == 0 && kind == FI_WAIT_SET) {
    auto* joined = reinterpret_cast<WaitSet*>(set);
    client::MutexGuard guard(joined->mutex);
    if (!joined->members.Push(owner)) error = -FI_ENOMEM;
    if (error == 0 && joined->waiter.HasFd()) {
      error = joined->waiter.AddFd(epoll_fd_);
      if (error != 0) joined->members.RemoveAt(joined->members.size() - 1);
    }
    if (error == 0) {
      set_ = joined;
      owner_ = owner;
      joined->users.fetch_add(1);
    }
  }
  if (error != 0) Close();
  return error;
}

void Waiter::Close() {
  if (set_ != nullptr) {
    client::MutexGuard guard(set_->mutex);
    for (size_t i = 0; i < set_->members.size(); ++i) {
      if (set_->members[i] == owner_) set_->members.RemoveAt(i--);
    }
    if (set_->waiter.HasFd()) set_->waiter.RemoveFd(epoll_fd_);
    set_->users.fetch_sub(1);
  }
  set_ = nullptr;
  if (has_signaller_ && !IsForkedCopy()) {
    Write(stop_fd_);
    pthread_join(signaller_, nullptr);
  }
  has_signaller_ = false;
  CloseFd(&stop_fd_);
  CloseFd(&bell_fd_);
  CloseFd(&epoll_fd_);
  kind_ = FI_WAIT_NONE;
}

int Waiter::AddFd(int fd) {
  client::MutexGuard guard(fds_mutex_);
  for (Fd& added : fds_) {
    if (added.fd != fd) continue;
    ++added.times;
    return 0;
  }
  if (!fds_.Push({fd, 1})) return -FI_ENOMEM;
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0) return 0;
  fds_.RemoveAt(fds_.size() - 1);
  return -FI_ENOMEM;
}

bool Waiter::IsForkedCopy() const { return process_ != getpid(); }

void Waiter::RemoveFd(int fd) {
  if (IsForkedCopy()) return;
  client::MutexGuard guard(fds_mutex_);
  for (size_t i = 0; i < fds_.size(); ++i) {
    if (fds_[i].fd != fd || --fds_[i].times != 0) continue;
    fds_.RemoveAt(i);
    const int saved_errno = errno;
    epoll_event unused = {};
    epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, &unused);
    errno = saved_errno;
    return;
  }
}

bool Waiter::IsReady() {
  const int saved_errno = errno;
  epoll_event event;
  const bool is_ready = epoll_wait(epoll_fd_, &event, 1, 0) > 0;
  errno = saved_errno;
  return is_ready;
}

void Waiter::Ring() {
  if (bell_fd_ < 0) return;
  const int saved_errno = errno;
  Write(bell_fd_);
  errno = saved_errno;
}

void Waiter::Quiet() {
  if (bell_fd_ < 0 || IsForkedCopy()) return;
  const int saved_errno = errno;
  uint64_t rung;
  (void)!read(bell_fd_, &rung, sizeof(rung));
  errno = saved_errno;
}

bool Waiter::Sleep(const Deadline& deadline) {
  const int saved_errno = errno;
  epoll_event event;
  const int ready = epoll_wait(epoll_fd_, &event, 1, deadline.RemainingMs());
  const bool is_interrupted = ready < 0 && errno == EINTR;
  errno = saved_errno;
  return !is_interrupted;
}

bool Sleeper::TakeTurn() {
  if (!waiter_->HasFd()) return true;
  if (!leads_) {
    turn_ = waiter_->turns_.now();
    leads_ = waiter_->turns_.Lead();
  }
  if (leads_) waiter_->Quiet();
  return leads_;
}

void Sleeper::OthersLook() {
  if (leads_) waiter_->turns_.Tell();
}

bool Sleeper::Sleep(const Deadline& deadline) {
  if (!waiter_->HasFd()) {
    sched_yield();
    return true;
  }
  if (leads_) return waiter_->Sleep(deadline);
  return waiter_->turns_.AwaitNext(turn_, deadline.RemainingMs());
}

void Sleeper::Leave() {
  if (leads_) waiter_->turns_.Leave();
  leads_ = false;
}

int Waiter::Control(int command, void* arg) {
  if (command != FI_GETWAIT && command != FI_GETWAITOBJ) return -FI_ENOSYS;
  if (arg == nullptr) return -FI_EINVAL;
  if (command == FI_GETWAITOBJ) {
    *static_cast<fi_wait_obj*>(arg) = kind_;
    return 0;
  }
  if (kind_ == FI_WAIT_FD) {
    *static_cast<int*>(arg) = epoll_fd_;
    return 0;
  }
  if (kind_ == FI_WAIT_MUTEX_COND) {
    *static_cast<fi_mutex_cond*>(arg) = {&mutex_, &cond_};
    return 0;
  }
  if (kind_ == FI_WAIT_POLLFD) {
    auto* out = static_cast<fi_wait_pollfd*>(arg);
    const bool fits = out->nfds >= 1 && out->fd != nullptr;
    out->change_index = 1;  // it never changes
    out->nfds = 1;
    if (!fits) return -FI_ETOOSMALL;
    out->fd[0] = {epoll_fd_, POLLIN, 0};
    return 0;
  }
  return -FI_ENODATA;
}

int Waiter::StartSignaller() {
  stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd_ < 0) return FdError();
  // The program's signals are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  has_signaller_ = pthread_create(&signaller_, nullptr, Signal, this) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return has_signaller_ ? 0 : -FI_ENOMEM;
}

void* Waiter::Signal(void* self) {
  auto* waiter = static_cast<Waiter*>(self);
  const int watch = epoll_create1(EPOLL_CLOEXEC);
  if (watch < 0) return nullptr;
  epoll_event event = {};
  // By edges: what the program leaves unread is not told again and again.
  event.events = EPOLLIN | EPOLLET;
  event.data.fd = waiter->epoll_fd_;
  bool runs = epoll_ctl(watch, EPOLL_CTL_ADD, waiter->epoll_fd_, &event) == 0;
  event.events = EPOLLIN;
  event.data.fd = waiter->stop_fd_;
  runs = runs && epoll_ctl(watch, EPOLL_CTL_ADD, waiter->stop_fd_, &event) == 0;
  while (runs) {
    const int ready = epoll_wait(watch, &event, 1, -1);
    if (ready < 0 && errno != EINTR) break;
    if (ready <= 0) continue;
    if (event.data.fd == waiter->stop_fd_) break;
    // Under the mutex: who has looked (fi_trywait) and is about to wait holds it, and misses
    // nothing.
    client::MutexGuard guard(waiter->mutex_);
    pthread_cond_broadcast(&waiter->cond_);
  }
  close(watch);
  return nullptr;
}

// --- Wait sets
// -------------------------------------------------------------------------------------

namespace {

int TryWaitMembers(WaitSet* set) {
  client::MutexGuard guard(set->mutex);
  for (fid* member : set->members) {
    const int result = TryWait(member);
    if (result != 0) return result;
  }
  return 0;
}

int TryWaitSet(WaitSet* set) {
  Sleeper sleeper(&set->waiter);
  sleeper.TakeTurn();
  const int result = TryWaitMembers(set);
  sleeper.Leave();
  return result;
}

int SleepOn(WaitSet* set, Sleeper* sleeper, const Deadline& deadline) {
  for (;;) {
    // Looking takes what wakes: that is for who leads. Whatever there is ends his call, and then
    // another one looks.
    const int result = sleeper->TakeTurn() ? TryWaitMembers(set) : 0;
    if (result == -FI_EAGAIN) return 0;
    if (result != 0) return result;
    if (deadline.HasPassed()) return -FI_ETIMEDOUT;
    if (!sleeper->Sleep(deadline)) return -FI_EINTR;
  }
}

int WaitFor(fid_wait* base, int timeout_ms) {
  auto* set = reinterpret_cast<WaitSet*>(base);
  Sleeper sleeper(&set->waiter);
  const int result = SleepOn(set, &sleeper, Deadline(timeout_ms));
  sleeper.Leave();
  return result;
}

int CloseWaitSet(fid* base) {
  auto* set = reinterpret_cast<WaitSet*>(base);
  if (set->users.load() != 0) return -FI_EBUSY;
  set->fabric->users.fetch_sub(1);
  delete set;
  return 0;
}

int ControlWaitSet(fid* base, int command, void* arg) {
  return reinterpret_cast<WaitSet*>(base)->waiter.Control(command, arg);
}

fi_ops g_set_fid_ops = FidOps(CloseWaitSet, NoBind, ControlWaitSet);
fi_ops_wait g_set_ops = {sizeof(fi_ops_wait), WaitFor};

}  // namespace

int OpenWaitSet(fid_fabric* base, fi_wait_attr* attr, fid_wait** out) {
  if (attr == nullptr || attr->flags != 0) return -FI_EINVAL;
  const auto kind = NumberOf(attr->wait_obj);
  if (kind == FI_WAIT_NONE || kind == FI_WAIT_SET) return -FI_EINVAL;
  auto* set = new (std::nothrow) WaitSet();
  if (set == nullptr) return -FI_ENOMEM;
  set->fid.fid = {FI_CLASS_WAIT, nullptr, &g_set_fid_ops};
  set->fid.ops = &g_set_ops;
  set->fabric = reinterpret_cast<Fabric*>(base);
  const int error = set->waiter.Open(attr->wait_obj, nullptr, &set->fid.fid);
  if (error != 0) {
    delete set;
    return error;
  }
  set->fabric->users.fetch_add(1);
  *out = &set->fid;
  return 0;
}

int TryWait(fid* object) {
  switch (object->fclass) {
    case FI_CLASS_CQ:
      return TryWait(reinterpret_cast<Cq*>(object));
    case FI_CLASS_CNTR:
      return TryWait(reinterpret_cast<Cntr*>(object));
    case FI_CLASS_EQ:
      return TryWait(reinterpret_cast<Eq*>(object));
    case FI_CLASS_WAIT:
      return TryWaitSet(reinterpret_cast<WaitSet*>(object));
    default:
      return -FI_EINVAL;
  }
}

int TryWaitAll(fid_fabric*, fid** fids, int count) {
  if (count < 0 || (count > 0 && fids == nullptr)) return -FI_EINVAL;
  for (int i = 0; i < count; ++i) {
    const int result = TryWait(fids[i]);
    if (result != 0) return result;
  }
  return 0;
}

}  // namespace verbena::fi
