// tiled_gemm.cu: C = A B through tiles in shared memory.
//
// Every element of A is needed by a whole row of C. Reading it from device memory each time would
// cost N loads; a block of 16 x 16 threads instead loads one 16 x 16 tile of A and of B, and uses
// every element 16 times. The tiles are padded by one column so that a column lies in 16 banks.
//
// Build and run without a GPU: dev/emu/run dev/emu/samples/tiled_gemm.cu
// With one:                    nvcc -o tiled_gemm dev/emu/samples/tiled_gemm.cu && ./tiled_gemm
#include <cuda_runtime.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

static void check(cudaError_t e, int line) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s:%d: %s\n", __FILE__, line, cudaGetErrorString(e));
    exit(1);
}
#define CUDA(call) check(call, __LINE__)

template <int TILE>
__global__ void __launch_bounds__(TILE * TILE)
tiled_gemm(float* C, const float* A, const float* B, int M, int N, int K) {
    __shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1];
    int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        int ka = k0 + threadIdx.x, kb = k0 + threadIdx.y;
        a[threadIdx.y][threadIdx.x] = row < M && ka < K ? A[(size_t)row * K + ka] : 0;
        b[threadIdx.y][threadIdx.x] = kb < K && col < N ? B[(size_t)kb * N + col] : 0;
        __syncthreads();                             // the tile is complete
        for (int k = 0; k < TILE; k++) sum += a[threadIdx.y][k] * b[k][threadIdx.x];
        __syncthreads();                             // nobody reads it any more
    }
    if (row < M && col < N) C[(size_t)row * N + col] = sum;
}

int main() {
    const int M = 70, N = 45, K = 100, TILE = 16;    // no multiples of the tile
    std::vector<float> A(M * K), B(K * N), C(M * N);
    for (int i = 0; i < M * K; i++) A[i] = (float)(i * 7 % 23 - 11) / 16;
    for (int i = 0; i < K * N; i++) B[i] = (float)(i * 5 % 19 - 9) / 16;
    float *dA, *dB, *dC;
    CUDA(cudaMalloc(&dA, A.size() * sizeof(float)));
    CUDA(cudaMalloc(&dB, B.size() * sizeof(float)));
    CUDA(cudaMalloc(&dC, C.size() * sizeof(float)));
    CUDA(cudaMemcpy(dA, A.data(), A.size() * sizeof(float), cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(dB, B.data(), B.size() * sizeof(float), cudaMemcpyHostToDevice));

    dim3 grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE), block(TILE, TILE);
    tiled_gemm<TILE><<<grid, block>>>(dC, dA, dB, M, N, K);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(C.data(), dC, C.size() * sizeof(float), cudaMemcpyDeviceToHost));

    double worst = 0;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < K; k++) sum += (double)A[i * K + k] * B[k * N + j];
            double error = fabs(sum - C[i * N + j]);
            if (!(error <= worst)) worst = error;    // a NaN gets through to the verdict
        }
    bool ok = worst == 0;                            // products are multiples of 1/256: exact
    printf("C (%d,%d) = A (%d,%d) B (%d,%d): max error %.2g, must be 0: %s\n", M, N, M, K, K, N,
           worst, ok ? "OK" : "WRONG");
    CUDA(cudaFree(dA));
    CUDA(cudaFree(dB));
    CUDA(cudaFree(dC));
    return ok ? 0 : 1;
}
