// Capture, faults and trace between the NICs and their networks, put in and taken out while they
// run.
//
// Thread: the shard's, but for the constructor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "softnic/device/device.h"
#include "transport/port/tap/capture.h"
#include "transport/port/tap/faults.h"
#include "transport/port/tap/trace.h"

namespace verbena::softnic {

struct TapTarget {
  uint32_t nic = 0;
  std::string name;
  transport::PacketPort* port = nullptr;
};

// A capture writes pcapng, a trace lines of text.
enum class RecordingKind : uint8_t { kCapture, kTrace };
const char* NameOf(RecordingKind kind);

struct RecordingStatus {
  bool is_running = false;
  std::string error;  // why it ended by itself
  uint64_t packets = 0;
  uint64_t missed_packets = 0;
  uint64_t written_bytes = 0;
};

class NetworkTaps {
 public:
  // `device` has no ports of these NICs yet: the taps attach them.
  NetworkTaps(Device* device, std::vector<TapTarget> targets, std::optional<uint64_t> seed);
  ~NetworkTaps();

  // --- faults -----------------------------------------------------------------------------------
  // Replaces all rules. Packets held back by the old ones come when they are due.
  void SetFaults(Instant now, transport::tap::FaultRules rules);
  std::string FaultReport() const { return plan_.Report(); }
  std::vector<std::string> UnfiredRules() const { return plan_.UnfiredRules(); }

  // --- recordings -------------------------------------------------------------------------------
  // Owns `fd`. One of each kind at a time: a running one ends.
  void StartRecording(RecordingKind kind, Instant now, int fd, uint64_t limit_bytes);
  RecordingStatus StopRecording(RecordingKind kind);
  RecordingStatus StatusOf(RecordingKind kind) const;
  // Called on the shard's thread with why a recording ended by itself. Set before there is one.
  void OnRecordingEnd(std::function<void(RecordingKind kind, const std::string& why)> callback) {
    on_end_ = std::move(callback);
  }
  // As the instance ends: those that run are written as far as can be. What is wrong with any.
  std::vector<std::string> EndRecordings();

 private:
  // From the network to the NIC. The fault tap stays once there were rules, as it may hold packets.
  struct Chain {
    TapTarget target;
    std::unique_ptr<transport::tap::CaptureTap> capture;
    std::unique_ptr<transport::tap::FaultTap> faults;
    std::unique_ptr<transport::tap::TraceTap> trace;
  };
  template <typename File>
  struct Recorder {
    std::unique_ptr<transport::tap::FdSink> sink;
    std::unique_ptr<File> file;  // nullptr: none is running
    RecordingStatus last;        // of the one that ended
  };

  // Has each NIC's chain made of the taps that are wanted now, and attaches the NIC to it.
  void Restack();
  // Whose packets of a NIC are, for captures and traces.
  transport::tap::PacketComment CommentOf(uint32_t nic) const;
  template <typename File>
  void Start(Recorder<File>* recorder, RecordingKind kind, Instant now, int fd,
             uint64_t limit_bytes);
  template <typename File>
  void Stop(Recorder<File>* recorder);

  Device* device_;
  transport::tap::FaultPlan plan_;
  Recorder<transport::tap::Capture> capture_;
  Recorder<transport::tap::Trace> trace_;
  std::vector<Chain> chains_;
  std::function<void(RecordingKind kind, const std::string& why)> on_end_;
};

}  // namespace verbena::softnic
