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
  EXPECT_EQ(defined, 23);
  EXPECT_EQ(LookUpOpcode(static_cast<Opcode>(0x15)), nullptr);
  EXPECT_EQ(LookUpOpcode(static_cast<Opcode>(0x18)), nullptr);
}

TEST(OpcodeTableTest, NamesSayWhatTheTraitsSay) {
  for (int value = 0; value < 0x18; ++value) {
    const OpcodeInfo* info = LookUpOpcode(static_cast<Opcode>(value));
    if (info == nullptr) continue;
    std::string name = info->name;
    SCOPED_TRACE(name);
    auto says = [&](const char* part) { return name.find(part) != std::string::npos; };
    EXPECT_EQ(info->is_send, says("SEND"));
    EXPECT_EQ(info->is_write, says("WRITE"));
    EXPECT_EQ(info->is_read_response, says("READ_RESPONSE"));
    EXPECT_EQ(info->has_imm, says("WITH_IMM"));
    EXPECT_EQ(info->has_ieth, says("INVALIDATE"));
    EXPECT_EQ(info->is_middle, says("MIDDLE"));
    EXPECT_EQ(info->is_first, !says("MIDDLE") && !says("LAST"));
    EXPECT_EQ(info->is_last, !says("MIDDLE") && !says("FIRST"));
    EXPECT_EQ(info->is_request, !says("RESPONSE") && !says("ACKNOWLEDGE"));
    EXPECT_EQ(info->is_atomic, says("ATOMIC") || says("SWAP") || says("ADD"));
    EXPECT_EQ(info->has_atomic_eth, says("SWAP") || says("ADD"));
    EXPECT_EQ(info->has_reth,
              says("READ_REQUEST") || (says("WRITE") && (says("FIRST") || says("ONLY"))));
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
}

}  // namespace
}  // namespace verbena::transport
