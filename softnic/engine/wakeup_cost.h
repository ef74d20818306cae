// What it takes here to wake a thread that sleeps on another CPU: 13 µs on one virtual machine, 70
// on another. How long to spin before a sleep is worth it follows from it.
#pragma once

#include "core/base/instant.h"

namespace verbena::softnic {

// From the writing to an eventfd to the reader's running; the median of a few. Takes about a
// millisecond, and a thread for so long. Where only one CPU is to be had, what a switch takes.
// Zero: there are no fds, or no thread.
Duration MeasureWakeupCost();

}  // namespace verbena::softnic
