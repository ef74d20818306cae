#include "softnic/device/test_program.h"

#include <algorithm>

#include "transport/pdu.h"

namespace verbena::softnic::testing {

using Op = shm::WrOpcode;

namespace {

// The longest message that is carried out in one step between local QPs, and one byte more.
constexpr uint32_t kDirectBytesMax = 65'536;
constexpr uint32_t kMtusMax = 6;

std::string Text(const char* name, uint64_t value) {
  return std::string(" ") + name + "=" + std::to_string(value);
}
std::string Text(const char* name, const std::vector<Range>& pieces) {
  std::string text = std::string(" ") + name + "=";
  for (const Range& piece : pieces) {
    text += "[" + std::to_string(piece.at) + "+" + std::to_string(piece.length) + "]";
  }
  return text;
}

}  // namespace

std::string Describe(const Burst& burst, const Terms& terms) {
  std::string text = Text("service", static_cast<uint64_t>(terms.service)) +
                     Text("mtu", terms.MtuBytes()) + Text("srq", terms.has_srq);
  for (int from : {0, 1}) {
    for (const Work& work : burst.works[from]) {
      text += "\n " + Text("from", static_cast<uint64_t>(from)) + Text("wr_id", work.wr_id) +
              Text("opcode", static_cast<uint64_t>(work.opcode)) + Text("flags", work.flags) +
              Text("length", work.length) + Text("inline", work.is_inline) +
              Text("local", work.pieces) + Text("remote", work.remote_at) +
              Text("wrong", static_cast<uint64_t>(work.wrong));
      if (work.receive.has_value()) text += Text("receive", work.receive->pieces);
    }
  }
  return text;
}

uint32_t ProgramMaker::DrawLength() {
  const uint32_t mtu = terms_.MtuBytes();
  const uint32_t lengths[] = {0,
                              1,
                              8,
                              63,
                              256,
                              1'000,
                              mtu - 1,
                              mtu,
                              mtu + 1,
                              2 * mtu,
                              6'000,
                              2 * mtu + 1,
                              4 * mtu,
                              3 * mtu - 1,
                              kDirectBytesMax,
                              kDirectBytesMax + 1};
  const uint32_t any = Below(kMtusMax * mtu);
  const uint32_t length = OneIn(3) ? any : lengths[Below(16)];
  if (terms_.service != Service::kUd) return length;
  return length <= mtu ? length : length % (mtu + 1);
}

Op ProgramMaker::DrawOpcode() {
  switch (terms_.service) {
    case Service::kUd:
      return OneIn(2) ? Op::kSend : Op::kSendWithImm;
    case Service::kUc: {
      const Op opcodes[] = {Op::kRdmaWrite, Op::kRdmaWriteWithImm, Op::kSend, Op::kSendWithImm};
      return opcodes[Below(4)];
    }
    default: {
      const Op opcodes[] = {Op::kRdmaWrite,
                            Op::kRdmaWrite,
                            Op::kSend,
                            Op::kSend,
                            Op::kSendWithImm,
                            Op::kSendWithInv,
                            Op::kRdmaRead,
                            Op::kRdmaRead,
                            Op::kRdmaWriteWithImm,
                            Op::kAtomicCmpAndSwp,
                            Op::kAtomicFetchAndAdd,
                            OneIn(2) ? Op::kAtomicWrite : Op::kFlush};
      return opcodes[Below(12)];
    }
  }
}

// Up to four, some perhaps empty, one behind the other with gaps.
std::vector<Range> ProgramMaker::DrawPieces(uint32_t area, uint32_t length) {
  constexpr uint32_t kGapMax = 64;
  const uint32_t count = 1 + Below(4);
  uint32_t at = area + Below(kAreaBytes - length - count * kGapMax);
  std::vector<Range> pieces;
  uint32_t left = length;
  for (uint32_t i = 1; i <= count; ++i) {
    const uint32_t bytes = i == count ? left : Below(left + 1);
    pieces.push_back({at, bytes});
    at += bytes + Below(kGapMax);
    left -= bytes;
  }
  return pieces;
}

RecvWr ProgramMaker::DrawReceive(const Work& work) {
  const uint32_t grh_bytes = terms_.service == Service::kUd ? 40 : 0;
  uint32_t room = grh_bytes + (work.IsSend() ? work.length : Below(100));
  if (!OneIn(3)) room += Below(5'000);  // else it fits exactly
  return {work.wr_id, DrawPieces(kInboxAt, room), false};
}

void ProgramMaker::DrawRemote(Work* work) {
  const uint32_t into = Below(kAreaBytes - work->length);
  switch (work->opcode) {
    case Op::kRdmaRead:
      // What does not change, or what was written before.
      if (OneIn(2)) {
        work->remote_at = kSourceAt + into;
      } else {
        work->remote_at = kTargetAt + into;
        reads_target_ = true;
      }
      break;
    case Op::kAtomicCmpAndSwp:
    case Op::kAtomicFetchAndAdd:
      work->remote_at = kWordsAt + Below(kWords) * 8;
      break;
    case Op::kAtomicWrite:
      work->remote_at = kTargetAt + (into & ~7u);
      break;
    case Op::kFlush:
      work->remote_at = kTargetAt + into;
      work->flush_level = Below(2) == 0 ? transport::flush::kRange : transport::flush::kMr;
      break;
    default:
      work->remote_at = kTargetAt + into;
      break;
  }
}

Work ProgramMaker::DrawWork() {
  Work work;
  work.opcode = DrawOpcode();
  work.wr_id = next_wr_id_++;
  work.flags = OneIn(4) ? 0 : shm::kSendSignaled;
  if (OneIn(4)) work.flags |= shm::kSendSolicited;
  work.imm = static_cast<uint32_t>(work.wr_id * 0x0101'0101);
  for (uint64_t& operand : work.operands) operand = OneIn(2) ? Below(4) : random_();
  work.length = DrawLength();
  if (work.IsAtomic() || work.opcode == Op::kAtomicWrite) work.length = 8;
  DrawRemote(&work);
  // An RDMA READ may see what is written after it, but for a fence.  Spec: IBTA 10.8.3.3.
  const bool writes_target = work.IsWrite() || work.opcode == Op::kAtomicWrite;
  if ((writes_target && reads_target_) || (terms_.service == Service::kRc && OneIn(10))) {
    work.flags |= shm::kSendFence;
    if (work.opcode != Op::kRdmaRead) reads_target_ = false;
  }
  if (work.opcode != Op::kFlush && work.opcode != Op::kAtomicWrite) {
    const bool fetches = work.opcode == Op::kRdmaRead || work.IsAtomic();
    work.pieces = DrawPieces(fetches ? kResultsAt : kSourceAt, work.length);
    work.is_inline = !fetches && work.length <= kInlineBytes && OneIn(2);
  }
  if (work.TakesReceive()) work.receive = DrawReceive(work);
  return work;
}

std::vector<Wrong> ProgramMaker::WaysToSpoil(const Work& work) const {
  std::vector<Wrong> ways = {Wrong::kServiceForbids};
  if (terms_.service == Service::kRc) ways.clear();
  const bool has_sges = !work.pieces.empty() && !work.is_inline;
  if (has_sges && work.length != 0) ways.push_back(Wrong::kLkey);
  if (terms_.service == Service::kUd) {
    ways.insert(ways.end(), {Wrong::kQkey, Wrong::kNoSuchQp, Wrong::kDatagramTooLong});
  }
  const bool reaches_memory = work.length != 0 && !work.IsSend();
  if (reaches_memory) {
    ways.insert(ways.end(), {Wrong::kRkey, Wrong::kBeyondRegion, Wrong::kNoRemoteRight});
  }
  if (!work.IsSend()) ways.push_back(Wrong::kQpForbids);
  if (work.IsAtomic() || work.opcode == Op::kAtomicWrite) ways.push_back(Wrong::kMisaligned);
  if (work.IsAtomic()) ways.push_back(Wrong::kAtomicLength);
  if (work.IsAtomic() || (work.opcode == Op::kRdmaRead && work.length != 0)) {
    ways.push_back(Wrong::kNoLocalWrite);
  }
  if (work.TakesReceive()) ways.push_back(Wrong::kNoReceive);
  if (work.IsSend()) ways.push_back(Wrong::kReceiveLkey);
  if (work.IsSend() && work.length != 0) ways.push_back(Wrong::kReceiveTooShort);
  if (work.opcode == Op::kSendWithInv) ways.push_back(Wrong::kInvalidRkey);
  return ways;
}

Wrong ProgramMaker::Spoil(Work* work) {
  const std::vector<Wrong> ways = WaysToSpoil(*work);
  if (ways.empty()) return Wrong::kNothing;
  work->wrong = ways[Below(static_cast<uint32_t>(ways.size()))];
  switch (work->wrong) {
    case Wrong::kBeyondRegion:
      work->remote_at = kEndBytes - work->length + 1 + Below(work->length);
      if (work->IsAtomic() || work->opcode == Op::kAtomicWrite) work->remote_at = kEndBytes;
      break;
    case Wrong::kReceiveTooShort: {
      const uint32_t grh_bytes = terms_.service == Service::kUd ? 40 : 0;
      work->receive->pieces = DrawPieces(kInboxAt, Below(grh_bytes + work->length));
      break;
    }
    case Wrong::kReceiveLkey:
      work->receive->has_bad_lkey = true;
      break;
    case Wrong::kNoReceive:
      work->receive.reset();
      break;
    case Wrong::kMisaligned:
      work->remote_at += 1 + Below(7);
      break;
    case Wrong::kAtomicLength:
      work->pieces[0].length += 1 + Below(8);
      break;
    case Wrong::kServiceForbids:
      work->opcode = terms_.service == Service::kUd && OneIn(2) ? Op::kRdmaWrite : Op::kRdmaRead;
      work->receive.reset();
      work->is_inline = false;
      break;
    case Wrong::kDatagramTooLong:
      work->length = terms_.MtuBytes() + 1 + Below(1'000);
      work->pieces = DrawPieces(kSourceAt, work->length);
      work->is_inline = false;
      break;
    default:
      break;
  }
  return work->wrong;
}

Burst ProgramMaker::Draw() {
  Burst burst;
  burst.refresh = static_cast<uint8_t>(Below(128) * 2 + 1);
  const uint32_t from = Below(2);
  const uint32_t count = 1 + Below(terms_.works_max);
  const bool is_wrong = OneIn(std::max(terms_.wrong_every / count, 2u));
  const bool has_two_ways = terms_.works_max > 1 && !is_wrong && OneIn(2);
  for (uint32_t end : {from, 1 - from}) {
    if (end != from && !has_two_ways) break;
    reads_target_ = false;
    for (uint32_t i = 0; i < count; ++i) burst.works[end].push_back(DrawWork());
  }
  std::vector<Work>& works = burst.works[from];
  if (is_wrong) burst.wrong = Spoil(&works[Below(count)]);
  // A requester that waits keeps all that follows waiting, too.
  if (burst.wrong != Wrong::kNothing || terms_.service != Service::kRc) return burst;
  for (Work& work : works) {
    if (work.TakesReceive() && OneIn(terms_.late_every)) {
      for (Work* late = &work; late != works.data() + works.size(); ++late) {
        if (late->TakesReceive()) late->wrong = Wrong::kLateReceive;
      }
      break;
    }
  }
  return burst;
}

}  // namespace verbena::softnic::testing
