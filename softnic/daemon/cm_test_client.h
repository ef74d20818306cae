// A client of connection management written by hand against core/shm/cm.h, with no library in
// between.
#pragma once

#include <arpa/inet.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "core/shm/cm.h"
#include "softnic/daemon/test_client.h"

namespace verbena::softnic {

// enum rdma_cm_event_type, whose numbers the ABI carries.
enum CmEventType : uint32_t {
  kAddrResolved = 0,
  kAddrError = 1,
  kRouteResolved = 2,
  kConnectRequest = 4,
  kConnectResponse = 5,
  kConnectError = 6,
  kUnreachable = 7,
  kRejected = 8,
  kEstablished = 9,
  kDisconnected = 10,
  kTimewaitExit = 15,
  kNoEvent = ~0u,  // none came in time
};
inline constexpr uint16_t kPortSpaceTcp = 0x0106;  // RDMA_PS_TCP
inline constexpr uint16_t kPortSpaceUdp = 0x0111;  // RDMA_PS_UDP
inline constexpr uint8_t kQpTypeRc = 2;            // IBV_QPT_RC
inline constexpr uint8_t kQpTypeUd = 4;            // IBV_QPT_UD

inline shm::CmAddress CmAddressOf(const char* text, uint16_t port) {
  shm::CmAddress address = {};
  address.port = htons(port);
  if (inet_pton(AF_INET, text, address.addr) == 1) {
    address.family = AF_INET;
  } else if (inet_pton(AF_INET6, text, address.addr) == 1) {
    address.family = AF_INET6;
  }
  return address;
}

class CmTestClient {
 public:
  CmTestClient() = default;
  explicit CmTestClient(const TestDaemon& daemon) { EXPECT_EQ(Open(daemon.directory()), 0); }
  ~CmTestClient() { Close(); }
  CmTestClient(const CmTestClient&) = delete;

  static shm::Hello HelloOf() {
    shm::Hello hello = {};
    hello.magic = shm::kAbiMagic;
    hello.abi_version = shm::kAbiVersion;
    hello.kind = static_cast<uint32_t>(shm::HelloKind::kCm);
    std::strcpy(hello.program, "cm-test");
    return hello;
  }
  // The welcome's error, or -1.
  int Open(const std::string& directory, const shm::Hello& hello = HelloOf()) {
    socket_ = ConnectTo(directory);
    shm::CmWelcome welcome = {};
    if (socket_ < 0 || send(socket_, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello) ||
        !WaitReadable(socket_) ||
        recv(socket_, &welcome, sizeof(welcome), MSG_TRUNC) != sizeof(welcome) ||
        welcome.magic != shm::kAbiMagic || welcome.abi_version != shm::kAbiVersion) {
      return -1;
    }
    return welcome.error;
  }
  void Close() {
    for (auto [handle, fd] : channels_) close(fd);
    channels_.clear();
    if (socket_ >= 0) close(socket_);
    socket_ = -1;
  }
  // The session's end alone: what the program still has of its channels stays.
  void CloseSocket() {
    close(socket_);
    socket_ = -1;
  }

  static shm::CmRequest RequestOf(shm::CmOp op, shm::CmHandle handle = 0, uint32_t number = 0) {
    shm::CmRequest request;
    std::memset(static_cast<void*>(&request), 0, sizeof(request));
    request.op = static_cast<uint32_t>(op);
    request.handle = handle;
    request.number = number;
    return request;
  }
  // The reply's error, or -1 if none came.
  int Ask(const shm::CmRequest& request) {
    std::memset(static_cast<void*>(&reply), 0, sizeof(reply));
    if (send(socket_, &request, sizeof(request), MSG_NOSIGNAL) != sizeof(request)) return -1;
    return Await();
  }
  int Ask(shm::CmOp op, shm::CmHandle handle = 0, uint32_t number = 0) {
    return Ask(RequestOf(op, handle, number));
  }
  int Await() {
    fd = -1;
    iovec iov = {&reply, sizeof(reply)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr msg = {};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof(control);
    if (!WaitReadable(socket_) || recvmsg(socket_, &msg, MSG_CMSG_CLOEXEC) != sizeof(reply)) {
      return -1;
    }
    const cmsghdr* header = CMSG_FIRSTHDR(&msg);
    if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
      std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    }
    return reply.error;
  }

  // 0: none.
  shm::CmHandle CreateChannel() {
    if (Ask(shm::CmOp::kCreateChannel) != 0 || fd < 0) return 0;
    channels_[reply.handle] = fd;
    return reply.handle;
  }
  int DestroyChannel(shm::CmHandle channel) {
    close(channels_[channel]);
    channels_.erase(channel);
    return Ask(shm::CmOp::kDestroyChannel, channel);
  }
  int FdOf(shm::CmHandle channel) { return channels_.at(channel); }
  bool IsReadable(shm::CmHandle channel) {
    pollfd p = {FdOf(channel), POLLIN, 0};
    return poll(&p, 1, 0) == 1;
  }
  shm::CmHandle CreateId(shm::CmHandle channel, uint64_t cookie,
                         uint16_t port_space = kPortSpaceTcp, uint8_t qp_type = kQpTypeRc) {
    shm::CmRequest request = RequestOf(shm::CmOp::kCreateId);
    request.create.cookie = cookie;
    request.create.channel = channel;
    request.create.port_space = port_space;
    request.create.qp_type = qp_type;
    return Ask(request) == 0 ? reply.handle : 0;
  }
  int Bind(shm::CmHandle id, const shm::CmAddress& address) {
    shm::CmRequest request = RequestOf(shm::CmOp::kBind, id);
    request.bind.address = address;
    return Ask(request);
  }
  int ResolveAddr(shm::CmHandle id, const shm::CmAddress& destination) {
    shm::CmRequest request = RequestOf(shm::CmOp::kResolveAddr, id);
    request.resolve.destination = destination;
    request.resolve.timeout_ms = 2000;
    return Ask(request);
  }
  int Connect(shm::CmOp op, shm::CmHandle id, uint64_t cookie, uint32_t qpn,
              const std::string& data) {
    shm::CmRequest request = RequestOf(op, id);
    request.connect.cookie = cookie;
    shm::CmConnParam& param = request.connect.param;
    param.responder_resources = param.initiator_depth = 1;
    param.retry_count = param.rnr_retry_count = 7;
    param.qp_num = qpn;
    param.private_data_len = static_cast<uint8_t>(data.size());
    std::memcpy(param.private_data, data.data(), data.size());
    return Ask(request);
  }
  // Waits for the channel's fd, and takes the event: its type, with the rest in reply.event.
  uint32_t NextEvent(shm::CmHandle channel) {
    if (!WaitReadable(FdOf(channel)) || Ask(shm::CmOp::kGetEvent, channel) != 0) return kNoEvent;
    return reply.event.event;
  }

  shm::CmReply reply;
  int fd = -1;  // that came with it
  int socket() const { return socket_; }

 private:
  int socket_ = -1;
  std::map<shm::CmHandle, int> channels_;
};

}  // namespace verbena::softnic
