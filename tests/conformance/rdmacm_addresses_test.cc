// Addresses and ports: bound, resolved, looked up, shared; and the options of identifiers.
#include <infiniband/sa.h>
#include <netdb.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "tests/conformance/rdmacm_fixture.h"
#include "tests/conformance/rdmacm_v64.h"

namespace verbena::conformance {
namespace {

constexpr int kAfIb = 27;  // AF_IB

int Bind(const CmId& id, Address address) { return rdma_bind_addr(id.get(), address.get()); }
int Port(const CmId& id) { return ntohs(rdma_get_src_port(id.get())); }
int SetInt(const CmId& id, int name, int value) {
  return rdma_set_option(id.get(), RDMA_OPTION_ID, name, &value, sizeof value);
}
int SetByte(const CmId& id, int name, uint8_t value) {
  return rdma_set_option(id.get(), RDMA_OPTION_ID, name, &value, sizeof value);
}

// --- rdma_bind_addr ------------------------------------------------------------------------------

TEST(Cm_rdma_bind_addr, ToANicGivesTheIdentifierThatNic) {
  Channel channel;
  ibv_gid gids[2];
  for (int nic = 0; nic < 2; ++nic) {
    CmId id(channel, RDMA_PS_TCP);
    const std::string address = "127.0.0." + std::to_string(nic + 1);
    ASSERT_EQ(Bind(id, Address(address)), 0) << strerror(errno);
    ASSERT_NE(id->verbs, nullptr);
    EXPECT_NE(id->pd, nullptr);
    EXPECT_EQ(id->port_num, 1);
    EXPECT_EQ(Address::Of(rdma_get_local_addr(id.get())).text(), address);
    gids[nic] = id->route.addr.addr.ibaddr.sgid;
    ibv_gid of_nic;
    ASSERT_EQ(ibv_query_gid(id->verbs, 1, kGidIndex, &of_nic), 0);
    EXPECT_EQ(std::memcmp(&gids[nic], &of_nic, sizeof of_nic), 0);
  }
  EXPECT_NE(std::memcmp(&gids[0], &gids[1], sizeof gids[0]), 0);
}

TEST(Cm_rdma_bind_addr, PortZeroChoosesOne) {
  Channel channel;
  CmId a(channel, RDMA_PS_TCP), b(channel, RDMA_PS_TCP);
  ASSERT_EQ(Bind(a, Address("127.0.0.1")), 0);
  ASSERT_EQ(Bind(b, Address("127.0.0.1")), 0);
  EXPECT_NE(Port(a), 0);
  EXPECT_NE(Port(b), 0);
  EXPECT_NE(Port(a), Port(b));
}

TEST(Cm_rdma_bind_addr, WildcardIsOfNoNic) {
  Channel channel;
  for (const char* any : {"0.0.0.0", "::"}) {
    CmId id(channel, RDMA_PS_TCP);
    ASSERT_EQ(Bind(id, Address(any)), 0) << any;
    EXPECT_EQ(id->verbs, nullptr) << any;
    EXPECT_NE(Port(id), 0) << any;
    EXPECT_EQ(Address::Of(rdma_get_local_addr(id.get())).text(), any);
  }
}

TEST(Cm_rdma_bind_addr, LoopbackOfIpv6) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  ASSERT_EQ(Bind(id, Address("::1")), 0) << strerror(errno);
  EXPECT_NE(id->verbs, nullptr);
}

TEST(Cm_rdma_bind_addr, OnlyOnce) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  ASSERT_EQ(Bind(id, Address("127.0.0.1")), 0);
  EXPECT_FAILS(Bind(id, Address("127.0.0.1")), EINVAL);
}

TEST(Cm_rdma_bind_addr, AnAddressOfNobodyIsNotAvailable) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  EXPECT_FAILS(Bind(id, Address("192.0.2.1")), EADDRNOTAVAIL);
  EXPECT_FAILS(Bind(id, Address("2001:db8::1")), EADDRNOTAVAIL);
  EXPECT_EQ(Bind(id, Address("127.0.0.1")), 0);  // and it may be tried again
}

TEST(Cm_rdma_bind_addr, RefusesOtherFamilies) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  sockaddr_storage storage = {};
  for (int family : {AF_UNSPEC, AF_UNIX, kAfIb}) {
    storage.ss_family = static_cast<sa_family_t>(family);
    EXPECT_FAILS(rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&storage)), EINVAL);
  }
  EXPECT_FAILS(rdma_bind_addr(id.get(), nullptr), EINVAL);
  EXPECT_FAILS(Bind(id, Address("fe80::1")), EINVAL);  // of which link?
}

TEST(Cm_rdma_bind_addr, APortIsInUseOnce) {
  Channel channel;
  CmId first(channel, RDMA_PS_TCP), second(channel, RDMA_PS_TCP);
  ASSERT_EQ(Bind(first, Address("127.0.0.1")), 0);
  const auto port = static_cast<uint16_t>(Port(first));
  EXPECT_FAILS(Bind(second, Address("127.0.0.1", port)), EADDRINUSE);
  // As Linux: beside a wildcard it is the address that is not available.
  EXPECT_FAILS(Bind(second, Address("0.0.0.0", port)), EADDRNOTAVAIL);
  CmId other_nic(channel, RDMA_PS_TCP), other_space(channel, RDMA_PS_UDP);
  EXPECT_EQ(Bind(other_nic, Address("127.0.0.2", port)), 0) << strerror(errno);
  EXPECT_EQ(Bind(other_space, Address("127.0.0.1", port)), 0) << strerror(errno);
  first.Destroy();
  EXPECT_EQ(Bind(second, Address("127.0.0.1", port)), 0) << strerror(errno);
}

// --- rdma_get_src_port, rdma_get_dst_port, rdma_get_local_addr, rdma_get_peer_addr ---------------

TEST(Cm_rdma_get_src_port, IsZeroBeforeBindingAndInNetworkOrder) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  EXPECT_EQ(rdma_get_src_port(id.get()), 0);
  EXPECT_EQ(rdma_get_dst_port(id.get()), 0);
  CmId probe(channel, RDMA_PS_TCP);
  ASSERT_EQ(Bind(probe, Address("127.0.0.1")), 0);
  const auto port = static_cast<uint16_t>(Port(probe));
  probe.Destroy();
  ASSERT_EQ(Bind(id, Address("127.0.0.1", port)), 0);
  EXPECT_EQ(rdma_get_src_port(id.get()), htons(port));
}

TEST(Cm_rdma_get_dst_port, IsTheResolvedOne) {
  for (const char* address : {"127.0.0.1", "::1"}) {
    Channel channel;
    CmId id(channel, RDMA_PS_TCP);
    Address there(address, 7471);
    ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
    channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(rdma_get_dst_port(id.get()), htons(7471));
    EXPECT_NE(rdma_get_src_port(id.get()), 0);
    EXPECT_EQ(Address::Of(rdma_get_peer_addr(id.get())).text(), address);
    EXPECT_EQ(Address::Of(rdma_get_local_addr(id.get())).text(), address);
  }
}

// --- rdma_resolve_addr ---------------------------------------------------------------------------

TEST(Cm_rdma_resolve_addr, BindsTheIdentifierToANic) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  Address there("127.0.0.2", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  EXPECT_EQ(channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED).id, id.get());
  EXPECT_NE(id->verbs, nullptr);
  EXPECT_NE(id->pd, nullptr);
  EXPECT_EQ(id->port_num, 1);
}

TEST(Cm_rdma_resolve_addr, TakesTheSourceThatIsNamed) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  Address here("127.0.0.2"), there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), here.get(), there.get(), 2000), 0);
  channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(Address::Of(rdma_get_local_addr(id.get())).text(), "127.0.0.2");
  ibv_gid of_nic;
  ASSERT_EQ(ibv_query_gid(id->verbs, 1, kGidIndex, &of_nic), 0);
  EXPECT_EQ(of_nic.raw[15], 2);
}

TEST(Cm_rdma_resolve_addr, KeepsTheSourceThatIsBound) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  ASSERT_EQ(Bind(id, Address("127.0.0.2")), 0);
  const int port = Port(id);
  Address there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(Address::Of(rdma_get_local_addr(id.get())).text(), "127.0.0.2");
  EXPECT_EQ(Port(id), port);
}

TEST(Cm_rdma_resolve_addr, WildcardIsThisHost) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  Address there("0.0.0.0", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(Address::Of(rdma_get_peer_addr(id.get())).text(), "127.0.0.1");
  EXPECT_EQ(rdma_get_dst_port(id.get()), htons(7471));
}

TEST(Cm_rdma_resolve_addr, TellsByAnEventThatThereIsNoWay) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  Address nobody("127.0.0.200", 7471), there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, nobody.get(), 2000), 0);
  Told told = channel.Next();
  EXPECT_EQ(told.type, RDMA_CM_EVENT_ADDR_ERROR);
  EXPECT_LT(told.status, 0);
  // And it may be tried again.
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0) << strerror(errno);
  channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED);
}

TEST(Cm_rdma_resolve_addr, OnlyOnce) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  Address there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  EXPECT_FAILS(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), EINVAL);
}

TEST(Cm_rdma_resolve_addr, RefusesWhatIsNoAddress) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  sockaddr_storage storage = {};
  storage.ss_family = kAfIb;
  auto* other = reinterpret_cast<sockaddr*>(&storage);
  Address there("127.0.0.1", 7471), v6("::1"), nobody("192.0.2.1");
  EXPECT_FAILS(rdma_resolve_addr(id.get(), nullptr, nullptr, 2000), EINVAL);
  EXPECT_FAILS(rdma_resolve_addr(id.get(), nullptr, other, 2000), EINVAL);
  EXPECT_FAILS(rdma_resolve_addr(id.get(), other, there.get(), 2000), EINVAL);
  EXPECT_FAILS(rdma_resolve_addr(id.get(), nobody.get(), there.get(), 2000), EADDRNOTAVAIL);
  EXPECT_FAILS(rdma_resolve_addr(id.get(), v6.get(), there.get(), 2000), EINVAL);
  EXPECT_FALSE(channel.IsReadable());
}

// --- rdma_resolve_route --------------------------------------------------------------------------

TEST(Cm_rdma_resolve_route, GivesAPathRecord) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  Address there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(id->route.num_paths, 0);
  ASSERT_EQ(rdma_resolve_route(id.get(), 2000), 0);
  channel.Expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
  ASSERT_EQ(id->route.num_paths, 1);
  ASSERT_NE(id->route.path_rec, nullptr);
  const ibv_sa_path_rec& path = *id->route.path_rec;
  const rdma_ib_addr& addr = id->route.addr.addr.ibaddr;
  EXPECT_EQ(std::memcmp(&path.sgid, &addr.sgid, sizeof path.sgid), 0);
  EXPECT_EQ(std::memcmp(&path.dgid, &addr.dgid, sizeof path.dgid), 0);
  EXPECT_EQ(path.pkey, htons(0xffff));
  ibv_port_attr port;
  ASSERT_EQ(ibv_query_port(id->verbs, 1, &port), 0);
  EXPECT_EQ(path.mtu, port.active_mtu);
  EXPECT_EQ(path.reversible, 1);
}

TEST(Cm_rdma_resolve_route, NeedsAResolvedAddress) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  if (v64::IsOurs()) {  // upstream's asks the NIC that there is not
    EXPECT_FAILS(rdma_resolve_route(id.get(), 2000), EINVAL);
  }
  ASSERT_EQ(Bind(id, Address("127.0.0.1")), 0);
  EXPECT_FAILS(rdma_resolve_route(id.get(), 2000), EINVAL);
  Address there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_FAILS(rdma_resolve_route(id.get(), 0), EINVAL);  // no time to find it in
  ASSERT_EQ(rdma_resolve_route(id.get(), 2000), 0);
  channel.Expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_FAILS(rdma_resolve_route(id.get(), 2000), EINVAL);
}

// --- rdma_getaddrinfo, rdma_freeaddrinfo ---------------------------------------------------------

TEST(Cm_rdma_getaddrinfo, OfAnActiveSide) {
  rdma_addrinfo hints = {};
  hints.ai_port_space = RDMA_PS_TCP;
  rdma_addrinfo* info = nullptr;
  ASSERT_EQ(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &info), 0);
  EXPECT_EQ(info->ai_family, AF_INET);
  EXPECT_EQ(info->ai_port_space, RDMA_PS_TCP);
  EXPECT_EQ(info->ai_qp_type, IBV_QPT_RC);
  EXPECT_EQ(info->ai_dst_len, sizeof(sockaddr_in));
  EXPECT_EQ(Address::Of(info->ai_dst_addr).text(), "127.0.0.1");
  EXPECT_EQ(Address::Of(info->ai_dst_addr).port(), 7471);
  EXPECT_EQ(info->ai_src_addr, nullptr);
  EXPECT_EQ(info->ai_next, nullptr);
  rdma_freeaddrinfo(info);
}

TEST(Cm_rdma_getaddrinfo, OfAPassiveSide) {
  rdma_addrinfo hints = {};
  hints.ai_flags = RAI_PASSIVE;
  hints.ai_port_space = RDMA_PS_UDP;
  rdma_addrinfo* info = nullptr;
  ASSERT_EQ(rdma_getaddrinfo("::1", "7471", &hints, &info), 0);
  EXPECT_NE(info->ai_flags & RAI_PASSIVE, 0);
  EXPECT_EQ(info->ai_family, AF_INET6);
  EXPECT_EQ(info->ai_qp_type, IBV_QPT_UD);
  EXPECT_EQ(info->ai_src_len, sizeof(sockaddr_in6));
  EXPECT_EQ(Address::Of(info->ai_src_addr).port(), 7471);
  EXPECT_EQ(info->ai_dst_addr, nullptr);
  rdma_freeaddrinfo(info);
}

TEST(Cm_rdma_getaddrinfo, WithoutANameTheHintsAreTaken) {
  Address here("127.0.0.2"), there("127.0.0.1", 7471);
  rdma_addrinfo hints = {};
  hints.ai_family = AF_INET;
  hints.ai_port_space = RDMA_PS_TCP;
  hints.ai_qp_type = IBV_QPT_RC;
  hints.ai_src_addr = here.get();
  hints.ai_dst_addr = there.get();
  hints.ai_src_len = hints.ai_dst_len = sizeof(sockaddr_in);
  rdma_addrinfo* info = nullptr;
  ASSERT_EQ(rdma_getaddrinfo(nullptr, nullptr, &hints, &info), 0);
  EXPECT_EQ(Address::Of(info->ai_src_addr).text(), "127.0.0.2");
  EXPECT_EQ(Address::Of(info->ai_dst_addr).text(), "127.0.0.1");
  rdma_freeaddrinfo(info);
  // A source beside a name, too.
  hints.ai_dst_len = 0;
  ASSERT_EQ(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &info), 0);
  EXPECT_EQ(Address::Of(info->ai_src_addr).text(), "127.0.0.2");
  EXPECT_EQ(Address::Of(info->ai_dst_addr).text(), "127.0.0.1");
  rdma_freeaddrinfo(info);
}

TEST(Cm_rdma_getaddrinfo, SaysWhatIsWrong) {
  rdma_addrinfo* info = nullptr;
  rdma_addrinfo hints = {};
  EXPECT_FAILS(rdma_getaddrinfo(nullptr, nullptr, nullptr, &info), EINVAL);
  hints.ai_flags = RAI_NUMERICHOST;
  EXPECT_EQ(rdma_getaddrinfo("no.address", "7471", &hints, &info), EAI_NONAME);
  if (!v64::IsOurs()) return;  // upstream's goes by the name, and gives an address of AF_INET
  hints.ai_family = kAfIb;
  EXPECT_EQ(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &info), EAI_FAMILY);
}

TEST(Cm_rdma_freeaddrinfo, TakesAList) {
  rdma_freeaddrinfo(nullptr);
  auto* first = static_cast<rdma_addrinfo*>(calloc(1, sizeof(rdma_addrinfo)));
  first->ai_next = static_cast<rdma_addrinfo*>(calloc(1, sizeof(rdma_addrinfo)));
  first->ai_connect = malloc(8);
  first->ai_route = malloc(8);
  rdma_freeaddrinfo(first);
}

// --- rdma_set_option -----------------------------------------------------------------------------

TEST(Cm_rdma_set_option, RefusesWhatItDoesNotKnow) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  int value = 1;
  EXPECT_FAILS(rdma_set_option(id.get(), 2, 0, &value, 1), ENOSYS);
  EXPECT_FAILS(rdma_set_option(id.get(), RDMA_OPTION_ID, 9, &value, 1), ENOSYS);
  EXPECT_FAILS(rdma_set_option(id.get(), RDMA_OPTION_IB, 9, &value, 1), ENOSYS);
  EXPECT_FAILS(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &value, 4), EINVAL);
  EXPECT_FAILS(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &value, 1),
               EINVAL);
  EXPECT_FAILS(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &value, 1), EINVAL);
  EXPECT_FAILS(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &value, 4),
               EINVAL);
  EXPECT_FAILS(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, nullptr, 1), EFAULT);
}

TEST(Cm_rdma_set_option_reuseaddr, SharesAPortUntilSomebodyListens) {
  Channel channel;
  CmId first(channel, RDMA_PS_TCP), second(channel, RDMA_PS_TCP), third(channel, RDMA_PS_TCP);
  ASSERT_EQ(SetInt(first, RDMA_OPTION_ID_REUSEADDR, 1), 0);
  ASSERT_EQ(SetInt(second, RDMA_OPTION_ID_REUSEADDR, 1), 0);
  ASSERT_EQ(Bind(first, Address("127.0.0.1")), 0);
  const auto port = static_cast<uint16_t>(Port(first));
  ASSERT_EQ(Bind(second, Address("127.0.0.1", port)), 0) << strerror(errno);
  EXPECT_FAILS(Bind(third, Address("127.0.0.1", port)), EADDRINUSE);
  EXPECT_FAILS(rdma_listen(first.get(), 0), EADDRINUSE);
  second.Destroy();
  EXPECT_EQ(rdma_listen(first.get(), 0), 0) << strerror(errno);
  EXPECT_FAILS(SetInt(first, RDMA_OPTION_ID_REUSEADDR, 1), EINVAL);
}

TEST(Cm_rdma_set_option_afonly, LeavesTheOtherFamilyAlone) {
  Channel channel;
  CmId v4(channel, RDMA_PS_TCP), both(channel, RDMA_PS_TCP), v6(channel, RDMA_PS_TCP);
  ASSERT_EQ(Bind(v4, Address("0.0.0.0")), 0);
  const auto port = static_cast<uint16_t>(Port(v4));
  EXPECT_FAILS(Bind(both, Address("::", port)), EADDRNOTAVAIL);
  ASSERT_EQ(SetInt(v6, RDMA_OPTION_ID_AFONLY, 1), 0);
  EXPECT_EQ(Bind(v6, Address("::", port)), 0) << strerror(errno);
  EXPECT_EQ(rdma_listen(v4.get(), 0), 0);
  EXPECT_EQ(rdma_listen(v6.get(), 0), 0);
  EXPECT_FAILS(SetInt(v6, RDMA_OPTION_ID_AFONLY, 0), EINVAL);  // too late
}

class Cm_rdma_set_option_tos : public CmTest {};

TEST_F(Cm_rdma_set_option_tos, BecomesTheTrafficClassOfBothQps) {
  Listen();
  active = CmId(active_channel, RDMA_PS_TCP);
  ASSERT_EQ(SetByte(active, RDMA_OPTION_ID_TOS, 0x68), 0);
  Address there = ListenerAddress();
  ASSERT_EQ(rdma_resolve_addr(active.get(), nullptr, there.get(), 2000), 0);
  active_channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_EQ(rdma_resolve_route(active.get(), 2000), 0);
  active_channel.Expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_EQ(active->route.path_rec->traffic_class, 0x68);
  ASSERT_EQ(MakeQp(active.get()), 0);
  Request();
  Accept();
  EXPECT_EQ(AttributesOf(active->qp).ah_attr.grh.traffic_class, 0x68);
  EXPECT_EQ(AttributesOf(passive->qp).ah_attr.grh.traffic_class, 0x68);
}

class Cm_rdma_set_option_ack_timeout : public CmTest {};

TEST_F(Cm_rdma_set_option_ack_timeout, BecomesTheTimeoutOfTheQp) {
  Listen();
  active = CmId(active_channel, RDMA_PS_TCP);
  ASSERT_EQ(SetByte(active, RDMA_OPTION_ID_ACK_TIMEOUT, 12), 0);
  Address there = ListenerAddress();
  ASSERT_EQ(rdma_resolve_addr(active.get(), nullptr, there.get(), 2000), 0);
  active_channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_EQ(rdma_resolve_route(active.get(), 2000), 0);
  active_channel.Expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
  ASSERT_EQ(MakeQp(active.get()), 0);
  Request();
  Accept();
  EXPECT_EQ(AttributesOf(active->qp).timeout, 12);
}

TEST_F(Cm_rdma_set_option_ack_timeout, IsOfReliableServicesAndHasFiveBits) {
  CmId datagrams(active_channel, RDMA_PS_UDP), stream(active_channel, RDMA_PS_TCP);
  EXPECT_FAILS(SetByte(datagrams, RDMA_OPTION_ID_ACK_TIMEOUT, 12), EINVAL);
  EXPECT_FAILS(SetByte(stream, RDMA_OPTION_ID_ACK_TIMEOUT, 32), EINVAL);
  EXPECT_EQ(SetByte(stream, RDMA_OPTION_ID_ACK_TIMEOUT, 31), 0);
}

TEST(Cm_rdma_set_option_ib_path, StandsForResolvingARoute) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  ibv_path_data path = {};
  auto set = [&](size_t bytes) {
    return rdma_set_option(id.get(), RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, bytes);
  };
  EXPECT_FAILS(set(sizeof path), EINVAL);  // no address yet
  Address there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_FAILS(set(sizeof path - 1), EINVAL);
  EXPECT_FAILS(set(sizeof path), EINVAL);  // a path for nothing
  path.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
  ASSERT_EQ(set(sizeof path), 0) << strerror(errno);
  channel.Expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_EQ(id->route.num_paths, 1);
}

}  // namespace
}  // namespace verbena::conformance
