// Of composite.cu: what is painted and in what format; the job; samples as they are read, computed with and stored.

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
#ifndef DECONTAMINATE  // 1: partly transparent samples take the person's own colour first
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
// Of alpha, and of the R of a colour beside it (the person's beside gain, the scene's beside offset), at the cell that is
// first as the picture is coded; strides in elements.
struct Field { const coefficient_t *alpha, *color; int row, column, plane; };
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
    Affine yuv_from_rgb;
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
