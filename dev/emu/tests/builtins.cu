// builtins.cu: what nvcc provides and cuda_host.h imitates, each against its definition.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <device_launch_parameters.h>
#include "test.h"
namespace cg = cooperative_groups;

// Every lane writes its results into its own column: out[k * 32 + lane].
__global__ void warp_operations(int* out, int* n) {
    int lane = threadIdx.x, k = 0;
    auto put = [&](int v) { out[k++ * 32 + lane] = v; };
    put(__shfl_sync(~0u, lane, 5));
    put(__shfl_sync(~0u, lane, 3, 8));                       // lane 3 of my segment of 8
    put(__shfl_xor_sync(~0u, lane, 16));
    put(__shfl_up_sync(~0u, lane, 1));
    put(__shfl_down_sync(~0u, lane, 2, 16));
    put((int)__ballot_sync(~0u, lane % 3 == 0));
    put(__any_sync(~0u, lane == 7));
    put(__all_sync(~0u, lane < 31));
    put(__reduce_add_sync(~0u, lane));
    put(__reduce_max_sync(~0u, lane % 7));
    put(lane < 8 ? __reduce_add_sync(0x000000ffu, lane) : __reduce_add_sync(0xffffff00u, lane));
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    put(cg::reduce(tile, lane, cg::plus<int>()));
    put(tile.shfl(lane, 2));
    put((int)tile.ballot(lane % 2));
    auto pair = cg::tiled_partition<2>(tile);                // ranks are among its parent's tiles
    put((int)(pair.meta_group_rank() * 10 + pair.meta_group_size()));
    put((int)__match_any_sync(~0u, lane % 16));
    if (lane == 0) *n = k;
}
static int expected_warp(int k, int l) {
    switch (k) {
    case 0: return 5;
    case 1: return l / 8 * 8 + 3;
    case 2: return l ^ 16;
    case 3: return l ? l - 1 : 0;
    case 4: return l % 16 < 14 ? l + 2 : l;
    case 5: return 0x49249249;
    case 6: return 1;
    case 7: return 0;
    case 8: return 31 * 32 / 2;
    case 9: return 6;
    case 10: return l < 8 ? 28 : 496 - 28;
    case 11: return 8 * (l / 8 * 8) + 28;
    case 12: return l / 8 * 8 + 2;
    case 13: return 0xaa;
    case 14: return l % 8 / 2 * 10 + 4;
    case 15: return 0x10001 << l % 16;
    }
    return -1;
}

__global__ void block_votes(int* out) {
    int t = threadIdx.x;
    out[t] = __syncthreads_count(t % 3 == 0);
    out[96 + t] = __syncthreads_or(t == 95);
    out[192 + t] = __syncthreads_and(t != 95);
}

__global__ void atomics(int* i, unsigned* u, float* f, unsigned long long* big,
                        __nv_bfloat162* pair) {
    atomicAdd(&i[0], 2);
    atomicSub(&i[1], 1);
    atomicMax(&i[2], (int)threadIdx.x);
    atomicMin(&i[3], (int)threadIdx.x);
    atomicOr((unsigned*)&i[4], 1u << (threadIdx.x % 32));
    atomicAnd((unsigned*)&i[5], ~(1u << (threadIdx.x % 32)));
    atomicInc(u, 9);
    atomicAdd(f, 0.5f);
    atomicAdd(big, 1ull << 40);
    atomicAdd(pair, __floats2bfloat162_rn(1, 2));
    if (threadIdx.x == 0) atomicExch(&i[6], 77);
    if (threadIdx.x == 0) atomicCAS(&i[7], 0, 5);
}

__constant__ float table[4];
__device__ float device_global;
__global__ void globals(float* out) {
    if (threadIdx.x < 4) out[threadIdx.x] = table[threadIdx.x] * 2;
    if (threadIdx.x == 0) device_global = 9;
    float sum = max(NAN, 1.0f) + min(2, 3u) + rsqrtf(4.0f) + __popc(255) + __clz(1);
    if (threadIdx.x == 0) out[4] = sum;
}

// Bits, bit casts and roundings; a pointer cast that C++ forbids and every GPU program makes.
__device__ float flip_sign(float* f, unsigned* bits) {
    *f = 2;
    *bits ^= 0x80000000u;
    return *f;
}
__global__ void bits(int* out, float* f, unsigned* f_bits) {
    int k = 0;
    out[k++] = __popcll(~0ull) == 64 && __clzll(1) == 63 && __ffsll(1ll << 40) == 41;
    out[k++] = __longlong_as_double(__double_as_longlong(1.5) + 1) > 1.5;
    out[k++] = __float2int_rd(-2.5f) == -3 && __float2int_ru(-2.5f) == -2;
    out[k++] = __float2int_rz(-2.5f) == -2;
    out[k++] = flip_sign(f, f_bits) == -2;
    __half two = __float2half(2), nine = __float2half(9);
    out[k++] = __half2float(__hfma(two, nine, nine)) == 27 && __half2float(hsqrt(nine)) == 3;
    __nv_bfloat162 x = __float2bfloat162_rn(3);
    out[k++] = __high2float(__hfma2(x, x, x)) == 12;
    for (long long start = clock64(); clock64() - start < 1000;) continue;       // must end
    out[k++] = 1;
}
__global__ void add_one(int* out, const int* in) { out[threadIdx.x] = in[threadIdx.x] + 1; }
static void test_bits() {
    int* out = device_alloc<int>(8);
    float* f = device_alloc<float>(1);
    bits<<<1, 1>>>(out, f, (unsigned*)f);
    std::vector<int> r = to_host(out, 8);
    for (int k = 0; k < 8; k++) {
        if (r[k] != 1) printf("bits %d\n", k);
        CLAIM(r[k] == 1);
    }
    CUDA(cudaFree(out));
    CUDA(cudaFree(f));
}
// What the host may write and a kernel may read: managed and pinned memory.
static void test_host_memory() {
    int *managed, *pinned;
    CUDA(cudaMallocManaged(&managed, 64 * sizeof(int)));
    CUDA(cudaMallocHost(&pinned, 32 * sizeof(int)));
    for (int i = 0; i < 32; i++) managed[i] = pinned[i] = i;
    add_one<<<1, 32>>>(managed + 32, managed);
    add_one<<<1, 32>>>(pinned, pinned);
    CUDA(cudaDeviceSynchronize());
    CLAIM(managed[63] == 32 && pinned[31] == 32);
    CUDA(cudaFree(managed));
    CUDA(cudaFreeHost(pinned));
}
static void test_errors() {
    cudaDeviceProp p;
    float values[8] = {};
    CLAIM(cudaGetDeviceProperties(&p, 99) == cudaErrorInvalidDevice);
    CUDA(cudaGetDeviceProperties(&p, 0));
    CLAIM(p.managedMemory && p.unifiedAddressing);
    CLAIM(cudaMemcpyToSymbol(table, values, sizeof values) == cudaErrorInvalidValue);
    CLAIM(cudaMemcpyToSymbol(table, values, 4, 16) == cudaErrorInvalidValue);
    CLAIM(cudaMemcpyFromSymbol(values, table, 8, 12) == cudaErrorInvalidValue);
    CLAIM(!strcmp(cudaGetErrorName(cudaGetLastError()), "cudaErrorInvalidValue"));
    CLAIM(cudaGetLastError() == cudaSuccess);
}

// Dynamic shared memory through 32-bit addresses, cp.async with zero fill, ldmatrix and its .trans.
__global__ void shared_addresses(uint32_t* out, const uint16_t* in) {
    extern __shared__ __align__(16) uint16_t tile[];
    int lane = threadIdx.x;
    emu::cp_async(tile + lane * 8, in + lane * 8, 16, lane < 24 ? 16 : 8, emu::nowhere);
    emu::cp_async_commit();
    emu::cp_async_wait(0);
    __syncthreads();
    uint32_t address = (uint32_t)__cvta_generic_to_shared(tile), r[4], t[4];
    emu::ldmatrix<4, false>(r, address + lane * 16);
    emu::ldmatrix<4, true>(t, address + lane * 16);
    for (int i = 0; i < 4; i++) out[i * 32 + lane] = r[i], out[(4 + i) * 32 + lane] = t[i];
}
static uint16_t tile_element(int row, int col) { return row >= 24 && col >= 4 ? 0 : row * 8 + col; }

static void test_warp_operations() {
    int *out = device_alloc<int>(32 * 32), *n = device_alloc<int>(1);
    warp_operations<<<1, 32>>>(out, n);
    int cases = to_host(n, 1)[0];
    std::vector<int> r = to_host(out, cases * 32);
    CLAIM(cases == 16);
    for (int k = 0; k < cases; k++)
        for (int l = 0; l < 32; l++)
            if (r[k * 32 + l] != expected_warp(k, l)) {
                printf("warp operation %d, lane %d: %d, expected %d\n", k, l, r[k * 32 + l],
                       expected_warp(k, l));
                claim(false, "warp operations");
            }
    CUDA(cudaFree(out));
    CUDA(cudaFree(n));
}

static void test_block_and_atomics() {
    int* votes = device_alloc<int>(3 * 96);
    block_votes<<<1, 96>>>(votes);
    std::vector<int> r = to_host(votes, 3 * 96);
    bool ok = true;
    for (int t = 0; t < 96; t++) ok = ok && r[t] == 32 && r[96 + t] == 1 && r[192 + t] == 0;
    claim(ok, "__syncthreads_count, _or, _and");

    int* i = to_device(std::vector<int>{0, 0, 0, 100, 0, -1, 0, 0});
    unsigned* u = to_device(std::vector<unsigned>{0});
    float* f = to_device(std::vector<float>{0});
    auto* big = to_device(std::vector<unsigned long long>{1});
    auto* pair = to_device(std::vector<__nv_bfloat162>{__floats2bfloat162_rn(0, 0)});
    atomics<<<2, 64>>>(i, u, f, big, pair);
    r = to_host(i, 8);
    CLAIM(r[0] == 256 && r[1] == -128 && r[2] == 63 && r[3] == 0);
    CLAIM(r[4] == -1 && r[5] == 0 && r[6] == 77 && r[7] == 5);
    CLAIM(to_host(u, 1)[0] == 128 % 10 && to_host(f, 1)[0] == 64);
    CLAIM(to_host(big, 1)[0] == (128ull << 40) + 1);
    CLAIM(__high2float(to_host(pair, 1)[0]) == 256);
    for (void* p : {(void*)votes, (void*)i, (void*)u, (void*)f, (void*)big, (void*)pair})
        CUDA(cudaFree(p));
}

static void test_globals() {
    float *out = device_alloc<float>(5), values[4] = {1, 2, 3, 4}, g;
    CUDA(cudaMemcpyToSymbol(table, values, sizeof values));
    globals<<<1, 32>>>(out);
    std::vector<float> r = to_host(out, 5);
    CUDA(cudaMemcpyFromSymbol(&g, device_global, sizeof g));
    CLAIM(r[0] == 2 && r[3] == 8 && g == 9);
    CLAIM(r[4] == 1 + 2 + 0.5f + 8 + 31);                    // max drops a NaN
    CUDA(cudaFree(out));
}

static void test_shared_addresses() {
    std::vector<uint16_t> in(32 * 8);
    for (int i = 0; i < 32 * 8; i++) in[i] = i;
    uint16_t* d_in = to_device(in);
    uint32_t* out = device_alloc<uint32_t>(8 * 32);
    shared_addresses<<<1, 32, 32 * 16>>>(out, d_in);
    std::vector<uint32_t> r = to_host(out, 8 * 32);
    bool ok = true;
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < 32; l++) {
            int a = 8 * i + l / 4, b = l % 4 * 2;
            uint32_t plain = tile_element(a, b) | tile_element(a, b + 1) << 16;
            int c = 8 * i + b;
            uint32_t trans = tile_element(c, l / 4) | tile_element(c + 1, l / 4) << 16;
            ok = ok && r[i * 32 + l] == plain && r[(4 + i) * 32 + l] == trans;
        }
    claim(ok, "cp.async, 32-bit shared addresses, ldmatrix, ldmatrix.trans");
    CUDA(cudaFree(d_in));
    CUDA(cudaFree(out));
}

int main() {
    test_warp_operations();
    test_block_and_atomics();
    test_globals();
    test_shared_addresses();
    test_bits();
    test_host_memory();
    test_errors();
    return verdict();
}
