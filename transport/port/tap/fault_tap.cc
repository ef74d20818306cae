#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/port/tap/faults.h"

namespace verbena::transport::tap {
namespace {

constexpr const char* kOverflowNote = "fault: dropped, as too many packets are held back";

HeldPacket Copy(const OutPacket& packet, const std::string& note) {
  return {
      packet.address, {packet.bytes, packet.bytes + packet.length}, packet.corrupt_bit, 0, note};
}

bool IsHeld(const FaultVerdict& verdict, Instant now) {
  return verdict.hold_packets != 0 || now < verdict.due;
}

}  // namespace

FaultTap::FaultTap(PacketPort* inner, FaultPlan* plan, FaultTapOptions options)
    : TapPort(inner),
      plan_(plan),
      options_(std::move(options)),
      held_out_(options_.held_bytes_max),
      held_in_(options_.held_bytes_max) {}

void FaultTap::MoveOver(PacketPort* inner, FaultNotes* notes) {
  SetInner(inner);
  options_.notes = notes;
}

FaultVerdict FaultTap::JudgeSent(Instant now, const OutPacket& packet) {
  FaultSubject subject{options_.nic,
                       Direction::kOut,
                       &packet.address,
                       nullptr,
                       packet.length + wire::kIcrcBytes,
                       &options_.source_qp};
  Pdu pdu;
  if (plan_->needs_pdu() && subject.finished_bytes <= decode_room_.size()) {
    // Rules ask for headers only; what stands in the payload's place is nobody's concern.
    std::memcpy(decode_room_.data(), packet.bytes, std::min(packet.length, wire::kHeaderBytesMax));
    if (wire::Decode(decode_room_.data(), subject.finished_bytes, &pdu) ==
        wire::DecodeError::kNone) {
      subject.pdu = &pdu;
    }
  }
  return plan_->Judge(now, subject);
}

FaultVerdict FaultTap::JudgeReceived(const InPacket& packet) {
  FaultSubject subject{options_.nic, Direction::kIn, &packet.address,
                       nullptr,      packet.length,  &options_.source_qp};
  Pdu pdu;
  if (plan_->needs_pdu() &&
      wire::Decode(packet.bytes, packet.length, &pdu) == wire::DecodeError::kNone) {
    subject.pdu = &pdu;
  }
  return plan_->Judge(packet.received_at, subject);
}

void FaultTap::Lose(Instant now, const OutPacket& packet, const std::string& note) {
  if (options_.notes != nullptr) options_.notes->OnDropped(now, packet, note);
}

// Hands a judged packet on; keeps it if the inner port has no room.
void FaultTap::Emit(Instant now, const OutPacket& packet, const std::string& note) {
  if (refused_.empty()) {
    if (options_.notes != nullptr && !note.empty()) options_.notes->NoteNextSent(note);
    if (inner()->Send(now, packet)) {
      has_unflushed_ = true;
      return;
    }
  }
  refused_.push_back(Copy(packet, note));
}

void FaultTap::EmitHeld(Instant now, HeldPacket packet) {
  OutPacket out{packet.address, packet.bytes.data(), static_cast<uint32_t>(packet.bytes.size()),
                packet.corrupt_bit};
  Emit(now, out, packet.note);
}

// True: nothing refused is left.
bool FaultTap::DrainRefused(Instant now) {
  while (!refused_.empty()) {
    HeldPacket packet = std::move(refused_.front());
    if (options_.notes != nullptr && !packet.note.empty())
      options_.notes->NoteNextSent(packet.note);
    OutPacket out{packet.address, packet.bytes.data(), static_cast<uint32_t>(packet.bytes.size()),
                  packet.corrupt_bit};
    if (!inner()->Send(now, out)) {
      refused_.front() = std::move(packet);
      return false;
    }
    has_unflushed_ = true;
    refused_.pop_front();
  }
  return true;
}

void FaultTap::ReleaseDue(Instant now) {
  HeldPacket packet;
  while (refused_.empty() && held_out_.PopDue(now, &packet)) EmitHeld(now, std::move(packet));
}

bool FaultTap::Send(Instant now, const OutPacket& packet) {
  last_now_ = std::max(last_now_, now);
  // Refuses before it judges: a packet offered again would count twice.
  if (!DrainRefused(now)) return false;
  if (!plan_->has_rules() && held_out_.size() == 0) return inner()->Send(now, packet);
  ReleaseDue(now);
  if (!refused_.empty()) return false;

  const FaultVerdict verdict = JudgeSent(now, packet);
  if (verdict.drop) {
    Lose(now, packet, verdict.note);
    return packet.GiveBack();
  }
  OutPacket faulty = packet;
  faulty.lender = nullptr;  // it may be kept, or sent twice
  if (verdict.corrupt_bit >= 0) faulty.corrupt_bit = verdict.corrupt_bit;
  const bool is_held = IsHeld(verdict, now);
  for (uint32_t i = 0; i <= verdict.copies; ++i) {
    const std::string& note = verdict.note;
    if (!is_held) {
      Emit(now, faulty, note);
    } else if (!held_out_.Add(verdict.due, verdict.hold_packets, Copy(faulty, note))) {
      plan_->OnOverflow();
      Lose(now, packet, kOverflowNote);
    }
  }
  if (!is_held) {
    held_out_.OnPassed(now);
    ReleaseDue(now);
  }
  return packet.GiveBack();
}

void FaultTap::Flush(Instant now) {
  last_now_ = std::max(last_now_, now);
  if (DrainRefused(now)) ReleaseDue(now);
  inner()->Flush(now);
  has_unflushed_ = false;
}

void FaultTap::HoldReceived(const InPacket& packet, const FaultVerdict& verdict) {
  HeldPacket held{
      packet.address, {packet.bytes, packet.bytes + packet.length}, -1, packet.expected_ip_id, {}};
  if (!held_in_.Add(verdict.due, verdict.hold_packets, std::move(held))) plan_->OnOverflow();
}

bool FaultTap::Receive(Instant now, InPacket* out) {
  last_now_ = std::max(last_now_, now);
  if (!refused_.empty()) {
    DrainRefused(now);
    if (has_unflushed_) Flush(now);
  }
  if (held_in_.PopDue(now, &current_)) {
    *out = {current_.address, current_.bytes.data(), static_cast<uint32_t>(current_.bytes.size()),
            current_.expected_ip_id};
    out->received_at = now;
    return true;
  }
  // Ends with what the inner port has now: judging is quicker than receiving.
  InPacket packet;
  while (inner()->Receive(now, &packet)) {
    if (!plan_->has_rules()) {
      held_in_.OnPassed(now);
      return (*out = packet, true);
    }
    const FaultVerdict verdict = JudgeReceived(packet);
    if (options_.notes != nullptr && !verdict.note.empty()) {
      options_.notes->NoteLastReceived(verdict.note);
    }
    if (verdict.drop) continue;
    if (verdict.corrupt_bit >= 0) {
      current_.bytes.assign(packet.bytes, packet.bytes + packet.length);
      const auto bit = static_cast<uint32_t>(verdict.corrupt_bit);
      if (bit / 8 < packet.length) current_.bytes[bit / 8] ^= std::byte{1} << bit % 8;
      packet.bytes = current_.bytes.data();
    }
    const bool is_held = IsHeld(verdict, packet.received_at);
    for (uint32_t i = is_held ? 0 : 1; i <= verdict.copies; ++i) HoldReceived(packet, verdict);
    if (is_held) continue;
    held_in_.OnPassed(now);
    *out = packet;
    out->more_follow = false;  // what follows may be dropped, and its batch end with it
    return true;
  }
  return false;
}

void FaultTap::LearnIpId(const InPacket& packet, uint16_t ip_id) {
  if (packet.bytes != current_.bytes.data()) inner()->LearnIpId(packet, ip_id);
}

Instant FaultTap::PollTimeout() const {
  Instant due = std::min(inner()->PollTimeout(), held_in_.NextDue());
  // With packets refused, it is not time that the others wait for.
  return refused_.empty() ? std::min(due, held_out_.NextDue()) : due;
}

void FaultTap::OnTimeout(Instant now) {
  last_now_ = std::max(last_now_, now);
  inner()->OnTimeout(now);
  if (DrainRefused(now)) ReleaseDue(now);
  if (has_unflushed_) {
    inner()->Flush(now);
    has_unflushed_ = false;
  }
}

bool FaultTap::PrepareToSleep() {
  return last_now_ < held_in_.NextDue() && inner()->PrepareToSleep();
}

}  // namespace verbena::transport::tap
