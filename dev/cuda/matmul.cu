// matmul.cu: a ladder for matmul_forward, section 6.3, with its epilogues: out = gelu(pre), pre =
// inp . weight^T + bias, both kept.
//   naive       a thread for a value of out: each of the N*OC threads reads 2*C values; what a warp
//               reads of weight lies C values apart
//   tiles       16x16 threads bring 16x16 tiles of both to shared memory: a value that is loaded
//               serves 16 threads, and loads are neighbours
//   registers   a thread makes 4x4 values: 8 reads of shared memory for 16 multiplications, not 32
//   mma         tensor cores: a warp makes 32x64 values by mma, from tiles brought by cp.async into
//               shared memory and by ldmatrix into registers. Rows of 128 bytes: the 8 rows of an
//               ldmatrix lie in the same 4 banks, and take turns
//   swizzle     chunk c of row r lies at place c ^ (r % 8): all 32 banks answer at once
//   gelu apart  cuBLASLt, which knows the card: TMA, wgmma, several tiles under way. gelu in a
//               kernel of its own reads and writes N*OC values again
//   shipped     gelu, too, in cuBLASLt's epilogue, while the sums are in registers
#include "ladder.h"

typedef struct {
    floatX *out, *pre;                 // (N,OC) (N,OC)
    const floatX *inp, *weight, *bias; // (N,C) (OC,C) (OC)
    size_t N, C, OC;
} Args;
static Args args;
enum { STEP = 16, ROWS = 128, SIDE = 64, DEEP = 64 }; // of tiles; of mma

DEVICE void finish(const Args &a, float sum, size_t n, size_t o) {
    if (n >= a.N || o >= a.OC) return;
    sum += f32(a.bias[o]);
    a.pre[n * a.OC + o] = fX(sum);
    a.out[n * a.OC + o] = fX(gelu(sum));
}
DEVICE float value(const floatX *x, size_t row, size_t rows, size_t i, size_t C) { // 0 outside
    return row < rows && i < C ? f32(x[row * C + i]) : 0;
}
static __global__ void naive_kernel(Args a) {
    size_t o = (size_t)blockIdx.x * blockDim.x + threadIdx.x, n = blockIdx.y;
    float sum = 0;
    for (size_t i = 0; i < a.C && o < a.OC; i++)
        sum += f32(a.inp[n * a.C + i]) * f32(a.weight[o * a.C + i]);
    finish(a, sum, n, o);
}
static void run_naive(void) {
    naive_kernel<<<dim3(grid_of(args.OC, 64), (unsigned)args.N), 64, 0, stream>>>(args);
}
template <int R> static __global__ void tiles_kernel(Args a) { // a thread makes R x R values
    __shared__ float rows[STEP][16 * R + 4], columns[STEP][16 * R + 4]; // + 4: into other banks
    size_t x = threadIdx.x % 16 * R, y = threadIdx.x / 16 * R;
    size_t n = blockIdx.y * (size_t)(16 * R), o = blockIdx.x * (size_t)(16 * R);
    float sum[R][R] = {};
    for (size_t i = 0; i < a.C; i += STEP) {
        for (size_t j = threadIdx.x; j < 16 * R * STEP; j += BLOCK) {
            rows[j % STEP][j / STEP] = value(a.inp, n + j / STEP, a.N, i + j % STEP, a.C);
            columns[j % STEP][j / STEP] = value(a.weight, o + j / STEP, a.OC, i + j % STEP, a.C);
        }
        __syncthreads();
        ATT_UNROLL for (int k = 0; k < STEP; k++) ATT_UNROLL for (int r = 0; r < R; r++)
            ATT_UNROLL for (int c = 0; c < R; c++) sum[r][c] += rows[k][y + r] * columns[k][x + c];
        __syncthreads(); // the tiles are written again
    }
    ATT_UNROLL for (int r = 0; r < R; r++) ATT_UNROLL for (int c = 0; c < R; c++)
        finish(a, sum[r][c], n + y + r, o + x + c);
}
template <int R> static void run_tiles(void) {
    dim3 grid(grid_of(args.OC, 16 * R), grid_of(args.N, 16 * R));
    tiles_kernel<R><<<grid, BLOCK, 0, stream>>>(args);
}
template <int SWIZZLED> DEVICE unsigned place(unsigned row, unsigned chunk) { // in a tile
    return row * DEEP + (SWIZZLED ? chunk ^ row % 8 : chunk) * 8;
}
// Starts the copy of DEEP channels from i on of `count` rows of x (rows,C), with 0 where x ends.
template <int SWIZZLED> DEVICE void load_tile(floatX *tile, unsigned count, const floatX *x,
                                              size_t first, size_t rows, size_t i, size_t C) {
    for (unsigned j = threadIdx.x; j < DEEP / 8 * count; j += ATT_THREADS) {
        size_t row = first + j / 8, c = i + j % 8 * 8;
        bool is_inside = row < rows && c < C;
        cp_async_16(tile + place<SWIZZLED>(j / 8, j % 8), x + (is_inside ? row * C + c : 0),
                    is_inside ? 16 : 0);
    }
}
template <int SWIZZLED> static __global__ void mma_kernel(Args a) {
    __shared__ __align__(128) floatX rows[ROWS * DEEP];
    __shared__ __align__(128) floatX columns[SIDE * DEEP];
    size_t n = blockIdx.y * (size_t)ROWS, o = blockIdx.x * (size_t)SIDE;
    unsigned lane = threadIdx.x % WARP, own = threadIdx.x / WARP * 32; // rows of this warp
    float sum[2][8][4] = {}; // of pieces of 16x8, see section 1
    for (size_t i = 0; i < a.C; i += DEEP) {
        load_tile<SWIZZLED>(rows, ROWS, a.inp, n, a.N, i, a.C);
        load_tile<SWIZZLED>(columns, SIDE, a.weight, o, a.OC, i, a.C);
        cp_async_commit();
        cp_async_wait(0);
        __syncthreads();
        for (unsigned k = 0; k < DEEP / 8; k += 2) ATT_UNROLL for (int q = 0; q < 8; q += 2) {
            uint32_t x[4], y[4];
            ldmatrix_x4(y, columns + place<SWIZZLED>(8 * q + lane % 8 + lane / 16 * 8,
                                                     k + lane / 8 % 2));
            ATT_UNROLL for (int p = 0; p < 2; p++) {
                ldmatrix_x4(x, rows + place<SWIZZLED>(own + 16 * p + lane % 16, k + lane / 16));
                mma(sum[p][q], x, y);
                mma(sum[p][q + 1], x, y + 2);
            }
        }
        __syncthreads();
    }
    ATT_UNROLL for (int p = 0; p < 2; p++) ATT_UNROLL for (int q = 0; q < 8; q++)
        ATT_UNROLL for (int k = 0; k < 4; k++)
            finish(a, sum[p][q][k], n + own + 16 * p + lane / 4 + k / 2 * 8,
                   o + 8 * q + lane % 4 * 2 + k % 2);
}
template <int SWIZZLED> static void run_mma(void) {
    dim3 grid(grid_of(args.OC, SIDE), grid_of(args.N, ROWS));
    mma_kernel<SWIZZLED><<<grid, ATT_THREADS, 0, stream>>>(args);
}
static void run_shipped(void) {
    matmul_forward(args.out, args.pre, args.inp, args.weight, args.bias, NULL, args.N, args.C,
                   args.OC);
}
static void run_apart(void) {
    matmul_fuses_gelu = 0;
    run_shipped();
    matmul_fuses_gelu = 1;
}
static const Rung rungs[] = {
    { "naive", run_naive }, { "tiles", run_tiles<1> }, { "registers", run_tiles<4> },
    { "mma", run_mma<0>, 1 }, { "swizzle", run_mma<1>, 1 }, { "gelu apart", run_apart },
    { "shipped", run_shipped } };

static void climb(const size_t *shape) {
    size_t N = shape[0], C = shape[1], OC = shape[2];
    ops_init(1, N, C, 1, 0), cpu::ops_init(1, N, C, 1, 0);
    X x(N * C, 1), w(OC * C, 2), b(OC, 3), y(N * OC), z(N * OC);
    cpu::matmul_forward(y.cpu, z.cpu, x.cpu, w.cpu, b.cpu, NULL, N, C, OC);
    args = { y.dev, z.dev, x.dev, w.dev, b.dev, N, C, OC };
    Ladder l = { "matmul_forward" };
    snprintf(l.shape, sizeof l.shape, "N=%zu C=%zu OC=%zu, bias, gelu", N, C, OC);
    l.elements = (double)(N * OC), l.flops = 2.0 * (double)N * (double)C * (double)OC;
    l.bytes = (double)((N * C + OC * C + 2 * N * OC) * sizeof(floatX));
    double sum = 4 * unit * sqrt((double)C) + 16 * unit;
    ladder_output(&l, y, 2.5 * stored + sum), ladder_output(&l, z, stored + sum);
    ladder_climb(&l, rungs);
    ops_free(), cpu::ops_free();
}
int main(int argc, char **argv) {
    static const size_t awkward[] = { 13, 72, 40 }, emulated[] = { 128, 128, 128 };
    static const size_t full[] = { 8192, 768, 3072 };
    return ladder_main(argc, argv, climb, awkward, emulated, full);
}
