#include "tools/spec/spec_tables.h"

#include <map>
#include <set>
#include <utility>

#include "core/shm/command.h"
#include "tools/spec/markdown.h"
#include "tools/spec/names.h"
#include "transport/common/unreliable_faults.h"
#include "transport/pdu.h"
#include "transport/qp_transitions.h"
#include "transport/rc/requester_events.h"
#include "transport/rc/responder_checks.h"
#include "transport/rc/responder_faults.h"

namespace verbena::tools {
namespace {

using transport::OpcodeInfo;
using transport::QpTransition;
using transport::UnreliableFaultRow;
namespace rc = transport::rc;

std::string Title(const std::string& title, const std::string& source, const std::string& text) {
  return "# " + title + "\n\nPrinted from `" + source +
         "` by `bazel run //tools/spec:print_spec`; a test compares.\n\n" + text + "\n\n";
}

// --- QP transitions
// -------------------------------------------------------------------------------

std::string TransitionGraph() {
  // Services of each edge, in the order of the table.
  std::vector<std::pair<std::string, std::string>> edges;
  for (size_t i = 0; i < transport::kQpTransitionCount; ++i) {
    const QpTransition& row = transport::kQpTransitions[i];
    std::string edge =
        std::string(transport::QpStateName(row.from)) + " -> " + transport::QpStateName(row.to);
    std::string service = transport::ServiceName(row.service);
    if (!edges.empty() && edges.back().first == edge) {
      edges.back().second += " " + service;
    } else {
      edges.emplace_back(edge, service);
    }
  }
  std::string dot = "digraph qp_transitions {\n";
  for (const auto& [edge, services] : edges) {
    bool is_everyones = services == "RC UC UD";
    dot += "  " + edge + (is_everyones ? "" : " [label=\"" + services + "\"]") + ";\n";
  }
  return dot + "}\n";
}

SpecDocument QpTransitions() {
  MarkdownTable table({"From", "To", "Service", "Required", "Optional", "Clause"});
  for (size_t i = 0; i < transport::kQpTransitionCount; ++i) {
    const QpTransition& row = transport::kQpTransitions[i];
    table.AddRow({transport::QpStateName(row.from), transport::QpStateName(row.to),
                  transport::ServiceName(row.service), AttributeNames(row.required),
                  AttributeNames(row.optional), row.clause});
  }
  return {"qp_transitions.md",
          Title("QP transitions", "transport/qp_transitions.cc",
                "What `ibv_modify_qp` accepts. A pair of states without a row is refused, as is a "
                "required attribute that is missing and any attribute that is neither required nor "
                "optional (`IBV_QP_STATE` is always allowed). Clauses are of the IBTA "
                "specification. Moves that are nobody's request stand in the fault tables.") +
              table.Text() + "\n" + DotBlock(TransitionGraph())};
}

// --- opcodes
// --------------------------------------------------------------------------------------

std::string ServiceNames(uint8_t services) {
  std::string names;
  for (int i = 0; i < kServiceCount; ++i) {
    if ((services & (1u << i)) == 0) continue;
    if (!names.empty()) names += " ";
    names += transport::ServiceName(static_cast<Service>(i));
  }
  return names;
}

std::string HeaderNames(const OpcodeInfo& info) {
  std::string names;
  auto add = [&names](bool has, const char* name) {
    if (has) names += (names.empty() ? "" : " ") + std::string(name);
  };
  add(info.has_feth, "FETH");
  add(info.has_reth, "RETH");
  add(info.has_atomic_eth, "AtomicETH");
  add(info.has_aeth, "AETH");
  add(info.has_aeth && info.is_atomic, "AtomicAckETH");
  add(info.has_imm, "ImmDt");
  add(info.has_ieth, "IETH");
  return names;
}

std::string PlaceInMessage(const OpcodeInfo& info) {
  if (info.is_first && info.is_last) return "only";
  return info.is_first ? "first" : info.is_last ? "last" : "middle";
}

SpecDocument Opcodes() {
  MarkdownTable table({"Opcode", "Name", "Kind", "Place", "Headers after BTH", "Services"});
  for (int value = 0; value < 0x20; ++value) {
    const OpcodeInfo* info = transport::LookUpOpcode(static_cast<transport::Opcode>(value));
    if (info == nullptr) continue;
    table.AddRow({HexByte(static_cast<uint8_t>(value)), info->name,
                  info->is_request ? "request" : "response", PlaceInMessage(*info),
                  HeaderNames(*info), ServiceNames(info->services)});
  }
  return {"opcodes.md",
          Title("Opcodes", "transport/pdu.cc",
                "The low five bits of the BTH opcode (IBTA 9.2.1); the top three are the service. "
                "UD puts a DETH in front of the headers named.") +
              table.Text()};
}

// --- RC
// -------------------------------------------------------------------------------------------

SpecDocument RcResponderChecks() {
  MarkdownTable table({"Order", "Check", "Question", "Clause"});
  std::string dot = "digraph responder_checks {\n  rankdir=LR;\n";
  std::string previous = "request";
  for (size_t i = 0; i < rc::kResponderCheckCount; ++i) {
    const rc::ResponderCheckRow& row = rc::kResponderChecks[i];
    table.AddRow({std::to_string(i + 1), row.name, row.question, row.clause});
    dot += "  " + previous + " -> " + row.name + ";\n";
    previous = row.name;
  }
  dot += "  " + previous + " -> execute;\n}\n";
  return {"rc_responder_checks.md",
          Title("RC responder: checks", "transport/rc/responder_checks.cc",
                "Every request answers these questions in this order. The first \"no\" names a "
                "fault, and the fault's row (`rc_responder_faults.md`) says what happens.") +
              table.Text() + "\n" + DotBlock(dot)};
}

std::string ReplyName(const rc::ResponderFaultRow& row) {
  switch (row.reply) {
    case rc::Reply::kSilence:
      return "";
    case rc::Reply::kReplay:
      return "replay";
    case rc::Reply::kNak:
      return std::string("NAK ") + NakCodeName(row.nak_code);
    case rc::Reply::kRnrNak:
      return "RNR NAK";
  }
  return "?";
}

SpecDocument RcResponderFaults() {
  MarkdownTable table(
      {"Fault", "Class", "Reply", "Receive CQE", "QP", "Event", "Counter", "Clause"});
  std::set<std::string> edges;
  for (size_t i = 0; i < rc::kResponderFaultCount; ++i) {
    const rc::ResponderFaultRow& row = rc::kResponderFaults[i];
    std::string reply = ReplyName(row);
    std::string cqe = row.cqe_status == WcStatus::kSuccess ? "" : WcStatusName(row.cqe_status);
    table.AddRow({row.name, std::string(1, row.error_class), reply, cqe,
                  row.fails_qp ? "ERR" : "stays", row.has_event ? EventTypeName(row.event) : "",
                  CounterName(row.counter), row.clause});
    if (row.fault == rc::ResponderFault::kNone) continue;
    edges.insert(std::string("  ") + row.name + " -> \"" + (reply.empty() ? "silence" : reply) +
                 "\";\n");
    if (row.fails_qp) edges.insert(std::string("  ") + row.name + " -> ERR;\n");
  }
  std::string dot = "digraph responder_faults {\n  rankdir=LR;\n";
  for (const std::string& edge : edges) dot += edge;
  return {"rc_responder_faults.md",
          Title("RC responder: faults", "transport/rc/responder_faults.cc",
                "What a fault does: the answer, the completion of the receive WQE if one was "
                "taken, the QP's state, the asynchronous event, the counter. Classes are those of "
                "IBTA 9.9.3.") +
              table.Text() + "\n" + DotBlock(dot + "}\n")};
}

std::string WqeStates(const rc::RequesterEventRow& row) {
  std::string names;
  for (int i = 0; i <= static_cast<int>(rc::WqeState::kError); ++i) {
    auto state = static_cast<rc::WqeState>(i);
    if (!row.AppliesIn(state)) continue;
    names += (names.empty() ? "" : ", ") + std::string(rc::WqeStateName(state));
  }
  return names;
}

std::string RequesterGraph() {
  std::vector<std::pair<std::string, std::string>> edges;
  for (int from = 0; from <= static_cast<int>(rc::WqeState::kError); ++from) {
    std::map<int, std::string> labels;  // by next state
    for (size_t i = 0; i < rc::kRequesterEventCount; ++i) {
      const rc::RequesterEventRow& row = rc::kRequesterEvents[i];
      if (!row.AppliesIn(static_cast<rc::WqeState>(from))) continue;
      std::string& label = labels[static_cast<int>(row.next)];
      label += (label.empty() ? "" : "\\n") + std::string(row.name);
    }
    for (const auto& [to, label] : labels) {
      edges.emplace_back(std::string(rc::WqeStateName(static_cast<rc::WqeState>(from))) + " -> " +
                             rc::WqeStateName(static_cast<rc::WqeState>(to)),
                         label);
    }
  }
  std::string dot = "digraph requester_events {\n";
  for (const auto& [edge, label] : edges) {
    dot.append("  ").append(edge).append(" [label=\"").append(label).append("\"];\n");
  }
  return dot + "}\n";
}

SpecDocument RcRequesterEvents() {
  MarkdownTable table(
      {"Event", "WQE is", "Action", "WQE becomes", "Status", "vendor_err", "Counter", "Clause"});
  for (size_t i = 0; i < rc::kRequesterEventCount; ++i) {
    const rc::RequesterEventRow& row = rc::kRequesterEvents[i];
    if (row.states == 0) continue;  // kNone: a filler
    bool fails = row.action == rc::RequesterAction::kFail;
    bool has_status = row.status != WcStatus::kSuccess;
    table.AddRow({row.name, WqeStates(row), rc::RequesterActionName(row.action),
                  rc::WqeStateName(row.next),
                  fails ? (has_status ? WcStatusName(row.status) : "of the event") : "",
                  VendorErrName(row.vendor_err), CounterName(row.counter), row.clause});
  }
  return {"rc_requester_events.md",
          Title("RC requester: events", "transport/rc/requester_events.cc",
                "What happens to a send WQE. In a state that a row does not name, its event is "
                "ignored.") +
              table.Text() + "\n" + DotBlock(RequesterGraph())};
}

// --- UC and UD
// ------------------------------------------------------------------------------------

SpecDocument UnreliableFaults() {
  MarkdownTable table(
      {"Fault", "Services", "Class", "Effect", "Receive CQE", "vendor_err", "Counter", "Clause"});
  std::string dot = "digraph unreliable_faults {\n  rankdir=LR;\n";
  for (size_t i = 0; i < transport::kUnreliableFaultCount; ++i) {
    const UnreliableFaultRow& row = transport::kUnreliableFaults[i];
    if (row.effect == transport::FaultEffect::kNone) continue;
    bool fails = row.effect == transport::FaultEffect::kFailReceive;
    bool has_vendor_err = row.vendor_err != shm::VendorErr::kNone;
    table.AddRow({row.name, ServiceNames(row.services), std::string(1, row.error_class),
                  transport::FaultEffectName(row.effect), fails ? WcStatusName(row.status) : "",
                  fails ? (has_vendor_err ? VendorErrName(row.vendor_err) : "of the fault") : "",
                  CounterName(row.counter), row.clause});
    dot +=
        std::string("  ") + row.name + " -> \"" + transport::FaultEffectName(row.effect) + "\";\n";
  }
  return {"unreliable_responder_faults.md",
          Title("UC and UD responder: faults", "transport/common/unreliable_faults.cc",
                "An unreliable responder answers nothing. *drop message*: a receive WQE taken for "
                "it waits for the next message. *fail receive*: the WQE completes with the status "
                "and the QP goes to ERR. *fatal*: the QP goes to ERR with `IBV_EVENT_QP_FATAL`.") +
              table.Text() + "\n" + DotBlock(dot + "}\n")};
}

}  // namespace

std::vector<SpecDocument> PrintSpec() {
  return {QpTransitions(),     Opcodes(),           RcResponderChecks(),
          RcResponderFaults(), RcRequesterEvents(), UnreliableFaults()};
}

}  // namespace verbena::tools
