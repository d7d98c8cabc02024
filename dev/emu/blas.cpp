// blas.cpp: cuBLAS and cuBLASLt as one plain matrix product with float accumulation.
//
// Matrices are column-major, as in BLAS. What the real libraries refuse is refused here (shapes
// that do not fit, pointers not 16-byte aligned), and what we do not know is refused too.
// Every operand must lie inside one device allocation; the race build also reports inputs that
// nobody wrote. Speed: about 20 GFLOP/s on one core, enough for tests.
//
// Contents:  1 elements   2 the product   3 cuBLAS   4 cuBLASLt
#include "engine.h"
#include <cublas_v2.h>
#include <cublasLt.h>
#include <cstdio>

using namespace emu;
struct cublasContext { cudaStream_t stream = nullptr; };
struct cublasLtContext {};

namespace {
// === 1. Elements ===============================================================================
bool is_known(cudaDataType t) { return t == CUDA_R_32F || t == CUDA_R_16BF || t == CUDA_R_16F; }
size_t size_of(cudaDataType t) { return t == CUDA_R_32F ? 4 : 2; }
float load(const void* p, size_t i, cudaDataType t) {
    if (t == CUDA_R_32F) return ((const float*)p)[i];
    if (t == CUDA_R_16BF) return __bfloat162float(((const __nv_bfloat16*)p)[i]);
    return __half2float(((const __half*)p)[i]);
}
void store(void* p, size_t i, cudaDataType t, float v) {
    if (t == CUDA_R_32F) ((float*)p)[i] = v;
    else if (t == CUDA_R_16BF) ((__nv_bfloat16*)p)[i] = __float2bfloat16_rn(v);
    else ((__half*)p)[i] = __float2half_rn(v);
}

// A matrix in memory: rows x cols with ld elements from one column to the next.
struct Matrix {
    void* p;
    cudaDataType type;
    long rows, cols, ld;
    bool transposed;                          // it stands for its transpose
    float at(long i, long j) const {
        return load(p, transposed ? j + i * ld : i + j * ld, type);
    }
    Matrix moved(long elements) const {
        Matrix m = *this;
        m.p = (char*)p + elements * (long)size_of(type);
        return m;
    }
    void check(const char* name, bool is_read) const {
        if (!rows || !cols) return;
        check_device_range(name, p, ((cols - 1) * ld + rows) * size_of(type));
        for (long j = 0; j < cols && is_read; j++)
            check_read((char*)p + j * ld * size_of(type), rows * size_of(type));
    }
};

// What cuBLASLt does to the result: a sum of these, as the bits of cublasLtEpilogue_t have it.
enum { ADD_BIAS = 4, BIAS_GRADIENT = 16, GELU = 32, DGELU = 64, AUX = 128, BGRAD_A = 256,
       BGRAD_B = 512, KNOWN = 1 | 4 | 16 | 32 | 64 | 128 | 256 | 512 };
constexpr cudaDataType AS_RESULT = (cudaDataType)-1;
struct Epilogue {
    int kind = CUBLASLT_EPILOGUE_DEFAULT;
    void* bias = nullptr;                     // added, or the bias gradient that is written
    cudaDataType bias_type = AS_RESULT;
    void* aux = nullptr;                      // GELU writes its input there, DGELU reads it
    long aux_ld = 0;
    bool has(int bit) const { return kind & bit; }
};

// gelu(x) = x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3)
constexpr float GELU_SCALE = 0.7978845608f, GELU_CUBE = 0.044715f;
float gelu(float x) { return 0.5f * x * (1 + tanhf(GELU_SCALE * (x + GELU_CUBE * x * x * x))); }
float gelu_slope(float x) {
    float t = tanhf(GELU_SCALE * (x + GELU_CUBE * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * GELU_SCALE * (1 + 3 * GELU_CUBE * x * x);
}

// === 2. The product ============================================================================
// D (m,n) = epilogue(alpha * A (m,k) * B (k,n) + beta * C (m,n))
struct Product {
    long m, n, k;
    float alpha, beta;
    Matrix A, B, C, D;
    Epilogue e;

    void check() const {
        A.check("GEMM operand A", true);
        B.check("GEMM operand B", true);
        C.check("GEMM operand C", beta != 0);
        D.check("GEMM result", false);
    }

    // One element of the result, column j: add, activate, keep what backward needs.
    float finish(float sum, long i, long j) const {
        float v = alpha * sum;
        if (beta != 0) v += beta * C.at(i, j);
        if (e.has(ADD_BIAS)) v += load(e.bias, i, e.bias_type);
        size_t at = i + j * e.aux_ld;
        if (e.has(AUX) && !e.has(DGELU)) store(e.aux, at, D.type, v);
        if (e.has(GELU)) v = gelu(v);
        if (e.has(DGELU)) v *= gelu_slope(load(e.aux, at, D.type));
        return v;
    }

    void run() const {
        HostAccess open;
        check();
        std::vector<float> a(m * k), sum(m), gradient(e.has(BGRAD_B) ? n : m);
        for (long p = 0; p < k; p++)
            for (long i = 0; i < m; i++) a[i + p * m] = A.at(i, p);
        for (long j = 0; j < n; j++) {
            std::fill(sum.begin(), sum.end(), 0.0f);
            for (long p = 0; p < k; p++) {                  // axpy: the compiler vectorises this
                float b = B.at(p, j);
                const float* column = &a[p * m];
                for (long i = 0; i < m; i++) sum[i] += column[i] * b;
                if (e.has(BGRAD_B)) gradient[j] += b;
            }
            for (long i = 0; i < m; i++) {
                float v = finish(sum[i], i, j);
                if (e.has(BIAS_GRADIENT)) gradient[i] += v;
                store(D.p, i + j * D.ld, D.type, v);
            }
            mark_written((char*)D.p + j * D.ld * size_of(D.type), m * size_of(D.type));
            if (e.has(AUX) && !e.has(DGELU))
                mark_written((char*)e.aux + j * e.aux_ld * size_of(D.type), m * size_of(D.type));
        }
        for (long p = 0; p < k && e.has(BGRAD_A); p++)
            for (long i = 0; i < m; i++) gradient[i] += a[i + p * m];
        if (!e.has(BIAS_GRADIENT | BGRAD_A | BGRAD_B)) return;
        for (size_t i = 0; i < gradient.size(); i++) store(e.bias, i, e.bias_type, gradient[i]);
        mark_written(e.bias, gradient.size() * size_of(e.bias_type));
    }
};

cublasStatus_t not_supported(const char* call, long value) {
    fprintf(stderr, "emu: %s(%ld) is not emulated\n", call, value);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}
} // namespace

// === 3. cuBLAS =================================================================================
#define OPS cublasOperation_t ta, cublasOperation_t tb
#define SIZES int m, int n, int k
extern "C" {
cublasStatus_t cublasCreate_v2(cublasHandle_t* h) {
    *h = new cublasContext;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t h) { delete h; return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t s) {
    h->stream = s;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) {
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, OPS, SIZES, const void* alpha,
        const void* A, cudaDataType at, int lda, long long sa,
        const void* B, cudaDataType bt, int ldb, long long sb, const void* beta,
        void* C, cudaDataType ct, int ldc, long long sc, int batch, cublasComputeType_t compute,
        cublasGemmAlgo_t) {
    if (m < 0 || n < 0 || k < 0 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_known(at) || !is_known(bt) || !is_known(ct))
        return not_supported("cublasGemm type", at);
    if (compute == CUBLAS_COMPUTE_16F) return not_supported("cublasGemm compute type", compute);
    if (!m || !n) return CUBLAS_STATUS_SUCCESS;
    Matrix a{(void*)A, at, ta ? k : m, ta ? m : k, lda, ta != 0};
    Matrix b{(void*)B, bt, tb ? n : k, tb ? k : n, ldb, tb != 0};
    Matrix c{C, ct, m, n, ldc, false};
    Product p{m, n, k, *(const float*)alpha, *(const float*)beta, a, b, c, c, {}};
    enqueue(h->stream, "cublasGemm", [=] {
        for (int i = 0; i < batch; i++) {
            Product one = p;
            one.A = p.A.moved(i * sa), one.B = p.B.moved(i * sb), one.C = one.D = p.C.moved(i * sc);
            one.run();
        }
    });
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGemmEx(cublasHandle_t h, OPS, SIZES, const void* alpha, const void* A,
        cudaDataType at, int lda, const void* B, cudaDataType bt, int ldb, const void* beta,
        void* C, cudaDataType ct, int ldc, cublasComputeType_t compute, cublasGemmAlgo_t algo) {
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, A, at, lda, 0, B, bt, ldb, 0, beta,
                                      C, ct, ldc, 0, 1, compute, algo);
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t h, OPS, SIZES, const float* alpha,
        const float* A, int lda, long long sa, const float* B, int ldb, long long sb,
        const float* beta, float* C, int ldc, long long sc, int batch) {
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, A, CUDA_R_32F, lda, sa,
                                      B, CUDA_R_32F, ldb, sb, beta, C, CUDA_R_32F, ldc, sc, batch,
                                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
cublasStatus_t cublasSgemm_v2(cublasHandle_t h, OPS, SIZES, const float* alpha, const float* A,
        int lda, const float* B, int ldb, const float* beta, float* C, int ldc) {
    return cublasSgemmStridedBatched(h, ta, tb, m, n, k, alpha, A, lda, 0, B, ldb, 0, beta,
                                     C, ldc, 0, 1);
}
}

// === 4. cuBLASLt ===============================================================================
namespace {
struct Descriptor { int ta = 0, tb = 0; Epilogue e; };      // behind the opaque handles
struct Layout { cudaDataType type; uint64_t rows, cols; int64_t ld; int batch; int64_t stride; };

// Fills in the sizes; false when the matrices do not fit together.
bool fits(const Descriptor& d, const Layout& a, const Layout& b, const Layout& c, Product& p) {
    p.m = d.ta ? a.cols : a.rows, p.k = d.ta ? a.rows : a.cols, p.n = d.tb ? b.rows : b.cols;
    long k = d.tb ? b.cols : b.rows;
    for (const Layout* l : {&a, &b, &c})
        if (!is_known(l->type) || l->ld < (long)l->rows || l->batch != c.batch) return false;
    return k == p.k && (long)c.rows == p.m && (long)c.cols == p.n;
}
Matrix matrix(const void* p, const Layout& l, bool transposed) {
    return {(void*)p, l.type, (long)l.rows, (long)l.cols, l.ld, transposed};
}
} // namespace

extern "C" {
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "an error of the emulated cuBLASLt";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* h) {
    *h = new cublasLtContext;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { delete h; return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    if (scale != CUDA_R_32F) return not_supported("cublasLtMatmulDescCreate: scale type", scale);
    if (compute == CUBLAS_COMPUTE_16F) return not_supported("cublasLt compute type", compute);
    *d = (cublasLtMatmulDesc_t) new Descriptor;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
    delete (Descriptor*)d;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
        cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes) {
    Descriptor* d = (Descriptor*)desc;
    int i = 0;
    memcpy(&i, value, std::min(bytes, sizeof i));
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: d->ta = i; break;
    case CUBLASLT_MATMUL_DESC_TRANSB: d->tb = i; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        if (i & ~KNOWN) return not_supported("cublasLt epilogue", i);
        d->e.kind = i;
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: memcpy(&d->e.bias, value, sizeof(void*)); break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: d->e.bias_type = (cudaDataType)i; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: memcpy(&d->e.aux, value, sizeof(void*)); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: memcpy(&d->e.aux_ld, value, sizeof(long)); break;
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE: case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        if (i) return not_supported("cublasLt scale type or pointer mode", i);  // 0: float, host
        break;
    default: return not_supported("cublasLtMatmulDescSetAttribute", attribute);
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType t, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    *l = (cublasLtMatrixLayout_t) new Layout{t, rows, cols, ld, 1, 0};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
    delete (Layout*)l;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
        cublasLtMatrixLayoutAttribute_t attribute, const void* value, size_t) {
    Layout* l = (Layout*)layout;
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: memcpy(&l->batch, value, sizeof(int)); break;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: memcpy(&l->stride, value, 8); break;
    default: return not_supported("cublasLtMatrixLayoutSetAttribute", attribute);
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) {
    *p = (cublasLtMatmulPreference_t)malloc(sizeof **p);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
        cublasLtMatmulPreferenceAttributes_t, const void*, size_t) {
    return CUBLAS_STATUS_SUCCESS;             // limits on workspace and alignment: ours needs none
}
// Up to three results, all the same, so that a program's choice between several is exercised.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d,
        cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
        cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int wanted,
        cublasLtMatmulHeuristicResult_t* results, int* got) {
    Product p;
    *got = 0;
    if (!fits(*(Descriptor*)d, *(Layout*)a, *(Layout*)b, *(Layout*)c, p))
        return CUBLAS_STATUS_INVALID_VALUE;
    *got = std::min(wanted, 3);
    memset((void*)results, 0, *got * sizeof *results);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
        const void* A, cublasLtMatrixLayout_t layout_a,
        const void* B, cublasLtMatrixLayout_t layout_b,
        const void* beta, const void* C, cublasLtMatrixLayout_t layout_c,
        void* D, cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t*,
        void* workspace, size_t workspace_bytes, cudaStream_t stream) {
    Descriptor d = *(Descriptor*)desc;
    Layout a = *(Layout*)layout_a, b = *(Layout*)layout_b, c = *(Layout*)layout_c;
    Layout r = *(Layout*)layout_d;
    Product p;
    if (!fits(d, a, b, c, p) || !fits(d, a, b, r, p)) return CUBLAS_STATUS_INVALID_VALUE;
    if (d.e.has(AUX) && (!d.e.aux || d.e.aux_ld < p.m)) return CUBLAS_STATUS_INVALID_VALUE;
    bool needs_bias = d.e.has(ADD_BIAS | BIAS_GRADIENT | BGRAD_A | BGRAD_B);
    if (needs_bias && !d.e.bias) return CUBLAS_STATUS_INVALID_VALUE;
    if (d.e.bias_type == AS_RESULT) d.e.bias_type = r.type;
    if (!is_known(d.e.bias_type)) return not_supported("cublasLt bias type", d.e.bias_type);
    for (const void* q : {A, B, C, (const void*)D, (const void*)workspace})
        if ((uintptr_t)q % 16) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d.e.has(AUX | BGRAD_A | BGRAD_B) && env_number("EMU_REFUSE_EPILOGUES", 0))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (workspace_bytes) check_device_range("cublasLt workspace", workspace, workspace_bytes);
    p.alpha = *(const float*)alpha, p.beta = *(const float*)beta, p.e = d.e;
    p.A = matrix(A, a, d.ta), p.B = matrix(B, b, d.tb), p.C = matrix(C, c, false);
    p.D = matrix(D, r, false);
    enqueue(stream, "cublasLtMatmul", [=] {
        for (int i = 0; i < r.batch; i++) {
            Product one = p;
            one.A = p.A.moved(i * a.stride), one.B = p.B.moved(i * b.stride);
            one.C = p.C.moved(i * c.stride), one.D = p.D.moved(i * r.stride);
            one.run();
        }
    });
    return CUBLAS_STATUS_SUCCESS;
}
}
