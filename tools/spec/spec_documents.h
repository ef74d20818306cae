// Every page of docs/spec that a program prints.
#pragma once

#include <vector>

#include "tools/spec/spec_tables.h"

namespace verbena::tools {

// The tables (PrintSpec) and the simulator's goodput page.
std::vector<SpecDocument> PrintAllDocuments();

}  // namespace verbena::tools
