// Memory windows over a network: messages of many packets, and a window that goes amid one.
#include "softnic/device/test_windows.h"
#include "softnic/device/test_wire.h"

namespace verbena::softnic::testing {
namespace {

using shm::WrOpcode;

class WindowsOverWire : public Wire {
 protected:
  // Bob lends all of a region, by a window of type 2.
  void Lend() {
    Connect(Service::kRc);
    region = bob.MustRegMr(to.data(), to.size(), kBindable);
    shm::AllocMwRequest request{bob.pd, shm::kMwType2};
    shm::AllocMwReply reply{};
    ASSERT_EQ(bob.Execute(shm::CommandOp::kAllocMw, request, &reply), 0);
    shm::SendWqe bind = MakeWqe(WrOpcode::kBindMw, 1);
    bind.imm_or_rkey = rkey = NextKey(reply.rkey);
    bind.rkey = region.lkey;
    bind.remote_addr = reinterpret_cast<uint64_t>(to.data());
    bind.bind = {kBytes, reply.mw, kRemoteRights};
    bob.Post(qp_b, bind, {});
    ASSERT_EQ(Wait(bob, cq_b), WcStatus::kSuccess);
  }
  void Post(WrOpcode opcode) {
    shm::SendWqe wqe = Rdma(opcode);
    wqe.rkey = rkey;
    alice.Post(qp_a, wqe, {SgeOf(from.data(), kBytes, mr_a.lkey)});
  }
  // Has the request reach Bob, whose memory is slow; then he takes the key away. Returns at the
  // very step that completes that.
  void InvalidateAmid(WrOpcode opcode) {
    b->dma.is_held = true;
    Post(opcode);
    Settle();
    shm::SendWqe invalidate = MakeWqe(WrOpcode::kLocalInv, 2);
    invalidate.imm_or_rkey = rkey;
    bob.Post(qp_b, invalidate, {});
    Settle();
    EXPECT_EQ(cq_b.ring.Peek(), nullptr);
    b->dma.is_held = false;
    while (cq_b.ring.Peek() == nullptr) ASSERT_TRUE(b->dma.Step(*b->device, b->now));
    // The next packet of a WRITE fails the QP, and so what it is amid: that is told no earlier.
    const WcStatus status = bob.Poll(cq_b)->status;
    EXPECT_TRUE(status == WcStatus::kSuccess || status == WcStatus::kWrFlushErr);
  }

  TestMr region;
  uint32_t rkey = 0;
};

TEST_P(WindowsOverWire, CarryMessagesOfManyPackets) {
  Lend();
  Post(WrOpcode::kRdmaWrite);
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(to, from);
  std::fill(to.begin(), to.end(), uint8_t{0x11});
  Post(WrOpcode::kRdmaRead);
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(to, from);
}

TEST_P(WindowsOverWire, NothingIsReadOnceTheWindowIsGone) {
  Lend();
  std::fill(to.begin(), to.end(), uint8_t{0});
  std::fill(from.begin(), from.end(), uint8_t{0});
  InvalidateAmid(WrOpcode::kRdmaRead);
  std::fill(to.begin(), to.end(), uint8_t{0x77});
  EXPECT_NE(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(std::count(from.begin(), from.end(), 0x77), 0);
}

TEST_P(WindowsOverWire, NothingIsWrittenOnceTheWindowIsGone) {
  Lend();
  InvalidateAmid(WrOpcode::kRdmaWrite);
  std::fill(to.begin(), to.end(), uint8_t{0x77});
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kRemAccessErr);
  EXPECT_EQ(static_cast<uint32_t>(std::count(to.begin(), to.end(), 0x77)), kBytes);
}

INSTANTIATE_TEST_SUITE_P(Packets, WindowsOverWire, ::testing::Bool(), Wire::NameOf);

}  // namespace
}  // namespace verbena::softnic::testing
