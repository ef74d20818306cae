// ibv_wr_abort, errors of a batch, and lists of inline data: the same on RC, UC and UD.
#include <cerrno>
#include <cstring>
#include <string>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

class ServicesTest : public VerbsTest {
 protected:
  static constexpr uint32_t kInlineBytes = 64;

  void Make(ibv_qp_type type) {
    SideOptions options;
    options.type = type;
    options.send_ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    options.max_inline_bytes = kInlineBytes;
    options.max_send_wr = 8;
    is_datagram = type == IBV_QPT_UD;
    if (is_datagram) {
      MakeUdPair(options);
      ibv_ah_attr address = AddressOf(b->gid());
      ah = ibv_create_ah(a->pd, &address);
      ASSERT_NE(ah, nullptr);
    } else {
      MakePair(options);
    }
    ex = ibv_qp_to_qp_ex(a->qp);
    ASSERT_NE(ex, nullptr);
    ibv_qp_attr attr = {};
    ibv_qp_init_attr init = {};
    ASSERT_EQ(ibv_query_qp(a->qp, &attr, IBV_QP_CAP, &init), 0);
    max_inline_bytes = init.cap.max_inline_data;
  }
  void TearDown() override {
    if (ah == nullptr) return;
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
  }
  void Begin() { ibv_wr_start(ex); }
  void NextSend(uint64_t wr_id) {
    ex->wr_id = wr_id;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(ex);
    if (is_datagram) ibv_wr_set_ud_addr(ex, ah, b->qp->qp_num, kQKey);
  }
  void OwnSge(uint32_t length) { ibv_wr_set_sge(ex, a->mr->lkey, a->buffer.address(), length); }
  // What arrived, without the GRH of a datagram.
  std::string Receive() {
    ibv_wc wc = b->WaitRecv();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    const size_t skipped = is_datagram ? 40 : 0;
    std::string bytes(reinterpret_cast<char*>(b->buffer.data()) + skipped, wc.byte_len - skipped);
    return bytes;
  }
  void PostRecv() { ASSERT_EQ(b->PostRecv(1, 0, 512), 0); }
  bool NothingCompletes() {
    ibv_wc wc = {};
    return NeverWithin([&] {
      return ibv_poll_cq(a->send_cq, 1, &wc) != 0 || ibv_poll_cq(b->recv_cq, 1, &wc) != 0;
    });
  }

  ibv_qp_ex* ex = nullptr;
  ibv_ah* ah = nullptr;
  bool is_datagram = false;
  uint32_t max_inline_bytes = 0;
};

class Verb_ibv_wr_start : public ServicesTest, public ::testing::WithParamInterface<ibv_qp_type> {
 protected:
  void SetUp() override { Make(GetParam()); }
};
class Verb_ibv_wr_set_inline_data : public ServicesTest,
                                    public ::testing::WithParamInterface<ibv_qp_type> {
 protected:
  void SetUp() override { Make(GetParam()); }
};

std::string NameOf(const ::testing::TestParamInfo<ibv_qp_type>& info) {
  return info.param == IBV_QPT_RC ? "Rc" : info.param == IBV_QPT_UC ? "Uc" : "Ud";
}
// Without a name of their own, as docs/verbs-support.md is made from the names.
INSTANTIATE_TEST_SUITE_P(, Verb_ibv_wr_start, ::testing::Values(IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(, Verb_ibv_wr_set_inline_data,
                         ::testing::Values(IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD), NameOf);

TEST_P(Verb_ibv_wr_start, AbortGivesEverySlotBack) {
  for (int round = 0; round < 100; ++round) {
    Begin();
    for (uint64_t i = 0; i < 8; ++i) {
      NextSend(i);
      OwnSge(8);
    }
    ibv_wr_abort(ex);
  }
  EXPECT_TRUE(NothingCompletes());
  PostRecv();
  Begin();
  NextSend(77);
  OwnSge(8);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(a->WaitSend().wr_id, 77u);
  EXPECT_EQ(Receive().size(), 8u);
}

TEST_P(Verb_ibv_wr_start, AbortAmidARequestPostsNothing) {
  Begin();
  NextSend(1);
  ibv_wr_abort(ex);  // no data named yet
  Begin();
  ibv_wr_abort(ex);  // nothing at all
  Begin();
  EXPECT_EQ(ibv_wr_complete(ex), 0) << "an empty batch";
  EXPECT_TRUE(NothingCompletes());
}

TEST_P(Verb_ibv_wr_start, OneBadRequestSpoilsTheBatchAndNoOther) {
  PostRecv();
  ibv_sge many[64];
  for (ibv_sge& sge : many) sge = a->Sge(0, 1);
  Begin();
  NextSend(1);
  OwnSge(8);
  NextSend(2);
  ibv_wr_set_sge_list(ex, 64, many);
  NextSend(3);
  OwnSge(8);
  EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
  EXPECT_TRUE(NothingCompletes());
  Begin();
  NextSend(4);
  OwnSge(8);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(a->WaitSend().wr_id, 4u);
}

TEST_P(Verb_ibv_wr_set_inline_data, JoinsItsPieces) {
  char one[] = "abc", two[] = "defgh", three[] = "i";
  ibv_data_buf pieces[] = {{one, 3}, {nullptr, 0}, {two, 5}, {three, 1}};
  PostRecv();
  Begin();
  NextSend(1);
  ibv_wr_set_inline_data_list(ex, 4, pieces);
  // The buffers are the program's again at once.
  memset(one, 'x', 3);
  memset(two, 'x', 5);
  memset(three, 'x', 1);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(Receive(), "abcdefghi");
}

TEST_P(Verb_ibv_wr_set_inline_data, TakesAsMuchAsTheQpAndNoMore) {
  std::string text(max_inline_bytes + 1, 'q');
  ibv_data_buf pieces[] = {{text.data(), 10}, {text.data() + 10, max_inline_bytes - 10}};
  PostRecv();
  Begin();
  NextSend(1);
  ibv_wr_set_inline_data_list(ex, 2, pieces);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(Receive(), text.substr(1));
  pieces[1].length += 1;
  Begin();
  NextSend(2);
  ibv_wr_set_inline_data_list(ex, 2, pieces);
  EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
  EXPECT_TRUE(NothingCompletes());
}

// By turns with ibv_post_send. Three requests a round: each entry of the queue has both kinds, and
// small data after large and the other way round.
TEST_P(Verb_ibv_wr_set_inline_data, OfEverySizeArrives) {
  std::string text;
  for (uint32_t i = 0; i < max_inline_bytes; ++i) text += static_cast<char>('!' + i);
  auto post = [&](uint32_t length) {
    ibv_sge sge = {reinterpret_cast<uint64_t>(text.data()), length, 0};
    ibv_send_wr wr = {}, *bad = nullptr;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    if (is_datagram) wr.wr.ud = {ah, b->qp->qp_num, kQKey};
    return ibv_post_send(a->qp, &wr, &bad);
  };
  for (uint32_t i = 0; i <= max_inline_bytes; ++i) {
    for (const uint32_t length : {i, max_inline_bytes - i}) {
      PostRecv();
      ASSERT_EQ(post(length), 0);
      EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
      EXPECT_EQ(Receive(), text.substr(0, length));
    }
    PostRecv();
    Begin();
    NextSend(i);
    ibv_wr_set_inline_data(ex, text.data(), i);
    ASSERT_EQ(ibv_wr_complete(ex), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
    EXPECT_EQ(Receive(), text.substr(0, i));
  }
}

TEST_P(Verb_ibv_wr_set_inline_data, MayBeEmpty) {
  PostRecv();
  Begin();
  NextSend(1);
  ibv_wr_set_inline_data_list(ex, 0, nullptr);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(Receive(), "");
}

TEST_P(Verb_ibv_wr_set_inline_data, GivesWayToAnElementSaidLater) {
  memset(a->buffer.data(), 'k', 4);
  std::string text(max_inline_bytes, 'i');
  for (const size_t length : {text.size(), size_t{4}, size_t{0}}) {
    PostRecv();
    Begin();
    NextSend(length);
    ibv_wr_set_inline_data(ex, text.data(), length);
    OwnSge(4);
    ASSERT_EQ(ibv_wr_complete(ex), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
    EXPECT_EQ(Receive(), "kkkk");
  }
}

TEST_P(Verb_ibv_wr_set_inline_data, StandsBesideRequestsWithKeys) {
  memset(a->buffer.data(), 'k', 4);
  PostRecv();
  PostRecv();
  char text[] = "inline";
  Begin();
  NextSend(1);
  ibv_wr_set_inline_data(ex, text, 6);
  NextSend(2);
  OwnSge(4);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(a->WaitSend().wr_id, 1u);
  EXPECT_EQ(a->WaitSend().wr_id, 2u);
  ASSERT_EQ(b->WaitRecv().status, IBV_WC_SUCCESS);
  EXPECT_EQ(Receive(), "kkkk");
}

}  // namespace
}  // namespace verbena::conformance
