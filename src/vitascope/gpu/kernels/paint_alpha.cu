// Alpha painted into NV12/P010 as a colour that players read; the contract and the reference are in paint_alpha.py.
//
// chroma: of the largest alpha that shares a site, rounded to more red. luma: such that red, as a reader interpolates it,
// is alpha. Chroma of a block and what surrounds it is worked out in shared memory, since its neighbours are written
// meanwhile.

#ifndef SAMPLE     // unsigned char for NV12, unsigned short for P010
#define SAMPLE unsigned char
#endif
#ifndef COSITED_X  // 1 when chroma sits on even luma columns, 0 between columns
#define COSITED_X 1
#endif
#ifndef COSITED_Y
#define COSITED_Y 0
#endif

using sample_t = SAMPLE;

constexpr int COLUMNS = 32, ROWS = 8;  // chroma sites of a block

struct Part {
    int number, source_x, source_y, x, y, width, height;  // of which alpha; where it lies there, and in the picture
};

struct Job {
    sample_t *luma, *chroma;
    const float* alpha;
    const bool* inside;
    long long luma_pitch, chroma_pitch, alpha_pitch, inside_pitch;  // samples from row to row
    long long alpha_picture_pitch;                                  // from alpha to alpha
    double chroma_start[2], chroma_slope[2];                        // codes of U and V: start + slope * alpha
    float red[2];                                                   // red = red[0] * V + red[1] where luma is black
    float black, luma_slope;
    int height, width, word, peak;  // word: distance of codes in their words; peak: the largest code
    Part parts[8];
};

// A part's alpha at a sample of the picture; below 0 where it says nothing.
__device__ __forceinline__ float alpha_at(const Job& job, const Part& part, int y, int x) {
    const int down = y - part.y, across = x - part.x;
    if (down < 0 || down >= part.height || across < 0 || across >= part.width) return -1.f;
    const int row = part.source_y + down, column = part.source_x + across;
    const bool says = job.inside[row * job.inside_pitch + column];
    const float alpha = job.alpha[part.number * job.alpha_picture_pitch + row * job.alpha_pitch + column];
    return says ? alpha : -1.f;
}

// The largest alpha that shares a chroma site; below 0 where none does.
__device__ __forceinline__ float largest_at(const Job& job, const Part& part, int row, int column) {
    float most = -1.f;
#pragma unroll
    for (int at = 0; at < 4; ++at) most = fmaxf(most, alpha_at(job, part, 2 * row + at / 2, 2 * column + at % 2));
    return most;
}

template <int CHANNEL>
__device__ __forceinline__ sample_t chroma_code(const Job& job, float alpha) {
    const double exact = (job.chroma_start[CHANNEL] + job.chroma_slope[CHANNEL] * static_cast<double>(alpha)) / job.word;
    const double rounded = CHANNEL ? ceil(exact) : floor(exact);
    return static_cast<sample_t>(fmin(fmax(rounded, 0.0), static_cast<double>(job.peak)) * job.word);
}

__device__ __forceinline__ float between_sites(const float* v, int odd) {
#if COSITED_X
    return odd ? 0.5f * (v[0] + v[1]) : v[0];
#else
    return 0.75f * v[0] + 0.25f * (odd ? v[1] : v[-1]);
#endif
}

// A thread makes a chroma site and its four luma samples.
// grid: (columns of sites / COLUMNS, rows / ROWS, parts)
extern "C" __global__ void __launch_bounds__(COLUMNS* ROWS) paint_alpha(const __grid_constant__ Job job) {
    __shared__ float v[ROWS + 2][COLUMNS + 2];
    const Part& part = job.parts[blockIdx.z];
    const int first_column = part.x / 2 + blockIdx.x * COLUMNS, first_row = part.y / 2 + blockIdx.y * ROWS;
    const int last_column = job.width / 2 - 1, last_row = job.height / 2 - 1;
    for (int at = threadIdx.y * COLUMNS + threadIdx.x; at < (ROWS + 2) * (COLUMNS + 2); at += COLUMNS * ROWS) {
        const int down = at / (COLUMNS + 2), across = at % (COLUMNS + 2);
        const int row = min(max(first_row - 1 + down, 0), last_row), column = min(max(first_column - 1 + across, 0), last_column);
        const float most = largest_at(job, part, row, column);
        v[down][across] = static_cast<float>(most < 0.f ? job.chroma[row * job.chroma_pitch + 2 * column + 1] : chroma_code<1>(job, most));
    }
    __syncthreads();
    const int column = first_column + threadIdx.x, row = first_row + threadIdx.y;
    if (column > last_column || row > last_row) return;
    const float most = largest_at(job, part, row, column);
    if (most < 0.f) return;
    sample_t* site = job.chroma + row * job.chroma_pitch + 2 * column;
    site[0] = chroma_code<0>(job, most);
    site[1] = chroma_code<1>(job, most);
    const int least = static_cast<int>(job.black) / job.word;
#pragma unroll
    for (int at = 0; at < 4; ++at) {
        const int odd_row = at / 2, odd_column = at % 2, y = 2 * row + odd_row, x = 2 * column + odd_column;
        const float alpha = alpha_at(job, part, y, x);
        if (alpha < 0.f) continue;
        const float* own = &v[threadIdx.y + 1][threadIdx.x + 1];
        const float in_row = between_sites(own, odd_column);
#if COSITED_Y
        const float code = odd_row ? 0.5f * (in_row + between_sites(own + COLUMNS + 2, odd_column)) : in_row;
#else
        const float code = 0.75f * in_row + 0.25f * between_sites(odd_row ? own + COLUMNS + 2 : own - COLUMNS - 2, odd_column);
#endif
        const float red = __saturatef(fmaf(job.red[0], code, job.red[1]));
        const float exact = fmaf(alpha - red, job.luma_slope, job.black) / job.word;
        job.luma[y * job.luma_pitch + x] = static_cast<sample_t>(min(max(__float2int_rn(exact), least), job.peak) * job.word);
    }
}
