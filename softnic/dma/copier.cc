#include "softnic/dma/copier.h"

#include <errno.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/cache_line.h"
#include "core/base/check.h"
#include "core/shm/layout.h"
#include "softnic/dma/bus_error.h"
#include "softnic/dma/move_bytes.h"

namespace verbena::softnic {

using transport::DmaStatus;

namespace {

// Bytes of the chunk that stand in op.bytes; the rest comes from the source process.
uint64_t LocalPart(const DmaOp& op, uint32_t chunk_bytes) {
  if (op.progress_bytes >= op.bytes.size()) return 0;
  return std::min<uint64_t>(op.bytes.size() - op.progress_bytes, chunk_bytes);
}

// `result`: of Copier::Read or Write.
void Fail(DmaOp& op, DmaStatus status, int64_t result) {
  op.status = status;
  op.is_owner_gone = result == -ESRCH;
}

// Of a process whose helper is gone: whether that is so because the process is.
bool HasEnded(const TargetProcess& process) {
  if (process.dead.load(std::memory_order_acquire)) return true;
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
  if (pidfd < 0) return errno == ESRCH;
  pollfd ended = {pidfd, POLLIN, 0};
  const bool has_ended = poll(&ended, 1, 0) == 1;
  close(pidfd);
  return has_ended;
}

bool IsCopy(const DmaOp& op) { return op.kind == DmaOp::Kind::kCopy; }

// Cuts the last of `count` pieces so that the last `tail` bytes are one of their own.
void CutTail(iovec* pieces, uint32_t* count, uint64_t tail) {
  iovec& last = pieces[*count - 1];
  if (last.iov_len <= tail) return;
  last.iov_len -= tail;
  pieces[*count] = {static_cast<std::byte*>(last.iov_base) + last.iov_len, tail};
  *count += 1;
}

}  // namespace

uint32_t SlicePieces(const std::vector<iovec>& pieces, uint64_t offset, uint64_t length,
                     iovec* out) {
  uint32_t count = 0;
  for (const iovec& piece : pieces) {
    if (length == 0) break;
    if (offset >= piece.iov_len) {
      offset -= piece.iov_len;
      continue;
    }
    uint64_t n = std::min<uint64_t>(piece.iov_len - offset, length);
    out[count++] = {static_cast<char*>(piece.iov_base) + offset, n};
    offset = 0;
    length -= n;
  }
  return count;
}

Copier::Copier(CopyGate* gate)
    : gate_(gate), bounce_(std::make_unique<std::byte[]>(kBounceBytes)) {}

int64_t Copier::Read(Target target, const iovec* local, uint32_t local_pieces, const iovec* remote,
                     uint32_t pieces) {
  if (target.process->dead.load(std::memory_order_acquire)) return -ESRCH;
  gate_->Enter(target.process);
  int64_t result;
  if (target.assistant != nullptr) {
    result = target.assistant->Read(local, local_pieces, remote, pieces);
    if (result == -EIO && HasEnded(*target.process)) result = -ESRCH;
  } else {
    ssize_t n = process_vm_readv(target.process->pid, local, local_pieces, remote, pieces, 0);
    result = n < 0 ? -errno : n;
  }
  gate_->Leave();
  return result;
}

int64_t Copier::Write(Target target, const iovec* local, uint32_t local_pieces, const iovec* remote,
                      uint32_t pieces) {
  gate_->Enter(target.process);
  int64_t result;
  // Looked at after Enter: the leader revokes first and then looks where we are (see RevokeUnit).
  // Once revoked, the target may be gone.
  if (unit_->revoked.load(std::memory_order_seq_cst)) {
    result = -ECANCELED;
  } else if (target.process->dead.load(std::memory_order_acquire)) {
    result = -ESRCH;
  } else if (target.assistant != nullptr) {
    result = target.assistant->Write(local, local_pieces, remote, pieces);
    if (result == -EIO && HasEnded(*target.process)) result = -ESRCH;
  } else {
    ssize_t n = process_vm_writev(target.process->pid, local, local_pieces, remote, pieces, 0);
    result = n < 0 ? -errno : n;
  }
  gate_->Leave();
  return result;
}

// Makes the last cache line that the two lists, so far, write to a piece of its own. The kernel
// copies each piece by a string instruction of its own. Within one, lines become visible in any
// order (seen on x86 for aligned destinations); a piece does not begin before the last one is
// there. A piece of ours costs it nothing, one of the process a look at its pages; but a helper's
// kernel knows the process's alone.   Precondition: both lists have room for one more.
void Copier::SetLastLineApart(Target target, iovec* local, uint32_t* locals, iovec* remote,
                              uint32_t* pieces) {
  const iovec& last = remote[*pieces - 1];
  const uint64_t end = reinterpret_cast<uint64_t>(last.iov_base) + last.iov_len;
  const uint64_t tail = (end - 1) % kCacheLineBytes + 1;
  if (target.assistant != nullptr) {
    CutTail(remote, pieces, tail);
  } else {
    CutTail(local, locals, tail);
  }
}

void Copier::Account(DmaOp& op, uint32_t chunk_bytes) {
  op.progress_bytes += chunk_bytes;
  std::atomic<uint64_t>& moved = op.IsAssisted() ? assisted_bytes_ : bytes_moved_;
  moved.store(moved.load(std::memory_order_relaxed) + chunk_bytes, std::memory_order_relaxed);
}

void Copier::Execute(CopyUnit& unit) {
  unit_ = &unit;
  if (unit.count == 1 || !IsCopy(*unit.ops[0])) {
    VERBENA_CHECK(unit.count == 1);
    DmaOp& op = *unit.ops[0];
    switch (op.kind) {
      case DmaOp::Kind::kCopy:
        return ExecuteOne(op, unit.chunk_bytes[0]);
      case DmaOp::Kind::kCompareSwap:
      case DmaOp::Kind::kFetchAdd:
        return ExecuteAtomic(op);
      case DmaOp::Kind::kProbe:
        return ExecuteProbe(op);
      case DmaOp::Kind::kFailed:
        return;
    }
  }
  if (!ReadAll(unit)) {
    // Some source is bad: one by one finds out whose, and the others are not harmed.
    for (uint32_t i = 0; i < unit.count; ++i) ExecuteOne(*unit.ops[i], unit.chunk_bytes[i]);
    return;
  }
  WriteAll(unit);
}

// Into the bounce buffer, or into the NIC's own memory if that is the destination.
// Precondition: nothing of the unit is mapped.
bool Copier::ReadAll(CopyUnit& unit) {
  uint32_t pieces = 0, locals = 0;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < unit.count; ++i) {
    DmaOp& op = *unit.ops[i];
    uint64_t local = LocalPart(op, unit.chunk_bytes[i]);
    uint64_t remote = unit.chunk_bytes[i] - local;
    if (remote == 0) continue;
    uint64_t offset = op.progress_bytes + local - op.bytes.size();
    pieces += SlicePieces(op.source_pieces, offset, remote, remote_ + pieces);
    bytes += remote;
    if (unit.destination == nullptr) {
      locals += SlicePieces(op.destination_pieces, op.progress_bytes, remote, local_ + locals);
    }
  }
  if (pieces == 0) return true;
  VERBENA_CHECK(pieces <= kUnitPiecesMax && bytes <= kBounceBytes);
  if (unit.destination != nullptr) local_[locals++] = {bounce_.get(), bytes};
  return Read({unit.source, unit.source_assistant}, local_, locals, remote_, pieces) ==
         static_cast<int64_t>(bytes);
}

void Copier::WriteAll(CopyUnit& unit) {
  uint32_t pieces = 0, locals = 0;
  uint64_t bytes = 0;
  std::byte* from = bounce_.get();
  if (unit.destination == nullptr) {
    unit.sources_done.store(true, std::memory_order_release);
    for (uint32_t i = 0; i < unit.count; ++i) Account(*unit.ops[i], unit.chunk_bytes[i]);
    return;
  }
  const Target target = {unit.destination, unit.destination_assistant};
  for (uint32_t i = 0; i < unit.count; ++i) {
    DmaOp& op = *unit.ops[i];
    uint64_t local = LocalPart(op, unit.chunk_bytes[i]);
    uint64_t remote = unit.chunk_bytes[i] - local;
    if (local != 0) local_[locals++] = {op.bytes.data() + op.progress_bytes, local};
    if (remote != 0) local_[locals++] = {from, remote};
    from += remote;
    bytes += unit.chunk_bytes[i];
    pieces += SlicePieces(op.destination_pieces, op.progress_bytes, unit.chunk_bytes[i],
                          remote_ + pieces);
    if (unit.chunk_bytes[i] != 0) SetLastLineApart(target, local_, &locals, remote_, &pieces);
  }
  VERBENA_CHECK(pieces <= kListPiecesMax);
  unit.sources_done.store(true, std::memory_order_release);
  int64_t n = bytes == 0 ? 0 : Write(target, local_, locals, remote_, pieces);
  uint64_t written = n < 0 ? 0 : static_cast<uint64_t>(n);
  from = bounce_.get();
  for (uint32_t i = 0; i < unit.count; ++i) {
    if (written >= unit.chunk_bytes[i]) {
      written -= unit.chunk_bytes[i];
      from += unit.chunk_bytes[i] - LocalPart(*unit.ops[i], unit.chunk_bytes[i]);
      Account(*unit.ops[i], unit.chunk_bytes[i]);
      continue;
    }
    // The kernel stopped inside this operation. It and those after it go one by one: the fault is
    // this one's alone, and writing its first bytes again changes nothing.
    for (; i < unit.count; ++i) {
      uint64_t remote = unit.chunk_bytes[i] - LocalPart(*unit.ops[i], unit.chunk_bytes[i]);
      WriteOne(*unit.ops[i], unit.chunk_bytes[i], from);
      from += remote;
    }
    return;
  }
}

void Copier::ExecuteOne(DmaOp& op, uint32_t chunk_bytes) {
  if (chunk_bytes == 0) return;
  uint64_t local = LocalPart(op, chunk_bytes);
  uint64_t remote = chunk_bytes - local;
  if (remote != 0) {
    int64_t n = ReadOne(op, op.progress_bytes + local - op.bytes.size(), remote);
    if (n != static_cast<int64_t>(remote)) return Fail(op, DmaStatus::kSourceFault, n);
  }
  if (unit_->count == 1) unit_->sources_done.store(true, std::memory_order_release);
  WriteOne(op, chunk_bytes, bounce_.get());
}

// `bytes` of the source from `offset` on, into the bounce buffer or to where they belong. Returns
// as Read does.
int64_t Copier::ReadOne(DmaOp& op, uint64_t offset, uint64_t bytes) {
  if (!op.source_here.empty()) return ReadMixed(op, offset, bytes);
  if (op.source_is_mapped) {
    // Through the buffer, though it is here: its session may go while a write hangs, and the
    // mapping with it.
    const iovec bounce = {bounce_.get(), bytes};
    uintptr_t fault;
    const bool is_done =
        Guarded(&fault, [&] { MovePieces(&bounce, 0, op.source_pieces.data(), offset, bytes); });
    return is_done ? static_cast<int64_t>(bytes) : -EFAULT;
  }
  uint32_t pieces = SlicePieces(op.source_pieces, offset, bytes, remote_);
  uint32_t locals = 1;
  local_[0] = {bounce_.get(), bytes};
  if (op.destination == nullptr) {
    locals = SlicePieces(op.destination_pieces, op.progress_bytes, bytes, local_);
  }
  return Read(Source(op), local_, locals, remote_, pieces);
}

// Writes the chunk: its local part, and then what stands at `from`.
void Copier::WriteOne(DmaOp& op, uint32_t chunk_bytes, std::byte* from) {
  if (chunk_bytes == 0) return;
  if (op.destination == nullptr) return Account(op, chunk_bytes);  // read into its place
  uint64_t local = LocalPart(op, chunk_bytes);
  uint64_t remote = chunk_bytes - local;
  uint32_t locals = 0;
  if (local != 0) local_[locals++] = {op.bytes.data() + op.progress_bytes, local};
  if (remote != 0) local_[locals++] = {from, remote};
  int64_t n;
  if (!op.destination_here.empty()) {
    n = WriteMixed(op, chunk_bytes);
  } else if (op.destination_is_mapped) {
    n = WriteMapped(op, chunk_bytes);
  } else {
    uint32_t pieces = SlicePieces(op.destination_pieces, op.progress_bytes, chunk_bytes, remote_);
    SetLastLineApart(Destination(op), local_, &locals, remote_, &pieces);
    n = Write(Destination(op), local_, locals, remote_, pieces);
  }
  if (n == static_cast<int64_t>(chunk_bytes)) return Account(op, chunk_bytes);
  // Revoked: as if it had never come. Else the destination is to blame.
  Fail(op, n == -ECANCELED ? DmaStatus::kSourceFault : DmaStatus::kDestinationFault, n);
}

// What local_ names, as Write would: the mapping is there until the gate is left.
int64_t Copier::WriteMapped(DmaOp& op, uint32_t chunk_bytes) {
  int64_t result = chunk_bytes;
  gate_->Enter(op.destination);
  if (unit_->revoked.load(std::memory_order_seq_cst)) {
    result = -ECANCELED;
  } else {
    uintptr_t fault;
    const bool is_done = Guarded(&fault, [&] {
      MovePieces(op.destination_pieces.data(), op.progress_bytes, local_, 0, chunk_bytes);
    });
    if (!is_done) result = -EFAULT;
  }
  gate_->Leave();
  return result;
}

// A piece of NIC memory amid a process's. The gate knows it as nobody's, so that the leader can
// tell whether we are past the process that hung (see RevokeUnit): once revoked, the piece may be
// gone.
template <typename Move>
int64_t Copier::MoveHere(uint64_t bytes, Move&& move) {
  int64_t result = static_cast<int64_t>(bytes);
  gate_->Enter(nullptr);
  uintptr_t fault;
  if (unit_->revoked.load(std::memory_order_seq_cst)) {
    result = -ECANCELED;
  } else if (!Guarded(&fault, std::forward<Move>(move))) {
    result = -EFAULT;
  }
  gate_->Leave();
  return result;
}

// As ReadOne, piece by piece.
int64_t Copier::ReadMixed(DmaOp& op, uint64_t offset, uint64_t bytes) {
  const iovec whole = {bounce_.get(), bytes};
  std::byte* to = bounce_.get();
  uint64_t left = bytes;
  for (size_t i = 0; i < op.source_pieces.size() && left != 0; ++i) {
    const iovec& piece = op.source_pieces[i];
    if (offset >= piece.iov_len) {
      offset -= piece.iov_len;
      continue;
    }
    const uint64_t n = std::min<uint64_t>(piece.iov_len - offset, left);
    auto* from = static_cast<std::byte*>(piece.iov_base) + offset;
    if (piece.iov_base == nullptr) {
      std::memset(to, 0, n);
    } else if (op.source_here[i]) {
      const int64_t read = MoveHere(n, [&] { MoveBytes(to, from, n); });
      if (read < 0) return read;
    } else {
      const iovec local = {to, n}, remote = {from, n};
      const int64_t read = Read(Source(op), &local, 1, &remote, 1);
      if (read != static_cast<int64_t>(n)) return read < 0 ? read : -EFAULT;
    }
    to += n;
    left -= n;
    offset = 0;
  }
  if (op.destination == nullptr) {
    MovePieces(op.destination_pieces.data(), op.progress_bytes, &whole, 0, bytes);
  }
  return static_cast<int64_t>(bytes);
}

// As WriteMapped, piece by piece.   Precondition: local_ names at most two pieces.
int64_t Copier::WriteMixed(DmaOp& op, uint32_t chunk_bytes) {
  uint64_t offset = op.progress_bytes;
  uint64_t done = 0;
  for (size_t i = 0; i < op.destination_pieces.size() && done < chunk_bytes; ++i) {
    const iovec& piece = op.destination_pieces[i];
    if (offset >= piece.iov_len) {
      offset -= piece.iov_len;
      continue;
    }
    const uint64_t n = std::min<uint64_t>(piece.iov_len - offset, chunk_bytes - done);
    auto* to = static_cast<std::byte*>(piece.iov_base) + offset;
    int64_t written = static_cast<int64_t>(n);
    if (piece.iov_base != nullptr && op.destination_here[i]) {
      const iovec here = {to, n};
      written = MoveHere(n, [&] { MovePieces(&here, 0, local_, done, n); });
    } else if (piece.iov_base != nullptr) {
      const uint64_t first = local_[0].iov_len;
      iovec parts[3];
      uint32_t count = 0;
      uint64_t left = n;
      if (done < first) {
        parts[count] = {static_cast<std::byte*>(local_[0].iov_base) + done,
                        std::min<uint64_t>(first - done, n)};
        left -= parts[count++].iov_len;
      }
      if (left != 0) {
        const uint64_t from = done + (n - left) - first;
        parts[count++] = {static_cast<std::byte*>(local_[1].iov_base) + from, left};
      }
      iovec remote[2] = {{to, n}};
      uint32_t pieces = 1;
      SetLastLineApart(Destination(op), parts, &count, remote, &pieces);
      written = Write(Destination(op), parts, count, remote, pieces);
    }
    if (written != static_cast<int64_t>(n)) return written < 0 ? written : -EFAULT;
    done += n;
    offset = 0;
  }
  return chunk_bytes;
}

void Copier::ExecuteAtomic(DmaOp& op) {
  uint64_t word = 0;
  iovec remote = op.destination_pieces[0];
  iovec local = {&word, sizeof(word)};
  constexpr auto kWhole = static_cast<int64_t>(sizeof(word));
  int64_t n = Read(Destination(op), &local, 1, &remote, 1);
  if (n != kWhole) return Fail(op, DmaStatus::kDestinationFault, n);
  op.original = word;
  if (op.kind == DmaOp::Kind::kFetchAdd) {
    word += op.swap_or_add;
  } else if (word == op.compare) {
    word = op.swap_or_add;
  } else {
    // Nothing is written back: the owner's CPU may have stored to the word since it was read.
    return Account(op, sizeof(word));
  }
  n = Write(Destination(op), &local, 1, &remote, 1);
  if (n != kWhole) return Fail(op, DmaStatus::kDestinationFault, n);
  Account(op, sizeof(word));
}

void Copier::ExecuteProbe(DmaOp& op) {
  std::byte buffer[16] = {};
  for (const iovec& piece : op.source_pieces) {
    iovec local = {buffer, piece.iov_len};
    int64_t n = Read(Source(op), &local, 1, &piece, 1);
    if (n != static_cast<int64_t>(piece.iov_len)) {
      op.error = n < 0 ? static_cast<int>(-n) : EFAULT;
      return;
    }
    std::memcpy(&op.original, buffer, sizeof(op.original));
  }
}

}  // namespace verbena::softnic
