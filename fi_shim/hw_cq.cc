#include "fi_shim/hw_cq.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bit>
#include <new>

#include "core/client/no_cancel.h"
#include "fi_shim/completion_queue.h"
#include "fi_shim/endpoint.h"
#include "fi_shim/host.h"
#include "fi_shim/wait.h"

namespace verbena::fi {
namespace {

int FiError(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE:
      return -FI_EMFILE;
    case EIO:
      return -FI_EIO;
    case EINVAL:
      return -FI_EINVAL;
    default:
      return -FI_ENOMEM;
  }
}

int OpenChannel(HwCq* hw) {
  client::Session* session = hw->domain->session;
  shm::HandleReply reply = {};
  const int error =
      session->Execute(shm::CommandOp::kCreateChannel, nullptr, 0, &reply, sizeof(reply));
  if (error != 0) return FiError(error);
  hw->channel = reply.handle;
  hw->channel_fd = session->TakeChannelFd(reply.handle);
  return hw->channel_fd >= 0 ? 0 : FiError(errno);
}

void Destroy(HwCq* hw, shm::CommandOp op, shm::Handle handle) {
  const shm::HandleRequest request = {handle, 0};
  if (handle != 0) {
    hw->domain->session->Execute(op, &request, sizeof(request), nullptr, 0);
  }
}

int MakeRing(HwCq* hw, uint32_t entries) {
  const shm::CreateCqRequest request = {
      hw->channel, 0, entries, 0, reinterpret_cast<uint64_t>(hw), 0};
  shm::CreateCqReply reply = {};
  const int error = hw->domain->session->Execute(shm::CommandOp::kCreateCq, &request,
                                                 sizeof(request), &reply, sizeof(reply));
  if (error != 0) return FiError(error);
  hw->handle = reply.cq;
  const RingMemory memory = hw->domain->session->MapRing(reply.place);
  if (!memory.IsValid()) return -FI_ENOMEM;
  hw->ring = CqConsumer(memory, reply.place.entries);
  hw->entries = reply.place.entries;
  return 0;
}

// The lock is held.
int Resize(HwCq* hw, uint32_t entries) {
  const shm::ResizeCqRequest request = {hw->handle, entries, 0};
  shm::CreateCqReply reply = {};
  hw->ring.Publish();
  const int error = hw->domain->session->Execute(shm::CommandOp::kResizeCq, &request,
                                                 sizeof(request), &reply, sizeof(reply));
  // What the NIC can't give is room; what it does not say is what of it.
  if (error != 0) return error == EIO ? -FI_EIO : -FI_ENOMEM;
  const RingMemory memory = hw->domain->session->MapRing(reply.place);
  if (!memory.IsValid()) return -FI_ENOMEM;
  hw->ring.MoveTo(memory, reply.place.entries);
  hw->entries = reply.place.entries;
  return 0;
}

// Hands out what there is; with `is_room_asked` only what the program's CQ has room for. False:
// nothing.
bool TakeCompletions(HwCq* hw, bool is_room_asked) {
  Guard guard(hw->lock);
  uint32_t taken = 0;
  for (; taken < kCqeBatch; ++taken) {
    const shm::Cqe* cqe = hw->ring.Peek();
    if (cqe == nullptr || (is_room_asked && hw->cq != nullptr && !HasRoom(hw->cq))) break;
    OnCompletion(hw, *cqe);
    hw->ring.Consume();
  }
  if (taken != 0) hw->ring.Publish();
  return taken != 0;
}

bool IsEmpty(HwCq* hw) {
  Guard guard(hw->lock);
  return hw->ring.Peek() == nullptr;
}

void TellDeath(HwCq* hw, HwMember* member) {
  if (member->knows_of_death) return;
  const auto on_death = member->endpoint->kind->on_death;
  if (on_death != nullptr) on_death(member->endpoint, hw);
  member->knows_of_death = true;
  hw->unaware.fetch_sub(1);  // behind what it has told (IsOver)
}
void Advance(HwCq* hw, HwMember* member) {
  const auto progress = member->endpoint->kind->progress;
  if (progress != nullptr) progress(member->endpoint, hw);
}
void PrepareToSleep(HwCq*, HwMember* member) {
  const auto before_sleep = member->endpoint->kind->before_sleep;
  if (before_sleep != nullptr) before_sleep(member->endpoint);
}

// Members that must do something of their own. Who finds another thread at it leaves it to that.
void ServeMembers(HwCq* hw, void (*serve)(HwCq*, HwMember*)) {
  if (!hw->members_lock.TryLock()) return;
  for (size_t i = 0; i < hw->members.size(); ++i) serve(hw, &hw->members[i]);
  hw->members_lock.Unlock();
}

}  // namespace

int OpenHwCq(Domain* domain, uint32_t entries, bool with_channel, HwCq** out) {
  client::NoCancel no_cancel;
  auto* hw = new (std::nothrow) HwCq();
  if (hw == nullptr) return -FI_ENOMEM;
  hw->domain = domain;
  ElideIfAlone(hw->lock, domain->threading);
  ElideIfAlone(hw->members_lock, domain->threading);
  int error = with_channel ? OpenChannel(hw) : 0;
  if (error == 0) error = MakeRing(hw, entries < 1 ? 1 : entries);
  if (error != 0) {
    CloseHwCq(hw);
    return error;
  }
  *out = hw;
  return 0;
}

void CloseHwCq(HwCq* hw) {
  client::NoCancel no_cancel;
  Destroy(hw, shm::CommandOp::kDestroyCq, hw->handle);
  Destroy(hw, shm::CommandOp::kDestroyChannel, hw->channel);
  if (hw->channel_fd >= 0) close(hw->channel_fd);
  delete hw;
}

namespace {

// The lock is held. It says what to do about it: libfabric has no attribute that tells how many
// endpoints one CQ can have.
int Enlarge(HwCq* hw, uint64_t room) {
  int error = -FI_ENOMEM;
  if (room <= UINT32_MAX / 2) error = Resize(hw, std::bit_ceil(static_cast<uint32_t>(room)));
  if (error != -FI_ENOMEM) return error;
  VERBENA_FI_WARN(FI_LOG_CQ,
                  "no room for one more endpoint in its CQ, which would need %llu entries: open "
                  "several CQs, or endpoints of smaller tx_attr.size and rx_attr.size",
                  static_cast<unsigned long long>(room));
  return error;
}

// The lock is held.
int ReserveLocked(HwCq* hw, int64_t entries) {
  const uint64_t wanted = hw->reserved_entries + static_cast<uint64_t>(entries);
  if (entries > 0) {
    const uint64_t room = RingEntriesFor(wanted, hw->has_receives);
    const int error = room > hw->entries ? Enlarge(hw, room) : 0;
    if (error != 0) return error;
    if (hw->cq != nullptr && !MakeRoom(hw->cq, wanted)) return -FI_ENOMEM;
  }
  hw->reserved_entries = wanted;
  return 0;
}

}  // namespace

int Reserve(HwCq* hw, int64_t entries) {
  client::NoCancel no_cancel;
  Guard guard(hw->lock);
  return ReserveLocked(hw, entries);
}

int ReserveForReceives(HwCq* hw, int64_t entries) {
  client::NoCancel no_cancel;
  Guard guard(hw->lock);
  hw->has_receives = true;
  return ReserveLocked(hw, entries);
}

int Join(HwCq* hw, Endpoint* ep) {
  Guard guard(hw->members_lock);
  for (HwMember& member : hw->members) {
    if (member.endpoint != ep) continue;
    ++member.joins;
    return 0;
  }
  if (!hw->members.Push({ep, 1, false})) return -FI_ENOMEM;
  if (ep->progress_fd >= 0) {
    if (const int error = AddWakeFd(hw, ep->progress_fd); error != 0) {
      hw->members.RemoveAt(hw->members.size() - 1);
      return error;
    }
  }
  hw->unaware.fetch_add(1);
  if (ep->kind->progress != nullptr) hw->with_progress.fetch_add(1);
  if (ep->kind->before_sleep != nullptr) hw->with_before_sleep.fetch_add(1);
  return 0;
}

void Leave(HwCq* hw, Endpoint* ep) {
  Guard guard(hw->members_lock);
  for (size_t i = 0; i < hw->members.size(); ++i) {
    HwMember& member = hw->members[i];
    if (member.endpoint != ep || --member.joins != 0) continue;
    if (!member.knows_of_death) hw->unaware.fetch_sub(1);
    if (ep->progress_fd >= 0) RemoveWakeFd(hw, ep->progress_fd);
    if (ep->kind->progress != nullptr) hw->with_progress.fetch_sub(1);
    if (ep->kind->before_sleep != nullptr) hw->with_before_sleep.fetch_sub(1);
    hw->members.RemoveAt(i);
    return;
  }
}

int AddWakeFd(HwCq* hw, int fd) { return hw->cq == nullptr ? 0 : AddWakeFd(hw->cq, fd); }
void RemoveWakeFd(HwCq* hw, int fd) {
  if (hw->cq != nullptr) RemoveWakeFd(hw->cq, fd);
}

void Progress(HwCq* hw) {
  client::Session* session = hw->domain->session;
  if (__builtin_expect(session->IsForkedCopy(), 0)) return;
  if (hw->with_progress.load(std::memory_order_relaxed) != 0) ServeMembers(hw, Advance);
  if (TakeCompletions(hw, /*is_room_asked=*/true)) {
    hw->empty_polls.Reset();
    return;
  }
  if (__builtin_expect(session->KnownDead(), 0)) {
    // What the NIC completed before its end comes first.
    if (hw->unaware.load() != 0 && IsEmpty(hw)) ServeMembers(hw, TellDeath);
    return;
  }
  hw->empty_polls.OnEmpty(session);
}

void TakeAll(HwCq* hw) {
  if (hw->domain->session->IsForkedCopy()) return;
  while (TakeCompletions(hw, /*is_room_asked=*/false)) {
  }
}

void Arm(HwCq* hw) {
  if (hw->channel == 0 || hw->domain->session->IsForkedCopy()) return;
  Guard guard(hw->lock);
  hw->ring.Arm(false);
}

void ServeBeforeSleep(HwCq* hw, Waiter* waiter) {
  if (hw->with_before_sleep.load() == 0 || hw->domain->session->IsForkedCopy()) return;
  if (waiter->IsReady()) ServeMembers(hw, PrepareToSleep);
}

bool IsOver(HwCq* hw) {
  client::Session* session = hw->domain->session;
  return __builtin_expect(session->KnownDead(), 0) && !session->IsForkedCopy() &&
         hw->unaware.load() == 0 && IsEmpty(hw);
}

void TakeEvents(HwCq* hw) {
  // A forked child must not take its parent's.
  if (hw->channel_fd < 0 || hw->domain->session->IsForkedCopy()) return;
  client::NoCancel no_cancel;
  const int saved_errno = errno;
  for (;;) {
    shm::ChannelEvent event;
    const ssize_t bytes = recv(hw->channel_fd, &event, sizeof(event), MSG_DONTWAIT);
    if (bytes == sizeof(event)) continue;
    if (bytes == 0) hw->domain->session->MarkDead();
    break;
  }
  errno = saved_errno;
}

bool HasMore(HwCq* hw) {
  if (hw->domain->session->IsForkedCopy()) return false;
  if (!IsEmpty(hw)) return true;
  return hw->domain->session->KnownDead() && hw->unaware.load() != 0;
}

}  // namespace verbena::fi
