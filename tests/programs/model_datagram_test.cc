// Datagrams, of whose ways and arrival nobody is told.
#include <gtest/gtest.h>

#include "tests/programs/model.h"
#include "tests/programs/model_fixture.h"

namespace verbena::programs {
namespace {

TEST_F(ModelTest, AGroupsMembersHaveOneCopyEach) {
  Make(IBV_QPT_UD);
  Connect();
  Step ah = MakeGroupAh();
  Wr send = Request(IBV_WR_SEND, 32);
  send.ah = 50;
  Receive(128);
  EXPECT_EQ(Post({send}).completions.size(), 1u) << "nobody is attached";
  Do(Call(Op::kAttachMcast, 1, kQp[1]));
  const Outcome outcome = Post({send});
  ASSERT_EQ(outcome.completions.size(), 2u);
  EXPECT_EQ(outcome.completions[0].byte_len, 72u);
  ah.id = 51;
  ah.side = 1;
  ah.pd = kPd[1];
  Do(ah);
  send.ah = 51;
  EXPECT_EQ(StatusOf(Post({send}), 0), IBV_WC_LOC_QP_OP_ERR) << "another context's";
}

TEST_F(ModelTest, TwoReceiversOfADatagramHavePlacesOfTheirOwn) {
  for (const bool overlap : {false, true}) {
    model = Model(1);
    Make(IBV_QPT_UD);
    Connect();
    MakeGroupAh();
    Receive(128);
    Do(Call(Op::kAttachMcast, 1, kQp[1]));
    Qp& other = model.qps[60] = model.qps.at(kQp[1]);
    other.id = 60;
    other.receives.front().sges[0].offset = overlap ? 4096 + 127 : 4096 + 128;
    Wr send = Request(IBV_WR_SEND, 32);
    send.ah = 50;
    EXPECT_EQ(Post({send}).applies, !overlap) << "nobody knows whose bytes come first";
  }
}

TEST_F(ModelTest, OfABadKeyAndABadAddressHandleEitherMayBeTold) {
  Make(IBV_QPT_UD);
  Connect();
  Step ah = Call(Op::kCreateAh, 1, 50);
  ah.pd = kPd[1];
  Do(ah);
  Wr send = Request(IBV_WR_SEND, 32);
  send.ah = 50;
  send.sges[0].key_flip = 1;
  EXPECT_FALSE(Post({send}).applies);
}

// What arrives at one's own side, and what is sent from there, in one list.
TEST_F(ModelTest, ADatagramToOneselfMayComeAtAnyTime) {
  struct Row {
    const char* what;
    uint32_t first_from, second_from;
    bool is_decided;
  };
  for (const Row& row :
       {Row{"apart", 0, 512, true}, Row{"the second sends what the first brings", 0, 4150, false},
        Row{"the first is sent from where the second goes", 4300, 512, false}}) {
    SCOPED_TRACE(row.what);
    model = Model(1);
    Make(IBV_QPT_UD);
    Connect();
    Step ah = Call(Op::kCreateAh, 0, 50);
    ah.pd = kPd[0];
    ah.to_self = true;
    Do(ah);
    Step receives = Call(Op::kPostRecv, 0, kQp[0]);
    for (uint32_t offset : {4096u, 4296u}) {
      Wr wr;
      wr.wr_id = 1001 + 2 * offset;
      wr.sges = {{kMr[0], offset, 200, 0}};
      receives.wrs.push_back(wr);
    }
    ASSERT_EQ(Do(receives).error, 0);
    Wr first = Request(IBV_WR_SEND, 64), second = Request(IBV_WR_SEND, 64);
    first.ah = second.ah = 50;
    first.remote_qp = second.remote_qp = kQp[0];
    first.sges[0].offset = row.first_from;
    second.sges[0].offset = row.second_from;
    second.flags |= IBV_SEND_FENCE;  // of no use to datagrams
    EXPECT_EQ(Post({first, second}).applies, row.is_decided);
  }
}

}  // namespace
}  // namespace verbena::programs
