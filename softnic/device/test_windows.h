// Two connected QPs, a's and b's, and memory windows of b for a to reach its memory by.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {

inline constexpr uint32_t kRemoteRights =
    access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
inline constexpr uint32_t kBindable = access::kLocalWrite | access::kMwBind;

struct TestMw {
  shm::Handle handle = 0;
  uint32_t rkey = 0;
};
// What a bind asks for; the default: 256 bytes in the middle of b's region, all rights.
struct TestBind {
  uint32_t rkey = 0;
  uint32_t lkey = 0;
  uint64_t addr = 0;
  uint64_t length = 256;
  uint32_t access = kRemoteRights;
  uint8_t flags = shm::kSendSignaled;
};

inline uint32_t NextKey(uint32_t rkey) { return (rkey & ~0xffu) | ((rkey + 1) & 0xff); }

class WindowTest : public ::testing::Test, protected TestPair<> {
 protected:
  explicit WindowTest(Service service = Service::kRc)
      : TestPair(service),
        service_(service),
        mr_a(a.MustRegMr(memory_a, sizeof(memory_a), access::kLocalWrite)),
        mr_b(b.MustRegMr(memory_b, sizeof(memory_b), kBindable)) {}

  static int AllocMw(TestClient& client, shm::Handle pd, uint32_t type, TestMw* out) {
    shm::AllocMwRequest request{pd, type};
    shm::AllocMwReply reply{};
    int error = client.Execute(shm::CommandOp::kAllocMw, request, &reply);
    *out = {reply.mw, reply.rkey};
    return error;
  }
  TestMw MustAllocMw(uint32_t type) {
    TestMw mw;
    EXPECT_EQ(AllocMw(b, b.pd, type, &mw), 0);
    return mw;
  }
  static shm::SendWqe BindWqe(const TestMw& mw, const TestBind& bind, uint64_t wr_id = 1) {
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kBindMw, wr_id, bind.flags);
    wqe.imm_or_rkey = bind.rkey;
    wqe.rkey = bind.lkey;
    wqe.remote_addr = bind.addr;
    wqe.bind.length = bind.length;
    wqe.bind.mw = mw.handle;
    wqe.bind.access = bind.access;
    return wqe;
  }
  static shm::SendWqe InvalidateWqe(uint32_t rkey, uint64_t wr_id = 1) {
    shm::SendWqe wqe = MakeWqe(shm::WrOpcode::kLocalInv, wr_id);
    wqe.imm_or_rkey = rkey;
    return wqe;
  }
  TestBind Middle(const TestMw& mw) {
    TestBind bind;
    bind.rkey = NextKey(mw.rkey);
    bind.lkey = mr_b.lkey;
    bind.addr = AddrB(1'024);
    return bind;
  }
  // Binds and takes the completion; the window has its new key if that was a success.
  Wc Bind(TestMw* mw, const TestBind& bind, TestQp* qp = nullptr) {
    b.Post(qp != nullptr ? *qp : qp_b, BindWqe(*mw, bind), {});
    Wc wc = Next(b, cq_b);
    if (wc.status == WcStatus::kSuccess) mw->rkey = bind.rkey;
    return wc;
  }
  Wc Invalidate(uint32_t rkey, TestQp* qp = nullptr) {
    b.Post(qp != nullptr ? *qp : qp_b, InvalidateWqe(rkey), {});
    return Next(b, cq_b);
  }
  // A window of the default kind, bound.
  TestMw Bound(uint32_t type) {
    TestMw mw = MustAllocMw(type);
    EXPECT_EQ(Bind(&mw, Middle(mw)).status, WcStatus::kSuccess);
    return mw;
  }

  // One request of a's with 8 bytes.
  shm::SendWqe RemoteWqe(shm::WrOpcode opcode, uint64_t addr, uint32_t rkey, uint64_t wr_id = 1) {
    shm::SendWqe wqe = MakeWqe(opcode, wr_id);
    wqe.remote_addr = addr;
    wqe.rkey = rkey;
    wqe.atomic.compare_add = 1;
    return wqe;
  }
  void PostRemote(TestQp& qp, shm::WrOpcode opcode, uint64_t addr, uint32_t rkey,
                  uint64_t wr_id = 1) {
    a.Post(qp, RemoteWqe(opcode, addr, rkey, wr_id), {SgeOf(memory_a, 8, mr_a.lkey)});
  }
  WcStatus Remote(shm::WrOpcode opcode, uint64_t addr, uint32_t rkey) {
    PostRemote(qp_a, opcode, addr, rkey);
    return Next(a, cq_a).status;
  }
  WcStatus Write(uint64_t addr, uint32_t rkey) {
    return Remote(shm::WrOpcode::kRdmaWrite, addr, rkey);
  }
  // Refused at both ends: a's status, b's event, both QPs in error; then as good as new.
  void ExpectRefused(shm::WrOpcode opcode, uint64_t addr, uint32_t rkey) {
    const std::vector<uint8_t> before(memory_b, memory_b + sizeof(memory_b));
    b.TakeAsyncEvents();
    EXPECT_EQ(Remote(opcode, addr, rkey), WcStatus::kRemAccessErr);
    EXPECT_EQ(a.StateOf(qp_a), QpState::kErr);
    EXPECT_EQ(b.StateOf(qp_b), QpState::kErr);
    EXPECT_EQ(b.TakeAsyncEvents(), std::vector<EventType>{EventType::kQpAccessErr});
    EXPECT_EQ(std::vector<uint8_t>(memory_b, memory_b + sizeof(memory_b)), before);
    Renew();
  }
  void ExpectWriteRefused(uint64_t addr, uint32_t rkey) {
    ExpectRefused(shm::WrOpcode::kRdmaWrite, addr, rkey);
  }
  void Renew() {
    EXPECT_EQ(a.ToReset(qp_a), 0);
    EXPECT_EQ(b.ToReset(qp_b), 0);
    a.PollAll(cq_a);
    b.PollAll(cq_b);
    a.TakeAsyncEvents();
    b.TakeAsyncEvents();
    Connect(a, qp_a, b, qp_b, service_);
  }
  Wc Next(TestClient& client, TestCq& cq) {
    EXPECT_TRUE(world.RunUntil([&] { return cq.ring.Peek() != nullptr; }));
    return client.Poll(cq).value_or(Wc{});
  }
  uint64_t AddrB(uint32_t offset) const { return reinterpret_cast<uint64_t>(memory_b) + offset; }

  const Service service_;
  TestMr mr_a, mr_b;
};

#define EXPECT_FAULT(wc, expected_status, expected_why)                            \
  do {                                                                             \
    ::verbena::softnic::testing::Wc result = (wc);                                 \
    EXPECT_EQ(result.status, expected_status);                                     \
    EXPECT_EQ(result.vendor_err, static_cast<uint32_t>(expected_why)) << std::hex; \
  } while (false)

}  // namespace verbena::softnic::testing
