// What endpoints ask of connection management, one request each. 0 or a negative FI errno.
#pragma once

#include "core/client/cm_address.h"
#include "core/client/cm_session.h"
#include "fi_shim/objects.h"

namespace verbena::fi {

inline shm::CmRequest NewCmRequest(shm::CmOp op, shm::CmHandle handle) {
  shm::CmRequest request = {};
  request.op = static_cast<uint32_t>(op);
  request.handle = handle;
  return request;
}

// Of requests that say all by their operation, and a number.
inline int AskCm(client::CmSession* cm, shm::CmOp op, shm::CmHandle handle, uint32_t number = 0,
                 shm::CmReply* reply = nullptr) {
  shm::CmRequest request = NewCmRequest(op, handle);
  request.number = number;
  shm::CmReply ignored;
  return -cm->Execute(request, reply != nullptr ? reply : &ignored);
}

}  // namespace verbena::fi
