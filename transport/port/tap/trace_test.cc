#include "transport/port/tap/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "transport/port/tap/fake_port.h"
#include "transport/port/tap/fake_sink.h"

namespace verbena::transport::tap {
namespace {

class TraceTest : public testing::Test {
 protected:
  TraceTest() {
    address_.source = Gid::FromIpv4(0x0a00'0001);
    address_.destination = Gid::FromIpv4(0x0a00'0002);
    back_ = address_;
    std::swap(back_.source, back_.destination);
    pdu_.dest_qpn = Qpn{0x12};
    packet_ = MakePacket(pdu_, 100);
    pdu_.payload.length = 100;
  }
  OutPacket Out() const { return AsOut(packet_, address_); }
  static std::string Comment(const wire::PacketAddress& address, const Pdu& pdu, bool is_sent) {
    return is_sent ? "mine" : "theirs";
  }
  std::string Text() const {
    return {reinterpret_cast<const char*>(sink_.bytes.data()), sink_.bytes.size()};
  }

  FakeSink sink_;
  FakePort port_;
  wire::PacketAddress address_, back_;
  Pdu pdu_;
  std::vector<std::byte> packet_;
};

TEST_F(TraceTest, TellsEachPacket) {
  RecordingOptions options;
  options.wall_offset = Seconds(1000);
  Trace trace(&sink_, options);
  TraceTap tap(&port_, &trace, "v0", Comment);
  EXPECT_TRUE(tap.Send(Instant{1'500'000'001}, Out()));
  port_.room = 0;
  EXPECT_FALSE(tap.Send(Instant{}, Out())) << "a refused packet is no packet";
  port_.arrivals.push_back(MakeArrival(pdu_, 100, back_));
  port_.arrivals.push_back({back_, std::vector<std::byte>(3), 0});
  InPacket in;
  while (tap.Receive(Instant{}, &in)) {
  }
  trace.Finish();
  EXPECT_EQ(trace.packets(), 3u);
  EXPECT_EQ(Text(), "1001.500000001 v0 out 10.0.0.1 > 10.0.0.2 " + wire::Describe(pdu_) +
                        " (mine)\n1000.000000000 v0 in 10.0.0.2 > 10.0.0.1 " +
                        wire::Describe(pdu_) +
                        " (theirs)\n1000.000000000 v0 in 10.0.0.2 > 10.0.0.1 not decoded: " +
                        wire::NameOf(wire::DecodeError::kTooShort) + "\n");
}

TEST_F(TraceTest, WaitsForMoreLinesButNotForLong) {
  Trace trace(&sink_, {});
  TraceTap tap(&port_, &trace, "v0", Comment);
  tap.Send(Instant{1000}, Out());
  EXPECT_EQ(sink_.writes, 0u);
  EXPECT_EQ(tap.PollTimeout(), Instant{1000} + Milliseconds(200));
  tap.OnTimeout(tap.PollTimeout());
  EXPECT_EQ(sink_.writes, 1u);
  EXPECT_TRUE(tap.PollTimeout().IsNever());
}

TEST_F(TraceTest, ASlowReaderMissesLinesAndIsToldSo) {
  RecordingOptions options;
  options.buffer_bytes = 1000;
  Trace trace(&sink_, options);
  TraceTap tap(&port_, &trace, "v0", Comment);
  sink_.room = 150;  // a line and a part of one
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(tap.Send(Instant{}, Out()));
  EXPECT_GT(trace.missed_packets(), 80u);
  sink_.room = ~0ull;
  tap.OnTimeout(tap.PollTimeout());
  tap.Send(Instant{}, Out());
  trace.Finish();
  EXPECT_EQ(trace.packets() + trace.missed_packets(), 101u);
  EXPECT_NE(Text().find("(" + std::to_string(trace.missed_packets()) + " packets are missing"),
            std::string::npos)
      << Text();
  std::istringstream lines(Text());
  uint64_t whole = 0;
  for (std::string line; std::getline(lines, line);) whole += line.ends_with("(mine)");
  EXPECT_EQ(whole, trace.packets());
}

TEST_F(TraceTest, AFullDiskEndsItWithAWholeLine) {
  Trace trace(&sink_, {});
  TraceTap tap(&port_, &trace, "v0", Comment);
  for (int i = 0; i < 10; ++i) tap.Send(Instant{}, Out());
  sink_.fails_after = 500;
  tap.OnTimeout(tap.PollTimeout());
  EXPECT_EQ(trace.state(), Trace::State::kFailed);
  const std::string text = Text();
  const auto lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_NE(trace.error().find("trace stopped after " + std::to_string(lines) +
                               " packets: the disk is full"),
            std::string::npos)
      << trace.error();
  EXPECT_EQ(trace.packets() + trace.missed_packets(), 10u);
  EXPECT_TRUE(Text().ends_with("(mine)\n")) << Text();
  EXPECT_TRUE(tap.Send(Instant{}, Out())) << "traffic goes on";
}

}  // namespace
}  // namespace verbena::transport::tap
