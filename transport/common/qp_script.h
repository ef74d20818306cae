// Test fixture that tells a QP's story: work is posted, PDUs delivered, and what comes out
// compared.
//
// Placements are carried out at once unless hold_placements_ is set; then FinishPlacement ends the
// oldest one.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "transport/common/model_host.h"
#include "transport/qp_transport.h"

namespace verbena::transport {

// A completion as a value.
struct Wc {
  uint64_t wr_id;
  WcStatus status;
  shm::WcOpcode opcode;
  uint32_t byte_len;
  uint32_t imm_or_rkey;
  Qpn src_qpn;
  shm::VendorErr vendor_err;
  uint16_t wc_flags;
  uint8_t sl;
  bool is_send;
  bool solicited;
};

class QpScript : public ::testing::Test {
 protected:
  static constexpr uint32_t kMtu = 1024;
  static constexpr Qpn kLocalQpn{0x11};
  static constexpr Qpn kRemoteQpn{0x22};
  static constexpr uint32_t kQKey = 0x1111'1111;
  static constexpr uint32_t kSqPsn = 0xff'fffe;  // wraps in the third packet
  static constexpr uint32_t kRqPsn = 0xff'ffff;

  static QpConfig Config(Service service);

  // Attribute sets that Modify accepts, and the usual way up to a state.
  int MoveTo(QpState to);
  int ModifyTo(QpState to, uint32_t mask, const shm::QpAttr& attr = {});
  void BringUp(QpState to);

  void PostSend(const SendWork& work);
  void PostRecv(uint64_t wr_id, std::initializer_list<shm::Sge> sges);
  SendWork Work(uint64_t wr_id, shm::WrOpcode opcode, std::initializer_list<shm::Sge> sges,
                uint8_t flags = shm::kSendSignaled);
  SendWork InlineWork(uint64_t wr_id, shm::WrOpcode opcode, const std::string& data);

  // Registers a region with every right; the SGE spans it.
  shm::Sge NewBuffer(uint32_t length, uint8_t fill = 0);
  uint8_t ByteAt(const shm::Sge& sge, uint32_t offset);

  // The next request PDU, or a failure of the test.
  Pdu NextRequest();
  void ExpectNoRequest();
  void Deliver(const Pdu& pdu);
  void Release(const Pdu& pdu);
  // Ends the oldest held placement, as its carrying out would or as `status` says.
  void FinishPlacement(DmaStatus status = DmaStatus::kOk);

  // Takes the oldest completion out; fails if there is none.
  Wc NextCompletion();
  void ExpectNoCompletion();
  void ExpectCompletion(uint64_t wr_id, WcStatus status);
  void ExpectEvent(EventType event);
  void ExpectNoEvent();
  // Polls everything as a driver does after each input.
  void Drain();

  ModelMemory memory_;
  ModelHost host_{&memory_};
  std::unique_ptr<QpTransport> qp_;
  Service service_ = Service::kUc;
  Instant now_;
  bool hold_placements_ = false;

 private:
  struct Held {
    DmaRequest request;
    std::vector<DmaSegment> destination;
    std::vector<DmaSegment> source;
  };

  uint64_t next_addr_ = 0x10'0000;
  std::deque<std::unique_ptr<Held>> held_;
  std::deque<Wc> completions_;
  std::deque<EventType> events_;
};

}  // namespace verbena::transport
