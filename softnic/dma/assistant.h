// Copies to and from a process that the kernel does not let us reach, by a helper in its address
// space (core/shm/assist.h, docs/adr/0014). To the copier it looks like process_vm_readv and
// process_vm_writev: a call that may last as long as the client likes.
//
// Thread: Read and Write from any, one after the other; End and HasEnded from any.
// Trust:  the helper is the client's. It is believed how many bytes it moved, within what was
// asked;
//         the request is kept in our memory, and its answer is copied once.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "core/shm/assist.h"

namespace verbena::softnic {

class Assistant {
 public:
  // What the client's helper needs. The caller owns both.
  struct ClientFds {
    int file = -1;
    int socket = -1;
  };

  // `hanging` counts this one while a request has gone without an answer for kPatienceMs, which a
  // helper that waits for a CPU does not take; `tell` is called when it begins to (any thread).
  // nullptr, with errno in *error.
  static std::unique_ptr<Assistant> Create(ClientFds* fds, int* error,
                                           std::atomic<uint32_t>* hanging = nullptr,
                                           std::function<void()> tell = nullptr);
  static constexpr int kPatienceMs = 1'000;
  ~Assistant();
  Assistant(const Assistant&) = delete;

  // Between our pieces and those of the process, as many bytes on either side, at most
  // kAssistStagingBytes. Bytes moved, in ascending order; fewer, or -EFAULT: what follows can't be
  // touched; -EIO: there is no helper any more, and never will be. Returns when the helper has
  // answered, or is gone, or End was called.
  int64_t Read(const iovec* local, uint32_t local_pieces, const iovec* remote, uint32_t pieces);
  int64_t Write(const iovec* local, uint32_t local_pieces, const iovec* remote, uint32_t pieces);

  // No copy begins any more, and who waits returns. What the helper still does it does to memory of
  // its own, with bytes meant for it.
  void End();
  bool HasEnded() const { return has_ended_.load(std::memory_order_acquire); }

 private:
  Assistant() = default;
  int64_t Transfer(shm::AssistKind kind, const iovec* remote, uint32_t pieces, uint64_t bytes);
  bool AwaitAnswer(uint32_t number);
  bool AwaitRing(bool* hangs);
  bool RingHelper();

  shm::AssistArea* area_ = nullptr;
  std::byte* staging_ = nullptr;
  int socket_ = -1;
  std::atomic<bool> has_ended_{false};
  std::atomic<uint32_t>* hanging_ = nullptr;
  std::function<void()> tell_;

  std::mutex mutex_;  // guards the area, and the next two
  uint32_t number_ = 0;
  uint32_t spins_ = 0;
};

}  // namespace verbena::softnic
