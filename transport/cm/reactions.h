// What a CM message does to the communication it is about, as data: state × message → reaction,
// next state.   Spec: IBTA 12.9.7, figures of the active and the passive side.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/cm/message.h"

namespace verbena::transport::cm {

enum class State : uint8_t {
  kReqSent,     // active: waits for a REP
  kMraReqRcvd,  // active: the peer has asked for time
  kRepRcvd,     // active: its user is to say RTU
  kMraRepSent,  // active: and has asked for time
  kReqRcvd,     // passive: its user is to answer
  kMraReqSent,  // passive: and has asked for time
  kRepSent,     // passive: waits for the RTU
  kMraRepRcvd,  // passive: the peer has asked for time
  kEstablished,
  kDreqSent,
  kDreqRcvd,  // its user is to say DREP
  kTimewait,  // packets of it may still be on their way
  kSidrReqSent,
  kSidrReqRcvd,
  kGone,  // as good as never there
};
inline constexpr int kStateCount = 15;
const char* NameOf(State state);

enum class Reaction : uint8_t {
  kNone,       // late, or a duplicate of what is being dealt with
  kTell,       // an event for the user; the state changes
  kExtend,     // the peer is slow: its answer may take as long as the MRA says
  kSendAgain,  // what was sent last was lost
  kSendMraAgain,
  kSendDrep,
  kRejectStale,  // the connection is over, and its number not free yet
  kRefuseLap,    // alternate paths are not supported
};

struct ReactionRow {
  Attribute message;
  About about;      // of MRA and REJ; else kOther: any
  uint32_t states;  // bits 1 << State in which the row applies; elsewhere the message is ignored
  Reaction reaction;
  State next;  // of kTell and kExtend
  const char* spec;
};

extern const ReactionRow kReactions[];
extern const size_t kReactionCount;

// nullptr: ignored.
const ReactionRow* FindReaction(State state, Attribute message, About about);

}  // namespace verbena::transport::cm
