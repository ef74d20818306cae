// Taps put in and taken out of a NIC's chain while packets pass.
#include "softnic/control/network_taps.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "softnic/device/gsi.h"
#include "softnic/device/test_world.h"
#include "transport/port/tap/fake_port.h"

namespace verbena::softnic::testing {
namespace {

namespace tap = transport::tap;
namespace wire = transport::wire;

class NetworkTapsTest : public ::testing::Test {
 protected:
  NetworkTapsTest() {
    device.AddNic(TestWorld::ConfigOf(0));
    device.SetMadHandler(
        [this](uint32_t, const Gid&, const Gid&, const std::byte*, size_t) { ++received_mads; });
    taps = std::make_unique<NetworkTaps>(&device, std::vector<TapTarget>{{0, "v0", &port}},
                                         std::nullopt);
  }
  ~NetworkTapsTest() override {
    device.AttachPort(0, nullptr);
    for (int fd : files) close(fd);
  }

  void Rules(const std::string& text) {
    tap::FaultRules rules;
    std::string error;
    ASSERT_TRUE(tap::ParseFaultRules(text, &rules, &error)) << error;
    taps->SetFaults(now, std::move(rules));
  }
  // What is recorded is read through the fd returned.
  int StartRecording(RecordingKind kind) {
    const int fd = memfd_create("recording", MFD_CLOEXEC);
    files.push_back(dup(fd));
    taps->StartRecording(kind, now, fd, 0);
    return files.back();
  }
  static std::string TextOf(int fd) {
    std::string text(static_cast<size_t>(lseek(fd, 0, SEEK_END)), '\0');
    EXPECT_EQ(pread(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return text;
  }
  static size_t CountOf(const std::string& what, const std::string& text) {
    size_t count = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
      ++count;
    }
    return count;
  }
  static Gid Peer() { return Gid::FromIpv4(0x0a00'0009); }
  void Send() {
    std::array<std::byte, kMadBytes> mad{};
    mad[0] = std::byte{1};  // base version
    ASSERT_EQ(device.SendMad(now, 0, TestWorld::GidOf(0), Peer(), mad.data(), mad.size()), 0);
    device.FlushPorts(now);
  }
  void Arrive() {
    transport::Pdu pdu;
    pdu.service = Service::kUd;
    pdu.opcode = transport::Opcode::kSendOnly;
    pdu.dest_qpn = pdu.src_qpn = kQpnGsi;
    pdu.pkey = kDefaultPkey;
    pdu.qkey = kGsiQkey;
    port.arrivals.push_back(tap::MakeArrival(pdu, kMadBytes, {Peer(), TestWorld::GidOf(0)}));
    device.PollPorts(now, 16);
  }
  void PassTime(Duration time) {
    now = now + time;
    device.OnTimeout(now);
    device.PollPorts(now, 16);
    device.FlushPorts(now);
  }

  Instant now{1'000'000};
  FakeDma dma;
  Device device{DeviceConfig{}, &dma};
  tap::FakePort port;
  std::unique_ptr<NetworkTaps> taps;
  std::vector<int> files;
  int received_mads = 0;
};

TEST_F(NetworkTapsTest, WhatFaultsHoldOutlivesAllChanges) {
  Rules("delay for=1ms");
  Send();
  Arrive();
  StartRecording(RecordingKind::kCapture);
  StartRecording(RecordingKind::kTrace);
  taps->StopRecording(RecordingKind::kCapture);
  taps->StopRecording(RecordingKind::kTrace);
  Rules("drop opcode=ack");
  Rules("");
  EXPECT_EQ(port.sent.size(), 0u);
  EXPECT_EQ(received_mads, 0);
  PassTime(Milliseconds(1));
  EXPECT_EQ(port.sent.size(), 1u);
  EXPECT_EQ(received_mads, 1);
}

TEST_F(NetworkTapsTest, WhatThePortRefusedOutlivesACapture) {
  Rules("duplicate dir=out");
  port.room = 1;
  Send();
  ASSERT_EQ(port.sent.size(), 1u) << "the copy found no room";
  StartRecording(RecordingKind::kCapture);
  port.room = 10;
  Send();
  EXPECT_EQ(port.sent.size(), 4u);
  taps->StopRecording(RecordingKind::kCapture);
}

TEST_F(NetworkTapsTest, FaultsOfARunningCaptureAreInIt) {
  const int file = StartRecording(RecordingKind::kCapture);
  Send();
  Rules("drop dir=out name=lose");
  Send();
  Rules("");
  Send();
  const RecordingStatus status = taps->StopRecording(RecordingKind::kCapture);
  EXPECT_EQ(status.packets, 3u);
  EXPECT_EQ(port.sent.size(), 2u);
  const std::string text = TextOf(file);
  EXPECT_EQ(CountOf("fault: dropped (lose)", text), 1u);
  EXPECT_EQ(CountOf("v0", text), 1u) << "one interface, however often rules change";
}

TEST_F(NetworkTapsTest, CommentsSayWhoseAPacketIs) {
  const int file = StartRecording(RecordingKind::kCapture);
  Send();
  Arrive();
  taps->StopRecording(RecordingKind::kCapture);
  const std::string text = TextOf(file);
  EXPECT_EQ(CountOf("connection management QP 0x1 → 10.0.0.9 QP 0x1", text), 1u);
  EXPECT_EQ(CountOf("connection management QP 0x1 ← 10.0.0.9 QP 0x1", text), 1u);
}

TEST_F(NetworkTapsTest, TraceTellsWhatTheNicSendsAndGets) {
  Rules("drop dir=in nth=1\ndrop dir=out nth=1");
  const int file = StartRecording(RecordingKind::kTrace);
  for (int i = 0; i < 2; ++i) {
    Send();
    Arrive();
  }
  EXPECT_TRUE(taps->StatusOf(RecordingKind::kTrace).is_running);
  const RecordingStatus status = taps->StopRecording(RecordingKind::kTrace);
  EXPECT_FALSE(status.is_running);
  EXPECT_EQ(status.packets, 3u);
  const std::string text = TextOf(file);
  EXPECT_EQ(CountOf(" v0 out 127.0.0.1 > 10.0.0.9 UD SEND_ONLY to QP 0x000001 ", text), 2u);
  EXPECT_EQ(CountOf("(connection management QP 0x1 ← 10.0.0.9 QP 0x1)\n", text), 1u) << text;
  Send();
  EXPECT_EQ(TextOf(file), text) << "it has ended";
}

TEST_F(NetworkTapsTest, ReportsCountWhatDidNotFit) {
  Rules("duplicate copies=16 dir=out\ndelay for=1ms dir=out");
  // 32 MiB hold so many packets of 256 bytes and more at most.
  static_assert(tap::kHeldBytesMax / kMadBytes == 131'072);
  for (int i = 0; i < 131'072 / 16; ++i) Send();
  EXPECT_NE(taps->FaultReport().find(" packets lost, as too many were held back"),
            std::string::npos)
      << taps->FaultReport();
}

}  // namespace
}  // namespace verbena::softnic::testing
