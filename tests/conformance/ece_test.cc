// ECE: what two QPs agree to do beyond what every RoCE NIC does.
#include <cerrno>

#include "tests/conformance/verbs_fixture.h"
#include "verbena/verbenadv.h"

namespace verbena::conformance {
namespace {

constexpr uint32_t kAll = VERBENADV_ECE_ATOMIC_WRITE | VERBENADV_ECE_FLUSH;

class EceTest : public VerbsTest {
 protected:
  void SetUp() override {
    a = std::make_unique<Side>(SideOptions{});
    ibv_device_attr attr = {};
    ASSERT_EQ(ibv_query_device(a->context, &attr), 0);
    vendor_id = attr.vendor_id;
  }
  static ibv_ece Query(const Side& side) {
    ibv_ece ece = {1, 1, 1};
    EXPECT_EQ(ibv_query_ece(side.qp, &ece), 0);
    return ece;
  }

  uint32_t vendor_id = 0;
};

using Verb_ibv_query_ece = EceTest;
using Verb_ibv_set_ece = EceTest;

TEST_F(Verb_ibv_query_ece, ANewQpMayDoAllThatItsServiceHas) {
  for (ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD}) {
    SideOptions options;
    options.type = type;
    Side side(options);
    const ibv_ece ece = Query(side);
    EXPECT_EQ(ece.vendor_id, vendor_id);
    EXPECT_EQ(ece.options, type == IBV_QPT_RC ? kAll : 0u);
    EXPECT_EQ(ece.comp_mask, 0u);
  }
}

TEST_F(Verb_ibv_set_ece, GivesBackWhatIsAccepted) {
  for (uint32_t options : {kAll | 1u << 31, uint32_t{VERBENADV_ECE_FLUSH}, 0u}) {
    ibv_ece ece = {vendor_id, options, 0};
    ASSERT_EQ(ibv_set_ece(a->qp, &ece), 0);
    EXPECT_EQ(ece.options, options & kAll);
    EXPECT_EQ(Query(*a).options, options & kAll);
  }
}

TEST_F(Verb_ibv_set_ece, RefusesWhatIsNotOurs) {
  struct {
    ibv_ece ece;
    int error;
  } const kRows[] = {{{0, kAll, 0}, EOPNOTSUPP},
                     {{vendor_id - 1, kAll, 0}, EINVAL},
                     {{vendor_id, kAll, 1}, EINVAL}};
  for (const auto& row : kRows) {
    ibv_ece ece = row.ece;
    EXPECT_EQ(ibv_set_ece(a->qp, &ece), row.error);
  }
  EXPECT_EQ(Query(*a).options, kAll);
}

TEST_F(Verb_ibv_set_ece, ComesBeforeTheConnection) {
  MakePair();
  ibv_ece ece = {vendor_id, 0, 0};
  EXPECT_EQ(ibv_set_ece(a->qp, &ece), EINVAL);
  ASSERT_EQ(a->ToState(IBV_QPS_RESET), 0);
  EXPECT_EQ(ibv_set_ece(a->qp, &ece), 0);
}

TEST_F(Verb_ibv_set_ece, WhatIsNotAgreedUponIsNotPosted) {
  SideOptions options;
  options.send_ops = IBV_QP_EX_WITH_ATOMIC_WRITE;
  a = std::make_unique<Side>(options);
  b = std::make_unique<Side>(SideOptions{.nic = 1});
  ibv_ece ece = {vendor_id, VERBENADV_ECE_FLUSH, 0};
  ASSERT_EQ(ibv_set_ece(a->qp, &ece), 0);
  Connect(*a, *b, {});
  uint64_t value = 5;
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(a->qp);
  ibv_wr_start(ex);
  ibv_wr_atomic_write(ex, b->mr->rkey, b->buffer.address(), &value);
  EXPECT_EQ(ibv_wr_complete(ex), EOPNOTSUPP);

  ibv_sge sge = {reinterpret_cast<uint64_t>(&value), 8, 0};
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_ATOMIC_WRITE;
  wr.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
  wr.wr.rdma = {b->buffer.address(), b->mr->rkey};
  EXPECT_EQ(a->Post(wr, {sge}), EOPNOTSUPP);
  // The rest of what it does goes on.
  EXPECT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
}

}  // namespace
}  // namespace verbena::conformance
