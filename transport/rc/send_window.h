// The send WQEs in flight: all that requester and completer share.
//
// Indices are free-running: head ≤ retired ≤ acked ≤ tail, and cursor is the next to send. Each WQE
// is copied once out of the ring; progress stands here and never in memory the client can write.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "core/base/huge_page_pool.h"
#include "core/base/prefetch.h"
#include "core/base/psn.h"
#include "core/base/types.h"
#include "core/shm/attach.h"
#include "core/shm/layout.h"
#include "transport/pdu.h"
#include "transport/qp_host.h"
#include "transport/rc/requester_events.h"

namespace verbena::transport::rc {

struct SendRecord {
  uint64_t wr_id = 0;
  uint64_t remote_addr = 0;
  uint64_t compare = 0;      // BIND_MW: the window's length; FLUSH: the range's
  uint64_t swap_or_add = 0;  // BIND_MW: its handle, FLUSH: type; above: its access, the level
  uint64_t atomic_original = 0;
  RKey rkey;
  uint32_t imm_or_rkey = 0;
  uint32_t length = 0;
  uint32_t sent_bytes = 0;      // next byte to send, or to ask for
  uint32_t received_bytes = 0;  // READ: response bytes taken in order
  Psn first_psn;
  PsnCount psn_count{1};
  Msn ssn;  // what the peer's MSN will be once this message is complete
  uint16_t dma_outstanding = 0;
  uint16_t segment_count = 0;
  shm::WrOpcode opcode = shm::WrOpcode::kSend;
  uint8_t flags = 0;
  uint8_t num_sge = 0;
  bool is_resolved = false;  // the segments stand for the SGEs as of this transmission
  bool is_taken = false;  // READ, atomics: the whole response came (it may still be on its way in)
  bool is_probe = false;  // begun without a credit: its first PDU waits for its acknowledgement
  WqeState state = WqeState::kPosted;
  WcStatus status = WcStatus::kSuccess;
  shm::VendorErr vendor_err = shm::VendorErr::kNone;

  bool IsInline() const { return (flags & shm::kSendInline) != 0; }
  bool IsRead() const { return opcode == shm::WrOpcode::kRdmaRead; }
  bool TakesReceive() const {
    return opcode == shm::WrOpcode::kSend || opcode == shm::WrOpcode::kSendWithImm ||
           opcode == shm::WrOpcode::kSendWithInv || opcode == shm::WrOpcode::kRdmaWriteWithImm;
  }
  bool IsAtomic() const {
    return opcode == shm::WrOpcode::kAtomicCmpAndSwp || opcode == shm::WrOpcode::kAtomicFetchAndAdd;
  }
  // Its eight bytes stand in swap_or_add.
  bool IsAtomicWrite() const { return opcode == shm::WrOpcode::kAtomicWrite; }
  bool IsFlush() const { return opcode == shm::WrOpcode::kFlush; }
  uint32_t flush_type() const { return static_cast<uint32_t>(swap_or_add); }
  uint32_t flush_level() const { return static_cast<uint32_t>(swap_or_add >> 32); }
  bool HasResponse() const { return IsRead() || IsAtomic() || IsAtomicWrite() || IsFlush(); }
  bool IsInFlight() const { return state == WqeState::kSending || state == WqeState::kAwaiting; }
  WindowBind Bind() const {
    return {static_cast<uint32_t>(swap_or_add),
            RKey(imm_or_rkey),
            rkey.value,
            remote_addr,
            compare,
            static_cast<uint32_t>(swap_or_add >> 32)};
  }
  Psn LastPsn() const { return first_psn + PsnCount{psn_count.value - 1}; }

  // Payload of an inline WQE; else the SGEs and, behind them, room for as many segments.
  std::byte* body() { return body_is_big ? big_body.get() : small_body; }
  const shm::Sge* sges() { return reinterpret_cast<const shm::Sge*>(body()); }
  DmaSegment* segments() {
    return reinterpret_cast<DmaSegment*>(body() + num_sge * sizeof(shm::Sge));
  }
  // Makes room; keeps memory once taken, since a program's next WQE is like its last.
  std::byte* ReserveBody(uint32_t bytes) {
    body_is_big = bytes > kSmallBodyBytes;
    if (body_is_big && bytes > big_body_bytes) {
      big_body.reset(new std::byte[bytes]);
      big_body_bytes = bytes;
    }
    return body();
  }

  static constexpr uint32_t kSmallBodyBytes = 64;  // two SGEs and their segments
  bool body_is_big = false;
  uint32_t big_body_bytes = 0;
  std::unique_ptr<std::byte[]> big_body;
  alignas(16) std::byte small_body[kSmallBodyBytes];
};

class SendWindow {
 public:
  static constexpr uint32_t kRecords = 128;

  uint32_t head = 0;     // oldest not polled as a completion
  uint32_t retired = 0;  // oldest that is not done
  uint32_t acked = 0;    // oldest not wholly acknowledged
  uint32_t cursor = 0;   // next to send
  uint32_t tail = 0;     // next to fetch
  Psn next_psn;          // of the next WQE to start
  Psn unacked_psn;       // oldest outstanding
  Psn sent_psn;          // one past the newest ever sent
  bool sq_may_hold_more = false;
  bool may_send = false;               // PollRequest might produce something
  uint32_t rd_atomic_outstanding = 0;  // WQEs
  uint32_t split_reads = 0;            // of them, READs that take several requests

  const SendRecord& At(uint32_t index) const { return (*ChunkOf(index))[index % kChunkRecords]; }
  SendRecord& At(uint32_t index) { return (*ChunkOf(index))[index % kChunkRecords]; }
  // Asks for the cache lines of the record that Push gives next.
  void ExpectRecord() const {
    const uint32_t index = head == tail ? 0 : tail;
    if (index >= kChunkRecords || first_chunk_ == nullptr) return;  // a busy QP's are at hand
    const SendRecord& record = (*first_chunk_)[index];
    PrefetchLines(&record, &record + 1);
  }
  // Something changed that may let the requester go on.
  void WakeSender() { may_send = cursor != tail || sq_may_hold_more; }
  bool IsFull() const { return tail - head == kRecords; }
  // The next free record, with stale contents. Chunks never move: PDUs polled point into them.
  SendRecord& Push() {
    // An empty window starts over, so that a QP with little in flight stays in its first chunk.
    if (head == tail) head = retired = acked = cursor = tail = 0;
    auto& chunk = ChunkOf(tail);
    if (chunk == nullptr) chunk = std::make_unique<Chunk>();
    return At(tail++);
  }
  // The oldest is done. It may have been so without an acknowledgement of its own, which moves
  // `acked`; that must not stay behind, as the record may be another WQE's next.
  void Retire() {
    if (acked == retired) ++acked;
    ++retired;
  }
  // Forgets all work, keeps the memory.
  void Clear() {
    head = retired = acked = cursor = tail = 0;
    next_psn = unacked_psn = sent_psn = Psn{};
    rd_atomic_outstanding = split_reads = 0;
    sq_may_hold_more = may_send = false;
  }

 private:
  static constexpr uint32_t kChunkRecords = 4;
  static constexpr uint32_t kChunks = kRecords / kChunkRecords;
  struct Chunk : std::array<SendRecord, kChunkRecords>, OnHugePages {};
  using ChunkPtr = std::unique_ptr<Chunk>;

  // Precondition of the first: the record is there.
  const ChunkPtr& ChunkOf(uint32_t index) const {
    const uint32_t chunk = index / kChunkRecords % kChunks;
    return chunk == 0 ? first_chunk_ : (*more_chunks_)[chunk - 1];
  }
  ChunkPtr& ChunkOf(uint32_t index) {
    const uint32_t chunk = index / kChunkRecords % kChunks;
    if (chunk == 0) return first_chunk_;
    if (more_chunks_ == nullptr) more_chunks_ = std::make_unique<MoreChunks>();
    return (*more_chunks_)[chunk - 1];
  }

  ChunkPtr first_chunk_;
  // Of QPs with much under way.
  using MoreChunks = std::array<ChunkPtr, kChunks - 1>;
  std::unique_ptr<MoreChunks> more_chunks_;
};

}  // namespace verbena::transport::rc
