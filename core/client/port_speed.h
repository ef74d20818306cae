// How fast a port is, as its attributes say it.
#pragma once

#include <cstdint>

namespace verbena::client {

// Of one lane; 0: none that is known.  Spec: IBTA 14.2.5.6, LinkSpeedActive and its extensions.
inline uint64_t LaneSpeed100Mbps(uint32_t active_speed) {
  switch (active_speed) {
    case 1:
      return 25;  // SDR
    case 2:
      return 50;  // DDR
    case 4:
    case 8:
      return 100;  // QDR, FDR10
    case 16:
      return 140;  // FDR
    case 32:
      return 250;  // EDR
    case 64:
      return 500;  // HDR
    case 128:
      return 1000;  // NDR
    case 256:
      return 2000;  // XDR
    default:
      return 0;
  }
}

// As enum ibv_port's active_width says; 0: none that is known.  Spec: IBTA 14.2.5.6,
// LinkWidthActive.
inline uint64_t Lanes(uint32_t active_width) {
  switch (active_width) {
    case 1:
      return 1;
    case 2:
      return 4;
    case 4:
      return 8;
    case 8:
      return 12;
    case 16:
      return 2;
    default:
      return 0;
  }
}

inline uint64_t PortSpeed100Mbps(uint32_t active_speed, uint32_t active_width) {
  return LaneSpeed100Mbps(active_speed) * Lanes(active_width);
}

}  // namespace verbena::client
