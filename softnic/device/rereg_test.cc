// Regions change while their keys stay, all at once or not at all; and regions that are no memory.
#include <gtest/gtest.h>

#include <algorithm>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

using shm::CommandOp;
using shm::VendorErr;

constexpr uint32_t kAll =
    access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;

class Rereg : public ::testing::Test, protected TestPair<> {
 protected:
  Rereg()
      : mr_a(a.MustRegMr(memory_a, sizeof(memory_a), kAll)),
        mr_b(b.MustRegMr(memory_b, 1'024, kAll)) {}

  static shm::ReregMrRequest Request(const TestMr& mr, uint32_t changes) {
    shm::ReregMrRequest request{};
    request.mr = mr.handle;
    request.changes = changes;
    return request;
  }
  int Change(const shm::ReregMrRequest& request, const TestMr& mr) {
    shm::RegMrReply reply;
    int error = b.Execute(CommandOp::kReregMr, request, &reply);
    if (error == 0) {
      EXPECT_EQ(reply.mr, mr.handle);
      EXPECT_EQ(reply.lkey, mr.lkey) << "keys stay";
      EXPECT_EQ(reply.rkey, mr.rkey);
    }
    return error;
  }
  int Change(uint32_t changes, uint32_t access, shm::Handle pd = 0, void* addr = nullptr,
             uint64_t length = 0) {
    shm::ReregMrRequest request = Request(mr_b, changes);
    request.region.access = access;
    request.region.pd = pd;
    request.region.addr = reinterpret_cast<uint64_t>(addr);
    request.region.length = length;
    return Change(request, mr_b);
  }
  shm::SendWqe WriteTo(uint64_t addr, uint32_t rkey) {
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
    wqe.remote_addr = addr;
    wqe.rkey = rkey;
    return wqe;
  }
  // The status of a WRITE of `value`, one byte, to b.
  WcStatus Write(uint64_t addr, uint8_t value) {
    memory_a[0] = value;
    a.Post(qp_a, WriteTo(addr, mr_b.rkey), {SgeOf(memory_a, 1, mr_a.lkey)});
    return Outcome();
  }
  WcStatus Write(const uint8_t* addr, uint8_t value) {
    return Write(reinterpret_cast<uint64_t>(addr), value);
  }
  WcStatus Outcome() {
    EXPECT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
    Wc wc = a.Poll(cq_a).value_or(Wc{});
    if (wc.status != WcStatus::kSuccess) Restart();
    return wc.status;
  }
  void Restart() {
    EXPECT_EQ(a.ToReset(qp_a), 0);
    EXPECT_EQ(b.ToReset(qp_b), 0);
    a.PollAll(cq_a);
    b.PollAll(cq_b);
    Connect(a, qp_a, b, qp_b, Service::kRc);
  }

  TestMr mr_a, mr_b;
};

constexpr WcStatus kRefused = WcStatus::kRemAccessErr;
constexpr WcStatus kDone = WcStatus::kSuccess;

TEST_F(Rereg, AccessChanges) {
  EXPECT_EQ(Write(memory_b, 1), kDone);
  ASSERT_EQ(Change(shm::kReregAccess, access::kLocalWrite), 0);
  EXPECT_EQ(Write(memory_b, 2), kRefused);
  ASSERT_EQ(Change(shm::kReregAccess, access::kLocalWrite | access::kRemoteWrite), 0);
  EXPECT_EQ(Write(memory_b, 3), kDone);
  EXPECT_EQ(memory_b[0], 3);
}

// The order in which bytes become visible follows the bit, whatever else changes.
TEST_F(Rereg, RelaxedOrderingComesAndGoes) {
  const auto is_relaxed = [&] {
    return std::any_of(world.dma.regions.begin(), world.dma.regions.end(),
                       [](const auto& each) { return each.second.is_relaxed; });
  };
  EXPECT_FALSE(is_relaxed());
  EXPECT_EQ(Change(shm::kReregAccess, kAll | access::kRelaxedOrdering), 0);
  EXPECT_TRUE(is_relaxed());
  EXPECT_EQ(Change(shm::kReregTranslation, 0, 0, memory_b + 8, 512), 0);
  EXPECT_TRUE(is_relaxed()) << "the bit is still there";
  EXPECT_EQ(Change(shm::kReregAccess, kAll), 0);
  EXPECT_FALSE(is_relaxed());
  const TestMr relaxed = b.MustRegMr(memory_b, 64, kAll | access::kRelaxedOrdering);
  EXPECT_TRUE(is_relaxed());
  EXPECT_EQ(b.DoHandle(CommandOp::kDeregMr, relaxed.handle), 0);
  EXPECT_FALSE(is_relaxed());
}

TEST_F(Rereg, PdChanges) {
  const shm::Handle other = b.AllocPd();
  ASSERT_EQ(Change(shm::kReregPd, 0, other), 0);
  EXPECT_EQ(Write(memory_b, 1), kRefused);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeallocPd, other), EBUSY) << "the region is its";
  ASSERT_EQ(Change(shm::kReregPd, 0, b.pd), 0);
  EXPECT_EQ(Write(memory_b, 1), kDone);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeallocPd, other), 0);
}

TEST_F(Rereg, TranslationChanges) {
  ASSERT_EQ(Change(shm::kReregTranslation, 0, 0, memory_b + 2'048, 512), 0);
  EXPECT_EQ(world.dma.regions.size(), 2u) << "the old range is out of reach";
  EXPECT_EQ(Write(memory_b, 1), kRefused);
  EXPECT_EQ(memory_b[0], 0);
  EXPECT_EQ(Write(memory_b + 2'048 + 511, 2), kDone);
  EXPECT_EQ(memory_b[2'048 + 511], 2);
  EXPECT_EQ(Write(memory_b + 2'048 + 512, 3), kRefused);
}

TEST_F(Rereg, AllChangesAtOnce) {
  const shm::Handle other = b.AllocPd();
  const uint32_t all = shm::kReregTranslation | shm::kReregPd | shm::kReregAccess;
  ASSERT_EQ(Change(all, access::kLocalWrite, other, memory_b + 64, 64), 0);
  EXPECT_EQ(Write(memory_b + 64, 1), kRefused);
  ASSERT_EQ(Change(all, kAll | access::kZeroBased, b.pd, memory_b + 128, 64), 0);
  EXPECT_EQ(Write(uint64_t{0}, 7), kDone);
  EXPECT_EQ(memory_b[128], 7);
  // And by its address again.
  ASSERT_EQ(Change(shm::kReregAccess, kAll), 0);
  EXPECT_EQ(Write(memory_b + 128, 8), kDone);
  EXPECT_EQ(memory_b[128], 8);
}

TEST_F(Rereg, RefusedChangeLeavesTheRegionAsItWas) {
  constexpr uint32_t kMove = shm::kReregTranslation, kPd = shm::kReregPd,
                     kAccess = shm::kReregAccess;
  const shm::Handle other = b.AllocPd();
  EXPECT_EQ(Change(0, 0), EINVAL);
  EXPECT_EQ(Change(8, 0), EOPNOTSUPP);
  EXPECT_EQ(Change(kPd | kAccess, access::kLocalWrite, 0xdead), EINVAL);
  EXPECT_EQ(Change(kPd | kAccess, access::kRemoteWrite, other), EINVAL);
  EXPECT_EQ(Change(kPd | kAccess, kAll | access::kOnDemand, other), EOPNOTSUPP);
  EXPECT_EQ(Change(kPd | kMove, 0, other, memory_b + 2'048, 0), EINVAL);
  EXPECT_EQ(Change(kPd | kMove, 0, other, memory_b + 2'048, ~uint64_t{0}), EINVAL);
  shm::ReregMrRequest request = Request(mr_b, kMove);
  request.region.addr = reinterpret_cast<uint64_t>(memory_b);
  request.region.length = 64;
  request.region.piece_count = shm::kMappedPiecesMax + 1;
  EXPECT_EQ(Change(request, mr_b), EINVAL);
  request.mr = mr_b.handle + 1;
  EXPECT_EQ(Change(request, mr_b), EINVAL);
  for (uint32_t changes : {kMove | kPd | kAccess, kPd, kAccess}) {
    world.dma.add_error = ENOMEM;
    EXPECT_EQ(Change(changes, access::kLocalWrite, other, memory_b + 2'048, 64), ENOMEM);
    world.dma.add_error = 0;
  }
  EXPECT_EQ(world.dma.regions.size(), 2u);
  EXPECT_EQ(Write(memory_b + 1'023, 1), kDone);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeallocPd, other), 0);
}

TEST_F(Rereg, InvalidatedRegionIsNotRevived) {
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kSendWithInv, 2);
  wqe.imm_or_rkey = mr_b.rkey;
  TestMr landing = b.MustRegMr(memory_b + 1'024, 64, kAll);
  b.PostRecv(qp_b, 3, {SgeOf(memory_b + 1'024, 64, landing.lkey)});
  a.PostInline(qp_a, wqe, "bye");
  world.Settle();
  EXPECT_EQ(Change(shm::kReregAccess, kAll), EINVAL);
}

TEST_F(Rereg, WaitsForWhatIsUnderWay) {
  for (uint32_t changes : {shm::kReregTranslation, shm::kReregAccess}) {
    world.dma.is_held = true;
    memory_a[0] = static_cast<uint8_t>(40 + changes);
    a.Post(qp_a, WriteTo(reinterpret_cast<uint64_t>(memory_b), mr_b.rkey),
           {SgeOf(memory_a, 1, mr_a.lkey)});
    world.Settle();
    shm::ReregMrRequest request = Request(mr_b, changes);
    request.region.addr = reinterpret_cast<uint64_t>(memory_b);
    request.region.length = 1'024;
    request.region.access = kAll;
    uint32_t slot = b.Begin(CommandOp::kReregMr, &request, sizeof(request));
    world.Settle();
    EXPECT_FALSE(b.IsDone(slot));
    world.dma.is_held = false;
    world.Settle();
    EXPECT_TRUE(b.IsDone(slot));
    EXPECT_EQ(memory_b[0], 40 + changes);
    EXPECT_EQ(world.dma.regions.size(), 2u);
    EXPECT_EQ(a.PollAll(cq_a).size(), 1u);
  }
}

// What waits with what it resolved before finds that dead, like a deregistered region, although the
// key is not.
TEST_F(Rereg, WhatWaitsDoesNotGoOnByOldRights) {
  constexpr uint32_t kMany = 256;  // more than b places at once
  shm::CreateQpRequest large = a.QpRequest(Service::kRc, a.MustCreateCq(kMany).handle);
  large.max_send_wr = kMany;
  ASSERT_EQ(a.CreateQp(large, &qp_a), 0);
  ASSERT_EQ(b.ToReset(qp_b), 0);
  Connect(a, qp_a, b, qp_b, Service::kRc);
  world.dma.is_held = true;
  for (uint32_t i = 0; i < kMany; ++i) {
    a.Post(qp_a, WriteTo(reinterpret_cast<uint64_t>(memory_b), mr_b.rkey),
           {SgeOf(memory_a, 8, mr_a.lkey)});
  }
  world.Settle();
  shm::ReregMrRequest request = Request(mr_a, shm::kReregAccess);
  request.region.access = access::kLocalWrite;
  uint32_t slot = a.Begin(CommandOp::kReregMr, &request, sizeof(request));
  world.dma.is_held = false;
  while (!a.IsDone(slot)) ASSERT_TRUE(world.dma.Step(*world.device, world.now));
  // The engine gives the old region's id to the next one, of the same memory.
  a.MustRegMr(memory_a, sizeof(memory_a), kAll);
  EXPECT_TRUE(world.RunUntil([&] { return a.StateOf(qp_a) == QpState::kErr; }));
}

class NullMr : public Rereg {
 protected:
  NullMr() {
    shm::HandleRequest request{a.pd, 0};
    shm::RegMrReply reply;
    EXPECT_EQ(a.Execute(CommandOp::kAllocNullMr, request, &reply), 0);
    null = {reply.mr, reply.lkey, reply.rkey};
    EXPECT_EQ(null.rkey, 0u);
  }
  // Any address.
  shm::Sge Nowhere(uint32_t length) const { return {~uint64_t{0} - 2, length, null.lkey}; }
  TestMr null;
};

TEST_F(NullMr, ReadsAsZeroes) {
  std::fill_n(memory_b, 32, uint8_t{0xee});
  std::fill_n(memory_a, 32, uint8_t{0x11});
  a.Post(qp_a, WriteTo(reinterpret_cast<uint64_t>(memory_b), mr_b.rkey),
         {Nowhere(8), SgeOf(memory_a, 4, mr_a.lkey), Nowhere(8)});
  EXPECT_EQ(Outcome(), kDone);
  for (int i = 0; i < 24; ++i)
    EXPECT_EQ(memory_b[i], i < 8 ? 0 : i < 12 ? 0x11 : i < 20 ? 0 : 0xee);
}

TEST_F(NullMr, DiscardsWhatIsWritten) {
  for (uint8_t i = 0; i < 64; ++i) memory_b[i] = i;
  std::fill_n(memory_a, 64, uint8_t{0xaa});
  shm::SendWqe wqe = WriteTo(reinterpret_cast<uint64_t>(memory_b), mr_b.rkey);
  wqe.opcode = static_cast<uint8_t>(shm::WrOpcode::kRdmaRead);
  a.Post(qp_a, wqe,
         {SgeOf(memory_a, 8, mr_a.lkey), Nowhere(40), SgeOf(memory_a + 8, 8, mr_a.lkey)});
  EXPECT_EQ(Outcome(), kDone);
  EXPECT_EQ(memory_a[7], 7);
  EXPECT_EQ(memory_a[8], 48);
  EXPECT_EQ(memory_a[15], 55);
  EXPECT_EQ(memory_a[16], 0xaa);
  a.Post(qp_a, wqe, {Nowhere(64)});
  EXPECT_EQ(Outcome(), kDone);
}

TEST_F(NullMr, KeyIsForItsPdOnlyAndNeverARemoteOne) {
  memory_b[0] = 9;
  shm::SendWqe wqe = WriteTo(0, null.lkey);
  b.Post(qp_b, wqe, {SgeOf(memory_b, 8, mr_b.lkey)});
  EXPECT_TRUE(world.RunUntil([&] { return cq_b.ring.Peek() != nullptr; }));
  EXPECT_EQ(b.Poll(cq_b).value().status, kRefused);
  Restart();
  shm::HandleRequest request{a.AllocPd(), 0};
  shm::RegMrReply other;
  ASSERT_EQ(a.Execute(CommandOp::kAllocNullMr, request, &other), 0);
  a.Post(qp_a, WriteTo(reinterpret_cast<uint64_t>(memory_b), mr_b.rkey), {{0, 8, other.lkey}});
  EXPECT_EQ(Outcome(), WcStatus::kLocProtErr);
  EXPECT_EQ(a.DoHandle(CommandOp::kDeallocPd, request.handle), EBUSY);
  EXPECT_EQ(a.DoHandle(CommandOp::kDeregMr, other.mr), 0);
  EXPECT_EQ(a.DoHandle(CommandOp::kDeallocPd, request.handle), 0);
}

TEST_F(NullMr, IsNotReregistered) {
  shm::ReregMrRequest request = Request(null, shm::kReregAccess);
  request.region.access = kAll;
  shm::RegMrReply reply;
  EXPECT_EQ(a.Execute(CommandOp::kReregMr, request, &reply), EINVAL);
  EXPECT_EQ(a.DoHandle(CommandOp::kDeregMr, null.handle), 0);
  EXPECT_EQ(a.DoHandle(CommandOp::kDeregMr, null.handle), ENOENT);
}

}  // namespace
}  // namespace verbena::softnic::testing
