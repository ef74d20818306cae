// What becomes of receives that end otherwise than by a message: cancelled, flushed, or left behind
// by an endpoint that is closed.
#include <sched.h>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

constexpr size_t kShort = 64;

// Of somebody whose peer calls nothing meanwhile.
void AwaitAlone(fid_cq* cq, size_t count, const char* what) {
  const long end_ms = NowMs() + 4000L * Patience();
  for (size_t i = 0; i < count;) {
    if (const auto got = PollCq(cq)) {
      Expect(got->error == 0, "%s: %s", what, NameOf(got->error).c_str());
      ++i;
    }
    Expect(NowMs() < end_ms, "%s: %zu of %zu completed", what, i, count);
    sched_yield();
  }
}

void ReceiveMulti(Peer& peer, Memory& memory, size_t context, uint64_t flags) {
  const iovec to = {memory.data(), memory.size()};
  void* desc = memory.desc();
  const fi_msg message = {&to, &desc, 1, FI_ADDR_UNSPEC, ContextOf(context), 0};
  Need(fi_recvmsg(peer.ep, &message, FI_MULTI_RECV | flags), "fi_recvmsg");
}

FI_CASE("msg.cancel_multi_recv_with_messages", kReliable) {
  Wish wish = {.caps = FI_MSG | FI_MULTI_RECV};
  Pair pair(wish);
  Peer &a = pair.a(), &b = pair.b();
  Memory out(a, kShort), first(b, 1000), second(b, kShort);
  out.Fill(1);
  ReceiveMulti(b, first, 1, FI_COMPLETION);
  Send(a, out, 7);
  AwaitAlone(a.tx_cq, 1, "the first send");
  const ssize_t cancelled = fi_cancel(b.ep.Base(), ContextOf(1));
  Expect(cancelled == 0 || cancelled == -FI_ENOENT, "fi_cancel: %s", NameOf(cancelled).c_str());
  Receive(b, second, 2);
  const Completion got = Await(b.rx_cq, "the message before the cancelling");
  Expect(got.context == ContextOf(1) && got.buf == first.data() && got.len == kShort,
         "it is said to be of another receive");
  Expect(first.Has(1, kShort), "wrong bytes");
  if (cancelled == 0) {
    const auto end = AwaitAny(b.rx_cq);
    Expect(end && end->context == ContextOf(1) && (end->flags & FI_MULTI_RECV) != 0,
           "the cancelled receive is not released");
  }
  out.Fill(2);
  Send(a, out, 8);
  const Completion next = Await(b.rx_cq, "the next message");
  if (cancelled == 0) {
    Expect(next.context == ContextOf(2) && next.buf == second.data(), "not of the next receive");
    Expect(second.Has(2, kShort), "wrong bytes");
  }
  ExpectNothing(b.rx_cq, 100, "all has completed");
  Note("%s", NameOf(cancelled).c_str());
}

}  // namespace
}  // namespace verbena::fi_test
