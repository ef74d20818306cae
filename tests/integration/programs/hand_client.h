// A client made by hand from the shared-memory ABI alone, without core/client: so that it can say
// and write what no honest library would.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/shm/attach.h"
#include "core/shm/command.h"
#include "core/shm/layout.h"

namespace verbena::tests {

struct Mapping {
  uint8_t* data = nullptr;
  size_t bytes = 0;
  uint32_t arena = 0;
};

class HandClient {
 public:
  HandClient() = default;
  ~HandClient();
  HandClient(const HandClient&) = delete;
  HandClient& operator=(const HandClient&) = delete;

  // Connects to $VERBENA_INSTANCE/sock. The socket, or -1.
  static int Connect();
  static shm::Hello MakeHello(shm::HelloKind kind);

  // Attaches properly and maps the control area.
  bool Attach(uint32_t nic = 0);
  // Issues one command in `slot` and waits for its completion. Its error, or -1 after `limit_ms`.
  int Issue(uint32_t slot, shm::CommandOp op, const void* payload, uint32_t bytes, void* reply,
            uint32_t reply_bytes, int limit_ms = 2000);
  // Writes a command and rings, without waiting.
  void Submit(uint32_t slot, uint32_t submitted, uint32_t op, const void* payload,
              uint32_t stored_bytes, uint32_t claimed_bytes);
  void Ring(uint32_t doorbell);
  // Maps the arenas whose fds have arrived.
  void TakeArenas();
  uint8_t* At(const shm::QueuePlace& place);

  int socket() const { return socket_; }
  const std::vector<int>& fds() const { return fds_; }
  shm::ControlArea* control() { return control_; }
  size_t control_bytes() const { return control_bytes_; }
  std::vector<Mapping>& arenas() { return arenas_; }

 private:
  int socket_ = -1;
  std::vector<int> fds_;  // in the order of shm::WelcomeFd, then arenas'
  shm::ControlArea* control_ = nullptr;
  size_t control_bytes_ = 0;
  std::vector<Mapping> arenas_;
  uint32_t submitted_[shm::kCommandSlots] = {};
};

// A message with up to 8 fds. Bytes received, 0 at the end, -1 on error.
ssize_t ReceiveWithFds(int socket, void* data, size_t bytes, int flags, std::vector<int>* fds);

}  // namespace verbena::tests
