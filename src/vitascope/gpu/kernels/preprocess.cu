// NV12/P010 to a network's input in one pass over the picture; the contract and the reference are in preprocess.py.
//
//   out(oy, ox) = clip(M * mean of (Y, U, V) over the window of (oy, ox) + t, 0, 1), then (rgb - mean) / std
//
// Sample i of a row covers [i, i + 1); an output sample covers window / size of it. Each axis averages its window where
// it shrinks and interpolates between the two nearest samples where it grows.
//
// One block makes a run of one output row. Its threads first sum the rows of the window, 16 bytes a load, so that every
// byte of the picture is read in full lines; the column sums lie in shared memory, where the outputs gather them.

#ifndef SAMPLE        // unsigned char for NV12, unsigned short for P010
#define SAMPLE unsigned char
#endif
#ifndef OUTPUT        // float or __half
#define OUTPUT float
#endif
#ifndef VECTORS       // 1 when rows begin and end on 16 bytes
#define VECTORS 1
#endif

#include <cuda_fp16.h>

using sample_t = SAMPLE;
using output_t = OUTPUT;

constexpr int THREADS = 128;
constexpr int LANES = 16 / sizeof(sample_t);  // samples of a 16-byte load
constexpr int SPAN = 2048;                  // samples of a row that a block sums (U and V count as two)
constexpr int LOADS = SPAN / LANES / THREADS;

struct Axis {
    float start, step;  // window of output o: [start + o * step, start + (o + 1) * step)
    int first, last;    // samples of the plane that belong to the eye: what lies outside repeats them
};

struct Taps {
    int first, count;
    float begin, end;  // the window, or for interpolation: weight of the second tap in `end`
    bool interpolate;
};

struct Picture {
    const sample_t* data;
    long long pitch;  // samples from row to row
    Axis x, y;
};

struct Pictures {
    Picture picture[4];  // luma and chroma of each eye
};

struct Color {
    float matrix[9], offset[3], mean[3], scale[3];
};

__device__ __forceinline__ Taps taps_of(const Axis axis, int output) {
    Taps taps;
    taps.interpolate = axis.step < 1.f;
    const float begin = axis.start + output * axis.step;
    if (taps.interpolate) {
        const float centre = fminf(fmaxf(begin + 0.5f * axis.step - 0.5f, axis.first), axis.last);
        taps.first = static_cast<int>(centre);
        taps.count = 2;
        taps.end = centre - taps.first;
        taps.begin = 0.f;
    } else {
        taps.begin = begin;
        taps.end = begin + axis.step;
        taps.first = static_cast<int>(floorf(begin));
        taps.count = static_cast<int>(ceilf(taps.end)) - taps.first;
    }
    return taps;
}

__device__ __forceinline__ float weight_of(const Taps& taps, int tap) {
    if (taps.interpolate) return tap ? taps.end : 1.f - taps.end;
    const float from = taps.first + tap;
    return fminf(from + 1.f, taps.end) - fmaxf(from, taps.begin);
}

__device__ __forceinline__ int clamped(int index, const Axis axis) { return min(max(index, axis.first), axis.last); }

// Column sums of the rows of one window: samples [origin, origin + SPAN) of the rows, `channels` interleaved.
__device__ void sum_rows(const Picture picture, const Taps rows, int origin, int samples, float* sums) {
    const float normal = rows.interpolate ? 1.f : 1.f / (rows.end - rows.begin);
    for (int load = 0; load < LOADS; ++load) {
        const int column = (load * THREADS + threadIdx.x) * LANES;
        if (origin + column >= samples) break;
        float total[LANES];
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) total[lane] = 0.f;
#pragma unroll 4
        for (int tap = 0; tap < rows.count; ++tap) {
            const float weight = weight_of(rows, tap) * normal;
            const sample_t* row = picture.data + clamped(rows.first + tap, picture.y) * picture.pitch + origin + column;
            sample_t lanes[LANES];
#if VECTORS
            *reinterpret_cast<uint4*>(lanes) = __ldg(reinterpret_cast<const uint4*>(row));
#else
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) lanes[lane] = origin + column + lane < samples ? row[lane] : static_cast<sample_t>(0);
#endif
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) total[lane] += weight * static_cast<float>(lanes[lane]);
        }
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) sums[column + lane] = total[lane];
    }
}

__device__ __forceinline__ float gather(const float* sums, const Picture picture, int origin, int output, int channels,
                                        int channel) {
    const Taps columns = taps_of(picture.x, output);
    float total = 0.f;
    for (int tap = 0; tap < columns.count; ++tap) {
        const int column = clamped(columns.first + tap, picture.x);
        total += weight_of(columns, tap) * sums[column * channels + channel - origin];
    }
    return columns.interpolate ? total : total / (columns.end - columns.begin);
}

// First sample that a run of outputs needs, down to a 16-byte boundary.
__device__ __forceinline__ int first_sample(const Picture picture, int output, int channels) {
    const int column = clamped(taps_of(picture.x, output).first, picture.x);
    return column * channels / LANES * LANES;
}

// grid: (runs of a row, coded output rows, eyes)
extern "C" __global__ void __launch_bounds__(THREADS)
    preprocess(const __grid_constant__ Pictures pictures, output_t* out, Color color, int height, int width, int run, int rotation,
               int channels_last) {
    __shared__ float luma_sums[SPAN];
    __shared__ float chroma_sums[SPAN];
    const Picture luma = pictures.picture[2 * blockIdx.z], chroma = pictures.picture[2 * blockIdx.z + 1];
    const int oy = blockIdx.y, first = blockIdx.x * run;
    const int luma_origin = first_sample(luma, first, 1), chroma_origin = first_sample(chroma, first, 2);
    sum_rows(luma, taps_of(luma.y, oy), luma_origin, luma.x.last + 1, luma_sums);
    sum_rows(chroma, taps_of(chroma.y, oy), chroma_origin, (chroma.x.last + 1) * 2, chroma_sums);
    __syncthreads();
    for (int ox = first + threadIdx.x; ox < min(first + run, width); ox += THREADS) {
        const float yuv[3] = {gather(luma_sums, luma, luma_origin, ox, 1, 0),
                              gather(chroma_sums, chroma, chroma_origin, ox, 2, 0),
                              gather(chroma_sums, chroma, chroma_origin, ox, 2, 1)};
        int uy = oy, ux = ox, upright_height = height, upright_width = width;
        if (rotation == 90) { uy = ox; ux = height - 1 - oy; }
        if (rotation == 180) { uy = height - 1 - oy; ux = width - 1 - ox; }
        if (rotation == 270) { uy = width - 1 - ox; ux = oy; }
        if (rotation == 90 || rotation == 270) { upright_height = width; upright_width = height; }
        const long long plane = static_cast<long long>(upright_height) * upright_width;
        const long long at = static_cast<long long>(uy) * upright_width + ux;
#pragma unroll
        for (int c = 0; c < 3; ++c) {
            const float rgb = color.matrix[3 * c] * yuv[0] + color.matrix[3 * c + 1] * yuv[1] +
                              color.matrix[3 * c + 2] * yuv[2] + color.offset[c];
            const float value = (__saturatef(rgb) - color.mean[c]) * color.scale[c];
            const long long slot = channels_last ? at * 3 + c : c * plane + at;
            out[blockIdx.z * 3 * plane + slot] = static_cast<output_t>(value);
        }
    }
}
