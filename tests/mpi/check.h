// What the MPI test programs share: data that is known from its place, and what is wrong told in a
// sentence, on standard error and at the end of the file that MPI_TEST_FAILURES names, if it is
// set: MPI_Abort may end a launcher before it has passed on what a rank has written.
// MPI_TEST_CORRUPT=N in the environment spoils the Nth comparison, to see that one wrong byte ends
// a program with failure.
#pragma once

#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int g_rank, g_ranks;
static long g_comparisons;

static inline void Fail(const char* format, ...) {
  char text[256];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof(text), format, list);
  va_end(list);
  const char* path = getenv("MPI_TEST_FAILURES");
  FILE* file = path != NULL ? fopen(path, "a") : NULL;
  if (file != NULL) {
    fprintf(file, "rank %d: %s\n", g_rank, text);
    fclose(file);
  }
  fprintf(stderr, "rank %d: %s\n", g_rank, text);
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}

static inline void* Allocate(size_t bytes) {
  void* memory = malloc(bytes + 1);
  if (memory == NULL) Fail("no memory for %zu bytes", bytes);
  return memory;
}

// The byte at `place` of what `seed` names.
static inline unsigned char ByteAt(uint32_t seed, size_t place) {
  uint32_t x = (uint32_t)place * 2654435761u ^ (seed * 40503u + 0x9e3779b9u);
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  return (unsigned char)x;
}

static inline void Fill(void* memory, size_t bytes, uint32_t seed) {
  for (size_t i = 0; i < bytes; ++i) ((unsigned char*)memory)[i] = ByteAt(seed, i);
}

static inline int IsSpoiled(void) {
  static long spoiled = -1;
  if (spoiled < 0) {
    const char* wish = getenv("MPI_TEST_CORRUPT");
    spoiled = wish != NULL ? atol(wish) : 0;
  }
  return ++g_comparisons == spoiled;
}

static inline void ExpectBytes(void* memory, size_t bytes, uint32_t seed, const char* what) {
  unsigned char* data = memory;
  if (bytes > 0 && IsSpoiled()) data[bytes - 1] ^= 1;
  for (size_t i = 0; i < bytes; ++i) {
    if (data[i] != ByteAt(seed, i)) {
      Fail("%s: byte %zu of %zu is %02x, not %02x", what, i, bytes, data[i], ByteAt(seed, i));
    }
  }
}

static inline void ExpectNumber(int64_t value, int64_t expected, const char* what) {
  if (IsSpoiled()) value ^= 1;
  if (value != expected) {
    Fail("%s: %lld, not %lld", what, (long long)value, (long long)expected);
  }
}

static inline void Begin(int* argc, char*** argv) {
  MPI_Init(argc, argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &g_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &g_ranks);
}

// Every rank has come here without a failure.
static inline int End(const char* what) {
  long all = 0;
  MPI_Reduce(&g_comparisons, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (g_rank == 0) printf("%s: %d ranks, %ld comparisons, all is right\n", what, g_ranks, all);
  MPI_Finalize();
  return 0;
}
