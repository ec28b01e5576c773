// NV12/P010 to full-resolution RGB and back; the contract and the reference are in rgb.py.
//
//   rgb = clip(M * (Y, U, V) + t, 0, 1)        chroma read bilinearly at every luma sample
//   (Y, U, V) = clip(round(M' * rgb + t'))     chroma averaged over the samples that a site stands for
//
// A thread makes 8 columns of two rows, the rows of one chroma row. Interleaved RGB, whose pixels are no power of two
// wide, goes through shared memory, so that a warp's accesses to device memory are whole lines.

#ifndef SAMPLE         // unsigned char for NV12, unsigned short for P010
#define SAMPLE unsigned char
#endif
#ifndef RGB            // unsigned char, __half or float
#define RGB unsigned char
#endif
#ifndef RGB_IS_BYTE    // 1 when RGB is unsigned char
#define RGB_IS_BYTE 1
#endif
#ifndef SHIFT          // bits that codes are shifted up in their words: 6 for P010
#define SHIFT 0
#endif
#ifndef CHANNELS_LAST  // 1 for [H, W, 3], 0 for [3, H, W]
#define CHANNELS_LAST 1
#endif
#ifndef COSITED_X      // 1 when chroma sits on even luma columns, 0 between columns
#define COSITED_X 1
#endif
#ifndef COSITED_Y
#define COSITED_Y 0
#endif
#ifndef VECTORS        // 1 when rows of the planes begin and end on 16 bytes
#define VECTORS 1
#endif
#ifndef RGB_VECTORS    // 1 when rows of RGB begin and end on 16 bytes, and on 8 pixels where channels come first
#define RGB_VECTORS 1
#endif

#include <cuda_fp16.h>

using sample_t = SAMPLE;
using rgb_t = RGB;

constexpr int COLUMNS = 8;  // luma samples of a row that a thread makes
constexpr int SITES = COLUMNS / 2;
constexpr int WARPS = 4;
constexpr int WARP_COLUMNS = 32 * COLUMNS;
constexpr int STAGED = CHANNELS_LAST ? WARP_COLUMNS * 3 : 8;

struct Planes {
    sample_t *luma, *chroma;
    long long luma_pitch, chroma_pitch;  // samples from row to row
    int height, width;
};

struct Affine {
    float matrix[9], offset[3];
};

template <int COUNT, typename T>
__device__ __forceinline__ void copy_vectors(T* target, const T* source) {
    constexpr int BYTES = COUNT * sizeof(T);
    if constexpr (BYTES == 8) {
        *reinterpret_cast<uint2*>(target) = *reinterpret_cast<const uint2*>(source);
    } else {
        static_assert(BYTES % 16 == 0, "whole vectors");
#pragma unroll
        for (int part = 0; part < BYTES / 16; ++part)
            reinterpret_cast<uint4*>(target)[part] = reinterpret_cast<const uint4*>(source)[part];
    }
}

#if RGB_IS_BYTE
using level_t = unsigned;  // a byte in the low bits of a register
#else
using level_t = rgb_t;
#endif

__device__ __forceinline__ level_t level_of(float value) {
#if RGB_IS_BYTE
    // 2^23 + x has x, rounded, in its low bits.
    return __float_as_uint(fmaf(__saturatef(value), 255.f, 8388608.f));
#else
    return static_cast<rgb_t>(__saturatef(value));
#endif
}

template <int COUNT>
__device__ __forceinline__ void pack(rgb_t* target, const level_t* levels) {
#if RGB_IS_BYTE
#pragma unroll
    for (int word = 0; word < COUNT / 4; ++word) {
        const level_t* four = levels + 4 * word;
        reinterpret_cast<unsigned*>(target)[word] =
            __byte_perm(__byte_perm(four[0], four[1], 0x0040), __byte_perm(four[2], four[3], 0x0040), 0x5410);
    }
#else
#pragma unroll
    for (int at = 0; at < COUNT; ++at) target[at] = levels[at];
#endif
}

// What a warp moves between a row of interleaved RGB and shared memory.
constexpr int RGB_LANES = RGB_VECTORS ? 16 / sizeof(rgb_t) : 1;
constexpr int MOVES = (WARP_COLUMNS * 3 + 32 * RGB_LANES - 1) / (32 * RGB_LANES);

__device__ __forceinline__ void move_row(rgb_t* target, const rgb_t* source, int count) {
#pragma unroll
    for (int move = 0; move < MOVES; ++move) {
        const int at = (move * 32 + threadIdx.x % 32) * RGB_LANES;
        if (at >= count) break;
#if RGB_VECTORS
        copy_vectors<RGB_LANES>(target + at, source + at);
#else
        target[at] = source[at];
#endif
    }
}

// ---- to RGB

struct Site {
    float u, v;
};

__device__ __forceinline__ Site mix(const Site a, const Site b, float second) {
    const float first = 1.f - second;
    return {fmaf(second, b.u, first * a.u), fmaf(second, b.v, first * a.v)};
}

// Sites k0 - 1 .. k0 + 4 of a chroma row, borders repeated.
__device__ __forceinline__ void load_sites(Site (&sites)[SITES + 2], const Planes& planes, int row, int k0) {
    const int chroma_width = (planes.width + 1) / 2, chroma_height = (planes.height + 1) / 2;
    const sample_t* line = planes.chroma + min(max(row, 0), chroma_height - 1) * planes.chroma_pitch;
    alignas(16) sample_t codes[2 * SITES];
#if VECTORS
    copy_vectors<2 * SITES>(codes, line + 2 * k0);
#else
#pragma unroll
    for (int lane = 0; lane < 2 * SITES; ++lane) codes[lane] = line[min(2 * k0 + lane, 2 * chroma_width - 2 + lane % 2)];
#endif
    const int before = 2 * max(k0 - 1, 0), after = 2 * min(k0 + SITES, chroma_width - 1);
#if !COSITED_X
    sites[0] = {static_cast<float>(line[before]), static_cast<float>(line[before + 1])};
#endif
    sites[SITES + 1] = {static_cast<float>(line[after]), static_cast<float>(line[after + 1])};
#pragma unroll
    for (int site = 0; site < SITES; ++site)
        sites[site + 1] = {static_cast<float>(codes[2 * site]), static_cast<float>(codes[2 * site + 1])};
    // What stands behind the last site is padding.
    if (k0 + SITES > chroma_width) {
#pragma unroll
        for (int site = 1; site < SITES; ++site)
            if (k0 + site >= chroma_width) sites[site + 1] = sites[site];
    }
}

__device__ __forceinline__ void store_row(rgb_t* out, rgb_t* staged, const level_t (&levels)[COLUMNS * 3], const Planes& planes, int y,
                                          int x) {
#if CHANNELS_LAST
    const int lane = threadIdx.x % 32;
    alignas(16) rgb_t flat[COLUMNS * 3];
    pack<COLUMNS * 3>(flat, levels);
    if constexpr (sizeof(rgb_t) == 1) {
#pragma unroll
        for (int part = 0; part < 3; ++part) copy_vectors<8>(staged + lane * COLUMNS * 3 + part * 8, flat + part * 8);
    } else {
        copy_vectors<COLUMNS * 3>(staged + lane * COLUMNS * 3, flat);
    }
    __syncwarp();
    const int warp_x = x - lane * COLUMNS, count = min(WARP_COLUMNS, planes.width - warp_x) * 3;
    move_row(out + (static_cast<long long>(y) * planes.width + warp_x) * 3, staged, count);
    __syncwarp();
#else
    const long long plane = static_cast<long long>(planes.height) * planes.width;
    rgb_t* row = out + static_cast<long long>(y) * planes.width + x;
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        level_t channel[COLUMNS];
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column) channel[column] = levels[column * 3 + c];
        alignas(16) rgb_t line[COLUMNS];
        pack<COLUMNS>(line, channel);
#if RGB_VECTORS
        if (x < planes.width) copy_vectors<COLUMNS>(row + c * plane, line);
#else
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column)
            if (x + column < planes.width) row[c * plane + column] = line[column];
#endif
    }
#endif
}

// grid: (pieces of WARPS * 256 columns, chroma rows)
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    to_rgb(const __grid_constant__ Planes planes, rgb_t* out, const __grid_constant__ Affine affine) {
    __shared__ alignas(16) rgb_t staging[WARPS][STAGED];
    const int x = (blockIdx.x * 32 * WARPS + threadIdx.x) * COLUMNS, row = blockIdx.y;
    if (x / WARP_COLUMNS * WARP_COLUMNS >= planes.width) return;  // the whole warp
    // Threads right of the picture only help their warp to store: they read what its last thread reads.
    const int safe_x = min(x, (planes.width - 1) / COLUMNS * COLUMNS), k0 = safe_x / 2;

    Site middle[SITES + 2], below[SITES + 2];
    [[maybe_unused]] Site above[SITES + 2];
    load_sites(middle, planes, row, k0);
#if !COSITED_Y
    load_sites(above, planes, row - 1, k0);
#endif
    load_sites(below, planes, row + 1, k0);
    alignas(16) sample_t luma[2][COLUMNS];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const sample_t* line = planes.luma + min(2 * row + half, planes.height - 1) * planes.luma_pitch;
#if VECTORS
        copy_vectors<COLUMNS>(luma[half], line + safe_x);
#else
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column) luma[half][column] = line[min(safe_x + column, planes.width - 1)];
#endif
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int y = 2 * row + half;
        if (y >= planes.height) break;
        // What chroma and the offset add to each channel, at the sites; the matrix is linear.
        float added[SITES + 2][3];
#pragma unroll
        for (int site = COSITED_X; site < SITES + 2; ++site) {
#if COSITED_Y
            const Site at = half ? mix(middle[site], below[site], 0.5f) : middle[site];
#else
            const Site at = mix(middle[site], half ? below[site] : above[site], 0.25f);
#endif
            // U says nothing of red, V nothing of blue.
            added[site][0] = fmaf(affine.matrix[2], at.v, affine.offset[0]);
            added[site][1] = fmaf(affine.matrix[4], at.u, fmaf(affine.matrix[5], at.v, affine.offset[1]));
            added[site][2] = fmaf(affine.matrix[7], at.u, affine.offset[2]);
        }
        level_t levels[COLUMNS * 3];
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column) {
            const int site = column / 2 + 1;
            const float code = static_cast<float>(luma[half][column]);
#pragma unroll
            for (int c = 0; c < 3; ++c) {
#if COSITED_X
                const float chroma = column % 2 ? 0.5f * (added[site][c] + added[site + 1][c]) : added[site][c];
#else
                const float chroma = fmaf(0.75f, added[site][c], 0.25f * added[column % 2 ? site + 1 : site - 1][c]);
#endif
                levels[column * 3 + c] = level_of(fmaf(affine.matrix[3 * c], code, chroma));
            }
        }
        store_row(out, staging[threadIdx.x / 32], levels, planes, y, x);
    }
}

// ---- from RGB; a byte's 1 / 255 is in the matrix

__device__ __forceinline__ sample_t code_of(float value, float peak) {
    // 2^23 + x has x, rounded, in its low bits.
    return static_cast<sample_t>(__float_as_uint(fminf(fmaxf(value, 0.f), peak) + 8388608.f) << SHIFT);
}

// Columns x .. x + 7 of a row, borders repeated.
__device__ __forceinline__ void load_row(float (&pixels)[COLUMNS][3], const rgb_t* rgb, rgb_t* staged, const Planes& planes, int y, int x) {
#if CHANNELS_LAST
    const int lane = threadIdx.x % 32;
    const int warp_x = x - lane * COLUMNS, count = min(WARP_COLUMNS, planes.width - warp_x) * 3;
    move_row(staged, rgb + (static_cast<long long>(y) * planes.width + warp_x) * 3, count);
    __syncwarp();
    alignas(16) rgb_t flat[COLUMNS * 3];
    if constexpr (sizeof(rgb_t) == 1) {
#pragma unroll
        for (int part = 0; part < 3; ++part) copy_vectors<8>(flat + part * 8, staged + lane * COLUMNS * 3 + part * 8);
    } else {
        copy_vectors<COLUMNS * 3>(flat, staged + lane * COLUMNS * 3);
    }
    __syncwarp();
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column)
#pragma unroll
        for (int c = 0; c < 3; ++c) pixels[column][c] = static_cast<float>(flat[column * 3 + c]);
#else
    const long long plane = static_cast<long long>(planes.height) * planes.width;
    const rgb_t* row = rgb + static_cast<long long>(y) * planes.width;
    const int safe_x = min(x, (planes.width - 1) / COLUMNS * COLUMNS);
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        alignas(16) rgb_t line[COLUMNS];
#if RGB_VECTORS
        copy_vectors<COLUMNS>(line, row + c * plane + safe_x);
#else
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column) line[column] = row[c * plane + min(safe_x + column, planes.width - 1)];
#endif
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column) pixels[column][c] = static_cast<float>(line[column]);
    }
#endif
    if (x + COLUMNS > planes.width) {
#pragma unroll
        for (int column = 1; column < COLUMNS; ++column)
            if (x + column >= planes.width)
#pragma unroll
                for (int c = 0; c < 3; ++c) pixels[column][c] = pixels[column - 1][c];
    }
}

// How much a luma row weighs in its chroma row.
__device__ __forceinline__ float row_weight(int offset) {
#if COSITED_Y
    return offset == 0 ? 0.5f : 0.25f;
#else
    return offset < 0 ? 0.f : 0.5f;
#endif
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    from_rgb(const rgb_t* rgb, const __grid_constant__ Planes planes, const __grid_constant__ Affine affine, float peak) {
    __shared__ alignas(16) rgb_t staging[WARPS][STAGED];
    const int x = (blockIdx.x * 32 * WARPS + threadIdx.x) * COLUMNS, row = blockIdx.y;
    if (x / WARP_COLUMNS * WARP_COLUMNS >= planes.width) return;
    rgb_t* staged = staging[threadIdx.x / 32];

    float columns[COLUMNS][3] = {};          // weighted over the rows
    [[maybe_unused]] float before[3] = {};  // of column x - 1
#pragma unroll
    for (int offset = -COSITED_Y; offset < 2; ++offset) {
        const int y = 2 * row + offset, safe_y = min(max(y, 0), planes.height - 1);
        float pixels[COLUMNS][3];
        load_row(pixels, rgb, staged, planes, safe_y, x);
        const float weight = row_weight(offset);
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column)
#pragma unroll
            for (int c = 0; c < 3; ++c) columns[column][c] = fmaf(weight, pixels[column][c], columns[column][c]);
#if COSITED_X
        if (threadIdx.x % 32 == 0 && x > 0) {  // the lane before is in another warp
            const long long plane = static_cast<long long>(planes.height) * planes.width;
            const long long at = static_cast<long long>(safe_y) * planes.width + x - 1;
#pragma unroll
            for (int c = 0; c < 3; ++c) before[c] = fmaf(weight, static_cast<float>(rgb[CHANNELS_LAST ? at * 3 + c : c * plane + at]), before[c]);
        }
#endif
        if (offset < 0 || y >= planes.height || x >= planes.width) continue;
        alignas(16) sample_t codes[COLUMNS];
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column)
            codes[column] = code_of(fmaf(affine.matrix[0], pixels[column][0],
                                         fmaf(affine.matrix[1], pixels[column][1], fmaf(affine.matrix[2], pixels[column][2], affine.offset[0]))),
                                    peak);
        sample_t* line = planes.luma + y * planes.luma_pitch + x;
#if VECTORS
        copy_vectors<COLUMNS>(line, codes);
#else
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column)
            if (x + column < planes.width) line[column] = codes[column];
#endif
    }
#if COSITED_X
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const float left = __shfl_up_sync(0xffffffffu, columns[COLUMNS - 1][c], 1);
        if (threadIdx.x % 32 != 0) before[c] = left;
        if (x == 0) before[c] = columns[0][c];
    }
#endif
    if (x >= planes.width) return;
    alignas(16) sample_t pairs[2 * SITES];
#pragma unroll
    for (int site = 0; site < SITES; ++site) {
        float mean[3];
#pragma unroll
        for (int c = 0; c < 3; ++c) {
#if COSITED_X
            const float left = site ? columns[2 * site - 1][c] : before[c];
            mean[c] = 0.25f * (left + columns[2 * site + 1][c]) + 0.5f * columns[2 * site][c];
#else
            mean[c] = 0.5f * (columns[2 * site][c] + columns[2 * site + 1][c]);
#endif
        }
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const float* weights = affine.matrix + 3 + 3 * part;
            pairs[2 * site + part] =
                code_of(fmaf(weights[0], mean[0], fmaf(weights[1], mean[1], fmaf(weights[2], mean[2], affine.offset[1 + part]))), peak);
        }
    }
    sample_t* line = planes.chroma + row * planes.chroma_pitch + x;
#if VECTORS
    copy_vectors<2 * SITES>(line, pairs);
#else
#pragma unroll
    for (int lane = 0; lane < 2 * SITES; ++lane)
        if (x + lane < (planes.width + 1) / 2 * 2) line[lane] = pairs[lane];
#endif
}
