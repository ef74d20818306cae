// fi_poll: which of several CQs and counters have something.
#include "fi_shim/poll.h"

#include <new>

#include "fi_shim/cntr.h"
#include "fi_shim/completion_queue.h"
#include "fi_shim/fids.h"
#include "fi_shim/list.h"

namespace verbena::fi {
namespace {

struct PollSet {
  fid_poll fid;
  Domain* domain = nullptr;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  List<struct ::fid*> members;
};

PollSet* Of(fid_poll* base) { return reinterpret_cast<PollSet*>(base); }

std::atomic<uint32_t>* UsersOf(fid* object) {
  switch (object->fclass) {
    case FI_CLASS_CQ:
      return &reinterpret_cast<Cq*>(object)->users;
    case FI_CLASS_CNTR:
      return &reinterpret_cast<Cntr*>(object)->users;
    default:
      return nullptr;
  }
}

bool HasSomething(fid* object) {
  return object->fclass == FI_CLASS_CQ ? HasEntries(reinterpret_cast<Cq*>(object))
                                       : HasChanged(reinterpret_cast<Cntr*>(object));
}

int Poll(fid_poll* base, void** contexts, int count) {
  client::MutexGuard guard(Of(base)->mutex);
  int found = 0;
  for (fid* member : Of(base)->members) {
    // All make progress, and a counter that finds no place is told next time.
    if (found == count) {
      if (member->fclass == FI_CLASS_CQ) HasSomething(member);
      continue;
    }
    if (HasSomething(member)) contexts[found++] = member->context;
  }
  return found;
}

int AddMember(fid_poll* base, fid* object, uint64_t flags) {
  if (flags != 0 || object == nullptr) return -FI_EINVAL;
  std::atomic<uint32_t>* users = UsersOf(object);
  if (users == nullptr) return -FI_EINVAL;
  client::MutexGuard guard(Of(base)->mutex);
  for (const fid* member : Of(base)->members) {
    if (member == object) return 0;
  }
  if (!Of(base)->members.Push(object)) return -FI_ENOMEM;
  users->fetch_add(1);
  return 0;
}

int RemoveMember(fid_poll* base, fid* object, uint64_t flags) {
  if (flags != 0) return -FI_EINVAL;
  client::MutexGuard guard(Of(base)->mutex);
  for (size_t i = 0; i < Of(base)->members.size(); ++i) {
    if (Of(base)->members[i] != object) continue;
    Of(base)->members.RemoveAt(i);
    UsersOf(object)->fetch_sub(1);
    return 0;
  }
  return -FI_EINVAL;
}

int Close(fid* base) {
  auto* set = reinterpret_cast<PollSet*>(base);
  {
    client::MutexGuard guard(set->mutex);
    if (set->members.size() != 0) return -FI_EBUSY;
  }
  set->domain->users.fetch_sub(1);
  delete set;
  return 0;
}

fi_ops g_fid_ops = FidOps(Close);
fi_ops_poll g_ops = {sizeof(fi_ops_poll), Poll, AddMember, RemoveMember};

}  // namespace

int OpenPollSet(fid_domain* base, fi_poll_attr* attr, fid_poll** out) {
  if (attr != nullptr && attr->flags != 0) return -FI_EINVAL;
  auto* set = new (std::nothrow) PollSet();
  if (set == nullptr) return -FI_ENOMEM;
  set->fid.fid = {FI_CLASS_POLL, nullptr, &g_fid_ops};
  set->fid.ops = &g_ops;
  set->domain = reinterpret_cast<Domain*>(base);
  set->domain->users.fetch_add(1);
  *out = &set->fid;
  return 0;
}

}  // namespace verbena::fi
