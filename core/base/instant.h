// Time as protocol code sees it: nanoseconds handed in by whoever drives it, never read from a
// clock.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

namespace verbena {

// A length of time. Signed, so that differences of instants are exact.
struct Duration {
  int64_t ns = 0;

  friend constexpr auto operator<=>(Duration, Duration) = default;
  friend constexpr Duration operator+(Duration a, Duration b) { return {a.ns + b.ns}; }
  friend constexpr Duration operator-(Duration a, Duration b) { return {a.ns - b.ns}; }
  friend constexpr Duration operator*(Duration a, int64_t k) { return {a.ns * k}; }
};

constexpr Duration Nanoseconds(int64_t n) { return {n}; }
constexpr Duration Microseconds(int64_t n) { return {n * 1'000}; }
constexpr Duration Milliseconds(int64_t n) { return {n * 1'000'000}; }
constexpr Duration Seconds(int64_t n) { return {n * 1'000'000'000}; }

// A point in time. The epoch is the driver's: CLOCK_MONOTONIC in the daemon, zero in the simulator.
struct Instant {
  int64_t ns = 0;

  static constexpr Instant Never() { return {std::numeric_limits<int64_t>::max()}; }
  constexpr bool IsNever() const { return ns == Never().ns; }

  friend constexpr auto operator<=>(Instant, Instant) = default;
  friend constexpr Instant operator+(Instant t, Duration d) { return {t.ns + d.ns}; }
  friend constexpr Duration operator-(Instant a, Instant b) { return {a.ns - b.ns}; }
};

}  // namespace verbena
