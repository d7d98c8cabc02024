// embedding_backward.cu: a ladder for embedding_backward, section 6.1. dwte[token] += dout for each
// of N tokens; frequent tokens collect thousands of rows.
//   naive       a thread for a channel walks through the tokens: C threads on the whole GPU
//   vocabulary  a block for each row of dwte looks for its token among all N: V * N comparisons,
//               though a text has a fraction of the vocabulary in it
//   atomics     a thread for a value of dout, atomicAdd: work for everybody, but the frequent
//               tokens' rows are queued for, and the order of additions is left to chance
//   shipped     a block for each token that is the first of its kind looks for the others behind
//               it, and adds them in order: the same bits every time, and a token that is not there
//               costs nothing. atomicMin finds the first ones: its result depends on no order
#include "ladder.h"

static size_t B, T, C, V, N;
static float *dwte, *dwpe; // (V,C), (T,C)
static floatX *dout;       // (B,T,C)
static int32_t *tokens;    // (B,T)

static __global__ void naive_kernel(float *dwte, float *dwpe, const floatX *dout,
                                    const int32_t *tokens, size_t N, size_t T, size_t C) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= C) return;
    for (size_t t = 0; t < T; t++) dwpe[t * C + i] = 0;
    for (size_t n = 0; n < N; n++) {
        dwte[(size_t)tokens[n] * C + i] += f32(dout[n * C + i]);
        dwpe[n % T * C + i] += f32(dout[n * C + i]);
    }
}
static void run_naive(void) {
    naive_kernel<<<grid_of(C, WARP), WARP, 0, stream>>>(dwte, dwpe, dout, tokens, N, T, C);
}
static void run_positions(void) { // as shipped, for the rungs that are about tokens
    position_gradient_kernel<<<grid_of(T * C, BLOCK), BLOCK, 0, stream>>>(dwpe, dout, B, T, C, T,
                                                                          0);
}
static __global__ void vocabulary_kernel(float *dwte, const floatX *dout, const int32_t *tokens,
                                         size_t N, size_t C) {
    for (size_t n = 0; n < N; n++) {
        if (tokens[n] != (int32_t)blockIdx.x) continue;
        for (size_t i = threadIdx.x; i < C; i += BLOCK)
            dwte[blockIdx.x * C + i] += f32(dout[n * C + i]);
    }
}
static void run_vocabulary(void) {
    vocabulary_kernel<<<grid_of(V, 1), BLOCK, 0, stream>>>(dwte, dout, tokens, N, C);
    run_positions();
}
static __global__ void atomics_kernel(float *dwte, const floatX *dout, const int32_t *tokens,
                                      size_t N, size_t C) {
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < N * C) atomicAdd(&dwte[(size_t)tokens[at / C] * C + at % C], f32(dout[at]));
}
static void run_atomics(void) {
    atomics_kernel<<<grid_of(N * C, BLOCK), BLOCK, 0, stream>>>(dwte, dout, tokens, N, C);
    run_positions();
}
static void run_shipped(void) { embedding_backward(dwte, dwpe, dout, tokens, B, T, C, T, 0); }
static const Rung rungs[] = { { "naive", run_naive }, { "vocabulary", run_vocabulary },
                              { "atomics", run_atomics }, { "shipped", run_shipped } };

static void climb(const size_t *shape) {
    B = shape[0], T = shape[1], C = shape[2], V = shape[3], N = B * T;
    ops_init(B, T, C, 1, V);
    X d(N * C, 1);
    R wte(V * C, 2), wpe(T * C); // wte: the head's gradient is there already
    int32_t *host = ladder_tokens(&tokens, N, V);
    cpu::embedding_backward(wte.cpu, wpe.cpu, d.cpu, host, B, T, C, T, 0);
    dwte = wte.dev, dwpe = wpe.dev, dout = d.dev;
    Ladder l = { "embedding_backward" };
    snprintf(l.shape, sizeof l.shape, "B=%zu T=%zu C=%zu V=%zu", B, T, C, V);
    l.elements = (double)(N * C); // moves dout, and a row of dwte for each kind of token: up to N
    l.bytes = (double)(N * C * sizeof(floatX)) + 4.0 * (double)(T * C);
    ladder_output(&l, wte, 4 * unit * sqrt((double)N));
    ladder_output(&l, wpe, 4 * unit * sqrt((double)B));
    ladder_climb(&l, rungs);
    ops_free(), dev_free(tokens), free(host);
}
int main(int argc, char **argv) {
    static const size_t awkward[] = { 3, 125, 72, 30 }, emulated[] = { 4, 64, 256, 300 };
    static const size_t full[] = { 64, 1024, 768, 50257 };
    return ladder_main(argc, argv, climb, awkward, emulated, full);
}
