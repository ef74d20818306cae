// QP1 of a NIC, the general services interface: MADs of connection management between two NICs.
//
// It belongs to the instance and to no client: its number is none that a QP gets, and what clients
// send to it within the instance reaches nobody.   Spec: IBTA 3.5.10, 13.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "core/base/psn.h"
#include "core/base/types.h"
#include "transport/wire/address.h"
#include "transport/wire/packet.h"

namespace verbena::softnic {

inline constexpr QKey kGsiQkey{0x8001'0000};  // well known, IBTA 10.2.5
inline constexpr uint32_t kMadBytes = 256;    // IBTA 13.4.2

// A MAD for QP1 of NIC `nic`, from QP1 of `remote` to the NIC's address `local`; `bytes` are good
// during the call alone, in which the device must not be called. The sender may be anybody, and a
// MAD may come twice or late.
using MadHandler = std::function<void(uint32_t nic, const Gid& local, const Gid& remote,
                                      const std::byte* bytes, size_t length)>;

// Packets with MADs on their way to the network.
struct GsiQueue {
  // A burst of requests, as a thousand connections at once are; what is more is lost, and sent
  // again by whoever awaits the answer.
  static constexpr size_t kPacketsMax = 2048;

  struct Packet {
    transport::wire::PacketAddress address;
    uint32_t length = 0;
    std::array<std::byte, transport::wire::kHeaderBytesMax + kMadBytes> bytes;
  };

  std::deque<Packet> packets;  // while the port has no room
  Psn next_psn;
};

}  // namespace verbena::softnic
