// Connection management between its clients, the device and the service that knows what to do
// (softnic/cm): sockets, fds, MADs to and from the leader, timers, and what the host's addresses
// are.
//
// Thread: control, but for OnMad, which is the leader's.
// Trust: a client's requests are the service's to judge; one that is not of a request's length, or
// a client that does not read its replies, ends the session.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/shm/attach.h"
#include "core/shm/cm.h"
#include "softnic/cm/cm_service.h"
#include "softnic/control/cm_channel.h"
#include "softnic/control/cm_look_ups.h"
#include "softnic/control/unique_fd.h"
#include "softnic/device/device.h"
#include "transport/port/udp/interfaces.h"
#include "transport/port/udp/netns.h"

namespace verbena::softnic {

class ControlServer;
class CmFront;

// One client's connection, and its session in the service.
class CmClient : public std::enable_shared_from_this<CmClient> {
 public:
  CmClient(CmFront* front, boost::asio::posix::stream_descriptor socket, uint32_t session,
           std::string program, int pid);
  void AwaitRequest();
  void SetReadable(shm::CmHandle channel, bool is_readable);

  const std::string& program() const { return program_; }
  int pid() const { return pid_; }

 private:
  friend class CmFront;
  void ServeRequests();
  // False: the session has ended.
  bool Answer(const shm::CmRequest& request);
  int OpenChannel(shm::CmHandle channel, int* client_end);
  void Withdraw(shm::CmHandle channel, shm::CmReply* reply);
  void WakeAnother(shm::CmHandle channel);
  void End(const char* why);

  CmFront* const front_;
  boost::asio::posix::stream_descriptor socket_;
  const uint32_t session_;
  const std::string program_;
  const int pid_;
  std::map<shm::CmHandle, CmChannelFd> channels_;
  bool is_ended_ = false;
};

class CmFront {
 public:
  // `where`: the network namespace whose clients, NICs, addresses and ports it has. The `front`th
  // of `fronts`, for their sessions' numbers.
  CmFront(ControlServer* server, const transport::NetworkNamespace* where, uint32_t front,
          uint32_t fronts);
  ~CmFront();

  uint64_t netns() const { return where_->inode(); }
  // What the NICs of all namespaces are now.
  void SetNics(const std::vector<NicStatus>& nics);
  // That came to one of its NICs. The leader's.
  void OnMad(uint32_t nic, const Gid& local, const Gid& remote, const std::byte* bytes);
  // Of any lane.
  void OnLaneEnded(LaneId lane);
  // A client that began with Hello (kCm). Answers with CmWelcome.
  void Accept(UniqueFd socket, const shm::Hello& hello);

  // The daemon ends: closes all sessions, and calls `done` once each peer on another host knows of
  // its connection's end, or after a while.
  void End(std::function<void()> done);

  // For `verbena show cm` and `verbena status`.
  std::vector<ShowRow> Show() const;
  CmCounters Counters() const { return service_.Counters(); }

 private:
  friend class CmClient;
  struct ReceivedMad {
    uint32_t nic;
    Gid local, remote;
    transport::cm::Mad bytes;
  };

  void TakeMads();
  void Request(uint32_t session, const shm::CmRequest& request, shm::CmReply* reply);
  void Forget(uint32_t session);
  // What the request wants looked up is, and it fails where there is no way.
  void LookUp(shm::CmReply* reply);
  // After any input to the service: what came of it.
  void Drain();
  void CompleteEnd();
  void SendMads();
  void OrderLanes();
  void ArmTimer();
  bool OpenInterfaces();
  void WatchAddresses();
  void AwaitAddressChange();
  void LookAtAddresses();
  void TellAddresses();
  void TellNics();

  ControlServer* const server_;
  const transport::NetworkNamespace* const where_;
  CmService service_;
  CmLookUps look_ups_;
  std::function<void()> ended_;  // set: the daemon ends
  std::vector<NicStatus> nics_;
  std::map<uint32_t, std::shared_ptr<CmClient>> connections_;  // by session
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer end_timer_;
  Instant timer_due_ = Instant::Never();

  transport::InterfaceWatcher interfaces_;
  std::unique_ptr<boost::asio::posix::stream_descriptor> watched_;

  std::mutex mutex_;  // of what the leader and control share
  std::vector<ReceivedMad> received_;
};

}  // namespace verbena::softnic
