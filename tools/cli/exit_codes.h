// Exit codes of `verbena`, with the meanings that shells and env(1) gave them.
#pragma once

namespace verbena::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitUnfiredRule = 3;  // `run --faults`: a rule never fired, CMD succeeded
inline constexpr int kExitRunFailed = 125;  // `run` itself failed, as with env(1) and timeout(1)
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;
inline constexpr int kExitSignalBase = 128;

}  // namespace verbena::cli
