#include "verbs_shim/ucm/files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <atomic>
#include <new>

#include "core/client/cm_session.h"
#include "core/client/no_cancel.h"
#include "core/client/scoped_lock.h"

namespace verbena::ucm {
namespace {

struct File {
  Channel channel;
  unsigned long long inode;  // of the socket
  pid_t owner_pid;
  int fds;
};

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;  // guards the files, and changes of the table
std::atomic<File*> g_files[kFdsMax];
std::atomic<Commands*> g_commands;  // never freed
bool g_fork_handler_registered = false;

int Fail(int error) {
  errno = error;
  return -1;
}

// The system call itself: libc's functions of the family are those we stand in front of.
unsigned long long InodeOf(int fd) {
  struct statx info;
  const int saved_errno = errno;
  const long result = syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_INO, &info);
  errno = saved_errno;
  return result == 0 ? info.stx_ino : 0;
}

int Execute(void* session, const shm::CmRequest& request, shm::CmReply* reply) {
  return static_cast<client::CmSession*>(session)->Execute(request, reply);
}

// A cancellation point, as the kernel's write is: nothing is held here. Looks at the token that
// makes the fd readable, and leaves it: unlike poll(2), recv(2) goes on after a signal whose
// handler restarts calls, as that write does.
int AwaitEvent(int fd) {
  char token;
  if (recv(fd, &token, sizeof(token), MSG_PEEK) >= 0) return 0;
  return errno == EAGAIN || errno == EINTR ? errno : 0;  // of others the daemon will say
}

void AfterForkInChild() {
  g_mutex = PTHREAD_MUTEX_INITIALIZER;
  if (Commands* commands = g_commands.load(std::memory_order_relaxed)) commands->AfterForkInChild();
}

// Under the lock. nullptr: no memory.
Commands* MakeCommands() {
  if (!g_fork_handler_registered) {
    g_fork_handler_registered = pthread_atfork(nullptr, nullptr, AfterForkInChild) == 0;
  }
  Commands* commands = g_commands.load(std::memory_order_relaxed);
  if (commands == nullptr) {
    commands = new (std::nothrow) Commands({Execute, AwaitEvent, FindChannel});
    g_commands.store(commands, std::memory_order_release);  // pairs with the acquire in GetCommands
  }
  return commands;
}

// Of who has a channel.
Commands& GetCommands() { return *g_commands.load(std::memory_order_acquire); }

// Takes the fd out of the table; true: its file has none any more.
bool TakeOut(int fd, Channel* channel) {
  client::ScopedLock lock(&g_mutex);
  File* file = g_files[fd].exchange(nullptr, std::memory_order_relaxed);
  if (file == nullptr || --file->fds > 0) return false;
  *channel = file->channel;
  delete file;
  return true;
}

void CloseFd(int fd) {
  client::NoCancel no_cancel;
  Channel channel;
  if (!TakeOut(fd, &channel)) return;
  const int saved_errno = errno;
  GetCommands().Close(channel);
  errno = saved_errno;
}

enum class Owner { kNobody, kUs, kParent };

Owner Look(int fd, Channel* channel) {
  bool is_stale = false;
  Owner owner = Owner::kNobody;
  {
    client::ScopedLock lock(&g_mutex);
    const File* file = g_files[fd].load(std::memory_order_relaxed);
    if (file == nullptr) return Owner::kNobody;
    *channel = file->channel;
    is_stale = file->inode != InodeOf(fd);
    // Also in a child of vfork, which has the memory of its parent.
    owner = file->owner_pid == getpid() ? Owner::kUs : Owner::kParent;
  }
  if (!is_stale) return owner;
  if (owner == Owner::kUs) CloseFd(fd);
  return Owner::kNobody;
}

// 0 or errno.
int OpenChannel(client::CmSession** session, Channel* channel, int* fd) {
  if (int error = client::CmSession::ForThisProcess(session); error != 0) return error;
  shm::CmRequest request;
  memset(&request, 0, sizeof(request));
  request.op = static_cast<uint32_t>(shm::CmOp::kCreateChannel);
  shm::CmReply reply;
  if (int error = (*session)->Execute(request, &reply, fd); error != 0) return error;
  *channel = {*session, reply.handle};
  if (*fd >= 0) return 0;
  GetCommands().Close(*channel);
  return EMFILE;  // the kernel drops a fd that finds no place
}

int NoteFile(int fd, const Channel& channel) {
  if (fd >= kFdsMax) return EMFILE;
  File* file = new (std::nothrow) File{channel, InodeOf(fd), getpid(), 1};
  if (file == nullptr) return ENOMEM;
  client::ScopedLock lock(&g_mutex);
  g_files[fd].store(file, std::memory_order_relaxed);
  return 0;
}

}  // namespace

bool MayBeOurs(int fd) {
  // Who has the fd got it after it was noted.
  return fd >= 0 && fd < kFdsMax && g_files[fd].load(std::memory_order_relaxed) != nullptr;
}

int OpenFile(int flags) {
  client::NoCancel no_cancel;
  const int saved_errno = errno;
  {
    client::ScopedLock lock(&g_mutex);
    if (MakeCommands() == nullptr) return Fail(ENOMEM);
  }
  client::CmSession* session;
  Channel channel;
  int fd = -1;
  int error = OpenChannel(&session, &channel, &fd);
  if (error == 0) {
    if (MayBeOurs(fd)) CloseFd(fd);  // somebody closed it unseen
    if ((flags & O_CLOEXEC) == 0) fcntl(fd, F_SETFD, 0);
    if ((flags & O_NONBLOCK) != 0) fcntl(fd, F_SETFL, O_NONBLOCK);
    error = NoteFile(fd, channel);
    if (error != 0) GetCommands().Close(channel);
  }
  if (error == 0) {
    errno = saved_errno;
    return fd;
  }
  if (fd >= 0) close(fd);
  return Fail(error);
}

bool FindChannel(int fd, Channel* out) { return MayBeOurs(fd) && Look(fd, out) != Owner::kNobody; }

ssize_t WriteFile(const Channel& channel, int fd, const void* data, size_t bytes) {
  const int saved_errno = errno;
  const int error = GetCommands().Write(channel, fd, data, bytes);
  while (error == kClosedWhileWaiting) pause();
  errno = saved_errno;
  return error == 0 ? static_cast<ssize_t>(bytes) : Fail(error);
}

void ForgetFd(int fd) {
  Channel channel;
  if (Look(fd, &channel) == Owner::kUs) CloseFd(fd);
}

void NoteDuplicate(int fd, int copy) {
  if (MayBeOurs(copy)) ForgetFd(copy);
  client::ScopedLock lock(&g_mutex);
  File* file = g_files[fd].load(std::memory_order_relaxed);
  if (file == nullptr || copy < 0 || copy >= kFdsMax || file->owner_pid != getpid()) return;
  ++file->fds;
  g_files[copy].store(file, std::memory_order_relaxed);
}

dev_t DeviceNumber() {
  // "10:121" and a line's end. Without the kernel's module, what the kernel calls "any misc
  // device".
  unsigned int device_major = 10, device_minor = 255;
  const long fd =
      syscall(SYS_openat, AT_FDCWD, "/sys/class/misc/rdma_cm/dev", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    char text[24] = "";
    if (syscall(SYS_read, fd, text, sizeof(text) - 1) > 0) {
      char* end = nullptr;
      const unsigned long first = strtoul(text, &end, 10);
      if (*end == ':') {
        device_major = static_cast<unsigned int>(first);
        device_minor = static_cast<unsigned int>(strtoul(end + 1, nullptr, 10));
      }
    }
    syscall(SYS_close, fd);
  }
  return makedev(device_major, device_minor);
}

}  // namespace verbena::ucm
