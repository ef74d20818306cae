// The shard's inputs from clients: doorbells and commands, bounded per client and turn.
#include <sys/epoll.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "core/base/prefetch.h"
#include "core/clock/monotonic_clock.h"
#include "softnic/engine/shard.h"

namespace verbena::softnic {

namespace {

// One client's share of a turn. A flood of commands or doorbells beyond it waits for the next turn,
// so that it costs the others' latency a few microseconds, however fast it floods.
constexpr uint32_t kDoorbellsPerTurn = 64;
constexpr uint32_t kCommandsPerTurn = 2;
// A client seen idle for this long rings its eventfd again and is polled no more.
constexpr Duration kParkAfter = Milliseconds(2);
// A costly command (queues of many megabytes) makes its client wait ten times as long as it took.
constexpr Duration kCostlyCommand = Microseconds(100);
constexpr int64_t kCostlyCommandPause = 10;
// A client that rings for nothing beyond its pace is not heard for so long.
constexpr Duration kSuspension = Milliseconds(1);

// Whether the command is to make memory of its client reachable, and which.
bool NamesMemory(const shm::CommandRequest& request, shm::RegMrRequest* out) {
  const auto op = static_cast<shm::CommandOp>(request.op);
  if (op == shm::CommandOp::kRegMr) {
    std::memcpy(out, request.payload, sizeof(*out));
    // Of a whole process nothing has to be there.
    return (out->flags & (shm::kRegMrWholeProcess | shm::kRegMrUnprobed)) == 0;
  }
  if (op != shm::CommandOp::kReregMr) return false;
  shm::ReregMrRequest rereg;
  std::memcpy(&rereg, request.payload, sizeof(rereg));
  *out = rereg.region;
  return (rereg.changes & shm::kReregTranslation) != 0 && (out->flags & shm::kRegMrUnprobed) == 0;
}

}  // namespace

bool Shard::ListenTo(ClientPort* port, int epoll_operation) {
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLET;
  event.data.ptr = port;
  return epoll_ctl(epoll_, epoll_operation, port->doorbell_event, &event) == 0;
}

bool Shard::AddPort(ClientPort* port) {
  if (!ListenTo(port, EPOLL_CTL_ADD)) return false;
  port->index = static_cast<uint32_t>(ports_.size());
  port->is_parked = true;
  port->status->sleeping.store(1, std::memory_order_seq_cst);
  ports_.push_back(port);
  Unpark(port);  // it may have rung before anybody listened
  return true;
}

void Shard::RemovePort(ClientPort* port) {
  std::erase(active_, port);
  std::erase(recent_, port);
  std::erase_if(suspended_, [port](const Suspension& s) { return s.port == port; });
  if (rang_last_ == port) rang_last_ = nullptr;
  if (port->index >= ports_.size() || ports_[port->index] != port) return;
  ports_.back()->index = port->index;
  ports_[port->index] = ports_.back();
  ports_.pop_back();
  // The client holds the eventfd too, so closing ours would not take it out.
  epoll_ctl(epoll_, EPOLL_CTL_DEL, port->doorbell_event, nullptr);
}

void Shard::Park(ClientPort* port) {
  port->is_parked = true;
  // The caller's fence orders it.
  port->sleep = std::max(1U, port->sleep + 1);
  port->status->sleeping.store(port->sleep, std::memory_order_relaxed);
}

void Shard::Unpark(ClientPort* port) {
  if (!port->is_parked || !port->MayBePolled()) return;
  port->last_ring = now_;
  Poll(port);
}

void Shard::Poll(ClientPort* port) {
  port->is_parked = false;
  port->status->cpu.store(polls_on_cpu_, std::memory_order_relaxed);
  port->status->sleeping.store(0, std::memory_order_relaxed);
  active_.push_back(port);
}

bool Shard::PollPorts() {
  bool any = false;
  ports_busy_ = false;
  for (size_t i = 0; i < active_.size();) {
    ClientPort* port = active_[i];
    if (PollPort(port)) {
      any = true;
      port->last_ring = now_;
      rang_last_ = port;
      NoteCpu(port);
      // The client has just looked at it; it is written again when we sleep.
      PrefetchForWrite(&port->status->sleeping);
      if (!port->is_recent) recent_.push_back(port);
      port->is_recent = true;
    } else if (now_ - port->last_ring > kParkAfter && port->deferred_commands == 0) {
      Park(port);
      // Full fence between saying "sleeping" and the last look; pairs with the client's between its
      // doorbell and its look at `sleeping`.
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (!port->doorbells.HasRung(port->area->doorbells)) {
        active_[i] = active_.back();
        active_.pop_back();
        continue;
      }
      port->is_parked = false;
      port->status->sleeping.store(0, std::memory_order_relaxed);
    }
    if (active_.size() > 1 && !port->fruitless.IsDue(now_)) Suspend(port);
    if (!port->MayBePolled()) {
      active_[i] = active_.back();
      active_.pop_back();
      continue;
    }
    ports_busy_ |= port->doorbells.HasBits();
    ++i;
  }
  return any;
}

// Who runs where the shard slept may have waited for it to sleep (SpinPolicy).
void Shard::NoteCpu(ClientPort* port) {
  const uint64_t sleeps = sleeps_.load(std::memory_order_relaxed);
  if (port->sleeps_seen == sleeps) return;
  port->sleeps_seen = sleeps;
  port->follows = port->LastCpu() == slept_on_cpu_;
}

bool Shard::PollPort(ClientPort* port) {
  DoorbellScan& doorbells = port->doorbells;
  // Most likely the queue rung before is rung again. Its lines come beside the doorbell's then, and
  // not after it: who waits for an answer from another core waits for one line less.
  if (port->is_recent) device_->ExpectDoorbell(port->id, port->last_doorbell);
  Count(thread_rings_, doorbells.Take(port->area->doorbells));
  if (port->deferred_commands != 0 && doorbells.leaf_bits == 0 && port->commands.IsDue(now_)) {
    doorbells.leaf = 0;
    doorbells.leaf_bits = std::exchange(port->deferred_commands, 0);
  }
  if (!doorbells.HasBits()) return false;
  uint32_t budget = kDoorbellsPerTurn;
  rung_.clear();
  while (budget != 0 && !port->is_quarantined) {
    if (doorbells.leaf_bits == 0) {
      if (!doorbells.HasBits()) break;
      doorbells.TakeLeaf(port->area->doorbells);
      budget -= 1;  // a summary bit without leaf bits is work too
      if (doorbells.leaf_bits == 0) continue;
    }
    if (doorbells.leaf == 0) {
      ServeRung(port);  // what was posted before a command comes before it
      budget = ServeCommands(port, budget);
    } else {
      budget = GatherRung(doorbells, budget);
    }
  }
  ServeRung(port);
  return true;
}

// Serves commands of the current leaf word; returns what is left of the budget.
uint32_t Shard::ServeCommands(ClientPort* port, uint32_t budget) {
  uint64_t& bits = port->doorbells.leaf_bits;
  if (!port->commands.IsDue(now_)) {
    // Its queues are served meanwhile.
    port->deferred_commands |= std::exchange(bits, 0);
    return budget;
  }
  for (uint32_t i = 0; i < kCommandsPerTurn && bits != 0 && budget != 0; ++i) {
    uint32_t slot = static_cast<uint32_t>(std::countr_zero(bits));
    bits &= bits - 1;
    ServeCommand(port, slot);
    if (port->is_quarantined) return 0;
    budget -= 1;
  }
  return bits == 0 ? budget : 0;
}

// Takes doorbells out of the current leaf word; returns what is left of the budget.
uint32_t Shard::GatherRung(DoorbellScan& doorbells, uint32_t budget) {
  uint64_t& bits = doorbells.leaf_bits;
  for (; bits != 0 && budget != 0; --budget) {
    rung_.push_back(doorbells.leaf * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
    bits &= bits - 1;
  }
  return budget;
}

void Shard::ServeRung(ClientPort* port) {
  if (rung_.empty()) return;
  for (uint32_t fruitless =
           device_->OnDoorbells(now_, port->id, rung_.data(), static_cast<uint32_t>(rung_.size()));
       fruitless != 0; --fruitless) {
    port->fruitless.Count(now_);
  }
  port->last_doorbell = rung_.back();
  rung_.clear();
}

void Shard::ServeCommand(ClientPort* port, uint32_t slot) {
  shm::CommandSlot& shared = port->area->slots[slot];
  ClientPort::Slot& state = port->slots[slot];
  // Acquire: pairs with the client's release after it wrote the request.
  uint32_t submitted = shared.submitted.load(std::memory_order_acquire);
  if (submitted == state.submitted) return;  // a doorbell without a command
  if (state.is_busy || submitted != state.submitted + 1) return Quarantine(port);
  shm::CommandRequest request;
  std::memcpy(&request, &shared.request, sizeof(request));
  state.submitted = submitted;
  state.is_busy = true;
  if (request.payload_bytes > shm::kCommandPayloadBytes) return Quarantine(port);
  shm::RegMrRequest reg;
  if (!NamesMemory(request, &reg)) return PassCommand(port, slot, submitted, request);
  // Whether the memory is there is asked first, off the device's stack: touching it may hang.
  SessionId session = port->id;
  Probe(session, reg.addr, reg.length, (reg.flags & shm::kRegMrAssisted) != 0,
        [this, port, session, slot, submitted, request](int error, uint64_t) {
          bool is_there = std::any_of(ports_.begin(), ports_.end(),
                                      [&](ClientPort* p) { return p == port && p->id == session; });
          if (!is_there) return;  // closed meanwhile
          dma_->SetProbed(error);
          PassCommand(port, slot, submitted, request);
          dma_->SetProbed(0);
        });
}

void Shard::PassCommand(ClientPort* port, uint32_t slot, uint32_t submitted,
                        const shm::CommandRequest& request) {
  device_->OnCommand(now_, port->id, slot, submitted, request);
  if (active_.size() < 2) return;
  port->commands.Count(now_);
  Duration took = ReadMonotonicClock() - now_;
  if (took > kCostlyCommand) port->commands.Pause(now_ + took * kCostlyCommandPause);
}

// Its doorbell event is not heard either: each would wake the shard.
void Shard::Suspend(ClientPort* port) {
  port->is_suspended = true;
  port->is_parked = true;
  epoll_event event = {};
  epoll_ctl(epoll_, EPOLL_CTL_MOD, port->doorbell_event, &event);
  suspended_.push_back({port, now_ + kSuspension});
}

void Shard::EndSuspensions() {
  // In the order of their ends: all last equally long.
  size_t over = 0;
  for (; over < suspended_.size() && suspended_[over].until <= now_; ++over) {
    ClientPort* port = suspended_[over].port;
    port->is_suspended = false;
    ListenTo(port, EPOLL_CTL_MOD);
    Unpark(port);  // it rang meanwhile
  }
  suspended_.erase(suspended_.begin(), suspended_.begin() + static_cast<ptrdiff_t>(over));
}

void Shard::Quarantine(ClientPort* port) {
  if (port->is_quarantined) return;
  port->is_quarantined = true;
  port->doorbells.leaf_bits = 0;
  if (on_hostile_) on_hostile_(port);
}

}  // namespace verbena::softnic
