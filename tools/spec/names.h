// Names of enumerators and bits, as verbs programs know them.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/types.h"
#include "core/shm/attach.h"
#include "transport/pdu.h"
#include "transport/qp_transport.h"

namespace verbena::tools {

// "AV PATH_MTU", from shm::qp_mask bits. Empty for 0.
std::string AttributeNames(uint32_t mask);
const char* WcStatusName(WcStatus status);   // without IBV_WC_
const char* EventTypeName(EventType event);  // without IBV_EVENT_
const char* NakCodeName(transport::NakCode code);
// Empty for kNone.
std::string VendorErrName(shm::VendorErr error);
// Empty for nullptr.
std::string CounterName(uint64_t transport::QpCounters::*counter);
std::string HexByte(uint8_t value);

}  // namespace verbena::tools
