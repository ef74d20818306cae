// Fixture of the conformance tests of rdma_cm: channels, identifiers, and connections by steps.
//
// The programs are compiled against the system's headers of librdmacm and linked with its library;
// they run with ours in LD_LIBRARY_PATH. Suites are named Cm_<function>, because
// docs/rdmacm-support.md is generated from their results.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {

// An address that functions take by a pointer they don't write to.
class Address {
 public:
  explicit Address(const std::string& text, uint16_t port = 0);
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage_); }
  uint16_t port() const;
  std::string text() const;
  static Address Of(const sockaddr* address);

 private:
  Address() = default;
  sockaddr_storage storage_{};
};

// What an event says, kept after it is acknowledged.
struct Told {
  bool is_there = false;
  rdma_cm_id* id = nullptr;
  rdma_cm_id* listen_id = nullptr;
  int type = -1;
  int status = 0;
  rdma_conn_param conn{};
  rdma_ud_param ud{};
  std::string private_data;       // of conn, or with `is_ud` of ud
  const void* context = nullptr;  // of a membership
  uint64_t arg = 0;
};

class Channel {
 public:
  Channel();
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  rdma_event_channel* get() const { return channel_; }
  bool IsReadable(Milliseconds limit = Milliseconds(0)) const;
  // Waits for an event and acknowledges it.
  Told Next(Milliseconds limit = kPatience);
  // The event itself, which the caller acknowledges; nullptr: none came.
  rdma_cm_event* Take(Milliseconds limit = kPatience);
  // Expects this event and no other. Its copy.
  Told Expect(int type, int status = 0, Milliseconds limit = kPatience);

 private:
  rdma_event_channel* channel_;
};

// An identifier with its QP and SRQ, destroyed at the end.
class CmId {
 public:
  CmId() = default;
  explicit CmId(rdma_cm_id* id) : id_(id) {}
  CmId(Channel& channel, rdma_port_space port_space, void* context = nullptr);
  CmId(CmId&& other) noexcept : id_(std::exchange(other.id_, nullptr)) {}
  CmId& operator=(CmId&& other) noexcept;
  ~CmId() { Destroy(); }

  void Destroy();
  rdma_cm_id* release() { return std::exchange(id_, nullptr); }
  rdma_cm_id* get() const { return id_; }
  rdma_cm_id* operator->() const { return id_; }

 private:
  rdma_cm_id* id_ = nullptr;
};

ibv_qp_init_attr QpOptions(ibv_qp_type type = IBV_QPT_RC);
// Makes a QP of the identifier; 0 or -1.
int MakeQp(rdma_cm_id* id, ibv_qp_type type = IBV_QPT_RC);
ibv_qp_state StateOf(ibv_qp* qp);
ibv_qp_attr AttributesOf(ibv_qp* qp);

rdma_conn_param Param(const std::string& private_data = "");

// A listener and who connects to it, step by step. Each step expects its event.
class CmTest : public ::testing::Test {
 protected:
  // An identifier with address and route to the listener, or to `destination`.
  CmId Resolved(Channel& channel, Address destination, rdma_port_space port_space = RDMA_PS_TCP);
  void Listen(const std::string& address = "127.0.0.1", rdma_port_space port_space = RDMA_PS_TCP,
              int backlog = 0);
  // Who connects: resolved, with a QP.
  void Resolve();
  // Sends a request and takes it at the listener.
  Told Request(rdma_conn_param* param);
  Told Request(const std::string& private_data = "");
  // Makes a QP of the request and accepts it; both ends are told that the connection stands.
  void Accept(const std::string& private_data = "");
  void Connect();
  // Both ends are told that it ended.
  void Disconnect();

  Address ListenerAddress() const { return Address::Of(&listener->route.addr.src_addr); }
  bool IsConnected() const { return port_space_ == RDMA_PS_TCP || port_space_ == RDMA_PS_IB; }
  ibv_qp_type QpType() const { return IsConnected() ? IBV_QPT_RC : IBV_QPT_UD; }

  rdma_port_space port_space_ = RDMA_PS_TCP;
  Channel passive_channel, active_channel;
  CmId listener, active, passive;
};

// Programs end their threads by pthread_cancel, also those that wait for an acknowledgement. What
// they worked on is lost then.
void CancelWhileItWaits(const std::function<void()>& wait);

// Expects -1 and this errno of a call that was just made.
#define EXPECT_FAILS(call, error)                                  \
  do {                                                             \
    errno = 0;                                                     \
    EXPECT_EQ((call), -1);                                         \
    EXPECT_EQ(errno, (error)) << #call << ": " << strerror(errno); \
  } while (false)

}  // namespace verbena::conformance
