// A process that has no fd left: what needs one is refused at once, leaves nothing behind, and
// works when fds are free again.
#include <rdma/rdma_cma.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

using Verb_ibv_create_cq = VerbsTest;
using Verb_ibv_resize_cq = VerbsTest;
using Verb_ibv_create_comp_channel = VerbsTest;
using Verb_ibv_reg_mr = VerbsTest;
using Cm_rdma_create_event_channel = VerbsTest;

// More than a process may have of anything whose number a channel counts against.
constexpr int kManyFailures = 5000;
// An arena of queues is 64 MB, and these fill one.
constexpr int kArenaOfCqe = 1 << 20;

// While it lives every fd that this process may have is in use.
class NoFdsFree {
 public:
  NoFdsFree() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit few = before_;
    few.rlim_cur = 256;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int fd; (fd = dup(STDERR_FILENO)) >= 0;) fds_.push_back(fd);
    EXPECT_EQ(errno, EMFILE);
  }
  ~NoFdsFree() {
    for (int fd : fds_) close(fd);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0);
  }
  NoFdsFree(const NoFdsFree&) = delete;
  NoFdsFree& operator=(const NoFdsFree&) = delete;

 private:
  rlimit before_ = {};
  std::vector<int> fds_;
};

// A session of its own, which has nothing yet, and can be closed at the end.
class Context {
 public:
  Context() : context_(OpenNic(0)) { EXPECT_NE(context_, nullptr); }
  ~Context() { EXPECT_EQ(ibv_close_device(context_), 0); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  operator ibv_context*() const { return context_; }

 private:
  ibv_context* context_;
};

TEST_F(Verb_ibv_create_cq, NeedsNoFreeFd) {
  const Context context;
  for (int i = 0; i < 2; ++i) {  // each in an arena of its own
    ibv_cq* cq;
    {
      const NoFdsFree none;
      cq = ibv_create_cq(context, kArenaOfCqe, nullptr, nullptr, 0);
    }
    ASSERT_NE(cq, nullptr) << errno;
    ibv_cq* next = ibv_create_cq(context, 16, nullptr, nullptr, 0);
    ASSERT_NE(next, nullptr) << errno;
    EXPECT_EQ(ibv_destroy_cq(next), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
  }
}

TEST_F(Verb_ibv_resize_cq, GoesToAnotherArenaThoughNoFdIsFree) {
  MakePair();
  {
    const NoFdsFree none;
    EXPECT_EQ(ibv_resize_cq(a->send_cq, kArenaOfCqe), 0);
  }
  ASSERT_EQ(b->PostRecv(1, 0, 64), 0);
  ASSERT_EQ(a->Send(7, 0, 64), 0);
  EXPECT_EQ(a->WaitSend().wr_id, 7u) << "the NIC's CQ is the program's";
}

TEST_F(Verb_ibv_create_comp_channel, SaysEmfileAtOnceAndLeavesNothing) {
  const Context context;
  {
    const NoFdsFree none;
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < kManyFailures; ++i) {
      ASSERT_EQ(ibv_create_comp_channel(context), nullptr);
      ASSERT_EQ(errno, EMFILE) << i;
      ASSERT_LT(Clock::now() - begin, Milliseconds(30'000)) << i;
    }
  }
  ibv_comp_channel* channel = ibv_create_comp_channel(context);
  ASSERT_NE(channel, nullptr) << errno;
  ibv_cq* cq = ibv_create_cq(context, 16, nullptr, channel, 0);
  ASSERT_NE(cq, nullptr) << errno;
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

TEST_F(Verb_ibv_reg_mr, HasItsHelperWhenThereIsRoomForIt) {
  const char* set = getenv("VERBENA_DMA");
  const std::string before = set != nullptr ? set : "";
  const Context context;
  ibv_pd* pd = ibv_alloc_pd(context);
  ASSERT_NE(pd, nullptr) << errno;
  setenv("VERBENA_DMA", "assisted", 1);
  Memory memory(4096);
  {
    const NoFdsFree none;
    EXPECT_EQ(ibv_reg_mr(pd, memory.data(), 4096, kAllAccess), nullptr);
    EXPECT_EQ(errno, EMFILE);
  }
  ibv_mr* mr = ibv_reg_mr(pd, memory.data(), 4096, kAllAccess);
  EXPECT_TRUE(mr != nullptr && ibv_dereg_mr(mr) == 0) << errno;
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  if (set != nullptr) setenv("VERBENA_DMA", before.c_str(), 1);
  if (set == nullptr) unsetenv("VERBENA_DMA");
}

TEST_F(Cm_rdma_create_event_channel, SaysEmfileAtOnceAndLeavesNothing) {
  rdma_event_channel* channel = rdma_create_event_channel();
  ASSERT_NE(channel, nullptr) << errno;
  {
    const NoFdsFree none;
    for (int i = 0; i < kManyFailures; ++i) {
      ASSERT_EQ(rdma_create_event_channel(), nullptr);
      ASSERT_EQ(errno, EMFILE) << i;
    }
  }
  rdma_event_channel* next = rdma_create_event_channel();
  ASSERT_NE(next, nullptr) << errno;
  rdma_destroy_event_channel(next);
  rdma_destroy_event_channel(channel);
}

}  // namespace
}  // namespace verbena::conformance
