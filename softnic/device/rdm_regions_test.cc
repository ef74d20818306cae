// Keys of a PD's own, regions that wait to be enabled, the whole process as a region, counters.
#include <gtest/gtest.h>

#include <cerrno>

#include "core/shm/rdm.h"
#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

using shm::CommandOp;
using shm::VendorErr;

constexpr uint32_t kAll =
    access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;

class RdmRegions : public ::testing::Test {
 protected:
  RdmRegions() : world(2), a(world.AddClient(0)), b(world.AddClient(1)) {
    mr_a = a.MustRegMr(memory_a, sizeof(memory_a), kAll);
    shm::HandleReply reply;
    EXPECT_EQ(b.ExecuteRaw(CommandOp::kAllocOwnKeyPd, nullptr, 0, &reply, sizeof(reply)), 0);
    plain_pd = b.pd;
    b.pd = reply.handle;
    cq_a = a.MustCreateCq();
    cq_b = b.MustCreateCq();
    qp_a = a.MustCreateQp(Service::kRc, cq_a);
    qp_b = b.MustCreateQp(Service::kRc, cq_b);
    Connect(a, qp_a, b, qp_b, Service::kRc);
  }
  static shm::RegMrRequest Region(shm::Handle pd, void* addr, uint64_t length, uint32_t access) {
    shm::RegMrRequest request{};
    request.pd = pd;
    request.access = access;
    request.addr = request.iova = reinterpret_cast<uint64_t>(addr);
    request.length = length;
    return request;
  }
  int RegOwn(uint32_t key, TestMr* out, uint32_t flags = 0) {
    shm::RegMrRequest request = Region(b.pd, memory_b, sizeof(memory_b), kAll);
    request.flags = shm::kRegMrOwnKey | flags;
    request.own_key = key;
    shm::RegMrReply reply;
    const int error = b.Execute(CommandOp::kRegMr, request, &reply);
    *out = {reply.mr, reply.lkey, reply.rkey};
    return error;
  }
  // As good as new.
  void Reconnect() {
    EXPECT_EQ(a.ToReset(qp_a), 0);
    EXPECT_EQ(b.ToReset(qp_b), 0);
    a.PollAll(cq_a);
    b.PollAll(cq_b);
    Connect(a, qp_a, b, qp_b, Service::kRc);
  }
  WcStatus Do(shm::WrOpcode opcode, uint32_t rkey, uint32_t length = 8) {
    shm::SendWqe wqe = MakeWqe(opcode, 1);
    wqe.remote_addr = reinterpret_cast<uint64_t>(memory_b);
    wqe.rkey = rkey;
    a.Post(qp_a, wqe, {SgeOf(memory_a, length, mr_a.lkey)});
    EXPECT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
    const WcStatus status = a.Poll(cq_a).value_or(Wc{}).status;
    if (status != WcStatus::kSuccess) Reconnect();
    return status;
  }
  WcStatus Write(uint32_t rkey) { return Do(shm::WrOpcode::kRdmaWrite, rkey); }

  alignas(64) uint8_t memory_a[16'384] = {};
  alignas(64) uint8_t memory_b[16'384] = {};
  TestWorld world;
  TestClient& a;
  TestClient& b;
  TestMr mr_a;
  shm::Handle plain_pd;
  TestCq cq_a, cq_b;
  TestQp qp_a, qp_b;
};

TEST_F(RdmRegions, TheProgramChoosesAnyKeyOnce) {
  TestMr mr, other;
  for (uint32_t key : {0u, 7u, ~0u}) {
    ASSERT_EQ(RegOwn(key, &mr), 0);
    EXPECT_EQ(mr.rkey, key);
    EXPECT_EQ(RegOwn(key, &other), EEXIST);
    memory_a[0] = static_cast<uint8_t>(key + 1);
    EXPECT_EQ(Write(key), WcStatus::kSuccess);
    EXPECT_EQ(memory_b[0], memory_a[0]);
    ASSERT_EQ(b.DoHandle(CommandOp::kDeregMr, mr.handle), 0);
    EXPECT_EQ(Write(key), WcStatus::kRemAccessErr);
    ASSERT_EQ(RegOwn(key, &mr), 0);  // free again
  }
  EXPECT_EQ(world.dma.regions.size(), 4u);  // what was refused kept nothing
}

TEST_F(RdmRegions, KeysOfTheNicMeanNothingThere) {
  TestMr mr;
  ASSERT_EQ(RegOwn(5, &mr), 0);
  ASSERT_NE(mr.lkey, 5u);
  EXPECT_EQ(Write(mr.lkey), WcStatus::kRemAccessErr);
  // Nor does another PD of the same NIC know this one's.
  EXPECT_EQ(a.DoHandle(CommandOp::kDestroyQp, qp_a.handle), 0);
  TestClient& c = world.AddClient(1);
  TestCq cq_c = c.MustCreateCq();
  TestQp qp_c = c.MustCreateQp(Service::kRc, cq_c);
  qp_a = a.MustCreateQp(Service::kRc, cq_a);
  Connect(a, qp_a, c, qp_c, Service::kRc);
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
  wqe.remote_addr = reinterpret_cast<uint64_t>(memory_b);
  wqe.rkey = 5;
  a.Post(qp_a, wqe, {SgeOf(memory_a, 8, mr_a.lkey)});
  EXPECT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
  EXPECT_EQ(a.Poll(cq_a)->status, WcStatus::kRemAccessErr);
}

TEST_F(RdmRegions, WhatMakesNoSenseIsRefused) {
  TestMr mr;
  shm::RegMrReply reply;
  shm::RegMrRequest request = Region(plain_pd, memory_b, 64, kAll);
  request.flags = shm::kRegMrOwnKey;
  EXPECT_EQ(b.Execute(CommandOp::kRegMr, request, &reply), EINVAL);
  EXPECT_EQ(b.RegMr(b.pd, memory_b, 64, kAll, &mr), EINVAL);  // no key to reach it by
  ASSERT_EQ(b.RegMr(b.pd, memory_b, 64, access::kLocalWrite, &mr), 0);
  EXPECT_EQ(mr.rkey, 0u);
  EXPECT_EQ(Write(0), WcStatus::kRemAccessErr);
  shm::AllocMwRequest window{b.pd, shm::kMwType2};
  shm::AllocMwReply window_reply;
  EXPECT_EQ(b.Execute(CommandOp::kAllocMw, window, &window_reply), EOPNOTSUPP);
  shm::ReregMrRequest rereg{};
  rereg.mr = mr.handle;
  rereg.changes = shm::kReregPd;
  rereg.region.pd = plain_pd;
  EXPECT_EQ(b.Execute(CommandOp::kReregMr, rereg, &reply), EOPNOTSUPP);
}

TEST_F(RdmRegions, LkeysNameMemoryByItsAddressWhateverPeersCountFrom) {
  shm::RegMrRequest request = Region(b.pd, memory_b, 64, kAll | access::kZeroBased);
  request.flags = shm::kRegMrOwnKey;
  request.own_key = 4;
  shm::RegMrReply reply;
  ASSERT_EQ(b.Execute(CommandOp::kRegMr, request, &reply), 0);
  b.PostRecv(qp_b, 1, {SgeOf(memory_b, 8, reply.lkey)});
  a.Post(qp_a, MakeWqe(shm::WrOpcode::kSend, 1), {SgeOf(memory_a, 8, mr_a.lkey)});
  EXPECT_TRUE(world.RunUntil([&] { return cq_b.ring.Peek() != nullptr; }));
  EXPECT_EQ(b.Poll(cq_b)->status, WcStatus::kSuccess);
  a.PollAll(cq_a);
  b.PostRecv(qp_b, 2, {SgeOf(memory_b + 60, 8, reply.lkey)});  // beyond it
  a.Post(qp_a, MakeWqe(shm::WrOpcode::kSend, 2), {SgeOf(memory_a, 8, mr_a.lkey)});
  EXPECT_TRUE(world.RunUntil([&] { return cq_b.ring.Peek() != nullptr; }));
  EXPECT_EQ(b.Poll(cq_b)->status, WcStatus::kLocProtErr);
}

TEST_F(RdmRegions, OwnKeysStayWhenTheirRegionIsRegisteredAgain) {
  TestMr mr;
  ASSERT_EQ(RegOwn(12, &mr), 0);
  shm::ReregMrRequest rereg{};
  rereg.mr = mr.handle;
  rereg.changes = shm::kReregTranslation;
  rereg.region = Region(b.pd, memory_b, 16, kAll);
  shm::RegMrReply reply;
  ASSERT_EQ(b.Execute(CommandOp::kReregMr, rereg, &reply), 0);
  EXPECT_EQ(reply.rkey, 12u);
  EXPECT_EQ(Do(shm::WrOpcode::kRdmaWrite, 12, 16), WcStatus::kSuccess);
  EXPECT_EQ(Do(shm::WrOpcode::kRdmaWrite, 12, 17), WcStatus::kRemAccessErr);
}

TEST_F(RdmRegions, InvalidationByAPeerIsNotForThem) {
  TestMr mr;
  ASSERT_EQ(RegOwn(9, &mr), 0);
  b.PostRecv(qp_b, 1, {SgeOf(memory_b, 64, mr.lkey)});
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kSendWithInv, 1);
  wqe.imm_or_rkey = mr.lkey;  // what it is to the NIC
  a.Post(qp_a, wqe, {SgeOf(memory_a, 8, mr_a.lkey)});
  EXPECT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
  EXPECT_NE(a.Poll(cq_a)->status, WcStatus::kSuccess);
  Reconnect();
  EXPECT_EQ(Write(9), WcStatus::kSuccess);
}

TEST_F(RdmRegions, ADisabledRegionWaitsToBeEnabled) {
  TestMr mr;
  ASSERT_EQ(RegOwn(3, &mr, shm::kRegMrDisabled), 0);
  EXPECT_EQ(Write(3), WcStatus::kRemAccessErr);
  EXPECT_EQ(world.device->ListNicStatuses()[1].refusals.Of(VendorErr::kRKeyBadState), 1u);
  ASSERT_EQ(b.DoHandle(CommandOp::kEnableMr, mr.handle), 0);
  EXPECT_EQ(Write(3), WcStatus::kSuccess);
  EXPECT_EQ(b.DoHandle(CommandOp::kEnableMr, mr.handle), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kEnableMr, mr.handle + 1), EINVAL);
}

TEST_F(RdmRegions, TheWholeProcessIsForLocalUse) {
  shm::RegMrRequest request{};
  request.pd = a.pd;
  request.access = access::kLocalWrite;
  request.flags = shm::kRegMrWholeProcess;
  shm::RegMrReply whole;
  ASSERT_EQ(a.Execute(CommandOp::kRegMr, request, &whole), 0);
  EXPECT_EQ(whole.rkey, 0u);
  TestMr mr;
  ASSERT_EQ(RegOwn(1, &mr), 0);
  mr_a.lkey = whole.lkey;
  memory_a[0] = 42;
  EXPECT_EQ(Write(1), WcStatus::kSuccess);
  EXPECT_EQ(memory_b[0], 42);
  // No peer's way in: in an ordinary PD its number is a key of the NIC's.
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
  wqe.remote_addr = reinterpret_cast<uint64_t>(memory_a);
  wqe.rkey = whole.lkey;
  TestMr local_b;
  ASSERT_EQ(b.RegMr(b.pd, memory_b, 64, 0, &local_b), 0);
  b.Post(qp_b, wqe, {SgeOf(memory_b, 8, local_b.lkey)});
  EXPECT_TRUE(world.RunUntil([&] { return cq_b.ring.Peek() != nullptr; }));
  EXPECT_EQ(b.Poll(cq_b)->status, WcStatus::kRemAccessErr);

  request.access = kAll;
  EXPECT_EQ(a.Execute(CommandOp::kRegMr, request, &whole), EINVAL);
  request.access = access::kLocalWrite;
  request.length = 64;
  EXPECT_EQ(a.Execute(CommandOp::kRegMr, request, &whole), EINVAL);
  request.length = 0;
  request.flags = 1u << 30;
  EXPECT_EQ(a.Execute(CommandOp::kRegMr, request, &whole), EINVAL);
}

class RdmCounters : public RdmRegions {
 protected:
  struct TestCounter {
    shm::Handle handle = 0;
    const shm::RdmCounter* words = nullptr;
    uint64_t value() const { return words->operations.load(); }
  };
  TestCounter MakeCounter() {
    shm::CreateCounterReply reply;
    EXPECT_EQ(b.ExecuteRaw(CommandOp::kCreateCounter, nullptr, 0, &reply, sizeof(reply)), 0);
    return {reply.counter, reinterpret_cast<shm::RdmCounter*>(b.MapQueue(reply.place))};
  }
};

TEST_F(RdmCounters, EachPeersAccessCountsWhenItIsDone) {
  TestCounter reads = MakeCounter(), writes = MakeCounter(), all = MakeCounter();
  TestMr mr;
  ASSERT_EQ(RegOwn(1, &mr), 0);
  shm::BindMrCounterRequest bind{mr.handle, reads.handle, writes.handle, 0};
  ASSERT_EQ(b.Execute(CommandOp::kBindMrCounter, bind, &bind), 0);
  shm::BindQpCounterRequest bind_qp{qp_b.handle, all.handle, all.handle, 0};
  ASSERT_EQ(b.Execute(CommandOp::kBindQpCounter, bind_qp, &bind_qp), 0);

  world.dma.moves_now = true;  // counted all the same
  world.dma.is_held = true;
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
  wqe.remote_addr = reinterpret_cast<uint64_t>(memory_b);
  wqe.rkey = 1;
  a.Post(qp_a, wqe, {SgeOf(memory_a, 10'000, mr_a.lkey)});
  world.Settle();
  EXPECT_EQ(writes.value(), 0u);  // no byte has moved
  world.dma.is_held = false;
  world.Settle();
  EXPECT_EQ(writes.value(), 1u);
  EXPECT_EQ(reads.value(), 0u);
  a.PollAll(cq_a);
  EXPECT_EQ(Do(shm::WrOpcode::kRdmaRead, 1, 9'000), WcStatus::kSuccess);
  EXPECT_EQ(writes.value(), 1u);
  EXPECT_EQ(reads.value(), 1u);
  EXPECT_EQ(all.value(), 2u);
  EXPECT_EQ(Write(2), WcStatus::kRemAccessErr);
  EXPECT_EQ(all.value(), 2u);

  // Bound, it stays; a region that goes lets go.
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyCounter, writes.handle), EBUSY);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeregMr, mr.handle), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyCounter, writes.handle), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyCounter, all.handle), EBUSY);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyQp, qp_b.handle), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyCounter, all.handle), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyCounter, all.handle), ENOENT);
}

TEST_F(RdmCounters, OnlyOnesThatAreThereCanBeBound) {
  TestCounter counter = MakeCounter();
  TestMr mr, plain;
  ASSERT_EQ(RegOwn(1, &mr), 0);
  ASSERT_EQ(b.RegMr(plain_pd, memory_b, 64, kAll, &plain), 0);
  shm::BindMrCounterRequest bind{mr.handle, counter.handle + 1, 0, 0};
  EXPECT_EQ(b.Execute(CommandOp::kBindMrCounter, bind, &bind), EINVAL);
  shm::BindMrCounterRequest other{plain.handle, counter.handle, 0, 0};
  EXPECT_EQ(b.Execute(CommandOp::kBindMrCounter, other, &other), EINVAL);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyCounter, counter.handle), 0);
}

TEST_F(RdmCounters, TheyGoWithTheirSession) {
  TestCounter counter = MakeCounter();
  TestMr mr;
  ASSERT_EQ(RegOwn(1, &mr), 0);
  shm::BindMrCounterRequest bind{mr.handle, counter.handle, counter.handle, 0};
  ASSERT_EQ(b.Execute(CommandOp::kBindMrCounter, bind, &bind), 0);
  // Who shares the context keeps the region's name, but neither its memory nor what counts it.
  TestClient& heir = world.AddClient(1, b.id);
  world.Close(b);
  EXPECT_TRUE(b.services.queues.empty());
  EXPECT_EQ(heir.DoHandle(CommandOp::kDeregMr, mr.handle), 0);
}

}  // namespace
}  // namespace verbena::softnic::testing
