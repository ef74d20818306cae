// Commands as librdmacm writes them, with a daemon that answers what a test wants.
#include "verbs_shim/ucm/commands.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/rdma_user_cm.h>

#include <cstring>
#include <deque>
#include <vector>

namespace verbena::ucm {
namespace {

using shm::CmOp;

struct FakeDaemon {
  std::vector<shm::CmRequest> requests;
  std::deque<shm::CmReply> replies;  // none left: handles from 100 on
  shm::CmHandle next_handle = 100;
  int waits = 0;
  int wait_error = 0;
};
FakeDaemon g_daemon;
int g_other_daemon;
constexpr int kFd = 7, kOtherFd = 8, kForeignFd = 9;
const Channel kChannel = {&g_daemon, 1}, kOtherChannel = {&g_daemon, 2},
              kForeignChannel = {&g_other_daemon, 3};

int Execute(void*, const shm::CmRequest& request, shm::CmReply* reply) {
  g_daemon.requests.push_back(request);
  *reply = {};
  if (g_daemon.replies.empty()) {
    reply->handle = g_daemon.next_handle++;
  } else {
    *reply = g_daemon.replies.front();
    g_daemon.replies.pop_front();
  }
  return reply->error;
}

int AwaitEvent(int) {
  ++g_daemon.waits;
  return g_daemon.wait_error;
}

bool FindChannel(int fd, Channel* out) {
  if (fd == kFd) *out = kChannel;
  if (fd == kOtherFd) *out = kOtherChannel;
  if (fd == kForeignFd) *out = kForeignChannel;
  return fd >= kFd && fd <= kForeignFd;
}

sockaddr_in6 Inet6(const char* text, uint16_t port) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  address.sin6_scope_id = 5;
  EXPECT_EQ(inet_pton(AF_INET6, text, &address.sin6_addr), 1);
  return address;
}

sockaddr_in Inet(const char* text, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET, text, &address.sin_addr), 1);
  return address;
}

class CommandsTest : public ::testing::Test {
 protected:
  CommandsTest() { g_daemon = {}; }

  // Without an answer.
  template <typename T>
  int Write(uint32_t number, const T& command, const Channel& channel = kChannel, int fd = kFd) {
    return WriteBytes(number, command, 0, channel, fd);
  }
  template <typename T, typename Answer>
  int WriteFor(uint32_t number, T command, Answer* answer, const Channel& channel = kChannel,
               uint16_t out_bytes = sizeof(Answer), int fd = kFd) {
    command.response = reinterpret_cast<uint64_t>(answer);
    return WriteBytes(number, command, out_bytes, channel, fd);
  }
  template <typename T>
  int WriteBytes(uint32_t number, const T& command, uint16_t out_bytes, const Channel& channel,
                 int fd) {
    std::vector<char> bytes(sizeof(rdma_ucm_cmd_hdr) + sizeof(T));
    const rdma_ucm_cmd_hdr header = {number, sizeof(T), out_bytes};
    std::memcpy(bytes.data(), &header, sizeof(header));
    std::memcpy(bytes.data() + sizeof(header), &command, sizeof(T));
    return commands_.Write(channel, fd, bytes.data(), bytes.size());
  }
  // The number of a new identifier; the daemon's handle is `last().handle`'s reply.
  uint32_t NewId(uint64_t uid = 0xabc, const Channel& channel = kChannel) {
    rdma_ucm_create_id command{};
    command.uid = uid;
    command.ps = RDMA_PS_TCP;
    command.qp_type = 2;
    rdma_ucm_create_id_resp answer{77};
    EXPECT_EQ(WriteFor(RDMA_USER_CM_CMD_CREATE_ID, command, &answer, channel), 0);
    return answer.id;
  }
  int Disconnect(uint32_t id, const Channel& channel = kChannel) {
    return Write(RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect{id}, channel);
  }
  int Destroy(uint32_t id, uint32_t* events = nullptr, const Channel& channel = kChannel) {
    rdma_ucm_destroy_id command{};
    command.id = id;
    rdma_ucm_destroy_id_resp answer{};
    const int error = WriteFor(RDMA_USER_CM_CMD_DESTROY_ID, command, &answer, channel);
    if (events != nullptr) *events = answer.events_reported;
    return error;
  }
  static const shm::CmRequest& Last() { return g_daemon.requests.back(); }
  static void ExpectOp(CmOp op) { EXPECT_EQ(Last().op, static_cast<uint32_t>(op)); }
  static shm::CmReply& NextReply() { return g_daemon.replies.emplace_back(); }
  int GetEvent(rdma_ucm_event_resp* answer, uint16_t out_bytes = sizeof(rdma_ucm_event_resp)) {
    return WriteFor(RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{}, answer, kChannel, out_bytes);
  }

  Commands commands_{{Execute, AwaitEvent, FindChannel}};
};

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
  NextReply().error = EIO;
  EXPECT_EQ(Destroy(id), EIO);
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

rdma_ucm_conn_param SomeParam() {
  rdma_ucm_conn_param param{};
  param.qp_num = 17;
  param.private_data_len = 3;
  std::memcpy(param.private_data, "abc", 3);
  param.responder_resources = 4;
  param.initiator_depth = 5;
  param.retry_count = 6;
  param.rnr_retry_count = 7;
  param.srq = 1;
  param.valid = 1;
  return param;
}

void ExpectSomeParam(const shm::CmConnParam& param) {
  EXPECT_EQ(param.qp_num, 17u);
  EXPECT_EQ(param.private_data_len, 3);
  EXPECT_EQ(std::memcmp(param.private_data, "abc", 3), 0);
  EXPECT_EQ(param.responder_resources, 4);
  EXPECT_EQ(param.initiator_depth, 5);
  EXPECT_EQ(param.retry_count, 6);
  EXPECT_EQ(param.rnr_retry_count, 7);
  EXPECT_EQ(param.srq, 1);
  EXPECT_EQ(param.ece_vendor_id, 8u);
  EXPECT_EQ(param.ece_options, 9u);
}

TEST_F(CommandsTest, ConnectAndAcceptCarryTheirParameters) {
  rdma_ucm_connect connect{};
  connect.id = NewId();
  EXPECT_EQ(Write(RDMA_USER_CM_CMD_CONNECT, connect), EINVAL);  // not valid
  connect.conn_param = SomeParam();
  connect.ece = {8, 9};
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_CONNECT, connect), 0);
  ExpectOp(CmOp::kConnect);
  ExpectSomeParam(Last().connect.param);
  rdma_ucm_accept accept{};
  accept.id = connect.id;
  accept.uid = 0xbeef;
  accept.conn_param = SomeParam();
  accept.ece = {8, 9};
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_ACCEPT, accept), 0);
  ExpectOp(CmOp::kAccept);
  EXPECT_EQ(Last().connect.cookie, 0xbeefu);
  ExpectSomeParam(Last().connect.param);
  accept.conn_param = {};
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_ACCEPT, accept), 0);
  ExpectOp(CmOp::kEstablish);
}

TEST_F(CommandsTest, ARejectHasOneOfTwoReasons) {
  rdma_ucm_reject reject{};
  reject.id = NewId();
  reject.private_data_len = 2;
  std::memcpy(reject.private_data, "no", 2);
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_REJECT, reject), 0);
  ExpectOp(CmOp::kReject);
  EXPECT_EQ(Last().reject.reason, 28);
  EXPECT_EQ(Last().reject.private_data_len, 2);
  EXPECT_EQ(std::memcmp(Last().reject.private_data, "no", 2), 0);
  reject.reason = 35;
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_REJECT, reject), 0);
  EXPECT_EQ(Last().reject.reason, 35);
  reject.reason = 8;
  EXPECT_EQ(Write(RDMA_USER_CM_CMD_REJECT, reject), EINVAL);
}

TEST_F(CommandsTest, NumbersOfCommandsArrive) {
  const uint32_t id = NewId();
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_LISTEN, rdma_ucm_listen{id, 12}), 0);
  ExpectOp(CmOp::kListen);
  EXPECT_EQ(Last().number, 12u);
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_resolve_route{id, 500}), 0);
  ExpectOp(CmOp::kResolveRoute);
  EXPECT_EQ(Last().number, 500u);
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_NOTIFY, rdma_ucm_notify{id, 4}), 0);
  ExpectOp(CmOp::kNotify);
  EXPECT_EQ(Last().number, 4u);
}

TEST_F(CommandsTest, AttributesOfAQpAreThoseOfTheDaemon) {
  rdma_ucm_init_qp_attr command{};
  command.id = NewId();
  command.qp_state = 2;
  ib_uverbs_qp_attr answer{};
  shm::CmQpAttr& attr = NextReply().qp_attr;
  attr.mask = 0x1234;
  attr.dest_qp_num = 77;
  attr.rq_psn = 5;
  attr.path_mtu = 4;
  attr.min_rnr_timer = 3;
  attr.ah.hop_limit = 64;
  attr.ah.dgid[0] = 0xfe;
  attr.ah.sgid_index = 2;
  ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_INIT_QP_ATTR, command, &answer), 0);
  EXPECT_EQ(Last().number, 2u);
  EXPECT_EQ(answer.qp_attr_mask, 0x1234u);
  EXPECT_EQ(answer.qp_state, 2u);
  EXPECT_EQ(answer.dest_qp_num, 77u);
  EXPECT_EQ(answer.rq_psn, 5u);
  EXPECT_EQ(answer.path_mtu, 4u);
  EXPECT_EQ(answer.min_rnr_timer, 3);
  EXPECT_EQ(answer.ah_attr.is_global, 1);
  EXPECT_EQ(answer.ah_attr.grh.dgid[0], 0xfe);
  EXPECT_EQ(answer.ah_attr.grh.sgid_index, 2);
}

TEST_F(CommandsTest, OptionsAreReadWhereTheProgramHasThem) {
  const uint8_t tos = 46;
  rdma_ucm_set_option command{};
  command.id = NewId();
  command.optname = RDMA_OPTION_ID_TOS;
  command.optval = reinterpret_cast<uint64_t>(&tos);
  command.optlen = 1;
  ASSERT_EQ(Write(RDMA_USER_CM_CMD_SET_OPTION, command), 0);
  ExpectOp(CmOp::kSetOption);
  EXPECT_EQ(Last().option.length, 1u);
  EXPECT_EQ(Last().option.value[0], 46);
  command.optval = 64;
  EXPECT_EQ(Write(RDMA_USER_CM_CMD_SET_OPTION, command), EFAULT);
}

TEST_F(CommandsTest, MembershipsHaveNumbersOfTheirOwn) {
  const uint32_t id = NewId();
  rdma_ucm_join_ip_mcast join{};
  join.id = id;
  join.uid = 0x6006;
  join.addr = Inet6("ff05::7", 0);
  rdma_ucm_create_id_resp answer{77};
  ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_JOIN_IP_MCAST, join, &answer), 0);
  ExpectOp(CmOp::kJoinMcast);
  EXPECT_EQ(answer.id, 0u);
  EXPECT_EQ(Last().join.cookie, 0x6006u);
  EXPECT_EQ(Last().handle, 100u);
  rdma_ucm_join_mcast join_more{};
  join_more.id = id;
  join_more.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
  const sockaddr_in group = Inet("239.0.0.1", 0);
  std::memcpy(&join_more.addr, &group, sizeof(group));
  join_more.addr_size = sizeof(group);
  ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_JOIN_MCAST, join_more, &answer), 0);
  EXPECT_EQ(answer.id, 1u);
  EXPECT_EQ(Last().join.join_flags, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER);
  rdma_ucm_destroy_id leave{};
  rdma_ucm_destroy_id_resp left{};
  NextReply().number = 1;
  ASSERT_EQ(WriteFor(RDMA_USER_CM_CMD_LEAVE_MCAST, leave, &left), 0);
  ExpectOp(CmOp::kLeaveMcast);
  EXPECT_EQ(Last().handle, 101u);
  EXPECT_EQ(left.events_reported, 1u);
  EXPECT_EQ(WriteFor(RDMA_USER_CM_CMD_LEAVE_MCAST, leave, &left), ENOENT);
  // The other one goes with its identifier.
  EXPECT_EQ(Destroy(id), 0);
  leave.id = 1;
  EXPECT_EQ(WriteFor(RDMA_USER_CM_CMD_LEAVE_MCAST, leave, &left), ENOENT);
}

TEST_F(CommandsTest, AnEventWaitsForOne) {
  NewId(0x1d);
  NextReply().error = EAGAIN;
  NextReply().error = EAGAIN;
  shm::CmEvent& event = NextReply().event;
  event.cookie = 0x1d;
  event.id = 100;
  event.event = 8;
  event.status = 28;
  event.param.private_data_len = 2;
  std::memcpy(event.param.private_data, "no", 2);
  event.param.qp_num = 33;
  event.param.ece_vendor_id = 5;
  rdma_ucm_event_resp answer{};
  ASSERT_EQ(GetEvent(&answer), 0);
  EXPECT_EQ(g_daemon.waits, 2);
  EXPECT_EQ(Last().handle, kChannel.handle);
  EXPECT_EQ(answer.uid, 0x1du);
  EXPECT_EQ(answer.id, 0u);
  EXPECT_EQ(answer.event, 8u);
  EXPECT_EQ(answer.status, 28u);
  EXPECT_EQ(answer.param.conn.private_data_len, 2);
  EXPECT_EQ(std::memcmp(answer.param.conn.private_data, "no", 2), 0);
  EXPECT_EQ(answer.param.conn.qp_num, 33u);
  EXPECT_EQ(answer.ece.vendor_id, 5u);
}

TEST_F(CommandsTest, AnEventThatMayNotWaitOrIsInterruptedDoesNot) {
  rdma_ucm_event_resp answer{};
  for (int error : {EAGAIN, EINTR}) {
    NextReply().error = EAGAIN;
    g_daemon.wait_error = error;
    EXPECT_EQ(GetEvent(&answer), error);
  }
}

TEST_F(CommandsTest, AChannelThatIsClosedUnderOneWhoWaitsIsToldApart) {
  rdma_ucm_event_resp answer{};
  NextReply().error = EAGAIN;
  NextReply().error = ENOENT;
  EXPECT_EQ(GetEvent(&answer), kClosedWhileWaiting);
  NextReply().error = EIO;
  EXPECT_EQ(GetEvent(&answer), EIO);
}

TEST_F(CommandsTest, AConnectRequestBringsAnIdentifier) {
  NewId(0x115);
  shm::CmEvent& event = NextReply().event;
  event.cookie = 0x115;
  event.id = 500;
  event.listener = 100;
  event.event = 4;
  rdma_ucm_event_resp answer{};
  ASSERT_EQ(GetEvent(&answer), 0);
  EXPECT_EQ(answer.uid, 0x115u);
  ASSERT_EQ(answer.id, 1u);
  EXPECT_EQ(Disconnect(1), 0);
  EXPECT_EQ(Last().handle, 500u);
}

TEST_F(CommandsTest, AConnectRequestThatNobodyHearsOfIsGivenUp) {
  shm::CmEvent& event = NextReply().event;
  event.id = 500;
  event.listener = 100;
  event.event = 4;
  EXPECT_EQ(GetEvent(reinterpret_cast<rdma_ucm_event_resp*>(16)), EFAULT);
  ExpectOp(CmOp::kDestroyId);
  EXPECT_EQ(Last().handle, 500u);
  EXPECT_EQ(NewId(), 0u);
}

TEST_F(CommandsTest, EventsOfDatagramsSayHowToAnswer) {
  shm::CmEvent& event = NextReply().event;
  event.is_ud = 1;
  event.event = 9;
  event.param.qp_num = 44;
  event.param.qkey = 0x1234;
  event.ah.dgid[15] = 9;
  event.ah.port_num = 1;
  event.param.private_data_len = 1;
  event.param.private_data[0] = 'x';
  rdma_ucm_event_resp answer{};
  ASSERT_EQ(GetEvent(&answer), 0);
  EXPECT_EQ(answer.param.ud.qp_num, 44u);
  EXPECT_EQ(answer.param.ud.qkey, 0x1234u);
  EXPECT_EQ(answer.param.ud.ah_attr.grh.dgid[15], 9);
  EXPECT_EQ(answer.param.ud.ah_attr.is_global, 1);
  EXPECT_EQ(answer.param.ud.private_data[0], 'x');
}

TEST_F(CommandsTest, EventsThatProgramsWroteComeBack) {
  struct {
    uint32_t id, reserved, event, status;
    uint64_t arg;
  } command{NewId(), 0, shm::kCmEventUser, 3, 0xcafe};
  ASSERT_EQ(Write(24, command), 0);
  ExpectOp(CmOp::kWriteEvent);
  EXPECT_EQ(Last().user.event, shm::kCmEventUser);
  EXPECT_EQ(Last().user.status, 3);
  EXPECT_EQ(Last().user.arg, 0xcafeu);
  shm::CmEvent& event = NextReply().event;
  event.event = shm::kCmEventUser;
  event.arg = 0xcafe;
  rdma_ucm_event_resp answer{};
  ASSERT_EQ(GetEvent(&answer), 0);
  uint64_t arg;
  std::memcpy(&arg, &answer.param, sizeof(arg));
  EXPECT_EQ(arg, 0xcafeu);
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
