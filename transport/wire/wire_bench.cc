// Cost of one packet on its way in and out: headers, ICRC, and solving for an identification.
#include <benchmark/benchmark.h>
#include <isa-l/crc.h>

#include <vector>

#include "core/base/check.h"
#include "transport/wire/crc32.h"
#include "transport/wire/icrc.h"
#include "transport/wire/packet.h"

namespace verbena::transport::wire {
namespace {

PacketAddress AddressOf(bool is_ipv4) {
  PacketAddress address;
  address.source = Gid::FromIpv4(0x0a00'0001);
  address.destination = Gid::FromIpv4(0x0a00'0002);
  if (!is_ipv4) address.source.raw[0] = address.destination.raw[0] = 0x20;
  return address;
}

struct Packet {
  explicit Packet(uint32_t payload_bytes) : payload(payload_bytes, std::byte{0x5a}) {
    pdu.opcode = Opcode::kWriteOnly;
    pdu.payload.bytes = payload.data();
    pdu.payload.length = payload_bytes;
    bytes.resize(kHeaderBytesMax);
    bytes.resize(EncodeHeaders(pdu, bytes.data()));
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    covered = static_cast<uint32_t>(bytes.size());
    bytes.resize(bytes.size() + kIcrcBytes);
  }
  uint32_t length() const { return static_cast<uint32_t>(bytes.size()); }
  void Finish(const PacketAddress& address, uint16_t ip_id) {
    StoreIcrc(ComputeIcrc(address, ip_id, bytes.data(), covered), bytes.data() + covered);
  }

  std::vector<std::byte> payload;
  std::vector<std::byte> bytes;
  uint32_t covered = 0;
  Pdu pdu;
};

void BM_Encode(benchmark::State& state) {
  Packet packet(4'096);
  std::byte out[kHeaderBytesMax];
  for (auto _ : state) {
    packet.pdu.psn = packet.pdu.psn.Next();
    benchmark::DoNotOptimize(EncodeHeaders(packet.pdu, out));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_Encode);

void BM_Decode(benchmark::State& state) {
  Packet packet(4'096);
  Pdu out;
  for (auto _ : state) {
    VERBENA_CHECK(Decode(packet.bytes.data(), packet.length(), &out) == DecodeError::kNone);
    benchmark::DoNotOptimize(out);
  }
}
BENCHMARK(BM_Decode);

void BM_ComputeIcrc(benchmark::State& state) {
  Packet packet(static_cast<uint32_t>(state.range(0)));
  PacketAddress address = AddressOf(true);
  for (auto _ : state) {
    benchmark::DoNotOptimize(ComputeIcrc(address, 0, packet.bytes.data(), packet.covered));
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_ComputeIcrc)->Arg(0)->Arg(64)->Arg(1'024)->Arg(4'096);

// Arguments: payload bytes; whether the identification has to be solved for.
void BM_VerifyIcrc(benchmark::State& state) {
  Packet packet(static_cast<uint32_t>(state.range(0)));
  PacketAddress address = AddressOf(true);
  packet.Finish(address, state.range(1) != 0 ? 0x1234 : 0);
  IcrcCheck expected = state.range(1) != 0 ? IcrcCheck::kSolved : IcrcCheck::kExact;
  for (auto _ : state) {
    uint16_t ip_id;
    VERBENA_CHECK(VerifyIcrc(address, 0, packet.bytes.data(), packet.length(), &ip_id) == expected);
    benchmark::DoNotOptimize(ip_id);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_VerifyIcrc)->Args({0, 0})->Args({0, 1})->Args({4'096, 0})->Args({4'096, 1});

template <uint32_t (*update)(uint32_t, const std::byte*, size_t)>
void BM_Crc32(benchmark::State& state) {
  Packet packet(static_cast<uint32_t>(state.range(0)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(update(kCrc32Start, packet.payload.data(), packet.payload.size()));
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
uint32_t UpdateByIsal(uint32_t crc, const std::byte* bytes, size_t length) {
  return ~crc32_gzip_refl(~crc, reinterpret_cast<const uint8_t*>(bytes), length);
}
BENCHMARK(BM_Crc32<UpdateCrc32>)->Arg(1'024)->Arg(4'096);
BENCHMARK(BM_Crc32<UpdateCrc32Portable>)->Arg(1'024)->Arg(4'096);
BENCHMARK(BM_Crc32<UpdateByIsal>)->Arg(1'024)->Arg(4'096);

}  // namespace
}  // namespace verbena::transport::wire

BENCHMARK_MAIN();
