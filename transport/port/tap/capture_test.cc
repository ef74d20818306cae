#include "transport/port/tap/capture.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "transport/port/tap/fake_port.h"
#include "transport/port/tap/fake_sink.h"

namespace verbena::transport::tap {
namespace {

constexpr uint32_t kEnhancedPacketBlock = 6;

uint32_t Word(const std::vector<std::byte>& bytes, size_t at) {
  uint32_t word = 0;
  std::memcpy(&word, bytes.data() + at, 4);
  return word;
}

// Types of the blocks; fails the test if they don't end with the bytes.
std::vector<uint32_t> BlocksOf(const std::vector<std::byte>& bytes) {
  std::vector<uint32_t> types;
  size_t at = 0;
  while (at < bytes.size()) {
    if (bytes.size() - at < 12) {
      ADD_FAILURE() << "half a block at the end";
      break;
    }
    const uint32_t length = Word(bytes, at + 4);
    if (length < 12 || length % 4 != 0 || length > bytes.size() - at) {
      ADD_FAILURE() << "a block of " << length << " bytes at " << at;
      break;
    }
    EXPECT_EQ(Word(bytes, at + length - 4), length);
    types.push_back(Word(bytes, at));
    at += length;
  }
  return types;
}

uint64_t PacketsIn(const std::vector<std::byte>& bytes) {
  const std::vector<uint32_t> types = BlocksOf(bytes);
  return static_cast<uint64_t>(std::count(types.begin(), types.end(), kEnhancedPacketBlock));
}

std::vector<uint64_t> TimesIn(const std::vector<std::byte>& bytes) {
  std::vector<uint64_t> times_ns;
  for (size_t at = 0; at < bytes.size(); at += Word(bytes, at + 4)) {
    if (Word(bytes, at) != kEnhancedPacketBlock) continue;
    times_ns.push_back(uint64_t{Word(bytes, at + 12)} << 32 | Word(bytes, at + 16));
  }
  return times_ns;
}

// Sum of the packets' drop counts (option 4): what readers learn of packets left out.
uint64_t DropsIn(const std::vector<std::byte>& bytes) {
  uint64_t drops = 0;
  for (size_t at = 0; at < bytes.size(); at += Word(bytes, at + 4)) {
    if (Word(bytes, at) != kEnhancedPacketBlock) continue;
    size_t option = at + 28 + (Word(bytes, at + 20) + 3) / 4 * 4;
    while (uint32_t head = Word(bytes, option)) {
      if ((head & 0xffff) == 4) drops += Word(bytes, option + 4);
      option += 4 + ((head >> 16) + 3) / 4 * 4;
    }
  }
  return drops;
}

bool Contains(const std::vector<std::byte>& bytes, std::string_view text) {
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()).find(text) !=
         std::string_view::npos;
}

class CaptureTest : public testing::Test {
 protected:
  CaptureTest() {
    address_.source = Gid::FromIpv4(0x0a00'0001);
    address_.destination = Gid::FromIpv4(0x0a00'0002);
    pdu_.dest_qpn = Qpn{0x12};
    packet_ = MakePacket(pdu_, 100);
  }
  OutPacket Out() const { return AsOut(packet_, address_); }
  static std::string Comment(const wire::PacketAddress& address, const Pdu& pdu, bool is_sent) {
    return is_sent ? "mine" : "theirs";
  }

  FakeSink sink_;
  FakePort port_;
  wire::PacketAddress address_;
  Pdu pdu_;
  std::vector<std::byte> packet_;
};

TEST_F(CaptureTest, WritesInBigBlocksAndWhatIsLeftInTime) {
  Capture capture(&sink_, {});
  CaptureTap tap(&port_, &capture, "v0", Comment);
  EXPECT_TRUE(tap.Send(Instant{1000}, Out()));
  EXPECT_EQ(sink_.writes, 0u);
  EXPECT_EQ(tap.PollTimeout(), Instant{1000} + Milliseconds(200));
  tap.OnTimeout(Instant{2000});
  EXPECT_EQ(sink_.writes, 0u) << "not due";
  tap.OnTimeout(tap.PollTimeout());
  EXPECT_EQ(sink_.writes, 1u);
  EXPECT_TRUE(tap.PollTimeout().IsNever());
  EXPECT_EQ(BlocksOf(sink_.bytes), (std::vector<uint32_t>{0x0a0d'0d0a, 1, 6}));
  for (int i = 0; i < 10'000; ++i) tap.Send(Instant{}, Out());
  EXPECT_LT(sink_.writes, 20u);
  capture.Finish();
  EXPECT_EQ(PacketsIn(sink_.bytes), 10'001u);
  EXPECT_EQ(capture.written_bytes(), sink_.bytes.size());
}

TEST_F(CaptureTest, HeadersAreAskedForWhateverTheNicNeeds) {
  Capture capture(&sink_, {});
  CaptureTap tap(&port_, &capture, "v0", Comment);
  tap.WantGrh(false);
  EXPECT_TRUE(port_.wants_grh);
  capture.Finish();
}

TEST_F(CaptureTest, OnlyWhatThePortTookIsSent) {
  Capture capture(&sink_, {});
  CaptureTap tap(&port_, &capture, "v0", Comment);
  port_.room = 1;
  EXPECT_TRUE(tap.Send(Instant{}, Out()));
  tap.NoteNextSent("of the refused one");
  EXPECT_FALSE(tap.Send(Instant{}, Out()));
  port_.room = 1;
  EXPECT_TRUE(tap.Send(Instant{}, Out()));
  capture.Finish();
  EXPECT_EQ(PacketsIn(sink_.bytes), 2u);
  EXPECT_FALSE(Contains(sink_.bytes, "refused"));
}

// So that who sent it on the same host was not later.
TEST_F(CaptureTest, AReceivedPacketHasTheTimeAtWhichItHadCome) {
  RecordingOptions options;
  options.wall_offset = Seconds(3);
  Capture capture(&sink_, options);
  CaptureTap tap(&port_, &capture, "v0", Comment);
  port_.receive_takes = Microseconds(40);
  port_.arrivals.push_back(MakeArrival(pdu_, 100, address_, 4711));
  InPacket in;
  ASSERT_TRUE(tap.Receive(Instant{} + Seconds(2), &in));
  ASSERT_TRUE(tap.Send(Instant{} + Seconds(2), Out()));
  capture.Finish();
  EXPECT_EQ(TimesIn(sink_.bytes), (std::vector<uint64_t>{5'000'040'000, 5'000'000'000}));
}

TEST_F(CaptureTest, AReceivedPacketIsWrittenOnceItsFateIsKnown) {
  Capture capture(&sink_, {});
  CaptureTap tap(&port_, &capture, "v0", Comment);
  for (int i = 0; i < 2; ++i) port_.arrivals.push_back(MakeArrival(pdu_, 100, address_, 4711));
  InPacket in;
  ASSERT_TRUE(tap.Receive(Instant{}, &in));
  tap.NoteLastReceived("fault: dropped (line 1)");
  EXPECT_EQ(capture.packets(), 0u);
  ASSERT_TRUE(tap.Receive(Instant{}, &in));
  EXPECT_EQ(capture.packets(), 1u);
  tap.PrepareToSleep();
  EXPECT_EQ(capture.packets(), 2u);
  tap.PrepareToSleep();
  EXPECT_EQ(capture.packets(), 2u);
  capture.Finish();
  EXPECT_TRUE(Contains(sink_.bytes, "theirs; fault: dropped (line 1)"));
}

TEST_F(CaptureTest, HostilePacketsAreWrittenAsTheyAre) {
  Capture capture(&sink_, {});
  CaptureTap tap(&port_, &capture, "v0", Comment);
  for (uint32_t length : {0u, 1u, 3u, 4u, 15u, 16u, 5000u, 65'507u, 65'508u}) {
    port_.arrivals.push_back({address_, std::vector<std::byte>(length, std::byte{0xff}), 0});
  }
  InPacket in;
  while (tap.Receive(Instant{}, &in)) {
  }
  EXPECT_EQ(capture.packets(), 8u);
  EXPECT_EQ(capture.missed_packets(), 1u) << "no UDP packet is so long";
  capture.Finish();
  EXPECT_EQ(PacketsIn(sink_.bytes), 8u);
  EXPECT_TRUE(Contains(sink_.bytes, "too short for an ICRC"));
  EXPECT_TRUE(Contains(sink_.bytes, "not decoded: "));
}

TEST_F(CaptureTest, AFullDiskEndsTheCaptureWithWholeBlocks) {
  for (uint64_t room : {0, 1, 100, 300, 301, 5'000, 300'000}) {
    FakeSink sink;
    sink.fails_after = room;
    int ends = 0;
    RecordingOptions options;
    options.on_end = [&ends](const Recording& recording) {
      ++ends;
      EXPECT_FALSE(recording.error().empty());
    };
    Capture capture(&sink, options);
    CaptureTap tap(&port_, &capture, "v0", Comment);
    for (int i = 0; i < 2'000; ++i) EXPECT_TRUE(tap.Send(Instant{}, Out())) << "the NIC goes on";
    tap.OnTimeout(Instant{Seconds(1).ns});
    EXPECT_EQ(capture.state(), Capture::State::kFailed);
    EXPECT_NE(capture.error().find("the disk is full"), std::string::npos) << capture.error();
    EXPECT_TRUE(tap.PollTimeout().IsNever());
    EXPECT_TRUE(sink.is_closed) << "the file can be removed";
    EXPECT_EQ(ends, 1);
    const uint64_t packets = PacketsIn(sink.bytes);
    EXPECT_LE(packets, 2'000u);
    EXPECT_EQ(capture.packets(), packets);
    EXPECT_EQ(capture.written_bytes(), sink.bytes.size());
    EXPECT_NE(capture.error().find("after " + std::to_string(packets) + " packets"),
              std::string::npos)
        << capture.error();
    EXPECT_GE(packets, room == 300'000 ? 1'000u : 0u);
    const uint32_t writes = sink.writes;
    tap.Send(Instant{}, Out());
    capture.Finish();
    EXPECT_EQ(sink.writes, writes) << "nothing is tried again";
    EXPECT_EQ(ends, 1);
    EXPECT_EQ(capture.state(), Capture::State::kFailed);
  }
}

TEST_F(CaptureTest, ASlowReaderCostsPacketsThatAreCounted) {
  Capture capture(&sink_, {});
  CaptureTap tap(&port_, &capture, "v0", Comment);
  sink_.room = 1'001;
  const int sent = 10'000;
  for (int i = 0; i < sent; ++i) EXPECT_TRUE(tap.Send(Instant{}, Out()));
  EXPECT_EQ(capture.state(), Capture::State::kRunning);
  EXPECT_GT(capture.missed_packets(), 1'000u);
  EXPECT_EQ(capture.missed_packets() + capture.packets(), static_cast<uint64_t>(sent));
  // The reader comes and goes, at odd places.
  for (int i = 0; i < 3'000; ++i) {
    sink_.room = 777;
    tap.OnTimeout(tap.PollTimeout());
    tap.Send(Instant{}, Out());
  }
  sink_.room = ~0ull;
  tap.OnTimeout(tap.PollTimeout());
  tap.Send(Instant{}, Out());
  capture.Finish();
  EXPECT_EQ(PacketsIn(sink_.bytes), capture.packets());
  EXPECT_EQ(DropsIn(sink_.bytes), capture.missed_packets());
}

TEST_F(CaptureTest, TheSizeLimitIsKept) {
  RecordingOptions options;
  options.limit_bytes = 50'000;
  int ends = 0;
  options.on_end = [&ends](const Recording&) { ++ends; };
  Capture capture(&sink_, options);
  CaptureTap tap(&port_, &capture, "v0", Comment);
  for (int i = 0; i < 1'000; ++i) EXPECT_TRUE(tap.Send(Instant{}, Out()));
  EXPECT_EQ(capture.state(), Capture::State::kLimitReached);
  EXPECT_LE(sink_.bytes.size(), 50'000u);
  EXPECT_GT(sink_.bytes.size(), 49'000u);
  EXPECT_EQ(PacketsIn(sink_.bytes), capture.packets());
  EXPECT_TRUE(capture.error().empty());
  EXPECT_TRUE(sink_.is_closed);
  EXPECT_EQ(ends, 1);
}

TEST_F(CaptureTest, CommentsAreCutButNotWhatWasDone) {
  Capture capture(&sink_, {});
  CaptureTap tap(
      &port_, &capture, std::string(5'000, 'n'),
      [](const wire::PacketAddress&, const Pdu&, bool) { return std::string(5'000, 'x'); });
  tap.NoteNextSent("fault: bit 3 flipped (line 1)");
  OutPacket out = Out();
  out.corrupt_bit = 3;
  tap.Send(Instant{}, out);
  capture.Finish();
  EXPECT_EQ(PacketsIn(sink_.bytes), 1u);
  EXPECT_LT(sink_.bytes.size(), 1'500u);
  EXPECT_TRUE(Contains(sink_.bytes, "x; fault: bit 3 flipped (line 1)"));
}

TEST_F(CaptureTest, HeadersMatchAKnownPacket) {
  // Checksums computed apart, by a few lines of Python.
  std::byte payload[4] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  std::byte out[kIpUdpBytesMax];
  ASSERT_EQ(WriteIpUdpHeaders(address_, 0, payload, 4, out), 28u);
  const uint8_t expected[28] = {0x45, 0,    0,    0x20, 0, 0,  0x40, 0,   0x40, 17,
                                0x26, 0xcb, 10,   0,    0, 1,  10,   0,   0,    2,
                                0x12, 0xb7, 0x12, 0xb7, 0, 12, 0xc2, 0x5f};
  for (int i = 0; i < 28; ++i) EXPECT_EQ(std::to_integer<int>(out[i]), expected[i]) << i;
}

TEST_F(CaptureTest, UdpChecksumsOfAnyLengthAddUp) {
  std::vector<std::byte> bytes(kIpUdpBytesMax + 300);
  for (uint32_t length = 0; length < 300; ++length) {
    for (uint32_t i = 0; i < length; ++i) {
      bytes[28 + i] = static_cast<std::byte>(0xff - (i * length) % 7);
    }
    WriteIpUdpHeaders(address_, 0xffff, bytes.data() + 28, length, bytes.data());
    // Pseudo header and datagram, word by word, sum up to all ones.
    uint32_t sum = 17 + length + 8;
    for (uint32_t i = 12; i < 28 + length; ++i) {
      sum += std::to_integer<uint32_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
    }
    while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
    EXPECT_EQ(sum, 0xffffu) << length;
  }
}

class FdSinkTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "/capture_test." + std::to_string(getpid());
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
  }
  void TearDown() override { unlink(path_.c_str()); }
  std::string path_;
};

TEST_F(FdSinkTest, FileThatMayNotGrow) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1000;
  FdSink sink(open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600));
  std::vector<std::byte> bytes(1500);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const int64_t first = sink.Write(bytes.data(), 1500);
  const int64_t second = sink.Write(bytes.data(), 500);
  sink.Unwrite(300);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(first, 1000);
  EXPECT_EQ(second, -EFBIG);
  struct stat status;
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_size, 700);
}

TEST_F(FdSinkTest, FullPipeDoesNotBlockAndClosedOneIsAnError) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  FdSink sink(ends[1]);
  std::vector<std::byte> bytes(1u << 20);
  const int64_t count = sink.Write(bytes.data(), static_cast<uint32_t>(bytes.size()));
  EXPECT_GT(count, 0);
  EXPECT_LT(count, 1 << 20);
  EXPECT_EQ(sink.Write(bytes.data(), 100), 0) << "full";
  std::vector<std::byte> drain(8192);
  EXPECT_EQ(read(ends[0], drain.data(), drain.size()), 8192);
  EXPECT_GT(sink.Write(bytes.data(), 100), 0);
  close(ends[0]);
  EXPECT_EQ(sink.Write(bytes.data(), 100), -EPIPE);
}

TEST_F(FdSinkTest, DeviceThatIsFull) {
  const int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  FdSink sink(fd);
  std::byte byte{};
  EXPECT_EQ(sink.Write(&byte, 1), -ENOSPC);
}

TEST_F(CaptureTest, EachInterfaceHasItsOwnComments) {
  Capture capture(&sink_, {});
  FakePort other_port;
  CaptureTap tap(&port_, &capture, "v0", Comment);
  CaptureTap other(&other_port, &capture, "v1",
                   [](const wire::PacketAddress&, const Pdu&, bool) { return "of the other"; });
  other.Send(Instant{}, Out());
  capture.Finish();
  EXPECT_TRUE(Contains(sink_.bytes, "of the other"));
  EXPECT_FALSE(Contains(sink_.bytes, "mine"));
}

}  // namespace
}  // namespace verbena::transport::tap
