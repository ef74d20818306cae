// What the benchmarks' programs share: medians, and where they run.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace verbena::bench {

inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

inline void PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

// The first two CPUs we may use; one twice if there is no other.
inline void TwoCpus(int* first, int* second) {
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof(allowed), &allowed);
  *first = *second = -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    (*first < 0 ? *first : *second) = cpu;
    if (*second >= 0) return;
  }
  *second = *first;
}

}  // namespace verbena::bench
