// What the kernel was asked to do with memory, as /proc/self/smaps tells; without allocating.
#pragma once

#include <cstdint>

#include "core/client/process_traits.h"

namespace verbena::client {

struct JudgedRange : Range {
  bool is_plain = true;
};

// Whether each range is memory as any, of which a new mapping in its place would be no different:
// no madvise(2) for fork or core files, no lock, no key, no userfaultfd. Ranges ascend. False: that
// can't be told.
bool JudgeRanges(JudgedRange* ranges, uint32_t count);

}  // namespace verbena::client
