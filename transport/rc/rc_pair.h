// Two connected RC queue pairs over a simulated link: the stage for stories about both ends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/port/sim/sim_fabric.h"
#include "transport/port/sim/sim_host.h"
#include "transport/rc/rc_qp.h"

namespace verbena::transport::rc {

// What a story may want to be different.
struct RcPairOptions {
  uint64_t seed = 1;
  sim::SimOptions link;
  uint32_t max_pdu_bytes = 0;  // 0: packets of the path MTU
  uint32_t max_unacked_psns = 0;
  uint32_t mtu_code = 3;  // 1024 bytes
  uint32_t sq_psn = 100;
  uint8_t timeout_exp = 8;  // about 1 ms
  uint8_t retry_count = 7;
  uint8_t rnr_retry_count = 7;
  uint8_t min_rnr_timer_code = 12;  // 640 µs
  uint8_t max_rd_atomic = 4;
  uint32_t access_flags =
      access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic | access::kFlushGlobal;
  bool sq_sig_all = false;
  bool has_srq = false;

  Psn sq_psn_of(uint32_t side) const { return Psn(sq_psn + side); }
};

// A drop filter: loses the n-th PDU (from 0) of an opcode.
inline std::function<bool(const Pdu&)> LoseNth(Opcode opcode, int n) {
  auto count = std::make_shared<int>(0);
  return [=](const Pdu& pdu) { return pdu.opcode == opcode && (*count)++ == n; };
}

class RcPair {
 public:
  static constexpr uint32_t kAllAccess = access::kLocalWrite | access::kRemoteWrite |
                                         access::kRemoteRead | access::kRemoteAtomic |
                                         access::kFlushGlobal;
  static constexpr uint32_t kA = 0;
  static constexpr uint32_t kB = 1;

  explicit RcPair(const RcPairOptions& options = {})
      : options_(options), fabric(options.seed, options.link, &memory) {
    for (uint32_t side : {kA, kB}) {
      hosts[side] = std::make_unique<sim::SimHost>(&memory);
      qps[side] = std::make_unique<RcQp>(Config(side), hosts[side].get());
      qps[side]->SetPduLimits({options.max_pdu_bytes, options.max_unacked_psns});
      fabric.Attach(qps[side].get(), QpnOf(side));
    }
    for (uint32_t side : {kA, kB}) {
      (void)ModifyTo(side, QpState::kInit);
      (void)ModifyTo(side, QpState::kRtr);
      (void)ModifyTo(side, QpState::kRts);
    }
  }

  const RcPairOptions& options() const { return options_; }
  static Qpn QpnOf(uint32_t side) { return Qpn(0x11 + 0x11 * side); }

  // Modifies with all attributes the transition needs. 0 or errno.
  int ModifyTo(uint32_t side, QpState to) {
    shm::QpAttr attr = {};
    attr.qp_state = static_cast<uint32_t>(to);
    uint32_t mask = shm::qp_mask::kState;
    namespace m = shm::qp_mask;
    if (to == QpState::kInit) {
      attr.port_num = 1;
      attr.qp_access_flags = options_.access_flags;
      mask |= m::kPkeyIndex | m::kPort | m::kAccessFlags;
    } else if (to == QpState::kRtr) {
      attr.path_mtu = options_.mtu_code;
      attr.dest_qp_num = QpnOf(1 - side).value;
      attr.rq_psn = options_.sq_psn + 1 - side;
      attr.max_dest_rd_atomic = options_.max_rd_atomic;
      attr.min_rnr_timer = options_.min_rnr_timer_code;
      attr.ah_attr.is_global = 1;
      attr.ah_attr.port_num = 1;
      Gid peer = Gid::FromIpv4(0x7f00'0001u + 1 - side);
      std::copy(peer.raw.begin(), peer.raw.end(), attr.ah_attr.dgid);
      mask |=
          m::kAv | m::kPathMtu | m::kDestQpn | m::kRqPsn | m::kMaxDestRdAtomic | m::kMinRnrTimer;
    } else if (to == QpState::kRts && qps[side]->state() == QpState::kRtr) {
      attr.sq_psn = options_.sq_psn + side;
      attr.timeout = options_.timeout_exp;
      attr.retry_cnt = options_.retry_count;
      attr.rnr_retry = options_.rnr_retry_count;
      attr.max_rd_atomic = options_.max_rd_atomic;
      mask |= m::kTimeout | m::kRetryCnt | m::kRnrRetry | m::kSqPsn | m::kMaxQpRdAtomic;
    } else if (to == QpState::kSqd) {
      attr.en_sqd_async_notify = 1;
      mask |= m::kEnSqdAsyncNotify;
    }
    int error = qps[side]->Modify(fabric.now(), attr, mask).error;
    fabric.Drive(side);
    return error;
  }

  // --- posting ----------------------------------------------------------------------------------
  static SendWork Work(uint64_t wr_id, shm::WrOpcode opcode, const std::vector<shm::Sge>& sges,
                       uint8_t flags = shm::kSendSignaled) {
    SendWork work = {};
    work.wqe.wr_id = wr_id;
    work.wqe.opcode = static_cast<uint8_t>(opcode);
    work.wqe.flags = flags;
    work.wqe.num_sge = static_cast<uint8_t>(sges.size());
    std::copy(sges.begin(), sges.end(), work.sge);
    return work;
  }
  static SendWork Inline(uint64_t wr_id, shm::WrOpcode opcode, const std::string& data) {
    SendWork work = Work(wr_id, opcode, {}, shm::kSendSignaled | shm::kSendInline);
    work.wqe.inline_bytes = static_cast<uint32_t>(data.size());
    std::memcpy(work.inline_data, data.data(), data.size());
    return work;
  }
  // A WRITE, READ or atomic on `offset` bytes into the peer's region.
  SendWork Remote(SendWork work, MemoryId region, uint32_t offset = 0) {
    work.wqe.remote_addr = memory.region(region).addr + offset;
    work.wqe.rkey = memory.region(region).key;
    return work;
  }
  // Queued; Ring makes the QP look.
  void Queue(uint32_t side, const SendWork& work) { hosts[side]->sends.push_back(work); }
  void Ring(uint32_t side) {
    qps[side]->OnDoorbell(fabric.now());
    fabric.Drive(side);
  }
  void Post(uint32_t side, const SendWork& work) {
    Queue(side, work);
    Ring(side);
  }
  void PostRecv(uint32_t side, uint64_t wr_id, const std::vector<shm::Sge>& sges) {
    RecvWork work = {};
    work.wr_id = wr_id;
    work.num_sge = static_cast<uint32_t>(sges.size());
    std::copy(sges.begin(), sges.end(), work.sge);
    hosts[side]->recvs.push_back(work);
  }

  // --- memory -----------------------------------------------------------------------------------
  MemoryId NewRegion(uint32_t length, uint8_t fill = 0, uint32_t rights = kAllAccess) {
    MemoryId id = memory.Register(length, rights);
    std::fill(memory.region(id).bytes.begin(), memory.region(id).bytes.end(), std::byte{fill});
    return id;
  }
  // Bytes that differ from place to place, so that misplaced ones show.
  MemoryId NewPattern(uint32_t length, uint32_t salt = 1) {
    MemoryId id = NewRegion(length);
    for (uint32_t i = 0; i < length; ++i) {
      memory.region(id).bytes[i] = static_cast<std::byte>((i * 131 + (i >> 8) * 7 + salt) & 0xff);
    }
    return id;
  }
  bool SameBytes(MemoryId a, MemoryId b) {
    return memory.region(a).bytes == memory.region(b).bytes;
  }
  uint64_t WordAt(MemoryId id, uint32_t offset) {
    uint64_t word;
    std::memcpy(&word, memory.region(id).bytes.data() + offset, sizeof(word));
    return word;
  }
  void SetWord(MemoryId id, uint32_t offset, uint64_t word) {
    std::memcpy(memory.region(id).bytes.data() + offset, &word, sizeof(word));
  }

  // --- running ----------------------------------------------------------------------------------
  // Until nothing is left to happen; false after ten simulated minutes.
  bool Run() { return fabric.RunToSilence(fabric.now() + Seconds(600)); }
  bool HasEvent(uint32_t side, EventType event) {
    auto& events = fabric.events(side);
    return std::find(events.begin(), events.end(), event) != events.end();
  }
  // Completions of one side as text, e.g. "1:ok 2:flush", then forgets them.
  std::string TakeCompletions(uint32_t side, bool of_sends);

 private:
  QpConfig Config(uint32_t side) const {
    QpConfig config;
    config.service = Service::kRc;
    config.qpn = QpnOf(side);
    config.sq_sig_all = options_.sq_sig_all;
    config.has_srq = options_.has_srq;
    config.max_send_wr = config.max_recv_wr = 256;
    config.max_send_sge = config.max_recv_sge = 4;
    config.max_inline_bytes = 512;
    config.max_rd_atomic = config.max_dest_rd_atomic = 128;
    return config;
  }

  RcPairOptions options_;

 public:
  sim::SimMemory memory;
  sim::SimFabric fabric;
  std::unique_ptr<sim::SimHost> hosts[2];
  std::unique_ptr<RcQp> qps[2];
};

inline std::string StatusName(WcStatus status) {
  switch (status) {
    case WcStatus::kSuccess:
      return "ok";
    case WcStatus::kLocLenErr:
      return "loc-len";
    case WcStatus::kLocQpOpErr:
      return "loc-qp-op";
    case WcStatus::kLocProtErr:
      return "loc-prot";
    case WcStatus::kMwBindErr:
      return "mw-bind";
    case WcStatus::kWrFlushErr:
      return "flush";
    case WcStatus::kBadRespErr:
      return "bad-resp";
    case WcStatus::kRemInvReqErr:
      return "rem-inv-req";
    case WcStatus::kRemAccessErr:
      return "rem-access";
    case WcStatus::kRemOpErr:
      return "rem-op";
    case WcStatus::kRetryExcErr:
      return "retry-exc";
    case WcStatus::kRnrRetryExcErr:
      return "rnr-retry-exc";
    default:
      return "status" + std::to_string(static_cast<int>(status));
  }
}

inline std::string RcPair::TakeCompletions(uint32_t side, bool of_sends) {
  std::string text;
  auto& all = fabric.completions(side);
  std::deque<sim::SimCompletion> others;
  for (const sim::SimCompletion& c : all) {
    if (c.is_send != of_sends) {
      others.push_back(c);
      continue;
    }
    if (!text.empty()) text += ' ';
    text += std::to_string(c.wr_id) + ':' + StatusName(c.status);
  }
  all.swap(others);
  return text;
}

}  // namespace verbena::transport::rc
