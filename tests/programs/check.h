// Compares what came with what the model said.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/programs/executor.h"
#include "tests/programs/model.h"

namespace verbena::programs {

// Completions and events that are due, and those that may still come.
class Due {
 public:
  void Add(const Outcome& outcome);
  // Empty, or what is wrong with it.
  std::string Take(const SeenCompletion& seen, const Executor& executor);
  std::string Take(const SeenEvent& seen);
  std::string TakeCqEvent(Id cq);
  bool IsEmpty() const;
  // What has not come.
  std::string Missing() const;
  // A QP was reset or destroyed: nothing of it is to come.
  void Forget(Id object);

 private:
  struct Stream {
    Id cq, qp;
    bool is_receive;
    bool operator<(const Stream& other) const {
      return std::tie(cq, qp, is_receive) < std::tie(other.cq, other.qp, other.is_receive);
    }
  };
  std::map<Stream, std::deque<Completion>> completions_;
  std::map<Id, std::deque<Event>> events_;
  std::map<Id, int> cq_events_;
};

std::string ToString(const Completion& completion);
std::string ToString(const SeenCompletion& seen);
// Of the call itself. `model`: as it was before the step.
std::string CheckCall(const Step& step, const Outcome& outcome, const Actual& actual,
                      const Model& model);
std::string CheckQuery(const Step& step, const Actual& actual, const Model& model);

}  // namespace verbena::programs
