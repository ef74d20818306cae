// Any PDUs whatever, in any state: UC and UD QPs never fault and never write outside what their
// keys and receives grant.
#include <deque>

#include "gtest/gtest.h"
#include "transport/common/qp_script.h"
#include "transport/port/sim/sim_random.h"
#include "transport/uc/uc_qp.h"
#include "transport/ud/ud_qp.h"

namespace verbena::transport {
namespace {

using shm::WrOpcode;

constexpr uint64_t kSeeds = 1000;
constexpr int kPdusPerSeed = 100;
constexpr uint32_t kPayloadBytesMax = 4096;
constexpr uint8_t kCanary = 0xc5;

class UnreliableHostile : public QpScript, public ::testing::WithParamInterface<Service> {
 protected:
  void Attack(uint64_t seed) {
    service_ = GetParam();
    sim::SimRandom random(seed);
    if (service_ == Service::kUc) {
      qp_ = std::make_unique<UcQp>(Config(service_), host_);
    } else {
      qp_ = std::make_unique<UdQp>(Config(service_), host_);
    }
    const QpState up[] = {QpState::kInit, QpState::kRtr, QpState::kRts, QpState::kRts};
    BringUp(up[random.Below(4)]);
    host_.recvs.clear();
    next_ = Psn(kRqPsn);
    const bool holds = random.Chance(500);
    for (int i = 0; i < kPdusPerSeed; ++i) {
      switch (random.Below(12)) {
        case 0:
          PostRecv(i, {Part(open_, random.Below(5000))});
          break;
        case 1:
          PostSend(Work(i, random.Chance(500) ? WrOpcode::kSend : WrOpcode::kRdmaWrite,
                        {Part(open_, random.Below(3000))}));
          break;
        case 2:
          if (!held_results_.empty()) {
            FinishOne(static_cast<DmaStatus>(random.Chance(800) ? 0 : random.Below(3)));
          }
          break;
        case 3:
          if (qp_->state() == QpState::kErr) {
            ASSERT_EQ(MoveTo(QpState::kReset), 0);
            BringUp(QpState::kRts);
            next_ = Psn(kRqPsn);
          }
          break;
        default:
          Give(AnyPdu(random), holds);
          break;
      }
      Pdu out;
      while (qp_->PollRequest(now_, out)) ++sent_;
      Drain();
    }
    while (!held_results_.empty()) FinishOne(DmaStatus::kOk);
    for (const shm::Sge& sge : {read_only_, secret_}) {
      for (std::byte b : memory_.region(sge.lkey).bytes) ASSERT_EQ(b, std::byte{kCanary});
    }
  }

  // Delivers. What is to be placed is placed at once, or waits its turn.
  void Give(const Pdu& pdu, bool holds) {
    qp_->OnPdu(now_, pdu);
    DmaRequest request;
    while (qp_->PollDma(request)) {
      ++placed_;
      DmaResult result;
      result.token = request.token;
      result.status = memory_.CarryOut(request);
      held_results_.push_back(result);
    }
    while (!holds && !held_results_.empty()) FinishOne(DmaStatus::kOk);
  }
  void FinishOne(DmaStatus status) {
    DmaResult result = held_results_.front();
    held_results_.pop_front();
    if (status != DmaStatus::kOk) result.status = status;
    qp_->OnDmaDone(now_, result);
  }

  static shm::Sge Part(shm::Sge sge, uint32_t length) {
    sge.length = length;
    return sge;
  }

  Pdu AnyPdu(sim::SimRandom& random) {
    Pdu pdu;
    pdu.service = random.Chance(950) ? service_ : Service::kRc;
    const bool is_sane = random.Chance(700);
    constexpr Opcode kUsual[] = {
        Opcode::kSendOnly,  Opcode::kSendFirst,       Opcode::kSendMiddle,
        Opcode::kSendLast,  Opcode::kWriteFirst,      Opcode::kWriteMiddle,
        Opcode::kWriteLast, Opcode::kWriteOnly,       Opcode::kSendOnlyWithImm,
        Opcode::kSendOnly,  Opcode::kWriteOnlyWithImm};
    pdu.opcode = is_sane ? kUsual[random.Below(11)] : static_cast<Opcode>(random.Below(32));
    pdu.psn = random.Chance(900) ? next_ : Psn(static_cast<uint32_t>(random.Next()));
    next_ = pdu.psn.Next();
    const uint32_t lengths[] = {0, 1, kMtu, kMtu, kMtu - 1, kMtu + 1, kPayloadBytesMax};
    pdu.payload.length = lengths[random.Below(is_sane ? 4 : 7)];
    pdu.payload.bytes = payload_;
    const shm::Sge regions[] = {open_, open_, read_only_, secret_};
    const shm::Sge& region = regions[random.Below(4)];
    pdu.rkey = RKey(random.Chance(950) ? region.lkey : static_cast<uint32_t>(random.Next()));
    pdu.remote_addr = random.Chance(970) ? region.addr + random.Below(9000) : random.Next();
    const uint32_t totals[] = {pdu.payload.length, pdu.payload.length, 2 * kMtu, 0, 0xffff'ffff};
    pdu.dma_length = totals[random.Below(5)];
    pdu.qkey = QKey(random.Chance(900) ? kQKey : static_cast<uint32_t>(random.Next()));
    pdu.path = random.Chance(950) ? &path_ : nullptr;
    pdu.imm_or_rkey = 7;
    pdu.solicited = random.Chance(500);
    return pdu;
  }

  const shm::Sge open_ = NewBuffer(8192);
  const shm::Sge read_only_ = Locked(0x4000'0000, access::kRemoteRead);
  const shm::Sge secret_ = Locked(0x5000'0000, 0);
  Path path_;
  Psn next_;
  std::byte payload_[kPayloadBytesMax] = {};
  std::deque<DmaResult> held_results_;
  uint64_t placed_ = 0;
  uint64_t sent_ = 0;

 private:
  shm::Sge Locked(uint64_t addr, uint32_t rights) {
    return {addr, 8192, memory_.Register(addr, 8192, rights, kCanary)};
  }
};
INSTANTIATE_TEST_SUITE_P(Services, UnreliableHostile, ::testing::Values(Service::kUc, Service::kUd),
                         [](const auto& service) {
                           return service.param == Service::kUc ? "Uc" : "Ud";
                         });

TEST_P(UnreliableHostile, AnyPdusInAnyStateAreHarmless) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Attack(seed);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(placed_, kSeeds);  // the attacks got past the first checks
}

}  // namespace
}  // namespace verbena::transport
