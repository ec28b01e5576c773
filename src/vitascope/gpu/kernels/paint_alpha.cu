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
    float black, luma_slope;                                        // codes of luma for red: black + slope * red
    int height, width, word, least, peak;  // word: distance of codes in their words; codes are least to peak
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

// The alphas of the four samples that share a chroma site, and the largest of them; below 0 where they say nothing.
struct Site {
    float alpha[2][2], most;
};

__device__ __forceinline__ Site site_at(const Job& job, const Part& part, int row, int column) {
    Site site;
#pragma unroll
    for (int at = 0; at < 4; ++at) site.alpha[at / 2][at % 2] = alpha_at(job, part, 2 * row + at / 2, 2 * column + at % 2);
    site.most = fmaxf(fmaxf(site.alpha[0][0], site.alpha[0][1]), fmaxf(site.alpha[1][0], site.alpha[1][1]));
    return site;
}

template <int CHANNEL>
__device__ __forceinline__ sample_t chroma_code(const Job& job, float alpha) {
    const double exact = job.chroma_start[CHANNEL] + job.chroma_slope[CHANNEL] * static_cast<double>(alpha);
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

// V as a reader finds it at a chroma site.
__device__ __forceinline__ float read_v(const Job& job, float most, int row, int column) {
    return static_cast<float>(most < 0.f ? job.chroma[row * job.chroma_pitch + 2 * column + 1] : chroma_code<1>(job, most));
}

// A thread makes a chroma site and its four luma samples; the first ones also look at what surrounds the block.
// grid: (columns of sites / COLUMNS, rows / ROWS, parts)
extern "C" __global__ void __launch_bounds__(COLUMNS* ROWS) paint_alpha(const __grid_constant__ Job job) {
    constexpr int AROUND = 2 * (COLUMNS + 2) + 2 * ROWS;
    static_assert(AROUND <= COLUMNS * ROWS, "a thread looks at one site around the block");
    __shared__ float v[ROWS + 2][COLUMNS + 2];
    const Part& part = job.parts[blockIdx.z];
    const int first_column = part.x / 2 + blockIdx.x * COLUMNS, first_row = part.y / 2 + blockIdx.y * ROWS;
    const int last_column = job.width / 2 - 1, last_row = job.height / 2 - 1;
    const auto within = [](int at, int last) { return min(max(at, 0), last); };
    const int column = first_column + threadIdx.x, row = first_row + threadIdx.y;
    const int near_column = within(column, last_column), near_row = within(row, last_row);
    const Site site = site_at(job, part, near_row, near_column);
    v[threadIdx.y + 1][threadIdx.x + 1] = read_v(job, site.most, near_row, near_column);
    if (const int at = threadIdx.y * COLUMNS + threadIdx.x; at < AROUND) {
        const bool in_row = at < 2 * (COLUMNS + 2);  // above or below, otherwise left or right
        const int beside = at - 2 * (COLUMNS + 2);
        const int down = in_row ? at / (COLUMNS + 2) * (ROWS + 1) : beside / 2 + 1;
        const int across = in_row ? at % (COLUMNS + 2) : beside % 2 * (COLUMNS + 1);
        const int y = within(first_row - 1 + down, last_row), x = within(first_column - 1 + across, last_column);
        v[down][across] = read_v(job, site_at(job, part, y, x).most, y, x);
    }
    __syncthreads();
    if (column > last_column || row > last_row || site.most < 0.f) return;
    sample_t* chroma = job.chroma + row * job.chroma_pitch + 2 * column;
    chroma[0] = chroma_code<0>(job, site.most);
    chroma[1] = chroma_code<1>(job, site.most);
#pragma unroll
    for (int at = 0; at < 4; ++at) {
        const int odd_row = at / 2, odd_column = at % 2, y = 2 * row + odd_row, x = 2 * column + odd_column;
        const float alpha = site.alpha[odd_row][odd_column];
        if (alpha < 0.f) continue;
        const float* own = &v[threadIdx.y + 1][threadIdx.x + 1];
        const float in_row = between_sites(own, odd_column);
#if COSITED_Y
        const float code = odd_row ? 0.5f * (in_row + between_sites(own + COLUMNS + 2, odd_column)) : in_row;
#else
        const float code = 0.75f * in_row + 0.25f * between_sites(odd_row ? own + COLUMNS + 2 : own - COLUMNS - 2, odd_column);
#endif
        const float red = __saturatef(fmaf(job.red[0], code, job.red[1]));
        const float exact = fmaf(alpha - red, job.luma_slope, job.black);
        job.luma[y * job.luma_pitch + x] = static_cast<sample_t>(min(max(__float2int_rn(exact), job.least), job.peak) * job.word);
    }
}
