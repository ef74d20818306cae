#include "verbs_shim/ucm/commands_fixture.h"

namespace verbena::ucm {

FakeDaemon g_daemon;
int g_other_daemon;

int Execute(void*, const shm::CmRequest& request, shm::CmReply* reply) {
  g_daemon.requests.push_back(request);
  *reply = {};
  if (g_daemon.replies.empty()) {
    reply->handle = g_daemon.next_handle++;
  } else {
    *reply = g_daemon.replies.front();
    g_daemon.replies.pop_front();
  }
  return reply->error;
}

int AwaitEvent(int) {
  ++g_daemon.waits;
  return g_daemon.wait_error;
}

bool FindChannel(int fd, Channel* out) {
  if (fd == kFd) *out = kChannel;
  if (fd == kOtherFd) *out = kOtherChannel;
  if (fd == kForeignFd) *out = kForeignChannel;
  return fd >= kFd && fd <= kForeignFd;
}

}  // namespace verbena::ucm
