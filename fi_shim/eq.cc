// fi_eq: events of connections, registrations and addresses, and what the program writes itself.
#include "fi_shim/eq.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <new>

#include "fi_shim/copy_info.h"
#include "fi_shim/errors.h"
#include "fi_shim/fids.h"
#include "fi_shim/list.h"
#include "fi_shim/msg.h"
#include "fi_shim/wait.h"

namespace verbena::fi {
namespace {

struct Event {
  uint32_t type;
  void* data;
  size_t bytes;
  fid_t about = nullptr;    // nullptr: the program itself wrote it
  fid_t request = nullptr;  // likewise, of a FI_CONNREQ
};
struct ErrorEvent {
  fi_eq_err_entry entry;
  void* data;
  size_t bytes;
};
struct Source {
  int fd;
  AskSource ask;
  void* object;
};

}  // namespace

struct Eq::State {
  Waiter waiter;
  bool may_be_written = false;  // FI_WRITE
  Queue<Event> events;
  Queue<ErrorEvent> errors;
  bool is_overrun = false;   // an event was lost: no memory
  void* err_data = nullptr;  // of the last error read, where the program brought no room
  // Held while sources are asked. Recursive: a source may add another.
  pthread_mutex_t sources_mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
  List<Source> sources;
};

namespace {

Eq* Of(fid_eq* base) { return reinterpret_cast<Eq*>(base); }

bool IsOfConnection(uint32_t event) {
  return event == FI_CONNREQ || event == FI_CONNECTED || event == FI_SHUTDOWN;
}

void* Copy(const void* data, size_t bytes) {
  void* copy = malloc(std::max<size_t>(bytes, 1));
  if (copy != nullptr && bytes != 0) memcpy(copy, data, bytes);
  return copy;
}

void AskSources(Eq* eq) {
  client::MutexGuard guard(eq->state->sources_mutex);
  for (size_t i = 0; i < eq->state->sources.size(); ++i) {
    const Source source = eq->state->sources[i];
    source.ask(source.object);
  }
}

bool HasEvents(Eq* eq) {
  Guard guard(eq->lock);
  const Eq::State* state = eq->state;
  return state->events.size() != 0 || state->errors.size() != 0 || state->is_overrun;
}

ssize_t Take(Eq* eq, uint32_t* event, void* buf, size_t len, uint64_t flags) {
  Eq::State* state = eq->state;
  Guard guard(eq->lock);
  if (state->errors.size() != 0) return -FI_EAVAIL;
  // Told as an error, once all that was not lost is read.
  if (state->events.size() == 0) return state->is_overrun ? -FI_EAVAIL : -FI_EAGAIN;
  const Event first = state->events.First();
  const size_t needed =
      IsOfConnection(first.type) ? std::min(first.bytes, sizeof(fi_eq_cm_entry)) : first.bytes;
  if (len < needed) return -FI_ETOOSMALL;
  const size_t bytes = std::min(len, first.bytes);
  if (event != nullptr) *event = first.type;
  if (bytes != 0) memcpy(buf, first.data, bytes);
  if ((flags & FI_PEEK) == 0) {
    if (first.request != nullptr) ReleaseRequest(first.request, /*is_read=*/true);
    free(first.data);
    state->events.RemoveFirst();
  }
  return static_cast<ssize_t>(bytes);
}

ssize_t Read(fid_eq* base, uint32_t* event, void* buf, size_t len, uint64_t flags) {
  if ((flags & ~FI_PEEK) != 0) return -FI_EBADFLAGS;
  AskSources(Of(base));
  return Take(Of(base), event, buf, len, flags);
}

// True: something waits to be read.
bool ArmAndLook(Eq* eq, Sleeper* sleeper) {
  if (sleeper->TakeTurn()) sleeper->OthersLook();
  AskSources(eq);
  return HasEvents(eq);
}

ssize_t SleepAndRead(fid_eq* base, uint32_t* event, void* buf, size_t len, int timeout_ms,
                     uint64_t flags) {
  Eq* eq = Of(base);
  if (!eq->state->waiter.MayBlock()) return -FI_EINVAL;
  const Deadline deadline(timeout_ms);
  Sleeper sleeper(&eq->state->waiter);
  ssize_t taken;
  for (bool is_awake = true;;) {
    const bool has_events = ArmAndLook(eq, &sleeper);
    taken = Read(base, event, buf, len, flags);
    // What there was may be another thread's by now.
    if (taken != -FI_EAGAIN || !is_awake || deadline.HasPassed()) break;
    if (!has_events) is_awake = sleeper.Sleep(deadline);
  }
  sleeper.Leave();
  return taken;
}

ssize_t ReadError(fid_eq* base, fi_eq_err_entry* out, uint64_t flags) {
  Eq* eq = Of(base);
  Eq::State* state = eq->state;
  if ((flags & ~FI_PEEK) != 0) return -FI_EBADFLAGS;
  AskSources(eq);
  Guard guard(eq->lock);
  ErrorEvent first = {};
  if (state->errors.size() != 0) {
    first = state->errors.First();
  } else if (state->is_overrun && state->events.size() == 0) {
    first.entry.fid = &eq->fid.fid;
    first.entry.context = eq->fid.fid.context;
    first.entry.err = FI_EOVERRUN;
  } else {
    return -FI_EAGAIN;
  }
  const bool has_size = FI_VERSION_GE(eq->fabric->api_version, FI_VERSION(1, 5));
  void* const room = out->err_data;
  const size_t room_bytes = has_size ? out->err_data_size : 0;
  // Before 1.5 the structure ended with err_data.
  memcpy(out, &first.entry, has_size ? sizeof(*out) : offsetof(fi_eq_err_entry, err_data_size));
  if (room_bytes != 0) {
    const size_t bytes = std::min(room_bytes, first.bytes);
    if (bytes != 0) memcpy(room, first.data, bytes);
    out->err_data = room;
    out->err_data_size = bytes;
  } else {
    out->err_data = first.data;
    if (has_size) out->err_data_size = first.bytes;
  }
  if ((flags & FI_PEEK) == 0 && state->errors.size() != 0) {
    free(state->err_data);
    state->err_data = first.data;
    state->errors.RemoveFirst();
  }
  return sizeof(*out);
}

ssize_t WriteByProgram(fid_eq* base, uint32_t event, const void* buf, size_t len, uint64_t) {
  Eq* eq = Of(base);
  if (!eq->state->may_be_written) return -FI_EINVAL;
  if (len != 0 && buf == nullptr) return -FI_EINVAL;
  {
    Guard guard(eq->lock);
    if (eq->state->is_overrun) return -FI_EOVERRUN;
    void* copy = Copy(buf, len);
    if (copy == nullptr || !eq->state->events.Push({event, copy, len})) {
      free(copy);
      return -FI_ENOMEM;
    }
  }
  eq->state->waiter.Ring();
  return static_cast<ssize_t>(len);
}

// Error data of an EQ are a peer's, and no text.
const char* ToString(fid_eq*, int provider, const void*, char* buf, size_t len) {
  static constexpr char kNoMore[] = "no more is known than the error number";
  if (provider == 0) return ErrorText(kVendorErrnoBase, kNoMore, buf, len);
  return ErrorText(provider, nullptr, buf, len);
}

void Drop(const Event& event) {
  if (event.request != nullptr) {
    ReleaseRequest(event.request, /*is_read=*/false);
    FreeInfo(static_cast<fi_eq_cm_entry*>(event.data)->info);
  }
  free(event.data);
}

void DropAll(Eq::State* state) {
  for (const Event& event : state->events) Drop(event);
  for (const ErrorEvent& error : state->errors) free(error.data);
  free(state->err_data);
}

// Takes out the first event that tells of the object.
bool TakeEventOf(Eq* eq, fid_t object, Event* out) {
  Guard guard(eq->lock);
  Queue<Event>& events = eq->state->events;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events.begin()[i].about != object) continue;
    *out = events.begin()[i];
    events.RemoveAt(i);
    return true;
  }
  return false;
}

int Close(fid* base) {
  auto* eq = reinterpret_cast<Eq*>(base);
  if (eq->users.load() != 0) return -FI_EBUSY;
  DropAll(eq->state);
  eq->fabric->users.fetch_sub(1);
  delete eq->state;
  delete eq;
  return 0;
}

int Control(fid* base, int command, void* arg) {
  return reinterpret_cast<Eq*>(base)->state->waiter.Control(command, arg);
}

fi_ops g_fid_ops = FidOps(Close, NoBind, Control);
fi_ops_eq g_ops = {sizeof(fi_ops_eq), Read, ReadError, WriteByProgram, SleepAndRead, ToString};

}  // namespace

int OpenEq(fid_fabric* base, fi_eq_attr* attr, fid_eq** out, void* context) {
  if (attr == nullptr || (attr->flags & FI_PEER) != 0) return -FI_EINVAL;
  if ((attr->flags & ~(FI_WRITE | FI_AFFINITY)) != 0) return -FI_EBADFLAGS;
  auto* eq = new (std::nothrow) Eq();
  auto* state = new (std::nothrow) Eq::State();
  if (eq == nullptr || state == nullptr) {
    delete state;
    delete eq;
    return -FI_ENOMEM;
  }
  eq->fid.fid = {FI_CLASS_EQ, context, &g_fid_ops};
  eq->fid.ops = &g_ops;
  eq->fabric = reinterpret_cast<Fabric*>(base);
  eq->state = state;
  state->may_be_written = (attr->flags & FI_WRITE) != 0;
  const int error = state->waiter.Open(attr->wait_obj, attr->wait_set, &eq->fid.fid);
  if (error != 0) {
    delete state;
    delete eq;
    return error;
  }
  eq->fabric->users.fetch_add(1);
  *out = &eq->fid;
  return 0;
}

int TryWait(Eq* eq) {
  Sleeper sleeper(&eq->state->waiter);
  const bool has_events = ArmAndLook(eq, &sleeper);
  sleeper.Leave();
  return has_events ? -FI_EAGAIN : 0;
}

void Post(Eq* eq, uint32_t event, const void* entry, size_t bytes) {
  // Each kind of entry begins with it.
  const fid_t about = static_cast<const fi_eq_entry*>(entry)->fid;
  fid_t request = nullptr;
  if (event == FI_CONNREQ) request = static_cast<const fi_eq_cm_entry*>(entry)->info->handle;
  {
    Guard guard(eq->lock);
    void* copy = Copy(entry, bytes);
    if (copy == nullptr || !eq->state->events.Push({event, copy, bytes, about, request})) {
      free(copy);
      eq->state->is_overrun = true;
    }
  }
  eq->state->waiter.Ring();
}

void PostError(Eq* eq, const fi_eq_err_entry& entry, const void* err_data, size_t bytes) {
  {
    Guard guard(eq->lock);
    void* copy = bytes == 0 ? nullptr : Copy(err_data, bytes);
    if ((bytes != 0 && copy == nullptr) || !eq->state->errors.Push({entry, copy, bytes})) {
      free(copy);
      eq->state->is_overrun = true;
    }
  }
  eq->state->waiter.Ring();
}

void ForgetEvents(Eq* eq, fid_t object) {
  Event event;
  while (TakeEventOf(eq, object, &event)) Drop(event);
  Guard guard(eq->lock);
  Queue<ErrorEvent>& errors = eq->state->errors;
  for (size_t i = errors.size(); i-- != 0;) {
    if (errors.begin()[i].entry.fid != object) continue;
    free(errors.begin()[i].data);
    errors.RemoveAt(i);
  }
}

int AddSource(Eq* eq, int fd, AskSource ask, void* source) {
  client::MutexGuard guard(eq->state->sources_mutex);
  if (!eq->state->sources.Push({fd, ask, source})) return -FI_ENOMEM;
  if (fd < 0 || !eq->state->waiter.HasFd()) return 0;
  const int error = eq->state->waiter.AddFd(fd);
  if (error != 0) eq->state->sources.RemoveAt(eq->state->sources.size() - 1);
  return error;
}

void RemoveSource(Eq* eq, int fd) {
  client::MutexGuard guard(eq->state->sources_mutex);
  for (size_t i = 0; i < eq->state->sources.size(); ++i) {
    if (eq->state->sources[i].fd != fd) continue;
    eq->state->sources.RemoveAt(i);
    if (eq->state->waiter.HasFd()) eq->state->waiter.RemoveFd(fd);
    return;
  }
}

}  // namespace verbena::fi
