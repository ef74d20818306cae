// Identifiers, addresses and routes.
#include "verbs_shim/ucm/commands.h"

#include <endian.h>
#include <errno.h>

#include "verbs_shim/ucm/commands_fixture.h"

namespace verbena::ucm {
namespace {

using shm::CmOp;

TEST_F(CommandsTest, AnIdentifierIsMadeInTheChannelThatItIsWrittenTo) {
  EXPECT_EQ(NewId(0xfeed, kOtherChannel), 0u);
  ExpectOp(CmOp::kCreateId);
  EXPECT_EQ(Last().create.cookie, 0xfeedu);
  EXPECT_EQ(Last().create.channel, kOtherChannel.handle);
  EXPECT_EQ(Last().create.port_space, RDMA_PS_TCP);
  EXPECT_EQ(Last().create.qp_type, 2);
}

TEST_F(CommandsTest, NumbersAreTheLowestThatAreFree) {
  for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(NewId(), i);
  EXPECT_EQ(Destroy(3), 0);
  EXPECT_EQ(Last().handle, 103u);
  EXPECT_EQ(Destroy(1), 0);
  EXPECT_EQ(NewId(), 1u);
  EXPECT_EQ(NewId(), 3u);
  EXPECT_EQ(NewId(), 5u);
}

TEST_F(CommandsTest, NumbersEndWhereLibrdmacmsTablesDo) {
  for (uint32_t i = 0; i < kNumbersMax; ++i) ASSERT_EQ(NewId(), i);
  rdma_ucm_create_id_resp answer{};
  EXPECT_EQ(WriteFor(RDMA_USER_CM_CMD_CREATE_ID, rdma_ucm_create_id{}, &answer), ENOMEM);
  ExpectOp(CmOp::kDestroyId);
  EXPECT_EQ(Destroy(4711), 0);
  EXPECT_EQ(NewId(), 4711u);
}

TEST_F(CommandsTest, DestroyingTellsHowManyEventsWereTaken) {
  const uint32_t id = NewId();
  NextReply().number = 3;
  uint32_t events = 0;
  EXPECT_EQ(Destroy(id, &events), 0);
  EXPECT_EQ(events, 3u);
  EXPECT_EQ(Destroy(id), ENOENT);
}

TEST_F(CommandsTest, AnIdentifierThatTheDaemonKeepsIsKept) {
  const uint32_t id = NewId();
  NextReply().error = EBUSY;
  EXPECT_EQ(Destroy(id), EBUSY);
  EXPECT_EQ(Destroy(id), 0);
}

TEST_F(CommandsTest, IdentifiersOfOtherChannelsAndNonesAreRefused) {
  const uint32_t id = NewId();
  const size_t asked = g_daemon.requests.size();
  EXPECT_EQ(Disconnect(id, kOtherChannel), EINVAL);
  EXPECT_EQ(Disconnect(id + 1), ENOENT);
  EXPECT_EQ(Disconnect(UINT32_MAX), ENOENT);
  EXPECT_EQ(g_daemon.requests.size(), asked);
  EXPECT_EQ(Disconnect(id), 0);
  ExpectOp(CmOp::kDisconnect);
  EXPECT_EQ(Last().handle, 100u);
}

TEST_F(CommandsTest, TheDaemonsErrorsAreTheCommands) {
  const uint32_t id = NewId();
  NextReply().error = EADDRINUSE;
  rdma_ucm_bind_ip command{};
  command.id = id;
  command.addr = Inet6("::1", 80);
  EXPECT_EQ(Write(RDMA_USER_CM_CMD_BIND_IP, command), EADDRINUSE);
}

TEST_F(CommandsTest, BadHeadersAreRefusedAsTheKernelDoes) {
  rdma_ucm_cmd_hdr header{RDMA_USER_CM_CMD_DISCONNECT, 4, 0};
  EXPECT_EQ(commands_.Write(kChannel, kFd, &header, 7), EINVAL);
  EXPECT_EQ(commands_.Write(kChannel, kFd, &header, sizeof(header)), EINVAL);  // `in` is not there
  EXPECT_EQ(commands_.Write(kChannel, kFd, reinterpret_cast<void*>(8), 12), EFAULT);
  EXPECT_EQ(Write(1000, rdma_ucm_disconnect{}), EINVAL);
  EXPECT_EQ(Write(RDMA_USER_CM_CMD_GET_OPTION, rdma_ucm_disconnect{}), ENOSYS);
  EXPECT_TRUE(g_daemon.requests.empty());
}

TEST_F(CommandsTest, ShortCommandsAndSmallAnswersAreRefused) {
  const uint32_t id = NewId();
  const size_t asked = g_daemon.requests.size();
  for (uint32_t number = 0; number <= 24; ++number) {
    if (number == RDMA_USER_CM_CMD_GET_OPTION || number == 23) continue;
    // Two bytes are no command, and no room for an answer.
    const int error = Write(number, uint16_t{});
    EXPECT_TRUE(error == EINVAL || error == ENOSPC) << number << ": " << error;
  }
  rdma_ucm_query_route_resp answer{};
  rdma_ucm_query query{};
  query.id = id;
  EXPECT_EQ(WriteFor(RDMA_USER_CM_CMD_QUERY_ROUTE, query, &answer, kChannel, 8), ENOSPC);
  EXPECT_EQ(g_daemon.requests.size(), asked);
}

TEST_F(CommandsTest, AnAnswerThatCantBeStoredUndoesWhatWasMade) {
  rdma_ucm_create_id_resp* nowhere = reinterpret_cast<rdma_ucm_create_id_resp*>(16);
  EXPECT_EQ(WriteFor(RDMA_USER_CM_CMD_CREATE_ID, rdma_ucm_create_id{}, nowhere), EFAULT);
  ExpectOp(CmOp::kDestroyId);
  EXPECT_EQ(Last().handle, 100u);
  EXPECT_EQ(NewId(), 0u);
}

TEST_F(CommandsTest, AddressesOfBothFamiliesAreBound) {
  rdma_ucm_bind_ip ip{};
  ip.id = NewId();
  ip.addr = Inet6("fd00::7", 4711);
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_BIND_IP, ip), 0);
  ExpectOp(CmOp::kBind);
  EXPECT_EQ(Last().bind.address.family, AF_INET6);
  EXPECT_EQ(Last().bind.address.port, htons(4711));
  EXPECT_EQ(Last().bind.address.scope_id, 5u);
  EXPECT_EQ(std::memcmp(Last().bind.address.addr, &ip.addr.sin6_addr, 16), 0);

  rdma_ucm_bind command{};
  command.id = ip.id;
  const sockaddr_in inet = Inet("127.0.0.2", 99);
  std::memcpy(&command.addr, &inet, sizeof(inet));
  command.addr_size = sizeof(inet);
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_BIND, command), 0);
  EXPECT_EQ(Last().bind.address.family, AF_INET);
  EXPECT_EQ(Last().bind.address.port, htons(99));
  EXPECT_EQ(std::memcmp(Last().bind.address.addr, &inet.sin_addr, 4), 0);
  command.addr_size = sizeof(inet) - 1;
  EXPECT_EQ(Write(RDMA_USER_CM_CMD_BIND, command), EINVAL);
  command.addr_size = 0;
  EXPECT_EQ(Write(RDMA_USER_CM_CMD_BIND, command), EINVAL);
}

// librdmacm asks so at its start whether there is InfiniBand.
TEST_F(CommandsTest, InfiniBandsAddressesAreRefused) {
  rdma_ucm_bind command{};
  command.id = NewId();
  const size_t asked = g_daemon.requests.size();
  const uint16_t family = 27;  // AF_IB
  std::memcpy(&command.addr, &family, sizeof(family));
  command.addr_size = 48;
  EXPECT_EQ(Write(RDMA_USER_CM_CMD_BIND, command), EAFNOSUPPORT);
  EXPECT_EQ(g_daemon.requests.size(), asked);
}

TEST_F(CommandsTest, AnAddressIsResolvedWithAndWithoutASource) {
  rdma_ucm_resolve_ip ip{};
  ip.id = NewId();
  ip.dst_addr = Inet6("fd00::2", 5);
  ip.timeout_ms = 2000;
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_RESOLVE_IP, ip), 0);
  ExpectOp(CmOp::kResolveAddr);
  EXPECT_EQ(Last().resolve.source.family, 0);
  EXPECT_EQ(Last().resolve.destination.family, AF_INET6);
  EXPECT_EQ(Last().resolve.timeout_ms, 2000u);
  ip.src_addr = Inet6("fd00::1", 6);
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_RESOLVE_IP, ip), 0);
  EXPECT_EQ(Last().resolve.source.port, htons(6));
  ip.dst_addr.sin6_family = 0;
  EXPECT_EQ(Write(RDMA_USER_CM_CMD_RESOLVE_IP, ip), EINVAL);

  rdma_ucm_resolve_addr command{};
  command.id = ip.id;
  const sockaddr_in there = Inet("10.0.0.2", 7), here = Inet("10.0.0.1", 8);
  std::memcpy(&command.dst_addr, &there, sizeof(there));
  std::memcpy(&command.src_addr, &here, sizeof(here));
  command.dst_size = command.src_size = sizeof(there);
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_RESOLVE_ADDR, command), 0);
  EXPECT_EQ(Last().resolve.source.port, htons(8));
  EXPECT_EQ(Last().resolve.destination.port, htons(7));
  command.dst_size = 0;
  EXPECT_EQ(Write(RDMA_USER_CM_CMD_RESOLVE_ADDR, command), EINVAL);
}

shm::CmQuery SomeQuery(bool has_route) {
  shm::CmQuery query{};
  query.node_guid = htobe64(0x1122334455667788);
  query.nic = 3;
  query.port_num = 1;
  query.has_route = has_route;
  query.mtu = 5;
  query.rate = 7;
  query.packet_life_time = 16;
  query.source.family = AF_INET;
  query.source.port = htons(1);
  query.destination.family = AF_INET6;
  query.destination.port = htons(2);
  query.sgid[15] = 1;
  query.dgid[15] = 2;
  query.pkey = 0xffff;
  query.ah.flow_label = 0xabcde;
  query.ah.hop_limit = 64;
  query.ah.traffic_class = 32;
  return query;
}

TEST_F(CommandsTest, ARouteIsToldWithItsNicAndAddresses) {
  rdma_ucm_query command{};
  command.id = NewId();
  rdma_ucm_query_route_resp answer{};
  NextReply().query = SomeQuery(/*has_route=*/true);
  ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_QUERY_ROUTE, command, &answer), 0);
  EXPECT_EQ(answer.node_guid, htobe64(0x1122334455667788));
  EXPECT_EQ(answer.ibdev_index, 3u);
  EXPECT_EQ(answer.port_num, 1);
  EXPECT_EQ(answer.src_addr.sin6_family, AF_INET);
  EXPECT_EQ(answer.dst_addr.sin6_port, htons(2));
  ASSERT_EQ(answer.num_paths, 1u);
  EXPECT_EQ(answer.ib_route[0].sgid[15], 1);
  EXPECT_EQ(answer.ib_route[0].dgid[15], 2);
  EXPECT_EQ(answer.ib_route[0].flow_label, htobe32(0xabcde));
  EXPECT_EQ(answer.ib_route[0].hop_limit, 64);
  EXPECT_EQ(answer.ib_route[0].mtu, 5u);
  EXPECT_EQ(answer.ib_route[0].rate, 7);
}

TEST_F(CommandsTest, WithoutARouteThereAreGidsAndWithoutANicNeither) {
  rdma_ucm_query command{};
  command.id = NewId();
  rdma_ucm_query_route_resp answer{};
  NextReply().query = SomeQuery(/*has_route=*/false);
  ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_QUERY_ROUTE, command, &answer), 0);
  EXPECT_EQ(answer.num_paths, 0u);
  EXPECT_EQ(answer.ib_route[0].dgid[15], 2);
  EXPECT_EQ(answer.ib_route[0].mtu, 0u);
  NextReply().query.source.family = AF_INET;
  ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_QUERY_ROUTE, command, &answer), 0);
  EXPECT_EQ(answer.node_guid, 0u);
  EXPECT_EQ(answer.src_addr.sin6_family, AF_INET);
  EXPECT_EQ(answer.dst_addr.sin6_family, 0);
}

// A librdmacm from before the index leaves no room for it.
TEST_F(CommandsTest, AnAnswerIsCutToTheRoomThereIs) {
  rdma_ucm_query command{};
  command.id = NewId();
  rdma_ucm_query_route_resp answer{};
  answer.ibdev_index = 0xdead;
  NextReply().query = SomeQuery(true);
  const auto room = static_cast<uint16_t>(offsetof(rdma_ucm_query_route_resp, ibdev_index));
  ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_QUERY_ROUTE, command, &answer, kChannel, room), 0);
  EXPECT_EQ(answer.num_paths, 1u);
  EXPECT_EQ(answer.ibdev_index, 0xdeadu);
}

TEST_F(CommandsTest, QueriesTellAddressesGidsAndPaths) {
  rdma_ucm_query command{};
  command.id = NewId();
  rdma_ucm_query_addr_resp answer{};
  g_daemon.replies.resize(4);
  for (shm::CmReply& reply : g_daemon.replies) reply.query = SomeQuery(true);
  command.option = RDMA_USER_CM_QUERY_ADDR;
  ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_QUERY, command, &answer), 0);
  EXPECT_EQ(answer.src_size, sizeof(sockaddr_in));
  EXPECT_EQ(answer.dst_size, sizeof(sockaddr_in6));
  EXPECT_EQ(answer.ibdev_index, 3u);
  EXPECT_EQ(answer.pkey, 0xffff);
  command.option = RDMA_USER_CM_QUERY_GID;
  ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_QUERY, command, &answer), 0);
  EXPECT_EQ(answer.dst_size, 48);
  EXPECT_EQ(reinterpret_cast<const uint8_t*>(&answer.dst_addr)[8 + 15], 2);
  struct {
    uint32_t num_paths, head_reserved;
    uint32_t flags, reserved;
    uint8_t record[64];
  } paths{};
  command.option = RDMA_USER_CM_QUERY_PATH;
  ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_QUERY, command, &paths), 0);
  EXPECT_EQ(paths.num_paths, 1u);
  EXPECT_EQ(paths.record[8 + 15], 2);      // DGID
  EXPECT_EQ(paths.record[47], 64);         // hop limit
  EXPECT_EQ(paths.record[54], 0x80 | 5);   // MTU, exactly
  EXPECT_EQ(paths.record[56], 0x80 | 16);  // life time
  command.option = 99;
  EXPECT_EQ(WriteFor(RDMA_USER_CM_CMD_QUERY, command, &answer), ENOSYS);
}

TEST_F(CommandsTest, AnIdentifierMovesToTheChannelThatAsksForIt) {
  rdma_ucm_migrate_id command{};
  command.id = NewId();
  command.fd = kFd;
  rdma_ucm_migrate_resp answer{};
  const auto migrate = [&](uint32_t from) {
    command.fd = from;
    return WriteFor(RDMA_USER_CM_CMD_MIGRATE_ID, command, &answer, kOtherChannel);
  };
  EXPECT_EQ(migrate(99), EINVAL);          // no channel
  EXPECT_EQ(migrate(kOtherFd), EINVAL);    // not its channel
  EXPECT_EQ(migrate(kForeignFd), EINVAL);  // of another daemon
  NextReply().number = 2;
  ASSERT_EQ(migrate(kFd), 0);
  ExpectOp(CmOp::kMigrateId);
  EXPECT_EQ(Last().handle, 100u);
  EXPECT_EQ(Last().migrate.channel, kOtherChannel.handle);
  EXPECT_EQ(answer.events_reported, 2u);
  EXPECT_EQ(Disconnect(command.id), EINVAL);
  EXPECT_EQ(Disconnect(command.id, kOtherChannel), 0);
}

TEST_F(CommandsTest, ClosingEndsWhatIsOfTheChannel) {
  NewId(1);
  const uint32_t stays = NewId(2, kOtherChannel);
  NewId(3);
  g_daemon.requests.clear();
  commands_.Close(kChannel);
  ASSERT_EQ(g_daemon.requests.size(), 3u);
  EXPECT_EQ(g_daemon.requests[0].op, static_cast<uint32_t>(CmOp::kDestroyId));
  EXPECT_EQ(g_daemon.requests[0].handle, 100u);
  EXPECT_EQ(g_daemon.requests[1].handle, 102u);
  ExpectOp(CmOp::kDestroyChannel);
  EXPECT_EQ(Last().handle, kChannel.handle);
  EXPECT_EQ(Disconnect(0), ENOENT);
  EXPECT_EQ(Disconnect(stays, kOtherChannel), 0);
}

}  // namespace
}  // namespace verbena::ucm
