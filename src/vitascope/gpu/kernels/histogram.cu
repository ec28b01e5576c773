// Soft colour histograms of small pictures; the contract and the reference are in histogram.py.
//
// One block a picture. Every thread has a histogram of its own in shared memory, laid out so that no two threads of a
// warp meet in a bank, and the block adds them up: no atomics, and the same sum every time.

#ifndef COLOR     // __half or float
#define COLOR float
#endif
#ifndef LEVELS    // of a channel
#define LEVELS 4
#endif
#ifndef THREADS
#define THREADS 128
#endif

#include <cuda_fp16.h>

using color_t = COLOR;

constexpr int BATCH = 8;  // samples of a thread that are read together
constexpr int BINS = LEVELS * LEVELS * LEVELS;

struct Pictures {
    const color_t* data;
    long long step, channel, row, column;  // elements from picture to picture and along each axis
    unsigned width, stride;                // every `stride`-th pixel in reading order is a sample
    int samples;
};

// Divides one sample among the eight nearest bins of the thread's histogram.
__device__ __forceinline__ void count(float (&counts)[BINS][THREADS], const float (&color)[3]) {
    int bin = 0;
    float upper[3];
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const float position = color[c] * (LEVELS - 1);
        const int lower = min(static_cast<int>(position), LEVELS - 2);
        upper[c] = position - lower;
        bin = bin * LEVELS + lower;
    }
    float sums[8];
    // The eight bins differ, so all are read before any is written.
#pragma unroll
    for (int corner = 0; corner < 8; ++corner) {
        const int i = corner >> 2, j = corner >> 1 & 1, k = corner & 1;
        const float share = (i ? upper[0] : 1.f - upper[0]) * (j ? upper[1] : 1.f - upper[1]) * (k ? upper[2] : 1.f - upper[2]);
        sums[corner] = counts[bin + (i * LEVELS + j) * LEVELS + k][threadIdx.x] + share;
    }
#pragma unroll
    for (int corner = 0; corner < 8; ++corner) {
        const int i = corner >> 2, j = corner >> 1 & 1, k = corner & 1;
        counts[bin + (i * LEVELS + j) * LEVELS + k][threadIdx.x] = sums[corner];
    }
}

// grid: pictures
extern "C" __global__ void __launch_bounds__(THREADS) color_histogram(Pictures pictures, float* out) {
    __shared__ float counts[BINS][THREADS];
#pragma unroll 8
    for (int bin = 0; bin < BINS; ++bin) counts[bin][threadIdx.x] = 0.f;
    const color_t* picture = pictures.data + blockIdx.x * pictures.step;
    for (int first = threadIdx.x; first < pictures.samples; first += BATCH * THREADS) {
        float colors[BATCH][3];
        // All colours are asked for before the first is counted, so that their ways from memory overlap.
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int sample = min(first + i * THREADS, pictures.samples - 1);
            const unsigned pixel = static_cast<unsigned>(sample) * pictures.stride;
            const unsigned y = pixel / pictures.width, x = pixel % pictures.width;
            const color_t* at = picture + y * pictures.row + x * pictures.column;
#pragma unroll
            for (int c = 0; c < 3; ++c) colors[i][c] = __saturatef(static_cast<float>(__ldg(at + c * pictures.channel)));
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
            if (first + i * THREADS < pictures.samples) count(counts, colors[i]);
    }
    __syncthreads();
    const int lane = threadIdx.x % 32;
    for (int bin = threadIdx.x / 32; bin < BINS; bin += THREADS / 32) {
        float sum = 0.f;
#pragma unroll
        for (int part = 0; part < THREADS / 32; ++part) sum += counts[bin][part * 32 + lane];
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffu, sum, distance);
        if (lane == 0) out[static_cast<long long>(blockIdx.x) * BINS + bin] = sum / pictures.samples;
    }
}
