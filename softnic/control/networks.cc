#include "softnic/control/networks.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstring>
#include <utility>

#include "core/clock/monotonic_clock.h"
#include "softnic/control/port_holder.h"
#include "softnic/control/server.h"

namespace verbena::softnic {

using transport::Interface;
using transport::InterfaceAddress;
using transport::PortError;
using transport::UdpPortError;
using transport::UdpPortErrorKind;

namespace {

// Blocks of loopback addresses for --wire: 127.64.0.0 and up, 64 addresses each.
constexpr uint32_t kLoopbackBlocks = 0x7f40'0000;
constexpr uint32_t kBlockAddresses = 64;
constexpr uint32_t kBlocks = 0x0080'0000 / kBlockAddresses;
constexpr uint32_t kBlockAttempts = 256;
// The kernel closes the sockets of an io_uring a moment after its process has ended: whoever
// restarts an instance must not find its own port busy.
constexpr int kBusyAttempts = 25;
constexpr useconds_t kBusyPauseUs = 20'000;

uint32_t Ipv4Of(const Gid& gid) {
  if (!gid.IsIpv4Mapped()) return 0;
  uint32_t ipv4 = 0;
  for (int i = 12; i < 16; ++i) ipv4 = ipv4 << 8 | gid.raw[i];
  return ipv4;
}

std::string Explain(const UdpPortError& error, const transport::NetworkNamespace* where) {
  if (error.kind == UdpPortErrorKind::kNoUring) {
    return error.text + "; use net-io=epoll, which is the default";
  }
  if (error.kind != UdpPortErrorKind::kPortBusy) return error.text;
  const transport::NamespaceVisit visit(where);
  std::string holder = HolderOfUdpPort(error.address.gid, error.port);
  if (holder.empty()) return error.text;
  return "UDP port " + std::to_string(error.port) + " of " + TextOf(error.address) +
         " is held by " + holder + ": end it, or choose another address";
}

}  // namespace

Networks::Networks(NetworkOptions options) : options_(std::move(options)) {}
Networks::~Networks() = default;

bool Networks::OpenPort(Network* network, UdpPortError* error) {
  network->port = transport::OpenUdpPort(network->config, options_.net_io, error);
  return network->port != nullptr;
}

std::string Networks::Open(uint32_t count, const std::string& name_prefix, uint32_t mtu_bytes,
                           std::vector<NicConfig>* out) {
  mtu_max_bytes_ = mtu_bytes;
  for (const NicSpec& spec : options_.nics) {
    std::string error = OpenSpec(spec, name_prefix, out);
    if (!error.empty()) return error;
  }
  if (!options_.is_wire || !options_.nics.empty()) return "";
  Surroundings* surroundings = nullptr;
  if (std::string error = SurroundingsOf("", &surroundings); !error.empty()) return error;
  return OpenLoopback(surroundings, count, name_prefix, out);
}

std::string Networks::SurroundingsOf(const std::string& netns, Surroundings** out) {
  const transport::NetworkNamespace* where = nullptr;
  if (std::string error = namespaces_.Find(netns, &where); !error.empty()) return error;
  for (const auto& known : surroundings_) {
    if (known->where != where) continue;
    *out = known.get();
    return "";
  }
  const transport::NamespaceVisit visit(where);
  auto surroundings = std::make_unique<Surroundings>();
  surroundings->where = where;
  if (!surroundings->watcher.Open()) {
    return std::string("can't read this host's interfaces (netlink): ") + strerror(errno);
  }
  *out = surroundings.get();
  surroundings_.push_back(std::move(surroundings));
  return "";
}

std::string Networks::OpenSpec(const NicSpec& spec, const std::string& name_prefix,
                               std::vector<NicConfig>* out) {
  Surroundings* surroundings = nullptr;
  if (std::string error = SurroundingsOf(spec.netns, &surroundings); !error.empty()) {
    return "--nic " + error;
  }
  const std::string where = spec.netns.empty() ? "this host" : "netns=" + spec.netns;
  const transport::InterfaceList& list = surroundings->watcher.list();
  auto network = std::make_unique<Network>();
  network->nic = static_cast<uint32_t>(out->size());
  network->surroundings = surroundings;
  network->config.netns = surroundings->where;
  Gid link_local;
  const Interface* first = nullptr;
  for (const NicAddress& address : spec.addresses) {
    if (const Network* other = FindNetwork(address.gid); other != nullptr) {
      return "--nic ip=" + address.text + ": " + other->name +
             " has this address; those of an instance must differ, also where their networks do";
    }
    const Interface* interface = nullptr;
    for (const Interface& candidate : list.interfaces) {
      if (!address.interface.empty() && candidate.name == address.interface) interface = &candidate;
    }
    if (!address.interface.empty() && interface == nullptr) {
      return "--nic ip=" + address.text + ": there is no interface " + address.interface;
    }
    if (interface == nullptr) interface = list.Find(list.IndexOf(address.gid));
    if (interface == nullptr) {
      return "--nic ip=" + address.text + ": no interface of " + where +
             " has this address; `ip address` lists those there are";
    }
    if (transport::PathMtuFor(interface->mtu) == 0) {
      return "--nic ip=" + address.text + ": the MTU of " + interface->name + ", " +
             std::to_string(interface->mtu) + ", is too small for RoCE; " +
             std::to_string(transport::kInterfaceMtuMin) + " is the least";
    }
    if (first == nullptr) first = interface;
    if (transport::IsLinkLocal(address.gid)) link_local = address.gid;
    network->config.addresses.push_back({address.gid, interface->index});
  }
  network->given = network->config.addresses.size();
  // As on a host's real NIC, the interface's link-local address is GID 0.
  if (const InterfaceAddress* found = list.LinkLocalOf(first->index);
      link_local.IsZero() && found != nullptr && found->usable &&
      FindNetwork(found->gid) == nullptr) {
    link_local = found->gid;
    network->config.addresses.push_back({found->gid, first->index});
  }
  network->mtu_bytes = PathMtuOf(*network);
  bool shares_interface = false;
  UdpPortError error;
  for (int attempt = 1; !OpenPort(network.get(), &error); ++attempt) {
    if (error.kind != UdpPortErrorKind::kPortBusy) return Explain(error, surroundings->where);
    if (attempt < kBusyAttempts) {
      usleep(kBusyPauseUs);
      continue;
    }
    // Another instance's NIC has the link-local address, which nobody asked for here.
    const bool is_given = network->config.addresses.size() == network->given;
    if (is_given || error.address.gid != link_local) {
      return Explain(error, surroundings->where);
    }
    network->config.addresses.pop_back();
    link_local = {};
    shares_interface = true;
  }
  NicConfig config = MakeNicConfig(name_prefix, network->nic, network->mtu_bytes);
  if (!spec.name.empty()) config.name = spec.name;
  // From the MAC come GUIDs, and GID 0 where there is no link-local address. Interfaces in several
  // namespaces may have the same one.
  const bool is_mac_taken =
      shares_interface || std::any_of(out->begin(), out->end(), [first](const NicConfig& other) {
        return std::equal(first->mac.begin(), first->mac.end(), other.mac);
      });
  if (!first->loopback && !is_mac_taken) {
    std::copy(first->mac.begin(), first->mac.end(), config.mac);
  }
  config.ipv4 = 0;
  for (const NicAddress& address : spec.addresses) {
    if (config.ipv4 == 0) config.ipv4 = Ipv4Of(address.gid);
  }
  config.has_subnet_lids = config.ipv4 != 0;
  config.netns = surroundings->where->inode();
  config.is_wire_only = options_.is_wire;
  // Without one, a link-local GID is made from the MAC; no packet uses it.
  config.gids.push_back(link_local.IsZero() ? LinkLocalGidOf(config) : link_local);
  for (const NicAddress& address : spec.addresses) {
    if (address.gid != link_local) config.gids.push_back(address.gid);
  }
  network->name = config.name;
  out->push_back(std::move(config));
  networks_.push_back(std::move(network));
  return "";
}

const Networks::Network* Networks::FindNetwork(const Gid& gid) const {
  for (const auto& network : networks_) {
    for (const transport::UdpAddress& address : network->config.addresses) {
      if (address.gid == gid) return network.get();
    }
  }
  return nullptr;
}

// Other instances take blocks too, of this user or another: bind() tells who was first.
std::string Networks::OpenLoopback(const Surroundings* surroundings, uint32_t count,
                                   const std::string& name_prefix, std::vector<NicConfig>* out) {
  uint32_t block = static_cast<uint32_t>(getpid()) * 0x9e37'79b1u >> 16;
  UdpPortError error;
  for (uint32_t attempt = 0; attempt < kBlockAttempts; ++attempt, ++block) {
    uint32_t base = kLoopbackBlocks + block % kBlocks * kBlockAddresses;
    std::vector<std::unique_ptr<Network>> networks;
    for (uint32_t i = 0; i < count; ++i) {
      auto network = std::make_unique<Network>();
      network->nic = static_cast<uint32_t>(out->size()) + i;
      network->surroundings = surroundings;
      network->config.addresses.push_back({Gid::FromIpv4(base + 1 + i), 0});
      if (!OpenPort(network.get(), &error)) break;
      networks.push_back(std::move(network));
    }
    if (networks.size() < count) {
      if (error.kind == UdpPortErrorKind::kPortBusy) continue;
      return Explain(error, surroundings->where);
    }
    for (auto& network : networks) {
      network->mtu_bytes = mtu_max_bytes_;
      NicConfig config = MakeNicConfig(name_prefix, network->nic, network->mtu_bytes);
      config.ipv4 = Ipv4Of(network->config.addresses[0].gid);
      config.is_wire_only = true;
      network->name = config.name;
      out->push_back(std::move(config));
      networks_.push_back(std::move(network));
    }
    return "";
  }
  std::string holder = HolderOfUdpPort(Gid{}, transport::wire::kRoceUdpPort);
  return "UDP port 4791 is taken on every loopback address tried" +
         (holder.empty() ? std::string() : ", by " + holder) +
         "; a loaded rdma_rxe module does that, `rmmod rdma_rxe` frees it";
}

std::string OpenRecordingFile(const std::string& path, UniqueFd* out) {
  // A pipe without a reader is an error now rather than a wait.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK;
  *out = UniqueFd(open(path.c_str(), kFlags, 0644));
  if (out->IsValid()) return "";
  if (errno == ENXIO) return "can't record to " + path + ": nobody reads this pipe yet";
  return "can't record to " + path + ": " + strerror(errno);
}

std::string Networks::Attach(Device* device, Shard* shard) {
  device_ = device;
  shard_ = shard;
  if (networks_.empty()) return "";
  std::vector<TapTarget> targets;
  for (const auto& network : networks_) {
    targets.push_back({network->nic, network->name, network->port.get()});
  }
  taps_ = std::make_unique<NetworkTaps>(device, std::move(targets), options_.seed);
  if (!options_.faults.rules.empty()) taps_->SetFaults(ReadMonotonicClock(), options_.faults);
  for (const auto& [kind, path] : {std::pair(RecordingKind::kCapture, options_.capture_path),
                                   std::pair(RecordingKind::kTrace, options_.trace_path)}) {
    if (path.empty()) continue;
    UniqueFd fd;
    std::string error = OpenRecordingFile(path, &fd);
    if (!error.empty()) return error;
    taps_->StartRecording(kind, ReadMonotonicClock(), fd.Release(), /*limit_bytes=*/0);
  }
  for (const auto& network : networks_) {
    if (!shard->AddNetwork(network->port.get())) {
      return std::string("can't poll the network: ") + strerror(errno);
    }
  }
  return "";
}

// --- interfaces that come and go -----------------------------------------------------------------

void Networks::Watch(boost::asio::io_context& io, const Log& log, std::function<void()> on_change) {
  if (networks_.empty()) return;
  TellErrors(io, log);
  on_change_ = std::move(on_change);
  for (const auto& surroundings : surroundings_) {
    surroundings->watched = std::make_unique<boost::asio::posix::stream_descriptor>(
        io, dup(surroundings->watcher.fd()));
    AwaitChanges(surroundings.get(), log);
  }
}

// The shard does not wait for a log: the control thread writes it.
void Networks::TellErrors(boost::asio::io_context& io, const Log& log) {
  for (const auto& network : networks_) {
    network->port->OnFirstError([&io, log, name = network->name](PortError kind, int error) {
      const std::string text = Describe(kind, error);
      if (text.empty()) return;
      boost::asio::post(io, [log, line = name + ": " + text] { log.Info(line); });
    });
  }
  taps_->OnRecordingEnd([&io, log](RecordingKind kind, const std::string& why) {
    const std::string line = std::string("the ") + NameOf(kind) + " ended: " + why;
    boost::asio::post(io, [log, line] { log.Info(line); });
  });
}

void Networks::AwaitChanges(Surroundings* surroundings, const Log& log) {
  surroundings->watched->async_wait(boost::asio::posix::stream_descriptor::wait_read,
                                    [this, surroundings, log](boost::system::error_code error) {
                                      if (error) return;
                                      LookAtInterfaces(surroundings, log);
                                      on_change_();
                                      AwaitChanges(surroundings, log);
                                    });
}

const Interface* Networks::InterfaceOf(const Network& network,
                                       const transport::UdpAddress& address) {
  const transport::InterfaceList& list = network.surroundings->watcher.list();
  // Every 127.a.b.c is there while loopback is.
  uint32_t index = list.IndexOf(address.gid);
  if (transport::IsLinkLocal(address.gid)) index = address.interface_index;
  return list.Find(index);
}

bool Networks::IsUsable(const Network& network) const {
  // One address of those given is enough: kernels take the IPv6 ones from an interface that goes
  // down, and whether somebody gives them back must not keep IPv4 from working.
  for (size_t i = 0; i < network.given; ++i) {
    const Interface* interface = InterfaceOf(network, network.config.addresses[i]);
    if (interface != nullptr && interface->up && interface->running &&
        transport::PathMtuFor(interface->mtu) != 0) {
      return true;
    }
  }
  return false;
}

// What fits through all of its interfaces; as before for one that is gone, or too small for any.
uint32_t Networks::PathMtuOf(const Network& network) const {
  uint32_t least = UINT32_MAX;
  for (const transport::UdpAddress& address : network.config.addresses) {
    const Interface* interface = InterfaceOf(network, address);
    const uint32_t fits = interface == nullptr ? 0 : transport::PathMtuFor(interface->mtu);
    if (fits != 0) least = std::min(least, fits);
  }
  return least == UINT32_MAX ? network.mtu_bytes : std::min(least, mtu_max_bytes_);
}

// Before its port is said to be active: who hears of that may rely on its groups.
void Networks::FollowAddresses(Network* network) {
  for (transport::UdpAddress& address : network->config.addresses) {
    const Interface* interface = InterfaceOf(*network, address);
    if (interface == nullptr || interface->index == address.interface_index) continue;
    address.interface_index = interface->index;
    shard_->Post([port = network->port.get(), address] { port->FollowInterface(address); });
  }
}

void Networks::LookAtInterfaces(Surroundings* surroundings, const Log& log) {
  {
    const transport::NamespaceVisit visit(surroundings->where);
    std::vector<transport::InterfaceChange> changes;
    surroundings->watcher.Poll(&changes);
  }
  for (const auto& network : networks_) {
    if (network->surroundings != surroundings) continue;
    FollowAddresses(network.get());
    const uint32_t mtu_bytes = PathMtuOf(*network);
    if (mtu_bytes != network->mtu_bytes) {
      network->mtu_bytes = mtu_bytes;
      log.Info(network->name + ": its interface's MTU changed; active_mtu is " +
               std::to_string(mtu_bytes) + " now");
      shard_->Post([device = device_, nic = network->nic, mtu_bytes] {
        device->SetPortMtu(nic, mtu_bytes);
      });
    }
    bool is_up = IsUsable(*network);
    if (is_up == network->is_up) continue;
    network->is_up = is_up;
    log.Info(network->name +
             (is_up ? ": its interface is back"
                    : ": its interface is down or gone, or has none of its addresses"));
    shard_->Post([device = device_, shard = shard_, nic = network->nic, is_up] {
      device->SetPortState(shard->now(), nic, is_up);
    });
  }
}

}  // namespace verbena::softnic
