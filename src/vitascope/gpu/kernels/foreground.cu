// Colours of person and scene near every sample of a small picture; the contract and the reference are in foreground.py.
//
//   gather_cells   sums of 8x8 samples: alpha * R, G, B and alpha; R, G, B and how many
//   spread_cells   of them the wide means of person and scene, over 11x11 cells
//   near_colors    of them the person's narrow means, over 9x9 samples, and the scene's as they are, beside alpha's coefficients

#ifndef COLOR        // of the picture: float or __half
#define COLOR float
#endif
#ifndef COEFFICIENT  // of gain, offset and what is made: float or __half
#define COEFFICIENT float
#endif

#include <cuda_fp16.h>

using color_t = COLOR;
using coefficient_t = COEFFICIENT;

constexpr int CELL = 8, WIDE = 5, NARROW = 4, SUMS = 8, NEAR_SUMS = 5;
constexpr int BLOCK_X = 32, BLOCK_Y = 8;
constexpr int TILE_X = BLOCK_X + 2 * NARROW, TILE_Y = BLOCK_Y + 2 * NARROW;
constexpr float LEAST_SHARE = 1e-3f, NOTHING = 1e-4f;

struct Sample {
    float rgb[3], alpha;
};

__device__ __forceinline__ Sample sample_at(const color_t* rgb, const coefficient_t* gain, const coefficient_t* offset, long long at,
                                            long long plane) {
    Sample sample;
#pragma unroll
    for (int c = 0; c < 3; ++c) sample.rgb[c] = static_cast<float>(rgb[c * plane + at]);
    const float grey = (sample.rgb[0] + sample.rgb[1] + sample.rgb[2]) * (1.f / 3.f);
    sample.alpha = __saturatef(fmaf(static_cast<float>(gain[at]), grey, static_cast<float>(offset[at])));
    return sample;
}

// grid: (columns, rows, eyes) of cells; a block is one cell
extern "C" __global__ void __launch_bounds__(CELL* CELL) gather_cells(const color_t* rgb, const coefficient_t* gain,
                                                                      const coefficient_t* offset, float* sums, int height, int width) {
    __shared__ float halves[SUMS];
    const long long plane = static_cast<long long>(height) * width;
    const int x = blockIdx.x * CELL + threadIdx.x, y = blockIdx.y * CELL + threadIdx.y;
    float parts[SUMS] = {};
    if (x < width && y < height) {
        const long long eye = blockIdx.z;
        const Sample sample = sample_at(rgb + 3 * eye * plane, gain + eye * plane, offset + eye * plane,
                                        static_cast<long long>(y) * width + x, plane);
#pragma unroll
        for (int c = 0; c < 3; ++c) parts[c] = sample.alpha * sample.rgb[c], parts[4 + c] = sample.rgb[c];
        parts[3] = sample.alpha, parts[7] = 1.f;
    }
    const int thread = threadIdx.y * CELL + threadIdx.x;
#pragma unroll
    for (int s = 0; s < SUMS; ++s)
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) parts[s] += __shfl_down_sync(0xffffffffu, parts[s], distance);
    if (thread == 32)
#pragma unroll
        for (int s = 0; s < SUMS; ++s) halves[s] = parts[s];
    __syncthreads();
    if (thread == 0) {
        float* const cell = sums + ((static_cast<long long>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * SUMS;
#pragma unroll
        for (int s = 0; s < SUMS; ++s) cell[s] = parts[s] + halves[s];
    }
}

// Of `wide` the first three are the person's mean, those from 4 on the scene's.
extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) spread_cells(const float* sums, float* wide, int rows, int columns) {
    const int x = blockIdx.x * BLOCK_X + threadIdx.x, y = blockIdx.y * BLOCK_Y + threadIdx.y;
    if (x >= columns || y >= rows) return;
    const float* const eye = sums + static_cast<long long>(blockIdx.z) * rows * columns * SUMS;
    float total[SUMS] = {};
    for (int row = max(y - WIDE, 0); row <= min(y + WIDE, rows - 1); ++row)
        for (int column = max(x - WIDE, 0); column <= min(x + WIDE, columns - 1); ++column)
#pragma unroll
            for (int s = 0; s < SUMS; ++s) total[s] += eye[(row * columns + column) * SUMS + s];
    const float least = LEAST_SHARE * total[7];
    float* const made = wide + ((static_cast<long long>(blockIdx.z) * rows + y) * columns + x) * SUMS;
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const float prior = least * (total[4 + c] / total[7]);
        made[c] = (total[c] + prior) / (total[3] + least);
        made[4 + c] = (total[4 + c] - total[c] + prior) / (total[7] - total[3] + least);
    }
    made[3] = made[7] = 0.f;
}

// Between the centres of cells; the outermost repeat.
__device__ __forceinline__ void read_wide(float (&person)[3], float (&scene)[3], const float* wide, int x, int y, int rows, int columns) {
    const float column = fminf(fmaxf((x + 0.5f) * (1.f / CELL) - 0.5f, 0.f), columns - 1.f);
    const float row = fminf(fmaxf((y + 0.5f) * (1.f / CELL) - 0.5f, 0.f), rows - 1.f);
    const int left = static_cast<int>(column), upper = static_cast<int>(row);
    const int right = min(left + 1, columns - 1), lower = min(upper + 1, rows - 1);
    const float right_share = column - left, lower_share = row - upper;
    const float* const a = wide + (upper * columns + left) * SUMS;
    const float* const b = wide + (upper * columns + right) * SUMS;
    const float* const c = wide + (lower * columns + left) * SUMS;
    const float* const d = wide + (lower * columns + right) * SUMS;
    const auto between = [&](int s) {
        const float above = fmaf(right_share, b[s] - a[s], a[s]), below = fmaf(right_share, d[s] - c[s], c[s]);
        return fmaf(lower_share, below - above, above);
    };
#pragma unroll
    for (int i = 0; i < 3; ++i) person[i] = between(i), scene[i] = between(4 + i);
}

// grid: (columns / 32, rows / 8, eyes)
extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) near_colors(const color_t* rgb, const coefficient_t* gain,
                                                                           const coefficient_t* offset, const float* wide,
                                                                           coefficient_t* persons, coefficient_t* scenes, int height,
                                                                           int width) {
    // alpha * person, alpha, and what is left of it; then their sums along rows.
    __shared__ float tile[NEAR_SUMS][TILE_Y][TILE_X];
    __shared__ float across[NEAR_SUMS][TILE_Y][BLOCK_X];
    const long long plane = static_cast<long long>(height) * width, eye = blockIdx.z;
    const int rows = (height + CELL - 1) / CELL, columns = (width + CELL - 1) / CELL;
    rgb += 3 * eye * plane, gain += eye * plane, offset += eye * plane;
    wide += eye * rows * columns * SUMS;
    const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
    for (int i = thread; i < TILE_X * TILE_Y; i += BLOCK_X * BLOCK_Y) {
        const int tile_x = i % TILE_X, tile_y = i / TILE_X;
        const int x = static_cast<int>(blockIdx.x * BLOCK_X) + tile_x - NARROW, y = static_cast<int>(blockIdx.y * BLOCK_Y) + tile_y - NARROW;
        float values[NEAR_SUMS] = {};
        if (x >= 0 && x < width && y >= 0 && y < height) {
            const Sample sample = sample_at(rgb, gain, offset, static_cast<long long>(y) * width + x, plane);
            float person[3], scene[3];
            read_wide(person, scene, wide, x, y, rows, columns);
            const float own = sample.alpha, rest = 1.f - own;
#pragma unroll
            for (int c = 0; c < 3; ++c) values[c] = own * (person[c] + own * (sample.rgb[c] - own * person[c] - rest * scene[c]));
            values[3] = own, values[4] = rest;
        }
#pragma unroll
        for (int s = 0; s < NEAR_SUMS; ++s) tile[s][tile_y][tile_x] = values[s];
    }
    __syncthreads();
    for (int i = thread; i < BLOCK_X * TILE_Y; i += BLOCK_X * BLOCK_Y) {
        const int column = i % BLOCK_X, row = i / BLOCK_X;
#pragma unroll
        for (int s = 0; s < NEAR_SUMS; ++s) {
            float sum = 0.f;
#pragma unroll
            for (int k = 0; k <= 2 * NARROW; ++k) sum += tile[s][row][column + k];
            across[s][row][column] = sum;
        }
    }
    __syncthreads();
    const int x = blockIdx.x * BLOCK_X + threadIdx.x, y = blockIdx.y * BLOCK_Y + threadIdx.y;
    if (x >= width || y >= height) return;
    float sums[NEAR_SUMS];
#pragma unroll
    for (int s = 0; s < NEAR_SUMS; ++s) {
        sums[s] = 0.f;
#pragma unroll
        for (int k = 0; k <= 2 * NARROW; ++k) sums[s] += across[s][threadIdx.y + k][threadIdx.x];
    }
    const long long at = static_cast<long long>(y) * width + x;
    persons += 4 * eye * plane + at, scenes += 4 * eye * plane + at;
    persons[3 * plane] = gain[at], scenes[3 * plane] = offset[at];
    if (sums[3] > NOTHING && sums[4] > NOTHING) {
        constexpr float LEAST = LEAST_SHARE * (2 * NARROW + 1) * (2 * NARROW + 1);
        float person[3], scene[3];
        read_wide(person, scene, wide, x, y, rows, columns);
#pragma unroll
        for (int c = 0; c < 3; ++c) {
            persons[c * plane] = static_cast<coefficient_t>((sums[c] + LEAST * person[c]) / (sums[3] + LEAST));
            scenes[c * plane] = static_cast<coefficient_t>(scene[c]);
        }
        return;
    }
#pragma unroll
    for (int c = 0; c < 3; ++c)
        persons[c * plane] = scenes[c * plane] = static_cast<coefficient_t>(static_cast<float>(rgb[c * plane + at]));
}
