// The ordered checks a responder puts to every request, as data.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::transport::rc {

// One question each; the responder answers with a ResponderFault.
enum class ResponderCheck : uint8_t {
  kPsn,
  kOpcodeSequence,
  kOpcodeSupported,
  kResource,
  kLength,
  kRkey,
};

struct ResponderCheckRow {
  ResponderCheck check;
  const char* name;
  const char* question;
  const char* clause;
};

// In the order they run: an earlier "no" hides the later ones.  Spec: IBTA 9.6, 9.7.4.
extern const ResponderCheckRow kResponderChecks[];
extern const size_t kResponderCheckCount;

}  // namespace verbena::transport::rc
