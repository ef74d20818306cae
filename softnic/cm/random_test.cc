// Many connections at once over a network that loses, doubles and reorders, between programs that
// reject, disconnect and go at any time.
#include <set>

#include "softnic/cm/test_world.h"

namespace verbena::softnic {
namespace {

using shm::CmOp;

class CmRandom : public CmWorld {
 protected:
  // What became of a rdma_connect.
  struct Attempt {
    int outcomes = 0;  // response or establishment, rejection, unreachable
    bool is_up = false;
  };

  void OnActiveEvent(const Program& client, const shm::CmEvent& event) {
    Attempt& attempt = attempts_[event.id];
    switch (static_cast<rdma_cm_event_type>(event.event)) {
      case RDMA_CM_EVENT_CONNECT_RESPONSE: {
        ++attempt.outcomes;
        const uint64_t choice = random_() % 10;
        if (choice == 0) {
          EXPECT_EQ(Reject(client, event.id), 0);
        } else if (choice == 1) {
          Destroy(client, event.id);
        } else {
          EXPECT_EQ(Do(client, CmOp::kEstablish, event.id), 0);
          attempt.is_up = true;
          if (choice < 6) {
            EXPECT_EQ(Do(client, CmOp::kDisconnect, event.id), 0);
          }
        }
        break;
      }
      case RDMA_CM_EVENT_ESTABLISHED:  // of a datagram service
        ++attempt.outcomes;
        attempt.is_up = true;
        break;
      case RDMA_CM_EVENT_REJECTED:
        // After an RTU it is the end of a connection: the server has given up meanwhile.
        if (!attempt.is_up) ++attempt.outcomes;
        break;
      case RDMA_CM_EVENT_UNREACHABLE:
        ++attempt.outcomes;
        break;
      case RDMA_CM_EVENT_DISCONNECTED:
        EXPECT_TRUE(attempt.is_up);
        EXPECT_EQ(Do(client, CmOp::kDisconnect, event.id), 0);
        break;
      case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        break;
      default:
        FAIL() << event.event;
    }
  }

  void OnPassiveEvent(const Program& server, const shm::CmEvent& event) {
    switch (static_cast<rdma_cm_event_type>(event.event)) {
      case RDMA_CM_EVENT_CONNECT_REQUEST: {
        EXPECT_TRUE(known_.insert(event.id).second) << "told of twice";
        const uint64_t choice = random_() % 10;
        if (choice == 0) {
          Reject(server, event.id);
        } else if (choice == 1) {
          Destroy(server, event.id);
        } else {
          // EINVAL: the client has gone.
          Accept(server, event.id, ParamOf(0x100000 + event.id), event.id);
        }
        break;
      }
      case RDMA_CM_EVENT_ESTABLISHED:
        EXPECT_EQ(event.cookie, event.id);
        if (random_() % 4 == 0) {
          EXPECT_EQ(Do(server, CmOp::kDisconnect, event.id), 0);
        }
        break;
      case RDMA_CM_EVENT_DISCONNECTED:
        EXPECT_EQ(Do(server, CmOp::kDisconnect, event.id), 0);
        if (random_() % 2 == 0) Destroy(server, event.id);
        break;
      case RDMA_CM_EVENT_REJECTED:
      case RDMA_CM_EVENT_UNREACHABLE:
      case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        Destroy(server, event.id);
        break;
      default:
        FAIL() << event.event;
    }
  }

  // Until nothing happens any more.
  void Run(const std::optional<Program>& client, const Program& server) {
    do {
      while (client.has_value()) {
        const std::optional<shm::CmEvent> event = TryTake(*client);
        if (!event.has_value()) break;
        OnActiveEvent(*client, *event);
      }
      while (auto event = TryTake(server)) OnPassiveEvent(server, *event);
      if (HasFatalFailure()) return;
    } while (Step());
  }

  std::map<shm::CmHandle, Attempt> attempts_;
  std::set<shm::CmHandle> known_;
};

TEST_F(CmRandom, EachConnectHasOneOutcomeAndNothingIsLeft) {
  int up = 0, down = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_.seed(seed);
    now_ = {};
    flights_.clear();
    sent_.clear();
    attempts_.clear();
    known_.clear();
    for (int host = 0; host < kHosts; ++host) Start(host, seed * 2 + host);
    faults_ = {};
    const Program client = StartProgram(0), server = StartProgram(1);
    const uint32_t backlog = 1 + static_cast<uint32_t>(random_() % 20);
    NewListener(server, At("::", 1), RDMA_PS_TCP, backlog);
    NewListener(server, At("0.0.0.0", 1), RDMA_PS_UDP, backlog);
    for (uint32_t i = 0; i < 60; ++i) {
      const bool is_ud = random_() % 5 == 0;
      const shm::CmHandle id = NewId(client, is_ud ? RDMA_PS_UDP : RDMA_PS_TCP);
      const uint16_t port = random_() % 20 == 0 ? 2 : 1;
      ASSERT_NO_FATAL_FAILURE(Resolve(client, id, At("10.0.0.2", port)));
      attempts_[id];
    }
    faults_ = {.loss = 0.05 * static_cast<double>(seed % 6),
               .duplication = 0.1,
               .jitter = Milliseconds(seed % 3 == 0 ? 10'000 : 20)};
    for (const auto& [id, attempt] : attempts_) {
      ASSERT_EQ(Connect(client, id, ParamOf(0x1000 + id)), 0);
    }
    ASSERT_NO_FATAL_FAILURE(Run(client, server));
    for (const auto& [id, attempt] : attempts_) {
      ASSERT_EQ(attempt.outcomes, 1) << "identifier " << id;
      ++(attempt.is_up ? up : down);
    }
    Close(client);
    ASSERT_NO_FATAL_FAILURE(Run(std::nullopt, server));
    Close(server);
    Rest();
    for (int host = 0; host < kHosts; ++host) {
      const CmCounters counters = CountersOf(host);
      ASSERT_EQ(counters.communications + counters.ids_connected, 0u);
      ASSERT_EQ(counters.ids + counters.sessions + counters.events_waiting, 0u);
    }
  }
  EXPECT_GT(up, 5'000) << "of 12000";
  EXPECT_GT(down, 500);
}

TEST_F(CmRandom, ASeedIsAStory) {
  auto story = [&](uint64_t seed) {
    random_.seed(seed);
    now_ = {};
    flights_.clear();
    sent_.clear();
    attempts_.clear();
    known_.clear();
    for (int host = 0; host < kHosts; ++host) Start(host, seed * 2 + host);
    faults_ = {};
    const Program client = StartProgram(0), server = StartProgram(1);
    NewListener(server, At("0.0.0.0", 1));
    for (uint32_t i = 0; i < 20; ++i) {
      const shm::CmHandle id = NewId(client);
      Resolve(client, id, At("10.0.0.2", 1));
      faults_ = {.loss = 0.2, .duplication = 0.2, .jitter = Milliseconds(50)};
      EXPECT_EQ(Connect(client, id, ParamOf(0x1000 + id)), 0);
      faults_ = {};
    }
    faults_ = {.loss = 0.2, .duplication = 0.2, .jitter = Milliseconds(50)};
    Run(client, server);
    return sent_;
  };
  const auto first = story(3), second = story(3), other = story(4);
  EXPECT_EQ(first, second);
  EXPECT_NE(first, other);
}

}  // namespace
}  // namespace verbena::softnic
