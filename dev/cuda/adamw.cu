// adamw.cu: a ladder for adamw_update, section 6.7.
//   naive       a kernel for each line of the algorithm: clip, m, v, weight, and its rounded copy.
//               Every array is read and written again by the next: 54 bytes a parameter, not 30
//   fused       a thread for a parameter does all of it in registers, and clips on the way
//   stride      as fused, with few blocks whose threads take every so many-th parameter: the blocks
//               start once; memory is the bound, and gains nothing
//   shipped     a thread for 8 parameters, every access 16 bytes: fewer instructions, and more
//               bytes under way for each thread
#include "ladder.h"

static size_t count;
static floatX *w;               // (count)
static float *master, *m, *v, *g, *clipped;
static const AdamW hyper = { 0.5f, 0.75f, 0.875f, 1e-8f, 0.0625f, 2, 0.875f, 0, 0 };

static __global__ void clip_kernel(float *clipped, const float *g, size_t count, AdamW h) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) clipped[i] = g[i] * h.grad_scale;
}
static __global__ void mean_kernel(float *m, const float *g, size_t count, AdamW h) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) m[i] = h.beta1 * m[i] + (1 - h.beta1) * g[i];
}
static __global__ void square_kernel(float *v, const float *g, size_t count, AdamW h) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) v[i] = h.beta2 * v[i] + (1 - h.beta2) * g[i] * g[i];
}
static __global__ void weight_kernel(float *master, const float *m, const float *v, size_t count,
                                     AdamW h) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float root = sqrtf(v[i]) * h.root_correction + h.eps;
    master[i] = master[i] * h.keep - h.step_size * m[i] / root;
}
static __global__ void round_kernel(floatX *w, const float *master, size_t count) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) w[i] = fX(master[i]);
}
static void run_naive(void) {
    unsigned blocks = grid_of(count, BLOCK);
    clip_kernel<<<blocks, BLOCK, 0, stream>>>(clipped, g, count, hyper);
    mean_kernel<<<blocks, BLOCK, 0, stream>>>(m, clipped, count, hyper);
    square_kernel<<<blocks, BLOCK, 0, stream>>>(v, clipped, count, hyper);
    weight_kernel<<<blocks, BLOCK, 0, stream>>>(master, m, v, count, hyper);
    round_kernel<<<blocks, BLOCK, 0, stream>>>(w, master, count);
}
static __global__ void stride_kernel(floatX *w, float *master, float *m, float *v, const float *g,
                                     size_t count, AdamW h) { // one parameter a thread, or a stride
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        master[i] = adamw_one(master[i], m + i, v + i, g[i], h);
        w[i] = fX(master[i]);
    }
}
static void run_fused(void) {
    stride_kernel<<<grid_of(count, BLOCK), BLOCK, 0, stream>>>(w, master, m, v, g, count, hyper);
}
static void run_stride(void) {
    stride_kernel<<<8 * (unsigned)device.multiProcessorCount, BLOCK, 0, stream>>>(w, master, m, v,
                                                                                  g, count, hyper);
}
static void run_shipped(void) { adamw_update(w, master, m, v, g, count, hyper); }
static const Rung rungs[] = { { "naive", run_naive }, { "fused", run_fused },
                              { "stride", run_stride }, { "shipped", run_shipped } };

static void climb(const size_t *shape) {
    count = shape[0];
    X weights(count);
    R masters(count, 2), means(count, 3), squares(count, 4, 0.5, 1), grads(count, 5), kept(count);
    const cpu::AdamW same = { 0.5, 0.75, 0.875, 1e-8f, 0.0625, 2, 0.875, 0, 0 };
    cpu::adamw_update(weights.cpu, masters.cpu, means.cpu, squares.cpu, grads.cpu, count, same);
    w = weights.dev, master = masters.dev, m = means.dev, v = squares.dev, g = grads.dev;
    clipped = kept.dev;
    Ladder l = { "adamw_update" };
    snprintf(l.shape, sizeof l.shape, "count=%zu, with master weights", count);
    l.elements = (double)count, l.bytes = (double)(count * (28 + sizeof(floatX)));
    ladder_output(&l, weights, stored + 8 * unit), ladder_output(&l, masters, 8 * unit);
    ladder_output(&l, means, 8 * unit), ladder_output(&l, squares, 8 * unit);
    ladder_climb(&l, rungs);
}
int main(int argc, char **argv) {
    static const size_t awkward[] = { 517 }, emulated[] = { 16384 };
    static const size_t full[] = { 4 * 12 * 768 * 768 }; // four layers of 124M
    return ladder_main(argc, argv, climb, awkward, emulated, full);
}
