#include "tests/simulation/receiver.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "tests/simulation/world.h"

namespace verbena::simulation {
namespace {

constexpr std::byte kUntouched{0xa5};
constexpr uint32_t kGrhBytes = 40;
constexpr uint32_t kTailChecked = 64;
constexpr uint32_t kSlotBits = 8;

}  // namespace

Receiver::Receiver(World* world, End* end, Client* client, WorkQueueProducer* ring, uint32_t slots,
                   uint32_t slot_bytes, uint64_t seed, uint32_t outstanding_max)
    : world_(world),
      end_(end),
      client_(client),
      ring_(ring),
      slot_bytes_(slot_bytes),
      random_(seed),
      outstanding_max_(outstanding_max),
      slots_(std::min(slots, kSlotsMax)) {
  const uint32_t bytes = static_cast<uint32_t>(slots_.size()) * (slot_bytes_ + 2 * kMarginBytes);
  region_ = client->Register(world->Allocate(bytes), bytes, access::kLocalWrite);
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    free_.push_back(i);
    std::memset(SlotStart(i) - kMarginBytes, 0xa5, slot_bytes_ + 2 * kMarginBytes);
  }
}

bool Receiver::MayPost() const {
  return !is_stopped_ && !free_.empty() && outstanding_ < outstanding_max_ &&
         ring_->producer_index() - ring_->ConsumerIndex() < ring_->limit();
}

uint32_t Receiver::Post(Instant now) {
  uint32_t count = 0;
  while (MayPost()) {
    if (outstanding_max_ != kNeverStarves && !random_.Chance(300)) break;
    const uint32_t index = free_.front();
    free_.pop_front();
    Slot& slot = slots_[index];
    slot.is_posted = true;
    slot.sequence = next_sequence_++;
    slot.bytes = slot_bytes_;
    const Flow* incoming =
        end_ != nullptr && end_->service == Service::kRc ? end_->incoming() : nullptr;
    if (incoming != nullptr && slot.sequence < incoming->message_count()) {
      // The messages to come are known: room for no more than that, or less.
      const Op& op = incoming->MessageOp(static_cast<uint32_t>(slot.sequence));
      if (op.bad == Bad::kReceiveTooShort) {
        slot.bytes = op.length - 1;
      } else if (random_.Chance(500)) {
        slot.bytes = op.length;
      }
    }
    slot.is_short = end_ != nullptr && slot.sequence == end_->plan.short_receive;
    if (slot.is_short) slot.bytes = end_->service == Service::kUd ? kGrhBytes + 1 : 1;
    slot.split = random_.Below(slot.bytes + 1);
    slot.is_swapped = random_.Chance(300);
    auto* entry = static_cast<std::byte*>(ring_->Reserve());
    VERBENA_CHECK(entry != nullptr);
    const shm::RecvWqe head{slot.sequence << kSlotBits | index, 2, 0};
    std::memcpy(entry, &head, sizeof(head));
    const uint64_t start = region_.iova + static_cast<uint64_t>(SlotStart(index) - region_.memory);
    const uint32_t rest = slot.bytes - slot.split;
    const shm::Sge sges[2] = {
        {start + (slot.is_swapped ? rest : 0), slot.split, region_.key},
        {start + (slot.is_swapped ? 0 : slot.split), rest, region_.key},
    };
    std::memcpy(entry + sizeof(head), sges, sizeof(sges));
    ++outstanding_;
    ++count;
  }
  if (count == 0) return 0;
  ring_->Publish();
  if (end_ != nullptr && ring_->WantsDoorbell()) client_->Ring(end_->qp, now);
  return count;
}

const std::byte* Receiver::Gather(const Slot& slot, uint32_t index, uint32_t bytes) {
  const std::byte* start = SlotStart(index);
  if (!slot.is_swapped || bytes == 0) return start;
  const uint32_t rest = slot.bytes - slot.split;
  if (slot.split == 0) return start;
  std::byte* out = world_->scratch();
  const uint32_t first = std::min(bytes, slot.split);
  std::memcpy(out, start + rest, first);
  std::memcpy(out + first, start, bytes - first);
  return out;
}

void Receiver::Wrong(const End& end, const char* what) {
  world_->Violate("receive queue of QP " + std::to_string(end.number) + ": " + what);
}

void Receiver::OnCompletion(End& end, const shm::Cqe& cqe) {
  const uint32_t index = static_cast<uint32_t>(cqe.wr_id & ((1u << kSlotBits) - 1));
  const uint64_t sequence = cqe.wr_id >> kSlotBits;
  if (index >= slots_.size() || !slots_[index].is_posted || slots_[index].sequence != sequence) {
    return Wrong(end, "a completion of no request, or its second");
  }
  if (end_ != nullptr && sequence != oldest_sequence_++) {
    return Wrong(end, "completions out of order");
  }
  Slot& slot = slots_[index];
  slot.is_posted = false;
  --outstanding_;
  free_.push_back(index);
  const auto status = static_cast<WcStatus>(cqe.status);
  if (!IsGuarded(index)) return Wrong(end, "bytes beside the buffer were written");
  if (status == WcStatus::kSuccess) return OnMessage(end, slot, index, cqe);
  const bool is_peers_fault = end.HasFaultyPeer();
  if (status == WcStatus::kWrFlushErr) {
    // The failure itself may be told later: a READ's bytes may still be on their way in.
    end.must_fail = true;
  } else if (end.service == Service::kRc ? !is_peers_fault
                                         : !slot.is_short || status != WcStatus::kLocLenErr) {
    Wrong(end, "failed without a reason");
  } else {
    end.has_reason = true;
    if (end.own_receiver != nullptr) end.own_receiver->Stop();
  }
  world_->OnEndFailed(&end);
  // What came of a message that was never whole.
  std::memset(SlotStart(index), 0xa5, slot_bytes_);
}

bool Receiver::IsGuarded(uint32_t index) const {
  const std::byte* start = SlotStart(index);
  for (uint32_t i = 0; i < kMarginBytes; ++i) {
    if (start[-1 - static_cast<int>(i)] != kUntouched || start[slot_bytes_ + i] != kUntouched) {
      return false;
    }
  }
  return true;
}

void Receiver::CheckGuards() {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (!IsGuarded(i)) return world_->Violate("bytes between receive buffers were written");
  }
}

void Receiver::OnMessage(End& end, const Slot& slot, uint32_t index, const shm::Cqe& cqe) {
  if (cqe.byte_len > slot.bytes && cqe.opcode == static_cast<uint8_t>(shm::WcOpcode::kRecv)) {
    return Wrong(end, "more bytes than there was room for");
  }
  switch (end.service) {
    case Service::kRc:
      OnReliable(end, slot, index, cqe);
      break;
    case Service::kUc:
      OnUnreliable(end, slot, index, cqe);
      break;
    case Service::kUd:
      OnDatagram(end, slot, index, cqe);
      break;
  }
  const bool is_placed_here = cqe.opcode == static_cast<uint8_t>(shm::WcOpcode::kRecv);
  // A lost message of an unreliable service may have been longer, and in the same buffer.
  const uint32_t touched = !is_placed_here               ? 0
                           : end.service == Service::kRc ? cqe.byte_len
                                                         : slot.bytes;
  if (end.service == Service::kRc && !slot.is_swapped) {
    std::byte* start = SlotStart(index);
    const uint32_t end_at = std::min(slot_bytes_, touched + kTailChecked);
    for (uint32_t i = touched; i < end_at; ++i) {
      if (start[i] != kUntouched) return Wrong(end, "bytes behind the message were written");
    }
  }
  if (is_placed_here || end.service != Service::kRc) {
    std::memset(SlotStart(index), 0xa5,
                slot.is_swapped || end.service != Service::kRc ? slot_bytes_ : touched);
  }
}

void Receiver::CheckFields(End& end, const Op& op, const shm::Cqe& cqe, uint32_t imm) {
  const auto expected = op.IsSend() ? shm::WcOpcode::kRecv : shm::WcOpcode::kRecvRdmaWithImm;
  if (cqe.opcode != static_cast<uint8_t>(expected)) return Wrong(end, "wrong opcode");
  const uint32_t header = end.service == Service::kUd ? kGrhBytes : 0;
  if (cqe.byte_len != op.length + header) return Wrong(end, "wrong byte_len");
  if (((cqe.wc_flags & shm::kWcWithImm) != 0) != op.HasImm()) return Wrong(end, "wrong flags");
  if (op.HasImm() && cqe.imm_or_rkey != imm) return Wrong(end, "wrong immediate");
  const bool invalidates = op.opcode == shm::WrOpcode::kSendWithInv;
  if (((cqe.wc_flags & shm::kWcWithInv) != 0) != invalidates) return Wrong(end, "wrong flags");
}

void Receiver::OnReliable(End& end, const Slot& slot, uint32_t index, const shm::Cqe& cqe) {
  Flow& flow = *end.incoming();
  const Op* op = flow.NextMessage();
  if (op == nullptr || flow.IndexOf(*op) >= flow.posted()) {
    return Wrong(end, "a message that nobody has sent");
  }
  CheckFields(end, *op, cqe, flow.ImmOf(*op));
  if (op->opcode == shm::WrOpcode::kSendWithInv && cqe.imm_or_rkey != flow.KeyOf(op->key_index)) {
    Wrong(end, "wrong key invalidated");
  }
  if (op->IsSend()) {
    if (!flow.Matches(*op, Gather(slot, index, op->length), op->length, 0)) {
      Wrong(end, "wrong bytes");
    }
  } else {
    flow.CheckWriteArrived(*op);
  }
  flow.OnMessageArrived();
}

// May come twice if the network makes it, in another order, or not at all; but whole.
void Receiver::OnUnreliable(End& end, const Slot& slot, uint32_t index, const shm::Cqe& cqe) {
  Flow& flow = *end.incoming();
  const bool is_send = cqe.opcode == static_cast<uint8_t>(shm::WcOpcode::kRecv);
  const std::byte* bytes = is_send ? Gather(slot, index, cqe.byte_len) : nullptr;
  uint32_t number = cqe.imm_or_rkey & 0xffff;
  if ((cqe.wc_flags & shm::kWcWithImm) == 0) {
    if (cqe.byte_len < 8) return Wrong(end, "too short to be what was sent");
    uint64_t stamp;
    std::memcpy(&stamp, bytes, sizeof(stamp));
    if (stamp >> 32 != flow.id()) return Wrong(end, "wrong bytes at the start");
    number = static_cast<uint32_t>(stamp);
  }
  const Op* op = flow.FindOp(number);
  if (op == nullptr || !op->TakesReceive()) return Wrong(end, "a message that nobody has sent");
  CheckFields(end, *op, cqe, flow.ImmOf(*op));
  if (cqe.byte_len != op->length) return;
  if (is_send) {
    if (!flow.MatchesStamped(*op, bytes, number)) Wrong(end, "wrong bytes");
  } else if (!flow.TargetHolds(*op)) {
    Wrong(end, "wrong bytes were written");
  }
  if (!world_->plan().MayReorder() && op->message < flow.messages_arrived()) {
    return Wrong(end, "a message twice, or out of order");
  }
  flow.OnMessageArrived(op->message);
}

void Receiver::OnDatagram(End& end, const Slot& slot, uint32_t index, const shm::Cqe& cqe) {
  if (cqe.byte_len < kGrhBytes) return Wrong(end, "shorter than its GRH");
  const uint32_t length = cqe.byte_len - kGrhBytes;
  const std::byte* bytes = Gather(slot, index, cqe.byte_len) + kGrhBytes;
  uint32_t id = cqe.imm_or_rkey >> 16;
  uint32_t number = cqe.imm_or_rkey & 0xffff;
  if ((cqe.wc_flags & shm::kWcWithImm) == 0) {
    if (length < 8) return Wrong(end, "too short to be what was sent");
    uint64_t stamp;
    std::memcpy(&stamp, bytes, sizeof(stamp));
    id = static_cast<uint32_t>(stamp >> 32);
    number = static_cast<uint32_t>(stamp);
  }
  Flow* flow = world_->FindFlow(id);
  const Op* op = flow == nullptr ? nullptr : flow->FindOp(number);
  if (op == nullptr || flow->from()->service != Service::kUd) {
    return Wrong(end, "a datagram that nobody has sent");
  }
  CheckFields(end, *op, cqe, flow->ImmOf(*op));
  if (cqe.src_qpn != flow->from()->qp.qpn.value) Wrong(end, "wrong source QP");
  const End* destination = flow->DestinationOf(*op).end;
  CheckGrh(end, *flow->from(), destination == nullptr, bytes - kGrhBytes);
  if (destination == nullptr ? !end.is_member : destination != &end) {
    return Wrong(end, "a datagram for another");
  }
  // The network doubles a packet once at most.
  const uint32_t copies_max = world_->plan().network.duplicate_per_mille != 0 ? 2 : 1;
  if (++end.datagrams[flow->ImmOf(*op)] > copies_max) Wrong(end, "a datagram too often");
  if (length == op->length && !flow->MatchesStamped(*op, bytes, number)) Wrong(end, "wrong bytes");
  flow->OnMessageArrived(op->message);
}

// Both addresses stand at its end, whatever it is a header of.
void Receiver::CheckGrh(End& end, const End& sender, bool is_group, const std::byte* grh) {
  const bool is_ipv6 = std::to_integer<uint32_t>(grh[0]) >> 4 == 6;
  const uint32_t bytes = is_ipv6 ? 16 : 4;
  const Gid from = world_->GidOf(sender, is_ipv6);
  const Gid to = is_group ? world_->GroupGid() : world_->GidOf(end, is_ipv6);
  if (std::memcmp(grh + kGrhBytes - 2 * bytes, from.raw.data() + 16 - bytes, bytes) != 0 ||
      std::memcmp(grh + kGrhBytes - bytes, to.raw.data() + 16 - bytes, bytes) != 0) {
    Wrong(end, "a GRH with wrong addresses");
  }
}

}  // namespace verbena::simulation
