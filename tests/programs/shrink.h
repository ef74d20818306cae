// Makes a program that fails shorter, as long as it fails.
#pragma once

#include <functional>

#include "tests/programs/program.h"

namespace verbena::programs {

// Removes steps, then work requests of lists, by halves, quarters and so on (delta debugging).
// Calls `fails` so many times at most.
Program Shrink(Program program, const std::function<bool(const Program&)>& fails, int tries_max);

}  // namespace verbena::programs
