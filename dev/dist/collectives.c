// collectives.c: collective operations made of point-to-point messages, as textbooks draw them.
// Each is checked against MPI's own at awkward sizes, its bytes and rounds are counted against the
// formulas, and it is timed.
//   build   mpicc -O2 dev/dist/collectives.c -o collectives -lm
//   run     mpirun -np 4 ./collectives        checks, then times; with `check` no times
//   exit    1 after a difference
//   terms   p ranks, n elements, a round = messages that can travel at the same time;
//           a message of m bytes takes alpha + beta m seconds (Hockney 1994)
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, p, failures = 0;
static size_t sent, rounds; // elements sent by this rank, and rounds it took part in

// --- messages ---
static void exchange(const double *out, size_t out_count, int to, double *in, size_t in_count,
                     int from) { // either peer may be MPI_PROC_NULL; one round
    MPI_Sendrecv(out, (int)out_count, MPI_DOUBLE, to, 0, in, (int)in_count, MPI_DOUBLE, from, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (to != MPI_PROC_NULL) sent += out_count;
    rounds++;
}
static void add(double *x, const double *y, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] += y[i];
}
// Block r of n elements in p blocks, none longer by more than one than another; r modulo p.
static size_t block(size_t n, int r) { return n * (size_t)r / (size_t)p; }
static size_t block_start(size_t n, int r) { return block(n, ((r % p) + p) % p); }
static size_t block_count(size_t n, int r) {
    int k = ((r % p) + p) % p;
    return block(n, k + 1) - block(n, k);
}

// --- ring: p - 1 rounds each; every rank sends (p - 1) / p of n ---
// After it, block r of x is the sum on rank r.
static void ring_reduce_scatter(double *x, double *work, size_t n) {
    for (int step = 1; step < p; step++) {
        int out = rank - step, in = rank - step - 1;
        exchange(x + block_start(n, out), block_count(n, out), (rank + 1) % p, work,
                 block_count(n, in), (rank + p - 1) % p);
        add(x + block_start(n, in), work, block_count(n, in));
    }
}
static void ring_all_gather(double *x, double *work, size_t n) { // from block r on rank r
    (void)work;
    for (int step = 0; step < p - 1; step++) {
        int out = rank - step, in = rank - step - 1;
        exchange(x + block_start(n, out), block_count(n, out), (rank + 1) % p,
                 x + block_start(n, in), block_count(n, in), (rank + p - 1) % p);
    }
}
static void ring_all_reduce(double *x, double *work, size_t n) {
    ring_reduce_scatter(x, work, n);
    ring_all_gather(x, work, n);
}

// --- trees: log2 p rounds, up ---
static void tree_reduce(double *x, double *work, size_t n) { // the sum on rank 0
    for (int step = 1; step < p; step *= 2) {
        int is_sender = rank % (2 * step) == step, peer = is_sender ? rank - step : rank + step;
        if (is_sender) exchange(x, n, peer, NULL, 0, MPI_PROC_NULL);
        if (rank % (2 * step) == 0 && peer < p) {
            exchange(NULL, 0, MPI_PROC_NULL, work, n, peer);
            add(x, work, n);
        }
    }
}
static void tree_broadcast(double *x, double *work, size_t n) { // of rank 0's x
    int top = 1;
    (void)work;
    while (top < p) top *= 2;
    for (int step = top / 2; step > 0; step /= 2) {
        if (rank % (2 * step) == step) exchange(NULL, 0, MPI_PROC_NULL, x, n, rank - step);
        if (rank % (2 * step) == 0 && rank + step < p)
            exchange(x, n, rank + step, NULL, 0, MPI_PROC_NULL);
    }
}
static void tree_all_reduce(double *x, double *work, size_t n) {
    tree_reduce(x, work, n);
    tree_broadcast(x, work, n);
}
// All ranks exchange all of x with a partner, at distances 1, 2, 4: log2 p rounds, n each. Where p
// is no power of two the ranks above the largest one give theirs to a partner first.
static void doubling_all_reduce(double *x, double *work, size_t n) {
    int core = 1;
    while (2 * core <= p) core *= 2;
    if (rank >= core) exchange(x, n, rank - core, NULL, 0, MPI_PROC_NULL);
    if (rank < p - core) {
        exchange(NULL, 0, MPI_PROC_NULL, work, n, rank + core);
        add(x, work, n);
    }
    for (int step = 1; step < core && rank < core; step *= 2) {
        exchange(x, n, rank ^ step, work, n, rank ^ step);
        add(x, work, n); // a + b = b + a: both partners get the same bits
    }
    if (rank < p - core) exchange(x, n, rank + core, NULL, 0, MPI_PROC_NULL);
    if (rank >= core) exchange(NULL, 0, MPI_PROC_NULL, x, n, rank - core);
}
// --- parameter server: rank 0 takes from all and gives to all; its link carries 2 (p - 1) n ---
static void server_all_reduce(double *x, double *work, size_t n) {
    for (int r = 1; r < p; r++) {
        if (rank == r) exchange(x, n, 0, NULL, 0, MPI_PROC_NULL);
        if (rank == 0) {
            exchange(NULL, 0, MPI_PROC_NULL, work, n, r);
            add(x, work, n);
        }
    }
    for (int r = 1; r < p; r++) {
        if (rank == 0) exchange(x, n, r, NULL, 0, MPI_PROC_NULL);
        if (rank == r) exchange(NULL, 0, MPI_PROC_NULL, x, n, 0);
    }
}
// --- straight: everybody to everybody at once; what train_gpt.c does, since the owner of a block
// then chooses the order in which it adds ---
static void direct_reduce_scatter(double *x, double *work, size_t n) {
    for (int d = 1; d < p; d++)
        exchange(x + block_start(n, rank + d), block_count(n, rank + d), (rank + d) % p,
                 work + (size_t)(d - 1) * block_count(n, rank), block_count(n, rank),
                 (rank + p - d) % p);
    for (int d = 1; d < p; d++)
        add(x + block_start(n, rank), work + (size_t)(d - 1) * block_count(n, rank),
            block_count(n, rank));
    if (p > 1) rounds -= (size_t)(p - 2); // they do not wait for each other
}

// --- the list: what each does, which part of x is defined after it, and what it costs ---
enum { ALL, OWN_BLOCK, ON_ROOT };
enum { SUM, GATHER, COPY };
typedef struct {
    const char *name;
    void (*run)(double *x, double *work, size_t n);
    int what, where;
} Collective;
static const Collective list[] = {
    { "ring all-reduce", ring_all_reduce, SUM, ALL },
    { "tree all-reduce", tree_all_reduce, SUM, ALL },
    { "doubling all-reduce", doubling_all_reduce, SUM, ALL },
    { "server all-reduce", server_all_reduce, SUM, ALL },
    { "tree reduce", tree_reduce, SUM, ON_ROOT },
    { "tree broadcast", tree_broadcast, COPY, ALL },
    { "ring reduce-scatter", ring_reduce_scatter, SUM, OWN_BLOCK },
    { "direct reduce-scatter", direct_reduce_scatter, SUM, OWN_BLOCK },
    { "ring all-gather", ring_all_gather, GATHER, ALL },
};
enum { COUNT = sizeof list / sizeof *list, ALL_REDUCES = 4 };

static int log2_up(int v) {
    int k = 0;
    while (1 << k < v) k++;
    return k;
}
// What the formulas say: elements sent by the rank that sends most, and rounds of the busiest.
static void formula(int k, size_t n, double *elements, double *steps) {
    double share = (double)(p - 1) / p * (double)n, depth = log2_up(p), all = (double)n;
    int is_power = (p & (p - 1)) == 0;
    const double sends[COUNT] = { 2 * share, depth * all, depth * all, (p - 1) * all,
                                  p > 1 ? all : 0, depth * all, share, share, share };
    const double rounds_of[COUNT] = { 2.0 * (p - 1), 2 * depth, is_power ? depth : depth + 1,
                                      2.0 * (p - 1), depth, depth, p - 1, p > 1, p - 1 };
    *elements = sends[k];
    *steps = rounds_of[k];
}

// --- checks ---
static double value(int r, size_t i) { return sin(1.0 + (double)i * 0.7 + r * 1.3); }
static void check_one(int k, size_t n) {
    const Collective *c = &list[k];
    double *x = malloc((n + 1) * sizeof *x), *want = malloc((n + 1) * sizeof *x);
    double *work = malloc((n + (size_t)p) * sizeof *x), worst = 0;
    int *counts = malloc((size_t)p * sizeof *counts), *starts = malloc((size_t)p * sizeof *starts);
    for (int r = 0; r < p; r++) {
        counts[r] = (int)block_count(n, r);
        starts[r] = (int)block_start(n, r);
    }
    for (size_t i = 0; i < n; i++) x[i] = value(rank, i);
    if (c->what == SUM) MPI_Allreduce(x, want, (int)n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    memcpy(c->what == SUM ? work : want, x, n * sizeof *x);
    if (c->what == COPY) MPI_Bcast(want, (int)n, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    if (c->what == GATHER)
        MPI_Allgatherv(x + starts[rank], counts[rank], MPI_DOUBLE, want, counts, starts, MPI_DOUBLE,
                       MPI_COMM_WORLD);
    sent = rounds = 0;
    x[n] = 77; // must not be touched
    c->run(x, work, n);
    size_t lo = c->where == OWN_BLOCK ? block_start(n, rank) : 0;
    size_t hi = c->where == OWN_BLOCK ? lo + block_count(n, rank) : n;
    if (c->where == ON_ROOT && rank > 0) hi = 0;
    for (size_t i = lo; i < hi; i++) worst = fmax(worst, fabs(x[i] - want[i]));
    if (x[n] != 77) worst = INFINITY;
    if (c->what == SUM && c->where == ALL) { // every rank the same bits
        memcpy(want, x, n * sizeof *x);
        MPI_Bcast(want, (int)n, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (memcmp(want, x, n * sizeof *x)) worst = INFINITY;
    }
    double mine[3] = { worst, (double)sent, (double)rounds }, most[3], elements, steps;
    MPI_Allreduce(mine, most, 3, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    formula(k, n, &elements, &steps);
    // Where p does not divide n a block is up to one element longer, in each of 2 (p - 1) rounds.
    int is_even = n % (size_t)p == 0;
    int is_good = most[0] <= 1e-12 * p && fabs(most[1] - elements) <= (is_even ? 0 : 2 * p) &&
                  most[2] == steps;
    if (!is_good && rank == 0)
        printf("FAIL %s, p %d, n %zu: off by %g; sends %g, formula %g; rounds %g, formula %g\n",
               c->name, p, n, most[0], most[1], elements, most[2], steps);
    failures += !is_good;
    free(x); free(want); free(work); free(counts); free(starts);
}

// The textbook's comparison: 64 workers, 1 GB, links of W = 25 GB/s, alpha = 10 us.
static void check_model(void) {
    double workers = 64, bytes = 1e9, W = 25e9, alpha = 10e-6;
    double server = 2 * workers * bytes / W, ring = 2 * bytes / W; // (p - 1) / p taken for 1
    failures += fabs(server - 5.12) > 1e-9 || fabs(ring - 0.08) > 1e-9 ||
                fabs(alpha * workers * W - 16e6) > 1; // below it latency rules the ring
}
// --- times ---
static double seconds(int k, size_t n, double *x, double *work) { // the best of some
    double best = INFINITY, slowest;
    for (int i = 0; i < 40; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        if (k < COUNT) list[k].run(x, work, n);
        else MPI_Allreduce(x, work, (int)n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        double s = MPI_Wtime() - start;
        MPI_Allreduce(&s, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        best = fmin(best, slowest);
    }
    return best;
}
// alpha and beta from ring all-reduces: time = rounds alpha + 2 (p - 1) / p n beta, least squares
// over the sizes, each weighed by 1 / time so that small ones count.
static void times(void) {
    enum { SIZES = 6, LARGEST = 1 << 20 };
    double *x = calloc(LARGEST, sizeof *x), *work = calloc(LARGEST, sizeof *work);
    double aa = 0, ab = 0, bb = 0, at = 0, bt = 0, elements, steps, best_s[SIZES][COUNT + 1];
    for (int s = 0; s < SIZES; s++) for (int k = 0; k <= COUNT; k++) {
        size_t n = (size_t)LARGEST >> 4 * (SIZES - 1 - s);
        double t = best_s[s][k] = seconds(k, n, x, work), w = 1 / (t * t);
        if (k > 0) continue;
        formula(k, n, &elements, &steps);
        double a = steps, b = 8 * elements;
        aa += w * a * a; ab += w * a * b; bb += w * b * b; at += w * a * t; bt += w * b * t;
    }
    double det = aa * bb - ab * ab, alpha = (at * bb - bt * ab) / det;
    double beta = (aa * bt - ab * at) / det;
    if (rank == 0) {
        double depth = log2_up(p), share = 2.0 * (p - 1) / p; // equal for two ranks
        printf("p %d: alpha %.3g us, beta %.3g ns/byte (%.3g GB/s)\n", p, 1e6 * alpha, 1e9 * beta,
               1e-9 / beta);
        if (p > 2) printf("the ring is faster than doubling from %.3g bytes on\n",
                          (2 * (p - 1) - depth) * alpha / (beta * (depth - share)));
        printf("%-24s", "us, by elements");
        for (int s = 0; s < SIZES; s++) printf("%10d", LARGEST >> 4 * (SIZES - 1 - s));
        for (int k = 0; k <= COUNT; k++) {
            printf("\n%-24s", k < COUNT ? list[k].name : "MPI_Allreduce");
            for (int s = 0; s < SIZES; s++) printf("%10.1f", 1e6 * best_s[s][k]);
        }
        printf("\n");
    }
    free(x);
    free(work);
}
int main(int argc, char **argv) {
    const size_t sizes[] = { 0, 1, 2, 3, 5, 12, 64, 1000, 4097 };
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p);
    for (int k = 0; k < COUNT; k++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) check_one(k, sizes[s]);
    check_model();
    if (rank == 0) printf("p %d: %d collectives at %zu sizes, %d failed\n", p, COUNT,
                          sizeof sizes / sizeof *sizes, failures);
    if (failures == 0 && p > 1 && !(argc > 1 && !strcmp(argv[1], "check"))) times();
    MPI_Finalize();
    return failures > 0;
}
