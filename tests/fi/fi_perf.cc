// What a libfabric provider is worth: two processes, any provider by its name, one JSON object per
// figure.
//
//   fi_perf --at PATH --provider NAME [--endpoint msg|rdm|dgram] [--node ADDRESS] [--sleep 1]
//           server
//   fi_perf the same [--test pingpong|rate|write|read]... [--size BYTES]... [--ms N] client
//
// The two find each other by a Unix socket at PATH, so they may be in two network namespaces. Both
// ends spin, as programs that are measured do; --sleep 1: but the target of RMA operations does
// not, where the provider says that it progresses by itself (FI_PROGRESS_AUTO). It is an option
// because not every provider that says so does.
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

enum class Test : uint32_t { kEnd, kPingpong, kRate, kWrite, kRead };

constexpr struct {
  Test test;
  const char* name;
} kTests[] = {{Test::kPingpong, "pingpong"},
              {Test::kRate, "rate"},
              {Test::kWrite, "write"},
              {Test::kRead, "read"}};

constexpr size_t kMaxBytes = 1 << 20;
constexpr size_t kWindow = 64;  // sends, or RMA operations, under way
constexpr size_t kBatch = 16;   // completions read at once
constexpr size_t kContexts = 4096;
constexpr int kLimitMs = 20'000;

// What the client asks the server to take part in.
struct Command {
  Test test;
  uint32_t count;
  uint64_t bytes;
};

struct Remote {
  uint64_t address, key;
};

struct Options {
  std::string at;
  std::vector<Test> tests;
  std::vector<size_t> sizes;
  int ms = 100;
  bool is_server = false, may_sleep = false;
};

double NowUs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// Its side of the Unix socket at `path`.
int Meet(const std::string& path, bool is_server) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  Expect(path.size() < sizeof(address.sun_path), "%s is too long for a socket", path.c_str());
  memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  const auto* name = reinterpret_cast<const sockaddr*>(&address);
  if (!is_server) {
    Expect(WaitUntil([&] { return connect(fd, name, sizeof(address)) == 0; }, kLimitMs),
           "no server at %s: %s", path.c_str(), strerror(errno));
    return fd;
  }
  Expect(bind(fd, name, sizeof(address)) == 0 && listen(fd, 1) == 0, "%s: %s", path.c_str(),
         strerror(errno));
  const int peer = accept(fd, nullptr, nullptr);
  Expect(peer >= 0, "accept: %s", strerror(errno));
  close(fd);
  return peer;
}

void TellBytes(int socket, const std::vector<uint8_t>& bytes) {
  Tell(socket, bytes.size());
  Tell(socket, bytes.data(), bytes.size());
}

std::vector<uint8_t> HearBytes(int socket) {
  std::vector<uint8_t> bytes(std::min<size_t>(Hear<size_t>(socket), 4096));
  Hear(socket, bytes.data(), bytes.size(), kLimitMs);
  return bytes;
}

void Ready(Peer& peer) { peer.Start(); }

// An endpoint that can talk to the other process's.
std::unique_ptr<Peer> Connect(const Wish& wish, int socket, bool is_server) {
  if (!IsConnected()) {
    auto peer = std::make_unique<Peer>(wish);
    Ready(*peer);
    TellBytes(socket, peer->Address());
    const auto other = HearBytes(socket);
    Expect(fi_av_insert(peer->av, other.data(), 1, &peer->other, 0, nullptr) == 1, "fi_av_insert");
    return peer;
  }
  if (is_server) {
    const Listener listener(wish);
    TellBytes(socket, listener.address);
    const Event request = AwaitEvent(*listener.eq, FI_CONNREQ, "the listener's");
    auto peer = std::make_unique<Peer>(wish);
    peer->request.reset(request.info);
    Ready(*peer);
    Need(fi_accept(peer->ep, nullptr, 0), "fi_accept");
    AwaitEvent(*peer->eq, FI_CONNECTED, "the passive side's");
    return peer;
  }
  auto peer = std::make_unique<Peer>(wish);
  Ready(*peer);
  const auto listener = HearBytes(socket);
  Need(fi_connect(peer->ep, listener.data(), nullptr, 0), "fi_connect");
  AwaitEvent(*peer->eq, FI_CONNECTED, "the active side's");
  return peer;
}

// One end of every test.
class End {
 public:
  End(const Wish& wish, int socket, const Options& options);
  void Serve();
  // Microseconds that an operation takes.
  double Measure(Test test, size_t bytes, int ms);

 private:
  static size_t Take(fid_cq* cq);
  template <typename Condition>
  void SpinUntil(const Condition& is_true, const char* what);
  template <typename Call>
  void Post(const Call& call, const char* what);
  void FillReceives();
  void SendOne(size_t bytes, bool may_inject);
  void RmaOne(Test test, size_t bytes);
  void Answer(const Command& command);
  double Run(const Command& command);
  Command AwaitCommand();

  int socket_;
  std::unique_ptr<Peer> peer_;
  Memory out_, in_;
  size_t receives_;  // posted at any time
  bool sleeps_;      // while it waits for commands
  Remote remote_ = {};
  size_t sent_ = 0, received_ = 0;     // completions
  size_t posted_ = 0, listening_ = 0;  // what they are of
};

End::End(const Wish& wish, int socket, const Options& options)
    : socket_(socket),
      peer_(Connect(wish, socket, options.is_server)),
      out_(*peer_, kMaxBytes),
      in_(*peer_, kMaxBytes, IsReliable() ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0),
      receives_(std::min(2 * kWindow, peer_->info->rx_attr->size)),
      sleeps_(options.may_sleep && peer_->info->domain_attr->data_progress == FI_PROGRESS_AUTO) {
  FillReceives();
  Tell(socket, Remote{in_.Remote(), in_.key()});
  remote_ = Hear<Remote>(socket);
}

// How many completions `cq` had; an error is the end.
size_t End::Take(fid_cq* cq) {
  fi_cq_entry entries[kBatch];
  const ssize_t got = fi_cq_read(cq, entries, kBatch);
  if (got >= 0) return static_cast<size_t>(got);
  if (got == -FI_EAGAIN) return 0;
  fi_cq_err_entry error = {};
  if (got == -FI_EAVAIL) fi_cq_readerr(cq, &error, 0);
  Fail("a completion says %s", NameOf(got == -FI_EAVAIL ? error.err : -got).c_str());
}

template <typename Condition>
void End::SpinUntil(const Condition& is_true, const char* what) {
  long end_ms = 0;
  for (size_t turn = 1; !is_true(); ++turn) {
    received_ += Take(peer_->rx_cq);
    if (is_true()) return;
    sent_ += Take(peer_->tx_cq);
    if (turn % 4096 != 0) continue;  // a clock costs as much as a look at a CQ
    if (end_ms == 0) end_ms = NowMs() + kLimitMs;
    Expect(NowMs() < end_ms, "%s does not come", what);
  }
}

template <typename Call>
void End::Post(const Call& call, const char* what) {
  ssize_t result = -FI_EAGAIN;
  SpinUntil([&] { return (result = call()) != -FI_EAGAIN; }, what);
  Need(result, what);
}

void End::FillReceives() {
  for (; listening_ - received_ < receives_; ++listening_) {
    void* context = ContextOf(kContexts + listening_ % kContexts);
    Post(
        [&] {
          return fi_recv(peer_->ep, in_.data(), in_.size(), in_.desc(), FI_ADDR_UNSPEC, context);
        },
        "fi_recv");
  }
}

void End::SendOne(size_t bytes, bool may_inject) {
  if (may_inject && bytes <= peer_->info->tx_attr->inject_size) {
    Post([&] { return fi_inject(peer_->ep, out_.data(), bytes, peer_->other); }, "fi_inject");
    return;
  }
  void* context = ContextOf(posted_ % kContexts);
  Post([&] { return fi_send(peer_->ep, out_.data(), bytes, out_.desc(), peer_->other, context); },
       "fi_send");
  ++posted_;
}

void End::RmaOne(Test test, size_t bytes) {
  void* context = ContextOf(posted_ % kContexts);
  Post(
      [&] {
        return test == Test::kWrite ? fi_write(peer_->ep, out_.data(), bytes, out_.desc(),
                                               peer_->other, remote_.address, remote_.key, context)
                                    : fi_read(peer_->ep, out_.data(), bytes, out_.desc(),
                                              peer_->other, remote_.address, remote_.key, context);
      },
      test == Test::kWrite ? "fi_write" : "fi_read");
  ++posted_;
}

// The server's part.
void End::Answer(const Command& command) {
  const size_t before = received_;
  if (command.test == Test::kPingpong) {
    for (size_t i = 1; i <= command.count; ++i) {
      SpinUntil([&] { return received_ - before >= i; }, "the client's message");
      SendOne(command.bytes, true);
      FillReceives();
    }
  } else if (command.test == Test::kRate) {
    while (received_ - before < command.count) {
      const size_t had = received_;
      SpinUntil([&] { return received_ > had; }, "the client's message");
      FillReceives();
    }
    SendOne(1, true);
  }
}

// The client's part; microseconds that it took.
double End::Run(const Command& command) {
  Tell(socket_, command);
  Hear<char>(socket_);
  const double start_us = NowUs();
  const size_t before = received_;
  for (size_t i = 1; i <= command.count; ++i) {
    if (command.test == Test::kPingpong) {
      SendOne(command.bytes, true);
      FillReceives();
      SpinUntil([&] { return received_ - before >= i; }, "the server's message");
      continue;
    }
    if (posted_ - sent_ >= kWindow) {
      SpinUntil([&] { return posted_ - sent_ < kWindow; }, "a completion");
    }
    if (command.test == Test::kRate) {
      SendOne(command.bytes, false);
    } else {
      RmaOne(command.test, command.bytes);
    }
  }
  SpinUntil([&] { return posted_ == sent_; }, "the last completion");
  if (command.test == Test::kRate) {
    SpinUntil([&] { return received_ > before; }, "the server's word that all came");
  }
  const double took_us = NowUs() - start_us;
  FillReceives();
  return took_us;
}

double End::Measure(Test test, size_t bytes, int ms) {
  Command command = {test, 16, bytes};
  double took_us = Run(command);
  while (took_us < ms * 250.0) {
    // By what is known of the pace, though at most so much more: the first runs warm up.
    const double pace = std::clamp(ms * 300.0 / std::max(took_us, 1.0), 2.0, 16.0);
    command.count = static_cast<uint32_t>(command.count * pace);
    took_us = Run(command);
  }
  command.count = std::max(16U, static_cast<uint32_t>(command.count * ms * 1000.0 / took_us));
  return Run(command) / command.count;
}

Command End::AwaitCommand() {
  pollfd readable = {socket_, POLLIN, 0};
  while (poll(&readable, 1, sleeps_ ? kLimitMs : 0) == 0) {
    Expect(!sleeps_, "the client says nothing");
    for (int i = 0; i < 256; ++i) {
      received_ += Take(peer_->rx_cq);
      sent_ += Take(peer_->tx_cq);
    }
  }
  return Hear<Command>(socket_);
}

void End::Serve() {
  for (;;) {
    const Command command = AwaitCommand();
    if (command.test == Test::kEnd) return;
    Expect(command.bytes <= kMaxBytes, "the client speaks of %zu B", size_t{command.bytes});
    Tell(socket_, 'r');
    Answer(command);
  }
}

// Half a round trip, MB/s or millions a second, as the figure is usually told.
void Print(Test test, size_t bytes, double us) {
  const bool is_pingpong = test == Test::kPingpong, is_rate = test == Test::kRate;
  const double value = is_pingpong ? us / 2 : is_rate ? 1 / us : static_cast<double>(bytes) / us;
  const auto* known = std::find_if(std::begin(kTests), std::end(kTests),
                                   [=](const auto& each) { return each.test == test; });
  printf("{\"test\": \"%s\", \"bytes\": %zu, \"value\": %.6g, \"unit\": \"%s\"}\n", known->name,
         bytes, value,
         is_pingpong ? "us"
         : is_rate   ? "M/s"
                     : "MB/s");
  fflush(stdout);
}

int Usage() {
  fprintf(stderr,
          "usage: fi_perf --at PATH --provider NAME [--endpoint msg|rdm|dgram] [--node ADDRESS]\n"
          "               [--sleep 1] [--test pingpong|rate|write|read]... [--size BYTES]...\n"
          "               [--ms N] server|client\n");
  return 2;
}

// Whether every word is known.
bool Parse(int argc, char** argv, Options* options, Target* target) {
  target->type = FI_EP_RDM;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--at") {
      options->at = value;
    } else if (name == "--provider") {
      target->provider = value;
    } else if (name == "--node") {
      target->node = value;
    } else if (name == "--sleep") {
      options->may_sleep = value == "1";
    } else if (name == "--endpoint") {
      const EndpointType* known = FindEndpointType(value);
      if (known == nullptr) return false;
      target->type = known->type;
    } else if (name == "--test") {
      const auto* known = std::find_if(std::begin(kTests), std::end(kTests),
                                       [&](const auto& test) { return value == test.name; });
      if (known == std::end(kTests)) return false;
      options->tests.push_back(known->test);
    } else if (name == "--size") {
      options->sizes.push_back(strtoul(value.c_str(), nullptr, 10));
      if (options->sizes.back() == 0 || options->sizes.back() > kMaxBytes) return false;
    } else if (name == "--ms") {
      options->ms = atoi(value.c_str());
      if (options->ms < 1) return false;
    } else {
      return false;
    }
  }
  const std::string role = argc % 2 == 0 ? argv[argc - 1] : "";
  options->is_server = role == "server";
  if (options->tests.empty()) options->tests = {Test::kPingpong};
  if (options->sizes.empty()) options->sizes = {8, 4096, 65536, kMaxBytes};
  return (role == "server" || role == "client") && !options->at.empty() &&
         !target->provider.empty();
}

void Go(const Options& options) {
  Wish wish;
  wish.caps = RmaCaps();
  wish.format = FI_CQ_FORMAT_CONTEXT;
  wish.hints = [](fi_info* hints) { hints->domain_attr->threading = FI_THREAD_DOMAIN; };
  const int socket = Meet(options.at, options.is_server);
  End end(wish, socket, options);
  if (options.is_server) {
    end.Serve();
    return;
  }
  for (const Test test : options.tests) {
    for (const size_t bytes : options.sizes) {
      Print(test, bytes, end.Measure(test, bytes, options.ms));
    }
  }
  Tell(socket, Command{Test::kEnd, 0, 0});
  // The server closes first: some providers flush only while both are there.
  char none;
  recv(socket, &none, 1, 0);
}

int Main(int argc, char** argv) {
  Options options;
  Target target;
  if (!Parse(argc, argv, &options, &target)) return Usage();
  setenv("FI_PROVIDER", target.provider.c_str(), 0);
  Ask(target);
  try {
    Go(options);
  } catch (const Answer& answer) {
    fprintf(stderr, "fi_perf: %s\n", answer.reason.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace verbena::fi_test

int main(int argc, char** argv) { return verbena::fi_test::Main(argc, argv); }
