// What a QP's roles ask of the device that hosts them: work requests, memory keys, address handles.
// The device implements it over shared-memory rings and its tables, tests over plain containers.
#pragma once

#include <cstdint>

#include "core/base/types.h"
#include "core/shm/attach.h"
#include "core/shm/layout.h"
#include "transport/pdu.h"

namespace verbena::transport {

enum class FetchResult : uint8_t {
  kEmpty,
  kOk,
  kInvalid,  // the queue's memory lies: IBV_EVENT_QP_FATAL
};

// A send WQE copied once from the ring, with its body.
struct SendWork {
  shm::SendWqe wqe;
  union {
    shm::Sge sge[shm::kMaxSge];
    std::byte inline_data[shm::kMaxInlineBytes];
  };
};
// Too long a message is refused when its turn comes; saturating keeps the sum honest.
inline uint32_t MessageBytes(const SendWork& work) {
  if ((work.wqe.flags & shm::kSendInline) != 0) return work.wqe.inline_bytes;
  uint64_t length = 0;
  for (uint32_t i = 0; i < work.wqe.num_sge; ++i) length += work.sge[i].length;
  return length > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(length);
}
struct RecvWork {
  uint64_t wr_id;
  uint32_t num_sge;
  // Of a marked SRQ (core/shm/rdm.h): names what of a receive this is; 0: of another queue.
  uint32_t offset_bytes = 0;
  uint64_t ticket = 0;
  shm::Sge sge[shm::kMaxSge];
};

// Outcome of a key check. kNone: granted. The rest say which rule refused, and become vendor_err.
using KeyFault = shm::VendorErr;

// The part of a receive list that `bytes` of data reach: a list may go beyond its regions as long
// as no data does. Writes at most num_sge elements, none of length zero; returns how many.
inline uint32_t TrimSges(const shm::Sge* sge, uint32_t num_sge, uint64_t bytes, shm::Sge* out) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < num_sge && bytes > 0; ++i) {
    if (sge[i].length == 0) continue;
    out[count] = sge[i];
    if (out[count].length > bytes) out[count].length = static_cast<uint32_t>(bytes);
    bytes -= out[count++].length;
  }
  return count;
}

// What a bind asks for.
struct WindowBind {
  uint32_t window = 0;  // handle
  RKey rkey;            // the window's from now on
  uint32_t lkey = 0;    // of the region
  uint64_t addr = 0;
  uint64_t length = 0;
  uint32_t access = 0;
};

// Payload of a whole message, from one QP to another of the same device.
struct DirectMove {
  static constexpr uint32_t kSgesMax = 4;

  uint32_t length = 0;
  const std::byte* bytes = nullptr;  // where it is; nullptr: in the segments
  DmaSegment segments[kSgesMax];
  uint16_t segment_count = 0;
  const RecvWork* receive = nullptr;  // SEND: where it goes
  RKey rkey;                          // else
  uint64_t remote_addr = 0;
};

// Work of a send queue that concerns nobody but the QP's own NIC.
inline bool IsLocalOperation(shm::WrOpcode opcode) {
  return opcode == shm::WrOpcode::kLocalInv || opcode == shm::WrOpcode::kBindMw;
}

// Which role of a QP waits for something.
enum class QpRole : uint8_t { kRequester, kResponder };

class QpHost {
 public:
  virtual ~QpHost() = default;

  // False: FetchSend would find nothing, as far as can be told at once.
  virtual bool HasSend() { return true; }
  // Takes the next posted WQE out of the SQ. The counts in it (num_sge, inline_bytes) are already
  // checked against the QP's limits: kInvalid otherwise.
  virtual FetchResult FetchSend(SendWork& out) = 0;
  // Likewise from the RQ, or from the SRQ (which may raise its limit event).
  virtual FetchResult FetchRecv(RecvWork& out) = 0;
  // True: FetchRecv would find something. False: that is not known, or takes work to know.
  virtual bool HasRecv() { return false; }
  // Whether a WRITE with immediate that takes no receive (QpConfig) can be told of now.
  virtual bool HasRoomToTell() { return true; }
  // Gives `wqes` fetched slots back to the client, oldest first: called as work completes.
  virtual void ReleaseSend(uint32_t wqes) = 0;
  virtual void ReleaseRecv(uint32_t wqes) = 0;
  // Of receives with a ticket. The message is known to take so many bytes of it.
  virtual void SettleRecv(const RecvWork& work, uint64_t bytes) {}
  // The message goes on after all. How much there is for it at most, from the work's beginning.
  virtual uint64_t ReopenRecv(const RecvWork& work) { return ~uint64_t{0}; }
  // No message came to be in it: another one may have it. Nothing is written to it any more.
  virtual void ReturnRecv(const RecvWork& work) {}
  // A WRITE or READ of the peer is done; `memory`: of its range, or 0 if that was empty.
  virtual void OnPeerAccess(bool is_write, MemoryId memory) {}

  // Resolves an SGE list to segments: one per SGE of non-zero length. `access_needed` is
  // access::kLocalWrite for receive buffers, READ and atomic results, 0 for reading.
  // Writes at most num_sge segments.  Spec: IBTA 10.6.3 (lkey, bounds, PD, access).
  virtual KeyFault ResolveLocal(const shm::Sge* sge, uint32_t num_sge, uint32_t access_needed,
                                DmaSegment* out, uint16_t* out_count) = 0;
  // Resolves a remote request's range. Of zero-length requests only for FLUSH (IBTA C9-88).
  virtual KeyFault ResolveRemote(RKey rkey, uint64_t addr, uint64_t length, uint32_t access_needed,
                                 DmaSegment* out) = 0;
  // The rights of a key, whatever it leads to.
  virtual KeyFault CheckRemoteKey(RKey rkey, uint32_t access_needed) { return KeyFault::kBadRKey; }
  // SEND with invalidate, and LOCAL_INV. Granted, the key is dead at once.
  virtual KeyFault Invalidate(RKey rkey) = 0;
  // Granted, the window has its new key, and the old one is dead.  Spec: IBTA 10.6.6.2.
  virtual KeyFault BindWindow(const WindowBind& bind) { return KeyFault::kBadRKey; }
  // To be called after Invalidate or BindWindow was granted, before the work completes. True:
  // nothing that a key taken away has let in touches memory any more. False: something does still,
  // and QpTransport::OnKeysSettled tells when it is done, once for the last call of each role.
  virtual bool SettleKeys(QpRole waiter) { return true; }
  // Fills in the segments. False, and nothing is counted: a key does not allow it, or they are
  // many.
  virtual bool ResolveDirect(const shm::Sge* sge, uint32_t num_sge, DirectMove* move) {
    return false;
  }
  // Moves a message from here to where `peer`, the other end's host, may have it. False: it can't
  // be moved at once, or a key does not allow it, which is not counted; some bytes may have moved.
  virtual bool MoveDirect(const DirectMove& move, QpHost& peer) { return false; }
  // Likewise of a READ, from where `move` says at `peer` into `sge`.
  virtual bool ReadDirect(const DirectMove& move, const shm::Sge* sge, uint32_t num_sge,
                          QpHost& peer) {
    return false;
  }
  // UD: the path an address handle stands for; checks its PD. False: no such AH, or another PD's.
  virtual bool ResolveAh(uint32_t ah, Path* out) = 0;
  // The port's GID table. False: no such index, or an empty entry.
  virtual bool ResolveGid(GidIndex index, Gid* out) = 0;
};

}  // namespace verbena::transport
