// engine.h: what the emulator's own .cpp files share. A .cu sees only cuda_host.h.
//
//   engine.cpp    runs a kernel: threads as fibers, barriers, warp operations, shared memory
//   runtime.cpp   cudaXxx: streams, events, graphs, the device heap
//   blas.cpp      cuBLAS and cuBLASLt          nccl.cpp   NCCL over MPI
//   race.cpp      the race checker, linked in the race build only
//
// These files are never compiled with -fsanitize=thread: the checker must not check itself.
#pragma once
#include "cuda_host.h"
#include <deque>
#include <memory>
#include <string>
#include <vector>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)0)
#endif

// Our globals must exist before the program's own, whose constructors may already call us.
#define EMU_FIRST __attribute__((init_priority(200)))

namespace emu {

// Settings, from environment variables (README.md lists them).
struct Options {
    int workers;                              // OS threads that run blocks
    int strict;                               // 1: divergent barriers, 2: also after an exit
    bool shuffle, lazy, protect;              // random schedules, late streams, closed heap
    uint64_t seed;
};
extern Options options;
uint64_t env_number(const char* name, uint64_t otherwise);
uint64_t random_bits();                       // of the schedule that runs now
extern thread_local uint64_t random_state;

// The CUDA thread that runs now, for the race checker and for reports.
struct Now {
    bool kernel;                              // false: host code
    uint32_t launch, block;                   // number of the launch, linear number of the block
    uint32_t barriers, syncwarps;             // how many of each this thread has passed
    uint16_t thread;
    const char* name;                         // of the kernel
    const void* pc;                           // race mode: instead of the accessing instruction
};
extern thread_local Now now;

struct Kernel { const char* name; Config config; Site site; Closure body; uint32_t launch; };
void run_kernel(Kernel k);                    // all blocks, to the end

// Memory regions: one reserved range of addresses each, so that "what is this?" is two compares.
struct Region {
    char *base, *top, *end;                   // [base, top) is in use
    bool holds(const void* p) const { return (char*)p >= base && (char*)p < end; }
};
extern Region heap, arenas, stacks;           // device memory, shared memory, threads' stacks
Region reserve(size_t bytes);
void set_access(char* from, char* to, bool usable);
bool kernel_may_touch(const void* p);         // memory of a thread's own: stack, arguments, globals

// The device heap (runtime.cpp).
bool in_heap(const void* p, size_t bytes);
void check_device_range(const char* what, const void* p, size_t bytes);   // in one live allocation
bool is_managed(const void* p);
bool is_pinned(const void* p);                            // a kernel may touch it, too
void mark_written(const void* p, size_t bytes);
struct HostAccess { HostAccess(); ~HostAccess(); };   // opens the heap to library code
void run_all_streams();                               // what late streams still hold back
extern const char* operation;                 // the stream operation that runs now, for reports

// The race checker's one entry. Weak: null unless race.cpp is linked.
enum RaceEvent { RACE_ALLOCATED, RACE_FREED, RACE_WRITTEN, RACE_READ, RACE_LIBRARY_READ,
                 RACE_ASYNC_START, RACE_ASYNC_DONE, RACE_FENCE };
__attribute__((weak)) void race_event(RaceEvent what, const void* p, size_t bytes, const void* pc);
inline void tell_race(RaceEvent what, const void* p, size_t bytes, const void* pc = nullptr) {
    if (race_event) race_event(what, p, bytes, pc);
}
inline void check_read(const void* p, size_t bytes) { tell_race(RACE_LIBRARY_READ, p, bytes); }
} // namespace emu
