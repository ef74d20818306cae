// One end of a connection of rdma_cm, which can stop at each step of the handshake.
//
//   handshake active ADDRESS PORT STEP
//   handshake passive ADDRESS PORT STEP [CONNECTIONS]
//
// STEP: where it stops itself (SIGSTOP), to be killed or to go on: of the active end `resolved`,
// `asked`, `established`, `disconnecting`; of the passive end `listening`, `request`, `accepted`,
// `established`, `disconnecting`. `-`: nowhere. `leave`: it disconnects once it is established.
// Prints each event with its status, and each call that failed with its errno. The passive end has
// a backlog of one, and ends when so many connections have ended.
#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

// Beyond what a request that finds no answer waits until it is sent again, several times.
constexpr int kPatienceMs = 60'000;
constexpr int kBacklog = 1;

std::string stop_at;

void Say(const char* what, const char* name, int number) {
  printf("%s %s %d\n", what, name, number);
  fflush(stdout);
}

void Reach(const char* step) {
  if (stop_at != step) return;
  Say("at", step, 0);
  raise(SIGSTOP);
}

bool Succeeds(const char* call, int result) {
  if (result != 0) Say("failed", call, errno);
  return result == 0;
}

bool CreateQp(rdma_cm_id* id) {
  ibv_qp_init_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.qp_type = IBV_QPT_RC;
  attr.cap = {4, 4, 1, 1, 0};
  return Succeeds("rdma_create_qp", rdma_create_qp(id, nullptr, &attr));
}

rdma_conn_param Param() {
  rdma_conn_param param;
  memset(&param, 0, sizeof param);
  param.retry_count = 7;
  param.rnr_retry_count = 7;
  return param;
}

struct Told {
  int type;
  rdma_cm_id* id;
};

// Ends the process where nothing comes.
Told Next(rdma_event_channel* channel) {
  pollfd entry = {channel->fd, POLLIN, 0};
  rdma_cm_event* event;
  if (poll(&entry, 1, kPatienceMs) != 1) {
    Say("nothing", "poll", 0);
    exit(1);
  }
  if (!Succeeds("rdma_get_cm_event", rdma_get_cm_event(channel, &event))) exit(1);
  Say("event", rdma_event_str(event->event), event->status);
  const Told told = {event->event, event->id};
  rdma_ack_cm_event(event);
  return told;
}

void Disconnect(rdma_cm_id* id) { Succeeds("rdma_disconnect", rdma_disconnect(id)); }

void OnEstablished(rdma_cm_id* id) {
  Reach("established");
  if (stop_at != "disconnecting" && stop_at != "leave") return;
  Disconnect(id);
  Reach("disconnecting");
}

void Destroy(rdma_cm_id* id) {
  if (id->qp != nullptr) rdma_destroy_qp(id);
  Succeeds("rdma_destroy_id", rdma_destroy_id(id));
}

int RunActive(rdma_event_channel* channel, sockaddr* there) {
  constexpr int kResolveMs = 5000;
  rdma_cm_id* id;
  if (!Succeeds("rdma_create_id", rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP)) ||
      !Succeeds("rdma_resolve_addr", rdma_resolve_addr(id, nullptr, there, kResolveMs)) ||
      Next(channel).type != RDMA_CM_EVENT_ADDR_RESOLVED ||
      !Succeeds("rdma_resolve_route", rdma_resolve_route(id, kResolveMs)) ||
      Next(channel).type != RDMA_CM_EVENT_ROUTE_RESOLVED || !CreateQp(id)) {
    return 1;
  }
  Reach("resolved");
  rdma_conn_param param = Param();
  if (!Succeeds("rdma_connect", rdma_connect(id, &param))) return 1;
  Reach("asked");
  if (Next(channel).type == RDMA_CM_EVENT_ESTABLISHED) {
    OnEstablished(id);
    if (Next(channel).type == RDMA_CM_EVENT_DISCONNECTED && stop_at == "-") Disconnect(id);
  }
  Destroy(id);
  return 0;
}

bool Accept(rdma_cm_id* id) {
  Reach("request");
  rdma_conn_param param = Param();
  if (!CreateQp(id) || !Succeeds("rdma_accept", rdma_accept(id, &param))) return false;
  Reach("accepted");
  return true;
}

int RunPassive(rdma_event_channel* channel, sockaddr* here, int connections) {
  rdma_cm_id* listener;
  if (!Succeeds("rdma_create_id", rdma_create_id(channel, &listener, nullptr, RDMA_PS_TCP)) ||
      !Succeeds("rdma_bind_addr", rdma_bind_addr(listener, here)) ||
      !Succeeds("rdma_listen", rdma_listen(listener, kBacklog))) {
    return 1;
  }
  Reach("listening");
  while (connections > 0) {
    const Told told = Next(channel);
    bool is_over = false;
    if (told.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      is_over = !Accept(told.id);
    } else if (told.type == RDMA_CM_EVENT_ESTABLISHED) {
      OnEstablished(told.id);
    } else if (told.type != RDMA_CM_EVENT_TIMEWAIT_EXIT && told.type != RDMA_CM_EVENT_ADDR_CHANGE &&
               told.id != listener) {
      if (told.type == RDMA_CM_EVENT_DISCONNECTED && stop_at == "-") Disconnect(told.id);
      is_over = true;
    }
    if (!is_over) continue;
    Destroy(told.id);
    --connections;
  }
  Destroy(listener);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  sockaddr_in address;
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(atoi(argv[3])));
  if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1) return 2;
  stop_at = argv[4];
  rdma_event_channel* channel = rdma_create_event_channel();
  if (channel == nullptr) return Succeeds("rdma_create_event_channel", -1) ? 0 : 1;
  auto* where = reinterpret_cast<sockaddr*>(&address);
  const int connections = argc > 5 ? atoi(argv[5]) : 1;
  const int code = strcmp(argv[1], "active") == 0 ? RunActive(channel, where)
                                                  : RunPassive(channel, where, connections);
  if (code == 0) rdma_destroy_event_channel(channel);
  return code;
}
