// A batch of pictures to a network's input, out = in * gain + offset per channel, and a change of layout in one pass; the
// contract and the reference are in batch_normalize.py.
//
// Planes are written 16 bytes a thread. Interleaved pixels that are written, or that are wide, pass through shared memory,
// so that they, too, move in whole lines; narrow ones are read where they are: the loads of a warp share their lines.

#ifndef INPUT       // unsigned char, unsigned short, __half or float
#define INPUT unsigned char
#endif
#ifndef OUTPUT      // __half or float
#define OUTPUT __half
#endif
#ifndef CHANNELS    // 1 to 4
#define CHANNELS 3
#endif
#ifndef IN_LAST     // 1 when channels are interleaved in the input
#define IN_LAST 1
#endif
#ifndef OUT_LAST    // the same of the output
#define OUT_LAST 0
#endif

#include <cuda_fp16.h>

using input_t = INPUT;
using output_t = OUTPUT;

constexpr int THREADS = 256;
constexpr int GROUP = 16 / sizeof(output_t);  // pixels of a thread, or elements where the layout stays interleaved
constexpr int TILE = THREADS * GROUP;

struct Affine {
    float gain[4], offset[4];
};

template <int BYTES>
__device__ __forceinline__ void copy_bytes(void* target, const void* source) {
    if constexpr (BYTES % 16 == 0) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; ++i) static_cast<uint4*>(target)[i] = static_cast<const uint4*>(source)[i];
    } else if constexpr (BYTES % 8 == 0) {
#pragma unroll
        for (int i = 0; i < BYTES / 8; ++i) static_cast<uint2*>(target)[i] = static_cast<const uint2*>(source)[i];
    } else {
#pragma unroll
        for (int i = 0; i < BYTES / 4; ++i) static_cast<unsigned*>(target)[i] = static_cast<const unsigned*>(source)[i];
    }
}

__device__ __forceinline__ output_t normal(input_t value, float gain, float offset) {
    return static_cast<output_t>(fmaf(static_cast<float>(value), gain, offset));
}

// One pixel a thread: any size, any alignment. grid: (pixels / THREADS, pictures)
extern "C" __global__ void __launch_bounds__(THREADS)
    normalize_pixels(const input_t* __restrict__ in, output_t* out, long long pixels, Affine affine) {
    const long long pixel = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (pixel >= pixels) return;
    const long long picture = blockIdx.y * pixels * CHANNELS;
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
        const long long from = picture + (IN_LAST ? pixel * CHANNELS + c : c * pixels + pixel);
        const long long to = picture + (OUT_LAST ? pixel * CHANNELS + c : c * pixels + pixel);
        out[to] = normal(in[from], affine.gain[c], affine.offset[c]);
    }
}

#if IN_LAST && OUT_LAST

// The layout stays interleaved: the channel of an element is its position modulo CHANNELS.
// grid: (elements / TILE, pictures); elements are a multiple of GROUP
extern "C" __global__ void __launch_bounds__(THREADS)
    normalize(const input_t* __restrict__ in, output_t* out, long long pixels, Affine affine) {
    const long long elements = pixels * CHANNELS, first = static_cast<long long>(blockIdx.x) * TILE + threadIdx.x * GROUP;
    if (first >= elements) return;
    const long long at = blockIdx.y * elements + first;
    alignas(16) input_t values[GROUP];
    copy_bytes<GROUP * sizeof(input_t)>(values, in + at);
    // Turned so that the thread's first element has the first pair: then every index is known to the compiler.
    const int phase = static_cast<int>(first % CHANNELS);
    float gain[CHANNELS], offset[CHANNELS];
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
        gain[c] = affine.gain[c];
        offset[c] = affine.offset[c];
#pragma unroll
        for (int shift = 1; shift < CHANNELS; ++shift)
            if (phase == shift) {
                gain[c] = affine.gain[(c + shift) % CHANNELS];
                offset[c] = affine.offset[(c + shift) % CHANNELS];
            }
    }
    alignas(16) output_t results[GROUP];
#pragma unroll
    for (int i = 0; i < GROUP; ++i) results[i] = normal(values[i], gain[i % CHANNELS], offset[i % CHANNELS]);
    copy_bytes<16>(out + at, results);
}

#else

// grid: (pixels / TILE, pictures); pixels are a multiple of GROUP, and every picture begins on 16 bytes
extern "C" __global__ void __launch_bounds__(THREADS)
    normalize(const input_t* __restrict__ in, output_t* out, long long pixels, Affine affine) {
    constexpr int IN_BYTES = CHANNELS * sizeof(input_t);
    constexpr bool STAGED = IN_LAST && GROUP * IN_BYTES > 32;
    constexpr int PIXEL_BYTES = OUT_LAST ? CHANNELS * sizeof(output_t) : STAGED ? IN_BYTES : 0;
    constexpr int GROUP_BYTES = GROUP * PIXEL_BYTES;
    __shared__ uint4 tile[TILE * PIXEL_BYTES / 16 + 1];
    char* own = reinterpret_cast<char*>(tile) + threadIdx.x * GROUP_BYTES;
    const long long origin = static_cast<long long>(blockIdx.x) * TILE, first = origin + threadIdx.x * GROUP;
    const int lines = static_cast<int>(min(static_cast<long long>(TILE), pixels - origin) * PIXEL_BYTES / 16);
    const long long picture = blockIdx.y * pixels * CHANNELS;
    const bool inside = first < pixels;
    alignas(16) input_t values[CHANNELS * GROUP];
    alignas(16) output_t results[CHANNELS * GROUP];
    if constexpr (STAGED) {
        const uint4* source = reinterpret_cast<const uint4*>(in + picture + origin * CHANNELS);
#pragma unroll
        for (int i = 0; i < (TILE * PIXEL_BYTES / 16 + THREADS - 1) / THREADS; ++i) {
            const int line = i * THREADS + threadIdx.x;
            if (line < lines) tile[line] = __ldg(source + line);
        }
        __syncthreads();
        if (inside) copy_bytes<GROUP * IN_BYTES>(values, own);
    } else if (IN_LAST && inside) {
        copy_bytes<GROUP * IN_BYTES>(values, in + picture + first * CHANNELS);
    } else if (inside) {
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c)
            copy_bytes<GROUP * sizeof(input_t)>(values + c * GROUP, in + picture + c * pixels + first);
    }
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c)
#pragma unroll
        for (int i = 0; i < GROUP; ++i)
            results[OUT_LAST ? i * CHANNELS + c : c * GROUP + i] =
                normal(values[IN_LAST ? i * CHANNELS + c : c * GROUP + i], affine.gain[c], affine.offset[c]);
    if constexpr (OUT_LAST) {
        if (inside) copy_bytes<GROUP * CHANNELS * sizeof(output_t)>(own, results);
        __syncthreads();
        uint4* target = reinterpret_cast<uint4*>(out + picture + origin * CHANNELS);
        for (int line = threadIdx.x; line < lines; line += THREADS) target[line] = tile[line];
    } else if (inside) {
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) copy_bytes<16>(out + picture + c * pixels + first, results + c * GROUP);
    }
}

#endif
