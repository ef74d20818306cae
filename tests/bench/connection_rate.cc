// Connections made and ended by rdma_cm, one after the other, each with a QP at both ends; and by
// TCP, on the same machine in the same way: a thread that accepts and one that connects. Prints one
// JSON object: microseconds a connection, from its making to both ends' closing, medians of
// batches.
//
//   connection_rate CONNECTIONS [ADDRESS]
#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/bench/machine.h"

namespace {

using verbena::bench::Median;

constexpr int kBatch = 100;
constexpr int kTimeoutMs = 2000;

void Check(bool is_ok, const char* what) {
  if (is_ok) return;
  perror(what);
  exit(1);
}

// The next event, which has to be this one. The identifier of a connect request.
rdma_cm_id* Expect(rdma_event_channel* channel, rdma_cm_event_type wanted) {
  rdma_cm_event* event = nullptr;
  Check(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
  if (event->event != wanted) {
    fprintf(stderr, "%s (status %d) instead of %s\n", rdma_event_str(event->event), event->status,
            rdma_event_str(wanted));
    exit(1);
  }
  rdma_cm_id* id = event->id;
  Check(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
  return id;
}

void CreateQp(rdma_cm_id* id) {
  ibv_qp_init_attr init = {};
  init.cap = {4, 4, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  Check(rdma_create_qp(id, nullptr, &init) == 0, "rdma_create_qp");
}

class Rdma {
 public:
  explicit Rdma(const sockaddr_in& address) {
    server_channel_ = rdma_create_event_channel();
    client_channel_ = rdma_create_event_channel();
    Check(server_channel_ != nullptr && client_channel_ != nullptr, "rdma_create_event_channel");
    Check(rdma_create_id(server_channel_, &listener_, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
    sockaddr_in any = address;
    Check(rdma_bind_addr(listener_, reinterpret_cast<sockaddr*>(&any)) == 0, "rdma_bind_addr");
    Check(rdma_listen(listener_, 16) == 0, "rdma_listen");
    address_ = address;
    address_.sin_port = rdma_get_src_port(listener_);
  }
  ~Rdma() {
    rdma_destroy_id(listener_);
    rdma_destroy_event_channel(server_channel_);
    rdma_destroy_event_channel(client_channel_);
  }
  Rdma(const Rdma&) = delete;
  Rdma& operator=(const Rdma&) = delete;

  void Accept() {
    rdma_cm_id* id = Expect(server_channel_, RDMA_CM_EVENT_CONNECT_REQUEST);
    CreateQp(id);
    rdma_conn_param param = {};
    Check(rdma_accept(id, &param) == 0, "rdma_accept");
    Expect(server_channel_, RDMA_CM_EVENT_ESTABLISHED);
    Expect(server_channel_, RDMA_CM_EVENT_DISCONNECTED);
    Check(rdma_disconnect(id) == 0, "rdma_disconnect by the server");
    rdma_destroy_qp(id);
    Check(rdma_destroy_id(id) == 0, "rdma_destroy_id by the server");
  }
  void Connect() {
    rdma_cm_id* id = nullptr;
    Check(rdma_create_id(client_channel_, &id, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
    Check(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&address_), kTimeoutMs) == 0,
          "rdma_resolve_addr");
    Expect(client_channel_, RDMA_CM_EVENT_ADDR_RESOLVED);
    Check(rdma_resolve_route(id, kTimeoutMs) == 0, "rdma_resolve_route");
    Expect(client_channel_, RDMA_CM_EVENT_ROUTE_RESOLVED);
    CreateQp(id);
    rdma_conn_param param = {};
    Check(rdma_connect(id, &param) == 0, "rdma_connect");
    Expect(client_channel_, RDMA_CM_EVENT_ESTABLISHED);
    Check(rdma_disconnect(id) == 0, "rdma_disconnect");
    Expect(client_channel_, RDMA_CM_EVENT_DISCONNECTED);
    rdma_destroy_qp(id);
    Check(rdma_destroy_id(id) == 0, "rdma_destroy_id");
  }

 private:
  rdma_event_channel *server_channel_ = nullptr, *client_channel_ = nullptr;
  rdma_cm_id* listener_ = nullptr;
  sockaddr_in address_ = {};
};

class Tcp {
 public:
  explicit Tcp(const sockaddr_in& address) : address_(address) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    Check(listener_ >= 0, "socket");
    socklen_t bytes = sizeof(address_);
    Check(bind(listener_, reinterpret_cast<sockaddr*>(&address_), bytes) == 0, "bind");
    Check(listen(listener_, 16) == 0, "listen");
    Check(getsockname(listener_, reinterpret_cast<sockaddr*>(&address_), &bytes) == 0,
          "getsockname");
  }
  ~Tcp() { close(listener_); }
  Tcp(const Tcp&) = delete;
  Tcp& operator=(const Tcp&) = delete;

  void Accept() {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    Check(fd >= 0, "accept");
    AwaitEnd(fd);
  }
  // Each end knows of the other's.
  void Connect() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    Check(fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&address_), sizeof(address_)) == 0,
          "connect");
    Check(shutdown(fd, SHUT_WR) == 0, "shutdown");
    AwaitEnd(fd);
  }

 private:
  static void AwaitEnd(int fd) {
    char byte;
    Check(read(fd, &byte, 1) == 0, "read");
    close(fd);
  }

  int listener_ = -1;
  sockaddr_in address_;
};

template <typename Kind>
double Measure(Kind& kind, int connections) {
  std::thread server([&] {
    for (int i = 0; i < connections; ++i) kind.Accept();
  });
  std::vector<double> times_us;
  for (int done = 0; done < connections; done += kBatch) {
    const int batch = std::min(kBatch, connections - done);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < batch; ++i) kind.Connect();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    times_us.push_back(took.count() / batch);
  }
  server.join();
  return Median(times_us);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: connection_rate CONNECTIONS [ADDRESS]\n");
    return 2;
  }
  const int connections = atoi(argv[1]);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  Check(inet_pton(AF_INET, argc > 2 ? argv[2] : "127.0.0.1", &address.sin_addr) == 1, "address");
  double rdma_us = 0, tcp_us = 0;
  {
    Rdma rdma(address);
    rdma_us = Measure(rdma, connections);
  }
  {
    Tcp tcp(address);
    tcp_us = Measure(tcp, connections);
  }
  printf("{\"connections\": %d, \"rdma_us\": %.1f, \"tcp_us\": %.1f}\n", connections, rdma_us,
         tcp_us);
  return 0;
}
