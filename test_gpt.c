// test_gpt.c: tests of the trainer, from its ops to the whole model. It includes the program it
// tests: train_gpt.c, or train_gpt.cu where a CUDA compiler (or dev/emu) reads it.
//   make test            builds it in fp32 and in fp64 and runs both, then dev/test/*.sh
//   make test-cuda       the same for CUDA, emulated on the CPU
//   ./build/test_gpt attention gelu runs the tests with one of these words in their name
// A test is a claim. To add one, write a function and add its name to TESTS; see it fail once.
// Outputs are filled with NaN before the code under test runs; a NaN never passes a comparison.
// Built for CUDA with -DDEV_MANAGED: what dev_alloc gives can be read by the host too, and every op
// is waited for. What an op sees comes from test_alloc, and C from WIDE.
#define GPT_NO_MAIN
#if defined(__CUDACC__) || defined(EMULATED)
#include "train_gpt.cu"
enum { is_gpt_cuda = 1 };
static real exp_real(real x) { return expf(x); }    // of the CPU program, where they are tested
[[maybe_unused]] static int matmul_bf16 = 0;
#else
#include "train_gpt.c"
enum { is_gpt_cuda = 0 };
static int matmul_fuses_gelu = 1;                   // of the CUDA program
static int matmul_fuses_bias_gradient = 1;
#endif
#if defined(PRECISION_FP16)
enum { is_fp16 = 1 };
#else
enum { is_fp16 = 0 };
#endif

// --- tools ---
static int failures = 0;
static const char *skip_reason = NULL;
#define expect(cond, ...) do { if (!(cond)) { \
    printf("  %s:%d: ", __FILE__, __LINE__); printf(__VA_ARGS__); printf("\n"); failures++; \
} } while (0)

enum { is_fp64 = sizeof(real) == 8 };
// half an ulp of 1
static const double unit = is_fp64 ? 1.1102230246251565e-16 : 5.9604644775390625e-8;

// the same of what is stored
static const double stored = is_fp16 ? 0x1p-11 : has_master ? 0x1p-8 :
                             is_fp64 ? 1.1102230246251565e-16 : 0x1p-24;
// On a GPU the order of a product's sums depends on its shape, so that a floatX may be rounded to
// its other neighbour: what is the same bits on a CPU is the same but for this.
static const double regrouped = is_gpt_cuda * has_master * stored;

// Emulated, some shapes would take minutes.
#define SMALLER(on_cpu, on_cuda) (is_gpt_cuda ? (on_cuda) : (on_cpu))
#define WIDE(channels) (((channels) + CHANNELS_UNIT - 1) / CHANNELS_UNIT * CHANNELS_UNIT)
// Memory for ops, zeroed. On the CPU without a byte to spare, so that a sanitizer sees every step
// too far.
static void *test_alloc(size_t bytes) {
    return is_gpt_cuda ? dev_alloc(bytes, "a test") : host_alloc(bytes);
}
static void test_free(void *p) {
    if (is_gpt_cuda) dev_free(p);
    else free(p);
}

// [-1, 1)
static double random_at(uint64_t seed, size_t i) { return 2 * hash_uniform(seed, i) - 1; }
static int32_t *make_tokens(const int32_t *values, size_t count) {
    int32_t *tokens = (int32_t *)test_alloc(count * sizeof(int32_t));
    memcpy(tokens, values, count * sizeof(int32_t));
    return tokens;
}
static void fill(floatX *x, size_t count, uint64_t seed, double scale, double offset) {
    for (size_t i = 0; i < count; i++) x[i] = fX((real)(offset + scale * random_at(seed, i)));
}
static floatX *make(size_t count, uint64_t seed, double scale, double offset) {
    floatX *x = (floatX *)test_alloc(count * sizeof(floatX));
    fill(x, count, seed, scale, offset);
    return x;
}
static floatX *make_nan(size_t count) { return make(count, 0, 0, NAN); }
static real *make_nan_real(size_t count) {
    real *x = (real *)test_alloc(count * sizeof(real));
    for (size_t i = 0; i < count; i++) x[i] = NAN;
    return x;
}
// Largest difference, over the largest magnitude of `want`, or over `scale` where that is larger.
static double difference(const double *want, const double *got, size_t count, double scale) {
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        double d = fabs(want[i] - got[i]);
        if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
        scale = fmax(scale, fabs(want[i]));
    }
    return scale > 0 ? worst / scale : worst;
}
static double *make_doubles(size_t count) { return (double *)host_alloc(count * sizeof(double)); }
static double *as_double(const floatX *x, size_t count) {
    double *out = make_doubles(count);
    for (size_t i = 0; i < count; i++) out[i] = f32(x[i]);
    return out;
}
static void model_make(Model *m, Config c, size_t B, size_t T, int recompute) {
    memset(m, 0, sizeof *m);
    config_check(&c, EXIT_INTERNAL, "test");
    m->config = c;
    m->B = B;
    m->T = T;
    m->recompute = recompute;
    m->is_trained = 1;
    m->cache_T = c.maxT;
    gpt_alloc(m);
}
static Config config_of(size_t L, size_t NH, size_t C, size_t maxT, size_t V) {
    Config c = { L, NH, C, maxT, V, 0 };
    return c;
}
// Weights that exercise everything: no zero bias, layernorm weights around 1, attention not
// uniform.
static void model_perturb(Model *m, uint64_t seed) {
    gpt_init_weights(m, seed);
    for (size_t bucket = 0; bucket < m->layout.num_buckets; bucket++) for (int i = 0;
        i < NUM_PARAMS; i++) {
        const ParamInfo *p = &m->layout.params[i];
        if (p->scope != bucket_scope(&m->layout, bucket)) continue;
        fill(m->weights + bucket_start(&m->layout, bucket) + p->offset, p->file_rows * p->cols,
             seed + bucket * 100 + (uint64_t)i, p->is_matrix ? 0.3 : 0.1, p->init == INIT_ONE);
    }
}
static void tokens_fill(int32_t *tokens, size_t count, size_t V, uint64_t seed) {
    for (size_t i = 0; i < count; i++) tokens[i] = (int32_t)(hash64(seed * 1000 + i) % V);
}
static double model_loss(Model *m, const int32_t *batch, size_t B, size_t T) { // mean; no gradients
    gpt_forward(m, batch, B, T, NO_CACHE);
    gpt_head(m, batch + B * T, B * T, 0, 0);
    return gpt_loss(m, B * T) / (double)(B * T);
}
static double model_gradients(Model *m, const int32_t *batch, size_t B, size_t T) {
    gpt_forward(m, batch, B, T, NO_CACHE);
    gpt_head(m, batch + B * T, B * T, (real)(1.0 / (double)(B * T)), 0);
    double sum = gpt_loss(m, B * T);
    gpt_backward(m, batch, B, T, 0);
    return sum / (double)(B * T);
}
static char *data_file(const char *name) { // NULL, and the test is skipped, when it is not there
    const char *folder = getenv("GPT_DATA");
    char *path = text_of("%s/%s", folder ? folder : "../shared/data", name);
    if (access(path, R_OK) == 0) return path;
    skip_reason = text_of("no %s (set GPT_DATA)", path);
    return NULL;
}

// === 1. ops forward, against numbers made by hand ===

static void test_exp_is_within_2_ulp(void) {
    double worst = 0, at = 0;
    for (double x = -87.2; x < 88.2; x += 1.7e-4) {
        float f = (float)x;
        double want = exp((double)f), got = (double)exp_real((real)f);
        double ulps = fabs(got - want) / (want * 2 * unit);
        if (!(ulps <= worst)) { worst = ulps; at = x; }
    }
    expect(worst <= 2, "%g ulp at %g", worst, at);
    expect(exp_real((real)-INFINITY) == 0 && exp_real((real)-90) < 1e-38, "e^-inf is not 0");
    expect(exp_real((real)0) == 1, "e^0 is %g", (double)exp_real((real)0));
    expect(isnan(exp_real((real)NAN)), "NaN is lost");
}
static void test_gelu_matches_its_tanh_form(void) {
    for (double x = -9; x < 9; x += 0.01) {
        double u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
        double want = x / 2 * (1 + tanh(u)), got = (double)gelu((real)x);
        double slope = (1 + tanh(u)) / 2 + x / 2 * (1 - tanh(u) * tanh(u)) * sqrt(2 / M_PI) *
                       (1 + 3 * 0.044715 * x * x);
        expect(fabs(got - want) <= 16 * unit * fmax(1, fabs(x)), "gelu(%g) is %g, not %g", x, got,
               want);
        double d = fabs((double)gelu_slope((real)x) - slope);
        expect(d <= 128 * unit, "gelu'(%g) is off by %g", x, d);
    }
    expect(fabs((double)gelu((real)1) - 0.8411919906082768) < 4 * unit, "gelu(1)");
}
static void test_embedding_adds_token_and_position(void) {
    enum { B = 2, T = 3, C = WIDE(2), V = 4 };
    floatX *wte = make(V * C, 1, 1, 0), *wpe = make(5 * C, 2, 1, 0), *out = make_nan(B * T * C);
    const int32_t ids[B * T] = { 0, 3, 1, 2, 2, 0 };
    int32_t *tokens = make_tokens(ids, B * T);
    embedding_forward(out, tokens, wte, wpe, B, T, C, 2);
    for (size_t n = 0; n < B * T; n++) for (size_t c = 0; c < C; c++) {
        real want = f32(wte[(size_t)tokens[n] * C + c]) + f32(wpe[(2 + n % T) * C + c]);
        expect(f32(out[n * C + c]) == f32(fX(want)), "row %zu channel %zu", n, c);
    }
    test_free(wte); test_free(wpe); test_free(out); test_free(tokens);
}
static floatX *make_of(const double *values, size_t count) {
    floatX *x = (floatX *)test_alloc(count * sizeof(floatX));
    for (size_t i = 0; i < count; i++) x[i] = fX((real)values[i]);
    return x;
}
static void test_layernorm_forward_by_hand(void) {
    // 1 2 3 4, again and again: mean 2.5, variance 1.25
    enum { C = WIDE(4) };
    const double w[4] = { 1, 2, 1, 1 }, b[4] = { 0, 0, 0, 5 };
    double in[2 * C], weights[C], biases[C];
    for (int i = 0; i < C; i++) {
        in[i] = i % 4 + 1;
        in[C + i] = -7;
        weights[i] = w[i % 4];
        biases[i] = b[i % 4];
    }
    floatX *inp = make_of(in, 2 * C), *weight = make_of(weights, C), *bias = make_of(biases, C),
        *out = make_nan(2 * C);
    real *mean = make_nan_real(2), *rstd = make_nan_real(2), r = 1 / (real)sqrt(1.25 + 1e-5);
    layernorm_forward(out, mean, rstd, inp, weight, bias, 2, C);
    double want[8] = { -1.5 * r, -0.5 * r * 2, 0.5 * r, 1.5 * r + 5, 0, 0, 0, 5 };
    for (int i = 0; i < 2 * C; i++)
        expect(fabs((double)f32(out[i]) - want[i / C * 4 + i % 4]) < 8 * stored * 7, "out[%d] is "
               "%g", i, (double)f32(out[i]));
    expect(mean[0] == (real)2.5 && mean[1] == -7, "mean %g %g", (double)mean[0], (double)mean[1]);
    expect(fabs((double)(rstd[0] - r)) < 4 * unit, "rstd %g", (double)rstd[0]);
    test_free(inp); test_free(weight); test_free(bias); test_free(out);
    test_free(mean); test_free(rstd);
}
static void matmul_case(size_t N, size_t C, size_t OC, int has_bias, int has_gelu,
    int has_residual) {
    floatX *inp = make(N * C, 1, 1, 0), *w = make(OC * C, 2, 1, 0), *bias = make(OC, 3, 1, 0);
    floatX *residual = make(N * OC, 4, 1, 0), *out = make_nan(N * OC), *pre = make_nan(N * OC);
    double *want = (double *)host_alloc(N * OC * sizeof(double));
    double *want_pre = (double *)host_alloc(N * OC * sizeof(double));
    for (size_t n = 0; n < N; n++) for (size_t o = 0; o < OC; o++) {
        double sum = has_bias ? f32(bias[o]) : 0;
        for (size_t i = 0; i < C; i++) sum += (double)f32(inp[n * C + i]) * (double)f32(w[o * C
            + i]);
        want_pre[n * OC + o] = sum;
        if (has_gelu) sum = sum / (1 + exp(-1.5957691216057308 * (sum
                                   + 0.044715 * sum * sum * sum)));
        want[n * OC + o] = sum + (has_residual ? f32(residual[n * OC + o]) : 0);
    }
    matmul_forward(out, has_gelu ? pre : NULL, inp, w, has_bias ? bias : NULL,
                   has_residual ? residual : NULL, N, C, OC);
    double *got = as_double(out, N * OC), *got_pre = as_double(pre, N * OC);
    // Entries are of size sqrt(C), rounded once or twice. cuBLASLt may take tanh from the GPU's
    // tanh.approx, which has 11 bits.
    double bar = (has_master ? 3 : 16) * stored + 4 * unit * sqrt((double)C) +
                 (is_gpt_cuda && has_gelu && matmul_fuses_gelu ? 0x1p-12 : 0);
    double error = difference(want, got, N * OC, sqrt((double)C)), error_pre = difference(want_pre,
        got_pre, N * OC, sqrt((double)C));
    expect(error <= bar, "N %zu C %zu OC %zu: error %g, bar %g", N, C, OC, error, bar);
    expect(!has_gelu || error_pre <= bar, "N %zu C %zu OC %zu: pre_gelu %g, bar %g", N, C, OC,
           error_pre, bar);
    floatX *row = make_nan(OC), *row_pre = make_nan(OC); // one row alone must have the same bits
    matmul_forward(row, has_gelu ? row_pre : NULL, inp + (N - 1) * C, w, has_bias ? bias : NULL,
                   has_residual ? residual + (N - 1) * OC : NULL, 1, C, OC);
    expect(is_gpt_cuda || !memcmp(row, out + (N - 1) * OC, OC * sizeof(floatX)), "N %zu C %zu OC "
           "%zu: the last row alone has other bits", N, C, OC);
    double *alone = as_double(row, OC);
    error = difference(want + (N - 1) * OC, alone, OC, sqrt((double)C));
    expect(error <= bar, "N %zu C %zu OC %zu: row alone: error %g, bar %g", N, C, OC, error, bar);
    test_free(inp); test_free(w); test_free(bias); test_free(residual); test_free(out);
    test_free(pre); test_free(row); test_free(row_pre);
    free(want); free(want_pre); free(got); free(got_pre); free(alone);
}
static void test_matmul_forward_at_awkward_shapes(void) {
    const size_t sizes[] = { 1, 7, 20, 65, 130 }, outputs[] = { 1, 3, 66, 257 };
    int kinds = is_gpt_cuda ? 6 : 8; // gelu and residual together: on the CPU only
    for (size_t n = 0; n < 5; n++) for (size_t c = 0; c < 5; c++) {
        ops_init(1, 1, 1, 1, 0); // its plans of products are for a model's shapes, not for all
        for (size_t o = 0; o < 4; o++) for (int kind = 0; kind < kinds; kind++)
            matmul_case(sizes[n], WIDE(sizes[c]), WIDE(outputs[o]), kind & 1, kind >> 1 & 1,
                        kind >> 2 & 1);
        ops_free();
    }
    ops_init(1, 1, 1, 1, 0);
    matmul_case(65, WIDE(1601), WIDE(66), 1, 1, 0);
    matmul_case(3, 3072, 768, 1, 0, 1);
    ops_free();
}
static void test_matmul_backward_adds_or_assigns(void) {
    ops_init(1, 7, WIDE(33), 1, 0);
    enum { N = 7, C = WIDE(20), OC = WIDE(33) };
    floatX *inp = make(N * C, 1, 1, 0), *w = make(OC * C, 2, 1, 0), *dout = make(N * OC, 3, 1, 0);
    floatX *dinp = make_nan(N * C);
    real *dw = make_nan_real(OC * C), *db = make_nan_real(OC), *dw2 = make_nan_real(OC * C);
    real *db2 = make_nan_real(OC);
    matmul_backward(dinp, dw, db, dout, inp, w, NULL, N, C, OC, 0);
    memcpy(dw2, dw, OC * C * sizeof(real));
    memcpy(db2, db, OC * sizeof(real));
    matmul_backward(dinp, dw2, db2, dout, inp, w, NULL, N, C, OC, 1);
    for (size_t i = 0; i < OC * C; i++)
        expect(fabs((double)(dw2[i] - 2 * dw[i])) <= 32 * unit, "dweight[%zu] %g %g", i,
        (double)dw[i], (double)dw2[i]);
    for (size_t i = 0; i < OC; i++)
        expect(fabs((double)(db2[i] - 2 * db[i])) <= 32 * unit, "dbias[%zu]", i);
    test_free(inp); test_free(w); test_free(dout); test_free(dinp);
    test_free(dw); test_free(db); test_free(dw2); test_free(db2);
    ops_free();
}
// softmax(q k^T / sqrt(HS)) v by its definition, in double.
static void attention_case(size_t B, size_t T, size_t NH, size_t HS, double scale) {
    while (NH * HS % CHANNELS_UNIT != 0) NH++;
    size_t C = NH * HS;
    ops_init(B, T, C, NH, 0);
    floatX *qkv = make(B * T * 3 * C, T, scale, 0), *out = make_nan(B * T * C);
    real *lse = make_nan_real(B * NH * T);
    double *want = (double *)host_alloc(B * T * C * sizeof(double));
    double *want_lse = (double *)host_alloc(B * NH * T * sizeof(double));
    double *p = (double *)host_alloc(T * sizeof(double));
    for (size_t b = 0; b < B; b++) for (size_t h = 0; h < NH; h++) for (size_t t = 0; t < T; t++) {
        double sum = 0, max = -INFINITY;
        for (size_t t2 = 0; t2 <= t; t2++) {
            p[t2] = 0;
            for (size_t c = 0; c < HS; c++)
                p[t2] += (double)f32(qkv[(b * T + t) * 3 * C + h * HS + c]) *
                         (double)f32(qkv[(b * T + t2) * 3 * C + C + h * HS + c]) / sqrt((double)HS);
            max = fmax(max, p[t2]);
        }
        for (size_t t2 = 0; t2 <= t; t2++) sum += p[t2] = exp(p[t2] - max);
        for (size_t t2 = 0; t2 <= t; t2++) for (size_t c = 0; c < HS; c++)
            want[(b * T + t) * C + h * HS + c] += p[t2] / sum *
                (double)f32(qkv[(b * T + t2) * 3 * C + 2 * C + h * HS + c]);
        want_lse[(b * NH + h) * T + t] = max + log(sum);
    }
    attention_forward(out, lse, qkv, B, T, C, NH);
    double *got = as_double(out, B * T * C);
    // Weights and result are rounded to floatX; scores, up to 3 scale^2 sqrt(HS), are not.
    double score_bar = 16 * unit * scale * scale * sqrt((double)HS) + 64 * unit;
    double bar = score_bar + (has_master ? 2 : 0) * stored;
    double error = difference(want, got, B * T * C, 0);
    expect(error <= bar, "B %zu T %zu NH %zu HS %zu: error %g, bar %g", B, T, NH, HS, error, bar);
    for (size_t i = 0; i < B * NH * T; i++)
        expect(fabs((double)lse[i] - want_lse[i]) <= score_bar * fmax(1, fabs(want_lse[i])),
               "B %zu T %zu NH %zu HS %zu: lse[%zu] %g, want %g", B, T, NH, HS, i, (double)lse[i],
               want_lse[i]);
    test_free(qkv); test_free(out); test_free(lse);
    free(want); free(want_lse); free(p); free(got);
    ops_free();
}
static void test_attention_forward_equals_plain_softmax(void) {
    const size_t lengths[] = { 1, 7, 64, 65, 200 };
    for (size_t i = 0; i < 5; i++) {
        attention_case(1, lengths[i], 1, 64, 1);
        attention_case(2, lengths[i], 3, 10, 3);
        attention_case(1, lengths[i], 5, 1, 30); // scores up to 900: needs the running maximum
    }
    attention_case(1, 70, 1, 200, 1);
    attention_case(1, 512, 1, 64, 1);
}
static void test_attention_forward_is_causal(void) {
    enum { T = 130, NH = 2, HS = 16, C = NH * HS, CUT = 77 };
    ops_init(1, T, C, NH, 0);
    floatX *qkv = make(T * 3 * C, 5, 1, 0), *out = make_nan(T * C), *out2 = make_nan(T * C);
    real *lse = make_nan_real(NH * T);
    attention_forward(out, lse, qkv, 1, T, C, NH);
    fill(qkv + CUT * 3 * C, (T - CUT) * 3 * C, 6, 100, 0);
    attention_forward(out2, lse, qkv, 1, T, C, NH);
    expect(!memcmp(out, out2, CUT * C * sizeof(floatX)), "a later token changed an earlier row");
    expect(memcmp(out + CUT * C, out2 + CUT * C, C * sizeof(floatX)), "the changed row did not "
           "change");
    test_free(qkv); test_free(out); test_free(out2); test_free(lse);
    ops_free();
}
static void test_classifier_by_hand(void) {
    const size_t sizes[] = { 65, 66, 100, 257, 8003 };
    for (int k = 0; k < 5; k++) {
        size_t V = sizes[k], Vp = round_up(V, 128);
        floatX *logits = make_nan(2 * Vp);
        for (size_t i = 0; i < V; i++) { logits[i] = fX((real)3); logits[Vp + i] = fX(0); }
        logits[Vp + V - 1] = fX((real)200); // needs the maximum subtracted
        const int32_t ids[2] = { 1, (int32_t)V - 1 };
        int32_t *targets = make_tokens(ids, 2);
        real *losses = make_nan_real(2);
        classifier_forward_backward(losses, logits, targets, (real)0.5, 2, V, Vp);
        expect(fabs((double)losses[0] - log((double)V)) < 16 * unit, "V %zu: equal logits: %g", V,
               (double)losses[0]);
        expect(losses[1] == 0, "V %zu: a sure target: %g", V, (double)losses[1]);
        double sum = 0;
        for (size_t i = 0; i < V; i++) sum += (double)f32(logits[i]);
        expect(fabs(sum) < 16 * stored * sqrt((double)V), "V %zu: the gradient sums to %g", V, sum);
        expect(fabs((double)f32(logits[1]) - 0.5 * (1.0 / (double)V - 1)) < 4 * stored,
               "V %zu: target", V);
        for (size_t i = V; i < Vp; i++) expect(f32(logits[i]) == 0, "padding has a gradient");
        test_free(logits); test_free(targets); test_free(losses);
    }
}
static AdamW adamw_of(double grad_scale, double beta1, double beta2, double step_size,
                      double root_correction, double keep) {
    AdamW h;
    memset(&h, 0, sizeof h);
    h.grad_scale = (real)grad_scale;
    h.beta1 = (real)beta1;
    h.beta2 = (real)beta2;
    h.eps = (real)1e-8;
    h.step_size = (real)step_size;
    h.root_correction = (real)root_correction;
    h.keep = (real)keep;
    return h;
}
static void test_adamw_by_hand(void) {
    const double start[3] = { 1, -2, 0.5 };
    floatX *w = make_of(start, 3);
    real *master = make_nan_real(3), *m = make_nan_real(3), *v = make_nan_real(3);
    real *g = make_nan_real(3);
    for (int i = 0; i < 3; i++) {
        master[i] = (real)start[i];
        m[i] = (real)(i == 1 ? 0.1 : 0);
        v[i] = (real)(i == 1 ? 0.2 : 0);
        g[i] = (real)(0.5 - 1.5 * (i == 1) - 0.5 * (i == 2)); // 0.5, -1, 0
    }
    AdamW h = adamw_of(0.5, 0.9, 0.99, 0.01, 1, 0.9);
    double want[3];
    for (int i = 0; i < 3; i++) {
        double grad = 0.5 * (double)g[i], mi = 0.9 * (double)m[i] + 0.1 * grad;
        double vi = 0.99 * (double)v[i] + 0.01 * grad * grad;
        want[i] = start[i] * 0.9 - 0.01 * mi / (sqrt(vi) + 1e-8);
    }
    adamw_update(w, has_master ? master : NULL, m, v, g, 3, h);
    for (int i = 0; i < 3; i++) {
        double got = (double)f32(w[i]);
        expect(fabs(got - want[i]) < 8 * stored, "w[%d] %g, want %g", i, got, want[i]);
        expect(!has_master || fabs((double)master[i] - want[i]) < 8 * unit, "master[%d]", i);
    }
    expect(m[2] == 0 && v[2] == 0, "no gradient, no moment");
    test_free(w); test_free(master); test_free(m); test_free(v); test_free(g);
}
static void test_schedules_equal_their_closed_forms(void) {
    const char *names[] = { "constant", "linear", "cosine", "wsd", "inv_sqrt" };
    for (int k = 0; k < 5; k++) for (int warmup = 0; warmup <= 100; warmup += 100) {
        char a[80], b[40];
        snprintf(a, sizeof a, "--lr_schedule=%s", names[k]);
        snprintf(b, sizeof b, "--warmup_steps=%d", warmup);
        char *argv[] = { (char *)"t", a, b, (char *)"--steps=1100", (char *)"--lr=0.01" };
        Flags f = flags_parse(5, argv);
        double last = (1099.0 - warmup) / (1100.0 - warmup), w = fmax(warmup, 1), lr = 0.01,
            end = 0.001;
        double mid = (550.0 - warmup) / (1100.0 - warmup);
        double at_mid[] = { lr, lr + (end - lr) * mid, end + (lr - end) * 0.5 * (1
                            + cos(M_PI * mid)), lr, fmax(end, lr * sqrt(w / 551)) };
        double at_last[] = { lr, lr + (end - lr) * last, end + (lr - end) * 0.5 * (1
                             + cos(M_PI * last)), end + (lr - end) * (1 - sqrt((last - 0.8) * 5)),
                             fmax(end, lr * sqrt(w / 1100)) };
        double first = warmup ? lr / warmup : lr, peak = lr;
        expect(fabs(lr_at(&f, 0) / first - 1) < 1e-7, "%s first %g", names[k], lr_at(&f, 0));
        if (warmup) expect(fabs(lr_at(&f, 99) / peak - 1) < 1e-7, "%s w-1 %g", names[k], lr_at(&f,
            99));
        double at_w = lr_at(&f, (uint64_t)warmup);
        expect(fabs(at_w / peak - 1) < (k == 4 ? 6e-3 : 1e-7), "%s w %g", names[k], at_w);
        expect(fabs(lr_at(&f, 550) / at_mid[k] - 1) < 1e-7, "%s mid %g", names[k], lr_at(&f, 550));
        expect(fabs(lr_at(&f, 1099) / at_last[k] - 1) < 1e-7, "%s last %g, want %g", names[k],
               lr_at(&f, 1099), at_last[k]);
    }
}
static void test_sum_squares_and_crc_by_hand(void) {
    real *x = make_nan_real(1000);
    double *sums = (double *)test_alloc(4 * sizeof(double));
    memset(sums, 0xff, 4 * sizeof(double)); // NaN
    for (int i = 0; i < 1000; i++) x[i] = (real)i;
    sum_squares(sums, x, 4, 250);
    expect(sums[0] == 5177125, "sum of the first part %g", sums[0]);
    expect(sums[0] + sums[1] + sums[2] + sums[3] == 332833500, "sum %g", sums[0]);
    expect(crc32c(0, "123456789", 9) == 0xe3069283, "crc %08x", crc32c(0, "123456789", 9));
    expect(crc32c(crc32c(0, "1234", 4), "56789", 5) == 0xe3069283, "in two parts");
    test_free(x); test_free(sums);
}
static double rounded_to_half(double value) { // IEEE binary16, nearest even; magnitudes below 65520
    int exponent;
    frexp(value, &exponent);
    double ulp = ldexp(1, (exponent < -13 ? -13 : exponent) - 11);
    return nearbyint(value / ulp) * ulp;
}
static void test_half_precision_values(void) {
    if (is_fp16) expect(f32(fX((real)1.001)) == 1 + 0x1p-10, "fp16 has no 1 + 2^-10");
    else if (has_master) expect(f32(fX((real)1.001)) == 1, "bf16 keeps 1 + 1e-3");
    else expect(f32(fX((real)1.001)) == (real)1.001, "fp32 loses 1 + 1e-3");
    double scaled = rounded_to_half(1e-8 * 65536) / 65536; // what loss scaling does
    expect(rounded_to_half(1e-8) == 0, "fp16 keeps 1e-8");
    expect(fabs(scaled / 1e-8 - 1) < 5e-4 && scaled != 1e-8, "scaled by 2^16: %g", scaled);
    for (uint32_t h = 0; h < 0x7c00; h += 7) // every 7th half is what it is rounded to
        expect(rounded_to_half(half_to_double((uint16_t)h)) == half_to_double((uint16_t)h), "%04x",
        h);
    expect(half_to_double(0x3c00) == 1 && half_to_double(0xc000) == -2, "one, minus two");
    expect(half_to_double(1) == 0x1p-24 && half_to_double(0x7bff) == 65504, "smallest, largest");
    expect(isinf(half_to_double(0x7c00)) && isnan(half_to_double(0x7e00)), "Inf, NaN");
}

// === 2. ops at awkward shapes, against the same sums in double ===

static void near_doubles(const char *what, const double *want, double *got, size_t count,
                         double scale, double bar) {
    double error = difference(want, got, count, scale);
    expect(error <= bar, "%s: error %g, bar %g", what, error, bar);
    free(got);
}
// Errors are relative to the largest of `want`, or to `scale` where that is larger.
static void expect_near(const char *what, const double *want, const floatX *got, size_t count,
                        double scale, double bar) {
    near_doubles(what, want, as_double(got, count), count, scale, bar);
}
static void expect_reals_near(const char *what, const double *want, const real *got, size_t count,
                              double scale, double bar) {
    double *copy = make_doubles(count);
    for (size_t i = 0; i < count; i++) copy[i] = (double)got[i];
    near_doubles(what, want, copy, count, scale, bar);
}
static real *make_reals(size_t count, uint64_t seed) { // [-1, 1)
    real *x = make_nan_real(count);
    for (size_t i = 0; i < count; i++) x[i] = (real)random_at(seed, i);
    return x;
}
static real *copy_of(const real *x, size_t count) { // on the host
    real *out = (real *)host_alloc(count * sizeof(real));
    memcpy(out, x, count * sizeof(real));
    return out;
}

static void embedding_backward_case(size_t B, size_t T, size_t C, size_t V, int accumulate) {
    size_t maxT = T + 2, N = B * T, Vp = round_up(V, 128);
    ops_init(B, T, C, 1, Vp);
    floatX *dout = make(N * C, 1, 1, 0);
    int32_t *tokens = (int32_t *)test_alloc(N * sizeof(int32_t));
    tokens_fill(tokens, N, V, 3);
    real *dwte = make_reals(Vp * C, 2), *dwpe = make_nan_real(maxT * C);
    for (size_t i = 0; i < maxT * C && accumulate; i++) dwpe[i] = (real)random_at(4, i);
    real *want = copy_of(dwte, Vp * C), *want_position = copy_of(dwpe, maxT * C);
    for (size_t i = 0; i < maxT * C && !accumulate; i++) want_position[i] = 0;
    for (size_t n = 0; n < N; n++) for (size_t i = 0; i < C; i++) {
        want[(size_t)tokens[n] * C + i] += f32(dout[n * C + i]);
        want_position[n % T * C + i] += f32(dout[n * C + i]);
    }
    embedding_backward(dwte, dwpe, dout, tokens, B, T, C, maxT, accumulate);
    expect(!memcmp(want, dwte, Vp * C * sizeof(real)), "B %zu T %zu C %zu: wte", B, T, C);
    expect(!memcmp(want_position, dwpe, maxT * C * sizeof(real)), "B %zu T %zu C %zu: wpe", B, T,
           C);
    free(want); free(want_position);
    test_free(dout); test_free(tokens); test_free(dwte); test_free(dwpe);
    ops_free();
}
static void test_embedding_backward_adds_repeated_tokens_in_order(void) {
    embedding_backward_case(1, 1, WIDE(3), 5, 0);
    embedding_backward_case(3, 100, WIDE(20), 7, 0);
    embedding_backward_case(3, 100, WIDE(20), 300, 1);
    embedding_backward_case(1, 65, WIDE(513), 2, 1); // more channels than a block has threads
}

static void layernorm_case(size_t N, size_t C, int accumulate) {
    ops_init(1, N, C, 1, 0);
    size_t count = N * C;
    floatX *inp = make(count, 1, 1, 0.5), *weight = make(C, 2, 0.5, 1), *bias = make(C, 3, 1, 0);
    floatX *dout = make(count, 4, 1, 0), *dinp = make(count, 5, 1, 0), *out = make_nan(count);
    real *mean = make_nan_real(N), *rstd = make_nan_real(N);
    real *dweight = make_nan_real(C), *dbias = make_nan_real(C);
    double *want = make_doubles(count), *want_dinp = as_double(dinp, count);
    double *want_dw = make_doubles(C), *want_db = make_doubles(C);
    for (size_t i = 0; i < C && accumulate; i++) {
        want_dw[i] = (double)(dweight[i] = (real)random_at(6, i));
        want_db[i] = (double)(dbias[i] = (real)random_at(7, i));
    }
    for (size_t n = 0; n < N; n++) {
        const floatX *x = inp + n * C, *d = dout + n * C;
        double mu = 0, squares = 0, sum = 0, dot = 0;
        for (size_t i = 0; i < C; i++) mu += (double)f32(x[i]) / (double)C;
        for (size_t i = 0; i < C; i++) squares += pow((double)f32(x[i]) - mu, 2);
        double scale = 1 / sqrt(squares / (double)C + 1e-5);
        for (size_t i = 0; i < C; i++) {
            double xhat = ((double)f32(x[i]) - mu) * scale, g = (double)f32(d[i]);
            want[n * C + i] = xhat * (double)f32(weight[i]) + (double)f32(bias[i]);
            want_dw[i] += g * xhat;
            want_db[i] += g;
            sum += g * (double)f32(weight[i]) / (double)C;
            dot += g * (double)f32(weight[i]) * xhat / (double)C;
        }
        for (size_t i = 0; i < C; i++) {
            double xhat = ((double)f32(x[i]) - mu) * scale;
            double dxhat = (double)f32(d[i]) * (double)f32(weight[i]);
            want_dinp[n * C + i] += scale * (dxhat - sum - xhat * dot);
        }
    }
    layernorm_forward(out, mean, rstd, inp, weight, bias, N, C);
    layernorm_backward(dinp, dweight, dbias, dout, inp, mean, rstd, weight, N, C, accumulate);
    char *what = text_of("N %zu C %zu", N, C);
    expect_near(what, want, out, count, 0, stored + 64 * unit);
    expect_near(what, want_dinp, dinp, count, 0, stored + 64 * unit);
    expect_reals_near(what, want_dw, dweight, C, sqrt((double)N), 64 * unit);
    expect_reals_near(what, want_db, dbias, C, sqrt((double)N), 64 * unit);
    free(want); free(want_dinp); free(want_dw); free(want_db); free(what);
    test_free(inp); test_free(weight); test_free(bias); test_free(dout); test_free(dinp);
    test_free(out); test_free(mean); test_free(rstd); test_free(dweight); test_free(dbias);
    ops_free();
}
static void test_layernorm_equals_sums_in_double(void) {
    layernorm_case(1, WIDE(7), 0);
    layernorm_case(7, WIDE(65), 1);
    layernorm_case(65, WIDE(520), 0); // on a GPU more than a warp reads at once,
    layernorm_case(9, WIDE(1030), 0);
    layernorm_case(9, WIDE(2050), 1); // than it holds,
    layernorm_case(600, WIDE(17), 1); // more rows than slices,
    layernorm_case(1100, WIDE(20), 0); // than warps
}

static double gelu_slope_of(double x) { // of x / (1 + e^-2u)
    double two_u = 1.5957691216057308 * (x + 0.044715 * x * x * x), gate = 1 / (1 + exp(-two_u));
    return gate + x * gate * (1 - gate) * 1.5957691216057308 * (1 + 0.134145 * x * x);
}
static void matmul_backward_case(size_t N, size_t C, size_t OC, int has_gelu, int has_bias,
                                 int accumulate) {
    floatX *inp = make(N * C, 1, 1, 0), *w = make(OC * C, 2, 1, 0), *dout = make(N * OC, 3, 1, 0);
    floatX *pre = make(N * C, 4, 3, 0), *dinp = make_nan(N * C);
    real *dw = make_nan_real(OC * C), *db = make_nan_real(OC);
    double *want = make_doubles(N * C), *want_dw = make_doubles(OC * C), *want_db
        = make_doubles(OC);
    for (size_t i = 0; i < OC * C && accumulate; i++)
        want_dw[i] = (double)(dw[i] = (real)random_at(5, i));
    for (size_t i = 0; i < OC && accumulate; i++)
        want_db[i] = (double)(db[i] = (real)random_at(6, i));
    for (size_t n = 0; n < N; n++) for (size_t o = 0; o < OC; o++) {
        double d = (double)f32(dout[n * OC + o]);
        want_db[o] += d;
        for (size_t i = 0; i < C; i++) {
            want[n * C + i] += d * (double)f32(w[o * C + i]);
            want_dw[o * C + i] += d * (double)f32(inp[n * C + i]);
        }
    }
    for (size_t i = 0; i < N * C && has_gelu; i++) want[i] *= gelu_slope_of((double)f32(pre[i]));
    matmul_backward(dinp, dw, has_bias ? db : NULL, dout, inp, w, has_gelu ? pre : NULL, N, C, OC,
                    accumulate);
    char *what = text_of("N %zu C %zu OC %zu gelu %d accumulate %d", N, C, OC, has_gelu,
                         accumulate);
    double fused = is_gpt_cuda && has_gelu && matmul_fuses_gelu ? 0x1p-11 : 0; // tanh.approx
    expect_near(what, want, dinp, N * C, sqrt((double)OC),
                (has_gelu + 1) * stored + fused + 4 * unit * sqrt((double)OC) + 64 * unit);
    double bar = 16 * unit + 4 * unit * sqrt((double)N);
    expect_reals_near(what, want_dw, dw, OC * C, sqrt((double)N), bar);
    if (has_bias) expect_reals_near(what, want_db, db, OC, sqrt((double)N), bar);
    free(want); free(want_dw); free(want_db); free(what);
    test_free(inp); test_free(w); test_free(dout); test_free(pre); test_free(dinp);
    test_free(dw); test_free(db);
}
static void test_matmul_backward_equals_sums_in_double(void) {
    const size_t shapes[][3] = { { 1, 1, 1 }, { 7, 20, 33 }, { 65, 17, 66 }, { 130, 65, 300 },
                                { 600, 3, 20 } };
    for (int k = 0; k < 5; k++) {
        size_t N = shapes[k][0], C = WIDE(shapes[k][1]), OC = WIDE(shapes[k][2]);
        ops_init(1, N, max_size(C, OC), 1, 0);
        for (int kind = 0; kind < 8; kind++)
            matmul_backward_case(N, C, OC, kind & 1, kind >> 1 & 1, kind >> 2);
        matmul_fuses_gelu = !matmul_fuses_gelu;
        matmul_backward_case(N, C, OC, 1, 1, 0);
        matmul_fuses_gelu = !matmul_fuses_gelu;
        ops_free();
    }
}
// CUDA: gelu in the product, before or after a floatX was made of its argument.
static void test_bias_gradient_in_a_product_and_beside_it_at_many_shapes(void) { // CUDA only
    enum { C = 8, OC = 16, MOST = 90 };
    floatX *x = make(MOST * C, 1, 1, 0), *d = make(MOST * OC, 2, 1, 0), *w = make(OC * C, 3, 1, 0);
    floatX *dx = make_nan(MOST * C);
    real *dw = make_nan_real(OC * C), *db = make_nan_real(OC);
    ops_init(1, MOST, OC, 1, 0);
    for (size_t N = 1; N <= MOST; N++) for (int fuses = 0; fuses < 2; fuses++) {
        matmul_fuses_bias_gradient = fuses;
        for (size_t i = 0; i < OC; i++) db[i] = (real)NAN;
        for (int add = 0; add < 2; add++) matmul_backward(dx, dw, db, d, x, w, NULL, N, C, OC, add);
        for (size_t i = 0; i < OC; i++) {
            double want = 0, bar = 8 * unit * (double)N;
            for (size_t n = 0; n < N; n++) want += 2 * (double)f32(d[n * OC + i]);
            expect(fabs((double)db[i] - want) <= bar, "N %zu, fused %d: dbias[%zu] %g, not %g", N,
                   fuses, i, (double)db[i], want);
        }
    }
    matmul_fuses_bias_gradient = 1;
    test_free(x); test_free(d); test_free(w); test_free(dx); test_free(dw); test_free(db);
    ops_free();
}
static void test_gelu_in_a_product_and_beside_it_agree(void) {
    enum { N = 65, C = 24, OC = 40 };
    ops_init(1, N, OC, 1, 0);
    floatX *inp = make(N * C, 1, 1, 0), *w = make(OC * C, 2, 1, 0), *bias = make(OC, 3, 1, 0);
    floatX *dout = make(N * C, 4, 1, 0), *w2 = make(OC * C, 5, 1, 0);
    real *dw = make_nan_real(OC * C);
    double *outs[2], *pres[2], *dpres[2];
    int was = matmul_fuses_gelu;
    for (int fuses = 0; fuses < 2; fuses++) {
        matmul_fuses_gelu = fuses;
        floatX *out = make_nan(N * OC), *pre = make_nan(N * OC), *dpre = make_nan(N * OC);
        matmul_forward(out, pre, inp, w, bias, NULL, N, C, OC);
        matmul_backward(dpre, dw, NULL, dout, out, w2, pre, N, OC, C, 0);
        outs[fuses] = as_double(out, N * OC);
        pres[fuses] = as_double(pre, N * OC);
        dpres[fuses] = as_double(dpre, N * OC);
        test_free(out); test_free(pre); test_free(dpre);
    }
    matmul_fuses_gelu = was;
    double bar = 3 * stored + 0x1p-11; // of tanh.approx
    near_doubles("out", outs[0], outs[1], N * OC, 1, bar);
    near_doubles("pre_gelu", pres[0], pres[1], N * OC, 1, bar);
    near_doubles("dpre_gelu", dpres[0], dpres[1], N * OC, 1, bar);
    free(outs[0]); free(pres[0]); free(dpres[0]);
    test_free(inp); test_free(w); test_free(bias); test_free(dout); test_free(w2); test_free(dw);
    ops_free();
}

typedef struct { size_t B, T, NH, HS; } AttentionShape;
static double row_dot(const floatX *a, const floatX *b, size_t count) {
    double sum = 0;
    for (size_t c = 0; c < count; c++) sum += (double)f32(a[c]) * (double)f32(b[c]);
    return sum;
}
// Gradients of one head by the definition; q, k, v and their gradients have rows of 3C, dout of C.
static void head_gradients(double *dqkv, const floatX *dout, const floatX *qkv, size_t T, size_t C,
                           size_t HS) {
    const double scale = 1 / sqrt((double)HS);
    double *p = make_doubles(T), *dp = make_doubles(T);
    for (size_t t = 0; t < T; t++) {
        const floatX *q = qkv + t * 3 * C, *d = dout + t * C;
        double max = -INFINITY, sum = 0, mean = 0;
        for (size_t j = 0; j <= t; j++) {
            p[j] = row_dot(q, qkv + j * 3 * C + C, HS) * scale;
            dp[j] = row_dot(d, qkv + j * 3 * C + 2 * C, HS);
            max = fmax(max, p[j]);
        }
        for (size_t j = 0; j <= t; j++) sum += p[j] = exp(p[j] - max);
        for (size_t j = 0; j <= t; j++) mean += (p[j] /= sum) * dp[j];
        for (size_t j = 0; j <= t; j++) for (size_t c = 0; c < HS; c++) {
            double ds = p[j] * (dp[j] - mean) * scale;
            dqkv[t * 3 * C + c] += ds * (double)f32(qkv[j * 3 * C + C + c]);
            dqkv[j * 3 * C + C + c] += ds * (double)f32(q[c]);
            dqkv[j * 3 * C + 2 * C + c] += p[j] * (double)f32(d[c]);
        }
    }
    free(p); free(dp);
}
static void attention_backward_case(AttentionShape s) {
    size_t C = s.NH * s.HS, N = s.B * s.T, count = N * 3 * C;
    ops_init(s.B, s.T, C, s.NH, 0);
    floatX *qkv = make(count, 1, 2, 0), *out = make_nan(N * C), *dout = make(N * C, 2, 1, 0);
    floatX *dqkv = make_nan(count);
    real *lse = make_nan_real(N * s.NH);
    attention_forward(out, lse, qkv, s.B, s.T, C, s.NH);
    attention_backward(dqkv, dout, out, lse, qkv, s.B, s.T, C, s.NH);
    double *want = make_doubles(count), *got = as_double(dqkv, count);
    for (size_t head = 0; head < s.B * s.NH; head++) {
        size_t row = head / s.NH * s.T, channel = head % s.NH * s.HS;
        head_gradients(want + row * 3 * C + channel, dout + row * C + channel,
                       qkv + row * 3 * C + channel, s.T, C, s.HS);
    }
    // Weights, their gradients, the forward result and this one are rounded to floatX.
    double bar = 64 * unit + 16 * unit * sqrt((double)s.HS) + (has_master ? 3 : 2) * stored;
    for (size_t part = 0; part < 3; part++) { // q, k, v
        double *a = make_doubles(N * C), *b = make_doubles(N * C);
        for (size_t n = 0; n < N; n++) for (size_t c = 0; c < C; c++) {
            a[n * C + c] = want[n * 3 * C + part * C + c];
            b[n * C + c] = got[n * 3 * C + part * C + c];
        }
        char *what = text_of("B %zu T %zu NH %zu HS %zu: d%c", s.B, s.T, s.NH, s.HS, "qkv"[part]);
        near_doubles(what, a, b, N * C, 1, bar);
        free(a); free(what);
    }
    free(want); free(got);
    test_free(qkv); test_free(out); test_free(dout); test_free(dqkv); test_free(lse);
    ops_free();
}
static void test_attention_backward_equals_sums_in_double(void) {
    const AttentionShape shapes[] = { { 1, 1, 1, 48 }, { 1, 1, 3, 64 }, { 3, 65, 3, 16 },
        { 1, 65, 1, 96 }, { 1, 65, 1, 192 }, { 1, 200, 3, 32 }, { 1, 200, 3, 64 },
        { 3, 65, 2, 64 }, { 1, 130, 2, 128 }, { 2, 33, 8, 5 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) attention_backward_case(shapes[i]);
}

static void classifier_case(size_t N, size_t V) {
    size_t Vp = round_up(V, 128);
    const double dloss = 0.25;
    floatX *logits = make(N * Vp, 1, 5, 0), *same = make(N * Vp, 1, 5, 0);
    int32_t *targets = (int32_t *)test_alloc(N * sizeof(int32_t));
    real *losses = make_nan_real(N), *losses_alone = make_nan_real(N);
    double *want = make_doubles(N * Vp), *want_losses = make_doubles(N);
    for (size_t n = 0; n < N; n++) {
        size_t target = n == 0 ? 0 : n == 1 ? V - 1 : hash64(n) % V;
        double sum = 0;
        for (size_t i = 0; i < V; i++) sum += exp((double)f32(logits[n * Vp + i]));
        for (size_t i = 0; i < V; i++)
            want[n * Vp + i] = dloss * (exp((double)f32(logits[n * Vp + i])) / sum - (i == target));
        want_losses[n] = log(sum) - (double)f32(logits[n * Vp + target]);
        targets[n] = (int32_t)target;
    }
    classifier_forward_backward(losses_alone, same, targets, 0, N, V, Vp);
    expect(!memcmp(same, logits, N * Vp * sizeof(floatX)), "V %zu: no gradient was wanted", V);
    classifier_forward_backward(losses, logits, targets, (real)dloss, N, V, Vp);
    expect(!memcmp(losses, losses_alone, N * sizeof(real)), "V %zu: other losses", V);
    char *what = text_of("N %zu V %zu", N, V);
    expect_reals_near(what, want_losses, losses, N, 1, 16 * unit);
    expect_near(what, want, logits, N * Vp, 0, stored + 32 * unit);
    free(want); free(want_losses); free(what);
    test_free(logits); test_free(same); test_free(targets); test_free(losses);
    test_free(losses_alone);
}
static void test_classifier_equals_sums_in_double(void) {
    const size_t sizes[] = { 1, 65, 66, 100, 257, 9001 };
    for (int k = 0; k < 6; k++) classifier_case(k == 5 ? 2 : 7, sizes[k]);
}

static void adamw_case(size_t count) { // and the 8 neighbours behind it stay as they are
    size_t all = count + 8;
    floatX *w = make(all, 1, 1, 0);
    real *master = make_nan_real(all), *m = make_reals(all, 2), *v = make_nan_real(all);
    real *g = make_reals(all, 4);
    double *want = make_doubles(all), *want_m = make_doubles(all), *want_v = make_doubles(all);
    AdamW h = adamw_of(0.5, 0.9, 0.99, 0.01, 2, 0.9);
    for (size_t i = 0; i < all; i++) {
        master[i] = has_master ? (real)random_at(5, i) : f32(w[i]);
        v[i] = (real)(1.5 + random_at(3, i));
        want[i] = (double)master[i];
        want_m[i] = (double)m[i];
        want_v[i] = (double)v[i];
        if (i >= count) continue;
        double grad = (double)h.grad_scale * (double)g[i], b1 = (double)h.beta1, b2
            = (double)h.beta2;
        want_m[i] = b1 * want_m[i] + (1 - b1) * grad;
        want_v[i] = b2 * want_v[i] + (1 - b2) * grad * grad;
        want[i] = want[i] * (double)h.keep - (double)h.step_size * want_m[i]
            / (sqrt(want_v[i]) * (double)h.root_correction + (double)h.eps);
    }
    adamw_update(w, has_master ? master : NULL, m, v, g, count, h);
    char *what = text_of("%zu parameters", count);
    if (has_master) {
        expect_reals_near(what, want, master, all, 1, 8 * unit);
        for (size_t i = count; i < all; i++) want[i] = (double)f32(w[i]); // not the master's
    }
    expect_near(what, want, w, all, 1, stored + 8 * unit);
    expect_reals_near(what, want_m, m, all, 1, 8 * unit);
    expect_reals_near(what, want_v, v, all, 1, 8 * unit);
    free(want); free(want_m); free(want_v); free(what);
    test_free(w); test_free(master); test_free(m); test_free(v); test_free(g);
}
static void test_adamw_at_any_count(void) {
    const size_t counts[] = { 1, 3, 4, 7, 8, 9, 37, 16389 };
    for (int k = 0; k < 8; k++) adamw_case(counts[k]);
}
// Without master weights: 1 minus a quarter of the distance to the next bf16 below becomes that one
// in a quarter of the draws, and which draws is decided by the number of the parameter alone.
static void test_weights_round_at_random_to_the_right_mean(void) {
    enum { COUNT = 4099 };
    floatX *w = make(COUNT, 0, 0, 1);
    real *m = make_nan_real(COUNT), *v = make_nan_real(COUNT), *g = make_nan_real(COUNT);
    for (size_t i = 0; i < COUNT; i++) m[i] = v[i] = g[i] = 1;
    AdamW h = adamw_of(1, 0, 0, 0x1p-10, 1, 1); // m and v become g and its square
    h.eps = 0;
    h.is_random = 1;
    h.draw = 12345;
    adamw_update(w, NULL, m, v, g, COUNT, h);
    double sum = 0;
    for (size_t i = 0; i < COUNT; i++) {
        real want = f32(fX_random((real)(1 - 0x1p-10), (uint32_t)hash64(h.draw + i)));
        expect(f32(w[i]) == want, "draw %zu: %g, want %g", i, (double)f32(w[i]), (double)want);
        expect(f32(w[i]) == 1 || f32(w[i]) == 1 - 0x1p-8, "draw %zu: %g", i, (double)f32(w[i]));
        sum += (1 - (double)f32(w[i])) * 0x1p10; // 0 or 4
    }
    double deviation = sqrt(3.0 / COUNT);        // of the mean: of one, 3 is the variance
    expect(fabs(sum / COUNT - 1) <= 4 * deviation, "mean step %g, want 1, bar %g", sum / COUNT,
           4 * deviation);
    test_free(w); test_free(m); test_free(v); test_free(g);
}
static void test_narrow_moments_follow_wide_ones(void) { // m and v in bf16, rounded at random
    enum { COUNT = 2051, STEPS = 200 };
    floatX *w = make(COUNT, 0, 0, 1), *m = make(COUNT, 0, 0, 0), *v = make(COUNT, 0, 0, 0);
    real *wide_m = make_nan_real(COUNT), *wide_v = make_nan_real(COUNT), *g = make_nan_real(COUNT);
    floatX *wide_w = make(COUNT, 0, 0, 1);
    for (size_t i = 0; i < COUNT; i++) wide_m[i] = wide_v[i] = 0, g[i] = 1;
    AdamW h = adamw_of(1, (real)0.9, (real)0.99, 0, 1, 1), wide = h;
    h.has_narrow_moments = 1;
    for (size_t t = 0; t < STEPS; t++) {
        h.draw = hash64(t);
        adamw_update(w, NULL, m, v, g, COUNT, h);
        adamw_update(wide_w, NULL, wide_m, wide_v, g, COUNT, wide);
    }
    double sums[4] = { 0 };
    for (size_t i = 0; i < COUNT; i++) {
        sums[0] += (double)f32(m[i]);
        sums[1] += (double)wide_m[i];
        sums[2] += (double)f32(v[i]);
        sums[3] += (double)wide_v[i];
        // a random walk: 0.4 of a bf16's last place a step, remembered for 1 / (1 - beta) steps
        double bar = 6 * stored * sqrt(1 / (2 * (1 - 0.99)));
        expect(fabs((double)(f32(v[i]) / wide_v[i]) - 1) <= bar, "v[%zu] is %g, not %g, bar %g", i,
               (double)f32(v[i]), (double)wide_v[i], bar);
    }
    for (int k = 0; k < 4; k += 2) // to nearest, v would end 7 % below
        expect(fabs(sums[k] / sums[k + 1] - 1) <= 1e-3, "mean of %s off by %g", k ? "v" : "m",
               sums[k] / sums[k + 1] - 1);
    test_free(w); test_free(m); test_free(v); test_free(g);
    test_free(wide_w); test_free(wide_m); test_free(wide_v);
}
static void test_vectors_add_and_sum_at_any_count(void) {
    const size_t counts[] = { 1, 3, 4, 7, 8, 9, 37, 2049 };
    double *sums = (double *)test_alloc(2 * sizeof(double));
    for (int k = 0; k < 8; k++) {
        size_t count = counts[k];
        real *x = make_reals(count + 1, 1), *y = make_reals(count + 1, 2);
        double sum = 0, squares = 0;
        for (size_t i = 0; i < count; i++) {
            sum += (double)x[i];
            squares += (double)x[i] * (double)x[i];
        }
        sum_values(sums, x, count);
        sum_squares(sums + 1, x, 1, count);
        expect(fabs(sums[0] - sum) <= 1e-12 * (double)count, "sum of %zu: %.17g", count, sums[0]);
        expect(fabs(sums[1] - squares) <= 1e-12 * squares, "squares of %zu: %.17g", count, sums[1]);
        vector_add(y, x, count);
        for (size_t i = 0; i <= count; i++) {
            real want = (real)random_at(2, i) + (i < count ? x[i] : 0);
            expect(y[i] == want, "%zu: element %zu is %.9g, want %.9g", count, i, (double)y[i],
                   (double)want);
        }
        test_free(x); test_free(y);
    }
    test_free(sums);
}

// === 3. ops backward, against central differences (fp64, CPU) ===

// d sum(out * weight) / d x[i] for some i, by the difference quotient with step h; the analytic
// gradient must agree to 1e-6 of the largest.
typedef struct { void (*run)(void *); void *context; floatX *out; const floatX *weight;
                size_t count; } Probe;
static double probe_loss(Probe *p) {
    p->run(p->context);
    double sum = 0;
    for (size_t i = 0; i < p->count; i++) sum += (double)f32(p->out[i]) * (double)f32(p->weight[i]);
    return sum;
}
static void probe_check(Probe *p, floatX *x, const real *dx, size_t count, const char *what) {
    double scale = 0, worst = 0;
    for (size_t i = 0; i < count; i++) scale = fmax(scale, fabs((double)dx[i]));
    expect(scale > 0 && isfinite(scale), "%s: no gradient", what);
    for (size_t k = 0; k < 40; k++) {
        size_t i = count <= 40 ? k % count : hash64(k) % count;
        real was = f32(x[i]), h = (real)1e-5;
        x[i] = fX(was + h);
        double up = probe_loss(p);
        x[i] = fX(was - h);
        double down = probe_loss(p), numeric = (up - down) / (2 * (double)h);
        x[i] = fX(was);
        double error = fabs(numeric - (double)dx[i]) / scale;
        if (!(error <= worst)) worst = error;
    }
    expect(worst <= 1e-6, "%s: relative error %g, bar 1e-6", what, worst);
}
static real *as_real(const floatX *x, size_t count) {
    real *out = (real *)host_alloc(count * sizeof(real));
    for (size_t i = 0; i < count; i++) out[i] = f32(x[i]);
    return out;
}

typedef struct {
    size_t B, T, C, NH, OC, V, Vp;
    floatX *out, *pre, *inp, *weight, *bias, *residual;
    real *mean, *rstd, *lse;
    int32_t *tokens;
} OpCase;
static OpCase op_case(size_t B, size_t T, size_t C, size_t NH, size_t OC, size_t V) {
    OpCase o;
    memset(&o, 0, sizeof o);
    o.B = B; o.T = T; o.C = C; o.NH = NH; o.OC = OC; o.V = V; o.Vp = round_up(V, 128);
    return o;
}
static void run_embedding(void *context) {
    OpCase *o = (OpCase *)context;
    embedding_forward(o->out, o->tokens, o->weight, o->bias, o->B, o->T, o->C, 0);
}
static void run_layernorm(void *context) {
    OpCase *o = (OpCase *)context;
    layernorm_forward(o->out, o->mean, o->rstd, o->inp, o->weight, o->bias, o->B * o->T, o->C);
}
static void run_matmul(void *context) {
    OpCase *o = (OpCase *)context;
    matmul_forward(o->out, NULL, o->inp, o->weight, o->bias, NULL, o->B * o->T, o->C, o->OC);
}
static void run_gelu_matmul(void *context) { // out = gelu(pre) weight^T + bias
    OpCase *o = (OpCase *)context;
    gelu_forward(o->inp, o->pre, o->B * o->T * o->C);
    run_matmul(context);
}
static void run_attention(void *context) {
    OpCase *o = (OpCase *)context;
    attention_forward(o->out, o->lse, o->inp, o->B, o->T, o->C, o->NH);
}
static void test_embedding_backward_equals_differences(void) {
    if (!is_fp64) return;
    OpCase o = op_case(3, 5, 20, 1, 0, 7);
    size_t N = o.B * o.T;
    o.weight = make(o.V * o.C, 1, 1, 0);
    o.bias = make(6 * o.C, 2, 1, 0); // wpe with maxT = 6 > T
    o.out = make_nan(N * o.C);
    o.tokens = (int32_t *)test_alloc(N * sizeof(int32_t));
    tokens_fill(o.tokens, N, o.V, 3);
    floatX *dout = make(N * o.C, 4, 1, 0);
    real *dwte = (real *)test_alloc(o.Vp * o.C * sizeof(real)), *dwpe = make_nan_real(6 * o.C);
    embedding_backward(dwte, dwpe, dout, o.tokens, o.B, o.T, o.C, 6, 0);
    Probe p = { run_embedding, &o, o.out, dout, N * o.C };
    probe_check(&p, o.weight, dwte, o.V * o.C, "wte");
    probe_check(&p, o.bias, dwpe, 6 * o.C, "wpe");
    for (size_t i = 0; i < o.C; i++) expect(dwpe[5 * o.C + i] == 0, "an unused position has a "
                                            "gradient");
}
static void test_layernorm_backward_equals_differences(void) {
    if (!is_fp64) return;
    const size_t channels[] = { 1 + 6, 16, 65 };
    for (int k = 0; k < 3; k++) {
        OpCase o = op_case(1, 7, channels[k], 1, 0, 0);
        size_t N = o.B * o.T, count = N * o.C;
        ops_init(1, N, o.C, 1, 0);
        o.inp = make(count, 1, 1, 0.5);
        o.weight = make(o.C, 2, 0.5, 1);
        o.bias = make(o.C, 3, 1, 0);
        o.out = make_nan(count);
        o.mean = make_nan_real(N);
        o.rstd = make_nan_real(N);
        floatX *dout = make(count, 4, 1, 0), *dinp = make(count, 0, 0, 0);
        real *dw = make_nan_real(o.C), *db = make_nan_real(o.C);
        run_layernorm(&o);
        layernorm_backward(dinp, dw, db, dout, o.inp, o.mean, o.rstd, o.weight, N, o.C, 0);
        Probe p = { run_layernorm, &o, o.out, dout, count };
        probe_check(&p, o.weight, dw, o.C, "weight");
        probe_check(&p, o.bias, db, o.C, "bias");
        probe_check(&p, o.inp, as_real(dinp, count), count, "inp");
    }
}
static void test_matmul_backward_equals_differences(void) {
    if (!is_fp64) return;
    ops_init(1, 1, 1, 1, 0);
    const size_t shapes[][3] = { { 1, 1, 1 }, { 7, 20, 33 }, { 65, 17, 66 }, { 130, 65, 100 } };
    for (int k = 0; k < 4; k++) {
        OpCase o = op_case(1, shapes[k][0], shapes[k][1], 1, shapes[k][2], 0);
        size_t N = o.T;
        o.inp = make(N * o.C, 1, 1, 0);
        o.pre = make(N * o.C, 5, 1, 0);
        o.weight = make(o.OC * o.C, 2, 1, 0);
        o.bias = make(o.OC, 3, 1, 0);
        o.out = make_nan(N * o.OC);
        floatX *dout = make(N * o.OC, 4, 1, 0), *dinp = make_nan(N * o.C);
        real *dw = make_nan_real(o.OC * o.C), *db = make_nan_real(o.OC);
        matmul_backward(dinp, dw, db, dout, o.inp, o.weight, NULL, N, o.C, o.OC, 0);
        Probe p = { run_matmul, &o, o.out, dout, N * o.OC };
        probe_check(&p, o.inp, as_real(dinp, N * o.C), N * o.C, "inp");
        probe_check(&p, o.weight, dw, o.OC * o.C, "weight");
        probe_check(&p, o.bias, db, o.OC, "bias");
        run_gelu_matmul(&o);
        matmul_backward(dinp, dw, db, dout, o.inp, o.weight, o.pre, N, o.C, o.OC, 0);
        Probe q = { run_gelu_matmul, &o, o.out, dout, N * o.OC };
        probe_check(&q, o.pre, as_real(dinp, N * o.C), N * o.C, "pre_gelu");
    }
}
static void test_attention_backward_equals_differences(void) {
    if (!is_fp64) return;
    const size_t shapes[][3] = { { 1, 1, 8 }, { 7, 3, 5 }, { 65, 2, 16 }, { 130, 1, 20 } };
    for (int k = 0; k < 4; k++) {
        OpCase o = op_case(2, shapes[k][0], shapes[k][1] * shapes[k][2], shapes[k][1], 0, 0);
        size_t N = o.B * o.T;
        ops_init(1, o.T, shapes[k][2], 1, 0);
        o.inp = make(N * 3 * o.C, 1, 2, 0);
        o.out = make_nan(N * o.C);
        o.lse = make_nan_real(N * o.NH);
        floatX *dout = make(N * o.C, 4, 1, 0), *dqkv = make_nan(N * 3 * o.C);
        run_attention(&o);
        attention_backward(dqkv, dout, o.out, o.lse, o.inp, o.B, o.T, o.C, o.NH);
        Probe p = { run_attention, &o, o.out, dout, N * o.C };
        probe_check(&p, o.inp, as_real(dqkv, N * 3 * o.C), N * 3 * o.C, "qkv");
        ops_free();
    }
}
static void test_classifier_gradient_equals_differences(void) {
    if (!is_fp64) return;
    enum { N = 3, V = 66, Vp = 128 };
    floatX *x = make(N * Vp, 1, 3, 0), *copy = make_nan(N * Vp);
    int32_t targets[N] = { 0, 65, 30 };
    real losses[N];
    floatX *dx = make(N * Vp, 1, 3, 0);
    classifier_forward_backward(losses, dx, targets, 1, N, V, Vp);
    for (size_t i = 0; i < N * Vp; i++) {
        if (i % Vp >= V) continue;
        double sums[2] = { 0, 0 };
        for (int side = 0; side < 2; side++) {
            memcpy(copy, x, N * Vp * sizeof(floatX));
            copy[i] = fX(f32(x[i]) + (side ? -1 : 1) * (real)1e-5);
            classifier_forward_backward(losses, copy, targets, 0, N, V, Vp);
            for (int n = 0; n < N; n++) sums[side] += (double)losses[n];
        }
        double error = fabs((sums[0] - sums[1]) / 2e-5 - (double)f32(dx[i]));
        expect(error <= 1e-6, "logit %zu: error %g", i, error);
    }
}
static void test_model_gradients_equal_differences(void) {
    if (!is_fp64) return;
    enum { B = 2, T = 7 };
    Model m;
    model_make(&m, config_of(2, 3, 24, 9, 66), B, T, 0);
    model_perturb(&m, 11);
    int32_t batch[2 * B * T];
    tokens_fill(batch, 2 * B * T, 66, 4);
    model_gradients(&m, batch, B, T);
    for (int i = 0; i < NUM_PARAMS; i++) for (size_t k = 0; k < 8; k++) {
        const ParamInfo *p = &m.layout.params[i];
        size_t count = p->file_rows * p->cols;
        size_t at = param_at(&m.layout, i, k % 2) + hash64(k + 1) % count;
        real was = f32(m.weights[at]), h = (real)1e-5;
        m.weights[at] = fX(was + h);
        double up = model_loss(&m, batch, B, T);
        m.weights[at] = fX(was - h);
        double down = model_loss(&m, batch, B, T), numeric = (up - down) / (2 * (double)h);
        m.weights[at] = fX(was);
        double error = fabs(numeric - (double)m.grads[at]), bar = 1e-6 * fmax(fabs(numeric), 1e-2);
        expect(error <= bar, "%s[%zu]: %g by differences, %g", p->file_name, at, numeric,
               (double)m.grads[at]);
    }
    gpt_free(&m);
}

// === 4. whole model against PyTorch ===

// One tensor of a dump in our layout against `got` (rows,cols): the largest difference over the
// largest entry; in bf16 the norm of the difference over the norm.
static double total_squares, total_norm; // over the tensors since they were set to 0
static double dump_difference(const St *st, const ParamInfo *p, const char *name, const real *got) {
    real *want = st_param(st, p, name);
    size_t count = p->rows * p->cols;
    double *a = (double *)host_alloc(count * sizeof(double)),
        *b = (double *)host_alloc(count * sizeof(double));
    for (size_t i = 0; i < count; i++) { a[i] = (double)want[i]; b[i] = (double)got[i]; }
    double d = difference(a, b, count, 0), squares = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        squares += (a[i] - b[i]) * (a[i] - b[i]);
        norm += a[i] * a[i];
    }
    if (has_master) d = sqrt(squares / norm);
    total_squares += squares;
    total_norm += norm;
    free(want); free(a); free(b);
    return d;
}
static double worst_difference(const St *st, const Model *m, const char *prefix, int is_weights,
                               char *worst_name) {
    double worst = 0;
    for (size_t bucket = 0; bucket < m->layout.num_buckets; bucket++) for (int i = 0;
        i < NUM_PARAMS; i++) {
        const ParamInfo *p = &m->layout.params[i];
        if (p->scope != bucket_scope(&m->layout, bucket)) continue;
        char name[128], full[160];
        param_name(name, sizeof name, 'w', p, bucket);
        snprintf(full, sizeof full, "%s%s", prefix, name);
        size_t at = bucket_start(&m->layout, bucket) + p->offset, count = p->rows * p->cols;
        real *got = (real *)host_alloc(count * sizeof(real));
        if (is_weights) values_to_host(got, m->weights + at, count);
        else to_host(got, m->grads + at, count * sizeof(real));
        // The bias of the keys has no gradient in exact arithmetic (softmax ignores a shift); in
        // fp32 what is left of it is noise, and AdamW makes steps of full size out of noise.
        int is_noise = is_weights && !is_fp64 && i == P_qkvb;
        double d = is_noise ? 0 : dump_difference(st, p, full, got);
        if (!(d <= worst)) { worst = d; strcpy(worst_name, full); }
        free(got);
    }
    return worst;
}
static double st_number(const St *st, const char *name, size_t i) {
    const StTensor *t = st_find(st, name);
    check(t != NULL, EXIT_INPUT, "%s: no tensor %s", st->file.path, name);
    void *data = st_bytes(st, t);
    double value;
    memcpy(&value, (char *)data + i * sizeof value, sizeof value);
    free(data);
    return value;
}
static Config dump_config(const St *st, size_t *B, size_t *T) {
    Config c;
    memset(&c, 0, sizeof c);
    const char *text = st_meta(st, "config");
    Json j = json_open(st->file.path, text, strlen(text));
    char key[64];
    json_enter(&j, '{');
    while (json_more(&j, '}')) {
        json_key(&j, key, sizeof key);
        size_t value = (size_t)json_count(&j);
        if (!strcmp(key, "n_layer")) c.L = value;
        if (!strcmp(key, "n_head")) c.NH = value;
        if (!strcmp(key, "n_embd")) c.C = value;
        if (!strcmp(key, "n_positions")) c.maxT = value;
        if (!strcmp(key, "vocab_size")) c.V = value;
    }
    const StTensor *inputs = st_find(st, "inputs");
    if (inputs) { *B = inputs->dims[1]; *T = inputs->dims[2]; }
    return c;
}
// Bars: fp64 logits and gradients 1e-9; fp32 loss 1e-5, gradients 1e-4 of a tensor's largest entry,
// losses of 10 AdamW steps 1e-4.
static void dump_case(const char *path, int recompute) {
    St st;
    st_open(&st, path);
    size_t B = 0, T = 0;
    Config c = dump_config(&st, &B, &T);
    Model m;
    model_make(&m, c, B, T, recompute);
    c = m.config;
    gpt_load(&m, &st, "w");
    int32_t *inputs = (int32_t *)st_bytes(&st, st_find(&st, "inputs"));
    int32_t *targets = (int32_t *)st_bytes(&st, st_find(&st, "targets"));
    double *logits = (double *)st_bytes(&st, st_find(&st, "logits"));
    char *argv[] = { (char *)"t", (char *)"--grad_clip=1", (char *)"--weight_decay=0.1",
                     (char *)"--beta1=0.9", (char *)"--beta2=0.95", (char *)"--eps=1e-8" };
    Flags f = flags_parse(6, argv);
    char worst[160] = "";
    for (uint64_t step = 0; step < 10; step++) {
        memcpy(m.tokens, inputs + step * B * T, B * T * sizeof(int32_t));
        memcpy(m.tokens + B * T, targets + step * B * T, B * T * sizeof(int32_t));
        if (step == 0) {
            model_loss(&m, m.tokens, B, T);
            double *got = (double *)host_alloc(B * T * c.V * sizeof(double));
            for (size_t n = 0; n < B * T; n++) for (size_t i = 0; i < c.V; i++)
                got[n * c.V + i] = (double)f32(acts_at(&m, 0).logits[n * c.Vp + i]);
            double d = difference(logits, got, B * T * c.V, 0);
            expect(d <= (is_fp64 ? 1e-9 : has_master ? 0.03 : 1e-5), "logits differ by %g", d);
            free(got);
        }
        double loss = model_gradients(&m, m.tokens, B, T), norm = gpt_grad_norm(&m, NULL);
        double want = st_number(&st, "losses", step), want_norm = st_number(&st, "grad_norms",
            step);
        if (step == 0) {
            total_squares = total_norm = 0;
            double d = worst_difference(&st, &m, "grad.", 0, worst);
            double all = sqrt(total_squares / total_norm);
            expect(all <= (has_master ? 0.02 : 1e-4), "all gradients differ by %g", all);
            expect(d <= (is_fp64 ? 1e-9 : has_master ? 0.05 : 1e-4), "gradient %s differs by %g",
                   worst, d);
            expect(fabs(loss - want) <= (is_fp64 ? 1e-12 : has_master ? 0.02 : 1e-5), "loss %.9g, "
                   "PyTorch %.9g", loss, want);
        }
        expect(fabs(loss - want) <= (is_fp64 ? 1e-9 : has_master ? 0.02 : 1e-4), "step %d: loss "
               "%.9g, PyTorch %.9g", (int)step, loss, want);
        expect(fabs(norm / want_norm - 1) <= (is_fp64 ? 1e-9 : has_master ? 0.02 : 1e-4),
               "step %d: norm %.9g, PyTorch %.9g", (int)step, norm, want_norm);
        gpt_update(&m, &f, 1e-3, norm, step + 1);
    }
    double d = worst_difference(&st, &m, "final.", 1, worst);
    expect(d <= (is_fp64 ? 1e-8 : has_master ? 0.1 : 2e-3), "after 10 steps %s differs by %g",
           worst, d);
    free(inputs); free(targets); free(logits);
    gpt_free(&m);
    st_close(&st);
}
static void test_model_equals_pytorch(void) {
    for (int recompute = 0; recompute <= SMALLER(3, 0); recompute++)
        dump_case("dev/test/reference_c8.safetensors", recompute);
    for (int recompute = 0; recompute <= 3 && CHANNELS_UNIT == 1; recompute++) // of 20 channels
        dump_case("dev/test/reference.safetensors", recompute);
}
static void test_model_equals_larger_pytorch_dump(void) { // made by `make reference`
    // In bf16 only weights as they are at the start: large ones magnify the rounding.
    const char *path = getenv(has_master ? "GPT_DUMP_INIT" : "GPT_DUMP");
    if (path && *path) dump_case(path, 0);
    else skip_reason = "make test-all runs it (or set GPT_DUMP)";
}
static void init_case(const char *path) {
    St st;
    st_open(&st, path);
    size_t B, T;
    Model m;
    model_make(&m, dump_config(&st, &B, &T), 1, 1, 0);
    gpt_init_weights(&m, 1337);
    for (size_t bucket = 0; bucket < m.layout.num_buckets; bucket++) for (int i = 0; i < NUM_PARAMS;
        i++) {
        const ParamInfo *p = &m.layout.params[i];
        if (p->scope != bucket_scope(&m.layout, bucket)) continue;
        char name[128];
        param_name(name, sizeof name, 'w', p, bucket);
        real *want = st_param(&st, p, name);
        const floatX *got = m.weights + bucket_start(&m.layout, bucket) + p->offset;
        for (size_t k = 0; k < p->rows * p->cols; k++)
            expect(fabs((double)(f32(got[k]) - want[k])) <= 2e-7 + stored * fabs((double)want[k]),
                   "%s[%zu] is %g, PyTorch %g", name,
            k, (double)f32(got[k]), (double)want[k]);
        free(want);
    }
    gpt_free(&m);
    st_close(&st);
}
static void test_initial_weights_equal_pytorch(void) {
    init_case("dev/test/init_c8.safetensors");
    if (CHANNELS_UNIT == 1) init_case("dev/test/init.safetensors");
}
// A GPT-2 made with numpy; numpy, PyTorch and llama.cpp agree on its loss and its greedy tokens.
static void test_golden_model(void) {
    char *path = data_file("formats/tiny_byte_gpt2.safetensors");
    char *expected = data_file("formats/tiny_byte_gpt2_expected.json");
    if (!path || !expected) return;
    int32_t tokens[128];
    size_t num_prompt = 0, num_tokens = 0, bytes;
    double nll = 0;
    char key[64], *text = in_read_all(expected, 1 << 20, &bytes);
    for (int pass = 0; pass < 2; pass++) { // the prompt first, whatever the order in the file
        Json j = json_open(expected, text, bytes);
        json_enter(&j, '{');
        while (json_more(&j, '}')) {
            json_key(&j, key, sizeof key);
            int is_wanted = !strcmp(key, pass ? "greedy_24" : "prompt_ids");
            if (!strcmp(key, "mean_nll")) nll = json_number(&j);
            else if (!is_wanted) json_skip(&j);
            else for (json_enter(&j, '['); json_more(&j, ']');
                ) tokens[num_tokens++] = (int32_t)json_count(&j);
        }
        if (pass == 0) num_prompt = num_tokens;
    }
    expect(num_prompt > 0 && num_tokens == num_prompt + 24, "%zu tokens, %zu in the prompt",
           num_tokens, num_prompt);
    Model m;
    memset(&m, 0, sizeof m);
    char *file = init_file(path, &m.config);
    St st;
    st_open(&st, file);
    model_make(&m, m.config, 1, m.config.maxT, 0);
    gpt_load(&m, &st, "w");
    double loss = 0;
    size_t V = m.config.V;
    real *logits = (real *)host_alloc(V * sizeof(real));
    Candidate *candidates = (Candidate *)host_alloc(V * sizeof(Candidate));
    char *argv[] = { (char *)"t", (char *)"--temperature=0" };
    Flags f = flags_parse(2, argv);
    for (size_t n = 1; n < num_tokens; n++) {
        gpt_extend(&m, tokens + n - 1, 1, n - 1, logits);
        if (n >= num_prompt) {
            int32_t token = sample_token(logits, candidates, V, &f, 0);
            double lead = (double)(logits[token] - logits[tokens[n]]); // 0, or near a tie
            expect(lead <= 8 * regrouped * fmax(1, fabs((double)logits[token])), "greedy token %zu "
                   "is %d, expected %d, whose logit is less by %g", n, token, tokens[n], lead);
        }
    }
    memcpy(m.tokens, tokens, (num_prompt - 1) * sizeof(int32_t));
    memcpy(m.tokens + num_prompt - 1, tokens + 1, (num_prompt - 1) * sizeof(int32_t));
    loss = model_loss(&m, m.tokens, 1, num_prompt - 1);
    expect(fabs(loss - nll) <= (has_master ? 0.03 : 1e-5), "mean NLL %.9g, expected %.9g", loss,
           nll);
    gpt_free(&m);
    st_close(&st);
    free(text);
}

// === 5. invariants ===

static void test_parameter_count_of_gpt2(void) {
    Layout y = layout_of(config_of(12, 12, 768, 1024, 50257));
    Config c = config_of(12, 12, 768, 1024, 50257);
    config_check(&c, EXIT_INTERNAL, "d12");
    y = layout_of(c);
    expect(y.num_parameters == 124439808, "%zu", y.num_parameters);
    expect(12 * 256 * 256 == 786432, "a block's matrices at d = 256");
    expect(12.0 * 24 * 2048 * 2048 + 50000.0 * 2048 == 1310359552, "12 L d^2 + V d");
}
static void test_textbook_budgets(void) {
    double N = 1.31e9, D = 20 * N, C = textbook_train_flops(N, D);
    expect(fabs(C / 2.06e20 - 1) < 1e-3, "6 N D = %g", C);
    expect(fabs(textbook_days(C, 3e14, 0.4) - 19.87) < 0.01, "%g days", textbook_days(C, 3e14,
        0.4));
    expect(textbook_adam_bytes(7e9) == 112e9, "7B");
    expect(fabs(textbook_adam_bytes(1.31e9) / 21.0e9 - 1) < 2e-3, "1.31B");
    double layer = textbook_layer_bytes(2048, 1, 2048, 16, 0), flash = textbook_layer_bytes(2048, 1,
        2048, 16, 1);
    expect(fabs(layer / 478e6 - 1) < 2e-3, "%g bytes a layer", layer);
    expect(fabs(24 * layer / 11.5e9 - 1) < 4e-3, "%g bytes", 24 * layer);
    expect(fabs(24 * flash / 3.42e9 - 1) < 2e-3, "%g bytes with flash attention", 24 * flash);
    double seconds = textbook_days(7.8e22, 256e15, 0.4) * 86400;
    expect(fabs(seconds / 7.617e5 - 1) < 1e-3 && fabs(seconds / 86400 - 8.8) < 0.02, "%g s",
           seconds);
}
static void test_counted_flops_backward_is_twice_forward(void) {
    enum { B = 2, T = 16 };
    Model m;
    model_make(&m, config_of(3, 2, 32, T, 100), B, T, 0);
    gpt_init_weights(&m, 1);
    tokens_fill(m.tokens, 2 * B * T, 100, 1);
    matmul_flops = 0;
    model_loss(&m, m.tokens, B, T);
    double forward = matmul_flops;
    matmul_flops = 0;
    model_gradients(&m, m.tokens, B, T);
    double backward = matmul_flops - forward;
    expect(fabs(backward / forward - 2) < 0.01, "backward / forward = %g", backward / forward);
    double weights = 2 * (12.0 * 3 * 32 * 32 + 128 * 32) * B * T; // Vp = 128
    expect(forward == weights, "forward %g, 2 FLOPs a weight and token are %g", forward, weights);
    gpt_free(&m);
    // level 3 runs every layer forward once more
    model_make(&m, config_of(3, 2, 32, T, 100), B, T, 3);
    gpt_init_weights(&m, 1);
    tokens_fill(m.tokens, 2 * B * T, 100, 1);
    matmul_flops = 0;
    model_gradients(&m, m.tokens, B, T);
    double again = matmul_flops - forward - backward, layers = 2 * 12.0 * 3 * 32 * 32 * B * T;
    expect(again == layers, "level 3 adds %g, a forward of the layers is %g", again, layers);
    gpt_free(&m);
}
// Losses, gradients and a step of AdamW, twice: every op is in it.
static void same_twice_case(size_t NH, size_t C) {
    enum { B = 2, T = 70, V = 100 };
    int32_t *batch = (int32_t *)test_alloc(2 * B * T * sizeof(int32_t));
    tokens_fill(batch, 2 * B * T, V, 1);
    char *argv[] = { (char *)"t" };
    Flags f = flags_parse(1, argv);
    real *grads = NULL;
    int64_t hash = 0;
    double loss = 0, norm = 0;
    for (int turn = 0; turn < 2; turn++) {
        Model m;
        model_make(&m, config_of(1, NH, C, T, V), B, T, 0);
        model_perturb(&m, 3);
        double now = model_gradients(&m, batch, B, T), norm_now = gpt_grad_norm(&m, NULL);
        if (turn == 0) grads = copy_of(m.grads, m.layout.count);
        expect(!memcmp(grads, m.grads, m.layout.count * sizeof(real)), "NH %zu C %zu: gradients",
               NH, C);
        gpt_update(&m, &f, 1e-3, norm_now, 1);
        if (turn == 1) expect(now == loss && norm_now == norm && gpt_weights_hash(&m) == hash,
                              "NH %zu C %zu: loss, norm or weights", NH, C);
        loss = now;
        norm = norm_now;
        hash = gpt_weights_hash(&m);
        gpt_free(&m);
    }
    free(grads);
    test_free(batch);
}
static void test_a_step_twice_gives_the_same_bits(void) {
    same_twice_case(1, 64);
    matmul_fuses_gelu = !matmul_fuses_gelu;
    same_twice_case(3, 48);
    matmul_fuses_gelu = !matmul_fuses_gelu;
}
// Level by level from 0, each `step` levels further.
static void recompute_case(int step) {
    enum { B = SMALLER(3, 2), T = SMALLER(65, 35), V = 100 };
    Model m;
    real *want = NULL;
    size_t bytes_before = SIZE_MAX;
    for (int r = 0; r <= 3; r += step) {
        size_t start = dev_bytes;
        model_make(&m, config_of(3, 3, 48, T + 2, V), B, T, r);
        expect(dev_bytes - start < bytes_before, "level %d saves no memory", r);
        bytes_before = dev_bytes - start;
        model_perturb(&m, 3);
        tokens_fill(m.tokens, 2 * B * T, V, 1);
        model_gradients(&m, m.tokens, B, T);
        if (r == 0) want = copy_of(m.grads, m.layout.count);
        expect(!memcmp(want, m.grads, m.layout.count * sizeof(real)), "level %d differs", r);
        gpt_free(&m);
    }
    free(want);
}
static void test_recompute_levels_give_the_same_bits(void) {
    int was = matmul_fuses_gelu;
    if (is_gpt_cuda) recompute_case(3); // at levels 1 and 2 training does not fuse it
    matmul_fuses_gelu = 0;
    recompute_case(1);
    matmul_fuses_gelu = was;
}
// --matmul bf16 rounds the operands of products only: losses of 10 steps within 1e-3 of fp32's, all
// gradients together within 1 % in norm.
static void test_bf16_products_follow_fp32(void) {
    if (is_fp64 || has_master) return;
    enum { B = 2, T = 65, V = 257 };
    double losses[2][10], squares = 0, norm = 0;
    real *want = NULL;
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        matmul_bf16 = is_bf16;
        Model m;
        model_make(&m, config_of(3, 2, 80, T, V), B, T, 0);
        gpt_init_weights(&m, 1337);
        tokens_fill(m.tokens, 2 * B * T, V, 1);
        char *argv[] = { (char *)"t" };
        Flags f = flags_parse(1, argv);
        for (uint64_t step = 0; step < 10; step++) {
            losses[is_bf16][step] = model_gradients(&m, m.tokens, B, T);
            size_t count = m.layout.count;
            if (step == 0 && !is_bf16) {
                want = (real *)host_alloc(count * sizeof(real));
                memcpy(want, m.grads, count * sizeof(real));
            }
            for (size_t i = 0; step == 0 && is_bf16 && i < count; i++) {
                squares += pow((double)(m.grads[i] - want[i]), 2);
                norm += pow((double)want[i], 2);
            }
            gpt_update(&m, &f, 1e-3, gpt_grad_norm(&m, NULL), step + 1);
        }
        gpt_free(&m);
    }
    matmul_bf16 = 0;
    double error = sqrt(squares / norm);
    expect(error <= 0.01 && error > 1e-5, "gradients differ by %g", error); // it did round
    for (int k = 0; k < 10; k++)
        expect(fabs(losses[1][k] - losses[0][k]) <= 1e-3, "step %d: %.6f, fp32 %.6f", k,
        losses[1][k], losses[0][k]);
    free(want);
}
static void test_gradients_do_not_depend_on_threads(void) {
    enum { B = 2, T = 130, V = 257 };
    int threads = omp_get_max_threads();
    real *want = NULL;
    for (int n = 1; n <= 3; n++) {
        omp_set_num_threads(n);
        Model m;
        model_make(&m, config_of(2, 5, 80, T, V), B, T, 0);
        model_perturb(&m, 3);
        tokens_fill(m.tokens, 2 * B * T, V, 1);
        model_gradients(&m, m.tokens, B, T);
        if (n == 1) {
            want = (real *)host_alloc(m.layout.count * sizeof(real));
            memcpy(want, m.grads, m.layout.count * sizeof(real));
        } else expect(!memcmp(want, m.grads, m.layout.count * sizeof(real)), "%d threads differ",
            n);
        gpt_free(&m);
    }
    omp_set_num_threads(threads);
}
static void test_accumulation_equals_the_large_batch(void) {
    enum { B = 4, T = 7, V = 66 };
    Model m;
    model_make(&m, config_of(2, 2, WIDE(20), T, V), B, T, 0);
    model_perturb(&m, 3);
    int32_t tokens[2 * B * T];
    tokens_fill(tokens, 2 * B * T, V, 1);
    memcpy(m.tokens, tokens, sizeof tokens);
    model_gradients(&m, m.tokens, B, T);
    size_t count = m.layout.count;
    double *want = (double *)host_alloc(count * sizeof(double)),
        *got = (double *)host_alloc(count * sizeof(double));
    for (size_t i = 0; i < count; i++) want[i] = (double)m.grads[i];
    for (size_t i = 0; i < B; i++) { // one sequence at a time
        memcpy(m.tokens, tokens + i * T, T * sizeof(int32_t));
        memcpy(m.tokens + T, tokens + (B + i) * T, T * sizeof(int32_t));
        gpt_forward(&m, m.tokens, 1, T, NO_CACHE);
        gpt_head(&m, m.tokens + T, T, (real)(1.0 / (B * T)), i > 0);
        gpt_backward(&m, m.tokens, 1, T, i > 0);
    }
    for (size_t i = 0; i < count; i++) got[i] = (double)m.grads[i];
    double d = difference(want, got, count, 0);
    expect(d <= 1e-6 + 4 * regrouped, "relative difference %g", d);
    free(want); free(got);
    gpt_free(&m);
}
static void test_first_gradient_overwrites_what_was_there(void) {
    enum { B = 1, T = 7, V = 66 };
    Model m;
    model_make(&m, config_of(1, 2, WIDE(20), T + 1, V), B, T, 0);
    model_perturb(&m, 3);
    tokens_fill(m.tokens, 2 * B * T, V, 1);
    for (size_t i = 0; i < m.layout.count; i++) m.grads[i] = NAN;
    model_gradients(&m, m.tokens, B, T);
    for (int i = 0; i < NUM_PARAMS; i++) for (size_t k = 0;
        k < m.layout.params[i].rows * m.layout.params[i].cols;
        k++) expect(isfinite(m.grads[param_at(&m.layout, i, 0) + k]), "%s[%zu] kept its NaN",
        m.layout.params[i].file_name, k);
    gpt_free(&m);
}
static void test_layout_does_not_depend_on_ranks(void) {
    Config c = config_of(3, 3, 48, 33, 257);
    config_check(&c, EXIT_INTERNAL, "test");
    Layout y = layout_of(c);
    for (ranks = 1; ranks <= 8; ranks++) {
        Layout other = layout_of(c);
        expect(!memcmp(&y, &other, sizeof y), "another layout for %d ranks", ranks);
    }
    ranks = 1;
}
static void test_shards_cover_every_element_once(void) {
    const int counts[] = { 1, 2, 3, 4, 5, 6, 7, 8, 100, 256, 300 };
    Model m;
    memset(&m, 0, sizeof m);
    m.config = config_of(3, 3, 48, 33, 257);
    config_check(&m.config, EXIT_INTERNAL, "test");
    m.layout = layout_of(m.config);
    m.zero = 1;
    size_t all = m.layout.count;
    char *uses = (char *)host_alloc(all);
    m.m = (char *)host_alloc(all * sizeof(real));
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        size_t kept = 0;
        memset(uses, 0, all);
        ranks = counts[k];
        for (rank = 0; rank < ranks; rank++) {
            size_t end = 0, lo, count; // of this rank's m: buckets follow each other in it
            for (size_t bucket = 0; bucket < m.layout.num_buckets; bucket++) {
                char *at = state_of(&m, 'm', bucket, &lo, &count);
                expect(at == m.m + end * sizeof(real), "a gap in m");
                end += count;
                for (size_t i = 0; i < count; i++) uses[bucket_start(&m.layout, bucket) + lo + i]++;
            }
            expect(end == state_count(&m, all), "m has another size than its shards");
            expect(end <= all / (size_t)ranks + all / PARTS, "%d ranks: %zu of %zu on one", ranks,
                   end, all);
            kept += end;
        }
        rank = 0;
        expect(kept == all, "%d ranks keep %zu of %zu", ranks, kept, all);
        for (size_t i = 0; i < all; i++) if (uses[i] != 1) {
            expect(0, "%d ranks: element %zu is kept %d times", ranks, i, uses[i]);
            break;
        }
    }
    ranks = 1;
    free(uses);
    free(m.m);
}
static real pairwise(size_t i, size_t n) { // halves while the count is even, else in turn
    if (n % 2 == 0) return pairwise(i, n / 2) + pairwise(i + n / 2, n / 2);
    real sum = (real)(random_at(1, i) / 3);
    for (size_t k = 1; k < n; k++) sum += (real)(random_at(1, i + k) / 3);
    return sum;
}
static void test_micro_batches_are_added_pairwise(void) {
    Model m;
    memset(&m, 0, sizeof m);
    m.config = config_of(2, 1, 8, 8, 66);
    config_check(&m.config, EXIT_INTERNAL, "test");
    m.layout = layout_of(m.config);
    size_t count = m.layout.count;
    real plain = 0;
    int differs = 0;
    const size_t counts[] = { 1, 2, 3, 4, 6, 7, 8, 12, 16, 20, 24 };
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        size_t n = counts[c];
        m.levels = __builtin_ctzll(n);
        m.grads = make_nan_real(count * (size_t)(m.levels + 1));
        plain = 0;
        for (size_t i = 0; i < n; i++) {
            real x = (real)(random_at(1, i) / 3);
            int accumulate = gpt_pass(&m, i, n);
            expect(m.slot <= m.levels, "buffer %d of %d", m.slot, m.levels + 1);
            real *g = m.grads + (size_t)m.slot * count; // a pass on a model of equal gradients
            for (size_t k = 0; k < count; k++) g[k] = accumulate ? g[k] + x : x;
            for (size_t bucket = 0; bucket < m.layout.num_buckets; bucket++)
                gpt_bucket_done(&m, bucket);
            plain += x;
        }
        real want = pairwise(0, n);
        for (size_t k = 0; k < count; k += count - 1)
            expect(m.grads[k] == want, "%zu micro-batches: sum %.9g, want %.9g", n,
                   (double)m.grads[k], (double)want);
        differs += want != plain;
        test_free(m.grads);
    }
    expect(differs > 3, "the order makes no difference here");
}
static void test_head_in_chunks_equals_plain_loss(void) {
    enum { B = SMALLER(5, 70), T = SMALLER(250, 60), V = 66 }; // several chunks of HEAD_ROWS
    expect(B * T > HEAD_ROWS, "one chunk");
    Model m;
    model_make(&m, config_of(1, 1, 16, T, V), B, T, 0);
    model_perturb(&m, 3);
    tokens_fill(m.tokens, 2 * B * T, V, 1);
    double all = model_loss(&m, m.tokens, B, T), sum = 0;
    int32_t *tokens = (int32_t *)host_alloc(2 * B * T * sizeof(int32_t));
    memcpy(tokens, m.tokens, 2 * B * T * sizeof(int32_t));
    for (size_t b = 0; b < B; b++) {
        memcpy(m.tokens, tokens + b * T, T * sizeof(int32_t));
        memcpy(m.tokens + T, tokens + (B + b) * T, T * sizeof(int32_t));
        sum += model_loss(&m, m.tokens, 1, T) / B;
    }
    expect(fabs(all - sum) <= (32 * unit + regrouped) * sum, "%.9g in chunks, %.9g by sequences",
           all, sum);
    free(tokens);
    gpt_free(&m);
}
static void test_plan_equals_what_is_allocated(void) {
    for (int r = 0; r <= 3; r++) for (int is_trained = 0; is_trained < 2; is_trained++) {
        Model m;
        memset(&m, 0, sizeof m);
        m.config = config_of(3, 2, 48, 33, 257);
        config_check(&m.config, EXIT_INTERNAL, "test");
        m.B = 3; m.T = 32; m.recompute = r; m.is_trained = is_trained; m.cache_T = is_trained ? 0
            : 33;
        BufferInfo infos[NUM_BUFFERS];
        gpt_plan(&m, infos);
        size_t planned = 0, before = dev_bytes;
        for (int i = 0; i < NUM_BUFFERS; i++) planned += infos[i].bytes;
        gpt_alloc(&m);
        expect(dev_bytes - before == planned, "allocated %zu, planned %zu", dev_bytes - before,
               planned);
        gpt_free(&m);
    }
}
static void cached_case(size_t NH, size_t C) {
    enum { T = 150, V = 100 };
    Model m;
    model_make(&m, config_of(2, NH, C, T, V), 1, T, 0);
    model_perturb(&m, 3);
    int32_t tokens[T];
    tokens_fill(tokens, T, V, 1);
    real logits[V], cached[V];
    double want[V], got[V];
    const size_t steps[] = { 1, 3, 60, 1, 1, 84 }; // positions at a time
    size_t first = 0;
    for (size_t k = 0; k < 6; k++) {
        gpt_extend(&m, tokens + first, steps[k], first, cached);
        first += steps[k];
        memcpy(m.tokens, tokens, first * sizeof(int32_t));
        memset(m.tokens + first, 0, first * sizeof(int32_t));
        model_loss(&m, m.tokens, 1, first); // the naive loop: the whole prefix again
        values_to_host(logits, acts_at(&m, 0).logits + (first - 1) * m.config.Vp, V);
        expect(is_gpt_cuda || !memcmp(cached, logits, sizeof cached), "NH %zu, C %zu: after %zu "
               "tokens", NH, C, first);
        for (size_t i = 0; i < V; i++) { want[i] = (double)logits[i]; got[i] = (double)cached[i]; }
        double d = difference(want, got, V, 0), bar = 64 * unit + 8 * regrouped;
        expect(d <= bar, "NH %zu, C %zu: after %zu tokens: error %g, bar %g", NH, C, first, d, bar);
    }
    gpt_free(&m);
}
static void test_cached_logits_equal_the_training_pass(void) {
    cached_case(3, 48);
    cached_case(2, 160); // heads of several panels
    cached_case(1, WIDE(65));
    cached_case(1, 64);
}
static void test_permute_is_a_permutation(void) {
    const uint64_t counts[] = { 1, 2, 3, 4, 5, 100, 1000, 4096, 5000 };
    for (int k = 0; k < 9; k++) for (uint64_t key = 0; key < 3; key++) {
        uint64_t n = counts[k], in_place = 0;
        unsigned char *seen = (unsigned char *)host_alloc((size_t)n);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t to = permute(i, n, key);
            expect(to < n && !seen[to], "%d of %d goes to %d", (int)i, (int)n, (int)to);
            if (to < n) seen[to] = 1;
            in_place += to == i;
        }
        expect(n < 100 || in_place < 10, "%d of %d stay in place", (int)in_place, (int)n);
        free(seen);
    }
}
static void test_an_epoch_uses_every_window_once(void) {
    for (size_t processes = 1; processes <= 4; processes++) {
        Data d;
        memset(&d, 0, sizeof d);
        enum { COUNT = 12 * 7 + 1 + 3, T = 7 };
        uint32_t memory[COUNT];
        for (uint32_t i = 0; i < COUNT; i++) memory[i] = i;
        d.memory = memory;
        data_cut(&d, 0, COUNT, T, "test");
        d.is_shuffled = 1;
        expect(d.num_windows == 12, "%d windows", (int)d.num_windows);
        int32_t window[T + 1], previous_first = -1, same = 0;
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            int uses[12] = { 0 };
            // the processes share out the same 12 sample numbers
            for (uint64_t s = 0; s < 12; s++) {
                data_sample(&d, epoch * 12 + s, window);
                expect(window[0] % T == 0 && window[T] == window[0] + T, "a window from %d to %d",
                       window[0], window[T]);
                uses[window[0] / T]++;
                if (s == 0) { same += window[0] == previous_first; previous_first = window[0]; }
            }
            for (int w = 0; w < 12; w++) expect(uses[w] == 1, "window %d is used %d times", w,
                uses[w]);
        }
        expect(same < 2, "every epoch has the same order");
    }
}
static void test_sampling_keeps_to_top_k_and_top_p(void) {
    enum { V = 5 };
    real logits[V] = { 0, (real)log(2.0), (real)log(4.0), (real)log(8.0), (real)-30 };
    Candidate candidates[V];
    const char *flags[] = { "--temperature=1", "--top_k=2", "--top_p=0.7", "--temperature=0" };
    const double wants[][V] = { { 1 / 15.0, 2 / 15.0, 4 / 15.0, 8 / 15.0, 0 }, { 0, 0, 4 / 12.0,
                                8 / 12.0, 0 }, { 0, 0, 4 / 12.0, 8 / 12.0, 0 }, { 0, 0, 0, 1, 0 } };
    for (int k = 0; k < 4; k++) {
        char *argv[] = { (char *)"t", (char *)flags[k] };
        Flags f = flags_parse(2, argv);
        double counts[V] = { 0 };
        enum { DRAWS = 30000 };
        for (int i = 0; i < DRAWS; i++) counts[sample_token(logits, candidates, V, &f, (i
            + 0.5) / DRAWS)]++;
        for (int i = 0; i < V; i++)
            expect(fabs(counts[i] / DRAWS - wants[k][i]) < 1e-4, "%s: token %d: %g, want %g",
            flags[k], i, counts[i] / DRAWS, wants[k][i]);
    }
}
static void test_json_reads_what_it_writes_and_refuses_the_rest(void) {
    Text t = { NULL, 0, 0 };
    text_add_quoted(&t, "a\"b\\c\n\x01 \xc3\xa9");
    Json j = json_open("test", t.at, t.count);
    char out[64];
    json_string(&j, out, sizeof out);
    expect(!strcmp(out, "a\"b\\c\n\x01 \xc3\xa9"), "read back as %s", out);
    const char *pairs[][2] = { { "\"\\u00e9\\ud83d\\ude00\\/\"", "\xc3\xa9\xf0\x9f\x98\x80/" } };
    j = json_open("test", pairs[0][0], strlen(pairs[0][0]));
    json_string(&j, out, sizeof out);
    expect(!strcmp(out, pairs[0][1]), "escapes");
    const char *bad[] = { "\"", "\"\\q\"", "\"\\u12\"", "{\"a\" 1}", "{\"a\":}", "[1 2]", "[1,",
                         "{\"a\":1", "" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        jmp_buf here, *outer = die_recovers;
        volatile int refused = 1;
        die_recovers = &here;
        if (setjmp(here) == 0) {
            j = json_open("bad", bad[i], strlen(bad[i]));
            if (json_peek(&j) == '{') {
                json_enter(&j, '{');
                while (json_more(&j, '}')) { json_key(&j, out, sizeof out); json_skip(&j); }
            } else if (json_peek(&j) == '[') {
                json_enter(&j, '[');
                while (json_more(&j, ']')) json_number(&j);
            } else json_string(&j, out, sizeof out);
            refused = 0;
        }
        die_recovers = outer;
        expect(refused, "%s was accepted", bad[i]);
    }
    free(t.at);
}
static void test_flags_accept_both_spellings(void) {
    char *argv[] = { (char *)"t", (char *)"--batch-size", (char *)"8", (char *)"--seq_len=32",
                     (char *)"--lr", (char *)"1e-4", (char *)"--resume", (char *)"--prompt",
                     (char *)"--odd" };
    Flags f = flags_parse(9, argv);
    expect(f.batch_size == 8 && f.seq_len == 32 && f.lr == 1e-4 && f.resume == 1, "values");
    expect(!strcmp(f.prompt, "--odd") && f.given[F_prompt] && !f.given[F_steps], "prompt");
}

// === 6. the tokenizer (section 12) ===

static Tokenizer test_tokenizer; // GPT-2's, once loaded
static const Tokenizer *tok_gpt2(void) { // NULL, and the test is skipped, when it is not there
    char *path = data_file("tokenizer/vocab.bpe");
    if (path != NULL && test_tokenizer.vocab_size == 0) test_tokenizer = tok_load(path);
    free(path);
    return test_tokenizer.vocab_size > 0 ? &test_tokenizer : NULL;
}
static char *test_data(const char *name, size_t *bytes) { // NULL: skipped
    char *path = data_file(name);
    char *text = path ? in_read_all(path, (size_t)1 << 28, bytes) : NULL;
    free(path);
    return text;
}
// Encodes a copy without a byte to spare, so that a sanitizer sees every step too far.
static size_t tok_encode_copy(const Tokenizer *t, const char *text, size_t bytes, uint32_t *ids) {
    char *copy = (char *)malloc(bytes + !bytes);
    memcpy(copy, text, bytes);
    size_t count = tok_encode(t, copy, bytes, ids);
    free(copy);
    return count;
}
static int tok_is_text_again(const Tokenizer *t, const uint32_t *ids, size_t count,
                             const char *text, size_t bytes) {
    size_t at = 0, token_bytes;
    for (size_t i = 0; i < count; i++, at += token_bytes) {
        const char *s = tok_bytes(t, ids[i], &token_bytes);
        if (at + token_bytes > bytes || memcmp(s, text + at, token_bytes)) return 0;
    }
    return at == bytes;
}
static uint64_t tok_random = 1;
static uint32_t tok_draw(uint32_t below) { // PCG-like: high bits of a linear congruence
    tok_random = tok_random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((tok_random >> 33) % below);
}

static void test_tokenizer_gives_gpt2_ids_of_917_strings(void) {
    size_t bytes, lines = 0, wrong = 0;
    const Tokenizer *t = tok_gpt2();
    char *text = test_data("tokenizer/gpt2_vectors.jsonl", &bytes), key[16], *s;
    if (t == NULL || text == NULL) return;
    s = (char *)host_alloc(bytes);
    uint32_t *ids = (uint32_t *)host_alloc(bytes * sizeof *ids);
    Json j = json_open("gpt2_vectors.jsonl", text, bytes);
    for (; json_peek(&j) == '{'; lines++) { // {"text":"...","ids":[...]}
        json_enter(&j, '{');
        json_more(&j, '}');
        json_key(&j, key, sizeof key);
        size_t length = json_string(&j, s, bytes), n = 0;
        size_t count = tok_encode_copy(t, s, length, ids);
        json_more(&j, '}');
        json_key(&j, key, sizeof key);
        int same = 1;
        for (json_enter(&j, '['); json_more(&j, ']'); n++) {
            uint64_t id = json_count(&j);
            same &= n < count && ids[n] == id;
        }
        json_more(&j, '}');
        if (!same || n != count) { wrong++; printf("  differs: %s\n", s); }
    }
    expect(lines == 917 && wrong == 0, "%zu of %zu strings differ", wrong, lines);
    free(text);
    free(ids);
    free(s);
}
static void test_tokenizer_gives_llama_cpp_ids_of_46_strings(void) {
    static const char border[] = "\n__ggml_vocab_test__\n";
    size_t bytes, out_bytes, strings = 0;
    const Tokenizer *t = tok_gpt2();
    char *text = test_data("tokenizer/ggml-vocab-gpt-2.gguf.inp", &bytes);
    char *want = test_data("tokenizer/ggml-vocab-gpt-2.gguf.out", &out_bytes);
    if (t == NULL || text == NULL || want == NULL) return;
    uint32_t *ids = (uint32_t *)host_alloc(bytes * sizeof *ids);
    char *line = want;
    for (char *s = text, *end; (end = strstr(s, border)) != NULL; s = end + strlen(border)) {
        size_t count = tok_encode_copy(t, s, (size_t)(end - s), ids), n = 0;
        int same = 1;
        for (line += strspn(line, " "); *line != '\n'; n++, line += strspn(line, " ")) {
            uint64_t id = strtoull(line, &line, 10);
            same &= n < count && ids[n] == id;
        }
        expect(same && n == count, "string %zu: %zu ids, wanted %zu", strings, count, n);
        line++;
        strings++;
    }
    expect(strings == 46, "%zu strings", strings);
    free(text);
    free(want);
    free(ids);
}
// llm.c's script puts <|endoftext|> before each section, which ends in an empty line.
static void test_tokenizer_gives_llmc_ids_of_tinyshakespeare(void) {
    size_t bytes, val_bytes, train_bytes, count = 0;
    const Tokenizer *t = tok_gpt2();
    char *text = test_data("text/tinyshakespeare.txt", &bytes);
    char *val = test_data("llmc_bin/tiny_shakespeare_val.bin", &val_bytes);
    char *train = test_data("llmc_bin/tiny_shakespeare_train.bin", &train_bytes);
    if (t == NULL || text == NULL || val == NULL || train == NULL) return;
    uint32_t *ids = (uint32_t *)host_alloc(2 * bytes * sizeof *ids);
    for (char *s = text, *end; *s; s = end) {
        end = strstr(s, "\n\n") ? strstr(s, "\n\n") + 2 : text + bytes;
        ids[count++] = (uint32_t)t->end_of_text;
        count += tok_encode(t, s, (size_t)(end - s), ids + count);
    }
    expect(count == 338028, "%zu ids, llm.c has 338028", count);
    size_t wrong = 0;
    for (size_t i = 0; i < count && i < 338028; i++) {
        uint16_t id;
        memcpy(&id, i < 32768 ? val + 1024 + 2 * i : train + 1024 + 2 * (i - 32768), 2);
        wrong += id != ids[i];
    }
    expect(wrong == 0, "%zu ids differ", wrong);
    free(text);
    free(val);
    free(train);
    free(ids);
}
static void test_tokenizer_files_of_every_kind_agree(void) {
    static const char *const files[] = { "tokenizer/gpt2.tiktoken", "llmc_bin/gpt2_tokenizer.bin",
                                         "llmc_bin" };
    size_t bytes;
    const Tokenizer *t = tok_gpt2();
    char *text = test_data("text/tinyshakespeare.txt", &bytes);
    if (t == NULL || text == NULL) return;
    uint32_t *want = (uint32_t *)host_alloc(bytes * sizeof *want);
    uint32_t *got = (uint32_t *)host_alloc(bytes * sizeof *got);
    size_t count = tok_encode(t, text, bytes, want);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = data_file(files[i]);
        if (path == NULL) break;
        Tokenizer other = tok_load(path);
        expect(other.vocab_size == 50257 && other.end_of_text == 50256, "%s: %u tokens, end %d",
               path, other.vocab_size, other.end_of_text);
        expect(tok_encode(&other, text, bytes, got) == count &&
               !memcmp(want, got, count * sizeof *got), "%s: other ids", path);
        tok_free(&other);
        free(path);
    }
    free(text);
    free(want);
    free(got);
}
// The pattern, piece by piece; | is a border.
static void test_tokenizer_cuts_pieces_as_the_pattern_does(void) {
    static const char *const texts[] = {
        "I|'ve| they|'ll|'|RE| we|'d|'|S|'|", "a|'s|1| '|s| ''|s|!'|s|", "  | x|  |\n|y|\n\n | z|",
        "x|   ", " 12|ab| 3|.|5|", "a|\t|b|\t\t|",
        "a|\xc2\x85|b|\xc2\xa0|\xe3\x80\x80|c|", "a|\xef\xbb\xbf|b|", // U+FEFF is no White_Space
        "\xd0\x96\xe4\xb8\xad|\xd9\xa3\xe2\x85\xa7\xc2\xb2|\xcc\x81|", // letters, numbers, a mark
        "\xf0\x9f\x98\x80\xff\xc3|a|\xed\xa0\x80\xc0\x80\xf4\x90\x80\x80|", // not UTF-8: others
        "\xea\x9f\x8b|\xe0\xb2\x80|" }; // U+A7CB came with Unicode 16.0; U+0C80 is a letter
    Tokenizer t = tok_load("bytes");
    for (size_t i = 0; i + 1 < sizeof texts / sizeof *texts; i++) {
        char s[128];
        size_t count = 0, at = 0, piece;
        for (const char *c = texts[i]; *c; c++) if (*c != '|') s[count++] = *c;
        for (const char *c = texts[i]; at < count; at += piece, c += piece + 1) {
            piece = tok_piece(&t, s + at, count - at);
            expect(piece == strcspn(c, "|"), "text %zu, byte %zu: %zu bytes", i, at, piece);
        }
    }
    tok_free(&t);
}
static void test_tokenizer_tables_are_unicode_16(void) {
    Tokenizer t = tok_load("bytes");
    size_t ranges[4] = { 0 }, codes[4] = { 0 };
    for (size_t u = 0; u < TOK_CODE_POINTS; u++) {
        codes[t.class_of[u]]++;
        ranges[t.class_of[u]] += u == 0 || t.class_of[u] != t.class_of[u - 1];
    }
    expect(ranges[1] == 677 && ranges[2] == 144 && ranges[TOK_SPACE] == 10, "%zu, %zu, %zu ranges",
           ranges[1], ranges[2], ranges[TOK_SPACE]);
    expect(codes[1] == 141028 && codes[2] == 1911 && codes[TOK_SPACE] == 25, "%zu letters, %zu "
           "numbers, %zu spaces", codes[1], codes[2], codes[TOK_SPACE]);
    tok_free(&t);
}
static void test_utf8_is_read_strictly(void) {
    static const struct { const char *s; uint32_t u; size_t bytes; } good[] = {
        { "a", 'a', 1 }, { "\x7f", 0x7f, 1 }, { "\xc2\x80", 0x80, 2 }, { "\xdf\xbf", 0x7ff, 2 },
        { "\xe0\xa0\x80", 0x800, 3 }, { "\xed\x9f\xbf", 0xd7ff, 3 }, { "\xef\xbf\xbf", 0xffff, 3 },
        { "\xf0\x90\x80\x80", 0x10000, 4 }, { "\xf4\x8f\xbf\xbf", 0x10ffff, 4 } };
    static const char *const bad[] = { "\x80", "\xbf\xbf", "\xc0\x80", "\xc1\xbf", "\xc3", "\xc3(",
        "\xe0\x9f\xbf", "\xe4\xb8", "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf",
        "\xf0\x9f\x98", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf8\x90\x80\x80", "\xff" };
    uint32_t u;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        size_t bytes = utf8_get(&u, good[i].s, strlen(good[i].s));
        expect(bytes == good[i].bytes && u == good[i].u, "U+%04X: U+%04X", good[i].u, u);
        expect(utf8_get(&u, good[i].s, bytes - 1 + (bytes == 1)) == 1, "U+%04X cut", good[i].u);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect(utf8_get(&u, bad[i], strlen(bad[i])) == 1 && u == UINT32_MAX, "%zu: U+%04X", i, u);
}
// Byte pair encoding as it is defined, quadratic: the reference for tok_merge's heap.
static size_t merge_plainly(const Tokenizer *t, uint32_t *id, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) id[i] = t->id_of_byte[(uint8_t)s[i]];
    for (;;) {
        size_t best = 0;
        uint32_t least = TOK_NONE;
        for (size_t i = 0; i + 1 < n; i++) {
            uint32_t r = tok_pair(t, id[i], id[i + 1])->rank;
            if (r < least) { least = r; best = i; }
        }
        if (least == TOK_NONE) return n;
        id[best] = tok_pair(t, id[best], id[best + 1])->id;
        n--;
        for (size_t i = best + 1; i < n; i++) id[i] = id[i + 1];
    }
}
static void test_tokenizer_merges_as_the_definition_does(void) {
    static const char *const letters[] = { "a", "ab", "etaoin shrdlu", "\xd0\xb0\xd0\xb1\xd0\xb2" };
    const Tokenizer *t = tok_gpt2();
    if (t == NULL) return;
    for (int round = 0; round < 400; round++) {
        char s[600];
        uint32_t want[600], got[600];
        const char *set = letters[round % 4];
        size_t n = 1 + tok_draw(round < 300 ? 100 : 600);
        for (size_t i = 0; i < n; i++) s[i] = set[tok_draw((uint32_t)strlen(set))];
        size_t num_want = merge_plainly(t, want, s, n), num_got = tok_merge(t, got, s, n);
        expect(num_want == num_got && !memcmp(want, got, num_got * sizeof *got),
               "round %d, %zu bytes", round, n);
    }
}
static void test_tokenizer_returns_any_bytes(void) {
    const Tokenizer *t = tok_gpt2();
    Tokenizer bytes_only = tok_load("bytes");
    enum { MOST = 3000 };
    char text[MOST];
    uint32_t ids[MOST];
    for (int round = 0; round < 300; round++) {
        size_t bytes = tok_draw(round < 200 ? 40 : MOST);
        for (size_t i = 0; i < bytes; i++) text[i] = (char)(round % 3 ? tok_draw(256) :
                                                            0xc0 + tok_draw(0x40));
        size_t count = tok_encode_copy(&bytes_only, text, bytes, ids), same = count == bytes;
        for (size_t i = 0; i < count; i++) same &= ids[i] == (uint8_t)text[i];
        expect(same, "bytes: round %d", round);
        if (t == NULL) continue;
        count = tok_encode_copy(t, text, bytes, ids);
        expect(tok_is_text_again(t, ids, count, text, bytes), "round %d: %zu bytes", round, bytes);
    }
    tok_free(&bytes_only);
}
static void test_tokenizer_takes_end_of_text_in_a_text_as_text(void) {
    uint32_t ids[64];
    const Tokenizer *t = tok_gpt2();
    Tokenizer bytes_only = tok_load("bytes");
    expect(bytes_only.vocab_size == 257 && bytes_only.end_of_text == 256, "end %d",
           bytes_only.end_of_text);
    expect(tok_encode(&bytes_only, TOK_END, strlen(TOK_END), ids) == strlen(TOK_END), "bytes");
    tok_free(&bytes_only);
    if (t == NULL) return;
    size_t count = tok_encode(t, TOK_END, strlen(TOK_END), ids);
    expect(count == 7 && ids[0] == 27 && ids[6] == 29, "%zu ids", count);
}
static void test_tokenizer_saved_for_hugging_face_is_the_same(void) {
    static const char *const files[] = { "vocab.json", "merges.txt", "tokenizer.json" };
    static const char text[] = "It's \"quoted\" \\ \x01 42 caf\xc3\xa9 \xe4\xb8\xad\n\n  x"
                               "<|endoftext|>";
    const Tokenizer *gpt2 = tok_gpt2();
    Tokenizer t[2] = { tok_load("bytes"), gpt2 ? *gpt2 : tok_load("bytes") };
    for (int k = 0; k < 2; k++) {
        uint32_t want[sizeof text], got[sizeof text];
        size_t count = tok_encode(&t[k], text, sizeof text, want);
        Text saved[3];
        memset(saved, 0, sizeof saved);
        for (int i = 0; i < 3; i++) tok_text(&saved[i], &t[k], files[i], 1024);
        for (int way = 0; way < 2; way++) { // vocab.json and merges.txt; tokenizer.json
            Tokenizer again;
            memset(&again, 0, sizeof again);
            int first = way ? 2 : 0, needs_more = tok_parse(&again, files[first], saved[first].at,
                                                            saved[first].count);
            expect(needs_more == !way, "%s", files[first]);
            if (needs_more) tok_parse(&again, files[1], saved[1].at, saved[1].count);
            expect(again.vocab_size == t[k].vocab_size && again.end_of_text == t[k].end_of_text,
                   "%u tokens, end %d", again.vocab_size, again.end_of_text);
            expect(again.num_pairs == t[k].num_pairs, "%zu merges", again.num_pairs);
            expect(tok_encode(&again, text, sizeof text, got) == count &&
                   !memcmp(want, got, count * sizeof *got), "other ids, way %d", way);
            tok_free(&again);
        }
        for (int i = 0; i < 3; i++) free(saved[i].at);
    }
    tok_free(&t[0]);
    if (gpt2 == NULL) tok_free(&t[1]);
}
// A quadratic encoder takes 64 times as long for 8 times the text; n log n about 9 to 10 times.
static double tok_encode_ms(const Tokenizer *t, const char *text, size_t bytes, uint32_t *ids) {
    double best = INFINITY;
    for (int i = 0; i < 3; i++) { // of this thread's own time: the machine may be busy
        struct timespec from, to;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
        tok_encode(t, text, bytes, ids);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
        best = fmin(best, 1e3 * (double)(to.tv_sec - from.tv_sec) +
                          1e-6 * (double)(to.tv_nsec - from.tv_nsec));
    }
    return best;
}
static void test_tokenizer_time_does_not_explode_in_long_pieces(void) {
    const Tokenizer *t = tok_gpt2();
    if (t == NULL) return;
    enum { SMALL = 30000, LARGE = 8 * SMALL };
    char *text = (char *)host_alloc(LARGE);
    uint32_t *ids = (uint32_t *)host_alloc(LARGE * sizeof *ids);
    for (int kind = 0; kind < 3; kind++) { // one letter; all letters; no letters
        for (size_t i = 0; i < LARGE; i++)
            text[i] = (char)(kind == 0 ? 'a' : kind == 1 ? 'a' + tok_draw(26) : '!' + tok_draw(15));
        double small = tok_encode_ms(t, text, SMALL, ids);
        double large = tok_encode_ms(t, text, LARGE, ids);
        expect(large < 32 * small, "kind %d: %.1f ms, 8 times as much %.1f ms", kind, small, large);
    }
    free(text);
    free(ids);
}
static void test_tokenizer_is_shared_by_threads(void) {
    size_t bytes;
    const Tokenizer *t = tok_gpt2();
    char *text = test_data("text/tinyshakespeare.txt", &bytes);
    if (t == NULL || text == NULL) return;
    bytes = min_size(bytes, 200000);
    uint32_t *want = (uint32_t *)host_alloc(bytes * sizeof *want);
    size_t count = tok_encode(t, text, bytes, want);
    int wrong = 0;
    #pragma omp parallel for reduction(+ : wrong) num_threads(4)
    for (int i = 0; i < 8; i++) {
        uint32_t *got = (uint32_t *)host_alloc(bytes * sizeof *got);
        wrong += tok_encode(t, text, bytes, got) != count || memcmp(want, got, count * sizeof *got);
        free(got);
    }
    expect(wrong == 0, "%d of 8 differ", wrong);
    free(text);
    free(want);
}

// Refusals. Parses a text that must be refused with a line that contains `wanted`.
static void expect_refused(const char *wanted, const char *text, size_t bytes) {
    jmp_buf recover, *outer = die_recovers;
    Tokenizer t; // what a refused file has allocated is not freed: the program would end here
    memset(&t, 0, sizeof t);
    die_recovers = &recover;
    volatile int is_refused = 1;
    if (setjmp(recover) == 0) {
        tok_parse(&t, "bad", text, bytes);
        is_refused = 0;
    }
    die_recovers = outer;
    expect(is_refused, "\"%.60s\": loaded, wanted: %s", text, wanted);
    if (is_refused) expect(strstr(die_message, wanted) != NULL, "\"%.60s\": %s", text, die_message);
}
static Text tiny_json(const char *model, const char *vocab, const char *merges, const char *more) {
    Tokenizer bytes_only = tok_load("bytes");
    Text out = { NULL, 0, 0 }, bytes = { NULL, 0, 0 };
    tok_text(&bytes, &bytes_only, "vocab.json", 0);
    bytes.at[--bytes.count] = 0; // without the }
    text_add(&out, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},%s"
             "\"model\":{%s\"vocab\":%s%s},\"merges\":[%s]}}", more, model, bytes.at, vocab,
             merges);
    free(bytes.at);
    tok_free(&bytes_only);
    return out;
}
static void test_tokenizer_refuses_bad_files(void) {
    static const struct { const char *wanted, *text; } texts[] = {
        { "0 bytes", "" }, { "no end", "#version: 0.2\na b" }, { "a space between", "ab\n" },
        { "found 3", "a bc\n" }, { "same", "a b\na b\n" },
        { "same bytes", "a b\nab c\nb c\na bc\n" },
        { "a space between", "a b\n\n" }, { "wanted a token in base64", "IQ== 0\nIg==\n" },
        { "given twice", "IQ== 0\nIg== 0\n" }, { "same bytes", "IQ== 0\nIQ== 1\n" },
        { "wanted an id below", "IQ== 0\nIg== 70000\n" }, { "token 1 of 4", "IQ== 0\nIg== 2\n" },
        { "no token for byte", "IQ== 0\nIg== 1\n" }, { "wanted an id", "IQ== 0\n== 1\n" },
        { "JSON", "{\"a\":" }, { "JSON", "{\"a\":0" }, { "no token for byte 0", "{\"a\":0}" },
        { "after", "{\"a\":0} x" }, { "no pre_tokenizer", "{\"model\":{\"type\":\"BPE\"}}" },
        { "WordPiece", "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}" },
        { "Unigram", "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]}}" },
        { "Sequence", "{\"pre_tokenizer\":{\"type\":\"Sequence\"},\"model\":{}}" } };
    static const struct { const char *wanted, *model, *vocab, *merges, *more; } jsons[] = {
        { "normalizer", "", "", "", "\"normalizer\":{\"type\":\"NFC\"}," },
        { "byte_fallback", "\"byte_fallback\":true,", "", "", "" },
        { "ignore_merges", "\"ignore_merges\":true,", "", "", "" },
        { "dropout", "\"dropout\":0.1,", "", "", "" },
        { "end_of_word_suffix", "\"end_of_word_suffix\":\"</w>\",", "", "", "" },
        { "given twice", "", ",\"ab\":5", "", "" }, { "same bytes", "", ",\"a\":257", "", "" },
        { "257 of 259", "", ",\"ab\":258", "", "" },
        { "id below", "", ",\"ab\":99999999999", "", "" },
        { "whole number", "", ",\"ab\":-1", "", "" },
        { "makes no token", "", "", "\"a b\"", "" },
        { "space between", "", ",\"ab\":257", "\"ab\"", "" },
        { "a string", "", ",\"ab\":257", "[]", "" },
        { "a pair", "", ",\"ab\":257", "[\"a\",\"b\",\"c\"]", "" },
        { "found 1", "", ",\"ab\":257", "\"a b\",[\"a\",\"b\"]", "" },
        { "found 2 others", "", ",\"ab\":257,\"abc\":258,\"bc\":259",
          "\"a b\",\"b c\",\"a bc\"", "" },
        { "found 3", "", ",\"abc\":257", "\"ab c\"", "" } };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        expect_refused(texts[i].wanted, texts[i].text, strlen(texts[i].text));
    for (size_t i = 0; i < sizeof jsons / sizeof *jsons; i++) {
        Text json = tiny_json(jsons[i].model, jsons[i].vocab, jsons[i].merges, jsons[i].more);
        expect_refused(jsons[i].wanted, json.at, json.count);
        free(json.at);
    }
    Text good = tiny_json("", ",\"ab\":257,\"abc\":258", "\"a b\",[\"ab\",\"c\"]",
                          "\"added_tokens\":[{\"id\":259,\"content\":\"foo\"}],");
    Tokenizer t;
    memset(&t, 0, sizeof t);
    uint32_t ids[8];
    tok_parse(&t, "good", good.at, good.count);
    expect(tok_encode(&t, "abcab", 5, ids) == 2 && ids[0] == 258 && ids[1] == 257, "a good one");
    expect(tok_encode(&t, "foo", 3, ids) == 3 && ids[0] == 'f', "an added token in a text is text");
    for (size_t bytes = 0; bytes < good.count; bytes += 7) { // cut short anywhere
        char *cut = text_of("%.*s", (int)bytes, good.at);
        expect_refused("bad: ", cut, bytes);
        free(cut);
    }
    tok_free(&t);
    free(good.at);
}
static void test_tokenizer_refuses_a_cut_or_changed_llmc_file(void) {
    size_t bytes;
    char *text = test_data("llmc_bin/gpt2_tokenizer.bin", &bytes);
    if (text == NULL) return;
    static const size_t cuts[] = { 0, 3, 1023, 1024, 1025, 2000, 100000 };
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        char *cut = (char *)malloc(cuts[i] + 1);
        memcpy(cut, text, cuts[i]);
        cut[cuts[i]] = 0;
        expect_refused(cuts[i] == 0 ? "no vocab.bpe" : "cut short", cut, cuts[i]);
        free(cut);
    }
    expect_refused("cut short", text, bytes - 1);
    text[4] = 9;
    expect_refused("version 9", text, bytes);
    text[4] = 2;
    text[11] = 0x7f; // two billion tokens
    expect_refused("cut short", text, bytes);
    text[11] = 0;
    text[8]--;
    expect_refused("tokens end at", text, bytes);
    free(text);
}

// --- the list ---
static void test_spikes_are_told_from_noise(void) {
    double window[WINDOW], settled[WINDOW], rising[WINDOW];
    for (int i = 0; i < WINDOW; i++) {
        window[i] = 3 + (i % 2 ? 0.1 : -0.1); // mean 3, deviation 0.1
        settled[i] = 3 + (i % 2 ? 1e-6 : -1e-6);
        rising[i] = i;
    }
    expect(!is_spike(window, 500, 3.59, 6, 0), "spike?");
    expect(is_spike(window, 500, 3.61, 6, 0), "spike?");
    expect(!is_spike(window, 500, 0.1, 6, 0), "spike?"); // only upwards
    expect(!is_spike(window, 500, 1e6, 0, 0), "spike?"); // off
    expect(!is_spike(window, WINDOW - 1, 3.61, 6, 0), "spike?");
    expect(is_spike(window, WINDOW, 3.61, 6, 0), "spike?");
    expect(!is_spike(window, 16, 30.9, 6, 0) && is_spike(window, 16, 31.1, 6, 0), "spike?");
    expect(!is_spike(window, 15, 1e6, 6, 0), "spike?");
    expect(!is_spike(settled, 500, 3.17, 6, 0), "spike?"); // 6 %
    expect(is_spike(settled, 500, 3.19, 6, 0), "spike?");
    expect(!is_spike(rising, 500, 63.5 + 36.9 * 2, 6, 0), "spike?");
    expect(!is_spike(window, 500, 99, 6, 100) && is_spike(window, 500, 101, 6, 100), "spike?");
}

// Of the CPU alone: its own e^x, bf16 products beside fp32, threads, and what needs fp64.
#define TESTS_CPU(X) \
    X(test_exp_is_within_2_ulp) \
    X(test_embedding_backward_equals_differences) X(test_layernorm_backward_equals_differences) \
    X(test_matmul_backward_equals_differences) X(test_attention_backward_equals_differences) \
    X(test_classifier_gradient_equals_differences) X(test_model_gradients_equal_differences) \
    X(test_bf16_products_follow_fp32) X(test_gradients_do_not_depend_on_threads)
#define TESTS_CUDA(X) X(test_gelu_in_a_product_and_beside_it_agree) \
    X(test_bias_gradient_in_a_product_and_beside_it_at_many_shapes)
#define TESTS_BF16(X) X(test_weights_round_at_random_to_the_right_mean) \
    X(test_narrow_moments_follow_wide_ones)
#define TESTS(X) \
    X(test_gelu_matches_its_tanh_form) \
    X(test_embedding_adds_token_and_position) X(test_layernorm_forward_by_hand) \
    X(test_matmul_forward_at_awkward_shapes) X(test_matmul_backward_adds_or_assigns) \
    X(test_attention_forward_equals_plain_softmax) X(test_attention_forward_is_causal) \
    X(test_classifier_by_hand) X(test_adamw_by_hand) X(test_schedules_equal_their_closed_forms) \
    X(test_sum_squares_and_crc_by_hand) X(test_half_precision_values) \
    X(test_embedding_backward_adds_repeated_tokens_in_order) \
    X(test_layernorm_equals_sums_in_double) X(test_matmul_backward_equals_sums_in_double) \
    X(test_attention_backward_equals_sums_in_double) X(test_classifier_equals_sums_in_double) \
    X(test_adamw_at_any_count) \
    X(test_vectors_add_and_sum_at_any_count) \
    X(test_a_step_twice_gives_the_same_bits) \
    X(test_model_equals_pytorch) X(test_model_equals_larger_pytorch_dump) \
    X(test_initial_weights_equal_pytorch) X(test_golden_model) \
    X(test_parameter_count_of_gpt2) X(test_textbook_budgets) \
    X(test_counted_flops_backward_is_twice_forward) X(test_recompute_levels_give_the_same_bits) \
    X(test_accumulation_equals_the_large_batch) \
    X(test_first_gradient_overwrites_what_was_there) X(test_layout_does_not_depend_on_ranks) \
    X(test_shards_cover_every_element_once) X(test_micro_batches_are_added_pairwise) \
    X(test_head_in_chunks_equals_plain_loss) \
    X(test_plan_equals_what_is_allocated) X(test_cached_logits_equal_the_training_pass) \
    X(test_permute_is_a_permutation) X(test_an_epoch_uses_every_window_once) \
    X(test_sampling_keeps_to_top_k_and_top_p) X(test_spikes_are_told_from_noise) \
    X(test_json_reads_what_it_writes_and_refuses_the_rest) X(test_flags_accept_both_spellings) \
    X(test_tokenizer_gives_gpt2_ids_of_917_strings) \
    X(test_tokenizer_gives_llama_cpp_ids_of_46_strings) \
    X(test_tokenizer_gives_llmc_ids_of_tinyshakespeare) \
    X(test_tokenizer_files_of_every_kind_agree) \
    X(test_tokenizer_cuts_pieces_as_the_pattern_does) X(test_tokenizer_tables_are_unicode_16) \
    X(test_utf8_is_read_strictly) \
    X(test_tokenizer_merges_as_the_definition_does) X(test_tokenizer_returns_any_bytes) \
    X(test_tokenizer_takes_end_of_text_in_a_text_as_text) \
    X(test_tokenizer_saved_for_hugging_face_is_the_same) \
    X(test_tokenizer_time_does_not_explode_in_long_pieces) X(test_tokenizer_is_shared_by_threads) \
    X(test_tokenizer_refuses_bad_files) X(test_tokenizer_refuses_a_cut_or_changed_llmc_file)

static int num_passed = 0, num_failed = 0, num_skipped = 0;
static void run_test(const char *name, void (*test)(void)) {
    jmp_buf died; // by check(): this test has failed, the next one runs
    int before = failures;
    double start = now_ms();
    skip_reason = NULL;
    die_recovers = &died;
    if (setjmp(died) == 0) test();
    else expect(0, "%s", die_message);
    die_recovers = NULL;
    if (skip_reason != NULL) { printf("skip %s: %s\n", name, skip_reason); num_skipped++; return; }
    int is_good = failures == before;
    printf("%s %s %s (%.0f ms)\n", is_good ? "ok  " : "FAIL", PRECISION_NAME, name, now_ms()
           - start);
    num_passed += is_good;
    num_failed += !is_good;
}
#define RUN(name) if (is_wanted(#name, argc, argv)) run_test(#name, name);
static int is_wanted(const char *name, int argc, char **argv) {
    for (int i = 1; i < argc; i++) if (strstr(name, argv[i])) return 1;
    return argc < 2;
}
int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    dev_check();
    if (is_gpt_cuda) { TESTS_CUDA(RUN) } else { TESTS_CPU(RUN) }
    if (has_master && !is_fp16) { TESTS_BF16(RUN) }
    TESTS(RUN)
    printf("%d passed, %d failed, %d skipped\n", num_passed, num_failed, num_skipped);
    return num_failed > 0 || num_passed + num_skipped == 0;
}
