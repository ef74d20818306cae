// Writes docs/spec: `bazel run //tools/spec:print_spec` (or with the target folder as argument).
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tools/spec/spec_documents.h"

int main(int argc, char** argv) {
  std::string folder;
  if (argc == 2) {
    folder = argv[1];
  } else if (const char* workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY")) {
    folder = std::string(workspace) + "/docs/spec";
  } else {
    std::fprintf(stderr, "usage: print_spec FOLDER\n");
    return 2;
  }
  for (const verbena::tools::SpecDocument& document : verbena::tools::PrintAllDocuments()) {
    std::string path = folder + "/" + document.file_name;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << document.text;
    file.close();
    if (!file) {
      std::fprintf(stderr, "print_spec: cannot write %s\n", path.c_str());
      return 1;
    }
    std::printf("%s\n", path.c_str());
  }
  return 0;
}
