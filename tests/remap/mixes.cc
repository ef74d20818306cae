// What programs do with their memory besides using it, from a seed: fork, vfork, posix_spawn,
// realloc, mremap, mprotect, maps of files and shared ones. It knows what must be where: ends with
// 0, or with kExitDamage.
//
//     mixes SEED STEPS
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/programs/random.h"
#include "tests/remap/blocks.h"

extern char** environ;

namespace verbena::remap {
namespace {

using programs::Random;

constexpr size_t kPageBytes = 4096;
constexpr size_t kBlocksMax = 24;
constexpr size_t kAreasMax = 12;
constexpr size_t kPagesMax = 200;

// Pages of the program's own mapping, between two that nobody may use: a region reaches over one
// area alone (docs/mapped-memory.md says what becomes of one over several).
struct Area : Block {
  bool is_writable = true;
  size_t room = 0;  // between those two

  uint8_t* base() const { return at - kPageBytes; }
};

class Mixes {
 public:
  explicit Mixes(uint64_t seed) : random_(seed) {
    shared_ = static_cast<uint32_t*>(
        mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    if (shared_ == MAP_FAILED) Fail("no memory");
  }

  void Run(uint64_t steps) {
    for (uint64_t i = 0; i < steps; ++i) Step();
    CheckAll("at the end");
  }

 private:
  void Step() {
    const uint32_t what = random_.Below(100);
    if (what < 25) return StepBlocks();
    if (what < 60) return StepAreas();
    if (what < 70) return Fork(2);
    if (what < 75) return Spawn();
    if (what < 80) return Vfork();
    if (what < 90) return Pipe();
    if (what < 93) return LimitedChild();
    CheckAll("now and then");
  }

  void CheckAll(const char* when) {
    for (const Block& block : blocks_) block.Check(when);
    for (const Area& area : areas_) area.Check(when);
  }
  void RefillAll() {
    for (Block& block : blocks_) {
      block.seed = random_.Next();
      block.Fill();
    }
    for (Area& area : areas_) {
      if (!area.is_writable) continue;
      area.seed = random_.Next();
      area.Fill();
    }
  }

  void StepBlocks() {
    if (blocks_.size() < kBlocksMax && random_.Percent(50)) {
      Block block;
      block.bytes = 1 + random_.Next() % (size_t{1} << random_.Between(4, 20));
      block.at = static_cast<uint8_t*>(std::malloc(block.bytes));
      block.seed = random_.Next();
      block.Fill();
      blocks_.push_back(block);
    } else if (!blocks_.empty()) {
      const uint32_t index = random_.Below(static_cast<uint32_t>(blocks_.size()));
      Block& block = blocks_[index];
      block.Check("a block");
      if (random_.Percent(60)) {  // beyond what malloc has in its heap: mremap(2) moves it
        const size_t kept = block.bytes;
        block.bytes = 1 + random_.Next() % (3 * kept);
        block.at = static_cast<uint8_t*>(std::realloc(block.at, block.bytes));
        block.Check("a block of another size", std::min(kept, block.bytes));
        block.Fill();
      } else {
        std::free(block.at);
        block = blocks_.back();
        blocks_.pop_back();
      }
    }
  }

  static uint8_t* Reserve(size_t room) {
    void* base =
        mmap(nullptr, room + 2 * kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) Fail("no memory");
    return static_cast<uint8_t*>(base) + kPageBytes;
  }
  // Its pages are gone, their addresses stay the area's.
  static void Forbid(uint8_t* at, size_t bytes) {
    if (mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
      Fail("mmap");
    }
  }
  static void Release(const Area& area) {
    if (munmap(area.base(), area.room + 2 * kPageBytes) != 0) Fail("munmap");
  }
  void NewArea() {
    Area area;
    area.room = area.bytes = kPageBytes * random_.Between(1, kPagesMax);
    area.at = Reserve(area.room);
    if (mprotect(area.at, area.bytes, PROT_READ | PROT_WRITE) != 0) Fail("no memory");
    CheckZero(area.at, area.bytes, "a new mapping");
    area.seed = random_.Next();
    area.Fill();
    areas_.push_back(area);
  }
  void EndArea(size_t index) {
    Release(areas_[index]);
    areas_[index] = areas_.back();
    areas_.pop_back();
  }
  static void CheckZero(const uint8_t* at, size_t bytes, const char* when) {
    for (size_t i = 0; i < bytes; ++i) {
      if (at[i] != 0) Fail(when, at, i);
    }
  }

  void StepAreas() {
    if (areas_.empty() || (areas_.size() < kAreasMax && random_.Percent(30))) return NewArea();
    const uint32_t index = random_.Below(static_cast<uint32_t>(areas_.size()));
    Area& area = areas_[index];
    area.Check("an area");
    switch (random_.Below(7)) {
      case 0:
        return EndArea(index);
      case 1:
        return Protect(&area);
      case 2:
        return Resize(&area);
      case 3:
        return Move(&area);
      case 4:
        return CutOff(&area);
      case 5:
        return MapOver(&area);
      default:
        return Refill(&area);
    }
  }
  void Refill(Area* area) {
    if (!area->is_writable) return;
    area->seed = random_.Next();
    area->Fill();
  }
  void Protect(Area* area) {
    area->is_writable = !area->is_writable;
    const int protection = PROT_READ | (area->is_writable ? PROT_WRITE : 0);
    if (mprotect(area->at, area->bytes, protection) != 0) Fail("mprotect");
  }
  // What is added is new: not after it was once made smaller, since old bytes may come back then
  // (docs/mapped-memory.md).
  void Resize(Area* area) {
    const size_t bytes = kPageBytes * random_.Between(1, kPagesMax);
    const size_t kept = std::min(bytes, area->bytes);
    if (!MoveTo(area, bytes)) return;
    area->Check("an area of another size", kept);
    if (area->is_writable) {
      area->Fill();
    } else {
      area->bytes = kept;
      if (kept < bytes) Forbid(area->at + kept, bytes - kept);
    }
  }
  void Move(Area* area) {
    if (MoveTo(area, area->bytes)) area->Check("an area that was moved");
  }
  // False: of several mappings, as parts were shared at different times, it can't be.
  static bool MoveTo(Area* area, size_t bytes) {
    const Area old = *area;
    area->room = bytes;
    area->at = Reserve(bytes);
    if (mremap(old.at, old.bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, area->at) == MAP_FAILED) {
      Release(*area);
      *area = old;
      return false;
    }
    Release(old);
    area->bytes = bytes;
    return true;
  }
  void CutOff(Area* area) {
    const size_t pages = area->bytes / kPageBytes;
    if (pages < 2) return;
    const size_t kept = kPageBytes * (1 + random_.Below(static_cast<uint32_t>(pages - 1)));
    Forbid(area->at + kept, area->bytes - kept);
    area->bytes = kept;
    area->Check("what is left of an area");
  }
  void MapOver(Area* area) {
    void* at = mmap(area->at, area->bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (at == MAP_FAILED) Fail("mmap");
    CheckZero(area->at, area->bytes, "what was mapped over an area");
    area->is_writable = true;
    Refill(area);
  }

  // The child sees what was there when it was made, whatever its parent writes, and the reverse.
  // Each goes on only when the other has written.
  void Fork(int depth) {
    const uint32_t begin = __atomic_load_n(shared_, __ATOMIC_SEQ_CST);
    const pid_t child = fork();
    if (child < 0) Fail("fork");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      while (depth == 2 && __atomic_load_n(shared_, __ATOMIC_SEQ_CST) == begin) usleep(50);
      CheckAll("in a child");
      random_ = Random(random_.Next() ^ 1);
      RefillAll();
      StepBlocks();
      StepAreas();
      CheckAll("in a child that wrote");
      if (depth > 1) Fork(depth - 1);
      CheckAll("in a child that has a child");
      _exit(0);
    }
    RefillAll();
    if (depth == 2) __atomic_fetch_add(shared_, 1, __ATOMIC_SEQ_CST);
    Await(child);
    CheckAll("in a parent");
  }
  static void Await(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    if (WIFEXITED(status)) _exit(WEXITSTATUS(status));  // it has said why
    Fail("a child was killed");
  }
  void Spawn() {
    char name[] = "/bin/true";
    char* arguments[] = {name, nullptr};
    pid_t child;
    if (posix_spawn(&child, name, nullptr, nullptr, arguments, environ) != 0) Fail("posix_spawn");
    RefillAll();
    Await(child);
    CheckAll("after posix_spawn");
  }
  void Vfork() {
    static volatile int written;
    written = 0;
    const pid_t child = vfork();
    if (child == 0) {
      written = 1;  // its memory is its parent's
      _exit(0);
    }
    if (child < 0) Fail("vfork");
    if (written != 1) Fail("vfork: the child's write");
    Await(child);
    CheckAll("after vfork");
  }
  // The kernel reads and writes the memory.
  void Pipe() {
    if (areas_.empty()) return;
    Area& area = areas_[random_.Below(static_cast<uint32_t>(areas_.size()))];
    int fds[2];
    if (pipe(fds) != 0) Fail("pipe");
    const size_t bytes = std::min<size_t>(area.bytes, 60'000);
    std::vector<uint8_t> copy(area.bytes - bytes, 0);
    if (write(fds[1], area.at + area.bytes - bytes, bytes) != static_cast<ssize_t>(bytes)) {
      Fail("write");
    }
    if (area.is_writable) std::memset(area.at + area.bytes - bytes, 0, bytes);
    std::vector<uint8_t> got(bytes);
    uint8_t* to = area.is_writable ? area.at + area.bytes - bytes : got.data();
    for (size_t n = 0; n < bytes;) {
      const ssize_t more = read(fds[0], to + n, bytes - n);
      if (more <= 0) Fail("read");
      n += static_cast<size_t>(more);
    }
    close(fds[0]);
    close(fds[1]);
    area.Check("what went through a pipe");
  }
  void LimitedChild() {
    const pid_t child = fork();
    if (child < 0) Fail("fork");
    if (child == 0) {
      const rlimit none = {0, 0};
      setrlimit(RLIMIT_FSIZE, &none);
      for (int i = 0; i < 20; ++i) {
        StepBlocks();
        StepAreas();
        usleep(1);
      }
      CheckAll("in a child that may write no files");
      _exit(0);
    }
    Await(child);
    CheckAll("after a child that may write no files");
  }

  Random random_;
  std::vector<Block> blocks_;
  std::vector<Area> areas_;
  uint32_t* shared_;
};

}  // namespace
}  // namespace verbena::remap

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  verbena::remap::Mixes mixes(std::strtoull(argv[1], nullptr, 10));
  mixes.Run(std::strtoull(argv[2], nullptr, 10));
  std::puts("as it should be");
  return 0;
}
