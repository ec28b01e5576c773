// A picture and its matte to a finished picture in one pass; the contracts and references are in guided.py (alpha),
// foreground.py (decontamination) and composite.py (everything painted).
//
//   alpha = round(clip(gain * grey + offset, 0, 1) * PEAK)        gain, offset: small, bilinear between cell centres
//   out   = round(behind + (sample - behind) * alpha / PEAK)      chroma: alpha at its site, or the block's least
//
// Sample i of a row has its centre at i + 0.5; cells likewise. Chroma is read bilinearly from where its sites sit.
// A block is one warp, which makes a tile of up to 256 columns, each thread 8 of them, row pair by row pair. Between two
// rows of cells gain and offset are linear in y at every column: a thread keeps value and slope of its columns in
// registers and renews them at each row of cells. What it reads of the picture comes through shared memory, copied
// there three row pairs ahead. One translation unit: every part works on a thread's registers and must be inlined.

#include <cuda_fp16.h>

// What is painted.
#define PAINT_ALPHA 0       // the alpha plane itself
#define PAINT_WEIGHTS 1     // alpha at the chroma sites, one plane
#define PAINT_MATTE 2       // alpha as a grey picture
#define PAINT_COLOR 3       // the person on one colour
#define PAINT_FRAME 4       // the person on another frame
#define PAINT_TINT 5        // the person tinted
#define PAINT_FOREGROUND 6  // the frame with the foreground of partly transparent samples

#ifndef DEEP  // 0: NV12, 1: P010; a given alpha has as many bytes a sample
#define DEEP 0
#endif
#ifndef MADE_DEEP  // 1: the result has 16-bit samples
#define MADE_DEEP 0
#endif
#ifndef MADE_SHIFT  // bits that they are shifted up by: 6 for P010
#define MADE_SHIFT 0
#endif
#ifndef COEFFICIENT  // float or __half
#define COEFFICIENT float
#endif
#ifndef PAINT
#define PAINT PAINT_COLOR
#endif
#ifndef ALPHA_GIVEN  // 1: a finished alpha plane instead of coefficients
#define ALPHA_GIVEN 0
#endif
#ifndef DECONTAMINATE  // 1: partly transparent samples take the network's foreground first
#define DECONTAMINATE 0
#endif
#ifndef COSITED_X  // 1: chroma sites sit on even luma columns
#define COSITED_X 1
#endif
#ifndef COSITED_Y  // 1: and on even luma rows
#define COSITED_Y 0
#endif
#ifndef PLANAR  // 1: U and V of the result in planes of their own
#define PLANAR 0
#endif
#ifndef WHOLE  // 1: rows of all planes and eyes begin and end on 8 samples, eyes on row pairs
#define WHOLE 1
#endif
#ifndef SHARED  // 1: the cells of a tile fit shared memory
#define SHARED 1
#endif
#ifndef BLOCKS  // that should fit a multiprocessor
#define BLOCKS 16
#endif

// Bytes are blended as pairs of half floats, which hold every sum and difference here exactly; see the end of Pairs.
#define PAIRED (!DEEP && !COSITED_Y && PAINT >= PAINT_COLOR && PAINT <= PAINT_TINT)

#if DEEP
using sample_t = unsigned short;
#else
using sample_t = unsigned char;
#endif
#if MADE_DEEP
using made_t = unsigned short;
#else
using made_t = unsigned char;
#endif
using coefficient_t = COEFFICIENT;

constexpr int THREADS = 32, WIDTH = 8, MIXED_SITES = 4 * THREADS;
constexpr int MIXED_ROWS = 32;  // longest strip with decontamination
constexpr float PEAK = DEEP ? 65535.f : 255.f, STEP = DEEP ? 64.f : 1.f;
constexpr float INTEGER = 8388608.f;  // 2^23: what is added to it is rounded to an integer, which stands in its low bits
// A byte becomes a float by one permutation, which leaves this much too much; constants take it away again.
constexpr float LIFT = DEEP ? 0.f : 32768.f;
constexpr bool PICTURE = PAINT >= PAINT_COLOR, CHROMA_WEIGHED = PICTURE || PAINT == PAINT_WEIGHTS;
// A cosited site also weighs the sample before its block: a strip's first lane makes what is left of it, unpainted.
constexpr int HALO = CHROMA_WEIGHED && COSITED_X, TILE_WIDTH = (THREADS - HALO) * WIDTH;
constexpr bool FRAME_READ = PICTURE || !ALPHA_GIVEN;
// Row pairs that are under way to shared memory while one is computed, and what is read of each: octets of two luma
// rows and a chroma row of the frame, the same of what is behind, two rows of a given alpha.
constexpr int DEPTH = DEEP && PAINT == PAINT_FRAME ? 2 : 3;
constexpr int LUMA = 0, CHROMA = 2, BEHIND = 3 * FRAME_READ, GIVEN = BEHIND + 3 * (PAINT == PAINT_FRAME);
constexpr int AFTER = GIVEN + 2 * ALPHA_GIVEN, BEFORE = AFTER + 1;  // words: chroma beside the thread's own
constexpr int OCTETS = AFTER + (ALPHA_GIVEN ? 0 : COSITED_X ? 1 : 2);

struct Picture { const sample_t *luma, *chroma; long long luma_pitch, chroma_pitch; };  // pitches in samples
struct Result { made_t *luma, *chroma; long long luma_pitch, chroma_pitch, apart; };    // apart: from U to V, planar
// Of alpha and of the foreground's R, at the cell that is first as the picture is coded; strides in elements.
struct Field { const coefficient_t *alpha, *residual; int row, column, plane; };
struct Eye {
    int left, top, right, bottom;                              // luma samples to make
    int chroma_left, chroma_top, chroma_right, chroma_bottom;  // first and last sites that may be read
    int columns, rows;                                         // cells
    float x_step, y_step, y_span;                              // cells a sample, rows a cell
    Field gain, offset;
};
struct Grey { float luma, blue, red, offset, darkest, brightest; };
struct Affine { float matrix[9], offset[3]; };
// What is behind a sample, ready to be blended with it: its code (and LIFT) over -PEAK, and raised by INTEGER.
struct Behind { float less, code; };
struct PairBehind { unsigned less, code; };  // for pairs: twice the code and 1024, negative; the code and 1024
struct Job {
    Picture frame, behind;
    const sample_t* alpha;
    Result result;
    Eye eye[2];
    Grey grey;
    Affine rgb_from_yuv, yuv_from_rgb;
    Behind color[3];                       // the colour behind
    PairBehind pair_color[3];              // the same as half floats
    float code[3];                         // its codes, without P010's shift; for MATTE those of black, white and grey
    float opacity;                         // of a tint
    int alpha_pitch, width, height, rows;  // rows: of a warp's strip, even
    unsigned float_bits, half_bits;        // FLOAT_BITS, HALF_BITS: no constants to the assembler, which keeps them in registers
};

template <typename T> struct alignas(8 * sizeof(T)) Octet { unsigned word[2 * sizeof(T)]; };
template <typename T> struct alignas(4 * sizeof(T)) Quad { unsigned word[sizeof(T)]; };

// Keeps the compiler from computing anew, in every row, what belongs in a register.
template <typename T> __device__ __forceinline__ T* fixed(T* at) {
    asm volatile("" : "+l"(at));
    __builtin_assume(__isGlobal(at));
    return at;
}
// The same of a value that a whole warp shares.
__device__ __forceinline__ unsigned fixed(unsigned value) { return __shfl_sync(~0u, value, 0); }
// And of a thread's own value.
__device__ __forceinline__ int fixed_own(int value) {
    asm volatile("" : "+r"(value));
    return value;
}
__device__ __forceinline__ float fixed(float value) { return __uint_as_float(fixed(__float_as_uint(value))); }

template <typename T> __device__ __forceinline__ T* row_of(T* plane, int y, long long pitch) {
    return plane + y * pitch;
}

// 8 samples of which those before `end` exist.
template <typename T> __device__ __forceinline__ Octet<T> load(const T* at, int end) {
    if (WHOLE) return *reinterpret_cast<const Octet<T>*>(at);
    Octet<T> octet = {};
#pragma unroll
    for (int k = 0; k < WIDTH; ++k)
        if (k < end) octet.word[k * sizeof(T) / 4] |= static_cast<unsigned>(at[k]) << k * sizeof(T) * 8 % 32;
    return octet;
}

// Stores the samples from `first` to before `last` of 8 or 4.
template <typename T, typename Group> __device__ __forceinline__ void store(T* at, const Group group, int first, int last) {
    constexpr int count = sizeof(Group) / sizeof(T);
    if (WHOLE) {
        if (last > 0) *reinterpret_cast<Group*>(at) = group;
        return;
    }
#pragma unroll
    for (int k = 0; k < count; ++k)
        if (k >= first && k < last) at[k] = static_cast<T>(group.word[k * sizeof(T) / 4] >> k * sizeof(T) * 8 % 32);
}

// What a permutation puts around a sample to make a float of it, or around two bytes to make half floats.
constexpr unsigned FLOAT_BITS = DEEP ? 0x4b000000u : 0x47000000u, HALF_BITS = 0x64646464u;

// Sample `lane` of packed samples, plus LIFT.
__device__ __forceinline__ float number(const unsigned* words, int lane, unsigned float_bits = FLOAT_BITS) {
    if (DEEP) return __uint_as_float(__byte_perm(words[lane / 2], float_bits, lane % 2 ? 0x7432 : 0x7410)) - INTEGER;
    return __uint_as_float(__byte_perm(words[lane / 4], float_bits, 0x7404 | lane % 4 << 4));
}

__device__ __forceinline__ Octet<made_t> packed(const float (&raised)[WIDTH]) {  // integers plus INTEGER
    Octet<made_t> octet;
#pragma unroll
    for (int k = 0; k < WIDTH; k += 4) {
        const unsigned a = __float_as_uint(raised[k]), b = __float_as_uint(raised[k + 1]);
        const unsigned c = __float_as_uint(raised[k + 2]), d = __float_as_uint(raised[k + 3]);
        if (sizeof(made_t) == 1) {
            octet.word[k / 4] = __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
        } else {
            octet.word[k / 2] = __byte_perm(a, b, 0x5410) << MADE_SHIFT;
            octet.word[(k / 2 + 1) % (2 * sizeof(made_t))] = __byte_perm(c, d, 0x5410) << MADE_SHIFT;
        }
    }
    return octet;
}

__device__ __forceinline__ Octet<made_t> filled(float even, float odd) {
    float raised[WIDTH];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) raised[k] = (k % 2 ? odd : even) + INTEGER;
    return packed(raised);
}

__device__ __forceinline__ Octet<made_t> copied(const Octet<sample_t> octet) {
    Octet<made_t> copy = {};
#pragma unroll
    for (int i = 0; i < 2 * sizeof(sample_t); ++i)
        copy.word[i % (2 * sizeof(made_t))] = DEEP && MADE_SHIFT == 0 ? octet.word[i] >> 6 & 0x03ff03ffu : octet.word[i];
    return copy;
}

// Four interleaved sites to where the first's U belongs; in planes of their own V lies `apart` samples behind it.
__device__ __forceinline__ void store_chroma(made_t* at, long long apart, const Octet<made_t> pairs, int first, int last) {
    first &= ~1, last = last + 1 & ~1;
    if (!PLANAR) {
        store(at, pairs, first, last);
        return;
    }
    Quad<made_t> blue, red;
    if (MADE_DEEP) {
#pragma unroll
        for (int i = 0; i < sizeof(made_t); ++i) {
            blue.word[i] = __byte_perm(pairs.word[i * 2 % 4], pairs.word[i * 2 % 4 + 1], 0x5410);
            red.word[i] = __byte_perm(pairs.word[i * 2 % 4], pairs.word[i * 2 % 4 + 1], 0x7632);
        }
    } else {
        blue.word[0] = __byte_perm(pairs.word[0], pairs.word[1], 0x6420);
        red.word[0] = __byte_perm(pairs.word[0], pairs.word[1], 0x7531);
    }
    store(at, blue, first / 2, last / 2);
    if (PAINT != PAINT_WEIGHTS) store(at + apart, red, first / 2, last / 2);
}

__device__ __forceinline__ int clamped(int value, int first, int last) { return min(max(value, first), last); }

// Where the centre of a sample lies among the centres of cells; from -0.5 to half a cell beyond the last.
__device__ __forceinline__ float cell_x(const Eye& eye, int x) {
    return fmaf(clamped(x, eye.left, eye.right - 1) - eye.left + 0.5f, eye.x_step, -0.5f);
}
__device__ __forceinline__ float cell_y(const Eye& eye, int y) {
    return fmaf(clamped(y, eye.top, eye.bottom - 1) - eye.top + 0.5f, eye.y_step, -0.5f);
}

// Gain and offset of alpha, and how much more they are one cell to the right. Cells repeat at the border.
__device__ __forceinline__ float4 read_cell(const Eye& eye, int row, int column) {
    const int y = clamped(row, 0, eye.rows - 1);
    const int x = clamped(column, 0, eye.columns - 1), right = clamped(column + 1, 0, eye.columns - 1);
    const coefficient_t* const gains = eye.gain.alpha + static_cast<long long>(y) * eye.gain.row;
    const coefficient_t* const offsets = eye.offset.alpha + static_cast<long long>(y) * eye.offset.row;
    const float gain = static_cast<float>(gains[x * eye.gain.column]);
    const float offset = static_cast<float>(offsets[x * eye.offset.column]);
    return make_float4(gain, offset, static_cast<float>(gains[right * eye.gain.column]) - gain,
                       static_cast<float>(offsets[right * eye.offset.column]) - offset);
}

// The cells of a tile.
struct Cells {
    const float4* shared;
    int left, top, columns;
};

__device__ __forceinline__ float2 between_columns(const Cells& cells, const Eye& eye, int row, float position) {
    const int column = static_cast<int>(floorf(position));
    const float share = position - column;
    const float4 cell = SHARED ? cells.shared[(row - cells.top) * cells.columns + column - cells.left] : read_cell(eye, row, column);
    return make_float2(fmaf(share, cell.z, cell.x), fmaf(share, cell.w, cell.y));
}

// Alpha as it is blended with, plus INTEGER.
__device__ __forceinline__ float kept(float alpha, const Job& job) {
    return PAINT == PAINT_TINT ? fmaf(-job.opacity, alpha - INTEGER, PEAK + INTEGER) : alpha;
}

__device__ __forceinline__ unsigned load_site(const sample_t* at) {
    if (!WHOLE) return at[0] | static_cast<unsigned>(at[1]) << 8 * sizeof(sample_t);
    if (DEEP) return *reinterpret_cast<const unsigned*>(at);
    return *reinterpret_cast<const unsigned short*>(at);
}

// Y, U and V in samples at one luma sample of the eye.
__device__ float3 yuv_at(const Job& job, const Eye& eye, int x, int y) {
    const int column = COSITED_X ? x / 2 : (x + 1) / 2 - 1, row = COSITED_Y ? y / 2 : (y + 1) / 2 - 1;
    const float right = COSITED_X ? 0.5f * (x & 1) : x & 1 ? 0.25f : 0.75f;
    const float lower = COSITED_Y ? 0.5f * (y & 1) : y & 1 ? 0.25f : 0.75f;
    float blue[2], red[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const sample_t* chroma = row_of(job.frame.chroma, clamped(row + i, eye.chroma_top, eye.chroma_bottom), job.frame.chroma_pitch);
        const unsigned a = load_site(chroma + 2 * clamped(column, eye.chroma_left, eye.chroma_right));
        const unsigned b = load_site(chroma + 2 * clamped(column + 1, eye.chroma_left, eye.chroma_right));
        blue[i] = fmaf(right, number(&b, 0) - number(&a, 0), number(&a, 0) - LIFT);
        red[i] = fmaf(right, number(&b, 1) - number(&a, 1), number(&a, 1) - LIFT);
    }
    return make_float3(row_of(job.frame.luma, y, job.frame.luma_pitch)[x], fmaf(lower, blue[1] - blue[0], blue[0]),
                       fmaf(lower, red[1] - red[0], red[0]));
}

// Alpha of one sample, plus INTEGER.
__device__ float alpha_at(const Job& job, const Cells& cells, const Eye& eye, int x, int y) {
    if (ALPHA_GIVEN) return kept(row_of(job.alpha, y, job.alpha_pitch)[x] + INTEGER, job);
    const float column = cell_x(eye, x), position = cell_y(eye, y);
    const int row = static_cast<int>(floorf(position));
    const float2 upper = between_columns(cells, eye, row, column), lower = between_columns(cells, eye, row + 1, column);
    const float3 yuv = yuv_at(job, eye, x, y);
    const float grey = job.grey.luma * yuv.x + job.grey.blue * yuv.y + job.grey.red * yuv.z + job.grey.offset;
    const float gain = fmaf(position - row, lower.x - upper.x, upper.x);
    const float offset = fmaf(position - row, lower.y - upper.y, upper.y);
    return kept(fmaf(__saturatef(fmaf(gain, grey, offset)), PEAK, INTEGER), job);
}

// Where a thread paints: columns x to x + 7, of which those from `first` to before `last` are the eye's.
struct Place {
    int x, first, last;
    bool ragged;                 // not all 8 are
    bool at_left, at_right;      // there is no chroma site beyond the thread's four
    bool is_first;               // nor alpha before its first sample
    unsigned float_bits, half_bits;
    int tile_left, tile_top;
};

#if DECONTAMINATE
__shared__ unsigned short mixed[MIXED_ROWS / 2 * MIXED_SITES];  // chroma sites that alpha mixes
__shared__ int mixed_count;

// Remembers the `site`th of a thread's four if alpha mixes it: its weighted sum is neither 0 nor full.
__device__ __forceinline__ void note_mixed(const Place& place, int y, int site, float sum, float full) {
    if (sum > 0.f && sum < full && 2 * site >= place.first && 2 * site < place.last)
        mixed[atomicAdd(&mixed_count, 1)] = (y - place.tile_top) / 2 * MIXED_SITES + (place.x - place.tile_left) / 2 + site;
}

__device__ float residual_at(const Field& field, const Eye& eye, int channel, float row, float column) {
    const coefficient_t* plane = field.residual + static_cast<long long>(channel) * field.plane;
    const int y = static_cast<int>(floorf(row)), x = static_cast<int>(floorf(column));
    const int upper = max(y, 0) * field.row, lower = min(y + 1, eye.rows - 1) * field.row;
    const int left = max(x, 0) * field.column, right = min(x + 1, eye.columns - 1) * field.column;
    const float a = plane[upper + left], b = plane[upper + right], c = plane[lower + left], d = plane[lower + right];
    const float above = fmaf(column - x, b - a, a), below = fmaf(column - x, d - c, c);
    return fmaf(row - y, below - above, above);
}

// The foreground's Y, U and V in samples.
__device__ float3 foreground_at(const Job& job, const Eye& eye, int x, int y) {
    const float3 yuv = yuv_at(job, eye, x, y);
    const float row = cell_y(eye, y), column = cell_x(eye, x);
    float rgb[3], made[3];
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const float* weights = job.rgb_from_yuv.matrix + 3 * c;
        const float own = weights[0] * yuv.x + weights[1] * yuv.y + weights[2] * yuv.z + job.rgb_from_yuv.offset[c];
        rgb[c] = __saturatef(own + own * residual_at(eye.gain, eye, c, row, column) + residual_at(eye.offset, eye, c, row, column));
    }
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const float* weights = job.yuv_from_rgb.matrix + 3 * c;
        made[c] = weights[0] * rgb[0] + weights[1] * rgb[1] + weights[2] * rgb[2] + job.yuv_from_rgb.offset[c];
    }
    return make_float3(made[0], made[1], made[2]);
}

__device__ made_t finished(float sample, bool replaced, float alpha, float behind) {
    const float own = replaced ? fminf(fmaxf(rintf(sample / STEP), 0.f), DEEP ? 1023.f : 255.f) : sample / STEP;
    const float code = PAINT == PAINT_FOREGROUND ? own : behind + (own - behind) * (alpha / PEAK);
    return static_cast<made_t>(__float2int_rn(code) << MADE_SHIFT);
}

// One chroma site and its luma samples once more, with the network's foreground where alpha is partial.
__device__ void repaint(const Job& job, const Cells& cells, const Eye& eye, int x, int y) {
    float filtered = 0.f, blue = 0.f, red = 0.f, least = PEAK;
#pragma unroll 1
    for (int dy = -COSITED_Y; dy < 2; ++dy) {
#pragma unroll 1
        for (int dx = -COSITED_X; dx < 2; ++dx) {
            const int column = clamped(x + dx, eye.left, eye.right - 1), row = clamped(y + dy, eye.top, eye.bottom - 1);
            const float weight = (COSITED_X && dx ? 0.25f : 0.5f) * (COSITED_Y && dy ? 0.25f : 0.5f);
            const float alpha = alpha_at(job, cells, eye, column, row) - INTEGER;
            const float3 foreground = foreground_at(job, eye, column, row);
            filtered += weight * alpha, blue += weight * foreground.y, red += weight * foreground.z;
            if (dx < 0 || dy < 0) continue;
            least = fminf(least, alpha);
            if (x + dx >= eye.right || y + dy >= eye.bottom) continue;
            const bool replaced = alpha > 0.f && alpha < PEAK;
            const float own = replaced ? foreground.x : row_of(job.frame.luma, row, job.frame.luma_pitch)[column];
            const float behind = PAINT == PAINT_FRAME ? row_of(job.behind.luma, row, job.behind.luma_pitch)[column] / STEP : job.code[0];
            row_of(job.result.luma, row, job.result.luma_pitch)[column] = finished(own, replaced, alpha, behind);
        }
    }
    filtered = rintf(filtered);
    const bool replaced = filtered > 0.f && filtered < PEAK;
    const sample_t* own = row_of(job.frame.chroma, y / 2, job.frame.chroma_pitch) + x;
    float behind_blue = job.code[1], behind_red = job.code[2];
    if (PAINT == PAINT_FRAME) {
        const sample_t* behind = row_of(job.behind.chroma, y / 2, job.behind.chroma_pitch) + x;
        behind_blue = behind[0] / STEP, behind_red = behind[1] / STEP;
    }
    made_t* const made = row_of(job.result.chroma, y / 2, job.result.chroma_pitch) + (PLANAR ? x / 2 : x);
    *made = finished(replaced ? blue : own[0], replaced, fmaxf(filtered, least), behind_blue);
    made[PLANAR ? job.result.apart : 1] = finished(replaced ? red : own[1], replaced, fmaxf(filtered, least), behind_red);
}
#endif

// Whether alpha rounds to 0 all over a tile, whatever the picture shows there; or to PEAK; or neither is certain.
enum Verdict { EMPTY, OPEN, FULL };

// Reads the cells of a tile into shared memory.
__device__ __forceinline__ Verdict gather_cells(Cells& cells, float4* shared, const Job& job, const Eye& eye, int left,
                                                int top, int right, int bottom) {
    // One row more above: a cosited chroma site weighs it too.
    cells.left = static_cast<int>(floorf(cell_x(eye, left))), cells.top = static_cast<int>(floorf(cell_y(eye, top - 1)));
    cells.columns = static_cast<int>(floorf(cell_x(eye, right - 1))) + 2 - cells.left, cells.shared = shared;
    const int rows = static_cast<int>(floorf(cell_y(eye, bottom - 1))) + 2 - cells.top;
    if (!SHARED) return OPEN;
    bool visible = false, clear = false;
    for (int i = threadIdx.x; i < cells.columns * rows; i += THREADS) {
        const float4 cell = read_cell(eye, cells.top + i / cells.columns, cells.left + i % cells.columns);
        shared[i] = cell;
        const float dark = cell.x * job.grey.darkest, bright = cell.x * job.grey.brightest;
        visible |= (fmaxf(dark, bright) + cell.y) * PEAK >= 0.5f;
        clear |= !((fminf(dark, bright) + cell.y) * PEAK >= PEAK - 0.5f);
    }
    __syncthreads();
    return !__any_sync(~0u, visible) ? EMPTY : __any_sync(~0u, clear) ? OPEN : FULL;
}

// A tile whose alpha is the same everywhere.
__device__ __forceinline__ void paint_flat(const Job& job, const Place& place, int top, int bottom, bool full) {
    const bool copies = PICTURE && (full || PAINT != PAINT_COLOR);
    const Picture& source = PAINT == PAINT_FRAME && !full ? job.behind : job.frame;
    const float luma = PAINT == PAINT_MATTE ? job.code[full] : PAINT == PAINT_ALPHA ? (full ? PEAK : 0.f) : job.code[0];
    const float blue = PAINT == PAINT_MATTE ? job.code[2] : job.code[1], red = job.code[2];
    const Octet<made_t> flat_luma = filled(luma, luma), flat_chroma = filled(blue, red);
    const int x = place.x;
    constexpr int BATCH = 8;  // rows whose loads are under way together
    for (int y = top & ~1; y < bottom; y += BATCH) {
        Octet<made_t> luma_rows[BATCH], chroma_rows[BATCH / 2];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            luma_rows[i] = flat_luma;
            if (i % 2 == 0) chroma_rows[i / 2] = flat_chroma;
            if (!copies || y + i >= bottom) continue;
            luma_rows[i] = copied(load(row_of(source.luma, y + i, source.luma_pitch) + x, job.width - x));
            if (i % 2 == 0) chroma_rows[i / 2] = copied(load(row_of(source.chroma, (y + i) / 2, source.chroma_pitch) + x, (job.width + 1 & ~1) - x));
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            if (y + i >= bottom) continue;
            if (y + i >= top) store(row_of(job.result.luma, y + i, job.result.luma_pitch) + x, luma_rows[i], place.first, place.last);
            if (PAINT == PAINT_ALPHA || i % 2) continue;
            store_chroma(row_of(job.result.chroma, (y + i) / 2, job.result.chroma_pitch) + (PLANAR ? x / 2 : x), job.result.apart, chroma_rows[i / 2], place.first, place.last);
        }
    }
}

// Gain and offset of a thread's columns between two rows of cells.
struct Band {
    float gain[WIDTH], gain_slope[WIDTH], offset[WIDTH], offset_slope[WIDTH];
    float share;  // of the lower row of cells
    float step;   // how much it grows from row to row
    int row;      // the upper one
    int end;      // first luma row that lies below the lower one
};

__device__ __forceinline__ void place_in_band(Band& band, const Eye& eye, int y) {
    band.share = fmaf(y - eye.top + 0.5f, eye.y_step, -0.5f) - band.row;
    band.end = eye.top + static_cast<int>(ceilf(fmaf(band.row + 1.5f, eye.y_span, -0.5f)));
}

__device__ __forceinline__ float column_position(const Eye& eye, const Place& place, int k) {
    if (!WHOLE) return cell_x(eye, place.x + k);
    return fmaf(place.x - eye.left + (k + 0.5f), eye.x_step, -0.5f);
}

__device__ __forceinline__ void enter_first_band(Band& band, const Cells& cells, const Eye& eye, const Place& place, int y) {
    band.row = static_cast<int>(floorf(cell_y(eye, y))), band.step = fixed(eye.y_step);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        const float position = column_position(eye, place, k);
        const float2 upper = between_columns(cells, eye, band.row, position);
        const float2 lower = between_columns(cells, eye, band.row + 1, position);
        band.gain[k] = upper.x, band.gain_slope[k] = lower.x - upper.x;
        band.offset[k] = upper.y, band.offset_slope[k] = lower.y - upper.y;
    }
    place_in_band(band, eye, y);
}

__device__ __forceinline__ void enter_next_band(Band& band, const Cells& cells, const Eye& eye, const Place& place, int y) {
    ++band.row;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        const float2 lower = between_columns(cells, eye, band.row + 1, column_position(eye, place, k));
        band.gain[k] += band.gain_slope[k], band.offset[k] += band.offset_slope[k];
        band.gain_slope[k] = lower.x - band.gain[k], band.offset_slope[k] = lower.y - band.offset[k];
    }
    place_in_band(band, eye, y);
}

// A row of chroma at a thread's four sites and the two beside them: the last of one word, the first of the other.
struct ChromaRow {
    Octet<sample_t> own;
    unsigned before, after;
};

constexpr int WORD = 4 / sizeof(sample_t);  // samples of a word

__device__ __forceinline__ ChromaRow load_chroma(const sample_t* at, const Place& place, int end) {
    ChromaRow sites = {};
    sites.own = load(at, end);
    if (!ALPHA_GIVEN && !COSITED_X && !place.at_left) sites.before = load_site(at - 2) << (DEEP ? 0 : 16);
    if (!ALPHA_GIVEN && !place.at_right) sites.after = load_site(at + WIDTH);
    return sites;
}

__shared__ Octet<sample_t> octets[DEPTH][OCTETS][THREADS];

#if WHOLE && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <int bytes> __device__ __forceinline__ void copy_async(void* to, const void* at) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(at), "n"(bytes) : "memory");
}
__device__ __forceinline__ void fetch(Octet<sample_t>& to, const sample_t* at, int) { copy_async<sizeof(to)>(&to, at); }
__device__ __forceinline__ void fetch_word(Octet<sample_t>& to, const sample_t* at, bool) { copy_async<4>(to.word, at); }
__device__ __forceinline__ void end_fetch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void await_fetch() { asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 1) : "memory"); }
#else
__device__ __forceinline__ void fetch(Octet<sample_t>& to, const sample_t* at, int end) { to = load(at, end); }
__device__ __forceinline__ void fetch_word(Octet<sample_t>& to, const sample_t* at, bool is_last) {
    to.word[0] = is_last ? load_site(at + WORD - 2) << (DEEP ? 0 : 16) : load_site(at);
}
__device__ __forceinline__ void end_fetch() {}
__device__ __forceinline__ void await_fetch() {}
#endif

// What chroma adds to grey, at the same six sites.
struct Share {
    float at[6];
};

__device__ __forceinline__ Share share_of(const ChromaRow& sites, const Grey& grey, const Eye& eye, const Place& place) {
    const float offset = grey.offset - LIFT * (grey.luma + grey.blue + grey.red);
    Share share = {};
#pragma unroll
    for (int i = COSITED_X; i < 6; ++i) {
        const unsigned* words = i == 0 ? &sites.before : i == 5 ? &sites.after : sites.own.word;
        const int lane = i == 0 ? WORD - 2 : i == 5 ? 0 : 2 * i - 2;
        const float blue = number(words, lane, place.float_bits), red = number(words, lane + 1, place.float_bits);
        share.at[i] = fmaf(grey.blue, blue, fmaf(grey.red, red, offset));
    }
    if (place.at_right) share.at[5] = share.at[4];
    if (!COSITED_X && place.at_left) share.at[0] = share.at[1];
    if (!WHOLE && place.ragged) {
#pragma unroll
        for (int i = COSITED_X + 1; i < 6; ++i)
            if (place.x / 2 + i - 1 > eye.chroma_right) share.at[i] = share.at[i - 1];
#pragma unroll
        for (int i = 4; i >= COSITED_X; --i)
            if (place.x / 2 + i - 1 < eye.chroma_left) share.at[i] = share.at[i + 1];
    }
    return share;
}

// a * x + b * y
__device__ __forceinline__ Share mixed_share(float a, const Share& x, float b, const Share& y) {
    Share share = {};
#pragma unroll
    for (int i = COSITED_X; i < 6; ++i) share.at[i] = fmaf(a, x.at[i], b * y.at[i]);
    return share;
}

// Alpha, plus INTEGER, of 8 samples of row y: `row` is its luma, `chroma` what its sites add to grey; or `row` is its
// given alpha.
__device__ __forceinline__ void make_alpha(float (&alpha)[WIDTH], Band& band, const Cells& cells, const Job& job,
                                           const Eye& eye, const Place& place, int y, const Octet<sample_t>& row,
                                           const Share& chroma) {
    if (ALPHA_GIVEN) {
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) alpha[k] = kept(number(row.word, k) + (INTEGER - LIFT), job);
    } else {
        while (y >= band.end && (WHOLE || y < eye.bottom)) enter_next_band(band, cells, eye, place, y);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            const int i = k / 2 + 1;
            float added = chroma.at[i];
            if (COSITED_X && k % 2) added = fmaf(0.5f, chroma.at[i], 0.5f * chroma.at[i + 1]);
            if (!COSITED_X) added = fmaf(0.25f, chroma.at[k % 2 ? i + 1 : i - 1], 0.75f * chroma.at[i]);
            const float grey = fmaf(job.grey.luma, number(row.word, k, place.float_bits), added);
            const float gain = fmaf(band.share, band.gain_slope[k], band.gain[k]);
            const float offset = fmaf(band.share, band.offset_slope[k], band.offset[k]);
            alpha[k] = kept(fmaf(__saturatef(fmaf(gain, grey, offset)), PEAK, INTEGER), job);
        }
        band.share += band.step;
    }
    if (!WHOLE && CHROMA_WEIGHED && place.ragged) {  // alpha repeats at the border
#pragma unroll
        for (int k = 1; k < WIDTH; ++k)
            if (place.x + k >= eye.right) alpha[k] = alpha[k - 1];
#pragma unroll
        for (int k = WIDTH - 2; k >= 0; --k)
            if (place.x + k < eye.left) alpha[k] = alpha[k + 1];
    }
}

#if PAIRED
// Two codes as the bits of half floats are 2^-24 each: sums are exact, and what is scaled is rounded to a code.
__device__ __forceinline__ __half2 halves(unsigned bits) { return *reinterpret_cast<const __half2*>(&bits); }
__device__ __forceinline__ unsigned bits(__half2 pair) { return *reinterpret_cast<const unsigned*>(&pair); }

// Alpha of 8 samples: 0 and 2, 4 and 6; 1 and 3, 5 and 7.
struct AlphaRow {
    __half2 even[2], odd[2];
};

__device__ __forceinline__ AlphaRow alpha_row(const float (&alpha)[WIDTH]) {
    AlphaRow row;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float* at = alpha + 4 * i;
        row.even[i] = halves(__byte_perm(__float_as_uint(at[0]), __float_as_uint(at[2]), 0x5410));
        row.odd[i] = halves(__byte_perm(__float_as_uint(at[1]), __float_as_uint(at[3]), 0x5410));
    }
    return row;
}

// Bytes 0 and 2, or 1 and 3, of a word; and what they become over `behind`. 1024 is added to all.
__device__ __forceinline__ __half2 blended(const Place& place, unsigned word, unsigned behind, const PairBehind color,
                                           int odd, __half2 alpha) {
    const unsigned selector = odd ? 0x4341 : 0x4240;
    const __half2 own = halves(__byte_perm(word, place.half_bits, selector));
    __half2 less = halves(color.less), code = halves(color.code);
    if (PAINT == PAINT_FRAME) {
        code = halves(__byte_perm(behind, place.half_bits, selector));
        less = __hmul2(code, __float2half2_rn(-2.f));
    }
    // 2^24 / 510 is half an alpha of 1 in all the bits that a half float has, and 1 exactly where alpha is 255.
    return __hfma2(__hfma2(own, __float2half2_rn(2.f), less), __hmul2(alpha, __float2half2_rn(32896.f)), code);
}

__device__ __forceinline__ unsigned interleaved(__half2 even, __half2 odd) { return __byte_perm(bits(even), bits(odd), 0x6240); }

__device__ __forceinline__ void paint_luma(made_t* at, const Job& job, const Place& place, const AlphaRow& alpha,
                                           const Octet<sample_t>& luma, const Octet<sample_t>& behind) {
    Octet<made_t> octet;
#pragma unroll
    for (int i = 0; i < 2; ++i)
        octet.word[i] = interleaved(blended(place, luma.word[i], behind.word[i], job.pair_color[0], 0, alpha.even[i]),
                                    blended(place, luma.word[i], behind.word[i], job.pair_color[0], 1, alpha.odd[i]));
    store(at, octet, place.first, place.last);
}

__device__ __forceinline__ void paint_chroma(made_t* at, const Job& job, const Place& place, int y, const AlphaRow (&alpha)[2],
                                             const AlphaRow&, const Octet<sample_t>& sites, const Octet<sample_t>& behind) {
    __half2 even[2], odd[2], weight[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        even[i] = __hadd2(alpha[0].even[i], alpha[1].even[i]);
        odd[i] = __hadd2(alpha[0].odd[i], alpha[1].odd[i]);
    }
    unsigned before = 0;
    if (COSITED_X) {
        before = __shfl_up_sync(~0u, bits(odd[1]), 1);
        if (place.is_first) before = bits(even[0]) << 16;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        __half2 sum = __hadd2(even[i], odd[i]);
        if (COSITED_X) {
            const unsigned left = __byte_perm(i ? bits(odd[0]) : before, bits(odd[i]), 0x5432);
            sum = __hadd2(__hfma2(even[i], __float2half2_rn(2.f), odd[i]), halves(left));
        }
        const __half2 least = __hmin2(__hmin2(alpha[0].even[i], alpha[0].odd[i]), __hmin2(alpha[1].even[i], alpha[1].odd[i]));
        // A block that is kept whole keeps its chroma whole, whatever lies beside it.
        weight[i] = __hmax2(__hmul2(sum, __float2half2_rn(COSITED_X ? 0.125f : 0.25f)), least);
#if DECONTAMINATE
        const unsigned full = (COSITED_X ? 8 : 4) * 255;
        note_mixed(place, y, 2 * i, bits(sum) & 0xffff, full), note_mixed(place, y, 2 * i + 1, bits(sum) >> 16, full);
#endif
    }
    Octet<made_t> octet;
#pragma unroll
    for (int i = 0; i < 2; ++i)
        octet.word[i] = interleaved(blended(place, sites.word[i], behind.word[i], job.pair_color[1], 0, weight[i]),
                                    blended(place, sites.word[i], behind.word[i], job.pair_color[2], 1, weight[i]));
    store_chroma(at, job.result.apart, octet, place.first, place.last);
}
#else
// Alpha of 8 samples, plus INTEGER.
struct AlphaRow {
    float at[WIDTH];
};

__device__ __forceinline__ AlphaRow alpha_row(const float (&alpha)[WIDTH]) {
    AlphaRow row;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) row.at[k] = alpha[k];
    return row;
}

__device__ __forceinline__ Behind behind_number(float number) {
    return {number * (-1.f / (PEAK * STEP)), DEEP ? fmaf(number, 1.f / STEP, INTEGER) : number + (INTEGER - LIFT)};
}

// An integer plus INTEGER: where alpha is PEAK the sample's own code, where alpha is 0 the other's.
__device__ __forceinline__ float blended(float number, const Behind behind, float alpha) {
    return fmaf(fmaf(number, 1.f / (PEAK * STEP), behind.less), alpha, behind.code);
}

__device__ __forceinline__ void paint_luma(made_t* at, const Job& job, const Place& place, const AlphaRow& alpha,
                                           const Octet<sample_t>& luma, const Octet<sample_t>& behind) {
    float raised[WIDTH];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        const float share = alpha.at[k] - INTEGER;
        if (PAINT == PAINT_ALPHA) raised[k] = alpha.at[k];
        if (PAINT == PAINT_MATTE) raised[k] = fmaf(share, (job.code[1] - job.code[0]) * (1.f / PEAK), job.code[0] + INTEGER);
        if (PAINT == PAINT_COLOR || PAINT == PAINT_TINT) raised[k] = blended(number(luma.word, k), job.color[0], share);
        if (PAINT == PAINT_FRAME) raised[k] = blended(number(luma.word, k), behind_number(number(behind.word, k)), share);
    }
    const Octet<made_t> octet = PAINT == PAINT_FOREGROUND ? copied(luma) : packed(raised);
    store(at, octet, place.first, place.last);
}

__device__ __forceinline__ void paint_chroma(made_t* at, const Job& job, const Place& place, int y, const AlphaRow (&alpha)[2],
                                             const AlphaRow& previous, const Octet<sample_t>& sites, const Octet<sample_t>& behind) {
    float column[WIDTH], weight[WIDTH / 2] = {}, raised[WIDTH];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        column[k] = (alpha[0].at[k] - INTEGER) + (alpha[1].at[k] - INTEGER);
        if (COSITED_Y) column[k] += (alpha[0].at[k] - INTEGER) + (previous.at[k] - INTEGER);
    }
    float before = 0.f;
    if (CHROMA_WEIGHED && COSITED_X) {
        before = __shfl_up_sync(~0u, column[WIDTH - 1], 1);
        if (place.is_first) before = column[0];
    }
#pragma unroll
    for (int i = 0; i < WIDTH / 2 && CHROMA_WEIGHED; ++i) {
        constexpr float NORMAL = (COSITED_X ? 0.25f : 0.5f) * (COSITED_Y ? 0.25f : 0.5f);
        float sum = column[2 * i] + column[2 * i + 1];
        if (COSITED_X) sum += column[2 * i] + (i ? column[max(2 * i - 1, 0)] : before);
        const float least = fminf(fminf(alpha[0].at[2 * i], alpha[0].at[2 * i + 1]), fminf(alpha[1].at[2 * i], alpha[1].at[2 * i + 1]));
        // A block that is kept whole keeps its chroma whole, whatever lies beside it.
        weight[i] = fmaxf(fmaf(sum, NORMAL, INTEGER), least) - INTEGER;
#if DECONTAMINATE
        note_mixed(place, y, i, sum, PEAK / NORMAL);
#endif
    }
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        if (PAINT == PAINT_WEIGHTS) raised[k] = weight[k / 2] + INTEGER;
        if (PAINT == PAINT_MATTE) raised[k] = job.code[2] + INTEGER;
        if (PAINT == PAINT_COLOR || PAINT == PAINT_TINT) raised[k] = blended(number(sites.word, k), job.color[1 + k % 2], weight[k / 2]);
        if (PAINT == PAINT_FRAME) raised[k] = blended(number(sites.word, k), behind_number(number(behind.word, k)), weight[k / 2]);
    }
    store_chroma(at, job.result.apart, PAINT == PAINT_FOREGROUND ? copied(sites) : packed(raised), place.first, place.last);
}
#endif

// Rows `top` to before `bottom` of a tile.
__device__ __forceinline__ void paint_strip(const Job& job, const Cells& cells, const Eye& eye, const Place& place, int top, int bottom) {
    const int x = place.x, luma_end = job.width - x, chroma_end = (job.width + 1 & ~1) - x;
    const auto exists = [&](int y) { return WHOLE || y < eye.bottom; };
    const auto chroma_row = [&](int row) {
        return row_of(job.frame.chroma, clamped(row, eye.chroma_top, eye.chroma_bottom), job.frame.chroma_pitch) + x;
    };
    // Of the pair that is fetched next. Coefficients need the chroma below a pair too; its own is then here already.
    const sample_t* luma_at = fixed(row_of(job.frame.luma, top, job.frame.luma_pitch) + x);
    const sample_t* chroma_at = fixed(chroma_row(top / 2 + !ALPHA_GIVEN));
    const int after = fixed_own(place.at_right ? 0 : WIDTH);
    const int last_advance = static_cast<int>(fixed(static_cast<unsigned>(2 * (eye.chroma_bottom - !ALPHA_GIVEN))));
    const auto fetch_pair = [&](Octet<sample_t>* slot, int y) {
        const auto octet = [&](int index) -> Octet<sample_t>& { return slot[index * THREADS]; };
        if (y < bottom) {
            if (FRAME_READ) {
                fetch(octet(LUMA), luma_at, luma_end);
                if (exists(y + 1)) luma_at += job.frame.luma_pitch;
                fetch(octet(LUMA + 1), luma_at, luma_end);
                luma_at += job.frame.luma_pitch;
                fetch(octet(CHROMA), chroma_at, chroma_end);
            }
            if (!ALPHA_GIVEN) fetch_word(octet(AFTER), chroma_at + after, false);
            if (!ALPHA_GIVEN && !COSITED_X) fetch_word(octet(BEFORE), place.at_left ? chroma_at : chroma_at - WORD, !place.at_left);
            if (PAINT == PAINT_FRAME) {
                const sample_t* const at = row_of(job.behind.luma, y, job.behind.luma_pitch) + x;
                fetch(octet(BEHIND), at, luma_end);
                fetch(octet(BEHIND + 1), at + (exists(y + 1) ? job.behind.luma_pitch : 0), luma_end);
                fetch(octet(BEHIND + 2), row_of(job.behind.chroma, y / 2, job.behind.chroma_pitch) + x, chroma_end);
            }
            if (ALPHA_GIVEN) {
                const sample_t* const at = row_of(job.alpha, y, job.alpha_pitch) + x;
                fetch(octet(GIVEN), at, luma_end);
                fetch(octet(GIVEN + 1), at + (exists(y + 1) ? job.alpha_pitch : 0), luma_end);
            }
            if (y < last_advance) chroma_at += job.frame.chroma_pitch;
        }
        end_fetch();
    };
    Octet<sample_t>* slot = octets[0][0] + threadIdx.x;
#pragma unroll
    for (int ahead = 0; ahead < DEPTH; ++ahead) fetch_pair(slot + ahead * OCTETS * THREADS, top + 2 * ahead);

    made_t* made_luma = fixed(row_of(job.result.luma, top, job.result.luma_pitch) + x);
    made_t* made_chroma = fixed(row_of(job.result.chroma, top / 2, job.result.chroma_pitch) + (PLANAR ? x / 2 : x));
    Band band;
    // What chroma adds to the next even row, and the part of the site row at hand in the odd row after it.
    Share even_share = {}, odd_part = {};
    Octet<sample_t> sites = {};
    float made[WIDTH];
    AlphaRow previous = {};  // alpha of the row above a pair
    const bool carries = COSITED_Y && CHROMA_WEIGHED && top > eye.top;
    if (!ALPHA_GIVEN) {
        const ChromaRow own = load_chroma(chroma_row(top / 2), place, chroma_end);
        const Share above = share_of(load_chroma(chroma_row(top / 2 - 1), place, chroma_end), job.grey, eye, place);
        const Share here = share_of(own, job.grey, eye, place);
        sites = own.own;
        odd_part = mixed_share(COSITED_Y ? 0.5f : 0.75f, here, 0.f, here);
        even_share = COSITED_Y ? here : mixed_share(0.75f, here, 0.25f, above);
        enter_first_band(band, cells, eye, place, carries ? top - 1 : top);
        if (carries) {
            const Octet<sample_t> row = load(row_of(job.frame.luma, top - 1, job.frame.luma_pitch) + x, luma_end);
            make_alpha(made, band, cells, job, eye, place, top - 1, row, mixed_share(0.5f, here, 0.5f, above));
            previous = alpha_row(made);
        }
    } else if (carries) {
        make_alpha(made, band, cells, job, eye, place, top - 1, load(row_of(job.alpha, top - 1, job.alpha_pitch) + x, luma_end), {});
        previous = alpha_row(made);
    }
#pragma unroll 1
    for (int y = top; y < bottom; y += 2) {
        await_fetch();
        const auto octet = [&](bool is_read, int index) { return is_read ? slot[index * THREADS] : Octet<sample_t>{}; };
        ChromaRow next = {};
        next.own = octet(FRAME_READ, CHROMA);
        next.after = octet(!ALPHA_GIVEN, AFTER).word[0], next.before = octet(!ALPHA_GIVEN && !COSITED_X, BEFORE).word[0];
        AlphaRow alpha[2];
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const Octet<sample_t> luma = octet(FRAME_READ, LUMA + odd), behind = octet(PAINT == PAINT_FRAME, BEHIND + odd);
            Share share = even_share;
            if (!ALPHA_GIVEN && odd) {
                const Share below = share_of(next, job.grey, eye, place);
#pragma unroll
                for (int i = COSITED_X; i < 6; ++i) {
                    share.at[i] = fmaf(COSITED_Y ? 0.5f : 0.25f, below.at[i], odd_part.at[i]);
                    const float part = (COSITED_Y ? 0.5f : 0.75f) * below.at[i];
                    // Three quarters of this row, and a third of three quarters of the one above.
                    even_share.at[i] = COSITED_Y ? below.at[i] : fmaf(1.f / 3.f, odd_part.at[i], part);
                    odd_part.at[i] = part;
                }
            }
            make_alpha(made, band, cells, job, eye, place, y + odd, ALPHA_GIVEN ? octet(true, GIVEN + odd) : luma, share);
            alpha[odd] = alpha_row(made);
            if (PAINT != PAINT_WEIGHTS && (WHOLE || y + odd >= eye.top && y + odd < eye.bottom))
                paint_luma(made_luma, job, place, alpha[odd], luma, behind);
            made_luma += job.result.luma_pitch;
        }
        if (PAINT != PAINT_ALPHA) {
            if (!WHOLE && y + 1 >= eye.bottom) alpha[1] = alpha[0];
            if (COSITED_Y && y == eye.top) previous = alpha[0];
            paint_chroma(made_chroma, job, place, y, alpha, previous, ALPHA_GIVEN ? next.own : sites, octet(PAINT == PAINT_FRAME, BEHIND + 2));
            previous = alpha[1];
        }
        fetch_pair(slot, y + 2 * DEPTH);
        slot += OCTETS * THREADS;
        if (slot >= octets[0][0] + DEPTH * OCTETS * THREADS) slot -= DEPTH * OCTETS * THREADS;
        made_chroma += job.result.chroma_pitch;
        sites = next.own;
    }
}

// grid: (tiles of a row, tiles of a column, eyes); a block is one warp
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) composite(const __grid_constant__ Job job) {
    extern __shared__ float4 shared_cells[];
    const Eye& eye = job.eye[blockIdx.z];
    const int left = (eye.left & ~(WIDTH - 1)) + blockIdx.x * TILE_WIDTH;
    const int top = (eye.top & ~1) + blockIdx.y * job.rows, bottom = min(top + job.rows, eye.bottom);
    if (left >= eye.right || top >= eye.bottom) return;
    Cells cells = {};
    Verdict verdict = OPEN;
    if (!ALPHA_GIVEN)
        verdict = gather_cells(cells, shared_cells, job, eye, left - HALO * WIDTH, top, left + TILE_WIDTH, bottom);

    // Threads beyond the eye repeat its nearest samples and store nothing.
    const int lane = threadIdx.x, own = left + (lane - HALO) * WIDTH;
    Place place;
    place.x = clamped(own, eye.left & ~(WIDTH - 1), eye.right - 1 & ~(WIDTH - 1));
    place.first = eye.left - place.x, place.last = lane < HALO || own >= eye.right ? 0 : eye.right - place.x;
    place.ragged = place.first > 0 || eye.right - place.x < WIDTH;
    place.at_left = place.x / 2 - 1 < eye.chroma_left, place.at_right = place.x / 2 + 4 > eye.chroma_right;
    place.is_first = place.x <= eye.left;
    place.tile_left = left, place.tile_top = top;
    place.float_bits = fixed(job.float_bits), place.half_bits = fixed(job.half_bits);
#if DECONTAMINATE
    if (threadIdx.x == 0) mixed_count = 0;
    __syncthreads();
#endif
    if (verdict == EMPTY || verdict == FULL && PAINT != PAINT_TINT)
        paint_flat(job, place, max(top, eye.top), bottom, verdict == FULL);
    else
        paint_strip(job, cells, eye, place, top, bottom);
#if DECONTAMINATE
    __syncthreads();
    for (int i = threadIdx.x; i < mixed_count; i += THREADS)
        repaint(job, cells, eye, left + mixed[i] % MIXED_SITES * 2, top + mixed[i] / MIXED_SITES * 2);
#endif
}
