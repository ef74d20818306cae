// Collectives, blocking and not, on the world and on parts of it, every element compared.
//   collectives LARGEST_COUNT
#include "check.h"

static const int kCounts[] = {1, 7, 1000, 40000, 300000};

static MPI_Comm g_comm;
static int g_me, g_size;

// Element `i` of what `rank` gives; small, so that sums of all ranks stay exact.
static int ValueOf(int rank, int i) { return ((rank + 1) * 7919 + i * 31) % 100003; }

static int* Numbers(size_t count) {
  int* numbers = Allocate(count * sizeof(int));
  for (size_t i = 0; i < count; ++i) numbers[i] = -1;
  return numbers;
}

static int* Mine(int count) {
  int* numbers = Numbers((size_t)count);
  for (int i = 0; i < count; ++i) numbers[i] = ValueOf(g_me, i);
  return numbers;
}

static int64_t SumOf(int ranks, int i) {
  int64_t sum = 0;
  for (int r = 0; r < ranks; ++r) sum += ValueOf(r, i);
  return sum;
}

static int ExclusiveOrOf(int i) {
  int value = 0;
  for (int r = 0; r < g_size; ++r) value ^= ValueOf(r, i);
  return value;
}

static int MaximumOf(int i) {
  int value = 0;
  for (int r = 0; r < g_size; ++r) value = ValueOf(r, i) > value ? ValueOf(r, i) : value;
  return value;
}

// An operation that does not commute: x maps to a*x + b, one after the other.
typedef struct {
  uint32_t a, b;
} Affine;

static void Compose(void* in, void* inout, int* count, MPI_Datatype* type) {
  (void)type;
  Affine *first = in, *second = inout;
  for (int i = 0; i < *count; ++i) {
    second[i].b += second[i].a * first[i].b;
    second[i].a *= first[i].a;
  }
}

static void Broadcasts(int count) {
  for (int root = 0; root < g_size; ++root) {
    for (int is_later = 0; is_later < 2; ++is_later) {
      int* numbers = g_me == root ? Mine(count) : Numbers((size_t)count);
      if (is_later) {
        MPI_Request request;
        MPI_Ibcast(numbers, count, MPI_INT, root, g_comm, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
      } else {
        MPI_Bcast(numbers, count, MPI_INT, root, g_comm);
      }
      for (int i = 0; i < count; ++i) ExpectNumber(numbers[i], ValueOf(root, i), "bcast");
      free(numbers);
    }
  }
}

// Of `ranks` parts, part r is what rank r gives.
static void ExpectParts(const int* all, int ranks, int count, const char* what) {
  for (int r = 0; r < ranks; ++r) {
    for (int i = 0; i < count; ++i) ExpectNumber(all[r * count + i], ValueOf(r, i), what);
  }
}

static void GathersAndScatters(int count) {
  int* mine = Mine(count);
  int* all = Numbers((size_t)count * (size_t)g_size);
  for (int root = 0; root < g_size; ++root) {
    MPI_Gather(mine, count, MPI_INT, all, count, MPI_INT, root, g_comm);
    if (g_me == root) ExpectParts(all, g_size, count, "gather");
    int* part = Numbers((size_t)count);
    MPI_Scatter(all, count, MPI_INT, part, count, MPI_INT, root, g_comm);
    for (int i = 0; i < count; ++i) ExpectNumber(part[i], ValueOf(g_me, i), "scatter");
    free(part);
    memset(all, 0xff, sizeof(int) * (size_t)count * (size_t)g_size);
  }
  MPI_Allgather(mine, count, MPI_INT, all, count, MPI_INT, g_comm);
  ExpectParts(all, g_size, count, "allgather");
  MPI_Request request;
  memset(all, 0xff, sizeof(int) * (size_t)count * (size_t)g_size);
  MPI_Iallgather(mine, count, MPI_INT, all, count, MPI_INT, g_comm, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  ExpectParts(all, g_size, count, "iallgather");
  free(mine);
  free(all);
}

// Rank r has count + r elements, in places with gaps between them.
static void OfUnequalLength(int count) {
  int *counts = Numbers((size_t)g_size), *places = Numbers((size_t)g_size), total = 0;
  for (int r = 0; r < g_size; ++r) {
    counts[r] = count + r;
    places[r] = total;
    total += counts[r] + 3;
  }
  int* mine = Mine(counts[g_me]);
  int* all = Numbers((size_t)total);
  MPI_Allgatherv(mine, counts[g_me], MPI_INT, all, counts, places, MPI_INT, g_comm);
  for (int r = 0; r < g_size; ++r) {
    for (int i = 0; i < counts[r] + 3; ++i) {
      ExpectNumber(all[places[r] + i], i < counts[r] ? ValueOf(r, i) : -1, "allgatherv");
    }
  }
  int* part = Numbers((size_t)counts[g_me]);
  MPI_Scatterv(all, counts, places, MPI_INT, part, counts[g_me], MPI_INT, g_size - 1, g_comm);
  for (int i = 0; i < counts[g_me]; ++i) ExpectNumber(part[i], ValueOf(g_me, i), "scatterv");
  int* gathered = Numbers((size_t)total);
  MPI_Gatherv(part, counts[g_me], MPI_INT, gathered, counts, places, MPI_INT, 0, g_comm);
  for (int i = 0; g_me == 0 && i < total; ++i) ExpectNumber(gathered[i], all[i], "gatherv");
  free(counts);
  free(places);
  free(mine);
  free(all);
  free(part);
  free(gathered);
}

// What rank `from` has for rank `to`.
static int Exchanged(int from, int to, int i) { return ValueOf(from * 17 + to, i); }

static void Exchanges(int count) {
  size_t all = (size_t)count * (size_t)g_size;
  int *out = Numbers(all), *in = Numbers(all);
  int *counts = Numbers((size_t)g_size), *places = Numbers((size_t)g_size);
  int* bytes = Numbers((size_t)g_size);
  MPI_Datatype* types = Allocate(sizeof(MPI_Datatype) * (size_t)g_size);
  for (int r = 0; r < g_size; ++r) {
    counts[r] = count;
    places[r] = (g_size - 1 - r) * count;
    bytes[r] = places[r] * (int)sizeof(int);
    types[r] = MPI_INT;
    for (int i = 0; i < count; ++i) out[r * count + i] = Exchanged(g_me, r, i);
  }
  for (int kind = 0; kind < 4; ++kind) {
    MPI_Request request = MPI_REQUEST_NULL;
    // The latter two turn the order around, and the second exchange turns it back.
    int is_turned = kind >= 2;
    memset(in, 0xff, all * sizeof(int));
    if (kind == 0) MPI_Alltoall(out, count, MPI_INT, in, count, MPI_INT, g_comm);
    if (kind == 1) MPI_Ialltoall(out, count, MPI_INT, in, count, MPI_INT, g_comm, &request);
    if (kind == 2) MPI_Alltoallv(out, counts, places, MPI_INT, in, counts, places, MPI_INT, g_comm);
    if (kind == 3) MPI_Alltoallw(out, counts, bytes, types, in, counts, bytes, types, g_comm);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int r = 0; r < g_size; ++r) {
      // Turned: rank r took the part for us from where its part for the mirrored rank lies.
      int place = is_turned ? places[r] : r * count;
      int part = is_turned ? g_size - 1 - g_me : g_me;
      for (int i = 0; i < count; ++i) {
        ExpectNumber(in[place + i], Exchanged(r, part, i), "alltoall");
      }
    }
  }
  free(out);
  free(in);
  free(counts);
  free(places);
  free(bytes);
  free(types);
}

static void Reductions(int count) {
  int *mine = Mine(count), *result = Numbers((size_t)count);
  int64_t* wide = Allocate(sizeof(int64_t) * (size_t)count);
  int64_t* sum = Allocate(sizeof(int64_t) * (size_t)count);
  double* exact = Allocate(sizeof(double) * (size_t)count);
  double* sums = Allocate(sizeof(double) * (size_t)count);
  MPI_Request request;
  for (int i = 0; i < count; ++i) exact[i] = wide[i] = mine[i];
  for (int root = 0; root < g_size; ++root) {
    MPI_Reduce(wide, sum, count, MPI_INT64_T, MPI_SUM, root, g_comm);
    for (int i = 0; g_me == root && i < count; ++i)
      ExpectNumber(sum[i], SumOf(g_size, i), "reduce");
  }
  MPI_Allreduce(exact, sums, count, MPI_DOUBLE, MPI_SUM, g_comm);
  for (int i = 0; i < count; ++i) {
    ExpectNumber((int64_t)sums[i], SumOf(g_size, i), "allreduce of doubles");
  }
  MPI_Iallreduce(mine, result, count, MPI_INT, MPI_BXOR, g_comm, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  for (int i = 0; i < count; ++i) ExpectNumber(result[i], ExclusiveOrOf(i), "iallreduce");
  MPI_Allreduce(MPI_IN_PLACE, mine, count, MPI_INT, MPI_MAX, g_comm);
  for (int i = 0; i < count; ++i) ExpectNumber(mine[i], MaximumOf(i), "allreduce in place");
  MPI_Scan(wide, sum, count, MPI_INT64_T, MPI_SUM, g_comm);
  for (int i = 0; i < count; ++i) ExpectNumber(sum[i], SumOf(g_me + 1, i), "scan");
  MPI_Exscan(wide, sum, count, MPI_INT64_T, MPI_SUM, g_comm);
  for (int i = 0; g_me > 0 && i < count; ++i) ExpectNumber(sum[i], SumOf(g_me, i), "exscan");
  free(mine);
  free(result);
  free(wide);
  free(sum);
  free(exact);
  free(sums);
}

static void ReduceScatters(int count) {
  size_t all = (size_t)count * (size_t)g_size;
  int64_t* out = Allocate(sizeof(int64_t) * all);
  int64_t* in = Allocate(sizeof(int64_t) * (size_t)count);
  int* counts = Numbers((size_t)g_size);
  for (size_t i = 0; i < all; ++i) out[i] = ValueOf(g_me, (int)i);
  for (int r = 0; r < g_size; ++r) counts[r] = count;
  MPI_Reduce_scatter_block(out, in, count, MPI_INT64_T, MPI_SUM, g_comm);
  for (int i = 0; i < count; ++i) {
    ExpectNumber(in[i], SumOf(g_size, g_me * count + i), "reduce_scatter_block");
  }
  MPI_Reduce_scatter(out, in, counts, MPI_INT64_T, MPI_SUM, g_comm);
  for (int i = 0; i < count; ++i) {
    ExpectNumber(in[i], SumOf(g_size, g_me * count + i), "reduce_scatter");
  }
  free(out);
  free(in);
  free(counts);
}

static void InOrder(int count) {
  Affine* mine = Allocate(sizeof(Affine) * (size_t)count);
  Affine* result = Allocate(sizeof(Affine) * (size_t)count);
  MPI_Datatype type;
  MPI_Op compose;
  MPI_Type_contiguous(2, MPI_UINT32_T, &type);
  MPI_Type_commit(&type);
  MPI_Op_create(Compose, 0, &compose);
  for (int i = 0; i < count; ++i) {
    mine[i] = (Affine){.a = (uint32_t)ValueOf(g_me, i) | 1, .b = (uint32_t)ValueOf(g_me, i + 1)};
  }
  MPI_Allreduce(mine, result, count, type, compose, g_comm);
  for (int i = 0; i < count; ++i) {
    Affine expected = {.a = 1, .b = 0};
    for (int r = 0; r < g_size; ++r) {
      uint32_t a = (uint32_t)ValueOf(r, i) | 1, b = (uint32_t)ValueOf(r, i + 1);
      expected.b = a * expected.b + b;
      expected.a *= a;
    }
    ExpectNumber(result[i].a, expected.a, "factors in order");
    ExpectNumber(result[i].b, expected.b, "terms in order");
  }
  MPI_Op_free(&compose);
  MPI_Type_free(&type);
  free(mine);
  free(result);
}

// Many at a time, ended in another order.
static void ManyAtOnce(void) {
  enum { kMany = 16 };
  MPI_Request requests[kMany + 1];
  int in[kMany], out[kMany];
  for (int n = 0; n < kMany; ++n) {
    in[n] = ValueOf(g_me, n);
    MPI_Iallreduce(&in[n], &out[n], 1, MPI_INT, MPI_SUM, g_comm, &requests[n]);
  }
  MPI_Ibarrier(g_comm, &requests[kMany]);
  for (int n = kMany; n >= 0; --n) MPI_Wait(&requests[n], MPI_STATUS_IGNORE);
  for (int n = 0; n < kMany; ++n) ExpectNumber(out[n], SumOf(g_size, n), "many at once");
}

static void AllOn(MPI_Comm comm, int largest) {
  g_comm = comm;
  MPI_Comm_rank(comm, &g_me);
  MPI_Comm_size(comm, &g_size);
  for (size_t c = 0; c < sizeof(kCounts) / sizeof(kCounts[0]); ++c) {
    int count = kCounts[c];
    if (count > largest) break;
    Broadcasts(count);
    GathersAndScatters(count);
    OfUnequalLength(count);
    Exchanges(count);
    Reductions(count);
    ReduceScatters(count);
    InOrder(count);
    MPI_Barrier(comm);
  }
  ManyAtOnce();
}

int main(int argc, char** argv) {
  Begin(&argc, &argv);
  int largest = argc > 1 ? atoi(argv[1]) : 1000;
  AllOn(MPI_COMM_WORLD, largest);
  MPI_Comm half;
  MPI_Comm_split(MPI_COMM_WORLD, g_rank % 2, -g_rank, &half);
  AllOn(half, largest < 1000 ? largest : 1000);
  MPI_Comm_free(&half);
  return End("collectives");
}
