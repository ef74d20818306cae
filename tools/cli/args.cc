#include "tools/cli/args.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>

namespace verbena::cli {
namespace {

struct CommandRow {
  Command command;
  std::string_view name;
  std::string_view synopsis;
  std::string_view summary;
  std::string_view details;
};

constexpr CommandRow kCommands[] = {
    {Command::kRun, "run", "run [options] [--] CMD [ARG...]",
     "Run a program with Verbena's NICs, starting an instance if none runs.",
     "The program is neither changed nor recompiled; it finds devices verbena0, verbena1, ...\n"
     "All programs of one user and network namespace share an instance, so that a server here and\n"
     "a client in another terminal find each other. The exit code is CMD's (128+N if a signal\n"
     "ended it, 127 if it was not found, 126 if it cannot be executed)."},
    {Command::kUp, "up", "up [options]", "Start the instance and keep it until `verbena down`.",
     "Without `up`, `run` starts an instance that ends a few seconds after its last program."},
    {Command::kDown, "down", "down", "End the instance.",
     "Programs that still use it see their device disappear (IBV_EVENT_DEVICE_FATAL)."},
    {Command::kStatus, "status", "status [--json]", "What the instance is doing.", ""},
    {Command::kDevices, "devices", "devices [--json]", "List the NICs and their addresses.", ""},
    {Command::kShow, "show", "show KIND [--json]",
     "List objects: cmd, session, pd, mr, cq, qp, srq, ah, channel, mw, dm, place, cm.", ""},
    {Command::kEnv, "env", "env [options]", "Print exports for a shell: eval \"$(verbena env)\".",
     "Afterwards programs started from that shell use Verbena; the first one that asks for "
     "devices\n"
     "starts the instance (VERBENA_AUTOSTART=0 turns that off)."},
    {Command::kCapture, "capture", "capture start FILE | stop | status",
     "Record all packets of a running instance to a pcapng file.",
     "Wireshark and tshark read it; each packet's comment names process and QP."},
    {Command::kTrace, "trace", "trace start FILE | stop | status",
     "Write a line about each packet of a running instance to a file.",
     "Time, NIC, direction, addresses, headers, process and QP (docs/capture.md). What fault\n"
     "rules do to a packet is not in it: a capture has that."},
    {Command::kFault, "fault", "fault set FILE | clear | report",
     "Break packets of a running instance by rules (docs/faults.md).", ""},
    {Command::kEvent, "event", "event --nic NAME [--qpn N | --cq SESSION/HANDLE | --srqn N] EVENT",
     "Tell programs of an asynchronous event that did not happen.",
     "EVENT is as in enum ibv_event_type, e.g. port_err, lid_change, path_mig (docs/events.md). "
     "Nothing\n"
     "but that changes: what the NIC, the QP or the port is and does stays as it was."},
    {Command::kDoctor, "doctor", "doctor [--json]",
     "What this machine allows, what is used instead, how to fix it.", ""},
    {Command::kVersion, "version", "version", "Print the version.", ""},
    {Command::kHelp, "help", "help [COMMAND]", "This overview, or one command in detail.", ""},
};

// What commands with actions take first: the one that wants a file, and two others.
struct ActionRow {
  Command command;
  std::string_view with_file;
  std::string_view others[2];
};

constexpr ActionRow kActions[] = {
    {Command::kCapture, "start", {"stop", "status"}},
    {Command::kTrace, "start", {"stop", "status"}},
    {Command::kFault, "set", {"clear", "report"}},
};

constexpr unsigned Bit(Command command) { return 1u << static_cast<unsigned>(command); }

enum class OptionId {
  kNics,
  kNic,
  kWire,
  kCapture,
  kTrace,
  kFaults,
  kSeed,
  kLimit,
  kPrivate,
  kDma,
  kNamePrefix,
  kForeground,
  kJson,
  kSet,
  kEventNic,
  kEventQp,
  kEventCq,
  kEventSrq,
  kNoPaths,
  kSystemLibrdmacm,
};

struct OptionRow {
  OptionId id;
  std::string_view name;
  std::string_view value;  // empty: takes none
  unsigned commands;
  std::string_view help;
};

constexpr OptionRow kOptions[] = {
    {OptionId::kNics, "--nics", "N", Bit(Command::kRun) | Bit(Command::kUp),
     "have at least N NICs; a running instance gets the missing ones added"},
    {OptionId::kNic, "--nic", "SPEC", Bit(Command::kRun) | Bit(Command::kUp),
     "a NIC on this host's network: ip=ADDRESS[,ip=...][,name=NAME][,netns=NAME]; repeatable"},
    {OptionId::kWire, "--wire", "", Bit(Command::kRun),
     "NICs talk RoCEv2 over UDP even to each other, by --nic or on loopback; implies --private"},
    {OptionId::kCapture, "--capture", "FILE", Bit(Command::kRun),
     "record all packets (pcapng); implies --wire where there is no --nic"},
    {OptionId::kTrace, "--trace", "FILE", Bit(Command::kRun),
     "write a line about each packet; the same"},
    {OptionId::kFaults, "--faults", "FILE", Bit(Command::kRun),
     "break packets by rules (docs/faults.md); fails if a rule never fired; the same"},
    {OptionId::kSeed, "--seed", "N", Bit(Command::kRun),
     "what chance in fault rules draws from; implies --private"},
    {OptionId::kLimit, "--limit-mb", "N", Bit(Command::kCapture) | Bit(Command::kTrace),
     "end it when the file has so many megabytes"},
    {OptionId::kPrivate, "--private", "", Bit(Command::kRun),
     "an instance of its own that ends with CMD"},
    {OptionId::kDma, "--dma", "MODE", Bit(Command::kRun) | Bit(Command::kEnv),
     "how the NIC reaches CMD's memory: process, mapped, assisted or auto (docs/cli.md)"},
    {OptionId::kNoPaths, "--no-paths", "", Bit(Command::kRun) | Bit(Command::kEnv),
     "without LD_PRELOAD, which shows the NICs in /sys and /dev (docs/ucx-and-mpi.md)"},
    {OptionId::kSystemLibrdmacm, "--system-librdmacm", "", Bit(Command::kRun) | Bit(Command::kEnv),
     "the system's own librdmacm, with rsockets, instead of ours (docs/cli.md)"},
    {OptionId::kNamePrefix, "--name-prefix", "NAME", Bit(Command::kRun) | Bit(Command::kUp),
     "device names, for a new instance: NAME0, NAME1, ... (default verbena)"},
    {OptionId::kForeground, "--foreground", "", Bit(Command::kUp),
     "stay in the foreground, with the log on standard error; end with Ctrl-C"},
    {OptionId::kSet, "--set", "NAME=VALUE", Bit(Command::kRun) | Bit(Command::kUp),
     "a verbenad flag for a new instance, e.g. --set max-qp=64"},
    {OptionId::kJson, "--json", "",
     Bit(Command::kStatus) | Bit(Command::kDevices) | Bit(Command::kShow) | Bit(Command::kDoctor),
     "print JSON for programs"},
    {OptionId::kEventNic, "--nic", "NAME", Bit(Command::kEvent), "the device: verbena0"},
    {OptionId::kEventQp, "--qpn", "N", Bit(Command::kEvent), "the QP, for an event of one"},
    {OptionId::kEventCq, "--cq", "SESSION/HANDLE", Bit(Command::kEvent),
     "the CQ, as `verbena show cq` lists it"},
    {OptionId::kEventSrq, "--srqn", "N", Bit(Command::kEvent), "the SRQ, by its number"},
};

const CommandRow* FindCommand(std::string_view name) {
  for (const CommandRow& row : kCommands) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

const CommandRow& RowOf(Command command) {
  return *std::find_if(std::begin(kCommands), std::end(kCommands),
                       [command](const CommandRow& row) { return row.command == command; });
}

// nullptr: the command has no actions.
const ActionRow* ActionsOf(Command command) {
  for (const ActionRow& row : kActions) {
    if (row.command == command) return &row;
  }
  return nullptr;
}

// "start FILE, stop or status".
std::string ActionsText(const ActionRow& row) {
  return std::string(row.with_file) + " FILE, " + std::string(row.others[0]) + " or " +
         std::string(row.others[1]);
}

// Some names mean something else to another command.
const OptionRow* FindOption(std::string_view name, Command command) {
  for (const OptionRow& row : kOptions) {
    if (row.name == name && (row.commands & Bit(command)) != 0) return &row;
  }
  return nullptr;
}

bool ParseNumber(std::string_view text, uint32_t* out) {
  const int base = text.starts_with("0x") ? 16 : 10;
  if (base == 16) text.remove_prefix(2);
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *out, base);
  return code == std::errc() && end == text.data() + text.size();
}

bool ParseEventObject(const std::string& kind, std::string_view text, EventWish* out,
                      std::string* error) {
  out->kind = kind;
  const size_t slash = kind == "cq" ? text.find('/') : 0;
  const bool is_good = slash != std::string_view::npos &&
                       (kind != "cq" || ParseNumber(text.substr(0, slash), &out->session)) &&
                       ParseNumber(kind == "cq" ? text.substr(slash + 1) : text, &out->number);
  if (!is_good) {
    *error =
        "\"" + std::string(text) + "\" names no " + kind + "; see `verbena show " + kind + "`.";
  }
  return is_good;
}

bool ParseNics(const std::string& text, Arguments* out, std::string* error) {
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < 1 ||
      value > kMaxNicsPerInstance) {
    *error = "--nics wants a number from 1 to " + std::to_string(kMaxNicsPerInstance) + ", not \"" +
             text + "\".";
    return false;
  }
  out->nics = value;
  return true;
}

bool ParseDma(const std::string& text, Arguments* out, std::string* error) {
  out->dma = text;
  *error = DmaError("--dma", text);
  return error->empty();
}

bool ParseNamePrefix(const std::string& text, Arguments* out, std::string* error) {
  const bool legal = !text.empty() && text.size() <= 48 &&
                     std::all_of(text.begin(), text.end(), [](unsigned char c) {
                       return std::isalnum(c) != 0 || c == '_' || c == '-';
                     });
  if (!legal) {
    *error = "--name-prefix wants 1 to 48 letters, digits, '_' or '-', not \"" + text + "\".";
    return false;
  }
  out->name_prefix = text;
  return true;
}

bool ParseSet(const std::string& text, Arguments* out, std::string* error) {
  if (text.find('=') == std::string::npos || text.front() == '-' || text.front() == '=') {
    *error = "--set wants NAME=VALUE (a verbenad flag without its dashes), not \"" + text + "\".";
    return false;
  }
  out->set.push_back("--" + text);
  return true;
}

bool ParseLimit(const std::string& text, Arguments* out, std::string* error) {
  uint64_t megabytes = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), megabytes);
  if (code != std::errc() || end != text.data() + text.size() || megabytes == 0 ||
      megabytes > 1'000'000) {
    *error = "--limit-mb wants a number from 1 to 1000000, not \"" + text + "\".";
    return false;
  }
  out->limit_bytes = megabytes << 20;
  return true;
}

// The daemon has a working directory of its own.
std::string Absolute(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(path, ignored);
  return absolute.empty() ? path : absolute.string();
}

// Of a NIC's "ip=10.0.0.1,netns=./a". A name without a slash is for `ip netns`.
std::string WithAbsoluteNetns(std::string_view nic) {
  constexpr std::string_view kNetns = "netns=";
  std::string out;
  while (!nic.empty()) {
    const std::string_view item = nic.substr(0, nic.find(','));
    nic.remove_prefix(std::min(nic.size(), item.size() + 1));
    if (!out.empty()) out += ',';
    const bool is_path =
        item.substr(0, kNetns.size()) == kNetns && item.find('/') != std::string_view::npos;
    out += is_path ? std::string(kNetns) + Absolute(std::string(item.substr(kNetns.size())))
                   : std::string(item);
  }
  return out;
}

// "capture start FILE", "fault report"...
bool TakeAction(const ActionRow& row, const std::string& word, Arguments* out, std::string* error) {
  const std::string command = "`verbena " + std::string(RowOf(row.command).name);
  if (out->action.empty()) {
    if (word != row.with_file && word != row.others[0] && word != row.others[1]) {
      *error = command + "` is " + ActionsText(row) + ", not \"" + word + "\".";
      return false;
    }
    out->action = word;
    return true;
  }
  if (out->action == row.with_file && out->file.empty()) {
    out->file = Absolute(word);
    return true;
  }
  *error = command + " " + out->action + "` does not take \"" + word + "\".";
  return false;
}

bool ApplyOption(const OptionRow& option, const std::string& value, Arguments* out,
                 std::string* error) {
  switch (option.id) {
    case OptionId::kNics:
      return ParseNics(value, out, error);
    case OptionId::kDma:
      return ParseDma(value, out, error);
    case OptionId::kNamePrefix:
      return ParseNamePrefix(value, out, error);
    case OptionId::kSet:
      return ParseSet(value, out, error);
    case OptionId::kNic:
      out->set.push_back("--nic=" + WithAbsoluteNetns(value));
      out->has_own_nics = true;
      out->has_netns |= value.find("netns=") != std::string::npos;
      return true;
    case OptionId::kWire:
      out->wire_wanted = true;
      return true;
    case OptionId::kCapture:
      out->wire = true;
      out->records.emplace_back("capture");
      out->set.push_back("--capture=" + Absolute(value));
      return true;
    case OptionId::kTrace:
      out->wire = true;
      out->records.emplace_back("trace");
      out->set.push_back("--trace=" + Absolute(value));
      return true;
    case OptionId::kFaults:
      out->wire = true;
      out->has_faults = true;
      out->set.push_back("--faults=" + Absolute(value));
      return true;
    case OptionId::kSeed:
      out->private_instance = true;
      out->set.push_back("--seed=" + value);
      return true;
    case OptionId::kLimit:
      return ParseLimit(value, out, error);
    case OptionId::kPrivate:
      out->private_instance = true;
      return true;
    case OptionId::kNoPaths:
      out->no_paths = true;
      return true;
    case OptionId::kSystemLibrdmacm:
      out->system_librdmacm = true;
      return true;
    case OptionId::kForeground:
      out->foreground = true;
      return true;
    case OptionId::kJson:
      out->json = true;
      return true;
    case OptionId::kEventNic:
      out->event.nic = value;
      return true;
    case OptionId::kEventQp:
      return ParseEventObject("qp", value, &out->event, error);
    case OptionId::kEventCq:
      return ParseEventObject("cq", value, &out->event, error);
    case OptionId::kEventSrq:
      return ParseEventObject("srq", value, &out->event, error);
  }
  return false;
}

// Parses the option at args[*at] and moves `at` behind it.
bool ParseOption(const std::vector<std::string>& args, size_t* at, Arguments* out,
                 std::string* error) {
  const std::string& word = args[(*at)++];
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const CommandRow& command = RowOf(out->command);
  const OptionRow* option = FindOption(name, out->command);
  if (option == nullptr) {
    *error = "`verbena " + std::string(command.name) + "` has no option " + name +
             "; see `verbena help " + std::string(command.name) + "`.";
    return false;
  }
  std::string value;
  if (option->value.empty()) {
    if (equals != std::string::npos) {
      *error = name + " takes no value.";
      return false;
    }
  } else if (equals != std::string::npos) {
    value = word.substr(equals + 1);
  } else if (*at < args.size()) {
    value = args[(*at)++];
  }
  if (!option->value.empty() && value.empty()) {
    *error = name + " wants a value: " + name + "=" + std::string(option->value) + ".";
    return false;
  }
  return ApplyOption(*option, value, out, error);
}

bool TakePositional(const std::string& word, Arguments* out, std::string* error) {
  if (const ActionRow* row = ActionsOf(out->command); row != nullptr) {
    return TakeAction(*row, word, out, error);
  }
  if (out->command == Command::kEvent && out->event.name.empty()) {
    out->event.name = word;
    return true;
  }
  if (out->command == Command::kShow && out->kind.empty()) {
    const std::vector<std::string>& kinds = ShowKinds();
    if (std::find(kinds.begin(), kinds.end(), word) == kinds.end()) {
      *error =
          "`verbena show` lists cmd, session, pd, mr, cq, qp, srq, ah, channel, mw, dm, place or "
          "cm, not "
          "\"" +
          word + "\".";
      return false;
    }
    out->kind = word;
    return true;
  }
  if (out->command == Command::kHelp && out->topic.empty()) {
    if (FindCommand(word) == nullptr) {
      *error = "There is no command \"" + word + "\"; see `verbena help`.";
      return false;
    }
    out->topic = word;
    return true;
  }
  *error =
      "`verbena " + std::string(RowOf(out->command).name) + "` does not take \"" + word + "\".";
  return false;
}

bool CheckComplete(const Arguments& arguments, std::string* error) {
  if (arguments.command == Command::kRun && arguments.program.empty()) {
    *error = "`verbena run` wants a program: verbena run -- ib_write_bw localhost.";
    return false;
  }
  if (const ActionRow* row = ActionsOf(arguments.command); row != nullptr) {
    const std::string command = "`verbena " + std::string(RowOf(row->command).name);
    if (arguments.action.empty()) {
      *error = command + "` wants " + ActionsText(*row) + ".";
      return false;
    }
    if (arguments.file.empty() && arguments.action == row->with_file) {
      *error = command + " " + arguments.action + "` wants the name of a file.";
      return false;
    }
  }
  if (arguments.command == Command::kEvent &&
      (arguments.event.name.empty() || arguments.event.nic.empty())) {
    *error = "`verbena event` wants a NIC and an event: verbena event --nic verbena0 port_err.";
    return false;
  }
  if (arguments.has_own_nics && arguments.nics.has_value()) {
    *error = "--nic names each NIC, so --nics has nothing to say; leave one of them out.";
    return false;
  }
  if (arguments.command == Command::kShow && arguments.kind.empty()) {
    *error =
        "`verbena show` wants a kind: cmd, session, pd, mr, cq, qp, srq, ah, channel, mw, dm, "
        "place or "
        "cm.";
    return false;
  }
  return true;
}

// The first word names the command; --help and --version work as such, too.
bool ParseCommandWord(const std::string& word, Arguments* out, std::string* error) {
  if (word == "--help" || word == "-h") {
    out->command = Command::kHelp;
  } else if (word == "--version") {
    out->command = Command::kVersion;
  } else if (const CommandRow* row = FindCommand(word)) {
    out->command = row->command;
  } else {
    *error = "There is no command \"" + word + "\"; see `verbena help`.";
    return false;
  }
  return true;
}

std::string Pad(std::string text, size_t width) {
  text.resize(std::max(text.size() + 2, width), ' ');
  return text;
}

std::string Overview() {
  std::string text =
      "Verbena: RDMA for machines that have none. Programs written for InfiniBand/RoCE hardware\n"
      "run unmodified over a software NIC.\n\nCommands:\n";
  for (const CommandRow& row : kCommands) {
    text += "  " + Pad(std::string(row.name), 10) + std::string(row.summary) + "\n";
  }
  text +=
      "\nExamples:\n"
      "  verbena run -- ib_write_bw              # in one terminal\n"
      "  verbena run -- ib_write_bw localhost    # in another\n"
      "  verbena run --private --nics 2 -- CMD   # apart from everything else\n"
      "  eval \"$(verbena env)\"; ibv_devices\n"
      "\n`verbena help COMMAND` lists a command's options.\n";
  return text;
}

}  // namespace

const std::vector<std::string>& ShowKinds() {
  static const std::vector<std::string> kinds = {"cmd", "session", "pd", "mr", "cq",    "qp", "srq",
                                                 "ah",  "channel", "mw", "dm", "place", "cm"};
  return kinds;
}

std::string HelpText(const std::string& topic) {
  if (topic.empty()) return Overview();
  const CommandRow* row = FindCommand(topic);
  if (row == nullptr) return "";
  std::string text =
      "verbena " + std::string(row->synopsis) + "\n\n" + std::string(row->summary) + "\n";
  if (!row->details.empty()) text += std::string(row->details) + "\n";
  bool first = true;
  for (const OptionRow& option : kOptions) {
    if ((option.commands & Bit(row->command)) == 0) continue;
    if (first) text += "\nOptions:\n";
    first = false;
    std::string name(option.name);
    if (!option.value.empty()) name += "=" + std::string(option.value);
    text += "  " + Pad(name, 22) + std::string(option.help) + "\n";
  }
  return text;
}

bool ParseArguments(const std::vector<std::string>& args, Arguments* out, std::string* error) {
  *out = Arguments();
  if (args.empty()) return true;
  if (!ParseCommandWord(args[0], out, error)) return false;
  size_t at = 1;
  while (at < args.size()) {
    const std::string& word = args[at];
    const bool is_run = out->command == Command::kRun;
    if (is_run && (word == "--" || word.empty() || word[0] != '-')) {
      if (word == "--") ++at;
      out->program.assign(args.begin() + static_cast<std::ptrdiff_t>(at), args.end());
      break;
    }
    if (word == "--help" || word == "-h") {
      out->topic = RowOf(out->command).name;
      out->command = Command::kHelp;
      return true;
    }
    if (word.size() > 1 && word[0] == '-') {
      if (!ParseOption(args, &at, out, error)) return false;
      continue;
    }
    ++at;
    if (!TakePositional(word, out, error)) return false;
  }
  if (!CheckComplete(*out, error)) return false;
  // Packets need a network: loopback, unless --nic names another. With --nic, --wire is for those
  // of NICs to each other.
  if (out->wire_wanted || (out->wire && !out->has_own_nics)) {
    out->set.push_back("--wire=1");
    out->private_instance = true;
  }
  return true;
}

std::string DmaError(const std::string& name, const std::string& text) {
  for (const char* known : {"process", "mapped", "assisted", "auto"}) {
    if (text == known) return "";
  }
  return name + " is process, mapped, assisted or auto, not \"" + text + "\".";
}

}  // namespace verbena::cli
