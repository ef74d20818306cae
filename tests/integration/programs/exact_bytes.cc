// Every byte between two hosts, checked: a server and a client, each on NIC 0 of its instance, that
// find each other over TCP.
//   exact_bytes server PORT GID_INDEX
//   exact_bytes client PORT GID_INDEX ADDRESS SEED ROUNDS TIMEOUT RETRY_CNT
// Each round the client posts one operation of every kind RC has, on messages of 0 to 200 000 bytes
// that a seed makes; afterwards both sides compare all of their memory with what it must be.
// With ROUNDS 0 the client writes until that fails, and prints how long the last write took.
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

constexpr uint32_t kMessageBytesMax = 200'000;
constexpr uint32_t kSlotBytes = 200'704;  // a message, rounded up
// What a round uses of each side's buffer.
enum Slot : uint32_t { kSend, kWrite, kWriteImm, kRead, kInlineSend, kSlots };
constexpr size_t kCounters = size_t{kSlots} * kSlotBytes;  // two words for atomics
constexpr size_t kBufferBytes = kCounters + 4096;
constexpr Milliseconds kLossyPatience{120'000};

struct Hello {
  ibv_gid gid;
  uint32_t qpn;
  uint32_t rkey;
  uint64_t address;
};

struct Round {
  uint64_t seed;  // 0: it is over
  uint32_t bytes[kSlots];
};

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

void Write(int fd, const void* data, size_t bytes) {
  if (send(fd, data, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) Die("the peer is gone");
}

void Read(int fd, void* data, size_t bytes) {
  if (recv(fd, data, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) Die("the peer is gone");
}

int Accept(const char* port) {
  int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 any = {};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(static_cast<uint16_t>(atoi(port)));
  int yes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(listener, reinterpret_cast<sockaddr*>(&any), sizeof(any)) != 0 ||
      listen(listener, 1) != 0) {
    Die("the TCP port can't be had");
  }
  int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  close(listener);
  return fd;
}

int Dial(const char* address, const char* port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address, port, &hints, &found) != 0) Die("no such address");
  int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, found->ai_addr, found->ai_addrlen) != 0) Die("the server does not answer");
  freeaddrinfo(found);
  return fd;
}

void Fill(uint8_t* data, size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    uint64_t word = random();
    std::memcpy(data + i, &word, 8);
  }
  for (uint64_t rest = random(); i < bytes; ++i, rest >>= 8) data[i] = static_cast<uint8_t>(rest);
}

// The first byte that differs, or -1.
long Compare(const uint8_t* have, const uint8_t* want, size_t bytes) {
  const uint8_t* end = have + bytes;
  const uint8_t* differs = std::mismatch(have, end, want).first;
  return differs == end ? -1 : differs - have;
}

class Peer {
 public:
  Peer(int fd, int gid_index, const ConnectOptions& options)
      : side({.max_inline_bytes = 256, .buffer_bytes = kBufferBytes}), fd_(fd) {
    ibv_gid gid;
    if (ibv_query_gid(side.context, 1, gid_index, &gid) != 0) Die("no such GID index");
    Hello mine = {gid, side.qp->qp_num, side.mr->rkey, side.buffer.address()};
    Write(fd_, &mine, sizeof(mine));
    Read(fd_, &remote, sizeof(remote));
    Connect(gid_index, options);
    char ready = 'r';
    Write(fd_, &ready, 1);
    Read(fd_, &ready, 1);
  }

  void CheckAll(const std::vector<uint8_t>& model, const char* when) {
    long at = Compare(side.buffer.data(), model.data(), model.size());
    if (at < 0) return;
    std::fprintf(stderr, "%s: byte %ld of slot %ld is wrong\n", when, at % kSlotBytes,
                 at / kSlotBytes);
    std::exit(1);
  }

  Side side;
  Hello remote{};

 protected:
  int fd_;

 private:
  // As Side::ToRtr, on any GID.
  void Connect(int gid_index, const ConnectOptions& options) {
    ibv_port_attr port = {};
    ibv_query_port(side.context, 1, &port);
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = port.active_mtu;
    attr.dest_qp_num = remote.qpn;
    attr.rq_psn = options.psn;
    attr.ah_attr = AddressOf(remote.gid);
    attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid_index);
    attr.max_dest_rd_atomic = options.rd_atomic;
    attr.min_rnr_timer = options.min_rnr_timer;
    if (side.ToInit() != 0 ||
        ibv_modify_qp(side.qp, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0 ||
        side.ToRts(options) != 0) {
      Die("the QP can't be connected");
    }
  }
};

class Server : public Peer {
 public:
  Server(int fd, int gid_index) : Peer(fd, gid_index, {}), model_(kBufferBytes) {}

  void Run() {
    Round round;
    for (uint64_t counter = 0;; ++counter) {
      Read(fd_, &round, sizeof(round));
      if (round.seed == 0) return;
      Fill(side.buffer.data() + kRead * kSlotBytes, round.bytes[kRead], round.seed + kRead);
      side.PostRecv(kSend, kSend * kSlotBytes, kSlotBytes);
      side.PostRecv(kWriteImm, 0, 0);
      side.PostRecv(kInlineSend, kInlineSend * kSlotBytes, kSlotBytes);
      char ready = 'r';
      Write(fd_, &ready, 1);
      for (Slot slot : {kSend, kWriteImm, kInlineSend}) {
        ibv_wc wc = side.WaitRecv(kLossyPatience);
        if (wc.status != IBV_WC_SUCCESS) Die(ibv_wc_status_str(wc.status));
        if (wc.wr_id != slot || wc.byte_len != round.bytes[slot]) Die("a receive in wrong order");
      }
      Read(fd_, &ready, 1);  // the client has all of its completions
      for (uint32_t slot = 0; slot < kSlots; ++slot) {
        Fill(model_.data() + slot * kSlotBytes, round.bytes[slot], round.seed + slot);
      }
      uint64_t words[2] = {(counter + 1) * 3, counter + 1};
      std::memcpy(model_.data() + kCounters, words, sizeof(words));
      CheckAll(model_, "server");
      Write(fd_, &ready, 1);
    }
  }

 private:
  std::vector<uint8_t> model_;
};

class Client : public Peer {
 public:
  Client(int fd, int gid_index, const ConnectOptions& options, uint64_t seed)
      : Peer(fd, gid_index, options), random_(seed), model_(kBufferBytes) {}

  void RunRound(uint64_t counter) {
    Round round = {random_() | 1, {}};
    for (uint32_t& bytes : round.bytes) {
      bytes = static_cast<uint32_t>(random_() % (random_() % 4 == 0 ? 64 : kMessageBytesMax));
    }
    round.bytes[kInlineSend] %= 256;
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      if (slot == kRead) continue;
      Fill(side.buffer.data() + slot * kSlotBytes, round.bytes[slot], round.seed + slot);
      Fill(model_.data() + slot * kSlotBytes, round.bytes[slot], round.seed + slot);
    }
    Fill(model_.data() + kRead * kSlotBytes, round.bytes[kRead], round.seed + kRead);
    uint64_t words[2] = {counter * 3, counter};  // what the atomics found
    std::memcpy(model_.data() + kCounters, words, sizeof(words));
    Write(fd_, &round, sizeof(round));
    char ready;
    Read(fd_, &ready, 1);
    PostAll(round, counter);
    for (uint64_t id = 0; id < kOperations; ++id) {
      ibv_wc wc = side.WaitSend(kLossyPatience);
      if (wc.status != IBV_WC_SUCCESS) Die(ibv_wc_status_str(wc.status));
      if (wc.wr_id != id) Die("a completion in wrong order");
    }
    CheckAll(model_, "client");
    Write(fd_, &ready, 1);
    Read(fd_, &ready, 1);  // the server has compared
  }

  void End() {
    Round last = {};
    Write(fd_, &last, sizeof(last));
  }

  // Writes until one fails.
  void RunUntilDead() {
    std::puts("writing");
    std::fflush(stdout);
    for (;;) {
      auto begin = Clock::now();
      ibv_send_wr wr = Rdma(IBV_WR_RDMA_WRITE, 0, kWrite);
      side.Post(wr, {side.Sge(0, 64)});
      ibv_wc wc = side.WaitSend(kLossyPatience);
      if (wc.status == IBV_WC_SUCCESS) continue;
      auto span = std::chrono::duration<double, std::milli>(Clock::now() - begin);
      std::printf("%s after %.1f ms\n", ibv_wc_status_str(wc.status), span.count());
      return;
    }
  }

 private:
  static constexpr uint64_t kOperations = 7;

  ibv_send_wr Rdma(ibv_wr_opcode opcode, uint64_t id, Slot slot) const {
    ibv_send_wr wr = {};
    wr.wr_id = id;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = remote.address + slot * kSlotBytes;
    wr.wr.rdma.rkey = remote.rkey;
    return wr;
  }

  ibv_send_wr Atomic(ibv_wr_opcode opcode, uint64_t id, uint32_t word, uint64_t compare_add,
                     uint64_t swap) const {
    ibv_send_wr wr = {};
    wr.wr_id = id;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.atomic.remote_addr = remote.address + kCounters + 8 * word;
    wr.wr.atomic.rkey = remote.rkey;
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
    return wr;
  }

  void PostAll(const Round& round, uint64_t counter) {
    auto sge = [&](Slot slot) { return side.Sge(slot * kSlotBytes, round.bytes[slot]); };
    int errors = 0;
    errors += side.Post(Rdma(IBV_WR_SEND, 0, kSend), {sge(kSend)});
    errors += side.Post(Rdma(IBV_WR_RDMA_WRITE, 1, kWrite), {sge(kWrite)});
    errors += side.Post(Rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 2, kWriteImm), {sge(kWriteImm)});
    errors += side.Post(Rdma(IBV_WR_RDMA_READ, 3, kRead), {sge(kRead)});
    errors += side.Post(Atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 4, 0, 3, 0), {side.Sge(kCounters, 8)});
    errors += side.Post(Atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 5, 1, counter, counter + 1),
                        {side.Sge(kCounters + 8, 8)});
    ibv_send_wr inline_send = Rdma(IBV_WR_SEND, 6, kInlineSend);
    inline_send.send_flags |= IBV_SEND_INLINE;
    errors += side.Post(inline_send, {sge(kInlineSend)});
    if (errors != 0) Die("posting failed");
  }

  std::mt19937_64 random_;
  std::vector<uint8_t> model_;
};

int Main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "server") {
    Server(Accept(argv[2]), atoi(argv[3])).Run();
    std::puts("all bytes are right");
    return 0;
  }
  if (argc != 9) return 2;
  ConnectOptions options = {.timeout = static_cast<uint8_t>(atoi(argv[7])),
                            .retry_cnt = static_cast<uint8_t>(atoi(argv[8]))};
  Client client(Dial(argv[4], argv[2]), atoi(argv[3]), options, strtoull(argv[5], nullptr, 10));
  uint64_t rounds = strtoull(argv[6], nullptr, 10);
  if (rounds == 0) {
    client.RunUntilDead();
    return 0;
  }
  for (uint64_t i = 0; i < rounds; ++i) client.RunRound(i);
  client.End();
  std::puts("all bytes are right");
  return 0;
}

}  // namespace
}  // namespace verbena::conformance

int main(int argc, char** argv) { return verbena::conformance::Main(argc, argv); }
