// Motion-gated smoothing of a matte in one pass; the contract and the reference are in steady.py.
//
//   w = strength * exp(-(change of the 5x5 luma mean / scale)^2),  out = alpha + w * (previous out - alpha)
//
// The mean is kept as the sum of 25 codes, which 16 bits hold exactly up to 10-bit video; the previous result with
// 8 bits of fraction (8-bit mattes) or as a float. The luma border reflects without repeating its edge, as OpenCV's.
//
// A thread makes 4 columns and walks down ROWS rows with the row sums of the last five in registers.

#ifndef SAMPLE    // luma: unsigned char or unsigned short
#define SAMPLE unsigned char
#endif
#ifndef SHIFT     // zero bits below a luma code
#define SHIFT 0
#endif
#ifndef ALPHA     // unsigned char or unsigned short
#define ALPHA unsigned char
#endif
#ifndef VECTORS   // 1 when rows of luma, alpha and out begin on 4 samples
#define VECTORS 1
#endif

using sample_t = SAMPLE;
using alpha_t = ALPHA;

constexpr int COLUMNS = 4, ROWS = 8, REACH = 2, SIDE = 2 * REACH + 1;
constexpr int WINDOW = COLUMNS + 2 * REACH;
constexpr bool DEEP = sizeof(alpha_t) == 2;
constexpr float PEAK = DEEP ? 65535.f : 255.f;

template <int BYTES>
struct Kept;
template <>
struct Kept<1> {
    using type = ushort4;
    static constexpr float STEPS = 256.f;  // 8 bits of fraction
};
template <>
struct Kept<2> {
    using type = float4;
    static constexpr float STEPS = 1.f;
};
using kept_t = Kept<sizeof(alpha_t)>::type;
constexpr float STEPS = Kept<sizeof(alpha_t)>::STEPS;

__device__ __forceinline__ void keep(ushort4& slot, const float (&value)[4]) {
    slot = make_ushort4(__float2int_rn(value[0] * STEPS), __float2int_rn(value[1] * STEPS),
                        __float2int_rn(value[2] * STEPS), __float2int_rn(value[3] * STEPS));
}

__device__ __forceinline__ void keep(float4& slot, const float (&value)[4]) {
    slot = make_float4(value[0], value[1], value[2], value[3]);
}

struct Smoothing {
    const sample_t* luma;
    const alpha_t* alpha;
    alpha_t* out;
    ushort4* sums;   // [height, state_width]: the last frame's sums of 25 codes
    kept_t* kept;    // [height, state_width]: its result
    long long luma_pitch, alpha_pitch, out_pitch;  // samples
    int height, width, state_width;                // state_width: groups of 4
    int first;                                     // 1 when there is no past
    float strength, inverse_scale;                 // inverse_scale: of a difference of sums
};

__device__ __forceinline__ int reflected(int i, int length) {
    if (length == 1) return 0;
    while (i < 0 || i >= length) i = i < 0 ? -i : 2 * length - 2 - i;
    return i;
}

// Sums of SIDE neighbouring codes of a row, for each of the thread's columns.
__device__ __forceinline__ void sum_row(const Smoothing& job, int y, int x, unsigned (&sums)[COLUMNS]) {
    const sample_t* row = job.luma + reflected(y, job.height) * job.luma_pitch;
    unsigned codes[WINDOW];
    if (VECTORS && x >= COLUMNS && x + 2 * COLUMNS <= job.width) {
        alignas(16) sample_t samples[3 * COLUMNS];
#pragma unroll
        for (int group = 0; group < 3; ++group) {
            const sample_t* at = row + x + (group - 1) * COLUMNS;
            if constexpr (sizeof(sample_t) == 1)
                reinterpret_cast<unsigned*>(samples)[group] = __ldg(reinterpret_cast<const unsigned*>(at));
            else
                reinterpret_cast<uint2*>(samples)[group] = __ldg(reinterpret_cast<const uint2*>(at));
        }
#pragma unroll
        for (int i = 0; i < WINDOW; ++i) codes[i] = samples[COLUMNS - REACH + i] >> SHIFT;
    } else {
#pragma unroll
        for (int i = 0; i < WINDOW; ++i) codes[i] = row[reflected(x - REACH + i, job.width)] >> SHIFT;
    }
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
        sums[column] = 0;
#pragma unroll
        for (int i = 0; i < SIDE; ++i) sums[column] += codes[column + i];
    }
}

__device__ __forceinline__ void load_alpha(const alpha_t* row, int x, int width, alpha_t (&alpha)[COLUMNS]) {
#if VECTORS
    if (x + COLUMNS <= width) {
        if constexpr (DEEP)
            *reinterpret_cast<uint2*>(alpha) = __ldg(reinterpret_cast<const uint2*>(row + x));
        else
            *reinterpret_cast<unsigned*>(alpha) = __ldg(reinterpret_cast<const unsigned*>(row + x));
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) alpha[i] = x + i < width ? row[x + i] : static_cast<alpha_t>(0);
}

__device__ __forceinline__ void store_alpha(alpha_t* row, int x, int width, const alpha_t (&alpha)[COLUMNS]) {
#if VECTORS
    if (x + COLUMNS <= width) {
        if constexpr (DEEP)
            *reinterpret_cast<uint2*>(row + x) = *reinterpret_cast<const uint2*>(alpha);
        else
            *reinterpret_cast<unsigned*>(row + x) = *reinterpret_cast<const unsigned*>(alpha);
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i)
        if (x + i < width) row[x + i] = alpha[i];
}

struct Past {
    ushort4 sums;
    kept_t kept;
    alignas(8) alpha_t alpha[COLUMNS];  // of this frame, which is read at the same time
};

__device__ __forceinline__ Past past_of(const Smoothing& job, int y, int x, int group) {
    Past past = {};
    if (!job.first) {
        const long long slot = static_cast<long long>(y) * job.state_width + group;
        past.sums = job.sums[slot];
        past.kept = job.kept[slot];
    }
    load_alpha(job.alpha + y * job.alpha_pitch, x, job.width, past.alpha);
    return past;
}

// grid: (groups of 4 columns / 32, rows / ROWS / 4); block: (32, 4)
extern "C" __global__ void __launch_bounds__(128) smooth_alpha(const __grid_constant__ Smoothing job) {
    const int group = blockIdx.x * 32 + threadIdx.x, x = group * COLUMNS;
    const int top = (blockIdx.y * 4 + threadIdx.y) * ROWS;
    if (x >= job.width || top >= job.height) return;
    unsigned rows[SIDE][COLUMNS];
#pragma unroll
    for (int i = 0; i < SIDE - 1; ++i) sum_row(job, top - REACH + i, x, rows[i + 1]);
    const int bottom = min(top + ROWS, job.height);
    Past past = past_of(job, top, x, group), next;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int y = top + i;
        if (y >= bottom) break;
        // The next row's past is asked for before this row's is overwritten, which the compiler may not move ahead.
        if (y + 1 < bottom) next = past_of(job, y + 1, x, group);
#pragma unroll
        for (int line = 0; line < SIDE - 1; ++line)
#pragma unroll
            for (int column = 0; column < COLUMNS; ++column) rows[line][column] = rows[line + 1][column];
        sum_row(job, y + REACH, x, rows[SIDE - 1]);
        const float past_alpha[COLUMNS] = {past.kept.x / STEPS, past.kept.y / STEPS, past.kept.z / STEPS, past.kept.w / STEPS};
        const unsigned past_sums[COLUMNS] = {past.sums.x, past.sums.y, past.sums.z, past.sums.w};
        unsigned sums[COLUMNS];
        float smooth[COLUMNS];
        alignas(8) alpha_t codes[COLUMNS];
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column) {
            sums[column] = 0;
#pragma unroll
            for (int line = 0; line < SIDE; ++line) sums[column] += rows[line][column];
            const float change = (static_cast<int>(sums[column]) - static_cast<int>(past_sums[column])) * job.inverse_scale;
            const float weight = job.first ? 0.f : job.strength * __expf(-change * change);
            smooth[column] = past.alpha[column] + weight * (past_alpha[column] - past.alpha[column]);
            codes[column] = static_cast<alpha_t>(__float2int_rn(fminf(smooth[column], PEAK)));
        }
        const long long slot = static_cast<long long>(y) * job.state_width + group;
        job.sums[slot] = make_ushort4(sums[0], sums[1], sums[2], sums[3]);
        keep(job.kept[slot], smooth);
        store_alpha(job.out + y * job.out_pitch, x, job.width, codes);
        past = next;
    }
}
