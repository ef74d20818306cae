// Programs with several processes, and the ways to wait that real programs use.
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

// What two processes tell each other to connect.
struct Hello {
  uint32_t qpn, rkey;
  uint64_t address;
  ibv_gid gid;
};

// A forked child that runs `body(fd)` and leaves with its result; fd is the parent's other end.
class Child {
 public:
  explicit Child(const std::function<int(int)>& body) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      close(fds[0]);
      _exit(body(fds[1]));
    }
    close(fds[1]);
    fd_ = fds[0];
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (fd_ >= 0) close(fd_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int fd() const { return fd_; }
  pid_t pid() const { return pid_; }
  bool WaitStopped() const {
    int status = 0;
    return waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status);
  }
  // Its exit code, or -1.
  int Wait() {
    int status = 0;
    pid_t pid = std::exchange(pid_, -1);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
};

template <typename T>
bool SendTo(int fd, const T& value) {
  return send(fd, &value, sizeof(value), 0) == sizeof(value);
}
template <typename T>
bool ReceiveFrom(int fd, T* value) {
  return recv(fd, value, sizeof(*value), 0) == sizeof(*value);
}

// Connects `side` with the process at the other end of `fd`.
bool ConnectOver(int fd, Side& side, Hello* peer) {
  Hello mine = {side.qp->qp_num, side.mr->rkey, side.buffer.address(), side.gid()};
  char ready = 'r';
  return SendTo(fd, mine) && ReceiveFrom(fd, peer) && side.ToInit() == 0 &&
         side.ToRtr(peer->qpn, peer->gid, {}) == 0 && side.ToRts({}) == 0 && SendTo(fd, ready) &&
         ReceiveFrom(fd, &ready);
}

class ProcessTest : public VerbsTest {
 protected:
  ibv_wc Remote(ibv_wr_opcode opcode, const Hello& peer, uint64_t offset, uint32_t length,
                uint64_t compare_add = 0, uint64_t swap = 0) {
    ibv_send_wr wr = {};
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_RDMA_WRITE) {
      wr.wr.rdma.remote_addr = peer.address + offset;
      wr.wr.rdma.rkey = peer.rkey;
    } else {
      wr.wr.atomic.remote_addr = peer.address + offset;
      wr.wr.atomic.rkey = peer.rkey;
      wr.wr.atomic.compare_add = compare_add;
      wr.wr.atomic.swap = swap;
    }
    EXPECT_EQ(a->Post(wr, {a->Sge(0, length)}), 0);
    return a->WaitSend();
  }
};

using Process_Stopped = ProcessTest;
using Process_Fork = ProcessTest;
using Process_Events = ProcessTest;

TEST_F(Process_Stopped, IsStillWrittenReadAndAddedTo) {
  Child child([](int fd) {
    Side side(SideOptions{.nic = 1});
    memset(side.buffer.data(), 0x21, side.buffer.size());
    side.buffer.words()[1] = 7;
    Hello peer = {};
    if (!ConnectOver(fd, side, &peer)) return 2;
    raise(SIGSTOP);
    bool right = side.buffer[1000] == 0x55 && side.buffer[9999] == 0x55 &&
                 side.buffer[10'000] == 0x21 && side.buffer.words()[1] == 99;
    return right ? 0 : 3;
  });
  a = std::make_unique<Side>(SideOptions{});
  Hello peer = {};
  ASSERT_TRUE(ConnectOver(child.fd(), *a, &peer));
  ASSERT_TRUE(child.WaitStopped());

  memset(a->buffer.data(), 0x55, 9000);
  EXPECT_EQ(Remote(IBV_WR_RDMA_WRITE, peer, 1000, 9000).status, IBV_WC_SUCCESS);
  EXPECT_EQ(Remote(IBV_WR_RDMA_READ, peer, 10'000, 5000).status, IBV_WC_SUCCESS);
  EXPECT_EQ(a->buffer[4999], 0x21);
  EXPECT_EQ(Remote(IBV_WR_ATOMIC_FETCH_AND_ADD, peer, 8, 8, 3).status, IBV_WC_SUCCESS);
  EXPECT_EQ(a->buffer.words()[0], 7u);
  EXPECT_EQ(Remote(IBV_WR_ATOMIC_CMP_AND_SWP, peer, 8, 8, 10, 99).status, IBV_WC_SUCCESS);
  EXPECT_EQ(a->buffer.words()[0], 10u);

  kill(child.pid(), SIGCONT);
  EXPECT_EQ(child.Wait(), 0) << "3: the stopped process finds other bytes than were written";
}

TEST_F(Process_Stopped, GetsSendsIntoPostedReceives) {
  Child child([](int fd) {
    Side side(SideOptions{.nic = 1});
    Hello peer = {};
    if (side.ToInit() != 0) return 4;
    for (uint64_t i = 0; i < 10; ++i) {
      if (side.PostRecv(i, i * 100, 100) != 0) return 5;
    }
    Hello mine = {side.qp->qp_num, side.mr->rkey, side.buffer.address(), side.gid()};
    char ready = 'r';
    if (!SendTo(fd, mine) || !ReceiveFrom(fd, &peer)) return 2;
    if (side.ToRtr(peer.qpn, peer.gid, {}) != 0 || side.ToRts({}) != 0) return 2;
    if (!SendTo(fd, ready) || !ReceiveFrom(fd, &ready)) return 2;
    raise(SIGSTOP);
    for (uint64_t i = 0; i < 10; ++i) {
      ibv_wc wc = {};
      if (ibv_poll_cq(side.recv_cq, 1, &wc) != 1 || wc.wr_id != i || wc.byte_len != 64) return 3;
    }
    return 0;
  });
  a = std::make_unique<Side>(SideOptions{});
  Hello peer = {};
  ASSERT_TRUE(ConnectOver(child.fd(), *a, &peer));
  ASSERT_TRUE(child.WaitStopped());
  for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(a->Send(i, 0, 64), 0);
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  kill(child.pid(), SIGCONT);
  EXPECT_EQ(child.Wait(), 0);
}

// Runs `step` while another thread of this process moves and checks data all the time.
void WhileTrafficRuns(Side& a, Side& b, const std::function<void()>& step) {
  std::atomic<bool> stop = false;
  std::atomic<int> bad = 0, rounds = 0;
  std::thread traffic([&] {
    for (uint64_t value = 1; !stop; ++value) {
      a.buffer.words()[0] = value;
      if (a.Rdma(IBV_WR_RDMA_WRITE, value, 0, 8, b, 64) != 0) ++bad;
      ibv_wc wc = a.WaitSend();
      if (wc.status != IBV_WC_SUCCESS || wc.wr_id != value) ++bad;
      if (b.buffer.words()[8] != value) ++bad;
      ++rounds;
      if (bad != 0) return;
    }
  });
  int before = rounds;
  EXPECT_TRUE(Eventually([&] { return rounds > before + 100 || bad != 0; }));
  step();
  before = rounds;
  EXPECT_TRUE(Eventually([&] { return rounds > before + 100 || bad != 0; }))
      << "traffic stopped after the step";
  stop = true;
  traffic.join();
  EXPECT_EQ(bad, 0);
}

TEST_F(Process_Fork, ChildrenComeAndGoWhileTheParentIssuesVerbs) {
  MakePair();
  WhileTrafficRuns(*a, *b, [] {
    for (int i = 0; i < 30; ++i) {
      Child child([](int) { return 0; });
      EXPECT_EQ(child.Wait(), 0);
    }
  });
}

TEST_F(Process_Fork, ForkAndExecWhileTheParentIssuesVerbs) {
  MakePair();
  WhileTrafficRuns(*a, *b, [] {
    for (int i = 0; i < 15; ++i) EXPECT_EQ(system("exit 7"), 7 << 8);
  });
}

TEST_F(Process_Fork, ExecutedProgramsInheritNoneOfOurFds) {
  int before = dup(0);
  close(before);
  MakePair(SideOptions{.with_channel = true});
  char command[160];
  snprintf(command, sizeof(command),
           "for f in /proc/self/fd/*; do n=${f##*/}; case $n in [0-9]*) "
           "[ $n -ge %d ] && readlink $f | grep -E 'memfd|socket|eventfd' && exit 9;; esac; "
           "done; exit 0",
           before);
  EXPECT_EQ(system(command), 0) << "an fd of the library leaked through exec";
}

// Whatever locks the parent's other thread held at the moment of the fork.
TEST_F(Process_Fork, TheParentsObjectsRefuseTheChild) {
  MakePair();
  WhileTrafficRuns(*a, *b, [this] {
    for (int i = 0; i < 100; ++i) {
      Child child([this](int) {
        ibv_wc wc;
        if (ibv_poll_cq(a->send_cq, 1, &wc) != -1) return 2;
        if (ibv_req_notify_cq(a->send_cq, 0) != EIO) return 3;
        if (a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0) != EIO) return 4;
        if (a->PostRecv(1, 0, 8) != EIO) return 5;
        ibv_port_attr port;
        return ibv_query_port(a->context, 1, &port) == EIO ? 0 : 6;
      });
      ASSERT_EQ(child.Wait(), 0);
    }
  });
}

TEST_F(Process_Fork, AChildUsesADeviceOfItsOwn) {
  MakePair();
  Child child([](int fd) {
    Side side(SideOptions{.nic = 1});
    Hello peer = {};
    if (!ConnectOver(fd, side, &peer)) return 2;
    char done;
    ReceiveFrom(fd, &done);
    return side.buffer[0] == 0x42 ? 0 : 3;
  });
  Side side(SideOptions{});
  Hello peer = {};
  ASSERT_TRUE(ConnectOver(child.fd(), side, &peer));
  side.buffer[0] = 0x42;
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = peer.address;
  wr.wr.rdma.rkey = peer.rkey;
  ASSERT_EQ(side.Post(wr, {side.Sge(0, 1)}), 0);
  EXPECT_EQ(side.WaitSend().status, IBV_WC_SUCCESS);
  ASSERT_TRUE(SendTo(child.fd(), 'd'));
  EXPECT_EQ(child.Wait(), 0);
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0) << "the parent's own context";
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
}

TEST_F(Process_Fork, TheParentsMemoryStaysTheParents) {
  MakePair();
  memset(b->buffer.data(), 1, 4096);
  Child child([this](int fd) {
    char go;
    ReceiveFrom(fd, &go);
    memset(b->buffer.data(), 9, 4096);  // its own copy
    SendTo(fd, 'd');
    ReceiveFrom(fd, &go);
    return b->buffer[100] == 9 ? 0 : 3;
  });
  char word = 'g';
  ASSERT_TRUE(SendTo(child.fd(), word) && ReceiveFrom(child.fd(), &word));
  EXPECT_EQ(b->buffer[100], 1) << "the child's write reached the parent";
  a->buffer[0] = 5;
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 1, *b, 100), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->buffer[100], 5) << "the NIC wrote elsewhere";
  ASSERT_TRUE(SendTo(child.fd(), word));
  EXPECT_EQ(child.Wait(), 0) << "the NIC wrote into the child";
}

TEST_F(Process_Events, EdgeTriggeredEpollSeesEveryEvent) {
  MakePair(SideOptions{.with_channel = true});
  fcntl(b->channel->fd, F_SETFL, O_NONBLOCK);
  int epoll = epoll_create1(0);
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLET;
  ASSERT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, b->channel->fd, &event), 0);
  ASSERT_EQ(ibv_req_notify_cq(b->recv_cq, 0), 0);
  for (uint64_t i = 0; i < 32; ++i) ASSERT_EQ(b->PostRecv(i, 0, 8), 0);
  int received = 0;
  for (int round = 0; round < 3000; ++round) {
    ASSERT_EQ(a->Send(round, 0, 8), 0);
    while (received <= round) {
      ASSERT_EQ(epoll_wait(epoll, &event, 1, 5000), 1) << "no edge in round " << round;
      ibv_cq* cq = nullptr;
      void* context = nullptr;
      unsigned events = 0;
      while (ibv_get_cq_event(b->channel, &cq, &context) == 0) ++events;
      if (events > 0) ibv_ack_cq_events(b->recv_cq, events);
      ASSERT_EQ(ibv_req_notify_cq(b->recv_cq, 0), 0);
      ibv_wc wc = {};
      while (ibv_poll_cq(b->recv_cq, 1, &wc) == 1) {
        ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
        ASSERT_EQ(b->PostRecv(wc.wr_id, 0, 8), 0);
        ++received;
      }
    }
    ASSERT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  }
  close(epoll);
}

// What many programs do although the specification does not promise it: no completion, only memory.
TEST_F(Process_Events, LastByteOfAWriteComesLast) {
  MakePair(SideOptions{.buffer_bytes = 1 << 20});
  for (uint32_t length : {64u, 4096u, 65'536u, 1u << 20}) {
    for (int round = 1; round <= 60; ++round) {
      memset(a->buffer.data(), round, length);
      volatile uint8_t* bytes = b->buffer.data();
      ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, length, *b, 0), 0);
      ASSERT_TRUE(Eventually([&] { return bytes[length - 1] == round; }));
      std::atomic_thread_fence(std::memory_order_acquire);
      for (uint32_t i = 0; i < length; i += 61) {
        ASSERT_EQ(bytes[i], round) << "byte " << i << " of " << length << " came after the last";
      }
      ASSERT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
    }
  }
}

TEST_F(Process_Events, BlockingGetCqEventSleepsUntilWork) {
  MakePair(SideOptions{.with_channel = true});
  ASSERT_EQ(ibv_req_notify_cq(b->recv_cq, 0), 0);
  ASSERT_EQ(b->PostRecv(1, 0, 8), 0);
  std::atomic<bool> waiting = false, woke = false;
  std::thread waiter([&] {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    waiting = true;
    if (ibv_get_cq_event(b->channel, &cq, &context) == 0) ibv_ack_cq_events(cq, 1);
    woke = true;
  });
  ASSERT_TRUE(Eventually([&] { return waiting.load(); }));
  EXPECT_TRUE(NeverWithin([&] { return woke.load(); }));
  ASSERT_EQ(a->Send(1, 0, 8), 0);
  EXPECT_TRUE(Eventually([&] { return woke.load(); }));
  waiter.join();
}

}  // namespace
}  // namespace verbena::conformance
