// Whether a program will load Verbena's libibverbs: what its ELF file and mode bits say.
//
// The dynamic linker ignores LD_LIBRARY_PATH for static and for privileged programs, and a DT_RPATH
// (without DT_RUNPATH) is searched before it; such programs would silently use another library.
#pragma once

#include <string>
#include <vector>

namespace verbena::cli {

struct ElfFacts {
  bool is_elf = false;
  bool is_64_bit = false;
  bool is_dynamic = false;  // names an interpreter
  std::string rpath;        // DT_RPATH
  std::string runpath;      // DT_RUNPATH: searched after LD_LIBRARY_PATH, so harmless
  std::vector<std::string> needed;
};

// Reads an ELF file's program headers and dynamic section. Every offset is checked: the file may be
// anything. `is_elf` is false for scripts and unreadable files.
ElfFacts ReadElf(const std::string& path);

// The file that `name` means to a shell: itself if it has a slash, else found along `path_list`.
// Empty with errno ENOENT (none) or EACCES (found, but not executable).
std::string FindProgram(const std::string& name, const std::string& path_list);

// One sentence saying why `program` will not use `library_dir`/libibverbs.so.1, or empty.
std::string LibraryWarning(const std::string& program, const std::string& library_dir);

}  // namespace verbena::cli
