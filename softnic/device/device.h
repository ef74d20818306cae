// The software NIC without threads, sockets or clocks: all NICs of one instance, their objects, and
// the fabric among them. Commands, doorbells, DMA results and time go in; the services get the
// rest.
//
// Thread: one shard drives it; nothing here locks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/instant.h"
#include "core/base/types.h"
#include "core/shm/attach.h"
#include "core/shm/command.h"
#include "softnic/device/gsi.h"
#include "softnic/device/lanes.h"
#include "softnic/device/nic_counters.h"
#include "softnic/device/refusals.h"
#include "softnic/device/services.h"
#include "transport/port/packet_port.h"

namespace verbena::softnic {

// Limits as advertised and enforced, per NIC.
struct DeviceLimits {
  uint32_t max_qp = 65'536;
  uint32_t max_qp_wr = 32'768;
  uint32_t max_sge = shm::kMaxSge;
  uint32_t max_sge_rd = shm::kMaxSge;
  uint32_t max_inline_bytes = 512;
  uint32_t max_cq = 65'536;
  uint32_t max_cqe = 1u << 22;  // as of mlx5
  uint32_t max_mr = 524'288;
  uint32_t max_mw = 524'288;
  uint32_t max_pd = 65'536;
  uint32_t max_ah = 65'536;
  uint32_t max_srq = 32'768;
  uint32_t max_srq_wr = 32'768;
  uint32_t max_srq_sge = 27;
  uint32_t max_qp_rd_atom = 128;
  uint32_t max_mcast_grp = 8'192;
  uint32_t max_mcast_qp_attach = 1'024;
  uint32_t max_message_bytes =
      0x4000'0000;  // 1 GiB, as hardware; programs use more than rxe's 8 MiB
  uint32_t comp_vectors = 2;
  uint64_t max_dm_bytes = 1u << 20;  // whole pages
  // From so many QPs of a client on, the lines of the next ones are asked for ahead: those of fewer
  // stay in cache by themselves.
  uint32_t many_qps = 128;
};

struct NicConfig {
  std::string name;           // "verbena0"
  uint32_t ipv4 = 0;          // host order; GID 1 is its IPv4-mapped form
  uint8_t mac[6] = {};        // GID 0 (link-local) and the GUIDs derive from it
  uint32_t mtu_bytes = 4096;  // active_mtu
  // Its GIDs from index 0; empty: the two above.
  std::vector<Gid> gids;
  // On a host's network: other hosts' addresses have LIDs, too; docs/adr/0004.
  bool has_subnet_lids = false;
  // What goes to NICs of the same instance takes the network too.
  bool is_wire_only = false;
  uint64_t netns = 0;  // the inode of the network namespace it is in; 0: the daemon's own
};

// The link-local GID that derives from the MAC.
Gid LinkLocalGidOf(const NicConfig& config);

struct DeviceConfig {
  std::vector<NicConfig> nics;
  DeviceLimits limits;
  // Read for each completion of a CQ with timestamps (shm::kCqTimestamps): of what is posted amid a
  // turn and completes in it, the turn's own time would say that it completed before. Empty: the
  // turn's it is.
  std::function<Instant()> completion_clock;
};

// One row per object for `verbena show`. `fields` in display order.
struct ShowRow {
  std::vector<std::pair<std::string, std::string>> fields;
};
enum class ShowKind {
  kCommand,
  kSession,
  kPd,
  kMr,
  kCq,
  kQp,
  kSrq,
  kAh,
  kChannel,
  kMw,
  kDm,
  kPlace
};

// Whom an event on request is about, on a NIC.
struct EventTarget {
  enum class Kind { kPort, kQp, kCq, kSrq };
  std::string nic;
  Kind kind = Kind::kPort;
  uint32_t number = 0;    // QPN, SRQN, or a CQ's handle
  SessionId session = 0;  // of the CQ
};

struct DeviceStats {
  uint64_t sessions = 0, pds = 0, mrs = 0, cqs = 0, qps = 0, srqs = 0, ahs = 0, channels = 0;
  uint64_t mws = 0;
  uint64_t send_wqes = 0, pdus = 0, payload_bytes = 0, commands = 0, hostile_acts = 0;
};

// What of a bounded kind is in use, beside the bound: for tests that judge a run step by step.
struct DeviceUsage {
  // Connections' bytes under way to one address, and the same as its QPs have it.
  struct Peer {
    uint64_t bytes = 0, qp_bytes = 0, room_bytes = 0;
    uint32_t users = 0, qps = 0;
  };
  std::vector<Peer> peers;
  uint64_t held_packets = 0;  // from networks, for QPs that can't take them yet
  uint64_t qp_held_packets = 0;
  uint64_t rc_qp_held_packets_most = 0, rc_qp_held_packets_max = 0;
  uint64_t tx_packets = 0, tx_packets_max = 0;  // made, and with no port yet
};

// A NIC as `verbena status` and `devices` tell of it.
struct NicStatus {
  shm::NicInfo info;
  std::vector<Gid> gids;  // by index; zero: empty
  uint32_t active_mtu_bytes = 0;
  bool is_up = true;
  shm::QueryDeviceReply device_attributes = {};
  shm::QueryPortReply port_attributes = {};
  std::string network;  // its port's name; empty: reaches NICs of its instance only
  uint64_t netns = 0;   // as NicConfig's
  Refusals refusals;
  uint32_t qkey_violations = 0;
  WireCounters wire;
  transport::PortCounters port;
};

class Device {
 public:
  Device(DeviceConfig config, DmaEngine* dma);
  ~Device();

  // --- NICs -------------------------------------------------------------------------------------
  void AddNic(const NicConfig& nic);
  std::vector<shm::NicInfo> ListNics() const;

  // --- sessions ---------------------------------------------------------------------------------
  // `services` outlives the session (until CloseSession's fences are done: SessionIsGone).
  // `joins`: a session whose context the new one is of, too, on the same NIC. 0: no such NIC or
  // session.
  SessionId OpenSession(uint32_t nic, std::string program, int pid, SessionServices* services,
                        SessionId joins = 0);
  // The session's process has ended, but somebody holds its context and may import it: all that
  // needs the process goes, what may be imported stays until CloseSession.
  void AbandonSession(Instant now, SessionId session);
  // Destroys everything the session owns, and what its context shares if it is the last of it.
  // Peers see silence, and so retry-exceeded.
  void CloseSession(Instant now, SessionId session);
  bool SessionIsGone(SessionId session) const;  // no DMA in flight touches it any more

  // --- inputs -----------------------------------------------------------------------------------
  // `request` is the daemon's own copy. Completion may come later (through CompleteCommand).
  void OnCommand(Instant now, SessionId session, uint32_t slot, uint32_t submitted,
                 const shm::CommandRequest& request);
  // False: no QP that works is behind it; nothing came of the doorbell.
  bool OnDoorbell(Instant now, SessionId session, uint32_t doorbell);
  // A hint that this doorbell may be rung next: asks for the cache lines that are read then.
  void ExpectDoorbell(SessionId session, uint32_t doorbell) const;
  // As OnDoorbell for each: of thousands of QPs most are in no cache, and what one takes comes
  // while those before it are served. Returns of how many nothing came.
  uint32_t OnDoorbells(Instant now, SessionId session, const uint32_t* doorbells, uint32_t count);
  // kOwnerGone: the memory at fault is that of a process that has ended. Its NIC says nothing
  // more for it: peers see silence, as of a host without power, until its session is closed. Work
  // of QPs of other processes fails, if it names the memory. kRevoked: a loss on the way.
  void OnDmaDone(Instant now, uint64_t cookie, transport::DmaStatus status,
                 uint64_t atomic_original, DmaFault fault = DmaFault::kMemory);
  void OnDmaFence(Instant now, uint64_t cookie);
  void OnTimeout(Instant now);
  // Sends events that did not fit their fd before.
  void FlushEvents();

  // --- progress ---------------------------------------------------------------------------------
  // Runs ready QPs, at most `max_pdus` PDUs, round-robin so that no QP or client starves others.
  // True if work is left.
  bool Run(Instant now, uint32_t max_pdus);
  Instant PollTimeout() const;

  // --- networks ---------------------------------------------------------------------------------
  // `port` carries the packets of NIC `nic` to and from a network. It is taken off with nullptr
  // before it ends, and, if anything was sent, ends before the device does: it may have what the
  // device lent it.
  void AttachPort(uint32_t nic, transport::PacketPort* port);
  // Takes packets in, at most `max_packets` of each port. True if there were any.
  bool PollPorts(Instant now, uint32_t max_packets);
  // Hands to the network what the turn has made. Call after Run. True if QPs have work left.
  bool FlushPorts(Instant now);
  // More packets are due soon, and no client has a part in that: amid a message; when messages
  // come one after the other without a client's doing; when room at a peer is waited for.
  bool ExpectsPackets() const;
  // Before the caller sleeps: false if a port has something to take in already.
  bool PreparePortsToSleep();
  // Who gets what comes to the NICs' QP1; nullptr: nobody.
  void SetMadHandler(MadHandler handler);
  // Sends a MAD from QP1 of NIC `nic`, whose address is `sgid`, to QP1 of `dgid`: to a NIC of the
  // instance at once, through the handler, else by the NIC's port. Lost if the port is down, has no
  // room for long, or nobody has the address.   EINVAL: no such NIC, not kMadBytes, or a multicast
  // address. EADDRNOTAVAIL: not an address of the NIC.
  int SendMad(Instant now, uint32_t nic, const Gid& sgid, const Gid& dgid, const std::byte* bytes,
              size_t length);
  // Places (core/shm/rdm.h). A lane to the place of a token: connected, or why not.
  LaneAnswer MakeLane(Instant now, const LaneRequest& request);
  // The QP is connected, and begins with what has been posted to it. ENOENT: nobody has the place;
  // EINVAL: its session has no such QP of RC on that NIC, or it can't be set so.
  int ConnectSender(Instant now, const LaneSender& sender);
  // It goes at once. One that has ended already is no error, and its end may be on its way.
  void DropLane(Instant now, LaneId lane);
  // Who is told of lanes that end otherwise; nullptr: nobody.
  void SetLaneEndHandler(LaneEndHandler handler);
  // IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE.
  void SetPortState(Instant now, uint32_t nic, bool is_up);
  // active_mtu from now on; QPs keep the path MTU they have.
  void SetPortMtu(uint32_t nic, uint32_t mtu_bytes);

  // Tells programs of an event that did not happen, as `verbena event` names it. How many open
  // devices were told; 0 with a sentence in *error if there is no such event or object.
  uint32_t InjectEvent(Instant now, const std::string& name, const EventTarget& target,
                       std::string* error);

  // --- sight ------------------------------------------------------------------------------------
  std::vector<ShowRow> Show(ShowKind kind) const;
  DeviceStats Stats() const;
  DeviceUsage Usage() const;
  std::vector<NicStatus> ListNicStatuses() const;
  // Whose a packet of the NIC is, e.g. "ib_write_bw (pid 812) QP 0x11 → 10.0.0.2 QP 0x12", or for
  // multicast "group ff12::1: mckey (pid 9) QP 0x13 ← …"; never empty.
  std::string DescribePacket(uint32_t nic, const transport::wire::PacketAddress& address,
                             const transport::Pdu& pdu, bool is_sent) const;
  // Who sent it: a header names it in datagrams only. 0: that can't be known.
  Qpn SourceQpnOf(uint32_t nic, const transport::wire::PacketAddress& address,
                  const transport::Pdu& pdu, bool is_sent) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::softnic
