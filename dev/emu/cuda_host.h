// cuda_host.h: what nvcc itself provides, for a host compiler. Included before every rewritten .cu.
//
// Types and prototypes come from the toolkit's own headers, which compile under g++ and clang++:
// the signatures are exact and bf16/half arithmetic works. This file adds the rest: launches,
// threadIdx, barriers, shuffles, atomics, math, cooperative groups, and host versions of the few
// tensor-core and async-copy instructions that a .cu wraps in inline PTX.
//
// A CUDA thread runs as ordinary C++ until it has to wait for another one; only then does the
// engine (engine.cpp) switch to another thread, on another stack. So everything that does not wait
// is an inline function here, and everything that waits is a call into the engine.
//
// Contents:  1 toolkit headers   2 engine calls   3 launches   4 built-in variables, barriers
//            5 warp operations   6 atomics   7 loads, bit casts, math   8 cooperative groups
//            9 mma, ldmatrix, cp.async
#pragma once

// === 1. Toolkit headers, and the keywords of CUDA C++ ==========================================
#define EMULATED 1                            // a .cu may test this, as it tests __CUDA_ARCH__
#define _COOPERATIVE_GROUPS_H_                // the toolkit's needs a GPU; ours is section 8
#define _COOPERATIVE_GROUPS_REDUCE_H
#define __DEVICE_LAUNCH_PARAMETERS_H__       // threadIdx and its like: ours are in section 4
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __managed__
#undef __launch_bounds__
#undef __grid_constant__
#undef __maxnreg__
#undef __forceinline__                        // but never define __noinline__: libstdc++ uses it
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __launch_bounds__(...)
#define __grid_constant__
#define __maxnreg__(...)
#define __forceinline__ inline
// cu2host.py rewrites every __shared__: if one is left, compiling must stop with a reason
#define __shared__ static_assert(false, "cu2host.py did not recognise this __shared__ declaration");

// === 2. Engine calls ===========================================================================
namespace emu {

// Where something was called, for reports. As a default argument it costs the caller nothing.
struct Site { const char* file; int line; };
#define EMU_SITE ::emu::Site site = { __builtin_FILE(), __builtin_LINE() }
constexpr Site nowhere = {"", 0};

struct Config {                               // what stands between <<< and >>>
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    Config(dim3 g, dim3 b, size_t bytes = 0, cudaStream_t s = nullptr)
        : grid(g), block(b), shared_bytes(bytes), stream(s) {}
};

using Closure = std::function<void()>;
using WarpFn = void (*)(void* const lanes[32], unsigned mask);

[[noreturn]] void fail(Site site, const char* fmt, ...);   // report, with the state of all threads
void launch(const char* name, Config c, Site site, Closure body);
void enqueue(cudaStream_t s, const char* what, Closure op);   // any other operation of a stream
void* argument_alloc(size_t bytes);
cudaError_t error(cudaError_t e);                          // cudaGetLastError will return it
cudaError_t func_set_attribute(const char* name, cudaFuncAttribute a, int v);

int barrier(int id, int count, bool vote, Site site);      // returns the number of true votes
void warp_op(const char* what, unsigned mask, void* operands, WarpFn fn, bool aligned, Site site);
int lane_id();
void fence();

uint64_t block_serial();                                   // another number for every block
void* shared_static(const char* name, size_t bytes, size_t align, Site site);
void* shared_dynamic(const char* name, size_t align, EMU_SITE);
bool is_shared(const void* p, size_t bytes);               // inside one shared variable?
size_t to_shared(const void* p);                           // 32-bit shared addresses, both ways
char* from_shared(size_t address);

void cp_async(void* shared, const void* global, int bytes, int src_bytes, Site site);
void cp_async_commit();
void cp_async_wait(int pending_groups);
void count_ldmatrix(void* const rows[32], int num_rows);
void act_as(int lane);                                     // race mode: charge reads to this lane

// What the program did so far; a test may compare them before and after a step. Printed at the end
// of the run under EMU_PROFILE=1.
struct Counters {
    long launches, host_syncs;                             // host_syncs: the host waited
    long barriers, warp_ops, mma, ldmatrix, cp_async;      // per block, per warp, ..., per thread
    long ldmatrix_phases, ldmatrix_conflicts;              // extra cycles lost to bank conflicts
};
extern Counters counters;
inline void count(long& c, long n = 1) { __atomic_fetch_add(&c, n, __ATOMIC_RELAXED); }

// A __shared__ variable. Key is unique for each declaration and template instance, so the statics
// below remember where this one lies in the block that runs now.
template <class T, class Key> T& shared_var(const char* name, size_t align, Key, EMU_SITE) {
    static thread_local uint64_t serial;
    static thread_local T* place;
    if (serial != block_serial()) {
        place = (T*)shared_static(name, sizeof(T), align, site);
        serial = block_serial();
    }
    return *place;
}

// === 3. Launches ===============================================================================
template <class K> struct Launcher {
    const char* name;
    Config config;
    K kernel;
    Site site;
    // The call is copied now, as CUDA copies arguments, to a place that kernels may read.
    template <class... A> void operator()(A&&... a) {
        struct Call { K kernel; std::tuple<std::decay_t<A>...> arguments; };
        auto* call = new (argument_alloc(sizeof(Call))) Call{kernel, {std::forward<A>(a)...}};
        launch(name, config, site, [call]() __attribute__((no_sanitize("thread"))) {
            std::apply(call->kernel, call->arguments);
        });
    }
};
template <class K> Launcher<K> make_launch(const char* name, K k, Config c, Site s) {
    return {name, c, k, s};
}
} // namespace emu

#define EMU_NAME(...) #__VA_ARGS__            // a macro's kernel parameter is replaced in it
#define EMU_LAUNCH(name, callable, ...) \
    ::emu::make_launch(name, callable, ::emu::Config(__VA_ARGS__), ::emu::Site{__FILE__, __LINE__})
// The kernel's spelling is the key: write it as in the launch.
#undef cudaFuncSetAttribute
#define cudaFuncSetAttribute(f, a, v) ::emu::func_set_attribute(#f, a, v)
template <class F> cudaError_t cudaFuncSetCacheConfig(F*, cudaFuncCache) { return cudaSuccess; }
// Of these the toolkit's headers have templates for nvcc alone: say so where they are called.
#define EMU_LACKS(name) template <class... A> __attribute__((error(#name " is not emulated"))) \
    cudaError_t name(A...);
EMU_LACKS(cudaFuncGetAttributes) EMU_LACKS(cudaGetSymbolAddress) EMU_LACKS(cudaGetSymbolSize)
EMU_LACKS(cudaOccupancyMaxActiveBlocksPerMultiprocessor) EMU_LACKS(cudaLaunchKernel)
EMU_LACKS(cudaLaunchCooperativeKernel)
#undef EMU_LACKS

template <class T> cudaError_t cudaMemcpyToSymbol(T& symbol, const void* src, size_t n,
        size_t offset = 0, cudaMemcpyKind = cudaMemcpyHostToDevice) {
    if (offset > sizeof(T) || n > sizeof(T) - offset) return emu::error(cudaErrorInvalidValue);
    emu::enqueue(nullptr, "cudaMemcpyToSymbol", [] {});    // in stream order: runs what came before
    cudaStreamSynchronize(nullptr);
    memcpy((char*)&symbol + offset, src, n);
    return cudaSuccess;
}
template <class T> cudaError_t cudaMemcpyFromSymbol(void* dst, const T& symbol, size_t n,
        size_t offset = 0, cudaMemcpyKind = cudaMemcpyDeviceToHost) {
    if (offset > sizeof(T) || n > sizeof(T) - offset) return emu::error(cudaErrorInvalidValue);
    emu::enqueue(nullptr, "cudaMemcpyFromSymbol", [] {});
    cudaStreamSynchronize(nullptr);
    memcpy(dst, (const char*)&symbol + offset, n);
    return cudaSuccess;
}

// === 4. Built-in variables, barriers ===========================================================
inline thread_local uint3 threadIdx, blockIdx;             // set by the engine at each switch
inline thread_local dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace emu {
inline unsigned block_threads() { return blockDim.x * blockDim.y * blockDim.z; }
inline void launch_bounds(unsigned max_threads, int = 0, int = 0) {
    if (block_threads() > max_threads)
        fail(nowhere, "block of %u threads, but __launch_bounds__(%u)", block_threads(),
             max_threads);
}
} // namespace emu

inline void __syncthreads(EMU_SITE) { emu::barrier(0, 0, false, site); }
inline int __syncthreads_count(int p, EMU_SITE) { return emu::barrier(0, 0, p, site); }
inline int __syncthreads_or(int p, EMU_SITE) { return emu::barrier(0, 0, p, site) > 0; }
inline int __syncthreads_and(int p, EMU_SITE) { return emu::barrier(0, 0, !p, site) == 0; }
inline void __syncwarp(unsigned mask = ~0u, EMU_SITE) {
    emu::warp_op("__syncwarp", mask, nullptr, nullptr, false, site);
}
inline void __threadfence() { emu::fence(); }
inline void __threadfence_system() { emu::fence(); }
inline void __threadfence_block() {}

// === 5. Warp operations ========================================================================
// Each lane leaves a pointer to its operands and waits; the last lane to arrive computes for all.
// So the code below sees a whole warp at once, as the hardware does.
namespace emu {
template <class T> struct Shuffle { T in, out; int source; };

template <class T> void shuffle_all(void* const lanes[32], unsigned mask) {
    for (int l = 0; l < 32; l++) {
        if (!(mask >> l & 1)) continue;
        auto* s = (Shuffle<T>*)lanes[l];
        if (mask >> s->source & 1) s->out = ((Shuffle<T>*)lanes[s->source])->in;
        else memset((void*)&s->out, 0xff, sizeof(T));      // undefined in CUDA: make it NaN
    }
}
template <class T> T shuffle(const char* what, unsigned mask, T v, int source, Site site) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "no such shuffle in CUDA");
    Shuffle<T> s{v, v, source};
    warp_op(what, mask, &s, shuffle_all<T>, false, site);
    return s.out;
}

// All lanes of the mask get the combination of their values, in lane order.
template <class T, class F> T warp_reduce(const char* what, unsigned mask, T v, F, Site site) {
    warp_op(what, mask, &v, [](void* const lanes[32], unsigned m) {
        int first = __builtin_ctz(m);
        T sum = *(T*)lanes[first];
        for (int l = first + 1; l < 32; l++) if (m >> l & 1) sum = F()(sum, *(T*)lanes[l]);
        for (int l = first; l < 32; l++) if (m >> l & 1) *(T*)lanes[l] = sum;
    }, false, site);
    return v;
}
struct Add { template <class T> T operator()(T a, T b) const { return a + b; } };
struct Max { template <class T> T operator()(T a, T b) const { return a > b ? a : b; } };
struct Min { template <class T> T operator()(T a, T b) const { return a < b ? a : b; } };
struct And { template <class T> T operator()(T a, T b) const { return a & b; } };
struct Or  { template <class T> T operator()(T a, T b) const { return a | b; } };
struct Xor { template <class T> T operator()(T a, T b) const { return a ^ b; } };
} // namespace emu

// w divides the warp into segments: a source outside the caller's segment means "keep my value".
template <class T> T __shfl_sync(unsigned mask, T v, int src, int w = 32, EMU_SITE) {
    int source = (emu::lane_id() & ~(w - 1)) | (src & (w - 1));
    return emu::shuffle("__shfl_sync", mask, v, source, site);
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int x, int w = 32, EMU_SITE) {
    int l = emu::lane_id(), end = (l & ~(w - 1)) + w;
    return emu::shuffle("__shfl_xor_sync", mask, v, (l ^ x) >= end ? l : l ^ x, site);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned d, int w = 32, EMU_SITE) {
    int l = emu::lane_id(), to = (l & (w - 1)) + (int)d;
    return emu::shuffle("__shfl_down_sync", mask, v, to >= w ? l : l + (int)d, site);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned d, int w = 32, EMU_SITE) {
    int l = emu::lane_id();
    return emu::shuffle("__shfl_up_sync", mask, v, (l & (w - 1)) < (int)d ? l : l - (int)d, site);
}
inline unsigned __ballot_sync(unsigned mask, int p, EMU_SITE) {
    unsigned mine = p ? 1u << emu::lane_id() : 0u;
    return emu::warp_reduce("__ballot_sync", mask, mine, emu::Or(), site);
}
template <class T> unsigned __match_any_sync(unsigned mask, T v, EMU_SITE) {
    struct Match { T v; unsigned lanes; } mine{v, 0};
    emu::warp_op("__match_any_sync", mask, &mine, [](void* const lanes[32], unsigned m) {
        for (int l = 0; l < 1024; l++)                     // all pairs
            if (m >> l / 32 & m >> l % 32 & 1 &&
                ((Match*)lanes[l / 32])->v == ((Match*)lanes[l % 32])->v)
                ((Match*)lanes[l / 32])->lanes |= 1u << l % 32;
    }, false, site);
    return mine.lanes;
}
inline int __any_sync(unsigned mask, int p, EMU_SITE) {
    return emu::warp_reduce("__any_sync", mask, (int)(p != 0), emu::Or(), site);
}
inline int __all_sync(unsigned mask, int p, EMU_SITE) {
    return emu::warp_reduce("__all_sync", mask, (int)(p != 0), emu::And(), site);
}
#define EMU_REDUCE(name, Op) template <class T> T name(unsigned mask, T v, EMU_SITE) { \
    return emu::warp_reduce(#name, mask, v, emu::Op(), site); }
EMU_REDUCE(__reduce_add_sync, Add)
EMU_REDUCE(__reduce_max_sync, Max)
EMU_REDUCE(__reduce_min_sync, Min)
EMU_REDUCE(__reduce_and_sync, And)
EMU_REDUCE(__reduce_or_sync, Or)
EMU_REDUCE(__reduce_xor_sync, Xor)
#undef EMU_REDUCE

// === 6. Atomics ================================================================================
namespace emu {
// One compare-and-swap loop for all: float and bf16x2 have no fetch_add on the host.
template <class T, class F> T atomic_update(T* p, F f) {
    using U = std::conditional_t<sizeof(T) == 8, uint64_t,
              std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
    static_assert(sizeof(T) == sizeof(U), "atomics have 2, 4 or 8 bytes");
    constexpr int relaxed = __ATOMIC_RELAXED;
    U* u = (U*)p;
    U old = __atomic_load_n(u, relaxed), want;
    T before;
    do {
        memcpy((void*)&before, &old, sizeof old);
        T after = f(before);
        memcpy(&want, (void*)&after, sizeof want);
    } while (!__atomic_compare_exchange_n(u, &old, want, false, relaxed, relaxed));
    return before;
}
} // namespace emu

#define EMU_ATOMIC(name, result) template <class T> T name(T* p, std::common_type_t<T> v) { \
    return emu::atomic_update(p, [v](T old) { (void)old; return (T)(result); }); }
EMU_ATOMIC(atomicAdd, old + v)
EMU_ATOMIC(atomicSub, old - v)
EMU_ATOMIC(atomicMax, old > v ? old : v)
EMU_ATOMIC(atomicMin, old < v ? old : v)
EMU_ATOMIC(atomicAnd, old & v)
EMU_ATOMIC(atomicOr, old | v)
EMU_ATOMIC(atomicXor, old ^ v)
EMU_ATOMIC(atomicExch, v)
#undef EMU_ATOMIC
template <class T> T atomicCAS(T* p, std::common_type_t<T> expected, std::common_type_t<T> v) {
    return emu::atomic_update(p, [=](T old) { return old == expected ? v : old; });
}
inline unsigned atomicInc(unsigned* p, unsigned limit) {
    return emu::atomic_update(p, [limit](unsigned old) { return old >= limit ? 0u : old + 1; });
}
inline unsigned atomicDec(unsigned* p, unsigned limit) {
    return emu::atomic_update(p, [limit](unsigned old) {
        return old == 0 || old > limit ? limit : old - 1;
    });
}

// === 7. Loads and stores with cache hints, bit casts, math =====================================
#define EMU_LOAD(name) template <class T> T name(const T* p) { return *p; }
#define EMU_STORE(name) template <class T> void name(T* p, std::common_type_t<T> v) { *p = v; }
EMU_LOAD(__ldg) EMU_LOAD(__ldca) EMU_LOAD(__ldcg) EMU_LOAD(__ldcs) EMU_LOAD(__ldcv) EMU_LOAD(__ldlu)
EMU_STORE(__stwb) EMU_STORE(__stcg) EMU_STORE(__stcs) EMU_STORE(__stwt)
#undef EMU_LOAD
#undef EMU_STORE

namespace emu {
template <class To, class From> To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy((void*)&to, &from, sizeof to);
    return to;
}
} // namespace emu
inline unsigned __float_as_uint(float x) { return emu::bits<unsigned>(x); }
inline int __float_as_int(float x) { return emu::bits<int>(x); }
inline float __uint_as_float(unsigned x) { return emu::bits<float>(x); }
inline float __int_as_float(int x) { return emu::bits<float>(x); }
inline long long __double_as_longlong(double x) { return emu::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emu::bits<double>(x); }

// The fast approximations (__expf, ...) are exact here: tests against a GPU need tolerances.
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
inline void __sincosf(float x, float* s, float* c) { sincosf(x, s, c); }
inline int __float2int_rn(float x) { return (int)rintf(x); }
inline int __float2int_rz(float x) { return (int)x; }
inline int __float2int_rd(float x) { return (int)floorf(x); }
inline int __float2int_ru(float x) { return (int)ceilf(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline void __nanosleep(unsigned) {}
inline long long clock64() {                  // moves on when it is read: kernels wait by it
    static long long now;
    return __atomic_add_fetch(&now, 100, __ATOMIC_RELAXED);
}
[[noreturn]] inline void __trap() { emu::fail(emu::nowhere, "__trap() called"); }

// Arithmetic that cuda_fp16.h and cuda_bf16.h have on the device alone; through float.
#define EMU_HALF(H, H2) \
    inline H __hfma(H a, H b, H c) { return H(fmaf(float(a), float(b), float(c))); } \
    inline H2 __hfma2(H2 a, H2 b, H2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
    inline H hexp(H x) { return H(expf(float(x))); } \
    inline H hsqrt(H x) { return H(sqrtf(float(x))); }
EMU_HALF(__half, __half2)
EMU_HALF(__nv_bfloat16, __nv_bfloat162)
#undef EMU_HALF

// CUDA has min and max for all mixtures of arithmetic types; on floats they drop a NaN, like fmax.
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmax((T)a, (T)b);
    else return (T)a > (T)b ? (T)a : (T)b;
}
template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmin((T)a, (T)b);
    else return (T)b < (T)a ? (T)b : (T)a;
}

// === 8. Cooperative groups: blocks and tiles of a warp =========================================
// Not here: grid groups (blocks run one after the other), clusters, coalesced_threads.
namespace cooperative_groups {
struct thread_block {
    void sync(EMU_SITE) const { __syncthreads(site); }
    unsigned thread_rank() const {
        return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    }
    unsigned size() const { return emu::block_threads(); }
    unsigned num_threads() const { return emu::block_threads(); }
    dim3 group_index() const { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
    dim3 thread_index() const { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
    dim3 dim_threads() const { return blockDim; }
    dim3 group_dim() const { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

template <unsigned N, class Parent = void> struct thread_block_tile {
    static_assert(N <= 32 && (N & (N - 1)) == 0, "a tile has 1, 2, 4, 8, 16 or 32 threads");
    static constexpr unsigned size() { return N; }
    static constexpr unsigned num_threads() { return N; }
    unsigned mask() const { return (~0u >> (32 - N)) << (emu::lane_id() & ~(N - 1)); }
    unsigned thread_rank() const { return emu::lane_id() & (N - 1); }
    unsigned meta_rank, meta_size;                           // of this tile among its parent's
    unsigned meta_group_rank() const { return meta_rank; }
    unsigned meta_group_size() const { return meta_size; }
    void sync(EMU_SITE) const { __syncwarp(mask(), site); }
    template <class T> T shfl(T v, int source, EMU_SITE) const {
        return __shfl_sync(mask(), v, source, N, site);
    }
    template <class T> T shfl_xor(T v, int x, EMU_SITE) const {
        return __shfl_xor_sync(mask(), v, x, N, site);
    }
    template <class T> T shfl_down(T v, int d, EMU_SITE) const {
        return __shfl_down_sync(mask(), v, d, N, site);
    }
    template <class T> T shfl_up(T v, int d, EMU_SITE) const {
        return __shfl_up_sync(mask(), v, d, N, site);
    }
    int any(int p, EMU_SITE) const { return __any_sync(mask(), p, site); }
    int all(int p, EMU_SITE) const { return __all_sync(mask(), p, site); }
    unsigned ballot(int p, EMU_SITE) const {                 // bit i: thread i of the tile
        return (__ballot_sync(mask(), p, site) & mask()) >> (emu::lane_id() & ~(N - 1));
    }
};
template <unsigned N, class Group> thread_block_tile<N> tiled_partition(const Group& parent) {
    return {parent.thread_rank() / N, (parent.size() + N - 1) / N};
}
template <class Group> void sync(const Group& g, EMU_SITE) { g.sync(site); }

template <class T> struct plus    { T operator()(T a, T b) const { return a + b; } };
template <class T> struct greater { T operator()(T a, T b) const { return a > b ? a : b; } };
template <class T> struct less    { T operator()(T a, T b) const { return a < b ? a : b; } };
template <class G, class T, class F> T reduce(const G& g, T v, F f, EMU_SITE) {
    return emu::warp_reduce("cg::reduce", g.mask(), v, f, site);
}
} // namespace cooperative_groups

// === 9. mma, ldmatrix, cp.async: the host half of a .cu's inline-PTX wrappers ==================
// cp_async, cp_async_commit and cp_async_wait are engine calls (section 2).
inline size_t __cvta_generic_to_shared(const void* p) { return emu::to_shared(p); }

namespace emu {
struct Mma { float* d; const uint32_t *a, *b; const float* c; };

// D (16,8) = A (16,16) B (16,8) + C. The PTX manual spreads the elements over the lanes like this
// (g = lane / 4, t = lane % 4; a 32-bit register holds two elements, low half first):
//   A register r   row g + 8 * (r & 1)             columns 2t + 8 * (r >> 1) + {0, 1}
//   B register r   rows 2t + 8 * r + {0, 1}        column g
//   C, D value i   row g + 8 * (i >> 1)            column 2t + (i & 1)
template <class T> void mma_all(void* const lanes[32], unsigned) {
    auto low = [](uint32_t r) { return (float)bits<T>((uint16_t)r); };
    auto high = [](uint32_t r) { return (float)bits<T>((uint16_t)(r >> 16)); };
    float A[16][16], B[16][8], D[16][8];
    for (int l = 0; l < 32; l++) {
        auto* m = (Mma*)lanes[l];
        int g = l / 4, t2 = l % 4 * 2;
        for (int r = 0; r < 4; r++) {
            float* a = &A[g + 8 * (r & 1)][t2 + 8 * (r >> 1)];
            a[0] = low(m->a[r]), a[1] = high(m->a[r]);
        }
        for (int r = 0; r < 2; r++) {
            B[t2 + 8 * r][g] = low(m->b[r]), B[t2 + 8 * r + 1][g] = high(m->b[r]);
        }
        for (int i = 0; i < 4; i++) D[g + 8 * (i >> 1)][t2 + (i & 1)] = m->c[i];
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++) D[i][j] += A[i][k] * B[k][j];
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++)
            ((Mma*)lanes[l])->d[i] = D[l / 4 + 8 * (i >> 1)][l % 4 * 2 + (i & 1)];
    count(counters.mma);
}
template <class T>      // __nv_bfloat16 or __half
inline void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4],
                         EMU_SITE) {
    static_assert(sizeof(T) == 2, "mma.m16n8k16 takes 16-bit elements");
    Mma m{d, a, b, c};
    warp_op("mma.m16n8k16", ~0u, &m, mma_all<T>, true, site);
}
inline void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2],
                              const float c[4], EMU_SITE) {
    mma_m16n8k16<__nv_bfloat16>(d, a, b, c, site);
}

// ldmatrix loads N 8x8 matrices of 16-bit elements: lane 8i + j names row j of matrix i, and lane l
// receives the elements (l/4, 2(l%4) + {0, 1}) of each, or the transposed ones.
struct Ldmatrix { uint32_t* out; const void* row; int num; bool trans; Site site; };

inline void ldmatrix_all(void* const lanes[32], unsigned) {
    int num = ((Ldmatrix*)lanes[0])->num;
    bool trans = ((Ldmatrix*)lanes[0])->trans;
    uint16_t e[32][8];
    void* rows[32];
    for (int i = 0; i < num * 8; i++) {
        auto* m = (Ldmatrix*)lanes[i];
        rows[i] = (void*)m->row;
        if ((uintptr_t)m->row % 16)
            fail(m->site, "ldmatrix: lane %d row address %p is not 16-byte aligned", i, m->row);
        if (!is_shared(m->row, 16))
            fail(m->site, "ldmatrix: lane %d row address %p is not in shared memory", i, m->row);
        act_as(i);
        for (int j = 0; j < 8; j++) e[i][j] = ((const uint16_t*)m->row)[j];
    }
    act_as(-1);
    count_ldmatrix(rows, num * 8);
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < num; i++) {
            int r = 8 * i + (trans ? l % 4 * 2 : l / 4), c = trans ? l / 4 : l % 4 * 2;
            uint32_t second = trans ? e[r + 1][c] : e[r][c + 1];
            ((Ldmatrix*)lanes[l])->out[i] = e[r][c] | second << 16;
        }
}
// always_inline, so that the race checker sees in which line of the .cu it was called
#define EMU_INLINE __attribute__((always_inline)) inline
template <int N, bool trans> EMU_INLINE void ldmatrix(uint32_t* out, const void* row, EMU_SITE) {
    static_assert(N == 1 || N == 2 || N == 4, "ldmatrix loads 1, 2 or 4 matrices");
    Ldmatrix m{out, row, N, trans, site};
    warp_op(trans ? "ldmatrix.trans" : "ldmatrix", ~0u, &m, ldmatrix_all, true, site);
}
template <int N, bool trans> EMU_INLINE void ldmatrix(uint32_t* out, uint32_t address, EMU_SITE) {
    ldmatrix<N, trans>(out, (const void*)from_shared(address), site);
}
} // namespace emu
