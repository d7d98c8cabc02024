// cooperative_groups.cu: softmax of rows, one warp a row, in the words of cooperative groups.
//
// A group is a set of threads that can synchronise, shuffle and reduce together. Here a block is
// partitioned into tiles of 32 threads (warps); a tile takes a row, finds its maximum, then its sum
// of exponentials, and divides. Compare warp_sum in reduction.cu: the same, spelled by hand.
//
// Build and run without a GPU: dev/emu/run dev/emu/samples/cooperative_groups.cu
// With one:                    nvcc -o softmax dev/emu/samples/cooperative_groups.cu && ./softmax
#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>
namespace cg = cooperative_groups;

static void check(cudaError_t e, int line) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s:%d: %s\n", __FILE__, line, cudaGetErrorString(e));
    exit(1);
}
#define CUDA(call) check(call, __LINE__)

__global__ void softmax_rows(float* out, const float* in, int rows, int C) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (row >= rows) return;                         // a whole warp leaves: no barrier follows
    in += (size_t)row * C;
    out += (size_t)row * C;

    float largest = -INFINITY;
    for (int c = warp.thread_rank(); c < C; c += warp.size()) largest = fmaxf(largest, in[c]);
    largest = cg::reduce(warp, largest, cg::greater<float>());

    float sum = 0;
    for (int c = warp.thread_rank(); c < C; c += warp.size()) sum += expf(in[c] - largest);
    sum = cg::reduce(warp, sum, cg::plus<float>());

    for (int c = warp.thread_rank(); c < C; c += warp.size()) out[c] = expf(in[c] - largest) / sum;
}

int main() {
    const int rows = 37, C = 100;
    std::vector<float> in(rows * C), out(rows * C);
    for (int i = 0; i < rows * C; i++) in[i] = (float)(i * 13 % 97 - 48) / 8;
    float *d_in, *d_out;
    CUDA(cudaMalloc(&d_in, in.size() * sizeof(float)));
    CUDA(cudaMalloc(&d_out, out.size() * sizeof(float)));
    CUDA(cudaMemcpy(d_in, in.data(), in.size() * sizeof(float), cudaMemcpyHostToDevice));
    softmax_rows<<<(rows + 3) / 4, 128>>>(d_out, d_in, rows, C);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(out.data(), d_out, out.size() * sizeof(float), cudaMemcpyDeviceToHost));

    double worst = 0;
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (int c = 0; c < C; c++) sum += exp((double)in[r * C + c]);
        for (int c = 0; c < C; c++) {
            double error = fabs(exp((double)in[r * C + c]) / sum - out[r * C + c]);
            if (!(error <= worst)) worst = error;    // a NaN gets through to the verdict
        }
    }
    bool ok = worst <= 1e-6;
    printf("softmax of %d rows of %d: max error %.2g, tolerance 1e-6: %s\n", rows, C, worst,
           ok ? "OK" : "WRONG");
    CUDA(cudaFree(d_in));
    CUDA(cudaFree(d_out));
    return ok ? 0 : 1;
}
