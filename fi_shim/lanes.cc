// A lane's life: made when something is sent to its peer, connected by the daemon's connection
// management, lost, and made anew where operations of it are left that the peer has not seen.
#include <poll.h>
#include <string.h>

#include <algorithm>
#include <new>

#include "core/base/types.h"
#include "core/clock/monotonic_clock.h"
#include "fi_shim/cm_calls.h"
#include "fi_shim/cm_channel.h"
#include "fi_shim/kept_entries.h"
#include "fi_shim/rdm.h"

namespace verbena::fi {
namespace {

constexpr uint8_t kRetriesMax = 7;   // three bits; of RNR: for ever
constexpr int kRejectConsumer = 28;  // IBTA 12.6.7.2, table 110

// What is to be done, or told, when no lock is held any more.
struct Aftermath {
  HwQp qp;                      // to be destroyed
  shm::CmHandle id = 0;         // the same
  Operation* failed = nullptr;  // in the order of posting, by Operation::next
  Operation** failed_end = &failed;
  LaneFailure failure;
};

// The peer refused this one, and has not looked at what came behind it; or it was never sent. Of a
// READ that is not so (PeerGoesOn).
bool IsOfThisAlone(WcStatus status) {
  switch (status) {
    case WcStatus::kLocLenErr:
    case WcStatus::kLocQpOpErr:
    case WcStatus::kLocProtErr:
    case WcStatus::kRemAccessErr:
    case WcStatus::kRemInvReqErr:
    case WcStatus::kRemOpErr:
      return true;
    default:
      return false;
  }
}

// A READ may fail when its response comes, and the peer has gone on to what was sent behind it.
bool PeerGoesOn(const Operation& operation, WcStatus status) {
  return (operation.flags & FI_READ) != 0 &&
         (status == WcStatus::kLocProtErr || status == WcStatus::kRemOpErr);
}

// Errors of the table of resource management, after which an endpoint is disabled.
// Spec: fi_domain(3), resource_mgmt.
bool IsResourceError(WcStatus status) {
  return status == WcStatus::kRnrRetryExcErr || status == WcStatus::kRemAccessErr ||
         status == WcStatus::kRemInvReqErr;
}

int MakeQp(Lane* lane) {
  if (lane->qp.handle != 0) return 0;
  RdmEndpoint* ep = lane->endpoint;
  QpSpec spec = {};
  spec.service = Service::kRc;
  spec.send_cq = ep->tx_hw;
  spec.recv_cq = ep->tx_hw;
  spec.pd = ep->pd;
  // An operation of several target ranges has an entry for each.
  const size_t parts = std::max<size_t>(ep->info->tx_attr->rma_iov_limit, 1);
  spec.max_send_wr = static_cast<uint32_t>(ep->sends.size() * parts);
  spec.max_send_sge = static_cast<uint32_t>(ep->info->tx_attr->iov_limit);
  spec.max_inline_bytes = static_cast<uint32_t>(ep->inject_bytes);
  int error = CreateHwQp(ep->domain, spec, &lane->qp);
  if (error != 0) return error;
  lane->qp.endpoint = ep;
  lane->reaped = lane->qp.sq.producer_index();
  return InitHwQp(&lane->qp, /*access=*/0);
}

// The lane has nothing of the NIC and of connection management any more.
void Detach(Lane* lane, Aftermath* after) {
  after->qp = lane->qp;
  after->id = lane->id;
  lane->qp = HwQp();
  lane->id = 0;
  lane->reaped = 0;
  lane->keeps = false;
  lane->has_route = false;
}

void SetState(Lane* lane, Lane::State state) {
  const auto is_settled = [](Lane::State s) {
    return s == Lane::State::kIdle || s == Lane::State::kReady;
  };
  const bool was = is_settled(lane->state);
  lane->state = state;
  if (was == is_settled(state)) return;
  if (was) {
    lane->endpoint->lanes_unsettled.fetch_add(1);
  } else {
    lane->endpoint->lanes_unsettled.fetch_sub(1);
  }
}

// Entries [begin, producer index) will never be carried out.
void CollectFailed(const Lane& lane, uint32_t begin, Aftermath* after) {
  for (uint32_t i = begin; i != lane.qp.sq.producer_index(); ++i) {
    Operation* operation = OperationOf(lane.qp.sq, i);
    if (--operation->parts != 0) continue;
    operation->next = nullptr;
    *after->failed_end = operation;
    after->failed_end = &operation->next;
  }
}

// The NIC has nothing of it yet.
void FailResolving(Lane* lane, const LaneFailure& failure, Aftermath* after) {
  after->failure = failure;
  CollectFailed(*lane, lane->reaped, after);
  Detach(lane, after);
  SetState(lane, Lane::State::kIdle);
}

// Its QP is in error, or about to be. What is flushed from here on fails, for that reason if there
// is one, or is kept.
void Drain(Lane* lane, bool keeps, const LaneFailure& failure = {}) {
  lane->keeps = keeps;
  lane->failure = failure;
  lane->kept_from = lane->reaped;
  SetState(lane, Lane::State::kDraining);
}

// What is outstanding is flushed.
void Fail(Lane* lane) {
  if (lane->outstanding() == 0) return;
  FailHwQp(&lane->qp);
  // Of what was posted with FI_MORE, or to a QP made anew, the NIC has not heard.
  lane->endpoint->domain->session->RingDoorbell(lane->qp.doorbell);
}

// From when the peer has been asked, the NIC may have carried out some, or all, by the time that
// its answer or its end is heard of here: what was is told by completions, the rest is flushed.
void GiveUp(Lane* lane, const LaneFailure& failure, Aftermath* after) {
  if (lane->state == Lane::State::kResolving) return FailResolving(lane, failure, after);
  Drain(lane, /*keeps=*/false, failure);
  Fail(lane);
}

// --- connecting ----------------------------------------------------------------------------------

int ResolveRoute(Lane* lane) {
  RdmEndpoint* ep = lane->endpoint;
  if (const uint8_t tos = TypeOfService(ep); tos != 0) {
    shm::CmRequest request = NewCmRequest(shm::CmOp::kSetOption, lane->id);
    request.option.level = 0;  // RDMA_OPTION_ID
    request.option.name = 0;   // RDMA_OPTION_ID_TOS
    request.option.length = 1;
    request.option.value[0] = tos;
    shm::CmReply reply;
    if (const int error = -ep->cm->Execute(request, &reply); error != 0) return error;
  }
  return AskCm(ep->cm, shm::CmOp::kResolveRoute, lane->id, kResolveMs);
}

int Connect(Lane* lane) {
  RdmEndpoint* ep = lane->endpoint;
  const LaneKey key = LaneKeyOf(ep);
  shm::RdmRequestData data = {};
  data.version = shm::kRdmVersion;
  data.auth_key_bytes = static_cast<uint8_t>(key.bytes);
  if (key.bytes != 0) memcpy(data.auth_key, key.data, key.bytes);
  shm::CmRequest request = NewCmRequest(shm::CmOp::kConnect, lane->id);
  request.connect.cookie = lane->number;
  memcpy(request.connect.place_token, ep->place_token, sizeof(ep->place_token));
  // Who has no receive for us is told of at once, or waited for.
  const bool waits_for_receives = ep->domain->resource_mgmt != FI_RM_DISABLED;
  request.connect.qp_rnr_retry = waits_for_receives ? kRetriesMax : 0;
  shm::CmConnParam& param = request.connect.param;
  memcpy(param.private_data, &data, sizeof(data));
  param.private_data_len = sizeof(data);
  param.initiator_depth = kReadsMax;
  param.retry_count = kRetriesMax;
  param.rnr_retry_count = kRetriesMax;
  param.qp_num = lane->qp.qpn;
  shm::CmReply reply;
  return -ep->cm->Execute(request, &reply);
}

LaneFailure RefusalOf(const shm::CmEvent& event) {
  LaneFailure failure;
  failure.provider = event.status;
  failure.error = FI_ECONNREFUSED;
  failure.text = "no endpoint is enabled at the peer's address";
  if (event.status != kRejectConsumer ||
      event.param.private_data_len < sizeof(shm::RdmRejectData)) {
    return failure;
  }
  shm::RdmRejectData data;
  memcpy(&data, event.param.private_data, sizeof(data));
  switch (static_cast<shm::RdmRejectReason>(data.reason)) {
    case shm::RdmRejectReason::kAuthKey:
      failure.error = FI_EACCES;
      failure.text = "the peer endpoint has another authorization key";
      break;
    case shm::RdmRejectReason::kNoResources:
      failure.error = FI_ENOMEM;
      failure.text = "the peer's NIC has no resources left for this endpoint's messages";
      break;
    case shm::RdmRejectReason::kBadRequest:
      failure.error = FI_EREMOTEIO;
      failure.text = "the peer does not understand this endpoint's request";
      break;
    default:
      break;
  }
  return failure;
}

LaneFailure FailureOfStep(int error) {
  return {-error, error, "the NIC could not connect to the peer"};
}

void OnEvent(Lane* lane, const shm::CmEvent& event, Aftermath* after) {
  if (lane->state == Lane::State::kDraining) return;  // it is over already
  int error = 0;
  switch (static_cast<CmEventType>(event.event)) {
    case CmEventType::kAddrResolved:
      error = ResolveRoute(lane);
      break;
    case CmEventType::kRouteResolved:
      error = Connect(lane);
      if (error == 0) lane->state = Lane::State::kConnecting;
      break;
    case CmEventType::kEstablished:
      SetState(lane, Lane::State::kReady);
      break;
    case CmEventType::kAddrError:
    case CmEventType::kRouteError:
    case CmEventType::kUnreachable:
      return GiveUp(lane, {FI_EHOSTUNREACH, event.status, "the peer's host can't be reached"},
                    after);
    case CmEventType::kConnectError:
      return GiveUp(lane, {FI_ECONNABORTED, event.status, "connecting failed"}, after);
    case CmEventType::kRejected:
      if (lane->state != Lane::State::kReady) return GiveUp(lane, RefusalOf(event), after);
      [[fallthrough]];  // it had accepted, and has gone before it knew that we know
    case CmEventType::kDisconnected:
    case CmEventType::kDeviceRemoval:
      return GiveUp(lane, {}, after);
    default:
      break;
  }
  if (error != 0) GiveUp(lane, FailureOfStep(error), after);
}

// --- making anew ---------------------------------------------------------------------------------

// What was kept goes, in its order, to a new QP.
void MakeAnew(Lane* lane, Aftermath* after) {
  const uint32_t kept_from = lane->kept_from;
  const HwQp old = lane->qp;
  Detach(lane, after);
  int error = MakeQp(lane);
  if (error == 0) {
    CopyKept(old.sq, kept_from, &lane->qp.sq);
    lane->qp.sq.Publish();
    error = BeginToConnect(lane);
  }
  if (error == 0) return;
  Lane lost = {};
  lost.qp = old;
  after->failure = FailureOfStep(error);
  CollectFailed(lost, kept_from, after);
  lane->reaped = lane->qp.sq.producer_index();
  SetState(lane, Lane::State::kIdle);
}

void Settle(Lane* lane, Aftermath* after) {
  const bool is_over = !lane->keeps || lane->kept_from == lane->reaped;
  if (!is_over) return MakeAnew(lane, after);
  Detach(lane, after);
  SetState(lane, Lane::State::kIdle);
}

void FailFor(RdmEndpoint* ep, Operation* operation, const LaneFailure& reason) {
  Failure failure;
  failure.context = operation->context;
  failure.flags = operation->flags;
  failure.buf = operation->buf;
  failure.error = reason.error;
  failure.provider = reason.provider;
  failure.text = reason.text;
  FinishWithError(ep, operation, failure);
}

void Tell(RdmEndpoint* ep, Aftermath* after) {
  if (after->id != 0) AskCm(ep->cm, shm::CmOp::kDestroyId, after->id);
  DestroyHwQp(&after->qp);
  while (after->failed != nullptr) {
    Operation* operation = after->failed;
    after->failed = operation->next;
    FailFor(ep, operation, after->failure);
  }
}

Lane* FindNumber(const RdmEndpoint* ep, uint32_t number) {
  Lane* lane = ep->lanes.first();
  while (lane != nullptr && lane->number != number) lane = lane->next;
  return lane;
}

bool IsReadable(int fd, int timeout_ms) {
  pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, timeout_ms) > 0;
}

// cm_mutex is held.
void TakeEvents(RdmEndpoint* ep) {
  while (ep->cm_fd >= 0 && IsReadable(ep->cm_fd, 0)) {
    shm::CmReply reply;
    if (AskCm(ep->cm, shm::CmOp::kGetEvent, ep->cm_channel, 0, &reply) != 0) return;
    Aftermath after;
    {
      Guard guard(ep->lock);
      Lane* lane = FindNumber(ep, static_cast<uint32_t>(reply.event.cookie));
      const bool is_of_it = lane != nullptr && lane->id != 0 && lane->id == reply.event.id;
      if (is_of_it) OnEvent(lane, reply.event, &after);
    }
    Tell(ep, &after);
  }
}

// cm_mutex is held.
void SettleDrained(RdmEndpoint* ep) {
  for (;;) {
    Aftermath after;
    {
      Guard guard(ep->lock);
      Lane* lane = ep->lanes.first();
      while (lane != nullptr &&
             !(lane->state == Lane::State::kDraining && lane->outstanding() == 0)) {
        lane = lane->next;
      }
      if (lane == nullptr) return;
      Settle(lane, &after);
    }
    Tell(ep, &after);
  }
}

void Pump(RdmEndpoint* ep) {
  TakeEvents(ep);
  if (ep->lanes_unsettled.load() != 0) SettleDrained(ep);
}

int64_t NowMs() { return ReadMonotonicClock().ns / 1'000'000; }

// Numbers of the AV whose address has gone, or is another's, lead nowhere.
void ForgetRemoved(RdmEndpoint* ep) {
  const uint32_t removals = ep->av->removals();
  if (removals == ep->seen_removals) return;
  ep->seen_removals = removals;
  for (uint64_t i = 0; i < ep->lanes.numbers(); ++i) {
    const Lane* lane = ep->lanes.Find(i);
    SockAddress address;
    if (lane != nullptr && !(Lookup(ep->av, i, &address) && IsSameAddress(address, lane->peer))) {
      ep->lanes.Unname(i);
    }
  }
}

}  // namespace

int BeginToConnect(Lane* lane) {
  RdmEndpoint* ep = lane->endpoint;
  lane->number = ep->next_number++;
  shm::CmRequest request = NewCmRequest(shm::CmOp::kCreateId, 0);
  request.create.cookie = lane->number;
  request.create.channel = ep->cm_channel;
  request.create.port_space = shm::kPortSpaceRdm;
  request.create.qp_type = kQpTypeRc;
  shm::CmReply reply;
  int error = -ep->cm->Execute(request, &reply);
  if (error != 0) return error;
  lane->id = reply.handle;
  request = NewCmRequest(shm::CmOp::kResolveAddr, lane->id);
  client::ToCmAddress(&ep->address, &request.resolve.source);
  client::ToCmAddress(&lane->peer, &request.resolve.destination);
  request.resolve.timeout_ms = kResolveMs;
  error = -ep->cm->Execute(request, &reply);
  if (error != 0) {
    AskCm(ep->cm, shm::CmOp::kDestroyId, lane->id);
    lane->id = 0;
    return error;
  }
  SetState(lane, Lane::State::kResolving);
  return 0;
}

int LaneTo(RdmEndpoint* ep, fi_addr_t dest, Lane** out, uint32_t* connecting) {
  ForgetRemoved(ep);
  Lane* lane = ep->lanes.Find(dest);
  if (lane == nullptr) {
    SockAddress peer;
    if (!Lookup(ep->av, dest, &peer)) return -FI_EINVAL;
    lane = ep->lanes.FindPeer(peer);
    if (lane == nullptr) {
      lane = new (std::nothrow) Lane();
      if (lane == nullptr) return -FI_ENOMEM;
      lane->endpoint = ep;
      lane->peer = peer;
      if (!ep->lanes.Add(lane)) {
        delete lane;
        return -FI_ENOMEM;
      }
    }
    if (!ep->lanes.Name(dest, lane)) return -FI_ENOMEM;
  }
  *out = lane;
  if (lane->state != Lane::State::kIdle) return 0;
  int error = MakeQp(lane);
  if (error == 0) error = BeginToConnect(lane);
  if (error == 0) *connecting = lane->number;
  return error;
}

void PumpLanes(RdmEndpoint* ep) {
  // Who is not waited for may still be lost: looked after now and then.
  constexpr uint32_t kLooksPerCheck = 256;
  if (ep->lanes_unsettled.load() == 0) {
    const uint32_t looks = ep->idle_looks.load(std::memory_order_relaxed) + 1;
    ep->idle_looks.store(looks, std::memory_order_relaxed);
    if (looks % kLooksPerCheck != 0) return;
  }
  if (!TryLock(ep->cm_mutex)) return;  // somebody does
  Pump(ep);
  pthread_mutex_unlock(&ep->cm_mutex);
}

void AwaitResolved(RdmEndpoint* ep, uint32_t number, int timeout_ms) {
  client::MutexGuard guard(ep->cm_mutex);
  const int64_t end_ms = NowMs() + timeout_ms;
  for (;;) {
    Pump(ep);
    {
      Guard lane_guard(ep->lock);
      const Lane* lane = FindNumber(ep, number);
      if (lane == nullptr || lane->state != Lane::State::kResolving) return;
    }
    const int64_t left_ms = end_ms - NowMs();
    if (left_ms <= 0 || !IsReadable(ep->cm_fd, static_cast<int>(left_ms))) return;
    if (!ep->cm->IsAlive()) return;
  }
}

void OnLaneCompletion(RdmEndpoint* ep, Operation* operation, const shm::Cqe& cqe) {
  const auto status = static_cast<WcStatus>(cqe.status);
  bool disables = false, is_news = false;
  shm::Cqe told = {};  // what FinishSend looks at
  told.status = cqe.status;
  told.vendor_err = cqe.vendor_err;
  LaneFailure reason;  // if it is the lane's
  {
    Guard guard(ep->lock);
    Lane* lane = operation->lane;
    ++lane->reaped;
    if (status == WcStatus::kWrFlushErr && lane->state == Lane::State::kDraining) {
      const auto why = static_cast<shm::VendorErr>(cqe.vendor_err);
      const bool is_done = why == shm::VendorErr::kFlushedDone;
      const bool is_lost = lane->is_sent_told && why == shm::VendorErr::kFlushedSent;
      const bool is_told = operation->failed_status != 0 || is_done || is_lost;
      const bool is_first = lane->kept_from + 1 == lane->reaped;  // none before it is kept
      if (lane->keeps && !(is_told && is_first)) return;
      lane->kept_from = lane->reaped;
      if (is_done) {
        told.status = static_cast<uint8_t>(WcStatus::kSuccess);
      } else if (!ep->is_disabled && (!lane->keeps || is_lost)) {
        told.status = static_cast<uint8_t>(WcStatus::kRetryExcErr);
        reason = lane->failure;
      }
    } else if (status != WcStatus::kSuccess) {
      disables = IsResourceError(status);
      is_news = disables && !ep->is_disabled;
      Drain(lane, IsOfThisAlone(status) && !disables && !ep->is_disabled);
      lane->is_sent_told = PeerGoesOn(*operation, status);
    }
  }
  if (disables) DisableLanes(ep);
  if (is_news) ReportDisabled(ep, FailureOf(*operation, cqe));
  if (reason.error != 0) return FailFor(ep, operation, reason);
  FinishSend(ep, operation, told);
}

void DisableLanes(RdmEndpoint* ep) {
  Guard guard(ep->lock);
  ep->is_disabled = true;
  ep->is_enabled = false;
  ep->must_cancel_receives.store(true);
  WakeReceiver(ep);
  for (Lane* lane = ep->lanes.first(); lane != nullptr; lane = lane->next) {
    if (lane->state == Lane::State::kIdle || lane->state == Lane::State::kDraining) continue;
    Drain(lane, /*keeps=*/false);
    Fail(lane);
  }
}

void AbandonLanes(RdmEndpoint* ep) {
  Guard guard(ep->lock);
  for (Lane* lane = ep->lanes.first(); lane != nullptr; lane = lane->next) {
    lane->reaped = lane->qp.sq.producer_index();
    SetState(lane, Lane::State::kIdle);
  }
}

void CloseLanes(RdmEndpoint* ep) {
  client::MutexGuard guard(ep->cm_mutex);
  for (;;) {
    Lane* lane;
    {
      Guard lane_guard(ep->lock);
      lane = ep->lanes.first();
      if (lane == nullptr) return;
      ep->lanes.Remove(lane);
      SetState(lane, Lane::State::kIdle);
    }
    if (lane->id != 0) AskCm(ep->cm, shm::CmOp::kDestroyId, lane->id);
    DestroyHwQp(&lane->qp);
    delete lane;
  }
}

}  // namespace verbena::fi
