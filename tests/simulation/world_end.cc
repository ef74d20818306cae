// When a run is over, and what must be true then.
#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "tests/simulation/world.h"

namespace verbena::simulation {

// Its work was flushed, and nothing has told why yet: that may take as long as the DMA before it.
bool World::LacksReason(const End& end) const {
  const bool is_peers_fault = end.service == Service::kRc && end.HasFaultyPeer();
  return end.must_fail && !end.has_reason && !is_peers_fault && !end.client_state->is_crashed;
}

bool World::IsFinished() const {
  for (const auto& end : ends_) {
    const Flow& flow = *end->flow;
    if (!flow.IsFinished() || LacksReason(*end)) return false;
    if (is_paced() && flow.messages_arrived() < flow.messages_done()) return false;
  }
  // What was sent reliably has arrived; the program has only to look.
  for (const auto& end : ends_) {
    const Flow* incoming = end->service == Service::kRc ? end->incoming() : nullptr;
    if (incoming == nullptr || end->client_state->is_crashed) continue;
    if (incoming->messages_arrived() < incoming->messages_done()) return false;
    // A dead QP gives all its receives back.
    if (end->has_failed && end->own_receiver != nullptr && end->own_receiver->outstanding() != 0) {
      return false;
    }
  }
  return true;
}

std::string World::Unfinished() const {
  std::string text;
  for (const auto& end : ends_) {
    const Flow& flow = *end->flow;
    const Flow* incoming = end->incoming();
    const bool is_late = end->service == Service::kRc && incoming != nullptr &&
                         incoming->messages_arrived() < incoming->messages_done();
    const bool lacks_reason = LacksReason(*end);
    if (flow.IsFinished() && !is_late && !lacks_reason) continue;
    text += "QP " + std::to_string(end->number) + " has posted " + std::to_string(flow.posted()) +
            ", " + std::to_string(flow.succeeded()) + " succeeded" +
            (end->has_failed ? ", failed" : "") + (is_late ? ", messages missing" : "") +
            (lacks_reason ? ", flushed without a reason" : "") + "; ";
  }
  return text;
}

void World::CheckEnd() {
  for (auto& end : ends_) end->flow->CheckMemory();
  for (auto& state : clients_) {
    CheckShared(*state);
    CheckHeld(*state);
    CheckPoison(*state);
  }
}

// Dead QPs have given back what they took from a shared queue; one that lives may keep a request
// for the rest of a message.
void World::CheckHeld(ClientState& state) {
  if (state.is_crashed || state.srq_receiver == nullptr) return;
  if (!state.client->host->dma.IsIdle()) return;  // messages that came are not done
  PollCq(state);
  const auto living = std::count_if(state.ends.begin(), state.ends.end(), [](const End* end) {
    // An unreliable QP whose sends failed goes on receiving.
    return end->has_srq && (!end->has_failed || end->service != Service::kRc);
  });
  if (state.srq_receiver->Held() > living) {
    Violate(
        "a shared receive queue has lost requests: " + std::to_string(state.srq_receiver->Held()) +
        " are out, " + std::to_string(living) + " of its QPs live");
  }
}

void World::CheckPoison(const ClientState& state) {
  if (!state.is_poisoned) return;
  for (const Region& region : state.client->regions) {
    const bool is_whole = std::all_of(region.memory, region.memory + region.bytes, [](std::byte b) {
      return b == static_cast<std::byte>(kPoison);
    });
    if (!is_whole) Violate("memory of a program that is gone was written to");
  }
}

// Each of the adds that were told to have succeeded, and perhaps some of the others.
void World::CheckShared(ClientState& state) {
  if (state.is_crashed) return;
  for (uint32_t i = 0; i < kSharedWords; ++i) {
    uint64_t value;
    std::memcpy(&value, state.shared.memory + i * 8, sizeof(value));
    uint64_t posted = 0;
    for (const auto& end : ends_) {
      if (end->peer == nullptr || end->peer->client_state != &state) continue;
      posted += end->flow->SharedAtomicsPosted(i);
    }
    const SharedWord& word = state.words[i];
    if (value < word.succeeded || value > posted) {
      Violate("a shared word counts " + std::to_string(value) + " adds; " +
              std::to_string(word.succeeded) + " succeeded, " + std::to_string(posted) +
              " were posted");
    }
    for (uint64_t k = value; k < word.seen.size(); ++k) {
      if (word.seen[k]) Violate("an atomic was told a value that never was");
    }
  }
}

void World::CloseAll() {
  for (auto& state : clients_) {
    state->client->host->dma.set_now(now_);
    state->client->Close(now_);
  }
  for (auto& host : hosts_) {
    while (host->dma.Step(host->device, now_, /*everything=*/true)) {
    }
    for (auto& client : host->clients) {
      if (!host->device.SessionIsGone(client->session)) Violate("a session does not end");
      if (client->live_queues != 0) Violate("a closed session has queues left");
    }
    const softnic::DeviceStats stats = host->device.Stats();
    if (stats.sessions + stats.pds + stats.mrs + stats.cqs + stats.qps + stats.srqs + stats.ahs +
            stats.channels !=
        0) {
      Violate("objects are left after all sessions closed");
    }
    const softnic::DeviceUsage usage = host->device.Usage();
    if (usage.tx_packets + usage.held_packets + usage.peers.size() != 0) {
      Violate("packets are left after all sessions closed, or what is under way is counted");
    }
    if (stats.hostile_acts != 0) Violate("a program was taken for hostile");
    if (host->dma.live_regions() != 0) Violate("regions are left after all sessions closed");
    for (uint32_t n = 0; n < host->ports.size(); ++n) host->device.AttachPort(n, nullptr);
  }
}

void World::NoteOutcome(End& end, const shm::Cqe& cqe) {
  std::string text = std::to_string(cqe.status) + ':' + std::to_string(cqe.opcode) + ':' +
                     std::to_string(cqe.byte_len) + ':' + std::to_string(cqe.wc_flags);
  // Keys are other numbers where other regions are.
  if ((cqe.wc_flags & shm::kWcWithImm) != 0) text += ':' + std::to_string(cqe.imm_or_rkey);
  // How much was posted before a failure, and so flushed, is a matter of time.
  if (cqe.status == static_cast<uint8_t>(WcStatus::kWrFlushErr)) return;
  if (cqe.is_send != 0) {
    end.send_outcome.push_back(std::to_string(cqe.wr_id) + ':' + text);
  } else {
    end.receive_outcome.push_back(text);  // which of a shared queue's requests it took is chance
  }
}

// Completions and memory as text, to compare forms of the same run. What a failure at the peer cut
// off is left out: when it did is a matter of time.
std::string World::Outcome() const {
  std::string text;
  auto append = [&text](const std::vector<std::string>& completions) {
    for (const std::string& completion : completions) text += ' ' + completion;
    text += '\n';
  };
  for (const auto& end : ends_) {
    const bool is_reliable = end->service == Service::kRc;
    const Flow* incoming = is_reliable ? end->incoming() : nullptr;
    const bool is_cut_off = incoming != nullptr && incoming->has_bad_op();
    text += "QP " + std::to_string(end->number) + " sends";
    append(is_cut_off ? std::vector<std::string>{} : end->send_outcome);
    text += "receives";
    // Datagrams of several senders come in any order.
    std::vector<std::string> receives = end->receive_outcome;
    if (end->service == Service::kUd) std::sort(receives.begin(), receives.end());
    append(is_reliable && end->flow->has_bad_op() ? std::vector<std::string>{} : receives);
    if (!is_cut_off) text += "memory " + std::to_string(end->flow->MemoryDigest()) + '\n';
  }
  return text;
}

}  // namespace verbena::simulation
