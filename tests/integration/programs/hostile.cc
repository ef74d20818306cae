// Clients that lie.   hostile MODE SECONDS   (hostile list: the modes)
//
// Exit 0: the attack was carried out. 1: the daemon gave it something it must not (said on stderr).
// Whether the daemon survives and its neighbours notice nothing is for the caller to see.
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/integration/programs/hand_client.h"

namespace verbena::tests {
namespace {

using shm::CommandOp;
using Clock = std::chrono::steady_clock;

std::mt19937_64 dice(20'260'101);
Clock::time_point deadline;

bool TimeLeft() { return Clock::now() < deadline; }

int Complain(const char* text) {
  std::fprintf(stderr, "%s\n", text);
  return 1;
}

// A value that is wrong in one of the interesting ways.
uint64_t Wrong() {
  switch (dice() % 8) {
    case 0:
      return 0;
    case 1:
      return ~uint64_t{0};
    case 2:
      return 0x7fff'ffff;
    case 3:
      return 0x8000'0000;
    case 4:
      return dice() % 16;
    case 5:
      return dice() % 65'536;
    case 6:
      return uint64_t{1} << (dice() % 64);
    default:
      return dice();
  }
}

void Scribble(void* data, size_t bytes) {
  auto* p = static_cast<uint8_t*>(data);
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t value = Wrong();
    memcpy(p + i, &value, 8);
  }
}

// --- the attach socket
// -----------------------------------------------------------------------------

int GarbageHello() {
  while (TimeLeft()) {
    int fd = HandClient::Connect();
    if (fd < 0) continue;
    std::vector<uint8_t> bytes(dice() % 4 == 0 ? 100'000 : dice() % 400);
    Scribble(bytes.data(), bytes.size());
    shm::Hello hello = HandClient::MakeHello(static_cast<shm::HelloKind>(Wrong()));
    hello.nic = static_cast<uint32_t>(Wrong());
    hello.probe_addr = Wrong();
    memset(hello.program, 'x', sizeof(hello.program));  // not terminated
    if (dice() % 3 == 0) hello.magic ^= Wrong();
    if (dice() % 3 == 0) hello.abi_version = static_cast<uint32_t>(Wrong());
    bool short_one = dice() % 3 == 0;
    send(fd, &hello, short_one ? dice() % sizeof(hello) : sizeof(hello), MSG_NOSIGNAL);
    send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    close(fd);
  }
  return 0;
}

int SilentConnections() {
  std::vector<int> fds;
  while (TimeLeft()) {
    int fd = HandClient::Connect();
    if (fd < 0 || fds.size() > 300) {
      for (int open : fds) close(open);
      fds.clear();
    }
    if (fd >= 0) fds.push_back(fd);
  }
  return 0;
}

int AttachAndLeave() {
  while (TimeLeft()) {
    int fd = HandClient::Connect();
    if (fd < 0) continue;
    shm::Hello hello = HandClient::MakeHello(shm::HelloKind::kAttach);
    send(fd, &hello, sizeof(hello), MSG_NOSIGNAL);
    close(fd);  // without waiting for Welcome
  }
  return 0;
}

int SendsFds() {
  while (TimeLeft()) {
    HandClient client;
    if (!client.Attach()) continue;
    for (int i = 0; i < 50; ++i) {
      char byte = 'x';
      iovec iov = {&byte, 1};
      alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
      msghdr message = {};
      message.msg_iov = &iov;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(8 * sizeof(int));
      for (int k = 0; k < 8; ++k) {
        int fd = client.fds()[0];
        memcpy(CMSG_DATA(c) + k * sizeof(int), &fd, sizeof(int));
      }
      sendmsg(client.socket(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
  }
  return 0;
}

// Imports of its context with whatever an fd can be.
int ImportGarbage() {
  while (TimeLeft()) {
    HandClient client;
    if (!client.Attach()) continue;
    std::vector<int> kept;
    for (int i = 0; i < 70 && TimeLeft(); ++i) {
      shm::Hello hello = HandClient::MakeHello(shm::HelloKind::kImport);
      int pair[2] = {-1, -1};
      if (socketpair(AF_UNIX, i % 7 == 2 ? SOCK_STREAM : SOCK_SEQPACKET, 0, pair) != 0) break;
      int passed = pair[0];
      if (i % 7 == 0) passed = -1;
      if (i % 7 == 1) passed = client.fds()[0];
      if (i % 7 == 3) shutdown(pair[1], SHUT_RDWR);
      if (i % 7 == 4) hello.abi_version += 1;
      if (i % 7 == 5) passed = client.socket();  // whose other end is the daemon's
      iovec iov = {&hello, sizeof(hello)};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
      msghdr message = {};
      message.msg_iov = &iov;
      message.msg_iovlen = 1;
      if (passed >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        cmsghdr* c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &passed, sizeof(passed));
      }
      sendmsg(client.socket(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      close(pair[0]);
      kept.push_back(pair[1]);  // some read no Welcome, and stay
    }
    for (int fd : kept) close(fd);
  }
  return 0;
}

int AdminGarbage() {
  std::string deep(60'000, '[');
  std::string texts[] = {"",
                         "{",
                         "null",
                         "[]",
                         "{\"op\":7}",
                         "{\"op\":\"show\"}",
                         "{\"op\":\"show\",\"kind\":\"nothing\"}",
                         "{\"op\":\"add-nics\"}",
                         "{\"op\":\"add-nics\",\"total\":-1}",
                         "{\"op\":\"add-nics\",\"total\":1e99}",
                         "\xff\xfe\x00",
                         deep,
                         "{\"op\":\"" + std::string(50'000, 'a') + "\"}"};
  while (TimeLeft()) {
    int fd = HandClient::Connect();
    if (fd < 0) continue;
    shm::Hello hello = HandClient::MakeHello(shm::HelloKind::kAdmin);
    send(fd, &hello, sizeof(hello), MSG_NOSIGNAL);
    const std::string& text = texts[dice() % std::size(texts)];
    send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    char reply[4096];
    timeval limit = {0, 200'000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    recv(fd, reply, sizeof(reply), 0);
    close(fd);
  }
  return 0;
}

// --- the command queue
// -----------------------------------------------------------------------------

int CommandGarbage() {
  while (TimeLeft()) {
    HandClient client;
    if (!client.Attach()) continue;
    for (uint32_t i = 0; i < 3000 && TimeLeft(); ++i) {
      uint8_t payload[shm::kCommandPayloadBytes];
      Scribble(payload, sizeof(payload));
      auto op = static_cast<uint32_t>(dice() % 4 == 0 ? Wrong() : dice() % 32);
      auto claimed = static_cast<uint32_t>(dice() % 2 == 0 ? Wrong() : dice() % sizeof(payload));
      auto submitted = static_cast<uint32_t>(dice() % 2 == 0 ? i : Wrong());
      client.Submit(dice() % shm::kCommandSlots, submitted, op, payload, sizeof(payload), claimed);
    }
  }
  return 0;
}

int CommandFlood() {
  HandClient client;
  if (!client.Attach()) return Complain("cannot attach");
  uint32_t number[shm::kCommandSlots] = {};
  while (TimeLeft()) {
    for (uint32_t slot = 0; slot < shm::kCommandSlots; ++slot) {
      client.Submit(slot, ++number[slot], static_cast<uint32_t>(CommandOp::kAllocPd), nullptr, 0,
                    0);
    }
  }
  return 0;
}

int StaleAndForeignHandles() {
  constexpr CommandOp kOps[] = {
      CommandOp::kDeallocPd,      CommandOp::kDeregMr,    CommandOp::kDestroyCq,
      CommandOp::kDestroyQp,      CommandOp::kDestroySrq, CommandOp::kDestroyAh,
      CommandOp::kDestroyChannel, CommandOp::kQueryQp,    CommandOp::kQuerySrq};
  HandClient client;
  if (!client.Attach()) return Complain("cannot attach");
  while (TimeLeft()) {
    shm::HandleRequest request = {static_cast<uint32_t>(Wrong()), 0};
    int error =
        client.Issue(0, kOps[dice() % std::size(kOps)], &request, sizeof(request), nullptr, 0);
    if (error == 0) return Complain("a command on a handle this session never got succeeded");
  }
  return 0;
}

// --- queues
// ----------------------------------------------------------------------------------------

// A PD, a CQ and a QP of its own, made properly, to be abused.
struct Objects {
  shm::HandleReply pd = {};
  shm::CreateCqReply cq = {};
  shm::CreateQpReply qp = {};

  bool Create(HandClient& client) {
    if (client.Issue(0, CommandOp::kAllocPd, nullptr, 0, &pd, sizeof(pd)) != 0) return false;
    shm::CreateCqRequest cq_request = {};
    cq_request.entries = 64;
    if (client.Issue(0, CommandOp::kCreateCq, &cq_request, sizeof(cq_request), &cq, sizeof(cq)) !=
        0) {
      return false;
    }
    shm::CreateQpRequest request = {};
    request.pd = pd.handle;
    request.send_cq = request.recv_cq = cq.cq;
    request.service = static_cast<uint32_t>(dice() % 3);
    request.max_send_wr = request.max_recv_wr = 32;
    request.max_send_sge = request.max_recv_sge = 4;
    request.max_inline_bytes = 128;
    if (client.Issue(0, CommandOp::kCreateQp, &request, sizeof(request), &qp, sizeof(qp)) != 0) {
      return false;
    }
    return ToRts(client);
  }

  // Connected with itself, so that what is scribbled really is executed.
  bool ToRts(HandClient& client) {
    shm::ModifyQpRequest m = {};
    m.qp = qp.qp;
    m.attr.port_num = 1;
    m.attr.qkey = 5;
    m.attr.qp_access_flags = 0xf;
    m.attr.path_mtu = 3;
    m.attr.dest_qp_num = qp.qpn;
    m.attr.ah_attr.is_global = 1;
    m.attr.ah_attr.sgid_index = 1;
    m.attr.ah_attr.port_num = 1;
    m.attr.ah_attr.dgid[10] = m.attr.ah_attr.dgid[11] = 0xff;
    m.attr.ah_attr.dgid[12] = 127;
    m.attr.ah_attr.dgid[15] = 1;
    m.attr.max_rd_atomic = m.attr.max_dest_rd_atomic = 4;
    m.attr.timeout = 8;
    using namespace shm::qp_mask;
    // The masks of all three services are tried; two of them are refused.
    const uint32_t steps[3][3] = {
        {kState | kPkeyIndex | kPort | kAccessFlags,
         kState | kAv | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer,
         kState | kSqPsn | kTimeout | kRetryCnt | kRnrRetry | kMaxQpRdAtomic},
        {kState | kPkeyIndex | kPort | kAccessFlags, kState | kAv | kPathMtu | kDestQpn | kRqPsn,
         kState | kSqPsn},
        {kState | kPkeyIndex | kPort | kQkey, kState, kState | kSqPsn}};
    for (uint32_t state = 1; state <= 3; ++state) {
      bool moved = false;
      for (auto& service : steps) {
        m.attr.qp_state = state;
        m.mask = service[state - 1];
        moved = moved || client.Issue(0, CommandOp::kModifyQp, &m, sizeof(m), nullptr, 0) == 0;
      }
      if (!moved) return false;
    }
    return true;
  }
};

void WriteWildWqe(uint8_t* entry, uint32_t stride) {
  Scribble(entry, stride);
  auto* wqe = reinterpret_cast<shm::SendWqe*>(entry);
  if (dice() % 2 == 0) {  // half right, so that it gets further
    wqe->opcode = static_cast<uint8_t>(dice() % 16);
    wqe->flags = static_cast<uint8_t>(dice() % 16);
    if (dice() % 2 == 0) wqe->flags |= shm::kSendSmallBody;
    wqe->num_sge = static_cast<uint8_t>(dice() % 6);
    wqe->inline_bytes = static_cast<uint32_t>(dice() % 2 == 0 ? Wrong() : dice() % 128);
    wqe->rkey = static_cast<uint32_t>(dice() % 4096);
  }
}

int QueueGarbage() {
  while (TimeLeft()) {
    HandClient client;
    Objects objects;
    if (!client.Attach() || !objects.Create(client)) return Complain("cannot create a QP");
    uint8_t* sq = client.At(objects.qp.sq);
    uint8_t* cq = client.At(objects.cq.place);
    if (sq == nullptr || cq == nullptr) return Complain("queues outside their arena");
    auto* head = reinterpret_cast<shm::WorkQueueHead*>(sq);
    uint32_t producer = 0;
    for (int i = 0; i < 400 && TimeLeft(); ++i) {
      for (uint32_t k = 0; k < 4; ++k) {
        uint32_t at = (producer + k) % objects.qp.sq.entries;
        WriteWildWqe(sq + shm::kWorkQueueHeadBytes + at * objects.qp.sq.stride_bytes,
                     objects.qp.sq.stride_bytes);
      }
      producer = dice() % 8 == 0 ? static_cast<uint32_t>(Wrong()) : producer + 4;
      head->producer.store(producer);
      head->consumer.store(static_cast<uint32_t>(Wrong()));  // not ours to write
      auto* cq_head = reinterpret_cast<shm::CqHead*>(cq);
      cq_head->consumer.store(static_cast<uint32_t>(Wrong()));
      cq_head->arm.store(static_cast<uint32_t>(Wrong()));
      client.Ring(objects.qp.sq.doorbell);
      client.Ring(static_cast<uint32_t>(dice() % shm::kMaxDoorbells));
    }
  }
  return 0;
}

int ScribbleEverything() {
  while (TimeLeft()) {
    HandClient client;
    Objects objects;
    if (!client.Attach() || !objects.Create(client)) return Complain("cannot create a QP");
    for (int i = 0; i < 60 && TimeLeft(); ++i) {
      Scribble(client.control(), client.control_bytes());
      for (Mapping& arena : client.arenas()) {
        Scribble(arena.data, std::min<size_t>(arena.bytes, 1 << 20));
      }
      for (uint32_t k = 0; k < 64; ++k) client.Ring(k);
    }
  }
  return 0;
}

int DoorbellFlood() {
  HandClient client;
  Objects objects;
  if (!client.Attach() || !objects.Create(client)) return Complain("cannot create a QP");
  while (TimeLeft()) {
    for (uint32_t i = 0; i < shm::kDoorbellLeaves; ++i)
      client.control()->doorbells.Leaf(i).store(~uint64_t{0});
    for (auto& summary : client.control()->doorbells.summary) summary.store(~uint64_t{0});
    uint64_t one = 1;
    if (write(client.fds()[shm::kFdDoorbellEvent], &one, 8) < 0) continue;
  }
  return 0;
}

// --- fds and sizes
// ---------------------------------------------------------------------------------

int TruncateFds() {
  HandClient client;
  Objects objects;
  if (!client.Attach() || !objects.Create(client)) return Complain("cannot create a QP");
  int result = 0;
  for (int fd : client.fds()) {
    if (ftruncate(fd, 0) == 0) result = Complain("a shared mapping could be truncated");
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 30) == 0) continue;
  }
  while (TimeLeft()) {  // and the daemon goes on reading them
    for (uint32_t k = 0; k < 256; ++k) client.Ring(k);
  }
  return result;
}

int WriteStatusPage() {
  HandClient client;
  if (!client.Attach()) return Complain("cannot attach");
  int fd = client.fds()[shm::kFdStatusPage];
  void* p = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p != MAP_FAILED) return Complain("the status page can be mapped for writing");
  uint32_t lie = 0;
  if (pwrite(fd, &lie, 4, 0) > 0) return Complain("the status page can be written");
  p = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return Complain("the status page cannot be read");
  if (mprotect(p, 4096, PROT_READ | PROT_WRITE) == 0) {
    return Complain("the status page can be made writable");
  }
  return 0;
}

// Asks for more than any limit, as fast as it can.
int GreedyObjects() {
  HandClient client;
  Objects objects;
  if (!client.Attach() || !objects.Create(client)) return Complain("cannot create a QP");
  while (TimeLeft()) {
    shm::CreateCqRequest cq = {};
    cq.entries = static_cast<uint32_t>(dice() % 2 == 0 ? Wrong() : 1 << 20);
    client.Issue(1, CommandOp::kCreateCq, &cq, sizeof(cq), nullptr, 0);
    shm::CreateQpRequest qp = {};
    qp.pd = objects.pd.handle;
    qp.send_cq = qp.recv_cq = objects.cq.cq;
    qp.max_send_wr = static_cast<uint32_t>(Wrong());
    qp.max_recv_wr = static_cast<uint32_t>(Wrong());
    qp.max_send_sge = static_cast<uint32_t>(Wrong());
    qp.max_recv_sge = static_cast<uint32_t>(Wrong());
    qp.max_inline_bytes = static_cast<uint32_t>(Wrong());
    qp.service = static_cast<uint32_t>(Wrong());
    client.Issue(2, CommandOp::kCreateQp, &qp, sizeof(qp), nullptr, 0);
    shm::RegMrRequest mr = {};
    mr.pd = objects.pd.handle;
    mr.access = 0xf;
    mr.addr = Wrong();
    mr.length = Wrong();
    mr.iova = Wrong();
    client.Issue(3, CommandOp::kRegMr, &mr, sizeof(mr), nullptr, 0);
  }
  return 0;
}

// Burns a core without touching the daemon: what a neighbour's latency is compared with.
int JustSpin() {
  volatile uint64_t x = 0;
  while (TimeLeft()) {
    for (int i = 0; i < 1000; ++i) x = x + 1;
  }
  return 0;
}

struct Mode {
  const char* name;
  int (*run)();
};
constexpr Mode kModes[] = {
    {"garbage-hello", GarbageHello},
    {"silent-connections", SilentConnections},
    {"attach-and-leave", AttachAndLeave},
    {"sends-fds", SendsFds},
    {"import-garbage", ImportGarbage},
    {"admin-garbage", AdminGarbage},
    {"command-garbage", CommandGarbage},
    {"command-flood", CommandFlood},
    {"foreign-handles", StaleAndForeignHandles},
    {"queue-garbage", QueueGarbage},
    {"scribble-everything", ScribbleEverything},
    {"doorbell-flood", DoorbellFlood},
    {"truncate-fds", TruncateFds},
    {"write-status-page", WriteStatusPage},
    {"greedy-objects", GreedyObjects},
    {"just-spin", JustSpin},
};

int Main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "list") == 0) {
    for (const Mode& mode : kModes) std::puts(mode.name);
    return 0;
  }
  if (argc != 3) return 2;
  deadline = Clock::now() + std::chrono::milliseconds(static_cast<int>(1000 * atof(argv[2])));
  for (const Mode& mode : kModes) {
    if (strcmp(argv[1], mode.name) == 0) return mode.run();
  }
  return 2;
}

}  // namespace
}  // namespace verbena::tests

int main(int argc, char** argv) { return verbena::tests::Main(argc, argv); }
