// Setting the scene: hosts, programs, QPs and their connections, before the clock starts.
#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "tests/simulation/world.h"

namespace verbena::simulation {

namespace qp_mask = shm::qp_mask;
using transport::sim::SimRandom;

namespace {

constexpr uint32_t kAllAccess = access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead |
                                access::kRemoteAtomic | access::kFlushGlobal;
constexpr uint32_t kGrhBytes = 40;
constexpr uint32_t kSrqEntries = 32;
constexpr uint32_t kSgesMax = 3;
constexpr uint32_t kStarvingMax = 2;
constexpr uint32_t kRangeAlignment = 64;

softnic::NicConfig NicConfigOf(uint32_t host, uint32_t nic, bool is_wire_only) {
  softnic::NicConfig config;
  config.name = "nic" + std::to_string(host) + std::to_string(nic);
  config.ipv4 = 0x0a00'0001 + host * 256 + nic;
  const uint8_t mac[6] = {2, 0, 0, static_cast<uint8_t>(host), static_cast<uint8_t>(nic), 1};
  std::memcpy(config.mac, mac, sizeof(mac));
  config.is_wire_only = is_wire_only;
  return config;
}

}  // namespace

std::byte* Arena::Take(uint64_t bytes) {
  used_ = (used_ + kRangeAlignment - 1) / kRangeAlignment * kRangeAlignment;
  VERBENA_CHECK(used_ + bytes <= bytes_);
  std::byte* memory = memory_.get() + used_;
  used_ += bytes;
  return memory;
}

World::World(const Plan& plan, Stage* stage, const Options& options)
    : plan_(plan), options_(options), stage_(stage), random_(plan.seed ^ 0x3017'1d5e) {
  stage_->arena.Reset();
  stage_->network.Reset(plan.seed ^ 0x0e77'0a2c, plan.network);
  scratch_.resize(64 * 1024);
  BuildHosts();
  BuildClients();
  BuildEnds();
  using Kind = Incident::Kind;
  for (const PausePlan& pause : plan_.pauses) {
    incidents_.push_back({pause.begin, Kind::kPause, pause.host, 0, pause.end});
    incidents_.push_back({pause.end, Kind::kResume, pause.host, 0, {}});
  }
  for (const PortDownPlan& down : plan_.ports_down) {
    incidents_.push_back({down.begin, Kind::kPortDown, down.host, down.nic, {}});
    incidents_.push_back({down.end, Kind::kPortUp, down.host, down.nic, {}});
  }
  if (plan_.has_stop) incidents_.push_back({plan_.stop_at, Kind::kStop, 0, 0, {}});
  if (plan_.has_crash) incidents_.push_back({plan_.crash_at, Kind::kCrash, 0, 0, {}});
  incidents_.push_back({plan_.quiet_at, Kind::kQuiet, 0, 0, {}});
  std::stable_sort(incidents_.begin(), incidents_.end(),
                   [](const Incident& a, const Incident& b) { return a.at < b.at; });
  ObservePackets();
}

World::~World() { stage_->network.set_observer(nullptr); }

void World::BuildHosts() {
  for (uint32_t h = 0; h < plan_.hosts.size(); ++h) {
    const HostPlan& host_plan = plan_.hosts[h];
    softnic::DeviceConfig config;
    for (uint32_t n = 0; n < host_plan.nics; ++n) {
      config.nics.push_back(NicConfigOf(h, n, host_plan.is_wire_only));
    }
    hosts_.push_back(std::make_unique<Host>(h, config, random_.Next(), host_plan.dma));
    Host& host = *hosts_.back();
    host.now = now_;
    host.dma.set_now(now_);
    for (uint32_t n = 0; n < host_plan.nics; ++n) {
      const softnic::NicConfig& nic = config.nics[n];
      host.ports.push_back(
          stage_->network.AddPort({softnic::LinkLocalGidOf(nic), Gid::FromIpv4(nic.ipv4)}));
      host.device.AttachPort(n, host.ports.back());
    }
  }
}

Gid World::GidOf(const ClientPlan& client, bool is_ipv6) const {
  const softnic::NicConfig config = NicConfigOf(client.host, client.nic, false);
  return is_ipv6 ? softnic::LinkLocalGidOf(config) : Gid::FromIpv4(config.ipv4);
}

Gid World::GroupGid() const {
  if (!plan_.group_is_ipv6) return Gid::FromIpv4(0xefff'0102);
  Gid gid;
  gid.raw[0] = 0xff;
  gid.raw[1] = 0x15;
  gid.raw[15] = 2;
  return gid;
}

void World::BuildClients() {
  std::vector<uint32_t> depth(plan_.clients.size(), 64);
  auto count = [&](const EndPlan& end) {
    depth[end.client] += end.sq_depth + end.rq_depth + kSrqEntries;
  };
  for (const PairPlan& pair : plan_.pairs) {
    for (const EndPlan& end : pair.ends) count(end);
  }
  for (const DatagramPlan& datagram : plan_.datagrams) count(datagram.end);
  for (uint32_t i = 0; i < plan_.clients.size(); ++i) {
    const ClientPlan& client_plan = plan_.clients[i];
    Host& host = *hosts_[client_plan.host];
    host.clients.push_back(std::make_unique<Client>(&host, i, client_plan.nic, now_));
    auto state = std::make_unique<ClientState>();
    state->client = host.clients.back().get();
    state->is_lazy = client_plan.is_lazy;
    state->client->CreateCq(depth[i]);
    const uint32_t bytes = kSharedWords * 8;
    std::byte* shared = Allocate(bytes);
    std::memset(shared, 0, bytes);
    state->shared = state->client->Register(shared, bytes, kAllAccess);
    state->words.resize(kSharedWords);
    clients_.push_back(std::move(state));
  }
}

void World::AddEnd(const EndPlan& plan, Service service, uint32_t mtu_bytes,
                   uint32_t message_bytes_max) {
  auto end = std::make_unique<End>();
  end->number = static_cast<uint32_t>(ends_.size());
  end->service = service;
  end->mtu_bytes = mtu_bytes;
  end->has_srq = plan.has_srq;
  end->sq_sig_all = plan.sq_sig_all;
  end->plan = plan;
  end->message_bytes_max = message_bytes_max;
  end->client_state = clients_[plan.client].get();
  end->client = end->client_state->client;
  end->client_state->ends.push_back(end.get());
  ends_.push_back(std::move(end));
}

// One shared receive queue a program, for messages of any of its QPs.
void World::SetUpReceivers(ClientState& state) {
  uint32_t shared_bytes = 0;
  bool starves = false;
  // A QP may keep one for a message whose rest never comes: there have to be more.
  uint32_t outstanding_max = kStarvingMax;
  for (const End* end : state.ends) {
    if (!end->has_srq) continue;
    ++outstanding_max;
    shared_bytes = std::max(shared_bytes, end->message_bytes_max + kGrhBytes);
    starves |= end->plan.starves;
  }
  if (shared_bytes != 0) {
    auto* ring = new WorkQueueProducer;
    srq_rings_.emplace_back(ring);
    state.srq = state.client->CreateSrq(kSrqEntries, 2, ring);
    state.srq_receiver = std::make_unique<Receiver>(
        this, nullptr, state.client, ring, kSrqEntries, shared_bytes, random_.Next(),
        starves && !options_.is_paced ? outstanding_max : Receiver::kNeverStarves);
  }
  for (End* end : state.ends) {
    shm::CreateQpRequest request{};
    request.pd = state.client->pd;
    request.send_cq = request.recv_cq = state.client->cq_handle;
    request.srq = end->has_srq ? state.srq : 0;
    request.service = static_cast<uint32_t>(end->service);
    request.max_send_wr = end->plan.sq_depth;
    request.max_recv_wr = end->plan.rq_depth;
    request.max_send_sge = kSgesMax;
    request.max_recv_sge = 2;
    request.max_inline_bytes = kInlineBytes;
    request.sq_sig_all = end->sq_sig_all;
    end->qp = state.client->CreateQp(request);
  }
}

void World::BuildEnds() {
  for (const PairPlan& pair : plan_.pairs) {
    for (const EndPlan& end : pair.ends) {
      AddEnd(end, pair.service, 128u << pair.path_mtu_code, pair.message_bytes_max);
    }
    End* a = ends_[ends_.size() - 2].get();
    End* b = ends_.back().get();
    a->peer = b;
    b->peer = a;
  }
  for (const DatagramPlan& datagram : plan_.datagrams) {
    AddEnd(datagram.end, Service::kUd, 4096, kDatagramBytesMax);
    ends_.back()->is_member = datagram.is_member;
  }
  for (auto& state : clients_) SetUpReceivers(*state);
  for (auto& end : ends_) {
    // Its own seed: the same work wherever the hosts are.
    end->flow = std::make_unique<Flow>(this, end.get(), end->peer, end->number,
                                       transport::sim::Fold(plan_.seed, end->number), end->plan,
                                       end->message_bytes_max);
    flows_.push_back(end->flow.get());
  }
  for (size_t i = 0; i < plan_.pairs.size(); ++i) {
    const PairPlan& pair = plan_.pairs[i];
    for (size_t k : {2 * i, 2 * i + 1}) {
      const EndPlan& other = ends_[k]->peer->plan;
      BringUp(*ends_[k], &pair, GidOf(plan_.clients[other.client], pair.is_ipv6));
      if (pair.service == Service::kRc) {
        wire_watch_.Add(*ends_[k], GidOf(*ends_[k], pair.is_ipv6));
      }
    }
  }
  for (size_t i = 0; i < plan_.datagrams.size(); ++i) {
    End& end = *ends_[2 * plan_.pairs.size() + i];
    BringUp(end, nullptr, {});
    for (size_t k = 0; k < plan_.datagrams.size(); ++k) {
      End* other = ends_[2 * plan_.pairs.size() + k].get();
      const bool is_ipv6 = plan_.datagrams[k].is_ipv6;
      const Gid dgid = GidOf(plan_.clients[other->plan.client], is_ipv6);
      end.destinations.push_back({end.client->CreateAh(dgid, is_ipv6 ? 0 : 1), other});
    }
    if (!plan_.has_group) continue;
    if (end.is_member) end.client->Attach(end.qp, GroupGid());
    end.destinations.push_back(
        {end.client->CreateAh(GroupGid(), plan_.group_is_ipv6 ? 0 : 1), nullptr});
  }
  for (auto& end : ends_) {
    Flow& flow = *end->flow;
    const uint32_t target_bytes = end->peer == nullptr ? 0 : flow.target_bytes();
    std::byte* local = Allocate(flow.local_bytes());
    flow.SetUp(local, target_bytes == 0 ? nullptr : Allocate(target_bytes),
               target_bytes == 0 ? nullptr : Allocate(target_bytes));
  }
  for (auto& end : ends_) {
    if (end->has_srq) {
      end->receiver = end->client_state->srq_receiver.get();
      continue;
    }
    const uint32_t slot_bytes =
        end->message_bytes_max + (end->service == Service::kUd ? kGrhBytes : 0);
    const bool starves = end->plan.starves && !(options_.is_paced && end->service != Service::kRc);
    end->own_receiver = std::make_unique<Receiver>(
        this, end.get(), end->client, &end->qp.rq, end->plan.rq_depth, slot_bytes, random_.Next(),
        starves ? kStarvingMax : Receiver::kNeverStarves);
    end->receiver = end->own_receiver.get();
  }
  stats_.qps = ends_.size();
}

// RESET to RTS, as programs do it. `pair`: nullptr for UD.
void World::BringUp(End& end, const PairPlan* pair, const Gid& dgid) {
  shm::QpAttr attr{};
  attr.qp_state = static_cast<uint32_t>(QpState::kInit);
  attr.port_num = 1;
  attr.qkey = kQkey;
  attr.qp_access_flags =
      end.service == Service::kRc ? kAllAccess : access::kLocalWrite | access::kRemoteWrite;
  end.client->Modify(end.qp, attr,
                     qp_mask::kState | qp_mask::kPkeyIndex | qp_mask::kPort |
                         (pair == nullptr ? qp_mask::kQkey : qp_mask::kAccessFlags));
  attr.qp_state = static_cast<uint32_t>(QpState::kRtr);
  uint32_t mask = qp_mask::kState;
  if (pair != nullptr) {
    mask |= qp_mask::kAv | qp_mask::kPathMtu | qp_mask::kDestQpn | qp_mask::kRqPsn;
    std::memcpy(attr.ah_attr.dgid, dgid.raw.data(), 16);
    attr.ah_attr.is_global = 1;
    attr.ah_attr.sgid_index = pair->is_ipv6 ? 0 : 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.hop_limit = 64;
    attr.path_mtu = pair->path_mtu_code;
    attr.dest_qp_num = end.peer->qp.qpn.value;
    attr.rq_psn = end.peer->plan.sq_psn;
  }
  if (end.service == Service::kRc) {
    mask |= qp_mask::kMaxDestRdAtomic | qp_mask::kMinRnrTimer;
    attr.max_dest_rd_atomic = end.peer->plan.max_rd_atomic;
    attr.min_rnr_timer = end.plan.min_rnr_timer_code;
  }
  end.client->Modify(end.qp, attr, mask);
  attr.qp_state = static_cast<uint32_t>(QpState::kRts);
  attr.sq_psn = end.plan.sq_psn;
  mask = qp_mask::kState | qp_mask::kSqPsn;
  if (end.service == Service::kRc) {
    mask |= qp_mask::kTimeout | qp_mask::kRetryCnt | qp_mask::kRnrRetry | qp_mask::kMaxQpRdAtomic;
    attr.timeout = end.plan.timeout_exp;
    attr.retry_cnt = end.plan.retry_count;
    attr.rnr_retry = end.plan.rnr_retry_count;
    attr.max_rd_atomic = end.plan.max_rd_atomic;
  }
  end.client->Modify(end.qp, attr, mask);
}

}  // namespace verbena::simulation
