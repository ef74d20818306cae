// Writes a capture with every kind of packet by the taps that the daemon uses, and prints, one JSON
// object a line, what each packet was meant to be: for check_capture_test.py.
//
//   write_capture FILE
#include <fcntl.h>

#include <cstdio>
#include <string>
#include <vector>

#include "transport/port/tap/capture.h"
#include "transport/port/tap/fake_port.h"
#include "transport/port/tap/faults.h"

namespace verbena::transport::tap {
namespace {

constexpr uint32_t kMtu = 1024;
constexpr const char* kRules =
    "seed 7\n"
    "drop      nic=nic1 dir=out nth=2 name=lose-one\n"
    "corrupt   nic=nic1 dir=out nth=3 repeat=3\n"
    "corrupt   nic=nic1 dir=out nth=6 bit=3\n"
    "duplicate nic=nic1 dir=out nth=7 copies=2\n"
    "delay     nic=nic1 dir=out nth=8 for=1ms\n"
    "drop      nic=nic1 dir=in nth=2\n"
    "corrupt   nic=nic1 dir=in nth=3\n";

Gid Ipv6(uint8_t last) {
  Gid gid;
  gid.raw = {0xfd, 0, 0xbe, 0xef};
  gid.raw[15] = last;
  return gid;
}

struct Nic {
  const char* name;
  FakePort* port;
  PacketPort* top;
};

class Story {
 public:
  // Sends and receives one packet of every opcode of every service.
  void TellAll(const Nic& nic, wire::PacketAddress address) {
    for (Service service : {Service::kRc, Service::kUc, Service::kUd}) {
      for (uint32_t code = 0; code < 32; ++code) {
        const OpcodeInfo* info = LookUpOpcode(static_cast<Opcode>(code));
        if (info == nullptr || (info->services >> static_cast<uint32_t>(service) & 1) == 0)
          continue;
        Pdu pdu = Base(service, static_cast<Opcode>(code));
        for (uint32_t bytes : Sizes(*info)) {
          // Routers may have changed these on the way: the ICRC leaves them out.
          address.traffic_class = static_cast<uint8_t>(step_ * 4);
          address.hop_limit = static_cast<uint8_t>(64 - step_ % 60);
          address.flow_label = step_ * 4099 % (1u << 20);
          address.source_port = static_cast<uint16_t>(0xc000 + step_);
          ++step_;
          pdu.psn = psn_[static_cast<size_t>(service)];
          if (info->has_reth) pdu.dma_length = bytes;
          if (pdu.opcode == Opcode::kReadRequest) pdu.dma_length = 5 * kMtu + 1;
          if (pdu.opcode == Opcode::kWriteFirst) pdu.dma_length = 3 * kMtu;
          Both(nic, address, pdu, pdu.opcode == Opcode::kReadRequest ? 0 : bytes);
        }
      }
    }
    Acknowledgements(nic, address);
  }

  void Both(const Nic& nic, const wire::PacketAddress& address, const Pdu& pdu,
            uint32_t payload_bytes) {
    SendOne(nic, address, pdu, payload_bytes);
    wire::PacketAddress back = address;
    std::swap(back.source, back.destination);
    // As kernel rxe numbers its packets: running, never 0.
    const auto ip_id = static_cast<uint16_t>(back.IsIpv4() ? 40'000 + 977 * step_ : 0);
    ReceiveOne(nic, back, pdu, payload_bytes, ip_id);
    Advance(pdu);
  }

  void SendOne(const Nic& nic, const wire::PacketAddress& address, const Pdu& pdu,
               uint32_t payload_bytes) {
    const std::vector<std::byte> bytes = MakePacket(pdu, payload_bytes);
    now_ = now_ + Nanoseconds(1234);
    Tell(nic, "out", pdu, payload_bytes, 0);
    nic.top->Send(now_, AsOut(bytes, address));
  }

  void ReceiveOne(const Nic& nic, const wire::PacketAddress& address, const Pdu& pdu,
                  uint32_t payload_bytes, uint16_t ip_id) {
    nic.port->arrivals.push_back(MakeArrival(pdu, payload_bytes, address, ip_id));
    now_ = now_ + Nanoseconds(777);
    Tell(nic, "in", pdu, payload_bytes, ip_id);
    InPacket in;
    nic.top->Receive(now_, &in);
    nic.top->PrepareToSleep();  // this packet stands in the file before the next one
  }

  Pdu Base(Service service, Opcode opcode) const {
    Pdu pdu;
    pdu.service = service;
    pdu.opcode = opcode;
    pdu.ack_request = step_ % 2 == 0;
    pdu.solicited = step_ % 3 == 0;
    pdu.pkey = PKey{0xffff};
    pdu.src_qpn = Qpn{0x11};
    pdu.dest_qpn = Qpn{0x12 + 16 * static_cast<uint32_t>(service)};
    pdu.psn = psn_[static_cast<size_t>(service)];
    pdu.flush_type = transport::flush::kGlobal;
    pdu.flush_level = transport::flush::kMr;
    pdu.remote_addr = 0x7f00'1234'5678'9abc;
    pdu.rkey = RKey{0x1ee7};
    pdu.compare = 0x1122'3344'5566'7788;
    pdu.swap_or_add = 0x99aa'bbcc'ddee'ff00;
    pdu.msn = Msn{0x00fe'dcba};
    pdu.atomic_original = 0x0102'0304'0506'0708;
    pdu.qkey = QKey{0x1111'1111};
    pdu.imm_or_rkey = 0xcafe'f00d;
    return pdu;
  }
  Instant now() const { return now_; }
  void Wait(Duration time) { now_ = now_ + time; }

 private:
  static std::vector<uint32_t> Sizes(const OpcodeInfo& info) {
    if (info.is_atomic_write) return {8};
    if (info.is_atomic || !(info.is_send || info.is_write || info.is_read_response)) return {0};
    if (info.is_first != info.is_last || info.is_middle) {
      return info.is_last ? std::vector<uint32_t>{1, 2, 3, 4, 1023} : std::vector<uint32_t>{kMtu};
    }
    return {0, 1, 2, 3, 5, kMtu, 4096};
  }

  void Acknowledgements(const Nic& nic, const wire::PacketAddress& address) {
    Pdu pdu = Base(Service::kRc, Opcode::kAcknowledge);
    for (uint8_t credits : {0, 9, 30}) {
      pdu.credits = credits;
      Both(nic, address, pdu, 0);
    }
    pdu.ack_type = AckType::kRnrNak;
    pdu.rnr_timer_code = 12;
    Both(nic, address, pdu, 0);
    pdu.ack_type = AckType::kNak;
    for (uint8_t code = 0; code <= static_cast<uint8_t>(NakCode::kInvalidRdRequest); ++code) {
      pdu.nak_code = static_cast<NakCode>(code);
      Both(nic, address, pdu, 0);
    }
  }

  void Advance(const Pdu& pdu) {
    const OpcodeInfo* info = LookUpOpcode(pdu.opcode);
    if (!info->is_request) return;
    Psn& psn = psn_[static_cast<size_t>(pdu.service)];
    psn = psn + PsnCount{pdu.opcode == Opcode::kReadRequest ? 6 : 1};
  }

  static uint32_t Syndrome(const Pdu& pdu) {
    switch (pdu.ack_type) {
      case AckType::kAck:
        return pdu.credits;
      case AckType::kRnrNak:
        return 0x20u | pdu.rnr_timer_code;
      case AckType::kNak:
        return 0x60u | static_cast<uint32_t>(pdu.nak_code);
    }
    return 0;
  }

  static void Tell(const Nic& nic, const char* direction, const Pdu& pdu, uint32_t payload_bytes,
                   uint16_t ip_id) {
    constexpr uint32_t kServiceCode[] = {0x00, 0x20, 0x60};
    const OpcodeInfo* info = LookUpOpcode(pdu.opcode);
    std::printf(
        "{\"interface\": \"%s\", \"direction\": \"%s\", \"opcode\": %u, \"psn\": %u, "
        "\"dest_qp\": %u, \"ack_request\": %d, \"solicited\": %d, \"payload_bytes\": %u",
        nic.name, direction,
        kServiceCode[static_cast<size_t>(pdu.service)] | static_cast<uint32_t>(pdu.opcode),
        pdu.psn.value(), pdu.dest_qpn.value, pdu.ack_request ? 1 : 0, pdu.solicited ? 1 : 0,
        payload_bytes);
    if (info->has_aeth) {
      std::printf(", \"syndrome\": %u, \"msn\": %u", Syndrome(pdu), pdu.msn.value);
    }
    if (info->has_feth) {
      std::printf(", \"feth\": %u", uint32_t{pdu.flush_level} << 4 | pdu.flush_type);
    }
    if (info->has_reth) std::printf(", \"dma_length\": %u", pdu.dma_length);
    if (ip_id != 0) std::printf(", \"ip_id\": %u", ip_id);
    std::printf("}\n");
  }

  Instant now_;
  uint32_t step_ = 0;
  // So that every count wraps on the way.
  Psn psn_[kServiceCount] = {Psn(0xff'fff0), Psn(0xff'fff8), Psn(0xff'fffe)};
};

int Main(const char* path) {
  const int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0) {
    std::perror(path);
    return 1;
  }
  FdSink sink(fd);
  RecordingOptions options;
  options.wall_offset = Seconds(1'700'000'000);
  Capture capture(&sink, options);
  const auto comment = [](const wire::PacketAddress& address, const Pdu& pdu, bool is_sent) {
    return "write_capture (pid 1) QP 0x11 " + std::string(is_sent ? "→" : "←") + " QP " +
           std::to_string(pdu.dest_qpn.value);
  };
  FakePort ports[2];
  CaptureTap taps[2] = {{&ports[0], &capture, "nic0", comment},
                        {&ports[1], &capture, "nic1", comment}};
  FaultRules rules;
  std::string error;
  FaultPlan plan;
  if (!ParseFaultRules(kRules, &rules, &error)) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  }
  plan.SetRules(std::move(rules), Instant{});
  FaultTapOptions fault_options;
  fault_options.nic = "nic1";
  fault_options.notes = &taps[1];
  FaultTap faults(&taps[1], &plan, fault_options);

  Story story;
  wire::PacketAddress v4;
  v4.source = Gid::FromIpv4(0x0a00'0001);
  v4.destination = Gid::FromIpv4(0x0a00'0002);
  wire::PacketAddress v6;
  v6.source = Ipv6(1);
  v6.destination = Ipv6(2);
  story.TellAll({"nic0", &ports[0], &taps[0]}, v4);
  story.TellAll({"nic0", &ports[0], &taps[0]}, v6);

  const Nic faulty = {"nic1", &ports[1], &faults};
  for (uint32_t i = 0; i < 10; ++i) {
    story.Both(faulty, v4, story.Base(Service::kRc, Opcode::kSendOnly), 64 + i);
  }
  story.Wait(Seconds(1));
  faults.OnTimeout(story.now());
  capture.Finish();
  for (const std::string& unfired : plan.UnfiredRules()) {
    std::fprintf(stderr, "%s\n", unfired.c_str());
  }
  if (capture.state() == Capture::State::kFailed) {
    std::fprintf(stderr, "%s\n", capture.error().c_str());
    return 1;
  }
  return plan.UnfiredRules().empty() ? 0 : 1;
}

}  // namespace
}  // namespace verbena::transport::tap

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_capture FILE\n");
    return 2;
  }
  return verbena::transport::tap::Main(argv[1]);
}
