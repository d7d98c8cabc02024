// runtime.cpp: the CUDA runtime API: device memory, streams, events, graphs.
//
// Every operation of a stream (kernel, copy, memset, GEMM, NCCL call, event) is a closure.
// Normally it runs at once. Under EMU_LAZY=seed it waits in its stream's queue until something
// synchronises with it, as a slow GPU would have it: then a missing event or wait shows as a wrong
// result. While a stream captures, closures are appended to a graph; launching the graph replays
// them.
//
// Device memory is one reserved range. Allocations are 256-byte aligned like CUDA's, with red zones
// behind them, filled with 0xff (NaN) when allocated and when freed: on a GPU fresh memory is often
// zero by luck.
//
// To add a call: write it in the section of its kind below, with the header's exact signature.
// Calls that no section has are link errors; build.sh prints them as "FILE:LINE: ... not emulated".
//
// Contents:  1 errors   2 launches   3 streams and graphs   4 device heap   5 memory calls
//            6 stream, event and graph calls   7 device calls   8 the report at exit
#include "engine.h"
#include <chrono>
#include <cstdio>
#include <map>

using emu::Closure;
struct CUgraph_st { std::vector<Closure> operations; };
struct CUgraphExec_st { std::vector<Closure> operations; };
struct Operation { uint64_t serial; Closure run; };         // serial: order of issue, all streams
struct CUstream_st {
    std::deque<Operation> queue;              // under EMU_LAZY: issued and not yet done
    uint64_t issued = 0, done = 0;            // operations are numbered by these
    bool blocking = true;                     // false: cudaStreamNonBlocking
    CUgraph_st* capture = nullptr;
    CUstream_st* older = nullptr;             // never freed: events may name a destroyed stream
};
struct CUevent_st {
    CUstream_st* stream = nullptr;            // recorded there,
    uint64_t ticket = 0;                      // after that many operations
    double ms = 0;
    CUgraph_st* capture = nullptr;
};

namespace emu {
static double now_ms() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

// === 1. Errors =================================================================================
static cudaError_t last_error;
cudaError_t error(cudaError_t e) { return last_error = e; }

// A call that CUDA answers with an error: say why, once, where the program may not.
static cudaError_t refuse(cudaError_t e, const char* fmt, const char* name, long value) {
    if (getenv("EMU_VERBOSE")) fprintf(stderr, fmt, name, value);
    return error(e);
}

// === 2. Launches ===============================================================================
EMU_FIRST static std::map<std::string, int> max_shared;     // kernel -> dynamic bytes allowed
struct Time { long launches = 0; double ms = 0; };
EMU_FIRST static std::map<std::string, Time> profile;

// The kernel's name as a key: k<64, 4>, (k<64,4>) and (const void*)k<64, 4> are the same.
static std::string plain_name(std::string s) {
    for (const char* cast : {"reinterpret_cast<const void*>", "(const void*)", "(void*)"})
        if (s.compare(0, strlen(cast), cast) == 0) s.erase(0, strlen(cast));
    std::string out;
    for (char c : s) if (!strchr(" ()&", c)) out += c;
    return out;
}

static cudaError_t check_launch(const char* name, const Config& c) {
    dim3 b = c.block, g = c.grid;
    uint64_t threads = (uint64_t)b.x * b.y * b.z;
    if (!threads || threads > 1024 || b.z > 64)
        return refuse(cudaErrorInvalidConfiguration, "emu: %s: block of %ld threads\n", name,
                      (long)threads);
    if (!g.x || !g.y || !g.z || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
        return refuse(cudaErrorInvalidConfiguration, "emu: %s: grid size, x = %ld\n", name, g.x);
    auto it = max_shared.find(plain_name(name));
    size_t limit = it == max_shared.end() ? 48 << 10 : it->second;
    if (c.shared_bytes > limit && it == max_shared.end() && !max_shared.empty())
        fprintf(stderr, "emu: %s: cudaFuncSetAttribute must spell it as the launch does\n", name);
    if (c.shared_bytes > limit)
        return refuse(cudaErrorInvalidValue, "emu: %s: more than %ld bytes of dynamic shared "
                      "memory\n", name, (long)limit);
    return cudaSuccess;
}

void launch(const char* name, Config c, Site site, Closure body) {
    if (now.kernel) fail(site, "a kernel launches a kernel: not emulated");
    if (check_launch(name, c) != cudaSuccess) return;
    count(counters.launches);
    enqueue(c.stream, name, [k = Kernel{name, c, site, std::move(body), 0}] {
        double start = now_ms();
        run_kernel(k);
        Time& t = profile[k.name];
        t.launches++;
        t.ms += now_ms() - start;
    });
}

cudaError_t func_set_attribute(const char* name, cudaFuncAttribute a, int value) {
    if (a != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;    // hints
    if (value > 227 << 10)
        return refuse(cudaErrorInvalidValue, "emu: %s: %ld bytes of shared memory\n", name, value);
    max_shared[plain_name(name)] = value;
    return cudaSuccess;
}

// === 3. Streams and graphs =====================================================================
const char* operation = "?";
EMU_FIRST static CUstream_st legacy;                    // stream 0
EMU_FIRST static std::vector<CUstream_st*> streams;     // the others that live
static CUstream_st* newest_stream;                      // head of the list of all there ever were

static CUstream_st* stream_of(cudaStream_t s) { return (uintptr_t)s <= 2 ? &legacy : s; }

// Late streams draw their own random numbers, so that kernels' schedules do not depend on them.
static size_t random_stream(size_t n) {
    static uint64_t state = options.seed;
    std::swap(state, random_state);
    size_t r = random_bits() % n;
    std::swap(state, random_state);
    return r;
}

static void run_until(CUstream_st* s, uint64_t ticket) {
    while (s->done < ticket) {
        Operation next = std::move(s->queue.front());
        s->queue.pop_front();
        s->done++;
        next.run();
    }
}

// Run everything, one operation of some stream after the other. A program that forgot to order two
// streams works when they run in order of issue, so mostly take what was issued last.
static void run_all() {
    for (;;) {
        std::vector<CUstream_st*> busy;
        if (!legacy.queue.empty()) busy.push_back(&legacy);
        for (auto* s : streams) if (!s->queue.empty()) busy.push_back(s);
        if (busy.empty()) return;
        CUstream_st* s = busy[random_stream(busy.size())];
        if (random_stream(8))
            for (auto* o : busy) if (o->queue.front().serial > s->queue.front().serial) s = o;
        run_until(s, s->done + 1);
    }
}
void run_all_streams() { run_all(); }
static void push(CUstream_st* s, Closure op) {
    static uint64_t serial;
    s->issued++;
    s->queue.push_back({serial++, std::move(op)});
}
static void push_wait(CUstream_st* s, CUstream_st* other) {
    push(s, [other, ticket = other->issued] { run_until(other, ticket); });
}

void enqueue(cudaStream_t handle, const char* what, Closure work) {
    CUstream_st* s = stream_of(handle);
    auto op = [what, work = std::move(work)] { operation = what; work(); };
    if (s->capture) return s->capture->operations.push_back(op);
    if (!options.lazy) return op();
    // The legacy stream and blocking streams wait for each other.
    if (s == &legacy) { for (auto* o : streams) if (o->blocking) push_wait(s, o); }
    else if (s->blocking) push_wait(s, &legacy);
    push(s, op);
    if (random_stream(8)) return;                       // and sometimes the device is quick:
    size_t i = random_stream(streams.size() + 1);       // some stream does one operation
    CUstream_st* o = i ? streams[i - 1] : &legacy;
    if (o->done < o->issued) run_until(o, o->done + 1);
}

static bool capturing() {
    for (auto* s : streams) if (s->capture) return true;
    return false;
}
// The first line of every call that CUDA forbids while a stream captures.
#define NOT_WHILE_CAPTURING if (capturing()) return error(cudaErrorStreamCaptureUnsupported)

// === 4. Device heap ============================================================================
using Ranges = std::map<char*, size_t>;                 // start -> bytes
EMU_FIRST static Ranges live, managed, pinned;
EMU_FIRST static std::multimap<size_t, char*> freed;    // room -> start
static size_t in_use, peak;
constexpr char RED = (char)0xfd;
static size_t room_for(size_t bytes) { return (bytes + 256 + 255) / 256 * 256; }   // with red zone

static bool inside(const Ranges& r, const void* p, size_t bytes) {
    auto it = r.upper_bound((char*)p);
    if (it == r.begin()) return false;
    --it;
    return (char*)p + bytes <= it->first + it->second;
}
bool in_heap(const void* p, size_t bytes) {
    return (char*)p >= heap.base && (char*)p + bytes <= heap.top;
}
bool is_managed(const void* p) { return inside(managed, p, 1); }
bool is_pinned(const void* p) { return inside(pinned, p, 1); }
void check_device_range(const char* what, const void* p, size_t bytes) {
    if (!inside(live, p, bytes))
        fail(nowhere, "%s: [%p, +%zu) is not inside one device allocation", what, p, bytes);
}
void mark_written(const void* p, size_t bytes) {
    if (in_heap(p, bytes)) tell_race(RACE_WRITTEN, p, bytes);
}

// EMU_PROTECT=1 closes the heap while host code runs: a host pointer error faults, as on a GPU.
static int users;
static void set_heap_open(bool open) {
    if (options.protect && heap.top > heap.base) set_access(heap.base, heap.top, open);
    if (!open) for (auto& m : managed) set_access(m.first, m.first + m.second, true);
}
HostAccess::HostAccess() { if (users++ == 0) set_heap_open(true); }
HostAccess::~HostAccess() { if (--users == 0) set_heap_open(false); }

static char* heap_alloc(size_t bytes) {
    HostAccess open;
    static const int fill = (int)env_number("EMU_FILL", 0xff);
    size_t room = room_for(bytes);
    auto old = freed.lower_bound(room);
    char* p;
    if (old != freed.end() && old->first == room && freed.size() > 64) {
        p = old->second;                                // reuse late: finds uses after cudaFree
        freed.erase(old);
    } else {
        if (heap.top == heap.base) heap.top += 4096;    // a red zone before the first
        p = heap.top;
        if (room > (size_t)(heap.end - p)) return nullptr;
        set_access(p, p + room, true);
        heap.top += room;
    }
    live[p] = bytes;
    in_use += bytes;
    peak = std::max(peak, in_use);
    ASAN_UNPOISON_MEMORY_REGION(p, room);
    memset(p, fill, bytes);
    memset(p + bytes, RED, room - bytes);
    ASAN_POISON_MEMORY_REGION(p + bytes, room - bytes);
    tell_race(RACE_ALLOCATED, p, bytes);
    return p;
}

static void check_red_zone(const char* p, size_t bytes) {
#ifndef __SANITIZE_ADDRESS__
    for (size_t i = bytes; i < room_for(bytes); i++)
        if (p[i] != RED)
            fail(nowhere, "out-of-bounds device write, %zu bytes after an allocation of %zu bytes",
                 i - bytes, bytes);
#endif
    (void)p, (void)bytes;
}
static void check_heap() {
    HostAccess open;
    for (auto& a : live) check_red_zone(a.first, a.second);
}

static void heap_free(char* p) {
    auto it = live.find(p);
    if (it == live.end()) fail(nowhere, "cudaFree of %p, which is not a live device allocation", p);
    HostAccess open;
    size_t bytes = it->second;
    check_red_zone(p, bytes);
    memset(p, 0xff, bytes);
    ASAN_POISON_MEMORY_REGION(p, room_for(bytes));
    tell_race(RACE_FREED, p, bytes);
    in_use -= bytes;
    live.erase(it);
    managed.erase(p);
    freed.insert({room_for(bytes), p});
}

static void check_copy(cudaMemcpyKind kind, void* dst, const void* src, size_t bytes) {
    bool to_device = heap.holds(dst), from_device = heap.holds(src);
    bool fits = kind == cudaMemcpyHostToDevice   ? to_device && !from_device
              : kind == cudaMemcpyDeviceToHost   ? !to_device && from_device
              : kind == cudaMemcpyDeviceToDevice ? to_device && from_device
              : kind == cudaMemcpyHostToHost     ? !to_device && !from_device : true;
    if (!fits && !is_managed(dst) && !is_managed(src))
        fail(nowhere, "cudaMemcpy: kind %d does not fit the pointers (dst is %s, src is %s memory)",
             (int)kind, to_device ? "device" : "host", from_device ? "device" : "host");
    if (to_device) check_device_range("cudaMemcpy destination", dst, bytes);
    if (from_device) check_device_range("cudaMemcpy source", src, bytes);
}

static void copy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t stream) {
    check_copy(kind, dst, src, bytes);
    // CUDA reads a pageable source before the call returns, a pinned one whenever it likes.
    std::shared_ptr<std::vector<char>> staged;
    bool from_host = !heap.holds(src), to_host = !heap.holds(dst);
    if (options.lazy && from_host && !inside(pinned, src, bytes))
        staged = std::make_shared<std::vector<char>>((const char*)src, (const char*)src + bytes);
    enqueue(stream, "cudaMemcpy", [=] {
        HostAccess open;
        if (!from_host) check_read(src, bytes);
        if (bytes) memmove(dst, staged ? staged->data() : src, bytes);
        mark_written(dst, bytes);
    });
    CUstream_st* s = stream_of(stream);
    if (!from_host && to_host && !inside(pinned, dst, bytes)) run_until(s, s->issued);
}
} // namespace emu
using namespace emu;

extern "C" {
cudaError_t cudaGetLastError() { cudaError_t e = last_error; last_error = cudaSuccess; return e; }
cudaError_t cudaPeekAtLastError() { return last_error; }
static const struct { cudaError_t code; const char *name, *text; } errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
};
const char* cudaGetErrorString(cudaError_t code) {
    for (auto& e : errors) if (e.code == code) return e.text;
    return "emulated CUDA error";
}
const char* cudaGetErrorName(cudaError_t code) {
    for (auto& e : errors) if (e.code == code) return e.name;
    return "emulated CUDA error";
}

// === 5. Memory calls ===========================================================================
cudaError_t cudaMalloc(void** p, size_t bytes) {
    NOT_WHILE_CAPTURING;
    *p = heap_alloc(bytes ? bytes : 1);
    return *p ? cudaSuccess : error(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* p) {
    NOT_WHILE_CAPTURING;
    if (!p) return cudaSuccess;
    run_all();                                          // cudaFree synchronises the device
    heap_free((char*)p);
    return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t) { return cudaMalloc(p, bytes); }
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
    if (p) enqueue(stream, "cudaFreeAsync", [=] { heap_free((char*)p); });
    return cudaSuccess;
}
cudaError_t cudaMallocManaged(void** p, size_t bytes, unsigned) {
    HostAccess open;                                    // closing leaves it open
    cudaError_t e = cudaMalloc(p, bytes);
    if (e == cudaSuccess) managed[(char*)*p] = bytes, mark_written(*p, bytes);   // host: unwatched
    return e;
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
    *p = malloc(bytes ? bytes : 1);
    if (!*p) return error(cudaErrorMemoryAllocation);
    pinned[(char*)*p] = bytes;
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) { return cudaMallocHost(p, bytes); }
cudaError_t cudaFreeHost(void* p) {
    run_all();
    if (p && !pinned.erase((char*)p)) fail(nowhere, "cudaFreeHost of %p, which is not pinned", p);
    free(p);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind k, cudaStream_t st) {
    copy(d, s, n, k, st);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind k) {
    NOT_WHILE_CAPTURING;
    count(counters.host_syncs);
    copy(d, s, n, k, nullptr);
    run_until(&legacy, legacy.issued);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* d, int value, size_t bytes, cudaStream_t stream) {
    check_device_range("cudaMemset", d, bytes);
    enqueue(stream, "cudaMemset", [=] {
        HostAccess open;
        memset(d, value, bytes);
        mark_written(d, bytes);
    });
    return cudaSuccess;
}
cudaError_t cudaMemset(void* d, int value, size_t bytes) {
    NOT_WHILE_CAPTURING;
    return cudaMemsetAsync(d, value, bytes, nullptr);
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    *total = heap.end - heap.base;
    *free_bytes = heap.end - heap.top;
    return cudaSuccess;
}
#if CUDART_VERSION >= 13000
using AdviseLocation = cudaMemLocation;
#else
using AdviseLocation = int;
#endif
cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, AdviseLocation) {
    return cudaSuccess;
}

// === 6. Stream, event and graph calls ==========================================================
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
    *s = new CUstream_st;
    (*s)->blocking = !(flags & cudaStreamNonBlocking);
    (*s)->older = newest_stream;
    newest_stream = *s;
    streams.push_back(*s);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithFlags(s, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned flags, int) {
    return cudaStreamCreateWithFlags(s, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    auto it = std::find(streams.begin(), streams.end(), s);
    if (it == streams.end()) fail(nowhere, "cudaStreamDestroy of %p: not a stream", (void*)s);
    run_until(s, s->issued);
    streams.erase(it);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    NOT_WHILE_CAPTURING;
    count(counters.host_syncs);
    CUstream_st* s = stream_of(handle);
    run_until(s, s->issued);
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
    CUstream_st* s = stream_of(handle);
    if (s->done == s->issued) return cudaSuccess;
    run_until(s, s->done + 1);                          // who polls must see an end
    return cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize() {
    NOT_WHILE_CAPTURING;
    count(counters.host_syncs);
    run_all();
    check_heap();
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* data) {
    enqueue(s, "host function", [=] { f(data); });
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
    *e = new CUevent_st;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    if (e->stream) run_until(e->stream, e->ticket);     // the queued record points to e
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t handle) {
    CUstream_st* s = stream_of(handle);
    e->capture = s->capture;
    if (e->capture) return cudaSuccess;                 // a graph keeps the order of its capture
    enqueue(handle, "event", [e] { e->ms = now_ms(); });
    e->stream = s;
    e->ticket = s->issued;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    NOT_WHILE_CAPTURING;
    count(counters.host_syncs);
    if (e->stream) run_until(e->stream, e->ticket);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    if (!e->stream || e->stream->done >= e->ticket) return cudaSuccess;
    run_until(e->stream, e->stream->done + 1);
    return cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
    for (cudaEvent_t e : {from, to}) {
        if (!e->stream) return error(cudaErrorInvalidResourceHandle);      // never recorded
        if (e->stream->done < e->ticket) return error(cudaErrorNotReady);
    }
    *ms = (float)(to->ms - from->ms);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t e, unsigned) {
    if (e->capture) stream_of(handle)->capture = e->capture;      // joins the capture
    else if (e->stream && options.lazy)
        enqueue(handle, "wait", [s = e->stream, t = e->ticket] { run_until(s, t); });
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
    if (stream_of(s) == &legacy) return error(cudaErrorStreamCaptureUnsupported);
    s->capture = new CUgraph_st;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
    if (!s->capture) return error(cudaErrorIllegalState);
    *graph = s->capture;
    for (auto* o : streams) if (o->capture == *graph) o->capture = nullptr;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
    bool active = stream_of(handle)->capture;
    *status = active ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* x, cudaGraph_t g, unsigned long long) {
    *x = new CUgraphExec_st{g->operations};
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s) {
    enqueue(s, "graph", [ops = x->operations] { for (const Closure& op : ops) op(); });
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) { delete g; return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x) { delete x; return cudaSuccess; }

// === 7. Device calls ===========================================================================
static int num_devices() {
    static const int n = (int)env_number("EMU_DEVICES", 8);
    return n;
}
static int device;
cudaError_t cudaSetDevice(int d) {
    if (d < 0 || d >= num_devices()) return error(cudaErrorInvalidDevice);
    device = d;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* d) { *d = device; return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* n) { *n = num_devices(); return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int d) {
    if (d < 0 || d >= num_devices()) return error(cudaErrorInvalidDevice);
    memset((void*)p, 0, sizeof *p);
    p->uuid.bytes[0] = (char)(env_number("EMU_FIRST_DEVICE", 0) + d);
    strcpy(p->name, "emulated device");
    p->major = 9;
    p->managedMemory = p->unifiedAddressing = p->concurrentKernels = p->canMapHostMemory = 1;
    p->multiProcessorCount = (int)env_number("EMU_SMS", 4);    // few: grids sized by it stay small
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = 227 << 10;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->totalGlobalMem = heap.end - heap.base;
    p->l2CacheSize = 50 << 20;
    for (int i = 0; i < 3; i++) {
        p->maxThreadsDim[i] = i < 2 ? 1024 : 64;
        p->maxGridSize[i] = i ? 65535 : 0x7fffffff;
    }
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr a, int) {
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, 0);
    switch (a) {
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    default:
        fprintf(stderr, "emu: cudaDeviceGetAttribute(%d) is not emulated\n", (int)a);
        return error(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}
cudaError_t cudaDeviceReset() { return cudaDeviceSynchronize(); }
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* v) { *v = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* v) { *v = CUDART_VERSION; return cudaSuccess; }
}

// === 8. The report at exit =====================================================================
static void report() {
    if (!getenv("EMU_PROFILE")) return;
    const Counters& c = counters;
    double total = 0;
    std::vector<std::pair<double, std::string>> by_time;
    for (auto& p : profile) {
        total += p.second.ms;
        by_time.push_back({p.second.ms, p.first});
    }
    std::sort(by_time.rbegin(), by_time.rend());
    fprintf(stderr, "emu: %ld launches, %.1f ms in kernels, %ld host synchronisations, "
                    "device memory peak %.1f MB\n", c.launches, total, c.host_syncs, peak / 1e6);
    fprintf(stderr, "emu: %ld barriers, %ld warp operations, of these %ld mma and %ld ldmatrix, "
                    "%ld cp.async\n", c.barriers, c.warp_ops, c.mma, c.ldmatrix, c.cp_async);
    if (c.ldmatrix_phases)
        fprintf(stderr, "emu: ldmatrix bank conflicts %.2f per 8-row phase\n",
                (double)c.ldmatrix_conflicts / c.ldmatrix_phases);
    for (auto& p : by_time)
        fprintf(stderr, "  %10.3f ms %7ld x %s\n", p.first, profile[p.second].launches,
                p.second.c_str());
}
static int at_exit = atexit(report);
