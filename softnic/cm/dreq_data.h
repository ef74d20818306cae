// What a DREQ of ours says in its private data: how far its sender has carried out the requests of
// who gets it. An ACK that was lost is not sent again once the QP is gone; this is.
//
// A peer that knows nothing of it sends zeros there, as Linux does, and looks at nothing.
#pragma once

#include <optional>

#include "core/base/psn.h"
#include "transport/cm/message.h"

namespace verbena::softnic {

using DreqData = decltype(transport::cm::Dreq::private_data);

// `done`: all requests before it are carried out. None: nothing is said.
DreqData EncodeDreqData(std::optional<Psn> done);
std::optional<Psn> DecodeDreqData(const DreqData& data);

}  // namespace verbena::softnic
