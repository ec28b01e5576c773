// 4:2:0 planes between (Y, U, V) and (Y, UV); the contract and the reference are in semi_planar.py.
//
// Codes move SHIFT bits: up on the way to P010, down on the way back, 0 between the 8-bit layouts.

#ifndef SAMPLE   // unsigned char or unsigned short
#define SAMPLE unsigned char
#endif
#ifndef SHIFT    // 0 or 6
#define SHIFT 0
#endif
#ifndef VECTORS  // 1 when rows of all planes begin and end on 16 bytes
#define VECTORS 1
#endif

using sample_t = SAMPLE;

constexpr int LANES = 16 / sizeof(sample_t);

struct Plane {
    sample_t* data;
    long long pitch;  // samples from row to row
};

__device__ __forceinline__ void load(sample_t (&lanes)[LANES], const sample_t* row, int column, int samples) {
#if VECTORS
    *reinterpret_cast<uint4*>(lanes) = *reinterpret_cast<const uint4*>(row + column);
#else
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) lanes[lane] = column + lane < samples ? row[column + lane] : static_cast<sample_t>(0);
#endif
}

__device__ __forceinline__ void store(const sample_t (&lanes)[LANES], sample_t* row, int column, int samples) {
#if VECTORS
    *reinterpret_cast<uint4*>(row + column) = *reinterpret_cast<const uint4*>(lanes);
#else
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane)
        if (column + lane < samples) row[column + lane] = lanes[lane];
#endif
}

// UV from U and V. grid: (pieces of a row / blockDim.x, rows); width in pixels
extern "C" __global__ void interleave(Plane u, Plane v, Plane pairs, int width) {
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * LANES, row = blockIdx.y;
    if (first >= width) return;
    alignas(16) sample_t a[LANES], b[LANES], out[2][LANES];
    load(a, u.data + row * u.pitch, first, width);
    load(b, v.data + row * v.pitch, first, width);
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        out[2 * lane / LANES][2 * lane % LANES] = static_cast<sample_t>(a[lane] << SHIFT);
        out[2 * lane / LANES][2 * lane % LANES + 1] = static_cast<sample_t>(b[lane] << SHIFT);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
        if (2 * first + half * LANES < 2 * width) store(out[half], pairs.data + row * pairs.pitch, 2 * first + half * LANES, 2 * width);
}

// U and V from UV.
extern "C" __global__ void deinterleave(Plane pairs, Plane u, Plane v, int width) {
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * LANES, row = blockIdx.y;
    if (first >= width) return;
    alignas(16) sample_t in[2][LANES] = {}, a[LANES], b[LANES];
#pragma unroll
    for (int half = 0; half < 2; ++half)
        if (2 * first + half * LANES < 2 * width) load(in[half], pairs.data + row * pairs.pitch, 2 * first + half * LANES, 2 * width);
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        a[lane] = static_cast<sample_t>(in[2 * lane / LANES][2 * lane % LANES] >> SHIFT);
        b[lane] = static_cast<sample_t>(in[2 * lane / LANES][2 * lane % LANES + 1] >> SHIFT);
    }
    store(a, u.data + row * u.pitch, first, width);
    store(b, v.data + row * v.pitch, first, width);
}

__device__ __forceinline__ void move_row(const Plane in, const Plane out, int width, bool up) {
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * LANES, row = blockIdx.y;
    if (first >= width) return;
    alignas(16) sample_t lanes[LANES];
    load(lanes, in.data + row * in.pitch, first, width);
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane)
        lanes[lane] = static_cast<sample_t>(up ? lanes[lane] << SHIFT : lanes[lane] >> SHIFT);
    store(lanes, out.data + row * out.pitch, first, width);
}

// Luma to P010's place in the word, and back.
extern "C" __global__ void shift_up(Plane in, Plane out, int width) { move_row(in, out, width, true); }
extern "C" __global__ void shift_down(Plane in, Plane out, int width) { move_row(in, out, width, false); }
