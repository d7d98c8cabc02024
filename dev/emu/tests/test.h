// test.h: what the test programs share. Included in quotes, so the rewriter follows it.
#pragma once
#include <cuda_runtime.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CUDA(call) do { cudaError_t e_ = (call); if (e_ != cudaSuccess) { \
    printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)

// A claim about the program: printed when it does not hold; verdict() is main's return value.
inline int failed_claims = 0;
inline void claim(bool holds, const char* what) {
    if (holds) return;
    failed_claims++;
    printf("does not hold: %s\n", what);
}
#define CLAIM(condition) claim(condition, #condition)
inline int verdict() {
    printf("result %s\n", failed_claims ? "WRONG" : "right");
    return failed_claims != 0;
}

template <class T> T* device_alloc(size_t n) {
    T* p;
    CUDA(cudaMalloc(&p, n * sizeof(T)));
    return p;
}
template <class T> T* to_device(const std::vector<T>& v) {
    T* p = device_alloc<T>(v.size());
    CUDA(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
template <class T> std::vector<T> to_host(const T* p, size_t n) {
    std::vector<T> v(n);
    CUDA(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}
