#include "softnic/control/network_taps.h"

#include <time.h>

#include <utility>

namespace verbena::softnic {

namespace tap = transport::tap;
namespace wire = transport::wire;

namespace {

int64_t WallClockNs() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
}

RecordingStatus StatusOfFile(const tap::Recording& file) {
  RecordingStatus status;
  status.is_running = file.state() == tap::Recording::State::kRunning;
  status.error = file.error();
  if (file.state() == tap::Recording::State::kLimitReached) status.error = "its limit is reached";
  status.packets = file.packets();
  status.missed_packets = file.missed_packets();
  status.written_bytes = file.written_bytes();
  return status;
}

}  // namespace

const char* NameOf(RecordingKind kind) {
  return kind == RecordingKind::kCapture ? "capture" : "trace";
}

NetworkTaps::NetworkTaps(Device* device, std::vector<TapTarget> targets,
                         std::optional<uint64_t> seed)
    : device_(device), plan_(seed) {
  for (TapTarget& target : targets) chains_.push_back({std::move(target), {}, {}, {}});
  Restack();
}

NetworkTaps::~NetworkTaps() = default;

void NetworkTaps::Restack() {
  for (Chain& chain : chains_) {
    const TapTarget& target = chain.target;
    device_->AttachPort(target.nic, nullptr);
    chain.trace.reset();
    if (capture_.file == nullptr) {
      chain.capture.reset();  // a fault tap over it is moved before anybody calls that
    } else if (chain.capture == nullptr) {
      chain.capture = std::make_unique<tap::CaptureTap>(target.port, capture_.file.get(),
                                                        target.name, CommentOf(target.nic));
    }
    transport::PacketPort* top = target.port;
    if (chain.capture != nullptr) top = chain.capture.get();
    if (plan_.has_rules() && chain.faults == nullptr) {
      tap::FaultTapOptions options;
      options.nic = target.name;
      options.source_qp = [this, nic = target.nic](const wire::PacketAddress& address,
                                                   const transport::Pdu& pdu, bool is_sent) {
        return device_->SourceQpnOf(nic, address, pdu, is_sent);
      };
      chain.faults = std::make_unique<tap::FaultTap>(top, &plan_, std::move(options));
    }
    if (chain.faults != nullptr) {
      chain.faults->MoveOver(top, chain.capture.get());
      top = chain.faults.get();
    }
    if (trace_.file != nullptr) {
      chain.trace = std::make_unique<tap::TraceTap>(top, trace_.file.get(), target.name,
                                                    CommentOf(target.nic));
      top = chain.trace.get();
    }
    device_->AttachPort(target.nic, top);
  }
}

tap::PacketComment NetworkTaps::CommentOf(uint32_t nic) const {
  return [this, nic](const wire::PacketAddress& address, const transport::Pdu& pdu, bool is_sent) {
    return device_->DescribePacket(nic, address, pdu, is_sent);
  };
}

void NetworkTaps::SetFaults(Instant now, tap::FaultRules rules) {
  plan_.SetRules(std::move(rules), now);
  Restack();
}

template <typename File>
void NetworkTaps::Start(Recorder<File>* recorder, RecordingKind kind, Instant now, int fd,
                        uint64_t limit_bytes) {
  Stop(recorder);
  recorder->last = {};
  recorder->sink = std::make_unique<tap::FdSink>(fd);
  tap::RecordingOptions options;
  options.limit_bytes = limit_bytes;
  options.wall_offset = {WallClockNs() - now.ns};
  options.on_end = [this, kind](const tap::Recording& file) {
    if (on_end_) on_end_(kind, StatusOfFile(file).error);
  };
  recorder->file = std::make_unique<File>(recorder->sink.get(), options);
  Restack();
}

template <typename File>
void NetworkTaps::Stop(Recorder<File>* recorder) {
  if (recorder->file == nullptr) return;
  // The taps may hold a packet for it still.
  std::unique_ptr<File> ended = std::move(recorder->file);
  Restack();
  ended->Finish();
  recorder->last = StatusOfFile(*ended);
  recorder->last.is_running = false;
  ended.reset();  // before its sink
  recorder->sink.reset();
}

void NetworkTaps::StartRecording(RecordingKind kind, Instant now, int fd, uint64_t limit_bytes) {
  if (kind == RecordingKind::kCapture) return Start(&capture_, kind, now, fd, limit_bytes);
  Start(&trace_, kind, now, fd, limit_bytes);
}

RecordingStatus NetworkTaps::StopRecording(RecordingKind kind) {
  if (kind == RecordingKind::kCapture) {
    Stop(&capture_);
  } else {
    Stop(&trace_);
  }
  return StatusOf(kind);
}

RecordingStatus NetworkTaps::StatusOf(RecordingKind kind) const {
  if (kind == RecordingKind::kCapture) {
    return capture_.file == nullptr ? capture_.last : StatusOfFile(*capture_.file);
  }
  return trace_.file == nullptr ? trace_.last : StatusOfFile(*trace_.file);
}

std::vector<std::string> NetworkTaps::EndRecordings() {
  std::vector<std::string> errors;
  for (const RecordingKind kind : {RecordingKind::kCapture, RecordingKind::kTrace}) {
    // Of one that has ended, whoever ended it was told.
    const bool is_there =
        kind == RecordingKind::kCapture ? capture_.file != nullptr : trace_.file != nullptr;
    if (!is_there) continue;
    const RecordingStatus status = StopRecording(kind);
    if (status.error.empty()) continue;
    errors.push_back(std::string("the ") + NameOf(kind) + " ended early: " + status.error);
  }
  return errors;
}

}  // namespace verbena::softnic
