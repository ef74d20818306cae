// What must be refused, and what must fail.
#include <string.h>

#include "tests/fi/fuzz_traffic.h"

namespace verbena::fi_test {

constexpr uint64_t kNobodysFlag = 1ULL << 62;

void Traffic::StepWrongly() {
  Side& side = AnySide();
  Side& other = AnyBut(side);
  Peer& peer = *side.peer;
  const fi_addr_t whom = Address(side, other);
  const fi_info& info = *peer.info;
  void* desc = side.out->desc();
  uint8_t* data = side.out->data();
  void* context = ContextOf(sides_.size() * kContextsOfSide);
  long result = -1;
  const char* what = "";
  switch (dice_.Below(has_rma_ ? 9 : 7)) {
    case 0:
      result = fi_send(peer.ep, data, info.ep_attr->max_msg_size + 1, desc, whom, context);
      what = "a message that is too long";
      break;
    case 1:
      result = fi_inject(peer.ep, data, info.tx_attr->inject_size + 1, whom);
      what = "too much for fi_inject";
      break;
    case 2: {
      const std::vector<iovec> pieces(info.tx_attr->iov_limit + 1, {data, 1});
      std::vector<void*> descs(pieces.size(), desc);
      result = fi_sendv(peer.ep, pieces.data(), descs.data(), pieces.size(), whom, context);
      what = "a message of too many pieces";
      break;
    }
    case 3: {
      const iovec piece = {data, 8};
      const fi_msg message = {&piece, &desc, 1, whom, context, 0};
      result = fi_sendmsg(peer.ep, &message, kNobodysFlag);
      what = "fi_sendmsg with an unknown flag";
      break;
    }
    case 4: {
      const std::vector<iovec> pieces(info.rx_attr->iov_limit + 1, {side.in->data(), 1});
      std::vector<void*> descs(pieces.size(), side.in->desc());
      result =
          fi_recvv(peer.ep, pieces.data(), descs.data(), pieces.size(), FI_ADDR_UNSPEC, context);
      what = "a receive of too many pieces";
      break;
    }
    case 5:
      result = fi_ep_bind(peer.ep, peer.tx_cq.Base(), FI_TRANSMIT);
      what = "a second CQ of an endpoint that is enabled";
      break;
    case 6:
      if (IsConnected()) return;
      result = fi_send(peer.ep, data, 8, desc, 12345, context);
      what = "a message to nobody";
      break;
    case 7: {
      const iovec piece = {data, 8};
      Memory& target = *other.written;
      const fi_rma_iov place = {target.Remote(), 9, target.key()};
      const fi_msg_rma message = {&piece, &desc, 1, whom, &place, 1, context, 0};
      result = fi_writemsg(peer.ep, &message, 0);
      what = "a write whose ends differ in length";
      break;
    }
    default: {
      const iovec piece = {data, 8};
      Memory& target = *other.written;
      const fi_rma_iov place = {target.Remote(), 8, target.key()};
      const fi_msg_rma message = {&piece, &desc, 1, whom, &place, 1, context, 0};
      result = fi_readmsg(peer.ep, &message, FI_INJECT);
      what = "a read that injects";
    }
  }
  Expect(result < 0 && result != -FI_EAGAIN, "%s: %s", what, NameOf(result).c_str());
}

void Traffic::Fail() {
  if (!has_rma_) return;
  Side& side = AnySide();
  Side& other = AnyBut(side);
  Peer& peer = *side.peer;
  const fi_addr_t whom = Address(side, other);
  Memory& target = *other.written;
  const bool is_beyond = dice_.Chance(50);
  void* context = TakeContext(side);
  if (context == nullptr) return;
  const long result = Post([&] {
    return fi_write(peer.ep, side.out->data(), is_beyond ? 101 : 50, side.out->desc(), whom,
                    target.Remote(is_beyond ? kWrittenBytes - 100 : 0),
                    is_beyond ? target.key() : target.key() ^ 0x5a5a, context);
  });
  Need(result, "a write that will fail");
  is_over_ = true;
  side.under_way.emplace(context, Operation{Kind::kWrite});
  // On a bad network the refusal may be lost; then it fails when its retries are used up. If what
  // acknowledged the ones before it is lost, too, the first of those does: its peer is silent.
  const auto got = AwaitAny(peer.tx_cq, kLimitMs);
  Expect(got && got->error != 0, "a write that must fail does not");
  Expect(got->context == context || got->error == FI_ETIMEDOUT, "another operation fails: %s",
         NameOf(-got->error).c_str());
  side.under_way.clear();
  Expect(IsWritten(other, {0, kWrittenBytes}), "a refused write changes memory");
  for (int i = 0; i < 20; ++i) {
    void* next = TakeContext(side);
    if (next == nullptr) break;
    const long sent = fi_send(peer.ep, side.out->data(), 8, side.out->desc(), whom, next);
    if (sent < 0) break;
    if (!is_selective_) side.under_way.emplace(next, Operation{Kind::kSend});
  }
  if (!IsConnected()) return ExpectThirdIsHeard(side, other);
  Expect(WaitUntil([&] { return Look(), side.under_way.empty(); }, kLimitMs),
         "%zu operations never complete behind one that failed", side.under_way.size());
}

// Of what failed between two, the third knows nothing.
void Traffic::ExpectThirdIsHeard(Side& failed, Side& other) {
  if (sides_.size() < 3 || !IsReliable()) return;
  const size_t third = 3 - failed.index - other.index;
  Peer& from = *sides_[third].peer;
  const size_t number = ++numbers_;
  memcpy(sides_[third].out->data(), &number, sizeof(number));
  PostReceive(other);
  Need(Post([&] {
         return fi_send(from.ep, sides_[third].out->data(), sizeof(number),
                        sides_[third].out->desc(), Address(sides_[third], other),
                        ContextOf(sides_.size() * kContextsOfSide));
       }),
       "a send of a third one");
  Expect(WaitUntil(
             [&] {
               const auto got = PollCq(other.peer->rx_cq);
               if (!got || got->error != 0 || (got->flags & FI_RECV) == 0) return false;
               if (got->buf != nullptr && memcmp(got->buf, &number, sizeof(number)) == 0) {
                 return true;
               }
               // Where the refusal was lost, the one that failed has gone on, and took a receive.
               PostReceive(other);
               return false;
             },
             kLimitMs),
         "what a third one sends does not arrive");
}

void Traffic::Abandon() {
  for (int i = 0; i < 40; ++i) Step();
  is_over_ = true;
  Side& gone = AnySide();
  Side& left = AnyBut(gone);
  Need(gone.peer->ep.Close(), "fi_close of an endpoint with work under way");
  gone.under_way.clear();
  if (!IsConnected()) return;
  Expect(WaitUntil([&] { return Look(), left.under_way.empty(); }, kLimitMs),
         "%zu operations never complete when their peer is closed", left.under_way.size());
}

}  // namespace verbena::fi_test
