// Two ends that carry out programs of verbs work (test_program.h), whatever there is between them,
// and what their clients can see of that.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "softnic/device/test_program.h"
#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {

struct End {
  TestClient* client = nullptr;
  TestCq* cq = nullptr;
  TestQp* qp = nullptr;
  uint8_t* memory = nullptr;  // kEndBytes
  TestMr mr;                  // all rights
  TestMr read_mr, write_mr;   // peers may only READ, only WRITE
  TestMr fixed_mr;            // not to be written, not even by the QP's own
  shm::Handle ah = 0;         // UD: of the peer
  TestSrq srq;
  std::vector<Wc> sends, receives, all;
  std::map<uint64_t, RecvWr> posted;  // by wr_id
};

// How much of what clients see is told.
enum class Told { kAll, kWhatIsPromised };

class Ends {
 public:
  explicit Ends(const Terms& terms);
  virtual ~Ends() = default;

  // Until nothing moves; no time passes. Completions go to the ends' lists.
  void Settle();
  // ... and until no time is waited for.
  void RunAll();
  void CarryOut(const Burst& burst);
  // Both QPs anew from RESET, with nothing posted.
  void Renew();

  QpState StateOf(int at) { return ends[at].client->StateOf(*ends[at].qp); }
  bool IsReady() { return StateOf(0) == QpState::kRts && StateOf(1) == QpState::kRts; }
  shm::QpAttr Query(int at);
  void Receive(int at, uint64_t wr_id, uint32_t bytes);
  // All there is to tell of an end since it was asked last: completions, events, its QP's state and
  // counters. A line each, so that a difference can be read.
  std::vector<std::string> Tell(int at, Told told);

  std::array<End, 2> ends;
  const Terms terms;

 protected:
  // Both ends are one QP, connected to itself, if the clients are one.
  void Open(TestClient& first, TestClient& second);

  virtual void SettleAll() = 0;
  virtual Instant NextTimer() = 0;
  virtual void PassTime(Instant time) = 0;
  virtual Instant Now() const = 0;

 private:
  void RunFor(Duration time);
  void OpenEnd(int at, TestClient& client);
  void MakeQp(End& end);
  void DestroyQp(End& end);
  void Connect();
  void PostReceives(const Burst& burst, bool late);
  void PostReceive(End& end, const RecvWr& receive);
  void Post(int from, const Work& work);
  shm::SendWqe WqeOf(const End& end, End& peer, const Work& work);
  std::string Line(int at, const Wc& wc, Told told) const;

  std::array<std::vector<uint8_t>, 2> memories_;
  std::array<TestCq, 2> cqs_;
  std::array<TestQp, 2> qps_;
  std::map<uint32_t, uint64_t> spares_;  // wr_id by rkey: regions that SENDs invalidate
};

}  // namespace verbena::softnic::testing
