#include "tests/wire_scripts/sim_subject.h"

#include <bit>
#include <cstring>

#include "core/base/check.h"

namespace verbena::wire_scripts {

using softnic::testing::MakeWqe;
using softnic::testing::TestWorld;
namespace mask = shm::qp_mask;

namespace {

// More than any story has.
constexpr int kTimersMax = 1'000;
constexpr uint8_t kGidIndex = 1;
constexpr uint32_t kQueueEntries = 16;

Gid Ipv6(uint8_t host) {
  Gid gid;
  gid.raw[0] = 0xfd;
  gid.raw[1] = 0x77;
  gid.raw[15] = host;
  return gid;
}

softnic::NicConfig ConfigFor(const Gid& own) {
  softnic::NicConfig config = TestWorld::ConfigOf(0);
  config.gids = {LinkLocalGidOf(config), own};
  return config;
}

}  // namespace

SimSubject::SimSubject(const SimOptions& options) : options_(options), world_(0) {
  path_.source = options_.is_ipv6 ? Ipv6(2) : TestWorld::GidOf(1);
  path_.destination = options_.is_ipv6 ? Ipv6(1) : TestWorld::GidOf(0);
  world_.device->AddNic(ConfigFor(path_.destination));
  client_ = &world_.AddClient(0);
  ports_[0].other = &ports_[1];
  ports_[1].other = &ports_[0];
  ports_[0].batches = options_.comes_in_batches;
  world_.device->AttachPort(0, &ports_[0]);
}

SimSubject::~SimSubject() { world_.device->AttachPort(0, nullptr); }

void SimSubject::Settle() {
  do {
    world_.Settle();
    world_.device->FlushPorts(world_.now);
  } while (world_.device->PollPorts(world_.now, 16) || !ports_[0].inbox.empty());
  world_.Settle();
  world_.device->FlushPorts(world_.now);
}

template <typename T>
std::optional<T> SimSubject::Await(std::optional<T> (SimSubject::*take)()) {
  for (int i = 0; i < kTimersMax; ++i) {
    if (std::optional<T> taken = (this->*take)()) return taken;
    if (!world_.AdvanceToTimer()) break;
  }
  return (this->*take)();
}

Opened SimSubject::Open(const QpSpec& spec) {
  region_.assign(spec.region_bytes, 0);
  mr_ =
      client_->MustRegMr(region_.data(), region_.size(), access::kLocalWrite | spec.region_access);
  cq_ = client_->MustCreateCq();
  shm::CreateQpRequest request = client_->QpRequest(spec.service, cq_.handle);
  request.sq_sig_all = 1;
  has_srq_ = spec.has_srq;
  peer_qpn_ = spec.peer_qpn;
  if (has_srq_) {
    VERBENA_CHECK(client_->CreateSrq(kQueueEntries, 1, &srq_) == 0);
    request.srq = srq_.handle;
  }
  VERBENA_CHECK(client_->CreateQp(request, &qp_) == 0);
  Connect(spec);
  return {qp_.qpn, RKey(mr_.rkey), reinterpret_cast<uint64_t>(region_.data())};
}

void SimSubject::Connect(const QpSpec& spec) {
  const bool is_rc = spec.service == Service::kRc, is_ud = spec.service == Service::kUd;
  shm::QpAttr attr{};
  auto modify = [&](QpState state, uint32_t what) {
    attr.qp_state = static_cast<uint32_t>(state);
    VERBENA_CHECK(client_->Modify(qp_, attr, mask::kState | what) == 0);
  };
  attr.port_num = 1;
  attr.qkey = spec.qkey;
  attr.qp_access_flags = access::kLocalWrite | spec.region_access;
  modify(QpState::kInit,
         mask::kPkeyIndex | mask::kPort | (is_ud ? mask::kQkey : mask::kAccessFlags));
  std::memcpy(attr.ah_attr.dgid, path_.source.raw.data(), sizeof attr.ah_attr.dgid);
  attr.ah_attr.is_global = 1;
  attr.ah_attr.sgid_index = kGidIndex;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.hop_limit = 64;
  attr.path_mtu = static_cast<uint32_t>(std::countr_zero(spec.path_mtu_bytes)) - 7;  // 256 is 1
  attr.dest_qp_num = spec.peer_qpn;
  attr.rq_psn = spec.rq_psn;
  attr.max_dest_rd_atomic = spec.max_dest_rd_atomic;
  attr.min_rnr_timer = spec.min_rnr_timer;
  modify(QpState::kRtr, (is_ud ? 0 : mask::kAv | mask::kPathMtu | mask::kDestQpn | mask::kRqPsn) |
                            (is_rc ? mask::kMaxDestRdAtomic | mask::kMinRnrTimer : 0));
  attr.sq_psn = spec.sq_psn;
  attr.timeout = spec.timeout;
  attr.retry_cnt = spec.retry_cnt;
  attr.rnr_retry = spec.rnr_retry;
  attr.max_rd_atomic = spec.max_rd_atomic;
  modify(QpState::kRts, mask::kSqPsn | (is_rc ? mask::kTimeout | mask::kRetryCnt | mask::kRnrRetry |
                                                    mask::kMaxQpRdAtomic
                                              : 0));
  if (is_ud) ah_ = client_->CreateAh(path_.source);
}

// All timers that are still to come may have something to say first.
void SimSubject::Close() {
  int timers = 0;
  do {
    Settle();
  } while (++timers < kTimersMax && world_.AdvanceToTimer());
  VERBENA_CHECK(client_->DoHandle(shm::CommandOp::kDestroyQp, qp_.handle) == 0);
  Settle();
}

void SimSubject::Fill(uint32_t at, const std::vector<std::byte>& bytes) {
  VERBENA_CHECK(at + bytes.size() <= region_.size());
  std::memcpy(&region_[at], bytes.data(), bytes.size());
}

std::vector<std::byte> SimSubject::Read(uint32_t at, uint32_t length) {
  Settle();
  VERBENA_CHECK(at + length <= region_.size());
  std::vector<std::byte> bytes(length);
  std::memcpy(bytes.data(), &region_[at], length);
  return bytes;
}

shm::Sge SimSubject::SgeAt(uint32_t at, uint32_t length) const {
  return softnic::testing::SgeOf(&region_[at], length, mr_.lkey);
}

void SimSubject::PostRecv(uint64_t wr_id, uint32_t at, uint32_t length) {
  if (has_srq_) {
    client_->PostSrqRecv(srq_, wr_id, {SgeAt(at, length)});
  } else {
    client_->PostRecv(qp_, wr_id, {SgeAt(at, length)});
  }
}

void SimSubject::PostSend(const SendRequest& request) {
  shm::SendWqe wqe = MakeWqe(request.opcode, request.wr_id);
  if (request.is_solicited) wqe.flags |= shm::kSendSolicited;
  wqe.imm_or_rkey = __builtin_bswap32(request.imm);
  wqe.remote_addr = request.remote_addr;
  wqe.rkey = request.rkey;
  wqe.atomic.compare_add = request.compare_add;
  wqe.atomic.swap = request.swap;
  wqe.ah = ah_;
  wqe.remote_qpn = peer_qpn_;
  wqe.remote_qkey = request.remote_qkey;
  client_->Post(qp_, wqe, {SgeAt(request.at, request.length)});
}

std::optional<Completion> SimSubject::TakeCompletion() {
  Settle();
  const std::optional<softnic::testing::Wc> wc = client_->Poll(cq_);
  if (!wc) return std::nullopt;
  Completion completion{wc->wr_id, wc->status, wc->opcode, wc->byte_len, wc->src_qpn, {}};
  if ((wc->flags & shm::kWcWithImm) != 0) completion.imm = __builtin_bswap32(wc->imm);
  return completion;
}

std::optional<Completion> SimSubject::AwaitCompletion() {
  return Await(&SimSubject::TakeCompletion);
}

QpState SimSubject::AwaitState(QpState wanted) {
  Settle();
  return client_->StateOf(qp_);
}

void SimSubject::Send(const std::vector<std::byte>& bytes) {
  ports_[0].inbox.push_back({path_, bytes});
  if (!options_.comes_in_batches) Settle();
}

std::optional<Packet> SimSubject::TakePacket() {
  Settle();
  std::deque<softnic::testing::Datagram>& inbox = ports_[1].inbox;
  if (inbox.empty()) return std::nullopt;
  Packet packet{inbox.front().address, std::move(inbox.front().bytes)};
  inbox.pop_front();
  return packet;
}

std::optional<Packet> SimSubject::AwaitPacket() { return Await(&SimSubject::TakePacket); }

}  // namespace verbena::wire_scripts
