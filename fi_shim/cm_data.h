// What a connection's private data are made of: the program's, and behind them, at the end of what
// rdma_cm has room for, how many they are and an authorization key.
//
// rdma_cm pads private data to a fixed length, which a peer that knows nothing of this sees as it
// always does: its own first, then zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::fi {

inline constexpr size_t kRequestDataBytes = 56;  // of TCP's port space
inline constexpr size_t kReplyDataBytes = 196;
inline constexpr size_t kRejectDataBytes = 148;
inline constexpr size_t kCmTrailerBytes = 4;

struct CmData {
  const uint8_t* data = nullptr;
  size_t bytes = 0;
  const uint8_t* auth_key = nullptr;
  size_t auth_key_bytes = 0;
};

// How many bytes of a program's there is room for.
constexpr size_t DataRoom(size_t room, size_t auth_key_bytes) {
  return room - kCmTrailerBytes - auth_key_bytes;
}

// Into `out` of `room` bytes (one of the above, with room for the key). Data that are too many are
// cut off.  Spec: fi_cm(3), Notes.
void EncodeCmData(const CmData& from, size_t room, uint8_t* out);
// What came: of a peer that knows nothing of this all `room` bytes are data. Trust: anything.
CmData DecodeCmData(const uint8_t* from, size_t room);

}  // namespace verbena::fi
