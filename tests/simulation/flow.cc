#include "tests/simulation/flow.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "tests/simulation/world.h"

namespace verbena::simulation {

namespace flush = transport::flush;
using shm::WrOpcode;
using transport::sim::SimRandom;

namespace {

constexpr uint32_t kPatternTail = 64 * 1024;  // more than any message is long
constexpr uint32_t kInlineBytesMax = World::kInlineBytes;
constexpr uint32_t kUnsignaledRunMax = 3;
constexpr uint32_t kSpareBytes = 64;
// Kinds of RC requests, of kKinds: those from here on, READs and atomics, are answered.
constexpr uint32_t kFirstAnsweredKind = 62;
constexpr uint32_t kKinds = 100;
constexpr uint32_t kDeepReadBytesMax = 32;
constexpr uint32_t kMulticastQpn = 0xff'ffff;  // Spec: IBTA 9.2.3
constexpr uint32_t kReceivesAhead = 4;         // more than there are senders of datagrams

std::vector<std::byte> MakePattern() {
  std::vector<std::byte> bytes(kPatternOffsets + kPatternTail);
  SimRandom random(0x70a7'7e12);
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = random.Next();
    std::memcpy(bytes.data() + i, &word, 8);
  }
  return bytes;
}

}  // namespace

const std::byte* Pattern() {
  static const std::vector<std::byte> bytes = MakePattern();
  return bytes.data();
}

Flow::Flow(World* world, End* from, End* to, uint32_t id, uint64_t seed, const EndPlan& plan,
           uint32_t message_bytes_max)
    : world_(world),
      from_(from),
      to_(to),
      id_(id),
      service_(from->service),
      random_(seed),
      mtu_bytes_(from->mtu_bytes),
      message_bytes_max_(message_bytes_max),
      is_deep_(plan.is_deep) {
  local_.bytes = 8 * (message_bytes_max + 2 * kMarginBytes) + 8 * 1024;
  remote_.bytes = 6 * (message_bytes_max + 2 * kMarginBytes) + 4 * 1024;
  if (plan.ends_badly) bad_index_ = plan.ops / 2 + random_.Below(plan.ops / 2);
  Generate(plan.ops);
  target_bytes_ = service_ == Service::kRc ? kWords * 8 + kMarginBytes + remote_.bytes
                                           : static_cast<uint32_t>(remote_.head) + kMarginBytes;
}

// --- making work ---------------------------------------------------------------------------------

void Flow::Generate(uint32_t count) {
  // UC writes lie apart: what a late duplicate writes again can then hide nothing.
  if (service_ != Service::kRc) remote_.bytes = ~0u;
  ops_.resize(count);
  uint32_t unsignaled = 0;
  for (uint32_t i = 0; i < count; ++i) {
    Op& op = ops_[i];
    GenerateKind(op);
    if (i == bad_index_) MakeBad(op);
    Place(op);
    const bool is_signaled = from_->sq_sig_all || i + 1 == count ||
                             unsignaled == kUnsignaledRunMax || random_.Chance(500);
    unsignaled = is_signaled ? 0 : unsignaled + 1;
    if (is_signaled) op.flags |= shm::kSendSignaled;
    if (random_.Chance(100)) op.flags |= shm::kSendSolicited;
    const uint32_t fence_per_mille = is_deep_ ? 2 : 80;
    if (service_ == Service::kRc && random_.Chance(fence_per_mille)) op.flags |= shm::kSendFence;
    if (op.TakesReceive()) {
      op.message = static_cast<uint32_t>(messages_.size());
      messages_.push_back(i);
    }
  }
}

uint32_t Flow::DrawLength() {
  const uint32_t kind = random_.Below(100);
  const uint32_t max = message_bytes_max_;
  if (kind < 35) return random_.Below(65);
  if (kind < 60) {  // about whole packets
    const uint32_t packets = random_.Below(max / mtu_bytes_ + 1);
    return std::min(max, packets * mtu_bytes_ + random_.Below(5) - std::min(2u, packets * 2));
  }
  if (kind < 90) return random_.Below(max / 3 + 1);
  return random_.Below(max + 1);
}

void Flow::GenerateKind(Op& op) {
  op.length = DrawLength();
  op.pattern = random_.Below(kPatternOffsets);
  if (service_ == Service::kRc) {
    GenerateRc(op);
  } else {
    const uint32_t kind = random_.Below(100);
    const bool is_write = service_ == Service::kUc && kind >= 50;
    const bool has_imm = kind % 2 == 0 || (!is_write && op.length < 8);
    op.opcode = is_write ? (has_imm ? WrOpcode::kRdmaWriteWithImm : WrOpcode::kRdmaWrite)
                         : (has_imm ? WrOpcode::kSendWithImm : WrOpcode::kSend);
    if (service_ == Service::kUd) op.destination = static_cast<uint32_t>(random_.Next() >> 40);
  }
  op.has_payload = op.IsSend() || op.IsWrite();
  if (op.has_payload && op.length <= kInlineBytesMax && random_.Chance(250)) {
    op.flags |= shm::kSendInline;
  }
}

void Flow::GenerateRc(Op& op) {
  // Deep: mostly what is answered, and short.
  const uint32_t first = is_deep_ && random_.Chance(950) ? kFirstAnsweredKind : 0;
  const uint32_t kind = first + random_.Below(kKinds - first);
  if (kind < 18) {
    op.opcode = WrOpcode::kSend;
  } else if (kind < 27) {
    op.opcode = WrOpcode::kSendWithImm;
  } else if (kind < 28) {
    op.opcode = WrOpcode::kSendWithInv;
    if (invalidated_ == kSpareKeysMax) {
      op.opcode = WrOpcode::kSend;
    } else {
      op.key_index = invalidated_++;
      spare_keys_wanted_ = invalidated_;
    }
  } else if (kind < 29 && own_keys_wanted_ < kSpareKeysMax) {
    op.opcode = WrOpcode::kLocalInv;
    op.length = 0;
    op.key_index = own_keys_wanted_++;
  } else if (kind < 52) {
    op.opcode = WrOpcode::kRdmaWrite;
  } else if (kind < kFirstAnsweredKind) {
    op.opcode = WrOpcode::kRdmaWriteWithImm;
  } else if (kind < 84) {
    op.opcode = WrOpcode::kRdmaRead;
    if (is_deep_) op.length = random_.Below(kDeepReadBytesMax + 1);
  } else if (kind < 92) {
    op.opcode = WrOpcode::kAtomicFetchAndAdd;
  } else if (kind < 94) {
    op.opcode = WrOpcode::kAtomicCmpAndSwp;
  } else if (kind < 95) {
    op.opcode = WrOpcode::kAtomicWrite;
  } else if (kind < 97) {
    op.opcode = WrOpcode::kFlush;
  } else {
    op.opcode = WrOpcode::kAtomicFetchAndAdd;
    op.is_shared = true;
  }
  if (op.IsAtomic()) ModelAtomic(op);
}

// What it will find, if all before it has been done.
void Flow::ModelAtomic(Op& op) {
  op.length = 8;
  if (op.is_shared) {
    op.remote_at = random_.Below(World::kSharedWords);
    op.compare_add = 1;
    return;
  }
  op.remote_at = random_.Below(kWords);
  uint64_t& word = words_[op.remote_at];
  op.original = word;
  if (op.opcode == WrOpcode::kAtomicFetchAndAdd) {
    op.compare_add = random_.Next();
    word += op.compare_add;
    return;
  }
  if (op.opcode == WrOpcode::kAtomicWrite) {
    op.compare_add = word = random_.Next();
    return;
  }
  op.compare_add = random_.Chance(700) ? word : word + 1;
  op.swap = random_.Next();
  if (op.compare_add == word) word = op.swap;
}

void Flow::MakeBad(Op& op) {
  if (op.IsAtomic() && !op.is_shared) words_[op.remote_at] = op.original;
  if (op.opcode == WrOpcode::kSendWithInv) --invalidated_;
  if (op.opcode == WrOpcode::kLocalInv) --own_keys_wanted_;
  op.is_shared = false;
  op.flags = 0;
  op.length = 1 + random_.Below(64);
  op.opcode = WrOpcode::kRdmaWrite;
  op.has_payload = true;
  const uint32_t kind = random_.Below(6);
  if (service_ != Service::kRc) {
    op.bad = kind < 3 ? Bad::kLkey : Bad::kOpcode;
    op.opcode = op.bad == Bad::kOpcode ? WrOpcode::kRdmaRead : WrOpcode::kSendWithImm;
  } else if (kind == 0) {
    op.bad = Bad::kRkey;
  } else if (kind == 1) {
    op.bad = Bad::kBounds;
  } else if (kind == 2 && invalidated_ != 0) {
    op.bad = Bad::kInvalidated;
    op.key_index = random_.Below(invalidated_);
  } else if (kind == 3) {
    op.bad = Bad::kLkey;
  } else if (kind == 4) {
    op.bad = Bad::kOpcode;
    op.opcode = WrOpcode::kTso;
  } else {
    op.bad = from_->peer->has_srq ? Bad::kRkey : Bad::kReceiveTooShort;
    if (!from_->peer->has_srq) op.opcode = WrOpcode::kSend;
  }
}

void Flow::Place(Op& op) {
  const bool is_inline = (op.flags & shm::kSendInline) != 0;
  if (!is_inline && op.opcode != WrOpcode::kLocalInv && !op.IsFlush()) {
    op.local_at = local_.Take(op.length, kMarginBytes, &op.local_until);
    op.piece_count = static_cast<uint8_t>(op.IsAtomic() ? 1 : 1 + random_.Below(3));
    uint32_t left = op.length;
    for (uint32_t i = 0; i + 1 < op.piece_count; ++i) {
      op.lengths[i] = random_.Below(left + 1);
      left -= op.lengths[i];
    }
    op.lengths[op.piece_count - 1] = left;
    op.first_piece = static_cast<uint8_t>(random_.Below(op.piece_count));
  } else {
    op.local_until = local_.head;
  }
  op.remote_until = remote_.head;
  if (op.IsWrite() || op.opcode == WrOpcode::kRdmaRead) PlaceRemote(op);
  if (op.IsFlush()) op.remote_at = random_.Below(remote_.bytes - op.length);
}

void Flow::PlaceRemote(Op& op) {
  const uint32_t base = service_ == Service::kRc ? kWords * 8 + kMarginBytes : 0;
  // READs look anywhere, and some WRITEs go where others are on their way to.
  const bool is_anywhere = service_ == Service::kRc && op.bad == Bad::kNone &&
                           (op.opcode == WrOpcode::kRdmaRead || random_.Chance(100));
  if (is_anywhere && op.IsWrite() && last_read_at_ != 0 && random_.Chance(600) &&
      last_read_at_ + op.length <= base + remote_.bytes) {
    op.remote_at = last_read_at_;  // which only a fence keeps from what is read
    op.flags |= shm::kSendFence;
    return;
  }
  if (is_anywhere) {
    const bool follows = remote_.head >= op.length + kMarginBytes && random_.Chance(500) &&
                         remote_.head % remote_.bytes >= op.length + kMarginBytes;
    op.remote_at = base + (follows ? static_cast<uint32_t>(remote_.head % remote_.bytes) -
                                         op.length - kMarginBytes
                                   : random_.Below(remote_.bytes - op.length));
    if (op.opcode == WrOpcode::kRdmaRead) last_read_at_ = op.remote_at;
    return;
  }
  op.remote_at = base + remote_.Take(op.length, kMarginBytes, &op.remote_until);
}

// --- posting -------------------------------------------------------------------------------------

void Flow::SetUp(std::byte* memory, std::byte* target, std::byte* shadow) {
  local_region_ = from_->client->Register(memory, local_.bytes, access::kLocalWrite);
  local_.head = local_.tail = 0;
  remote_.head = remote_.tail = 0;
  if (to_ == nullptr) return;
  auto make_spare = [this](Client* client) {
    std::byte* spare = world_->Allocate(kSpareBytes);
    std::memset(spare, 0, kSpareBytes);
    return client->Register(spare, kSpareBytes, access::kLocalWrite | access::kRemoteWrite);
  };
  for (uint32_t i = 0; i < own_keys_wanted_; ++i) own_keys_.push_back(make_spare(from_->client));
  target_ = target;
  shadow_ = shadow;
  std::memset(target_, 0, target_bytes_);
  std::memset(shadow_, 0, target_bytes_);
  target_region_ =
      to_->client->Register(target, target_bytes_,
                            access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead |
                                access::kRemoteAtomic | access::kFlushGlobal);
  for (uint32_t i = 0; i < spare_keys_wanted_; ++i) spare_keys_.push_back(make_spare(to_->client));
}

bool Flow::MayPost() const {
  if (is_abandoned_ || next_post_ == ops_.size()) return false;
  const Op& op = ops_[next_post_];
  if (!local_.MayUse(op.local_until)) return false;
  if (service_ == Service::kRc && !remote_.MayUse(op.remote_until)) return false;
  if (from_->qp.sq.producer_index() - from_->qp.sq.ConsumerIndex() >= from_->qp.sq.limit()) {
    return false;
  }
  if (!world_->is_paced() || service_ == Service::kRc || is_failed_) return true;
  if (!op.TakesReceive()) return true;
  const End* receiver = to_ != nullptr ? to_ : DestinationOf(op).end;
  return op.message == next_message_ && receiver->receiver->outstanding() >= kReceivesAhead;
}

uint32_t Flow::Post(Instant now, uint32_t max) {
  uint32_t count = 0;
  for (; count < max && MayPost(); ++count) {
    Op& op = ops_[next_post_];
    WriteWqe(op, next_post_);
    ++next_post_;
  }
  if (count == 0) return 0;
  from_->qp.sq.Publish();
  from_->client->Ring(from_->qp, now);
  return count;
}

void Flow::Stamp(uint32_t index, std::byte out[8]) const {
  const uint64_t stamp = uint64_t{id_} << 32 | index;
  std::memcpy(out, &stamp, sizeof(stamp));
}

void Flow::FillSource(const Op& op, uint32_t index) {
  std::byte* start = local_region_.memory + op.local_at;
  std::memset(start - kMarginBytes, 0xc3, kMarginBytes);
  std::memset(start + op.length, 0xc3, kMarginBytes);
  if (!op.has_payload) return;
  const std::byte* from = Pattern() + op.pattern;
  std::byte* scratch = world_->scratch();
  if (IsStamped(op) && op.length >= 8) {
    std::memcpy(scratch, from, op.length);
    Stamp(index, scratch);
    from = scratch;
  }
  std::byte* to = start;
  for (uint32_t k = 0; k < op.piece_count; ++k) {
    const uint32_t piece = (op.first_piece + k) % op.piece_count;
    uint32_t logical = 0;
    for (uint32_t i = 0; i < piece; ++i) logical += op.lengths[i];
    std::memcpy(to, from + logical, op.lengths[piece]);
    to += op.lengths[piece];
  }
}

void Flow::WriteWqe(Op& op, uint32_t index) {
  auto* entry = static_cast<std::byte*>(from_->qp.sq.Reserve());
  VERBENA_CHECK(entry != nullptr);
  shm::SendWqe wqe{};
  wqe.wr_id = index;
  wqe.opcode = static_cast<uint8_t>(op.opcode);
  wqe.flags = op.flags;
  wqe.imm_or_rkey =
      op.opcode == WrOpcode::kSendWithInv ? spare_keys_[op.key_index].key : id_ << 16 | index;
  if (op.opcode == WrOpcode::kLocalInv) wqe.imm_or_rkey = own_keys_[op.key_index].key;
  const bool is_remote =
      op.IsAtomic() || op.IsWrite() || op.IsFlush() || op.opcode == WrOpcode::kRdmaRead;
  if (to_ != nullptr && is_remote) {
    const Region& target = op.is_shared                  ? to_->client_state->shared
                           : op.bad == Bad::kInvalidated ? spare_keys_[op.key_index]
                                                         : target_region_;
    wqe.rkey = op.bad == Bad::kRkey ? 0x00ff'ff00 : target.key;
    wqe.remote_addr = target.iova + (op.IsAtomic() ? op.remote_at * 8 : op.remote_at);
    if (op.bad == Bad::kInvalidated) wqe.remote_addr = target.iova;
    if (op.bad == Bad::kBounds) wqe.remote_addr = target.iova + target.bytes - op.length + 1;
  }
  wqe.atomic.compare_add = op.compare_add;
  wqe.atomic.swap = op.swap;
  if (op.IsFlush()) {
    const bool is_whole = op.pattern % 4 == 0;
    wqe.flush = {op.length, flush::kGlobal, is_whole ? flush::kMr : flush::kRange};
  }
  if (service_ == Service::kUd) {
    const Destination& destination = DestinationOf(op);
    wqe.ah = destination.ah;
    wqe.remote_qpn = destination.end == nullptr ? kMulticastQpn : destination.end->qp.qpn.value;
    wqe.remote_qkey = World::kQkey;
  }
  const bool is_inline = (op.flags & shm::kSendInline) != 0;
  const size_t body_bytes = is_inline ? op.length : op.piece_count * sizeof(shm::Sge);
  std::byte* body = shm::PlaceSendBody(&wqe, body_bytes, entry + sizeof(wqe));
  if (is_inline) {
    wqe.inline_bytes = op.length;
    std::memcpy(body, Pattern() + op.pattern, op.length);
    if (IsStamped(op) && op.length >= 8) Stamp(index, body);
  } else if (op.piece_count != 0) {
    FillSource(op, index);
    wqe.num_sge = op.piece_count;
    auto* sges = reinterpret_cast<shm::Sge*>(body);
    uint32_t offset = op.local_at;
    for (uint32_t k = 0; k < op.piece_count; ++k) {
      const uint32_t piece = (op.first_piece + k) % op.piece_count;
      sges[piece] = {local_region_.iova + offset, op.lengths[piece], local_region_.key};
      if (op.bad == Bad::kLkey) sges[piece].lkey = 0x00ff'ff00;
      offset += op.lengths[piece];
    }
  }
  std::memcpy(entry, &wqe, sizeof(wqe));
}

const Destination& Flow::DestinationOf(const Op& op) const {
  return from_->destinations[op.destination % from_->destinations.size()];
}

void Flow::CutShort() {
  ops_.resize(std::min<size_t>(ops_.size(), next_post_ + 4));
  while (!messages_.empty() && messages_.back() >= ops_.size()) messages_.pop_back();
}

void Flow::Abandon() {
  is_abandoned_ = true;
  ops_.resize(next_post_);
  next_done_ = next_post_;
  while (!messages_.empty() && messages_.back() >= ops_.size()) messages_.pop_back();
}

}  // namespace verbena::simulation
