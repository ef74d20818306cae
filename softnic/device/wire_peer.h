// How much this NIC has under way to one address, over all its RC QPs: a receiving socket has one
// buffer for all of them, and what does not fit is lost (docs/adr/0012).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/types.h"

namespace verbena::softnic {

struct WirePeer {
  // What any receiving socket holds: 416 KB, overhead of packets included, where nobody raised
  // net.core.rmem_max. More than the most brings nothing.
  static constexpr uint64_t kRoomBytesMin = 320 * 1024;
  static constexpr uint64_t kRoomBytesMax = 1280 * 1024;
  // A packet takes up more of it than its payload.
  static constexpr uint64_t kPacketOverheadBytes = 1024;

  // Its socket is taken to be like ours. A quarter of that: others may send to it, too.
  static uint64_t RoomBytes(uint64_t our_receive_buffer_bytes) {
    return std::clamp(our_receive_buffer_bytes / 4, kRoomBytesMin, kRoomBytesMax);
  }

  uint64_t bytes = 0;  // unacknowledged requests, and READ responses asked for
  uint64_t room_bytes = kRoomBytesMin;
  uint32_t users = 0;  // QPs connected to it
};

// One QP's part of it.
struct WireShare {
  WirePeer* peer = nullptr;  // nullptr: its peer is in the instance, or it has none
  uint64_t bytes = 0;
  uint64_t unasked_bytes = 0;  // sent since it last asked for an acknowledgement
  uint64_t losses = 0;         // as its QP had counted them when last looked at
  uint32_t psns = 0;           // that the bytes stand for
  bool is_waiting = false;

  void Add(uint64_t more) {
    bytes += more;
    unasked_bytes += more;
    peer->bytes += more;
  }
  // Where something was lost, the socket holds less than ours, most likely.
  void CountLosses(uint64_t losses_so_far) {
    if (losses_so_far != losses) peer->room_bytes = WirePeer::kRoomBytesMin;
    losses = losses_so_far;
  }
  // Of what was sent, `psns_left` are unacknowledged still; bytes go in proportion. A packet that
  // goes out again, and once more, may have bytes and stand for no PSN.
  void Update(uint32_t psns_left) {
    if (psns_left < psns || psns_left == 0) {
      uint64_t left = psns_left == 0 ? 0 : bytes * psns_left / psns;
      peer->bytes -= bytes - left;
      bytes = left;
    }
    psns = psns_left;
  }
};

}  // namespace verbena::softnic
