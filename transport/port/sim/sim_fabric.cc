#include "transport/port/sim/sim_fabric.h"

#include <algorithm>
#include <cstdio>

namespace verbena::transport::sim {

SimFabric::EndpointId SimFabric::Attach(QpTransport* qp, Qpn qpn) {
  auto endpoint = std::make_unique<Endpoint>();
  endpoint->qp = qp;
  endpoint->qpn = qpn;
  endpoints_.push_back(std::move(endpoint));
  return static_cast<EndpointId>(endpoints_.size() - 1);
}

// --- driving -------------------------------------------------------------------------------------

void SimFabric::Drive(EndpointId id) {
  Endpoint& endpoint = *endpoints_[id];
  if (endpoint.paused_until > now_) return;
  PollOutputs(id);
  Pdu pdu;
  while (endpoint.qp->HasRequestWork()) {
    bool any = endpoint.qp->PollRequest(now_, pdu);
    if (any) Send(id, pdu);
    PollOutputs(id);
    if (!any) break;
  }
}

void SimFabric::PollOutputs(EndpointId id) {
  Endpoint& endpoint = *endpoints_[id];
  Pdu pdu;
  while (endpoint.qp->PollResponse(now_, pdu)) Send(id, pdu);
  Completion completion{};
  while (endpoint.qp->PollCompletion(completion)) {
    const shm::Cqe& cqe = completion.cqe;
    endpoint.completions.push_back(
        {cqe.wr_id, static_cast<WcStatus>(cqe.status), static_cast<shm::WcOpcode>(cqe.opcode),
         static_cast<shm::VendorErr>(cqe.vendor_err), cqe.byte_len, cqe.imm_or_rkey, cqe.wc_flags,
         completion.is_send, completion.solicited});
  }
  EventType event;
  while (endpoint.qp->PollEvent(event)) endpoint.events.push_back(event);
}

bool SimFabric::Step() {
  EndpointId timed = 0;
  Instant timeout = NextTimeout(&timed);
  if (events_.empty() && timeout.IsNever()) return false;
  if (events_.empty() || timeout.ns < events_.begin()->first.first) {
    if (timeout > now_) now_ = timeout;
    endpoints_[timed]->qp->OnTimeout(now_);
    Drive(timed);
    return true;
  }
  auto first = events_.begin();
  now_ = Instant{first->first.first};
  Event event = std::move(first->second);
  events_.erase(first);
  const Instant paused_until = endpoints_[event.endpoint]->paused_until;
  if (paused_until > now_) {
    // In the order of arrival, since later sequence numbers follow earlier ones.
    Schedule(paused_until, std::move(event));
    return true;
  }
  if (event.kind == EventKind::kDelivery) {
    Deliver(event.endpoint, event.packet);
  } else if (event.kind == EventKind::kDmaDone) {
    CarryOut(event.endpoint);
  }
  Drive(event.endpoint);
  TakeWaiting(event.endpoint);
  return true;
}

bool SimFabric::RunUntil(const std::function<bool()>& done, Instant limit) {
  while (!done()) {
    if (now_ > limit || !Step()) return done();
  }
  return true;
}

bool SimFabric::RunToSilence(Instant limit) {
  for (uint64_t steps = 0; Step(); ++steps) {
    if (now_ > limit || steps == kStepsMax) return false;
  }
  return true;
}

Instant SimFabric::NextTimeout(EndpointId* id) const {
  Instant earliest = Instant::Never();
  for (EndpointId i = 0; i < endpoints_.size(); ++i) {
    Instant timeout = endpoints_[i]->qp->PollTimeout();
    if (!timeout.IsNever()) timeout = std::max(timeout, endpoints_[i]->paused_until);
    if (timeout < earliest) {
      earliest = timeout;
      *id = i;
    }
  }
  return earliest;
}

void SimFabric::Schedule(Instant at, Event event) {
  events_.emplace(std::make_pair(at.ns, sequence_++), std::move(event));
}

// --- the link ------------------------------------------------------------------------------------

void SimFabric::Send(EndpointId from, const Pdu& pdu) {
  ++pdus_sent_;
  auto packet = std::make_shared<Packet>();
  packet->pdu = pdu;
  packet->sender = from;
  const Payload& payload = pdu.payload;
  if (payload.bytes != nullptr) {
    packet->bytes.assign(payload.bytes, payload.bytes + payload.length);
  } else if (options_.by_reference) {
    packet->segments.assign(payload.segments, payload.segments + payload.segment_count);
  } else if (!memory_->Read(payload.segments, payload.segment_count, payload.offset, payload.length,
                            &packet->bytes)) {
    Trace("unreadable", pdu);
    endpoints_[from]->qp->OnSourceFault(now_, pdu.opcode, pdu.psn);
    return;
  }
  Trace("send", pdu);
  for (EndpointId to = 0; to < endpoints_.size(); ++to) {
    if (endpoints_[to]->qpn == pdu.dest_qpn) {
      Transmit(packet, to);
      return;
    }
  }
  Trace("nobody", pdu);
}

void SimFabric::Pause(EndpointId id, Instant until) {
  endpoints_[id]->paused_until = until;
  Schedule(until, {EventKind::kResume, id, nullptr});
}

bool SimFabric::IsCutOff() const {
  for (const SimPartition& partition : options_.partitions) {
    if (partition.begin <= now_ && now_ < partition.end) return true;
  }
  return false;
}

// When the PDU has left its sender.
Instant SimFabric::Leave(const Packet& packet) {
  if (options_.wire_ps_per_byte == 0) return now_;
  Endpoint& sender = *endpoints_[packet.sender];
  const int64_t bytes = int64_t{packet.pdu.payload.length} + options_.wire_header_bytes;
  const Duration time = Nanoseconds(bytes * options_.wire_ps_per_byte / 1000);
  sender.wire_free = std::max(sender.wire_free, now_) + time;
  return sender.wire_free;
}

void SimFabric::Transmit(const PacketPtr& packet, EndpointId to) {
  const Instant left = Leave(*packet);
  if (IsCutOff()) {
    ++pdus_cut_off_;
    Trace("cut off", packet->pdu);
    return;
  }
  if ((drop_filter_ && drop_filter_(packet->pdu)) || random_.Chance(options_.loss_per_mille)) {
    Trace("lost", packet->pdu);
    return;
  }
  packet->is_corrupt = random_.Chance(options_.corrupt_per_mille);
  int copies = random_.Chance(options_.duplicate_per_mille) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    Duration delay = options_.delay;
    if (random_.Chance(options_.reorder_per_mille)) {
      delay = delay + Nanoseconds(random_.Below(static_cast<uint32_t>(options_.reorder_delay.ns)));
    }
    Schedule(left + delay, {EventKind::kDelivery, to, packet});
  }
}

void SimFabric::Deliver(EndpointId to, const PacketPtr& packet) {
  Endpoint& endpoint = *endpoints_[to];
  if (packet->is_corrupt) {
    ++pdus_corrupted_;
    Trace("bad ICRC", packet->pdu);
    return;
  }
  if (!endpoint.waiting.empty() || !endpoint.qp->CanAccept(packet->pdu)) {
    Trace(options_.keeps_refused ? "kept" : "refused", packet->pdu);
    if (options_.keeps_refused) endpoint.waiting.push_back(packet);
    return;
  }
  Trace("deliver", packet->pdu);
  if (arrival_observer_) arrival_observer_(packet->pdu);
  Pdu pdu = packet->pdu;
  pdu.payload.bytes = nullptr;
  if (packet->segments.empty()) {
    pdu.payload.bytes = packet->bytes.data();
    pdu.payload.segment_count = 0;
    pdu.payload.offset = 0;
  } else {
    pdu.payload.segments = packet->segments.data();
  }
  endpoint.qp->OnPdu(now_, pdu);
  PollDmas(to, packet);
}

void SimFabric::TakeWaiting(EndpointId id) {
  Endpoint& endpoint = *endpoints_[id];
  while (!endpoint.waiting.empty() && endpoint.qp->CanAccept(endpoint.waiting.front()->pdu)) {
    std::deque<PacketPtr> rest = std::move(endpoint.waiting);
    PacketPtr first = rest.front();
    rest.pop_front();
    endpoint.waiting.clear();
    Deliver(id, first);
    endpoint.waiting = std::move(rest);
    Drive(id);
  }
}

// --- placements ----------------------------------------------------------------------------------

void SimFabric::PollDmas(EndpointId id, const PacketPtr& cause) {
  Endpoint& endpoint = *endpoints_[id];
  DmaRequest request;
  while (endpoint.qp->PollDma(request)) {
    Dma& dma = endpoint.dmas.emplace_back();
    dma.request = request;
    dma.cause = cause;
    dma.destination.assign(request.destination, request.destination + request.destination_count);
    const Payload& source = request.source;
    if (source.bytes != nullptr) {
      dma.bytes.assign(source.bytes, source.bytes + source.length);
    } else {
      dma.source.assign(source.segments, source.segments + source.segment_count);
    }
    if (options_.dma_delay.ns == 0 && endpoint.dmas.size() == 1) {
      CarryOut(id);
    } else {
      Schedule(now_ + options_.dma_delay, {EventKind::kDmaDone, id, nullptr});
    }
  }
}

void SimFabric::CarryOut(EndpointId id) {
  Endpoint& endpoint = *endpoints_[id];
  Dma dma = std::move(endpoint.dmas.front());
  endpoint.dmas.pop_front();
  const DmaRequest& request = dma.request;
  const auto count = static_cast<uint16_t>(dma.destination.size());
  DmaResult result;
  result.token = request.token;
  if (request.kind != DmaRequest::Kind::kCopy) {
    if (!memory_->Execute(request, dma.destination[0], &result.atomic_original)) {
      result.status = DmaStatus::kDestinationFault;
    }
  } else {
    if (request.source.bytes == nullptr &&
        !memory_->Read(dma.source.data(), static_cast<uint16_t>(dma.source.size()),
                       request.source.offset, request.source.length, &dma.bytes)) {
      result.status = DmaStatus::kSourceFault;
      const Pdu& pdu = dma.cause->pdu;
      endpoints_[dma.cause->sender]->qp->OnSourceFault(now_, pdu.opcode, pdu.psn);
      Drive(dma.cause->sender);
    } else if (!memory_->Write(dma.destination.data(), count, request.destination_offset,
                               dma.bytes.data(), static_cast<uint32_t>(dma.bytes.size()))) {
      result.status = DmaStatus::kDestinationFault;
    }
  }
  endpoint.qp->OnDmaDone(now_, result);
}

void SimFabric::Trace(const char* what, const Pdu& pdu) {
  if (!keeps_trace_) return;
  const OpcodeInfo* info = LookUpOpcode(pdu.opcode);
  char line[160];
  std::snprintf(line, sizeof(line), "%10lld ns  %-10s qp %u -> %u  %s psn %u+%d len %u ack %d/%d\n",
                static_cast<long long>(now_.ns), what, pdu.src_qpn.value, pdu.dest_qpn.value,
                info == nullptr ? "?" : info->name, pdu.psn.value(), pdu.psn_count.value,
                pdu.payload.length, static_cast<int>(pdu.ack_type), static_cast<int>(pdu.nak_code));
  trace_ += line;
}

}  // namespace verbena::transport::sim
