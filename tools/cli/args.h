// The command line of `verbena`, parsed into plain data.
//
// Which option belongs to which command is a table (args.cc), so that help, parser and errors
// agree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace verbena::cli {

enum class Command {
  kHelp,
  kVersion,
  kRun,
  kUp,
  kDown,
  kStatus,
  kEnv,
  kDevices,
  kShow,
  kDoctor,
  kCapture,
  kTrace,
  kFault,
  kEvent,
};

// `event`: what to tell, and whom.
struct EventWish {
  std::string nic;            // --nic
  std::string name;           // as enum ibv_event_type
  std::string kind = "port";  // or qp, cq, srq
  uint32_t number = 0;        // --qpn, --srqn; of --cq the handle
  uint32_t session = 0;       // of --cq
};

struct Arguments {
  Command command = Command::kHelp;
  std::optional<int> nics;           // --nics
  bool has_netns = false;            // of them, one in a network namespace that it names
  bool wire_wanted = false;          // --wire
  bool wire = false;                 // an option that needs packets
  bool has_own_nics = false;         // --nic was given; the specs are in `set`
  bool private_instance = false;     // --private
  std::string dma;                   // --dma, empty: as the library chooses
  bool no_paths = false;             // --no-paths
  bool system_librdmacm = false;     // --system-librdmacm
  std::string name_prefix;           // --name-prefix, empty: the daemon's default
  bool foreground = false;           // --foreground
  bool json = false;                 // --json
  std::vector<std::string> set;      // --set NAME=VALUE, as verbenad's "--NAME=VALUE"
  std::string action;                // capture, trace, fault: start, stop, set...
  std::string file;                  // capture start, trace start, fault set
  bool has_faults = false;           // run: --faults was given
  std::vector<std::string> records;  // run: "capture", "trace", as was given
  uint64_t limit_bytes = 0;          // capture start, trace start: --limit-mb
  std::string kind;                  // show: what to list
  std::vector<std::string> program;  // run: CMD and its arguments
  EventWish event;
  std::string topic;  // help: one command, or empty
};

inline constexpr int kMaxNicsPerInstance = 64;

// Parses what follows the program's name. False with a sentence in `error` that names the argument
// and says what is allowed.
[[nodiscard]] bool ParseArguments(const std::vector<std::string>& args, Arguments* out,
                                  std::string* error);

// Help for one command, or the overview when `topic` is empty. Empty for an unknown topic.
std::string HelpText(const std::string& topic);

// What is wrong with a value of VERBENA_DMA or --dma (`name`), or "".
std::string DmaError(const std::string& name, const std::string& text);

// What `show` can list.
const std::vector<std::string>& ShowKinds();

}  // namespace verbena::cli
