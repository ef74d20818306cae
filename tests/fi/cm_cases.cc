// fi_cm(3), fi_eq(3), fi_endpoint(3): connections, event queues, states and shared receive
// contexts.
#include <netinet/in.h>
#include <poll.h>
#include <string.h>

#include <thread>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

// An active endpoint, enabled, and what it wants to tell.
struct Caller {
  explicit Caller(const Wish& wish = {}) : peer(wish) { peer.Start(); }
  Peer peer;
};

bool Equals(const std::vector<uint8_t>& got, const char* text) {
  // Transports may pad what they carry.
  return got.size() >= strlen(text) && memcmp(got.data(), text, strlen(text)) == 0;
}

FI_CASE("cm.data_both_ways", kMsg) {
  const Listener listener;
  Caller caller;
  Peer server({});
  Need(fi_connect(caller.peer.ep, listener.address.data(), "hello there", 11), "fi_connect");
  const Event request = AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's");
  Expect(Equals(request.data, "hello there"), "the request carries %zu B of other data",
         request.data.size());
  Expect(request.fid == listener.pep.Base() && request.info->handle != nullptr,
         "the request's fid or handle");
  server.request.reset(request.info);
  server.Start();
  Need(fi_accept(server.ep, "general", 7), "fi_accept");
  const Event connected = AwaitEvent(*caller.peer.eq, FI_CONNECTED, "the active side's");
  Expect(Equals(connected.data, "general"), "FI_CONNECTED carries %zu B of other data",
         connected.data.size());
  Expect(connected.fid == caller.peer.ep.Base(), "of another endpoint");
  AwaitEvent(*server.eq, FI_CONNECTED, "the passive side's");
  size_t length = 0;
  uint8_t address[512];
  length = sizeof(address);
  Need(fi_getpeer(server.ep, address, &length), "fi_getpeer");
  Expect(length > 0, "no address of the peer");
}

FI_CASE("cm.reject_with_data", kMsg) {
  const Listener listener;
  Caller caller;
  Need(fi_connect(caller.peer.ep, listener.address.data(), nullptr, 0), "fi_connect");
  const Event request = AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's");
  const Info asks(request.info);
  Need(fi_reject(listener.pep, asks->handle, "go away", 7), "fi_reject");
  const Event told = NextEvent(*caller.peer.eq);
  Expect(told.error == FI_ECONNREFUSED, "%s", NameOf(told.error).c_str());
  Expect(told.fid == caller.peer.ep.Base(), "of another endpoint");
  Expect(Equals(told.data, "go away"), "err_data of %zu B", told.data.size());
}

// Who fails with the endpoint that he made for a request may still refuse the request.
FI_CASE("cm.reject_after_endpoint", kMsg) {
  const Listener listener;
  Caller caller;
  Need(fi_connect(caller.peer.ep, listener.address.data(), nullptr, 0), "fi_connect");
  Peer server({});
  server.request.reset(AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's").info);
  server.OpenEndpoint();
  Need(fi_ep_bind(server.ep, server.eq->Base(), 0), "fi_ep_bind EQ");
  ExpectError(fi_enable(server.ep), -FI_ENOCQ, "fi_enable without a CQ");
  Need(fi_reject(listener.pep, server.request->handle, "go away", 7), "fi_reject");
  Expect(fi_accept(server.ep, nullptr, 0) < 0, "fi_accept of what was rejected");
  Need(server.ep.Close(), "fi_close of the endpoint");
  const Event told = NextEvent(*caller.peer.eq);
  Expect(told.error == FI_ECONNREFUSED, "%s", NameOf(told.error).c_str());
  Expect(Equals(told.data, "go away"), "err_data of %zu B", told.data.size());
}

FI_CASE("cm.nobody_listens", kMsg) {
  std::vector<uint8_t> address;
  {
    const Listener listener;
    address = listener.address;
  }
  Caller caller;
  const int result = fi_connect(caller.peer.ep, address.data(), nullptr, 0);
  if (result == 0) {
    const Event told = NextEvent(*caller.peer.eq);
    Expect(told.error != 0, "no error event: %s", NameOf(told.result).c_str());
    Expect(told.error == FI_ECONNREFUSED, "%s", NameOf(told.error).c_str());
  } else {
    ExpectError(result, -FI_ECONNREFUSED, "fi_connect");
  }
}

FI_CASE("cm.shutdown", kMsg) {
  Pair pair;
  Need(fi_shutdown(pair.a().ep, 0), "fi_shutdown");
  const Event told = AwaitEvent(*pair.b().eq, FI_SHUTDOWN, "the other side's");
  Expect(told.fid == pair.b().ep.Base(), "of another endpoint");
  Memory out(pair.b(), 64);
  const long result =
      fi_send(pair.b().ep, out.data(), 64, out.desc(), pair.b().other, ContextOf(1));
  if (result == 0) {
    AwaitError(pair.b().tx_cq, "a send after the shutdown");
  } else {
    Note("a send afterwards: %s", NameOf(result).c_str());
  }
}

FI_CASE("cm.shutdown_flushes_receives", kMsg) {
  Pair pair;
  Memory in(pair.b(), 64);
  Receive(pair.b(), in, 3);
  Need(fi_shutdown(pair.a().ep, 0), "fi_shutdown");
  AwaitEvent(*pair.b().eq, FI_SHUTDOWN, "the other side's");
  const auto got = AwaitAny(pair.b().rx_cq, 2000 * Patience());
  Expect(got && got->error != 0, "a posted receive is not flushed");
  Note("%s", NameOf(got->error).c_str());
}

FI_CASE("cm.close_is_a_shutdown", kMsg) {
  Pair pair;
  Need(pair.a().ep.Close(), "fi_close");
  AwaitEvent(*pair.b().eq, FI_SHUTDOWN, "the other side's");
}

FI_CASE("cm.data_size_option", kMsg) {
  Caller caller;
  size_t size = 0, length = sizeof(size);
  Need(fi_getopt(caller.peer.ep.Base(), FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, &length),
       "FI_OPT_CM_DATA_SIZE");
  Expect(size > 0, "0 B");
  const Listener listener;
  const std::vector<uint8_t> data(size, 7);
  Need(fi_connect(caller.peer.ep, listener.address.data(), data.data(), data.size()), "fi_connect");
  const Event asked = AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's");
  const Info request(asked.info);
  Expect(asked.data == data, "not all of it comes");
  Note("%zu B", size);
}

// fi_endpoint(3): an active endpoint acquires the address that a passive one has reserved.
FI_CASE("cm.endpoint_of_a_passive_one", kMsg) {
  const Listener listener;
  Peer peer({});
  Fid<fid_pep> pep;
  Need(fi_passive_ep(peer.fabric, peer.info.get(), pep.Out(), nullptr), "fi_passive_ep");
  Need(fi_pep_bind(pep, peer.eq->Base(), 0), "fi_pep_bind");
  std::vector<uint8_t> reserved(512), own(512);
  size_t length = reserved.size();
  Need(fi_getname(pep.Base(), reserved.data(), &length), "fi_getname");
  reserved.resize(length);
  peer.info->handle = pep.Base();
  peer.OpenEndpoint();
  peer.info->handle = nullptr;
  Need(pep.Close(), "fi_close of the passive endpoint");
  peer.Bind();
  peer.Enable();
  Need(fi_connect(peer.ep, listener.address.data(), nullptr, 0), "fi_connect");
  const Info request(AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's").info);
  length = own.size();
  Need(fi_getname(peer.ep.Base(), own.data(), &length), "fi_getname");
  own.resize(length);
  Expect(own == reserved, "it has another address than the passive endpoint had");
  Need(fi_reject(listener.pep, request->handle, nullptr, 0), "fi_reject");
}

FI_CASE("cm.many_from_one_listener", kMsg) {
  const Listener listener;
  std::vector<std::unique_ptr<Caller>> callers;
  std::vector<std::unique_ptr<Peer>> servers;
  for (int i = 0; i < 8; ++i) {
    callers.push_back(std::make_unique<Caller>());
    Need(fi_connect(callers[i]->peer.ep, listener.address.data(), nullptr, 0), "fi_connect");
  }
  for (int i = 0; i < 8; ++i) {
    const Event request = AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's");
    auto server = std::make_unique<Peer>(Wish{});
    server->request.reset(request.info);
    server->Start();
    Need(fi_accept(server->ep, nullptr, 0), "fi_accept");
    servers.push_back(std::move(server));
  }
  for (int i = 0; i < 8; ++i) {
    AwaitEvent(*callers[i]->peer.eq, FI_CONNECTED, "the active side's");
    AwaitEvent(*servers[i]->eq, FI_CONNECTED, "the passive side's");
  }
}

FI_CASE("cm.names", kMsg) {
  const Listener listener;
  Expect(listener.address.size() >= 2, "an address of %zu B", listener.address.size());
  size_t length = 1;
  uint8_t small[1];
  const int result = fi_getname(listener.pep.Base(), small, &length);
  ExpectError(result, -FI_ETOOSMALL, "fi_getname into 1 B");
  Expect(length == listener.address.size(), "needed: %zu", length);
}

FI_CASE("cm.reconnect_after_shutdown", kMsg) {
  { Pair pair; }
  Pair again;
  Memory out(again.a(), 64), in(again.b(), 64);
  Receive(again.b(), in);
  Send(again.a(), out);
  Await(again.b().rx_cq, "the receive");
}

FI_CASE("cm.listen_backlog", kMsg) {
  Info info = GetInfo({});
  Fid<fid_fabric> fabric;
  Need(fi_fabric(info->fabric_attr, fabric.Out(), nullptr), "fi_fabric");
  const Fid<fid_eq> eq = OpenEq(fabric);
  Fid<fid_pep> pep;
  Need(fi_passive_ep(fabric, info.get(), pep.Out(), nullptr), "fi_passive_ep");
  Need(fi_pep_bind(pep, eq.Base(), 0), "fi_pep_bind");
  int backlog = 4;
  Need(fi_control(pep.Base(), FI_BACKLOG, &backlog), "FI_BACKLOG");
  Need(fi_listen(pep), "fi_listen");
}

// --- event queues ------------------------------------------------------------------------------

FI_CASE("eq.write_and_read", kOnce) {
  Ground ground;
  const Fid<fid_eq> eq = OpenEq(ground.fabric, FI_WAIT_UNSPEC, FI_WRITE);
  fi_eq_entry out = {ground.domain.Base(), &out, 42}, in = {};
  Expect(fi_eq_write(eq, FI_NOTIFY, &out, sizeof(out), 0) == sizeof(out), "fi_eq_write");
  uint32_t event = 99;
  for (const uint64_t flags : {FI_PEEK, 0ULL}) {
    in = {};
    Expect(fi_eq_read(eq, &event, &in, sizeof(in), flags) == sizeof(in) && event == FI_NOTIFY &&
               in.context == &out && in.data == 42 && in.fid == out.fid,
           flags != 0 ? "FI_PEEK does not show what was written" : "another event");
  }
  ExpectError(fi_eq_read(eq, &event, &in, sizeof(in), 0), -FI_EAGAIN, "an empty EQ");
}

FI_CASE("eq.too_small_buffer", kOnce) {
  Ground ground;
  const Fid<fid_eq> eq = OpenEq(ground.fabric, FI_WAIT_UNSPEC, FI_WRITE);
  fi_eq_entry out = {};
  Expect(fi_eq_write(eq, FI_NOTIFY, &out, sizeof(out), 0) == sizeof(out), "fi_eq_write");
  uint32_t event = 0;
  ExpectError(fi_eq_read(eq, &event, &out, 4, 0), -FI_ETOOSMALL, "room for 4 B");
  Expect(fi_eq_read(eq, &event, &out, sizeof(out), 0) == sizeof(out), "the event has gone");
}

FI_CASE("eq.sread_timeout", kOnce) {
  Ground ground;
  const Fid<fid_eq> eq = OpenEq(ground.fabric);
  uint32_t event = 0;
  fi_eq_entry entry;
  const long begin_ms = NowMs();
  ExpectError(fi_eq_sread(eq, &event, &entry, sizeof(entry), 60, 0), -FI_EAGAIN, "fi_eq_sread");
  Expect(NowMs() - begin_ms >= 59, "back after %ld of 60 ms", NowMs() - begin_ms);
}

FI_CASE("eq.sread_wakes", kOnce) {
  Ground ground;
  const Fid<fid_eq> eq = OpenEq(ground.fabric, FI_WAIT_UNSPEC, FI_WRITE);
  fi_eq_entry out = {}, in = {};
  uint32_t event = 0;
  std::thread writer([&] { fi_eq_write(eq, FI_NOTIFY, &out, sizeof(out), 0); });
  const ssize_t got = fi_eq_sread(eq, &event, &in, sizeof(in), 4000, 0);
  writer.join();
  Expect(got == sizeof(in), "fi_eq_sread: %zd", got);
}

FI_CASE("eq.wait_fd", kOnce) {
  Ground ground;
  const Fid<fid_eq> eq = OpenEq(ground.fabric, FI_WAIT_FD, FI_WRITE);
  int fd = -1;
  Need(fi_control(eq.Base(), FI_GETWAIT, &fd), "FI_GETWAIT");
  pollfd readable = {fd, POLLIN, 0};
  Expect(poll(&readable, 1, 0) == 0, "readable without an event");
  fi_eq_entry out = {};
  Expect(fi_eq_write(eq, FI_NOTIFY, &out, sizeof(out), 0) == sizeof(out), "fi_eq_write");
  Expect(poll(&readable, 1, 1000) == 1, "not readable with an event");
}

FI_CASE("eq.readerr_of_nothing", kOnce) {
  Ground ground;
  const Fid<fid_eq> eq = OpenEq(ground.fabric);
  fi_eq_err_entry error = {};
  ExpectError(fi_eq_readerr(eq, &error, 0), -FI_EAGAIN, "an error that is not there");
}

// --- states of an endpoint ---------------------------------------------------------------------

FI_CASE("ep.needs_completion_queues", kAll) {
  Peer peer({});
  peer.OpenEndpoint();
  if (IsConnected()) {
    Need(fi_ep_bind(peer.ep, peer.eq->Base(), 0), "fi_ep_bind EQ");
  } else {
    Need(fi_ep_bind(peer.ep, peer.av.Base(), 0), "fi_ep_bind AV");
  }
  ExpectError(fi_enable(peer.ep), -FI_ENOCQ, "fi_enable without a CQ");
}

// At any address: a name that peers can be told, and messages by it.
FI_CASE("ep.wildcard_source", kAddressed) {
  Wish wish;
  wish.chosen = [](fi_info* info) {
    if (info->src_addrlen != sizeof(sockaddr_in)) DoesNotApply("no IPv4 addresses");
    sockaddr_in any = {};
    any.sin_family = AF_INET;
    memcpy(info->src_addr, &any, sizeof(any));
  };
  Pair pair(wish);
  sockaddr_in name;
  const std::vector<uint8_t> address = pair.b().Address();
  Expect(address.size() == sizeof(name), "a name of %zu B", address.size());
  memcpy(&name, address.data(), sizeof(name));
  Expect(name.sin_addr.s_addr != INADDR_ANY, "its name is any address");
  Memory out(pair.a(), 64), in(pair.b(), 64);
  Receive(pair.b(), in);
  Send(pair.a(), out);
  Await(pair.b().rx_cq, "the receive");
}

FI_CASE("ep.needs_an_address_vector", kAddressed) {
  Peer peer({});
  peer.OpenEndpoint();
  Need(fi_ep_bind(peer.ep, peer.tx_cq.Base(), FI_TRANSMIT), "fi_ep_bind CQ");
  Need(fi_ep_bind(peer.ep, peer.rx_cq.Base(), FI_RECV), "fi_ep_bind CQ");
  ExpectError(fi_enable(peer.ep), -FI_ENOAV, "fi_enable without an AV");
}

FI_CASE("ep.not_enabled", kAddressed) {
  Peer peer({});
  peer.OpenEndpoint();
  peer.Bind();
  Memory out(peer, 64);
  const long result = fi_send(peer.ep, out.data(), 64, out.desc(), 0, ContextOf(1));
  Expect(result < 0 && result != -FI_EAGAIN, "a send before fi_enable: %s", NameOf(result).c_str());
  Note("%s", NameOf(result).c_str());
}

FI_CASE("ep.bound_objects_of_another_domain", kAll) {
  Peer one({}), two({});
  one.OpenEndpoint();
  const int result = fi_ep_bind(one.ep, two.tx_cq.Base(), FI_TRANSMIT);
  Expect(result < 0, "a CQ of another domain is accepted");
  Note("%s", NameOf(result).c_str());
}

FI_CASE("ep.bind_without_flags", kAll) {
  Peer peer({});
  peer.OpenEndpoint();
  Expect(fi_ep_bind(peer.ep, peer.tx_cq.Base(), 0) < 0, "a CQ for no direction is accepted");
}

FI_CASE("ep.context", kAll) {
  Peer peer({});
  peer.OpenEndpoint();
  Expect(peer.ep->fid.context == &peer && peer.ep->fid.fclass == FI_CLASS_EP, "context or class");
}

FI_CASE("ep.default_op_flags", kAll) {
  Pair pair;
  uint64_t flags = FI_TRANSMIT;
  Need(fi_control(pair.a().ep.Base(), FI_GETOPSFLAG, &flags), "FI_GETOPSFLAG");
  flags |= FI_TRANSMIT | FI_COMPLETION;
  Need(fi_control(pair.a().ep.Base(), FI_SETOPSFLAG, &flags), "FI_SETOPSFLAG");
  flags = FI_TRANSMIT;
  Need(fi_control(pair.a().ep.Base(), FI_GETOPSFLAG, &flags), "FI_GETOPSFLAG");
  Expect((flags & FI_COMPLETION) != 0, "what was set is not there");
}

FI_CASE("ep.alias", kAll) {
  Pair pair;
  fid_ep* alias = nullptr;
  Need(fi_ep_alias(pair.a().ep, &alias, FI_TRANSMIT | FI_COMPLETION), "fi_ep_alias");
  Memory out(pair.a(), 64), in(pair.b(), 64);
  out.Fill(1);
  Receive(pair.b(), in);
  Need(Post([&] {
         return fi_send(alias, out.data(), 64, out.desc(), pair.a().other, ContextOf(1));
       }),
       "fi_send by the alias");
  Await(pair.b().rx_cq, "the receive");
  Await(pair.a().tx_cq, "the send");
  Need(fi_close(&alias->fid), "fi_close of the alias");
}

FI_CASE("ep.name", kAddressed) {
  Peer peer({});
  peer.Start();
  const auto address = peer.Address();
  Expect(!address.empty(), "no address");
  size_t length = 0;
  uint8_t small[1];
  ExpectError(fi_getname(peer.ep.Base(), small, &length), -FI_ETOOSMALL, "fi_getname into 0 B");
  Expect(length == address.size(), "needed: %zu of %zu", length, address.size());
}

// --- shared receive contexts -------------------------------------------------------------------

FI_CASE("srx.shared_by_two", kReliable) {
  Wish wish;
  wish.chosen = [](fi_info* info) { info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT; };
  // Both receiving ends are in one domain.
  const Listener* listener = IsConnected() ? new Listener(wish) : nullptr;
  Peer first(wish);
  Fid<fid_ep> srx;
  Need(fi_srx_context(first.domain, first.info->rx_attr, srx.Out(), nullptr), "fi_srx_context");
  std::vector<std::unique_ptr<Caller>> callers;
  std::vector<Fid<fid_ep>> eps(2);
  for (auto& ep : eps) {
    Info request;
    if (IsConnected()) {
      callers.push_back(std::make_unique<Caller>());
      Need(fi_connect(callers.back()->peer.ep, listener->address.data(), nullptr, 0), "fi_connect");
      request.reset(AwaitEvent(*listener->eq, FI_CONNREQ, "the listener's").info);
      request->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    }
    Need(fi_endpoint(first.domain, request ? request.get() : first.info.get(), ep.Out(), nullptr),
         "fi_endpoint");
    Need(fi_ep_bind(ep, IsConnected() ? first.eq->Base() : first.av.Base(), 0), "fi_ep_bind");
    Need(fi_ep_bind(ep, first.tx_cq.Base(), FI_TRANSMIT), "fi_ep_bind CQ");
    Need(fi_ep_bind(ep, first.rx_cq.Base(), FI_RECV), "fi_ep_bind CQ");
    Need(fi_ep_bind(ep, srx.Base(), 0), "fi_ep_bind shared receive context");
    Need(fi_enable(ep), "fi_enable");
    if (IsConnected()) {
      Need(fi_accept(ep, nullptr, 0), "fi_accept");
      AwaitEvent(*callers.back()->peer.eq, FI_CONNECTED, "the active side's");
    } else {
      callers.push_back(std::make_unique<Caller>());
      uint8_t address[512];
      size_t length = sizeof(address);
      Need(fi_getname(ep.Base(), address, &length), "fi_getname");
      Peer& from = callers.back()->peer;
      Expect(fi_av_insert(from.av, address, 1, &from.other, 0, nullptr) == 1, "fi_av_insert");
    }
  }
  Memory in(first, 2 * 64);
  for (int i = 0; i < 2; ++i) {
    Need(fi_recv(srx, in.data() + 64 * i, 64, in.desc(), FI_ADDR_UNSPEC, ContextOf(i)),
         "fi_recv of the shared context");
  }
  for (int i = 0; i < 2; ++i) {
    Memory out(callers[i]->peer, 64);
    out.Fill(i + 1);
    Send(callers[i]->peer, out, 7);
    Expect(Await(first.rx_cq, "a receive").context == ContextOf(i), "another's context");
    Expect(in.Has(i + 1, 64, 64 * i), "wrong bytes");
    Await(callers[i]->peer.tx_cq, "a send");
  }
  ExpectError(srx.Close(), -FI_EBUSY, "closing it under endpoints");
  callers.clear();
  eps.clear();
  Need(srx.Close(), "fi_close of the shared receive context");
  delete listener;
}

// --- shared transmit contexts
// -----------------------------------------------------------------------

// Another endpoint beside the pair's left one, to its right one or to one of its own.
struct Second {
  explicit Second(Pair& pair, fid_stx* stx);
  Fid<fid_ep> ep;
  std::unique_ptr<Peer> server;  // of a connection
  fi_addr_t to = FI_ADDR_UNSPEC;
  Peer& Target(Pair& pair) { return server ? *server : pair.b(); }
};

Second::Second(Pair& pair, fid_stx* stx) {
  Peer& a = pair.a();
  Need(fi_endpoint(a.domain, a.info.get(), ep.Out(), nullptr), "fi_endpoint");
  Need(fi_ep_bind(ep, IsConnected() ? a.eq->Base() : a.av.Base(), 0), "fi_ep_bind");
  Need(fi_ep_bind(ep, a.tx_cq.Base(), FI_TRANSMIT), "fi_ep_bind CQ");
  Need(fi_ep_bind(ep, a.rx_cq.Base(), FI_RECV), "fi_ep_bind CQ");
  Need(fi_ep_bind(ep, &stx->fid, 0), "fi_ep_bind shared transmit context");
  Need(fi_enable(ep), "fi_enable");
  to = a.other;
  if (!IsConnected()) return;
  const Listener listener;
  Need(fi_connect(ep, listener.address.data(), nullptr, 0), "fi_connect");
  server = std::make_unique<Peer>(Wish{});
  server->request.reset(AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's").info);
  server->Start();
  Need(fi_accept(server->ep, nullptr, 0), "fi_accept");
  AwaitEvent(*a.eq, FI_CONNECTED, "the active side's");
}

FI_CASE("stx.shared_by_two", kAll, 20) {
  Fid<fid_stx> stx;
  Wish shared;
  shared.hints = [](fi_info* hints) { hints->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT; };
  shared.unenabled = [&](Peer& peer) {
    Need(fi_stx_context(peer.domain, peer.info->tx_attr, stx.Out(), nullptr), "fi_stx_context");
    Need(fi_ep_bind(peer.ep, &stx->fid, 0), "fi_ep_bind shared transmit context");
  };
  Pair pair(shared, {});
  Second second(pair, stx);
  Memory out(pair.a(), 64), in(pair.b(), 64), other(second.Target(pair), 64);
  out.Fill(5);
  Receive(pair.b(), in);
  Send(pair.a(), out, 1);
  Await(pair.b().rx_cq, "what the first sent");
  Receive(second.Target(pair), other);
  Need(fi_send(second.ep, out.data(), 64, out.desc(), second.to, ContextOf(2)), "fi_send");
  Await(second.Target(pair).rx_cq, "what the second sent");
  Expect(in.Has(5, 64) && other.Has(5, 64), "wrong bytes");
  for (int i = 1; i <= 2; ++i) {
    Expect(Await(pair.a().tx_cq, "a send").context == ContextOf(i), "of another send");
  }
  ExpectError(stx.Close(), -FI_EBUSY, "closing it under endpoints");
  Need(second.ep.Close(), "fi_close");
  Need(pair.a().ep.Close(), "fi_close");
  Need(stx.Close(), "fi_close of the shared transmit context");
}

FI_CASE("stx.less_than_its_endpoint", kAll) {
  Wish wish;
  wish.hints = [](fi_info* hints) { hints->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT; };
  Peer peer(wish);
  peer.OpenEndpoint();
  fi_tx_attr attr = *peer.info->tx_attr;
  if (--attr.size == 0) DoesNotApply("its size is 1");
  Fid<fid_stx> stx;
  Need(fi_stx_context(peer.domain, &attr, stx.Out(), nullptr), "fi_stx_context");
  Expect(fi_ep_bind(peer.ep, &stx->fid, 0) < 0,
         "an endpoint of more than the context has is bound");
  Need(stx.Close(), "fi_close");
}

FI_CASE("srx.close", kReliable) {
  Ground ground;
  Fid<fid_ep> srx;
  Need(fi_srx_context(ground.domain, ground.info->rx_attr, srx.Out(), nullptr), "fi_srx_context");
  Need(srx.Close(), "fi_close");
}

}  // namespace
}  // namespace verbena::fi_test
