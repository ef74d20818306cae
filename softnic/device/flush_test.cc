// FLUSH on a device: which keys let it in, and that its answer waits for what was written before.
#include <cerrno>

#include "softnic/device/test_windows.h"
#include "softnic/device/test_wire.h"

namespace verbena::softnic::testing {
namespace {

namespace flush = transport::flush;
using shm::CommandOp;
using shm::kMwType1;
using shm::kMwType2;
using shm::WrOpcode;

constexpr uint32_t kFlushable = access::kLocalWrite | access::kRemoteWrite | access::kFlushGlobal;

class Flush : public WindowTest {
 protected:
  Flush() : open(b.MustRegMr(memory_b, sizeof(memory_b), kFlushable)) {}

  void Post(TestQp& qp, uint32_t rkey, uint32_t level = flush::kRange, uint64_t addr = 0,
            uint64_t length = 8, uint64_t wr_id = 1) {
    shm::SendWqe wqe = MakeWqe(WrOpcode::kFlush, wr_id);
    wqe.rkey = rkey;
    wqe.remote_addr = addr != 0 ? addr : AddrB(1'024);
    wqe.flush = {length, flush::kGlobal, level};
    a.Post(qp, wqe, {});
  }
  WcStatus Do(uint32_t rkey, uint32_t level = flush::kRange, uint64_t addr = 0,
              uint64_t length = 8) {
    Post(qp_a, rkey, level, addr, length);
    return Next(a, cq_a).status;
  }
  void ExpectFlushRefused(uint32_t rkey, uint64_t addr = 0, uint64_t length = 8) {
    for (uint32_t level : {uint32_t{flush::kRange}, uint32_t{flush::kMr}}) {
      if (level == flush::kMr && addr != 0) continue;
      EXPECT_EQ(Do(rkey, level, addr, length), WcStatus::kRemAccessErr) << "level " << level;
      EXPECT_EQ(b.TakeAsyncEvents(), std::vector<EventType>{EventType::kQpAccessErr});
      Renew();
    }
  }
  void ExpectFlushes(uint32_t rkey) {
    EXPECT_EQ(Do(rkey), WcStatus::kSuccess);
    EXPECT_EQ(Do(rkey, flush::kMr), WcStatus::kSuccess);
  }

  TestMr open;
};

TEST_F(Flush, IsToldOfAndPersistenceIsNot) {
  shm::QueryDeviceReply device;
  ASSERT_EQ(b.ExecuteRaw(CommandOp::kQueryDevice, nullptr, 0, &device, sizeof(device)), 0);
  EXPECT_EQ(device.device_cap_flags_ex >> 38 & 3, 1u);  // FLUSH_GLOBAL, not FLUSH_PERSISTENT
}

TEST_F(Flush, RegionsMayAllowIt) {
  TestMr mr;
  EXPECT_EQ(b.RegMr(b.pd, memory_b, 64, access::kFlushGlobal, &mr), 0);
  for (uint32_t bits : {0u, access::kFlushGlobal, kFlushable}) {
    EXPECT_EQ(b.RegMr(b.pd, memory_b, 64, bits | access::kFlushPersistent, &mr), EOPNOTSUPP);
  }
}

TEST_F(Flush, TakesARangeOrAWholeRegion) {
  ExpectFlushes(open.rkey);
  const uint64_t end = AddrB(sizeof(memory_b));
  EXPECT_EQ(Do(open.rkey, flush::kRange, end - 8), WcStatus::kSuccess);
  EXPECT_EQ(Do(open.rkey, flush::kRange, end, 0), WcStatus::kSuccess);
  EXPECT_EQ(Do(open.rkey, flush::kMr, 1, ~uint64_t{0}), WcStatus::kSuccess);
  ExpectFlushRefused(open.rkey, end - 7);
  ExpectFlushRefused(open.rkey, end + 1, 0);
  ExpectFlushRefused(open.rkey, AddrB(0) - 1, 0);
  ExpectFlushRefused(open.rkey, ~uint64_t{0} - 3);
}

TEST_F(Flush, NeedsARegionThatAllowsIt) {
  constexpr uint32_t kOthers = access::kLocalWrite | kRemoteRights;
  ExpectFlushRefused(b.MustRegMr(memory_b, sizeof(memory_b), kOthers).rkey);
  ExpectFlushRefused(0);
  ExpectFlushRefused(open.rkey ^ 1);
}

TEST_F(Flush, ARegionOfAnotherPdIsNotReached) {
  TestMr other;
  ASSERT_EQ(b.RegMr(b.AllocPd(), memory_b, sizeof(memory_b), kFlushable, &other), 0);
  ExpectFlushRefused(other.rkey);
}

TEST_F(Flush, AKeyThatIsGoneIsNotTaken) {
  ASSERT_EQ(b.DoHandle(CommandOp::kDeregMr, open.handle), 0);
  ExpectFlushRefused(open.rkey);
  TestMr invalidated = b.MustRegMr(memory_b, sizeof(memory_b), kFlushable);
  ASSERT_EQ(Invalidate(invalidated.rkey).status, WcStatus::kSuccess);
  ExpectFlushRefused(invalidated.rkey);
}

TEST_F(Flush, ANullRegionHasNoRemoteKey) {
  shm::RegMrReply reply;
  shm::HandleRequest request{b.pd, 0};
  ASSERT_EQ(b.Execute(CommandOp::kAllocNullMr, request, &reply), 0);
  ExpectFlushRefused(reply.lkey);
}

TEST_F(Flush, RightsFollowReregistration) {
  shm::ReregMrRequest request = {};
  request.mr = open.handle;
  request.changes = shm::kReregAccess;
  request.region.access = access::kLocalWrite | kRemoteRights;
  shm::RegMrReply reply;
  ASSERT_EQ(b.Execute(CommandOp::kReregMr, request, &reply), 0);
  ExpectFlushRefused(reply.rkey);
  request.region.access = kFlushable | access::kFlushPersistent;
  EXPECT_EQ(b.Execute(CommandOp::kReregMr, request, &reply), EOPNOTSUPP);
  request.region.access = kFlushable;
  ASSERT_EQ(b.Execute(CommandOp::kReregMr, request, &reply), 0);
  ExpectFlushes(reply.rkey);
}

TEST_F(Flush, NeedsAQpThatAllowsIt) {
  ASSERT_EQ(b.ToReset(qp_b), 0);
  ASSERT_EQ(a.ToReset(qp_a), 0);
  Connect(a, qp_a, b, qp_b, Service::kRc);
  shm::QpAttr attr{};
  attr.qp_access_flags = access::kLocalWrite | kRemoteRights;
  ASSERT_EQ(b.Modify(qp_b, attr, shm::qp_mask::kAccessFlags), 0);
  EXPECT_EQ(Do(open.rkey), WcStatus::kRemInvReqErr);
  EXPECT_EQ(b.TakeAsyncEvents(), std::vector<EventType>{EventType::kQpReqErr});
}

// --- windows and device memory -------------------------------------------------------------------

class FlushOfEitherType : public Flush, public ::testing::WithParamInterface<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Types, FlushOfEitherType, ::testing::Values(kMwType1, kMwType2));

// A window's rights are its own: the region's part is to be bindable.
TEST_P(FlushOfEitherType, NeedsAWindowThatAllowsIt) {
  TestMw mw = MustAllocMw(GetParam());
  TestBind bind = Middle(mw);
  bind.access = kRemoteRights | access::kFlushGlobal;
  ASSERT_EQ(Bind(&mw, bind).status, WcStatus::kSuccess);
  ExpectFlushes(mw.rkey);
  EXPECT_EQ(Do(mw.rkey, flush::kRange, AddrB(1'280), 0), WcStatus::kSuccess);
  ExpectFlushRefused(mw.rkey, AddrB(1'023));
  ExpectFlushRefused(mw.rkey, AddrB(1'273));
  ExpectFlushRefused(Bound(GetParam()).rkey);
}

TEST_P(FlushOfEitherType, AWindowIsNotPersistent) {
  TestMw mw = MustAllocMw(GetParam());
  TestBind bind = Middle(mw);
  bind.access = kRemoteRights | access::kFlushPersistent;
  EXPECT_EQ(Bind(&mw, bind).status, WcStatus::kMwBindErr);
}

TEST_F(Flush, AWindowOfAnotherQpIsNotReached) {
  TestMw mw = MustAllocMw(kMwType2);
  TestBind bind = Middle(mw);
  bind.access = kRemoteRights | access::kFlushGlobal;
  ASSERT_EQ(Bind(&mw, bind).status, WcStatus::kSuccess);
  for (uint32_t level : {uint32_t{flush::kRange}, uint32_t{flush::kMr}}) {
    TestQp second_a = a.MustCreateQp(Service::kRc, cq_a);
    TestQp second_b = b.MustCreateQp(Service::kRc, cq_b);
    Connect(a, second_a, b, second_b, Service::kRc);
    Post(second_a, mw.rkey, level);
    EXPECT_EQ(Next(a, cq_a).status, WcStatus::kRemAccessErr);
    EXPECT_EQ(b.TakeAsyncEvents(), std::vector<EventType>{EventType::kQpAccessErr});
  }
}

TEST_F(Flush, DeviceMemoryMayAllowIt) {
  shm::DmReply dm;
  ASSERT_EQ(b.Execute(CommandOp::kAllocDm, shm::AllocDmRequest{64, 0, 0}, &dm), 0);
  shm::RegMrReply reply;
  auto reg = [&](uint32_t bits) {
    return b.Execute(CommandOp::kRegDmMr,
                     shm::RegDmMrRequest{b.pd, dm.dm, 0, 64, bits | access::kZeroBased, 0}, &reply);
  };
  ASSERT_EQ(reg(kFlushable), 0);
  EXPECT_EQ(Do(reply.rkey, flush::kMr), WcStatus::kSuccess);
  EXPECT_EQ(Do(reply.rkey, flush::kRange, 56), WcStatus::kSuccess);
  ExpectFlushRefused(reply.rkey, 57);
  EXPECT_EQ(reg(kFlushable | access::kFlushPersistent), EINVAL);
}

// --- order ---------------------------------------------------------------------------------------

TEST_F(Flush, WaitsForWhatWasWrittenBefore) {
  for (uint32_t level : {uint32_t{flush::kRange}, uint32_t{flush::kMr}}) {
    memory_a[0] = static_cast<uint8_t>(7 + level);
    world.dma.is_held = true;
    shm::SendWqe write = RemoteWqe(WrOpcode::kRdmaWrite, AddrB(1'024), open.rkey);
    write.flags = 0;
    a.Post(qp_a, write, {SgeOf(memory_a, 8, mr_a.lkey)});
    Post(qp_a, open.rkey, level, 0, 8, 2);
    world.Settle();
    EXPECT_EQ(cq_a.ring.Peek(), nullptr);
    world.dma.is_held = false;
    const Wc wc = Next(a, cq_a);
    EXPECT_EQ(wc.wr_id, 2u);
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
    EXPECT_EQ(wc.opcode, shm::WcOpcode::kFlush);
    EXPECT_EQ(memory_b[1'024], 7 + level);
  }
}

TEST_F(Flush, IsNotForUc) {
  TestQp uc_a = a.MustCreateQp(Service::kUc, cq_a), uc_b = b.MustCreateQp(Service::kUc, cq_b);
  Connect(a, uc_a, b, uc_b, Service::kUc);
  Post(uc_a, open.rkey);
  EXPECT_EQ(Next(a, cq_a).status, WcStatus::kLocQpOpErr);
}

// --- over a network ------------------------------------------------------------------------------

class FlushOverWire : public Wire {
 protected:
  void SetUp() override {
    Connect(Service::kRc);
    open = bob.MustRegMr(to.data(), to.size(), kFlushable);
  }
  shm::SendWqe WqeOf(WrOpcode opcode, uint64_t wr_id, uint8_t flags) {
    shm::SendWqe wqe = MakeWqe(opcode, wr_id, flags);
    wqe.remote_addr = reinterpret_cast<uint64_t>(to.data());
    wqe.rkey = open.rkey;
    return wqe;
  }
  void Flush(uint32_t level, uint64_t length, uint64_t wr_id = 2) {
    shm::SendWqe wqe = WqeOf(WrOpcode::kFlush, wr_id, shm::kSendSignaled);
    wqe.flush = {length, flush::kGlobal, level};
    alice.Post(qp_a, wqe, {});
  }

  TestMr open;
};

TEST_P(FlushOverWire, WaitsForAMessageOfManyPackets) {
  b->dma.is_held = true;
  alice.Post(qp_a, WqeOf(WrOpcode::kRdmaWrite, 1, 0), {SgeOf(from.data(), kBytes, mr_a.lkey)});
  Flush(flush::kRange, kBytes);
  Settle();
  EXPECT_EQ(cq_a.ring.Peek(), nullptr);
  b->dma.is_held = false;
  EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
  EXPECT_EQ(last.wr_id, 2u);
  EXPECT_EQ(last.opcode, shm::WcOpcode::kFlush);
  EXPECT_EQ(to, from);
}

TEST_P(FlushOverWire, ManyKeepTheirOrder) {
  for (uint64_t i = 0; i < 10; ++i) Flush(i % 2 == 0 ? flush::kMr : flush::kRange, 8, i);
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(Wait(alice, cq_a), WcStatus::kSuccess);
    EXPECT_EQ(last.wr_id, i);
  }
}

TEST_P(FlushOverWire, NeedsTheRightAndTheRange) {
  const uint32_t closed = mr_b.rkey;
  for (int i = 0; i < 3; ++i) {
    if (i == 2) open.rkey = closed;
    Flush(i == 1 ? flush::kRange : flush::kMr, kBytes + 1);
    EXPECT_EQ(Wait(alice, cq_a), i == 0 ? WcStatus::kSuccess : WcStatus::kRemAccessErr);
    if (i == 0) continue;
    EXPECT_EQ(bob.TakeAsyncEvents(), std::vector<EventType>{EventType::kQpAccessErr});
    ASSERT_EQ(alice.ToReset(qp_a), 0);
    ASSERT_EQ(bob.ToReset(qp_b), 0);
    ASSERT_NO_FATAL_FAILURE(Connect(Service::kRc));
  }
}

INSTANTIATE_TEST_SUITE_P(Packets, FlushOverWire, ::testing::Bool(), Wire::NameOf);

}  // namespace
}  // namespace verbena::softnic::testing
