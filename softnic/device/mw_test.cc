// Memory windows: what a bind takes, and whom a window lets in where, until when.
#include <gtest/gtest.h>

#include <cerrno>

#include "softnic/device/test_windows.h"

namespace verbena::softnic::testing {
namespace {

using shm::CommandOp;
using shm::kMwType1;
using shm::kMwType2;
using shm::VendorErr;
using shm::WrOpcode;

class Windows : public WindowTest {};
class WindowsOfEitherType : public WindowTest, public ::testing::WithParamInterface<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Types, WindowsOfEitherType, ::testing::Values(kMwType1, kMwType2));

// --- access -------------------------------------------------------------------------------------

TEST_P(WindowsOfEitherType, LetsAPeerInWhereItIsBoundAndNowhereElse) {
  TestMw mw = MustAllocMw(GetParam());
  ExpectWriteRefused(AddrB(1'024), mw.rkey);  // not bound yet
  const uint32_t first_key = mw.rkey;
  Wc wc = Bind(&mw, Middle(mw));
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.opcode, shm::WcOpcode::kBindMw);
  memory_a[0] = 7;
  for (uint32_t offset : {1'024u, 1'272u}) {
    EXPECT_EQ(Write(AddrB(offset), mw.rkey), WcStatus::kSuccess);
    EXPECT_EQ(memory_b[offset], 7);
  }
  for (uint32_t offset : {1'023u, 1'273u, 0u, 4'088u}) ExpectWriteRefused(AddrB(offset), mw.rkey);
  ExpectWriteRefused(~uint64_t{0} - 3, mw.rkey);
  ExpectWriteRefused(AddrB(1'024), first_key);
  for (uint32_t bit : {1u, 1u << 8, 1u << 30, 1u << 31}) {
    ExpectWriteRefused(AddrB(1'024), mw.rkey ^ bit);
  }
  ExpectWriteRefused(AddrB(1'024), mr_b.rkey);  // the region itself is closed
  EXPECT_EQ(Write(AddrB(1'024), mw.rkey), WcStatus::kSuccess);
}

TEST_P(WindowsOfEitherType, RightsAreThoseOfTheBind) {
  struct Row {
    WrOpcode opcode;
    uint32_t right;
  };
  constexpr Row kRows[] = {{WrOpcode::kRdmaWrite, access::kRemoteWrite},
                           {WrOpcode::kRdmaRead, access::kRemoteRead},
                           {WrOpcode::kAtomicFetchAndAdd, access::kRemoteAtomic}};
  for (const Row& row : kRows) {
    TestMw mw = MustAllocMw(GetParam());
    TestBind bind = Middle(mw);
    bind.access = row.right;
    ASSERT_EQ(Bind(&mw, bind).status, WcStatus::kSuccess);
    for (const Row& other : kRows) {
      if (other.opcode == row.opcode) {
        EXPECT_EQ(Remote(row.opcode, AddrB(1'024), mw.rkey), WcStatus::kSuccess);
      } else {
        ExpectRefused(other.opcode, AddrB(1'024), mw.rkey);
      }
    }
  }
}

TEST_F(Windows, Type1IsOpenToEveryQpOfItsPd) {
  TestMw mw = Bound(kMwType1);
  TestQp second_a = a.MustCreateQp(Service::kRc, cq_a),
         second_b = b.MustCreateQp(Service::kRc, cq_b);
  Connect(a, second_a, b, second_b, Service::kRc);
  PostRemote(second_a, WrOpcode::kRdmaWrite, AddrB(1'024), mw.rkey);
  EXPECT_EQ(Next(a, cq_a).status, WcStatus::kSuccess);
}

TEST_P(WindowsOfEitherType, AQpOfAnotherPdIsKeptOut) {
  TestMw mw = Bound(GetParam());
  shm::CreateQpRequest request = b.QpRequest(Service::kRc, cq_b.handle);
  request.pd = b.AllocPd();
  TestQp second_a = a.MustCreateQp(Service::kRc, cq_a), second_b;
  ASSERT_EQ(b.CreateQp(request, &second_b), 0);
  Connect(a, second_a, b, second_b, Service::kRc);
  PostRemote(second_a, WrOpcode::kRdmaWrite, AddrB(1'024), mw.rkey);
  EXPECT_EQ(Next(a, cq_a).status, WcStatus::kRemAccessErr);
  EXPECT_EQ(b.TakeAsyncEvents(), std::vector<EventType>{EventType::kQpAccessErr});
  // Nor may it bind or invalidate it.
  ASSERT_EQ(b.ToReset(second_b), 0);
  ASSERT_EQ(a.ToReset(second_a), 0);
  b.PollAll(cq_b);
  Connect(a, second_a, b, second_b, Service::kRc);
  EXPECT_FAULT(Bind(&mw, Middle(mw), &second_b), WcStatus::kMwBindErr, VendorErr::kRKeyOtherPd);
  EXPECT_EQ(Write(AddrB(1'024), mw.rkey), WcStatus::kSuccess);
}

TEST_F(Windows, Type2IsOpenToTheQpItIsBoundToAlone) {
  TestMw mw = Bound(kMwType2);
  TestQp second_a = a.MustCreateQp(Service::kRc, cq_a),
         second_b = b.MustCreateQp(Service::kRc, cq_b);
  Connect(a, second_a, b, second_b, Service::kRc);
  PostRemote(second_a, WrOpcode::kRdmaWrite, AddrB(1'024), mw.rkey);
  EXPECT_EQ(Next(a, cq_a).status, WcStatus::kRemAccessErr);
  EXPECT_EQ(b.TakeAsyncEvents(), std::vector<EventType>{EventType::kQpAccessErr});
  EXPECT_EQ(Write(AddrB(1'024), mw.rkey), WcStatus::kSuccess);
}

TEST_F(Windows, ZeroBasedWindowCountsFromItsStart) {
  TestMw mw = MustAllocMw(kMwType2);
  TestBind bind = Middle(mw);
  bind.access |= access::kZeroBased;
  ASSERT_EQ(Bind(&mw, bind).status, WcStatus::kSuccess);
  memory_a[0] = 9;
  EXPECT_EQ(Write(0, mw.rkey), WcStatus::kSuccess);
  EXPECT_EQ(Write(248, mw.rkey), WcStatus::kSuccess);
  EXPECT_EQ(memory_b[1'024], 9);
  EXPECT_EQ(memory_b[1'272], 9);
  ExpectWriteRefused(249, mw.rkey);
  ExpectWriteRefused(~uint64_t{0}, mw.rkey);
  ExpectWriteRefused(AddrB(1'024), mw.rkey);
}

TEST_F(Windows, RegionWithAnIovaIsBoundByIt) {
  shm::RegMrRequest request{b.pd, kBindable, AddrB(0), 4'096, 0x10'0000, 0, 0, 0, {}};
  shm::RegMrReply reply;
  ASSERT_EQ(b.Execute(CommandOp::kRegMr, request, &reply), 0);
  TestMw mw = MustAllocMw(kMwType1);
  TestBind bind = Middle(mw);
  bind.lkey = reply.lkey;
  bind.addr = 0x10'0000 + 100;
  ASSERT_EQ(Bind(&mw, bind).status, WcStatus::kSuccess);
  memory_a[0] = 3;
  EXPECT_EQ(Write(0x10'0000 + 100, mw.rkey), WcStatus::kSuccess);
  EXPECT_EQ(memory_b[100], 3);
  ExpectWriteRefused(AddrB(100), mw.rkey);
}

TEST_P(WindowsOfEitherType, IsNoLocalKey) {
  TestMw mw = Bound(GetParam());
  b.Post(qp_b, MakeWqe(WrOpcode::kSend, 1), {SgeOf(memory_b + 1'024, 8, mw.rkey)});
  EXPECT_FAULT(Next(b, cq_b), WcStatus::kLocProtErr, VendorErr::kBadLKey);
}

// --- binds refused ------------------------------------------------------------------------------

TEST_P(WindowsOfEitherType, BindIsRefusedWhereItMustBe) {
  TestMr no_bind = b.MustRegMr(memory_b, 4'096, access::kLocalWrite);
  TestMr no_write = b.MustRegMr(memory_b, 4'096, access::kMwBind);
  TestMr zero_based = b.MustRegMr(memory_b, 4'096, kBindable | access::kZeroBased);
  TestMr other_pd;
  ASSERT_EQ(b.RegMr(b.AllocPd(), memory_b, 4'096, kBindable, &other_pd), 0);
  TestMw mw = MustAllocMw(GetParam());
  TestMw second = MustAllocMw(GetParam());
  struct Row {
    const char* what;
    VendorErr why;
    std::function<void(TestBind&)> spoil;
  };
  const Row kRows[] = {
      {"no region", VendorErr::kBadLKey, [](TestBind& bind) { bind.lkey = 0; }},
      {"a window", VendorErr::kBadLKey, [&](TestBind& bind) { bind.lkey = second.rkey; }},
      {"no right to bind", VendorErr::kLKeyAccess, [&](TestBind& x) { x.lkey = no_bind.lkey; }},
      {"no local write", VendorErr::kLKeyAccess, [&](TestBind& x) { x.lkey = no_write.lkey; }},
      {"zero-based", VendorErr::kLKeyAccess, [&](TestBind& x) { x.lkey = zero_based.lkey; }},
      {"another PD's", VendorErr::kLKeyOtherPd, [&](TestBind& x) { x.lkey = other_pd.lkey; }},
      {"before it", VendorErr::kLKeyBounds, [&](TestBind& x) { x.addr = AddrB(0) - 1; }},
      {"after it", VendorErr::kLKeyBounds, [&](TestBind& x) { x.addr = AddrB(4'096 - 255); }},
      {"too long", VendorErr::kLKeyBounds, [&](TestBind& x) { x.length = 4'097; }},
      {"endless", VendorErr::kLKeyBounds, [&](TestBind& x) { x.length = ~uint64_t{0}; }},
      {"local rights", VendorErr::kRKeyAccess, [](TestBind& x) { x.access |= access::kMwBind; }},
      {"another's key", VendorErr::kBadRKey, [&](TestBind& x) { x.rkey = second.rkey; }},
      {"a region's key", VendorErr::kBadRKey, [&](TestBind& x) { x.rkey = mr_b.rkey; }},
  };
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.what);
    TestBind bind = Middle(mw);
    row.spoil(bind);
    b.Post(qp_b, BindWqe(mw, bind, 5), {});
    b.Post(qp_b, MakeWqe(WrOpcode::kSend, 6), {});
    Wc wc = Next(b, cq_b);
    EXPECT_FAULT(wc, WcStatus::kMwBindErr, row.why);
    EXPECT_EQ(wc.wr_id, 5u);
    EXPECT_EQ(Next(b, cq_b).status, WcStatus::kWrFlushErr);
    EXPECT_EQ(b.StateOf(qp_b), QpState::kErr);
    Renew();
    ExpectWriteRefused(AddrB(1'024), bind.rkey);
  }
  // A window that can't write needs no region that can.
  TestBind reads = Middle(mw);
  reads.lkey = no_write.lkey;
  reads.access = access::kRemoteRead;
  EXPECT_EQ(Bind(&mw, reads).status, WcStatus::kSuccess);
  EXPECT_EQ(Remote(WrOpcode::kRdmaRead, AddrB(1'024), mw.rkey), WcStatus::kSuccess);
}

TEST_F(Windows, BindIsRefusedToWhatIsNoWindowOfTheSession) {
  TestMw mw;
  ASSERT_EQ(AllocMw(a, a.pd, kMwType1, &mw), 0);
  for (shm::Handle handle : {0u, mw.handle + 1, mr_b.handle, ~0u}) {
    TestMw none{handle, mw.rkey};
    EXPECT_FAULT(Bind(&none, Middle(none)), WcStatus::kMwBindErr, VendorErr::kBadRKey);
    Renew();
  }
}

TEST_F(Windows, BindIsRefusedToARegionThatWasInvalidated) {
  TestMr open = b.MustRegMr(memory_b, 4'096, kBindable | kRemoteRights);
  ASSERT_EQ(Invalidate(open.rkey).status, WcStatus::kSuccess);
  TestMw mw = MustAllocMw(kMwType1);
  TestBind bind = Middle(mw);
  bind.lkey = open.lkey;
  EXPECT_FAULT(Bind(&mw, bind), WcStatus::kMwBindErr, VendorErr::kBadLKey);
}

TEST_F(Windows, Type1IsNeverZeroBasedAndGetsANewKeyWithEachBind) {
  TestMw mw = Bound(kMwType1);
  TestBind bind = Middle(mw);
  bind.access |= access::kZeroBased;
  EXPECT_FAULT(Bind(&mw, bind), WcStatus::kMwBindErr, VendorErr::kRKeyAccess);
  Renew();
  bind = Middle(mw);
  bind.rkey = mw.rkey;
  EXPECT_FAULT(Bind(&mw, bind), WcStatus::kMwBindErr, VendorErr::kBadRKey);
  Renew();
  EXPECT_EQ(Write(AddrB(1'024), mw.rkey), WcStatus::kSuccess);  // as it was
}

TEST_F(Windows, Type2IsBoundOnlyWhenItIsFreeAndToSomething) {
  TestMw mw = Bound(kMwType2);
  EXPECT_FAULT(Bind(&mw, Middle(mw)), WcStatus::kMwBindErr, VendorErr::kRKeyBadState);
  Renew();
  ASSERT_EQ(Invalidate(mw.rkey).status, WcStatus::kSuccess);
  TestBind bind = Middle(mw);
  bind.length = 0;
  EXPECT_FAULT(Bind(&mw, bind), WcStatus::kMwBindErr, VendorErr::kRKeyBadState);
}

TEST_F(Windows, ADatagramQpBindsNothing) {
  TestQp qp = b.MustCreateQp(Service::kUd, cq_b);
  ASSERT_EQ(b.ToInit(qp, Service::kUd), 0);
  ASSERT_EQ(b.ToRtr(qp, Service::kUd, {}, {}), 0);
  ASSERT_EQ(b.ToRts(qp, Service::kUd), 0);
  TestMw mw = MustAllocMw(kMwType2);
  EXPECT_FAULT(Bind(&mw, Middle(mw), &qp), WcStatus::kLocQpOpErr, VendorErr::kBadOpcode);
}

// --- the end of a binding -----------------------------------------------------------------------

TEST_F(Windows, RebindTakesTheOldKeyAndTheOldRangeAway) {
  TestMw mw = Bound(kMwType1);
  const uint32_t old_key = mw.rkey;
  TestBind bind = Middle(mw);
  bind.addr = AddrB(2'048);
  ASSERT_EQ(Bind(&mw, bind).status, WcStatus::kSuccess);
  EXPECT_EQ(Write(AddrB(2'048), mw.rkey), WcStatus::kSuccess);
  ExpectWriteRefused(AddrB(1'024), old_key);
  ExpectWriteRefused(AddrB(2'048), old_key);
  ExpectWriteRefused(AddrB(1'024), mw.rkey);
}

TEST_F(Windows, BindOfNoBytesUnbindsType1) {
  TestMw mw = Bound(kMwType1);
  const uint32_t old_key = mw.rkey;
  TestBind nothing;
  nothing.rkey = NextKey(mw.rkey);
  nothing.length = nothing.access = 0;
  ASSERT_EQ(Bind(&mw, nothing).status, WcStatus::kSuccess);
  ExpectWriteRefused(AddrB(1'024), old_key);
  ExpectWriteRefused(AddrB(1'024), mw.rkey);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeregMr, mr_b.handle), 0);
}

TEST_F(Windows, LocalInvalidateFreesType2ForAnotherBind) {
  TestMw mw = Bound(kMwType2);
  const uint32_t old_key = mw.rkey;
  Wc wc = Invalidate(mw.rkey);
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.opcode, shm::WcOpcode::kLocalInv);
  ExpectWriteRefused(AddrB(1'024), old_key);
  ASSERT_EQ(Bind(&mw, Middle(mw)).status, WcStatus::kSuccess);
  ExpectWriteRefused(AddrB(1'024), old_key);
  EXPECT_EQ(Write(AddrB(1'024), mw.rkey), WcStatus::kSuccess);
}

TEST_F(Windows, SendWithInvalidateFreesType2) {
  TestMw mw = Bound(kMwType2);
  TestMr open = b.MustRegMr(memory_b, 64, access::kLocalWrite);
  b.PostRecv(qp_b, 3, {SgeOf(memory_b, 64, open.lkey)});
  shm::SendWqe wqe = MakeWqe(WrOpcode::kSendWithInv, 2);
  wqe.imm_or_rkey = mw.rkey;
  a.PostInline(qp_a, wqe, "bye");
  EXPECT_EQ(Next(a, cq_a).status, WcStatus::kSuccess);
  Wc wc = Next(b, cq_b);
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.flags & shm::kWcWithInv, shm::kWcWithInv);
  EXPECT_EQ(wc.imm, mw.rkey);
  ExpectWriteRefused(AddrB(1'024), mw.rkey);
  EXPECT_EQ(Bind(&mw, Middle(mw)).status, WcStatus::kSuccess);
}

TEST_F(Windows, InvalidationIsRefusedWhereItMustBe) {
  TestMw type_1 = Bound(kMwType1), bound = Bound(kMwType2), free = MustAllocMw(kMwType2);
  TestQp second_a = a.MustCreateQp(Service::kRc, cq_a),
         second_b = b.MustCreateQp(Service::kRc, cq_b);
  Connect(a, second_a, b, second_b, Service::kRc);
  EXPECT_FAULT(Invalidate(bound.rkey, &second_b), WcStatus::kLocQpOpErr, VendorErr::kRKeyOtherQp);
  struct Row {
    uint32_t rkey;
    VendorErr why;
  };
  for (const Row& row :
       {Row{type_1.rkey, VendorErr::kRKeyBadState}, Row{free.rkey, VendorErr::kRKeyBadState},
        Row{bound.rkey ^ 1, VendorErr::kBadRKey}}) {
    EXPECT_FAULT(Invalidate(row.rkey), WcStatus::kLocQpOpErr, row.why);
    Renew();
    b.PostRecv(qp_b, 3, {});
    shm::SendWqe wqe = MakeWqe(WrOpcode::kSendWithInv, 2);
    wqe.imm_or_rkey = row.rkey;
    a.PostInline(qp_a, wqe, "");
    EXPECT_EQ(Next(a, cq_a).status, WcStatus::kRemAccessErr);
    EXPECT_FAULT(Next(b, cq_b), WcStatus::kRemInvReqErr, row.why);
    Renew();
  }
  EXPECT_EQ(Write(AddrB(1'024), type_1.rkey), WcStatus::kSuccess);
  EXPECT_EQ(Write(AddrB(1'024), bound.rkey), WcStatus::kSuccess);
}

TEST_P(WindowsOfEitherType, DeallocationTakesTheKeyAwayForGood) {
  TestMw mw = Bound(GetParam());
  ASSERT_EQ(b.DoHandle(CommandOp::kDeallocMw, mw.handle), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeallocMw, mw.handle), ENOENT);
  ExpectWriteRefused(AddrB(1'024), mw.rkey);
  TestMw next = Bound(GetParam());  // at the same place in the table
  EXPECT_EQ(next.rkey >> 8, mw.rkey >> 8);
  EXPECT_NE(next.rkey, mw.rkey);
  ExpectWriteRefused(AddrB(1'024), mw.rkey);
  EXPECT_EQ(Write(AddrB(1'024), next.rkey), WcStatus::kSuccess);
}

// --- what a window holds ------------------------------------------------------------------------

TEST_P(WindowsOfEitherType, KeepsItsRegionAndItsPd) {
  TestMr open = b.MustRegMr(memory_b, 4'096, kBindable | kRemoteRights);
  TestMw mw = MustAllocMw(GetParam());
  TestBind bind = Middle(mw);
  bind.lkey = open.lkey;
  ASSERT_EQ(Bind(&mw, bind).status, WcStatus::kSuccess);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeregMr, open.handle), EBUSY);
  EXPECT_EQ(Write(AddrB(1'024), mw.rkey), WcStatus::kSuccess);
  EXPECT_FAULT(Invalidate(open.rkey), WcStatus::kLocQpOpErr, VendorErr::kRKeyBadState);
  ASSERT_EQ(b.DoHandle(CommandOp::kDeallocMw, mw.handle), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeregMr, open.handle), 0);

  shm::Handle pd = b.AllocPd();
  ASSERT_EQ(AllocMw(b, pd, GetParam(), &mw), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeallocPd, pd), EBUSY);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeallocMw, mw.handle), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeallocPd, pd), 0);
}

TEST_F(Windows, Type2IsFreeWhenItsQpIsGone) {
  TestMw mw = MustAllocMw(kMwType2);
  TestQp second = b.MustCreateQp(Service::kRc, cq_b), peer = a.MustCreateQp(Service::kRc, cq_a);
  Connect(a, peer, b, second, Service::kRc);
  ASSERT_EQ(Bind(&mw, Middle(mw), &second).status, WcStatus::kSuccess);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeregMr, mr_b.handle), EBUSY);
  ASSERT_EQ(b.DoHandle(CommandOp::kDestroyQp, second.handle), 0);
  ASSERT_EQ(Bind(&mw, Middle(mw)).status, WcStatus::kSuccess);  // to another one
  EXPECT_EQ(Write(AddrB(1'024), mw.rkey), WcStatus::kSuccess);
  ASSERT_EQ(Invalidate(mw.rkey).status, WcStatus::kSuccess);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeregMr, mr_b.handle), 0);
}

TEST_F(Windows, Type2StaysWithItsQpOverAReset) {
  TestMw mw = Bound(kMwType2);
  Renew();
  EXPECT_EQ(Write(AddrB(1'024), mw.rkey), WcStatus::kSuccess);
}

TEST_F(Windows, AreAllocatedWithinLimits) {
  TestMw mw;
  for (uint32_t type : {0u, 3u, ~0u}) EXPECT_EQ(AllocMw(b, b.pd, type, &mw), EINVAL);
  EXPECT_EQ(AllocMw(b, b.pd + 1, kMwType1, &mw), EINVAL);
  DeviceLimits limits;
  limits.max_mw = 2;
  TestWorld small(2, limits);
  TestClient& client = small.AddClient(0);
  shm::QueryDeviceReply device;
  ASSERT_EQ(client.ExecuteRaw(CommandOp::kQueryDevice, nullptr, 0, &device, sizeof(device)), 0);
  EXPECT_EQ(device.max_mw, 2u);
  TestMw first;
  ASSERT_EQ(AllocMw(client, client.pd, kMwType1, &first), 0);
  ASSERT_EQ(AllocMw(client, client.pd, kMwType2, &mw), 0);
  EXPECT_EQ(AllocMw(client, client.pd, kMwType1, &mw), ENOMEM);
  EXPECT_EQ(small.device->Stats().mws, 2u);
  EXPECT_EQ(client.DoHandle(CommandOp::kDeallocMw, first.handle), 0);
  EXPECT_EQ(AllocMw(client, client.pd, kMwType1, &mw), 0);
}

TEST_F(Windows, AreShown) {
  Bound(kMwType2);
  MustAllocMw(kMwType1);
  std::vector<ShowRow> rows = world.device->Show(ShowKind::kMw);
  ASSERT_EQ(rows.size(), 2u);
  const std::map<std::string, std::string> bound(rows[0].fields.begin(), rows[0].fields.end());
  EXPECT_EQ(bound.at("type"), "2B");
  EXPECT_EQ(bound.at("state"), "bound");
  EXPECT_EQ(bound.at("qpn"), std::to_string(qp_b.qpn.value));
  EXPECT_EQ(bound.at("length"), "256");
  const std::map<std::string, std::string> free(rows[1].fields.begin(), rows[1].fields.end());
  EXPECT_EQ(free.at("type"), "1");
  EXPECT_EQ(free.at("state"), "free");
  EXPECT_EQ(free.at("qpn"), "-");
}

TEST_F(Windows, ARegionThatHasSomeIsNotReregistered) {
  TestMw mw = Bound(kMwType2);
  shm::ReregMrRequest request{};
  request.mr = mr_b.handle;
  request.changes = shm::kReregAccess;
  request.region.access = access::kLocalWrite | access::kMwBind;
  shm::RegMrReply reply{};
  EXPECT_EQ(b.Execute(shm::CommandOp::kReregMr, request, &reply), EBUSY);
  EXPECT_EQ(Write(AddrB(1'024), mw.rkey), WcStatus::kSuccess);
  ASSERT_EQ(Invalidate(mw.rkey).status, WcStatus::kSuccess);
  EXPECT_EQ(b.Execute(shm::CommandOp::kReregMr, request, &reply), 0);
}

}  // namespace
}  // namespace verbena::softnic::testing
