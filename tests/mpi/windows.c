// One-sided communication: every kind of window and of synchronisation, each byte compared.
//   windows BYTES ROUNDS
#include "check.h"

static uint32_t SeedOf(int from, int to, int round) {
  return (uint32_t)(from * 6151 + to * 12289 + round * 97 + 5);
}

// Everybody puts a part into everybody's window and gets the parts of others back.
static void PutAndGet(MPI_Win win, unsigned char* base, size_t bytes, int round) {
  size_t all = bytes * (size_t)g_ranks;
  unsigned char* out = Allocate(all);
  unsigned char* in = Allocate(all);
  memset(base, 0, all);
  MPI_Win_fence(0, win);
  for (int to = 0; to < g_ranks; ++to) {
    unsigned char* part = out + bytes * (size_t)to;
    Fill(part, bytes, SeedOf(g_rank, to, round));
    MPI_Put(part, (int)bytes, MPI_BYTE, to, (MPI_Aint)(bytes * (size_t)g_rank), (int)bytes,
            MPI_BYTE, win);
  }
  MPI_Win_fence(0, win);
  for (int from = 0; from < g_ranks; ++from) {
    ExpectBytes(base + bytes * (size_t)from, bytes, SeedOf(from, g_rank, round), "put");
  }
  for (int to = 0; to < g_ranks; ++to) {
    int whose = (g_rank + to) % g_ranks;
    MPI_Get(in + bytes * (size_t)to, (int)bytes, MPI_BYTE, to, (MPI_Aint)(bytes * (size_t)whose),
            (int)bytes, MPI_BYTE, win);
  }
  MPI_Win_fence(0, win);
  for (int to = 0; to < g_ranks; ++to) {
    int whose = (g_rank + to) % g_ranks;
    ExpectBytes(in + bytes * (size_t)to, bytes, SeedOf(whose, to, round), "get");
  }
  free(out);
  free(in);
}

// Post, start, complete, wait: only the neighbours take part.
static void ByNeighbours(MPI_Win win, unsigned char* base, size_t bytes) {
  int to = (g_rank + 1) % g_ranks, from = (g_rank + g_ranks - 1) % g_ranks;
  MPI_Group world, targets, origins;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, 1, &to, &targets);
  MPI_Group_incl(world, 1, &from, &origins);
  unsigned char* out = Allocate(bytes);
  Fill(out, bytes, SeedOf(g_rank, to, 77));
  memset(base, 0, bytes);
  MPI_Win_post(origins, 0, win);
  MPI_Win_start(targets, 0, win);
  MPI_Put(out, (int)bytes, MPI_BYTE, to, 0, (int)bytes, MPI_BYTE, win);
  MPI_Win_complete(win);
  MPI_Win_wait(win);
  ExpectBytes(base, bytes, SeedOf(from, g_rank, 77), "post and start");
  free(out);
  MPI_Group_free(&targets);
  MPI_Group_free(&origins);
  MPI_Group_free(&world);
}

// One target, one lock, everybody adds; nothing may be lost.
static void LockedSums(int rounds) {
  int64_t* base;
  MPI_Win win;
  MPI_Win_allocate(64 * sizeof(int64_t), sizeof(int64_t), MPI_INFO_NULL, MPI_COMM_WORLD, &base,
                   &win);
  MPI_Win_lock(MPI_LOCK_EXCLUSIVE, g_rank, 0, win);
  memset(base, 0, 64 * sizeof(int64_t));
  MPI_Win_unlock(g_rank, win);
  MPI_Barrier(MPI_COMM_WORLD);
  for (int round = 0; round < rounds; ++round) {
    int64_t values[64];
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
    MPI_Get(values, 64, MPI_INT64_T, 0, 0, 64, MPI_INT64_T, win);
    MPI_Win_flush(0, win);
    for (int i = 0; i < 64; ++i) values[i] += g_rank + i;
    MPI_Put(values, 64, MPI_INT64_T, 0, 0, 64, MPI_INT64_T, win);
    MPI_Win_unlock(0, win);
    for (int i = 0; i < 64; ++i) values[i] = 1;
    MPI_Win_lock(MPI_LOCK_SHARED, g_ranks - 1, 0, win);
    if (g_ranks > 1) {
      MPI_Accumulate(values, 64, MPI_INT64_T, g_ranks - 1, 0, 64, MPI_INT64_T, MPI_SUM, win);
    }
    MPI_Win_unlock(g_ranks - 1, win);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_lock(MPI_LOCK_SHARED, g_rank, 0, win);
  int64_t ranks = (int64_t)g_ranks * (g_ranks - 1) / 2;
  for (int i = 0; i < 64; ++i) {
    if (g_rank == 0) ExpectNumber(base[i], rounds * (ranks + (int64_t)i * g_ranks), "locked sum");
    if (g_rank > 0 && g_rank == g_ranks - 1) {
      ExpectNumber(base[i], (int64_t)rounds * g_ranks, "accumulated sum");
    }
  }
  MPI_Win_unlock(g_rank, win);
  MPI_Win_free(&win);
}

// Atomics of all ranks at one word: each value comes once.
static void Atomics(int rounds) {
  int64_t* base;
  MPI_Win win;
  MPI_Win_allocate(4 * sizeof(int64_t), sizeof(int64_t), MPI_INFO_NULL, MPI_COMM_WORLD, &base,
                   &win);
  memset(base, 0, 4 * sizeof(int64_t));
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_lock_all(0, win);
  int total = rounds * g_ranks;
  int* seen = Allocate(sizeof(int) * (size_t)total);
  int* all = Allocate(sizeof(int) * (size_t)total);
  memset(seen, 0, sizeof(int) * (size_t)total);
  for (int round = 0; round < rounds; ++round) {
    int64_t one = 1, before = -1, swapped = -1;
    MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_SUM, win);
    MPI_Win_flush(0, win);
    if (before < 0 || before >= total) Fail("fetch_and_op gave %lld", (long long)before);
    seen[before] += 1;
    // Adds one by compare and swap, as often as it takes.
    int64_t expected = 0;
    for (;;) {
      int64_t wanted = expected + 1;
      MPI_Compare_and_swap(&wanted, &expected, &swapped, MPI_INT64_T, 0, 1, win);
      MPI_Win_flush(0, win);
      if (swapped == expected) break;
      expected = swapped;
    }
    int64_t add = g_rank + 1, old = -1;
    MPI_Get_accumulate(&add, 1, MPI_INT64_T, &old, 1, MPI_INT64_T, 0, 2, 1, MPI_INT64_T, MPI_SUM,
                       win);
    MPI_Win_flush(0, win);
    if (old < 0) Fail("get_accumulate gave %lld", (long long)old);
  }
  MPI_Win_unlock_all(win);
  MPI_Allreduce(seen, all, total, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < total; ++i) ExpectNumber(all[i], 1, "each value of a counter, once");
  if (g_rank == 0) {
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
    ExpectNumber(base[0], total, "counter");
    ExpectNumber(base[1], total, "counter by compare and swap");
    ExpectNumber(base[2], (int64_t)rounds * g_ranks * (g_ranks + 1) / 2, "counter by accumulate");
    MPI_Win_unlock(0, win);
  }
  MPI_Win_free(&win);
  free(seen);
  free(all);
}

// Requests of their own, and a target known by its address alone.
static void Dynamic(size_t bytes) {
  MPI_Win win;
  unsigned char* memory = Allocate(bytes);
  unsigned char* out = Allocate(bytes);
  unsigned char* in = Allocate(bytes);
  MPI_Aint mine, *addresses = Allocate(sizeof(MPI_Aint) * (size_t)g_ranks);
  memset(memory, 0, bytes);
  MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win);
  MPI_Win_attach(win, memory, (MPI_Aint)bytes);
  MPI_Get_address(memory, &mine);
  MPI_Allgather(&mine, 1, MPI_AINT, addresses, 1, MPI_AINT, MPI_COMM_WORLD);
  int to = (g_rank + 1) % g_ranks, from = (g_rank + g_ranks - 1) % g_ranks;
  MPI_Request request;
  Fill(out, bytes, SeedOf(g_rank, to, 99));
  MPI_Win_lock_all(0, win);
  MPI_Rput(out, (int)bytes, MPI_BYTE, to, addresses[to], (int)bytes, MPI_BYTE, win, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Win_flush(to, win);
  MPI_Rget(in, (int)bytes, MPI_BYTE, to, addresses[to], (int)bytes, MPI_BYTE, win, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  ExpectBytes(in, bytes, SeedOf(g_rank, to, 99), "rget");
  MPI_Win_unlock_all(win);
  MPI_Barrier(MPI_COMM_WORLD);
  ExpectBytes(memory, bytes, SeedOf(from, g_rank, 99), "rput");
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_detach(win, memory);
  MPI_Win_free(&win);
  free(memory);
  free(out);
  free(in);
  free(addresses);
}

int main(int argc, char** argv) {
  Begin(&argc, &argv);
  size_t bytes = argc > 1 ? (size_t)atol(argv[1]) : 10000;
  int rounds = argc > 2 ? atoi(argv[2]) : 20;
  size_t sizes[] = {1, 8, 1000, bytes};
  unsigned char* own = Allocate(bytes * (size_t)g_ranks);
  unsigned char* given;
  MPI_Win on_own, on_given;
  MPI_Win_create(own, (MPI_Aint)(bytes * (size_t)g_ranks), 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                 &on_own);
  MPI_Win_allocate((MPI_Aint)(bytes * (size_t)g_ranks), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &given,
                   &on_given);
  for (size_t s = 0; s < 4; ++s) {
    for (int round = 0; round < 3 && sizes[s] <= bytes; ++round) {
      PutAndGet(on_own, own, sizes[s], round);
      PutAndGet(on_given, given, sizes[s], round);
    }
  }
  ByNeighbours(on_own, own, bytes);
  MPI_Win_free(&on_own);
  MPI_Win_free(&on_given);
  free(own);
  LockedSums(rounds);
  Atomics(rounds);
  Dynamic(bytes);
  return End("windows");
}
