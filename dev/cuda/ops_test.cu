// ops_test.cu: every op of train_gpt.cu, and whole models, beside train_gpt.c in fp64 on random
// inputs that both can hold.
//   build   nvcc -arch=native -DDEV_MANAGED dev/cuda/ops_test.cu -o ops_test -lcublasLt
//           dev/emu/build.sh build/ops_test fast dev/cuda/ops_test.cu -DDEV_MANAGED      (no GPU)
//   prints  op, shape, error, bar; exits with 1 where an error is over its bar, or NaN
//   error   relative to the largest element; of a model's gradients that of the norm, by tensor
#include "both.h"

// --- tools ---
static int num_passed = 0, num_failed = 0;
static char shape[128]; // of the case in hand, for the report

// Bars of a result stored in floatX: half an ulp for each rounding, as far as the largest goes; of
// whole models: some times what was seen, and less than what a wrong gradient makes.
static void report(const char *what, double error, double bar) {
    int is_good = error <= bar;
    printf("%s %s %-22s %-40s error %.2e  bar %.2e\n", is_good ? "ok  " : "FAIL", PRECISION_NAME,
           what, shape, error, bar);
    num_passed += is_good;
    num_failed += !is_good;
}
#define SHAPE(...) snprintf(shape, sizeof shape, __VA_ARGS__)

static double random_at(uint64_t seed, size_t i) { return 2 * hash_uniform(seed, i) - 1; }
// The same numbers for both: at dev, and in double for the CPU.
template <class Type> struct Both {
    size_t count;
    Type *dev;
    double *cpu;
    Both(size_t count, uint64_t seed, double scale = 1, double offset = 0) : count(count) {
        dev = (Type *)dev_alloc(count * sizeof(Type), "a test");
        cpu = (double *)host_alloc(count * sizeof(double));
        for (size_t i = 0; i < count; i++) set(i, offset + scale * random_at(seed, i));
    }
    explicit Both(size_t count) : Both(count, 0, 0, NAN) {} // a result
    ~Both() { dev_free(dev); free(cpu); }
    Both(const Both &) = delete;
    void set(size_t i, double value) { put(&dev[i], value); cpu[i] = f32(dev[i]); }
    static void put(float *x, double value) { *x = (float)value; }
    static void put(__half *x, double value) { *x = __float2half_rn((float)value); }
    static void put(__nv_bfloat16 *x, double value) { *x = __float2bfloat16_rn((float)value); }
    void expect(const char *what, double bar, double scale = 0) {
        double worst = 0;
        for (size_t i = 0; i < count; i++) {
            double d = fabs(cpu[i] - (double)f32(dev[i]));
            if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
            scale = fmax(scale, fabs(cpu[i]));
        }
        report(what, scale > 0 ? worst / scale : worst, bar);
    }
};
typedef Both<floatX> X;
typedef Both<real> R;
static int32_t *make_tokens(size_t count, size_t V, uint64_t seed) { // one copy serves both
    int32_t *tokens = (int32_t *)dev_alloc(count * sizeof(int32_t), "a test");
    for (size_t i = 0; i < count; i++) tokens[i] = (int32_t)(hash64(seed * 1000 + i) % V);
    return tokens;
}
static void scratch(size_t B, size_t T, size_t C, size_t NH, size_t Vp) {
    ops_init(B, T, C, NH, Vp);
    cpu::ops_init(B, T, C, NH, Vp);
}
static void scratch_free(void) {
    ops_free();
    cpu::ops_free();
}

// --- the ops ---
static void embedding_case(size_t B, size_t T, size_t C, size_t V) {
    size_t maxT = T + 5, Vp = round_up(V, 128), N = B * T;
    SHAPE("B %zu T %zu C %zu V %zu", B, T, C, V);
    scratch(B, T, C, 1, Vp);
    X wte(Vp * C, 1), wpe(maxT * C, 2), out(N * C), dout(N * C, 3);
    R dwte(Vp * C, 4), dwpe(maxT * C);
    int32_t *tokens = make_tokens(N, V, 5);
    embedding_forward(out.dev, tokens, wte.dev, wpe.dev, B, T, C, 3);
    cpu::embedding_forward(out.cpu, tokens, wte.cpu, wpe.cpu, B, T, C, 3);
    out.expect("embedding_forward", stored);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        embedding_backward(dwte.dev, dwpe.dev, dout.dev, tokens, B, T, C, maxT, accumulate);
        cpu::embedding_backward(dwte.cpu, dwpe.cpu, dout.cpu, tokens, B, T, C, maxT, accumulate);
        dwte.expect("embedding_backward wte", 2 * unit * sqrt((double)N));
        dwpe.expect("embedding_backward wpe", 4 * unit * sqrt((double)B));
    }
    dev_free(tokens);
    scratch_free();
}
static void layernorm_case(size_t N, size_t C) {
    SHAPE("N %zu C %zu", N, C);
    scratch(1, N, C, 1, 0);
    X inp(N * C, 1, 1, 0.5), weight(C, 2, 0.5, 1), bias(C, 3), out(N * C), dout(N * C, 4);
    X dinp(N * C, 5);
    R mean(N), rstd(N), dw(C), db(C);
    layernorm_forward(out.dev, mean.dev, rstd.dev, inp.dev, weight.dev, bias.dev, N, C);
    cpu::layernorm_forward(out.cpu, mean.cpu, rstd.cpu, inp.cpu, weight.cpu, bias.cpu, N, C);
    out.expect("layernorm_forward", stored + 32 * unit);
    mean.expect("layernorm_forward mean", 8 * unit, 1);
    rstd.expect("layernorm_forward rstd", 16 * unit);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        layernorm_backward(dinp.dev, dw.dev, db.dev, dout.dev, inp.dev, mean.dev, rstd.dev,
                           weight.dev, N, C, accumulate);
        cpu::layernorm_backward(dinp.cpu, dw.cpu, db.cpu, dout.cpu, inp.cpu, mean.cpu, rstd.cpu,
                                weight.cpu, N, C, accumulate);
        dinp.expect("layernorm_backward", 2 * stored + 64 * unit);
        dw.expect("layernorm_backward w", 32 * unit, sqrt((double)N));
        db.expect("layernorm_backward b", 32 * unit, sqrt((double)N));
    }
    scratch_free();
}
static void matmul_case(size_t N, size_t C, size_t OC) {
    scratch(1, N, max_size(C, OC), 1, 0);
    X inp(N * C, 1), w(OC * C, 2), bias(OC, 3), residual(N * OC, 4), pre_inp(N * C, 5, 3);
    X dout(N * OC, 6);
    double sum = 4 * unit * sqrt((double)C) + 16 * unit, dsum = 4 * unit * sqrt((double)OC)
        + 16 * unit;
    for (int kind = 0; kind < 9; kind++) { // 4, 5, 8: with gelu; 8: in the product
        int has_bias = kind & 1, has_residual = kind >> 1 & 1, has_gelu = kind >= 4;
        int was = matmul_fuses_gelu;
        double approx = kind == 8 ? 0x1p-11 : 0; // tanh.approx of the GPU
        if (kind == 6 || kind == 7) continue;    // not both gelu and residual
        matmul_fuses_gelu = kind == 8;
        SHAPE("N %zu C %zu OC %zu kind %d", N, C, OC, kind);
        X out(N * OC), pre(N * OC), dinp(N * C);
        R dw(OC * C), db(OC);
        matmul_forward(out.dev, has_gelu ? pre.dev : NULL, inp.dev, w.dev,
                       has_bias ? bias.dev : NULL, has_residual ? residual.dev : NULL, N, C, OC);
        cpu::matmul_forward(out.cpu, has_gelu ? pre.cpu : NULL, inp.cpu, w.cpu, has_bias ? bias.cpu
                            : NULL, has_residual ? residual.cpu : NULL, N, C, OC);
        out.expect("matmul_forward", (has_gelu ? 2.5 : 1) * stored + sum + approx, 1);
        if (has_gelu) pre.expect("matmul_forward pre", stored + sum, 1);
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            matmul_backward(dinp.dev, dw.dev, has_bias ? db.dev : NULL, dout.dev, inp.dev, w.dev,
                            has_gelu ? pre_inp.dev : NULL, N, C, OC, accumulate);
            cpu::matmul_backward(dinp.cpu, dw.cpu, has_bias ? db.cpu : NULL, dout.cpu, inp.cpu,
                                 w.cpu, has_gelu ? pre_inp.cpu : NULL, N, C, OC, accumulate);
            double bar = 4 * unit * sqrt((double)N) + 16 * unit;
            dinp.expect("matmul_backward", (has_gelu ? 2.5 : 1) * stored + dsum + 2 * approx, 1);
            dw.expect("matmul_backward w", bar, 1);
            if (has_bias) db.expect("matmul_backward b", bar, 1);
        }
        matmul_fuses_gelu = was;
    }
    scratch_free();
}
// The gradient of the widest bias, 4 C: its slices must leave alone what lies behind their scratch.
static void column_sums_case(size_t N, size_t C) {
    size_t OC = 4 * C;
    SHAPE("N %zu OC %zu", N, OC);
    scratch(1, N, C, 1, 128);
    X dout(N * OC, 1);
    R db(OC);
    int changed = 0;
    for (size_t i = 0; i < first_count; i++) first_scratch[i] = (int32_t)i;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        column_sums(db.dev, NULL, dout.dev, NULL, NULL, NULL, N, OC, accumulate);
        for (size_t i = 0; i < OC; i++) {
            double sum = 0;
            for (size_t n = 0; n < N; n++) sum += dout.cpu[n * OC + i];
            db.cpu[i] = (1 + accumulate) * sum;
        }
        db.expect("column_sums", 32 * unit, sqrt((double)N));
    }
    for (size_t i = 0; i < first_count; i++) changed += first_scratch[i] != (int32_t)i;
    report("column_sums scratch", changed, 0);
    scratch_free();
}
static void attention_case(size_t B, size_t T, size_t NH, size_t HS) {
    size_t C = NH * HS, N = B * T;
    SHAPE("B %zu T %zu NH %zu HS %zu", B, T, NH, HS);
    scratch(B, T, C, NH, 0);
    X qkv(N * 3 * C, 1, 2), out(N * C), dout(N * C, 2), dqkv(N * 3 * C);
    R lse(N * NH);
    attention_forward(out.dev, lse.dev, qkv.dev, B, T, C, NH);
    cpu::attention_forward(out.cpu, lse.cpu, qkv.cpu, B, T, C, NH);
    double scores = 64 * unit * sqrt((double)HS); // up to 4 sqrt(HS)
    double rounded = sizeof(floatX) == 2 ? stored : unit;
    out.expect("attention_forward", 2 * rounded + scores);
    lse.expect("attention_forward lse", scores, 1);
    attention_backward(dqkv.dev, dout.dev, out.dev, lse.dev, qkv.dev, B, T, C, NH);
    cpu::attention_backward(dqkv.cpu, dout.cpu, out.cpu, lse.cpu, qkv.cpu, B, T, C, NH);
    dqkv.expect("attention_backward", 3 * rounded + scores);
    X keys(N * C), values(N * C), cached(N * C);
    for (size_t n = 0, rows; n < T; n += rows) { // the first sequence, in two pieces
        rows = n == 0 ? div_up(T, 3) : T - n;
        attention_cached(cached.dev + n * C, keys.dev, values.dev, qkv.dev + n * 3 * C, rows, n, C,
                         NH);
        cpu::attention_cached(cached.cpu + n * C, keys.cpu, values.cpu, qkv.cpu + n * 3 * C, rows,
                              n, C, NH);
    }
    cached.count = keys.count = values.count = T * C;
    cached.expect("attention_cached", 2 * rounded + scores);
    keys.expect("attention_cached keys", 0);
    values.expect("attention_cached values", 0);
    scratch_free();
}
static void gelu_case(size_t count) {
    SHAPE("count %zu", count);
    X inp(count, 1, 6), out(count), dinp(count, 2);
    double *want = (double *)host_alloc(count * sizeof(double));
    for (size_t i = 0; i < count; i++) want[i] = dinp.cpu[i] * cpu::gelu_slope(inp.cpu[i]);
    gelu_forward(out.dev, inp.dev, count);
    cpu::gelu_forward(out.cpu, inp.cpu, count);
    out.expect("gelu_forward", stored + 8 * unit);
    gelu_backward(dinp.dev, inp.dev, count);
    memcpy(dinp.cpu, want, count * sizeof(double));
    dinp.expect("gelu_backward", stored + 64 * unit);
    free(want);
}
static void classifier_case(size_t N, size_t V) {
    size_t Vp = round_up(V, 128);
    SHAPE("N %zu V %zu", N, V);
    X logits(N * Vp, 1, 5);
    R losses(N);
    int32_t *tokens = make_tokens(N, V, 5);
    classifier_forward_backward(losses.dev, logits.dev, tokens, 0.25f, N, V, Vp);
    cpu::classifier_forward_backward(losses.cpu, logits.cpu, tokens, 0.25, N, V, Vp);
    losses.expect("classifier losses", 16 * unit, 1);
    logits.expect("classifier gradient", stored + 32 * unit);
    dev_free(tokens);
}
static void adamw_case(size_t count) {
    SHAPE("count %zu", count);
    X w(count, 1);
    R master(count, 2), m(count, 3), v(count, 4, 0.5, 1), g(count, 5);
    AdamW h = { 0.5f, 0.75f, 0.875f, 1e-8f, 0.0625f, 2, 0.875f };
    cpu::AdamW same = { 0.5, 0.75, 0.875, 1e-8f, 0.0625, 2, 0.875 };
    adamw_update(w.dev, has_master ? master.dev : NULL, m.dev, v.dev, g.dev, count, h);
    cpu::adamw_update(w.cpu, has_master ? master.cpu : NULL, m.cpu, v.cpu, g.cpu, count, same);
    w.expect("adamw_update w", stored + 8 * unit, 1);
    if (has_master) master.expect("adamw_update master", 8 * unit, 1);
    m.expect("adamw_update m", 8 * unit, 1);
    v.expect("adamw_update v", 8 * unit, 1);
}
static void sums_case(size_t parts, size_t step) {
    size_t count = parts * step;
    SHAPE("%zu parts of %zu", parts, step);
    R x(count, 1), y(count, 2);
    double *sums = (double *)dev_alloc((parts + 1) * sizeof(double), "a test"), *want
        = (double *)host_alloc((parts + 1) * sizeof(double)), worst = 0;
    sum_squares(sums, x.dev, parts, step);
    cpu::sum_squares(want, x.cpu, parts, step);
    sum_values(sums + parts, x.dev, count);
    cpu::sum_values(want + parts, x.cpu, count);
    for (size_t i = 0; i <= parts; i++) worst = fmax(worst, fabs(sums[i] - want[i]));
    report("sums", isfinite(sums[0]) ? worst : NAN, 1e-12 * (double)count);
    vector_add(y.dev, x.dev, count);
    cpu::vector_add(y.cpu, x.cpu, count);
    y.expect("vector_add", unit);
    dev_free(sums);
    free(want);
}

// A card's peak is that of its own name, not of a name within it.
static void peak_case(const char *name, double tera) {
    SHAPE("%s", name);
    snprintf(device.name, sizeof device.name, "%s", name);
    double got = 1e-12 * dev_peak_flops();
    report("peak", sizeof(floatX) == 4 || got == tera || (isnan(got) && isnan(tera)) ? 0 : got, 0);
}

// --- whole models ---
template <class M> void model_make(M *m, const Config &c, size_t B, size_t T) {
    memset(m, 0, sizeof *m);
    memcpy(&m->config, &c, sizeof c); // the same text declares both
    m->B = B;
    m->T = T;
    m->is_trained = 1;
}
// Relative difference in norm, of the tensor where it is largest.
static double gradients_difference(const Model *a, const cpu::Model *b) {
    double worst = 0;
    for (size_t bucket = 0; bucket < a->layout.num_buckets; bucket++)
        for (int i = 0; i < NUM_PARAMS; i++) {
            const ParamInfo *p = &a->layout.params[i];
            if (p->scope != bucket_scope(&a->layout, bucket)) continue;
            size_t at = bucket_start(&a->layout, bucket) + p->offset;
            double squares = 0, norm = 0;
            for (size_t k = at; k < at + p->rows * p->cols; k++) {
                squares += pow((double)a->grads[k] - b->grads[k], 2);
                norm += pow(b->grads[k], 2);
            }
            double d = sqrt(squares / norm);
            if (!(d <= worst)) worst = d;
        }
    return worst;
}
static void weights_draw(Model *a, cpu::Model *b) {
    const Layout *y = &a->layout;
    for (size_t bucket = 0; bucket < y->num_buckets; bucket++)
        for (int i = 0; i < NUM_PARAMS; i++) {
            const ParamInfo *p = &y->params[i];
            if (p->scope != bucket_scope(y, bucket)) continue;
            size_t at = bucket_start(y, bucket) + p->offset, count = p->file_rows * p->cols;
            for (size_t k = 0; k < count; k++) {
                double value = 0.1 * random_at(bucket * 100 + (size_t)i, k);
                a->weights[at + k] = fX((float)(value + (p->init == INIT_ONE)));
                b->weights[at + k] = (double)f32(a->weights[at + k]);
                if (has_master) a->master[at + k] = f32(a->weights[at + k]);
            }
        }
}
static void model_case(size_t B, size_t T, size_t L, size_t NH, size_t C, size_t V) {
    Config c = { L, NH, C, T + 1, V, 0 };
    Model a;
    cpu::Model b;
    char *argv[] = { (char *)"t" };
    Flags f = flags_parse(1, argv);
    cpu::Flags f64 = cpu::flags_parse(1, argv);
    SHAPE("B %zu T %zu L %zu NH %zu C %zu V %zu", B, T, L, NH, C, V);
    config_check(&c, EXIT_INTERNAL, "test");
    model_make(&a, c, B, T);
    model_make(&b, c, B, T);
    gpt_alloc(&a);
    cpu::gpt_alloc(&b);
    weights_draw(&a, &b);
    double loss_error = 0, gradients = 0, scale = 1 / (double)(B * T);
    for (uint64_t step = 0; step < 10; step++) {
        for (size_t i = 0; i < 2 * B * T; i++)
            a.tokens[i] = b.tokens[i] = (int32_t)(hash64(step % 3 * 1000 + i) % V);
        gpt_forward(&a, a.tokens, B, T, NO_CACHE);
        gpt_head(&a, a.tokens + B * T, B * T, (real)scale, 0);
        gpt_backward(&a, a.tokens, B, T, 0);
        cpu::gpt_forward(&b, b.tokens, B, T, cpu::NO_CACHE);
        cpu::gpt_head(&b, b.tokens + B * T, B * T, scale, 0);
        cpu::gpt_backward(&b, b.tokens, B, T, 0);
        double d = fabs(gpt_loss(&a, B * T) - cpu::gpt_loss(&b, B * T)) * scale;
        if (!(d <= loss_error)) loss_error = isnan(d) ? INFINITY : d;
        if (step == 0) report("model loss", loss_error, has_master ? stored / 2 : 2e-6);
        if (step == 0) gradients = gradients_difference(&a, &b);
        gpt_update(&a, &f, 1e-3, gpt_grad_norm(&a, NULL), step + 1);
        cpu::gpt_update(&b, &f64, 1e-3, cpu::gpt_grad_norm(&b, NULL), step + 1);
    }
    report("model gradients", gradients, has_master ? 4 * stored : 1e-5);
    report("model 10 losses", loss_error, has_master ? 5 * stored : 1e-5);
    gpt_free(&a);
    cpu::gpt_free(&b);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    dev_check();
    cpu::dev_check();
    embedding_case(1, 1, 8, 65);
    embedding_case(3, 65, 48, 66);
    embedding_case(2, 300, 776, 5);
    embedding_case(2, 650, 8, 2);
    embedding_case(1, 700, 8, 1);
    layernorm_case(1, 8);
    layernorm_case(65, 48);
    layernorm_case(7, 1032);
    layernorm_case(600, 264);
    layernorm_case(1100, 24);
    layernorm_case(9, 2056);
    matmul_case(1, 8, 8);
    matmul_case(7, 48, 144);
    matmul_case(130, 264, 72);
    matmul_case(600, 8, 24);
    setenv("EMU_REFUSE_EPILOGUES", "1", 1); // cuBLASLt may offer a product, and then refuse it
    matmul_case(7, 48, 144);
    unsetenv("EMU_REFUSE_EPILOGUES");
    column_sums_case(1024, 256);
    column_sums_case(1100, 8);
    const size_t heads[][4] = { { 1, 1, 1, 48 }, { 3, 65, 3, 16 }, { 1, 65, 1, 96 },
        { 1, 65, 1, 192 }, { 2, 33, 8, 5 }, { 1, 200, 3, 32 }, { 1, 1, 3, 64 }, { 3, 65, 3, 64 },
        { 1, 200, 1, 64 }, { 1, 130, 2, 128 }, { 1, 40, 1, 256 } };
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        attention_case(heads[i][0], heads[i][1], heads[i][2], heads[i][3]);
    gelu_case(8);
    gelu_case(8 * 777);
    const size_t sizes[] = { 1, 65, 66, 100, 257, 50257 };
    for (int i = 0; i < 6; i++) classifier_case(3, sizes[i]);
    const size_t counts[] = { 1, 7, 8, 9, 16389 };
    for (int i = 0; i < 5; i++) adamw_case(counts[i]);
    sums_case(1, 1);
    sums_case(4, 250);
    sums_case(3, 2049);
    model_case(1, 1, 2, 1, 48, 65);
    model_case(3, 65, 1, 3, 48, 66);
    model_case(1, 65, 2, 1, 96, 100);
    model_case(1, 200, 1, 3, 96, 257);
    model_case(3, 65, 1, 3, 192, 257);
    model_case(1, 200, 1, 3, 192, 66);
    peak_case("NVIDIA H200", 989.4);
    peak_case("NVIDIA H100 80GB HBM3", 989.4);
    peak_case("NVIDIA H100 PCIe", 756);
    peak_case("NVIDIA A100-SXM4-80GB", 312);
    peak_case("A100-PCIE-40GB", 312);
    peak_case("NVIDIA GB200", 2500);
    peak_case("NVIDIA A40", 149.7);
    peak_case("NVIDIA L4", 121);
    peak_case("NVIDIA RTX A4000", NAN);
    peak_case("NVIDIA A10G", NAN);
    printf("%d passed, %d failed, 0 skipped\n", num_passed, num_failed);
    return num_failed > 0;
}
