// Shared receive queues.
#include <poll.h>

#include <cerrno>
#include <fstream>
#include <set>
#include <string>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

using Verb_ibv_create_srq = VerbsTest;
using Verb_ibv_modify_srq = VerbsTest;
using Verb_ibv_query_srq = VerbsTest;
using Verb_ibv_destroy_srq = VerbsTest;
using Verb_ibv_post_srq_recv = VerbsTest;

// Calls of write(2) by this process.
long Writes() {
  std::ifstream file("/proc/self/io");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("syscw: ")) return std::stol(line.substr(7));
  }
  return -1;
}

// Where posting rings for a NIC that sleeps, it is a write to an eventfd. Between two receives
// there is time for the NIC to go to sleep.
long WritesOfReceives(Side& side) {
  const long before = Writes();
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(side.PostRecv(i, i * 8, 8), 0);
    poll(nullptr, 0, 2);
  }
  return Writes() - before;
}

class SrqTest : public VerbsTest {
 protected:
  // a sends, b receives through its SRQ.
  void SetUp() override {
    a = std::make_unique<Side>(SideOptions{});
    b = std::make_unique<Side>(SideOptions{.nic = 1, .with_srq = true});
    Connect(*a, *b, {});
  }
};
using Verb_ibv_post_recv = SrqTest;

TEST_F(Verb_ibv_create_srq, RefusesMoreThanTheDeviceHas) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_device_attr attr = {};
  ASSERT_EQ(ibv_query_device(a->context, &attr), 0);
  ibv_srq_init_attr init = {};
  init.attr = {static_cast<uint32_t>(attr.max_srq_wr) + 1, 1, 0};
  EXPECT_EQ(ibv_create_srq(a->pd, &init), nullptr);
  init.attr = {16, static_cast<uint32_t>(attr.max_srq_sge) + 1, 0};
  EXPECT_EQ(ibv_create_srq(a->pd, &init), nullptr);
  init.attr = {16, 2, 0};
  ibv_srq* srq = ibv_create_srq(a->pd, &init);
  ASSERT_NE(srq, nullptr);
  EXPECT_GE(init.attr.max_wr, 16u);
  EXPECT_GE(init.attr.max_sge, 2u);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

// Source: ibv_create_srq(3): "irrelevant for ibv_create_srq".
TEST_F(Verb_ibv_create_srq, TakesNoNoteOfALimit) {
  a = std::make_unique<Side>(SideOptions{});
  for (uint32_t limit : {1u, 100u, ~0u}) {
    ibv_srq_init_attr init = {};
    init.attr = {16, 1, limit};
    ibv_srq* srq = ibv_create_srq(a->pd, &init);
    ASSERT_NE(srq, nullptr) << "limit " << limit << ", errno " << errno;
    ibv_srq_attr attr = {};
    EXPECT_EQ(ibv_query_srq(srq, &attr), 0);
    EXPECT_EQ(attr.srq_limit, 0u) << "limit " << limit << " is armed";
    EXPECT_EQ(ibv_destroy_srq(srq), 0);
  }
}

TEST_F(Verb_ibv_destroy_srq, IsBusyWhileAQpUsesIt) {
  a = std::make_unique<Side>(SideOptions{.with_srq = true});
  EXPECT_EQ(ibv_destroy_srq(a->srq), EBUSY);
}

TEST_F(Verb_ibv_post_recv, IsRefusedOnAQpWithAnSrq) {
  ibv_recv_wr wr = {};
  ibv_recv_wr* bad = nullptr;
  EXPECT_NE(ibv_post_recv(b->qp, &wr, &bad), 0);
}

TEST_F(Verb_ibv_post_recv, LeavesASleepingNicAlone) {
  if (Writes() < 0) GTEST_SKIP() << "this kernel counts no system calls";
  EXPECT_EQ(WritesOfReceives(*b), 0) << "to an SRQ";
  Side with_rq(SideOptions{}), peer(SideOptions{.nic = 1});
  Connect(with_rq, peer, {});
  EXPECT_EQ(WritesOfReceives(with_rq), 0);
  // What is posted after that is flushed, and the NIC has to hear of it.
  ASSERT_EQ(with_rq.ToState(IBV_QPS_ERR), 0);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(with_rq.WaitRecv().status, IBV_WC_WR_FLUSH_ERR);
  poll(nullptr, 0, 2);
  ASSERT_EQ(with_rq.PostRecv(77, 0, 8), 0);
  EXPECT_EQ(with_rq.WaitRecv().wr_id, 77u);
}

TEST_F(Verb_ibv_post_srq_recv, FeedsEveryQpOfTheQueue) {
  constexpr int kSenders = 8, kEach = 40;
  Side receiver(SideOptions{.nic = 1, .cqe = 1024, .max_recv_wr = 512, .with_srq = true});
  std::vector<std::unique_ptr<Side>> senders;
  std::vector<ibv_qp*> qps;
  for (int i = 0; i < kSenders; ++i) {
    senders.push_back(std::make_unique<Side>(SideOptions{}));
    ibv_qp_init_attr init = {};
    init.send_cq = receiver.send_cq;
    init.recv_cq = receiver.recv_cq;
    init.srq = receiver.srq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {8, 0, 1, 0, 0};
    qps.push_back(ibv_create_qp(receiver.pd, &init));
    ASSERT_NE(qps.back(), nullptr);
    std::swap(receiver.qp, qps.back());  // Connect looks at receiver.qp
    Connect(*senders[i], receiver, {});
    std::swap(receiver.qp, qps.back());
  }
  for (uint64_t i = 0; i < kSenders * kEach; ++i) {
    ASSERT_EQ(receiver.PostRecv(i, (i % 512) * 64, 64), 0);
  }
  for (int k = 0; k < kEach; ++k) {
    for (auto& sender : senders) ASSERT_EQ(sender->Send(k, 0, 16), 0);
  }
  std::set<uint64_t> seen;
  std::set<uint32_t> from;
  for (int i = 0; i < kSenders * kEach; ++i) {
    ibv_wc wc = receiver.WaitRecv();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_TRUE(seen.insert(wc.wr_id).second) << "a receive was used twice";
    from.insert(wc.qp_num);
  }
  EXPECT_EQ(from.size(), static_cast<size_t>(kSenders));
  for (ibv_qp* qp : qps) EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Verb_ibv_post_srq_recv, FullQueueIsRefused) {
  a = std::make_unique<Side>(SideOptions{.max_recv_wr = 16, .with_srq = true});
  ibv_srq_attr attr = {};
  ASSERT_EQ(ibv_query_srq(a->srq, &attr), 0);
  for (uint32_t i = 0; i < attr.max_wr; ++i) ASSERT_EQ(a->PostRecv(i, 0, 8), 0);
  EXPECT_EQ(a->PostRecv(99, 0, 8), ENOMEM);
}

TEST_F(Verb_ibv_post_recv, EmptyQueueIsReceiverNotReady) {
  ASSERT_EQ(a->Send(1, 0, 8), 0);
  ibv_wc wc = {};
  EXPECT_TRUE(NeverWithin([&] { return ibv_poll_cq(a->send_cq, 1, &wc) != 0; }));
  ASSERT_EQ(b->PostRecv(1, 0, 8), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
}

TEST_F(Verb_ibv_modify_srq, LimitEventComesOnceWhenTheLevelFallsBelow) {
  a = std::make_unique<Side>(SideOptions{});
  b = std::make_unique<Side>(SideOptions{.nic = 1, .with_srq = true});
  Connect(*a, *b, {});
  for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(b->PostRecv(i, 0, 8), 0);
  ibv_srq_attr attr = {};
  attr.srq_limit = 8;
  ASSERT_EQ(ibv_modify_srq(b->srq, &attr, IBV_SRQ_LIMIT), 0);
  ASSERT_EQ(a->Send(1, 0, 8), 0);
  ASSERT_EQ(a->Send(2, 0, 8), 0);
  EXPECT_FALSE(b->WaitEvent(IBV_EVENT_SRQ_LIMIT_REACHED, Milliseconds(50))) << "8 are left";
  ASSERT_EQ(a->Send(3, 0, 8), 0);
  EXPECT_TRUE(b->WaitEvent(IBV_EVENT_SRQ_LIMIT_REACHED));
  ASSERT_EQ(ibv_query_srq(b->srq, &attr), 0);
  EXPECT_EQ(attr.srq_limit, 0u) << "the event disarms the limit";
  ASSERT_EQ(a->Send(4, 0, 8), 0);
  EXPECT_FALSE(b->WaitEvent(IBV_EVENT_SRQ_LIMIT_REACHED, Milliseconds(50)));
}

TEST_F(Verb_ibv_modify_srq, ANewSizeAndALimitThatFitsItGoTogether) {
  b = std::make_unique<Side>(SideOptions{.max_recv_wr = 64, .with_srq = true});
  ibv_srq_attr attr = {};
  attr.srq_limit = 30;
  ASSERT_EQ(ibv_modify_srq(b->srq, &attr, IBV_SRQ_LIMIT), 0);
  attr = {16, 0, 0};
  EXPECT_EQ(ibv_modify_srq(b->srq, &attr, IBV_SRQ_MAX_WR), EINVAL) << "the limit of 30 stays";
  attr = {16, 0, 2};
  EXPECT_EQ(ibv_modify_srq(b->srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), 0);
  ASSERT_EQ(ibv_query_srq(b->srq, &attr), 0);
  EXPECT_EQ(attr.max_wr, 16u);
  EXPECT_EQ(attr.srq_limit, 2u);
}

TEST_F(Verb_ibv_modify_srq, ResizeKeepsWhatIsPosted) {
  a = std::make_unique<Side>(SideOptions{});
  b = std::make_unique<Side>(SideOptions{.nic = 1, .max_recv_wr = 16, .with_srq = true});
  Connect(*a, *b, {});
  for (uint64_t i = 0; i < 16; ++i) ASSERT_EQ(b->PostRecv(i, i * 8, 8), 0);
  ibv_srq_attr attr = {};
  attr.max_wr = 200;
  ASSERT_EQ(ibv_modify_srq(b->srq, &attr, IBV_SRQ_MAX_WR), 0);
  ASSERT_EQ(ibv_query_srq(b->srq, &attr), 0);
  EXPECT_GE(attr.max_wr, 200u);
  for (uint64_t i = 16; i < 150; ++i) ASSERT_EQ(b->PostRecv(i, i * 8, 8), 0) << i;
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 150; ++i) {
    ASSERT_EQ(a->Send(i, 0, 8), 0);
    ASSERT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
    ibv_wc wc = b->WaitRecv();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    seen.insert(wc.wr_id);
  }
  EXPECT_EQ(seen.size(), 150u);
}

TEST_F(Verb_ibv_query_srq, TellsWhatWasSet) {
  b = std::make_unique<Side>(SideOptions{.with_srq = true});
  ibv_srq_attr attr = {};
  ASSERT_EQ(ibv_query_srq(b->srq, &attr), 0);
  EXPECT_GE(attr.max_wr, b->options.max_recv_wr);
  EXPECT_GE(attr.max_sge, b->options.max_sge);
  EXPECT_EQ(attr.srq_limit, 0u);
}

TEST_F(Verb_ibv_destroy_srq, LastWqeEventTellsWhenAFailedQpIsDone) {
  b = std::make_unique<Side>(SideOptions{.with_srq = true});
  ASSERT_EQ(b->ToInit(), 0);
  ASSERT_EQ(b->ToState(IBV_QPS_ERR), 0);
  EXPECT_TRUE(b->WaitEvent(IBV_EVENT_QP_LAST_WQE_REACHED));
}

}  // namespace
}  // namespace verbena::conformance
