// What the payloads of commands are, for who makes them up.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/shm/command.h"
#include "core/shm/rdm.h"

namespace verbena::fuzz {

using shm::CommandOp;

// Where in the payload a RegMrRequest stands.
inline constexpr uint32_t kNoRange = ~0u;
inline uint32_t RangeAt(uint32_t op) {
  if (op == static_cast<uint32_t>(CommandOp::kRegMr)) return 0;
  return op == static_cast<uint32_t>(CommandOp::kReregMr) ? offsetof(shm::ReregMrRequest, region)
                                                          : kNoRange;
}

inline uint32_t PayloadBytes(uint32_t op) {
  switch (static_cast<CommandOp>(op)) {
    case CommandOp::kNop:
    case CommandOp::kQueryDevice:
    case CommandOp::kAllocPd:
    case CommandOp::kCreateChannel:
    case CommandOp::kAllocOwnKeyPd:
    case CommandOp::kCreateCounter:
      return 0;
    case CommandOp::kRegMr:
      return sizeof(shm::RegMrRequest);
    case CommandOp::kReregMr:
      return sizeof(shm::ReregMrRequest);
    case CommandOp::kAllocDm:
      return sizeof(shm::AllocDmRequest);
    case CommandOp::kRegDmMr:
      return sizeof(shm::RegDmMrRequest);
    case CommandOp::kCreateCq:
      return sizeof(shm::CreateCqRequest);
    case CommandOp::kResizeCq:
      return sizeof(shm::ResizeCqRequest);
    case CommandOp::kCreateSrq:
      return sizeof(shm::CreateSrqRequest);
    case CommandOp::kModifySrq:
      return sizeof(shm::ModifySrqRequest);
    case CommandOp::kCreateQp:
      return sizeof(shm::CreateQpRequest);
    case CommandOp::kModifyQp:
      return sizeof(shm::ModifyQpRequest);
    case CommandOp::kCreateAh:
      return sizeof(shm::CreateAhRequest);
    case CommandOp::kBindMrCounter:
      return sizeof(shm::BindMrCounterRequest);
    case CommandOp::kBindQpCounter:
      return sizeof(shm::BindQpCounterRequest);
    case CommandOp::kCancelRecv:
      return sizeof(shm::CancelRecvRequest);
    case CommandOp::kCreatePlace:
      return sizeof(shm::CreatePlaceRequest);
    case CommandOp::kNameSource:
      return sizeof(shm::NameSourceRequest);
    case CommandOp::kAttachMcast:
    case CommandOp::kDetachMcast:
      return sizeof(shm::McastRequest);
    default:
      return sizeof(shm::HandleRequest);  // and PortRequest, ImportMrRequest ...
  }
}

}  // namespace verbena::fuzz
