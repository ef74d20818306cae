// What the cases of completion queues and of counters share.
#pragma once

#include "tests/fi/fabric.h"

namespace verbena::fi_test {

// One message from a to b.
void OneMessage(Pair& pair, Memory& out, Memory& in);
Wish Waiting(fi_wait_obj wait);
bool IsReadable(int fd, int limit_ms);
// Until a thread of this process sleeps. One that looks all the time instead never does, and needs
// no waking.
void AwaitSleepOf(int thread);
// A write that the target refuses, for what is told of it.
void MakeError(Pair& pair);

}  // namespace verbena::fi_test
