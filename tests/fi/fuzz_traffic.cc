#include "tests/fi/fuzz_traffic.h"

#include <string.h>

#include <algorithm>
#include <array>

namespace verbena::fi_test {
namespace {

constexpr uint64_t kRemote = FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr size_t kMessageBytesMax = 9000;
constexpr size_t kOutBytes = 1 << 20, kReceives = 400, kReadableBytes = 64 << 10;
constexpr size_t kAhead = 16;   // messages for which the receives are still to be posted
constexpr size_t kOfMulti = 4;  // messages of full length that a multi-receive has room for
constexpr uint8_t kUntouched = 0xEE;

uint8_t ByteOf(size_t number, size_t i) {
  return static_cast<uint8_t>(number * 131 + i * 7 + (i >> 8) * 3);
}

constexpr size_t kReadableNumber = 77;

// Descriptors of that many pieces of one region.
std::array<void*, 4> Descs(void* desc) { return {desc, desc, desc, desc}; }

}  // namespace

size_t Dice::Skewed(size_t most) {
  size_t limit = most + 1;
  for (size_t halvings = Below(12); halvings > 0 && limit > 1; --halvings) limit = (limit + 1) / 2;
  return Below(limit);
}

Wish Traffic::MakeWish(Dice& dice, std::vector<Fid<fid_cntr>>* counters) {
  Wish wish = {.caps = RmaCaps()};
  Info info;
  if (TryGetInfo(wish, &info) != 0) wish.caps = FI_MSG;
  // It has one thread, which keeps to each model.
  const auto threading = static_cast<fi_threading>(dice.Below(FI_THREAD_ENDPOINT + 1));
  wish.hints = [=](fi_info* hints) { hints->domain_attr->threading = threading; };
  for (const uint64_t more :
       {FI_RMA_EVENT, FI_SOURCE, FI_SOURCE_ERR, FI_AV_USER_ID, FI_FENCE, FI_MULTI_RECV}) {
    Wish with = wish;
    with.caps |= more;
    if (dice.Chance(50) && TryGetInfo(with, &info) == 0) wish = with;
  }
  if (dice.Chance(50)) wish.tx_bind = FI_SELECTIVE_COMPLETION;
  if (dice.Chance(50)) {
    wish.unenabled = [counters](Peer& peer) {
      for (const uint64_t events : {FI_SEND | FI_WRITE | FI_READ, FI_RECV}) {
        counters->push_back(OpenCntr(peer.domain));
        Need(fi_ep_bind(peer.ep, counters->back().Base(), events), "fi_ep_bind of a counter");
      }
    };
  }
  return wish;
}

Crowd::Crowd(const Wish& wish, size_t count) {
  if (IsConnected()) {
    Pair pair(wish);
    addresses_ = {{0, pair.a().other}, {pair.b().other, 0}};
    peers_.push_back(std::move(pair.left));
    peers_.push_back(std::move(pair.right));
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    Peer& peer = *peers_.emplace_back(std::make_unique<Peer>(wish));
    peer.Start();
  }
  addresses_.assign(count, std::vector<fi_addr_t>(count));
  for (size_t from = 0; from < count; ++from) {
    for (size_t to = 0; to < count; ++to) {
      if (from != to) addresses_[from][to] = peers_[from]->Insert(*peers_[to]);
    }
  }
}

Traffic::Traffic(Crowd& crowd, Dice& dice, const std::vector<Fid<fid_cntr>>& counters)
    : crowd_(crowd), dice_(dice) {
  has_rma_ = (crowd[0].wish.caps & FI_RMA) != 0;
  has_multi_ = (crowd[0].wish.caps & FI_MULTI_RECV) != 0;
  is_selective_ = crowd[0].wish.tx_bind != 0;
  for (size_t i = 0; i < crowd.size(); ++i) {
    Side& side = sides_.emplace_back();
    Peer& peer = crowd[i];
    side.peer = &peer;
    side.index = i;
    side.coming.resize(crowd.size());
    if (!counters.empty()) {
      side.tx_cntr = counters[2 * i];
      side.rx_cntr = counters[2 * i + 1];
    }
    side.out = std::make_unique<Memory>(peer, kOutBytes);
    side.in = std::make_unique<Memory>(peer, kReceives * kMessageBytesMax, 0, kUntouched);
    side.first_context = i * kContextsOfSide;
    if (has_multi_) {
      size_t least = kMessageBytesMax;
      Need(fi_setopt(peer.ep.Base(), FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)),
           "FI_OPT_MIN_MULTI_RECV");
    }
    if (!has_rma_) continue;
    side.written = std::make_unique<Memory>(peer, kWrittenBytes, kRemote, kUntouched);
    side.model.assign(kWrittenBytes, kUntouched);
    side.readable = std::make_unique<Memory>(peer, kReadableBytes, FI_REMOTE_READ);
    for (size_t at = 0; at < kReadableBytes; ++at) {
      side.readable->data()[at] = ByteOf(kReadableNumber, at);
    }
  }
}

void Traffic::Step() {
  Side& side = AnySide();
  switch (dice_.Below(12)) {
    case 0:
    case 1:
    case 2:
      PostReceive(side);
      return;
    case 3:
      if (dice_.Chance(30)) Cancel(side);
      return;
    case 4:
    case 5:
    case 6:
      return Send(side);
    case 7:
      return Write(side);
    case 8:
      return Read(side);
    default:
      return Look();
  }
}

// --- making calls --------------------------------------------------------------------------------

Traffic::Call Traffic::ChooseCall(const Side& side, Kind kind, size_t bytes) {
  Call call;
  const fi_tx_attr& tx = *side.peer->info->tx_attr;
  const bool may_inject = kind != Kind::kRead && bytes <= tx.inject_size;
  const bool may_have_data = kind != Kind::kRead &&
                             side.peer->info->domain_attr->cq_data_size > 0 &&
                             (kind == Kind::kSend || (side.peer->info->mode & FI_RX_CQ_DATA) == 0);
  call.takes_flags = dice_.Chance(40);
  call.is_injected = may_inject && dice_.Chance(25);
  // Words of 32 bits are what every provider with data has.
  if (may_have_data && dice_.Chance(25)) call.data = ++numbers_;
  if (!call.is_injected && !(call.data && !call.takes_flags)) {
    const size_t limit = kind == Kind::kSend ? tx.iov_limit : tx.rma_iov_limit;
    call.pieces = 1 + dice_.Below(std::min<size_t>(limit, 4));
  }
  if (!call.takes_flags) {
    call.is_quiet = call.is_injected || is_selective_;
    return call;
  }
  if (call.is_injected) call.flags |= FI_INJECT;
  if (call.data) call.flags |= FI_REMOTE_CQ_DATA;
  if (dice_.Chance(50)) call.flags |= FI_COMPLETION;
  if ((side.peer->wish.caps & FI_FENCE) != 0 && dice_.Chance(20)) call.flags |= FI_FENCE;
  if (kind != Kind::kRead && IsReliable()) {
    const uint64_t levels[] = {0, FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE};
    call.flags |= levels[dice_.Below(4)];
  }
  call.is_quiet = is_selective_ && (call.flags & FI_COMPLETION) == 0;
  return call;
}

uint8_t* Traffic::TakeOut(Side& side, size_t bytes) {
  if (bytes > kOutBytes - side.out_used) return nullptr;
  uint8_t* data = side.out->data() + side.out_used;
  side.out_used += bytes;
  return data;
}

std::vector<iovec> Traffic::Cut(uint8_t* data, size_t bytes, size_t pieces) {
  std::vector<iovec> cut;
  for (; pieces > 1; --pieces) {
    const size_t some = dice_.Below(bytes + 1);
    cut.push_back({data, some});
    data += some;
    bytes -= some;
  }
  cut.push_back({data, bytes});
  return cut;
}

void* Traffic::TakeContext(Side& side) {
  if (side.contexts_used == kContextsOfSide) return nullptr;
  return ContextOf(side.first_context + side.contexts_used++);
}

void Traffic::Taken(Side& side, const Call& call, void* context, const Operation& operation) {
  ++side.sent;
  if (!call.is_quiet) {
    side.under_way.emplace(context, operation);
  } else if (operation.kind == Kind::kRead) {
    side.quiet_reads.push_back(operation);
  }
}

size_t Traffic::Room(const Side& side) {
  size_t room = 0;
  for (const Receive& receive : side.receives) {
    if (receive.is_cancelled) continue;
    room += receive.is_multi ? (receive.bytes - receive.used) / kMessageBytesMax : 1;
  }
  return room;
}

size_t Traffic::Coming(const Side& side) {
  size_t coming = 0;
  for (const auto& messages : side.coming) coming += messages.size();
  return coming;
}

bool Traffic::PostReceive(Side& side) {
  Receive receive = {nullptr, side.in_used * kMessageBytesMax, kMessageBytesMax};
  size_t slots = 1;
  if (has_multi_ && side.in_used + kOfMulti <= kReceives && dice_.Chance(30)) {
    receive.is_multi = true;
    slots = kOfMulti;
    receive.bytes = kOfMulti * kMessageBytesMax;
  }
  if (side.in_used + slots > kReceives) return false;
  receive.context = TakeContext(side);
  if (receive.context == nullptr) return false;
  const long result = MakeReceive(side, receive);
  Expect(result == 0 || result == -FI_EAGAIN, "a receive: %s", NameOf(result).c_str());
  if (result != 0) return false;
  side.in_used += slots;
  side.receives.push_back(receive);
  return true;
}

long Traffic::MakeReceive(Side& side, const Receive& receive) {
  void* desc = side.in->desc();
  fid_ep* ep = side.peer->ep;
  const size_t most = receive.is_multi ? 1 : side.peer->info->rx_attr->iov_limit;
  const auto cut =
      Cut(side.in->data() + receive.at, receive.bytes, 1 + dice_.Below(std::min<size_t>(most, 4)));
  auto descs = Descs(desc);
  if (!receive.is_multi && cut.size() == 1 && dice_.Chance(50)) {
    return fi_recv(ep, cut[0].iov_base, cut[0].iov_len, desc, FI_ADDR_UNSPEC, receive.context);
  }
  if (!receive.is_multi && dice_.Chance(50)) {
    return fi_recvv(ep, cut.data(), descs.data(), cut.size(), FI_ADDR_UNSPEC, receive.context);
  }
  const fi_msg message = {cut.data(), descs.data(), cut.size(), FI_ADDR_UNSPEC, receive.context, 0};
  return fi_recvmsg(ep, &message, FI_COMPLETION | (receive.is_multi ? FI_MULTI_RECV : 0));
}

void Traffic::Cancel(Side& side) {
  // What is under way needs another receive then.
  if (side.receives.empty() || kReceives - side.in_used < 2 * kAhead) return;
  Receive& receive = side.receives[dice_.Below(side.receives.size())];
  if (receive.is_cancelled) return;
  const long result = fi_cancel(side.peer->ep.Base(), receive.context);
  Expect(result == 0 || result == -FI_ENOENT, "fi_cancel: %s", NameOf(result).c_str());
  if (result != 0) return;
  receive.is_cancelled = true;
  ++side.cancelled;
}

long Traffic::MakeSend(Side& side, fi_addr_t to, const Call& call, uint8_t* data, size_t bytes,
                       void* context) {
  Peer& peer = *side.peer;
  void* desc = side.out->desc();
  auto descs = Descs(desc);
  const auto cut = Cut(data, bytes, call.pieces);
  if (call.takes_flags) {
    const fi_msg message = {cut.data(), descs.data(), cut.size(),
                            to,         context,      call.data.value_or(0)};
    return fi_sendmsg(peer.ep, &message, call.flags);
  }
  if (call.is_injected) {
    return call.data ? fi_injectdata(peer.ep, data, bytes, *call.data, to)
                     : fi_inject(peer.ep, data, bytes, to);
  }
  if (call.data) return fi_senddata(peer.ep, data, bytes, desc, *call.data, to, context);
  if (cut.size() == 1) return fi_send(peer.ep, data, bytes, desc, to, context);
  return fi_sendv(peer.ep, cut.data(), descs.data(), cut.size(), to, context);
}

void Traffic::Send(Side& side) {
  Side& other = AnyBut(side);
  const size_t ahead = IsReliable() ? std::min(kAhead, kReceives - other.in_used) : kAhead;
  if (Coming(other) >= Room(other) + ahead) return;
  size_t bytes = dice_.Skewed(std::min(kMessageBytesMax, side.peer->info->ep_attr->max_msg_size));
  if (HaveNumbers()) bytes = std::max<size_t>(bytes, sizeof(size_t));
  const Call call = ChooseCall(side, Kind::kSend, bytes);
  void* context = TakeContext(side);
  uint8_t* data = TakeOut(side, bytes);
  if (context == nullptr || data == nullptr) return;
  const size_t number = ++numbers_;
  for (size_t i = 0; i < bytes; ++i) data[i] = ByteOf(number, i);
  if (HaveNumbers()) memcpy(data, &number, sizeof(number));
  const long result = MakeSend(side, Address(side, other), call, data, bytes, context);
  Expect(result == 0 || result == -FI_EAGAIN, "a send of %zu bytes, flags %#llx: %s", bytes,
         static_cast<unsigned long long>(call.flags), NameOf(result).c_str());
  if (call.is_injected) memset(data, kUntouched, bytes);
  if (result != 0) return;
  Taken(side, call, context, {Kind::kSend});
  other.coming[side.index].push_back({number, bytes, call.data});
}

long Traffic::MakeWrite(Side& side, Side& other, const Call& call, uint8_t* data,
                        const Range& target, void* context) {
  Peer& peer = *side.peer;
  Memory& memory = *other.written;
  const fi_addr_t whom = Address(side, other);
  const uint64_t to = memory.Remote(target.at), key = memory.key();
  void* desc = side.out->desc();
  auto descs = Descs(desc);
  const auto cut = Cut(data, target.bytes, call.pieces);
  if (call.takes_flags) {
    const fi_rma_iov place = {to, target.bytes, key};
    const fi_msg_rma message = {cut.data(), descs.data(), cut.size(),           whom, &place,
                                1,          context,      call.data.value_or(0)};
    return fi_writemsg(peer.ep, &message, call.flags);
  }
  if (call.is_injected) {
    return call.data ? fi_inject_writedata(peer.ep, data, target.bytes, *call.data, whom, to, key)
                     : fi_inject_write(peer.ep, data, target.bytes, whom, to, key);
  }
  if (call.data) {
    return fi_writedata(peer.ep, data, target.bytes, desc, *call.data, whom, to, key, context);
  }
  if (cut.size() == 1) {
    return fi_write(peer.ep, data, target.bytes, desc, whom, to, key, context);
  }
  return fi_writev(peer.ep, cut.data(), descs.data(), cut.size(), whom, to, key, context);
}

void Traffic::Write(Side& side) {
  if (!has_rma_) return;
  Side& other = AnyBut(side);
  const size_t at = other.written_used + dice_.Below(16), bytes = dice_.Skewed(kMessageBytesMax);
  if (at + bytes > kWrittenBytes) return;
  const Call call = ChooseCall(side, Kind::kWrite, bytes);
  void* context = TakeContext(side);
  uint8_t* data = TakeOut(side, bytes);
  if (context == nullptr || data == nullptr) return;
  const size_t number = ++numbers_;
  for (size_t i = 0; i < bytes; ++i) data[i] = ByteOf(number, i);
  const Range range = {at, bytes};
  const std::vector<uint8_t> written(data, data + bytes);
  const long result = MakeWrite(side, other, call, data, range, context);
  Expect(result == 0 || result == -FI_EAGAIN, "a write of %zu bytes, flags %#llx: %s", bytes,
         static_cast<unsigned long long>(call.flags), NameOf(result).c_str());
  if (call.is_injected) memset(data, kUntouched, bytes);
  if (result != 0) return;
  other.written_used = at + bytes;
  std::copy(written.begin(), written.end(), other.model.begin() + static_cast<long>(at));
  if (call.data) other.events.emplace(*call.data, range);
  Taken(side, call, context,
        {Kind::kWrite, at, bytes, 0, &other, (call.flags & FI_DELIVERY_COMPLETE) != 0});
}

void Traffic::Read(Side& side) {
  if (!has_rma_) return;
  const size_t bytes = 1 + dice_.Skewed(kMessageBytesMax - 1);
  const size_t from = dice_.Below(kReadableBytes - bytes + 1);
  const Call call = ChooseCall(side, Kind::kRead, bytes);
  void* context = TakeContext(side);
  uint8_t* data = TakeOut(side, bytes);
  if (context == nullptr || data == nullptr) return;
  Peer& peer = *side.peer;
  const Side& other = AnyBut(side);
  const fi_addr_t whom = Address(side, other);
  Memory& memory = *other.readable;
  void* desc = side.out->desc();
  auto descs = Descs(desc);
  const auto cut = Cut(data, bytes, call.pieces);
  long result;
  if (call.takes_flags) {
    const fi_rma_iov place = {memory.Remote(from), bytes, memory.key()};
    const fi_msg_rma message = {cut.data(), descs.data(), cut.size(), whom, &place, 1, context, 0};
    result = fi_readmsg(peer.ep, &message, call.flags);
  } else if (cut.size() == 1) {
    result = fi_read(peer.ep, data, bytes, desc, whom, memory.Remote(from), memory.key(), context);
  } else {
    result = fi_readv(peer.ep, cut.data(), descs.data(), cut.size(), whom, memory.Remote(from),
                      memory.key(), context);
  }
  Expect(result == 0 || result == -FI_EAGAIN, "a read of %zu bytes: %s", bytes,
         NameOf(result).c_str());
  if (result != 0) return;
  Taken(side, call, context,
        {Kind::kRead, static_cast<size_t>(data - side.out->data()), bytes, from});
}

// --- what comes of them --------------------------------------------------------------------------

void Traffic::Look() {
  for (Side& side : sides_) {
    if (const auto got = PollCq(side.peer->tx_cq)) OnTx(side, *got);
    if (const auto got = PollCq(side.peer->rx_cq)) OnRx(side, *got);
  }
}

void Traffic::OnTx(Side& side, const Completion& got) {
  const auto found = side.under_way.find(got.context);
  // What has no completion if all is well has one when it fails.
  if (found == side.under_way.end() && is_over_) return;
  Expect(found != side.under_way.end(), "a completion of nothing under way: %s",
         NameOf(-got.error).c_str());
  const Operation operation = found->second;
  side.under_way.erase(found);
  if (is_over_) return;
  constexpr const char* kNames[] = {"send", "write", "read"};
  constexpr uint64_t kFlags[] = {FI_MSG | FI_SEND, FI_RMA | FI_WRITE, FI_RMA | FI_READ};
  const auto kind = static_cast<size_t>(operation.kind);
  Expect(got.error == 0, "a %s fails: %s", kNames[kind], NameOf(-got.error).c_str());
  Expect((got.flags & kFlags[kind]) == kFlags[kind], "a %s completes with flags %#llx",
         kNames[kind], static_cast<unsigned long long>(got.flags));
  if (operation.kind == Kind::kRead) CheckRead(side, operation);
  if (operation.is_delivered) {
    Expect(IsWritten(*operation.target, {operation.at, operation.bytes}),
           "FI_DELIVERY_COMPLETE is before the bytes");
  }
}

void Traffic::OnRx(Side& side, const Completion& got) {
  if (is_over_) return;
  if (got.error == 0 && (got.flags & FI_REMOTE_WRITE) != 0) return OnRemoteWrite(side, got);
  const auto found =
      std::find_if(side.receives.begin(), side.receives.end(),
                   [&](const Receive& receive) { return receive.context == got.context; });
  Expect(found != side.receives.end(), "a completion of no receive: %s",
         NameOf(-got.error).c_str());
  // Of several senders one may begin first and end last.
  const bool is_in_order = sides_.size() == 2;
  if (got.error == 0 && is_in_order) {
    // Those before it may still be told that they were cancelled.
    Expect(std::all_of(side.receives.begin(), found,
                       [](const Receive& earlier) { return earlier.is_cancelled; }),
           "a receive is done before one that was posted earlier");
  }
  Expect(got.error == 0 || (got.error == FI_ECANCELED && found->is_cancelled),
         "a receive fails: %s", NameOf(-got.error).c_str());
  // A multi-receive may be told to be over without a message.
  const bool is_message = got.error == 0 && (got.flags & FI_RECV) != 0;
  size_t at = found->at;
  if (found->is_multi && is_message) {
    at = static_cast<size_t>(static_cast<const uint8_t*>(got.buf) - side.in->data());
    Expect(at >= found->at + (is_in_order ? found->used : 0) &&
               at + got.len <= found->at + found->bytes,
           "a message of %zu bytes is where it can't be", got.len);
    found->used = std::max(found->used, at + got.len - found->at);
  }
  const Receive receive = *found;
  if (!receive.is_multi || (got.flags & FI_MULTI_RECV) != 0) {
    side.cancelled -= receive.is_cancelled;
    side.receives.erase(found);
    Expect(!receive.is_multi ||
               side.in->IsAll(kUntouched, receive.at + receive.used, receive.at + receive.bytes),
           "bytes behind the last message of a multi-receive");
  }
  if (is_message) OnReceived(side, got, receive, at);
}

void Traffic::OnReceived(Side& side, const Completion& got, const Receive& receive, size_t at) {
  ++side.received;
  const uint8_t* data = side.in->data() + at;
  Message message;
  const Side& sender = TakeMessage(side, data, &message);
  Expect((got.flags & (FI_MSG | FI_RECV)) == (FI_MSG | FI_RECV), "a receive has flags %#llx",
         static_cast<unsigned long long>(got.flags));
  Expect(got.len == message.bytes, "%zu bytes instead of %zu", got.len, message.bytes);
  const size_t skipped = HaveNumbers() ? sizeof(size_t) : 0;
  for (size_t i = skipped; i < message.bytes; ++i) {
    Expect(data[i] == ByteOf(message.number, i), "byte %zu of %zu is wrong", i, message.bytes);
  }
  Expect(receive.is_multi ||
             side.in->IsAll(kUntouched, at + message.bytes, receive.at + receive.bytes),
         "bytes behind a message of %zu", message.bytes);
  const bool has_data = (got.flags & FI_REMOTE_CQ_DATA) != 0;
  Expect(has_data == message.data.has_value() && (!has_data || got.data == *message.data),
         "data %#llx, flags %#llx", static_cast<unsigned long long>(got.data),
         static_cast<unsigned long long>(got.flags));
  if (!IsConnected() && (side.peer->wish.caps & FI_SOURCE) != 0 &&
      (side.peer->wish.caps & FI_AV_USER_ID) == 0) {
    Expect(got.source == Address(side, sender), "from address %#llx",
           static_cast<unsigned long long>(got.source));
  }
}

const Traffic::Side& Traffic::TakeMessage(Side& side, const uint8_t* data, Message* out) {
  size_t number = 0;
  if (HaveNumbers()) memcpy(&number, data, sizeof(number));
  for (const Side& sender : sides_) {
    std::deque<Message>& messages = side.coming[sender.index];
    const auto found = std::find_if(messages.begin(), messages.end(), [&](const Message& message) {
      return !HaveNumbers() || message.number == number;
    });
    if (found == messages.end()) continue;
    // Datagrams may be lost.
    Expect(found == messages.begin() || !IsReliable(), "a message overtook another");
    *out = *found;
    messages.erase(messages.begin(), found + 1);
    return sender;
  }
  Expect(false, "a message that nobody sent, or an old one");
  return side;
}

void Traffic::OnRemoteWrite(Side& side, const Completion& got) {
  const auto found = side.events.find(got.data);
  Expect((got.flags & FI_REMOTE_CQ_DATA) != 0 && found != side.events.end(),
         "a remote write that nobody made: data %#llx, flags %#llx",
         static_cast<unsigned long long>(got.data), static_cast<unsigned long long>(got.flags));
  Expect(IsWritten(side, found->second), "a remote write is told of before its bytes");
  side.events.erase(found);
}

void Traffic::CheckRead(const Side& side, const Operation& read) const {
  const uint8_t* data = side.out->data() + read.at;
  for (size_t i = 0; i < read.bytes; ++i) {
    Expect(data[i] == ByteOf(kReadableNumber, read.from + i), "byte %zu of a read of %zu is wrong",
           i, read.bytes);
  }
}

bool Traffic::IsWritten(const Side& side, const Range& range) const {
  return memcmp(side.written->data() + range.at, side.model.data() + range.at, range.bytes) == 0;
}

bool Traffic::IsDone() const {
  return std::all_of(std::begin(sides_), std::end(sides_), [](const Side& side) {
    return side.under_way.empty() && side.events.empty() && side.cancelled == 0 &&
           (Coming(side) == 0 || !IsReliable());
  });
}

std::string Traffic::UnderWay() const {
  std::string text;
  for (const Side& side : sides_) {
    text += " " + std::to_string(side.under_way.size()) + " operations, " +
            std::to_string(Coming(side)) + " messages for " + std::to_string(side.receives.size()) +
            " receives, " + std::to_string(side.events.size()) + " remote writes, " +
            std::to_string(side.cancelled) + " cancelled receives;";
  }
  return text;
}

void Traffic::Finish() {
  const bool is_done = WaitUntil(
      [&] {
        for (Side& side : sides_) {
          if (!IsReliable()) break;
          if (Coming(side) > Room(side)) PostReceive(side);
        }
        Look();
        return IsDone();
      },
      kLimitMs);
  Expect(is_done, "never done:%s", UnderWay().c_str());
  for (Side& side : sides_) {
    if (side.tx_cntr != nullptr) {
      Expect(WaitUntil([&] { return fi_cntr_read(side.tx_cntr) >= side.sent; }) &&
                 fi_cntr_read(side.tx_cntr) == side.sent,
             "a counter says %llu of %llu operations",
             static_cast<unsigned long long>(fi_cntr_read(side.tx_cntr)),
             static_cast<unsigned long long>(side.sent));
      Expect(fi_cntr_read(side.rx_cntr) >= side.received, "a counter says %llu of %llu receives",
             static_cast<unsigned long long>(fi_cntr_read(side.rx_cntr)),
             static_cast<unsigned long long>(side.received));
    }
    if (!has_rma_) continue;
    // What has no completion may still be on its way.
    const Range all = {0, kWrittenBytes};
    Expect(WaitUntil([&] { return IsWritten(side, all); }), "wrong bytes where writes go");
    for (const Operation& read : side.quiet_reads) {
      const uint8_t* data = side.out->data() + read.at;
      // Where it goes there were zeros: a zero says nothing.
      size_t last = read.bytes;
      while (last != 0 && ByteOf(kReadableNumber, read.from + last - 1) == 0) --last;
      if (last-- == 0) continue;
      Expect(WaitUntil([&] { return data[last] == ByteOf(kReadableNumber, read.from + last); }),
             "a read without a completion never comes");
      CheckRead(side, read);
    }
  }
}

}  // namespace verbena::fi_test
