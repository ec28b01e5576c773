// The blur of the background without the person; the contract and the reference are in blur.py.
//
//   out = G * (plane * w) / max(G * w, least),  w = full scale - weight
//
// Where an axis shrinks: shrink_weighted averages (plane * w, w) down, blur_tiles blurs and divides at the small size,
// grow interpolates back to codes. Where neither does, blur_tiles alone goes from codes to codes.
//
// The channels of an interleaved plane are neighbouring samples: sample s of a row belongs to pixel s / CHANNELS.

#ifndef SAMPLE           // unsigned char or unsigned short
#define SAMPLE unsigned char
#endif
#ifndef WEIGHT           // unsigned char or unsigned short
#define WEIGHT unsigned char
#endif
#ifndef CHANNELS         // of the plane: 1 or 2
#define CHANNELS 1
#endif
#ifndef WEIGHT_CHANNELS  // 1, or as many as the plane has
#define WEIGHT_CHANNELS 1
#endif
#ifndef SHRUNK           // 1 when blur_tiles reads what shrink_weighted wrote, 0 when it reads the plane
#define SHRUNK 1
#endif
#ifndef VECTORS          // 1 when rows of plane and weight begin and end on 16 bytes
#define VECTORS 1
#endif

using sample_t = SAMPLE;
using weight_t = WEIGHT;

constexpr int SHARING = CHANNELS / WEIGHT_CHANNELS;  // samples that share a weight
constexpr int LANES = 16 / sizeof(sample_t);
constexpr int THREADS = 128;
constexpr int SPAN = 2048;  // samples of a row that a block sums
constexpr int LOADS = SPAN / LANES / THREADS;
constexpr float WEIGHT_PEAK = sizeof(weight_t) == 1 ? 255.f : 65535.f;
constexpr float SAMPLE_PEAK = sizeof(sample_t) == 1 ? 255.f : 65535.f;

constexpr int MAX_RADIUS = 36;
// The shrunk picture is small whatever the frame: low tiles spread it over the whole GPU.
constexpr int TILE_WIDTH = 32, TILE_HEIGHT = SHRUNK ? 16 : 64, WARPS = 8;

struct Picture {
    const sample_t* plane;
    const weight_t* weight;
    long long pitch, weight_pitch;  // samples from row to row
    int height, width;              // pixels
};

struct Gaussian {
    int radius_y, radius_x;
    float least_share;
    float column[2 * MAX_RADIUS + 1], row[2 * MAX_RADIUS + 1];
};

template <int BYTES>
__device__ __forceinline__ void load_bytes(void* target, const void* source) {
    if constexpr (BYTES > 16) {
#pragma unroll
        for (int part = 0; part < BYTES / 16; ++part)
            reinterpret_cast<uint4*>(target)[part] = __ldg(reinterpret_cast<const uint4*>(source) + part);
    } else if constexpr (BYTES == 16) {
        *reinterpret_cast<uint4*>(target) = __ldg(reinterpret_cast<const uint4*>(source));
    } else if constexpr (BYTES == 8) {
        *reinterpret_cast<uint2*>(target) = __ldg(reinterpret_cast<const uint2*>(source));
    } else {
        *reinterpret_cast<unsigned*>(target) = __ldg(reinterpret_cast<const unsigned*>(source));
    }
}

// Means of (plane * w, w) over the windows [o * step, (o + 1) * step) of both axes.
// grid: (runs of a row, rows of the small plane)
extern "C" __global__ void __launch_bounds__(THREADS)
    shrink_weighted(Picture picture, float2* small, int small_width, int run, float step_y, float step_x) {
    __shared__ float2 sums[SPAN];
    const int samples = picture.width * CHANNELS;
    const float top = blockIdx.y * step_y, bottom = fminf(top + step_y, picture.height);
    const int first_row = static_cast<int>(top), end_row = static_cast<int>(ceilf(bottom));
    const int first = blockIdx.x * run;
    const int origin = static_cast<int>(first * step_x) * CHANNELS / LANES * LANES;
    for (int load = 0; load < LOADS; ++load) {
        const int at = (load * THREADS + threadIdx.x) * LANES, column = origin + at;
        if (column >= samples) break;
        float mass[LANES], share[LANES];
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) mass[lane] = share[lane] = 0.f;
#pragma unroll 4
        for (int row = first_row; row < end_row; ++row) {
            const float part = fminf(row + 1.f, bottom) - fmaxf(row, top);
            const sample_t* codes = picture.plane + row * picture.pitch + column;
            const weight_t* weights = picture.weight + row * picture.weight_pitch + column / SHARING;
            alignas(16) sample_t code[LANES];
            alignas(16) weight_t weight[LANES / SHARING];
#if VECTORS
            load_bytes<LANES * sizeof(sample_t)>(code, codes);
            load_bytes<LANES / SHARING * sizeof(weight_t)>(weight, weights);
#else
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const bool inside = column + lane < samples;
                code[lane] = inside ? codes[lane] : static_cast<sample_t>(0);
                if (lane % SHARING == 0) weight[lane / SHARING] = inside ? weights[lane / SHARING] : static_cast<weight_t>(0);
            }
#endif
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const float remaining = part * (WEIGHT_PEAK - weight[lane / SHARING]);
                mass[lane] += remaining * code[lane];
                share[lane] += remaining;
            }
        }
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) sums[at + lane] = make_float2(mass[lane], share[lane]);
    }
    __syncthreads();
    const int stop = min(first + run, small_width) * CHANNELS;
    for (int output = first * CHANNELS + threadIdx.x; output < stop; output += THREADS) {
        const int channel = output % CHANNELS;
        const float begin = output / CHANNELS * step_x, end = fminf(begin + step_x, picture.width);
        float mass = 0.f, share = 0.f;
        for (int column = static_cast<int>(begin); column < end; ++column) {
            const float part = fminf(column + 1.f, end) - fmaxf(column, begin);
            const float2 sum = sums[column * CHANNELS + channel - origin];
            mass += part * sum.x;
            share += part * sum.y;
        }
        const float normal = 1.f / ((end - begin) * (bottom - top));
        small[static_cast<long long>(blockIdx.y) * small_width * CHANNELS + output] = make_float2(mass * normal, share * normal);
    }
}

__device__ __forceinline__ float2 weighted_sample(const Picture& picture, const float2* small, int row, int sample) {
#if SHRUNK
    return small[static_cast<long long>(row) * picture.width * CHANNELS + sample];
#else
    const float remaining = WEIGHT_PEAK - picture.weight[row * picture.weight_pitch + sample / SHARING];
    return make_float2(remaining * picture.plane[row * picture.pitch + sample], remaining);
#endif
}

__device__ __forceinline__ sample_t code_of(float value) {
    return static_cast<sample_t>(__float2int_rn(fminf(fmaxf(value, 0.f), SAMPLE_PEAK)));
}

// Separable Gaussian of (mass, share), and their quotient, a tile of 32 samples x TILE_HEIGHT rows a block.
// `picture` has the size of what is blurred; `out` is float [height, width * CHANNELS], or codes when nothing shrank.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    blur_tiles(Picture picture, const float2* small, void* out, const __grid_constant__ Gaussian gaussian) {
    __shared__ float2 segments[WARPS][TILE_WIDTH + 2 * MAX_RADIUS * CHANNELS];
    __shared__ float2 rows[TILE_HEIGHT + 2 * MAX_RADIUS][TILE_WIDTH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int left = blockIdx.x * TILE_WIDTH, top = blockIdx.y * TILE_HEIGHT;
    const int samples = picture.width * CHANNELS;
    const int reach = gaussian.radius_x * CHANNELS;
    const int tile_rows = min(TILE_HEIGHT, picture.height - top) + 2 * gaussian.radius_y;
    float2* segment = segments[warp];
    for (int row = warp; row < tile_rows; row += WARPS) {
        const int y = min(max(top - gaussian.radius_y + row, 0), picture.height - 1);
        for (int at = lane; at < TILE_WIDTH + 2 * reach; at += 32) {
            // Channels keep their parity when the border repeats.
            const int sample = left - reach + at, channel = at % CHANNELS;
            segment[at] = weighted_sample(picture, small, y, min(max(sample, channel), samples - CHANNELS + channel));
        }
        __syncwarp();
        float2 sum = make_float2(0.f, 0.f);
        for (int tap = 0; tap <= 2 * gaussian.radius_x; ++tap) {
            const float2 value = segment[lane + tap * CHANNELS];
            sum.x += gaussian.row[tap] * value.x;
            sum.y += gaussian.row[tap] * value.y;
        }
        rows[row][lane] = sum;
        __syncwarp();
    }
    __syncthreads();
    const int sample = left + lane;
    if (sample >= samples) return;
    for (int row = warp; row < TILE_HEIGHT && top + row < picture.height; row += WARPS) {
        float2 sum = make_float2(0.f, 0.f);
        for (int tap = 0; tap <= 2 * gaussian.radius_y; ++tap) {
            const float2 value = rows[row + tap][lane];
            sum.x += gaussian.column[tap] * value.x;
            sum.y += gaussian.column[tap] * value.y;
        }
        const float blurred = sum.x / fmaxf(sum.y, gaussian.least_share);
        const long long at = static_cast<long long>(top + row) * samples + sample;
#if SHRUNK
        static_cast<float*>(out)[at] = blurred;
#else
        static_cast<sample_t*>(out)[at] = code_of(blurred);
#endif
    }
}

// Position of output `index` on an axis of `length` samples: pixel centres at halves, borders repeat.
__device__ __forceinline__ float source_position(int index, float scale, int length) {
    return fminf(fmaxf(fmaf(index + 0.5f, scale, -0.5f), 0.f), length - 1.f);
}

// Between the least and the largest code, as what lies between codes does: 2^23 + x has x, rounded, in its low bits.
__device__ __forceinline__ sample_t inner_code_of(float value) {
    return static_cast<sample_t>(__float_as_uint(value + 8388608.f));
}

// Bilinear growth to codes; rows of `out` are dense. A block makes two rows: it first interpolates the small rows
// around them, a float2 a cell, so that a sample is one interpolation of two cells for both.
// grid: (pieces of THREADS * LANES samples of a row, pairs of rows)
extern "C" __global__ void __launch_bounds__(THREADS)
    grow(const float* small, sample_t* out, int small_height, int small_width, int height, int width, float scale_y,
         float scale_x) {
    __shared__ float2 cells[THREADS * LANES + 4 * CHANNELS];
    const int samples = width * CHANNELS, block_first = blockIdx.x * THREADS * LANES, y = 2 * blockIdx.y;
    const int block_last = min(block_first + THREADS * LANES, samples) - 1;
    const int first_cell = static_cast<int>(source_position(block_first / CHANNELS, scale_x, small_width));
    const int last_cell = min(static_cast<int>(source_position(block_last / CHANNELS, scale_x, small_width)) + 1, small_width - 1);
    const float *upper[2], *lower[2];
    float down[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float position = source_position(y + half, scale_y, small_height);
        const int above = static_cast<int>(position);
        down[half] = position - above;
        upper[half] = small + static_cast<long long>(above) * small_width * CHANNELS;
        lower[half] = small + static_cast<long long>(min(above + 1, small_height - 1)) * small_width * CHANNELS;
    }
    for (int at = threadIdx.x; at < (last_cell - first_cell + 1) * CHANNELS; at += THREADS) {
        const int cell = first_cell * CHANNELS + at;
        cells[at] = make_float2(fmaf(down[0], lower[0][cell] - upper[0][cell], upper[0][cell]),
                                fmaf(down[1], lower[1][cell] - upper[1][cell], upper[1][cell]));
    }
    __syncthreads();
    const int first = block_first + threadIdx.x * LANES;
    if (first >= samples) return;
    alignas(16) sample_t codes[2][LANES];
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        const int channel = lane % CHANNELS;
        const float position = source_position(min(first + lane, samples - 1) / CHANNELS, scale_x, small_width);
        const int before = static_cast<int>(position);
        const float right = position - before;
        const float2 a = cells[(before - first_cell) * CHANNELS + channel];
        const float2 b = cells[(min(before + 1, last_cell) - first_cell) * CHANNELS + channel];
        codes[0][lane] = inner_code_of(fmaf(right, b.x - a.x, a.x));
        codes[1][lane] = inner_code_of(fmaf(right, b.y - a.y, a.y));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (y + half >= height) return;
        sample_t* target = out + static_cast<long long>(y + half) * samples + first;
        if (samples % LANES == 0) {
            *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(codes[half]);
        } else {
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane)
                if (first + lane < samples) target[lane] = codes[half][lane];
        }
    }
}
