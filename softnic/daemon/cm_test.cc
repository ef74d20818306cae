// Connection management by a running daemon, between sessions and over the wire.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <memory>
#include <string>
#include <vector>

#include "softnic/daemon/cm_test_client.h"

namespace verbena::softnic {
namespace {

using shm::CmHandle;
using shm::CmOp;

TEST(CmSession, AChannelIsQuietAndHangsUpWithTheDaemon) {
  TestDaemon daemon;
  CmTestClient client(daemon);
  const CmHandle channel = client.CreateChannel();
  ASSERT_NE(channel, 0u);
  EXPECT_FALSE(client.IsReadable(channel));
  EXPECT_EQ(client.Ask(CmOp::kGetEvent, channel), EAGAIN);
  EXPECT_EQ(client.fd, -1) << "no reply but a new channel's brings an fd";
  ASSERT_EQ(kill(daemon.pid(), SIGTERM), 0);
  EXPECT_EQ(daemon.Wait(), 0);
  pollfd p = {client.FdOf(channel), POLLIN, 0};
  ASSERT_EQ(poll(&p, 1, kTestTimeoutMs), 1);
  EXPECT_NE(p.revents & POLLHUP, 0);
}

TEST(CmSession, OtherAbiVersionIsToldSo) {
  TestDaemon daemon;
  CmTestClient client;
  shm::Hello hello = CmTestClient::HelloOf();
  hello.abi_version += 1;
  EXPECT_EQ(client.Open(daemon.directory(), hello), EPROTO);
}

TEST(CmSession, AProgramsNameIsMadePrintable) {
  TestDaemon daemon;
  CmTestClient client;
  shm::Hello hello = CmTestClient::HelloOf();
  std::strcpy(hello.program, "line\nline\xff");
  ASSERT_EQ(client.Open(daemon.directory(), hello), 0);
  ASSERT_NE(client.CreateId(client.CreateChannel(), 1), 0u);
  const std::string shown = daemon.Ask("{\"op\":\"show\",\"kind\":\"cm\"}");
  EXPECT_NE(shown.find("\"program\":\"line?line?\""), std::string::npos) << shown;
}

TEST(CmSession, TooManyAreToldSo) {
  TestDaemon daemon({"--max-sessions=2"});
  CmTestClient one(daemon), other(daemon), third;
  EXPECT_EQ(third.Open(daemon.directory()), EMFILE);
  other.Close();
  EXPECT_TRUE(Eventually([&] { return daemon.StatusNumber("cm_sessions") == 1; }));
  EXPECT_EQ(third.Open(daemon.directory()), 0);
}

TEST(CmSession, HandlesOfOthersAreNone) {
  TestDaemon daemon;
  CmTestClient one(daemon), other(daemon);
  const CmHandle channel = one.CreateChannel();
  const CmHandle id = one.CreateId(channel, 1);
  ASSERT_NE(id, 0u);
  EXPECT_EQ(other.Ask(CmOp::kGetEvent, channel), ENOENT);
  EXPECT_EQ(other.Ask(CmOp::kDestroyId, id), ENOENT);
  EXPECT_EQ(other.Ask(CmOp::kDestroyChannel, channel), ENOENT);
  EXPECT_EQ(one.Ask(static_cast<CmOp>(9999), id), EINVAL);
  EXPECT_EQ(one.Ask(CmOp::kDestroyId, id), 0);
  EXPECT_EQ(one.DestroyChannel(channel), 0);
}

TEST(CmSession, AMalformedRequestEndsItAloneAndNothingIsLeft) {
  TestDaemon daemon;
  CmTestClient honest(daemon);
  const CmHandle channel = honest.CreateChannel();
  const int baseline = daemon.IdleFdCount();
  std::string junk(70'000, 'x');
  for (size_t bytes :
       {size_t{1}, sizeof(shm::CmRequest) - 1, sizeof(shm::CmRequest) + 1, junk.size()}) {
    CmTestClient client(daemon);
    const CmHandle its_channel = client.CreateChannel();
    ASSERT_NE(its_channel, 0u);
    ASSERT_GT(send(client.socket(), junk.data(), bytes, MSG_NOSIGNAL), 0);
    char byte;
    EXPECT_EQ(recv(client.socket(), &byte, 1, 0), 0) << bytes << " bytes: not ended";
    pollfd p = {client.FdOf(its_channel), POLLIN, 0};
    EXPECT_EQ(poll(&p, 1, kTestTimeoutMs), 1);
    EXPECT_NE(p.revents & POLLHUP, 0);
  }
  // A request of noise is of the right length, and answered.
  CmTestClient noisy(daemon);
  ASSERT_EQ(send(noisy.socket(), junk.data(), sizeof(shm::CmRequest), MSG_NOSIGNAL),
            ssize_t{sizeof(shm::CmRequest)});
  EXPECT_GT(noisy.Await(), 0);
  noisy.Close();
  EXPECT_TRUE(Eventually([&] { return daemon.FdCount() <= baseline; })) << daemon.FdCount();
  EXPECT_EQ(honest.Ask(CmOp::kGetEvent, channel), EAGAIN);
  EXPECT_EQ(daemon.StatusNumber("cm_sessions"), 1);
}

TEST(CmSession, AClientThatDoesNotReadItsRepliesIsEnded) {
  TestDaemon daemon;
  CmTestClient client(daemon);
  const shm::CmRequest request = CmTestClient::RequestOf(CmOp::kGetEvent, 1);
  // Answers pile up until the socket is full.
  EXPECT_TRUE(Eventually([&] {
    return send(client.socket(), &request, sizeof(request), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 &&
           errno == EPIPE;
  }));
  EXPECT_TRUE(Eventually([&] { return daemon.StatusNumber("cm_sessions") == 0; }));
}

TEST(CmSession, WithoutFdsThereIsNoChannelAndLaterThereIs) {
  TestDaemon daemon;
  CmTestClient client(daemon);
  const CmHandle first = client.CreateChannel();
  ASSERT_NE(first, 0u);
  const auto fds = static_cast<rlim_t>(daemon.IdleFdCount());
  rlimit before = {};
  const rlimit few = {fds + 8, fds + 8};
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  std::vector<CmHandle> channels;
  for (CmHandle channel = 1; channel != 0 && channels.size() < 20;) {
    channel = client.CreateChannel();
    if (channel != 0) channels.push_back(channel);
  }
  EXPECT_LT(channels.size(), 20u);
  EXPECT_EQ(client.reply.error, EMFILE);
  EXPECT_EQ(client.reply.handle, 0u);
  ASSERT_FALSE(channels.empty());
  EXPECT_EQ(client.DestroyChannel(channels.back()), 0);
  EXPECT_NE(client.CreateChannel(), 0u);
}

TEST(CmSession, KeepsTheInstanceAliveUntilItEnds) {
  TestDaemon daemon({"--idle-exit-s=4"});  // enough to attach on a busy machine
  auto client = std::make_unique<CmTestClient>(daemon);
  poll(nullptr, 0, 5500);  // the time itself is what is tested
  EXPECT_NE(client->CreateChannel(), 0u);
  client.reset();
  const int status = daemon.Wait();
  EXPECT_TRUE(WIFEXITED(status)) << status;
}

// --- connections ---------------------------------------------------------------------------------

// A listener and whoever connects to it, a session each.
class CmPair {
 protected:
  explicit CmPair(std::vector<std::string> flags)
      : daemon(std::move(flags)), server(daemon), client(daemon) {
    server_channel = server.CreateChannel();
    client_channel = client.CreateChannel();
  }
  // NIC k's address, as text.
  std::string AddressOf(int nic) const {
    const std::string devices = daemon.Ask("{\"op\":\"devices\"}");
    size_t at = 0;
    for (int i = 0; i <= nic; ++i) at = devices.find("\"ipv4\":\"", at) + 8;
    return devices.substr(at, devices.find('"', at) - at);
  }
  // Listens on NIC 1, at a port that the daemon chooses.
  void Listen(uint32_t backlog = 0) {
    listener = server.CreateId(server_channel, kListenerCookie);
    ASSERT_EQ(server.Bind(listener, CmAddressOf(AddressOf(1).c_str(), 0)), 0);
    ASSERT_EQ(server.Ask(CmOp::kListen, listener, backlog), 0);
    ASSERT_EQ(server.Ask(CmOp::kQuery, listener), 0);
    address = server.reply.query.source;
    ASSERT_NE(address.port, 0);
  }
  // As far as the route.
  CmHandle Resolve(uint64_t cookie) {
    const CmHandle id = client.CreateId(client_channel, cookie);
    EXPECT_EQ(client.ResolveAddr(id, address), 0);
    EXPECT_EQ(client.NextEvent(client_channel), kAddrResolved);
    EXPECT_EQ(client.reply.event.cookie, cookie);
    EXPECT_EQ(client.Ask(CmOp::kResolveRoute, id, 2000), 0);
    EXPECT_EQ(client.NextEvent(client_channel), kRouteResolved);
    return id;
  }
  // As far as the server's connect request, whose identifier it returns.
  CmHandle TakeRequest() {
    EXPECT_EQ(server.NextEvent(server_channel), kConnectRequest);
    EXPECT_EQ(server.reply.event.cookie, kListenerCookie);
    EXPECT_EQ(server.reply.event.listener, listener);
    return server.reply.event.id;
  }
  void Connect() {
    Listen();
    active = Resolve(kActiveCookie);
    ASSERT_EQ(client.Connect(CmOp::kConnect, active, 0, 0x111, "hello"), 0);
    passive = TakeRequest();
    const shm::CmConnParam& asked = server.reply.event.param;
    EXPECT_EQ(asked.qp_num, 0x111u);
    EXPECT_EQ(std::memcmp(asked.private_data, "hello", 5), 0);
    ASSERT_EQ(server.Connect(CmOp::kAccept, passive, kPassiveCookie, 0x222, "world"), 0);
    ASSERT_EQ(client.NextEvent(client_channel), kConnectResponse);
    const shm::CmConnParam& answered = client.reply.event.param;
    EXPECT_EQ(answered.qp_num, 0x222u);
    EXPECT_EQ(std::memcmp(answered.private_data, "world", 5), 0);
    ASSERT_EQ(client.Ask(CmOp::kEstablish, active), 0);
    ASSERT_EQ(server.NextEvent(server_channel), kEstablished);
    EXPECT_EQ(server.reply.event.cookie, kPassiveCookie);
    EXPECT_FALSE(server.IsReadable(server_channel));
  }

  static constexpr uint64_t kListenerCookie = 11, kActiveCookie = 22, kPassiveCookie = 33;
  TestDaemon daemon;
  CmTestClient server, client;
  CmHandle server_channel = 0, client_channel = 0;
  CmHandle listener = 0, active = 0, passive = 0;
  shm::CmAddress address = {};
};

class CmConnect : public ::testing::TestWithParam<bool>, public CmPair {
 protected:
  static std::vector<std::string> Flags(bool is_wire) {
    std::vector<std::string> flags = {"--nics=2"};
    if (is_wire) flags.push_back("--wire=1");
    return flags;
  }
  CmConnect() : CmPair(Flags(GetParam())) {}
};

TEST_P(CmConnect, TwoSessionsConnectAndDisconnect) {
  Connect();
  ASSERT_EQ(client.Ask(CmOp::kDisconnect, active), 0);
  EXPECT_EQ(server.NextEvent(server_channel), kDisconnected);
  EXPECT_EQ(server.reply.event.cookie, kPassiveCookie);
  EXPECT_EQ(server.Ask(CmOp::kDisconnect, passive), 0);
  EXPECT_EQ(client.NextEvent(client_channel), kDisconnected);
  EXPECT_EQ(client.reply.event.cookie, kActiveCookie);
  EXPECT_EQ(client.Ask(CmOp::kDestroyId, active), 0);
  EXPECT_EQ(server.Ask(CmOp::kDestroyId, passive), 0);
  EXPECT_EQ(server.Ask(CmOp::kDestroyId, listener), 0);
  EXPECT_EQ(daemon.StatusNumber("cm_ids"), 0);
}

TEST_P(CmConnect, QueuePairsAreToldEachOther) {
  Connect();
  ASSERT_EQ(client.Ask(CmOp::kInitQpAttr, active, 2 /* IBV_QPS_RTR */), 0);
  EXPECT_EQ(client.reply.qp_attr.dest_qp_num, 0x222u);
  const uint32_t client_rq_psn = client.reply.qp_attr.rq_psn;
  ASSERT_EQ(server.Ask(CmOp::kInitQpAttr, passive, 3 /* IBV_QPS_RTS */), 0);
  EXPECT_EQ(server.reply.qp_attr.sq_psn, client_rq_psn);
  ASSERT_EQ(client.Ask(CmOp::kQuery, active), 0);
  EXPECT_EQ(client.reply.query.has_route, 1);
  EXPECT_EQ(client.reply.query.destination.port, address.port);
}

TEST_P(CmConnect, ASessionThatEndsDisconnectsItsPeers) {
  Connect();
  server.CloseSocket();
  EXPECT_EQ(client.NextEvent(client_channel), kDisconnected);
  EXPECT_TRUE(Eventually([&] { return daemon.StatusNumber("cm_sessions") == 1; }));
}

TEST_P(CmConnect, WhereNobodyListensItIsRejected) {
  Listen();
  ASSERT_EQ(server.Ask(CmOp::kDestroyId, listener), 0);
  const CmHandle id = Resolve(1);
  ASSERT_EQ(client.Connect(CmOp::kConnect, id, 0, 0x111, ""), 0);
  EXPECT_EQ(client.NextEvent(client_channel), kRejected);
  EXPECT_EQ(client.reply.event.status, 8);  // invalid service ID, IBTA 12.6.7.2
}

TEST_P(CmConnect, ARejectionBringsItsPrivateData) {
  Listen();
  const CmHandle id = Resolve(1);
  ASSERT_EQ(client.Connect(CmOp::kConnect, id, 0, 0x111, ""), 0);
  const CmHandle request_id = TakeRequest();
  shm::CmRequest request = CmTestClient::RequestOf(CmOp::kReject, request_id);
  request.reject.reason = 28;
  request.reject.private_data_len = 2;
  std::memcpy(request.reject.private_data, "no", 2);
  ASSERT_EQ(server.Ask(request), 0);
  EXPECT_EQ(client.NextEvent(client_channel), kRejected);
  EXPECT_EQ(client.reply.event.status, 28);
  EXPECT_EQ(std::memcmp(client.reply.event.param.private_data, "no", 2), 0);
}

TEST_P(CmConnect, ManyConnectAtOnce) {
  constexpr int kConnections = 200;
  Listen(kConnections);
  std::vector<CmHandle> ids;
  for (int i = 0; i < kConnections; ++i) ids.push_back(Resolve(100 + static_cast<uint64_t>(i)));
  for (CmHandle id : ids) ASSERT_EQ(client.Connect(CmOp::kConnect, id, 0, 0x1000 + id, ""), 0);
  std::vector<CmHandle> taken;
  for (int i = 0; i < kConnections; ++i) {
    taken.push_back(TakeRequest());
    ASSERT_EQ(server.Connect(CmOp::kAccept, taken.back(), 1, 0x2000 + taken.back(), ""), 0);
  }
  for (int i = 0; i < kConnections; ++i) {
    ASSERT_EQ(client.NextEvent(client_channel), kConnectResponse) << i;
    ASSERT_EQ(client.Ask(CmOp::kEstablish, client.reply.event.id), 0);
  }
  for (int i = 0; i < kConnections; ++i) {
    ASSERT_EQ(server.NextEvent(server_channel), kEstablished) << i;
  }
  client.Close();
  for (int i = 0; i < kConnections; ++i) {
    ASSERT_EQ(server.NextEvent(server_channel), kDisconnected) << i;
  }
  server.Close();
  EXPECT_TRUE(Eventually([&] { return daemon.StatusNumber("cm_ids") == 0; }));
}

TEST_P(CmConnect, ConnectionsThatEndedLeaveNothing) {
  Listen();
  int fds = 0;
  for (int i = 0; i < 300; ++i) {
    active = Resolve(kActiveCookie);
    ASSERT_EQ(client.Connect(CmOp::kConnect, active, 0, 0x111, ""), 0);
    passive = TakeRequest();
    ASSERT_EQ(server.Connect(CmOp::kAccept, passive, kPassiveCookie, 0x222, ""), 0);
    ASSERT_EQ(client.NextEvent(client_channel), kConnectResponse);
    ASSERT_EQ(client.Ask(CmOp::kEstablish, active), 0);
    ASSERT_EQ(server.NextEvent(server_channel), kEstablished);
    ASSERT_EQ(client.Ask(CmOp::kDestroyId, active), 0);
    ASSERT_EQ(server.NextEvent(server_channel), kDisconnected);
    ASSERT_EQ(server.Ask(CmOp::kDestroyId, passive), 0);
    if (i == 0) fds = daemon.IdleFdCount();
  }
  EXPECT_TRUE(Eventually([&] { return daemon.FdCount() <= fds; })) << daemon.FdCount();
  EXPECT_EQ(daemon.StatusNumber("cm_ids"), 1);
  EXPECT_TRUE(Eventually([&] { return daemon.StatusNumber("communications") == 0; }))
      << "they are in timewait for a moment";
}

TEST_P(CmConnect, IsShown) {
  Connect();
  const std::string shown = daemon.Ask("{\"op\":\"show\",\"kind\":\"cm\"}");
  EXPECT_NE(shown.find("\"program\":\"cm-test\""), std::string::npos) << shown;
  EXPECT_NE(shown.find(AddressOf(1)), std::string::npos) << shown;
  EXPECT_NE(shown.find("\"pid\":\"" + std::to_string(getpid()) + "\""), std::string::npos) << shown;
}

INSTANTIATE_TEST_SUITE_P(Connections, CmConnect, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& info) {
                           return info.param ? "ByPackets" : "WithinTheInstance";
                         });

// --- a network that is not as it should be -------------------------------------------------------

class FaultFile {
 public:
  explicit FaultFile(const std::string& rules) {
    const int fd = mkstemp(path_.data());
    EXPECT_EQ(write(fd, rules.data(), rules.size()), static_cast<ssize_t>(rules.size()));
    close(fd);
  }
  ~FaultFile() { unlink(path_.c_str()); }
  std::string flag() const { return "--faults=" + path_; }

 private:
  std::string path_ = "/tmp/verbena-faults-XXXXXX";
};

class CmFaults : public CmPair, public ::testing::Test {
 protected:
  explicit CmFaults(const std::string& rules)
      : CmPair({"--nics=2", "--wire=1", FaultFile(rules).flag()}) {}

  void ConnectAndDisconnect() {
    Connect();
    ASSERT_EQ(client.Ask(CmOp::kDisconnect, active), 0);
    EXPECT_EQ(server.NextEvent(server_channel), kDisconnected);
    EXPECT_EQ(server.Ask(CmOp::kDisconnect, passive), 0);
    EXPECT_EQ(client.NextEvent(client_channel), kDisconnected);
    EXPECT_EQ(server.Ask(CmOp::kDestroyId, passive), 0);
    EXPECT_EQ(client.Ask(CmOp::kDestroyId, active), 0);
    // Nothing is told twice.
    EXPECT_FALSE(server.IsReadable(server_channel) &&
                 server.NextEvent(server_channel) != kTimewaitExit);
  }
  std::string FaultReport() const {
    return daemon.Ask("{\"op\":\"faults\",\"action\":\"report\"}");
  }
};

struct CmDuplicates : CmFaults {
  CmDuplicates() : CmFaults("duplicate service=ud qp=1 dir=out copies=3\n") {}
};
TEST_F(CmDuplicates, AreNoNews) {
  ConnectAndDisconnect();
  EXPECT_NE(FaultReport().find("\"unfired\":[]"), std::string::npos) << FaultReport();
  EXPECT_GT(daemon.StatusNumber("mad_duplicates"), 0);
}

struct CmLoss : CmFaults {
  CmLoss() : CmFaults("drop service=ud dest_qp=1 dir=out nth=1\n") {}
};
TEST_F(CmLoss, WhatIsLostComesAgain) {
  ConnectAndDisconnect();
  EXPECT_NE(FaultReport().find("\"unfired\":[]"), std::string::npos) << FaultReport();
  EXPECT_GT(daemon.StatusNumber("mad_retries"), 0);
}

// --- two instances -------------------------------------------------------------------------------

// A daemon that listens and another, a client of each, and a connection between them.
class CmInstances : public ::testing::Test {
 protected:
  void Connect() {
    ASSERT_EQ(one.said(), "R");
    ASSERT_EQ(other.said(), "R");
    const CmHandle server_channel = server.CreateChannel();
    const CmHandle client_channel = client.CreateChannel();
    const CmHandle listener = server.CreateId(server_channel, 1);
    ASSERT_EQ(server.Bind(listener, CmAddressOf("127.77.1.1", 7471)), 0);
    ASSERT_EQ(server.Ask(CmOp::kListen, listener, 4), 0);
    const CmHandle id = client.CreateId(client_channel, 2);
    ASSERT_EQ(client.ResolveAddr(id, CmAddressOf("127.77.1.1", 7471)), 0);
    ASSERT_EQ(client.NextEvent(client_channel), kAddrResolved);
    ASSERT_EQ(client.Ask(CmOp::kResolveRoute, id, 2000), 0);
    ASSERT_EQ(client.NextEvent(client_channel), kRouteResolved);
    ASSERT_EQ(client.Connect(CmOp::kConnect, id, 0, 0x111, "over the wire"), 0);
    ASSERT_EQ(server.NextEvent(server_channel), kConnectRequest);
    EXPECT_EQ(std::memcmp(server.reply.event.param.private_data, "over the wire", 13), 0);
    const CmHandle passive = server.reply.event.id;
    ASSERT_EQ(server.Connect(CmOp::kAccept, passive, 3, 0x222, ""), 0);
    ASSERT_EQ(client.NextEvent(client_channel), kConnectResponse);
    ASSERT_EQ(client.Ask(CmOp::kEstablish, id), 0);
    EXPECT_EQ(server.NextEvent(server_channel), kEstablished);
  }

  TestDaemon one{{"--nic=ip=127.77.1.1"}}, other{{"--nic=ip=127.77.1.2"}};
  CmTestClient server{one}, client{other};
};

TEST_F(CmInstances, ConnectOverTheNetwork) { Connect(); }

// Who reads that the NIC has stopped takes its memory back, and flushes what it posted.
TEST_F(CmInstances, WhileAPeerIsWaitedForTheNicWorksAndIsNotSaidToHaveStopped) {
  Connect();
  TestClient user;
  ASSERT_TRUE(user.Attach(one.directory()));
  ASSERT_EQ(kill(other.pid(), SIGSTOP), 0);  // it will not answer the DREQ
  ASSERT_EQ(kill(one.pid(), SIGTERM), 0);
  const auto has_stopped = [&] { return user.status()->stopping.load() != 0; };
  const auto has_answered = [&](uint32_t slot) {
    return user.area()->slots[slot].completion.done.load() != 0;
  };
  // A command each turn, in a slot of its own, until the word is set.
  uint32_t slot = 0;
  EXPECT_TRUE(Eventually([&] {
    if (has_stopped()) return true;
    if (slot < shm::kCommandSlots / 2) {
      user.Submit(slot++, shm::CommandOp::kQueryDevice, nullptr, 0);
    }
    return false;
  }));
  EXPECT_TRUE(has_answered(0)) << "the NIC worked";
  const uint32_t late = shm::kCommandSlots - 1;
  user.Submit(late, shm::CommandOp::kQueryDevice, nullptr, 0);
  EXPECT_EQ(one.Wait(), 0);
  EXPECT_FALSE(has_answered(late)) << "the NIC went on after it was said to have stopped";
  ASSERT_EQ(kill(other.pid(), SIGCONT), 0);
}

}  // namespace
}  // namespace verbena::softnic
