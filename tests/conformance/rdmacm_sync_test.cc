// Synchronous identifiers: endpoints, their requests, and the calls of rdma/rdma_verbs.h.
#include <cerrno>
#include <cstring>
#include <thread>

#include "tests/conformance/rdmacm_fixture.h"
#include "tests/conformance/rdmacm_v64.h"

namespace verbena::conformance {
namespace {

// Of rdma_getaddrinfo; freed at the end.
class Info {
 public:
  Info(int flags, const std::string& node, const std::string& service,
       int port_space = RDMA_PS_TCP) {
    rdma_addrinfo hints = {};
    hints.ai_flags = flags;
    hints.ai_port_space = port_space;
    EXPECT_EQ(rdma_getaddrinfo(node.c_str(), service.c_str(), &hints, &info_), 0);
  }
  ~Info() { rdma_freeaddrinfo(info_); }
  rdma_addrinfo* get() const { return info_; }
  rdma_addrinfo* operator->() const { return info_; }

 private:
  rdma_addrinfo* info_ = nullptr;
};

class Endpoint {
 public:
  Endpoint() = default;
  explicit Endpoint(rdma_cm_id* id) : id_(id) {}
  ~Endpoint() { Destroy(); }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  void Destroy() {
    if (id_ != nullptr) rdma_destroy_ep(std::exchange(id_, nullptr));
  }
  rdma_cm_id** put() { return &id_; }
  void release() { id_ = nullptr; }
  rdma_cm_id* get() const { return id_; }
  rdma_cm_id* operator->() const { return id_; }

 private:
  rdma_cm_id* id_ = nullptr;
};

// A listening endpoint and a connection to it, each side's calls in a thread of their own.
class SyncTest : public ::testing::Test {
 protected:
  void Listen(ibv_qp_init_attr* attr) {
    Info info(RAI_PASSIVE, "127.0.0.1", "0");
    ASSERT_EQ(rdma_create_ep(listener.put(), info.get(), nullptr, attr), 0) << strerror(errno);
    ASSERT_EQ(rdma_listen(listener.get(), 0), 0);
  }
  std::string Port() const { return std::to_string(ntohs(rdma_get_src_port(listener.get()))); }

  void Connect() {
    ibv_qp_init_attr attr = QpOptions();
    attr.sq_sig_all = 1;
    Listen(&attr);
    Info info(0, "127.0.0.1", Port());
    ibv_qp_init_attr active_attr = QpOptions();
    active_attr.sq_sig_all = 1;
    ASSERT_EQ(rdma_create_ep(active.put(), info.get(), nullptr, &active_attr), 0)
        << strerror(errno);
    std::thread server([this] {
      ASSERT_EQ(rdma_get_request(listener.get(), passive.put()), 0) << strerror(errno);
      EXPECT_NE(passive->qp, nullptr);
      EXPECT_EQ(rdma_accept(passive.get(), nullptr), 0) << strerror(errno);
    });
    EXPECT_EQ(rdma_connect(active.get(), nullptr), 0) << strerror(errno);
    server.join();
  }

  Endpoint listener, active, passive;
};

class Cm_rdma_create_ep : public SyncTest {};
class Cm_rdma_get_request : public SyncTest {};
class Cm_rdma_verbs : public SyncTest {};
class Cm_rdma_create_srq : public SyncTest {};
class Cm_synchronous : public SyncTest {};

// --- rdma_create_ep, rdma_destroy_ep -------------------------------------------------------------

TEST_F(Cm_rdma_create_ep, BothSidesConnect) {
  Connect();
  EXPECT_EQ(StateOf(active->qp), IBV_QPS_RTS);
  EXPECT_EQ(StateOf(passive->qp), IBV_QPS_RTS);
  EXPECT_EQ(active->event->event, RDMA_CM_EVENT_ESTABLISHED);
}

TEST_F(Cm_rdma_create_ep, ActiveIsResolvedWithAQp) {
  ibv_qp_init_attr attr = QpOptions();
  Info info(0, "127.0.0.2", "7471");
  ASSERT_EQ(rdma_create_ep(active.put(), info.get(), nullptr, &attr), 0);
  EXPECT_NE(active->verbs, nullptr);
  EXPECT_EQ(active->route.num_paths, 1);
  ASSERT_NE(active->qp, nullptr);
  EXPECT_EQ(StateOf(active->qp), IBV_QPS_INIT);
}

TEST_F(Cm_rdma_create_ep, ActiveWithoutAttributesHasNoQp) {
  Info info(0, "127.0.0.1", "7471");
  ASSERT_EQ(rdma_create_ep(active.put(), info.get(), nullptr, nullptr), 0);
  EXPECT_EQ(active->qp, nullptr);
}

TEST_F(Cm_rdma_create_ep, SaysWhatFailed) {
  Info nobody(0, "127.0.0.200", "7471"), foreign(RAI_PASSIVE, "192.0.2.1", "7471");
  errno = 0;
  EXPECT_EQ(rdma_create_ep(active.put(), nobody.get(), nullptr, nullptr), -1);
  EXPECT_TRUE(errno == EHOSTUNREACH || errno == ENETUNREACH) << strerror(errno);
  EXPECT_FAILS(rdma_create_ep(passive.put(), foreign.get(), nullptr, nullptr), EADDRNOTAVAIL);
  Info info(0, "127.0.0.1", "7471");
  ibv_qp_init_attr attr = QpOptions();
  attr.cap.max_send_wr = UINT32_MAX;
  errno = 0;
  EXPECT_EQ(rdma_create_ep(active.put(), info.get(), nullptr, &attr), -1);
  EXPECT_NE(errno, 0);
}

TEST_F(Cm_rdma_create_ep, ConnectDataGoBeforeThePrograms) {
  Listen(nullptr);
  Info info(0, "127.0.0.1", Port());
  info->ai_connect = strdup("first");
  info->ai_connect_len = 5;
  ibv_qp_init_attr attr = QpOptions();
  ASSERT_EQ(rdma_create_ep(active.put(), info.get(), nullptr, &attr), 0);
  std::thread server([this] {
    ASSERT_EQ(rdma_get_request(listener.get(), passive.put()), 0);
    const rdma_conn_param& param = passive->event->param.conn;
    EXPECT_EQ(std::string(static_cast<const char*>(param.private_data), 10), "firstthen!");
    EXPECT_EQ(rdma_reject(passive.get(), nullptr, 0), 0);
  });
  rdma_conn_param param = Param("then!");
  EXPECT_FAILS(rdma_connect(active.get(), &param), ECONNREFUSED);
  server.join();
}

// --- extended reliable connections, which neither this NIC has nor rxe
// ----------------------------

class Cm_xrc : public SyncTest {};

TEST_F(Cm_xrc, AnActiveSideGetsNoQp) {
  Info info(0, "127.0.0.1", "7471", RDMA_PS_IB);
  info->ai_qp_type = IBV_QPT_XRC_SEND;
  ibv_qp_init_attr attr = QpOptions(IBV_QPT_XRC_SEND);
  EXPECT_FAILS(rdma_create_ep(active.put(), info.get(), nullptr, &attr), EOPNOTSUPP);
  active.release();
  ASSERT_EQ(rdma_create_ep(active.put(), info.get(), nullptr, nullptr), 0);
  EXPECT_EQ(active->qp_type, IBV_QPT_XRC_SEND);
  EXPECT_FAILS(rdma_create_qp(active.get(), nullptr, &attr), EOPNOTSUPP);
  EXPECT_EQ(active->qp, nullptr);
}

TEST_F(Cm_xrc, APassiveSideGetsNeitherSrqNorQp) {
  Info info(RAI_PASSIVE, "127.0.0.1", "0", RDMA_PS_IB);
  info->ai_qp_type = IBV_QPT_XRC_RECV;
  ASSERT_EQ(rdma_create_ep(listener.put(), info.get(), nullptr, nullptr), 0);
  EXPECT_EQ(rdma_listen(listener.get(), 0), 0);
  ibv_srq_init_attr srq_attr = {};
  srq_attr.attr = {16, 1, 0};
  EXPECT_FAILS(rdma_create_srq(listener.get(), nullptr, &srq_attr), EOPNOTSUPP);
  ibv_qp_init_attr attr = QpOptions(IBV_QPT_XRC_RECV);
  EXPECT_FAILS(rdma_create_qp(listener.get(), nullptr, &attr), EOPNOTSUPP);
}

// --- synchronous calls ---------------------------------------------------------------------------

TEST_F(Cm_synchronous, EachCallReturnsWithItsEvent) {
  ibv_qp_init_attr attr = QpOptions();
  Listen(&attr);
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP), 0);
  CmId owner(id);
  Address there = Address::Of(&listener->route.addr.src_addr);
  ASSERT_EQ(rdma_resolve_addr(id, nullptr, there.get(), 2000), 0);
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_EQ(rdma_resolve_route(id, 2000), 0);
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
  ASSERT_EQ(MakeQp(id), 0);
  std::thread server([this] {
    ASSERT_EQ(rdma_get_request(listener.get(), passive.put()), 0);
    EXPECT_EQ(rdma_accept(passive.get(), nullptr), 0);
    EXPECT_EQ(passive->event->event, RDMA_CM_EVENT_ESTABLISHED);
    rdma_cm_event* event = nullptr;
    ASSERT_EQ(rdma_get_cm_event(passive->channel, &event), 0);
    EXPECT_EQ(event->event, RDMA_CM_EVENT_DISCONNECTED);
    EXPECT_EQ(rdma_ack_cm_event(event), 0);
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_ERR;
    EXPECT_EQ(ibv_modify_qp(passive->qp, &attr, IBV_QP_STATE), 0);
    passive.Destroy();
  });
  EXPECT_EQ(rdma_connect(id, nullptr), 0);
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(rdma_disconnect(id), 0) << strerror(errno);
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_DISCONNECTED);
  server.join();
}

TEST_F(Cm_synchronous, ErrorsComeBackFromTheCall) {
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP), 0);
  CmId owner(id);
  Address nobody("127.0.0.200", 7471), there("127.0.0.1", 9);
  EXPECT_EQ(rdma_resolve_addr(id, nullptr, nobody.get(), 2000), -1);
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ADDR_ERROR);
  ASSERT_EQ(rdma_resolve_addr(id, nullptr, there.get(), 2000), 0);
  ASSERT_EQ(rdma_resolve_route(id, 2000), 0);
  ASSERT_EQ(MakeQp(id), 0);
  EXPECT_FAILS(rdma_connect(id, nullptr), ECONNREFUSED);
  EXPECT_EQ(id->event->status, 8);  // nobody listens
}

// --- rdma_get_request ----------------------------------------------------------------------------

TEST_F(Cm_rdma_get_request, ARequestIsSynchronousWithAChannelOfItsOwn) {
  Connect();
  EXPECT_NE(passive->channel, listener->channel);
  EXPECT_NE(passive->event, nullptr);
  EXPECT_EQ(passive->pd, listener->pd);
}

TEST_F(Cm_rdma_get_request, RefusesAsynchronousListeners) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  ASSERT_EQ(rdma_listen(id.get(), 0), 0);
  EXPECT_FAILS(rdma_get_request(id.get(), passive.put()), EINVAL);
}

TEST_F(Cm_rdma_get_request, WithoutAttributesTheProgramMakesTheQp) {
  Listen(nullptr);
  Info info(0, "127.0.0.1", Port());
  ibv_qp_init_attr attr = QpOptions();
  ASSERT_EQ(rdma_create_ep(active.put(), info.get(), nullptr, &attr), 0);
  std::thread server([this] {
    ASSERT_EQ(rdma_get_request(listener.get(), passive.put()), 0);
    EXPECT_EQ(passive->qp, nullptr);
    EXPECT_EQ(passive->event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
    ASSERT_EQ(MakeQp(passive.get()), 0);
    EXPECT_EQ(rdma_accept(passive.get(), nullptr), 0);
  });
  EXPECT_EQ(rdma_connect(active.get(), nullptr), 0);
  server.join();
}

// --- rdma_verbs.h --------------------------------------------------------------------------------

constexpr size_t kBytes = 4096;

class Region {
 public:
  Region() : memory(kBytes) {}
  ~Region() {
    if (mr != nullptr) {
      EXPECT_EQ(rdma_dereg_mr(mr), 0);
    }
  }
  Memory memory;
  ibv_mr* mr = nullptr;
};

int Context(const ibv_wc& wc) { return static_cast<int>(wc.wr_id); }
void* Context(intptr_t number) { return reinterpret_cast<void*>(number); }

TEST_F(Cm_rdma_verbs, SendAndReceive) {
  Connect();
  Region from, to;
  ASSERT_NE(from.mr = rdma_reg_msgs(active.get(), from.memory.data(), kBytes), nullptr);
  ASSERT_NE(to.mr = rdma_reg_msgs(passive.get(), to.memory.data(), kBytes), nullptr);
  std::memset(from.memory.data(), 0x5a, 100);
  ASSERT_EQ(rdma_post_recv(passive.get(), Context(7), to.memory.data(), 100, to.mr), 0);
  ASSERT_EQ(rdma_post_send(active.get(), Context(8), from.memory.data(), 100, from.mr, 0), 0);
  ibv_wc wc;
  ASSERT_EQ(rdma_get_recv_comp(passive.get(), &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(Context(wc), 7);
  EXPECT_EQ(wc.byte_len, 100u);
  ASSERT_EQ(rdma_get_send_comp(active.get(), &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(Context(wc), 8);
  EXPECT_EQ(std::memcmp(from.memory.data(), to.memory.data(), 100), 0);
}

TEST_F(Cm_rdma_verbs, CompletionsAreWaitedFor) {
  Connect();
  Region from, to;
  ASSERT_NE(from.mr = rdma_reg_msgs(active.get(), from.memory.data(), kBytes), nullptr);
  ASSERT_NE(to.mr = rdma_reg_msgs(passive.get(), to.memory.data(), kBytes), nullptr);
  ASSERT_EQ(rdma_post_recv(passive.get(), nullptr, to.memory.data(), 8, to.mr), 0);
  std::thread receiver([this] {
    ibv_wc wc;
    EXPECT_EQ(rdma_get_recv_comp(passive.get(), &wc), 1);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  });
  ASSERT_EQ(rdma_post_send(active.get(), nullptr, from.memory.data(), 8, from.mr, 0), 0);
  receiver.join();
  ibv_wc wc;
  EXPECT_EQ(rdma_get_send_comp(active.get(), &wc), 1);
}

TEST_F(Cm_rdma_verbs, SendAndReceiveOfSeveralPieces) {
  Connect();
  Region from, to;
  ASSERT_NE(from.mr = rdma_reg_msgs(active.get(), from.memory.data(), kBytes), nullptr);
  ASSERT_NE(to.mr = rdma_reg_msgs(passive.get(), to.memory.data(), kBytes), nullptr);
  std::memcpy(from.memory.data(), "ab", 2);
  std::memcpy(from.memory.data() + 1000, "cd", 2);
  ibv_sge out[2] = {{from.memory.address(), 2, from.mr->lkey},
                    {from.memory.address() + 1000, 2, from.mr->lkey}};
  ibv_sge in[2] = {{to.memory.address(), 3, to.mr->lkey},
                   {to.memory.address() + 500, 3, to.mr->lkey}};
  ASSERT_EQ(rdma_post_recvv(passive.get(), nullptr, in, 2), 0);
  ASSERT_EQ(rdma_post_sendv(active.get(), nullptr, out, 2, 0), 0);
  ibv_wc wc;
  ASSERT_EQ(rdma_get_recv_comp(passive.get(), &wc), 1);
  EXPECT_EQ(wc.byte_len, 4u);
  EXPECT_EQ(std::memcmp(to.memory.data(), "abc", 3), 0);
  EXPECT_EQ(to.memory[500], 'd');
  EXPECT_EQ(rdma_get_send_comp(active.get(), &wc), 1);
}

TEST_F(Cm_rdma_verbs, InlineDataNeedNoRegion) {
  Connect();
  Region to;
  ASSERT_NE(to.mr = rdma_reg_msgs(passive.get(), to.memory.data(), kBytes), nullptr);
  ASSERT_EQ(rdma_post_recv(passive.get(), nullptr, to.memory.data(), 8, to.mr), 0);
  char text[8] = "inline!";
  ASSERT_EQ(rdma_post_send(active.get(), nullptr, text, 8, nullptr, IBV_SEND_INLINE), 0);
  ibv_wc wc;
  ASSERT_EQ(rdma_get_recv_comp(passive.get(), &wc), 1);
  EXPECT_STREQ(reinterpret_cast<char*>(to.memory.data()), "inline!");
  EXPECT_EQ(rdma_get_send_comp(active.get(), &wc), 1);
}

TEST_F(Cm_rdma_verbs, ReadsFromMemoryRegisteredForReading) {
  Connect();
  Region local, remote;
  ASSERT_NE(local.mr = rdma_reg_msgs(active.get(), local.memory.data(), kBytes), nullptr);
  ASSERT_NE(remote.mr = rdma_reg_read(passive.get(), remote.memory.data(), kBytes), nullptr);
  std::memset(remote.memory.data(), 0x77, 64);
  ASSERT_EQ(rdma_post_read(active.get(), Context(1), local.memory.data(), 64, local.mr, 0,
                           remote.memory.address(), remote.mr->rkey),
            0);
  ibv_wc wc;
  ASSERT_EQ(rdma_get_send_comp(active.get(), &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(local.memory[63], 0x77);
  ibv_sge sge = {local.memory.address() + 64, 64, local.mr->lkey};
  ASSERT_EQ(rdma_post_readv(active.get(), Context(2), &sge, 1, 0, remote.memory.address(),
                            remote.mr->rkey),
            0);
  ASSERT_EQ(rdma_get_send_comp(active.get(), &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(local.memory[127], 0x77);
}

TEST_F(Cm_rdma_verbs, WritesToMemoryRegisteredForWriting) {
  Connect();
  Region local, remote;
  ASSERT_NE(local.mr = rdma_reg_msgs(active.get(), local.memory.data(), kBytes), nullptr);
  ASSERT_NE(remote.mr = rdma_reg_write(passive.get(), remote.memory.data(), kBytes), nullptr);
  std::memset(local.memory.data(), 0x33, 64);
  ASSERT_EQ(rdma_post_write(active.get(), Context(1), local.memory.data(), 64, local.mr, 0,
                            remote.memory.address(), remote.mr->rkey),
            0);
  ibv_wc wc;
  ASSERT_EQ(rdma_get_send_comp(active.get(), &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(remote.memory[63], 0x33);
  ibv_sge sge = {local.memory.address(), 64, local.mr->lkey};
  ASSERT_EQ(rdma_post_writev(active.get(), Context(2), &sge, 1, 0, remote.memory.address() + 64,
                             remote.mr->rkey),
            0);
  ASSERT_EQ(rdma_get_send_comp(active.get(), &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(remote.memory[127], 0x33);
}

TEST_F(Cm_rdma_verbs, ARegionForReadingIsNotWrittenTo) {
  Connect();
  Region local, remote;
  ASSERT_NE(local.mr = rdma_reg_msgs(active.get(), local.memory.data(), kBytes), nullptr);
  ASSERT_NE(remote.mr = rdma_reg_read(passive.get(), remote.memory.data(), kBytes), nullptr);
  ASSERT_EQ(rdma_post_write(active.get(), nullptr, local.memory.data(), 8, local.mr, 0,
                            remote.memory.address(), remote.mr->rkey),
            0);
  ibv_wc wc;
  ASSERT_EQ(rdma_get_send_comp(active.get(), &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Cm_rdma_verbs, PostingSaysWhatIsWrong) {
  ibv_qp_init_attr attr = QpOptions();
  Info info(0, "127.0.0.1", "7471");
  ASSERT_EQ(rdma_create_ep(active.put(), info.get(), nullptr, &attr), 0);
  char byte = 0;
  // Not connected.
  EXPECT_FAILS(rdma_post_send(active.get(), nullptr, &byte, 1, nullptr, IBV_SEND_INLINE), EINVAL);
}

// --- rdma_create_srq, rdma_create_srq_ex, rdma_destroy_srq ---------------------------------------

ibv_srq_init_attr SrqOptions() {
  ibv_srq_init_attr attr = {};
  attr.attr.max_wr = 16;
  attr.attr.max_sge = 1;
  return attr;
}

TEST_F(Cm_rdma_create_srq, ReceivesOfTheQpComeFromIt) {
  ibv_qp_init_attr attr = QpOptions();
  Listen(nullptr);
  Info info(0, "127.0.0.1", Port());
  attr.sq_sig_all = 1;
  ASSERT_EQ(rdma_create_ep(active.put(), info.get(), nullptr, &attr), 0);
  std::thread server([this] {
    ASSERT_EQ(rdma_get_request(listener.get(), passive.put()), 0);
    ibv_srq_init_attr srq = SrqOptions();
    ASSERT_EQ(rdma_create_srq(passive.get(), nullptr, &srq), 0) << strerror(errno);
    EXPECT_GE(srq.attr.max_wr, 16u);
    ASSERT_NE(passive->srq, nullptr);
    EXPECT_EQ(passive->srq->pd, passive->pd);
    ASSERT_EQ(MakeQp(passive.get()), 0);
    EXPECT_EQ(passive->qp->srq, passive->srq);
    EXPECT_EQ(rdma_accept(passive.get(), nullptr), 0);
  });
  EXPECT_EQ(rdma_connect(active.get(), nullptr), 0);
  server.join();
  EXPECT_EQ(active->event->param.conn.srq, 1);
  Region to;
  ASSERT_NE(to.mr = rdma_reg_msgs(passive.get(), to.memory.data(), kBytes), nullptr);
  ASSERT_EQ(rdma_post_recv(passive.get(), Context(5), to.memory.data(), 8, to.mr), 0);
  char text[8] = "shared!";
  ASSERT_EQ(rdma_post_send(active.get(), nullptr, text, 8, nullptr, IBV_SEND_INLINE), 0);
  ibv_wc wc;
  ASSERT_EQ(rdma_get_recv_comp(passive.get(), &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(Context(wc), 5);
  EXPECT_STREQ(reinterpret_cast<char*>(to.memory.data()), "shared!");
}

TEST_F(Cm_rdma_create_srq, NeedsANic) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  ibv_srq_init_attr attr = SrqOptions();
  if (v64::IsOurs()) {  // upstream's asks the NIC that there is not
    EXPECT_FAILS(rdma_create_srq(id.get(), nullptr, &attr), EINVAL);
  }
  Address here("127.0.0.1");
  ASSERT_EQ(rdma_bind_addr(id.get(), here.get()), 0);
  ASSERT_EQ(rdma_create_srq(id.get(), nullptr, &attr), 0) << strerror(errno);
  rdma_destroy_srq(id.get());
  EXPECT_EQ(id->srq, nullptr);
}

TEST(Cm_rdma_create_srq_ex, NeedsAType) {
  Channel channel;
  CmId id(channel, RDMA_PS_TCP);
  Address here("127.0.0.1");
  ASSERT_EQ(rdma_bind_addr(id.get(), here.get()), 0);
  ibv_srq_init_attr_ex attr = {};
  attr.attr = SrqOptions().attr;
  EXPECT_FAILS(rdma_create_srq_ex(id.get(), &attr), EINVAL);
  attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
  attr.srq_type = IBV_SRQT_BASIC;
  ASSERT_EQ(rdma_create_srq_ex(id.get(), &attr), 0) << strerror(errno);
  EXPECT_EQ(attr.pd, id->pd);
}

}  // namespace
}  // namespace verbena::conformance
