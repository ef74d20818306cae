// Kills clients at random moments under traffic and watches their peer.
//   client_death ROUNDS SEED            the honest peer; starts the victims
//   client_death --victim FD            a victim: connects over FD and works until killed
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

struct Hello {
  uint32_t qpn, rkey;
  uint64_t address;
  ibv_gid gid;
};

constexpr ConnectOptions kConnect = {.timeout = 8, .retry_cnt = 2};
constexpr int kDepth = 16;

bool Exchange(int fd, const Side& side, Hello* peer) {
  Hello mine = {side.qp->qp_num, side.mr->rkey, side.buffer.address(), side.gid()};
  return send(fd, &mine, sizeof(mine), 0) == sizeof(mine) &&
         recv(fd, peer, sizeof(*peer), MSG_WAITALL) == sizeof(*peer);
}

bool Connect(Side& side, const Hello& peer) {
  return side.ToInit() == 0 && side.ToRtr(peer.qpn, peer.gid, kConnect) == 0 &&
         side.ToRts(kConnect) == 0;
}

int PostOne(Side& side, const Hello& peer, uint64_t i) {
  ibv_send_wr wr = {};
  wr.wr_id = i;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = peer.address;
  wr.wr.rdma.rkey = peer.rkey;
  switch (i % 4) {
    case 0:
      wr.opcode = IBV_WR_RDMA_READ;
      return side.Post(wr, {side.Sge(0, 20'000)});
    case 1:
      wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      wr.wr.atomic.remote_addr = peer.address;
      wr.wr.atomic.rkey = peer.rkey;
      return side.Post(wr, {side.Sge(0, 8)});
    case 2:
      wr.opcode = IBV_WR_SEND;
      return side.Post(wr, {side.Sge(0, 500)});
    default:
      wr.opcode = IBV_WR_RDMA_WRITE;
      return side.Post(wr, {side.Sge(0, 30'000)});
  }
}

int Victim(int fd) {
  Side side(SideOptions{.nic = 1, .with_channel = true});
  Hello peer = {};
  if (!Exchange(fd, side, &peer) || !Connect(side, peer)) return 1;
  for (uint64_t i = 0; i < 60; ++i) side.PostRecv(i, 0, 1000);
  // Who sends before the other side is connected is not answered, and gives up in milliseconds.
  char ready;
  if (recv(fd, &ready, 1, 0) != 1 || send(fd, &ready, 1, 0) != 1) return 1;
  uint64_t posted = 0, completed = 0;
  for (;;) {  // until killed
    while (posted - completed < kDepth && PostOne(side, peer, posted) == 0) ++posted;
    ibv_wc wc[8];
    completed += static_cast<uint64_t>(std::max(0, ibv_poll_cq(side.send_cq, 8, wc)));
    int n = ibv_poll_cq(side.recv_cq, 8, wc);
    for (int i = 0; i < n; ++i) side.PostRecv(wc[i].wr_id, 0, 1000);
    // Creation and destruction are interrupted, too.
    ibv_mr* mr = ibv_reg_mr(side.pd, side.buffer.data(), 4096, kAllAccess);
    if (mr != nullptr) ibv_dereg_mr(mr);
  }
}

class Round {
 public:
  explicit Round(const char* self) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) return;
    std::string number = std::to_string(fds[1]);
    pid_ = vfork();
    if (pid_ == 0) {
      fcntl(fds[1], F_SETFD, 0);
      execl("/proc/self/exe", self, "--victim", number.c_str(), nullptr);
      _exit(127);
    }
    close(fds[1]);
    fd_ = fds[0];
  }
  ~Round() {
    Kill();
    close(fd_);
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  int fd() const { return fd_; }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
};

// Traffic until `victim` has been dead for as long as it takes to notice. Milliseconds of that.
double RunRound(Round& round, std::chrono::microseconds life, bool kill_while_connecting) {
  Side side(SideOptions{.max_recv_wr = 128});
  Hello peer = {};
  if (kill_while_connecting) {
    auto end = Clock::now() + life;
    Eventually([&] { return Clock::now() > end; });
    round.Kill();
    return 0;
  }
  char ready = 'r';
  if (!Exchange(round.fd(), side, &peer) || !Connect(side, peer)) return -1;
  for (uint64_t i = 0; i < 60; ++i) side.PostRecv(i, 0, 1000);
  if (send(round.fd(), &ready, 1, 0) != 1 || recv(round.fd(), &ready, 1, 0) != 1) return -1;
  uint64_t posted = 0, completed = 0;
  auto end = Clock::now() + life;
  Clock::time_point killed{};
  for (;;) {
    if (killed == Clock::time_point{} && Clock::now() > end) {
      round.Kill();
      killed = Clock::now();
    }
    while (posted - completed < kDepth && PostOne(side, peer, posted) == 0) ++posted;
    ibv_wc wc[8];
    int n = ibv_poll_cq(side.send_cq, 8, wc);
    for (int i = 0; i < n; ++i) {
      ++completed;
      if (wc[i].status == IBV_WC_SUCCESS) continue;
      // Silence, as of a host that lost its power. Nobody answers for the dead.
      bool expected = wc[i].status == IBV_WC_RETRY_EXC_ERR || wc[i].status == IBV_WC_WR_FLUSH_ERR;
      if (!expected || killed == Clock::time_point{}) {
        std::fprintf(stderr, "unexpected status %s\n", ibv_wc_status_str(wc[i].status));
        return -1;
      }
      return std::chrono::duration<double, std::milli>(Clock::now() - killed).count();
    }
    n = ibv_poll_cq(side.recv_cq, 8, wc);
    for (int i = 0; i < n; ++i) side.PostRecv(wc[i].wr_id, 0, 1000);
    if (killed != Clock::time_point{} && Clock::now() - killed > kPatience) {
      std::fprintf(stderr, "the peer of a dead process never noticed\n");
      return -1;
    }
  }
}

int Main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "--victim") == 0) return Victim(atoi(argv[2]));
  if (argc != 3) return 2;
  int rounds = atoi(argv[1]);
  std::mt19937 random(static_cast<unsigned>(atoi(argv[2])));
  double longest_ms = 0;
  for (int i = 0; i < rounds; ++i) {
    Round round(argv[0]);
    bool early = random() % 5 == 0;
    std::chrono::microseconds life(random() % (early ? 8'000 : 15'000));
    double ms = RunRound(round, life, early);
    if (ms < 0) {
      std::fprintf(stderr, "round %d of %d failed (seed %s)\n", i, rounds, argv[2]);
      return 1;
    }
    longest_ms = std::max(longest_ms, ms);
  }
  std::printf("{\"rounds\": %d, \"longest_ms\": %.1f}\n", rounds, longest_ms);
  return 0;
}

}  // namespace
}  // namespace verbena::conformance

int main(int argc, char** argv) { return verbena::conformance::Main(argc, argv); }
