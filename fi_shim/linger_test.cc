#include "fi_shim/linger.h"

#include <gtest/gtest.h>

#include "core/base/types.h"

namespace verbena::fi {
namespace {

constexpr int64_t kBegin = 1'000'000;

shm::QueryQpReply Unfinished(uint32_t unacked_psn, bool awaits_receive = false) {
  shm::QueryQpReply reply = {};
  reply.attr.qp_state = static_cast<uint32_t>(QpState::kRts);
  reply.unacked_psn = unacked_psn;
  reply.has_unfinished = 1;
  reply.awaits_receive = awaits_receive;
  return reply;
}

TEST(Linger, DoesNotWaitForWhatIsDone) {
  Linger linger;
  shm::QueryQpReply done = Unfinished(7);
  done.has_unfinished = 0;
  EXPECT_FALSE(linger.Waits(kBegin, done));
  EXPECT_TRUE(linger.is_over());
  EXPECT_FALSE(linger.Waits(kBegin, Unfinished(7))) << "once over it is over";
}

TEST(Linger, WaitsWhileTwoLossesMayBeMended) {
  Linger linger;
  EXPECT_TRUE(linger.Waits(kBegin, Unfinished(7)));
  EXPECT_TRUE(linger.Waits(kBegin + Linger::kSilenceMs - 1, Unfinished(7)));
  EXPECT_FALSE(linger.Waits(kBegin + Linger::kSilenceMs, Unfinished(7)));
}

// As PSNs begin anywhere, one of 0 is as good as any.
TEST(Linger, CountsFromTheFirstLook) {
  Linger linger;
  EXPECT_TRUE(linger.Waits(0, Unfinished(0)));
  EXPECT_TRUE(linger.Waits(Linger::kSilenceMs - 1, Unfinished(0)));
  EXPECT_FALSE(linger.Waits(Linger::kSilenceMs, Unfinished(0)));
}

TEST(Linger, WaitsAnewAfterProgress) {
  Linger linger;
  int64_t now = kBegin;
  EXPECT_TRUE(linger.Waits(now, Unfinished(7)));
  EXPECT_TRUE(linger.Waits(now += Linger::kSilenceMs - 1, Unfinished(8)));
  EXPECT_TRUE(linger.Waits(now += Linger::kSilenceMs - 1, Unfinished(8)));
  EXPECT_FALSE(linger.Waits(now + 1, Unfinished(8)));
}

TEST(Linger, APeerWithoutAReceiveHasLessTime) {
  Linger linger;
  EXPECT_TRUE(linger.Waits(kBegin, Unfinished(7, true)));
  // Between two refusals it is on its way again.
  EXPECT_TRUE(linger.Waits(kBegin + Linger::kRefusedMs - 1, Unfinished(7, false)));
  EXPECT_FALSE(linger.Waits(kBegin + Linger::kRefusedMs, Unfinished(7, false)));
}

TEST(Linger, APeerThatHadNoReceiveAndThenOneHasAllTime) {
  Linger linger;
  EXPECT_TRUE(linger.Waits(kBegin, Unfinished(7, true)));
  const int64_t later = kBegin + Linger::kRefusedMs - 1;
  EXPECT_TRUE(linger.Waits(later, Unfinished(8)));
  EXPECT_TRUE(linger.Waits(later + Linger::kSilenceMs - 1, Unfinished(8)));
  EXPECT_FALSE(linger.Waits(later + Linger::kSilenceMs, Unfinished(8)));
}

TEST(Linger, APeerThatCrawlsIsNotWaitedForWithoutEnd) {
  Linger linger;
  uint32_t psn = 0;
  int64_t now = kBegin;
  for (; now < kBegin + Linger::kLimitMs; now += Linger::kSilenceMs - 1) {
    ASSERT_TRUE(linger.Waits(now, Unfinished(++psn)));
  }
  EXPECT_FALSE(linger.Waits(now, Unfinished(++psn)));
}

TEST(Linger, OnlyOfAQpThatSendsOrWill) {
  for (const QpState state : {QpState::kReset, QpState::kInit, QpState::kRtr, QpState::kRts,
                              QpState::kSqd, QpState::kSqe, QpState::kErr}) {
    shm::QueryQpReply reply = Unfinished(7);
    reply.attr.qp_state = static_cast<uint32_t>(state);
    const bool waits = state == QpState::kInit || state == QpState::kRts;
    EXPECT_EQ(Linger().Waits(kBegin, reply), waits) << static_cast<int>(state);
  }
}

}  // namespace
}  // namespace verbena::fi
