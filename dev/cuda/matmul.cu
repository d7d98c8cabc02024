// matmul.cu: a ladder for matmul_forward, section 6.3, with its epilogues: out = gelu(pre), pre =
// inp . weight^T + bias, both kept.
//   naive       a thread for a value of out: each of the N*OC threads reads 2*C values; what a warp
//               reads of weight lies C values apart
//   tiles       16x16 threads bring 16x16 tiles of both to shared memory: a value that is loaded
//               serves 16 threads, and loads are neighbours
//   registers   a thread makes 4x4 values: 8 reads of shared memory for 16 multiplications, not 32
//   mma         tensor cores: a warp makes 32x64 values by mma, from tiles brought by cp.async into
//               swizzled rows and by ldmatrix into registers (the parts are attention's). It waits
//               for each tile before it multiplies
//   gelu apart  cuBLASLt, which knows the card: TMA, wgmma, several tiles under way. gelu in a
//               kernel of its own reads and writes N*OC values again
//   shipped     gelu, too, in cuBLASLt's epilogue, while the sums are in registers
#include "ladder.h"

static size_t N, C, OC;
static floatX *out, *pre, *inp, *weight, *bias; // (N,OC) (N,OC) (N,C) (OC,C) (OC)
enum { TILE = 16, SIDE = 64, STEP = 16, ROWS = 128 }; // of tiles; of registers; of mma

DEVICE void finish(floatX *out, floatX *pre, float sum, size_t n, size_t o, const floatX *bias,
                   size_t N, size_t OC) {
    if (n >= N || o >= OC) return;
    sum += f32(bias[o]);
    pre[n * OC + o] = fX(sum);
    out[n * OC + o] = fX(gelu(sum));
}
DEVICE float at(const floatX *x, size_t row, size_t rows, size_t i, size_t C) { // 0 outside
    return row < rows && i < C ? f32(x[row * C + i]) : 0;
}
static __global__ void naive_kernel(floatX *out, floatX *pre, const floatX *inp,
                                    const floatX *weight, const floatX *bias, size_t N, size_t C,
                                    size_t OC) {
    size_t o = (size_t)blockIdx.x * blockDim.x + threadIdx.x, n = blockIdx.y;
    float sum = 0;
    for (size_t i = 0; i < C && o < OC; i++) sum += f32(inp[n * C + i]) * f32(weight[o * C + i]);
    finish(out, pre, sum, n, o, bias, N, OC);
}
static void run_naive(void) {
    dim3 grid(grid_of(OC, 64), (unsigned)N);
    naive_kernel<<<grid, 64, 0, stream>>>(out, pre, inp, weight, bias, N, C, OC);
}
static __global__ void tiles_kernel(floatX *out, floatX *pre, const floatX *inp,
                                    const floatX *weight, const floatX *bias, size_t N, size_t C,
                                    size_t OC) {
    __shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1]; // + 1: columns in different banks
    size_t x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    size_t n = blockIdx.y * (size_t)TILE, o = blockIdx.x * (size_t)TILE;
    float sum = 0;
    for (size_t i = 0; i < C; i += TILE) {
        a[y][x] = at(inp, n + y, N, i + x, C);
        b[y][x] = at(weight, o + y, OC, i + x, C);
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum += a[y][k] * b[x][k];
        __syncthreads(); // the tiles are written again
    }
    finish(out, pre, sum, n + y, o + x, bias, N, OC);
}
static void run_tiles(void) {
    dim3 grid(grid_of(OC, TILE), grid_of(N, TILE));
    tiles_kernel<<<grid, TILE * TILE, 0, stream>>>(out, pre, inp, weight, bias, N, C, OC);
}
static __global__ void registers_kernel(floatX *out, floatX *pre, const floatX *inp,
                                        const floatX *weight, const floatX *bias, size_t N,
                                        size_t C, size_t OC) {
    __shared__ float a[STEP][SIDE + 4], b[STEP][SIDE + 4]; // transposed: 4 neighbours in one load
    size_t x = threadIdx.x % 16 * 4, y = threadIdx.x / 16 * 4;
    size_t n = blockIdx.y * (size_t)SIDE, o = blockIdx.x * (size_t)SIDE;
    float sum[4][4] = {};
    for (size_t i = 0; i < C; i += STEP) {
        for (size_t j = threadIdx.x; j < SIDE * STEP; j += BLOCK) {
            a[j % STEP][j / STEP] = at(inp, n + j / STEP, N, i + j % STEP, C);
            b[j % STEP][j / STEP] = at(weight, o + j / STEP, OC, i + j % STEP, C);
        }
        __syncthreads();
        for (int k = 0; k < STEP; k++) for (int r = 0; r < 4; r++) for (int c = 0; c < 4; c++)
            sum[r][c] += a[k][y + r] * b[k][x + c];
        __syncthreads();
    }
    for (int r = 0; r < 4; r++) for (int c = 0; c < 4; c++)
        finish(out, pre, sum[r][c], n + y + r, o + x + c, bias, N, OC);
}
static void run_registers(void) {
    dim3 grid(grid_of(OC, SIDE), grid_of(N, SIDE));
    registers_kernel<<<grid, BLOCK, 0, stream>>>(out, pre, inp, weight, bias, N, C, OC);
}
// Starts the copy of 64 channels from i on of `count` rows of x (rows,C), with 0 where x ends.
DEVICE void load_tile(floatX *tile, int count, const floatX *x, size_t first, size_t rows, size_t i,
                      size_t C) {
    for (unsigned j = threadIdx.x; j < 8 * (unsigned)count; j += ATT_THREADS) {
        size_t row = first + j / 8, c = i + j % 8 * 8;
        bool is_inside = row < rows && c < C;
        cp_async_16(tile + att_at<64>(j / 8, j % 8), x + (is_inside ? row * C + c : 0),
                    is_inside ? 16 : 0);
    }
}
static __global__ void mma_kernel(floatX *out, floatX *pre, const floatX *inp, const floatX *weight,
                                  const floatX *bias, size_t N, size_t C, size_t OC) {
    __shared__ __align__(128) floatX a[ROWS * 64];
    __shared__ __align__(128) floatX b[64 * 64];
    size_t n = blockIdx.y * (size_t)ROWS, o = blockIdx.x * (size_t)64;
    int lane = threadIdx.x % WARP, own = threadIdx.x / WARP * 32; // rows of this warp
    uint32_t x[2][4][4];
    float sum[2][8][4] = {}; // (2 16, 8 8), see section 1
    for (size_t i = 0; i < C; i += 64) {
        load_tile(a, ROWS, inp, n, N, i, C);
        load_tile(b, 64, weight, o, OC, i, C);
        cp_async_commit();
        cp_async_wait(0);
        __syncthreads();
        att_scores<64, 2, 8, 0>(sum, x, a + own * 64, b);
        __syncthreads();
    }
    for (int p = 0; p < 2; p++) for (int q = 0; q < 8; q++) for (int k = 0; k < 4; k++)
        finish(out, pre, sum[p][q][k], n + own + 16 * p + lane / 4 + k / 2 * 8,
               o + 8 * q + lane % 4 * 2 + k % 2, bias, N, OC);
}
static void run_mma(void) {
    dim3 grid(grid_of(OC, 64), grid_of(N, ROWS));
    mma_kernel<<<grid, ATT_THREADS, 0, stream>>>(out, pre, inp, weight, bias, N, C, OC);
}
static void run_shipped(void) { matmul_forward(out, pre, inp, weight, bias, NULL, N, C, OC); }
static void run_apart(void) {
    matmul_fuses_gelu = 0;
    run_shipped();
    matmul_fuses_gelu = 1;
}
static const Rung rungs[] = {
    { "naive", run_naive }, { "tiles", run_tiles }, { "registers", run_registers },
    { "mma", run_mma, 1 }, { "gelu apart", run_apart }, { "shipped", run_shipped } };

static void climb(const size_t *shape) {
    N = shape[0], C = shape[1], OC = shape[2];
    ops_init(1, N, C, 1, 0), cpu::ops_init(1, N, C, 1, 0);
    X x(N * C, 1), w(OC * C, 2), b(OC, 3), y(N * OC), z(N * OC);
    cpu::matmul_forward(y.cpu, z.cpu, x.cpu, w.cpu, b.cpu, NULL, N, C, OC);
    inp = x.dev, weight = w.dev, bias = b.dev, out = y.dev, pre = z.dev;
    Ladder l = { "matmul_forward" };
    snprintf(l.shape, sizeof l.shape, "N=%zu C=%zu OC=%zu, bias, gelu", N, C, OC);
    l.elements = (double)(N * OC), l.flops = 2.0 * (double)N * (double)C * (double)OC;
    l.bytes = (double)((N * C + OC * C + 2 * N * OC) * sizeof(floatX));
    double sum = 4 * unit * sqrt((double)C) + 16 * unit;
    ladder_output(&l, y, 2.5 * stored + sum), ladder_output(&l, z, stored + sum);
    LADDER_CLIMB(&l, rungs);
    ops_free(), cpu::ops_free();
}
int main(int argc, char **argv) {
    static const size_t awkward[] = { 13, 72, 40 }, emulated[] = { 128, 128, 128 };
    static const size_t full[] = { 8192, 768, 3072 };
    return ladder_main(argc, argv, climb, awkward, emulated, full);
}
