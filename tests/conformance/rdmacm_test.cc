// rdma_cm used directly: what the man pages promise and real programs seldom ask for.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

namespace verbena::conformance {
namespace {

constexpr int kTimeoutMs = 2000;
constexpr int kConsumerReject = 28;  // IBTA 12.6.7.2
// Since v60.
constexpr auto kEventAddrinfoResolved = static_cast<rdma_cm_event_type>(16);
constexpr auto kEventUser = static_cast<rdma_cm_event_type>(18);

sockaddr_in At(const char* address, uint16_t port = 0) {
  sockaddr_in out = {};
  out.sin_family = AF_INET;
  out.sin_port = htons(port);
  inet_pton(AF_INET, address, &out.sin_addr);
  return out;
}

sockaddr* As(sockaddr_in* address) { return reinterpret_cast<sockaddr*>(address); }

template <typename Function>
Function V64(const char* name) {
  return reinterpret_cast<Function>(dlvsym(RTLD_DEFAULT, name, "RDMACM_1.4"));
}

ibv_qp_init_attr QpAttr() {
  ibv_qp_init_attr attr = {};
  attr.cap = {4, 4, 1, 1, 0};
  attr.qp_type = IBV_QPT_RC;
  attr.sq_sig_all = 1;
  return attr;
}

class RdmacmTest : public testing::Test {
 protected:
  void SetUp() override {
    channel = rdma_create_event_channel();
    ASSERT_NE(channel, nullptr) << strerror(errno);
  }
  void TearDown() override { rdma_destroy_event_channel(channel); }

  rdma_cm_id* NewId(rdma_port_space space = RDMA_PS_TCP) {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(channel, &id, this, space), 0) << strerror(errno);
    return id;
  }
  // Takes the next event, which must be of this type; its status.
  int Expect(rdma_cm_event_type type) {
    rdma_cm_event* event = nullptr;
    EXPECT_EQ(rdma_get_cm_event(channel, &event), 0) << strerror(errno);
    if (event == nullptr) return -1;
    EXPECT_EQ(event->event, type) << rdma_event_str(event->event);
    const int status = event->status;
    rdma_ack_cm_event(event);
    return status;
  }
  void Resolve(rdma_cm_id* id, uint16_t port) {
    sockaddr_in to = At("127.0.0.1", port);
    ASSERT_EQ(rdma_resolve_addr(id, nullptr, As(&to), kTimeoutMs), 0);
    EXPECT_EQ(Expect(RDMA_CM_EVENT_ADDR_RESOLVED), 0);
    ASSERT_EQ(rdma_resolve_route(id, kTimeoutMs), 0);
    EXPECT_EQ(Expect(RDMA_CM_EVENT_ROUTE_RESOLVED), 0);
  }

  rdma_event_channel* channel = nullptr;
};

TEST_F(RdmacmTest, AChannelThatMayNotBlockSaysSo) {
  ASSERT_EQ(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK), 0);
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(rdma_get_cm_event(channel, &event), -1);
  EXPECT_EQ(errno, EAGAIN);
  pollfd entry = {channel->fd, POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 0), 0);
  rdma_cm_id* id = NewId();
  sockaddr_in to = At("127.0.0.1", 9);
  ASSERT_EQ(rdma_resolve_addr(id, nullptr, As(&to), kTimeoutMs), 0);
  EXPECT_EQ(poll(&entry, 1, kTimeoutMs), 1);
  EXPECT_EQ(Expect(RDMA_CM_EVENT_ADDR_RESOLVED), 0);
  EXPECT_EQ(poll(&entry, 1, 0), 0) << "nothing more";
  rdma_destroy_id(id);
}

TEST_F(RdmacmTest, EventsOfAnIdentifierGoWithIt) {
  rdma_cm_id* id = NewId();
  sockaddr_in to = At("127.0.0.1", 9);
  ASSERT_EQ(rdma_resolve_addr(id, nullptr, As(&to), kTimeoutMs), 0);
  pollfd entry = {channel->fd, POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, kTimeoutMs), 1);
  EXPECT_EQ(rdma_destroy_id(id), 0);
  EXPECT_EQ(poll(&entry, 1, 0), 0);
}

TEST_F(RdmacmTest, BindingChoosesNicAndPort) {
  rdma_cm_id *id = NewId(), *second = NewId(), *wildcard = NewId();
  sockaddr_in address = At("127.0.0.1");
  ASSERT_EQ(rdma_bind_addr(id, As(&address)), 0) << strerror(errno);
  EXPECT_NE(rdma_get_src_port(id), 0);
  EXPECT_EQ(rdma_get_dst_port(id), 0);
  ASSERT_NE(id->verbs, nullptr);
  EXPECT_EQ(id->port_num, 1);
  EXPECT_NE(id->pd, nullptr);
  EXPECT_EQ(rdma_bind_addr(id, As(&address)), -1) << "bound already";
  EXPECT_EQ(errno, EINVAL);
  address.sin_port = rdma_get_src_port(id);
  EXPECT_EQ(rdma_bind_addr(second, As(&address)), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  address.sin_port = 0;
  ASSERT_EQ(rdma_bind_addr(second, As(&address)), 0);
  EXPECT_EQ(second->verbs, id->verbs) << "one context per NIC";
  EXPECT_EQ(second->pd, id->pd);
  sockaddr_in any = At("0.0.0.0");
  ASSERT_EQ(rdma_bind_addr(wildcard, As(&any)), 0);
  EXPECT_EQ(wildcard->verbs, nullptr);
  EXPECT_EQ(rdma_listen(wildcard, 4), 0);
  EXPECT_NE(rdma_get_src_port(wildcard), 0);
  for (rdma_cm_id* each : {id, second, wildcard}) EXPECT_EQ(rdma_destroy_id(each), 0);
}

TEST_F(RdmacmTest, AddressesThatAreNoneOfOursAreRefused) {
  rdma_cm_id* id = NewId();
  sockaddr_storage infiniband = {};
  infiniband.ss_family = AF_IB;
  EXPECT_EQ(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&infiniband)), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&infiniband), 1), -1);
  EXPECT_EQ(errno, EINVAL);
  sockaddr_in nobody = At("203.0.113.77");
  EXPECT_EQ(rdma_bind_addr(id, As(&nobody)), -1);
  EXPECT_EQ(errno, EADDRNOTAVAIL);
  EXPECT_EQ(rdma_resolve_route(id, 1), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_connect(id, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_disconnect(id), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_leave_multicast(id, As(&nobody)), -1);
  EXPECT_EQ(errno, EADDRNOTAVAIL);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(RdmacmTest, OptionsAreTakenWhileTheyCount) {
  rdma_cm_id* id = NewId();
  uint8_t tos = 0x20, exponent = 14;
  int one = 1;
  EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)), 0);
  EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)), 0);
  EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one)), 0);
  EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &exponent, 1), 0);
  EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one, sizeof(one)), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_ID, 77, &one, sizeof(one)), -1);
  EXPECT_EQ(errno, ENOSYS);
  rdma_destroy_id(id);
}

TEST_F(RdmacmTest, ARejectionHasItsReasonAndPrivateData) {
  rdma_cm_id *listener = NewId(), *client = NewId();
  sockaddr_in address = At("127.0.0.1");
  ASSERT_EQ(rdma_bind_addr(listener, As(&address)), 0);
  ASSERT_EQ(rdma_listen(listener, 1), 0);
  Resolve(client, ntohs(rdma_get_src_port(listener)));
  ibv_qp_init_attr attr = QpAttr();
  ASSERT_EQ(rdma_create_qp(client, nullptr, &attr), 0) << strerror(errno);
  EXPECT_NE(client->send_cq_channel, nullptr);
  const char hello[] = "hello";
  rdma_conn_param param = {};
  param.private_data = hello;
  param.private_data_len = sizeof(hello);
  param.retry_count = 7;
  ASSERT_EQ(rdma_connect(client, &param), 0) << strerror(errno);
  rdma_cm_event* event = nullptr;
  ASSERT_EQ(rdma_get_cm_event(channel, &event), 0);
  ASSERT_EQ(event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_EQ(event->listen_id, listener);
  EXPECT_EQ(event->id->context, this) << "as the listener's";
  EXPECT_EQ(event->param.conn.qp_num, client->qp->qp_num);
  EXPECT_STREQ(static_cast<const char*>(event->param.conn.private_data), hello);
  EXPECT_EQ(event->id->verbs, client->verbs);
  rdma_cm_id* server = event->id;
  rdma_ack_cm_event(event);
  ASSERT_EQ(rdma_reject(server, "no", 3), 0);
  ASSERT_EQ(rdma_get_cm_event(channel, &event), 0);
  EXPECT_EQ(event->event, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(event->status, kConsumerReject);
  EXPECT_STREQ(static_cast<const char*>(event->param.conn.private_data), "no");
  rdma_ack_cm_event(event);
  rdma_destroy_qp(client);
  for (rdma_cm_id* id : {client, server, listener}) EXPECT_EQ(rdma_destroy_id(id), 0);
}

// A synchronous server for one client: it echoes one message.
class Echo {
 public:
  Echo() {
    rdma_addrinfo hints = {}, *info = nullptr;
    hints.ai_flags = RAI_PASSIVE;
    hints.ai_port_space = RDMA_PS_TCP;
    hints.ai_qp_type = IBV_QPT_RC;
    EXPECT_EQ(rdma_getaddrinfo("127.0.0.1", "0", &hints, &info), 0);
    ibv_qp_init_attr attr = QpAttr();
    EXPECT_EQ(rdma_create_ep(&listener_, info, nullptr, &attr), 0) << strerror(errno);
    rdma_freeaddrinfo(info);
    EXPECT_EQ(rdma_listen(listener_, 1), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~Echo() {
    thread_.join();
    rdma_destroy_ep(listener_);
  }
  std::string port() const { return std::to_string(ntohs(rdma_get_src_port(listener_))); }

 private:
  void Run() {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_get_request(listener_, &id), 0) << strerror(errno);
    char text[64];
    ibv_mr* mr = rdma_reg_msgs(id, text, sizeof(text));
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(rdma_post_recv(id, nullptr, text, sizeof(text), mr), 0);
    ASSERT_EQ(rdma_accept(id, nullptr), 0) << strerror(errno);
    ibv_wc wc;
    EXPECT_EQ(rdma_get_recv_comp(id, &wc), 1);
    EXPECT_EQ(rdma_post_send(id, nullptr, text, wc.byte_len, mr, 0), 0);
    EXPECT_EQ(rdma_get_send_comp(id, &wc), 1);
    EXPECT_EQ(rdma_disconnect(id), 0) << strerror(errno);
    rdma_dereg_mr(mr);
    rdma_destroy_ep(id);
  }

  rdma_cm_id* listener_ = nullptr;
  std::thread thread_;
};

TEST_F(RdmacmTest, SynchronousEndpointsTalk) {
  Echo echo;
  rdma_addrinfo hints = {}, *info = nullptr;
  hints.ai_port_space = RDMA_PS_TCP;
  hints.ai_qp_type = IBV_QPT_RC;
  ASSERT_EQ(rdma_getaddrinfo("127.0.0.1", echo.port().c_str(), &hints, &info), 0);
  ibv_qp_init_attr attr = QpAttr();
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_ep(&id, info, nullptr, &attr), 0) << strerror(errno);
  rdma_freeaddrinfo(info);
  EXPECT_EQ(id->route.num_paths, 1);
  char text[64] = "there and back";
  ibv_mr* mr = rdma_reg_msgs(id, text, sizeof(text));
  ASSERT_NE(mr, nullptr);
  ASSERT_EQ(rdma_connect(id, nullptr), 0) << strerror(errno);
  ASSERT_NE(id->event, nullptr);
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(rdma_post_recv(id, nullptr, text + 32, 32, mr), 0);
  EXPECT_EQ(rdma_post_send(id, nullptr, text, 32, mr, 0), 0);
  ibv_wc wc;
  EXPECT_EQ(rdma_get_send_comp(id, &wc), 1);
  EXPECT_EQ(rdma_get_recv_comp(id, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_STREQ(text + 32, "there and back");
  rdma_disconnect(id);  // the peer may have come first
  rdma_dereg_mr(mr);
  rdma_destroy_ep(id);
}

TEST_F(RdmacmTest, ASynchronousConnectIsRefusedByErrno) {
  rdma_addrinfo hints = {}, *info = nullptr;
  hints.ai_port_space = RDMA_PS_TCP;
  hints.ai_qp_type = IBV_QPT_RC;
  ASSERT_EQ(rdma_getaddrinfo("127.0.0.1", "9", &hints, &info), 0);
  ibv_qp_init_attr attr = QpAttr();
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_ep(&id, info, nullptr, &attr), 0);
  rdma_freeaddrinfo(info);
  EXPECT_EQ(rdma_connect(id, nullptr), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  rdma_destroy_ep(id);
}

TEST_F(RdmacmTest, EventsThatWaitMigrateAlong) {
  rdma_event_channel* other = rdma_create_event_channel();
  ASSERT_NE(other, nullptr);
  rdma_cm_id* id = NewId();
  sockaddr_in to = At("127.0.0.1", 9);
  ASSERT_EQ(rdma_resolve_addr(id, nullptr, As(&to), kTimeoutMs), 0);
  pollfd entry = {channel->fd, POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, kTimeoutMs), 1);
  ASSERT_EQ(rdma_migrate_id(id, other), 0);
  EXPECT_EQ(id->channel, other);
  EXPECT_EQ(poll(&entry, 1, 0), 0);
  std::swap(channel, other);
  EXPECT_EQ(Expect(RDMA_CM_EVENT_ADDR_RESOLVED), 0);
  rdma_destroy_id(id);
  rdma_destroy_event_channel(other);
}

TEST_F(RdmacmTest, AProgramWritesEventsToItself) {
  auto write_event =
      V64<int (*)(rdma_cm_id*, rdma_cm_event_type, int, uint64_t)>("rdma_write_cm_event");
  ASSERT_NE(write_event, nullptr);
  rdma_cm_id* id = NewId();
  EXPECT_EQ(write_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  ASSERT_EQ(write_event(id, kEventUser, 7, 0x1122334455667788), 0) << strerror(errno);
  rdma_cm_event* event = nullptr;
  ASSERT_EQ(rdma_get_cm_event(channel, &event), 0);
  EXPECT_EQ(event->event, kEventUser);
  EXPECT_EQ(event->id, id);
  EXPECT_EQ(event->status, 7);
  uint64_t arg = 0;
  memcpy(&arg, &event->param, sizeof(arg));
  EXPECT_EQ(arg, 0x1122334455667788u);
  rdma_ack_cm_event(event);
  rdma_destroy_id(id);
}

TEST_F(RdmacmTest, NamesAreResolvedByAnEvent) {
  auto resolve = V64<int (*)(rdma_cm_id*, const char*, const char*, const rdma_addrinfo*)>(
      "rdma_resolve_addrinfo");
  auto query = V64<int (*)(rdma_cm_id*, rdma_addrinfo**)>("rdma_query_addrinfo");
  ASSERT_NE(resolve, nullptr);
  rdma_cm_id* id = NewId();
  rdma_addrinfo* info = nullptr;
  EXPECT_EQ(query(id, &info), -1);
  EXPECT_EQ(errno, ENOENT);
  ASSERT_EQ(resolve(id, "127.0.0.1", "7471", nullptr), 0) << strerror(errno);
  EXPECT_EQ(resolve(id, "127.0.0.1", "7471", nullptr), -1);
  EXPECT_EQ(errno, EBUSY);
  EXPECT_EQ(Expect(kEventAddrinfoResolved), 0);
  ASSERT_EQ(query(id, &info), 0);
  ASSERT_EQ(info->ai_family, AF_INET);
  EXPECT_EQ(reinterpret_cast<sockaddr_in*>(info->ai_dst_addr)->sin_port, htons(7471));
  rdma_freeaddrinfo(info);
  rdma_destroy_id(id);
}

TEST_F(RdmacmTest, AnSrqServesAnIdentifiersQp) {
  rdma_cm_id* id = NewId();
  Resolve(id, 9);
  ibv_srq_init_attr srq = {};
  srq.attr = {8, 1, 0};
  ASSERT_EQ(rdma_create_srq(id, nullptr, &srq), 0) << strerror(errno);
  ASSERT_NE(id->srq, nullptr);
  ibv_qp_init_attr attr = QpAttr();
  ASSERT_EQ(rdma_create_qp(id, nullptr, &attr), 0) << strerror(errno);
  EXPECT_EQ(id->qp->srq, id->srq);
  EXPECT_EQ(attr.srq, id->srq);
  rdma_destroy_qp(id);
  rdma_destroy_srq(id);
  EXPECT_EQ(id->srq, nullptr);
  rdma_destroy_id(id);
}

TEST_F(RdmacmTest, AChildConnectsOnItsOwn) {
  rdma_cm_id* id = NewId();
  Resolve(id, 9);
  const pid_t child = fork();
  if (child == 0) {
    if (rdma_resolve_route(id, 1) != -1 || errno != EIO) _exit(1);  // the parent's
    rdma_cm_id* own = nullptr;
    if (rdma_create_id(nullptr, &own, nullptr, RDMA_PS_TCP) != 0) _exit(2);
    sockaddr_in to = At("127.0.0.2", 9);
    if (rdma_resolve_addr(own, nullptr, As(&to), kTimeoutMs) != 0) _exit(3);
    if (rdma_resolve_route(own, kTimeoutMs) != 0) _exit(4);
    ibv_qp_init_attr attr = QpAttr();
    if (rdma_create_qp(own, nullptr, &attr) != 0) _exit(5);
    if (rdma_connect(own, nullptr) != -1 || errno != ECONNREFUSED) _exit(6);
    rdma_destroy_ep(own);
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ibv_qp_init_attr attr = QpAttr();
  EXPECT_EQ(rdma_create_qp(id, nullptr, &attr), 0) << strerror(errno);
  rdma_destroy_qp(id);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(RdmacmTest, DevicesAreListedOnce) {
  int count = 0;
  ibv_context** list = rdma_get_devices(&count);
  ASSERT_NE(list, nullptr);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(list[count], nullptr);
  rdma_cm_id* id = NewId();
  sockaddr_in address = At("127.0.0.2");
  ASSERT_EQ(rdma_bind_addr(id, As(&address)), 0);
  EXPECT_EQ(id->verbs, list[1]);
  rdma_destroy_id(id);
  rdma_free_devices(list);
}

}  // namespace
}  // namespace verbena::conformance
