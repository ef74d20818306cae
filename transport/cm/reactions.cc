#include "transport/cm/reactions.h"

#include <iterator>

namespace verbena::transport::cm {
namespace {

template <typename... States>
constexpr uint32_t In(States... states) {
  return (... | (1u << static_cast<uint32_t>(states)));
}

}  // namespace

const ReactionRow kReactions[] = {
    // A duplicate: the answer was lost, or is being made.
    {Attribute::kReq, About::kOther, In(State::kMraReqSent), Reaction::kSendMraAgain, State::kGone,
     "12.9.8.3.1"},
    {Attribute::kReq, About::kOther, In(State::kRepSent), Reaction::kSendAgain, State::kGone,
     "12.9.8.3.1"},
    {Attribute::kReq, About::kOther, In(State::kTimewait), Reaction::kRejectStale, State::kGone,
     "12.9.8.4"},

    {Attribute::kRep, About::kOther, In(State::kReqSent, State::kMraReqRcvd), Reaction::kTell,
     State::kRepRcvd, "12.9.6"},
    {Attribute::kRep, About::kOther, In(State::kMraRepSent), Reaction::kSendMraAgain, State::kGone,
     "12.9.8.3.2"},
    {Attribute::kRep, About::kOther, In(State::kEstablished), Reaction::kSendAgain, State::kGone,
     "12.9.8.3.2"},

    {Attribute::kRtu, About::kOther, In(State::kRepSent, State::kMraRepRcvd), Reaction::kTell,
     State::kEstablished, "12.9.6"},

    {Attribute::kMra, About::kReq, In(State::kReqSent, State::kMraReqRcvd), Reaction::kExtend,
     State::kMraReqRcvd, "12.9.8.5"},
    {Attribute::kMra, About::kRep, In(State::kRepSent, State::kMraRepRcvd), Reaction::kExtend,
     State::kMraRepRcvd, "12.9.8.5"},

    {Attribute::kRej, About::kReq, In(State::kReqSent, State::kMraReqRcvd), Reaction::kTell,
     State::kGone, "12.9.6"},
    // The active side gave its REQ up.
    {Attribute::kRej, About::kReq, In(State::kReqRcvd, State::kMraReqSent), Reaction::kTell,
     State::kGone, "12.9.6"},
    {Attribute::kRej, About::kRep, In(State::kRepSent, State::kMraRepRcvd), Reaction::kTell,
     State::kGone, "12.9.6"},
    // The passive side gave its REP up, or has lost what the active one takes for established.
    {Attribute::kRej, About::kRep, In(State::kRepRcvd, State::kMraRepSent, State::kEstablished),
     Reaction::kTell, State::kTimewait, "12.9.6"},
    {Attribute::kRej, About::kOther,
     In(State::kRepSent, State::kMraRepRcvd, State::kRepRcvd, State::kMraRepSent,
        State::kEstablished, State::kDreqSent),
     Reaction::kTell, State::kTimewait, "12.9.6"},

    // Before the RTU, too, which may have been lost.
    {Attribute::kDreq, About::kOther,
     In(State::kRepSent, State::kMraRepRcvd, State::kEstablished, State::kDreqSent),
     Reaction::kTell, State::kDreqRcvd, "12.9.6"},
    {Attribute::kDreq, About::kOther, In(State::kTimewait), Reaction::kSendDrep, State::kGone,
     "12.9.8.3.3"},
    {Attribute::kDrep, About::kOther, In(State::kDreqSent, State::kDreqRcvd), Reaction::kTell,
     State::kTimewait, "12.9.6"},

    {Attribute::kLap, About::kOther, In(State::kEstablished), Reaction::kRefuseLap, State::kGone,
     "12.8.3.1"},

    {Attribute::kSidrRep, About::kOther, In(State::kSidrReqSent), Reaction::kTell, State::kGone,
     "12.11"},
};
const size_t kReactionCount = std::size(kReactions);

const ReactionRow* FindReaction(State state, Attribute message, About about) {
  for (const ReactionRow& row : kReactions) {
    if (row.message != message || (row.states & In(state)) == 0) continue;
    if (message == Attribute::kMra || message == Attribute::kRej) {
      if (row.about != about) continue;
    }
    return &row;
  }
  return nullptr;
}

const char* NameOf(State state) {
  static constexpr const char* kNames[kStateCount] = {
      "REQ sent",      "MRA(REQ) received", "REP received",  "MRA(REP) sent",
      "REQ received",  "MRA(REQ) sent",     "REP sent",      "MRA(REP) received",
      "established",   "DREQ sent",         "DREQ received", "timewait",
      "SIDR_REQ sent", "SIDR_REQ received", "gone"};
  return kNames[static_cast<size_t>(state)];
}

}  // namespace verbena::transport::cm
