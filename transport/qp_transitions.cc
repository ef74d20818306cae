#include "transport/qp_transitions.h"

#include "core/shm/command.h"

namespace verbena::transport {
namespace {

using shm::qp_mask::kAccessFlags;
using shm::qp_mask::kAv;
using shm::qp_mask::kCurState;
using shm::qp_mask::kDestQpn;
using shm::qp_mask::kEnSqdAsyncNotify;
using shm::qp_mask::kMaxDestRdAtomic;
using shm::qp_mask::kMaxQpRdAtomic;
using shm::qp_mask::kMinRnrTimer;
using shm::qp_mask::kPathMigState;
using shm::qp_mask::kPathMtu;
using shm::qp_mask::kPkeyIndex;
using shm::qp_mask::kPort;
using shm::qp_mask::kQkey;
using shm::qp_mask::kRateLimit;
using shm::qp_mask::kRetryCnt;
using shm::qp_mask::kRnrRetry;
using shm::qp_mask::kRqPsn;
using shm::qp_mask::kSqPsn;
using shm::qp_mask::kTimeout;

constexpr QpState kReset = QpState::kReset;
constexpr QpState kInit = QpState::kInit;
constexpr QpState kRtr = QpState::kRtr;
constexpr QpState kRts = QpState::kRts;
constexpr QpState kSqd = QpState::kSqd;
constexpr QpState kSqe = QpState::kSqe;
constexpr QpState kErr = QpState::kErr;

constexpr Service kRc = Service::kRc;
constexpr Service kUc = Service::kUc;
constexpr Service kUd = Service::kUd;

constexpr uint32_t kConnectedInit = kPkeyIndex | kPort | kAccessFlags;
constexpr uint32_t kDatagramInit = kPkeyIndex | kPort | kQkey;
constexpr uint32_t kUcPeer = kAv | kPathMtu | kDestQpn | kRqPsn;
constexpr uint32_t kRcPeer = kUcPeer | kMaxDestRdAtomic | kMinRnrTimer;
// The rate limit is no attribute of the specification: it goes where kernels take it. Alternate
// paths are InfiniBand's: RoCE migrates none, and kernels refuse them there.
constexpr uint32_t kConnectedLive = kCurState | kAccessFlags | kPathMigState;

// The same row for every service.
#define VERBENA_EVERY_SERVICE(from, to, required, optional, clause)                           \
  {from, to, kRc, required, optional, clause}, {from, to, kUc, required, optional, clause}, { \
    from, to, kUd, required, optional, clause                                                 \
  }

}  // namespace

extern const QpTransition kQpTransitions[] = {
    VERBENA_EVERY_SERVICE(kReset, kReset, 0, 0, "10.3.1.1"),
    {kReset, kInit, kRc, kConnectedInit, 0, "10.3.1.2"},
    {kReset, kInit, kUc, kConnectedInit, 0, "10.3.1.2"},
    {kReset, kInit, kUd, kDatagramInit, 0, "10.3.1.2"},
    VERBENA_EVERY_SERVICE(kReset, kErr, 0, 0, "10.3.1.7"),

    VERBENA_EVERY_SERVICE(kInit, kReset, 0, 0, "10.3.1.1"),
    {kInit, kInit, kRc, 0, kConnectedInit, "10.3.1.2"},
    {kInit, kInit, kUc, 0, kConnectedInit, "10.3.1.2"},
    {kInit, kInit, kUd, 0, kDatagramInit, "10.3.1.2"},
    {kInit, kRtr, kRc, kRcPeer, kAccessFlags | kPkeyIndex, "10.3.1.3"},
    {kInit, kRtr, kUc, kUcPeer, kAccessFlags | kPkeyIndex, "10.3.1.3"},
    {kInit, kRtr, kUd, 0, kPkeyIndex | kQkey, "10.3.1.3"},
    VERBENA_EVERY_SERVICE(kInit, kErr, 0, 0, "10.3.1.7"),

    VERBENA_EVERY_SERVICE(kRtr, kReset, 0, 0, "10.3.1.1"),
    {kRtr, kRts, kRc, kTimeout | kRetryCnt | kRnrRetry | kSqPsn | kMaxQpRdAtomic,
     kConnectedLive | kMinRnrTimer | kRateLimit, "10.3.1.4"},
    {kRtr, kRts, kUc, kSqPsn, kConnectedLive | kRateLimit, "10.3.1.4"},
    {kRtr, kRts, kUd, kSqPsn, kCurState | kQkey | kRateLimit, "10.3.1.4"},
    VERBENA_EVERY_SERVICE(kRtr, kErr, 0, 0, "10.3.1.7"),

    VERBENA_EVERY_SERVICE(kRts, kReset, 0, 0, "10.3.1.1"),
    {kRts, kRts, kRc, 0, kConnectedLive | kMinRnrTimer | kRateLimit, "10.3.1.4"},
    {kRts, kRts, kUc, 0, kConnectedLive | kRateLimit, "10.3.1.4"},
    {kRts, kRts, kUd, 0, kCurState | kQkey | kRateLimit, "10.3.1.4"},
    VERBENA_EVERY_SERVICE(kRts, kSqd, 0, kEnSqdAsyncNotify, "10.3.1.5"),
    VERBENA_EVERY_SERVICE(kRts, kErr, 0, 0, "10.3.1.7"),

    VERBENA_EVERY_SERVICE(kSqd, kReset, 0, 0, "10.3.1.1"),
    {kSqd, kRts, kRc, 0, kConnectedLive | kMinRnrTimer, "10.3.1.5"},
    {kSqd, kRts, kUc, 0, kConnectedLive, "10.3.1.5"},
    {kSqd, kRts, kUd, 0, kCurState | kQkey, "10.3.1.5"},
    {kSqd, kSqd, kRc, 0,
     kPort | kAv | kTimeout | kRetryCnt | kRnrRetry | kMaxQpRdAtomic | kMaxDestRdAtomic |
         kAccessFlags | kPkeyIndex | kMinRnrTimer | kPathMigState,
     "10.3.1.5"},
    {kSqd, kSqd, kUc, 0, kAv | kAccessFlags | kPkeyIndex | kPathMigState, "10.3.1.5"},
    {kSqd, kSqd, kUd, 0, kPkeyIndex | kQkey, "10.3.1.5"},
    VERBENA_EVERY_SERVICE(kSqd, kErr, 0, 0, "10.3.1.7"),

    // A reliable service reports send errors by going to the error state: it has no SQE.
    {kSqe, kReset, kUc, 0, 0, "10.3.1.1"},
    {kSqe, kReset, kUd, 0, 0, "10.3.1.1"},
    {kSqe, kRts, kUc, 0, kCurState | kAccessFlags, "10.3.1.6"},
    {kSqe, kRts, kUd, 0, kCurState | kQkey, "10.3.1.6"},
    {kSqe, kErr, kUc, 0, 0, "10.3.1.7"},
    {kSqe, kErr, kUd, 0, 0, "10.3.1.7"},

    VERBENA_EVERY_SERVICE(kErr, kReset, 0, 0, "10.3.1.1"),
    VERBENA_EVERY_SERVICE(kErr, kErr, 0, 0, "10.3.1.7"),
};
extern const size_t kQpTransitionCount = sizeof(kQpTransitions) / sizeof(kQpTransitions[0]);

const QpTransition* FindQpTransition(QpState from, QpState to, Service service) {
  for (const QpTransition& row : kQpTransitions) {
    if (row.from == from && row.to == to && row.service == service) return &row;
  }
  return nullptr;
}

const char* QpStateName(QpState state) {
  switch (state) {
    case QpState::kReset:
      return "RESET";
    case QpState::kInit:
      return "INIT";
    case QpState::kRtr:
      return "RTR";
    case QpState::kRts:
      return "RTS";
    case QpState::kSqd:
      return "SQD";
    case QpState::kSqe:
      return "SQE";
    case QpState::kErr:
      return "ERR";
  }
  return "?";
}

const char* ServiceName(Service service) {
  switch (service) {
    case Service::kRc:
      return "RC";
    case Service::kUc:
      return "UC";
    case Service::kUd:
      return "UD";
  }
  return "?";
}

}  // namespace verbena::transport
