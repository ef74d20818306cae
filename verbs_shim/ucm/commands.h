// The kernel's rdma_ucm commands, carried out by the daemon.
//
// A program's librdmacm writes each command (rdma/rdma_user_cm.h) to the fd of a channel; here it
// becomes a request (core/shm/cm.h), and the reply goes where the command says. Numbers of
// identifiers are small, the lowest that is free, as the kernel's are: librdmacm looks them up in
// tables of 65 536.
//
// Errors are positive errnos: those of the daemon, and as the kernel has them EINVAL: a command
// that is too short, unknown, or of an identifier of another channel; ENOENT: no such identifier;
// ENOSPC: no room for the answer; EFAULT; ENOSYS: one that the kernel has not either.
//
// When the daemon goes all NICs have gone: each identifier that had one gets DEVICE_REMOVAL, then
// commands say EIO, but that identifiers can be destroyed. A forked child's say so of its parent's.
//
// Thread: any number of them. No lock is held while the daemon is asked.
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "core/shm/cm.h"
#include "verbs_shim/ucm/numbers.h"

struct rdma_ucm_event_resp;

namespace verbena::ucm {

// An open rdma_cm file.
struct Channel {
  void* session = nullptr;  // what Environment.execute asks
  shm::CmHandle handle = 0;

  friend bool operator==(const Channel&, const Channel&) = default;
};

// What commands need besides themselves; a test has another.
struct Environment {
  // 0 or errno.
  int (*execute)(void* session, const shm::CmRequest& request, shm::CmReply* reply);
  // Until the channel behind the fd may have an event. EAGAIN: it must not wait; EINTR.
  int (*await_event)(int fd);
  bool (*find_channel)(int fd, Channel* out);
};

// Of a command that waits in a channel which was closed meanwhile: the kernel never returns then.
inline constexpr int kClosedWhileWaiting = -1;

class Commands {
 public:
  explicit Commands(const Environment& environment) : environment_(environment) {}
  Commands(const Commands&) = delete;
  Commands& operator=(const Commands&) = delete;

  // One command, `bytes` of it at `data`, written to `fd`, which is `channel`'s. 0, errno, or
  // kClosedWhileWaiting.
  int Write(const Channel& channel, int fd, const void* data, size_t bytes);
  // Ends the channel and its identifiers.
  void Close(const Channel& channel);
  // In a child of fork, whose other threads are gone, and whose parent has the identifiers.
  void AfterForkInChild() {
    mutex_ = PTHREAD_MUTEX_INITIALIZER;
    ++forks_;
  }

 private:
  struct Command;
  struct Named {
    Channel channel{};
    shm::CmHandle handle = 0;
    uint32_t owner = 0;  // of a membership: the identifier's number
    // Of an identifier, for when the daemon can't be asked any more.
    uint64_t uid = 0;           // the program's name for it; 0: a request's, not accepted yet
    uint32_t events_taken = 0;  // as far as the program was given them
    bool has_nic = false, is_removed = false;
    uint32_t forks = 0;  // of whom it is: forks_ as it was taken
  };
  using Table = Numbers<Named>;

  int Dispatch(uint32_t number, const Command& command);
  int CreateId(const Command& command);
  int DestroyId(const Command& command);
  int BindIp(const Command& command);
  int Bind(const Command& command);
  int ResolveIp(const Command& command);
  int ResolveAddress(const Command& command);
  int ResolveRoute(const Command& command);
  int QueryRoute(const Command& command);
  int Query(const Command& command);
  int Connect(const Command& command);
  int Listen(const Command& command);
  int Accept(const Command& command);
  int Reject(const Command& command);
  int Disconnect(const Command& command);
  int InitQpAttr(const Command& command);
  int GetEvent(const Command& command);
  int SetOption(const Command& command);
  int Notify(const Command& command);
  int JoinIpMulticast(const Command& command);
  int JoinMulticast(const Command& command);
  int LeaveMulticast(const Command& command);
  int MigrateId(const Command& command);
  int WriteEvent(const Command& command);

  int AnswerQueryAddress(const Command& command, uint64_t response, const shm::CmQuery& query);
  int AnswerQueryPath(const Command& command, uint64_t response, const shm::CmQuery& query);
  int AnswerQueryGid(const Command& command, uint64_t response, const shm::CmQuery& query);
  int Join(const Command& command, uint32_t id, uint64_t response, shm::CmRequest request);
  int TakeEvent(const Command& command, shm::CmReply* reply);
  int Deliver(const Command& command, const shm::CmEvent& event, uint64_t response);
  // The daemon is gone. False: nobody of the channel has yet to be told.
  bool TakeRemoved(const Channel& channel, rdma_ucm_event_resp* out);
  // Under the lock. kNoNumber: there is none.
  uint32_t NumberOf(const Channel& channel, shm::CmHandle handle);
  void NoteQuery(const Command& command, uint32_t id, const shm::CmQuery& query);
  // Asks about the identifier of that number, which has to be the channel's.
  int Ask(const Command& command, uint32_t id, shm::CmRequest request, shm::CmReply* reply);
  int Ask(const Command& command, uint32_t id, shm::CmRequest request);
  int Execute(const Channel& channel, const shm::CmRequest& request, shm::CmReply* reply);
  void DestroyHandle(const Channel& channel, shm::CmHandle handle);
  int Find(Table* table, const Channel& channel, uint32_t number, shm::CmHandle* handle);
  void Forget(const Channel& channel, uint32_t id);

  const Environment environment_;
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;  // guards the rest
  Table ids_, memberships_;
  uint32_t forks_ = 0;  // from the process that first had these to this one
};

}  // namespace verbena::ucm
