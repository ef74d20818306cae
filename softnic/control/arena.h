// Queue memory of one session: a few big sparse arenas, so that 10 000 queues need few fds and only
// the pages they use.
//
// Thread: the leader. Trust: bookkeeping is apart from the shared bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/base/huge_page_mapping.h"
#include "softnic/control/shared_memory.h"
#include "softnic/device/services.h"

namespace verbena::softnic {

struct ArenaLimits {
  uint64_t arena_bytes = 64ull << 20;  // a larger queue gets an arena of its own size
  uint32_t arenas_max = 64;
  uint64_t session_bytes_max = 8ull << 30;  // in queues, per session
};

class ArenaSet {
 public:
  // `announce` sends a new arena's fd to the client: 0 or errno.
  using Announce = std::function<int(uint32_t id, int fd, uint64_t bytes)>;
  // A part of an arena is in use as a whole: it may be put on a huge page, which costs no memory.
  // Told once of each part, and kept as long as this object.
  using PartFilled = std::function<void(std::byte* part)>;
  ArenaSet(ArenaLimits limits, Announce announce, PartFilled part_filled);
  ~ArenaSet();

  // 0, ENOMEM, or what announcing a new arena failed with. The memory is zeroed and backed.
  int Allocate(uint64_t bytes, QueueMemory* out);
  void Free(const QueueMemory& queue);

  uint64_t bytes_in_use() const { return bytes_in_use_; }
  size_t arenas() const { return arenas_.size(); }

 private:
  static constexpr uint64_t kGranuleBytes = 128;  // two cache lines: heads of queues don't share
  static constexpr uint64_t kPageBytes = 4096;
  static constexpr uint64_t kPartPages = kHugePageBytes / kPageBytes;
  static constexpr uint64_t kUnbackFromBytes = 64 * 1024;

  // As much of an arena as fits a huge page. Queues of many QPs, which are used in no order, need
  // more translations on small pages than a CPU keeps, in the NIC as in the client.
  struct Part {
    uint32_t backed_pages = 0;
    bool was_full = false;
  };
  struct Arena {
    SharedMemory memory;
    std::map<uint64_t, uint64_t> free_by_offset;           // offset → bytes
    std::set<std::pair<uint64_t, uint64_t>> free_by_size;  // (bytes, offset)
    std::vector<bool> backed;                              // per page
    std::vector<Part> parts;
  };

  bool TakeFrom(Arena& arena, uint64_t bytes, uint64_t* offset);
  void GiveBack(Arena& arena, uint64_t offset, uint64_t bytes);
  void CountBacked(Arena& arena, uint64_t first_page, uint64_t end_page);
  int BackAndZero(Arena& arena, uint64_t offset, uint64_t bytes);
  int AddArena(uint64_t bytes);
  void UnbackWholePages(Arena& arena, uint64_t offset, uint64_t bytes);

  ArenaLimits limits_;
  Announce announce_;
  PartFilled part_filled_;
  std::vector<std::unique_ptr<Arena>> arenas_;  // id = index + 1
  uint64_t bytes_in_use_ = 0;
};

}  // namespace verbena::softnic
