// Enums that a program fills in: any number may stand there, and may not be read as its enum before
// it is known to be one of them (C++: the value of an enum is in its range).
#pragma once

#include <string.h>

#include <type_traits>

namespace verbena::fi {

template <typename Enum>
std::underlying_type_t<Enum> NumberOf(const Enum& field) {
  std::underlying_type_t<Enum> number;
  memcpy(&number, &field, sizeof(number));
  return number;
}
// libfabric's begin at 0, and leave none out.
template <typename Enum>
bool IsUpTo(const Enum& field, Enum last) {
  return NumberOf(field) <= static_cast<std::underlying_type_t<Enum>>(last);
}

}  // namespace verbena::fi
