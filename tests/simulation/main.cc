// Runs simulations by their seeds, and says of each that fails what a reader needs to repeat it.
//
//   simulate --seeds A..B [--seconds S] [--all-faults]      simulate --seed N [--trace]
#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/simulation/world.h"

namespace verbena::simulation {
namespace {

struct Arguments {
  uint64_t first = 0, last = 0;  // both included
  double seconds = 0;            // 0: all seeds
  bool traces = false;
  bool is_one = false;
  bool all_faults = false;  // passes over the seeds that lack a kind of fault
};

int Usage() {
  std::fprintf(stderr,
               "simulate --seeds A..B [--seconds S] [--all-faults]\n"
               "    runs seeds A to B, or as S allows; all, or those with every kind of fault\n"
               "simulate --seed N [--trace]\n"
               "    runs one and prints its digest\n");
  return 2;
}

bool Parse(int argc, char** argv, Arguments* out) {
  bool has_seeds = false;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--trace") {
      out->traces = true;
      continue;
    }
    if (name == "--all-faults") {
      out->all_faults = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const char* value = argv[++i];
    if (name == "--seed") {
      out->first = out->last = std::strtoull(value, nullptr, 0);
      out->is_one = has_seeds = true;
    } else if (name == "--seeds") {
      const char* dots = std::strstr(value, "..");
      if (dots == nullptr) return false;
      out->first = std::strtoull(value, nullptr, 0);
      out->last = std::strtoull(dots + 2, nullptr, 0);
      has_seeds = true;
    } else if (name == "--seconds") {
      out->seconds = std::strtod(value, nullptr);
    } else {
      return false;
    }
  }
  return has_seeds && out->first <= out->last;
}

// The seed under way, for a run that ends the process: a failed CHECK is a finding too.
volatile uint64_t seed_under_way = 0;

void OnDeath(int signal_number) {
  char line[96];
  const int length = std::snprintf(line, sizeof(line), "seed %" PRIu64 " FAILED: signal %d\n",
                                   static_cast<uint64_t>(seed_under_way), signal_number);
  if (write(STDOUT_FILENO, line, static_cast<size_t>(length)) != length) _exit(3);
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

void PrintTrace(uint64_t seed, Stage* stage) {
  World world(MakePlan(seed), stage, {.keeps_trace = true});
  world.Run();
  for (const std::string& line : world.trace()) std::printf("    %s\n", line.c_str());
}

void PrintStats(const RunStats& stats) {
  const auto& network = stats.network;
  std::printf("  %" PRIu64 " QPs, %" PRIu64 " WQEs, %" PRIu64 " completions (%" PRIu64
              " of receives), %" PRIu64 " QPs failed, %" PRIu64 " steps, ended at %.3f ms\n",
              stats.qps, stats.wqes + stats.receive_wqes, stats.completions, stats.receives,
              stats.failed_ends, stats.steps, static_cast<double>(stats.end.ns) / 1e6);
  std::printf("  packets: %" PRIu64 " sent, %" PRIu64 " lost, %" PRIu64 " corrupted (%" PRIu64
              " found), %" PRIu64 " doubled, %" PRIu64 " reordered, %" PRIu64 " cut off, %" PRIu64
              " queue full, %" PRIu64 " inbox full, %" PRIu64 " port down, %" PRIu64
              " times no room\n",
              network.sent, network.lost, network.corrupted, stats.icrc_errors, network.duplicated,
              network.reordered, network.cut_off, network.queue_drops, network.inbox_drops,
              network.down, network.no_room);
}

int Main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, &arguments)) return Usage();
  Stage stage;
  uint64_t runs = 0, of_all_faults = 0;
  uint64_t failed = 0, wqes = 0, packets = 0, succeeded = 0, steps = 0, digest = 0;
  const auto begin = std::chrono::steady_clock::now();
  auto elapsed = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  for (uint64_t seed = arguments.first; seed <= arguments.last; ++seed) {
    if (arguments.seconds > 0 && elapsed() > arguments.seconds) break;
    const Plan plan = MakePlan(seed);
    if (arguments.all_faults && plan.level != FaultLevel::kAll) continue;
    seed_under_way = seed;
    World world(plan, &stage, {.keeps_trace = arguments.traces && arguments.is_one});
    const bool is_good = world.Run();
    const uint64_t run_wqes = world.stats().wqes + world.stats().receive_wqes;
    // Where most programs die early, little happens: checked like any other, but not counted.
    if (!is_good || run_wqes >= kWqesMin || arguments.is_one) {
      ++runs;
      of_all_faults += world.plan().level == FaultLevel::kAll;
    }
    wqes += run_wqes;
    packets += world.stats().network.sent;
    succeeded += world.stats().succeeded;
    steps += world.stats().steps;
    digest = transport::sim::Fold(digest, world.digest());
    if (arguments.is_one) {
      for (const std::string& line : world.trace()) std::printf("    %s\n", line.c_str());
      PrintStats(world.stats());
    }
    if (is_good) continue;
    ++failed;
    std::printf("seed %" PRIu64 " FAILED: %s\n", seed, world.violation().c_str());
    if (!arguments.is_one && failed <= 3) PrintTrace(seed, &stage);
    std::fflush(stdout);
  }
  std::printf("%" PRIu64 " runs (%" PRIu64 " with all kinds of faults), %" PRIu64
              " failed, %" PRIu64 " WQEs (%" PRIu64 " succeeded), %" PRIu64 " packets, %" PRIu64
              " steps, %.1f s, digest %016" PRIx64 "\n",
              runs, of_all_faults, failed, wqes, succeeded, packets, steps, elapsed(), digest);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace verbena::simulation

int main(int argc, char** argv) {
  // Devices come and go thousands of times: their memory stays with the process.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  for (int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) {
    std::signal(number, verbena::simulation::OnDeath);
  }
  return verbena::simulation::Main(argc, argv);
}
