// matmul.c: a ladder for the three products of a linear layer, c(i,j) = sum over k of a(i,k) b(j,k)
//   naive       three loops as in the formula: one sum at a time, each waiting for the one before
//   reordered   the innermost loop runs along memory, so that it becomes vector instructions
//   blocked     a piece of b that fits L2 is used by 64 rows before the next one is fetched: alone
//               no gain where b fits L3 and the loop above waits for its additions
//   packed      the piece is copied so that its columns lie side by side: one loop for all products
//   tiled       MR x NR sums stay in registers: the loads of a tile feed MR times as many products
//   shipped     section 6.3: a is packed as well, pieces are prefetched, threads take rectangles
// Tried and left: splitting k between threads (the sum's order would depend on their number).
#include "ladder.h"
#if defined(OPENBLAS)
#include <cblas.h>
#endif
#if defined(ONEDNN)
#include <oneapi/dnnl/dnnl.h>
#endif

static Mat a, b;
static real *c; // (M,N)
static size_t M, N, K;
static real at(Mat m, size_t i, size_t k) { return m.p[i * m.row + k * m.col]; }

static void naive(void) {
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < N; j++) {
            real sum = 0;
            for (size_t k = 0; k < K; k++) sum += at(a, i, k) * at(b, j, k);
            c[i * N + j] = sum;
        }
}

// Row i of c, columns j to j_end, plus the products of k to k_end.
static void reordered_row(size_t i, size_t j, size_t j_end, size_t k, size_t k_end) {
    real *row = c + i * N;
    if (b.col == 1) // k runs along memory: inp . weight^T, if a does, too
        for (; j < j_end; j++) {
            real sum = 0;
            const real *x = a.p + i * a.row, *y = b.p + j * b.row;
            #pragma omp simd reduction(+:sum)
            for (size_t l = k; l < k_end; l++) sum += x[l] * y[l];
            row[j] = (k ? row[j] : 0) + sum;
        }
    else // j does
        for (; k < k_end; k++) {
            const real x = at(a, i, k), *y = b.p + k * b.col;
            #pragma omp simd
            for (size_t l = j; l < j_end; l++) row[l] = (k ? row[l] : 0) + x * y[l];
        }
}
static void reordered(void) {
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < M; i++) reordered_row(i, 0, N, 0, K);
}

enum { DEEP = 768, WIDE = 5 * NR }; // a piece of b: at most 768 x 240 x 4 bytes, less than L2
static void blocked(void) {
    #pragma omp parallel for schedule(static)
    for (size_t i0 = 0; i0 < M; i0 += 64) // rows that use the piece
        for (size_t k = 0; k < K; k += DEEP)
            for (size_t j = 0; j < N; j += WIDE)
                for (size_t i = i0; i < min_size(i0 + 64, M); i++)
                    reordered_row(i, j, min_size(j + WIDE, N), k, min_size(k + DEEP, K));
}

// piece [k][WIDE] = columns j.. of b, k deep; zeros fill it up
static real *piece_here(void) { // of this thread
    return gemm_scratch + (size_t)omp_get_thread_num() * GEMM_SCRATCH;
}
static void pack_piece(real *piece, size_t j, size_t k, size_t deep) {
    for (size_t q = 0; q < deep; q++)
        for (size_t l = 0; l < WIDE; l++)
            piece[q * WIDE + l] = j + l < N ? at(b, j + l, k + q) : 0;
}
static void packed(void) {
    #pragma omp parallel for schedule(static)
    for (size_t i0 = 0; i0 < M; i0 += 128)
        for (size_t k = 0; k < K; k += DEEP)
            for (size_t j = 0; j < N; j += WIDE) {
                const size_t deep = min_size(DEEP, K - k), wide = min_size(WIDE, N - j);
                real *piece = piece_here();
                pack_piece(piece, j, k, deep);
                for (size_t i = i0; i < min_size(i0 + 128, M); i++) {
                    real sum[WIDE] = { 0 };
                    for (size_t q = 0; q < deep; q++) {
                        const real x = at(a, i, k + q);
                        #pragma omp simd
                        for (size_t l = 0; l < WIDE; l++) sum[l] += x * piece[q * WIDE + l];
                    }
                    for (size_t l = 0; l < wide; l++)
                        c[i * N + j + l] = (k ? c[i * N + j + l] : 0) + sum[l];
                }
            }
}

// Rows i .. i+MR-1; those behind the last one repeat it and are not stored.
static void tile(const real *piece, size_t i, size_t j, size_t k, size_t deep) {
    Vec sum[MR][NV] = {{{0}}};
    const real *x[MR];
    for (int r = 0; r < MR; r++) x[r] = mat_at(a, min_size(i + (size_t)r, M - 1), k).p;
    for (size_t q = 0; q < deep; q++, piece += WIDE)
        UNROLL for (int r = 0; r < MR; r++)
            UNROLL for (int v = 0; v < NV; v++)
                sum[r][v] += x[r][q * a.col] * *(const Vec *)(piece + v * VL);
    for (size_t r = 0; r < MR && i + r < M; r++)
        for (size_t l = 0; l < NR && j + l < N; l++) {
            real *to = c + (i + r) * N + j + l;
            *to = (k ? *to : 0) + sum[r][l / VL][l % VL];
        }
}
static void tiled(void) {
    #pragma omp parallel for schedule(static)
    for (size_t i0 = 0; i0 < M; i0 += 128)
        for (size_t k = 0; k < K; k += DEEP)
            for (size_t j = 0; j < N; j += WIDE) {
                const size_t deep = min_size(DEEP, K - k);
                real *piece = piece_here();
                pack_piece(piece, j, k, deep);
                for (size_t i = i0; i < min_size(i0 + 128, M); i += MR)
                    for (size_t l = 0; l < min_size(WIDE, N - j); l += NR)
                        tile(piece + l, i, j + l, k, deep);
            }
}

static void shipped(void) { gemm(to_x(c, N), a, b, M, N, K); }

#if defined(OPENBLAS)
static void openblas(void) {
    cblas_sgemm(CblasRowMajor, a.col == 1 ? CblasNoTrans : CblasTrans,
                b.col == 1 ? CblasTrans : CblasNoTrans, (int)M, (int)N, (int)K, 1, a.p,
                (int)(a.row * a.col), b.p, (int)(b.row * b.col), 0, c, (int)N);
}
#endif
#if defined(ONEDNN)
static void onednn(void) {
    dnnl_sgemm(a.col == 1 ? 'N' : 'T', b.col == 1 ? 'T' : 'N', (dnnl_dim_t)M, (dnnl_dim_t)N,
               (dnnl_dim_t)K, 1, a.p, (dnnl_dim_t)(a.row * a.col), b.p,
               (dnnl_dim_t)(b.row * b.col), 0, c, (dnnl_dim_t)N);
}
#endif

static const Rung rungs[] = {
    { "naive", naive, 0 }, { "reordered", reordered, 0 }, { "blocked", blocked, 0 },
    { "packed", packed, 0 }, { "tiled", tiled, 0 }, { "shipped", shipped, 0 },
    { "shipped, --matmul bf16", shipped, 1 },
#if defined(OPENBLAS)
    { "OpenBLAS", openblas, 0 },
#endif
#if defined(ONEDNN)
    { "oneDNN", onednn, 0 },
#endif
};

static void product(const char *op, const char *sizes, Mat left, Mat right, size_t m, size_t n,
                    size_t k) {
    a = left, b = right, M = m, N = n, K = k;
    // Roundings of K sums in a row walk at random: sqrt(K) of them, and four times that is rare.
    Ladder l = { .op = op, .flops = 2 * (double)M * (double)N * (double)K,
                 .bytes = 4 * (double)(M * K + N * K + M * N),
                 .outputs = { ladder_output(M * N, NULL, 4 * unit * sqrt((double)K)) } };
    snprintf(l.shape, sizeof l.shape, "%s", sizes);
    c = l.outputs[0].got;
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < N; j++) {
            double sum = 0;
            for (size_t q = 0; q < K; q++) sum += (double)at(a, i, q) * (double)at(b, j, q);
            l.outputs[0].want[i * N + j] = sum;
        }
    ladder_climb(&l, rungs, sizeof rungs / sizeof *rungs);
    ladder_free(&l);
}
static void layer(size_t rows, size_t C, size_t OC) {
    char sizes[80];
    snprintf(sizes, sizeof sizes, "N=%zu C=%zu OC=%zu", rows, C, OC);
    real *inp = ladder_random(rows * C, 1, 1, 0), *weight = ladder_random(OC * C, 2, 1, 0);
    real *dout = ladder_random(rows * OC, 3, 1, 0);
    product("matmul out", sizes, rows_of(inp, C), rows_of(weight, C), rows, OC, C);
    product("matmul dinp", sizes, rows_of(dout, OC), cols_of(weight, C), rows, C, OC);
    product("matmul dweight", sizes, cols_of(dout, OC), cols_of(inp, C), OC, C, rows);
    dev_free(inp), dev_free(weight), dev_free(dout);
}

int main(int argc, char **argv) {
    ladder_start(argc, argv);
    layer(65, 50, 257);
    if (is_check) layer(3, 17, 5);
    else layer(256, 768, 3072);
    return 0;
}
