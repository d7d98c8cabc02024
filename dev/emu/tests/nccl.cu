// nccl.cu [BUG]: collectives and point-to-point on all ranks (mpirun), or with one planted bug:
//   other_count   ranks disagree about the count           overlap   buffers overlap out of place
//   too_long      more elements than the allocation has (sizeof passed as a count, say)
#include <cuda_bf16.h>
#include <mpi.h>
#include <nccl.h>
#include "test.h"
typedef __nv_bfloat16 bf16;
#define NCCL(call) claim((call) == ncclSuccess, #call)

static int rank, ranks;
static ncclComm_t comm;

static std::vector<float> mine(int n) {
    std::vector<float> v(n);
    for (int i = 0; i < n; i++) v[i] = rank * 100 + i;
    return v;
}

static void test_ring() {                                    // receive first: must not block
    float* p = to_device(mine(2));
    NCCL(ncclGroupStart());
    NCCL(ncclRecv(p + 1, 1, ncclFloat, (rank + ranks - 1) % ranks, comm, nullptr));
    NCCL(ncclSend(p, 1, ncclFloat, (rank + 1) % ranks, comm, nullptr));
    NCCL(ncclGroupEnd());
    CLAIM(to_host(p, 2)[1] == (rank + ranks - 1) % ranks * 100);
    CUDA(cudaFree(p));
}

static void test_collectives() {
    float sum_of_ranks = ranks * (ranks - 1) / 2;
    float* p = to_device(mine(4));
    NCCL(ncclAllReduce(p, p, 4, ncclFloat, ncclSum, comm, nullptr));
    CLAIM(to_host(p, 4)[3] == sum_of_ranks * 100 + 3 * ranks);
    bf16* b = to_device(std::vector<bf16>(2, __float2bfloat16(rank + 1)));
    NCCL(ncclAllReduce(b, b, 2, ncclBfloat16, ncclAvg, comm, nullptr));
    CLAIM(__bfloat162float(to_host(b, 2)[1]) == (sum_of_ranks + ranks) / ranks);
    NCCL(ncclAllReduce(p, p, 4, ncclFloat, ncclMax, comm, nullptr));

    float* shards = to_device(mine(2 * ranks));              // in place: my shard of my buffer
    NCCL(ncclReduceScatter(shards, shards + 2 * rank, 2, ncclFloat, ncclSum, comm, nullptr));
    NCCL(ncclAllGather(shards + 2 * rank, shards, 2, ncclFloat, comm, nullptr));
    std::vector<float> all = to_host(shards, 2 * ranks);
    for (int i = 0; i < 2 * ranks; i++) CLAIM(all[i] == sum_of_ranks * 100 + i * ranks);

    float* q = to_device(mine(3));
    NCCL(ncclBroadcast(q, q, 3, ncclFloat, ranks - 1, comm, nullptr));
    CLAIM(to_host(q, 3)[2] == (ranks - 1) * 100 + 2);
    for (void* x : {(void*)p, (void*)b, (void*)shards, (void*)q}) CUDA(cudaFree(x));
}

static void plant(const char* bug) {
    float* p = to_device(mine(8));
    size_t n = 8;
    if (!strcmp(bug, "other_count")) n = rank ? 8 : 4;
    if (!strcmp(bug, "too_long")) n = 8 * sizeof(float);
    if (!strcmp(bug, "overlap")) ncclAllGather(p + 1, p, 2, ncclFloat, comm, nullptr);
    else ncclAllReduce(p, p, n, ncclFloat, ncclSum, comm, nullptr);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaFree(p));
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    ncclUniqueId id;
    if (rank == 0) NCCL(ncclGetUniqueId(&id));
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    NCCL(ncclCommInitRank(&comm, ranks, id, rank));
    test_ring();
    test_collectives();
    if (argc > 1) plant(argv[1]);
    NCCL(ncclCommDestroy(comm));
    MPI_Finalize();
    return verdict();
}
