// attention.c: a ladder for causal attention, forward and backward
//   naive      a row of scores at a time, as in the formulas, with libm's expf
//   vectors    the same, with sums that may be taken in any order and the exp_real of 5.1: vectors
//   square     all T x T scores of a head on the tiles of 6.3: fast products, half of them masked
//   blocks     64 rows at a time and only the keys up to the last of them: scores stay in L2
//   shipped    section 6.4: blocks of keys, too, softmax corrected as they come, panels packed once
#include "ladder.h"

static size_t B, T, C, NH, HS;
static real *qkv, *out, *lse, *dout, *dqkv; // (B,T,3C) (B,T,C) (B,NH,T) (B,T,C) (B,T,3C)
static real *scratch;                       // 2 (T,T) for each thread

typedef struct {                            // a head; rows of q k v dq dk dv: 3C apart, others C
    const real *q, *k, *v, *dout;
    real *out, *lse, *dq, *dk, *dv, *p, *ds;
} Head;
static Head head_at(size_t i) {
    const size_t wide = i / NH * T * 3 * C + i % NH * HS, narrow = i / NH * T * C + i % NH * HS;
    real *p = scratch + (size_t)omp_get_thread_num() * 2 * T * T;
    Head h = { qkv + wide, qkv + wide + C, qkv + wide + 2 * C, dout + narrow, out + narrow,
               lse + i * T, dqkv + wide, dqkv + wide + C, dqkv + wide + 2 * C, p, p + T * T };
    return h;
}
#define EACH_HEAD _Pragma("omp parallel for schedule(dynamic)") \
    for (size_t i = 0; i < B * NH; i++)
static real scale(void) { return 1 / sqrtf((real)HS); }

// --- naive and vectors: the same loops, chosen by a constant ---
INLINE real dot(const real *x, const real *y, int fast) {
    real sum = 0;
    if (!fast) for (size_t c = 0; c < HS; c++) sum += x[c] * y[c];
    else {
        #pragma omp simd reduction(+:sum)
        for (size_t c = 0; c < HS; c++) sum += x[c] * y[c];
    }
    return sum;
}
static void add(real *to, real factor, const real *x) {
    #pragma omp simd
    for (size_t c = 0; c < HS; c++) to[c] += factor * x[c];
}
// x (n) becomes softmax(x); returns the logarithm of the sum of e^x
INLINE real softmax(real *x, size_t n, int fast) {
    real max = -INFINITY, sum = 0;
    if (!fast) {
        for (size_t u = 0; u < n; u++) max = fmaxf(max, x[u]);
        for (size_t u = 0; u < n; u++) sum += x[u] = expf(x[u] - max);
    } else {
        #pragma omp simd reduction(max:max)
        for (size_t u = 0; u < n; u++) max = max > x[u] ? max : x[u];
        #pragma omp simd reduction(+:sum)
        for (size_t u = 0; u < n; u++) sum += x[u] = exp_real(x[u] - max);
    }
    for (size_t u = 0; u < n; u++) x[u] /= sum;
    return max + logf(sum);
}
INLINE void forward_by_row(Head h, int fast) {
    for (size_t t = 0; t < T; t++) {
        real *o = h.out + t * C;
        for (size_t u = 0; u <= t; u++)
            h.p[u] = dot(h.q + t * 3 * C, h.k + u * 3 * C, fast) * scale();
        h.lse[t] = softmax(h.p, t + 1, fast);
        for (size_t c = 0; c < HS; c++) o[c] = 0;
        for (size_t u = 0; u <= t; u++) add(o, h.p[u], h.v + u * 3 * C);
    }
}
// out = P v: dv = P^T dout, dP = dout v^T; P = softmax(S): dS = P (dP - dout . out)
INLINE void backward_by_row(Head h, int fast) {
    for (size_t t = 0; t < T; t++)
        for (size_t c = 0; c < HS; c++)
            h.dq[t * 3 * C + c] = h.dk[t * 3 * C + c] = h.dv[t * 3 * C + c] = 0;
    for (size_t t = 0; t < T; t++) {
        const real *q = h.q + t * 3 * C, *d = h.dout + t * C, sum = dot(d, h.out + t * C, fast);
        for (size_t u = 0; u <= t; u++) {
            real score = dot(q, h.k + u * 3 * C, fast) * scale() - h.lse[t];
            real p = fast ? exp_real(score) : expf(score);
            real ds = p * (dot(d, h.v + u * 3 * C, fast) - sum) * scale();
            add(h.dv + u * 3 * C, p, d);
            add(h.dq + t * 3 * C, ds, h.k + u * 3 * C);
            add(h.dk + u * 3 * C, ds, q);
        }
    }
}
static void forward_naive(void) { EACH_HEAD forward_by_row(head_at(i), 0); }
static void forward_vectors(void) { EACH_HEAD forward_by_row(head_at(i), 1); }
static void backward_naive(void) { EACH_HEAD backward_by_row(head_at(i), 0); }
static void backward_vectors(void) { EACH_HEAD backward_by_row(head_at(i), 1); }

// --- square and blocks: n rows from t0 on against all keys up to the last of these rows ---
static void forward_rows(Head h, size_t t0, size_t n) {
    const size_t keys = t0 + n, wide = 3 * C;
    gemm_serial(to_r(h.p, keys), rows_of(h.q + t0 * wide, wide), rows_of(h.k, wide), n, keys, HS);
    for (size_t r = 0; r < n; r++) {
        real *row = h.p + r * keys;
        for (size_t u = 0; u < keys; u++) row[u] = u > t0 + r ? (real)-INFINITY : row[u] * scale();
        h.lse[t0 + r] = softmax(row, keys, 1);
    }
    gemm_serial(to_r(h.out + t0 * C, C), rows_of(h.p, keys), cols_of(h.v, wide), n, HS, keys);
}
static void backward_rows(Head h, size_t t0, size_t n) {
    const size_t keys = t0 + n, wide = 3 * C;
    const real *q = h.q + t0 * wide, *d = h.dout + t0 * C, by = scale();
    Out dk = to_r(h.dk, wide), dv = to_r(h.dv, wide);
    dk.add = dv.add = keys < T; // the last rows, which see all keys, come first and assign
    gemm_serial(to_r(h.p, keys), rows_of(q, wide), rows_of(h.k, wide), n, keys, HS);
    gemm_serial(to_r(h.ds, keys), rows_of(d, C), rows_of(h.v, wide), n, keys, HS);
    for (size_t r = 0; r < n; r++) {
        real *p = h.p + r * keys, *ds = h.ds + r * keys, row_lse = h.lse[t0 + r];
        real sum = dot(d + r * C, h.out + (t0 + r) * C, 1);
        #pragma omp simd
        for (size_t u = 0; u < keys; u++) {
            p[u] = u > t0 + r ? 0 : exp_real(p[u] * by - row_lse);
            ds[u] = p[u] * (ds[u] - sum) * by;
        }
    }
    gemm_serial(dv, cols_of(h.p, keys), cols_of(d, C), keys, HS, n);
    gemm_serial(dk, cols_of(h.ds, keys), cols_of(q, wide), keys, HS, n);
    gemm_serial(to_r(h.dq + t0 * wide, wide), rows_of(h.ds, keys), cols_of(h.k, wide), n, HS, keys);
}
static void forward_square(void) { EACH_HEAD forward_rows(head_at(i), 0, T); }
static void backward_square(void) { EACH_HEAD backward_rows(head_at(i), 0, T); }
static void forward_blocks(void) {
    EACH_HEAD for (size_t t = 0; t < T; t += 64) forward_rows(head_at(i), t, min_size(64, T - t));
}
static void backward_blocks(void) {
    EACH_HEAD for (size_t t = (T - 1) / 64 * 64 + 64; t > 0; t -= 64)
        backward_rows(head_at(i), t - 64, min_size(64, T - t + 64));
}
static void forward_shipped(void) { attention_forward(out, lse, qkv, B, T, C, NH); }
static void backward_shipped(void) { attention_backward(dqkv, dout, out, lse, qkv, B, T, C, NH); }

static const Rung forward_rungs[] = {
    { "naive", forward_naive, 0 }, { "vectors", forward_vectors, 0 },
    { "square", forward_square, 0 }, { "blocks", forward_blocks, 0 },
    { "shipped", forward_shipped, 0 }, { "shipped, --matmul bf16", forward_shipped, 1 } };
static const Rung backward_rungs[] = {
    { "naive", backward_naive, 0 }, { "vectors", backward_vectors, 0 },
    { "square", backward_square, 0 }, { "blocks", backward_blocks, 0 },
    { "shipped", backward_shipped, 0 }, { "shipped, --matmul bf16", backward_shipped, 1 } };

// The naive loops in double; o: out, e: lse, dx: dqkv
static double dot_double(const real *x, const real *y) {
    double sum = 0;
    for (size_t c = 0; c < HS; c++) sum += (double)x[c] * (double)y[c];
    return sum;
}
static void reference(double *o, double *e, double *dx) {
    const double by = 1 / sqrt((double)HS);
    EACH_HEAD {
        Head h = head_at(i);
        double p[T], *po = o + (h.out - out), *pd = dx + (h.dq - dqkv);
        for (size_t t = 0; t < T; t++) {
            double sum = 0, row = 0;
            for (size_t u = 0; u <= t; u++)
                sum += p[u] = exp(dot_double(h.q + t * 3 * C, h.k + u * 3 * C) * by);
            e[i * T + t] = log(sum);
            for (size_t u = 0; u <= t; u++)
                for (size_t c = 0; c < HS; c++) po[t * C + c] += p[u] / sum * h.v[u * 3 * C + c];
            for (size_t c = 0; c < HS; c++) row += po[t * C + c] * h.dout[t * C + c];
            for (size_t u = 0; u <= t; u++) {
                double dp = dot_double(h.dout + t * C, h.v + u * 3 * C);
                double ds = p[u] / sum * (dp - row) * by;
                for (size_t c = 0; c < HS; c++) {
                    pd[t * 3 * C + c] += ds * h.k[u * 3 * C + c];
                    pd[u * 3 * C + C + c] += ds * h.q[t * 3 * C + c];
                    pd[u * 3 * C + 2 * C + c] += p[u] / sum * h.dout[t * C + c];
                }
            }
        }
    }
}

static void heads(size_t b, size_t t, size_t nh, size_t hs) {
    B = b, T = t, NH = nh, HS = hs, C = nh * hs;
    const double pairs = (double)(B * NH) * (double)T * (double)(T + 1) / 2; // not masked
    const double values = (double)(B * T * C), tolerance = 4 * unit * sqrt((double)(T + HS));
    Ladder f = { .op = "attention forward", .flops = 4 * pairs * (double)HS, .bytes = 16 * values,
                 .outputs = { ladder_output(B * T * C, NULL, tolerance),
                              ladder_output(B * NH * T, NULL, tolerance) } };
    snprintf(f.shape, sizeof f.shape, "B=%zu T=%zu NH=%zu HS=%zu", B, T, NH, HS);
    Ladder d = f;
    d.op = "attention backward", d.flops *= 2.5, d.bytes *= 2;
    d.outputs[0] = ladder_output(B * T * 3 * C, NULL, tolerance);
    d.outputs[1].got = NULL;
    qkv = ladder_random(B * T * 3 * C, 1, 1, 0), dout = ladder_random(B * T * C, 2, 1, 0);
    scratch = ladder_nan((size_t)omp_get_max_threads() * 2 * T * T);
    out = f.outputs[0].got, lse = f.outputs[1].got, dqkv = d.outputs[0].got;
    reference(f.outputs[0].want, f.outputs[1].want, d.outputs[0].want);
    ladder_climb(&f, forward_rungs, sizeof forward_rungs / sizeof *forward_rungs);
    forward_shipped();
    ladder_climb(&d, backward_rungs, sizeof backward_rungs / sizeof *backward_rungs);
    ladder_free(&f), ladder_free(&d), dev_free(qkv), dev_free(dout), dev_free(scratch);
}

int main(int argc, char **argv) {
    ladder_start(argc, argv);
    heads(2, 77, 3, 20);
    heads(1, is_check ? 5 : 1024, 12, is_check ? 1 : 64);
    return 0;
}
