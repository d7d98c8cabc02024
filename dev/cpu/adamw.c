// adamw.c: a ladder for the optimizer step
//   naive       the formulas in one loop over the parameters, by one thread
//   passes      one operation a pass, as libraries of array operations do it: m, v and an array
//               between the operations cross the memory bus again and again
//   dynamic     one pass; threads fetch 1024 parameters whenever they are free
//   shipped     section 6.7: one pass, every thread its own stretch: seven long streams
#include "ladder.h"

static size_t count;
static real *w, *m, *v, *g, *buffer; // (count)
static const AdamW h = { .grad_scale = 0.5f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f,
                         .step_size = 1e-3f, .root_correction = 1.5f, .keep = 0.9999f };

static void update(size_t lo, size_t hi) {
    #pragma omp simd
    for (size_t i = lo; i < hi; i++) {
        real grad = g[i] * h.grad_scale;
        m[i] = h.beta1 * m[i] + (1 - h.beta1) * grad;
        v[i] = h.beta2 * v[i] + (1 - h.beta2) * grad * grad;
        w[i] = w[i] * h.keep - h.step_size * m[i] / (sqrtf(v[i]) * h.root_correction + h.eps);
    }
}
static void naive(void) { update(0, count); }

#define PASS _Pragma("omp parallel for simd schedule(static)") for (size_t i = 0; i < count; i++)
static void passes(void) {
    PASS w[i] *= h.keep;
    PASS m[i] = h.beta1 * m[i] + (1 - h.beta1) * (g[i] * h.grad_scale);
    PASS buffer[i] = g[i] * h.grad_scale * (g[i] * h.grad_scale);
    PASS v[i] = h.beta2 * v[i] + (1 - h.beta2) * buffer[i];
    PASS buffer[i] = sqrtf(v[i]) * h.root_correction + h.eps;
    PASS w[i] -= h.step_size * m[i] / buffer[i];
}
static void dynamic(void) {
    #pragma omp parallel for schedule(dynamic)
    for (size_t lo = 0; lo < count; lo += 1024) update(lo, min_size(lo + 1024, count));
}
static void shipped(void) { adamw_update(w, NULL, m, v, g, count, h); }

static const Rung rungs[] = { { "naive", naive, 0 }, { "passes", passes, 0 },
                              { "dynamic", dynamic, 0 }, { "shipped", shipped, 0 } };

static void parameters(size_t parameter_count) {
    count = parameter_count;
    real *w0 = ladder_random(count, 1, 1, 0), *m0 = ladder_random(count, 2, 1, 0);
    real *v0 = ladder_random(count, 3, 0.5, 0.5);
    g = ladder_random(count, 4, 1, 0), buffer = ladder_nan(count);
    // At most six roundings, each of a value no larger than the result's scale.
    Ladder l = { .op = "adamw", .flops = 15 * (double)count, .bytes = 28 * (double)count,
                 .bandwidth = &adamw_bandwidth,
                 .outputs = { ladder_output(count, w0, 6 * unit),
                              ladder_output(count, m0, 6 * unit),
                              ladder_output(count, v0, 6 * unit) } };
    snprintf(l.shape, sizeof l.shape, "%zu parameters", count);
    w = l.outputs[0].got, m = l.outputs[1].got, v = l.outputs[2].got;
    for (size_t i = 0; i < count; i++) {
        const double grad = (double)g[i] * (double)h.grad_scale, b1 = h.beta1, b2 = h.beta2;
        const double first = b1 * m0[i] + (1 - b1) * grad;
        const double second = b2 * v0[i] + (1 - b2) * grad * grad;
        const double root = sqrt(second) * (double)h.root_correction + (double)h.eps;
        l.outputs[0].want[i] = (double)w0[i] * (double)h.keep - (double)h.step_size * first / root;
        l.outputs[1].want[i] = first;
        l.outputs[2].want[i] = second;
    }
    ladder_climb(&l, rungs, sizeof rungs / sizeof *rungs);
    ladder_free(&l), dev_free(w0), dev_free(m0), dev_free(v0), dev_free(g), dev_free(buffer);
}

int main(int argc, char **argv) {
    ladder_start(argc, argv);
    parameters(65537);
    parameters(is_check ? 1 : 1 << 24);
    return 0;
}
