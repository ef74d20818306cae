// Commands as librdmacm writes them, with a daemon that answers what a test wants.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/rdma_user_cm.h>

#include <cstring>
#include <deque>
#include <vector>

#include "verbs_shim/ucm/commands.h"

namespace verbena::ucm {

struct FakeDaemon {
  std::vector<shm::CmRequest> requests;
  std::deque<shm::CmReply> replies;  // none left: handles from 100 on
  shm::CmHandle next_handle = 100;
  int waits = 0;
  int wait_error = 0;
};
extern FakeDaemon g_daemon;
extern int g_other_daemon;
constexpr int kFd = 7, kOtherFd = 8, kForeignFd = 9;
inline const Channel kChannel = {&g_daemon, 1}, kOtherChannel = {&g_daemon, 2},
                     kForeignChannel = {&g_other_daemon, 3};

// The daemon's, for Environment.
int Execute(void* session, const shm::CmRequest& request, shm::CmReply* reply);
int AwaitEvent(int fd);
bool FindChannel(int fd, Channel* out);

inline sockaddr_in6 Inet6(const char* text, uint16_t port) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  address.sin6_scope_id = 5;
  EXPECT_EQ(inet_pton(AF_INET6, text, &address.sin6_addr), 1);
  return address;
}

inline sockaddr_in Inet(const char* text, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET, text, &address.sin_addr), 1);
  return address;
}

class CommandsTest : public ::testing::Test {
 protected:
  CommandsTest() { g_daemon = {}; }

  // Without an answer.
  template <typename T>
  int Write(uint32_t number, const T& command, const Channel& channel = kChannel, int fd = kFd) {
    return WriteBytes(number, command, 0, channel, fd);
  }
  template <typename T, typename Answer>
  int WriteFor(uint32_t number, T command, Answer* answer, const Channel& channel = kChannel,
               uint16_t out_bytes = sizeof(Answer), int fd = kFd) {
    command.response = reinterpret_cast<uint64_t>(answer);
    return WriteBytes(number, command, out_bytes, channel, fd);
  }
  template <typename T>
  int WriteBytes(uint32_t number, const T& command, uint16_t out_bytes, const Channel& channel,
                 int fd) {
    std::vector<char> bytes(sizeof(rdma_ucm_cmd_hdr) + sizeof(T));
    const rdma_ucm_cmd_hdr header = {number, sizeof(T), out_bytes};
    std::memcpy(bytes.data(), &header, sizeof(header));
    std::memcpy(bytes.data() + sizeof(header), &command, sizeof(T));
    return commands_.Write(channel, fd, bytes.data(), bytes.size());
  }
  // The number of a new identifier; the daemon's handle is `last().handle`'s reply.
  uint32_t NewId(uint64_t uid = 0xabc, const Channel& channel = kChannel) {
    rdma_ucm_create_id command{};
    command.uid = uid;
    command.ps = RDMA_PS_TCP;
    command.qp_type = 2;
    rdma_ucm_create_id_resp answer{77};
    EXPECT_EQ(WriteFor(RDMA_USER_CM_CMD_CREATE_ID, command, &answer, channel), 0);
    return answer.id;
  }
  int Disconnect(uint32_t id, const Channel& channel = kChannel) {
    return Write(RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect{id}, channel);
  }
  int Destroy(uint32_t id, uint32_t* events = nullptr, const Channel& channel = kChannel) {
    rdma_ucm_destroy_id command{};
    command.id = id;
    rdma_ucm_destroy_id_resp answer{};
    const int error = WriteFor(RDMA_USER_CM_CMD_DESTROY_ID, command, &answer, channel);
    if (events != nullptr) *events = answer.events_reported;
    return error;
  }
  static const shm::CmRequest& Last() { return g_daemon.requests.back(); }
  static void ExpectOp(shm::CmOp op) { EXPECT_EQ(Last().op, static_cast<uint32_t>(op)); }
  static shm::CmReply& NextReply() { return g_daemon.replies.emplace_back(); }
  int GetEvent(rdma_ucm_event_resp* answer, uint16_t out_bytes = sizeof(rdma_ucm_event_resp)) {
    return WriteFor(RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{}, answer, kChannel, out_bytes);
  }

  Commands commands_{{Execute, AwaitEvent, FindChannel}};
};

}  // namespace verbena::ucm
