// Rows for `verbena show`.
#include <arpa/inet.h>

#include <cstdarg>
#include <cstdio>

#include "softnic/device/device_core.h"
#include "transport/qp_transitions.h"

namespace verbena::softnic {
namespace {

using transport::QpStateName;
using transport::ServiceName;

__attribute__((format(printf, 1, 2))) std::string Text(const char* format, ...) {
  char buffer[256];
  va_list args;
  va_start(args, format);
  std::vsnprintf(buffer, sizeof(buffer), format, args);
  va_end(args);
  return buffer;
}

std::string Number(uint64_t value) { return std::to_string(value); }

std::string AccessText(uint32_t bits) {
  static constexpr struct {
    uint32_t bit;
    const char* name;
  } kNames[] = {
      {access::kLocalWrite, "local_write"},   {access::kRemoteWrite, "remote_write"},
      {access::kRemoteRead, "remote_read"},   {access::kRemoteAtomic, "remote_atomic"},
      {access::kMwBind, "mw_bind"},           {access::kZeroBased, "zero_based"},
      {access::kFlushGlobal, "flush_global"}, {access::kRelaxedOrdering, "relaxed_ordering"},
  };
  std::string text;
  for (const auto& name : kNames) {
    if ((bits & name.bit) == 0) continue;
    if (!text.empty()) text += ",";
    text += name.name;
  }
  return text.empty() ? "local_read" : text;
}

std::string GidText(const Gid& gid) {
  if (gid.IsIpv4Mapped()) {
    return Text("::ffff:%u.%u.%u.%u", gid.raw[12], gid.raw[13], gid.raw[14], gid.raw[15]);
  }
  std::string text;
  for (int i = 0; i < 16; i += 2) {
    text += Text(i == 0 ? "%02x%02x" : ":%02x%02x", gid.raw[i], gid.raw[i + 1]);
  }
  return text;
}

// What every row of an object begins with: whose it is.
ShowRow OwnedRow(const Session& session, shm::Handle handle) {
  ShowRow row;
  row.fields = {{"nic", session.nic->name()},
                {"program", session.program},
                {"pid", std::to_string(session.pid)},
                {"session", Number(session.id)},
                {"handle", Text("0x%x", handle)}};
  return row;
}

std::string CqText(const Cq& cq) { return Text("0x%x", cq.handle); }

ShowRow MakeRow(const Pd& pd) {
  ShowRow row = OwnedRow(*pd.session, pd.handle);
  row.fields.emplace_back("users", Number(pd.users));
  return row;
}

// Of device memory the offset: our addresses are nobody's business.
uint64_t AddrOf(const Mr& mr) {
  return mr.dm == nullptr ? mr.addr : mr.addr - reinterpret_cast<uint64_t>(mr.dm->memory->data);
}

const char* StateOf(const Mr& mr) {
  if (mr.is_invalidated) return "invalidated";
  return mr.is_disabled ? "disabled" : "valid";
}

ShowRow MakeRow(const Mr& mr, const char* backend) {
  ShowRow row = OwnedRow(*mr.session, mr.handle);
  row.fields.insert(row.fields.end(),
                    {{"pd", Text("0x%x", mr.pd->handle)},
                     {"key", Text("0x%x", mr.key)},
                     {"own_key", mr.has_own_key ? Text("0x%x", mr.own_key) : "-"},
                     {"addr", Text("0x%llx", static_cast<unsigned long long>(AddrOf(mr)))},
                     {"length", Number(mr.length)},
                     {"iova", Text("0x%llx", static_cast<unsigned long long>(mr.iova))},
                     {"access", AccessText(mr.access)},
                     {"state", StateOf(mr)},
                     {"backend", backend}});
  return row;
}

ShowRow MakeRow(const Dm& dm) {
  ShowRow row = OwnedRow(*dm.session, dm.handle);
  row.fields.insert(row.fields.end(), {{"length", Number(dm.length)}, {"mrs", Number(dm.users)}});
  return row;
}

ShowRow MakeRow(const Mw& mw) {
  ShowRow row = OwnedRow(*mw.pd->session, mw.handle);
  const bool is_bound = mw.IsBound();
  row.fields.insert(
      row.fields.end(),
      {{"pd", Text("0x%x", mw.pd->handle)},
       {"type", mw.is_type_2 ? "2B" : "1"},
       {"key", Text("0x%x", mw.key)},
       {"state", is_bound ? "bound" : "free"},
       {"mr", is_bound ? Text("0x%x", mw.mr->handle) : "-"},
       {"qpn", mw.qp != nullptr ? Number(mw.qp->qpn.value) : "-"},
       {"addr", is_bound ? Text("0x%llx", static_cast<unsigned long long>(mw.addr)) : "-"},
       {"length", is_bound ? Number(mw.length) : "-"},
       {"access", is_bound ? AccessText(mw.access) : "-"}});
  return row;
}

ShowRow MakeRow(const Cq& cq) {
  ShowRow row = OwnedRow(*cq.session, cq.handle);
  row.fields.insert(row.fields.end(),
                    {{"entries", Number(cq.ring.entries())},
                     {"unpolled", Number(cq.ring.Unpolled())},
                     {"written", Number(cq.ring.producer_index())},
                     {"channel", cq.channel == nullptr ? "-" : Text("0x%x", cq.channel->handle)},
                     {"vector", Number(cq.comp_vector)},
                     {"qps", Number(cq.users)},
                     {"state", cq.is_in_error ? "error" : "ok"}});
  return row;
}

uint64_t PostedTo(const Srq& srq) {
  return srq.ring.Waiting() + (srq.marked != nullptr ? srq.marked->size() : 0);
}

ShowRow MakeRow(const Srq& srq) {
  ShowRow row = OwnedRow(*srq.session, srq.handle);
  row.fields.insert(row.fields.end(), {{"srqn", Number(srq.srqn)},
                                       {"pd", Text("0x%x", srq.pd->handle)},
                                       {"max_wr", Number(srq.max_wr)},
                                       {"max_sge", Number(srq.max_sge)},
                                       {"posted", Number(PostedTo(srq))},
                                       {"limit", Number(srq.limit)},
                                       {"qps", Number(srq.users)},
                                       {"state", srq.is_in_error ? "error" : "ok"}});
  return row;
}

ShowRow MakeRow(const Ah& ah) {
  ShowRow row = OwnedRow(*ah.session, ah.handle);
  row.fields.insert(row.fields.end(), {{"pd", Text("0x%x", ah.pd->handle)},
                                       {"sgid", GidText(ah.path.sgid)},
                                       {"dgid", GidText(ah.path.dgid)}});
  return row;
}

ShowRow MakeRow(const Channel& channel) {
  ShowRow row = OwnedRow(*channel.session, channel.handle);
  row.fields.insert(row.fields.end(), {{"cqs", Number(channel.users)},
                                       {"undelivered", Number(channel.undelivered.size())}});
  return row;
}

std::string RingText(const WorkQueueConsumer& ring, uint32_t max_wr) {
  return Text("%u+%u/%u", ring.Waiting(), ring.fetch_index() - ring.release_index(), max_wr);
}

// "10.0.0.2:4000"
std::string AddressText(const Place& place, uint32_t number) {
  const Sources::Source* source = place.sources.Find(number);
  if (source == nullptr) return "-";
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(source->address.family, source->address.addr, text, sizeof(text));
  return Text(source->address.family == AF_INET ? "%s:%u" : "[%s]:%u", text,
              ntohs(source->address.port));
}

ShowRow MakeRow(const Place& place) {
  ShowRow row = OwnedRow(*place.session, place.handle);
  row.fields.insert(row.fields.end(), {{"pd", Text("0x%x", place.pd->handle)},
                                       {"srq", Text("0x%x", place.srq->handle)},
                                       {"cq", CqText(*place.cq)},
                                       {"access", AccessText(place.access_flags)},
                                       {"lanes", Number(place.lanes.size())},
                                       {"lanes_max", Number(place.lanes_max)},
                                       {"sources", Number(place.sources.size())}});
  return row;
}

ShowRow MakeRow(const DeviceQp& qp) {
  const transport::QpTransport& transport = *qp.transport;
  const transport::QpCounters& counters = transport.counters();
  bool has_peer = qp.IsConnectedService() && transport.state() >= QpState::kRtr;
  ShowRow row = OwnedRow(*qp.session, qp.handle);
  row.fields.insert(
      row.fields.end(),
      {{"qpn", Number(qp.qpn.value)},
       {"service", ServiceName(qp.service())},
       {"state", QpStateName(transport.state())},
       {"remote_qpn", has_peer ? Number(transport.remote_qpn().value) : "-"},
       {"remote_gid", has_peer ? GidText(transport.path().dgid) : "-"},
       {"pd", Text("0x%x", qp.pd->handle)},
       {"send_cq", CqText(*qp.send_cq)},
       {"recv_cq", CqText(*qp.recv_cq)},
       {"srq", qp.srq == nullptr ? "-" : Text("0x%x", qp.srq->handle)},
       {"place", qp.place == nullptr ? "-" : Text("0x%x", qp.place->handle)},
       {"source", qp.place == nullptr ? "-" : AddressText(*qp.place, qp.source)},
       {"sq", qp.place != nullptr ? "-" : RingText(qp.send_ring, qp.config.max_send_wr)},
       {"rq", qp.srq != nullptr ? "-" : RingText(qp.recv_ring, qp.config.max_recv_wr)},
       {"waiting", Number(qp.waiting.size())},
       {"duplicate_request", Number(counters.duplicate_request)},
       {"out_of_seq_request", Number(counters.out_of_seq_request)},
       {"rcvd_seq_err", Number(counters.rcvd_seq_err)},
       {"local_ack_timeout_err", Number(counters.local_ack_timeout_err)},
       {"rcvd_rnr_err", Number(counters.rcvd_rnr_err)},
       {"send_rnr_err", Number(counters.send_rnr_err)},
       {"retry_exceeded_err", Number(counters.retry_exceeded_err)},
       {"retry_rnr_exceeded_err", Number(counters.retry_rnr_exceeded_err)},
       {"out_of_buffer", Number(counters.out_of_buffer)},
       {"qkey_violation", Number(counters.qkey_violation)},
       {"access_disabled", Number(counters.access_disabled)}});
  return row;
}

ShowRow MakeRow(const Session& session) {
  ShowRow row;
  row.fields = {{"session", Number(session.id)},
                {"nic", session.nic->name()},
                {"program", session.program},
                {"pid", std::to_string(session.pid)},
                {"state", session.is_closing ? "closing" : "open"},
                {"pds", Number(session.pds.size())},
                {"mrs", Number(session.mrs.size())},
                {"cqs", Number(session.cqs.size())},
                {"qps", Number(session.qps.size())},
                {"srqs", Number(session.srqs.size())},
                {"ahs", Number(session.ahs.size())},
                {"channels", Number(session.channels.size())},
                {"mws", Number(session.mws.size())}};
  return row;
}

}  // namespace

void DeviceCore::ShowCommands(std::vector<ShowRow>* rows) const {
  for (const PastCommand& past : history_) {
    ShowRow row;
    Instant end = past.is_done ? past.ended : now_;
    row.fields = {{"session", Number(past.session)},
                  {"program", past.program},
                  {"command", shm::CommandOpName(past.op)},
                  {"state", past.is_done ? "done" : "waiting for DMA"},
                  {"errno", std::to_string(past.error)},
                  {"took_ns", std::to_string((end - past.began).ns)}};
    rows->push_back(std::move(row));
  }
}

void DeviceCore::ShowObjects(const Session& session, ShowKind kind,
                             std::vector<ShowRow>* rows) const {
  auto add = [rows](const auto& object) { rows->push_back(MakeRow(object)); };
  switch (kind) {
    case ShowKind::kCommand:
      break;
    case ShowKind::kSession:
      add(session);
      break;
    case ShowKind::kPd:
      session.pds.ForEach([&](const Pd& pd) {
        if (pd.session == &session) add(pd);
      });
      break;
    case ShowKind::kMr:
      session.mrs.ForEach([&](const Mr& mr) {
        if (mr.session == &session) rows->push_back(MakeRow(mr, dma_->BackendName(mr.memory)));
      });
      break;
    case ShowKind::kCq:
      session.cqs.ForEach(add);
      break;
    case ShowKind::kQp:
      session.qps.ForEach(add);
      session.lanes.ForEach(add);
      break;
    case ShowKind::kSrq:
      session.srqs.ForEach(add);
      break;
    case ShowKind::kAh:
      session.ahs.ForEach(add);
      break;
    case ShowKind::kChannel:
      session.channels.ForEach(add);
      break;
    case ShowKind::kMw:
      session.mws.ForEach(add);
      break;
    case ShowKind::kDm:
      session.dms.ForEach(add);
      break;
    case ShowKind::kPlace:
      session.places.ForEach(add);
      break;
  }
}

std::vector<ShowRow> DeviceCore::Show(ShowKind kind) const {
  std::vector<ShowRow> rows;
  if (kind == ShowKind::kCommand) {
    ShowCommands(&rows);
    return rows;
  }
  for (const auto& [id, session] : sessions_) ShowObjects(*session, kind, &rows);
  return rows;
}

}  // namespace verbena::softnic
