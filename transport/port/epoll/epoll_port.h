// A port of plain non-blocking sockets: sendmsg, recvmsg, epoll. Runs wherever UDP does.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "transport/port/udp/udp_port.h"

namespace verbena::transport {

class EpollPort final : public UdpPort {
 public:
  // nullptr: `error` says why.
  static std::unique_ptr<EpollPort> Open(const UdpPortConfig& config, UdpPortError* error);
  ~EpollPort() override;

  const char* name() const override { return "epoll"; }
  void Flush(Instant now) override;
  bool Receive(Instant now, InPacket* out) override;
  int poll_fd() const override { return epoll_fd_; }
  bool PrepareToSleep() override;

 private:
  explicit EpollPort(const UdpPortConfig& config);

  int OnSocketOpened(size_t index) override;
  void OnSocketClosing(size_t index) override;
  void OnBatchesReady() override;

  struct Incoming;

  // Takes as many datagrams as there is room for. False: there was none.
  bool ReceiveFrom(size_t endpoint);
  // Asks the kernel which sockets have something. False: none.
  bool LookForReady();
  void WaitForRoom(size_t endpoint, bool wait);
  // The socket gave datagrams.
  void OnDatagrams(size_t endpoint);
  // Tells epoll what of the socket to watch. 0 or errno.
  int Watch(size_t endpoint, int operation);
  // Has epoll watch all sockets again. 0 or errno.
  int WatchAll();

  int epoll_fd_ = -1;
  std::unique_ptr<Incoming> incoming_;
  ReceivedDatagram datagram_;
  // The last call to the kernel emptied its socket: it need not be asked again at once.
  bool drained_ = false;
  bool is_crowded_ = false;          // the last call to the kernel found all that it asked for
  size_t last_endpoint_ = 0;         // received from last: looked at first
  uint32_t streak_ = 0;              // calls since the others were looked at
  uint32_t since_sleep_ = 0;         // calls that the last endpoint answered, one after the other
  std::optional<size_t> unwatched_;  // epoll does not know it: it is asked anyway
  std::vector<size_t> readable_;     // of the last look, not yet emptied
};

}  // namespace verbena::transport
