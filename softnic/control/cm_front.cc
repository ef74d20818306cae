#include "softnic/control/cm_front.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/clock/monotonic_clock.h"
#include "softnic/control/client_session.h"
#include "softnic/control/program_name.h"
#include "softnic/control/server.h"
#include "softnic/control/watch.h"

namespace verbena::softnic {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// Of one client before the others have their turn.
constexpr int kRequestsPerTurn = 16;
// Received and not looked at yet; what is more is lost, as UD is, and sent again.
constexpr size_t kMadsWaitingMax = 8192;
// For peers to answer; less than `verbena run` waits for its instance's end.
constexpr std::chrono::seconds kEndPatience(3);

uint64_t RandomNumber() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) {
    number = static_cast<uint64_t>(ReadMonotonicClock().ns);
  }
  return number;
}

CmServiceConfig ConfigOfService(uint32_t front, uint32_t fronts) {
  CmServiceConfig config;
  config.first_session = front + 1;
  config.session_step = fronts;
  config.seed = RandomNumber();
  config.looks_up_destinations = true;
  return config;
}

shm::CmAddress AddressOf(const transport::InterfaceAddress& address) {
  shm::CmAddress out = {};
  if (address.gid.IsIpv4Mapped()) {
    out.family = AF_INET;
    std::memcpy(out.addr, address.gid.raw.data() + 12, 4);
  } else {
    out.family = AF_INET6;
    std::memcpy(out.addr, address.gid.raw.data(), sizeof(out.addr));
    if (address.link_local) out.scope_id = address.interface_index;
  }
  return out;
}

bool NeedsAddresses(const shm::CmRequest& request) {
  const auto op = static_cast<shm::CmOp>(request.op);
  return op == shm::CmOp::kBind || op == shm::CmOp::kResolveAddr;
}

}  // namespace

// --- one client ----------------------------------------------------------------------------------

CmClient::CmClient(CmFront* front, asio::posix::stream_descriptor socket, uint32_t session,
                   std::string program, int pid)
    : front_(front),
      socket_(std::move(socket)),
      session_(session),
      program_(std::move(program)),
      pid_(pid) {}

void CmClient::AwaitRequest() {
  socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this()](error_code error) {
                       if (!error && !self->is_ended_) self->ServeRequests();
                     });
}

void CmClient::ServeRequests() {
  for (int i = 0; i < kRequestsPerTurn; ++i) {
    shm::CmRequest request;
    // MSG_TRUNC reports the packet's true size: a longer one is as wrong as a shorter one.
    ssize_t n = recv(socket_.native_handle(), &request, sizeof(request), MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (n != sizeof(request)) return End(n > 0 ? "it sent no request" : "it closed its socket");
    if (!Answer(request)) return;
  }
  AwaitRequest();
}

int CmClient::OpenChannel(shm::CmHandle handle, int* client_end) {
  CmChannelFd channel;
  if (int error = channel.Open(); error != 0) return error;
  *client_end = channels_.insert_or_assign(handle, std::move(channel)).first->second.client_end();
  return 0;
}

// What a reply says about a channel's queue is true of its fd already.
bool CmClient::Answer(const shm::CmRequest& request) {
  shm::CmReply reply;
  std::memset(static_cast<void*>(&reply), 0, sizeof(reply));
  front_->Request(session_, request, &reply);
  const auto op = static_cast<shm::CmOp>(request.op);
  int client_end = -1;
  if (op == shm::CmOp::kDestroyChannel && reply.error == 0) channels_.erase(request.handle);
  if (op == shm::CmOp::kGetEvent && reply.error == 0) WakeAnother(request.handle);
  if (op == shm::CmOp::kCreateChannel && reply.error == 0) {
    const shm::CmHandle handle = reply.handle;
    reply.error = OpenChannel(handle, &client_end);
    if (reply.error != 0) Withdraw(handle, &reply);
  }
  int error = SendWithFds(socket_.native_handle(), &reply, sizeof(reply), &client_end,
                          client_end < 0 ? 0 : 1);
  if (error == ETOOMANYREFS) {
    // So many fds are on their way to this user's processes that the kernel takes no more.
    reply.error = EMFILE;
    Withdraw(reply.handle, &reply);
    error = SendWithFds(socket_.native_handle(), &reply, sizeof(reply), nullptr, 0);
  }
  if (error == 0) return true;
  End("it does not read its replies");
  return false;
}

// A channel whose fd can't be had is none.
void CmClient::Withdraw(shm::CmHandle channel, shm::CmReply* reply) {
  shm::CmRequest request = {};
  request.op = static_cast<uint32_t>(shm::CmOp::kDestroyChannel);
  request.handle = channel;
  shm::CmReply ignored;
  front_->Request(session_, request, &ignored);
  channels_.erase(channel);
  reply->handle = 0;
}

void CmClient::SetReadable(shm::CmHandle channel, bool is_readable) {
  auto it = channels_.find(channel);
  if (it != channels_.end()) it->second.SetReadable(is_readable);
}

void CmClient::WakeAnother(shm::CmHandle channel) {
  auto it = channels_.find(channel);
  if (it != channels_.end()) it->second.WakeAnother();
}

void CmClient::End(const char* why) {
  if (is_ended_) return;
  is_ended_ = true;
  front_->server_->log().Debug("cm session " + std::to_string(session_) + " of " + program_ +
                               " ends: " + why);
  error_code ignored;
  socket_.close(ignored);
  channels_.clear();
  front_->Forget(session_);
}

// --- all of them ---------------------------------------------------------------------------------

CmFront::CmFront(ControlServer* server, const transport::NetworkNamespace* where, uint32_t front,
                 uint32_t fronts)
    : server_(server),
      where_(where),
      service_(ConfigOfService(front, fronts)),
      look_ups_(&server->io(), where,
                [this](const CmService::LookUp& what, int error) {
                  service_.OnLookedUp(what, error);
                  Drain();
                }),
      timer_(server->io()),
      end_timer_(server->io()) {}

CmFront::~CmFront() = default;

void CmFront::OnLaneEnded(LaneId lane) {
  service_.OnLaneEnded(ReadMonotonicClock(), lane);
  Drain();
}

void CmFront::Accept(UniqueFd socket, const shm::Hello& hello) {
  shm::CmWelcome welcome = {};
  welcome.magic = shm::kAbiMagic;
  welcome.abi_version = shm::kAbiVersion;
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  if (hello.abi_version != shm::kAbiVersion) {
    welcome.error = EPROTO;
  } else if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    welcome.error = errno;
  } else if (connections_.size() >= server_->config().sessions_max) {
    welcome.error = EMFILE;
  }
  asio::posix::stream_descriptor watched(server_->io());
  if (welcome.error == 0) welcome.error = Watch(&socket, &watched);
  const int fd = watched.is_open() ? watched.native_handle() : socket.get();
  const int error = SendWithFds(fd, &welcome, sizeof(welcome), nullptr, 0);
  if (error != 0 || welcome.error != 0) return;
  WatchAddresses();
  const uint32_t session = service_.OpenSession();
  std::string program = ProgramNameOf(hello.program, sizeof(hello.program));
  server_->log().Debug("cm session " + std::to_string(session) + " opened by " + program +
                       " (pid " + std::to_string(peer.pid) + ")");
  auto connection =
      std::make_shared<CmClient>(this, std::move(watched), session, std::move(program), peer.pid);
  connections_.emplace(session, connection);
  server_->AddHold();
  connection->AwaitRequest();
}

void CmFront::Forget(uint32_t session) {
  if (connections_.erase(session) == 0) return;
  service_.CloseSession(ReadMonotonicClock(), session);
  look_ups_.Withdraw(session);
  Drain();
  server_->DropHold();
}

void CmFront::Request(uint32_t session, const shm::CmRequest& request, shm::CmReply* reply) {
  if (NeedsAddresses(request)) LookAtAddresses();
  service_.OnRequest(ReadMonotonicClock(), session, request, reply);
  LookUp(reply);
  const bool is_gone =
      request.op == static_cast<uint32_t>(shm::CmOp::kDestroyId) && reply->error == 0;
  if (is_gone) look_ups_.Withdraw(session, request.handle);
  Drain();
}

// No other input brings any, so that what is here is the request's.
void CmFront::LookUp(shm::CmReply* reply) {
  CmService::LookUp what;
  while (service_.PollLookUp(&what)) {
    const int error = look_ups_.Start(what);
    if (error == 0) continue;
    service_.WithdrawLookUp(what);
    reply->error = error;
  }
}

void CmFront::End(std::function<void()> done) {
  ended_ = std::move(done);
  while (!connections_.empty()) {
    auto connection = connections_.begin()->second;
    connection->End("the daemon ends");
  }
  service_.PrepareEnd(ReadMonotonicClock());
  end_timer_.expires_after(kEndPatience);
  end_timer_.async_wait([this](error_code error) {
    if (!error) CompleteEnd();
  });
  Drain();
}

// What was sent last is on its way when the shard has come here.
void CmFront::CompleteEnd() {
  if (ended_ == nullptr) return;
  end_timer_.cancel();
  server_->shard()->Post([server = server_, done = std::exchange(ended_, nullptr)] {
    asio::post(server->io(), done);
  });
}

void CmFront::Drain() {
  CmService::ChannelState state;
  while (service_.PollChannel(&state)) {
    auto it = connections_.find(state.session);
    if (it != connections_.end()) it->second->SetReadable(state.channel, state.is_readable);
  }
  OrderLanes();
  SendMads();
  ArmTimer();
  if (ended_ != nullptr && connections_.empty() && !service_.AwaitsPeers()) CompleteEnd();
}

// --- MADs and time -------------------------------------------------------------------------------

void CmFront::SendMads() {
  std::vector<CmService::OutMad> mads;
  CmService::OutMad mad;
  while (service_.PollMad(&mad)) mads.push_back(mad);
  if (mads.empty()) return;
  server_->shard()->Post(
      [device = server_->device(), shard = server_->shard(), mads = std::move(mads)] {
        for (const CmService::OutMad& mad : mads) {
          // An address that the NIC has no more: lost, and its connection times out.
          (void)device->SendMad(shard->now(), mad.nic, mad.route.local, mad.route.remote,
                                mad.mad.data(), mad.mad.size());
        }
      });
}

// In the order in which they were made, as what comes of them is told.
void CmFront::OrderLanes() {
  std::vector<CmService::LaneOrder> orders;
  CmService::LaneOrder order;
  while (service_.PollLaneOrder(&order)) orders.push_back(order);
  if (orders.empty()) return;
  server_->shard()->Post(
      [this, device = server_->device(), shard = server_->shard(), orders = std::move(orders)] {
        for (const CmService::LaneOrder& order : orders) {
          const auto tell = [this](auto what) {
            asio::post(server_->io(), [this, what] {
              what(service_, ReadMonotonicClock());
              Drain();
            });
          };
          switch (order.kind) {
            case CmService::LaneOrder::Kind::kMake:
              tell([nic = order.nic, comm = order.comm,
                    answer = device->MakeLane(shard->now(), order.request)](CmService& service,
                                                                            Instant now) {
                service.OnLaneMade(now, nic, comm, answer);
              });
              break;
            case CmService::LaneOrder::Kind::kConnectSender:
              tell([nic = order.nic, comm = order.comm,
                    error = device->ConnectSender(shard->now(), order.sender)](CmService& service,
                                                                               Instant now) {
                service.OnSenderConnected(now, nic, comm, error);
              });
              break;
            case CmService::LaneOrder::Kind::kDrop:
              device->DropLane(shard->now(), order.lane);
              break;
          }
        }
      });
}

// The leader's. Control takes all that have come by the time it looks.
void CmFront::OnMad(uint32_t nic, const Gid& local, const Gid& remote, const std::byte* bytes) {
  {
    std::lock_guard lock(mutex_);
    if (received_.size() >= kMadsWaitingMax) return;
    ReceivedMad& mad = received_.emplace_back();
    mad.nic = nic;
    mad.local = local;
    mad.remote = remote;
    std::memcpy(mad.bytes.data(), bytes, mad.bytes.size());
    if (received_.size() != 1) return;  // it knows
  }
  asio::post(server_->io(), [this] { TakeMads(); });
}

void CmFront::TakeMads() {
  std::vector<ReceivedMad> mads;
  {
    std::lock_guard lock(mutex_);
    mads.swap(received_);
  }
  const Instant now = ReadMonotonicClock();
  for (const ReceivedMad& mad : mads) {
    service_.OnMad(now, mad.nic, mad.local, mad.remote, mad.bytes.data(), mad.bytes.size());
  }
  Drain();
}

// A timer that is set for an earlier time is let fire.
void CmFront::ArmTimer() {
  const Instant due = service_.PollTimeout();
  if (due >= timer_due_) return;
  timer_due_ = due;
  // steady_clock is CLOCK_MONOTONIC, as the shard's.
  timer_.expires_at(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(due.ns)));
  timer_.async_wait([this](error_code error) {
    if (error) return;
    timer_due_ = Instant::Never();
    service_.OnTimeout(ReadMonotonicClock());
    Drain();
  });
}

// --- NICs and addresses --------------------------------------------------------------------------

void CmFront::SetNics(const std::vector<NicStatus>& nics) {
  nics_ = nics;
  std::erase_if(nics_, [this](const NicStatus& nic) { return nic.netns != netns(); });
  TellNics();
}

void CmFront::TellNics() {
  std::vector<CmNic> nics;
  for (const NicStatus& status : nics_) {
    CmNic nic;
    nic.index = status.info.index;
    nic.name.assign(status.info.name, strnlen(status.info.name, sizeof(status.info.name)));
    nic.node_guid = status.info.node_guid;
    nic.gids = status.gids;
    for (const Gid& gid : nic.gids) {
      const auto* interface = interfaces_.list().Find(interfaces_.list().IndexOf(gid));
      nic.hardware.push_back(interface == nullptr ? CmHardwareAddress{} : interface->mac);
    }
    nic.active_mtu_bytes = status.active_mtu_bytes;
    nic.is_up = status.is_up;
    nic.is_local_only = status.network.empty();
    for (const transport::InterfaceAddress& address : interfaces_.list().addresses) {
      const bool is_its =
          !nic.is_local_only && address.link_local &&
          std::find(nic.gids.begin(), nic.gids.end(), address.gid) != nic.gids.end();
      if (is_its) nic.scope_id = address.interface_index;
    }
    nics.push_back(std::move(nic));
  }
  service_.SetNics(ReadMonotonicClock(), std::move(nics));
  Drain();
}

void CmFront::TellAddresses() {
  std::vector<shm::CmAddress> addresses;
  for (const transport::InterfaceAddress& address : interfaces_.list().addresses) {
    if (address.usable) addresses.push_back(AddressOf(address));
  }
  service_.SetHostAddresses(std::move(addresses));
}

bool CmFront::OpenInterfaces() {
  const transport::NamespaceVisit visit(where_);
  return interfaces_.Open();
}

// Nobody asks for the host's addresses before the first client.
void CmFront::WatchAddresses() {
  if (watched_ != nullptr) return;
  if (!OpenInterfaces()) {
    server_->log().Error(std::string("can't read this host's addresses, so rdma_cm knows those of "
                                     "NICs alone: ") +
                         strerror(errno));
    return;
  }
  TellAddresses();
  TellNics();
  UniqueFd fd(dup(interfaces_.fd()));
  auto watched = std::make_unique<asio::posix::stream_descriptor>(server_->io());
  // Then they are looked at with each client that comes, and before requests that need them.
  if (!fd.IsValid() || Watch(&fd, watched.get()) != 0) return;
  watched_ = std::move(watched);
  AwaitAddressChange();
}

void CmFront::AwaitAddressChange() {
  watched_->async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code error) {
    if (error) return;
    LookAtAddresses();
    AwaitAddressChange();
  });
}

// Also before a request that needs them: whoever gave the host an address and then uses it must not
// be told that it has none.
void CmFront::LookAtAddresses() {
  if (interfaces_.fd() < 0) return;
  std::vector<transport::InterfaceChange> changes;
  {
    const transport::NamespaceVisit visit(where_);
    interfaces_.Poll(&changes);
  }
  if (changes.empty()) return;
  TellAddresses();
  TellNics();
}

// --- sight ---------------------------------------------------------------------------------------

std::vector<ShowRow> CmFront::Show() const {
  std::vector<ShowRow> rows;
  for (CmService::SessionRow& found : service_.Show()) {
    auto owner = connections_.find(found.session);
    ShowRow row;
    row.fields = {{"session", std::to_string(found.session)}};
    if (netns() != 0) row.fields.emplace_back("netns", where_->name());
    if (owner != connections_.end()) {
      row.fields.emplace_back("program", owner->second->program());
      row.fields.emplace_back("pid", std::to_string(owner->second->pid()));
    }
    row.fields.insert(row.fields.end(), found.row.fields.begin(), found.row.fields.end());
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace verbena::softnic
