// What becomes of receives that end otherwise than by a message: cancelled, flushed, or left behind
// by an endpoint that is closed.
#include <sched.h>

#include <algorithm>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

constexpr size_t kShort = 64;
constexpr size_t kMany = 600;  // more than a provider takes at once

// Of somebody whose peer calls nothing meanwhile.
void AwaitAlone(fid_cq* cq, size_t count, const char* what) {
  const long end_ms = NowMs() + 4000L * Patience();
  for (size_t i = 0; i < count;) {
    if (const auto got = PollCq(cq)) {
      Expect(got->error == 0, "%s: %s", what, NameOf(got->error).c_str());
      ++i;
      continue;
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
  constexpr size_t kBefore = 3;
  Wish wish = {.caps = FI_MSG | FI_MULTI_RECV};
  Pair pair(wish);
  Peer &a = pair.a(), &b = pair.b();
  Memory out(a, kShort), first(b, 1000), second(b, kShort);
  out.Fill(1);
  ReceiveMulti(b, first, 1, FI_COMPLETION);
  for (size_t i = 0; i < kBefore; ++i) Send(a, out, 7);
  AwaitAlone(a.tx_cq, kBefore, "the sends");
  const ssize_t cancelled = fi_cancel(b.ep.Base(), ContextOf(1));
  Expect(cancelled == 0 || cancelled == -FI_ENOENT, "fi_cancel: %s", NameOf(cancelled).c_str());
  Receive(b, second, 2);
  for (size_t i = 0; i < kBefore; ++i) {
    const Completion got = Await(b.rx_cq, "a message before the cancelling");
    Expect(got.context == ContextOf(1) && got.buf == first.data() + i * kShort &&
               got.len == kShort && (got.flags & FI_MULTI_RECV) == 0,
           "message %zu is said to be of another receive, or the last", i);
    Expect(first.Has(1, kShort, i * kShort), "wrong bytes");
  }
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

FI_CASE("msg.multi_recv_selective", kReliable) {
  Wish wish = {.caps = FI_MSG | FI_MULTI_RECV};
  wish.rx_bind = FI_SELECTIVE_COMPLETION;
  Pair pair(wish);
  size_t least = 100;
  Need(fi_setopt(pair.b().ep.Base(), FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)),
       "FI_OPT_MIN_MULTI_RECV");
  Memory out(pair.a(), kShort), in(pair.b(), kShort * 4 + 90);
  ReceiveMulti(pair.b(), in, 5, 0);
  for (int i = 0; i < 4; ++i) Send(pair.a(), out, i);
  for (int i = 0; i < 4; ++i) Await(pair.a().tx_cq, "a send");
  const Completion got = Await(pair.b().rx_cq, "the buffer's release");
  Expect(got.context == ContextOf(5) && (got.flags & FI_MULTI_RECV) != 0, "no FI_MULTI_RECV");
  ExpectNothing(pair.b().rx_cq, 100, "FI_COMPLETION was not asked for");
}

FI_CASE("cm.shutdown_releases_multi_recv", kMsg, 20) {
  constexpr size_t kMessages = 300;
  Wish wish = {.caps = FI_MSG | FI_MULTI_RECV};
  wish.hints = [](fi_info* hints) { hints->tx_attr->size = kMessages; };
  Pair pair(wish);
  Memory out(pair.a(), kShort), in(pair.b(), kShort * 2 * kMessages);
  ReceiveMulti(pair.b(), in, 5, FI_COMPLETION);
  for (size_t sent = 0; sent < kMessages; ++sent) {
    if (fi_send(pair.a().ep, out.data(), kShort, out.desc(), 0, ContextOf(1)) != 0) {
      DoesNotApply("they can't all be outstanding");
    }
  }
  AwaitAlone(pair.a().tx_cq, kMessages, "the sends");
  Need(fi_shutdown(pair.a().ep, 0), "fi_shutdown");
  uint32_t event = 0;
  fi_eq_cm_entry entry;
  const long end_ms = NowMs() + 4000L * Patience();
  while (fi_eq_read(*pair.b().eq, &event, &entry, sizeof(entry), 0) == -FI_EAGAIN) {
    Expect(NowMs() < end_ms, "no FI_SHUTDOWN");
  }
  size_t messages = 0;
  bool is_released = false;
  while (!is_released) {
    const auto got = AwaitAny(pair.b().rx_cq, 1000 * Patience());
    Expect(got.has_value(), "never released, after %zu messages", messages);
    Expect(got->context == ContextOf(5), "another's context");
    is_released = (got->flags & FI_MULTI_RECV) != 0;
    if (got->error == 0 && got->len == kShort) ++messages;
  }
  Expect(messages == kMessages, "%zu of %zu messages", messages, kMessages);
  ExpectNothing(pair.b().rx_cq, 100, "it is released");
}

// --- shared receive contexts -------------------------------------------------------------------

// An endpoint over a shared receive context, all of which is posted, and who sends to it.
struct Shared {
  Shared();
  size_t PostAll();  // how many were taken
  void SendMany();

  Wish wish;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Peer> at, from;
  Fid<fid_ep> srx, ep;
  std::unique_ptr<Memory> in;
};

Shared::Shared() {
  wish.chosen = [](fi_info* info) { info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT; };
  wish.hints = [](fi_info* hints) { hints->tx_attr->size = hints->rx_attr->size = kMany; };
  Wish sender;
  sender.hints = wish.hints;
  if (IsConnected()) listener = std::make_unique<Listener>(wish);
  at = std::make_unique<Peer>(wish);
  from = std::make_unique<Peer>(sender);
  from->Start();
  Need(fi_srx_context(at->domain, at->info->rx_attr, srx.Out(), nullptr), "fi_srx_context");
  Info request;
  if (IsConnected()) {
    Need(fi_connect(from->ep, listener->address.data(), nullptr, 0), "fi_connect");
    request.reset(AwaitEvent(*listener->eq, FI_CONNREQ, "the listener's").info);
    request->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
  }
  Need(fi_endpoint(at->domain, request ? request.get() : at->info.get(), ep.Out(), nullptr),
       "fi_endpoint");
  Need(fi_ep_bind(ep, IsConnected() ? at->eq->Base() : at->av.Base(), 0), "fi_ep_bind");
  Need(fi_ep_bind(ep, at->tx_cq.Base(), FI_TRANSMIT), "fi_ep_bind CQ");
  Need(fi_ep_bind(ep, at->rx_cq.Base(), FI_RECV), "fi_ep_bind CQ");
  Need(fi_ep_bind(ep, srx.Base(), 0), "fi_ep_bind shared receive context");
  Need(fi_enable(ep), "fi_enable");
  if (IsConnected()) {
    Need(fi_accept(ep, nullptr, 0), "fi_accept");
    AwaitEvent(*from->eq, FI_CONNECTED, "the active side's");
  } else {
    uint8_t address[512];
    size_t length = sizeof(address);
    Need(fi_getname(ep.Base(), address, &length), "fi_getname");
    Expect(fi_av_insert(from->av, address, 1, &from->other, 0, nullptr) == 1, "fi_av_insert");
  }
  in = std::make_unique<Memory>(*at, kShort);
}

size_t Shared::PostAll() {
  constexpr size_t kTooMany = 100'000;
  size_t posted = 0;
  while (posted < kTooMany &&
         fi_recv(srx, in->data(), kShort, in->desc(), FI_ADDR_UNSPEC, ContextOf(1)) == 0) {
    ++posted;
  }
  if (posted == kTooMany) DoesNotApply("as many receives as one likes are taken");
  return posted;
}

void Shared::SendMany() {
  Memory out(*from, kShort);
  for (size_t sent = 0; sent < kMany; ++sent) {
    if (fi_send(from->ep, out.data(), kShort, out.desc(), from->other, ContextOf(2)) != 0) {
      DoesNotApply("%zu sends can't be outstanding", kMany);
    }
  }
  AwaitAlone(from->tx_cq, kMany, "the sends");
}

FI_CASE("srx.capacity_after_endpoint_closes", kReliable, 20) {
  Shared shared;
  const size_t capacity = shared.PostAll();
  if (capacity < kMany) DoesNotApply("%zu receives are not taken", kMany);
  shared.SendMany();
  Need(shared.ep.Close(), "fi_close of the endpoint");
  // Of its completions what has been told is told.
  while (PollCq(shared.at->rx_cq)) {
  }
  const size_t again = shared.PostAll();
  Expect(again == kMany, "of %zu receives that had messages %zu can be posted again", kMany, again);
}

FI_CASE("srx.closed_before_its_cq", kReliable, 20) {
  Shared shared;
  if (shared.PostAll() < kMany) DoesNotApply("%zu receives are not taken", kMany);
  shared.SendMany();
  Need(shared.ep.Close(), "fi_close of the endpoint");
  Need(shared.srx.Close(), "fi_close of the shared receive context");
  size_t told = 0;
  while (const auto got = PollCq(shared.at->rx_cq)) {
    Expect(got->error == 0 && got->context == ContextOf(1), "a completion of something else");
    Expect(++told <= kMany, "more completions than messages");
  }
  Note("%zu of %zu completions are left", told, kMany);
}

}  // namespace
}  // namespace verbena::fi_test
