// Allocators of parent domains: ibv_alloc_parent_domain(3), sentence by sentence. The table in
// docs/parent-domains.md names these tests.
#include <rdma/ib_user_ioctl_verbs.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "tests/conformance/verbs_fixture.h"
#include "verbena/verbenadv.h"

namespace verbena::conformance {
namespace {

const size_t kPageBytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
constexpr size_t kHugePageBytes = 2 * 1024 * 1024;

enum class Kind { kHeap, kPrivate, kAnonymousShared, kHugePages };

// Hands out memory, and keeps account of all it is asked.
class Allocator {
 public:
  struct Call {
    ibv_pd* pd;
    size_t size, alignment;
    uint64_t type;
    std::thread::id thread;
    uint8_t* memory;  // what it gave, or nullptr
    int freed;
  };

  explicit Allocator(Kind kind = Kind::kPrivate) : kind_(kind) {
    attr_.comp_mask =
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    attr_.alloc = &Alloc;
    attr_.free = &Free;
    attr_.pd_context = this;
  }
  const ibv_parent_domain_init_attr* attr() const { return &attr_; }

  // The memory given last for `type`, one of verbenadv_res_type.
  uint8_t* Last(uint32_t type) const {
    uint8_t* found = nullptr;
    for (const Call& call : calls) {
      if (static_cast<uint32_t>(call.type) == type && call.memory != nullptr) found = call.memory;
    }
    return found;
  }
  size_t Count(uint32_t type) const {
    size_t count = 0;
    for (const Call& call : calls) count += static_cast<uint32_t>(call.type) == type ? 1 : 0;
    return count;
  }
  // Given and not freed.
  size_t live() const {
    size_t count = 0;
    for (const Call& call : calls) count += call.memory != nullptr && call.freed == 0 ? 1 : 0;
    return count;
  }

  std::vector<Call> calls;
  uint32_t refused_type = 0;  // nullptr for these
  uint32_t default_type = 0;  // IBV_ALLOCATOR_USE_DEFAULT for these
  size_t misaligned_by = 0;
  int unknown_frees = 0;

 private:
  static void* Alloc(ibv_pd* pd, void* context, size_t size, size_t alignment, uint64_t type) {
    auto* self = static_cast<Allocator*>(context);
    Call call = {pd, size, alignment, type, std::this_thread::get_id(), nullptr, 0};
    const auto code = static_cast<uint32_t>(type);
    if (code == self->default_type) {
      self->calls.push_back(call);
      return IBV_ALLOCATOR_USE_DEFAULT;
    }
    if (code != self->refused_type) call.memory = self->Obtain(size, alignment);
    self->calls.push_back(call);
    return call.memory;
  }
  static void Free(ibv_pd* pd, void* context, void* memory, uint64_t type) {
    auto* self = static_cast<Allocator*>(context);
    for (Call& call : self->calls) {
      if (call.memory != memory || call.freed != 0) continue;
      if (call.pd != pd || call.type != type) break;
      ++call.freed;
      self->Release(call);
      return;
    }
    ++self->unknown_frees;
  }

  uint8_t* Obtain(size_t size, size_t alignment) const {
    void* memory = nullptr;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    switch (kind_) {
      case Kind::kHeap:
        // What aligned_alloc gives is not zero; the man page leaves that to the callback.
        memory = aligned_alloc(alignment, size + kPageBytes);
        memset(memory, 0, size + kPageBytes);
        return static_cast<uint8_t*>(memory) + misaligned_by;
      case Kind::kHugePages:
        flags |= MAP_HUGETLB;
        size = kHugePageBytes;
        break;
      case Kind::kAnonymousShared:
        flags = MAP_SHARED | MAP_ANONYMOUS;
        break;
      case Kind::kPrivate:
        break;
    }
    memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<uint8_t*>(memory);
  }
  void Release(const Call& call) const {
    if (kind_ == Kind::kHeap) return free(call.memory - misaligned_by);
    munmap(call.memory, kind_ == Kind::kHugePages ? kHugePageBytes : call.size);
  }

  Kind kind_;
  ibv_parent_domain_init_attr attr_ = {};
};

class AllocatorTest : public VerbsTest {
 protected:
  // Lives longer than what it is used by.
  Allocator& NewAllocator(Kind kind = Kind::kPrivate) {
    allocators_.push_back(std::make_unique<Allocator>(kind));
    return *allocators_.back();
  }
  void TearDown() override {
    a.reset();
    b.reset();
    for (const auto& allocator : allocators_) {
      EXPECT_EQ(allocator->live(), 0u);
      EXPECT_EQ(allocator->unknown_frees, 0);
    }
  }
  // Messages both ways, READ and atomics, more than once around the rings.
  void ExpectTraffic(uint64_t messages = 200) {
    for (uint64_t i = 0; i < messages; ++i) {
      const size_t offset = 64 * (i % 512);
      memset(a->buffer.data() + offset, static_cast<int>(i % 251 + 1), 64);
      ASSERT_EQ(b->PostRecv(i, offset, 64), 0);
      ASSERT_EQ(a->Send(i, offset, 64), 0);
      ASSERT_EQ(a->WaitSend().wr_id, i);
      ibv_wc wc = b->WaitRecv();
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(wc.wr_id, i);
      ASSERT_EQ(memcmp(b->buffer.data() + offset, a->buffer.data() + offset, 64), 0);
    }
  }

 private:
  std::vector<std::unique_ptr<Allocator>> allocators_;
};

using Verb_ibv_alloc_parent_domain = AllocatorTest;
using Verb_ibv_alloc_parent_domain_allocators = AllocatorTest;

TEST_F(Verb_ibv_alloc_parent_domain_allocators, AreCalledForTheMemoryOfEveryQueue) {
  Allocator& allocator = NewAllocator();
  a = std::make_unique<Side>(SideOptions{.with_srq = true, .domain = allocator.attr()});
  b = std::make_unique<Side>(SideOptions{.nic = 1, .domain = allocator.attr()});
  EXPECT_EQ(allocator.Count(VERBENADV_RES_TYPE_CQ), 4u);
  EXPECT_EQ(allocator.Count(VERBENADV_RES_TYPE_SQ), 2u);
  EXPECT_EQ(allocator.Count(VERBENADV_RES_TYPE_RQ), 1u);
  EXPECT_EQ(allocator.Count(VERBENADV_RES_TYPE_SRQ), 1u);
  for (const Allocator::Call& call : allocator.calls) {
    EXPECT_TRUE(call.pd == a->pd || call.pd == b->pd);
    EXPECT_EQ(call.thread, std::this_thread::get_id());
    EXPECT_GT(call.size, 0u);
    EXPECT_EQ(call.size % kPageBytes, 0u);
    EXPECT_EQ(call.alignment % kPageBytes, 0u);
    EXPECT_EQ(call.type >> 32, static_cast<uint64_t>(RDMA_DRIVER_RXE));
  }
  a.reset();
  b.reset();
  for (const Allocator::Call& call : allocator.calls) EXPECT_EQ(call.freed, 1);
  EXPECT_EQ(allocator.unknown_frees, 0);
}

TEST_F(Verb_ibv_alloc_parent_domain_allocators, MayGiveMemoryOfAnyKind) {
  for (Kind kind : {Kind::kHeap, Kind::kPrivate, Kind::kAnonymousShared, Kind::kHugePages}) {
    Allocator& allocator = NewAllocator(kind);
    if (kind == Kind::kHugePages) {
      void* probe = mmap(nullptr, kHugePageBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
      if (probe == MAP_FAILED) continue;  // the machine has none set aside
      munmap(probe, kHugePageBytes);
    }
    for (bool with_srq : {false, true}) {
      SideOptions options = {.with_srq = with_srq, .domain = allocator.attr()};
      SideOptions other = options;
      other.nic = 1;
      MakePair(options, other, {});
      ExpectTraffic();
      a.reset();
      b.reset();
      EXPECT_EQ(allocator.live(), 0u);
    }
  }
}

// wr_id is what every entry of a queue begins with, here as in many devices.
TEST_F(Verb_ibv_alloc_parent_domain_allocators, MemoryHoldsTheQueue) {
  constexpr uint64_t kSend = 0x5e4d'0000'1111'2222, kReceive = 0x4ece'1fe0'3333'4444;
  Allocator& allocator = NewAllocator();
  MakePair(SideOptions{.nic = 0}, SideOptions{.nic = 1, .domain = allocator.attr()}, {});
  auto holds = [](const uint8_t* memory, uint64_t word) {
    return memmem(memory, kPageBytes, &word, sizeof(word)) != nullptr;
  };
  ASSERT_EQ(b->PostRecv(kReceive, 0, 64), 0);
  EXPECT_TRUE(holds(allocator.Last(VERBENADV_RES_TYPE_RQ), kReceive));
  // The CQ that was made last is that of receives.
  const uint8_t* cqes = allocator.Last(VERBENADV_RES_TYPE_CQ);
  EXPECT_FALSE(holds(cqes, kReceive));
  ASSERT_EQ(a->Send(1, 0, 48), 0);
  a->WaitSend();
  EXPECT_TRUE(Eventually([&] { return holds(cqes, kReceive); }));
  EXPECT_EQ(b->WaitRecv().wr_id, kReceive);
  ASSERT_EQ(a->PostRecv(2, 0, 64), 0);
  ASSERT_EQ(b->Send(kSend, 0, 8), 0);
  EXPECT_TRUE(holds(allocator.Last(VERBENADV_RES_TYPE_SQ), kSend));
  EXPECT_EQ(b->WaitSend().wr_id, kSend);
}

// What the NIC does is what the bytes there say, when it comes to them.
TEST_F(Verb_ibv_alloc_parent_domain_allocators, NicActsOnAWorkRequestChangedThere) {
  Allocator& allocator = NewAllocator();
  MakePair(SideOptions{.domain = allocator.attr()}, SideOptions{.nic = 1}, {});
  ASSERT_EQ(b->PostRecv(1, 0, 1024), 0);
  memset(a->buffer.data(), 'n', 64);
  memset(a->buffer.data() + 64, 'y', 64);
  // In SQD nothing new is taken from the send queue.
  ASSERT_EQ(a->ToState(IBV_QPS_SQD), 0);
  ASSERT_EQ(a->Send(7, 0, 64), 0);
  uint8_t* entries = allocator.Last(VERBENADV_RES_TYPE_SQ);
  const uint64_t before = a->buffer.address(), after = before + 64;
  auto* found = static_cast<uint8_t*>(memmem(entries, kPageBytes, &before, sizeof(before)));
  ASSERT_NE(found, nullptr);
  memcpy(found, &after, sizeof(after));
  ASSERT_EQ(a->ToState(IBV_QPS_RTS), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->WaitRecv().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b->buffer[0], 'y');
}

TEST_F(Verb_ibv_alloc_parent_domain_allocators, NullFailsTheVerbAndKeepsNothing) {
  for (uint32_t type : {VERBENADV_RES_TYPE_SQ, VERBENADV_RES_TYPE_RQ, VERBENADV_RES_TYPE_SRQ,
                        VERBENADV_RES_TYPE_CQ}) {
    Allocator& allocator = NewAllocator();
    a = std::make_unique<Side>(SideOptions{.domain = allocator.attr()});
    const size_t live = allocator.live();
    allocator.refused_type = type;
    errno = 0;
    if (type == VERBENADV_RES_TYPE_CQ) {
      EXPECT_EQ(NewCqIn(a->context, a->pd, 16), nullptr);
    } else if (type == VERBENADV_RES_TYPE_SRQ) {
      ibv_srq_init_attr init = {};
      init.attr = {8, 1, 0};
      EXPECT_EQ(ibv_create_srq(a->pd, &init), nullptr);
    } else {
      ibv_qp_init_attr init = {};
      init.send_cq = init.recv_cq = a->send_cq;
      init.qp_type = IBV_QPT_RC;
      init.cap = {8, 8, 1, 1, 0};
      EXPECT_EQ(ibv_create_qp(a->pd, &init), nullptr);
    }
    EXPECT_EQ(errno, ENOMEM) << type;
    EXPECT_EQ(allocator.live(), live) << type;
    a.reset();
    EXPECT_EQ(allocator.live(), 0u);
  }
}

TEST_F(Verb_ibv_alloc_parent_domain_allocators, UseDefaultMakesTheDeviceFindIt) {
  for (uint32_t type : {VERBENADV_RES_TYPE_SQ, VERBENADV_RES_TYPE_RQ, VERBENADV_RES_TYPE_CQ}) {
    Allocator& allocator = NewAllocator();
    allocator.default_type = type;
    MakePair(SideOptions{.domain = allocator.attr()},
             SideOptions{.nic = 1, .domain = allocator.attr()}, {});
    EXPECT_EQ(allocator.Last(type), nullptr);
    EXPECT_GT(allocator.Count(type), 0u);
    ExpectTraffic(70);
    a.reset();
    b.reset();
    EXPECT_EQ(allocator.live(), 0u);
    EXPECT_EQ(allocator.unknown_frees, 0);  // what it did not give does not come back
  }
}

TEST_F(Verb_ibv_alloc_parent_domain_allocators, MemoryThatIsNotAlignedIsRefused) {
  Allocator& allocator = NewAllocator(Kind::kHeap);
  a = std::make_unique<Side>(SideOptions{.domain = allocator.attr()});
  const size_t live = allocator.live();
  allocator.misaligned_by = 64;
  errno = 0;
  EXPECT_EQ(NewCqIn(a->context, a->pd, 16), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(allocator.live(), live);
  allocator.misaligned_by = 0;
}

// A failure that comes after the allocator gives back what it gave.
TEST_F(Verb_ibv_alloc_parent_domain_allocators, WhatTheDeviceRefusesIsFreed) {
  Allocator& allocator = NewAllocator();
  a = std::make_unique<Side>(SideOptions{.domain = allocator.attr()});
  b = std::make_unique<Side>(SideOptions{.nic = 1});
  const size_t live = allocator.live();
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = b->send_cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {8, 8, 1, 1, 0};
  ibv_cq* own = a->send_cq;
  const uint32_t handle = own->handle;
  own->handle = 0xdead;  // a handle the device does not know
  init.send_cq = init.recv_cq = own;
  EXPECT_EQ(ibv_create_qp(a->pd, &init), nullptr);
  own->handle = handle;
  EXPECT_EQ(allocator.live(), live);
  const size_t calls = allocator.calls.size();
  init.cap.max_send_wr = ~0u;
  EXPECT_EQ(ibv_create_qp(a->pd, &init), nullptr);
  EXPECT_EQ(allocator.calls.size(), calls);  // refused before anything is allocated
}

TEST_F(Verb_ibv_alloc_parent_domain_allocators, NeedBothFunctions) {
  Allocator& allocator = NewAllocator();
  a = std::make_unique<Side>(SideOptions{});
  ibv_parent_domain_init_attr attr = *allocator.attr();
  attr.pd = a->pd;
  attr.alloc = nullptr;
  errno = 0;
  EXPECT_EQ(ibv_alloc_parent_domain(a->context, &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  attr = *allocator.attr();
  attr.pd = a->pd;
  attr.free = nullptr;
  EXPECT_EQ(ibv_alloc_parent_domain(a->context, &attr), nullptr);
  // Without the bit they are not looked at.
  attr.comp_mask = 0;
  ibv_pd* pd = ibv_alloc_parent_domain(a->context, &attr);
  ASSERT_NE(pd, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(Verb_ibv_alloc_parent_domain_allocators, ResizedQueuesMoveToNewMemory) {
  Allocator& allocator = NewAllocator();
  MakePair(SideOptions{.domain = allocator.attr()},
           SideOptions{.nic = 1, .with_srq = true, .domain = allocator.attr()}, {});
  const size_t live = allocator.live();
  for (uint64_t i = 0; i < 30; ++i) ASSERT_EQ(b->PostRecv(i, 64 * i, 64), 0);
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_EQ(a->Send(i, 0, 64), 0);
    a->WaitSend();
  }
  EXPECT_EQ(b->WaitRecv().wr_id, 0u);
  const uint8_t* cqes = allocator.Last(VERBENADV_RES_TYPE_CQ);
  const uint8_t* receives = allocator.Last(VERBENADV_RES_TYPE_SRQ);
  ASSERT_EQ(ibv_resize_cq(b->recv_cq, 1000), 0);
  EXPECT_NE(allocator.Last(VERBENADV_RES_TYPE_CQ), cqes);
  ibv_srq_attr attr = {500, 0, 0};
  ASSERT_EQ(ibv_modify_srq(b->srq, &attr, IBV_SRQ_MAX_WR), 0);
  EXPECT_NE(allocator.Last(VERBENADV_RES_TYPE_SRQ), receives);
  EXPECT_EQ(allocator.live(), live);
  // Nothing that was not polled, and nothing that was posted, is gone.
  for (uint64_t i = 1; i < 10; ++i) EXPECT_EQ(b->WaitRecv().wr_id, i);
  for (uint64_t i = 10; i < 30; ++i) {
    ASSERT_EQ(a->Send(i, 0, 64), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
    EXPECT_EQ(b->WaitRecv().wr_id, i);
  }
  for (uint64_t i = 30; i < 430; ++i) ASSERT_EQ(b->PostRecv(i, 0, 64), 0);
  // An allocator that gives no more: the CQ stays as it is.
  allocator.refused_type = VERBENADV_RES_TYPE_CQ;
  EXPECT_EQ(ibv_resize_cq(b->recv_cq, 2000), ENOMEM);
  allocator.refused_type = 0;
  EXPECT_EQ(ibv_resize_cq(b->recv_cq, 1 << 30), EINVAL);
  EXPECT_EQ(allocator.live(), live);
  for (uint64_t i = 30; i < 60; ++i) {
    ASSERT_EQ(a->Send(i, 0, 64), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
    EXPECT_EQ(b->WaitRecv().wr_id, i);
  }
}

TEST_F(Verb_ibv_alloc_parent_domain_allocators, EventsFlushesAndResetsAreAsEver) {
  Allocator& allocator = NewAllocator();
  SideOptions options = {.with_channel = true, .domain = allocator.attr()};
  SideOptions other = options;
  other.nic = 1;
  MakePair(options, other, {});
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(ibv_req_notify_cq(b->recv_cq, 0), 0);
    ASSERT_EQ(b->PostRecv(i, 0, 64), 0);
    ASSERT_EQ(a->Send(i, 0, 8), 0);
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    ASSERT_EQ(ibv_get_cq_event(b->channel, &cq, &context), 0);
    ibv_ack_cq_events(cq, 1);
    ibv_wc wc;
    EXPECT_EQ(ibv_poll_cq(b->recv_cq, 1, &wc), 1);  // at once: the event comes after the entry
    a->WaitSend();
  }
  for (uint64_t i = 0; i < 64; ++i) ASSERT_EQ(b->PostRecv(100 + i, 0, 64), 0);
  ASSERT_EQ(b->ToState(IBV_QPS_ERR), 0);
  for (uint64_t i = 0; i < 64; ++i) {
    ibv_wc wc = b->WaitRecv();
    EXPECT_EQ(wc.wr_id, 100 + i);
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  }
  ASSERT_EQ(a->ToState(IBV_QPS_RESET), 0);
  ASSERT_EQ(b->ToState(IBV_QPS_RESET), 0);
  Connect(*a, *b, {});
  ExpectTraffic(80);
}

TEST_F(Verb_ibv_alloc_parent_domain_allocators, DatagramsAreNotLostForReceivesThatArePosted) {
  Allocator& allocator = NewAllocator();
  MakeUdPair(SideOptions{.type = IBV_QPT_UD, .domain = allocator.attr()});
  ibv_ah_attr address = AddressOf(b->gid());
  ibv_ah* ah = ibv_create_ah(a->pd, &address);
  ASSERT_NE(ah, nullptr);
  for (uint64_t i = 0; i < 300; ++i) {
    ASSERT_EQ(b->PostRecv(i, 0, 256), 0);
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = b->qp->qp_num;
    wr.wr.ud.remote_qkey = kQKey;
    ASSERT_EQ(a->Post(wr, {a->Sge(0, 32)}), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
    ASSERT_EQ(b->WaitRecv().wr_id, i);
  }
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

// The program breaks what it gave: that costs it the queue, and nobody else anything.
TEST_F(Verb_ibv_alloc_parent_domain_allocators, MemoryThatGoesCostsTheQueue) {
  Allocator& allocator = NewAllocator();
  MakePair(SideOptions{.domain = allocator.attr()}, SideOptions{.nic = 1}, {});
  ASSERT_EQ(a->ToState(IBV_QPS_SQD), 0);
  ASSERT_EQ(a->Send(7, 0, 64), 0);
  uint8_t* entries = allocator.Last(VERBENADV_RES_TYPE_SQ);
  ASSERT_EQ(mprotect(entries, kPageBytes, PROT_NONE), 0);
  ASSERT_EQ(a->ToState(IBV_QPS_RTS), 0);
  EXPECT_TRUE(a->WaitEvent(IBV_EVENT_QP_FATAL));
  EXPECT_EQ(a->State(), IBV_QPS_ERR);
  EXPECT_EQ(b->State(), IBV_QPS_RTS);
  ASSERT_EQ(mprotect(entries, kPageBytes, PROT_READ | PROT_WRITE), 0);
}

}  // namespace
}  // namespace verbena::conformance
