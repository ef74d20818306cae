#include "verbs_shim/ucm/commands.h"

#include <errno.h>
#include <string.h>

#include "verbs_shim/ucm/command.h"
#include "verbs_shim/ucm/convert.h"

namespace verbena::ucm {
namespace {

// Of rdma/rdma_user_cm.h; older ones lack the last two.
constexpr uint32_t kResolveIbService = 23, kWriteEvent = 24;

}  // namespace

int Commands::Write(const Channel& channel, int fd, const void* data, size_t bytes) {
  rdma_ucm_cmd_hdr header;
  if (bytes < sizeof(header)) return EINVAL;
  const auto address = reinterpret_cast<uint64_t>(data);
  if (int error = ReadUserMemory(&header, address, sizeof(header)); error != 0) return error;
  if (header.in + sizeof(header) > bytes) return EINVAL;
  return Dispatch(header.cmd, {channel, fd, address + sizeof(header), header.in, header.out});
}

int Commands::Dispatch(uint32_t number, const Command& command) {
  switch (number) {
    case RDMA_USER_CM_CMD_CREATE_ID:
      return CreateId(command);
    case RDMA_USER_CM_CMD_DESTROY_ID:
      return DestroyId(command);
    case RDMA_USER_CM_CMD_BIND_IP:
      return BindIp(command);
    case RDMA_USER_CM_CMD_RESOLVE_IP:
      return ResolveIp(command);
    case RDMA_USER_CM_CMD_RESOLVE_ROUTE:
      return ResolveRoute(command);
    case RDMA_USER_CM_CMD_QUERY_ROUTE:
      return QueryRoute(command);
    case RDMA_USER_CM_CMD_CONNECT:
      return Connect(command);
    case RDMA_USER_CM_CMD_LISTEN:
      return Listen(command);
    case RDMA_USER_CM_CMD_ACCEPT:
      return Accept(command);
    case RDMA_USER_CM_CMD_REJECT:
      return Reject(command);
    case RDMA_USER_CM_CMD_DISCONNECT:
      return Disconnect(command);
    case RDMA_USER_CM_CMD_INIT_QP_ATTR:
      return InitQpAttr(command);
    case RDMA_USER_CM_CMD_GET_EVENT:
      return GetEvent(command);
    case RDMA_USER_CM_CMD_GET_OPTION:
      return ENOSYS;
    case RDMA_USER_CM_CMD_SET_OPTION:
      return SetOption(command);
    case RDMA_USER_CM_CMD_NOTIFY:
      return Notify(command);
    case RDMA_USER_CM_CMD_JOIN_IP_MCAST:
      return JoinIpMulticast(command);
    case RDMA_USER_CM_CMD_LEAVE_MCAST:
      return LeaveMulticast(command);
    case RDMA_USER_CM_CMD_MIGRATE_ID:
      return MigrateId(command);
    case RDMA_USER_CM_CMD_QUERY:
      return Query(command);
    case RDMA_USER_CM_CMD_BIND:
      return Bind(command);
    case RDMA_USER_CM_CMD_RESOLVE_ADDR:
      return ResolveAddress(command);
    case RDMA_USER_CM_CMD_JOIN_MCAST:
      return JoinMulticast(command);
    case kResolveIbService:
      return EOPNOTSUPP;  // RoCE has no subnet administrator to ask
    case kWriteEvent:
      return WriteEvent(command);
    default:
      return EINVAL;
  }
}

// --- whom it is about ----------------------------------------------------------------------------

int Commands::Execute(const Channel& channel, const shm::CmRequest& request, shm::CmReply* reply) {
  return environment_.execute(channel.session, request, reply);
}

int Commands::Find(Table* table, const Channel& channel, uint32_t number, shm::CmHandle* handle) {
  client::ScopedLock lock(&mutex_);
  const Named* named = table->Find(number);
  if (named == nullptr) return ENOENT;
  if (!(named->channel == channel)) return EINVAL;
  *handle = named->handle;
  return 0;
}

int Commands::Ask(const Command& command, uint32_t id, shm::CmRequest request,
                  shm::CmReply* reply) {
  if (int error = Find(&ids_, command.channel, id, &request.handle); error != 0) return error;
  return Execute(command.channel, request, reply);
}

int Commands::Ask(const Command& command, uint32_t id, shm::CmRequest request) {
  shm::CmReply reply;
  return Ask(command, id, request, &reply);
}

void Commands::DestroyHandle(const Channel& channel, shm::CmHandle handle) {
  shm::CmRequest request = NewRequest(shm::CmOp::kDestroyId);
  request.handle = handle;
  shm::CmReply reply;
  Execute(channel, request, &reply);
}

// An identifier goes with its memberships.
void Commands::Forget(const Channel& channel, uint32_t id) {
  client::ScopedLock lock(&mutex_);
  const Named* named = ids_.Find(id);
  if (named == nullptr || !(named->channel == channel)) return;
  for (uint32_t i = memberships_.end(); i-- > 0;) {
    const Named* membership = memberships_.Find(i);
    if (membership != nullptr && membership->owner == id) memberships_.Release(i);
  }
  ids_.Release(id);
}

// --- identifiers ---------------------------------------------------------------------------------

int Commands::CreateId(const Command& command) {
  rdma_ucm_create_id cmd;
  rdma_ucm_create_id_resp answer = {};
  if (int error = command.CheckRoom(sizeof(answer)); error != 0) return error;
  if (int error = command.Read(&cmd); error != 0) return error;
  shm::CmRequest request = NewRequest(shm::CmOp::kCreateId);
  request.create.cookie = cmd.uid;
  request.create.channel = command.channel.handle;
  request.create.port_space = cmd.ps;
  request.create.qp_type = cmd.qp_type;
  shm::CmReply reply;
  if (int error = Execute(command.channel, request, &reply); error != 0) return error;
  {
    client::ScopedLock lock(&mutex_);
    answer.id = ids_.Take(
        {.channel = command.channel, .handle = reply.handle, .uid = cmd.uid, .forks = forks_});
  }
  const int error = answer.id == kNoNumber ? ENOMEM : command.Answer(cmd.response, answer);
  if (error == 0) return 0;
  DestroyHandle(command.channel, reply.handle);
  Forget(command.channel, answer.id);
  return error;
}

int Commands::DestroyId(const Command& command) {
  rdma_ucm_destroy_id cmd;
  rdma_ucm_destroy_id_resp answer = {};
  if (int error = command.CheckRoom(sizeof(answer)); error != 0) return error;
  if (int error = command.Read(&cmd); error != 0) return error;
  shm::CmReply reply = {};
  const int error = Ask(command, cmd.id, NewRequest(shm::CmOp::kDestroyId), &reply);
  if (error == EIO) {
    // With the daemon the identifier has gone.
    client::ScopedLock lock(&mutex_);
    if (const Named* named = ids_.Find(cmd.id)) reply.number = named->events_taken;
  } else if (error != 0) {
    return error;
  }
  Forget(command.channel, cmd.id);
  answer.events_reported = reply.number;
  return command.Answer(cmd.response, answer);
}

int Commands::MigrateId(const Command& command) {
  rdma_ucm_migrate_id cmd;
  rdma_ucm_migrate_resp answer = {};
  if (int error = command.CheckRoom(sizeof(answer)); error != 0) return error;
  if (int error = command.Read(&cmd); error != 0) return error;
  Channel from;
  if (!environment_.find_channel(static_cast<int>(cmd.fd), &from)) return EINVAL;
  shm::CmRequest request = NewRequest(shm::CmOp::kMigrateId);
  request.migrate.channel = command.channel.handle;
  if (int error = Find(&ids_, from, cmd.id, &request.handle); error != 0) return error;
  if (from.session != command.channel.session) return EINVAL;  // of a daemon that is gone
  shm::CmReply reply;
  if (int error = Execute(command.channel, request, &reply); error != 0) return error;
  {
    client::ScopedLock lock(&mutex_);
    Named* named = ids_.Find(cmd.id);
    if (named != nullptr && named->handle == request.handle) named->channel = command.channel;
    for (uint32_t i = 0; i < memberships_.end(); ++i) {
      Named* membership = memberships_.Find(i);
      if (membership != nullptr && membership->owner == cmd.id) {
        membership->channel = command.channel;
      }
    }
  }
  answer.events_reported = reply.number;
  return command.Answer(cmd.response, answer);
}

void Commands::Close(const Channel& channel) {
  for (uint32_t id = 0;; ++id) {
    shm::CmHandle handle = 0;
    {
      client::ScopedLock lock(&mutex_);
      if (id >= ids_.end()) break;
      const Named* named = ids_.Find(id);
      if (named == nullptr || !(named->channel == channel)) continue;
      handle = named->handle;
    }
    DestroyHandle(channel, handle);
    Forget(channel, id);
  }
  shm::CmRequest request = NewRequest(shm::CmOp::kDestroyChannel);
  request.handle = channel.handle;
  shm::CmReply reply;
  Execute(channel, request, &reply);
}

}  // namespace verbena::ucm
