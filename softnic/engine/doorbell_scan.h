// Which of a client's doorbells come next: by turns, so that none starves however the others ring.
//
// Trust: the pages are the client's to scribble on. Bits that stand for nothing cost a look.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/shm/layout.h"

namespace verbena::softnic {

class DoorbellScan {
 public:
  // A thread domain's doorbells, in their own page.
  void OpenPage(uint32_t page, shm::ThreadDoorbellPage* memory);
  void ClosePage(uint32_t page);

  // Whether anything is rung in shared memory.
  bool HasRung(const shm::DoorbellPage& shared) const;
  // Takes what is rung there, but for summary words of which something is left to serve; returns
  // how many thread domains rang.
  uint32_t Take(shm::DoorbellPage& shared);
  // Something was taken and not served.
  bool HasBits() const {
    return leaf_bits != 0 || has_commands_ || near_bits_ != 0 || pages_left_ != 0 ||
           summaries_left_ != 0;
  }
  // Makes the next leaf with bits the current one: by turns that of the commands, the near one, the
  // page of a thread domain, and one that a summary leads to. Its bits may be gone: a summary bit
  // may lie.
  // Precondition: HasBits, and none of the current leaf.
  void TakeLeaf(shm::DoorbellPage& shared);

  // CPU of the client's last ring.
  uint32_t LastCpu(const shm::DoorbellPage& shared) const {
    return (last_cpu_ != nullptr ? *last_cpu_ : shared.last_cpu).load(std::memory_order_relaxed);
  }

  // The current leaf, and its bits that are not served yet.
  uint32_t leaf = 0;
  uint64_t leaf_bits = 0;

 private:
  void TakePage();
  void TakeFarLeaf(shm::DoorbellPage& shared);

  bool has_commands_ = false;
  uint64_t near_bits_ = 0;
  uint64_t pages_left_ = 0;  // bit per page of page_bits_
  uint64_t page_bits_[shm::kThreadDoorbellPages] = {};
  uint64_t summary_bits_[shm::kDoorbellSummaries] = {};
  uint16_t summaries_left_ = 0;  // bit per word of summary_bits_
  uint32_t last_source_ = 0;     // whose turn it was, as TakeLeaf counts them
  uint32_t last_page_ = 0;
  uint32_t last_word_ = 0;  // of the summaries
  uint64_t pages_ = 0;      // bit per page that there is
  shm::ThreadDoorbellPage* page_[shm::kThreadDoorbellPages] = {};
  const std::atomic<uint32_t>* last_cpu_ = nullptr;  // of the page that was rung in last
};

}  // namespace verbena::softnic
