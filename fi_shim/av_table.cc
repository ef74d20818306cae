#include "fi_shim/av_table.h"

#include <stdlib.h>
#include <string.h>

#include <bit>

namespace verbena::fi {

PrivateAvStore::~PrivateAvStore() { free(static_cast<void*>(entries_)); }

bool PrivateAvStore::Grow(uint32_t count) {
  if (count <= capacity_) return true;
  const uint32_t wanted = std::bit_ceil(count < 16 ? 16 : count);
  void* grown = realloc(static_cast<void*>(entries_), wanted * sizeof(AvEntry));
  if (grown == nullptr) return false;
  entries_ = static_cast<AvEntry*>(grown);
  memset(static_cast<void*>(entries_ + capacity_), 0, (wanted - capacity_) * sizeof(AvEntry));
  capacity_ = wanted;
  return true;
}

size_t AvTable::BucketOf(const SockAddress& address) {
  const size_t mask = buckets_.size() - 1;
  size_t at = HashOf(address) & mask;
  while (buckets_[at] != 0 && !IsSame(store_->entries()[buckets_[at] - 1].address, address)) {
    at = (at + 1) & mask;
  }
  return at;
}

// At most half full, so that a look-up ends soon.
bool AvTable::Reindex() {
  const uint32_t count = store_->Count();
  const size_t wanted = std::bit_ceil<size_t>(count < 8 ? 16 : size_t{count} * 4);
  if (!buckets_.Reserve(wanted)) return false;
  buckets_.Clear();
  for (size_t i = 0; i < wanted; ++i) buckets_.Push(0);
  indexed_ = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const AvEntry& entry = store_->entries()[i];
    if (entry.uses.load(std::memory_order_acquire) == 0) continue;
    const size_t at = BucketOf(entry.address);
    if (buckets_[at] == 0) {
      buckets_[at] = i + 1;
      ++indexed_;
    }
  }
  generation_ = store_->Generation();
  return true;
}

bool AvTable::Refresh() {
  if (buckets_.size() != 0 && generation_ == store_->Generation()) return true;
  free_hint_ = 0;
  return Reindex();
}

uint32_t AvTable::LowestFree() {
  const uint32_t count = store_->Count();
  while (free_hint_ < count &&
         store_->entries()[free_hint_].uses.load(std::memory_order_relaxed) != 0) {
    ++free_hint_;
  }
  return free_hint_;
}

int AvTable::Insert(const SockAddress& address, uint64_t* number) {
  if (!store_->BeginChange()) return -FI_EPERM;
  int error = 0;
  uint32_t at = 0;
  if (uint64_t found; Find(address, &found)) {
    at = static_cast<uint32_t>(found);
    store_->entries()[at].uses.fetch_add(1, std::memory_order_relaxed);
  } else if (at = LowestFree(); at >= kAvEntriesMax || !store_->Grow(at + 1)) {
    error = -FI_ENOMEM;
  } else {
    AvEntry& entry = store_->entries()[at];
    entry.address = address;
    entry.uses.store(1, std::memory_order_release);  // pairs with the acquire in Lookup
    if (at >= store_->Count()) store_->SetCount(at + 1);
  }
  store_->EndChange();
  if (error != 0) return error;
  // This change alone needs no new index.
  if (buckets_.size() >= 2 * (indexed_ + 1) && generation_ + 1 == store_->Generation()) {
    const size_t bucket = BucketOf(address);
    if (buckets_[bucket] == 0) {
      buckets_[bucket] = at + 1;
      ++indexed_;
    }
    generation_ = store_->Generation();
  }
  *number = at;
  return 0;
}

int AvTable::Remove(uint64_t number, bool* is_gone) {
  if (!store_->BeginChange()) return -FI_EPERM;
  const bool is_there = number < store_->Count() && store_->entries()[number].uses.load() != 0;
  *is_gone = false;
  if (is_there) {
    *is_gone = store_->entries()[number].uses.fetch_sub(1) == 1;
    if (number < free_hint_) free_hint_ = static_cast<uint32_t>(number);
  }
  store_->EndChange();
  return is_there ? 0 : -FI_EINVAL;
}

bool AvTable::Lookup(uint64_t number, SockAddress* out) {
  if (number >= store_->Count()) return false;
  const AvEntry& entry = store_->entries()[number];
  if (entry.uses.load(std::memory_order_acquire) == 0) return false;
  *out = entry.address;
  return true;
}

bool AvTable::Find(const SockAddress& address, uint64_t* number) {
  if (!Refresh()) return false;
  const uint32_t found = buckets_[BucketOf(address)];
  if (found == 0) return false;
  *number = found - 1;
  return true;
}

}  // namespace verbena::fi
