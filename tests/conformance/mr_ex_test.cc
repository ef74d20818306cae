// Registration as v64 has it: buffers of the library, DMA handles, one call for all kinds. What
// v64's suite tests of them (test_buf, test_dmah, the *_ex and mrex tests), and more.
#include <endian.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/v64.h"
#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));

// The PD a buffer is of: one as any other, or one that permits memory shared with a host.
enum class Domain { kPlain, kShared };
std::string NameOf(const testing::TestParamInfo<Domain>& info) {
  return info.param == Domain::kPlain ? "PlainPd" : "SharedMemoryPd";
}

// Two sides whose regions are of buffers that the library allocated.
class BufTest : public VerbsTest {
 protected:
  struct Region {
    ibv_pd* pd = nullptr;  // of its side, or made for it
    v64::Buf* buf = nullptr;
    uint8_t* data = nullptr;
    ibv_mr* mr = nullptr;
  };

  void TearDown() override {
    for (auto& [side, region] : regions) {
      if (region.mr != nullptr) {
        EXPECT_EQ(ibv_dereg_mr(region.mr), 0);
      }
      if (region.buf != nullptr) v64::FreeBuf(region.buf);
      if (region.pd != side->pd) {
        EXPECT_EQ(ibv_dealloc_pd(region.pd), 0);
      }
    }
    VerbsTest::TearDown();
  }

  ibv_pd* PdOf(Side& side, Domain domain) {
    if (domain == Domain::kPlain) return side.pd;
    ibv_parent_domain_init_attr attr = {};
    attr.pd = side.pd;
    attr.comp_mask = v64::kParentDomainAllowCcUnprotectedAlloc;
    return ibv_alloc_parent_domain(side.context, &attr);
  }
  Region& Make(Side& side, Domain domain, size_t length, size_t offset = 0, bool by_mr_ex = false) {
    Region& region = regions.emplace_back(&side, Region{}).second;
    region.pd = PdOf(side, domain);
    EXPECT_NE(region.pd, nullptr);
    region.data =
        static_cast<uint8_t*>(v64::AllocBuf(region.pd, offset + length, &region.buf)) + offset;
    EXPECT_NE(region.buf, nullptr);
    region.mr = by_mr_ex ? RegEx(region, region.data, length)
                         : v64::RegBufMr(region.pd, region.buf, region.data, length, kAllAccess);
    EXPECT_NE(region.mr, nullptr) << strerror(errno);
    return region;
  }
  ibv_mr* RegEx(const Region& region, void* addr, size_t length, uint64_t more = 0) {
    v64::MrInitAttr attr = {};
    attr.length = length;
    attr.access = kAllAccess;
    attr.comp_mask = v64::kMrAddr | v64::kMrBuf | more;
    attr.addr = addr;
    attr.buf = region.buf;
    return v64::RegMrEx(region.pd, &attr);
  }
  static ibv_sge SgeOf(const Region& region, uint32_t length) {
    return {reinterpret_cast<uint64_t>(region.data), length, region.mr->lkey};
  }
  // From the buffer of `a` to that of `b`.
  ibv_wc Do(ibv_wr_opcode opcode, const Region& from, const Region& to, uint32_t length) {
    ibv_send_wr wr = {};
    wr.wr_id = 7;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.imm_data = htobe32(0x1234);
    wr.wr.rdma = {reinterpret_cast<uint64_t>(to.data), to.mr->rkey};
    EXPECT_EQ(a->Post(wr, {SgeOf(from, length)}), 0);
    return a->WaitSend();
  }

  std::deque<std::pair<Side*, Region>> regions;
};

class Verb_ibv_reg_buf_mr : public BufTest, public testing::WithParamInterface<Domain> {};

TEST_P(Verb_ibv_reg_buf_mr, TwoRegionsOfOneBuffer) {
  MakePair();
  for (bool by_mr_ex : {false, true}) {
    Region& first = Make(*a, GetParam(), 2 * kPage, 0, by_mr_ex);
    ibv_mr* second = v64::RegBufMr(first.pd, first.buf, first.data + kPage, kPage, kAllAccess);
    ASSERT_NE(second, nullptr);
    EXPECT_NE(first.mr->lkey, second->lkey);
    EXPECT_EQ(first.mr->addr, first.data);
    EXPECT_EQ(second->addr, first.data + kPage);
    EXPECT_EQ(second->length, kPage);
    EXPECT_EQ(ibv_dereg_mr(second), 0);
  }
}

TEST_P(Verb_ibv_reg_buf_mr, OnlyTheAllocatingPdRegisters) {
  MakePair();
  Region& region = Make(*a, GetParam(), kPage);
  ibv_pd* other = ibv_alloc_pd(a->context);
  for (ibv_pd* wrong : {other, ParentOf(region.pd)}) {
    ASSERT_NE(wrong, nullptr);
    EXPECT_EQ(v64::RegBufMr(wrong, region.buf, region.data, kPage, kAllAccess), nullptr);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(ibv_dealloc_pd(wrong), 0);
  }
}

TEST_P(Verb_ibv_reg_buf_mr, TheRangeLiesInTheBuffer) {
  MakePair();
  Region& region = Make(*a, GetParam(), kPage);
  struct {
    ptrdiff_t offset;
    size_t length;
  } const kWrong[] = {
      {0, 2 * kPage}, {1, kPage}, {-1, 8}, {static_cast<ptrdiff_t>(kPage), 1}, {8, SIZE_MAX}};
  for (const auto& row : kWrong) {
    EXPECT_EQ(
        v64::RegBufMr(region.pd, region.buf, region.data + row.offset, row.length, kAllAccess),
        nullptr);
    EXPECT_EQ(errno, EINVAL) << row.offset << ", " << row.length;
  }
}

TEST_P(Verb_ibv_reg_buf_mr, MessagesOfAllKinds) {
  MakePair();
  for (bool by_mr_ex : {false, true}) {
    for (size_t offset : {size_t{0}, kPage}) {
      constexpr uint32_t kLength = 16'384;
      Region& from = Make(*a, GetParam(), kLength, offset, by_mr_ex);
      Region& to = Make(*b, GetParam(), kLength, offset, by_mr_ex);
      memset(from.data, 0x5a, kLength);
      ASSERT_EQ(b->PostRecv(1, {SgeOf(to, kLength)}), 0);
      EXPECT_EQ(Do(IBV_WR_SEND, from, to, kLength).status, IBV_WC_SUCCESS);
      EXPECT_EQ(b->WaitRecv().byte_len, kLength);
      EXPECT_EQ(memcmp(from.data, to.data, kLength), 0);

      memset(from.data, 0x6b, kLength);
      ASSERT_EQ(b->PostRecv(2, std::vector<ibv_sge>{}), 0);
      EXPECT_EQ(Do(IBV_WR_RDMA_WRITE_WITH_IMM, from, to, kLength).status, IBV_WC_SUCCESS);
      EXPECT_EQ(b->WaitRecv().opcode, IBV_WC_RECV_RDMA_WITH_IMM);
      EXPECT_EQ(memcmp(from.data, to.data, kLength), 0);

      memset(to.data, 0x7c, kLength);
      EXPECT_EQ(Do(IBV_WR_RDMA_READ, from, to, kLength).status, IBV_WC_SUCCESS);
      EXPECT_EQ(memcmp(from.data, to.data, kLength), 0);
    }
  }
}

TEST_P(Verb_ibv_reg_buf_mr, Atomics) {
  MakePair();
  Region& from = Make(*a, GetParam(), 8);
  Region& to = Make(*b, GetParam(), 8);
  const uint64_t start = 40, add = 2;
  memcpy(to.data, &start, 8);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.atomic = {reinterpret_cast<uint64_t>(to.data), add, 0, to.mr->rkey};
  ASSERT_EQ(a->Post(wr, {SgeOf(from, 8)}), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  uint64_t before = 0, after = 0;
  memcpy(&before, from.data, 8);
  memcpy(&after, to.data, 8);
  EXPECT_EQ(before, start);
  EXPECT_EQ(after, start + add);
}

TEST_P(Verb_ibv_reg_buf_mr, Datagrams) {
  MakeUdPair();
  constexpr uint32_t kLength = 512, kGrh = 40;
  Region& from = Make(*a, GetParam(), kLength);
  Region& to = Make(*b, GetParam(), kLength + kGrh);
  memset(from.data, 0x5a, kLength);
  ASSERT_EQ(b->PostRecv(1, {SgeOf(to, kLength + kGrh)}), 0);
  ibv_ah_attr address = AddressOf(b->gid());
  ibv_ah* ah = ibv_create_ah(a->pd, &address);
  ASSERT_NE(ah, nullptr);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.ud = {ah, b->qp->qp_num, kQKey};
  ASSERT_EQ(a->Post(wr, {SgeOf(from, kLength)}), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->WaitRecv().byte_len, kLength + kGrh);
  EXPECT_EQ(memcmp(from.data, to.data + kGrh, kLength), 0);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

INSTANTIATE_TEST_SUITE_P(, Verb_ibv_reg_buf_mr, testing::Values(Domain::kPlain, Domain::kShared),
                         NameOf);

class Verb_ibv_alloc_buf : public BufTest {};

TEST_F(Verb_ibv_alloc_buf, GivesZeroedPagesAndHoldsItsPd) {
  MakePair();
  ibv_pd* pd = ibv_alloc_pd(a->context);
  v64::Buf* buf = nullptr;
  auto* data = static_cast<uint8_t*>(v64::AllocBuf(pd, kPage + 1, &buf));
  ASSERT_NE(data, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kPage, 0u);
  for (size_t i = 0; i <= kPage; ++i) ASSERT_EQ(data[i], 0) << i;
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
  v64::FreeBuf(buf);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(Verb_ibv_alloc_buf, MoreThanThereIsIsNoMemory) {
  MakePair();
  v64::Buf* buf = nullptr;
  EXPECT_EQ(v64::AllocBuf(a->pd, SIZE_MAX, &buf), nullptr);
  EXPECT_EQ(errno, ENOMEM);
}

class Verb_ibv_reg_mr_ex : public BufTest {
 protected:
  void SetUp() override { MakePair(); }
  v64::MrInitAttr AttrOf(Side& side, unsigned access = kAllAccess) {
    v64::MrInitAttr attr = {};
    attr.length = side.buffer.size();
    attr.access = static_cast<int>(access);
    attr.comp_mask = v64::kMrAddr;
    attr.addr = side.buffer.data();
    return attr;
  }
  ibv_wc WriteTo(const ibv_mr* mr, uint64_t addr, uint32_t length = 64) {
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {addr, mr->rkey};
    EXPECT_EQ(a->Post(wr, {a->Sge(0, length)}), 0);
    return a->WaitSend();
  }
};

TEST_F(Verb_ibv_reg_mr_ex, NamesItsBytesByAddressOrByIova) {
  for (uint64_t iova : {uint64_t{0}, uint64_t{0x7000'0000'0000}}) {
    v64::MrInitAttr attr = AttrOf(*b);
    if (iova != 0) {
      attr.comp_mask |= v64::kMrIova;
      attr.iova = iova;
    }
    ibv_mr* mr = v64::RegMrEx(b->pd, &attr);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(mr->addr, attr.addr);
    EXPECT_EQ(mr->length, attr.length);
    EXPECT_EQ(mr->pd, b->pd);
    memset(a->buffer.data(), iova == 0 ? 0x11 : 0x22, 64);
    const uint64_t to = (iova != 0 ? iova : b->buffer.address()) + 8;
    EXPECT_EQ(WriteTo(mr, to).status, IBV_WC_SUCCESS);
    EXPECT_EQ(memcmp(a->buffer.data(), b->buffer.data() + 8, 64), 0);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
}

TEST_F(Verb_ibv_reg_mr_ex, RelaxedOrderingIsTaken) {
  v64::MrInitAttr attr = AttrOf(*b, kAllAccess | IBV_ACCESS_RELAXED_ORDERING);
  ibv_mr* mr = v64::RegMrEx(b->pd, &attr);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(WriteTo(mr, b->buffer.address()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Verb_ibv_reg_mr_ex, IsReregisteredAsAnyOther) {
  v64::MrInitAttr attr = AttrOf(*b, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  ibv_mr* mr = v64::RegMrEx(b->pd, &attr);
  ASSERT_NE(mr, nullptr);
  Memory other(8192);
  ASSERT_EQ(
      ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, other.data(), other.size(), 0), 0);
  memset(a->buffer.data(), 0x33, 64);
  EXPECT_EQ(WriteTo(mr, other.address()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(a->buffer.data(), other.data(), 64), 0);
  ASSERT_EQ(
      ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_LOCAL_WRITE), 0);
  EXPECT_EQ(WriteTo(mr, other.address()).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Verb_ibv_reg_mr_ex, TakesWindowsOfType1) {
  v64::MrInitAttr attr = AttrOf(*b, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  ibv_mr* mr = v64::RegMrEx(b->pd, &attr);
  ibv_mw* mw = ibv_alloc_mw(b->pd, IBV_MW_TYPE_1);
  ASSERT_NE(mr, nullptr);
  ASSERT_NE(mw, nullptr);
  ibv_mw_bind bind = {
      1, IBV_SEND_SIGNALED, {mr, b->buffer.address() + 4096, 64, IBV_ACCESS_REMOTE_WRITE}};
  ASSERT_EQ(ibv_bind_mw(b->qp, mw, &bind), 0);
  ASSERT_EQ(b->WaitSend().status, IBV_WC_SUCCESS);
  memset(a->buffer.data(), 0x44, 64);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma = {b->buffer.address() + 4096, mw->rkey};
  ASSERT_EQ(a->Post(wr, {a->Sge(0, 64)}), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(a->buffer.data(), b->buffer.data() + 4096, 64), 0);
  EXPECT_EQ(WriteTo(mr, b->buffer.address()).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(mr), EBUSY);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Verb_ibv_reg_mr_ex, RefusesRightsThatDoNotGoTogether) {
  for (unsigned access : {IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_ATOMIC}) {
    v64::MrInitAttr attr = AttrOf(*b, access);
    EXPECT_EQ(v64::RegMrEx(b->pd, &attr), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
}

TEST_F(Verb_ibv_reg_mr_ex, TakesOneOfAddressAndFile) {
  Region& region = Make(*b, Domain::kPlain, kPage);
  struct {
    uint64_t mask;
    int error;
  } const kRows[] = {{0, EINVAL},
                     {v64::kMrAddr | v64::kMrFd, EINVAL},
                     {v64::kMrIova, EINVAL},
                     {v64::kMrBuf, EINVAL},
                     {v64::kMrBuf | v64::kMrFd, EINVAL},
                     {v64::kMrBuf | v64::kMrAddr | v64::kMrFd, EINVAL},
                     {v64::kMrFd, EOPNOTSUPP},  // no dma-buf reaches this device
                     {v64::kMrAddr | 1u << 6, EOPNOTSUPP}};
  for (const auto& row : kRows) {
    v64::MrInitAttr attr = AttrOf(*b);
    attr.comp_mask = row.mask;
    attr.buf = region.buf;
    EXPECT_EQ(v64::RegMrEx(b->pd, &attr), nullptr);
    EXPECT_EQ(errno, row.error) << row.mask;
  }
}

class Verb_ibv_alloc_dmah : public Verb_ibv_reg_mr_ex {
 protected:
  v64::Dmah* Alloc(uint32_t mask, uint32_t cpu = 0, uint8_t ph = 0, uint8_t mem_type = 0) {
    v64::DmahInitAttr attr = {mask, cpu, ph, mem_type};
    return v64::AllocDmah(b->context, &attr);
  }
  uint32_t OwnCpu() { return static_cast<uint32_t>(sched_getcpu()); }
  static constexpr uint32_t kAll = v64::kDmahCpuId | v64::kDmahPh | v64::kDmahMemType;
};

TEST_F(Verb_ibv_alloc_dmah, TakesWhatADeviceCouldUse) {
  for (v64::Dmah* dmah :
       {Alloc(0), Alloc(kAll, OwnCpu(), 3, v64::kMemTypeVolatile),
        Alloc(kAll, OwnCpu(), 0, v64::kMemTypePersistent), Alloc(v64::kDmahPh, 0xffff, 1, 0xfe)}) {
    ASSERT_NE(dmah, nullptr);
    EXPECT_EQ(dmah->context, b->context);
    EXPECT_EQ(v64::DeallocDmah(dmah), 0);
  }
}

TEST_F(Verb_ibv_alloc_dmah, RefusesWhatThereIsNot) {
  struct {
    uint32_t mask, cpu;
    uint8_t ph, mem_type;
    int error;
  } const kRows[] = {{v64::kDmahPh, 0, 4, 0, EINVAL},
                     {v64::kDmahMemType, 0, 0, 0xfe, EINVAL},
                     {v64::kDmahMemType, 0, 0, 2, EINVAL},
                     {kAll, 0xffff, 3, 0, EPERM},
                     {1u << 3, 0, 0, 0, EINVAL}};
  for (const auto& row : kRows) {
    EXPECT_EQ(Alloc(row.mask, row.cpu, row.ph, row.mem_type), nullptr);
    EXPECT_EQ(errno, row.error) << row.mask;
  }
}

TEST_F(Verb_ibv_alloc_dmah, RegionsWithItWorkAsOthers) {
  v64::Dmah* dmah = Alloc(kAll, OwnCpu(), 1);
  ASSERT_NE(dmah, nullptr);
  v64::MrInitAttr attr = AttrOf(*b);
  attr.comp_mask |= v64::kMrDmah;
  attr.dmah = dmah;
  ibv_mr* mr = v64::RegMrEx(b->pd, &attr);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(v64::DeallocDmah(dmah), EBUSY);

  memset(a->buffer.data(), 0x5a, 128);
  EXPECT_EQ(WriteTo(mr, b->buffer.address()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(a->buffer.data(), b->buffer.data(), 64), 0);
  ASSERT_EQ(b->PostRecv(1, {{b->buffer.address() + 256, 64, mr->lkey}}), 0);
  ASSERT_EQ(a->Send(2, 0, 64), 0);
  EXPECT_EQ(b->WaitRecv().status, IBV_WC_SUCCESS);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  b->buffer.words()[64] = 5;
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.atomic = {b->buffer.address() + 512, 2, 0, mr->rkey};
  ASSERT_EQ(a->Post(wr, {a->Sge(0, 8)}), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->buffer.words()[64], 7u);

  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(v64::DeallocDmah(dmah), 0);
}

TEST_F(Verb_ibv_alloc_dmah, IsOfOneDeviceAndNotForOnDemandPaging) {
  v64::Dmah* dmah = Alloc(0);
  v64::MrInitAttr attr = AttrOf(*a);
  attr.comp_mask |= v64::kMrDmah;
  attr.dmah = dmah;
  EXPECT_EQ(v64::RegMrEx(a->pd, &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  attr.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND;
  EXPECT_EQ(v64::RegMrEx(b->pd, &attr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(v64::DeallocDmah(dmah), 0);
}

}  // namespace
}  // namespace verbena::conformance
