#include "fi_shim/host.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cstdint>

namespace verbena::fi {
namespace {

using EnabledFunction = int (*)(const fi_provider*, fi_log_level, fi_log_subsys);
using LogFunction = void (*)(const fi_provider*, fi_log_level, fi_log_subsys, const char*, int,
                             const char*, ...);
EnabledFunction g_enabled = nullptr;
LogFunction g_log = nullptr;

// The symbols of a loaded object.
struct Symbols {
  uintptr_t base = 0;
  const ElfW(Sym) * table = nullptr;
  const char* names = nullptr;
  const uint32_t* gnu_hash = nullptr;
};

uint32_t GnuHash(const char* name) {
  uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

void* Find(const Symbols& symbols, const char* name) {
  const uint32_t buckets = symbols.gnu_hash[0], first = symbols.gnu_hash[1];
  const uint32_t bloom_words = symbols.gnu_hash[2];
  const uint32_t* bucket = symbols.gnu_hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
  const uint32_t* chain = bucket + buckets;
  const uint32_t hash = GnuHash(name);
  if (buckets == 0) return nullptr;
  uint32_t index = bucket[hash % buckets];
  if (index < first) return nullptr;
  for (;; ++index) {
    const uint32_t entry = chain[index - first];
    const ElfW(Sym)& symbol = symbols.table[index];
    if ((entry | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF &&
        strcmp(symbols.names + symbol.st_name, name) == 0) {
      return reinterpret_cast<void*>(symbols.base + symbol.st_value);
    }
    if ((entry & 1) != 0) return nullptr;
  }
}

struct Search {
  uintptr_t code;
  Symbols symbols;
};

// glibc has made the pointers of a dynamic section absolute.
void ReadDynamic(const ElfW(Dyn) * dynamic, Symbols* out) {
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    const uintptr_t at = dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_SYMTAB) out->table = reinterpret_cast<const ElfW(Sym)*>(at);
    if (dynamic->d_tag == DT_STRTAB) out->names = reinterpret_cast<const char*>(at);
    if (dynamic->d_tag == DT_GNU_HASH) out->gnu_hash = reinterpret_cast<const uint32_t*>(at);
  }
}

int Visit(dl_phdr_info* info, size_t, void* argument) {
  auto* search = static_cast<Search*>(argument);
  bool is_it = false;
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD && search->code - begin < header.p_memsz) is_it = true;
    if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
  }
  if (!is_it) return 0;
  search->symbols.base = info->dlpi_addr;
  if (dynamic != nullptr) ReadDynamic(dynamic, &search->symbols);
  return 1;
}

}  // namespace

void FindHost(const void* code) {
  Search search = {reinterpret_cast<uintptr_t>(code), {}};
  dl_iterate_phdr(Visit, &search);
  const Symbols& found = search.symbols;
  if (found.table == nullptr || found.names == nullptr || found.gnu_hash == nullptr) return;
  g_log = reinterpret_cast<LogFunction>(Find(found, "fi_log"));
  g_enabled = reinterpret_cast<EnabledFunction>(Find(found, "fi_log_enabled"));
}

void LogLine(fi_log_level level, fi_log_subsys subsystem, const char* function, int line,
             const char* format, ...) {
  if (g_log == nullptr || g_enabled == nullptr) return;
  if (g_enabled(&g_provider, level, subsystem) == 0) return;
  const int saved_errno = errno;
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  g_log(&g_provider, level, subsystem, function, line, "%s\n", text);
  errno = saved_errno;
}

}  // namespace verbena::fi
