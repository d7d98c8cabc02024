// exchange.cu: a ladder for comm_reduce_scatter, section 9.1: of x, as long as a layer's gradients
// on each of P ranks, a rank gets the sum of its P-th. An all-reduce is this, and an all-gather.
//   root        all send all of x to rank 0, which adds, and sends the sums back: its link carries
//               P - 1 times x, while the others are idle
//   ring        P - 1 rounds, in each of which a rank sends a P-th of x to its neighbour and adds
//               what it gets: all links are busy, and each carries (P - 1) / P of x. But each round
//               waits for the one before, and a sum's order depends on the shard
//   nccl        ncclReduceScatter: a ring or a tree inside of one kernel, in pieces. The order of
//               additions is NCCL's: other bits on another number of GPUs, or another version
//   shipped     all ranks send each its shard at once, into an inbox; as many bytes as in a ring,
//               one round. Sums are taken pairwise in the order of ranks: the same bits with 1, 2,
//               4, 8 ranks. It costs memory for the inbox, (P - 1) / P of x
// It runs with mpirun -n P, and needs a build with MPI, and NCCL for its rung. The time of rank 0;
// the bound is a copy's inside a GPU: links are slower, by how much is for nccl-tests to say.
#include "ladder.h"

static size_t count;
static float *x, *inbox; // (count), (ranks - 1, count)

static float *shard(int r) { return x + shard_start(count, r); }
static size_t shard_bytes(int r) { return shard_count(count, r) * sizeof(float); }
static void run_root(void) {
    net_begin();
    for (int r = 1; r < ranks && rank == 0; r++)
        comm_post(inbox + (size_t)(r - 1) * count, count * sizeof(float), r, 0);
    if (rank > 0) comm_post(x, count * sizeof(float), 0, 1);
    net_end();
    comm_wait();
    for (int r = 1; r < ranks && rank == 0; r++)
        vector_add(x, inbox + (size_t)(r - 1) * count, count);
    net_begin();
    for (int r = 1; r < ranks && rank == 0; r++) comm_post(shard(r), shard_bytes(r), r, 1);
    if (rank > 0) comm_post(shard(rank), shard_bytes(rank), 0, 0);
    net_end();
    comm_wait();
}
static void run_ring(void) { // shard r starts at rank r + 1, and ends at rank r
    for (int round = 1; round < ranks; round++) {
        int out = (rank + ranks - round) % ranks, in = (out + ranks - 1) % ranks;
        net_begin();
        comm_post(inbox, shard_bytes(in), (rank + ranks - 1) % ranks, 0);
        comm_post(shard(out), shard_bytes(out), (rank + 1) % ranks, 1);
        net_end();
        comm_wait();
        vector_add(shard(in), inbox, shard_count(count, in));
    }
}
static void run_nccl(void) {
#ifdef USE_NCCL
    nccl_check(nccl_error(ncclReduceScatter(x, shard(rank), shard_count(count, rank), ncclFloat,
                                            ncclSum, nccl_comm, stream)), "ncclReduceScatter");
#endif
}
static void run_shipped(void) {
    comm_reduce_scatter_start(x, count, inbox);
    comm_reduce_scatter_wait();
    dev_side_join();
}
static const Rung rungs[] = { { "root", run_root }, { "ring", run_ring },
                              { "shipped", run_shipped } };
static const Rung rungs_nccl[] = { { "root", run_root }, { "ring", run_ring },
                                   { "nccl", run_nccl }, { "shipped", run_shipped } };

static double shard_error(const Output *all) { // only its own shard is a rank's result
    Output own = *all;
    own.dev = shard(rank);
    own.want += shard_start(count, rank);
    own.count = shard_count(count, rank), own.bytes = shard_bytes(rank);
    return output_error<real>(&own);
}
static void climb(const size_t *shape) {
    count = shape[0];
    R grads(count, 1 + (uint64_t)rank), space(count * (size_t)(ranks - 1));
    for (int r = 0; r < ranks; r++) for (size_t i = 0; i < count && r != rank; i++)
        grads.cpu[i] += (double)(float)(2 * hash_uniform(1 + (uint64_t)r, i) - 1);
    x = grads.dev, inbox = space.dev;
    Ladder l = { "reduce_scatter" };
    snprintf(l.shape, sizeof l.shape, "%d ranks, count=%zu", ranks, count);
    l.elements = (double)count;
    l.bytes = 4.0 * (double)(count - shard_count(count, rank)); // out of each rank
    ladder_output(&l, grads, ranks * unit);
    l.outputs[0].error = shard_error;
    if (net.is_nccl && PARTS % ranks == 0) ladder_climb(&l, rungs_nccl); // it wants equal shards
    else ladder_climb(&l, rungs);
    int64_t wrong = num_wrong;
    comm_max_int(&wrong, 1);
    if (wrong > num_wrong) printf("WRONG on another rank\n");
    num_wrong = (int)wrong;
}
int main(int argc, char **argv) {
    static const size_t awkward[] = { 3 * PARTS }, emulated[] = { 64 * PARTS };
    static const size_t full[] = { 27696 * PARTS }; // a layer of 124M
    ladder_start();
    comm_init();
    check(ranks > 1, EXIT_USAGE, "one process has nobody to send to: mpirun -n 4 %s", argv[0]);
    if (rank > 0 && freopen("/dev/null", "w", stdout) == NULL) return 1; // rank 0 tells
    return ladder_main(argc, argv, climb, awkward, emulated, full);
}
