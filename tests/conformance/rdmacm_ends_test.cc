// Ends that nobody planned: processes that fork, peers that are killed at each stage of a
// handshake, and (last, it takes the instance along) the daemon killed.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <thread>

#include "tests/conformance/rdmacm_fixture.h"

namespace verbena::conformance {
namespace {

// A process that runs `body`, says that it is there, and waits to be killed.
class Peer {
 public:
  // `body` returns a number for its parent, or -1: it failed.
  explicit Peer(const std::function<int()>& body) {
    int fds[2];
    EXPECT_EQ(pipe(fds), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(fds[0]);
      const int number = body();
      if (write(fds[1], &number, sizeof number) != sizeof number) _exit(1);
      for (;;) pause();
    }
    close(fds[1]);
    fd_ = fds[0];
  }
  ~Peer() {
    Kill();
    close(fd_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  int Await() {
    int number = -1;
    pollfd entry = {fd_, POLLIN, 0};
    if (poll(&entry, 1, 10'000) != 1) return -1;
    return read(fd_, &number, sizeof number) == sizeof number ? number : -1;
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
};

// What a peer that is going to be killed does; false: it did not get there.
bool ResolveHere(Channel& channel, rdma_cm_id** id, Address there) {
  auto next = [&](rdma_cm_event_type type) { return channel.Next().type == type; };
  return rdma_create_id(channel.get(), id, nullptr, RDMA_PS_TCP) == 0 &&
         rdma_resolve_addr(*id, nullptr, there.get(), 2000) == 0 &&
         next(RDMA_CM_EVENT_ADDR_RESOLVED) && rdma_resolve_route(*id, 2000) == 0 &&
         next(RDMA_CM_EVENT_ROUTE_RESOLVED) && MakeQp(*id) == 0;
}

// A client that stops after the request, or when `whole` after it is established.
int Ask(const Address& there, bool whole) {
  auto* channel = new Channel;
  rdma_cm_id* id = nullptr;
  rdma_conn_param param = Param();
  if (!ResolveHere(*channel, &id, there) || rdma_connect(id, &param) != 0) return -1;
  if (whole && channel->Next().type != RDMA_CM_EVENT_ESTABLISHED) return -1;
  return 0;
}

// First of all: nobody has used the library yet.
TEST(Cm_fork_before_use, ChildAndParentConnect) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  Peer child([&] {
    uint16_t port = 0;
    if (read(fds[0], &port, sizeof port) != static_cast<ssize_t>(sizeof port)) return -1;
    return Ask(Address("127.0.0.1", port), true);
  });
  Channel channel;
  CmId listener(channel, RDMA_PS_TCP);
  Address here("127.0.0.1");
  ASSERT_EQ(rdma_bind_addr(listener.get(), here.get()), 0);
  ASSERT_EQ(rdma_listen(listener.get(), 0), 0);
  const uint16_t port = ntohs(rdma_get_src_port(listener.get()));
  ASSERT_EQ(write(fds[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  Told told = channel.Expect(RDMA_CM_EVENT_CONNECT_REQUEST, 0, Milliseconds(10'000));
  CmId request(told.id);
  ASSERT_EQ(MakeQp(request.get()), 0);
  rdma_conn_param param = Param();
  ASSERT_EQ(rdma_accept(request.get(), &param), 0);
  channel.Expect(RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(child.Await(), 0);
  close(fds[0]);
  close(fds[1]);
}

class Cm_fork : public CmTest {};
class Cm_peer_killed : public CmTest {
 protected:
  // The request of a killed client is told or not; either way nothing can be made of it.
  void ExpectNothingComesOfTheRequest() {
    Told told = passive_channel.Next(Milliseconds(2000));
    if (!told.is_there) return;
    EXPECT_EQ(told.type, RDMA_CM_EVENT_CONNECT_REQUEST);
    passive = CmId(told.id);
    rdma_conn_param param = Param();
    if (MakeQp(passive.get()) != 0 || rdma_accept(passive.get(), &param) != 0) {
      EXPECT_EQ(errno, EINVAL);
      return;
    }
    Told end = passive_channel.Next(Milliseconds(10'000));
    EXPECT_TRUE(end.type == RDMA_CM_EVENT_REJECTED || end.type == RDMA_CM_EVENT_UNREACHABLE)
        << end.type;
  }
};

// --- forks ---------------------------------------------------------------------------------------

TEST_F(Cm_fork, AChildHasASessionOfItsOwn) {
  Connect();
  Address there = ListenerAddress();
  Peer child([&] { return Ask(there, true); });
  Told told = passive_channel.Expect(RDMA_CM_EVENT_CONNECT_REQUEST, 0, Milliseconds(10'000));
  CmId request(told.id);
  ASSERT_NE(request.get(), nullptr);
  ASSERT_EQ(MakeQp(request.get()), 0);
  rdma_conn_param param = Param();
  ASSERT_EQ(rdma_accept(request.get(), &param), 0);
  passive_channel.Expect(RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(child.Await(), 0);
  child.Kill();
  passive_channel.Expect(RDMA_CM_EVENT_DISCONNECTED);
  // The parent's own connection is as it was.
  EXPECT_EQ(StateOf(active->qp), IBV_QPS_RTS);
  Disconnect();
}

// The child's exit code; -1: a signal.
int RunInChild(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);  // whoever waits for a lock that nobody holds
    _exit(body());
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(Cm_fork, AChildIsNotToldThatItsParentsNicsWent) {
  Listen();
  Resolve();
  const int error = RunInChild([&] {
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(active_channel.get(), &event) == 0) return 0;
    return errno;
  });
  EXPECT_EQ(error, EIO);
  // Nor is the parent.
  EXPECT_FALSE(active_channel.IsReadable());
  Request();
}

TEST_F(Cm_fork, WhileOtherThreadsAreInTheLibrary) {
  Channel channel;
  const int flags = fcntl(channel.get()->fd, F_GETFL);
  ASSERT_EQ(fcntl(channel.get()->fd, F_SETFL, flags | O_NONBLOCK), 0);
  std::atomic<bool> is_over = false;
  std::thread with_events([&] {
    rdma_cm_event* event = nullptr;
    while (!is_over) EXPECT_FAILS(rdma_get_cm_event(channel.get(), &event), EAGAIN);
  });
  std::thread with_identifiers([&] {
    while (!is_over) CmId id(channel, RDMA_PS_TCP);
  });
  std::thread with_devices([&] {
    while (!is_over) ibv_free_device_list(ibv_get_device_list(nullptr));
  });
  for (int i = 0; i < 50 && !HasFailure(); ++i) {
    EXPECT_EQ(RunInChild([] {
                ibv_free_device_list(ibv_get_device_list(nullptr));
                CmId id(*new Channel, RDMA_PS_TCP);
                return 0;
              }),
              0)
        << "fork " << i;
  }
  is_over = true;
  with_events.join();
  with_identifiers.join();
  with_devices.join();
}

// --- peers killed --------------------------------------------------------------------------------

TEST_F(Cm_peer_killed, AfterItsRequest) {
  Listen();
  Address there = ListenerAddress();
  Peer client([&] { return Ask(there, false); });
  ASSERT_EQ(client.Await(), 0);
  client.Kill();
  ExpectNothingComesOfTheRequest();
}

TEST_F(Cm_peer_killed, AfterItsRequestWasTaken) {
  Listen();
  Address there = ListenerAddress();
  Peer client([&] { return Ask(there, false); });
  ASSERT_EQ(client.Await(), 0);
  Told told = passive_channel.Expect(RDMA_CM_EVENT_CONNECT_REQUEST);
  passive = CmId(told.id);
  ASSERT_EQ(MakeQp(passive.get()), 0) << strerror(errno);
  client.Kill();
  rdma_conn_param param = Param();
  // The daemon may not have seen its end yet.
  if (rdma_accept(passive.get(), &param) != 0) {
    EXPECT_EQ(errno, EINVAL);
    return;
  }
  EXPECT_EQ(passive_channel.Next(Milliseconds(10'000)).type, RDMA_CM_EVENT_REJECTED);
}

TEST_F(Cm_peer_killed, BeforeItTookTheReply) {
  Listen();
  Address there = ListenerAddress();
  Peer client([&] { return Ask(there, false); });
  ASSERT_EQ(client.Await(), 0);
  Told told = passive_channel.Expect(RDMA_CM_EVENT_CONNECT_REQUEST);
  passive = CmId(told.id);
  ASSERT_EQ(MakeQp(passive.get()), 0);
  rdma_conn_param param = Param();
  ASSERT_EQ(rdma_accept(passive.get(), &param), 0);
  client.Kill();
  EXPECT_EQ(passive_channel.Next(Milliseconds(10'000)).type, RDMA_CM_EVENT_REJECTED);
}

TEST_F(Cm_peer_killed, Connected) {
  Listen();
  Address there = ListenerAddress();
  Peer client([&] { return Ask(there, true); });
  Told told = passive_channel.Expect(RDMA_CM_EVENT_CONNECT_REQUEST, 0, Milliseconds(10'000));
  passive = CmId(told.id);
  ASSERT_EQ(MakeQp(passive.get()), 0);
  rdma_conn_param param = Param();
  ASSERT_EQ(rdma_accept(passive.get(), &param), 0);
  passive_channel.Expect(RDMA_CM_EVENT_ESTABLISHED);
  ASSERT_EQ(client.Await(), 0);
  client.Kill();
  passive_channel.Expect(RDMA_CM_EVENT_DISCONNECTED, 0, Milliseconds(10'000));
}

int Serve(bool takes, bool accepts, int port_fd) {
  auto* channel = new Channel;
  rdma_cm_id* id = nullptr;
  Address here("127.0.0.1");
  if (rdma_create_id(channel->get(), &id, nullptr, RDMA_PS_TCP) != 0 ||
      rdma_bind_addr(id, here.get()) != 0 || rdma_listen(id, 0) != 0) {
    return -1;
  }
  const uint16_t port = ntohs(rdma_get_src_port(id));
  if (write(port_fd, &port, sizeof port) != sizeof port) return -1;
  if (!takes) return 0;
  Told told = channel->Next(Milliseconds(10'000));
  if (told.type != RDMA_CM_EVENT_CONNECT_REQUEST) return -1;
  if (!accepts) return 0;
  rdma_conn_param param = Param();
  return MakeQp(told.id) == 0 && rdma_accept(told.id, &param) == 0 ? 0 : -1;
}

class Cm_listener_killed : public CmTest {
 protected:
  void Start(bool takes, bool accepts) {
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    server = std::make_unique<Peer>([&] { return Serve(takes, accepts, fds[1]); });
    uint16_t port = 0;
    ASSERT_EQ(read(fds[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
    close(fds[0]);
    close(fds[1]);
    active = Resolved(active_channel, Address("127.0.0.1", port));
    ASSERT_EQ(MakeQp(active.get()), 0);
  }
  rdma_conn_param param = Param();
  std::unique_ptr<Peer> server;
};

TEST_F(Cm_listener_killed, Listening) {
  Start(false, false);
  ASSERT_EQ(server->Await(), 0);
  server->Kill();
  ASSERT_EQ(rdma_connect(active.get(), &param), 0);
  // Its request may still have found the listener, which went then.
  EXPECT_EQ(active_channel.Next(Milliseconds(10'000)).type, RDMA_CM_EVENT_REJECTED);
}

TEST_F(Cm_listener_killed, WithARequest) {
  Start(true, false);
  ASSERT_EQ(rdma_connect(active.get(), &param), 0);
  ASSERT_EQ(server->Await(), 0);
  server->Kill();
  EXPECT_EQ(active_channel.Next(Milliseconds(10'000)).type, RDMA_CM_EVENT_REJECTED);
}

TEST_F(Cm_listener_killed, HavingAccepted) {
  Start(true, true);
  ASSERT_EQ(rdma_connect(active.get(), &param), 0);
  ASSERT_EQ(server->Await(), 0);
  server->Kill();
  Told told = active_channel.Next(Milliseconds(10'000));
  if (told.type == RDMA_CM_EVENT_ESTABLISHED) told = active_channel.Next(Milliseconds(10'000));
  EXPECT_TRUE(told.type == RDMA_CM_EVENT_REJECTED || told.type == RDMA_CM_EVENT_DISCONNECTED ||
              told.type == RDMA_CM_EVENT_CONNECT_ERROR)
      << told.type;
}

// --- the daemon killed ---------------------------------------------------------------------------

class Cm_daemon_killed : public CmTest {};

TEST_F(Cm_daemon_killed, EveryCallReturns) {
  const char* pid = std::getenv("VERBENA_DAEMON_PID");
  if (pid == nullptr) GTEST_SKIP() << "VERBENA_DAEMON_PID says which daemon to kill";
  Connect();
  Channel waiting_channel;
  int error = 0;
  std::thread waiter([&] {
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(waiting_channel.get(), &event) != 0) error = errno;
  });
  ASSERT_EQ(kill(atoi(pid), SIGKILL), 0);
  waiter.join();
  EXPECT_EQ(error, EIO);
  // The fd hangs up, whoever polls it.
  pollfd entry = {passive_channel.get()->fd, POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, 5000), 1);
  EXPECT_NE(entry.revents & POLLHUP, 0);
  rdma_cm_event* event = nullptr;
  rdma_conn_param param = Param();
  Address there("127.0.0.1", 7471);
  // With it all NICs went: each identifier that had one is told of that once.
  std::set<rdma_cm_id*> removed;
  for (int i = 0; i < 2; ++i) {
    Told told = passive_channel.Expect(RDMA_CM_EVENT_DEVICE_REMOVAL);
    EXPECT_TRUE(removed.insert(told.id).second);
  }
  EXPECT_EQ(removed, (std::set<rdma_cm_id*>{listener.get(), passive.get()}));
  EXPECT_FAILS(rdma_get_cm_event(passive_channel.get(), &event), EIO);
  CmId fresh;
  EXPECT_FAILS(rdma_listen(active.get(), 0), EIO);
  EXPECT_FAILS(rdma_resolve_addr(active.get(), nullptr, there.get(), 2000), EIO);
  EXPECT_FAILS(rdma_resolve_route(active.get(), 2000), EIO);
  EXPECT_FAILS(rdma_connect(active.get(), &param), EIO);
  EXPECT_FAILS(rdma_reject(passive.get(), nullptr, 0), EIO);
  EXPECT_FAILS(rdma_notify(passive.get(), IBV_EVENT_COMM_EST), EIO);
  EXPECT_EQ(rdma_disconnect(active.get()), -1);
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_id(active_channel.get(), &id, nullptr, RDMA_PS_TCP), -1);
  // There is none to attach to.
  EXPECT_EQ(rdma_create_event_channel(), nullptr);
  EXPECT_EQ(errno, ENODEV);
  // What there is can be destroyed, which the fixture does.
}

}  // namespace
}  // namespace verbena::conformance
