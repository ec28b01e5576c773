// Packed or planar pictures to a network's input in one pass; the contract and the reference are in resize_normalize.py.
//
//   out(oy, ox) = mean of the samples over [o * step, (o + 1) * step) of both axes * gain + offset, where an axis shrinks;
//                 where it grows, the two nearest samples weighted by their distance from (o + 0.5) * step - 0.5
//
// Sample i of a row covers [i, i + 1). One block makes a run of one output row: its threads first sum the rows of the
// window, 16 bytes a load, into shared memory; then the outputs gather their columns from there. Planar pictures are
// read as pictures of one channel.

#ifndef INPUT         // unsigned char, unsigned short, __half or float
#define INPUT unsigned char
#endif
#ifndef OUTPUT        // float or __half
#define OUTPUT float
#endif
#ifndef LANES_CHANNELS  // channels that lie side by side: 1 for planar pictures
#define LANES_CHANNELS 3
#endif
#ifndef VECTORS       // 1 when every row begins on 16 bytes
#define VECTORS 1
#endif
#ifndef TAPS          // rows that are loaded together
#define TAPS 4
#endif

#include <cuda_fp16.h>

using input_t = INPUT;
using output_t = OUTPUT;

constexpr int THREADS = 128;
constexpr int CHANNELS = LANES_CHANNELS;
constexpr int LANES = 16 / sizeof(input_t);
constexpr int SPAN = 4096;  // samples of a row that a block sums

struct Pictures {
    const input_t* data;
    output_t* out;
    long long picture_pitch, plane_pitch, row_pitch;  // samples from one to the next
    int in_height, in_width, height, width;
    int channels;        // of the picture
    int run;             // outputs of a row that one block makes
    int reversed;        // the last channel comes first
    int channels_last;   // of the result
    float step_y, step_x;
    float gain[4], offset[4];
};

struct Taps {
    int first, count;
    float begin, end;  // the window; for interpolation the weight of the second tap is in `end`
    bool interpolate;
};

__device__ __forceinline__ float number(unsigned char value) { return static_cast<float>(value); }
__device__ __forceinline__ float number(unsigned short value) { return static_cast<float>(value); }
__device__ __forceinline__ float number(__half value) { return __half2float(value); }
__device__ __forceinline__ float number(float value) { return value; }

__device__ __forceinline__ Taps taps_of(float step, int length, int output) {
    Taps taps;
    taps.interpolate = step < 1.f;
    if (taps.interpolate) {
        const float centre = fminf(fmaxf((output + 0.5f) * step - 0.5f, 0.f), length - 1.f);
        taps.first = static_cast<int>(centre);
        taps.count = taps.first + 1 < length ? 2 : 1;
        taps.begin = 0.f;
        taps.end = taps.count == 2 ? centre - taps.first : 0.f;
    } else {
        taps.begin = output * step;
        taps.end = taps.begin + step;
        taps.first = min(static_cast<int>(taps.begin), length - 1);
        taps.count = min(static_cast<int>(ceilf(taps.end)), length) - taps.first;
    }
    return taps;
}

__device__ __forceinline__ float weight_of(const Taps& taps, int tap) {
    if (taps.interpolate) return tap ? taps.end : 1.f - taps.end;
    const float from = taps.first + tap;
    return fmaxf(fminf(from + 1.f, taps.end) - fmaxf(from, taps.begin), 0.f);
}

// grid: (runs of a row, output rows, pictures, or planes of all pictures)
extern "C" __global__ void __launch_bounds__(THREADS) resize_normalize(const __grid_constant__ Pictures p, int first_slice) {
    __shared__ __align__(16) float sums[SPAN];
    const int slice = first_slice + blockIdx.z, oy = blockIdx.y, first = blockIdx.x * p.run;
    const int planes = p.channels / CHANNELS;  // 1 for packed pictures
    const int picture = slice / planes, plane = slice - picture * planes;
    const input_t* source = p.data + picture * p.picture_pitch + plane * p.plane_pitch;
    const int stop = min(first + p.run, p.width);
    const Taps rows = taps_of(p.step_y, p.in_height, oy);
    const float normal = rows.interpolate ? 1.f : 1.f / (rows.end - rows.begin);
    const Taps last = taps_of(p.step_x, p.in_width, stop - 1);
    const int origin = taps_of(p.step_x, p.in_width, first).first * CHANNELS / LANES * LANES;
    const int samples = p.in_width * CHANNELS, end = (last.first + last.count) * CHANNELS;
    for (int at = threadIdx.x * LANES; origin + at < end; at += THREADS * LANES) {
        const int column = origin + at;
        float total[LANES];
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) total[lane] = 0.f;
        for (int tap = 0; tap < rows.count; tap += TAPS) {
            // All of these rows are under way before the first is used.
            alignas(16) input_t lanes[TAPS][LANES];
#pragma unroll
            for (int next = 0; next < TAPS; ++next) {
                const input_t* row = source + (rows.first + min(tap + next, rows.count - 1)) * p.row_pitch + column;
                if (VECTORS && column + LANES <= samples) {
                    *reinterpret_cast<uint4*>(lanes[next]) = __ldg(reinterpret_cast<const uint4*>(row));
                } else {
#pragma unroll
                    for (int lane = 0; lane < LANES; ++lane)
                        lanes[next][lane] = row[min(lane, samples - 1 - column)];
                }
            }
#pragma unroll
            for (int next = 0; next < TAPS; ++next) {
                if (tap + next >= rows.count) break;
                const float weight = weight_of(rows, tap + next) * normal;
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane) total[lane] = fmaf(weight, number(lanes[next][lane]), total[lane]);
            }
        }
#pragma unroll
        for (int lane = 0; lane < LANES; lane += 4)
            *reinterpret_cast<float4*>(sums + at + lane) = make_float4(total[lane], total[lane + 1], total[lane + 2], total[lane + 3]);
    }
    __syncthreads();

    const long long area = static_cast<long long>(p.height) * p.width;
    for (int ox = first + threadIdx.x; ox < stop; ox += THREADS) {
        const Taps columns = taps_of(p.step_x, p.in_width, ox);
        float total[CHANNELS];
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) total[c] = 0.f;
        const float* own = sums + columns.first * CHANNELS - origin;
        for (int tap = 0; tap < columns.count; ++tap) {
            const float weight = weight_of(columns, tap);
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) total[c] = fmaf(weight, own[tap * CHANNELS + c], total[c]);
        }
        const float share = columns.interpolate ? 1.f : 1.f / (columns.end - columns.begin);
        const long long at = static_cast<long long>(oy) * p.width + ox;
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
            const int channel = p.reversed ? p.channels - 1 - (plane + c) : plane + c;
            const float value = fmaf(total[c] * share, p.gain[channel], p.offset[channel]);
            const long long slot = p.channels_last ? at * p.channels + channel : channel * area + at;
            p.out[picture * p.channels * area + slot] = static_cast<output_t>(value);
        }
    }
}
