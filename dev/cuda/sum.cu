// sum.cu: a ladder for sum_squares, section 6.8, the norm of the gradients: out[k] = the sum of
// squares of part k, in double. A rank has up to 256 parts in each layer.
//   naive       a thread for a part: 256 threads, far apart in memory, on the whole GPU
//   atomics     blocks all over x, each adds its sum to its part's by atomicAdd of doubles: every
//               multiprocessor reads at full speed, but the order of additions is left to chance
//   tree        a block for a part, its sums halved in shared memory: the same bits every time, but
//               a barrier for each of eight halvings, in which ever fewer threads work
//   shipped     a block of 1024 for a part, so that more loads are under way; and 8 of a thread,
//               before any is added; sums by shuffles, two barriers
#include "ladder.h"

static size_t parts, step;
static float *x;    // (parts,step)
static double *out; // (parts)

static __global__ void naive_kernel(double *out, const float *x, size_t parts, size_t step) {
    size_t part = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (part >= parts) return;
    double sum = 0;
    for (size_t i = 0; i < step; i++) sum += (double)x[part * step + i] * x[part * step + i];
    out[part] = sum;
}
static void run_naive(void) {
    naive_kernel<<<grid_of(parts, WARP), WARP, 0, stream>>>(out, x, parts, step);
}
static __global__ void atomics_kernel(double *out, const float *x, size_t step) {
    __shared__ double of_warps[WARP];
    double sum = 0;
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < step;
         i += (size_t)gridDim.x * BLOCK) {
        double value = x[blockIdx.y * step + i];
        sum += value * value;
    }
    sum = block_sum(sum, of_warps);
    if (threadIdx.x == 0) atomicAdd(&out[blockIdx.y], sum);
}
static void run_atomics(void) {
    dev_zero(out, parts * sizeof(double));
    dim3 grid((unsigned)min_size(div_up(step, BLOCK), 8), (unsigned)parts);
    atomics_kernel<<<grid, BLOCK, 0, stream>>>(out, x, step);
}
static __global__ void tree_kernel(double *out, const float *x, size_t step) {
    __shared__ double sums[BLOCK];
    double sum = 0;
    for (size_t i = threadIdx.x; i < step; i += BLOCK) {
        double value = x[blockIdx.x * step + i];
        sum += value * value;
    }
    sums[threadIdx.x] = sum;
    for (unsigned half = BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}
static void run_tree(void) {
    tree_kernel<<<grid_of(parts, 1), BLOCK, 0, stream>>>(out, x, step);
}
static void run_shipped(void) { sum_squares(out, x, parts, step); }
static const Rung rungs[] = { { "naive", run_naive }, { "atomics", run_atomics },
                              { "tree", run_tree }, { "shipped", run_shipped } };

static void climb(const size_t *shape) {
    parts = shape[0], step = shape[1];
    R grads(parts * step, 1);
    Array<double> sums(parts);
    cpu::sum_squares(sums.cpu, grads.cpu, parts, step);
    x = grads.dev, out = sums.dev;
    Ladder l = { "sum_squares" };
    snprintf(l.shape, sizeof l.shape, "%zu parts of %zu", parts, step);
    l.elements = (double)(parts * step), l.bytes = 4.0 * (double)(parts * step);
    ladder_output(&l, sums, 0x1p-53 * (double)step);
    ladder_climb(&l, rungs);
}
int main(int argc, char **argv) {
    static const size_t awkward[] = { 5, 1333 }, emulated[] = { 16, 4096 };
    static const size_t full[] = { 256, 27696 }; // a layer of 124M
    return ladder_main(argc, argv, climb, awkward, emulated, full);
}
