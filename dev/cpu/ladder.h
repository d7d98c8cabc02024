// ladder.h: what the ladders share: checking, timing, the measured bounds, the printed table.
//   a rung    is one way to compute an op. Every rung is compared with a plain sum in double first,
//             its outputs filled with NaN before; a mismatch ends the program with exit code 1
//             before anything is timed
//   timing    takes turns: every rung once, then every rung again, so that other work on the
//             machine hurts all alike; the caches are emptied before each. Slow rungs run 3 times
//   rates     are computed from the best time, as the bounds are; the median stands beside it
//   bounds    the peak, or the bandwidth of the sweep that empties the caches: the best seen so
//             far, measured again between the rungs
//   argument  --check: small shapes, correctness only
// Only single precision: floatX is float.
#define GPT_NO_MAIN
#include "../../train_gpt.c"

_Static_assert(sizeof(floatX) == 4 && sizeof(real) == 4, "ladders are written for PRECISION=FP32");

enum { MAX_OUTPUTS = 4, MAX_RUNGS = 9, FEW = 3, MANY = 100, BUDGET_MS = 1500 };
static const double unit = 5.9604644775390625e-8; // half an ulp of 1

typedef struct { const char *name; void (*run)(void); int is_bf16; } Rung;
typedef struct {
    real *got;             // (count): what the rungs write
    const real *start;     // (count): what it holds before, where a rung adds to it; NULL: NaN
    double *want;          // (count)
    size_t count;
    double tolerance;      // of the largest difference, over the largest magnitude in want
} Output;
typedef struct {
    const char *op;
    char shape[80];
    double flops, bytes;   // bytes: the least that must move between memory and cores
    const double *bandwidth; // that bounds it, bytes/s; NULL: the op is bound by the peak
    Output outputs[MAX_OUTPUTS];
} Ladder;

static int is_check = 0;
static double peak_real, peak_bf16, read_bandwidth, copy_bandwidth, adamw_bandwidth;

// --- arrays ---
static real *ladder_nan(size_t count) {
    real *x = (real *)dev_alloc(count * sizeof(real), "an array of a ladder");
    for (size_t i = 0; i < count; i++) x[i] = NAN;
    return x;
}
static real *ladder_random(size_t count, uint64_t seed, double scale, double offset) {
    real *x = ladder_nan(count);
    for (size_t i = 0; i < count; i++)
        x[i] = (real)(offset + scale * (2 * hash_uniform(seed, i) - 1));
    return x;
}
static double *ladder_doubles(size_t count) {
    return (double *)dev_alloc(count * sizeof(double), "a reference");
}
// An output that rungs assign, or, with start, add to.
static Output ladder_output(size_t count, const real *start, double tolerance) {
    Output o = { ladder_nan(count), start, ladder_doubles(count), count, tolerance };
    return o;
}
static void ladder_free(Ladder *l) { // the outputs; inputs are the ladder's own
    for (Output *o = l->outputs; o < l->outputs + MAX_OUTPUTS && o->got; o++) {
        dev_free(o->got);
        dev_free(o->want);
    }
}

// --- bounds ---
enum { STREAM = 1 << 24 }; // reals: 64 MiB an array, twice the cache
static real *stream[4];
static real stream_sum;
static void stream_read(void) {
    real sum = 0;
    #pragma omp parallel for simd schedule(static) reduction(+:sum)
    for (size_t i = 0; i < STREAM; i++) sum += stream[0][i];
    stream_sum = sum;
}
static void stream_copy(void) { // negated, or it becomes memcpy, whose stores bypass the caches
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < STREAM; i++) stream[1][i] = -stream[0][i];
}
static void stream_adamw(void) { // its seven streams without its arithmetic
    real *w = stream[0], *m = stream[1], *v = stream[2], *g = stream[3];
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < STREAM; i++) {
        m[i] += g[i];
        v[i] += g[i];
        w[i] += m[i];
    }
}
// Runs a stream and keeps the best bandwidth seen.
static void stream_time(double *bandwidth, void (*run)(void), int arrays) {
    double start = now_ms();
    run();
    double bytes = arrays * (double)STREAM * sizeof(real);
    *bandwidth = fmax(*bandwidth, 1e3 * bytes / (now_ms() - start));
}
static void time_read(void) { stream_time(&read_bandwidth, stream_read, 1); }
static void time_copy(void) { stream_time(&copy_bandwidth, stream_copy, 2); }
static void time_adamw(void) { stream_time(&adamw_bandwidth, stream_adamw, 7); }
static void time_peaks(void) {
    matmul_bf16 = 0;
    peak_real = fmax(peak_real, dev_peak_flops());
    matmul_bf16 = 1;
    peak_bf16 = fmax(peak_bf16, dev_peak_flops());
    matmul_bf16 = 0;
}
static void ladder_start(int argc, char **argv) {
    check(argc == 1 || (argc == 2 && !strcmp(argv[1], "--check")), EXIT_USAGE,
          "usage: %s [--check]", argv[0]);
    is_check = argc == 2;
    ops_init(1, 1024, 768, 12, 0); // the longest sequence and the widest row of the ladders
    if (is_check) return;
    for (int i = 0; i < 4; i++) stream[i] = ladder_random(STREAM, (uint64_t)i, 1, 0);
    for (int i = 0; i < 20; i++) time_read(), time_copy(), time_adamw();
    for (int i = 0; i < 4; i++) time_peaks();
    printf("At the start: %d threads; peak %.0f GFLOP/s, %.0f with bf16; read %.1f, copy %.1f, "
           "AdamW-like sweep %.1f GB/s\n", omp_get_max_threads(), 1e-9 * peak_real,
           1e-9 * peak_bf16, 1e-9 * read_bandwidth, 1e-9 * copy_bandwidth, 1e-9 * adamw_bandwidth);
}

// --- one rung ---
static void rung_run(const Rung *rung) {
    matmul_bf16 = rung->is_bf16;
    rung->run();
    matmul_bf16 = 0;
}
static void outputs_reset(const Ladder *l) {
    for (const Output *o = l->outputs; o < l->outputs + MAX_OUTPUTS && o->got; o++)
        for (size_t i = 0; i < o->count; i++) o->got[i] = o->start ? o->start[i] : (real)NAN;
}
// Runs a rung once. Returns its largest error, over the tolerance; *error: the same as it is.
static double rung_check(const Ladder *l, const Rung *rung, double *error) {
    double worst = 0;
    *error = 0;
    outputs_reset(l);
    rung_run(rung);
    for (const Output *o = l->outputs; o < l->outputs + MAX_OUTPUTS && o->got; o++) {
        double most = 0, scale = 0, allowed = rung->is_bf16 ? 0x1p-7 : o->tolerance;
        for (size_t i = 0; i < o->count; i++) {
            double d = fabs((double)o->got[i] - o->want[i]);
            if (!(d <= most)) most = isnan(d) ? INFINITY : d; // a NaN never passes
            scale = fmax(scale, fabs(o->want[i]));
        }
        if (scale > 0) most /= scale;
        *error = fmax(*error, most);
        worst = fmax(worst, most / allowed);
    }
    return worst;
}
static int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

// --- the whole ladder: the references are in l->outputs[].want ---
static void ladder_climb(const Ladder *l, const Rung *rungs, size_t count) {
    static double ms[MAX_RUNGS][MANY];
    double error[MAX_RUNGS], spent[MAX_RUNGS] = { 0 };
    int times[MAX_RUNGS] = { 0 };
    assert(count <= MAX_RUNGS);
    for (size_t r = 0; r < count; r++) {
        double worst = rung_check(l, &rungs[r], &error[r]);
        check(worst <= 1, EXIT_INTERNAL, "%s, %s, rung %s: largest error %g is %.3g times what is "
              "allowed", l->op, l->shape, rungs[r].name, error[r], worst);
        if (is_check) printf("ok   %s %s, %s: %.2f of the tolerance\n", l->op, l->shape,
                             rungs[r].name, worst);
    }
    if (is_check) return;
    for (int turn = 0; turn < MANY; turn++) {
        if (turn < FEW) time_peaks();
        for (size_t r = 0; r < count; r++) {
            if (turn >= FEW && spent[r] > BUDGET_MS) continue;
            l->bandwidth == &adamw_bandwidth ? time_adamw() : time_copy(); // empties the caches
            double start = now_ms();
            rung_run(&rungs[r]);
            spent[r] += ms[r][times[r]++] = now_ms() - start;
        }
    }
    printf("\n**%s**, %s, bound by %s %.1f G%s/s\n\n| rung | error | median ms | best ms | GFLOP/s "
           "| GB/s | %% of bound |\n|---|---|---|---|---|---|---|\n", l->op, l->shape,
           l->bandwidth == &adamw_bandwidth ? "the sweep's" : l->bandwidth ? "copying at" :
           "the peak of", 1e-9 * (l->bandwidth ? *l->bandwidth : peak_real),
           l->bandwidth ? "B" : "FLOP");
    for (size_t r = 0; r < count; r++) {
        qsort(ms[r], (size_t)times[r], sizeof(double), by_value);
        double best = ms[r][0], peak = rungs[r].is_bf16 ? peak_bf16 : peak_real;
        double bound_s = l->bandwidth ? l->bytes / *l->bandwidth : l->flops / peak;
        printf("| %s | %.1e | %.3f | %.3f | %.1f | %.1f | %.0f |\n", rungs[r].name, error[r],
               ms[r][times[r] / 2], best, 1e-6 * l->flops / best, 1e-6 * l->bytes / best,
               1e5 * bound_s / best);
    }
    fflush(stdout);
}
