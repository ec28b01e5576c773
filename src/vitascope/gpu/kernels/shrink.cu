// NV12/P010 at a smaller size in one pass; the contract and the reference are in shrink.py.
//
//   out(oy, ox) = mean of the samples over [start + o * step, start + (o + 1) * step) of both axes, step >= 1
//
// Sample i of a row covers [i, i + 1). One block makes a run of one output row of one plane: its threads first sum the
// rows of the window, 16 bytes a load, into shared memory; then the outputs gather their columns from there.

#ifndef SAMPLE   // unsigned char for NV12, unsigned short for P010
#define SAMPLE unsigned char
#endif
#ifndef STEP     // 1 for NV12, 64 for P010: its codes lie six bits up in their words
#define STEP 1
#endif
#ifndef VECTORS  // 1 when rows begin and end on 16 bytes
#define VECTORS 1
#endif

#ifndef TAPS     // rows that are loaded together; a window of up to as many rows is loaded at once
#define TAPS 4
#endif

using sample_t = SAMPLE;

constexpr int THREADS = 128;
constexpr int LANES = 16 / sizeof(sample_t);
constexpr int SPAN = 2048;  // samples of a row that a block sums
constexpr int LOADS = SPAN / LANES / THREADS;

struct Axis {
    float start, step;
    int first, last;    // samples of the plane that belong to the eye: what lies outside repeats them
    int origin, count;  // where the eye's outputs begin in the smaller plane, and how many there are
};

struct Plane {
    const sample_t* data;
    sample_t* out;
    long long pitch, out_pitch;  // samples from row to row
    Axis x, y;
    int run;                     // outputs of a row that one block makes
    int channels;
};

struct Planes {
    Plane plane[4];  // luma and chroma of each eye
};

__device__ __forceinline__ int clamped(int index, const Axis& axis) { return min(max(index, axis.first), axis.last); }

// grid: (runs of a row, output rows, planes of all eyes)
extern "C" __global__ void __launch_bounds__(THREADS) shrink(const __grid_constant__ Planes planes) {
    __shared__ float sums[SPAN];
    const Plane& plane = planes.plane[blockIdx.z];
    const int oy = blockIdx.y, first = blockIdx.x * plane.run;
    if (oy >= plane.y.count || first >= plane.x.count) return;
    const int channels = plane.channels;

    const float top = plane.y.start + oy * plane.y.step, bottom = top + plane.y.step;
    const int first_row = static_cast<int>(floorf(top)), row_count = static_cast<int>(ceilf(bottom)) - first_row;
    const int first_column = clamped(static_cast<int>(floorf(plane.x.start + first * plane.x.step)), plane.x);
    const int origin = first_column * channels / LANES * LANES;
    const int samples = (plane.x.last + 1) * channels;
    // Columns beyond the run's last window are somebody else's.
    const int stop = min(first + plane.run, plane.x.count);
    const int end = min(samples, (clamped(static_cast<int>(ceilf(plane.x.start + stop * plane.x.step)), plane.x) + 1) * channels);
#pragma unroll
    for (int load = 0; load < LOADS; ++load) {
        const int at = (load * THREADS + threadIdx.x) * LANES, column = origin + at;
        if (column >= end) break;
        float total[LANES];
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) total[lane] = 0.f;
        for (int tap = 0; tap < row_count; tap += TAPS) {
            // All rows of a window are under way before the first is used.
            alignas(16) sample_t lanes[TAPS][LANES];
#pragma unroll
            for (int next = 0; next < TAPS; ++next) {
                const sample_t* row = plane.data + clamped(first_row + min(tap + next, row_count - 1), plane.y) * plane.pitch + column;
#if VECTORS
                *reinterpret_cast<uint4*>(lanes[next]) = __ldg(reinterpret_cast<const uint4*>(row));
#else
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane) lanes[next][lane] = column + lane < samples ? row[lane] : static_cast<sample_t>(0);
#endif
            }
#pragma unroll
            for (int next = 0; next < TAPS; ++next) {
                if (tap + next >= row_count) break;
                const float from = first_row + tap + next;
                const float weight = fminf(from + 1.f, bottom) - fmaxf(from, top);
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane) total[lane] = fmaf(weight, static_cast<float>(lanes[next][lane]), total[lane]);
            }
        }
#pragma unroll
        for (int lane = 0; lane < LANES; lane += 4)
            *reinterpret_cast<float4*>(sums + at + lane) = make_float4(total[lane], total[lane + 1], total[lane + 2], total[lane + 3]);
    }
    __syncthreads();

    // 1 / STEP brings a word to its code, which is what rounds. The windows as they were rounded, not the exact step:
    // the weights must add up to one for the largest code to stay the largest.
    const float row_normal = 1.f / ((bottom - top) * STEP);
    sample_t* out = plane.out + (plane.y.origin + oy) * plane.out_pitch + plane.x.origin * channels;
    for (int output = first * channels + threadIdx.x; output < stop * channels; output += THREADS) {
        const int pixel = channels == 1 ? output : output >> 1, channel = output - pixel * channels;
        const float left = fmaf(static_cast<float>(pixel), plane.x.step, plane.x.start), right = left + plane.x.step;
        const int begin = __float2int_rd(left), last = __float2int_ru(right) - 1;
        const float* own = sums + channel - origin;
        // Whole samples between two that the window cuts.
        float total = 0.f;
        if (begin >= plane.x.first && last <= plane.x.last) {
            const float* tap = own + begin * channels;
            for (int whole = last - begin - 1; whole > 0; --whole) total += *(tap += channels);
        } else {
            for (int column = begin + 1; column < last; ++column) total += own[clamped(column, plane.x) * channels];
        }
        const float head = fminf(begin + 1.f, right) - left, tail = last > begin ? right - last : 0.f;
        total = fmaf(head, own[clamped(begin, plane.x) * channels], total);
        total = fmaf(tail, own[clamped(last, plane.x) * channels], total);
        out[output] = static_cast<sample_t>(__float2int_rn(__fdividef(total * row_normal, right - left)) * STEP);
    }
}
