#include "softnic/control/network_taps.h"

#include <time.h>

#include <cstdio>
#include <utility>

#include "transport/port/tap/trace.h"

namespace verbena::softnic {

namespace tap = transport::tap;
namespace wire = transport::wire;

namespace {

int64_t WallClockNs() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
}

std::string QpText(Qpn qpn) {
  char text[16];
  std::snprintf(text, sizeof(text), "QP 0x%x", qpn.value);
  return text;
}

// Who sent a packet: a header names it in datagrams only.
Qpn SourceQpn(const Device& device, uint32_t nic, const wire::PacketAddress& address,
              const transport::Pdu& pdu, bool is_sent) {
  if (pdu.service == Service::kUd) return pdu.src_qpn;
  return is_sent ? device.FindConnectedQpn(nic, address.destination, pdu.dest_qpn)
                 : device.RemoteQpnOf(nic, pdu.dest_qpn);
}

std::string Comment(const Device& device, const std::vector<TapTarget>& targets,
                    const wire::PacketAddress& address, const transport::Pdu& pdu, bool is_sent) {
  const Gid& own_address = is_sent ? address.source : address.destination;
  for (const TapTarget& target : targets) {
    if (!device.HasGid(target.nic, own_address)) continue;
    Qpn source = SourceQpn(device, target.nic, address, pdu, is_sent);
    Qpn own = is_sent ? source : pdu.dest_qpn;
    Qpn other = is_sent ? pdu.dest_qpn : source;
    std::string text = device.DescribeOwner(target.nic, own);
    if (text.empty()) return "";
    return text + " " + QpText(own) + (is_sent ? " → " : " ← ") +
           tap::AddressText(is_sent ? address.destination : address.source) + " " + QpText(other);
  }
  return "";
}

}  // namespace

NetworkTaps::NetworkTaps(Device* device, std::vector<TapTarget> targets,
                         std::optional<uint64_t> seed)
    : device_(device), plan_(seed) {
  for (TapTarget& target : targets) chains_.push_back({std::move(target), nullptr, nullptr});
  Rebuild();
}

NetworkTaps::~NetworkTaps() = default;

void NetworkTaps::Rebuild() {
  for (Chain& chain : chains_) {
    device_->AttachPort(chain.target.nic, nullptr);
    chain.faults.reset();
    chain.capture.reset();
    transport::PacketPort* top = chain.target.port;
    if (capture_ != nullptr) {
      chain.capture = std::make_unique<tap::CaptureTap>(top, capture_.get(), chain.target.name);
      top = chain.capture.get();
    }
    if (plan_.has_rules()) {
      tap::FaultTapOptions options;
      options.nic = chain.target.name;
      options.notes = chain.capture.get();
      options.source_qp = [this, nic = chain.target.nic](const wire::PacketAddress& address,
                                                         const transport::Pdu& pdu, bool is_sent) {
        return SourceQpn(*device_, nic, address, pdu, is_sent);
      };
      chain.faults = std::make_unique<tap::FaultTap>(top, &plan_, std::move(options));
      top = chain.faults.get();
    }
    device_->AttachPort(chain.target.nic, top);
  }
}

void NetworkTaps::SetFaults(Instant now, tap::FaultRules rules) {
  plan_.SetRules(std::move(rules), now);
  Rebuild();
}

void NetworkTaps::StartCapture(Instant now, int fd, uint64_t limit_bytes) {
  StopCapturing();
  last_ = {};
  sink_ = std::make_unique<tap::FdSink>(fd);
  tap::CaptureOptions options;
  options.limit_bytes = limit_bytes;
  options.wall_offset = {WallClockNs() - now.ns};
  std::vector<TapTarget> targets;
  for (const Chain& chain : chains_) targets.push_back(chain.target);
  capture_ = std::make_unique<tap::Capture>(
      sink_.get(), options,
      [this, targets](const wire::PacketAddress& address, const transport::Pdu& pdu, bool is_sent) {
        return Comment(*device_, targets, address, pdu, is_sent);
      });
  Rebuild();
}

CaptureStatus NetworkTaps::StatusOfCapture() const {
  if (capture_ == nullptr) return last_;
  CaptureStatus status;
  status.is_running = capture_->state() == tap::Capture::State::kRunning;
  status.error = capture_->error();
  if (capture_->state() == tap::Capture::State::kLimitReached)
    status.error = "its limit is reached";
  status.packets = capture_->packets();
  status.missed_packets = capture_->missed_packets();
  status.written_bytes = capture_->written_bytes();
  return status;
}

void NetworkTaps::StopCapturing() {
  if (capture_ == nullptr) return;
  // The taps may hold a packet for it still.
  std::unique_ptr<tap::Capture> ended = std::move(capture_);
  Rebuild();
  ended->Finish();
  capture_ = std::move(ended);
  last_ = StatusOfCapture();
  last_.is_running = false;
  capture_.reset();
  sink_.reset();
}

CaptureStatus NetworkTaps::StopCapture() {
  StopCapturing();
  return last_;
}

}  // namespace verbena::softnic
