// layernorm_forward.cu: a ladder for layernorm_forward, section 6.2.
//   naive       a thread for a row: neighbouring threads read places C values apart, each of which
//               brings 32 bytes of which 2 are used
//   block       a block for a row: neighbours read neighbours. But 256 threads have 3 values each
//               at C = 768, and wait for each other at four barriers
//   warp        a warp for a row: sums by shuffles, no barrier, no shared memory
//   one pass    16 bytes a load, and the sums of x and x^2 together: a third less to read, but
//               E[x^2] - mean^2 loses digits where the mean is large
//   shipped     16 bytes a load, two passes for the digits: the second one reads the L1 cache
#include "ladder.h"

static size_t N, C;
static floatX *out, *inp, *weight, *bias; // (N,C) (N,C) (C) (C)
static float *mean, *rstd;                // (N) (N)

static __global__ void naive_kernel(floatX *out, float *mean, float *rstd, const floatX *inp,
                                    const floatX *weight, const floatX *bias, size_t N, size_t C) {
    size_t n = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= N) return;
    float mu = 0, variance = 0;
    for (size_t i = 0; i < C; i++) mu += f32(inp[n * C + i]);
    mu /= (float)C;
    for (size_t i = 0; i < C; i++)
        variance += (f32(inp[n * C + i]) - mu) * (f32(inp[n * C + i]) - mu);
    float scale = 1 / sqrtf(variance / (float)C + 1e-5f);
    for (size_t i = 0; i < C; i++)
        out[n * C + i] = fX((f32(inp[n * C + i]) - mu) * scale * f32(weight[i]) + f32(bias[i]));
    mean[n] = mu;
    rstd[n] = scale;
}
static void run_naive(void) {
    naive_kernel<<<grid_of(N, BLOCK), BLOCK, 0, stream>>>(out, mean, rstd, inp, weight, bias, N, C);
}
static __global__ void block_kernel(floatX *out, float *mean, float *rstd, const floatX *inp,
                                    const floatX *weight, const floatX *bias, size_t C) {
    __shared__ float of_warps[WARP];
    const floatX *x = inp + blockIdx.x * C;
    float sum = 0, squares = 0;
    for (size_t i = threadIdx.x; i < C; i += BLOCK) sum += f32(x[i]);
    float mu = block_sum(sum, of_warps) / (float)C;
    for (size_t i = threadIdx.x; i < C; i += BLOCK) squares += (f32(x[i]) - mu) * (f32(x[i]) - mu);
    float scale = 1 / sqrtf(block_sum(squares, of_warps) / (float)C + 1e-5f);
    for (size_t i = threadIdx.x; i < C; i += BLOCK)
        out[blockIdx.x * C + i] = fX((f32(x[i]) - mu) * scale * f32(weight[i]) + f32(bias[i]));
    if (threadIdx.x > 0) return;
    mean[blockIdx.x] = mu;
    rstd[blockIdx.x] = scale;
}
static void run_block(void) {
    block_kernel<<<grid_of(N, 1), BLOCK, 0, stream>>>(out, mean, rstd, inp, weight, bias, C);
}
static __global__ void warp_kernel(floatX *out, float *mean, float *rstd, const floatX *inp,
                                   const floatX *weight, const floatX *bias, size_t N, size_t C) {
    size_t n = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (n >= N) return; // the whole warp
    const floatX *x = inp + n * C;
    float sum = 0, squares = 0;
    for (size_t i = lane; i < C; i += WARP) sum += f32(x[i]);
    float mu = warp_sum(sum) / (float)C;
    for (size_t i = lane; i < C; i += WARP) squares += (f32(x[i]) - mu) * (f32(x[i]) - mu);
    float scale = 1 / sqrtf(warp_sum(squares) / (float)C + 1e-5f);
    for (size_t i = lane; i < C; i += WARP)
        out[n * C + i] = fX((f32(x[i]) - mu) * scale * f32(weight[i]) + f32(bias[i]));
    if (lane == 0) mean[n] = mu, rstd[n] = scale;
}
static void run_warp(void) {
    warp_kernel<<<grid_of(N, WARPS), BLOCK, 0, stream>>>(out, mean, rstd, inp, weight, bias, N, C);
}
static __global__ void one_pass_kernel(floatX *out, float *mean, float *rstd, const floatX *inp,
                                       const floatX *weight, const floatX *bias, size_t N,
                                       size_t C) {
    size_t n = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    size_t begin = threadIdx.x % WARP * PACK;
    if (n >= N) return; // the whole warp
    float sum = 0, squares = 0;
    for (size_t i = begin; i < C; i += COLUMNS) {
        Pack p = load_pack(inp + n * C + i);
        for (int k = 0; k < PACK; k++) sum += f32(p.x[k]), squares += f32(p.x[k]) * f32(p.x[k]);
    }
    float mu = warp_sum(sum) / (float)C;
    float scale = 1 / sqrtf(warp_sum(squares) / (float)C - mu * mu + 1e-5f);
    for (size_t i = begin; i < C; i += COLUMNS) {
        Pack p = load_pack(inp + n * C + i), w = load_pack(weight + i), b = load_pack(bias + i);
        for (int k = 0; k < PACK; k++)
            p.x[k] = fX((f32(p.x[k]) - mu) * scale * f32(w.x[k]) + f32(b.x[k]));
        store_pack(out + n * C + i, p);
    }
    if (begin == 0) mean[n] = mu, rstd[n] = scale;
}
static void run_one_pass(void) {
    one_pass_kernel<<<grid_of(N, WARPS), BLOCK, 0, stream>>>(out, mean, rstd, inp, weight, bias, N,
                                                             C);
}
static void run_shipped(void) { layernorm_forward(out, mean, rstd, inp, weight, bias, N, C); }
static const Rung rungs[] = { { "naive", run_naive }, { "block", run_block }, { "warp", run_warp },
                              { "one pass", run_one_pass }, { "shipped", run_shipped } };

static void climb(const size_t *shape) {
    N = shape[0], C = shape[1];
    X x(N * C, 1, 1, 0.5), w(C, 2, 0.5, 1), b(C, 3), y(N * C);
    R mu(N), scale(N);
    inp = x.dev, weight = w.dev, bias = b.dev, out = y.dev, mean = mu.dev, rstd = scale.dev;
    cpu::layernorm_forward(y.cpu, mu.cpu, scale.cpu, x.cpu, w.cpu, b.cpu, N, C);
    Ladder l = { "layernorm_forward" };
    snprintf(l.shape, sizeof l.shape, "N=%zu C=%zu", N, C);
    l.elements = (double)(N * C), l.bytes = 2.0 * (double)(N * C * sizeof(floatX));
    double sum = 8 * unit * sqrt((double)C); // of C values in fp32
    ladder_output(&l, y, stored + sum);
    ladder_output(&l, mu, sum), ladder_output(&l, scale, sum);
    ladder_climb(&l, rungs);
}
int main(int argc, char **argv) {
    static const size_t awkward[] = { 13, 72 }, emulated[] = { 64, 256 }, full[] = { 65536, 768 };
    return ladder_main(argc, argv, climb, awkward, emulated, full);
}
