#include "softnic/engine/doorbell_scan.h"

#include <bit>
#include <utility>

namespace verbena::softnic {

static_assert(shm::kDoorbellSummaries == 16, "summaries_left_ has 16 bits");
// Leaf 0 is that of the commands.
constexpr uint64_t kCommandsBit = 1;

void DoorbellScan::OpenPage(uint32_t page, shm::ThreadDoorbellPage* memory) {
  page_[page] = memory;
  pages_ |= uint64_t{1} << page;
}

void DoorbellScan::ClosePage(uint32_t page) {
  if (last_cpu_ == &page_[page]->last_cpu) last_cpu_ = nullptr;
  pages_ &= ~(uint64_t{1} << page);
  pages_left_ &= ~(uint64_t{1} << page);
  page_[page] = nullptr;
  page_bits_[page] = 0;
}

bool DoorbellScan::HasRung(const shm::DoorbellPage& shared) const {
  if (shared.near_leaf.load(std::memory_order_relaxed) != 0) return true;
  for (uint64_t pages = pages_; pages != 0; pages &= pages - 1) {
    const shm::ThreadDoorbellPage* own = page_[std::countr_zero(pages)];
    if (own->bits.load(std::memory_order_relaxed) != 0) return true;
  }
  for (const auto& word : shared.summary) {
    if (word.load(std::memory_order_relaxed) != 0) return true;
  }
  return false;
}

uint32_t DoorbellScan::Take(shm::DoorbellPage& shared) {
  if (shared.near_leaf.load(std::memory_order_relaxed) != 0) {
    // Acquire: pairs with the client's OR, so that the index behind the bit is seen.
    near_bits_ |= shared.near_leaf.exchange(0, std::memory_order_seq_cst);
    last_cpu_ = &shared.last_cpu;
  }
  uint32_t threads = 0;
  for (uint64_t pages = pages_; pages != 0; pages &= pages - 1) {
    const int i = std::countr_zero(pages);
    shm::ThreadDoorbellPage* own = page_[i];
    if (own->bits.load(std::memory_order_relaxed) == 0) continue;
    page_bits_[i] |= own->bits.exchange(0, std::memory_order_seq_cst);
    pages_left_ |= uint64_t{1} << i;
    last_cpu_ = &own->last_cpu;
    ++threads;
  }
  // Who waits for the answer to a command does not wait for all that is rung. (One that is rung
  // just after this comes first in its word.)
  if ((shared.summary[0].load(std::memory_order_relaxed) & kCommandsBit) != 0) {
    shared.summary[0].fetch_and(~kCommandsBit, std::memory_order_seq_cst);
    has_commands_ = true;
    last_cpu_ = &shared.last_cpu;
  }
  for (uint32_t i = 0; i < shm::kDoorbellSummaries; ++i) {
    // Each leaf of the word has its turn before any of them has another: those that are rung all
    // the time come first in it, and the last would wait for ever.
    if (summary_bits_[i] != 0) continue;
    auto& word = shared.summary[i];
    if (word.load(std::memory_order_relaxed) == 0) continue;
    // Acquire: pairs with the client's OR, so that the leaf bit and the index below are seen.
    summary_bits_[i] = word.exchange(0, std::memory_order_seq_cst);
    last_cpu_ = &shared.last_cpu;
    if (summary_bits_[i] != 0) summaries_left_ |= static_cast<uint16_t>(1u << i);
  }
  return threads;
}

void DoorbellScan::TakeLeaf(shm::DoorbellPage& shared) {
  constexpr uint32_t kCommands = 0, kNear = 1, kThread = 2, kSources = 4;
  const bool has[kSources] = {has_commands_, near_bits_ != 0, pages_left_ != 0,
                              summaries_left_ != 0};
  uint32_t source = (last_source_ + 1) % kSources;
  while (!has[source]) source = (source + 1) % kSources;
  last_source_ = source;
  if (source == kCommands) {
    leaf = 0;
    leaf_bits = shared.Leaf(0).exchange(0, std::memory_order_seq_cst);
    has_commands_ = false;
  } else if (source == kNear) {
    leaf = shm::kNearLeaf;
    leaf_bits = std::exchange(near_bits_, 0);
  } else if (source == kThread) {
    TakePage();
  } else {
    TakeFarLeaf(shared);
  }
}

void DoorbellScan::TakePage() {
  const int from = static_cast<int>((last_page_ + 1) % shm::kThreadDoorbellPages);
  const int ahead = std::countr_zero(std::rotr(pages_left_, from));
  const uint32_t page = static_cast<uint32_t>(from + ahead) % shm::kThreadDoorbellPages;
  last_page_ = page;
  pages_left_ &= ~(uint64_t{1} << page);
  leaf = shm::kFirstThreadDoorbell / 64 + page;
  leaf_bits = std::exchange(page_bits_[page], 0);
}

void DoorbellScan::TakeFarLeaf(shm::DoorbellPage& shared) {
  const int from = static_cast<int>((last_word_ + 1) % shm::kDoorbellSummaries);
  const int ahead = std::countr_zero(std::rotr(summaries_left_, from));
  const uint32_t word = static_cast<uint32_t>(from + ahead) % shm::kDoorbellSummaries;
  last_word_ = word;
  uint64_t& bits = summary_bits_[word];
  leaf = word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
  bits &= bits - 1;
  if (bits == 0) summaries_left_ &= static_cast<uint16_t>(~(1u << word));
  leaf_bits = shared.Leaf(leaf).exchange(0, std::memory_order_seq_cst);
}

}  // namespace verbena::softnic
