// gelu.cu: a ladder for gelu_forward and gelu_backward, section 6.5.
//   naive       a thread for a value, x / 2 (1 + tanh(u)) as it is written; the derivative with
//               its cosh: two slow functions, and 2 bytes a load
//   sigmoid     (1 + tanh(u)) / 2 = 1 / (1 + e^-2u): one fast function, and no digits lost where
//               tanh is near -1; the derivative from the same gate
//   stride      few blocks, a thread takes every so many-th value: the blocks start once. Against
//               a new thread for each value it saves little where memory is the bound
//   shipped     a thread for 16 bytes: an eighth of the loads and stores for the same bytes
#include "ladder.h"

static size_t count;
static floatX *out, *dinp, *inp; // (count)

DEVICE float gelu_tanh(float x) {
    return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}
DEVICE float gelu_tanh_slope(float x) {
    float u = 0.7978845608f * (x + 0.044715f * x * x * x), cosh_u = coshf(u);
    return 0.5f * (1 + tanhf(u)) + 0.5f * x / (cosh_u * cosh_u) * 0.7978845608f *
           (1 + 0.134145f * x * x);
}
static __global__ void naive_kernel(floatX *out, const floatX *inp, size_t count, int is_backward) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float x = f32(inp[i]);
    out[i] = fX(is_backward ? f32(out[i]) * gelu_tanh_slope(x) : gelu_tanh(x));
}
static void run_naive(void) {
    naive_kernel<<<grid_of(count, BLOCK), BLOCK, 0, stream>>>(out, inp, count, 0);
    naive_kernel<<<grid_of(count, BLOCK), BLOCK, 0, stream>>>(dinp, inp, count, 1);
}
static __global__ void stride_kernel(floatX *out, const floatX *inp, size_t count,
                                     int is_backward) { // one value a thread, or a stride
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        float x = f32(inp[i]);
        out[i] = fX(is_backward ? f32(out[i]) * gelu_slope(x) : gelu(x));
    }
}
static void run_blocks(unsigned blocks) {
    stride_kernel<<<blocks, BLOCK, 0, stream>>>(out, inp, count, 0);
    stride_kernel<<<blocks, BLOCK, 0, stream>>>(dinp, inp, count, 1);
}
static void run_sigmoid(void) { run_blocks(grid_of(count, BLOCK)); }
static void run_stride(void) { run_blocks(8 * (unsigned)device.multiProcessorCount); }
static void run_shipped(void) {
    gelu_forward(out, inp, count);
    gelu_backward(dinp, inp, count);
}
static const Rung rungs[] = { { "naive", run_naive }, { "sigmoid", run_sigmoid },
                              { "stride", run_stride }, { "shipped", run_shipped } };

static void climb(const size_t *shape) {
    count = shape[0];
    X x(count, 1, 6), y(count), dx(count, 2);
    inp = x.dev, out = y.dev, dinp = dx.dev;
    cpu::gelu_forward(y.cpu, x.cpu, count);
    for (size_t i = 0; i < count; i++) dx.cpu[i] *= cpu::gelu_slope(x.cpu[i]);
    Ladder l = { "gelu" };
    snprintf(l.shape, sizeof l.shape, "count=%zu, forward and backward", count);
    l.elements = (double)count, l.bytes = 5.0 * (double)(count * sizeof(floatX));
    ladder_output(&l, y, stored + 8 * unit);
    ladder_output(&l, dx, stored + 64 * unit);
    ladder_climb(&l, rungs);
}
int main(int argc, char **argv) {
    static const size_t awkward[] = { 8 * 77 }, emulated[] = { 16384 }, full[] = { 8192 * 3072 };
    return ladder_main(argc, argv, climb, awkward, emulated, full);
}
