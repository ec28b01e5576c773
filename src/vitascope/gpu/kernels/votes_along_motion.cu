// What other frames show of each sample, along the picture's motion; the contract and the reference are in
// votes_along_motion.py.
//
// A thread follows one sample from frame to frame to either side, and reads what lies there, linearly.

#ifndef REACH        // frames to either side
#define REACH 8
#endif
#ifndef OF_PLACE     // factor of a squared distance in the exponent of trust
#define OF_PLACE 0.2222f
#endif
#ifndef OF_COLOR     // likewise, of the squared differences of three channels
#define OF_COLOR 185.2f
#endif
#ifndef LEAST_VOICE  // added to each frame's vote
#define LEAST_VOICE 0.02f
#endif

struct Votes {
    const float* seen;    // [frames, eyes, 4, height, width]: RGB and alpha
    const float2* ahead;  // [frames - 1, eyes, height, width]
    const float2* back;
    float* agreed;        // [frames, eyes, height, width]
    float* others;
    int frames, eyes, height, width;
};

__device__ __forceinline__ int inside(int at, int length) { return min(max(at, 0), length - 1); }

__device__ __forceinline__ float voice_of(float alpha) {
    const float sure = 2.f * alpha - 1.f;
    return sure * sure + LEAST_VOICE;
}

// Where to read between samples; the border goes on.
struct Place {
    int upper, lower, left, right;
    float across, down;
    __device__ Place(float x, float y, const Votes& job) {
        // Far outside, any place is the border's; the bounds keep the casts in range.
        x = fminf(fmaxf(x, -4.f), job.width + 4.f);
        y = fminf(fmaxf(y, -4.f), job.height + 4.f);
        const int column = static_cast<int>(floorf(x)), row = static_cast<int>(floorf(y));
        across = x - column;
        down = y - row;
        left = inside(column, job.width);
        right = inside(column + 1, job.width);
        upper = inside(row, job.height) * job.width;
        lower = inside(row + 1, job.height) * job.width;
    }
    __device__ float between(float a, float b, float c, float d) const {
        const float above = a + across * (b - a);
        return above + down * (c + across * (d - c) - above);
    }
    __device__ float of(const float* plane) const {
        return between(plane[upper + left], plane[upper + right], plane[lower + left], plane[lower + right]);
    }
    __device__ float2 of(const float2* plane) const {
        const float2 a = plane[upper + left], b = plane[upper + right], c = plane[lower + left], d = plane[lower + right];
        return make_float2(between(a.x, b.x, c.x, d.x), between(a.y, b.y, c.y, d.y));
    }
};

extern "C" __global__ void votes_along_motion(const Votes job) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= job.width || row >= job.height) return;
    const int plane = blockIdx.z, frame = plane / job.eyes;  // planes of frames and eyes, one after the other
    const size_t area = static_cast<size_t>(job.height) * job.width, at = static_cast<size_t>(row) * job.width + column;
    const float* own = job.seen + 4 * plane * area + at;
    const float color[3] = {own[0], own[area], own[2 * area]};
    float voices = voice_of(own[3 * area]), votes = voices * own[3 * area], others = 0.f;
    for (int side = -1; side <= 1; side += 2) {
        float x = column, y = row, trust = 1.f;
        for (int step = 1; step <= REACH; ++step) {
            if (frame + side * step < 0 || frame + side * step >= job.frames) break;
            const int other = plane + side * step * job.eyes;
            // The motion between two frames lies with the earlier one.
            const size_t pair = (side > 0 ? other - job.eyes : other) * area;
            const float2 move = Place(x, y, job).of((side > 0 ? job.ahead : job.back) + pair);
            x += move.x;
            y += move.y;
            if (!(x >= 0.f && x <= job.width - 1.f && y >= 0.f && y <= job.height - 1.f)) break;
            const Place place(x, y, job);
            const float2 home = place.of((side > 0 ? job.back : job.ahead) + pair);
            const float off_x = move.x + home.x, off_y = move.y + home.y;
            trust *= expf(-OF_PLACE * (off_x * off_x + off_y * off_y));
            const float* there = job.seen + 4 * other * area;
            float change = 0.f;
            for (int channel = 0; channel < 3; ++channel) {
                const float apart = place.of(there + channel * area) - color[channel];
                change += apart * apart;
            }
            const float alpha = place.of(there + 3 * area);
            const float same = trust * expf(-OF_COLOR * change), voice = same * voice_of(alpha);
            voices += voice;
            votes += voice * alpha;
            others += same;
        }
    }
    job.agreed[plane * area + at] = votes / voices;
    job.others[plane * area + at] = others;
}
