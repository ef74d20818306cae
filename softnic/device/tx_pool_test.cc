#include "softnic/device/tx_pool.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace verbena::softnic {
namespace {

TEST(TxPool, ABlockComesBackWithItsLastPacketHoweverItGoes) {
  TxPool pool;
  TxBlock* block = pool.TakeBlock(3 * 1000);
  TxPacket* packets[] = {pool.Take(block, 0), pool.Take(block, 1000), pool.Take(block, 2000)};
  EXPECT_EQ(packets[1]->bytes, block->bytes + 1000);
  pool.Give(packets[0]);
  pool.GiveLent(packets[1]);
  pool.Give(packets[2]);
  EXPECT_EQ(block->users, 1u);
  EXPECT_NE(pool.TakeBlock(3 * 1000), block) << "the port has it still";
  pool.TakeBack(block);
  EXPECT_EQ(pool.TakeBlock(3 * 1000), block);
}

TEST(TxPool, BlocksDoNotOverlapAndHoldWhatTheyAreFor) {
  TxPool pool;
  std::vector<TxBlock*> blocks;
  for (uint32_t bytes : {1u, 256u, 257u, 4'152u, 4'153u, 16'384u, 16'385u, 60'000u}) {
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(pool.Has(1, bytes));
      TxBlock* block = pool.TakeBlock(bytes);
      std::fill_n(block->bytes, bytes, static_cast<std::byte>(blocks.size()));
      block->users = bytes;
      blocks.push_back(block);
    }
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (uint32_t byte = 0; byte < blocks[i]->users; ++byte) {
      ASSERT_EQ(blocks[i]->bytes[byte], static_cast<std::byte>(i));
    }
  }
}

TEST(TxPool, SmallPdusTakeLargerBlocksWhenTheirOwnAreGone) {
  TxPool pool;
  // Fewer than there are packets: memory is what ends.
  uint32_t count = 0;
  for (; pool.Has(1, 10'000); ++count) pool.Take(pool.TakeBlock(10'000), 0);
  EXPECT_EQ(count, 512u + 256u);
  EXPECT_FALSE(pool.HasForAny());
  EXPECT_TRUE(pool.Has(1, 4'000));
  EXPECT_TRUE(pool.Has(1, 20));
}

// Ports without room must not take the memory that QPs of others need.
TEST(TxPool, HalfOfTheBlocksOfASizeAreNeverLent) {
  for (auto [payload_bytes, blocks_max] : {std::pair{1'000u, 4'096u}, std::pair{50'000u, 256u}}) {
    TxPool pool;
    uint32_t lent = 0;
    while (true) {
      ASSERT_TRUE(pool.Has(1, payload_bytes + kTxOverheadBytes));
      TxPacket* packet = pool.Take(pool.TakeBlock(payload_bytes + kTxOverheadBytes), 0);
      packet->payload_bytes = payload_bytes;
      if (!pool.MayLend(*packet)) break;
      pool.GiveLent(packet);
      ++lent;
    }
    EXPECT_EQ(lent, blocks_max / 2);
  }
}

TEST(TxPool, ShortPacketsAreNotLent) {
  TxPool pool;
  TxPacket* packet = pool.Take(pool.TakeBlock(64), 0);
  packet->payload_bytes = 64;
  EXPECT_FALSE(pool.MayLend(*packet));
}

TEST(TxPool, PacketsAreBoundedToo) {
  TxPool pool;
  std::vector<TxPacket*> taken;
  while (pool.Has(1, 20)) taken.push_back(pool.Take(pool.TakeBlock(20), 0));
  EXPECT_EQ(taken.size(), size_t{TxPool::kPacketsMax});
  EXPECT_FALSE(pool.Has(1, 20));
  pool.Give(taken.back());
  EXPECT_TRUE(pool.Has(1, 20));
  EXPECT_FALSE(pool.Has(2, 20));
}

}  // namespace
}  // namespace verbena::softnic
