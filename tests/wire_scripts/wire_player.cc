// Plays wire scripts to a verbs program on another host (subject.py), by real packets.
//
//   wire_player --subject IP:PORT --local IP --remote IP [--rxe] [--story TEXT] SCRIPT...
//
// --subject: where subject.py listens, by IPv4. --local: an address of this host whose UDP port
// 4791 is free. --remote: the address of the subject's NIC. --rxe: the subject is kernel rxe.
// --story: only stories whose name contains this. Ends with `N passed, N failed, N skipped`.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "tests/wire_scripts/player.h"
#include "tests/wire_scripts/remote_subject.h"

namespace {

using namespace verbena::wire_scripts;

// The first story's QP at the script's end; each has its own, so that nothing is taken for a later
// story's.
constexpr uint32_t kFirstQpn = 0x4201;

struct Arguments {
  RemoteOptions remote;
  bool is_rxe = false;
  std::string story;
  std::vector<std::string> scripts;
};

[[noreturn]] void Usage() {
  fprintf(stderr,
          "wire_player --subject IP:PORT --local IP --remote IP [--rxe] [--story TEXT] "
          "SCRIPT...\n");
  exit(2);
}

Arguments ParseArguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    auto value = [&]() -> std::string {
      if (++i == argc) Usage();
      return argv[i];
    };
    if (word == "--subject") {
      const std::string place = value();
      const size_t colon = place.rfind(':');
      if (colon == std::string::npos) Usage();
      arguments.remote.host = place.substr(0, colon);
      arguments.remote.port = static_cast<uint16_t>(ParseNumber(place.substr(colon + 1)));
    } else if (word == "--local") {
      arguments.remote.local = value();
    } else if (word == "--remote") {
      arguments.remote.remote = value();
    } else if (word == "--rxe") {
      arguments.is_rxe = true;
    } else if (word == "--story") {
      arguments.story = value();
    } else if (word.starts_with("--")) {
      Usage();
    } else {
      arguments.scripts.push_back(word);
    }
  }
  if (arguments.scripts.empty() || arguments.remote.host.empty()) Usage();
  return arguments;
}

std::vector<Story> ReadStories(const Arguments& arguments) {
  std::vector<Story> chosen;
  for (const std::string& script : arguments.scripts) {
    std::ifstream file(script);
    if (!file) throw ScriptError(script + " can't be read");
    std::ostringstream text;
    text << file.rdbuf();
    for (Story& story : ParseStories(script, text.str())) {
      if (story.name.find(arguments.story) != std::string::npos) chosen.push_back(std::move(story));
    }
  }
  return chosen;
}

// Each with a connection of its own: after a story that failed the next begins anew.
bool PlayOne(const Story& story, const Arguments& arguments, uint32_t peer_qpn) {
  try {
    RemoteSubject subject(arguments.remote);
    Player(&subject, {arguments.is_rxe, peer_qpn}).Play(story);
    printf("ok   %s\n", story.name.c_str());
    return true;
  } catch (const std::exception& error) {
    printf("FAIL %s\n  %s\n", story.name.c_str(), error.what());
    return false;
  }
}

int Run(const Arguments& arguments) {
  int passed = 0, failed = 0, skipped = 0;
  uint32_t peer_qpn = kFirstQpn;
  for (const Story& story : ReadStories(arguments)) {
    if (arguments.is_rxe && !story.rxe_skipped.empty()) {
      printf("skip %s: %s\n", story.name.c_str(), story.rxe_skipped.c_str());
      ++skipped;
      continue;
    }
    PlayOne(story, arguments, peer_qpn++) ? ++passed : ++failed;
    fflush(stdout);
  }
  printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(ParseArguments(argc, argv));
  } catch (const std::exception& error) {
    fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
