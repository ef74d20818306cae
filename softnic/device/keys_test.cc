// Every access goes through a key check: index, key byte, PD, bounds, rights.
#include <gtest/gtest.h>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

using shm::VendorErr;

constexpr uint32_t kAll =
    access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;

class Keys : public ::testing::Test, protected TestPair<> {
 protected:
  Keys()
      : mr_a(a.MustRegMr(memory_a, sizeof(memory_a), kAll)),
        mr_b(b.MustRegMr(memory_b, sizeof(memory_b), kAll)) {}
  struct Outcome {
    WcStatus status;
    VendorErr why;
  };
  // WRITEs from `sge` to `addr` with `rkey`.
  Wc Write(const shm::Sge& sge, uint64_t addr, uint32_t rkey,
           shm::WrOpcode opcode = shm::WrOpcode::kRdmaWrite) {
    shm::SendWqe wqe = MakeWqe(opcode, 1);
    wqe.remote_addr = addr;
    wqe.rkey = rkey;
    a.Post(qp_a, wqe, {sge});
    EXPECT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
    Wc wc = a.Poll(cq_a).value_or(Wc{});
    // As good as new.
    EXPECT_EQ(a.ToReset(qp_a), 0);
    EXPECT_EQ(b.ToReset(qp_b), 0);
    a.PollAll(cq_a);
    b.PollAll(cq_b);
    Connect(a, qp_a, b, qp_b, Service::kRc);
    return wc;
  }
  Wc WriteLocal(const shm::Sge& sge) { return Write(sge, AddrB(), mr_b.rkey); }
  Wc WriteRemote(uint64_t addr, uint32_t rkey) {
    return Write(SgeOf(memory_a, 8, mr_a.lkey), addr, rkey);
  }
  uint64_t AddrB() const { return reinterpret_cast<uint64_t>(memory_b); }

  TestMr mr_a, mr_b;
};

#define EXPECT_FAULT(wc, expected_status, expected_why)                            \
  do {                                                                             \
    Wc result = (wc);                                                              \
    EXPECT_EQ(result.status, expected_status);                                     \
    EXPECT_EQ(result.vendor_err, static_cast<uint32_t>(expected_why)) << std::hex; \
  } while (false)

TEST_F(Keys, LocalKeyIsChecked) {
  constexpr WcStatus kProt = WcStatus::kLocProtErr;
  EXPECT_EQ(WriteLocal(SgeOf(memory_a, 8, mr_a.lkey)).status, WcStatus::kSuccess);
  EXPECT_FAULT(WriteLocal(SgeOf(memory_a, 8, 0)), kProt, VendorErr::kBadLKey);
  EXPECT_FAULT(WriteLocal(SgeOf(memory_a, 8, mr_a.lkey + 1)), kProt, VendorErr::kBadLKey);
  EXPECT_FAULT(WriteLocal(SgeOf(memory_a, 8, mr_a.lkey + 256)), kProt, VendorErr::kBadLKey);
  EXPECT_FAULT(WriteLocal(SgeOf(memory_a, 8, ~0u)), kProt, VendorErr::kBadLKey);
  EXPECT_FAULT(WriteLocal(SgeOf(memory_a + 4'089, 8, mr_a.lkey)), kProt, VendorErr::kLKeyBounds);
  EXPECT_FAULT(WriteLocal(SgeOf(memory_a - 1, 8, mr_a.lkey)), kProt, VendorErr::kLKeyBounds);
  EXPECT_FAULT(WriteLocal({~uint64_t{0} - 3, 8, mr_a.lkey}), kProt, VendorErr::kLKeyBounds);
  EXPECT_FAULT(WriteLocal({reinterpret_cast<uint64_t>(memory_a), 0xffff'ffff, mr_a.lkey}),
               WcStatus::kLocLenErr, VendorErr::kMessageTooLong);
  TestMr other_pd;
  ASSERT_EQ(a.RegMr(a.AllocPd(), memory_a, 64, kAll, &other_pd), 0);
  EXPECT_FAULT(WriteLocal(SgeOf(memory_a, 8, other_pd.lkey)), kProt, VendorErr::kLKeyOtherPd);
}

TEST_F(Keys, RefusalsAreCountedByReason) {
  auto counted = [this](size_t nic, VendorErr why) {
    return world.device->ListNicStatuses()[nic].refusals.Of(why);
  };
  TestMr other_a, other_b;
  ASSERT_EQ(a.RegMr(a.AllocPd(), memory_a, 64, kAll, &other_a), 0);
  ASSERT_EQ(b.RegMr(b.AllocPd(), memory_b, 64, kAll, &other_b), 0);
  TestMr read_only_b = b.MustRegMr(memory_b, 64, access::kRemoteRead);
  WriteLocal(SgeOf(memory_a, 8, mr_a.lkey));  // good: counts nowhere
  WriteLocal(SgeOf(memory_a, 8, mr_a.lkey + 1));
  WriteLocal(SgeOf(memory_a, 8, other_a.lkey));
  WriteLocal(SgeOf(memory_a, 8, other_a.lkey));
  WriteLocal(SgeOf(memory_a - 1, 8, mr_a.lkey));
  WriteRemote(AddrB(), mr_b.rkey + 1);
  WriteRemote(AddrB(), other_b.rkey);
  WriteRemote(AddrB() - 1, mr_b.rkey);
  WriteRemote(AddrB(), read_only_b.rkey);
  const size_t nic_a = 0, nic_b = 1;
  const struct {
    size_t nic;
    VendorErr why;
    uint64_t times;
  } kExpected[] = {
      {nic_a, VendorErr::kBadLKey, 1},     {nic_a, VendorErr::kLKeyOtherPd, 2},
      {nic_a, VendorErr::kLKeyBounds, 1},  {nic_a, VendorErr::kLKeyAccess, 0},
      {nic_a, VendorErr::kBadRKey, 0},     {nic_b, VendorErr::kBadRKey, 1},
      {nic_b, VendorErr::kRKeyOtherPd, 1}, {nic_b, VendorErr::kRKeyBounds, 1},
      {nic_b, VendorErr::kRKeyAccess, 1},  {nic_b, VendorErr::kBadLKey, 0},
      {nic_b, VendorErr::kQpAccess, 0},
  };
  for (const auto& row : kExpected) {
    EXPECT_EQ(counted(row.nic, row.why), row.times)
        << row.nic << std::hex << " " << static_cast<uint32_t>(row.why);
  }
}

TEST_F(Keys, ReadNeedsLocalWrite) {
  TestMr read_only = a.MustRegMr(memory_a, 64, access::kRemoteRead);
  EXPECT_FAULT(
      Write(SgeOf(memory_a, 8, read_only.lkey), AddrB(), mr_b.rkey, shm::WrOpcode::kRdmaRead),
      WcStatus::kLocProtErr, VendorErr::kLKeyAccess);
  // Sending from it is allowed.
  EXPECT_EQ(WriteLocal(SgeOf(memory_a, 8, read_only.lkey)).status, WcStatus::kSuccess);
}

TEST_F(Keys, RemoteKeyIsChecked) {
  constexpr WcStatus kRemote = WcStatus::kRemAccessErr;
  EXPECT_EQ(WriteRemote(AddrB() + 4'088, mr_b.rkey).status, WcStatus::kSuccess);
  for (uint32_t rkey : {0u, mr_b.rkey + 1, mr_b.rkey + 256, mr_b.rkey ^ 0x80, ~0u}) {
    EXPECT_EQ(WriteRemote(AddrB(), rkey).status, kRemote) << std::hex << rkey;
  }
  EXPECT_EQ(WriteRemote(AddrB() + 4'089, mr_b.rkey).status, kRemote);
  EXPECT_EQ(WriteRemote(AddrB() - 1, mr_b.rkey).status, kRemote);
  EXPECT_EQ(WriteRemote(~uint64_t{0} - 3, mr_b.rkey).status, kRemote);
  TestMr other_pd;
  ASSERT_EQ(b.RegMr(b.AllocPd(), memory_b, 64, kAll, &other_pd), 0);
  EXPECT_EQ(WriteRemote(AddrB(), other_pd.rkey).status, kRemote);
  TestMr no_write = b.MustRegMr(memory_b, 64, access::kLocalWrite | access::kRemoteRead);
  EXPECT_EQ(WriteRemote(AddrB(), no_write.rkey).status, kRemote);
  for (uint8_t byte : std::vector<uint8_t>(memory_b, memory_b + 64)) EXPECT_EQ(byte, 0);
}

TEST_F(Keys, KeyOfADeregisteredRegionIsDeadEvenWhenItsIndexIsReused) {
  uint32_t old_rkey = mr_b.rkey;
  ASSERT_EQ(b.DoHandle(shm::CommandOp::kDeregMr, mr_b.handle), 0);
  EXPECT_EQ(WriteRemote(AddrB(), old_rkey).status, WcStatus::kRemAccessErr);
  mr_b = b.MustRegMr(memory_b, sizeof(memory_b), kAll);
  EXPECT_EQ(mr_b.rkey >> 8, old_rkey >> 8);
  EXPECT_NE(mr_b.rkey, old_rkey);
  EXPECT_EQ(WriteRemote(AddrB(), old_rkey).status, WcStatus::kRemAccessErr);
  EXPECT_EQ(WriteRemote(AddrB(), mr_b.rkey).status, WcStatus::kSuccess);
}

TEST_F(Keys, RegionIsNamedByItsIova) {
  shm::RegMrRequest request{b.pd, kAll, AddrB() + 100, 200, 0x10'0000, 0, 0, 0, {}};
  shm::RegMrReply reply;
  ASSERT_EQ(b.Execute(shm::CommandOp::kRegMr, request, &reply), 0);
  memory_a[0] = 9;
  EXPECT_EQ(WriteRemote(0x10'0000 + 192, reply.rkey).status, WcStatus::kSuccess);
  EXPECT_EQ(memory_b[100 + 192], 9);
  EXPECT_EQ(WriteRemote(0x10'0000 + 193, reply.rkey).status, WcStatus::kRemAccessErr);
  EXPECT_EQ(WriteRemote(AddrB() + 100, reply.rkey).status, WcStatus::kRemAccessErr);
  request.access |= access::kZeroBased;
  ASSERT_EQ(b.Execute(shm::CommandOp::kRegMr, request, &reply), 0);
  EXPECT_EQ(WriteRemote(0, reply.rkey).status, WcStatus::kSuccess);
  EXPECT_EQ(memory_b[100], 9);
}

TEST_F(Keys, DeregWhileAPeerWritesWaitsForIt) {
  world.dma.is_held = true;
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
  wqe.remote_addr = AddrB();
  wqe.rkey = mr_b.rkey;
  memory_a[0] = 5;
  a.Post(qp_a, wqe, {SgeOf(memory_a, 8, mr_a.lkey)});
  world.Settle();
  shm::HandleRequest request{mr_b.handle, 0};
  uint32_t slot = b.Begin(shm::CommandOp::kDeregMr, &request, sizeof(request));
  world.Settle();
  EXPECT_FALSE(b.IsDone(slot));
  EXPECT_EQ(world.dma.regions.size(), 2u);
  world.dma.is_held = false;
  world.Settle();
  EXPECT_TRUE(b.IsDone(slot));
  EXPECT_EQ(memory_b[0], 5);  // it was written before the command ended
}

TEST_F(Keys, StuckClientDelaysItsOwnCommandsOnly) {
  TestClient& c = world.AddClient(0);
  alignas(64) uint8_t memory_c[64] = {};
  TestMr mr_c = c.MustRegMr(memory_c, 64, kAll);
  world.dma.held_session = b.id;
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
  wqe.remote_addr = AddrB();
  wqe.rkey = mr_b.rkey;
  a.Post(qp_a, wqe, {SgeOf(memory_a, 8, mr_a.lkey)});
  world.Settle();
  EXPECT_EQ(c.DoHandle(shm::CommandOp::kDeregMr, mr_c.handle), 0);  // does not wait
  shm::HandleRequest request{mr_b.handle, 0};
  uint32_t slot = b.Begin(shm::CommandOp::kDeregMr, &request, sizeof(request));
  world.Settle();
  EXPECT_FALSE(b.IsDone(slot));
}

TEST_F(Keys, SendWithInvalidateKillsTheReceiversKey) {
  TestMr window = b.MustRegMr(memory_b, 64, kAll);
  b.PostRecv(qp_b, 3, {SgeOf(memory_b + 1'024, 64, mr_b.lkey)});
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kSendWithInv, 2);
  wqe.imm_or_rkey = window.rkey;
  a.PostInline(qp_a, wqe, "bye");
  world.Settle();
  EXPECT_EQ(a.Poll(cq_a).value().status, WcStatus::kSuccess);
  Wc wc = b.Poll(cq_b).value();
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.flags & shm::kWcWithInv, shm::kWcWithInv);
  EXPECT_EQ(wc.imm, window.rkey);
  EXPECT_EQ(WriteRemote(AddrB(), window.rkey).status, WcStatus::kRemAccessErr);
  EXPECT_EQ(b.DoHandle(shm::CommandOp::kDeregMr, window.handle), 0);
}

TEST_F(Keys, QpAccessFlagsAreChecked) {
  shm::QpAttr attr{};
  attr.qp_access_flags = access::kLocalWrite;  // no remote access
  ASSERT_EQ(b.Modify(qp_b, attr, shm::qp_mask::kAccessFlags), 0);
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
  wqe.remote_addr = AddrB();
  wqe.rkey = mr_b.rkey;
  a.Post(qp_a, wqe, {SgeOf(memory_a, 8, mr_a.lkey)});
  ASSERT_TRUE(world.RunUntil([&] { return cq_a.ring.Peek() != nullptr; }));
  EXPECT_NE(a.Poll(cq_a).value().status, WcStatus::kSuccess);
}

}  // namespace
}  // namespace verbena::softnic::testing
