#include "core/client/payload.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/client/maps_reader.h"
#include "core/client/memory_flags.h"
#include "core/client/no_cancel.h"
#include "core/client/process_traits.h"
#include "core/client/scoped_lock.h"
#include "core/client/session.h"
#include "core/shm/attach.h"

namespace verbena::client {
namespace {

constexpr uintptr_t kPageBytes = 4096;
// Each conversion may cost the program two of the 65 530 mappings the kernel allows it, and all
// conversions together make it slower to look at them. Small regions gain little.
constexpr uint32_t kLiveSlotsMax = 1024;
constexpr uint32_t kLiveSlotsForSmallMax = 64;
constexpr size_t kSmallBytes = 64 * 1024;
// Who wants all shared gets it in blocks of this size: ten thousand small regions have neighbours.
// Not beside other threads, which may be writing to the rest of a block: what they write between
// the copy and the mapping is lost.
constexpr uintptr_t kForcedBlockBytes = 2 << 20;

// Where a slot was mapped when it was converted; the program may have moved it since.
struct SlotPlace {
  uintptr_t begin = 0, end = 0;
  uint32_t slot = 0;
};

}  // namespace

struct PayloadFile {
  PayloadFile* next = nullptr;
  uint64_t id = 0;
  int fd = -1;
  uint64_t device = 0, inode = 0;  // who closes all fds must not make us write to what came after
  uint32_t sessions = 0;
  uint32_t slots = 0;       // used so far; each is used once
  uint32_t live_slots = 0;  // ... and was mapped when last seen
  SlotPlace places[kLiveSlotsMax];
  uint64_t slots_seen[shm::kPayloadSlots / 64] = {};  // in the scan under way, a bit each
};

namespace {

// Parts of a range that differ in what they are.
constexpr uint32_t kPartsMax = 64;

pthread_mutex_t payload_lock = PTHREAD_MUTEX_INITIALIZER;
PayloadFile* files = nullptr;           // never freed: what was converted stays
Registration* registrations = nullptr;  // with bytes that are not shared
bool has_fork_handlers = false;
bool has_malloc_of_libc = false;
int fork_pipe[2] = {-1, -1};

// --- what is where -------------------------------------------------------------------------------

struct Part {
  uintptr_t begin, end;
  bool is_shared;  // in the file, at `offset`
  bool is_convertible;
  uint64_t offset;
};

struct Scan {
  ForkCode fork_code;
  Part parts[kPartsMax];
  uint32_t count = 0;
  bool has_aio = false;  // the kernel may be writing to any page
  bool is_whole = false;
};

PayloadFile* FileOf(const Mapping& mapping) {
  if (!mapping.is_shared || mapping.inode == 0) return nullptr;
  PayloadFile* file = files;
  while (file != nullptr && (file->inode != mapping.inode || file->device != mapping.device)) {
    file = file->next;
  }
  return file;
}

// Private memory without a file, or what an ended connection to a daemon has left.
bool IsConvertible(const Mapping& mapping, const PayloadFile* owner) {
  if (!mapping.is_readable || !mapping.is_writable || mapping.is_executable) return false;
  if (owner != nullptr) return owner->sessions == 0;
  const bool is_anonymous = mapping.inode == 0 && mapping.device == 0 && !mapping.is_shared;
  // The copier runs on a stack; other names are the kernel's ([vvar], [uprobes]).
  return is_anonymous && (mapping.name[0] == '\0' || std::strcmp(mapping.name, "[heap]") == 0 ||
                          std::strncmp(mapping.name, "[anon:", 6) == 0);
}

void AddPart(Scan* scan, const Part& part) {
  Part* last = scan->count == 0 ? nullptr : &scan->parts[scan->count - 1];
  if (last != nullptr && last->end == part.begin && !last->is_shared && !part.is_shared &&
      last->is_convertible == part.is_convertible) {
    last->end = part.end;
  } else if (scan->count < kPartsMax) {
    scan->parts[scan->count++] = part;
  }
}

// Without what a child writes to while it still shares it.
void AddConvertible(Scan* scan, Part part) {
  while (part.begin < part.end) {
    const Range* next = nullptr;
    for (uint32_t i = 0; i < scan->fork_code.count; ++i) {
      const Range& range = scan->fork_code.ranges[i];
      if (range.begin < part.end && part.begin < range.end &&
          (next == nullptr || range.begin < next->begin)) {
        next = &range;
      }
    }
    Part head = part;
    if (next != nullptr) head.end = std::max(part.begin, next->begin);
    if (head.begin < head.end) AddPart(scan, head);
    if (next == nullptr) return;
    Part held = part;
    held.begin = head.end;
    held.end = std::min(part.end, next->end);
    held.is_convertible = false;
    AddPart(scan, held);
    part.begin = held.end;
  }
}

// What is shared already counts to its last byte; what may be converted, in [begin, end).
void ScanMappings(PayloadFile* file, const Registration& range, uintptr_t begin, uintptr_t end,
                  Scan* scan) {
  MapsReader maps;
  if (!maps.IsOpen()) return;
  std::memset(file->slots_seen, 0, sizeof(file->slots_seen));
  Mapping mapping;
  while (maps.Next(&mapping)) {
    PayloadFile* owner = FileOf(mapping);
    if (owner == file) {
      const uint64_t slot = mapping.offset / shm::kPayloadSlotBytes;
      file->slots_seen[slot / 64] |= 1ull << slot % 64;
    }
    if (std::strncmp(mapping.name, "/[aio]", 6) == 0) scan->has_aio = true;
    const bool is_shared = owner == file && mapping.is_readable && mapping.is_writable;
    const uintptr_t from = std::max(mapping.begin, is_shared ? range.begin : begin);
    const uintptr_t to = std::min(mapping.end, is_shared ? range.end : end);
    if (from >= to) continue;
    const Part part = {from, to, is_shared, owner != file && IsConvertible(mapping, owner),
                       mapping.offset + (from - mapping.begin)};
    if (part.is_convertible) {
      AddConvertible(scan, part);
    } else {
      AddPart(scan, part);
    }
  }
  scan->is_whole = maps.IsAtEnd();  // what was not seen is taken for unmapped
}

void PunchSlot(const PayloadFile& file, uint32_t slot) {
  fallocate(file.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(slot * shm::kPayloadSlotBytes),
            static_cast<off_t>(shm::kPayloadSlotBytes));
}

// Gives back what the program has unmapped. Only while no other thread can move a mapping about.
void CollectSlots(PayloadFile* file) {
  for (uint32_t i = file->live_slots; i-- > 0;) {
    const uint32_t slot = file->places[i].slot;
    if ((file->slots_seen[slot / 64] >> slot % 64 & 1) != 0) continue;
    PunchSlot(*file, slot);
    file->places[i] = file->places[--file->live_slots];
  }
}

// Whether any of the range was converted where it is. What the program has moved is not found: it
// is then reached as memory that is not shared.
bool MayBeShared(const PayloadFile& file, uintptr_t begin, uintptr_t end) {
  return std::any_of(file.places, file.places + file.live_slots, [&](const SlotPlace& place) {
    return place.begin < end && begin < place.end;
  });
}

// --- conversion ----------------------------------------------------------------------------------

// statx(2), as fstat(2) would need a newer libc than some hosts have.
bool Identify(int fd, uint64_t* device, uint64_t* inode, uint64_t* bytes) {
  struct statx status;
  if (statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_SIZE, &status) != 0) return false;
  *device = uint64_t{status.stx_dev_major} << 20 | status.stx_dev_minor;
  *inode = status.stx_ino;
  *bytes = status.stx_size;
  return true;
}

bool IsOurs(const PayloadFile& file) {
  uint64_t device, inode, bytes;
  return Identify(file.fd, &device, &inode, &bytes) && device == file.device && inode == file.inode;
}

// By the kernel's call, not libc's: sanitizers' would object to the padding of the program's
// blocks.
bool WriteAll(int fd, uint64_t offset, const void* from, size_t bytes) {
  const char* next = static_cast<const char*>(from);
  while (bytes != 0) {
    long n = syscall(SYS_pwrite64, fd, next, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    next += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

// By the kernel's calls, too: programs that keep an eye on their mappings (UCX's cache of
// registrations hooks libc's) would deregister what they find mapped over, while we hold a lock.
// Nothing they could notice has happened.
void* Map(void* at, size_t bytes, int protection, int flags, int fd, uint64_t offset) {
  return reinterpret_cast<void*>(
      syscall(SYS_mmap, at, bytes, protection, flags, fd, static_cast<off_t>(offset)));
}
void Unmap(void* at, size_t bytes) { syscall(SYS_munmap, at, bytes); }
void Protect(void* at, size_t bytes, int protection) {
  syscall(SYS_mprotect, at, bytes, protection);
}

// Likewise without memcpy. Precondition: whole pages.
void CopyPages(void* to, const void* from, size_t bytes) {
  using Words = uint64_t __attribute__((vector_size(32), may_alias));
  auto* out = static_cast<volatile Words*>(to);
  const auto* in = static_cast<const volatile Words*>(from);
  for (size_t i = 0; i < bytes / sizeof(Words); ++i) out[i] = in[i];
}

// A program may be forbidden files of such size (ulimit -f): writing would be its death by SIGXFSZ.
bool CopyByMapping(int fd, uint64_t offset, const void* from, size_t bytes) {
  void* to = Map(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
  if (to == MAP_FAILED) return false;
  CopyPages(to, from, bytes);
  Unmap(to, bytes);
  return true;
}

bool CopyIn(int fd, uint64_t offset, const void* from, size_t bytes) {
  rlimit limit;
  const bool is_limited = getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
  return is_limited ? CopyByMapping(fd, offset, from, bytes) : WriteAll(fd, offset, from, bytes);
}

// No handler may run between the copy and the mapping: what it wrote would be lost.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    const uint64_t all = ~uint64_t{0};
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &saved_, sizeof(saved_));
  }
  ~AllSignalsBlocked() {
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &saved_, nullptr, sizeof(saved_));
  }

 private:
  uint64_t saved_ = 0;  // as the kernel has it
};

bool Convert(PayloadFile* file, Part* part) {
  const size_t bytes = part->end - part->begin;
  if (file->slots == shm::kPayloadSlots || file->live_slots == kLiveSlotsMax ||
      bytes > shm::kPayloadSlotBytes / 2) {
    return false;
  }
  const uint32_t slot = file->slots++;
  const uint64_t offset = slot * shm::kPayloadSlotBytes;
  void* at = reinterpret_cast<void*>(part->begin);
  bool is_done = false;
  {
    AllSignalsBlocked blocked;
    is_done = CopyIn(file->fd, offset, at, bytes) &&
              Map(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file->fd, offset) !=
                  MAP_FAILED;
  }
  if (!is_done) {
    PunchSlot(*file, slot);
    return false;
  }
  file->places[file->live_slots++] = {part->begin, part->end, slot};
  part->is_shared = true;
  part->is_convertible = false;
  part->offset = offset;
  return true;
}

bool IsInUse(const Part& part) {
  for (const Registration* r = registrations; r != nullptr; r = r->next) {
    if (r->begin < part.end && part.begin < r->end) return true;
  }
  return false;
}

// What a new mapping would not be like is not to be converted. False: it can't be told.
bool KeepPlain(Scan* scan) {
  JudgedRange ranges[kPartsMax];
  uint32_t count = 0;
  for (uint32_t i = 0; i < scan->count; ++i) {
    ranges[count].begin = scan->parts[i].begin;
    ranges[count].end = scan->parts[i].end;
    count += scan->parts[i].is_convertible ? 1 : 0;
  }
  if (!JudgeRanges(ranges, count)) return false;
  for (uint32_t i = 0, k = 0; i < scan->count; ++i) {
    if (scan->parts[i].is_convertible) scan->parts[i].is_convertible = ranges[k++].is_plain;
  }
  return true;
}

// The bytes of the mapping of its own that malloc has from here on: the word before a block says
// so. 0: it has none. A word of the program's that looks alike does no harm.
__attribute__((no_sanitize("address"))) uintptr_t BlockBytes(uintptr_t page) {
  constexpr uint64_t kFlags = 7, kIsMapped = 2;
  const auto* words = reinterpret_cast<const volatile uint64_t*>(page);
  const uint64_t size = words[1];
  const bool begins = (size & kFlags) == kIsMapped && size > kPageBytes &&
                      (size & ~kFlags) % kPageBytes == 0 && words[0] < kPageBytes;
  return begins ? size & ~kFlags : 0;
}

// Each block goes to a slot of its own, without what follows it: realloc enlarges its mapping, and
// would find in the file what is there. False: there are too many.
bool SplitAtBlock(Scan* scan, uint32_t index) {
  const Part part = scan->parts[index];
  const uintptr_t block_end = part.begin + BlockBytes(part.begin);
  uintptr_t page = part.begin + kPageBytes;
  while (page < part.end && page != block_end && BlockBytes(page) == 0) page += kPageBytes;
  if (page >= part.end) return true;
  if (scan->count == kPartsMax) return false;
  std::copy_backward(scan->parts + index, scan->parts + scan->count, scan->parts + scan->count + 1);
  ++scan->count;
  scan->parts[index].end = page;
  scan->parts[index + 1].begin = page;
  scan->parts[index + 1].offset += page - part.begin;
  return true;
}

void ConvertParts(PayloadFile* file, Sharing sharing, Scan* scan) {
  const bool is_any_convertible = std::any_of(scan->parts, scan->parts + scan->count,
                                              [](const Part& part) { return part.is_convertible; });
  if (!is_any_convertible) return;
  const bool is_bound = scan->has_aio || HasPinnedPages() || HasLockedPages();
  if (sharing == Sharing::kWhereSafe && (is_bound || !KeepPlain(scan))) return;
  for (uint32_t i = 0; i < scan->count; ++i) {
    Part& part = scan->parts[i];
    if (part.is_convertible && !IsInUse(part) && SplitAtBlock(scan, i)) Convert(file, &part);
  }
}

// --- fork ----------------------------------------------------------------------------------------

bool HasConverted() {
  for (const PayloadFile* file = files; file != nullptr; file = file->next) {
    if (file->live_slots != 0) return true;
  }
  return false;
}

// The parent goes on when the child has its copy: the child's end of the pipe closes then, or when
// it dies.
void BeforeFork() {
  pthread_mutex_lock(&payload_lock);
  if (HasConverted() && pipe2(fork_pipe, O_CLOEXEC) != 0) fork_pipe[0] = fork_pipe[1] = -1;
}

void AfterForkInParent() {
  NoCancel no_cancel;
  if (fork_pipe[0] >= 0) {
    int saved = errno;
    close(fork_pipe[1]);
    char byte;
    while (read(fork_pipe[0], &byte, 1) < 0 && errno == EINTR) {
    }
    close(fork_pipe[0]);
    fork_pipe[0] = fork_pipe[1] = -1;
    errno = saved;
  }
  pthread_mutex_unlock(&payload_lock);
}

// In a child: private memory with the same contents, where it is.
void MakePrivate(const Mapping& mapping) {
  const size_t bytes = mapping.end - mapping.begin;
  void* at = reinterpret_cast<void*>(mapping.begin);
  const int protection = (mapping.is_readable ? PROT_READ : 0) |
                         (mapping.is_writable ? PROT_WRITE : 0) |
                         (mapping.is_executable ? PROT_EXEC : 0);
  if (!mapping.is_readable) Protect(at, bytes, PROT_READ);
  void* copy = Map(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy != MAP_FAILED) {
    CopyPages(copy, at, bytes);
    Protect(copy, bytes, protection);
    if (syscall(SYS_mremap, copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != -1) return;
    Unmap(copy, bytes);
  }
  // No memory for a copy: at least what this process writes is its own.
  const PayloadFile* file = FileOf(mapping);
  Map(at, bytes, protection, MAP_PRIVATE | MAP_FIXED, file->fd, mapping.offset);
}

// Only async-signal-safe calls: the parent may have other threads.
void AfterForkInChild() {
  NoCancel no_cancel;
  int saved = errno;
  if (HasConverted()) {
    // Reading on while mappings change: each line is of its moment, and what was made private is
    // not shared any more.
    MapsReader maps;
    Mapping mapping;
    while (maps.IsOpen() && maps.Next(&mapping)) {
      if (FileOf(mapping) != nullptr) MakePrivate(mapping);
    }
  }
  for (PayloadFile* file = files; file != nullptr; file = file->next) {
    if (file->fd >= 0 && IsOurs(*file)) close(file->fd);
  }
  files = nullptr;
  registrations = nullptr;
  for (int& fd : fork_pipe) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
  errno = saved;
  pthread_mutex_init(&payload_lock, nullptr);
}

// As the library is loaded: handlers that are registered later, our sessions' and the program's,
// run in a child whose memory is its own.
__attribute__((constructor)) void OnLoad() {
  has_malloc_of_libc = HasMallocOfLibc();
  has_fork_handlers = pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild) == 0;
}

void Link(Registration* registration) {
  registration->previous = nullptr;
  registration->next = registrations;
  if (registrations != nullptr) registrations->previous = registration;
  registrations = registration;
  registration->is_held = true;
}

// The part of a piece within [begin, end).
void AddPiece(const Part& part, uintptr_t begin, uintptr_t end, shm::RegMrRequest* request) {
  const uintptr_t from = std::max(part.begin, begin), to = std::min(part.end, end);
  if (!part.is_shared || from >= to || request->piece_count == shm::kMappedPiecesMax) return;
  request->pieces[request->piece_count++] = {from, to - from, part.offset + (from - part.begin)};
}

}  // namespace

Registration::~Registration() {
  if (!is_held) return;
  ScopedLock lock(&payload_lock);
  if (previous != nullptr) previous->next = next;
  if (next != nullptr) next->previous = previous;
  if (registrations == this) registrations = next;
}

bool internal::MayConvert() { return has_malloc_of_libc && IsSingleThreaded(); }

int internal::AdoptPayload(uint64_t id, int fd, PayloadFile** out) {
  auto* file = new (std::nothrow) PayloadFile();
  uint64_t bytes = 0;
  if (file == nullptr || !Identify(fd, &file->device, &file->inode, &bytes) ||
      bytes != shm::kPayloadFileBytes) {
    close(fd);
    delete file;
    return file == nullptr ? ENOMEM : EPROTO;
  }
  file->id = id;
  file->fd = fd;
  file->sessions = 1;
  ScopedLock lock(&payload_lock);
  if (!has_fork_handlers) {
    // A child would write to its parent's memory: rather nothing is shared.
    close(fd);
    delete file;
    return ENOMEM;
  }
  file->next = files;
  files = file;
  *out = file;
  return 0;
}

PayloadFile* internal::FindPayload(uint64_t id) {
  ScopedLock lock(&payload_lock);
  PayloadFile* file = files;
  while (file != nullptr && (file->id != id || file->sessions == 0)) file = file->next;
  if (file != nullptr) ++file->sessions;
  return file;
}

void internal::ReleasePayload(PayloadFile* file) {
  ScopedLock lock(&payload_lock);
  --file->sessions;
}

uint32_t internal::KnownPayloads(uint64_t* ids, uint32_t max) {
  ScopedLock lock(&payload_lock);
  uint32_t count = 0;
  for (PayloadFile* file = files; file != nullptr && count < max; file = file->next) {
    if (file->sessions != 0) ids[count++] = file->id;
  }
  return count;
}

int internal::ShareRange(PayloadFile* file, Sharing sharing, Registration* registration,
                         shm::RegMrRequest* request) {
  const bool is_forced = sharing == Sharing::kAll;
  const uintptr_t from = request->addr, to = request->addr + request->length;
  const uintptr_t block = is_forced && IsSingleThreaded() ? kForcedBlockBytes : kPageBytes;
  const uintptr_t begin = (is_forced ? from : from + block - 1) & ~(block - 1);
  const uintptr_t end = (is_forced ? to + block - 1 : to) & ~(block - 1);
  const uint32_t slots_max =
      is_forced || request->length >= kSmallBytes ? kLiveSlotsMax : kLiveSlotsForSmallMax;
  request->piece_count = 0;
  request->payload = file == nullptr ? 0 : file->id;
  registration->begin = from;
  registration->end = to;
  Scan scan;
  FindForkCode(&scan.fork_code);  // before the lock: the loader's is taken there
  ScopedLock lock(&payload_lock);
  // Slots that are full may be those of memory that is gone: one look tells.
  const bool may_convert = file != nullptr && begin < end && file->live_slots <= slots_max &&
                           (is_forced || MayConvert());
  if ((may_convert || (file != nullptr && MayBeShared(*file, from, to))) && IsOurs(*file)) {
    ScanMappings(file, *registration, begin, end, &scan);
    if (may_convert) {
      if (scan.is_whole && IsSingleThreaded()) CollectSlots(file);
      if (file->live_slots < slots_max) ConvertParts(file, sharing, &scan);
    }
    for (uint32_t i = 0; i < scan.count; ++i) AddPiece(scan.parts[i], from, to, request);
  }
  uint64_t shared_bytes = 0;
  for (uint32_t i = 0; i < request->piece_count; ++i) shared_bytes += request->pieces[i].bytes;
  if (shared_bytes == request->length) return 0;
  if (is_forced) return EOPNOTSUPP;
  Link(registration);
  return 0;
}

int ShareForRegistration(Session* session, Sharing sharing, Registration* registration,
                         shm::RegMrRequest* request) {
  PayloadFile* file = nullptr;
  int error = session->OpenPayload(&file);
  if (error != 0 && sharing == Sharing::kAll) return error;
  return internal::ShareRange(file, sharing, registration, request);
}

}  // namespace verbena::client
