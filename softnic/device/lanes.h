// What connection management and the device say to each other about lanes (core/shm/rdm.h).
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "core/base/psn.h"
#include "core/base/types.h"
#include "core/shm/cm.h"
#include "core/shm/rdm.h"

namespace verbena::softnic {

using PlaceToken = std::array<uint8_t, shm::kPlaceTokenBytes>;
using LaneId = uint64_t;  // never reused within a daemon's life; 0 is none

// A peer wants a lane to a place.
struct LaneRequest {
  PlaceToken token{};
  uint32_t nic = 0;
  Gid local{}, remote{};
  shm::CmAddress source{};  // whose lane it is; with its port
  Qpn remote_qpn{};
  Psn first_psn{};       // of its first request
  uint8_t path_mtu = 0;  // enum ibv_mtu
  uint8_t traffic_class = 0, hop_limit = 0;
  uint32_t flow_label = 0;
  uint8_t reads_max = 0;  // that the peer may have outstanding
};
// A QP of an endpoint that is to send by a lane which its peer has made.
struct LaneSender {
  PlaceToken token{};  // of the endpoint's own place, whose session has the QP
  uint32_t nic = 0;
  Qpn qpn{};
  shm::CmQpAttr rtr{}, rts{};  // as a program would set it
};
struct LaneAnswer {
  shm::RdmRejectReason reason = shm::RdmRejectReason::kNone;  // kNone: there it is
  LaneId lane = 0;
  Qpn qpn{};
};
// The device has ended a lane by itself.
using LaneEndHandler = std::function<void(LaneId lane)>;

}  // namespace verbena::softnic
