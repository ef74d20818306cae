// What a capture and a trace have in common: a file of packets that the NIC never waits for.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "core/base/instant.h"
#include "transport/port/tap/capture_sink.h"

namespace verbena::transport::tap {

class Recording;

struct RecordingOptions {
  uint64_t limit_bytes = 0;  // of the file; 0: none
  Duration wall_offset{0};  // wall-clock time since 1970 minus the Instants the port is called with
  Duration flush_after = Milliseconds(200);  // a packet waits so long at most for its block to fill
  uint32_t buffer_bytes = 1u << 20;
  // It ended by itself: its limit is reached, or it failed.
  std::function<void(const Recording&)> on_end;
};

class Recording {
 public:
  enum class State : uint8_t {
    kRunning,
    kLimitReached,
    kFinished,
    kFailed,  // error() says why
  };

  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  Instant PollTimeout() const { return flush_due_; }
  void OnTimeout(Instant now);
  // Writes what it can without waiting, and ends.
  void Finish();

  State state() const { return state_; }
  const std::string& error() const { return error_; }
  // In the file, or in its buffer while it runs.
  uint64_t packets() const { return packets_; }
  // Packets not in the file, because its reader was too slow, or it failed with them in its buffer.
  uint64_t missed_packets() const { return missed_packets_; }
  uint64_t written_bytes() const { return written_bytes_; }

 protected:
  // `sink` outlives the recording; `kind` is what errors call it.
  Recording(CaptureSink* sink, std::string_view kind, RecordingOptions options)
      : options_(options), sink_(sink), kind_(kind) {}
  ~Recording() = default;

  // What is to be written.
  virtual const std::byte* data() const = 0;
  virtual uint32_t size() const = 0;
  virtual bool HasRoom() const = 0;
  // The first `count` bytes are written.
  virtual void Take(uint32_t count) = 0;
  // How many of the bytes taken begin something that is not whole.
  virtual uint32_t TornBytes() const = 0;

  // Whether a packet that takes at most `bytes_max` in the file is recorded.
  bool TakeRoom(uint64_t bytes_max);
  void Miss();
  // A packet of `bytes` was added.
  void OnAdded(Instant now, uint32_t bytes);
  void CountAccepted(uint32_t bytes) { accepted_bytes_ += bytes; }
  // Packets missed since this was asked last.
  uint64_t TakeMissed();

  const RecordingOptions options_;

 private:
  void Write();
  void Fail(int error);
  void EndByItself();

  CaptureSink* sink_;
  std::string_view kind_;
  State state_ = State::kRunning;
  std::string error_;
  Instant flush_due_ = Instant::Never();
  uint64_t packets_ = 0;
  uint64_t missed_packets_ = 0;
  uint64_t missed_since_ = 0;
  uint64_t accepted_bytes_ = 0;
  uint64_t written_bytes_ = 0;
  std::deque<uint64_t> packet_ends_;  // of those not written: as accepted_bytes_
  bool has_ended_ = false;            // nothing is written any more, or Finish does
};

}  // namespace verbena::transport::tap
