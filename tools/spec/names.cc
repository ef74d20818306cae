#include "tools/spec/names.h"

#include "core/shm/command.h"

namespace verbena::tools {
namespace {

using transport::QpCounters;

struct AttributeName {
  uint32_t bit;
  const char* name;
};
constexpr AttributeName kAttributes[] = {
    {shm::qp_mask::kState, "STATE"},
    {shm::qp_mask::kCurState, "CUR_STATE"},
    {shm::qp_mask::kEnSqdAsyncNotify, "EN_SQD_ASYNC_NOTIFY"},
    {shm::qp_mask::kAccessFlags, "ACCESS_FLAGS"},
    {shm::qp_mask::kPkeyIndex, "PKEY_INDEX"},
    {shm::qp_mask::kPort, "PORT"},
    {shm::qp_mask::kQkey, "QKEY"},
    {shm::qp_mask::kAv, "AV"},
    {shm::qp_mask::kPathMtu, "PATH_MTU"},
    {shm::qp_mask::kTimeout, "TIMEOUT"},
    {shm::qp_mask::kRetryCnt, "RETRY_CNT"},
    {shm::qp_mask::kRnrRetry, "RNR_RETRY"},
    {shm::qp_mask::kRqPsn, "RQ_PSN"},
    {shm::qp_mask::kMaxQpRdAtomic, "MAX_QP_RD_ATOMIC"},
    {shm::qp_mask::kAltPath, "ALT_PATH"},
    {shm::qp_mask::kMinRnrTimer, "MIN_RNR_TIMER"},
    {shm::qp_mask::kSqPsn, "SQ_PSN"},
    {shm::qp_mask::kMaxDestRdAtomic, "MAX_DEST_RD_ATOMIC"},
    {shm::qp_mask::kPathMigState, "PATH_MIG_STATE"},
    {shm::qp_mask::kCap, "CAP"},
    {shm::qp_mask::kDestQpn, "DEST_QPN"},
    {shm::qp_mask::kRateLimit, "RATE_LIMIT"},
};

struct CounterRow {
  uint64_t QpCounters::*counter;
  const char* name;
};
constexpr CounterRow kCounters[] = {
    {&QpCounters::duplicate_request, "duplicate_request"},
    {&QpCounters::out_of_seq_request, "out_of_seq_request"},
    {&QpCounters::rcvd_seq_err, "rcvd_seq_err"},
    {&QpCounters::local_ack_timeout_err, "local_ack_timeout_err"},
    {&QpCounters::rcvd_rnr_err, "rcvd_rnr_err"},
    {&QpCounters::send_rnr_err, "send_rnr_err"},
    {&QpCounters::retry_exceeded_err, "retry_exceeded_err"},
    {&QpCounters::retry_rnr_exceeded_err, "retry_rnr_exceeded_err"},
    {&QpCounters::out_of_buffer, "out_of_buffer"},
    {&QpCounters::qkey_violation, "qkey_violation"},
    {&QpCounters::access_disabled, "access_disabled"},
};

constexpr const char* kWcStatuses[] = {
    "SUCCESS",          "LOC_LEN_ERR",       "LOC_QP_OP_ERR",     "LOC_EEC_OP_ERR",
    "LOC_PROT_ERR",     "WR_FLUSH_ERR",      "MW_BIND_ERR",       "BAD_RESP_ERR",
    "LOC_ACCESS_ERR",   "REM_INV_REQ_ERR",   "REM_ACCESS_ERR",    "REM_OP_ERR",
    "RETRY_EXC_ERR",    "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR",  "REM_INV_RD_REQ_ERR",
    "REM_ABORT_ERR",    "INV_EECN_ERR",      "INV_EEC_STATE_ERR", "FATAL_ERR",
    "RESP_TIMEOUT_ERR", "GENERAL_ERR",
};
constexpr const char* kEvents[] = {
    "CQ_ERR",
    "QP_FATAL",
    "QP_REQ_ERR",
    "QP_ACCESS_ERR",
    "COMM_EST",
    "SQ_DRAINED",
    "PATH_MIG",
    "PATH_MIG_ERR",
    "DEVICE_FATAL",
    "PORT_ACTIVE",
    "PORT_ERR",
    "LID_CHANGE",
    "PKEY_CHANGE",
    "SM_CHANGE",
    "SRQ_ERR",
    "SRQ_LIMIT_REACHED",
    "QP_LAST_WQE_REACHED",
    "CLIENT_REREGISTER",
    "GID_CHANGE",
    "WQ_FATAL",
};

}  // namespace

std::string AttributeNames(uint32_t mask) {
  std::string names;
  for (const AttributeName& attribute : kAttributes) {
    if ((mask & attribute.bit) == 0) continue;
    if (!names.empty()) names += " ";
    names += attribute.name;
  }
  return names;
}

const char* WcStatusName(WcStatus status) { return kWcStatuses[static_cast<size_t>(status)]; }
const char* EventTypeName(EventType event) { return kEvents[static_cast<size_t>(event)]; }

const char* NakCodeName(transport::NakCode code) {
  constexpr const char* kNames[] = {"PSN sequence error", "invalid request", "remote access error",
                                    "remote operational error", "invalid RD request"};
  return kNames[static_cast<size_t>(code)];
}

std::string VendorErrName(shm::VendorErr error) {
  switch (error) {
    case shm::VendorErr::kNone:
      return "";
    case shm::VendorErr::kBadLKey:
      return "bad lkey";
    case shm::VendorErr::kLKeyOtherPd:
      return "lkey of another PD";
    case shm::VendorErr::kLKeyBounds:
      return "lkey bounds";
    case shm::VendorErr::kLKeyAccess:
      return "lkey access";
    case shm::VendorErr::kBadRKey:
      return "bad rkey";
    case shm::VendorErr::kRKeyOtherPd:
      return "rkey of another PD";
    case shm::VendorErr::kRKeyBounds:
      return "rkey bounds";
    case shm::VendorErr::kRKeyAccess:
      return "rkey access";
    case shm::VendorErr::kQpAccess:
      return "QP access flags";
    case shm::VendorErr::kMisalignedAtomic:
      return "misaligned atomic";
    case shm::VendorErr::kRKeyOtherQp:
      return "rkey of another QP";
    case shm::VendorErr::kRKeyBadState:
      return "rkey in no state for it";
    case shm::VendorErr::kMemoryFault:
      return "memory fault";
    case shm::VendorErr::kMessageTooLong:
      return "message too long";
    case shm::VendorErr::kReceiveTooShort:
      return "receive too short";
    case shm::VendorErr::kTruncated:
      return "truncated";
    case shm::VendorErr::kBadOpcode:
      return "bad opcode";
    case shm::VendorErr::kBadAh:
      return "bad address handle";
    case shm::VendorErr::kRetryExceeded:
      return "retry exceeded";
    case shm::VendorErr::kRnrRetryExceeded:
      return "RNR retry exceeded";
    case shm::VendorErr::kTooManyRdAtomic:
      return "too many READs or atomics";
    case shm::VendorErr::kBadWqe:
      return "bad WQE";
    case shm::VendorErr::kPeerNak:
      return "peer's NAK";
    case shm::VendorErr::kFlushed:
      return "flushed";
    case shm::VendorErr::kFlushedDone:
      return "flushed, done";
    case shm::VendorErr::kFlushedSent:
      return "flushed, sent";
    case shm::VendorErr::kDeviceGone:
      return "device gone";
  }
  return "?";
}

std::string CounterName(uint64_t QpCounters::*counter) {
  if (counter == nullptr) return "";
  for (const CounterRow& row : kCounters) {
    if (row.counter == counter) return row.name;
  }
  return "?";
}

std::string HexByte(uint8_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  return {'0', 'x', kDigits[value >> 4], kDigits[value & 15]};
}

}  // namespace verbena::tools
