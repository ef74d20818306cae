// Channels, identifiers and devices: made, moved, destroyed, and the events that programs write.
#include <dlfcn.h>
#include <fcntl.h>
#include <rdma/rsocket.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <set>
#include <thread>

#include "tests/conformance/rdmacm_fixture.h"
#include "tests/conformance/rdmacm_v64.h"

namespace verbena::conformance {
namespace {

// --- rdma_create_event_channel, rdma_destroy_event_channel ---------------------------------------

TEST(Cm_rdma_create_event_channel, FdIsReadableWhileEventsWait) {
  Channel channel;
  EXPECT_GE(channel.get()->fd, 0);
  EXPECT_FALSE(channel.IsReadable());
  CmId id(channel, RDMA_PS_TCP);
  Address there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  EXPECT_TRUE(channel.IsReadable(kPatience));
  channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_FALSE(channel.IsReadable());
}

TEST(Cm_rdma_create_event_channel, ManyHaveFdsOfTheirOwn) {
  std::vector<std::unique_ptr<Channel>> channels;
  std::set<int> fds;
  for (int i = 0; i < 100; ++i) {
    channels.push_back(std::make_unique<Channel>());
    EXPECT_TRUE(fds.insert(channels.back()->get()->fd).second);
  }
}

TEST(Cm_rdma_destroy_event_channel, ClosesItsFd) {
  rdma_event_channel* channel = rdma_create_event_channel();
  ASSERT_NE(channel, nullptr);
  const int fd = channel->fd;
  rdma_destroy_event_channel(channel);
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
  EXPECT_EQ(errno, EBADF);
}

// --- rdma_get_cm_event, rdma_ack_cm_event --------------------------------------------------------

TEST(Cm_rdma_get_cm_event, DoesNotBlockWhereTheFdDoesNot) {
  Channel channel;
  const int flags = fcntl(channel.get()->fd, F_GETFL);
  ASSERT_EQ(fcntl(channel.get()->fd, F_SETFL, flags | O_NONBLOCK), 0);
  rdma_cm_event* event = nullptr;
  EXPECT_FAILS(rdma_get_cm_event(channel.get(), &event), EAGAIN);
}

TEST(Cm_rdma_get_cm_event, WaitsForAnEvent) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  std::atomic<bool> has_returned = false;
  std::thread waiter([&] {
    rdma_cm_event* event = nullptr;
    EXPECT_EQ(rdma_get_cm_event(channel.get(), &event), 0);
    has_returned = true;
    EXPECT_EQ(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(rdma_ack_cm_event(event), 0);
  });
  EXPECT_TRUE(NeverWithin([&] { return has_returned.load(); }));
  Address there("127.0.0.1", 7471);
  EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  waiter.join();
}

// Sends signals to `thread` for `span`, or until `is_over`. Their handler does nothing, and stays.
void Interrupt(std::thread& thread, int handler_flags, Milliseconds span,
               const std::function<bool()>& is_over) {
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  action.sa_flags = handler_flags;
  ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
  Eventually(
      [&] {
        pthread_kill(thread.native_handle(), SIGUSR1);
        return is_over();
      },
      span);
}

TEST(Cm_rdma_get_cm_event, ASignalEndsTheWaiting) {
  Channel channel;
  std::atomic<int> error = 0;
  std::thread waiter([&] {
    rdma_cm_event* event = nullptr;
    error = rdma_get_cm_event(channel.get(), &event) == 0 ? -1 : errno;
  });
  Interrupt(waiter, 0, kPatience, [&] { return error != 0; });
  waiter.join();
  EXPECT_EQ(error, EINTR);
}

TEST(Cm_rdma_get_cm_event, ASignalThatRestartsCallsDoesNot) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  std::atomic<bool> has_returned = false;
  std::thread waiter([&] {
    rdma_cm_event* event = nullptr;
    EXPECT_EQ(rdma_get_cm_event(channel.get(), &event), 0) << strerror(errno);
    has_returned = true;
    if (event != nullptr) rdma_ack_cm_event(event);
  });
  Interrupt(waiter, SA_RESTART, Milliseconds(30), [&] { return has_returned.load(); });
  EXPECT_FALSE(has_returned);
  Address there("127.0.0.1", 7471);
  EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  waiter.join();
}

TEST(Cm_rdma_get_cm_event, ABurstWakesEachThreadThatWaits) {
  Channel from, to;
  for (int round = 0; round < 10; ++round) {
    CmId id(from, RDMA_PS_UDP);
    Address here("127.0.0.1"), group("239.1.2.1"), other("239.1.2.2"), last("239.1.2.3");
    ASSERT_EQ(rdma_bind_addr(id.get(), here.get()), 0);
    std::atomic<int> returned = 0;
    auto take_one = [&] {
      rdma_cm_event* event = nullptr;
      EXPECT_EQ(rdma_get_cm_event(to.get(), &event), 0) << strerror(errno);
      if (event != nullptr) rdma_ack_cm_event(event);
      ++returned;
    };
    std::thread one(take_one), another(take_one);
    EXPECT_TRUE(NeverWithin([&] { return returned > 0; }));
    // Two events wait elsewhere, and come at once.
    EXPECT_EQ(rdma_join_multicast(id.get(), group.get(), nullptr), 0) << strerror(errno);
    EXPECT_EQ(rdma_join_multicast(id.get(), other.get(), nullptr), 0) << strerror(errno);
    EXPECT_TRUE(from.IsReadable(kPatience));
    EXPECT_EQ(rdma_migrate_id(id.get(), to.get()), 0) << strerror(errno);
    const bool have_both = Eventually([&] { return returned == 2; });
    EXPECT_TRUE(have_both) << returned << " of 2 threads woke, in round " << round;
    if (!have_both) {
      to.Next();
      EXPECT_EQ(rdma_join_multicast(id.get(), last.get(), nullptr), 0);
    }
    one.join();
    another.join();
    if (!have_both) break;
  }
}

TEST(Cm_rdma_get_cm_event, RefusesNullPointers) {
  Channel channel;
  rdma_cm_event* event = nullptr;
  EXPECT_FAILS(rdma_get_cm_event(channel.get(), nullptr), EINVAL);
  if (v64::IsOurs()) {  // upstream's follows the pointer
    EXPECT_FAILS(rdma_get_cm_event(nullptr, &event), EINVAL);
  }
}

TEST(Cm_rdma_ack_cm_event, RefusesNoEvent) { EXPECT_FAILS(rdma_ack_cm_event(nullptr), EINVAL); }

// --- rdma_create_id, rdma_destroy_id -------------------------------------------------------------

TEST(Cm_rdma_create_id, HoldsWhatItWasMadeOf) {
  Channel channel;
  int context = 0;
  CmId id(channel, RDMA_PS_TCP, &context);
  EXPECT_EQ(id->channel, channel.get());
  EXPECT_EQ(id->context, &context);
  EXPECT_EQ(id->ps, RDMA_PS_TCP);
  EXPECT_EQ(id->verbs, nullptr);
  EXPECT_EQ(id->qp, nullptr);
  EXPECT_EQ(id->pd, nullptr);
}

TEST(Cm_rdma_create_id, PortSpaceDecidesTheService) {
  Channel channel;
  EXPECT_EQ(CmId(channel, RDMA_PS_TCP)->qp_type, IBV_QPT_RC);
  EXPECT_EQ(CmId(channel, RDMA_PS_IB)->qp_type, IBV_QPT_RC);
  EXPECT_EQ(CmId(channel, RDMA_PS_UDP)->qp_type, IBV_QPT_UD);
  EXPECT_EQ(CmId(channel, RDMA_PS_IPOIB)->qp_type, IBV_QPT_UD);
}

TEST(Cm_rdma_create_id, RefusesOtherPortSpaces) {
  Channel channel;
  for (int port_space : {0, 1, 0x0107, 0xffff}) {
    rdma_cm_id* id = nullptr;
    EXPECT_FAILS(
        rdma_create_id(channel.get(), &id, nullptr, static_cast<rdma_port_space>(port_space)),
        EINVAL);
    EXPECT_EQ(id, nullptr);
  }
}

TEST(Cm_rdma_create_id, WithoutAChannelItHasItsOwn) {
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP), 0);
  ASSERT_NE(id->channel, nullptr);
  const int fd = id->channel->fd;
  EXPECT_EQ(rdma_destroy_id(id), 0);
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
}

TEST(Cm_rdma_destroy_id, WaitsUntilItsEventsAreAcknowledged) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  Address there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  rdma_cm_event* event = channel.Take();
  ASSERT_NE(event, nullptr);
  std::atomic<bool> has_returned = false;
  std::thread destroyer([&] {
    id.Destroy();
    has_returned = true;
  });
  EXPECT_TRUE(NeverWithin([&] { return has_returned.load(); }));
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  destroyer.join();
}

TEST(Cm_rdma_destroy_id, MayBeCancelledWhileItWaits) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  Address there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  ASSERT_NE(channel.Take(), nullptr);
  rdma_cm_id* lost = id.release();
  CancelWhileItWaits([&] { rdma_destroy_id(lost); });
}

TEST(Cm_rdma_destroy_id, TakesItsWaitingEventsAlong) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  CmId other(channel, RDMA_PS_TCP);
  Address there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  ASSERT_EQ(rdma_resolve_addr(other.get(), nullptr, there.get(), 2000), 0);
  ASSERT_TRUE(channel.IsReadable(kPatience));
  id.Destroy();
  EXPECT_EQ(channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED).id, other.get());
  EXPECT_FALSE(channel.IsReadable());
}

// --- rdma_migrate_id -----------------------------------------------------------------------------

TEST(Cm_rdma_migrate_id, WaitingEventsGoAlong) {
  Channel from, to;
  CmId id(from, RDMA_PS_TCP);
  Address there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  ASSERT_TRUE(from.IsReadable(kPatience));
  ASSERT_EQ(rdma_migrate_id(id.get(), to.get()), 0);
  EXPECT_EQ(id->channel, to.get());
  EXPECT_FALSE(from.IsReadable());
  EXPECT_EQ(to.Expect(RDMA_CM_EVENT_ADDR_RESOLVED).id, id.get());
}

TEST(Cm_rdma_migrate_id, WaitsUntilTakenEventsAreAcknowledged) {
  Channel from, to;
  CmId id(from, RDMA_PS_TCP);
  Address there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  rdma_cm_event* event = from.Take();
  ASSERT_NE(event, nullptr);
  std::atomic<bool> has_returned = false;
  std::thread migrant([&] {
    EXPECT_EQ(rdma_migrate_id(id.get(), to.get()), 0);
    has_returned = true;
  });
  EXPECT_TRUE(NeverWithin([&] { return has_returned.load(); }));
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  migrant.join();
}

TEST(Cm_rdma_migrate_id, MayBeCancelledWhileItWaits) {
  Channel from, to;
  CmId id(from, RDMA_PS_TCP);
  Address there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  ASSERT_NE(from.Take(), nullptr);
  rdma_cm_id* lost = id.release();
  CancelWhileItWaits([&] { rdma_migrate_id(lost, to.get()); });
}

TEST(Cm_rdma_migrate_id, ToNoChannelMakesItSynchronous) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  ASSERT_EQ(rdma_migrate_id(id.get(), nullptr), 0);
  EXPECT_NE(id->channel, channel.get());
  Address there("127.0.0.1", 7471);
  EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  ASSERT_NE(id->event, nullptr);
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_FAILS(rdma_migrate_id(id.get(), nullptr), EINVAL);
  // And back.
  ASSERT_EQ(rdma_migrate_id(id.get(), channel.get()), 0);
  EXPECT_EQ(id->event, nullptr);
  EXPECT_EQ(rdma_resolve_route(id.get(), 2000), 0);
  channel.Expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
}

// --- rdma_get_devices, rdma_free_devices ---------------------------------------------------------

TEST(Cm_rdma_get_devices, ListsEachNicOpened) {
  int count = 0;
  ibv_context** devices = rdma_get_devices(&count);
  ASSERT_NE(devices, nullptr);
  ASSERT_GE(count, 2);
  EXPECT_EQ(devices[count], nullptr);
  ibv_device_attr attr;
  for (int i = 0; i < count; ++i) EXPECT_EQ(ibv_query_device(devices[i], &attr), 0);
  ibv_context** again = rdma_get_devices(nullptr);
  ASSERT_NE(again, nullptr);
  for (int i = 0; i < count; ++i) EXPECT_EQ(again[i], devices[i]);
  rdma_free_devices(devices);
  rdma_free_devices(again);
}

TEST(Cm_rdma_get_devices, IdentifiersHaveTheSameContexts) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  Address here("127.0.0.2");
  ASSERT_EQ(rdma_bind_addr(id.get(), here.get()), 0);
  int count = 0;
  ibv_context** devices = rdma_get_devices(&count);
  ASSERT_GE(count, 2);
  EXPECT_EQ(id->verbs, devices[1]);
  rdma_free_devices(devices);
}

// --- rdma_event_str ------------------------------------------------------------------------------

TEST(Cm_rdma_event_str, NamesEachEvent) {
  static constexpr const char* kNames[] = {
      "ADDR_RESOLVED",     "ADDR_ERROR",       "ROUTE_RESOLVED", "ROUTE_ERROR",
      "CONNECT_REQUEST",   "CONNECT_RESPONSE", "CONNECT_ERROR",  "UNREACHABLE",
      "REJECTED",          "ESTABLISHED",      "DISCONNECTED",   "DEVICE_REMOVAL",
      "MULTICAST_JOIN",    "MULTICAST_ERROR",  "ADDR_CHANGE",    "TIMEWAIT_EXIT",
      "ADDRINFO_RESOLVED", "ADDRINFO_ERROR"};
  const size_t count = v64::IsOurs() ? std::size(kNames) : RDMA_CM_EVENT_TIMEWAIT_EXIT + 1;
  for (size_t i = 0; i < count; ++i) {
    EXPECT_EQ(rdma_event_str(static_cast<rdma_cm_event_type>(i)),
              std::string("RDMA_CM_EVENT_") + kNames[i]);
  }
  EXPECT_STREQ(rdma_event_str(static_cast<rdma_cm_event_type>(99)), "UNKNOWN EVENT");
}

// --- rdma_write_cm_event -------------------------------------------------------------------------

TEST(Cm_rdma_write_cm_event, ArrivesBehindWhatWaits) {
  if (!v64::IsOurs()) GTEST_SKIP() << "an older librdmacm";
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  Address there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  ASSERT_TRUE(channel.IsReadable(kPatience));
  ASSERT_EQ(v64::WriteCmEvent(id.get(), v64::kEventUser, 7, 0x1234'5678'9abc'def0), 0);
  channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  Told told = channel.Next();
  EXPECT_EQ(told.type, v64::kEventUser);
  EXPECT_EQ(told.id, id.get());
  EXPECT_EQ(told.status, 7);
  EXPECT_EQ(told.arg, 0x1234'5678'9abc'def0u);
}

TEST(Cm_rdma_write_cm_event, WakesWhoWaits) {
  if (!v64::IsOurs()) GTEST_SKIP() << "an older librdmacm";
  Channel channel;
  CmId id(channel, RDMA_PS_UDP);
  std::thread waiter([&] {
    rdma_cm_event* event = nullptr;
    ASSERT_EQ(rdma_get_cm_event(channel.get(), &event), 0);
    EXPECT_EQ(event->event, v64::kEventUser);
    EXPECT_EQ(rdma_ack_cm_event(event), 0);
  });
  EXPECT_EQ(v64::WriteCmEvent(id.get(), v64::kEventUser, 0, 0), 0);
  waiter.join();
}

TEST(Cm_rdma_write_cm_event, RefusesOtherEvents) {
  if (!v64::IsOurs()) GTEST_SKIP() << "an older librdmacm";
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  for (int event = 0; event < 25; ++event) {
    if (event == v64::kEventUser) continue;
    EXPECT_FAILS(v64::WriteCmEvent(id.get(), static_cast<rdma_cm_event_type>(event), 0, 0), EINVAL);
  }
  EXPECT_FALSE(channel.IsReadable());
}

// --- rdma_resolve_addrinfo, rdma_query_addrinfo --------------------------------------------------

TEST(Cm_rdma_resolve_addrinfo, TellsByAnEventAndGivesTheResultOnce) {
  if (!v64::IsOurs()) GTEST_SKIP() << "an older librdmacm";
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  rdma_addrinfo hints = {};
  hints.ai_port_space = RDMA_PS_TCP;
  rdma_addrinfo* info = nullptr;
  EXPECT_FAILS(v64::QueryAddrinfo(id.get(), &info), ENOENT);
  ASSERT_EQ(v64::ResolveAddrinfo(id.get(), "127.0.0.1", "7471", &hints), 0);
  EXPECT_FAILS(v64::ResolveAddrinfo(id.get(), "127.0.0.1", "7471", &hints), EBUSY);
  EXPECT_EQ(channel.Next().type, v64::kEventAddrinfoResolved);
  ASSERT_EQ(v64::QueryAddrinfo(id.get(), &info), 0);
  ASSERT_NE(info->ai_dst_addr, nullptr);
  EXPECT_EQ(Address::Of(info->ai_dst_addr).text(), "127.0.0.1");
  EXPECT_EQ(Address::Of(info->ai_dst_addr).port(), 7471);
  rdma_freeaddrinfo(info);
  EXPECT_FAILS(v64::QueryAddrinfo(id.get(), &info), ENOENT);
  EXPECT_EQ(v64::ResolveAddrinfo(id.get(), "127.0.0.1", "7471", &hints), 0);
  EXPECT_EQ(channel.Next().type, v64::kEventAddrinfoResolved);
}

TEST(Cm_rdma_resolve_addrinfo, RefusesServiceRecords) {
  if (!v64::IsOurs()) GTEST_SKIP() << "an older librdmacm";
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  rdma_addrinfo hints = {};
  hints.ai_flags = v64::kRaiSa;
  EXPECT_FAILS(v64::ResolveAddrinfo(id.get(), nullptr, "service", &hints), EOPNOTSUPP);
  EXPECT_FAILS(v64::ResolveAddrinfo(id.get(), nullptr, nullptr, &hints), EINVAL);
  EXPECT_FAILS(v64::ResolveAddrinfo(id.get(), "node", "service", &hints), ENOTSUP);
  hints.ai_flags |= v64::kRaiDns;
  EXPECT_FAILS(v64::ResolveAddrinfo(id.get(), nullptr, "service", &hints), ENOTSUP);
  EXPECT_FAILS(v64::ResolveAddrinfo(nullptr, nullptr, nullptr, nullptr), EINVAL);
  rdma_addrinfo* info = nullptr;
  EXPECT_FAILS(v64::QueryAddrinfo(nullptr, &info), EINVAL);
}

TEST(Cm_rdma_query_addrinfo, IsFreedWithItsIdentifierIfNobodyAsks) {
  if (!v64::IsOurs()) GTEST_SKIP() << "an older librdmacm";
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  ASSERT_EQ(v64::ResolveAddrinfo(id.get(), "127.0.0.1", "7471", nullptr), 0);
  EXPECT_EQ(channel.Next().type, v64::kEventAddrinfoResolved);
  EXPECT_FAILS(v64::QueryAddrinfo(id.get(), nullptr), EINVAL);
}

// --- rsockets ------------------------------------------------------------------------------------

TEST(Rsocket, EachFunctionSaysEnosys) {
  if (!v64::IsOurs()) GTEST_SKIP() << "upstream's library has them";
  char byte = 0;
  iovec vector = {&byte, 1};
  msghdr message = {};
  sockaddr_storage storage = {};
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  socklen_t length = sizeof storage;
  EXPECT_FAILS(rsocket(AF_INET, SOCK_STREAM, 0), ENOSYS);
  EXPECT_FAILS(rbind(1, address, length), ENOSYS);
  EXPECT_FAILS(rlisten(1, 1), ENOSYS);
  EXPECT_FAILS(raccept(1, address, &length), ENOSYS);
  EXPECT_FAILS(rconnect(1, address, length), ENOSYS);
  EXPECT_FAILS(rshutdown(1, 0), ENOSYS);
  EXPECT_FAILS(rclose(1), ENOSYS);
  EXPECT_FAILS(rrecv(1, &byte, 1, 0), ENOSYS);
  EXPECT_FAILS(rrecvfrom(1, &byte, 1, 0, address, &length), ENOSYS);
  EXPECT_FAILS(rrecvmsg(1, &message, 0), ENOSYS);
  EXPECT_FAILS(rsend(1, &byte, 1, 0), ENOSYS);
  EXPECT_FAILS(rsendto(1, &byte, 1, 0, address, length), ENOSYS);
  EXPECT_FAILS(rsendmsg(1, &message, 0), ENOSYS);
  EXPECT_FAILS(rread(1, &byte, 1), ENOSYS);
  EXPECT_FAILS(rreadv(1, &vector, 1), ENOSYS);
  EXPECT_FAILS(rwrite(1, &byte, 1), ENOSYS);
  EXPECT_FAILS(rwritev(1, &vector, 1), ENOSYS);
  EXPECT_FAILS(rpoll(nullptr, 0, 0), ENOSYS);
  EXPECT_FAILS(rselect(0, nullptr, nullptr, nullptr, nullptr), ENOSYS);
  EXPECT_FAILS(rgetpeername(1, address, &length), ENOSYS);
  EXPECT_FAILS(rgetsockname(1, address, &length), ENOSYS);
  EXPECT_FAILS(rsetsockopt(1, 0, 0, &byte, 1), ENOSYS);
  EXPECT_FAILS(rgetsockopt(1, 0, 0, &byte, &length), ENOSYS);
  EXPECT_FAILS(rfcntl(1, F_GETFL), ENOSYS);
  EXPECT_FAILS(riomap(1, &byte, 1, 0, 0, 0), ENOSYS);
  EXPECT_FAILS(riounmap(1, &byte, 1), ENOSYS);
  EXPECT_FAILS(static_cast<ssize_t>(riowrite(1, &byte, 1, 0, 0)), ENOSYS);
}

}  // namespace
}  // namespace verbena::conformance
