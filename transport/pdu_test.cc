// The opcode table agrees with itself and with the spec's numbers.
#include "transport/pdu.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace verbena::transport {
namespace {

bool Serves(const OpcodeInfo& info, Service service) {
  return (info.services & (1u << static_cast<int>(service))) != 0;
}

TEST(OpcodeTableTest, HoldsExactlyTheDefinedValues) {
  int defined = 0;
  for (int value = 0; value < 256; ++value) {
    if (LookUpOpcode(static_cast<Opcode>(value)) != nullptr) ++defined;
  }
  EXPECT_EQ(defined, 25);
  EXPECT_EQ(LookUpOpcode(static_cast<Opcode>(0x15)), nullptr);
  EXPECT_EQ(LookUpOpcode(static_cast<Opcode>(0x18)), nullptr);
  EXPECT_EQ(LookUpOpcode(static_cast<Opcode>(0x1e)), nullptr);
}

TEST(OpcodeTableTest, NamesSayWhatTheTraitsSay) {
  for (int value = 0; value < 0x20; ++value) {
    const OpcodeInfo* info = LookUpOpcode(static_cast<Opcode>(value));
    if (info == nullptr) continue;
    std::string name = info->name;
    SCOPED_TRACE(name);
    auto says = [&](const char* part) { return name.find(part) != std::string::npos; };
    EXPECT_EQ(info->is_send, says("SEND"));
    EXPECT_EQ(info->is_atomic_write, says("ATOMIC_WRITE"));
    EXPECT_EQ(info->is_flush, says("FLUSH"));
    EXPECT_EQ(info->has_feth, info->is_flush);
    EXPECT_EQ(info->is_write, says("WRITE") && !info->is_atomic_write);
    EXPECT_EQ(info->is_read_response, says("READ_RESPONSE"));
    EXPECT_EQ(info->has_imm, says("WITH_IMM"));
    EXPECT_EQ(info->has_ieth, says("INVALIDATE"));
    EXPECT_EQ(info->is_middle, says("MIDDLE"));
    EXPECT_EQ(info->is_first, !says("MIDDLE") && !says("LAST"));
    EXPECT_EQ(info->is_last, !says("MIDDLE") && !says("FIRST"));
    EXPECT_EQ(info->is_request, !says("RESPONSE") && !says("ACKNOWLEDGE"));
    EXPECT_EQ(info->is_atomic, says("ATOMIC_ACK") || says("SWAP") || says("ADD"));
    EXPECT_EQ(info->has_atomic_eth, says("SWAP") || says("ADD"));
    EXPECT_EQ(info->has_reth, says("READ_REQUEST") || info->is_atomic_write || info->is_flush ||
                                  (says("WRITE") && (says("FIRST") || says("ONLY"))));
    EXPECT_EQ(info->has_aeth, says("ACKNOWLEDGE") || (says("RESPONSE") && !says("MIDDLE")));
    EXPECT_TRUE(Serves(*info, Service::kRc));
    EXPECT_EQ(Serves(*info, Service::kUc), value <= 0x0b);
    EXPECT_EQ(Serves(*info, Service::kUd), value == 0x04 || value == 0x05);
  }
}

TEST(OpcodeTableTest, EnumeratorsStandAtTheirRows) {
  EXPECT_STREQ(LookUpOpcode(Opcode::kSendOnlyWithImm)->name, "SEND_ONLY_WITH_IMM");
  EXPECT_STREQ(LookUpOpcode(Opcode::kWriteLastWithImm)->name, "WRITE_LAST_WITH_IMM");
  EXPECT_STREQ(LookUpOpcode(Opcode::kReadRequest)->name, "READ_REQUEST");
  EXPECT_STREQ(LookUpOpcode(Opcode::kAtomicAcknowledge)->name, "ATOMIC_ACKNOWLEDGE");
  EXPECT_STREQ(LookUpOpcode(Opcode::kFetchAdd)->name, "FETCH_ADD");
  EXPECT_STREQ(LookUpOpcode(Opcode::kSendOnlyWithInvalidate)->name, "SEND_ONLY_WITH_INVALIDATE");
  EXPECT_STREQ(LookUpOpcode(Opcode::kFlush)->name, "FLUSH");
  EXPECT_STREQ(LookUpOpcode(Opcode::kAtomicWrite)->name, "ATOMIC_WRITE");
}

TEST(FlushTest, AsksForEachRightThatItsTypeNames) {
  EXPECT_EQ(flush::AccessNeeded(flush::kGlobal), access::kFlushGlobal);
  EXPECT_EQ(flush::AccessNeeded(flush::kPersistent), access::kFlushPersistent);
  EXPECT_EQ(flush::AccessNeeded(flush::kGlobal | flush::kPersistent),
            access::kFlushGlobal | access::kFlushPersistent);
  EXPECT_FALSE(flush::IsPlacementType(0));
  EXPECT_TRUE(flush::IsPlacementType(flush::kGlobal | flush::kPersistent));
  EXPECT_FALSE(flush::IsPlacementType(4));
  EXPECT_FALSE(flush::IsPlacementType(0x100));
}

TEST(SegmentTest, PartsOfAMessageJoinToWhatTheyWerePartsOf) {
  for (int value = 0; value < 0x18; ++value) {
    auto opcode = static_cast<Opcode>(value);
    const OpcodeInfo* info = LookUpOpcode(opcode);
    if (info == nullptr || !(info->is_send || info->is_write)) continue;
    Opcode first = SegmentOpcode(opcode, true, false);
    Opcode middle = SegmentOpcode(opcode, false, false);
    Opcode last = SegmentOpcode(opcode, false, true);
    EXPECT_EQ(JoinedOpcode(JoinedOpcode(first, middle), last), opcode) << info->name;
    EXPECT_EQ(JoinedOpcode(first, last), opcode) << info->name;
    EXPECT_EQ(LookUpOpcode(first)->is_first, info->is_first) << info->name;
    EXPECT_EQ(LookUpOpcode(last)->is_last, info->is_last) << info->name;
    EXPECT_TRUE(LookUpOpcode(middle)->is_middle) << info->name;
    EXPECT_FALSE(LookUpOpcode(first)->is_last) << info->name;
    EXPECT_EQ(LookUpOpcode(last)->has_imm, info->has_imm) << info->name;
    EXPECT_EQ(LookUpOpcode(last)->has_ieth, info->has_ieth) << info->name;
  }
}

TEST(SegmentTest, ReadResponsesAreCutToo) {
  EXPECT_EQ(SegmentOpcode(Opcode::kReadResponseOnly, true, false), Opcode::kReadResponseFirst);
  EXPECT_EQ(SegmentOpcode(Opcode::kReadResponseOnly, false, false), Opcode::kReadResponseMiddle);
  EXPECT_EQ(SegmentOpcode(Opcode::kReadResponseOnly, false, true), Opcode::kReadResponseLast);
  EXPECT_EQ(SegmentOpcode(Opcode::kReadResponseFirst, false, true), Opcode::kReadResponseMiddle);
  EXPECT_EQ(SegmentOpcode(Opcode::kReadResponseLast, true, false), Opcode::kReadResponseMiddle);
}

}  // namespace
}  // namespace verbena::transport
