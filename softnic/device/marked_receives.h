// Receives of a marked SRQ (core/shm/rdm.h) from when the NIC has fetched them until their slots
// are free: taken out of order, some for several messages.
//
// A receive is taken for a message (Take), the message's end says how much of it it needs (Settle),
// and it completes (Finish) or is given back (Return). One that holds several messages is busy from
// Take to Settle: no other message goes into it meanwhile.
//
// Invariant: every receive is in `by_wr_id_`; those that a message may take are in `available_` by
// their source (0: anybody's), in the order posted.
//
// Thread: the shard.   Trust: what a mark says is the client's word, about its own memory.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/shm/layout.h"
#include "core/shm/rdm.h"
#include "transport/qp_host.h"

namespace verbena::softnic {

// A part of a receive that a QP's message has.
struct HeldReceive {
  uint64_t part = 0;    // names it alone: empty messages begin where others do
  uint64_t ticket = 0;  // of the receive
  uint64_t offset_bytes = 0;
  uint64_t taken_bytes = 0;
  bool is_settled = false;
};

// A receive is gone, and a completion has to say so alone.
struct ReceiveRelease {
  uint32_t session = 0;
  uint32_t cq = 0;  // handle
  uint64_t wr_id = 0;
  uint32_t offset_bytes = 0;
};

class MarkedReceives {
 public:
  static constexpr uint64_t kNoTicket = 0;

  // False: it has no mark, or one that means nothing.
  bool Add(const transport::RecvWork& work);
  // The first receive posted that takes messages of `source`.
  uint64_t Find(uint32_t source) const;
  bool IsMulti(uint64_t ticket) const { return At(ticket).IsMulti(); }
  bool IsBusy(uint64_t ticket) const { return At(ticket).is_busy; }

  // What is left of it; it is the message's. RecvWork::ticket names the part. Precondition: Find
  // found it, and it is not busy.
  HeldReceive Take(uint64_t ticket, transport::RecvWork* out);
  void Settle(HeldReceive* held, uint64_t bytes);
  // A message that was settled goes on: false if others came behind it meanwhile.
  bool Reopen(HeldReceive* held);
  enum class After { kStays, kReleased };
  // The message completes. kReleased: it was the last one, the receive is gone.
  After Finish(const HeldReceive& held, bool has_failed);
  // The message never was. kReleased: as Finish, but there is no completion that could tell.
  After Return(const HeldReceive& held);

  struct Cancelled {
    bool is_found = false;
    uint32_t messages = 0;  // that have completed in it
  };
  // Found: it is gone.
  Cancelled Cancel(uint64_t wr_id);
  uint64_t WrIdOf(uint64_t ticket) const { return At(ticket).wr_id; }
  size_t size() const { return receives_.size(); }

 private:
  struct Receive {
    bool IsMulti() const { return (flags & shm::kRecvMulti) != 0; }

    uint64_t wr_id = 0;
    uint32_t flags = 0;
    uint32_t min_free_bytes = 0;
    uint32_t source = 0;
    uint32_t unfinished = 0;  // messages that have a part of it, and no completion yet
    uint32_t finished = 0;    // that have a completion
    uint64_t used_bytes = 0;  // where the next message begins
    uint64_t total_bytes = 0;
    bool is_busy = false;
    bool is_spent = false;  // takes no more
    std::vector<shm::Sge> sges;
  };

  const Receive& At(uint64_t ticket) const { return receives_.at(ticket); }
  void Offer(uint64_t ticket, const Receive& receive);
  void Withdraw(uint64_t ticket, const Receive& receive);
  // Takes no more; what is under way completes.
  void Spend(uint64_t ticket, Receive* receive);
  After EndIfDone(uint64_t ticket, const Receive& receive);
  void Erase(uint64_t ticket, const Receive& receive);

  uint64_t next_ticket_ = 1;
  uint64_t next_part_ = 1;
  std::map<uint64_t, Receive> receives_;
  std::map<uint32_t, std::set<uint64_t>> available_;
  std::set<std::pair<uint64_t, uint64_t>> by_wr_id_;  // with the ticket
};

}  // namespace verbena::softnic
