// A command of a session, while the device executes it.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "core/base/instant.h"
#include "core/shm/command.h"
#include "softnic/device/services.h"

namespace verbena::softnic {

struct Session;

// One command being executed.
struct Command {
  Session* session = nullptr;
  uint32_t slot = 0;
  uint32_t submitted = 0;
  shm::CommandOp op = shm::CommandOp::kNop;
  const uint8_t* payload = nullptr;

  // The reply; sent by the dispatcher unless the handler deferred it to a fence.
  alignas(8) uint8_t reply[shm::kCommandPayloadBytes];
  uint32_t reply_bytes = 0;
  bool is_deferred = false;
  uint64_t number = 0;  // in the device's history

  template <typename T>
  T Request() const {
    T request;
    std::memcpy(&request, payload, sizeof(request));
    return request;
  }
  template <typename T>
  void Reply(const T& value) {
    static_assert(sizeof(T) <= sizeof(reply));
    std::memcpy(reply, &value, sizeof(value));
    reply_bytes = sizeof(value);
  }
};

// What `verbena show cmd` tells: the last commands, finished or not.
struct PastCommand {
  uint64_t number = 0;
  SessionId session = 0;
  std::string program;
  shm::CommandOp op = shm::CommandOp::kNop;
  int error = 0;
  bool is_done = false;
  Instant began;
  Instant ended;
};

}  // namespace verbena::softnic
