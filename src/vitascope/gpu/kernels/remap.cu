// A plane read where maps say; the contract and the reference are in remap.py.
//
//   place = map(o * step + shift) * scale + offset        out(o) = sum of weight(place) * plane
//
// Sample centres lie at whole numbers. The map is read bilinearly where it is coarser than the result. A thread makes
// ROWS samples of a column: a warp writes runs of a row, and neighbours' reads fall into the same lines.

#ifndef SAMPLE         // unsigned char, unsigned short, __half or float
#define SAMPLE unsigned char
#endif
#ifndef PEAK           // largest code, 0 for floats
#define PEAK 255
#endif
#ifndef STEP           // distance of codes in their words: 64 in P010
#define STEP 1
#endif
#ifndef CHANNELS       // 1 to 4, interleaved; a frame's planes have one and two
#define CHANNELS 1
#endif
#ifndef INTERPOLATION  // 0 nearest, 1 linear, 2 cubic
#define INTERPOLATION 1
#endif
#ifndef REPLICATE      // 1 repeats the border, 0 puts the constant outside
#define REPLICATE 1
#endif
#ifndef PAIRS          // 1 when every row of the maps begins on 8 bytes and has an even number of samples
#define PAIRS 0
#endif
#ifndef FRAMES         // frames that are read by the same maps, 1 or 2
#define FRAMES 1
#endif
#ifndef COARSE         // 1 when maps are read between their samples
#define COARSE 0
#endif

#include <cuda_fp16.h>

#include "cubic.cuh"

using sample_t = SAMPLE;

constexpr int ROWS = 4;

struct Axis {
    float step, shift, scale, offset;
};

struct Plane {
    const sample_t* data;
    long long pitch;  // samples from row to row
    int height, width;
    float constant[4];
};

struct Maps {
    const float *x, *y;
    long long x_pitch, y_pitch;
    int height, width;
};

struct Job {
    Plane plane;
    Maps maps;
    sample_t* out;
    int out_height, out_width;
    Axis y, x;
};

template <int COUNT>
struct Pixel {
    float channel[COUNT];
};

// One tap along an axis: where it is read, and whether that is inside.
struct Tap {
    int at;
    bool inside;
};

// INSIDE: all taps are known to be, and nothing is asked.
template <bool INSIDE>
__device__ __forceinline__ Tap tap_at(int index, int length) {
    if (INSIDE) return {index, true};
    const int at = min(max(index, 0), length - 1);
    return {at, REPLICATE || at == index};
}

// A plane has fewer than 2^31 samples, so that offsets are ints.
template <int COUNT, bool INSIDE>
__device__ __forceinline__ void add(Pixel<COUNT>& sum, const Plane& plane, const Tap y, const Tap x, float weight) {
    const sample_t* source = plane.data + static_cast<unsigned>(y.at * static_cast<int>(plane.pitch) + x.at * COUNT);
#pragma unroll
    for (int c = 0; c < COUNT; ++c) {
        float value = static_cast<float>(source[c]);
        if (!INSIDE && !REPLICATE && !(y.inside && x.inside)) value = plane.constant[c];
        sum.channel[c] = fmaf(weight, value, sum.channel[c]);
    }
}

struct Place {
    float y, x;
};

// A place that is no number, or further away than an int counts, is outside.
__device__ __forceinline__ float within_reach(float place) { return fabsf(place) < 1e6f ? place : place > 0.f ? 1e6f : -1e6f; }

__device__ __forceinline__ float map_at(const float* map, long long pitch, int y, int x) {
    return map[static_cast<unsigned>(y * static_cast<int>(pitch) + x)];
}

// Between four of a map's samples.
__device__ __forceinline__ float between(float upper, float upper_next, float lower, float lower_next, float down, float right) {
    const float left_value = fmaf(down, lower - upper, upper), right_value = fmaf(down, lower_next - upper_next, upper_next);
    return fmaf(right, right_value - left_value, left_value);
}

__device__ __forceinline__ Place scaled(Place place, const Axis& y, const Axis& x) {
    return {within_reach(fmaf(place.y, y.scale, y.offset)), within_reach(fmaf(place.x, x.scale, x.offset))};
}

__device__ __forceinline__ Place place_of(const Job& job, int oy, int ox) {
    const Maps& maps = job.maps;
    Place place;
#if COARSE
    const float my = fminf(fmaxf(fmaf(oy, job.y.step, job.y.shift), 0.f), maps.height - 1.f);
    const float mx = fminf(fmaxf(fmaf(ox, job.x.step, job.x.shift), 0.f), maps.width - 1.f);
    const int y0 = static_cast<int>(my), x0 = static_cast<int>(mx);
    const int y1 = min(y0 + 1, maps.height - 1), x1 = min(x0 + 1, maps.width - 1);
    const float down = my - y0, right = mx - x0;
    const auto read = [&](const float* map, long long pitch) {
        return between(map_at(map, pitch, y0, x0), map_at(map, pitch, y0, x1), map_at(map, pitch, y1, x0),
                       map_at(map, pitch, y1, x1), down, right);
    };
    place = {read(maps.y, maps.y_pitch), read(maps.x, maps.x_pitch)};
#else
    place = {map_at(maps.y, maps.y_pitch, oy, ox), map_at(maps.x, maps.x_pitch, oy, ox)};
#endif
    return scaled(place, job.y, job.x);
}

// Whether all taps around a place are inside.
__device__ __forceinline__ bool is_inside(const Plane& plane, const Place place) {
    constexpr float BEFORE = INTERPOLATION == 2 ? 1.f : 0.f, AFTER = INTERPOLATION == 2 ? 2.f : 1.f;
    return place.y >= BEFORE && place.y < plane.height - AFTER && place.x >= BEFORE && place.x < plane.width - AFTER;
}

template <int COUNT, bool INSIDE>
__device__ __forceinline__ Pixel<COUNT> read_at(const Plane& plane, const Place place) {
    Pixel<COUNT> sum = {};
    const auto row = [&](int index) { return tap_at<INSIDE>(index, plane.height); };
    const auto column = [&](int index) { return tap_at<INSIDE>(index, plane.width); };
#if INTERPOLATION == 0
    add<COUNT, INSIDE>(sum, plane, row(__float2int_rn(place.y)), column(__float2int_rn(place.x)), 1.f);
#elif INTERPOLATION == 1
    const float floor_y = floorf(place.y), floor_x = floorf(place.x), down = place.y - floor_y, right = place.x - floor_x;
    const int y0 = static_cast<int>(floor_y), x0 = static_cast<int>(floor_x);
    const Tap above = row(y0), below = row(y0 + 1), before = column(x0), after = column(x0 + 1);
    add<COUNT, INSIDE>(sum, plane, above, before, (1.f - down) * (1.f - right));
    add<COUNT, INSIDE>(sum, plane, above, after, (1.f - down) * right);
    add<COUNT, INSIDE>(sum, plane, below, before, down * (1.f - right));
    add<COUNT, INSIDE>(sum, plane, below, after, down * right);
#else
    const float floor_y = floorf(place.y), floor_x = floorf(place.x);
    const int y0 = static_cast<int>(floor_y), x0 = static_cast<int>(floor_x);
    float rows[4], columns[4];
    cubic_weights(place.y - floor_y, rows);
    cubic_weights(place.x - floor_x, columns);
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            add<COUNT, INSIDE>(sum, plane, row(y0 - 1 + j), column(x0 - 1 + i), rows[j] * columns[i]);
#endif
    return sum;
}

__device__ __forceinline__ sample_t sample_of(float value) {
#if PEAK
    return static_cast<sample_t>(__float2int_rn(fminf(fmaxf(value * (1.f / STEP), 0.f), static_cast<float>(PEAK))) * STEP);
#else
    return static_cast<sample_t>(value);
#endif
}

struct Stack {
    const sample_t* planes;              // [count, height, width], each dense
    const float *map_x, *map_y, *weight;  // [out_height, out_width], dense; no weight is 1
    sample_t* out;                       // [count, out_height, out_width], dense
    long long pitch;                     // samples from plane to plane
    int count, height, width, out_height, out_width, adds;
};

// A thread reads the maps once for its place in all planes. grid: (columns / blockDim.x, rows / blockDim.y)
extern "C" __global__ void __launch_bounds__(256) remap_stack(const __grid_constant__ Stack job) {
    const int ox = blockIdx.x * blockDim.x + threadIdx.x, oy = blockIdx.y * blockDim.y + threadIdx.y;
    if (ox >= job.out_width || oy >= job.out_height) return;
    const int at = oy * job.out_width + ox;
    const float y = within_reach(job.map_y[at]), x = within_reach(job.map_x[at]);
    const float floor_y = floorf(y), floor_x = floorf(x), down = y - floor_y, right = x - floor_x;
    const int y0 = static_cast<int>(floor_y), x0 = static_cast<int>(floor_x);
    const int above = min(max(y0, 0), job.height - 1) * job.width, below = min(max(y0 + 1, 0), job.height - 1) * job.width;
    const int before = min(max(x0, 0), job.width - 1), after = min(max(x0 + 1, 0), job.width - 1);
    const float weight = job.weight ? job.weight[at] : 1.f;
    const sample_t* source = job.planes;
    sample_t* target = job.out + at;
    const long long stride = static_cast<long long>(job.out_height) * job.out_width;
    if (weight == 0.f) {  // nothing is read where it counts nothing
        for (int plane = 0; plane < job.count && !job.adds; ++plane) target[plane * stride] = static_cast<sample_t>(0.f);
        return;
    }
    for (int plane = 0; plane < job.count; ++plane) {
        const float left = fmaf(down, static_cast<float>(source[below + before]) - static_cast<float>(source[above + before]),
                                static_cast<float>(source[above + before]));
        const float there = fmaf(down, static_cast<float>(source[below + after]) - static_cast<float>(source[above + after]),
                                 static_cast<float>(source[above + after]));
        const float value = weight * fmaf(right, there - left, left);
        *target = static_cast<sample_t>(job.adds ? value + static_cast<float>(*target) : value);
        source += job.pitch;
        target += stride;
    }
}

template <int COUNT>
__device__ __forceinline__ void write(sample_t* target, const Pixel<COUNT>& pixel) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) target[c] = sample_of(pixel.channel[c]);
}

// grid: (columns / blockDim.x, rows / (blockDim.y * ROWS))
extern "C" __global__ void __launch_bounds__(256) remap(const __grid_constant__ Job job) {
    const int ox = blockIdx.x * blockDim.x + threadIdx.x;
    if (ox >= job.out_width) return;
#pragma unroll
    for (int step = 0; step < ROWS; ++step) {
        const int oy = (blockIdx.y * ROWS + step) * blockDim.y + threadIdx.y;
        if (oy >= job.out_height) return;
        write(job.out + (static_cast<long long>(oy) * job.out_width + ox) * CHANNELS,
              read_at<CHANNELS, false>(job.plane, place_of(job, oy, ox)));
    }
}

struct __align__(2 * sizeof(sample_t)) Pair {
    sample_t first, second;
};

// To a place of an even number of samples.
__device__ __forceinline__ void write_pair(sample_t* target, float first, float second) {
    *reinterpret_cast<Pair*>(target) = {sample_of(first), sample_of(second)};
}

struct FramesJob {
    Plane luma[FRAMES], chroma[FRAMES];
    Maps maps;
    sample_t *out_luma, *out_chroma;
    int out_height, out_width;  // of each frame's result
    Axis y, x;                  // chroma's: luma samples from the first of a block to its site are the shift
};

// A chroma site and its four luma samples.
struct Block {
    Pixel<1> luma[2][2];
    Pixel<2> chroma;
};

// All are read, also those beyond the last column or row, so that no read waits for another.
template <bool INSIDE>
__device__ __forceinline__ void read_blocks(Block (&blocks)[FRAMES], const FramesJob& job, const Place (&places)[2][2], const Place site) {
#pragma unroll
    for (int frame = 0; frame < FRAMES; ++frame) {
#pragma unroll
        for (int at = 0; at < 4; ++at) blocks[frame].luma[at / 2][at % 2] = read_at<1, INSIDE>(job.luma[frame], places[at / 2][at % 2]);
        blocks[frame].chroma = read_at<2, INSIDE>(job.chroma[frame], site);
    }
}

// NV12 and P010: a thread reads the maps once for a chroma site and its four luma samples, of all frames. Their results
// lie side by side.
// grid: (chroma columns / blockDim.x, chroma rows / blockDim.y)
extern "C" __global__ void __launch_bounds__(256) remap_frames(const __grid_constant__ FramesJob job) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (2 * column >= job.out_width || 2 * row >= job.out_height) return;
    Place places[2][2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const int y = min(2 * row + j, job.maps.height - 1), x = 2 * column;
#if PAIRS
        const float2 down = *reinterpret_cast<const float2*>(job.maps.y + static_cast<unsigned>(y * static_cast<int>(job.maps.y_pitch) + x));
        const float2 across = *reinterpret_cast<const float2*>(job.maps.x + static_cast<unsigned>(y * static_cast<int>(job.maps.x_pitch) + x));
        places[j][0] = {down.x, across.x}, places[j][1] = {down.y, across.y};
#else
        const int next = min(x + 1, job.maps.width - 1);
        places[j][0] = {map_at(job.maps.y, job.maps.y_pitch, y, x), map_at(job.maps.x, job.maps.x_pitch, y, x)};
        places[j][1] = {map_at(job.maps.y, job.maps.y_pitch, y, next), map_at(job.maps.x, job.maps.x_pitch, y, next)};
#endif
    }
    const auto at_site = [&](float Place::*axis) {
        return between(places[0][0].*axis, places[0][1].*axis, places[1][0].*axis, places[1][1].*axis, job.y.shift, job.x.shift);
    };
    const Place site = scaled({at_site(&Place::y), at_site(&Place::x)}, job.y, job.x);
    bool inside = is_inside(job.chroma[0], site);  // frames are of one size
#pragma unroll
    for (int at = 0; at < 4; ++at) {
        Place& place = places[at / 2][at % 2];
        inside &= is_inside(job.luma[0], place);
        place = {within_reach(place.y), within_reach(place.x)};
    }
    Block blocks[FRAMES];
    if (inside)
        read_blocks<true>(blocks, job, places, site);
    else
        read_blocks<false>(blocks, job, places, site);
    const int chroma_width = (job.out_width + 1) / 2;
#pragma unroll
    for (int frame = 0; frame < FRAMES; ++frame) {
        write_pair(job.out_chroma + ((static_cast<long long>(row) * FRAMES + frame) * chroma_width + column) * 2,
                   blocks[frame].chroma.channel[0], blocks[frame].chroma.channel[1]);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int y = 2 * row + j;
            if (y >= job.out_height) continue;
            sample_t* target = job.out_luma + (static_cast<long long>(y) * FRAMES + frame) * job.out_width + 2 * column;
            if (job.out_width % 2 == 0) {
                write_pair(target, blocks[frame].luma[j][0].channel[0], blocks[frame].luma[j][1].channel[0]);
            } else {
                write(target, blocks[frame].luma[j][0]);
                if (2 * column + 1 < job.out_width) write(target + 1, blocks[frame].luma[j][1]);
            }
        }
    }
}
