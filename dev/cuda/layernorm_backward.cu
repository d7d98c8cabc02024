// layernorm_backward.cu: a ladder for layernorm_backward, section 6.2.
//   naive       a thread for a row of dinp, then a thread for a column of dweight and dbias: only C
//               threads, each of which walks through all rows
//   atomics     a warp for a row of dinp, which adds to dweight and dbias by atomicAdd: the whole
//               GPU works on them, but N threads queue for each address, and the order of a sum,
//               so its bits, differs from run to run
//   two passes  a warp for a row of dinp, then column sums by slices of rows, added in order: no
//               queue, the same bits. dout and inp are read twice. Shipped once, and still where
//               rows are too long for registers
//   shipped     a warp keeps its sums for dweight and dbias in registers over all its rows: in one
//               pass dout and inp come from memory once: 4 values moved instead of 6
#include "ladder.h"

static size_t N, C;
static floatX *dinp, *dout, *inp, *weight;   // (N,C) (N,C) (N,C) (C)
static float *dweight, *dbias, *mean, *rstd; // (C) (C) (N) (N)

static __global__ void naive_rows_kernel(floatX *dinp, const floatX *dout, const floatX *inp,
                                         const float *mean, const float *rstd,
                                         const floatX *weight, size_t N, size_t C) {
    size_t n = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= N) return;
    float sum = 0, dot = 0; // of dxhat, and of dxhat * xhat
    for (size_t i = n * C; i < (n + 1) * C; i++) {
        float dxhat = f32(dout[i]) * f32(weight[i - n * C]);
        sum += dxhat;
        dot += dxhat * (f32(inp[i]) - mean[n]) * rstd[n];
    }
    for (size_t i = n * C; i < (n + 1) * C; i++) {
        float dxhat = f32(dout[i]) * f32(weight[i - n * C]);
        float xhat = (f32(inp[i]) - mean[n]) * rstd[n];
        dinp[i] = fX(f32(dinp[i]) + rstd[n] * (dxhat - sum / (float)C - xhat * dot / (float)C));
    }
}
static __global__ void naive_columns_kernel(float *dweight, float *dbias, const floatX *dout,
                                            const floatX *inp, const float *mean, const float *rstd,
                                            size_t N, size_t C) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= C) return;
    float sum = 0, dot = 0;
    for (size_t n = 0; n < N; n++) {
        sum += f32(dout[n * C + i]);
        dot += f32(dout[n * C + i]) * (f32(inp[n * C + i]) - mean[n]) * rstd[n];
    }
    dbias[i] = sum;
    dweight[i] = dot;
}
static void run_naive(void) {
    naive_rows_kernel<<<grid_of(N, BLOCK), BLOCK, 0, stream>>>(dinp, dout, inp, mean, rstd, weight,
                                                               N, C);
    naive_columns_kernel<<<grid_of(C, BLOCK), BLOCK, 0, stream>>>(dweight, dbias, dout, inp, mean,
                                                                  rstd, N, C);
}
static __global__ void atomics_kernel(floatX *dinp, float *dweight, float *dbias,
                                      const floatX *dout, const floatX *inp, const float *mean,
                                      const float *rstd, const floatX *weight, size_t N, size_t C) {
    size_t n = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (n >= N) return; // the whole warp
    const floatX *x = inp + n * C, *d = dout + n * C;
    float mu = mean[n], scale = rstd[n], sum = 0, dot = 0;
    for (size_t i = lane; i < C; i += WARP) {
        float dxhat = f32(d[i]) * f32(weight[i]);
        sum += dxhat;
        dot += dxhat * (f32(x[i]) - mu) * scale;
    }
    sum = warp_sum(sum) / (float)C;
    dot = warp_sum(dot) / (float)C;
    for (size_t i = lane; i < C; i += WARP) {
        float xhat = (f32(x[i]) - mu) * scale, dxhat = f32(d[i]) * f32(weight[i]);
        dinp[n * C + i] = fX(f32(dinp[n * C + i]) + scale * (dxhat - sum - xhat * dot));
        atomicAdd(&dweight[i], f32(d[i]) * xhat);
        atomicAdd(&dbias[i], f32(d[i]));
    }
}
static void run_atomics(void) {
    dev_zero(dweight, C * sizeof(float));
    dev_zero(dbias, C * sizeof(float));
    atomics_kernel<<<grid_of(N, WARPS), BLOCK, 0, stream>>>(dinp, dweight, dbias, dout, inp, mean,
                                                            rstd, weight, N, C);
}
static void run_two_passes(void) { // what layernorm_backward does for long rows
    unsigned blocks = (unsigned)min_size(div_up(N, WARPS), 2 * COLUMN_SLICES);
    layernorm_backward_kernel<0><<<blocks, BLOCK, 0, stream>>>(dinp, column_scratch, dout, inp,
                                                               mean, rstd, weight, N, C);
    column_sums(dbias, dweight, dout, inp, mean, rstd, N, C, 0);
}
static void run_shipped(void) {
    layernorm_backward(dinp, dweight, dbias, dout, inp, mean, rstd, weight, N, C, 0);
}
static const Rung rungs[] = { { "naive", run_naive }, { "atomics", run_atomics },
                              { "two passes", run_two_passes }, { "shipped", run_shipped } };

static void climb(const size_t *shape) {
    N = shape[0], C = shape[1];
    ops_init(1, N, C, 1, 0), cpu::ops_init(1, N, C, 1, 0);
    X x(N * C, 1, 1, 0.5), w(C, 2, 0.5, 1), b(C, 3), y(N * C), d(N * C, 4), dx(N * C, 5);
    R mu(N), scale(N), dw(C), db(C);
    cpu::layernorm_forward(y.cpu, mu.cpu, scale.cpu, x.cpu, w.cpu, b.cpu, N, C);
    layernorm_forward(y.dev, mu.dev, scale.dev, x.dev, w.dev, b.dev, N, C);
    cpu::layernorm_backward(dx.cpu, dw.cpu, db.cpu, d.cpu, x.cpu, mu.cpu, scale.cpu, w.cpu, N, C,
                            0);
    inp = x.dev, weight = w.dev, dout = d.dev, dinp = dx.dev, mean = mu.dev, rstd = scale.dev;
    dweight = dw.dev, dbias = db.dev;
    Ladder l = { "layernorm_backward" };
    snprintf(l.shape, sizeof l.shape, "N=%zu C=%zu", N, C);
    l.elements = (double)(N * C), l.bytes = 4.0 * (double)(N * C * sizeof(floatX));
    double wide = 16 * unit * sqrt((double)C), high = 16 * unit * sqrt((double)N);
    ladder_output(&l, dx, 2 * stored + wide);
    ladder_output(&l, dw, wide + high), ladder_output(&l, db, wide + high);
    ladder_climb(&l, rungs);
    ops_free(), cpu::ops_free();
}
int main(int argc, char **argv) {
    static const size_t awkward[] = { 2061, 72 }, emulated[] = { 64, 256 }, full[] = { 65536, 768 };
    return ladder_main(argc, argv, climb, awkward, emulated, full);
}
