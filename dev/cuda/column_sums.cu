// column_sums.cu: a ladder for column_sums of section 6.2, the gradient of a bias: out[i] = the sum
// over n of d (n,i).
//   naive       a thread for a column: neighbours read neighbours, but there are only OC threads,
//               a few for each multiprocessor, and each waits for N loads, one after the other
//   atomics     rows are cut into slices, a thread for a column of a slice; sums meet by atomicAdd:
//               threads enough, but the order of additions, and with it the bits, is left to chance
//   slices      the slices' sums go to memory, and a second kernel adds them in order: a slice more
//               or less costs next to nothing, and the bits are the same every time
//   shipped     16 bytes a load, and 8 warps share the rows of a slice: more loads under way. The
//               slices are added by 8 warps, too
#include "ladder.h"

static size_t N, C;
static floatX *d;                  // (N,C)
static float *out, *of_slices;     // (C), (SLICES,C)
enum { SLICES = 128 };

static __global__ void naive_kernel(float *out, const floatX *d, size_t N, size_t C) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= C) return;
    float sum = 0;
    for (size_t n = 0; n < N; n++) sum += f32(d[n * C + i]);
    out[i] = sum;
}
static void run_naive(void) {
    naive_kernel<<<grid_of(C, BLOCK), BLOCK, 0, stream>>>(out, d, N, C);
}
static __global__ void atomics_kernel(float *out, const floatX *d, size_t N, size_t C,
                                      size_t rows) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * rows;
    if (i >= C) return;
    float sum = 0;
    for (size_t n = first; n < first + rows && n < N; n++) sum += f32(d[n * C + i]);
    atomicAdd(&out[i], sum);
}
static void run_atomics(void) {
    size_t rows = div_up(N, SLICES);
    dim3 grid(grid_of(C, BLOCK), (unsigned)div_up(N, rows));
    dev_zero(out, C * sizeof(float));
    atomics_kernel<<<grid, BLOCK, 0, stream>>>(out, d, N, C, rows);
}
static __global__ void slices_of_rows_kernel(float *of_slices, const floatX *d, size_t N, size_t C,
                                             size_t rows) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * rows;
    if (i >= C) return;
    float sum = 0;
    for (size_t n = first; n < first + rows && n < N; n++) sum += f32(d[n * C + i]);
    of_slices[blockIdx.y * C + i] = sum;
}
static __global__ void add_slices_kernel(float *out, const float *of_slices, size_t slices,
                                         size_t C) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= C) return;
    float sum = 0;
    for (size_t s = 0; s < slices; s++) sum += of_slices[s * C + i];
    out[i] = sum;
}
static void run_slices(void) {
    size_t rows = div_up(N, SLICES), slices = div_up(N, rows);
    dim3 grid(grid_of(C, BLOCK), (unsigned)slices);
    slices_of_rows_kernel<<<grid, BLOCK, 0, stream>>>(of_slices, d, N, C, rows);
    add_slices_kernel<<<grid_of(C, BLOCK), BLOCK, 0, stream>>>(out, of_slices, slices, C);
}
static void run_shipped(void) { column_sums(out, NULL, d, NULL, NULL, NULL, N, C, 0); }
static const Rung rungs[] = { { "naive", run_naive }, { "atomics", run_atomics },
                              { "slices", run_slices }, { "shipped", run_shipped } };

static void climb(const size_t *shape) {
    N = shape[0], C = shape[1];
    ops_init(1, N, div_up(C, 4), 1, 0);
    X x(N * C, 1), inp(N * 8, 2), w(C * 8, 3), dx(N * 8); // a matmul of 8 channels: see its bias
    R sum(C), dw(C * 8), partial(SLICES * C);
    cpu::ops_init(1, N, max_size(C, 8), 1, 0);
    cpu::matmul_backward(dx.cpu, dw.cpu, sum.cpu, x.cpu, inp.cpu, w.cpu, NULL, N, 8, C, 0);
    d = x.dev, out = sum.dev, of_slices = partial.dev;
    Ladder l = { "column_sums" };
    snprintf(l.shape, sizeof l.shape, "N=%zu OC=%zu", N, C);
    l.elements = (double)(N * C), l.bytes = (double)(N * C * sizeof(floatX));
    ladder_output(&l, sum, 4 * unit * sqrt((double)N));
    ladder_climb(&l, rungs);
    ops_free(), cpu::ops_free();
}
int main(int argc, char **argv) {
    static const size_t awkward[] = { 2061, 72 }, emulated[] = { 300, 256 };
    static const size_t full[] = { 16384, 3072 };
    return ladder_main(argc, argv, climb, awkward, emulated, full);
}
