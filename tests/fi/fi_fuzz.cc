// Random calls into a libfabric provider, right and wrong ones, by seed, beside a model of what
// must come.
//
//   fi_fuzz --provider NAME [--endpoint msg|rdm|dgram] [--seed N] [--runs N] [--steps N]
//           [--failures N]      it ends after so many failed runs
//
// A run is a process of its own: it opens, binds, posts, closes at random, and knows of each call
// whether it has to fail: objects in use are busy, wrong flags and objects are refused, every
// operation that was taken completes once, messages arrive as they were sent. A failed run prints
// its seed, which repeats it.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include <memory>

#include "tests/fi/fabric.h"
#include "tests/fi/fuzz_traffic.h"
#include "tests/fi/suite.h"

namespace verbena::fi_test {
namespace {

constexpr uint64_t kRemote = FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr uint64_t kNobodysFlag = 1ULL << 62;

// Objects beside an endpoint, in its domain.
class Objects {
 public:
  Objects(Peer& peer, Dice& dice) : peer_(peer), dice_(dice) {}
  void Open();
  void Close();
  void CallWrongly();

 private:
  Peer& peer_;
  Dice& dice_;
  std::vector<Fid<fid_cq>> cqs_;
  std::vector<Fid<fid_cntr>> cntrs_;
  std::vector<Fid<fid_av>> avs_;
  std::vector<std::pair<Fid<fid_mr>, std::unique_ptr<std::vector<uint8_t>>>> mrs_;
  std::vector<Fid<fid_ep>> eps_;  // bound to cqs_[0], which can't be closed while there are any
};

void Objects::Open() {
  switch (dice_.Below(5)) {
    case 0:
      if (cqs_.size() < 20) cqs_.push_back(OpenCq(peer_.domain));
      return;
    case 1: {
      Fid<fid_cntr> cntr;
      fi_cntr_attr attr = {};
      const int result = fi_cntr_open(peer_.domain, &attr, cntr.Out(), nullptr);
      Expect(result == 0 || result == -FI_ENOSYS, "fi_cntr_open: %s", NameOf(result).c_str());
      if (result == 0 && cntrs_.size() < 20) cntrs_.push_back(std::move(cntr));
      return;
    }
    case 2:
      if (!IsConnected() && avs_.size() < 20) avs_.push_back(OpenAv(peer_.domain));
      return;
    case 3: {
      if ((peer_.wish.caps & FI_RMA) == 0 || mrs_.size() >= 20) return;
      auto bytes = std::make_unique<std::vector<uint8_t>>(1 + dice_.Below(10000));
      Fid<fid_mr> mr;
      Need(Register(peer_, bytes->data(), bytes->size(), kRemote, mr.Out()), "fi_mr_reg");
      mrs_.emplace_back(std::move(mr), std::move(bytes));
      return;
    }
    default: {
      if (cqs_.empty() || eps_.size() >= 8) return;
      Fid<fid_ep> ep;
      Need(fi_endpoint(peer_.domain, peer_.info.get(), ep.Out(), nullptr), "fi_endpoint");
      Need(fi_ep_bind(ep, cqs_[0].Base(), FI_TRANSMIT | FI_RECV), "fi_ep_bind");
      eps_.push_back(std::move(ep));
    }
  }
}

void Objects::Close() {
  switch (dice_.Below(6)) {
    case 0:
      return ExpectError(peer_.domain.Close(), -FI_EBUSY, "closing a domain in use");
    case 1:
      if (cqs_.empty()) return;
      if (!eps_.empty()) return ExpectError(cqs_[0].Close(), -FI_EBUSY, "closing a CQ in use");
      Need(cqs_[0].Close(), "fi_close of a CQ");
      cqs_.erase(cqs_.begin());
      return;
    case 2:
      if (!cntrs_.empty()) Need(cntrs_.back().Close(), "fi_close of a counter"), cntrs_.pop_back();
      return;
    case 3:
      if (!avs_.empty()) Need(avs_.back().Close(), "fi_close of an AV"), avs_.pop_back();
      return;
    case 4:
      if (!mrs_.empty()) Need(mrs_.back().first.Close(), "fi_close of memory"), mrs_.pop_back();
      return;
    default:
      if (!eps_.empty()) Need(eps_.back().Close(), "fi_close of an endpoint"), eps_.pop_back();
  }
}

void Objects::CallWrongly() {
  long result = -1;
  const char* what = "";
  switch (dice_.Below(7)) {
    case 0: {
      fi_cq_attr attr = {};
      attr.format = static_cast<fi_cq_format>(50 + dice_.Below(50));
      Fid<fid_cq> cq;
      result = fi_cq_open(peer_.domain, &attr, cq.Out(), nullptr);
      what = "a CQ of no format";
      break;
    }
    case 1: {
      Fid<fid_mr> mr;
      uint8_t byte;
      result =
          fi_mr_reg(peer_.domain, &byte, 1, kRemote, 0, NextKey(), kNobodysFlag, mr.Out(), nullptr);
      what = "memory with an unknown flag";
      break;
    }
    case 2:
      result = fi_domain_bind(peer_.domain, peer_.tx_cq.Base(), 0);
      what = "a domain bound to a CQ";
      break;
    case 3:
      result = fi_ep_bind(peer_.ep, peer_.domain.Base(), FI_TRANSMIT);
      what = "an endpoint bound to a domain";
      break;
    case 4: {
      int value = 0;
      result = fi_set_ops(peer_.domain.Base(), "nobody has this", 0, &value, nullptr);
      what = "operations of no name";
      break;
    }
    case 5: {
      void* ops = nullptr;
      result = fi_open_ops(peer_.domain.Base(), "nobody has this", 0, &ops, nullptr);
      what = "an interface of no name";
      break;
    }
    default:
      result = fi_control(peer_.domain.Base(), 9999, nullptr);
      what = "an unknown control";
  }
  Expect(result < 0, "%s is accepted", what);
}

void Run(uint32_t seed, int steps) {
  Dice dice(seed);
  std::vector<Fid<fid_cntr>> counters;
  const Wish wish = Traffic::MakeWish(dice, &counters);
  Crowd crowd(wish, 2 + dice.Below(2));
  {
    Traffic traffic(crowd, dice, counters);
    Objects objects(crowd[dice.Below(crowd.size())], dice);
    for (int i = 0; i < steps; ++i) {
      switch (dice.Below(12)) {
        case 0:
          objects.Open();
          break;
        case 1:
          objects.Close();
          break;
        case 2:
          objects.CallWrongly();
          break;
        case 3:
          traffic.StepWrongly();
          break;
        default:
          traffic.Step();
      }
    }
    traffic.Finish();
    switch (dice.Below(3)) {
      case 0:
        traffic.Fail();
        break;
      case 1:
        traffic.Abandon();
        break;
      default:
        break;  // nothing is under way
    }
    for (size_t i = 0; i < crowd.size(); ++i) {
      Need(crowd[i].ep.Close(), "fi_close of an endpoint");
    }
  }
  for (Fid<fid_cntr>& counter : counters) Need(counter.Close(), "fi_close of a counter");
}

struct Arguments {
  Target target;
  uint32_t seed = 1;
  int runs = 20, steps = 500, most_failures = INT_MAX;
};

bool Parse(int argc, char** argv, Arguments* out) {
  out->target.type = FI_EP_RDM;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) return false;
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--provider") {
      out->target.provider = value;
    } else if (name == "--endpoint") {
      const EndpointType* known = FindEndpointType(value);
      if (known == nullptr) return false;
      out->target.type = known->type;
    } else if (name == "--seed") {
      out->seed = static_cast<uint32_t>(strtoul(value.c_str(), nullptr, 10));
    } else if (name == "--runs") {
      out->runs = atoi(value.c_str());
    } else if (name == "--steps") {
      out->steps = atoi(value.c_str());
    } else if (name == "--failures") {
      out->most_failures = atoi(value.c_str());
    } else {
      return false;
    }
  }
  return !out->target.provider.empty();
}

int Main(int argc, char** argv) {
  // On a bad network a message of the connection manager may be lost twice, 4.3 s each time.
  SetPatience(4);
  Arguments arguments;
  if (!Parse(argc, argv, &arguments)) {
    fprintf(stderr,
            "usage: fi_fuzz --provider NAME [--endpoint msg|rdm|dgram] [--seed N] [--runs N] "
            "[--steps N] [--failures N]\n");
    return 2;
  }
  setenv("FI_PROVIDER", arguments.target.provider.c_str(), 0);
  Ask(arguments.target);
  int runs = 0, failed = 0;
  for (; runs < arguments.runs && failed < arguments.most_failures; ++runs) {
    const uint32_t seed = arguments.seed + static_cast<uint32_t>(runs);
    const Answer answer = RunIsolated({"run", kOnce, [&] { Run(seed, arguments.steps); }, 60});
    if (answer.verdict == Verdict::kYes) continue;
    ++failed;
    printf("seed %u FAILED: %s\n", seed, answer.reason.c_str());
  }
  printf("%d runs, %d failed\n", runs, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace verbena::fi_test

int main(int argc, char** argv) { return verbena::fi_test::Main(argc, argv); }
