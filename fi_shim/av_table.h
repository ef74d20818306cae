// The addresses of an AV, by number and by address. In memory of its own, or in a file that several
// processes share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "fi_shim/address.h"
#include "fi_shim/list.h"

namespace verbena::fi {

inline constexpr uint32_t kAvEntriesMax = 1u << 20;

struct AvEntry {
  std::atomic<uint32_t> uses;  // times inserted; 0: free
  SockAddress address;
};
static_assert(sizeof(AvEntry) == 32);

// Where entries are. Trust: another process of the same user may write to a shared one.
class AvStore {
 public:
  virtual ~AvStore() = default;
  // The entries up to Count are there; the address does not change while somebody looks.
  virtual AvEntry* entries() = 0;
  // One past the highest ever used.
  virtual uint32_t Count() = 0;
  // Raised by each change, by whichever process.
  virtual uint32_t Generation() = 0;
  // Around changes, against other processes. False: not to be written.
  virtual bool BeginChange() = 0;
  virtual void EndChange() = 0;
  // Room for so many. False: no memory.
  virtual bool Grow(uint32_t count) = 0;
  virtual void SetCount(uint32_t count) = 0;
};

class PrivateAvStore : public AvStore {
 public:
  ~PrivateAvStore() override;
  AvEntry* entries() override { return entries_; }
  uint32_t Count() override { return count_; }
  uint32_t Generation() override { return generation_; }
  bool BeginChange() override { return true; }
  void EndChange() override { ++generation_; }
  bool Grow(uint32_t count) override;
  void SetCount(uint32_t count) override { count_ = count; }

 private:
  AvEntry* entries_ = nullptr;
  uint32_t count_ = 0, capacity_ = 0, generation_ = 0;
};

// Thread: its owner's lock.
class AvTable {
 public:
  // The table does not own it.
  void SetStore(AvStore* store) { store_ = store; }

  // An address that is there already keeps its number, and has to be removed as often as it was
  // inserted. 0; -FI_ENOMEM; -FI_EPERM.
  int Insert(const SockAddress& address, uint64_t* number);
  // -FI_EINVAL: nothing has this number; -FI_EPERM.
  int Remove(uint64_t number, bool* is_gone);
  bool Lookup(uint64_t number, SockAddress* out);
  bool Find(const SockAddress& address, uint64_t* number);

 private:
  // The place of an address in `buckets_`, or of the gap where it belongs.
  size_t BucketOf(const SockAddress& address);
  bool Reindex();
  // Brings the index up to what the store has. False: no memory.
  bool Refresh();
  uint32_t LowestFree();

  AvStore* store_ = nullptr;
  List<uint32_t> buckets_;  // number + 1; 0: a gap
  size_t indexed_ = 0;      // addresses in buckets_
  uint32_t generation_ = 0;
  uint32_t free_hint_ = 0;  // nothing below is free
};

}  // namespace verbena::fi
