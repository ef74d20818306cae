// Collecting packets into batches: limits, order, and the ICRC of each place in a batch.
#include "transport/port/udp/send_batch.h"

#include <gtest/gtest.h>

#include <cstring>

#include "transport/port/udp/udp_options.h"
#include "transport/port/udp/udp_port_test_util.h"
#include "transport/wire/crc32.h"

namespace verbena::transport {
namespace {

using wire::IcrcCheck;

// A block of packets back to back, each with room for its ICRC.
class Lender final : public PacketLender {
 public:
  explicit Lender(size_t bytes) : block(bytes) {}
  void TakeBack(void* back) override {
    EXPECT_EQ(back, block.data());
    ++taken_back;
  }

  std::vector<std::byte> block;
  uint32_t taken_back = 0;
};

class SendBatchTest : public testing::Test {
 protected:
  static constexpr uint32_t kPool = 12;

  SendBatchTest() {
    endpoint_.address = {V4(10, 0, 0, 1), 7};
    endpoint_.bound = endpoint_.address.gid;
    endpoint_.ipv4 = true;
    address_.source = endpoint_.bound;
    address_.destination = V4(10, 0, 0, 2);
  }

  bool Add(uint32_t length, int32_t corrupt_bit = -1, bool one_by_one = false) {
    const auto bytes = MakePacket(length, seed_++);
    return collector_.Add(
        0, endpoint_, address_,
        {.address = address_, .bytes = bytes.data(), .length = length, .corrupt_bit = corrupt_bit},
        one_by_one);
  }
  bool AddLent(Lender* lender, size_t offset, uint32_t length) {
    const auto bytes = MakePacket(length, seed_++);
    std::copy(bytes.begin(), bytes.end(), lender->block.begin() + static_cast<long>(offset));
    return collector_.Add(0, endpoint_, address_,
                          {.address = address_,
                           .bytes = lender->block.data() + offset,
                           .length = length,
                           .lender = lender,
                           .block = lender->block.data()},
                          false);
  }
  IcrcCheck Check(const SendBatch& batch, uint32_t segment, uint16_t expected_ip_id,
                  uint16_t* ip_id) {
    return wire::VerifyIcrc(batch.address, expected_ip_id, batch.segments[segment].bytes,
                            batch.SegmentLength(segment), ip_id);
  }
  SendBatch* Take() { return collector_.TakeReady(blocked_); }

  Endpoint endpoint_;
  wire::PacketAddress address_;
  SendCollector collector_{kPool};
  std::vector<bool> blocked_{false, false};
  uint32_t seed_ = 1;
};

TEST_F(SendBatchTest, ABatchEndsWithSixtyFourSegments) {
  for (uint32_t i = 0; i < kBatchSegmentsMax; ++i) {
    EXPECT_EQ(Take(), nullptr);
    ASSERT_TRUE(Add(96));
  }
  SendBatch* batch = Take();
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->segment_count, 64u);
  EXPECT_EQ(batch->used_bytes, 6400u);
  for (uint32_t i = 0; i < 64; ++i) {
    uint16_t ip_id = 0;
    EXPECT_EQ(Check(*batch, i, static_cast<uint16_t>(i), &ip_id), IcrcCheck::kExact);
  }
}

TEST_F(SendBatchTest, ABatchNeverPassesWhatADatagramHolds) {
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(Add(4140));
  SendBatch* batch = Take();
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->segment_count, 15u);
  EXPECT_LE(batch->used_bytes, kBatchBytesMax);
  collector_.CloseAll();
  ASSERT_NE(batch = Take(), nullptr);
  EXPECT_EQ(batch->segment_count, 1u);
}

TEST_F(SendBatchTest, AShorterPacketIsTheLastAndALongerOneTheNextsFirst) {
  ASSERT_TRUE(Add(1000) && Add(1000) && Add(20) && Add(1000) && Add(2000));
  collector_.CloseAll();
  const uint32_t counts[] = {3, 1, 1};
  for (uint32_t count : counts) {
    SendBatch* batch = Take();
    ASSERT_NE(batch, nullptr);
    EXPECT_EQ(batch->segment_count, count);
  }
  EXPECT_EQ(Take(), nullptr);
}

TEST_F(SendBatchTest, WhatWasPutBackGoesFirstAgain) {
  ASSERT_TRUE(Add(100) && Add(200) && Add(300));
  collector_.CloseAll();
  SendBatch* first = Take();
  SendBatch* second = Take();
  collector_.PutBack(second);
  collector_.PutBack(first);
  EXPECT_EQ(Take(), first);
  EXPECT_EQ(Take(), second);
}

TEST_F(SendBatchTest, ABlockedEndpointIsPassedOver) {
  ASSERT_TRUE(Add(100));
  collector_.CloseAll();
  blocked_[0] = true;
  EXPECT_FALSE(collector_.HasReady(blocked_));
  EXPECT_EQ(Take(), nullptr);
  blocked_[0] = false;
  EXPECT_NE(Take(), nullptr);
}

TEST_F(SendBatchTest, WithoutAFreeBatchThePacketIsNotTaken) {
  // Each longer than the one before: a batch of its own.
  for (uint32_t i = 0; i < kPool; ++i) ASSERT_TRUE(Add(100 + 4 * i));
  EXPECT_FALSE(Add(2000));
  EXPECT_FALSE(Add(2000));
  SendBatch* batch = Take();
  ASSERT_NE(batch, nullptr);
  collector_.Release(batch);
  EXPECT_TRUE(Add(2000));
  // The one that was open while there was no room has kept its packet, and its place before it.
  uint32_t batches = 0;
  collector_.CloseAll();
  for (uint32_t last = 0; (batch = Take()) != nullptr; ++batches) {
    EXPECT_GT(batch->used_bytes, last);
    last = batch->used_bytes;
  }
  EXPECT_EQ(batches, kPool);
}

TEST_F(SendBatchTest, OneByOneMeansIdentificationZeroForAll) {
  const int32_t corrupt_bit = 8 * 40 + 1;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Add(100, i == 3 ? corrupt_bit : -1));
  collector_.CloseAll();
  SendBatch* batch = Take();
  ASSERT_NE(batch, nullptr);
  uint16_t ip_id = 0;
  EXPECT_EQ(Check(*batch, 2, 2, &ip_id), IcrcCheck::kExact);
  batch->BecomeOneByOne();
  for (uint32_t i = 0; i < 5; ++i) {
    // The fault tap's bit is still wrong, and nothing else is.
    if (i == 3) {
      EXPECT_NE(Check(*batch, i, 0, &ip_id), IcrcCheck::kExact);
      batch->segments[i].bytes[40] ^= std::byte{2};
    }
    EXPECT_EQ(Check(*batch, i, 0, &ip_id), IcrcCheck::kExact) << i;
  }
}

TEST_F(SendBatchTest, LentPacketsStayWhereTheyAreAndComeBackOnce) {
  Lender lender(4 * 1004);
  for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(AddLent(&lender, i * 1004, 1000));
  ASSERT_TRUE(Add(20));  // a copied one behind them
  SendBatch* batch = Take();
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->segment_count, 4u);
  EXPECT_EQ(batch->used_bytes, 3 * 1004u + 24);
  batch->PrepareWhole(batch->address.hop_limit);
  ASSERT_EQ(batch->message.msg_iovlen, 2u) << "what lies back to back is one part";
  EXPECT_EQ(batch->message.msg_iov[0].iov_base, lender.block.data());
  EXPECT_EQ(batch->message.msg_iov[0].iov_len, 3 * 1004u);
  EXPECT_EQ(batch->message.msg_iov[1].iov_base, batch->own.get());
  EXPECT_EQ(batch->message.msg_iov[1].iov_len, 24u);
  for (uint16_t i = 0; i < 4; ++i) {
    uint16_t ip_id = 0;
    EXPECT_EQ(Check(*batch, i, i, &ip_id), IcrcCheck::kExact);
  }
  collector_.PutBack(batch);
  ASSERT_EQ(Take(), batch);
  EXPECT_EQ(lender.taken_back, 0u);
  collector_.Release(batch);
  EXPECT_EQ(lender.taken_back, 3u);
}

TEST_F(SendBatchTest, LentPacketsOfDifferentPlacesAreParts) {
  Lender lender(5000);
  for (size_t offset : {3000, 0, 1500}) ASSERT_TRUE(AddLent(&lender, offset, 1000));
  collector_.CloseAll();
  SendBatch* batch = Take();
  ASSERT_NE(batch, nullptr);
  batch->PrepareWhole(batch->address.hop_limit);
  EXPECT_EQ(batch->message.msg_iovlen, 3u);
  batch->PrepareSegment(1, batch->address.hop_limit);
  ASSERT_EQ(batch->message.msg_iovlen, 1u);
  EXPECT_EQ(batch->message.msg_iov->iov_base, lender.block.data());
  EXPECT_EQ(batch->message.msg_iov->iov_len, 1004u);
  batch->BecomeOneByOne();
  for (uint32_t i = 0; i < 3; ++i) {
    uint16_t ip_id = 0;
    EXPECT_EQ(Check(*batch, i, 0, &ip_id), IcrcCheck::kExact) << i;
  }
  collector_.Release(batch);
  EXPECT_EQ(lender.taken_back, 3u);
}

TEST_F(SendBatchTest, WhatIsNotSentWhenTheCollectorEndsComesBackToo) {
  Lender lender(2 * 1004);
  {
    SendCollector collector(2);
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(collector.Add(0, endpoint_, address_,
                                {.address = address_,
                                 .bytes = lender.block.data() + i * 1004,
                                 .length = 1000,
                                 .lender = &lender,
                                 .block = lender.block.data()},
                                false));
    }
  }
  EXPECT_EQ(lender.taken_back, 2u);
}

TEST_F(SendBatchTest, TheCrcOfAPayloadMayBeKnown) {
  const auto bytes = MakePacket(1000, 1);
  const uint32_t crc = wire::UpdateCrc32(0, bytes.data() + 28, 972);
  ASSERT_TRUE(collector_.Add(
      0, endpoint_, address_,
      {.address = address_, .bytes = bytes.data(), .length = 1000, .payload = {28, 972, crc}},
      false));
  collector_.CloseAll();
  SendBatch* batch = Take();
  ASSERT_NE(batch, nullptr);
  uint16_t ip_id = 0;
  EXPECT_EQ(Check(*batch, 0, 0, &ip_id), IcrcCheck::kExact);
}

TEST_F(SendBatchTest, TheMessageSaysWhatTheKernelShallDo) {
  address_.traffic_class = 0x2e;
  address_.hop_limit = 5;
  ASSERT_TRUE(Add(100) && Add(100));
  collector_.CloseAll();
  SendBatch* batch = Take();
  auto find = [&](int level, int type) -> const cmsghdr* {
    msghdr& message = batch->message;
    for (cmsghdr* item = CMSG_FIRSTHDR(&message); item; item = CMSG_NXTHDR(&message, item)) {
      if (item->cmsg_level == level && item->cmsg_type == type) return item;
    }
    return nullptr;
  };
  batch->PrepareWhole(batch->address.hop_limit);
  EXPECT_EQ(batch->message.msg_iov->iov_len, 208u);
  const cmsghdr* segment = find(SOL_UDP, UDP_SEGMENT);
  ASSERT_NE(segment, nullptr);
  uint16_t bytes = 0;
  memcpy(&bytes, CMSG_DATA(segment), sizeof bytes);
  EXPECT_EQ(bytes, 104);
  EXPECT_NE(find(IPPROTO_IP, IP_TOS), nullptr);
  EXPECT_NE(find(IPPROTO_IP, IP_TTL), nullptr);
  batch->PrepareSegment(1, batch->address.hop_limit);
  EXPECT_EQ(batch->message.msg_iov->iov_len, 104u);
  EXPECT_EQ(batch->message.msg_iov->iov_base, batch->own.get() + 104);
  EXPECT_EQ(find(SOL_UDP, UDP_SEGMENT), nullptr);
  EXPECT_NE(find(IPPROTO_IP, IP_TOS), nullptr);
}

}  // namespace
}  // namespace verbena::transport
