// blas.cu [unwritten]: the matrix products of cuBLAS and cuBLASLt against plain loops: transposes,
// batches, bf16, every epilogue, and what must be refused. "unwritten" multiplies a matrix that
// nobody wrote, which the race build must report.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include "test.h"
typedef __nv_bfloat16 bf16;
#define BLAS(call) claim((call) == CUBLAS_STATUS_SUCCESS, #call)

static std::vector<float> numbers(size_t n, int seed) {      // multiples of 1/8: products are exact
    std::vector<float> v(n);
    for (size_t i = 0; i < n; i++) v[i] = (float)((int)((i * 7 + seed * 5) % 17) - 8) / 8;
    return v;
}
// op(A) (m,k) op(B) (k,n), column-major
static std::vector<float> product(const float* A, bool ta, const float* B, bool tb, int m, int n,
                                  int k) {
    std::vector<float> C(m * n);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            for (int p = 0; p < k; p++)
                C[i + j * m] += A[ta ? p + i * k : i + p * m] * B[tb ? j + p * n : p + j * k];
    return C;
}

static void test_sgemm(cublasHandle_t h) {
    const int m = 9, n = 7, k = 5, batch = 2;
    for (int t = 0; t < 4; t++) {
        bool ta = t & 1, tb = t & 2;
        std::vector<float> A = numbers(m * k * batch, 1), B = numbers(k * n * batch, 2);
        std::vector<float> C = numbers(m * n * batch, 3);
        float *dA = to_device(A), *dB = to_device(B), *dC = to_device(C), alpha = 2, beta = -1;
        cublasOperation_t op[2] = {CUBLAS_OP_N, CUBLAS_OP_T};
        BLAS(cublasSgemmStridedBatched(h, op[ta], op[tb], m, n, k, &alpha, dA, ta ? k : m, m * k,
                                       dB, tb ? n : k, k * n, &beta, dC, m, m * n, batch));
        std::vector<float> got = to_host(dC, m * n * batch);
        bool ok = true;
        for (int b = 0; b < batch; b++) {
            std::vector<float> p = product(&A[b * m * k], ta, &B[b * k * n], tb, m, n, k);
            for (int i = 0; i < m * n; i++)
                ok = ok && got[b * m * n + i] == 2 * p[i] - C[b * m * n + i];
        }
        claim(ok, "cublasSgemmStridedBatched");
        for (float* p : {dA, dB, dC}) CUDA(cudaFree(p));
    }
}

// D (m,n) = epilogue(A^T B) in bf16, as a trainer calls it; returns D, fills bias and aux as asked.
struct Lt {
    static const int m = 16, n = 24, k = 8;
    cublasLtHandle_t handle;
    std::vector<float> A = numbers(m * k, 1), B = numbers(k * n, 2);

    static bf16* bf16_to_device(const std::vector<float>& v) {
        std::vector<bf16> b(v.size());
        for (size_t i = 0; i < v.size(); i++) b[i] = __float2bfloat16(v[i]);
        return to_device(b);
    }
    static std::vector<float> floats(const bf16* p, size_t n) {
        std::vector<bf16> b = to_host(p, n);
        return std::vector<float>(b.begin(), b.end());
    }
    cublasStatus_t run(cublasLtEpilogue_t epilogue, std::vector<float>* D, std::vector<float>* bias,
                       std::vector<float>* aux, int misalign = 0) {
        bf16 *dA = bf16_to_device(A), *dB = bf16_to_device(B), *dD = device_alloc<bf16>(m * n + 8);
        bf16 *d_bias = bf16_to_device(*bias), *d_aux = bf16_to_device(*aux);
        cublasLtMatmulDesc_t desc;
        cublasLtMatrixLayout_t la, lb, ld;
        cublasLtMatmulPreference_t preference;
        cublasLtMatmulHeuristicResult_t choice[4];
        cublasOperation_t transpose = CUBLAS_OP_T;
        int64_t aux_ld = m;
        int got;
        auto set = [&](cublasLtMatmulDescAttributes_t a, const auto& v) {
            return cublasLtMatmulDescSetAttribute(desc, a, &v, sizeof v);
        };
        BLAS(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        BLAS(set(CUBLASLT_MATMUL_DESC_TRANSA, transpose));
        BLAS(set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
        BLAS(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, d_bias));
        BLAS(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, d_aux));
        BLAS(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld));
        BLAS(cublasLtMatrixLayoutCreate(&la, CUDA_R_16BF, k, m, k));
        BLAS(cublasLtMatrixLayoutCreate(&lb, CUDA_R_16BF, k, n, k));
        BLAS(cublasLtMatrixLayoutCreate(&ld, CUDA_R_16BF, m, n, m));
        BLAS(cublasLtMatmulPreferenceCreate(&preference));
        auto choose = [&](auto a, auto b) {
            return cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, ld, ld, preference, 4, choice,
                                                  &got);
        };
        CLAIM(choose(lb, la) == CUBLAS_STATUS_INVALID_VALUE && got == 0);          // do not fit
        CLAIM(choose(la, lb) == CUBLAS_STATUS_SUCCESS && got >= 1);
        float one = 1, zero = 0;
        bf16* at = dD + misalign;
        cublasStatus_t status = cublasLtMatmul(handle, desc, &one, dA, la, dB, lb, &zero, at, ld,
                                               at, ld, &choice[0].algo, nullptr, 0, nullptr);
        if (status == CUBLAS_STATUS_SUCCESS) {
            *D = floats(dD, m * n);
            *bias = floats(d_bias, bias->size());
            *aux = floats(d_aux, m * n);
        }
        cublasLtMatmulPreferenceDestroy(preference);
        for (auto l : {la, lb, ld}) cublasLtMatrixLayoutDestroy(l);
        cublasLtMatmulDescDestroy(desc);
        for (bf16* p : {dA, dB, dD, d_bias, d_aux}) CUDA(cudaFree(p));
        return status;
    }
};
static float rounded(float x) { return __bfloat162float(__float2bfloat16(x)); }
static double gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
// Equal up to one rounding to bf16 (2^-8), with room for the float sums before it.
static bool near(const std::vector<float>& a, const std::vector<float>& b) {
    for (size_t i = 0; i < a.size(); i++)
        if (!(fabs(a[i] - b[i]) <= 0.005 * (1 + fabs(b[i])))) return false;
    return a.size() == b.size();
}

static void test_epilogues() {
    Lt lt;
    const int m = Lt::m, n = Lt::n;
    cublasLtCreate(&lt.handle);
    std::vector<float> P = product(&lt.A[0], true, &lt.B[0], false, m, n, Lt::k), D, want(m * n);
    std::vector<float> bias = numbers(m, 4), aux(m * n), bias_in = bias;
    BLAS(lt.run(CUBLASLT_EPILOGUE_BIAS, &D, &bias, &aux));
    for (int i = 0; i < m * n; i++) want[i] = rounded(P[i] + bias_in[i % m]);
    claim(D == want, "BIAS");

    BLAS(lt.run(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, &D, &bias, &aux));
    claim(aux == want, "GELU_AUX keeps its input");
    for (int i = 0; i < m * n; i++) want[i] = gelu(P[i] + bias_in[i % m]);
    claim(near(D, want), "GELU_AUX_BIAS");

    std::vector<float> sum(m);                               // dGELU: times the slope at aux
    aux = numbers(m * n, 6);
    BLAS(lt.run(CUBLASLT_EPILOGUE_DGELU_BGRAD, &D, &bias, &aux));
    for (int i = 0; i < m * n; i++)
        want[i] = P[i] * (gelu(aux[i] + 1e-4) - gelu(aux[i] - 1e-4)) / 2e-4;
    for (int i = 0; i < m * n; i++) sum[i % m] += want[i];
    claim(near(D, want) && near(bias, sum), "DGELU_BGRAD");

    std::vector<float> rows(m), cols(n);                     // sums over k of op(A) and of op(B)
    for (size_t i = 0; i < lt.A.size(); i++) rows[i / Lt::k] += lt.A[i];
    for (size_t i = 0; i < lt.B.size(); i++) cols[i / Lt::k] += lt.B[i];
    BLAS(lt.run(CUBLASLT_EPILOGUE_BGRADA, &D, &bias, &aux));
    claim(near(bias, rows) && near(D, P), "BGRADA");
    bias.assign(n, 0);
    BLAS(lt.run(CUBLASLT_EPILOGUE_BGRADB, &D, &bias, &aux));
    claim(near(bias, cols), "BGRADB");
    int misaligned = 1;
    CLAIM(lt.run(CUBLASLT_EPILOGUE_DEFAULT, &D, &bias, &aux, misaligned) != CUBLAS_STATUS_SUCCESS);
    cublasLtDestroy(lt.handle);
}

int main(int argc, char**) {
    cublasHandle_t h;
    BLAS(cublasCreate(&h));
    test_sgemm(h);
    test_epilogues();
    float *a = device_alloc<float>(64), *c = device_alloc<float>(16), one = 1, zero = 0;
    auto multiply = [&](int lda) {
        return cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, a, lda, a, 4, &zero, c, 4);
    };
    CLAIM(multiply(3) == CUBLAS_STATUS_INVALID_VALUE);
    if (argc > 1) BLAS(multiply(4));
    CUDA(cudaFree(a));
    CUDA(cudaFree(c));
    cublasDestroy(h);
    return verdict();
}
