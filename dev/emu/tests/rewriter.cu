// rewriter.cu: the spellings of launches and shared memory that cu2host.py must get right.
#include "rewriter.cuh"
#include "rewriter.cuh"
/* not code: k<<<1, 2>>>(x); __shared__ int z = 3; NULL asm("nop") */
const char* const not_code = "k<<<1, 2>>>(NULL); __shared__ int a = 1; // \" asm";   // it's <<< >>>
const char* const raw = R"-(it's k<<<1, 2>>>(NULL) "; __shared__ int a = 1;)-";

struct Pair { int a, b; };
namespace inner { __global__ void set(int* out, int v) { out[threadIdx.x] = v; } }
__global__ void over(int* out, int v) { out[threadIdx.x] = v; }
__global__ void over(int* out, float v) { out[threadIdx.x] = (int)(10 * v); }
template <class T> struct Box { T v; };
template <class A, class B> __global__ void templated(A* out, B b) { out[threadIdx.x] = b.v; }
__global__ void maybe(int* out, const int* in) { out[threadIdx.x] = in ? in[threadIdx.x] : -1; }

__global__ void
__launch_bounds__(32 * 2, 1)
declarations(int* out)
{
    __shared__ int a[2][32], b[64];
    __shared__ __align__(16) Pair pairs
        [64];
    __align__(32) __shared__ float aligned[3];
    static __shared__ volatile int flag;
    __shared__ const int* pointers[2];
    extern __shared__ __align__(8) unsigned char dynamic[];
    int t = threadIdx.x;
    a[t / 32][t % 32] = t, b[t] = 2 * t, pairs[t] = Pair{t, -t}, dynamic[t] = t;
    if (t == 0) flag = 1, pointers[1] = out, aligned[2] = 3;
    __syncthreads();
    bool ok = (size_t)aligned % 32 == 0 && (size_t)pairs % 16 == 0 && flag == 1 && aligned[2] == 3;
    out[t] = ok && pointers[1] == out ? a[1][t % 32] + b[63 - t] + pairs[t].b + dynamic[t] : -1;
}

// Two instances of one template have two variables.
template <int N> __device__ int one() {
    __shared__ int v;
    if (threadIdx.x == 0) v = N;
    __syncthreads();
    return v;
}
__global__ void instances(int* out) { out[threadIdx.x] = one<3>() * 100 + one<7>(); }

#define LAUNCH(kernel, ...) kernel<<<1, 32>>>(__VA_ARGS__)
#define LAUNCH_BIG(kernel, ...) do { \
    CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000)); \
    kernel<<<1, 32, 60000>>>(__VA_ARGS__); \
} while (0)
template <int N> __device__ __noinline__ int outlined() { return N; }
template <int A, int B> __global__ void big(int* out) { out[threadIdx.x] = outlined<A>() + B; }
struct Entry { int expected; void (*kernel)(int*, int); };

static int first(int* d) {                                   // all of 32 must agree
    std::vector<int> r = to_host(d, 32);
    for (int v : r) if (v != r[0]) return -999;
    return r[0];
}

int main() {
    asm volatile("nop" ::: "memory");                        // the host's own is left alone
    int* d = device_alloc<int>(64);
    launch_from_header(d, 5);
    CLAIM(first(d) == 5);
    ::inner::set<<<dim3(1, 1), 32, 0, NULL>>>(d, 6);
    CLAIM(first(d) == 6);
    over<<<1, 32>>>(d, 7);
    CLAIM(first(d) == 7);
    over<<<1, 32>>>(d, 0.8f);
    CLAIM(first(d) == 8);
    templated<int, Box<int>><<<(1 > 2 ? 3 : 1), (32)>>>(d,
                                                        Box<int>{9});
    CLAIM(first(d) == 9);
    templated <<< 1, 32 >>> (d, Box<char>{10});
    CLAIM(first(d) == 10);
    maybe<<<1, 32>>>(d, NULL);
    CLAIM(first(d) == -1);
    LAUNCH(inner::set, d, 11);
    CLAIM(first(d) == 11);
    auto* pointer = inner::set;
    pointer<<<1, 32>>>(d, 12);
    CLAIM(first(d) == 12);
    Entry entry = {13, inner::set}, entries[] = {{14, inner::set}}, *at = entries;
    entry.kernel<<<1, 32>>>(d, 13);
    CLAIM(first(d) == entry.expected);
    entries[0].kernel<<<1, 32>>>(d, 14);
    CLAIM(first(d) == at->expected);
    at->kernel<<<1, 32>>>(d, 15);
    CLAIM(first(d) == 15);
    LAUNCH_BIG((big<10, 6>), d);
    CLAIM(cudaGetLastError() == cudaSuccess && first(d) == 16);
    instances<<<1, 32>>>(d);
    CLAIM(first(d) == 307);
    declarations<<<1, 64, 64>>>(d);
    std::vector<int> r = to_host(d, 64);
    bool ok = true;
    for (int t = 0; t < 64; t++) ok = ok && r[t] == 32 + t % 32 + 2 * (63 - t);
    claim(ok, "declarations");
    CLAIM(!strncmp(not_code, "k<<<1, 2>>>(NULL)", 17) && __LINE__ == 98 && strstr(raw, ") \";"));
    CUDA(cudaFree(d));
    return verdict();
}
