// flash_attention.cu [BUG [T]]: causal attention as a GPU wants it, or with one planted bug.
//
// Head size 64, bf16; a block of 4 warps owns 64 query rows, walks over tiles of 64 keys that
// cp.async brings into one of two buffers while the other is in use, multiplies with mma.sync and
// keeps an online softmax. Such a kernel exercises all that is hard to emulate: the register layout
// of mma, ldmatrix with and without .trans, swizzled addresses, asynchronous copies.
// The result is compared with a plain double-precision reference.
#include <cuda_bf16.h>
#include <cstdint>
#include "test.h"
typedef __nv_bfloat16 bf16;

#ifdef EMULATED
using emu::mma_m16n8k16_bf16;
#define ldmatrix_x4(r, p) emu::ldmatrix<4, false>(r, p)
#define ldmatrix_x4_trans(r, p) emu::ldmatrix<4, true>(r, p)
#define cp_async_16(s, g, n) emu::cp_async(s, g, 16, n, emu::Site{__FILE__, __LINE__})
#define cp_async_commit() emu::cp_async_commit()
#define cp_async_wait(n) emu::cp_async_wait(n)
#else
__device__ inline unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ inline void mma_m16n8k16_bf16(float* d, const uint32_t* a, const uint32_t* b,
                                         const float* c) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
                   "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
__device__ inline void ldmatrix_x4(uint32_t* r, const void* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address(p)) : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t* r, const void* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address(p)) : "memory");
}
__device__ inline void cp_async_16(void* s, const void* g, int n) {       // n bytes, the rest zero
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(address(s)), "l"(g), "r"(n) : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
#define cp_async_wait(n) asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory")
#endif

#define BUGS(X) \
    X(none) X(no_wait) X(wait_too_weak) X(no_barrier_after_wait) X(no_barrier_before_reuse) \
    X(wrong_ldmatrix_lanes) X(swapped_registers) X(no_swizzle) X(misaligned_row)
#define ENUM(name) name,
#define STRING(name) #name,
enum Bug { BUGS(ENUM) num_bugs };
const char* const names[num_bugs] = { BUGS(STRING) };

constexpr int HS = 64, TILE = 64, THREADS = 128;

// Element offset of 16-byte chunk c of row r: the XOR spreads a column of chunks over all banks.
__device__ inline int at(int r, int c, Bug bug) {
    return r * HS + (bug == no_swizzle ? c : c ^ (r & 7)) * 8;
}

// Start copying TILE rows; rows beyond T become zero.
__device__ void load_tile(bf16* tile, const bf16* g, int first_row, int T, Bug bug) {
    for (int i = threadIdx.x; i < TILE * HS / 8; i += THREADS) {
        int r = i / 8, c = i % 8, row = first_row + r;
        const bf16* from = g + (size_t)(row < T ? row : 0) * HS + c * 8;
        cp_async_16(tile + at(r, c, bug), from, row < T ? 16 : 0);
    }
}

__device__ inline uint32_t pack(float a, float b) {
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    uint32_t r;
    memcpy(&r, &v, sizeof r);
    return r;
}

// s (16 rows of this warp, TILE keys) = q k^T; fragments as mma.sync lays them out
__device__ void scores(float s[8][4], uint32_t q[4][4], const bf16* k, Bug bug) {
    int lane = threadIdx.x % 32;
    for (int kk = 0; kk < 4; kk++)
        for (int n = 0; n < 8; n += 2) {
            uint32_t b[4];
            int chunk = kk * 2 + (bug == wrong_ldmatrix_lanes ? lane >> 4 : (lane >> 3) & 1);
            ldmatrix_x4(b, k + at(n * 8 + (lane & 7) + (lane >> 4) * 8, chunk, bug));
            mma_m16n8k16_bf16(s[n], q[kk], b, s[n]);
            mma_m16n8k16_bf16(s[n + 1], q[kk], b + 2, s[n + 1]);
        }
}

// Online softmax of rows g and g + 8: s becomes exp(s - max); acc, sum are rescaled to the new max.
__device__ void softmax(float s[8][4], float acc[8][4], float* max, float* sum, int row0, int col0,
                        int T, float scale) {
    int t2 = threadIdx.x % 4 * 2;
    for (int r = 0; r < 2; r++) {
        int row = row0 + 8 * r;
        float m = max[r], l = 0;
        for (int n = 0; n < 8; n++)
            for (int i = 0; i < 2; i++) {
                int col = col0 + n * 8 + t2 + i;
                float& x = s[n][2 * r + i];
                x = col <= row && col < T ? x * scale : -INFINITY;
                m = fmaxf(m, x);
            }
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
        bool empty = m == -INFINITY;
        float shrink = empty ? 1.0f : expf(max[r] - m);
        for (int n = 0; n < 8; n++)
            for (int i = 0; i < 2; i++) {
                float& x = s[n][2 * r + i];
                x = empty ? 0.0f : expf(x - m);
                l += x;
                acc[n][2 * r + i] *= shrink;
            }
        l += __shfl_xor_sync(~0u, l, 1);
        l += __shfl_xor_sync(~0u, l, 2);
        sum[r] = sum[r] * shrink + l;
        max[r] = m;
    }
}

// acc += s v; the accumulator layout of s is the operand layout of A, once packed to bf16
__device__ void weighted_sum(float acc[8][4], float s[8][4], const bf16* v, Bug bug) {
    int lane = threadIdx.x % 32;
    for (int kb = 0; kb < 4; kb++) {
        float *left = s[2 * kb], *right = s[2 * kb + 1];
        uint32_t a[4] = {pack(left[0], left[1]), pack(left[2], left[3]),
                         pack(right[0], right[1]), pack(right[2], right[3])};
        if (bug == swapped_registers) { uint32_t x = a[1]; a[1] = a[2]; a[2] = x; }
        for (int n = 0; n < 8; n += 2) {
            uint32_t b[4];
            const bf16* row = v + at(kb * 16 + (lane & 15), n + (lane >> 4), bug);
            ldmatrix_x4_trans(b, row + (bug == misaligned_row ? 1 : 0));
            mma_m16n8k16_bf16(acc[n], a, b, acc[n]);
            mma_m16n8k16_bf16(acc[n + 1], a, b + 2, acc[n + 1]);
        }
    }
}

__global__ void __launch_bounds__(THREADS)
flash_forward(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v, int T, float scale,
              Bug bug) {
    __shared__ __align__(128) bf16 tile_q[TILE * HS];
    __shared__ __align__(128) bf16 tile_k[2][TILE * HS];
    __shared__ __align__(128) bf16 tile_v[2][TILE * HS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int first_row = blockIdx.x * TILE, row0 = first_row + warp * 16 + g;
    size_t head = (size_t)blockIdx.y * T * HS;
    int tiles = blockIdx.x + 1;                                           // causal: none after ours
    load_tile(tile_q, q + head, first_row, T, bug);
    load_tile(tile_k[0], k + head, 0, T, bug);
    load_tile(tile_v[0], v + head, 0, T, bug);
    cp_async_commit();
    uint32_t qf[4][4];
    float acc[8][4] = {}, max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    for (int j = 0; j < tiles; j++) {
        if (j + 1 < tiles) {                                              // fetch the next tile
            load_tile(tile_k[(j + 1) & 1], k + head, (j + 1) * TILE, T, bug);
            load_tile(tile_v[(j + 1) & 1], v + head, (j + 1) * TILE, T, bug);
            cp_async_commit();
            if (bug != no_wait) cp_async_wait(1);
        } else if (bug == wait_too_weak) {
            cp_async_wait(1);
        } else {
            cp_async_wait(0);
        }
        if (bug != no_barrier_after_wait) __syncthreads();                // also the others' copies
        for (int kk = 0; j == 0 && kk < 4; kk++)
            ldmatrix_x4(qf[kk], tile_q + at(warp * 16 + lane % 16, kk * 2 + lane / 16, bug));
        float s[8][4] = {};
        scores(s, qf, tile_k[j & 1], bug);
        softmax(s, acc, max, sum, row0, j * TILE, T, scale);
        weighted_sum(acc, s, tile_v[j & 1], bug);
        if (bug != no_barrier_before_reuse) __syncthreads();
    }
    for (int r = 0; r < 2; r++) {
        int row = row0 + 8 * r;
        if (row >= T) continue;
        if (t == 0) lse[(size_t)blockIdx.y * T + row] = max[r] + logf(sum[r]);
        for (int n = 0; n < 8; n++)
            *(__nv_bfloat162*)(o + head + (size_t)row * HS + n * 8 + 2 * t) =
                __floats2bfloat162_rn(acc[n][2 * r] / sum[r], acc[n][2 * r + 1] / sum[r]);
    }
}

// The largest errors of o and lse for head h; NaN counts as infinite.
void compare(double* worst_o, double* worst_lse, int h, int T, const std::vector<bf16>& q,
             const std::vector<bf16>& k, const std::vector<bf16>& v, const std::vector<bf16>& o,
             const std::vector<float>& lse, float scale) {
    auto f = [&](const std::vector<bf16>& x, int row, int d) {
        return (double)__bfloat162float(x[((size_t)h * T + row) * HS + d]);
    };
    auto update = [](double* worst, double error) {
        if (!(error <= *worst)) *worst = error == error ? error : INFINITY;
    };
    for (int i = 0; i < T; i++) {
        std::vector<double> p(i + 1);
        double largest = -INFINITY, sum = 0;
        for (int j = 0; j <= i; j++) {
            for (int d = 0; d < HS; d++) p[j] += f(q, i, d) * f(k, j, d) * scale;
            largest = fmax(largest, p[j]);
        }
        for (double& x : p) sum += x = exp(x - largest);
        update(worst_lse, fabs(largest + log(sum) - lse[(size_t)h * T + i]));
        for (int d = 0; d < HS; d++) {
            double a = 0;
            for (int j = 0; j <= i; j++) a += p[j] / sum * f(v, j, d);
            update(worst_o, fabs(a - f(o, i, d)));
        }
    }
}

int main(int argc, char** argv) {
    int bug = 0, T = argc > 2 ? atoi(argv[2]) : 200;
    while (bug < num_bugs && argc > 1 && strcmp(names[bug], argv[1])) bug++;
    if (bug == num_bugs || T < 1) return printf("usage: flash_attention [BUG [T]]\n"), 2;
    const int NH = 2;
    size_t n = (size_t)NH * T * HS;
    float scale = 1 / sqrtf(HS);
    unsigned state = 1;
    auto random = [&state] {                                              // in [-1, 1)
        state = state * 1664525u + 1013904223u;
        return (state >> 8) / 8388608.0f - 1.0f;
    };
    std::vector<bf16> q(n), k(n), v(n);
    for (size_t i = 0; i < n; i++) {
        q[i] = __float2bfloat16(2 * random());
        k[i] = __float2bfloat16(2 * random());
        v[i] = __float2bfloat16(random());
    }
    bf16 *dq = to_device(q), *dk = to_device(k), *dv = to_device(v), *d_o = device_alloc<bf16>(n);
    float* d_lse = device_alloc<float>(NH * T);
    dim3 grid((T + TILE - 1) / TILE, NH);
    flash_forward<<<grid, THREADS>>>(d_o, d_lse, dq, dk, dv, T, scale, (Bug)bug);
    CUDA(cudaGetLastError());
    std::vector<bf16> o = to_host(d_o, n);
    std::vector<float> lse = to_host(d_lse, NH * T);
    double worst_o = 0, worst_lse = 0;
    for (int h = 0; h < NH; h++) compare(&worst_o, &worst_lse, h, T, q, k, v, o, lse, scale);
    // o: two roundings to bf16 (p and o) of values below 1: 2 * 2^-8; lse: float sums of T terms
    printf("T=%d max error of o %.2g (tolerance 0.008), of lse %.2g (tolerance 1e-5)\n", T,
           worst_o, worst_lse);
    claim(worst_o <= 0.008 && worst_lse <= 1e-5, "attention equals the reference");
    for (void* p : {(void*)dq, (void*)dk, (void*)dv, (void*)d_o, (void*)d_lse}) CUDA(cudaFree(p));
#ifdef EMULATED
    claim(emu::counters.ldmatrix_conflicts == 0, "ldmatrix without bank conflicts");
#endif
    return verdict();
}
