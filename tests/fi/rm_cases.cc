// Resource management: the table of fi_domain(3), cell by cell.
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

constexpr uint64_t kRemote = FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr size_t kManyPosts = 40000;
constexpr size_t kLong = 4096;

Wish Managed(fi_resource_mgmt mode, uint64_t caps = FI_MSG) {
  Wish wish = {.caps = caps};
  wish.hints = [=](fi_info* hints) { hints->domain_attr->resource_mgmt = mode; };
  return wish;
}

// Only who says that it is disabled has the cells of that column.
Wish Unmanaged(uint64_t caps = FI_MSG) {
  const Wish wish = Managed(FI_RM_DISABLED, caps);
  const Info info = GetInfo(wish);
  if (info->domain_attr->resource_mgmt != FI_RM_DISABLED) {
    Refuse("resource management can't be disabled");
  }
  return wish;
}

// Posts without anybody taking until told to try again; how many were taken.
size_t FillUp(const std::function<long()>& post, long* result) {
  size_t posted = 0;
  while (posted < kManyPosts && (*result = post()) == 0) ++posted;
  return posted;
}

FI_CASE("rm.enabled.tx_full", kReliable, 40) {
  Wish wish = Managed(FI_RM_ENABLED);
  Pair pair(wish);
  // Long enough that no buffer below holds them all; the first sets up what is set up on demand.
  Memory out(pair.a(), kLong), in(pair.b(), kLong);
  Receive(pair.b(), in);
  Send(pair.a(), out);
  Await(pair.b().rx_cq, "the first receive");
  Await(pair.a().tx_cq, "the first send");
  const size_t size = pair.a().info->tx_attr->size;
  long result = 0;
  const size_t posted = FillUp(
      [&] {
        return fi_send(pair.a().ep, out.data(), kLong, out.desc(), pair.a().other, ContextOf(0));
      },
      &result);
  Expect(result != 0, "%zu sends were taken, tx size %zu", posted, size);
  ExpectError(result, -FI_EAGAIN, "a send beyond the context");
  Expect(posted >= size, "-FI_EAGAIN after %zu, tx size %zu", posted, size);
  // Taken is taken: each arrives, and there is room again.
  size_t arrived = 0, completed = 0;
  bool has_receive = false;
  Expect(WaitUntil(
             [&] {
               if (!has_receive) {
                 has_receive = fi_recv(pair.b().ep, in.data(), kLong, in.desc(), FI_ADDR_UNSPEC,
                                       ContextOf(1)) == 0;
               }
               if (PollCq(pair.b().rx_cq)) ++arrived, has_receive = false;
               if (PollCq(pair.a().tx_cq)) ++completed;
               return arrived == posted && completed == posted;
             },
             25000),
         "of %zu sends %zu completed and %zu arrived", posted, completed, arrived);
  Need(fi_send(pair.a().ep, out.data(), kLong, out.desc(), pair.a().other, ContextOf(0)),
       "a send afterwards");
  Note("after %zu, size %zu", posted, size);
}

FI_CASE("rm.enabled.tx_full_datagrams", kDgram) {
  Wish wish = Managed(FI_RM_ENABLED);
  wish.cq_size = 8;
  Pair pair(wish);
  Memory out(pair.a(), 64);
  long result = 0;
  const size_t posted = FillUp(
      [&] {
        return fi_send(pair.a().ep, out.data(), 64, out.desc(), pair.a().other, ContextOf(0));
      },
      &result);
  Expect(result != 0, "%zu sends were taken without their completions read", posted);
  ExpectError(result, -FI_EAGAIN, "a send beyond the context");
  size_t completed = 0;
  Expect(WaitUntil([&] {
           if (PollCq(pair.a().tx_cq)) ++completed;
           return completed == posted;
         }),
         "of %zu sends %zu completed", posted, completed);
  Note("after %zu, size %zu", posted, pair.a().info->tx_attr->size);
}

FI_CASE("rm.enabled.rx_full", kAll, 20) {
  Pair pair(Managed(FI_RM_ENABLED));
  Memory in(pair.b(), 64);
  const size_t size = pair.b().info->rx_attr->size;
  long result = 0;
  const size_t posted = FillUp(
      [&] { return fi_recv(pair.b().ep, in.data(), 64, in.desc(), FI_ADDR_UNSPEC, ContextOf(1)); },
      &result);
  Expect(result != 0, "%zu receives were taken, rx size %zu", posted, size);
  ExpectError(result, -FI_EAGAIN, "a receive beyond the context");
  Expect(posted >= size, "-FI_EAGAIN after %zu, rx size %zu", posted, size);
  Memory out(pair.a(), 64);
  Send(pair.a(), out);
  Await(pair.b().rx_cq, "a receive");
  Need(Post([&] {
         return fi_recv(pair.b().ep, in.data(), 64, in.desc(), FI_ADDR_UNSPEC, ContextOf(1));
       }),
       "a receive afterwards");
  Note("after %zu, size %zu", posted, size);
}

// Completions that nobody reads for a while: all are there in the end.
void NoneLost(bool is_transmit) {
  constexpr size_t kMessages = 300;
  Wish wish = Managed(FI_RM_ENABLED);
  wish.cq_size = 4;
  Pair pair(wish);
  Memory out(pair.a(), 64), in(pair.b(), 64);
  size_t receives = 0, sends = 0;
  const auto receive = [&] {
    if (receives < kMessages &&
        fi_recv(pair.b().ep, in.data(), 64, in.desc(), FI_ADDR_UNSPEC, ContextOf(receives)) == 0) {
      ++receives;
    }
  };
  const auto send = [&] {
    if (sends < receives &&
        fi_send(pair.a().ep, out.data(), 64, out.desc(), pair.a().other, ContextOf(sends)) == 0) {
      ++sends;
    }
  };
  size_t sent = 0, received = 0;
  // First without reading the CQ in question, till no more is taken or all is posted.
  WaitUntil(
      [&] {
        receive();
        send();
        if (is_transmit ? PollCq(pair.b().rx_cq).has_value() : PollCq(pair.a().tx_cq).has_value()) {
          ++(is_transmit ? received : sent);
        }
        return sends == kMessages;
      },
      300);
  const auto progress = [&] {
    receive();
    send();
    for (int i = 0; i < 4; ++i) {
      if (const auto got = PollCq(pair.a().tx_cq)) {
        Expect(got->error == 0, "a send completes with %s", NameOf(got->error).c_str());
        ++sent;
      }
      if (const auto got = PollCq(pair.b().rx_cq)) {
        Expect(got->error == 0, "a receive completes with %s", NameOf(got->error).c_str());
        ++received;
      }
    }
    return sent == kMessages && (received == kMessages || !IsReliable());
  };
  Expect(WaitUntil(progress, 6000), "of %zu, %zu sends and %zu receives completed", kMessages, sent,
         received);
}
FI_CASE("rm.enabled.tx_cq", kAll, 15) { NoneLost(true); }
FI_CASE("rm.enabled.rx_cq", kAll, 15) { NoneLost(false); }

FI_CASE("rm.enabled.no_receive_is_retried", kReliable) {
  Pair pair(Managed(FI_RM_ENABLED));
  Memory out(pair.a(), 3000), in(pair.b(), 3000);
  out.Fill(1);
  Send(pair.a(), out, 1);
  const auto early = AwaitAny(pair.a().tx_cq, 150);
  Expect(!early || early->error == 0, "the send fails with %s", NameOf(early->error).c_str());
  Receive(pair.b(), in);
  Await(pair.b().rx_cq, "the receive");
  Expect(in.Has(1, 3000), "wrong bytes");
  if (!early) Await(pair.a().tx_cq, "the send");
}

FI_CASE("rm.enabled.no_receive_is_dropped", kDgram) {
  Pair pair(Managed(FI_RM_ENABLED));
  Memory out(pair.a(), 64), in(pair.b(), 64);
  Send(pair.a(), out, 1);
  Await(pair.a().tx_cq, "a datagram that nobody receives");
  Receive(pair.b(), in);
  for (int i = 0; i < 3; ++i) Send(pair.a(), out, 2);
  Await(pair.b().rx_cq, "a later receive");
}

// A message longer than its receive: cut off or an error, never a byte more.
void Overrun(const Wish& wish) {
  Pair pair(wish);
  Memory out(pair.a(), 300), in(pair.b(), 300, 0, 0xEE);
  out.Fill(2);
  Receive(pair.b(), in, 1, 100);
  Send(pair.a(), out, 2);
  const auto got = AwaitAny(pair.b().rx_cq, IsReliable() ? 3000 : 300);
  Expect(in.IsAll(0xEE, 100, 300), "bytes behind the receive");
  const auto sent = AwaitAny(pair.a().tx_cq, 1000);
  if (got && got->error == FI_ETRUNC) {
    Expect(got->olen == 200 || got->olen == 0, "olen %zu", got->olen);
    Note("FI_ETRUNC, olen %zu", got->olen);
  } else if (got && got->error == 0) {
    Expect(got->len == 100, "len %zu of a receive of 100", got->len);
    Note("truncated");
  } else if (got) {
    Note("%s", NameOf(got->error).c_str());
  } else {
    Expect(!IsReliable() || (sent && sent->error != 0), "nobody is told");
    Note("%s", IsReliable() ? "transmit error" : "dropped");
  }
}
FI_CASE("rm.enabled.receive_overrun", kAll) { Overrun(Managed(FI_RM_ENABLED)); }
FI_CASE("rm.disabled.receive_overrun", kAll) { Overrun(Unmanaged()); }

FI_CASE("rm.receive_overrun_says_how_much", kAll) {
  Pair pair(Managed(FI_RM_ENABLED));
  Memory out(pair.a(), 300), in(pair.b(), 300, 0, 0xEE);
  out.Fill(2);
  Receive(pair.b(), in, 1, 100);
  Send(pair.a(), out, 2);
  const auto got = AwaitAny(pair.b().rx_cq, 2000 * Patience());
  Expect(got && got->error == FI_ETRUNC, "%s",
         got ? NameOf(got->error).c_str() : "no completion at the receiver");
  Expect(got->olen == 200 && got->context == ContextOf(1), "olen %zu", got->olen);
}

// --- RMA where it may not go -------------------------------------------------------------------

enum class Wrong { kKey, kPastEnd, kBefore, kRights, kClosed };

// A write (or read) that has to fail, and what becomes of the endpoint.
void MustFail(const Wish& wish, Wrong wrong, bool is_read, bool is_disabled_after) {
  Pair pair(wish);
  Memory local(pair.a(), 200),
      target(pair.b(), 100,
             wrong == Wrong::kRights ? (is_read ? FI_REMOTE_WRITE : FI_REMOTE_READ) : kRemote,
             0xEE);
  uint64_t key = target.key(), place = target.Remote();
  size_t bytes = 50;
  if (wrong == Wrong::kKey) key ^= 0x5A5A;
  if (wrong == Wrong::kPastEnd) bytes = 101;
  if (wrong == Wrong::kBefore) place -= 8;
  if (wrong == Wrong::kClosed) Need(target.mr().Close(), "fi_close of the memory");
  const long posted = Post([&] {
    return is_read ? fi_read(pair.a().ep, local.data(), bytes, local.desc(), pair.a().other, place,
                             key, ContextOf(1))
                   : fi_write(pair.a().ep, local.data(), bytes, local.desc(), pair.a().other, place,
                              key, ContextOf(1));
  });
  Need(posted, "posting");
  const Completion got = AwaitError(pair.a().tx_cq, is_read ? "the read" : "the write");
  Expect(got.context == ContextOf(1), "the error is of another operation");
  Expect(target.IsAll(0xEE, 0, 100), "it changed the target's memory");
  Note("%s", NameOf(got.error).c_str());
  if (!is_disabled_after) return;
  const long next =
      fi_send(pair.a().ep, local.data(), 10, local.desc(), pair.a().other, ContextOf(2));
  if (IsConnected()) {
    const Event event = NextEvent(*pair.a().eq, 2000);
    Expect(event.kind == FI_SHUTDOWN || event.error != 0 || next < 0,
           "the connection is not torn down");
    return;
  }
  Expect(next < 0 && next != -FI_EAGAIN, "a disabled endpoint takes a send: %s",
         NameOf(next).c_str());
  Need(fi_enable(pair.a().ep), "fi_enable again");
  Memory in(pair.b(), 10);
  local.Fill(4);
  Receive(pair.b(), in);
  Send(pair.a(), local, 3, 10);
  Await(pair.b().rx_cq, "a receive after enabling again");
  Expect(in.Has(4, 10), "wrong bytes after enabling again");
}

constexpr uint64_t kBoth = FI_MSG | FI_RMA;
FI_CASE("rm.enabled.unmatched_write", kReliable) {
  MustFail(Managed(FI_RM_ENABLED, kBoth), Wrong::kKey, false, false);
}
FI_CASE("rm.enabled.unmatched_read", kReliable) {
  MustFail(Managed(FI_RM_ENABLED, kBoth), Wrong::kKey, true, false);
}
FI_CASE("rm.enabled.write_overrun", kReliable) {
  MustFail(Managed(FI_RM_ENABLED, kBoth), Wrong::kPastEnd, false, false);
}
FI_CASE("rm.enabled.read_overrun", kReliable) {
  MustFail(Managed(FI_RM_ENABLED, kBoth), Wrong::kPastEnd, true, false);
}
FI_CASE("rm.enabled.write_before_begin", kReliable) {
  MustFail(Managed(FI_RM_ENABLED, kBoth), Wrong::kBefore, false, false);
}
FI_CASE("rm.enabled.write_without_right", kReliable) {
  MustFail(Managed(FI_RM_ENABLED, kBoth), Wrong::kRights, false, false);
}
FI_CASE("rm.enabled.read_without_right", kReliable) {
  MustFail(Managed(FI_RM_ENABLED, kBoth), Wrong::kRights, true, false);
}
FI_CASE("rm.enabled.write_to_closed_memory", kReliable) {
  MustFail(Managed(FI_RM_ENABLED, kBoth), Wrong::kClosed, false, false);
}
FI_CASE("rm.enabled.endpoint_disabled_by_error", kReliable) {
  MustFail(Managed(FI_RM_ENABLED, kBoth), Wrong::kKey, false, true);
}
FI_CASE("rm.disabled.unmatched_write", kReliable) {
  MustFail(Unmanaged(kBoth), Wrong::kKey, false, false);
}
FI_CASE("rm.disabled.write_overrun", kReliable) {
  MustFail(Unmanaged(kBoth), Wrong::kPastEnd, false, false);
}

// --- disabled ----------------------------------------------------------------------------------

FI_CASE("rm.disabled.no_receive", kReliable) {
  Pair pair(Unmanaged());
  Memory out(pair.a(), 64);
  Send(pair.a(), out, 1);
  const Completion got = AwaitError(pair.a().tx_cq, "a send to who has no receive");
  Expect(got.context == ContextOf(1), "the error is of another operation");
  Expect(got.error == FI_ENORX, "%s, not FI_ENORX", NameOf(got.error).c_str());
}

FI_CASE("rm.disabled.endpoint_disabled_by_error", kReliable) {
  Pair pair(Unmanaged());
  Memory out(pair.a(), 64), in(pair.b(), 64);
  out.Fill(5);
  Send(pair.a(), out, 1);
  AwaitError(pair.a().tx_cq, "a send to who has no receive");
  const long next = fi_send(pair.a().ep, out.data(), 64, out.desc(), pair.a().other, ContextOf(2));
  if (IsConnected()) {
    const Event event = NextEvent(*pair.a().eq, 2000);
    Expect(event.kind == FI_SHUTDOWN || event.error != 0 || next < 0,
           "the connection is not torn down");
    return;
  }
  Expect(next < 0 && next != -FI_EAGAIN, "a disabled endpoint takes a send: %s",
         NameOf(next).c_str());
  Need(fi_enable(pair.a().ep), "fi_enable again");
  Receive(pair.b(), in);
  Send(pair.a(), out, 3);
  Await(pair.b().rx_cq, "a receive after enabling again");
  Expect(in.Has(5, 64), "wrong bytes after enabling again");
}

// Each of many that wait when the endpoint is disabled fails once, and it goes on with others.
FI_CASE("rm.disabled.enable_with_many_outstanding", kMsg, 20) {
  constexpr size_t kSends = 600, kAfterwards = 10;
  Wish wish = Unmanaged();
  const auto hints = wish.hints;
  wish.hints = [=](fi_info* info) {
    hints(info);
    info->tx_attr->size = kSends;
  };
  Pair pair(wish);
  Memory out(pair.a(), 64), in(pair.b(), 64);
  const auto send = [&](size_t context) {
    return fi_send(pair.a().ep, out.data(), 64, out.desc(), pair.a().other, ContextOf(context));
  };
  for (size_t i = 0; i < kSends; ++i) Need(send(i), "fi_send");
  Expect(AwaitError(pair.a().tx_cq, "a send to who has no receive").context == ContextOf(0),
         "the error is of another operation");
  const int enabled = fi_enable(pair.a().ep);
  if (IsConnected() && enabled == -FI_ENOTCONN) DoesNotApply("the connection is torn down");
  Need(enabled, "fi_enable again");
  std::vector<int> times(kSends);
  times[0] = 1;
  for (size_t i = 1; i < kSends; ++i) {
    const Completion got = AwaitError(pair.a().tx_cq, "a send behind it");
    const size_t number =
        static_cast<fi_context2*>(got.context) - static_cast<fi_context2*>(ContextOf(0));
    Expect(number < kSends && times[number]++ == 0, "the send %zu completes again", number);
  }
  for (size_t i = 0; i < kAfterwards; ++i) {
    Receive(pair.b(), in);
    Need(send(kSends + i), "fi_send after enabling again");
  }
  for (size_t i = 0; i < kAfterwards; ++i) {
    Expect(Await(pair.a().tx_cq, "a send after enabling again").context == ContextOf(kSends + i),
           "another's context");
    Await(pair.b().rx_cq, "a receive after enabling again");
  }
  ExpectNothing(pair.a().tx_cq, 50, "all has completed");
}

FI_CASE("rm.disabled.no_receive_is_dropped", kDgram) {
  Pair pair(Unmanaged());
  Memory out(pair.a(), 64);
  Send(pair.a(), out, 1);
  Await(pair.a().tx_cq, "a datagram that nobody receives");
}

void UndefinedError(bool is_transmit) {
  Pair pair(Unmanaged());
  Memory memory(is_transmit ? pair.a() : pair.b(), 64);
  long result = 0;
  const size_t posted = FillUp(
      [&] {
        return is_transmit ? fi_send(pair.a().ep, memory.data(), 64, memory.desc(), pair.a().other,
                                     ContextOf(0))
                           : fi_recv(pair.b().ep, memory.data(), 64, memory.desc(), FI_ADDR_UNSPEC,
                                     ContextOf(0));
      },
      &result);
  Note("%s after %zu", NameOf(result).c_str(), posted);
}
FI_CASE("rm.disabled.tx_full", kAll, 20) { UndefinedError(true); }
FI_CASE("rm.disabled.rx_full", kAll, 20) { UndefinedError(false); }

// Reliable is once: what the peer has is not sent to it again because a READ before it failed.
FI_CASE("rm.failed_read_repeats_nothing", kRdm, 20) {
  constexpr size_t kRounds = 20, kBytes = 4096;
  Wish wish = Managed(FI_RM_ENABLED, FI_MSG | FI_RMA);
  wish.mr_mode = kAnyMrMode & ~FI_MR_LOCAL;
  Pair pair(wish);
  if ((pair.a().info->domain_attr->mr_mode & FI_MR_LOCAL) != 0) DoesNotApply("FI_MR_LOCAL");
  Memory target(pair.b(), kBytes, kRemote), in(pair.b(), 2 * kRounds * sizeof(size_t));
  void* gone = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Expect(gone != MAP_FAILED, "mmap");
  munmap(gone, kBytes);
  size_t arrived = 0, failed = 0;
  auto* numbers = reinterpret_cast<size_t*>(in.data());
  for (size_t i = 0; i < 2 * kRounds; ++i) {
    Need(fi_recv(pair.b().ep, numbers + i, sizeof(size_t), in.desc(), FI_ADDR_UNSPEC, ContextOf(i)),
         "fi_recv");
  }
  for (size_t i = 0; i < kRounds; ++i) {
    Memory out(pair.a(), sizeof(size_t));
    memcpy(out.data(), &i, sizeof(i));
    const long read = Post([&] {
      return fi_read(pair.a().ep, gone, kBytes, nullptr, pair.a().other, target.Remote(),
                     target.key(), ContextOf(1));
    });
    Need(read, "fi_read");
    Send(pair.a(), out, 2, sizeof(size_t));
    for (int completions = 0; completions < 2; ++completions) {
      const auto got = AwaitAny(pair.a().tx_cq);
      Expect(got.has_value(), "of the read and the send %d completed", completions);
      if (got->context == ContextOf(1)) Expect(got->error != 0, "the read succeeds");
      if (got->context == ContextOf(2) && got->error != 0) ++failed;
    }
  }
  std::vector<int> times(kRounds);
  while (AwaitAny(pair.b().rx_cq, 200)) {
    const size_t number = numbers[arrived++];
    Expect(number < kRounds && times[number]++ == 0, "the message %zu came again", number);
  }
  Expect(arrived + failed >= kRounds, "%zu of %zu came, %zu failed", arrived, kRounds, failed);
  Note("%zu came, %zu failed", arrived, failed);
}

// What is wrong with one receive is that one's: those behind it take what comes, and sends leave.
FI_CASE("rm.receive_without_memory_fails_alone", kAddressed, 20) {
  constexpr size_t kBytes = 4096, kMessages = 8;
  Wish wish = Managed(FI_RM_ENABLED);
  wish.mr_mode = kAnyMrMode & ~FI_MR_LOCAL;
  Pair pair(wish);
  if ((pair.a().info->domain_attr->mr_mode & FI_MR_LOCAL) != 0) DoesNotApply("FI_MR_LOCAL");
  void* gone = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Expect(gone != MAP_FAILED, "mmap");
  munmap(gone, kBytes);
  Memory out(pair.a(), 64), in(pair.b(), 64);
  Need(fi_recv(pair.b().ep, gone, 64, nullptr, FI_ADDR_UNSPEC, ContextOf(1)), "fi_recv");
  Receive(pair.b(), in, 2);
  Send(pair.a(), out);
  const Completion failed = AwaitError(pair.b().rx_cq, "the receive without memory");
  Expect(failed.context == ContextOf(1), "the error is of another receive");
  Note("%s", NameOf(failed.error).c_str());
  for (size_t i = 0; i < kMessages; ++i) {
    out.Fill(i);
    Send(pair.a(), out);
    Expect(Await(pair.b().rx_cq, "a receive behind it").context == ContextOf(2 + i),
           "receive %zu is another", i);
    Expect(in.Has(i, 64), "wrong bytes in receive %zu", i);
    Receive(pair.b(), in, 3 + i);
  }
  Memory back(pair.a(), 64), answer(pair.b(), 64);
  Receive(pair.a(), back, 20);
  Send(pair.b(), answer, 21);
  Await(pair.b().tx_cq, "a send of the endpoint whose receive failed");
  Await(pair.a().rx_cq, "the receive of that");
}

// fi_endpoint(3): critical errors are told by the event queue of the endpoint.
FI_CASE("rm.disabled.error_is_told_by_the_eq", kReliable) {
  Wish wish = Unmanaged();
  wish.unenabled = [](Peer& peer) {
    if (!IsConnected()) Need(fi_ep_bind(peer.ep, peer.eq->Base(), 0), "fi_ep_bind EQ");
  };
  Pair pair(wish);
  Memory out(pair.a(), 64);
  Send(pair.a(), out, 1);
  AwaitError(pair.a().tx_cq, "a send to who has no receive");
  const Event told = NextEvent(*pair.a().eq);
  Expect(told.error == FI_ENORX, "the EQ tells of %s", NameOf(-told.error).c_str());
  Expect(told.fid == pair.a().ep.Base(), "of another object");
  Expect(NextEvent(*pair.a().eq, 50).result == -FI_EAGAIN, "told twice");
}

FI_CASE("rm.selective_completion_errors_come", kReliable) {
  Wish wish = Managed(FI_RM_ENABLED, kBoth);
  wish.tx_bind = FI_SELECTIVE_COMPLETION;
  Pair pair(wish);
  Memory out(pair.a(), 64), target(pair.b(), 64, kRemote);
  const iovec from = {out.data(), 64};
  void* desc = out.desc();
  fi_rma_iov to = {target.Remote(), 64, target.key()};
  const fi_msg_rma message = {&from, &desc, 1, pair.a().other, &to, 1, ContextOf(1), 0};
  Need(Post([&] { return fi_writemsg(pair.a().ep, &message, 0); }), "fi_writemsg");
  ExpectNothing(pair.a().tx_cq, 100, "a write without FI_COMPLETION");
  to.key ^= 0x5A5A;
  Need(Post([&] { return fi_writemsg(pair.a().ep, &message, 0); }), "fi_writemsg");
  AwaitError(pair.a().tx_cq, "a write with a bad key, without FI_COMPLETION");
}

}  // namespace
}  // namespace verbena::fi_test
