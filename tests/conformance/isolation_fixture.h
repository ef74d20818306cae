// Pairs of QPs of every service, and the operations that use keys, for what must be refused.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {

inline constexpr ibv_qp_type kTypes[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
inline constexpr uint32_t kBytes = 64;
inline constexpr uint32_t kGrhBytes = 40;
inline constexpr size_t kAt = 4096;  // where in the buffers requests go

enum Services : unsigned { kRc = 1, kUc = 2, kUd = 4 };

inline bool Has(unsigned services, ibv_qp_type type) {
  return (services & (type == IBV_QPT_RC ? kRc : type == IBV_QPT_UC ? kUc : kUd)) != 0;
}
inline std::string NameOf(ibv_qp_type type) {
  return type == IBV_QPT_RC ? "RC" : type == IBV_QPT_UC ? "UC" : "UD";
}

struct Operation {
  ibv_wr_opcode opcode;
  const char* name;
  unsigned services;
  bool is_remote;    // names memory of the peer
  bool writes_here;  // into its own SGEs
  unsigned needs;    // of the peer's region
  bool takes_receive;
};
inline constexpr Operation kOperations[] = {
    {IBV_WR_SEND, "SEND", kRc | kUc | kUd, false, false, 0, true},
    {IBV_WR_SEND_WITH_IMM, "SEND_WITH_IMM", kRc | kUc | kUd, false, false, 0, true},
    {IBV_WR_RDMA_WRITE, "RDMA_WRITE", kRc | kUc, true, false, IBV_ACCESS_REMOTE_WRITE, false},
    {IBV_WR_RDMA_WRITE_WITH_IMM, "RDMA_WRITE_WITH_IMM", kRc | kUc, true, false,
     IBV_ACCESS_REMOTE_WRITE, true},
    {IBV_WR_RDMA_READ, "RDMA_READ", kRc, true, true, IBV_ACCESS_REMOTE_READ, false},
    {IBV_WR_ATOMIC_CMP_AND_SWP, "ATOMIC_CMP_AND_SWP", kRc, true, true, IBV_ACCESS_REMOTE_ATOMIC,
     false},
    {IBV_WR_ATOMIC_FETCH_AND_ADD, "ATOMIC_FETCH_AND_ADD", kRc, true, true, IBV_ACCESS_REMOTE_ATOMIC,
     false},
    {IBV_WR_ATOMIC_WRITE, "ATOMIC_WRITE", kRc, true, false, IBV_ACCESS_REMOTE_WRITE, false},
};

inline bool IsAtomic(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

// A pair, b's second domain, and regions of it.
class IsolationTest : public VerbsTest {
 protected:
  void Make(ibv_qp_type type, bool with_srq = false) {
    Unmake();
    SideOptions options;
    options.type = type;
    options.with_srq = with_srq;
    options.mr_access = kAllAccess | IBV_ACCESS_MW_BIND;
    MakePair(options);
    memset(a->buffer.data(), 0xaa, a->buffer.size());
    memset(b->buffer.data(), 0xbb, b->buffer.size());
    ibv_ah_attr attr = AddressOf(b->gid());
    ah = ibv_create_ah(a->pd, &attr);
    ASSERT_NE(ah, nullptr);
  }
  void TearDown() override { Unmake(); }
  void Unmake() {
    if (ah != nullptr) {
      EXPECT_EQ(ibv_destroy_ah(std::exchange(ah, nullptr)), 0);
    }
    for (ibv_mr* mr : mrs) EXPECT_EQ(ibv_dereg_mr(mr), 0);
    for (ibv_pd* pd : pds) EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    mrs.clear();
    pds.clear();
  }

  ibv_pd* OtherPd(Side& side) {
    pds.push_back(ibv_alloc_pd(side.context));
    return pds.back();
  }
  ibv_mr* Region(Side& side, ibv_pd* pd, unsigned access) {
    mrs.push_back(ibv_reg_mr(pd, side.buffer.data(), side.buffer.size(), access));
    EXPECT_NE(mrs.back(), nullptr);
    return mrs.back();
  }
  // A key of a region that is no more.
  uint32_t DeadKey(Side& side) {
    ibv_mr* mr = ibv_reg_mr(side.pd, side.buffer.data(), side.buffer.size(), kAllAccess);
    const uint32_t key = mr->rkey;
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    // The next is at the same place in the NIC's table, sooner or later.
    Region(side, side.pd, kAllAccess);
    return key;
  }

  // A request of a's with this SGE, to this place at b.
  int Post(const Operation& op, const ibv_sge& sge, uint64_t remote_addr, uint32_t rkey,
           unsigned flags = 0) {
    ibv_send_wr wr = {};
    wr.wr_id = 7;
    wr.opcode = op.opcode;
    wr.send_flags = IBV_SEND_SIGNALED | flags;
    if (a->options.type == IBV_QPT_UD) {
      wr.wr.ud = {ah, b->qp->qp_num, kQKey};
    } else if (IsAtomic(op.opcode)) {
      wr.wr.atomic.remote_addr = remote_addr;
      wr.wr.atomic.rkey = rkey;
    } else {
      wr.wr.rdma = {remote_addr, rkey};
    }
    if (op.opcode == IBV_WR_ATOMIC_WRITE) wr.send_flags |= IBV_SEND_INLINE;
    return a->Post(wr, {sge});
  }
  static uint32_t LengthOf(const Operation& op) {
    return IsAtomic(op.opcode) || op.opcode == IBV_WR_ATOMIC_WRITE ? 8 : kBytes;
  }
  uint64_t Here() const { return a->buffer.address() + kAt; }
  uint64_t There() const { return b->buffer.address() + kAt; }
  void ExpectUntouched(Side& side, uint8_t byte) {
    for (size_t i = 0; i < side.buffer.size(); ++i) {
      ASSERT_EQ(side.buffer[i], byte) << "byte " << i;
    }
  }

  ibv_ah* ah = nullptr;
  std::vector<ibv_mr*> mrs;
  std::vector<ibv_pd*> pds;
};

}  // namespace verbena::conformance
