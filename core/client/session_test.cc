#include "core/client/session.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/client/fake_daemon.h"

namespace verbena::client {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kNoHang(20);  // however busy the machine is
using shm::CommandOp;

struct SessionDeleter {
  void operator()(Session* session) const { session->Close(); }
};
using SessionPtr = std::unique_ptr<Session, SessionDeleter>;

SessionPtr OpenOrNull(FakeDaemon* daemon, int* error) {
  Session* session = nullptr;
  *error = Session::Open(daemon->TakeClientFd(), 0, &session);
  return SessionPtr(session);
}

// Mappings of this process of memfds called `name` whose rights start with `rights`.
int CountMappings(const std::string& name, const std::string& rights) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    bool named = line.find("/memfd:" + name + " ") != std::string::npos;
    count += named && line.find(" " + rights) != std::string::npos ? 1 : 0;
  }
  return count;
}

class SessionTest : public testing::Test {
 protected:
  void OpenOnThread() {
    daemon_.StartThread();
    int error;
    session_ = OpenOrNull(&daemon_, &error);
    ASSERT_EQ(error, 0);
  }
  void OpenOnProcess() {
    daemon_pid_ = daemon_.StartProcess();
    int error;
    session_ = OpenOrNull(&daemon_, &error);
    ASSERT_EQ(error, 0);
  }
  void KillDaemon() {
    kill(daemon_pid_, SIGKILL);
    ReapDaemon();
  }
  void ReapDaemon() {
    ASSERT_EQ(waitpid(daemon_pid_, nullptr, 0), daemon_pid_);
    daemon_pid_ = -1;
  }
  void TearDown() override {
    session_.reset();
    if (daemon_pid_ > 0) KillDaemon();
  }
  shm::QueuePlace CreateCq(uint32_t arena) {
    shm::CreateCqRequest request = {};
    request.entries = arena;
    shm::CreateCqReply reply = {};
    EXPECT_EQ(
        session_->Execute(CommandOp::kCreateCq, &request, sizeof(request), &reply, sizeof(reply)),
        0);
    return reply.place;
  }
  int Nop() { return session_->Execute(CommandOp::kNop, nullptr, 0, nullptr, 0); }

  FakeDaemon daemon_;
  pid_t daemon_pid_ = -1;
  SessionPtr session_;
};

TEST_F(SessionTest, HelloNamesTheProcessAndAProbe) {
  OpenOnThread();
  EXPECT_TRUE(session_->IsAlive());
  daemon_.StopThread();
  const shm::Hello& hello = daemon_.hello();
  EXPECT_EQ(hello.magic, shm::kAbiMagic);
  EXPECT_EQ(hello.pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(*reinterpret_cast<const uint64_t*>(hello.probe_addr), hello.probe_value);
  EXPECT_STREQ(hello.program, program_invocation_short_name);
  EXPECT_EQ(session_->welcome().session, 42u);
  EXPECT_TRUE(fcntl(session_->cmd_fd(), F_GETFD) & FD_CLOEXEC);
  EXPECT_TRUE(fcntl(session_->async_fd(), F_GETFD) & FD_CLOEXEC);
}

TEST_F(SessionTest, OpenReportsTheDaemonsRefusal) {
  daemon_.welcome_error = ENODEV;
  daemon_.StartThread();
  int error;
  EXPECT_EQ(OpenOrNull(&daemon_, &error), nullptr);
  EXPECT_EQ(error, ENODEV);
}

TEST_F(SessionTest, OpenSaysResetWhenTheDaemonEndsFirst) {
  daemon_.close_before_welcome = true;
  daemon_.StartThread();
  int error;
  EXPECT_EQ(OpenOrNull(&daemon_, &error), nullptr);
  EXPECT_EQ(error, ECONNRESET);
}

TEST_F(SessionTest, OpenRefusesAStranger) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  ASSERT_EQ(send(pair[1], "hello", 5, 0), 5);
  Session* session = nullptr;
  EXPECT_EQ(Session::Open(pair[0], 0, &session), EPROTO);
  EXPECT_EQ(session, nullptr);
  EXPECT_EQ(fcntl(pair[0], F_GETFD), -1) << "the session owned the socket";
  close(pair[1]);
}

TEST_F(SessionTest, RepliesAreCutAndZeroFilled) {
  OpenOnThread();
  const uint8_t request[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  uint8_t longer[12];
  std::memset(longer, 0xee, sizeof(longer));
  EXPECT_EQ(session_->Execute(CommandOp::kNop, request, 8, longer, 12), 0);
  const uint8_t expected[12] = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(std::memcmp(longer, expected, 12), 0);
  uint8_t shorter[5] = {9, 9, 9, 9, 9};
  EXPECT_EQ(session_->Execute(CommandOp::kNop, request, 8, shorter, 4), 0);
  const uint8_t cut[5] = {1, 2, 3, 4, 9};
  EXPECT_EQ(std::memcmp(shorter, cut, 5), 0);
}

TEST_F(SessionTest, ErrorsCarryTheirDetail) {
  OpenOnThread();
  uint32_t detail = 1;
  EXPECT_EQ(session_->Execute(CommandOp::kDeallocPd, nullptr, 0, nullptr, 0, &detail), EBUSY);
  EXPECT_EQ(detail, static_cast<uint32_t>(kFakeBusyDetail));
  EXPECT_EQ(session_->Execute(CommandOp::kNop, nullptr, 0, nullptr, 0, &detail), 0);
  EXPECT_EQ(detail, 0u);
  uint8_t big[shm::kCommandPayloadBytes + 1] = {};
  EXPECT_EQ(session_->Execute(CommandOp::kNop, big, sizeof(big), nullptr, 0), EINVAL);
}

TEST_F(SessionTest, EightThreadsGetTheirOwnReplies) {
  OpenOnThread();
  std::atomic<uint32_t> mixed{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 500; ++i) {
        uint32_t request[2] = {t, i};
        uint32_t reply[2] = {~0u, ~0u};
        int error = session_->Execute(CommandOp::kNop, request, 8, reply, 8);
        if (error != 0 || reply[0] != t || reply[1] != i) mixed.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mixed.load(), 0u);
  EXPECT_EQ(daemon_.commands(), 8u * 500);
}

TEST_F(SessionTest, MoreThreadsThanSlotsAllGetTheirTurn) {
  OpenOnThread();
  std::atomic<uint32_t> done{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 2 * shm::kCommandSlots; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) done.fetch_add(Nop() == 0 ? 1 : 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done.load(), 2 * shm::kCommandSlots * 20);
}

// Whatever a command waits for when the daemon dies, it ends in less than a second.
TEST_F(SessionTest, KilledDaemonEndsCommandsOfAllThreads) {
  OpenOnProcess();
  ASSERT_EQ(Nop(), 0);
  // More than there are slots: some wait for a completion, the rest for a slot.
  std::vector<std::thread> threads;
  std::atomic<uint32_t> failed{0};
  for (uint32_t t = 0; t < shm::kCommandSlots + 8; ++t) {
    threads.emplace_back([&] {
      int error = session_->Execute(CommandOp::kAllocPd, nullptr, 0, nullptr, 0);
      failed.fetch_add(error == EIO ? 1 : 0);
    });
  }
  // All slots are taken once each slot's first use is published.
  for (shm::CommandSlot& slot : daemon_.control()->slots) {
    while (slot.submitted.load() == 0) std::this_thread::yield();
  }
  Clock::time_point killed = Clock::now();
  KillDaemon();
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(Clock::now() - killed, kNoHang);
  EXPECT_EQ(failed.load(), shm::kCommandSlots + 8);
  EXPECT_FALSE(session_->IsAlive());
  EXPECT_EQ(Nop(), EIO);
}

TEST_F(SessionTest, DaemonThatDiesInACommandIsNoticed) {
  OpenOnProcess();
  Clock::time_point start = Clock::now();
  EXPECT_EQ(session_->Execute(CommandOp::kQueryPort, nullptr, 0, nullptr, 0), EIO);
  EXPECT_LT(Clock::now() - start, kNoHang);
  EXPECT_TRUE(session_->KnownDead());
  ReapDaemon();
}

TEST_F(SessionTest, DeathWakesAsyncAndChannelFds) {
  OpenOnProcess();
  shm::HandleReply reply;
  ASSERT_EQ(session_->Execute(CommandOp::kCreateChannel, nullptr, 0, &reply, sizeof(reply)), 0);
  int channel = session_->TakeChannelFd(reply.handle);
  ASSERT_GE(channel, 0);
  shm::ChannelEvent event;
  ASSERT_EQ(read(channel, &event, sizeof(event)), static_cast<ssize_t>(sizeof(event)));
  KillDaemon();
  for (int fd : {channel, session_->async_fd(), session_->cmd_fd()}) {
    pollfd entry = {fd, POLLIN, 0};
    EXPECT_EQ(poll(&entry, 1, 1000), 1);
    EXPECT_EQ(recv(fd, &event, sizeof(event), MSG_DONTWAIT), 0) << "end of file";
  }
  EXPECT_FALSE(session_->IsAlive());
  close(channel);
}

TEST_F(SessionTest, StoppingDaemonCountsAsDead) {
  OpenOnThread();
  EXPECT_TRUE(session_->IsAlive());
  daemon_.status()->stopping.store(1);
  EXPECT_FALSE(session_->IsAlive());
  daemon_.status()->stopping.store(0);
  EXPECT_FALSE(session_->IsAlive()) << "death is for good";
  EXPECT_EQ(Nop(), EIO);
}

TEST_F(SessionTest, ChannelFdsComeInAnyOrderAndBelongToTheCaller) {
  OpenOnThread();
  shm::HandleReply replies[3];
  for (shm::HandleReply& reply : replies) {
    ASSERT_EQ(session_->Execute(CommandOp::kCreateChannel, nullptr, 0, &reply, sizeof(reply)), 0);
  }
  int fds[3];
  for (int i : {2, 0, 1}) {
    fds[i] = session_->TakeChannelFd(replies[i].handle);
    ASSERT_GE(fds[i], 0);
  }
  session_.reset();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
    shm::ChannelEvent event;
    ASSERT_EQ(read(fds[i], &event, sizeof(event)), static_cast<ssize_t>(sizeof(event)));
    EXPECT_EQ(event.cookie, replies[i].handle);
    close(fds[i]);
  }
}

TEST_F(SessionTest, UnknownChannelEndsWithAnError) {
  OpenOnThread();
  EXPECT_EQ(session_->TakeChannelFd(12345), -1);
  EXPECT_EQ(errno, EIO);
  EXPECT_TRUE(session_->IsAlive());
}

TEST_F(SessionTest, ArenasAreMappedOnceWhoeverAsks) {
  OpenOnThread();
  shm::QueuePlace first = CreateCq(3);
  shm::QueuePlace second = CreateCq(4);
  // The later arena first: the messages before it (a channel, arena 3) are kept.
  auto* in_second = static_cast<uint8_t*>(session_->MapPlace(second));
  auto* in_first = static_cast<uint8_t*>(session_->MapPlace(first));
  ASSERT_NE(in_second, nullptr);
  ASSERT_NE(in_first, nullptr);
  EXPECT_EQ(in_second[0], 4);
  EXPECT_EQ(in_first[0], 3);
  EXPECT_EQ(session_->MapPlace(first), in_first);
  first.offset += 8;
  EXPECT_EQ(session_->MapPlace(first), in_first + 8);
  RingMemory ring = session_->MapRing(first);
  EXPECT_EQ(ring.data(), reinterpret_cast<std::byte*>(in_first + 8));
  EXPECT_EQ(ring.bytes(), first.bytes);
  int stray = session_->TakeChannelFd(1000);
  EXPECT_GE(stray, 0);
  close(stray);
}

TEST_F(SessionTest, ThreadsMapTheSameArenaTogether) {
  OpenOnThread();
  std::vector<shm::QueuePlace> places;
  for (uint32_t arena = 1; arena <= 16; ++arena) places.push_back(CreateCq(arena));
  std::atomic<uint32_t> wrong{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < places.size(); ++i) {
        const shm::QueuePlace& place = places[(i * 5 + t * 3) % places.size()];
        auto* base = static_cast<uint8_t*>(session_->MapPlace(place));
        if (base == nullptr || base[0] != place.arena) wrong.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0u);
}

TEST_F(SessionTest, ArenaThatFoundNoRoomIsMappedLaterAndAChannelIsLost) {
  OpenOnProcess();  // which has limits of its own
  const shm::QueuePlace place = CreateCq(3);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Clock::time_point begin = Clock::now();
  EXPECT_EQ(session_->MapPlace(place), nullptr);
  EXPECT_EQ(errno, EMFILE);
  EXPECT_EQ(session_->TakeChannelFd(30'000), -1);
  EXPECT_EQ(errno, EMFILE);
  EXPECT_LT(Clock::now() - begin, kNoHang) << "nothing is waited for";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const auto* queue = static_cast<uint8_t*>(session_->MapPlace(place));
  ASSERT_NE(queue, nullptr);
  EXPECT_EQ(queue[0], 3);
}

TEST_F(SessionTest, PlacesOutsideTheirArenaAreRefused) {
  OpenOnThread();
  shm::QueuePlace place = CreateCq(3);
  ASSERT_NE(session_->MapPlace(place), nullptr);
  shm::QueuePlace bad = place;
  bad.offset = kFakeArenaBytes + 1;
  EXPECT_EQ(session_->MapPlace(bad), nullptr);
  bad.offset = ~uint64_t{0};
  EXPECT_EQ(session_->MapPlace(bad), nullptr);
  bad.offset = kFakeArenaBytes - place.bytes;
  EXPECT_NE(session_->MapPlace(bad), nullptr);
  bad.offset += 1;
  EXPECT_EQ(session_->MapPlace(bad), nullptr);
  EXPECT_FALSE(session_->MapRing(bad).IsValid());
  bad = place;
  bad.doorbell = shm::kDoorbellsEnd;
  EXPECT_EQ(session_->MapPlace(bad), nullptr);
}

TEST_F(SessionTest, MapPlaceEndsWhenTheDaemonDies) {
  OpenOnProcess();
  ASSERT_EQ(Nop(), 0);
  KillDaemon();
  shm::QueuePlace place = {
      .arena = 8, .stride_bytes = 64, .offset = 0, .bytes = 64, .entries = 1, .doorbell = 64};
  EXPECT_EQ(session_->MapPlace(place), nullptr);
  EXPECT_EQ(session_->TakeChannelFd(1), -1);
  EXPECT_FALSE(session_->IsAlive());
}

TEST_F(SessionTest, DoorbellOfTheNearLeafSetsOneWord) {
  OpenOnThread();
  shm::DoorbellPage& page = daemon_.control()->doorbells;
  session_->RingDoorbell({shm::kNearLeaf * 64});
  session_->RingDoorbell({shm::kNearLeaf * 64 + 63});
  EXPECT_EQ(page.near_leaf.load(), (uint64_t{1} << 63) | 1);
  for (const auto& summary : page.summary) EXPECT_EQ(summary.load(), 0u);
}

TEST_F(SessionTest, DoorbellSetsBothLevelsAndTheCpu) {
  OpenOnThread();
  shm::DoorbellPage& page = daemon_.control()->doorbells;
  page.last_cpu.store(~1u);
  // Beyond leaf word 63, so that the fake daemon, which looks at summary 0 alone, leaves them be.
  for (uint32_t doorbell : {64u * 64, 64u * 64 + 63, 64u * 128 + 7, shm::kMaxDoorbells - 1}) {
    session_->RingDoorbell({doorbell});
    uint32_t leaf = doorbell / 64;
    EXPECT_NE(page.Leaf(leaf).load() & (uint64_t{1} << (doorbell % 64)), 0u);
    EXPECT_NE(page.summary[leaf / 64].load() & (uint64_t{1} << (leaf % 64)), 0u);
  }
  EXPECT_EQ(page.Leaf(64).load(), (uint64_t{1} << 63) | 1) << "earlier bits stay";
  EXPECT_LT(page.last_cpu.load(), 4096u);
}

TEST_F(SessionTest, DoorbellWakesASleepingNicOnly) {
  OpenOnThread();
  while (daemon_.sleeps() == 0 || daemon_.status()->sleeping.load() == 0) {
    std::this_thread::yield();
  }
  // The daemon is in poll(), or will be: only a write to its eventfd can end that.
  uint32_t before = daemon_.wakeups();
  session_->RingDoorbell({100});
  while (daemon_.wakeups() == before) std::this_thread::yield();
}

TEST_F(SessionTest, DoorbellWritesNothingWhileTheNicIsAwake) {
  daemon_.attach_only = true;  // nobody drains the eventfd
  OpenOnThread();
  uint64_t count = 0;
  session_->RingDoorbell({100});
  EXPECT_EQ(read(daemon_.event_fd(), &count, sizeof(count)), -1);
  EXPECT_EQ(errno, EAGAIN);
  daemon_.status()->sleeping.store(1);
  errno = EXDEV;
  session_->RingDoorbell({100});
  EXPECT_EQ(errno, EXDEV) << "the host's errno is its own";
  EXPECT_EQ(read(daemon_.event_fd(), &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
  EXPECT_EQ(count, 1u);
}

// Pins the thread where it is for as long as this lives.
class Pinned {
 public:
  Pinned() {
    sched_getaffinity(0, sizeof(before_), &before_);
    cpu_ = sched_getcpu();
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(cpu_, &here);
    sched_setaffinity(0, sizeof(here), &here);
  }
  ~Pinned() { sched_setaffinity(0, sizeof(before_), &before_); }
  uint32_t cpu() const { return static_cast<uint32_t>(cpu_); }

 private:
  cpu_set_t before_;
  int cpu_;
};

TEST_F(SessionTest, TheNicWaitsForTheCpuThatItPollsOn) {
  daemon_.attach_only = true;
  OpenOnThread();
  const Pinned pinned;
  shm::StatusPage* status = daemon_.status();
  status->cpu.store(pinned.cpu());
  EXPECT_TRUE(session_->NicWaitsForCpu());
  status->cpu.store(pinned.cpu() + 1);
  EXPECT_FALSE(session_->NicWaitsForCpu());
}

TEST_F(SessionTest, TheNicWaitsFromItsWakingUntilItRuns) {
  daemon_.attach_only = true;
  OpenOnThread();
  const Pinned pinned;
  shm::StatusPage* status = daemon_.status();
  status->cpu.store(pinned.cpu() + 1);
  status->sleeping.store(7);
  EXPECT_FALSE(session_->NicWaitsForCpu()) << "it sleeps, and we asked nothing of it";
  session_->RingDoorbell({100});
  EXPECT_TRUE(session_->NicWaitsForCpu());
  status->sleeping.store(0);
  EXPECT_FALSE(session_->NicWaitsForCpu()) << "it runs elsewhere";
  status->sleeping.store(8);
  EXPECT_FALSE(session_->NicWaitsForCpu()) << "another sleep, which nobody has ended";
}

TEST_F(SessionTest, StatusPageIsReadOnlyForTheClient) {
  OpenOnThread();
  // Whoever could write it could suppress the wake-ups of others. The mapping says "r--s".
  EXPECT_EQ(CountMappings("fake", "rw-s"), 3) << "the daemon's two, and the control area";
  EXPECT_EQ(CountMappings("fake", "r--s"), 1);
}

// Runs `check` in a forked child; it returns 0, or the number of what failed.
template <typename Check>
int InChild(Check check) {
  pid_t pid = fork();
  if (pid == 0) _exit(check());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST_F(SessionTest, ForkedChildCannotTouchTheParentsSession) {
  OpenOnThread();
  shm::QueuePlace place = CreateCq(3);
  auto* queue = static_cast<uint8_t*>(session_->MapPlace(place));
  ASSERT_NE(queue, nullptr);
  uint32_t commands = daemon_.commands();
  EXPECT_EQ(InChild([&] {
              if (!session_->IsForkedCopy() || !session_->KnownDead()) return 1;
              if (session_->IsAlive()) return 2;
              if (Nop() != EIO) return 3;
              if (session_->MapPlace(place) != nullptr) return 4;
              if (session_->TakeChannelFd(1000) != -1) return 5;
              if (queue[0] != 0) return 6;
              queue[0] = 0xaa;
              session_->RingDoorbell({100});
              session_.reset();
              return 0;
            }),
            0);
  EXPECT_EQ(queue[0], 3) << "the child wrote to its own page";
  EXPECT_EQ(daemon_.control()->doorbells.Leaf(1).load(), 0u);
  EXPECT_EQ(daemon_.commands(), commands);
  EXPECT_TRUE(session_->IsAlive());
  EXPECT_FALSE(session_->IsForkedCopy());
  EXPECT_EQ(Nop(), 0);
  int stray = session_->TakeChannelFd(1000);
  EXPECT_GE(stray, 0) << "the child read nothing from the parent's socket";
  close(stray);
}

TEST_F(SessionTest, ForkedChildOpensASessionOfItsOwn) {
  OpenOnThread();
  FakeDaemon other;
  EXPECT_EQ(InChild([&] {
              session_.reset();
              pid_t pid = other.StartProcess();
              int error;
              session_ = OpenOrNull(&other, &error);
              if (error != 0) return 1;
              if (Nop() != 0) return 2;
              session_.reset();
              kill(pid, SIGKILL);
              return 0;
            }),
            0);
  EXPECT_EQ(Nop(), 0);
}

TEST_F(SessionTest, ParentIssuesCommandsWhileItForks) {
  OpenOnThread();
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (!stop.load()) failed.fetch_add(Nop() == 0 ? 0 : 1);
    });
  }
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(InChild([&] { return Nop() == EIO ? 0 : 1; }), 0);
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed.load(), 0u);
}

TEST_F(SessionTest, OpenAndCloseLeakNothing) {
  auto count_fds = [] {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return count;
  };
  auto cycle = [] {
    FakeDaemon daemon;
    daemon.StartThread();
    int error;
    SessionPtr session = OpenOrNull(&daemon, &error);
    ASSERT_EQ(error, 0);
    shm::CreateCqRequest request = {};
    request.entries = 1;
    shm::CreateCqReply reply = {};
    ASSERT_EQ(
        session->Execute(CommandOp::kCreateCq, &request, sizeof(request), &reply, sizeof(reply)),
        0);
    ASSERT_NE(session->MapPlace(reply.place), nullptr);
  };
  int fds = count_fds();
  int maps = CountMappings("fake", "");
  for (int i = 0; i < 20; ++i) cycle();
  EXPECT_EQ(count_fds(), fds);
  EXPECT_EQ(CountMappings("fake", ""), maps);
}

}  // namespace
}  // namespace verbena::client
