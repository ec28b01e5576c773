// Scores of a segmentation network to masks; the contract and the reference are in mask_postprocess.py.
//
// Everything is whole numbers after the decision, so that results equal the reference's: the Gaussian's weights are
// 4096ths, and a window's votes are at most 2^24.

#ifndef SCORE     // __half or float
#define SCORE float
#endif
#ifndef CHANNELS_LAST   // 1 when a pixel's scores lie side by side, [N, h, w, C] in memory
#define CHANNELS_LAST 0
#endif
#ifndef VECTORS   // 1 when every plane of scores begins and ends on 4 scores; channels last: every picture on 16 bytes
#define VECTORS 1
#endif

#include <cuda_fp16.h>

using score_t = SCORE;
using code_t = unsigned char;

template <int BYTES>
struct Line;
template <>
struct Line<2> {
    using type = uint2;
};
template <>
struct Line<4> {
    using type = uint4;
};
using line_t = Line<sizeof(score_t)>::type;  // 4 scores

constexpr int LANES = VECTORS && !CHANNELS_LAST ? 4 : 1;  // pixels of a thread: few, since every one of them reads all classes
#if !CHANNELS_LAST
constexpr int BATCH = 8;                // planes of scores that are read together
#endif
constexpr int THREADS = 128;
constexpr int TILE = 32, TILE_WARPS = 8;
constexpr int MAX_RADIUS = 64;
constexpr int CLASSES = 256;

struct Gaussian {
    int radius;
    unsigned short weight[2 * MAX_RADIUS + 1];
};

__device__ __forceinline__ void fetch(const score_t* from, score_t (&scores)[LANES]) {
#if VECTORS && !CHANNELS_LAST
    *reinterpret_cast<line_t*>(scores) = __ldg(reinterpret_cast<const line_t*>(from));
#else
    scores[0] = __ldg(from);
#endif
}

__device__ __forceinline__ void load_scores(const score_t* from, float (&scores)[LANES]) {
    alignas(16) score_t values[LANES];
    fetch(from, values);
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) scores[lane] = static_cast<float>(values[lane]);
}

__device__ __forceinline__ void store_codes(code_t* to, const code_t (&codes)[LANES]) {
    if constexpr (LANES == 4)
        *reinterpret_cast<unsigned*>(to) = *reinterpret_cast<const unsigned*>(codes);
    else
        to[0] = codes[0];
}

// The class with the largest score, the first of equals, NaN above all: as numpy.argmax. With `chosen` at or above 0,
// 255 where that class wins and 0 elsewhere. grid: (pixels / LANES / THREADS, pictures)
#if CHANNELS_LAST
// A block's scores are one piece of memory, read in whole lines; shared memory: THREADS * classes scores
extern "C" __global__ void __launch_bounds__(THREADS)
    argmax(const score_t* scores, code_t* out, long long pixels, int classes, int chosen) {
    extern __shared__ uint4 lines[];
    score_t* piece = reinterpret_cast<score_t*>(lines);
    const long long first = static_cast<long long>(blockIdx.x) * THREADS;
    const int here = static_cast<int>(min(static_cast<long long>(THREADS), pixels - first)), count = here * classes;
    const score_t* from = scores + (blockIdx.y * pixels + first) * classes;
    int read = 0;
#if VECTORS
    constexpr int EACH = 16 / sizeof(score_t);
    for (int i = threadIdx.x; i < count / EACH; i += THREADS) lines[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
    read = count / EACH * EACH;
#endif
    for (int i = read + threadIdx.x; i < count; i += THREADS) piece[i] = __ldg(from + i);
    __syncthreads();
    if (threadIdx.x >= here) return;
    // Each thread begins at another class: with 32, 64 ... classes all would else read from one bank.
    const score_t* own = piece + threadIdx.x * classes;
    int winner = threadIdx.x % classes;
    float best = static_cast<float>(own[winner]);
    for (int step = 1, c = winner; step < classes; ++step) {
        c = c + 1 == classes ? 0 : c + 1;
        const float score = static_cast<float>(own[c]);
        const bool equal = score == best || (isnan(score) && isnan(best));
        if (score > best || (isnan(score) && !isnan(best)) || (equal && c < winner)) {
            best = score;
            winner = c;
        }
    }
    out[blockIdx.y * pixels + first + threadIdx.x] =
        static_cast<code_t>(chosen < 0 ? winner : winner == chosen ? 255 : 0);
}
#else
extern "C" __global__ void __launch_bounds__(THREADS)
    argmax(const score_t* scores, code_t* out, long long pixels, int classes, int chosen) {
    const long long pixel = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * LANES;
    if (pixel >= pixels) return;
    const score_t* from = scores + blockIdx.y * classes * pixels + pixel;
    float best[LANES];
    int winner[LANES] = {};
    load_scores(from, best);
    for (int first = 1; first < classes; first += BATCH) {
        alignas(16) score_t planes[BATCH][LANES];
        // All planes are asked for before the first is looked at, so that their ways from memory overlap.
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
            if (first + i < classes) fetch(from + (first + i) * pixels, planes[i]);
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            if (first + i >= classes) break;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const float score = static_cast<float>(planes[i][lane]);
                if (score > best[lane] || (isnan(score) && !isnan(best[lane]))) {
                    best[lane] = score;
                    winner[lane] = first + i;
                }
            }
        }
    }
    alignas(4) code_t codes[LANES];
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane)
        codes[lane] = static_cast<code_t>(chosen < 0 ? winner[lane] : winner[lane] == chosen ? 255 : 0);
    store_codes(out + blockIdx.y * pixels + pixel, codes);
}
#endif

// 255 where the chosen class's score is at least `least`. grid: as argmax
extern "C" __global__ void __launch_bounds__(THREADS)
    threshold(const score_t* scores, code_t* out, long long pixels, int classes, int chosen, float least) {
    const long long pixel = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * LANES;
    if (pixel >= pixels) return;
    float score[LANES];
#if CHANNELS_LAST
    load_scores(scores + (blockIdx.y * pixels + pixel) * classes + chosen, score);
#else
    load_scores(scores + (static_cast<long long>(blockIdx.y) * classes + chosen) * pixels + pixel, score);
#endif
    alignas(4) code_t codes[LANES];
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) codes[lane] = score[lane] >= least ? 255 : 0;
    store_codes(out + blockIdx.y * pixels + pixel, codes);
}

// Gaussian vote: every class that occurs near a tile is weighed in turn, by rows and then by columns; borders repeat.
// A class map (soft == 0) takes the class with most votes, the lowest of equals. A mask (soft == 1) takes the share of
// 255. grid: (tiles of a row, tiles of a column, pictures); shared memory: side * side codes up to a word, and
// side * TILE row sums, with side = TILE + 2 * radius
extern "C" __global__ void __launch_bounds__(32 * TILE_WARPS)
    vote(const code_t* __restrict__ in, code_t* out, int height, int width, int soft, const __grid_constant__ Gaussian gaussian) {
    extern __shared__ unsigned tile[];
    __shared__ unsigned present[CLASSES / 32];
    const int radius = gaussian.radius, side = TILE + 2 * radius, thread = threadIdx.y * 32 + threadIdx.x;
    code_t* codes = reinterpret_cast<code_t*>(tile);
    unsigned short* sums = reinterpret_cast<unsigned short*>(tile + (side * side + 3) / 4);
    const int left = blockIdx.x * TILE, top = blockIdx.y * TILE;
    const long long picture = static_cast<long long>(blockIdx.z) * height * width;
    if (thread < CLASSES / 32) present[thread] = 0;
    __syncthreads();
    int last = -1;  // a thread meets the same class again and again: it is noted once
    for (int row = threadIdx.y; row < side; row += TILE_WARPS) {
        const code_t* from = in + picture + static_cast<long long>(min(max(top - radius + row, 0), height - 1)) * width;
        for (int column = threadIdx.x; column < side; column += 32) {
            const code_t code = from[min(max(left - radius + column, 0), width - 1)];
            codes[row * side + column] = code;
            if (code != last) atomicOr(&present[code / 32], 1u << (code % 32));
            last = code;
        }
    }
    __syncthreads();
    constexpr int OUTPUTS = TILE / TILE_WARPS;
    unsigned most[OUTPUTS] = {};
    int winner[OUTPUTS] = {};
    for (int word = 0; word < CLASSES / 32; ++word) {
        unsigned left_over = present[word];
        while (left_over) {
            const int c = word * 32 + __ffs(left_over) - 1;
            left_over &= left_over - 1;
            if (soft && c == 0) continue;
            for (int row = threadIdx.y; row < side; row += TILE_WARPS) {
                unsigned sum = 0;
                const code_t* own = codes + row * side + threadIdx.x;
                for (int tap = 0; tap <= 2 * radius; ++tap) sum += own[tap] == c ? gaussian.weight[tap] : 0;
                sums[row * TILE + threadIdx.x] = static_cast<unsigned short>(sum);
            }
            __syncthreads();
#pragma unroll
            for (int i = 0; i < OUTPUTS; ++i) {
                const unsigned short* own = sums + (threadIdx.y + i * TILE_WARPS) * TILE + threadIdx.x;
                unsigned votes = 0;
                for (int tap = 0; tap <= 2 * radius; ++tap) votes += own[tap * TILE] * gaussian.weight[tap];
                if (votes > most[i]) {
                    most[i] = votes;
                    winner[i] = c;
                }
            }
            __syncthreads();
        }
    }
    const int x = left + threadIdx.x;
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) {
        const int y = top + threadIdx.y + i * TILE_WARPS;
        if (x < width && y < height)
            out[picture + static_cast<long long>(y) * width + x] =
                static_cast<code_t>(soft ? (most[i] * 255u + (1u << 23)) >> 24 : winner[i]);
    }
}

// mask + share * (previous - mask), rounded; not fused, as NumPy. grid: samples / THREADS
extern "C" __global__ void __launch_bounds__(THREADS)
    fade(const code_t* mask, const code_t* previous, code_t* out, long long count, float share) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= count) return;
    const float now = mask[i], past = previous[i];
    out[i] = static_cast<code_t>(__float2int_rn(__fadd_rn(now, __fmul_rn(share, past - now))));
}
