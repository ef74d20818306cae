#include "tests/conformance/rdmacm_fixture.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace verbena::conformance {
namespace {

constexpr int kResolveMs = 2000;

bool IsMulticast(int type) {
  return type == RDMA_CM_EVENT_MULTICAST_JOIN || type == RDMA_CM_EVENT_MULTICAST_ERROR;
}

Told CopyOf(const rdma_cm_event& event) {
  Told told;
  told.is_there = true;
  told.id = event.id;
  told.listen_id = event.listen_id;
  told.type = event.event;
  told.status = event.status;
  std::memcpy(&told.arg, &event.param, sizeof told.arg);
  if (IsMulticast(event.event)) {
    told.ud = event.param.ud;
    told.context = event.param.ud.private_data;
    return told;
  }
  const bool is_ud = event.id->qp_type == IBV_QPT_UD;
  if (is_ud) {
    told.ud = event.param.ud;
  } else {
    told.conn = event.param.conn;
  }
  const void* data = is_ud ? told.ud.private_data : told.conn.private_data;
  const uint8_t length = is_ud ? told.ud.private_data_len : told.conn.private_data_len;
  if (event.event != RDMA_CM_EVENT_ADDR_RESOLVED && data != nullptr) {
    told.private_data.assign(static_cast<const char*>(data), length);
  }
  return told;
}

}  // namespace

Address::Address(const std::string& text, uint16_t port) {
  if (text.find(':') != std::string::npos) {
    auto* in6 = reinterpret_cast<sockaddr_in6*>(&storage_);
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(port);
    if (inet_pton(AF_INET6, text.c_str(), &in6->sin6_addr) != 1) throw std::runtime_error(text);
    return;
  }
  auto* in = reinterpret_cast<sockaddr_in*>(&storage_);
  in->sin_family = AF_INET;
  in->sin_port = htons(port);
  if (inet_pton(AF_INET, text.c_str(), &in->sin_addr) != 1) throw std::runtime_error(text);
}

Address Address::Of(const sockaddr* address) {
  Address out;
  std::memcpy(&out.storage_, address,
              address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  return out;
}

uint16_t Address::port() const {
  // At the same place in both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

std::string Address::text() const {
  char text[INET6_ADDRSTRLEN] = "?";
  const void* from = &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr;
  if (storage_.ss_family == AF_INET6) {
    from = &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
  }
  inet_ntop(storage_.ss_family, from, text, sizeof text);
  return text;
}

Channel::Channel() : channel_(rdma_create_event_channel()) {
  if (channel_ == nullptr) throw std::runtime_error("no channel: is an instance running?");
}

Channel::~Channel() { rdma_destroy_event_channel(channel_); }

bool Channel::IsReadable(Milliseconds limit) const {
  pollfd entry = {channel_->fd, POLLIN, 0};
  return poll(&entry, 1, static_cast<int>(limit.count())) == 1;
}

rdma_cm_event* Channel::Take(Milliseconds limit) {
  rdma_cm_event* event = nullptr;
  if (!IsReadable(limit) || rdma_get_cm_event(channel_, &event) != 0) return nullptr;
  return event;
}

Told Channel::Next(Milliseconds limit) {
  rdma_cm_event* event = Take(limit);
  if (event == nullptr) return {};
  Told told = CopyOf(*event);
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  return told;
}

Told Channel::Expect(int type, int status, Milliseconds limit) {
  Told told = Next(limit);
  EXPECT_TRUE(told.is_there) << "no event; expected "
                             << rdma_event_str(static_cast<rdma_cm_event_type>(type));
  if (!told.is_there) return told;
  EXPECT_STREQ(rdma_event_str(static_cast<rdma_cm_event_type>(told.type)),
               rdma_event_str(static_cast<rdma_cm_event_type>(type)));
  EXPECT_EQ(told.status, status) << rdma_event_str(static_cast<rdma_cm_event_type>(told.type));
  return told;
}

CmId::CmId(Channel& channel, rdma_port_space port_space, void* context) {
  if (rdma_create_id(channel.get(), &id_, context, port_space) != 0) {
    throw std::runtime_error(std::string("no identifier: ") + strerror(errno));
  }
}

CmId& CmId::operator=(CmId&& other) noexcept {
  if (this != &other) {
    Destroy();
    id_ = std::exchange(other.id_, nullptr);
  }
  return *this;
}

void CmId::Destroy() {
  if (id_ == nullptr) return;
  if (id_->qp != nullptr) rdma_destroy_qp(id_);
  if (id_->srq != nullptr) rdma_destroy_srq(id_);
  EXPECT_EQ(rdma_destroy_id(id_), 0) << strerror(errno);
  id_ = nullptr;
}

ibv_qp_init_attr QpOptions(ibv_qp_type type) {
  ibv_qp_init_attr attr = {};
  attr.qp_type = type;
  attr.cap.max_send_wr = attr.cap.max_recv_wr = 16;
  attr.cap.max_send_sge = attr.cap.max_recv_sge = 2;
  attr.cap.max_inline_data = 16;
  return attr;
}

int MakeQp(rdma_cm_id* id, ibv_qp_type type) {
  ibv_qp_init_attr attr = QpOptions(type);
  return rdma_create_qp(id, nullptr, &attr);
}

ibv_qp_attr AttributesOf(ibv_qp* qp) {
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_TIMEOUT, &init), 0);
  return attr;
}

ibv_qp_state StateOf(ibv_qp* qp) { return AttributesOf(qp).qp_state; }

rdma_conn_param Param(const std::string& private_data) {
  rdma_conn_param param = {};
  param.private_data = private_data.data();
  param.private_data_len = static_cast<uint8_t>(private_data.size());
  param.responder_resources = param.initiator_depth = 4;
  param.retry_count = param.rnr_retry_count = 7;
  return param;
}

CmId CmTest::Resolved(Channel& channel, Address destination, rdma_port_space port_space) {
  CmId id(channel, port_space);
  EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, destination.get(), kResolveMs), 0)
      << strerror(errno);
  EXPECT_EQ(channel.Expect(RDMA_CM_EVENT_ADDR_RESOLVED).id, id.get());
  EXPECT_EQ(rdma_resolve_route(id.get(), kResolveMs), 0) << strerror(errno);
  EXPECT_EQ(channel.Expect(RDMA_CM_EVENT_ROUTE_RESOLVED).id, id.get());
  return id;
}

void CmTest::Listen(const std::string& address, rdma_port_space port_space, int backlog) {
  port_space_ = port_space;
  listener = CmId(passive_channel, port_space, this);
  Address where(address);
  ASSERT_EQ(rdma_bind_addr(listener.get(), where.get()), 0) << strerror(errno);
  ASSERT_EQ(rdma_listen(listener.get(), backlog), 0) << strerror(errno);
}

void CmTest::Resolve() {
  active = Resolved(active_channel, ListenerAddress(), port_space_);
  ASSERT_EQ(MakeQp(active.get(), QpType()), 0) << strerror(errno);
}

Told CmTest::Request(rdma_conn_param* param) {
  EXPECT_EQ(rdma_connect(active.get(), param), 0) << strerror(errno);
  Told told = passive_channel.Expect(RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_EQ(told.listen_id, listener.get());
  passive = CmId(told.id);
  return told;
}

Told CmTest::Request(const std::string& private_data) {
  rdma_conn_param param = Param(private_data);
  return Request(&param);
}

void CmTest::Accept(const std::string& private_data) {
  ASSERT_NE(passive.get(), nullptr);
  ASSERT_EQ(MakeQp(passive.get(), QpType()), 0) << strerror(errno);
  rdma_conn_param param = Param(private_data);
  if (!IsConnected()) param.qp_num = passive->qp->qp_num;
  ASSERT_EQ(rdma_accept(passive.get(), &param), 0) << strerror(errno);
  EXPECT_EQ(active_channel.Expect(RDMA_CM_EVENT_ESTABLISHED).id, active.get());
  if (!IsConnected()) return;
  EXPECT_EQ(passive_channel.Expect(RDMA_CM_EVENT_ESTABLISHED).id, passive.get());
}

void CmTest::Connect() {
  Listen();
  Resolve();
  Request();
  Accept();
}

void CmTest::Disconnect() {
  EXPECT_EQ(rdma_disconnect(active.get()), 0) << strerror(errno);
  EXPECT_EQ(passive_channel.Expect(RDMA_CM_EVENT_DISCONNECTED).id, passive.get());
  EXPECT_EQ(rdma_disconnect(passive.get()), 0) << strerror(errno);
  EXPECT_EQ(active_channel.Expect(RDMA_CM_EVENT_DISCONNECTED).id, active.get());
}

void CancelWhileItWaits(const std::function<void()>& wait) {
  std::atomic<bool> has_returned = false;
  auto body = [&] {
    wait();
    has_returned = true;
  };
  pthread_t waiter;
  ASSERT_EQ(pthread_create(
                &waiter, nullptr,
                [](void* argument) -> void* {
                  (*static_cast<decltype(body)*>(argument))();
                  return nullptr;
                },
                &body),
            0);
  EXPECT_TRUE(NeverWithin([&] { return has_returned.load(); }));
  ASSERT_EQ(pthread_cancel(waiter), 0);
  void* result = nullptr;
  ASSERT_EQ(pthread_join(waiter, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

}  // namespace verbena::conformance
