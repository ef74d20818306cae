#include "core/shm/command.h"

namespace verbena::shm {

const char* CommandOpName(CommandOp op) {
  static constexpr const char* kNames[] = {
      "NOP",
      "QUERY_DEVICE",
      "QUERY_PORT",
      "QUERY_GID_TABLE",
      "QUERY_PKEY",
      "ALLOC_PD",
      "DEALLOC_PD",
      "REG_MR",
      "DEREG_MR",
      "CREATE_CHANNEL",
      "DESTROY_CHANNEL",
      "CREATE_CQ",
      "RESIZE_CQ",
      "DESTROY_CQ",
      "CREATE_SRQ",
      "MODIFY_SRQ",
      "QUERY_SRQ",
      "DESTROY_SRQ",
      "CREATE_QP",
      "MODIFY_QP",
      "QUERY_QP",
      "DESTROY_QP",
      "CREATE_AH",
      "DESTROY_AH",
      "ATTACH_MCAST",
      "DETACH_MCAST",
      "OPEN_PAYLOAD",
      "ALLOC_TD",
      "DEALLOC_TD",
      "MODIFY_CQ",
      "ALLOC_MW",
      "DEALLOC_MW",
      "REREG_MR",
      "ALLOC_NULL_MR",
      "ALLOC_DM",
      "FREE_DM",
      "REG_DM_MR",
      "IMPORT_PD",
      "IMPORT_MR",
      "IMPORT_DM",
      "OPEN_ASSIST",
      "ALLOC_OWN_KEY_PD",
      "ENABLE_MR",
      "CREATE_COUNTER",
      "DESTROY_COUNTER",
      "BIND_MR_COUNTER",
      "BIND_QP_COUNTER",
      "CANCEL_RECV",
      "CREATE_PLACE",
      "DESTROY_PLACE",
      "NAME_SOURCE",
      "QUERY_SOURCE",
  };
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == static_cast<size_t>(CommandOp::kCount));
  auto i = static_cast<size_t>(op);
  return i < static_cast<size_t>(CommandOp::kCount) ? kNames[i] : "UNKNOWN";
}

}  // namespace verbena::shm
