// A client's session: its shared memory, fds and limits, and the services the device asks for.
//
// Thread: made and destroyed by the control thread; from Open to its end used by the leader.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "core/shm/attach.h"
#include "softnic/control/arena.h"
#include "softnic/control/shared_memory.h"
#include "softnic/control/unique_fd.h"
#include "softnic/engine/shard.h"

namespace verbena::softnic {

struct SessionLimits {
  ArenaLimits arenas;
  uint32_t channels_max = 4096;
};

class ClientSession final : public SessionServices {
 public:
  // `doomed` (leader) is called once when the client can't be served any more, for instance because
  // it does not read its socket. `part_filled` (leader): as ArenaSet's.
  ClientSession(Shard* shard, UniqueFd socket, SessionLimits limits, std::function<void()> doomed,
                ArenaSet::PartFilled part_filled);
  ~ClientSession() override;

  // Makes the session's memory and fds. 0 or errno.
  int Create();
  // Sends Welcome with its fds. 0 or errno.
  int SendWelcome(const shm::Welcome& welcome);
  void SetStopping();

  ClientPort& port() { return port_; }
  int socket() const { return socket_.get(); }
  uint64_t queue_bytes() const { return arenas_.bytes_in_use(); }

  // SessionServices.
  int AllocateQueue(uint64_t bytes, QueueMemory* out) override;
  void FreeQueue(const QueueMemory& queue) override;
  void OpenDoorbells(uint32_t page, const QueueMemory& memory) override;
  void CloseDoorbells(uint32_t page) override { port_.doorbells.ClosePage(page); }
  int OpenChannel(shm::Handle channel) override;
  void CloseChannel(shm::Handle channel) override;
  int SendPayload(int fd) override;
  int SendAssist(int file, int socket) override;
  int MakeMemory(uint64_t bytes, std::shared_ptr<NicMemory>* out) override;
  int SendMemory(shm::Handle dm, const NicMemory& memory) override;
  bool SendChannelEvent(shm::Handle channel, const shm::ChannelEvent& event) override;
  bool SendAsyncEvent(const shm::AsyncEventMessage& event) override;
  void CompleteCommand(uint32_t slot, uint32_t submitted, int error, const void* payload,
                       uint32_t payload_bytes, uint32_t detail) override;

 private:
  int SendFd(shm::FdKind kind, uint32_t id, uint64_t bytes, int fd);
  bool SendEvent(int fd, const void* message, size_t bytes);
  void Doom();

  Shard* shard_;
  UniqueFd socket_;
  SessionLimits limits_;
  std::function<void()> doomed_;
  bool is_doomed_ = false;
  ClientPort port_;
  SharedMemory control_area_;
  SharedMemory status_page_;
  UniqueFd doorbell_event_;
  UniqueFd async_events_;         // ours
  UniqueFd client_async_events_;  // the client's, until Welcome
  ArenaSet arenas_;
  std::unordered_map<shm::Handle, UniqueFd> channels_;
};

// sendmsg with fds, without waiting. 0 or errno.
int SendWithFds(int socket, const void* message, size_t bytes, const int* fds, uint32_t fd_count);

}  // namespace verbena::softnic
