#include "softnic/control/admin.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <cstring>
#include <functional>
#include <iterator>
#include <utility>

#include "core/clock/monotonic_clock.h"
#include "softnic/control/cm_front.h"
#include "softnic/control/networks.h"

namespace verbena::softnic {

namespace asio = boost::asio;
namespace json = boost::json;
using boost::system::error_code;

namespace {

constexpr size_t kRequestBytesMax = 64 * 1024;  // a long list of fault rules
constexpr size_t kPacketBytes = 32 * 1024;
// For the request to come and for each packet of the reply to go.
constexpr auto kPeerDeadline = std::chrono::seconds(10);

struct StatusSnapshot {
  std::vector<NicStatus> nics;
  DeviceStats stats;
  uint64_t dma_operations = 0;
  uint64_t dma_units = 0;
  uint64_t dma_queued_most = 0;
  uint64_t dma_process_bytes = 0;
  uint64_t dma_mapped_bytes = 0;
  uint64_t dma_assisted_bytes = 0;
  uint64_t slow_processes = 0;
};

std::string GidText(const uint8_t raw[16]) {
  char text[INET6_ADDRSTRLEN];
  return inet_ntop(AF_INET6, raw, text, sizeof(text)) == nullptr ? "" : text;
}

// Pairs of a name and a counter.
json::object CountersOf(const NicStatus& nic) {
  const WireCounters& w = nic.wire;
  const transport::PortCounters& p = nic.port;
  json::object counters = {{"tx_packets", w.tx_packets},
                           {"tx_bytes", w.tx_bytes},
                           {"tx_batches", p.sent_batches},
                           {"tx_dropped", w.tx_dropped},
                           {"tx_errors", p.send_errors},
                           {"rx_packets", w.rx_packets},
                           {"rx_bytes", w.rx_bytes},
                           {"rx_batches", p.received_batches},
                           {"rx_malformed", w.rx_malformed},
                           {"rx_icrc_errors", w.rx_icrc_errors},
                           {"rx_bad_pkey", w.rx_bad_pkey},
                           {"rx_no_qp", w.rx_no_qp},
                           {"rx_wrong_peer", w.rx_wrong_peer},
                           {"rx_dropped", w.rx_dropped},
                           {"rx_socket_drops", p.receive_drops}};
  for (size_t i = 0; i < transport::kPortErrors; ++i) {
    const auto kind = static_cast<transport::PortError>(i);
    counters[transport::TextOf(kind).counter] = p.errors[kind];
  }
  return counters;
}

json::object RefusedOf(const NicStatus& nic) {
  json::object refused;
  for (size_t i = 0; i < std::size(kRefusalNames); ++i) {
    refused[kRefusalNames[i].name] = nic.refusals.At(i);
  }
  refused["qkey"] = nic.qkey_violations;
  return refused;
}

json::object NicObject(const NicStatus& nic, const transport::NetworkNamespaces& namespaces) {
  char ipv4[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, nic.info.ipv4, ipv4, sizeof(ipv4));
  json::object object;
  object["name"] = std::string(nic.info.name, strnlen(nic.info.name, sizeof(nic.info.name)));
  for (size_t i = 0; i < nic.gids.size(); ++i) {
    if (!nic.gids[i].IsZero()) object["gid" + std::to_string(i)] = GidText(nic.gids[i].raw.data());
  }
  object["ipv4"] = ipv4;
  object["state"] = nic.is_up ? "active" : "down";
  object["ports"] = nic.info.ports;
  object["mtu"] = nic.active_mtu_bytes;
  object["network"] = nic.network.empty() ? "instance" : "udp, " + nic.network;
  if (nic.netns != 0) object["netns"] = namespaces.Of(nic.netns)->name();
  object["refused"] = RefusedOf(nic);
  if (!nic.network.empty()) object["wire"] = CountersOf(nic);
  return object;
}

json::array NicArray(const std::vector<NicStatus>& nics,
                     const transport::NetworkNamespaces& namespaces) {
  json::array array;
  for (const NicStatus& nic : nics) array.push_back(NicObject(nic, namespaces));
  return array;
}

json::object ObjectCounts(const DeviceStats& stats) {
  json::object o;
  o["pd"] = stats.pds;
  o["mr"] = stats.mrs;
  o["cq"] = stats.cqs;
  o["qp"] = stats.qps;
  o["srq"] = stats.srqs;
  o["ah"] = stats.ahs;
  o["channel"] = stats.channels;
  o["mw"] = stats.mws;
  return o;
}

json::object CmObject(const CmCounters& c) {
  return {{"cm_sessions", c.sessions},
          {"cm_channels", c.channels},
          {"cm_ids", c.ids},
          {"communications", c.communications},
          {"events_waiting", c.events_waiting},
          {"cm_requests", c.requests},
          {"cm_requests_refused", c.requests_refused},
          {"backlog_drops", c.backlog_drops},
          {"mads_sent", c.mads_sent},
          {"mads_received", c.mads_received},
          {"mads_refused", c.mads_refused},
          {"mad_retries", c.mad_retries},
          {"mad_duplicates", c.mad_duplicates}};
}

double CpuSeconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

// A member that is a string; empty if it is none.
std::string TextOf(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

// A member that is a number; 0 if it is none.
uint32_t NumberOf(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  error_code bad;
  const uint32_t number = value == nullptr ? 0 : value->to_number<uint32_t>(bad);
  return bad ? 0 : number;
}

bool ParseTarget(const std::string& name, EventTarget::Kind* out) {
  static const std::pair<const char*, EventTarget::Kind> kKinds[] = {
      {"port", EventTarget::Kind::kPort},
      {"qp", EventTarget::Kind::kQp},
      {"cq", EventTarget::Kind::kCq},
      {"srq", EventTarget::Kind::kSrq},
  };
  for (const auto& [text, kind] : kKinds) {
    if (name != text) continue;
    *out = kind;
    return true;
  }
  return false;
}

constexpr char kNoNetwork[] =
    "no NIC of this instance has a network, so there are no packets; "
    "start it with --wire or --nic";

std::string RowsText(const std::vector<ShowRow>& rows) {
  json::array array;
  array.reserve(rows.size());
  for (const ShowRow& row : rows) {
    json::object o;
    for (const auto& [name, value] : row.fields) o[name] = value;
    array.push_back(std::move(o));
  }
  return json::serialize(json::object{{"rows", std::move(array)}});
}

bool ParseKind(const std::string& name, ShowKind* out) {
  static const std::pair<const char*, ShowKind> kKinds[] = {
      {"cmd", ShowKind::kCommand}, {"session", ShowKind::kSession}, {"pd", ShowKind::kPd},
      {"mr", ShowKind::kMr},       {"cq", ShowKind::kCq},           {"qp", ShowKind::kQp},
      {"srq", ShowKind::kSrq},     {"ah", ShowKind::kAh},           {"channel", ShowKind::kChannel},
      {"mw", ShowKind::kMw},       {"dm", ShowKind::kDm},           {"place", ShowKind::kPlace},
  };
  for (const auto& [text, kind] : kKinds) {
    if (name != text) continue;
    *out = kind;
    return true;
  }
  return false;
}

}  // namespace

AdminConnection::AdminConnection(ControlServer* server, asio::posix::stream_descriptor socket)
    : server_(server), socket_(std::move(socket)), deadline_(server->io()) {
  server_->AddRequest();
}

AdminConnection::~AdminConnection() {
  server_->DropRequest();
  if (is_holding_) server_->DropHold();
}

void AdminConnection::Start() {
  deadline_.expires_after(kPeerDeadline);
  deadline_.async_wait([self = shared_from_this()](error_code error) {
    if (!error && !self->is_holding_) self->Finish();
  });
  socket_.async_wait(
      asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](error_code error) {
        if (error) return self->Finish();
        std::string text(kRequestBytesMax, '\0');
        ssize_t n =
            recv(self->socket_.native_handle(), text.data(), text.size(), MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return self->Start();
        if (n <= 0) return self->Finish();
        if (static_cast<size_t>(n) > text.size()) return self->Error("the request is too long");
        text.resize(static_cast<size_t>(n));
        self->OnRequest(text);
      });
}

void AdminConnection::OnRequest(const std::string& text) {
  error_code error;
  json::value value = json::parse(text, error);
  if (error || !value.is_object()) return Error("the request is no JSON object");
  const json::object& request = value.get_object();
  const json::value* op_value = request.if_contains("op");
  if (op_value == nullptr || !op_value->is_string()) return Error("the request names no \"op\"");
  std::string op(op_value->get_string());
  if (op == "status") return Status();
  if (op == "flags") {
    const std::vector<std::string>& flags = server_->config().flags;
    return Reply(json::serialize(json::object{{"flags", json::array(flags.begin(), flags.end())}}));
  }
  if (op == "devices") {
    return AskLeader<std::vector<NicStatus>>(
        [device = server_->device()] { return device->ListNicStatuses(); },
        [server = server_](std::vector<NicStatus> nics) {
          return json::serialize(json::object{{"nics", NicArray(nics, server->namespaces())}});
        });
  }
  if (op == "show") return Show(TextOf(request, "kind"));
  if (op == "add-nics") {
    const json::value* total = request.if_contains("total");
    error_code bad;
    uint32_t count = total == nullptr ? 0 : total->to_number<uint32_t>(bad);
    if (bad || count == 0 || count > shm::kMaxNics) {
      return Error("\"total\" must be a number from 1 to " + std::to_string(shm::kMaxNics));
    }
    return AddNics(count);
  }
  if (op == "faults") return Faults(TextOf(request, "action"), TextOf(request, "rules"));
  if (op == "capture" || op == "trace") {
    const json::value* limit = request.if_contains("limit_bytes");
    error_code bad;
    uint64_t limit_bytes = limit == nullptr ? 0 : limit->to_number<uint64_t>(bad);
    if (bad) return Error("\"limit_bytes\" must be a number");
    return Record(op == "trace" ? RecordingKind::kTrace : RecordingKind::kCapture,
                  TextOf(request, "action"), TextOf(request, "file"), limit_bytes);
  }
  if (op == "event") {
    EventTarget target;
    target.nic = TextOf(request, "nic");
    target.number = NumberOf(request, "number");
    target.session = NumberOf(request, "session");
    if (!ParseTarget(TextOf(request, "kind"), &target.kind)) {
      return Error("\"kind\" must be port, qp, cq or srq");
    }
    return Event(TextOf(request, "event"), std::move(target));
  }
  if (op == "down") return Down();
  if (op == "hold") return Hold();
  Error("unknown op \"" + op + "\"");
}

template <typename Result>
void AdminConnection::AskLeader(std::function<Result()> work,
                                std::function<std::string(Result)> render) {
  auto self = shared_from_this();
  server_->shard()->Post(
      [self = std::move(self), work = std::move(work), render = std::move(render)]() mutable {
        auto result = std::make_shared<Result>(work());
        ControlServer* server = self->server_;
        // The leader gives its reference away: sockets and timers end on the control thread.
        asio::post(server->io(), [self = std::move(self), result, render = std::move(render)] {
          self->Reply(render(std::move(*result)));
        });
      });
}

void AdminConnection::Status() {
  ControlServer* server = server_;
  AskLeader<StatusSnapshot>(
      [server] {
        StatusSnapshot s;
        s.nics = server->device()->ListNicStatuses();
        s.stats = server->device()->Stats();
        s.dma_operations = server->dma()->operations();
        s.dma_units = server->dma()->units();
        s.dma_queued_most = server->dma()->queued_most();
        s.dma_process_bytes = server->dma()->process_bytes();
        s.dma_mapped_bytes = server->dma()->mapped_bytes();
        s.dma_assisted_bytes = server->dma()->assisted_bytes();
        s.slow_processes = server->dma()->slow_processes();
        return s;
      },
      [server](StatusSnapshot s) {
        ShardCounters counters = server->shard()->counters();
        double uptime_s = server->uptime_s();
        double cpu_pct = uptime_s > 0 ? 100 * CpuSeconds() / uptime_s : 0;
        json::object o;
        o["pid"] = static_cast<int64_t>(getpid());
        o["version"] = server->config().version;
        o["directory"] = server->config().directory;
        o["uptime_s"] = uptime_s;
        o["nics"] = NicArray(s.nics, server->namespaces());
        o["sessions"] = s.stats.sessions;
        o["objects"] = ObjectCounts(s.stats);
        o["engine"] = json::object{{"turns", counters.turns},
                                   {"sleeps", counters.sleeps},
                                   {"wakeups", counters.wakeups},
                                   {"spins", counters.spins},
                                   {"short_spins", counters.short_spins},
                                   {"yields", counters.yields},
                                   {"late_yields", counters.late_yields},
                                   {"thread_rings", counters.thread_rings},
                                   {"takeovers", counters.takeovers},
                                   {"cpu_pct", cpu_pct},
                                   {"send_wqes", s.stats.send_wqes},
                                   {"pdus", s.stats.pdus},
                                   {"payload_bytes", s.stats.payload_bytes},
                                   {"commands", s.stats.commands}};
        o["dma"] = json::object{{"process_bytes", s.dma_process_bytes},
                                {"mapped_bytes", s.dma_mapped_bytes},
                                {"assisted_bytes", s.dma_assisted_bytes},
                                {"operations", s.dma_operations},
                                {"units", s.dma_units},
                                {"queued_most", s.dma_queued_most},
                                {"slow_processes", s.slow_processes}};
        o["cm"] = CmObject(server->CountCm());
        o["hostile_acts"] = s.stats.hostile_acts;
        o["refused_connections"] = server->refused();
        return json::serialize(o);
      });
}

void AdminConnection::Show(const std::string& kind_name) {
  if (kind_name == "cm") return Reply(RowsText(server_->ShowCm()));
  ShowKind kind;
  if (!ParseKind(kind_name, &kind)) {
    return Error(
        "\"kind\" must be one of cmd, session, pd, mr, cq, qp, srq, ah, channel, mw, dm, cm");
  }
  AskLeader<std::vector<ShowRow>>([device = server_->device(), kind] { return device->Show(kind); },
                                  RowsText);
}

void AdminConnection::AddNics(uint32_t total) {
  ControlServer* server = server_;
  AskLeader<std::vector<NicStatus>>(
      [server, total] {
        for (;;) {
          std::vector<NicStatus> nics = server->device()->ListNicStatuses();
          if (nics.size() >= total) return nics;
          server->device()->AddNic(MakeNicConfig(server->config().name_prefix,
                                                 static_cast<uint32_t>(nics.size()),
                                                 server->config().mtu_bytes));
        }
      },
      [server](std::vector<NicStatus> nics) {
        server->ShowPaths(nics);  // before whoever waits for the NICs
        return json::serialize(
            json::object{{"ok", true}, {"nics", NicArray(nics, server->namespaces())}});
      });
}

// "set" replaces the rules, "report" tells what they did.
void AdminConnection::Faults(const std::string& action, const std::string& text) {
  NetworkTaps* taps = server_->taps();
  if (taps == nullptr) return Error(kNoNetwork);
  transport::tap::FaultRules rules;
  bool replaces = action == "set";
  if (!replaces && action != "report") return Error("\"action\" must be set or report");
  std::string error;
  if (replaces && !ParseFaultRules(text, &rules, &error)) return Error(error);
  struct Result {
    std::string report;
    std::vector<std::string> unfired;
  };
  AskLeader<Result>(
      [taps, replaces, rules = std::move(rules)] {
        if (replaces) taps->SetFaults(ReadMonotonicClock(), rules);
        return Result{taps->FaultReport(), taps->UnfiredRules()};
      },
      [](Result result) {
        json::array unfired(result.unfired.begin(), result.unfired.end());
        return json::serialize(
            json::object{{"ok", true}, {"report", result.report}, {"unfired", std::move(unfired)}});
      });
}

// "start", "stop" or "status".
void AdminConnection::Record(RecordingKind kind, const std::string& action, const std::string& path,
                             uint64_t limit_bytes) {
  NetworkTaps* taps = server_->taps();
  if (taps == nullptr) return Error(kNoNetwork);
  if (action != "start" && action != "stop" && action != "status") {
    return Error("\"action\" must be start, stop or status");
  }
  auto fd = std::make_shared<UniqueFd>();
  if (action == "start") {
    std::string error = OpenRecordingFile(path, fd.get());
    if (!error.empty()) return Error(error);
  }
  AskLeader<RecordingStatus>(
      [taps, kind, action, fd, limit_bytes] {
        if (action == "start") {
          taps->StartRecording(kind, ReadMonotonicClock(), fd->Release(), limit_bytes);
        }
        return action == "stop" ? taps->StopRecording(kind) : taps->StatusOf(kind);
      },
      [](RecordingStatus status) {
        return json::serialize(json::object{{"ok", true},
                                            {"running", status.is_running},
                                            {"failure", status.error},
                                            {"packets", status.packets},
                                            {"missed_packets", status.missed_packets},
                                            {"written_bytes", status.written_bytes}});
      });
}

void AdminConnection::Event(const std::string& event, EventTarget target) {
  struct Result {
    uint32_t told = 0;
    std::string error;
  };
  AskLeader<Result>(
      [device = server_->device(), event, target = std::move(target)] {
        Result result;
        result.told = device->InjectEvent(ReadMonotonicClock(), event, target, &result.error);
        return result;
      },
      [](Result result) {
        return json::serialize(result.error.empty()
                                   ? json::object{{"ok", true}, {"told", result.told}}
                                   : json::object{{"error", result.error}});
      });
}

void AdminConnection::Down() {
  is_stop_wanted_ = true;
  Reply(json::serialize(json::object{{"ok", true}}));
}

void AdminConnection::Hold() {
  is_holding_ = true;
  server_->AddHold();
  Reply(json::serialize(json::object{{"ok", true}}));
}

void AdminConnection::Error(const std::string& text) {
  Reply(json::serialize(json::object{{"error", text}}));
}

void AdminConnection::Reply(std::string text) {
  reply_ = std::move(text);
  sent_ = 0;
  deadline_.cancel();
  SendMore();
}

void AdminConnection::SendMore() {
  while (sent_ < reply_.size()) {
    size_t n = std::min(kPacketBytes, reply_.size() - sent_);
    int error = SendWithFds(socket_.native_handle(), reply_.data() + sent_, n, nullptr, 0);
    if (error == 0) {
      sent_ += n;
      continue;
    }
    if (error != EAGAIN) return Finish();
    // A reader that takes nothing for long enough is left alone with what it has.
    deadline_.expires_after(kPeerDeadline);
    deadline_.async_wait([self = shared_from_this()](error_code timer_error) {
      if (!timer_error) self->Finish();
    });
    socket_.async_wait(asio::posix::stream_descriptor::wait_write,
                       [self = shared_from_this()](error_code wait_error) {
                         if (wait_error) return;
                         self->deadline_.cancel();
                         self->SendMore();
                       });
    return;
  }
  if (!is_holding_) return Finish();
  // Held for as long as the peer keeps the connection open.
  socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this()](error_code) { self->Finish(); });
}

void AdminConnection::Finish() {
  error_code ignored;
  deadline_.cancel(ignored);
  socket_.close(ignored);
  if (std::exchange(is_stop_wanted_, false)) server_->Stop();
}

}  // namespace verbena::softnic
