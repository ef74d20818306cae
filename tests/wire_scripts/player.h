// Plays a story to a subject: does what its lines say goes in, and compares what comes out.
//
// Sans-IO: what the subject is, and what time it is there, is the Subject's business.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/wire_scripts/packet_spec.h"
#include "tests/wire_scripts/script.h"
#include "tests/wire_scripts/subject.h"

namespace verbena::wire_scripts {

struct PlayOptions {
  bool is_rxe = false;       // its lines of a story count
  uint32_t peer_qpn = 0x42;  // of the script's end
};

class Player {
 public:
  Player(Subject* subject, const PlayOptions& options) : subject_(*subject), options_(options) {}

  // Throws ScriptError at the first line that did not come true.
  void Play(const Story& story);

 private:
  using Action = std::function<void()>;

  // What a line does. Reads all of the line, so that mistakes are found in lines for others, too.
  Action Compile(const Line& line);
  Action CompileQp(Words* words);
  Action CompileFill(Words* words);
  Action CompileHolds(Words* words);
  Action CompileRecv(Words* words);
  Action CompilePost(Words* words);
  Action CompileCompletion(Words* words);
  Action CompileState(Words* words);
  Action CompileIncoming(Words* words);
  Action CompileExpected(Words* words);

  void CheckHeld(uint32_t at, const std::vector<std::byte>& wanted);
  void CheckGrh(uint32_t at);
  Completion NextCompletion(bool is_recv);
  void CheckCompletion(const Completion& got, const Completion& wanted, bool is_recv);
  void CheckNothingIsLeft();
  int64_t MicrosecondsSinceInput() const { return (subject_.now_ns() - input_ns_) / 1000; }

  Subject& subject_;
  const PlayOptions options_;
  std::optional<QpSpec> spec_;
  Ends ends_;
  // Of work posted and not completed yet, which completes in order.
  std::deque<uint64_t> sends_, receives_;
  std::deque<Completion> completions_;  // seen while one of the other queue was waited for
  uint64_t next_wr_id_ = 1;
  int64_t input_ns_ = 0;  // when the script last did something to the subject
};

}  // namespace verbena::wire_scripts
