// Runs a program step by step beside the model.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tests/programs/executor.h"
#include "tests/programs/model.h"

namespace verbena::programs {

struct RunOptions {
  bool traces = false;
  std::chrono::milliseconds patience{15000};  // for what has to come
};

struct RunResult {
  bool is_good = true;
  size_t step = 0;   // the one that failed
  std::string text;  // what was expected, what came
  uint64_t calls = 0, completions = 0, events = 0, refused = 0;
};

class Runner {
 public:
  RunResult Run(uint64_t seed, const Program& program, const RunOptions& options);

 private:
  std::unique_ptr<Executor> executor_;  // kept from run to run, but for one that failed
};

}  // namespace verbena::programs
