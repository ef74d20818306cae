// /proc/self/maps, line by line, without allocating.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace verbena::client {

struct Mapping {
  uintptr_t begin = 0, end = 0;
  bool is_readable = false, is_writable = false, is_executable = false, is_shared = false;
  uint64_t offset = 0;
  uint64_t device = 0;  // major << 20 | minor; 0 with inode 0: anonymous
  uint64_t inode = 0;
  char name[24] = {};  // its beginning
};

class MapsReader {
 public:
  MapsReader() : fd_(open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}
  ~MapsReader() {
    if (fd_ >= 0) close(fd_);
  }
  MapsReader(const MapsReader&) = delete;
  MapsReader& operator=(const MapsReader&) = delete;

  bool IsOpen() const { return fd_ >= 0; }
  // Whether Next has told all there is, and did not stop for an error.
  bool IsAtEnd() const { return is_at_end_; }
  // False at the end. Lines look like "7f00-7f01 rw-p 00000000 00:00 0   name".
  bool Next(Mapping* out) {
    if (Get() < 0) return false;
    --next_;
    uint64_t begin, end, major, minor;
    if (!ParseNumber(16, '-', &begin) || !ParseNumber(16, ' ', &end)) return false;
    out->begin = begin;
    out->end = end;
    out->is_readable = Get() == 'r';
    out->is_writable = Get() == 'w';
    out->is_executable = Get() == 'x';
    out->is_shared = Get() == 's';
    if (Get() != ' ' || !ParseNumber(16, ' ', &out->offset) || !ParseNumber(16, ':', &major) ||
        !ParseNumber(16, ' ', &minor) || !ParseNumber(10, ' ', &out->inode, '\n')) {
      return false;
    }
    out->device = major << 20 | minor;
    return last_ == '\n' ? SetName(out, 0) : ReadName(out);
  }

 private:
  int Get() {
    if (next_ == filled_) {
      ssize_t n;
      do {
        n = read(fd_, buffer_, sizeof(buffer_));
      } while (n < 0 && errno == EINTR);
      is_at_end_ = n == 0 && last_ == '\n';
      if (n <= 0) return last_ = -1;
      filled_ = static_cast<size_t>(n);
      next_ = 0;
    }
    return last_ = static_cast<unsigned char>(buffer_[next_++]);
  }
  bool ParseNumber(uint32_t base, int terminator, uint64_t* out, int other_terminator = -1) {
    *out = 0;
    for (int c = Get(); c != terminator && c != other_terminator; c = Get()) {
      int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
      if (c < 0 || digit >= static_cast<int>(base)) return false;
      *out = *out * base + static_cast<uint64_t>(digit);
    }
    return true;
  }
  static bool SetName(Mapping* out, size_t length) {
    out->name[length] = '\0';
    return true;
  }
  bool ReadName(Mapping* out) {
    size_t length = 0;
    for (int c = Get(); c != '\n'; c = Get()) {
      if (c < 0) return false;
      const bool is_padding = c == ' ' && length == 0;
      if (!is_padding && length + 1 < sizeof(out->name)) out->name[length++] = static_cast<char>(c);
    }
    return SetName(out, length);
  }

  int fd_;
  bool is_at_end_ = false;
  int last_ = 0;
  size_t next_ = 0;
  size_t filled_ = 0;
  char buffer_[4096];
};

}  // namespace verbena::client
