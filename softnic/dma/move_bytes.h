// Copies to and from client memory that is mapped here, with what programs may rely on of a NIC.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "transport/qp_transport.h"

namespace verbena::softnic {

// Bytes become visible in ascending order, so that who polls the last one finds the others. A
// naturally aligned word of 8, 4 or 2 bytes of the destination is written at once; where both sides
// are equally aligned it is read at once, too. (memcpy promises neither, and breaks both at 1 MB.)
// The two ranges do not overlap, or `to` is the lower one.
void MoveBytes(std::byte* to, const std::byte* from, size_t bytes);
// The same for the last kLastInOrderBytes, which come last. Those before come in any order: by a
// string instruction if there are so many that it is faster (by a fifth to two fifths: it need not
// bring the destination's lines to the first cache).
inline constexpr size_t kLastInOrderBytes = 4096;
void MoveBytesInAnyOrder(std::byte* to, const std::byte* from, size_t bytes);
enum class MoveOrder : uint8_t { kAscending, kAny };
// The same between lists of pieces, from an offset into each on. Precondition: they are that long.
void MovePieces(const iovec* to, uint64_t to_offset, const iovec* from, uint64_t from_offset,
                uint64_t bytes, MoveOrder order = MoveOrder::kAscending);
// The same into packets, whose bytes nobody sees before all are there: without an order, and with
// the CRC of each piece (crcs[i] is to[i]'s), carried on from the last call and known once the
// piece is complete.   Precondition: transport::wire::HasWideClmul().
void MovePiecesWithCrc(const iovec* to, transport::PieceCrc* const* crcs, uint64_t to_offset,
                       const iovec* from, uint64_t from_offset, uint64_t bytes);

}  // namespace verbena::softnic
