// What only the io_uring port has to get right: threads that take over, buffers that run out, a
// system that refuses.
#include "transport/port/uring/uring_port.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <thread>

#include "transport/port/udp/open_udp_port.h"
#include "transport/port/udp/udp_port_test_util.h"

namespace verbena::transport {
namespace {

Gid Loopback(uint8_t host) {
  const auto run = static_cast<uint32_t>(getpid());
  return V4(127, static_cast<uint8_t>(210 + (run >> 16) % 40), static_cast<uint8_t>(run >> 8),
            static_cast<uint8_t>((run & 0xe0) + host));
}
constexpr uint16_t kPort = 24'891;

class UringPortTest : public testing::Test {
 protected:
  void SetUp() override {
    UdpPortError error;
    a_ = UringPort::Open({.addresses = {{Loopback(1)}}, .port = kPort}, &error);
    if (error.kind == UdpPortErrorKind::kNoUring) GTEST_SKIP() << error.text;
    ASSERT_NE(a_, nullptr) << error.text;
    b_ = UringPort::Open({.addresses = {{Loopback(2)}}, .port = kPort}, &error);
    ASSERT_NE(b_, nullptr) << error.text;
  }

  void SendOne(uint32_t seed) {
    wire::PacketAddress to_b;
    to_b.source = Loopback(1);
    to_b.destination = Loopback(2);
    to_b.destination_port = kPort;
    const auto bytes = MakePacket(100, seed);
    ASSERT_TRUE(a_->Send({}, {.address = to_b, .bytes = bytes.data(), .length = 100}));
    a_->Flush({});
  }
  void ExpectOne(uint32_t seed) {
    Received got;
    ASSERT_TRUE(ReceiveOne(b_.get(), &got)) << seed;
    EXPECT_EQ(got.bytes, MakePacket(100, seed));
  }

  std::unique_ptr<UringPort> a_, b_;
};

TEST_F(UringPortTest, AnotherThreadTakesOverWhileTheFirstHangs) {
  SendOne(1);
  ExpectOne(1);
  // This thread armed the receives; in join it runs none of their work unless it is woken for it.
  std::thread second([&] {
    SendOne(2);
    ExpectOne(2);
    SendOne(3);
    ExpectOne(3);
  });
  second.join();
  // The thread that received last has ended, and its requests with it.
  SendOne(4);
  ExpectOne(4);
  EXPECT_EQ(b_->counters().received_packets, 4u);
}

// Requests of a thread that has ended, or is about to, complete in the kernel's own time.
TEST_F(UringPortTest, ItsAddressIsFreeOnceItIsGone) {
  for (uint32_t i = 0; i < 300; ++i) {
    std::thread driver([&] {
      SendOne(i);
      ExpectOne(i);
    });
    driver.join();
    b_.reset();
    UdpPortError error;
    b_ = UringPort::Open({.addresses = {{Loopback(2)}}, .port = kPort}, &error);
    ASSERT_NE(b_, nullptr) << "round " << i << ": " << error.text;
  }
}

TEST_F(UringPortTest, MoreDatagramsThanBuffersWaitInTheSocket) {
  const uint32_t count = 200;
  for (uint32_t i = 0; i < count; ++i) SendOne(i);
  for (uint32_t i = 0; i < count; ++i) ExpectOne(i);
  EXPECT_GT(b_->counters().errors[PortError::kNoReceiveBuffer], 0u);
  EXPECT_EQ(b_->counters().receive_drops, 0u);
  EXPECT_EQ(b_->counters().errors[PortError::kOtherReceive], 0u);
}

TEST_F(UringPortTest, SleepIsRefusedWhileThereIsSomething) {
  InPacket packet;
  EXPECT_FALSE(b_->Receive({}, &packet));
  EXPECT_TRUE(b_->PrepareToSleep());
  SendOne(1);
  EXPECT_FALSE(b_->PrepareToSleep());
  EXPECT_TRUE(b_->Receive({}, &packet));
  EXPECT_FALSE(b_->Receive({}, &packet));
  EXPECT_TRUE(b_->PrepareToSleep());
}

// io_uring_setup answers EPERM, as in a container; run in a process of its own.
int OpenWhereUringIsRefused() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{.len = std::size(filter), .filter = filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    return 2;
  }
  const UdpPortConfig config{.addresses = {{Loopback(5)}}, .port = kPort};
  UdpPortError error;
  if (OpenUdpPort(config, NetIo::kUring, &error) != nullptr ||
      error.kind != UdpPortErrorKind::kNoUring || error.error != EPERM ||
      error.text.find("refused") == std::string::npos) {
    fprintf(stderr, "kUring: %s\n", error.text.c_str());
    return 3;
  }
  auto port = OpenUdpPort(config, NetIo::kEpoll, &error);
  if (port == nullptr || std::string(port->name()) != "epoll") {
    fprintf(stderr, "kEpoll: %s\n", error.text.c_str());
    return 4;
  }
  return error.kind == UdpPortErrorKind::kNone ? 0 : 5;
}

TEST(UringRefused, SaysWhyAndEpollNeedsNone) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(OpenWhereUringIsRefused());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace verbena::transport
