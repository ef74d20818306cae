// Where a capture's bytes go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace verbena::transport::tap {

class CaptureSink {
 public:
  virtual ~CaptureSink() = default;
  // Takes some of the bytes without waiting for a reader: how many (0: none now), or -errno.
  virtual int64_t Write(const std::byte* bytes, uint32_t length) = 0;
  // Takes back the last `length` bytes, half a block that could not be completed. False: it can't.
  virtual bool Unwrite(uint32_t /*length*/) { return false; }
  // Nothing is written any more.
  virtual void Close() {}
};

// A file, pipe or socket. A slow reader of a pipe costs packets of the capture, never the NIC's
// time; a regular file's writes go to the page cache.
//
// A process that writes to pipes ignores SIGPIPE.
class FdSink : public CaptureSink {
 public:
  explicit FdSink(int fd);  // owns it
  ~FdSink() override;
  FdSink(const FdSink&) = delete;
  FdSink& operator=(const FdSink&) = delete;

  int64_t Write(const std::byte* bytes, uint32_t length) override;
  bool Unwrite(uint32_t length) override;
  void Close() override;

 private:
  int fd_;
  bool is_regular_ = false;
  uint64_t written_ = 0;
};

}  // namespace verbena::transport::tap
