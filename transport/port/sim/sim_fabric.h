// A network of queue pairs in virtual time: it carries PDUs between them, loses, doubles, delays
// and reorders some by a seed, and carries out their placements.
//
// The same seed and the same calls give the same run, event for event: simultaneous events order by
// (time, sequence number), and nothing else is a source of chance.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/instant.h"
#include "transport/port/sim/sim_host.h"
#include "transport/port/sim/sim_random.h"
#include "transport/qp_transport.h"

namespace verbena::transport::sim {

// Nothing passes the link from `begin` until `end`.
struct SimPartition {
  Instant begin;
  Instant end;
};

// Faults, per mille of PDUs.
struct SimOptions {
  uint32_t loss_per_mille = 0;
  uint32_t corrupt_per_mille = 0;  // arrives, and its ICRC says that it is not what was sent
  uint32_t duplicate_per_mille = 0;
  uint32_t reorder_per_mille = 0;    // delayed by up to reorder_delay more
  Duration delay = Microseconds(1);  // of every PDU
  Duration reorder_delay = Microseconds(20);
  // What a byte takes to leave its sender, in ps; one PDU leaves after the other. 0: no time.
  uint32_t wire_ps_per_byte = 0;
  uint32_t wire_header_bytes = 0;  // added to each PDU's payload
  std::vector<SimPartition> partitions;
  Duration dma_delay = Nanoseconds(0);  // 0: a placement is done within the same step
  bool keeps_refused = true;            // as the local port; false drops them, as a wire does
  bool by_reference = false;            // payload is read by the placement, as the local port does
};

// What a program would poll.
struct SimCompletion {
  uint64_t wr_id = 0;
  WcStatus status = WcStatus::kSuccess;
  shm::WcOpcode opcode = shm::WcOpcode::kSend;
  shm::VendorErr vendor_err = shm::VendorErr::kNone;
  uint32_t byte_len = 0;
  uint32_t imm_or_rkey = 0;
  uint16_t wc_flags = 0;
  bool is_send = false;
  bool solicited = false;
};

class SimFabric {
 public:
  using EndpointId = uint32_t;

  SimFabric(uint64_t seed, const SimOptions& options, SimMemory* memory)
      : options_(options), random_(seed), memory_(memory) {}

  EndpointId Attach(QpTransport* qp, Qpn qpn);
  void set_options(const SimOptions& options) { options_ = options; }
  // The endpoint's host does not run until `until`: what comes in waits, timers fire late. PDUs it
  // sent before are on their way.
  void Pause(EndpointId id, Instant until);
  // Decides about each PDU before the random faults do: true loses it.
  void set_drop_filter(std::function<bool(const Pdu&)> filter) { drop_filter_ = std::move(filter); }

  // Sees each PDU that arrives, before its QP does.
  void set_arrival_observer(std::function<void(const Pdu&)> observer) {
    arrival_observer_ = std::move(observer);
  }

  Instant now() const { return now_; }
  // Doorbell, Modify or Fail came: polls all the QP has to say.
  void Drive(EndpointId id);
  // Carries out the next event. False: nothing will ever happen again.
  bool Step();
  // Steps until `done` or until nothing happens before `limit` any more. True if done.
  bool RunUntil(const std::function<bool()>& done, Instant limit);
  // A run that takes more events than this goes round in circles.
  static constexpr uint64_t kStepsMax = 300'000;
  // Until nothing is left to happen; false if that doesn't come.
  bool RunToSilence(Instant limit);

  std::deque<SimCompletion>& completions(EndpointId id) { return endpoints_[id]->completions; }
  std::deque<EventType>& events(EndpointId id) { return endpoints_[id]->events; }

  // One line per PDU sent, lost and delivered.
  void set_keeps_trace(bool keeps) { keeps_trace_ = keeps; }
  const std::string& trace() const { return trace_; }
  uint64_t pdus_sent() const { return pdus_sent_; }
  uint64_t pdus_corrupted() const { return pdus_corrupted_; }
  uint64_t pdus_cut_off() const { return pdus_cut_off_; }  // by a partition

 private:
  struct Packet {
    Pdu pdu;
    bool is_corrupt = false;
    std::vector<std::byte> bytes;
    std::vector<DmaSegment> segments;
    EndpointId sender = 0;
  };
  using PacketPtr = std::shared_ptr<Packet>;  // a duplicate is the same packet again
  struct Dma {
    DmaRequest request;
    std::vector<std::byte> bytes;
    std::vector<DmaSegment> source;
    std::vector<DmaSegment> destination;
    PacketPtr cause;
  };
  struct Endpoint {
    QpTransport* qp = nullptr;
    Qpn qpn;
    Instant paused_until;
    Instant wire_free;              // when the PDU before has left
    std::deque<PacketPtr> waiting;  // refused for now
    std::deque<Dma> dmas;
    std::deque<SimCompletion> completions;
    std::deque<EventType> events;
  };
  enum class EventKind { kDelivery, kDmaDone, kResume };
  struct Event {
    EventKind kind;
    EndpointId endpoint;
    PacketPtr packet;
  };

  void Send(EndpointId from, const Pdu& pdu);
  void Transmit(const PacketPtr& packet, EndpointId to);
  bool IsCutOff() const;
  Instant Leave(const Packet& packet);
  void Deliver(EndpointId to, const PacketPtr& packet);
  void TakeWaiting(EndpointId id);
  void PollDmas(EndpointId id, const PacketPtr& cause);
  void CarryOut(EndpointId id);
  void PollOutputs(EndpointId id);
  void Trace(const char* what, const Pdu& pdu);
  void Schedule(Instant at, Event event);
  Instant NextTimeout(EndpointId* id) const;

  SimOptions options_;
  SimRandom random_;
  SimMemory* memory_;
  Instant now_;
  uint64_t sequence_ = 0;
  uint64_t pdus_sent_ = 0;
  uint64_t pdus_corrupted_ = 0;
  uint64_t pdus_cut_off_ = 0;
  std::map<std::pair<int64_t, uint64_t>, Event> events_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::function<bool(const Pdu&)> drop_filter_;
  std::function<void(const Pdu&)> arrival_observer_;
  bool keeps_trace_ = false;
  std::string trace_;
};

}  // namespace verbena::transport::sim
