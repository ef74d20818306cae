// What cases open: handles that close themselves, and two endpoints that can talk.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/fi/suite.h"

namespace verbena::fi_test {

// A fid that is closed when it goes.
template <typename T>
class Fid {
 public:
  Fid() = default;
  Fid(Fid&& other) noexcept : fid_(std::exchange(other.fid_, nullptr)) {}
  Fid& operator=(Fid&& other) noexcept {
    std::swap(fid_, other.fid_);
    return *this;
  }
  ~Fid() {
    if (Close() == -FI_EBUSY) CloseLater(&fid_->fid);
  }
  int Close() {
    if (fid_ == nullptr) return 0;
    const int result = fi_close(&fid_->fid);
    if (result == 0) fid_ = nullptr;
    return result;
  }
  T** Out() { return &fid_; }
  T* get() const { return fid_; }
  operator T*() const { return fid_; }  // NOLINT: as a T* in every call
  T* operator->() const { return fid_; }
  fid* Base() const { return &fid_->fid; }

 private:
  T* fid_ = nullptr;
};

struct FreeInfo {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

// mr_mode bits that the helpers below follow.
constexpr int kAnyMrMode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

struct Ground;
class Peer;

// What is asked of fi_getinfo, of queues and of endpoints.
struct Wish {
  uint64_t caps = FI_MSG;
  int mr_mode = kAnyMrMode;
  uint32_t version = FI_VERSION(1, 17);
  std::function<void(fi_info*)> hints = {};   // may change them
  std::function<void(fi_info*)> chosen = {};  // may change what objects are opened of
  fi_cq_format format = FI_CQ_FORMAT_DATA;
  size_t cq_size = 0;
  fi_wait_obj wait = FI_WAIT_NONE;
  uint64_t tx_bind = 0, rx_bind = 0;  // FI_SELECTIVE_COMPLETION
  fi_av_type av_type = FI_AV_UNSPEC;
  bool is_cq_shared = false;                  // one CQ for both directions
  std::function<void(Peer&)> unenabled = {};  // between binding and enabling
  std::function<void(fi_cq_attr&, Ground&)> cq_attr = {};
};

// The hints of a wish, for who wants to change more.
Info HintsOf(const Wish& wish);
int TryGetInfo(const Wish& wish, Info* out, const char* node = nullptr,
               const char* service = nullptr, uint64_t flags = 0);
// The first entry; ends the case where there is none.
Info GetInfo(const Wish& wish);
// Whether the type asked about moves messages reliably.
bool IsReliable();
bool IsConnected();

// An EQ that PumpAll looks at, for providers whose connections progress only then.
class PumpedEq : public Fid<fid_eq> {
 public:
  explicit PumpedEq(Fid&& other) noexcept;
  PumpedEq(PumpedEq&& other) noexcept;
  ~PumpedEq();

 private:
  void Enlist();
};

// FI_MSG, and FI_RMA where the type of endpoint can have it.
uint64_t RmaCaps();

// A domain with nothing in it.
struct Ground {
  explicit Ground(const Wish& wish = {});
  explicit Ground(Info info, const Wish& wish = {});
  Info info;
  Fid<fid_fabric> fabric;
  std::optional<PumpedEq> eq;
  Fid<fid_domain> domain;

 private:
  void Open(const Wish& wish);
};

Fid<fid_eq> OpenEq(fid_fabric* fabric, fi_wait_obj wait = FI_WAIT_UNSPEC, uint64_t flags = 0);
Fid<fid_cq> OpenCq(fid_domain* domain, fi_cq_attr attr = {});
Fid<fid_cntr> OpenCntr(fid_domain* domain, fi_wait_obj wait = FI_WAIT_NONE);
Fid<fid_av> OpenAv(fid_domain* domain, fi_av_type type = FI_AV_UNSPEC);

// Registered memory, where the domain wants it registered or `access` is remote.
class Memory {
 public:
  Memory(Ground& ground, size_t bytes, uint64_t access = 0, uint8_t fill = 0, uint64_t key = 0);
  uint8_t* data() { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  void* desc() const { return mr_ ? fi_mr_desc(mr_) : nullptr; }
  uint64_t key() const { return mr_ ? fi_mr_key(mr_) : 0; }
  // What a peer says of byte `offset`.
  uint64_t Remote(size_t offset = 0) const { return base_ + offset; }
  Fid<fid_mr>& mr() { return mr_; }
  void Fill(uint32_t seed);
  bool Has(uint32_t seed, size_t bytes, size_t offset = 0) const;
  bool IsAll(uint8_t value, size_t from, size_t to) const;

 private:
  std::vector<uint8_t> bytes_;
  Fid<fid_mr> mr_;
  uint64_t base_ = 0;
};

// Registers by the domain's mode; a key of its own for each where the application chooses them.
int Register(Ground& ground, void* buffer, size_t bytes, uint64_t access, fid_mr** out,
             uint64_t key = 0, uint64_t flags = 0);
uint64_t NextKey();

struct Completion {
  void* context = nullptr;
  uint64_t flags = 0;
  size_t len = 0;
  void* buf = nullptr;
  uint64_t data = 0;
  fi_addr_t source = FI_ADDR_NOTAVAIL;
  int error = 0;  // positive, of fi_cq_readerr
  size_t olen = 0;
  int prov_errno = 0;
};

// What fi_getname says.
std::vector<uint8_t> AddressOf(fid_ep* ep);

// One end.
class Peer : public Ground {
 public:
  explicit Peer(const Wish& wish);
  Peer(Info info, const Wish& wish);
  ~Peer();
  void OpenEndpoint();  // unbound
  void Bind();
  void Enable();
  void Start();  // the three in this order
  std::vector<uint8_t> Address() { return AddressOf(ep); }
  // Another's address, put into the AV; what it is to this one.
  fi_addr_t Insert(Peer& another) { return Insert(another.ep); }
  fi_addr_t Insert(fid_ep* another);

  Wish wish;
  Fid<fid_av> av;
  Fid<fid_cq> tx_cq, rx_cq;
  Fid<fid_ep> ep;
  Info request;                      // of the FI_CONNREQ that it answers
  fi_addr_t other = FI_ADDR_UNSPEC;  // the other end, to this one

  fid_cq* TxCq() { return tx_cq; }
  fid_cq* RxCq() { return wish.is_cq_shared ? tx_cq.get() : rx_cq.get(); }

 private:
  void OpenQueues();
};

// A passive endpoint that listens.
struct Listener {
  explicit Listener(const Wish& wish = {}, fi_wait_obj wait = FI_WAIT_UNSPEC);
  Info info;
  Fid<fid_fabric> fabric;
  std::optional<PumpedEq> eq;
  Fid<fid_pep> pep;
  std::vector<uint8_t> address;
};

// What an EQ says next: an event with its data, an error, or nothing (`result` is -FI_EAGAIN).
struct Event {
  long result = 0;
  uint32_t kind = 0;
  fid_t fid = nullptr;
  fi_info* info = nullptr;  // of FI_CONNREQ
  std::vector<uint8_t> data;
  int error = 0;  // positive; of fi_eq_readerr
};
Event NextEvent(fid_eq* eq, int limit_ms = 5000);
// The next event, which has to be of this kind.
Event AwaitEvent(fid_eq* eq, uint32_t kind, const char* what);

// Two ends that can talk, in one process, each in a domain of its own.
class Pair {
 public:
  explicit Pair(const Wish& wish = {}) : Pair(wish, wish) {}
  Pair(const Wish& a, const Wish& b);
  std::unique_ptr<Peer> left, right;
  Peer& a() { return *left; }
  Peer& b() { return *right; }

 private:
  void Connect(const Wish& a, const Wish& b);
  void Introduce(const Wish& a, const Wish& b);
};

// Calls into everything that is open, for providers that progress only then.
void PumpAll();

std::optional<Completion> PollCq(fid_cq* cq, fi_cq_format format = FI_CQ_FORMAT_DATA);
// The next completion, error or not, within limit_ms; pumps the others meanwhile.
std::optional<Completion> AwaitAny(fid_cq* cq, int limit_ms = 4000,
                                   fi_cq_format format = FI_CQ_FORMAT_DATA);
// The next completion; an error or none ends the case.
Completion Await(fid_cq* cq, const char* what, fi_cq_format format = FI_CQ_FORMAT_DATA);
// The next completion, which has to be an error.
Completion AwaitError(fid_cq* cq, const char* what);
void ExpectNothing(fid_cq* cq, int during_ms, const char* what);
// Until it is true, pumping; false when it does not become so.
bool WaitUntil(const std::function<bool()>& condition, int limit_ms = 4000);
// Posts again while told to (-FI_EAGAIN), pumping.
long Post(const std::function<long()>& post, int limit_ms = 4000);
long NowMs();

// An operation context; providers may ask for room in it (FI_CONTEXT2).
void* ContextOf(size_t number);

// fi_send and fi_recv of a whole Memory, or of `bytes` of it.
void Send(Peer& peer, Memory& memory, size_t context = 0, size_t bytes = SIZE_MAX);
void Receive(Peer& peer, Memory& memory, size_t context = 0, size_t bytes = SIZE_MAX);
long Write(Peer& peer, Memory& from, Memory& to, size_t context, uint64_t flags = 0);

// The two ends in two processes: the child runs `far` with its end of a socket, and is killed when
// the case is over; the parent goes on with the other end.
class Other {
 public:
  explicit Other(const std::function<void(int)>& far);
  ~Other();
  int socket() const { return socket_; }
  int pid() const { return pid_; }
  void Kill(int signal);

 private:
  int pid_ = 0;
  int socket_ = -1;
};
void Tell(int socket, const void* data, size_t bytes);
void Hear(int socket, void* data, size_t bytes, int limit_ms = 6000);
template <typename T>
void Tell(int socket, const T& value) {
  Tell(socket, &value, sizeof(value));
}
template <typename T>
T Hear(int socket) {
  T value;
  Hear(socket, &value, sizeof(value));
  return value;
}

}  // namespace verbena::fi_test
