#include "tools/cli/paths.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <vector>

#include "core/client/instance.h"
#include "tools/cli/elf_check.h"

namespace verbena::cli {
namespace {

constexpr char kPrivatePrefix[] = "private-";
// A private directory without a daemon may belong to one that is just starting.
constexpr time_t kStaleAfterS = 60;
constexpr size_t kLogTailLines = 5;

// Where distributions have libfabric look while FI_PROVIDER_PATH is not set.
constexpr const char* kSystemProviders[] = {"/usr/lib/x86_64-linux-gnu/libfabric",
                                            "/usr/lib64/libfabric", "/usr/lib/libfabric"};

std::string DirectoryOfSelf() {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return "";
  const std::string self(path, static_cast<size_t>(length));
  return self.substr(0, self.rfind('/'));
}

std::vector<std::string> Entries(const std::string& directory) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(directory.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  ::closedir(dir);
  return names;
}

void RemoveStaleDirectories(const std::string& parent) {
  for (const std::string& name : Entries(parent)) {
    if (name.rfind(kPrivatePrefix, 0) != 0) continue;
    const std::string path = parent + "/" + name;
    struct stat st;
    if (::lstat(path.c_str(), &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != ::geteuid() ||
        ::time(nullptr) - st.st_mtime < kStaleAfterS) {
      continue;
    }
    const int fd = client::ConnectInstance(path);
    if (fd >= 0) {
      ::close(fd);
    } else if (errno == ENOENT || errno == ECONNREFUSED) {
      RemoveInstanceDirectory(path);
    }
  }
}

// The default instance's directory, whatever VERBENA_INSTANCE says: private ones lie beside it.
std::string DefaultDirectory() {
  std::optional<std::string> saved;
  if (const char* value = ::getenv("VERBENA_INSTANCE")) saved = value;
  ::unsetenv("VERBENA_INSTANCE");
  std::string directory = client::InstanceDirectory(true);
  const int error = errno;
  if (saved.has_value()) ::setenv("VERBENA_INSTANCE", saved->c_str(), 1);
  errno = error;
  return directory;
}

// `list` with `directory` in front; an entry already in front is not repeated.
std::string PrependPath(const std::string& directory, const std::string& list) {
  if (list.empty()) return directory;
  if (list == directory || list.rfind(directory + ":", 0) == 0) return list;
  return directory + ":" + list;
}

std::string WithoutPath(const std::string& directory, const std::string& list) {
  std::string left;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(':', begin), list.size());
    const std::string entry = list.substr(begin, end - begin);
    if (!entry.empty() && entry != directory) left += (left.empty() ? "" : ":") + entry;
    begin = end + 1;
  }
  return left;
}

// What separates the list's entries can't be in one.
bool MayBePreloaded(const std::string& library) {
  return ::access(library.c_str(), R_OK) == 0 && library.find_first_of(": ") == std::string::npos;
}

std::string AppendPreload(const std::string& list, const std::string& library) {
  if (list.empty()) return library;
  return list.find(library) == std::string::npos ? list + ":" + library : list;
}

}  // namespace

bool LibraryDirectory(std::string* directory, std::string* error) {
  const std::string self = DirectoryOfSelf();
  const std::string wanted = self.substr(0, self.rfind('/')) + "/lib";
  if (::access((wanted + "/libibverbs.so.1").c_str(), R_OK) != 0) {
    *error = "Verbena's libibverbs.so.1 is not in " + wanted +
             "; run `tools/stage` in the checkout, or unpack the tarball again.";
    return false;
  }
  *directory = wanted;
  return true;
}

std::string ProviderPath(const std::string& libraries, const char* chosen) {
  const std::string ours = libraries + "/libfabric";
  if (::access((ours + "/libverbena-fi.so").c_str(), R_OK) != 0) return "";
  const std::string old = chosen == nullptr ? "" : chosen;
  if (old.empty()) {
    std::string path = ours;
    for (const char* theirs : kSystemProviders) {
      if (::access(theirs, X_OK) == 0) path += std::string(":") + theirs;
    }
    return path;
  }
  // A leading @ is a mark, not part of the first directory.
  const bool is_there =
      (":" + (old[0] == '@' ? old.substr(1) : old) + ":").find(":" + ours + ":") !=
      std::string::npos;
  return is_there ? old : old + ":" + ours;
}

bool MakeEnvironment(const EnvironmentWish& wish, const char* library_path, const char* preload,
                     ProgramEnvironment* out, std::string* error) {
  const std::string paths = wish.libraries + "/libverbena-paths.so";
  const std::string rdma_cm = wish.libraries + "/libverbena-ucm.so";
  // Ours but for librdmacm.
  const std::string without = wish.libraries + "/system-rdmacm";
  const std::string old_path = library_path == nullptr ? "" : library_path;
  const std::string old_preload = preload == nullptr ? "" : preload;
  *out = {PrependPath(wish.libraries, old_path), "",
          ProviderPath(wish.libraries, wish.provider_path)};
  std::string list = old_preload;
  if (wish.system_librdmacm) {
    if (!MayBePreloaded(rdma_cm) || ::access((without + "/libibverbs.so.1").c_str(), R_OK) != 0) {
      *error = "--system-librdmacm needs " + rdma_cm + " and " + without +
               ", at a path without spaces and colons.";
      return false;
    }
    out->library_path = PrependPath(without, WithoutPath(wish.libraries, old_path));
    list = AppendPreload(list, rdma_cm);
  }
  const bool shows_paths = wish.shows_paths && MayBePreloaded(paths);
  if (shows_paths) list = AppendPreload(list, paths);
  if (!shows_paths && !wish.system_librdmacm) return true;
  if (!wish.program.empty()) {
    const ElfFacts facts = ReadElf(wish.program);
    if (facts.is_elf && !facts.is_64_bit) return true;
  }
  out->preload = list;
  return true;
}

std::string AllowPreload(const char* asan_options) {
  constexpr char kAllowed[] = "verify_asan_link_order=0";
  const std::string old = asan_options == nullptr ? "" : asan_options;
  if (old.empty()) return kAllowed;
  return old.rfind(kAllowed, 0) == 0 ? old : std::string(kAllowed) + ":" + old;
}

std::string DirectoryProblem(int error) {
  const char* chosen = ::getenv("VERBENA_INSTANCE");
  const std::string which =
      chosen != nullptr && chosen[0] != '\0'
          ? "the instance directory " + std::string(chosen) + " (VERBENA_INSTANCE)"
          : "the default instance directory, in XDG_RUNTIME_DIR or /tmp";
  return "cannot use " + which + ": " +
         (error == EPERM ? "it is no directory that you own and nobody else may write to"
                         : strerror(error)) +
         ".";
}

bool CreatePrivateDirectory(std::string* directory, std::string* error) {
  const std::string beside = DefaultDirectory();
  if (beside.empty()) {
    *error = std::string("cannot create a directory for the instance below /run/user or /tmp: ") +
             strerror(errno) + ".";
    return false;
  }
  const std::string parent = beside.substr(0, beside.rfind('/'));
  RemoveStaleDirectories(parent);
  std::string name = parent + "/" + kPrivatePrefix + "XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) {
    *error = "cannot create a directory in " + parent + ": " + strerror(errno) + ".";
    return false;
  }
  *directory = name;
  return true;
}

void RemoveInstanceDirectory(const std::string& directory) {
  std::error_code ignored;  // rmdir fails then
  std::filesystem::remove_all(directory + "/paths", ignored);
  for (const std::string& name : Entries(directory)) ::unlink((directory + "/" + name).c_str());
  ::rmdir(directory.c_str());
}

std::string LogTail(const std::string& directory) {
  std::ifstream log(directory + "/log");
  std::vector<std::string> lines;
  for (std::string line; std::getline(log, line);) {
    lines.push_back(line);
    if (lines.size() > kLogTailLines) lines.erase(lines.begin());
  }
  std::string text;
  for (const std::string& line : lines) text += "  " + line + "\n";
  return text;
}

}  // namespace verbena::cli
