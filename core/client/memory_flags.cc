#include "core/client/memory_flags.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace verbena::client {
namespace {

// Readable, writable, and may be; accounted or not; written to since somebody asked; with or
// without huge pages; to be merged with its like; read in some order; shared (what an ended session
// left).
constexpr char kPlainFlags[] = " rd wr mr mw me ac nr sd hg nh mg rr sr sh ms ";

bool ArePlain(const char* flags) {
  for (; *flags != '\0'; ++flags) {
    if (*flags == ' ') continue;
    if (flags[1] == '\0') return false;
    const char wanted[] = {' ', flags[0], flags[1], ' ', '\0'};
    if (std::strstr(kPlainFlags, wanted) == nullptr) return false;
    ++flags;
  }
  return true;
}

// Lines of a file; what a line has beyond kLineBytes is left out.
class LineReader {
 public:
  explicit LineReader(const char* path) : fd_(open(path, O_RDONLY | O_CLOEXEC)) {}
  ~LineReader() {
    if (fd_ >= 0) close(fd_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool IsOpen() const { return fd_ >= 0; }
  // nullptr at the end.
  const char* Next() {
    size_t length = 0;
    for (;;) {
      if (next_ == filled_) {
        ssize_t n;
        do {
          n = read(fd_, buffer_, sizeof(buffer_));
        } while (n < 0 && errno == EINTR);
        if (n <= 0) return nullptr;
        filled_ = static_cast<size_t>(n);
        next_ = 0;
      }
      const char c = buffer_[next_++];
      if (c == '\n') break;
      if (length + 1 < sizeof(line_)) line_[length++] = c;
    }
    line_[length] = '\0';
    return line_;
  }

 private:
  static constexpr size_t kLineBytes = 160;
  int fd_;
  size_t next_ = 0, filled_ = 0;
  char line_[kLineBytes];
  char buffer_[4096];
};

// "7f00-7f01 rw-p ..."; other lines begin with a capital.
bool ParseHead(const char* line, Range* out) {
  char* end;
  out->begin = std::strtoul(line, &end, 16);
  if (end == line || *end != '-') return false;
  out->end = std::strtoul(end + 1, &end, 16);
  return *end == ' ';
}

bool HasKey(const char* text) { return std::strtoul(text, nullptr, 10) != 0; }

const char* After(const char* line, const char* word) {
  const size_t length = std::strlen(word);
  return std::strncmp(line, word, length) == 0 ? line + length : nullptr;
}

}  // namespace

bool JudgeRanges(JudgedRange* ranges, uint32_t count) {
  LineReader lines("/proc/self/smaps");
  if (!lines.IsOpen()) return false;
  Range mapping;
  uint32_t first = 0;  // of those that do not end before the mapping
  uint32_t flags_seen = 0;
  while (const char* line = lines.Next()) {
    if (ParseHead(line, &mapping)) {
      while (first < count && ranges[first].end <= mapping.begin) ++first;
      if (first == count) return flags_seen != 0;
      continue;
    }
    bool is_plain = true;
    if (const char* flags = After(line, "VmFlags:")) {
      ++flags_seen;
      is_plain = ArePlain(flags);
    } else if (const char* key = After(line, "ProtectionKey:")) {
      is_plain = !HasKey(key);
    }
    for (uint32_t i = first; !is_plain && i < count && ranges[i].begin < mapping.end; ++i) {
      ranges[i].is_plain = false;
    }
  }
  return flags_seen != 0;
}

}  // namespace verbena::client
