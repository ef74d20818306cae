// Queues whose entries a program keeps in memory of its own.
#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

using shm::CommandOp;
using shm::WrOpcode;

constexpr uint32_t kAll = access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead;

// What an allocator gave for one queue.
struct Block {
  explicit Block(size_t bytes = 64 * 1024)
      : bytes(bytes), memory(static_cast<std::byte*>(std::aligned_alloc(4'096, bytes))) {
    std::memset(memory, 0, bytes);
  }
  ~Block() { std::free(memory); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  uint64_t addr() const { return reinterpret_cast<uint64_t>(memory); }

  size_t bytes;
  std::byte* memory;
};

// Both ends of a connection have all their queues in memory of their own.
class EntryMemoryTest : public ::testing::Test {
 protected:
  EntryMemoryTest()
      : a(world.AddClient(0)),
        b(world.AddClient(1)),
        mr_a(a.MustRegMr(data_a, sizeof(data_a), kAll)),
        mr_b(b.MustRegMr(data_b, sizeof(data_b), kAll)) {
    EXPECT_EQ(CreateCq(a, 64, cqe_a.addr(), 0, &cq_a), 0);
    channel = b.CreateChannel();
    EXPECT_EQ(CreateCq(b, 64, cqe_b.addr(), channel, &cq_b), 0);
  }

  int CreateCq(TestClient& client, uint32_t entries, uint64_t memory, shm::Handle of_channel,
               TestCq* out) {
    shm::CreateCqRequest request{};
    request.entries = entries;
    request.memory = memory;
    request.channel = of_channel;
    shm::CreateCqReply reply;
    int error = client.Execute(CommandOp::kCreateCq, request, &reply);
    if (error != 0) return error;
    out->handle = reply.cq;
    out->ring = CqConsumer(RingMemory(client.MapQueue(reply.place), reply.place.bytes),
                           reply.place.entries, reinterpret_cast<void*>(memory));
    return 0;
  }
  static WorkQueueProducer ProducerOf(TestClient& client, const shm::QueuePlace& place,
                                      uint64_t memory) {
    return WorkQueueProducer(RingMemory(client.MapQueue(place), place.bytes), place.entries,
                             place.stride_bytes, place.entries, reinterpret_cast<void*>(memory));
  }
  int CreateQp(TestClient& client, Service service, const TestCq& cq, uint64_t sq, uint64_t rq,
               shm::Handle srq, TestQp* out) {
    shm::CreateQpRequest request = client.QpRequest(service, cq.handle);
    request.sq_memory = sq;
    request.rq_memory = rq;
    request.srq = srq;
    int error = client.Execute(CommandOp::kCreateQp, request, &out->reply);
    if (error != 0) return error;
    out->handle = out->reply.qp;
    out->qpn = Qpn{out->reply.qpn};
    out->sq = ProducerOf(client, out->reply.sq, sq);
    if (srq == 0) out->rq = ProducerOf(client, out->reply.rq, rq);
    return 0;
  }
  void ConnectBoth(Service service) {
    ASSERT_EQ(CreateQp(a, service, cq_a, sq_a.addr(), rq_a.addr(), 0, &qp_a), 0);
    ASSERT_EQ(CreateQp(b, service, cq_b, sq_b.addr(), rq_b.addr(), 0, &qp_b), 0);
    Connect(a, qp_a, b, qp_b, service);
  }
  void Send(uint64_t wr_id, const char* text) {
    a.PostInline(qp_a, MakeWqe(WrOpcode::kSend, wr_id), text);
  }
  void PostRecv(uint64_t wr_id) {
    b.PostRecv(qp_b, wr_id, {SgeOf(data_b + 64 * (wr_id % 64), 64, mr_b.lkey)});
  }

  alignas(64) uint8_t data_a[4'096] = {};
  alignas(64) uint8_t data_b[4'096] = {};
  Block cqe_a, cqe_b, sq_a, rq_a, sq_b, rq_b;  // outlive the world's DMA
  TestWorld world;
  TestClient& a;
  TestClient& b;
  TestMr mr_a, mr_b;
  shm::Handle channel = 0;
  TestCq cq_a, cq_b;
  TestQp qp_a, qp_b;
};

TEST_F(EntryMemoryTest, WorkIsTakenFromThereAndCompletesThere) {
  ConnectBoth(Service::kRc);
  PostRecv(7);
  Send(8, "hello");
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(sq_a.memory), 8u);
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(rq_b.memory), 7u);
  world.Settle();
  const auto* cqe = reinterpret_cast<const shm::Cqe*>(cqe_b.memory);
  EXPECT_EQ(cqe->wr_id, 7u);
  EXPECT_EQ(cqe->valid.load(), 1u);
  EXPECT_EQ(b.Poll(cq_b)->byte_len, 5u);
  EXPECT_EQ(a.Poll(cq_a)->wr_id, 8u);
  EXPECT_EQ(std::memcmp(data_b + 64 * 7, "hello", 5), 0);
}

TEST_F(EntryMemoryTest, TheNicTakesWhatStandsThereAndNotInTheArena) {
  ConnectBoth(Service::kRc);
  PostRecv(1);
  world.dma.is_held = true;  // the NIC has not fetched it yet
  Send(8, "hello");
  std::memcpy(sq_a.memory + offsetof(shm::SendWqe, small_body), "world", 5);
  world.dma.is_held = false;
  world.Settle();
  EXPECT_EQ(std::memcmp(data_b + 64, "world", 5), 0);
}

TEST_F(EntryMemoryTest, RingsGoRoundManyTimes) {
  ConnectBoth(Service::kRc);
  const uint32_t depth = qp_a.reply.sq.entries;
  uint64_t sent = 0, received = 0;
  for (int round = 0; round < 20; ++round) {
    const uint32_t count = 1 + static_cast<uint32_t>(round) * 7 % depth;
    for (uint32_t i = 0; i < count; ++i) PostRecv(sent + i);
    for (uint32_t i = 0; i < count; ++i) Send(sent + i, "x");
    sent += count;
    world.Settle();
    for (const Wc& wc : b.PollAll(cq_b)) EXPECT_EQ(wc.wr_id, received++);
    EXPECT_EQ(a.PollAll(cq_a).size(), count);
  }
  EXPECT_EQ(received, sent);
  EXPECT_GT(sent, 3 * depth);
}

// A receive that is posted counts, though the NIC has not seen it yet: no RNR NAK, nothing dropped.
TEST_F(EntryMemoryTest, MessageWaitsForAReceiveThatIsBeingFetched) {
  for (Service service : {Service::kRc, Service::kUc}) {
    ConnectBoth(service);
    PostRecv(3);
    Send(4, "early");
    world.Settle();
    EXPECT_EQ(b.PollAll(cq_b).size(), 1u);
    Send(5, "none");
    world.Settle();  // none posted: RC is told so, UC drops it
    EXPECT_TRUE(b.PollAll(cq_b).empty());
    EXPECT_EQ(a.DoHandle(CommandOp::kDestroyQp, qp_a.handle), 0);
    EXPECT_EQ(b.DoHandle(CommandOp::kDestroyQp, qp_b.handle), 0);
    a.PollAll(cq_a);
  }
}

TEST_F(EntryMemoryTest, EventComesAfterTheEntryIsThere) {
  ConnectBoth(Service::kRc);
  PostRecv(1);
  cq_b.ring.Arm(false);
  Send(2, "a");
  auto& fd = b.services.open_channels.at(channel);
  const auto* cqe = reinterpret_cast<const shm::Cqe*>(cqe_b.memory);
  for (bool moved = true; moved && fd.empty();) {
    moved = world.device->Run(world.now, 64);
    moved |= world.dma.Step(*world.device, world.now);
    EXPECT_TRUE(fd.empty() || cqe->valid.load() == 1u);
  }
  EXPECT_EQ(fd.size(), 1u);
}

TEST_F(EntryMemoryTest, FailureFlushesAllThatIsPosted) {
  ConnectBoth(Service::kRc);
  const uint32_t depth = qp_b.reply.rq.entries;
  for (uint32_t i = 0; i < depth; ++i) PostRecv(i);
  ASSERT_EQ(b.ToError(qp_b), 0);
  world.Settle();
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), depth);
  for (uint32_t i = 0; i < depth; ++i) {
    EXPECT_EQ(wcs[i].wr_id, i);
    EXPECT_EQ(wcs[i].status, WcStatus::kWrFlushErr);
  }
  PostRecv(99);  // in the error state
  world.Settle();
  EXPECT_EQ(b.Poll(cq_b)->wr_id, 99u);
}

TEST_F(EntryMemoryTest, ResetForgetsWhatIsBeingFetched) {
  ConnectBoth(Service::kRc);
  world.dma.is_held = true;
  Send(1, "old");
  shm::QpAttr attr{};
  attr.qp_state = static_cast<uint32_t>(QpState::kReset);
  shm::ModifyQpRequest request{qp_a.handle, shm::qp_mask::kState, attr};
  uint32_t slot = a.Begin(CommandOp::kModifyQp, &request, sizeof(request));
  EXPECT_FALSE(a.IsDone(slot));  // the fetch may still write into the ring
  world.dma.is_held = false;
  world.Settle();
  EXPECT_TRUE(a.IsDone(slot));
  qp_a.sq.Reset();
  qp_a.rq.Reset();
  ASSERT_EQ(b.ToReset(qp_b), 0);
  Connect(a, qp_a, b, qp_b, Service::kRc);
  PostRecv(5);
  Send(6, "new");
  world.Settle();
  EXPECT_EQ(b.Poll(cq_b)->byte_len, 3u);
  std::vector<Wc> wcs = a.PollAll(cq_a);
  ASSERT_EQ(wcs.size(), 1u);
  EXPECT_EQ(wcs[0].wr_id, 6u);
}

TEST_F(EntryMemoryTest, DestroyWaitsForWhatIsMoving) {
  ConnectBoth(Service::kRc);
  const size_t regions = world.dma.regions.size();
  const size_t queues = a.services.queues.size();
  world.dma.is_held = true;
  Send(1, "x");
  shm::HandleRequest request{qp_a.handle, 0};
  uint32_t slot = a.Begin(CommandOp::kDestroyQp, &request, sizeof(request));
  EXPECT_FALSE(a.IsDone(slot));
  EXPECT_EQ(world.dma.regions.size(), regions);
  EXPECT_EQ(a.services.queues.size(), queues);
  world.dma.is_held = false;
  world.Settle();
  EXPECT_TRUE(a.IsDone(slot));
  EXPECT_EQ(world.dma.regions.size(), regions - 2);  // SQ and RQ
  EXPECT_EQ(a.services.queues.size(), queues - 2);
  EXPECT_EQ(a.DoHandle(CommandOp::kDestroyCq, cq_a.handle), 0);
  EXPECT_EQ(world.dma.regions.size(), regions - 3);
}

TEST_F(EntryMemoryTest, ResizedCqHasAllThatIsNotPolled) {
  ConnectBoth(Service::kRc);
  for (int i = 0; i < 6; ++i) PostRecv(static_cast<uint64_t>(i));
  for (int i = 0; i < 6; ++i) Send(100, "m");
  world.Settle();
  EXPECT_EQ(b.Poll(cq_b)->wr_id, 0u);
  Block bigger;
  shm::ResizeCqRequest request{cq_b.handle, 200, bigger.addr()};
  shm::CreateCqReply reply;
  ASSERT_EQ(b.Execute(CommandOp::kResizeCq, request, &reply), 0);
  cq_b.ring.MoveTo(RingMemory(b.MapQueue(reply.place), reply.place.bytes), reply.place.entries,
                   bigger.memory);
  for (uint64_t i = 1; i < 6; ++i) EXPECT_EQ(b.Poll(cq_b)->wr_id, i);
  PostRecv(6);
  Send(100, "m");
  world.Settle();
  EXPECT_EQ(b.Poll(cq_b)->wr_id, 6u);
  // One kind of memory does not become the other.
  request.memory = 0;
  EXPECT_EQ(b.Execute(CommandOp::kResizeCq, request, &reply), EINVAL);
  // The world ends while the block is still there.
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyQp, qp_b.handle), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroyCq, cq_b.handle), 0);
}

TEST_F(EntryMemoryTest, SrqFeedsSeveralQpsAndResizes) {
  Block memory, bigger;
  TestSrq srq;
  shm::CreateSrqRequest create{};
  create.pd = b.pd;
  create.max_wr = 8;
  create.max_sge = 1;
  create.memory = memory.addr();
  ASSERT_EQ(b.Execute(CommandOp::kCreateSrq, create, &srq.reply), 0);
  srq.handle = srq.reply.srq;
  srq.ring = ProducerOf(b, srq.reply.place, memory.addr());
  TestQp from[2], to[2];
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(CreateQp(a, Service::kRc, cq_a, 0, 0, 0, &from[i]), 0);
    ASSERT_EQ(CreateQp(b, Service::kRc, cq_b, 0, 0, srq.handle, &to[i]), 0);
    Connect(a, from[i], b, to[i], Service::kRc);
  }
  auto post = [&](uint64_t wr_id) {
    b.PostSrqRecv(srq, wr_id, {SgeOf(data_b + 64 * wr_id, 64, mr_b.lkey)});
  };
  for (uint64_t i = 0; i < 8; ++i) post(i);
  for (int i = 0; i < 4; ++i) a.PostInline(from[i % 2], MakeWqe(WrOpcode::kSend, 1), "s");
  world.Settle();
  EXPECT_EQ(b.PollAll(cq_b).size(), 4u);

  // Resized while a fetch is under way: it is forgotten, and made again from the new place.
  for (uint64_t i = 8; i < 12; ++i) post(i);
  for (int i = 0; i < 4; ++i) a.PostInline(from[i % 2], MakeWqe(WrOpcode::kSend, 2), "s");
  world.Settle();
  world.dma.is_held = true;
  for (int i = 0; i < 2; ++i) a.PostInline(from[i], MakeWqe(WrOpcode::kSend, 3), "t");
  world.device->Run(world.now, 64);
  srq.ring.CopyTo(bigger.memory, 32);
  shm::ModifySrqRequest modify{srq.handle, shm::kSrqMaxWr, 32, 0, bigger.addr()};
  uint32_t slot = b.Begin(CommandOp::kModifySrq, &modify, sizeof(modify));
  EXPECT_FALSE(b.IsDone(slot));
  world.dma.is_held = false;
  world.Settle();
  ASSERT_TRUE(b.IsDone(slot));
  shm::ModifySrqReply reply;
  std::memcpy(&reply, b.services.completed[slot].reply.data(), sizeof(reply));
  srq.ring.MoveTo(RingMemory(b.MapQueue(reply.place), reply.place.bytes), reply.place.entries,
                  reply.max_wr, bigger.memory);
  std::memset(memory.memory, 0xff, memory.bytes);  // nobody looks there any more
  post(12);
  for (int i = 0; i < 3; ++i) a.PostInline(from[i % 2], MakeWqe(WrOpcode::kSend, 4), "u");
  world.Settle();
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), 9u);
  for (uint64_t i = 0; i < wcs.size(); ++i) {
    EXPECT_EQ(wcs[i].wr_id, 4 + i);
    EXPECT_EQ(wcs[i].status, WcStatus::kSuccess);
  }
  for (TestQp& qp : to) EXPECT_EQ(b.DoHandle(CommandOp::kDestroyQp, qp.handle), 0);
  EXPECT_EQ(b.DoHandle(CommandOp::kDestroySrq, srq.handle), 0);
}

TEST_F(EntryMemoryTest, MulticastWaitsForAReceiveToo) {
  ASSERT_EQ(CreateQp(a, Service::kUd, cq_a, sq_a.addr(), rq_a.addr(), 0, &qp_a), 0);
  ASSERT_EQ(CreateQp(b, Service::kUd, cq_b, sq_b.addr(), rq_b.addr(), 0, &qp_b), 0);
  for (auto [client, qp] : {std::pair{&a, &qp_a}, std::pair{&b, &qp_b}}) {
    ASSERT_EQ(client->ToInit(*qp, Service::kUd), 0);
    ASSERT_EQ(client->ToRtr(*qp, Service::kUd, Gid{}, Qpn{0}), 0);
    ASSERT_EQ(client->ToRts(*qp, Service::kUd), 0);
  }
  shm::McastRequest attach{qp_b.handle, 0, {}};
  Gid group;
  group.raw[0] = 0xff;
  group.raw[1] = 0x0e;
  group.raw[15] = 9;
  std::memcpy(attach.gid, group.raw.data(), 16);
  ASSERT_EQ(b.ExecuteRaw(CommandOp::kAttachMcast, &attach, sizeof(attach), nullptr, 0), 0);
  PostRecv(1);
  shm::SendWqe wqe = MakeWqe(WrOpcode::kSend, 2);
  wqe.ah = a.CreateAh(group);
  wqe.remote_qpn = 0xff'ffff;
  wqe.remote_qkey = 0x1111;
  // 40 bytes of GRH come first, and fit.
  a.PostInline(qp_a, wqe, "all");
  world.Settle();
  std::vector<Wc> wcs = b.PollAll(cq_b);
  ASSERT_EQ(wcs.size(), 1u);
  EXPECT_EQ(wcs[0].byte_len, 43u);
  EXPECT_EQ(b.ExecuteRaw(CommandOp::kDetachMcast, &attach, sizeof(attach), nullptr, 0), 0);
}

TEST_F(EntryMemoryTest, WhatCantBeReadCostsTheQp) {
  ConnectBoth(Service::kRc);
  world.dma.bad_addr = sq_a.addr();
  Send(1, "x");
  world.Settle();
  EXPECT_EQ(a.StateOf(qp_a), QpState::kErr);
  EXPECT_EQ(a.TakeAsyncEvents(), std::vector{EventType::kQpFatal});
  EXPECT_EQ(b.StateOf(qp_b), QpState::kRts);
  world.dma.bad_addr = 0;
}

TEST_F(EntryMemoryTest, WhatCantBeWrittenCostsTheCq) {
  ConnectBoth(Service::kRc);
  PostRecv(1);
  world.dma.bad_addr = cqe_b.addr() + 8;
  Send(2, "x");
  world.Settle();
  std::vector<EventType> events = b.TakeAsyncEvents();
  EXPECT_EQ(std::count(events.begin(), events.end(), EventType::kCqErr), 1);
  EXPECT_EQ(std::count(events.begin(), events.end(), EventType::kQpFatal), 1);
  EXPECT_EQ(a.Poll(cq_a)->status, WcStatus::kSuccess);  // it had arrived
  world.dma.bad_addr = 0;
}

TEST_F(EntryMemoryTest, IndexThatLiesCostsTheQp) {
  ConnectBoth(Service::kRc);
  auto* head = reinterpret_cast<shm::WorkQueueHead*>(a.MapQueue(qp_a.reply.sq));
  head->producer.store(qp_a.reply.sq.entries + 1);
  a.Ring(qp_a);
  world.Settle();
  EXPECT_EQ(a.TakeAsyncEvents(), std::vector{EventType::kQpFatal});
  EXPECT_EQ(world.device->Stats().hostile_acts, 1u);
}

TEST_F(EntryMemoryTest, CreationWithWrongMemoryKeepsNothing) {
  const size_t regions = world.dma.regions.size();
  const size_t queues = a.services.queues.size();
  TestQp qp;
  TestCq cq;
  EXPECT_EQ(CreateQp(a, Service::kRc, cq_a, sq_a.addr() + 8, 0, 0, &qp), EINVAL);
  EXPECT_EQ(CreateQp(a, Service::kRc, cq_a, sq_a.addr(), ~uint64_t{63}, 0, &qp), EINVAL);
  EXPECT_EQ(CreateCq(a, 64, ~uint64_t{63}, 0, &cq), EINVAL);
  world.dma.add_error = EOPNOTSUPP;
  EXPECT_EQ(CreateCq(a, 64, cqe_a.addr(), 0, &cq), EOPNOTSUPP);
  EXPECT_EQ(CreateQp(a, Service::kRc, cq_a, 0, rq_a.addr(), 0, &qp), EOPNOTSUPP);
  EXPECT_EQ(world.dma.regions.size(), regions);
  EXPECT_EQ(a.services.queues.size(), queues);
  world.dma.add_error = 0;
}

TEST_F(EntryMemoryTest, SessionThatEndsMeanwhileLeavesNothing) {
  ConnectBoth(Service::kRc);
  PostRecv(1);
  world.dma.held_session = a.id;
  Send(2, "x");
  world.device->Run(world.now, 64);
  world.Close(a);
  EXPECT_FALSE(world.device->SessionIsGone(a.id));
  world.dma.held_session = 0;
  world.Settle();
  EXPECT_TRUE(world.device->SessionIsGone(a.id));
  EXPECT_TRUE(a.services.queues.empty());
}

}  // namespace
}  // namespace verbena::softnic::testing
