// The admin protocol against a scripted daemon on the other end of a socket pair.
#include "tools/cli/admin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "core/shm/attach.h"

namespace verbena::cli {
namespace {

using ::testing::HasSubstr;

class AdminTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_), 0);
  }
  void TearDown() override {
    if (daemon_.joinable()) daemon_.join();
  }
  // Reads Hello and the request, then sends the packets and closes unless `stay`.
  void Serve(std::vector<std::string> packets, bool stay = false) {
    daemon_ = std::thread([this, packets = std::move(packets), stay] {
      ASSERT_EQ(::recv(ends_[1], &hello_, sizeof hello_, 0), static_cast<ssize_t>(sizeof hello_));
      char text[4096];
      const ssize_t got = ::recv(ends_[1], text, sizeof text, 0);
      ASSERT_GT(got, 0);
      request_.assign(text, static_cast<size_t>(got));
      for (const std::string& packet : packets) {
        ASSERT_EQ(::send(ends_[1], packet.data(), packet.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(packet.size()));
      }
      if (!stay) ::close(ends_[1]);
    });
  }

  int ends_[2] = {-1, -1};
  std::thread daemon_;
  shm::Hello hello_ = {};
  std::string request_;
};

TEST_F(AdminTest, ReplyMaySpanPackets) {
  Serve({"{\"rows\":[{\"qp_", "num\":17}", "]}"});
  AdminConnection connection(ends_[0]);
  json::object reply;
  std::string error;
  ASSERT_TRUE(connection.Ask({{"op", "show"}, {"kind", "qp"}}, &reply, &error)) << error;
  daemon_.join();
  EXPECT_EQ(reply["rows"].as_array()[0].as_object()["qp_num"].as_int64(), 17);
  EXPECT_EQ(hello_.magic, shm::kAbiMagic);
  EXPECT_EQ(hello_.kind, static_cast<uint32_t>(shm::HelloKind::kAdmin));
  EXPECT_EQ(request_, R"({"op":"show","kind":"qp"})");
}

TEST_F(AdminTest, PacketsOfAnySizeArriveWhole) {
  const std::string big(150'000, 'x');
  Serve({"{\"a\":\"" + big + "\"}"});
  AdminConnection connection(ends_[0]);
  json::object reply;
  std::string error;
  ASSERT_TRUE(connection.Ask({{"op", "status"}}, &reply, &error)) << error;
  EXPECT_EQ(FieldText(reply, "a"), big);
}

TEST_F(AdminTest, RefusalIsTheDaemonsSentence) {
  Serve({R"({"error":"there is no such thing"})"});
  AdminConnection connection(ends_[0]);
  json::object reply;
  std::string error;
  EXPECT_FALSE(connection.Ask({{"op", "x"}}, &reply, &error));
  EXPECT_EQ(error, "there is no such thing");
}

TEST_F(AdminTest, SilenceAndNonsenseAreErrors) {
  Serve({});
  json::object reply;
  std::string error;
  {
    AdminConnection connection(ends_[0]);
    EXPECT_FALSE(connection.Ask({{"op", "x"}}, &reply, &error));
    EXPECT_THAT(error, HasSubstr("without an answer"));
  }
  daemon_.join();
  SetUp();
  Serve({"oops"});
  AdminConnection connection(ends_[0]);
  EXPECT_FALSE(connection.Ask({{"op", "x"}}, &reply, &error));
  EXPECT_THAT(error, HasSubstr("not JSON"));
}

TEST_F(AdminTest, HoldKeepsTheConnection) {
  Serve({R"({"ok":true})"}, true);
  AdminConnection connection(ends_[0]);
  std::string error;
  ASSERT_EQ(connection.Hold(&error), AskResult::kOk) << error;
  daemon_.join();
  EXPECT_EQ(request_, R"({"op":"hold"})");
  char byte;
  EXPECT_EQ(::recv(ends_[1], &byte, 1, MSG_DONTWAIT), -1) << "still open";
  connection.Close();
  EXPECT_EQ(::recv(ends_[1], &byte, 1, 0), 0);
  ::close(ends_[1]);
}

}  // namespace
}  // namespace verbena::cli
