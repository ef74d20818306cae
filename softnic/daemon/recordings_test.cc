// Captures and traces that still run when their daemon ends.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <string>

#include "softnic/daemon/test_client.h"

namespace verbena::softnic {
namespace {

constexpr char kDatagram[] = "a datagram that is no packet";
constexpr uint16_t kRoceUdpPort = 4791;

std::string ContentOf(int fd) {
  std::string text(static_cast<size_t>(lseek(fd, 0, SEEK_END)), '\0');
  EXPECT_EQ(pread(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  return text;
}

// A file without a name: the daemon opens it by its fd here.
class TestFile {
 public:
  TestFile() : fd_(memfd_create("recording", 0)) {}
  ~TestFile() { close(fd_); }
  TestFile(const TestFile&) = delete;
  std::string path() const {
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
  }
  int fd() const { return fd_; }
  std::string content() const { return ContentOf(fd_); }

 private:
  int fd_;
};

// What is written to stderr meanwhile, by children too.
class StderrCapture {
 public:
  StderrCapture() : kept_(dup(STDERR_FILENO)) { dup2(file_.fd(), STDERR_FILENO); }
  ~StderrCapture() {
    dup2(kept_, STDERR_FILENO);
    close(kept_);
  }
  std::string text() const { return file_.content(); }

 private:
  TestFile file_;
  int kept_;
};

// To the only NIC, which has taken it when this returns.
void SendDatagram(const TestDaemon& daemon) {
  const std::string devices = daemon.Ask("{\"op\":\"devices\"}");
  const std::string key = "\"ipv4\":\"";
  const size_t at = devices.find(key);
  ASSERT_NE(at, std::string::npos) << devices;
  const size_t begin = at + key.size();
  const std::string ipv4 = devices.substr(begin, devices.find('"', begin) - begin);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(kRoceUdpPort);
  ASSERT_EQ(inet_pton(AF_INET, ipv4.c_str(), &address.sin_addr), 1) << ipv4;
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(sendto(fd, kDatagram, sizeof(kDatagram), 0, reinterpret_cast<sockaddr*>(&address),
                   sizeof(address)),
            static_cast<ssize_t>(sizeof(kDatagram)));
  close(fd);
  ASSERT_TRUE(Eventually([&] { return daemon.StatusNumber("rx_malformed") == 1; }));
}

void ExpectWhole(const std::string& capture) {
  ASSERT_GE(capture.size(), 4u) << "no section header";
  EXPECT_EQ(capture.substr(0, 4), "\x0a\x0d\x0d\x0a");
  EXPECT_NE(capture.find(kDatagram), std::string::npos) << "the packet is missing";
}

TEST(Recordings, AreWholeWhenTheDaemonIsTerminated) {
  TestFile capture;
  TestDaemon daemon({"--wire=1", "--capture=" + capture.path()});
  ASSERT_EQ(daemon.said(), "R");
  SendDatagram(daemon);
  ASSERT_EQ(kill(daemon.pid(), SIGTERM), 0);
  EXPECT_EQ(daemon.Wait(), 0);
  ExpectWhole(capture.content());
}

TEST(Recordings, AreWholeWhenTheInstanceIsTakenDown) {
  TestFile capture;
  TestDaemon daemon({"--wire=1"});
  ASSERT_NE(
      daemon.Ask("{\"op\":\"capture\",\"action\":\"start\",\"file\":\"" + capture.path() + "\"}")
          .find("\"ok\":true"),
      std::string::npos);
  SendDatagram(daemon);
  EXPECT_NE(daemon.Ask("{\"op\":\"down\"}").find("\"ok\":true"), std::string::npos);
  EXPECT_EQ(daemon.Wait(), 0);
  ExpectWhole(capture.content());
}

TEST(Recordings, AFullDiskIsToldOfWhenTheDaemonEnds) {
  StderrCapture said;
  TestDaemon daemon({"--wire=1", "--capture=/dev/full"});
  ASSERT_EQ(kill(daemon.pid(), SIGTERM), 0);
  EXPECT_EQ(daemon.Wait(), 0);
  EXPECT_NE(said.text().find("the disk is full"), std::string::npos) << said.text();
}

}  // namespace
}  // namespace verbena::softnic
