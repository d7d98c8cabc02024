// classifier.c: a ladder for the softmax, the loss and the gradient of the logits
//   naive       as in the formulas: probabilities into an array of their own, then the loss, then
//               the gradient into a third: much traffic, and libm's expf, a value at a time
//   in place    the gradient takes the place of the logits: less traffic, but e^x twice
//   vectors     exp_real (5.1) and sums that may be taken in any order
//   online      maximum and sum in one pass over stretches of 512, the sum corrected when the
//               maximum grows (Milakov & Gimelshein 2018)
//   one exp     the second pass stores its e^x, the third one only scales them (a second rounding
//               where less than fp32 is stored)
//   shipped     section 6.6: as vectors; a row stays in L2, so that a pass costs no bandwidth
#include "ladder.h"

static size_t N, V, Vp;
static real *logits, *losses, *probs, *dlogits; // (N,Vp) (N) (N,Vp) (N,Vp)
static int32_t *targets;                        // (N)
static const real dloss = 0.25;

static void naive(void) {
    #pragma omp parallel for schedule(static)
    for (size_t n = 0; n < N; n++) {
        const real *x = logits + n * Vp;
        real *p = probs + n * Vp, max = -INFINITY, sum = 0;
        for (size_t i = 0; i < V; i++) max = fmaxf(max, x[i]);
        for (size_t i = 0; i < V; i++) sum += p[i] = expf(x[i] - max);
        for (size_t i = 0; i < Vp; i++) p[i] = i < V ? p[i] / sum : 0;
    }
    #pragma omp parallel for schedule(static)
    for (size_t n = 0; n < N; n++) losses[n] = -logf(probs[n * Vp + (size_t)targets[n]]);
    #pragma omp parallel for schedule(static)
    for (size_t n = 0; n < N; n++)
        for (size_t i = 0; i < Vp; i++)
            dlogits[n * Vp + i] = (probs[n * Vp + i] - (i == (size_t)targets[n])) * dloss;
    memcpy(logits, dlogits, N * Vp * sizeof(real)); // where this ladder's check looks for them
}

// Loss and target's gradient of row n, whose other gradients are there; lse: log of the sum of e^x
static void finish_row(size_t n, real lse, real target) {
    real *x = logits + n * Vp;
    losses[n] = lse - target;
    x[targets[n]] = (exp_real(target - lse) - 1) * dloss;
    for (size_t i = V; i < Vp; i++) x[i] = 0;
}
static void in_place(void) {
    #pragma omp parallel for schedule(static)
    for (size_t n = 0; n < N; n++) {
        real *x = logits + n * Vp, target = x[targets[n]], max = -INFINITY, sum = 0;
        for (size_t i = 0; i < V; i++) max = fmaxf(max, x[i]);
        for (size_t i = 0; i < V; i++) sum += expf(x[i] - max);
        const real lse = max + logf(sum);
        for (size_t i = 0; i < V; i++) x[i] = expf(x[i] - lse) * dloss;
        finish_row(n, lse, target);
    }
}
static real max_of(const real *x, size_t count) {
    real max = -INFINITY;
    #pragma omp simd reduction(max:max)
    for (size_t i = 0; i < count; i++) max = x[i] > max ? x[i] : max;
    return max;
}
static real sum_of(const real *x, size_t count, real max) { // of e^(x - max)
    real sum = 0;
    #pragma omp simd reduction(+:sum)
    for (size_t i = 0; i < count; i++) sum += exp_real(x[i] - max);
    return sum;
}
static void vectors(void) {
    #pragma omp parallel for schedule(static)
    for (size_t n = 0; n < N; n++) {
        real *x = logits + n * Vp, target = x[targets[n]], max = max_of(x, V);
        const real lse = max + logf(sum_of(x, V, max));
        #pragma omp simd
        for (size_t i = 0; i < V; i++) x[i] = exp_real(x[i] - lse) * dloss;
        finish_row(n, lse, target);
    }
}
static void online(void) {
    #pragma omp parallel for schedule(static)
    for (size_t n = 0; n < N; n++) {
        real *x = logits + n * Vp, target = x[targets[n]], max = -INFINITY, sum = 0;
        for (size_t i = 0; i < V; i += 512) {
            const size_t count = min_size(512, V - i);
            const real higher = fmaxf(max, max_of(x + i, count));
            sum = sum * exp_real(max - higher) + sum_of(x + i, count, higher);
            max = higher;
        }
        const real lse = max + logf(sum);
        #pragma omp simd
        for (size_t i = 0; i < V; i++) x[i] = exp_real(x[i] - lse) * dloss;
        finish_row(n, lse, target);
    }
}
static void one_exp(void) {
    #pragma omp parallel for schedule(static)
    for (size_t n = 0; n < N; n++) {
        real *x = logits + n * Vp, target = x[targets[n]], max = max_of(x, V), sum = 0;
        #pragma omp simd reduction(+:sum)
        for (size_t i = 0; i < V; i++) sum += x[i] = exp_real(x[i] - max);
        const real factor = dloss / sum;
        #pragma omp simd
        for (size_t i = 0; i < V; i++) x[i] *= factor;
        finish_row(n, max + logf(sum), target);
    }
}
static void shipped(void) {
    classifier_forward_backward(losses, logits, targets, dloss, N, V, Vp);
}

static const Rung rungs[] = { { "naive", naive, 0 }, { "in place", in_place, 0 },
                              { "vectors", vectors, 0 }, { "online", online, 0 },
                              { "one exp", one_exp, 0 }, { "shipped", shipped, 0 } };

static void rows(size_t count, size_t vocabulary) {
    N = count, V = vocabulary, Vp = round_up(V, 128);
    real *before = ladder_random(N * Vp, 1, 4, 0);
    // A rounding of x or of the logarithm moves a probability by |x| <= 8 times as much.
    Ladder l = { .op = "classifier", .flops = 10 * (double)(N * V),
                 .bytes = 8 * (double)(N * Vp), .bandwidth = &copy_bandwidth,
                 .outputs = { ladder_output(N * Vp, before, unit * (16 + sqrt((double)V))),
                              ladder_output(N, NULL, unit * (16 + sqrt((double)V))) } };
    snprintf(l.shape, sizeof l.shape, "N=%zu V=%zu Vp=%zu", N, V, Vp);
    logits = l.outputs[0].got, losses = l.outputs[1].got;
    probs = ladder_nan(N * Vp), dlogits = ladder_nan(N * Vp);
    targets = (int32_t *)host_alloc(N * sizeof *targets);
    for (size_t n = 0; n < N; n++) targets[n] = (int32_t)(n * 7919 % V);
    for (size_t n = 0; n < N; n++) {
        double sum = 0, *want = l.outputs[0].want + n * Vp;
        for (size_t i = 0; i < V; i++) sum += exp((double)before[n * Vp + i]);
        for (size_t i = 0; i < V; i++)
            want[i] = (exp((double)before[n * Vp + i]) / sum - (i == (size_t)targets[n])) * dloss;
        l.outputs[1].want[n] = log(sum) - before[n * Vp + (size_t)targets[n]];
    }
    ladder_climb(&l, rungs, sizeof rungs / sizeof *rungs);
    ladder_free(&l), dev_free(before), dev_free(probs), dev_free(dlogits), free(targets);
}

int main(int argc, char **argv) {
    ladder_start(argc, argv);
    rows(65, 257);
    if (is_check) rows(2, 2);
    else rows(256, 50257);
    return 0;
}
