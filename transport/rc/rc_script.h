// Wire scripts: one QP, PDU by PDU. What comes in is made by hand, and so may be wrong in ways no
// peer of ours would be.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "transport/port/sim/sim_host.h"
#include "transport/rc/rc_pair.h"

namespace verbena::transport::rc {

inline constexpr uint32_t kMtu = 1024;  // of RcPair
inline constexpr uint32_t kEpsn = 100;  // side B expects it first, and side A sends it first

class RcScript : public ::testing::Test {
 protected:
  Pdu Request(Opcode opcode, uint32_t psn, uint32_t bytes = 0) {
    Pdu pdu;
    pdu.opcode = opcode;
    pdu.psn = Psn(psn);
    pdu.psn_count = PsnCount{bytes == 0 ? 1 : static_cast<int32_t>((bytes + kMtu - 1) / kMtu)};
    pdu.payload.length = bytes;
    pdu.payload.bytes = data_;
    pdu.ack_request = true;
    pdu.remote_addr = pair_.memory.region(region_).addr;
    pdu.rkey = RKey(pair_.memory.region(region_).key);
    pdu.dma_length = bytes;
    return pdu;
  }
  Pdu WriteFirst(uint32_t psn, uint32_t bytes, uint32_t total) {
    Pdu pdu = Request(Opcode::kWriteFirst, psn, bytes);
    pdu.dma_length = total;
    return pdu;
  }
  Pdu Response(Opcode opcode, uint32_t psn, uint32_t bytes = 0) {
    Pdu pdu = Request(opcode, psn, bytes);
    pdu.remote_addr = 0;
    return pdu;
  }

  // Hands a PDU to side `to` and carries its placement out.
  void Deliver(const Pdu& pdu, uint32_t to = RcPair::kB) {
    RcQp& qp = *pair_.qps[to];
    qp.OnPdu(now_, pdu);
    DmaRequest request;
    while (qp.PollDma(request)) {
      if (holds_placements_) {
        held_.push_back(request.token);
        continue;
      }
      DmaResult result;
      result.token = request.token;
      if (request.kind == DmaRequest::Kind::kCopy) {
        ASSERT_TRUE(pair_.memory.Write(request.destination, request.destination_count,
                                       request.destination_offset, request.source.bytes,
                                       request.source.length));
      } else {
        ASSERT_TRUE(pair_.memory.Execute(request, request.destination[0], &result.atomic_original));
      }
      qp.OnDmaDone(now_, result);
    }
  }
  void FinishPlacement(DmaStatus status = DmaStatus::kOk) {
    ASSERT_FALSE(held_.empty());
    DmaResult result;
    result.token = held_.front();
    result.status = status;
    held_.pop_front();
    pair_.qps[RcPair::kB]->OnDmaDone(now_, result);
  }
  Pdu NextResponse() {
    Pdu pdu;
    EXPECT_TRUE(pair_.qps[RcPair::kB]->PollResponse(now_, pdu)) << "silence";
    return pdu;
  }
  void ExpectSilence() {
    Pdu pdu;
    EXPECT_FALSE(pair_.qps[RcPair::kB]->PollResponse(now_, pdu));
  }
  void ExpectAck(uint32_t psn) {
    Pdu pdu = NextResponse();
    EXPECT_EQ(pdu.opcode, Opcode::kAcknowledge);
    EXPECT_EQ(pdu.ack_type, AckType::kAck);
    EXPECT_EQ(pdu.psn, Psn(psn));
  }
  void ExpectNak(NakCode code, uint32_t psn) {
    Pdu pdu = NextResponse();
    EXPECT_EQ(pdu.ack_type, AckType::kNak);
    EXPECT_EQ(pdu.nak_code, code);
    EXPECT_EQ(pdu.psn, Psn(psn));
  }
  void ExpectRnrNak(uint32_t psn) {
    Pdu pdu = NextResponse();
    EXPECT_EQ(pdu.ack_type, AckType::kRnrNak);
    EXPECT_EQ(pdu.psn, Psn(psn));
  }
  void ExpectInvalidRequest(uint32_t psn) {
    ExpectNak(NakCode::kInvalidRequest, psn);
    EXPECT_EQ(pair_.qps[RcPair::kB]->state(), QpState::kErr);
  }
  void PostRecv(uint32_t bytes) {
    pair_.PostRecv(RcPair::kB, 1, {pair_.memory.SgeOf(region_, 0, bytes)});
  }
  std::string SendCompletions() {
    pair_.fabric.Drive(RcPair::kA);
    return pair_.TakeCompletions(RcPair::kA, true);
  }

  explicit RcScript(const RcPairOptions& options = {}) : pair_(options) {}

  RcPair pair_;
  Instant now_{1};
  MemoryId region_ = pair_.NewRegion(100'000);
  std::byte data_[8192] = {};
  bool holds_placements_ = false;
  std::deque<DmaToken> held_;
};

// The requester and completer of side A; the peer is the script.
class RcAnswerScript : public RcScript {
 protected:
  using RcScript::RcScript;
  void SetUp() override {
    pair_.fabric.set_drop_filter([](const Pdu&) { return true; });  // the peer is this script
  }
  void PostWrite(uint64_t id, uint32_t bytes) {
    pair_.Post(RcPair::kA, pair_.Remote(RcPair::Work(id, shm::WrOpcode::kRdmaWrite,
                                                     {pair_.memory.SgeOf(region_, 0, bytes)}),
                                        region_));
  }
  void PostRead(uint64_t id, uint32_t bytes) {
    pair_.Post(RcPair::kA, pair_.Remote(RcPair::Work(id, shm::WrOpcode::kRdmaRead,
                                                     {pair_.memory.SgeOf(region_, 0, bytes)}),
                                        region_));
  }
};

}  // namespace verbena::transport::rc
