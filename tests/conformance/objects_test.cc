// Devices, ports and the creation, limits and destruction rules of every object.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

using Verb_ibv_get_device_list = VerbsTest;
using Verb_ibv_open_device = VerbsTest;
using Verb_ibv_query_device = VerbsTest;
using Verb_ibv_query_port = VerbsTest;
using Verb_ibv_query_gid = VerbsTest;
using Verb_ibv_query_gid_table = VerbsTest;
using Verb_ibv_query_pkey = VerbsTest;
using Verb_ibv_alloc_pd = VerbsTest;
using Verb_ibv_dealloc_pd = VerbsTest;
using Verb_ibv_reg_mr = VerbsTest;
using Verb_ibv_dereg_mr = VerbsTest;
using Verb_ibv_create_cq = VerbsTest;
using Verb_ibv_destroy_cq = VerbsTest;
using Verb_ibv_create_comp_channel = VerbsTest;
using Verb_ibv_destroy_comp_channel = VerbsTest;
using Verb_ibv_create_ah = VerbsTest;
using Verb_ibv_create_qp = VerbsTest;
using Verb_ibv_query_qp = VerbsTest;
using Verb_ibv_destroy_qp = VerbsTest;

TEST_F(Verb_ibv_get_device_list, ListsNicsByNameAndCountsThem) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ASSERT_NE(list, nullptr);
  ASSERT_GE(count, 2);
  EXPECT_EQ(list[count], nullptr);
  std::set<std::string> names;
  std::set<uint64_t> guids;
  for (int i = 0; i < count; ++i) {
    names.insert(ibv_get_device_name(list[i]));
    guids.insert(ibv_get_device_guid(list[i]));
    EXPECT_EQ(list[i]->node_type, IBV_NODE_CA);
    EXPECT_EQ(list[i]->transport_type, IBV_TRANSPORT_IB);
  }
  EXPECT_TRUE(names.contains("verbena0"));
  EXPECT_EQ(names.size(), static_cast<size_t>(count));
  EXPECT_EQ(guids.size(), static_cast<size_t>(count));
  ibv_free_device_list(list);
}

TEST_F(Verb_ibv_open_device, ContextOutlivesTheDeviceList) {
  ibv_context* context = OpenNic(0);
  ASSERT_NE(context, nullptr);
  EXPECT_STREQ(ibv_get_device_name(context->device), "verbena0");
  EXPECT_GE(context->async_fd, 0);
  EXPECT_GE(context->cmd_fd, 0);
  EXPECT_GE(context->num_comp_vectors, 1);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(Verb_ibv_open_device, SameDeviceOpensManyTimes) {
  std::vector<ibv_context*> contexts;
  for (int i = 0; i < 32; ++i) {
    contexts.push_back(OpenNic(i % 2));
    ASSERT_NE(contexts.back(), nullptr);
  }
  for (ibv_context* context : contexts) EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(Verb_ibv_query_device, LimitsAreUsable) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_device_attr attr = {};
  ASSERT_EQ(ibv_query_device(a->context, &attr), 0);
  EXPECT_GE(attr.max_qp, 10'000);
  EXPECT_GE(attr.max_mr, 10'000);
  EXPECT_GE(attr.max_cqe, 65'536);
  EXPECT_GE(attr.max_qp_wr, 8'192);
  EXPECT_GE(attr.max_sge, 16);
  EXPECT_GE(attr.max_qp_rd_atom, 16);
  EXPECT_EQ(attr.atomic_cap, IBV_ATOMIC_HCA);
  EXPECT_EQ(attr.phys_port_cnt, 1);
  EXPECT_NE(attr.node_guid, 0u);
}

TEST_F(Verb_ibv_query_port, PortIsActiveEthernet) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_port_attr attr = {};
  ASSERT_EQ(ibv_query_port(a->context, 1, &attr), 0);
  EXPECT_EQ(attr.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(attr.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(attr.active_mtu, IBV_MTU_4096);
  EXPECT_GE(attr.max_msg_sz, 1u << 30);
  EXPECT_EQ(ibv_query_port(a->context, 2, &attr), EINVAL);
  EXPECT_EQ(ibv_query_port(a->context, 0, &attr), EINVAL);
}

TEST_F(Verb_ibv_query_gid, FirstIsLinkLocalSecondIsIpv4) {
  a = std::make_unique<Side>(SideOptions{.nic = 1});
  ibv_gid gid = {};
  ASSERT_EQ(ibv_query_gid(a->context, 1, 0, &gid), 0);
  EXPECT_EQ(gid.raw[0], 0xfe);
  EXPECT_EQ(gid.raw[1], 0x80);
  ASSERT_EQ(ibv_query_gid(a->context, 1, 1, &gid), 0);
  // 127.0.0.2, or the second address of the block of 64 that --wire found.
  const uint8_t mapped[13] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127};
  EXPECT_EQ(memcmp(gid.raw, mapped, sizeof(mapped)), 0);
  EXPECT_EQ(gid.raw[15] % 64, 2);
  EXPECT_NE(ibv_query_gid(a->context, 2, 0, &gid), 0);
}

TEST_F(Verb_ibv_query_gid_table, ListsOnlyFilledEntries) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_gid_entry entries[64] = {};
  ssize_t n = ibv_query_gid_table(a->context, entries, 64, 0);
  ASSERT_GE(n, 2);
  for (ssize_t i = 0; i < n; ++i) {
    EXPECT_EQ(entries[i].port_num, 1u);
    EXPECT_EQ(entries[i].gid_type, static_cast<uint32_t>(IBV_GID_TYPE_ROCE_V2));
  }
  ibv_port_attr port = {};
  ASSERT_EQ(ibv_query_port(a->context, 1, &port), 0);
  ibv_gid_entry entry = {};
  EXPECT_EQ(ibv_query_gid_ex(a->context, 1, 1, &entry, 0), 0);
  EXPECT_EQ(ibv_query_gid_ex(a->context, 1, port.gid_tbl_len - 1, &entry, 0), ENODATA);
}

TEST_F(Verb_ibv_query_pkey, FirstIsTheDefaultFullMember) {
  a = std::make_unique<Side>(SideOptions{});
  __be16 pkey = 0;
  ASSERT_EQ(ibv_query_pkey(a->context, 1, 0, &pkey), 0);
  EXPECT_EQ(pkey, 0xffff);
  EXPECT_NE(ibv_query_pkey(a->context, 1, 30'000, &pkey), 0);
  EXPECT_EQ(ibv_get_pkey_index(a->context, 1, 0xffff), 0);
}

TEST_F(Verb_ibv_alloc_pd, HandlesAreDistinct) {
  ibv_context* context = OpenNic(0);
  ASSERT_NE(context, nullptr);
  ibv_pd* first = ibv_alloc_pd(context);
  ibv_pd* second = ibv_alloc_pd(context);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->handle, second->handle);
  EXPECT_EQ(ibv_dealloc_pd(first), 0);
  EXPECT_EQ(ibv_dealloc_pd(second), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(Verb_ibv_dealloc_pd, IsBusyWhileItHasObjects) {
  ibv_context* context = OpenNic(0);
  ASSERT_NE(context, nullptr);
  ibv_pd* pd = ibv_alloc_pd(context);
  Memory memory(4096);
  ibv_mr* mr = ibv_reg_mr(pd, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(Verb_ibv_reg_mr, RemoteWriteNeedsLocalWrite) {
  a = std::make_unique<Side>(SideOptions{});
  for (int access : {IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_ATOMIC}) {
    errno = 0;
    EXPECT_EQ(ibv_reg_mr(a->pd, a->buffer.data(), 4096, access), nullptr) << access;
    EXPECT_EQ(errno, EINVAL);
  }
}

TEST_F(Verb_ibv_reg_mr, UnmappedMemoryIsRefused) {
  a = std::make_unique<Side>(SideOptions{});
  Memory hole(8192);
  munmap(hole.data(), 4096);
  errno = 0;
  EXPECT_EQ(ibv_reg_mr(a->pd, hole.data(), 8192, IBV_ACCESS_LOCAL_WRITE), nullptr);
  EXPECT_EQ(errno, EFAULT);
}

TEST_F(Verb_ibv_reg_mr, ForcedBackendThatCannotBeHadIsRefused) {
  a = std::make_unique<Side>(SideOptions{});
  const char* set = getenv("VERBENA_DMA");
  std::string before = set != nullptr ? set : "";
  auto register_with = [&](const char* backend) {
    setenv("VERBENA_DMA", backend, 1);
    errno = 0;
    ibv_mr* mr = ibv_reg_mr(a->pd, a->buffer.data(), 4096, IBV_ACCESS_LOCAL_WRITE);
    int error = errno;
    if (mr == nullptr) return error;
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    return 0;
  };
  EXPECT_EQ(register_with("auto"), 0);
  EXPECT_EQ(register_with("process"), 0);
  EXPECT_EQ(register_with("mapped"), 0);
  EXPECT_EQ(register_with("assisted"), 0);
  EXPECT_EQ(register_with("no-such-backend"), EINVAL);
  if (set != nullptr) setenv("VERBENA_DMA", before.c_str(), 1);
  if (set == nullptr) unsetenv("VERBENA_DMA");
}
TEST_F(Verb_ibv_reg_mr, SameMemoryRegistersManyTimesWithDistinctKeys) {
  a = std::make_unique<Side>(SideOptions{});
  std::vector<ibv_mr*> mrs;
  std::set<uint32_t> lkeys, rkeys;
  for (int i = 0; i < 500; ++i) {
    mrs.push_back(ibv_reg_mr(a->pd, a->buffer.data(), a->buffer.size(), kAllAccess));
    ASSERT_NE(mrs.back(), nullptr);
    lkeys.insert(mrs.back()->lkey);
    rkeys.insert(mrs.back()->rkey);
  }
  EXPECT_EQ(lkeys.size(), mrs.size());
  EXPECT_EQ(rkeys.size(), mrs.size());
  for (ibv_mr* mr : mrs) EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Verb_ibv_dereg_mr, ReusedIndexGetsANewKey) {
  a = std::make_unique<Side>(SideOptions{});
  std::set<uint32_t> keys;
  for (int i = 0; i < 200; ++i) {
    ibv_mr* mr = ibv_reg_mr(a->pd, a->buffer.data(), 4096, kAllAccess);
    ASSERT_NE(mr, nullptr);
    EXPECT_TRUE(keys.insert(mr->rkey).second) << "key " << mr->rkey << " came back at once";
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
}

TEST_F(Verb_ibv_create_cq, GivesAtLeastWhatWasAskedAndRefusesNonsense) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_cq* cq = ibv_create_cq(a->context, 100, nullptr, nullptr, 0);
  ASSERT_NE(cq, nullptr);
  EXPECT_GE(cq->cqe, 100);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  ibv_device_attr attr = {};
  ASSERT_EQ(ibv_query_device(a->context, &attr), 0);
  for (int cqe : {0, -1, attr.max_cqe + 1}) {
    errno = 0;
    EXPECT_EQ(ibv_create_cq(a->context, cqe, nullptr, nullptr, 0), nullptr) << cqe;
    EXPECT_EQ(errno, EINVAL) << cqe;
  }
  errno = 0;
  int vector = a->context->num_comp_vectors;
  EXPECT_EQ(ibv_create_cq(a->context, 10, nullptr, nullptr, vector), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Verb_ibv_destroy_cq, IsBusyWhileAQpUsesIt) {
  a = std::make_unique<Side>(SideOptions{});
  EXPECT_EQ(ibv_destroy_cq(a->send_cq), EBUSY);
}

TEST_F(Verb_ibv_create_comp_channel, HasAPollableFd) {
  ibv_context* context = OpenNic(0);
  ASSERT_NE(context, nullptr);
  ibv_comp_channel* channel = ibv_create_comp_channel(context);
  ASSERT_NE(channel, nullptr);
  EXPECT_GE(channel->fd, 0);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(Verb_ibv_destroy_comp_channel, IsBusyWhileACqUsesIt) {
  a = std::make_unique<Side>(SideOptions{.with_channel = true});
  EXPECT_EQ(ibv_destroy_comp_channel(a->channel), EBUSY);
}

TEST_F(Verb_ibv_create_ah, NeedsAGrh) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_ah_attr attr = AddressOf(a->gid());
  ibv_ah* ah = ibv_create_ah(a->pd, &attr);
  ASSERT_NE(ah, nullptr);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  attr.is_global = 0;
  errno = 0;
  EXPECT_EQ(ibv_create_ah(a->pd, &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Verb_ibv_create_ah, RefusesAMissingGidIndexOrPort) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_ah_attr attr = AddressOf(a->gid());
  attr.grh.sgid_index = 200;
  EXPECT_EQ(ibv_create_ah(a->pd, &attr), nullptr);
  attr = AddressOf(a->gid());
  attr.port_num = 2;
  EXPECT_EQ(ibv_create_ah(a->pd, &attr), nullptr);
}

// Creates a QP with `cap` on a's PD and CQs; destroys it. The errno, or 0.
int TryQp(Side& side, ibv_qp_cap* cap, ibv_qp_type type = IBV_QPT_RC) {
  ibv_qp_init_attr init = {};
  init.send_cq = side.send_cq;
  init.recv_cq = side.recv_cq;
  init.qp_type = type;
  init.cap = *cap;
  errno = 0;
  ibv_qp* qp = ibv_create_qp(side.pd, &init);
  if (qp == nullptr) return errno;
  *cap = init.cap;
  return ibv_destroy_qp(qp);
}

TEST_F(Verb_ibv_create_qp, ReturnsTheCapabilitiesItGives) {
  a = std::make_unique<Side>(SideOptions{});
  for (ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD}) {
    ibv_qp_cap cap = {33, 17, 3, 2, 30};
    ASSERT_EQ(TryQp(*a, &cap, type), 0) << type;
    EXPECT_GE(cap.max_send_wr, 33u);
    EXPECT_GE(cap.max_recv_wr, 17u);
    EXPECT_GE(cap.max_send_sge, 3u);
    EXPECT_GE(cap.max_recv_sge, 2u);
    EXPECT_GE(cap.max_inline_data, 30u);
  }
}

TEST_F(Verb_ibv_create_qp, RefusesMoreThanTheDeviceHas) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_device_attr attr = {};
  ASSERT_EQ(ibv_query_device(a->context, &attr), 0);
  uint32_t wr = attr.max_qp_wr, sge = attr.max_sge;
  for (ibv_qp_cap cap : {ibv_qp_cap{wr + 1, 1, 1, 1, 0}, ibv_qp_cap{1, wr + 1, 1, 1, 0},
                         ibv_qp_cap{1, 1, sge + 1, 1, 0}, ibv_qp_cap{1, 1, 1, sge + 1, 0},
                         ibv_qp_cap{1, 1, 1, 1, 1u << 20}}) {
    EXPECT_EQ(TryQp(*a, &cap), EINVAL);
  }
  ibv_qp_cap most = {wr, wr, sge, sge, 0};
  EXPECT_EQ(TryQp(*a, &most), 0) << "what the device advertises must be had";
}

TEST_F(Verb_ibv_create_qp, NumbersAreUniqueOnANic) {
  a = std::make_unique<Side>(SideOptions{});
  std::vector<std::unique_ptr<Side>> sides;
  std::set<uint32_t> numbers = {a->qp->qp_num};
  for (int i = 0; i < 50; ++i) {
    sides.push_back(std::make_unique<Side>(SideOptions{.nic = 0}));
    EXPECT_TRUE(numbers.insert(sides.back()->qp->qp_num).second);
    EXPECT_GT(sides.back()->qp->qp_num, 1u);
    EXPECT_LT(sides.back()->qp->qp_num, 0xff'ffffu);
  }
}

TEST_F(Verb_ibv_query_qp, TellsWhatWasSet) {
  ConnectOptions options;
  MakePair({}, options);
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  ASSERT_EQ(ibv_query_qp(a->qp, &attr, 0xffffff, &init), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(attr.cur_qp_state, IBV_QPS_RTS);
  EXPECT_EQ(attr.dest_qp_num, b->qp->qp_num);
  EXPECT_EQ(attr.path_mtu, options.mtu);
  EXPECT_EQ(attr.timeout, options.timeout);
  EXPECT_EQ(attr.retry_cnt, options.retry_cnt);
  EXPECT_EQ(attr.rnr_retry, options.rnr_retry);
  EXPECT_EQ(attr.min_rnr_timer, options.min_rnr_timer);
  EXPECT_EQ(attr.max_rd_atomic, options.rd_atomic);
  EXPECT_EQ(attr.max_dest_rd_atomic, options.rd_atomic);
  EXPECT_EQ(attr.qp_access_flags & kRemoteAccess, kRemoteAccess);
  EXPECT_EQ(memcmp(attr.ah_attr.grh.dgid.raw, b->gid().raw, 16), 0);
  EXPECT_EQ(attr.ah_attr.grh.sgid_index, kGidIndex);
  EXPECT_GE(init.cap.max_send_wr, a->options.max_send_wr);
  EXPECT_EQ(init.send_cq, a->send_cq);
  EXPECT_EQ(init.qp_type, IBV_QPT_RC);
}

TEST_F(Verb_ibv_destroy_qp, PendingWorkVanishesWithoutCompletions) {
  MakePair();
  for (uint64_t i = 0; i < 8; ++i) ASSERT_EQ(a->PostRecv(i, 0, 64), 0);
  ASSERT_EQ(ibv_destroy_qp(a->qp), 0);
  a->qp = nullptr;
  ibv_wc wc = {};
  EXPECT_TRUE(NeverWithin([&] { return ibv_poll_cq(a->recv_cq, 1, &wc) != 0; }));
}

// Libraries clean up by it after a failure whose errno they then return.
TEST_F(Verb_ibv_destroy_qp, ThatSucceedsLeavesErrnoAlone) {
  MakePair();
  errno = EXDEV;
  ASSERT_EQ(ibv_destroy_qp(a->qp), 0);
  EXPECT_EQ(errno, EXDEV) << strerror(errno);
  a->qp = nullptr;
}

}  // namespace
}  // namespace verbena::conformance
