// The fixed sets of operations of endpoints and receive contexts.
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>

#include "fi_shim/endpoint.h"

namespace verbena::fi {
namespace {

// An index costs as much as a few scans.
constexpr int kScansBeforeIndex = 16;

bool IsWaiting(const Operation& operation) { return operation.is_taken && !operation.is_done; }

// Of two lists in the order of posting, either of which may be empty, one.
Operation* Merge(Operation* a, Operation* b) {
  Operation* first = nullptr;
  Operation** end = &first;
  while (a != nullptr && b != nullptr) {
    Operation*& next = a->sequence < b->sequence ? a : b;
    *end = next;
    end = &next->later;
    next = next->later;
  }
  *end = a != nullptr ? a : b;
  return first;
}

}  // namespace

OperationPool::~OperationPool() {
  if (credits_ != nullptr) credits_->taken.fetch_sub(taken_);
  free(static_cast<void*>(buckets_));
  free(all_);
}

int OperationPool::Init(Endpoint* endpoint, ReceiveContext* receives, size_t count) {
  all_ = static_cast<Operation*>(calloc(count, sizeof(Operation)));
  if (all_ == nullptr) return -FI_ENOMEM;
  count_ = count;
  for (size_t i = count; i-- != 0;) {
    auto* operation = new (&all_[i]) Operation;
    operation->endpoint = endpoint;
    operation->receives = receives;
    operation->next = free_;
    free_ = operation;
  }
  return 0;
}

Operation* OperationPool::Take() {
  Operation* operation = free_;
  if (operation == nullptr) return nullptr;
  if (credits_ != nullptr && credits_->taken.fetch_add(1) >= credits_->limit) {
    credits_->taken.fetch_sub(1);
    return nullptr;
  }
  free_ = operation->next;
  operation->is_taken = true;
  operation->is_done = false;
  operation->sequence = sequence_++;
  ++taken_;
  return operation;
}

void OperationPool::Give(Operation* operation) {
  operation->is_taken = false;
  operation->next = free_;
  free_ = operation;
  --taken_;
  if (credits_ != nullptr) credits_->taken.fetch_sub(1);
}

// One that is given back stays in the list, and may be taken anew: then it has a later sequence.
Operation* OperationPool::Oldest() {
  for (;;) {
    while (ordered_ != nullptr && (!IsWaiting(*ordered_) || ordered_->sequence >= ordered_until_)) {
      ordered_ = ordered_->later;
    }
    if (ordered_ != nullptr) return ordered_;
    if (ordered_until_ == sequence_) return nullptr;
    Order();
  }
}

// Makes the list anew, without any memory: what waits must be told even if there is none.
void OperationPool::Order() {
  // Runs, in order, of 2^i operations or none: a merge sort.
  constexpr size_t kRuns = 64;
  Operation* runs[kRuns] = {};
  for (size_t i = 0; i < count_; ++i) {
    Operation* run = &all_[i];
    if (!IsWaiting(*run)) continue;
    run->later = nullptr;
    size_t exponent = 0;
    for (; runs[exponent] != nullptr; ++exponent) {
      run = Merge(runs[exponent], run);
      runs[exponent] = nullptr;
    }
    runs[exponent] = run;
  }
  ordered_ = nullptr;
  for (Operation* run : runs) ordered_ = Merge(run, ordered_);
  ordered_until_ = sequence_;
}

// What is in the index was posted before all that is not.
Operation* OperationPool::Find(const void* context) {
  if (Operation* found = FindIndexed(context); found != nullptr) return found;
  if (indexed_until_ == sequence_) return nullptr;
  if (++scans_ < kScansBeforeIndex || !Index()) return Scan(context);
  return FindIndexed(context);
}

Operation*& OperationPool::BucketOf(const void* context) {
  const uint64_t hash = reinterpret_cast<uintptr_t>(context) * 0x9e37'79b9'7f4a'7c15u;
  return buckets_[hash >> (64 - bucket_exponent_)];
}

// Takes out what has been given back, or is done, as it comes by.
Operation* OperationPool::FindIndexed(const void* context) {
  if (buckets_ == nullptr) return nullptr;
  for (Operation** link = &BucketOf(context); *link != nullptr;) {
    Operation* operation = *link;
    if (!IsWaiting(*operation) || operation->sequence >= indexed_until_) {
      *link = operation->alike;
    } else if (operation->context == context) {
      return operation;
    } else {
      link = &operation->alike;
    }
  }
  return nullptr;
}

// False: no memory; then each is to be scanned for.
bool OperationPool::Index() {
  scans_ = 0;
  if (buckets_ == nullptr) {
    const int exponent = std::bit_width(count_ | 1);
    buckets_ = static_cast<Operation**>(malloc(sizeof(Operation*) << exponent));
    if (buckets_ == nullptr) return false;
    bucket_exponent_ = exponent;
  }
  memset(static_cast<void*>(buckets_), 0, sizeof(Operation*) << bucket_exponent_);
  Order();
  // Each becomes the first of its bucket, so those posted last go first.
  Operation* last = nullptr;
  for (Operation* operation = ordered_; operation != nullptr; operation = operation->later) {
    operation->alike = last;
    last = operation;
  }
  while (last != nullptr) {
    Operation* earlier = last->alike;
    Operation*& bucket = BucketOf(last->context);
    last->alike = bucket;
    bucket = last;
    last = earlier;
  }
  indexed_until_ = sequence_;
  return true;
}

Operation* OperationPool::Scan(const void* context) const {
  Operation* oldest = nullptr;
  for (size_t i = 0; i < count_; ++i) {
    Operation* candidate = &all_[i];
    if (!IsWaiting(*candidate) || candidate->context != context) continue;
    if (oldest == nullptr || candidate->sequence < oldest->sequence) oldest = candidate;
  }
  return oldest;
}

}  // namespace verbena::fi
