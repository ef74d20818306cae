// Two ends in one device, which may take messages in one step, or may not.
#pragma once

#include <algorithm>
#include <cstdint>

#include "softnic/device/test_ends.h"

namespace verbena::softnic::testing {

inline constexpr uint32_t kAll =
    access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
inline constexpr uint32_t kDirectBytesMax = 65'536;

// Time is the world's, and nothing is between the ends.
class EndsInOneDevice : public Ends {
 public:
  EndsInOneDevice(const Terms& with, uint32_t nics) : Ends(with), world(nics) {}

  TestWorld world;

 private:
  void SettleAll() override { world.Settle(); }
  Instant NextTimer() override { return world.device->PollTimeout(); }
  void PassTime(Instant time) override {
    world.now = std::max(world.now, time);
    world.device->OnTimeout(world.now);
  }
  Instant Now() const override { return world.now; }
};

enum class Peers { kTwo, kOneQp };

class DirectWorld final : public EndsInOneDevice {
 public:
  // kOneQp: both ends are one QP, connected to itself.
  explicit DirectWorld(bool moves_now, Peers peers = Peers::kTwo, const Terms& with = {})
      : EndsInOneDevice(with, 2) {
    world.dma.moves_now = moves_now;
    TestClient& first = world.AddClient(0);
    Open(first, peers == Peers::kOneQp ? first : world.AddClient(1));
    // The first message of a connection, which has an event of its own.
    for (int i : {0, 1}) Write(i, 0, 8, 0);
    Settle();
    world.dma.moved_now = 0;
  }

  void Write(int from, uint64_t wr_id, uint32_t bytes, uint8_t flags = shm::kSendSignaled) {
    End &end = ends[from], &peer = ends[1 - from];
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, wr_id, flags);
    wqe.remote_addr = reinterpret_cast<uint64_t>(peer.memory + 64);
    wqe.rkey = peer.mr.rkey;
    end.client->Post(*end.qp, wqe, {SgeOf(end.memory, bytes, end.mr.lkey)});
  }
};

}  // namespace verbena::softnic::testing
