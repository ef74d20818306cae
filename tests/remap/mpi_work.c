// Ranks that exchange what follows from a seed and check each byte: mpi_work SEED ROUNDS
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kExitDamage = 3, kLargest = 1 << 20 };

static unsigned char Expected(uint64_t seed, int from, int to, size_t i) {
  uint64_t z = (seed * 31 + (uint64_t)from * 7 + (uint64_t)to + i) * 0x9e3779b97f4a7c15u;
  return (unsigned char)(z >> 37);
}

static void Check(int is_right, const char* what) {
  if (is_right) return;
  fprintf(stderr, "damage: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, kExitDamage);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  uint64_t seed = strtoull(argv[1], NULL, 10);
  const int rounds = atoi(argv[2]);
  for (int round = 0; round < rounds; ++round, seed = seed * 6364136223846793005u + 1) {
    const size_t bytes = 1 + (seed >> 33) % ((size_t)1 << (4 + (seed >> 20) % 17));
    unsigned char* out = malloc(bytes * (size_t)ranks);
    unsigned char* in = malloc(bytes * (size_t)ranks);
    Check(out != NULL && in != NULL, "no memory");
    for (int to = 0; to < ranks; ++to) {
      for (size_t i = 0; i < bytes; ++i) out[(size_t)to * bytes + i] = Expected(seed, rank, to, i);
    }
    memset(in, 0, bytes * (size_t)ranks);
    MPI_Alltoall(out, (int)bytes, MPI_BYTE, in, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; ++from) {
      for (size_t i = 0; i < bytes; ++i) {
        Check(in[(size_t)from * bytes + i] == Expected(seed, from, rank, i), "all to all");
      }
    }
    const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    memset(in, 0, bytes);
    MPI_Sendrecv(out + (size_t)next * bytes, (int)bytes, MPI_BYTE, next, 1, in, (int)bytes, MPI_BYTE,
                 previous, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (size_t i = 0; i < bytes; ++i) {
      Check(in[i] == Expected(seed, previous, rank, i), "send and receive");
    }
    uint64_t mine = seed + (uint64_t)rank, sum = 0;
    MPI_Allreduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    Check(sum == seed * (uint64_t)ranks + (uint64_t)(ranks * (ranks - 1) / 2), "a sum");
    free(out);
    free(in);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) puts("as it should be");
  MPI_Finalize();
  return 0;
}
