// Goodput of RC over simulated networks that lose packets, as a page of docs/spec.
#pragma once

#include <string>

namespace verbena::transport::rc {

// The same text on every machine: time is virtual and chance comes from a seed.
std::string GoodputPage();

}  // namespace verbena::transport::rc
