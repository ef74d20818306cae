// Symbols that only have to be there, so that a program or provider library loads.
//
// libmlx5 and libefa import the private nodes; of them only verbs_register_driver_NN is ever
// called, from their constructors: it must return and do nothing. The @IBVERBS_1.0 names are an
// interface of 2006 that nothing imports any more.
#include <errno.h>

#include <cstddef>

#include "verbs_shim/symver.h"

#define VERBENA_STUB extern "C" __attribute__((visibility("hidden"), used))

VERBENA_STUB void verbena_stub_nothing() {}
VERBENA_STUB int verbena_stub_command() { return EOPNOTSUPP; }
VERBENA_STUB int verbena_stub_minus_one() {
  errno = EOPNOTSUPP;
  return -1;
}
VERBENA_STUB void* verbena_stub_null() {
  errno = EOPNOTSUPP;
  return nullptr;
}
VERBENA_STUB int verbena_stub_enosys() { return ENOSYS; }
VERBENA_STUB void* verbena_stub_null_enosys() {
  errno = ENOSYS;
  return nullptr;
}

// Providers read it to learn whether objects of a vanished device may be destroyed: they may.
extern "C" __attribute__((visibility("default"))) bool verbs_allow_disassociate_destroy;
bool verbs_allow_disassociate_destroy = true;
VERBENA_IN_ALL_PRIVATE_NODES("object", verbs_allow_disassociate_destroy);

// clang-format off
// Every private function of v34 to v64 that this library does not implement: X(stub, name).
#define PRIVATE_IN_ALL_NODES(X)                                                                 \
  X(command, __ioctl_final_num_attrs) X(nothing, __verbs_log)                                   \
  X(null, _verbs_init_and_alloc_context) X(command, execute_ioctl)                              \
  X(minus_one, ibv_read_ibdev_sysfs_file) X(nothing, verbs_init_cq) X(null, verbs_open_device)  \
  X(nothing, verbs_set_ops) X(nothing, verbs_uninit_context)                                    \
  X(command, ibv_cmd_advise_mr) X(command, ibv_cmd_alloc_dm) X(command, ibv_cmd_alloc_mw)       \
  X(command, ibv_cmd_alloc_pd) X(command, ibv_cmd_attach_mcast) X(command, ibv_cmd_close_xrcd)  \
  X(command, ibv_cmd_create_ah) X(command, ibv_cmd_create_counters)                             \
  X(command, ibv_cmd_create_cq) X(command, ibv_cmd_create_cq_ex)                                \
  X(command, ibv_cmd_create_cq_ex2) X(command, ibv_cmd_create_flow)                             \
  X(command, ibv_cmd_create_flow_action_esp) X(command, ibv_cmd_create_qp)                      \
  X(command, ibv_cmd_create_qp_ex) X(command, ibv_cmd_create_qp_ex2)                            \
  X(command, ibv_cmd_create_rwq_ind_table) X(command, ibv_cmd_create_srq)                       \
  X(command, ibv_cmd_create_srq_ex) X(command, ibv_cmd_create_wq)                               \
  X(command, ibv_cmd_dealloc_mw) X(command, ibv_cmd_dealloc_pd) X(command, ibv_cmd_dereg_mr)    \
  X(command, ibv_cmd_destroy_ah) X(command, ibv_cmd_destroy_counters)                           \
  X(command, ibv_cmd_destroy_cq) X(command, ibv_cmd_destroy_flow)                               \
  X(command, ibv_cmd_destroy_flow_action) X(command, ibv_cmd_destroy_qp)                        \
  X(command, ibv_cmd_destroy_rwq_ind_table) X(command, ibv_cmd_destroy_srq)                     \
  X(command, ibv_cmd_destroy_wq) X(command, ibv_cmd_detach_mcast) X(command, ibv_cmd_free_dm)   \
  X(command, ibv_cmd_get_context) X(command, ibv_cmd_modify_cq)                                 \
  X(command, ibv_cmd_modify_flow_action_esp) X(command, ibv_cmd_modify_qp)                      \
  X(command, ibv_cmd_modify_qp_ex) X(command, ibv_cmd_modify_srq) X(command, ibv_cmd_modify_wq) \
  X(command, ibv_cmd_open_qp) X(command, ibv_cmd_open_xrcd) X(command, ibv_cmd_poll_cq)         \
  X(command, ibv_cmd_post_recv) X(command, ibv_cmd_post_send) X(command, ibv_cmd_post_srq_recv) \
  X(command, ibv_cmd_query_context) X(command, ibv_cmd_query_device_any)                        \
  X(command, ibv_cmd_query_mr) X(command, ibv_cmd_query_port) X(command, ibv_cmd_query_qp)      \
  X(command, ibv_cmd_query_srq) X(command, ibv_cmd_read_counters) X(command, ibv_cmd_reg_dm_mr) \
  X(command, ibv_cmd_reg_dmabuf_mr) X(command, ibv_cmd_reg_mr)                                  \
  X(command, ibv_cmd_req_notify_cq) X(command, ibv_cmd_rereg_mr) X(command, ibv_cmd_resize_cq)

#define PRIVATE_SINCE_59(X)                                                                     \
  X(command, ibv_cmd_alloc_dmah) X(command, ibv_cmd_export_dmabuf_fd)                           \
  X(command, ibv_cmd_free_dmah) X(command, ibv_cmd_query_port_speed)                            \
  X(command, ibv_cmd_reg_mr_ex)

#define PRIVATE_SINCE_64(X)                                                                     \
  X(null, ibv_dmabuf_heap_alloc) X(command, ibv_dmabuf_heap_cc_shared_init)                     \
  X(nothing, ibv_dmabuf_heap_destroy) X(nothing, ibv_dmabuf_heap_free)

#define COMPAT_1_0(X)                                                                           \
  X(nothing, ibv_ack_async_event) X(nothing, ibv_ack_cq_events) X(null_enosys, ibv_alloc_pd)    \
  X(enosys, ibv_attach_mcast) X(enosys, ibv_close_device) X(null_enosys, ibv_create_ah)         \
  X(null_enosys, ibv_create_cq) X(null_enosys, ibv_create_qp) X(null_enosys, ibv_create_srq)    \
  X(enosys, ibv_dealloc_pd) X(enosys, ibv_dereg_mr) X(enosys, ibv_destroy_ah)                   \
  X(enosys, ibv_destroy_cq) X(enosys, ibv_destroy_qp) X(enosys, ibv_destroy_srq)                \
  X(enosys, ibv_detach_mcast) X(nothing, ibv_free_device_list) X(enosys, ibv_get_async_event)   \
  X(enosys, ibv_get_cq_event) X(null_enosys, ibv_get_device_guid)                               \
  X(null_enosys, ibv_get_device_list) X(null_enosys, ibv_get_device_name)                       \
  X(enosys, ibv_modify_qp) X(enosys, ibv_modify_srq) X(null_enosys, ibv_open_device)            \
  X(enosys, ibv_query_device) X(enosys, ibv_query_gid) X(enosys, ibv_query_pkey)                \
  X(enosys, ibv_query_port) X(enosys, ibv_query_qp) X(enosys, ibv_query_srq)                    \
  X(null_enosys, ibv_reg_mr) X(enosys, ibv_resize_cq)
// clang-format on

#define STUB(prefix, stub, name, at, node) \
  VERBENA_SYMVER(prefix #name, "verbena_stub_" #stub, "function", #name, at, node);

#define STUB_DEFAULT_34(stub, name) STUB("s34_", stub, name, "@@", "IBVERBS_PRIVATE_34")
#define STUB_57(stub, name) STUB("s57_", stub, name, "@", "IBVERBS_PRIVATE_57")
#define STUB_59(stub, name) STUB("s59_", stub, name, "@", "IBVERBS_PRIVATE_59")
#define STUB_64(stub, name) STUB("s64_", stub, name, "@", "IBVERBS_PRIVATE_64")
#define STUB_DEFAULT_59(stub, name) STUB("s59_", stub, name, "@@", "IBVERBS_PRIVATE_59")
#define STUB_DEFAULT_64(stub, name) STUB("s64_", stub, name, "@@", "IBVERBS_PRIVATE_64")
#define STUB_COMPAT(stub, name) STUB("s10_", stub, name, "@", "IBVERBS_1.0")

PRIVATE_IN_ALL_NODES(STUB_DEFAULT_34)
PRIVATE_IN_ALL_NODES(STUB_57)
PRIVATE_IN_ALL_NODES(STUB_59)
PRIVATE_IN_ALL_NODES(STUB_64)
PRIVATE_SINCE_59(STUB_DEFAULT_59)
PRIVATE_SINCE_59(STUB_64)
PRIVATE_SINCE_64(STUB_DEFAULT_64)
COMPAT_1_0(STUB_COMPAT)

STUB_DEFAULT_34(command, ibv_cmd_query_device)
STUB_DEFAULT_34(nothing, verbs_register_driver_34)
STUB("s57_", nothing, verbs_register_driver_57, "@@", "IBVERBS_PRIVATE_57")
STUB_DEFAULT_59(nothing, verbs_register_driver_59)
STUB_DEFAULT_64(nothing, verbs_register_driver_64)
STUB("s11_", nothing, ibv_register_driver, "@", "IBVERBS_1.1")
