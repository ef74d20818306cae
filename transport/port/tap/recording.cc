#include "transport/port/tap/recording.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace verbena::transport::tap {
namespace {

// From so many bytes on it is worth a system call.
constexpr uint32_t kBlockBytes = 256u << 10;

std::string ErrorText(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "the disk is full; free some space, or capture with a size limit";
    case EFBIG:
      return "the file reached the size this process may write (ulimit -f)";
    case EPIPE:
      return "whoever read it has closed the pipe";
    default:
      return std::strerror(error);
  }
}

}  // namespace

void Recording::Fail(int error) {
  state_ = State::kFailed;
  flush_due_ = Instant::Never();
  const uint32_t torn_bytes = TornBytes();
  if (sink_->Unwrite(torn_bytes)) written_bytes_ -= torn_bytes;
  packets_ -= packet_ends_.size();
  missed_packets_ += packet_ends_.size();
  packet_ends_.clear();
  error_ = std::string(kind_) + " stopped after " + std::to_string(packets_) +
           " packets: " + ErrorText(error);
  EndByItself();
}

// The file is let go at once: what filled a disk can be removed.
void Recording::EndByItself() {
  if (std::exchange(has_ended_, true)) return;
  sink_->Close();
  if (options_.on_end) options_.on_end(*this);
}

void Recording::Write() {
  while (size() > 0) {
    const int64_t count = sink_->Write(data(), size());
    if (count < 0) return Fail(static_cast<int>(-count));
    written_bytes_ += static_cast<uint64_t>(count);
    while (!packet_ends_.empty() && packet_ends_.front() <= written_bytes_) {
      packet_ends_.pop_front();
    }
    Take(static_cast<uint32_t>(count));
    if (count == 0) return;
  }
  flush_due_ = Instant::Never();
  if (state_ == State::kLimitReached) EndByItself();
}

void Recording::OnTimeout(Instant now) {
  if (now < flush_due_) return;
  Write();
  // A slow reader is asked again then.
  if (state_ != State::kFailed && size() > 0) flush_due_ = now + options_.flush_after;
}

void Recording::Finish() {
  if (state_ == State::kRunning) state_ = State::kFinished;
  const bool may_write = !std::exchange(has_ended_, true);
  if (may_write) Write();
  flush_due_ = Instant::Never();
}

bool Recording::TakeRoom(uint64_t bytes_max) {
  if (state_ != State::kRunning) return false;
  if (options_.limit_bytes != 0 && accepted_bytes_ + bytes_max > options_.limit_bytes) {
    state_ = State::kLimitReached;
    Write();
    return false;
  }
  if (!HasRoom()) Write();
  if (state_ != State::kRunning) return false;
  if (HasRoom()) return true;
  Miss();
  return false;
}

void Recording::Miss() {
  ++missed_packets_;
  ++missed_since_;
}

uint64_t Recording::TakeMissed() { return std::exchange(missed_since_, 0); }

void Recording::OnAdded(Instant now, uint32_t bytes) {
  CountAccepted(bytes);
  packet_ends_.push_back(accepted_bytes_);
  ++packets_;
  if (flush_due_.IsNever()) flush_due_ = now + options_.flush_after;
  if (size() >= kBlockBytes) Write();
}

}  // namespace verbena::transport::tap
