// What `verbena doctor` finds out about a machine. Each probe tries the thing itself, as the
// caller, and leaves nothing behind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace verbena::cli {

enum class Verdict {
  kOk,       // there, or not needed
  kLimited,  // works otherwise, slower or with less
  kMissing,  // Verbena does not work without it
};

struct Finding {
  std::string id;     // stable, for programs: "process_vm"
  std::string title;  // "Copy between own processes"
  Verdict verdict = Verdict::kOk;
  std::string found;   // what is the case
  std::string effect;  // what Verbena does instead; empty when all is well
  std::string fix;     // how to change it; empty when nothing is to be done
};

// All probes, in the order in which they are shown.
std::vector<Finding> RunProbes();

const char* VerdictName(Verdict verdict);  // "ok", "limited", "missing"

// Who holds a UDP port of this network namespace: its inode from a /proc/net/udp{,6} text, or 0.
// Split out so that the parsing can be tested.
uint64_t UdpSocketInode(const std::string& proc_net_udp, uint16_t port);

// CPUs that a cgroup's cpu.max text allows, rounded up; 0 for "max" or nonsense.
int CpusOfQuota(const std::string& cpu_max);

}  // namespace verbena::cli
