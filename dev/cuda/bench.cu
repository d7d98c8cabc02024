// bench.cu [B T C NH V]: every op of train_gpt.cu at the shapes of one training step, timed alone.
// For each: microseconds (median of 20, the L2 cache emptied before each), calls in a micro-batch,
// what bounds it (bytes or FLOPs), and how much of this card's own peak it reaches: of the
// bandwidth of a copy, and of the FLOP/s of its data sheet. Products with an epilogue are timed
// without it, too ("apart"), as cuBLASLt may have a slower kernel for it. Last line: the sum of the
// others, which a micro-batch should take.
//   build   dev/cuda/build.sh build/bench_cuda dev/cuda/bench.cu
//   runs    on a GPU; on the emulator only to see that it runs:
//           dev/emu/run dev/cuda/bench.cu 1 32 64 1 257 2
#define GPT_NO_MAIN
#include "../../train_gpt.cu"
#include "cold.h"

static size_t B = 64, T = 1024, C = 768, NH = 12, V = 50257, L = 12;
static size_t N, Vp;
static floatX *x, *y, *wide, *narrow, *weights, *logits, *bias;
static float *grads, *stats, *lse, *m, *v, *master;
static double *totals;
static int32_t *tokens;
static AdamW hyper;

static void run_embedding(void) { embedding_forward(y, tokens, weights, weights, B, T, C, 0); }
static void run_embedding_backward(void) {
    embedding_backward(grads, grads, x, tokens, B, T, C, T, 1);
}
static void run_layernorm(void) { layernorm_forward(y, stats, stats + N, x, bias, bias, N, C); }
static void run_layernorm_backward(void) {
    layernorm_backward(y, grads, grads + C, narrow, x, stats, stats + N, bias, N, C, 0);
}
static void run_qkv(void) { matmul_forward(wide, NULL, x, weights, bias, NULL, N, C, 3 * C); }
static void run_proj(void) { matmul_forward(y, NULL, x, weights, bias, narrow, N, C, C); }
static void run_fc(void) {
    matmul_forward(wide + N * 4 * C, wide, x, weights, bias, NULL, N, C, 4 * C);
}
static void run_fcproj(void) { matmul_forward(y, NULL, wide, weights, bias, narrow, N, 4 * C, C); }
static void run_qkv_backward(void) {
    matmul_backward(narrow, grads, m, wide, x, weights, NULL, N, C, 3 * C, 0);
}
static void run_proj_backward(void) {
    matmul_backward(narrow, grads, m, x, y, weights, NULL, N, C, C, 0);
}
static void run_fc_backward(void) {
    matmul_backward(narrow, grads, m, wide, x, weights, NULL, N, C, 4 * C, 0);
}
static void run_fcproj_backward(void) {
    matmul_backward(wide, grads, m, x, wide + N * 4 * C, weights, wide, N, 4 * C, C, 0);
}
static void run_attention(void) { attention_forward(y, lse, wide, B, T, C, NH); }
static void run_attention_backward(void) {
    attention_backward(wide + N * 4 * C, narrow, y, lse, wide, B, T, C, NH);
}
static size_t rows(void) { return head_rows(N); } // of logits at a time
static void run_head(void) { matmul_forward(logits, NULL, x, weights, NULL, NULL, rows(), C, Vp); }
static void run_classifier(void) {
    classifier_forward_backward(stats, logits, tokens, 1e-5f, rows(), V, Vp);
}
static void run_head_backward(void) {
    matmul_backward(narrow, grads, NULL, logits, x, weights, NULL, rows(), C, Vp, 1);
}
static void run_adamw(void) {
    adamw_update(weights, sizeof(floatX) == 4 ? NULL : master, m, v, grads, 12 * C * C, hyper);
}
static void run_norm(void) { sum_squares(totals, grads, 256, 12 * C * C / 256); }
static void run_copy(void) { dev_copy(wide, wide + N * 4 * C, N * 4 * C * sizeof(floatX)); }

// What is an epilogue otherwise, in a kernel of its own
static void apart(void (*op)(void)) {
    matmul_fuses_gelu = matmul_fuses_bias_gradient = 0;
    op();
    matmul_fuses_gelu = matmul_fuses_bias_gradient = 1;
}
static void run_fc_apart(void) { apart(run_fc); }
static void run_qkv_backward_apart(void) { apart(run_qkv_backward); }
static void run_proj_backward_apart(void) { apart(run_proj_backward); }
static void run_fc_backward_apart(void) { apart(run_fc_backward); }
static void run_fcproj_backward_apart(void) { apart(run_fcproj_backward); }

static double median_us(void (*op)(void)) {
    enum { TRIES = 20 };
    double us[TRIES];
    for (int i = 0; i < TRIES; i++) {
        cold_read();
        dev_stamp(0);
        op();
        dev_stamp(1);
        us[i] = 1e3 * dev_stamps_ms(0, 1);
    }
    for (int i = 0; i < TRIES; i++) for (int j = i; j > 0 && us[j] < us[j - 1]; j--) {
        double swapped = us[j];
        us[j] = us[j - 1];
        us[j - 1] = swapped;
    }
    return us[TRIES / 2];
}
static floatX *random_values(size_t count) { // zeros would multiply at a higher clock
    real *host = (real *)host_alloc(count * sizeof(real));
    for (size_t i = 0; i < count; i++) host[i] = (real)(0.1 * hash_uniform(1, i) - 0.05);
    floatX *dev = (floatX *)dev_alloc(count * sizeof(floatX), "bench");
    values_to_dev(dev, host, count);
    free(host);
    return dev;
}
static float *floats(size_t count) { return (float *)dev_alloc(count * sizeof(float), "bench"); }

static void allocate(void) {
    N = B * T;
    Vp = round_up(V, 128);
    size_t most_weights = max_size(12 * C * C, Vp * C);
    ops_init(B, T, C, NH, Vp);
    cold_alloc();
    x = random_values(N * C), y = random_values(N * C), narrow = random_values(N * C);
    wide = random_values(2 * N * 4 * C), weights = random_values(most_weights);
    bias = random_values(4 * C), logits = random_values(rows() * Vp);
    grads = floats(most_weights), stats = floats(2 * N), lse = floats(N * NH);
    m = floats(12 * C * C), v = floats(12 * C * C), master = floats(12 * C * C);
    totals = (double *)dev_alloc(256 * sizeof(double), "bench");
    int32_t *host = (int32_t *)host_alloc(N * sizeof(int32_t)); // Zipf's law, as in texts
    for (size_t i = 0; i < N; i++) host[i] = (int32_t)(pow((double)V, hash_uniform(2, i)) - 1);
    tokens = (int32_t *)dev_alloc(N * sizeof(int32_t), "bench");
    to_dev(tokens, host, N * sizeof(int32_t));
    free(host);
    hyper.beta1 = hyper.beta2 = 0.9f, hyper.eps = 1e-8f, hyper.keep = 1;
    run_layernorm();
    run_attention();
}
int main(int argc, char **argv) {
    size_t *const given[] = { &B, &T, &C, &NH, &V, &L };
    for (int i = 1; i < argc && i <= 6; i++) *given[i - 1] = (size_t)atoll(argv[i]);
    dev_check();
    allocate();
    size_t s = sizeof(floatX);
    // calls in a micro-batch (adamw and norm: in a step), bytes moved, FLOPs
    size_t chunks = div_up(N, rows()), parameters = 12 * C * C;
    double n = (double)N, c = (double)C, product = 2 * n * c * c, head = 2.0 * (double)rows() * c *
           (double)Vp, square = (double)(B * T) * (double)(T + 1) * c; // 2 products, causal
    const struct { const char *name; void (*op)(void); size_t calls; double bytes, flops; }
        ops[] = {
        { "copy", run_copy, 0, 8 * n * c * s, 0 },
        { "embedding", run_embedding, 1, 3 * n * c * s, 0 },
        { "embedding backward", run_embedding_backward, 1, 2 * n * c * s, 0 },
        { "layernorm", run_layernorm, 2 * L + 1, 2 * n * c * s, 0 },
        { "layernorm backward", run_layernorm_backward, 2 * L + 1, 4 * n * c * s, 0 },
        { "matmul qkv", run_qkv, L, 0, 3 * product },
        { "matmul attproj + residual", run_proj, L, 0, product },
        { "matmul fc + gelu", run_fc, L, 0, 4 * product },
        { "  gelu apart", run_fc_apart, 0, 0, 4 * product },
        { "matmul fcproj + residual", run_fcproj, L, 0, 4 * product },
        { "matmul qkv backward", run_qkv_backward, L, 0, 6 * product },
        { "  bias gradient apart", run_qkv_backward_apart, 0, 0, 6 * product },
        { "matmul attproj backward", run_proj_backward, L, 0, 2 * product },
        { "  bias gradient apart", run_proj_backward_apart, 0, 0, 2 * product },
        { "matmul fc backward", run_fc_backward, L, 0, 8 * product },
        { "  bias gradient apart", run_fc_backward_apart, 0, 0, 8 * product },
        { "matmul fcproj backward", run_fcproj_backward, L, 0, 8 * product },
        { "  gelu and bias g. apart", run_fcproj_backward_apart, 0, 0, 8 * product },
        { "attention", run_attention, L, 0, 2 * square },
        { "attention backward", run_attention_backward, L, 0, 5 * square },
        { "head", run_head, chunks, 0, head },
        { "classifier", run_classifier, chunks, 2.0 * rows() * Vp * s, 0 },
        { "head backward", run_head_backward, chunks, 0, 2 * head },
        { "adamw of a layer", run_adamw, L, (double)parameters * (s == 4 ? 28 : 30), 0 },
        { "norm of a layer", run_norm, L, 4.0 * parameters, 0 } };
    double bandwidth = 0, peak = dev_peak_flops(), sum = 0;
    printf("%s, %s: B=%zu T=%zu C=%zu NH=%zu V=%zu L=%zu\n", device.name, PRECISION_NAME, B, T, C,
           NH, V, L);
    printf("%-26s %10s %6s %10s %10s %10s\n", "op", "us", "calls", "GB/s", "TFLOP/s", "% of peak");
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        double us = median_us(ops[i].op);
        double gb = ops[i].bytes / us * 1e-3, tera = ops[i].flops / us * 1e-6;
        if (i == 0) bandwidth = gb;
        sum += us * (double)ops[i].calls;
        printf("%-26s %10.1f %6zu %10.0f %10.1f %10.0f\n", ops[i].name, us, ops[i].calls, gb, tera,
               ops[i].flops > 0 ? 100 * tera * 1e12 / peak : 100 * gb / bandwidth);
    }
    printf("micro-batch, update: %.2f ms, %.0f tok/s if nothing else took time\n", 1e-3 * sum,
           n / sum * 1e6);
    return 0;
}
