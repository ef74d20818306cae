// The fixed sets of operations of endpoints and receive contexts.
#include <cstdlib>
#include <new>

#include "fi_shim/endpoint.h"

namespace verbena::fi {

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

Operation* OperationPool::Oldest() const {
  if (taken_ == 0) return nullptr;
  Operation* oldest = nullptr;
  for (size_t i = 0; i < count_; ++i) {
    Operation* candidate = &all_[i];
    if (!candidate->is_taken || candidate->is_done) continue;
    if (oldest == nullptr || candidate->sequence < oldest->sequence) oldest = candidate;
  }
  return oldest;
}

Operation* OperationPool::Find(const void* context) const {
  Operation* oldest = nullptr;
  for (size_t i = 0; i < count_; ++i) {
    Operation* candidate = &all_[i];
    if (!candidate->is_taken || candidate->is_done || candidate->context != context) continue;
    if (oldest == nullptr || candidate->sequence < oldest->sequence) oldest = candidate;
  }
  return oldest;
}

}  // namespace verbena::fi
