// Where things are: our libraries, instance directories, and the clean-up of private ones.
#pragma once

#include <string>

namespace verbena::cli {

// ../lib beside this program. False with `error` when libibverbs.so.1 is not in it.
bool LibraryDirectory(std::string* directory, std::string* error);

// What a program in `libraries` is to be preloaded with, so that it finds the NICs in /sys and
// /dev, too: LD_PRELOAD, of which `value` is there already. Empty: nothing is to be set. `program`:
// one that can't have it; empty: not known.
std::string PreloadWithPaths(const std::string& libraries, const std::string& program,
                             const char* value);

// ASAN_OPTIONS, with what lets programs run to which a library is preloaded: AddressSanitizer's own
// library otherwise ends those in which it is not the first one.
std::string AllowPreload(const char* asan_options);

// `value` with `directory` in front; an entry already in front is not repeated.
std::string PrependPath(const std::string& directory, const char* value);

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
