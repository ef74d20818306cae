// What libfabric's endpoints ask of the NIC beyond verbs (docs/adr/0018): places that accept lanes
// by themselves, receives with marks, counters, keys of the program's choice.
//
// How an RDM endpoint comes about: its SRQ is created marked and truncating (kSrqMarked,
// kSrqTruncates), its PD by kAllocOwnKeyPd or kAllocPd. The client draws 16 random bytes, the
// place's token, and issues kCreatePlace. In a CM session it creates an identifier (port space
// kPortSpaceRdm, RC), binds it to the endpoint's address and port, and asks kServePlace (cm.h).
// From then on the NIC accepts lanes that peers connect to that address and port.
//
// To send, an endpoint connects a lane: an identifier of kPortSpaceRdm for each, whose source is
// its own address and port (identifiers of one session share them, that of the place included),
// with RdmRequestData as private data, and the token. Its QP, in INIT, may have work by then: the
// NIC begins with that as soon as the peer has accepted, without the program. What goes wrong comes
// as RDMA_CM_EVENT_REJECTED: status 28 with RdmRejectData says why the place refused; status 8:
// nobody serves that port; or as CONNECT_ERROR: the QP is not the session's of the token.
//
// Trust: as command.h. A token is what proves that a CM session may serve a place, and have QPs of
// its session connected.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/shm/cm.h"
#include "core/shm/command.h"
#include "core/shm/layout.h"

namespace verbena::shm {

// --- Marked receives ----------------------------------------------------------------------------

// In a SRQ with kSrqMarked the first element of each RecvWqe's list is no Sge but a RecvMark, which
// num_sge and the SRQ's max_sge count. A list without one is a SRQ that lies. Entries in memory of
// the program are not for marked SRQs (EINVAL).
struct RecvMark {
  uint32_t flags;
  // kRecvMulti: the receive is released with the message after which it has less than this room.
  uint32_t min_free_bytes;
  uint32_t source;  // kRecvDirected: of whom it takes messages
  uint32_t reserved;
};
static_assert(sizeof(RecvMark) == sizeof(Sge));

// Holds several messages, one behind the other; where one failed on its way there may be a gap.
// Each has a completion of its own (same wr_id), with Cqe.recv_offset_bytes; the last one has
// kWcRecvReleased in wc_flags, and only then is the entry's slot free again. If the last message
// failed on its way, a completion with kWcRecvReleased | kWcRecvNoMessage says so instead. While a
// message of several PDUs goes into it, messages of other QPs that would go there wait (RNR). A
// message longer than what is left is cut off. Taken by RC QPs alone: datagrams that would go there
// find no receive.
inline constexpr uint32_t kRecvMulti = 1u << 0;
// Takes messages of one source only (kNameSource). A message goes into the first receive posted
// that takes its source; so receives are taken out of order. Of QPs that are no lanes it takes
// none.
inline constexpr uint32_t kRecvDirected = 1u << 1;
inline constexpr uint32_t kRecvKnown = kRecvMulti | kRecvDirected;

// A WRITE with immediate takes no receive of a marked SRQ (RC): its completion (kRecvRdmaWithImm)
// has for wr_id the cookie of its QP (CreateQpRequest), or by a lane that of the place.
//
// Neither these nor the messages of a kRecvMulti receive are bounded by what is posted. While the
// receive CQ is half full, both are told to come again (RNR): the other half is for all else that
// completes there.

// With kSrqTruncates (command.h) a SEND longer than its receive fills it and is acknowledged as any
// other: the receive completes with WcStatus kLocLenErr, VendorErr kTruncated, and byte_len of the
// whole message; the QP goes on. Bytes placed are the receive's. A UD QP of such a SRQ goes on also
// after a receive whose own memory failed: the datagram is lost, as any may be, and others'
// receives have nothing to do with it.

// Takes a receive back: of a marked SRQ, not yet taken for a message. It has no (further)
// completion, and its slot is free. `found` 0: there is no receive of that wr_id, or messages are
// under way into it: they complete, and the last of them releases a kRecvMulti one (unless one is
// arriving just now: ask again). Of several of that wr_id the oldest.
struct CancelRecvRequest {
  Handle srq;
  uint32_t reserved;
  uint64_t wr_id;
};
struct CancelRecvReply {
  uint32_t found;
  uint32_t messages;  // of kRecvMulti: so many have completed in it
};

// --- Keys of the program's choice ---------------------------------------------------------------

// kAllocOwnKeyPd (no request payload; HandleReply): a PD whose remote keys are the program's.
// Responders of QPs of this PD look rkeys up among the PD's own and nowhere else, so no number
// means two things. In it:
//   kRegMr with kRegMrOwnKey and `own_key` (any 32 bits, 0 too): that is the region's rkey; EEXIST:
//     taken. The lkey is the NIC's, as always. Once kDeregMr has completed the number is free.
//   kRegMr without: a region for local use (reply.rkey 0); remote rights are EINVAL.
//   Memory windows and regions of device memory with remote rights: EOPNOTSUPP. Rereg to or from
//     such a PD: EOPNOTSUPP.
//   A lkey names memory by its address in the process, whatever iova peers count from.
// kRegMrOwnKey in any other PD: EINVAL.
//
// kRegMrWholeProcess: the whole address space of the process, for local use (access: at most
// kLocalWrite; EINVAL else). addr, length, iova, piece_count are 0; work requests name addresses as
// the process does. Nothing is pinned or looked at before it is used: what isn't there then is a
// memory fault of that work request. The reply's rkey is 0.
//
// kRegMrDisabled: its rkey is refused (VendorErr kRKeyBadState at the region's owner, a NAK at the
// peer) until kEnableMr (HandleRequest). Enabling an enabled one is no error.

// --- Counters -----------------------------------------------------------------------------------

// In an arena of the session; both words are the NIC's, raised with release after the operation's
// effect (FI_RMA_EVENT).
struct RdmCounter {
  alignas(64) std::atomic<uint64_t> operations;  // [nic]
  std::atomic<uint64_t> errors;                  // [nic]
};

// kCreateCounter: no request payload. kDestroyCounter: HandleRequest; EBUSY: bound.
struct CreateCounterReply {
  Handle counter;
  uint32_t reserved;
  QueuePlace place;  // a RdmCounter at arena, offset
};
// Each RDMA WRITE (with immediate, too) of a peer to the region counts in `write`, each READ in
// `read`, when it is done. 0: none; a further bind replaces both. Regions with own keys only.
struct BindMrCounterRequest {
  Handle mr;
  Handle read, write;
  uint32_t reserved;
};
// The same for all that comes by one QP, or by the lanes of a place (CreatePlaceRequest).
struct BindQpCounterRequest {
  Handle qp;
  Handle read, write;
  uint32_t reserved;
};

// --- Places and lanes ---------------------------------------------------------------------------

// Of a session. Each is served by a channel of a CM session, which has no more.
inline constexpr uint32_t kPlacesMax = 4'096;
inline constexpr uint32_t kPlaceTokenBytes = kCmTokenBytes;
inline constexpr uint32_t kAuthKeyBytesMax = kCmAuthKeyBytesMax;

// EEXIST: the token is another place's. SRQ and CQ are EBUSY while the place is there.
struct CreatePlaceRequest {
  Handle pd, srq, recv_cq;  // the SRQ must be marked
  uint32_t access_flags;    // of its lanes, as QpAttr.qp_access_flags
  Handle read_counter, write_counter;
  uint32_t lanes_max;  // 0: as many as the NIC allows. At the limit the lane unused longest goes
  uint32_t reserved;
  uint8_t token[kPlaceTokenBytes];
  uint64_t cookie;  // wr_id of the completions of WRITEs with immediate
};
struct CreatePlaceReply {
  Handle place;
  uint32_t lanes_max;
};
// kDestroyPlace: HandleRequest. Its lanes go, and their peers are told.

// A source is who sends by lanes: the address and port that its lanes come from. Receives by a lane
// have its source in Cqe.src_qpn (and the lane's QPN in Cqe.qpn, the place in Cqe.place;
// Cqe.qp_handle is 0). The number is
// the same for all lanes of one address and port, one after the other, and is never another's while
// the place is there. Never 0.
//
// kQuerySource: whose number it is. ENOENT: forgotten (of many thousand sources those without a
// lane, a name or an unfinished receive are) or never given.
struct QuerySourceRequest {
  Handle place;
  uint32_t source;
};
struct QuerySourceReply {
  CmAddress address;  // scope_id, flow_info 0
  uint32_t lanes;     // now
};
// kNameSource: the number for an address, whether or not there was a lane of it yet; from now on it
// is not forgotten. ENOMEM: too many. Reply: HandleReply, whose handle is the number.
struct NameSourceRequest {
  Handle place;
  CmAddress address;
};

// Private data of a lane's REQ (CmOp::kConnect), and of the REJ that answers it.
inline constexpr uint32_t kRdmVersion = 1;
struct RdmRequestData {
  uint8_t version;  // kRdmVersion
  uint8_t auth_key_bytes;
  uint8_t reserved[2];
  uint8_t auth_key[kAuthKeyBytesMax];  // zero beyond
};
enum class RdmRejectReason : uint8_t {
  kNone = 0,
  kNoPlace = 1,      // the endpoint is closed, or not made yet
  kAuthKey = 2,      // not the place's
  kNoResources = 3,  // lanes, QPs
  kBadRequest = 4,   // another version, or a source that the peer's GID does not have
};
struct RdmRejectData {
  uint8_t version;
  uint8_t reason;  // RdmRejectReason
  uint8_t reserved[2];
};

static_assert(sizeof(RdmRequestData) <= 56, "what rdma_cm leaves of a REQ's private data");

}  // namespace verbena::shm
