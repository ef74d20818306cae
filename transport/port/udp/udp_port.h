// What the ports over UDP sockets share: sockets, batches, groups, errors and counters. How a
// message gets into and out of the kernel is for transport/port/epoll and transport/port/uring.
//
// Owns: its sockets and batches.   Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "transport/port/packet_port.h"
#include "transport/port/udp/received_datagram.h"
#include "transport/port/udp/send_batch.h"
#include "transport/port/udp/socket_error.h"
#include "transport/port/udp/udp_socket.h"

namespace verbena::transport {

class UdpPort : public PacketPort {
 public:
  ~UdpPort() override;
  UdpPort(const UdpPort&) = delete;
  UdpPort& operator=(const UdpPort&) = delete;

  // Its source port is ours whatever the packet says: it is what peers see, and the ICRC covers it.
  bool Send(Instant now, const OutPacket& packet) final;
  int JoinGroup(const Gid& group) final;
  void LeaveGroup(const Gid& group) final;
  // The interface that has this address of the port's is another one now, made anew: what is sent
  // to groups leaves by it, and the groups joined on the old one are joined there.
  void FollowInterface(const UdpAddress& address);
  void WantGrh(bool is_wanted) final;
  void LearnIpId(const InPacket& packet, uint16_t ip_id) final { hints_.Learn(ip_id); }
  const PortCounters& counters() const final { return counters_; }

  // Is told of the first error of each kind, and its errno, in the port's thread.
  void OnFirstError(std::function<void(PortError, int error)> tell) {
    on_first_error_ = std::move(tell);
  }
  // Datagrams too short for a BTH and an ICRC, dropped here.
  uint64_t runts() const { return runts_; }
  uint32_t receive_buffer_bytes() const final;

 protected:
  explicit UdpPort(const UdpPortConfig& config);

  // Opens the sockets of config.addresses.
  bool OpenSockets(UdpPortError* error);

  // A socket came: start receiving from it. 0 or errno. It went: stop; its fd is closed after.
  virtual int OnSocketOpened(size_t index) = 0;
  virtual void OnSocketClosing(size_t index) = 0;
  // Batches are ready, or none is free: hand some to the kernel if it takes them.
  virtual void OnBatchesReady() = 0;
  // Endpoints that wait for room in their send buffers.
  const std::vector<bool>& blocked() const { return blocked_; }
  void SetBlocked(size_t endpoint, bool blocked) { blocked_[endpoint] = blocked; }
  SendBatch* TakeReady() { return collector_.TakeReady(blocked_); }

  enum class Progress : uint8_t { kDone, kBlocked, kLater };
  // Does the sendmsg calls a batch needs. kDone: it is sent or lost, and released; else it is put
  // back, for when the socket is writable (kBlocked), or for the next turn (kLater).
  Progress Transmit(SendBatch* batch);
  // What the kernel said about the whole batch: errno or 0. kDone, kBlocked and kLater as above.
  Progress OnSent(SendBatch* batch, int error);

  void CountError(PortError kind, int error, uint64_t count = 1);

  // Takes the next packet out of `datagram`, counting it; skips runts.
  bool TakePacket(ReceivedDatagram* datagram, InPacket* out);
  void BeginDatagram(const msghdr& message, const std::byte* bytes, size_t length, size_t endpoint,
                     ReceivedDatagram* out);

  const UdpPortConfig& config() const { return config_; }
  std::vector<Endpoint>& endpoints() { return endpoints_; }
  SendCollector& collector() { return collector_; }

 private:
  // Destinations that batches were refused for; they are tried again after a while.
  struct OneByOne {
    Gid gid;
    uint32_t packets_left = 0;
  };
  static constexpr size_t kOneByOneMax = 16;

  // Opens the group's socket at this place, instead of the one that may be there. 0 or errno.
  int ListenTo(const Gid& group, const UdpAddress& via, size_t index);
  void CloseEndpoint(size_t index);
  int SendMessage(int fd, const msghdr* message) const;
  Progress TransmitOneByOne(SendBatch* batch);
  void Lose(int error, uint64_t packets);
  bool GoesOneByOne(const Gid& destination);
  void RememberOneByOne(const Gid& destination);

  const UdpPortConfig config_;
  std::vector<Endpoint> endpoints_;  // closed ones stay, with fd -1: indices are names
  std::vector<bool> blocked_;
  bool wants_grh_ = true;
  SendCollector collector_;
  IpIdHints hints_;
  std::vector<OneByOne> one_by_one_;
  PortCounters counters_;
  std::function<void(PortError, int error)> on_first_error_;
  uint64_t runts_ = 0;
  Instant received_at_;  // the datagram that packets are taken from
};

}  // namespace verbena::transport
