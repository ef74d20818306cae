// One client's doorbells and command slots, as the shard polls them.
//
// Thread: the leader. Trust: the control area is the client's to scribble on; what is true about it
// (which slots are busy, which bits are still to be served) stands here, in the daemon's memory.
#pragma once

#include <cstdint>

#include "core/base/instant.h"
#include "core/shm/command.h"
#include "core/shm/layout.h"
#include "softnic/device/services.h"

namespace verbena::softnic {

struct ClientPort {
  SessionId id = 0;
  shm::ControlArea* area = nullptr;
  shm::StatusPage* status = nullptr;
  int doorbell_event = -1;

  struct Slot {
    uint32_t submitted = 0;  // of the last command taken from the slot
    bool is_busy = false;    // taken and not completed
  };
  Slot slots[shm::kCommandSlots];

  // Doorbell bits taken from shared memory and not served yet.
  uint16_t summaries_left = 0;  // bit per word of summary[]
  uint64_t summary_bits[shm::kDoorbellSummaries] = {};
  uint32_t leaf = 0;
  uint64_t leaf_bits = 0;
  uint64_t deferred_commands = 0;  // slots that wait for commands_not_before

  bool is_parked = true;        // sleeping == 1: the client rings its eventfd
  bool is_quarantined = false;  // lied; waits for the control thread to end it
  bool is_recent = false;       // in the shard's list of recently active clients
  Instant last_ring{0};
  Instant commands_not_before{0};
  uint32_t index = 0;  // in the shard's list
};

}  // namespace verbena::softnic
