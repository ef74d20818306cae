// The daemon killed while a program has events, groups and devices of it. Each test kills the
// instance's daemon, and so needs an instance of its own.
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/conformance/rdmacm_fixture.h"

namespace verbena::conformance {
namespace {

// Kills the daemon of the instance, and returns when it has ended.
void KillDaemon() {
  const char* directory = std::getenv("VERBENA_INSTANCE");
  ASSERT_NE(directory, nullptr);
  sockaddr_un address = {AF_UNIX, {}};
  const std::string path = std::string(directory) + "/sock";
  ASSERT_LT(path.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ucred peer = {};
  socklen_t bytes = sizeof peer;
  ASSERT_EQ(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes), 0);
  ASSERT_EQ(kill(peer.pid, SIGKILL), 0);
  pollfd entry = {fd, POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 5000), 1);
  EXPECT_NE(entry.revents & POLLHUP, 0);
  close(fd);
}

class Cm_daemon_gone : public CmTest {
 protected:
  // Whoever follows a pointer to freed memory finds no pointer there.
  Cm_daemon_gone() { mallopt(M_PERTURB, 0x5a); }

  // `end` returns when this event is acknowledged, and not before.
  static void ExpectWaits(rdma_cm_event* event, const std::function<void()>& end) {
    ASSERT_NE(event, nullptr);
    std::atomic<bool> has_returned = false;
    std::thread ending([&] {
      end();
      has_returned = true;
    });
    // Closing what a dead daemon left behind takes some time, too.
    EXPECT_TRUE(NeverWithin([&] { return has_returned.load(); }, Milliseconds(500)));
    if (!has_returned) {
      EXPECT_EQ(rdma_ack_cm_event(event), 0);
    }
    ending.join();
  }

  // The library learns that the daemon is gone when it asks for something.
  static void ExpectNothingMoreOf(Channel& channel) {
    rdma_cm_event* event = nullptr;
    EXPECT_FAILS(rdma_get_cm_event(channel.get(), &event), EIO);
  }

  CmId Bound(Channel& channel) {
    CmId id(channel, RDMA_PS_TCP);
    Address here("127.0.0.1");
    EXPECT_EQ(rdma_bind_addr(id.get(), here.get()), 0) << strerror(errno);
    return id;
  }
};

TEST_F(Cm_daemon_gone, DestroyingWaitsForAnEventTakenBefore) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  Address there("127.0.0.1", 7471);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, there.get(), 2000), 0);
  rdma_cm_event* event = channel.Take();
  KillDaemon();
  ExpectWaits(event, [&] { id.Destroy(); });
}

TEST_F(Cm_daemon_gone, DestroyingWaitsForTheRemoval) {
  Channel channel;
  CmId id = Bound(channel);
  KillDaemon();
  rdma_cm_event* event = channel.Take();
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(event->event, RDMA_CM_EVENT_DEVICE_REMOVAL);
  ExpectWaits(event, [&] { id.Destroy(); });
}

TEST_F(Cm_daemon_gone, LeavingAGroupWaitsForItsEvent) {
  Channel channel;
  CmId id(channel, RDMA_PS_UDP);
  Address here("127.0.0.1"), group("239.1.2.3");
  ASSERT_EQ(rdma_bind_addr(id.get(), here.get()), 0);
  ASSERT_EQ(rdma_join_multicast(id.get(), group.get(), nullptr), 0) << strerror(errno);
  rdma_cm_event* event = channel.Take();
  KillDaemon();
  ExpectWaits(event, [&] { EXPECT_FAILS(rdma_leave_multicast(id.get(), group.get()), EIO); });
}

// What a program has made on a context is its own, whoever else has used it.
class Objects {
 public:
  explicit Objects(ibv_context* verbs) : pd_(ibv_alloc_pd(verbs)) {
    EXPECT_NE(pd_, nullptr);
    mr_ = ibv_reg_mr(pd_, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE);
    EXPECT_NE(mr_, nullptr);
    cq_ = ibv_create_cq(verbs, 16, nullptr, nullptr, 0);
    EXPECT_NE(cq_, nullptr);
  }
  void ExpectCanBeDestroyed() {
    ibv_wc wc;
    EXPECT_LE(ibv_poll_cq(cq_, 1, &wc), 0);
    EXPECT_EQ(ibv_destroy_cq(cq_), 0);
    EXPECT_EQ(ibv_dereg_mr(mr_), 0);
    EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
  }

 private:
  Memory memory_{4096};  // not of a stack, which is never mapped
  ibv_pd* pd_;
  ibv_mr* mr_;
  ibv_cq* cq_;
};

TEST_F(Cm_daemon_gone, ObjectsOutliveTheIdentifier) {
  Channel channel;
  CmId id = Bound(channel);
  Objects objects(id->verbs);
  KillDaemon();
  id.Destroy();
  objects.ExpectCanBeDestroyed();
}

TEST_F(Cm_daemon_gone, RegionsOutliveTheIdentifierWhosePdTheyAreIn) {
  Channel channel;
  CmId id = Bound(channel);
  Memory memory(4096);
  ibv_mr* mr = rdma_reg_msgs(id.get(), memory.data(), memory.size());
  ASSERT_NE(mr, nullptr);
  KillDaemon();
  id.Destroy();
  EXPECT_EQ(rdma_dereg_mr(mr), 0) << strerror(errno);
}

TEST_F(Cm_daemon_gone, ObjectsOutliveTheListOfDevices) {
  Channel channel;
  int count = 0;
  ibv_context** devices = rdma_get_devices(&count);
  ASSERT_GE(count, 1);
  Objects objects(devices[0]);
  KillDaemon();
  ExpectNothingMoreOf(channel);
  rdma_free_devices(devices);
  objects.ExpectCanBeDestroyed();
}

TEST_F(Cm_daemon_gone, ObjectsOutliveTheNextDaemonsComing) {
  Channel channel;
  CmId id = Bound(channel);
  Objects objects(id->verbs);
  id.Destroy();
  KillDaemon();
  ExpectNothingMoreOf(channel);
  ASSERT_EQ(setenv("VERBENA_AUTOSTART", "1", 1), 0);
  Channel next_channel;
  CmId next = Bound(next_channel);
  ibv_device_attr attr;
  EXPECT_EQ(ibv_query_device(next->verbs, &attr), 0);
  objects.ExpectCanBeDestroyed();
  KillDaemon();
}

}  // namespace
}  // namespace verbena::conformance
