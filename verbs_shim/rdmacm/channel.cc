// Event channels: where events of identifiers wait, with a fd that programs poll.
#include <stdlib.h>
#include <unistd.h>

#include "verbs_shim/rdmacm/objects.h"

namespace verbena::rdmacm {

int NewChannel(Channel** out) {
  *out = nullptr;
  client::CmSession* session;
  if (int error = client::CmSession::ForThisProcess(&session); error != 0) return error;
  auto* channel = static_cast<Channel*>(calloc(1, sizeof(Channel)));
  if (channel == nullptr) return ENOMEM;
  shm::CmReply reply;
  int fd = -1;
  int error = session->Execute(NewRequest(shm::CmOp::kCreateChannel, 0), &reply, &fd);
  if (error == 0 && fd < 0) {
    error = EMFILE;  // the kernel drops a fd that finds no place
    shm::CmReply ignored;
    session->Execute(NewRequest(shm::CmOp::kDestroyChannel, reply.handle), &ignored);
  }
  if (error != 0) {
    free(channel);
    return error;
  }
  channel->base.fd = fd;
  channel->session = session;
  channel->handle = reply.handle;
  *out = channel;
  return 0;
}

// Errors: ENODEV: no instance; ENOMEM; EMFILE; EIO.
// Source: rdma_create_event_channel(3).
VERBENA_EXPORT rdma_event_channel* rdma_create_event_channel() {
  Channel* channel;
  if (int error = NewChannel(&channel); error != 0) {
    errno = error;
    return nullptr;
  }
  return &channel->base;
}

VERBENA_EXPORT void rdma_destroy_event_channel(rdma_event_channel* base) {
  Channel* channel = ToChannel(base);
  shm::CmReply reply;
  channel->session->Execute(NewRequest(shm::CmOp::kDestroyChannel, channel->handle), &reply);
  close(base->fd);
  free(channel);
}

}  // namespace verbena::rdmacm
