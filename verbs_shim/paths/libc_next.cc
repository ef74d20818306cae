#include "verbs_shim/paths/libc_next.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace verbena::paths {
namespace {

constexpr ElfW(Half) kHiddenVersion = 0x8000;

// The dynamic symbols of a loaded object.
struct Symbols {
  const ElfW(Sym) * table = nullptr;
  const char* names = nullptr;
  const ElfW(Half) * versions = nullptr;  // nullptr: it has none
  const uint32_t* hash = nullptr;         // DT_GNU_HASH
};

uint32_t HashOf(const char* name) {
  uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<uint8_t>(*name);
  return hash;
}

// glibc relocates these pointers in the dynamic section; for the vDSO, which is read-only, it does
// not.
template <typename T>
const T* At(const dl_phdr_info& info, ElfW(Addr) value) {
  return reinterpret_cast<const T*>(value < info.dlpi_addr ? info.dlpi_addr + value : value);
}

bool ReadSymbols(const dl_phdr_info& info, Symbols* out) {
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    if (info.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* entry =
        reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      const ElfW(Addr) value = entry->d_un.d_ptr;
      if (entry->d_tag == DT_SYMTAB) out->table = At<ElfW(Sym)>(info, value);
      if (entry->d_tag == DT_STRTAB) out->names = At<char>(info, value);
      if (entry->d_tag == DT_VERSYM) out->versions = At<ElfW(Half)>(info, value);
      if (entry->d_tag == DT_GNU_HASH) out->hash = At<uint32_t>(info, value);
    }
  }
  return out->table != nullptr && out->names != nullptr && out->hash != nullptr;
}

// The default version of a function; compatibility versions of the same name are passed over.
const ElfW(Sym) * Find(const Symbols& symbols, const char* name) {
  const uint32_t buckets = symbols.hash[0], first = symbols.hash[1], bloom_words = symbols.hash[2];
  const uint32_t* bucket = symbols.hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* chain = bucket + buckets;
  if (buckets == 0) return nullptr;
  const uint32_t hash = HashOf(name);
  uint32_t index = bucket[hash % buckets];
  if (index < first) return nullptr;
  for (;; ++index) {
    const uint32_t found = chain[index - first];
    const ElfW(Sym)& symbol = symbols.table[index];
    if ((found | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF &&
        ELF64_ST_TYPE(symbol.st_info) == STT_FUNC &&
        (symbols.versions == nullptr || (symbols.versions[index] & kHiddenVersion) == 0) &&
        strcmp(symbols.names + symbol.st_name, name) == 0) {
      return &symbol;
    }
    if ((found & 1) != 0) return nullptr;  // the chain's last
  }
}

struct Search {
  const char* name;
  bool is_behind_us = false;
  void* found = nullptr;
};

bool IsUs(const dl_phdr_info& info) {
  static const char in_us = 0;
  const auto address = reinterpret_cast<uintptr_t>(&in_us);
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info.dlpi_phdr[i];
    if (header.p_type == PT_LOAD && address - info.dlpi_addr - header.p_vaddr < header.p_memsz) {
      return true;
    }
  }
  return false;
}

// Objects come in the order in which the loader searches them.
int Visit(dl_phdr_info* info, size_t, void* argument) {
  auto* search = static_cast<Search*>(argument);
  if (!search->is_behind_us) {
    search->is_behind_us = IsUs(*info);
    return 0;
  }
  Symbols symbols;
  if (!ReadSymbols(*info, &symbols)) return 0;
  const ElfW(Sym)* symbol = Find(symbols, search->name);
  if (symbol == nullptr) return 0;
  search->found = reinterpret_cast<void*>(info->dlpi_addr + symbol->st_value);
  return 1;
}

// The section's bounds, named by the linker.
extern "C" __attribute__((visibility("hidden"))) NextAddress __start_verbena_next,
    __stop_verbena_next;

// Before the program can be in a signal handler or in a child of fork, where the loader's lock may
// be held.
__attribute__((constructor)) void FindAll() {
  for (NextAddress* next = &__start_verbena_next; next != &__stop_verbena_next; ++next) next->Get();
}

}  // namespace

void* FindNext(const char* name) {
  Search search = {.name = name};
  dl_iterate_phdr(Visit, &search);
  return search.found;
}

}  // namespace verbena::paths
