// Which QP a thread posts to, guessed from where it went from here the last time.
//
// With many QPs the lines that a post writes to are with the NIC's core or nowhere near, and the
// atomic OR that rings the doorbell waits for them. Asked for two posts ahead they come meanwhile.
// Most programs go over their QPs in turn. A wrong guess costs what asking costs.
//
// Thread: any; where several post to one QP, each replaces what the other has noted. Nothing is
// read at the addresses noted: their QP may be gone.
#pragma once

#include <stdlib.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "core/base/prefetch.h"

namespace verbena::verbs {

// What a post to a QP touches first. All null: not known.
struct PostLines {
  void Expect() const {
    const auto* first = static_cast<const char*>(qp);
    PrefetchForRead(first);
    PrefetchForRead(first + kCacheLineBytes);
    PrefetchForWrite(head);
    PrefetchForWrite(entry);
  }

  const void* qp = nullptr;  // two lines side by side
  void* head = nullptr;      // of its send queue
  void* entry = nullptr;     // the next one there
};

class PostOrder {
 public:
  // The QPs of a context that has an order: those of fewer stay in cache by themselves.
  static constexpr uint32_t kManyQps = 128;

  // 384 KB, of which most kernels give what is used. nullptr: there is no memory.
  static PostOrder* Make() {
    static std::atomic<uint64_t> last{0};
    auto* order = static_cast<PostOrder*>(calloc(1, sizeof(PostOrder)));
    if (order != nullptr) order->number_ = last.fetch_add(1, std::memory_order_relaxed) + 1;
    return order;
  }
  static void Free(PostOrder* order) { free(order); }

  // The calling thread has posted to the QP `number`, whose next post will touch `lines`. Returns
  // what is known of the QP that it posts to after the next.
  PostLines OnPost(uint32_t number, const PostLines& lines) {
    // In the thread's own block from its start on: a post must not allocate, as it would for a
    // library that was loaded later.
    thread_local Recent recent __attribute__((tls_model("initial-exec")));
    const uint32_t place = number % kPlaces;
    if (recent.order != number_) recent = {number_, place, place};
    after_next_[recent.before].Store(lines);
    recent = {number_, recent.last, place};
    return after_next_[place].Load();
  }

 private:
  // QPs whose numbers are alike share a place: a worse guess.
  static constexpr uint32_t kPlaces = 16'384;

  // Where a thread posted last, and before that.
  struct Recent {
    uint64_t order = 0;
    uint32_t before = 0, last = 0;
  };
  // Without an initialiser: it is there when its memory is.
  struct Place {
    void Store(const PostLines& lines) {
      Set(qp, lines.qp);
      Set(head, lines.head);
      Set(entry, lines.entry);
    }
    PostLines Load() const { return {Get(qp), Get(head), Get(entry)}; }

   private:
    template <typename T>
    static void Set(T*& to, T* value) {
      __atomic_store_n(&to, value, __ATOMIC_RELAXED);
    }
    template <typename T>
    static T* Get(T* const& from) {
      return __atomic_load_n(&from, __ATOMIC_RELAXED);
    }

    const void* qp;
    void* head;
    void* entry;
  };

  std::array<Place, kPlaces> after_next_;
  // Never given twice, as an address may be.
  uint64_t number_;
};

}  // namespace verbena::verbs
