// What libfabric's endpoints have of regions beyond verbs: keys of a PD's own, regions that are not
// open yet, and counters of what peers have done to them.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/shm/rdm.h"
#include "softnic/device/device_core.h"
#include "softnic/device/mr_checks.h"

namespace verbena::softnic {

int DeviceCore::AllocOwnKeyPd(Command& command) {
  if (int error = AllocPd(command); error != 0) return error;
  shm::HandleReply reply;
  std::memcpy(&reply, command.reply, sizeof(reply));
  command.session->pds.Find(reply.handle)->own_keys = std::make_unique<OwnKeys>();
  return 0;
}

int DeviceCore::EnableMr(Command& command) {
  Mr* mr = command.session->mrs.Find(command.Request<shm::HandleRequest>().handle);
  if (mr == nullptr) return EINVAL;
  mr->is_disabled = false;
  return 0;
}

// --- counters ------------------------------------------------------------------------------------

namespace {

// A cache line of its own.
constexpr uint32_t kCounterBytes = sizeof(shm::RdmCounter);
static_assert(offsetof(shm::RdmCounter, operations) == 0);

}  // namespace

// None is fine; one that is named has to be there.
int DeviceCore::FindCounters(const Session& session, shm::Handle read, shm::Handle write,
                             PeerCounters* out) {
  out->read = read != 0 ? session.counters.Find(read) : nullptr;
  out->write = write != 0 ? session.counters.Find(write) : nullptr;
  const bool is_missing =
      (read != 0 && out->read == nullptr) || (write != 0 && out->write == nullptr);
  return is_missing ? EINVAL : 0;
}

void PeerCounters::Set(const PeerCounters& to) {
  for (Counter* counter : {to.read, to.write}) {
    if (counter != nullptr) ++counter->users;
  }
  for (Counter* counter : {read, write}) {
    if (counter != nullptr) --counter->users;
  }
  *this = to;
}

int DeviceCore::CreateCounter(Command& command) {
  Session& session = *command.session;
  if (session.counters.size() >= kCountersPerSession || session.counters.IsFull()) return ENOMEM;
  auto owned = std::make_unique<Counter>();
  Counter* counter = owned.get();
  int error = session.services->AllocateQueue(kCounterBytes, &counter->queue);
  if (error != 0) return error;
  counter->session = &session;
  counter->handle = session.counters.Insert(std::move(owned));
  shm::CreateCounterReply reply{};
  reply.counter = counter->handle;
  reply.place.arena = counter->queue.arena;
  reply.place.offset = counter->queue.offset;
  reply.place.bytes = counter->queue.bytes;
  reply.place.stride_bytes = kCounterBytes;
  reply.place.entries = 1;
  command.Reply(reply);
  return 0;
}

int DeviceCore::DestroyCounter(Command& command) {
  Session& session = *command.session;
  Counter* counter = session.counters.Find(command.Request<shm::HandleRequest>().handle);
  if (counter == nullptr) return ENOENT;
  if (counter->users != 0) return EBUSY;
  RemoveCounter(*counter);
  return 0;
}

void DeviceCore::RemoveCounter(Counter& counter) {
  counter.session->services->FreeQueue(counter.queue);
  counter.session->counters.Remove(counter.handle);
}

// The region's counters are in memory of its own process: one that imported the region has others.
int DeviceCore::BindMrCounter(Command& command) {
  Session& session = *command.session;
  auto request = command.Request<shm::BindMrCounterRequest>();
  Mr* mr = session.mrs.Find(request.mr);
  if (mr == nullptr || !mr->has_own_key || mr->session != &session) return EINVAL;
  if (mr->memory == kNoMemory) return EINVAL;
  PeerCounters counters;
  if (int error = FindCounters(session, request.read, request.write, &counters); error != 0) {
    return error;
  }
  SetRegionCounters(*mr, counters);
  return 0;
}

void DeviceCore::SetRegionCounters(Mr& mr, const PeerCounters& counters) {
  const bool counted = mr.counters.IsAny();
  mr.counters.Set(counters);
  const bool counts = mr.counters.IsAny();
  if (counts == counted) return;
  if (counts) {
    ++mr.pd->counted_regions;
    counted_regions_[mr.memory] = &mr;
  } else {
    --mr.pd->counted_regions;
    counted_regions_.erase(mr.memory);
  }
}

int DeviceCore::BindQpCounter(Command& command) {
  Session& session = *command.session;
  auto request = command.Request<shm::BindQpCounterRequest>();
  DeviceQp* qp = session.qps.Find(request.qp);
  if (qp == nullptr || qp->service() != Service::kRc) return EINVAL;
  PeerCounters counters;
  if (int error = FindCounters(session, request.read, request.write, &counters); error != 0) {
    return error;
  }
  qp->counters.Set(counters);
  return 0;
}

// Release: pairs with the acquire of who reads a counter and then what the peer has written.
void Counter::CountOne() {
  queue.memory.StoreRelease64(offsetof(shm::RdmCounter, operations), ++operations);
}

void DeviceCore::CountPeerAccess(DeviceQp& qp, bool is_write, transport::MemoryId memory) {
  auto count = [is_write](const PeerCounters& counters) {
    Counter* counter = is_write ? counters.write : counters.read;
    if (counter != nullptr) counter->CountOne();
  };
  count(qp.counters);
  if (qp.pd->counted_regions == 0) return;
  auto found = counted_regions_.find(memory);
  if (found != counted_regions_.end()) count(found->second->counters);
}

}  // namespace verbena::softnic
