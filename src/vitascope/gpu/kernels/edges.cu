// What a user may do to the edge of a matte, apart from morphology.cu; the contract and the reference are in edges.py.
//
// Results equal OpenCV's bit for bit: its Gaussian's weights are whole 256ths (8-bit samples) or 65536ths (16-bit), and
// sums of them are exact here. 8-bit sums stay below 2^24, which a float holds; 16-bit sums are whole numbers.

#ifndef SAMPLE   // unsigned char or unsigned short
#define SAMPLE unsigned char
#endif

#ifndef VECTORS  // 1 when rows of the planes begin on 4 samples
#define VECTORS 1
#endif

using sample_t = SAMPLE;

template <int BYTES>
struct Sums;
template <>
struct Sums<1> {
    using weight_t = float;
    using across_t = float;           // a weighted row sum
    using stored_t = unsigned short;  // the same in memory
    using total_t = float;            // a weighted sum of row sums
    using word_t = unsigned;          // a group of samples
};
template <>
struct Sums<2> {
    using weight_t = unsigned;
    using across_t = unsigned;
    using stored_t = unsigned;
    using total_t = unsigned long long;
    using word_t = uint2;
};
using sums = Sums<sizeof(sample_t)>;
using weight_t = sums::weight_t;
using across_t = sums::across_t;
using stored_t = sums::stored_t;
using total_t = sums::total_t;
using word_t = sums::word_t;

constexpr int THREADS = 128;
constexpr int GROUP = 4;                    // neighbouring samples that map_levels and blend take together
constexpr int RUN = 8;                      // neighbouring outputs of a thread; taps come in whole runs
constexpr int SEGMENT = THREADS * RUN;      // outputs of a row that a block of feather_rows makes
constexpr int BITS = 8 * sizeof(sample_t);  // of a weight's fraction

struct View {
    sample_t* data;
    long long pitch, step;  // samples from row to row
};

__device__ __forceinline__ void load_group(const sample_t* row, int x, int width, sample_t (&group)[GROUP]) {
    if (VECTORS && x + GROUP <= width) {
        *reinterpret_cast<word_t*>(group) = __ldg(reinterpret_cast<const word_t*>(row + x));
    } else {
#pragma unroll
        for (int i = 0; i < GROUP; ++i) group[i] = x + i < width ? row[x + i] : static_cast<sample_t>(0);
    }
}

__device__ __forceinline__ void store_group(sample_t* row, int x, int width, const sample_t (&group)[GROUP]) {
    if (VECTORS && x + GROUP <= width) {
        *reinterpret_cast<word_t*>(row + x) = *reinterpret_cast<const word_t*>(group);
    } else {
#pragma unroll
        for (int i = 0; i < GROUP; ++i)
            if (x + i < width) row[x + i] = group[i];
    }
}

// grid: (groups of columns / THREADS, rows)
extern "C" __global__ void __launch_bounds__(THREADS)
    map_levels(View in, View out, int width, const sample_t* __restrict__ levels) {
    const int x = (blockIdx.x * THREADS + threadIdx.x) * GROUP;
    if (x >= width) return;
    alignas(8) sample_t codes[GROUP];
    load_group(in.data + blockIdx.y * in.pitch, x, width, codes);
#pragma unroll
    for (int i = 0; i < GROUP; ++i) codes[i] = levels[codes[i]];
    store_group(out.data + blockIdx.y * out.pitch, x, width, codes);
}

// round(near * near_share + far * far_share), rounded as OpenCV's fused addWeighted. grid: as map_levels
extern "C" __global__ void __launch_bounds__(THREADS)
    blend(View near, View far, View out, int width, float near_share, float far_share) {
    const int x = (blockIdx.x * THREADS + threadIdx.x) * GROUP;
    if (x >= width) return;
    alignas(8) sample_t a[GROUP], b[GROUP];
    load_group(near.data + blockIdx.y * near.pitch, x, width, a);
    load_group(far.data + blockIdx.y * far.pitch, x, width, b);
#pragma unroll
    for (int i = 0; i < GROUP; ++i) {
        const int mixed = __float2int_rn(__fmaf_rn(a[i], near_share, __fmul_rn(b[i], far_share)));
        a[i] = static_cast<sample_t>(min(mixed, (1 << BITS) - 1));
    }
    store_group(out.data + blockIdx.y * out.pitch, x, width, a);
}

// Adds `taps` (a multiple of RUN) weighted samples to each of RUN neighbouring outputs; `at(run, i)` is the sample
// run * RUN + i of those that the first output reads. Each sample is read once and used for every output.
template <class Total, class Sample>
__device__ __forceinline__ void convolve(Total (&totals)[RUN], const weight_t* __restrict__ weights, int taps, Sample at) {
    weight_t window[2 * RUN];
#pragma unroll
    for (int i = 0; i < RUN; ++i) window[i] = at(0, i);
    for (int run = 0; run < taps / RUN; ++run) {
#pragma unroll
        for (int i = 0; i < RUN; ++i) window[RUN + i] = at(run + 1, i);
#pragma unroll
        for (int tap = 0; tap < RUN; ++tap) {
            const weight_t weight = __ldg(weights + run * RUN + tap);
#pragma unroll
            for (int i = 0; i < RUN; ++i) totals[i] += static_cast<Total>(window[tap + i]) * weight;
        }
#pragma unroll
        for (int i = 0; i < RUN; ++i) window[i] = window[RUN + i];
    }
}

// Row sums, unrounded. `taps` is 2 * radius + 1 with zero weights up to a multiple of RUN; borders repeat. Rows of
// `across` begin on 16 bytes and may be written to whole runs; `pitch` is theirs.
// grid: (segments of a row, rows); shared memory: SEGMENT + taps samples and one word of padding every RUN
extern "C" __global__ void __launch_bounds__(THREADS)
    feather_rows(View in, stored_t* across, int pitch, int width, int radius, int taps, const weight_t* __restrict__ weights) {
    extern __shared__ unsigned segment[];
    const sample_t* row = in.data + blockIdx.y * in.pitch;
    const int left = blockIdx.x * SEGMENT;
#pragma unroll 4
    for (int i = threadIdx.x; i < SEGMENT + taps; i += THREADS)
        segment[i + i / RUN] = row[min(max(left - radius + i, 0), width - 1)];
    __syncthreads();
    const int x = left + threadIdx.x * RUN;
    if (x >= width) return;
    const unsigned* own = segment + threadIdx.x * (RUN + 1);
    across_t totals[RUN] = {};
    convolve(totals, weights, taps, [&](int run, int i) { return static_cast<weight_t>(own[run * (RUN + 1) + i]); });
    alignas(16) stored_t stored[RUN];
#pragma unroll
    for (int i = 0; i < RUN; ++i) stored[i] = static_cast<stored_t>(totals[i]);
    uint4* target = reinterpret_cast<uint4*>(across + static_cast<long long>(blockIdx.y) * pitch + x);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(stored)) / 16; ++i) target[i] = reinterpret_cast<const uint4*>(stored)[i];
}

// Sums of row sums, rounded half up. grid: (columns / THREADS, runs of rows)
extern "C" __global__ void __launch_bounds__(THREADS)
    feather_columns(const stored_t* __restrict__ across, int pitch, View out, int height, int width, int radius, int taps,
                    const weight_t* __restrict__ weights) {
    const int x = blockIdx.x * THREADS + threadIdx.x, top = blockIdx.y * RUN;
    if (x >= width) return;
    total_t totals[RUN] = {};
    const stored_t* column = across + x;
    if (top >= radius && top - radius + taps + RUN <= height) {  // away from the border nothing repeats
        column += static_cast<long long>(top - radius) * pitch;
        convolve(totals, weights, taps, [&](int run, int i) {
            return static_cast<weight_t>(__ldg(column + (run * RUN + i) * pitch));
        });
    } else {
        convolve(totals, weights, taps, [&](int run, int i) {
            const int row = min(max(top - radius + run * RUN + i, 0), height - 1);
            return static_cast<weight_t>(__ldg(column + static_cast<long long>(row) * pitch));
        });
    }
#pragma unroll
    for (int i = 0; i < RUN; ++i)
        if (top + i < height) {
            const auto total = static_cast<unsigned long long>(totals[i]);
            out.data[(top + i) * out.pitch + x] = static_cast<sample_t>((total + (1ull << (2 * BITS - 1))) >> (2 * BITS));
        }
}
