// The control plane: accepts clients, checks who they are, makes and ends their sessions, and
// answers the CLI. Everything on one thread, never waiting for a peer.
//
// Trust: peers may be slow, silent or hostile; each connection has a deadline or a bounded queue.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "softnic/cm/cm_service.h"
#include "softnic/control/client_session.h"
#include "softnic/control/listener.h"
#include "softnic/control/log.h"
#include "softnic/control/path_tree.h"
#include "softnic/device/device.h"
#include "softnic/engine/shard.h"
#include "transport/port/udp/netns.h"

namespace verbena::softnic {

struct ControlConfig {
  std::string directory;
  std::string version;
  std::vector<std::string> flags;  // --NAME=VALUE, as the daemon was started with
  std::string name_prefix = "verbena";
  uint32_t mtu_bytes = 4096;
  int idle_exit_s = 0;  // 0: never
  uint32_t sessions_max = 1024;
  uint32_t pending_max = 256;  // connections that have not said what they want
  SessionLimits session;
};

// NIC number `index`: its name, 127.0.0.(index + 1), and a MAC from which GUIDs derive.
NicConfig MakeNicConfig(const std::string& name_prefix, uint32_t index, uint32_t mtu_bytes);

class ControlServer;
class NetworkTaps;

// One accepted connection. Kinds differ in what happens after Hello.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ControlServer* server, boost::asio::posix::stream_descriptor socket);
  virtual ~Connection() = default;

 protected:
  friend class ControlServer;
  void AwaitHello();

  ControlServer* server_;
  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer deadline_;
  bool is_done_ = false;

 private:
  void OnHello(const shm::Hello& hello);
  void Close();
};

class AttachedClient;
class AdminConnection;
class CmFront;

class ControlServer {
 public:
  ControlServer(ControlConfig config, Device* device, ProcessDma* dma, Shard* shard, Log log,
                const transport::NetworkNamespaces* namespaces);
  ~ControlServer();

  // An empty string, or what is wrong.
  std::string Open();
  // Serves until SIGTERM, SIGINT, `down`, or nobody came for idle_exit_s.
  void Run();
  void Stop();  // control thread
  // After Run, and not before the last thread that moves the clients' bytes has ended: from then on
  // they take back their memory, and what they posted.
  void TellStopped();

  const ControlConfig& config() const { return config_; }
  boost::asio::io_context& io() { return io_; }
  Device* device() { return device_; }
  ProcessDma* dma() { return dma_; }
  Shard* shard() { return shard_; }
  const Log& log() const { return log_; }
  // Makes the files in the instance's directory, and connection management, say what its NICs are.
  // At first before the shard starts, and so that who waits for the instance finds them; later by
  // RefreshPaths, on the control thread, after something about a NIC has changed.
  void ShowPaths(const std::vector<NicStatus>& nics);
  void RefreshPaths();

  // Before Run; nullptr: no NIC has a network.
  void SetTaps(NetworkTaps* taps) { taps_ = taps; }
  NetworkTaps* taps() { return taps_; }
  const transport::NetworkNamespaces& namespaces() const { return *namespaces_; }
  // Of the fronts of all network namespaces.
  std::vector<ShowRow> ShowCm() const;
  CmCounters CountCm() const;
  size_t session_count() const { return clients_.size(); }

  // A request of the CLI is being answered: the instance does not end before, but its idle time
  // goes on, so that watching an instance does not keep it alive.
  void AddRequest() { ++requests_; }
  void DropRequest() { --requests_; }
  // Something keeps the instance alive, or ceases to.
  void AddHold() { ++holds_; }
  void DropHold();

  // `joins`: whose context is imported; it has checked that the peer may. nullptr: none.
  void Attach(UniqueFd socket, const shm::Hello& hello, const AttachedClient* joins = nullptr);
  // The NICs that a program in this network namespace (by its inode) has.
  void List(UniqueFd socket, uint64_t netns);
  void Admin(UniqueFd socket);
  void Forget(AttachedClient* client);

  uint64_t refused() const { return refused_; }
  double uptime_s() const;

 private:
  friend class Connection;
  void Accept();
  void AcceptAfter(std::chrono::nanoseconds pause);
  // 0, or errno: the kernel has no room for it.
  int AddConnection(UniqueFd socket);
  CmFront* FrontOf(uint64_t netns) const;
  CmFront* FrontOfNic(uint32_t nic) const;  // any thread, from OpenFronts on
  void OpenFronts();
  void AwaitSignals();
  void EndRecordings();
  bool IsUsed() const { return !clients_.empty() || holds_ != 0; }
  void StartIdleTime();
  void AwaitIdleEnd(std::chrono::milliseconds wait);

  ControlConfig config_;
  Device* device_;
  ProcessDma* dma_;
  Shard* shard_;
  Log log_;
  boost::asio::io_context io_{1};
  boost::asio::signal_set signals_;
  InstanceSocket socket_;
  PathTree paths_;
  boost::asio::posix::stream_descriptor listener_;
  NetworkTaps* taps_ = nullptr;
  const transport::NetworkNamespaces* const namespaces_;
  // One a network namespace, as ports and addresses are each one's own; that of the daemon's own
  // first.
  std::vector<std::unique_ptr<CmFront>> cm_fronts_;
  std::map<uint32_t, CmFront*> front_of_nic_;  // of the NICs there are at the start
  size_t fronts_to_end_ = 0;
  boost::asio::steady_timer accept_pause_;
  std::chrono::steady_clock::time_point accepted_until_{};
  boost::asio::steady_timer idle_timer_;
  std::map<Connection*, std::shared_ptr<Connection>> pending_;
  std::map<AttachedClient*, std::shared_ptr<AttachedClient>> clients_;
  uint32_t holds_ = 0;
  uint32_t requests_ = 0;
  uint64_t refused_ = 0;
  bool is_stopping_ = false;
  const Instant started_;
};

}  // namespace verbena::softnic
