// Allocates, enlarges, zeroes and frees from a seed, in one thread or several, and knows what must
// be in each block: ends with 0, or with kExitDamage.
//
//     churn SEED OPERATIONS [THREADS]
#include <malloc.h>
#include <sys/time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/programs/random.h"
#include "tests/remap/blocks.h"

extern "C" __attribute__((weak)) int malloc_trim(size_t);

namespace verbena::remap {
namespace {

using programs::Random;

constexpr size_t kBlocksMax = 400;
constexpr uint32_t kLargestExponent = 21;

size_t DrawBytes(Random* random) {
  return 1 + random->Next() % (size_t{1} << random->Between(3, kLargestExponent));
}

Block Allocate(Random* random) {
  Block block;
  block.bytes = DrawBytes(random);
  block.seed = random->Next();
  const uint32_t how = random->Below(10);
  if (how < 4) {
    block.at = static_cast<uint8_t*>(std::calloc(1, block.bytes));
    for (size_t i = 0; block.at != nullptr && i < block.bytes; ++i) {
      if (block.at[i] != 0) Fail("calloc gave memory that is not zero", block.at, i);
    }
  } else if (how < 6) {
    void* at = nullptr;
    const size_t alignment = size_t{16} << random->Below(9);
    if (posix_memalign(&at, alignment, block.bytes) == 0) block.at = static_cast<uint8_t*>(at);
  } else {
    block.at = static_cast<uint8_t*>(std::malloc(block.bytes));
  }
  if (block.at == nullptr) Fail("no memory");
  block.Fill();
  return block;
}

void Enlarge(Random* random, Block* block) {
  const size_t kept = block->bytes;
  const size_t bytes = random->Percent(50) ? DrawBytes(random) : 1 + kept * 2;
  auto* at = static_cast<uint8_t*>(std::realloc(block->at, bytes));
  if (at == nullptr) Fail("no memory");
  block->at = at;
  block->bytes = std::min(bytes, size_t{2} << kLargestExponent);
  block->Check("a block of another size", std::min(kept, block->bytes));
  block->Fill();
}

void Run(uint64_t seed, uint64_t operations) {
  Random random(seed);
  std::vector<Block> blocks;
  blocks.reserve(kBlocksMax);
  for (uint64_t i = 0; i < operations; ++i) {
    timeval now;
    gettimeofday(&now, nullptr);  // a call into libc, at which an agent may act
    const uint32_t what = random.Below(100);
    // Waves: much memory goes back at once, as allocators then return it to the kernel.
    const bool is_ebb = i / 1000 % 2 == 1;
    if (blocks.empty() || (what < (is_ebb ? 20u : 50u) && blocks.size() < kBlocksMax)) {
      blocks.push_back(Allocate(&random));
      continue;
    }
    const uint32_t index = random.Below(static_cast<uint32_t>(blocks.size()));
    if (what < 60) {
      blocks[index].Check("a block kept for a while");
    } else if (what < 70) {
      Enlarge(&random, &blocks[index]);
    } else if (what == 99 && malloc_trim != nullptr) {
      malloc_trim(0);
    } else {
      blocks[index].Check("a block at its end");
      std::free(blocks[index].at);
      blocks[index] = blocks.back();
      blocks.pop_back();
    }
  }
  for (const Block& block : blocks) {
    block.Check("a block at the end");
    std::free(block.at);
  }
}

}  // namespace
}  // namespace verbena::remap

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const uint64_t seed = std::strtoull(argv[1], nullptr, 10);
  const uint64_t operations = std::strtoull(argv[2], nullptr, 10);
  const int threads = argc > 3 ? std::atoi(argv[3]) : 1;
  if (threads == 1) {
    verbena::remap::Run(seed, operations);
  } else {
    std::vector<std::thread> others;
    for (int i = 0; i < threads; ++i) {
      others.emplace_back(verbena::remap::Run, seed + static_cast<uint64_t>(i), operations);
    }
    for (std::thread& other : others) other.join();
  }
  std::puts("as it should be");
  return 0;
}
