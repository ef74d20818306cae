// The networks of an instance's NICs: sockets, and what happens to the interfaces below them.
//
// Thread: control; ports are handed to the shard's thread once open.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "softnic/control/log.h"
#include "softnic/control/network_taps.h"
#include "softnic/control/nic_spec.h"
#include "softnic/control/unique_fd.h"
#include "softnic/device/device.h"
#include "softnic/engine/shard.h"
#include "transport/port/tap/fault_rules.h"
#include "transport/port/udp/interfaces.h"
#include "transport/port/udp/netns.h"
#include "transport/port/udp/open_udp_port.h"

namespace verbena::softnic {

struct NetworkOptions {
  std::vector<NicSpec> nics;  // --nic
  // --wire: the NICs talk UDP even to each other; on loopback where there is no --nic.
  bool is_wire = false;
  transport::NetIo net_io = transport::NetIo::kEpoll;
  transport::tap::FaultRules faults;  // --faults
  std::string capture_path;           // --capture
  std::string trace_path;             // --trace
  std::optional<uint64_t> seed;       // --seed
};

// Opens a file or pipe for a capture or a trace. Empty, or what is wrong.
std::string OpenRecordingFile(const std::string& path, UniqueFd* out);

class Networks {
 public:
  explicit Networks(NetworkOptions options);
  ~Networks();

  bool IsUsed() const { return options_.is_wire || !options_.nics.empty(); }
  // Opens the sockets and appends the NICs' configurations: those of --nic, or with --wire `count`
  // NICs on a block of loopback addresses nobody uses. Empty, or what is wrong and what to do.
  std::string Open(uint32_t count, const std::string& name_prefix, uint32_t mtu_bytes,
                   std::vector<NicConfig>* out);
  // Before the shard starts. Empty, or what is wrong.
  std::string Attach(Device* device, Shard* shard);
  // Follows the interfaces and the ports' errors from now on; before the shard starts. `on_change`:
  // the interfaces were looked at anew.
  void Watch(boost::asio::io_context& io, const Log& log, std::function<void()> on_change);

  // To be used on the shard's thread; nullptr: no NIC has a network.
  NetworkTaps* taps() const { return taps_.get(); }
  // From Open on.
  const transport::NetworkNamespaces& namespaces() const { return namespaces_; }

 private:
  // A network namespace that NICs are in, and its interfaces.
  struct Surroundings {
    const transport::NetworkNamespace* where = nullptr;
    transport::InterfaceWatcher watcher;
    std::unique_ptr<boost::asio::posix::stream_descriptor> watched;
  };
  struct Network {
    uint32_t nic = 0;
    const Surroundings* surroundings = nullptr;
    std::string name;
    transport::UdpPortConfig config;
    size_t given = 1;  // of its addresses: the first ones; a link-local one may have come along
    std::unique_ptr<transport::UdpPort> port;
    bool is_up = true;
    uint32_t mtu_bytes = 0;  // active_mtu
  };

  // Empty, or what is wrong.
  std::string SurroundingsOf(const std::string& netns, Surroundings** out);
  std::string OpenSpec(const NicSpec& spec, const std::string& name_prefix,
                       std::vector<NicConfig>* out);
  // Whose address it is; nullptr: nobody's.
  const Network* FindNetwork(const Gid& gid) const;
  std::string OpenLoopback(const Surroundings* surroundings, uint32_t count,
                           const std::string& name_prefix, std::vector<NicConfig>* out);
  bool OpenPort(Network* network, transport::UdpPortError* error);
  void TellErrors(boost::asio::io_context& io, const Log& log);
  void AwaitChanges(Surroundings* surroundings, const Log& log);
  // Tells the port of interfaces made anew.
  void FollowAddresses(Network* network);
  void LookAtInterfaces(Surroundings* surroundings, const Log& log);
  bool IsUsable(const Network& network) const;
  static const transport::Interface* InterfaceOf(const Network& network,
                                                 const transport::UdpAddress& address);
  uint32_t PathMtuOf(const Network& network) const;

  NetworkOptions options_;
  uint32_t mtu_max_bytes_ = 0;  // --mtu; the interfaces may allow less
  transport::NetworkNamespaces namespaces_;
  std::vector<std::unique_ptr<Surroundings>> surroundings_;
  std::vector<std::unique_ptr<Network>> networks_;
  std::function<void()> on_change_;
  std::unique_ptr<NetworkTaps> taps_;
  Device* device_ = nullptr;
  Shard* shard_ = nullptr;
};

}  // namespace verbena::softnic
