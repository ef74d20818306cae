// Moves bytes between other processes with process_vm_readv/writev, or by helpers of theirs
// (assistant.h), through a small bounce buffer.
//
// Thread: each Copier belongs to one thread. Trust: addresses are the clients'; a bad one is a
// fault of that operation, found by the kernel.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "softnic/dma/assistant.h"
#include "softnic/dma/move_bytes.h"
#include "softnic/dma/target_process.h"
#include "transport/qp_transport.h"

namespace verbena::softnic {

// Payload per system call: what stays in L2, and what bounds the time of one copy (measured 10 µs).
inline constexpr uint32_t kBounceBytes = 64 * 1024;
// Operations per system call: 16 pieces get nearly all of the 3x that batching gives.
inline constexpr uint32_t kUnitOpsMax = 16;
// Pieces per system call over all operations of a unit.
inline constexpr uint32_t kUnitPiecesMax = 128;
// And with a piece for the last cache line of each operation.
inline constexpr uint32_t kListPiecesMax = kUnitPiecesMax + kUnitOpsMax;

struct DmaSession;

// One submitted operation. Pooled: the vectors keep their capacity.
struct DmaOp {
  enum class Kind : uint8_t {
    kCopy,
    kCompareSwap,
    kFetchAdd,
    kProbe,   // reads source_pieces into `original` and reports errno
    kFailed,  // refused at Submit; travels along so that its report comes in order
  };
  Kind kind = Kind::kCopy;
  transport::DmaStatus status = transport::DmaStatus::kOk;
  int error = 0;               // kProbe
  bool is_owner_gone = false;  // of a fault: the process whose memory it is has ended
  uint64_t stream = 0;
  uint64_t cookie = 0;
  TargetProcess* source = nullptr;       // nullptr: all bytes are in `bytes`
  TargetProcess* destination = nullptr;  // nullptr: destination_pieces are packets
  // By whom to reach that process; nullptr: the kernel does it.
  Assistant* source_assistant = nullptr;
  Assistant* destination_assistant = nullptr;
  // The pieces of that process are mapped here, and are given by our addresses.
  bool source_is_mapped = false;
  bool destination_is_mapped = false;
  MoveOrder order = MoveOrder::kAscending;  // if all of it is mapped
  // Lists that are not alike: whether each piece is here, or nowhere (kNullMemory: no address).
  // Empty: all are what the flags above say.
  std::vector<bool> source_here;
  std::vector<bool> destination_here;
  bool IsMixed() const { return !source_here.empty() || !destination_here.empty(); }
  uint64_t length_bytes = 0;
  uint64_t progress_bytes = 0;
  std::vector<std::byte> bytes;      // the first bytes of the copy (GRH, inline data) ...
  std::vector<iovec> source_pieces;  // ... and then these of the source process
  std::vector<iovec> destination_pieces;
  std::vector<transport::PieceCrc*> crcs;  // of the destination's pieces; empty: nobody asks
  uint64_t compare = 0;
  uint64_t swap_or_add = 0;
  uint64_t original = 0;
  bool is_revoked = false;  // one of its sessions does not wait for it any more
  struct Hold {
    DmaSession* session = nullptr;
    uint64_t epoch = 0;
  };
  // The sessions whose fences wait for this operation: at its source, at its destination, and the
  // NIC's where that is beside a process.
  Hold holds[3];
  DmaOp* next = nullptr;

  // No process need be asked: what it is about is here.
  bool IsAssisted() const {
    return source_assistant != nullptr || destination_assistant != nullptr;
  }
  bool IsMapped() const {
    return kind <= Kind::kFetchAdd && (source == nullptr || source_is_mapped) &&
           (destination == nullptr || destination_is_mapped);
  }
};

// What one go of the Copier carries out: operations with one source and one destination process, or
// all without.
struct CopyUnit {
  DmaOp* ops[kUnitOpsMax] = {};
  uint32_t chunk_bytes[kUnitOpsMax] = {};
  uint32_t count = 0;
  TargetProcess* source = nullptr;
  TargetProcess* destination = nullptr;
  Assistant* source_assistant = nullptr;  // of all of them, as the next one
  Assistant* destination_assistant = nullptr;
  int64_t elapsed_ns = 0;                 // measured by workers only
  std::atomic<bool> sources_done{false};  // nothing of the source will be touched any more
  std::atomic<bool> revoked{false};       // write nothing any more, nor touch NIC memory
  std::atomic<bool> stuck{false};         // the watchdog saw it hang
  bool holds_source = false;              // leader's note of which processes it charges
  bool holds_destination = false;
  TargetProcess* hung_at = nullptr;  // leader's note: where it was seen to hang
};

// Told before and after each system call that may hang, so that a watchdog can tell a hung copy.
class CopyGate {
 public:
  virtual ~CopyGate() = default;
  virtual void Enter(TargetProcess* target) = 0;
  virtual void Leave() = 0;
};

class Copier {
 public:
  explicit Copier(CopyGate* gate);

  // Carries out chunk_bytes[i] of each operation, in order, and sets status (or progress_bytes).
  // The last bytes of a chunk become visible last: those of its last cache line, and where they are
  // mapped here, all in ascending order. Errors: a source that can't be read faults before any
  // byte of that chunk is written.
  void Execute(CopyUnit& unit);

  uint64_t bytes_moved() const { return bytes_moved_.load(std::memory_order_relaxed); }
  // Those that a helper had a part in, beside the above.
  uint64_t assisted_bytes() const { return assisted_bytes_.load(std::memory_order_relaxed); }

 private:
  void ExecuteOne(DmaOp& op, uint32_t chunk_bytes);
  int64_t ReadOne(DmaOp& op, uint64_t offset, uint64_t bytes);
  void WriteOne(DmaOp& op, uint32_t chunk_bytes, std::byte* from);
  int64_t WriteMapped(DmaOp& op, uint32_t chunk_bytes);
  int64_t ReadMixed(DmaOp& op, uint64_t offset, uint64_t bytes);
  int64_t WriteMixed(DmaOp& op, uint32_t chunk_bytes);
  template <typename Move>
  int64_t MoveHere(uint64_t bytes, Move&& move);
  void ExecuteAtomic(DmaOp& op);
  void ExecuteProbe(DmaOp& op);
  bool ReadAll(CopyUnit& unit);
  void WriteAll(CopyUnit& unit);
  // A process, and who reaches it for us.
  struct Target {
    TargetProcess* process;
    Assistant* assistant;
  };
  static Target Source(const DmaOp& op) { return {op.source, op.source_assistant}; }
  static Target Destination(const DmaOp& op) { return {op.destination, op.destination_assistant}; }
  int64_t Read(Target target, const iovec* local, uint32_t local_pieces, const iovec* remote,
               uint32_t pieces);
  int64_t Write(Target target, const iovec* local, uint32_t local_pieces, const iovec* remote,
                uint32_t pieces);
  static void SetLastLineApart(Target target, iovec* local, uint32_t* locals, iovec* remote,
                               uint32_t* pieces);
  void Account(DmaOp& op, uint32_t chunk_bytes);

  CopyGate* gate_;
  CopyUnit* unit_ = nullptr;  // in hand
  std::unique_ptr<std::byte[]> bounce_;
  std::atomic<uint64_t> bytes_moved_{0};
  std::atomic<uint64_t> assisted_bytes_{0};
  iovec remote_[kListPiecesMax];
  iovec local_[kListPiecesMax];
};

// Cuts [offset, offset + length) of the concatenation of `pieces` into `out`; returns the number of
// pieces written (at most pieces.size()).
uint32_t SlicePieces(const std::vector<iovec>& pieces, uint64_t offset, uint64_t length,
                     iovec* out);

}  // namespace verbena::softnic
