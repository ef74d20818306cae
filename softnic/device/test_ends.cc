#include "softnic/device/test_ends.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "transport/pdu.h"

namespace verbena::softnic::testing {

using shm::CommandOp;
using Op = shm::WrOpcode;

namespace {

constexpr uint32_t kAll = access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead |
                          access::kRemoteAtomic | access::kFlushGlobal;
constexpr uint32_t kQkey = 0x1111;  // as TestClient::ToInit sets it
constexpr uint32_t kWrongBit = 0x400;
constexpr uint32_t kQueueWrs = 64;
constexpr uint32_t kCqEntries = 512;
constexpr uint32_t kTimersMax = 10'000;
// A requester that found no receive tries again after 0.64 ms, three times; a late receive comes
// after its second try. Both are far from the interval after which an ACK is missed.
constexpr uint8_t kMinRnrTimer = 12;
constexpr uint8_t kRnrRetry = 3;
constexpr Duration kLate = Microseconds(1'000);

std::string Text(const char* name, uint64_t value) {
  return std::string(" ") + name + "=" + std::to_string(value);
}

// Packets behind one that is not taken are counted one by one, and so are those sent again: local
// PDUs are whole messages. All other counters count messages and answers.
bool CountsPackets(const std::string& counter) {
  return counter == "out_of_seq_request" || counter == "duplicate_request";
}

}  // namespace

Ends::Ends(const Terms& with) : terms(with) {
  for (std::vector<uint8_t>& memory : memories_) {
    memory.resize(kEndBytes);
    for (uint32_t i = 0; i < kEndBytes; ++i) memory[i] = static_cast<uint8_t>(i * 7 + i / 256);
  }
}

void Ends::Open(TestClient& first, TestClient& second) {
  OpenEnd(0, first);
  OpenEnd(1, second);
  if (&first == &second) {
    ends[1].cq = ends[0].cq;
    ends[1].qp = ends[0].qp;
  }
  for (End& end : ends) {
    if (&end == &ends[0] || end.qp != ends[0].qp) MakeQp(end);
  }
  if (terms.service == Service::kUd) {
    for (int i : {0, 1}) {
      ends[i].ah = ends[i].client->CreateAh(TestWorld::GidOf(static_cast<uint32_t>(1 - i)));
    }
  }
  Connect();
}

void Ends::OpenEnd(int at, TestClient& client) {
  End& end = ends[at];
  end.client = &client;
  end.memory = memories_[at].data();
  end.cq = &cqs_[at];
  end.qp = &qps_[at];
  *end.cq = client.MustCreateCq(kCqEntries);
  auto region = [&](uint32_t access) { return client.MustRegMr(end.memory, kEndBytes, access); };
  end.mr = region(kAll);
  end.read_mr = region(access::kLocalWrite | access::kRemoteRead);
  end.write_mr = region(access::kLocalWrite | access::kRemoteWrite);
  end.fixed_mr = region(0);
}

void Ends::MakeQp(End& end) {
  shm::CreateQpRequest request = end.client->QpRequest(terms.service, end.cq->handle);
  request.max_send_wr = request.max_recv_wr = kQueueWrs;
  request.max_inline_bytes = kInlineBytes;
  if (terms.has_srq) {
    VERBENA_CHECK(end.client->CreateSrq(kQueueWrs, 4, &end.srq) == 0);
    request.srq = end.srq.handle;
  }
  VERBENA_CHECK(end.client->CreateQp(request, end.qp) == 0);
}

void Ends::DestroyQp(End& end) {
  VERBENA_CHECK(end.client->DoHandle(CommandOp::kDestroyQp, end.qp->handle) == 0);
  VERBENA_CHECK(end.client->DoHandle(CommandOp::kDestroySrq, end.srq.handle) == 0);
}

void Ends::Connect() {
  const Service service = terms.service;
  const int last = ends[0].qp == ends[1].qp ? 0 : 1;
  PathAttr paths[2];
  for (int i : {0, 1}) {
    const bool has_own_mtu = i == 1 && terms.peer_path_mtu != 0;
    paths[i] = {has_own_mtu ? terms.peer_path_mtu : terms.path_mtu, terms.first_psns[i],
                terms.first_psns[1 - i], kMinRnrTimer, kRnrRetry};
  }
  for (int i = 0; i <= last; ++i) EXPECT_EQ(ends[i].client->ToInit(*ends[i].qp, service), 0);
  for (int i = 0; i <= last; ++i) {
    const End &end = ends[i], &peer = ends[1 - i];
    const Gid gid = TestWorld::GidOf(static_cast<uint32_t>(last - i));
    EXPECT_EQ(end.client->ToRtr(*end.qp, service, gid, peer.qp->qpn, paths[i]), 0);
  }
  for (int i = 0; i <= last; ++i) {
    EXPECT_EQ(ends[i].client->ToRts(*ends[i].qp, service, paths[i]), 0);
  }
}

// The receives of a shared queue outlive the reset of a QP, so that goes with it.
void Ends::Renew() {
  const bool is_one = ends[0].qp == ends[1].qp;
  for (End& end : ends) {
    if (is_one && &end != &ends[0]) break;
    if (terms.has_srq) {
      DestroyQp(end);
      MakeQp(end);
    } else {
      EXPECT_EQ(end.client->ToReset(*end.qp), 0);
    }
    end.posted.clear();
  }
  Connect();
}

// --- time ----------------------------------------------------------------------------------------

void Ends::Settle() {
  SettleAll();
  for (End& end : ends) {
    for (const Wc& wc : end.client->PollAll(*end.cq)) {
      (wc.is_send ? end.sends : end.receives).push_back(wc);
      end.all.push_back(wc);
    }
  }
}

void Ends::RunAll() {
  Settle();
  uint32_t timers = 0;
  for (Instant next = NextTimer(); !next.IsNever(); next = NextTimer()) {
    ASSERT_LT(++timers, kTimersMax) << "something waits for ever";
    PassTime(next);
    Settle();
  }
}

void Ends::RunFor(Duration time) {
  const Instant end = Now() + time;
  Settle();
  for (Instant next = NextTimer(); next <= end; next = NextTimer()) {
    PassTime(next);
    Settle();
  }
  PassTime(end);
  Settle();
}

// --- work ----------------------------------------------------------------------------------------

void Ends::CarryOut(const Burst& burst) {
  for (End& end : ends) {
    uint8_t* const source = end.memory + kSourceAt;
    for (uint32_t i = 0; i < kAreaBytes; ++i) source[i] += burst.refresh;
  }
  PostReceives(burst, false);
  for (int at : {0, 1}) {
    if (burst.wrong != Wrong::kQpForbids || burst.works[1 - at].empty()) continue;
    shm::QpAttr attr{};
    attr.qp_access_flags = access::kLocalWrite;
    EXPECT_EQ(ends[at].client->Modify(*ends[at].qp, attr, shm::qp_mask::kAccessFlags), 0);
  }
  const size_t most = std::max(burst.works[0].size(), burst.works[1].size());
  for (size_t i = 0; i < most; ++i) {
    for (int from : {0, 1}) {
      if (i < burst.works[from].size()) Post(from, burst.works[from][i]);
    }
  }
  bool is_any_late = false;
  for (const auto& works : burst.works) {
    for (const Work& work : works) is_any_late |= work.wrong == Wrong::kLateReceive;
  }
  if (is_any_late) {
    RunFor(kLate);
    PostReceives(burst, true);
  }
  RunAll();
}

void Ends::PostReceives(const Burst& burst, bool late) {
  for (int from : {0, 1}) {
    for (const Work& work : burst.works[from]) {
      if (!work.receive.has_value() || (work.wrong == Wrong::kLateReceive) != late) continue;
      PostReceive(ends[1 - from], *work.receive);
    }
  }
}

void Ends::PostReceive(End& end, const RecvWr& receive) {
  std::vector<shm::Sge> sges;
  for (const Range& piece : receive.pieces) {
    sges.push_back(SgeOf(end.memory + piece.at, piece.length, end.mr.lkey));
  }
  if (receive.has_bad_lkey) sges.back().lkey ^= 1;
  end.posted[receive.wr_id] = receive;
  if (terms.has_srq) {
    end.client->PostSrqRecv(end.srq, receive.wr_id, sges);
  } else {
    end.client->PostRecv(*end.qp, receive.wr_id, sges);
  }
}

void Ends::Receive(int at, uint64_t wr_id, uint32_t bytes) {
  PostReceive(ends[at], {wr_id, {{kInboxAt, bytes}}, false});
}

shm::SendWqe Ends::WqeOf(const End& end, End& peer, const Work& work) {
  shm::SendWqe wqe = MakeWqe(work.opcode, work.wr_id, work.flags);
  wqe.remote_addr = reinterpret_cast<uint64_t>(peer.memory) + work.remote_at;
  wqe.rkey = peer.mr.rkey;
  if (work.wrong == Wrong::kRkey) wqe.rkey ^= 1;
  if (work.wrong == Wrong::kNoRemoteRight) {
    wqe.rkey =
        work.IsWrite() || work.opcode == Op::kAtomicWrite ? peer.read_mr.rkey : peer.write_mr.rkey;
  }
  wqe.imm_or_rkey = work.imm;
  if (work.opcode == Op::kSendWithInv) {
    wqe.imm_or_rkey = peer.client->MustRegMr(peer.memory, 8, kAll).rkey;
    spares_[wqe.imm_or_rkey] = work.wr_id;
    if (work.wrong == Wrong::kInvalidRkey) wqe.imm_or_rkey ^= 1;
  }
  if (work.opcode == Op::kFlush) {
    wqe.flush = {work.length, transport::flush::kGlobal, work.flush_level};
  } else {
    wqe.atomic = {work.operands[0], work.operands[1]};
  }
  wqe.ah = end.ah;
  wqe.remote_qpn = peer.qp->qpn.value ^ (work.wrong == Wrong::kNoSuchQp ? kWrongBit : 0);
  wqe.remote_qkey = kQkey ^ (work.wrong == Wrong::kQkey ? kWrongBit : 0);
  return wqe;
}

void Ends::Post(int from, const Work& work) {
  End &end = ends[from], &peer = ends[1 - from];
  const shm::SendWqe wqe = WqeOf(end, peer, work);
  if (work.is_inline) {
    std::string bytes;
    for (const Range& piece : work.pieces) {
      bytes.append(reinterpret_cast<const char*>(end.memory) + piece.at, piece.length);
    }
    end.client->PostInline(*end.qp, wqe, bytes);
    return;
  }
  std::vector<shm::Sge> sges;
  const uint32_t lkey = work.wrong == Wrong::kNoLocalWrite ? end.fixed_mr.lkey : end.mr.lkey;
  for (const Range& piece : work.pieces) {
    sges.push_back(SgeOf(end.memory + piece.at, piece.length, lkey));
  }
  if (work.wrong == Wrong::kLkey) {
    auto longest = std::max_element(
        sges.begin(), sges.end(), [](const auto& a, const auto& b) { return a.length < b.length; });
    longest->lkey ^= 1;
  }
  end.client->Post(*end.qp, wqe, sges);
}

// --- what clients see ----------------------------------------------------------------------------

shm::QpAttr Ends::Query(int at) {
  shm::HandleRequest request{ends[at].qp->handle, 0};
  shm::QueryQpReply reply{};
  EXPECT_EQ(ends[at].client->Execute(CommandOp::kQueryQp, request, &reply), 0);
  return reply.attr;
}

// Numbers that the instances gave out are told as what they stand for.
std::string Ends::Line(int at, const Wc& wc, Told told) const {
  const TestQp &own = *ends[at].qp, &peer = *ends[1 - at].qp;
  std::string line = wc.is_send ? "send" : "receive";
  line += Text("wr_id", wc.wr_id) + Text("status", static_cast<uint64_t>(wc.status)) +
          Text("opcode", static_cast<uint64_t>(wc.opcode)) + Text("flags", wc.flags);
  // Of work that was flushed they tell how far it had come, which is a matter of time. A program
  // may not look at its length.  Spec: IBTA 11.4.2.1.
  if (told == Told::kAll || wc.status != WcStatus::kWrFlushErr) {
    line += Text("vendor_err", wc.vendor_err) + Text("byte_len", wc.byte_len);
  }
  auto spare = spares_.find(wc.imm);
  if ((wc.flags & shm::kWcWithInv) != 0 && spare != spares_.end()) {
    line += Text("invalidated by", spare->second);
  } else {
    line += Text("imm", wc.imm);
  }
  if (wc.qpn != own.qpn.value) line += Text("of QP", wc.qpn);
  if (wc.src_qpn == peer.qpn.value) return line + " from the peer";
  return line + (wc.src_qpn != 0 ? Text("from QP", wc.src_qpn) : "");
}

std::vector<std::string> Ends::Tell(int at, Told told) {
  End& end = ends[at];
  std::vector<std::string> lines;
  // Each queue's completions have an order. Between a send queue's and a receive queue's time alone
  // decides.
  auto tell = [&](const std::vector<Wc>& wcs) {
    for (const Wc& wc : wcs) lines.push_back(Line(at, wc, told));
  };
  if (told == Told::kAll) tell(end.all);
  if (told != Told::kAll) tell(end.sends);
  if (told != Told::kAll) tell(end.receives);
  end.sends.clear();
  end.receives.clear();
  end.all.clear();
  for (EventType event : end.client->TakeAsyncEvents()) {
    lines.push_back(Text("event", static_cast<uint64_t>(event)));
  }
  const shm::QpAttr attr = Query(at);
  lines.push_back(Text("state", attr.qp_state));
  // How far a request had come when it failed, nobody can ask: its connection is at an end.
  const bool is_over = StateOf(at) == QpState::kErr ||
                       (terms.service == Service::kRc && StateOf(1 - at) == QpState::kErr);
  if (told == Told::kAll || !is_over) {
    lines.push_back(Text("sq_psn", attr.sq_psn) + Text("rq_psn", attr.rq_psn));
  }
  for (const ShowRow& row : end.client->world.device->Show(ShowKind::kQp)) {
    auto field = [&row](const char* name) {
      return std::find_if(row.fields.begin(), row.fields.end(),
                          [name](const auto& it) { return it.first == name; });
    };
    if (field("qpn")->second != std::to_string(end.qp->qpn.value) ||
        field("session")->second != std::to_string(end.client->id)) {
      continue;
    }
    for (auto it = field("duplicate_request"); it != row.fields.end(); ++it) {
      if (told != Told::kAll && CountsPackets(it->first)) continue;
      if (it->second != "0") lines.push_back(it->first + "=" + it->second);
    }
  }
  return lines;
}

}  // namespace verbena::softnic::testing
