// b lends a parts of a region by memory windows, and sees to it that nobody else gets in.
#pragma once

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {

inline constexpr size_t kStart = 8192;  // of the window, in b's region
inline constexpr size_t kLength = 4096;
inline constexpr unsigned kRights =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

class WindowTest : public VerbsTest {
 protected:
  void SetUp() override { Make({}); }
  void Make(SideOptions options) {
    options.send_ops = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND |
                       IBV_QP_EX_WITH_RDMA_WRITE;
    if (options.type == IBV_QPT_RC) options.send_ops |= IBV_QP_EX_WITH_SEND_WITH_INV;
    options.mr_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
    MakePair(options);
    memset(a->buffer.data(), 0xaa, a->buffer.size());
    memset(b->buffer.data(), 0xbb, b->buffer.size());
  }
  void TearDown() override {
    for (ibv_mw* mw : windows) EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  }
  // As good as new, the windows too.
  void Renew() {
    TearDown();
    windows.clear();
    a.reset();
    b.reset();
    SetUp();
  }

  ibv_mw* Alloc(ibv_mw_type type) {
    ibv_mw* mw = ibv_alloc_mw(b->pd, type);
    EXPECT_NE(mw, nullptr) << strerror(errno);
    windows.push_back(mw);
    return mw;
  }
  ibv_mw_bind_info Info(unsigned access = kRights) const {
    return {b->mr, b->buffer.address() + kStart, kLength, access};
  }
  // Posts; 0 or errno.
  int PostBind(ibv_mw* mw, const ibv_mw_bind_info& info, uint64_t wr_id = 1) {
    if (mw->type == IBV_MW_TYPE_1) {
      ibv_mw_bind bind = {wr_id, IBV_SEND_SIGNALED, info};
      return ibv_bind_mw(b->qp, mw, &bind);
    }
    ibv_send_wr wr = {};
    wr.wr_id = wr_id;
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
    wr.bind_mw.bind_info = info;
    int error = b->Post(wr, {});
    if (error == 0) mw->rkey = wr.bind_mw.rkey;
    return error;
  }
  ibv_wc Bind(ibv_mw* mw, const ibv_mw_bind_info& info) {
    EXPECT_EQ(PostBind(mw, info, 21), 0);
    ibv_wc wc = b->WaitSend();
    EXPECT_EQ(wc.wr_id, 21u);
    if (wc.status == IBV_WC_SUCCESS) {
      EXPECT_EQ(wc.opcode, IBV_WC_BIND_MW);
    }
    return wc;
  }
  ibv_mw* Bound(ibv_mw_type type) {
    ibv_mw* mw = Alloc(type);
    EXPECT_EQ(Bind(mw, Info()).status, IBV_WC_SUCCESS);
    return mw;
  }
  ibv_wc LocalInvalidate(uint32_t rkey) {
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_LOCAL_INV;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.invalidate_rkey = rkey;
    EXPECT_EQ(b->Post(wr, {}), 0);
    return b->WaitSend();
  }

  // By a, of a key of b's; 0 or errno.
  int PostSendWithInvalidate(uint32_t rkey) {
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_SEND_WITH_INV;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.invalidate_rkey = rkey;
    return a->Post(wr, {a->Sge(0, 8)});
  }
  ibv_wc Remote(ibv_wr_opcode opcode, uint64_t address, uint32_t rkey) {
    ibv_send_wr wr = {};
    wr.wr_id = 7;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      wr.wr.atomic.remote_addr = address;
      wr.wr.atomic.rkey = rkey;
      wr.wr.atomic.compare_add = 1;
    } else {
      wr.wr.rdma.remote_addr = address;
      wr.wr.rdma.rkey = rkey;
    }
    EXPECT_EQ(a->Post(wr, {a->Sge(0, 8)}), 0);
    return a->WaitSend();
  }
  uint64_t In(size_t offset) const { return b->buffer.address() + kStart + offset; }
  void ExpectOpen(uint64_t address, uint32_t rkey) {
    EXPECT_EQ(Remote(IBV_WR_RDMA_WRITE, address, rkey).status, IBV_WC_SUCCESS);
  }
  // What both ends see of an access that is refused. Both QPs are of no use afterwards.
  void ExpectClosed(uint64_t address, uint32_t rkey, ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE) {
    const std::vector<uint8_t> before(b->buffer.data(), b->buffer.data() + b->buffer.size());
    EXPECT_EQ(Remote(opcode, address, rkey).status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(a->State(), IBV_QPS_ERR);
    EXPECT_TRUE(b->WaitEvent(IBV_EVENT_QP_ACCESS_ERR));
    EXPECT_EQ(b->State(), IBV_QPS_ERR);
    EXPECT_EQ(memcmp(before.data(), b->buffer.data(), before.size()), 0);
  }

  std::vector<ibv_mw*> windows;
};

inline constexpr ibv_mw_type kTypes[] = {IBV_MW_TYPE_1, IBV_MW_TYPE_2};

}  // namespace verbena::conformance
