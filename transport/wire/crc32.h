// CRC-32 (zlib's, Ethernet's, and so the ICRC's) over bytes in memory.
//
// Works on the register: start with kCrc32Start, feed pieces in order, invert at the end. Two
// implementations, always compiled: a portable one, and one with carry-less multiplication that is
// used where the processor has it. Both are tested against ISA-L, which can't be linked into what
// is handed out: Debian has it only as a shared library.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::transport::wire {

inline constexpr uint32_t kCrc32Start = 0xffff'ffff;

// The register after `length` more bytes.   Alloc: none.
uint32_t UpdateCrc32(uint32_t crc, const std::byte* bytes, size_t length);

// Slicing by eight: eight table look-ups for eight bytes.
uint32_t UpdateCrc32Portable(uint32_t crc, const std::byte* bytes, size_t length);

// By carry-less multiplication, 16 and 64 bytes at a time.
// Precondition: the processor has it: HasClmul(), HasWideClmul().
bool HasClmul();
bool HasWideClmul();
uint32_t UpdateCrc32Clmul(uint32_t crc, const std::byte* bytes, size_t length);
uint32_t UpdateCrc32WideClmul(uint32_t crc, const std::byte* bytes, size_t length);

// Copies bytes that others may be writing to, each read once, and naturally aligned words of 8, 4
// or 2 bytes of the source at once; the register after what was copied.
// Precondition: HasWideClmul(): elsewhere it takes as long as the two one after the other.
uint32_t CopyCrc32WideClmul(uint32_t crc, std::byte* to, const std::byte* from, size_t length);

// The register after `length` zero bytes more. CRCs are linear, so that of two pieces is
// AdvanceCrc32(the first's, the second's length) ^ (the second's, started from 0).
// Precondition: length <= 65 535.
uint32_t AdvanceCrc32(uint32_t crc, size_t length);

}  // namespace verbena::transport::wire
