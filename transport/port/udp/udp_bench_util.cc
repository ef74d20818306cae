#include "transport/port/udp/udp_bench_util.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "transport/port/udp/udp_options.h"
#include "transport/wire/icrc.h"

namespace verbena::transport::bench {
namespace {

class PortEnd final : public End {
 public:
  PortEnd(NetIo net_io, const Gid& own, const Gid& peer, uint32_t packet_bytes)
      : bytes_(packet_bytes - wire::kIcrcBytes) {
    UdpPortError error;
    port_ = OpenUdpPort({.addresses = {{own}}, .port = kBenchPort}, net_io, &error);
    if (port_ == nullptr) Die(error.text);
    packet_.address.source = own;
    packet_.address.destination = peer;
    packet_.address.destination_port = kBenchPort;
    packet_.bytes = bytes_.data();
    packet_.length = static_cast<uint32_t>(bytes_.size());
  }
  void Send(uint32_t count) override {
    for (uint32_t i = 0; i < count; ++i) {
      while (!port_->Send({}, packet_)) port_->Flush({});
    }
    port_->Flush({});
  }
  uint32_t Receive() override {
    InPacket got;
    uint32_t count = 0;
    while (count < kPacketsPerTurn && port_->Receive({}, &got)) {
      uint16_t ip_id = 0;
      if (wire::VerifyIcrc(got.address, got.expected_ip_id, got.bytes, got.length, &ip_id) !=
          wire::IcrcCheck::kExact) {
        Die("a packet with a wrong ICRC");
      }
      ++count;
    }
    return count;
  }

 private:
  std::vector<std::byte> bytes_;
  std::unique_ptr<UdpPort> port_;
  OutPacket packet_;
};

// `segment_bytes` other than 0: as so many datagrams of that length, the last one may be shorter.
void SendDatagram(int fd, iovec* bytes, SocketAddress* to, uint32_t segment_bytes) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(uint16_t))> control{};
  msghdr message{};
  message.msg_name = to->get();
  message.msg_namelen = to->length;
  message.msg_iov = bytes;
  message.msg_iovlen = 1;
  if (segment_bytes != 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* item = CMSG_FIRSTHDR(&message);
    item->cmsg_level = SOL_UDP;
    item->cmsg_type = UDP_SEGMENT;
    item->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    const auto segment = static_cast<uint16_t>(segment_bytes);
    memcpy(CMSG_DATA(item), &segment, sizeof segment);
  }
  if (sendmsg(fd, &message, 0) < 0) Die(std::string("sendmsg: ") + strerror(errno));
}

class SocketEnd final : public End {
 public:
  SocketEnd(bool batches, const Gid& own, const Gid& peer, uint32_t packet_bytes)
      : batches_(batches), packet_bytes_(packet_bytes), buffer_(1 << 16), incoming_(1 << 16) {
    UdpPortError error;
    if (!OpenEndpoint({own}, {.addresses = {}, .port = kBenchPort}, &endpoint_, &error))
      Die(error.text);
    const int gro = batches ? 1 : 0;
    setsockopt(endpoint_.fd, SOL_UDP, UDP_GRO, &gro, sizeof gro);
    to_ = MakeSocketAddress(peer, kBenchPort, endpoint_.address.interface_index);
  }
  ~SocketEnd() override { close(endpoint_.fd); }
  void Send(uint32_t count) override {
    const uint32_t most =
        batches_ ? std::min<uint32_t>(kBatchSegmentsMax, kBatchBytesMax / packet_bytes_) : 1;
    while (count > 0) {
      const uint32_t now = std::min(count, most);
      iovec part{buffer_.data(), now * packet_bytes_};
      SendDatagram(endpoint_.fd, &part, &to_, now > 1 ? packet_bytes_ : 0);
      count -= now;
    }
  }
  uint32_t Receive() override {
    const ssize_t got = recv(endpoint_.fd, incoming_.data(), incoming_.size(), MSG_DONTWAIT);
    return got <= 0 ? 0 : static_cast<uint32_t>(got) / packet_bytes_;
  }

 private:
  const bool batches_;
  const uint32_t packet_bytes_;
  std::vector<char> buffer_, incoming_;
  Endpoint endpoint_;
  SocketAddress to_;
};

// What an RC NIC can't do without when a client answers at once: a message and the acknowledgement
// of the one it answers, in one batch, and the control messages that a GRH is made of.
class ExchangeEnd final : public End {
 public:
  ExchangeEnd(const Gid& own, const Gid& peer, uint32_t packet_bytes)
      : message_bytes_(packet_bytes), bytes_(packet_bytes + kAcknowledgementBytes) {
    UdpPortError error;
    if (!OpenEndpoint({own}, {.addresses = {}, .port = kBenchPort}, &endpoint_, &error))
      Die(error.text);
    to_ = MakeSocketAddress(peer, kBenchPort, endpoint_.address.interface_index);
  }
  ~ExchangeEnd() override { close(endpoint_.fd); }
  void Send(uint32_t count) override {
    for (; count > 0; --count) {
      iovec part{bytes_.data(), bytes_.size()};
      SendDatagram(endpoint_.fd, &part, &to_, message_bytes_);
    }
  }
  uint32_t Receive() override {
    iovec part{incoming_.data(), incoming_.size()};
    alignas(cmsghdr) std::array<char, 128> control;
    sockaddr_storage from;
    msghdr message{};
    message.msg_name = &from;
    message.msg_namelen = sizeof from;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = recvmsg(endpoint_.fd, &message, MSG_DONTWAIT);
    if (got <= 0) return 0;
    if (static_cast<size_t>(got) != bytes_.size()) Die("this kernel does not coalesce datagrams");
    return 1;
  }

 private:
  static constexpr uint32_t kAcknowledgementBytes = 12 + 4 + 4;  // BTH, AETH, ICRC

  const uint32_t message_bytes_;
  std::vector<char> bytes_;
  std::array<char, 256> incoming_;
  Endpoint endpoint_;
  SocketAddress to_;
};

}  // namespace

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}

void Die(const std::string& text) {
  fprintf(stderr, "%s: %s\n", program_invocation_short_name, text.c_str());
  exit(1);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

Kind SocketKind(std::string name, bool batches) {
  return {std::move(name),
          [batches](const Gid& own, const Gid& peer, uint32_t bytes) -> std::unique_ptr<End> {
            return std::make_unique<SocketEnd>(batches, own, peer, bytes);
          }};
}

Kind ExchangeKind(std::string name) {
  return {std::move(name),
          [](const Gid& own, const Gid& peer, uint32_t bytes) -> std::unique_ptr<End> {
            return std::make_unique<ExchangeEnd>(own, peer, bytes);
          }};
}

Kind PortKind(std::string name, NetIo net_io) {
  return {std::move(name),
          [net_io](const Gid& own, const Gid& peer, uint32_t bytes) -> std::unique_ptr<End> {
            return std::make_unique<PortEnd>(net_io, own, peer, bytes);
          }};
}

std::unique_ptr<End> MakeNear(const Kind& kind, const Where& where, uint32_t packet_bytes) {
  if (where.from_network < 0) return kind.make(where.from, where.to, packet_bytes);
  // A socket stays in the namespace it was opened in.
  const int own = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
  if (own < 0 || setns(where.from_network, CLONE_NEWNET) != 0) {
    Die(std::string("the network namespace: ") + strerror(errno));
  }
  auto end = kind.make(where.from, where.to, packet_bytes);
  if (setns(own, CLONE_NEWNET) != 0) Die(std::string("setns: ") + strerror(errno));
  close(own);
  return end;
}

std::unique_ptr<End> MakeFar(const Kind& kind, const Where& where, uint32_t packet_bytes) {
  return kind.make(where.to, where.from, packet_bytes);
}

int64_t CpuNs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

double MeasureCpu(const Kind& kind, const Where& where, uint32_t packet_bytes, uint32_t per_turn,
                  bool back, int ms) {
  auto near = MakeNear(kind, where, packet_bytes);
  auto far = MakeFar(kind, where, packet_bytes);
  auto receive = [&](End* end) {
    for (uint32_t got = 0; got < per_turn;) got += end->Receive();
  };
  uint64_t packets = 0;
  const int64_t begin_ns = CpuNs();
  int64_t now_ns = begin_ns;
  while (now_ns < begin_ns + int64_t{ms} * 1'000'000) {
    for (int turn = 0; turn < 16; ++turn) {
      near->Send(per_turn);
      receive(far.get());
      if (back) {
        far->Send(per_turn);
        receive(near.get());
      }
      packets += per_turn;
    }
    now_ns = CpuNs();
  }
  return static_cast<double>(now_ns - begin_ns) / static_cast<double>(packets);
}

double MeasureRoundTrip(const Kind& kind, const Where& where, int ms, uint32_t packets) {
  auto near = MakeNear(kind, where, kSmallBytes);
  auto far = MakeFar(kind, where, kSmallBytes);
  auto send = [packets](End* end) {
    for (uint32_t i = 0; i < packets; ++i) end->Send(1);
  };
  std::atomic<bool> stop{false};
  std::atomic<bool> is_up{false};
  std::thread other([&] {
    PinTo(1);
    is_up = true;
    is_up.notify_one();
    uint32_t got = 0;
    while (!stop.load(std::memory_order_relaxed)) {
      got += far->Receive();
      if (got < packets) continue;
      got -= packets;
      send(far.get());
    }
  });
  PinTo(0);
  is_up.wait(false);
  std::vector<double> trips;
  const int64_t end_ns = NowNs() + int64_t{ms} * 1'000'000;
  for (int64_t begin_ns = NowNs(); begin_ns < end_ns;) {
    send(near.get());
    for (uint32_t got = 0; got < packets;) got += near->Receive();
    const int64_t now_ns = NowNs();
    trips.push_back(static_cast<double>(now_ns - begin_ns) / 1000);
    begin_ns = now_ns;
  }
  stop = true;
  other.join();
  return Median(trips);
}

void PrintFigure(const std::string& figure, double value, const char* unit,
                 const std::string& reference, double reference_value, std::optional<double> goal,
                 const char* sense) {
  printf(
      "{\"figure\": \"%s\", \"value\": %.3f, \"unit\": \"%s\", \"reference\": \"%s\", "
      "\"reference_value\": %.3f",
      figure.c_str(), value, unit, reference.c_str(), reference_value);
  if (goal.has_value()) printf(", \"goal\": %.2f, \"sense\": \"%s\"", *goal, sense);
  printf("}\n");
}

}  // namespace verbena::transport::bench
