// streams.cu: streams, events, graphs, capture errors, counters: correct in every order of running.
#include "test.h"

__global__ void add(float* p, float v) { p[threadIdx.x] += v; }
__global__ void twice(float* p) { p[threadIdx.x] *= 2; }

// One graph over two streams, joined by events: ((x + 1) * 2) + 3, launched three times.
static void test_graph() {
    float* p = to_device(std::vector<float>(32, 0.0f));
    cudaStream_t s, t;
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamCreate(&s));
    CUDA(cudaStreamCreate(&t));
    CUDA(cudaEventCreate(&fork));
    CUDA(cudaEventCreate(&join));
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    add<<<1, 32, 0, s>>>(p, 1);
    CUDA(cudaEventRecord(fork, s));
    CUDA(cudaStreamWaitEvent(t, fork, 0));
    twice<<<1, 32, 0, t>>>(p);
    CUDA(cudaEventRecord(join, t));
    CUDA(cudaStreamWaitEvent(s, join, 0));
    add<<<1, 32, 0, s>>>(p, 3);
    void* q;
    CLAIM(cudaMalloc(&q, 4) == cudaErrorStreamCaptureUnsupported);
    CLAIM(cudaStreamSynchronize(s) == cudaErrorStreamCaptureUnsupported);
    CLAIM(cudaGetLastError() != cudaSuccess && cudaGetLastError() == cudaSuccess);
    CUDA(cudaStreamEndCapture(s, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    long launches = emu::counters.launches;
    for (int i = 0; i < 3; i++) CUDA(cudaGraphLaunch(exec, s));
    CUDA(cudaStreamSynchronize(s));
    CLAIM(to_host(p, 1)[0] == 35);                           // 0 -> 5 -> 15 -> 35
    CLAIM(emu::counters.launches == launches);               // a graph launch is none of kernels
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaEventDestroy(fork));
    CUDA(cudaEventDestroy(join));
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaStreamDestroy(t));
    CUDA(cudaFree(p));
}

// Ping-pong between two non-blocking streams by events; nothing else orders them.
static void test_events() {
    float* p = to_device(std::vector<float>(32, 1.0f));
    cudaStream_t s[2];
    cudaEvent_t done[2];
    for (int i = 0; i < 2; i++) CUDA(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking));
    for (int i = 0; i < 2; i++) CUDA(cudaEventCreate(&done[i]));
    float expected = 1;
    for (int i = 0; i < 10; i++) {
        if (i) CUDA(cudaStreamWaitEvent(s[i % 2], done[(i + 1) % 2], 0));
        if (i % 2) twice<<<1, 32, 0, s[1]>>>(p);
        else add<<<1, 32, 0, s[0]>>>(p, 3);
        expected = i % 2 ? expected * 2 : expected + 3;
        CUDA(cudaEventRecord(done[i % 2], s[i % 2]));
    }
    long syncs = emu::counters.host_syncs;
    CUDA(cudaEventSynchronize(done[1]));
    CLAIM(emu::counters.host_syncs == syncs + 1);
    CLAIM(cudaEventQuery(done[1]) == cudaSuccess);
    float ms = -1;
    CUDA(cudaEventElapsedTime(&ms, done[0], done[1]));
    CLAIM(ms >= 0 && to_host(p, 1)[0] == expected);
    for (int i = 0; i < 2; i++) CUDA(cudaStreamDestroy(s[i]));
    for (int i = 0; i < 2; i++) CUDA(cudaEventDestroy(done[i]));
    CUDA(cudaFree(p));
}

// A blocking stream and the default stream wait for each other without events.
static void test_default_stream() {
    float* p = to_device(std::vector<float>(32, 1.0f));
    cudaStream_t s;
    CUDA(cudaStreamCreate(&s));
    add<<<1, 32, 0, s>>>(p, 1);
    twice<<<1, 32>>>(p);
    add<<<1, 32, 0, s>>>(p, 1);
    CUDA(cudaStreamSynchronize(s));
    std::vector<float> r(1);
    CUDA(cudaMemcpy(r.data(), p, 4, cudaMemcpyDeviceToHost));
    CLAIM(r[0] == 5);
    // pageable memory may be reused as soon as the call returns
    float v = 8;
    CUDA(cudaMemcpyAsync(p, &v, sizeof v, cudaMemcpyHostToDevice, s));
    v = 9;
    CUDA(cudaMemcpyAsync(&v, p, sizeof v, cudaMemcpyDeviceToHost, s));
    CLAIM(v == 8);
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaFree(p));
}

// A host that polls sees the end; memory from the stream's own pool; an event must have happened.
static void test_polling() {
    float *p, r[32], ms;
    cudaStream_t s;
    cudaEvent_t never, begin, end;
    CUDA(cudaStreamCreate(&s));
    for (cudaEvent_t* e : {&never, &begin, &end}) CUDA(cudaEventCreate(e));
    CUDA(cudaMallocAsync(&p, sizeof r, s));
    CUDA(cudaMemsetAsync(p, 0, sizeof r, s));
    CUDA(cudaEventRecord(begin, s));
    add<<<1, 32, 0, s>>>(p, 1);
    CUDA(cudaEventRecord(end, s));
    CLAIM(cudaEventElapsedTime(&ms, never, end) == cudaErrorInvalidResourceHandle);
    while (cudaEventQuery(end) == cudaErrorNotReady) continue;
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    twice<<<1, 32, 0, s>>>(p);
    while (cudaStreamQuery(s) == cudaErrorNotReady) continue;
    CUDA(cudaMemcpyAsync(r, p, sizeof r, cudaMemcpyDeviceToHost, s));
    CUDA(cudaFreeAsync(p, s));
    CUDA(cudaStreamSynchronize(s));
    CLAIM(r[31] == 2);
    for (cudaEvent_t e : {never, begin, end}) CUDA(cudaEventDestroy(e));
    CUDA(cudaStreamDestroy(s));
}

int main() {
    test_graph();
    test_polling();
    test_events();
    test_default_stream();
    return verdict();
}
