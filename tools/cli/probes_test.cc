#include "tools/cli/probes.h"

#include <gtest/gtest.h>

#include "tools/cli/probes_internal.h"

namespace verbena::cli {
namespace {

constexpr char kUdp[] =
    "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
    "inode "
    "ref pointer drops\n"
    "  116: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 "
    "20001 2 0000000000000000 0\n"
    " 3456: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 "
    "987654 2 0000000000000000 0\n";

TEST(ProbesTest, FindsTheHolderOfAPort) {
  EXPECT_EQ(UdpSocketInode(kUdp, 4791), 987654u);
  EXPECT_EQ(UdpSocketInode(kUdp, 53), 20001u);
  EXPECT_EQ(UdpSocketInode(kUdp, 4792), 0u);
  EXPECT_EQ(UdpSocketInode("", 4791), 0u);
  EXPECT_EQ(UdpSocketInode("header\n 1: nonsense\n", 4791), 0u);
}

TEST(ProbesTest, QuotaIsRoundedUp) {
  EXPECT_EQ(CpusOfQuota("max 100000\n"), 0);
  EXPECT_EQ(CpusOfQuota("150000 100000\n"), 2);
  EXPECT_EQ(CpusOfQuota("200000 100000\n"), 2);
  EXPECT_EQ(CpusOfQuota("-1 0"), 0);
  EXPECT_EQ(CpusOfQuota(""), 0);
}

TEST(ProbesTest, TrimsBothEnds) {
  EXPECT_EQ(Trim(" 1\n"), "1");
  EXPECT_EQ(Trim("\n"), "");
}

TEST(ProbesTest, EveryProblemSaysWhatToDo) {
  for (const Finding& finding : RunProbes()) {
    EXPECT_FALSE(finding.id.empty());
    EXPECT_FALSE(finding.found.empty()) << finding.id;
    if (finding.verdict != Verdict::kOk) {
      EXPECT_FALSE(finding.effect.empty()) << finding.id;
      EXPECT_FALSE(finding.fix.empty()) << finding.id;
    }
  }
}

}  // namespace
}  // namespace verbena::cli
