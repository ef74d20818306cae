// A helper as a thread of the test, whose memory is the client's: honest, lying, or silent.
#pragma once

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <thread>

#include "core/shm/assist.h"
#include "softnic/dma/assistant.h"

namespace verbena::softnic {

class FakeHelper {
 public:
  // What it says to a request that it may have carried out; the second is what is true.
  using Answer = std::function<int64_t(const shm::AssistArea&, int64_t)>;

  // Owns the fds from now on.
  explicit FakeHelper(Assistant::ClientFds fds, Answer answer = nullptr)
      : fds_(fds), answer_(std::move(answer)) {
    area_ = static_cast<shm::AssistArea*>(
        mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds.file, 0));
    area_->helper_sleeps.store(1);
    thread_ = std::thread([this] { Run(); });
  }
  ~FakeHelper() {
    Leave();
    thread_.join();
    munmap(area_, 4096);
    close(fds_.file);
    close(fds_.socket);
  }
  // Its end of the socket closes, as with its process.
  void Leave() { shutdown(fds_.socket, SHUT_RDWR); }
  // Requests are taken and not answered, until it is false again.
  std::atomic<bool> is_silent{false};
  std::atomic<uint32_t> requests{0};

  shm::AssistArea* area() { return area_; }
  int socket() const { return fds_.socket; }

 private:
  void Run() {
    uint32_t served = 0;
    for (char bells[64];;) {
      pollfd event = {fds_.socket, POLLIN, 0};
      poll(&event, 1, 1);  // by the clock, too: who is silent must notice that it no longer is
      const ssize_t n = recv(fds_.socket, bells, sizeof(bells), MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) return;
      const uint32_t number = area_->requested.load();
      if (number == served) continue;
      if (requests < number) requests = number;
      if (is_silent) continue;
      served = number;
      const bool is_gather = area_->kind == static_cast<uint32_t>(shm::AssistKind::kGather);
      const auto* pieces = reinterpret_cast<const iovec*>(area_->pieces);
      const int count = static_cast<int>(area_->piece_count);
      const auto offset = static_cast<off_t>(shm::kAssistStagingOffset);
      // The bare calls, as the helper's: TSan would see libc's write to memory that it thinks is
      // handed over by nobody, since the two ends have the area at different addresses.
      int64_t result =
          syscall(is_gather ? SYS_pwritev : SYS_preadv, fds_.file, pieces, count, offset, 0);
      if (result < 0) result = -errno;
      area_->result = answer_ ? answer_(*area_, result) : result;
      area_->answered.store(number);
      if (area_->nic_waits.load() != 0) send(fds_.socket, "", 1, MSG_NOSIGNAL);
    }
  }

  Assistant::ClientFds fds_;
  Answer answer_;
  shm::AssistArea* area_;
  std::thread thread_;
};

}  // namespace verbena::softnic
