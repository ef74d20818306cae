// Where things are: our libraries, instance directories, and the clean-up of private ones.
#pragma once

#include <string>

namespace verbena::cli {

// ../lib beside this program. False with `error` when libibverbs.so.1 is not in it.
bool LibraryDirectory(std::string* directory, std::string* error);

// What a program's environment is to have, so that it uses Verbena.
struct ProgramEnvironment {
  std::string library_path;  // LD_LIBRARY_PATH
  std::string preload;       // LD_PRELOAD; empty: as it is
  std::string fi_providers;  // FI_PROVIDER_PATH; empty: as it is
};

// Of which `libraries` is the directory (LibraryDirectory).
struct EnvironmentWish {
  std::string libraries;
  std::string program;            // one that can't be preloaded anything gets nothing; empty: any
  bool shows_paths = true;        // it finds the NICs in /sys and /dev, too
  bool system_librdmacm = false;  // not ours: the system's own, with /dev/infiniband/rdma_cm
  const char* provider_path = nullptr;  // FI_PROVIDER_PATH as it is; may be null
};

// FI_PROVIDER_PATH with ours behind `chosen`, what the user has set (may be null). libfabric looks
// in no other directories than these: where nothing was set, the distribution's own follow.
std::string ProviderPath(const std::string& libraries, const char* chosen);

// `library_path` and `preload` are what there is already (may be null). False with `error`: what
// was wished for explicitly is not there.
bool MakeEnvironment(const EnvironmentWish& wish, const char* library_path, const char* preload,
                     ProgramEnvironment* out, std::string* error);

// ASAN_OPTIONS, with what lets programs run to which a library is preloaded: AddressSanitizer's own
// library otherwise ends those in which it is not the first one.
std::string AllowPreload(const char* asan_options);

// Why client::InstanceDirectory() gave none: its errno, as a sentence that names the directory.
std::string DirectoryProblem(int error);

// Creates a fresh 0700 directory for a private instance beside the default one, after removing
// those that dead instances left. False with `error`.
bool CreatePrivateDirectory(std::string* directory, std::string* error);

// Removes an instance directory with the files in it, and what a killed daemon left of its tree of
// paths.
void RemoveInstanceDirectory(const std::string& directory);

// The last lines of the instance's log, for an error message; empty if there is none.
std::string LogTail(const std::string& directory);

}  // namespace verbena::cli
