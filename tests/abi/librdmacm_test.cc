// librdmacm.so.1 as a program sees it where no instance runs: its structures, and what it answers.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <stdlib.h>

#include <cerrno>
#include <cstddef>
#include <fstream>
#include <string>

namespace {

// The public structures of v44, which v64 left as they were.
static_assert(sizeof(rdma_cm_id) == 416);
static_assert(offsetof(rdma_cm_id, verbs) == 0);
static_assert(offsetof(rdma_cm_id, channel) == 8);
static_assert(offsetof(rdma_cm_id, context) == 16);
static_assert(offsetof(rdma_cm_id, qp) == 24);
static_assert(offsetof(rdma_cm_id, route) == 32);
static_assert(offsetof(rdma_cm_id, ps) == 344);
static_assert(offsetof(rdma_cm_id, port_num) == 348);
static_assert(offsetof(rdma_cm_id, event) == 352);
static_assert(offsetof(rdma_cm_id, send_cq_channel) == 360);
static_assert(offsetof(rdma_cm_id, send_cq) == 368);
static_assert(offsetof(rdma_cm_id, recv_cq_channel) == 376);
static_assert(offsetof(rdma_cm_id, recv_cq) == 384);
static_assert(offsetof(rdma_cm_id, srq) == 392);
static_assert(offsetof(rdma_cm_id, pd) == 400);
static_assert(offsetof(rdma_cm_id, qp_type) == 408);
static_assert(sizeof(rdma_route) == 312);
static_assert(offsetof(rdma_route, path_rec) == 296);
static_assert(offsetof(rdma_addr, dst_addr) == 128);
static_assert(offsetof(rdma_addr, addr) == 256);
static_assert(sizeof(rdma_cm_event) == 80);
static_assert(offsetof(rdma_cm_event, listen_id) == 8);
static_assert(offsetof(rdma_cm_event, event) == 16);
static_assert(offsetof(rdma_cm_event, status) == 20);
static_assert(offsetof(rdma_cm_event, param) == 24);
static_assert(offsetof(rdma_conn_param, qp_num) == 16);
static_assert(offsetof(rdma_ud_param, ah_attr) == 16);
static_assert(offsetof(rdma_ud_param, qp_num) == 48);
static_assert(sizeof(rdma_addrinfo) == 96);
static_assert(offsetof(rdma_addrinfo, ai_src_addr) == 24);
static_assert(offsetof(rdma_addrinfo, ai_route) == 64);
static_assert(offsetof(rdma_addrinfo, ai_next) == 88);
static_assert(sizeof(rdma_event_channel) == 4);

class Rdmacm : public testing::Test {
 protected:
  void SetUp() override {
    setenv("VERBENA_AUTOSTART", "0", 1);
    setenv("VERBENA_INSTANCE", (testing::TempDir() + "/no_instance").c_str(), 1);
    errno = 0;
  }
};

TEST_F(Rdmacm, LoadsOurLibrariesAndOnlyOurs) {
  EXPECT_STREQ(rdma_event_str(RDMA_CM_EVENT_ADDR_RESOLVED), "RDMA_CM_EVENT_ADDR_RESOLVED");
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("librdmacm") == std::string::npos &&
        line.find("libibverbs") == std::string::npos) {
      continue;
    }
    ++found;
    EXPECT_EQ(line.find("/usr/lib"), std::string::npos) << line;
  }
  EXPECT_GT(found, 1);
}

TEST_F(Rdmacm, WithoutAnInstanceThereIsNoDevice) {
  EXPECT_EQ(rdma_create_event_channel(), nullptr);
  EXPECT_EQ(errno, ENODEV);
  errno = 0;
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP), -1);
  EXPECT_EQ(errno, ENODEV);
  int count = 7;
  errno = 0;
  EXPECT_EQ(rdma_get_devices(&count), nullptr);
  EXPECT_EQ(errno, ENODEV);
  EXPECT_EQ(count, 0);
  rdma_addrinfo* info = nullptr;
  errno = 0;
  EXPECT_EQ(rdma_getaddrinfo("127.0.0.1", "7471", nullptr, &info), -1);
  EXPECT_EQ(errno, ENODEV);
}

TEST_F(Rdmacm, WrongArgumentsAreToldOf) {
  rdma_addrinfo* info = nullptr;
  EXPECT_EQ(rdma_getaddrinfo(nullptr, nullptr, nullptr, &info), -1);
  EXPECT_EQ(errno, EINVAL);
  rdma_freeaddrinfo(nullptr);
  errno = 0;
  EXPECT_EQ(rdma_ack_cm_event(nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  errno = 0;
  EXPECT_EQ(rdma_get_cm_event(nullptr, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  ibv_ece ece = {};
  errno = 0;
  EXPECT_EQ(rdma_set_local_ece(nullptr, &ece), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Rdmacm, EventsHaveTheNamesOfTheManPage) {
  EXPECT_STREQ(rdma_event_str(RDMA_CM_EVENT_ESTABLISHED), "RDMA_CM_EVENT_ESTABLISHED");
  EXPECT_STREQ(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT");
  EXPECT_STREQ(rdma_event_str(static_cast<rdma_cm_event_type>(17)), "RDMA_CM_EVENT_ADDRINFO_ERROR");
  for (int beyond : {18, 100, -1}) {
    EXPECT_STREQ(rdma_event_str(static_cast<rdma_cm_event_type>(beyond)), "UNKNOWN EVENT");
  }
}

TEST_F(Rdmacm, SocketsOverRdmaAreNotSupported) {
  EXPECT_EQ(rsocket(AF_INET, SOCK_STREAM, 0), -1);
  EXPECT_EQ(errno, ENOSYS);
  errno = 0;
  EXPECT_EQ(rrecv(1, nullptr, 0, 0), -1);
  EXPECT_EQ(errno, ENOSYS);
  errno = 0;
  EXPECT_EQ(rfcntl(1, 2, 3), -1);
  EXPECT_EQ(errno, ENOSYS);
  errno = 0;
  EXPECT_EQ(riowrite(1, nullptr, 0, 0, 0), static_cast<size_t>(-1));
  EXPECT_EQ(errno, ENOSYS);
}

}  // namespace
