// The fixed sets of operations of endpoints and receive contexts.
#include <cstdlib>
#include <new>

#include "fi_shim/endpoint.h"

namespace verbena::fi {
namespace {

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
// Precondition: it has come to its end.
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
  for (Operation* run : runs) ordered_ = Merge(run, ordered_);
  ordered_until_ = sequence_;
}

Operation* OperationPool::Find(const void* context) const {
  Operation* oldest = nullptr;
  for (size_t i = 0; i < count_; ++i) {
    Operation* candidate = &all_[i];
    if (!IsWaiting(*candidate) || candidate->context != context) continue;
    if (oldest == nullptr || candidate->sequence < oldest->sequence) oldest = candidate;
  }
  return oldest;
}

}  // namespace verbena::fi
