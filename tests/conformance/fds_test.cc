// A process that has no fd left: what needs one is refused at once, leaves nothing behind, and
// works when fds are free again.
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
using Verb_ibv_reg_mr = VerbsTest;

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

TEST_F(Verb_ibv_create_cq, NeedsNoFreeFd) {
  ibv_context* context = OpenNic(0);
  ASSERT_NE(context, nullptr);
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
  EXPECT_EQ(ibv_close_device(context), 0);
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

TEST_F(Verb_ibv_reg_mr, HasItsHelperWhenThereIsRoomForIt) {
  const char* set = getenv("VERBENA_DMA");
  const std::string before = set != nullptr ? set : "";
  a = std::make_unique<Side>(SideOptions{});
  setenv("VERBENA_DMA", "assisted", 1);
  Memory memory(4096);
  {
    const NoFdsFree none;
    EXPECT_EQ(ibv_reg_mr(a->pd, memory.data(), 4096, kAllAccess), nullptr);
    EXPECT_EQ(errno, EMFILE);
  }
  ibv_mr* mr = ibv_reg_mr(a->pd, memory.data(), 4096, kAllAccess);
  EXPECT_TRUE(mr != nullptr && ibv_dereg_mr(mr) == 0) << errno;
  if (set != nullptr) setenv("VERBENA_DMA", before.c_str(), 1);
  if (set == nullptr) unsetenv("VERBENA_DMA");
}

}  // namespace
}  // namespace verbena::conformance
