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
#include <string.h>

#include <map>
#include <memory>
#include <random>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

constexpr uint64_t kRemote = FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr uint64_t kNobodysFlag = 1ULL << 62;
constexpr size_t kContexts = 2000;
constexpr size_t kMessageBytes = 300;

// What one run knows.
class Run {
 public:
  Run(uint32_t seed, int steps) : random_(seed), steps_(steps) {}
  void Go();

 private:
  size_t Below(size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(random_);
  }
  void Step();
  void OpenSomething();
  void CloseSomething();
  void CallWrongly();
  void PostReceive();
  void PostSend();
  void PostWrite();
  void Look();
  void Completed(const Completion& got, bool is_receive);
  void Drain();

  std::mt19937 random_;
  const int steps_;
  std::optional<Pair> pair_;
  std::unique_ptr<Memory> out_, in_, target_;
  // Objects beside the pair, in a's domain.
  std::vector<Fid<fid_cq>> cqs_;
  std::vector<Fid<fid_cntr>> cntrs_;
  std::vector<Fid<fid_av>> avs_;
  std::vector<std::pair<Fid<fid_mr>, std::unique_ptr<std::vector<uint8_t>>>> mrs_;
  std::vector<Fid<fid_ep>> eps_;  // bound to cqs_[0], which can't be closed while there are any
  std::map<void*, int> sends_, receives_;  // under way, by context
  size_t next_ = 0, sent_ = 0, received_ = 0, posted_receives_ = 0;
};

void Run::Go() {
  Wish wish = {.caps = RmaCaps()};
  Info info;
  if (TryGetInfo(wish, &info) != 0) wish.caps = FI_MSG;
  // It has one thread, which keeps to each model.
  const auto threading = static_cast<fi_threading>(Below(FI_THREAD_ENDPOINT + 1));
  wish.hints = [=](fi_info* hints) { hints->domain_attr->threading = threading; };
  for (const uint64_t more : {FI_RMA_EVENT, FI_SOURCE, FI_SOURCE_ERR, FI_AV_USER_ID, FI_FENCE}) {
    Wish with = wish;
    with.caps |= more;
    if (Below(2) == 0 && TryGetInfo(with, &info) == 0) wish = with;
  }
  pair_.emplace(wish);
  const bool has_rma = (wish.caps & FI_RMA) != 0;
  out_ = std::make_unique<Memory>(pair_->a(), kMessageBytes);
  in_ = std::make_unique<Memory>(pair_->b(), kMessageBytes);
  if (has_rma) target_ = std::make_unique<Memory>(pair_->b(), kMessageBytes, kRemote);
  out_->Fill(1);
  for (int i = 0; i < steps_; ++i) Step();
  Drain();
  eps_.clear();
  cqs_.clear();
  cntrs_.clear();
  avs_.clear();
  mrs_.clear();
}

void Run::Step() {
  switch (Below(10)) {
    case 0:
      return OpenSomething();
    case 1:
      return CloseSomething();
    case 2:
      return CallWrongly();
    case 3:
    case 4:
      return PostReceive();
    case 5:
    case 6:
      return PostSend();
    case 7:
      return PostWrite();
    default:
      return Look();
  }
}

void Run::OpenSomething() {
  Peer& a = pair_->a();
  switch (Below(5)) {
    case 0:
      if (cqs_.size() < 20) cqs_.push_back(OpenCq(a.domain));
      return;
    case 1: {
      Fid<fid_cntr> cntr;
      fi_cntr_attr attr = {};
      const int result = fi_cntr_open(a.domain, &attr, cntr.Out(), nullptr);
      Expect(result == 0 || result == -FI_ENOSYS, "fi_cntr_open: %s", NameOf(result).c_str());
      if (result == 0 && cntrs_.size() < 20) cntrs_.push_back(std::move(cntr));
      return;
    }
    case 2:
      if (!IsConnected() && avs_.size() < 20) avs_.push_back(OpenAv(a.domain));
      return;
    case 3: {
      if (!target_ || mrs_.size() >= 20) return;
      auto bytes = std::make_unique<std::vector<uint8_t>>(1 + Below(10000));
      Fid<fid_mr> mr;
      Need(Register(a, bytes->data(), bytes->size(), kRemote, mr.Out()), "fi_mr_reg");
      mrs_.emplace_back(std::move(mr), std::move(bytes));
      return;
    }
    default: {
      if (cqs_.empty() || eps_.size() >= 8) return;
      Fid<fid_ep> ep;
      Need(fi_endpoint(a.domain, a.info.get(), ep.Out(), nullptr), "fi_endpoint");
      Need(fi_ep_bind(ep, cqs_[0].Base(), FI_TRANSMIT | FI_RECV), "fi_ep_bind");
      eps_.push_back(std::move(ep));
    }
  }
}

void Run::CloseSomething() {
  Peer& a = pair_->a();
  switch (Below(6)) {
    case 0:
      return ExpectError(a.domain.Close(), -FI_EBUSY, "closing a domain in use");
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

void Run::CallWrongly() {
  Peer& a = pair_->a();
  long result = -1;
  const char* what = "";
  switch (Below(8)) {
    case 0: {
      fi_cq_attr attr = {};
      attr.format = static_cast<fi_cq_format>(50 + Below(50));
      Fid<fid_cq> cq;
      result = fi_cq_open(a.domain, &attr, cq.Out(), nullptr);
      what = "a CQ of no format";
      break;
    }
    case 1: {
      Fid<fid_mr> mr;
      uint8_t byte;
      result =
          fi_mr_reg(a.domain, &byte, 1, kRemote, 0, NextKey(), kNobodysFlag, mr.Out(), nullptr);
      what = "memory with an unknown flag";
      break;
    }
    case 2:
      result = fi_domain_bind(a.domain, a.tx_cq.Base(), 0);
      what = "a domain bound to a CQ";
      break;
    case 3:
      result = fi_ep_bind(a.ep, a.domain.Base(), FI_TRANSMIT);
      what = "an endpoint bound to a domain";
      break;
    case 4: {
      fi_cq_err_entry error = {};
      // With nothing wrong so far there is no error to be read.
      result = fi_cq_readerr(a.rx_cq, &error, 0);
      what = "an error where there is none";
      break;
    }
    case 5: {
      int value = 0;
      result = fi_set_ops(a.domain.Base(), "nobody has this", 0, &value, nullptr);
      what = "operations of no name";
      break;
    }
    case 6: {
      void* ops = nullptr;
      result = fi_open_ops(a.domain.Base(), "nobody has this", 0, &ops, nullptr);
      what = "an interface of no name";
      break;
    }
    default:
      result = fi_control(a.domain.Base(), 9999, nullptr);
      what = "an unknown control";
  }
  Expect(result < 0, "%s is accepted", what);
}

void Run::PostReceive() {
  if (posted_receives_ - received_ > 100) return;
  void* context = ContextOf(next_++ % kContexts);
  const long result =
      fi_recv(pair_->b().ep, in_->data(), kMessageBytes, in_->desc(), FI_ADDR_UNSPEC, context);
  Expect(result == 0 || result == -FI_EAGAIN, "fi_recv: %s", NameOf(result).c_str());
  if (result == 0) ++receives_[context], ++posted_receives_;
}

void Run::PostSend() {
  // Never more than there are receives for: the end would wait for them.
  if (sent_ >= posted_receives_) return;
  void* context = ContextOf(kContexts + next_++ % kContexts);
  const long result =
      fi_send(pair_->a().ep, out_->data(), kMessageBytes, out_->desc(), pair_->a().other, context);
  Expect(result == 0 || result == -FI_EAGAIN, "fi_send: %s", NameOf(result).c_str());
  if (result == 0) ++sends_[context], ++sent_;
}

void Run::PostWrite() {
  if (!target_) return;
  void* context = ContextOf(kContexts + next_++ % kContexts);
  const size_t from = Below(kMessageBytes), bytes = 1 + Below(kMessageBytes - from);
  const bool is_read = Below(2) == 0;
  Peer& a = pair_->a();
  const long result = is_read ? fi_read(a.ep, out_->data(), 0, out_->desc(), a.other,
                                        target_->Remote(from), target_->key(), context)
                              : fi_write(a.ep, out_->data() + from, bytes, out_->desc(), a.other,
                                         target_->Remote(from), target_->key(), context);
  Expect(result == 0 || result == -FI_EAGAIN || (is_read && result == -FI_EINVAL), "RMA: %s",
         NameOf(result).c_str());
  if (result == 0) ++sends_[context];
}

void Run::Completed(const Completion& got, bool is_receive) {
  Expect(got.error == 0, "a %s fails: %s", is_receive ? "receive" : "send",
         NameOf(got.error).c_str());
  auto& under_way = is_receive ? receives_ : sends_;
  const auto found = under_way.find(got.context);
  Expect(found != under_way.end() && found->second > 0, "a completion of nothing under way");
  if (--found->second == 0) under_way.erase(found);
  if (!is_receive) return;
  ++received_;
  Expect(got.len == kMessageBytes && in_->Has(1, kMessageBytes), "a message of other bytes");
}

void Run::Look() {
  if (const auto got = PollCq(pair_->a().tx_cq)) Completed(*got, false);
  if (const auto got = PollCq(pair_->b().rx_cq)) Completed(*got, true);
}

void Run::Drain() {
  const bool is_over = WaitUntil([&] {
    Look();
    return sends_.empty() && (received_ == sent_ || !IsReliable());
  });
  Expect(is_over, "%zu operations never complete; %zu of %zu messages arrived", sends_.size(),
         received_, sent_);
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
    const Answer answer = RunIsolated({"run", kOnce, [&] { Run(seed, arguments.steps).Go(); }, 60});
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
