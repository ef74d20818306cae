// Memory regions, as the files about them have them: mr.cc registers, mr_bind.cc has counters and
// endpoints, mr_events.cc registration that is told of by the EQ, mr_raw.cc raw keys.
#pragma once

#include <cstdint>

#include "core/client/registration.h"
#include "fi_shim/objects.h"

namespace verbena::fi {

struct Endpoint;
struct Protection;

inline constexpr size_t kMrIovLimit = 1;  // one key names one range
inline constexpr size_t kMrKeyBytes = 4;  // on the wire; and of raw keys
inline constexpr uint64_t kMrKeyMax = UINT32_MAX;

struct Mr::State {
  // As asked for.
  uint64_t addr = 0, length = 0;
  uint64_t access = 0;  // FI_SEND, FI_RECV …
  uint64_t requested_key = 0;
  bool may_be_absent = false;           // its pages, while it is registered: no FI_MR_ALLOCATED
  bool begins_disabled = false;         // FI_MR_RMA_EVENT with its flag, or FI_MR_ENDPOINT
  Protection* protection = nullptr;     // of its auth_key, or none
  DeviceRange* device_range = nullptr;  // hmem.h

  // As the NIC has it; 0: not at all (an endpoint or an event is waited for).
  shm::Handle handle = 0;
  uint32_t key = 0;
  client::Registration* registration = nullptr;

  bool is_enabled = false;
  Endpoint* endpoint = nullptr;  // that it is bound to
  Cntr* read_counter = nullptr;
  Cntr* write_counter = nullptr;
  Mr* previous = nullptr;  // Domain::mrs
  Mr* next = nullptr;
  Mr* next_pending = nullptr;  // mr_events.cc
  bool is_pending = false;
};

// Registers with the NIC, in the PD. What it can't do is as ibv_reg_mr gives it, as a FI errno, and
// -FI_ENOKEY: the key is taken.
int Register(Mr* mr, shm::Handle pd);
// The key dies with it; nothing touches the memory through the NIC any more.
void Deregister(Mr* mr);
// The PD that it is registered in where it is no endpoint's.
shm::Handle PdOf(const Mr* mr);

// mr_events.cc. The region is registered when the EQ is read, which is told of it.
void RegisterLater(Mr* mr);
void ForgetPending(Mr* mr);

// mr_bind.cc
int BindMr(fid* fid, struct fid* to, uint64_t flags);
int EnableMr(Mr* mr);
void UnbindCounters(Mr* mr);  // it is deregistered
// mr_raw.cc
int RawAttr(const Mr* mr, const struct fi_mr_raw_attr* out);

}  // namespace verbena::fi
