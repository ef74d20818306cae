#include "softnic/control/cm_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace verbena::softnic {
namespace {

short EventsOf(int fd) {
  pollfd p = {fd, POLLIN, 0};
  EXPECT_GE(poll(&p, 1, 0), 0);
  return p.revents;
}

class CmChannelTest : public ::testing::Test {
 protected:
  CmChannelTest() : channel(std::make_unique<CmChannelFd>()) {
    EXPECT_EQ(channel->Open(), 0);
    program_end.Reset(fcntl(channel->client_end(), F_DUPFD_CLOEXEC, 0));
  }
  std::unique_ptr<CmChannelFd> channel;
  UniqueFd program_end;
};

TEST_F(CmChannelTest, IsReadableExactlyWhenToldSo) {
  EXPECT_EQ(EventsOf(program_end.get()), 0);
  for (int i = 0; i < 10'000; ++i) {
    channel->SetReadable(true);
    channel->SetReadable(true);
    ASSERT_EQ(EventsOf(program_end.get()), POLLIN);
    channel->SetReadable(false);
    channel->SetReadable(false);
    ASSERT_EQ(EventsOf(program_end.get()), 0);
  }
}

TEST_F(CmChannelTest, WakesThoseThatWaitOneAfterTheOther) {
  constexpr int kThreads = 4;
  std::atomic<int> about_to_wait = 0, awake = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      char token;
      ++about_to_wait;
      EXPECT_EQ(recv(program_end.get(), &token, 1, MSG_PEEK), 1);
      ++awake;
    });
  }
  while (about_to_wait < kThreads) std::this_thread::yield();
  channel->SetReadable(true);
  // Each that is awake takes an event, and leaves one.
  for (int i = 1; i < kThreads; ++i) {
    while (awake < i) std::this_thread::yield();
    channel->WakeAnother();
    EXPECT_EQ(EventsOf(program_end.get()), POLLIN);
  }
  for (std::thread& thread : threads) thread.join();
  channel->SetReadable(false);
  EXPECT_EQ(EventsOf(program_end.get()), 0);
  channel->WakeAnother();
  EXPECT_EQ(EventsOf(program_end.get()), 0);
}

TEST_F(CmChannelTest, HangsUpWhenItsMakerEnds) {
  channel.reset();
  EXPECT_EQ(EventsOf(program_end.get()), POLLIN | POLLHUP);
}

TEST_F(CmChannelTest, IsInBlockingModeAsAProgramExpects) {
  EXPECT_EQ(fcntl(program_end.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(channel->client_end(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(CmChannelTest, AProgramThatReadsItHurtsItselfAlone) {
  channel->SetReadable(true);
  char token;
  ASSERT_EQ(recv(program_end.get(), &token, 1, MSG_DONTWAIT), 1);
  channel->SetReadable(false);  // finds nothing, and does not wait for it
  channel->SetReadable(true);
  EXPECT_EQ(EventsOf(program_end.get()), POLLIN);
}

TEST_F(CmChannelTest, AProgramThatWritesOrShutsItHoldsUpNobody) {
  while (send(program_end.get(), "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
  channel->SetReadable(true);
  EXPECT_EQ(EventsOf(program_end.get()), POLLIN);
  shutdown(program_end.get(), SHUT_RDWR);
  channel->SetReadable(false);
  channel->SetReadable(true);
  channel->SetReadable(false);
}

}  // namespace
}  // namespace verbena::softnic
