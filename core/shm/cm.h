// Connection management between a client (librdmacm.so.1) and the daemon: plain data, fixed layout.
//
// A process has one CM session: a connection to the attach socket that began with Hello (kCm) and
// was answered by CmWelcome. From then on the client sends one CmRequest at a time and the daemon
// answers it with one CmReply. Nothing here is data path: a socket does, and a request that has to
// wait for the network (an address resolved, an answer of the peer) is answered at once and told of
// by an event.
//
// Events wait in the daemon, in a queue per channel. A channel's fd, the only one a program sees,
// is readable exactly while its queue has any, and hangs up when the daemon ends; who finds it
// readable asks for the event (kGetEvent). So an event of an identifier that goes away goes with
// it.
//
// The shapes and their meaning follow the kernel's rdma_ucm commands (rdma_user_cm.h), so that a
// second front end can translate those one to one.
//
// Trust: whatever a client sends may be anything; handles are looked up in its own session. Errors
// are positive errnos.
#pragma once

#include <cstdint>

#include "core/shm/layout.h"

namespace verbena::shm {

using CmHandle = uint32_t;  // of a channel, an identifier or a membership; 0 is none

struct CmWelcome {
  uint64_t magic;
  uint32_t abi_version;
  int32_t error;  // 0, or errno
};

enum class CmOp : uint32_t {
  kCreateChannel = 1,   // -> CmReply.handle, with the fd
  kDestroyChannel = 2,  // handle; its identifiers stay, and tell nobody anything any more
  kGetEvent = 3,        // handle: channel -> event   EAGAIN: none
  kCreateId = 4,        // create -> handle
  kDestroyId = 5,       // -> number: events of it that the client took
  kMigrateId = 6,      // migrate: events that wait go along -> number: events of it that were taken
  kBind = 7,           // bind   EADDRINUSE, EADDRNOTAVAIL, ENODEV, EINVAL (bound already)
  kListen = 8,         // number: backlog
  kResolveAddr = 9,    // resolve -> event ADDR_RESOLVED or ADDR_ERROR
  kResolveRoute = 10,  // number: milliseconds -> event ROUTE_RESOLVED or ROUTE_ERROR
  kQuery = 11,         // -> query
  kConnect = 12,       // connect
  kAccept = 13,        // connect (`cookie` names the identifier from now on)
  kReject = 14,        // reject
  kEstablish = 15,     // the active side's RTU where the program owns the QP (rdma_establish)
  kDisconnect = 16,    // number: 0, or kCmNamesPsn and a PSN, for the peer
  kNotify = 17,        // number: IBV_EVENT_COMM_EST; others EINVAL
  kInitQpAttr = 18,    // number: enum ibv_qp_state -> qp_attr
  kSetOption = 19,     // option
  kJoinMcast = 20,     // join -> handle of the membership, then event MULTICAST_JOIN or _ERROR
  kLeaveMcast = 21,    // handle: membership -> number: events of it that were taken
  kWriteEvent = 22,    // user -> that event, in the identifier's channel behind those that wait
  // place. An identifier of kPortSpaceRdm, bound and not listening: the daemon accepts lanes to
  // the place by itself, from now until the identifier goes (rdm.h). No events come of it. Errors
  // as kListen's.
  kServePlace = 23,
};

// sockaddr_in or sockaddr_in6, without what nobody needs. family 0: none.
struct CmAddress {
  uint16_t family;  // AF_INET, AF_INET6
  uint16_t port;    // big-endian
  uint32_t scope_id;
  uint32_t flow_info;  // big-endian
  uint8_t addr[16];    // AF_INET: the first four
};
static_assert(sizeof(CmAddress) == 28);

// In a number, with a PSN: all requests before it that came from who is told have been carried out.
inline constexpr uint32_t kCmNamesPsn = 1u << 31;

// Of enum rdma_cm_event_type since v60: written by the program, and by its library to itself.
inline constexpr uint32_t kCmEventUser = 18;
inline constexpr uint32_t kCmEventInternal = 19;

// Of RDM endpoints (rdm.h), beside enum rdma_port_space: IP CM's prefix 01 and an IP protocol
// number that RFC 3692 leaves to experiments. Addresses and ports in it may be shared by
// identifiers of one session, and by no others.
inline constexpr uint16_t kPortSpaceRdm = 0x01fd;
inline constexpr uint32_t kCmTokenBytes = 16;
inline constexpr uint32_t kCmAuthKeyBytesMax = 32;

inline constexpr uint32_t kCmPrivateDataMax = 256;
inline constexpr uint32_t kCmOptionMax = 256;  // holds three of struct ibv_path_data

// struct rdma_conn_param, and what else CONNECT and ACCEPT carry.
struct CmConnParam {
  uint8_t private_data_len;
  uint8_t responder_resources;
  uint8_t initiator_depth;
  uint8_t flow_control;
  uint8_t retry_count;
  uint8_t rnr_retry_count;
  uint8_t srq;
  uint8_t reserved0;
  uint32_t qp_num;
  uint32_t qkey;  // of a UD service: 0: the port space's
  uint32_t ece_vendor_id;
  uint32_t ece_options;
  uint8_t private_data[kCmPrivateDataMax];
};

struct CmRequest {
  uint32_t op;      // CmOp
  CmHandle handle;  // of whom it is about
  uint32_t number;
  uint32_t reserved0;
  union {
    struct {
      uint64_t cookie;  // comes back in each event
      CmHandle channel;
      uint16_t port_space;  // enum rdma_port_space
      uint8_t qp_type;      // enum ibv_qp_type
      uint8_t reserved0;
    } create;
    struct {
      CmHandle channel;
    } migrate;
    struct {
      CmAddress address;
    } bind;
    struct {
      CmAddress source;  // family 0: chosen
      CmAddress destination;
      uint32_t timeout_ms;
    } resolve;
    struct {
      uint64_t cookie;
      CmConnParam param;
      // Of a lane (rdm.h): the token of the endpoint's own place. When the peer has answered, the
      // daemon sets up QP param.qp_num of that place's session, with this rnr_retry, and answers
      // the peer; then comes ESTABLISHED, or CONNECT_ERROR. A peer that ends before it knows is
      // told of by REJECTED, be it that the QP has sent by then. All zero: the program does that.
      uint8_t place_token[kCmTokenBytes];
      uint8_t qp_rnr_retry;
    } connect;
    struct {
      uint8_t reason;  // IBTA reject reason: 28 (consumer), 35 (vendor option not supported)
      uint8_t private_data_len;
      uint8_t private_data[kCmPrivateDataMax];
    } reject;
    struct {
      uint32_t level;  // RDMA_OPTION_ID, RDMA_OPTION_IB
      uint32_t name;
      uint32_t length;
      uint8_t value[kCmOptionMax];
    } option;
    struct {
      uint64_t cookie;  // of the membership, in its events
      CmAddress address;
      uint16_t join_flags;  // enum rdma_cm_join_mc_attr_flags' value; 0: full member
    } join;
    struct {
      uint32_t event;  // kCmEventUser, kCmEventInternal; others EINVAL
      int32_t status;
      uint64_t arg;
    } user;
    struct {
      uint8_t token[kCmTokenBytes];  // of the place
      uint8_t auth_key_bytes;        // at most kCmAuthKeyBytesMax; lanes must bring the same key
      uint8_t auth_key[kCmAuthKeyBytesMax];
    } place;
  };
};

// How packets get to the peer: what an ibv_ah_attr of RoCE v2 takes.
struct CmAddressHandle {
  uint8_t sgid_index;
  uint8_t traffic_class;
  uint8_t hop_limit;
  uint8_t sl;
  uint32_t flow_label;
  uint8_t dgid[16];
  uint16_t dlid;
  uint8_t port_num;
  uint8_t static_rate;
};

struct CmEvent {
  uint64_t cookie;    // of the identifier (of the listener, for a connect request), or membership
  CmHandle id;        // the identifier; of a connect request the new one
  CmHandle listener;  // of a connect request
  uint32_t event;     // enum rdma_cm_event_type
  int32_t status;     // as in rdma_cm_event.status: negative errno, or a reject reason
  uint32_t peer_psn;  // of DISCONNECTED: as the peer's kDisconnect named it; 0: not named
  uint8_t is_ud;      // `ah` and param.qkey hold
  uint8_t reserved0[7];
  CmConnParam param;
  CmAddressHandle ah;
  uint64_t arg;  // of an event that the program wrote
};

struct CmQuery {
  uint64_t node_guid;  // big-endian; 0: of no NIC yet
  uint32_t nic;        // its index
  uint8_t port_num;
  uint8_t has_route;  // the rest holds
  uint8_t mtu;        // enum ibv_mtu
  uint8_t rate;       // enum ibv_rate
  CmAddress source;   // family 0: none
  CmAddress destination;
  uint8_t sgid[16];
  uint8_t dgid[16];
  uint16_t pkey;  // big-endian
  uint8_t packet_life_time;
  uint8_t reserved0;
  CmAddressHandle ah;
};

// struct ibv_qp_attr as far as connection management says anything, and its mask.
struct CmQpAttr {
  uint32_t mask;  // enum ibv_qp_attr_mask
  uint32_t qkey;
  uint32_t rq_psn;
  uint32_t sq_psn;
  uint32_t dest_qp_num;
  uint32_t qp_access_flags;
  uint16_t pkey_index;
  uint8_t qp_state;
  uint8_t path_mtu;
  uint8_t max_rd_atomic;
  uint8_t max_dest_rd_atomic;
  uint8_t min_rnr_timer;
  uint8_t port_num;
  uint8_t timeout;
  uint8_t retry_cnt;
  uint8_t rnr_retry;
  uint8_t reserved0;
  CmAddressHandle ah;
};

struct CmReply {
  int32_t error;
  CmHandle handle;
  uint32_t number;
  uint32_t reserved0;
  union {
    CmEvent event;
    CmQuery query;
    CmQpAttr qp_attr;
  };
};

}  // namespace verbena::shm
