// ladder.h: what the CUDA ladders share: both programs, arrays for both, check, clock, table.
//   a rung    is one way to compute an op. Every rung is compared with the op of train_gpt.c in
//             fp64 first, its outputs filled with NaN before, or with what an op adds to; after a
//             mismatch nothing is timed, and the program ends with exit code 1
//   error     the largest difference, over the largest magnitude; beside it, as a part of what is
//             allowed, which the file derives
//   timing    rungs take turns, with an empty L2 cache; the median counts. Emptying it takes the
//             GPU longer than the launch takes the host, so launches are not in the times
//   bound     the longer of bytes / bandwidth of a copy, measured here, and FLOPs / peak of the
//             data sheet. Bytes and FLOPs are the least the op needs, so a rung that moves more has
//             a lower rate
//   emulated  (dev/emu) nothing is timed. Counted instead, for 1000 elements: __syncthreads of a
//             block; operations of a warp (shuffles, ballots, mma, ldmatrix); and in all: launches,
//             and bank conflicts of ldmatrix
//   shapes    an awkward one, checked only; the nice one of the emulator, or that of a GPU
//   argument  --small: the awkward shape alone, for the race build
#pragma once
#include "both.h"
#include "cold.h"
#ifdef EMULATED
enum { IS_EMULATED = 1 };
#else
enum { IS_EMULATED = 0 };
namespace emu { static struct { long launches, barriers, warp_ops, ldmatrix_conflicts; } counters; }
#endif

enum { MAX_OUTPUTS = 4, MAX_RUNGS = 8, FEW = 3, MANY = 20, BUDGET_US = 500000 };
typedef struct { const char *name; void (*run)(void); int needs_mma; } Rung;
typedef struct Output {
    void *dev, *start;    // what the rungs write; what it holds before
    const double *want;
    size_t count, bytes;
    double tolerance;
    double (*error)(const struct Output *o);
} Output;
typedef struct {
    const char *op;
    char shape[80];
    double elements, bytes, flops; // flops: of matrix products; 0: bound by memory alone
    Output outputs[MAX_OUTPUTS];
    int num_outputs;
} Ladder;
static int num_wrong = 0, is_timed = 0;
static double bandwidth = NAN; // bytes/s of a copy

// --- arrays ---
static double get(double x) { return x; }
template <class Type> static double get(Type x) { return (double)f32(x); }
// The same numbers twice: at dev for the rungs, at cpu in double for the reference.
template <class Type> struct Array {
    size_t count;
    Type *dev, *start;
    double *cpu;
    Array(size_t count, uint64_t seed, double scale = 1, double offset = 0) : count(count) {
        Type *host = (Type *)host_alloc(count * sizeof(Type));
        cpu = (double *)host_alloc(count * sizeof(double));
        dev = (Type *)dev_alloc(count * sizeof(Type), "a ladder");
        start = (Type *)dev_alloc(count * sizeof(Type), "a ladder");
        for (size_t i = 0; i < count; i++) {
            host[i] = Type((float)(offset + scale * (2 * hash_uniform(seed, i) - 1)));
            cpu[i] = get(host[i]);
        }
        to_dev(start, host, count * sizeof(Type));
        dev_copy(dev, start, count * sizeof(Type));
        dev_sync();
        free(host);
    }
    explicit Array(size_t count) : Array(count, 0, 0, NAN) {} // an output that rungs assign
    Array(const Array &) = delete;
    ~Array() { dev_free(dev), dev_free(start), free(cpu); }
};
typedef Array<floatX> X;
typedef Array<real> R;
static int32_t *ladder_tokens(int32_t **dev, size_t count, size_t V) { // frequent ones, as in texts
    int32_t *host = (int32_t *)host_alloc(count * sizeof(int32_t));
    for (size_t i = 0; i < count; i++) host[i] = (int32_t)(pow((double)V, hash_uniform(9, i)) - 1);
    *dev = (int32_t *)dev_alloc(count * sizeof(int32_t), "a ladder");
    to_dev(*dev, host, count * sizeof(int32_t));
    return host;
}
// A NaN never passes.
template <class Type> static double output_error(const Output *o) {
    Type *got = (Type *)host_alloc(o->bytes);
    double most = 0, scale = 0;
    to_host(got, o->dev, o->bytes);
    for (size_t i = 0; i < o->count; i++) {
        double d = fabs(get(got[i]) - o->want[i]);
        if (!(d <= most)) most = isnan(d) ? INFINITY : d;
        scale = fmax(scale, fabs(o->want[i]));
    }
    free(got);
    return scale > 0 ? most / scale : most;
}
template <class Type> static void ladder_output(Ladder *l, const Array<Type> &a, double tolerance) {
    assert(l->num_outputs < MAX_OUTPUTS);
    l->outputs[l->num_outputs++] = { a.dev, a.start, a.cpu, a.count, a.count * sizeof(Type),
                                     tolerance, output_error<Type> };
}

// --- check, clock, table ---
// Runs a rung once. Returns its largest error, over the tolerance; *error: the same as it is.
static double rung_check(const Ladder *l, const Rung *rung, double *error) {
    double worst = *error = 0;
    for (const Output *o = l->outputs; o < l->outputs + l->num_outputs; o++)
        dev_copy(o->dev, o->start, o->bytes);
    dev_sync();
    emu::counters = {};
    rung->run();
    auto counted = emu::counters;
    for (const Output *o = l->outputs; o < l->outputs + l->num_outputs; o++) {
        double e = o->error(o);
        *error = fmax(*error, e);
        worst = fmax(worst, e / o->tolerance);
    }
    emu::counters = counted;
    return worst;
}
static double rung_us(const Rung *rung) {
    cold_read();
    dev_stamp(0);
    rung->run();
    dev_stamp(1);
    return 1e3 * dev_stamps_ms(0, 1);
}
static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void ladder_time(const Ladder *l, const Rung *rungs, int count) {
    static double us[MAX_RUNGS][MANY];
    int times[MAX_RUNGS] = { 0 };
    assert(count <= MAX_RUNGS);
    double spent[MAX_RUNGS] = { 0 }, peak = dev_peak_flops();
    for (int turn = 0; turn < MANY; turn++) for (int r = 0; r < count; r++) {
        if (turn >= FEW && ranks == 1 && spent[r] > BUDGET_US) continue;
        spent[r] += us[r][times[r]++] = rung_us(&rungs[r]);
    }
    printf("%-14s %10s %9s %9s %9s\n", "time", "us", "GB/s", "TFLOP/s", "% bound");
    for (int r = 0; r < count; r++) {
        qsort(us[r], (size_t)times[r], sizeof(double), by_value);
        double t = us[r][times[r] / 2], of_bytes = 1e6 * l->bytes / bandwidth;
        double bound = l->flops > 0 ? fmax(of_bytes, 1e6 * l->flops / peak) + 0 * peak : of_bytes;
        printf("%-14s %10.1f %9.0f %9.1f %9.0f\n", rungs[r].name, t, 1e-3 * l->bytes / t,
               1e-6 * l->flops / t, 100 * bound / t);
    }
}
template <int count> static void ladder_climb(const Ladder *l, const Rung (&all)[count]) {
    Rung rungs[count];
    int used = 0, wrong = 0;
    for (int r = 0; r < count; r++) if (HAS_MMA || !all[r].needs_mma) rungs[used++] = all[r];
    printf("\n%s: %s, %s, %s\n%-14s %10s %9s", l->op, l->shape, PRECISION_NAME,
           IS_EMULATED ? "emulated" : device.name, "rung", "error", "of bar");
    printf("%s", IS_EMULATED ? "  launches  barriers  warp ops conflicts\n" : "\n");
    for (int r = 0; r < used; r++) {
        double error, worst = rung_check(l, &rungs[r], &error), k = 1e3 / l->elements;
        printf("%-14s %10.1e %9.2f", rungs[r].name, error, worst);
        if (IS_EMULATED) printf(" %9ld %9.2f %9.1f %9ld", emu::counters.launches,
                                k * (double)emu::counters.barriers,
                                k * (double)emu::counters.warp_ops,
                                emu::counters.ldmatrix_conflicts);
        printf("%s\n", worst <= 1 ? "" : "   WRONG");
        wrong += !(worst <= 1);
    }
    num_wrong += wrong;
    if (is_timed && wrong == 0) ladder_time(l, rungs, used);
    fflush(stdout);
}

// --- main of a ladder ---
static void ladder_start(void) {
    if (main_stream != NULL) return; // several ladders in one program: ladders.sh
    dev_check();
    cpu::dev_check();
    if (IS_EMULATED) return;
    cold_alloc();
    bandwidth = 0;
    for (int i = 0; i < MANY; i++) {
        dev_stamp(0);
        dev_copy(cold, (char *)cold + cold_bytes / 2, cold_bytes / 2);
        dev_stamp(1);
        bandwidth = fmax(bandwidth, 1e3 * (double)cold_bytes / dev_stamps_ms(0, 1));
    }
    printf("%s: copies %.0f GB/s, peak %.0f TFLOP/s\n", device.name, 1e-9 * bandwidth,
           1e-12 * dev_peak_flops());
}
static int ladder_main(int argc, char **argv, void (*climb)(const size_t *shape),
                       const size_t *awkward, const size_t *emulated, const size_t *full) {
    int is_small = argc == 2 && !strcmp(argv[1], "--small");
    check(argc == 1 || is_small, EXIT_USAGE, "usage: %s [--small]", argv[0]);
    ladder_start();
    num_wrong = 0;
    climb(awkward);
    is_timed = !IS_EMULATED && num_wrong == 0;
    if (!is_small) climb(IS_EMULATED ? emulated : full);
    return num_wrong > 0;
}
