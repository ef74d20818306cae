// Any PDUs whatever, in any state: a QP never faults, never writes outside what its keys grant,
// and always comes to rest.
#include <gtest/gtest.h>

#include <deque>

#include "transport/rc/rc_pair.h"

namespace verbena::transport::rc {
namespace {

using shm::WrOpcode;

constexpr uint64_t kSeeds = 4000;
constexpr int kPdusPerSeed = 120;
constexpr uint32_t kPayloadBytesMax = 4096;  // as a decoder lets through
constexpr uint8_t kCanary = 0xc5;
// A READ of the longest message takes this many polls.
constexpr int kPollsMax = 5'000'000;

class Attack {
 public:
  explicit Attack(uint64_t seed) : random_(seed), pair_(Options(seed)) {
    constexpr uint32_t kWild[] = {5, 50, 300, 1000};
    wild_per_mille_ = kWild[random_.Below(4)];
    qp_ = pair_.qps[RcPair::kA].get();
    pair_.fabric.set_drop_filter([](const Pdu&) { return true; });  // the attacker alone answers
    for (std::byte& b : payload_) b = static_cast<std::byte>(random_.Next());
    open_ = pair_.NewRegion(20'000);
    read_only_ = pair_.NewRegion(20'000, kCanary, access::kRemoteRead);
    secret_ = pair_.NewRegion(20'000, kCanary, 0);
    for (uint32_t i = 0; i < random_.Below(8); ++i) {
      pair_.PostRecv(RcPair::kA, i, {pair_.memory.SgeOf(open_, i * 1000, random_.Below(4000))});
    }
    for (uint32_t i = 0; i < random_.Below(8); ++i) PostWork(i);
    pair_.Ring(RcPair::kA);
  }

  void Run() {
    for (int i = 0; i < kPdusPerSeed; ++i) {
      switch (random_.Below(24)) {
        case 0:
          now_ = now_ + Microseconds(random_.Below(3000));
          qp_->OnTimeout(now_);
          break;
        case 1:
          PostWork(i);
          qp_->OnDoorbell(now_);
          break;
        case 2:
          pair_.PostRecv(RcPair::kA, i, {pair_.memory.SgeOf(open_, 0, random_.Below(8000))});
          break;
        case 3:
          if (random_.Chance(100)) ChangeState();
          break;
        default:
          qp_->OnPdu(now_, random_.Chance(wild_per_mille_) ? AnyPdu() : NextPdu());
          break;
      }
      Drive();
      if (qp_->state() == QpState::kErr && random_.Chance(300)) Reconnect();
    }
    while (!dmas_.empty()) FinishDma();
    Drive();
    for (std::byte b : pair_.memory.region(secret_).bytes) ASSERT_EQ(b, std::byte{kCanary});
    for (std::byte b : pair_.memory.region(read_only_).bytes) ASSERT_EQ(b, std::byte{kCanary});
    // Whatever happened, the QP can be used again.
    shm::QpAttr attr = {};
    attr.qp_state = static_cast<uint32_t>(QpState::kReset);
    ASSERT_EQ(qp_->Modify(now_, attr, shm::qp_mask::kState).error, 0);
  }
  uint64_t executed() const { return executed_; }

 private:
  static RcPairOptions Options(uint64_t seed) {
    sim::SimRandom random(seed * 77);
    RcPairOptions options;
    options.mtu_code = 1 + random.Below(5);
    options.sq_psn = random.Chance(500) ? 0xff'fffc : random.Below(1u << 24);
    options.max_pdu_bytes = random.Chance(300) ? 1u << 20 : 0;
    options.max_unacked_psns = random.Chance(500) ? 1 + random.Below(30) : 0;
    options.max_rd_atomic = static_cast<uint8_t>(random.Below(5));
    options.rnr_retry_count = static_cast<uint8_t>(random.Below(8));
    return options;
  }

  void PostWork(uint64_t id) {
    constexpr WrOpcode kOpcodes[] = {WrOpcode::kRdmaWrite,   WrOpcode::kRdmaRead,
                                     WrOpcode::kSend,        WrOpcode::kAtomicFetchAndAdd,
                                     WrOpcode::kAtomicWrite, WrOpcode::kFlush};
    const WrOpcode opcode = kOpcodes[random_.Below(6)];
    const uint32_t bytes =
        opcode == WrOpcode::kAtomicFetchAndAdd ? 8 : random_.Below(random_.Chance(500) ? 64 : 9000);
    pair_.Queue(
        RcPair::kA,
        pair_.Remote(RcPair::Work(id, opcode, {pair_.memory.SgeOf(open_, 0, bytes)}), open_));
  }

  void ChangeState() {
    constexpr QpState kStates[] = {QpState::kSqd, QpState::kRts, QpState::kErr};
    shm::QpAttr attr = {};
    attr.qp_state = static_cast<uint32_t>(kStates[random_.Below(3)]);
    (void)qp_->Modify(now_, attr, shm::qp_mask::kState);
  }

  // The placements under way meet the QP in its next life.
  void Reconnect() {
    for (QpState to : {QpState::kReset, QpState::kInit, QpState::kRtr, QpState::kRts}) {
      ASSERT_EQ(pair_.ModifyTo(RcPair::kA, to), 0);
    }
    next_request_ = pair_.options().sq_psn_of(RcPair::kB);
    next_answer_ = pair_.options().sq_psn_of(RcPair::kA);
    parts_left_ = 0;
  }

  // What a peer that keeps to the rules might send next.
  Pdu NextPdu() {
    const uint32_t mtu = 128u << mtu_code_;
    const auto& region = pair_.memory.region(open_);
    Pdu pdu;
    pdu.ack_request = random_.Chance(500);
    pdu.payload.bytes = payload_;
    pdu.psn = next_request_;
    pdu.rkey = RKey(region.key);
    pdu.remote_addr = region.addr + random_.Below(500) * 8;
    next_request_ = next_request_.Next();
    if (parts_left_ != 0) {
      const bool is_last = --parts_left_ == 0;
      pdu.opcode = is_last ? Opcode::kWriteLast : Opcode::kWriteMiddle;
      pdu.payload.length = mtu;
      return pdu;
    }
    pdu.payload.length = pdu.dma_length = random_.Below(mtu + 1);
    switch (random_.Below(7)) {
      case 0:
        pdu.opcode = Opcode::kSendOnly;
        break;
      case 1:
        pdu.opcode = Opcode::kWriteFirst;
        parts_left_ = 1 + random_.Below(2);
        pdu.payload.length = mtu;
        pdu.dma_length = mtu * (parts_left_ + 1);
        break;
      case 2:
        pdu.opcode = Opcode::kReadRequest;
        pdu.payload.length = 0;
        pdu.dma_length = random_.Below(3 * mtu);
        next_request_ = pdu.psn + PsnCount{static_cast<int32_t>((pdu.dma_length + mtu - 1) / mtu)};
        if (pdu.dma_length == 0) next_request_ = pdu.psn.Next();
        break;
      case 3:
        pdu.opcode = random_.Chance(500) ? Opcode::kFetchAdd : Opcode::kCompareSwap;
        pdu.payload.length = 0;
        break;
      case 4:
        pdu.opcode = Opcode::kAcknowledge;
        pdu.psn = next_answer_;
        pdu.payload.length = 0;
        next_request_ = next_request_ - PsnCount{1};
        break;
      case 5:
        pdu.opcode = Opcode::kFlush;
        pdu.flush_type = flush::kGlobal;
        pdu.payload.length = 0;
        break;
      default:
        pdu.opcode = Opcode::kWriteOnly;
        break;
    }
    return pdu;
  }

  // Near what would be right, so that checks behind the first are reached too.
  Psn AnyPsn(bool is_request) {
    if (random_.Chance(50)) return Psn(static_cast<uint32_t>(random_.Next()));
    const Psn base = is_request ? next_request_ : next_answer_;
    const Psn psn = base + PsnCount{static_cast<int32_t>(random_.Below(5)) - 1};
    const Psn chosen = random_.Chance(700) ? base : psn;
    (is_request ? next_request_ : next_answer_) = chosen.Next();
    return chosen;
  }

  Pdu AnyPdu() {
    Pdu pdu;
    pdu.service = random_.Chance(950) ? Service::kRc : static_cast<Service>(random_.Below(3));
    pdu.opcode = static_cast<Opcode>(random_.Below(32));
    if (random_.Chance(400)) pdu.opcode = Follow(last_opcode_);
    last_opcode_ = pdu.opcode;
    const OpcodeInfo* info = LookUpOpcode(pdu.opcode);
    const bool is_request = info == nullptr || info->is_request;
    pdu.psn = AnyPsn(is_request);
    pdu.ack_request = random_.Chance(500);
    pdu.solicited = random_.Chance(500);
    pdu.flush_type = static_cast<uint8_t>(random_.Below(4));
    pdu.flush_level = static_cast<uint8_t>(random_.Below(3));
    const uint32_t mtu = 128u << mtu_code_;
    const uint32_t lengths[] = {0, 1, 8, mtu - 1, mtu, mtu, mtu, mtu + 1, kPayloadBytesMax};
    pdu.payload.length = lengths[random_.Below(9)];
    pdu.payload.bytes = payload_;
    const MemoryId regions[] = {open_, open_, open_, read_only_, secret_};
    const auto& region = pair_.memory.region(regions[random_.Below(5)]);
    pdu.rkey = RKey(random_.Chance(950) ? region.key : static_cast<uint32_t>(random_.Next()));
    pdu.remote_addr = region.addr + random_.Below(random_.Chance(900) ? 8000 : 40'000) / 8 * 8;
    if (random_.Chance(30)) pdu.remote_addr = random_.Next();
    const uint32_t totals[] = {pdu.payload.length, pdu.payload.length, 2 * mtu, 3 * mtu + 5, 0,
                               0x8000'0001,        0xffff'ffff};
    pdu.dma_length = totals[random_.Below(7)];
    pdu.compare = random_.Next();
    pdu.swap_or_add = random_.Next();
    pdu.ack_type = static_cast<AckType>(random_.Chance(700) ? 0 : random_.Below(3));
    pdu.nak_code = static_cast<NakCode>(random_.Below(32));
    pdu.rnr_timer_code = static_cast<uint8_t>(random_.Below(256));
    pdu.credits = static_cast<uint8_t>(random_.Chance(500) ? 31 : random_.Below(256));
    pdu.msn = Msn(static_cast<uint32_t>(random_.Next()) & Psn::kMask);
    pdu.imm_or_rkey = random_.Chance(500) ? region.key : 7;
    return pdu;
  }

  // The opcode that goes on with a message.
  Opcode Follow(Opcode opcode) {
    const uint32_t next = random_.Below(2) + 1;
    switch (opcode) {
      case Opcode::kSendFirst:
      case Opcode::kSendMiddle:
        return next == 1 ? Opcode::kSendMiddle : Opcode::kSendLast;
      case Opcode::kWriteFirst:
      case Opcode::kWriteMiddle:
        return next == 1 ? Opcode::kWriteMiddle : Opcode::kWriteLast;
      case Opcode::kReadResponseFirst:
      case Opcode::kReadResponseMiddle:
        return next == 1 ? Opcode::kReadResponseMiddle : Opcode::kReadResponseLast;
      default:
        return Opcode::kAcknowledge;
    }
  }

  void Drive() {
    Pdu pdu;
    DmaRequest request;
    Completion completion;
    EventType event;
    int polls = 0;
    auto outputs = [&] {
      while (qp_->PollDma(request)) StartDma(request);
      while (qp_->PollResponse(now_, pdu)) ASSERT_LT(++polls, kPollsMax);
      while (qp_->PollCompletion(completion)) ASSERT_LT(++polls, kPollsMax);
      while (qp_->PollEvent(event)) ASSERT_LT(++polls, kPollsMax);
    };
    outputs();
    while (qp_->HasRequestWork() && qp_->PollRequest(now_, pdu)) {
      ASSERT_LT(++polls, kPollsMax);
      next_answer_ = pdu.psn;
      outputs();
    }
    if (random_.Chance(600) && !dmas_.empty()) FinishDma();
    outputs();
    if (qp_->PollTimeout() < now_) qp_->OnTimeout(now_);
  }

  struct Dma {
    DmaRequest request;
    std::vector<DmaSegment> destination;
    std::vector<std::byte> bytes;
  };
  void StartDma(const DmaRequest& request) {
    Dma& dma = dmas_.emplace_back();
    dma.request = request;
    dma.destination.assign(request.destination, request.destination + request.destination_count);
    if (request.kind == DmaRequest::Kind::kCopy && request.source.bytes != nullptr) {
      dma.bytes.assign(request.source.bytes, request.source.bytes + request.source.length);
    }
  }
  void FinishDma() {
    Dma dma = std::move(dmas_.front());
    dmas_.pop_front();
    DmaResult result;
    result.token = dma.request.token;
    if (random_.Chance(20)) {
      result.status = random_.Chance(500) ? DmaStatus::kSourceFault : DmaStatus::kDestinationFault;
    } else if (dma.request.kind == DmaRequest::Kind::kCopy) {
      ++executed_;
      ASSERT_TRUE(pair_.memory.Write(
          dma.destination.data(), static_cast<uint16_t>(dma.destination.size()),
          dma.request.destination_offset, dma.bytes.data(), dma.request.source.length));
    } else {
      ++executed_;
      ASSERT_TRUE(pair_.memory.Execute(dma.request, dma.destination[0], &result.atomic_original));
    }
    qp_->OnDmaDone(now_, result);
  }

  sim::SimRandom random_;
  RcPair pair_;
  RcQp* qp_ = nullptr;
  Instant now_{1};
  uint32_t mtu_code_ = pair_.options().mtu_code;
  Psn next_request_ = pair_.options().sq_psn_of(RcPair::kB);
  Psn next_answer_ = pair_.options().sq_psn_of(RcPair::kA);
  Opcode last_opcode_ = Opcode::kSendOnly;
  std::byte payload_[kPayloadBytesMax];
  MemoryId open_ = 0, read_only_ = 0, secret_ = 0;
  std::deque<Dma> dmas_;
  uint64_t executed_ = 0;
  uint32_t wild_per_mille_ = 1000;
  uint32_t parts_left_ = 0;
};

TEST(RcHostile, AnyPdusInAnyStateAreHarmless) {
  uint64_t executed = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Attack attack(seed);
    attack.Run();
    if (testing::Test::HasFatalFailure()) FAIL() << "seed " << seed;
    executed += attack.executed();
  }
  EXPECT_GT(executed, 5 * kSeeds);  // the attacks got past the first checks
}

}  // namespace
}  // namespace verbena::transport::rc
