// How long this thread has waited for a CPU while it could run.
#pragma once

#include "core/base/instant.h"

namespace verbena::softnic {

class RunDelay {
 public:
  RunDelay() = default;
  ~RunDelay();
  RunDelay(const RunDelay&) = delete;
  RunDelay& operator=(const RunDelay&) = delete;

  // Of the calling thread from now on. Without /proc, or the kernel's schedstats, Read fails.
  void OpenOfThisThread();
  // Since the thread began. Costs a system call of a microsecond or a few.
  bool Read(Duration* out) const;

 private:
  int fd_ = -1;
};

}  // namespace verbena::softnic
