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
#ifndef CHANNELS       // 1 to 4, interleaved
#define CHANNELS 1
#endif
#ifndef INTERPOLATION  // 0 nearest, 1 linear, 2 cubic
#define INTERPOLATION 1
#endif
#ifndef REPLICATE      // 1 repeats the border, 0 puts the constant outside
#define REPLICATE 1
#endif
#ifndef COARSE         // 1 when maps are read between their samples
#define COARSE 0
#endif

#include <cuda_fp16.h>

using sample_t = SAMPLE;

constexpr int ROWS = 4;

struct Axis {
    float step, shift, scale, offset;
};

struct Job {
    const sample_t* plane;
    const float *map_x, *map_y;
    sample_t* out;
    long long pitch, map_x_pitch, map_y_pitch;  // samples from row to row
    int height, width, map_height, map_width, out_height, out_width;
    Axis y, x;
    float constant[4];
};

struct Pixel {
    float channel[CHANNELS];
};

// One tap along an axis: where it is read, and whether that is inside.
struct Tap {
    int at;
    bool inside;
};

__device__ __forceinline__ Tap tap_at(int index, int length) {
    const int at = min(max(index, 0), length - 1);
    return {at, REPLICATE || at == index};
}

// A plane has fewer than 2^31 samples, so that offsets are ints.
__device__ __forceinline__ void add(Pixel& sum, const Job& job, const Tap y, const Tap x, float weight) {
    const sample_t* source = job.plane + static_cast<unsigned>(y.at * static_cast<int>(job.pitch) + x.at * CHANNELS);
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
        float value = static_cast<float>(source[c]);
        if (!REPLICATE && !(y.inside && x.inside)) value = job.constant[c];
        sum.channel[c] = fmaf(weight, value, sum.channel[c]);
    }
}

// Keys' kernel with a = -0.75: weights of the samples at -1, 0, 1, 2 around a place `t` after sample 0.
__device__ __forceinline__ void cubic_weights(float t, float (&weights)[4]) {
    constexpr float A = -0.75f;
    const float u = t + 1.f, v = 1.f - t;
    weights[0] = ((A * u - 5.f * A) * u + 8.f * A) * u - 4.f * A;
    weights[1] = ((A + 2.f) * t - (A + 3.f)) * t * t + 1.f;
    weights[2] = ((A + 2.f) * v - (A + 3.f)) * v * v + 1.f;
    weights[3] = 1.f - weights[0] - weights[1] - weights[2];
}

struct Place {
    float y, x;
};

// A place that is no number, or further away than an int counts, is outside.
__device__ __forceinline__ float within_reach(float place) { return fabsf(place) < 1e6f ? place : place > 0.f ? 1e6f : -1e6f; }

__device__ __forceinline__ Place place_of(const Job& job, int oy, int ox) {
    Place place;
#if COARSE
    const float my = fminf(fmaxf(fmaf(oy, job.y.step, job.y.shift), 0.f), job.map_height - 1.f);
    const float mx = fminf(fmaxf(fmaf(ox, job.x.step, job.x.shift), 0.f), job.map_width - 1.f);
    const int y0 = static_cast<int>(my), x0 = static_cast<int>(mx);
    const int next_row = y0 + 1 < job.map_height ? 1 : 0, next_column = x0 + 1 < job.map_width ? 1 : 0;
    const float down = my - y0, right = mx - x0;
    const auto read = [&](const float* map, long long pitch) {
        const float* upper = map + static_cast<unsigned>(y0 * static_cast<int>(pitch) + x0);
        const float* lower = upper + next_row * static_cast<int>(pitch);
        const float left_value = fmaf(down, lower[0] - upper[0], upper[0]);
        const float right_value = fmaf(down, lower[next_column] - upper[next_column], upper[next_column]);
        return fmaf(right, right_value - left_value, left_value);
    };
    place.y = read(job.map_y, job.map_y_pitch);
    place.x = read(job.map_x, job.map_x_pitch);
#else
    place.y = job.map_y[static_cast<unsigned>(oy * static_cast<int>(job.map_y_pitch) + ox)];
    place.x = job.map_x[static_cast<unsigned>(oy * static_cast<int>(job.map_x_pitch) + ox)];
#endif
    place.y = within_reach(fmaf(place.y, job.y.scale, job.y.offset));
    place.x = within_reach(fmaf(place.x, job.x.scale, job.x.offset));
    return place;
}

__device__ __forceinline__ sample_t sample_of(float value) {
#if PEAK
    return static_cast<sample_t>(__float2int_rn(fminf(fmaxf(value * (1.f / STEP), 0.f), static_cast<float>(PEAK))) * STEP);
#else
    return static_cast<sample_t>(value);
#endif
}

struct Stack {
    const sample_t* planes;              // [count, height, width], dense
    const float *map_x, *map_y, *weight;  // [out_height, out_width], dense; no weight is 1
    sample_t* out;                       // [count, out_height, out_width], dense
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
    for (int plane = 0; plane < job.count; ++plane) {
        const float left = fmaf(down, static_cast<float>(source[below + before]) - static_cast<float>(source[above + before]),
                                static_cast<float>(source[above + before]));
        const float there = fmaf(down, static_cast<float>(source[below + after]) - static_cast<float>(source[above + after]),
                                 static_cast<float>(source[above + after]));
        const float value = weight * fmaf(right, there - left, left);
        *target = static_cast<sample_t>(job.adds ? value + static_cast<float>(*target) : value);
        source += static_cast<long long>(job.height) * job.width;
        target += static_cast<long long>(job.out_height) * job.out_width;
    }
}

// grid: (columns / blockDim.x, rows / (blockDim.y * ROWS))
extern "C" __global__ void __launch_bounds__(256) remap(const __grid_constant__ Job job) {
    const int ox = blockIdx.x * blockDim.x + threadIdx.x;
    if (ox >= job.out_width) return;
#pragma unroll
    for (int step = 0; step < ROWS; ++step) {
        const int oy = (blockIdx.y * ROWS + step) * blockDim.y + threadIdx.y;
        if (oy >= job.out_height) return;
        const Place place = place_of(job, oy, ox);
        Pixel sum = {};
#if INTERPOLATION == 0
        add(sum, job, tap_at(__float2int_rn(place.y), job.height), tap_at(__float2int_rn(place.x), job.width), 1.f);
#elif INTERPOLATION == 1
        const float floor_y = floorf(place.y), floor_x = floorf(place.x), down = place.y - floor_y, right = place.x - floor_x;
        const int y0 = static_cast<int>(floor_y), x0 = static_cast<int>(floor_x);
        const Tap above = tap_at(y0, job.height), below = tap_at(y0 + 1, job.height);
        const Tap before = tap_at(x0, job.width), after = tap_at(x0 + 1, job.width);
        add(sum, job, above, before, (1.f - down) * (1.f - right));
        add(sum, job, above, after, (1.f - down) * right);
        add(sum, job, below, before, down * (1.f - right));
        add(sum, job, below, after, down * right);
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
                add(sum, job, tap_at(y0 - 1 + j, job.height), tap_at(x0 - 1 + i, job.width), rows[j] * columns[i]);
#endif
        sample_t* target = job.out + (static_cast<long long>(oy) * job.out_width + ox) * CHANNELS;
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) target[c] = sample_of(sum.channel[c]);
    }
}
