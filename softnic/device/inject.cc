// Events on request (`verbena event`): programs are told, and nothing else happens. What a program
// does when a path migrates or a subnet manager changes can't be seen otherwise: no network of ours
// has either.
#include "softnic/device/device_core.h"

namespace verbena::softnic {
namespace {

struct EventRow {
  const char* name;  // as enum ibv_event_type, without its prefix
  EventType event;
  EventTarget::Kind kind;
};

using Kind = EventTarget::Kind;
constexpr EventRow kEvents[] = {
    {"cq_err", EventType::kCqErr, Kind::kCq},
    {"qp_fatal", EventType::kQpFatal, Kind::kQp},
    {"qp_req_err", EventType::kQpReqErr, Kind::kQp},
    {"qp_access_err", EventType::kQpAccessErr, Kind::kQp},
    {"comm_est", EventType::kCommEst, Kind::kQp},
    {"sq_drained", EventType::kSqDrained, Kind::kQp},
    {"path_mig", EventType::kPathMig, Kind::kQp},
    {"path_mig_err", EventType::kPathMigErr, Kind::kQp},
    {"qp_last_wqe_reached", EventType::kQpLastWqeReached, Kind::kQp},
    {"srq_err", EventType::kSrqErr, Kind::kSrq},
    {"srq_limit_reached", EventType::kSrqLimitReached, Kind::kSrq},
    {"device_fatal", EventType::kDeviceFatal, Kind::kPort},
    {"port_active", EventType::kPortActive, Kind::kPort},
    {"port_err", EventType::kPortErr, Kind::kPort},
    {"lid_change", EventType::kLidChange, Kind::kPort},
    {"pkey_change", EventType::kPkeyChange, Kind::kPort},
    {"sm_change", EventType::kSmChange, Kind::kPort},
    {"client_reregister", EventType::kClientReregister, Kind::kPort},
    {"gid_change", EventType::kGidChange, Kind::kPort},
    {"device_speed_change", EventType::kDeviceSpeedChange, Kind::kPort},
};

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kPort:
      return "the port";
    case Kind::kQp:
      return "a QP";
    case Kind::kCq:
      return "a CQ";
    case Kind::kSrq:
      return "an SRQ";
  }
  return "?";
}

}  // namespace

uint32_t DeviceCore::InjectEvent(Instant now, const std::string& name, const EventTarget& target,
                                 std::string* error) {
  AdvanceTo(now);
  const EventRow* row = nullptr;
  std::string names;
  for (const EventRow& candidate : kEvents) {
    if (name == candidate.name) row = &candidate;
    names += (names.empty() ? "" : ", ") + std::string(candidate.name);
  }
  if (row == nullptr) {
    *error = "there is no event \"" + name + "\", but " + names;
    return 0;
  }
  if (row->kind != target.kind) {
    *error = name + " is an event of " + NameOf(row->kind) + ", not of " + NameOf(target.kind);
    return 0;
  }
  Nic* nic = nullptr;
  for (const auto& candidate : nics_) {
    if (candidate->name() == target.nic) nic = candidate.get();
  }
  if (nic == nullptr) {
    *error = "there is no NIC \"" + target.nic + "\"";
    return 0;
  }
  const uint32_t told = Inject(*nic, row->event, target);
  if (told == 0 && target.kind != Kind::kPort) {
    *error = target.nic + " has no such object; `verbena show` lists them";
  }
  return told;
}

uint32_t DeviceCore::Inject(Nic& nic, EventType event, const EventTarget& target) {
  if (target.kind == Kind::kQp) {
    DeviceQp* qp = nic.qpns.Find(Qpn(target.number));
    if (qp != nullptr) PushQpEvent(*qp, event);
    return qp != nullptr ? 1 : 0;
  }
  uint32_t told = 0;
  for (const auto& [id, owned] : sessions_) {
    Session* session = owned.get();
    if (session->nic != &nic || session->is_closing) continue;
    if (target.kind == Kind::kPort) {
      PushAsyncEvent(*session, EventSource::kPort, event, kPortNumber, 0);
      ++told;
    } else if (target.kind == Kind::kSrq) {
      session->srqs.ForEach([&](Srq& srq) {
        if (srq.srqn != target.number) return;
        PushAsyncEvent(*session, EventSource::kSrq, event, srq.handle, srq.cookie);
        ++told;
      });
    } else if (id == target.session) {
      Cq* cq = session->cqs.Find(target.number);
      if (cq == nullptr) continue;
      PushAsyncEvent(*session, EventSource::kCq, event, cq->handle, cq->cookie);
      ++told;
    }
  }
  return told;
}

}  // namespace verbena::softnic
