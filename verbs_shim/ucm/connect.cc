// Commands of connections and multicast groups, and events.
#include <errno.h>
#include <string.h>

#include <algorithm>

#include "verbs_shim/ucm/command.h"
#include "verbs_shim/ucm/convert.h"

namespace verbena::ucm {
namespace {

// Its beginning, as far as events have it.
struct WriteEventCommand {
  uint32_t id, reserved;
  uint32_t event, status;
  uint64_t arg;
};

// RDMA_CM_EVENT_DEVICE_REMOVAL; rdma/rdma_cma.h does not go with rdma/rdma_user_cm.h.
constexpr uint32_t kDeviceRemoval = 11;

// IBTA 12.6.7.2, those that a program may give.
constexpr uint8_t kRejectConsumer = 28, kRejectVendorOption = 35;

}  // namespace

// --- connections ---------------------------------------------------------------------------------

int Commands::Connect(const Command& command) {
  rdma_ucm_connect cmd;
  if (int error = command.Read(&cmd, offsetof(rdma_ucm_connect, ece)); error != 0) return error;
  if (cmd.conn_param.valid == 0) return EINVAL;
  shm::CmRequest request = NewRequest(shm::CmOp::kConnect);
  ToCmConnParam(cmd.conn_param, &request.connect.param);
  request.connect.param.ece_vendor_id = cmd.ece.vendor_id;
  request.connect.param.ece_options = cmd.ece.attr_mod;
  return Ask(command, cmd.id, request);
}

int Commands::Listen(const Command& command) {
  rdma_ucm_listen cmd;
  if (int error = command.Read(&cmd); error != 0) return error;
  return Ask(command, cmd.id, NewRequest(shm::CmOp::kListen, cmd.backlog));
}

int Commands::Accept(const Command& command) {
  rdma_ucm_accept cmd;
  if (int error = command.Read(&cmd, offsetof(rdma_ucm_accept, ece)); error != 0) return error;
  // Without parameters it is the active side's: its QP is ready.
  if (cmd.conn_param.valid == 0) return Ask(command, cmd.id, NewRequest(shm::CmOp::kEstablish));
  shm::CmRequest request = NewRequest(shm::CmOp::kAccept);
  request.connect.cookie = cmd.uid;
  ToCmConnParam(cmd.conn_param, &request.connect.param);
  request.connect.param.ece_vendor_id = cmd.ece.vendor_id;
  request.connect.param.ece_options = cmd.ece.attr_mod;
  if (int error = Ask(command, cmd.id, request); error != 0) return error;
  client::ScopedLock lock(&mutex_);
  if (Named* named = ids_.Find(cmd.id)) named->uid = cmd.uid;
  return 0;
}

int Commands::Reject(const Command& command) {
  rdma_ucm_reject cmd;
  if (int error = command.Read(&cmd); error != 0) return error;
  const uint8_t reason = cmd.reason == 0 ? kRejectConsumer : cmd.reason;
  if (reason != kRejectConsumer && reason != kRejectVendorOption) return EINVAL;
  shm::CmRequest request = NewRequest(shm::CmOp::kReject);
  request.reject.reason = reason;
  request.reject.private_data_len = cmd.private_data_len;
  static_assert(sizeof(request.reject.private_data) == sizeof(cmd.private_data));
  memcpy(request.reject.private_data, cmd.private_data, sizeof(cmd.private_data));
  return Ask(command, cmd.id, request);
}

int Commands::Disconnect(const Command& command) {
  rdma_ucm_disconnect cmd;
  if (int error = command.Read(&cmd); error != 0) return error;
  return Ask(command, cmd.id, NewRequest(shm::CmOp::kDisconnect));
}

int Commands::InitQpAttr(const Command& command) {
  rdma_ucm_init_qp_attr cmd;
  ib_uverbs_qp_attr answer;
  if (int error = command.CheckRoom(sizeof(answer)); error != 0) return error;
  if (int error = command.Read(&cmd); error != 0) return error;
  shm::CmReply reply;
  const shm::CmRequest request = NewRequest(shm::CmOp::kInitQpAttr, cmd.qp_state);
  if (int error = Ask(command, cmd.id, request, &reply); error != 0) return error;
  CopyQpAttr(reply.qp_attr, cmd.qp_state, &answer);
  return command.Answer(cmd.response, answer);
}

int Commands::Notify(const Command& command) {
  rdma_ucm_notify cmd;
  if (int error = command.Read(&cmd); error != 0) return error;
  return Ask(command, cmd.id, NewRequest(shm::CmOp::kNotify, cmd.event));
}

int Commands::SetOption(const Command& command) {
  rdma_ucm_set_option cmd;
  if (int error = command.Read(&cmd); error != 0) return error;
  shm::CmRequest request = NewRequest(shm::CmOp::kSetOption);
  request.option.level = cmd.level;
  request.option.name = cmd.optname;
  request.option.length = cmd.optlen;
  // Longer ones are routes of which all are the same here; their length alone says whether they are
  // any.
  const size_t bytes = std::min(size_t{cmd.optlen}, sizeof(request.option.value));
  if (int error = ReadUserMemory(request.option.value, cmd.optval, bytes); error != 0) {
    return error;
  }
  return Ask(command, cmd.id, request);
}

// --- multicast -----------------------------------------------------------------------------------

int Commands::JoinIpMulticast(const Command& command) {
  rdma_ucm_join_ip_mcast cmd;
  if (int error = command.Read(&cmd); error != 0) return error;
  shm::CmRequest request = NewRequest(shm::CmOp::kJoinMcast);
  request.join.cookie = cmd.uid;
  if (int error = ToCmAddress(&cmd.addr, &request.join.address); error != 0) return error;
  return Join(command, cmd.id, cmd.response, request);
}

int Commands::JoinMulticast(const Command& command) {
  rdma_ucm_join_mcast cmd;
  if (int error = command.Read(&cmd); error != 0) return error;
  shm::CmRequest request = NewRequest(shm::CmOp::kJoinMcast);
  request.join.cookie = cmd.uid;
  request.join.join_flags = cmd.join_flags;
  if (int error = ToSizedCmAddress(&cmd.addr, cmd.addr_size, &request.join.address); error != 0) {
    return error;
  }
  return Join(command, cmd.id, cmd.response, request);
}

int Commands::Join(const Command& command, uint32_t id, uint64_t response, shm::CmRequest request) {
  rdma_ucm_create_id_resp answer = {};
  if (int error = command.CheckRoom(sizeof(answer)); error != 0) return error;
  shm::CmReply reply;
  if (int error = Ask(command, id, request, &reply); error != 0) return error;
  {
    client::ScopedLock lock(&mutex_);
    answer.id = memberships_.Take({command.channel, reply.handle, id});
  }
  const int error = answer.id == kNoNumber ? ENOMEM : command.Answer(response, answer);
  if (error == 0) return 0;
  request = NewRequest(shm::CmOp::kLeaveMcast);
  request.handle = reply.handle;
  Execute(command.channel, request, &reply);
  client::ScopedLock lock(&mutex_);
  if (memberships_.Find(answer.id) != nullptr) memberships_.Release(answer.id);
  return error;
}

int Commands::LeaveMulticast(const Command& command) {
  rdma_ucm_destroy_id cmd;
  rdma_ucm_destroy_id_resp answer = {};
  if (int error = command.CheckRoom(sizeof(answer)); error != 0) return error;
  if (int error = command.Read(&cmd); error != 0) return error;
  shm::CmRequest request = NewRequest(shm::CmOp::kLeaveMcast);
  if (int error = Find(&memberships_, command.channel, cmd.id, &request.handle); error != 0) {
    return error;
  }
  shm::CmReply reply;
  if (int error = Execute(command.channel, request, &reply); error != 0) return error;
  {
    client::ScopedLock lock(&mutex_);
    const Named* named = memberships_.Find(cmd.id);
    if (named != nullptr && named->handle == request.handle) memberships_.Release(cmd.id);
  }
  answer.events_reported = reply.number;
  return command.Answer(cmd.response, answer);
}

// --- events --------------------------------------------------------------------------------------

int Commands::TakeEvent(const Command& command, shm::CmReply* reply) {
  shm::CmRequest request = NewRequest(shm::CmOp::kGetEvent);
  request.handle = command.channel.handle;
  for (;;) {
    int error = Execute(command.channel, request, reply);
    // The fd was the channel's when we came: another thread has closed it since.
    if (error == ENOENT) return kClosedWhileWaiting;
    if (error != EAGAIN) return error;
    error = environment_.await_event(command.fd);
    if (error != 0) return error;
  }
}

int Commands::GetEvent(const Command& command) {
  rdma_ucm_get_event cmd;
  rdma_ucm_event_resp answer;
  const size_t at_least = offsetof(rdma_ucm_event_resp, reserved);
  if (int error = command.CheckRoom(at_least); error != 0) return error;
  if (int error = command.Read(&cmd); error != 0) return error;
  shm::CmReply reply;
  const int error = TakeEvent(command, &reply);
  if (error == 0) return Deliver(command, reply.event, cmd.response);
  if (error != EIO || !TakeRemoved(command.channel, &answer)) return error;
  return command.Answer(cmd.response, answer);
}

uint32_t Commands::NumberOf(const Channel& channel, shm::CmHandle handle) {
  for (uint32_t i = 0; i < ids_.end(); ++i) {
    const Named* named = ids_.Find(i);
    if (named == nullptr || named->handle != handle) continue;
    if (named->channel.session == channel.session) return i;
  }
  return kNoNumber;
}

int Commands::Deliver(const Command& command, const shm::CmEvent& event, uint64_t response) {
  rdma_ucm_event_resp answer;
  CopyEvent(event, &answer);
  const bool is_new = event.listener != 0;
  {
    client::ScopedLock lock(&mutex_);
    const uint32_t whose = NumberOf(command.channel, is_new ? event.listener : event.id);
    if (Named* named = ids_.Find(whose)) ++named->events_taken;
    answer.id = is_new ? ids_.Take({.channel = command.channel,
                                    .handle = event.id,
                                    .has_nic = true,
                                    .forks = forks_})
                       : whose;
  }
  // A request that finds no number is told of all the same: librdmacm counts events. It refuses it.
  const int error = command.Answer(response, answer);
  if (is_new && (error != 0 || answer.id == kNoNumber)) {
    DestroyHandle(command.channel, event.id);
    Forget(command.channel, answer.id);
  }
  return error;
}

bool Commands::TakeRemoved(const Channel& channel, rdma_ucm_event_resp* out) {
  client::ScopedLock lock(&mutex_);
  for (uint32_t i = 0; i < ids_.end(); ++i) {
    Named* named = ids_.Find(i);
    if (named == nullptr || !(named->channel == channel)) continue;
    if (named->uid == 0 || !named->has_nic || named->is_removed) continue;
    if (named->forks != forks_) continue;  // its parent is told, if its daemon has gone at all
    named->is_removed = true;
    ++named->events_taken;
    memset(out, 0, sizeof(*out));
    out->uid = named->uid;
    out->id = i;
    out->event = kDeviceRemoval;
    return true;
  }
  return false;
}

int Commands::WriteEvent(const Command& command) {
  WriteEventCommand cmd;
  if (int error = command.Read(&cmd); error != 0) return error;
  shm::CmRequest request = NewRequest(shm::CmOp::kWriteEvent);
  request.user.event = cmd.event;
  request.user.status = static_cast<int32_t>(cmd.status);
  request.user.arg = cmd.arg;
  return Ask(command, cmd.id, request);
}

}  // namespace verbena::ucm
