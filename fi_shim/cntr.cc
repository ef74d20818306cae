// fi_cntr: two numbers, and who waits for them.
#include "fi_shim/cntr.h"

#include <errno.h>
#include <sched.h>

#include <new>

#include "core/client/no_cancel.h"
#include "core/shm/rdm.h"
#include "fi_shim/completion_queue.h"
#include "fi_shim/enums.h"
#include "fi_shim/fids.h"
#include "fi_shim/hw_cq.h"
#include "fi_shim/list.h"
#include "fi_shim/wait.h"

namespace verbena::fi {
namespace {

// A CQ in which something completes that the counter counts.
struct Watched {
  HwCq* hw;
  uint32_t times;
};

}  // namespace

struct Cntr::State {
  Waiter waiter;
  // Guards the list while somebody makes progress with it; before the HwCqs' locks.
  Lock lock;
  List<Watched> watched;
  std::atomic<bool> is_armed{false};
  // The NIC's own counter (FI_RMA_EVENT), which adds to what is counted here. Guarded by `lock`
  // until it is there.
  shm::Handle nic_handle = 0;
  std::atomic<const shm::RdmCounter*> nic{nullptr};
  // What fi_poll told last.
  std::atomic<uint64_t> polled_value{0}, polled_errors{0};
  client::EmptyPolls empty_polls;  // of the NIC's own counter, where no CQ is polled beside it
  std::atomic<bool> is_over{false};
};

namespace {

Cntr* Of(fid_cntr* base) { return reinterpret_cast<Cntr*>(base); }

void RingIfArmed(Cntr* cntr) {
  // Pairs with the fence in ArmAndLook: either the sleeper sees the value, or we see him.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (cntr->state->is_armed.load(std::memory_order_relaxed) &&
      cntr->state->is_armed.exchange(false)) {
    cntr->state->waiter.Ring();
  }
}

// Modulo 2^64: fi_cntr_set may put the NIC's own part back.
uint64_t NicValue(const Cntr* cntr) {
  const shm::RdmCounter* nic = cntr->state->nic.load(std::memory_order_acquire);
  return nic == nullptr ? 0 : nic->operations.load(std::memory_order_acquire);
}
uint64_t NicErrors(const Cntr* cntr) {
  const shm::RdmCounter* nic = cntr->state->nic.load(std::memory_order_acquire);
  return nic == nullptr ? 0 : nic->errors.load(std::memory_order_acquire);
}
uint64_t ValueOf(const Cntr* cntr) {
  return cntr->value.load(std::memory_order_acquire) + NicValue(cntr);
}
uint64_t ErrorsOf(const Cntr* cntr) {
  return cntr->errors.load(std::memory_order_acquire) + NicErrors(cntr);
}

// The NIC is gone, and nothing is counted any more. That is an error of its own: there may be none
// of an operation that would tell, as the peers' are counted.
void NoteEnd(Cntr* cntr) {
  Cntr::State* state = cntr->state;
  client::Session* session = cntr->domain->session;
  if (__builtin_expect(!session->KnownDead(), 1) || session->IsForkedCopy()) return;
  {
    Guard guard(state->lock);
    if (state->watched.size() == 0 && state->nic.load() == nullptr) return;  // the program's alone
    for (const Watched& watched : state->watched) {
      if (!IsOver(watched.hw)) return;
    }
  }
  if (!state->is_over.exchange(true)) CountError(cntr);
}

void Advance(Cntr* cntr) {
  Cntr::State* state = cntr->state;
  {
    Guard guard(state->lock);
    for (const Watched& watched : state->watched) Progress(watched.hw);
    if (state->watched.size() == 0 && state->nic.load() != nullptr) {
      state->empty_polls.OnEmpty(cntr->domain->session);
    }
  }
  NoteEnd(cntr);
}

uint64_t Read(fid_cntr* base) {
  Advance(Of(base));
  return ValueOf(Of(base));
}
uint64_t ReadErrors(fid_cntr* base) {
  Advance(Of(base));
  return ErrorsOf(Of(base));
}

int Add(fid_cntr* base, uint64_t value) {
  Of(base)->value.fetch_add(value, std::memory_order_acq_rel);
  Of(base)->state->polled_value.fetch_add(value);
  RingIfArmed(Of(base));
  return 0;
}
int AddErrors(fid_cntr* base, uint64_t value) {
  Of(base)->errors.fetch_add(value, std::memory_order_acq_rel);
  RingIfArmed(Of(base));
  return 0;
}
int Set(fid_cntr* base, uint64_t value) {
  Of(base)->value.store(value - NicValue(Of(base)), std::memory_order_release);
  Of(base)->state->polled_value.store(value);
  RingIfArmed(Of(base));
  return 0;
}
int SetErrors(fid_cntr* base, uint64_t value) {
  Of(base)->errors.store(value - NicErrors(Of(base)), std::memory_order_release);
  RingIfArmed(Of(base));
  return 0;
}

// True: there may be something already; else whatever comes will wake us. A CQ without a channel
// can't: `can_sleep` says whether all have one.
bool ArmAndLook(Cntr* cntr, uint64_t value, uint64_t errors, Sleeper* sleeper, bool* can_sleep) {
  Cntr::State* state = cntr->state;
  const bool leads = sleeper->TakeTurn();
  if (leads) {
    state->is_armed.store(true);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  // The NIC's own counter rings nobody.
  *can_sleep = state->nic.load() == nullptr;
  bool has_more = false;
  {
    Guard guard(state->lock);
    for (const Watched& watched : state->watched) {
      if (watched.hw->channel_fd < 0) *can_sleep = false;
      if (leads) {
        TakeEvents(watched.hw);
        Arm(watched.hw);
        ServeBeforeSleep(watched.hw, &state->waiter);
      }
      Progress(watched.hw);
      has_more |= HasMore(watched.hw) && (watched.hw->cq == nullptr || !HasEntries(watched.hw->cq));
    }
  }
  NoteEnd(cntr);
  sleeper->OthersLook();
  return has_more || state->is_over.load() || ValueOf(cntr) != value || ErrorsOf(cntr) != errors;
}

int SleepUntil(Cntr* cntr, uint64_t threshold, const Deadline& deadline, Sleeper* sleeper) {
  Cntr::State* state = cntr->state;
  // Before anything is asked for: an error that this call finds ends it.
  const uint64_t errors = ErrorsOf(cntr);
  for (;;) {
    Advance(cntr);
    const uint64_t value = ValueOf(cntr);
    if (value >= threshold) return 0;
    if (ErrorsOf(cntr) != errors) return -FI_EAVAIL;
    if (state->is_over.load()) return -FI_ENODEV;
    if (deadline.HasPassed()) return -FI_ETIMEDOUT;
    bool can_sleep = false;
    if (state->waiter.HasFd() && ArmAndLook(cntr, value, errors, sleeper, &can_sleep)) continue;
    if (can_sleep || !state->waiter.HasFd()) {
      sleeper->Sleep(deadline);
    } else {
      sched_yield();
    }
  }
}

int WaitFor(fid_cntr* base, uint64_t threshold, int timeout_ms) {
  Waiter* waiter = &Of(base)->state->waiter;
  if (!waiter->MayBlock()) return -FI_EINVAL;
  Sleeper sleeper(waiter);
  const int result = SleepUntil(Of(base), threshold, Deadline(timeout_ms), &sleeper);
  sleeper.Leave();
  return result;
}

void DestroyNicCounter(Cntr* cntr) {
  const shm::HandleRequest request = {cntr->state->nic_handle, 0};
  cntr->state->nic_handle = 0;
  if (request.handle == 0) return;
  cntr->domain->session->Execute(shm::CommandOp::kDestroyCounter, &request, sizeof(request),
                                 nullptr, 0);
}

int Close(fid* base) {
  auto* cntr = reinterpret_cast<Cntr*>(base);
  if (cntr->users.load() != 0) return -FI_EBUSY;
  client::NoCancel no_cancel;
  DestroyNicCounter(cntr);
  cntr->domain->users.fetch_sub(1);
  delete cntr->state;
  delete cntr;
  return 0;
}

int Control(fid* base, int command, void* arg) {
  // No flags are defined for counters: there are none to be set.
  if (command == FI_GETOPSFLAG || command == FI_SETOPSFLAG) {
    if (arg == nullptr) return -FI_EINVAL;
    auto* flags = static_cast<uint64_t*>(arg);
    if (command == FI_SETOPSFLAG) return *flags == 0 ? 0 : -FI_EBADFLAGS;
    *flags = 0;
    return 0;
  }
  return reinterpret_cast<Cntr*>(base)->state->waiter.Control(command, arg);
}

fi_ops g_fid_ops = FidOps(Close, NoBind, Control);
fi_ops_cntr g_ops = {sizeof(fi_ops_cntr), Read,     ReadErrors, Add, Set, WaitFor,
                     AddErrors,           SetErrors};

}  // namespace

int OpenCntr(fid_domain* base, fi_cntr_attr* attr, fid_cntr** out, void* context) {
  const fi_cntr_attr defaults = {};
  if (attr == nullptr) return -FI_EINVAL;
  if (attr->flags != defaults.flags) return -FI_EBADFLAGS;
  if (!IsUpTo(attr->events, FI_CNTR_EVENTS_COMP)) return -FI_EINVAL;
  auto* cntr = new (std::nothrow) Cntr();
  auto* state = new (std::nothrow) Cntr::State();
  if (cntr == nullptr || state == nullptr) {
    delete state;
    delete cntr;
    return -FI_ENOMEM;
  }
  cntr->fid.fid = {FI_CLASS_CNTR, context, &g_fid_ops};
  cntr->fid.ops = &g_ops;
  cntr->domain = reinterpret_cast<Domain*>(base);
  cntr->state = state;
  ElideIfAlone(state->lock, cntr->domain->threading);
  if (const int error = state->waiter.Open(attr->wait_obj, attr->wait_set, &cntr->fid.fid);
      error != 0) {
    delete state;
    delete cntr;
    return error;
  }
  cntr->domain->users.fetch_add(1);
  *out = &cntr->fid;
  return 0;
}

bool HasChanged(Cntr* cntr) {
  Advance(cntr);
  const uint64_t value = ValueOf(cntr), errors = ErrorsOf(cntr);
  const bool value_changed = cntr->state->polled_value.exchange(value) != value;
  const bool errors_changed = cntr->state->polled_errors.exchange(errors) != errors;
  return value_changed || errors_changed;
}

int CounterOf(Cntr* cntr, shm::Handle* out) {
  *out = 0;
  if (cntr == nullptr) return 0;
  client::NoCancel no_cancel;
  Cntr::State* state = cntr->state;
  Guard guard(state->lock);
  if (state->nic.load() == nullptr) {
    client::Session* session = cntr->domain->session;
    shm::CreateCounterReply reply = {};
    const int error =
        session->Execute(shm::CommandOp::kCreateCounter, nullptr, 0, &reply, sizeof(reply));
    if (error != 0) return error == EIO ? -FI_EIO : -FI_ENOMEM;
    state->nic_handle = reply.counter;
    void* place = session->MapPlace(reply.place);
    if (place == nullptr) {
      DestroyNicCounter(cntr);
      return -FI_ENOMEM;
    }
    state->nic.store(static_cast<const shm::RdmCounter*>(place), std::memory_order_release);
    RingIfArmed(cntr);  // it rings nobody: who sleeps already has to look at it
  }
  *out = state->nic_handle;
  return 0;
}

int TryWait(Cntr* cntr) {
  if (!cntr->state->waiter.HasFd()) return 0;
  const uint64_t value = ValueOf(cntr), errors = ErrorsOf(cntr);
  bool can_sleep = false;
  Sleeper sleeper(&cntr->state->waiter);
  const bool has_something = ArmAndLook(cntr, value, errors, &sleeper, &can_sleep);
  sleeper.Leave();
  return has_something || !can_sleep ? -FI_EAGAIN : 0;
}

bool WantsChannel(const Cntr* cntr) { return cntr->state->waiter.HasFd(); }

int Watch(Cntr* cntr, HwCq* hw) {
  Cntr::State* state = cntr->state;
  Guard guard(state->lock);
  for (Watched& watched : state->watched) {
    if (watched.hw != hw) continue;
    ++watched.times;
    return 0;
  }
  if (!state->watched.Push({hw, 1})) return -FI_ENOMEM;
  if (state->waiter.HasFd() && hw->channel_fd >= 0) {
    if (const int error = state->waiter.AddFd(hw->channel_fd); error != 0) {
      state->watched.RemoveAt(state->watched.size() - 1);
      return error;
    }
  }
  RingIfArmed(cntr);  // who sleeps already has not armed it
  return 0;
}

int AddWakeFd(Cntr* cntr, int fd) {
  return cntr->state->waiter.HasFd() ? cntr->state->waiter.AddFd(fd) : 0;
}
void RemoveWakeFd(Cntr* cntr, int fd) {
  if (cntr->state->waiter.HasFd()) cntr->state->waiter.RemoveFd(fd);
}

void Unwatch(Cntr* cntr, HwCq* hw) {
  Cntr::State* state = cntr->state;
  Guard guard(state->lock);
  for (size_t i = 0; i < state->watched.size(); ++i) {
    if (state->watched[i].hw != hw || --state->watched[i].times != 0) continue;
    if (state->waiter.HasFd() && hw->channel_fd >= 0) state->waiter.RemoveFd(hw->channel_fd);
    state->watched.RemoveAt(i);
    return;
  }
}

void Count(Cntr* cntr) {
  if (cntr == nullptr) return;
  cntr->value.fetch_add(1, std::memory_order_acq_rel);
  RingIfArmed(cntr);
}
void Wake(Cntr* cntr) { RingIfArmed(cntr); }
void CountError(Cntr* cntr) {
  if (cntr == nullptr) return;
  cntr->errors.fetch_add(1, std::memory_order_acq_rel);
  RingIfArmed(cntr);
}

}  // namespace verbena::fi
