// Random verbs programs on the library under test, beside a model of what must happen.
//
//   verbs_program_fuzz --seed N [--steps K] [--trace]
//   verbs_program_fuzz --first-seed S [--seeds N] [--seconds T] [--steps K]
//
// Needs an instance with two NICs: verbena run --private --nics=2 [--wire] -- verbs_program_fuzz …
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "tests/programs/generator.h"
#include "tests/programs/run.h"
#include "tests/programs/shrink.h"

namespace verbena::programs {
namespace {

struct Arguments {
  uint64_t first = 1, count = ~uint64_t{0};
  double seconds = 0;  // 0: all seeds
  GeneratorOptions generator;
  bool traces = false;
  bool shrinks = true;
};

constexpr int kTriesMax = 1500;
constexpr auto kShrinkLimit = std::chrono::seconds(120);
constexpr uint64_t kFailuresMax = 3;

int Usage() {
  std::fprintf(stderr,
               "verbs_program_fuzz --seed N [--steps K] [--trace] [--no-shrink]\n"
               "verbs_program_fuzz --first-seed S [--seeds N] [--seconds T] [--steps K]\n");
  return 2;
}

bool Parse(int argc, char** argv, Arguments* out) {
  bool has_end = false;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--trace" || name == "--no-shrink") {
      (name == "--trace" ? out->traces : out->shrinks) = name == "--trace";
      continue;
    }
    if (i + 1 == argc) return false;
    const char* value = argv[++i];
    if (name == "--seed" || name == "--first-seed") {
      out->first = std::strtoull(value, nullptr, 0);
      if (name == "--seed") out->count = 1;
      has_end |= name == "--seed";
    } else if (name == "--seeds") {
      out->count = std::strtoull(value, nullptr, 0);
      has_end = true;
    } else if (name == "--seconds") {
      out->seconds = std::strtod(value, nullptr);
      has_end = true;
    } else if (name == "--steps") {
      out->generator.steps = std::atoi(value);
    } else {
      return false;
    }
  }
  return has_end && out->generator.steps > 0;
}

// The seed under way, for a program that ends the process.
volatile uint64_t seed_under_way = 0;

void OnDeath(int signal_number) {
  char line[96];
  const int length = std::snprintf(line, sizeof(line), "seed %" PRIu64 " FAILED: signal %d\n",
                                   static_cast<uint64_t>(seed_under_way), signal_number);
  if (write(STDOUT_FILENO, line, static_cast<size_t>(length)) != length) _exit(3);
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

// Prints the shortest program found that fails in the same run, with what it expects and sees.
void Explain(uint64_t seed, Program program) {
  Runner runner;
  RunOptions quick;
  quick.patience = std::chrono::milliseconds(1000);
  const auto end = std::chrono::steady_clock::now() + kShrinkLimit;
  program = Shrink(
      std::move(program),
      [&](const Program& candidate) {
        return std::chrono::steady_clock::now() < end &&
               !runner.Run(seed, candidate, quick).is_good;
      },
      kTriesMax);
  quick.traces = true;
  std::printf("  the shortest found, %zu steps:\n", program.size());
  const RunResult result = runner.Run(seed, program, quick);
  std::printf("  %s\n", result.is_good ? "(did not fail once more)" : result.text.c_str());
}

int Main(const Arguments& arguments) {
  Runner runner;
  uint64_t programs = 0, failed = 0, calls = 0, refused = 0, completions = 0, events = 0;
  const auto begin = std::chrono::steady_clock::now();
  auto elapsed = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  for (uint64_t i = 0; i < arguments.count && failed < kFailuresMax; ++i) {
    if (arguments.seconds > 0 && elapsed() > arguments.seconds) break;
    const uint64_t seed = arguments.first + i;
    seed_under_way = seed;
    const Program program = Generate(seed, arguments.generator);
    RunOptions options;
    options.traces = arguments.traces;
    const RunResult result = runner.Run(seed, program, options);
    ++programs;
    calls += result.calls;
    refused += result.refused;
    completions += result.completions;
    events += result.events;
    if (result.is_good) continue;
    ++failed;
    std::printf("seed %" PRIu64 " FAILED: step %zu: %s\n", seed, result.step, result.text.c_str());
    if (result.step < program.size()) {
      std::printf("  %s\n", ToString(program[result.step]).c_str());
    }
    std::fflush(stdout);
    if (arguments.shrinks) Explain(seed, program);
    std::fflush(stdout);
  }
  std::printf("%" PRIu64 " programs, %" PRIu64 " failed, %" PRIu64 " calls (%" PRIu64
              " refused), %" PRIu64 " completions, %" PRIu64 " events, %.1f s\n",
              programs, failed, calls, refused, completions, events, elapsed());
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace verbena::programs

int main(int argc, char** argv) {
  verbena::programs::Arguments arguments;
  if (!verbena::programs::Parse(argc, argv, &arguments)) return verbena::programs::Usage();
  for (int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) {
    std::signal(number, verbena::programs::OnDeath);
  }
  try {
    return verbena::programs::Main(arguments);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "verbs_program_fuzz: seed %" PRIu64 ": %s\n",
                 static_cast<uint64_t>(verbena::programs::seed_under_way), problem.what());
    return 2;
  }
}
