// Writes docs/spec/goodput.md: `bazel run //transport/rc:print_goodput`.
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "transport/rc/goodput.h"

int main() {
  const char* workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  const std::string path = std::string(workspace == nullptr ? "." : workspace) + "/" +
                           verbena::transport::rc::kGoodputFile;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << verbena::transport::rc::GoodputPage();
  file.close();
  if (!file) {
    std::fprintf(stderr, "print_goodput: cannot write %s; run it by bazel run\n", path.c_str());
    return 1;
  }
  std::printf("%s\n", path.c_str());
  return 0;
}
