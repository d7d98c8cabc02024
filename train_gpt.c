// train_gpt.c: trains GPT models on a CPU. The whole trainer is this file; nothing else is needed.
//
// === 0. Read me first ================================================================== [shared]
// Build    cc -O3 -march=native -fno-math-errno -fopenmp train_gpt.c -o train_gpt -lm    (or: make)
//          nvcc -O3 -arch=native -Xcompiler -fopenmp train_gpt.cu -o train_gpt_cuda -lcublasLt
//                                                                            (or: make cuda)
// Run      ./train_gpt --train my.txt               a small model on your text, checkpoints in out/
//          ./train_gpt --resume                     go on where it stopped
//          ./train_gpt --sample "Once upon"         continue a prompt with what was trained
//          ./train_gpt --help                       all flags
//          mpirun -np 4 ./train_gpt ...             on 4 processes or GPUs (make MPI=1)
//
// Contents
//   0  Read me first
//   1  Includes and compile-time switches     the only #ifdefs
//   2  Errors, files, time                    check(), the checked reader, the writer, JSON
//   3  Flags                                  one table
//   4  Random numbers
//   5  The device and its memory              on a CPU also exp and GELU
//   6  Ops                                    each forward beside its backward
//   7  The model                              tables of parameters, activations and buffers
//   8  Forward and backward through the layers
//   9  Processes                              a rank's share, communication, the watchdog
//   10 Optimizer step                         schedule, clipping, ZeRO-1, AdamW
//   11 Data                                   shards and texts as one stream of windows
//   12 Tokenizer and sampling
//   13 Checkpoints                            Hugging Face folders, exact resume
//   14 Cost model and log
//   15 Training loop
//   16 Main
// [shared] sections are the same text in train_gpt.c and train_gpt.cu (make sync, make tidy).
//
// How to read it. The network is section 8, 100 lines: read gpt_layer_forward and
// gpt_layer_backward side by side. Then an op at a time in section 6, its backward under its
// forward. Then train_step in 15.2, which is all of training, and section 7 for where the memory
// is. The rest makes it safe.
//
// How to change it. A flag: a line in FLAGS (3). A parameter: a line in PARAMS (7.1); checkpoint,
// init, optimizer and plan follow. An activation: a line in ACTS (7.2). An op: its forward and
// backward in 6, its call in 8, its test in test_gpt.c. Then make sync: it copies shared sections.
//
// Glossary, one meaning for a letter
//   B  sequences in a micro-batch     T  tokens of a sequence      N  = B * T rows
//   C  channels                       L  layers                    NH heads     HS = C / NH
//   V  vocabulary                     Vp V padded to 128           OC output channels
//   b t c l h i  running indices      x  the residual stream       dX gradient of the loss by X
//   w g m v  weights, gradients, Adam's moments                    rank, ranks  process, processes
//   floatX   what is stored (f32() loads, fX() stores)             real  what sums are kept in
//   (N,C) beside an array is its shape, last index fastest.
//
// Limits. GPT-2 as published: learned positions, tanh GELU, tied head, no dropout. Results do not
// depend on the number of threads; they do depend on the compiler and the instruction set, or on
// the GPU and its cuBLASLt.

// === 1. Includes and compile-time switches =======================================================

#ifndef _GNU_SOURCE
#define _GNU_SOURCE // pread, fsync, flock, sigaction, madvise
#endif
#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_max_threads(void) { return 1; }
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
static void omp_set_num_threads(int count) { (void)count; }
#endif
#ifdef MADV_HUGEPAGE
static void advise_huge(void *p, size_t bytes) { madvise(p, bytes, MADV_HUGEPAGE); }
#else
static void advise_huge(void *p, size_t bytes) { (void)p; (void)bytes; }
#endif
#define PROGRAM_NAME "train_gpt"
enum { CHANNELS_UNIT = 1 }; // C is a multiple of it
enum { HAS_LOSS_SCALE = 0 }; // fp16, on a GPU: small gradients would be 0
enum { HEAD_ROWS = 512 };    // of logits at a time; each turn reads and writes wte's gradient once
// PRECISION: what weights and activations are stored in (floatX) and sums are kept in (real).
#if defined(PRECISION_FP64)      // for tests: finite differences, and 9 digits against PyTorch
typedef double real, floatX;
typedef uint64_t RealBits;
#define REAL_BYTES 8
#define exp_real exp_double
#define PRECISION_NAME "fp64"
#else
typedef float real;
typedef uint32_t RealBits;
#define REAL_BYTES 4
#define exp_real exp_poly
#if defined(PRECISION_BF16)
typedef struct { uint16_t bits; } floatX; // a struct, so that a + b without f32() does not compile
#define PRECISION_NAME "bf16"
#else
typedef float floatX;
#define PRECISION_NAME "fp32"
#endif
#endif
#if defined(PRECISION_BF16)
static inline real f32(floatX x) {
    uint32_t bits = (uint32_t)x.bits << 16;
    real value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline floatX fX(real value) { // to the nearest, ties to even; NaN stays NaN
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    floatX x = { (uint16_t)((value != value ? bits | 0x400000 : rounded) >> 16) };
    return x;
}
// Up or down with the odds that make it right on average; NaN and Inf stay.
static inline floatX fX_random(real value, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    floatX x = { (uint16_t)((bits + (random & 0xffff)) >> 16) };
    return isfinite(value) ? x : fX(value);
}
#else
static inline real f32(floatX x) { return x; }
static inline floatX fX(real x) { return x; }
static inline floatX fX_random(real x, uint32_t random) { (void)random; return x; }
#endif
enum { has_master = sizeof(floatX) < sizeof(real) }; // weights may have a copy of type real
// Vectors of the matrix product: VL lanes in a register. The sums of a tile, MR rows of NV vectors,
// take 16 of 32 registers, enough to hide the latency of FMA (4 cycles x 2 units): 8x48, 6x64,
// 12x32, 14x32 were equal and divide fewer shapes. Of 16 registers they take 12: 8 were 5 % slower.
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define VL (VECTOR_BYTES / REAL_BYTES)
#if defined(__AVX512F__) || defined(__aarch64__)
enum { MR = 8, NV = 2 };
#else
enum { MR = 4, NV = 3 };
#endif
#define ANY_ARRAY aligned(sizeof(real)), may_alias  // floatX arrays are read through these types
typedef real Vec __attribute__((vector_size(VECTOR_BYTES), ANY_ARRAY));
typedef RealBits Bits __attribute__((vector_size(VECTOR_BYTES), ANY_ARRAY));
typedef uint16_t Halves __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));
#if VL == 16  // zip: the lower (upper) halves of two vectors, their lanes interleaved
#define ZIP_LO 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ZIP_HI 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif VL == 8
#define ZIP_LO 0, 8, 1, 9, 2, 10, 3, 11
#define ZIP_HI 4, 12, 5, 13, 6, 14, 7, 15
#elif VL == 4
#define ZIP_LO 0, 4, 1, 5
#define ZIP_HI 2, 6, 3, 7
#else
#define ZIP_LO 0, 2
#define ZIP_HI 1, 3
#endif
#if defined(PRECISION_BF16)
static inline Vec load_vec(const floatX *p) {
    return (Vec)(__builtin_convertvector(*(const Halves *)p, Bits) << 16);
}
#else
static inline Vec load_vec(const floatX *p) { return *(const Vec *)p; }
#endif
#if defined(__AVX512BF16__) && !defined(PRECISION_FP64)
#include <immintrin.h>
enum { BF16_IN_SLOT = 2 }; // the instruction adds the products of two bf16 pairs to each sum
static inline Vec bf16_dot(Vec sum, real a, Vec b) {
    return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_ps(a), (__m512bh)b);
}
#else
enum { BF16_IN_SLOT = 1 }; // no instruction: a bf16 is widened, then multiplied as a float
static inline Vec bf16_dot(Vec sum, real a, Vec b) { return sum + a * b; }
#endif
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")  // keeps arrays of vectors in registers
#endif
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
// A slot is a lane of an operand: one real, or BF16_IN_SLOT bf16 if products are rounded to bf16.
static inline size_t slot_k(int bf16) { return bf16 ? BF16_IN_SLOT : 1; } // k's in a slot
INLINE Bits round_bf16(Vec x)  // nearest, ties to even, in the upper 16 bits; NaN stays NaN
{
    const Bits u = (Bits)x;
    if (sizeof(floatX) == 2) return u;
    return ((u + 0x7fff + (u >> 16 & 1)) | ((Bits)(x != x) & 0x7fc00000)) & 0xffff0000;
}
INLINE Vec load_slots(const floatX *p, size_t partner, int bf16)  // VL neighbours in memory
{
    const Vec x = load_vec(p);
    if (!bf16) return x;
    if (BF16_IN_SLOT == 1) return (Vec)round_bf16(x);
    return (Vec)(round_bf16(x) >> 16 | round_bf16(load_vec(p + partner)));
}
INLINE void transpose(Vec r[VL]) {
    for (int step = 1; step < VL; step *= 2) { // rows i and i + VL/2, zipped, are rows 2i, 2i + 1
        Vec s[VL];
        UNROLL for (int i = 0; i < VL / 2; i++) {
            s[2 * i] = __builtin_shufflevector(r[i], r[i + VL / 2], ZIP_LO);
            s[2 * i + 1] = __builtin_shufflevector(r[i], r[i + VL / 2], ZIP_HI);
        }
        UNROLL for (int i = 0; i < VL; i++) r[i] = s[i];
    }
}
// What this build needs and the CPU it runs on lacks: without asking, it would die of an illegal
// instruction. NULL: nothing.
#if defined(__AVX512BF16__)
#define CPU_NEEDS(has) (has("avx512bf16") ? NULL : "AVX512_BF16")
#elif defined(__AVX512F__)
#define CPU_NEEDS(has) (has("avx512f") && has("avx512dq") ? NULL : "AVX-512")
#elif defined(__AVX2__)
#define CPU_NEEDS(has) (has("avx2") && has("fma") ? NULL : "AVX2 and FMA")
#else
#define CPU_NEEDS(has) NULL
#endif
// Messages between processes, bare; section 9 gives them their meaning. MPI counts in int; one size
// for all keeps long messages tested.
enum { MESSAGE_BYTES = 1 << 20 };
static void net_begin(void) {} // messages are posted between begin and end, then under way until
static void net_end(void) {}   // net_wait
#ifdef USE_MPI
#include <mpi.h>
static MPI_Request *net_requests = NULL;
static int net_count = 0, net_room = 0;
static void net_init(int *rank, int *ranks, int *node_ranks) {
    int level; // the watchdog's thread may call MPI_Abort
    MPI_Comm node;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, ranks);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, node_ranks);
    MPI_Comm_free(&node);
}
static void net_finish(void) { MPI_Finalize(); }
static void net_abort(int code) { MPI_Abort(MPI_COMM_WORLD, code); }
static MPI_Request *net_request(void) {
    if (net_count == net_room) {
        net_room = 2 * net_room + 16;
        net_requests = (MPI_Request *)realloc(net_requests, (size_t)net_room * sizeof(MPI_Request));
        assert(net_requests != NULL);
    }
    return &net_requests[net_count++];
}
static void net_post(void *x, int bytes, int peer, int is_send) {
    if (is_send) MPI_Isend(x, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, net_request());
    else MPI_Irecv(x, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, net_request());
}
// Until all that was posted has been sent and received. MPI's own waits never sleep; where there
// are more processes than cores they keep those from working that are waited for.
static void net_wait(void) {
    struct timespec nap = { 0, 50000 };
    for (int tries = 0, is_done = 0; !is_done; tries++) {
        if (tries > 1000) nanosleep(&nap, NULL); // some 0.2 ms were in vain
        MPI_Testall(net_count, net_requests, &is_done, MPI_STATUSES_IGNORE);
    }
    net_count = 0;
}
static void net_sum(double *x, int count) {
    MPI_Iallreduce(MPI_IN_PLACE, x, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, net_request());
    net_wait();
}
static void net_max(int64_t *x, int count) {
    MPI_Iallreduce(MPI_IN_PLACE, x, count, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD, net_request());
    net_wait();
}
#else
static void net_init(int *rank, int *ranks, int *node_ranks) {
    *rank = 0;
    *ranks = *node_ranks = 1;
}
static void net_finish(void) {}
static void net_abort(int code) { _exit(code); }
static void net_post(void *x, int bytes, int peer, int is_send) {
    (void)x; (void)bytes; (void)peer; (void)is_send;
}
static void net_wait(void) {}
static void net_sum(double *x, int count) { (void)x; (void)count; }
static void net_max(int64_t *x, int count) { (void)x; (void)count; }
#endif
// The processors that this process may use, once it is no longer bound to some of them; 0: unknown.
static int cpus_unbound(void) {
#ifdef CPU_COUNT
    cpu_set_t set;
    memset(&set, 0xff, sizeof set); // the kernel leaves out those that the job has not
    if (sched_setaffinity(0, sizeof set, &set) == 0 && sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
#endif
    return 0;
}
static int rename_swap(const char *a, const char *b) { // the names change places in one step
#ifdef RENAME_EXCHANGE
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
#else
    (void)a, (void)b;
    errno = ENOTSUP;
    return -1;
#endif
}
#ifndef GIT_HASH
#define GIT_HASH "unknown" // the Makefile passes the commit
#endif

// === 2. Errors, files, time ============================================================ [shared]
// The error contract: what comes from the world (flags, files, memory, peers) is tested by check(),
// which prints one line and ends the program with a code of the list below; what only a mistake of
// ours can break is tested by assert(). Nothing is repaired silently.

enum { EXIT_INTERNAL = 1, EXIT_USAGE = 2, EXIT_INPUT = 3, EXIT_IO = 4, EXIT_NUMERICS = 5,
       EXIT_PEER = 6 };

static int rank = 0, ranks = 1; // this process among the processes of the run
static int node_ranks = 1;      // how many of them share this machine
static volatile sig_atomic_t stop_signal = 0, save_signal = 0; // what was asked for, see 15
// What the watchdog (9) looks at: a mark is made whenever something is done.
static struct { volatile uint64_t marks, step; const char *volatile done; volatile int waits; }
    progress = { 0, 0, "the start", 0 }; // waits: for the other ranks
static void progress_mark(const char *done) {
    progress.done = done;
    progress.marks = progress.marks + 1;
}

// While a checkpoint is being verified a bad file must not end the program: die() then leaves its
// line in die_message and jumps to die_recovers.
static jmp_buf *die_recovers = NULL;
static char die_message[16384]; // longer than the longest path
static void comm_abort(int code); // 9: ends all processes of the run

__attribute__((format(printf, 2, 3), noreturn))
static void die(int code, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(die_message, sizeof die_message, fmt, args);
    va_end(args);
    for (char *c = die_message; *c; c++) if ((unsigned char)*c < 0x20) *c = '?'; // in file names
    if (die_recovers != NULL) longjmp(*die_recovers, code);
    fflush(stdout);
    signal(SIGTERM, SIG_DFL);     // another rank's abort ends this one at once:
    if (rank > 0) usleep(300000); // what goes wrong on all ranks is told once, by rank 0
    if (ranks > 1) fprintf(stderr, "rank %d: error: %s\n", rank, die_message);
    else fprintf(stderr, "error: %s\n", die_message);
    comm_abort(code);
    exit(code);
}
#define check(cond, code, ...) do { if (!(cond)) die(code, __VA_ARGS__); } while (0)

__attribute__((format(printf, 1, 2)))
static void warn(const char *fmt, ...) {
    char of_rank[32] = "", line[sizeof die_message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (rank > 0) snprintf(of_rank, sizeof of_rank, "rank %d: ", rank);
    fprintf(stderr, "%swarning: %s\n", of_rank, line); // in one piece: others write there as well
}
__attribute__((format(printf, 1, 2)))
static void say(const char *fmt, ...) { // what all ranks know, rank 0 tells
    va_list args;
    va_start(args, fmt);
    if (rank == 0) vfprintf(stderr, fmt, args);
    va_end(args);
}

static void check_stdout(void) { // what was printed has arrived
    check(fflush(stdout) == 0 && !ferror(stdout), EXIT_IO, "cannot write to standard output: %s",
          strerror(errno));
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }
static size_t div_up(size_t n, size_t unit) { return (n + unit - 1) / unit; }
static size_t round_up(size_t n, size_t unit) { return div_up(n, unit) * unit; }

static void *host_alloc(size_t bytes) { // small things; the large buffers are 5's dev_alloc
    void *p = calloc(1, max_size(bytes, 1));
    check(p != NULL, EXIT_INTERNAL, "out of memory: wanted %zu bytes", bytes);
    return p;
}
static void *host_grow(void *p, size_t bytes) {
    p = realloc(p, max_size(bytes, 1));
    check(p != NULL, EXIT_INTERNAL, "out of memory: wanted %zu bytes", bytes);
    return p;
}

// A descriptor 0, 1 or 2 that was closed at the start would be given to the next file that is
// opened, and messages would land in it: /dev/null takes its place.
static void std_files_open(void) {
    int fd;
    do fd = open("/dev/null", O_RDWR); while (fd >= 0 && fd <= 2);
    if (fd > 2) close(fd);
}

// --- 2.1 text: a string that grows ---
typedef struct { char *at; size_t count, room; } Text; // always ends in a zero byte

static void text_add_bytes(Text *t, const void *bytes, size_t count) {
    if (t->count + count + 1 > t->room) {
        t->room = 2 * (t->count + count + 1);
        t->at = (char *)host_grow(t->at, t->room);
    }
    memcpy(t->at + t->count, bytes, count);
    t->count += count;
    t->at[t->count] = 0;
}
static char *text_format(const char *fmt, va_list args) { // the caller frees it
    va_list again;
    va_copy(again, args);
    int count = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    char *s = (char *)host_alloc((size_t)count + 1);
    vsnprintf(s, (size_t)count + 1, fmt, args);
    return s;
}
__attribute__((format(printf, 1, 2)))
static char *text_of(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    char *s = text_format(fmt, args);
    va_end(args);
    return s;
}
static char *path_beside(const char *path, const char *name) { // in the same folder
    const char *slash = strrchr(path, '/');
    return text_of("%.*s%s", slash ? (int)(slash - path + 1) : 0, path, name);
}
__attribute__((format(printf, 2, 3)))
static void text_add(Text *t, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    char *s = text_format(fmt, args);
    va_end(args);
    text_add_bytes(t, s, strlen(s));
    free(s);
}
// Bytes and code point of the character at s; a byte that is not UTF-8 is one without code point.
static size_t utf8_get(uint32_t *u, const char *s, size_t bytes) {
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    uint8_t c = (uint8_t)s[0];
    size_t count = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4, i = 1;
    uint32_t v = c < 0x80 ? c : c & (0x7fu >> count);
    for (; i < count && i < bytes && (s[i] & 0xc0) == 0x80; i++) v = v << 6 | (s[i] & 0x3f);
    int good = i == count && v >= least[count] && v < 0x110000 && v >> 11 != 0x1b && // surrogates
               (c < 0x80 || (c >= 0xc0 && c < 0xf8));
    *u = good ? v : UINT32_MAX;
    return good ? count : 1;
}

// As a JSON string. A byte that is not UTF-8 becomes half of a surrogate pair, which no text has
// (as in Python, PEP 383); json_string gives the byte back.
static void text_add_quoted(Text *t, const char *s) {
    uint32_t u;
    text_add_bytes(t, "\"", 1);
    for (size_t count; *s; s += count) {
        count = utf8_get(&u, s, strnlen(s, 4));
        if (u == '"' || u == '\\') text_add(t, "\\%c", *s);
        else if (u < 0x20) text_add(t, "\\u%04x", u);
        else if (u == UINT32_MAX) text_add(t, "\\udc%02x", (unsigned char)*s);
        else text_add_bytes(t, s, count);
    }
    text_add_bytes(t, "\"", 1);
}
static int ends_with(const char *s, const char *end) {
    size_t length = strlen(s), count = strlen(end);
    return length > count && !strcmp(s + length - count, end);
}

// --- 2.2 the checked reader: every input file comes through here ---
// Regular files only (a FIFO would block for ever); the size is known before anything is read, and
// every read is compared with it first.
typedef struct { const char *path; int fd; uint64_t bytes; struct stat stat; } InFile;

static InFile in_open(const char *path) {
    InFile f = { path, -1, 0, {} };
    f.fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    check(f.fd >= 0, EXIT_INPUT, "%s: %s", path, strerror(errno));
    int bad = fstat(f.fd, &f.stat) != 0 || !S_ISREG(f.stat.st_mode);
    if (bad) close(f.fd);
    check(!bad, EXIT_INPUT, "%s: not a regular file", path);
    f.bytes = (uint64_t)f.stat.st_size;
    return f;
}
static void in_close(InFile *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}
static void in_read(const InFile *f, uint64_t offset, void *out, size_t bytes) {
    check(offset <= f->bytes && bytes <= f->bytes - offset, EXIT_INPUT,
          "%s: %" PRIu64 " bytes, but bytes %" PRIu64 " to %" PRIu64 " are needed: cut short?",
          f->path, f->bytes, offset, offset + bytes);
    for (size_t done = 0; done < bytes; ) {
        ssize_t n = pread(f->fd, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        check(n >= 0, EXIT_IO, "%s: %s at byte %" PRIu64, f->path, strerror(errno), offset + done);
        check(n > 0, EXIT_INPUT, "%s: ends at byte %" PRIu64 ", had %" PRIu64 " bytes when opened",
              f->path, offset + done, f->bytes);
        done += (size_t)n;
    }
}
static char *in_read_all(const char *path, size_t max_bytes, size_t *bytes) { // ends in a zero byte
    InFile f = in_open(path);
    int fits = f.bytes <= max_bytes;
    if (!fits) in_close(&f);
    check(fits, EXIT_INPUT, "%s: %" PRIu64 " bytes, limit %zu", path, f.bytes, max_bytes);
    char *text = (char *)host_alloc((size_t)f.bytes + 1);
    in_read(&f, 0, text, (size_t)f.bytes);
    *bytes = (size_t)f.bytes;
    in_close(&f);
    return text;
}

// --- 2.3 the writer: remembers its first failure; a full disk does not end the training ---
typedef struct { char *path; int fd, error; uint64_t bytes; } OutFile;

static OutFile out_open(const char *path) {
    OutFile f = { text_of("%s", path), -1, 0, 0 };
    f.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (f.fd < 0) f.error = errno;
    return f;
}
static void out_write(OutFile *f, const void *data, size_t bytes) {
    for (size_t done = 0; done < bytes && !f->error; ) {
        ssize_t n = write(f->fd, (const char *)data + done, min_size(bytes - done, 1u << 30));
        if (n < 0 && errno != EINTR) f->error = errno;
        if (n == 0) f->error = EIO; // a disk that takes nothing and says nothing
        if (n > 0) done += (size_t)n;
    }
    f->bytes += bytes;
}
static int out_close(OutFile *f) { // 0, or the errno of the first failure; the data is on the disk
    if (f->fd >= 0 && fsync(f->fd) != 0 && !f->error) f->error = errno;
    if (f->fd >= 0 && close(f->fd) != 0 && !f->error) f->error = errno;
    free(f->path);
    return f->error;
}
static int sync_folder(const char *path) { // a rename is only safe once its folder is on the disk
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = fd < 0 || fsync(fd) != 0 ? errno : 0;
    if (fd >= 0) close(fd);
    return error == EINVAL ? 0 : error; // some file systems have no such thing
}

// CRC-32C (Castagnoli; iSCSI, RFC 3720), eight bytes at a time by eight tables.
static uint32_t crc32c(uint32_t crc, const void *data, size_t bytes) {
    static uint32_t table[8][256];
    if (!table[7][255]) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = (c >> 1) ^ (c & 1 ? 0x82f63b78u : 0);
            table[0][i] = c;
        }
        for (int k = 1; k < 8; k++) for (int i = 0; i < 256; i++)
            table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 255];
    }
    const unsigned char *p = (const unsigned char *)data;
    for (crc = ~crc; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t eight;
        memcpy(&eight, p, 8);
        eight ^= crc;
        crc = 0;
        for (int k = 0; k < 8; k++) crc ^= table[7 - k][eight >> 8 * k & 255];
    }
    for (; bytes > 0; bytes--, p++) crc = (crc >> 8) ^ table[0][(crc ^ *p) & 255];
    return ~crc;
}

// --- 2.4 JSON: a cursor over a text; what is not JSON ends in check() with the byte offset ---
// Use:  for (json_enter(&j, '{'); json_more(&j, '}'); ) { json_key(&j, key, sizeof key); ... }
// where ... takes exactly one value: json_string, json_number, json_skip, or another json_enter.
typedef struct { const char *path, *text, *at, *end; int first; } Json;

static Json json_open(const char *path, const char *text, size_t count) {
    Json j = { path, text, text, text + count, 1 };
    return j;
}
static void json_bad(const Json *j, const char *wanted) {
    die(EXIT_INPUT, "%s: JSON: wanted %s at byte %td", j->path, wanted, j->at - j->text);
}
static int json_peek(Json *j) { // the next byte that is not white space, 0 at the end
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\n' || *j->at == '\r' || *j->at == '\t'))
        j->at++;
    return j->at < j->end ? (unsigned char)*j->at : 0;
}
static void json_enter(Json *j, char bracket) { // '{' or '['
    char wanted[2] = { bracket, 0 };
    if (json_peek(j) != bracket) json_bad(j, wanted);
    j->at++;
    j->first = 1;
}
static int json_more(Json *j, char bracket) { // '}' or ']': 0 when it closes here, and passes it
    int c = json_peek(j);
    if (c == bracket) { j->at++; j->first = 0; return 0; }
    if (!j->first) {
        if (c != ',') json_bad(j, "a comma or the closing bracket");
        j->at++;
    }
    j->first = 0;
    return 1;
}
static uint32_t json_hex4(Json *j) {
    uint32_t u = 0;
    for (int i = 0; i < 4; i++) {
        if (j->at >= j->end || !isxdigit((unsigned char)*j->at)) json_bad(j, "four hex digits");
        int c = tolower((unsigned char)*j->at++);
        u = u << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return u;
}
static size_t utf8_put(uint32_t u, char *out) { // 1 to 4 bytes
    if (u < 0x80) { out[0] = (char)u; return 1; }
    size_t count = u < 0x800 ? 2 : u < 0x10000 ? 3 : 4;
    for (size_t i = count - 1; i > 0; i--, u >>= 6) out[i] = (char)(0x80 | (u & 0x3f));
    out[0] = (char)((0xf00u >> count & 0xf0) | u);
    return count;
}
static size_t json_string(Json *j, char *out, size_t room) { // bytes, without the added zero byte
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    size_t count = 0;
    if (json_peek(j) != '"') json_bad(j, "a string");
    for (j->at++; ; ) {
        if (j->at >= j->end || (unsigned char)*j->at < 0x20) json_bad(j, "the end of a string");
        if (count + 5 > room) json_bad(j, "a shorter string");
        char c = *j->at++;
        if (c == '"') break;
        if (c != '\\') { out[count++] = c; continue; }
        c = j->at < j->end ? *j->at++ : 0;
        const char *escape = c ? strchr(from, c) : NULL;
        if (c == 'u') {
            uint32_t u = json_hex4(j);
            if (u >= 0xdc80 && u < 0xdd00) { // a byte, see text_add_quoted
                out[count++] = (char)(u & 0xff);
                continue;
            }
            if (u >= 0xd800 && u < 0xe000) { // half of a surrogate pair: the other one must follow
                if (u >= 0xdc00 || j->end - j->at < 6 || j->at[0] != '\\' || j->at[1] != 'u')
                    json_bad(j, "a surrogate pair");
                j->at += 2;
                uint32_t low = json_hex4(j);
                if (low < 0xdc00 || low >= 0xe000)
                    json_bad(j, "the second half of a surrogate pair");
                u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
            }
            count += utf8_put(u, out + count);
        } else if (escape) out[count++] = to[escape - from];
        else json_bad(j, "a known escape");
    }
    out[count] = 0;
    return count;
}
static void json_key(Json *j, char *out, size_t room) {
    json_string(j, out, room);
    if (json_peek(j) != ':') json_bad(j, "a colon");
    j->at++;
}
static double json_number(Json *j) {
    char digits[64];
    size_t count = 0;
    json_peek(j);
    while (j->at < j->end && count + 1 < sizeof digits &&
           *j->at && strchr("+-.0123456789eE", *j->at)) digits[count++] = *j->at++;
    digits[count] = 0;
    char *end;
    double value = strtod(digits, &end);
    if (count == 0 || *end) json_bad(j, "a number");
    return value;
}
static uint64_t json_count(Json *j) { // a whole number >= 0, exact to 64 bits
    uint64_t value = 0;
    int digits = 0;
    for (json_peek(j); j->at < j->end && isdigit((unsigned char)*j->at); j->at++, digits++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*j->at - '0'), &value))
            json_bad(j, "a number below 2^64");
    if (!digits || (j->at < j->end && strchr(".eE", *j->at))) json_bad(j, "a whole number >= 0");
    return value;
}
static void json_skip(Json *j) { // any one value; brackets are counted, so depth costs nothing
    size_t depth = 0;
    do {
        int c = json_peek(j);
        if (c == '"') {
            for (j->at++; j->at < j->end && *j->at != '"'; j->at++) if (*j->at == '\\') j->at++;
            if (j->at >= j->end) json_bad(j, "the end of a string");
            j->at++;
        } else if (c == '{' || c == '[') { depth++; j->at++; }
        else if (depth > 0 && (c == '}' || c == ']')) { depth--; j->at++; }
        else if (depth > 0 && (c == ',' || c == ':')) j->at++;
        else {
            const char *start = j->at;
            while (j->at < j->end && *j->at &&
                   (isalnum((unsigned char)*j->at) || strchr("+-.", *j->at))) j->at++;
            if (j->at == start) json_bad(j, "a value");
        }
    } while (depth > 0);
    j->first = 0;
}

// === 3. Flags ========================================================================== [shared]
// One line of this table is one flag: it makes the field of struct Flags, the parser, --help, the
// record in the log and in the checkpoint. To add a flag, add a line and use f->name.
// Types: I whole number, F number, S text, E one of the words in the help, B switch.

enum { MODE, MODEL, DATA, TRAIN, WATCH, SAVE, ROBUST, NUM_GROUPS };
static const char *const group_titles[NUM_GROUPS] = {
    "Modes (without one: train)", "Model", "Data", "Training", "Watching", "Saving", "Robustness" };

#define FLAGS(X) \
    /* name               group   default  min max      help */ \
    X(B, help,              MODE,   "0",      0, 1,       "print this and exit") \
    X(B, plan,              MODE,   "0",      0, 1,       "print parameters, FLOPs, bytes; exit") \
    X(B, json,              MODE,   "0",      0, 1,       "with --plan: as one JSON object") \
    X(S, sample,            MODE,   "",       0, 0,       "PROMPT: print a continuation and exit") \
    X(B, eval,              MODE,   "0",      0, 1,       "print the loss on --val as JSON; exit") \
    X(B, resume,            MODE,   "0",      0, 1,       "go on from --out's newest checkpoint") \
    X(S, model,             MODEL,  "",       0, 0,       "d6 d12 d24 d36 d48, gpt3:d12 .. d96") \
    X(I, layers,            MODEL,  "4",      1, 1024,    "L") \
    X(I, heads,             MODEL,  "4",      1, 1024,    "NH, divides channels") \
    X(I, channels,          MODEL,  "128",    1, 65536,   "C") \
    X(I, max_seq_len,       MODEL,  "0",      0, 1048576, "longest T; 0: seq_len") \
    X(I, vocab_size,        MODEL,  "0",      0, 16777216, "V; 0: the tokenizer's") \
    X(S, init,              MODEL,  "",       0, 0,       "Hugging Face GPT-2 folder or file") \
    X(S, train,             DATA,   "",       0, 0,       "text file, or pattern of token shards") \
    X(S, val,               DATA,   "",       0, 0,       "the same, held out") \
    X(S, tokenizer,         DATA,   "bytes",  0, 0,       "bytes, gpt2, or a vocabulary file") \
    X(F, val_fraction,      DATA,   "0.1",    0, 0.9,     "end of --train held out without --val") \
    X(B, allow_data_change, DATA,   "0",      0, 1,       "resume although the data changed") \
    X(I, batch_size,        TRAIN,  "12",     1, 1048576, "B: sequences in a micro-batch") \
    X(I, seq_len,           TRAIN,  "64",     1, 1048576, "T: tokens in a sequence") \
    X(I, total_batch_tokens, TRAIN, "0",      0, 1e12,    "tokens of a step; 0: one micro-batch") \
    X(I, steps,             TRAIN,  "2000",   1, 1e12,    "optimizer steps") \
    X(F, lr,                TRAIN,  "1e-3",   0, 1e3,     "peak learning rate") \
    X(I, warmup_steps,      TRAIN,  "100",    0, 1e12,    "linear warm-up") \
    X(E, lr_schedule,       TRAIN,  "cosine", 0, 0,       "constant|linear|cosine|wsd|inv_sqrt") \
    X(F, final_lr_fraction, TRAIN,  "0.1",    0, 1,       "last learning rate / lr") \
    X(F, weight_decay,      TRAIN,  "0.1",    0, 1e3,     "AdamW, on matrices only") \
    X(F, beta1,             TRAIN,  "0.9",    0, 0.999999, "AdamW, first moment") \
    X(F, beta2,             TRAIN,  "0.99",   0, 0.999999, "AdamW, second moment") \
    X(F, eps,               TRAIN,  "1e-8",   0, 1,       "AdamW, added to the root; > 0") \
    X(F, grad_clip,         TRAIN,  "1",      0, 1e9,     "largest gradient norm; 0: off") \
    X(I, seed,              TRAIN,  "1337",   0, 4294967295.0, "weights, shuffle, samples") \
    X(E, matmul,            TRAIN,  "fp32",   0, 0,       "fp32|tf32|bf16") \
    X(I, tune_matmul,       TRAIN,  "0",      0, 1,       "GPU: 1 times cuBLASLt's algorithms") \
    X(I, gelu_fusion,       TRAIN,  "1",      0, 1,       "0: the same bits at every --recompute") \
    X(I, master_weights,    TRAIN,  "1",      0, 1,       "bf16: 0 rounds at random instead") \
    X(E, adam_state,        TRAIN,  "fp32",   0, 0,       "fp32|bf16") \
    X(I, zero,              TRAIN,  "1",      0, 1,       "1: a rank keeps its share of m and v") \
    X(I, pairwise,          TRAIN,  "1",      0, 1,       "0: one gradient buffer, other sums") \
    X(I, recompute,         TRAIN,  "0",      0, 3,       "redo: 1 GELU, 2 +layernorms, 3 layers") \
    X(I, val_every,         WATCH,  "250",    0, 1e12,    "steps; 0: off") \
    X(I, val_batches,       WATCH,  "0",      0, 1e12,    "micro-batches; 0: the whole set") \
    X(S, hellaswag,         WATCH,  "",       0, 0,       "llm.c's file of examples: accuracy") \
    X(I, sample_every,      WATCH,  "0",      0, 1e12,    "steps; 0: off") \
    X(I, sample_tokens,     WATCH,  "256",    1, 1e9,     "tokens of a sample") \
    X(S, prompt,            WATCH,  "",       0, 0,       "start of the samples during training") \
    X(F, temperature,       WATCH,  "1",      0, 100,     "0: always the likeliest token") \
    X(I, top_k,             WATCH,  "0",      0, 16777216, "sample from the k likeliest; 0: all") \
    X(F, top_p,             WATCH,  "1",      0, 1,       "sample from this much probability") \
    X(S, log,               WATCH,  "",       0, 0,       "JSON lines; default OUT/log.jsonl") \
    X(S, out,               SAVE,   "out",    0, 0,       "folder of checkpoints and log") \
    X(I, save_every,        SAVE,   "500",    0, 1e12,    "steps; 0: only at the end") \
    X(I, keep,              SAVE,   "2",      0, 1e6,     "newest checkpoints; 0: write none") \
    X(I, keep_every,        SAVE,   "0",      0, 1e12,    "steps; these are kept for good") \
    X(I, timeout,           ROBUST, "600",    0, 1e6,     "s without progress of a rank; 0: off") \
    X(I, skip_nonfinite,    ROBUST, "10",     1, 1e6,     "bad steps in a row: back, stop") \
    X(F, spike_zscore,      ROBUST, "8",      0, 1e6,     "skip steps this far off; 0: off") \
    X(I, check_replicas,    ROBUST, "100",    0, 1e12,    "steps; compare the ranks; 0: off") \
    X(S, inject,            ROBUST, "",       0, 0,       "a fault, for tests only (15.2)")

typedef int64_t FLAG_I, FLAG_B;
typedef double FLAG_F;
typedef const char *FLAG_S, *FLAG_E;
#define FLAG_ENUM(type, name, ...) F_##name,
#define FLAG_FIELD(type, name, ...) FLAG_##type name;
enum { FLAGS(FLAG_ENUM) NUM_FLAGS };
typedef struct { FLAGS(FLAG_FIELD) unsigned char given[NUM_FLAGS]; } Flags;

typedef struct {
    char type; const char *name; int group; const char *value; double min, max; const char *help;
    size_t offset; } FlagInfo;
#define FLAG_ROW(type, name, group, value, min, max, help) \
    { #type[0], #name, group, value, min, max, help, offsetof(Flags, name) },
static const FlagInfo flag_infos[NUM_FLAGS] = { FLAGS(FLAG_ROW) };

static void *flag_at(const Flags *f, int i) { return (char *)f + flag_infos[i].offset; }
static int64_t *flag_int(const Flags *f, int i) { return (int64_t *)flag_at(f, i); }
static double *flag_number(const Flags *f, int i) { return (double *)flag_at(f, i); }
static const char **flag_string(const Flags *f, int i) { return (const char **)flag_at(f, i); }

static int is_choice(const char *choices, const char *word) { // "a|b|c"
    size_t count;
    for (const char *c = choices; *c; c += count + (c[count] == '|')) {
        count = strcspn(c, "|");
        if (count == strlen(word) && !strncmp(c, word, count)) return 1;
    }
    return 0;
}
static void flag_set(Flags *f, int i, const char *text, int code) {
    const FlagInfo *info = &flag_infos[i];
    char *end = NULL;
    errno = 0;
    if (info->type == 'I' || info->type == 'B') {
        long long value = strtoll(text, &end, 10);
        check(end != text && *end == 0 && errno == 0 && !isspace(*text), code, "--%s wants a whole "
              "number, got '%s'", info->name, text);
        check((double)value >= info->min && (double)value <= info->max, code,
              "--%s must be in [%.0f, %.0f], got %s", info->name, info->min, info->max, text);
        *flag_int(f, i) = value;
    } else if (info->type == 'F') {
        double value = strtod(text, &end);
        int is_plain = text[strspn(text, "+-.0123456789eE")] == 0; // no blank, hex, nan, inf
        check(is_plain && end != text && *end == 0 && isfinite(value), code, "--%s wants a number, "
              "got '%s'", info->name, text);
        check(value >= info->min && value <= info->max, code, "--%s must be in [%g, %g], got %s",
              info->name, info->min, info->max, text);
        *flag_number(f, i) = value;
    } else {
        check(info->type == 'S' || is_choice(info->help, text), code, "--%s must be %s, got '%s'",
              info->name, info->help, text);
        *flag_string(f, i) = text_of("%s", text);
    }
}

static void flag_add_value(Text *t, const Flags *f, int i) { // as JSON, and exact
    char type = flag_infos[i].type;
    if (type == 'I' || type == 'B') text_add(t, "%" PRId64, *flag_int(f, i));
    else if (type == 'F') text_add(t, "%.17g", *flag_number(f, i));
    else text_add_quoted(t, *flag_string(f, i));
}
// A checkpoint keeps all flags but those that are of one call.
static int is_flag_of_call(int i) {
    return flag_infos[i].group == MODE || i == F_out || i == F_log || i == F_allow_data_change ||
           i == F_zero || i == F_timeout || i == F_inject;
}
static void flags_add_json(Text *t, const Flags *f) {
    const char *separator = "{";
    for (int i = 0; i < NUM_FLAGS; i++) {
        if (is_flag_of_call(i)) continue;
        text_add(t, "%s\"%s\":", separator, flag_infos[i].name);
        flag_add_value(t, f, i);
        separator = ",";
    }
    text_add(t, "}");
}

static void flags_help(void) {
    printf("usage: ./train_gpt [--flag value | --flag=value]\n"
           "  ./train_gpt --train my.txt        trains a small model on your text, into out/\n"
           "  ./train_gpt --sample \"Once\"       continues a prompt with it\n");
    for (int group = 0; group < NUM_GROUPS; group++) {
        printf("\n%s\n", group_titles[group]);
        for (int i = 0; i < NUM_FLAGS; i++) {
            const FlagInfo *info = &flag_infos[i];
            if (info->group != group) continue;
            printf("  --%-20s %-8s %s", info->name, info->type == 'B' ? "" : info->value,
                   info->help);
            if (info->type == 'I' || info->type == 'F') printf("  [%g..%g]", info->min, info->max);
            printf("\n");
        }
    }
}

static size_t edit_distance(const char *a, const char *b) { // Levenshtein, by rows
    size_t row[64], count = min_size(strlen(b), 63);
    for (size_t k = 0; k <= count; k++) row[k] = k;
    for (size_t i = 0; a[i]; i++) {
        size_t diagonal = row[0]++;
        for (size_t k = 1; k <= count; k++) {
            size_t best = min_size(min_size(row[k], row[k - 1]) + 1, diagonal + (a[i] != b[k - 1]));
            diagonal = row[k];
            row[k] = best;
        }
    }
    return row[count];
}
static int flag_find(const char *name) { // NUM_FLAGS: there is none
    int i = 0;
    while (i < NUM_FLAGS && strcmp(name, flag_infos[i].name)) i++;
    return i;
}
__attribute__((noreturn))
static void flag_unknown(const char *name) {
    int nearest = 0;
    size_t least = SIZE_MAX;
    for (int i = 0; i < NUM_FLAGS; i++) {
        int is_start = !strncmp(name, flag_infos[i].name, strlen(name)); // --warmup
        size_t distance = is_start ? 0 : edit_distance(name, flag_infos[i].name);
        if (distance < least) { least = distance; nearest = i; }
    }
    check(least > 2, EXIT_USAGE, "unknown flag --%s; did you mean --%s? (--help lists all)", name,
          flag_infos[nearest].name);
    die(EXIT_USAGE, "unknown flag --%s (--help lists all)", name);
}

// `--name value`, `--name=value`, `--switch`; '-' and '_' in a name are the same.
static Flags flags_parse(int argc, char **argv) {
    Flags f;
    memset(&f, 0, sizeof f);
    for (int i = 0; i < NUM_FLAGS; i++) flag_set(&f, i, flag_infos[i].value, EXIT_INTERNAL);
    for (int k = 1; k < argc; k++) {
        if (!strcmp(argv[k], "-h")) argv[k] = (char *)"--help";
        check(!strncmp(argv[k], "--", 2), EXIT_USAGE, "a flag begins with --, got '%s' (a pattern "
              "of files needs quotes; --help lists all flags)", argv[k]);
        char *name = text_of("%.80s", argv[k] + 2), *equals = strchr(name, '=');
        if (equals) *equals = 0;
        for (char *c = name; *c; c++) if (*c == '-') *c = '_';
        int i = flag_find(name);
        if (i == NUM_FLAGS) flag_unknown(name);
        check(!f.given[i], EXIT_USAGE, "--%s is given twice", flag_infos[i].name);
        f.given[i] = 1;
        if (equals) flag_set(&f, i, strchr(argv[k], '=') + 1, EXIT_USAGE);
        else if (flag_infos[i].type == 'B') *flag_int(&f, i) = 1;
        else {
            check(k + 1 < argc && (i == F_sample || i == F_prompt || strncmp(argv[k + 1], "--", 2)),
                  EXIT_USAGE, "--%s needs a value", flag_infos[i].name);
            flag_set(&f, i, argv[++k], EXIT_USAGE);
        }
        free(name);
    }
    if (f.help) {
        if (rank == 0) flags_help();
        check_stdout();
        exit(EXIT_SUCCESS);
    }
    return f;
}

// The flags of the checkpoint are the defaults. A flag that is given again wins where it steers the
// training; where it would change which window comes next, it is refused, as is another shape of
// the model (flags_take_config). Returns the flags of the checkpoint.
static Flags flags_merge_saved(Flags *f, Json j) {
    char name[64];
    size_t room = (size_t)(j.end - j.text) + 64; // no value is longer
    char *value = (char *)host_alloc(room);
    Flags saved = *f;
    for (json_enter(&j, '{'); json_more(&j, '}'); ) {
        json_key(&j, name, sizeof name);
        if (json_peek(&j) == '"') json_string(&j, value, room);
        else snprintf(value, room, "%.17g", json_number(&j));
        int i = flag_find(name);
        check(i < NUM_FLAGS, EXIT_INPUT, "%s: flag %s is not known here", j.path, name);
        if (is_flag_of_call(i)) continue;
        flag_set(&saved, i, value, EXIT_INPUT);
        if (!f->given[i]) { // all types of flags are of one size
            memcpy(flag_at(f, i), flag_at(&saved, i), sizeof(FLAG_I));
            continue;
        }
        Text was = { NULL, 0, 0 }, now = { NULL, 0, 0 };
        flag_add_value(&was, &saved, i);
        flag_add_value(&now, f, i);
        if (f->resume && strcmp(was.at, now.at)) {
            int is_course = i == F_seed || i == F_val_fraction || i == F_tokenizer;
            check(i != F_seq_len, EXIT_USAGE, "--%s %s: the checkpoint has %s; a resumed model "
                  "keeps its shape (or start another --out)", name, now.at, was.at);
            check(!is_course || f->allow_data_change, EXIT_USAGE, "--%s %s: the checkpoint has "
                  "%s, and another one changes the course of the data; --allow_data_change goes "
                  "on all the same", name, now.at, was.at);
            if (flag_infos[i].group != WATCH && flag_infos[i].group != MODEL)
                say("changed: %s %s -> %s\n", name, was.at, now.at);
        }
        free(was.at), free(now.at);
    }
    free(value);
    return saved;
}

// === 4. Random numbers ================================================================= [shared]
// Two generators: the Mersenne Twister draws initial weights, to give PyTorch's for the same seed;
// everything else hashes a counter, so that there is no state to save and no order to keep.

static uint64_t hash64(uint64_t x) { // the finaliser of splitmix64 (Steele et al. 2014)
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
static double hash_uniform(uint64_t seed, uint64_t counter) { // in [0, 1)
    return (double)(hash64(hash64(seed) ^ counter) >> 11) * 0x1p-53;
}
// A permutation of 0..count-1 without a table: a 4-round Feistel network on the smallest even
// number of bits that holds count; a result >= count goes through again ("cycle walking").
static uint64_t permute(uint64_t i, uint64_t count, uint64_t key) {
    int half = 1;
    while (half < 32 && ((uint64_t)1 << (2 * half)) < count) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t mixed = left ^ (hash64(hash64(key + round) ^ right) & mask);
            left = right;
            right = mixed;
        }
        i = left << half | right;
    } while (i >= count);
    return i;
}

// Mersenne Twister MT19937 (Matsumoto and Nishimura 1998), PyTorch's generator on the CPU.
enum { MERSENNE_N = 624, MERSENNE_M = 397 };
typedef struct {
    uint32_t state[MERSENNE_N];
    uint32_t next;         // index of the next word to hand out; MERSENNE_N: make new ones
    int has_spare;         // fewer than 16 normal numbers are made in pairs
    double spare;
} Mersenne;

static void mersenne_seed(Mersenne *r, uint64_t seed) {
    r->state[0] = (uint32_t)seed; // PyTorch too ignores the upper half
    for (uint32_t i = 1; i < MERSENNE_N; i++) {
        uint32_t before = r->state[i - 1];
        r->state[i] = 1812433253u * (before ^ before >> 30) + i;
    }
    r->next = MERSENNE_N;
    r->has_spare = 0;
}
static uint32_t mersenne_next(Mersenne *r) {
    if (r->next == MERSENNE_N) {
        for (uint32_t i = 0; i < MERSENNE_N; i++) {
            uint32_t y = (r->state[i] & 0x80000000u) |
                         (r->state[(i + 1) % MERSENNE_N] & 0x7fffffffu);
            r->state[i] = r->state[(i + MERSENNE_M) % MERSENNE_N] ^ y >> 1 ^
                          (y & 1 ? 0x9908b0dfu : 0);
        }
        r->next = 0;
    }
    uint32_t y = r->state[r->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}
static float mersenne_float(Mersenne *r) { // uniform in [0, 1), 24 random bits
    return (float)(mersenne_next(r) & 0xffffff) * 0x1p-24f;
}
static double mersenne_double(Mersenne *r) { // uniform in [0, 1), 53 random bits
    uint64_t high = mersenne_next(r);
    return (double)((high << 32 | mersenne_next(r)) & (((uint64_t)1 << 53) - 1)) * 0x1p-53;
}
// normal_fill: the numbers of torch's normal_(0, std), count of them.
//   torch   fills out with uniforms, then turns each block of 16 into normals, i with i + 8 (Box
//           and Muller 1958). Where 16 does not divide count, the last 16 places are drawn and
//           turned anew. Fewer than 16 are made pair by pair in double; an odd one stays for the
//           next such call.
//   equal   85 % of all numbers to the bit, the others within 8e-7 * std: torch's AVX2 code has its
//           own log, sin and cos. theta is a float because torch rounds it: worth 1e-6 * std.
static void normal_fill(real *out, size_t count, float std, Mersenne *r) {
    for (size_t i = 0; i < count && count < 16; i++, r->has_spare = !r->has_spare) {
        if (r->has_spare) { out[i] = (float)(r->spare * std); continue; }
        double theta = 2 * 3.14159265358979323846 * mersenne_double(r);
        double radius = sqrt(-2 * log(1 - mersenne_double(r)));
        out[i] = (float)(radius * cos(theta) * std);
        r->spare = radius * sin(theta);
    }
    if (count < 16) return;
    for (size_t i = 0; i < count; i++) out[i] = mersenne_float(r);
    for (size_t start = 0; start < count; start += 16) {
        real *block = out + min_size(start, count - 16);
        if (start + 16 > count) for (size_t i = 0; i < 16; i++) block[i] = mersenne_float(r);
        for (size_t i = 0; i < 8; i++) {
            float u = (float)block[i], theta = 6.28318530717958647692f * (float)block[i + 8];
            float radius = sqrtf(-2 * logf(1 - u)); // 1 - u is in (0, 1], as log needs
            block[i] = radius * cosf(theta) * std;
            block[i + 8] = radius * sinf(theta) * std;
        }
    }
}

// === 5. The device and its memory ================================================================

// --- 5.1 elementary functions, branch-free so that loops over them vectorise ---
// exp_real: e^x.
//   how     x = n ln 2 + r, |r| <= ln 2 / 2; a polynomial for e^r; n goes into the exponent bits.
//   error   <= 2 ulp for -87.3 <= x <= 88.3 (tested); 0 below (softmax wants masked keys to weigh
//           exactly nothing), e^88.3 above (so 1 / (1 + e^x) needs no care); NaN stays NaN.
static inline float exp_poly(float x) {
    float y = x > 88.3f ? 88.3f : x;
    // 1.5 * 2^23: the sum's last bits are round(y / ln 2)
    float shifted = y * 1.44269504f + 12582912.f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    float n = shifted - 12582912.f;
    float r = y - n * 0.693359375f;
    r = r + n * 2.12194440e-4f; // ln 2 in two parts, the first with few bits: n times it is exact
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.f;
    bits = (bits << 23) + 0x3f800000u;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return y < -87.3f ? 0.f : p * scale;
}
static inline double exp_double(double x) { return exp(x); }

// gelu: x / 2 * (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3)   (Hendrycks & Gimpel 2016)
// (1 + tanh(u)) / 2 = 1 / (1 + e^-2u) loses no digits where tanh is near -1.
static inline real gelu_gate(real x) {
    real two_u = (real)1.5957691216057308 * (x + (real)0.044715 * x * x * x);
    return 1 / (1 + exp_real(-two_u));
}
static inline real gelu(real x) { return x * gelu_gate(x); }
// d/dx x gate(x) = gate + x gate (1 - gate) d(2u)/dx
static inline real gelu_slope(real x) {
    real gate = gelu_gate(x);
    real d_two_u = (real)1.5957691216057308 * (1 + (real)0.134145 * x * x);
    return gate + x * gate * (1 - gate) * d_two_u;
}

// --- 5.2 the device: the calls behind which a GPU hides ---
static void dev_check(void) { // the first thing the program does
    const char *missing = CPU_NEEDS(__builtin_cpu_supports);
    check(missing == NULL, EXIT_USAGE, "this build needs a CPU with %s: build it on this machine "
          "(make clean all), or with make ARCH=x86-64", missing);
}

static size_t dev_bytes = 0; // what has been allocated; --plan predicts it exactly

// Page faults are dear (13 to 18 us per 4 KiB page): 2 MiB pages where the kernel gives them, first
// touched by all threads together, allocated once and kept to the end.
static void *dev_alloc(size_t bytes, const char *what) {
    enum { HUGE_PAGE = 2 << 20 };
    if (bytes == 0) return NULL;
    size_t room = round_up(bytes, bytes < HUGE_PAGE ? 4096 : HUGE_PAGE);
    char *p = (char *)aligned_alloc(bytes < HUGE_PAGE ? 4096 : HUGE_PAGE, room);
    check(p != NULL, EXIT_INTERNAL, "out of memory: %s wants %.1f MB; lower --batch_size or raise "
          "--recompute (--plan shows all sizes)", what, 1e-6 * (double)bytes);
    advise_huge(p, room);
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < room; i += 4096) memset(p + i, 0, 4096);
    dev_bytes += bytes;
    return p;
}
static void dev_free(void *p) { free(p); }
static void dev_zero(void *p, size_t bytes) { memset(p, 0, bytes); }
static void to_dev(void *dev, const void *host, size_t bytes) { memcpy(dev, host, bytes); }
static void to_host(void *host, const void *dev, size_t bytes) { memcpy(host, dev, bytes); }
static void dev_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
static void dev_sync(void) {}
// What a GPU does on its own time: marks of it, and work beside the main work. Here all is done
// when a call returns.
static double stamps_ms[256];
enum { NUM_STAMPS = sizeof stamps_ms / sizeof *stamps_ms };
static void dev_stamp(int i) { stamps_ms[i] = now_ms(); } // when what has been started is done
static double dev_stamps_ms(int from, int to) { return stamps_ms[to] - stamps_ms[from]; }
static void dev_side_begin(void) {} // what follows is done beside what comes after dev_side_end
static void dev_side_end(void) {}
static void dev_side_join(void) {}  // what follows waits for it
static void values_to_host(real *host, const floatX *dev, size_t count) {
    for (size_t i = 0; i < count; i++) host[i] = f32(dev[i]);
}
static void values_to_dev(floatX *dev, const real *host, size_t count) {
    for (size_t i = 0; i < count; i++) dev[i] = fX(host[i]);
}
static size_t dev_bytes_free(void) { // this process's share of what is free; 0: not known
    unsigned long long kib = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "r");
    while (f != NULL && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1) break;
    if (f != NULL) fclose(f);
    return (size_t)kib * 1024 / (size_t)node_ranks;
}
static char *dev_name(void) { return text_of("%d threads", omp_get_max_threads()); }

// === 6. Ops ======================================================================================
// Forward beside backward. Every op gives the same bits for any number of threads: work is divided
// over outputs, and a sum is always taken in the same order.

// --- 6.1 embedding ---
// embedding_forward: the vector of each token plus the vector of its position.
//   in      tokens (B,T) int32; wte (Vp,C), wpe (maxT,C) floatX; first: position of tokens[.][0]
//   out     out (B,T,C) floatX
//   needs   tokens < V, first + T <= maxT (checked where they are read)
//   cost    moves 3*B*T*C values
//   source  Radford et al. 2019 (GPT-2: learned positions)
static void embedding_forward(floatX *out, const int32_t *tokens, const floatX *wte,
                              const floatX *wpe, size_t B, size_t T, size_t C, size_t first) {
    #pragma omp parallel for schedule(static)
    for (size_t n = 0; n < B * T; n++) {
        const floatX *token = wte + (size_t)tokens[n] * C, *position = wpe + (first + n % T) * C;
        for (size_t i = 0; i < C; i++) out[n * C + i] = fX(f32(token[i]) + f32(position[i]));
    }
}
// embedding_backward: out = wte[token] + wpe[position], so both get dout.
//   in      dout (B,T,C); accumulate: 0 when dwpe holds no gradient yet
//   out     dwte (Vp,C) real, always added to (the head's gradient is there already); dwpe (maxT,C)
//   work    a thread owns a range of channels: tokens that occur twice are added in order
static void embedding_backward(real *dwte, real *dwpe, const floatX *dout, const int32_t *tokens,
                               size_t B, size_t T, size_t C, size_t maxT, int accumulate) {
    #pragma omp parallel for schedule(static)
    for (size_t lo = 0; lo < C; lo += 16) {
        size_t hi = min_size(lo + 16, C);
        for (size_t t = 0; t < maxT && !accumulate; t++)
            for (size_t i = lo; i < hi; i++) dwpe[t * C + i] = 0;
        for (size_t n = 0; n < B * T; n++)
            for (size_t i = lo; i < hi; i++) {
                real d = f32(dout[n * C + i]);
                dwte[(size_t)tokens[n] * C + i] += d;
                dwpe[n % T * C + i] += d;
            }
    }
}

// --- 6.2 layernorm ---
// layernorm_forward: normalise each row of C channels, then scale by weight and shift by bias.
//   in      inp (N,C) floatX; weight, bias (C) floatX
//   out     out (N,C) floatX; mean, rstd (N) real, kept for backward
//   work    a thread takes whole rows
//   cost    moves 3*N*C values (the second and third read of a row come from the L1 cache)
//   source  Ba et al. 2016; variance in a second pass, which loses no digits
static void layernorm_forward(floatX *out, real *mean, real *rstd, const floatX *inp,
                              const floatX *weight, const floatX *bias, size_t N, size_t C) {
    #pragma omp parallel for schedule(static)
    for (size_t n = 0; n < N; n++) {
        const floatX *x = inp + n * C;
        real sum = 0, squares = 0;
        #pragma omp simd reduction(+:sum)
        for (size_t i = 0; i < C; i++) sum += f32(x[i]);
        real mu = sum / (real)C;
        #pragma omp simd reduction(+:squares)
        for (size_t i = 0; i < C; i++) squares += (f32(x[i]) - mu) * (f32(x[i]) - mu);
        real scale = 1 / (real)sqrt(squares / (real)C + (real)1e-5);
        #pragma omp simd
        for (size_t i = 0; i < C; i++)
            out[n * C + i] = fX((f32(x[i]) - mu) * scale * f32(weight[i]) + f32(bias[i]));
        mean[n] = mu;
        rstd[n] = scale;
    }
}
// layernorm_backward: out = xhat * weight + bias with xhat = (inp - mean) * rstd.
//   in      dout, inp (N,C); mean, rstd (N); accumulate: 0 assigns dweight and dbias, 1 adds
//   out     dinp (N,C) floatX, added to (the residual stream's gradient is there already);
//           dweight, dbias (C) real
//   work    one walk through memory: a group of rows sums into a dweight and dbias of its own, and
//           the groups are added in order; their number, not that of the threads, decides the bits
//   speed   1.9 times rows, then stripes of columns, and a sixth of the error (dev/cpu/layernorm.c)
enum { LN_GROUPS = 32 };
static real *layernorm_scratch = NULL; // (LN_GROUPS,2,C), see ops_init

static void layernorm_backward(floatX *dinp, real *dweight, real *dbias, const floatX *dout,
                               const floatX *inp, const real *mean, const real *rstd,
                               const floatX *weight, size_t N, size_t C, int accumulate) {
    #pragma omp parallel for schedule(static)
    for (size_t k = 0; k < LN_GROUPS; k++) {
        real *dw = layernorm_scratch + 2 * k * C, *db = dw + C;
        memset(dw, 0, 2 * C * sizeof(real));
        for (size_t n = N * k / LN_GROUPS; n < N * (k + 1) / LN_GROUPS; n++) {
            const floatX *x = inp + n * C, *d = dout + n * C;
            real mu = mean[n], scale = rstd[n], sum = 0, dot = 0; // of dxhat, and of dxhat * xhat
            #pragma omp simd reduction(+:sum, dot)
            for (size_t i = 0; i < C; i++) {
                real dxhat = f32(d[i]) * f32(weight[i]);
                sum += dxhat;
                dot += dxhat * (f32(x[i]) - mu) * scale;
            }
            sum /= (real)C;
            dot /= (real)C;
            #pragma omp simd
            for (size_t i = 0; i < C; i++) {
                real xhat = (f32(x[i]) - mu) * scale, dxhat = f32(d[i]) * f32(weight[i]);
                dinp[n * C + i] = fX(f32(dinp[n * C + i]) + scale * (dxhat - sum - xhat * dot));
                dw[i] += f32(d[i]) * xhat;
                db[i] += f32(d[i]);
            }
        }
    }
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < C; i++) {
        real dw = accumulate ? dweight[i] : 0, db = accumulate ? dbias[i] : 0;
        for (size_t k = 0; k < LN_GROUPS; k++) {
            dw += layernorm_scratch[2 * k * C + i];
            db += layernorm_scratch[(2 * k + 1) * C + i];
        }
        dweight[i] = dw;
        dbias[i] = db;
    }
}

// --- 6.3 matmul ---
// Every matrix product is one routine, gemm: c(i,j) = sum over k of a(i,k) b(j,k), where
//     matmul_forward     out (N,OC)     = inp (N,C) . weight (OC,C)         k = c
//     matmul_backward    dinp (N,C)     = dout (N,OC) . weight^T (C,OC)     k = oc
//                        dweight (OC,C) = dout^T (OC,N) . inp^T (C,N)       k = n
// Tiles:   MR x NR sums of c stay in registers while k runs: MR + NR loads feed MR * NR products.
// Packing: pieces of a and b are copied into panels, in which the loads of a tile lie side by side
//          however the matrix lies in memory. Zeros fill them up, so that every tile is full.
// Blocks:  a piece fits the cache from which it is read again and again:
//                         b: a stripe of NC lanes, KC deep, in L2
//                        +------+------+----   -+
//      a: MC x KC in L3  |  NR  |  NR  |  ...   |  <- panel [slot][NR]: read for every tile
//      +----- KC -----+  +------+------+----   -+
//   MR | panel  [slot]|  | tile | tile |  ...   |     c: a row of tiles sweeps the stripe while its
//      | [PA]         |  +------+------+----   -+     MR lanes of a stay near the core
//   MR |              |  | tile |      |        |
// Threads share nothing: each computes a rectangle of c with panels of its own. Some lanes are
// packed by several threads, but no thread ever waits. k is never split between threads and every
// element is summed alike wherever it lies: its bits depend neither on the number of threads nor
// on M, so decoding one token equals the batched pass.
// If products are rounded to bf16, that happens while packing; a slot may then hold k and k + VL.
// needs: sum + a * b compiled to one FMA, so not gcc -std=c11 (it implies -ffp-contract=off).
enum {
    NR = NV * VL,
    PA = MR > VL ? MR : VL, // lanes in a panel of a, of which a tile reads MR
    KC = 768, // slots: one pass over c for most layers; 384 to 1024 differ by 3 %
    NC = 96,  // a stripe of 295 KB leaves room in L2; 64 to 192 are equal, 384 is 4 % worse
    MC = 768, // rows that use a packed stripe: all packing is 3 to 6 % of the time; 2.4 MB of a
    NB = 768, // columns whose partial sums wait for the next KC: MC * NB * 4 bytes = 2.4 MB
};

static int matmul_bf16 = 0;        // --matmul bf16: round operands to bf16
static double matmul_flops = 0;    // done so far, for the tests of the cost model
static real *gemm_scratch = NULL;  // GEMM_SCRATCH reals for each thread, see ops_init
enum { GEMM_SCRATCH = MC * KC + NC * KC + MC * NB };

static inline int is_bf16_product(void) {
    return sizeof(floatX) == 2 || (matmul_bf16 && sizeof(real) == 4);
}
static inline size_t slots_of(size_t K, int bf16) { return div_up(K, VL * slot_k(bf16)) * VL; }

typedef struct { const floatX *p; size_t row, col; } Mat; // (i,k) = p[i*row + k*col]; one is 1
static inline Mat rows_of(const floatX *p, size_t ld) { Mat m = {p, ld, 1}; return m; }
static inline Mat cols_of(const floatX *p, size_t ld) { Mat m = {p, 1, ld}; return m; }
static inline Mat mat_at(Mat m, size_t i, size_t k) { m.p += i * m.row + k * m.col; return m; }

typedef struct {                  // c (M,N), and what is done to a sum before it is stored there
    floatX *x;                    // target of activations, or
    real *r;                      // target of weight gradients and attention scores
    size_t ld, i, j;              // leading dimension; first row and column
    int add;                      // r += sum instead of r = sum
    const floatX *bias;           // (N): added to every row
    floatX *pre_gelu;             // (M,N): receives the sum so far, which becomes gelu(sum)
    const floatX *gelu_backward;  // (M,N): pre_gelu of the forward pass; sum *= gelu_slope of it
    const floatX *residual;       // (M,N): added last
} Out;
static inline Out to_x(floatX *x, size_t ld) { Out c = {x, 0, ld, 0, 0, 0, 0, 0, 0, 0}; return c; }
static inline Out to_r(real *r, size_t ld) { Out c = {0, r, ld, 0, 0, 0, 0, 0, 0, 0}; return c; }

// r[slot] = slots of VL lanes of m from (lane, k) on; zeros outside of m's (lanes, K).
// If k runs along memory, lanes are loaded and transposed, else slots are loaded. Prefetches the
// same block of the next VL memory rows into L2, which takes 1/3 to 2/3 of the time from DRAM.
INLINE void load_block(Vec r[VL], Mat m, size_t lane, size_t k, size_t lanes, size_t K, int bf16) {
    const size_t W = VL * slot_k(bf16), ahead = m.col == 1 ? VL * m.row : W * m.col;
    floatX edge[2 * VL * VL];
    m = mat_at(m, lane, k);
    if (lane + VL > lanes || k + W > K) {
        memset(edge, 0, sizeof(edge));
        for (size_t i = 0; i < VL && lane + i < lanes; i++)
            for (size_t j = 0; j < W && k + j < K; j++)
                edge[i * W + j] = m.p[i * m.row + j * m.col];
        m = rows_of(edge, W);
    }
    const size_t step = m.col == 1 ? m.row : m.col;
    UNROLL for (int i = 0; i < VL; i++, m.p += step) {
        for (size_t j = 0; j < W; j += VL) __builtin_prefetch(m.p + j * m.col + ahead, 0, 2);
        r[i] = load_slots(m.p, VL * m.col, bf16);
    }
    if (m.col == 1) transpose(r);
}

// Where the first slot of lane i is in panels [panel][slot][P].
INLINE size_t panel_at(size_t i, size_t P, size_t slots) { return i / P * P * slots + i % P; }
// dst [panel][slot][P] = (lanes, K) of m, walking along its rows in memory
INLINE void pack(real *dst, size_t P, Mat m, size_t lanes, size_t K, int bf16) {
    const size_t slots = slots_of(K, bf16), wide = round_up(lanes, P);
    const size_t outer = m.col == 1 ? wide : slots, inner = m.col == 1 ? slots : wide;
    for (size_t o = 0; o < outer; o += VL)
        for (size_t n = 0; n < inner; n += VL) {
            const size_t lane = m.col == 1 ? o : n, q = m.col == 1 ? n : o;
            real *d = dst + panel_at(lane, P, slots) + q * P;
            Vec r[VL];
            load_block(r, m, lane, q * slot_k(bf16), lanes, K, bf16);
            UNROLL for (int i = 0; i < VL; i++) *(Vec *)(d + i * P) = r[i];
        }
}

// tile (MR,NR), rows ld apart, = or += MR lanes of a panel of a times a panel of b. All the time
// goes here.
INLINE void sum_tile(real *tile, size_t ld, const real *a, const real *b, size_t slots, int add,
                     int bf16) {
    Vec sum[MR][NV] = {{{0}}}, y[NV];
    for (size_t q = 0; q < slots; q++, a += PA, b += NR) {
        UNROLL for (int j = 0; j < NV; j++) y[j] = *(const Vec *)(b + j * VL);
        UNROLL for (int i = 0; i < MR; i++)
            UNROLL for (int j = 0; j < NV; j++)
                if (bf16) sum[i][j] = bf16_dot(sum[i][j], a[i], y[j]);
                else sum[i][j] += a[i] * y[j];
    }
    UNROLL for (int i = 0; i < MR * NV; i++) {
        Vec *t = (Vec *)(tile + i / NV * ld + i % NV * VL);
        if (add) sum[i / NV][i % NV] += *t;
        *t = sum[i / NV][i % NV];
    }
}

// For use with few rows, as in attention: the same two steps, bf16 chosen at run time.
NOINLINE void pack_panels(real *dst, size_t P, Mat m, size_t lanes, size_t K) {
    if (is_bf16_product()) pack(dst, P, m, lanes, K, 1);
    else pack(dst, P, m, lanes, K, 0);
}
// c (rows,cols), rows ld apart, padded to whole tiles, = or += panels a . panels b, K deep.
NOINLINE void panels_product(real *c, size_t ld, int add, const real *a, const real *b, size_t rows,
                             size_t cols, size_t K) {
    const int bf16 = is_bf16_product();
    const size_t slots = slots_of(K, bf16);
    for (size_t i = 0; i < rows; i += MR)
        for (size_t j = 0; j < cols; j += NR) {
            real *tile = c + i * ld + j;
            const real *ap = a + panel_at(i, PA, slots), *bp = b + j * slots;
            if (bf16) sum_tile(tile, ld, ap, bp, slots, add, 1);
            else sum_tile(tile, ld, ap, bp, slots, add, 0);
        }
}

// Finishes and stores n sums v of row i from column j on. gelu is taken of the stored, perhaps
// rounded, pre_gelu, so that recomputing it gives the same bits.
INLINE void store_row(Out c, real *v, size_t i, size_t j, size_t n) {
    const size_t at = i * c.ld + j;
    #define EACH _Pragma("omp simd") for (size_t l = 0; l < n; l++)
    if (c.bias) EACH v[l] += f32(c.bias[j + l]);
    if (c.pre_gelu) EACH c.pre_gelu[at + l] = fX(v[l]);
    if (c.pre_gelu) EACH v[l] = gelu(f32(c.pre_gelu[at + l]));
    if (c.gelu_backward) EACH v[l] *= gelu_slope(f32(c.gelu_backward[at + l]));
    if (c.residual) EACH v[l] += f32(c.residual[at + l]);
    if (c.add) EACH v[l] += c.r[at + l];
    if (c.r) EACH c.r[at + l] = v[l];
    else EACH c.x[at + l] = fX(v[l]);
    #undef EACH
}
NOINLINE void store_tile(const Out *c, real *tile, size_t i, size_t j, size_t rows, size_t cols) {
    for (size_t l = 0; l < rows; l++)
        if (cols == NR) store_row(*c, tile + l * NR, c->i + i + l, c->j + j, NR); // no loop tails
        else store_row(*c, tile + l * NR, c->i + i + l, c->j + j, cols);
}
// Asks for the tile's place in c before the tile is summed: +2 to +8 %
INLINE void prefetch_tile(Out c, size_t i, size_t j, size_t rows) {
    for (size_t l = 0; l < rows * NR; l += VL) {
        const size_t at = (c.i + i + l / NR) * c.ld + c.j + j + l % NR;
        __builtin_prefetch(c.r ? (const void *)(c.r + at) : (const void *)(c.x + at), 1);
    }
}

// M = 1 (decoding): b, used once, goes from memory to registers without a panel. Same sums.
INLINE void gemm_row(Out c, Mat a, Mat b, size_t N, size_t K, int bf16, real *tile) {
    const size_t kc = KC * slot_k(bf16);
    for (size_t j0 = 0; j0 < N; j0 += NR) {
        for (size_t j = 0; j < NR; j += VL)
            for (size_t k0 = 0; k0 < K; k0 += kc) {
                Vec sum = {0}, r[VL], *t = (Vec *)(tile + j);
                real x[VL];
                for (size_t k = k0; k < min_size(k0 + kc, K); k += VL * slot_k(bf16)) {
                    *(Vec *)x = load_slots(a.p + k, VL, bf16);
                    load_block(r, b, j0 + j, k, N, K, bf16);
                    UNROLL for (int q = 0; q < VL; q++)
                        if (bf16) sum = bf16_dot(sum, x[q], r[q]);
                        else sum += x[q] * r[q];
                }
                if (k0) sum += *t;
                *t = sum;
            }
        store_tile(&c, tile, 0, j0, 1, min_size(NR, N - j0));
    }
}

INLINE void gemm_blocks(Out c, Mat a, Mat b, size_t M, size_t N, size_t K, int bf16) {
    real *pa = gemm_scratch + (size_t)omp_get_thread_num() * GEMM_SCRATCH; // panels of a
    real *pb = pa + MC * KC, *sums = pb + NC * KC; // panels of b; one tile, or (NB,MC) sums
    if (M == 1 && a.col == 1 && b.col == 1 && K % (VL * slot_k(bf16)) == 0) {
        gemm_row(c, a, b, N, K, bf16, sums);
        return;
    }
    const size_t kc = KC * slot_k(bf16), nb = K > kc ? (size_t)NB : N;
    for (size_t i0 = 0; i0 < M; i0 += MC)
        for (size_t jb = 0; jb < N; jb += nb)
            for (size_t k = 0; k < K; k += kc) {
                const size_t mc = min_size(MC, M - i0), j_end = min_size(jb + nb, N);
                const size_t depth = min_size(kc, K - k), is_last = k + depth == K;
                const size_t slots = slots_of(depth, bf16);
                pack(pa, PA, mat_at(a, i0, k), mc, depth, bf16);
                for (size_t j0 = jb; j0 < j_end; j0 += NC) {
                    const size_t nc = min_size(NC, j_end - j0);
                    pack(pb, NR, mat_at(b, j0, k), nc, depth, bf16);
                    for (size_t i = 0; i < mc; i += MR)
                        for (size_t j = 0; j < nc; j += NR) {
                            const size_t rows = min_size(MR, mc - i), cols = min_size(NR, nc - j);
                            const real *ap = pa + panel_at(i, PA, slots);
                            real *tile = K > kc ? sums + (j0 - jb + j) * MC + i * NR : sums;
                            if (is_last) prefetch_tile(c, i0 + i, j0 + j, rows);
                            sum_tile(tile, NR, ap, pb + j * slots, slots, k > 0, bf16);
                            if (is_last) store_tile(&c, tile, i0 + i, j0 + j, rows, cols);
                        }
                }
            }
}
// gemm_serial: c (M,N) = a (M,K) . b (N,K), by the calling thread; for use in parallel regions.
// Never inlined: in an outlined parallel region gcc would not make two copies of gemm_blocks but
// keep the branch on bf16 inside of sum_tile, and the sums would leave the registers.
NOINLINE void gemm_serial(Out c, Mat a, Mat b, size_t M, size_t N, size_t K) {
    if (is_bf16_product()) gemm_blocks(c, a, b, M, N, K, 1);
    else gemm_blocks(c, a, b, M, N, K, 0);
}

static void matmul_tune(const char *path) { (void)path; } // a GPU's library has a choice
static void matmul_choose(const char *how, int fuses_gelu) { // --matmul; gelu is always fused
    (void)fuses_gelu;
    check(strcmp(how, "tf32") != 0, EXIT_USAGE, "--matmul tf32 is for GPUs; fp32 or bf16");
    matmul_bf16 = !strcmp(how, "bf16");
}

// gemm: the same by all threads: tm x tn of them, a rectangle of c each; the largest costs least.
static void gemm(Out c, Mat a, Mat b, size_t M, size_t N, size_t K) {
    const size_t m = div_up(M, MR), n = div_up(N, NR); // rows and columns of tiles
    matmul_flops += 2 * (double)M * (double)N * (double)K;
    #pragma omp parallel firstprivate(c) if (M * N * K > 1 << 16)  // 2 us: what a region costs
    {
        const size_t threads = (size_t)omp_get_num_threads(), me = (size_t)omp_get_thread_num();
        size_t tm = 1, best = SIZE_MAX;
        for (size_t t = 1; t <= threads; t++) { // + 8: packing costs about 8 products
            const size_t rows = div_up(m, t) * MR + 8, cols = div_up(n, threads / t) * NR + 8;
            if (rows * cols < best) { best = rows * cols; tm = t; }
        }
        const size_t tn = threads / tm, ti = me % tm, tj = me / tm;
        const size_t i = m * ti / tm * MR, i_end = min_size(m * (ti + 1) / tm * MR, M);
        const size_t j = n * tj / tn * NR, j_end = min_size(n * (tj + 1) / tn * NR, N);
        c.i += i, c.j += j;
        if (tj < tn)
            gemm_serial(c, mat_at(a, i, 0), mat_at(b, j, 0), i_end - i, j_end - j, K);
    }
}

// matmul_forward: out = [gelu](inp . weight^T + bias) + residual
//   in      inp (N,C), weight (OC,C), bias (OC) or NULL, residual (N,OC) or NULL     floatX
//   out     out (N,OC); pre_gelu (N,OC): argument of gelu, kept for backward; NULL: no gelu
//   cost    2*N*C*OC flops
//   speed   N=256 C=768 OC=3072 on Zen 4, all three products, % of its peak on 1 | 2 threads: fp32
//           91-92 | 88-92, bf16 87-90 | 86-89 (dev/cpu/README.md, 2026-12-01)
static void matmul_forward(floatX *out, floatX *pre_gelu, const floatX *inp, const floatX *weight,
    const floatX *bias, const floatX *residual, size_t N, size_t C, size_t OC) {
    Out c = to_x(out, OC);
    c.pre_gelu = pre_gelu;
    c.bias = bias;
    c.residual = residual;
    gemm(c, rows_of(inp, C), rows_of(weight, C), N, OC, C);
}

// matmul_backward: of out = inp . weight^T + bias; assigns weight gradients, or adds if accumulate
//   in      dout (N,OC), inp (N,C), weight (OC,C); pre_gelu (N,C) if inp = gelu(pre_gelu), or NULL
//   out     dinp (N,C) floatX, of pre_gelu if given; dweight (OC,C), dbias (OC) or NULL real
//   cost    4*N*C*OC flops
static void matmul_backward(floatX *dinp, real *dweight, real *dbias, const floatX *dout,
    const floatX *inp, const floatX *weight, const floatX *pre_gelu, size_t N, size_t C, size_t OC,
    int accumulate) {
    Out dx = to_x(dinp, C), dw = to_r(dweight, C);
    dx.gelu_backward = pre_gelu;
    dw.add = accumulate;
    gemm(dx, rows_of(dout, OC), cols_of(weight, C), N, C, OC);
    gemm(dw, cols_of(dout, OC), cols_of(inp, C), OC, C, N);
    if (!dbias) return;
    enum { WIDTH = 8 * VL }; // columns summed at a time: 512 bytes of a row; 4 * VL is slower
    #pragma omp parallel for schedule(static) if (N * OC > 1 << 14)
    for (size_t j = 0; j < OC; j += WIDTH) {
        real sum[WIDTH] = {0};
        const size_t cols = min_size(WIDTH, OC - j);
        for (size_t i = 0; i < N; i++)
            for (size_t l = 0; l < cols; l++) sum[l] += f32(dout[i * OC + j + l]);
        for (size_t l = 0; l < cols; l++)
            dbias[j + l] = accumulate ? dbias[j + l] + sum[l] : sum[l];
    }
}

// --- 6.4 attention ---
// Causal self-attention without a (T,T) matrix: queries and keys are taken in blocks of ATT_BLOCK,
// and the softmax is corrected at each new block of keys (Milakov & Gimelshein 2018, Dao 2022).
//
//            keys ->  0        64       128
//   queries   0       [ \      ]                    \ = diagonal: masked inside the block
//            64       [ full   ][ \      ]          blocks right of the diagonal are never visited
//           128       [ full   ][ full   ][ \     ]
//
// A thread takes whole heads, so nothing is shared; it packs a head's keys and values once and runs
// all products on gemm's tiles. Masked scores are -Inf and weigh exactly 0, and every row sum runs
// over the full width of a block: a row has the same bits however many rows are computed with it,
// which is why the cached decoding of section 12 repeats the training pass exactly.
enum { ATT_BLOCK = 64 % NR == 0 ? 64 : 4 * NR }; // a multiple of NR; a pair of blocks fits in L2

// Scratch of one thread. Panels are operands packed for sum_tile. HSp, deep, Tp: HS and T, padded.
#define ATTENTION(X) \
    /* type   name               reals */ \
    X(real,   scores,            square)       /* (ATT_BLOCK, ATT_BLOCK) */ \
    X(real,   dprobs,            square) \
    X(floatX, probs,             square)       /* the same as operands */ \
    X(floatX, dscores,           square) \
    X(real,   left,              square)       /* panels of P, dS, P^T or dS^T */ \
    X(real,   dot,               block)        /* (ATT_BLOCK) */ \
    X(real,   out,               block * HSp)  /* (ATT_BLOCK, HSp) */ \
    X(real,   dquery,            block * HSp) \
    X(real,   dkey,              Tp * HSp)     /* (T, HSp) */ \
    X(real,   dvalue,            Tp * HSp) \
    X(real,   keys,              Tp * deep)    /* panels of all T keys, for q k^T */ \
    X(real,   values,            Tp * deep)    /* ... of all values, for dout v^T */ \
    X(real,   keys_by_channel,   Tp * HSp)     /* ... of all keys, for dS k */ \
    X(real,   values_by_channel, Tp * HSp)     /* ... of all values, for P v */ \
    X(real,   rows,              block * deep) /* panels of a block of q, k = channel */ \
    X(real,   drows,             block * deep) /* ... of dout */ \
    X(real,   rows_by_channel,   block * HSp)  /* ... of q, k = row */ \
    X(real,   drows_by_channel,  block * HSp)  /* ... of dout, k = row */
#define ATTENTION_FIELD(type, name, count) type *name;
typedef struct { ATTENTION(ATTENTION_FIELD) } Attention;
static real *attention_scratch = NULL; // one piece for each thread, see ops_init
static size_t attention_T, attention_HS;

// Points s at its arrays in a piece that begins at `at`; returns the size of the piece in reals.
static size_t attention_lay_out(Attention *s, real *at, size_t T, size_t HS) {
    size_t block = ATT_BLOCK, square = block * block, Tp = round_up(T, block), total = 0;
    size_t HSp = round_up(HS, NR), deep = round_up(HS, 2 * VL);
#define ATTENTION_POINT(type, name, count) \
    s->name = at == NULL ? NULL : (type *)(at + total); \
    total += count;
    ATTENTION(ATTENTION_POINT)
    return total;
}
static Attention attention_here(void) { // of this thread
    Attention s;
    size_t count = attention_lay_out(&s, NULL, attention_T, attention_HS);
    attention_lay_out(&s, attention_scratch + (size_t)omp_get_thread_num() * count, attention_T,
                      attention_HS);
    return s;
}
// Panels of the keys or values in `rows` (T,HS), ld apart, for products with k = row: by blocks.
static void attention_pack_by_channel(real *panels, const floatX *rows, size_t ld, size_t T,
                                      size_t HS) {
    for (size_t t = 0; t < T; t += ATT_BLOCK)
        pack_panels(panels + t * round_up(HS, NR), NR, cols_of(rows + t * ld, ld), HS,
                    min_size(ATT_BLOCK, T - t));
}
// One block of query rows against all keys up to its own last row, whose panels are in s.
//   in      q (rows,HS) stride ld; first: position of its first row; T: keys in the panels
//   out     out (rows,HS) stride out_ld; lse (rows), or NULL: log of the sum of e^score
static void attention_rows(floatX *out, size_t out_ld, real *lse, const floatX *q, size_t ld,
                           size_t rows, size_t first, size_t T, size_t HS, Attention s) {
    size_t HSp = round_up(HS, NR), deep = slots_of(HS, is_bf16_product());
    real scale = 1 / (real)sqrt((real)HS), max[ATT_BLOCK], sum[ATT_BLOCK];
    pack_panels(s.rows, PA, rows_of(q, ld), rows, HS);
    for (size_t t = 0; t < first + rows; t += ATT_BLOCK) {
        size_t keys = min_size(ATT_BLOCK, T - t); // as many as were packed: it sets the layout
        panels_product(s.scores, ATT_BLOCK, 0, s.rows, s.keys + t * deep, rows, keys, HS);
        for (size_t i = 0; i < rows; i++) {
            real *score = s.scores + i * ATT_BLOCK;
            real old_max = t > 0 ? max[i] : (real)-INFINITY, new_max = old_max, block_sum = 0;
            size_t seen = first + i + 1 > t ? min_size(keys, first + i + 1 - t) : 0;
            for (size_t j = 0; j < ATT_BLOCK; j++)
                score[j] = j < seen ? score[j] * scale : (real)-INFINITY;
            #pragma omp simd reduction(max:new_max)
            for (size_t j = 0; j < ATT_BLOCK; j++)
                new_max = new_max > score[j] ? new_max : score[j];
            #pragma omp simd reduction(+:block_sum)
            for (size_t j = 0; j < ATT_BLOCK; j++) {
                real p = exp_real(score[j] - new_max);
                s.probs[i * ATT_BLOCK + j] = fX(p);
                block_sum += p;
            }
            real correction = exp_real(old_max - new_max);
            sum[i] = (t > 0 ? sum[i] * correction : 0) + block_sum;
            max[i] = new_max;
            if (t > 0) for (size_t c = 0; c < HSp; c++) s.out[i * HSp + c] *= correction;
        }
        pack_panels(s.left, PA, rows_of(s.probs, ATT_BLOCK), rows, keys);
        panels_product(s.out, HSp, t > 0, s.left, s.values_by_channel + t * HSp, rows, HS, keys);
    }
    for (size_t i = 0; i < rows; i++) {
        for (size_t c = 0; c < HS; c++) out[i * out_ld + c] = fX(s.out[i * HSp + c] / sum[i]);
        if (lse != NULL) lse[i] = max[i] + (real)log(sum[i]);
    }
}
// One head: n queries at positions first .. first+n-1 against first+n keys and values.
static void attention_head_forward(floatX *out, size_t out_ld, real *lse, const floatX *q,
                                   size_t ld, const floatX *k, const floatX *v, size_t kv_ld,
                                   size_t n, size_t first, size_t HS) {
    Attention s = attention_here();
    pack_panels(s.keys, NR, rows_of(k, kv_ld), first + n, HS);
    attention_pack_by_channel(s.values_by_channel, v, kv_ld, first + n, HS);
    for (size_t t = 0; t < n; t += ATT_BLOCK)
        attention_rows(out + t * out_ld, out_ld, lse ? lse + t : NULL, q + t * ld, ld,
                       min_size(ATT_BLOCK, n - t), first + t, first + n, HS, s);
}
// attention_forward: out = softmax(q k^T / sqrt(HS), causal) v, for every head.
//   in      qkv (B,T,3C) floatX: in each row NH queries, then NH keys, then NH values, of HS each
//   out     out (B,T,C) floatX; lse (B,NH,T) real, kept for backward
//   cost    2*B*T*T*C flops (half of the square is skipped)
//   source  Dao 2023 (FlashAttention-2)
static void attention_forward(floatX *out, real *lse, const floatX *qkv, size_t B, size_t T,
                              size_t C, size_t NH) {
    size_t HS = C / NH;
    #pragma omp parallel for schedule(dynamic)
    for (size_t head = 0; head < B * NH; head++) {
        const floatX *q = qkv + head / NH * T * 3 * C + head % NH * HS;
        attention_head_forward(out + head / NH * T * C + head % NH * HS, C, lse + head * T, q,
                               3 * C, q + C, q + 2 * C, 3 * C, T, 0, HS);
    }
}
// attention_cached: attention_forward for n new positions of one sequence; their keys and values
// join those of the positions before.
//   in      qkv (n,3C) floatX; first: position of the first row
//   in/out  keys, values (maxT,C) floatX: rows 0 .. first-1 are read, first .. first+n-1 written
//   out     out (n,C) floatX, the bits that attention_forward gives
static void attention_cached(floatX *out, floatX *keys, floatX *values, const floatX *qkv, size_t n,
                             size_t first, size_t C, size_t NH) {
    size_t HS = C / NH;
    for (size_t i = 0; i < n; i++) {
        memcpy(keys + (first + i) * C, qkv + i * 3 * C + C, C * sizeof(floatX));
        memcpy(values + (first + i) * C, qkv + i * 3 * C + 2 * C, C * sizeof(floatX));
    }
    #pragma omp parallel for schedule(static)
    for (size_t head = 0; head < NH; head++)
        attention_head_forward(out + head * HS, C, NULL, qkv + head * HS, 3 * C, keys + head * HS,
                               values + head * HS, C, n, first, HS);
}
// attention_backward: with P = softmax(S), S = scale q k^T, out = P v:
//   dv = P^T dout;  dP = dout v^T;  dS = P (dP - rowsum(dP * P)) scale;  dq = dS k;  dk = dS^T q
//   in      dout, out (B,T,C); lse (B,NH,T); qkv (B,T,3C).  rowsum(dP * P) = rowsum(dout * out).
//   out     dqkv (B,T,3C) floatX, assigned
//   work    a thread takes whole heads; P is made again from qkv and lse, block by block
//   cost    5*B*T*T*C flops: five products on half of the square
static void attention_head_backward(floatX *dqkv, const floatX *dout, const floatX *out,
                                    const real *lse, const floatX *qkv, size_t T, size_t C,
                                    size_t HS) {
    Attention s = attention_here();
    size_t HSp = round_up(HS, NR), deep = slots_of(HS, is_bf16_product());
    real scale = 1 / (real)sqrt((real)HS);
    pack_panels(s.keys, NR, rows_of(qkv + C, 3 * C), T, HS);
    pack_panels(s.values, NR, rows_of(qkv + 2 * C, 3 * C), T, HS);
    attention_pack_by_channel(s.keys_by_channel, qkv + C, 3 * C, T, HS);
    for (size_t q0 = 0; q0 < T; q0 += ATT_BLOCK) {
        size_t rows = min_size(ATT_BLOCK, T - q0);
        const floatX *q = qkv + q0 * 3 * C, *d = dout + q0 * C;
        pack_panels(s.rows, PA, rows_of(q, 3 * C), rows, HS);
        pack_panels(s.drows, PA, rows_of(d, C), rows, HS);
        pack_panels(s.rows_by_channel, NR, cols_of(q, 3 * C), HS, rows);
        pack_panels(s.drows_by_channel, NR, cols_of(d, C), HS, rows);
        for (size_t i = 0; i < rows; i++) {
            real dot = 0;
            #pragma omp simd reduction(+:dot)
            for (size_t c = 0; c < HS; c++) dot += f32(d[i * C + c]) * f32(out[(q0 + i) * C + c]);
            s.dot[i] = dot;
        }
        for (size_t k0 = 0; k0 <= q0; k0 += ATT_BLOCK) {
            size_t keys = min_size(ATT_BLOCK, T - k0);
            panels_product(s.scores, ATT_BLOCK, 0, s.rows, s.keys + k0 * deep, rows, keys, HS);
            panels_product(s.dprobs, ATT_BLOCK, 0, s.drows, s.values + k0 * deep, rows, keys, HS);
            for (size_t i = 0; i < rows; i++) {
                size_t seen = min_size(keys, q0 + i + 1 - k0), at = i * ATT_BLOCK;
                real row_lse = lse[q0 + i], row_dot = s.dot[i];
                #pragma omp simd
                for (size_t j = 0; j < ATT_BLOCK; j++) {
                    real p = exp_real(s.scores[at + j] * scale - row_lse);
                    real ds = p * (s.dprobs[at + j] - row_dot) * scale;
                    s.probs[at + j] = fX(j < seen ? p : 0);
                    s.dscores[at + j] = fX(j < seen ? ds : 0);
                }
            }
            int add = q0 > k0;
            pack_panels(s.left, PA, cols_of(s.probs, ATT_BLOCK), keys, rows);
            panels_product(s.dvalue + k0 * HSp, HSp, add, s.left, s.drows_by_channel, keys, HS,
                           rows);
            pack_panels(s.left, PA, cols_of(s.dscores, ATT_BLOCK), keys, rows);
            panels_product(s.dkey + k0 * HSp, HSp, add, s.left, s.rows_by_channel, keys, HS, rows);
            pack_panels(s.left, PA, rows_of(s.dscores, ATT_BLOCK), rows, keys);
            panels_product(s.dquery, HSp, k0 > 0, s.left, s.keys_by_channel + k0 * HSp, rows, HS,
                           keys);
        }
        for (size_t i = 0; i < rows; i++) for (size_t c = 0; c < HS; c++)
            dqkv[(q0 + i) * 3 * C + c] = fX(s.dquery[i * HSp + c]);
    }
    for (size_t t = 0; t < T; t++) for (size_t c = 0; c < HS; c++) {
        dqkv[t * 3 * C + C + c] = fX(s.dkey[t * HSp + c]);
        dqkv[t * 3 * C + 2 * C + c] = fX(s.dvalue[t * HSp + c]);
    }
}
static void attention_backward(floatX *dqkv, const floatX *dout, const floatX *out, const real *lse,
                               const floatX *qkv, size_t B, size_t T, size_t C, size_t NH) {
    size_t HS = C / NH;
    #pragma omp parallel for schedule(dynamic)
    for (size_t head = 0; head < B * NH; head++) {
        size_t row = head / NH * T, column = head % NH * HS;
        attention_head_backward(dqkv + row * 3 * C + column, dout + row * C + column,
                                out + row * C + column, lse + head * T, qkv + row * 3 * C + column,
                                T, C, HS);
    }
}

// --- 6.5 gelu (its backward is an epilogue of matmul_backward) ---
// gelu_forward: out = gelu(inp), count values; recompute level 1 makes matmul_forward's gelu again.
static void gelu_forward(floatX *out, const floatX *inp, size_t count) {
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < count; i++) out[i] = fX(gelu(f32(inp[i])));
}

// --- 6.6 classifier ---
// classifier_forward_backward: cross-entropy of each row, and its gradient in place of the logits.
//   in      targets (N) int32; dloss: gradient of the whole by one row's loss, 0: want no gradient
//   in/out  logits (N,Vp) floatX: becomes dlogits = (softmax - onehot) * dloss, 0 in the padding
//   out     losses (N) real: log(sum e^x) - x[target]
//   work    a thread takes whole rows; probabilities are never stored
//   cost    reads a row three times (it stays in the L2 cache), writes it once
static void classifier_forward_backward(real *losses, floatX *logits, const int32_t *targets,
                                        real dloss, size_t N, size_t V, size_t Vp) {
    #pragma omp parallel for schedule(static)
    for (size_t n = 0; n < N; n++) {
        floatX *x = logits + n * Vp;
        real max = -INFINITY, sum = 0;
        #pragma omp simd reduction(max:max)
        for (size_t i = 0; i < V; i++) max = f32(x[i]) > max ? f32(x[i]) : max;
        #pragma omp simd reduction(+:sum)
        for (size_t i = 0; i < V; i++) sum += exp_real(f32(x[i]) - max);
        real lse = max + (real)log(sum), target = f32(x[targets[n]]);
        losses[n] = lse - target;
        if (dloss == 0) continue;
        #pragma omp simd
        for (size_t i = 0; i < V; i++) x[i] = fX(exp_real(f32(x[i]) - lse) * dloss);
        x[targets[n]] = fX((exp_real(target - lse) - 1) * dloss);
        for (size_t i = V; i < Vp; i++) x[i] = fX(0);
    }
}

// --- 6.7 adamw ---
// adamw_update: one step on count neighbouring parameters.
//   in      g real; hyper: scaled for this step; master: NULL where weights are stored as real, or
//           rounded at random: w then does without it
//   in/out  w floatX; master real; m, v real, or floatX rounded at random: has_narrow_moments
//   cost    moves 7 values a parameter in fp32 (reads w g m v, writes w m v) -> memory-bound
//   source  Loshchilov & Hutter 2019; the order of operations is torch.optim.AdamW's
typedef struct {
    real grad_scale, beta1, beta2, eps, step_size, root_correction, keep;
    int is_random, has_narrow_moments;
    uint64_t draw; // number of the first parameter's draw
} AdamW;

static inline real moment_at(const void *m, size_t i, int is_narrow) {
    return has_master && is_narrow ? f32(((const floatX *)m)[i]) : ((const real *)m)[i];
}
static inline void moment_set(void *m, size_t i, real value, int is_narrow, uint64_t random) {
    if (has_master && is_narrow) ((floatX *)m)[i] = fX_random(value, (uint32_t)random);
    else ((real *)m)[i] = value;
}
static void adamw_update(floatX *w, real *master, void *m, void *v, const real *g, size_t count,
                         AdamW h) {
    enum { CHUNK = 1 << 14 };
    #pragma omp parallel for schedule(static)
    for (size_t lo = 0; lo < count; lo += CHUNK) {
        size_t hi = min_size(lo + CHUNK, count);
        #pragma omp simd
        for (size_t i = lo; i < hi; i++) {
            uint64_t random = has_master ? hash64(h.draw + i) : 0; // 16 bits for each of three
            real grad = g[i] * h.grad_scale, weight = master ? master[i] : f32(w[i]);
            real mean = h.beta1 * moment_at(m, i, h.has_narrow_moments) + (1 - h.beta1) * grad;
            real square = h.beta2 * moment_at(v, i, h.has_narrow_moments) +
                          (1 - h.beta2) * grad * grad;
            moment_set(m, i, mean, h.has_narrow_moments, random >> 16);
            moment_set(v, i, square, h.has_narrow_moments, random >> 32);
            real root = (real)sqrt(square) * h.root_correction + h.eps;
            weight = weight * h.keep - h.step_size * mean / root;
            if (master) master[i] = weight;
            w[i] = has_master && h.is_random ? fX_random(weight, (uint32_t)random) : fX(weight);
        }
    }
}

// --- 6.8 sums ---
// sum_squares: out[k] = the sum of squares of x[k * step .. (k + 1) * step), in double.
//   work    parts in parallel; the caller adds them in order
static void sum_squares(double *out, const real *x, size_t parts, size_t step) {
    #pragma omp parallel for schedule(static)
    for (size_t k = 0; k < parts; k++) {
        double sum = 0;
        #pragma omp simd reduction(+:sum)
        for (size_t i = k * step; i < (k + 1) * step; i++) sum += (double)x[i] * (double)x[i];
        out[k] = sum;
    }
}
// sum_values: out[0] = the sum of x[0 .. count), in double and in order.
static void sum_values(double *out, const real *x, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += x[i];
    *out = sum;
}
// vector_add: out[i] += x[i], a step of a sum over micro-batches or ranks.
static void vector_add(real *out, const real *x, size_t count) {
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < count; i++) out[i] += x[i];
}

// --- 6.9 scratch of the ops ---
// Allocated once, for the largest micro-batch, and counted by --plan.
static size_t ops_bytes(size_t B, size_t T, size_t C, size_t NH, size_t Vp) {
    (void)B; (void)Vp;
    Attention unused;
    size_t count = GEMM_SCRATCH + attention_lay_out(&unused, NULL, T, C / NH);
    return ((size_t)omp_get_max_threads() * count + 2 * LN_GROUPS * C) * sizeof(real);
}
static void ops_init(size_t B, size_t T, size_t C, size_t NH, size_t Vp) {
    size_t threads = (size_t)omp_get_max_threads();
    attention_T = T;
    attention_HS = C / NH;
    gemm_scratch = (real *)dev_alloc(ops_bytes(B, T, C, NH, Vp), "scratch of the ops");
    layernorm_scratch = gemm_scratch + threads * GEMM_SCRATCH;
    attention_scratch = layernorm_scratch + 2 * LN_GROUPS * C;
}
static void ops_free(void) { dev_free(gemm_scratch); }

// --- 6.10 the machine's peak, measured: what the progress line compares with ---
// FLOP/s of all threads multiplying and adding in registers, in the precision of the products.
INLINE real peak_loop(real start, int bf16) { // start: not known to the compiler
    Vec sum[12], half = { 0 };                // 12 sums that differ hide the latency
    __asm__ volatile(""); // keeps the loop where the clock is read before and after it
    half += (real)0.5;
    UNROLL for (int i = 0; i < 12; i++) sum[i] = half * (real)i + start;
    for (int n = 0; n < 1 << 18; n++)
        UNROLL for (int i = 0; i < 12; i++)
            if (bf16) sum[i] = bf16_dot(sum[i], (real)0.5, half);
            else sum[i] = sum[i] * half + half;
    UNROLL for (int i = 1; i < 12; i++) sum[0] += sum[i];
    return sum[0][0];
}
NOINLINE real peak_loop_real(real start) { return peak_loop(start, 0); }
NOINLINE real peak_loop_bf16(real start) { return peak_loop(start, 1); }
static double dev_peak_flops(void) {
    int bf16 = is_bf16_product();
    double best_ms = INFINITY; // of any thread in 8 rounds of 2 ms: one that nothing disturbed
    for (int round = 0; round < 8; round++) {
        #pragma omp parallel reduction(min:best_ms)
        {
            double begin = now_ms();
            volatile real start = 1, sum = bf16 ? peak_loop_bf16(start) : peak_loop_real(start);
            (void)sum;
            best_ms = fmin(best_ms, now_ms() - begin);
        }
    }
    double flops = 2.0 * 12 * VL * (double)slot_k(bf16) * (1 << 18) * omp_get_max_threads();
    return flops / best_ms * 1e3;
}

// === 7. The model ====================================================================== [shared]
// GPT-2: token + position embedding, L layers of (layernorm, attention, layernorm, MLP) on a
// residual stream, a last layernorm, and a head that shares the embedding's matrix.

typedef struct {
    size_t L, NH, C, maxT, V;
    size_t Vp; // V padded to 128: padded rows stay zero, out of every file and every softmax
} Config;

// Limits that a file or a flag is held to before anything is computed from it.
static void config_check(Config *c, int code, const char *source) {
    check(c->L >= 1 && c->L <= 1024, code, "%s: layers %zu, limit 1 to 1024", source, c->L);
    check(c->C >= 1 && c->C <= 65536, code, "%s: channels %zu, limit 1 to 65536", source, c->C);
    check(c->NH >= 1 && c->C % c->NH == 0, code, "%s: %zu channels do not divide into %zu heads",
          source, c->C, c->NH);
    check(c->C % CHANNELS_UNIT == 0, code, "%s: %zu channels, %s wants a multiple of %d", source,
          c->C, PROGRAM_NAME, CHANNELS_UNIT);
    check(c->maxT >= 1 && c->maxT <= 1048576, code, "%s: max_seq_len %zu, limit 1 to 1048576",
          source, c->maxT);
    check(c->V >= 1 && c->V <= 16777216, code, "%s: vocab_size %zu, limit 1 to 16777216", source,
          c->V);
    c->Vp = round_up(c->V, 128);
}

// --- 7.1 parameters ---
// A bucket is what is communicated and updated at once: FIRST, one for each LAYER, LAST.
// Matrices are (OC,C) as in PyTorch's Linear; Hugging Face's GPT-2 stores some of them (C,OC).
enum { FIRST, LAYER, LAST, NUM_SCOPES };
enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_RESIDUAL }; // std 0.02; 0.02 / sqrt(2 L)

// In a bucket the matrices come first: they decay, and are updated in one stretch.
#define PARAMS(X) \
    /* name     bucket rows   cols  init           matrix  Hugging Face name         transposed */ \
    X(wte,      FIRST, c.Vp,  c.C,  INIT_NORMAL,   1,      "wte.weight",             0) \
    X(wpe,      FIRST, c.maxT, c.C, INIT_NORMAL,   1,      "wpe.weight",             0) \
    X(qkvw,     LAYER, 3*c.C, c.C,  INIT_NORMAL,   1,      "h.%zu.attn.c_attn.weight", 1) \
    X(attprojw, LAYER, c.C,   c.C,  INIT_RESIDUAL, 1,      "h.%zu.attn.c_proj.weight", 1) \
    X(fcw,      LAYER, 4*c.C, c.C,  INIT_NORMAL,   1,      "h.%zu.mlp.c_fc.weight",  1) \
    X(fcprojw,  LAYER, c.C,   4*c.C, INIT_RESIDUAL, 1,     "h.%zu.mlp.c_proj.weight", 1) \
    X(ln1w,     LAYER, c.C,   1,    INIT_ONE,      0,      "h.%zu.ln_1.weight",      0) \
    X(ln1b,     LAYER, c.C,   1,    INIT_ZERO,     0,      "h.%zu.ln_1.bias",        0) \
    X(qkvb,     LAYER, 3*c.C, 1,    INIT_ZERO,     0,      "h.%zu.attn.c_attn.bias", 0) \
    X(attprojb, LAYER, c.C,   1,    INIT_ZERO,     0,      "h.%zu.attn.c_proj.bias", 0) \
    X(ln2w,     LAYER, c.C,   1,    INIT_ONE,      0,      "h.%zu.ln_2.weight",      0) \
    X(ln2b,     LAYER, c.C,   1,    INIT_ZERO,     0,      "h.%zu.ln_2.bias",        0) \
    X(fcb,      LAYER, 4*c.C, 1,    INIT_ZERO,     0,      "h.%zu.mlp.c_fc.bias",    0) \
    X(fcprojb,  LAYER, c.C,   1,    INIT_ZERO,     0,      "h.%zu.mlp.c_proj.bias",  0) \
    X(lnfw,     LAST,  c.C,   1,    INIT_ONE,      0,      "ln_f.weight",            0) \
    X(lnfb,     LAST,  c.C,   1,    INIT_ZERO,     0,      "ln_f.bias",              0)

#define PARAM_ENUM(name, ...) P_##name,
#define PARAM_FIELD(name, ...) floatX *name;
#define GRAD_FIELD(name, ...) real *name;
enum { PARAMS(PARAM_ENUM) NUM_PARAMS };
typedef struct { PARAMS(PARAM_FIELD) } Params; // one layer's view; FIRST and LAST are in every view
typedef struct { PARAMS(GRAD_FIELD) } Grads;

typedef struct {
    size_t rows, cols;   // in memory
    size_t file_rows;    // without padding
    size_t offset;       // elements from the start of its bucket
    int scope, init, is_matrix, is_transposed;
    const char *file_name;
} ParamInfo;

enum { PARAM_ALIGN = 128 }; // elements: 256 bytes even for two-byte types
// A bucket is this many equal parts. The norm is summed part by part, and a rank's shard is whole
// parts, so that neither positions nor sums depend on the number of ranks (nor need it divide 256).
enum { PARTS = 256, PART_ALIGN = 16 };

// Where everything is, in elements: weights, gradients and optimizer state share this layout.
//   | wte | wpe |pad| layer 0: qkvw .. fcprojw ln1w .. |pad| layer 1 .. |pad| lnfw | lnfb |pad|
typedef struct {
    ParamInfo params[NUM_PARAMS];
    size_t bucket_count[NUM_SCOPES]; // elements, divisible into PARTS
    size_t decay_count[NUM_SCOPES];  // those of its matrices
    size_t num_buckets, count;       // L + 2; elements of all buckets
    size_t num_parameters;           // without any padding
} Layout;

static Layout layout_of(Config c) {
    Layout y;
    memset(&y, 0, sizeof y);
#define PARAM_ROW(name, scope, rows, cols, init, is_matrix, file_name, is_transposed) \
    { (size_t)(rows), (size_t)(cols), (size_t)(rows), 0, scope, init, is_matrix, is_transposed, \
      file_name },
    ParamInfo infos[] = { PARAMS(PARAM_ROW) };
    infos[P_wte].file_rows = c.V;
    for (int i = 0; i < NUM_PARAMS; i++) {
        ParamInfo *p = &infos[i];
        p->offset = y.bucket_count[p->scope];
        y.bucket_count[p->scope] += round_up(p->rows * p->cols, PARAM_ALIGN);
        if (p->is_matrix) y.decay_count[p->scope] = y.bucket_count[p->scope];
        y.num_parameters += p->file_rows * p->cols * (p->scope == LAYER ? c.L : 1);
    }
    memcpy(y.params, infos, sizeof infos);
    for (int s = 0; s < NUM_SCOPES; s++)
        y.bucket_count[s] = round_up(y.bucket_count[s], PARTS * PART_ALIGN);
    y.num_buckets = c.L + 2;
    y.count = y.bucket_count[FIRST] + c.L * y.bucket_count[LAYER] + y.bucket_count[LAST];
    return y;
}
static int bucket_scope(const Layout *y, size_t bucket) {
    return bucket == 0 ? FIRST : bucket + 1 < y->num_buckets ? LAYER : LAST;
}
static size_t bucket_start(const Layout *y, size_t bucket) {
    if (bucket == 0) return 0;
    return y->bucket_count[FIRST] + (bucket - 1) * y->bucket_count[LAYER];
}
static size_t bucket_count(const Layout *y, size_t bucket) {
    return y->bucket_count[bucket_scope(y, bucket)];
}
static size_t largest_bucket(const Layout *y) {
    return max_size(y->bucket_count[FIRST], y->bucket_count[LAYER]); // LAST is never larger
}
// Where the shard of rank r begins in `count` elements (a bucket, or several).
static size_t shard_start(size_t count, int r) {
    return count / PARTS * ((size_t)PARTS * (size_t)r / (size_t)ranks);
}
static size_t shard_count(size_t count, int r) {
    return shard_start(count, r + 1) - shard_start(count, r);
}
// l: layer, of no meaning for FIRST, LAST
static size_t param_at(const Layout *y, int i, size_t l) {
    int scope = y->params[i].scope;
    size_t bucket = scope == FIRST ? 0 : scope == LAYER ? l + 1 : y->num_buckets - 1;
    return bucket_start(y, bucket) + y->params[i].offset;
}

// --- 7.2 activations ---
// How many copies are kept, by recompute level r: kept(r < 2) means one for each layer at levels 0
// and 1, else one that all layers share. A pass without a backward keeps one of everything.
#define ACTS(X) \
    /* name      type    copies        elements of one copy */ \
    X(x,         floatX, stream,       B*T*c.C)  /* residual stream: input of layer l; of lnf */ \
    X(ln1,       floatX, kept(r < 2),  B*T*c.C) \
    X(ln1_mean,  real,   kept(r < 3),  B*T) \
    X(ln1_rstd,  real,   kept(r < 3),  B*T) \
    X(qkv,       floatX, kept(r < 3),  B*T*3*c.C) \
    X(att,       floatX, kept(r < 3),  B*T*c.C) \
    X(lse,       real,   kept(r < 3),  B*T*c.NH) \
    X(mid,       floatX, kept(r < 3),  B*T*c.C)    /* residual stream between attention and MLP */ \
    X(ln2,       floatX, kept(r < 2),  B*T*c.C) \
    X(ln2_mean,  real,   kept(r < 3),  B*T) \
    X(ln2_rstd,  real,   kept(r < 3),  B*T) \
    X(fc,        floatX, kept(r < 3),  B*T*4*c.C)  /* before GELU */ \
    X(gelu,      floatX, kept(r < 1),  B*T*4*c.C) \
    X(lnf,       floatX, 1,            B*T*c.C) \
    X(lnf_mean,  real,   1,            B*T) \
    X(lnf_rstd,  real,   1,            B*T) \
    X(logits,    floatX, 1,            head_rows(B*T)*c.Vp) \
    X(losses,    real,   1,            B*T) \
    X(dx,        floatX, trained,      B*T*c.C)    /* gradient of the residual stream */ \
    X(dnarrow,   floatX, trained,      B*T*c.C)    /* ... of ln1, ln2, lnf and att, in turn */ \
    X(dwide,     floatX, trained,      B*T*4*c.C)  /* ... of fc and qkv, in turn */

#define ACT_ENUM(name, ...) A_##name,
#define ACT_FIELD(name, type, ...) type *name;
enum { ACTS(ACT_ENUM) NUM_ACTS };
typedef struct { ACTS(ACT_FIELD) } Acts; // one layer's view
typedef struct { const char *name; size_t copies, bytes, offset; } ActInfo; // bytes of one copy

// Only this many rows of logits exist at once: the head runs forward and backward on them in turn.
static size_t head_rows(size_t N) { return min_size(N, HEAD_ROWS); }

static size_t acts_lay_out(ActInfo *out, Config c, size_t B, size_t T, int r, int is_trained) {
    size_t stream = is_trained ? c.L + 1 : 1, trained = is_trained ? 1 : 0, offset = 0;
#define kept(condition) (is_trained && (condition) ? c.L : 1)
#define ACT_ROW(name, type, copies, count) { #name, copies, (size_t)(count) * sizeof(type), 0 },
    ActInfo rows[] = { ACTS(ACT_ROW) };
#undef kept
    for (int i = 0; i < NUM_ACTS; i++) {
        rows[i].offset = offset;
        rows[i].bytes = round_up(rows[i].bytes, 256);
        offset += rows[i].copies * rows[i].bytes;
    }
    memcpy(out, rows, sizeof rows);
    return offset;
}

// --- 7.3 buffers ---
// A line allocates its buffer and is a line of --plan, which is therefore exact.
#define BUFFERS(X) \
    /* name      type     elements                                                  what */ \
    X(weights,   floatX,  y.count,                                            "weights") \
    X(grads,     real,    y.count * is_trained * num_sums,                    "gradients") \
    X(m,         char,    state_count(model, y.count) * is_trained * moment,  "Adam m") \
    X(v,         char,    state_count(model, y.count) * is_trained * moment,  "Adam v") \
    X(master,    real,    state_count(model, y.count) * is_trained * masters, "master weights") \
    X(inbox,     real,    inbox_count(&y) * is_trained,                       "others' gradients") \
    X(acts,      char,    act_bytes,                                          "activations") \
    X(tokens,    int32_t, 2 * B * T,                                          "tokens") \
    X(totals,    double,  y.num_buckets * PARTS + model->passes,              "totals") \
    X(cache,     floatX,  2 * c.L * cache_T * c.C,                            "key-value cache")

#define BUFFER_ENUM(name, ...) BUF_##name,
#define BUFFER_FIELD(name, type, ...) type *name;
enum { BUFFERS(BUFFER_ENUM) BUF_scratch, NUM_BUFFERS };
typedef struct { const char *what; size_t bytes; } BufferInfo;

typedef struct {
    Config config;
    size_t B, T;          // the largest micro-batch
    int recompute, is_trained;
    int is_random;        // weights have no master copy, and are rounded at random
    int has_narrow_moments; // so are m and v: floatX
    int zero;             // 1: of m, v and master this rank holds its shard of each bucket only
    int levels;           // the gradients of 2^levels micro-batches, or runs of them, are added
    int slot, folds;      //   pairwise (10): a pass goes to buffer slot, then folds sums follow
    int is_last_pass;     //   of the step: then the buckets go to the other ranks
    size_t passes;        // micro-batches of this rank in a step
    double loss_scale;    // what the gradients are multiplied by; 1 but in fp16
    size_t cache_T;       // positions in the key-value cache, 0: no sampling
    Layout layout;
    ActInfo act_infos[NUM_ACTS];
    BUFFERS(BUFFER_FIELD)
    real *losses;         // (B*T) on the host, see gpt_loss
    double *read;         // totals on the host: squares of the gradients' parts, losses of passes
} Model;

// Elements of m, v or master that this rank keeps for `count` elements of weights.
static size_t state_count(const Model *model, size_t count) {
    return model->zero ? shard_count(count, rank) : count;
}
static size_t state_size(const Model *model, char group) { // bytes of an element, see state_of
    return group != 'w' && model->has_narrow_moments ? sizeof(floatX) : sizeof(real);
}
static size_t inbox_count(const Layout *y) { // a bucket's shard from every other rank
    return shard_count(largest_bucket(y), rank) * (size_t)(ranks - 1);
}
// Fills in the layouts; infos[NUM_BUFFERS] gets every buffer's size. Allocates nothing.
static void gpt_plan(Model *model, BufferInfo *infos) {
    Config c = model->config;
    size_t B = model->B, T = model->T, cache_T = model->cache_T;
    size_t is_trained = (size_t)model->is_trained, num_sums = (size_t)model->levels + 1;
    size_t masters = has_master && !model->is_random, moment = state_size(model, 'm');
    Layout y = layout_of(c);
    size_t act_bytes = acts_lay_out(model->act_infos, c, B, T, model->recompute, model->is_trained);
    model->layout = y;
#define BUFFER_ROW(name, type, count, what) { what, (size_t)(count) * sizeof(type) },
    BufferInfo rows[] = { BUFFERS(BUFFER_ROW) { "scratch of the ops", 0 } };
    rows[BUF_scratch].bytes = ops_bytes(B, max_size(T, cache_T), c.C, c.NH, c.Vp);
    memcpy(infos, rows, sizeof rows);
}
static void gpt_alloc(Model *model) {
    BufferInfo infos[NUM_BUFFERS];
    gpt_plan(model, infos);
#define BUFFER_ALLOC(name, type, ...) \
    model->name = (type *)dev_alloc(infos[BUF_##name].bytes, infos[BUF_##name].what);
    BUFFERS(BUFFER_ALLOC)
    model->losses = (real *)host_alloc(model->B * model->T * sizeof(real));
    model->read = (double *)host_alloc(infos[BUF_totals].bytes);
    model->loss_scale = 1;
    ops_init(model->B, max_size(model->T, model->cache_T), model->config.C, model->config.NH,
             model->config.Vp);
}
static void gpt_free(Model *model) {
#define BUFFER_FREE(name, ...) dev_free(model->name);
    BUFFERS(BUFFER_FREE)
    free(model->losses);
    free(model->read);
    ops_free();
}

static Params params_at(const Model *model, size_t l) {
    Params p;
#define PARAM_POINT(name, ...) p.name = model->weights + param_at(&model->layout, P_##name, l);
    PARAMS(PARAM_POINT)
    return p;
}
static Grads grads_at(const Model *model, size_t l) {
    Grads g;
    real *grads = model->grads + (size_t)model->slot * model->layout.count;
#define GRAD_POINT(name, ...) g.name = grads + param_at(&model->layout, P_##name, l);
    PARAMS(GRAD_POINT)
    return g;
}
static Acts acts_at(const Model *model, size_t l) {
    Acts a;
    const ActInfo *infos = model->act_infos;
#define ACT_POINT(name, type, ...) a.name = (type *)(model->acts + infos[A_##name].offset + \
                                   (infos[A_##name].copies > 1 ? l * infos[A_##name].bytes : 0));
    ACTS(ACT_POINT)
    return a;
}

// --- 7.4 to the host and back, bucket by bucket ---
static void comm_gather(real *host, const void *dev, size_t count, size_t size, real *inbox); // 9
// What this rank keeps of a bucket's master weights ('w'), m or v: `count` elements from *lo on.
static char *state_of(const Model *model, char group, size_t bucket, size_t *lo, size_t *count) {
    size_t start = bucket_start(&model->layout, bucket);
    *count = state_count(model, bucket_count(&model->layout, bucket));
    *lo = model->zero ? shard_start(bucket_count(&model->layout, bucket), rank) : 0;
    return (group == 'w' ? (char *)model->master : group == 'm' ? model->m : model->v) +
           state_count(model, start) * state_size(model, group);
}
static void state_to_host(real *host, const void *dev, size_t count, size_t size) {
    if (size == sizeof(real)) to_host(host, dev, count * size);
    else values_to_host(host, (const floatX *)dev, count);
}
// All values of a bucket on rank 0's host: group 'w' weights (the master ones), 'm' or 'v' moments.
// All ranks call it; `out` has room for the bucket.
static void bucket_to_host(real *out, const Model *model, char group, size_t bucket) {
    size_t all = bucket_count(&model->layout, bucket), lo, count, size = state_size(model, group);
    progress_mark("writing a bucket");
    if (group == 'w' && model->master == NULL) {
        values_to_host(out, model->weights + bucket_start(&model->layout, bucket), all);
        return;
    }
    const char *state = state_of(model, group, bucket, &lo, &count);
    state_to_host(out + lo, state, count, size);
    if (model->zero) comm_gather(out, state, all, size, model->inbox);
}
// Every rank has all values, and takes what it keeps.
static void bucket_to_dev(Model *model, char group, size_t bucket, const real *values) {
    size_t all = bucket_count(&model->layout, bucket), lo, count, size = state_size(model, group);
    progress_mark("loading a bucket");
    if (group == 'w')
        values_to_dev(model->weights + bucket_start(&model->layout, bucket), values, all);
    if (group == 'w' && model->master == NULL) return;
    char *state = state_of(model, group, bucket, &lo, &count);
    if (size == sizeof(real)) to_dev(state, values + lo, count * size);
    else values_to_dev((floatX *)state, values + lo, count);
}

// --- 7.5 initial weights: nanoGPT's scheme, and PyTorch's numbers for the same seed ---
static void gpt_init_weights(Model *model, uint64_t seed) {
    Mersenne random;
    mersenne_seed(&random, seed);
    const Layout *y = &model->layout;
    for (size_t bucket = 0; bucket < y->num_buckets; bucket++) {
        int scope = bucket_scope(y, bucket);
        real *values = (real *)host_alloc(y->bucket_count[scope] * sizeof(real));
        for (int i = 0; i < NUM_PARAMS; i++) {
            const ParamInfo *p = &y->params[i];
            if (p->scope != scope || p->init == INIT_ZERO) continue;
            real *out = values + p->offset;
            size_t count = p->file_rows * p->cols;
            double std = 0.02;
            if (p->init == INIT_RESIDUAL) std /= sqrt(2.0 * (double)model->config.L);
            if (p->init != INIT_ONE) normal_fill(out, count, (float)std, &random);
            else for (size_t k = 0; k < count; k++) out[k] = 1;
        }
        bucket_to_dev(model, 'w', bucket, values);
        free(values);
    }
}

// === 8. Forward and backward through the layers ======================================== [shared]

// Layer l, from its input a.x to the next layer's. cached: NO_CACHE, or, in sampling, how many
// positions of the one sequence come before these; their keys and values are in the cache.
enum { NO_CACHE = -1 };
static void gpt_layer_forward(Model *model, size_t l, size_t B, size_t T, int64_t cached) {
    size_t N = B * T, C = model->config.C, NH = model->config.NH, all = model->cache_T * C;
    Params p = params_at(model, l);
    Acts a = acts_at(model, l), next = acts_at(model, l + 1);
    layernorm_forward(a.ln1, a.ln1_mean, a.ln1_rstd, a.x, p.ln1w, p.ln1b, N, C);
    matmul_forward(a.qkv, NULL, a.ln1, p.qkvw, p.qkvb, NULL, N, C, 3 * C);
    if (cached == NO_CACHE) attention_forward(a.att, a.lse, a.qkv, B, T, C, NH);
    else attention_cached(a.att, model->cache + 2 * l * all, model->cache + (2 * l + 1) * all,
                          a.qkv, T, (size_t)cached, C, NH);
    matmul_forward(a.mid, NULL, a.att, p.attprojw, p.attprojb, a.x, N, C, C);
    layernorm_forward(a.ln2, a.ln2_mean, a.ln2_rstd, a.mid, p.ln2w, p.ln2b, N, C);
    matmul_forward(a.gelu, a.fc, a.ln2, p.fcw, p.fcb, NULL, N, C, 4 * C);
    matmul_forward(next.x, NULL, a.gelu, p.fcprojw, p.fcprojb, a.mid, N, 4 * C, C);
}

// From tokens (B,T), on the device, to the last layernorm: acts.lnf (B*T,C).
static void gpt_forward(Model *model, const int32_t *tokens, size_t B, size_t T, int64_t cached) {
    size_t C = model->config.C, L = model->config.L;
    Params p = params_at(model, 0);
    Acts first = acts_at(model, 0), last = acts_at(model, L);
    embedding_forward(first.x, tokens, p.wte, p.wpe, B, T, C,
                      cached == NO_CACHE ? 0 : (size_t)cached);
    for (size_t l = 0; l < L; l++) gpt_layer_forward(model, l, B, T, cached);
    layernorm_forward(last.lnf, last.lnf_mean, last.lnf_rstd, last.x, p.lnfw, p.lnfb, B * T, C);
}

// The head, in chunks of rows: logits, loss and, when dloss != 0, on to the gradients of lnf and
// wte while the chunk's logits are still in the cache. The N losses stay in acts.losses.
static void gpt_head(Model *model, const int32_t *targets, size_t N, real dloss, int accumulate) {
    size_t C = model->config.C, V = model->config.V, Vp = model->config.Vp;
    Params p = params_at(model, 0);
    Grads g = grads_at(model, 0);
    Acts a = acts_at(model, 0);
    for (size_t n = 0; n < N; n += head_rows(N)) {
        size_t rows = min_size(head_rows(N), N - n);
        const floatX *lnf = a.lnf + n * C;
        matmul_forward(a.logits, NULL, lnf, p.wte, NULL, NULL, rows, C, Vp);
        classifier_forward_backward(a.losses + n, a.logits, targets + n, dloss, rows, V, Vp);
        if (dloss != 0)
            matmul_backward(a.dnarrow + n * C, g.wte, NULL, a.logits, lnf, p.wte, NULL, rows, C, Vp,
                            accumulate || n > 0);
    }
}
static double gpt_loss(Model *model, size_t N) { // sum over the tokens of the last gpt_head
    double sum = 0;
    to_host(model->losses, acts_at(model, 0).losses, N * sizeof(real));
    for (size_t n = 0; n < N; n++) sum += model->losses[n]; // in order: the same bits every time
    return sum;
}

// After gpt_forward and gpt_head: gradients of all parameters. accumulate: 0 assigns, 1 adds to
// them. What the recompute level did not keep is made again first, by the same ops: the bits are
// the same.
static void gpt_layer_backward(Model *model, size_t l, size_t B, size_t T, int accumulate) {
    size_t N = B * T, C = model->config.C, NH = model->config.NH;
    int r = model->recompute;
    Params p = params_at(model, l);
    Grads g = grads_at(model, l);
    Acts a = acts_at(model, l);
    if (r == 3) gpt_layer_forward(model, l, B, T, NO_CACHE);
    if (r == 2) layernorm_forward(a.ln2, a.ln2_mean, a.ln2_rstd, a.mid, p.ln2w, p.ln2b, N, C);
    if (r == 1 || r == 2) gelu_forward(a.gelu, a.fc, N * 4 * C);
    matmul_backward(a.dwide, g.fcprojw, g.fcprojb, a.dx, a.gelu, p.fcprojw, a.fc, N, 4 * C, C,
                    accumulate);
    matmul_backward(a.dnarrow, g.fcw, g.fcb, a.dwide, a.ln2, p.fcw, NULL, N, C, 4 * C, accumulate);
    layernorm_backward(a.dx, g.ln2w, g.ln2b, a.dnarrow, a.mid, a.ln2_mean, a.ln2_rstd, p.ln2w, N, C,
                       accumulate);
    matmul_backward(a.dnarrow, g.attprojw, g.attprojb, a.dx, a.att, p.attprojw, NULL, N, C, C,
                    accumulate);
    attention_backward(a.dwide, a.dnarrow, a.att, a.lse, a.qkv, B, T, C, NH);
    if (r == 2) layernorm_forward(a.ln1, a.ln1_mean, a.ln1_rstd, a.x, p.ln1w, p.ln1b, N, C);
    matmul_backward(a.dnarrow, g.qkvw, g.qkvb, a.dwide, a.ln1, p.qkvw, NULL, N, C, 3 * C,
                    accumulate);
    layernorm_backward(a.dx, g.ln1w, g.ln1b, a.dnarrow, a.x, a.ln1_mean, a.ln1_rstd, p.ln1w, N, C,
                       accumulate);
}
static void gpt_bucket_done(Model *model, size_t bucket); // 10
static void gpt_backward(Model *model, const int32_t *tokens, size_t B, size_t T, int accumulate) {
    size_t N = B * T, C = model->config.C, L = model->config.L;
    Params p = params_at(model, 0);
    Grads g = grads_at(model, 0);
    Acts last = acts_at(model, L);
    dev_zero(last.dx, N * C * sizeof(floatX));
    layernorm_backward(last.dx, g.lnfw, g.lnfb, last.dnarrow, last.x, last.lnf_mean, last.lnf_rstd,
                       p.lnfw, N, C, accumulate);
    gpt_bucket_done(model, L + 1);
    for (size_t l = L; l-- > 0; ) {
        gpt_layer_backward(model, l, B, T, accumulate);
        gpt_bucket_done(model, l + 1);
    }
    embedding_backward(g.wte, g.wpe, last.dx, tokens, B, T, C, model->config.maxT, accumulate);
    gpt_bucket_done(model, 0);
}

// === 9. Processes ====================================================================== [shared]
// Every rank runs this program on its share of each step's micro-batches, and they meet in few
// calls: all ranks make the same ones in the same order. The result is the same whatever `ranks` is
// because sums over ranks are taken in an order that only the position in the batch decides.

// --- 9.1 communication ---
static uint64_t comm_sent_bytes = 0; // by this rank, all but the few doubles of comm_sum

// The processes that a launcher says it started: Open MPI's, MPICH's, torchrun's, Slurm's.
static int comm_launched(const char **name) {
    static const char *const sizes[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE",
                                         "SLURM_STEP_NUM_TASKS" };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *value = getenv(*name = sizes[i]);
        if (i == 3 && getenv("SLURM_PROCID") == NULL) continue; // not started by srun
        if (value != NULL && atoi(value) > 1) return atoi(value);
    }
    return 1;
}
static void comm_abort(int code) { // ends all ranks; returns only where there are no others
    if (ranks > 1) net_abort(code);
}
// A single process does without MPI_Init: it starts faster, and needs no launcher.
static void comm_init(void) {
    const char *name;
    int launched = comm_launched(&name);
    if (launched > 1) {
        net_init(&rank, &ranks, &node_ranks);
        atexit(net_finish);
    }
    check(ranks == launched, EXIT_USAGE, "started as one of several processes (%s=%d), but this "
          "build %s: build with `make MPI=1`, start with the mpirun of that MPI", name,
          launched, ranks > 1 ? "counts others" : "sees no others");
    if (getenv("OMP_NUM_THREADS") != NULL) return;
    // Open MPI binds each of one or two ranks to a core, unless it was told how to.
    int is_told = getenv("OMPI_MCA_hwloc_base_binding_policy") != NULL, cpus = 0;
    int share = (int)sysconf(_SC_NPROCESSORS_ONLN) / node_ranks, threads = omp_get_max_threads();
    if (getenv("OMPI_COMM_WORLD_SIZE") && !is_told && share > threads) cpus = cpus_unbound();
    if (cpus > 0) omp_set_num_threads(cpus > node_ranks ? cpus / node_ranks : 1);
    else if (share < threads) omp_set_num_threads(share > 1 ? share : 1);
}
static void comm_post(void *x, size_t bytes, int peer, int is_send) {
    for (size_t at = 0; at < bytes; at += MESSAGE_BYTES)
        net_post((char *)x + at, (int)min_size(MESSAGE_BYTES, bytes - at), peer, is_send);
    if (is_send) comm_sent_bytes += bytes;
}
static void comm_wait(void) { // all that was started is done before what follows
    progress.waits = 1;
    if (ranks > 1) net_wait();
    progress.waits = 0;
}
// x[i] = the sum of all ranks' x[i]. They are whole numbers, or all but one are 0: no order of the
// additions can change the result.
static void comm_sum(double *x, size_t count) {
    progress.waits = 1;
    for (size_t at = 0; ranks > 1 && at < count; at += 1 << 20)
        net_sum(x + at, (int)min_size(1 << 20, count - at));
    progress.waits = 0;
}
static void comm_max_int(int64_t *x, int count) { // x[i] = the largest of all ranks' x[i]
    progress.waits = 1;
    if (ranks > 1) net_max(x, count);
    progress.waits = 0;
}
// Every rank gets the other ranks' shards of x: count elements of size bytes. Over at comm_wait().
static void comm_all_gather_start(void *x, size_t count, size_t size) {
    char *own = (char *)x + shard_start(count, rank) * size;
    if (ranks == 1) return;
    net_begin();
    for (int d = 1; d < ranks; d++) {
        int from = (rank + ranks - d) % ranks, to = (rank + d) % ranks;
        comm_post((char *)x + shard_start(count, from) * size, shard_count(count, from) * size,
                  from, 0);
        comm_post(own, shard_count(count, rank) * size, to, 1);
    }
    net_end();
}
// Rank 0's host gets the other ranks' shards of x, one after the other by way of its inbox; dev is
// the shard of the caller.
static void comm_gather(real *x, const void *dev, size_t count, size_t size, real *inbox) {
    for (int r = 1; r < ranks; r++) {
        size_t bytes = shard_count(count, r) * size;
        if (rank > 0 && rank != r) continue;
        net_begin();
        comm_post(rank == 0 ? inbox : (void *)dev, bytes, rank == 0 ? r : 0, rank == r);
        net_end();
        comm_wait();
        if (rank == 0) state_to_host(x + shard_start(count, r), inbox, bytes / size, size);
    }
}
// x's shard of this rank = its sum over all ranks, added pairwise: (0 + 1) + (2 + 3) ... One such
// sum is under way at a time, while the layer below is computed; a start ends the one before.
// inbox: the others' shards, (ranks - 1, shard). Each rank sends every element once that is not its
// own; log2(ranks) rounds of halving send as much in fewer messages, but add in another order.
static struct { real *x, *inbox; size_t count; } comm_pending;

static real *inbox_slot(real *inbox, int from, size_t own) { // none is for this rank itself
    return inbox + (size_t)(from < rank ? from : from - 1) * own;
}
static void comm_reduce_scatter_wait(void) {
    if (comm_pending.x == NULL) return;
    size_t own = shard_count(comm_pending.count, rank);
    real *x = comm_pending.x + shard_start(comm_pending.count, rank), *inbox = comm_pending.inbox;
#define SHARD_FROM(r) ((r) == rank ? x : inbox_slot(inbox, r, own))
    dev_side_begin();
    comm_wait();
    for (int step = 1; step < ranks; step *= 2)
        for (int r = 0; r + step < ranks; r += 2 * step)
            vector_add(SHARD_FROM(r), SHARD_FROM(r + step), own);
    if (rank > 0) dev_copy(x, SHARD_FROM(0), own * sizeof(real));
    dev_side_end();
    comm_pending.x = NULL;
}
static void comm_reduce_scatter_start(real *x, size_t count, real *inbox) {
    comm_reduce_scatter_wait();
    if (ranks == 1) return;
    size_t own = shard_count(count, rank);
    net_begin();
    for (int d = 1; d < ranks; d++) {
        int from = (rank + ranks - d) % ranks, to = (rank + d) % ranks;
        comm_post(inbox_slot(inbox, from, own), own * sizeof(real), from, 0);
        comm_post(x + shard_start(count, to), shard_count(count, to) * sizeof(real), to, 1);
    }
    net_end();
    comm_pending.x = x;
    comm_pending.inbox = inbox;
    comm_pending.count = count;
}

// --- 9.2 the watchdog: a thread of each rank that ends a run in which nothing moves any more ---
// OUT/progress holds a record of each rank, rewritten by its watchdog: a process that is stopped
// falls silent, one that hangs makes no marks. Time is counted in wake-ups, not by a clock: a whole
// job that was suspended goes on. Until there is such a file a rank sees its own marks alone.
typedef struct { uint64_t beat, marks, step; int waits; char done[40]; } Record;
typedef struct { Record now; int silent; } Watched; // silent: so many wake-ups without a new record
static struct { volatile int fd; double period_s, timeout_s; } watch = { -1, 0, 0 };

static uint64_t watchdog_look(Watched *all, uint64_t beat) { // returns all marks of all ranks
    Record own = { beat, progress.marks, progress.step, progress.waits, "" };
    uint64_t marks = 0;
    if (watch.fd < 0) return own.marks;
    snprintf(own.done, sizeof own.done, "%s", progress.done);
    ssize_t written = pwrite(watch.fd, &own, sizeof own, (off_t)((size_t)rank * sizeof own));
    if (written != sizeof own) return beat; // nothing is known: as if marks were made
    for (int r = 0; r < ranks; r++) {
        Record now = all[r].now;
        ssize_t got = pread(watch.fd, &now, sizeof now, (off_t)((size_t)r * sizeof now));
        int is_new = got == sizeof now && now.beat != all[r].now.beat;
        all[r].silent = is_new ? 0 : all[r].silent + 1;
        if (is_new) all[r].now = now;
        marks += all[r].now.marks;
    }
    return marks;
}
__attribute__((noreturn))
static void watchdog_end(const Watched *all) {
    enum { SILENT = 3 };
    int waiting = 0, first = 0; // first: the lowest rank that still writes speaks for all
    uint64_t least = UINT64_MAX;
    while (first < rank && all[first].silent >= SILENT) first++;
    if (first < rank) usleep(2000000);
    for (int r = 0; r < ranks; r++) {
        if (all[r].now.marks < least) least = all[r].now.marks;
        waiting += all[r].now.waits;
    }
    fprintf(stderr, "rank %d: error: no progress for %.0f s (--timeout) in step %" PRIu64 ", after "
            "%s; behind:%s", rank, watch.timeout_s, progress.step, progress.done,
            watch.fd < 0 ? " a rank, unknown which: it is not recorded yet" : "");
    for (int r = 0; r < ranks && watch.fd >= 0; r++) {
        // Who waits, waits for those who do not; where that says nothing, the fewest marks do.
        int tells = waiting > 0 && waiting < ranks;
        int is_behind = tells ? !all[r].now.waits : all[r].now.marks == least;
        if (!is_behind && all[r].silent < SILENT) continue;
        fprintf(stderr, " rank %d (step %" PRIu64 ", after %.40s, silent for %.0f s)", r,
                all[r].now.step, all[r].now.done, all[r].silent * watch.period_s);
    }
    fprintf(stderr, "\n");
    signal(SIGALRM, SIG_DFL); // should the abort hang as well
    alarm(5);
    comm_abort(EXIT_PEER);
    _exit(EXIT_PEER);
}
static void *watchdog(void *unused) {
    Watched *all = (Watched *)host_alloc((size_t)ranks * sizeof(Watched));
    double idle_s = 0;
    uint64_t marks = 0;
    for (uint64_t beat = 1; idle_s < watch.timeout_s; beat++) {
        usleep((useconds_t)(1e6 * watch.period_s));
        uint64_t before = marks;
        marks = watchdog_look(all, beat);
        idle_s = marks == before ? idle_s + watch.period_s : 0;
    }
    watchdog_end(all);
    return unused;
}
static void watchdog_start(int64_t timeout_s) {
    if (ranks == 1 || timeout_s == 0) return;
    pthread_t thread;
    sigset_t all, before;
    watch.timeout_s = (double)timeout_s;
    watch.period_s = fmin(5, watch.timeout_s / 10);
    sigfillset(&all); // signals are for the main thread
    pthread_sigmask(SIG_SETMASK, &all, &before);
    check(pthread_create(&thread, NULL, watchdog, NULL) == 0, EXIT_INTERNAL, "no thread for the "
          "watchdog; --timeout 0 does without");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
static void watchdog_record(const char *out) { // from here on each rank sees all
    if (watch.timeout_s == 0) return;
    char *path = text_of("%s/progress", out);
    Record first = { UINT64_MAX, 0, 0, 0, "the start" }; // in the place of another run's
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    check(fd >= 0, EXIT_IO, "--out: cannot open %s: %s", path, strerror(errno));
    ssize_t written = pwrite(fd, &first, sizeof first, (off_t)((size_t)rank * sizeof first));
    (void)written; // the watchdog sees to it
    watch.fd = fd;
    free(path);
}

// === 10. Optimizer step ================================================================ [shared]

// lr_at: learning rate of a step, 0 <= step < steps. Warm-up rises linearly and reaches lr at step
// warmup_steps - 1; then, with x = progress from 0 to 1 and final = lr * final_lr_fraction:
//   constant   lr                              linear   lr + (final - lr) x
//   cosine     final + (lr - final) (1 + cos(pi x)) / 2   (Loshchilov & Hutter 2017)
//   wsd        lr, and over the last fifth final + (lr - final) (1 - sqrt(y)) (Haegele et al. 2024)
//   inv_sqrt   lr sqrt(w / (step + 1)), w = max(warmup_steps, 1), >= final   (Vaswani et al. 2017)
static double lr_at(const Flags *f, uint64_t step) {
    double w = (double)f->warmup_steps, s = (double)step, final = f->lr * f->final_lr_fraction;
    if (s < w) return f->lr * (s + 1) / w;
    double length = (double)f->steps - w, x = length > 0 ? (s - w) / length : 1;
    if (x > 1) x = 1;
    const char *schedule = f->lr_schedule;
    if (!strcmp(schedule, "constant")) return f->lr;
    if (!strcmp(schedule, "linear")) return f->lr + (final - f->lr) * x;
    if (!strcmp(schedule, "cosine")) return final + (f->lr - final) * (1 + cos(M_PI * x)) / 2;
    if (!strcmp(schedule, "inv_sqrt")) return fmax(final, f->lr * sqrt(fmax(w, 1) / (s + 1)));
    double y = (x - 0.8) / 0.2; // of wsd
    return y <= 0 ? f->lr : final + (f->lr - final) * (1 - sqrt(y));
}

// Before pass i of this rank's n: where its gradients go. Returns whether they are added to others.
// The sum over a step has one order whatever a power-of-two `ranks` is: with n * ranks = 2^k * odd,
// runs of `odd` micro-batches are added in turn, the runs pairwise, (0 + 1) + (2 + 3) and so on,
// first in a rank, then over the ranks. In a rank the sums in waiting form a binary counter: run 5
// = 101b finds two of them, in buffers 0 and 1; it goes into buffer 2, and as it is the second of a
// pair, 2 is added to 1.
static int gpt_pass(Model *model, size_t i, size_t n) {
    size_t run = n >> model->levels, next = i + 1;
    model->slot = __builtin_popcountll(i / run);
    model->folds = next % run > 0 ? 0 : __builtin_ctzll(next / run);
    model->is_last_pass = next == n;
    return i % run > 0;
}
// A pass has finished the gradients of a bucket. Sums that are complete now are taken, and after
// the last pass of the step the bucket goes on its way to the other ranks.
static void gpt_bucket_done(Model *model, size_t bucket) {
    size_t count = bucket_count(&model->layout, bucket);
    real *g = model->grads + bucket_start(&model->layout, bucket);
    progress_mark("the gradients of a bucket");
    for (int k = model->slot; k > model->slot - model->folds; k--)
        vector_add(g + (size_t)(k - 1) * model->layout.count, g + (size_t)k * model->layout.count,
                   count);
    if (model->is_last_pass) comm_reduce_scatter_start(g, count, model->inbox);
}
// After the last pass: each rank has its shards of the summed gradients; without ZeRO all of them.
static void gpt_reduce_wait(Model *model) {
    const Layout *y = &model->layout;
    comm_reduce_scatter_wait();
    dev_side_join();
    for (size_t bucket = 0; bucket < y->num_buckets && !model->zero; bucket++)
        comm_all_gather_start(model->grads + bucket_start(y, bucket), bucket_count(y, bucket),
                              sizeof(real));
    comm_wait();
}

// The host reads all it has to know of a step in one go, in gpt_grad_norm, and there it waits for
// the device. Until then the device keeps the sum of the N losses of pass i in `totals`.
static void gpt_keep_loss(Model *model, size_t i, size_t N) {
    sum_values(model->totals + model->layout.num_buckets * PARTS + i, acts_at(model, 0).losses, N);
}
// The norm of all gradients together, in double: each rank squares the parts of its shards.
// losses[i] = what gpt_keep_loss kept of pass i.
static double gpt_grad_norm(Model *model, double *losses) {
    const Layout *y = &model->layout;
    size_t lo = shard_start(PARTS, rank), hi = shard_start(PARTS, rank + 1);
    size_t num_squares = y->num_buckets * PARTS;
    double total = 0;
    for (size_t bucket = 0; bucket < y->num_buckets; bucket++) {
        size_t step = bucket_count(y, bucket) / PARTS;
        sum_squares(model->totals + bucket * PARTS + lo, model->grads + bucket_start(y, bucket) +
                    lo * step, hi - lo, step);
    }
    to_host(model->read, model->totals, (num_squares + model->passes) * sizeof(double));
    for (size_t i = 0; i < model->passes; i++) losses[i] = model->read[num_squares + i];
    comm_sum(model->read, num_squares);
    for (size_t k = 0; k < num_squares; k++) total += model->read[k];
    return sqrt(total) / model->loss_scale;
}

static int64_t gpt_weights_hash(const Model *model) { // of this rank's bits; 0 .. 2^63 - 1
    const Layout *y = &model->layout;
    uint64_t sum = 0, *bits = (uint64_t *)host_alloc(largest_bucket(y) * sizeof(floatX));
    for (size_t bucket = 0; bucket < y->num_buckets; bucket++) {
        size_t start = bucket_start(y, bucket), bytes = bucket_count(y, bucket) * sizeof(floatX);
        to_host(bits, model->weights + start, bytes);
        #pragma omp parallel for schedule(static) reduction(+:sum)
        for (size_t i = 0; i < bytes / 8; i++) sum += hash64(bits[i] + hash64(start + i));
    }
    free(bits);
    return (int64_t)(sum >> 1);
}

// One AdamW step with the gradients clipped to grad_clip: update number t = 1, 2, ... (it corrects
// the bias of m and v).
// ZeRO-1 (Rajbhandari et al. 2020): a rank updates its shards, and gets the others' weights.
static void gpt_update(Model *model, const Flags *f, double lr, double norm, uint64_t t) {
    const Layout *y = &model->layout;
    double clip = f->grad_clip > 0 ? fmin(1, f->grad_clip / (norm + 1e-6)) : 1; // as in torch
    AdamW h;
    h.is_random = model->is_random;
    h.has_narrow_moments = model->has_narrow_moments;
    h.grad_scale = (real)(clip / model->loss_scale);
    h.beta1 = (real)f->beta1;
    h.beta2 = (real)f->beta2;
    h.eps = (real)f->eps;
    h.step_size = (real)(lr / (1 - pow(f->beta1, (double)t)));
    h.root_correction = (real)(1 / sqrt(1 - pow(f->beta2, (double)t)));
    for (size_t bucket = 0; bucket < y->num_buckets; bucket++) {
        size_t start = bucket_start(y, bucket), moment = state_size(model, 'm'), first, count;
        char *m = state_of(model, 'm', bucket, &first, &count);
        char *v = state_of(model, 'v', bucket, &first, &count);
        real *master = NULL;
        if (model->master != NULL) master = (real *)state_of(model, 'w', bucket, &first, &count);
        size_t ends[3] = { 0, y->decay_count[bucket_scope(y, bucket)], bucket_count(y, bucket) };
        for (int i = 0; i < 2; i++) { // matrices, vectors; padding is 0 and stays 0
            size_t lo = max_size(ends[i], first), hi = min_size(ends[i + 1], first + count);
            if (lo >= hi) continue;
            size_t at = lo - first;
            h.keep = (real)(i == 0 ? 1 - lr * f->weight_decay : 1);
            h.draw = hash64((uint64_t)f->seed + hash64(t)) + start + lo;
            adamw_update(model->weights + start + lo, master ? master + at : NULL, m + at * moment,
                         v + at * moment, model->grads + start + lo, hi - lo, h);
        }
        if (model->zero)
            comm_all_gather_start(model->weights + start, bucket_count(y, bucket), sizeof(floatX));
    }
    comm_wait();
}

// === 11. Data ========================================================================== [shared]
// Training data is one long stream of tokens: token shards one after the other, or a text tokenized
// in memory. It is cut into windows of T + 1 tokens (neighbours share one token: each token is
// predicted once); an epoch visits every window exactly once, in an order that permute() makes from
// (seed, epoch). Sample number s of a run therefore follows from s alone: resume needs one number.

typedef struct Tokenizer Tokenizer; // section 12
static size_t tok_encode(const Tokenizer *t, const char *text, size_t bytes, uint32_t *out);
static uint32_t tok_crc(const Tokenizer *t);

// Shard formats, as written by llm.c's scripts: 256 int32 {magic, version, count}, then the tokens.
// data/tokenize adds tok_crc of the vocabulary and CRC-32C of the tokens as int32; 0: not known.
enum { SHARD_MAGIC_16 = 20240520, SHARD_VERSION_16 = 1, SHARD_MAGIC_32 = 20240801,
       SHARD_VERSION_32 = 7, SHARD_HEADER_BYTES = 1024 };

typedef struct {
    char *path;
    uint64_t start, count;  // tokens of the stream
    size_t token_bytes;     // 2 or 4
    uint32_t vocabulary, crc;
    int64_t file_seconds;   // changed since: a file that is replaced during the run is noticed
} Shard;
typedef struct {
    const char *source;       // the flag's value, for messages
    Shard *shards;
    size_t num_shards;
    uint32_t *memory;         // or: the tokens of a text
    uint64_t first, count;    // the stretch of the stream that this set uses
    uint64_t num_windows, seed;
    size_t T;
    int is_shuffled;
    uint32_t crc;             // of the text, or of the CRCs of the shards
} Data;

static int is_shard_magic(uint32_t magic) {
    return magic == SHARD_MAGIC_16 || magic == SHARD_MAGIC_32 ||
           magic == __builtin_bswap32(SHARD_MAGIC_16) || magic == __builtin_bswap32(SHARD_MAGIC_32);
}
static Shard shard_open(const char *path) {
    InFile file = in_open(path);
    int32_t header[256];
    check(file.bytes >= SHARD_HEADER_BYTES, EXIT_INPUT, "%s: %" PRIu64 " bytes, but the header of "
          "a token shard has %d", path, file.bytes, SHARD_HEADER_BYTES);
    in_read(&file, 0, header, sizeof header);
    uint32_t magic = (uint32_t)header[0];
    check(is_shard_magic(magic), EXIT_INPUT, "%s: magic number %u, token shards have %d or %d; "
          "make shards with data/tokenize", path, magic, SHARD_MAGIC_16, SHARD_MAGIC_32);
    check(magic == SHARD_MAGIC_16 || magic == SHARD_MAGIC_32, EXIT_INPUT, "%s: bytes are in the "
          "order of another kind of machine; write the shard again on a little-endian one", path);
    int version = magic == SHARD_MAGIC_16 ? SHARD_VERSION_16 : SHARD_VERSION_32;
    check(header[1] == version, EXIT_INPUT, "%s: version %d, this program reads %d", path,
          header[1], version);
    check(header[2] > 0, EXIT_INPUT, "%s: token count %d in the header, must be > 0", path,
          header[2]);
    Shard s = { text_of("%s", path), 0, (uint64_t)header[2], magic == SHARD_MAGIC_16 ? 2u : 4u,
                (uint32_t)header[3], (uint32_t)header[4], file.stat.st_mtime };
    uint64_t wanted = SHARD_HEADER_BYTES + s.count * s.token_bytes;
    check(file.bytes == wanted, EXIT_INPUT, "%s: %" PRIu64 " bytes, but a header that counts %"
          PRIu64 " tokens makes %" PRIu64, path, file.bytes, s.count, wanted);
    in_close(&file);
    return s;
}
// Read count tokens from the stream's position at; windows may span shards.
static void data_read(const Data *d, uint64_t at, size_t count, int32_t *out) {
    if (d->memory != NULL) { memcpy(out, d->memory + at, count * sizeof *out); return; }
    size_t lo = 0, hi = d->num_shards; // the last shard that starts at or before `at`
    while (hi - lo > 1) {
        size_t middle = (lo + hi) / 2;
        if (d->shards[middle].start <= at) lo = middle;
        else hi = middle;
    }
    for (size_t done = 0; done < count; lo++) {
        const Shard *s = &d->shards[lo];
        uint64_t inside = at + done - s->start;
        size_t n = min_size(s->count - inside, count - done);
        InFile file = in_open(s->path);
        check(file.bytes == SHARD_HEADER_BYTES + s->count * s->token_bytes &&
              file.stat.st_mtime == s->file_seconds, EXIT_INPUT,
              "%s: changed since the start of the run", s->path);
        in_read(&file, SHARD_HEADER_BYTES + inside * s->token_bytes, out + done,
                n * s->token_bytes);
        in_close(&file);
        if (s->token_bytes == 2) for (size_t i = n; i-- > 0; ) { // widen in place, from the end
            uint16_t token;
            memcpy(&token, (char *)(out + done) + 2 * i, 2);
            out[done + i] = token;
        }
        done += n;
    }
}
// Every token of the stream is looked at once, at the start: its id must be below V.
static void data_check_tokens(Data *d, size_t V, const char *tokenizer) {
    enum { CHUNK = 1 << 20 };
    int32_t *tokens = (int32_t *)host_alloc(CHUNK * sizeof(int32_t));
    for (size_t k = 0; k < d->num_shards; k++) {
        Shard *s = &d->shards[k];
        uint32_t crc = 0;
        for (uint64_t at = 0; at < s->count; at += CHUNK) {
            size_t n = min_size(s->count - at, CHUNK);
            data_read(d, s->start + at, n, tokens);
            crc = crc32c(crc, tokens, n * sizeof(int32_t));
            progress_mark("reading tokens");
            for (size_t i = 0; i < n; i++)
                check(tokens[i] >= 0 && (size_t)tokens[i] < V, EXIT_INPUT, "%s: token %" PRIu64
                      " is %u, the model has vocab_size %zu (tokenizer %s): choose the --tokenizer "
                      "or --vocab_size the shard was made with", s->path, at + i,
                      (unsigned)tokens[i], V, tokenizer);
        }
        check(s->crc == 0 || s->crc == crc, EXIT_INPUT, "%s: damaged: CRC-32C %08x, its header "
              "says %08x: copy it again, or make it with data/tokenize", s->path, crc, s->crc);
        d->crc = crc32c(d->crc, &crc, sizeof crc);
    }
    free(tokens);
}
static void data_open_shards(Data *d, char **paths, size_t count, const Tokenizer *tokenizer,
                             const char *name) {
    uint32_t vocabulary = tok_crc(tokenizer);
    d->shards = (Shard *)host_alloc(count * sizeof(Shard));
    d->num_shards = count;
    for (size_t k = 0; k < count; k++) {
        d->shards[k] = shard_open(paths[k]);
        check(d->shards[k].vocabulary == 0 || d->shards[k].vocabulary == vocabulary, EXIT_INPUT,
              "%s: tokens of another vocabulary than that of --tokenizer %s: name the one that "
              "made them", paths[k], name);
        d->shards[k].start = d->count;
        d->count += d->shards[k].count;
    }
}
static void data_open_text(Data *d, const char *path, const Tokenizer *tokenizer) {
    size_t bytes;
    char *text = in_read_all(path, (size_t)1 << 32, &bytes);
    check(bytes > 0, EXIT_INPUT, "%s: empty", path);
    if (rank == 0 && (memchr(text, 0, bytes) || !strncmp(text, "%PDF", 4)))
        warn("%s: does not look like plain text (UTF-8); it is taken as it is", path);
    if (rank == 0 && ends_with(path, ".jsonl"))
        warn("%s: taken as plain text; data/tokenize makes shards of the documents in it", path);
    d->crc = crc32c(0, text, bytes);
    d->memory = (uint32_t *)host_alloc(bytes * sizeof(uint32_t));
    d->count = tok_encode(tokenizer, text, bytes, d->memory);
    free(text);
}
// source: a text file, a token shard, or a pattern of token shards.
static Data data_open(const char *source, const Tokenizer *tokenizer, const char *name, size_t V) {
    Data d = {};
    d.source = source;
    glob_t found = {};
    int is_literal = access(source, F_OK) == 0; // a name that exists is not a pattern, [1] or not
    char *literal[1] = { (char *)source };
    check(is_literal || glob(source, 0, NULL, &found) == 0, EXIT_INPUT, "%s: no such file, and as "
          "a pattern it matches nothing", source);
    char **paths = is_literal ? literal : found.gl_pathv;
    size_t count = is_literal ? 1 : found.gl_pathc;
    InFile file = in_open(paths[0]);
    uint32_t magic = 0;
    if (file.bytes >= 4) in_read(&file, 0, &magic, 4);
    in_close(&file);
    int is_shards = is_shard_magic(magic) || ends_with(paths[0], ".bin") || count > 1;
    if (is_shards) data_open_shards(&d, paths, count, tokenizer, name);
    else data_open_text(&d, paths[0], tokenizer);
    data_check_tokens(&d, V, name);
    if (!is_literal) globfree(&found);
    return d;
}
static void data_list(const Data *d, char *out, size_t room) { // as many files as there is room for
    size_t used = (size_t)snprintf(out, room, "%s", d->num_shards > 0 ? "" : d->source);
    for (size_t k = 0; k < d->num_shards && used < room; k++)
        used += (size_t)snprintf(out + used, room - used, "%s%s (%" PRIu64 ")", k ? ", " : "",
                                 d->shards[k].path, d->shards[k].count);
}
// Use the stretch [first, first + count) in windows of T + 1 tokens.
static void data_cut(Data *d, uint64_t first, uint64_t count, size_t T, const char *use) {
    d->first = first;
    d->count = count;
    d->T = T;
    check(count >= T + 1, EXIT_INPUT, "%s: %" PRIu64 " tokens for %s, but one window of --seq_len "
          "%zu needs %zu: take more text, a shorter --seq_len or another --val_fraction", d->source,
          count, use, T, T + 1);
    d->num_windows = (count - 1) / T;
}
// The T + 1 tokens of sample number `sample` of the run.
static void data_sample(const Data *d, uint64_t sample, int32_t *out) {
    uint64_t epoch = sample / d->num_windows, window = sample % d->num_windows;
    if (d->is_shuffled) window = permute(window, d->num_windows, hash64(d->seed) + epoch);
    data_read(d, d->first + window * d->T, d->T + 1, out);
}
// `count` samples from number `first` on: inputs (count,T), then targets (count,T), a token later.
static void data_batch(const Data *d, uint64_t first, size_t count, int32_t *tokens,
                       int32_t *window) {
    for (size_t b = 0; b < count; b++) {
        data_sample(d, first + b, window);
        memcpy(tokens + b * d->T, window, d->T * sizeof(int32_t));
        memcpy(tokens + (count + b) * d->T, window + 1, d->T * sizeof(int32_t));
    }
}

// === 12. Tokenizer and sampling ======================================================== [shared]

// --- 12.1 tokenizer: byte-level byte pair encoding, as GPT-2's ---
// GPT-2's pattern cuts a text into pieces. A piece starts as one token per byte; while neighbours
// are a known pair, the pair of lowest rank (the leftmost of them) becomes one token. Most pieces
// end as one token: a table finds these at once. Any bytes are taken, and the bytes of the tokens,
// in order, are the text again. The merges of a file have to be in an order that training can
// produce: each makes a new token of the two that the merges before it leave of its bytes. Then
// files that rank tokens (tiktoken, llm.c) say as much as files that list pairs.
// A Tokenizer does not change after tok_load, so threads share it. Its files are untrusted.

typedef struct { uint32_t at, bytes, whole; } Token; // whole: one byte, or made by a merge
typedef struct { uint32_t left, right, rank, id; } TokPair;
typedef struct Tokenizer { // section 11 has declared it
    char *name;
    uint32_t vocab_size;
    int end_of_text;    // the id of <|endoftext|>, or -1; in a text to encode that is plain text
    Token *tokens;      // (room) the bytes of a token start at bytes.at + token.at
    Text bytes;
    uint32_t *ids;      // hash table (mask + 1): bytes -> id
    TokPair *pairs;     // hash table (mask + 1): left, right -> rank, id
    size_t room, mask, num_pairs;
    uint32_t id_of_byte[256], char_of_byte[256];
    int byte_of_char[324];
    uint8_t *class_of;  // (TOK_CODE_POINTS) 0 other, 1 letter, 2 number, TOK_SPACE
} Tokenizer;

#define TOK_END "<|endoftext|>"
enum { TOK_SPACE = 3, TOK_MAX_BYTES = 4096, // of a token; GPT-2's longest has 128
       TOK_LINE = 4 * TOK_MAX_BYTES, TOK_MAX_VOCAB = 1 << 21, TOK_MAX_FILE = 64 << 20 };
static const uint32_t TOK_NONE = UINT32_MAX; // no token, no rank, a free place in a table
#define tok_check(ok, fmt, ...) check(ok, EXIT_INPUT, "%s: " fmt, t->name, __VA_ARGS__)

// Runs of code points outside and inside a class, in turn: scripts/unicode_tables.py writes this
// and tells the format. tiktoken 0.14 and tokenizers 0.23 have this version of Unicode.
enum { TOK_CODE_POINTS = 0x323b0 }; // none beyond is a letter, a number or a space
static const char *const tok_unicode[3] = { // Unicode 16.0.0: letters, numbers, spaces
    "$BZFZoAJADAEWA_A*QDLNEGAAA%CEABBDAAFAACAAATA$TA%MH%hAfBAFi$H[DDmkcBA$dAAOBGBJCBAPAA^]$ZKAXaIB"
    "DAEVDAIACAWYGKEXAFQjzvCARAGJOPDHBBBVAGAACDCAPAMBACNBJAHFDBBVAGABABAB_DAASCPIACAVAGABAECARAOBW"
    "AKHBBBVAGABAECA^BACOAQAAFCCADCBAAABCBCCCLVAtHACAWAPCAZCBABB^ADHACAWAJAECA_BABOBQIACAiBAPAECHC"
    "XFERCXAIAABGzpABLGzBAAAEAXAAAJABIABEAAUD`A$@HAd[E$tkTAPFDDCACBGCDMLAQfAAEABkA(RADBGAAADBiADBa"
    "ADBGAAADBOAyADB$DePP$WBFC,uBQAZE$LFHGRMSNRNMACOtcADA$D$ZGEBbAAE$GJ_q^BEKlDZvWIu$SA$^oQHv^MBJl"
    "ZdiCJdBKEkBCiDAFABCAE&C$A'ZBFBfBFBHAAAAAAA_BuAGAACCAGCDBFDMECAG$uAMAPM$fADABJAACEFAAAAAADAKBD"
    "EEDAtB$1e&hFDCBLfAAEABxGAPWIGAGAGAGAGAGAGAG$QA*\\BjEEBD$WFCA$[ADEkA$_Q`pP+H&7h$A/2l$DnB'QCPJB"
    "ToP_B$GqIB$hB$DBBAAAHUPACADAW]tNr~FCAABK\\JWY]Go\\APEAJJEAiWCAHTWCACrAACBBEBAAAXCBKGCLFBFBFIG"
    "AGAkANF$t]),ULWDq'9J(sB$kfGLEEAAJAMAEAAABABA$ma(pR$ABvhL$uEA%IdZFZK$ZCFBFBFBCcLAZASABAOBNb$|)"
    "K]Cqo`MTAHFfJ^BdDHp%`RdDdDhHtLKAOAGABAKAOAGABCtL'{IVJHXFAjAI$FFBAAlABCABWJWI_$BSABJVJZ$GxFB$A"
    "AODACA]j]C]cHA\\[vJVJSMR$o$JwsMsMdf\\IW&}jFBPC{]JAHVjRnU[WLuyBBAMm`YZd]ABAHcCALpNDUAAAcRAYSB$"
    "@GAAADAOAJGofHBBBVAGABAECARALE^JAABAAfAAYAAAluRDTC^pTBAA%zoiDdpTA{kMA$H[eG%{l$u$A_HBABHABAXOA"
    "AA$_HBgPAAA\\AJhGAUAKnSAR$J&Ja_IAeQAq^$qGABAfUAYFABA`NA(LSOAAMAb$}A$P1h&i&G$0u$bO4AQFY%*ZE,P&"
    ";e^>},BG_Q$PQ^RpPD_UES)vm&V$A%B$LEA$CM$ABAA\\&0YH6iiJ($tDAGABA'gOA]CBANDH)R$+h$lEMCIGJ&.E$VA$"
    "HABBABBBDALAAAGA$BADBHAGA\\ADAEAACGA(YBYAYA_AYA_AYA_AYA_AYAH$$Q_FF'I~%TmJGPA(F^Rl*k\\&g^BA*vG"
    "ADABAOA&H{$EGA6GDA[ABAABAAJADAAAAFADAAAAAACABAABAAAAAAAAAABAABDAGADADAAAJAQECAEAQ%1J;)F`%,{F&"
    "aB&*]N')gO,w$.I+f:y%9YE%-b",
    "pJ$yBEABC9wJ%HJ&IJ)bJ$wJDF$mJ$wJ$wJBF$oM$tJHG$hJ$iGGS$nJ$aJ$wJ$GT'PJ$GJ.ZT0~C&rJFJVJ'pJ%BK%gJ"
    "FJ%xJ$WJ%HJFJ3fACFFJ&IsBE.a|$OV-@^8~A/UAYINC(\\D%LJ^HAO`JgO37tJ%~J(EF%\\JfJ&IJVJ$WJ)\\J/$gJ*t"
    "mLyQB(Z[dD]AHA%HE&MJ1|HYGgI$LEVF%bBBPBn$AItB^C$LE$iHXHiG(OFpJFJ'Z_%`JjD$qG%H^%BJ|J%RJGT&~J([J"
    "$wJ({J$gJFT$ML)jS$^J-`J$W]&fJ$GJ)lJ$gU3{$p+9wJ$,KJ$WJ%HJAG+VJ'JW06XJ:]TLT$mY4fr$,eJ)lJ*}J&zJ."
    "WI%BJ/c{ACAD$MmAO2QM$3OJ",
    "IERA$eAZA&'wA$-eK]BEAoA%*_A" };

static Tokenizer tok_new(size_t room) { // room: no more tokens than that
    Tokenizer t = {};
    t.end_of_text = -1;
    memset(t.id_of_byte, 0xff, sizeof t.id_of_byte); // TOK_NONE
    memset(t.byte_of_char, 0xff, sizeof t.byte_of_char); // -1
    t.room = min_size(room, TOK_MAX_VOCAB);
    for (t.mask = 1; t.mask < 2 * t.room; ) t.mask = 2 * t.mask + 1;
    t.tokens = (Token *)host_alloc(t.room * sizeof *t.tokens);
    t.ids = (uint32_t *)host_alloc((t.mask + 1) * sizeof *t.ids);
    t.pairs = (TokPair *)host_alloc((t.mask + 1) * sizeof *t.pairs);
    memset(t.ids, 0xff, (t.mask + 1) * sizeof *t.ids); // TOK_NONE
    memset(t.pairs, 0xff, (t.mask + 1) * sizeof *t.pairs);
    // GPT-2's files show each byte as a character: 33 to 126, 161 to 172 and 174 to 255 as the one
    // of that number, the other 68, in order, as U+0100 to U+0143.
    for (int b = 0, next = 256; b < 256; b++) {
        int u = (b > 32 && b < 127) || (b > 160 && b != 173) ? b : next++;
        t.char_of_byte[b] = (uint32_t)u;
        t.byte_of_char[u] = b;
    }
    t.class_of = (uint8_t *)host_alloc(TOK_CODE_POINTS);
    for (int k = 0; k < 3; k++) {
        size_t at = 0, run = 0, inside = 0;
        for (const char *c = tok_unicode[k]; *c; c++) {
            if (*c < '@') { run = 28 * run + (size_t)(*c - '#'); continue; }
            run = 63 * run + (size_t)(*c - '@');
            if (inside) memset(t.class_of + at, k + 1, run);
            inside = !inside;
            at += run;
            run = 0;
        }
    }
    return t;
}
static uint32_t tok_crc(const Tokenizer *t) { // of the tokens in order, whatever file they are from
    uint32_t crc = 0;
    for (uint32_t id = 0; id < t->vocab_size; id++) {
        crc = crc32c(crc, &t->tokens[id].bytes, sizeof t->tokens[id].bytes);
        crc = crc32c(crc, t->bytes.at + t->tokens[id].at, t->tokens[id].bytes);
    }
    return crc;
}
static void tok_free(Tokenizer *t) {
    free(t->name), free(t->tokens), free(t->bytes.at), free(t->ids), free(t->pairs);
    free(t->class_of);
}

// Both hash tables: at most half of the places are taken; if one is, the next may be the right one.
static const uint64_t TOK_MIX = 0x9e3779b97f4a7c15u; // 2^64 / golden ratio

static uint32_t *tok_find(const Tokenizer *t, const char *s, size_t bytes) { // or a free place
    uint64_t hash = bytes, word;
    size_t done = 0;
    for (; done + 8 <= bytes; done += 8) {
        memcpy(&word, s + done, 8);
        hash = (hash ^ word) * TOK_MIX;
        hash ^= hash >> 32;
    }
    for (word = 0; done < bytes; done++) word = word << 8 | (uint8_t)s[done];
    size_t i = (hash ^ word) * TOK_MIX >> 32 & t->mask;
    for (; t->ids[i] != TOK_NONE; i = (i + 1) & t->mask) {
        const Token *token = &t->tokens[t->ids[i]];
        if (token->bytes == bytes && !memcmp(t->bytes.at + token->at, s, bytes)) break;
    }
    return &t->ids[i];
}
static TokPair *tok_pair(const Tokenizer *t, uint32_t left, uint32_t right) { // or a free place
    size_t i = ((uint64_t)left << 32 | right) * TOK_MIX >> 32 & t->mask;
    while (t->pairs[i].rank != TOK_NONE && (t->pairs[i].left != left || t->pairs[i].right != right))
        i = (i + 1) & t->mask;
    return &t->pairs[i];
}

// --- 12.2 encoding ---
// Bytes of the first piece: '(s|t|re|ve|m|ll|d) | ?letters | ?numbers | ?others | \s+(?!\S) | \s+
static size_t tok_piece(const Tokenizer *t, const char *s, size_t bytes) {
    if (s[0] == '\'' && bytes > 1) {
        if (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd') return 2;
        if (bytes > 2 && (!memcmp(s, "'re", 3) || !memcmp(s, "'ve", 3) || !memcmp(s, "'ll", 3)))
            return 3;
    }
    int piece_class = -1;
    for (size_t at = 0, step, last = 0; at < bytes; at += step, last = step) {
        uint32_t u = (uint8_t)s[at];
        step = u < 0x80 ? 1 : utf8_get(&u, s + at, bytes - at);
        int c = u < TOK_CODE_POINTS ? t->class_of[u] : 0;
        if (piece_class < 0 || (at == 1 && s[0] == ' ' && c != TOK_SPACE)) piece_class = c;
        else if (c != piece_class) // the last of several spaces is left to what follows
            return piece_class == TOK_SPACE && at > last ? at - last : at;
    }
    return bytes;
}

// A heap of the pairs in a piece, least first: rank << 40 | the byte where the left token starts.
typedef struct { uint64_t *at; size_t count; } TokHeap;

static void tok_push(TokHeap *h, const Tokenizer *t, uint32_t *id, size_t left, size_t right) {
    uint64_t pair_rank = tok_pair(t, id[left], id[right])->rank, key = pair_rank << 40 | left;
    if (pair_rank == TOK_NONE) return;
    size_t i = h->count++;
    for (; i > 0 && h->at[(i - 1) / 2] > key; i = (i - 1) / 2) h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = key;
}
static uint64_t tok_pop(TokHeap *h) {
    uint64_t least = h->at[0], key = h->at[--h->count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < h->count; i = child) {
        if (child + 1 < h->count && h->at[child + 1] < h->at[child]) child++;
        if (h->at[child] >= key) break;
        h->at[i] = h->at[child];
    }
    h->at[i] = key;
    return least;
}
// The tokens of one piece of n bytes, in O(n log n). id[i] is the token that starts at byte i, or
// TOK_NONE. A pair may be gone when its turn comes: then its place shows another rank, or none.
static size_t tok_merge(const Tokenizer *t, uint32_t *id, const char *s, size_t n) {
    uint64_t small[128]; // n pairs, and one more with each merge: it takes one and adds two
    TokHeap heap = { 2 * n <= 128 ? small : (uint64_t *)host_alloc(2 * n * sizeof *small), 0 };
    for (size_t i = 0; i < n; i++) {
        id[i] = t->id_of_byte[(uint8_t)s[i]];
        if (i > 0) tok_push(&heap, t, id, i - 1, i);
    }
    while (heap.count > 0) {
        uint64_t key = tok_pop(&heap);
        size_t left = key & 0xffffffffff, last = left;
        size_t right = id[left] == TOK_NONE ? n : left + t->tokens[id[left]].bytes;
        if (right >= n || tok_pair(t, id[left], id[right])->rank != key >> 40) continue;
        id[left] = tok_pair(t, id[left], id[right])->id;
        id[right] = TOK_NONE;
        right = left + t->tokens[id[left]].bytes;
        if (right < n) tok_push(&heap, t, id, left, right);
        while (last > 0 && id[--last] == TOK_NONE) { } // back to the token before
        if (last < left) tok_push(&heap, t, id, last, left);
    }
    size_t count = 0;
    for (size_t i = 0; i < n; i++) if (id[i] != TOK_NONE) id[count++] = id[i];
    if (heap.at != small) free(heap.at);
    return count;
}
// One document to ids; out has room for one per byte.
static size_t tok_encode(const Tokenizer *t, const char *text, size_t bytes, uint32_t *out) {
    size_t count = 0;
    for (size_t at = 0, piece; at < bytes; at += piece) {
        piece = tok_piece(t, text + at, bytes - at);
        uint32_t id = *tok_find(t, text + at, piece);
        if (id != TOK_NONE && t->tokens[id].whole) out[count++] = id;
        else count += tok_merge(t, out + count, text + at, piece);
    }
    return count;
}
static const char *tok_bytes(const Tokenizer *t, uint32_t id, size_t *bytes) {
    assert(id < t->vocab_size);
    *bytes = t->tokens[id].bytes;
    return t->bytes.at + t->tokens[id].at;
}

// --- 12.3 reading vocabularies ---
static void tok_add(Tokenizer *t, uint64_t id, const char *s, size_t bytes) {
    tok_check(id < t->room && bytes > 0 && bytes <= TOK_MAX_BYTES, "token %" PRIu64 ", %zu bytes: "
              "wanted an id below %zu, and 1 to %d bytes", id, bytes, t->room, TOK_MAX_BYTES);
    tok_check(t->tokens[id].bytes == 0, "token %" PRIu64 " is given twice", id);
    uint32_t *place = tok_find(t, s, bytes);
    tok_check(*place == TOK_NONE, "tokens %u and %" PRIu64 " have the same bytes", *place, id);
    *place = (uint32_t)id;
    Token token = { (uint32_t)t->bytes.count, (uint32_t)bytes, bytes == 1 };
    t->tokens[id] = token;
    text_add_bytes(&t->bytes, s, bytes);
    if (t->vocab_size <= id) t->vocab_size = (uint32_t)id + 1;
    if (bytes == 1) t->id_of_byte[(uint8_t)*s] = (uint32_t)id;
    if (bytes == strlen(TOK_END) && !memcmp(s, TOK_END, bytes)) t->end_of_text = (int)id;
}
static void tok_check_all(const Tokenizer *t) { // before the first merge
    for (uint32_t id = 0; id < t->vocab_size; id++)
        tok_check(t->tokens[id].bytes > 0, "token %u of %u is missing", id, t->vocab_size);
    for (int b = 0; b < 256; b++)
        tok_check(t->id_of_byte[b] != TOK_NONE, "no token for byte %d: not byte-level BPE", b);
}
static void tok_add_merge(Tokenizer *t, uint32_t id, size_t left_bytes) { // 0: unknown
    uint32_t parts[TOK_MAX_BYTES];
    Token *token = &t->tokens[id];
    size_t count = tok_merge(t, parts, t->bytes.at + token->at, token->bytes);
    tok_check(count == 2 && (!left_bytes || t->tokens[parts[0]].bytes == left_bytes), "merge %zu: "
              "token %u is to be made of the two that earlier merges leave of it: found %zu%s",
              t->num_pairs, id, count, count == 2 ? " others" : count == 1 ? ", the same" : "");
    TokPair pair = { parts[0], parts[1], (uint32_t)t->num_pairs++, id };
    *tok_pair(t, pair.left, pair.right) = pair;
    token->whole = 1;
}
static void tok_add_merges(Tokenizer *t) { // of all tokens, whose ids are their ranks
    tok_check_all(t);
    for (uint32_t id = 0; id < t->vocab_size; id++)
        if (!t->tokens[id].whole && (int)id != t->end_of_text) tok_add_merge(t, id, 0);
}
// The bytes that the characters of a token stand for; one with other characters stands for itself.
static size_t tok_from_chars(const Tokenizer *t, char *out, const char *s, size_t bytes) {
    size_t count = 0;
    for (size_t at = 0; at < bytes; ) {
        uint32_t u;
        at += utf8_get(&u, s + at, bytes - at);
        if (u >= 324 || t->byte_of_char[u] < 0) { memcpy(out, s, bytes); return bytes; }
        out[count++] = (char)t->byte_of_char[u];
    }
    return count;
}
static void tok_read_merge(Tokenizer *t, const char *line, size_t bytes, int new_token) {
    char s[TOK_LINE];
    const char *space = (const char *)memchr(line, ' ', bytes);
    tok_check(space != NULL && bytes < TOK_LINE, "merge %zu \"%.*s\": wanted two tokens and a "
              "space between them", t->num_pairs, (int)min_size(bytes, 99), line);
    size_t left_chars = (size_t)(space - line), left = tok_from_chars(t, s, line, left_chars);
    size_t count = left + tok_from_chars(t, s + left, space + 1, bytes - left_chars - 1);
    if (new_token) tok_add(t, t->vocab_size, s, count);
    uint32_t id = *tok_find(t, s, count);
    tok_check(id != TOK_NONE, "merge %zu \"%.*s\" makes no token of the vocabulary", t->num_pairs,
              (int)min_size(bytes, 99), line);
    tok_add_merge(t, id, left);
}
static void tok_add_byte_tokens(Tokenizer *t) { // in the order of their characters, as GPT-2's
    for (int u = 0; u < 324; u++) {
        char byte = (char)t->byte_of_char[u];
        if (t->byte_of_char[u] >= 0) tok_add(t, t->vocab_size, &byte, 1);
    }
}
// vocab.bpe, merges.txt: lines "left right". Where no vocab.json gave ids, they are GPT-2's: bytes,
// merges, end of text.
static void tok_read_merges(Tokenizer *t, const char *text) {
    int own_ids = t->vocab_size == 0;
    if (own_ids) tok_add_byte_tokens(t);
    for (const char *line = text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        tok_check(end != NULL, "the last line, \"%.99s\", has no end: cut short?", line);
        if (line == text && !strncmp(line, "#version", 8)) continue;
        size_t bytes = (size_t)(end - line);
        if (bytes > 0 && line[bytes - 1] == '\r') bytes--; // of a line that ends as in Windows
        tok_read_merge(t, line, bytes, own_ids);
    }
    if (own_ids) tok_add(t, t->vocab_size, TOK_END, strlen(TOK_END));
}
static void tok_read_ranks(Tokenizer *t, const char *text) { // gpt2.tiktoken: lines "base64 rank"
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t line = 1; *text; text++, line++) {
        char s[TOK_MAX_BYTES], *end;
        uint32_t bits = 0, num_bits = 0;
        size_t count = 0;
        for (const char *d; *text && (d = strchr(digits, *text)) && count < sizeof s; text++) {
            bits = bits << 6 | (uint32_t)(d - digits);
            num_bits += 6;
            if (num_bits < 8) continue;
            num_bits -= 8;
            s[count++] = (char)(bits >> num_bits);
        }
        text += strspn(text, "=");
        uint64_t id = strtoull(text, &end, 10);
        tok_check(*text == ' ' && isdigit((unsigned char)text[1]) && *end == '\n',
                  "line %zu: wanted a token in base64, a space and its rank", line);
        tok_add(t, id, s, count);
        text = end;
    }
    tok_check(t->vocab_size != 100256 && t->vocab_size != 199998, "%u tokens: cl100k_base and "
              "o200k_base cut text by other patterns than GPT-2's, the one here", t->vocab_size);
    tok_add(t, t->vocab_size, TOK_END, strlen(TOK_END));
    tok_add_merges(t);
}
static void tok_read_llmc(Tokenizer *t, const char *text, size_t bytes) {
    uint32_t header[4]; // magic, version, vocab_size, end of text; 252 more are zero
    memcpy(header, text, sizeof header);
    tok_check(header[1] == 1 || header[1] == 2, "version %u, wanted 1 or 2", header[1]);
    size_t at = 1024;
    for (uint32_t id = 0; id < header[2]; id++) { // a byte with the length, the bytes
        size_t count = at < bytes ? (uint8_t)text[at] : 0;
        tok_check(at < bytes && count < bytes - at, "%zu bytes, cut short in token %u of %u", bytes,
                  id, header[2]);
        tok_add(t, id, text + at + 1, count);
        at += 1 + count;
    }
    tok_check(at == bytes, "%zu bytes, but %u tokens end at %zu", bytes, header[2], at);
    tok_add_merges(t);
}

static int json_find(Json *value, Json object, const char *key) { // 0: not there, or null
    char found[TOK_LINE];
    *value = object;
    for (json_enter(value, '{'); json_more(value, '}'); json_skip(value)) {
        json_key(value, found, sizeof found);
        if (!strcmp(found, key)) return json_peek(value) != 'n';
    }
    return 0;
}
static void tok_read_vocab(Tokenizer *t, Json j) { // {"token": id, ...}
    char s[TOK_LINE], key[TOK_LINE];
    for (json_enter(&j, '{'); json_more(&j, '}'); ) {
        json_key(&j, key, sizeof key);
        uint64_t id = json_count(&j);
        tok_add(t, id, s, tok_from_chars(t, s, key, strlen(key)));
    }
}
// A tokenizer.json, if it asks for no more than is done here, or a vocab.json: then the result is
// 1, as the merges are missing.
static int tok_read_json(Tokenizer *t, Json top) {
    static const char *const rules[][3] = { { "model", "type", "\"BPE\"" },
        { "pre_tokenizer", "type", "\"ByteLevel\"" }, { "pre_tokenizer", "use_regex", "true" },
        { "pre_tokenizer", "add_prefix_space", "false" }, { "model", "dropout", "null" },
        { "model", "continuing_subword_prefix", "\"\"" }, { "model", "end_of_word_suffix", "\"\"" },
        { "model", "byte_fallback", "false" }, { "model", "ignore_merges", "false" } };
    char s[TOK_LINE];
    Json model = top, value = top, j;
    json_skip(&value);
    tok_check(json_peek(&value) == 0, "byte %td: text after the JSON object", value.at - top.text);
    if (!json_find(&model, top, "model") || *model.at != '{') { // in a vocab.json: "model": id
        tok_read_vocab(t, top);
        tok_check_all(t);
        return 1;
    }
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const char *const *r = rules[i];
        tok_check(json_find(&j, top, r[0]), "no %s: not byte-level BPE", r[0]);
        int size = json_find(&value, j, r[1]) ? (int)min_size(strcspn(value.at, ",}\n"), 99) : 0;
        tok_check(size == 0 || !strncmp(value.at, r[2], strlen(r[2])), "%s: %s is %.*s, but "
                  "only %s is supported (byte-level BPE as in GPT-2)", r[0], r[1], size, value.at,
                  r[2]);
    }
    tok_check(!json_find(&j, top, "normalizer"), "a %s: not supported", "normalizer");
    tok_check(json_find(&value, model, "vocab"), "the model has no %s", "vocab");
    tok_read_vocab(t, value);
    if (json_find(&j, top, "added_tokens"))
        for (json_enter(&j, '['); json_more(&j, ']'); json_skip(&j)) {
            uint64_t id = json_find(&value, j, "id") ? json_count(&value) : TOK_NONE;
            tok_check(!json_find(&value, j, "special") || json_peek(&value) == 't', "added token %"
                      PRIu64 " is not special: to find it in texts is not supported", id);
            size_t count = json_find(&value, j, "content") ? json_string(&value, s, sizeof s) : 0;
            if (id >= t->room || t->tokens[id].bytes == 0) tok_add(t, id, s, count);
        }
    tok_check_all(t);
    tok_check(json_find(&j, model, "merges"), "the model has no %s", "merges");
    for (json_enter(&j, '['); json_more(&j, ']'); ) { // "left right", or ["left", "right"]
        int is_pair = json_peek(&j) == '[';
        if (is_pair) { json_enter(&j, '['); json_more(&j, ']'); }
        size_t count = json_string(&j, s, TOK_LINE / 2);
        if (is_pair && json_more(&j, ']')) {
            s[count++] = ' ';
            count += json_string(&j, s + count, TOK_LINE / 2);
            if (json_more(&j, ']')) json_bad(&j, "a pair");
        }
        tok_read_merge(t, s, count, 0);
    }
    return 0;
}
// The content tells what kind of file it is; text ends in a zero byte. The result is 1 for a
// vocab.json: a second call brings its merges.txt.
static int tok_parse(Tokenizer *t, const char *path, const char *text, size_t bytes) {
    const char *second = text + strcspn(text, " \n"); // in a first line like "IQ== 0"
    int is_json = t->tokens == NULL && text[strspn(text, " \t\r\n")] == '{';
    int is_llmc = bytes >= 16 && !memcmp(text, "\xc8\xd7\x34\x01", 4); // 20240328
    int is_ranks = *second == ' ' && isdigit((unsigned char)second[1]) &&
                   second[1 + strspn(second + 1, "0123456789")] == '\n';
    size_t room = 257;
    for (size_t i = 0; i < bytes; i++) room += text[i] == (is_json ? ':' : '\n');
    if (t->tokens == NULL) *t = tok_new(is_llmc ? bytes / 2 + 1 : room);
    free(t->name);
    t->name = text_of("%s", path);
    tok_check(is_llmc || (bytes > 0 && strlen(text) == bytes), "%zu bytes: no vocab.bpe, "
              "merges.txt, *.tiktoken, tokenizer.json, vocab.json or gpt2_tokenizer.bin", bytes);
    if (is_json) return tok_read_json(t, json_open(path, text, bytes));
    if (is_llmc) tok_read_llmc(t, text, bytes);
    else if (is_ranks) tok_read_ranks(t, text);
    else tok_read_merges(t, text);
    return 0;
}
// The vocabulary in a folder, or NULL. from: number of the first name tried; 2: no JSON.
static char *tok_file_in(const char *folder, int from) {
    static const char *const files[] = { "tokenizer.json", "vocab.json", "vocab.bpe",
                                         "gpt2.tiktoken", "merges.txt", "gpt2_tokenizer.bin" };
    for (int i = from; i < 6; i++) {
        char *path = text_of("%s/%s", folder, files[i]);
        if (access(path, R_OK) == 0) return path;
        free(path);
    }
    return NULL;
}
static char *tok_gpt2_file(void) {
    const char *env = getenv("GPT_DATA");
    char *data = text_of("%s/tokenizer", env ? env : "."), *path = NULL;
    const char *folders[] = { "data", data, "../shared/data/tokenizer" };
    for (int i = 0; i < 3 && path == NULL; i++) path = tok_file_in(folders[i], 2);
    check(path != NULL, EXIT_INPUT, "gpt2: no vocab.bpe, gpt2.tiktoken or merges.txt in data/ or "
          "$GPT_DATA/tokenizer/: data/get.sh gpt2 gets it");
    free(data);
    return path;
}
static Tokenizer tok_of_bytes(void) {
    Tokenizer t = tok_new(257);
    for (uint32_t id = 0; id < 256; id++) {
        char byte = (char)id;
        tok_add(&t, id, &byte, 1);
    }
    tok_add(&t, 256, TOK_END, strlen(TOK_END));
    t.name = text_of("bytes");
    return t;
}
// spec: "bytes", "gpt2", a file, or a folder with one.
static Tokenizer tok_load(const char *spec) {
    if (!strcmp(spec, "bytes")) return tok_of_bytes();
    struct stat st;
    int is_gpt2 = !strcmp(spec, "gpt2"), lacks_merges = 1;
    int is_folder = stat(spec, &st) == 0 && S_ISDIR(st.st_mode);
    char *path = is_gpt2 ? tok_gpt2_file() : is_folder ? tok_file_in(spec, 0) : text_of("%s", spec);
    check(path != NULL, EXIT_INPUT, "%s: a folder without a tokenizer.json, vocab.json, vocab.bpe "
          "or merges.txt", spec);
    Tokenizer t = {};
    while (lacks_merges) {
        size_t bytes;
        char *text = in_read_all(path, TOK_MAX_FILE, &bytes);
        lacks_merges = tok_parse(&t, path, text, bytes);
        char *beside = path_beside(path, "merges.txt");
        free(text), free(path);
        path = beside;
    }
    check(!is_gpt2 || t.vocab_size == 50257, EXIT_INPUT, "%s: %u tokens, wanted GPT-2's 50257",
          t.name, t.vocab_size);
    free(path), free(t.name);
    t.name = text_of("%s", spec);
    return t;
}

// --- 12.4 writing: the files of a Hugging Face folder ---
static void tok_put(Text *out, const Tokenizer *t, uint32_t id, int json) { // as they show it
    for (size_t i = 0; i < t->tokens[id].bytes; i++) {
        uint8_t b = (uint8_t)t->bytes.at[t->tokens[id].at + i];
        char c[4] = { (char)b };
        size_t count = t->tokens[id].whole ? utf8_put(t->char_of_byte[b], c) : 1;
        if (json && (b == '"' || b == '\\')) text_add_bytes(out, "\\", 1);
        if (json && b < 0x20 && !t->tokens[id].whole) text_add(out, "\\u%04x", b);
        else text_add_bytes(out, c, count);
    }
}
// file: "vocab.json", "merges.txt", "tokenizer.json" or "tokenizer_config.json".
static void tok_text(Text *out, const Tokenizer *t, const char *file, size_t max_tokens) {
    static const char level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                                "\"trim_offsets\":true,\"use_regex\":true}";
    int json = !strcmp(file, "tokenizer.json");
    if (!strcmp(file, "tokenizer_config.json")) {
        text_add(out, "{\"tokenizer_class\":\"GPT2Tokenizer\",\"add_prefix_space\":false,");
        if (t->end_of_text >= 0)
            text_add(out, "\"bos_token\":\"%s\",\"eos_token\":\"%s\",\"unk_token\":\"%s\",",
                     TOK_END, TOK_END, TOK_END);
        text_add(out, "\"model_max_length\":%zu}\n", max_tokens);
    }
    if (json) {
        text_add(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
                 "\"added_tokens\":[");
        for (uint32_t id = 0, count = 0; id < t->vocab_size; id++) if (!t->tokens[id].whole) {
            text_add(out, "%s{\"id\":%u,\"content\":\"", count++ ? "," : "", id);
            tok_put(out, t, id, 1);
            text_add(out, "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                     "\"normalized\":false,\"special\":true}");
        }
        text_add(out, "],\"normalizer\":null,\"pre_tokenizer\":%s,\"post_processor\":%s,"
                 "\"decoder\":%s,\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                 "\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":\"\","
                 "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":", level, level, level);
    }
    if (json || !strcmp(file, "vocab.json")) {
        for (uint32_t id = 0; id < t->vocab_size; id++) {
            text_add(out, "%s\"", id ? ",\n" : "{");
            tok_put(out, t, id, 1);
            text_add(out, "\":%u", id);
        }
        text_add(out, "}");
    }
    if (json || !strcmp(file, "merges.txt")) {
        const TokPair **order = (const TokPair **)host_alloc((t->num_pairs + 1) * sizeof *order);
        for (size_t i = 0; i <= t->mask; i++)
            if (t->pairs[i].rank != TOK_NONE) order[t->pairs[i].rank] = &t->pairs[i];
        text_add(out, json ? ",\"merges\":[" : "#version: 0.2\n");
        for (size_t i = 0; i < t->num_pairs; i++) {
            text_add(out, "%s", !json ? "" : i ? ",\n\"" : "\"");
            tok_put(out, t, order[i]->left, json);
            text_add(out, " ");
            tok_put(out, t, order[i]->right, json);
            text_add(out, "%s", json ? "\"" : "\n");
        }
        text_add(out, "%s", json ? "]}}\n" : "");
        free(order);
    }
}

// --- 12.5 sampling ---

// Bytes of a sample; a terminal gets control bytes as \xNN, so that a model cannot drive it: 0x00
// to 0x1f, 0x7f, and 0x80 to 0x9f where they are no part of a character, or are one with 0xc2.
static void print_bytes(FILE *file, const char *bytes, size_t count) {
    static unsigned char before = 0;    // a character may come as several tokens
    static int left = 0;                // bytes of it that are still to come
    int is_terminal = isatty(fileno(file));
    for (size_t i = 0; i < count; i++) {
        unsigned char c = (unsigned char)bytes[i];
        int is_c1 = c >= 0x80 && c < 0xa0 && (left == 0 || before == 0xc2);
        int is_control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f || is_c1;
        if (is_terminal && is_control) fprintf(file, "\\x%02x", c);
        else fputc(c, file);
        if (c >= 0x80 && c < 0xc0) left -= left > 0;
        else left = c < 0xc0 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
        before = c;
    }
    fflush(file); // a character of several tokens is completed by the terminal
}

// Tokens at positions first .. first+n-1 of one sequence whose earlier keys and values are in the
// cache: runs the layers on these n rows alone. logits (V) are the last row's.
static void gpt_extend(Model *model, const int32_t *tokens, size_t n, size_t first, real *logits) {
    size_t C = model->config.C, rows = 0;
    Acts a = acts_at(model, 0);
    for (size_t done = 0; done < n; done += rows) { // as many as the activations have room for
        rows = min_size(n - done, model->B * model->T);
        to_dev(model->tokens, tokens + done, rows * sizeof(int32_t));
        gpt_forward(model, model->tokens, 1, rows, (int64_t)(first + done));
    }
    matmul_forward(a.logits, NULL, a.lnf + (rows - 1) * C, params_at(model, 0).wte, NULL, NULL, 1,
                   C, model->config.Vp);
    values_to_host(logits, a.logits, model->config.V);
}

typedef struct { real logit; int32_t id; } Candidate;
static int candidate_order(const void *a, const void *b) { // likeliest first; ids break ties
    const Candidate *x = (const Candidate *)a, *y = (const Candidate *)b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}
// Draw from softmax(logits / temperature), cut to the top_k likeliest and to the likeliest that
// together reach top_p (Holtzman et al. 2020). uniform in [0, 1); candidates: room for V.
static int32_t sample_token(const real *logits, Candidate *candidates, size_t V, const Flags *f,
                            double uniform) {
    size_t count = V;
    for (size_t i = 0; i < V; i++) {
        candidates[i].logit = logits[i];
        candidates[i].id = (int32_t)i;
    }
    if (f->temperature == 0) {
        for (size_t i = 1; i < V; i++)
            if (candidate_order(&candidates[i], &candidates[0]) < 0) candidates[0] = candidates[i];
        return candidates[0].id;
    }
    if (f->top_k > 0 || f->top_p < 1) qsort(candidates, V, sizeof *candidates, candidate_order);
    if (f->top_k > 0) count = min_size(V, (size_t)f->top_k);
    double max = -INFINITY, sum = 0, reached = 0;
    for (size_t i = 0; i < count; i++) if (candidates[i].logit > max) max = candidates[i].logit;
    for (size_t i = 0; i < count; i++) sum += exp((candidates[i].logit - max) / f->temperature);
    for (size_t i = 0; i < count && f->top_p < 1; i++) {
        reached += exp((candidates[i].logit - max) / f->temperature);
        if (reached >= f->top_p * sum) { count = i + 1; sum = reached; } // the last one
    }
    double left = uniform * sum;
    for (size_t i = 0; i + 1 < count; i++) {
        left -= exp((candidates[i].logit - max) / f->temperature);
        if (left < 0) return candidates[i].id;
    }
    return candidates[count - 1].id;
}

// Print prompt and up to `wanted` more tokens. When the cache is full its older half is forgotten.
// draw: number of this sample; with the seed it decides every draw. Returns how many were made.
static size_t gpt_sample(Model *model, const Tokenizer *tokenizer, const Flags *f,
                         const char *prompt, size_t wanted, uint64_t draw, FILE *file) {
    size_t bytes = strlen(prompt), count = 0, V = model->config.V;
    int32_t *tokens = (int32_t *)host_alloc((bytes + 1 + wanted) * sizeof(int32_t));
    real *logits = (real *)host_alloc(V * sizeof(real));
    Candidate *candidates = (Candidate *)host_alloc(V * sizeof(Candidate));
    if (bytes > 0) count = tok_encode(tokenizer, prompt, bytes, (uint32_t *)tokens);
    else tokens[count++] = tokenizer->end_of_text >= 0 ? tokenizer->end_of_text : 0;
    for (size_t i = 0; i < count; i++)
        check((size_t)tokens[i] < V, EXIT_USAGE, "the prompt has token %d, the model's vocab_size "
              "is %zu", tokens[i], V);
    print_bytes(file, prompt, bytes);
    size_t begin = 0, cached = 0; // the cache holds tokens begin .. begin + cached - 1
    const size_t of_prompt = count;
    for (; count < of_prompt + wanted && !stop_signal; count++) {
        if (count - begin > model->cache_T) {
            begin = count - (model->cache_T + 1) / 2;
            cached = 0;
        }
        gpt_extend(model, tokens + begin + cached, count - begin - cached, cached, logits);
        cached = count - begin;
        tokens[count] = sample_token(logits, candidates, tokenizer->vocab_size, f, // not V
                                     hash_uniform((uint64_t)f->seed + hash64(draw), count));
        if (tokens[count] == tokenizer->end_of_text) break;
        size_t length;
        const char *text = tok_bytes(tokenizer, (uint32_t)tokens[count], &length);
        print_bytes(file, text, length);
        progress_mark("a sampled token");
    }
    print_bytes(file, "\n", 1);
    free(tokens), free(logits), free(candidates);
    return count - of_prompt;
}

// === 13. Checkpoints =================================================================== [shared]
// A checkpoint is the folder OUT/step_00002000: config.json, model.safetensors and the tokenizer,
// as Hugging Face's GPT2LMHeadModel reads them, and train_state.safetensors, from which a run goes
// on as if it had never stopped. It is written to step_00002000.tmp, brought to the disk, and
// renamed: there is never a half checkpoint under a good name. Every tensor carries its CRC-32C,
// and loading checks all of them before it changes anything.

// --- 13.1 safetensors: u64 length of the header, JSON header, data ---
typedef struct {
    char name[128], dtype[16];
    uint64_t dims[4], begin, end;    // bytes begin .. end of the data
    size_t num_dims;
} StTensor;
typedef struct { char key[128], *value; } StMeta;
typedef struct St {
    InFile file;
    struct St *next;        // the next shard; of an index: the first
    uint64_t data_start;
    StTensor *tensors;
    StMeta *metas;
    size_t num_tensors, num_metas;
    int has_crc;            // our own files: the header and every tensor carry a CRC
    uint32_t header_crc;
} St;
enum { CKPT_VERSION = 1, ST_MAX_HEADER = 100000000, ST_MAX_ENTRIES = 100000 };

// The CRC of a header covers the header with zeros in the place of this CRC. Returns that place, or
// NULL where a header has none.
static char *st_header_crc(char *header, uint32_t *crc) {
    static const char key[] = "\"header_crc32c\":\"";
    char *at = strstr(header, key), was[8];
    if (at == NULL || strlen(at) < sizeof key + 8) return NULL;
    at += sizeof key - 1;
    memcpy(was, at, 8);
    memset(at, '0', 8);
    *crc = crc32c(0, header, strlen(header));
    memcpy(at, was, 8);
    return at;
}
static size_t dtype_bytes(const char *dtype) {
    return is_choice("F64|I64", dtype) ? 8 : is_choice("F32|I32", dtype) ? 4 :
           is_choice("F16|BF16", dtype) ? 2 : 1;
}
static void st_read_tensor(St *st, Json *j, StTensor *t) {
    char key[32];
    uint64_t bytes = 1;
    int seen = 0;
    for (json_enter(j, '{'); json_more(j, '}'); ) {
        json_key(j, key, sizeof key);
        if (!strcmp(key, "dtype")) { json_string(j, t->dtype, sizeof t->dtype); seen |= 1; }
        else if (!strcmp(key, "shape")) {
            for (json_enter(j, '['); json_more(j, ']'); ) {
                check(t->num_dims < 4, EXIT_INPUT, "%s: %s has over 4 dimensions", j->path,
                    t->name);
                t->dims[t->num_dims++] = json_count(j);
            }
            seen |= 2;
        } else if (!strcmp(key, "data_offsets")) {
            json_enter(j, '[');
            for (int i = 0; json_more(j, ']'); i++) *(i == 0 ? &t->begin : &t->end) = json_count(j);
            seen |= 4;
        } else json_skip(j);
    }
    check(seen == 7, EXIT_INPUT, "%s: %s lacks dtype, shape or data_offsets", j->path, t->name);
    int wraps = 0;
    for (size_t i = 0; i < t->num_dims; i++)
        wraps |= __builtin_mul_overflow(bytes, t->dims[i], &bytes);
    wraps |= __builtin_mul_overflow(bytes, dtype_bytes(t->dtype), &bytes);
    uint64_t data_bytes = st->file.bytes - st->data_start;
    check(!wraps && t->begin <= t->end && t->end - t->begin == bytes && t->end <= data_bytes,
          EXIT_INPUT, "%s: %s: bytes %" PRIu64 " to %" PRIu64 " of the data, but its shape needs %"
          PRIu64 " and the file holds %" PRIu64 ": damaged or cut short", j->path, t->name,
          t->begin, t->end, bytes, data_bytes);
}
static void st_close(St *st) {
    if (st->file.path != NULL) in_close(&st->file);
    if (st->next != NULL) st_close(st->next);
    free(st->next);
    for (size_t i = 0; i < st->num_metas; i++) free(st->metas[i].value);
    free(st->metas), free(st->tensors);
    memset(st, 0, sizeof *st);
}
static const char *st_meta(const St *st, const char *key) {
    for (size_t i = 0; i < st->num_metas; i++)
        if (!strcmp(st->metas[i].key, key)) return st->metas[i].value;
    return NULL;
}
static void st_read_metas(St *st, Json *j) {
    for (json_enter(j, '{'); json_more(j, '}'); ) {
        check(st->num_metas < ST_MAX_ENTRIES, EXIT_INPUT, "%s: over %d entries", j->path,
              ST_MAX_ENTRIES);
        st->metas = (StMeta *)host_grow(st->metas, (st->num_metas + 1) * sizeof(StMeta));
        StMeta *m = &st->metas[st->num_metas++];
        m->value = NULL;
        json_key(j, m->key, sizeof m->key);
        Json ahead = *j; // the value is not longer than its text
        json_skip(&ahead);
        size_t room = (size_t)(ahead.at - j->at) + 8;
        m->value = (char *)host_alloc(room);
        json_string(j, m->value, room);
    }
}
static void st_open(St *st, const char *path) {
    memset(st, 0, sizeof *st);
    st->file = in_open(path);
    uint64_t header_bytes = 0, used = 0;
    in_read(&st->file, 0, &header_bytes, 8);
    check(header_bytes >= 2 && header_bytes <= ST_MAX_HEADER && header_bytes <= st->file.bytes - 8,
          EXIT_INPUT, "%s: a safetensors header of %" PRIu64 " bytes does not fit a file of %"
          PRIu64 " (limit %d): cut short, or not safetensors", path, header_bytes, st->file.bytes,
          ST_MAX_HEADER);
    char *text = (char *)host_alloc(header_bytes + 1);
    in_read(&st->file, 8, text, header_bytes);
    st->data_start = 8 + header_bytes;
    char recorded[9] = "", *place = st_header_crc(text, &st->header_crc);
    st->has_crc = place != NULL;
    if (st->has_crc) memcpy(recorded, place, 8);
    char name[128];
    Json j = json_open(path, text, header_bytes);
    for (json_enter(&j, '{'); json_more(&j, '}'); ) {
        json_key(&j, name, sizeof name);
        if (!strcmp(name, "__metadata__")) {
            st_read_metas(st, &j);
            continue;
        }
        check(st->num_tensors < ST_MAX_ENTRIES, EXIT_INPUT, "%s: over %d tensors", path,
              ST_MAX_ENTRIES);
        st->tensors = (StTensor *)host_grow(st->tensors, (st->num_tensors + 1) * sizeof(StTensor));
        StTensor *t = &st->tensors[st->num_tensors++];
        memset(t, 0, sizeof *t);
        snprintf(t->name, sizeof t->name, "%s", name);
        st_read_tensor(st, &j, t);
        used += t->end - t->begin;
    }
    free(text);
    const char *version = st_meta(st, "version"); // first: another version may have another CRC
    check(version == NULL || atoi(version) == CKPT_VERSION, EXIT_INPUT, "%s: version %s, this "
          "program reads %d: resume with the program that wrote it", path, version, CKPT_VERSION);
    check(!st->has_crc || strtoul(recorded, NULL, 16) == st->header_crc, EXIT_INPUT,
          "%s: the header's CRC-32C is wrong: damaged", path);
    check(used == st->file.bytes - st->data_start, EXIT_INPUT,
          "%s: tensors take %" PRIu64 " bytes, the file has %" PRIu64 " after the header", path,
          used, st->file.bytes - st->data_start);
}
static const StTensor *st_find(const St *st, const char *name) { // with or without `transformer.`
    static const char prefix[] = "transformer.";
    size_t skip = sizeof prefix - 1;
    for (size_t i = 0; i < st->num_tensors; i++) {
        const char *have = st->tensors[i].name;
        if (!strncmp(have, prefix, skip) && strncmp(name, prefix, skip)) have += skip;
        if (!strcmp(have, name)) return &st->tensors[i];
    }
    return NULL;
}
// The bytes of a tensor, its CRC checked where the file records one. The caller frees them.
static void *st_bytes(const St *st, const StTensor *t) {
    size_t bytes = (size_t)(t->end - t->begin);
    void *data = host_alloc(bytes);
    progress_mark("reading a checkpoint");
    in_read(&st->file, st->data_start + t->begin, data, bytes);
    char *key = text_of("crc32c.%s", t->name);
    const char *recorded = st_meta(st, key);
    free(key);
    uint32_t crc = st->has_crc ? crc32c(0, data, bytes) : 0;
    int is_good = !st->has_crc || (recorded && strtoul(recorded, NULL, 16) == crc);
    if (!is_good) free(data);
    check(is_good, EXIT_INPUT, "%s: %s: CRC-32C is %08x, recorded %s: damaged", st->file.path,
          t->name, crc, recorded ? recorded : "nowhere");
    return data;
}
static double half_to_double(uint16_t h) { // IEEE binary16
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double value = exponent == 31 ? (fraction ? NAN : INFINITY) :
                   exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return h >> 15 ? -value : value;
}
static real st_value(const StTensor *t, const void *data, size_t i) {
    const char *from = (const char *)data;
    float single;
    double value;
    uint16_t half;
    if (!strcmp(t->dtype, "F32")) { memcpy(&single, from + 4 * i, 4); return single; }
    if (!strcmp(t->dtype, "F64")) { memcpy(&value, from + 8 * i, 8); return (real)value; }
    memcpy(&half, from + 2 * i, 2);
    if (!strcmp(t->dtype, "F16")) return (real)half_to_double(half);
    uint32_t bits = (uint32_t)half << 16; // BF16
    memcpy(&single, &bits, 4);
    return single;
}
// Tensor `name` as parameter p lies in memory: (rows,cols), padding rows zero. The caller frees it.
static real *st_param(const St *st, const ParamInfo *p, const char *name) {
    const char *path = st->file.path; // of an index: then the shards follow
    const StTensor *t = st_find(st, name);
    while (t == NULL && st->next != NULL) t = st_find(st = st->next, name);
    check(t != NULL, EXIT_INPUT, "%s: no tensor %s", path, name);
    uint64_t d0 = p->is_transposed ? p->cols : p->file_rows;
    uint64_t d1 = p->is_transposed ? p->file_rows : p->cols;
    size_t num_dims = p->is_matrix ? 2 : 1;
    check(t->num_dims == num_dims && t->dims[0] == d0 && (num_dims == 1 || t->dims[1] == d1),
          EXIT_INPUT, "%s: %s has shape (%" PRIu64 ",%" PRIu64 "), the model needs (%" PRIu64 ",%"
          PRIu64 ")", st->file.path, name, t->dims[0], t->num_dims > 1 ? t->dims[1] : 1, d0, d1);
    check(is_choice("F32|F64|F16|BF16", t->dtype), EXIT_INPUT, "%s: %s has type %s, want F32, F64, "
          "F16 or BF16", st->file.path, name, t->dtype);
    void *data = st_bytes(st, t);
    real *out = (real *)host_alloc(p->rows * p->cols * sizeof(real));
    for (size_t i = 0; i < p->file_rows; i++) for (size_t j = 0; j < p->cols; j++)
        out[i * p->cols + j] = st_value(t, data, p->is_transposed ? j * p->file_rows + i
                                                                  : i * p->cols + j);
    free(data);
    return out;
}

// --- 13.2 a run's state: what train_state.safetensors holds besides m and v ---
#define STATE(X) \
    X(step)           /* steps done */ \
    X(tokens)         /* tokens seen */ \
    X(samples)        /* windows taken from the training data by all processes */ \
    X(updates)        /* AdamW updates: steps that were not skipped */ \
    X(skipped)        /* steps that were not applied: NaN, Inf, or a spike */ \
    X(skipped_in_row) \
    X(spiked)         /* of the skipped ones: spikes */ \
    X(rollbacks) \
    X(window_count)   /* steps that have entered the window */ \
    X(scale_log2)     /* fp16: of the loss scale */ \
    X(scale_steps)    /* applied since it changed */ \
    X(train_crc)      /* of the data, to notice that it changed */ \
    X(train_tokens)
#define STATE_FIELD(name) uint64_t name;
enum { WINDOW = 128 };
typedef struct {
    STATE(STATE_FIELD)
    double window[2 * WINDOW]; // the last applied steps: their losses, then their gradient norms
    char train_files[512];     // names and tokens, for the message when they changed
} State;

static uint64_t st_saved_bytes = 0; // since the start

typedef struct { char group; size_t bucket; int param; char name[128]; uint32_t crc; } SaveItem;

static void param_name(char *out, size_t room, char group, const ParamInfo *p, size_t bucket) {
    size_t count = (size_t)snprintf(out, room, "%s", group == 'w' ? "transformer." :
                                    group == 'm' ? "m." : "v.");
    const char *layer = strstr(p->file_name, "%zu"); // h.%zu.ln_1.weight
    if (layer == NULL) snprintf(out + count, room - count, "%s", p->file_name);
    else snprintf(out + count, room - count, "%.*s%zu%s", (int)(layer - p->file_name), p->file_name,
                  bucket - 1, layer + 3);
}
static Text st_header(const SaveItem *items, size_t count, const Layout *y, const char *meta) {
    Text t = {};
    uint64_t offset = 0;
    text_add(&t, "{\"__metadata__\":{\"format\":\"pt\",\"version\":\"%d\","
             "\"header_crc32c\":\"00000000\"%s", CKPT_VERSION, meta);
    for (size_t k = 0; k < count; k++) text_add(&t, ",\"crc32c.%s\":\"%08x\"", items[k].name,
                                                items[k].crc);
    text_add(&t, "}");
    for (size_t k = 0; k < count; k++) {
        const ParamInfo *p = &y->params[items[k].param];
        size_t d0 = p->is_transposed ? p->cols : p->file_rows;
        size_t d1 = p->is_transposed ? p->file_rows : p->cols;
        uint64_t end = offset + p->file_rows * p->cols * sizeof(real);
        text_add(&t, ",\"%s\":{\"dtype\":\"F%d\",\"shape\":[%zu", items[k].name,
                 (int)sizeof(real) * 8, d0);
        if (p->is_matrix) text_add(&t, ",%zu", d1);
        text_add(&t, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, end);
        offset = end;
    }
    text_add(&t, "}");
    while ((8 + t.count) % 8 != 0) text_add(&t, " ");
    return t;
}
// Write the tensors of the groups ("w", "mv"); meta: more members of the metadata, from a comma on.
// Returns 0, or the errno of the first failure; *header_crc identifies what was written.
static int st_save(const char *path, const Model *model, const char *groups, const char *meta,
                   uint32_t *header_crc) {
    const Layout *y = &model->layout;
    size_t count = 0, largest = 0;
    SaveItem *items = (SaveItem *)host_alloc(strlen(groups) * y->num_buckets * NUM_PARAMS *
                                             sizeof(SaveItem));
    for (const char *g = groups; *g; g++)
        for (size_t bucket = 0; bucket < y->num_buckets; bucket++)
            for (int i = 0; i < NUM_PARAMS; i++) {
                if (y->params[i].scope != bucket_scope(y, bucket)) continue;
                SaveItem item = { *g, bucket, i, "", 0 };
                param_name(item.name, sizeof item.name, *g, &y->params[i], bucket);
                items[count++] = item;
                largest = max_size(largest, y->params[i].rows * y->params[i].cols);
            }
    real *values = (real *)host_alloc(largest_bucket(y) * sizeof(real));
    real *turned = (real *)host_alloc(largest * sizeof(real));
    Text header = st_header(items, count, y, meta);
    uint64_t header_bytes = header.count;
    OutFile f = out_open(path);
    out_write(&f, &header_bytes, 8);
    out_write(&f, header.at, header.count);
    for (size_t k = 0; k < count; k++) { // to the end, for the other ranks' sake
        const ParamInfo *p = &y->params[items[k].param];
        int is_same_bucket = k > 0 && items[k].bucket == items[k - 1].bucket &&
                             items[k].group == items[k - 1].group;
        if (!is_same_bucket) bucket_to_host(values, model, items[k].group, items[k].bucket);
        const real *from = values + p->offset;
        for (size_t i = 0; items[k].group == 'w' && i < p->rows * p->cols; i++)
            if (!isfinite(from[i])) f.error = EDOM; // never saved
        if (f.error) continue;
        if (p->is_transposed) {
            for (size_t i = 0; i < p->rows; i++) for (size_t j = 0; j < p->cols; j++)
                turned[j * p->rows + i] = from[i * p->cols + j];
            from = turned;
        }
        size_t bytes = p->file_rows * p->cols * sizeof(real);
        items[k].crc = crc32c(0, from, bytes);
        out_write(&f, from, bytes);
    }
    free(header.at); // once more, with the CRCs that are known now: the length is the same
    header = st_header(items, count, y, meta);
    assert(header.count == header_bytes);
    char crc_text[9], *place = st_header_crc(header.at, header_crc);
    snprintf(crc_text, sizeof crc_text, "%08x", *header_crc);
    memcpy(place, crc_text, 8);
    if (!f.error && pwrite(f.fd, header.at, header.count, 8) != (ssize_t)header.count)
        f.error = errno ? errno : EIO;
    free(header.at), free(items), free(values), free(turned);
    st_saved_bytes += f.bytes;
    return out_close(&f);
}

// --- 13.3 the folder ---
static int write_text(const char *folder, const char *name, const Text *text) {
    char *path = text_of("%s/%s", folder, name);
    OutFile f = out_open(path);
    out_write(&f, text->at, text->count);
    free(path);
    return out_close(&f);
}
static void remove_folder(const char *path) { // of files only; what cannot be removed is reported
    DIR *dir = opendir(path);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL; ) {
        char *file = text_of("%s/%s", path, e->d_name);
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) unlink(file);
        free(file);
    }
    if (dir != NULL) closedir(dir);
    if (rmdir(path) != 0 && errno != ENOENT) warn("cannot remove %s: %s", path, strerror(errno));
}
static Text config_json(const Config *c, const Tokenizer *tokenizer) {
    Text t = {};
    text_add(&t, "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n"
             "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n"
             "  \"n_layer\": %zu,\n  \"n_head\": %zu,\n  \"n_embd\": %zu,\n  \"n_positions\": "
             "%zu,\n  \"n_ctx\": %zu,\n  \"vocab_size\": %zu,\n", c->L, c->NH, c->C, c->maxT,
             c->maxT, c->V);
    if (tokenizer->end_of_text >= 0)
        text_add(&t, "  \"bos_token_id\": %d,\n  \"eos_token_id\": %d,\n", tokenizer->end_of_text,
                 tokenizer->end_of_text);
    text_add(&t, "  \"resid_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  \"attn_pdrop\": 0.0,\n"
             "  \"tie_word_embeddings\": true,\n  \"torch_dtype\": \"float32\"\n}\n");
    return t;
}
static char *ckpt_path(const char *out, uint64_t step, const char *suffix) {
    return text_of("%s/step_%08" PRIu64 "%s", out, step, suffix);
}
// Steps of the checkpoints in OUT, newest first. The caller frees them.
static uint64_t *ckpt_list(const char *out, size_t *count) {
    uint64_t *steps = NULL;
    DIR *dir = opendir(out);
    *count = 0;
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL; ) {
        uint64_t step = 0;
        sscanf(e->d_name, "step_%" SCNu64, &step);
        char *name = ckpt_path("", step, "");
        int is_one = !strcmp(name + 1, e->d_name); // not a copy's step_20 or step_00000020.old
        free(name);
        if (!is_one) continue;
        steps = (uint64_t *)host_grow(steps, (*count + 1) * sizeof *steps);
        size_t at = (*count)++;
        for (; at > 0 && steps[at - 1] < step; at--) steps[at] = steps[at - 1];
        steps[at] = step;
    }
    if (dir != NULL) closedir(dir);
    return steps;
}
enum { NUM_TEXTS = 5 };
static const char *const ckpt_texts[NUM_TEXTS] = {
    "config.json", "vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json" };
// Returns 0 when the checkpoint is whole, on the disk and under its name; otherwise an errno, and
// the folder is as it was.
static int ckpt_save(const Model *model, const State *state, const Flags *f,
                     const Tokenizer *tokenizer) {
    char *folder = ckpt_path(f->out, state->step, ".tmp");
    char *name = ckpt_path(f->out, state->step, "");
    char *model_file = text_of("%s/model.safetensors", folder);
    char *state_file = text_of("%s/train_state.safetensors", folder);
    Text meta = { NULL, 0, 0 }, values = { NULL, 0, 0 };
    uint32_t model_crc = 0, text_crc = 0, state_crc;
    remove_folder(folder);
    int error = mkdir(folder, 0777) != 0 ? errno : 0;
    for (size_t i = 0; i < NUM_TEXTS; i++) {
        Text text = i > 0 ? (Text){ NULL, 0, 0 } : config_json(&model->config, tokenizer);
        if (i > 0) tok_text(&text, tokenizer, ckpt_texts[i], model->config.maxT);
        text_crc = crc32c(text_crc, text.at, text.count);
        if (!error) error = write_text(folder, ckpt_texts[i], &text);
        free(text.at);
    }
    int late = st_save(model_file, model, "w", "", &model_crc);
    if (!error) error = late;
    flags_add_json(&values, f);
    text_add(&meta, ",\"git\":\"%s\",\"compiler\":", GIT_HASH);
    text_add_quoted(&meta, __VERSION__);
    text_add(&meta, ",\"model_crc\":\"%u\",\"text_crc\":\"%u\",\"flags\":", model_crc, text_crc);
    text_add_quoted(&meta, values.at);
#define STATE_SAVE(name) text_add(&meta, ",\"" #name "\":\"%" PRIu64 "\"", state->name);
    STATE(STATE_SAVE)
    text_add(&meta, ",\"window\":\"");
    for (int i = 0; i < 2 * WINDOW; i++) text_add(&meta, "%a ", state->window[i]); // exact
    text_add(&meta, "\",\"train_files\":");
    text_add_quoted(&meta, state->train_files);
    late = st_save(state_file, model, "mv", meta.at, &state_crc);
    if (!error) error = late;
    if (!error) error = sync_folder(folder);
    int is_again = access(name, F_OK) == 0; // after a rollback: one of the two always has the name
    int failed = error ? -1 : is_again ? rename_swap(folder, name) : rename(folder, name);
    if (!error && failed) error = errno;
    if (!error) error = sync_folder(f->out);
    if (failed || (is_again && !error)) remove_folder(folder); // what failed, or the old one
    size_t count, kept = 0;
    uint64_t *steps = ckpt_list(f->out, &count);
    for (size_t k = 0; !error && k < count; k++) {
        if (steps[k] > state->step) continue; // damaged: this run began with an older one
        if (kept++ < (size_t)f->keep) continue;
        if (f->keep_every > 0 && steps[k] % (uint64_t)f->keep_every == 0) continue;
        char *old = ckpt_path(f->out, steps[k], "");
        remove_folder(old);
        free(old);
    }
    free(steps);
    free(folder); free(name); free(model_file); free(state_file); free(meta.at); free(values.at);
    return error;
}
static int ckpt_give(const Model *model) { // meanwhile, on the other ranks: the same buckets
    real *values = (real *)host_alloc(largest_bucket(&model->layout) * sizeof(real));
    for (const char *group = "wmv"; *group; group++)
        for (size_t bucket = 0; bucket < model->layout.num_buckets; bucket++)
            bucket_to_host(values, model, *group, bucket);
    free(values);
    return 0;
}

// --- 13.4 loading ---
static void gpt_load(Model *model, const St *st, const char *groups) {
    const Layout *y = &model->layout;
    size_t room = largest_bucket(y);
    real *values = (real *)host_alloc(room * sizeof(real));
    for (const char *g = groups; *g; g++)
        for (size_t bucket = 0; bucket < y->num_buckets; bucket++) {
            memset(values, 0, room * sizeof(real));
            for (int i = 0; i < NUM_PARAMS; i++) {
                const ParamInfo *p = &y->params[i];
                if (p->scope != bucket_scope(y, bucket)) continue;
                char name[128];
                param_name(name, sizeof name, *g, p, bucket);
                real *param = st_param(st, p, *g == 'w' ? name + strlen("transformer.") : name);
                memcpy(values + p->offset, param, p->rows * p->cols * sizeof(real));
                free(param);
            }
            bucket_to_dev(model, *g, bucket, values);
        }
    free(values);
}
// A configuration from a config.json; anything but GPT-2 as we compute it is refused by name.
static Config config_read(const char *path) {
    static const char *const fixed[][2] = { { "scale_attn_weights", "true" },
        { "scale_attn_by_inverse_layer_idx", "false" }, { "tie_word_embeddings", "true" },
        { "add_cross_attention", "false" } };
    size_t bytes, inner = 0;
    char *text = in_read_all(path, 1 << 20, &bytes), key[128], value[128];
    Config c = {};
    Json j, top = json_open(path, text, bytes);
    if (json_find(&j, top, "model_type")) { // before what another type may lack
        json_string(&j, value, sizeof value);
        check(!strcmp(value, "gpt2"), EXIT_INPUT, "%s: model_type is %s, only gpt2 can be loaded",
              path, value);
    }
    for (j = top, json_enter(&j, '{'); json_more(&j, '}'); ) {
        json_key(&j, key, sizeof key);
        size_t *number = !strcmp(key, "n_layer") ? &c.L : !strcmp(key, "n_head") ? &c.NH :
                         !strcmp(key, "n_embd") ? &c.C : !strcmp(key, "n_positions") ? &c.maxT :
                         !strcmp(key, "vocab_size") ? &c.V : NULL;
        if (!strcmp(key, "n_inner") && json_peek(&j) != 'n') number = &inner; // null: 4 * n_embd
        for (int i = 0; i < 4; i++)
            check(strcmp(key, fixed[i][0]) || json_peek(&j) == fixed[i][1][0], EXIT_INPUT,
                  "%s: only %s %s can be loaded", path, key, fixed[i][1]);
        if (number != NULL) *number = (size_t)json_count(&j);
        else if (!strcmp(key, "activation_function")) {
            json_string(&j, value, sizeof value);
            check(!strcmp(value, "gelu_new"), EXIT_INPUT, "%s: %s is %s, only gelu_new can be "
                  "loaded", path, key, value);
        } else if (!strcmp(key, "layer_norm_epsilon")) {
            double eps = json_number(&j);
            check(fabs(eps - 1e-5) < 1e-9, EXIT_INPUT, "%s: %s is %g, only 1e-5 can be loaded",
                  path, key, eps);
        } else json_skip(&j);
    }
    free(text);
    config_check(&c, EXIT_INPUT, path);
    check(inner == 0 || inner == 4 * c.C, EXIT_INPUT, "%s: n_inner %zu, only 4 * n_embd can be "
          "loaded", path, inner);
    return c;
}
// The safetensors file of a folder, or the file itself; its configuration is beside it.
static char *init_file(const char *path, Config *c) {
    struct stat st;
    int is_there = stat(path, &st) == 0, is_folder = is_there && S_ISDIR(st.st_mode);
    check(is_there, EXIT_INPUT, "%s: %s; wanted a model's folder or safetensors file (nothing is "
          "downloaded)", path, strerror(errno));
    char *file = text_of("%s%s", path, is_folder ? "/model.safetensors" : "");
    char *index = text_of("%s.index.json", file), *config = path_beside(file, "config.json");
    int is_sharded = is_folder && access(file, F_OK) != 0 && access(index, F_OK) == 0;
    *c = config_read(config);
    free(config), free(is_sharded ? file : index);
    return is_sharded ? index : file;
}
// A model in several files, which {"weight_map": {"name of a tensor": "file", ...}} names. Which
// tensors are in which file is taken from the files' own headers.
static void st_open_index(St *st, const char *path) {
    size_t bytes;
    char *text = in_read_all(path, ST_MAX_HEADER, &bytes), key[128], name[256];
    Json j, top = json_open(path, text, bytes);
    memset(st, 0, sizeof *st);
    st->file.path = path;
    st->file.fd = -1;
    check(json_find(&j, top, "weight_map"), EXIT_INPUT, "%s: no weight_map", path);
    for (json_enter(&j, '{'); json_more(&j, '}'); ) {
        json_key(&j, key, sizeof key);
        json_string(&j, name, sizeof name);
        check(!strchr(name, '/'), EXIT_INPUT, "%s: %s is said to be in %s: wanted a file beside "
              "the index, and no path", path, key, name);
        char *file = path_beside(path, name);
        St *last = st;
        while (last->next != NULL && strcmp(last->next->file.path, file)) last = last->next;
        if (last->next != NULL) { free(file); continue; } // it is open
        last->next = (St *)host_alloc(sizeof *st);
        st_open(last->next, file);
    }
    free(text);
}

typedef struct { char *folder; uint64_t step; St model, state; Config config; } Ckpt;

static uint64_t ckpt_number(const Ckpt *c, const char *key) {
    const char *text = st_meta(&c->state, key);
    char *end = NULL;
    uint64_t value = text ? strtoull(text, &end, 10) : 0;
    check(text != NULL && end != text && *end == 0, EXIT_INPUT, "%s: metadata %s is %s, want a "
          "number", c->state.file.path, key, text ? text : "missing");
    return value;
}
static void ckpt_state(const Ckpt *c, State *state) {
#define STATE_LOAD(name) state->name = ckpt_number(c, #name);
    STATE(STATE_LOAD)
    const char *files = st_meta(&c->state, "train_files"); // the first release had none
    snprintf(state->train_files, sizeof state->train_files, "%s", files != NULL ? files : "?");
    const char *text = st_meta(&c->state, "window");
    int count = 0; // of numbers, each with a space after it
    for (char *end; text != NULL && count < 2 * WINDOW; count++, text = end + 1) {
        state->window[count] = strtod(text, &end);
        if (end == text || *end != ' ' || !isfinite(state->window[count])) break;
    }
    check(text != NULL && count == 2 * WINDOW && !*text, EXIT_INPUT, "%s: metadata window: want %d "
          "numbers", c->state.file.path, 2 * WINDOW);
}
// Verify everything in the checkpoint; a fault ends in check().
static void ckpt_verify(Ckpt *c, uint64_t step) {
    char *state_file = text_of("%s/train_state.safetensors", c->folder);
    char *model_file = init_file(c->folder, &c->config);
    st_open(&c->model, model_file);
    st_open(&c->state, state_file);
    check(ckpt_number(c, "step") == step, EXIT_INPUT, "%s: step %" PRIu64 ", its folder says %"
          PRIu64, state_file, ckpt_number(c, "step"), step);
    check(st_meta(&c->state, "flags") != NULL, EXIT_INPUT, "%s: no flags", state_file);
    State state;
    ckpt_state(c, &state);
    check(c->model.has_crc && c->state.has_crc, EXIT_INPUT, "%s: no CRC in a header", c->folder);
    check(ckpt_number(c, "model_crc") == c->model.header_crc, EXIT_INPUT, "%s: belongs to another "
          "checkpoint than %s", model_file, state_file);
    uint32_t crc = 0;
    for (size_t i = 0, bytes; i < NUM_TEXTS; i++) {
        char *file = text_of("%s/%s", c->folder, ckpt_texts[i]);
        char *text = in_read_all(file, 1 << 28, &bytes);
        crc = crc32c(crc, text, bytes);
        free(text), free(file);
    }
    check(ckpt_number(c, "text_crc") == crc, EXIT_INPUT, "%s/config.json, or a file of the "
          "tokenizer beside it, has not the CRC-32C in the state: damaged", c->folder);
    for (int k = 0; k < 2; k++) {
        const St *st = k ? &c->state : &c->model;
        for (size_t i = 0; i < st->num_tensors; i++) free(st_bytes(st, &st->tensors[i]));
    }
}
// The newest good checkpoint of OUT; bad ones are reported and passed over. 0: there is none.
static int ckpt_open_newest(Ckpt *c, const char *out) {
    size_t count;
    uint64_t *steps = ckpt_list(out, &count);
    volatile size_t k = 0;
    memset(c, 0, sizeof *c);
    for (; k < count; k = k + 1) {
        jmp_buf here;
        c->folder = ckpt_path(out, steps[k], "");
        c->step = steps[k];
        die_recovers = &here;
        if (setjmp(here) == 0) {
            ckpt_verify(c, steps[k]);
            die_recovers = NULL;
            break;
        }
        die_recovers = NULL;
        if (rank == 0) warn("checkpoint passed over: %s", die_message);
        st_close(&c->model);
        st_close(&c->state);
    }
    check(count == 0 || k < count, EXIT_INPUT, "%s: none of its %zu checkpoints is good; move them "
          "away to start anew", out, count);
    free(steps);
    return count > 0;
}

// === 14. Cost model and log ============================================================ [shared]

// FLOPs of the forward pass for one token in a sequence of T: two for each weight of a matrix, the
// head included, and two products of the causal attention, counted once. A training step takes
// three times as much (the backward pass makes two products for each of the forward pass).
static double flops_per_token(const Config *c, size_t T) {
    double L = (double)c->L, C = (double)c->C;
    return 2 * (12 * L * C * C + (double)c->V * C) + 2 * L * C * (double)(T + 1);
}
// Textbook figures, for --plan and the tests (Kaplan et al. 2020; Korthikanti et al. 2022).
static double textbook_train_flops(double parameters, double tokens) {
    return 6 * parameters * tokens;
}
static double textbook_days(double flops, double peak_flops, double utilisation) {
    return flops / (peak_flops * utilisation) / 86400;
}
static double textbook_adam_bytes(double parameters) { return 16 * parameters; } // mixed precision
static double textbook_layer_bytes(double T, double B, double C, double NH, int is_flash) {
    return T * B * C * (34 + (is_flash ? 0 : 5 * NH * T / C)); // activations of a layer, 16 bit
}

static int64_t batch_tokens(const Flags *f) { // of a step
    return f->total_batch_tokens ? f->total_batch_tokens : f->batch_size * f->seq_len;
}
static size_t num_micro_batches(const Flags *f) { // of one process in one step
    int64_t micro = f->batch_size * f->seq_len * ranks, total = f->total_batch_tokens;
    if (total == 0) return 1;
    int64_t below = total < micro ? micro : total / micro * micro;
    check(total % micro == 0, EXIT_USAGE, "--total_batch_tokens %" PRId64 " is no multiple of "
          "batch_size * seq_len * processes = %" PRId64 "; nearest: %" PRId64 " or %" PRId64 "; or "
          "change --batch_size", total, micro, below, below + micro);
    return (size_t)(total / micro);
}

static void print_plan(Model *model, const Flags *f) {
    if (rank > 0) return;
    BufferInfo infos[NUM_BUFFERS];
    gpt_plan(model, infos);
    const Config *c = &model->config;
    size_t total_bytes = 0, step_tokens = model->passes * model->B * model->T * (size_t)ranks;
    for (int i = 0; i < NUM_BUFFERS; i++) total_bytes += infos[i].bytes;
    double tokens = (double)step_tokens * (double)f->steps;
    double flops = 3 * flops_per_token(c, model->T);
    double parameters = (double)model->layout.num_parameters, peak = dev_peak_flops() * ranks;
    if (f->json) {
        printf("{\"parameters\":%zu,\"flops_per_token\":%.17g,\"tokens\":%.17g,\"flops\":%.17g,"
               "\"peak_flops\":%.6g,\"bytes\":%zu,\"buffers\":{", model->layout.num_parameters,
               flops, tokens, flops * tokens, peak, total_bytes);
        for (int i = 0; i < NUM_BUFFERS; i++)
            printf("%s\"%s\":%zu", i ? "," : "", infos[i].what, infos[i].bytes);
        printf("}}\n");
        return;
    }
    printf("model       %zu parameters: %zu layers, %zu heads, %zu channels, vocabulary %zu "
           "(padded to %zu), up to %zu positions\n", model->layout.num_parameters, c->L, c->NH,
           c->C, c->V, c->Vp, c->maxT);
    printf("step        %zu tokens: %zu micro-batches of %zu x %zu on %d processes; %.4g FLOPs\n",
           step_tokens, model->passes, model->B, model->T, ranks, flops * (double)step_tokens);
    printf("run         %" PRId64 " steps, %.4g tokens, %.4g FLOPs (6 N D says %.4g); at this "
           "machine's %.4g FLOP/s and 50 %%: %.3g days\n", f->steps, tokens, flops * tokens,
           textbook_train_flops(parameters, tokens), peak,
           textbook_days(flops * tokens, peak, 0.5));
    for (int i = 0; i < NUM_BUFFERS; i++)
        printf("memory      %12zu bytes  %s\n", infos[i].bytes, infos[i].what);
    printf("memory      %12zu bytes  in all, of %zu free\n", total_bytes, dev_bytes_free());
    for (const ActInfo *a = model->act_infos; a < model->act_infos + NUM_ACTS; a++)
        printf("activation  %12zu bytes  %zu x %s\n", a->copies * a->bytes, a->copies, a->name);
    printf("textbook    16 bytes a parameter for mixed-precision Adam: %.4g; 16-bit activations of "
           "a layer: %.4g\n", textbook_adam_bytes(parameters),
           textbook_layer_bytes((double)model->T, (double)model->B, (double)c->C,
                                (double)c->NH, 1));
}

// --- 14.1 where the time goes ---
#define PHASES(X) X(input) X(forward) X(backward) X(exchange) X(update) X(validation) X(sampling) \
    X(checkpoint)
#define PHASE_ENUM(name) PHASE_##name,
#define PHASE_NAME(name) #name,
enum { PHASES(PHASE_ENUM) NUM_PHASES };
static const char *const phase_names[NUM_PHASES] = { PHASES(PHASE_NAME) };

// ms, all_ms: since the last line of the log, and since the start. A lap is a stamp in the device's
// stream of work, so that nobody waits for it; clock_read adds up the laps from `first` to `next`,
// and what ends after it counts for the next line.
typedef struct {
    double ms[NUM_PHASES], all_ms[NUM_PHASES];
    int phases[NUM_STAMPS];
    uint64_t first, next; // stamps are numbered on and on, in NUM_STAMPS places
} Clock;
static void clock_start(Clock *clock) {
    dev_stamp(0);
    clock->next = 1;
}
static void clock_read(Clock *clock) { // waits until the last lap has ended
    for (; clock->first + 1 < clock->next; clock->first++) {
        int from = (int)(clock->first % NUM_STAMPS), to = (int)((clock->first + 1) % NUM_STAMPS);
        double ms = dev_stamps_ms(from, to);
        clock->ms[clock->phases[to]] += ms;
        clock->all_ms[clock->phases[to]] += ms;
    }
}
static void clock_lap(Clock *clock, int phase) { // the time since the last lap belongs to phase
    int place = (int)(clock->next % NUM_STAMPS);
    if (clock->next - clock->first == NUM_STAMPS) clock_read(clock);
    clock->phases[place] = phase;
    dev_stamp(place);
    clock->next++;
    progress_mark(phase_names[phase]);
}

// --- 14.2 log: one JSON object a line ---
typedef struct { OutFile file; int has_failed; } Log;

static void log_line(Log *log, Text *line) { // frees it; one that cannot be written whole is undone
    OutFile *f = &log->file;
    off_t end = f->path != NULL ? lseek(f->fd, 0, SEEK_END) : -1; // -1: a pipe
    text_add(line, "\n");
    if (f->path != NULL) out_write(f, line->at, line->count);
    if (f->error) {
        int is_whole = end >= 0 && ftruncate(f->fd, end) == 0;
        if (!log->has_failed) warn("%s: %s; the training goes on without %s", f->path,
                                   strerror(f->error), is_whole ? "some lines" : "its log");
        log->has_failed = 1;
        f->error = 0;
    }
    free(line->at);
}
static void log_number(Text *t, const char *name, double value) { // JSON knows no NaN
    if (isfinite(value)) text_add(t, ",\"%s\":%.9g", name, value);
    else text_add(t, ",\"%s\":null", name);
}

// === 15. Training loop ================================================================= [shared]

typedef struct {
    Flags flags;
    Tokenizer tokenizer;
    Model model;
    Data train, val;
    int has_val;
    State state;
    Log log;
    Clock clock;
    int32_t *window, *batch;  // (T+1); tokens and targets (2,B,T) on the host
    double peak_flops, last_print_ms, loss, norm;
    double start_ms;            // of the program
    double useful_ms, saved_ms; // of steps that were applied: all, and in checkpoints
    int save_failures, save_error, lock;
    uint64_t saved_step;      // the newest checkpoint of this run; UINT64_MAX: none yet
    int64_t saved_batch_tokens; // of a step, as the checkpoint has it
} Run;

// Stopping: the first SIGINT, SIGTERM or SIGUSR1 ends the run after the step, with a checkpoint; a
// second SIGINT or SIGTERM ends it at once. SIGUSR2 saves and goes on.
static void on_signal(int number) {
    if (number == SIGUSR2) { save_signal = 1; return; }
    int was = stop_signal, before = errno;
    static const char note[] = "\nstopping after this step; once more: at once, without saving\n";
    if (was && number == SIGUSR1) return;
    if (was && was != SIGUSR1) _exit(128 + number);
    stop_signal = number;
    if (rank == 0 && number != SIGUSR1 && write(STDERR_FILENO, note, sizeof note - 1) < 0) { }
    errno = before;
}
static int stop_agreed(void) { // has a signal asked any rank to stop? All ranks ask together.
    int64_t is_asked = stop_signal != 0;
    comm_max_int(&is_asked, 1);
    return (int)is_asked;
}
static void signals_hold(int how) { // SIG_BLOCK, until it is known what they ask for; SIG_UNBLOCK
    sigset_t asked;
    sigemptyset(&asked);
    sigaddset(&asked, SIGUSR1);
    sigaddset(&asked, SIGUSR2);
    pthread_sigmask(how, &asked, NULL);
}
// While a run is being set up, the first ^C ends it. With the signal() of glibc, musl and BSD a
// handler stays installed, and a read that was interrupted goes on.
static void signals_install(int is_ready) {
    signal(SIGUSR1, on_signal);
    signal(SIGUSR2, on_signal);
    signal(SIGPIPE, SIG_IGN); // a closed pipe is a write error, not the end,
    signal(SIGXFSZ, SIG_IGN); // and so is a file that grows over `ulimit -f`
    if (!is_ready) return;
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
}

// --- 15.1 loss on held-out data ---
typedef struct { double loss, bits_per_byte; uint64_t tokens; } Evaluation;

// Mean loss over the first max_samples windows (0: all), and the same in bits per byte of text; NaN
// where the tokenizer does not know a token. Rank r takes every ranks-th batch from r on.
static Evaluation evaluate(Run *run, Data *d, uint64_t max_samples) {
    Model *model = &run->model;
    size_t B = model->B, T = d->T;
    uint64_t samples = d->num_windows;
    if (max_samples > 0 && max_samples < samples) samples = max_samples;
    size_t batches = div_up(samples, B);
    double sum = 0, bytes = 0, *sums = (double *)host_alloc(batches * sizeof(double));
    for (size_t k = (size_t)rank; k < batches && !stop_signal; k += (size_t)ranks) {
        uint64_t first = (uint64_t)k * B;
        size_t count = min_size(samples - first, B);
        data_batch(d, first, count, run->batch, run->window);
        to_dev(model->tokens, run->batch, 2 * count * T * sizeof(int32_t));
        gpt_forward(model, model->tokens, count, T, NO_CACHE);
        gpt_head(model, model->tokens + count * T, count * T, 0, 0);
        sums[k] = gpt_loss(model, count * T);
        for (size_t i = 0; i < count * T; i++) {
            uint32_t token = (uint32_t)run->batch[count * T + i];
            size_t length = 0; // of text: the end of one has none
            int is_known = token < run->tokenizer.vocab_size; // V may be larger
            if (is_known) tok_bytes(&run->tokenizer, token, &length);
            if ((int)token == run->tokenizer.end_of_text) length = 0;
            bytes += is_known ? (double)length : NAN;
        }
        progress_mark("a validation batch");
    }
    comm_sum(sums, batches);
    comm_sum(&bytes, 1);
    for (size_t k = 0; k < batches; k++) sum += sums[k];
    free(sums);
    Evaluation e = { sum / (double)(samples * T), sum / M_LN2 / bytes, samples * T };
    return e;
}

// HellaSwag (Zellers et al. 2019): the completion with the least mean loss should be the right one.
// llm.c's file: 256 int32 {20240522, 1, examples, ..}; then of each example, in uint16: 65535, its
// bytes, number, right one, completions; tokens of the context, then of each completion, counts
// first. The ranks share out the examples. Returns the share that is right. only_check: the file is
// gone through, without the model.
static double hellaswag(Run *run, int only_check) {
    enum { MAGIC = 20240522 };
    enum { MARK, BYTES, NUMBER, RIGHT, COMPLETIONS, CONTEXT, TOKENS }; // places in an example
    const char *path = run->flags.hellaswag;
    size_t bytes, T = run->model.T, V = run->model.config.V;
    double right = 0;
    char *text = in_read_all(path, (size_t)1 << 30, &bytes);
    int32_t header[3] = { 0, 0, 0 }, *tokens = run->batch, *targets = run->batch + T;
    if (bytes >= 1024) memcpy(header, text, sizeof header);
    check(header[0] == MAGIC && header[1] == 1 && header[2] > 0 && bytes % 2 == 0, EXIT_INPUT,
          "%s: no HellaSwag file: magic, version, examples are %d %d %d, want %d 1 and > 0", path,
          header[0], header[1], header[2], MAGIC);
    const uint16_t *at = (const uint16_t *)(const void *)(text + 1024);
    const uint16_t *end = at + (bytes - 1024) / 2;
    for (int k = 0; k < header[2] && !stop_signal; k++) {
        const uint16_t *e = at;
        check(end - at >= TOKENS && e[MARK] == 65535 && e[RIGHT] < e[COMPLETIONS] &&
              e[BYTES] / 2 <= end - at && e[CONTEXT] > 0 && e[BYTES] / 2 > TOKENS + e[CONTEXT],
              EXIT_INPUT, "%s: example %d is damaged or cut short", path, k);
        at += e[BYTES] / 2;
        const uint16_t *context = e + TOKENS, *next = context + e[CONTEXT];
        double best = INFINITY;
        int chosen = -1;
        for (int c = 0; c < e[COMPLETIONS]; c++, next += 1 + next[0]) {
            check(next < at && next + next[0] < at && next[0] > 0, EXIT_INPUT, "%s: completion %d "
                  "of example %d leaves the example", path, c, k);
            size_t n = (size_t)e[CONTEXT] + next[0]; // tokens; the last one is only a target
            check(n - 1 <= T, EXIT_USAGE, "%s: example %d has %zu tokens: --seq_len %zu is too "
                  "short", path, k, n, T);
            for (size_t i = 0; i < n; i++) {
                int32_t token = i < e[CONTEXT] ? context[i] : next[1 + i - e[CONTEXT]];
                check((size_t)token < V, EXIT_INPUT, "%s: example %d: token %d, the model's "
                      "vocab_size is %zu", path, k, token, V);
                if (i + 1 < n) tokens[i] = token;
                if (i > 0) targets[i - 1] = token;
            }
            if (only_check || k % ranks != rank) continue;
            double loss = 0;
            to_dev(run->model.tokens, run->batch, 2 * T * sizeof(int32_t));
            gpt_forward(&run->model, run->model.tokens, 1, n - 1, NO_CACHE);
            gpt_head(&run->model, run->model.tokens + T, n - 1, 0, 0);
            gpt_loss(&run->model, n - 1);
            for (size_t i = e[CONTEXT] - 1u; i < n - 1; i++)
                loss += (double)run->model.losses[i] / next[0];
            if (loss < best) { best = loss; chosen = c; }
        }
        right += chosen == e[RIGHT];
        progress_mark("a HellaSwag example");
    }
    free(text);
    if (!only_check) comm_sum(&right, 1);
    return right / header[2];
}

// --- 15.2 one step ---
// --inject KIND@STEP[xCOUNT][:RANK], for tests: in COUNT steps from STEP on, in that rank,
//   nan, inf, norm    the gradients are multiplied by NaN, Inf, 100
//   spike, loss       gradients and loss are multiplied by 100; the loss is NaN
//   weights, flip     after the step a weight becomes NaN, or a bit of it is flipped
static struct { char kind[8]; uint64_t step, count; int rank; } fault = { "", 0, 1, 0 };

static void inject_parse(const char *text) {
    int used = 0, more = 0, fields;
    fields = sscanf(text, "%7[a-z]@%" SCNu64 "%n", fault.kind, &fault.step, &used);
    if (sscanf(text + used, "x%" SCNu64 "%n", &fault.count, &more) == 1) used += more;
    if (sscanf(text + used, ":%d%n", &fault.rank, &more) == 1) used += more;
    check(!*text || (fields == 2 && !text[used] &&
                     is_choice("nan|inf|norm|spike|loss|weights|flip", fault.kind)),
          EXIT_USAGE, "--inject wants nan, inf, norm, spike, loss, weights or flip, then @STEP, "
          "xCOUNT, :RANK; got '%s'", text);
}
static int inject_is_due(const char *kind, uint64_t step) { // all ranks count
    if (strcmp(kind, fault.kind) || step < fault.step || fault.count == 0) return 0;
    fault.count--;
    return rank == fault.rank;
}
static void inject_weight(Model *model, uint64_t step) {
    floatX *at = params_at(model, 0).lnfw, x = fX((real)NAN);
    if (inject_is_due("weights", step)) to_dev(at, &x, sizeof x);
    if (!inject_is_due("flip", step)) return;
    to_host(&x, at, sizeof x);
    *(unsigned char *)&x ^= 1;
    to_dev(at, &x, sizeof x);
}

// Is x far above the last values? More than ten times the largest of at least 16 (Megatron-LM's
// rule), or, when the window is full, more than zscore deviations above the mean (llm.c's).
// A deviation below 1 % of the mean counts as 1 %: a settled loss is not held to its own noise.
// x below `least` is none: a model that knows its text by heart has losses near 0.
static int is_spike(const double *window, uint64_t count, double x, double zscore, double least) {
    size_t n = min_size(count, WINDOW);
    double sum = 0, squares = 0, largest = 0;
    if (zscore == 0 || n < 16 || x < least) return 0;
    for (size_t i = 0; i < n; i++) {
        sum += window[i];
        squares += window[i] * window[i];
        largest = fmax(largest, window[i]);
    }
    if (x > 10 * largest) return 1;
    if (n < WINDOW) return 0;
    double mean = sum / WINDOW, deviation = sqrt(fmax(0, squares / WINDOW - mean * mean));
    return x - mean > zscore * fmax(deviation, 0.01 * mean);
}
// fp16: a loss scale that is too large makes gradients overflow; then it is halved, and the step is
// lost. After 2000 steps that went well it is doubled (Micikevicius et al. 2018).
static double loss_scale(State *state) {
    enum { FIRST_LOG2 = 16, MAX_LOG2 = 24, GROWS_AFTER = 2000 };
    if (!HAS_LOSS_SCALE) return 1;
    if (state->scale_log2 == 0) state->scale_log2 = FIRST_LOG2;
    if (state->scale_steps >= GROWS_AFTER && state->scale_log2 < MAX_LOG2) {
        state->scale_log2++;
        state->scale_steps = 0;
    }
    return ldexp(1, (int)state->scale_log2);
}
// Returns whether that was it: the loss is fine, and the scale can still be halved.
static int loss_scale_overflowed(Run *run) {
    State *state = &run->state;
    if (!HAS_LOSS_SCALE || !isfinite(run->loss) || isfinite(run->norm) || state->scale_log2 == 1)
        return 0;
    state->scale_log2--;
    state->scale_steps = 0;
    state->skipped++;
    say("step %" PRIu64 ": gradients overflow, skipped; loss scale now 2^%" PRIu64 "\n",
        state->step + 1, state->scale_log2);
    return 1;
}
// The gradients are applied, unless they or the loss are NaN, Inf or a spike. All ranks have the
// same loss and norm, and so decide alike.
static void train_apply(Run *run) {
    State *state = &run->state;
    const Flags *f = &run->flags;
    double *losses = state->window, *norms = losses + WINDOW, z = f->spike_zscore;
    uint64_t count = state->window_count;
    int is_finite = isfinite(run->loss) && isfinite(run->norm);
    if (loss_scale_overflowed(run)) return;
    int is_high = is_spike(norms, count, run->norm, z, fmin(1, f->grad_clip)) &&
                  state->skipped_in_row < 3; // norms that stay high are no spike
    int is_off = is_finite && (is_high || is_spike(losses, count, run->loss, z, 1)); // 1 nat
    if (is_finite && !is_off) {
        state->window_count++;
        state->scale_steps++;
        losses[count % WINDOW] = run->loss;
        norms[count % WINDOW] = run->norm;
        gpt_update(&run->model, f, lr_at(f, state->step), run->norm, ++state->updates);
        state->skipped_in_row = 0;
        return;
    }
    state->skipped++;
    state->skipped_in_row++;
    state->spiked += (uint64_t)is_off;
    say("warning: step %" PRIu64 ": loss %g, gradient norm %g: %sskipped\n", state->step + 1,
        run->loss, run->norm, is_off ? "a spike, " : "");
}
// The micro-batches of one step, the gradients of their mean loss, the update. Process r takes the
// micro-batches r * n .. r * n + n - 1 of the step's n * ranks.
static void train_step(Run *run) {
    Model *model = &run->model;
    State *state = &run->state;
    size_t B = model->B, T = model->T, n = model->passes, all = n * (size_t)ranks;
    double sum = 0, *losses = (double *)host_alloc(all * sizeof(double));
    progress.step = state->step + 1;
    double loss_factor = inject_is_due("spike", progress.step) ? 100 : 1; // 1 but in tests
    double grad_factor = inject_is_due("nan", progress.step) ? NAN :
                         inject_is_due("inf", progress.step) ? INFINITY :
                         inject_is_due("norm", progress.step) ? 100 : loss_factor;
    if (inject_is_due("loss", progress.step)) loss_factor = NAN;
    model->loss_scale = loss_scale(state);
    real dloss = (real)(grad_factor * model->loss_scale / (double)(all * B * T));
    for (size_t i = 0; i < n; i++) {
        int accumulate = gpt_pass(model, i, n);
        uint64_t first = state->samples + ((size_t)rank * n + i) * B;
        data_batch(&run->train, first, B, run->batch, run->window);
        to_dev(model->tokens, run->batch, 2 * B * T * sizeof(int32_t));
        clock_lap(&run->clock, PHASE_input);
        gpt_forward(model, model->tokens, B, T, NO_CACHE);
        gpt_head(model, model->tokens + B * T, B * T, dloss, accumulate);
        gpt_keep_loss(model, i, B * T);
        clock_lap(&run->clock, PHASE_forward);
        gpt_backward(model, model->tokens, B, T, accumulate);
        clock_lap(&run->clock, PHASE_backward);
    }
    gpt_reduce_wait(model);
    clock_lap(&run->clock, PHASE_exchange);
    run->norm = gpt_grad_norm(model, losses + (size_t)rank * n);
    clock_read(&run->clock);
    for (size_t i = 0; i < n; i++) losses[(size_t)rank * n + i] *= loss_factor;
    comm_sum(losses, all);
    for (size_t i = 0; i < all; i++) sum += losses[i];
    free(losses);
    run->loss = sum / (double)(all * B * T);
    train_apply(run);
    inject_weight(model, ++state->step);
    state->samples += all * B;
    state->tokens += all * B * T;
    clock_lap(&run->clock, PHASE_update);
}

// --- 15.3 what a run tells ---
// A terminal has one line of progress, which the next replaces; a file gets one every 10 seconds.
static void print_line(Run *run, char *line, int is_progress) { // frees the line
    int is_terminal = isatty(STDERR_FILENO);
    int is_soon = run->state.step > 1 && now_ms() - run->last_print_ms < 10000;
    int is_left_out = is_progress && is_soon && !is_terminal;
    if (rank == 0 && !is_left_out) {
        run->last_print_ms = now_ms();
        fprintf(stderr, "%s%s%s", is_terminal ? "\r\x1b[K" : "", line,
                is_progress && is_terminal ? "" : "\n");
    }
    free(line);
}
static void report_step(Run *run, double ms) {
    const Flags *f = &run->flags;
    const State *state = &run->state;
    double tokens = (double)(run->model.passes * run->model.B * run->model.T * (size_t)ranks);
    double tok_per_s = tokens / ms * 1e3, lr = lr_at(f, state->step - 1);
    double left_s = ((double)f->steps - (double)state->step) * ms / 1e3;
    double flops = 3 * flops_per_token(&run->model.config, run->model.T);
    double mfu = flops * tok_per_s / run->peak_flops; // NaN: the peak is not known
    char of_peak[32] = "n/a";
    if (isfinite(mfu)) snprintf(of_peak, sizeof of_peak, "%.0f%%", 100 * mfu);
    print_line(run, text_of("step %" PRIu64 "/%" PRId64 " | loss %.4f | norm %.3f | lr %.2e | "
               "%.1f ms | %.0f tok/s | %s of peak | %.0f:%02.0f left", state->step, f->steps,
               run->loss, run->norm, lr, ms, tok_per_s, of_peak, floor(left_s / 60),
               fmod(left_s, 60)), 1);
    Text t = {};
    text_add(&t, "{\"step\":%" PRIu64, state->step);
    log_number(&t, "loss", run->loss);
    log_number(&t, "grad_norm", run->norm);
    log_number(&t, "lr", lr);
    text_add(&t, ",\"tokens\":%" PRIu64 ",\"skipped\":%" PRIu64 ",\"spiked\":%" PRIu64
             ",\"rollbacks\":%" PRIu64, state->tokens, state->skipped, state->spiked,
             state->rollbacks);
    if (HAS_LOSS_SCALE) log_number(&t, "loss_scale", run->model.loss_scale);
    log_number(&t, "ms", ms);
    log_number(&t, "tok_per_s", tok_per_s);
    log_number(&t, "mfu", mfu);
    text_add(&t, ",\"sent_bytes\":%" PRIu64, comm_sent_bytes); // by rank 0 since the start
    for (int i = 0; i < NUM_PHASES; i++) {
        char *name = text_of("%s_ms", phase_names[i]);
        log_number(&t, name, run->clock.ms[i]);
        run->clock.ms[i] = 0;
        free(name);
    }
    text_add(&t, "}");
    log_line(&run->log, &t);
}
static void report_validation(Run *run) {
    uint64_t step = run->state.step;
    if (*run->flags.hellaswag) {
        double accuracy = hellaswag(run, 0);
        if (stop_agreed()) return; // it was cut short
        print_line(run, text_of("step %" PRIu64 " | HellaSwag %.4f", step, accuracy), 0);
        Text t = {};
        text_add(&t, "{\"step\":%" PRIu64 ",\"hellaswag\":%.9g}", step, accuracy);
        log_line(&run->log, &t);
        clock_lap(&run->clock, PHASE_validation);
    }
    if (!run->has_val) return;
    Evaluation e = evaluate(run, &run->val, (uint64_t)run->flags.val_batches * run->model.B);
    if (stop_agreed()) return;
    Text line = {}, t = {};
    text_add(&line, "step %" PRIu64 " | validation loss %.4f | ", step, e.loss);
    if (isfinite(e.bits_per_byte)) text_add(&line, "%.4f bits per byte", e.bits_per_byte);
    else text_add(&line, "tokens that tokenizer %s does not know", run->tokenizer.name);
    print_line(run, line.at, 0);
    text_add(&t, "{\"step\":%" PRIu64, step);
    log_number(&t, "val_loss", e.loss);
    log_number(&t, "bits_per_byte", e.bits_per_byte);
    text_add(&t, ",\"val_tokens\":%" PRIu64 "}", e.tokens);
    log_line(&run->log, &t);
    clock_lap(&run->clock, PHASE_validation);
}
// All ranks hold the same weights, or the run ends and names those that differ from most.
static void run_check_replicas(const Run *run) {
    if (run->flags.check_replicas == 0 || ranks == 1) return;
    int64_t *hashes = (int64_t *)host_alloc((size_t)ranks * sizeof(int64_t));
    hashes[rank] = gpt_weights_hash(&run->model);
    comm_max_int(hashes, ranks); // the others' places are 0
    Text odd = {};
    for (int r = 0; r < ranks; r++) {
        int alike = 0;
        for (int other = 0; other < ranks; other++) alike += hashes[r] == hashes[other];
        if (2 * alike <= ranks) text_add(&odd, " rank %d", r);
    }
    check(odd.at == NULL, EXIT_NUMERICS, "step %" PRIu64 ": the weights differ between the ranks, "
          "off:%s: a processor or memory computes wrong; --resume without it", run->state.step,
          odd.at);
    free(hashes);
}
// A checkpoint that fails is no reason to lose the run: three in a row are.
static void run_save(Run *run) {
    if (run->saved_step == run->state.step || run->flags.keep == 0) return;
    run_check_replicas(run);
    int64_t error = rank > 0 ? ckpt_give(&run->model) :
                    ckpt_save(&run->model, &run->state, &run->flags, &run->tokenizer);
    comm_max_int(&error, 1);
    clock_lap(&run->clock, PHASE_checkpoint);
    run->save_failures = error ? run->save_failures + 1 : 0;
    run->save_error = (int)error;
    const char *why = error == EDOM ? "a weight is NaN or Inf" : strerror((int)error);
    if (error) say("warning: step %" PRIu64 ": checkpoint failed: %s; earlier ones are kept\n",
                   run->state.step, why);
    else {
        run->saved_step = run->state.step;
        run->saved_ms = run->useful_ms;
        run->saved_batch_tokens = batch_tokens(&run->flags);
    }
    check(run->save_failures < 3, error == EDOM ? EXIT_NUMERICS : EXIT_IO,
          "%s: three checkpoints in a row failed: %s", run->flags.out, why);
}
static void run_load(Run *run, Ckpt *ckpt, int is_training); // 15.4
// Too many bad steps in a row: once in a run, all ranks go back to the newest good checkpoint. The
// data does not: what led there is not read again (as in PaLM, Chowdhery et al. 2022).
static void run_roll_back(Run *run) {
    State now = run->state, *state = &run->state;
    Ckpt ckpt;
    int has_ckpt = now.rollbacks == 0 && ckpt_open_newest(&ckpt, run->flags.out);
    say("warning: step %" PRIu64 ": %d bad steps in a row\n", now.step, (int)now.skipped_in_row);
    check(has_ckpt, EXIT_NUMERICS, "%" PRIu64 " steps in a row with a NaN, an Inf or a spike, %s; "
          "lower --lr, look at the data, or try --spike_zscore 0", now.skipped_in_row,
          now.rollbacks ? "for the second time" : "and there is no checkpoint to go back to");
    run_load(run, &ckpt, 1);
    state->samples = now.samples;
    state->tokens = now.tokens;
    state->skipped = now.skipped;
    state->spiked = now.spiked;
    state->skipped_in_row = 0;
    state->rollbacks = now.rollbacks + 1;
    run->saved_step = UINT64_MAX; // that checkpoint knows nothing of the rollback
    run->useful_ms = run->saved_ms;
    run_check_replicas(run);
    clock_lap(&run->clock, PHASE_checkpoint);
}
static void report_time(const Run *run) {
    const double *ms = run->clock.all_ms, all_ms = now_ms() - run->start_ms;
    say("time: %.1f s, effective for training %.1f %%; checkpoints %.1f %% (%.1f MB), "
        "communication %.1f %%, validation %.1f %%\n", 1e-3 * all_ms, 100 * run->useful_ms / all_ms,
        100 * ms[PHASE_checkpoint] / all_ms, 1e-6 * (double)st_saved_bytes,
        100 * ms[PHASE_exchange] / all_ms, 100 * ms[PHASE_validation] / all_ms);
}
static int is_due(int64_t every, uint64_t step, int is_last) {
    return every > 0 && (is_last || step % (uint64_t)every == 0);
}

// What signals have asked of any rank is done by all. Returns the one to stop for, 0: none.
static int run_agree(Run *run) {
    int64_t asked[2] = { stop_signal, save_signal };
    if (asked[1]) save_signal = 0;
    comm_max_int(asked, 2);
    if (asked[1]) run_save(run);
    return (int)asked[0];
}
static void print_sample(Run *run) { // --sample
    const Flags *f = &run->flags;
    if (rank > 0) return;
    double start = now_ms();
    size_t count = gpt_sample(&run->model, &run->tokenizer, f, f->sample, (size_t)f->sample_tokens,
                              0, stdout);
    say("%zu tokens, %.1f a second\n", count, 1e3 * (double)count / (now_ms() - start));
}
static void print_evaluation(Run *run) { // --eval: one JSON object
    const Flags *f = &run->flags;
    Text t = {};
    if (run->has_val) {
        Evaluation e = evaluate(run, &run->val, (uint64_t)(f->val_batches * f->batch_size));
        log_number(&t, "val_loss", e.loss);
        log_number(&t, "bits_per_byte", e.bits_per_byte);
        text_add(&t, ",\"tokens\":%" PRIu64, e.tokens);
    }
    if (*f->hellaswag) log_number(&t, "hellaswag", hellaswag(run, 0));
    if (rank == 0) printf("{%s}\n", t.at + 1);
    free(t.at);
}
// Returns the exit code.
static int train(Run *run) {
    const Flags *f = &run->flags;
    State *state = &run->state;
    signals_install(1);
    clock_start(&run->clock);
    if (state->step >= (uint64_t)f->steps)
        say("nothing to do: step %" PRIu64 " of %" PRId64 " is done\n", state->step, f->steps);
    int stop;
    while (!(stop = run_agree(run)) && state->step < (uint64_t)f->steps) {
        double start = now_ms();
        train_step(run);
        report_step(run, now_ms() - start);
        int is_last = state->step == (uint64_t)f->steps, is_good = state->skipped_in_row == 0;
        if (is_good) run->useful_ms += now_ms() - start;
        if (state->skipped_in_row >= (uint64_t)f->skip_nonfinite) {
            run_roll_back(run);
            continue;
        }
        if (is_due(f->check_replicas, state->step, 0)) run_check_replicas(run);
        if (is_last || (is_good && is_due(f->save_every, state->step, 0))) run_save(run);
        if (is_due(f->val_every, state->step, is_last)) report_validation(run);
        if (rank == 0 && is_due(f->sample_every, state->step, is_last)) {
            gpt_sample(&run->model, &run->tokenizer, f, f->prompt, (size_t)f->sample_tokens,
                       state->step, stdout);
            clock_lap(&run->clock, PHASE_sampling);
        }
    }
    clock_read(&run->clock);
    report_time(run);
    if (stop) run_save(run);
    check(run->saved_step == state->step || f->keep == 0, run->save_error == EDOM ? EXIT_NUMERICS :
          EXIT_IO, "%s: step %" PRIu64 ", the last one, could not be saved", f->out, state->step);
    if (stop && f->keep > 0) say("\nstopped, saved step %" PRIu64 "; go on with --resume --out "
                                 "'%s'\n", state->step, f->out);
    else if (f->keep == 0) say("\nstep %" PRIu64 "; --keep 0: not saved\n", state->step);
    else say("next: ./train_gpt --sample \"...\" --out '%s'\n", f->out);
    return stop == 0 || stop == SIGUSR1 ? 0 : 128 + stop;
}

// --- 15.4 setting up ---
static void make_folders(const char *path) { // mkdir -p
    for (size_t end = 1; end <= strlen(path); end++) {
        if (path[end] != '/' && path[end] != 0) continue;
        char *folder = text_of("%.*s", (int)end, path);
        check(mkdir(folder, 0777) == 0 || errno == EEXIST, EXIT_IO, "--out %s: cannot make %s: %s",
              path, folder, strerror(errno));
        free(folder);
    }
}
// The output folder is made, locked against a second run, and written to once, before any work.
static void out_claim(Run *run) {
    const char *out = run->flags.out;
    make_folders(out);
    char *lock = text_of("%s/run.lock", out), *probe = text_of("%s/probe.tmp", out);
    OutFile f = out_open(probe);
    out_write(&f, "probe", 5);
    int error = out_close(&f);
    unlink(probe);
    check(!error, EXIT_IO, "--out %s: cannot write there: %s", out, strerror(error));
    run->lock = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    int is_ours = run->lock >= 0 && flock(run->lock, LOCK_EX | LOCK_NB) == 0;
    check(is_ours || errno != EWOULDBLOCK, EXIT_IO, "--out %s: another run is using it (%s); "
          "choose another --out", out, lock);
    check(is_ours, EXIT_IO, "--out %s: cannot lock %s: %s", out, lock, strerror(errno));
    DIR *dir = opendir(out);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL; ) {
        if (strncmp(e->d_name, "step_", 5) || !ends_with(e->d_name, ".tmp")) continue;
        char *left = text_of("%s/%s", out, e->d_name); // a run was killed while it saved
        remove_folder(left);
        free(left);
    }
    if (dir != NULL) closedir(dir);
    size_t count;
    free(ckpt_list(out, &count)); // once more, now that nobody else can add one
    check(run->flags.resume || count == 0, EXIT_USAGE, "--out %s: another run has just ended there",
          out);
    free(lock), free(probe);
}

// --model's shapes; a flag that is given by itself wins.
static void flags_apply_model(Flags *f) {
    static const struct { const char *name; int64_t layers, heads, channels, maxT; } presets[] = {
        { "d6", 6, 6, 384, 1024 }, { "d12", 12, 12, 768, 1024 }, { "d24", 24, 16, 1024, 1024 },
        { "d36", 36, 20, 1280, 1024 }, { "d48", 48, 25, 1600, 1024 },
        // Brown et al. 2020, table 2.1; two rows have 24 and two 32 layers, told apart by channels
        { "gpt3:d12", 12, 12, 768, 2048 }, { "gpt3:d24", 24, 16, 1024, 2048 },
        { "gpt3:d24w", 24, 16, 1536, 2048 }, { "gpt3:d24xl", 24, 24, 2048, 2048 },
        { "gpt3:d32", 32, 32, 2560, 2048 }, { "gpt3:d32w", 32, 32, 4096, 2048 },
        { "gpt3:d40", 40, 40, 5120, 2048 }, { "gpt3:d96", 96, 96, 12288, 2048 } };
    if (!*f->model) return;
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        if (strcmp(presets[i].name, f->model)) continue;
        if (!f->given[F_layers]) f->layers = presets[i].layers;
        if (!f->given[F_heads]) f->heads = presets[i].heads;
        if (!f->given[F_channels]) f->channels = presets[i].channels;
        if (!f->given[F_max_seq_len]) f->max_seq_len = presets[i].maxT;
        if (!f->given[F_vocab_size]) f->vocab_size = 50257;
        return;
    }
    die(EXIT_USAGE, "--model %s is not known; d6 d12 d24 d36 d48, gpt3:d12 d24 d24w d24xl d32 d32w "
        "d40 d96, or --layers --heads --channels", f->model);
}
static Config config_of_flags(const Flags *f, const Tokenizer *tokenizer) {
    Config c = {};
    c.L = (size_t)f->layers;
    c.NH = (size_t)f->heads;
    c.C = (size_t)f->channels;
    c.maxT = (size_t)(f->max_seq_len ? f->max_seq_len : f->seq_len);
    c.V = (size_t)(f->vocab_size ? f->vocab_size : (int64_t)tokenizer->vocab_size);
    config_check(&c, EXIT_USAGE, "flags");
    return c;
}
// The flags get the shape of the model, for the records. Those that contradict it, where it comes
// from a file, are refused by name.
static void flags_take_config(Flags *f, const Config *c, const char *source) {
    const int flags[] = { F_layers, F_heads, F_channels, F_max_seq_len, F_vocab_size };
    const size_t values[] = { c->L, c->NH, c->C, c->maxT, c->V };
    Flags wanted = *f;
    flags_apply_model(&wanted);
    for (int i = 0; i < 5; i++) {
        int64_t value = *flag_int(&wanted, flags[i]);
        int is_given = f->given[flags[i]] || (*f->model && f->given[F_model] && i < 3);
        int is_open = i >= 3 && value == 0; // the flag leaves it to the file
        check(!is_given || is_open || value == (int64_t)values[i], EXIT_USAGE, "--%s %" PRId64
              ": %s has %zu; a model that is loaded keeps its shape", flag_infos[flags[i]].name,
              value, source, values[i]);
        *flag_int(f, flags[i]) = (int64_t)values[i];
    }
}
static void data_setup(Run *run) {
    const Flags *f = &run->flags;
    size_t V = run->model.config.V, T = run->model.T;
    if (*f->train && !(f->eval && *f->val)) {
        run->train = data_open(f->train, &run->tokenizer, run->tokenizer.name, V);
        uint64_t count = run->train.count, held = 0;
        if (!*f->val && f->val_fraction > 0) {
            held = (uint64_t)((double)count * f->val_fraction);
            run->val = run->train;
            data_cut(&run->val, count - held, held, T, "validation (--val_fraction of --train)");
            run->has_val = 1;
        }
        data_cut(&run->train, 0, count - held, T, "training");
        run->train.is_shuffled = 1;
        run->train.seed = (uint64_t)f->seed;
    }
    if (*f->val) {
        run->val = data_open(f->val, &run->tokenizer, run->tokenizer.name, V);
        data_cut(&run->val, 0, run->val.count, T, "validation");
        run->has_val = 1;
    }
    run->window = (int32_t *)host_alloc((T + 1) * sizeof(int32_t));
    run->batch = (int32_t *)host_alloc(2 * run->model.B * T * sizeof(int32_t));
}
// A last line without an end: one of ours, which a crash has cut, is dropped; another's is ended.
static void log_mend(const char *path) {
    struct stat st;
    int fd = stat(path, &st) == 0 && S_ISREG(st.st_mode) ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    off_t end = st.st_size, line = end; // where the last line starts
    char byte, first = 0;
    int is_mended = 1;
    for (; line > 0 && pread(fd, &byte, 1, line - 1) == 1 && byte != '\n'; line--) first = byte;
    if (first == '{') is_mended = ftruncate(fd, line) == 0;
    else if (line < end) is_mended = pwrite(fd, "\n", 1, end) == 1;
    if (!is_mended) warn("%s: %s", path, strerror(errno));
    close(fd);
}
static void log_open(Run *run) {
    const Flags *f = &run->flags;
    if (rank > 0) return;
    OutFile *log = &run->log.file;
    log->path = *f->log ? text_of("%s", f->log) : text_of("%s/log.jsonl", f->out);
    if (run->state.step > 0) log_mend(log->path);
    int keep = run->state.step > 0 ? O_APPEND : O_TRUNC; // O_NONBLOCK: a FIFO may have no reader
    log->fd = open(log->path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | keep, 0666);
    check(log->fd >= 0, EXIT_IO, "--log %s: %s", log->path, strerror(errno));
    fcntl(log->fd, F_SETFL, O_APPEND); // from here on a slow reader is waited for
    char host[256] = "unknown";
    gethostname(host, sizeof host - 1);
    Text t = {};
    text_add(&t, "{\"version\":%d,\"git\":\"%s\",\"compiler\":", CKPT_VERSION, GIT_HASH);
    text_add_quoted(&t, __VERSION__);
    text_add(&t, ",\"precision\":\"%s\",\"host\":", PRECISION_NAME);
    text_add_quoted(&t, host);
    text_add(&t, ",\"threads\":%d,\"ranks\":%d,\"parameters\":%zu,\"bytes\":%zu,"
             "\"peak_flops\":%.6g,\"train_tokens\":%" PRIu64 ",\"train_crc\":\"%08x\","
             "\"val_crc\":\"%08x\",\"step\":%" PRIu64 ",\"flags\":",
             omp_get_max_threads(), ranks, run->model.layout.num_parameters, dev_bytes,
             run->peak_flops, run->train.count, run->train.crc, run->val.crc, run->state.step);
    flags_add_json(&t, f);
    text_add(&t, "}");
    log_line(&run->log, &t);
}
// What the newest checkpoint holds, into the model and, for training, into the state.
static void run_load(Run *run, Ckpt *ckpt, int is_training) {
    gpt_load(&run->model, &ckpt->model, "w");
    if (is_training) {
        State now = run->state;
        gpt_load(&run->model, &ckpt->state, "mv");
        ckpt_state(ckpt, &run->state);
        int is_same = now.train_crc == run->state.train_crc &&
                      now.train_tokens == run->state.train_tokens;
        check(is_same || run->flags.allow_data_change, EXIT_INPUT, "the training data changed "
              "since %s: then %s, %" PRIu64 " tokens with CRC %08" PRIx64 "; now %s, %" PRIu64
              " with %08" PRIx64 "; --allow_data_change goes on all the same", ckpt->folder,
              run->state.train_files, run->state.train_tokens, run->state.train_crc,
              now.train_files, now.train_tokens, now.train_crc);
        if (!is_same || run->saved_batch_tokens != batch_tokens(&run->flags))
            run->state.window_count = 0; // losses and norms will be others
        memcpy(run->state.train_files, now.train_files, sizeof now.train_files);
        run->state.train_crc = now.train_crc;
        run->state.train_tokens = now.train_tokens;
        run->saved_step = run->state.step;
        say("resumed at step %" PRIu64 " from %s\n", run->state.step, ckpt->folder);
    }
    st_close(&ckpt->model);
    st_close(&ckpt->state);
}
// Memory that does not fit is found before it is touched, and with it the batch that would fit.
static void memory_check(const Model *model) {
    size_t free_bytes = dev_bytes_free();
    for (size_t B = model->B; ; B /= 2) {
        Model smaller = *model;
        smaller.B = B;
        BufferInfo infos[NUM_BUFFERS];
        gpt_plan(&smaller, infos);
        size_t bytes = 0;
        for (int i = 0; i < NUM_BUFFERS; i++) bytes += infos[i].bytes;
        int fits = free_bytes == 0 || bytes <= free_bytes;
        if (fits && B == model->B) return;
        check(!fits, EXIT_INTERNAL, "out of memory: --batch_size %zu needs more than the %zu bytes "
              "that are free; --batch_size %zu takes %zu, and --recompute 3 less", model->B,
              free_bytes, B, bytes);
        check(B > 1, EXIT_INTERNAL, "out of memory: even --batch_size 1 takes %zu bytes, %zu are "
              "free; raise --recompute or choose a smaller model", bytes, free_bytes);
    }
}
static void run_banner(const Run *run) {
    const Model *model = &run->model;
    const Config *c = &model->config;
    say("model     %zu parameters: %zu layers, %zu heads, %zu channels, vocabulary %zu\n",
        model->layout.num_parameters, c->L, c->NH, c->C, c->V);
    const char *held_out = *run->flags.val ? run->flags.val : "its end";
    say("data      %" PRIu64 " tokens from %s%s%s, an epoch is %" PRIu64 " windows of %zu\n",
        run->train.count, run->flags.train, run->has_val ? ", held out: " : "",
        run->has_val ? held_out : "", run->train.num_windows, model->T);
    say("memory    %.1f MB\n", 1e-6 * (double)dev_bytes);
    char *name = dev_name();
    say("machine   %s in each of %d processes, peak %.0f GFLOP/s, %s\n", name, ranks,
        1e-9 * run->peak_flops, PRECISION_NAME);
    free(name);
}

// The model's shape: from the checkpoint, from --init, or from flags. Returns 1 for a checkpoint.
static int run_choose_model(Run *run, int is_training, Ckpt *ckpt, St *init) {
    Flags *f = &run->flags;
    Config *c = &run->model.config;
    check(!f->resume || !f->given[F_init], EXIT_USAGE, "--resume and --init exclude each other");
    check(f->plan + f->eval + f->given[F_sample] + f->resume <= 1, EXIT_USAGE, "of --plan, "
          "--sample, --eval and --resume only one can be given");
    int is_init = *f->init && !is_training; // training looks for checkpoints even with --init
    int has_ckpt = !f->plan && !is_init && ckpt_open_newest(ckpt, f->out);
    check(has_ckpt || !f->resume, EXIT_INPUT, "--resume: no checkpoint in %s", f->out);
    check(!has_ckpt || f->resume || !is_training, EXIT_USAGE, "%s is there already: go on with "
          "--resume, or choose another --out", ckpt->folder);
    check(has_ckpt || f->plan || is_training || *f->init, EXIT_INPUT, "no checkpoint in %s: name a "
          "run's folder with --out, or a model with --init", f->out);
    char *source = NULL; // of the model
    if (has_ckpt) {
        const char *text = st_meta(&ckpt->state, "flags");
        Flags saved = flags_merge_saved(f, json_open(ckpt->state.file.path, text, strlen(text)));
        run->saved_batch_tokens = batch_tokens(&saved);
        source = text_of("%s/model.safetensors", ckpt->folder);
        *c = ckpt->config;
    } else if (*f->init) {
        source = init_file(f->init, c);
        if (ends_with(source, ".json")) st_open_index(init, source);
        else st_open(init, source);
        size_t wanted = f->eval ? SIZE_MAX : (size_t)f->seq_len; // all positions, as published
        if (!f->given[F_seq_len]) f->seq_len = (int64_t)min_size(wanted, c->maxT);
    }
    // Without --tokenizer a model that comes with one keeps it.
    char *folder = source ? path_beside(source, ".") : NULL;
    char *own = folder && !f->given[F_tokenizer] ? tok_file_in(folder, 0) : NULL;
    int is_guess = source && !own && !f->given[F_tokenizer];
    run->tokenizer = tok_load(own ? folder : f->tokenizer);
    free(folder), free(own);
    if (!source) {
        flags_apply_model(f);
        *c = config_of_flags(f, &run->tokenizer);
    }
    flags_take_config(f, c, source ? source : "flags");
    if (is_guess && run->tokenizer.vocab_size != c->V && rank == 0)
        warn("no tokenizer beside %s, of vocab_size %zu; --tokenizer is %s", source, c->V,
             f->tokenizer);
    if (!is_training && !f->plan) f->total_batch_tokens = 0; // these are for training
    if (!is_training && !f->given[F_hellaswag]) f->hellaswag = "";
    if (f->eval && *f->hellaswag && !f->given[F_val] && !f->given[F_train]) f->train = f->val = "";
    check((size_t)f->seq_len <= c->maxT, EXIT_USAGE, "--seq_len %" PRId64 ": the model has %zu "
          "positions (--max_seq_len)", f->seq_len, c->maxT);
    check(run->tokenizer.vocab_size <= c->V, EXIT_INPUT, "tokenizer %s has %zu tokens, the model's "
          "vocab_size is %zu: choose another --tokenizer", run->tokenizer.name,
          (size_t)run->tokenizer.vocab_size, c->V);
    int64_t tokens;
    check(!__builtin_mul_overflow(f->batch_size, f->seq_len, &tokens) && tokens <= INT32_MAX,
          EXIT_USAGE, "--batch_size %" PRId64 " times --seq_len %" PRId64 " is over 2^31 tokens",
          f->batch_size, f->seq_len);
    num_micro_batches(f);
    return has_ckpt;
}
// What every rank read for itself must be the same everywhere. A rank that found a fault before has
// ended all of them (die).
static void run_compare(const Run *run, uint64_t step, uint32_t state_crc) {
    if (ranks == 1) return;
    uint64_t read[] = { step, state_crc, (uint64_t)gpt_weights_hash(&run->model), run->train.crc,
                        run->train.count, run->val.crc, run->val.count };
    Text flags = {};
    flags_add_json(&flags, &run->flags);
    uint32_t crc = crc32c((uint32_t)run->flags.zero, &run->model.config, sizeof(Config));
    crc = crc32c(crc, read, sizeof read);
    crc = crc32c(crc, flags.at, flags.count);
    free(flags.at);
    int64_t extremes[2] = { crc, -(int64_t)crc };
    comm_max_int(extremes, 2);
    check(extremes[0] == crc && extremes[1] == -(int64_t)crc, EXIT_INPUT, "the ranks do not see "
          "the same files, or have not the same flags: this one checkpoint step %" PRIu64
          ", training data of %" PRIu64 " tokens with CRC %08x", step, run->train.count,
          run->train.crc);
}
// A pass on tokens 0, whose gradients nobody uses, makes every product of the training once.
static void run_tune(Run *run) {
    Model *model = &run->model;
    size_t B = model->B, T = model->T;
    char *path = text_of("%s/matmul.tuned", run->flags.out);
    matmul_tune(path);
    gpt_forward(model, model->tokens, B, T, NO_CACHE);
    gpt_head(model, model->tokens + B * T, B * T, 1, 0);
    gpt_backward(model, model->tokens, B, T, 0);
    dev_sync();
    matmul_tune(NULL);
    free(path);
}
// From flags to a run that is ready: everything that can be refused is refused here.
static void run_open(Run *run, const Flags *given) {
    run->flags = *given;
    run->start_ms = now_ms();
    inject_parse(given->inject);
    run->saved_step = UINT64_MAX;
    Flags *f = &run->flags;
    Model *model = &run->model;
    int is_sample = f->given[F_sample], is_training = !f->plan && !f->eval && !is_sample;
    check(!is_training || *f->train || f->resume, EXIT_USAGE, "--train FILE is needed: a text "
          "file, or token shards (--help lists all flags)");
    check(*f->out, EXIT_USAGE, "--out is empty");
    if (is_training) signals_install(0);
    signals_hold(SIG_UNBLOCK);
    if (is_training || f->eval) watchdog_start(f->timeout);
    check(omp_get_max_threads() <= 1024, EXIT_USAGE, "OMP_NUM_THREADS: %d threads, limit 1024",
          omp_get_max_threads());
    check(!f->json || f->plan, EXIT_USAGE, "--json goes with --plan");
    Ckpt ckpt = {};
    St init = {};
    int has_ckpt = run_choose_model(run, is_training, &ckpt, &init);
    model->B = is_sample ? 1 : (size_t)f->batch_size;
    model->T = (size_t)f->seq_len;
    model->recompute = (int)f->recompute;
    model->is_trained = is_training || f->plan;
    model->zero = (int)f->zero;
    model->is_random = !f->master_weights;
    model->has_narrow_moments = !strcmp(f->adam_state, "bf16");
    check((f->master_weights && !model->has_narrow_moments) || !strcmp(PRECISION_NAME, "bf16"),
          EXIT_USAGE, "--master_weights 0 and --adam_state bf16 are for a bf16 build; this is %s",
          PRECISION_NAME);
    // A resume with another number of ranks keeps the batch.
    if (ranks > 1 && f->total_batch_tokens == 0 && is_training)
        f->total_batch_tokens = has_ckpt && !f->given[F_total_batch_tokens] ?
            run->saved_batch_tokens : f->batch_size * f->seq_len * ranks;
    if (!has_ckpt) run->saved_batch_tokens = batch_tokens(f);
    model->passes = num_micro_batches(f);
    model->levels = f->pairwise && model->is_trained ? __builtin_ctzll(model->passes) : 0;
    model->cache_T = is_sample || f->sample_every > 0 ? model->config.maxT : 0;
    if (f->plan) return;
    if (!is_sample) data_setup(run);
    if (!is_sample && *f->hellaswag) hellaswag(run, 1); // before anything is computed
    check(!f->eval || run->has_val || *f->hellaswag, EXIT_USAGE, "--eval needs --val or "
          "--hellaswag");
    run->state.train_crc = run->train.crc;
    run->state.train_tokens = run->train.count;
    data_list(&run->train, run->state.train_files, sizeof run->state.train_files);
    matmul_choose(f->matmul, f->gelu_fusion && f->recompute % 3 == 0); // 1, 2: gelu again, alone
    memory_check(model);
    if (is_training && rank == 0) out_claim(run);
    check(!is_training || f->eps > 0, EXIT_USAGE, "--eps must be above 0: where a gradient is "
          "always 0, its root is too");
    if (is_training && f->lr == 0 && rank == 0) warn("--lr 0: nothing will be learned");
    gpt_alloc(model);
    uint32_t state_crc = ckpt.state.header_crc;
    if (has_ckpt) run_load(run, &ckpt, is_training);
    else if (*f->init) gpt_load(model, &init, "w");
    else gpt_init_weights(model, (uint64_t)f->seed);
    run_compare(run, ckpt.step, state_crc);
    st_close(&init);
    if (!is_training) return;
    watchdog_record(f->out);
    if (f->tune_matmul) run_tune(run);
    run->peak_flops = dev_peak_flops() * ranks;
    log_open(run);
    run_banner(run);
}

// === 16. Main ========================================================================== [shared]

#ifndef GPT_NO_MAIN
int main(int argc, char **argv) {
    dev_check();
    std_files_open();
    signals_hold(SIG_BLOCK);
    comm_init();
    Flags flags = flags_parse(argc, argv);
    static Run run;
    int code = 0;
    run_open(&run, &flags);
    const Flags *f = &run.flags;
    if (f->plan) print_plan(&run.model, f);
    else if (f->given[F_sample]) print_sample(&run);
    else if (f->eval) print_evaluation(&run);
    else code = train(&run);
    check_stdout();
    return code;
}
#endif
