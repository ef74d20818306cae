// The daemon's log: one line per event on stderr, which `verbena run` sends to the instance's log.
#pragma once

#include <cstdio>
#include <string>

namespace verbena::softnic {

enum class LogLevel { kError = 0, kInfo = 1, kDebug = 2 };

class Log {
 public:
  explicit Log(LogLevel level) : level_(level) {}
  void Error(const std::string& text) const { Write(LogLevel::kError, text); }
  void Info(const std::string& text) const { Write(LogLevel::kInfo, text); }
  void Debug(const std::string& text) const { Write(LogLevel::kDebug, text); }

 private:
  void Write(LogLevel level, const std::string& text) const {
    if (level > level_) return;
    std::fprintf(stderr, "verbenad: %s\n", text.c_str());
  }

  LogLevel level_;
};

}  // namespace verbena::softnic
