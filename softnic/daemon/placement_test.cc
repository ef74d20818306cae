// The shard gives way to a client that the scheduler puts behind it.
#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <optional>

#include "softnic/daemon/test_client.h"

namespace verbena::softnic {
namespace {

struct TwoCpus {
  int cpu[2];
};

std::optional<TwoCpus> FindTwoCpus() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return std::nullopt;
  TwoCpus found;
  int count = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE && count < 2; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) found.cpu[count++] = cpu;
  }
  if (count < 2) return std::nullopt;
  return found;
}

// A thread that runs is on that CPU when this returns; one that sleeps wakes there.
bool Pin(pid_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(thread, sizeof(set), &set) == 0;
}

bool PinProcess(pid_t pid, int cpu) {
  bool all = true;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    all &= Pin(std::atoi(entry.path().filename().c_str()), cpu);
  }
  return all;
}

// Where a client comes to run that the shard wakes: where it rang, or where the shard is.
enum class Woken { kAtHome, kBehindTheShard };

// Has the shard wake on the other CPU for each command, as it does where its client keeps its own
// busy. Returns how often the shard looked for work in vain and kept its CPU, per command.
double LooksPerCommand(const TwoCpus& cpus, Woken woken) {
  constexpr int kCommands = 400;
  constexpr int kWarmUp = 20;
  TestDaemon daemon;
  TestClient client;
  EXPECT_TRUE(client.Attach(daemon.directory()));
  const auto looks = [&] { return daemon.StatusNumber("spins") - daemon.StatusNumber("yields"); };
  long looks_before = 0;
  int home = 0;
  for (int i = 0; i < kWarmUp + kCommands; ++i) {
    if (i == kWarmUp) looks_before = looks();
    EXPECT_TRUE(Pin(0, cpus.cpu[home]));
    EXPECT_TRUE(Eventually([&] { return client.status()->sleeping.load() != 0; }));
    EXPECT_TRUE(PinProcess(daemon.pid(), cpus.cpu[1 - home]));
    client.area()->doorbells.last_cpu.store(static_cast<uint32_t>(cpus.cpu[home]));
    client.Submit(0, shm::CommandOp::kNop, nullptr, 0);
    if (woken == Woken::kBehindTheShard) {
      home = 1 - home;
      EXPECT_TRUE(Pin(0, cpus.cpu[home]));
    }
    EXPECT_EQ(client.Await(0), 0);
  }
  const long looked = looks() - looks_before;
  cpu_set_t both;
  CPU_ZERO(&both);
  for (int cpu : cpus.cpu) CPU_SET(cpu, &both);
  sched_setaffinity(0, sizeof(both), &both);
  return static_cast<double>(looked) / kCommands;
}

TEST(Placement, TheShardDoesNotSpinBeforeAClientThatWaitsForItsCpu) {
  std::optional<TwoCpus> cpus = FindTwoCpus();
  if (!cpus.has_value()) GTEST_SKIP() << "needs two CPUs";
  double at_home = LooksPerCommand(*cpus, Woken::kAtHome);
  double behind = LooksPerCommand(*cpus, Woken::kBehindTheShard);
  // Hundreds; under a sanitizer, some twenty. One that does not spin looks once, at most.
  EXPECT_GT(at_home, 4) << "it spins for a client that runs elsewhere";
  EXPECT_LT(behind, at_home / 4);
}

}  // namespace
}  // namespace verbena::softnic
