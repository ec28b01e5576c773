// Mattes smoothed along the picture's motion; the contract and the reference are in along_motion.py.
//
// A thread makes one sample: it follows the motion from frame to frame to either side, reads what lies there, alpha by
// cubic convolution, and divides once.

#ifndef REACH    // frames to either side
#define REACH 2
#endif
#ifndef FARTHER  // what each further one counts beside the one before
#define FARTHER 0.5f
#endif
#ifndef SURE     // alpha so near to 0 or 1 stays
#define SURE 0.01f
#endif
#ifndef HAZE     // where the mean is less than that away
#define HAZE 0.1f
#endif

#include "cubic.cuh"

struct Mean {
    const float* alpha;   // [frames, eyes, height, width]
    const float* rgb;     // [frames, eyes, 3, height, width]
    const float2* ahead;  // [frames - 1, eyes, move_height, move_width]
    const float2* back;
    float* out;           // as alpha
    int frames, eyes, height, width, move_height, move_width;
    float of_color, of_alpha;
};

__device__ __forceinline__ int inside(int at, int length) { return min(max(at, 0), length - 1); }

// Where a place of a frame lies in the next one on its way.
__device__ float2 moved(const float2* moves, float x, float y, const Mean& job) {
    const float scale_x = static_cast<float>(job.move_width) / job.width;
    const float scale_y = static_cast<float>(job.move_height) / job.height;
    const float column = fminf(fmaxf((x + 0.5f) * scale_x - 0.5f, 0.f), job.move_width - 1.f);
    const float row = fminf(fmaxf((y + 0.5f) * scale_y - 0.5f, 0.f), job.move_height - 1.f);
    const int left = static_cast<int>(column), top = static_cast<int>(row);
    const int right = min(left + 1, job.move_width - 1), bottom = min(top + 1, job.move_height - 1);
    const float across = column - left, down = row - top;
    const float2 *upper = moves + static_cast<size_t>(top) * job.move_width,
                 *lower = moves + static_cast<size_t>(bottom) * job.move_width;
    const float2 a = upper[left], b = upper[right], c = lower[left], d = lower[right];
    const float2 above = make_float2(a.x + across * (b.x - a.x), a.y + across * (b.y - a.y));
    const float2 below = make_float2(c.x + across * (d.x - c.x), c.y + across * (d.y - c.y));
    return make_float2(x + (above.x + down * (below.x - above.x)) / scale_x,
                       y + (above.y + down * (below.y - above.y)) / scale_y);
}

__device__ float read_cubic(const float* plane, int left, int top, float across, float down, const Mean& job) {
    float of_columns[4], of_rows[4], sum = 0.f;
    cubic_weights(across, of_columns);
    cubic_weights(down, of_rows);
    for (int row = 0; row < 4; ++row) {
        const float* line = plane + static_cast<size_t>(inside(top + row - 1, job.height)) * job.width;
        float part = 0.f;
        for (int column = 0; column < 4; ++column)
            part += of_columns[column] * line[inside(left + column - 1, job.width)];
        sum += of_rows[row] * part;
    }
    return fminf(fmaxf(sum, 0.f), 1.f);
}

__device__ float read_linear(const float* plane, int left, int top, float across, float down, const Mean& job) {
    const float* upper = plane + static_cast<size_t>(inside(top, job.height)) * job.width;
    const float* lower = plane + static_cast<size_t>(inside(top + 1, job.height)) * job.width;
    const int first = inside(left, job.width), second = inside(left + 1, job.width);
    const float above = upper[first] + across * (upper[second] - upper[first]);
    const float below = lower[first] + across * (lower[second] - lower[first]);
    return above + down * (below - above);
}

extern "C" __global__ void mean_along_motion(const Mean job) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= job.width || y >= job.height) return;
    const int plane = blockIdx.z, frame = plane / job.eyes;  // planes of frames and eyes, one after the other
    const size_t area = static_cast<size_t>(job.height) * job.width, at = static_cast<size_t>(y) * job.width + x;
    const size_t move_area = static_cast<size_t>(job.move_height) * job.move_width;
    const float own = job.alpha[plane * area + at];
    float color[3];
    for (int channel = 0; channel < 3; ++channel) color[channel] = job.rgb[(3ull * plane + channel) * area + at];

    float total = own, weights = 1.f;
    for (int side = -1; side <= 1; side += 2) {
        float2 there = make_float2(x, y);
        float share = 1.f;
        for (int step = 1; step <= REACH; ++step, share *= FARTHER) {
            if (frame + side * step < 0 || frame + side * step >= job.frames) break;
            const int other = plane + side * step * job.eyes;
            // The motion ahead lies with the frame that it begins in, and back with the one that it ends in.
            there = moved(side > 0 ? job.ahead + (other - job.eyes) * move_area : job.back + other * move_area, there.x,
                          there.y, job);
            // Far outside, any place is the border's; the bounds keep the cast in range.
            const float column = fminf(fmaxf(there.x, -4.f), job.width + 4.f);
            const float row = fminf(fmaxf(there.y, -4.f), job.height + 4.f);
            const int left = static_cast<int>(floorf(column)), top = static_cast<int>(floorf(row));
            const float across = column - left, down = row - top;
            const float alpha = read_cubic(job.alpha + other * area, left, top, across, down, job);
            float apart = job.of_alpha * (alpha - own) * (alpha - own);
            for (int channel = 0; channel < 3; ++channel) {
                const float* same = job.rgb + (3ull * other + channel) * area;
                const float change = read_linear(same, left, top, across, down, job) - color[channel];
                apart += job.of_color * change * change;
            }
            const float weight = share * expf(-apart);
            weights += weight;
            total += weight * alpha;
        }
    }
    const float mean = total / weights;
    const bool stays = fminf(own, 1.f - own) < SURE && fabsf(mean - own) < HAZE;
    job.out[plane * area + at] = stays ? own : mean;
}
