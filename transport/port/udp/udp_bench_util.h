// What benchmarks over UDP share: the two ends of a link, by sockets used by hand or by a port, and
// the round trip between them, which is what a NIC's is compared with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/types.h"
#include "transport/port/udp/open_udp_port.h"

namespace verbena::transport::bench {

// Not that of RoCEv2: a NIC may be up on the machine.
inline constexpr uint16_t kBenchPort = 14'791;
inline constexpr uint32_t kPacketsPerTurn = 32;
// BTH, RETH, 8 bytes, ICRC.
inline constexpr uint32_t kSmallBytes = 12 + 16 + 8 + 4;

int64_t NowNs();
void PinTo(int cpu);
double Median(std::vector<double> values);
// Ends the program with a sentence.
[[noreturn]] void Die(const std::string& text);

struct Where {
  Gid from = Gid::FromIpv4(0x7f4d0001);  // 127.77.0.1
  Gid to = Gid::FromIpv4(0x7f4d0002);
  // An open file of the network namespace where `from` is; -1: where we are.
  int from_network = -1;
};

// One end of a link of either kind.
class End {
 public:
  virtual ~End() = default;
  // Sends `count` packets.
  virtual void Send(uint32_t count) = 0;
  // How many packets came; 0: none now.
  virtual uint32_t Receive() = 0;
};

using MakeEnd =
    std::function<std::unique_ptr<End>(const Gid& own, const Gid& peer, uint32_t bytes)>;

struct Kind {
  std::string name;
  MakeEnd make;
};

// A socket; `batches`: with UDP_SEGMENT and UDP_GRO, else a system call for each packet.
Kind SocketKind(std::string name, bool batches);
// A socket; a packet is a message, and the acknowledgement of the last one goes with it in one
// batch.
Kind ExchangeKind(std::string name);
// A port, which computes and checks every ICRC.
Kind PortKind(std::string name, NetIo net_io);

// The ends of a link.
std::unique_ptr<End> MakeNear(const Kind& kind, const Where& where, uint32_t packet_bytes);
std::unique_ptr<End> MakeFar(const Kind& kind, const Where& where, uint32_t packet_bytes);

// CPU time of the calling thread.
int64_t CpuNs();

// One thread is both ends in turn, so nobody waits: `per_turn` packets at a time, and back if
// asked. CPU ns per packet.
double MeasureCpu(const Kind& kind, const Where& where, uint32_t packet_bytes, uint32_t per_turn,
                  bool back, int ms);

// Two threads that spin, a core each; median, µs. `packets` go each way, handed over one by one: 2
// is what a reliable service makes of a message, which is acknowledged before it is answered.
double MeasureRoundTrip(const Kind& kind, const Where& where, int ms, uint32_t packets = 1);

// A line of JSON for tools/bench; without a goal the figure is there for information.
void PrintFigure(const std::string& figure, double value, const char* unit,
                 const std::string& reference, double reference_value, std::optional<double> goal,
                 const char* sense = "<=");

}  // namespace verbena::transport::bench
