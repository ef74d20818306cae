// How many locked operations a piece of work takes, whoever's locks they are.
#pragma once

#include <stddef.h>

#include <functional>

namespace verbena::fi_test {

// Carries the work out in this thread, stepped through by another process, which counts the atomic
// ones among its instructions (a LOCK prefix, or XCHG with memory). The work must not wait in
// loops: how often they turn would be counted.
size_t CountLocks(const std::function<void()>& work);

}  // namespace verbena::fi_test
