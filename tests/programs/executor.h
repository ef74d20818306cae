// Runs steps on the real library, and sees what comes of them.
#pragma once

#include <infiniband/verbs.h>

#include <map>
#include <string>
#include <vector>

#include "tests/programs/program.h"

namespace verbena::programs {

struct Actual {
  int error = 0;
  int bad_index = -1;
  ibv_qp_cap cap = {};    // of a QP that was made
  uint32_t entries = 0;   // of a CQ or SRQ
  ibv_qp_attr attr = {};  // queries
  ibv_qp_init_attr init = {};
  ibv_srq_attr srq = {};
};

struct SeenCompletion {
  Id cq = 0, qp = 0;  // qp 0: a number of none
  ibv_wc wc = {};
};

struct SeenEvent {
  Id object = 0;
  ibv_event_type type = IBV_EVENT_DEVICE_FATAL;
};

class Executor {
 public:
  // Throws std::runtime_error where there are no two NICs.
  Executor();
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  Actual Run(const Step& step);
  // All that is there now.
  void Poll(std::vector<SeenCompletion>* completions, std::vector<SeenEvent>* events,
            std::vector<Id>* cq_events);
  ibv_qp_state QueryState(Id qp);
  uint32_t QpnOf(Id qp) const;
  bool HadKey(Id window, uint32_t rkey) const;
  // Messages there and back on QPs of its own: what was sent before has arrived or is lost. False:
  // the messages themselves did not arrive.
  bool Barrier();
  // Of device memory a copy.
  const uint8_t* memory(int arena);
  void SetMemory(int arena, const uint8_t* bytes);
  // Destroys everything in the right order. The text of what went wrong, or empty.
  std::string Clear();

 private:
  struct Key {
    uint32_t rkey = 0;
    bool is_zero_based = false;
  };
  struct Side {
    ibv_context* context = nullptr;
    uint8_t* arena = nullptr;
    ibv_dm* dm = nullptr;
    std::vector<uint8_t> dm_copy = std::vector<uint8_t>(kDmBytes);
    ibv_gid gid = {};
    ibv_comp_channel* channel = nullptr;
    ibv_pd* pd = nullptr;  // of the barrier
    ibv_cq* cq = nullptr;
    ibv_qp* qp = nullptr;
  };

  void OpenSide(int side);
  void PollCq(Id id, ibv_cq* cq, std::vector<SeenCompletion>* completions);
  void PollExtended(Id id, ibv_cq_ex* cq, std::vector<SeenCompletion>* completions);
  SeenCompletion Seen(Id cq, const ibv_wc& wc) const;
  void ConnectBarrier(int side);
  ibv_qp_attr Attributes(const Step& step) const;
  Actual Make(const Step& step);
  Actual MakeQp(const Step& step);
  Actual Destroy(const Step& step);
  Actual BindType1(const Step& step);
  ibv_send_wr ToSendWr(const Step& step, const Wr& wr, std::vector<ibv_sge>* sges);
  std::vector<ibv_sge> ToSges(int side, const std::vector<Sge>& sges, bool is_inline = false) const;
  Key RemoteKey(const Wr& wr) const;
  Actual PostSends(const Step& step);
  Actual PostExtended(const Step& step);
  void Build(ibv_qp_ex* qp, const ibv_send_wr& wr, const Wr& of, bool is_ud);
  void DropBinds(const Step& step, int from);
  Actual PostReceives(const Step& step);

  Side sides_[2];
  std::map<Id, ibv_pd*> pds_;
  std::map<Id, ibv_td*> tds_;
  std::map<Id, ibv_mr*> mrs_;
  std::map<Id, ibv_mw*> mws_;
  std::map<Id, ibv_cq*> cqs_;
  std::map<Id, ibv_cq_ex*> extended_cqs_;  // of those
  std::map<Id, bool> held_;                // CQs that are not polled
  uint64_t polls_ = 0;
  std::map<Id, ibv_srq*> srqs_;
  std::map<Id, ibv_qp*> qps_;
  std::map<Id, ibv_ah*> ahs_;
  std::map<Id, bool> in_group_;
  std::map<Id, bool> groups_;  // AHs of the multicast group
  // These outlive their objects.
  std::map<Id, uint32_t> qpns_;
  std::map<Id, uint32_t> lkeys_;
  std::map<Id, uint32_t> device_offsets_;  // of regions of device memory
  std::map<Id, std::vector<Key>> rkeys_;
};

}  // namespace verbena::programs
