// Device memory, and contexts that several sessions share.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

using shm::CommandOp;

constexpr uint32_t kAll =
    access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
constexpr uint32_t kDmAll = kAll | access::kZeroBased;
constexpr uint64_t kDmBytes = 1u << 20;

int AllocDm(TestClient& client, uint64_t length, shm::Handle* out, uint32_t log_align = 0) {
  shm::DmReply reply;
  int error =
      client.Execute(CommandOp::kAllocDm, shm::AllocDmRequest{length, log_align, 0}, &reply);
  *out = reply.dm;
  return error;
}
int RegDm(TestClient& client, shm::Handle dm, uint64_t offset, uint64_t length, uint32_t access,
          TestMr* out) {
  shm::RegMrReply reply;
  int error = client.Execute(CommandOp::kRegDmMr,
                             shm::RegDmMrRequest{client.pd, dm, offset, length, access, 0}, &reply);
  *out = {reply.mr, reply.lkey, reply.rkey};
  return error;
}

class Dm : public ::testing::Test, protected TestPair<> {
 protected:
  Dm() : mr_a(a.MustRegMr(memory_a, sizeof(memory_a), kAll)) {
    EXPECT_EQ(AllocDm(b, 100, &dm_b), 0);
    bytes_b = b.services.sent_memory.at(dm_b);
    EXPECT_EQ(RegDm(b, dm_b, 8, 80, kDmAll, &mr_b), 0);
  }
  // Of one request of a to b's region.
  WcStatus Outcome(TestClient& client, TestCq& cq) {
    EXPECT_TRUE(world.RunUntil([&] { return cq.ring.Peek() != nullptr; }));
    return client.Poll(cq).value_or(Wc{}).status;
  }
  WcStatus Write(uint64_t addr, uint32_t rkey, uint32_t length = 8) {
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
    wqe.remote_addr = addr;
    wqe.rkey = rkey;
    return Do(wqe, length);
  }
  // A pair that it has failed is connected anew.
  WcStatus Do(const shm::SendWqe& wqe, uint32_t length) {
    a.Post(qp_a, wqe, {SgeOf(memory_a, length, mr_a.lkey)});
    const WcStatus status = Outcome(a, cq_a);
    if (status == WcStatus::kSuccess) return status;
    EXPECT_EQ(a.ToReset(qp_a), 0);
    EXPECT_EQ(b.ToReset(qp_b), 0);
    a.PollAll(cq_a);
    b.PollAll(cq_b);
    Connect(a, qp_a, b, qp_b, Service::kRc);
    return status;
  }

  // A WRITE of `qp`, one of a's, that is let in; its bytes are held.
  void HoldWrite(TestQp& qp, uint64_t addr, uint32_t rkey) {
    world.dma.is_held = true;
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
    wqe.remote_addr = addr;
    wqe.rkey = rkey;
    a.Post(qp, wqe, {SgeOf(memory_a, 8, mr_a.lkey)});
    world.Settle();
  }
  void Let() {
    world.dma.is_held = false;
    world.Settle();
  }
  // A command waits until the bytes have moved.
  void ExpectWaits(TestClient& client, CommandOp op, const void* request, uint32_t bytes) {
    const uint32_t slot = client.Begin(op, request, bytes);
    world.Settle();
    EXPECT_FALSE(client.IsDone(slot));
    Let();
    EXPECT_TRUE(client.IsDone(slot));
  }
  void ExpectResetWaits(TestClient& client, TestQp& qp) {
    shm::ModifyQpRequest request{qp.handle, shm::qp_mask::kState, {}};
    request.attr.qp_state = static_cast<uint32_t>(QpState::kReset);
    ExpectWaits(client, CommandOp::kModifyQp, &request, sizeof(request));
    qp.sq.Reset();
    qp.rq.Reset();
    EXPECT_EQ(a.ToReset(qp_a), 0);
  }
  void ExpectHandleWaits(TestClient& client, CommandOp op, shm::Handle handle) {
    shm::HandleRequest request{handle, 0};
    ExpectWaits(client, op, &request, sizeof(request));
  }
  // So does what the QP does about a key.
  void ExpectInvalidationWaits(TestClient& client, TestQp& qp, TestCq& cq, uint32_t rkey) {
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kLocalInv, 7);
    wqe.imm_or_rkey = rkey;
    client.Post(qp, wqe, {});
    ExpectQuiet(cq);
    Let();
    const Wc wc = client.Poll(cq).value_or(Wc{});
    EXPECT_EQ(wc.wr_id, 7u);
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
  }
  void ExpectQuiet(TestCq& cq) {
    world.Settle();
    EXPECT_EQ(cq.ring.Peek(), nullptr);
  }

  TestMr mr_a, mr_b;
  shm::Handle dm_b = 0;
  std::byte* bytes_b = nullptr;
};

TEST_F(Dm, IsNamedByOffsetIntoTheRegion) {
  memory_a[0] = 7;
  EXPECT_EQ(Write(0, mr_b.rkey), WcStatus::kSuccess);
  EXPECT_EQ(bytes_b[8], std::byte{7});
  EXPECT_EQ(bytes_b[0], std::byte{0});
  EXPECT_EQ(Write(72, mr_b.rkey), WcStatus::kSuccess);
  EXPECT_EQ(bytes_b[80], std::byte{7});
  EXPECT_EQ(Write(73, mr_b.rkey), WcStatus::kRemAccessErr);
  EXPECT_EQ(Write(reinterpret_cast<uint64_t>(bytes_b) + 8, mr_b.rkey), WcStatus::kRemAccessErr);
}

TEST_F(Dm, AtomicsAndLocalUse) {
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kAtomicFetchAndAdd, 1);
  wqe.remote_addr = 16;
  wqe.rkey = mr_b.rkey;
  wqe.atomic.compare_add = 3;
  EXPECT_EQ(Do(wqe, 8), WcStatus::kSuccess);
  EXPECT_EQ(bytes_b[24], std::byte{3});
  // b reads with its own into a list of memory of both kinds, and nowhere.
  memory_a[64] = 11;
  memory_a[64 + 8] = 12;
  alignas(64) uint8_t host_b[64] = {};
  TestMr host = b.MustRegMr(host_b, sizeof(host_b), kAll);
  shm::SendWqe read = MakeWqe(shm::WrOpcode::kRdmaRead, 1);
  read.remote_addr = reinterpret_cast<uint64_t>(memory_a) + 64;
  read.rkey = mr_a.rkey;
  b.Post(qp_b, read, {{32, 8, mr_b.lkey}, SgeOf(host_b, 8, host.lkey)});
  EXPECT_EQ(Outcome(b, cq_b), WcStatus::kSuccess);
  EXPECT_EQ(bytes_b[40], std::byte{11});
  EXPECT_EQ(host_b[0], 12);
}

// A word across two lines of the cache would be a locked operation of all the machine's memory; and
// an address is aligned on the wire whatever its memory is.  Spec: IBTA 9.4.5.
TEST_F(Dm, AnAtomicsWordIsAlignedOnTheWireAndInMemory) {
  TestMr odd;
  ASSERT_EQ(RegDm(b, dm_b, 60, 32, kDmAll, &odd), 0);
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kAtomicFetchAndAdd, 1);
  wqe.rkey = odd.rkey;
  wqe.atomic.compare_add = 3;
  for (uint64_t addr : {0u, 4u}) {
    wqe.remote_addr = addr;
    EXPECT_EQ(Do(wqe, 8), WcStatus::kRemInvReqErr) << addr;
    EXPECT_EQ(bytes_b[60 + addr], std::byte{0}) << addr;
  }
}

TEST_F(Dm, RegistrationHasItsRules) {
  TestMr mr;
  EXPECT_EQ(RegDm(b, dm_b, 0, 100, kAll, &mr), EINVAL) << "not zero-based";
  EXPECT_EQ(RegDm(b, dm_b, 0, 100, access::kZeroBased | access::kRemoteWrite, &mr), EINVAL);
  EXPECT_EQ(RegDm(b, dm_b, 0, 100, kDmAll | access::kHugetlb, &mr), EINVAL);
  EXPECT_EQ(RegDm(b, dm_b, 0, 101, kDmAll, &mr), EINVAL);
  EXPECT_EQ(RegDm(b, dm_b, 101, 0, kDmAll, &mr), EINVAL);
  EXPECT_EQ(RegDm(b, dm_b, 8, ~uint64_t{0} - 4, kDmAll, &mr), EINVAL);
  EXPECT_EQ(RegDm(b, dm_b + 1, 0, 8, kDmAll, &mr), EINVAL);
  EXPECT_EQ(RegDm(a, dm_b, 0, 8, kDmAll, &mr), EINVAL) << "another context's";
  EXPECT_EQ(RegDm(b, dm_b, 100, 0, kDmAll, &mr), 0) << "nothing of it, which is not an error";
  EXPECT_EQ(b.DoHandle(CommandOp::kDeregMr, mr.handle), 0);
  shm::ReregMrRequest request{};
  request.mr = mr_b.handle;
  request.changes = shm::kReregAccess;
  request.region.access = kDmAll;
  shm::RegMrReply reply;
  EXPECT_EQ(b.Execute(CommandOp::kReregMr, request, &reply), EINVAL);
}

TEST_F(Dm, IsFreeOnceItsRegionsAreGone) {
  EXPECT_EQ(b.DoHandle(CommandOp::kFreeDm, dm_b), EBUSY);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeregMr, mr_b.handle), 0);
  EXPECT_EQ(Write(0, mr_b.rkey), WcStatus::kRemAccessErr);
  EXPECT_EQ(b.DoHandle(CommandOp::kFreeDm, dm_b), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kFreeDm, dm_b), ENOENT);
}

TEST_F(Dm, IsShown) {
  const std::vector<ShowRow> rows = world.device->Show(ShowKind::kDm);
  ASSERT_EQ(rows.size(), 1u);
  const std::map<std::string, std::string> row(rows[0].fields.begin(), rows[0].fields.end());
  EXPECT_EQ(row.at("length"), "100");
  EXPECT_EQ(row.at("mrs"), "1");
}

// Its bytes are there until the last copy is done, though the memory and its region are gone.
TEST_F(Dm, MemoryOutlivesWhatIsUnderWay) {
  HoldWrite(qp_a, 0, mr_b.rkey);
  shm::HandleRequest request{mr_b.handle, 0};
  uint32_t slot = b.Begin(CommandOp::kDeregMr, &request, sizeof(request));
  EXPECT_EQ(b.DoHandle(CommandOp::kFreeDm, dm_b), 0);
  world.Settle();
  EXPECT_FALSE(b.IsDone(slot));
  EXPECT_EQ(FakeServices::live_memories, 1);
  world.dma.is_held = false;
  world.Settle();
  EXPECT_TRUE(b.IsDone(slot));
  EXPECT_EQ(world.dma.regions.size(), 1u);
  EXPECT_EQ(FakeServices::live_memories, 0);
}

// A key that is taken away has let in what is under way, and a QP that goes has asked for it: it is
// at memory that is no process's.
TEST_F(Dm, LocalInvalidationWaitsForWhatIsUnderWay) {
  HoldWrite(qp_a, 0, mr_b.rkey);
  ExpectInvalidationWaits(b, qp_b, cq_b, mr_b.rkey);
}

TEST_F(Dm, InvalidationByAPeerWaitsForWhatIsUnderWay) {
  b.PostRecv(qp_b, 3, {});
  world.dma.is_held = true;
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaRead, 1);
  wqe.rkey = mr_b.rkey;
  a.Post(qp_a, wqe, {SgeOf(memory_a, 8, mr_a.lkey)});
  world.Settle();
  wqe = MakeWqe(shm::WrOpcode::kSendWithInv, 2);
  wqe.imm_or_rkey = mr_b.rkey;
  a.PostInline(qp_a, wqe, "");
  ExpectQuiet(cq_b);
  Let();
  EXPECT_EQ(b.Poll(cq_b).value_or(Wc{}).wr_id, 3u);
}

TEST_F(Dm, ResetOfAQpWaitsForWhatIsUnderWay) {
  HoldWrite(qp_a, 0, mr_b.rkey);
  ExpectResetWaits(b, qp_b);
  // And no longer for what another one does.
  a.PollAll(cq_a);
  TestQp qp_b2 = b.MustCreateQp(Service::kRc, cq_b);
  Connect(a, qp_a, b, qp_b2, Service::kRc);
  HoldWrite(qp_a, 0, mr_b.rkey);
  EXPECT_EQ(b.ToReset(qp_b), 0);
  Let();
}

TEST_F(Dm, DestructionOfAQpWaitsForWhatIsUnderWay) {
  HoldWrite(qp_a, 0, mr_b.rkey);
  ExpectHandleWaits(b, CommandOp::kDestroyQp, qp_b.handle);
}

// Of what it reads likewise: by its own request, to another's memory.
TEST_F(Dm, DestructionOfAQpWaitsForWhatItReads) {
  world.dma.is_held = true;
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
  wqe.remote_addr = reinterpret_cast<uint64_t>(memory_a) + 1'024;
  wqe.rkey = mr_a.rkey;
  b.Post(qp_b, wqe, {{0, 8, mr_b.lkey}});
  world.Settle();
  ExpectHandleWaits(b, CommandOp::kDestroyQp, qp_b.handle);
}

// The session ends before what its command waits for.
TEST_F(Dm, SessionOfAQpThatGoesNeedNotWait) {
  world.dma.is_held = true;
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
  wqe.rkey = mr_b.rkey;
  a.PostInline(qp_a, wqe, "nobody's memory");
  world.Settle();
  shm::HandleRequest request{qp_b.handle, 0};
  b.Begin(CommandOp::kDestroyQp, &request, sizeof(request));
  world.Close(b);
  world.Settle();
  EXPECT_TRUE(world.device->SessionIsGone(b.id));
  EXPECT_TRUE(b.services.queues.empty());
  Let();
}

TEST_F(Dm, LimitIsTheNics) {
  shm::QueryDeviceReply device;
  ASSERT_EQ(b.ExecuteRaw(CommandOp::kQueryDevice, nullptr, 0, &device, sizeof(device)), 0);
  EXPECT_EQ(device.max_dm_size, kDmBytes);
  shm::Handle dm, whole;
  EXPECT_EQ(AllocDm(b, 0, &dm), EINVAL);
  EXPECT_EQ(AllocDm(b, kDmBytes + 1, &dm), EINVAL);
  EXPECT_EQ(AllocDm(b, 64, &dm, 13), EINVAL);
  EXPECT_EQ(AllocDm(b, kDmBytes, &dm), ENOMEM) << "a page is taken";
  EXPECT_EQ(AllocDm(b, kDmBytes - 4'096, &whole, 12), 0);
  EXPECT_EQ(AllocDm(b, 1, &dm), ENOMEM);
  EXPECT_EQ(AllocDm(a, kDmBytes, &dm), 0) << "another NIC's";
  EXPECT_EQ(b.DoHandle(CommandOp::kFreeDm, whole), 0);
  b.services.allocate_error = ENOMEM;
  EXPECT_EQ(AllocDm(b, 64, &dm), ENOMEM);
  b.services.allocate_error = 0;
  b.services.send_error = EMFILE;
  EXPECT_EQ(AllocDm(b, 64, &dm), EMFILE);
  b.services.send_error = 0;
  EXPECT_EQ(AllocDm(b, kDmBytes - 4'096, &whole), 0);
  // And what a session leaves behind is free again.
  world.Close(b);
  world.Settle();
  EXPECT_EQ(AllocDm(world.AddClient(1), kDmBytes, &dm), 0);
  EXPECT_EQ(world.dma.regions.size(), 1u);
}

// --- shared contexts
// ------------------------------------------------------------------------------

class Sharing : public Dm {
 protected:
  // c joins b's context.
  Sharing() : c(world.AddClient(1, b.id)), cq_c(c.MustCreateCq()) {}

  int ImportMr(TestClient& client, shm::Handle pd, shm::Handle mr, TestMr* out) {
    shm::ImportMrReply reply;
    int error = client.Execute(CommandOp::kImportMr, shm::ImportMrRequest{pd, mr}, &reply);
    *out = {mr, reply.lkey, reply.rkey};
    return error;
  }
  // A QP of c's in b's PD, connected to a new one of a's.
  void ConnectC() {
    shm::CreateQpRequest request = c.QpRequest(Service::kRc, cq_c.handle);
    request.pd = b.pd;
    ASSERT_EQ(c.CreateQp(request, &qp_c), 0);
    qp_a2 = a.MustCreateQp(Service::kRc, cq_a);
    Connect(a, qp_a2, c, qp_c, Service::kRc);
  }
  WcStatus WriteOfC(const shm::Sge& sge) {
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
    wqe.remote_addr = reinterpret_cast<uint64_t>(memory_a) + 1'024;
    wqe.rkey = mr_a.rkey;
    c.Post(qp_c, wqe, {sge});
    return Outcome(c, cq_c);
  }
  void EndB() {
    world.Close(b);
    world.Settle();
    ASSERT_TRUE(world.device->SessionIsGone(b.id));
  }

  TestClient& c;
  TestCq cq_c;
  TestQp qp_c, qp_a2;
  alignas(64) uint8_t host_b[64] = {};
};

TEST_F(Sharing, HandlesAreOfTheContext) {
  TestMr mr;
  EXPECT_EQ(c.DoHandle(CommandOp::kImportPd, b.pd), 0);
  EXPECT_EQ(c.DoHandle(CommandOp::kImportPd, b.pd + 5), EINVAL);
  EXPECT_NE(c.pd, b.pd);
  EXPECT_EQ(b.DoHandle(CommandOp::kImportPd, c.pd), 0) << "and those the joiner makes";
  EXPECT_EQ(ImportMr(c, b.pd, mr_b.handle, &mr), 0);
  EXPECT_EQ(mr.lkey, mr_b.lkey);
  EXPECT_EQ(mr.rkey, mr_b.rkey);
  EXPECT_EQ(ImportMr(c, c.pd, mr_b.handle, &mr), EINVAL) << "of another PD";
  EXPECT_EQ(ImportMr(c, b.pd, mr_b.handle + 1, &mr), EINVAL);
  shm::DmReply reply;
  EXPECT_EQ(c.Execute(CommandOp::kImportDm, shm::HandleRequest{dm_b, 0}, &reply), 0);
  EXPECT_EQ(reply.length, 100u);
  EXPECT_EQ(c.services.sent_memory.at(dm_b), bytes_b);
  EXPECT_EQ(a.Execute(CommandOp::kImportDm, shm::HandleRequest{dm_b, 0}, &reply), EINVAL);
}

TEST_F(Sharing, RegionsOfOneSessionServeTheQpsOfAnother) {
  ConnectC();
  TestMr host = b.MustRegMr(host_b, sizeof(host_b), kAll);
  host_b[0] = 21;
  EXPECT_EQ(WriteOfC(SgeOf(host_b, 8, host.lkey)), WcStatus::kSuccess);
  EXPECT_EQ(memory_a[1'024], 21);
  bytes_b[8] = std::byte{22};
  EXPECT_EQ(WriteOfC({0, 8, mr_b.lkey}), WcStatus::kSuccess);
  EXPECT_EQ(memory_a[1'024], 22);
}

TEST_F(Sharing, PdIsBusyWithTheQpsOfAnother) {
  ConnectC();
  EXPECT_EQ(b.DoHandle(CommandOp::kDeregMr, mr_b.handle), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyQp, qp_b.handle), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeallocPd, b.pd), EBUSY);
  EXPECT_EQ(c.DoHandle(CommandOp::kDestroyQp, qp_c.handle), 0);
  EXPECT_EQ(c.DoHandle(CommandOp::kDeallocPd, b.pd), 0) << "by whoever has its handle";
  EXPECT_EQ(b.DoHandle(CommandOp::kDeallocPd, b.pd), ENOENT);
}

// The command of one session waits for copies of another's memory.
TEST_F(Sharing, DeregistrationByAnotherWaitsForTheOwnersCopies) {
  TestMr host = b.MustRegMr(host_b, sizeof(host_b), kAll);
  world.dma.is_held = true;
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
  wqe.remote_addr = reinterpret_cast<uint64_t>(host_b);
  wqe.rkey = host.rkey;
  a.Post(qp_a, wqe, {SgeOf(memory_a, 8, mr_a.lkey)});
  world.Settle();
  shm::HandleRequest request{host.handle, 0};
  uint32_t slot = c.Begin(CommandOp::kDeregMr, &request, sizeof(request));
  world.Settle();
  EXPECT_FALSE(c.IsDone(slot));
  world.dma.is_held = false;
  world.Settle();
  EXPECT_TRUE(c.IsDone(slot));
}

// As does whoever takes a key to it away, or a QP that works with it.
TEST_F(Sharing, InvalidationByAnothersQpWaitsForTheOwnersCopies) {
  ConnectC();
  TestMr host = b.MustRegMr(host_b, sizeof(host_b), kAll);
  HoldWrite(qp_a2, reinterpret_cast<uint64_t>(host_b), host.rkey);
  ExpectInvalidationWaits(c, qp_c, cq_c, host.rkey);
}

TEST_F(Sharing, EndOfAQpWaitsForTheOwnersCopies) {
  ConnectC();
  TestMr host = b.MustRegMr(host_b, sizeof(host_b), kAll);
  const auto addr = reinterpret_cast<uint64_t>(host_b);
  HoldWrite(qp_a2, addr, host.rkey);
  ExpectResetWaits(c, qp_c);
  EXPECT_EQ(a.ToReset(qp_a2), 0);
  Connect(a, qp_a2, c, qp_c, Service::kRc);
  HoldWrite(qp_a2, addr, host.rkey);
  ExpectHandleWaits(c, CommandOp::kDestroyQp, qp_c.handle);
}

TEST_F(Sharing, WindowOnAnothersRegionWaitsForTheOwnersCopies) {
  ConnectC();
  const TestMr host = b.MustRegMr(host_b, sizeof(host_b), kAll | access::kMwBind);
  const auto addr = reinterpret_cast<uint64_t>(host_b);
  shm::AllocMwRequest request{b.pd, shm::kMwType1};
  shm::AllocMwReply mw{};
  ASSERT_EQ(c.Execute(CommandOp::kAllocMw, request, &mw), 0);
  auto bind = [&](uint64_t length) {
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kBindMw, 5);
    wqe.imm_or_rkey = mw.rkey = (mw.rkey & ~0xffu) | ((mw.rkey + 1) & 0xff);
    wqe.rkey = host.lkey;
    wqe.remote_addr = addr;
    wqe.bind = {length, mw.mw, length != 0 ? access::kRemoteWrite : 0};
    c.Post(qp_c, wqe, {});
  };
  bind(64);
  ASSERT_EQ(Outcome(c, cq_c), WcStatus::kSuccess);
  HoldWrite(qp_a2, addr, mw.rkey);
  bind(0);
  ExpectQuiet(cq_c);
  Let();
  ASSERT_EQ(Outcome(c, cq_c), WcStatus::kSuccess);
  bind(64);
  ASSERT_EQ(Outcome(c, cq_c), WcStatus::kSuccess);
  HoldWrite(qp_a2, addr, mw.rkey);
  bind(0);  // which does not shorten the wait
  world.Settle();
  ExpectHandleWaits(c, CommandOp::kDeallocMw, mw.mw);
}

// The owner's process has ended, which the DMA engine is the first to know. The QPs of others that
// work with its memory go on: they, and their peers, are told.
class OwnerIsGone : public Sharing {
 protected:
  OwnerIsGone() {
    ConnectC();
    host = b.MustRegMr(host_b, sizeof(host_b), kAll);
    world.dma.bad_addr = reinterpret_cast<uint64_t>(host_b);
    world.dma.fault = DmaFault::kOwnerGone;
  }
  // And its session follows.
  void End() {
    world.Settle();
    world.dma.bad_addr = 0;
    world.dma.fault = DmaFault::kMemory;
    world.device->AbandonSession(world.now, b.id);
    world.Settle();
  }
  shm::SendWqe To(shm::WrOpcode opcode, const void* addr, const TestMr& mr) {
    shm::SendWqe wqe = MakeWqe(opcode, 5);
    wqe.remote_addr = reinterpret_cast<uint64_t>(addr);
    wqe.rkey = mr.rkey;
    return wqe;
  }

  TestMr host;
};

TEST_F(OwnerIsGone, ReadIntoItsMemoryFails) {
  c.Post(qp_c, To(shm::WrOpcode::kRdmaRead, memory_a, mr_a), {SgeOf(host_b, 8, host.lkey)});
  End();
  EXPECT_EQ(c.ToError(qp_c), 0);
  world.Settle();
  EXPECT_EQ(c.Poll(cq_c).value_or(Wc{}).status, WcStatus::kLocProtErr);
}

TEST_F(OwnerIsGone, WriteFromItsMemoryFails) {
  for (Service service : {Service::kRc, Service::kUc}) {
    shm::CreateQpRequest request = c.QpRequest(service, cq_c.handle);
    request.pd = b.pd;
    TestQp from, to = a.MustCreateQp(service, cq_a);
    ASSERT_EQ(c.CreateQp(request, &from), 0);
    Connect(a, to, c, from, service);
    c.Post(from, To(shm::WrOpcode::kRdmaWrite, memory_a, mr_a), {SgeOf(host_b, 8, host.lkey)});
    world.Settle();
    EXPECT_EQ(c.Poll(cq_c).value_or(Wc{}).status, WcStatus::kLocProtErr);
  }
  End();
}

TEST_F(OwnerIsGone, WriteIntoItsMemoryFails) {
  c.PostRecv(qp_c, 9, {});
  a.Post(qp_a2, To(shm::WrOpcode::kRdmaWrite, host_b, host), {SgeOf(memory_a, 8, mr_a.lkey)});
  End();
  EXPECT_EQ(a.Poll(cq_a).value_or(Wc{}).status, WcStatus::kRemOpErr);
  EXPECT_EQ(c.ToError(qp_c), 0);
  world.Settle();
  EXPECT_EQ(c.Poll(cq_c).value_or(Wc{}).status, WcStatus::kWrFlushErr);
}

TEST_F(Sharing, WhatIsSharedOutlivesItsMaker) {
  ConnectC();
  TestMr host = b.MustRegMr(host_b, sizeof(host_b), kAll);
  EndB();
  EXPECT_EQ(world.dma.regions.size(), 2u) << "b's process is out of reach";
  bytes_b[8] = std::byte{23};
  EXPECT_EQ(WriteOfC({0, 8, mr_b.lkey}), WcStatus::kSuccess);
  EXPECT_EQ(memory_a[1'024], 23);
  EXPECT_NE(WriteOfC(SgeOf(host_b, 8, host.lkey)), WcStatus::kSuccess);
  EXPECT_EQ(c.DoHandle(CommandOp::kDeregMr, host.handle), 0);
  EXPECT_EQ(c.DoHandle(CommandOp::kDeregMr, mr_b.handle), 0);
  EXPECT_EQ(c.DoHandle(CommandOp::kFreeDm, dm_b), 0);
}

TEST_F(Sharing, LastHolderTakesItAllAway) {
  ConnectC();
  b.MustRegMr(host_b, sizeof(host_b), kAll);
  TestClient& d = world.AddClient(1, c.id);  // joins by a joiner
  EXPECT_EQ(d.DoHandle(CommandOp::kImportPd, b.pd), 0);
  EndB();
  world.Close(c);
  world.Settle();
  shm::Handle dm;
  EXPECT_EQ(AllocDm(d, kDmBytes, &dm), ENOMEM);
  EXPECT_GT(world.device->Stats().mrs, 1u);
  world.Close(d);
  world.Settle();
  EXPECT_EQ(world.dma.regions.size(), 1u);
  EXPECT_EQ(world.device->Stats().mrs, 1u);
  EXPECT_EQ(world.device->Stats().pds, 1u);
  EXPECT_EQ(AllocDm(world.AddClient(1), kDmBytes, &dm), 0);
}

TEST_F(Sharing, AbandonedContextCanBeJoinedStill) {
  world.device->AbandonSession(world.now, b.id);
  world.Close(c);
  world.Settle();
  EXPECT_EQ(world.dma.regions.size(), 2u);
  TestClient& d = world.AddClient(1, b.id);
  TestMr mr;
  EXPECT_EQ(ImportMr(d, b.pd, mr_b.handle, &mr), 0);
  world.Close(b);
  EXPECT_EQ(ImportMr(d, b.pd, mr_b.handle, &mr), 0);
}

TEST_F(Sharing, NobodyJoinsWhatHasEnded) {
  FakeServices services;
  EXPECT_EQ(world.device->OpenSession(0, "late", 1, &services, 99), 0u);
  world.Close(b);
  EXPECT_EQ(world.device->OpenSession(0, "late", 1, &services, b.id), 0u);
  SessionId late = world.device->OpenSession(0, "late", 1, &services, c.id);
  EXPECT_NE(late, 0u);
  world.device->CloseSession(world.now, late);
  world.Settle();
}

// As of a process that is killed while its peers write to its device memory.
TEST_F(Sharing, LastHoldersEndWaitsForWhatIsUnderWay) {
  world.dma.is_held = true;
  shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
  wqe.rkey = mr_b.rkey;
  a.Post(qp_a, wqe, {SgeOf(memory_a, 8, mr_a.lkey)});
  world.Settle();
  world.Close(c);
  world.Close(b);
  world.Settle();
  EXPECT_EQ(FakeServices::live_memories, 1);
  world.dma.is_held = false;
  world.Settle();
  EXPECT_EQ(FakeServices::live_memories, 0);
}

TEST_F(Sharing, IsShownOnce) {
  std::vector<ShowRow> rows = world.device->Show(ShowKind::kMr);
  EXPECT_EQ(rows.size(), 2u) << "each region once, whoever shares it";
  EXPECT_EQ(world.device->Show(ShowKind::kPd).size(), 3u);
}

}  // namespace
}  // namespace verbena::softnic::testing
