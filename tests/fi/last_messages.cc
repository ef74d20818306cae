// What becomes of the last messages of an endpoint that is closed, where the network loses packets:
// fault rules say which. fi_cm(3) lets a provider discard them, so that no promise is broken then,
// but programs that have run over TCP close as soon as they have sent.
#include <functional>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

constexpr size_t kBytes = 64;
constexpr int kLimitMs = 8000;  // what is lost once and again is sent a third time after 2.2 s

// A message from a to b, which has a receive for it.
struct Exchange {
  explicit Exchange(const Wish& a_wish = {}) : pair(a_wish, {}) {
    from.Fill(1);
    Receive(b, to);
  }
  void AwaitMessage() {
    const auto got = AwaitAny(b.RxCq(), kLimitMs);
    Expect(got.has_value() && got->error == 0, "it does not come: error %d",
           got.has_value() ? got->error : 0);
    Expect(to.Has(1, kBytes), "its bytes are wrong");
  }
  Pair pair;
  Peer& a = pair.a();
  Peer& b = pair.b();
  Memory from{a, kBytes}, to{b, kBytes};
};

void Inject(Peer& peer, Memory& memory) {
  Need(Post([&] { return fi_inject(peer.ep, memory.data(), kBytes, peer.other); }), "fi_inject");
}

// Nobody but the endpoint knows of the message by the time that `end` ends it.
void InjectAndEnd(const std::function<void(Peer&)>& end) {
  Exchange exchange;
  Inject(exchange.a, exchange.from);
  end(exchange.a);
  exchange.AwaitMessage();
}

void Close(Peer& peer) { Need(peer.ep.Close(), "fi_close"); }
void ShutDown(Peer& peer) { Need(fi_shutdown(peer.ep, 0), "fi_shutdown"); }

FI_CASE("injected_before_the_close", kReliable, 30) { InjectAndEnd(Close); }
FI_CASE("injected_before_the_shutdown", kMsg, 30) { InjectAndEnd(ShutDown); }

// Who has a message closes, and its acknowledgement does not come.
FI_CASE("sent_to_who_closes", kMsg, 30) {
  for (const auto end : {Close, ShutDown}) {
    Exchange exchange;
    Send(exchange.a, exchange.from);
    exchange.AwaitMessage();
    end(exchange.b);
    const auto sent = AwaitAny(exchange.a.TxCq(), kLimitMs);
    Expect(sent.has_value() && sent->error == 0, "what has come has failed: error %d",
           sent.has_value() ? sent->error : 0);
    Expect(AwaitEvent(*exchange.a.eq, FI_SHUTDOWN, "of who sent").fid == exchange.a.ep.Base(),
           "another's end");
  }
}

// Nobody takes it. How long that is waited for is linger_test's business.
FI_CASE("close_without_a_receive", kReliable, 30) {
  Pair pair;
  Memory from(pair.a(), kBytes);
  Inject(pair.a(), from);
  Close(pair.a());
}

// Who counts what it has sent counts what its close has waited for, too.
FI_CASE("counted_by_the_close", kReliable, 30) {
  Wish counted;
  Fid<fid_cntr> cntr;
  counted.unenabled = [&](Peer& peer) {
    cntr = OpenCntr(peer.domain);
    Need(fi_ep_bind(peer.ep, cntr.Base(), FI_SEND), "fi_ep_bind");
  };
  Exchange exchange(counted);
  Send(exchange.a, exchange.from);
  Close(exchange.a);
  exchange.AwaitMessage();
  Expect(fi_cntr_read(cntr) == 1, "the counter says %lu", fi_cntr_read(cntr));
  Need(cntr.Close(), "fi_close of the counter");
}

}  // namespace
}  // namespace verbena::fi_test
