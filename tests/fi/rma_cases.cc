// fi_rma(3): reads and writes, and what the target is told of them.
#include <string.h>

#include <algorithm>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

constexpr uint64_t kRemote = FI_REMOTE_READ | FI_REMOTE_WRITE;
const Wish kRma = {.caps = FI_MSG | FI_RMA};

FI_CASE("rma.write_sizes", kReliable) {
  Pair pair(kRma);
  uint32_t seed = 1;
  for (const size_t bytes : {1UL, 8UL, 100UL, 4096UL, 65537UL, 2000000UL}) {
    Memory out(pair.a(), bytes), target(pair.b(), bytes + 64, kRemote, 0xEE);
    out.Fill(++seed);
    Need(Write(pair.a(), out, target, 1, FI_DELIVERY_COMPLETE), "fi_writemsg");
    const Completion got = Await(pair.a().tx_cq, "the write");
    Expect(got.context == ContextOf(1) && (got.flags & (FI_RMA | FI_WRITE)) == (FI_RMA | FI_WRITE),
           "context or flags %#llx", static_cast<unsigned long long>(got.flags));
    Expect(target.Has(seed, bytes), "wrong bytes of %zu", bytes);
    Expect(target.IsAll(0xEE, bytes, bytes + 64), "bytes behind a write of %zu", bytes);
  }
}

FI_CASE("rma.read_sizes", kReliable) {
  Pair pair(kRma);
  uint32_t seed = 1;
  for (const size_t bytes : {1UL, 8UL, 100UL, 4096UL, 65537UL, 2000000UL}) {
    Memory in(pair.a(), bytes), source(pair.b(), bytes, kRemote);
    source.Fill(++seed);
    Need(Post([&] {
           return fi_read(pair.a().ep, in.data(), bytes, in.desc(), pair.a().other, source.Remote(),
                          source.key(), ContextOf(1));
         }),
         "fi_read");
    const Completion got = Await(pair.a().tx_cq, "the read");
    Expect((got.flags & (FI_RMA | FI_READ)) == (FI_RMA | FI_READ), "flags %#llx",
           static_cast<unsigned long long>(got.flags));
    Expect(in.Has(seed, bytes), "wrong bytes of %zu", bytes);
  }
}

FI_CASE("rma.more_targets_than_size", kReliable) {
  constexpr size_t kTargets = 8, kSize = 4, kBytes = 16;
  Wish wish = kRma;
  wish.hints = [](fi_info* hints) { hints->tx_attr->rma_iov_limit = kTargets; };
  wish.chosen = [](fi_info* info) { info->tx_attr->size = kSize; };
  Info info;
  if (TryGetInfo(wish, &info) != 0) Refuse("rma_iov_limit %zu is not offered", kTargets);
  Pair pair(wish);
  Memory out(pair.a(), kTargets * kBytes), target(pair.b(), kTargets * kBytes, kRemote);
  out.Fill(3);
  const iovec from = {out.data(), out.size()};
  void* desc = out.desc();
  fi_rma_iov to[kTargets];
  for (size_t i = 0; i < kTargets; ++i) to[i] = {target.Remote(i * kBytes), kBytes, target.key()};
  const fi_msg_rma message = {&from, &desc, 1, pair.a().other, to, kTargets, ContextOf(1), 0};
  for (size_t i = 0; i < kSize; ++i) {
    Need(Post([&] { return fi_writemsg(pair.a().ep, &message, FI_DELIVERY_COMPLETE); }),
         "fi_writemsg of more ranges than size");
  }
  for (size_t i = 0; i < kSize; ++i) Await(pair.a().tx_cq, "a write");
  Expect(target.Has(3, kTargets * kBytes), "wrong bytes");
}

FI_CASE("rma.offsets", kReliable) {
  Pair pair(kRma);
  Memory out(pair.a(), 100), target(pair.b(), 300, kRemote, 0xEE);
  out.Fill(3);
  Need(Post([&] {
         return fi_write(pair.a().ep, out.data(), 100, out.desc(), pair.a().other,
                         target.Remote(100), target.key(), ContextOf(1));
       }),
       "fi_write");
  Await(pair.a().tx_cq, "the write");
  Expect(WaitUntil([&] { return target.Has(3, 100, 100); }), "the bytes are elsewhere");
  Expect(target.IsAll(0xEE, 0, 100) && target.IsAll(0xEE, 200, 300), "bytes beside them");
}

FI_CASE("rma.vectors", kReliable) {
  Pair pair(kRma);
  const size_t locals = std::clamp<size_t>(pair.a().info->tx_attr->iov_limit, 1, 4);
  const size_t remotes = std::clamp<size_t>(pair.a().info->tx_attr->rma_iov_limit, 1, 4);
  Memory out(pair.a(), 1200), target(pair.b(), 2 * 1200, kRemote, 0xEE);
  out.Fill(4);
  std::vector<iovec> from(locals);
  std::vector<void*> desc(locals, out.desc());
  std::vector<fi_rma_iov> to(remotes);
  for (size_t i = 0; i < locals; ++i) from[i] = {out.data() + i * (1200 / locals), 1200 / locals};
  for (size_t i = 0; i < remotes; ++i) {
    to[i] = {target.Remote(i * 2 * (1200 / remotes)), 1200 / remotes, target.key()};
  }
  fi_msg_rma message = {from.data(), desc.data(), locals,       pair.a().other,
                        to.data(),   remotes,     ContextOf(1), 0};
  for (const bool is_read : {false, true}) {
    if (is_read) memset(out.data(), 0, 1200);
    Need(Post([&] {
           return is_read
                      ? fi_readmsg(pair.a().ep, &message, FI_COMPLETION)
                      : fi_writemsg(pair.a().ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
         }),
         is_read ? "fi_readmsg" : "fi_writemsg");
    Await(pair.a().tx_cq, is_read ? "the read" : "the write");
    Expect(!is_read || out.Has(4, 1200), "the read brings other bytes");
  }
  Note("%zu local, %zu remote", locals, remotes);
}

FI_CASE("rma.inject_write", kReliable) {
  Pair pair(kRma);
  const size_t bytes = std::min<size_t>(pair.a().info->tx_attr->inject_size, 4096);
  if (bytes == 0) Refuse("inject_size 0");
  Memory target(pair.b(), bytes, kRemote), pattern(pair.a(), bytes);
  pattern.Fill(5);
  std::vector<uint8_t> out(pattern.data(), pattern.data() + bytes);
  Need(Post([&] {
         return fi_inject_write(pair.a().ep, out.data(), bytes, pair.a().other, target.Remote(),
                                target.key());
       }),
       "fi_inject_write");
  std::fill(out.begin(), out.end(), 0);
  Expect(WaitUntil([&] { return target.Has(5, bytes); }), "the bytes did not come");
  ExpectNothing(pair.a().tx_cq, 50, "fi_inject_write has no completion");
}

void WithData(bool is_injected) {
  Pair pair(kRma);
  if (pair.a().info->domain_attr->cq_data_size == 0) Refuse("cq_data_size 0");
  Memory out(pair.a(), 64), target(pair.b(), 64, kRemote), in(pair.b(), 64);
  out.Fill(6);
  if ((pair.b().info->mode & FI_RX_CQ_DATA) != 0) Receive(pair.b(), in);
  Need(Post([&] {
         return is_injected
                    ? fi_inject_writedata(pair.a().ep, out.data(), 64, 0x12345678, pair.a().other,
                                          target.Remote(), target.key())
                    : fi_writedata(pair.a().ep, out.data(), 64, out.desc(), 0x12345678,
                                   pair.a().other, target.Remote(), target.key(), ContextOf(1));
       }),
       is_injected ? "fi_inject_writedata" : "fi_writedata");
  const Completion got = Await(pair.b().rx_cq, "the target's completion");
  Expect((got.flags & FI_REMOTE_CQ_DATA) != 0 && got.data == 0x12345678, "flags %#llx data %#llx",
         static_cast<unsigned long long>(got.flags), static_cast<unsigned long long>(got.data));
  Expect((got.flags & (FI_RMA | FI_REMOTE_WRITE)) == (FI_RMA | FI_REMOTE_WRITE),
         "not said to be a remote write: flags %#llx", static_cast<unsigned long long>(got.flags));
  Expect((pair.b().info->mode & FI_RX_CQ_DATA) != 0 || got.context == nullptr,
         "a context where no operation was posted");
  Expect(target.Has(6, 64), "the completion is before the bytes");
}
FI_CASE("rma.write_cq_data", kReliable) { WithData(false); }
FI_CASE("rma.inject_write_cq_data", kReliable) { WithData(true); }

void AtLevel(uint64_t level) {
  Wish wish = kRma;
  wish.hints = [=](fi_info* hints) { hints->tx_attr->op_flags = level; };
  Pair pair(wish);
  Memory out(pair.a(), 4096), target(pair.b(), 4096, kRemote);
  out.Fill(7);
  Need(Write(pair.a(), out, target, 1, level), "fi_writemsg");
  Await(pair.a().tx_cq, "the write");
  if (level == FI_DELIVERY_COMPLETE) {
    Expect(target.Has(7, 4096), "the completion is before the bytes");
  } else {
    Expect(WaitUntil([&] { return target.Has(7, 4096); }), "the bytes did not come");
  }
}
FI_CASE("rma.inject_complete", kReliable) { AtLevel(FI_INJECT_COMPLETE); }
FI_CASE("rma.transmit_complete", kReliable) { AtLevel(FI_TRANSMIT_COMPLETE); }
FI_CASE("rma.delivery_complete", kReliable) { AtLevel(FI_DELIVERY_COMPLETE); }

FI_CASE("rma.commit_complete", kReliable) {
  Wish wish = {.caps = FI_MSG | FI_RMA | FI_RMA_PMEM};
  Pair pair(wish);
  Memory out(pair.a(), 4096), target(pair.b(), 4096, kRemote);
  out.Fill(7);
  Need(Write(pair.a(), out, target, 1, FI_COMMIT_COMPLETE), "fi_writemsg");
  Await(pair.a().tx_cq, "the write");
  Expect(target.Has(7, 4096), "the completion is before the bytes");
}

FI_CASE("rma.fence_read_after_write", kReliable) {
  Wish wish = {.caps = FI_MSG | FI_RMA | FI_FENCE};
  Pair pair(wish);
  Memory out(pair.a(), 100'000), in(pair.a(), 100'000), target(pair.b(), 100'000, kRemote);
  out.Fill(8);
  Need(Write(pair.a(), out, target, 1), "fi_writemsg");
  const iovec to = {in.data(), in.size()};
  const fi_rma_iov from = {target.Remote(), in.size(), target.key()};
  void* desc = in.desc();
  const fi_msg_rma message = {&to, &desc, 1, pair.a().other, &from, 1, ContextOf(2), 0};
  Need(Post([&] { return fi_readmsg(pair.a().ep, &message, FI_FENCE | FI_COMPLETION); }),
       "fi_readmsg");
  Expect(Await(pair.a().tx_cq, "the write").context == ContextOf(1), "the read came first");
  Await(pair.a().tx_cq, "the read");
  Expect(in.Has(8, in.size()), "the fenced read saw old bytes");
}

// An endpoint's default flags hold for what they can hold for: a read injects nothing.
FI_CASE("rma.read_with_inject_by_default", kReliable) {
  Wish wish = kRma;
  wish.hints = [](fi_info* hints) { hints->tx_attr->op_flags = FI_INJECT; };
  Pair pair(wish);
  Memory in(pair.a(), 64), source(pair.b(), 64, kRemote);
  source.Fill(6);
  const iovec to = {in.data(), in.size()};
  void* desc = in.desc();
  Need(Post([&] {
         return fi_readv(pair.a().ep, &to, &desc, 1, pair.a().other, source.Remote(), source.key(),
                         ContextOf(1));
       }),
       "fi_readv");
  Await(pair.a().tx_cq, "the read");
  Expect(in.Has(6, 64), "wrong bytes");
}

FI_CASE("rma.order_raw_waw", kReliable) {
  Wish wish = kRma;
  wish.hints = [](fi_info* hints) {
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_RAW | FI_ORDER_WAW;
    hints->ep_attr->max_order_raw_size = hints->ep_attr->max_order_waw_size = 8;
  };
  Pair pair(wish);
  Memory out(pair.a(), 8 * 32), in(pair.a(), 8), target(pair.b(), 8, kRemote);
  for (int i = 0; i < 32; ++i) {
    memset(out.data() + 8 * i, i, 8);
    Need(Post([&] {
           return fi_write(pair.a().ep, out.data() + 8 * i, 8, out.desc(), pair.a().other,
                           target.Remote(), target.key(), ContextOf(i));
         }),
         "fi_write");
  }
  Need(Post([&] {
         return fi_read(pair.a().ep, in.data(), 8, in.desc(), pair.a().other, target.Remote(),
                        target.key(), ContextOf(32));
       }),
       "fi_read");
  for (int i = 0; i < 33; ++i) Await(pair.a().tx_cq, "an operation");
  Expect(in.IsAll(31, 0, 8), "the read is not of the last write: %d", in.data()[0]);
}

// The target's counters count what peers write and read, by FI_RMA_EVENT.
void CountsAtTarget(uint64_t flag) {
  Wish passive = {.caps = FI_MSG | FI_RMA | FI_RMA_EVENT};
  Fid<fid_cntr> cntr;
  passive.unenabled = [&](Peer& peer) {
    cntr = OpenCntr(peer.domain);
    Need(fi_ep_bind(peer.ep, cntr.Base(), flag), "fi_ep_bind counter");
  };
  Wish active = {.caps = FI_MSG | FI_RMA | FI_RMA_EVENT};
  {
    Pair pair(active, passive);
    Memory out(pair.a(), 100), target(pair.b(), 100, kRemote);
    for (int i = 0; i < 5; ++i) {
      Need(Post([&] {
             return flag == FI_REMOTE_WRITE
                        ? fi_write(pair.a().ep, out.data(), 100, out.desc(), pair.a().other,
                                   target.Remote(), target.key(), ContextOf(i))
                        : fi_read(pair.a().ep, out.data(), 100, out.desc(), pair.a().other,
                                  target.Remote(), target.key(), ContextOf(i));
           }),
           "posting");
      Await(pair.a().tx_cq, "an operation");
    }
    Expect(WaitUntil([&] { return fi_cntr_read(cntr) == 5; }), "the counter says %llu of 5",
           static_cast<unsigned long long>(fi_cntr_read(cntr)));
    pair.left.reset();
    pair.right->ep.Close();
    cntr.Close();
  }
}
FI_CASE("rma.event_remote_write", kReliable) { CountsAtTarget(FI_REMOTE_WRITE); }
FI_CASE("rma.event_remote_read", kReliable) { CountsAtTarget(FI_REMOTE_READ); }

}  // namespace
}  // namespace verbena::fi_test
