// What the ports cost, against sockets used by hand in the same run: bandwidth at payloads 4096 and
// 1024, and the round trip of 8 bytes, both ends spinning.
//
//   udp_port_bench [--rounds N] [--ms N] [--from ADDRESS[@NAMESPACE] --to ADDRESS]
//
// "single": a system call for each packet at both ends; "bare": UDP_SEGMENT and UDP_GRO, no ICRC.
// The ports compute and check every ICRC. Two threads, a core each: bandwidth and round trip.
// Credits keep what is under way below the receive buffer, so nothing is lost. Rounds of all kinds
// alternate, and the best of each counts: foreign load only ever slows one down. One thread for
// both ends: CPU time per packet and per round trip, sound on a busy machine too. Prints a table,
// and a line of JSON for each figure.
//
// NAMESPACE is a network namespace's file, /proc/PID/ns/net, in which the sender's sockets are: so
// it measures over a veth (whose MTU must hold the packets: 9000), while all threads stay here.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transport/port/udp/open_udp_port.h"
#include "transport/port/udp/udp_bench_util.h"
#include "transport/wire/packet.h"

namespace {

using namespace verbena;
using namespace verbena::transport;
using namespace verbena::transport::bench;

constexpr uint64_t kWindowBytes = 1 << 20;

// Two threads; GB/s of payload.
double MeasureBandwidth(const Kind& kind, const Where& where, uint32_t payload_bytes, int ms) {
  const uint32_t packet_bytes = wire::kBthBytes + payload_bytes + wire::kIcrcBytes;
  auto sender = MakeNear(kind, where, packet_bytes);
  auto receiver = MakeFar(kind, where, packet_bytes);
  const uint64_t window = kWindowBytes / packet_bytes;
  alignas(64) std::atomic<uint64_t> received{0};
  alignas(64) std::atomic<bool> stop{false};
  std::thread other([&] {
    PinTo(1);
    while (!stop.load(std::memory_order_relaxed)) {
      const uint32_t count = receiver->Receive();
      // The sender alone reads it, to know how far it may go.
      received.store(received.load(std::memory_order_relaxed) + count, std::memory_order_release);
    }
  });
  PinTo(0);
  uint64_t sent = 0;
  const int64_t begin_ns = NowNs();
  const int64_t end_ns = begin_ns + int64_t{ms} * 1'000'000;
  while (NowNs() < end_ns) {
    for (int turn = 0; turn < 16; ++turn) {
      while (sent + kPacketsPerTurn - received.load(std::memory_order_acquire) > window) {
        if (NowNs() > end_ns + 5'000'000'000) Die(kind.name + ": packets were lost");
      }
      sender->Send(kPacketsPerTurn);
      sent += kPacketsPerTurn;
    }
  }
  const auto elapsed_ns = static_cast<double>(NowNs() - begin_ns);
  const uint64_t done = received.load();
  stop = true;
  other.join();
  return static_cast<double>(done * payload_bytes) / elapsed_ns;
}

// CPU ns of a Receive that finds nothing, which every turn of an idle NIC pays.
double MeasureEmptyReceive(const Kind& kind, const Where& where, int ms) {
  auto end = MakeFar(kind, where, kSmallBytes);
  uint64_t calls = 0;
  const int64_t begin_ns = CpuNs();
  int64_t now_ns = begin_ns;
  for (; now_ns < begin_ns + int64_t{ms} * 1'000'000; now_ns = CpuNs()) {
    for (int i = 0; i < 1000; ++i) end->Receive();
    calls += 1000;
  }
  return static_cast<double>(now_ns - begin_ns) / static_cast<double>(calls);
}

Gid ParseGid(const std::string& text) {
  uint32_t v4 = 0;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return Gid::FromIpv4(ntohl(v4));
  Gid gid;
  if (inet_pton(AF_INET6, text.c_str(), gid.raw.data()) != 1) Die("no address: " + text);
  return gid;
}

// ADDRESS[@NAMESPACE]
void ParseFrom(const std::string& text, Where* where) {
  const size_t at = text.find('@');
  where->from = ParseGid(text.substr(0, at));
  if (at == std::string::npos) return;
  where->from_network = open(text.c_str() + at + 1, O_RDONLY | O_CLOEXEC);
  if (where->from_network < 0) Die(text.substr(at + 1) + ": " + strerror(errno));
}

}  // namespace

int main(int argc, char** argv) {
  Where where;
  int rounds = 5, ms = 300;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--rounds") rounds = std::max(1, atoi(argv[i + 1]));
    if (option == "--ms") ms = std::max(1, atoi(argv[i + 1]));
    if (option == "--from") ParseFrom(argv[i + 1], &where);
    if (option == "--to") where.to = ParseGid(argv[i + 1]);
  }
  std::vector<Kind> kinds = {SocketKind("single", false), SocketKind("bare", true),
                             PortKind("epoll port", NetIo::kEpoll)};
  UdpPortError error;
  if (OpenUdpPort({.addresses = {{where.to}}, .port = kBenchPort}, NetIo::kUring, &error)) {
    kinds.push_back(PortKind("io_uring port", NetIo::kUring));
  } else {
    printf("no io_uring port: %s\n", error.text.c_str());
  }

  auto best = [](const std::vector<double>& values, bool most) {
    return most ? *std::max_element(values.begin(), values.end())
                : *std::min_element(values.begin(), values.end());
  };
  auto measure = [&](const std::function<double(const Kind&)>& one, bool most) {
    std::map<std::string, std::vector<double>> all;
    for (int round = 0; round < rounds; ++round) {
      for (const Kind& kind : kinds) all[kind.name].push_back(one(kind));
    }
    std::map<std::string, double> out;
    for (const auto& [name, values] : all) out[name] = best(values, most);
    return out;
  };
  auto print = [&](const std::string& what, const char* unit,
                   std::map<std::string, double> values) {
    for (const Kind& kind : kinds) {
      const double value = values[kind.name];
      printf("%-34s %-14s %9.3f %-6s %6.2f %8.2f\n", what.c_str(), kind.name.c_str(), value, unit,
             value / values["bare"], value / values["single"]);
    }
  };
  printf("%-34s %-14s %9s %-6s %6s %8s\n", "", "kind", "", "", "/ bare", "/ single");
  for (uint32_t payload : {4096u, 1024u}) {
    const std::string size = std::to_string(payload) + " B";
    auto rates =
        measure([&](const Kind& kind) { return MeasureBandwidth(kind, where, payload, ms); }, true);
    print("bandwidth, " + size + ", two threads", "GB/s", rates);
    const uint32_t packet_bytes = wire::kBthBytes + payload + wire::kIcrcBytes;
    auto costs = measure(
        [&](const Kind& kind) {
          return MeasureCpu(kind, where, packet_bytes, kPacketsPerTurn, false, ms);
        },
        false);
    print("CPU per packet, " + size + ", both ends", "ns", costs);
    for (size_t i = 2; i < kinds.size(); ++i) {
      const std::string what = kinds[i].name + ", " + size;
      const double rate = rates[kinds[i].name];
      PrintFigure(what, rate, "GB/s", "bare UDP_SEGMENT/UDP_GRO", rates["bare"], 0.5, ">=");
      PrintFigure(what, rate, "GB/s", "a call per packet", rates["single"], 2, ">=");
      const double cost = costs[kinds[i].name];
      PrintFigure(what + ", CPU per packet", cost, "ns", "bare UDP_SEGMENT/UDP_GRO", costs["bare"],
                  std::nullopt, "<=");
      PrintFigure(what + ", CPU per packet", cost, "ns", "a call per packet", costs["single"], 0.5,
                  "<=");
    }
  }
  auto trips = measure([&](const Kind& kind) { return MeasureRoundTrip(kind, where, ms); }, false);
  print("round trip, 8 B, two threads", "us", trips);
  auto small = measure(
      [&](const Kind& kind) { return MeasureCpu(kind, where, kSmallBytes, 1, true, ms) / 1000; },
      false);
  print("CPU of a round trip, 8 B", "us", small);
  print("CPU of a Receive of nothing", "ns",
        measure([&](const Kind& kind) { return MeasureEmptyReceive(kind, where, ms); }, false));
  for (size_t i = 2; i < kinds.size(); ++i) {
    PrintFigure(kinds[i].name + ", 8 B round trip", trips[kinds[i].name], "us",
                "UDP ping-pong, spinning", trips["single"], 1.5, "<=");
    PrintFigure(kinds[i].name + ", CPU of an 8 B round trip", small[kinds[i].name], "us",
                "UDP ping-pong, spinning", small["single"], 1.5, "<=");
  }
  return 0;
}
