// How much this NIC has under way to one address, over all its RC QPs: a receiving socket has one
// buffer for all of them, and what does not fit is lost.
#pragma once

#include <cstdint>
#include <deque>

#include "core/base/types.h"

namespace verbena::softnic {

struct WirePeer {
  uint64_t bytes = 0;  // unacknowledged requests, and READ responses asked for
  uint32_t users = 0;  // QPs connected to it
};

// One QP's part of it.
struct WireShare {
  WirePeer* peer = nullptr;  // nullptr: its peer is in the instance, or it has none
  uint64_t bytes = 0;
  uint64_t unasked_bytes = 0;  // sent since it last asked for an acknowledgement
  uint32_t psns = 0;           // that the bytes stand for
  bool is_waiting = false;

  void Add(uint64_t more) {
    bytes += more;
    unasked_bytes += more;
    peer->bytes += more;
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
