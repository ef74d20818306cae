// Random sequences of binds, invalidations and accesses against a model that knows the rules of
// IBTA 10.6.6 and 10.6.7 and nothing of tables, queues or DMA. By seed.
#include <gtest/gtest.h>

#include <cerrno>
#include <random>
#include <set>

#include "softnic/device/test_windows.h"

namespace verbena::softnic::testing {
namespace {

using shm::CommandOp;
using shm::kMwType1;
using shm::kMwType2;
using shm::WrOpcode;

constexpr uint32_t kRegionBytes = 256;
constexpr uint32_t kWindowsMax = 5;
constexpr int kStepsPerSeed = 1'500;

struct ModelRegion {
  uint32_t pd = 0;  // number
  uint32_t access = 0;
  uint8_t* memory = nullptr;
  TestMr mr;
};
struct ModelWindow {
  uint32_t type = kMwType1;
  uint32_t pd = 0;
  TestMw mw;  // with the key it goes by
  bool is_bound = false;
  uint32_t region = 0, qp = 0, access = 0;
  uint64_t start = 0;  // in the region
  uint64_t length = 0;
};
// A pair of QPs; b's is of PD `pd`.
struct ModelQp {
  uint32_t pd = 0;
  TestQp a, b;
};

class Model {
 public:
  explicit Model(uint64_t seed)
      : random_(seed),
        a_(world_.AddClient(0)),
        b_(world_.AddClient(1)),
        cq_a_(a_.MustCreateCq()),
        cq_b_(b_.MustCreateCq()),
        mr_a_(a_.MustRegMr(memory_a_, sizeof(memory_a_), access::kLocalWrite)) {
    pds_ = {b_.pd, b_.AllocPd()};
    for (uint32_t pd : {0u, 0u, 1u}) AddRegion(pd, kBindable);
    regions_[1].access = access::kMwBind;
    Register(&regions_[1], 0);
    for (uint32_t pd : {0u, 0u, 1u}) {
      qps_.push_back({pd, {}, {}});
      CreatePair(&qps_.back());
    }
    shadow_ = memory_b_;
  }

  void Step() {
    switch (Number(10)) {
      case 0:
        return Allocate();
      case 1:
        return Number(3) == 0 ? Deallocate() : Bind();
      case 2:
      case 3:
      case 4:
        return Bind();
      case 5:
        return Number(2) == 0 ? InvalidateLocally() : InvalidateRemotely();
      case 6:
        return Number(3) == 0 ? ReplaceQp() : Deregister();
      default:
        return Access();
    }
  }
  // How often each outcome was seen: a run that never gets in, or is never kept out, proves little.
  int granted = 0, kept_out = 0, bound = 0, bind_errors = 0, invalidated = 0, busy = 0;

 private:
  uint32_t Number(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  bool OneIn(uint32_t n) { return Number(n) == 0; }

  void AddRegion(uint32_t pd, uint32_t access) {
    ModelRegion region;
    region.pd = pd;
    region.access = access;
    region.memory = memory_b_.data() + regions_.size() * kRegionBytes;
    Register(&region, 0);
    regions_.push_back(region);
  }
  // Anew; `old` is gone then.
  void Register(ModelRegion* region, shm::Handle old) {
    if (old != 0) {
      EXPECT_EQ(b_.DoHandle(CommandOp::kDeregMr, old), 0);
    }
    EXPECT_EQ(b_.RegMr(pds_[region->pd], region->memory, kRegionBytes, region->access, &region->mr),
              0);
  }
  void CreatePair(ModelQp* qp) {
    qp->a = a_.MustCreateQp(Service::kRc, cq_a_);
    shm::CreateQpRequest request = b_.QpRequest(Service::kRc, cq_b_.handle);
    request.pd = pds_[qp->pd];
    EXPECT_EQ(b_.CreateQp(request, &qp->b), 0);
    Connect(a_, qp->a, b_, qp->b, Service::kRc);
  }
  void Renew(ModelQp* qp) {
    EXPECT_EQ(a_.ToReset(qp->a), 0);
    EXPECT_EQ(b_.ToReset(qp->b), 0);
    a_.PollAll(cq_a_);
    b_.PollAll(cq_b_);
    Connect(a_, qp->a, b_, qp->b, Service::kRc);
  }
  Wc Next(TestClient& client, TestCq& cq) {
    EXPECT_TRUE(world_.RunUntil([&] { return cq.ring.Peek() != nullptr; }));
    return client.Poll(cq).value_or(Wc{});
  }
  void Unbind(ModelWindow* window) {
    window->is_bound = false;
    old_keys_.insert(window->mw.rkey);
  }
  bool HasWindow(uint32_t region) const {
    return std::any_of(windows_.begin(), windows_.end(), [&](const ModelWindow& window) {
      return window.is_bound && window.region == region;
    });
  }
  // A key: mostly one that leads somewhere, or did.
  uint32_t AnyKey() {
    if (!windows_.empty() && !OneIn(4)) return windows_[Number(Count(windows_))].mw.rkey;
    if (!old_keys_.empty() && !OneIn(8)) {
      return *std::next(old_keys_.begin(), Number(Count(old_keys_)));
    }
    return static_cast<uint32_t>(random_());
  }
  template <typename T>
  static uint32_t Count(const T& container) {
    return static_cast<uint32_t>(container.size());
  }
  ModelWindow* Find(uint32_t rkey) {
    for (ModelWindow& window : windows_) {
      if (window.mw.rkey == rkey) return &window;
    }
    return nullptr;
  }

  // --- steps ------------------------------------------------------------------------------------
  void Allocate() {
    if (windows_.size() == kWindowsMax) return Deallocate();
    ModelWindow window;
    window.type = OneIn(2) ? kMwType1 : kMwType2;
    window.pd = OneIn(4) ? 1 : 0;
    shm::AllocMwRequest request{pds_[window.pd], window.type};
    shm::AllocMwReply reply{};
    ASSERT_EQ(b_.Execute(CommandOp::kAllocMw, request, &reply), 0);
    window.mw = {reply.mw, reply.rkey};
    EXPECT_EQ(Find(reply.rkey), nullptr);
    old_keys_.erase(reply.rkey);
    windows_.push_back(window);
  }

  void Deallocate() {
    if (windows_.empty()) return;
    const uint32_t i = Number(Count(windows_));
    EXPECT_EQ(b_.DoHandle(CommandOp::kDeallocMw, windows_[i].mw.handle), 0);
    old_keys_.insert(windows_[i].mw.rkey);
    windows_.erase(windows_.begin() + i);
  }

  void Bind() {
    if (windows_.empty()) return;
    ModelWindow& window = windows_[Number(Count(windows_))];
    uint32_t qp = Number(Count(qps_));
    uint32_t region = Number(Count(regions_));
    while (!OneIn(4) && qps_[qp].pd != window.pd) qp = Number(Count(qps_));
    while (!OneIn(4) && regions_[region].pd != window.pd) region = Number(Count(regions_));
    const ModelRegion& in = regions_[region];
    const uint64_t base = reinterpret_cast<uint64_t>(in.memory);
    TestBind bind;
    bind.rkey = OneIn(12) ? AnyKey() : (window.mw.rkey & ~0xffu) | Number(256);
    bind.lkey = in.mr.lkey;
    uint64_t start = Number(kRegionBytes);
    bind.length = OneIn(6) ? 0 : Number(kRegionBytes) + 1;
    if (!OneIn(6) && start + bind.length > kRegionBytes) start = kRegionBytes - bind.length;
    bind.addr = base + start;
    bind.access = (OneIn(2) ? 7 : Number(8)) *
                  access::kRemoteWrite;  // the three remote rights are neighbours
    if (OneIn(window.type == kMwType1 ? 20 : 3)) bind.access |= access::kZeroBased;
    if (OneIn(20)) bind.access |= access::kMwBind;

    const bool may_bind = MayBind(window, bind, qp, in, start);
    b_.Post(qps_[qp].b, WqeOf(window.mw, bind), {});
    const WcStatus status = Next(b_, cq_b_).status;
    EXPECT_EQ(status, may_bind ? WcStatus::kSuccess : WcStatus::kMwBindErr);
    if (!may_bind) {
      ++bind_errors;
      return Renew(&qps_[qp]);
    }
    ++bound;
    Unbind(&window);
    window.mw.rkey = bind.rkey;
    old_keys_.erase(bind.rkey);
    window.is_bound = bind.length != 0;
    window.region = region;
    window.qp = qp;
    window.access = bind.access;
    window.start = start;
    window.length = bind.length;
  }

  bool MayBind(const ModelWindow& window, const TestBind& bind, uint32_t qp, const ModelRegion& in,
               uint64_t start) const {
    const uint32_t writing = access::kRemoteWrite | access::kRemoteAtomic;
    const bool is_zero_based = (bind.access & access::kZeroBased) != 0;
    bool ok = window.pd == qps_[qp].pd && (bind.access & access::kMwBind) == 0 &&
              (bind.rkey ^ window.mw.rkey) < 256;
    if (window.type == kMwType1) ok = ok && !is_zero_based && bind.rkey != window.mw.rkey;
    if (window.type == kMwType2) ok = ok && !window.is_bound && bind.length != 0;
    if (bind.length == 0) return ok;
    return ok && in.pd == window.pd && start + bind.length <= kRegionBytes &&
           ((bind.access & writing) == 0 || (in.access & access::kLocalWrite) != 0);
  }
  static shm::SendWqe WqeOf(const TestMw& mw, const TestBind& bind) {
    shm::SendWqe wqe = MakeWqe(WrOpcode::kBindMw, 1);
    wqe.imm_or_rkey = bind.rkey;
    wqe.rkey = bind.lkey;
    wqe.remote_addr = bind.addr;
    wqe.bind.length = bind.length;
    wqe.bind.mw = mw.handle;
    wqe.bind.access = bind.access;
    return wqe;
  }

  // The window that an invalidation by `rkey` at a QP may take away, or nullptr.
  ModelWindow* Invalidatable(uint32_t rkey, uint32_t qp) {
    ModelWindow* window = Find(rkey);
    const bool may =
        window != nullptr && window->type == kMwType2 && window->is_bound && window->qp == qp;
    return may ? window : nullptr;
  }
  void InvalidateLocally() {
    uint32_t qp = Number(Count(qps_));
    const uint32_t rkey = AnyKey();
    if (Find(rkey) != nullptr && !OneIn(3)) qp = Find(rkey)->qp;
    ModelWindow* window = Invalidatable(rkey, qp);
    shm::SendWqe wqe = MakeWqe(WrOpcode::kLocalInv, 1);
    wqe.imm_or_rkey = rkey;
    b_.Post(qps_[qp].b, wqe, {});
    const WcStatus status = Next(b_, cq_b_).status;
    EXPECT_EQ(status, window != nullptr ? WcStatus::kSuccess : WcStatus::kLocQpOpErr);
    if (window == nullptr) return Renew(&qps_[qp]);
    ++invalidated;
    Unbind(window);
  }
  void InvalidateRemotely() {
    uint32_t qp = Number(Count(qps_));
    const uint32_t rkey = AnyKey();
    if (Find(rkey) != nullptr && !OneIn(3)) qp = Find(rkey)->qp;
    ModelWindow* window = Invalidatable(rkey, qp);
    b_.PostRecv(qps_[qp].b, 2, {});
    shm::SendWqe wqe = MakeWqe(WrOpcode::kSendWithInv, 1);
    wqe.imm_or_rkey = rkey;
    a_.PostInline(qps_[qp].a, wqe, "");
    const WcStatus sent = Next(a_, cq_a_).status;
    const WcStatus received = Next(b_, cq_b_).status;
    EXPECT_EQ(sent, window != nullptr ? WcStatus::kSuccess : WcStatus::kRemAccessErr);
    EXPECT_EQ(received, window != nullptr ? WcStatus::kSuccess : WcStatus::kRemInvReqErr);
    if (window == nullptr) return Renew(&qps_[qp]);
    ++invalidated;
    Unbind(window);
  }

  void Deregister() {
    const uint32_t i = Number(Count(regions_));
    ModelRegion& region = regions_[i];
    if (HasWindow(i)) {
      EXPECT_EQ(b_.DoHandle(CommandOp::kDeregMr, region.mr.handle), EBUSY);
      ++busy;
    } else {
      Register(&region, region.mr.handle);
    }
  }

  void ReplaceQp() {
    const uint32_t i = Number(Count(qps_));
    EXPECT_EQ(a_.DoHandle(CommandOp::kDestroyQp, qps_[i].a.handle), 0);
    EXPECT_EQ(b_.DoHandle(CommandOp::kDestroyQp, qps_[i].b.handle), 0);
    CreatePair(&qps_[i]);
    for (ModelWindow& window : windows_) {
      if (window.type == kMwType2 && window.is_bound && window.qp == i) Unbind(&window);
    }
  }

  void Access() {
    struct Row {
      WrOpcode opcode;
      uint32_t right;
    };
    static constexpr Row kRows[] = {{WrOpcode::kRdmaWrite, access::kRemoteWrite},
                                    {WrOpcode::kRdmaRead, access::kRemoteRead},
                                    {WrOpcode::kAtomicFetchAndAdd, access::kRemoteAtomic}};
    const Row& row = kRows[Number(3)];
    uint32_t i = Number(Count(qps_));
    const uint32_t rkey = AnyKey();
    const ModelWindow* window = Find(rkey);
    if (window != nullptr && window->is_bound && !OneIn(3)) i = window->qp;
    uint32_t bytes = row.opcode == WrOpcode::kAtomicFetchAndAdd ? 8 : Number(24) + 1;
    uint64_t offset = Number(kRegionBytes + 8) - uint64_t{4};  // from the window's start
    uint64_t addr = offset;
    if (window != nullptr && window->is_bound) {
      if (!OneIn(4) && window->length >= bytes) {
        offset = Number(static_cast<uint32_t>(window->length - bytes) + 1);
      }
      const bool is_zero_based = (window->access & access::kZeroBased) != 0;
      const uint64_t base = reinterpret_cast<uint64_t>(regions_[window->region].memory);
      addr = is_zero_based ? offset : base + window->start + offset;
    }
    if (row.opcode == WrOpcode::kAtomicFetchAndAdd && addr % 8 != 0) {
      offset -= addr % 8;
      addr -= addr % 8;
    }
    bool may = window != nullptr && window->is_bound && window->pd == qps_[i].pd &&
               (window->type == kMwType1 || window->qp == i) && (window->access & row.right) != 0;
    may = may && offset < window->length && bytes <= window->length - offset;
    uint8_t* target =
        may ? regions_[window->region].memory + window->start + offset : memory_b_.data();
    // An atomic's word is aligned in the window and must be so in memory, as here.
    if (row.opcode == WrOpcode::kAtomicFetchAndAdd &&
        reinterpret_cast<uintptr_t>(target) % 8 != 0) {
      return;
    }
    for (uint32_t k = 0; k < bytes; ++k) memory_a_[k] = static_cast<uint8_t>(random_());
    const std::vector<uint8_t> sent(memory_a_, memory_a_ + bytes);
    shm::SendWqe wqe = MakeWqe(row.opcode, 1);
    wqe.remote_addr = addr;
    wqe.rkey = rkey;
    wqe.atomic.compare_add = 1;
    a_.Post(qps_[i].a, wqe, {SgeOf(memory_a_, bytes, mr_a_.lkey)});
    EXPECT_EQ(Next(a_, cq_a_).status, may ? WcStatus::kSuccess : WcStatus::kRemAccessErr);
    uint8_t* expected = shadow_.data() + (target - memory_b_.data());
    if (may && row.opcode == WrOpcode::kRdmaRead) {
      EXPECT_EQ(std::memcmp(memory_a_, expected, bytes), 0);
    } else if (may && row.opcode == WrOpcode::kRdmaWrite) {
      std::memcpy(expected, sent.data(), bytes);
    } else if (may) {
      uint64_t word;
      std::memcpy(&word, expected, 8);
      ++word;
      std::memcpy(expected, &word, 8);
    }
    EXPECT_EQ(memory_b_, shadow_);
    may ? ++granted : ++kept_out;
    if (!may) Renew(&qps_[i]);
  }

  std::mt19937_64 random_;
  alignas(64) uint8_t memory_a_[64] = {};
  std::vector<uint8_t> memory_b_ = std::vector<uint8_t>(3 * kRegionBytes);
  std::vector<uint8_t> shadow_;
  TestWorld world_;
  TestClient& a_;
  TestClient& b_;
  TestCq cq_a_, cq_b_;
  TestMr mr_a_;
  std::vector<shm::Handle> pds_;
  std::vector<ModelRegion> regions_;
  std::vector<ModelQp> qps_;
  std::vector<ModelWindow> windows_;
  std::set<uint32_t> old_keys_;  // of no window, or of one that is not bound
};

class WindowModel : public ::testing::TestWithParam<uint64_t> {};

TEST_P(WindowModel, AgreesWithTheNic) {
  Model model(GetParam());
  for (int step = 0; step < kStepsPerSeed && !HasFailure(); ++step) {
    SCOPED_TRACE(step);
    model.Step();
  }
  EXPECT_GT(model.granted, 40);
  EXPECT_GT(model.kept_out, 40);
  EXPECT_GT(model.bound, 40);
  EXPECT_GT(model.bind_errors, 40);
  EXPECT_GT(model.invalidated, 5);
  EXPECT_GT(model.busy, 5);
}
INSTANTIATE_TEST_SUITE_P(Seeds, WindowModel, ::testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace verbena::softnic::testing
