// Creation and destruction of every object: handles, order, limits, errors.
#include <gtest/gtest.h>

#include <array>
#include <cerrno>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

using shm::CommandOp;

constexpr uint32_t kLocal = access::kLocalWrite;

class Objects : public ::testing::Test {
 protected:
  Objects() : client(world.AddClient(0)) {}
  TestWorld world;
  TestClient& client;
  alignas(64) uint8_t memory[4'096] = {};
};

TEST_F(Objects, CommandOfWrongSizeOrNumberIsRefused) {
  shm::RegMrRequest request{};
  EXPECT_EQ(client.ExecuteRaw(CommandOp::kRegMr, &request, sizeof(request) - 1, nullptr, 0),
            EINVAL);
  EXPECT_EQ(client.ExecuteRaw(CommandOp::kAllocPd, &request, 8, nullptr, 0), EINVAL);
  EXPECT_EQ(client.ExecuteRaw(CommandOp::kCount, nullptr, 0, nullptr, 0), EOPNOTSUPP);
  EXPECT_EQ(client.ExecuteRaw(static_cast<CommandOp>(~0u), nullptr, 0, nullptr, 0), EOPNOTSUPP);
  EXPECT_EQ(world.device->Stats().hostile_acts, 4u);
  EXPECT_EQ(client.ExecuteRaw(CommandOp::kNop, nullptr, 0, nullptr, 0), 0);
}

// As the kernel's commands say it: ENOENT from those that destroy, EINVAL from the others.
TEST_F(Objects, HandlesThatAreNoneAreRefused) {
  for (shm::Handle wrong : {0u, 1u, 0x10'0005u, ~0u}) {
    for (CommandOp op : {CommandOp::kDeallocPd, CommandOp::kDeregMr, CommandOp::kDestroyChannel,
                         CommandOp::kDestroyCq, CommandOp::kDestroySrq, CommandOp::kDestroyQp,
                         CommandOp::kDestroyAh, CommandOp::kDeallocTd, CommandOp::kDeallocMw,
                         CommandOp::kFreeDm}) {
      EXPECT_EQ(client.DoHandle(op, wrong), ENOENT) << static_cast<int>(op) << " " << wrong;
    }
    for (CommandOp op : {CommandOp::kQuerySrq, CommandOp::kQueryQp}) {
      EXPECT_EQ(client.DoHandle(op, wrong), EINVAL) << static_cast<int>(op) << " " << wrong;
    }
  }
}

TEST_F(Objects, HandleOfAnotherSessionIsNone) {
  TestClient& other = world.AddClient(0);
  TestCq cq = client.MustCreateCq();
  TestQp qp = client.MustCreateQp(Service::kRc, cq);
  // `other` has its own PD at that handle, and nothing else.
  EXPECT_EQ(other.DoHandle(CommandOp::kDestroyQp, qp.handle), ENOENT);
  EXPECT_EQ(other.DoHandle(CommandOp::kDestroyCq, cq.handle), ENOENT);
  shm::CreateQpRequest request = other.QpRequest(Service::kRc, cq.handle);
  TestQp stolen;
  EXPECT_EQ(other.CreateQp(request, &stolen), EINVAL);
}

TEST_F(Objects, StaleHandleIsRefused) {
  shm::Handle pd = client.AllocPd();
  EXPECT_EQ(client.DoHandle(CommandOp::kDeallocPd, pd), 0);
  EXPECT_EQ(client.DoHandle(CommandOp::kDeallocPd, pd), ENOENT);
  shm::Handle next = client.AllocPd();
  EXPECT_NE(next, pd);
  EXPECT_EQ(client.DoHandle(CommandOp::kDeallocPd, pd), ENOENT);
  EXPECT_EQ(client.DoHandle(CommandOp::kDeallocPd, next), 0);
}

TEST_F(Objects, PdIsBusyWhileAnythingNeedsIt) {
  TestCq cq = client.MustCreateCq();
  auto expect_busy_until = [&](CommandOp destroy, shm::Handle object) {
    EXPECT_EQ(client.DoHandle(CommandOp::kDeallocPd, client.pd), EBUSY);
    EXPECT_EQ(client.DoHandle(destroy, object), 0);
  };
  expect_busy_until(CommandOp::kDeregMr, client.MustRegMr(memory, 64, kLocal).handle);
  expect_busy_until(CommandOp::kDestroyQp, client.MustCreateQp(Service::kRc, cq).handle);
  expect_busy_until(CommandOp::kDestroyAh, client.CreateAh(TestWorld::GidOf(1)));
  TestSrq srq;
  ASSERT_EQ(client.CreateSrq(4, 1, &srq), 0);
  expect_busy_until(CommandOp::kDestroySrq, srq.handle);
  EXPECT_EQ(client.DoHandle(CommandOp::kDeallocPd, client.pd), 0);
}

TEST_F(Objects, CqChannelAndSrqAreBusyWhileUsed) {
  shm::Handle channel = client.CreateChannel();
  TestCq cq = client.MustCreateCq(8, channel);
  TestSrq srq;
  ASSERT_EQ(client.CreateSrq(4, 1, &srq), 0);
  shm::CreateQpRequest request = client.QpRequest(Service::kRc, cq.handle);
  request.srq = srq.handle;
  TestQp qp;
  ASSERT_EQ(client.CreateQp(request, &qp), 0);
  EXPECT_EQ(qp.reply.rq.bytes, 0u);
  EXPECT_EQ(client.DoHandle(CommandOp::kDestroyCq, cq.handle), EBUSY);
  EXPECT_EQ(client.DoHandle(CommandOp::kDestroySrq, srq.handle), EBUSY);
  EXPECT_EQ(client.DoHandle(CommandOp::kDestroyChannel, channel), EBUSY);
  EXPECT_EQ(client.DoHandle(CommandOp::kDestroyQp, qp.handle), 0);
  EXPECT_EQ(client.DoHandle(CommandOp::kDestroySrq, srq.handle), 0);
  EXPECT_EQ(client.DoHandle(CommandOp::kDestroyCq, cq.handle), 0);
  EXPECT_EQ(client.DoHandle(CommandOp::kDestroyChannel, channel), 0);
  EXPECT_TRUE(client.services.open_channels.empty());
  EXPECT_TRUE(client.services.queues.empty());
}

TEST_F(Objects, RegMrChecksItsArguments) {
  auto reg = [&](uint64_t addr, uint64_t length, uint32_t access, uint64_t iova) {
    shm::RegMrRequest request{client.pd, access, addr, length, iova, 0, 0, 0, {}};
    shm::RegMrReply reply;
    int error = client.Execute(CommandOp::kRegMr, request, &reply);
    if (error == 0) client.DoHandle(CommandOp::kDeregMr, reply.mr);
    return error;
  };
  EXPECT_EQ(reg(0x1000, 0, kLocal, 0x1000), EINVAL);
  EXPECT_EQ(reg(~uint64_t{0} - 10, 100, kLocal, 0x1000), EINVAL);
  EXPECT_EQ(reg(0x1000, 100, kLocal, ~uint64_t{0} - 10), EINVAL);
  EXPECT_EQ(reg(0x1000, 64, access::kRemoteWrite, 0x1000), EINVAL);
  EXPECT_EQ(reg(0x1000, 64, access::kRemoteAtomic, 0x1000), EINVAL);
  EXPECT_EQ(reg(0x1000, 64, 1u << 15, 0x1000), EINVAL);
  EXPECT_EQ(reg(0x1000, 64, access::kOnDemand, 0x1000), EOPNOTSUPP);
  EXPECT_EQ(reg(0x1000, 64, access::kRemoteRead, 0x1000), 0);
  EXPECT_EQ(reg(0x1000, 64, kLocal | access::kRemoteWrite | access::kMwBind, 0x7777), 0);
  EXPECT_EQ(reg(0x1000, 64, kLocal | access::kHugetlb, 0), 0);
  EXPECT_EQ(reg(0x1000, 64, kLocal | access::kRelaxedOrdering | 1u << 29, 0), 0);
  world.dma.add_error = EFAULT;
  EXPECT_EQ(reg(0x1000, 64, kLocal, 0x1000), EFAULT);
  EXPECT_EQ(world.device->Stats().mrs, 0u);
}

TEST_F(Objects, DeregFinishesAfterTheFenceOnly) {
  TestMr mr = client.MustRegMr(memory, 64, kLocal);
  shm::HandleRequest request{mr.handle, 0};
  uint32_t slot = client.Begin(CommandOp::kDeregMr, &request, sizeof(request));
  EXPECT_FALSE(client.IsDone(slot));
  EXPECT_EQ(world.dma.regions.size(), 1u);
  // Its handle is gone already.
  uint32_t again = client.Begin(CommandOp::kDeregMr, &request, sizeof(request));
  EXPECT_EQ(client.services.completed[again].error, ENOENT);
  world.Settle();
  EXPECT_TRUE(client.IsDone(slot));
  EXPECT_EQ(client.services.completed[slot].error, 0);
  EXPECT_TRUE(world.dma.regions.empty());
}

TEST_F(Objects, CqChecksItsArguments) {
  TestCq cq;
  EXPECT_EQ(client.CreateCq(0, 0, &cq), EINVAL);
  EXPECT_EQ(client.CreateCq(DeviceLimits{}.max_cqe + 1, 0, &cq), EINVAL);
  EXPECT_EQ(client.CreateCq(8, 12'345, &cq), EINVAL);
  EXPECT_EQ(client.CreateCq(8, 0, &cq, 1u << 7), EINVAL);
  shm::CreateCqRequest request{};
  request.entries = 8;
  request.comp_vector = DeviceLimits{}.comp_vectors;
  shm::CreateCqReply reply;
  EXPECT_EQ(client.Execute(CommandOp::kCreateCq, request, &reply), EINVAL);
  ASSERT_EQ(client.CreateCq(100, 0, &cq), 0);
  EXPECT_EQ(cq.ring.entries(), 128u);
}

TEST_F(Objects, QpChecksItsArguments) {
  TestCq cq = client.MustCreateCq();
  shm::CreateQpRequest good = client.QpRequest(Service::kRc, cq.handle);
  TestQp qp;
  auto expect = [&](int error, auto change) {
    shm::CreateQpRequest request = good;
    change(request);
    EXPECT_EQ(client.CreateQp(request, &qp), error);
  };
  const DeviceLimits limits;
  expect(EINVAL, [](auto& r) { r.pd = 99; });
  expect(EINVAL, [](auto& r) { r.send_cq = 99; });
  expect(EINVAL, [](auto& r) { r.recv_cq = 0; });
  expect(EINVAL, [](auto& r) { r.srq = 99; });
  expect(EINVAL, [&](auto& r) { r.max_send_wr = limits.max_qp_wr + 1; });
  expect(EINVAL, [&](auto& r) { r.max_recv_wr = limits.max_qp_wr + 1; });
  expect(EINVAL, [&](auto& r) { r.max_send_sge = limits.max_sge + 1; });
  expect(EINVAL, [&](auto& r) { r.max_recv_sge = limits.max_sge + 1; });
  expect(EINVAL, [&](auto& r) { r.max_inline_bytes = limits.max_inline_bytes + 1; });
  expect(EOPNOTSUPP, [](auto& r) { r.service = 3; });
  expect(EOPNOTSUPP, [](auto& r) { r.create_flags = 1; });
  EXPECT_EQ(world.device->Stats().qps, 0u);
  expect(0, [](auto& r) { r.max_send_wr = r.max_recv_wr = 0; });
  good.max_send_wr = 100;
  ASSERT_EQ(client.CreateQp(good, &qp), 0);
  EXPECT_EQ(qp.reply.max_send_wr, 128u);
  EXPECT_EQ(qp.reply.sq.entries, 128u);
  EXPECT_GE(qp.reply.sq.doorbell, shm::kCommandSlots);
}

TEST_F(Objects, SrqOfAnotherPdIsRefused) {
  TestCq cq = client.MustCreateCq();
  TestSrq srq;
  ASSERT_EQ(client.CreateSrq(4, 1, &srq), 0);
  shm::CreateQpRequest request = client.QpRequest(Service::kRc, cq.handle);
  request.srq = srq.handle;
  request.pd = client.AllocPd();
  TestQp qp;
  EXPECT_EQ(client.CreateQp(request, &qp), EINVAL);
}

TEST_F(Objects, AhChecksItsAddress) {
  shm::CreateAhRequest good{};
  good.pd = client.pd;
  Gid dgid = TestWorld::GidOf(1);
  std::memcpy(good.attr.dgid, dgid.raw.data(), 16);
  good.attr.is_global = 1;
  good.attr.port_num = 1;
  shm::HandleReply reply;
  auto expect = [&](int error, auto change) {
    shm::CreateAhRequest request = good;
    change(request);
    EXPECT_EQ(client.Execute(CommandOp::kCreateAh, request, &reply), error);
  };
  expect(0, [](auto&) {});
  expect(EINVAL, [](auto& r) { r.pd = 0; });
  expect(EINVAL, [](auto& r) { r.attr.is_global = 0; });
  auto by_lid = [](uint16_t lid) {
    return [lid](auto& r) {
      r.attr = {};
      r.attr.port_num = 1;
      r.attr.dlid = lid;
    };
  };
  expect(0, by_lid(1));
  expect(EINVAL, by_lid(0));
  expect(EINVAL, by_lid(0xffff));
  expect(EINVAL, [](auto& r) { r.attr.port_num = 2; });
  expect(EINVAL, [](auto& r) { r.attr.sgid_index = 2; });  // empty
  expect(EINVAL, [](auto& r) { r.attr.sgid_index = 200; });
  expect(EINVAL, [](auto& r) { std::memset(r.attr.dgid, 0, 16); });
}

TEST(Nic, OnASubnetALidIsTheEndOfAnAddress) {
  NicConfig config = TestWorld::ConfigOf(2);
  Nic alone(2, config, {});
  EXPECT_EQ(alone.Lid(), 3);
  EXPECT_EQ(alone.Ipv4OfLid(3), config.ipv4);
  EXPECT_EQ(alone.Ipv4OfLid(4), 0u);
  config.ipv4 = 0x0a4d'0102;
  config.has_subnet_lids = true;
  Nic networked(2, config, {});
  EXPECT_EQ(networked.Lid(), 0x0102);
  EXPECT_EQ(networked.Ipv4OfLid(0x0102), 0x0a4d'0102u);
  EXPECT_EQ(networked.Ipv4OfLid(0xff03), 0x0a4d'ff03u);
}

TEST_F(Objects, FailuresOfServicesLeaveNothingBehind) {
  TestCq cq = client.MustCreateCq();
  size_t queues = client.services.queues.size();
  client.services.allocate_error = ENOMEM;
  TestCq other;
  TestSrq srq;
  TestQp qp;
  EXPECT_EQ(client.CreateCq(8, 0, &other), ENOMEM);
  EXPECT_EQ(client.CreateSrq(8, 1, &srq), ENOMEM);
  for (uint32_t successes : {0u, 1u}) {  // the SQ fails, then the RQ
    client.services.allocations_before_error = successes;
    EXPECT_EQ(client.CreateQp(client.QpRequest(Service::kUc, cq.handle), &qp), ENOMEM);
  }
  client.services.open_error = EMFILE;
  EXPECT_EQ(client.ExecuteRaw(CommandOp::kCreateChannel, nullptr, 0, nullptr, 0), EMFILE);
  EXPECT_EQ(client.services.queues.size(), queues);
  DeviceStats stats = world.device->Stats();
  EXPECT_EQ(stats.cqs, 1u);
  EXPECT_EQ(stats.qps + stats.srqs + stats.channels, 0u);
  client.services.allocate_error = 0;
  EXPECT_EQ(client.DoHandle(CommandOp::kDestroyCq, cq.handle), 0);
}

TEST(Limits, CountsAreEnforcedOverAllSessionsOfANic) {
  DeviceLimits limits;
  limits.max_pd = 3;
  limits.max_mr = limits.max_cq = limits.max_qp = limits.max_srq = limits.max_ah = 2;
  TestWorld world(2, limits);
  TestClient& a = world.AddClient(0);
  TestClient& b = world.AddClient(0);
  uint8_t memory[64];
  a.MustRegMr(memory, 64, kLocal);
  TestMr mr_b = b.MustRegMr(memory, 64, kLocal);
  TestMr mr;
  EXPECT_EQ(a.RegMr(a.pd, memory, 64, kLocal, &mr), ENOMEM);
  TestCq cq_a = a.MustCreateCq(), cq_b = b.MustCreateCq(), cq;
  EXPECT_EQ(b.CreateCq(4, 0, &cq), ENOMEM);
  a.MustCreateQp(Service::kRc, cq_a);
  b.MustCreateQp(Service::kUd, cq_b);
  TestQp qp;
  EXPECT_EQ(a.CreateQp(a.QpRequest(Service::kRc, cq_a.handle), &qp), ENOMEM);
  TestSrq srq;
  EXPECT_EQ(a.CreateSrq(1, 1, &srq), 0);
  EXPECT_EQ(b.CreateSrq(1, 1, &srq), 0);
  EXPECT_EQ(b.CreateSrq(1, 1, &srq), ENOMEM);
  a.AllocPd();
  EXPECT_EQ(a.ExecuteRaw(CommandOp::kAllocPd, nullptr, 0, nullptr, 0), ENOMEM);
  // Another NIC has limits of its own, and what is destroyed is free again.
  TestClient& c = world.AddClient(1);
  EXPECT_EQ(c.RegMr(c.pd, memory, 64, kLocal, &mr), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kDeregMr, mr_b.handle), 0);
  EXPECT_EQ(a.RegMr(a.pd, memory, 64, kLocal, &mr), 0);
  // So is what a session leaves.
  world.Close(b);
  EXPECT_EQ(a.CreateQp(a.QpRequest(Service::kRc, cq_a.handle), &qp), 0);
}

TEST(Queries, TellTheTruthAboutTheNic) {
  TestWorld world(3);
  TestClient& client = world.AddClient(2);
  shm::QueryDeviceReply device;
  ASSERT_EQ(client.ExecuteRaw(CommandOp::kQueryDevice, nullptr, 0, &device, sizeof(device)), 0);
  EXPECT_EQ(device.max_qp, DeviceLimits{}.max_qp);
  EXPECT_NE(device.vendor_id, 0u);
  const auto* guid = reinterpret_cast<const uint8_t*>(&device.node_guid);
  EXPECT_EQ(guid[0], 0x00);  // 02 with the universal bit flipped
  EXPECT_EQ(guid[3], 0xff);
  EXPECT_EQ(guid[4], 0xfe);
  EXPECT_EQ(guid[7], 3);

  shm::PortRequest request{1, 0};
  shm::QueryPortReply port;
  ASSERT_EQ(client.Execute(CommandOp::kQueryPort, request, &port), 0);
  EXPECT_EQ(port.state, 4u);
  EXPECT_EQ(port.active_mtu, 5u);
  EXPECT_EQ(port.link_layer, 2u);
  EXPECT_EQ(port.max_msg_sz, 0x4000'0000u);

  shm::QueryGidTableReply gids;
  ASSERT_EQ(client.Execute(CommandOp::kQueryGidTable, request, &gids), 0);
  ASSERT_EQ(gids.count, 2u);
  EXPECT_EQ(gids.next_index, 0u);
  EXPECT_EQ(gids.entries[0].raw[0], 0xfe);
  EXPECT_EQ(gids.entries[1].index, 1u);
  EXPECT_EQ(std::memcmp(gids.entries[1].raw, TestWorld::GidOf(2).raw.data(), 16), 0);
  EXPECT_EQ(gids.entries[1].type, 2u);

  shm::QueryPkeyReply pkey;
  ASSERT_EQ(client.Execute(CommandOp::kQueryPkey, request, &pkey), 0);
  EXPECT_EQ(pkey.pkey, 0xffffu);
  EXPECT_EQ(client.Execute(CommandOp::kQueryPkey, shm::PortRequest{1, 1}, &pkey), EINVAL);
  for (CommandOp op : {CommandOp::kQueryPort, CommandOp::kQueryGidTable, CommandOp::kQueryPkey}) {
    EXPECT_EQ(client.Execute(op, shm::PortRequest{2, 0}, &port), EINVAL);
    EXPECT_EQ(client.Execute(op, shm::PortRequest{0, 0}, &port), EINVAL);
  }
  EXPECT_EQ(world.device->ListNics().at(2).ipv4[3], 3);
}

// Programs like rdma_xclient send what fits without having asked for it.
TEST(QueuePairs, WhatTheSgesNeedCanGoInline) {
  TestWorld world(1);
  TestClient& client = world.AddClient(0);
  TestCq cq = client.MustCreateCq(64);
  const std::array<std::array<uint32_t, 3>, 4> rows = {
      {{1, 0, 16}, {4, 0, 64}, {2, 200, 200}, {0, 0, 16}}};
  for (const auto& [sges, asked, given] : rows) {
    shm::CreateQpRequest request = client.QpRequest(Service::kRc, cq.handle);
    request.max_send_sge = sges;
    request.max_inline_bytes = asked;
    TestQp qp;
    ASSERT_EQ(client.CreateQp(request, &qp), 0);
    EXPECT_EQ(qp.reply.max_inline_bytes, given) << sges << " SGEs";
  }
}

TEST(Scale, TenThousandQpsAndMrsCostTheSameEach) {
  TestWorld world(1);
  TestClient& client = world.AddClient(0);
  TestCq cq = client.MustCreateCq(1'024);
  std::vector<uint8_t> memory(65'536);
  shm::CreateQpRequest request = client.QpRequest(Service::kRc, cq.handle);
  request.max_send_wr = request.max_recv_wr = 1;
  request.max_send_sge = request.max_recv_sge = 1;
  request.max_inline_bytes = 0;
  std::vector<TestQp> qps(10'000);
  std::vector<TestMr> mrs(10'000);
  for (size_t i = 0; i < qps.size(); ++i) {
    ASSERT_EQ(client.CreateQp(request, &qps[i]), 0);
    mrs[i] = client.MustRegMr(memory.data() + i, 1, kLocal);
  }
  // What the free lists promise: an object made among 10 000 takes the place just given up,
  // whatever the number of others. So neither creation nor destruction looks at them.
  for (size_t i : {size_t{0}, size_t{5'000}, size_t{9'999}}) {
    uint32_t doorbell = qps[i].reply.sq.doorbell;
    uint32_t key_index = mrs[i].lkey >> 8;
    ASSERT_EQ(client.DoHandle(CommandOp::kDestroyQp, qps[i].handle), 0);
    ASSERT_EQ(client.DoHandle(CommandOp::kDeregMr, mrs[i].handle), 0);
    ASSERT_EQ(client.CreateQp(request, &qps[i]), 0);
    mrs[i] = client.MustRegMr(memory.data(), 1, kLocal);
    EXPECT_EQ(qps[i].reply.sq.doorbell, doorbell);
    EXPECT_EQ(mrs[i].lkey >> 8, key_index);
  }
  EXPECT_EQ(world.device->Stats().qps, 10'000u);
  world.Close(client);
  world.Settle();
  EXPECT_EQ(world.device->Stats().qps, 0u);
}

TEST_F(Objects, ThreadDomainsHaveDoorbellPagesWhileThereAreAny) {
  auto alloc = [&](shm::AllocTdReply* reply) {
    return client.ExecuteRaw(CommandOp::kAllocTd, nullptr, 0, reply, sizeof(*reply));
  };
  TestCq cq = client.MustCreateCq();
  std::vector<shm::AllocTdReply> tds(shm::kThreadDoorbellPages + 1);
  for (shm::AllocTdReply& td : tds) ASSERT_EQ(alloc(&td), 0);
  EXPECT_EQ(client.services.pages.size(), shm::kThreadDoorbellPages);
  for (size_t i = 0; i < tds.size(); ++i) {
    EXPECT_EQ(tds[i].place.bytes != 0, i < shm::kThreadDoorbellPages) << i;
    shm::CreateQpRequest request = client.QpRequest(Service::kRc, cq.handle);
    request.td = tds[i].td;
    TestQp qp;
    ASSERT_EQ(client.CreateQp(request, &qp), 0);
    EXPECT_EQ(qp.reply.sq.doorbell >= shm::kFirstThreadDoorbell, i < shm::kThreadDoorbellPages);
    EXPECT_EQ(client.DoHandle(CommandOp::kDeallocTd, tds[i].td), EBUSY);
    EXPECT_EQ(client.DoHandle(CommandOp::kDestroyQp, qp.handle), 0);
  }
  // Which page a QP rings in follows from its thread domain, and one that is free is used again.
  EXPECT_EQ(client.DoHandle(CommandOp::kDeallocTd, tds[3].td), 0);
  EXPECT_FALSE(client.services.pages.contains(3));
  shm::AllocTdReply again;
  ASSERT_EQ(alloc(&again), 0);
  EXPECT_NE(again.td, tds[3].td);
  EXPECT_NE(again.place.bytes, 0u);
  shm::CreateQpRequest request = client.QpRequest(Service::kRc, cq.handle);
  request.td = tds[3].td;  // stale
  TestQp qp;
  EXPECT_EQ(client.CreateQp(request, &qp), EINVAL);
  request.td = again.td;
  std::vector<TestQp> qps(shm::kThreadDoorbells + 1);
  for (size_t i = 0; i < qps.size(); ++i) {
    ASSERT_EQ(client.CreateQp(request, &qps[i]), 0);
    const uint32_t doorbell = qps[i].reply.sq.doorbell;
    // One more than the page has goes to the client's own.
    EXPECT_EQ(doorbell >= shm::kFirstThreadDoorbell, i < shm::kThreadDoorbells);
    if (i < shm::kThreadDoorbells) {
      EXPECT_EQ((doorbell - shm::kFirstThreadDoorbell) / shm::kThreadDoorbells, 3u);
    }
  }
  client.PostRecv(qps[5], 1, {});
  ASSERT_EQ(client.ToInit(qps[5], Service::kRc), 0);
  ASSERT_EQ(client.ToError(qps[5]), 0);
  client.PostRecv(qps[5], 2, {});  // by the doorbell alone
  world.Settle();
  EXPECT_EQ(client.PollAll(cq).size(), 2u);
  // The rest goes with the session.
  world.Close(client);
  world.Settle();
  EXPECT_TRUE(client.services.pages.empty());
}

}  // namespace
}  // namespace verbena::softnic::testing
