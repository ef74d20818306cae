// The structures as programs see them. What can be known at compile time fails the build of this
// file; the rest compares the shim's layouts with v64's numbers.
#include <gtest/gtest.h>

#include "verbs_shim/abi.h"

namespace verbena::verbs {
namespace {

// Programs of v64 find an operation by its distance from the end of the structure.
constexpr size_t FromContext(size_t offset_in_v44) {
  return offsetof(verbs_context, context) - offset_in_v44;
}

static_assert(offsetof(verbs_context, sz) + sizeof(size_t) == offsetof(verbs_context, context),
              "sz stands right before the context");
static_assert(FromContext(offsetof(verbs_context, query_port)) == 320);
static_assert(FromContext(offsetof(verbs_context, create_cq_ex)) == 120);
static_assert(FromContext(offsetof(verbs_context, query_device_ex)) == 104);
static_assert(FromContext(offsetof(verbs_context, create_qp_ex)) == 56);

TEST(Layout, V64GrewAtTheFrontOfVerbsContext) {
  EXPECT_EQ(sizeof(VerbsContextFront), 48u);
  EXPECT_EQ(offsetof(VerbsContextFront, free_buf), 0u);
  EXPECT_EQ(offsetof(VerbsContextFront, alloc_buf), 8u);
  EXPECT_EQ(offsetof(VerbsContextFront, dm_export_dmabuf_fd), 16u);
  EXPECT_EQ(offsetof(VerbsContextFront, reg_mr_ex), 24u);
  EXPECT_EQ(offsetof(VerbsContextFront, dealloc_dmah), 32u);
  EXPECT_EQ(offsetof(VerbsContextFront, alloc_dmah), 40u);
  EXPECT_EQ(kVerbsContextBytesV64, 696u);
}

TEST(Layout, PublicStructuresHaveTheSizesProgramsWereBuiltWith) {
  EXPECT_EQ(sizeof(ibv_device), 664u);
  EXPECT_EQ(sizeof(ibv_context), 328u);
  EXPECT_EQ(sizeof(verbs_context), 648u);
  EXPECT_EQ(sizeof(ibv_cq), 128u);
  EXPECT_EQ(sizeof(ibv_cq_ex), 288u);
  EXPECT_EQ(sizeof(ibv_qp), 160u);
  EXPECT_EQ(sizeof(ibv_qp_ex), 352u);
  EXPECT_EQ(sizeof(QpExV64), 360u);
  EXPECT_EQ(sizeof(ibv_srq), 128u);
  EXPECT_EQ(sizeof(ibv_mr), 48u);
  EXPECT_EQ(sizeof(ibv_pd), 16u);
  EXPECT_EQ(sizeof(ibv_wc), 48u);
  EXPECT_EQ(sizeof(ibv_send_wr), 128u);
  EXPECT_EQ(sizeof(ibv_device_attr), 232u);
  EXPECT_EQ(sizeof(ibv_device_attr_ex), 400u);
  EXPECT_EQ(sizeof(ibv_port_attr), 52u);
  EXPECT_EQ(sizeof(PortAttrV64), 56u);
  EXPECT_EQ(sizeof(ibv_gid_entry), 32u);
}

TEST(Layout, ProvidersFindOperationsRightBehindTheDevice) {
  EXPECT_EQ(offsetof(VerbsDevice, ops), sizeof(ibv_device));
  EXPECT_EQ(sizeof(VerbsDevice), 664u + 8 + 8 + 16 + 8 + 8);
}

}  // namespace
}  // namespace verbena::verbs
