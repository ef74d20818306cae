#include "softnic/control/server.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "core/clock/monotonic_clock.h"
#include "softnic/control/admin.h"
#include "softnic/control/attached_client.h"
#include "softnic/control/cm_front.h"
#include "softnic/control/network_taps.h"
#include "softnic/control/watch.h"

namespace verbena::softnic {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr auto kHelloDeadline = std::chrono::seconds(5);
constexpr auto kAcceptPause = std::chrono::milliseconds(50);
// A program that comes disturbs those that move data: page tables change, the shard takes it in. A
// burst is served at once, a flood beyond it by the clock.
constexpr auto kAcceptInterval = std::chrono::milliseconds(1);
constexpr int kAcceptBurst = 256;
constexpr auto kIdleRecheck = std::chrono::milliseconds(100);
// For peers to hear of the end, even if the shard never comes to it.
constexpr auto kEndPatience = std::chrono::seconds(4);
constexpr int kAcceptsPerTurn = 64;

}  // namespace

NicConfig MakeNicConfig(const std::string& name_prefix, uint32_t index, uint32_t mtu_bytes) {
  NicConfig nic;
  nic.name = name_prefix + std::to_string(index);
  nic.ipv4 = 0x7f00'0001u + index;
  // Locally administered (bit 1 of the first byte), "vrb", then the number.
  const uint8_t mac[6] = {
      0x02, 'v', 'r', 'b', static_cast<uint8_t>(index >> 8), static_cast<uint8_t>(index)};
  std::memcpy(nic.mac, mac, sizeof(mac));
  nic.mtu_bytes = mtu_bytes;
  return nic;
}

// --- connections before they say what they are --------------------------------------------------

Connection::Connection(ControlServer* server, asio::posix::stream_descriptor socket)
    : server_(server), socket_(std::move(socket)), deadline_(server->io()) {}

void Connection::AwaitHello() {
  auto self = shared_from_this();
  deadline_.expires_after(kHelloDeadline);
  deadline_.async_wait([self](error_code error) {
    if (!error) self->Close();
  });
  socket_.async_wait(asio::posix::stream_descriptor::wait_read, [self](error_code error) {
    if (error || self->is_done_) return;
    shm::Hello hello = {};
    // MSG_TRUNC reports the packet's true size: a longer one is as wrong as a shorter one.
    ssize_t n =
        recv(self->socket_.native_handle(), &hello, sizeof(hello), MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return self->AwaitHello();
    if (n != sizeof(hello) || hello.magic != shm::kAbiMagic) {
      self->server_->refused_ += 1;
      return self->Close();
    }
    self->OnHello(hello);
  });
}

void Connection::Close() {
  is_done_ = true;
  error_code ignored;
  deadline_.cancel(ignored);
  socket_.close(ignored);
  server_->pending_.erase(this);
}

void Connection::OnHello(const shm::Hello& hello) {
  UniqueFd socket(socket_.release());
  ControlServer* server = server_;
  auto self = shared_from_this();
  Close();
  const auto kind = static_cast<shm::HelloKind>(hello.kind);
  if (kind == shm::HelloKind::kCm) {
    return server->FrontOf(hello.netns)->Accept(std::move(socket), hello);
  }
  if (hello.abi_version != shm::kAbiVersion) {
    shm::Welcome welcome = {};
    welcome.magic = shm::kAbiMagic;
    welcome.abi_version = shm::kAbiVersion;
    welcome.error = EPROTO;
    SendWithFds(socket.get(), &welcome, sizeof(welcome), nullptr, 0);
    return;
  }
  switch (kind) {
    case shm::HelloKind::kAttach:
      return server->Attach(std::move(socket), hello);
    case shm::HelloKind::kList:
      return server->List(std::move(socket), hello.netns);
    case shm::HelloKind::kAdmin:
      return server->Admin(std::move(socket));
    case shm::HelloKind::kImport:  // comes by another way
    case shm::HelloKind::kCm:      // see above
      break;
  }
  server->refused_ += 1;
}

// --- the server ---------------------------------------------------------------------------------

ControlServer::ControlServer(ControlConfig config, Device* device, ProcessDma* dma, Shard* shard,
                             Log log, const transport::NetworkNamespaces* namespaces)
    : config_(std::move(config)),
      device_(device),
      dma_(dma),
      shard_(shard),
      log_(log),
      signals_(io_, SIGTERM, SIGINT),
      paths_(config_.directory),
      listener_(io_),
      namespaces_(namespaces),
      accept_pause_(io_),
      idle_timer_(io_),
      started_(ReadMonotonicClock()) {
  const auto fronts = static_cast<uint32_t>(namespaces_->all().size());
  for (uint32_t i = 0; i < fronts; ++i) {
    cm_fronts_.push_back(std::make_unique<CmFront>(this, namespaces_->all()[i].get(), i, fronts));
  }
}

ControlServer::~ControlServer() {
  pending_.clear();
  clients_.clear();
}

double ControlServer::uptime_s() const {
  return static_cast<double>((ReadMonotonicClock() - started_).ns) / 1e9;
}

std::string ControlServer::Open() {
  std::string error = socket_.Open(config_.directory);
  if (!error.empty()) return error;
  paths_.Clear();
  int listener = dup(socket_.fd());
  if (listener < 0) return std::string("can't listen: ") + strerror(errno);
  listener_.assign(listener);
  OpenFronts();
  shard_->SetOnHostile([this](ClientPort* port) {
    asio::post(io_, [this, id = port->id] {
      for (auto& [client, owner] : clients_) {
        if (client->id() != id) continue;
        auto keep = owner;
        log_.Info("session " + std::to_string(id) + " is ended: its command queue lies");
        return keep->End("its command queue lies");
      }
    });
  });
  return "";
}

void ControlServer::ShowPaths(const std::vector<NicStatus>& nics) {
  if (is_stopping_) return;
  // The NICs work without them.
  std::string error = paths_.Show(nics, *namespaces_);
  if (!error.empty()) log_.Error(error);
  for (const auto& front : cm_fronts_) front->SetNics(nics);
}

CmFront* ControlServer::FrontOf(uint64_t netns) const {
  for (const auto& front : cm_fronts_) {
    if (front->netns() == namespaces_->Of(netns)->inode()) return front.get();
  }
  return cm_fronts_.front().get();
}

// NICs that are added later are in the daemon's own namespace.
CmFront* ControlServer::FrontOfNic(uint32_t nic) const {
  const auto found = front_of_nic_.find(nic);
  return found == front_of_nic_.end() ? cm_fronts_.front().get() : found->second;
}

// Before the leader runs: MADs come from then on.
void ControlServer::OpenFronts() {
  for (const NicStatus& nic : device_->ListNicStatuses()) {
    front_of_nic_[nic.info.index] = FrontOf(nic.netns);
  }
  device_->SetMadHandler([this](uint32_t nic, const Gid& local, const Gid& remote,
                                const std::byte* bytes, size_t length) {
    if (length == sizeof(transport::cm::Mad)) FrontOfNic(nic)->OnMad(nic, local, remote, bytes);
  });
  device_->SetLaneEndHandler([this](LaneId lane) {
    asio::post(io_, [this, lane] {
      for (const auto& front : cm_fronts_) front->OnLaneEnded(lane);
    });
  });
}

std::vector<ShowRow> ControlServer::ShowCm() const {
  std::vector<ShowRow> rows;
  for (const auto& front : cm_fronts_) {
    for (ShowRow& row : front->Show()) rows.push_back(std::move(row));
  }
  return rows;
}

CmCounters ControlServer::CountCm() const {
  CmCounters sum;
  for (const auto& front : cm_fronts_) sum += front->Counters();
  return sum;
}

void ControlServer::RefreshPaths() {
  shard_->Post(
      [this] { asio::post(io_, [this, nics = device_->ListNicStatuses()] { ShowPaths(nics); }); });
}

void ControlServer::Run() {
  AwaitSignals();
  Accept();
  StartIdleTime();
  io_.run();
}

void ControlServer::TellStopped() {
  for (auto& [client, owner] : clients_) client->SetStopping();
}

void ControlServer::AwaitSignals() {
  signals_.async_wait([this](error_code error, int) {
    if (!error) Stop();
  });
}

void ControlServer::Stop() {
  if (is_stopping_) return;
  is_stopping_ = true;
  log_.Info("stopping");
  socket_.Unlink();
  paths_.Clear();
  error_code ignored;
  listener_.close(ignored);
  const auto pending = pending_;  // closing one takes it out
  for (const auto& [connection, owner] : pending) connection->Close();
  fronts_to_end_ = cm_fronts_.size();
  for (const auto& front : cm_fronts_) {
    front->End([this] {
      if (--fronts_to_end_ == 0) EndRecordings();
    });
  }
  idle_timer_.expires_after(kEndPatience);
  idle_timer_.async_wait([this](error_code error) {
    if (!error) io_.stop();
  });
}

// The last thing, so that they have what the end itself sends.
void ControlServer::EndRecordings() {
  if (taps_ == nullptr) return io_.stop();
  shard_->Post([this] {
    asio::post(io_, [this, errors = taps_->EndRecordings()] {
      for (const std::string& error : errors) log_.Error(error);
      io_.stop();
    });
  });
}

void ControlServer::Accept() {
  listener_.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code error) {
    if (error || is_stopping_) return;
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      UniqueFd socket(
          accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.IsValid()) {
        if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR) break;
        // Out of fds or memory: those who wait in the backlog come later.
        log_.Error(std::string("can't accept a client: ") + strerror(errno));
        return AcceptAfter(kAcceptPause);
      }
      if (const int full = AddConnection(std::move(socket)); full != 0) {
        log_.Error(std::string("can't watch a client: ") + strerror(full));
        return AcceptAfter(kAcceptPause);
      }
      auto now = std::chrono::steady_clock::now();
      // Lies in the past by as many intervals as connections may still come at once.
      accepted_until_ =
          std::max(accepted_until_, now - kAcceptBurst * kAcceptInterval) + kAcceptInterval;
      if (accepted_until_ > now) return AcceptAfter(accepted_until_ - now);
    }
    Accept();
  });
}

void ControlServer::AcceptAfter(std::chrono::nanoseconds pause) {
  accept_pause_.expires_after(pause);
  accept_pause_.async_wait([this](error_code error) {
    if (!error) Accept();
  });
}

int ControlServer::AddConnection(UniqueFd socket) {
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 ||
      (peer.uid != geteuid() && peer.uid != 0) || pending_.size() >= config_.pending_max) {
    refused_ += 1;
    return 0;
  }
  asio::posix::stream_descriptor watched(io_);
  if (const int error = Watch(&socket, &watched); error != 0) {
    refused_ += 1;
    return error;
  }
  auto connection = std::make_shared<Connection>(this, std::move(watched));
  pending_.emplace(connection.get(), connection);
  connection->AwaitHello();
  return 0;
}

void ControlServer::Attach(UniqueFd socket, const shm::Hello& hello, const AttachedClient* joins) {
  int error = hello.abi_version == shm::kAbiVersion ? 0 : EPROTO;
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  if (error == 0 && getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    error = errno;
  }
  if (error == 0 && peer.uid != geteuid() && peer.uid != 0) error = EACCES;
  if (error == 0 && peer.pid <= 0) error = ESRCH;  // of a pid namespace we can't see
  if (error == 0 && clients_.size() >= config_.sessions_max) error = EMFILE;
  std::shared_ptr<AttachedClient> client;
  int reply = -1;
  if (error == 0) {
    reply = dup(socket.get());  // for saying why not, once the socket is the client's
    client = std::make_shared<AttachedClient>(this, peer.pid);
    error = client->Start(std::move(socket), hello, joins);
  } else {
    reply = socket.Release();
  }
  UniqueFd reply_socket(reply);
  if (error == 0) {
    clients_.emplace(client.get(), client);
    return;
  }
  log_.Info("can't attach pid " + std::to_string(peer.pid) + ": " + strerror(error));
  shm::Welcome welcome = {};
  welcome.magic = shm::kAbiMagic;
  welcome.abi_version = shm::kAbiVersion;
  welcome.error = error;
  SendWithFds(reply_socket.get(), &welcome, sizeof(welcome), nullptr, 0);
}

void ControlServer::Forget(AttachedClient* client) {
  clients_.erase(client);
  if (clients_.empty()) {
    // What thousands of objects took goes back to the machine: nobody is left whom it would delay.
    shard_->Post([] { malloc_trim(0); });
  }
  StartIdleTime();
}

void ControlServer::List(UniqueFd socket, uint64_t netns) {
  auto shared = std::make_shared<UniqueFd>(std::move(socket));
  shard_->Post([this, shared, front = FrontOf(netns)] {
    auto nics = std::make_shared<std::vector<shm::NicInfo>>(device_->ListNics());
    std::erase_if(*nics, [&](const shm::NicInfo& nic) { return FrontOfNic(nic.index) != front; });
    asio::post(io_, [shared, nics] {
      auto reply = std::make_unique<shm::ListReply>();
      std::memset(static_cast<void*>(reply.get()), 0, sizeof(*reply));
      reply->magic = shm::kAbiMagic;
      reply->abi_version = shm::kAbiVersion;
      reply->count = static_cast<uint32_t>(std::min<size_t>(nics->size(), shm::kMaxNics));
      std::copy_n(nics->begin(), reply->count, reply->nics);
      size_t bytes = offsetof(shm::ListReply, nics) + reply->count * sizeof(shm::NicInfo);
      SendWithFds(shared->get(), reply.get(), bytes, nullptr, 0);
    });
  });
}

void ControlServer::Admin(UniqueFd socket) {
  asio::posix::stream_descriptor watched(io_);
  if (Watch(&socket, &watched) != 0) {
    refused_ += 1;
    return;
  }
  std::make_shared<AdminConnection>(this, std::move(watched))->Start();
}

void ControlServer::DropHold() {
  holds_ -= 1;
  StartIdleTime();
}

void ControlServer::StartIdleTime() {
  if (config_.idle_exit_s == 0 || IsUsed()) return;
  AwaitIdleEnd(std::chrono::seconds(config_.idle_exit_s));
}

// A newer wait cancels the older one.
void ControlServer::AwaitIdleEnd(std::chrono::milliseconds wait) {
  if (is_stopping_) return;
  idle_timer_.expires_after(wait);
  idle_timer_.async_wait([this](error_code error) {
    if (error || IsUsed()) return;  // whose end starts the time anew
    if (!pending_.empty() || requests_ != 0) return AwaitIdleEnd(kIdleRecheck);
    log_.Info("nobody came for " + std::to_string(config_.idle_exit_s) + " s");
    Stop();
  });
}

}  // namespace verbena::softnic
