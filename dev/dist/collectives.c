// collectives.c: collective operations made of point-to-point messages, as textbooks draw them.
// Each is checked against MPI's own at awkward sizes, its elements and rounds are counted against
// the formulas, it is timed, and the fastest all-reduce for a size is chosen by the formulas.
//   build   mpicc -O2 dev/dist/collectives.c -o collectives -lm
//   run     mpirun -np 4 ./collectives        checks, then times; with `check` no times;
//           the number of ranks a node may follow (2): mpirun -np 6 ./collectives check 3
//   exit    1 after a difference; a bad choice is only printed
//   terms   p ranks, n elements, a round = messages that can travel at the same time;
//           a message of m bytes takes alpha + beta m seconds (Hockney 1994), and m additions
//           gamma m (Rabenseifner 2004)
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The ranks first, first + step, first + 2 step, ...: count of them, this one is number me. Every
// collective below runs on such a line, so that a torus and nodes can be put together of them.
enum { NEAR, FAR }; // links: along a torus row or within a node; along a column or between nodes
typedef struct { int first, step, count, me, link; } Line;
static int wrap(Line l, int i) { return (i % l.count + l.count) % l.count; }

static int rank, p, node_ranks = 2, failures = 0;
// Counted on this rank: elements sent on each kind of link, rounds it took part in, the elements
// that pass its link in these rounds, in or out (both at once count once), and additions.
static size_t sent[2], rounds, path, adds;

// --- messages ---
enum { NOBODY = 1 << 30 };
static int rank_of(Line l, int i) {
    return i == NOBODY ? MPI_PROC_NULL : l.first + l.step * wrap(l, i);
}
static void exchange(Line l, const double *out, size_t out_count, int to, double *in,
                     size_t in_count, int from) { // one round; to, from: NOBODY, or modulo l.count
    MPI_Sendrecv(out, (int)out_count, MPI_DOUBLE, rank_of(l, to), 0, in, (int)in_count, MPI_DOUBLE,
                 rank_of(l, from), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    sent[l.link] += out_count;
    path += out_count > in_count ? out_count : in_count;
    rounds++;
}
static void send(Line l, const double *x, size_t n, int to) {
    exchange(l, x, n, to, NULL, 0, NOBODY);
}
static void receive(Line l, double *x, size_t n, int from) {
    exchange(l, NULL, 0, NOBODY, x, n, from);
}
static void add(double *x, const double *y, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] += y[i];
    adds += n;
}
// Block i, modulo l.count, of n elements in l.count blocks, whose lengths differ by one at most.
static size_t block_start(Line l, size_t n, int i) {
    return n * (size_t)wrap(l, i) / (size_t)l.count;
}
static size_t block_count(Line l, size_t n, int i) {
    return n * (size_t)(wrap(l, i) + 1) / (size_t)l.count - block_start(l, n, i);
}

// --- ring: p - 1 rounds each; every rank sends (p - 1) / p of n ---
static void ring_reduce_scatter(Line l, double *x, double *work, size_t n) { // to block r on rank r
    for (int step = 1; step < l.count; step++) {
        int out = l.me - step, in = l.me - step - 1;
        exchange(l, x + block_start(l, n, out), block_count(l, n, out), l.me + 1, work,
                 block_count(l, n, in), l.me - 1);
        add(x + block_start(l, n, in), work, block_count(l, n, in));
    }
}
static void ring_all_gather(Line l, double *x, double *work, size_t n) { // from block r on rank r
    (void)work;
    for (int step = 0; step < l.count - 1; step++) {
        int out = l.me - step, in = l.me - step - 1;
        exchange(l, x + block_start(l, n, out), block_count(l, n, out), l.me + 1,
                 x + block_start(l, n, in), block_count(l, n, in), l.me - 1);
    }
}
static void ring_all_reduce(Line l, double *x, double *work, size_t n) {
    ring_reduce_scatter(l, x, work, n);
    ring_all_gather(l, x, work, n);
}

// --- trees: log2 p rounds, up ---
static int log2_up(int v) {
    int k = 0;
    while (1 << k < v) k++;
    return k;
}
static void tree_reduce(Line l, double *x, double *work, size_t n) { // the sum on the first rank
    for (int step = 1; step < l.count; step *= 2) {
        if (l.me % (2 * step) == step) send(l, x, n, l.me - step);
        if (l.me % (2 * step) == 0 && l.me + step < l.count) {
            receive(l, work, n, l.me + step);
            add(x, work, n);
        }
    }
}
static void tree_broadcast(Line l, double *x, double *work, size_t n) { // of the first rank's x
    (void)work;
    for (int step = (1 << log2_up(l.count)) / 2; step > 0; step /= 2) {
        if (l.me % (2 * step) == step) receive(l, x, n, l.me - step);
        if (l.me % (2 * step) == 0 && l.me + step < l.count) send(l, x, n, l.me + step);
    }
}
static void tree_all_reduce(Line l, double *x, double *work, size_t n) {
    tree_reduce(l, x, work, n);
    tree_broadcast(l, x, work, n);
}
// All ranks exchange all of x with a partner, at distances 1, 2, 4: log2 p rounds, n each. Where p
// is no power of two the ranks above the largest one give theirs to a partner first.
static void doubling_all_reduce(Line l, double *x, double *work, size_t n) {
    int core = 1;
    while (2 * core <= l.count) core *= 2;
    if (l.me >= core) send(l, x, n, l.me - core);
    if (l.me < l.count - core) {
        receive(l, work, n, l.me + core);
        add(x, work, n);
    }
    for (int step = 1; step < core && l.me < core; step *= 2) {
        exchange(l, x, n, l.me ^ step, work, n, l.me ^ step);
        add(x, work, n); // a + b = b + a: both partners get the same bits
    }
    if (l.me < l.count - core) send(l, x, n, l.me + core);
    if (l.me >= core) receive(l, x, n, l.me - core);
}
// --- parameter server: rank 0 takes from all and gives to all; its link carries 2 (p - 1) n ---
static void server_all_reduce(Line l, double *x, double *work, size_t n) {
    for (int r = 1; r < l.count; r++) {
        if (l.me == r) send(l, x, n, 0);
        if (l.me == 0) {
            receive(l, work, n, r);
            add(x, work, n);
        }
    }
    for (int r = 1; r < l.count; r++) {
        if (l.me == 0) send(l, x, n, r);
        if (l.me == r) receive(l, x, n, 0);
    }
}
// --- straight: everybody to everybody at once; what train_gpt.c does, since the owner of a block
// then chooses the order in which it adds ---
static void direct_reduce_scatter(Line l, double *x, double *work, size_t n) {
    size_t own = block_count(l, n, l.me);
    for (int d = 1; d < l.count; d++)
        exchange(l, x + block_start(l, n, l.me + d), block_count(l, n, l.me + d),
                 l.me + d, work + (size_t)(d - 1) * own, own, l.me - d);
    for (int d = 1; d < l.count; d++)
        add(x + block_start(l, n, l.me), work + (size_t)(d - 1) * own, own);
    if (l.count > 1) rounds -= (size_t)(l.count - 2); // they do not wait for each other
}
// --- 2-D torus: the ranks as rows x columns, row by row, as nearly square as p allows; a prime p
// is one row, a ring. Every rank sends as much as in a ring, 2 (p - 1) / p of n, but in
// 2 (columns + rows - 2) rounds; only 1 / columns of n goes along the columns (Mikami 2018) ---
static int torus_rows(void) { // the largest divisor of p that is no larger than its root
    int rows = 1;
    for (int r = 1; r * r <= p; r++) if (p % r == 0) rows = r;
    return rows;
}
static void torus_all_reduce(Line all, double *x, double *work, size_t n) {
    int rows = torus_rows(), columns = p / rows;
    Line row = { all.me / columns * columns, 1, columns, all.me % columns, NEAR };
    Line column = { all.me % columns, columns, rows, all.me / columns, FAR };
    ring_reduce_scatter(row, x, work, n);
    ring_all_reduce(column, x + block_start(row, n, row.me), work, block_count(row, n, row.me));
    ring_all_gather(row, x, work, n);
}
// --- hierarchical: a sum on the leader of each node, a ring of the leaders, and back. A node is
// node_ranks ranks, the last may be fewer; here all are on one machine and only called so ---
static int num_nodes(void) { return (p + node_ranks - 1) / node_ranks; }
static void node_all_reduce(Line all, double *x, double *work, size_t n) {
    int first = all.me / node_ranks * node_ranks;
    int count = p - first < node_ranks ? p - first : node_ranks;
    Line node = { first, 1, count, all.me - first, NEAR };
    Line leaders = { 0, node_ranks, num_nodes(), all.me / node_ranks, FAR };
    tree_reduce(node, x, work, n);
    if (node.me == 0) ring_all_reduce(leaders, x, work, n);
    tree_broadcast(node, x, work, n);
}

// --- the list: what each does, which part of x is defined after it, and what it costs ---
enum { ALL, OWN_BLOCK, ON_ROOT };
enum { SUM, GATHER, COPY };
typedef struct {
    const char *name;
    void (*run)(Line l, double *x, double *work, size_t n);
    int what, where;
} Collective;
static const Collective list[] = {
    { "ring all-reduce", ring_all_reduce, SUM, ALL },
    { "tree all-reduce", tree_all_reduce, SUM, ALL },
    { "doubling all-reduce", doubling_all_reduce, SUM, ALL },
    { "server all-reduce", server_all_reduce, SUM, ALL },
    { "torus all-reduce", torus_all_reduce, SUM, ALL },
    { "hierarchical all-reduce", node_all_reduce, SUM, ALL },
    { "tree reduce", tree_reduce, SUM, ON_ROOT },
    { "tree broadcast", tree_broadcast, COPY, ALL },
    { "ring reduce-scatter", ring_reduce_scatter, SUM, OWN_BLOCK },
    { "direct reduce-scatter", direct_reduce_scatter, SUM, OWN_BLOCK },
    { "ring all-gather", ring_all_gather, GATHER, ALL },
};
enum { COUNT = sizeof list / sizeof *list, RING = 0, ALL_REDUCES = 6 };

// What the formulas say: the busiest rank's rounds, elements that pass its link and additions, and
// the elements that all ranks together send on each kind of link. Where the path is 1 / p of the
// total, as in a ring and a torus, every rank sends the same: none can send more, so none less.
typedef struct { double rounds, path, adds, total[2]; } Cost;
static Cost formula(int k, size_t n) {
    double all = (double)n, others = p - 1, share = others / p * all, depth = log2_up(p);
    double rows = torus_rows(), columns = p / rows, nodes = num_nodes();
    double up = log2_up(p < node_ranks ? p : node_ranks), part = up + (nodes - 1) / nodes;
    int is_power = (p & (p - 1)) == 0, core = is_power ? p : 1 << (log2_up(p) - 1);
    const Cost costs[COUNT] = { // in the order of the list
        { 2 * others, 2 * share, share, { 2 * others * all, 0 } },
        { 2 * depth, 2 * depth * all, depth * all, { 2 * others * all, 0 } },
        { depth + !is_power, (depth + !is_power) * all, depth * all,
          { (core * log2_up(core) + 2 * (p - core)) * all, 0 } },
        { 2 * others, 2 * others * all, others * all, { 2 * others * all, 0 } },
        { 2 * (columns + rows - 2), 2 * share, share,
          { 2 * (columns - 1) * rows * all, 2 * (rows - 1) * all } },
        { 2 * (up + nodes - 1), 2 * part * all, part * all,
          { 2 * (p - nodes) * all, 2 * (nodes - 1) * all } },
        { depth, depth * all, depth * all, { others * all, 0 } },
        { depth, depth * all, 0, { others * all, 0 } },
        { others, share, share, { others * all, 0 } },
        { p > 1, share, share, { others * all, 0 } },
        { others, share, 0, { others * all, 0 } },
    };
    return costs[k];
}

// --- checks ---
static double value(int r, size_t i) { return sin(1.0 + (double)i * 0.7 + r * 1.3); }
static void check_one(int k, size_t n) {
    const Collective *c = &list[k];
    Line all = { 0, 1, p, rank, NEAR };
    double *x = malloc((n + 1) * sizeof *x), *want = malloc((n + 1) * sizeof *x);
    double *work = malloc((n + (size_t)p) * sizeof *x), worst = 0;
    int *counts = malloc((size_t)p * sizeof *counts), *starts = malloc((size_t)p * sizeof *starts);
    for (int r = 0; r < p; r++) {
        counts[r] = (int)block_count(all, n, r);
        starts[r] = (int)block_start(all, n, r);
    }
    for (size_t i = 0; i < n; i++) x[i] = want[i] = value(rank, i);
    for (size_t i = 0; i < n + (size_t)p; i++) work[i] = NAN; // so that no result can be old
    if (c->what == SUM) MPI_Allreduce(x, want, (int)n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (c->what == COPY) MPI_Bcast(want, (int)n, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    if (c->what == GATHER)
        MPI_Allgatherv(x + starts[rank], counts[rank], MPI_DOUBLE, want, counts, starts, MPI_DOUBLE,
                       MPI_COMM_WORLD);
    sent[NEAR] = sent[FAR] = rounds = path = adds = 0;
    x[n] = 77; // must not be touched
    c->run(all, x, work, n);
    size_t lo = c->where == OWN_BLOCK ? block_start(all, n, rank) : 0;
    size_t hi = c->where == OWN_BLOCK ? lo + block_count(all, n, rank) : n;
    if (c->where == ON_ROOT && rank > 0) hi = 0;
    for (size_t i = lo; i < hi; i++) {
        double d = fabs(x[i] - want[i]);
        worst = d >= 0 ? fmax(worst, d) : INFINITY; // NaN is a difference
    }
    if (x[n] != 77) worst = INFINITY;
    if (c->what == SUM && c->where == ALL) { // every rank the same bits
        memcpy(want, x, n * sizeof *x);
        MPI_Bcast(want, (int)n, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (memcmp(want, x, n * sizeof *x)) worst = INFINITY;
    }
    double mine[] = { worst, (double)rounds, (double)path, (double)adds };
    double most[4], own[] = { (double)sent[NEAR], (double)sent[FAR] }, total[2];
    MPI_Allreduce(mine, most, 4, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(own, total, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    Cost f = formula(k, n);
    // Where the blocks differ in length, one is up to an element longer in each of 2 (p - 1)
    // rounds; the totals are exact all the same.
    int is_even = n % (size_t)p == 0 && n % (size_t)num_nodes() == 0;
    double margin = is_even ? 1e-9 * f.path : 2 * p;
    int is_good = most[0] <= 1e-12 * p && most[1] == f.rounds && fabs(most[2] - f.path) <= margin &&
                  fabs(most[3] - f.adds) <= margin && total[NEAR] == f.total[NEAR] &&
                  total[FAR] == f.total[FAR];
    if (!is_good && rank == 0)
        printf("FAIL %s, p %d, n %zu: off by %g; counted, formula: rounds %g, %g; path %g, %g; "
               "additions %g, %g; near %g, %g; far %g, %g\n", c->name, p, n, most[0], most[1],
               f.rounds, most[2], f.path, most[3], f.adds, total[NEAR], f.total[NEAR], total[FAR],
               f.total[FAR]);
    failures += !is_good;
    free(x); free(want); free(work); free(counts); free(starts);
}

// The textbook's comparison: 64 workers, 1 GB, links of W = 25 GB/s, alpha = 10 us.
static void check_model(void) {
    double workers = 64, bytes = 1e9, W = 25e9, alpha = 10e-6;
    double server = 2 * workers * bytes / W, ring = 2 * bytes / W; // (p - 1) / p taken for 1
    failures += fabs(server - 5.12) > 1e-9 || fabs(ring - 0.08) > 1e-9 ||
                fabs(alpha * workers * W - 16e6) > 1; // below it latency rules the ring
    failures += (p == 4 || p == 6) && torus_rows() != 2; // the formulas would agree with a ring
}
// --- times ---
// Seconds of each collective, and of MPI's, at n elements: the best of 40, of the slowest rank. Not
// in turns: what ran before leaves the cache so that ring and torus, the same for p = 2, differ.
static void measure(size_t n, double *x, double *work, double best_s[COUNT + 1]) {
    Line all = { 0, 1, p, rank, NEAR };
    for (int k = 0; k <= COUNT; k++) for (int i = 0; i < 40; i++) {
        double slowest;
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        if (k < COUNT) list[k].run(all, x, work, n);
        else MPI_Allreduce(x, work, (int)n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        double s = MPI_Wtime() - start;
        MPI_Allreduce(&s, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        best_s[k] = i > 0 ? fmin(best_s[k], slowest) : slowest;
    }
}
enum { SIZES = 6, LARGEST = 1 << 20 };
static size_t size_of(int s) { return (size_t)LARGEST >> 4 * (SIZES - 1 - s); }
typedef struct { double alpha, beta, gamma; } Machine;
// gamma from additions, of 65536 elements; alpha and beta from what is left of the ring's times,
// least squares over the sizes, each weighed by 1 / time so that small ones count.
static Machine fit(double best_s[SIZES][COUNT + 1], double *x, const double *y) {
    double aa = 0, ab = 0, bb = 0, at = 0, bt = 0, start = MPI_Wtime();
    for (int i = 0; i < 100; i++) add(x, y, 65536);
    Machine m = { .gamma = (MPI_Wtime() - start) / 100 / 65536 };
    for (int s = 0; s < SIZES; s++) {
        Cost f = formula(RING, size_of(s));
        double a = f.rounds, b = 8 * f.path, t = best_s[s][RING], w = 1 / (t * t);
        t -= m.gamma * f.adds;
        aa += w * a * a; ab += w * a * b; bb += w * b * b; at += w * a * t; bt += w * b * t;
    }
    double det = aa * bb - ab * ab;
    m.alpha = (at * bb - bt * ab) / det;
    m.beta = (aa * bt - ab * at) / det;
    return m;
}
// The all-reduce that should be the fastest by the formulas, at each size, beside the one that was.
// Where other work runs or ranks share cores the bound may be missed: a report, no failure.
static void choose(double best_s[SIZES][COUNT + 1], Machine m) {
    int misses = 0;
    printf("%10s  %-24s%13s%13s  %-24s%8s\n", "elements", "chosen by the formulas", "predicted us",
           "measured us", "fastest measured", "slower");
    for (int s = 0; s < SIZES; s++) {
        int chosen = 0, fastest = 0;
        double predicted = INFINITY;
        for (int k = 0; k < ALL_REDUCES; k++) {
            Cost f = formula(k, size_of(s));
            double t = m.alpha * f.rounds + m.beta * 8 * f.path + m.gamma * f.adds;
            if (t < predicted) { chosen = k; predicted = t; }
            if (best_s[s][k] < best_s[s][fastest]) fastest = k;
        }
        double ratio = best_s[s][chosen] / best_s[s][fastest];
        misses += ratio > 1.2;
        printf("%10zu  %-24s%13.1f%13.1f  %-24s%7.2fx%s\n", size_of(s), list[chosen].name,
               1e6 * predicted, 1e6 * best_s[s][chosen], list[fastest].name, ratio,
               ratio > 1.2 ? "  MISSED" : "");
    }
    printf("p %d: the choice is within 1.2 times the fastest at %d of %d sizes\n", p,
           SIZES - misses, SIZES);
}
static void times(void) {
    static double x[LARGEST], work[LARGEST];
    double best_s[SIZES][COUNT + 1];
    for (int s = 0; s < SIZES; s++) measure(size_of(s), x, work, best_s[s]);
    Machine m = fit(best_s, x, work);
    if (rank == 0) {
        printf("p %d: alpha %.3g us, beta %.3g ns/byte (%.3g GB/s), gamma %.3g ns\n", p,
               1e6 * m.alpha, 1e9 * m.beta, 1e-9 / m.beta, 1e9 * m.gamma);
        printf("%-24s", "us, by elements");
        for (int s = 0; s < SIZES; s++) printf("%10zu", size_of(s));
        for (int k = 0; k <= COUNT; k++) {
            printf("\n%-24s", k < COUNT ? list[k].name : "MPI_Allreduce");
            for (int s = 0; s < SIZES; s++) printf("%10.1f", 1e6 * best_s[s][k]);
        }
        printf("\n");
        choose(best_s, m);
    }
}
int main(int argc, char **argv) {
    const size_t sizes[] = { 0, 1, 2, 3, 5, 12, 64, 1000, 4097 };
    if (argc > 2) node_ranks = atoi(argv[2]);
    if (node_ranks < 1) {
        fprintf(stderr, "error: nodes of %s ranks; give 1 or more\n", argv[2]);
        return 2;
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p);
    for (int k = 0; k < COUNT; k++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) check_one(k, sizes[s]);
    check_model();
    if (rank == 0)
        printf("p %d: %d collectives at %zu sizes, torus %d x %d, nodes of %d: %d failed\n", p,
               COUNT, sizeof sizes / sizeof *sizes, torus_rows(), p / torus_rows(), node_ranks,
               failures);
    if (failures == 0 && p > 1 && !(argc > 1 && !strcmp(argv[1], "check"))) times();
    MPI_Finalize();
    return failures > 0;
}
