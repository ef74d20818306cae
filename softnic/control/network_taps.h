// Capture and faults between the NICs and their networks, put in and taken out while they run.
//
// Thread: the shard's, but for the constructor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "softnic/device/device.h"
#include "transport/port/tap/capture.h"
#include "transport/port/tap/faults.h"

namespace verbena::softnic {

struct TapTarget {
  uint32_t nic = 0;
  std::string name;
  transport::PacketPort* port = nullptr;
};

struct CaptureStatus {
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
  // Replaces all rules; none takes the taps out. Packets held back by the old rules are lost.
  void SetFaults(Instant now, transport::tap::FaultRules rules);
  std::string FaultReport() const { return plan_.Report(); }
  std::vector<std::string> UnfiredRules() const { return plan_.UnfiredRules(); }

  // --- capture ----------------------------------------------------------------------------------
  // Owns `fd`. One capture at a time: a running one ends.
  void StartCapture(Instant now, int fd, uint64_t limit_bytes);
  CaptureStatus StopCapture();
  CaptureStatus StatusOfCapture() const;

  // Attaches each NIC to its topmost tap, or to its port.
  void Rebuild();

 private:
  struct Chain {
    TapTarget target;
    std::unique_ptr<transport::tap::CaptureTap> capture;
    std::unique_ptr<transport::tap::FaultTap> faults;
  };
  void StopCapturing();

  Device* device_;
  transport::tap::FaultPlan plan_;
  std::unique_ptr<transport::tap::FdSink> sink_;
  std::unique_ptr<transport::tap::Capture> capture_;
  CaptureStatus last_;  // of the capture that ended
  std::vector<Chain> chains_;
};

}  // namespace verbena::softnic
