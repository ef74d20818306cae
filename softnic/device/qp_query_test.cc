// What a query tells of a QP, in every state of every service.
#include <gtest/gtest.h>

#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {
namespace {

constexpr Service kRc = Service::kRc;
constexpr Service kUc = Service::kUc;
constexpr Service kUd = Service::kUd;
constexpr uint32_t kFirstPsn = 0x123456;  // of ToRtr and ToRts
constexpr uint32_t kRemote = access::kRemoteWrite;

// The fields that change with a QP's states. Messages have three packets on RC and UC, one on UD.
struct Row {
  Service service;
  QpState state;
  uint32_t sq_psn, rq_psn;
  uint32_t path_mtu, qkey, port, hop_limit;
  uint32_t timeout, retries, rnr_retry, rnr_timer, rd_atomic, dest_rd_atomic;
  bool is_draining;
};

std::ostream& operator<<(std::ostream& out, const Row& row) {
  static const char* const kServices[] = {"RC", "UC", "UD"};
  return out << kServices[static_cast<int>(row.service)] << " in state "
             << static_cast<int>(row.state);
}

constexpr uint32_t kPsn = kFirstPsn;
constexpr Row kRows[] = {
    {kRc, QpState::kReset, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, false},
    {kRc, QpState::kInit, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, false},
    {kRc, QpState::kRtr, 0, kPsn + 3, 3, 0, 1, 64, 0, 0, 0, 1, 0, 4, false},
    {kRc, QpState::kRts, kPsn + 6, kPsn + 6, 3, 0, 1, 64, 14, 3, 2, 1, 4, 4, false},
    {kRc, QpState::kSqd, kPsn + 6, kPsn + 9, 3, 0, 1, 64, 14, 3, 2, 1, 4, 4, false},
    {kRc, QpState::kErr, kPsn + 9, kPsn + 9, 3, 0, 1, 64, 14, 3, 2, 1, 4, 4, false},
    {kUc, QpState::kReset, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, false},
    {kUc, QpState::kInit, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, false},
    {kUc, QpState::kRtr, 0, kPsn + 3, 3, 0, 1, 64, 0, 0, 0, 0, 0, 0, false},
    {kUc, QpState::kRts, kPsn + 6, kPsn + 6, 3, 0, 1, 64, 0, 0, 0, 0, 0, 0, false},
    {kUc, QpState::kSqd, kPsn + 6, kPsn + 9, 3, 0, 1, 64, 0, 0, 0, 0, 0, 0, false},
    {kUc, QpState::kSqe, kPsn + 6, kPsn + 9, 3, 0, 1, 64, 0, 0, 0, 0, 0, 0, false},
    {kUc, QpState::kErr, kPsn + 6, kPsn + 9, 3, 0, 1, 64, 0, 0, 0, 0, 0, 0, false},
    {kUd, QpState::kReset, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, false},
    {kUd, QpState::kInit, 0, 0, 0, 0x1111, 1, 0, 0, 0, 0, 0, 0, 0, false},
    {kUd, QpState::kRtr, 0, 0, 0, 0x1111, 1, 0, 0, 0, 0, 0, 0, 0, false},
    {kUd, QpState::kRts, kPsn + 2, 0, 0, 0x1111, 1, 0, 0, 0, 0, 0, 0, 0, false},
    {kUd, QpState::kSqd, kPsn + 2, 0, 0, 0x1111, 1, 0, 0, 0, 0, 0, 0, 0, false},
    {kUd, QpState::kSqe, kPsn + 2, 0, 0, 0x1111, 1, 0, 0, 0, 0, 0, 0, 0, false},
    {kUd, QpState::kErr, kPsn + 2, 0, 0, 0x1111, 1, 0, 0, 0, 0, 0, 0, 0, false},
};

class QpQueryTest : public ::testing::Test {
 protected:
  QpQueryTest()
      : a(world.AddClient(0)),
        b(world.AddClient(1)),
        cq_a(a.MustCreateCq(64)),
        cq_b(b.MustCreateCq(64)),
        mr_a(a.MustRegMr(memory_a, sizeof(memory_a), access::kLocalWrite | kRemote)),
        mr_b(b.MustRegMr(memory_b, sizeof(memory_b), access::kLocalWrite | kRemote)) {}

  shm::QpAttr Query() {
    shm::HandleRequest request{qp_a.handle, 0};
    shm::QueryQpReply reply{};
    EXPECT_EQ(a.Execute(shm::CommandOp::kQueryQp, request, &reply), 0);
    return reply.attr;
  }
  int To(QpState state) {
    shm::QpAttr attr{};
    attr.qp_state = static_cast<uint32_t>(state);
    return a.Modify(qp_a, attr, shm::qp_mask::kState);
  }
  // 1 KB is the path MTU: messages of 3 KB have three packets.
  void Send(TestClient& from, TestQp& qp, uint8_t* memory, const TestMr& mr, shm::Handle ah,
            Qpn remote) {
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kSend, 1);
    wqe.ah = ah;
    wqe.remote_qpn = remote.value;
    wqe.remote_qkey = 0x1111;
    from.Post(qp, wqe, {SgeOf(memory, service == kUd ? 1'024 : 3'072, mr.lkey)});
    world.Settle();
  }
  void SendToA() {
    a.PostRecv(qp_a, 1, {SgeOf(memory_a, 4'096, mr_a.lkey)});
    Send(b, qp_b, memory_b, mr_b, service == kUd ? b.CreateAh(world.GidOf(0)) : 0, qp_a.qpn);
  }
  void SendFromA() {
    b.PostRecv(qp_b, 1, {SgeOf(memory_b, 4'096, mr_b.lkey)});
    Send(a, qp_a, memory_a, mr_a, service == kUd ? a.CreateAh(world.GidOf(1)) : 0, qp_b.qpn);
  }
  void Check(QpState state) {
    for (const Row& row : kRows) {
      if (row.service != service || row.state != state) continue;
      CheckRow(row, Query());
      ++rows_checked;
    }
  }
  void CheckRow(const Row& row, const shm::QpAttr& attr) {
    SCOPED_TRACE(::testing::Message() << row);
    EXPECT_EQ(attr.qp_state, static_cast<uint32_t>(row.state));
    EXPECT_EQ(attr.cur_qp_state, static_cast<uint32_t>(row.state));
    EXPECT_EQ(attr.sq_psn, row.sq_psn);
    EXPECT_EQ(attr.rq_psn, row.rq_psn);
    EXPECT_EQ(attr.path_mtu, row.path_mtu);
    EXPECT_EQ(attr.path_mig_state, 0u);  // IBV_MIG_MIGRATED
    EXPECT_EQ(attr.qkey, row.qkey);
    EXPECT_EQ(attr.port_num, row.port);
    EXPECT_EQ(attr.pkey_index, 0u);
    EXPECT_EQ(attr.ah_attr.hop_limit, row.hop_limit);
    EXPECT_EQ(attr.ah_attr.is_global, row.hop_limit != 0 ? 1 : 0);
    EXPECT_EQ(attr.ah_attr.sgid_index, row.hop_limit != 0 ? 1 : 0);
    EXPECT_EQ(attr.ah_attr.port_num, row.hop_limit != 0 ? 1 : 0);
    Gid dgid = row.hop_limit != 0 ? world.GidOf(1) : Gid{};
    EXPECT_EQ(std::memcmp(attr.ah_attr.dgid, dgid.raw.data(), 16), 0);
    EXPECT_EQ(attr.dest_qp_num, row.hop_limit != 0 ? qp_b.qpn.value : 0);
    EXPECT_EQ(attr.timeout, row.timeout);
    EXPECT_EQ(attr.retry_cnt, row.retries);
    EXPECT_EQ(attr.rnr_retry, row.rnr_retry);
    EXPECT_EQ(attr.min_rnr_timer, row.rnr_timer);
    EXPECT_EQ(attr.max_rd_atomic, row.rd_atomic);
    EXPECT_EQ(attr.max_dest_rd_atomic, row.dest_rd_atomic);
    EXPECT_EQ(attr.sq_draining, row.is_draining ? 1 : 0);
    EXPECT_EQ(attr.rate_limit, 0u);
    const uint32_t reads =
        service == kRc ? access::kRemoteRead | access::kRemoteAtomic | access::kFlushGlobal : 0;
    const bool has_access = service != kUd && row.state != QpState::kReset;
    EXPECT_EQ(attr.qp_access_flags, has_access ? access::kLocalWrite | kRemote | reads : 0);
    EXPECT_EQ(attr.max_send_wr, qp_a.reply.max_send_wr);
    EXPECT_EQ(attr.max_recv_wr, qp_a.reply.max_recv_wr);
    EXPECT_EQ(attr.max_send_sge, qp_a.reply.max_send_sge);
    EXPECT_EQ(attr.max_recv_sge, qp_a.reply.max_recv_sge);
    EXPECT_EQ(attr.max_inline_bytes, qp_a.reply.max_inline_bytes);
  }

  // Through all states, with a message of either end where one may be sent.
  void Walk(Service walked) {
    service = walked;
    qp_a = a.MustCreateQp(service, cq_a);
    qp_b = b.MustCreateQp(service, cq_b);
    ASSERT_EQ(b.ToInit(qp_b, service), 0);
    ASSERT_EQ(b.ToRtr(qp_b, service, world.GidOf(0), qp_a.qpn), 0);
    ASSERT_EQ(b.ToRts(qp_b, service), 0);
    Check(QpState::kReset);
    ASSERT_EQ(a.ToInit(qp_a, service), 0);
    Check(QpState::kInit);
    ASSERT_EQ(a.ToRtr(qp_a, service, world.GidOf(1), qp_b.qpn), 0);
    SendToA();
    Check(QpState::kRtr);
    ASSERT_EQ(a.ToRts(qp_a, service), 0);
    SendToA();
    SendFromA();
    SendFromA();
    Check(QpState::kRts);
    ASSERT_EQ(To(QpState::kSqd), 0);
    SendToA();
    Check(QpState::kSqd);
    ASSERT_EQ(To(QpState::kRts), 0);
    if (service != kRc) {
      shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kRdmaRead, 9);  // not of this service
      a.Post(qp_a, wqe, {});
      world.Settle();
      Check(QpState::kSqe);
    } else {
      SendFromA();
    }
    ASSERT_EQ(a.ToError(qp_a), 0);
    Check(QpState::kErr);
    ASSERT_EQ(a.ToReset(qp_a), 0);
    Check(QpState::kReset);
  }

  alignas(64) uint8_t memory_a[4'096] = {};
  alignas(64) uint8_t memory_b[4'096] = {};
  TestWorld world;
  TestClient& a;
  TestClient& b;
  TestCq cq_a, cq_b;
  TestMr mr_a, mr_b;
  TestQp qp_a, qp_b;
  Service service = kRc;
  int rows_checked = 0;
};

TEST_F(QpQueryTest, RcInEveryState) {
  Walk(kRc);
  EXPECT_EQ(rows_checked, 7);
}
TEST_F(QpQueryTest, UcInEveryState) {
  Walk(kUc);
  EXPECT_EQ(rows_checked, 8);
}
TEST_F(QpQueryTest, UdInEveryState) {
  Walk(kUd);
  EXPECT_EQ(rows_checked, 8);
}

// While what was begun is not acknowledged, the queue drains.
TEST_F(QpQueryTest, TellsThatTheQueueDrains) {
  qp_a = a.MustCreateQp(kRc, cq_a);
  qp_b = b.MustCreateQp(kRc, cq_b);
  Connect(a, qp_a, b, qp_b, kRc);
  world.dma.is_held = true;
  SendFromA();
  ASSERT_EQ(To(QpState::kSqd), 0);
  EXPECT_EQ(Query().sq_draining, 1);
  world.dma.is_held = false;
  world.Settle();
  EXPECT_EQ(Query().sq_draining, 0);
  EXPECT_EQ(Query().qp_state, static_cast<uint32_t>(QpState::kSqd));
}

// A PSN of a former life must not be taken for today's.
TEST_F(QpQueryTest, AResetForgetsThePsns) {
  Walk(kRc);
  ASSERT_EQ(a.ToInit(qp_a, kRc), 0);
  EXPECT_EQ(Query().sq_psn, 0u);
  EXPECT_EQ(Query().rq_psn, 0u);
  ASSERT_EQ(a.ToError(qp_a), 0);
  EXPECT_EQ(Query().sq_psn, 0u);
  EXPECT_EQ(Query().rq_psn, 0u);
}

}  // namespace
}  // namespace verbena::softnic::testing
