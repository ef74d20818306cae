#include "transport/rc/responder_checks.h"

namespace verbena::transport::rc {

constexpr ResponderCheckRow kResponderChecks[] = {
    {ResponderCheck::kPsn, "kPsn", "Is it the PSN expected, a duplicate, or past a gap?",
     "IBTA C9-105, 9.7.4.1.2"},
    {ResponderCheck::kOpcodeSequence, "kOpcodeSequence",
     "May this opcode follow the one before it?", "IBTA 9.7.4.1.3"},
    {ResponderCheck::kOpcodeSupported, "kOpcodeSupported",
     "Is the opcode one of RC's, and do the QP's access flags allow it?", "IBTA 9.7.4.1.4"},
    {ResponderCheck::kResource, "kResource",
     "Is there a receive WQE, or room for a READ or atomic?", "IBTA 9.7.4.1.5, 9.7.5.2.8"},
    {ResponderCheck::kLength, "kLength",
     "Does the payload fit the packet's place, the message and the receive buffers?",
     "IBTA C9-92, C9-94, 9.7.4.1.6"},
    {ResponderCheck::kRkey, "kRkey",
     "Does the R_Key grant this access to the whole range? Not asked of zero-length requests.",
     "IBTA C9-88, 9.7.4.1.7"},
};
constexpr size_t kResponderCheckCount = sizeof(kResponderChecks) / sizeof(kResponderChecks[0]);

}  // namespace verbena::transport::rc
