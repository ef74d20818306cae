// Random messages and RMA between a few endpoints, beside a model of what must come of them.
#pragma once

#include <deque>
#include <map>
#include <random>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {

// The random numbers of a run.
class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}
  // 0 to limit - 1; limit is at least 1.
  size_t Below(size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(random_);
  }
  bool Chance(size_t percent) { return Below(100) < percent; }
  // 0 to most, small ones as often as large ones.
  size_t Skewed(size_t most);

 private:
  std::mt19937 random_;
};

// Endpoints each of which knows all others; two that are connected where the type connects.
class Crowd {
 public:
  Crowd(const Wish& wish, size_t count);
  size_t size() const { return peers_.size(); }
  Peer& operator[](size_t i) { return *peers_[i]; }
  fi_addr_t Address(size_t from, size_t to) const { return addresses_[from][to]; }

 private:
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::vector<fi_addr_t>> addresses_;
};

// What all of them do. Each operation has memory of its own, so that at the end every byte is
// known.
//
// Reliable types: messages come in the order in which one endpoint sent them to another, into
// receives in the order in which they were posted; datagrams likewise, or not at all.
class Traffic {
 public:
  // What they have to be opened with; it takes the counters that are bound to the endpoints.
  static Wish MakeWish(Dice& dice, std::vector<Fid<fid_cntr>>* counters);

  Traffic(Crowd& crowd, Dice& dice, const std::vector<Fid<fid_cntr>>& counters);

  // One call that has to succeed, or be told to come again.
  void Step();
  // One call that has to be refused at once, and changes nothing.
  void StepWrongly();
  // Takes one completion of each queue, if there are any.
  void Look();
  // Until all that was taken is done, then that every byte and counter is as it has to be.
  void Finish();
  // A write that another must refuse: it completes with an error, as does what comes after it. What
  // a third one sends arrives.
  void Fail();
  // Much at once; then one is closed. MSG: all that the other end has under way completes.
  void Abandon();

 private:
  static constexpr size_t kContextsOfSide = 2500;
  static constexpr size_t kWrittenBytes = 256 << 10;
  static constexpr int kLimitMs = 20'000;  // on a busy machine, with sanitizers

  enum class Kind { kSend, kWrite, kRead };
  struct Side;
  struct Operation {
    Kind kind;
    size_t at = 0, bytes = 0;  // read: in `out`; write: in the target
    size_t from = 0;           // read: in the peer's `readable`
    const Side* target = nullptr;
    bool is_delivered = false;  // its completion says that the bytes are there
  };
  struct Message {
    size_t number = 0, bytes = 0;
    std::optional<uint64_t> data;
  };
  struct Receive {
    void* context = nullptr;
    size_t at = 0, bytes = 0;
    bool is_multi = false;      // takes messages until it has no room for another
    size_t used = 0;            // of a multi-receive
    bool is_cancelled = false;  // or was too late for it
  };
  struct Range {
    size_t at = 0, bytes = 0;
  };
  struct Side {
    Peer* peer = nullptr;
    size_t index = 0;
    fid_cntr *tx_cntr = nullptr, *rx_cntr = nullptr;
    std::unique_ptr<Memory> out, in, written, readable;
    size_t out_used = 0, in_used = 0, contexts_used = 0, first_context = 0;
    std::map<void*, Operation> under_way;     // that bring a completion
    std::vector<Operation> quiet_reads;       // that don't
    std::vector<std::deque<Message>> coming;  // by sender: sent to here, not received yet
    std::deque<Receive> receives;             // posted here
    std::vector<uint8_t> model;               // of `written`, when all is done
    size_t written_used = 0;
    std::map<uint64_t, Range> events;  // of writes with data to `written`, by that
    size_t cancelled = 0;              // among `receives`
    uint64_t sent = 0, received = 0;   // what the counters have to say
  };
  // How a call is made.
  struct Call {
    uint64_t flags = 0;        // of the calls that take some
    bool takes_flags = false;  // fi_sendmsg and its like
    bool is_injected = false;  // the buffer may be changed at once
    bool is_quiet = false;     // no completion
    std::optional<uint64_t> data;
    size_t pieces = 1;
  };

  Side& AnySide() { return sides_[dice_.Below(sides_.size())]; }
  Side& AnyBut(const Side& side) {
    return sides_[(side.index + 1 + dice_.Below(sides_.size() - 1)) % sides_.size()];
  }
  fi_addr_t Address(const Side& from, const Side& to) const {
    return crowd_.Address(from.index, to.index);
  }
  // Messages begin with their numbers where more than one can be the next.
  bool HaveNumbers() const { return !IsReliable() || sides_.size() > 2; }
  Call ChooseCall(const Side& side, Kind kind, size_t bytes);
  // A piece of `out` with this message's or write's bytes; nullptr: used up.
  uint8_t* TakeOut(Side& side, size_t bytes);
  std::vector<iovec> Cut(uint8_t* data, size_t bytes, size_t pieces);
  void* TakeContext(Side& side);
  void Taken(Side& side, const Call& call, void* context, const Operation& operation);

  // Messages for which receives are posted, at least; that are on their way.
  static size_t Room(const Side& side);
  static size_t Coming(const Side& side);
  bool PostReceive(Side& side);
  long MakeReceive(Side& side, const Receive& receive);
  void Cancel(Side& side);
  void Send(Side& side);
  long MakeSend(Side& side, fi_addr_t to, const Call& call, uint8_t* data, size_t bytes,
                void* context);
  void Write(Side& side);
  long MakeWrite(Side& side, Side& other, const Call& call, uint8_t* data, const Range& target,
                 void* context);
  void Read(Side& side);

  void OnTx(Side& side, const Completion& got);
  void OnRx(Side& side, const Completion& got);
  void OnReceived(Side& side, const Completion& got, const Receive& receive, size_t at);
  // Who sent the message that is next in `data`; takes it.
  const Side& TakeMessage(Side& side, const uint8_t* data, Message* out);
  void OnRemoteWrite(Side& side, const Completion& got);
  void CheckRead(const Side& side, const Operation& read) const;
  bool IsWritten(const Side& side, const Range& range) const;
  bool IsDone() const;
  std::string UnderWay() const;
  void ExpectThirdIsHeard(Side& failed, Side& other);

  Crowd& crowd_;
  Dice& dice_;
  std::deque<Side> sides_;
  size_t numbers_ = 0;  // of messages and data, in both directions
  bool has_rma_ = false, has_multi_ = false, is_selective_ = false, is_over_ = false;
};

}  // namespace verbena::fi_test
