// nccl.cpp: NCCL over MPI: one process is one GPU. Start with mpirun, or dev/emu/run --ranks P.
//
// A communicator is MPI_COMM_WORLD split by the unique id, so the program's own exchange of the id
// is tested. Before every collective the ranks compare what they call: a mismatch, which hangs or
// corrupts on GPUs, aborts here with a message. Buffers must lie inside one device allocation and
// may overlap only in the documented in-place form.
//
// A group of calls becomes one operation per stream. Its sends and receives are started together
// and waited for at its end: a receive before its matching send must not block, as in NCCL.
#include "engine.h"
#include <climits>
#include <cstdio>
#include <mpi.h>
#include <nccl.h>

using namespace emu;
struct ncclComm { MPI_Comm mpi; int rank, size; };

namespace {
// === 1. Types and reductions ===================================================================
size_t size_of(ncclDataType_t t) {
    switch (t) {
    case ncclInt8: case ncclUint8: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    default: return 4;
    }
}
MPI_Datatype mpi_type(ncclDataType_t t) {
    switch (t) {
    case ncclInt8: return MPI_INT8_T;
    case ncclUint8: return MPI_UINT8_T;
    case ncclInt32: return MPI_INT32_T;
    case ncclUint32: return MPI_UINT32_T;
    case ncclInt64: return MPI_INT64_T;
    case ncclUint64: return MPI_UINT64_T;
    case ncclFloat16: case ncclBfloat16: return MPI_UINT16_T;       // reduced by our own operations
    case ncclFloat32: return MPI_FLOAT;
    case ncclFloat64: return MPI_DOUBLE;
    default: fail(nowhere, "NCCL data type %d is not emulated", (int)t);
    }
}
float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
float to_float(__half x) { return __half2float(x); }
void set(__nv_bfloat16& x, float v) { x = __float2bfloat16_rn(v); }
void set(__half& x, float v) { x = __float2half_rn(v); }

// out[i] = in[i] op out[i] for 16-bit floats, which MPI does not know
template <class T, bool max> void reduce16(void* in, void* out, int* n, MPI_Datatype*) {
    T *x = (T*)in, *y = (T*)out;
    for (int i = 0; i < *n; i++) {
        float a = to_float(x[i]), b = to_float(y[i]);
        set(y[i], max ? std::max(a, b) : a + b);
    }
}
MPI_Op mpi_op(ncclRedOp_t op, ncclDataType_t t) {
    if (op != ncclSum && op != ncclAvg && op != ncclMax)
        fail(nowhere, "NCCL reduction %d is not emulated", (int)op);
    bool max = op == ncclMax, bf16 = t == ncclBfloat16;
    if (!bf16 && t != ncclFloat16) return max ? MPI_MAX : MPI_SUM;
    static MPI_Op made[2][2];
    MPI_Op& result = made[bf16][max];
    auto* f = bf16 ? (max ? reduce16<__nv_bfloat16, true> : reduce16<__nv_bfloat16, false>)
                   : (max ? reduce16<__half, true> : reduce16<__half, false>);
    if (!result) MPI_Op_create(f, 1, &result);
    return result;
}
void average(void* p, size_t n, ncclDataType_t t, ncclRedOp_t op, int ranks) {
    if (op != ncclAvg) return;
    for (size_t i = 0; i < n; i++) switch (t) {
    case ncclFloat32: ((float*)p)[i] /= ranks; break;
    case ncclFloat64: ((double*)p)[i] /= ranks; break;
    case ncclFloat16: set(((__half*)p)[i], to_float(((__half*)p)[i]) / ranks); break;
    case ncclBfloat16: set(((__nv_bfloat16*)p)[i], to_float(((__nv_bfloat16*)p)[i]) / ranks); break;
    default: fail(nowhere, "ncclAvg of type %d is not emulated", (int)t);
    }
}

// === 2. Checks =================================================================================
// Every rank must be in the same call with the same count, type and root.
void agree(ncclComm* c, const char* call, size_t n, ncclDataType_t t, int root) {
    uint64_t h = 1469598103934665603ull;                    // FNV-1a
    auto mix = [&h](uint64_t x) { h = (h ^ x) * 1099511628211ull; };
    for (const char* p = call; *p; p++) mix(*p);
    mix(n), mix(t), mix(root);
    int64_t v = h >> 2, mine[2] = {v, -v}, most[2];         // min(v) = -max(-v)
    PMPI_Allreduce(mine, most, 2, MPI_INT64_T, MPI_MAX, c->mpi);
    if (most[0] == v && most[1] == -v) return;
    fprintf(stderr, "EMU ERROR: rank %d is in %s(count %zu, type %d, root or reduction %d) while "
                    "another rank is in another collective\n", c->rank, call, n, (int)t, root);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 99);
}
int mpi_count(size_t n) {
    if (n > INT_MAX) fail(nowhere, "NCCL: %zu elements in one call; the emulator takes 2^31-1", n);
    return (int)n;
}
void check_input(const char* call, const void* p, size_t bytes) {
    if (!bytes) return;
    check_device_range(call, p, bytes);
    check_read(p, bytes);
}
void check_output(const char* call, void* p, size_t bytes) {
    if (bytes) check_device_range(call, p, bytes);
}
void check_overlap(const char* call, const void* a, size_t a_bytes, const void* b, size_t b_bytes,
                   const void* in_place) {
    bool overlap = (char*)a < (char*)b + b_bytes && (char*)b < (char*)a + a_bytes;
    if (overlap && a != in_place)
        fail(nowhere, "%s: overlapping buffers that are not the in-place form", call);
}

// === 3. Groups =================================================================================
int group_depth;
std::vector<std::pair<cudaStream_t, Closure>> group;        // calls since ncclGroupStart
std::vector<MPI_Request> in_flight;

void run(const std::vector<Closure>& calls) {
    HostAccess open;
    for (const Closure& call : calls) call();
    PMPI_Waitall((int)in_flight.size(), in_flight.data(), MPI_STATUSES_IGNORE);
    in_flight.clear();
}
ncclResult_t submit(cudaStream_t s, Closure call) {
    if (group_depth) group.push_back({s, call});
    else enqueue(s, "NCCL", [call] { run({call}); });
    return ncclSuccess;
}
} // namespace

// === 4. Communicators ==========================================================================
extern "C" {
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    memset(id, 0, sizeof *id);
    FILE* f = fopen("/dev/urandom", "rb");
    bool ok = f && fread(id, 1, 16, f) == 16;
    if (f) fclose(f);
    return ok ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
    int started;
    MPI_Initialized(&started);
    if (!started) {
        MPI_Init(nullptr, nullptr);
        atexit([] {
            int done;
            MPI_Finalized(&done);
            if (!done) MPI_Finalize();
        });
    }
    int color;
    memcpy(&color, &id, sizeof color);
    ncclComm* c = *comm = new ncclComm;
    PMPI_Comm_split(MPI_COMM_WORLD, color & 0x7fffffff, rank, &c->mpi);
    MPI_Comm_rank(c->mpi, &c->rank);
    MPI_Comm_size(c->mpi, &c->size);
    if (c->rank == rank && c->size == size) return ncclSuccess;
    fprintf(stderr, "EMU ERROR: ncclCommInitRank(rank %d of %d), but %d processes share this id\n",
            rank, size, c->size);
    return ncclInvalidUsage;
}
ncclResult_t ncclCommDestroy(ncclComm_t c) {
    MPI_Comm_free(&c->mpi);
    delete c;
    return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t) { MPI_Abort(MPI_COMM_WORLD, 1); return ncclSuccess; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* e) { *e = ncclSuccess; return *e; }
ncclResult_t ncclCommCount(const ncclComm_t c, int* n) { *n = c->size; return ncclSuccess; }
ncclResult_t ncclCommUserRank(const ncclComm_t c, int* r) { *r = c->rank; return ncclSuccess; }
ncclResult_t ncclGetVersion(int* v) { *v = NCCL_VERSION_CODE; return ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t r) {
    return r == ncclSuccess ? "no error" : "emulated NCCL error";
}

ncclResult_t ncclGroupStart() { group_depth++; return ncclSuccess; }
ncclResult_t ncclGroupEnd() {
    if (!group_depth) return ncclInvalidUsage;
    if (--group_depth) return ncclSuccess;
    while (!group.empty()) {                                // one operation per stream
        cudaStream_t s = group[0].first;
        std::vector<Closure> calls;
        for (auto& x : group) if (x.first == s) calls.push_back(x.second);
        group.erase(std::remove_if(group.begin(), group.end(),
                                   [s](auto& x) { return x.first == s; }), group.end());
        enqueue(s, "NCCL group", [calls] { run(calls); });
    }
    return ncclSuccess;
}

// === 5. Collectives, send and receive ==========================================================
ncclResult_t ncclAllReduce(const void* in, void* out, size_t n, ncclDataType_t t, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t stream) {
    return submit(stream, [=] {
        size_t bytes = n * size_of(t);
        check_input("ncclAllReduce input", in, bytes);
        check_output("ncclAllReduce output", out, bytes);
        check_overlap("ncclAllReduce", in, bytes, out, bytes, out);
        agree(c, "ncclAllReduce", n, t, op);
        PMPI_Allreduce(in == out ? MPI_IN_PLACE : in, out, mpi_count(n), mpi_type(t), mpi_op(op, t),
                      c->mpi);
        average(out, n, t, op, c->size);
        mark_written(out, bytes);
    });
}
ncclResult_t ncclReduce(const void* in, void* out, size_t n, ncclDataType_t t, ncclRedOp_t op,
                        int root, ncclComm_t c, cudaStream_t stream) {
    return submit(stream, [=] {
        size_t bytes = n * size_of(t);
        bool mine = c->rank == root;
        check_input("ncclReduce input", in, bytes);
        if (mine) check_output("ncclReduce output", out, bytes);
        agree(c, "ncclReduce", n, t, root * 16 + op);
        PMPI_Reduce(mine && in == out ? MPI_IN_PLACE : in, out, mpi_count(n), mpi_type(t),
                   mpi_op(op, t), root, c->mpi);
        if (!mine) return;
        average(out, n, t, op, c->size);
        mark_written(out, bytes);
    });
}
// n counts the elements that each rank receives
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t n, ncclDataType_t t,
                               ncclRedOp_t op, ncclComm_t c, cudaStream_t stream) {
    return submit(stream, [=] {
        size_t bytes = n * size_of(t);
        check_input("ncclReduceScatter input", in, bytes * c->size);
        check_output("ncclReduceScatter output", out, bytes);
        check_overlap("ncclReduceScatter", out, bytes, in, bytes * c->size,
                      (const char*)in + bytes * c->rank);
        agree(c, "ncclReduceScatter", n, t, op);
        std::vector<char> sum(bytes);
        PMPI_Reduce_scatter_block(in, sum.data(), mpi_count(n), mpi_type(t), mpi_op(op, t), c->mpi);
        memcpy(out, sum.data(), bytes);
        average(out, n, t, op, c->size);
        mark_written(out, bytes);
    });
}
// n counts the elements that each rank contributes
ncclResult_t ncclAllGather(const void* in, void* out, size_t n, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t stream) {
    return submit(stream, [=] {
        size_t bytes = n * size_of(t);
        const char* slot = (const char*)out + bytes * c->rank;
        check_input("ncclAllGather input", in, bytes);
        check_output("ncclAllGather output", out, bytes * c->size);
        check_overlap("ncclAllGather", in, bytes, out, bytes * c->size, slot);
        agree(c, "ncclAllGather", n, t, 0);
        PMPI_Allgather(in == slot ? MPI_IN_PLACE : in, mpi_count(bytes), MPI_BYTE,
                      out, mpi_count(bytes), MPI_BYTE, c->mpi);
        mark_written(out, bytes * c->size);
    });
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t n, ncclDataType_t t, int root,
                           ncclComm_t c, cudaStream_t stream) {
    return submit(stream, [=] {
        size_t bytes = n * size_of(t);
        if (c->rank == root) check_input("ncclBroadcast input", in, bytes);
        check_output("ncclBroadcast output", out, bytes);
        agree(c, "ncclBroadcast", n, t, root);
        if (c->rank == root && in != out) memcpy(out, in, bytes);
        PMPI_Bcast(out, mpi_count(bytes), MPI_BYTE, root, c->mpi);
        mark_written(out, bytes);
    });
}
ncclResult_t ncclBcast(void* p, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                       cudaStream_t s) {
    return ncclBroadcast(p, p, n, t, root, c, s);
}
ncclResult_t ncclSend(const void* p, size_t n, ncclDataType_t t, int peer, ncclComm_t c,
                      cudaStream_t stream) {
    return submit(stream, [=] {
        size_t bytes = n * size_of(t);
        check_input("ncclSend buffer", p, bytes);
        in_flight.emplace_back();
        PMPI_Isend(p, mpi_count(bytes), MPI_BYTE, peer, 0, c->mpi, &in_flight.back());
    });
}
ncclResult_t ncclRecv(void* p, size_t n, ncclDataType_t t, int peer, ncclComm_t c,
                      cudaStream_t stream) {
    return submit(stream, [=] {
        size_t bytes = n * size_of(t);
        check_output("ncclRecv buffer", p, bytes);
        in_flight.emplace_back();
        PMPI_Irecv(p, mpi_count(bytes), MPI_BYTE, peer, 0, c->mpi, &in_flight.back());
        mark_written(p, bytes);
    });
}
}

// === 4. While the host waits in MPI, the device goes on ========================================
// Late streams would otherwise keep a collective back for ever: its peers wait in it for this rank,
// which waits for them in MPI. The emulator's own messages go through PMPI.
#define MPI_HOST_WAITS(name, parameters, arguments) \
    extern "C" int MPI_##name parameters { run_all_streams(); return PMPI_##name arguments; }
MPI_HOST_WAITS(Wait, (MPI_Request* r, MPI_Status* s), (r, s))
MPI_HOST_WAITS(Waitall, (int n, MPI_Request r[], MPI_Status s[]), (n, r, s))
MPI_HOST_WAITS(Test, (MPI_Request* r, int* done, MPI_Status* s), (r, done, s))
MPI_HOST_WAITS(Testall, (int n, MPI_Request r[], int* done, MPI_Status s[]), (n, r, done, s))
MPI_HOST_WAITS(Barrier, (MPI_Comm c), (c))
MPI_HOST_WAITS(Bcast, (void* p, int n, MPI_Datatype t, int root, MPI_Comm c), (p, n, t, root, c))
MPI_HOST_WAITS(Allreduce, (const void* in, void* out, int n, MPI_Datatype t, MPI_Op op,
               MPI_Comm c), (in, out, n, t, op, c))
MPI_HOST_WAITS(Recv, (void* p, int n, MPI_Datatype t, int from, int tag, MPI_Comm c,
               MPI_Status* s), (p, n, t, from, tag, c, s))
