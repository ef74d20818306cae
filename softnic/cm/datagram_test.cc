// UD services (SIDR) and multicast.
#include <errno.h>

#include "softnic/cm/test_world.h"

namespace verbena::softnic {
namespace {

using shm::CmOp;
using transport::cm::SidrRep;
using transport::cm::SidrReq;

class CmDatagram : public CmWorld {
 protected:
  shm::CmReply Join(const Program& program, shm::CmHandle id, const shm::CmAddress& group,
                    uint64_t cookie = 0x3c, uint16_t flags = 0) {
    shm::CmRequest request = RequestOf(CmOp::kJoinMcast, id);
    request.join = {cookie, group, flags};
    return Ask(program, request);
  }
  shm::CmHandle NewBoundId(const Program& program, const char* address) {
    const shm::CmHandle id = NewId(program, RDMA_PS_UDP);
    EXPECT_EQ(Bind(program, id, At(address)), 0);
    return id;
  }
  Pair pair_;
};

TEST_F(CmDatagram, AServiceTellsItsQp) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_, RDMA_PS_UDP));
  EXPECT_EQ(last_.is_ud, 1);
  EXPECT_EQ(last_.param.private_data_len, 180);
  EXPECT_EQ(DataOf(last_.param, 5), "hello");
  EXPECT_EQ(std::get<SidrReq>(sent_.at(0)).service_id.value, 0x0111'1c06u);
  const shm::CmQpAttr attr =
      Ask(pair_.client, CmOp::kInitQpAttr, pair_.active, IBV_QPS_INIT).qp_attr;
  EXPECT_EQ(attr.mask,
            static_cast<uint32_t>(IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
  EXPECT_EQ(attr.qkey, static_cast<uint32_t>(RDMA_UDP_QKEY));
  ASSERT_EQ(Accept(pair_.server, pair_.passive, ParamOf(0x22, "here I am")), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_ESTABLISHED));
  EXPECT_EQ(last_.is_ud, 1);
  EXPECT_EQ(last_.param.qp_num, 0x22u);
  EXPECT_EQ(last_.param.qkey, static_cast<uint32_t>(RDMA_UDP_QKEY));
  EXPECT_EQ(last_.param.private_data_len, 136);
  EXPECT_EQ(DataOf(last_.param, 9), "here I am");
  EXPECT_EQ(std::memcmp(last_.ah.dgid, GidOf(At("10.0.0.2")).raw.data(), 16), 0);
  EXPECT_EQ(last_.ah.sgid_index, 1);
  EXPECT_EQ(last_.ah.port_num, 1);
  EXPECT_EQ(Do(pair_.client, CmOp::kDisconnect, pair_.active), 0) << "of what never was";
  EXPECT_EQ(CountersOf(0).communications + CountersOf(1).communications, 0u);
}

TEST_F(CmDatagram, AServiceMayHaveAQkeyOfItsOwn) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_, RDMA_PS_UDP));
  shm::CmConnParam param = ParamOf(0x22);
  param.qkey = 0x777;
  ASSERT_EQ(Accept(pair_.server, pair_.passive, param), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_ESTABLISHED));
  EXPECT_EQ(last_.param.qkey, 0x777u);
}

TEST_F(CmDatagram, AQkeyThatTheClientsQpHasNotIsAnError) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_, RDMA_PS_UDP));
  ASSERT_EQ(Ask(pair_.client, CmOp::kInitQpAttr, pair_.active, IBV_QPS_INIT).error, 0);
  shm::CmConnParam param = ParamOf(0x22);
  param.qkey = 0x777;
  ASSERT_EQ(Accept(pair_.server, pair_.passive, param), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_ADDR_ERROR, -EINVAL));
}

TEST_F(CmDatagram, RejectedOrUnheard) {
  ASSERT_NO_FATAL_FAILURE(AskForConnection(&pair_, RDMA_PS_UDP));
  ASSERT_EQ(Reject(pair_.server, pair_.passive, "no"), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_UNREACHABLE, 2)) << "SIDR's reason";
  EXPECT_EQ(DataOf(last_.param, 2), "no");
  shm::CmHandle id = NewId(pair_.client, RDMA_PS_UDP);
  ASSERT_NO_FATAL_FAILURE(Resolve(pair_.client, id, At("10.0.0.2", 1)));
  ASSERT_EQ(Connect(pair_.client, id, ParamOf(0x12)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_UNREACHABLE, 1)) << "no service";
  id = NewId(pair_.client, RDMA_PS_UDP);
  ASSERT_NO_FATAL_FAILURE(Resolve(pair_.client, id, At("10.0.0.9", 1)));
  EXPECT_EQ(Connect(pair_.client, id, ParamOf(0x12, std::string(181, 'x'))), EINVAL);
  ASSERT_EQ(Connect(pair_.client, id, ParamOf(0x12, std::string(180, 'x'))), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT));
  // The server's session goes before it has answered.
  const shm::CmHandle last = NewId(pair_.client, RDMA_PS_UDP);
  ASSERT_NO_FATAL_FAILURE(Resolve(pair_.client, last, At("10.0.0.2", 7174)));
  ASSERT_EQ(Connect(pair_.client, last, ParamOf(0x13)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.server, RDMA_CM_EVENT_CONNECT_REQUEST));
  Close(pair_.server);
  ASSERT_NO_FATAL_FAILURE(Expect(pair_.client, RDMA_CM_EVENT_UNREACHABLE, 2));
  EXPECT_EQ(CountersOf(0).communications + CountersOf(1).communications, 0u);
}

TEST_F(CmDatagram, AGroupIsJoined) {
  const Program program = StartProgram(0);
  const shm::CmHandle id = NewBoundId(program, "10.0.0.1");
  const shm::CmReply joined = Join(program, id, At("239.1.2.3"));
  ASSERT_EQ(joined.error, 0);
  ASSERT_NO_FATAL_FAILURE(Expect(program, RDMA_CM_EVENT_MULTICAST_JOIN));
  EXPECT_EQ(last_.cookie, 0x3cu) << "the membership's";
  EXPECT_EQ(last_.id, id);
  EXPECT_EQ(last_.is_ud, 1);
  EXPECT_EQ(last_.param.qp_num, 0xff'ffffu);
  EXPECT_EQ(last_.param.qkey, static_cast<uint32_t>(RDMA_UDP_QKEY));
  EXPECT_EQ(std::memcmp(last_.ah.dgid, GidOf(At("239.1.2.3")).raw.data(), 16), 0);
  EXPECT_EQ(last_.ah.sgid_index, 1);
  // One whose event still waits.
  const shm::CmReply second = Join(program, id, At("ff0e::1"), 0x3d);
  ASSERT_EQ(second.error, 0);
  EXPECT_EQ(Ask(program, CmOp::kLeaveMcast, second.handle).number, 0u);
  ASSERT_NO_FATAL_FAILURE(ExpectSilence(program));
  EXPECT_EQ(Ask(program, CmOp::kLeaveMcast, joined.handle).number, 1u);
  EXPECT_EQ(Ask(program, CmOp::kLeaveMcast, joined.handle).error, ENOENT);
  EXPECT_EQ(Destroy(program, id), 1u) << "events of memberships are the identifier's, too";
}

TEST_F(CmDatagram, GroupsAreResolvedLikePeers) {
  const Program program = StartProgram(0);
  const shm::CmHandle id = NewId(program, RDMA_PS_UDP);
  ASSERT_EQ(ResolveAddress(program, id, At("239.1.2.3", 7)), 0);
  ASSERT_NO_FATAL_FAILURE(Expect(program, RDMA_CM_EVENT_ADDR_RESOLVED));
  ASSERT_EQ(Join(program, id, At("239.1.2.3"), 1, /*send only*/ 1).error, 0);
  ASSERT_NO_FATAL_FAILURE(Expect(program, RDMA_CM_EVENT_MULTICAST_JOIN));
  EXPECT_EQ(last_.ah.sgid_index, 1);
}

TEST_F(CmDatagram, WhatCannotBeJoined) {
  const Program program = StartProgram(0);
  const shm::CmHandle id = NewBoundId(program, "10.0.0.1");
  EXPECT_EQ(Join(program, id, At("10.0.0.2")).error, EINVAL);
  EXPECT_EQ(Join(program, id, At("0.0.0.0")).error, EINVAL);
  EXPECT_EQ(Join(program, id, {}).error, EINVAL);
  EXPECT_EQ(Join(program, id, At("239.1.1.1"), 1, 2).error, EINVAL);
  EXPECT_EQ(Join(program, NewId(program, RDMA_PS_UDP), At("239.1.1.1")).error, EINVAL);
  EXPECT_EQ(Join(program, NewBoundId(program, "0.0.0.0"), At("239.1.1.1")).error, EINVAL)
      << "on which NIC?";
  const shm::CmHandle stream = NewId(program);
  ASSERT_EQ(Bind(program, stream, At("10.0.0.1")), 0);
  EXPECT_EQ(Join(program, stream, At("239.1.1.1")).error, EINVAL);
  EXPECT_EQ(Ask(program, CmOp::kLeaveMcast, id).error, ENOENT) << "no membership";
}

}  // namespace
}  // namespace verbena::softnic
