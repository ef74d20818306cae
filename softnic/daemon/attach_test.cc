// Attaching to a running daemon, by friends and enemies.
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include <deque>

#include "softnic/daemon/test_client.h"

namespace verbena::softnic {
namespace {

using shm::CommandOp;

TEST(Daemon, SaysReadyAndBindsPrivately) {
  TestDaemon daemon;
  EXPECT_EQ(daemon.said(), "R");
  struct stat st = {};
  ASSERT_EQ(stat((daemon.directory() + "/sock").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  const std::string files = daemon.directory() + "/paths/sys/class/infiniband/verbena0/node_guid";
  EXPECT_EQ(access(files.c_str(), R_OK), 0) << "who waits for the daemon finds its NICs' files";
}

TEST(Daemon, TermUnlinksTheSocketAndTellsClients) {
  TestDaemon daemon;
  TestClient client;
  ASSERT_TRUE(client.Attach(daemon.directory()));
  ASSERT_EQ(kill(daemon.pid(), SIGTERM), 0);
  int status = daemon.Wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(client.status()->stopping.load(), 1u);
  EXPECT_TRUE(client.IsEnded());
  EXPECT_NE(access((daemon.directory() + "/sock").c_str(), F_OK), 0);
  EXPECT_NE(access((daemon.directory() + "/paths").c_str(), F_OK), 0);
}

TEST(Daemon, RefusesInPlainWords) {
  TestDaemon daemon;
  pid_t pid;
  std::string said = TestDaemon::Launch({"--directory=" + daemon.directory()}, &pid);
  waitpid(pid, nullptr, 0);
  EXPECT_NE(said.find("Eanother verbenad serves"), std::string::npos) << said;
  said = TestDaemon::Launch({"--directory=/nonexistent/verbena"}, &pid);
  waitpid(pid, nullptr, 0);
  EXPECT_NE(said.find("does not exist"), std::string::npos) << said;
  said = TestDaemon::Launch({"--directory=/tmp", "--max-qp=many"}, &pid);
  waitpid(pid, nullptr, 0);
  EXPECT_NE(said.find("--max-qp takes a number"), std::string::npos) << said;
  said = TestDaemon::Launch({"--directory=/tmp", "--max-cqe=100"}, &pid);
  waitpid(pid, nullptr, 0);
  EXPECT_NE(said.find("--max-cqe is a power of two, such as 64"), std::string::npos) << said;
}

TEST(Daemon, EndsWhenIdleButNotWhileHeld) {
  TestDaemon daemon({"--idle-exit-s=1"});
  int status = daemon.Wait();
  EXPECT_TRUE(WIFEXITED(status)) << status;

  TestDaemon held({"--idle-exit-s=4"});  // enough to attach on a busy machine
  TestClient client;
  ASSERT_TRUE(client.Attach(held.directory()));
  poll(nullptr, 0, 5500);  // the time itself is what is tested
  EXPECT_EQ(client.Command(CommandOp::kNop), 0);
  client.Close();
  status = held.Wait();
  EXPECT_TRUE(WIFEXITED(status)) << status;
}

TEST(Attach, CommandsPassAndFdsArePrivate) {
  TestDaemon daemon;
  TestClient client;
  ASSERT_TRUE(client.Attach(daemon.directory()));
  EXPECT_EQ(client.welcome().dma_backends, shm::kDmaProcess | shm::kDmaMapped | shm::kDmaAssisted);
  EXPECT_EQ(client.welcome().dma_errno, 0);
  EXPECT_STREQ(client.welcome().nic.name, "verbena0");
  shm::QueryDeviceReply reply = {};
  EXPECT_EQ(client.Command(CommandOp::kQueryDevice, nullptr, 0, &reply, sizeof(reply)), 0);
  EXPECT_EQ(reply.phys_port_cnt, 1u);
  // A client can't take memory away from under the daemon, nor write the status page.
  EXPECT_NE(ftruncate(client.control_fd(), 0), 0);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, client.status_fd(), 0), MAP_FAILED);
}

TEST(Attach, WrongProbeValueMeansThatItsMemoryIsNotReachedDirectly) {
  TestDaemon daemon;
  TestClient client;
  shm::Hello hello = client.hello();
  hello.probe_value += 1;
  ASSERT_TRUE(client.Attach(daemon.directory(), hello));
  EXPECT_EQ(client.welcome().dma_backends, shm::kDmaMapped | shm::kDmaAssisted);
  EXPECT_EQ(client.welcome().dma_errno, ESRCH);
}

TEST(Attach, OtherAbiVersionIsToldSo) {
  TestDaemon daemon;
  TestClient client;
  shm::Hello hello = client.hello();
  hello.abi_version += 1;
  EXPECT_FALSE(client.Attach(daemon.directory(), hello));
  EXPECT_EQ(client.welcome().error, EPROTO);
}

TEST(Attach, MissingNicIsToldSo) {
  TestDaemon daemon;
  TestClient client;
  shm::Hello hello = client.hello();
  hello.nic = 7;
  EXPECT_FALSE(client.Attach(daemon.directory(), hello));
  EXPECT_EQ(client.welcome().error, ENODEV);
}

TEST(Attach, NonsenseHellosAreClosedAndOthersServed) {
  TestDaemon daemon;
  int baseline = daemon.IdleFdCount();
  std::string junk(70'000, 'x');
  for (size_t bytes : {size_t{1}, sizeof(shm::Hello) - 1, sizeof(shm::Hello),
                       sizeof(shm::Hello) + 1, junk.size()}) {
    int fd = ConnectTo(daemon.directory());
    ASSERT_GE(fd, 0);
    ASSERT_GT(send(fd, junk.data(), bytes, MSG_NOSIGNAL), 0);
    char byte;
    EXPECT_TRUE(WaitReadable(fd));
    EXPECT_LE(recv(fd, &byte, 1, 0), 0) << bytes;
    close(fd);
  }
  // Silent ones hold a place until their deadline, and are no hindrance.
  std::deque<int> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(ConnectTo(daemon.directory()));
  TestClient client;
  ASSERT_TRUE(client.Attach(daemon.directory()));
  EXPECT_EQ(client.Command(CommandOp::kNop), 0);
  client.Close();
  for (int fd : silent) close(fd);
  EXPECT_TRUE(Eventually([&] { return daemon.FdCount() <= baseline; }))
      << daemon.FdCount() << " fds, " << baseline << " before";
}

TEST(Attach, AProgramsNameIsMadePrintable) {
  TestDaemon daemon;
  TestClient client;
  shm::Hello hello = client.hello();
  std::strcpy(hello.program, "caf\xc3\xa9\n\x1b\xff\xc3");
  ASSERT_TRUE(client.Attach(daemon.directory(), hello));
  const std::string shown = daemon.Ask("{\"op\":\"show\",\"kind\":\"session\"}");
  EXPECT_NE(shown.find("\"program\":\"caf\xc3\xa9????\""), std::string::npos) << shown;
}

TEST(Attach, SendingAfterHelloEndsTheSession) {
  TestDaemon daemon;
  TestClient client;
  ASSERT_TRUE(client.Attach(daemon.directory()));
  ASSERT_EQ(send(client.socket(), "x", 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(client.IsEnded());
}

TEST(Attach, KilledClientsLeaveNothingBehind) {
  TestDaemon daemon;
  int baseline = daemon.IdleFdCount();
  for (int i = 0; i < 20; ++i) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
      TestClient client;
      // What failed: 0 nothing, 255 attaching, or a command's errno.
      int error = client.Attach(daemon.directory()) ? 0 : 255;
      for (int c = 0; error == 0 && c < i % 4; ++c) {
        error = client.Command(CommandOp::kCreateChannel);
      }
      auto said = static_cast<uint8_t>(error);
      (void)!write(ready[1], &said, 1);
      for (;;) pause();
    }
    uint8_t said = 0;
    ASSERT_EQ(read(ready[0], &said, 1), 1);
    EXPECT_EQ(said, 0) << "client " << i;
    close(ready[0]);
    close(ready[1]);
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  EXPECT_TRUE(Eventually([&] { return daemon.StatusNumber("sessions") == 0; }));
  EXPECT_TRUE(Eventually([&] { return daemon.FdCount() <= baseline; }))
      << daemon.FdCount() << " fds, " << baseline << " before";
}

TEST(Attach, TwoHundredClientsAndAnIdleDaemon) {
  TestDaemon daemon;
  std::deque<TestClient> clients;
  for (int i = 0; i < 200; ++i) {
    clients.emplace_back();
    ASSERT_TRUE(clients.back().Attach(daemon.directory())) << i;
  }
  for (auto& client : clients) ASSERT_EQ(client.Command(CommandOp::kNop), 0);
  for (auto& client : clients) {
    ASSERT_TRUE(Eventually([&] { return client.status()->sleeping.load() != 0; }));
  }
  double before = daemon.CpuSeconds();
  poll(nullptr, 0, 2000);  // the time itself is what is measured
  EXPECT_LT(daemon.CpuSeconds() - before, 0.02 * 2);
  for (auto& client : clients) ASSERT_EQ(client.Command(CommandOp::kNop), 0);
}

TEST(Hostile, CommandSlotThatLiesEndsOnlyItsSession) {
  TestDaemon daemon;
  TestClient honest, liar;
  ASSERT_TRUE(honest.Attach(daemon.directory()));
  ASSERT_TRUE(liar.Attach(daemon.directory()));
  liar.area()->slots[3].submitted.store(1000);
  liar.Ring(3);
  EXPECT_TRUE(liar.IsEnded());
  EXPECT_EQ(honest.Command(CommandOp::kNop), 0);
}

TEST(Hostile, ScribbledControlAreaHarmsNobody) {
  TestDaemon daemon;
  TestClient honest;
  ASSERT_TRUE(honest.Attach(daemon.directory()));
  uint64_t random = 88172645463325252ull;
  auto next = [&] {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random;
  };
  for (int round = 0; round < 20; ++round) {
    TestClient liar;
    ASSERT_TRUE(liar.Attach(daemon.directory()));
    auto* words = reinterpret_cast<uint64_t*>(liar.area());
    for (size_t i = 0; i < sizeof(shm::ControlArea) / 8; ++i) words[i] = next();
    uint64_t one = 1;
    ASSERT_EQ(write(liar.doorbell(), &one, sizeof(one)), 8);
    EXPECT_EQ(honest.Command(CommandOp::kNop), 0);
  }
  EXPECT_TRUE(Eventually([&] { return daemon.StatusNumber("sessions") == 1; }));
}

TEST(Hostile, ClientThatNeverReadsItsSocketIsEnded) {
  TestDaemon daemon;
  TestClient honest, lazy;
  ASSERT_TRUE(honest.Attach(daemon.directory()));
  ASSERT_TRUE(lazy.Attach(daemon.directory()));
  int error = 0;
  for (int i = 0; i < 10'000 && error == 0; ++i) error = lazy.Command(CommandOp::kCreateChannel);
  EXPECT_NE(error, 0);
  EXPECT_TRUE(lazy.IsEnded());
  EXPECT_EQ(honest.Command(CommandOp::kNop), 0);
}

// Registers memory that hangs whoever touches it, and attaches with a probe word in such memory.
TEST(Hostile, MemoryThatHangsStopsNobody) {
  int uffd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  if (uffd < 0) GTEST_SKIP() << "userfaultfd is refused here (" << strerror(errno) << ")";
  close(uffd);
  TestDaemon daemon;
  int baseline = daemon.IdleFdCount();
  std::deque<pid_t> hostile;
  for (bool probe_hangs : {false, true}) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    hostile.push_back(fork());
    if (hostile.back() == 0) {
      auto addr = reinterpret_cast<uint64_t>(
          mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
      uffdio_api api = {};
      api.api = UFFD_API;
      uffdio_register range = {};
      range.range.start = addr;
      range.range.len = 4096;
      range.mode = UFFDIO_REGISTER_MODE_MISSING;
      bool ok = ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &range) == 0;
      TestClient client;
      shm::Hello hello = client.hello();
      if (probe_hangs) {
        hello.probe_addr = addr;
        ok = ok && client.SendHello(daemon.directory(), hello);
      } else {
        shm::HandleReply pd = {};
        ok = ok && client.Attach(daemon.directory(), hello) &&
             client.Command(CommandOp::kAllocPd, nullptr, 0, &pd, sizeof(pd)) == 0;
        shm::RegMrRequest reg = {};
        reg.pd = pd.handle;
        reg.addr = reg.iova = addr;
        reg.length = 4096;
        if (ok) client.Submit(1, CommandOp::kRegMr, &reg, sizeof(reg));
      }
      (void)!write(ready[1], ok ? "1" : "0", 1);
      for (;;) pause();
    }
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    EXPECT_EQ(byte, '1');
    close(ready[0]);
    close(ready[1]);
  }
  EXPECT_TRUE(Eventually([&] { return daemon.StatusNumber("slow_processes") == 2; }));
  TestClient honest;
  ASSERT_TRUE(honest.Attach(daemon.directory()));
  for (int i = 0; i < 100; ++i) ASSERT_EQ(honest.Command(CommandOp::kNop), 0);
  honest.Close();
  for (pid_t pid : hostile) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  EXPECT_TRUE(Eventually([&] { return daemon.StatusNumber("sessions") == 0; }));
  EXPECT_TRUE(Eventually([&] { return daemon.FdCount() <= baseline; }));
}

TEST(Hostile, EveryDoorbellAtOnceIsServedAndForgotten) {
  TestDaemon daemon;
  TestClient honest, noisy;
  ASSERT_TRUE(honest.Attach(daemon.directory()));
  ASSERT_TRUE(noisy.Attach(daemon.directory()));
  for (int round = 0; round < 10; ++round) {
    for (uint32_t i = 0; i < shm::kDoorbellLeaves; ++i)
      noisy.area()->doorbells.Leaf(i).store(~0ull);
    for (auto& summary : noisy.area()->doorbells.summary) summary.store(~0ull);
    uint64_t one = 1;
    ASSERT_EQ(write(noisy.doorbell(), &one, sizeof(one)), 8);
    EXPECT_EQ(honest.Command(CommandOp::kNop), 0);
  }
  EXPECT_EQ(noisy.Command(CommandOp::kNop), 0);
}

// Many rounds of ring, sleep and ring again: a lost wake-up would leave a command unanswered.
TEST(WakeUp, NoRingIsLostAroundSleep) {
  TestDaemon daemon;
  TestClient client;
  ASSERT_TRUE(client.Attach(daemon.directory()));
  constexpr int kRoundsMin = 10, kRoundsMax = 30, kRingsPerRound = 500;
  // How soon the NIC sleeps depends on the machine: the pauses grow until it has slept often.
  for (int round = 1; round <= kRoundsMin || daemon.StatusNumber("sleeps") <= 10; ++round) {
    ASSERT_LE(round, kRoundsMax) << "the NIC hardly ever sleeps";
    for (int i = 0; i < kRingsPerRound; ++i) {
      ASSERT_EQ(client.Command(CommandOp::kNop), 0) << round << ", " << i;
      // Pauses of all lengths around the spin limits, without a syscall that would mask the race.
      const auto pause = std::chrono::microseconds(i % 97 * round);
      const auto until = std::chrono::steady_clock::now() + pause;
      while (std::chrono::steady_clock::now() < until) {
      }
    }
  }
}

}  // namespace
}  // namespace verbena::softnic
