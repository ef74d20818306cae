// The mover, with the test as its NIC.
#include "core/client/assist_mover.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <new>
#include <string>
#include <vector>

namespace verbena::client {
namespace {

using shm::AssistKind;
using shm::AssistPiece;

constexpr int kDeadlineMs = 20'000;

// A program's functions: they count what they moved.
struct Program {
  std::atomic<uint64_t> gathered{0}, scattered{0};
  std::atomic<int> error{0};
  // Orders what both threads touch for TSan, which does not know that the area's two mappings are
  // the same memory.
  std::atomic<uint32_t> turns{0};
};

class Turn {
 public:
  explicit Turn(Program& program) : program_(program) { program_.turns.fetch_add(1); }
  ~Turn() { program_.turns.fetch_add(1); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Program& program_;
};

int64_t Gather(void* context, void* to, const AssistPiece* from, uint32_t count) {
  auto* program = static_cast<Program*>(context);
  const Turn turn(*program);
  if (program->error.load() != 0) return -program->error.load();
  int64_t bytes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    memcpy(static_cast<char*>(to) + bytes, reinterpret_cast<void*>(from[i].addr), from[i].bytes);
    bytes += static_cast<int64_t>(from[i].bytes);
  }
  program->gathered.fetch_add(static_cast<uint64_t>(bytes));
  return bytes;
}

int64_t Scatter(void* context, const AssistPiece* to, uint32_t count, const void* from,
                uint64_t bytes) {
  auto* program = static_cast<Program*>(context);
  const Turn turn(*program);
  const auto* next = static_cast<const char*>(from);
  for (uint32_t i = 0; i < count; ++i) {
    memcpy(reinterpret_cast<void*>(to[i].addr), next, to[i].bytes);
    next += to[i].bytes;
  }
  program->scattered.fetch_add(bytes);
  return static_cast<int64_t>(bytes);
}

AssistPiece Piece(const void* data, uint64_t bytes) {
  return {reinterpret_cast<uint64_t>(data), bytes};
}

class MoverTest : public testing::Test {
 protected:
  MoverTest() {
    const int file = memfd_create("mover-test", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(file, shm::kAssistFileBytes), 0);
    void* base = mmap(nullptr, shm::kAssistFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    EXPECT_NE(base, MAP_FAILED);
    area_ = new (base) shm::AssistArea();
    staging_ = static_cast<char*>(base) + shm::kAssistStagingOffset;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0);
    EXPECT_EQ(StartMover(file, ends_[1], {&program_, Gather, Scatter}, &mover_), 0);
  }
  ~MoverTest() override {
    if (mover_ != nullptr) StopMover(mover_);
    close(ends_[0]);
    munmap(area_, shm::kAssistFileBytes);
  }

  int64_t Ask(AssistKind kind, const std::vector<AssistPiece>& pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) area_->pieces[i] = pieces[i];
    area_->kind = static_cast<uint32_t>(kind);
    area_->piece_count = static_cast<uint32_t>(pieces.size());
    const uint32_t number = area_->requested.load() + 1;
    const Turn turn(program_);
    area_->nic_waits.store(1);
    area_->requested.store(number);
    if (area_->helper_sleeps.load() != 0) {
      EXPECT_EQ(send(ends_[0], "", 1, MSG_NOSIGNAL), 1);
    }
    pollfd event = {ends_[0], POLLIN, 0};
    while (area_->answered.load() != number) {
      if (poll(&event, 1, kDeadlineMs) != 1) return -ETIMEDOUT;
      char bells[16];
      if (recv(ends_[0], bells, sizeof(bells), 0) <= 0) return -EPIPE;
    }
    return area_->result;
  }

  Program program_;
  shm::AssistArea* area_ = nullptr;
  char* staging_ = nullptr;
  int ends_[2] = {-1, -1};
  Mover* mover_ = nullptr;
};

TEST_F(MoverTest, TheProgramsFunctionsMoveEveryByte) {
  const std::string a = "the first ", b = "and the second";
  EXPECT_EQ(Ask(AssistKind::kGather, {Piece(a.data(), a.size()), Piece(b.data(), b.size())}), 24);
  EXPECT_EQ(std::string(staging_, 24), a + b);
  std::string to(24, '.');
  EXPECT_EQ(Ask(AssistKind::kScatter, {Piece(to.data(), 4), Piece(to.data() + 4, 20)}), 24);
  EXPECT_EQ(to, a + b);
  EXPECT_EQ(program_.gathered.load(), 24u);
  EXPECT_EQ(program_.scattered.load(), 24u);
}

TEST_F(MoverTest, TellsTheProgramsError) {
  program_.error.store(EFAULT);
  char byte = 0;
  EXPECT_EQ(Ask(AssistKind::kGather, {Piece(&byte, 1)}), -EFAULT);
}

TEST_F(MoverTest, RefusesMoreThanTheStagingAreaHolds) {
  char byte = 0;
  EXPECT_EQ(Ask(AssistKind::kGather, {Piece(&byte, shm::kAssistStagingBytes + 1)}), -EINVAL);
  EXPECT_EQ(program_.gathered.load(), 0u);
}

TEST_F(MoverTest, StopsWhileItSleeps) {
  StopMover(mover_);
  mover_ = nullptr;
  char byte;
  EXPECT_EQ(recv(ends_[0], &byte, 1, 0), 0);  // its end is closed
}

TEST_F(MoverTest, EndsWithTheNic) {
  shutdown(ends_[0], SHUT_RDWR);
  StopMover(mover_);
  mover_ = nullptr;
}

}  // namespace
}  // namespace verbena::client
