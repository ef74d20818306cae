#include <gtest/gtest.h>

#include "fi_shim/domain_attr.h"
#include "fi_shim/info.h"

namespace verbena::fi {
namespace {

constexpr uint32_t kNow = FI_VERSION(1, 17);

class NarrowTest : public ::testing::Test {
 protected:
  NarrowTest() {
    hints_.tx_attr = &hint_tx_;
    hints_.rx_attr = &hint_rx_;
    hints_.ep_attr = &hint_ep_;
    hints_.domain_attr = &hint_domain_;
    info_.tx_attr = &tx_;
    info_.rx_attr = &rx_;
    info_.ep_attr = &ep_;
    info_.domain_attr = &domain_;
    info_.fabric_attr = &fabric_;
    limits_ = {.max_msg_size = 1 << 30,
               .dgram_msg_size = 4096,
               .inject_size = 512,
               .send_entries = 32'768,
               .rx_size = 32'768,
               .iov_limit = 16,
               .rma_iov_limit = 8,
               .cq_cnt = 10,
               .ep_cnt = 10,
               .cntr_cnt = 10,
               .mr_cnt = 10};
  }
  ~NarrowTest() override { Clear(); }

  void Clear() {
    free(domain_.name);
    free(fabric_.name);
    tx_ = {};
    rx_ = {};
    ep_ = {};
    domain_ = {};
    fabric_ = {};
  }
  // nullptr, or what can't be had.
  const char* Ask(fi_ep_type type = FI_EP_RDM, uint32_t version = kNow) {
    Clear();
    EXPECT_TRUE(Describe("verbena0", type, limits_, &info_));
    return Narrow(version, hints_, limits_, &info_);
  }

  Limits limits_;
  fi_info hints_ = {}, info_ = {};
  fi_tx_attr hint_tx_ = {}, tx_ = {};
  fi_rx_attr hint_rx_ = {}, rx_ = {};
  fi_ep_attr hint_ep_ = {}, ep_ = {};
  fi_domain_attr hint_domain_ = {}, domain_ = {};
  fi_fabric_attr fabric_ = {};
};

TEST_F(NarrowTest, PrimaryCapabilitiesAreOnlyThoseAskedFor) {
  hints_.caps = FI_MSG;
  ASSERT_EQ(Ask(), nullptr);
  EXPECT_EQ(info_.caps & (FI_MSG | FI_RMA | FI_SEND | FI_RECV), FI_MSG | FI_SEND | FI_RECV);
  hints_.caps = FI_MSG | FI_SEND | FI_RMA | FI_READ;
  ASSERT_EQ(Ask(), nullptr);
  EXPECT_EQ(info_.caps & (FI_RECV | FI_WRITE | FI_REMOTE_READ), 0u);
  EXPECT_EQ(info_.caps & FI_MULTI_RECV, 0u) << "nothing is received";
}

TEST_F(NarrowTest, WhatRestrictsNothingIsRefused) {
  constexpr uint64_t kRefused[] = {FI_SEND,
                                   FI_MSG | FI_READ,
                                   FI_MSG | FI_SOURCE_ERR,
                                   FI_MSG | FI_RMA_EVENT,
                                   FI_MSG | FI_TAGGED,
                                   FI_ATOMIC,
                                   FI_MSG | (1ULL << 60)};
  for (const uint64_t caps : kRefused) {
    hints_.caps = caps;
    EXPECT_STREQ(Ask(), "caps") << std::hex << caps;
  }
  hints_.caps = FI_MSG | FI_RMA;
  EXPECT_STREQ(Ask(FI_EP_DGRAM), "caps");
}

TEST_F(NarrowTest, NumbersAreGivenUpToTheirLimits) {
  hint_tx_.size = 4096;
  hint_tx_.rma_iov_limit = 8;
  hint_tx_.inject_size = 512;
  ASSERT_EQ(Ask(), nullptr);
  EXPECT_EQ(tx_.size, 4096u);
  EXPECT_EQ(tx_.rma_iov_limit, 8u);
  EXPECT_EQ(tx_.inject_size, 512u);
  hint_tx_.size = 4097;  // times 8 is more than a queue has
  EXPECT_STREQ(Ask(), "tx size");
  hint_tx_.rma_iov_limit = 1;
  EXPECT_EQ(Ask(), nullptr);
  hint_tx_.inject_size = 513;
  EXPECT_STREQ(Ask(), "inject_size");
}

TEST_F(NarrowTest, ModesOfMemoryByVersion) {
  hint_domain_.mr_mode = FI_MR_BASIC;
  ASSERT_EQ(Ask(), nullptr);
  EXPECT_EQ(domain_.mr_mode, FI_MR_BASIC);
  hint_domain_.mr_mode = FI_MR_BASIC | FI_MR_LOCAL;
  EXPECT_STREQ(Ask(), "mr_mode") << "beside no other bits";
  hint_domain_.mr_mode = FI_MR_LOCAL | FI_MR_ENDPOINT | FI_MR_COLLECTIVE;
  ASSERT_EQ(Ask(), nullptr);
  EXPECT_EQ(domain_.mr_mode, FI_MR_LOCAL | FI_MR_ENDPOINT);
  EXPECT_STREQ(Ask(FI_EP_RDM, FI_VERSION(1, 4)), "mr_mode") << "bits came with 1.5";
  hint_domain_.mr_mode = ~(FI_MR_BASIC | FI_MR_SCALABLE);  // as fi_info asks
  ASSERT_EQ(Ask(), nullptr);
  EXPECT_EQ(domain_.mr_mode, 0);
  hint_domain_.mr_mode = FI_MR_UNSPEC;
  ASSERT_EQ(Ask(FI_EP_RDM, FI_VERSION(1, 4)), nullptr);
  EXPECT_EQ(domain_.mr_mode, FI_MR_SCALABLE);
}

TEST_F(NarrowTest, BasicIsThreeBits) {
  uint64_t bits = 0;
  ASSERT_TRUE(ResolveMrMode(kNow, FI_MR_BASIC, true, &bits));
  EXPECT_EQ(bits, uint64_t{FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL});
  ASSERT_TRUE(ResolveMrMode(FI_VERSION(1, 4), FI_MR_SCALABLE, false, &bits));
  EXPECT_EQ(bits, 0u);
  ASSERT_TRUE(ResolveMrMode(kNow, FI_MR_PROV_KEY, true, &bits));
  EXPECT_EQ(bits, uint64_t{FI_MR_PROV_KEY}) << "FI_LOCAL_MR is of BASIC and SCALABLE alone";
  EXPECT_FALSE(ResolveMrMode(kNow, FI_MR_BASIC | FI_MR_SCALABLE, false, &bits));
}

TEST_F(NarrowTest, TrafficClassesOfDomainAndEndpoint) {
  hint_domain_.tclass = fi_tc_dscp_set(26);
  ASSERT_EQ(Ask(), nullptr);
  EXPECT_EQ(tx_.tclass, fi_tc_dscp_set(26)) << "the domain's";
  hint_tx_.tclass = FI_TC_BULK_DATA;
  ASSERT_EQ(Ask(), nullptr);
  EXPECT_EQ(tx_.tclass, uint32_t{FI_TC_BULK_DATA});
  hint_tx_.tclass = FI_TC_DSCP | 64;
  EXPECT_STREQ(Ask(), "tx tclass");
}

TEST_F(NarrowTest, SharedContextsOfDatagramsAreOfSendsAlone) {
  hint_ep_.rx_ctx_cnt = FI_SHARED_CONTEXT;
  ASSERT_EQ(Ask(FI_EP_MSG), nullptr);
  EXPECT_EQ(ep_.rx_ctx_cnt, FI_SHARED_CONTEXT);
  EXPECT_STREQ(Ask(FI_EP_DGRAM), "rx_ctx_cnt");
  hint_ep_.rx_ctx_cnt = 0;
  hint_ep_.tx_ctx_cnt = FI_SHARED_CONTEXT;
  for (const fi_ep_type type : {FI_EP_MSG, FI_EP_RDM, FI_EP_DGRAM}) {
    ASSERT_EQ(Ask(type), nullptr);
    EXPECT_EQ(ep_.tx_ctx_cnt, FI_SHARED_CONTEXT);
  }
  hint_ep_.tx_ctx_cnt = 2;
  EXPECT_STREQ(Ask(FI_EP_MSG), "tx_ctx_cnt") << "one is not scalable";
}

TEST_F(NarrowTest, WhatEachTypeHasBesideMessages) {
  hints_.caps = FI_MSG | FI_RMA | FI_REMOTE_WRITE | FI_RMA_EVENT;
  EXPECT_EQ(Ask(FI_EP_MSG), nullptr);
  hints_.caps = FI_MSG | FI_SOURCE | FI_SOURCE_ERR | FI_AV_USER_ID | FI_FENCE;
  EXPECT_EQ(Ask(FI_EP_RDM), nullptr);
  EXPECT_EQ(Ask(FI_EP_DGRAM), nullptr);
  EXPECT_STREQ(Ask(FI_EP_MSG), "caps") << "a connection has one source, and no AV";
}

TEST_F(NarrowTest, WhatADatagramIsNotToldOfIsNotPromised) {
  for (const uint64_t level : {FI_MATCH_COMPLETE, FI_DELIVERY_COMPLETE}) {
    hint_tx_.op_flags = level;
    EXPECT_EQ(Ask(FI_EP_MSG), nullptr);
    EXPECT_EQ(Ask(FI_EP_RDM), nullptr);
    EXPECT_STREQ(Ask(FI_EP_DGRAM), "tx op_flags");
  }
  hint_tx_.op_flags = FI_COMMIT_COMPLETE;
  EXPECT_STREQ(Ask(FI_EP_MSG), "tx op_flags") << "there is no persistent memory";
}

TEST_F(NarrowTest, NothingPassesAReadButWhatFollowsIt) {
  hint_tx_.msg_order = FI_ORDER_SAS | FI_ORDER_RAW;
  EXPECT_EQ(Ask(), nullptr);
  hint_tx_.msg_order = FI_ORDER_WAR;
  EXPECT_STREQ(Ask(), "tx msg_order");
}

// What was granted may be opened, whatever it was.
TEST_F(NarrowTest, EndpointsOfWhatWasGranted) {
  for (const fi_ep_type type : {FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM}) {
    hints_ = {};
    ASSERT_EQ(Ask(type), nullptr);
    EXPECT_STREQ(CheckEndpoint(kNow, info_, limits_), nullptr) << type;
  }
  hints_.tx_attr = &hint_tx_;
  hints_.rx_attr = &hint_rx_;
  hints_.ep_attr = &hint_ep_;
  hint_tx_.inject_size = 512;
  hint_tx_.iov_limit = 16;
  hint_tx_.rma_iov_limit = 8;
  hint_tx_.size = 4096;
  hint_rx_.size = 32'768;
  hint_ep_.tx_ctx_cnt = hint_ep_.rx_ctx_cnt = FI_SHARED_CONTEXT;
  ASSERT_EQ(Ask(), nullptr);
  EXPECT_STREQ(CheckEndpoint(kNow, info_, limits_), nullptr);
}

TEST_F(NarrowTest, EndpointsOfMoreThanWasGranted) {
  const auto refuses = [&](const char* what, auto&& change) {
    ASSERT_EQ(Ask(), nullptr);
    change();
    EXPECT_STREQ(CheckEndpoint(kNow, info_, limits_), what);
  };
  refuses("inject_size", [&] { tx_.inject_size = 513; });
  refuses("tx iov_limit", [&] { tx_.iov_limit = 17; });
  refuses("tx size", [&] { tx_.size = 32'769; });
  refuses("rx size", [&] { rx_.size = 32'769; });
  refuses("rx iov_limit", [&] { rx_.iov_limit = 17; });
  refuses("caps", [&] { info_.caps |= FI_TAGGED; });
  refuses("protocol", [&] { ep_.protocol = FI_PROTO_RXM; });
  refuses("tx_ctx_cnt", [&] { ep_.tx_ctx_cnt = 5; });
  refuses("auth_key", [&] { ep_.auth_key_size = 5; });
  // The field is beyond the structure of such a program.
  ASSERT_EQ(Ask(), nullptr);
  ep_.auth_key_size = 5;
  EXPECT_STREQ(CheckEndpoint(FI_VERSION(1, 4), info_, limits_), nullptr);
}

TEST_F(NarrowTest, SharedReceivesBeyondLimits) {
  const auto check = [&](auto&& change) {
    fi_rx_attr attr = {};
    change(attr);
    return CheckSharedReceives(attr, limits_);
  };
  EXPECT_STREQ(check([](fi_rx_attr&) {}), nullptr);
  EXPECT_STREQ(check([](fi_rx_attr& attr) { attr.iov_limit = 17; }), "iov_limit");
  EXPECT_STREQ(check([](fi_rx_attr& attr) { attr.size = 32'769; }), "size");
  EXPECT_STREQ(check([](fi_rx_attr& attr) { attr.caps = FI_TAGGED; }), "caps");
  EXPECT_STREQ(check([](fi_rx_attr& attr) { attr.op_flags = FI_INJECT; }), "op_flags");
}

TEST_F(NarrowTest, OfAnotherNicAnInfoHasNoMoreThanThat) {
  hint_tx_.size = 2000;
  hint_tx_.rma_iov_limit = 4;
  hint_rx_.iov_limit = 8;
  ASSERT_EQ(Ask(FI_EP_MSG), nullptr);
  domain_.domain = reinterpret_cast<fid_domain*>(this);
  Limits fewer = limits_;
  fewer.max_msg_size = 1 << 20;
  fewer.inject_size = 64;
  fewer.send_entries = 4000;
  fewer.iov_limit = 2;
  fewer.ep_cnt = 3;
  fewer.rx_size = 1 << 20;
  ASSERT_TRUE(MoveToNic("verbena1", fewer, &info_));
  EXPECT_STREQ(domain_.name, "verbena1");
  EXPECT_EQ(domain_.domain, nullptr);
  EXPECT_EQ(ep_.max_msg_size, size_t{1} << 20);
  EXPECT_EQ(tx_.inject_size, 64u);
  EXPECT_EQ(tx_.size, 1000u);
  EXPECT_EQ(tx_.rma_iov_limit, 4u);
  EXPECT_EQ(rx_.iov_limit, 2u);
  EXPECT_EQ(rx_.size, 256u) << "not more than was granted";
  EXPECT_EQ(domain_.ep_cnt, 3u);
  EXPECT_EQ(domain_.max_ep_stx_ctx, 3u);
  EXPECT_EQ(domain_.cq_cnt, 10u);
  EXPECT_EQ(CheckEndpoint(kNow, info_, fewer), nullptr);
}

// Each RDM endpoint has a place at the NIC, and of those there are fewer than QPs.
TEST_F(NarrowTest, SoManyEndpointsAsCanBeOpened) {
  limits_.ep_cnt = 32'768;
  EXPECT_EQ(Ask(FI_EP_RDM), nullptr);
  EXPECT_EQ(domain_.ep_cnt, 4'096u);
  EXPECT_EQ(Ask(FI_EP_MSG), nullptr);
  EXPECT_EQ(domain_.ep_cnt, 32'768u);
  hint_domain_.ep_cnt = 5'000;
  hints_.domain_attr = &hint_domain_;
  EXPECT_EQ(Ask(FI_EP_MSG), nullptr);
  EXPECT_STREQ(Ask(FI_EP_RDM), "ep_cnt");
}

}  // namespace
}  // namespace verbena::fi
