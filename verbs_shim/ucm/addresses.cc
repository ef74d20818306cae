// Commands of addresses and routes.
#include <errno.h>
#include <string.h>

#include "core/client/cm_address.h"
#include "verbs_shim/ucm/command.h"
#include "verbs_shim/ucm/convert.h"

namespace verbena::ucm {
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

// Whether it has a NIC: librdmacm asks whenever that may have changed.
void Commands::NoteQuery(const Command& command, uint32_t id, const shm::CmQuery& query) {
  if (query.node_guid == 0) return;
  client::ScopedLock lock(&mutex_);
  Named* named = ids_.Find(id);
  if (named != nullptr && named->channel == command.channel) named->has_nic = true;
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
  NoteQuery(command, cmd.id, query);
  client::FromCmAddress(query.source, &answer.src_addr);
  client::FromCmAddress(query.destination, &answer.dst_addr);
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
  NoteQuery(command, cmd.id, reply.query);
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
  client::FromCmAddress(query.source, &answer.src_addr);
  answer.dst_size = static_cast<uint16_t>(AddressBytes(query.destination.family));
  client::FromCmAddress(query.destination, &answer.dst_addr);
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

}  // namespace verbena::ucm
