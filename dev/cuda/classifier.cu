// classifier.cu: a ladder for classifier_forward_backward, section 6.6.
//   naive       a thread for a row of Vp logits: neighbouring threads read places Vp values apart,
//               and there are only as many threads as rows
//   three passes a block for a row, neighbours read neighbours; a pass for the maximum, one for the
//               sum of e^(x - maximum), one that writes the gradient: 4 values moved
//   online      maximum and sum in one pass: a thread corrects its sum when its maximum grows: 3
//               values moved, of which the second read mostly comes from L2
//   shipped     16 bytes a load, so the sum is corrected once for 8 values; 1024 threads to a row;
//               powers of 2 instead of e, and what lies behind the last pack apart: no branches
#include "ladder.h"

static size_t N, V, Vp;
static float *losses;   // (N)
static floatX *logits;  // (N,Vp)
static int32_t *tokens; // (N)
static const float dloss = 0.25f;

static __global__ void naive_kernel(float *losses, floatX *logits, const int32_t *targets,
                                    float dloss, size_t N, size_t V, size_t Vp) {
    size_t n = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= N) return;
    floatX *x = logits + n * Vp;
    float max = -INFINITY, sum = 0;
    for (size_t i = 0; i < V; i++) max = fmaxf(max, f32(x[i]));
    for (size_t i = 0; i < V; i++) sum += expf(f32(x[i]) - max);
    losses[n] = max + logf(sum) - f32(x[targets[n]]);
    for (size_t i = 0; i < Vp; i++) {
        float one = i == (size_t)targets[n] ? 1 : 0;
        x[i] = fX(i < V ? (expf(f32(x[i]) - max) / sum - one) * dloss : 0);
    }
}
static void run_naive(void) {
    naive_kernel<<<grid_of(N, BLOCK), BLOCK, 0, stream>>>(losses, logits, tokens, dloss, N, V, Vp);
}
// The largest x of a block, in every thread; of_warps: shared.
DEVICE float block_max(float x, float *of_warps) {
    x = warp_max(x);
    if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = x;
    __syncthreads();
    return warp_max(of_warps[threadIdx.x % WARPS]);
}
DEVICE void write_row(floatX *x, size_t target, float lse, float dloss, size_t V, size_t Vp) {
    for (size_t i = threadIdx.x; i < Vp; i += BLOCK) {
        float one = i == target ? 1 : 0;
        x[i] = fX(i < V ? (expf(f32(x[i]) - lse) - one) * dloss : 0);
    }
}
static __global__ void three_kernel(float *losses, floatX *logits, const int32_t *targets,
                                    float dloss, size_t V, size_t Vp) {
    __shared__ float of_warps[WARP];
    floatX *x = logits + blockIdx.x * Vp;
    size_t target = (size_t)targets[blockIdx.x];
    float max = -INFINITY, sum = 0, of_target = f32(x[target]);
    for (size_t i = threadIdx.x; i < V; i += BLOCK) max = fmaxf(max, f32(x[i]));
    max = block_max(max, of_warps);
    for (size_t i = threadIdx.x; i < V; i += BLOCK) sum += expf(f32(x[i]) - max);
    float lse = max + logf(block_sum(sum, of_warps));
    if (threadIdx.x == 0) losses[blockIdx.x] = lse - of_target;
    write_row(x, target, lse, dloss, V, Vp);
}
static void run_three(void) {
    three_kernel<<<grid_of(N, 1), BLOCK, 0, stream>>>(losses, logits, tokens, dloss, V, Vp);
}
static __global__ void online_kernel(float *losses, floatX *logits, const int32_t *targets,
                                     float dloss, size_t V, size_t Vp) {
    __shared__ float of_warps[WARP];
    floatX *x = logits + blockIdx.x * Vp;
    size_t target = (size_t)targets[blockIdx.x];
    float max = -INFINITY, sum = 0, of_target = f32(x[target]);
    for (size_t i = threadIdx.x; i < V; i += BLOCK) {
        float value = f32(x[i]), old = max;
        max = fmaxf(max, value);
        sum = sum * expf(old - max) + expf(value - max);
    }
    float top = block_max(max, of_warps);
    sum = block_sum(sum == 0 ? 0 : sum * expf(max - top), of_warps); // 0: nothing seen
    float lse = top + logf(sum);
    if (threadIdx.x == 0) losses[blockIdx.x] = lse - of_target;
    write_row(x, target, lse, dloss, V, Vp);
}
static void run_online(void) {
    online_kernel<<<grid_of(N, 1), BLOCK, 0, stream>>>(losses, logits, tokens, dloss, V, Vp);
}
static void run_shipped(void) {
    classifier_forward_backward(losses, logits, tokens, dloss, N, V, Vp);
}
static const Rung rungs[] = { { "naive", run_naive }, { "three passes", run_three },
                              { "online", run_online }, { "shipped", run_shipped } };

static void climb(const size_t *shape) {
    N = shape[0], V = shape[1], Vp = round_up(V, 128);
    X x(N * Vp, 1, 5);
    R loss(N);
    int32_t *host = ladder_tokens(&tokens, N, V);
    cpu::classifier_forward_backward(loss.cpu, x.cpu, host, dloss, N, V, Vp);
    losses = loss.dev, logits = x.dev;
    Ladder l = { "classifier" };
    snprintf(l.shape, sizeof l.shape, "N=%zu V=%zu", N, V);
    l.elements = (double)(N * V), l.bytes = 2.0 * (double)(N * Vp * sizeof(floatX));
    ladder_output(&l, x, stored + 32 * unit + 4 * unit * sqrt((double)V));
    ladder_output(&l, loss, 16 * unit + 4 * unit * sqrt((double)V));
    ladder_climb(&l, rungs);
    dev_free(tokens), free(host);
}
int main(int argc, char **argv) {
    static const size_t awkward[] = { 3, 257 }, emulated[] = { 16, 9001 }, full[] = { 512, 50257 };
    return ladder_main(argc, argv, climb, awkward, emulated, full);
}
