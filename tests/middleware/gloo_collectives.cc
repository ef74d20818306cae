// Collectives of Gloo (PyTorch's library of them) over its ibverbs transport, each result compared.
//
//   gloo_collectives DEVICE GID_INDEX RANK RANKS DIRECTORY
//
// Ranks find each other by files in DIRECTORY, which is empty to begin with. Gloo hands every
// failure on as an exception, which ends the program.
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace {

using Context = std::shared_ptr<gloo::Context>;

constexpr int kRounds = 8;
constexpr size_t kCounts[] = {1, 16, 1000, 65'536, 1 << 20};
long g_comparisons = 0;

// Of `rank`, in each round another.
int64_t ValueOf(int rank, size_t at, int round) {
  return (rank + 1) * 1'000'003LL + static_cast<int64_t>(at) * 7 + round;
}

// One that is never destroyed: Gloo's algorithms do not wait for the completions of their last
// messages, and it throws if a buffer goes before them.
template <typename Algorithm, typename... Arguments>
Algorithm& Make(Arguments... arguments) {
  return *new Algorithm(arguments...);
}

template <typename Expected>
void Compare(const char* what, const std::vector<int64_t>& got, Expected expected) {
  for (size_t i = 0; i < got.size(); ++i) {
    ++g_comparisons;
    if (got[i] == expected(i)) continue;
    fprintf(stderr, "%s of %zu: element %zu is %lld, not %lld\n", what, got.size(), i,
            static_cast<long long>(got[i]), static_cast<long long>(expected(i)));
    exit(1);
  }
}

template <typename Algorithm>
void Allreduce(const char* what, const Context& context, size_t count) {
  auto& data = Make<std::vector<int64_t>>(count);
  const std::vector<int64_t*> places = {data.data()};
  auto& algorithm = Make<Algorithm>(context, places, static_cast<int>(count));
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < count; ++i) data[i] = ValueOf(context->rank, i, round);
    algorithm.run();
    Compare(what, data, [&](size_t i) {
      int64_t sum = 0;
      for (int rank = 0; rank < context->size; ++rank) sum += ValueOf(rank, i, round);
      return sum;
    });
  }
}

void Broadcast(const Context& context, size_t count, int root, gloo::BarrierAllToAll& barrier) {
  auto& data = Make<std::vector<int64_t>>(count);
  const std::vector<int64_t*> places = {data.data()};
  auto& algorithm =
      Make<gloo::BroadcastOneToAll<int64_t>>(context, places, static_cast<int>(count), root);
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < count; ++i) data[i] = ValueOf(context->rank, i, round);
    algorithm.run();
    Compare("broadcast", data, [&](size_t i) { return ValueOf(root, i, round); });
    barrier.run();  // nobody changes its data while another still reads it
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    fprintf(stderr, "usage: gloo_collectives DEVICE GID_INDEX RANK RANKS DIRECTORY\n");
    return 2;
  }
  gloo::transport::ibverbs::attr where;
  where.name = argv[1];
  where.port = 1;
  where.index = atoi(argv[2]);
  auto device = gloo::transport::ibverbs::CreateDevice(where);
  auto context = std::make_shared<gloo::rendezvous::Context>(atoi(argv[3]), atoi(argv[4]));
  gloo::rendezvous::FileStore store(argv[5]);
  context->connectFullMesh(store, device);
  auto& barrier = Make<gloo::BarrierAllToAll>(context);
  for (const size_t count : kCounts) {
    Allreduce<gloo::AllreduceRing<int64_t>>("ring", context, count);
    Allreduce<gloo::AllreduceRingChunked<int64_t>>("chunked ring", context, count);
    Allreduce<gloo::AllreduceHalvingDoubling<int64_t>>("halving and doubling", context, count);
    for (int root = 0; root < context->size; ++root) Broadcast(context, count, root, barrier);
  }
  // Nobody leaves while another waits for what it has sent: that goes with its QPs.
  std::vector<std::string> all;
  for (int rank = 0; rank < context->size; ++rank) all.push_back("done" + std::to_string(rank));
  store.set(all[context->rank], {'1'});
  store.wait(all);
  printf("%ld comparisons\n", g_comparisons);
  fflush(stdout);
  _exit(0);
}
