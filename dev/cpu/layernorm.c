// layernorm.c: a ladder for layernorm, forward and backward
// Forward
//   naive       three loops over a row; a sum in order is one addition every 4 cycles
//   one pass    sum and sum of squares together: one loop less, but x^2 - mean^2 loses digits where
//               the mean is large
//   vectors     the same with sums that may be taken in any order
//   shipped     section 6.2: vectors, but two passes: the second reads the L1 cache, which is free
// Backward
//   naive       row by row, dweight and dbias with it: rows cannot be shared between threads
//   columns     rows for dinp, then every column's sums alone: reads a value of each cache line
//   stripes     as columns, but 16 at a time: whole cache lines, no memory of its own
//   shipped     section 6.2: groups of rows sum into a dweight of their own, and these are added in
//               order: one walk through memory, and sums of fewer numbers lose less. One group a
//               thread would make the bits depend on the number of threads
#include "ladder.h"

static size_t N, C;
static real *inp, *weight, *bias, *out, *mean, *rstd; // (N,C) (C) (C) (N,C) (N) (N)
static real *dout, *dinp, *dweight, *dbias;           // (N,C) (N,C) (C) (C)

static void finish_row(size_t n, real mu, real variance) {
    const real *x = inp + n * C, scale = 1 / sqrtf(variance + 1e-5f);
    for (size_t i = 0; i < C; i++) out[n * C + i] = (x[i] - mu) * scale * weight[i] + bias[i];
    mean[n] = mu;
    rstd[n] = scale;
}
static void forward_naive(void) {
    #pragma omp parallel for schedule(static)
    for (size_t n = 0; n < N; n++) {
        const real *x = inp + n * C;
        real sum = 0, squares = 0;
        for (size_t i = 0; i < C; i++) sum += x[i];
        for (size_t i = 0; i < C; i++)
            squares += (x[i] - sum / (real)C) * (x[i] - sum / (real)C);
        finish_row(n, sum / (real)C, squares / (real)C);
    }
}
static void forward_one_pass(void) {
    #pragma omp parallel for schedule(static)
    for (size_t n = 0; n < N; n++) {
        const real *x = inp + n * C;
        real sum = 0, squares = 0;
        for (size_t i = 0; i < C; i++) sum += x[i], squares += x[i] * x[i];
        finish_row(n, sum / (real)C, squares / (real)C - sum / (real)C * (sum / (real)C));
    }
}
static void forward_vectors(void) {
    #pragma omp parallel for schedule(static)
    for (size_t n = 0; n < N; n++) {
        const real *x = inp + n * C;
        real sum = 0, squares = 0;
        #pragma omp simd reduction(+:sum, squares)
        for (size_t i = 0; i < C; i++) sum += x[i], squares += x[i] * x[i];
        finish_row(n, sum / (real)C, squares / (real)C - sum / (real)C * (sum / (real)C));
    }
}
static void forward_shipped(void) {
    layernorm_forward(out, mean, rstd, inp, weight, bias, N, C);
}

// dinp of row n
static void dinp_row(size_t n) {
    const real *x = inp + n * C, *d = dout + n * C, mu = mean[n], scale = rstd[n];
    real sum = 0, dot = 0;
    #pragma omp simd reduction(+:sum, dot)
    for (size_t i = 0; i < C; i++) {
        sum += d[i] * weight[i];
        dot += d[i] * weight[i] * (x[i] - mu) * scale;
    }
    sum /= (real)C;
    dot /= (real)C;
    for (size_t i = 0; i < C; i++)
        dinp[n * C + i] += scale * (d[i] * weight[i] - sum - (x[i] - mu) * scale * dot);
}
static void add_row(real *dw, real *db, size_t n) {
    for (size_t i = 0; i < C; i++) {
        dw[i] += dout[n * C + i] * (inp[n * C + i] - mean[n]) * rstd[n];
        db[i] += dout[n * C + i];
    }
}
static void backward_naive(void) {
    for (size_t i = 0; i < C; i++) dweight[i] = dbias[i] = 0;
    for (size_t n = 0; n < N; n++) {
        dinp_row(n);
        add_row(dweight, dbias, n);
    }
}
static void backward_columns(void) {
    #pragma omp parallel for schedule(static)
    for (size_t n = 0; n < N; n++) dinp_row(n);
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < C; i++) {
        real dw = 0, db = 0;
        for (size_t n = 0; n < N; n++) {
            dw += dout[n * C + i] * (inp[n * C + i] - mean[n]) * rstd[n];
            db += dout[n * C + i];
        }
        dweight[i] = dw;
        dbias[i] = db;
    }
}
static void backward_stripes(void) {
    #pragma omp parallel for schedule(static)
    for (size_t n = 0; n < N; n++) dinp_row(n);
    #pragma omp parallel for schedule(static)
    for (size_t lo = 0; lo < C; lo += 16) {
        const size_t count = min_size(16, C - lo);
        real dw[16] = { 0 }, db[16] = { 0 };
        for (size_t n = 0; n < N; n++)
            for (size_t i = 0; i < count; i++) {
                const size_t at = n * C + lo + i;
                dw[i] += dout[at] * (inp[at] - mean[n]) * rstd[n];
                db[i] += dout[at];
            }
        memcpy(dweight + lo, dw, count * sizeof(real));
        memcpy(dbias + lo, db, count * sizeof(real));
    }
}
static void backward_shipped(void) {
    layernorm_backward(dinp, dweight, dbias, dout, inp, mean, rstd, weight, N, C, 0);
}

static const Rung forward_rungs[] = {
    { "naive", forward_naive, 0 }, { "one pass", forward_one_pass, 0 },
    { "vectors", forward_vectors, 0 }, { "shipped", forward_shipped, 0 } };
static const Rung backward_rungs[] = {
    { "naive", backward_naive, 0 }, { "columns", backward_columns, 0 },
    { "stripes", backward_stripes, 0 }, { "shipped", backward_shipped, 0 } };

// The formulas in double: out, mean, rstd; dinp (the old one is there), dweight, dbias
static void reference(Output *f, Output *d) {
    for (size_t n = 0; n < N; n++) {
        const real *x = inp + n * C, *g = dout + n * C;
        double mu = 0, variance = 0, sum = 0, dot = 0;
        for (size_t i = 0; i < C; i++) mu += (double)x[i] / (double)C;
        for (size_t i = 0; i < C; i++) variance += (x[i] - mu) * (x[i] - mu) / (double)C;
        const double scale = 1 / sqrt(variance + 1e-5);
        for (size_t i = 0; i < C; i++) {
            double xhat = (x[i] - mu) * scale, dxhat = (double)g[i] * (double)weight[i];
            f[0].want[n * C + i] = xhat * weight[i] + bias[i];
            sum += dxhat / (double)C;
            dot += dxhat * xhat / (double)C;
            d[1].want[i] += g[i] * xhat;
            d[2].want[i] += g[i];
        }
        for (size_t i = 0; i < C; i++)
            d[0].want[n * C + i] = d[0].start[n * C + i] + scale *
                ((double)g[i] * (double)weight[i] - sum - (x[i] - mu) * scale * dot);
        f[1].want[n] = mu;
        f[2].want[n] = scale;
    }
}
static void rows(size_t count, size_t channels) {
    N = count, C = channels;
    inp = ladder_random(N * C, 1, 1, 0.5), dout = ladder_random(N * C, 2, 1, 0);
    weight = ladder_random(C, 3, 1, 1), bias = ladder_random(C, 4, 1, 0);
    real *before = ladder_random(N * C, 5, 1, 0); // what the residual stream has brought
    const double wide = 4 * unit * sqrt((double)C), high = 4 * unit * sqrt((double)N);
    Ladder f = { .op = "layernorm forward", .flops = 8 * (double)(N * C),
                 .bytes = 8 * (double)(N * C), .bandwidth = &copy_bandwidth,
                 .outputs = { ladder_output(N * C, NULL, wide), ladder_output(N, NULL, wide),
                              ladder_output(N, NULL, wide) } };
    snprintf(f.shape, sizeof f.shape, "N=%zu C=%zu", N, C);
    Ladder d = f;
    d.op = "layernorm backward", d.flops *= 2, d.bytes *= 2; // reads three, writes one
    d.outputs[0] = ladder_output(N * C, before, wide);
    d.outputs[1] = ladder_output(C, NULL, wide + high);
    d.outputs[2] = ladder_output(C, NULL, wide + high);
    out = f.outputs[0].got, mean = f.outputs[1].got, rstd = f.outputs[2].got;
    dinp = d.outputs[0].got, dweight = d.outputs[1].got, dbias = d.outputs[2].got;
    reference(f.outputs, d.outputs);
    ladder_climb(&f, forward_rungs, sizeof forward_rungs / sizeof *forward_rungs);
    ladder_climb(&d, backward_rungs, sizeof backward_rungs / sizeof *backward_rungs);
    ladder_free(&f), ladder_free(&d), dev_free(before);
    dev_free(inp), dev_free(dout), dev_free(weight), dev_free(bias);
}

int main(int argc, char **argv) {
    ladder_start(argc, argv);
    rows(65, 50);
    if (is_check) rows(1, 3);
    else rows(4096, 768);
    return 0;
}
