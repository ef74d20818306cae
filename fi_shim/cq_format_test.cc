#include <gtest/gtest.h>
#include <string.h>

#include "fi_shim/completion_queue.h"

namespace verbena::fi {
namespace {

Failure Sample(const char* text) {
  Failure failure;
  failure.context = &failure;
  failure.flags = FI_SEND | FI_MSG;
  failure.len = 3;
  failure.olen = 5;
  failure.error = FI_EACCES;
  failure.provider = 1010;
  failure.text = text;
  return failure;
}

TEST(CqFormatTest, EachFormatBeginsAsTheOneBeforeIt) {
  int buffer = 0;
  Completion completion;
  completion.context = &buffer;
  completion.flags = FI_RECV;
  completion.len = 7;
  completion.buf = &buffer;
  completion.data = 8;
  completion.tag = 9;
  for (const fi_cq_format format : {FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_DATA,
                                    FI_CQ_FORMAT_TAGGED, FI_CQ_FORMAT_UNSPEC}) {
    unsigned char out[sizeof(fi_cq_tagged_entry) + 1];
    memset(out, 0xee, sizeof(out));
    WriteEntry(format, completion, out);
    fi_cq_tagged_entry entry;
    memcpy(&entry, out, sizeof(entry));
    EXPECT_EQ(entry.op_context, &buffer);
    EXPECT_EQ(out[EntryBytes(format)], 0xee) << "nothing behind the entry";
    if (EntryBytes(format) >= sizeof(fi_cq_msg_entry)) {
      EXPECT_EQ(entry.len, 7u);
    }
    if (EntryBytes(format) >= sizeof(fi_cq_data_entry)) {
      EXPECT_EQ(entry.data, 8u);
    }
    if (format == FI_CQ_FORMAT_TAGGED) {
      EXPECT_EQ(entry.tag, 9u);
    }
  }
  EXPECT_EQ(EntryBytes(static_cast<fi_cq_format>(9)), 0u);
}

TEST(CqFormatTest, ErrorDataGoesIntoTheProgramsBuffer) {
  ErrDataPlace place;
  char buffer[8];
  fi_cq_err_entry out = {};
  out.err_data = buffer;
  out.err_data_size = sizeof(buffer);
  WriteErrorEntry(FI_VERSION(1, 17), Sample("much too long"), &place, &out);
  EXPECT_EQ(out.err_data, buffer);
  EXPECT_EQ(out.err_data_size, sizeof(buffer));
  EXPECT_STREQ(buffer, "much to") << "cut off, and ended";
  EXPECT_EQ(out.err, FI_EACCES);
  EXPECT_EQ(out.olen, 5u);
}

TEST(CqFormatTest, WithoutABufferTheProviderHasOne) {
  ErrDataPlace place;
  fi_cq_err_entry out = {};
  WriteErrorEntry(FI_VERSION(1, 17), Sample("why"), &place, &out);
  EXPECT_EQ(out.err_data, place.bytes);
  EXPECT_EQ(out.err_data_size, 4u);
  EXPECT_STREQ(place.bytes, "why");
  WriteErrorEntry(FI_VERSION(1, 17), Sample(nullptr), &place, &(out = fi_cq_err_entry()));
  EXPECT_EQ(out.err_data, nullptr);
  EXPECT_EQ(out.err_data_size, 0u);
}

TEST(CqFormatTest, Before1_5TheStructureEndsWithErrData) {
  ErrDataPlace place;
  fi_cq_err_entry out = {};
  char buffer[8] = "";
  out.err_data = buffer;
  out.err_data_size = 0xeeee;  // the program's next variable
  WriteErrorEntry(FI_VERSION(1, 4), Sample("why"), &place, &out);
  EXPECT_EQ(out.err_data_size, 0xeeeeu);
  EXPECT_EQ(out.err_data, place.bytes);
  EXPECT_STREQ(buffer, "");
}

}  // namespace
}  // namespace verbena::fi
