// One session: a client's attachment to one NIC of an instance (one ibv_context).
//
// Thread: every method may be called from many threads at once, Close excepted.
// Fork:   the session belongs to the process that opened it. In a forked child its memory is
//         replaced by private zero pages and it counts as dead: Execute returns EIO, queues stay
//         empty, what is posted goes nowhere, and the parent's queues are never touched. The child
//         calls Close to free its copy, and opens a session of its own to use the NIC.
// Errors: positive errno values, as verbs return them. Nothing here throws, logs or starts threads.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/prefetch.h"
#include "core/ring/ring_memory.h"
#include "core/shm/attach.h"
#include "core/shm/command.h"
#include "core/shm/layout.h"

namespace verbena::client {

struct Helper;
struct MoveFunctions;
struct Mover;
struct PayloadFile;

// Where a queue rings: in the session's page, or in that of its thread domain.
struct Doorbell {
  uint32_t number = 0;
  shm::ThreadDoorbellPage* thread_page = nullptr;
};

class Session {
 public:
  // Attaches to NIC `nic` over a fresh connection (ConnectInstance). The session owns `socket_fd`
  // from this call on, and closes it on failure.
  // Errors: ECONNRESET: the daemon went away before it answered, connect anew (OpenSession in
  // instance.h does); EPROTO: another version answers; ENODEV: no such NIC; ETIMEDOUT; ENOMEM.
  static int Open(int socket_fd, uint32_t nic, Session** out);

  // Joins the context of the session whose cmd_fd this is a duplicate of, in whatever process that
  // is. The session owns `cmd_fd` from its success on; after a failure it is the caller's.
  // Errors: EINVAL: no session's socket; ENODEV: that session's daemon or context is gone; and
  // those of Open.
  static int Import(int cmd_fd, Session** out);

  // This session; in a forked child one of the child's own in the same context, opened on first
  // use, for what it may do there as any importer. nullptr, with errno as of Import.
  Session* ForThisProcess();

  // Ends the session (this process's copy of it, in a forked child) and deletes the object. No
  // other thread may use it any more. Fds from TakeChannelFd stay open: they are the application's.
  void Close();

  // Runs one command and waits for its completion. At most reply_bytes of the reply are copied;
  // what the NIC left out reads as zero. `detail` receives CommandCompletion.detail. The reply is
  // filled in only when 0 is returned. Errors: the command's own; EINVAL: a request larger than a
  // slot; EIO: the daemon is gone (within 1 s of its death) or this is a forked child.
  int Execute(shm::CommandOp op, const void* request, uint32_t request_bytes, void* reply,
              uint32_t reply_bytes, uint32_t* detail = nullptr);

  // Tells the NIC that the queue's published index moved. Call it after the ring's Publish.
  void RingDoorbell(Doorbell doorbell) {
    if (doorbell.thread_page != nullptr) {
      Ring(*doorbell.thread_page, doorbell.number);
    } else {
      Ring(control_->doorbells, doorbell.number);
    }
    // seq_cst: pairs with the NIC's store of `sleeping`, fence, last look at the doorbells.
    const uint32_t sleep = status_->sleeping.load(std::memory_order_seq_cst);
    if (__builtin_expect(sleep != 0, 0)) WakeNic(sleep);
  }

  // For who polls in vain (EmptyPolls): whether the NIC is ready to run and can't, or is only just
  // being woken, while this thread has the CPU.
  bool NicWaitsForCpu() const {
    const uint32_t sleep = status_->sleeping.load(std::memory_order_relaxed);
    if (sleep != 0) return sleep == woken_from_.load(std::memory_order_relaxed);
    return status_->cpu.load(std::memory_order_relaxed) == static_cast<uint32_t>(sched_getcpu());
  }

  // A hint before work that ends in RingDoorbell: asks for the cache lines that takes.
  void PrepareDoorbell(Doorbell doorbell) {
    PrefetchForWrite(doorbell.thread_page != nullptr
                         ? &doorbell.thread_page->bits
                         : &control_->doorbells.Leaf(doorbell.number / 64));
    PrefetchForRead(&status_->sleeping);
  }

  // Address of a queue, mapping its arena on first use. nullptr: the daemon is gone, the place lies
  // outside its arena, or no address space is left.
  void* MapPlace(const shm::QueuePlace& place);
  // The same as RingMemory; IsValid() is false on failure.
  RingMemory MapRing(const shm::QueuePlace& place);

  // The read end of a completion channel, after kCreateChannel returned its handle. Non-blocking
  // off, CLOEXEC on, one ChannelEvent per message, EOF when the daemon dies. The caller owns the
  // fd. -1, with errno: EMFILE: no room for it, and it will not come again; EIO: it never came.
  int TakeChannelFd(shm::Handle channel);

  // The fd of a device memory, after the command that gave its handle returned. The caller owns the
  // fd. -1, with errno as above.
  int TakeMemoryFd(shm::Handle dm, uint64_t* bytes);

  // The payload file that this process shares with the daemon, opened on first use; see payload.h.
  // Errors: EOPNOTSUPP: the daemon has none to give; EMFILE; ENOMEM; EIO.
  int OpenPayload(PayloadFile** out);

  // Starts the session's helper if it has none; see assist.h. `for_entries`: of queues, too, even
  // if the NIC has another way. Errors: EOPNOTSUPP: not to be had; EMFILE; ENOMEM; EIO.
  int OpenAssist(bool for_entries);
  // From now on the program's functions move all bytes of its memory, on a thread of their own, in
  // place of a helper; see assist_mover.h. Before memory is registered. Errors: EBUSY: it has a
  // helper; EOPNOTSUPP; EMFILE; ENOMEM; EIO.
  int MoveBy(const MoveFunctions& functions);
  bool IsMovedByProgram() const { return mover_ != nullptr; }

  // AsyncEventMessage per message; EOF means IBV_EVENT_DEVICE_FATAL. Owned by the session.
  int async_fd() const { return async_fd_; }
  // ibv_context.cmd_fd: its open file identifies the session. It carries no replies; nobody but the
  // session reads it. Of an imported context the fd it was imported by. Owned by the session.
  int cmd_fd() const { return imported_fd_ >= 0 ? imported_fd_ : socket_fd_; }

  // False once the daemon is gone or going down, and in a forked child; it never turns true again.
  // Costs one poll(2) while alive.
  bool IsAlive();
  // Whether the death was already noticed: one load, for hot paths between calls of IsAlive.
  // A forked child's copy is dead, too.
  bool KnownDead() const { return dead_.load(std::memory_order_relaxed) || IsForkedCopy(); }
  // For a caller that saw EOF on one of the session's fds.
  void MarkDead() { dead_.store(true, std::memory_order_relaxed); }
  // True in a process other than the one that opened the session. Costs a load, for hot paths: what
  // the copy shares with its parent must not be touched, nor locks that a thread of the parent
  // held.
  bool IsForkedCopy() const {
    return fork_generation_ != process_fork_generation_.load(std::memory_order_relaxed);
  }

  const shm::Welcome& welcome() const { return welcome_; }

 private:
  template <typename Page>
  static void Ring(Page& page, uint32_t doorbell) {
    auto cpu = static_cast<uint32_t>(sched_getcpu());
    if (page.last_cpu.load(std::memory_order_relaxed) != cpu) {
      page.last_cpu.store(cpu, std::memory_order_relaxed);
    }
    page.Set(doorbell);
  }

  struct Arena {
    Arena* next;
    uint32_t id;
    uint64_t bytes;
    void* base;
  };
  struct PendingFd {
    PendingFd* next;
    shm::FdMessage message;
    int fd;  // -1: it found no room in this process
  };
  enum class Received { kMessage, kNone, kNoRoom, kGone };

  Session() = default;
  ~Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // `passed_fd`: the end of a socket pair by which to import through imported_fd_, or -1.
  static Session* New(int socket_fd);
  int Attach(uint32_t nic, int passed_fd);
  int SendHello(uint32_t nic, int passed_fd);
  int ReceiveWelcome(int (&fds)[shm::kWelcomeFds]);
  int MapWelcome(int (&fds)[shm::kWelcomeFds]);

  int ClaimSlot();  // index, or -1 when the daemon is gone
  void ReleaseSlot(int slot);
  bool AwaitCompletion(const shm::CommandCompletion& completion, uint32_t use);

  void WakeNic(uint32_t sleep);
  Arena* FindArena(uint32_t id) const;
  Arena* AddArena(const shm::FdMessage& message, int fd);
  // What a helper or a mover needs; once. assist_lock_ is held.
  int TakeAssistFds(bool for_entries, int* file, int* socket);
  void KeepRoom();
  // Takes the fd of `kind` and `id` out of the socket or the messages kept. -1, with errno: EIO: it
  // never came; EMFILE: there was no room for it, and only an arena's can still be had.
  int AwaitFd(shm::FdKind kind, uint32_t id, shm::FdMessage* message);
  int TakeFd(shm::FdKind kind, shm::Handle handle, uint64_t* bytes);
  bool TakePendingFd(shm::FdKind kind, uint32_t id, shm::FdMessage* message, int* fd);
  Received ReceiveFdMessage();
  void KeepPending(const shm::FdMessage& message, int fd);

  static void RegisterForkHandlers();
  static void BeforeFork();
  static void AfterForkInParent();
  static void AfterForkInChild();
  void AbandonInChild();

  shm::ControlArea* control_ = nullptr;
  const shm::StatusPage* status_ = nullptr;
  std::atomic<uint32_t> woken_from_{0};  // the last of the NIC's sleeps that we ended
  int doorbell_fd_ = -1;
  int socket_fd_ = -1;
  int imported_fd_ = -1;
  std::atomic<Session*> child_session_{nullptr};
  int async_fd_ = -1;
  // Counts the forks between the first process and this one.
  static std::atomic<uint32_t> process_fork_generation_;
  static void CountForks();  // from now on; harmless to repeat

  uint32_t fork_generation_ = 0;
  pid_t owner_pid_ = 0;
  std::atomic<bool> dead_{false};

  std::atomic<uint64_t> free_slots_{~uint64_t{0}};
  std::atomic<uint32_t> slot_waiters_{0};
  std::atomic<uint32_t> slot_releases_{0};       // futex word of those who found no free slot
  uint32_t slot_uses_[shm::kCommandSlots] = {};  // of the slot's holder
  pthread_mutex_t fd_lock_ = PTHREAD_MUTEX_INITIALIZER;  // guards the socket's input and both lists
  std::atomic<Arena*> arenas_{nullptr};  // grows at its head only: readers need no lock
  PendingFd* pending_fds_ = nullptr;
  int room_fd_ = -1;  // gives way to an arena's fd that finds no other room; under fd_lock_

  pthread_mutex_t payload_lock_ = PTHREAD_MUTEX_INITIALIZER;
  PayloadFile* payload_ = nullptr;

  pthread_mutex_t assist_lock_ = PTHREAD_MUTEX_INITIALIZER;
  bool has_tried_assist_ = false;  // the daemon gives what it takes once
  int assist_error_ = 0;
  Helper* helper_ = nullptr;
  Mover* mover_ = nullptr;

  Session* next_session_ = nullptr;  // list of this process's sessions, for the fork handlers
  uint64_t probe_ = 0;               // what Hello.probe_addr points at
  shm::Welcome welcome_ = {};
};

// Makes every page of a region present and checks that the NIC may use it, as pinning does on
// hardware: readable, and writable if `write`. A length of zero is a success.
// Errors: EFAULT: not mapped, or access denied; ENOMEM: no memory left; EINVAL: the range wraps.
int PopulateForRegistration(void* addr, size_t length, bool write);

namespace internal {
// The way of kernels without MADV_POPULATE_*. Page-aligned range. 0 or EFAULT.
int PopulateBySteps(void* begin, size_t bytes, size_t page_bytes, bool write);
}  // namespace internal

}  // namespace verbena::client
