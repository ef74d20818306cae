#include "tests/fi/fabric.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace verbena::fi_test {
namespace {

std::vector<Peer*> g_peers;
std::vector<fid_eq*> g_eqs;
std::atomic<uint64_t> g_next_key = 0x100;

constexpr uint64_t kModes = FI_CONTEXT | FI_CONTEXT2;

uint8_t ByteAt(uint32_t seed, size_t place) {
  uint32_t word = seed * 2654435761U + static_cast<uint32_t>(place) * 40503U;
  return static_cast<uint8_t>((word >> 13) ^ word ^ (word >> 24));
}

}  // namespace

bool IsReliable() { return Asked().type != FI_EP_DGRAM; }
bool IsConnected() { return Asked().type == FI_EP_MSG; }

Info HintsOf(const Wish& wish) {
  Info hints(fi_allocinfo());
  hints->ep_attr->type = Asked().type;
  hints->caps = wish.caps;
  hints->mode = kModes;
  hints->domain_attr->mr_mode = wish.mr_mode;
  hints->fabric_attr->prov_name = strdup(Asked().provider.c_str());
  if (wish.hints) wish.hints(hints.get());
  return hints;
}

int TryGetInfo(const Wish& wish, Info* out, const char* node, const char* service, uint64_t flags) {
  const Info hints = HintsOf(wish);
  fi_info* info = nullptr;
  const bool has_place = node == nullptr && service == nullptr && !Asked().node.empty();
  const int result = has_place ? fi_getinfo(wish.version, Asked().node.c_str(), nullptr,
                                            flags | FI_SOURCE, hints.get(), &info)
                               : fi_getinfo(wish.version, node, service, flags, hints.get(), &info);
  // A name matches what is layered over it as well; that is another provider.
  fi_info** link = &info;
  while (*link != nullptr) {
    fi_info* entry = *link;
    if (Asked().provider == entry->fabric_attr->prov_name) {
      link = &entry->next;
    } else {
      *link = entry->next;
      entry->next = nullptr;
      fi_freeinfo(entry);
    }
  }
  out->reset(info);
  return result == 0 && info == nullptr ? -FI_ENODATA : result;
}

Info GetInfo(const Wish& wish) {
  Info info;
  Need(TryGetInfo(wish, &info), "fi_getinfo");
  return info;
}

PumpedEq::PumpedEq(PumpedEq&& other) noexcept : Fid(std::move(other)) { Enlist(); }
PumpedEq::PumpedEq(Fid&& other) noexcept : Fid(std::move(other)) { Enlist(); }
PumpedEq::~PumpedEq() { std::erase(g_eqs, get()); }
void PumpedEq::Enlist() { g_eqs.push_back(get()); }

uint64_t RmaCaps() { return IsReliable() ? FI_MSG | FI_RMA : FI_MSG; }

Ground::Ground(const Wish& wish) : Ground(GetInfo(wish), wish) {}

Ground::Ground(Info own, const Wish& wish) : info(std::move(own)) {
  if (wish.chosen) wish.chosen(info.get());
  Open(wish);
}

void Ground::Open(const Wish& wish) {
  Need(fi_fabric(info->fabric_attr, fabric.Out(), nullptr), "fi_fabric");
  eq.emplace(OpenEq(fabric));
  Need(fi_domain(fabric, info.get(), domain.Out(), nullptr), "fi_domain");
}

Fid<fid_eq> OpenEq(fid_fabric* fabric, fi_wait_obj wait, uint64_t flags) {
  Fid<fid_eq> eq;
  fi_eq_attr attr = {};
  attr.wait_obj = wait;
  attr.flags = flags;
  Need(fi_eq_open(fabric, &attr, eq.Out(), nullptr), "fi_eq_open");
  return eq;
}

Fid<fid_cq> OpenCq(fid_domain* domain, fi_cq_attr attr) {
  Fid<fid_cq> cq;
  if (attr.format == FI_CQ_FORMAT_UNSPEC) attr.format = FI_CQ_FORMAT_DATA;
  if (attr.wait_obj == 0) attr.wait_obj = FI_WAIT_NONE;
  Need(fi_cq_open(domain, &attr, cq.Out(), nullptr), "fi_cq_open");
  return cq;
}

Fid<fid_cntr> OpenCntr(fid_domain* domain, fi_wait_obj wait) {
  Fid<fid_cntr> cntr;
  fi_cntr_attr attr = {};
  attr.wait_obj = wait;
  Need(fi_cntr_open(domain, &attr, cntr.Out(), nullptr), "fi_cntr_open");
  return cntr;
}

Fid<fid_av> OpenAv(fid_domain* domain, fi_av_type type) {
  Fid<fid_av> av;
  fi_av_attr attr = {};
  attr.type = type;
  Need(fi_av_open(domain, &attr, av.Out(), nullptr), "fi_av_open");
  return av;
}

uint64_t NextKey() { return g_next_key++; }

int Register(Ground& ground, void* buffer, size_t bytes, uint64_t access, fid_mr** out,
             uint64_t key, uint64_t flags) {
  if (key == 0) key = NextKey();
  return fi_mr_reg(ground.domain, buffer, bytes, access, 0, key, flags, out, nullptr);
}

Memory::Memory(Ground& ground, size_t bytes, uint64_t access, uint8_t fill, uint64_t key)
    : bytes_(std::max<size_t>(bytes, 1), fill) {
  const int mode = ground.info->domain_attr->mr_mode;
  const bool is_basic = mode == FI_MR_BASIC;
  const bool needs_local = (mode & FI_MR_LOCAL) != 0 || (ground.info->mode & FI_LOCAL_MR) != 0;
  if (access == 0 && !needs_local) return;
  if (access == 0) access = FI_SEND | FI_RECV;
  if ((ground.info->caps & FI_RMA) != 0) access |= FI_READ | FI_WRITE;
  Need(Register(ground, bytes_.data(), bytes_.size(), access, mr_.Out(), key), "fi_mr_reg");
  if (is_basic || (mode & FI_MR_VIRT_ADDR) != 0) base_ = reinterpret_cast<uint64_t>(bytes_.data());
}

void Memory::Fill(uint32_t seed) {
  for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = ByteAt(seed, i);
}

bool Memory::Has(uint32_t seed, size_t bytes, size_t offset) const {
  for (size_t i = 0; i < bytes; ++i) {
    if (bytes_[offset + i] != ByteAt(seed, i)) return false;
  }
  return true;
}

bool Memory::IsAll(uint8_t value, size_t from, size_t to) const {
  return std::all_of(bytes_.begin() + from, bytes_.begin() + to,
                     [=](uint8_t byte) { return byte == value; });
}

Peer::Peer(const Wish& asked) : Peer(GetInfo(asked), asked) {}

Peer::Peer(Info own, const Wish& asked) : Ground(std::move(own), asked), wish(asked) {
  OpenQueues();
  g_peers.push_back(this);
}

Peer::~Peer() { g_peers.erase(std::find(g_peers.begin(), g_peers.end(), this)); }

void Peer::OpenQueues() {
  fi_cq_attr attr = {};
  attr.size = wish.cq_size;
  attr.format = wish.format;
  attr.wait_obj = wish.wait;
  if (wish.cq_attr) wish.cq_attr(attr, *this);
  tx_cq = OpenCq(domain, attr);
  if (!wish.is_cq_shared) rx_cq = OpenCq(domain, attr);
  if (!IsConnected()) av = OpenAv(domain, wish.av_type);
}

void Peer::OpenEndpoint() {
  Need(fi_endpoint(domain, request ? request.get() : info.get(), ep.Out(), this), "fi_endpoint");
}

void Peer::Bind() {
  if (IsConnected()) {
    Need(fi_ep_bind(ep, eq->Base(), 0), "fi_ep_bind EQ");
  } else {
    Need(fi_ep_bind(ep, av.Base(), 0), "fi_ep_bind AV");
  }
  if (wish.is_cq_shared && (wish.tx_bind | wish.rx_bind) == 0) {
    Need(fi_ep_bind(ep, tx_cq.Base(), FI_TRANSMIT | FI_RECV), "fi_ep_bind CQ");
  } else {
    Need(fi_ep_bind(ep, tx_cq.Base(), FI_TRANSMIT | wish.tx_bind), "fi_ep_bind transmit CQ");
    Need(fi_ep_bind(ep, &RxCq()->fid, FI_RECV | wish.rx_bind), "fi_ep_bind receive CQ");
  }
  if (wish.unenabled) wish.unenabled(*this);
}

void Peer::Enable() { Need(fi_enable(ep), "fi_enable"); }

void Peer::Start() {
  OpenEndpoint();
  Bind();
  Enable();
}

std::vector<uint8_t> AddressOf(fid_ep* ep) {
  std::vector<uint8_t> address(512);
  size_t length = address.size();
  Need(fi_getname(&ep->fid, address.data(), &length), "fi_getname");
  address.resize(length);
  return address;
}

fi_addr_t Peer::Insert(fid_ep* another) {
  const auto address = AddressOf(another);
  fi_addr_t inserted = FI_ADDR_UNSPEC;
  Expect(fi_av_insert(av, address.data(), 1, &inserted, 0, nullptr) == 1,
         "fi_av_insert of a peer's address");
  return inserted;
}

Pair::Pair(const Wish& a, const Wish& b) {
  if (IsConnected()) {
    Connect(a, b);
  } else {
    Introduce(a, b);
  }
}

void Pair::Introduce(const Wish& a, const Wish& b) {
  left = std::make_unique<Peer>(a);
  right = std::make_unique<Peer>(b);
  for (Peer* peer : {left.get(), right.get()}) {
    peer->Start();
  }
  left->other = left->Insert(*right);
  right->other = right->Insert(*left);
}

Listener::Listener(const Wish& wish, fi_wait_obj wait) : info(GetInfo(wish)) {
  if (wish.chosen) wish.chosen(info.get());
  Need(fi_fabric(info->fabric_attr, fabric.Out(), nullptr), "fi_fabric");
  eq.emplace(OpenEq(fabric, wait));
  Need(fi_passive_ep(fabric, info.get(), pep.Out(), this), "fi_passive_ep");
  Need(fi_pep_bind(pep, eq->Base(), 0), "fi_pep_bind");
  Need(fi_listen(pep), "fi_listen");
  address.resize(512);
  size_t length = address.size();
  Need(fi_getname(pep.Base(), address.data(), &length), "fi_getname");
  address.resize(length);
}

Event NextEvent(fid_eq* eq, int limit_ms) {
  alignas(fi_eq_cm_entry) uint8_t raw[1024] = {};
  Event event;
  WaitUntil(
      [&] {
        event.result = fi_eq_read(eq, &event.kind, raw, sizeof(raw), 0);
        return event.result != -FI_EAGAIN;
      },
      limit_ms);
  if (event.result == -FI_EAVAIL) {
    fi_eq_err_entry error = {};
    if (fi_eq_readerr(eq, &error, 0) < 0) Fail("fi_eq_readerr finds no error");
    event.fid = error.fid;
    event.error = error.err;
    const auto* bytes = static_cast<const uint8_t*>(error.err_data);
    if (bytes != nullptr) event.data.assign(bytes, bytes + error.err_data_size);
  } else if (event.result >= static_cast<long>(sizeof(fi_eq_cm_entry))) {
    fi_eq_cm_entry entry;
    memcpy(&entry, raw, sizeof(entry));
    event.fid = entry.fid;
    if (event.kind == FI_CONNREQ) event.info = entry.info;
    event.data.assign(raw + sizeof(entry), raw + event.result);
  }
  return event;
}

Event AwaitEvent(fid_eq* eq, uint32_t kind, const char* what) {
  Event event = NextEvent(eq, 5000 * Patience());
  Expect(event.result != -FI_EAGAIN, "no event: %s", what);
  Expect(event.error == 0, "%s: the error %s", what, NameOf(event.error).c_str());
  Expect(event.result >= 0 && event.kind == kind, "%s: %s, event %u", what,
         event.result < 0 ? NameOf(event.result).c_str() : "another event", event.kind);
  return event;
}

void Pair::Connect(const Wish& a, const Wish& b) {
  const Listener listener(b);
  left = std::make_unique<Peer>(a);
  left->Start();
  Need(fi_connect(left->ep, listener.address.data(), nullptr, 0), "fi_connect");
  const Event request = AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's");
  right = std::make_unique<Peer>(b);
  right->request.reset(request.info);
  if (b.chosen) b.chosen(request.info);
  right->Start();
  Need(fi_accept(right->ep, nullptr, 0), "fi_accept");
  AwaitEvent(*left->eq, FI_CONNECTED, "the active side's");
  AwaitEvent(*right->eq, FI_CONNECTED, "the passive side's");
}

void PumpAll() {
  for (Peer* peer : g_peers) {
    if (peer->tx_cq) fi_cq_read(peer->tx_cq, nullptr, 0);
    if (peer->rx_cq) fi_cq_read(peer->rx_cq, nullptr, 0);
  }
  for (fid_eq* eq : g_eqs) {
    uint32_t event = 0;
    uint8_t raw[1024];
    fi_eq_read(eq, &event, raw, sizeof(raw), FI_PEEK);
  }
}

long NowMs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

bool WaitUntil(const std::function<bool()>& condition, int limit_ms) {
  const long end_ms = NowMs() + limit_ms;
  for (;;) {
    if (condition()) return true;
    if (NowMs() > end_ms) return condition();
    PumpAll();
    sched_yield();
  }
}

long Post(const std::function<long()>& post, int limit_ms) {
  long result = -FI_EAGAIN;
  WaitUntil([&] { return (result = post()) != -FI_EAGAIN; }, limit_ms);
  return result;
}

std::optional<Completion> PollCq(fid_cq* cq, fi_cq_format format) {
  fi_cq_tagged_entry entry = {};
  Completion out;
  const ssize_t got = fi_cq_readfrom(cq, &entry, 1, &out.source);
  if (got == -FI_EAGAIN || got == 0) return std::nullopt;
  if (got == -FI_EAVAIL) {
    fi_cq_err_entry error = {};
    if (fi_cq_readerr(cq, &error, 0) != 1) return std::nullopt;
    out = {error.op_context, error.flags, error.len,  error.buf,       error.data,
           FI_ADDR_NOTAVAIL, error.err,   error.olen, error.prov_errno};
    Expect(error.err > 0, "an error completion says %d", error.err);
    return out;
  }
  Expect(got == 1, "fi_cq_readfrom: %s", NameOf(got).c_str());
  out.context = entry.op_context;
  if (format != FI_CQ_FORMAT_CONTEXT) {
    out.flags = entry.flags;
    out.len = entry.len;
  }
  if (format == FI_CQ_FORMAT_DATA || format == FI_CQ_FORMAT_TAGGED) {
    out.buf = entry.buf;
    out.data = entry.data;
  }
  return out;
}

std::optional<Completion> AwaitAny(fid_cq* cq, int limit_ms, fi_cq_format format) {
  std::optional<Completion> got;
  WaitUntil([&] { return (got = PollCq(cq, format)).has_value(); }, limit_ms);
  return got;
}

Completion Await(fid_cq* cq, const char* what, fi_cq_format format) {
  const auto got = AwaitAny(cq, 4000 * Patience(), format);
  Expect(got.has_value(), "no completion: %s", what);
  Expect(got->error == 0, "%s completed with %s", what, NameOf(got->error).c_str());
  return *got;
}

Completion AwaitError(fid_cq* cq, const char* what) {
  const auto got = AwaitAny(cq, 4000 * Patience());
  Expect(got.has_value(), "no completion: %s", what);
  Expect(got->error != 0, "%s completed successfully", what);
  return *got;
}

void ExpectNothing(fid_cq* cq, int during_ms, const char* what) {
  const auto got = AwaitAny(cq, during_ms);
  Expect(!got.has_value(), "%s: a completion came (error %d, flags %#llx)", what,
         got ? got->error : 0, static_cast<unsigned long long>(got ? got->flags : 0));
}

void* ContextOf(size_t number) {
  static std::vector<fi_context2> contexts(8192);
  return &contexts[number];
}

void Send(Peer& peer, Memory& memory, size_t context, size_t bytes) {
  bytes = std::min(bytes, memory.size());
  Need(Post([&] {
         return fi_send(peer.ep, memory.data(), bytes, memory.desc(), peer.other,
                        ContextOf(context));
       }),
       "fi_send");
}

void Receive(Peer& peer, Memory& memory, size_t context, size_t bytes) {
  bytes = std::min(bytes, memory.size());
  Need(Post([&] {
         return fi_recv(peer.ep, memory.data(), bytes, memory.desc(), FI_ADDR_UNSPEC,
                        ContextOf(context));
       }),
       "fi_recv");
}

long Write(Peer& peer, Memory& from, Memory& to, size_t context, uint64_t flags) {
  iovec local = {from.data(), from.size()};
  const fi_rma_iov remote = {to.Remote(), from.size(), to.key()};
  void* desc = from.desc();
  fi_msg_rma message = {};
  message.msg_iov = &local;
  message.desc = &desc;
  message.iov_count = 1;
  message.addr = peer.other;
  message.rma_iov = &remote;
  message.rma_iov_count = 1;
  message.context = ContextOf(context);
  return Post([&] { return fi_writemsg(peer.ep, &message, flags | FI_COMPLETION); });
}

Other::Other(const std::function<void(int)>& far) {
  int ends[2];
  Expect(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
  pid_ = fork();
  if (pid_ == 0) {
    close(ends[0]);
    BeAnother();
    try {
      far(ends[1]);
      _exit(0);
    } catch (const Answer& answer) {
      const ssize_t ignored = write(2, answer.reason.data(), answer.reason.size());
      _exit(ignored == 0 ? 2 : 1);
    }
  }
  close(ends[1]);
  socket_ = ends[0];
}

Other::~Other() {
  close(socket_);
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Other::Kill(int signal) { kill(pid_, signal); }

void Tell(int socket, const void* data, size_t bytes) {
  Expect(send(socket, data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes),
         "the other process has gone");
}

void Hear(int socket, void* data, size_t bytes, int limit_ms) {
  pollfd readable = {socket, POLLIN, 0};
  Expect(poll(&readable, 1, limit_ms * Patience()) == 1, "the other process says nothing");
  Expect(recv(socket, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes),
         "the other process ended early");
}

}  // namespace verbena::fi_test
