// planted_bugs.cu NAME: one classical CUDA bug, by name; "none" runs the same kernels without it.
// Prints "result right" or "result WRONG", unless the emulator stops it first. README.md has the
// table of what must find which; test.sh reads that table and checks it.
#include "test.h"

#define BUGS(X) \
    X(none) \
    /* inside a block */ \
    X(no_barrier) X(shared_overflow) X(shared_uninitialised) X(barrier_in_half_a_block) \
    X(two_barriers) X(exit_before_barrier) X(shuffle_in_half_a_warp) \
    X(shuffle_mask_without_caller) X(shuffle_from_outside_mask) X(no_syncwarp) X(local_overflow) \
    X(stack_overflow) \
    /* device memory */ \
    X(global_write_overflow) X(global_read_overflow) X(global_race) X(misaligned_float4) \
    X(host_pointer_in_kernel) X(no_threadfence) X(use_after_free) X(relies_on_zeroed_memory) \
    /* launches and the host */ \
    X(too_many_threads) X(more_threads_than_launch_bounds) X(too_much_shared) \
    X(copy_in_wrong_direction) X(copy_too_long) X(double_free) X(host_writes_device_memory) \
    X(no_event_between_streams) X(host_reads_too_early) X(pinned_source_changed_too_early)
#define ENUM(name) name,
#define STRING(name) #name,
enum Bug { BUGS(ENUM) num_bugs };
const char* const names[num_bugs] = { BUGS(STRING) };

// --- kernels: each correct when bug is none ---
__global__ void block_sum(float* out, const float* in, Bug bug) {            // 256 threads
    __shared__ float part[8];
    __shared__ float total;
    if (threadIdx.x < 8) part[threadIdx.x] = 0;
    __syncthreads();
    float v = in[blockIdx.x * 256 + threadIdx.x];
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    int first = bug == shared_overflow;                                      // writes part[8]
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32 + first] = v;
    if (bug != no_barrier) __syncthreads();
    if (threadIdx.x == 0 && bug != shared_uninitialised) {
        float s = 0;
        for (int i = first; i < 8 + first; i++) s += part[i];
        total = s;
    }
    __syncthreads();
    out[blockIdx.x * 256 + threadIdx.x] = total;
}

__global__ void reverse_block(float* out, Bug bug) {                         // 64 threads
    __shared__ float x[64];
    x[threadIdx.x] = threadIdx.x;
    if (bug == exit_before_barrier && threadIdx.x == 63) { out[0] = 63; return; }
    if (bug == barrier_in_half_a_block) {
        if (threadIdx.x < 32) __syncthreads();
    } else if (bug == two_barriers) {
        if (threadIdx.x & 1) __syncthreads();
        else __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = x[63 - threadIdx.x];
}

__global__ void shuffles(float* out, Bug bug) {                              // 32 threads
    int lane = threadIdx.x;
    float v = lane;
    if (bug == shuffle_in_half_a_warp) {
        if (lane < 16) v += __shfl_xor_sync(0xffffffffu, v, 1);
    } else if (bug == shuffle_mask_without_caller) {
        if (lane < 16) v += __shfl_xor_sync(0x000000ffu, v, 1);
    } else if (bug == shuffle_from_outside_mask) {
        v = __shfl_sync(0x0000ffffu << (lane & 16), v, lane ^ 16);
    } else {
        v += __shfl_xor_sync(~0u, v, 1);
    }
    out[lane] = v;
}

__global__ void reverse_warp(float* out, Bug bug) {                          // 32 threads
    __shared__ float x[32];
    x[threadIdx.x] = -1;                                                     // so the race is all:
    __syncwarp();                                                            // no unwritten memory
    x[threadIdx.x] = threadIdx.x;
    if (bug != no_syncwarp) __syncwarp();
    out[threadIdx.x] = x[31 - threadIdx.x];
}

__device__ float deep(float* a, int depth) {                                 // 1 KB a call
    volatile float local[256];
    local[depth % 256] = a[0];
    return depth ? deep(a, depth - 1) + local[depth % 256] : local[0];
}

__global__ void add_one(float* out, const float* in, int n, Bug bug, const float* host) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] + 1;
    if (bug == global_write_overflow && i == n) out[i] = 1;
    if (bug == global_read_overflow && i == n && in[i] == 12345.0f) out[n - 1] = 0;
    if (bug == global_race) out[0] += 1;
    if (i != 0) return;
    if (bug == misaligned_float4) {
        float4 v = *(const float4*)(in + 1);
        out[0] = v.x;
    }
    if (bug == host_pointer_in_kernel) out[0] = host[0];
    if (bug == stack_overflow) out[0] = deep(out, 100000);
    if (bug == local_overflow) {
        float a[4];
        volatile int k = 4;
        a[k] = 1;
        out[0] = a[k];
    }
}

// The last block to arrive adds what all blocks left in scratch.
__global__ void last_block_sums(float* out, float* scratch, unsigned* arrived, Bug bug) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        scratch[blockIdx.x] = blockIdx.x + 1;
        if (bug != no_threadfence) __threadfence();
        last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || threadIdx.x) return;
    float s = 0;
    for (unsigned i = 0; i < gridDim.x; i++) s += scratch[i];
    *out = s;
}

__global__ void through_dynamic_shared(float* out) {
    extern __shared__ float s[];
    s[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}
__global__ void __launch_bounds__(128) fill_bounded(float* p, float v, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i] = v;
}
__global__ void fill(float* p, float v, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i] = v;
}
__global__ void add(float* p, const float* q, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i] += q[i];
}

// --- the parts of main, each a check that holds without the bug ---
const int n = 512;
static std::vector<float> h(n);
static float *in, *out;

static void in_a_block(Bug bug) {
    block_sum<<<2, 256>>>(out, in, bug);
    CUDA(cudaDeviceSynchronize());
    std::vector<float> r = to_host(out, n);
    for (int b = 0; b < n; b += 256) {
        float s = 0;
        for (int i = 0; i < 256; i++) s += h[b + i];
        for (int i = 0; i < 256; i++) if (r[b + i] != s) return claim(false, "block sum");
    }
    reverse_block<<<1, 64>>>(out, bug);
    r = to_host(out, 64);
    for (int i = 0; i < 64; i++) if (r[i] != 63 - i) return claim(false, "reverse in a block");
    shuffles<<<1, 32>>>(out, bug);
    r = to_host(out, 32);
    for (int i = 0; i < 32; i++) if (r[i] != r[i]) return claim(false, "shuffle gives NaN");
    reverse_warp<<<1, 32>>>(out, bug);
    r = to_host(out, 32);
    for (int i = 0; i < 32; i++) if (r[i] != 31 - i) return claim(false, "reverse in a warp");
}

static void in_device_memory(Bug bug) {
    float host[4] = {2, 2, 2, 2};
    add_one<<<3, 256>>>(out, in, n, bug, bug == host_pointer_in_kernel ? host : in);
    CUDA(cudaDeviceSynchronize());
    std::vector<float> r = to_host(out, n);
    for (int i = 1; i < n; i++) if (r[i] != h[i] + 1) return claim(false, "add one");

    float* scratch = device_alloc<float>(32);
    unsigned* arrived = device_alloc<unsigned>(1);
    if (bug != relies_on_zeroed_memory) CUDA(cudaMemset(arrived, 0, sizeof *arrived));
    CUDA(cudaMemset(out, 0, sizeof *out));
    last_block_sums<<<32, 64>>>(out, scratch, arrived, bug);
    CLAIM(to_host(out, 1)[0] == 32 * 33 / 2);
    CUDA(cudaFree(arrived));
    CUDA(cudaFree(scratch));

    float* p = device_alloc<float>(n);
    if (bug == use_after_free) CUDA(cudaFree(p));
    fill<<<2, 256>>>(p, 1, n);
    if (bug != use_after_free) CUDA(cudaFree(p));
    if (bug == double_free) CUDA(cudaFree(p));
}

static void launches(Bug bug) {
    fill<<<2, bug == too_many_threads ? 2048 : 256>>>(out, 1, n);
    CLAIM(cudaGetLastError() == cudaSuccess);
    fill_bounded<<<4, bug == more_threads_than_launch_bounds ? 256 : 128>>>(out, 1, n);
    if (bug != too_much_shared)
        CUDA(cudaFuncSetAttribute(through_dynamic_shared,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
    through_dynamic_shared<<<1, 64, 100 << 10>>>(out);
    CLAIM(cudaGetLastError() == cudaSuccess);
}

static void host_side(Bug bug) {
    std::vector<float> r(2 * n);
    cudaMemcpyKind kind = cudaMemcpyDeviceToHost;
    if (bug == copy_in_wrong_direction) kind = cudaMemcpyHostToDevice;
    CUDA(cudaMemcpy(r.data(), in, (bug == copy_too_long ? n + 1 : n) * sizeof(float), kind));
    if (bug == host_writes_device_memory) out[3] = 1;
}

static void streams(Bug bug) {
    cudaStream_t s, t;
    cudaEvent_t filled;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming));
    fill<<<2, 256, 0, s>>>(out, 5, n);
    CUDA(cudaEventRecord(filled, s));
    if (bug != no_event_between_streams) CUDA(cudaStreamWaitEvent(t, filled, 0));
    add<<<2, 256, 0, t>>>(out, in, n);
    CUDA(cudaDeviceSynchronize());
    std::vector<float> r = to_host(out, n);
    for (int i = 0; i < n; i++) if (r[i] != 5 + h[i]) { claim(false, "fill, then add"); break; }

    float* pinned;
    CUDA(cudaMallocHost(&pinned, n * sizeof(float)));
    pinned[0] = 0;
    CUDA(cudaMemcpyAsync(pinned, out, n * sizeof(float), cudaMemcpyDeviceToHost, s));
    if (bug != host_reads_too_early) CUDA(cudaStreamSynchronize(s));
    CLAIM(pinned[0] == 5);
    CUDA(cudaStreamSynchronize(s));
    pinned[0] = 7;
    CUDA(cudaMemcpyAsync(out, pinned, sizeof(float), cudaMemcpyHostToDevice, s));
    if (bug == pinned_source_changed_too_early) pinned[0] = 8;
    CUDA(cudaStreamSynchronize(s));
    CLAIM(to_host(out, 1)[0] == 7);
    CUDA(cudaFreeHost(pinned));
    CUDA(cudaEventDestroy(filled));
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaStreamDestroy(t));
}

int main(int argc, char** argv) {
    int bug = 0;
    while (bug < num_bugs && (argc < 2 || strcmp(names[bug], argv[1]))) bug++;
    if (bug == num_bugs) {
        printf("usage: planted_bugs NAME, one of:");
        for (const char* name : names) printf(" %s", name);
        printf("\n");
        return 2;
    }
    for (int i = 0; i < n; i++) h[i] = i % 7;
    in = to_device(h);
    out = device_alloc<float>(n);
    CUDA(cudaMemset(out, 0, n * sizeof(float)));
    in_a_block((Bug)bug);
    in_device_memory((Bug)bug);
    launches((Bug)bug);
    host_side((Bug)bug);
    streams((Bug)bug);
    CUDA(cudaFree(in));
    CUDA(cudaFree(out));
    return verdict();
}
