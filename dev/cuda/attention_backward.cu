// attention_backward.cu: a ladder for attention_backward, section 6.4; heads of 64 channels.
//   naive       P and dS (T,T) of every head in memory: a thread for a place in them, then a thread
//               for each value of dq, dk, dv, which reads a row or a column
//   rows        no (T,T) in memory: a block makes a row (for dq) or a column (for dk and dv) of P
//               again, from q, k and lse, in shared memory, and weighs with it: scores are made
//               twice, in exchange for the traffic
//   warps       a warp for a row, P and dS of 32 places in its registers, handed on by shuffles: no
//               barrier, and reads of 128 bytes. The shipped kernel for other heads, and for fp32
//   shipped     tensor cores, tiles of both sides in swizzled shared memory, P and dS in registers;
//               as before one kernel owns queries, one keys: no atomics, the same bits every time
#include "ladder.h"

static size_t B, T, C, NH, heads;
static floatX *dqkv, *dout, *out, *qkv; // (B,T,3C) (B,T,C) (B,T,C) (B,T,3C)
static float *lse, *probs, *dscores;    // (B,NH,T) (B,NH,T,T) (B,NH,T,T)
static float2 *stats;                   // (B,NH,Tp): lse * log2(e), rowsum(dout * out)
static float log_scale;                 // log2(e) / sqrt(HS)
enum { HS = 64 };

static void run_stats(void) { // as shipped: of every query
    attention_rowsums<<<grid_of(heads * round_up(T, ATT_PAD), ATT_PAD), ATT_THREADS, 0, stream>>>(
        stats, dout, out, lse, (int)T, HS, (int)C);
}
DEVICE float dot(const floatX *x, const floatX *y) {
    float sum = 0;
    for (int c = 0; c < HS; c++) sum += f32(x[c]) * f32(y[c]);
    return sum;
}
// P and dS of one query and key. q, d: the head's first query, and its gradient of out.
DEVICE void score(float *p, float *ds, const floatX *q, const floatX *d, float2 stats, size_t query,
                  size_t key, size_t C, float log_scale) {
    const floatX *k = q + C, *v = k + C;
    *p = exp2f(dot(q + query * 3 * C, k + key * 3 * C) * log_scale - stats.x);
    float dprob = dot(d + query * C, v + key * 3 * C);
    *ds = *p * (dprob - stats.y) * log_scale * (float)M_LN2;
}
static __global__ void square_kernel(float *probs, float *dscores, const floatX *qkv,
                                     const floatX *dout, const float2 *stats, size_t T, size_t C,
                                     float log_scale) {
    size_t key = blockIdx.x * (size_t)BLOCK + threadIdx.x, query = blockIdx.y, head = blockIdx.z;
    size_t start = head / (C / HS) * T, channel = head % (C / HS) * HS;
    if (key > query) return;
    size_t at = (head * T + query) * T + key;
    score(probs + at, dscores + at, qkv + start * 3 * C + channel, dout + start * C + channel,
          stats[head * att_padded((int)T) + query], query, key, C, log_scale);
}
static __global__ void weigh_kernel(floatX *dqkv, const float *probs, const float *dscores,
                                    const floatX *qkv, const floatX *dout, size_t T, size_t C) {
    size_t c = threadIdx.x, t = blockIdx.x, head = blockIdx.y, start = head / (C / HS) * T;
    size_t channel = head % (C / HS) * HS + c;
    const floatX *q = qkv + start * 3 * C + channel, *k = q + C;
    const floatX *d = dout + start * C + channel;
    const float *p = probs + head * T * T, *ds = dscores + head * T * T;
    float dq = 0, dk = 0, dv = 0;
    for (size_t key = 0; key <= t; key++) dq += ds[t * T + key] * f32(k[key * 3 * C]);
    for (size_t query = t; query < T; query++) {
        dk += ds[query * T + t] * f32(q[query * 3 * C]);
        dv += p[query * T + t] * f32(d[query * C]);
    }
    floatX *to = dqkv + (start + t) * 3 * C + channel;
    to[0] = fX(dq), to[C] = fX(dk), to[2 * C] = fX(dv);
}
static void run_naive(void) {
    dim3 square(grid_of(T, BLOCK), (unsigned)T, (unsigned)heads);
    run_stats();
    square_kernel<<<square, BLOCK, 0, stream>>>(probs, dscores, qkv, dout, stats, T, C, log_scale);
    weigh_kernel<<<dim3((unsigned)T, (unsigned)heads), HS, 0, stream>>>(dqkv, probs, dscores, qkv,
                                                                       dout, T, C);
}
static __global__ void rows_kernel(floatX *dqkv, const floatX *qkv, const floatX *dout,
                                   const float2 *stats, size_t T, size_t C, float log_scale,
                                   int of_keys) {
    extern __shared__ float of_row[]; // (2,T): P, dS
    size_t row = blockIdx.x, head = blockIdx.y, start = head / (C / HS) * T;
    size_t channel = head % (C / HS) * HS, c = threadIdx.x;
    const floatX *q = qkv + start * 3 * C + channel, *d = dout + start * C + channel;
    size_t begin = of_keys ? row : 0, end = of_keys ? T : row + 1;
    for (size_t other = begin + threadIdx.x; other < end; other += HS) {
        size_t query = of_keys ? other : row, key = of_keys ? row : other;
        score(of_row + other, of_row + T + other, q, d,
              stats[head * att_padded((int)T) + query], query, key, C, log_scale);
    }
    __syncthreads();
    const floatX *x = of_keys ? q : q + C;
    float dx = 0, dy = 0;
    for (size_t other = begin; other < end; other++) {
        dx += of_row[T + other] * f32(x[other * 3 * C + c]);
        if (of_keys) dy += of_row[other] * f32(d[other * C + c]);
    }
    floatX *to = dqkv + (start + row) * 3 * C + channel + c;
    to[of_keys ? C : 0] = fX(dx);
    if (of_keys) to[2 * C] = fX(dy);
}
static void run_rows(void) {
    run_stats();
    for (int of_keys = 0; of_keys < 2; of_keys++)
        rows_kernel<<<dim3((unsigned)T, (unsigned)heads), HS, 2 * T * sizeof(float), stream>>>(
            dqkv, qkv, dout, stats, T, C, log_scale, of_keys);
}
static void run_warps(void) {
    run_stats();
    for (int of_keys = 0; of_keys < 2; of_keys++)
        attention_backward_plain<<<grid_of(heads * T, ATT_WARPS), ATT_THREADS, 0, stream>>>(
            dqkv, dout, stats, qkv, (int)T, HS, (int)C, (int)heads, log_scale, of_keys);
}
static void run_shipped(void) { attention_backward(dqkv, dout, out, lse, qkv, B, T, C, NH); }
static const Rung rungs[] = { { "naive", run_naive }, { "rows", run_rows }, { "warps", run_warps },
                              { "shipped", run_shipped } };

static void climb(const size_t *shape) {
    B = shape[0], T = shape[1], NH = shape[2], C = NH * HS, heads = B * NH;
    log_scale = (float)M_LOG2E / sqrtf((float)HS);
    ops_init(B, T, C, NH, 0), cpu::ops_init(B, T, C, NH, 0);
    X x(B * T * 3 * C, 1, 2), y(B * T * C), d(B * T * C, 2), dx(B * T * 3 * C);
    R z(heads * T);
    probs = (float *)dev_alloc(heads * T * T * sizeof(float), "a ladder");
    dscores = (float *)dev_alloc(heads * T * T * sizeof(float), "a ladder");
    attention_forward(y.dev, z.dev, x.dev, B, T, C, NH);
    cpu::attention_forward(y.cpu, z.cpu, x.cpu, B, T, C, NH);
    cpu::attention_backward(dx.cpu, d.cpu, y.cpu, z.cpu, x.cpu, B, T, C, NH);
    qkv = x.dev, out = y.dev, dout = d.dev, dqkv = dx.dev, lse = z.dev;
    stats = (float2 *)attention_scratch;
    Ladder l = { "attention_backward" };
    snprintf(l.shape, sizeof l.shape, "B=%zu T=%zu NH=%zu HS=%d", B, T, NH, HS);
    l.elements = (double)(B * T * C), l.bytes = 8.0 * (double)(B * T * C * sizeof(floatX));
    l.flops = 5.0 * (double)(B * T * C) * (double)(T + 1); // half of the square, five products
    ladder_output(&l, dx, 3 * stored + 64 * unit * sqrt((double)HS));
    ladder_climb(&l, rungs);
    dev_free(probs), dev_free(dscores), ops_free(), cpu::ops_free();
}
int main(int argc, char **argv) {
    static const size_t awkward[] = { 2, 133, 2 }, emulated[] = { 1, 200, 1 };
    static const size_t full[] = { 8, 1024, 12 };
    return ladder_main(argc, argv, climb, awkward, emulated, full);
}
