// A daemon of a few lines for the client's tests: attaches one client on one end of a socket pair
// and answers commands, on a thread or in a forked process that a test can kill.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "core/shm/attach.h"
#include "core/shm/command.h"
#include "core/shm/layout.h"

namespace verbena::client {

inline constexpr int32_t kFakeBusyDetail = 77;
inline constexpr uint64_t kFakeArenaBytes = 64 * 1024;
inline constexpr uint32_t kFakeAsyncEvents = 1;

// What it does with each command:
//   NOP          echoes the request
//   ALLOC_PD     never completes
//   DEALLOC_PD   EBUSY, detail kFakeBusyDetail
//   CREATE_CHANNEL  handle = number of the channel; its fd holds one ChannelEvent
//   CREATE_CQ    a place in arena `entries`, sent when first named; a fd of channel 1000 before it
//   QUERY_PORT   dies at once, without an answer
class FakeDaemon {
 public:
  FakeDaemon();
  ~FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  // The client's end of the attach socket. The caller owns it.
  int TakeClientFd();

  void StartThread();
  void StopThread();     // closes every end that the daemon holds
  pid_t StartProcess();  // the caller kills and reaps it

  shm::StatusPage* status() { return status_; }
  shm::ControlArea* control() { return control_; }
  int event_fd() const { return event_fd_; }
  // Thread mode only.
  uint32_t wakeups() const { return wakeups_.load(); }
  uint32_t commands() const { return commands_.load(); }
  uint32_t sleeps() const { return sleeps_.load(); }
  const shm::Hello& hello() const { return hello_; }

  int32_t welcome_error = 0;  // set before it starts
  bool close_before_welcome = false;
  bool attach_only = false;  // serves nothing after the Welcome

 private:
  void Run();
  bool Attach();
  bool Sweep();
  void Sleep();
  void RunCommand(uint32_t index);
  void Reply(shm::CommandSlot* slot, uint32_t use, int32_t error, uint32_t detail,
             const void* payload, uint32_t bytes);
  void CreateCq(shm::CommandSlot* slot, uint32_t use);
  void CreateChannel(shm::CommandSlot* slot, uint32_t use);
  void SendChannelFd(uint32_t id);
  void SendFds(const void* data, size_t bytes, const int* fds, int count);
  void CloseOwnEnds();

  int client_fd_ = -1;
  int socket_fd_ = -1;
  int event_fd_ = -1;
  int async_fd_ = -1;
  int async_client_fd_ = -1;
  int control_fd_ = -1;
  int status_fd_ = -1;
  shm::ControlArea* control_ = nullptr;
  shm::StatusPage* status_ = nullptr;
  std::vector<uint32_t> arenas_;
  std::vector<int> channel_ends_;
  uint32_t channels_ = 0;
  shm::Hello hello_ = {};
  std::atomic<uint32_t> wakeups_{0};
  std::atomic<uint32_t> sleeps_{0};
  std::atomic<uint32_t> commands_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace verbena::client
