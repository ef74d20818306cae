// Connecting, accepting, refusing and ending.
#include <stdlib.h>
#include <string.h>

#include "verbs_shim/rdmacm/objects.h"

namespace verbena::rdmacm {
namespace {

constexpr uint8_t kRejectConsumer = 28;             // IBTA 12.6.7.2, table 110
constexpr uint8_t kRejectVendorOptionRefused = 35;  // the same

// Of TCP's port space a QP or its number is needed, and what the NIC can do bounds what is asked.
int CheckParam(const Id* id, const rdma_conn_param* param) {
  if (id->base.ps != RDMA_PS_TCP) return 0;
  if (param == nullptr) return id->base.qp != nullptr ? 0 : EINVAL;
  if (param->responder_resources != RDMA_MAX_RESP_RES &&
      param->responder_resources > id->device->max_responder_resources) {
    return EINVAL;
  }
  if (param->initiator_depth != RDMA_MAX_INIT_DEPTH &&
      param->initiator_depth > id->device->max_initiator_depth) {
    return EINVAL;
  }
  return 0;
}

// Appends to the private data. 0 or EINVAL.
int AddPrivateData(const void* data, size_t bytes, shm::CmConnParam* out) {
  if (data == nullptr || bytes == 0) return 0;
  if (out->private_data_len + bytes > UINT8_MAX) return EINVAL;
  memcpy(out->private_data + out->private_data_len, data, bytes);
  out->private_data_len = static_cast<uint8_t>(out->private_data_len + bytes);
  return 0;
}

// `param` may be null. 0 or EINVAL.
int FillParam(const Id* id, const rdma_conn_param* param, shm::CmConnParam* out) {
  out->responder_resources = id->responder_resources;
  out->initiator_depth = id->initiator_depth;
  out->retry_count = kDefaultRetryCount;
  out->rnr_retry_count = kDefaultRetryCount;
  out->ece_options = id->local_ece.options;
  if (int error = AddPrivateData(id->connect_data, id->connect_data_bytes, out); error != 0) {
    return error;
  }
  if (param != nullptr) {
    out->flow_control = param->flow_control;
    out->retry_count = param->retry_count;
    out->rnr_retry_count = param->rnr_retry_count;
    out->qp_num = param->qp_num;
    out->srq = param->srq;
    const int error = AddPrivateData(param->private_data, param->private_data_len, out);
    if (error != 0) return error;
  }
  if (id->base.qp != nullptr) {
    out->qp_num = id->base.qp->qp_num;
    out->srq = id->base.qp->srq != nullptr;
  }
  return 0;
}

uint8_t Min(uint8_t a, uint8_t b) { return a < b ? a : b; }

// What the request asked for bounds what is taken for the most.
void ChooseDepthsToAccept(Id* id, const rdma_conn_param* param) {
  if (param == nullptr || param->initiator_depth == RDMA_MAX_INIT_DEPTH) {
    id->initiator_depth = Min(id->initiator_depth, id->device->max_initiator_depth);
  } else {
    id->initiator_depth = param->initiator_depth;
  }
  if (param == nullptr || param->responder_resources == RDMA_MAX_RESP_RES) {
    id->responder_resources = Min(id->responder_resources, id->device->max_responder_resources);
  } else {
    id->responder_resources = param->responder_resources;
  }
}

void ChooseDepthsToConnect(Id* id, const rdma_conn_param* param) {
  id->initiator_depth = id->device->max_initiator_depth;
  id->responder_resources = id->device->max_responder_resources;
  if (param == nullptr) return;
  if (param->initiator_depth != RDMA_MAX_INIT_DEPTH) id->initiator_depth = param->initiator_depth;
  if (param->responder_resources != RDMA_MAX_RESP_RES) {
    id->responder_resources = param->responder_resources;
  }
}

int Reject(Id* id, const void* private_data, uint8_t private_data_len, uint8_t reason) {
  shm::CmRequest request = NewRequest(shm::CmOp::kReject, id->handle);
  request.reject.reason = reason;
  if (private_data != nullptr && private_data_len != 0) {
    memcpy(request.reject.private_data, private_data, private_data_len);
    request.reject.private_data_len = private_data_len;
  }
  shm::CmReply reply;
  return Ask(id, request, &reply);
}

int Accept(Id* id, const rdma_conn_param* param) {
  if (id->device == nullptr || (id->base.qp == nullptr && param == nullptr)) return EINVAL;
  if (int error = CheckParam(id, param); error != 0) return error;
  ChooseDepthsToAccept(id, param);
  shm::CmRequest request = NewRequest(shm::CmOp::kAccept, id->handle);
  request.connect.cookie = reinterpret_cast<uintptr_t>(id);
  if (int error = FillParam(id, param, &request.connect.param); error != 0) return error;
  request.connect.param.ece_vendor_id = id->remote_ece.vendor_id;  // as it came
  if (!IsUd(id)) {
    if (int error = ModifyToRtr(id, id->responder_resources); error != 0) return error;
    if (int error = ModifyToRts(id, id->initiator_depth); error != 0) return error;
  }
  shm::CmReply reply;
  const int error = Ask(id, request, &reply);
  if (error != 0) ModifyToErr(id);
  return error;
}

}  // namespace

int FinishConnecting(Id* id) {
  int error = ModifyToRtr(id, RDMA_MAX_RESP_RES);
  if (error == 0) error = ModifyToRts(id, RDMA_MAX_INIT_DEPTH);
  if (error == 0) error = Ask(id, shm::CmOp::kEstablish);
  if (error != 0) ModifyToErr(id);
  return error;
}

// Then RDMA_CM_EVENT_ESTABLISHED, or with no QP CONNECT_RESPONSE, or why not.
// Errors: EINVAL: no route, more than the NIC can do, or too much private data.
// Source: rdma_connect(3).
VERBENA_EXPORT int rdma_connect(rdma_cm_id* base, rdma_conn_param* param) {
  Id* id = ToId(base);
  if (id->device == nullptr) return Fail(EINVAL);
  if (int error = CheckParam(id, param); error != 0) return Fail(error);
  ChooseDepthsToConnect(id, param);
  shm::CmRequest request = NewRequest(shm::CmOp::kConnect, id->handle);
  request.connect.cookie = reinterpret_cast<uintptr_t>(id);
  if (int error = FillParam(id, param, &request.connect.param); error != 0) return Fail(error);
  request.connect.param.ece_vendor_id = id->local_ece.vendor_id;
  shm::CmReply reply;
  if (int error = Ask(id, request, &reply); error != 0) return Fail(error);
  free(id->connect_data);
  id->connect_data = nullptr;
  id->connect_data_bytes = 0;
  return AwaitCompletion(id);
}

// Errors: EINVAL; EADDRINUSE: where rdma_bind_addr was not called before.
// Source: rdma_listen(3).
VERBENA_EXPORT int rdma_listen(rdma_cm_id* base, int backlog) {
  Id* id = ToId(base);
  const int error = Ask(id, shm::CmOp::kListen, static_cast<uint32_t>(backlog));
  return Result(error != 0 ? error : QueryId(id, /*with_path=*/false));
}

// Then RDMA_CM_EVENT_ESTABLISHED; of datagrams there is none.
// Errors: EINVAL: no request waits, no QP and no number of one, more than the NIC can do.
// Source: rdma_accept(3).
VERBENA_EXPORT int rdma_accept(rdma_cm_id* base, rdma_conn_param* param) {
  Id* id = ToId(base);
  if (int error = Accept(id, param); error != 0) return Fail(error);
  if (!IsUd(id)) return AwaitCompletion(id);
  if (id->is_sync && base->event != nullptr) {
    rdma_ack_cm_event(base->event);
    base->event = nullptr;
  }
  return 0;
}

// Errors: EINVAL: no request waits, or too much private data.  Source: rdma_reject(3).
VERBENA_EXPORT int rdma_reject(rdma_cm_id* id, const void* private_data, uint8_t private_data_len) {
  return Result(Reject(ToId(id), private_data, private_data_len, kRejectConsumer));
}

// As rdma_reject, for that the ECE options don't do.  Source: rdma_reject(3).
VERBENA_EXPORT int rdma_reject_ece(rdma_cm_id* id, const void* private_data,
                                   uint8_t private_data_len) {
  return Result(Reject(ToId(id), private_data, private_data_len, kRejectVendorOptionRefused));
}

// After RDMA_CM_EVENT_CONNECT_RESPONSE, by who owns the QP.
// Errors: EINVAL: the identifier has a QP, or nothing is to be established.
// Source: rdma_establish(3).
VERBENA_EXPORT int rdma_establish(rdma_cm_id* base) {
  Id* id = ToId(base);
  if (base->qp != nullptr) return Fail(EINVAL);
  return Result(Ask(id, shm::CmOp::kEstablish));
}

// Errors: EINVAL: another event than IBV_EVENT_COMM_EST.  Source: rdma_notify(3).
VERBENA_EXPORT int rdma_notify(rdma_cm_id* id, ibv_event_type event) {
  return Result(Ask(ToId(id), shm::CmOp::kNotify, static_cast<uint32_t>(event)));
}

// The QP flushes at once; then RDMA_CM_EVENT_DISCONNECTED at both ends.
// Errors: EINVAL: not connected.  Source: rdma_disconnect(3).
VERBENA_EXPORT int rdma_disconnect(rdma_cm_id* base) {
  Id* id = ToId(base);
  if (base->verbs == nullptr) return Fail(EINVAL);
  if (int error = ModifyToErr(id); error != 0) return Fail(error);
  if (int error = Ask(id, shm::CmOp::kDisconnect); error != 0) return Fail(error);
  return AwaitCompletion(id);
}

}  // namespace verbena::rdmacm
