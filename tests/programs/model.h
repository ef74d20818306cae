// What must come of each call, by the manual pages of libibverbs and the IBTA specification: a
// model of two peers that knows nothing of how a NIC works. Between two steps nothing is under way,
// but for work that waits for the program: a SEND without a receive whose retries never end, a
// queue in SQD.
//
// Where the specification leaves a choice the outcome says so, or the step is "open": it does not
// apply, and who runs a program leaves it out.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/programs/program.h"

namespace verbena::programs {

inline constexpr uint32_t kGrhBytes = 40;
inline constexpr uint32_t kPsnMask = 0xff'ffff;

struct Completion {
  Id qp = 0;
  bool is_receive = false;
  Id cq = 0;
  uint64_t wr_id = 0;
  std::vector<ibv_wc_status> statuses;  // any of these
  // The rest only of what succeeded.
  ibv_wc_opcode opcode = IBV_WC_SEND;
  uint32_t byte_len = 0;  // of receives
  uint32_t flags = 0;     // IBV_WC_*
  uint32_t imm = 0;
  Id invalidated = 0;
  Id src_qp = 0;  // UD
  bool is_solicited = false;
};

struct Event {
  ibv_event_type type = IBV_EVENT_QP_FATAL;
  Id object = 0;
  bool may_be_missing = false;
};

struct Range {
  int side = 0;  // or the device memory of one: side + 2
  uint32_t offset = 0, length = 0;
  bool Meets(const Range& other) const {
    return side == other.side && offset < other.offset + other.length &&
           other.offset < offset + length;
  }
};

struct Outcome {
  bool applies = true;
  int error = 0;
  bool any_error = false;  // which one is not said
  int bad_index = -1;      // of a list: where bad_wr points
  std::vector<Completion> completions;
  std::vector<Event> events;
  std::vector<Id> cq_events;   // of CQs, in their channel
  std::vector<Range> unknown;  // memory that may hold anything
  std::vector<Id> moved_qps;   // whose state has changed by itself
  std::vector<Range> flushed;  // what is to be seen there as soon as all has completed
  bool is_silent = false;      // something was lost that nobody is told of
};

struct Pd {
  int side;
  Id base;  // of a parent domain
};
struct Mr {
  int side;
  Id pd;
  uint32_t offset, length, access;
  enum Kind { kMemory, kNull, kDevice } kind = kMemory;
  bool is_invalidated = false;
  bool is_unclear = false;  // a flushed invalidation may have been done
};
struct Mw {
  int side;
  Id pd;
  ibv_mw_type type;
  uint32_t keys = 1;  // it has had so far, the newest included
  bool is_bound = false;
  bool is_unclear = false;  // a flushed bind or invalidation may have been done
  uint32_t live_key = 1;    // number of the key that is good while bound
  Id mr = 0, qp = 0;
  uint32_t offset = 0, length = 0, access = 0;
};
struct Cq {
  int side;
  uint32_t entries;
  enum { kQuiet, kAny, kSolicited } armed = kQuiet;
  bool is_held = false;                  // nobody polls it
  bool is_dead = false;                  // it overran
  std::vector<Completion> backlog = {};  // while it is held
};
struct Srq {
  int side;
  Id pd;
  uint32_t max_wr, max_sge, limit;
  std::deque<Wr> receives;
};
struct Ah {
  int side;
  Id pd;
  bool to_self, to_group;
};
struct Work {
  Wr wr;
  std::vector<uint8_t> inline_data;
  uint32_t key_number = 0;  // of the window that `wr.remote` is, when it was posted
  uint32_t bind_key = 0;    // what a bind gives its window
};
struct Qp {
  Id id = 0, peer = 0;
  int side = 0;
  Id pd = 0, send_cq = 0, recv_cq = 0, srq = 0;
  ibv_qp_type type = IBV_QPT_RC;
  ibv_qp_cap cap = {};
  bool sq_sig_all = false;
  bool is_extended = false;  // for ibv_wr_*
  ibv_qp_state state = IBV_QPS_RESET;
  ibv_qp_attr attr = {};  // as modified
  uint32_t next_psn = 0, epsn = 0;
  bool psns_known = true;
  enum { kNotYet, kPerhaps, kTold } established = kNotYet;
  bool in_group = false;     // multicast
  bool is_draining = false;  // in SQD: the first of `sends` was begun before
  bool tells_drained = false;
  std::deque<Work> sends;
  std::deque<Wr> receives;

  bool Receives() const {
    return state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD ||
           state == IBV_QPS_SQE;
  }
};

class Model {
 public:
  explicit Model(uint64_t seed);

  // Changes the model even if the step turns out not to apply: try it on a copy.
  Outcome Apply(const Step& step);
  // The last step is waited for after all.
  void EndTogether() { goes_on_ = false; }
  // What the device gave instead of what was asked for: never less.
  void LearnCap(Id qp, const ibv_qp_cap& cap) { qps.at(qp).cap = cap; }
  void LearnEntries(Id cq_or_srq, uint32_t entries);
  uint8_t* memory(int side) { return arenas_[side].data(); }
  const uint8_t* memory(int side) const { return arenas_[side].data(); }
  // What a program's memory holds at first.
  static void Fill(uint64_t seed, int arena, uint8_t* bytes);

  // The base of a parent domain, or the PD itself.
  Id Protection(Id pd) const;
  std::deque<Wr>& ReceivesOf(Qp& qp);
  bool IsWaiting(Id qp) const { return !qps.at(qp).sends.empty(); }

  std::map<Id, Pd> pds;
  std::map<Id, Mr> mrs;
  std::map<Id, Mw> mws;
  std::map<Id, Cq> cqs;
  std::map<Id, Srq> srqs;
  std::map<Id, Qp> qps;
  std::map<Id, Ah> ahs;

 private:
  enum class Verdict { kDone, kWaits, kFailed };

  void Open() { out_.applies = false; }
  void Fail(int error) { out_.error = error; }
  bool InUse(Id pd) const;
  // By work that waits, of another QP than `except`.
  bool IsPinned(Id mr, Id except = 0) const;

  bool MayHaveWindows(Id mr) const;

  // Steps that are not waited for must have nothing to do with each other.
  void BeginStep(const Step& step);
  void TellChannels();
  // model_cqs.cc: CQs that nobody polls.
  void ApplyHold(const Step& step);
  bool HoldCompletions();
  void CheckRoom();
  void Overrun(Id cq);
  bool IsDead(Id cq) const;
  bool IsHeld(const Qp& qp) const;
  void Touch(const Range& range, bool writes);

  // model_objects.cc
  void ApplyObject(const Step& step);
  void RegMr(const Step& step);
  void ReregMr(const Step& step);
  void CreateQp(const Step& step);
  void DestroyQp(const Step& step);
  void ModifySrq(const Step& step);
  // model_states.cc
  void ModifyQp(const Step& step);
  void Enter(Qp& qp, const Step& step);
  void GoError(Qp& qp);
  void FlushSends(Qp& qp);
  void LoseWindows(const Qp& qp);
  void FlushReceives(Qp& qp);
  void Moved(Qp& qp, ibv_qp_state state);
  // model_post.cc
  void PostSend(const Step& step);
  void PostExtended(Qp& qp, const Step& step);
  void PostRecv(const Step& step);
  void BindType1(const Step& step);
  int CheckPost(const Qp& qp, const Wr& wr, bool is_extended) const;
  bool MakeWork(const Qp& qp, const Wr& wr, Work* out);
  void Progress();
  Verdict Execute(Qp& qp);
  Verdict ExecuteRc(Qp& qp, const Work& work);
  Verdict ExecuteUc(Qp& qp, const Work& work);
  bool MaySendBy(const Qp& qp, Id ah) const;
  Verdict ExecuteUd(Qp& qp, const Work& work);
  void Deliver(Qp& qp, Qp& peer, const Work& work);
  Verdict ExecuteBind(Qp& qp, const Work& work);
  Verdict ExecuteInvalidate(Qp& qp, const Work& work);
  Verdict ExecuteFlush(Qp& qp, Qp& peer, const Work& work);
  bool Invalidate(const Qp& by, const Work& work);
  Verdict ExecuteRemote(Qp& qp, Qp& peer, const Work& work, uint32_t length);
  Verdict FailSend(Qp& qp, std::vector<ibv_wc_status> statuses);
  Verdict CompleteSend(Qp& qp);
  // The peer's side of a request that is refused. IBTA 9.9.3.1: its program hears of it by a
  // receive that failed, or else by an event.
  enum class Told { kByEvent, kByReceive, kByEither };
  Verdict Refuse(Qp& qp, Qp& peer, ibv_wc_status status, ibv_event_type event,
                 Told told = Told::kByEvent);
  // model_memory.cc
  // Where an SGE's bytes are; of no length: nowhere, they are of a null MR.
  Range Place(int side, const Sge& sge) const;
  bool Overlap(const std::vector<Sge>& sges, int side) const;
  bool LocalRangesAllow(const Qp& qp, const std::vector<Sge>& sges, uint32_t access);
  // What a remote key opens: its range in the peer's arena, and what addresses count from.
  bool FindTarget(const Qp& peer, const Work& work, uint32_t access, Range* whole, uint32_t* base);
  // The place of a remote range in the peer's arena; false: the key does not give it.
  bool Resolve(const Qp& peer, const Work& work, uint32_t length, uint32_t access, Range* out);
  std::vector<uint8_t> Gather(const Qp& qp, const Work& work);
  void Scatter(int side, const std::vector<Sge>& sges, const std::vector<uint8_t>& data);
  void Write(const Range& range, const uint8_t* data);
  void Forget(int side, const std::vector<Sge>& sges);
  std::vector<Range> PlacesOf(int side, const std::vector<Sge>& sges) const;
  void CheckHazards(const Work& work, int side, const std::vector<Range>& remote);
  // Whether a receive is fit for a message of so many bytes.
  enum class Fit { kFits, kTooShort, kBadKey, kUnclear };
  Fit Judge(const Qp& peer, const Wr& receive, uint32_t length);
  void CompleteReceive(Qp& peer, const Qp& from, const Work& work, uint32_t byte_len);
  void FailReceive(Qp& peer, std::vector<ibv_wc_status> statuses);
  void TakenFromSrq(Qp& peer);
  void Establish(Qp& peer, bool is_sure);

  Outcome out_;
  std::array<std::vector<uint8_t>, kArenas> arenas_;
  struct Touched {
    Range range;
    bool writes;
  };
  std::vector<Touched> touched_before_, touched_now_;  // by the steps with this one
  std::vector<Id> used_before_;                        // QPs and SRQs
  std::map<Id, size_t> came_before_;                   // completions, by CQ
  bool goes_on_ = false;
  Id executing_ = 0;                                  // the QP whose work it is
  bool sent_to_group_ = false, sent_to_one_ = false;  // datagrams of this step
  // Of READs and atomics of this step, without a fence of the same QP since.
  std::vector<std::pair<Id, Range>> under_way_;
  // Where datagrams of this step go, by receiver, and where they come from.
  std::vector<std::pair<Id, Range>> delivered_;
  std::vector<Range> sent_from_;
};

// IBTA 9.7.2: how many PSNs a message takes.
inline uint32_t PsnsOf(uint32_t length, ibv_mtu mtu) {
  const uint32_t bytes = 128u << mtu;
  return length == 0 ? 1 : (length + bytes - 1) / bytes;
}
inline uint32_t LengthOf(const std::vector<Sge>& sges) {
  uint32_t length = 0;
  for (const Sge& sge : sges) length += sge.length;
  return length;
}
inline bool HasImm(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
inline bool IsSend(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV;
}
inline bool IsAtomic(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
inline bool IsInvalidation(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_LOCAL_INV || opcode == IBV_WR_SEND_WITH_INV;
}
// What a transition of ibv_modify_qp takes. False: there is none.
bool Transition(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, uint32_t* required,
                uint32_t* optional);

}  // namespace verbena::programs
