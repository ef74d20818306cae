#include "tools/cli/table.h"

#include <gtest/gtest.h>

namespace verbena::cli {
namespace {

TEST(TableTest, AlignsTextLeftAndNumbersRight) {
  const Table table = {{"name", "qp_num", "state"},
                       {{"verbena0", "17", "rts"}, {"v", "100000", "reset"}}};
  EXPECT_EQ(RenderTable(table),
            "NAME      QP NUM  STATE\n"
            "verbena0      17  rts\n"
            "v         100000  reset\n");
}

TEST(TableTest, FillsShortRowsAndDropsTrailingBlanks) {
  const Table table = {{"a", "b"}, {{"x"}, {"y", "zz"}}};
  EXPECT_EQ(RenderTable(table), "A  B\nx\ny  zz\n");
}

TEST(TableTest, AddressesAreNotNumbers) {
  const Table table = {{"ipv4"}, {{"127.0.0.1"}, {"127.0.0.10"}}};
  EXPECT_EQ(RenderTable(table), "IPV4\n127.0.0.1\n127.0.0.10\n");
}

TEST(TableTest, EmptyTableIsItsHeader) { EXPECT_EQ(RenderTable({{"a", "b"}, {}}), "A  B\n"); }

TEST(TableTest, Bytes) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(999), "999 B");
  EXPECT_EQ(HumanBytes(1000), "1.0 KB");
  EXPECT_EQ(HumanBytes(1549), "1.5 KB");
  EXPECT_EQ(HumanBytes(999'600), "1.0 MB");
  EXPECT_EQ(HumanBytes(23'400'000'000), "23 GB");
  EXPECT_EQ(HumanBytes(UINT64_MAX), "18 EB");
}

TEST(TableTest, Seconds) {
  EXPECT_EQ(HumanSeconds(59), "59 s");
  EXPECT_EQ(HumanSeconds(192), "3 min 12 s");
  EXPECT_EQ(HumanSeconds(7500), "2 h 5 min");
  EXPECT_EQ(HumanSeconds(4 * 86400 + 3600), "4 d 1 h");
}

}  // namespace
}  // namespace verbena::cli
