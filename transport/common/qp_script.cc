#include "transport/common/qp_script.h"

#include <algorithm>
#include <cstring>

namespace verbena::transport {

namespace qp_mask = shm::qp_mask;

QpConfig QpScript::Config(Service service) {
  QpConfig config;
  config.service = service;
  config.qpn = kLocalQpn;
  config.max_send_wr = config.max_recv_wr = 128;
  config.max_send_sge = config.max_recv_sge = 4;
  config.max_inline_bytes = 64;
  config.port_mtu_bytes = kMtu;
  config.max_rd_atomic = config.max_dest_rd_atomic = 16;
  return config;
}

int QpScript::ModifyTo(QpState to, uint32_t mask, const shm::QpAttr& attr) {
  shm::QpAttr copy = attr;
  copy.qp_state = static_cast<uint32_t>(to);
  int error = qp_->Modify(now_, copy, mask | qp_mask::kState).error;
  Drain();
  return error;
}

int QpScript::MoveTo(QpState to) {
  shm::QpAttr attr = {};
  attr.port_num = 1;
  attr.qkey = kQKey;
  attr.qp_access_flags = access::kRemoteWrite | access::kRemoteRead;
  attr.path_mtu = 3;  // 1024
  attr.dest_qp_num = kRemoteQpn.value;
  attr.rq_psn = kRqPsn;
  attr.sq_psn = kSqPsn;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  std::memcpy(attr.ah_attr.dgid, Gid::FromIpv4(0x7f00'0002).raw.data(), 16);
  bool is_ud = service_ == Service::kUd;
  uint32_t mask = 0;
  if (to == QpState::kInit) {
    mask = qp_mask::kPkeyIndex | qp_mask::kPort | (is_ud ? qp_mask::kQkey : qp_mask::kAccessFlags);
  } else if (to == QpState::kRtr && !is_ud) {
    mask = qp_mask::kAv | qp_mask::kPathMtu | qp_mask::kDestQpn | qp_mask::kRqPsn;
  } else if (to == QpState::kRts && qp_->state() == QpState::kRtr) {
    mask = qp_mask::kSqPsn;
  }
  return ModifyTo(to, mask, attr);
}

void QpScript::BringUp(QpState to) {
  for (QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
    ASSERT_EQ(MoveTo(state), 0) << "state " << static_cast<int>(state);
    if (state == to) return;
  }
}

void QpScript::PostSend(const SendWork& work) {
  host_.sends.push_back(work);
  qp_->OnDoorbell(now_);
  Drain();
}

void QpScript::PostRecv(uint64_t wr_id, std::initializer_list<shm::Sge> sges) {
  RecvWork work = {};
  work.wr_id = wr_id;
  work.num_sge = static_cast<uint32_t>(sges.size());
  std::copy(sges.begin(), sges.end(), work.sge);
  host_.recvs.push_back(work);
}

SendWork QpScript::Work(uint64_t wr_id, shm::WrOpcode opcode, std::initializer_list<shm::Sge> sges,
                        uint8_t flags) {
  SendWork work;
  std::memset(&work, 0, sizeof(work));
  work.wqe.wr_id = wr_id;
  work.wqe.opcode = static_cast<uint8_t>(opcode);
  work.wqe.flags = flags;
  work.wqe.num_sge = static_cast<uint8_t>(sges.size());
  std::copy(sges.begin(), sges.end(), work.sge);
  return work;
}

SendWork QpScript::InlineWork(uint64_t wr_id, shm::WrOpcode opcode, const std::string& data) {
  SendWork work = Work(wr_id, opcode, {}, shm::kSendSignaled | shm::kSendInline);
  work.wqe.inline_bytes = static_cast<uint32_t>(data.size());
  std::memcpy(work.inline_data, data.data(), data.size());
  return work;
}

shm::Sge QpScript::NewBuffer(uint32_t length, uint8_t fill) {
  shm::Sge sge = {};
  sge.addr = next_addr_;
  sge.length = length;
  sge.lkey = memory_.Register(next_addr_, length, access::kLocalWrite | access::kRemoteWrite, fill);
  next_addr_ += 0x10'0000;
  return sge;
}

uint8_t QpScript::ByteAt(const shm::Sge& sge, uint32_t offset) {
  const ModelMemory::Region& region = memory_.region(sge.lkey);
  return static_cast<uint8_t>(region.bytes.at(sge.addr - region.addr + offset));
}

Pdu QpScript::NextRequest() {
  Pdu pdu;
  EXPECT_TRUE(qp_->PollRequest(now_, pdu)) << "no request";
  return pdu;
}

void QpScript::ExpectNoRequest() {
  Pdu pdu;
  EXPECT_FALSE(qp_->PollRequest(now_, pdu));
  Drain();
}

void QpScript::Deliver(const Pdu& pdu) {
  qp_->OnPdu(now_, pdu);
  Drain();
}

void QpScript::Release(const Pdu& pdu) {
  qp_->OnPayloadReleased(now_, pdu.psn);
  Drain();
}

void QpScript::FinishPlacement(DmaStatus status) {
  ASSERT_FALSE(held_.empty()) << "no placement";
  std::unique_ptr<Held> held = std::move(held_.front());
  held_.pop_front();
  DmaResult result;
  result.token = held->request.token;
  result.status = status == DmaStatus::kOk ? memory_.CarryOut(held->request) : status;
  qp_->OnDmaDone(now_, result);
  Drain();
}

void QpScript::Drain() {
  auto held = std::make_unique<Held>();
  while (qp_->PollDma(held->request)) {
    DmaRequest& request = held->request;
    held->destination.assign(request.destination, request.destination + request.destination_count);
    request.destination = held->destination.data();
    const Payload& source = request.source;
    if (source.segments != nullptr) {
      held->source.assign(source.segments, source.segments + source.segment_count);
      request.source.segments = held->source.data();
    }
    held_.push_back(std::move(held));
    held = std::make_unique<Held>();
  }
  Completion completion = {};
  while (qp_->PollCompletion(completion)) {
    const shm::Cqe& cqe = completion.cqe;
    completions_.push_back({cqe.wr_id, static_cast<WcStatus>(cqe.status),
                            static_cast<shm::WcOpcode>(cqe.opcode), cqe.byte_len, cqe.imm_or_rkey,
                            Qpn(cqe.src_qpn), static_cast<shm::VendorErr>(cqe.vendor_err),
                            cqe.wc_flags, cqe.sl, completion.is_send, completion.solicited});
    EXPECT_EQ(cqe.qpn, kLocalQpn.value);
    EXPECT_EQ(cqe.is_send != 0, completion.is_send);
  }
  EventType event;
  while (qp_->PollEvent(event)) events_.push_back(event);
  if (!hold_placements_ && !held_.empty()) FinishPlacement();
}

Wc QpScript::NextCompletion() {
  Drain();
  if (completions_.empty()) {
    ADD_FAILURE() << "no completion";
    return {};
  }
  Wc wc = completions_.front();
  completions_.pop_front();
  return wc;
}

void QpScript::ExpectNoCompletion() {
  Drain();
  EXPECT_TRUE(completions_.empty()) << "wr_id " << completions_.front().wr_id;
}

void QpScript::ExpectCompletion(uint64_t wr_id, WcStatus status) {
  Wc wc = NextCompletion();
  EXPECT_EQ(wc.wr_id, wr_id);
  EXPECT_EQ(wc.status, status) << "of wr_id " << wr_id;
}

void QpScript::ExpectEvent(EventType event) {
  ASSERT_FALSE(events_.empty()) << "no event";
  EXPECT_EQ(events_.front(), event);
  events_.pop_front();
}

void QpScript::ExpectNoEvent() {
  EXPECT_TRUE(events_.empty()) << "event " << static_cast<int>(events_.front());
}

}  // namespace verbena::transport
