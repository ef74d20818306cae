// Two hosts, their services, and a network in virtual time that loses, doubles and reorders; and
// programs that talk to the services as librdmacm does.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <rdma/rdma_cma.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "softnic/cm/addresses.h"
#include "softnic/cm/cm_service.h"
#include "transport/cm/message.h"

namespace verbena::softnic {

inline shm::CmAddress At(const char* text, uint16_t port = 0, uint32_t scope_id = 0) {
  shm::CmAddress address{};
  address.family = std::strchr(text, ':') == nullptr ? AF_INET : AF_INET6;
  EXPECT_EQ(inet_pton(address.family, text, address.addr), 1) << text;
  address.port = htons(port);
  address.scope_id = scope_id;
  return address;
}

class CmWorld : public ::testing::Test {
 protected:
  static constexpr int kHosts = 2;
  struct Faults {
    double loss = 0, duplication = 0;
    Duration jitter{};
  };
  // A program with one channel.
  struct Program {
    int host = 0;
    uint32_t session = 0;
    shm::CmHandle channel = 0;
  };

  // Each host has NIC 0 on the network between them, and NICs 1 and 2 of its own.
  CmWorld() {
    for (int host = 0; host < kHosts; ++host) Start(host, 1 + host);
  }
  void Start(int host, uint64_t seed) {
    hosts_[host] = std::make_unique<CmService>(
        CmServiceConfig{.seed = seed, .looks_up_destinations = looks_up_});
    hosts_[host]->SetNics(now_, NicsOf(host));
    readable_[host].clear();
  }
  static std::string IpOf(int host) { return "10.0.0." + std::to_string(host + 1); }
  static std::string Ip6Of(int host) { return "fd00::" + std::to_string(host + 1); }
  static std::vector<CmNic> NicsOf(int host) {
    std::vector<CmNic> nics(3);
    for (uint32_t i = 0; i < 3; ++i) {
      nics[i].index = i;
      nics[i].name = "verbena" + std::to_string(i);
      nics[i].node_guid = __builtin_bswap64(0x100u * (host + 1) + i);
      nics[i].is_local_only = i > 0;
    }
    const std::string link_local = "fe80::" + std::to_string(host + 1);
    nics[0].gids = {GidOf(At(link_local.c_str())), GidOf(At(IpOf(host).c_str())),
                    GidOf(At(Ip6Of(host).c_str()))};
    nics[0].scope_id = 7;
    nics[0].active_mtu_bytes = 1024;
    nics[1].gids = {GidOf(At("fe80::11")), GidOf(At("127.0.0.1"))};
    nics[2].gids = {GidOf(At("fe80::12")), GidOf(At("127.0.0.2"))};
    return nics;
  }

  // --- what programs do -------------------------------------------------------------------------

  Program StartProgram(int host) {
    Program program{host, hosts_[host]->OpenSession(), 0};
    program.channel = Ask(program, shm::CmOp::kCreateChannel).handle;
    EXPECT_NE(program.channel, 0u);
    return program;
  }
  shm::CmReply Ask(const Program& program, shm::CmRequest request) {
    shm::CmReply reply;
    std::memset(&reply, 0xee, sizeof reply);
    hosts_[program.host]->OnRequest(now_, program.session, request, &reply);
    Drain(program.host);
    return reply;
  }
  shm::CmReply Ask(const Program& program, shm::CmOp op, shm::CmHandle handle = 0,
                   uint32_t number = 0) {
    shm::CmRequest request{};
    request.op = static_cast<uint32_t>(op);
    request.handle = handle;
    request.number = number;
    return Ask(program, request);
  }
  static shm::CmRequest RequestOf(shm::CmOp op, shm::CmHandle handle) {
    shm::CmRequest request{};
    request.op = static_cast<uint32_t>(op);
    request.handle = handle;
    return request;
  }
  shm::CmHandle NewId(const Program& program, uint16_t port_space = RDMA_PS_TCP,
                      uint64_t cookie = 0xc00c1e, uint8_t qp_type = IBV_QPT_RC) {
    shm::CmRequest request = RequestOf(shm::CmOp::kCreateId, 0);
    request.create = {cookie, program.channel, port_space, qp_type, 0};
    const shm::CmReply reply = Ask(program, request);
    EXPECT_EQ(reply.error, 0);
    return reply.handle;
  }
  int Bind(const Program& program, shm::CmHandle id, const shm::CmAddress& address) {
    shm::CmRequest request = RequestOf(shm::CmOp::kBind, id);
    request.bind.address = address;
    return Ask(program, request).error;
  }
  int Listen(const Program& program, shm::CmHandle id, uint32_t backlog = 0) {
    return Ask(program, shm::CmOp::kListen, id, backlog).error;
  }
  shm::CmHandle NewListener(const Program& program, const shm::CmAddress& address,
                            uint16_t port_space = RDMA_PS_TCP, uint32_t backlog = 0) {
    const shm::CmHandle id = NewId(program, port_space, 0x115);
    EXPECT_EQ(Bind(program, id, address), 0);
    EXPECT_EQ(Listen(program, id, backlog), 0);
    return id;
  }
  int ResolveAddress(const Program& program, shm::CmHandle id, const shm::CmAddress& destination,
                     const shm::CmAddress& source = {}) {
    shm::CmRequest request = RequestOf(shm::CmOp::kResolveAddr, id);
    request.resolve = {source, destination, 2000};
    return Ask(program, request).error;
  }
  int SetOption(const Program& program, shm::CmHandle id, uint32_t name, uint32_t value,
                uint32_t length = 4, uint32_t level = RDMA_OPTION_ID) {
    shm::CmRequest request = RequestOf(shm::CmOp::kSetOption, id);
    request.option.level = level;
    request.option.name = name;
    request.option.length = length;
    std::memcpy(request.option.value, &value, sizeof value);
    return Ask(program, request).error;
  }
  // Address and route; both events are taken.
  void Resolve(const Program& program, shm::CmHandle id, const shm::CmAddress& destination) {
    ASSERT_EQ(ResolveAddress(program, id, destination), 0);
    ASSERT_NO_FATAL_FAILURE(Expect(program, RDMA_CM_EVENT_ADDR_RESOLVED));
    ASSERT_EQ(Ask(program, shm::CmOp::kResolveRoute, id, 2000).error, 0);
    ASSERT_NO_FATAL_FAILURE(Expect(program, RDMA_CM_EVENT_ROUTE_RESOLVED));
  }
  static shm::CmConnParam ParamOf(uint32_t qpn, const std::string& data = "") {
    shm::CmConnParam param{};
    param.qp_num = qpn;
    param.responder_resources = 5;
    param.initiator_depth = 3;
    param.retry_count = 7;
    param.rnr_retry_count = 6;
    param.private_data_len = static_cast<uint8_t>(data.size());
    std::memcpy(param.private_data, data.data(), data.size());
    return param;
  }
  int Connect(const Program& program, shm::CmHandle id, const shm::CmConnParam& param) {
    shm::CmRequest request = RequestOf(shm::CmOp::kConnect, id);
    request.connect.param = param;
    return Ask(program, request).error;
  }
  int Accept(const Program& program, shm::CmHandle id, const shm::CmConnParam& param,
             uint64_t cookie = 0xacce) {
    shm::CmRequest request = RequestOf(shm::CmOp::kAccept, id);
    request.connect.cookie = cookie;
    request.connect.param = param;
    return Ask(program, request).error;
  }
  int Reject(const Program& program, shm::CmHandle id, const std::string& data = "",
             uint8_t reason = 0) {
    shm::CmRequest request = RequestOf(shm::CmOp::kReject, id);
    request.reject.reason = reason;
    request.reject.private_data_len = static_cast<uint8_t>(data.size());
    std::memcpy(request.reject.private_data, data.data(), data.size());
    return Ask(program, request).error;
  }
  int Do(const Program& program, shm::CmOp op, shm::CmHandle id) {
    return Ask(program, op, id).error;
  }
  uint32_t Destroy(const Program& program, shm::CmHandle id) {
    const shm::CmReply reply = Ask(program, shm::CmOp::kDestroyId, id);
    EXPECT_EQ(reply.error, 0);
    return reply.number;
  }
  void Close(const Program& program) {
    hosts_[program.host]->CloseSession(now_, program.session);
    std::erase_if(readable_[program.host],
                  [&](const auto& entry) { return entry.first.first == program.session; });
    Drain(program.host);
  }
  static std::string DataOf(const shm::CmConnParam& param, size_t length) {
    EXPECT_LE(length, param.private_data_len);
    return std::string(reinterpret_cast<const char*>(param.private_data), length);
  }

  // --- the network ------------------------------------------------------------------------------

  struct Flight {
    Instant at;
    uint64_t order;
    int to;
    uint32_t nic;
    transport::cm::Route route;
    transport::cm::Mad mad;
  };

  // The NIC that has the GID: of the sender's host, or of the other.
  bool FindNic(int host, uint32_t from_nic, const Gid& gid, int* to, uint32_t* nic) const {
    auto has = [&](const CmNic& candidate) {
      return std::find(candidate.gids.begin(), candidate.gids.end(), gid) != candidate.gids.end();
    };
    for (int other : {host, 1 - host}) {
      for (const CmNic& candidate : NicsOf(other)) {
        if (!has(candidate)) continue;
        if (other != host && (from_nic != 0 || candidate.index != 0)) continue;
        *to = other;
        *nic = candidate.index;
        return true;
      }
    }
    return false;
  }

  void Drain(int host) {
    CmService::OutMad out;
    while (hosts_[host]->PollMad(&out)) {
      transport::cm::Message message;
      EXPECT_EQ(transport::cm::Decode(out.mad.data(), out.mad.size(), &message),
                transport::cm::DecodeError::kNone);
      sent_.push_back(message.body);
      int to = 0;
      uint32_t nic = 0;
      if (!FindNic(host, out.nic, out.route.remote, &to, &nic)) continue;
      const int copies = Chance() < faults_.duplication ? 2 : 1;
      for (int i = 0; i < copies; ++i) {
        if (Chance() < faults_.loss) continue;
        const auto jitter_ns =
            static_cast<int64_t>(Chance() * static_cast<double>(faults_.jitter.ns));
        flights_.push_back({now_ + Milliseconds(1) + Nanoseconds(jitter_ns),
                            order_++,
                            to,
                            nic,
                            {out.route.remote, out.route.local},
                            out.mad});
      }
    }
    CmService::ChannelState change;
    while (hosts_[host]->PollChannel(&change)) {
      bool& is_readable = readable_[host][{change.session, change.channel}];
      EXPECT_NE(is_readable, change.is_readable) << "told of what has not changed";
      is_readable = change.is_readable;
    }
  }

  // To the next thing that happens. False: nothing will.
  bool Step() {
    Instant next = Instant::Never();
    for (const auto& host : hosts_) next = std::min(next, host->PollTimeout());
    auto first = std::min_element(flights_.begin(), flights_.end(), [](auto& a, auto& b) {
      return std::tie(a.at, a.order) < std::tie(b.at, b.order);
    });
    if (first != flights_.end()) next = std::min(next, first->at);
    if (next.IsNever()) return false;
    now_ = std::max(now_, next);
    if (first != flights_.end() && first->at <= now_) {
      const Flight flight = *first;
      flights_.erase(first);
      if (!is_cut_) {
        hosts_[flight.to]->OnMad(now_, flight.nic, flight.route.local, flight.route.remote,
                                 flight.mad.data(), flight.mad.size());
      }
    }
    for (int host = 0; host < kHosts; ++host) {
      hosts_[host]->OnTimeout(now_);
      Drain(host);
    }
    return true;
  }
  void Rest() {
    while (Step()) {
    }
  }
  // What is on its way arrives, and what that leads to; no timer does.
  void Settle() {
    while (!flights_.empty()) Step();
  }

  // --- events -----------------------------------------------------------------------------------

  // As who polls the channel's fd.
  std::optional<shm::CmEvent> TryTake(const Program& program) {
    const bool is_readable = readable_[program.host][{program.session, program.channel}];
    const shm::CmReply reply = Ask(program, shm::CmOp::kGetEvent, program.channel);
    EXPECT_EQ(reply.error, is_readable ? 0 : EAGAIN);
    if (reply.error != 0) return std::nullopt;
    return reply.event;
  }
  std::optional<shm::CmEvent> Take(const Program& program) {
    for (;;) {
      if (auto event = TryTake(program)) return event;
      if (!Step()) return std::nullopt;
    }
  }
  // The next event, whenever it comes; in `last_`.
  void Expect(const Program& program, uint32_t type, int status = 0) {
    const std::optional<shm::CmEvent> event = Take(program);
    ASSERT_TRUE(event.has_value()) << "no event " << type;
    ASSERT_EQ(event->event, type) << "status " << event->status;
    ASSERT_EQ(event->status, status);
    last_ = *event;
  }
  void ExpectSilence(const Program& program) {
    const std::optional<shm::CmEvent> event = TryTake(program);
    ASSERT_FALSE(event.has_value()) << "event " << event->event;
  }

  double Chance() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  CmCounters CountersOf(int host) const { return hosts_[host]->Counters(); }

  template <typename M>
  int CountSent() const {
    return static_cast<int>(std::count_if(sent_.begin(), sent_.end(), [](const auto& body) {
      return std::holds_alternative<M>(body);
    }));
  }

  // --- connections ------------------------------------------------------------------------------

  struct Pair {
    Program client{}, server{};
    shm::CmHandle listener = 0, active = 0, passive = 0;
  };
  // Up to the connect request, taken.
  void AskForConnection(Pair* pair, uint16_t port_space = RDMA_PS_TCP) {
    pair->client = StartProgram(0);
    pair->server = StartProgram(1);
    pair->listener = NewListener(pair->server, At("0.0.0.0", 7174), port_space);
    pair->active = NewId(pair->client, port_space);
    ASSERT_NO_FATAL_FAILURE(Resolve(pair->client, pair->active, At(IpOf(1).c_str(), 7174)));
    ASSERT_EQ(Connect(pair->client, pair->active, ParamOf(0x11, "hello")), 0);
    ASSERT_NO_FATAL_FAILURE(Expect(pair->server, RDMA_CM_EVENT_CONNECT_REQUEST));
    pair->passive = last_.id;
  }
  void MakeConnection(Pair* pair) {
    ASSERT_NO_FATAL_FAILURE(AskForConnection(pair));
    ASSERT_EQ(Accept(pair->server, pair->passive, ParamOf(0x22)), 0);
    ASSERT_NO_FATAL_FAILURE(Expect(pair->client, RDMA_CM_EVENT_CONNECT_RESPONSE));
    ASSERT_EQ(Do(pair->client, shm::CmOp::kEstablish, pair->active), 0);
    ASSERT_NO_FATAL_FAILURE(Expect(pair->server, RDMA_CM_EVENT_ESTABLISHED));
  }

  Instant now_{};
  std::mt19937_64 random_{1};
  Faults faults_;
  bool is_cut_ = false;
  bool looks_up_ = false;  // for Start
  uint64_t order_ = 0;
  std::vector<Flight> flights_;
  std::vector<transport::cm::Body> sent_;
  shm::CmEvent last_{};
  std::map<std::pair<uint32_t, shm::CmHandle>, bool> readable_[kHosts];
  std::unique_ptr<CmService> hosts_[kHosts];
};

}  // namespace verbena::softnic
