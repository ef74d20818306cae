// fi_cq: what the NIC has completed and the program has not read yet.
#include <errno.h>
#include <string.h>

#include <algorithm>
#include <new>

#include "fi_shim/completion_queue.h"
#include "fi_shim/completion_ring.h"
#include "fi_shim/enums.h"
#include "fi_shim/errors.h"
#include "fi_shim/fids.h"
#include "fi_shim/hw_cq.h"
#include "fi_shim/list.h"
#include "fi_shim/wait.h"

namespace verbena::fi {
namespace {

// Of an fi_cq whose size the program leaves to us.
constexpr size_t kDefaultEntries = 1024;
// One CQE may be several entries: a message, and that its buffer is released.
constexpr size_t kEntriesPerCqe = 2;

// A failure with its data, which its maker keeps only for the moment.
struct KeptFailure {
  Failure failure;
  size_t mark;  // in the entries: those before it are read first
  char data[160];
};

}  // namespace

struct Cq::State {
  Waiter waiter;
  fi_cq_format format = FI_CQ_FORMAT_CONTEXT;
  fi_cq_wait_cond wait_cond = FI_CQ_COND_NONE;
  size_t size = 0;  // that the program asked for
  // Who writes entries, and who deals with failures, holds the CQ's lock. So does who reads, unless
  // the threading model says that readers are one at a time.
  CompletionRing entries;
  bool has_one_reader = false;
  Queue<KeptFailure> failures;
  std::atomic<size_t> failure_count{0};
  std::atomic<size_t> failure_mark{0};  // of the first; written before failure_count
  ErrDataPlace err_data;
  // Somebody sleeps, or is about to: the next entry rings.
  std::atomic<bool> is_armed{false};
  // fi_cq_signal: those who sleep see `signals` change; the next one to come finds the mark.
  std::atomic<uint32_t> signals{0};
  std::atomic<uint32_t> sleepers{0};
  std::atomic<bool> has_signal{false};
  std::atomic<bool> has_told_end{false};  // that the NIC is gone, by a read
};

namespace {

class ReaderGuard {
 public:
  explicit ReaderGuard(Cq* cq) : lock_(cq->state->has_one_reader ? nullptr : &cq->lock) {
    if (lock_ != nullptr) lock_->Lock();
  }
  ~ReaderGuard() {
    if (lock_ != nullptr) lock_->Unlock();
  }
  ReaderGuard(const ReaderGuard&) = delete;
  ReaderGuard& operator=(const ReaderGuard&) = delete;

 private:
  Lock* lock_;
};

void RingIfArmed(Cq::State* state) {
  if (!state->is_armed.load(std::memory_order_relaxed)) return;
  if (state->is_armed.exchange(false)) state->waiter.Ring();
}

// Tells readers of the failures that there are. The lock is held.
void Announce(Cq::State* state) {
  const size_t count = state->failures.size();
  if (count != 0) {
    state->failure_mark.store(state->failures.First().mark, std::memory_order_relaxed);
  }
  // Pairs with the acquire in TakeEntries.
  state->failure_count.store(count, std::memory_order_release);
}

// Copies at most `count` entries. -FI_EAVAIL: an error is next; -FI_EAGAIN: nothing waits.
ssize_t TakeEntries(Cq* cq, void* buf, size_t count, fi_addr_t* sources) {
  Cq::State* state = cq->state;
  ReaderGuard guard(cq);
  // Before the failures: an entry that is seen has those before it seen, too.
  size_t there = state->entries.size();
  if (state->failure_count.load(std::memory_order_acquire) != 0) {
    const size_t mark = state->failure_mark.load(std::memory_order_relaxed);
    there = std::min(there, state->entries.CountBefore(mark));
    if (there == 0) return -FI_EAVAIL;
  }
  const size_t taken = std::min(count, there);
  if (taken == 0) return there == 0 || count != 0 ? -FI_EAGAIN : 0;
  auto* out = static_cast<char*>(buf);
  for (size_t i = 0; i < taken; ++i) {
    const Completion& entry = state->entries.First();
    WriteEntry(state->format, entry, out);
    out += EntryBytes(state->format);
    if (sources != nullptr) sources[i] = entry.source;
    state->entries.Consume();
  }
  // For another thread that sleeps: what is left was announced to this one.
  if (state->entries.size() != 0) RingIfArmed(state);
  return static_cast<ssize_t>(taken);
}

size_t Waiting(Cq* cq) {
  const size_t there = cq->state->entries.size();
  return cq->state->failure_count.load(std::memory_order_acquire) != 0 ? SIZE_MAX : there;
}

ssize_t ReadFrom(fid_cq* base, void* buf, size_t count, fi_addr_t* sources) {
  Cq* cq = reinterpret_cast<Cq*>(base);
  const ssize_t taken = TakeEntries(cq, buf, count, sources);
  if (taken != -FI_EAGAIN) {
    if (taken > 0 && static_cast<size_t>(taken) == count) return taken;
  }
  Progress(cq->hw);
  if (taken > 0) {
    const ssize_t more =
        TakeEntries(cq, static_cast<char*>(buf) + taken * EntryBytes(cq->state->format),
                    count - taken, sources == nullptr ? nullptr : sources + taken);
    return more > 0 ? taken + more : taken;
  }
  if (taken == -FI_EAVAIL) return taken;
  const bool is_over = IsOver(cq->hw);  // before the look: what is told until then is seen
  const ssize_t first = TakeEntries(cq, buf, count, sources);
  if (first != -FI_EAGAIN || !is_over) return first;
  // Once: programs and layers that go on all the same have nothing to do then.
  return cq->state->has_told_end.exchange(true) ? -FI_EAGAIN : -FI_ENODEV;
}

ssize_t Read(fid_cq* base, void* buf, size_t count) { return ReadFrom(base, buf, count, nullptr); }

// Whether to return to the program with what there is.
bool IsSatisfied(Cq* cq, size_t threshold) {
  Progress(cq->hw);
  return Waiting(cq) >= threshold || IsOver(cq->hw);
}

// Arms everything that would wake us. True: there is something already.
bool ArmAndLook(Cq* cq, size_t threshold, Sleeper* sleeper) {
  Cq::State* state = cq->state;
  if (sleeper->TakeTurn()) {
    state->is_armed.store(true);
    // Who completes holds the lock: either it sees the mark, or we see its entry.
    { Guard guard(cq->lock); }
    TakeEvents(cq->hw);
    Arm(cq->hw);
    ServeBeforeSleep(cq->hw, &state->waiter);
    sleeper->OthersLook();
  }
  return IsSatisfied(cq, threshold) || HasMore(cq->hw);
}

// Until there is enough (true), or something else ends the call.
bool SleepUntil(Cq* cq, size_t threshold, uint32_t signals, const Deadline& deadline,
                Sleeper* sleeper) {
  Cq::State* state = cq->state;
  bool is_awake = true;
  while (!IsSatisfied(cq, threshold)) {
    if (!is_awake || state->signals.load() != signals || deadline.HasPassed()) return false;
    if (state->waiter.HasFd() && ArmAndLook(cq, threshold, sleeper)) continue;
    if (state->signals.load() == signals) is_awake = sleeper->Sleep(deadline);
  }
  return true;
}

ssize_t SleepAndRead(fid_cq* base, void* buf, size_t count, fi_addr_t* sources, const void* cond,
                     int timeout_ms) {
  Cq* cq = reinterpret_cast<Cq*>(base);
  Cq::State* state = cq->state;
  if (!state->waiter.MayBlock()) return -FI_EINVAL;
  size_t threshold = 1;
  if (state->wait_cond == FI_CQ_COND_THRESHOLD) {
    threshold = std::max<size_t>(1, std::min(reinterpret_cast<size_t>(cond), count));
  }
  const uint32_t signals = state->signals.load();
  if (state->has_signal.exchange(false)) return ReadFrom(base, buf, count, sources);
  const Deadline deadline(timeout_ms);
  Sleeper sleeper(&state->waiter);
  state->sleepers.fetch_add(1);
  ssize_t taken;
  for (;;) {
    const bool has_enough = SleepUntil(cq, threshold, signals, deadline, &sleeper);
    const bool is_over = IsOver(cq->hw);
    taken = ReadFrom(base, buf, count, sources);
    if (taken == -FI_EAGAIN && is_over) taken = -FI_ENODEV;  // nobody sleeps for ever
    // What there was may be another thread's by now.
    if (taken != -FI_EAGAIN || !has_enough) break;
  }
  state->sleepers.fetch_sub(1);
  sleeper.Leave();
  return taken;
}

ssize_t SleepAndRead(fid_cq* base, void* buf, size_t count, const void* cond, int timeout_ms) {
  return SleepAndRead(base, buf, count, nullptr, cond, timeout_ms);
}

ssize_t ReadError(fid_cq* base, fi_cq_err_entry* out, uint64_t flags) {
  Cq* cq = reinterpret_cast<Cq*>(base);
  if (flags != 0) return -FI_EBADFLAGS;
  if (Waiting(cq) != SIZE_MAX) Progress(cq->hw);
  Cq::State* state = cq->state;
  Guard guard(cq->lock);
  if (state->failures.size() == 0) return -FI_EAGAIN;
  KeptFailure& first = state->failures.First();
  // The data moved along with it.
  if (first.failure.text != nullptr) first.failure.text = first.data;
  if (first.failure.err_data != nullptr) first.failure.err_data = first.data;
  WriteErrorEntry(cq->domain->api_version, first.failure, &state->err_data, out);
  state->failures.RemoveFirst();
  Announce(state);
  if (state->failures.size() + state->entries.size() != 0) RingIfArmed(state);
  return 1;
}

int Signal(fid_cq* base) {
  Cq::State* state = reinterpret_cast<Cq*>(base)->state;
  if (state->waiter.kind() == FI_WAIT_NONE) return -FI_EINVAL;
  state->signals.fetch_add(1);
  if (state->sleepers.load() == 0) state->has_signal.store(true);
  state->waiter.Ring();
  return 0;
}

const char* ToString(fid_cq*, int provider, const void* err_data, char* buf, size_t len) {
  return ErrorText(provider, err_data, buf, len);
}

int Close(fid* base) {
  Cq* cq = reinterpret_cast<Cq*>(base);
  if (cq->users.load() != 0) return -FI_EBUSY;
  if (cq->hw->channel_fd >= 0) cq->state->waiter.RemoveFd(cq->hw->channel_fd);
  CloseHwCq(cq->hw);
  cq->domain->users.fetch_sub(1);
  delete cq->state;
  delete cq;
  return 0;
}

int Control(fid* base, int command, void* arg) {
  return reinterpret_cast<Cq*>(base)->state->waiter.Control(command, arg);
}

int CheckAttr(const fi_cq_attr* attr) {
  if (attr == nullptr) return -FI_EINVAL;
  // Peers' CQs (fi_peer(3)) are none of ours.
  if ((attr->flags & FI_PEER) != 0) return -FI_EINVAL;
  if ((attr->flags & ~FI_AFFINITY) != 0) return -FI_EBADFLAGS;
  if (!IsUpTo(attr->format, FI_CQ_FORMAT_TAGGED)) return -FI_EINVAL;
  if (NumberOf(attr->wait_obj) != FI_WAIT_NONE && !IsUpTo(attr->wait_cond, FI_CQ_COND_THRESHOLD)) {
    return -FI_EINVAL;
  }
  return 0;
}

fi_ops g_fid_ops = FidOps(Close, NoBind, Control);
fi_ops_cq g_ops = {sizeof(fi_ops_cq), Read,         ReadFrom, ReadError,
                   SleepAndRead,      SleepAndRead, Signal,   ToString};

int Make(Cq* cq, const fi_cq_attr& attr) {
  cq->state = new (std::nothrow) Cq::State();
  if (cq->state == nullptr) return -FI_ENOMEM;
  Cq::State* state = cq->state;
  ElideIfAlone(cq->lock, cq->domain->threading);
  state->has_one_reader = IsObjectAlone(cq->domain->threading);
  state->format = attr.format;
  // Without a wait object it is ignored, whatever stands there.
  if (NumberOf(attr.wait_obj) != FI_WAIT_NONE) state->wait_cond = attr.wait_cond;
  state->size = attr.size != 0 ? attr.size : kDefaultEntries;
  int error = state->waiter.Open(attr.wait_obj, attr.wait_set, &cq->fid.fid);
  if (error != 0) return error;
  const auto entries = static_cast<uint32_t>(std::min<size_t>(state->size, UINT32_MAX));
  error = OpenHwCq(cq->domain, entries, state->waiter.HasFd(), &cq->hw);
  if (error != 0) return error;
  if (cq->hw->channel_fd >= 0) error = state->waiter.AddFd(cq->hw->channel_fd);
  if (error == 0 && !state->entries.Grow(state->size + kEntriesPerCqe)) error = -FI_ENOMEM;
  if (error != 0) {
    CloseHwCq(cq->hw);
    return error;
  }
  cq->hw->cq = cq;
  return 0;
}

}  // namespace

int OpenCq(fid_domain* base, fi_cq_attr* attr, fid_cq** out, void* context) {
  if (const int error = CheckAttr(attr); error != 0) return error;
  auto* cq = new (std::nothrow) Cq();
  if (cq == nullptr) return -FI_ENOMEM;
  cq->fid.fid = {FI_CLASS_CQ, context, &g_fid_ops};
  cq->fid.ops = &g_ops;
  cq->domain = reinterpret_cast<Domain*>(base);
  if (const int error = Make(cq, *attr); error != 0) {
    delete cq->state;
    delete cq;
    return error;
  }
  if (attr->format == FI_CQ_FORMAT_UNSPEC) attr->format = FI_CQ_FORMAT_CONTEXT;
  attr->size = cq->state->size;
  cq->domain->users.fetch_add(1);
  *out = &cq->fid;
  return 0;
}

bool HasRoom(Cq* cq) { return cq->state->entries.HasRoom(kEntriesPerCqe); }

bool MakeRoom(Cq* cq, uint64_t outstanding) {
  Guard guard(cq->lock);
  return cq->state->entries.Grow(cq->state->size + kEntriesPerCqe * (outstanding + 1));
}

int AddWakeFd(Cq* cq, int fd) {
  return cq->state->waiter.HasFd() ? cq->state->waiter.AddFd(fd) : 0;
}
void RemoveWakeFd(Cq* cq, int fd) {
  if (cq->state->waiter.HasFd()) cq->state->waiter.RemoveFd(fd);
}

bool HasEntries(Cq* cq) {
  Progress(cq->hw);
  return Waiting(cq) != 0 || (IsOver(cq->hw) && !cq->state->has_told_end.load());
}

int TryWait(Cq* cq) {
  Cq::State* state = cq->state;
  if (!state->waiter.HasFd()) return HasEntries(cq) ? -FI_EAGAIN : 0;
  if (state->has_signal.exchange(false)) return -FI_EAGAIN;
  Sleeper sleeper(&state->waiter);
  const bool has_something = ArmAndLook(cq, 1, &sleeper);
  sleeper.Leave();
  return has_something ? -FI_EAGAIN : 0;
}

void Wake(Cq* cq) {
  // Pairs with the store of the mark in ArmAndLook: either the sleeper sees what there is to do, or
  // we see its mark.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  RingIfArmed(cq->state);
}

void Complete(Cq* cq, const Completion& completion) {
  Cq::State* state = cq->state;
  Guard guard(cq->lock);
  // Room was made for all that may be outstanding: this is for what has no room of its own.
  if (!state->entries.Push(completion)) return;
  RingIfArmed(state);
}

void Fail(Cq* cq, const Failure& failure) {
  KeptFailure kept;
  kept.failure = failure;
  if (failure.text != nullptr) {
    const size_t length = std::min(strlen(failure.text), sizeof(kept.data) - 1);
    memcpy(kept.data, failure.text, length);
    kept.data[length] = '\0';
  } else if (failure.err_data != nullptr) {
    kept.failure.err_data_bytes = std::min(failure.err_data_bytes, sizeof(kept.data));
    memcpy(kept.data, failure.err_data, kept.failure.err_data_bytes);
  }
  Guard guard(cq->lock);
  kept.mark = cq->state->entries.Mark();
  if (!cq->state->failures.Push(kept)) return;
  Announce(cq->state);
  RingIfArmed(cq->state);
}

}  // namespace verbena::fi
