// Two engines and a network in virtual time that loses, doubles and reorders.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "transport/cm/engine.h"

namespace verbena::transport::cm {

inline const Gid kHere = Gid::FromIpv4(0x0a000001), kThere = Gid::FromIpv4(0x0a000002);
inline constexpr ServiceId kService{0x0000'0000'0106'04d2};
inline constexpr uint8_t kResponseTimeout = 14;  // 67 ms
inline constexpr uint8_t kRetries = 5;
inline constexpr Duration kDelay = Milliseconds(1);

struct Faults {
  double loss = 0, duplication = 0;
  Duration jitter{};
};

class CmTest : public ::testing::Test {
 protected:
  // 0 is active, 1 listens.
  CmTest() { EXPECT_EQ(engines_[1].Listen(kService, {}), 0); }

  struct Flight {
    Instant at;
    uint64_t order;
    int to;
    Route route;
    Mad mad;
  };

  Req MakeReq(uint32_t qpn = 0x11) {
    Req req;
    req.service_id = kService;
    req.local_qpn = Qpn{qpn};
    req.remote_cm_response_timeout = req.local_cm_response_timeout = kResponseTimeout;
    req.max_cm_retries = kRetries;
    req.primary.local_ack_timeout = 14;
    req.private_data[0] = std::byte{0x77};
    return req;
  }
  CommId Connect(uint32_t qpn = 0x11) {
    CommId id;
    EXPECT_EQ(engines_[0].SendReq(now_, {kHere, kThere}, MakeReq(qpn), &id), 0);
    return id;
  }
  Rep MakeRep(uint32_t qpn = 0x22) {
    Rep rep;
    rep.local_qpn = Qpn{qpn};
    return rep;
  }

  void Collect(int from) {
    OutMad out;
    while (engines_[from].PollMad(&out)) {
      sent_.push_back(out);
      std::uniform_real_distribution<double> chance(0, 1);
      const int copies = chance(random_) < faults_.duplication ? 2 : 1;
      for (int i = 0; i < copies; ++i) {
        if (chance(random_) < faults_.loss) continue;
        const Duration late = faults_.jitter * (faults_.jitter.ns == 0 ? 0 : 1);
        const int64_t jitter_ns =
            late.ns == 0 ? 0 : static_cast<int64_t>(chance(random_) * static_cast<double>(late.ns));
        flights_.push_back({now_ + kDelay + Nanoseconds(jitter_ns),
                            order_++,
                            out.route.remote == kThere ? 1 : 0,
                            {out.route.remote, out.route.local},
                            out.mad});
      }
    }
  }

  // To the next thing that happens. False: nothing will.
  bool Step() {
    for (int i : {0, 1}) Collect(i);
    Instant next = std::min(engines_[0].PollTimeout(), engines_[1].PollTimeout());
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
        engines_[flight.to].OnMad(now_, flight.route, flight.mad.data(), flight.mad.size());
      }
    }
    for (Engine& engine : engines_) engine.OnTimeout(now_);
    return true;
  }

  // The next event of an engine; what the other has to tell waits.
  std::optional<Event> Await(int side, Duration patience = Seconds(600)) {
    const Instant until = now_ + patience;
    for (;;) {
      Event event;
      if (engines_[side].PollEvent(&event)) return event;
      if (now_ > until || !Step()) return std::nullopt;
    }
  }
  void Expect(int side, EventKind kind, CommId* id = nullptr) {
    std::optional<Event> event = Await(side);
    ASSERT_TRUE(event.has_value()) << NameOf(kind);
    ASSERT_EQ(event->kind, kind) << NameOf(event->kind);
    if (id != nullptr) *id = event->id;
    last_ = *event;
  }
  void Rest() {
    while (Step()) {
    }
  }

  // From REQ to established, on both sides.
  void MakeConnection(CommId* active, CommId* passive, uint32_t qpn = 0x11) {
    *active = Connect(qpn);
    Expect(1, EventKind::kReqReceived, passive);
    ASSERT_EQ(engines_[1].SendRep(now_, *passive, MakeRep(qpn + 0x1000)), 0);
    Expect(0, EventKind::kRepReceived);
    ASSERT_EQ(engines_[0].SendRtu(now_, *active, {}), 0);
    Expect(1, EventKind::kEstablished);
  }

  Instant now_{};
  std::mt19937 random_{1};
  Faults faults_;
  bool is_cut_ = false;
  uint64_t order_ = 0;
  std::vector<Flight> flights_;
  std::vector<OutMad> sent_;
  Event last_{};
  Engine engines_[2] = {Engine({.ca_guid = 0xa, .first_comm_id = 100, .communications_max = 64}),
                        Engine({.ca_guid = 0xb, .first_comm_id = 200, .communications_max = 64})};
};

}  // namespace verbena::transport::cm
