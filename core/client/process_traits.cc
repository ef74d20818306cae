#include "core/client/process_traits.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace verbena::client {
namespace {

// As getdents64(2) has it; libc's readdir allocates.
struct DirectoryEntry {
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[];
};

bool IsIoUring(int directory, const char* name) {
  char target[64];
  ssize_t n = readlinkat(directory, name, target, sizeof(target) - 1);
  if (n < 0) return false;
  target[n] = '\0';
  return std::strcmp(target, "anon_inode:[io_uring]") == 0;
}

constexpr uintptr_t kPageBytes = 4096;
// libc's record of a thread, at its pointer.
constexpr uintptr_t kThreadRecordBytes = 2304;

void AddPages(ForkCode* code, uintptr_t begin, uintptr_t bytes) {
  if (code->count == std::size(code->ranges) || bytes == 0) return;
  code->ranges[code->count++] = {begin & ~(kPageBytes - 1),
                                 (begin + bytes + kPageBytes - 1) & ~(kPageBytes - 1)};
}

bool Holds(const dl_phdr_info& info, uintptr_t address) {
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info.dlpi_phdr[i];
    if (part.p_type == PT_LOAD && address - (info.dlpi_addr + part.p_vaddr) < part.p_memsz) {
      return true;
    }
  }
  return false;
}

bool IsNamed(const dl_phdr_info& info, const char* beginning) {
  if (info.dlpi_name == nullptr) return false;
  const char* slash = std::strrchr(info.dlpi_name, '/');
  const char* name = slash != nullptr ? slash + 1 : info.dlpi_name;
  return std::strncmp(name, beginning, std::strlen(beginning)) == 0;
}

uint32_t GnuHash(const char* name) {
  uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

// Whether others find that function there.
bool Defines(const dl_phdr_info& info, const char* name) {
  const ElfW(Dyn)* entry = nullptr;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    if (info.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    entry = reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
  }
  const uint32_t* table = nullptr;
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  for (; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
    // The loader has made addresses of them, except of the kernel's own library.
    uintptr_t at = entry->d_un.d_ptr;
    if (at < info.dlpi_addr) at += info.dlpi_addr;
    if (entry->d_tag == DT_GNU_HASH) table = reinterpret_cast<const uint32_t*>(at);
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(at);
    if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(at);
  }
  if (table == nullptr || symbols == nullptr || names == nullptr || table[0] == 0) return false;
  const uint32_t bucket_count = table[0], first_symbol = table[1], filter_words = table[2];
  const uint32_t* buckets = table + 4 + filter_words * (sizeof(uintptr_t) / sizeof(uint32_t));
  const uint32_t* hashes = buckets + bucket_count;
  const uint32_t wanted = GnuHash(name);
  uint32_t i = buckets[wanted % bucket_count];
  if (i < first_symbol) return false;
  for (;; ++i) {
    const uint32_t hash = hashes[i - first_symbol];
    if ((hash | 1) == (wanted | 1) && std::strcmp(names + symbols[i].st_name, name) == 0) {
      return symbols[i].st_shndx != SHN_UNDEF;
    }
    if ((hash & 1) != 0) return false;
  }
}

}  // namespace

bool IsSingleThreaded() {
  // A directory's links: itself, its name, and one for each directory in it.
  struct statx status;
  return statx(AT_FDCWD, "/proc/self/task", 0, STATX_NLINK, &status) == 0 && status.stx_nlink == 3;
}

// The first that defines malloc is everybody's: the program, if one is linked into it, or what was
// preloaded. Not by its address, which is the program's if that is no PIE.
bool HasMallocOfLibc() {
#if defined(__SANITIZE_ADDRESS__)
  return true;  // its own does not take memory for zeroed
#endif
  bool is_libc = false;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        if (!Defines(*info, "malloc")) return 0;
        *static_cast<bool*>(out) = IsNamed(*info, "libc.so");
        return 1;
      },
      &is_libc);
  return is_libc;
}

void FindForkCode(ForkCode* out) {
  out->count = 0;
  AddPages(out, reinterpret_cast<uintptr_t>(__builtin_thread_pointer()), kThreadRecordBytes);
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t bytes, void* found) {
        const bool is_own = Holds(*info, reinterpret_cast<uintptr_t>(&FindForkCode));
        if (!is_own && !IsNamed(*info, "libc.so") && !IsNamed(*info, "ld-linux")) return 0;
        auto* code = static_cast<ForkCode*>(found);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& part = info->dlpi_phdr[i];
          if (part.p_type == PT_LOAD && (part.p_flags & PF_W) != 0) {
            AddPages(code, info->dlpi_addr + part.p_vaddr, part.p_memsz);
          } else if (part.p_type == PT_TLS && bytes >= sizeof(*info)) {
            AddPages(code, reinterpret_cast<uintptr_t>(info->dlpi_tls_data), part.p_memsz);
          }
        }
        return 0;
      },
      out);
}

bool HasPinnedPages() {
  int directory = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return true;
  alignas(DirectoryEntry) char buffer[2048];
  bool found = false;
  for (;;) {
    long n = syscall(SYS_getdents64, directory, buffer, sizeof(buffer));
    if (n <= 0) {
      found = found || n < 0;
      break;
    }
    for (long at = 0; at < n && !found;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(buffer + at);
      found = IsIoUring(directory, entry->name);
      at += entry->length;
    }
    if (found) break;
  }
  close(directory);
  return found;
}

bool HasLockedPages() {
  int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;
  char text[4096];
  ssize_t n = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (n <= 0) return true;
  text[n] = '\0';
  const char* line = std::strstr(text, "\nVmLck:");
  if (line == nullptr) return true;
  for (line += 7; *line == ' ' || *line == '\t';) ++line;
  return *line != '0';
}

}  // namespace verbena::client
