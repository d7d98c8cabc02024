// attention_forward.cu: a ladder for attention_forward, section 6.4; heads of 64 channels.
//   naive       three kernels, scores (T,T) of every head in memory: written, and read 4 times; a
//               thread for a score, for a row of the softmax, for a value of out
//   online      a thread for a query goes through its keys once, softmax corrected on the way: no
//               scores in memory. A warp's threads read the same key; 128 registers for q and out
//   warps       a warp for a group of keys, 2 channels to a lane: keys are read in pieces of 128
//               bytes, 5 shuffles sum a score. The shipped kernel for other heads, and for fp32
//   one buffer  tensor cores: 128 queries to a block, tiles of 64 keys in swizzled shared memory by
//               cp.async, scores in registers; copies and products take turns
//   shipped     two buffers: the next tile comes while this one is multiplied; q in registers
#include "ladder.h"

static size_t B, T, C, NH, heads;
static floatX *out, *qkv;   // (B,T,C) (B,T,3C)
static float *lse, *scores; // (B,NH,T) (B,NH,T,T)
static float log_scale;     // log2(e) / sqrt(HS): softmax by 2^x
enum { HS = 64, ROWS = 128, KEYS = 64 };

DEVICE float dot(const floatX *x, const floatX *y) {
    float sum = 0;
    for (int c = 0; c < HS; c++) sum += f32(x[c]) * f32(y[c]);
    return sum;
}
static __global__ void scores_kernel(float *scores, const floatX *qkv, size_t T, size_t C,
                                     float log_scale) {
    size_t t2 = blockIdx.x * (size_t)BLOCK + threadIdx.x, t = blockIdx.y, head = blockIdx.z;
    const floatX *q = qkv + head / (C / HS) * T * 3 * C + head % (C / HS) * HS, *k = q + C;
    if (t2 < T) scores[(head * T + t) * T + t2] =
        t2 <= t ? dot(q + t * 3 * C, k + t2 * 3 * C) * log_scale : -INFINITY;
}
static __global__ void softmax_kernel(float *scores, float *lse, size_t rows, size_t T) {
    size_t row = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float *s = scores + row * T, max = -INFINITY, sum = 0;
    for (size_t i = 0; i < T; i++) max = fmaxf(max, s[i]);
    for (size_t i = 0; i < T; i++) sum += s[i] = exp2f(s[i] - max);
    for (size_t i = 0; i < T; i++) s[i] /= sum;
    lse[row] = (max + log2f(sum)) * (float)M_LN2;
}
static __global__ void weigh_kernel(floatX *out, const float *scores, const floatX *qkv, size_t T,
                                    size_t C) {
    size_t c = threadIdx.x, t = blockIdx.x, head = blockIdx.y, channel = head % (C / HS) * HS + c;
    const floatX *v = qkv + head / (C / HS) * T * 3 * C + 2 * C + channel;
    const float *p = scores + (head * T + t) * T;
    float sum = 0;
    for (size_t t2 = 0; t2 <= t; t2++) sum += p[t2] * f32(v[t2 * 3 * C]);
    out[(head / (C / HS) * T + t) * C + channel] = fX(sum);
}
static void run_naive(void) {
    dim3 squares(grid_of(T, BLOCK), (unsigned)T, (unsigned)heads);
    dim3 rows((unsigned)T, (unsigned)heads);
    scores_kernel<<<squares, BLOCK, 0, stream>>>(scores, qkv, T, C, log_scale);
    softmax_kernel<<<grid_of(heads * T, BLOCK), BLOCK, 0, stream>>>(scores, lse, heads * T, T);
    weigh_kernel<<<rows, HS, 0, stream>>>(out, scores, qkv, T, C);
}
static __global__ void online_kernel(floatX *out, float *lse, const floatX *qkv, size_t T, size_t C,
                                     float log_scale) {
    size_t t = blockIdx.x * (size_t)KEYS + threadIdx.x, head = blockIdx.y, NH = C / HS;
    if (t >= T) return;
    const floatX *first = qkv + head / NH * T * 3 * C + head % NH * HS;
    float q[HS], acc[HS] = {}, max = -INFINITY, sum = 0;
    ATT_UNROLL for (int c = 0; c < HS; c++) q[c] = f32(first[t * 3 * C + c]);
    for (size_t t2 = 0; t2 <= t; t2++) {
        const floatX *k = first + t2 * 3 * C + C, *v = k + C;
        float score = 0;
        ATT_UNROLL for (int c = 0; c < HS; c++) score += q[c] * f32(k[c]);
        float top = fmaxf(max, score * log_scale), shrink = exp2f(max - top);
        float p = exp2f(score * log_scale - top);
        max = top;
        sum = sum * shrink + p;
        ATT_UNROLL for (int c = 0; c < HS; c++) acc[c] = acc[c] * shrink + p * f32(v[c]);
    }
    ATT_UNROLL for (int c = 0; c < HS; c++)
        out[(head / NH * T + t) * C + head % NH * HS + c] = fX(acc[c] / sum);
    lse[head * T + t] = (max + log2f(sum)) * (float)M_LN2;
}
static void run_online(void) {
    online_kernel<<<dim3(grid_of(T, KEYS), (unsigned)heads), KEYS, 0, stream>>>(out, lse, qkv, T, C,
                                                                               log_scale);
}
static void run_warps(void) {
    attention_forward_plain<<<grid_of(heads * T, 1), ATT_THREADS, 0, stream>>>(
        out, lse, qkv, 3 * C, qkv + C, qkv + 2 * C, 3 * C, (int)T, 0, HS, C, heads, log_scale);
}
static __global__ void __launch_bounds__(ATT_THREADS, 2)
one_buffer_kernel(floatX *out, float *lse, const floatX *qkv, int T, int C, int heads,
                  float log_scale) {
    extern __shared__ __align__(128) floatX att_shared[];
    floatX *rows = att_shared, *keys = rows + ROWS * HS, *values = keys + KEYS * HS;
    int head, place, places = (T + ROWS - 1) / ROWS, NH = C / HS;
    att_place(&head, &place, heads, places);
    int first = (places - 1 - place) * ROWS, row = first + (int)threadIdx.x / WARP * 32;
    int end = first + ROWS < T ? first + ROWS : T; // of keys
    const floatX *q = qkv + (size_t)(head / NH * T) * 3 * C + head % NH * HS;
    floatX *own = rows + (row - first) * HS;
    uint32_t x[2][HS / 16][4];
    float acc[2][HS / 8][4] = {}, sum[2][2] = {}, max[2][2];
    for (int i = 0; i < 4; i++) max[i / 2][i % 2] = -INFINITY;
    att_load<HS, ROWS>(rows, q, 3 * C, first, T);
    for (int key = 0; key < end; key += KEYS) {
        att_load<HS, KEYS>(keys, q + C, 3 * C, key, T);
        att_load<HS, KEYS>(values, q + 2 * C, 3 * C, key, T);
        cp_async_commit();
        cp_async_wait(0);
        __syncthreads();
        if (key < row + 32) { // not behind the diagonal for all rows of this warp
            float s[2][KEYS / 8][4] = {};
            att_scores<HS, 2, KEYS / 8, 0>(s, x, own, keys);
            att_mask<2, KEYS / 8, 0>(s, row, key);
            att_softmax<HS, 2, KEYS / 8>(s, acc, max, sum, log_scale);
            att_weigh<HS, 2, KEYS / 8>(acc, s, values);
        }
        __syncthreads(); // the tile is written again
    }
    att_normalise<HS, 2>(acc, lse + (size_t)head * T, max, sum, row, T);
    att_store<HS, 2>(out + (size_t)(head / NH * T) * C + head % NH * HS, C, row, T, own, acc, 1);
}
static void run_one_buffer(void) {
    unsigned blocks = (unsigned)(heads * div_up(T, ROWS));
    one_buffer_kernel<<<blocks, ATT_THREADS, (ROWS + 2 * KEYS) * HS * sizeof(floatX), stream>>>(
        out, lse, qkv, (int)T, (int)C, (int)heads, log_scale);
}
static void run_shipped(void) { attention_forward(out, lse, qkv, B, T, C, NH); }
static const Rung rungs[] = {
    { "naive", run_naive }, { "online", run_online }, { "warps", run_warps },
    { "one buffer", run_one_buffer, 1 }, { "shipped", run_shipped } };

static void climb(const size_t *shape) {
    B = shape[0], T = shape[1], NH = shape[2], C = NH * HS, heads = B * NH;
    log_scale = (float)M_LOG2E / sqrtf((float)HS);
    ops_init(B, T, C, NH, 0), cpu::ops_init(B, T, C, NH, 0);
    X x(B * T * 3 * C, 1, 2), y(B * T * C);
    R z(heads * T);
    scores = (float *)dev_alloc(heads * T * T * sizeof(float), "a ladder");
    cpu::attention_forward(y.cpu, z.cpu, x.cpu, B, T, C, NH);
    qkv = x.dev, out = y.dev, lse = z.dev;
    Ladder l = { "attention_forward" };
    snprintf(l.shape, sizeof l.shape, "B=%zu T=%zu NH=%zu HS=%d", B, T, NH, HS);
    l.elements = (double)(B * T * C), l.bytes = 4.0 * (double)(B * T * C * sizeof(floatX));
    l.flops = 2.0 * (double)(B * T * C) * (double)(T + 1); // half of the square, two products
    double sum = 64 * unit * sqrt((double)HS); // scores are up to 4 sqrt(HS)
    ladder_output(&l, y, 2 * stored + sum), ladder_output(&l, z, sum);
    ladder_climb(&l, rungs);
    dev_free(scores), ops_free(), cpu::ops_free();
}
int main(int argc, char **argv) {
    static const size_t awkward[] = { 2, 133, 2 }, emulated[] = { 1, 200, 1 };
    static const size_t full[] = { 8, 1024, 12 };
    return ladder_main(argc, argv, climb, awkward, emulated, full);
}
