// Where things are: our libraries, instance directories, and the clean-up of private ones.
#pragma once

#include <string>

namespace verbena::cli {

// ../lib beside this program. False with `error` when libibverbs.so.1 is not in it.
bool LibraryDirectory(std::string* directory, std::string* error);

// `value` with `directory` in front; an entry already in front is not repeated.
std::string PrependPath(const std::string& directory, const char* value);

// Why client::InstanceDirectory() gave none: its errno, as a sentence that names the directory.
std::string DirectoryProblem(int error);

// Creates a fresh 0700 directory for a private instance beside the default one, after removing
// those that dead instances left. False with `error`.
bool CreatePrivateDirectory(std::string* directory, std::string* error);

// Removes an instance directory and the files in it (not its subdirectories: it has none).
void RemoveInstanceDirectory(const std::string& directory);

// The last lines of the instance's log, for an error message; empty if there is none.
std::string LogTail(const std::string& directory);

}  // namespace verbena::cli
