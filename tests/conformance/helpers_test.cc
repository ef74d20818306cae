// The small verbs: names, rates, indices, registrations with an address of one's own choice, and
// the fields of a completion that only the extended interface reads.
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "tests/conformance/verbs_fixture.h"

// Exported for other libraries, and declared in none of the headers that programs include.
extern "C" {
int ibv_dontfork_range(void* base, size_t size);
int ibv_dofork_range(void* base, size_t size);
const char* ibv_get_sysfs_path(void);
int ibv_resolve_eth_l2_from_gid(ibv_context* context, ibv_ah_attr* attr, uint8_t mac[6],
                                uint16_t* vid);
int ibv_read_sysfs_file(const char* dir, const char* file, char* buf, size_t size);
}

namespace verbena::conformance {
namespace {

using Verb_ibv_node_type_str = VerbsTest;
using Verb_ibv_port_state_str = VerbsTest;
using Verb_ibv_event_type_str = VerbsTest;
using Verb_ibv_wc_status_str = VerbsTest;
using Verb_ibv_rate_to_mult = VerbsTest;
using Verb_mult_to_ibv_rate = VerbsTest;
using Verb_ibv_rate_to_mbps = VerbsTest;
using Verb_mbps_to_ibv_rate = VerbsTest;
using Verb_ibv_get_device_index = VerbsTest;
using Verb_ibv_dontfork_range = VerbsTest;
using Verb_ibv_dofork_range = VerbsTest;
using Verb_ibv_reg_mr_iova = VerbsTest;
using Verb_ibv_reg_mr_iova2 = VerbsTest;
using Verb_ibv_inc_rkey = VerbsTest;
using Verb_ibv_cq_ex_to_cq = VerbsTest;
using Verb_ibv_is_qpt_supported = VerbsTest;
using Verb_ibv_get_sysfs_path = VerbsTest;
using Verb_ibv_read_sysfs_file = VerbsTest;
using Verb_ibv_wc_read = VerbsTest;
using Verb_ibv_wc_read_vendor_err = VerbsTest;
using Verb_ibv_create_srq_ex = VerbsTest;
using Verb_ibv_resolve_eth_l2_from_gid = VerbsTest;
using Verb_ibv_flow_label_to_udp_sport = VerbsTest;
using Verb_ibv_query_rt_values_ex = VerbsTest;

// Side b's QP on one extended CQ, connected to a.
class ExtendedCqTest : public VerbsTest {
 protected:
  ibv_cq_ex* PutOnExtendedCq(ibv_cq_init_attr_ex* attr) {
    ibv_cq_ex* cq = ibv_create_cq_ex(b->context, attr);
    if (cq == nullptr) return nullptr;
    EXPECT_EQ(ibv_destroy_qp(b->qp), 0);
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
    init.qp_type = IBV_QPT_RC;
    init.cap = {8, 8, 1, 1, 0};
    b->qp = ibv_create_qp(b->pd, &init);
    EXPECT_NE(b->qp, nullptr);
    EXPECT_EQ(a->ToState(IBV_QPS_RESET), 0);
    Connect(*a, *b, {});
    return cq;
  }
  void DropExtendedCq(ibv_cq_ex* cq) {
    EXPECT_EQ(ibv_destroy_qp(std::exchange(b->qp, nullptr)), 0);
    EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
  }
};
using Verb_ibv_wc_read_completion_ts = ExtendedCqTest;
using Verb_ibv_wc_read_completion_wallclock_ns = ExtendedCqTest;
using NotYet = VerbsTest;

TEST_F(Verb_ibv_node_type_str, NamesAChannelAdapter) {
  EXPECT_STREQ(ibv_node_type_str(IBV_NODE_CA), "InfiniBand channel adapter");
  EXPECT_STREQ(ibv_node_type_str(static_cast<ibv_node_type>(99)), "unknown");
}

TEST_F(Verb_ibv_port_state_str, NamesStates) {
  EXPECT_STREQ(ibv_port_state_str(IBV_PORT_ACTIVE), "active");
  EXPECT_STREQ(ibv_port_state_str(IBV_PORT_DOWN), "down");
}

TEST_F(Verb_ibv_event_type_str, NamesEveryEvent) {
  for (int event = IBV_EVENT_CQ_ERR; event <= IBV_EVENT_WQ_FATAL; ++event) {
    EXPECT_STRNE(ibv_event_type_str(static_cast<ibv_event_type>(event)), "unknown") << event;
  }
}

TEST_F(Verb_ibv_wc_status_str, NamesEveryStatus) {
  for (int status = IBV_WC_SUCCESS; status <= IBV_WC_GENERAL_ERR; ++status) {
    EXPECT_STRNE(ibv_wc_status_str(static_cast<ibv_wc_status>(status)), "unknown") << status;
  }
  EXPECT_STREQ(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR), "transport retry counter exceeded");
}

TEST_F(Verb_ibv_rate_to_mult, CountsIn2500Mbps) {
  EXPECT_EQ(ibv_rate_to_mult(IBV_RATE_10_GBPS), 4);
  EXPECT_EQ(ibv_rate_to_mult(static_cast<ibv_rate>(1)), -1);
}
TEST_F(Verb_mult_to_ibv_rate, IsTheInverse) {
  EXPECT_EQ(mult_to_ibv_rate(4), IBV_RATE_10_GBPS);
  EXPECT_EQ(mult_to_ibv_rate(3), IBV_RATE_MAX);
}
TEST_F(Verb_ibv_rate_to_mbps, KnowsTheRates) {
  EXPECT_EQ(ibv_rate_to_mbps(IBV_RATE_100_GBPS), 103125);
  EXPECT_EQ(ibv_rate_to_mbps(IBV_RATE_10_GBPS), 10000);
}
TEST_F(Verb_mbps_to_ibv_rate, IsTheInverse) {
  EXPECT_EQ(mbps_to_ibv_rate(103125), IBV_RATE_100_GBPS);
  EXPECT_EQ(mbps_to_ibv_rate(1), IBV_RATE_MAX);
}

TEST_F(Verb_ibv_get_device_index, IsDifferentForEveryDevice) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ASSERT_GE(count, 2);
  int first = ibv_get_device_index(list[0]), second = ibv_get_device_index(list[1]);
  EXPECT_GE(first, 0);
  EXPECT_NE(first, second);
  ibv_free_device_list(list);
}

TEST_F(Verb_ibv_dontfork_range, IsHarmless) {
  Memory memory(8192);
  EXPECT_EQ(ibv_dontfork_range(memory.data(), memory.size()), 0);
}
TEST_F(Verb_ibv_dofork_range, IsHarmless) {
  Memory memory(8192);
  EXPECT_EQ(ibv_dontfork_range(memory.data(), memory.size()), 0);
  EXPECT_EQ(ibv_dofork_range(memory.data(), memory.size()), 0);
}

// b names its memory by an address of its own choice; a writes to that.
void WritesThroughIova(Side& a, Side& b, ibv_mr* mr, uint64_t iova) {
  ASSERT_NE(mr, nullptr);
  memset(a.buffer.data(), 0x5e, 100);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = iova + 500;
  wr.wr.rdma.rkey = mr->rkey;
  ASSERT_EQ(a.Post(wr, {a.Sge(0, 100)}), 0);
  EXPECT_EQ(a.WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b.buffer[500], 0x5e);
  EXPECT_EQ(b.buffer[599], 0x5e);
  EXPECT_EQ(b.buffer[600], 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Verb_ibv_reg_mr_iova, RemoteAddressesCountFromTheChosenOne) {
  MakePair();
  constexpr uint64_t kIova = 0x10'0000'0000;
  ibv_mr* mr = ibv_reg_mr_iova(b->pd, b->buffer.data(), 4096, kIova, kAllAccess);
  WritesThroughIova(*a, *b, mr, kIova);
}

TEST_F(Verb_ibv_reg_mr_iova2, TakesOptionalAccessBits) {
  MakePair();
  ibv_mr* mr =
      ibv_reg_mr_iova2(b->pd, b->buffer.data(), 4096, 0, kAllAccess | IBV_ACCESS_RELAXED_ORDERING);
  WritesThroughIova(*a, *b, mr, 0);
}

TEST_F(Verb_ibv_inc_rkey, ChangesTheLowByteOnly) {
  EXPECT_EQ(ibv_inc_rkey(0x123456ff), 0x12345600u);
  EXPECT_EQ(ibv_inc_rkey(0x12345601), 0x12345602u);
}

TEST_F(Verb_ibv_cq_ex_to_cq, IsPolledLikeAnyOther) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_cq_init_attr_ex attr = {};
  attr.cqe = 16;
  ibv_cq_ex* cq = ibv_create_cq_ex(a->context, &attr);
  ASSERT_NE(cq, nullptr);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc), 0);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

TEST_F(Verb_ibv_is_qpt_supported, SaysWhatCreateQpDoes) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_device_attr_ex attr = {};
  ASSERT_EQ(ibv_query_device_ex(a->context, nullptr, &attr), 0);
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = a->send_cq;
  init.qp_type = IBV_QPT_RAW_PACKET;
  init.cap = {1, 1, 1, 1, 0};
  EXPECT_EQ(ibv_create_qp(a->pd, &init), nullptr) << "no raw packets yet";
}

TEST_F(Verb_ibv_get_sysfs_path, IsAPath) {
  const char* path = ibv_get_sysfs_path();
  ASSERT_NE(path, nullptr);
  EXPECT_EQ(path[0], '/');
}

TEST_F(Verb_ibv_read_sysfs_file, ReadsALineWithoutItsEnd) {
  char text[64] = {};
  int n = ibv_read_sysfs_file("/proc/sys/kernel", "ostype", text, sizeof(text));
  EXPECT_EQ(n, 5);
  EXPECT_STREQ(text, "Linux");
  EXPECT_LT(ibv_read_sysfs_file("/proc/sys/kernel", "no such file", text, sizeof(text)), 0);
}

// A UD QP whose receive CQ is an extended one.
TEST_F(Verb_ibv_wc_read, ReadsDatagramFields) {
  MakeUdPair();
  ibv_cq_init_attr_ex attr = {};
  attr.cqe = 16;
  attr.wc_flags = IBV_WC_STANDARD_FLAGS;
  ibv_cq_ex* cq = ibv_create_cq_ex(b->context, &attr);
  ASSERT_NE(cq, nullptr);
  ASSERT_EQ(ibv_destroy_qp(b->qp), 0);
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
  init.qp_type = IBV_QPT_UD;
  init.cap = {8, 8, 1, 1, 0};
  b->qp = ibv_create_qp(b->pd, &init);
  ASSERT_NE(b->qp, nullptr);
  ASSERT_EQ(b->ToInit(), 0);
  ASSERT_EQ(b->ToRtr(0, {}, {}), 0);
  ASSERT_EQ(b->PostRecv(3, 0, 256), 0);
  ibv_ah_attr to = AddressOf(b->gid());
  ibv_ah* ah = ibv_create_ah(a->pd, &to);
  ASSERT_NE(ah, nullptr);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.ud.ah = ah;
  wr.wr.ud.remote_qpn = b->qp->qp_num;
  wr.wr.ud.remote_qkey = kQKey;
  ASSERT_EQ(a->Post(wr, {a->Sge(0, 10)}), 0);
  ibv_poll_cq_attr poll_attr = {};
  ASSERT_TRUE(Eventually([&] { return ibv_start_poll(cq, &poll_attr) == 0; }));
  EXPECT_EQ(ibv_wc_read_src_qp(cq), a->qp->qp_num);
  EXPECT_TRUE(ibv_wc_read_wc_flags(cq) & IBV_WC_GRH);
  EXPECT_EQ(ibv_wc_read_byte_len(cq), 50u);
  EXPECT_EQ(ibv_wc_read_sl(cq) & 7, 2) << "the convention for RoCE v2 over IPv4 that UCX expects";
  EXPECT_EQ(ibv_wc_read_dlid_path_bits(cq), 0);
  ibv_wc_read_slid(cq);
  ibv_end_poll(cq);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  ASSERT_EQ(ibv_destroy_qp(b->qp), 0);
  b->qp = nullptr;
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

TEST_F(Verb_ibv_wc_read_vendor_err, TellsDifferentFaultsApart) {
  uint32_t codes[2];
  for (bool beyond : {false, true}) {
    MakePair();
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    ibv_sge sge = a->Sge(0, 8);
    if (beyond) {
      sge.addr += a->buffer.size();
    } else {
      sge.lkey ^= 1;
    }
    ASSERT_EQ(a->Post(wr, {sge}), 0);
    ibv_wc wc = a->WaitSend();
    EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR);
    codes[beyond ? 1 : 0] = wc.vendor_err;
  }
  EXPECT_NE(codes[0], 0u);
  EXPECT_NE(codes[0], codes[1]);
}

TEST_F(Verb_ibv_create_srq_ex, MakesABasicSrq) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_srq_init_attr_ex init = {};
  init.attr = {16, 1, 0};
  init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
  init.srq_type = IBV_SRQT_BASIC;
  init.pd = a->pd;
  ibv_srq* srq = ibv_create_srq_ex(a->context, &init);
  ASSERT_NE(srq, nullptr);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST_F(Verb_ibv_resolve_eth_l2_from_gid, FindsTheAddressBehindAGidOfThisInstance) {
  a = std::make_unique<Side>(SideOptions{});
  b = std::make_unique<Side>(SideOptions{.nic = 1});
  uint8_t by_ipv4[6] = {}, by_link_local[6] = {};
  uint16_t vid = 0;
  ibv_ah_attr attr = AddressOf(b->gid());
  EXPECT_EQ(ibv_resolve_eth_l2_from_gid(a->context, &attr, by_ipv4, &vid), 0);
  EXPECT_EQ(vid, 0xffff);
  ibv_gid link_local = {};
  ASSERT_EQ(ibv_query_gid(b->context, 1, 0, &link_local), 0);
  attr = AddressOf(link_local);
  EXPECT_EQ(ibv_resolve_eth_l2_from_gid(a->context, &attr, by_link_local, &vid), 0);
  EXPECT_EQ(memcmp(by_ipv4, by_link_local, 6), 0);
  ibv_gid nobody = b->gid();
  nobody.raw[15] = 250;
  attr = AddressOf(nobody);
  EXPECT_NE(ibv_resolve_eth_l2_from_gid(a->context, &attr, by_ipv4, &vid), 0);
}

TEST_F(Verb_ibv_flow_label_to_udp_sport, StaysInTheDynamicPorts) {
  for (uint32_t label : {0u, 1u, 0xfffffu, 0x12345u}) {
    EXPECT_GE(ibv_flow_label_to_udp_sport(label), 0xc000);
  }
}

TEST_F(Verb_ibv_query_rt_values_ex, ReadsTheClockOfCompletions) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_values_ex before = {}, after = {};
  before.comp_mask = after.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  ASSERT_EQ(ibv_query_rt_values_ex(a->context, &before), 0);
  ASSERT_EQ(ibv_query_rt_values_ex(a->context, &after), 0);
  EXPECT_GE(after.raw_clock.tv_nsec, before.raw_clock.tv_nsec);
}

TEST_F(Verb_ibv_wc_read_completion_ts, GrowsFromOneCompletionToTheNext) {
  MakePair();
  ibv_cq_init_attr_ex attr = {};
  attr.cqe = 64;
  attr.wc_flags = uint64_t{IBV_WC_STANDARD_FLAGS} | uint64_t{IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
  ibv_cq_ex* cq = PutOnExtendedCq(&attr);
  ASSERT_NE(cq, nullptr);
  uint64_t last = 0;
  ibv_poll_cq_attr poll_attr = {};
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(b->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *a, 0), 0);
    ASSERT_TRUE(Eventually([&] { return ibv_start_poll(cq, &poll_attr) == 0; }));
    uint64_t now = ibv_wc_read_completion_ts(cq);
    ibv_end_poll(cq);
    EXPECT_GT(now, last);
    last = now;
  }
  DropExtendedCq(cq);
}

TEST_F(Verb_ibv_wc_read_completion_wallclock_ns, TellsTheTimeOfDay) {
  MakePair();
  ibv_cq_init_attr_ex attr = {};
  attr.cqe = 64;
  attr.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  ibv_cq_ex* cq = PutOnExtendedCq(&attr);
  ASSERT_NE(cq, nullptr);
  auto now_ns = [] {
    return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  };
  const int64_t before_ns = now_ns();
  ASSERT_EQ(b->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *a, 0), 0);
  ibv_poll_cq_attr poll_attr = {};
  ASSERT_TRUE(Eventually([&] { return ibv_start_poll(cq, &poll_attr) == 0; }));
  const auto completed_ns = static_cast<int64_t>(ibv_wc_read_completion_wallclock_ns(cq));
  ibv_end_poll(cq);
  EXPECT_GT(completed_ns, before_ns - 1'000'000'000);
  EXPECT_LE(completed_ns, now_ns());
  DropExtendedCq(cq);
}

// What is not there says so as the man pages promise, and does not crash.
TEST_F(NotYet, ReturnsTheDocumentedError) {
  a = std::make_unique<Side>(SideOptions{});
  auto expect_null = [](const char* verb, const void* result) {
    EXPECT_EQ(result, nullptr) << verb;
    EXPECT_TRUE(errno == EOPNOTSUPP || errno == ENOSYS) << verb << ": " << strerror(errno);
    errno = 0;
  };
  auto expect_error = [](const char* verb, int error) {
    EXPECT_TRUE(error == EOPNOTSUPP || error == ENOSYS) << verb << ": " << error;
  };
  ibv_xrcd_init_attr xrcd = {};
  xrcd.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  xrcd.fd = -1;
  expect_null("ibv_open_xrcd", ibv_open_xrcd(a->context, &xrcd));
  ibv_counters_init_attr counters = {};
  expect_null("ibv_create_counters", ibv_create_counters(a->context, &counters));
  ibv_flow_attr flow = {};
  flow.size = sizeof(flow);
  expect_null("ibv_create_flow", ibv_create_flow(a->qp, &flow));
  ibv_sge sge = a->Sge(0, 8);
  expect_error("ibv_advise_mr", ibv_advise_mr(a->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1));
}

}  // namespace
}  // namespace verbena::conformance
