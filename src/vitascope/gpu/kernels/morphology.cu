// Dilation and erosion with boxes and discs; the contract and the reference are in morphology.py.
//
//   out(y, x) = max of in(y + dy, x + dx) over the window; erosion is the dilation of the inverted codes
//
// Samples outside the plane are 0 for the maximum, which is the same as not counting them. A 32-bit word holds
// neighbouring samples, one byte or half a word each, so that one SIMD instruction compares them all.

#ifndef SAMPLE   // unsigned char or unsigned short
#define SAMPLE unsigned char
#endif
#ifndef ERODE    // 1 for the smallest sample of the window
#define ERODE 0
#endif
#ifndef VECTORS  // 1 when rows of the planes begin on 4 samples
#define VECTORS 1
#endif
#ifndef DEPTH    // output rows of a lane in a block of disc: more for larger discs, whose rows are read again and again
#define DEPTH 8
#endif

using sample_t = SAMPLE;

constexpr int LANES = 4 / sizeof(sample_t);  // samples of a word
constexpr int LANE_BITS = 32 / LANES;
constexpr int GROUP = 4;          // columns that are read together: 4 words hold LANES rows of them
constexpr int THREADS = 256;
constexpr int SEGMENT = 1024;     // outputs of a row that a block of box_rows makes
constexpr int BATCH = 8;          // rows that box_columns loads together
constexpr int MAX_RADIUS = 256;

struct View {
    sample_t* data;
    long long pitch, step;  // samples from row to row, and from plane to plane
};

struct Disc {
    int radius, margin, levels, width;  // margin: radius up to whole groups; width: words of a level's row
    // For each distance from the disc's centre row: where its two overlapping runs begin, from an output's first word.
    int first[MAX_RADIUS + 1], second[MAX_RADIUS + 1];
};

__device__ __forceinline__ unsigned largest(unsigned a, unsigned b) {
    if constexpr (LANES == 4) return __vmaxu4(a, b);
    return __vmaxu2(a, b);
}

__device__ __forceinline__ unsigned lane_of(sample_t sample, int lane) {
    return static_cast<unsigned>(ERODE ? static_cast<sample_t>(~sample) : sample) << (lane * LANE_BITS);
}

__device__ __forceinline__ sample_t sample_of(unsigned word, int lane) {
    const sample_t sample = static_cast<sample_t>(word >> (lane * LANE_BITS));
    return ERODE ? static_cast<sample_t>(~sample) : sample;
}

// GROUP samples of LANES rows, `rows_apart` apart, row by row; a row fills GROUP / LANES words.
__device__ __forceinline__ void load_group(const sample_t* plane, long long pitch, int height, int width, int y,
                                           int rows_apart, int x, unsigned (&words)[GROUP]) {
    constexpr int ROW_WORDS = GROUP / LANES;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        const int row = y + lane * rows_apart;
        const bool exists = row >= 0 && row < height;
        const sample_t* from = plane + row * pitch + x;
#pragma unroll
        for (int word = 0; word < ROW_WORDS; ++word) words[lane * ROW_WORDS + word] = 0;
        if (VECTORS && exists && x >= 0 && x + GROUP <= width) {
#pragma unroll
            for (int word = 0; word < ROW_WORDS; ++word) {
                const unsigned codes = __ldg(reinterpret_cast<const unsigned*>(from) + word);
                words[lane * ROW_WORDS + word] = ERODE ? ~codes : codes;
            }
        } else if (exists) {
#pragma unroll
            for (int i = 0; i < GROUP; ++i)
                if (x + i >= 0 && x + i < width) words[lane * ROW_WORDS + i / LANES] |= lane_of(from[i], i % LANES);
        }
    }
}

// From rows of samples to columns, and back: word i then holds column i of all rows.
__device__ __forceinline__ uint4 transposed(const unsigned (&words)[GROUP]) {
    if constexpr (LANES == 4) {
        const unsigned a = __byte_perm(words[0], words[1], 0x5140), b = __byte_perm(words[2], words[3], 0x5140);
        const unsigned c = __byte_perm(words[0], words[1], 0x7362), d = __byte_perm(words[2], words[3], 0x7362);
        return make_uint4(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x5410),
                          __byte_perm(c, d, 0x7632));
    }
    return make_uint4(__byte_perm(words[0], words[2], 0x5410), __byte_perm(words[0], words[2], 0x7632),
                      __byte_perm(words[1], words[3], 0x5410), __byte_perm(words[1], words[3], 0x7632));
}

// Maximum over 2 * radius + 1 columns: runs of 1, 2, 4, ... samples, then two overlapping runs. Codes come out inverted
// for erosion, as box_columns reads them. Rows of `out` begin on whole groups and may be written to whole groups.
// grid: (segments of a row, groups of LANES rows, planes)
extern "C" __global__ void __launch_bounds__(THREADS) box_rows(View in, View out, int height, int width, int radius) {
    constexpr int MOST_WORDS = SEGMENT + 2 * MAX_RADIUS;
    __shared__ uint4 memory[2][MOST_WORDS / GROUP];
    unsigned* const runs = reinterpret_cast<unsigned*>(memory);
    const sample_t* plane = in.data + blockIdx.z * in.step;
    const int margin = (radius + GROUP - 1) / GROUP * GROUP, words = SEGMENT + 2 * margin;
    const int left = blockIdx.x * SEGMENT, top = blockIdx.y * LANES;
    for (int group = threadIdx.x; group < words / GROUP; group += THREADS) {
        unsigned rows[GROUP];
        load_group(plane, in.pitch, height, width, top, 1, left - margin + group * GROUP, rows);
        memory[0][group] = transposed(rows);
    }
    __syncthreads();
    int now = 0, run = 1;
    for (; 2 * run <= 2 * radius + 1; run *= 2) {
        const unsigned* shorter = runs + now * MOST_WORDS;
        now = 1 - now;
        for (int i = threadIdx.x; i + 2 * run <= words; i += THREADS)
            runs[now * MOST_WORDS + i] = largest(shorter[i], shorter[i + run]);
        __syncthreads();
    }
    const unsigned* window = runs + now * MOST_WORDS + margin - radius;
    now = 1 - now;
    for (int i = threadIdx.x; i < SEGMENT; i += THREADS)
        runs[now * MOST_WORDS + i] = largest(window[i], window[i + 2 * radius + 1 - run]);
    __syncthreads();
    const int x = left + threadIdx.x * GROUP;
    if (x >= width) return;
    const uint4 columns = memory[now][threadIdx.x];
    const unsigned apart[GROUP] = {columns.x, columns.y, columns.z, columns.w};
    // Four bytes by four rows are turned over by the same moves; pairs of rows by their inverse.
    uint4 rows;
    if constexpr (LANES == 4)
        rows = transposed(apart);
    else
        rows = make_uint4(__byte_perm(apart[0], apart[1], 0x5410), __byte_perm(apart[2], apart[3], 0x5410),
                          __byte_perm(apart[0], apart[1], 0x7632), __byte_perm(apart[2], apart[3], 0x7632));
    const unsigned row_words[GROUP] = {rows.x, rows.y, rows.z, rows.w};
#pragma unroll
    for (int i = 0; i < GROUP; ++i) {
        constexpr int ROW_WORDS = GROUP / LANES;
        const int y = top + i / ROW_WORDS;
        if (y < height)
            reinterpret_cast<unsigned*>(out.data + blockIdx.z * out.step + y * out.pitch + x)[i % ROW_WORDS] = row_words[i];
    }
}

// Maximum over 2 * radius + 1 rows of what box_rows wrote (van Herk 1992; Gil and Werman 1993): a window is the end of
// one segment of that many rows and the beginning of the next. Rows of `in` and `suffix` begin on words.
// grid: (words of a row / THREADS, segments of a column, planes)
extern "C" __global__ void __launch_bounds__(THREADS)
    box_columns(View in, View suffix, View out, int height, int width, int radius) {
    const int x = (blockIdx.x * THREADS + threadIdx.x) * LANES, span = 2 * radius + 1;
    if (x >= width) return;
    const sample_t* rows = in.data + blockIdx.z * in.step + x;
    sample_t* suffixes = suffix.data + blockIdx.z * suffix.step + x;
    sample_t* target = out.data + blockIdx.z * out.step + x;
    const int first = blockIdx.y * span, count = min(span, height - first);
    const auto row_at = [&](int row) {
        return row >= 0 && row < height ? __ldg(reinterpret_cast<const unsigned*>(rows + row * in.pitch)) : 0u;
    };
    unsigned running = 0;
#pragma unroll 8
    for (int i = span - 1; i >= 0; --i) {
        running = largest(running, row_at(first - radius + i));
        if (i < count) *reinterpret_cast<unsigned*>(suffixes + (first + i) * suffix.pitch) = running;
    }
    running = 0;
    for (int i = 0; i < count; i += BATCH) {
        unsigned end[BATCH], next[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {  // all loads before the first store, so that they overlap
            end[j] = i + j < count ? *reinterpret_cast<unsigned*>(suffixes + (first + i + j) * suffix.pitch) : 0u;
            next[j] = row_at(first - radius + span + i + j);
        }
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {
            if (i + j >= count) break;
            const unsigned word = largest(running, end[j]);
            sample_t* to = target + (first + i + j) * out.pitch;
            if (VECTORS && x + LANES <= width) {
                *reinterpret_cast<unsigned*>(to) = ERODE ? ~word : word;
            } else {
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane)
                    if (x + lane < width) to[lane] = sample_of(word, lane);
            }
            running = largest(running, next[j]);
        }
    }
}

// Maximum over a disc: each of its rows is two overlapping runs of 2^level samples, looked up in shared memory.
// A block makes LANES * DEPTH rows of THREADS columns; lane l of a word is DEPTH rows below lane l - 1. The next row is
// on its way while one is worked on. grid: (tiles of a row, tiles of a column, planes);
// shared memory: (levels + 1) * width words
extern "C" __global__ void __launch_bounds__(THREADS)
    disc(View in, View out, int height, int width, const __grid_constant__ Disc window) {
    extern __shared__ uint4 memory[];
    unsigned* table = reinterpret_cast<unsigned*>(memory);
    const sample_t* plane = in.data + blockIdx.z * in.step;
    const int left = blockIdx.x * THREADS, top = blockIdx.y * LANES * DEPTH, radius = window.radius;
    const bool loads = threadIdx.x < window.width / GROUP;  // a group each: width is at most 256 + 2 * 256 words
    const int column = left - window.margin + static_cast<int>(threadIdx.x) * GROUP;
    unsigned next[GROUP] = {}, most[DEPTH] = {};
    if (loads) load_group(plane, in.pitch, height, width, top - radius, DEPTH, column, next);
    for (int step = 0; step < DEPTH + 2 * radius; ++step) {
        if (loads) memory[threadIdx.x] = transposed(next);
        __syncthreads();
        if (loads) load_group(plane, in.pitch, height, width, top - radius + step + 1, DEPTH, column, next);
        for (int level = 1; level <= window.levels; ++level) {
            const unsigned* shorter = table + (level - 1) * window.width;
            for (int i = threadIdx.x; i + (1 << level) <= window.width; i += THREADS)
                table[level * window.width + i] = largest(shorter[i], shorter[i + (1 << (level - 1))]);
            __syncthreads();
        }
#pragma unroll
        for (int j = 0; j < DEPTH; ++j) {
            const int distance = abs(step - radius - j);
            if (distance > radius) continue;
            const unsigned run = largest(table[window.first[distance] + threadIdx.x],
                                         table[window.second[distance] + threadIdx.x]);
            most[j] = largest(most[j], run);
        }
        __syncthreads();
    }
    const int x = left + threadIdx.x;
    if (x >= width) return;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane)
#pragma unroll
        for (int j = 0; j < DEPTH; ++j) {
            const int row = top + lane * DEPTH + j;
            if (row < height) out.data[blockIdx.z * out.step + row * out.pitch + x] = sample_of(most[j], lane);
        }
}
