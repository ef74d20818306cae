// fi_msg(3): messages, their flags and completion levels.
#include <string.h>

#include <algorithm>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

size_t Largest(const Peer& peer, size_t wanted) {
  return std::min(wanted, peer.info->ep_attr->max_msg_size);
}

// One message of `bytes`, each compared, what lies behind it untouched.
void Exchange(Pair& pair, size_t bytes, uint32_t seed) {
  Memory out(pair.a(), bytes), in(pair.b(), bytes + 64, 0, 0xEE);
  out.Fill(seed);
  Receive(pair.b(), in, 1);
  Send(pair.a(), out, 2, bytes);
  const Completion received = Await(pair.b().RxCq(), "the receive");
  Expect(received.context == ContextOf(1), "the receive's context is another");
  Expect((received.flags & (FI_MSG | FI_RECV)) == (FI_MSG | FI_RECV), "receive flags %#llx",
         static_cast<unsigned long long>(received.flags));
  Expect(received.len == bytes, "len %zu of %zu", received.len, bytes);
  Expect(in.Has(seed, bytes), "wrong bytes of %zu", bytes);
  Expect(in.IsAll(0xEE, bytes, bytes + 64), "bytes behind a message of %zu", bytes);
  const Completion sent = Await(pair.a().TxCq(), "the send");
  Expect(sent.context == ContextOf(2), "the send's context is another");
  Expect((sent.flags & (FI_MSG | FI_SEND)) == (FI_MSG | FI_SEND), "send flags %#llx",
         static_cast<unsigned long long>(sent.flags));
}

FI_CASE("msg.sizes", kAll) {
  Pair pair;
  const size_t limit = Largest(pair.a(), IsReliable() ? 3'000'000 : 1'000'000);
  uint32_t seed = 1;
  for (const size_t bytes :
       {0UL, 1UL, 7UL, 64UL, 255UL, 1000UL, 1472UL, 4096UL, 65536UL, 1000003UL, 3000000UL}) {
    if (bytes <= limit) Exchange(pair, bytes, seed++);
  }
  Note("to %zu B", limit);
}

FI_CASE("msg.both_ways", kAll) {
  Pair pair;
  Exchange(pair, 100, 1);
  std::swap(pair.left, pair.right);
  Exchange(pair, 100, 2);
}

FI_CASE("msg.order_sas", kReliable) {
  constexpr int kMessages = 200;
  Wish wish;
  wish.hints = [](fi_info* hints) {
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
  };
  Pair pair(wish);
  Memory out(pair.a(), kMessages * 16), in(pair.b(), kMessages * 16);
  out.Fill(3);
  int posted = 0, sent = 0, received = 0;
  const bool is_done = WaitUntil([&] {
    if (posted < kMessages && fi_recv(pair.b().ep, in.data() + posted * 16, 16, in.desc(),
                                      FI_ADDR_UNSPEC, ContextOf(posted)) == 0) {
      ++posted;
    }
    if (sent < posted && fi_send(pair.a().ep, out.data() + sent * 16, 16, out.desc(),
                                 pair.a().other, ContextOf(sent)) == 0) {
      ++sent;
    }
    PollCq(pair.a().tx_cq);
    if (const auto got = PollCq(pair.b().rx_cq)) {
      Expect(got->error == 0 && got->context == ContextOf(received), "out of order at %d",
             received);
      ++received;
    }
    return received == kMessages;
  });
  Expect(is_done, "%d of %d arrived", received, kMessages);
  Expect(in.Has(3, kMessages * 16), "bytes out of order");
}

FI_CASE("msg.vectors", kAll) {
  Pair pair;
  const size_t count = std::min<size_t>(
      16, std::min(pair.a().info->tx_attr->iov_limit, pair.b().info->rx_attr->iov_limit));
  Expect(count >= 1, "iov_limit 0");
  Memory out(pair.a(), count * 10), in(pair.b(), count * 10);
  out.Fill(4);
  std::vector<iovec> from(count), to(count);
  std::vector<void*> from_desc(count, out.desc()), to_desc(count, in.desc());
  for (size_t i = 0; i < count; ++i) {
    from[i] = {out.data() + i * 10, 10};
    to[i] = {in.data() + i * 10, 10};
  }
  Need(fi_recvv(pair.b().ep, to.data(), to_desc.data(), count, FI_ADDR_UNSPEC, ContextOf(0)),
       "fi_recvv");
  Need(Post([&] {
         return fi_sendv(pair.a().ep, from.data(), from_desc.data(), count, pair.a().other,
                         ContextOf(1));
       }),
       "fi_sendv");
  Expect(Await(pair.b().rx_cq, "the receive").len == count * 10, "another length");
  Expect(in.Has(4, count * 10), "wrong bytes");
  Note("%zu", count);
}

FI_CASE("msg.vectors_beyond_limit", kAll) {
  Pair pair;
  const size_t count = pair.a().info->tx_attr->iov_limit + 1;
  if (count > 100000) DoesNotApply("no limit");
  Memory out(pair.a(), count);
  std::vector<iovec> from(count, iovec{out.data(), 1});
  std::vector<void*> desc(count, out.desc());
  const ssize_t result =
      fi_sendv(pair.a().ep, from.data(), desc.data(), count, pair.a().other, ContextOf(1));
  Expect(result < 0 && result != -FI_EAGAIN, "%zu segments are accepted", count);
  Note("%s", NameOf(result).c_str());
}

FI_CASE("msg.too_long", kAll) {
  Pair pair;
  const size_t largest = pair.a().info->ep_attr->max_msg_size;
  if (largest >= 1ULL << 40) DoesNotApply("max_msg_size is more than there is memory");
  uint8_t byte = 0;
  Memory out(pair.a(), 64);
  const ssize_t result = fi_send(pair.a().ep, largest > 64 ? &byte : out.data(), largest + 1,
                                 out.desc(), pair.a().other, ContextOf(1));
  ExpectError(result, -FI_EMSGSIZE, "a message of max_msg_size + 1");
}

FI_CASE("msg.inject", kAll) {
  Pair pair;
  const size_t bytes =
      Largest(pair.a(), std::min<size_t>(pair.a().info->tx_attr->inject_size, 8192));
  if (bytes == 0) Refuse("inject_size 0");
  Memory in(pair.b(), bytes);
  std::vector<uint8_t> out(bytes);
  Memory pattern(pair.a(), bytes);
  pattern.Fill(5);
  memcpy(out.data(), pattern.data(), bytes);
  Receive(pair.b(), in);
  Need(Post([&] { return fi_inject(pair.a().ep, out.data(), bytes, pair.a().other); }),
       "fi_inject");
  std::fill(out.begin(), out.end(), 0);  // it is the application's again
  Await(pair.b().rx_cq, "the receive");
  Expect(in.Has(5, bytes), "wrong bytes");
  ExpectNothing(pair.a().tx_cq, 50, "fi_inject has no completion");
  Note("%zu B", bytes);
}

FI_CASE("msg.inject_too_long", kAll) {
  Pair pair;
  const size_t bytes = pair.a().info->tx_attr->inject_size + 1;
  if (bytes > (1 << 20)) DoesNotApply("inject_size is large");
  std::vector<uint8_t> out(bytes);
  const ssize_t result = fi_inject(pair.a().ep, out.data(), bytes, pair.a().other);
  Expect(result < 0 && result != -FI_EAGAIN, "inject_size + 1 is accepted");
  Note("%s", NameOf(result).c_str());
}

FI_CASE("msg.cq_data", kAll) {
  Pair pair;
  const size_t bytes = pair.a().info->domain_attr->cq_data_size;
  if (bytes == 0) Refuse("cq_data_size 0");
  Expect(bytes >= 4, "cq_data_size %zu", bytes);
  const uint64_t data = bytes >= 8 ? 0xA1B2C3D4E5F60718 : 0xA1B2C3D4;
  Memory out(pair.a(), 32), in(pair.b(), 32);
  out.Fill(6);
  for (int round = 0; round < 2; ++round) {
    Receive(pair.b(), in);
    Need(Post([&] {
           return round == 0 ? fi_senddata(pair.a().ep, out.data(), 32, out.desc(), data,
                                           pair.a().other, ContextOf(1))
                             : fi_injectdata(pair.a().ep, out.data(), 32, data, pair.a().other);
         }),
         round == 0 ? "fi_senddata" : "fi_injectdata");
    const Completion got = Await(pair.b().rx_cq, "the receive");
    Expect((got.flags & FI_REMOTE_CQ_DATA) != 0, "no FI_REMOTE_CQ_DATA");
    Expect(got.data == data, "the data %#llx", static_cast<unsigned long long>(got.data));
  }
  Receive(pair.b(), in);
  Send(pair.a(), out);
  Expect((Await(pair.b().rx_cq, "a receive without data").flags & FI_REMOTE_CQ_DATA) == 0,
         "FI_REMOTE_CQ_DATA without data");
}

ssize_t SendFlagged(Peer& peer, Memory& memory, size_t context, uint64_t flags) {
  const iovec from = {memory.data(), memory.size()};
  void* desc = memory.desc();
  const fi_msg message = {&from, &desc, 1, peer.other, ContextOf(context), 0};
  return Post([&] { return fi_sendmsg(peer.ep, &message, flags); });
}

void AtLevel(uint64_t level) {
  Wish wish;
  wish.hints = [=](fi_info* hints) { hints->tx_attr->op_flags = level; };
  Pair pair(wish);
  Memory out(pair.a(), 5000 < Largest(pair.a(), 5000) ? 5000 : Largest(pair.a(), 1000)),
      in(pair.b(), out.size());
  out.Fill(7);
  Receive(pair.b(), in);
  Need(SendFlagged(pair.a(), out, 1, level | FI_COMPLETION), "fi_sendmsg");
  Expect(Await(pair.a().tx_cq, "the send").context == ContextOf(1), "another context");
  Await(pair.b().rx_cq, "the receive");
  Expect(in.Has(7, out.size()), "wrong bytes");
}

FI_CASE("msg.inject_complete", kAll) { AtLevel(FI_INJECT_COMPLETE); }
FI_CASE("msg.transmit_complete", kAll) { AtLevel(FI_TRANSMIT_COMPLETE); }
FI_CASE("msg.delivery_complete", kReliable) { AtLevel(FI_DELIVERY_COMPLETE); }
FI_CASE("msg.match_complete", kReliable) { AtLevel(FI_MATCH_COMPLETE); }

// Matched means that there was a receive for it; delivered does not (fi_cq(3)).
void NotBeforeTheReceive(uint64_t level) {
  Wish wish;
  wish.hints = [=](fi_info* hints) { hints->tx_attr->op_flags = level; };
  Pair pair(wish);
  Memory out(pair.a(), 100), in(pair.b(), 100);
  out.Fill(8);
  Need(SendFlagged(pair.a(), out, 1, level | FI_COMPLETION), "fi_sendmsg");
  ExpectNothing(pair.a().tx_cq, 100, "there is no receive yet");
  Receive(pair.b(), in);
  Await(pair.a().tx_cq, "the send");
  Await(pair.b().rx_cq, "the receive");
  Expect(in.Has(8, 100), "wrong bytes");
}
FI_CASE("msg.match_complete_waits", kReliable) { NotBeforeTheReceive(FI_MATCH_COMPLETE); }

FI_CASE("msg.selective_completion", kAll) {
  Wish wish;
  wish.tx_bind = FI_SELECTIVE_COMPLETION;
  Pair pair(wish);
  Memory out(pair.a(), 64), in(pair.b(), 64);
  Receive(pair.b(), in);
  Need(SendFlagged(pair.a(), out, 1, 0), "fi_sendmsg without FI_COMPLETION");
  Await(pair.b().rx_cq, "the receive");
  ExpectNothing(pair.a().tx_cq, 50, "FI_COMPLETION was not asked for");
  Receive(pair.b(), in);
  Need(SendFlagged(pair.a(), out, 2, FI_COMPLETION), "fi_sendmsg");
  Expect(Await(pair.a().tx_cq, "the send").context == ContextOf(2), "of another send");
}

FI_CASE("msg.fence", kAll) {
  Wish wish = {.caps = RmaCaps() | FI_FENCE};
  Pair pair(wish);
  Memory out(pair.a(), 1000), in(pair.b(), 4 * 1000);
  out.Fill(9);
  for (int i = 0; i < 4; ++i) {
    Need(fi_recv(pair.b().ep, in.data() + i * 1000, 1000, in.desc(), FI_ADDR_UNSPEC, ContextOf(i)),
         "fi_recv");
  }
  for (int i = 0; i < 4; ++i) {
    Need(SendFlagged(pair.a(), out, 10 + i, FI_COMPLETION | (i == 3 ? FI_FENCE : 0)), "fi_sendmsg");
  }
  for (int i = 0; i < 4; ++i) {
    const Completion sent = Await(pair.a().tx_cq, "a send");
    Expect(i != 3 || sent.context == ContextOf(13), "the fenced one was not the last");
    Await(pair.b().rx_cq, "a receive");
  }
}

FI_CASE("msg.source", kAddressed) {
  Wish wish = {.caps = FI_MSG | FI_SOURCE};
  Pair pair(wish);
  Memory out(pair.a(), 64), in(pair.b(), 64);
  Receive(pair.b(), in);
  Send(pair.a(), out);
  Expect(Await(pair.b().rx_cq, "the receive").source == pair.b().other, "not the sender's address");
}

FI_CASE("msg.source_unknown", kAddressed) {
  Wish wish = {.caps = FI_MSG | FI_SOURCE};
  Pair pair(wish);
  Peer stranger(wish);
  stranger.Start();
  const auto address = pair.b().Address();
  Expect(fi_av_insert(stranger.av, address.data(), 1, &stranger.other, 0, nullptr) == 1,
         "fi_av_insert");
  Memory out(stranger, 64), in(pair.b(), 64);
  Receive(pair.b(), in);
  Send(stranger, out);
  const Completion got = Await(pair.b().rx_cq, "the receive");
  Expect(got.source == FI_ADDR_NOTAVAIL || got.source != pair.b().other, "the address of another");
}

FI_CASE("msg.source_err", kAddressed) {
  Wish wish = {.caps = FI_MSG | FI_SOURCE | FI_SOURCE_ERR};
  Pair pair(wish);
  Peer stranger(wish);
  stranger.Start();
  const auto address = pair.b().Address(), own = stranger.Address();
  Expect(fi_av_insert(stranger.av, address.data(), 1, &stranger.other, 0, nullptr) == 1,
         "fi_av_insert");
  Memory out(stranger, 64), in(pair.b(), 64);
  out.Fill(2);
  Receive(pair.b(), in);
  Send(stranger, out);
  fi_cq_data_entry entry;
  fi_addr_t source = 0;
  ssize_t got = 0;
  WaitUntil(
      [&] { return (got = fi_cq_readfrom(pair.b().rx_cq, &entry, 1, &source)) != -FI_EAGAIN; });
  ExpectError(got, -FI_EAVAIL, "a message of a stranger");
  fi_cq_err_entry error = {};
  std::vector<uint8_t> raw(512);
  error.err_data = raw.data();
  error.err_data_size = raw.size();
  Expect(fi_cq_readerr(pair.b().rx_cq, &error, 0) == 1, "fi_cq_readerr");
  Expect(error.err == FI_EADDRNOTAVAIL, "%s", NameOf(error.err).c_str());
  Expect(error.len == 64 && in.Has(2, 64), "the message was not received");
  Expect(error.err_data_size == own.size() && memcmp(error.err_data, own.data(), own.size()) == 0,
         "err_data is not the sender's address");
}

FI_CASE("msg.directed_recv", kAddressed) {
  Wish wish = {.caps = FI_MSG | FI_SOURCE | FI_DIRECTED_RECV};
  Pair pair(wish);
  Peer third(wish);
  third.Start();
  const auto to = pair.b().Address(), own = third.Address();
  fi_addr_t of_third = 0;
  Expect(fi_av_insert(third.av, to.data(), 1, &third.other, 0, nullptr) == 1 &&
             fi_av_insert(pair.b().av, own.data(), 1, &of_third, 0, nullptr) == 1,
         "fi_av_insert");
  Memory first(pair.a(), 64), second(third, 64), in(pair.b(), 64), other(pair.b(), 64);
  first.Fill(1);
  second.Fill(2);
  Need(fi_recv(pair.b().ep, other.data(), 64, other.desc(), of_third, ContextOf(2)), "fi_recv");
  Need(fi_recv(pair.b().ep, in.data(), 64, in.desc(), pair.b().other, ContextOf(1)), "fi_recv");
  Send(pair.a(), first);
  Expect(Await(pair.b().rx_cq, "the first").context == ContextOf(1), "of another's receive");
  Send(third, second);
  Expect(Await(pair.b().rx_cq, "the second").context == ContextOf(2), "of another's receive");
  Expect(in.Has(1, 64) && other.Has(2, 64), "wrong bytes");
}

FI_CASE("msg.multi_recv", kAll) {
  Wish wish = {.caps = FI_MSG | FI_MULTI_RECV};
  Pair pair(wish);
  size_t least = 100;
  const int set =
      fi_setopt(pair.b().ep.Base(), FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least));
  Need(set, "FI_OPT_MIN_MULTI_RECV");
  Memory out(pair.a(), 64), in(pair.b(), 64 * 4 + 90);
  out.Fill(3);
  const iovec to = {in.data(), in.size()};
  void* desc = in.desc();
  const fi_msg message = {&to, &desc, 1, FI_ADDR_UNSPEC, ContextOf(5), 0};
  Need(fi_recvmsg(pair.b().ep, &message, FI_MULTI_RECV | FI_COMPLETION), "fi_recvmsg");
  int messages = 0;
  bool is_released = false;
  for (int i = 0; i < 4; ++i) {
    Send(pair.a(), out, i);
    const Completion got = Await(pair.b().rx_cq, "a message");
    Expect(got.context == ContextOf(5) && got.len == 64, "context or length");
    const auto* place = static_cast<uint8_t*>(got.buf);
    Expect(place == in.data() + messages * 64, "message %d lies at %ld", messages,
           static_cast<long>(place - in.data()));
    Expect(in.Has(3, 64, messages * 64), "wrong bytes");
    ++messages;
    is_released |= (got.flags & FI_MULTI_RECV) != 0;
    Expect(!is_released || i == 3, "released with room for more than the least");
  }
  if (!is_released) {
    const auto last = AwaitAny(pair.b().rx_cq, 300 * Patience());
    is_released = last && (last->flags & FI_MULTI_RECV) != 0;
  }
  Expect(is_released, "never released (FI_MULTI_RECV)");
}

FI_CASE("msg.cancel", kAll) {
  Pair pair;
  Memory in(pair.b(), 64);
  Receive(pair.b(), in, 4);
  const ssize_t result = fi_cancel(pair.b().ep.Base(), ContextOf(4));
  Need(result, "fi_cancel");
  const Completion got = AwaitError(pair.b().rx_cq, "the cancelled receive");
  Expect(got.error == FI_ECANCELED && got.context == ContextOf(4), "%s", NameOf(got.error).c_str());
  const ssize_t nobody = fi_cancel(pair.b().ep.Base(), ContextOf(5));
  Expect(nobody == -FI_ENOENT || nobody == 0, "cancelling nothing: %s", NameOf(nobody).c_str());
}

FI_CASE("msg.recv_transmit_complete", kAll) {
  Pair pair;
  Memory out(pair.a(), 64), in(pair.b(), 64);
  out.Fill(12);
  const iovec to = {in.data(), in.size()};
  void* desc = in.desc();
  const fi_msg message = {&to, &desc, 1, FI_ADDR_UNSPEC, ContextOf(3), 0};
  Need(fi_recvmsg(pair.b().ep, &message, FI_TRANSMIT_COMPLETE | FI_COMPLETION), "fi_recvmsg");
  Send(pair.a(), out);
  Expect(Await(pair.b().rx_cq, "the receive").context == ContextOf(3), "another context");
  Expect(in.Has(12, 64), "wrong bytes");
}

FI_CASE("msg.many_outstanding", kAll) {
  Pair pair;
  const size_t count =
      std::min<size_t>(64, std::min(pair.a().info->tx_attr->size, pair.b().info->rx_attr->size));
  Memory out(pair.a(), 256), in(pair.b(), 256 * count);
  out.Fill(11);
  for (size_t i = 0; i < count; ++i) {
    Need(fi_recv(pair.b().ep, in.data() + 256 * i, 256, in.desc(), FI_ADDR_UNSPEC, ContextOf(i)),
         "fi_recv below rx size");
  }
  for (size_t i = 0; i < count; ++i) Send(pair.a(), out, 100 + i);
  for (size_t i = 0; i < count; ++i) {
    Await(pair.a().tx_cq, "a send");
    Await(pair.b().rx_cq, "a receive");
  }
  for (size_t i = 0; i < count; ++i) Expect(in.Has(11, 256, 256 * i), "wrong bytes");
}

}  // namespace
}  // namespace verbena::fi_test
