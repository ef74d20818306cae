// A queue pair under test as a story sees it: from its program's side, by verbs, and from its
// peer's, by packets.
//
// Await... wait as long as the subject may take, in simulated or in real time; an empty answer is a
// failure of the story. Take... don't wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/types.h"
#include "core/shm/layout.h"
#include "transport/wire/address.h"

namespace verbena::wire_scripts {

// What the subject's QP is made with, by the names of ibv_qp_attr.
struct QpSpec {
  Service service = Service::kRc;
  bool has_srq = false;
  uint32_t path_mtu_bytes = 256;
  uint32_t sq_psn = 0, rq_psn = 0;
  uint32_t peer_qpn = 0;
  uint8_t timeout = 0;  // none: no slowness of the peer's is taken for a loss
  uint8_t retry_cnt = 7, rnr_retry = 7, min_rnr_timer = 12;
  uint8_t max_rd_atomic = 4, max_dest_rd_atomic = 4;
  uint32_t qkey = 0x11111111;  // UD
  uint32_t region_bytes = 4096;
  uint32_t region_access = 0;  // beyond local writes; the QP's, too
};

struct Opened {
  Qpn qpn;
  RKey rkey;             // of the region, which begins with zeros
  uint64_t address = 0;  // of its first byte
};

struct SendRequest {
  shm::WrOpcode opcode = shm::WrOpcode::kSend;
  uint64_t wr_id = 0;
  uint32_t at = 0, length = 0;  // within the region
  bool is_solicited = false;
  uint32_t imm = 0;
  uint64_t remote_addr = 0;
  uint32_t rkey = 0;
  uint64_t compare_add = 0, swap = 0;
  uint32_t remote_qkey = 0;  // UD, to the peer's QP
};

struct Completion {
  uint64_t wr_id = 0;
  WcStatus status = WcStatus::kSuccess;
  // The rest counts for kSuccess only.
  shm::WcOpcode opcode = shm::WcOpcode::kSend;
  uint32_t byte_len = 0;
  uint32_t src_qp = 0;  // UD
  std::optional<uint32_t> imm;
};

struct Packet {
  transport::wire::PacketAddress address;
  std::vector<std::byte> bytes;  // BTH to ICRC
};

class Subject {
 public:
  virtual ~Subject() = default;

  // Makes CQ, region and QP, which is then in RTS.
  virtual Opened Open(const QpSpec& spec) = 0;
  // Destroys them; afterwards nothing more comes from the QP.
  virtual void Close() = 0;

  virtual void Fill(uint32_t at, const std::vector<std::byte>& bytes) = 0;
  virtual std::vector<std::byte> Read(uint32_t at, uint32_t length) = 0;
  virtual void PostRecv(uint64_t wr_id, uint32_t at, uint32_t length) = 0;
  virtual void PostSend(const SendRequest& request) = 0;
  virtual std::optional<Completion> AwaitCompletion() = 0;
  virtual std::optional<Completion> TakeCompletion() = 0;
  // The state at last: a failure needs a moment to get from the NIC to the program.
  virtual QpState AwaitState(QpState wanted) = 0;

  // From the peer to the subject, as IP and UDP headers have it.
  virtual transport::wire::PacketAddress PathToSubject() const = 0;
  virtual void Send(const std::vector<std::byte>& bytes) = 0;
  virtual std::optional<Packet> AwaitPacket() = 0;
  virtual std::optional<Packet> TakePacket() = 0;

  virtual int64_t now_ns() const = 0;
  // Whether time stands still while the script is at work, so that upper limits can be checked.
  virtual bool is_time_simulated() const = 0;
};

}  // namespace verbena::wire_scripts
