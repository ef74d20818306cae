// Device memory: its limits, its copies, its regions, and traffic to and from it.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <numeric>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

constexpr unsigned kDmAccess = kAllAccess | IBV_ACCESS_ZERO_BASED;
constexpr size_t kDmBytes = 8'192;

ibv_dm* Alloc(ibv_context* context, size_t length, uint32_t log_align = 0, uint32_t mask = 0) {
  ibv_alloc_dm_attr attr = {};
  attr.length = length;
  attr.log_align_req = log_align;
  attr.comp_mask = mask;
  errno = 0;
  return ibv_alloc_dm(context, &attr);
}

uint64_t MaxDmSize(ibv_context* context) {
  ibv_device_attr_ex attr = {};
  EXPECT_EQ(ibv_query_device_ex(context, nullptr, &attr), 0);
  return attr.max_dm_size;
}

class DmTest : public VerbsTest {
 protected:
  void SetUp() override {
    MakePair();
    dm = Alloc(b->context, kDmBytes);
    ASSERT_NE(dm, nullptr) << strerror(errno);
    mr = ibv_reg_dm_mr(b->pd, dm, 0, kDmBytes, kDmAccess);
    ASSERT_NE(mr, nullptr) << strerror(errno);
  }
  void TearDown() override {
    if (mr != nullptr) {
      EXPECT_EQ(ibv_dereg_mr(mr), 0);
    }
    if (dm != nullptr) {
      EXPECT_EQ(ibv_free_dm(dm), 0);
    }
  }
  ibv_send_wr RemoteWr(ibv_wr_opcode opcode, uint64_t offset) const {
    ibv_send_wr wr = {};
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = offset;
    wr.wr.rdma.rkey = mr->rkey;
    return wr;
  }
  ibv_wc_status Status(const ibv_send_wr& wr, const std::vector<ibv_sge>& sges) {
    EXPECT_EQ(a->Post(wr, sges), 0);
    return a->WaitSend().status;
  }
  void FillA(size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) a->buffer[i] = static_cast<uint8_t>(i * 7 + (i >> 8));
  }

  ibv_dm* dm = nullptr;
  ibv_mr* mr = nullptr;
};

using Verb_ibv_alloc_dm = DmTest;
using Verb_ibv_free_dm = DmTest;
using Verb_ibv_memcpy_to_dm = DmTest;
using Verb_ibv_memcpy_from_dm = DmTest;
using Verb_ibv_reg_dm_mr = DmTest;

TEST_F(Verb_ibv_alloc_dm, KeepsToWhatTheDeviceSays) {
  const uint64_t max = MaxDmSize(b->context);
  ASSERT_GE(max, 1u << 20);
  EXPECT_EQ(Alloc(b->context, max + 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(Alloc(b->context, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(Alloc(b->context, 64, 0, 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(Alloc(b->context, 64, 20), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(Alloc(b->context, max), nullptr) << "part of it is taken";
  EXPECT_EQ(errno, ENOMEM);
  ibv_dm* rest = Alloc(b->context, max - kDmBytes, 12);
  ASSERT_NE(rest, nullptr);
  EXPECT_EQ(ibv_free_dm(rest), 0);
}

TEST_F(Verb_ibv_alloc_dm, IsZeroed) {
  std::vector<uint8_t> bytes(kDmBytes, 1);
  ASSERT_EQ(ibv_memcpy_from_dm(bytes.data(), dm, 0, kDmBytes), 0);
  EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), 0), 0);
}

// Of all verbs these work in a forked child with the context it inherited.
TEST_F(Verb_ibv_alloc_dm, InAForkedChild) {
  const pid_t child = fork();
  if (child == 0) {
    ibv_dm* own = Alloc(b->context, 64);
    uint32_t word = 9;
    if (own == nullptr || ibv_memcpy_to_dm(own, 0, &word, 4) != 0 || ibv_free_dm(own) != 0) {
      _exit(1);
    }
    _exit(ibv_memcpy_to_dm(dm, 4, &word, 4) == 0 ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  uint32_t word = 0;
  ASSERT_EQ(ibv_memcpy_from_dm(&word, dm, 4, 4), 0);
  EXPECT_EQ(word, 9u) << "the memory is shared with the child";
}

TEST_F(Verb_ibv_free_dm, IsBusyWhileARegionIsRegistered) {
  EXPECT_EQ(ibv_free_dm(dm), EBUSY);
  uint32_t word = 5;
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 0, &word, 4), 0) << "and it is there still";
}

TEST_F(Verb_ibv_free_dm, ClosedDeviceGivesItBack) {
  ibv_context* context = OpenNic(1);
  const uint64_t rest = MaxDmSize(context) - kDmBytes;
  for (int i = 0; i < 3; ++i) {
    if (context == nullptr) context = OpenNic(1);
    ibv_dm* left = nullptr;
    EXPECT_TRUE(Eventually([&] { return (left = Alloc(context, rest)) != nullptr; }));
    EXPECT_EQ(ibv_close_device(context), 0);
    context = nullptr;
  }
}

TEST_F(Verb_ibv_memcpy_to_dm, CopiesWholeWordsWithinTheMemory) {
  std::vector<uint8_t> in(101), out(100, 0);
  std::iota(in.begin(), in.end(), uint8_t{1});
  ASSERT_EQ(ibv_memcpy_to_dm(dm, 4, in.data() + 1, 100), 0);  // host memory of any alignment
  ASSERT_EQ(ibv_memcpy_from_dm(out.data(), dm, 4, 100), 0);
  EXPECT_EQ(memcmp(in.data() + 1, out.data(), 100), 0);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 3, in.data(), 4), EINVAL);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 4, in.data(), 3), EINVAL);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, kDmBytes, in.data(), 4), EFAULT);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, kDmBytes - 4, in.data(), 8), EFAULT);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, ~uint64_t{0} - 3, in.data(), 8), EFAULT);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, kDmBytes, in.data(), 0), 0);
}

TEST_F(Verb_ibv_memcpy_from_dm, HasTheSameRules) {
  uint32_t words[2];
  EXPECT_EQ(ibv_memcpy_from_dm(words, dm, 2, 4), EINVAL);
  EXPECT_EQ(ibv_memcpy_from_dm(words, dm, 0, 6), EINVAL);
  EXPECT_EQ(ibv_memcpy_from_dm(words, dm, kDmBytes + 4, 4), EFAULT);
  EXPECT_EQ(ibv_memcpy_from_dm(words, dm, kDmBytes - 4, 8), EFAULT);
}

TEST_F(Verb_ibv_reg_dm_mr, HasItsRules) {
  auto expect_refused = [&](uint64_t offset, size_t length, unsigned access) {
    errno = 0;
    EXPECT_EQ(ibv_reg_dm_mr(b->pd, dm, offset, length, access), nullptr);
    EXPECT_EQ(errno, EINVAL);
  };
  expect_refused(0, 64, kAllAccess);
  expect_refused(0, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_WRITE);
  expect_refused(0, 64, kDmAccess | IBV_ACCESS_HUGETLB);
  expect_refused(0, kDmBytes + 4, kDmAccess);
  expect_refused(4, kDmBytes, kDmAccess);
  expect_refused(kDmBytes + 4, 0, kDmAccess);
  errno = 0;
  EXPECT_EQ(ibv_reg_dm_mr(a->pd, dm, 0, 64, kDmAccess), nullptr) << "another context's PD";
  EXPECT_EQ(errno, EINVAL);
  ibv_mr* hinted = ibv_reg_dm_mr(b->pd, dm, 0, 64, kDmAccess | IBV_ACCESS_RELAXED_ORDERING);
  ASSERT_NE(hinted, nullptr);
  EXPECT_EQ(hinted->pd, b->pd);
  EXPECT_EQ(hinted->addr, nullptr);
  EXPECT_EQ(hinted->length, 64u);
  EXPECT_EQ(ibv_rereg_mr(hinted, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kAllAccess),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(ibv_dereg_mr(hinted), 0);
}

TEST_F(Verb_ibv_reg_dm_mr, PeerWritesAndReads) {
  constexpr size_t kBytes = 6'000;  // several packets
  FillA(kBytes);
  EXPECT_EQ(Status(RemoteWr(IBV_WR_RDMA_WRITE, 100), {a->Sge(0, kBytes)}), IBV_WC_SUCCESS);
  std::vector<uint8_t> bytes(kDmBytes);
  ASSERT_EQ(ibv_memcpy_from_dm(bytes.data(), dm, 0, kDmBytes), 0);
  EXPECT_EQ(memcmp(bytes.data() + 100, a->buffer.data(), kBytes), 0);
  EXPECT_EQ(bytes[99], 0);
  EXPECT_EQ(bytes[100 + kBytes], 0);
  EXPECT_EQ(Status(RemoteWr(IBV_WR_RDMA_READ, 100), {a->Sge(kBytes, kBytes)}), IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(a->buffer.data(), a->buffer.data() + kBytes, kBytes), 0);
}

TEST_F(Verb_ibv_reg_dm_mr, PeerWritesWithImmediate) {
  FillA(64);
  ASSERT_EQ(b->PostRecv(1, std::vector<ibv_sge>{}), 0);
  ibv_send_wr wr = RemoteWr(IBV_WR_RDMA_WRITE_WITH_IMM, 8);
  wr.imm_data = 0x1234;
  EXPECT_EQ(Status(wr, {a->Sge(0, 64)}), IBV_WC_SUCCESS);
  ibv_wc wc = b->WaitRecv();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.imm_data, 0x1234u);
  uint8_t bytes[64];
  ASSERT_EQ(ibv_memcpy_from_dm(bytes, dm, 8, sizeof(bytes)), 0);
  EXPECT_EQ(memcmp(bytes, a->buffer.data(), sizeof(bytes)), 0);
}

TEST_F(Verb_ibv_reg_dm_mr, AtomicsOnDeviceMemory) {
  uint64_t word = 40;
  ASSERT_EQ(ibv_memcpy_to_dm(dm, 16, &word, 8), 0);
  ibv_send_wr wr = {};
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.atomic.rkey = mr->rkey;
  wr.wr.atomic.remote_addr = 16;
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.wr.atomic.compare_add = 2;
  EXPECT_EQ(Status(wr, {a->Sge(0, 8)}), IBV_WC_SUCCESS);
  EXPECT_EQ(a->buffer.words()[0], 40u);
  wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
  wr.wr.atomic.compare_add = 42;
  wr.wr.atomic.swap = 7;
  EXPECT_EQ(Status(wr, {a->Sge(0, 8)}), IBV_WC_SUCCESS);
  EXPECT_EQ(a->buffer.words()[0], 42u);
  ASSERT_EQ(ibv_memcpy_from_dm(&word, dm, 16, 8), 0);
  EXPECT_EQ(word, 7u);
  wr.wr.atomic.remote_addr = 20;
  EXPECT_NE(Status(wr, {a->Sge(0, 8)}), IBV_WC_SUCCESS) << "not aligned";
}

TEST_F(Verb_ibv_reg_dm_mr, BoundsAndRightsAreChecked) {
  EXPECT_EQ(Status(RemoteWr(IBV_WR_RDMA_WRITE, kDmBytes - 7), {a->Sge(0, 8)}),
            IBV_WC_REM_ACCESS_ERR);
  ASSERT_EQ(ibv_dereg_mr(mr), 0);
  mr = ibv_reg_dm_mr(b->pd, dm, 64, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_READ);
  ASSERT_NE(mr, nullptr);
  for (auto [opcode, offset, expected] :
       {std::tuple{IBV_WR_RDMA_READ, 56, IBV_WC_SUCCESS},
        std::tuple{IBV_WR_RDMA_READ, 57, IBV_WC_REM_ACCESS_ERR},
        std::tuple{IBV_WR_RDMA_WRITE, 0, IBV_WC_REM_ACCESS_ERR}}) {
    ASSERT_EQ(a->ToState(IBV_QPS_RESET), 0);
    ASSERT_EQ(b->ToState(IBV_QPS_RESET), 0);
    Connect(*a, *b, {});
    EXPECT_EQ(Status(RemoteWr(opcode, static_cast<uint64_t>(offset)), {a->Sge(0, 8)}), expected);
  }
}

TEST_F(Verb_ibv_reg_dm_mr, ListsMayMixItWithOtherMemory) {
  ibv_mr* null = ibv_alloc_null_mr(b->pd);
  ASSERT_NE(null, nullptr);
  FillA(3'000);
  memset(b->buffer.data(), 0xee, 3'000);
  ASSERT_EQ(b->PostRecv(1, {{4, 1'000, mr->lkey}, {0, 500, null->lkey}, b->Sge(0, 1'500)}), 0);
  ASSERT_EQ(a->Send(2, 0, 3'000), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->WaitRecv().status, IBV_WC_SUCCESS);
  uint8_t bytes[1'000];
  ASSERT_EQ(ibv_memcpy_from_dm(bytes, dm, 4, sizeof(bytes)), 0);
  EXPECT_EQ(memcmp(bytes, a->buffer.data(), 1'000), 0);
  EXPECT_EQ(memcmp(b->buffer.data(), a->buffer.data() + 1'500, 1'500), 0);
  EXPECT_EQ(b->buffer[1'500], 0xee);
  // And back, gathered.
  ASSERT_EQ(a->PostRecv(3, 4'096, 2'508), 0);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  ASSERT_EQ(b->Post(wr, {b->Sge(0, 1'500), {4, 1'000, mr->lkey}, {0, 8, null->lkey}}), 0);
  EXPECT_EQ(b->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(a->WaitRecv().status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(a->buffer.data() + 4'096, a->buffer.data() + 1'500, 1'500), 0);
  EXPECT_EQ(memcmp(a->buffer.data() + 5'596, a->buffer.data(), 1'000), 0);
  EXPECT_EQ(a->buffer.words()[6'596 / 8 + 1] & 0xff, 0u);
  EXPECT_EQ(ibv_dereg_mr(null), 0);
}

// From device memory to device memory, over either NIC.
TEST_F(Verb_ibv_reg_dm_mr, SendsAndReceives) {
  ibv_dm* own = Alloc(a->context, 4'096);
  ASSERT_NE(own, nullptr);
  ibv_mr* own_mr = ibv_reg_dm_mr(a->pd, own, 0, 4'096, kDmAccess);
  ASSERT_NE(own_mr, nullptr);
  std::vector<uint32_t> words(1'024);
  std::iota(words.begin(), words.end(), 100u);
  ASSERT_EQ(ibv_memcpy_to_dm(own, 0, words.data(), 4'096), 0);
  ASSERT_EQ(b->PostRecv(1, {{4'096, 4'096, mr->lkey}}), 0);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  EXPECT_EQ(Status(wr, {{0, 4'096, own_mr->lkey}}), IBV_WC_SUCCESS);
  EXPECT_EQ(b->WaitRecv().status, IBV_WC_SUCCESS);
  std::vector<uint32_t> received(1'024);
  ASSERT_EQ(ibv_memcpy_from_dm(received.data(), dm, 4'096, 4'096), 0);
  EXPECT_EQ(received, words);
  EXPECT_EQ(ibv_dereg_mr(own_mr), 0);
  EXPECT_EQ(ibv_free_dm(own), 0);
}

}  // namespace
}  // namespace verbena::conformance
