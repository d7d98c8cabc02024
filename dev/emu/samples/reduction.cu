// reduction.cu: the sum of many floats, three ways that every CUDA program meets.
//
//   one atomic a thread      simple, and slow on a GPU: all threads queue for one address
//   shuffles, then atomics   a warp adds its 32 values in registers; one atomic per warp
//   shuffles, shared memory  warps meet in shared memory; one atomic per block
//
// Build and run without a GPU: dev/emu/run dev/emu/samples/reduction.cu
// With one:                    nvcc -o reduction dev/emu/samples/reduction.cu && ./reduction
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <vector>

static void check(cudaError_t e, int line) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s:%d: %s\n", __FILE__, line, cudaGetErrorString(e));
    exit(1);
}
#define CUDA(call) check(call, __LINE__)

__global__ void sum_atomic(float* sum, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(sum, x[i]);
}

// After the loop every lane holds the sum of the warp: each step adds the lane at distance d.
__device__ float warp_sum(float v) {
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
__global__ void sum_warp(float* sum, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = warp_sum(i < n ? x[i] : 0.0f);         // every lane takes part, also beyond n
    if (threadIdx.x % 32 == 0) atomicAdd(sum, v);
}

__global__ void sum_block(float* sum, const float* x, int n) {
    __shared__ float of_warp[32];
    float v = 0;
    int stride = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) v += x[i];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
    __syncthreads();                                 // without it, warp 0 may read too early
    if (threadIdx.x >= 32) return;
    v = warp_sum(threadIdx.x < blockDim.x / 32 ? of_warp[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) atomicAdd(sum, v);
}

int main() {
    const int n = 200003;                            // not a multiple of anything
    std::vector<float> x(n);
    float expected = 0;                              // multiples of 1/64 below 2^18: every order
    for (int i = 0; i < n; i++) {                    // of additions gives the same float
        x[i] = (float)(i * 37LL % 101 - 50) / 64;
        expected += x[i];
    }
    float *dx, *sum;
    CUDA(cudaMalloc(&dx, n * sizeof(float)));
    CUDA(cudaMalloc(&sum, sizeof(float)));
    CUDA(cudaMemcpy(dx, x.data(), n * sizeof(float), cudaMemcpyHostToDevice));

    bool all_ok = true;
    for (int way = 0; way < 3; way++) {
        CUDA(cudaMemset(sum, 0, sizeof(float)));
        if (way == 0) sum_atomic<<<(n + 255) / 256, 256>>>(sum, dx, n);
        if (way == 1) sum_warp<<<(n + 255) / 256, 256>>>(sum, dx, n);
        if (way == 2) sum_block<<<64, 256>>>(sum, dx, n);
        CUDA(cudaGetLastError());
        float got;
        CUDA(cudaMemcpy(&got, sum, sizeof(float), cudaMemcpyDeviceToHost));
        bool ok = got == expected;
        const char* name = way == 0 ? "atomics" : way == 1 ? "warps" : "blocks";
        printf("%-8s sum %.6f, expected %.6f: %s\n", name, got, expected, ok ? "OK" : "WRONG");
        all_ok &= ok;
    }
    CUDA(cudaFree(dx));
    CUDA(cudaFree(sum));
    return all_ok ? 0 : 1;
}
