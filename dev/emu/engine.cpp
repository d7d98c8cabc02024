// engine.cpp: runs CUDA kernels on the CPU: threads, barriers, warp operations, shared memory.
//
// A block runs on one OS thread (a worker), from its first CUDA thread to its last. CUDA threads
// are called one after the other on an ordinary stack (a fiber). A kernel without barriers never
// needs a second stack: when a thread ends, its fiber calls the next one. Only a thread that must
// wait (at __syncthreads, a shuffle, an mma) parks its fiber, which then switches straight to
// another fiber that can go on, or to a fresh one that starts the next thread. A switch costs 15
// instructions.
//
//   __syncthreads    counts arrivals; the last one makes all of them ready
//   shuffle, mma     the last lane to arrive does the work of all 32 at once
//   nothing ready    is a deadlock: print what every thread waits for. So divergent barriers and
//                    shuffles with absent lanes are found without a rule for each
//
// The order of threads is fixed (warp by warp, good for speed and for reproducing), or random under
// EMU_SHUFFLE=seed, so that a missing barrier shows as a wrong result: sometimes, as on a GPU.
//
// Contents:  1 options, random numbers   2 memory regions   3 fibers   4 worker   5 reports
//            6 the scheduler   7 barriers   8 warp operations   9 shared memory
//            10 ldmatrix, cp.async   11 running a kernel
#include "engine.h"
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <omp.h>

namespace emu {

// === 1. Options, random numbers ================================================================
uint64_t env_number(const char* name, uint64_t otherwise) {
    const char* text = getenv(name);
    if (!text) return otherwise;
    char* end;
    uint64_t v = strtoull(text, &end, 0);
    if (!*text || *end) fail(nowhere, "%s=%s: a number is wanted", name, text);
    return v;
}
EMU_FIRST Options options = {
    (int)env_number("EMU_WORKERS", 1),
    (int)env_number("EMU_STRICT", 2),
    getenv("EMU_SHUFFLE") != nullptr,
    getenv("EMU_LAZY") != nullptr,
    env_number("EMU_PROTECT", 0) != 0,
    env_number("EMU_SHUFFLE", 0) * 0x9e3779b97f4a7c15ull + env_number("EMU_LAZY", 0),
};
Counters counters;
thread_local Now now;
thread_local uint64_t random_state;
uint64_t random_bits() {                      // splitmix64
    uint64_t z = random_state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
static int random_below(int n) { return (int)(random_bits() % n); }
static void shuffle(int* a, int n) {
    for (int i = n - 1; i > 0; i--) std::swap(a[i], a[random_below(i + 1)]);
}

// === 2. Memory regions =========================================================================
#ifdef __SANITIZE_ADDRESS__
constexpr size_t STACK_BYTES = 256 << 10;     // ASan puts red zones around every local
#else
constexpr size_t STACK_BYTES = 64 << 10;
#endif
constexpr size_t HEAP_BYTES = 16ull << 30, ARENA_BYTES = 1 << 20, ARGUMENT_BYTES = 1ull << 30;
constexpr int MAX_WORKERS = 64, MAX_THREADS = 1024, MAX_FIBERS = MAX_THREADS + 1;

Region reserve(size_t bytes) {                // addresses only: no memory until set_access
    void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) fail(nowhere, "cannot reserve %zu bytes of addresses", bytes);
    return {(char*)p, (char*)p, (char*)p + bytes};
}
void set_access(char* from, char* to, bool usable) {
    char* page = (char*)((uintptr_t)from & ~4095ull);
    if (to > page && mprotect(page, to - page, usable ? PROT_READ | PROT_WRITE : PROT_NONE))
        fail(nowhere, "out of memory");
}
EMU_FIRST Region heap = reserve(HEAP_BYTES);
EMU_FIRST Region arenas = reserve(ARENA_BYTES * MAX_WORKERS);
EMU_FIRST Region stacks = reserve(STACK_BYTES * MAX_FIBERS * MAX_WORKERS);
EMU_FIRST static Region arguments = reserve(ARGUMENT_BYTES);

// Kernel arguments are never freed: a graph may replay its launches at any time.
void* argument_alloc(size_t bytes) {
    static char* usable = arguments.base;
    if (bytes > 4096) fail(nowhere, "kernel arguments of %zu bytes; CUDA allows 4096", bytes);
    char* p = arguments.top;
    arguments.top += (bytes + 15) / 16 * 16;
    if (arguments.top > arguments.end) fail(nowhere, "more than 1 GB of kernel arguments");
    if (arguments.top > usable) {             // seldom: a system call
        set_access(usable, usable + (64 << 10), true);
        usable += 64 << 10;
    }
    return p;
}

extern "C" char __executable_start, _end;     // from the linker: where globals lie
bool kernel_may_touch(const void* q) {
    char* p = (char*)q;
    char* tls = (char*)__builtin_thread_pointer();
    return stacks.holds(p) || (p >= arguments.base && p < arguments.top) ||
           (p >= &__executable_start && p < &_end) || (p > tls - (1 << 20) && p < tls + 4096);
}

// === 3. Fibers =================================================================================
// emu_switch(&save, load): push what a function call must preserve, exchange stacks, pop, return.
// It ends in ret: all switches come from few places, so the CPU predicts where it goes (an indirect
// jump instead takes twice the time per barrier; one core of an AMD EPYC, micro benchmark).
extern "C" void emu_switch(void** save_stack, void* load_stack);
#if defined(__x86_64__)
asm(".text\n.globl emu_switch\n.type emu_switch,@function\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size emu_switch,.-emu_switch\n");
#else
#error "emu: write the 15 instructions of this machine's context switch"
#endif

struct Fiber {
    void* top = nullptr;                      // its stack pointer while it is parked
    char* stack = nullptr;
    size_t size = 0;
    void* asan = nullptr;
};

static void jump(Fiber* from, Fiber* to) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&from->asan, to->stack, to->size);
    emu_switch(&from->top, to->top);
    __sanitizer_finish_switch_fiber(from->asan, nullptr, nullptr);
#else
    emu_switch(&from->top, to->top);
#endif
}

// === 4. Worker: the block that runs now on this OS thread ======================================
enum State : uint8_t { UNSTARTED, READY, AT_BARRIER, AT_WARP_OP, EXITED };

struct Copy { void* dst; const void* src; int bytes, src_bytes; unsigned group; };   // of cp.async

// What a switch reads is one cache line: with 256 threads the lines decide what a barrier costs.
struct alignas(64) Thread {
    uint3 index;                              // threadIdx
    State state;
    uint8_t barrier;                          // AT_BARRIER: which one
    Fiber* fiber;
    Site site;                                // where it waits
    unsigned mask;                            // AT_WARP_OP: the lanes that take part,
    uint32_t syncwarps;
    const char* op;                           // its name,
    void* operands;                           // this lane's operands and result
    // the second line
    const void* pc;                           // race mode: where it called the warp operation
    unsigned copy_group;                      // cp.async: the group now being filled
    std::vector<Copy> copies;                 // issued and not yet waited for
};
struct Barrier { int arrived, count, votes, result; uint32_t passed; };
struct Variable { const char* name; char* p; size_t bytes; };

struct Worker {
    int id;
    const Kernel* kernel;
    uint64_t serial = 0;                      // of blocks

    Thread threads[MAX_THREADS];
    int num, alive, started, current;
    int order[MAX_THREADS];                   // in which threads start and leave a barrier
    bool uniform;                             // schedule: any thread next, or warp by warp
    int ready[MAX_THREADS], num_ready;        // ring of threads that can go on
    unsigned head;
    Barrier barriers[16];
    uint32_t at_warp_op[32];                  // bit l of word w: lane l of warp w waits

    Fiber main, *running;                     // main: the worker's own stack
    std::vector<Fiber*> idle;
    int num_fibers = 0;

    char *arena, *arena_top;                  // shared memory
    std::vector<Variable> variables;
    char* dynamic;
    size_t static_bytes;
};
static thread_local Worker* me;

// === 5. Reports ================================================================================
static const char* state_name(const Thread& t) {
    static const char* const names[] = {"not started", "ready", "at __syncthreads", "", "exited"};
    return t.state == AT_WARP_OP ? t.op : names[t.state];
}

static bool same_state(const Thread& a, const Thread& b) {
    if (a.state != b.state) return false;
    bool waits = a.state == AT_BARRIER || a.state == AT_WARP_OP;
    return !waits || (a.site.line == b.site.line && a.mask == b.mask);
}

static void print_threads() {
    Worker& w = *me;
    uint3 t = w.threads[w.current].index, b = blockIdx;
    fprintf(stderr, "  in %s block (%u,%u,%u) thread (%u,%u,%u), launched at %s:%d\n  threads:\n",
            w.kernel->name, b.x, b.y, b.z, t.x, t.y, t.z, w.kernel->site.file, w.kernel->site.line);
    for (int i = 0, end; i < w.num; i = end) {
        const Thread& a = w.threads[i];
        for (end = i + 1; end < w.num && same_state(a, w.threads[end]);) end++;
        bool runs = i <= w.current && w.current < end && a.state == READY;
        fprintf(stderr, "    %4d..%-4d %s", i, end - 1, runs ? "running" : state_name(a));
        if (a.state == AT_BARRIER || a.state == AT_WARP_OP)
            fprintf(stderr, " at %s:%d", a.site.file, a.site.line);
        if (a.state == AT_WARP_OP) fprintf(stderr, " mask %08x", a.mask);
        fprintf(stderr, "\n");
    }
}

void fail(Site site, const char* fmt, ...) {
    static std::mutex one_report;
    std::lock_guard<std::mutex> guard(one_report);
    char text[1000];                          // printed in one piece: other ranks may print too
    int n = snprintf(text, sizeof text, "EMU ERROR: ");
    va_list args;
    va_start(args, fmt);
    n += vsnprintf(text + n, sizeof text - n, fmt, args);
    va_end(args);
    if (site.line && n < (int)sizeof text)
        snprintf(text + n, sizeof text - n, "\n  at %s:%d", site.file, site.line);
    fflush(stdout);
    fprintf(stderr, "%s\n", text);
    if (me && now.kernel) print_threads();
    if (getenv("EMU_ABORT")) abort();         // for a debugger
    _exit(99);
}

// A bad address inside a kernel should name the kernel; one in host code stays the program's own.
[[maybe_unused]] static void on_bad_address(int signal_number, siginfo_t* info, void*) {
    const void* p = info->si_addr;
    signal(signal_number, SIG_DFL);
    if (now.kernel && signal_number == SIGFPE) fail(nowhere, "integer division by zero");
    if (stacks.holds(p)) fail(nowhere, "stack overflow: a CUDA thread has %zu bytes", STACK_BYTES);
    if (heap.holds(p) && !now.kernel) fail(nowhere, "host code touches device memory at %p", p);
    if (now.kernel) fail(nowhere, "the kernel touches invalid address %p", p);
}
static void catch_bad_addresses() {
#ifndef __SANITIZE_ADDRESS__                  // ASan has its own handler
    stack_t own = {};
    own.ss_size = 64 << 10;
    own.ss_sp = malloc(own.ss_size);          // the faulting stack may be the full one
    sigaltstack(&own, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_bad_address;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
    sigaction(SIGFPE, &action, nullptr);
#endif
}

// === 6. The scheduler ==========================================================================
static void set_current(int i) {
    Worker& w = *me;
    w.current = i;
    threadIdx = w.threads[i].index;
    now.thread = (uint16_t)i;
    now.barriers = w.barriers[0].passed;
    now.syncwarps = w.threads[i].syncwarps;
}

static void push_back(int i) {
    Worker& w = *me;
    w.threads[i].state = READY;
    w.ready[(w.head + w.num_ready++) % MAX_THREADS] = i;
}
static void push_front(int i) {               // next to run: its warp's stacks are in the cache
    Worker& w = *me;
    w.threads[i].state = READY;
    w.ready[--w.head % MAX_THREADS] = i;
    w.num_ready++;
}
static int pop_ready() {
    Worker& w = *me;
    int& first = w.ready[w.head % MAX_THREADS];
    if (w.uniform) std::swap(first, w.ready[(w.head + random_below(w.num_ready)) % MAX_THREADS]);
    w.head++;
    w.num_ready--;
    return first;
}

// What is next: a thread that has not begun (true), or one that can go on?
static bool start_another() {
    Worker& w = *me;
    int unstarted = w.num - w.started;
    if (!unstarted) return false;
    return !w.num_ready || (w.uniform && random_below(w.num_ready + unstarted) < unstarted);
}

static void fiber_main();
static Fiber* get_fiber() {
    Worker& w = *me;
    if (!w.idle.empty()) {
        Fiber* f = w.idle.back();
        w.idle.pop_back();
        return f;
    }
    Fiber* f = new Fiber;
    int i = w.num_fibers++;
    char* base = stacks.base + (size_t)(w.id * MAX_FIBERS + i) * STACK_BYTES;
    f->stack = base + 4096;                   // the lowest page stays closed: an overflow faults
    f->size = STACK_BYTES - 4096;
    set_access(f->stack, base + STACK_BYTES, true);
    // Tops are staggered: stacks at equal offsets would fight for the same sets of the cache.
    void** top = (void**)(base + STACK_BYTES - 64 - i % 61 * 192 % 8192);
    *--top = nullptr;                         // fiber_main never returns
    *--top = (void*)fiber_main;
    top -= 6;                                 // the registers that emu_switch pops
    memset(top, 0, 6 * sizeof *top);
    f->top = top;
    return f;
}

[[noreturn]] static void deadlock() {
    Worker& w = *me;
    for (int i = 0; i < w.num; i++) {
        const Thread& t = w.threads[i];
        if (t.state != AT_BARRIER && t.state != AT_WARP_OP) continue;
        set_current(i);
        fail(t.site, "deadlock: this %s can never complete (divergent barrier, or lanes of its "
                     "mask elsewhere or exited)", state_name(t));
    }
    abort();                                  // not reached: somebody waits
}

// The current thread waits, or yields: run something else; returns when it may go on.
static void wait_here() {
    Worker& w = *me;
    Fiber* self = w.threads[w.current].fiber;
    if (start_another()) {
        jump(self, w.running = get_fiber());
        return;
    }
    if (!w.num_ready) deadlock();
    int next = pop_ready();
    set_current(next);
    if (w.threads[next].fiber != self) jump(self, w.running = w.threads[next].fiber);
}

static void release(int id);
static void fiber_main() {                    // starts threads as long as that is what comes next
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    Worker& w = *me;
    Fiber* self = w.running;
    for (;;) {
        int i = w.order[w.started++];
        Thread& t = w.threads[i];
        t.fiber = self;
        t.state = READY;
        set_current(i);
        w.kernel->body();
        t.state = EXITED;
        t.copies.clear();                     // a cp.async never waited for never happens
        w.alive--;
        if (w.alive && w.barriers[0].arrived == w.alive) release(0);      // the exited do not count
        if (start_another()) continue;
        w.idle.push_back(self);               // parked here; get_fiber resumes it for a new thread
        if (!w.alive) {
            jump(self, w.running = &w.main);
            continue;
        }
        if (!w.num_ready) deadlock();
        int next = pop_ready();
        set_current(next);
        jump(self, w.running = w.threads[next].fiber);
    }
}

// === 7. Barriers ===============================================================================
// Whole warps in random order, the lanes of a warp in random order.
static void shuffle_warps(Worker& w) {
    int warps[32], num_warps = (w.num + 31) / 32, k = 0;
    for (int i = 0; i < num_warps; i++) warps[i] = i;
    shuffle(warps, num_warps);
    for (int i = 0; i < num_warps; i++) {
        int first = k;
        for (int l = warps[i] * 32; l < w.num && l < warps[i] * 32 + 32; l++) w.order[k++] = l;
        shuffle(w.order + first, k - first);
    }
}

// Two threads at different lines, or one that left, mean that the program's barriers do not match.
static void check_arrivals(int id) {
    Worker& w = *me;
    Site first = nowhere;
    for (int i = 0; i < w.num; i++) {
        const Thread& t = w.threads[i];
        if (t.state != AT_BARRIER || t.barrier != id) continue;
        if (first.line && first.line != t.site.line) {
            set_current(i);
            fail(t.site, "divergent barrier: other threads of the block wait at %s:%d",
                 first.file, first.line);
        }
        first = t.site;
    }
    if (options.strict < 2 || id != 0 || w.alive == w.num) return;
    for (int i = 0; i < w.num; i++) {
        if (w.threads[i].state != EXITED) continue;
        set_current(i);
        fail(first, "thread %d of the block exited without reaching this barrier", i);
    }
}

static void release(int id) {
    Worker& w = *me;
    Barrier& b = w.barriers[id];
    if (options.strict) check_arrivals(id);
    b.result = b.votes;
    b.arrived = b.votes = 0;
    b.passed++;
    if (options.shuffle && !w.uniform && w.started == w.num) shuffle_warps(w);
    for (int j = 0; j < w.num; j++) {
        const Thread& t = w.threads[w.order[j]];
        if (t.state == AT_BARRIER && t.barrier == id) push_back(w.order[j]);
    }
    if (id == 0) count(counters.barriers);
}

// Barrier 0 is __syncthreads; others are PTX's "bar.sync id, count", which name their count.
int barrier(int id, int num_threads, bool vote, Site site) {
    if (!now.kernel) fail(site, "barrier outside a kernel");
    Worker& w = *me;
    Barrier& b = w.barriers[id];
    if (id && (num_threads % 32 || (b.arrived && b.count != num_threads)))
        fail(site, "bar.sync %d: bad thread count %d", id, num_threads);
    Thread& t = w.threads[w.current];
    t.state = AT_BARRIER;
    t.barrier = (uint8_t)id;
    t.site = site;
    b.count = num_threads;
    b.votes += vote;
    b.arrived++;
    if (b.arrived == (id ? num_threads : w.alive)) release(id);
    wait_here();
    return b.result;                          // stays until the last thread has left this barrier
}

// === 8. Warp operations ========================================================================
// Do all lanes of the mask wait for the same operation? Then lanes[] points to their operands.
static bool warp_complete(void* lanes[32], const Thread& t, int first_lane) {
    Worker& w = *me;
    if ((w.at_warp_op[first_lane / 32] & t.mask) != t.mask) return false;
    for (int l = 0; l < 32; l++) {
        if (!(t.mask >> l & 1)) continue;
        const Thread& o = w.threads[first_lane + l];
        if (o.mask != t.mask || o.site.line != t.site.line) return false;
        if (o.op != t.op && strcmp(o.op, t.op)) return false;
        lanes[l] = o.operands;
    }
    return true;
}

void warp_op(const char* op, unsigned mask, void* operands, WarpFn fn, bool aligned, Site site) {
    if (!now.kernel) fail(site, "%s outside a kernel", op);
    Worker& w = *me;
    Thread& t = w.threads[w.current];
    int lane = w.current % 32, first = w.current - lane;
    if (w.num - first < 32) mask &= (1u << (w.num - first)) - 1;          // lanes that do not exist
    if (!(mask >> lane & 1))
        fail(site, "%s: the calling lane %d is not in its own mask %08x", op, lane, mask);
    if (aligned && mask != ~0u) fail(site, "%s needs all 32 lanes of the warp", op);
    t.state = AT_WARP_OP;
    t.op = op, t.mask = mask, t.operands = operands, t.site = site;
    if (race_event) t.pc = __builtin_return_address(0);
    w.at_warp_op[first / 32] |= 1u << lane;
    void* lanes[32] = {};
    if (warp_complete(lanes, t, first)) {
        if (fn) fn(lanes, mask);
        count(counters.warp_ops);
        w.at_warp_op[first / 32] &= ~mask;
        for (int l = 31; l >= 0; l--) {
            if (!(mask >> l & 1)) continue;
            w.threads[first + l].syncwarps += !fn;        // only __syncwarp orders memory
            if (l != lane || w.uniform) push_front(first + l);
        }
        if (!w.uniform) {                                 // the last lane simply goes on
            t.state = READY;
            now.syncwarps = t.syncwarps;
            return;
        }
    }
    wait_here();
}

int lane_id() { return me->current % 32; }
void act_as(int lane) {
    int warp = me->current / 32 * 32;
    now.thread = (uint16_t)(lane < 0 ? me->current : warp + lane);
    now.pc = lane < 0 ? nullptr : me->threads[warp + lane].pc;
}
void fence() { if (now.kernel) tell_race(RACE_FENCE, nullptr, 0); }

// === 9. Shared memory ==========================================================================
// One arena per worker. Each variable lies exactly at its declared alignment and no better (a
// kernel that relies on more than it declared must fail here), between red zones, full of NaNs.
// ASan poisons the red zones; otherwise they hold a pattern that is checked when the block ends.
constexpr int RED_BYTES = 64;
constexpr char RED = (char)0xfd;

static char* place(const char* name, size_t bytes, size_t align) {
    Worker& w = *me;
    size_t room = bytes + 3 * align + 3 * RED_BYTES;
    if (w.arena_top + room > w.arena + ARENA_BYTES)
        fail(nowhere, "too much shared memory at %s", name);
    ASAN_UNPOISON_MEMORY_REGION(w.arena_top, room);
    size_t twice = 2 * align;                 // p is align modulo this
    uintptr_t even = ((uintptr_t)w.arena_top + RED_BYTES + twice - 1) / twice * twice;
    char* p = (char*)(even + align);
    memset(w.arena_top, RED, p - w.arena_top);
    memset(p, 0xff, bytes);
    memset(p + bytes, RED, RED_BYTES);
    w.arena_top = p + bytes;
    ASAN_POISON_MEMORY_REGION(p - RED_BYTES, RED_BYTES);
    ASAN_POISON_MEMORY_REGION(p + bytes, 2 * align + 3 * RED_BYTES);
    ASAN_UNPOISON_MEMORY_REGION(p, bytes);
    tell_race(RACE_ALLOCATED, p, bytes);
    w.variables.push_back({name, p, bytes});
    return p;
}
static void need_kernel(const char* name, Site site) {
    if (now.kernel) return;
    fail(site, "__shared__ %s outside of a kernel (not emulated: declared outside of a function)",
         name);
}
void* shared_static(const char* name, size_t bytes, size_t align, Site site) {
    need_kernel(name, site);
    me->static_bytes += bytes;
    if (me->static_bytes > 48 << 10)
        fail(nowhere, "static __shared__ memory exceeds 48 KB at %s: use dynamic memory", name);
    return place(name, bytes, align);
}
void* shared_dynamic(const char* name, size_t align, Site site) {
    need_kernel(name, site);
    Worker& w = *me;
    if (!w.dynamic)
        w.dynamic = place(name, w.kernel->config.shared_bytes, std::max(align, (size_t)16));
    return w.dynamic;
}

static void shared_begin(Worker& w) {
    w.serial++;
    w.variables.clear();
    w.static_bytes = 0;
    w.dynamic = nullptr;
    w.arena_top = w.arena + RED_BYTES;
    ASAN_UNPOISON_MEMORY_REGION(w.arena, 2 * RED_BYTES);
    memset(w.arena, RED, 2 * RED_BYTES);
    ASAN_POISON_MEMORY_REGION(w.arena, ARENA_BYTES);
}
static void shared_end(Worker& w) {           // were the red zones written?
#ifndef __SANITIZE_ADDRESS__
    w.variables.push_back({"", w.arena_top + RED_BYTES, 0});              // after the last one
    const char* end = w.arena;
    const char* after = "the start of shared memory";
    for (const Variable& v : w.variables) {
        for (const char* c = end; c < v.p; c++)
            if (*c != RED)
                fail(nowhere, "out-of-bounds shared write, %td bytes after %s", c - end, after);
        end = v.p + v.bytes;
        after = v.name;
    }
#endif
    (void)w;
}

uint64_t block_serial() { return me ? me->serial : ~0ull; }
bool is_shared(const void* p, size_t bytes) {
    for (const Variable& v : me->variables)
        if ((char*)p >= v.p && (char*)p + bytes <= v.p + v.bytes) return true;
    return false;
}
size_t to_shared(const void* p) {
    if (!is_shared(p, 0)) fail(nowhere, "__cvta_generic_to_shared of %p: not shared memory", p);
    return (char*)p - me->arena;
}
char* from_shared(size_t address) { return me->arena + address; }

// === 10. ldmatrix, cp.async ====================================================================
// ldmatrix reads 8 rows of 16 bytes in one cycle if they lie in 8 different groups of 4 banks.
void count_ldmatrix(void* const rows[32], int num_rows) {
    count(counters.ldmatrix);
    for (int i = 0; i < num_rows; i += 8) {
        int in_group[8] = {}, worst = 0;
        for (int j = i; j < i + 8; j++) {
            if (std::find(rows + i, rows + j, rows[j]) != rows + j) continue;     // a broadcast
            worst = std::max(worst, ++in_group[(uintptr_t)rows[j] / 16 % 8]);
        }
        count(counters.ldmatrix_phases);
        count(counters.ldmatrix_conflicts, worst - 1);
    }
}

// The copy happens as late as the program allows, at its wait_group: a missing wait leaves NaN or
// old data. Under EMU_SHUFFLE a quarter happens at once, as early as the program allows: a buffer
// that somebody still reads is overwritten.
static void do_copy(const Copy& c) {
    if (c.src == c.dst) return;               // done already
    memcpy(c.dst, c.src, c.src_bytes);
    memset((char*)c.dst + c.src_bytes, 0, c.bytes - c.src_bytes);
}
void cp_async(void* dst, const void* src, int bytes, int src_bytes, Site site) {
    if (!now.kernel) fail(site, "cp.async outside a kernel");
    if (bytes != 4 && bytes != 8 && bytes != 16) fail(site, "cp.async of %d bytes", bytes);
    if (src_bytes < 0 || src_bytes > bytes)
        fail(site, "cp.async with source size %d of %d", src_bytes, bytes);
    if ((uintptr_t)dst % bytes || (src_bytes && (uintptr_t)src % bytes))
        fail(site, "cp.async of %d bytes: misaligned (shared %p, global %p)", bytes, dst, src);
    if (!is_shared(dst, bytes))
        fail(site, "cp.async: destination is not inside one shared variable");
    if (src_bytes && !in_heap(src, src_bytes))
        fail(site, "cp.async: source %p is not device memory", src);
#ifdef __SANITIZE_ADDRESS__
    if (src_bytes && __asan_region_is_poisoned((void*)src, src_bytes))
        fail(site, "cp.async: source %p is out of bounds", src);
#endif
    const void* pc = __builtin_return_address(0);
    tell_race(RACE_ASYNC_START, dst, bytes, pc);
    if (src_bytes) tell_race(RACE_READ, src, src_bytes, pc);
    Thread& t = me->threads[me->current];
    Copy c{dst, src, bytes, src_bytes, t.copy_group};
    if (options.shuffle && random_below(4) == 0) {
        do_copy(c);
        c.src = c.dst;
    }
    t.copies.push_back(c);
    count(counters.cp_async);
}
void cp_async_commit() { me->threads[me->current].copy_group++; }
void cp_async_wait(int pending_groups) {      // all but the newest pending_groups must be complete
    Thread& t = me->threads[me->current];
    std::vector<Copy> later;
    for (const Copy& c : t.copies) {
        if (c.group + pending_groups >= t.copy_group) {
            later.push_back(c);
            continue;
        }
        do_copy(c);
        tell_race(RACE_ASYNC_DONE, c.dst, c.bytes);
    }
    t.copies.swap(later);
}

// === 11. Running a kernel ======================================================================
static void run_block(Worker& w, const Kernel& k, uint32_t block) {
    dim3 g = k.config.grid, d = k.config.block;
    blockIdx = {block % g.x, block / g.x % g.y, block / g.x / g.y};
    blockDim = d;
    gridDim = g;
    random_state = options.seed ^ ((uint64_t)k.launch << 32 | block) * 0xd1342543de82ef95ull;
    w.kernel = &k;
    w.num = w.alive = d.x * d.y * d.z;
    w.started = w.head = w.num_ready = 0;
    for (int i = 0; i < w.num; i++) {
        Thread& t = w.threads[i];
        t.index = {i % d.x, i / d.x % d.y, i / d.x / d.y};
        t.state = UNSTARTED;
        t.copy_group = t.syncwarps = 0;
        w.order[i] = i;
    }
    // Two random schedules: uniform alone lets all warps advance together and hides real races.
    w.uniform = options.shuffle && random_below(2);
    if (w.uniform) shuffle(w.order, w.num);
    else if (options.shuffle) shuffle_warps(w);
    memset(w.barriers, 0, sizeof w.barriers);
    memset(w.at_warp_op, 0, sizeof w.at_warp_op);
    now.kernel = true;
    now.launch = k.launch;
    now.block = block;
    now.name = k.name;
    shared_begin(w);
    jump(&w.main, w.running = get_fiber());
    shared_end(w);
    now.kernel = false;
}

static Worker* worker(int id) {
    static Worker* all[MAX_WORKERS];
    if (all[id]) return all[id];
    Worker* w = new Worker{};
    w->id = id;
    w->arena = arenas.base + (size_t)id * ARENA_BYTES;
    set_access(w->arena, w->arena + ARENA_BYTES, true);
    catch_bad_addresses();
    pthread_attr_t attr;                      // ASan wants the bounds of the worker's own stack
    void* low;
    pthread_getattr_np(pthread_self(), &attr);
    pthread_attr_getstack(&attr, &low, &w->main.size);
    pthread_attr_destroy(&attr);
    w->main.stack = (char*)low;
    return all[id] = w;
}

void run_kernel(Kernel k) {
    static uint32_t launches;
    int workers = options.workers;
    if (workers < 1 || workers > MAX_WORKERS) fail(nowhere, "EMU_WORKERS: 1 to %d", MAX_WORKERS);
    if (workers > 1 && race_event) fail(nowhere, "EMU_WORKERS: the race build runs on one worker");
    k.launch = ++launches;
    HostAccess open;
    uint32_t blocks = k.config.grid.x * k.config.grid.y * k.config.grid.z;
    std::vector<int> order(blocks);
    for (uint32_t i = 0; i < blocks; i++) order[i] = i;
    random_state = options.seed ^ k.launch;
    if (options.shuffle) shuffle(order.data(), blocks);
    if (workers == 1) {
        me = worker(0);
        for (int block : order) run_block(*me, k, block);
        return;
    }
    #pragma omp parallel num_threads(workers)
    {
        me = worker(omp_get_thread_num());
        #pragma omp for schedule(dynamic, 1)
        for (uint32_t i = 0; i < blocks; i++) run_block(*me, k, order[i]);
    }
}
} // namespace emu
