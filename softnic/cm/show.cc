// Rows for `verbena show cm`, and what is counted.
#include <cstdio>

#include "softnic/cm/core.h"

namespace verbena::softnic {
namespace {

std::string PortSpaceText(uint16_t port_space) {
  switch (port_space) {
    case kPortSpaceTcp:
      return "TCP";
    case kPortSpaceUdp:
      return "UDP";
    case kPortSpaceIpoib:
      return "IPOIB";
    case shm::kPortSpaceRdm:
      return "RDM";
    default:
      return "IB";
  }
}

std::string QpTypeText(uint8_t qp_type) {
  switch (qp_type) {
    case kQpTypeRc:
      return "RC";
    case kQpTypeUc:
      return "UC";
    case kQpTypeUd:
      return "UD";
    case kQpTypeXrcSend:
      return "XRC_SEND";
    default:
      return "XRC_RECV";
  }
}

std::string QpnText(Qpn qpn) {
  if (qpn.value == 0) return "-";
  char text[16];
  std::snprintf(text, sizeof text, "0x%06x", qpn.value);
  return text;
}

}  // namespace

std::vector<CmService::SessionRow> CmCore::Show() const {
  std::vector<CmService::SessionRow> rows;
  for (const auto& [number, session] : sessions_) {
    for (const auto& [handle, id] : session.ids) {
      const CmNic* nic = id.place.has_value() ? addresses_.Find(id.place->nic) : nullptr;
      const transport::cm::State state = StateOf(id);
      CmShowRow row;
      row.fields = {
          {"id", std::to_string(handle)},
          {"nic", nic == nullptr ? "-" : nic->name},
          {"port_space", PortSpaceText(id.port_space)},
          {"qp_type", QpTypeText(id.qp_type)},
          {"state", NameOf(id.state)},
          {"cm_state", state == transport::cm::State::kGone ? "-" : transport::cm::NameOf(state)},
          {"source", TextOf(id.source)},
          {"destination", TextOf(id.destination)},
          {"qpn", QpnText(id.connection.local_qpn)},
          {"remote_qpn", QpnText(id.connection.remote_qpn)},
          {"events_waiting", std::to_string(id.events_waiting)},
          {"lanes", id.served.has_value() ? std::to_string(id.served->lanes.size()) : "-"},
      };
      rows.push_back({number, std::move(row)});
    }
  }
  return rows;
}

CmCounters CmCore::Counters() const {
  CmCounters counters = counters_;
  counters.sessions = sessions_.size();
  counters.ids_connected = by_comm_.size();
  for (const auto& [number, session] : sessions_) {
    counters.channels += session.channels.size();
    counters.ids += session.ids.size();
    counters.events_waiting += session.events_waiting;
  }
  for (const auto& [index, port] : engines_) {
    const transport::cm::EngineCounters& engine = port.engine->counters();
    counters.communications += port.engine->size();
    counters.mads_sent += engine.mads_sent;
    counters.mads_received += engine.mads_received;
    counters.mads_refused += engine.mads_refused;
    counters.mad_retries += engine.retries;
    counters.mad_duplicates += engine.duplicates;
  }
  return counters;
}

}  // namespace verbena::softnic
