// Cost of the RC roles alone: requester, responder and completer for one small operation over
// whole-message PDUs, with hosts that cost next to nothing and placements done on the spot.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>

#include "core/base/check.h"
#include "transport/rc/rc_qp.h"

namespace verbena::transport::rc {
namespace {

constexpr uint32_t kKey = 0x100;

// An endless queue of one WQE, and one region that is all of memory.
class BenchHost final : public QpHost {
 public:
  FetchResult FetchSend(SendWork& out) override {
    if (sends_left == 0) return FetchResult::kEmpty;
    --sends_left;
    out.wqe = send.wqe;
    out.sge[0] = send.sge[0];
    return FetchResult::kOk;
  }
  FetchResult FetchRecv(RecvWork& out) override {
    out.wr_id = 1;
    out.num_sge = 1;
    out.sge[0] = {reinterpret_cast<uint64_t>(buffer), sizeof(buffer), kKey};
    return FetchResult::kOk;
  }
  void ReleaseSend(uint32_t wqes) override { released += wqes; }
  void ReleaseRecv(uint32_t wqes) override { released += wqes; }
  KeyFault ResolveLocal(const shm::Sge* sge, uint32_t num_sge, uint32_t, DmaSegment* out,
                        uint16_t* out_count) override {
    for (uint32_t i = 0; i < num_sge; ++i) out[i] = {1, sge[i].length, sge[i].addr};
    *out_count = static_cast<uint16_t>(num_sge);
    return KeyFault::kNone;
  }
  KeyFault ResolveRemote(RKey, uint64_t addr, uint64_t length, uint32_t, DmaSegment* out) override {
    *out = {1, static_cast<uint32_t>(length), addr};
    return KeyFault::kNone;
  }
  KeyFault Invalidate(RKey) override { return KeyFault::kNone; }
  bool ResolveAh(uint32_t, Path*) override { return false; }
  bool ResolveGid(GidIndex, Gid* out) override {
    *out = Gid::FromIpv4(0x7f00'0001);
    return true;
  }

  SendWork send = {};
  uint32_t sends_left = 0;
  uint64_t released = 0;
  alignas(64) std::byte buffer[64] = {};
};

struct Bench {
  Bench() {
    for (int i : {0, 1}) {
      QpConfig config;
      config.qpn = Qpn(0x11u + static_cast<uint32_t>(i));
      config.max_rd_atomic = config.max_dest_rd_atomic = 16;
      config.max_pdu_bytes = 1u << 20;
      qps[i] = std::make_unique<RcQp>(config, &hosts[i]);
    }
    namespace m = shm::qp_mask;
    for (int i : {0, 1}) {
      shm::QpAttr attr = {};
      attr.port_num = 1;
      attr.qp_access_flags = access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
      attr.path_mtu = 5;
      attr.dest_qp_num = 0x12u - static_cast<uint32_t>(i);
      attr.timeout = 14;
      attr.retry_cnt = attr.rnr_retry = 7;
      attr.max_rd_atomic = attr.max_dest_rd_atomic = 16;
      attr.ah_attr.is_global = 1;
      attr.ah_attr.port_num = 1;
      attr.ah_attr.dgid[15] = 1;
      attr.qp_state = static_cast<uint32_t>(QpState::kInit);
      Modify(i, attr, m::kState | m::kPkeyIndex | m::kPort | m::kAccessFlags);
      attr.qp_state = static_cast<uint32_t>(QpState::kRtr);
      Modify(i, attr,
             m::kState | m::kAv | m::kPathMtu | m::kDestQpn | m::kRqPsn | m::kMaxDestRdAtomic |
                 m::kMinRnrTimer);
      attr.qp_state = static_cast<uint32_t>(QpState::kRts);
      Modify(i, attr,
             m::kState | m::kTimeout | m::kRetryCnt | m::kRnrRetry | m::kSqPsn | m::kMaxQpRdAtomic);
    }
    SendWork& work = hosts[0].send;
    work.wqe.flags = shm::kSendSignaled;
    work.wqe.num_sge = 1;
    work.wqe.remote_addr = reinterpret_cast<uint64_t>(hosts[1].buffer);
    work.wqe.rkey = kKey;
    work.sge[0] = {reinterpret_cast<uint64_t>(hosts[0].buffer), 8, kKey};
  }

  void Modify(int i, const shm::QpAttr& attr, uint32_t mask) {
    VERBENA_CHECK(qps[i]->Modify(now, attr, mask).error == 0);
  }

  void Place(int i) {
    DmaRequest request;
    while (qps[i]->PollDma(request)) {
      DmaResult result;
      result.token = request.token;
      auto* to = reinterpret_cast<uint64_t*>(request.destination[0].addr);
      if (request.kind == DmaRequest::Kind::kCopy) {
        const void* from = request.source.bytes;
        if (from == nullptr) from = reinterpret_cast<void*>(request.source.segments[0].addr);
        std::memcpy(to, from, 8);
      } else {
        result.atomic_original = *to;
        *to += request.swap_or_add;
      }
      qps[i]->OnDmaDone(now, result);
    }
  }

  // Posts `ops` WQEs at once and drives both ends until all are complete.
  uint32_t RunBatch(uint32_t ops) {
    uint32_t completed = 0;
    now.ns += 300;
    hosts[0].sends_left = ops;
    qps[0]->OnDoorbell(now);
    Pdu request, response;
    while (qps[0]->PollRequest(now, request)) {
      qps[1]->OnPdu(now, request);
      Place(1);
      while (qps[1]->PollResponse(now, response)) {
        qps[0]->OnPdu(now, response);
        Place(0);
      }
      completed += Completions(0);
      Completions(1);
    }
    return completed;
  }

  uint32_t Completions(int i) {
    uint32_t n = 0;
    while (qps[i]->PollCompletion(completion)) ++n;
    EventType event;
    while (qps[i]->PollEvent(event)) ++n;
    return n;
  }

  Instant now{1};
  BenchHost hosts[2];
  std::unique_ptr<RcQp> qps[2];
  Completion completion{};
};

void RunOperation(benchmark::State& state, shm::WrOpcode opcode, uint8_t flags) {
  Bench bench;
  bench.hosts[0].send.wqe.opcode = static_cast<uint8_t>(opcode);
  bench.hosts[0].send.wqe.flags |= flags;
  if ((flags & shm::kSendInline) != 0) {
    bench.hosts[0].send.wqe.num_sge = 0;
    bench.hosts[0].send.wqe.inline_bytes = 8;
  }
  const auto ops = static_cast<uint32_t>(state.range(0));
  for (auto _ : state) {
    if (bench.RunBatch(ops) != ops) {
      state.SkipWithError("not every WQE completed");
      break;
    }
  }
  state.SetItemsProcessed(state.iterations() * ops);
}

void BM_Write(benchmark::State& state) { RunOperation(state, shm::WrOpcode::kRdmaWrite, 0); }
void BM_WriteInline(benchmark::State& state) {
  RunOperation(state, shm::WrOpcode::kRdmaWrite, shm::kSendInline);
}
void BM_Send(benchmark::State& state) { RunOperation(state, shm::WrOpcode::kSend, 0); }
void BM_Read(benchmark::State& state) { RunOperation(state, shm::WrOpcode::kRdmaRead, 0); }
void BM_FetchAdd(benchmark::State& state) {
  RunOperation(state, shm::WrOpcode::kAtomicFetchAndAdd, 0);
}

// How fast the machine is just now.
void BM_MultiplyChain(benchmark::State& state) {
  uint64_t x = 3;
  for (auto _ : state) {
    for (int i = 0; i < 256; ++i) {
      x *= 0x9e37'79b9'7f4a'7c15ull;
      benchmark::DoNotOptimize(x);
    }
  }
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(BM_MultiplyChain);
BENCHMARK(BM_Write)->Arg(1)->Arg(32);
BENCHMARK(BM_WriteInline)->Arg(1);
BENCHMARK(BM_Send)->Arg(1)->Arg(32);
BENCHMARK(BM_Read)->Arg(1);
BENCHMARK(BM_FetchAdd)->Arg(1);

}  // namespace
}  // namespace verbena::transport::rc

BENCHMARK_MAIN();
