// Prints the asynchronous events of a NIC, and which of its objects each is about.
//
// "ready", then a line for each event, until it is ended: "event TYPE port|qp|cq|srq".
#include <cstdio>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

const char* ObjectOf(const ibv_async_event& event, const Side& side) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      return event.element.cq == side.send_cq ? "cq" : "another cq";
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return event.element.qp == side.qp ? "qp" : "another qp";
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return event.element.srq == side.srq ? "srq" : "another srq";
    default:
      return event.element.port_num == 1 ? "port" : "another port";
  }
}

int Listen() {
  Side side(SideOptions{.with_srq = true});
  std::printf("ready\n");
  std::fflush(stdout);
  ibv_async_event event;
  while (ibv_get_async_event(side.context, &event) == 0) {
    std::printf("event %d %s\n", event.event_type, ObjectOf(event, side));
    std::fflush(stdout);
    ibv_ack_async_event(&event);
  }
  return 0;
}

}  // namespace
}  // namespace verbena::conformance

int main() { return verbena::conformance::Listen(); }
