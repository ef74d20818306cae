// What several endpoints, peers, threads or processes do at one object: what is one's must not be
// another's.
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

std::vector<uint8_t> AddressOf(fid_ep* ep) {
  std::vector<uint8_t> address(512);
  size_t length = address.size();
  Need(fi_getname(&ep->fid, address.data(), &length), "fi_getname");
  address.resize(length);
  return address;
}

// The number by which `who` sends to `whom`.
fi_addr_t Introduce(Peer& who, fid_ep* whom) {
  fi_addr_t number = FI_ADDR_NOTAVAIL;
  Expect(fi_av_insert(who.av, AddressOf(whom).data(), 1, &number, 0, nullptr) == 1, "fi_av_insert");
  return number;
}

struct Lone : Peer {
  explicit Lone(const Wish& wish) : Peer(wish) {
    OpenEndpoint();
    Bind();
    Enable();
  }
};

ssize_t SendTo(Peer& from, fi_addr_t to, Memory& memory, uint64_t flags) {
  const iovec iov = {memory.data(), memory.size()};
  void* desc = memory.desc();
  const fi_msg message = {&iov, &desc, 1, to, ContextOf(1), 0};
  return Post([&] { return fi_sendmsg(from.ep, &message, flags | FI_COMPLETION); });
}

// --- FI_MORE -----------------------------------------------------------------------------------

FI_CASE("msg.more_to_another_peer", kAddressed) {
  Pair pair;
  Lone third({});
  const fi_addr_t to_third = Introduce(pair.a(), third.ep);
  Memory out(pair.a(), 64), in(pair.b(), 64), other(third, 64);
  out.Fill(1);
  // What is set up with the first message to a peer has been.
  Receive(pair.b(), in);
  Receive(third, other);
  Need(SendTo(pair.a(), pair.a().other, out, 0), "fi_sendmsg");
  Need(SendTo(pair.a(), to_third, out, 0), "fi_sendmsg");
  Await(pair.b().rx_cq, "the first receive of one peer");
  Await(third.rx_cq, "the first receive of the other");
  Receive(pair.b(), in);
  Receive(third, other);
  Need(SendTo(pair.a(), pair.a().other, out, FI_MORE), "fi_sendmsg with FI_MORE");
  Need(SendTo(pair.a(), to_third, out, 0), "fi_sendmsg");
  Await(third.rx_cq, "what went without FI_MORE");
  Await(pair.b().rx_cq, "what went with FI_MORE, before it");
}

FI_CASE("msg.more_before_a_refused_one", kAddressed) {
  Pair pair;
  Memory out(pair.a(), 64), in(pair.b(), 64);
  Receive(pair.b(), in);
  Send(pair.a(), out);
  Await(pair.b().rx_cq, "the first receive");
  Receive(pair.b(), in);
  Need(SendTo(pair.a(), pair.a().other, out, FI_MORE), "fi_sendmsg with FI_MORE");
  const ssize_t refused = SendTo(pair.a(), 7777, out, 0);
  if (refused == 0) DoesNotApply("an address that is not in the AV is accepted");
  Await(pair.b().rx_cq, "what went with FI_MORE before a refused one");
}

// --- counters ----------------------------------------------------------------------------------

FI_CASE("cntr.survives_another_endpoint", kAddressed) {
  Fid<fid_cntr> cntr;
  Wish counted;
  counted.unenabled = [&](Peer& peer) {
    cntr = OpenCntr(peer.domain);
    Need(fi_ep_bind(peer.ep, cntr.Base(), FI_SEND | FI_RECV), "fi_ep_bind counter");
  };
  Pair pair(counted, {});
  Peer& a = pair.a();
  Fid<fid_ep> second;
  Need(fi_endpoint(a.domain, a.info.get(), second.Out(), nullptr), "fi_endpoint");
  Need(fi_ep_bind(second, a.av.Base(), 0), "fi_ep_bind AV");
  Need(fi_ep_bind(second, a.tx_cq.Base(), FI_TRANSMIT), "fi_ep_bind CQ");
  Need(fi_ep_bind(second, a.rx_cq.Base(), FI_RECV), "fi_ep_bind CQ");
  Need(fi_ep_bind(second, cntr.Base(), FI_SEND | FI_RECV), "fi_ep_bind counter");
  Need(fi_enable(second), "fi_enable");
  Need(a.ep.Close(), "fi_close of the other endpoint");
  Memory out(a, 64), in(pair.b(), 64);
  Receive(pair.b(), in);
  Need(Post([&] { return fi_send(second, out.data(), 64, out.desc(), a.other, ContextOf(1)); }),
       "fi_send");
  // Of this end nothing but the counter is looked at.
  const long end_ms = NowMs() + 4000L * Patience();
  uint64_t value = 0;
  while ((value = fi_cntr_read(cntr)) == 0 && NowMs() < end_ms) {
    fi_cq_read(pair.b().rx_cq, nullptr, 0);
  }
  Expect(value == 1, "%lu counted of the endpoint that is left", value);
  Need(second.Close(), "fi_close");
}

}  // namespace
}  // namespace verbena::fi_test
