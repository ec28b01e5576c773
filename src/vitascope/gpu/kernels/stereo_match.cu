// Matching and blending two eyes' mattes; the contract and the reference are in stereo_match.py.
//
// A thread is a sample of an eye: of a few steps (cost_of_steps), or of the result; for all steps (best_step) it is ROWS
// samples below one another. The left and the right eye of each frame lie beside one another. Most pictures are small, so
// that all of it stays in the second-level cache.

#ifndef MOST_COLOR
#define MOST_COLOR 0.15f
#endif
#ifndef ALPHA_WEIGHT
#define ALPHA_WEIGHT 0.05f
#endif
#ifndef SAME_COLOR
#define SAME_COLOR 0.02f
#endif
#ifndef OTHER_COLOR
#define OTHER_COLOR 0.05f
#endif
#ifndef COLOR_RADIUS
#define COLOR_RADIUS 2
#endif
#ifndef LEAST_PERSON
#define LEAST_PERSON 0.1f
#endif
#ifndef STEPS_OF_A_THREAD
#define STEPS_OF_A_THREAD 5
#endif
#ifndef ROWS
#define ROWS 4
#endif

constexpr float LEAST_RISE = 1e-9f;

struct Match {
    const float* pictures;      // [eyes, 4, height, width]
    const float* curves;        // [2, 6, height, width]
    const float* start;         // [eyes, height, width], or null
    const float* others_least;  // [eyes, height, width]: what the best step costs each eye, or null
    float* costs;               // [eyes, count, height, width]
    float* found;               // [eyes, height, width]
    float* misfit;              // [eyes, height, width]
    int height, width, count, radius;
    float first, step;
};

struct Middle {
    const float* disparity;  // [eyes, height, width]
    float* middle;
    int height, width;
};

struct Smooth {
    const float* disparity;  // [eyes, height, width]
    float* smoothed;
    int height, width, radius;
    float of_place, of_value;  // factors of squared distances in the exponent
};

struct Blend {
    const float* planes;     // [eyes, channels, full_height, full_width]
    float* blended;
    const float* pictures;   // [eyes, 4, height, width]
    const float* disparity;  // [eyes, height, width]
    const float* curves;     // [2, 6, height, width]
    const float* shown;      // [eyes, height, width]
    // [eyes, 5, height, width]: across and down in samples of the planes, the other eye's share, and of a sample by itself
    // how much its color differs, weighted, and that weight
    float* moves;
    int height, width, full_height, full_width, channels;
    float tolerance;
};

__device__ __forceinline__ int inside(int i, int length) { return min(max(i, 0), length - 1); }

// Where the samples around a place lie, borders repeated, and how much each counts.
struct Corners {
    int at[4];
    float weight[4];
};

__device__ __forceinline__ Corners corners_of(float x, float y, int height, int width) {
    x = fminf(fmaxf(x, -1.f), static_cast<float>(width));
    y = fminf(fmaxf(y, -1.f), static_cast<float>(height));
    const float left = floorf(x), top = floorf(y), right_share = x - left, bottom_share = y - top;
    const int x0 = inside(static_cast<int>(left), width), x1 = inside(static_cast<int>(left) + 1, width);
    const int y0 = inside(static_cast<int>(top), height), y1 = inside(static_cast<int>(top) + 1, height);
    return {{y0 * width + x0, y0 * width + x1, y1 * width + x0, y1 * width + x1},
            {(1 - bottom_share) * (1 - right_share), (1 - bottom_share) * right_share, bottom_share * (1 - right_share),
             bottom_share * right_share}};
}

__device__ __forceinline__ float read(const float* plane, const Corners& corners) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += plane[corners.at[i]] * corners.weight[i];
    return sum;
}

// Catmull-Rom's weights of the sample before a place, the two around it and the one after.
__device__ __forceinline__ void weights_of_four(float part, float* weights) {
    const float rest = 1 - part;
    weights[0] = -0.5f * part * rest * rest;
    weights[1] = 1 + part * part * (1.5f * part - 2.5f);
    weights[2] = 1 + rest * rest * (1.5f * rest - 2.5f);
    weights[3] = -0.5f * rest * part * part;
}

// The 4x4 samples around a place, borders repeated, and how much each column and row counts.
struct Square {
    int columns[4], rows[4];  // of a row its first sample
    float across[4], down[4];
};

__device__ __forceinline__ Square square_of(float x, float y, int height, int width) {
    x = fminf(fmaxf(x, -1.f), static_cast<float>(width));
    y = fminf(fmaxf(y, -1.f), static_cast<float>(height));
    const float left = floorf(x), top = floorf(y);
    Square square;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        square.columns[i] = inside(static_cast<int>(left) + i - 1, width);
        square.rows[i] = inside(static_cast<int>(top) + i - 1, height) * width;
    }
    weights_of_four(x - left, square.across);
    weights_of_four(y - top, square.down);
    return square;
}

__device__ __forceinline__ float read(const float* plane, const Square& square) {
    float sum = 0;
#pragma unroll
    for (int row = 0; row < 4; ++row) {
        const float* line = plane + square.rows[row];
        float part = 0;
#pragma unroll
        for (int column = 0; column < 4; ++column) part += line[square.columns[column]] * square.across[column];
        sum += part * square.down[row];
    }
    return sum;
}

// How far the other eye shows a sample along an axis; factors: the first of three planes.
__device__ __forceinline__ float displacement(const float* factors, int at, int area, float disparity) {
    return disparity * (factors[at] + disparity * (factors[area + at] + disparity * factors[2 * area + at]));
}

// grid: (width / 32, height / 8, eyes * steps / STEPS_OF_A_THREAD, rounded up); block: (32, 8)
extern "C" __global__ void __launch_bounds__(256) cost_of_steps(const __grid_constant__ Match job) {
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
    if (x >= job.width || y >= job.height) return;
    const int groups = (job.count + STEPS_OF_A_THREAD - 1) / STEPS_OF_A_THREAD;
    const int eye = blockIdx.z / groups, first = blockIdx.z % groups * STEPS_OF_A_THREAD;
    const int area = job.height * job.width, at = y * job.width + x;
    const float start = (job.start ? job.start[eye * area + at] : 0.f) + job.first;
    const float* curves = job.curves + static_cast<long long>(eye & 1) * 6 * area + at;
    float factors[6], own[4];
#pragma unroll
    for (int i = 0; i < 6; ++i) factors[i] = curves[i * area];
    const float* other = job.pictures + static_cast<long long>(eye ^ 1) * 4 * area;
#pragma unroll
    for (int i = 0; i < 4; ++i) own[i] = job.pictures[static_cast<long long>(eye) * 4 * area + i * area + at];
    float* costs = job.costs + static_cast<long long>(eye) * job.count * area + at;
    for (int step = first; step < min(first + STEPS_OF_A_THREAD, job.count); ++step) {
        const float disparity = start + step * job.step;
        const Corners corners = corners_of(x + displacement(factors, 0, 1, disparity),
                                           y + displacement(factors + 3, 0, 1, disparity), job.height, job.width);
        const float other_alpha = read(other + 3 * area, corners), alpha = fmaxf(own[3], other_alpha);
        float color = 0;
        if (alpha > 0) {  // nobody is in most of a picture
#pragma unroll
            for (int channel = 0; channel < 3; ++channel)
                color += fabsf(own[channel] - read(other + channel * area, corners));
        }
        costs[static_cast<long long>(step) * area] =
            fminf(color / 3, MOST_COLOR) * alpha + ALPHA_WEIGHT * fabsf(own[3] - other_alpha);
    }
}

// A block finds 32 x (8 * ROWS) samples. A window's sums of rows are added up; a thread makes sums that lie beside one
// another at a time, so that each value is read once for all of them. Five blocks of a
// multiprocessor hide the memory's latency: that is a third faster than all the registers that the compiler would take.
// grid: (width / 32, height / (8 * ROWS), eyes); block: (32, 8); shared memory: the tile, whose rows begin at multiples
// of 16 bytes, and its rows' sums
extern "C" __global__ void __launch_bounds__(256, 5) best_step(const __grid_constant__ Match job) {
    extern __shared__ __align__(16) float tile[];
    const int left = blockIdx.x * 32, top = blockIdx.y * 8 * ROWS, eye = blockIdx.z;
    const int x = left + threadIdx.x, y = top + threadIdx.y * ROWS, thread = threadIdx.y * 32 + threadIdx.x;
    const int area = job.height * job.width;
    const float* costs = job.costs + static_cast<long long>(eye) * job.count * area;
    const float* curves = job.curves + static_cast<long long>(eye & 1) * 6 * area;
#ifdef RADIUS  // loops over windows are unrolled
    constexpr int radius = RADIUS;
#else
    const int radius = job.radius;
#endif
    const int side = 2 * radius + 1, across = (32 + 2 * radius + 3) / 4 * 4, down = 8 * ROWS + 2 * radius;
    float* rows = tile + across * down;
    const float share = 1.f / (side * side);
    int best[ROWS];
    float least[ROWS], previous[ROWS], before[ROWS], after[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) best[i] = 0, least[i] = 3e38f, previous[i] = before[i] = after[i] = 0;
    for (int step = 0; step < job.count; ++step) {
        const float* plane = costs + static_cast<long long>(step) * area;
        bool is_somebody = false;
#pragma unroll
        for (int i = 0; i < (down + 7) / 8; ++i) {
            const int line = i * 8 + threadIdx.y;
            if (line >= down) continue;
            const float* from = plane + inside(top - radius + line, job.height) * job.width;
#pragma unroll
            for (int j = 0; j < (across + 31) / 32; ++j) {
                const int column = j * 32 + threadIdx.x;
                if (column >= across) continue;
                const float cost = __ldg(from + inside(left - radius + column, job.width));
                tile[line * across + column] = cost;
                is_somebody |= cost != 0;
            }
        }
        float sums[ROWS] = {};
        if (__syncthreads_or(is_somebody)) {  // else all sums are 0
            for (int i = thread; i < 8 * down; i += 256) {
                const float* line = tile + i / 8 * across + i % 8 * 4;
                float parts[4] = {};
#pragma unroll
                for (int column = 0; column < side + 3; column += 4) {
                    const float4 four = *reinterpret_cast<const float4*>(line + column);
                    const float values[4] = {four.x, four.y, four.z, four.w};
                    const bool in_all = column >= 4 && column + 4 <= side;
#pragma unroll
                    for (int value = 0; value < 4; ++value)
#pragma unroll
                        for (int part = 0; part < 4; ++part)
                            if (in_all || (column + value >= part && column + value < part + side))
                                parts[part] += values[value];
                }
                reinterpret_cast<float4*>(rows)[i] = make_float4(parts[0], parts[1], parts[2], parts[3]);
            }
            __syncthreads();
#pragma unroll
            for (int row = 0; row < side + ROWS - 1; ++row) {
                const float value = rows[(threadIdx.y * ROWS + row) * 32 + threadIdx.x];
                const bool in_all = row >= ROWS - 1 && row < side;
#pragma unroll
                for (int i = 0; i < ROWS; ++i)
                    if (in_all || (row >= i && row < i + side)) sums[i] += value;
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float sum = sums[i] * share;
            if (job.others_least && x < job.width && y + i < job.height) {
                const int at = (y + i) * job.width + x;
                const float disparity = (job.start ? job.start[eye * area + at] : 0.f) + job.first + step * job.step;
                const Corners corners =
                    corners_of(x + displacement(curves, at, area, disparity),
                               y + i + displacement(curves + 3 * area, at, area, disparity), job.height, job.width);
                sum += sum - read(job.others_least + (eye ^ 1) * area, corners);
            }
            if (step == best[i] + 1) after[i] = sum;
            if (sum < least[i]) least[i] = sum, best[i] = step, before[i] = previous[i];
            previous[i] = sum;
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        if (x >= job.width || y + i >= job.height) continue;
        const int at = (y + i) * job.width + x;
        float index = best[i];
        if (best[i] > 0 && best[i] < job.count - 1) {
            const float rise = fmaxf(before[i], after[i]) - least[i];
            if (rise > LEAST_RISE) index += fminf(fmaxf((before[i] - after[i]) / (2 * rise), -0.5f), 0.5f);
        }
        job.misfit[eye * area + at] = least[i];
        job.found[eye * area + at] =
            (job.start ? job.start[eye * area + at] : 0.f) + job.first + index * job.step;
    }
}

constexpr int MIDDLE_RADIUS = 2, MIDDLE_COUNT = (2 * MIDDLE_RADIUS + 1) * (2 * MIDDLE_RADIUS + 1);

// The median of a window, borders repeated: less than half of its values lie below it, and less than half above.
// grid: (width / 32, height / 8, eyes); block: (32, 8)
extern "C" __global__ void __launch_bounds__(256) middle_disparity(const __grid_constant__ Middle job) {
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, eye = blockIdx.z;
    if (x >= job.width || y >= job.height) return;
    const int area = job.height * job.width;
    const float* plane = job.disparity + eye * area;
    float values[MIDDLE_COUNT];
    int count = 0;
#pragma unroll
    for (int down = -MIDDLE_RADIUS; down <= MIDDLE_RADIUS; ++down)
#pragma unroll
        for (int across = -MIDDLE_RADIUS; across <= MIDDLE_RADIUS; ++across)
            values[count++] = plane[inside(y + down, job.height) * job.width + inside(x + across, job.width)];
    float middle = values[0];
#pragma unroll
    for (int i = 0; i < MIDDLE_COUNT; ++i) {
        int below = 0, above = 0;
#pragma unroll
        for (int j = 0; j < MIDDLE_COUNT; ++j) below += values[j] < values[i], above += values[j] > values[i];
        if (below <= MIDDLE_COUNT / 2 && above <= MIDDLE_COUNT / 2) middle = values[i];
    }
    job.middle[eye * area + y * job.width + x] = middle;
}

// The border's sample is the mirror, as OpenCV has it.
__device__ __forceinline__ int mirrored(int i, int length) {
    i = abs(i);
    if (i < length) return i;
    if (length == 1) return 0;
    i %= 2 * length - 2;  // from a small picture a window comes back again and again
    return min(i, 2 * length - 2 - i);
}

// grid: (width / 32, height / 8, eyes); block: (32, 8)
extern "C" __global__ void __launch_bounds__(256) smooth_disparity(const __grid_constant__ Smooth job) {
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, eye = blockIdx.z;
    if (x >= job.width || y >= job.height) return;
    const int area = job.height * job.width, at = y * job.width + x;
    const float* plane = job.disparity + eye * area;
    const float own = plane[at];
    float sum = 0, total = 0;
    for (int down = -job.radius; down <= job.radius; ++down) {
        const float* line = plane + mirrored(y + down, job.height) * job.width;
        for (int across = -job.radius; across <= job.radius; ++across) {
            const int square = down * down + across * across;
            if (square > job.radius * job.radius) continue;
            const float value = line[mirrored(x + across, job.width)], apart = value - own;
            const float weight = __expf(square * job.of_place + apart * apart * job.of_value);
            sum += weight * value;
            total += weight;
        }
    }
    job.smoothed[eye * area + at] = sum / total;
}

// grid: (width / 32, height / 8, eyes); block: (32, 8)
extern "C" __global__ void __launch_bounds__(256) moves_between_eyes(const __grid_constant__ Blend job) {
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, eye = blockIdx.z;
    if (x >= job.width || y >= job.height) return;
    const int area = job.height * job.width, at = y * job.width + x;
    const float disparity = job.disparity[eye * area + at];
    const float* curves = job.curves + static_cast<long long>(eye & 1) * 6 * area;
    const float across = displacement(curves, at, area, disparity);
    const float down = displacement(curves + 3 * area, at, area, disparity);
    const Corners corners = corners_of(x + across, y + down, job.height, job.width);
    const float back = read(job.disparity + (eye ^ 1) * area, corners);
    const float* own = job.pictures + static_cast<long long>(eye) * 4 * area + at;
    const float* other = job.pictures + static_cast<long long>(eye ^ 1) * 4 * area;
    float color = 0;
#pragma unroll
    for (int channel = 0; channel < 3; ++channel)
        color += fabsf(own[channel * area] - read(other + channel * area, corners));
    const float person = fmaxf(own[3 * area], read(other + 3 * area, corners));
    const float weight = person * person * person * person;
    float* moves = job.moves + static_cast<long long>(eye) * 5 * area + at;
    moves[0] = across * job.full_width / job.width;
    moves[area] = down * job.full_height / job.height;
    moves[2 * area] = fabsf(back - disparity) <= job.tolerance ? job.shown[eye * area + at] / 2 : 0.f;
    moves[3 * area] = fminf(color / 3, MOST_COLOR) * weight;
    moves[4 * area] = weight;
}

// How alike the colors around are makes the other eye's share less.
// grid: (width / 32, height / 8, eyes); block: (32, 8)
extern "C" __global__ void __launch_bounds__(256) believe_colors(const __grid_constant__ Blend job) {
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, eye = blockIdx.z;
    if (x >= job.width || y >= job.height) return;
    const int area = job.height * job.width;
    float* moves = job.moves + static_cast<long long>(eye) * 5 * area;
    float misfit = 0, weight = 0;
    for (int down = -COLOR_RADIUS; down <= COLOR_RADIUS; ++down) {
        const float* line = moves + 3 * area + inside(y + down, job.height) * job.width;
        for (int across = -COLOR_RADIUS; across <= COLOR_RADIUS; ++across) {
            const int column = inside(x + across, job.width);
            misfit += line[column];
            weight += line[area + column];
        }
    }
    misfit /= weight + LEAST_PERSON * (2 * COLOR_RADIUS + 1) * (2 * COLOR_RADIUS + 1);
    moves[2 * area + y * job.width + x] *= fminf(fmaxf((OTHER_COLOR - misfit) / (OTHER_COLOR - SAME_COLOR), 0.f), 1.f);
}

// grid: (full_width / 32, full_height / 8, eyes); block: (32, 8)
extern "C" __global__ void __launch_bounds__(256) blend_eyes(const __grid_constant__ Blend job) {
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, eye = blockIdx.z;
    if (x >= job.full_width || y >= job.full_height) return;
    const int area = job.height * job.width, full_area = job.full_height * job.full_width;
    const Corners here = corners_of((x + 0.5f) * job.width / job.full_width - 0.5f,
                                    (y + 0.5f) * job.height / job.full_height - 0.5f, job.height, job.width);
    const float* moves = job.moves + static_cast<long long>(eye) * 5 * area;
    const float share = read(moves + 2 * area, here);
    const Square there = square_of(x + read(moves, here), y + read(moves + area, here), job.full_height, job.full_width);
    const long long own = static_cast<long long>(eye) * job.channels * full_area;
    const long long other = static_cast<long long>(eye ^ 1) * job.channels * full_area;
    for (int channel = 0; channel < job.channels; ++channel) {
        const long long plane = static_cast<long long>(channel) * full_area;
        const float value = job.planes[own + plane + y * job.full_width + x];
        job.blended[own + plane + y * job.full_width + x] =
            value + share * (read(job.planes + other + plane, there) - value);
    }
}
