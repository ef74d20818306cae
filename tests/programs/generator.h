// Draws programs. What is drawn is right, but for a third of it, which is wrong in one way.
#pragma once

#include <map>
#include <vector>

#include "tests/programs/model.h"
#include "tests/programs/random.h"

namespace verbena::programs {

struct GeneratorOptions {
  int steps = 120;  // besides those that set the stage
};

Program Generate(uint64_t seed, const GeneratorOptions& options);

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed), model_(seed) {}
  Program Whole(const GeneratorOptions& options);

 private:
  // Appends a step if it applies.
  bool Add(Step step);
  Step New(Op op, int side);
  Id NewId() { return ++last_id_; }
  uint64_t NewWrId(bool is_receive) { return ++last_wr_ * 2 + (is_receive ? 1 : 0); }

  void SetStage();
  void Next();
  // generator.cc: objects and states
  bool MakeMr(int side, Id pd);
  bool MakeOddMr(int side, Id pd);
  bool MakePair();
  bool Foreign();
  // generator_queues.cc
  bool Unpolled();
  bool Drain();
  bool LowWater();
  bool MulticastTraffic();
  bool MakeSomething();
  bool DestroySomething();
  bool ChangeSomething();
  void Connect(Id qp);
  Step ModifyTo(const Qp& qp, ibv_qp_state state);
  bool RandomModify();
  bool Repair();
  uint32_t SomeAccess();

  // generator_traffic.cc
  bool Traffic();
  bool Receives(Qp& qp, uint32_t count);
  bool Sends(Qp& qp, bool with_next = false);
  bool Together();
  bool FullQueue(const Qp& qp);
  bool Window();
  bool InvalidateRegion();
  bool DrawSend(const Qp& qp, bool is_extended, Wr* wr);
  Wr DrawFlushOf(const Wr& wr);
  bool DrawSges(const Qp& qp, uint32_t length, uint32_t access, uint32_t max_sges,
                std::vector<Sge>* out);
  bool DrawRemote(const Qp& qp, uint32_t length, uint32_t access, uint32_t alignment, Wr* wr);
  const char* Spoil(const Qp& qp, Wr* wr);
  uint32_t SomeLength();

  template <typename Map>
  Id AnyOf(const Map& map, int side);
  template <typename Map>
  Id OfPd(const Map& map, int side, Id pd);

  Random random_;
  Model model_;
  Program program_;
  Id last_id_ = 0;
  uint64_t last_wr_ = 0;
  std::map<Id, uint32_t> psns_;  // by QP: what its connection begins with
};

template <typename Map>
Id Generator::AnyOf(const Map& map, int side) {
  std::vector<Id> ids;
  for (const auto& [id, object] : map) {
    if (object.side == side) ids.push_back(id);
  }
  return ids.empty() ? 0 : random_.Of(ids);
}

template <typename Map>
Id Generator::OfPd(const Map& map, int side, Id pd) {
  std::vector<Id> ids;
  for (const auto& [id, object] : map) {
    if (object.side == side && model_.Protection(object.pd) == model_.Protection(pd)) {
      ids.push_back(id);
    }
  }
  return ids.empty() ? 0 : random_.Of(ids);
}

}  // namespace verbena::programs
