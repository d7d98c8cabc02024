// race.cpp: the race checker, linked only in the race build.
//
// clang compiles the .cu with -fsanitize=thread, which puts a call before every load and store. We
// do not link its library but the hooks of section 4 instead, and check each access of a kernel
// against a shadow of device and shared memory. Found are:
//   data races                    two threads, one writes, nothing orders them
//   reads of memory that was never written, accesses outside every allocation, misaligned vectors
//   cp.async destinations used before their wait
//   kernels that touch host memory, host code that touches device memory
//
// The shadow has one cell per 2 bytes, the smallest element that threads write on their own (bf16):
// the last write and two reads, each as {launch, block and thread, barriers passed, instruction}.
// Two accesses are ordered if a launch, a __syncthreads of their block or a __syncwarp of their
// warp lies between them; blocks of one launch, if the writer did __threadfence then an atomic, and
// the reader an atomic. Shuffles do not order memory (CUDA says so). There are no vector clocks, so
// named barriers and producer/consumer warps would give false reports.
//
// clang, not g++: GCC does not instrument a store whose value is a call's result, which then looks
// like memory never written. One worker only: the shadow is not locked.
//
// Contents:  1 shadow   2 reports   3 the check   4 hooks that the compiler calls
#include "engine.h"
#include <cstdio>
#include <map>
#include <set>
#include <sys/mman.h>
#include <unistd.h>

namespace emu {
namespace {

// === 1. Shadow =================================================================================
struct Access {
    uint32_t launch;
    uint32_t who;                             // block << 10 | thread
    uint32_t when;                            // barriers << 16 | syncwarps
    uint32_t pc;                              // instruction; the highest bit marks an atomic
    uint32_t block() const { return who >> 10; }
    uint32_t thread() const { return who & 1023; }
    uint32_t barriers() const { return when >> 16; }
    uint32_t syncwarps() const { return when & 0xffff; }
    bool is_atomic() const { return pc >> 31; }
    bool same_warp(const Access& o) const { return who / 32 == o.who / 32; }
};
struct Cell { Access write, read1, read2; uint8_t flags; };
enum { ALLOCATED = 1, WRITTEN = 2, ASYNC = 4 };             // ASYNC: a cp.async is in flight
constexpr size_t CELL_BYTES = 2;

Cell* shadow_of(const Region& r) {                          // zero pages, real only where touched
    size_t bytes = (r.end - r.base) / CELL_BYTES * sizeof(Cell);
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) fail(nowhere, "cannot reserve the shadow of the race checker");
    return (Cell*)p;
}
Cell* cell_of(const char* p) {                              // null: some other memory
    static Cell* const heap_cells = shadow_of(heap);
    static Cell* const arena_cells = shadow_of(arenas);
    if (heap.holds(p)) return heap_cells + (p - heap.base) / CELL_BYTES;
    if (arenas.holds(p)) return arena_cells + (p - arenas.base) / CELL_BYTES;
    return nullptr;
}

// Per block of the launch: has it published its writes (fence, then atomic), has it acquired?
enum { FENCED = 1, PUBLISHED = 2 };
std::vector<uint8_t> published, acquired;
uint32_t tables_launch;
void need_tables() {
    if (tables_launch == now.launch) return;
    tables_launch = now.launch;
    size_t blocks = (size_t)gridDim.x * gridDim.y * gridDim.z;
    published.assign(blocks, 0);
    acquired.assign(blocks, 0);
}

// === 2. Reports ================================================================================
// FILE:LINE of an instruction, by addr2line: the innermost inlined frame that is the program's own.
std::string line_of(uint32_t pc) {
    static std::map<uint32_t, std::string> known;
    pc &= 0x7fffffff;
    std::string& result = known[pc];
    if (!result.empty() || !pc) return result;
    char command[100], line[500];
    snprintf(command, sizeof command, "addr2line -ie /proc/%d/exe %x", (int)getpid(), pc - 1);
    FILE* f = popen(command, "r");
    while (f && fgets(line, sizeof line, f)) {
        std::string s(line);
        s.resize(std::min(s.find('\n'), s.find(" (disc")));
        result = s.substr(s.find_last_of('/') + 1);
        if (s.find("cuda_host.h") == s.npos && s.find("/c++/") == s.npos) break;
    }
    if (f) pclose(f);
    return result;
}

int num_reports;
void report(const std::string& what, const char* p, uint32_t pc, const Access* other = nullptr) {
    static std::set<std::string> seen;                      // one report per pair of lines
    if (!seen.insert(what.substr(0, 12) + line_of(pc) + (other ? line_of(other->pc) : "")).second)
        return;
    num_reports++;
    std::string by = now.kernel ? std::string("kernel ") + now.name : "host code or a library call";
    const char* where = arenas.holds(p) ? "shared" : heap.holds(p) ? "device" : "host";
    fprintf(stderr, "EMU RACE-CHECK: %s\n  %s memory %p, %s\n", what.c_str(), where, (void*)p,
            by.c_str());
    std::string line = line_of(pc);
    if (now.kernel)
        fprintf(stderr, "  block %u thread %u at %s\n", now.block, now.thread, line.c_str());
    else if (!line.empty()) fprintf(stderr, "  at %s\n", line.c_str());
    if (other)
        fprintf(stderr, "  block %u thread %u at %s\n", other->block(), other->thread(),
                line_of(other->pc).c_str());
}
int at_exit = atexit([] {
    if (!num_reports) return;
    fprintf(stderr, "EMU RACE-CHECK: %d report(s)\n", num_reports);
    fflush(stdout);
    _exit(98);
});

// === 3. The check ==============================================================================
// Is nothing between the earlier access a and the one that happens now?
bool unordered(const Access& a, const Access& me) {
    if (a.launch != me.launch || (a.is_atomic() && me.is_atomic())) return false;
    if (a.block() != me.block())
        return tables_launch != me.launch || published[a.block()] != (FENCED | PUBLISHED) ||
               !acquired[me.block()];
    if (a.thread() == me.thread() || a.barriers() != me.barriers()) return false;
    return !a.same_warp(me) || a.syncwarps() == me.syncwarps();
}

// Keep two reads that a later write may conflict with, of different warps if possible.
void remember_read(Cell& c, const Access& me) {
    bool old = c.read1.launch != me.launch || c.read1.who == me.who ||
               (c.read1.block() == me.block() && c.read1.barriers() != me.barriers());
    if (old) c.read1 = me;
    else if (c.read2.launch != me.launch || c.read2.who == me.who || c.read2.same_warp(c.read1))
        c.read2 = me;
}

void check_cell(Cell& c, const char* p, const Access& me, bool write) {
    static const bool check_init = !getenv("EMU_NO_INIT");
    uint32_t pc = me.pc & 0x7fffffff;
    if (c.flags & ASYNC) report("cp.async destination used before its wait_group", p, pc, &c.write);
    if (!write && !(c.flags & WRITTEN) && check_init) {
        report("read of memory that was never written", p, pc);
        c.flags |= WRITTEN;                                 // once is enough
    }
    // Lanes of a warp that store by the same instruction: one wins, which kernels may rely on.
    bool same_store = write && (c.write.pc & 0x7fffffff) == pc && c.write.same_warp(me);
    if (!same_store && unordered(c.write, me))
        report(write ? "data race: write after unsynchronised write"
                     : "data race: read after unsynchronised write", p, pc, &c.write);
    if (!write) return remember_read(c, me);
    for (const Access* read : {&c.read1, &c.read2}) {
        if (!unordered(*read, me)) continue;
        report("data race: write after unsynchronised read", p, pc, read);
        break;
    }
    c.write = me;
    c.flags |= WRITTEN;
    c.read1.launch = c.read2.launch = 0;
}

void access(const void* address, size_t bytes, bool write, bool atomic, const void* caller) {
    const char* p = (const char*)address;
    if (now.pc) caller = now.pc;                            // somebody else's access: act_as()
    uint32_t pc = (uint32_t)(uintptr_t)caller;              // 32 bits: linked with -no-pie
    Cell* c = cell_of(p);
    if (!c) {
        if (now.kernel && !kernel_may_touch(p) && !is_pinned(p))
            report("kernel accesses host memory", p, pc);
        return;
    }
    if (!now.kernel) {
        if (!is_managed(p)) report("host code accesses device memory", p, pc);
        return;
    }
    if (bytes <= 16 && !(bytes & (bytes - 1)) && (uintptr_t)p % bytes)
        report("misaligned " + std::to_string(bytes) + "-byte access", p, pc);
    if (atomic) {
        need_tables();
        if (published[now.block] & FENCED) published[now.block] |= PUBLISHED;
        acquired[now.block] = 1;
    }
    Access me{now.launch, now.block << 10 | now.thread,
              now.barriers << 16 | (now.syncwarps & 0xffff),
              (pc & 0x7fffffff) | (uint32_t)atomic << 31};
    for (Cell* end = c + (bytes + CELL_BYTES - 1) / CELL_BYTES; c < end; c++, p += CELL_BYTES) {
        if (!(c->flags & ALLOCATED))
            return report(write ? "out-of-bounds write (or of freed memory)"
                                : "out-of-bounds read (or of freed memory)", p, pc);
        check_cell(*c, p, me, write);
    }
}

// Library calls (GEMM, copies, NCCL) run outside of kernels: is the memory allocated and written?
void library_read(const char* p, Cell* c, Cell* end) {
    for (; c < end; c++, p += CELL_BYTES) {
        if ((c->flags & ALLOCATED) && (c->flags & WRITTEN)) continue;
        if ((c->flags & ALLOCATED) && getenv("EMU_NO_INIT")) continue;
        std::string what = c->flags & ALLOCATED ? "never written" : "out of bounds";
        return report(what + ": memory read by " + operation, p, 0);
    }
}
} // namespace

void race_event(RaceEvent what, const void* address, size_t bytes, const void* pc) {
    if (what == RACE_FENCE) {
        need_tables();
        published[now.block] |= FENCED;
        return;
    }
    Cell* c = cell_of((const char*)address);
    if (!c) return;
    Cell* end = c + (bytes + CELL_BYTES - 1) / CELL_BYTES;
    switch (what) {
    case RACE_READ: return access(address, bytes, false, false, pc);
    case RACE_LIBRARY_READ: return library_read((const char*)address, c, end);
    case RACE_ASYNC_START:
        access(address, bytes, true, false, pc);
        for (; c < end; c++) c->flags |= ASYNC;
        return;
    case RACE_ASYNC_DONE:                                   // the write happens now, in its thread
        pc = (void*)(uintptr_t)c->write.pc;
        for (Cell* x = c; x < end; x++) x->flags &= ~ASYNC;
        return access(address, bytes, true, false, pc);
    case RACE_WRITTEN:
        for (; c < end; c++) c->flags |= WRITTEN;
        return;
    case RACE_ALLOCATED: case RACE_FREED:
        if (what == RACE_ALLOCATED && arenas.holds(address)) c[-1].flags = end->flags = 0;
        for (; c < end; c++) {
            c->flags = what == RACE_ALLOCATED ? ALLOCATED : 0;
            c->write.launch = c->read1.launch = c->read2.launch = 0;
        }
        return;
    case RACE_FENCE: return;
    }
}
} // namespace emu

// === 4. Hooks that the compiler calls ==========================================================
using emu::access;
#define HOOK extern "C" __attribute__((used))
#define CALLER __builtin_return_address(0)
#define PLAIN(name, n) \
    HOOK void __tsan_##name##read##n(void* p) { access(p, n, false, false, CALLER); } \
    HOOK void __tsan_##name##write##n(void* p) { access(p, n, true, false, CALLER); }
#define PLAIN_ALL(n) PLAIN(, n) PLAIN(unaligned_, n) PLAIN(volatile_, n)
PLAIN_ALL(1) PLAIN_ALL(2) PLAIN_ALL(4) PLAIN_ALL(8) PLAIN_ALL(16)
HOOK void __tsan_read_range(void* p, size_t n) { access(p, n, false, false, CALLER); }
HOOK void __tsan_write_range(void* p, size_t n) { access(p, n, true, false, CALLER); }

// clang 14 leaves memcpy and its like alone: build.sh renames them in the .cu's object.
HOOK void* __tsan_memcpy(void* to, const void* from, size_t n) {
    access(from, n, false, false, CALLER);
    access(to, n, true, false, CALLER);
    return memcpy(to, from, n);
}
HOOK void* __tsan_memmove(void* to, const void* from, size_t n) {
    access(from, n, false, false, CALLER);
    access(to, n, true, false, CALLER);
    return memmove(to, from, n);
}
HOOK void* __tsan_memset(void* to, int value, size_t n) {
    access(to, n, true, false, CALLER);
    return memset(to, value, n);
}

HOOK void __tsan_init() {}
HOOK void __tsan_func_entry(void*) {}
HOOK void __tsan_func_exit() {}
HOOK void __tsan_vptr_update(void**, void*) {}
HOOK void __tsan_vptr_read(void**) {}
HOOK void __tsan_atomic_thread_fence(int) {}
HOOK void __tsan_atomic_signal_fence(int) {}

// Atomics are replaced by calls, so they must also do the work.
#define ORDER __ATOMIC_SEQ_CST
#define ATOMIC_HOOK(T, name, write, parameters, work) \
    HOOK T name parameters { access((void*)p, sizeof *p, write, true, CALLER); work; }
#define SWAP __atomic_compare_exchange_n(p, expected, v, false, ORDER, ORDER)
#define ATOMIC_HOOKS(bits, T) \
    ATOMIC_HOOK(T, __tsan_atomic##bits##_load, false, (const volatile T* p, int), \
                return __atomic_load_n(p, ORDER)) \
    ATOMIC_HOOK(void, __tsan_atomic##bits##_store, true, (volatile T* p, T v, int), \
                __atomic_store_n(p, v, ORDER)) \
    ATOMIC_HOOK(T, __tsan_atomic##bits##_exchange, true, (volatile T* p, T v, int), \
                return __atomic_exchange_n(p, v, ORDER)) \
    ATOMIC_HOOK(T, __tsan_atomic##bits##_fetch_add, true, (volatile T* p, T v, int), \
                return __atomic_fetch_add(p, v, ORDER)) \
    ATOMIC_HOOK(T, __tsan_atomic##bits##_fetch_sub, true, (volatile T* p, T v, int), \
                return __atomic_fetch_sub(p, v, ORDER)) \
    ATOMIC_HOOK(T, __tsan_atomic##bits##_fetch_and, true, (volatile T* p, T v, int), \
                return __atomic_fetch_and(p, v, ORDER)) \
    ATOMIC_HOOK(T, __tsan_atomic##bits##_fetch_or, true, (volatile T* p, T v, int), \
                return __atomic_fetch_or(p, v, ORDER)) \
    ATOMIC_HOOK(T, __tsan_atomic##bits##_fetch_xor, true, (volatile T* p, T v, int), \
                return __atomic_fetch_xor(p, v, ORDER)) \
    ATOMIC_HOOK(int, __tsan_atomic##bits##_compare_exchange_strong, true, \
                (volatile T* p, T* expected, T v, int, int), return SWAP) \
    ATOMIC_HOOK(int, __tsan_atomic##bits##_compare_exchange_weak, true, \
                (volatile T* p, T* expected, T v, int, int), return SWAP) \
    ATOMIC_HOOK(T, __tsan_atomic##bits##_compare_exchange_val, true, \
                (volatile T* p, T c, T v, int, int), T* expected = &c; SWAP; return c)
ATOMIC_HOOKS(8, uint8_t)
ATOMIC_HOOKS(16, uint16_t)
ATOMIC_HOOKS(32, uint32_t)
ATOMIC_HOOKS(64, uint64_t)
