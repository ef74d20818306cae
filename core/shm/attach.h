// Messages on the attach socket (SOCK_SEQPACKET, filesystem path in the instance's directory).
//
// One connection is one session, and one session is one ibv_context. After Hello/Welcome the socket
// carries only fds from daemon to client (FdMessage with SCM_RIGHTS); its closing ends the session.
//
// Who has a duplicate of a session's socket may join its context: it makes a socket pair, sends
// Hello (kImport) with one end of it through the duplicate, and has a session of its own at the
// other end. Sessions of one context share its PDs, MRs and device memory, and their handles.
#pragma once

#include <cstdint>

#include "core/shm/layout.h"

namespace verbena::shm {

enum class HelloKind : uint32_t {
  kAttach = 1,  // open a device: Welcome with fds
  kList = 2,    // list NICs: one ListReply
  kAdmin = 3,   // then one JSON request line, one JSON reply (may span messages), for the CLI
  kImport = 4,  // through a session's socket, with an end of a socket pair: see above
  kCm = 5,      // connection management: one CmWelcome, then cm.h
};

struct Hello {
  uint64_t magic;
  uint32_t abi_version;
  uint32_t kind;         // HelloKind
  uint32_t nic;          // kAttach: index of the NIC
  uint32_t pid;          // the client's own idea of its pid (0: unknown); SO_PEERCRED decides
  uint64_t probe_addr;   // a readable 8-byte word in the client that holds probe_value: the daemon
  uint64_t probe_value;  // tries its DMA backends on it
  char program[56];      // short name for `verbena show`, NUL-terminated
  // kList, kCm: the inode of the network namespace it is in (0: unknown). Where NICs are in that
  // one, these are its NICs, else those of the daemon's own.
  uint64_t netns;
};

inline constexpr uint32_t kNicNameBytes = 64;

struct NicInfo {
  char name[kNicNameBytes];
  uint64_t node_guid;  // big-endian
  uint32_t index;
  uint32_t ports;
  uint8_t ipv4[4];
  uint32_t reserved;
};
inline constexpr uint32_t kMaxNics = 64;
struct ListReply {
  uint64_t magic;
  uint32_t abi_version;
  uint32_t count;
  NicInfo nics[kMaxNics];  // `count` are sent
};

// Fds with Welcome, in this order.
enum WelcomeFd { kFdControlArea, kFdStatusPage, kFdDoorbellEvent, kFdAsyncEvents, kWelcomeFds };

// DMA backends a session can use, bits.
inline constexpr uint32_t kDmaProcess = 1u << 0;
inline constexpr uint32_t kDmaMapped = 1u << 1;
inline constexpr uint32_t kDmaAssisted = 1u << 2;

struct Welcome {
  uint64_t magic;
  uint32_t abi_version;
  int32_t error;          // 0, or errno: no fds then
  uint32_t session;       // id shown by `verbena show`
  uint32_t dma_backends;  // bits that work for this client
  int32_t dma_errno;      // why kDmaProcess does not, or 0
  uint32_t reserved;
  uint64_t control_area_bytes;
  NicInfo nic;
};

enum class FdKind : uint32_t {
  kArena = 1,         // a queue arena: map `bytes` MAP_SHARED read-write
  kChannel = 2,       // read end of a completion channel
  kPayload = 3,       // a payload file: map its pages over those of memory to be registered
  kDeviceMemory = 4,  // map `bytes` MAP_SHARED read-write
  kAssistFile = 5,    // for the helper (assist.h): id 0, as the next
  kAssistSocket = 6,  // its end of a stream socket; after kAssistFile
};

// A payload file is a memfd, sealed at this size. Slot k begins at k * kPayloadSlotBytes; each
// conversion takes a slot that was never used before, so that a mapping which the program enlarges
// meets nobody else's pages.
inline constexpr uint64_t kPayloadFileBytes = 1ull << 60;
inline constexpr uint64_t kPayloadSlotBytes = 1ull << 40;
inline constexpr uint32_t kPayloadSlots = kPayloadFileBytes / kPayloadSlotBytes;

// Daemon → client, with one fd.
struct FdMessage {
  uint32_t kind;  // FdKind
  uint32_t id;    // arena id, or handle of the channel or device memory
  uint64_t bytes;
};

// One message on a completion channel's fd.
struct ChannelEvent {
  uint64_t cookie;  // CreateCqRequest.cookie
  uint32_t cq;      // handle
  uint32_t reserved;
};

// One message on the async fd.
struct AsyncEventMessage {
  uint32_t event;   // EventType
  uint32_t object;  // handle of QP, CQ or SRQ; port number for port events
  uint64_t cookie;  // of the object
};

// vendor_err in a failed completion: what no NIC can say.
enum class VendorErr : uint32_t {
  kNone = 0,
  kBadLKey = 0x101,
  kLKeyOtherPd = 0x102,
  kLKeyBounds = 0x103,
  kLKeyAccess = 0x104,
  kBadRKey = 0x111,
  kRKeyOtherPd = 0x112,
  kRKeyBounds = 0x113,
  kRKeyAccess = 0x114,
  kQpAccess = 0x115,
  kMisalignedAtomic = 0x116,
  kRKeyOtherQp = 0x117,   // a type 2 window bound to another QP
  kRKeyBadState = 0x118,  // a window or region that is not in a state for this
  kMemoryFault = 0x121,   // the MR is valid, the page below it is gone
  kMessageTooLong = 0x131,
  kReceiveTooShort = 0x132,
  kTruncated = 0x135,  // by a receive that cuts off (rdm.h); the message is acknowledged
  kBadOpcode = 0x133,
  kBadAh = 0x134,
  kRetryExceeded = 0x141,
  kRnrRetryExceeded = 0x142,
  kTooManyRdAtomic = 0x143,
  kBadWqe = 0x151,
  kPeerNak = 0x161,
  kFlushed = 0x171,  // never sent
  // Behind one that failed: the peer has carried it out; it was sent, and perhaps carried out.
  kFlushedDone = 0x172,
  kFlushedSent = 0x173,
  kDeviceGone = 0x181,
};

}  // namespace verbena::shm
