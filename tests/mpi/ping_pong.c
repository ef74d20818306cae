// Messages between every two ranks, of all sizes, each byte compared.
//   ping_pong ROUNDS LARGEST_BYTES
#include "check.h"

enum { kTag = 7, kWindow = 32 };

static const size_t kSizes[] = {0,    1,    8,     63,    64,     1000,    1024,   4096,
                                8191, 8192, 16384, 65536, 100000, 1000000, 4194304};

static uint32_t SeedOf(int from, int to, int round) {
  return (uint32_t)(from * 7919 + to * 104729 + round * 31 + 1);
}

// There and back.
static void PingPong(int peer, size_t bytes, int round, unsigned char* out, unsigned char* in) {
  MPI_Status status;
  int count;
  Fill(out, bytes, SeedOf(g_rank, peer, round));
  if (g_rank < peer) {
    MPI_Send(out, (int)bytes, MPI_BYTE, peer, kTag, MPI_COMM_WORLD);
    MPI_Recv(in, (int)bytes, MPI_BYTE, peer, kTag, MPI_COMM_WORLD, &status);
  } else {
    MPI_Recv(in, (int)bytes, MPI_BYTE, peer, kTag, MPI_COMM_WORLD, &status);
    MPI_Ssend(out, (int)bytes, MPI_BYTE, peer, kTag, MPI_COMM_WORLD);
  }
  MPI_Get_count(&status, MPI_BYTE, &count);
  ExpectNumber(count, (int64_t)bytes, "length of a message");
  ExpectBytes(in, bytes, SeedOf(peer, g_rank, round), "ping-pong");
}

// Many under way both ways, received in another order than sent.
static void Window(int peer, size_t bytes) {
  MPI_Request requests[2 * kWindow];
  unsigned char* out = Allocate(bytes * kWindow);
  unsigned char* in = Allocate(bytes * kWindow);
  memset(in, 0, bytes * kWindow);
  for (int i = 0; i < kWindow; ++i) {
    int tag = kWindow - 1 - i;
    MPI_Irecv(in + bytes * (size_t)tag, (int)bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD,
              &requests[i]);
  }
  for (int i = 0; i < kWindow; ++i) {
    Fill(out + bytes * (size_t)i, bytes, SeedOf(g_rank, peer, 1000 + i));
    MPI_Isend(out + bytes * (size_t)i, (int)bytes, MPI_BYTE, peer, i, MPI_COMM_WORLD,
              &requests[kWindow + i]);
  }
  MPI_Waitall(2 * kWindow, requests, MPI_STATUSES_IGNORE);
  for (int i = 0; i < kWindow; ++i) {
    ExpectBytes(in + bytes * (size_t)i, bytes, SeedOf(peer, g_rank, 1000 + i), "window");
  }
  free(out);
  free(in);
}

// Messages that come before their receive, from anybody, of a length that only they know.
static void Unexpected(void) {
  const int kEach = 20;
  MPI_Barrier(MPI_COMM_WORLD);
  if (g_rank != 0) {
    for (int i = 0; i < kEach; ++i) {
      size_t bytes = (size_t)(g_rank * 1000 + i * 997);
      unsigned char* out = Allocate(bytes);
      Fill(out, bytes, SeedOf(g_rank, 0, i));
      MPI_Send(out, (int)bytes, MPI_BYTE, 0, i, MPI_COMM_WORLD);
      free(out);
    }
  } else {
    for (int n = 0; n < kEach * (g_ranks - 1); ++n) {
      MPI_Status status;
      int count;
      MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
      MPI_Get_count(&status, MPI_BYTE, &count);
      unsigned char* in = Allocate((size_t)count);
      MPI_Recv(in, count, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
      ExpectNumber(count, status.MPI_SOURCE * 1000 + status.MPI_TAG * 997, "unexpected length");
      ExpectBytes(in, (size_t)count, SeedOf(status.MPI_SOURCE, 0, status.MPI_TAG), "unexpected");
      free(in);
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);  // what comes next must not be probed
}

// A column of a matrix: memory with holes, which must stay as it is.
static void Strided(void) {
  enum { kRows = 300, kColumns = 37 };
  static int matrix[kRows][kColumns], got[kRows][kColumns];
  int to = (g_rank + 1) % g_ranks, from = (g_rank + g_ranks - 1) % g_ranks;
  MPI_Datatype column;
  MPI_Type_vector(kRows, 1, kColumns, MPI_INT, &column);
  MPI_Type_commit(&column);
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      matrix[r][c] = g_rank * 1000000 + r * 100 + c;
      got[r][c] = -1;
    }
  }
  MPI_Sendrecv(&matrix[0][5], 1, column, to, kTag, &got[0][9], 1, column, from, kTag,
               MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      ExpectNumber(got[r][c], c == 9 ? from * 1000000 + r * 100 + 5 : -1, "strided");
    }
  }
  MPI_Type_free(&column);
}

int main(int argc, char** argv) {
  Begin(&argc, &argv);
  int rounds = argc > 1 ? atoi(argv[1]) : 3;
  size_t largest = argc > 2 ? (size_t)atol(argv[2]) : 1000000;
  unsigned char* out = Allocate(largest);
  unsigned char* in = Allocate(largest);
  for (int a = 0; a < g_ranks; ++a) {
    for (int b = a + 1; b < g_ranks; ++b) {
      if (g_rank == a || g_rank == b) {
        int peer = g_rank == a ? b : a;
        for (size_t s = 0; s < sizeof(kSizes) / sizeof(kSizes[0]); ++s) {
          if (kSizes[s] > largest) break;
          for (int round = 0; round < rounds; ++round) PingPong(peer, kSizes[s], round, out, in);
        }
        Window(peer, 16);
        Window(peer, 3000);
        Window(peer, 40000);
      }
    }
  }
  Unexpected();
  Strided();
  free(out);
  free(in);
  return End("ping_pong");
}
