// A sink for tests.
#pragma once

#include <algorithm>
#include <cerrno>
#include <vector>

#include "transport/port/tap/capture_sink.h"

namespace verbena::transport::tap {

// Keeps what it is given; takes and fails as told.
class FakeSink : public CaptureSink {
 public:
  int64_t Write(const std::byte* from, uint32_t length) override {
    ++writes;
    if (bytes.size() >= fails_after) return -ENOSPC;
    uint64_t count = std::min<uint64_t>({length, room, fails_after - bytes.size()});
    bytes.insert(bytes.end(), from, from + count);
    room -= count;
    return static_cast<int64_t>(count);
  }
  bool Unwrite(uint32_t length) override {
    bytes.erase(bytes.end() - length, bytes.end());
    return true;
  }
  void Close() override { is_closed = true; }

  std::vector<std::byte> bytes;
  uint64_t room = ~0ull;
  uint64_t fails_after = ~0ull;
  uint32_t writes = 0;
  bool is_closed = false;
};

}  // namespace verbena::transport::tap
