// Runs a fuzz target over its corpus and over a fixed number of mutants of it: the same every time.
//
//   replay_test CORPUS_DIRECTORY MUTANTS
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/input.h"

namespace verbena::fuzz {
namespace {

using Bytes = std::vector<uint8_t>;

std::string corpus_directory;
int mutants = 0;

std::vector<Bytes> ReadCorpus() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(corpus_directory)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

void RunOnce(const Bytes& input) {
  Bytes exact(input);  // an allocation without spare room, so that sanitizers see its end
  exact.shrink_to_fit();
  EXPECT_EQ(LLVMFuzzerTestOneInput(exact.data(), exact.size()), 0);
}

Bytes Mutant(const std::vector<Bytes>& corpus, std::mt19937& random) {
  Bytes bytes = corpus[random() % corpus.size()];
  for (uint32_t steps = 1 + random() % 4; steps != 0; --steps) {
    size_t at = bytes.empty() ? 0 : random() % bytes.size();
    switch (random() % 4) {
      case 0:
        if (!bytes.empty()) bytes[at] ^= static_cast<uint8_t>(1u << random() % 8);
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<uint8_t>(random());
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3: {
        const Bytes& other = corpus[random() % corpus.size()];
        size_t from = other.empty() ? 0 : random() % other.size();
        bytes.resize(at);
        bytes.insert(bytes.end(), other.begin() + static_cast<ptrdiff_t>(from), other.end());
        break;
      }
    }
  }
  return bytes;
}

TEST(Replay, CorpusPasses) {
  std::vector<Bytes> corpus = ReadCorpus();
  ASSERT_GE(corpus.size(), 10u) << corpus_directory;
  for (const Bytes& input : corpus) RunOnce(input);
}

TEST(Replay, MutantsPass) {
  std::vector<Bytes> corpus = ReadCorpus();
  ASSERT_FALSE(corpus.empty()) << corpus_directory;
  std::mt19937 random(1);
  for (int i = 0; i < mutants; ++i) RunOnce(Mutant(corpus, random));
  RunOnce({});
}

}  // namespace
}  // namespace verbena::fuzz

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s CORPUS_DIRECTORY MUTANTS\n", argv[0]);
    return 2;
  }
  verbena::fuzz::corpus_directory = argv[1];
  verbena::fuzz::mutants = std::atoi(argv[2]);
  return RUN_ALL_TESTS();
}
