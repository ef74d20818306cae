#include "tests/programs/run.h"

#include <sched.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "tests/programs/check.h"

namespace verbena::programs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kStepsPerBarrier = 24;

std::string ArenaText(int arena) {
  return (arena < 2 ? "memory of side " : "device memory of side ") + std::to_string(arena % 2);
}

// One run of one program.
class Run {
 public:
  Run(Executor* executor, uint64_t seed, const RunOptions& options)
      : executor_(*executor), options_(options), model_(seed) {
    for (int arena = 0; arena < kArenas; ++arena) {
      executor_.SetMemory(arena, model_.memory(arena));
    }
  }

  RunResult Whole(const Program& program) {
    for (size_t i = 0; i < program.size() && result_.is_good; ++i) {
      result_.step = i;
      One(program[i]);
    }
    if (result_.is_good) Settle();
    if (result_.is_good && !executor_.Barrier()) Wrong("the barrier's messages do not arrive");
    if (result_.is_good) PollOnce();
    if (result_.is_good) CompareMemory();
    return result_;
  }

 private:
  void Wrong(const std::string& text) {
    if (!result_.is_good || text.empty()) return;
    result_.is_good = false;
    result_.text = text;
  }

  void One(const Step& step) {
    Model next = model_;
    Outcome outcome = next.Apply(step);
    if (!outcome.applies && is_under_way_) {
      // Not with those before it; perhaps after them.
      Settle();
      next = model_;
      outcome = next.Apply(step);
    }
    if (!outcome.applies || !result_.is_good) return;
    // What a QP that goes or is reset had to tell, it tells no more.
    const bool resets = step.op == Op::kModifyQp && (step.mask & IBV_QP_STATE) != 0 &&
                        step.attr.qp_state == IBV_QPS_RESET;
    if (options_.traces) std::printf("%4zu %s\n", result_.step, ToString(step).c_str());
    due_.Add(outcome);
    const Actual actual = executor_.Run(step);
    ++result_.calls;
    result_.refused += outcome.error != 0 || outcome.any_error;
    if (options_.traces) {
      std::printf("     = %s, expected %s\n", strerror(actual.error), strerror(outcome.error));
    }
    Wrong(CheckCall(step, outcome, actual, next));
    if (!result_.is_good) return;
    if (outcome.error == 0) Learn(step, actual, &next);
    if (resets) PollOnce();  // but for events from before, which are there once the call returns
    if (resets || step.op == Op::kDestroyQp) {
      if (outcome.error == 0) due_.Forget(step.id);
    }
    is_silent_ |= outcome.is_silent;
    flushed_.insert(flushed_.end(), outcome.flushed.begin(), outcome.flushed.end());
    unknown_.insert(unknown_.end(), outcome.unknown.begin(), outcome.unknown.end());
    moved_.insert(moved_.end(), outcome.moved_qps.begin(), outcome.moved_qps.end());
    model_ = std::move(next);
    is_under_way_ = true;
    if (!step.with_next) Settle();
  }

  // All that is under way comes to its end, and is compared.
  void Settle() {
    AwaitAll();
    if (result_.is_good) CompareFlushed();
    if (!result_.is_good) return;
    if (is_silent_ || !unknown_.empty() || ++since_barrier_ == kStepsPerBarrier) {
      since_barrier_ = 0;
      if (!executor_.Barrier()) return Wrong("the barrier's messages do not arrive");
      PollOnce();
    }
    for (const Range& range : unknown_) {
      memcpy(model_.memory(range.side) + range.offset, executor_.memory(range.side) + range.offset,
             range.length);
    }
    CompareMemory();
    for (Id qp : moved_) {
      if (!result_.is_good || model_.qps.find(qp) == model_.qps.end()) continue;
      const ibv_qp_state state = executor_.QueryState(qp);
      if (state != model_.qps.at(qp).state) {
        Wrong("qp" + std::to_string(qp) + " is in " + Name(state) + ", not " +
              Name(model_.qps.at(qp).state));
      }
    }
    is_under_way_ = is_silent_ = false;
    model_.EndTogether();
    unknown_.clear();
    flushed_.clear();
    moved_.clear();
  }

  static void Learn(const Step& step, const Actual& actual, Model* model) {
    if (step.op == Op::kCreateQp) model->LearnCap(step.id, actual.cap);
    if (step.op == Op::kCreateSrq || step.op == Op::kCreateCq || step.op == Op::kResizeCq ||
        (step.op == Op::kModifySrq && (step.mask & IBV_SRQ_MAX_WR) != 0)) {
      model->LearnEntries(step.id, actual.entries);
    }
  }

  void PollOnce() {
    std::vector<SeenCompletion> completions;
    std::vector<SeenEvent> events;
    std::vector<Id> cq_events;
    executor_.Poll(&completions, &events, &cq_events);
    result_.completions += completions.size();
    result_.events += events.size();
    for (const SeenCompletion& seen : completions) {
      if (options_.traces) std::printf("       %s\n", ToString(seen).c_str());
      Wrong(due_.Take(seen, executor_));
    }
    for (Id cq : cq_events) Wrong(due_.TakeCqEvent(cq));
    for (const SeenEvent& seen : events) {
      if (options_.traces) {
        std::printf("       event '%s' of %u\n", ibv_event_type_str(seen.type), seen.object);
      }
      Wrong(due_.Take(seen));
    }
  }

  void AwaitAll() {
    const auto end = Clock::now() + options_.patience;
    for (PollOnce(); result_.is_good && !due_.IsEmpty(); PollOnce()) {
      if (Clock::now() > end) return Wrong(due_.Missing());
      sched_yield();  // the NIC may need this CPU
    }
  }

  // A FLUSH has completed: nothing is waited for.
  void CompareFlushed() {
    for (const Range& range : flushed_) {
      bool is_known = true;
      for (const Range& other : unknown_) is_known &= !range.Meets(other);
      if (is_known && memcmp(executor_.memory(range.side) + range.offset,
                             model_.memory(range.side) + range.offset, range.length) != 0) {
        Wrong(ArenaText(range.side) + " from +" + std::to_string(range.offset) +
              " has not what was flushed");
      }
    }
  }

  // The bytes of a UC WRITE come without being told of.
  void CompareMemory() {
    const auto end = Clock::now() + options_.patience;
    for (int side = 0; side < kArenas; ++side) {
      const uint8_t* due = model_.memory(side);
      while (result_.is_good && memcmp(executor_.memory(side), due, BytesOf(side)) != 0) {
        if (Clock::now() > end) {
          uint32_t at = 0;
          const uint8_t* is = executor_.memory(side);
          while (at + 1 < BytesOf(side) && is[at] == due[at]) ++at;
          return Wrong(ArenaText(side) + " at +" + std::to_string(at) + " is " +
                       std::to_string(is[at]) + ", not " + std::to_string(due[at]));
        }
        sched_yield();
      }
    }
  }

  Executor& executor_;
  const RunOptions& options_;
  Model model_;
  Due due_;
  RunResult result_;
  // Of steps that were not waited for yet.
  bool is_under_way_ = false, is_silent_ = false;
  std::vector<Range> unknown_, flushed_;
  std::vector<Id> moved_;
  int since_barrier_ = 0;
};

}  // namespace

RunResult Runner::Run(uint64_t seed, const Program& program, const RunOptions& options) {
  if (executor_ == nullptr) executor_ = std::make_unique<Executor>();
  RunResult result = programs::Run(executor_.get(), seed, options).Whole(program);
  const std::string left = executor_->Clear();
  if (result.is_good && !left.empty()) {
    result.is_good = false;
    result.step = program.size();
    result.text = "at the end: " + left;
  }
  if (!result.is_good) executor_.reset();
  return result;
}

}  // namespace verbena::programs
