// fi_av(3): address vectors.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#include <set>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

// Addresses of the provider's format, made of an endpoint's own: other ports.
struct Addresses {
  explicit Addresses(Peer& peer) : own(peer.Address()), format(peer.info->addr_format) {}
  std::vector<uint8_t> Other(unsigned number) const {
    if (format != FI_SOCKADDR_IN && format != FI_SOCKADDR_IN6 && format != FI_SOCKADDR) {
      DoesNotApply("addresses can't be made up");
    }
    std::vector<uint8_t> other = own;
    other[2] = static_cast<uint8_t>(40 + number / 256);
    other[3] = static_cast<uint8_t>(number);
    return other;
  }
  std::vector<uint8_t> own;
  uint32_t format;
};

struct Single {
  explicit Single(const Wish& wish = {}) : peer(wish) { peer.Start(); }
  Peer peer;
};

FI_CASE("av.table_indices", kAddressed) {
  Single single;
  const Addresses addresses(single.peer);
  const Fid<fid_av> av = OpenAv(single.peer.domain, FI_AV_TABLE);
  for (unsigned i = 0; i < 20; ++i) {
    fi_addr_t got = 99;
    Expect(fi_av_insert(av, addresses.Other(i).data(), 1, i % 2 == 0 ? &got : nullptr, 0,
                        nullptr) == 1,
           "fi_av_insert");
    Expect(i % 2 == 1 || got == i, "address %u has the index %llu", i,
           static_cast<unsigned long long>(got));
  }
  fi_addr_t fifth = 5, again = 99;
  Need(fi_av_remove(av, &fifth, 1, 0), "fi_av_remove");
  Expect(fi_av_insert(av, addresses.Other(100).data(), 1, &again, 0, nullptr) == 1, "fi_av_insert");
  Expect(again == 5, "the lowest index free is 5; given: %llu",
         static_cast<unsigned long long>(again));
}

void Holds(fi_av_type type) {
  Wish wish;
  wish.hints = [=](fi_info* hints) { hints->domain_attr->av_type = type; };
  Single single(wish);
  const Addresses addresses(single.peer);
  fi_av_attr attr = {};
  attr.type = type;
  Fid<fid_av> av;
  Need(fi_av_open(single.peer.domain, &attr, av.Out(), nullptr), "fi_av_open");
  std::vector<fi_addr_t> got(300);
  for (unsigned i = 0; i < got.size(); ++i) {
    Expect(fi_av_insert(av, addresses.Other(i).data(), 1, &got[i], 0, nullptr) == 1,
           "fi_av_insert");
  }
  for (unsigned i = 0; i < got.size(); ++i) {
    uint8_t bytes[512];
    size_t length = sizeof(bytes);
    Need(fi_av_lookup(av, got[i], bytes, &length), "fi_av_lookup");
    const auto wanted = addresses.Other(i);
    Expect(length == wanted.size() && memcmp(bytes, wanted.data(), length) == 0,
           "fi_av_lookup gives another address");
  }
}
FI_CASE("av.map", kAddressed) { Holds(FI_AV_MAP); }
FI_CASE("av.table", kAddressed) { Holds(FI_AV_TABLE); }
FI_CASE("av.unspec", kAddressed) {
  Ground ground;
  fi_av_attr attr = {};
  Fid<fid_av> av;
  Need(fi_av_open(ground.domain, &attr, av.Out(), nullptr), "fi_av_open");
  Expect(attr.type == FI_AV_MAP || attr.type == FI_AV_TABLE, "the type used is not told: %d",
         attr.type);
}
FI_CASE("av.unknown_type", kAddressed) {
  Ground ground;
  fi_av_attr attr = {};
  attr.type = static_cast<fi_av_type>(99);
  Fid<fid_av> av;
  Expect(fi_av_open(ground.domain, &attr, av.Out(), nullptr) < 0, "type 99 is accepted");
}

FI_CASE("av.many_in_one_call", kAddressed) {
  Single single;
  const Addresses addresses(single.peer);
  const Fid<fid_av> av = OpenAv(single.peer.domain);
  std::vector<uint8_t> all;
  for (unsigned i = 0; i < 50; ++i) {
    const auto one = addresses.Other(i);
    all.insert(all.end(), one.begin(), one.end());
  }
  std::vector<fi_addr_t> got(50);
  const int count = fi_av_insert(av, all.data(), 50, got.data(), 0, nullptr);
  Expect(count == 50, "%d of 50", count);
  Expect(std::set<fi_addr_t>(got.begin(), got.end()).size() == 50, "one fi_addr_t twice");
}

FI_CASE("av.lookup_truncates", kAddressed) {
  Single single;
  const Addresses addresses(single.peer);
  const Fid<fid_av> av = OpenAv(single.peer.domain);
  fi_addr_t got = 0;
  Expect(fi_av_insert(av, addresses.own.data(), 1, &got, 0, nullptr) == 1, "fi_av_insert");
  uint8_t bytes[512];
  memset(bytes, 0xEE, sizeof(bytes));
  size_t length = 3;
  Need(fi_av_lookup(av, got, bytes, &length), "fi_av_lookup");
  Expect(length == addresses.own.size() && bytes[3] == 0xEE, "length %zu", length);
}

FI_CASE("av.lookup_unknown", kAddressed) {
  Single single;
  const Fid<fid_av> av = OpenAv(single.peer.domain, FI_AV_TABLE);
  uint8_t bytes[512];
  size_t length = sizeof(bytes);
  Expect(fi_av_lookup(av, 77, bytes, &length) < 0, "an address never inserted is found");
}

FI_CASE("av.straddr", kAddressed) {
  Single single;
  const Addresses addresses(single.peer);
  char text[200] = "";
  size_t length = sizeof(text);
  const char* said = fi_av_straddr(single.peer.av, addresses.own.data(), text, &length);
  Expect(said == text && text[0] != 0, "no text");
  Expect(length == strlen(text) + 1, "length %zu of \"%s\"", length, text);
  char small[4] = "xyz";
  length = sizeof(small);
  fi_av_straddr(single.peer.av, addresses.own.data(), small, &length);
  Expect(length == strlen(text) + 1, "needed: %zu", length);
  Note("\"%s\"", text);
}

FI_CASE("av.remove_and_insert_again", kAddressed) {
  Pair pair;
  const auto address = pair.b().Address();
  Memory out(pair.a(), 64), in(pair.b(), 64);
  for (int i = 0; i < 3; ++i) {
    Need(fi_av_remove(pair.a().av, &pair.a().other, 1, 0), "fi_av_remove");
    Expect(fi_av_insert(pair.a().av, address.data(), 1, &pair.a().other, 0, nullptr) == 1,
           "fi_av_insert again");
    out.Fill(i);
    Receive(pair.b(), in);
    Send(pair.a(), out);
    Await(pair.a().tx_cq, "the send");
    Await(pair.b().rx_cq, "the receive");
    Expect(in.Has(i, 64), "wrong bytes");
  }
}

FI_CASE("av.insertsvc", kAddressed) {
  Single single;
  const Addresses addresses(single.peer);
  addresses.Other(0);
  fi_addr_t got = FI_ADDR_NOTAVAIL;
  const int count = fi_av_insertsvc(single.peer.av, "127.0.0.1", "7471", &got, 0, nullptr);
  Need(count, "fi_av_insertsvc");
  Expect(count == 1, "%d", count);
  uint8_t bytes[512];
  size_t length = sizeof(bytes);
  Need(fi_av_lookup(single.peer.av, got, bytes, &length), "fi_av_lookup");
  Expect(bytes[2] * 256 + bytes[3] == 7471, "not the port");
}

FI_CASE("av.insertsym", kAddressed) {
  Single single;
  const Addresses addresses(single.peer);
  addresses.Other(0);
  const Fid<fid_av> av = OpenAv(single.peer.domain);
  std::vector<fi_addr_t> got(6, FI_ADDR_NOTAVAIL);
  const int count = fi_av_insertsym(av, "127.0.0.1", 2, "7471", 3, got.data(), 0, nullptr);
  Need(count, "fi_av_insertsym");
  Expect(count == 6, "%d of 2 nodes with 3 services", count);
  std::set<std::pair<int, int>> places;
  for (const fi_addr_t one : got) {
    uint8_t bytes[512];
    size_t length = sizeof(bytes);
    Need(fi_av_lookup(av, one, bytes, &length), "fi_av_lookup");
    places.insert({bytes[7], bytes[2] * 256 + bytes[3]});
  }
  Expect(places ==
             std::set<std::pair<int, int>>{
                 {1, 7471}, {1, 7472}, {1, 7473}, {2, 7471}, {2, 7472}, {2, 7473}},
         "other nodes or services");
}

FI_CASE("av.symmetric", kAddressed) {
  Single single;
  const Addresses addresses(single.peer);
  fi_av_attr attr = {};
  attr.flags = FI_SYMMETRIC;
  attr.count = 16;
  attr.ep_per_node = 1;
  Fid<fid_av> av;
  Need(fi_av_open(single.peer.domain, &attr, av.Out(), nullptr), "fi_av_open with FI_SYMMETRIC");
  fi_addr_t got = FI_ADDR_NOTAVAIL;
  Expect(fi_av_insert(av, addresses.own.data(), 1, &got, 0, nullptr) == 1, "fi_av_insert");
}

FI_CASE("av.unknown_flag", kAddressed) {
  Ground ground;
  fi_av_attr attr = {};
  attr.flags = 1ULL << 62;
  Fid<fid_av> av;
  Expect(fi_av_open(ground.domain, &attr, av.Out(), nullptr) < 0, "an unknown flag is accepted");
}

FI_CASE("av.sync_err", kAddressed) {
  Single single;
  const Addresses addresses(single.peer);
  std::vector<uint8_t> two = addresses.Other(1);
  std::vector<uint8_t> bad(two.size(), 0xFF);
  two.insert(two.end(), bad.begin(), bad.end());
  const Fid<fid_av> av = OpenAv(single.peer.domain);
  fi_addr_t got[2] = {1, 1};
  int errors[2] = {-1, -1};
  const int count = fi_av_insert(av, two.data(), 2, got, FI_SYNC_ERR, errors);
  Need(count, "fi_av_insert with FI_SYNC_ERR");
  if (count == 2) DoesNotApply("no bad address is known");
  Expect(count == 1 && errors[0] == 0 && errors[1] > 0, "%d, errors %d and %d", count, errors[0],
         errors[1]);
  Expect(got[1] == FI_ADDR_NOTAVAIL, "the failed one has an address");
}

FI_CASE("av.asynchronous", kAddressed) {
  Single single;
  const Addresses addresses(single.peer);
  fi_av_attr attr = {};
  attr.flags = FI_EVENT;
  Fid<fid_av> av;
  Need(fi_av_open(single.peer.domain, &attr, av.Out(), nullptr), "fi_av_open with FI_EVENT");
  fi_addr_t got = FI_ADDR_NOTAVAIL;
  int mine = 0;
  ExpectError(fi_av_insert(av, addresses.own.data(), 1, &got, 0, &mine), -FI_ENOEQ,
              "an insertion without an EQ");
  const Fid<fid_eq> eq = OpenEq(single.peer.fabric);
  Need(fi_av_bind(av, eq.Base(), 0), "fi_av_bind");
  const int result = fi_av_insert(av, addresses.own.data(), 1, &got, 0, &mine);
  Expect(result == 0, "an asynchronous insertion returns %d", result);
  uint32_t event = 0;
  fi_eq_entry entry = {};
  ssize_t read = 0;
  WaitUntil(
      [&] { return (read = fi_eq_read(eq, &event, &entry, sizeof(entry), 0)) != -FI_EAGAIN; });
  Expect(read == sizeof(entry) && event == FI_AV_COMPLETE, "event %u", event);
  Expect(entry.fid == av.Base() && entry.context == &mine && entry.data == 1,
         "fid, context or data %llu", static_cast<unsigned long long>(entry.data));
  uint8_t bytes[512];
  size_t length = sizeof(bytes);
  Need(fi_av_lookup(av, got, bytes, &length), "fi_av_lookup");
}

FI_CASE("av.user_id", kAddressed) {
  Wish wish = {.caps = FI_MSG | FI_SOURCE | FI_AV_USER_ID};
  Pair pair(wish);
  const auto address = pair.a().Address();
  Need(fi_av_remove(pair.b().av, &pair.b().other, 1, 0), "fi_av_remove");
  fi_addr_t id = 0xABCD;
  Expect(fi_av_insert(pair.b().av, address.data(), 1, &id, FI_AV_USER_ID, nullptr) == 1,
         "fi_av_insert");
  Memory out(pair.a(), 64), in(pair.b(), 64);
  Receive(pair.b(), in);
  Send(pair.a(), out);
  Expect(Await(pair.b().rx_cq, "the receive").source == 0xABCD, "not the user's identifier");
}

// --- FI_SHARED_AV ------------------------------------------------------------------------------

// A named AV that one process fills and another, which opens it for reading, sends by.
void Shared(fi_av_type type) {
  const Wish wish = {.caps = FI_MSG | FI_SHARED_AV};
  const std::string name = "verbena_fi_" + std::to_string(getpid());
  Need(TryGetInfo(wish, std::make_unique<Info>().get()), "fi_getinfo with FI_SHARED_AV");
  Other other([&](int socket) {
    Single owner(wish);
    fi_av_attr attr = {};
    attr.type = type;
    attr.count = 16;
    attr.name = name.c_str();
    Fid<fid_av> av;
    Need(fi_av_open(owner.peer.domain, &attr, av.Out(), nullptr), "fi_av_open of a named AV");
    const auto own = owner.peer.Address();
    fi_addr_t got = FI_ADDR_NOTAVAIL;
    Expect(fi_av_insert(av, own.data(), 1, &got, 0, nullptr) == 1, "fi_av_insert");
    Memory in(owner.peer, 64);
    Receive(owner.peer, in, 1);
    Tell(socket, got);
    Tell(socket, attr.map_addr);
    Await(owner.peer.rx_cq, "the receive");
    Tell(socket, in.Has(9, 64));
    Hear<int>(socket);
  });
  const auto target = Hear<fi_addr_t>(other.socket());
  const auto map_addr = Hear<void*>(other.socket());
  Peer reader(wish);
  fi_av_attr attr = {};
  attr.type = type;
  attr.count = 16;
  attr.name = name.c_str();
  attr.map_addr = map_addr;
  attr.flags = FI_READ;
  reader.av.Close();
  Need(fi_av_open(reader.domain, &attr, reader.av.Out(), nullptr), "fi_av_open with FI_READ");
  reader.Start();
  const auto own = reader.Address();
  fi_addr_t ignored = 0;
  Expect(fi_av_insert(reader.av, own.data(), 1, &ignored, 0, nullptr) < 1,
         "an AV opened for reading takes an address");
  reader.other = target;
  Memory out(reader, 64);
  out.Fill(9);
  Send(reader, out);
  Await(reader.tx_cq, "the send");
  Expect(Hear<bool>(other.socket()), "wrong bytes");
}
FI_CASE("av.shared_map", kAddressed) { Shared(FI_AV_MAP); }
FI_CASE("av.shared_table", kAddressed) { Shared(FI_AV_TABLE); }

// What another process changes in a named AV is seen by endpoints that have used it already. The
// owner is this process; the other opens the AV for reading.
struct SharedByTwo {
  SharedByTwo(const Wish& wish, const std::string& name) : owner(wish) {
    fi_av_attr attr = {};
    attr.type = FI_AV_TABLE;
    attr.count = 16;
    attr.name = name.c_str();
    Need(fi_av_open(owner.peer.domain, &attr, av.Out(), nullptr), "fi_av_open of a named AV");
  }
  Single owner;
  Fid<fid_av> av;
};

struct SharedReader {
  SharedReader(const Wish& wish, const std::string& name) : peer(wish) {
    fi_av_attr attr = {};
    attr.type = FI_AV_TABLE;
    attr.name = name.c_str();
    attr.flags = FI_READ;
    peer.av.Close();
    Need(fi_av_open(peer.domain, &attr, peer.av.Out(), nullptr), "fi_av_open with FI_READ");
    peer.Start();
  }
  Peer peer;
};

FI_CASE("av.shared_inserted_later", kAddressed) {
  const Wish wish = {.caps = FI_MSG | FI_SHARED_AV | FI_SOURCE};
  const std::string name = "verbena_fi_later_" + std::to_string(getpid());
  Need(TryGetInfo(wish, std::make_unique<Info>().get()), "fi_getinfo with FI_SHARED_AV");
  Other other([&](int socket) {
    Hear<int>(socket);
    SharedReader reader(wish, name);
    const auto own = reader.peer.Address();
    Tell(socket, own.size());
    Tell(socket, own.data(), own.size());
    Memory in(reader.peer, 2 * 64);
    for (int i = 0; i < 2; ++i) {
      Receive(reader.peer, in, i, 64);
      Tell(socket, 1);
      Tell(socket, Await(reader.peer.rx_cq, "a receive").source);
    }
    Hear<int>(socket);
  });
  SharedByTwo shared(wish, name);
  Peer& owner = shared.owner.peer;
  Tell(other.socket(), 1);
  std::vector<uint8_t> address(Hear<size_t>(other.socket()));
  Hear(other.socket(), address.data(), address.size());
  Expect(fi_av_insert(owner.av, address.data(), 1, &owner.other, 0, nullptr) == 1, "fi_av_insert");
  Memory out(owner, 64);
  Hear<int>(other.socket());
  Send(owner, out);
  const auto before = Hear<fi_addr_t>(other.socket());
  Expect(before == FI_ADDR_NOTAVAIL, "a source that is not in the AV is %lld",
         static_cast<long long>(before));
  const auto own = owner.Address();
  fi_addr_t number = FI_ADDR_NOTAVAIL;
  Expect(fi_av_insert(shared.av, own.data(), 1, &number, 0, nullptr) == 1, "fi_av_insert");
  Hear<int>(other.socket());
  Send(owner, out);
  const auto after = Hear<fi_addr_t>(other.socket());
  Expect(after == number, "the source is %lld, not %lld", static_cast<long long>(after),
         static_cast<long long>(number));
}

FI_CASE("av.shared_replaced", kAddressed) {
  const Wish wish = {.caps = FI_MSG | FI_SHARED_AV};
  const std::string name = "verbena_fi_replaced_" + std::to_string(getpid());
  Need(TryGetInfo(wish, std::make_unique<Info>().get()), "fi_getinfo with FI_SHARED_AV");
  Other other([&](int socket) {
    SharedReader reader(wish, (Hear<int>(socket), name));
    Memory out(reader.peer, 64);
    out.Fill(4);
    reader.peer.other = Hear<fi_addr_t>(socket);
    for (int i = 0; i < 2; ++i) {
      Send(reader.peer, out, i);
      Await(reader.peer.tx_cq, "a send");
      Tell(socket, 1);
      Hear<int>(socket);
    }
  });
  SharedByTwo shared(wish, name);
  Peer& first = shared.owner.peer;
  Single second(wish);
  Memory in(first, 64), later(second.peer, 64);
  Receive(first, in);
  Receive(second.peer, later);
  fi_addr_t number = FI_ADDR_NOTAVAIL, again = FI_ADDR_NOTAVAIL;
  Expect(fi_av_insert(shared.av, first.Address().data(), 1, &number, 0, nullptr) == 1,
         "fi_av_insert");
  Tell(other.socket(), 1);
  Tell(other.socket(), number);
  Await(first.rx_cq, "the receive of whom the number names first");
  Hear<int>(other.socket());
  Receive(first, in);
  Need(fi_av_remove(shared.av, &number, 1, 0), "fi_av_remove");
  Expect(fi_av_insert(shared.av, second.peer.Address().data(), 1, &again, 0, nullptr) == 1,
         "fi_av_insert");
  Expect(again == number, "the number that is free is not given again");
  Tell(other.socket(), 1);
  Await(second.peer.rx_cq, "the receive of whom the number names now");
  ExpectNothing(first.rx_cq, 50, "what went to a number that is another's");
  Expect(later.Has(4, 64), "wrong bytes");
}

FI_CASE("av.shared_read_needs_a_name_that_exists", kAddressed) {
  const Wish wish = {.caps = FI_MSG | FI_SHARED_AV};
  Ground ground(wish);
  fi_av_attr attr = {};
  attr.flags = FI_READ;
  Fid<fid_av> av;
  Expect(fi_av_open(ground.domain, &attr, av.Out(), nullptr) < 0, "FI_READ without a name");
  attr.name = "verbena_fi_nobody_made_this";
  Expect(fi_av_open(ground.domain, &attr, av.Out(), nullptr) < 0, "FI_READ of nothing");
}

}  // namespace
}  // namespace verbena::fi_test
