// fi_cm(3), fi_cq(3), fi_cntr(3), fi_eq(3): who waits while a connection ends or an operation
// fails.
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/fi/fabric.h"
#include "tests/fi/waiting.h"

namespace verbena::fi_test {
namespace {

constexpr uint64_t kNoKey = 0x7ffffff0;  // that no region has

// The other end of a connection, in a process of its own: accepts one, and stays.
void ServeOne(int socket) {
  const Listener listener;
  Tell(socket, listener.address.size());
  Tell(socket, listener.address.data(), listener.address.size());
  Wish wish;
  wish.caps = RmaCaps();
  Peer server(wish);
  const Event request = AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's");
  server.request.reset(request.info);
  server.Start();
  Need(fi_accept(server.ep, nullptr, 0), "fi_accept");
  AwaitEvent(*server.eq, FI_CONNECTED, "the passive side's");
  Tell(socket, 1);
  Hear<int>(socket);
}

// An endpoint that is connected to another process.
struct Connected {
  explicit Connected(const Wish& wish = {}) : other(ServeOne), peer(wish) {
    std::vector<uint8_t> address(Hear<size_t>(other.socket()));
    Hear(other.socket(), address.data(), address.size());
    peer.Start();
    Need(fi_connect(peer.ep, address.data(), nullptr, 0), "fi_connect");
    AwaitEvent(*peer.eq, FI_CONNECTED, "the active side's");
    Hear<int>(other.socket());
  }
  Other other;
  Peer peer;
};

FI_CASE("cm.peer_killed", kMsg) {
  Connected connected;
  connected.other.Kill(SIGKILL);
  const Event told = NextEvent(*connected.peer.eq);
  Expect(told.kind == FI_SHUTDOWN || told.error != 0, "nothing is told of a killed peer");
}

// Nobody reads the EQ: who sleeps on the CQ of a receive is to learn that nothing comes.
void SleepsUntilTheEnd(fi_wait_obj wait, const std::function<void(Connected&)>& end) {
  constexpr int kLimitMs = 4000;
  Connected connected(Waiting(wait));
  Peer& peer = connected.peer;
  Memory in(peer, 64);
  Receive(peer, in, 1);
  fi_cq_data_entry entry;
  long got = 0;
  if (wait == FI_WAIT_FD) {
    int fd = -1;
    Need(fi_control(&peer.rx_cq->fid, FI_GETWAIT, &fd), "FI_GETWAIT");
    fid* const waited = &peer.rx_cq->fid;
    const long limit_ms = NowMs() + kLimitMs;
    end(connected);
    while ((got = fi_cq_read(peer.rx_cq, &entry, 1)) == -FI_EAGAIN && NowMs() < limit_ms) {
      fid* object = waited;
      if (fi_trywait(peer.fabric, &object, 1) == 0 && !IsReadable(fd, kLimitMs)) break;
    }
  } else {
    std::thread ends([&] { end(connected); });
    got = fi_cq_sread(peer.rx_cq, &entry, 1, nullptr, kLimitMs);
    ends.join();
  }
  Expect(got == -FI_EAVAIL, "%s", NameOf(got).c_str());
  const Completion told = AwaitError(peer.rx_cq, "the receive");
  Expect(told.error == FI_ECANCELED, "%s", NameOf(told.error).c_str());
}
void KillPeer(Connected& connected) { connected.other.Kill(SIGKILL); }
void ShutDown(Connected& connected) { fi_shutdown(connected.peer.ep, 0); }

FI_CASE("cm.peer_killed_wakes_a_reader", kMsg, 20) { SleepsUntilTheEnd(FI_WAIT_UNSPEC, KillPeer); }
FI_CASE("cm.peer_killed_wakes_by_fd", kMsg, 20) { SleepsUntilTheEnd(FI_WAIT_FD, KillPeer); }
FI_CASE("cm.shutdown_wakes_a_reader", kMsg, 20) { SleepsUntilTheEnd(FI_WAIT_UNSPEC, ShutDown); }

// What the peer's program does, or does not, is no reason for silence on this side.
FI_CASE("cm.failure_is_told_at_once", kMsg) {
  Wish wish;
  wish.caps = RmaCaps();
  Connected connected(wish);
  Peer& peer = connected.peer;
  connected.other.Kill(SIGSTOP);
  Memory out(peer, 8), in(peer, 8);
  Receive(peer, in, 2);
  Need(Post([&] {
         return fi_write(peer.ep, out.data(), 8, out.desc(), peer.other, 0, kNoKey, ContextOf(1));
       }),
       "fi_write");
  const std::optional<Completion> failed = AwaitAny(peer.tx_cq);
  if (!failed.has_value()) DoesNotApply("the target's program has to take part in RMA");
  Expect(failed->error != 0, "a WRITE to a key that is none");
  const Event told = NextEvent(*peer.eq);
  Expect(told.kind == FI_SHUTDOWN || told.error != 0, "nothing is told of the connection's end");
  AwaitError(peer.rx_cq, "the receive");
}

// What waited for more to come is told as well, by the CQ of sends alone.
FI_CASE("cm.failure_flushes_more", kMsg) {
  constexpr int kRounds = 10;
  for (int i = 0; i < kRounds; ++i) {
    Wish wish;
    wish.caps = RmaCaps();
    Pair pair(wish);
    Peer& peer = pair.a();
    Memory out(peer, 8);
    const iovec iov = {out.data(), 8};
    void* desc = out.desc();
    const fi_rma_iov target = {0, 8, kNoKey};
    fi_msg_rma message = {};
    message.msg_iov = &iov;
    message.desc = &desc;
    message.iov_count = 1;
    message.addr = peer.other;
    message.rma_iov = &target;
    message.rma_iov_count = 1;
    message.context = ContextOf(1);
    Need(Post([&] { return fi_writemsg(peer.ep, &message, FI_COMPLETION); }), "fi_writemsg");
    message.context = ContextOf(2);
    int wanted = fi_writemsg(peer.ep, &message, FI_COMPLETION | FI_MORE) == 0 ? 2 : 1;
    const long limit_ms = NowMs() + 4000;
    while (wanted != 0 && NowMs() < limit_ms) {  // and without a look at anything else
      fi_cq_data_entry entry;
      fi_cq_err_entry error = {};
      if (fi_cq_read(peer.tx_cq, &entry, 1) == -FI_EAVAIL) {
        fi_cq_readerr(peer.tx_cq, &error, 0);
        --wanted;
      }
    }
    Expect(wanted == 0, "round %d: %d of the WRITEs never complete", i, wanted);
  }
}

// Closed by one thread, while another sleeps on the CQ that has the failure.
FI_CASE("cm.close_after_a_failure", kMsg, 60) {
  constexpr int kRounds = 3000;
  constexpr int kPauses = 50;  // of 12 us each: from "before it fails" to "after all is told"
  Wish wish = Waiting(FI_WAIT_FD);
  wish.caps = RmaCaps();
  wish.is_cq_shared = true;
  const Listener listener(wish);
  Peer peer(wish), other(wish);
  Memory in(peer, 64);
  std::atomic<bool> is_over = false;
  std::thread reader([&] {
    while (!is_over) {
      fi_cq_data_entry entry;
      fi_cq_err_entry error = {};
      if (fi_cq_sread(peer.tx_cq, &entry, 1, nullptr, 20) == -FI_EAVAIL) {
        fi_cq_readerr(peer.tx_cq, &error, 0);
      }
    }
  });
  int closed = 0;
  for (int i = 0; i < kRounds && closed == 0; ++i) {
    for (Peer* end : {&peer, &other}) {
      if (end == &other) {
        Need(fi_connect(peer.ep, listener.address.data(), nullptr, 0), "fi_connect");
        other.request.reset(AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's").info);
      }
      end->Start();
    }
    Need(fi_accept(other.ep, nullptr, 0), "fi_accept");
    for (Peer* end : {&peer, &other}) {
      // What the round before has left comes first.
      Expect(WaitUntil([&] { return NextEvent(*end->eq, 1000).kind == FI_CONNECTED; }),
             "no FI_CONNECTED");
    }
    for (int k = 0; k < 5; ++k) Receive(peer, in, k);
    fi_write(peer.ep, in.data(), 8, in.desc(), peer.other, 0, kNoKey, ContextOf(9));
    const timespec pause = {.tv_sec = 0, .tv_nsec = i % kPauses * 12'000};
    nanosleep(&pause, nullptr);
    closed = peer.ep.Close();
    if (closed == 0) closed = other.ep.Close();
  }
  is_over = true;
  reader.join();
  Need(closed, "fi_close");
}

FI_CASE("cm.accept_of_who_gave_up", kMsg) {
  const Listener listener;
  auto caller = std::make_unique<Peer>(Wish{});
  caller->Start();
  Need(fi_connect(caller->ep, listener.address.data(), nullptr, 0), "fi_connect");
  Peer server({});
  server.request.reset(AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's").info);
  server.Start();
  Need(caller->ep.Close(), "fi_close");
  const int result = fi_accept(server.ep, nullptr, 0);
  // Who is not told yet has an error or the end of a connection to come.
  if (result != 0) return ExpectError(result, -FI_ECONNABORTED, "fi_accept");
  Event told = NextEvent(*server.eq);
  if (told.kind == FI_CONNECTED) told = NextEvent(*server.eq);
  Expect(told.kind == FI_SHUTDOWN || told.error != 0, "nothing is told of a peer that gave up");
}

// An endpoint that a listener has refused, with these data: the error waits in its EQ.
struct Refused {
  explicit Refused(const std::string& data) {
    caller.Start();
    Need(fi_connect(caller.ep, listener.address.data(), nullptr, 0), "fi_connect");
    const Info asks(AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's").info);
    Need(fi_reject(listener.pep, asks->handle, data.data(), data.size()), "fi_reject");
  }
  Listener listener;
  Peer caller = Peer(Wish{});
};

FI_CASE("cm.connect_after_the_end", kMsg) {
  Refused refused("");
  Peer& caller = refused.caller;
  Expect(NextEvent(*caller.eq).error == FI_ECONNREFUSED, "no FI_ECONNREFUSED");
  const int again = fi_connect(caller.ep, refused.listener.address.data(), nullptr, 0);
  Expect(again < 0 && again != -FI_EISCONN, "%s", NameOf(again).c_str());
}

// The data of a rejection are the peer's, and no text.
FI_CASE("eq.strerror_of_data", kMsg) {
  Refused refused(std::string(24, 'X'));
  Peer& caller = refused.caller;
  fi_eq_err_entry entry = {};
  Expect(WaitUntil([&] {
           uint32_t kind;
           uint8_t raw[512];
           return fi_eq_read(*caller.eq, &kind, raw, sizeof(raw), 0) == -FI_EAVAIL;
         }),
         "no error event");
  Expect(fi_eq_readerr(*caller.eq, &entry, 0) > 0, "fi_eq_readerr");
  char buffer[128] = {};
  const char* text =
      fi_eq_strerror(*caller.eq, entry.prov_errno, entry.err_data, buffer, sizeof(buffer));
  Expect(text != nullptr && text != entry.err_data, "the peer's data, as if they were a string");
  Expect(strncmp(text, "XXXX", 4) != 0 && buffer[0] != 'X', "the peer's data: %.24s", text);
  Note("%.60s", text);
}

// Whether the operation fails before or after it is waited for.
FI_CASE("cntr.wait_finds_an_error", kRdm, 30) {
  constexpr int kRounds = 20;
  std::vector<Fid<fid_cntr>> counters;
  Wish wish;
  wish.caps = RmaCaps();
  wish.unenabled = [&](Peer& peer) {
    counters.push_back(OpenCntr(peer.domain, FI_WAIT_UNSPEC));
    Need(fi_ep_bind(peer.ep, counters.back().Base(), FI_WRITE), "fi_ep_bind counter");
  };
  Pair pair(wish);
  Memory out(pair.a(), 8);
  for (int i = 0; i < kRounds; ++i) {
    if (i != 0) fi_enable(pair.a().ep);  // a failure may have disabled it
    Need(Post([&] {
           return fi_write(pair.a().ep, out.data(), 8, out.desc(), pair.a().other, 0, kNoKey,
                           ContextOf(1));
         }),
         "fi_write");
    // From "not carried out yet" to "failed long ago".
    const timespec pause = {.tv_sec = 0, .tv_nsec = i * i * 100'000};
    nanosleep(&pause, nullptr);
    const int result = fi_cntr_wait(counters[0], 1000, 3000);
    Expect(result == -FI_EAVAIL, "round %d: %s", i, NameOf(result).c_str());
    while (PollCq(pair.a().tx_cq).has_value()) {
    }
  }
  pair.a().ep.Close();
  pair.b().ep.Close();
}

// --- what no endpoint takes --------------------------------------------------------------------

// Lengths whose sum has no number.
FI_CASE("msg.lengths_overflow", kAll) {
  Wish wish;
  wish.caps = RmaCaps();
  Pair pair(wish);
  Memory out(pair.a(), 64), in(pair.b(), 64);
  Receive(pair.b(), in, 1);
  constexpr size_t kHalf = size_t{1} << 63;
  const iovec nothing[] = {{out.data(), kHalf}, {out.data(), kHalf}};
  const iovec one[] = {{out.data(), SIZE_MAX}, {out.data(), 2}};
  void* desc[] = {out.desc(), out.desc()};
  Peer& from = pair.a();
  for (const iovec* iov : {nothing, one}) {
    const long sent = fi_sendv(from.ep, iov, desc, 2, from.other, ContextOf(2));
    Expect(sent < 0 && sent != -FI_EAGAIN, "fi_sendv of 2^64 B and more: %s", NameOf(sent).c_str());
    if (!IsReliable()) continue;
    const long written = fi_writev(from.ep, iov, desc, 2, from.other, 0, 1, ContextOf(3));
    Expect(written < 0 && written != -FI_EAGAIN, "fi_writev of 2^64 B and more: %s",
           NameOf(written).c_str());
  }
  ExpectNothing(pair.b().rx_cq, 50, "of lengths that no message has");
}

// What fi_getinfo granted may have been changed since.
void ChangedInfo(const char* what, const std::function<void(fi_info*)>& change) {
  Wish wish;
  wish.caps = RmaCaps();
  Ground ground(wish);
  Info info(fi_dupinfo(ground.info.get()));
  change(info.get());
  Fid<fid_ep> ep;
  const int result = fi_endpoint(ground.domain, info.get(), ep.Out(), nullptr);
  Expect(result < 0, "an endpoint is opened with %s", what);
}
FI_CASE("ep.attributes_beyond_limits", kAll) {
  constexpr size_t kTooMany = size_t{1} << 32;
  ChangedInfo("inject_size 2^32", [](fi_info* info) { info->tx_attr->inject_size = kTooMany; });
  ChangedInfo("iov_limit 2^32", [](fi_info* info) { info->tx_attr->iov_limit = kTooMany; });
  ChangedInfo("rma_iov_limit 2^32", [](fi_info* info) { info->tx_attr->rma_iov_limit = kTooMany; });
  ChangedInfo("tx size 2^32", [](fi_info* info) { info->tx_attr->size = kTooMany; });
  ChangedInfo("rx size 2^32", [](fi_info* info) { info->rx_attr->size = kTooMany; });
  ChangedInfo("rx iov_limit 2^32", [](fi_info* info) { info->rx_attr->iov_limit = kTooMany; });
  ChangedInfo("an unknown protocol", [](fi_info* info) { info->ep_attr->protocol = 0x7fff; });
  ChangedInfo("unknown order", [](fi_info* info) { info->tx_attr->msg_order = ~uint64_t{0}; });
  ChangedInfo("unknown flags", [](fi_info* info) { info->tx_attr->op_flags = ~uint64_t{0}; });
  ChangedInfo("a key that is not there", [](fi_info* info) {
    info->ep_attr->auth_key_size = 5;
    info->ep_attr->auth_key = nullptr;
  });
}

// An endpoint does what it was opened for, and refuses the rest.
FI_CASE("ep.one_direction", kAll) {
  Wish receives, sends;
  receives.caps = FI_MSG | FI_RECV;
  sends.caps = FI_MSG | FI_SEND;
  Pair pair(sends, receives);
  Memory out(pair.a(), 64), in(pair.b(), 64);
  Receive(pair.b(), in, 1);
  Send(pair.a(), out, 2);
  Await(pair.b().rx_cq, "the receive");
  Peer& receiver = pair.b();
  Peer& sender = pair.a();
  const long sent = fi_send(receiver.ep, in.data(), 8, in.desc(), receiver.other, ContextOf(3));
  Expect(sent < 0 && sent != -FI_EAGAIN, "FI_RECV alone sends: %s", NameOf(sent).c_str());
  const long posted = fi_recv(sender.ep, out.data(), 8, out.desc(), FI_ADDR_UNSPEC, ContextOf(4));
  Expect(posted < 0 && posted != -FI_EAGAIN, "FI_SEND alone receives: %s", NameOf(posted).c_str());
}

// However few descriptors are left: an endpoint that is enabled sends, another can be enabled when
// there are more.
FI_CASE("ep.enable_without_fds", kRdm, 60) {
  constexpr size_t kLeftMax = 12;
  for (size_t left = 0; left < kLeftMax; ++left) {
    Wish wish;
    Peer from(wish), to(wish);
    for (Peer* peer : {&from, &to}) {
      peer->OpenEndpoint();
      peer->Bind();
    }
    to.Enable();
    std::vector<int> taken;
    for (int fd = dup(0); fd >= 0; fd = dup(0)) taken.push_back(fd);
    for (size_t i = 0; i < left && !taken.empty(); ++i) {
      close(taken.back());
      taken.pop_back();
    }
    const int result = fi_enable(from.ep);
    for (const int fd : taken) close(fd);
    if (result != 0) {
      Expect(result == -FI_EMFILE, "%zu descriptors left: %s", left, NameOf(result).c_str());
      from.Enable();
    }
    from.other = from.Insert(to);
    Memory out(from, 64), in(to, 64);
    Receive(to, in, 1);
    Send(from, out, 2);
    Expect(AwaitAny(to.rx_cq).has_value(), "%zu descriptors left, %s: no message comes", left,
           NameOf(result).c_str());
    Await(from.tx_cq, "the send");
  }
}

// A capability without what would restrict it is all of it.  See fi_getinfo(3), FI_MSG, FI_RMA.
FI_CASE("ep.unrestricted_capabilities", kAll) {
  Wish wish;
  wish.caps = RmaCaps();
  wish.chosen = [](fi_info* info) { info->caps = RmaCaps(); };
  Pair pair(wish);
  Memory out(pair.a(), 64, 0, 3), in(pair.b(), 64), target(pair.b(), 64, FI_REMOTE_WRITE);
  OneMessage(pair, out, in);
  Await(pair.b().rx_cq, "the receive");
  Await(pair.a().tx_cq, "the send");
  if (!IsReliable()) return;
  Need(Post([&] { return Write(pair.a(), out, target, 4); }), "fi_write");
  Await(pair.a().tx_cq, "the WRITE");
  Expect(target.IsAll(3, 0, 64), "the WRITE has not written");
}

FI_CASE("srx.attributes_beyond_limits", kReliable) {
  Ground ground;
  const auto refuse = [&](const char* what, const std::function<void(fi_rx_attr*)>& change) {
    fi_rx_attr attr = *ground.info->rx_attr;
    change(&attr);
    Fid<fid_ep> srx;
    const int result = fi_srx_context(ground.domain, &attr, srx.Out(), nullptr);
    if (result == -FI_ENOSYS) Refuse("no shared receive contexts");
    Expect(result < 0, "a shared receive context is opened with %s", what);
  };
  refuse("iov_limit 2^32 + 1", [](fi_rx_attr* attr) { attr->iov_limit = (size_t{1} << 32) + 1; });
  refuse("size 2^40", [](fi_rx_attr* attr) { attr->size = size_t{1} << 40; });
  refuse("unknown capabilities", [](fi_rx_attr* attr) { attr->caps = ~uint64_t{0}; });
  refuse("unknown flags", [](fi_rx_attr* attr) { attr->op_flags = ~uint64_t{0}; });
}

}  // namespace
}  // namespace verbena::fi_test
