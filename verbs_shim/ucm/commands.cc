#include "verbs_shim/ucm/commands.h"

#include <errno.h>
#include <string.h>

#include <algorithm>

#include "verbs_shim/ucm/convert.h"
#include "verbs_shim/ucm/user_memory.h"

namespace verbena::ucm {
namespace {

// Of rdma/rdma_user_cm.h; older ones lack the last two.
constexpr uint32_t kResolveIbService = 23, kWriteEvent = 24;

// Its beginning, as far as events have it.
struct WriteEventCommand {
  uint32_t id, reserved;
  uint32_t event, status;
  uint64_t arg;
};

// IBTA 12.6.7.2, those that a program may give.
constexpr uint8_t kRejectConsumer = 28, kRejectVendorOption = 35;

class Guard {
 public:
  explicit Guard(pthread_mutex_t* mutex) : mutex_(mutex) { pthread_mutex_lock(mutex_); }
  ~Guard() { pthread_mutex_unlock(mutex_); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  pthread_mutex_t* mutex_;
};

shm::CmRequest NewRequest(shm::CmOp op, uint32_t number = 0) {
  shm::CmRequest request;
  memset(&request, 0, sizeof(request));
  request.op = static_cast<uint32_t>(op);
  request.number = number;
  return request;
}

// An address whose size was given; the kernel takes none of another.
int ToSizedCmAddress(const void* address, size_t bytes, shm::CmAddress* out) {
  uint16_t family;
  memcpy(&family, address, sizeof(family));
  if (bytes == 0 || bytes != AddressBytes(family)) return EINVAL;
  return ToCmAddress(address, out);
}

}  // namespace

// One command, behind its header.
struct Commands::Command {
  Channel channel;
  int fd;
  uint64_t address;
  uint16_t in_bytes, out_bytes;

  // EINVAL: it is shorter than `at_least` (all of it, where that is 0).
  template <typename T>
  int Read(T* out, size_t at_least = 0) const {
    memset(out, 0, sizeof(T));
    if (in_bytes < (at_least == 0 ? sizeof(T) : at_least)) return EINVAL;
    return ReadUserMemory(out, address, std::min(sizeof(T), size_t{in_bytes}));
  }
  // ENOSPC: the program has room for less than `at_least` of the answer.
  int CheckRoom(size_t at_least) const { return out_bytes < at_least ? ENOSPC : 0; }
  // As much of it as there is room for.
  template <typename T>
  int Answer(uint64_t response, const T& answer) const {
    return WriteUserMemory(response, &answer, std::min(sizeof(T), size_t{out_bytes}));
  }
};

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
  Guard guard(&mutex_);
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
  Guard guard(&mutex_);
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
    Guard guard(&mutex_);
    answer.id = ids_.Take({command.channel, reply.handle, 0});
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
  shm::CmReply reply;
  if (int error = Ask(command, cmd.id, NewRequest(shm::CmOp::kDestroyId), &reply); error != 0) {
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
    Guard guard(&mutex_);
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
      Guard guard(&mutex_);
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

// --- addresses -----------------------------------------------------------------------------------

int Commands::BindIp(const Command& command) {
  rdma_ucm_bind_ip cmd;
  if (int error = command.Read(&cmd); error != 0) return error;
  shm::CmRequest request = NewRequest(shm::CmOp::kBind);
  if (int error = ToCmAddress(&cmd.addr, &request.bind.address); error != 0) return error;
  return Ask(command, cmd.id, request);
}

int Commands::Bind(const Command& command) {
  rdma_ucm_bind cmd;
  if (int error = command.Read(&cmd); error != 0) return error;
  if (cmd.reserved != 0) return EINVAL;
  shm::CmRequest request = NewRequest(shm::CmOp::kBind);
  if (int error = ToSizedCmAddress(&cmd.addr, cmd.addr_size, &request.bind.address); error != 0) {
    return error;
  }
  return Ask(command, cmd.id, request);
}

int Commands::ResolveIp(const Command& command) {
  rdma_ucm_resolve_ip cmd;
  if (int error = command.Read(&cmd); error != 0) return error;
  shm::CmRequest request = NewRequest(shm::CmOp::kResolveAddr);
  request.resolve.timeout_ms = cmd.timeout_ms;
  int error = ToCmAddress(&cmd.dst_addr, &request.resolve.destination);
  if (error == 0 && cmd.src_addr.sin6_family != 0) {
    error = ToCmAddress(&cmd.src_addr, &request.resolve.source);
  }
  return error != 0 ? error : Ask(command, cmd.id, request);
}

int Commands::ResolveAddress(const Command& command) {
  rdma_ucm_resolve_addr cmd;
  if (int error = command.Read(&cmd); error != 0) return error;
  if (cmd.reserved != 0) return EINVAL;
  shm::CmRequest request = NewRequest(shm::CmOp::kResolveAddr);
  request.resolve.timeout_ms = cmd.timeout_ms;
  int error = ToSizedCmAddress(&cmd.dst_addr, cmd.dst_size, &request.resolve.destination);
  if (error == 0 && cmd.src_size != 0) {
    error = ToSizedCmAddress(&cmd.src_addr, cmd.src_size, &request.resolve.source);
  }
  return error != 0 ? error : Ask(command, cmd.id, request);
}

int Commands::ResolveRoute(const Command& command) {
  rdma_ucm_resolve_route cmd;
  if (int error = command.Read(&cmd); error != 0) return error;
  return Ask(command, cmd.id, NewRequest(shm::CmOp::kResolveRoute, cmd.timeout_ms));
}

int Commands::QueryRoute(const Command& command) {
  rdma_ucm_query cmd;
  rdma_ucm_query_route_resp answer = {};
  const size_t at_least = offsetof(rdma_ucm_query_route_resp, ibdev_index);
  if (int error = command.CheckRoom(at_least); error != 0) return error;
  if (int error = command.Read(&cmd); error != 0) return error;
  shm::CmReply reply;
  if (int error = Ask(command, cmd.id, NewRequest(shm::CmOp::kQuery), &reply); error != 0) {
    return error;
  }
  const shm::CmQuery& query = reply.query;
  FromCmAddress(query.source, &answer.src_addr);
  FromCmAddress(query.destination, &answer.dst_addr);
  answer.node_guid = query.node_guid;
  if (query.node_guid != 0) {
    answer.ibdev_index = query.nic;
    answer.port_num = query.port_num;
    answer.num_paths = query.has_route != 0 ? 1 : 0;
    if (query.has_route != 0) {
      CopyPath(query, &answer.ib_route[0]);
    } else {
      memcpy(answer.ib_route[0].sgid, query.sgid, sizeof(query.sgid));
      memcpy(answer.ib_route[0].dgid, query.dgid, sizeof(query.dgid));
      answer.ib_route[0].pkey = query.pkey;
    }
  }
  return command.Answer(cmd.response, answer);
}

int Commands::Query(const Command& command) {
  rdma_ucm_query cmd;
  if (int error = command.Read(&cmd); error != 0) return error;
  shm::CmReply reply;
  if (int error = Ask(command, cmd.id, NewRequest(shm::CmOp::kQuery), &reply); error != 0) {
    return error;
  }
  switch (cmd.option) {
    case RDMA_USER_CM_QUERY_ADDR:
      return AnswerQueryAddress(command, cmd.response, reply.query);
    case RDMA_USER_CM_QUERY_PATH:
      return AnswerQueryPath(command, cmd.response, reply.query);
    case RDMA_USER_CM_QUERY_GID:
      return AnswerQueryGid(command, cmd.response, reply.query);
    default:
      return ENOSYS;
  }
}

int Commands::AnswerQueryAddress(const Command& command, uint64_t response,
                                 const shm::CmQuery& query) {
  rdma_ucm_query_addr_resp answer = {};
  const size_t at_least = offsetof(rdma_ucm_query_addr_resp, ibdev_index);
  if (int error = command.CheckRoom(at_least); error != 0) return error;
  answer.src_size = static_cast<uint16_t>(AddressBytes(query.source.family));
  FromCmAddress(query.source, &answer.src_addr);
  answer.dst_size = static_cast<uint16_t>(AddressBytes(query.destination.family));
  FromCmAddress(query.destination, &answer.dst_addr);
  if (query.node_guid != 0) {
    answer.node_guid = query.node_guid;
    answer.ibdev_index = query.nic;
    answer.port_num = query.port_num;
    answer.pkey = query.pkey;
  }
  return command.Answer(response, answer);
}

int Commands::AnswerQueryPath(const Command& command, uint64_t response,
                              const shm::CmQuery& query) {
  struct {
    uint32_t num_paths, reserved;
    ib_path_rec_data path;
  } answer = {};
  if (int error = command.CheckRoom(offsetof(decltype(answer), path)); error != 0) return error;
  if (query.has_route != 0) {
    answer.num_paths = 1;
    answer.path.flags = IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL;
    PackPath(query, answer.path.path_rec);
  }
  return command.Answer(response, answer);
}

int Commands::AnswerQueryGid(const Command& command, uint64_t response, const shm::CmQuery& query) {
  rdma_ucm_query_addr_resp answer = {};
  const size_t at_least = offsetof(rdma_ucm_query_addr_resp, ibdev_index);
  if (int error = command.CheckRoom(at_least); error != 0) return error;
  const SockaddrIb source = ToSockaddrIb(query, query.sgid);
  const SockaddrIb destination = ToSockaddrIb(query, query.dgid);
  answer.node_guid = query.node_guid;
  answer.ibdev_index = query.nic;
  answer.port_num = query.port_num;
  answer.pkey = query.pkey;
  answer.src_size = answer.dst_size = sizeof(SockaddrIb);
  memcpy(&answer.src_addr, &source, sizeof(source));
  memcpy(&answer.dst_addr, &destination, sizeof(destination));
  return command.Answer(response, answer);
}

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
  return Ask(command, cmd.id, request);
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
    Guard guard(&mutex_);
    answer.id = memberships_.Take({command.channel, reply.handle, id});
  }
  const int error = answer.id == kNoNumber ? ENOMEM : command.Answer(response, answer);
  if (error == 0) return 0;
  request = NewRequest(shm::CmOp::kLeaveMcast);
  request.handle = reply.handle;
  Execute(command.channel, request, &reply);
  Guard guard(&mutex_);
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
    Guard guard(&mutex_);
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
  for (bool has_waited = false;; has_waited = true) {
    int error = Execute(command.channel, request, reply);
    if (error == ENOENT && has_waited) return kClosedWhileWaiting;
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
  if (int error = TakeEvent(command, &reply); error != 0) return error;
  const shm::CmEvent& event = reply.event;
  CopyEvent(event, &answer);
  const bool is_new = event.listener != 0;
  answer.id = kNoNumber;
  {
    Guard guard(&mutex_);
    if (is_new) {
      answer.id = ids_.Take({command.channel, event.id, 0});
    } else {
      for (uint32_t i = 0; i < ids_.end() && answer.id == kNoNumber; ++i) {
        const Named* named = ids_.Find(i);
        if (named == nullptr || named->handle != event.id) continue;
        if (named->channel.session == command.channel.session) answer.id = i;
      }
    }
  }
  // A request that finds no number is told of all the same: librdmacm counts events. It refuses it.
  const int error = command.Answer(cmd.response, answer);
  if (is_new && (error != 0 || answer.id == kNoNumber)) {
    DestroyHandle(command.channel, event.id);
    Forget(command.channel, answer.id);
  }
  return error;
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
