#include "tools/cli/elf_check.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdint>
#include <string_view>

namespace verbena::cli {
namespace {

// A read-only view of a file; reads outside it fail instead of faulting.
class FileView {
 public:
  explicit FileView(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    struct stat st;
    if (::fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
      void* base = ::mmap(nullptr, static_cast<size_t>(st.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
      if (base != MAP_FAILED) {
        base_ = static_cast<const char*>(base);
        size_ = static_cast<size_t>(st.st_size);
      }
    }
    ::close(fd);
  }
  ~FileView() {
    if (base_ != nullptr) ::munmap(const_cast<char*>(base_), size_);
  }
  FileView(const FileView&) = delete;
  FileView& operator=(const FileView&) = delete;

  template <typename T>
  bool Read(uint64_t offset, T* out) const {
    if (base_ == nullptr || offset > size_ || size_ - offset < sizeof(T)) return false;
    memcpy(out, base_ + offset, sizeof(T));
    return true;
  }
  std::string String(uint64_t offset) const {
    if (base_ == nullptr || offset >= size_) return "";
    return std::string(base_ + offset, strnlen(base_ + offset, size_ - offset));
  }

 private:
  const char* base_ = nullptr;
  size_t size_ = 0;
};

// The file offset of a virtual address, by the loadable segment that holds it.
bool FileOffset(const std::vector<Elf64_Phdr>& segments, uint64_t address, uint64_t* offset) {
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
        address - segment.p_vaddr < segment.p_filesz) {
      *offset = segment.p_offset + (address - segment.p_vaddr);
      return true;
    }
  }
  return false;
}

void ReadDynamic(const FileView& file, const std::vector<Elf64_Phdr>& segments,
                 const Elf64_Phdr& dynamic, ElfFacts* facts) {
  std::vector<Elf64_Dyn> entries;
  uint64_t strings = 0;
  for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= dynamic.p_filesz; at += sizeof(Elf64_Dyn)) {
    Elf64_Dyn entry;
    if (!file.Read(dynamic.p_offset + at, &entry) || entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_STRTAB && !FileOffset(segments, entry.d_un.d_ptr, &strings)) return;
    entries.push_back(entry);
  }
  if (strings == 0) return;
  for (const Elf64_Dyn& entry : entries) {
    const auto text = [&] { return file.String(strings + entry.d_un.d_val); };
    if (entry.d_tag == DT_NEEDED) facts->needed.push_back(text());
    if (entry.d_tag == DT_RPATH) facts->rpath = text();
    if (entry.d_tag == DT_RUNPATH) facts->runpath = text();
  }
}

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= list.size()) {
    const size_t end = std::min(list.find(':', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string RealPath(const std::string& path) {
  char resolved[PATH_MAX];
  return ::realpath(path.c_str(), resolved) != nullptr ? resolved : "";
}

std::string ExpandOrigin(std::string directory, const std::string& program) {
  const std::string real = RealPath(program);
  const std::string origin = real.substr(0, real.rfind('/'));
  for (const std::string_view token : {"${ORIGIN}", "$ORIGIN"}) {
    for (size_t at = 0; (at = directory.find(token, at)) != std::string::npos;) {
      directory.replace(at, token.size(), origin);
      at += origin.size();
    }
  }
  return directory;
}

// The libibverbs that the program's DT_RPATH finds before ours, or empty.
std::string ForeignLibrary(const std::string& program, const ElfFacts& facts,
                           const std::string& library_dir) {
  // The dynamic linker ignores DT_RPATH where DT_RUNPATH stands beside it.
  if (facts.rpath.empty() || !facts.runpath.empty()) return "";
  const std::string ours = RealPath(library_dir + "/libibverbs.so.1");
  for (const std::string& part : Split(facts.rpath)) {
    const std::string candidate = ExpandOrigin(part, program) + "/libibverbs.so.1";
    const std::string real = RealPath(candidate);
    if (real.empty()) continue;
    return real == ours ? "" : candidate;
  }
  return "";
}

// Whether the kernel would start it with raised privileges, where LD_LIBRARY_PATH is ignored.
bool GainsPrivileges(const std::string& program) {
  struct stat st;
  if (::stat(program.c_str(), &st) != 0) return false;
  if ((st.st_mode & S_ISUID) != 0 && st.st_uid != ::geteuid()) return true;
  if ((st.st_mode & S_ISGID) != 0 && st.st_gid != ::getegid()) return true;
  return ::geteuid() != 0 && ::getxattr(program.c_str(), "security.capability", nullptr, 0) > 0;
}

}  // namespace

ElfFacts ReadElf(const std::string& path) {
  ElfFacts facts;
  const FileView file(path);
  Elf64_Ehdr header;
  unsigned char ident[EI_NIDENT];
  if (!file.Read(0, &ident) || memcmp(ident, ELFMAG, SELFMAG) != 0) return facts;
  facts.is_elf = true;
  facts.is_64_bit = ident[EI_CLASS] == ELFCLASS64;
  if (!facts.is_64_bit || !file.Read(0, &header) || header.e_phentsize != sizeof(Elf64_Phdr)) {
    return facts;
  }
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  for (size_t i = 0; i < segments.size(); ++i) {
    if (!file.Read(header.e_phoff + i * sizeof(Elf64_Phdr), &segments[i])) return facts;
  }
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type == PT_INTERP) facts.is_dynamic = true;
    if (segment.p_type == PT_DYNAMIC) ReadDynamic(file, segments, segment, &facts);
  }
  return facts;
}

std::string FindProgram(const std::string& name, const std::string& path_list) {
  std::vector<std::string> candidates;
  if (name.find('/') != std::string::npos) {
    candidates.push_back(name);
  } else if (!name.empty()) {
    for (const std::string& part : Split(path_list)) {
      candidates.push_back((part.empty() ? "." : part) + "/" + name);
    }
  }
  int error = ENOENT;
  for (const std::string& candidate : candidates) {
    struct stat st;
    if (::stat(candidate.c_str(), &st) != 0) continue;
    if (S_ISREG(st.st_mode) && ::access(candidate.c_str(), X_OK) == 0) return candidate;
    error = EACCES;
  }
  errno = error;
  return "";
}

std::string LibraryWarning(const std::string& program, const std::string& library_dir) {
  const ElfFacts facts = ReadElf(program);
  if (GainsPrivileges(program)) {
    return program +
           " is setuid, setgid or has file capabilities, so the system ignores LD_LIBRARY_PATH and "
           "it does not use Verbena; run a copy without those bits.";
  }
  if (!facts.is_elf) return "";
  if (!facts.is_64_bit) {
    return program +
           " is a 32-bit program; Verbena's libraries are 64-bit, so it does not use them.";
  }
  if (!facts.is_dynamic) {
    return program +
           " is statically linked, so it does not use Verbena's libibverbs itself (programs that "
           "it "
           "starts do); link it dynamically.";
  }
  const std::string foreign = ForeignLibrary(program, facts, library_dir);
  if (!foreign.empty()) {
    return program + " carries a DT_RPATH that leads to " + foreign +
           ", which it uses instead of Verbena; remove it with `patchelf --remove-rpath`.";
  }
  return "";
}

}  // namespace verbena::cli
