// Where an instance lives, joining it, and asking it for its NICs. Starting is in daemon_start.cc.
#include "core/client/instance.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "core/client/daemon_start.h"
#include "core/client/no_memory.h"
#include "core/client/waiting.h"

namespace verbena::client {
namespace {

constexpr int64_t kReplyTimeoutMs = 10'000;
constexpr int64_t kLockTimeoutMs = 20'000;  // whoever holds it starts a daemon, within 10 s
constexpr int64_t kPredecessorTimeoutMs = 5'000;
constexpr int kAttempts = 5;  // each fails only if an idle daemon ends just then

// statx and not stat(2): libc's stat is a symbol newer than the oldest libc a shim must load on.
bool Stat(int directory_fd, const char* path, int flags, struct statx* out) {
  return statx(directory_fd, path, flags, STATX_TYPE | STATX_MODE | STATX_UID | STATX_INO, out) ==
         0;
}

// Whether `path` is a directory of this user that nobody else can write to. errno = EPERM if not.
bool IsOwnDirectory(const std::string& path) {
  struct statx info;
  if (!Stat(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, &info)) return false;
  if (S_ISDIR(info.stx_mode) && info.stx_uid == geteuid() && (info.stx_mode & 022) == 0) {
    return true;
  }
  errno = EPERM;
  return false;
}

bool MakeOwnDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return false;
  return IsOwnDirectory(path);
}

// A read-only file system lets an existing directory be found, but no instance start in it.
bool IsWritable(const std::string& path) {
  return faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
}

// Without /proc, one instance for all namespaces.
std::string NetworkNamespaceName() { return "net-" + std::to_string(NetworkNamespaceInode()); }

// The places of default instances, best first.
std::vector<std::string> DefaultBases() {
  std::string uid = std::to_string(geteuid());
  std::vector<std::string> bases;
  std::string runtime = "/run/user/" + uid;
  if (IsOwnDirectory(runtime)) bases.push_back(runtime + "/verbena");
  for (const char* parent : {"/tmp/", "/var/tmp/", "/dev/shm/"}) {
    bases.push_back(std::string(parent) + "verbena-" + uid);
  }
  return bases;
}

std::string DefaultDirectory(bool create) {
  std::string name = NetworkNamespaceName();
  std::vector<std::string> bases = DefaultBases();
  // One that is in use comes first: /run/user/UID appears at log-in, after daemons of cron jobs.
  for (const std::string& base : bases) {
    std::string directory = base + "/" + name;
    struct statx info;
    if (IsOwnDirectory(base) && IsOwnDirectory(directory) &&
        Stat(AT_FDCWD, (directory + "/sock").c_str(), AT_SYMLINK_NOFOLLOW, &info)) {
      return directory;
    }
  }
  int first_error = ENOENT;
  for (const std::string& base : bases) {
    std::string directory = base + "/" + name;
    bool usable = create ? MakeOwnDirectory(base) && MakeOwnDirectory(directory)
                         : IsOwnDirectory(base) && IsOwnDirectory(directory);
    if (usable && (!create || IsWritable(directory))) return directory;
    if (first_error == ENOENT) first_error = errno;
  }
  errno = first_error;
  return {};
}

std::string Absolute(const std::string& path) {
  if (path[0] == '/') return path;
  char cwd[PATH_MAX];
  if (getcwd(cwd, sizeof(cwd)) == nullptr) return {};
  return std::string(cwd) + "/" + path;
}

bool NoneRuns(int error) { return error == ENOENT || error == ECONNREFUSED; }

int Connect(const char* path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t path_bytes = std::strlen(path) + 1;
  if (path_bytes > sizeof(address.sun_path)) {
    errno = ENAMETOOLONG;
    return -1;
  }
  std::memcpy(address.sun_path, path, path_bytes);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  int result;
  do {
    result = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return fd;
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}

// The lock of a directory, taken until the end of the scope.
class StartLock {
 public:
  explicit StartLock(const std::string& directory)
      : fd_(open((directory + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {}
  ~StartLock() {
    if (fd_ < 0) return;
    // Unlocked by name: a child forked meanwhile may hold a copy of the fd.
    flock(fd_, LOCK_UN);
    close(fd_);
  }
  StartLock(const StartLock&) = delete;
  StartLock& operator=(const StartLock&) = delete;

  // False: errno. Bounded, since its holder may have been stopped.
  bool Take() {
    if (fd_ < 0) return false;
    int64_t deadline_ms = MonotonicMs() + kLockTimeoutMs;
    while (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) return false;
      if (MonotonicMs() > deadline_ms) {
        errno = ETIMEDOUT;
        return false;
      }
      timespec pause = {0, 5'000'000};
      nanosleep(&pause, nullptr);
    }
    return true;
  }

 private:
  int fd_;
};

// A daemon holds its directory's own lock as long as it lives: one that ends unlinks its socket
// first, and one that starts may not listen yet. Waits until it is gone, or takes connections: then
// the fd, else -1.
int AwaitPredecessor(const std::string& directory) {
  int directory_fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_fd < 0) return -1;
  int64_t deadline_ms = MonotonicMs() + kPredecessorTimeoutMs;
  int fd = -1;
  while (flock(directory_fd, LOCK_EX | LOCK_NB) != 0) {
    fd = ConnectInstance(directory);
    // After the deadline the new daemon itself says that another one is in its way.
    if (fd >= 0 || MonotonicMs() > deadline_ms) break;
    timespec pause = {0, 2'000'000};
    nanosleep(&pause, nullptr);
  }
  flock(directory_fd, LOCK_UN);
  close(directory_fd);
  return fd;
}

void Explain(std::string* error, const std::string& what, int code) {
  if (error != nullptr) *error = what + ": " + ErrorText(code);
}

// One try. -1 and errno; EAGAIN when the daemon that was started ended again at once.
int ConnectOrStartOnce(const StartOptions& options, std::string* error) {
  const std::string& directory = options.directory;
  int fd = ConnectInstance(directory);
  if (fd >= 0) return fd;
  if (!NoneRuns(errno)) {
    int code = errno;
    Explain(error, "cannot connect to " + directory + "/sock", code);
    errno = code;
    return -1;
  }
  StartLock lock(directory);
  if (!lock.Take()) {
    int code = errno;
    Explain(error, "cannot lock " + directory + "/lock", code);
    errno = code;
    return -1;
  }
  fd = ConnectInstance(directory);  // another process may have started one while we waited
  if (fd >= 0) return fd;
  bool refused = errno == ECONNREFUSED;
  fd = AwaitPredecessor(directory);
  if (fd >= 0) return fd;
  if (refused) unlink((directory + "/sock").c_str());  // left by a daemon that was killed
  int code = StartDaemon(options, error);
  if (code != 0) {
    errno = code;
    return -1;
  }
  fd = ConnectInstance(directory);
  if (fd >= 0) return fd;
  code = NoneRuns(errno) ? EAGAIN : errno;
  Explain(error, "cannot connect to the daemon just started in " + directory, errno);
  errno = code;
  return -1;
}

int Join(const StartOptions& options, bool may_start, std::string* error) {
  if (may_start) return ConnectOrStart(options, error);
  int fd = ConnectInstance(options.directory);
  if (fd >= 0) return fd;
  int code = errno;
  Explain(error,
          NoneRuns(code) ? "no instance runs in " + options.directory
                         : "cannot connect to " + options.directory + "/sock",
          code);
  errno = code;
  return -1;
}

bool SendListHello(int fd) {
  shm::Hello hello = {};
  hello.magic = shm::kAbiMagic;
  hello.abi_version = shm::kAbiVersion;
  hello.kind = static_cast<uint32_t>(shm::HelloKind::kList);
  hello.pid = static_cast<uint32_t>(getpid());
  hello.netns = NetworkNamespaceInode();
  std::strncpy(hello.program, program_invocation_short_name, sizeof(hello.program) - 1);
  ssize_t sent;
  do {
    sent = send(fd, &hello, sizeof(hello), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof(hello));
}

int ReceiveList(int fd, std::vector<shm::NicInfo>* out) {
  if (!SendListHello(fd)) return errno == EPIPE ? ECONNRESET : errno;
  if (!AwaitInput(fd, MonotonicMs() + kReplyTimeoutMs)) return ETIMEDOUT;
  shm::ListReply reply;
  ssize_t received;
  do {
    received = recv(fd, &reply, sizeof(reply), 0);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return errno;
  if (received == 0) return ECONNRESET;
  auto bytes = static_cast<size_t>(received);
  if (bytes < offsetof(shm::ListReply, nics) || reply.magic != shm::kAbiMagic ||
      reply.abi_version != shm::kAbiVersion || reply.count > shm::kMaxNics ||
      bytes < offsetof(shm::ListReply, nics) + reply.count * sizeof(shm::NicInfo)) {
    return EPROTO;
  }
  out->assign(reply.nics, reply.nics + reply.count);
  for (shm::NicInfo& nic : *out) nic.name[shm::kNicNameBytes - 1] = '\0';
  return 0;
}

}  // namespace

uint64_t NetworkNamespaceInode() {
  struct statx info;
  return Stat(AT_FDCWD, "/proc/thread-self/ns/net", 0, &info) ? info.stx_ino : 0;
}

std::string InstanceDirectory(bool create) {
  const char* chosen = secure_getenv("VERBENA_INSTANCE");
  if (chosen == nullptr || chosen[0] == '\0') return DefaultDirectory(create);
  std::string directory = Absolute(chosen);
  if (directory.empty()) return {};
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  return (create ? MakeOwnDirectory(directory) : IsOwnDirectory(directory)) ? directory
                                                                            : std::string();
}

bool AutostartAllowed() {
  const char* value = secure_getenv("VERBENA_AUTOSTART");
  return value == nullptr || std::strcmp(value, "0") != 0;
}

int ConnectInstance(const std::string& directory) {
  std::string path = directory + "/sock";
  if (path.size() < sizeof(sockaddr_un::sun_path)) return Connect(path.c_str());
  // Too long for a socket address: by way of the directory's fd.
  int directory_fd = open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (directory_fd < 0) return -1;
  char by_fd[64];
  std::snprintf(by_fd, sizeof(by_fd), "/proc/self/fd/%d/sock", directory_fd);
  int fd = Connect(by_fd);
  int error = errno;
  close(directory_fd);
  errno = error;
  return fd;
}

int ConnectOrStart(const StartOptions& options, std::string* error) {
  int fd = -1;
  for (int i = 0; i < kAttempts; ++i) {
    fd = ConnectOrStartOnce(options, error);
    if (fd >= 0 || errno != EAGAIN) break;
  }
  return fd;
}

int ListNics(int fd, std::vector<shm::NicInfo>* out) {
  int error = OrNoMemory([&] { return ReceiveList(fd, out); });
  close(fd);
  return error;
}

int ListInstanceNics(const StartOptions& options, bool may_start, std::vector<shm::NicInfo>* out,
                     std::string* error) {
  int code = 0;
  for (int i = 0; i < kAttempts; ++i) {
    int fd = Join(options, may_start, error);
    if (fd < 0) return errno;
    code = ListNics(fd, out);
    if (code != ECONNRESET) break;
  }
  if (code != 0) Explain(error, "the daemon in " + options.directory + " listed no NICs", code);
  return code;
}

int OpenSession(const StartOptions& options, bool may_start, uint32_t nic, Session** out,
                std::string* error) {
  *out = nullptr;
  int code = 0;
  for (int i = 0; i < kAttempts; ++i) {
    int fd = Join(options, may_start, error);
    if (fd < 0) return errno;
    code = Session::Open(fd, nic, out);
    if (code != ECONNRESET) break;
  }
  if (code != 0) {
    Explain(error,
            "the daemon in " + options.directory + " did not open NIC " + std::to_string(nic),
            code);
  }
  return code;
}

}  // namespace verbena::client
