// The round trip of an 8-byte RC WRITE between two whole NICs that spin, against a UDP ping-pong by
// hand in the same run.
//
//   nic_round_trip [--rounds N] [--ms N] [--only NAME]
//
// --only: the ping-pongs, and what has NAME in its name ("epoll NIC"); no figures. For a quick
// look, or a profile.
//
// perftest can't measure it on two cores: two daemons and two clients that spin are four threads.
// Here a thread is a host: a device on a UDP port, turned as the daemon turns it, and its client,
// which posts to a ring, waits for the peer's WRITE to arrive in its memory, and answers. Memory is
// copied by memcpy. So it has all that a NIC does for a message, and not what lies between
// processes: process_vm_* and cache lines that cross cores.
//
// "acknowledged": the ping-pong with two packets each way, as an RC message is acknowledged before
// its client can answer it; the least that sockets take for what the NICs send.
//
// "in one batch": message and acknowledgement by one system call, as a NIC sends them whose client
// answers at once. No NIC on UDP sockets can take less.
//
// "CPU": the work in a round trip, without the waiting: one thread turns both hosts, and each only
// when something has come for it, so that nothing spins; the sockets likewise. In total, and not
// by user and system: a kernel that accounts by ticks, as Debian's does, guesses that split.
//
// Rounds of all kinds alternate; medians. Prints a table, and a line of JSON for each figure.

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/clock/monotonic_clock.h"
#include "softnic/device/test_world.h"
#include "tests/simulation/dma.h"
#include "transport/port/udp/open_udp_port.h"
#include "transport/port/udp/udp_bench_util.h"

namespace {

using namespace verbena;
using namespace verbena::softnic;
using namespace verbena::softnic::testing;
using namespace verbena::transport;
using namespace verbena::transport::bench;

// Of a round trip. A packet lost is sent again after half a second.
constexpr int64_t kPatienceNs = 5'000'000'000;
// More than the send queue holds, so that a retransmission finds the bytes of its first sending.
constexpr size_t kOutboxWords = 64;
constexpr uint32_t kHostNumber = 0x4d0000;  // TestWorld's addresses: 127.77.0.1 and on

// The simulation's engine, which copies at once, for a TestWorld: as a NIC that maps its client's
// memory.
class MemcpyDma final : public SteppedDma {
 public:
  int AddRegion(SessionId session, const RegionSpec& spec, MemoryId* out) override {
    return dma_.AddRegion(session, spec, out);
  }
  int CopyRegion(MemoryId region, MemoryId* out) override { return dma_.CopyRegion(region, out); }
  void RemoveRegion(MemoryId region) override { dma_.RemoveRegion(region); }
  const char* BackendName(MemoryId region) const override { return dma_.BackendName(region); }
  void Submit(uint64_t stream, uint64_t cookie, const DmaRequest& request) override {
    dma_.Submit(stream, cookie, request);
  }
  bool MoveNow(const Payload& source, const DmaSegment* destination,
               uint32_t destination_count) override {
    return dma_.MoveNow(source, destination, destination_count);
  }
  bool ReadNow(const Payload& source, std::byte* to) override { return dma_.ReadNow(source, to); }
  void Fence(SessionId session, uint64_t cookie) override { dma_.Fence(session, cookie); }
  bool Step(DeviceCore& device, Instant now) override { return dma_.Step(device, now); }

 private:
  simulation::SimDma dma_{/*seed=*/0, {.delay_max = {}, .moves_now = true}};
};

// A machine with one NIC and one client, in one thread. Which thread, may change.
class Host {
 public:
  Host(uint32_t number, NetIo net_io)
      : address_(TestWorld::GidOf(kHostNumber + number)), world_(0, {}, MakeTransport, &dma_) {
    UdpPortError error;
    port_ = OpenUdpPort({.addresses = {{address_}}}, net_io, &error);
    if (port_ == nullptr) Die(error.text);
    ReadClock();
    world_.device->AddNic(TestWorld::ConfigOf(kHostNumber + number));
    world_.device->AttachPort(0, port_.get());
    client_ = &world_.AddClient(0);
    mr_ = client_->MustRegMr(&memory_, sizeof memory_, access::kLocalWrite | access::kRemoteWrite);
    cq_ = client_->MustCreateCq();
    qp_ = client_->MustCreateQp(Service::kRc, cq_);
  }
  ~Host() {
    world_.device->AttachPort(0, nullptr);
    port_.reset();  // it may have what the device lent it
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  void Connect(const Host& peer) {
    VERBENA_CHECK(client_->ToInit(qp_, Service::kRc) == 0);
    VERBENA_CHECK(client_->ToRtr(qp_, Service::kRc, peer.address_, peer.qp_.qpn) == 0);
    namespace mask = shm::qp_mask;
    shm::QpAttr attr{};
    attr.qp_state = static_cast<uint32_t>(QpState::kRts);
    attr.sq_psn = 0x123456;  // what ToRtr expects
    // A peer whose core is taken from it is no reason to send again, or to give up.
    attr.timeout = 17;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 4;
    VERBENA_CHECK(client_->Modify(qp_, attr,
                                  mask::kState | mask::kSqPsn | mask::kTimeout | mask::kRetryCnt |
                                      mask::kRnrRetry | mask::kMaxQpRdAtomic) == 0);
    write_ = MakeWqe(shm::WrOpcode::kRdmaWrite, 0);
    write_.remote_addr = reinterpret_cast<uint64_t>(&peer.memory_.inbox);
    write_.rkey = peer.mr_.rkey;
    write_.num_sge = 1;
  }

  // Posts the next WRITE, of the number it has, and rings. From memory, not inline: as perftest
  // does with a device it does not know.
  void Write() {
    uint64_t& word = memory_.outbox[++posted_ % kOutboxWords];
    word = posted_;
    auto* entry = static_cast<std::byte*>(qp_.sq.Reserve());
    if (entry == nullptr) Die("the send queue is full");
    write_.wr_id = posted_;
    const shm::Sge sge = SgeOf(&word, sizeof word, mr_.lkey);
    std::memcpy(shm::PlaceSendBody(&write_, sizeof sge, entry + sizeof write_), &sge, sizeof sge);
    std::memcpy(entry, &write_, sizeof write_);
    qp_.sq.Publish();
    world_.device->OnDoorbell(world_.now, client_->id, qp_.reply.sq.doorbell);
    has_rung_ = true;
  }

  // Whether the peer's next WRITE has come.
  bool HasArrived() {
    const uint64_t word = std::atomic_ref(memory_.inbox).load(std::memory_order_relaxed);
    if (word == arrived_) return false;
    if (word != ++arrived_) Die("memory holds what no WRITE put there");
    return true;
  }

  // Takes what completed.
  void Poll() {
    while (std::optional<Wc> wc = client_->Poll(cq_)) {
      if (wc->status != WcStatus::kSuccess || wc->wr_id != ++completed_) {
        Die("WRITE " + std::to_string(wc->wr_id) + " of " + std::to_string(posted_) +
            " ended with status " + std::to_string(static_cast<int>(wc->status)));
      }
    }
  }
  uint64_t posted() const { return posted_; }
  uint64_t completed() const { return completed_; }
  uint64_t arrived() const { return arrived_; }

  // A turn of the shard (softnic/engine/shard.cc), in its order; the one reading of the clock. As
  // there, what was just posted goes out before a look at the network.
  void Turn() {
    ReadClock();
    const Instant now = world_.now;
    DeviceCore& device = *world_.device;
    bool worked = std::exchange(has_rung_, false);
    if (!worked) worked = device.PollPorts(now, kPacketsPerTurn);
    const Instant due = device.PollTimeout();
    if (!due.IsNever() && due <= now) {
      device.OnTimeout(now);
      worked = true;
    }
    bool is_busy = device.Run(now, kPdusPerTurn);
    bool has_moved = false;
    while (dma_.Step(device, now)) has_moved = true;
    if (has_moved) is_busy = device.Run(now, kPdusPerTurn);
    is_busy |= device.FlushPorts(now);
    if (!worked && !has_moved && !is_busy) __builtin_ia32_pause();
  }
  int64_t now_ns() const { return world_.now.ns; }

 private:
  // The shard's.
  static constexpr uint32_t kPdusPerTurn = 64;
  static constexpr uint32_t kPacketsPerTurn = 64;

  void ReadClock() { world_.now = ReadMonotonicClock(); }

  struct Memory {
    alignas(64) uint64_t inbox = 0;
    alignas(64) std::array<uint64_t, kOutboxWords> outbox{};
  };

  const Gid address_;
  Memory memory_;
  std::unique_ptr<UdpPort> port_;
  MemcpyDma dma_;
  TestWorld world_;
  TestClient* client_ = nullptr;
  TestMr mr_;
  TestCq cq_;
  TestQp qp_;
  shm::SendWqe write_{};
  uint64_t posted_ = 0, completed_ = 0, arrived_ = 0;
  bool has_rung_ = false;
};

// Median, µs.
double MeasureNics(NetIo net_io, int ms) {
  alignas(64) std::atomic<uint64_t> far_completed{0};
  alignas(64) std::atomic<bool> stop{false};
  alignas(64) std::barrier both(2);
  struct alignas(64) Place : std::optional<Host> {};
  Place hosts[2];
  // Each thread makes its own: two machines share no cache line either.
  std::thread other([&] {
    PinTo(1);
    Host& far = hosts[1].emplace(1, net_io);
    both.arrive_and_wait();
    far.Connect(*hosts[0]);
    both.arrive_and_wait();
    while (!stop.load(std::memory_order_relaxed)) {
      far.Turn();
      if (far.HasArrived()) far.Write();
      far.Poll();
      far_completed.store(far.completed(), std::memory_order_relaxed);
    }
  });
  PinTo(0);
  Host& near = hosts[0].emplace(0, net_io);
  both.arrive_and_wait();
  near.Connect(*hosts[1]);
  both.arrive_and_wait();
  Host& far = *hosts[1];
  std::vector<double> trips;
  const int64_t end_ns = NowNs() + int64_t{ms} * 1'000'000;
  for (int64_t begin_ns = NowNs(); begin_ns < end_ns;) {
    near.Write();
    for (bool has_arrived = false; !has_arrived; has_arrived = near.HasArrived()) {
      near.Turn();
      if (near.now_ns() > begin_ns + kPatienceNs) Die("no answer");
    }
    const int64_t now_ns = NowNs();
    trips.push_back(static_cast<double>(now_ns - begin_ns) / 1000);
    begin_ns = now_ns;
    near.Poll();
  }
  // Both go on until both have what they wait for: an acknowledgement may be lost.
  const uint64_t count = trips.size();
  while (near.completed() < count || far_completed.load(std::memory_order_relaxed) < count) {
    near.Turn();
    near.Poll();
    if (near.now_ns() > end_ns + 2 * kPatienceNs) Die("no completion");
  }
  stop = true;
  other.join();
  for (uint64_t seen : {near.posted(), near.arrived(), near.completed(), far.posted(),
                        far.arrived(), far.completed()}) {
    if (seen != count) Die("as many WRITEs and completions as round trips were expected");
  }
  return Median(trips);
}

// Turns the host until the peer's WRITE has come, which one turn should do. If it does not, `peer`
// may have something left to send.
void AwaitArrival(Host* host, Host* peer) {
  for (const int64_t end_ns = peer->now_ns() + kPatienceNs;; peer->Turn()) {
    host->Turn();
    if (host->HasArrived()) return;
    if (host->now_ns() > end_ns) Die("no answer");
  }
}

// One thread is both hosts; CPU, µs.
double MeasureNicsCpu(NetIo net_io, int ms) {
  PinTo(0);
  Host near(0, net_io), far(1, net_io);
  near.Connect(far);
  far.Connect(near);
  uint64_t count = 0;
  const int64_t begin_ns = CpuNs();
  int64_t now_ns = begin_ns;
  while (now_ns < begin_ns + int64_t{ms} * 1'000'000) {
    for (int i = 0; i < 16; ++i) {
      near.Write();
      near.Turn();
      AwaitArrival(&far, &near);
      far.Write();
      far.Poll();
      far.Turn();
      AwaitArrival(&near, &far);
      near.Poll();
      ++count;
    }
    now_ns = CpuNs();
  }
  for (const int64_t end_ns = NowNs() + kPatienceNs;
       near.completed() < count || far.completed() < count;) {
    for (Host* host : {&near, &far}) {
      host->Turn();
      host->Poll();
    }
    if (near.now_ns() > end_ns) Die("no completion");
  }
  return static_cast<double>(now_ns - begin_ns) / static_cast<double>(count) / 1000;
}

using Values = std::vector<double>;

struct Row {
  std::string name;
  std::function<double()> trip, cpu;  // µs
  Values trips{}, cpus{};
};

constexpr size_t kPingPong = 0, kAcknowledged = 1, kFirstPort = 3;

void PrintTable(const std::string& title, const std::vector<Row>& rows, Values Row::*values) {
  const double plain = Median(rows[kPingPong].*values);
  const double acknowledged = Median(rows[kAcknowledged].*values);
  printf("%-34s %9s %12s %15s\n", title.c_str(), "us", "/ ping-pong", "/ acknowledged");
  for (const Row& row : rows) {
    const double median = Median(row.*values);
    printf("%-34s %9.3f %12.2f %15.2f\n", row.name.c_str(), median, median / plain,
           median / acknowledged);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 5, ms = 300;
  std::string only;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--rounds") rounds = std::max(1, atoi(argv[i + 1]));
    if (option == "--ms") ms = std::max(1, atoi(argv[i + 1]));
    if (option == "--only") only = argv[i + 1];
  }
  const Where where;
  auto link = [&](const Kind& kind, uint32_t packets) -> Row {
    return {
        kind.name + (packets == 1 ? "" : ", acknowledged"),
        [=] { return MeasureRoundTrip(kind, where, ms, packets); },
        [=] { return packets * MeasureCpu(kind, where, kSmallBytes, packets, true, ms) / 1000; }};
  };
  const Kind sockets = SocketKind("UDP ping-pong", false);
  std::vector<Row> rows = {link(sockets, 1), link(sockets, 2),
                           link(ExchangeKind("the same, in one batch"), 1)};
  std::vector<std::string> ports;
  auto add = [&](const std::string& name, NetIo net_io) {
    UdpPortError error;
    if (OpenUdpPort({.addresses = {{where.from}}}, net_io, &error) == nullptr) {
      printf("no %s port: %s\n", name.c_str(), error.text.c_str());
      return;
    }
    rows.push_back(link(PortKind(name + " port alone", net_io), 1));
    rows.push_back({name + " NIC", [=] { return MeasureNics(net_io, ms); },
                    [=] { return MeasureNicsCpu(net_io, ms); }});
    ports.push_back(name);
  };
  add("epoll", NetIo::kEpoll);
  add("io_uring", NetIo::kUring);
  if (!only.empty()) {
    std::erase_if(rows, [&](const Row& row) {
      return !row.name.starts_with(sockets.name) && row.name.find(only) == std::string::npos;
    });
  }
  for (int round = 0; round < rounds; ++round) {
    for (Row& row : rows) row.trips.push_back(row.trip());
    for (Row& row : rows) row.cpus.push_back(row.cpu());
  }
  PrintTable("round trip, 8 B, spinning", rows, &Row::trips);
  PrintTable("CPU of a round trip, both ends", rows, &Row::cpus);
  if (!only.empty()) return 0;
  auto print = [&](const std::string& what, const std::string& reference, Values Row::*values,
                   std::optional<double> goal) {
    for (size_t i = 0; i < ports.size(); ++i) {
      const double median = Median(rows[kFirstPort + 2 * i + 1].*values);
      const std::string figure = "two NICs, " + ports[i] + " ports, 8 B WRITE, " + what;
      PrintFigure(figure, median, "us", reference, Median(rows[kPingPong].*values), goal);
      PrintFigure(figure, median, "us", reference + " with acknowledgements",
                  Median(rows[kAcknowledged].*values), {});
    }
  };
  print("round trip", "spinning UDP ping-pong", &Row::trips, 1.5);
  print("CPU of a round trip", "CPU of a UDP ping-pong", &Row::cpus, {});
  return ports.empty() ? 1 : 0;
}
