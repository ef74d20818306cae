// What the device asks of the process around it: queue memory, fds, DMA. The daemon implements
// these with memfds, sockets and process_vm_*; tests and the simulator in plain memory.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/ring/ring_memory.h"
#include "core/shm/attach.h"
#include "core/shm/command.h"
#include "transport/qp_transport.h"

namespace verbena::softnic {

using SessionId = uint32_t;                  // never reused within a daemon's life; 0 is none
inline constexpr SessionId kNicSession = 0;  // of DMA: whose memory is the NIC's

// Memory for one queue, zeroed and really backed (no later SIGBUS).
struct QueueMemory {
  RingMemory memory;
  uint32_t arena = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Memory of the NIC itself, zeroed and backed, which clients may map.
class NicMemory {
 public:
  virtual ~NicMemory() = default;
  std::byte* data = nullptr;
  uint64_t bytes = 0;
};

// One client's side of the device. Thread: the shard.
class SessionServices {
 public:
  virtual ~SessionServices() = default;
  // 0 or errno (ENOMEM). A new arena's fd is on its way to the client when this returns.
  virtual int AllocateQueue(uint64_t bytes, QueueMemory* out) = 0;
  virtual void FreeQueue(const QueueMemory& queue) = 0;
  // The doorbell page of a thread domain is polled from now on; and no more.
  virtual void OpenDoorbells(uint32_t page, const QueueMemory& memory) = 0;
  virtual void CloseDoorbells(uint32_t page) = 0;
  // 0 or errno (EMFILE, ENOMEM). The read end is on its way to the client when this returns.
  virtual int OpenChannel(shm::Handle channel) = 0;
  virtual void CloseChannel(shm::Handle channel) = 0;
  // 0 or errno (EMFILE, ENOMEM). A copy of the payload file's fd is on its way to the client when
  // this returns.
  virtual int SendPayload(int fd) = 0;
  // Takes both fds. 0 or errno (EMFILE, ENOMEM); they are on their way when this returns.
  virtual int SendAssist(int file, int socket) { return EOPNOTSUPP; }
  // 0 or errno (ENOMEM, EMFILE).
  virtual int MakeMemory(uint64_t bytes, std::shared_ptr<NicMemory>* out) { return EOPNOTSUPP; }
  // 0 or errno. The memory's fd is on its way to the client when this returns.
  virtual int SendMemory(shm::Handle dm, const NicMemory& memory) { return EOPNOTSUPP; }
  // False: the fd is full; the device keeps the event and calls again from FlushEvents().
  virtual bool SendChannelEvent(shm::Handle channel, const shm::ChannelEvent& event) = 0;
  virtual bool SendAsyncEvent(const shm::AsyncEventMessage& event) = 0;
  // Finishes the command in `slot` and wakes its waiter.
  virtual void CompleteCommand(uint32_t slot, uint32_t submitted, int error, const void* payload,
                               uint32_t payload_bytes, uint32_t detail) = 0;
};

// No region: AddRegion never gives this id out, and what names it is a fault.
inline constexpr transport::MemoryId kNoMemory = 0;
// Nobody's memory either, at any address: it reads as zeroes, and what is written to it vanishes.
// It needs no region and no fence.
inline constexpr transport::MemoryId kNullMemory = ~transport::MemoryId{0};

// Ids with this bit are the device's, for what memory windows grant: AddRegion gives none out.
inline constexpr transport::MemoryId kWindowMemoryBit = 1u << 31;

// Memory of a session's process. The pieces say which of it are pages of a payload file.
struct RegionSpec {
  uint64_t addr = 0;
  uint64_t length = 0;
  uint64_t payload = 0;  // id of the file
  const shm::MappedPiece* pieces = nullptr;
  uint32_t piece_count = 0;
  bool must_be_mapped = false;    // each of the pieces
  bool must_be_assisted = false;  // what is not mapped
};

// What a fault was about.
enum class DmaFault : uint8_t {
  kMemory,
  kOwnerGone,  // the process whose memory it is has ended
  kRevoked,    // nothing: a fence was not to wait for the other end (kSourceFault)
};

// Carries out movements of payload. Thread: the shard.
class DmaEngine {
 public:
  virtual ~DmaEngine() = default;
  // The payload file that the session shares with its process's other sessions: one the client
  // knows (the id of *out is among `known`, *fd is -1), or a new one, of which the client needs a
  // copy of *fd. 0 or errno.
  virtual int OpenPayload(SessionId session, const uint64_t* known, uint32_t known_count,
                          uint64_t* out, int* fd) {
    return EOPNOTSUPP;
  }
  // The session's process gets a helper (core/shm/assist.h): its fds, which are the caller's then.
  // 0 or errno; EBUSY: it had one before.
  virtual int OpenAssist(SessionId session, int* file, int* socket) { return EOPNOTSUPP; }
  // A region of the session's process becomes reachable; or of the NIC's memory, at our address, if
  // it is kNicSession (it must be there until the fence after its removal). 0, or EFAULT, ENOMEM,
  // EOPNOTSUPP (no backend can reach this client's memory), EINVAL (pieces that can't be).
  virtual int AddRegion(SessionId session, const RegionSpec& spec, transport::MemoryId* out) = 0;
  // The same memory under an id of its own. 0 or ENOMEM.
  virtual int CopyRegion(transport::MemoryId region, transport::MemoryId* out) = 0;
  virtual void RemoveRegion(transport::MemoryId region) = 0;
  // Of what is written there, bytes before the last few thousand may become visible in any order.
  // Otherwise, and for a copy of the region, the order is the backend's best.
  virtual void RelaxOrder(transport::MemoryId region) {}
  // Name of the region's backend for `verbena show mr`: "process", "mapped", "assisted".
  virtual const char* BackendName(transport::MemoryId region) const = 0;

  // Copies what it needs from `request` (into local_pieces goes what segments name); the
  // result comes through Device::OnDmaDone(cookie, …), never from inside Submit. Submissions that
  // share a `stream` are carried out and reported in order; with one that is revoked, those that
  // were submitted behind it.
  virtual void Submit(uint64_t stream, uint64_t cookie, const transport::DmaRequest& request) = 0;
  // Moves `source` to `destination` before it returns, which may be done where it takes a
  // microsecond and nothing submitted is under way. False: not so; some bytes may have moved.
  virtual bool MoveNow(const transport::Payload& source, const transport::DmaSegment* destination,
                       uint32_t destination_count) {
    return false;
  }
  // Most likely MoveNow writes to `addr` soon.
  virtual void ExpectMove(transport::MemoryId memory, uint64_t addr) {}
  // The same into the NIC's own memory at `to`. Precondition, as for MoveNow: a source that begins
  // at offset 0, in one piece if it is at source.bytes.
  virtual bool ReadNow(const transport::Payload& source, std::byte* to) { return false; }
  // Reports Device::OnDmaFence(cookie) once every request submitted before that touches `session`
  // is done. Never from inside the call.
  virtual void Fence(SessionId session, uint64_t cookie) = 0;
};

}  // namespace verbena::softnic
