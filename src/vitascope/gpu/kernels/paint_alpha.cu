// Alpha painted into NV12/P010 as a colour that players read; the contract and the reference are in paint_alpha.py.
//
// chroma: of the largest alpha that shares a site, rounded to more red. luma: such that red, as a reader interpolates it,
// is alpha. A grid's z is a part of the picture. Chroma first: luma reads what it became.

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
    if (!job.inside[row * job.inside_pitch + column]) return -1.f;
    return job.alpha[part.number * job.alpha_picture_pitch + row * job.alpha_pitch + column];
}

// grid: (pieces of chroma columns, chroma rows, parts)
extern "C" __global__ void __launch_bounds__(256) paint_chroma(const __grid_constant__ Job job) {
    const Part& part = job.parts[blockIdx.z];
    const int column = part.x / 2 + blockIdx.x * 256 + threadIdx.x, row = part.y / 2 + blockIdx.y;
    if (2 * column >= job.width || 2 * row >= job.height) return;
    float most = -1.f;
#pragma unroll
    for (int at = 0; at < 4; ++at) most = fmaxf(most, alpha_at(job, part, 2 * row + at / 2, 2 * column + at % 2));
    if (most < 0.f) return;
    sample_t* site = job.chroma + row * job.chroma_pitch + 2 * column;
#pragma unroll
    for (int channel = 0; channel < 2; ++channel) {
        const double exact = (job.chroma_start[channel] + job.chroma_slope[channel] * static_cast<double>(most)) / job.word;
        const double rounded = channel ? ceil(exact) : floor(exact);
        site[channel] = static_cast<sample_t>(fmin(fmax(rounded, 0.0), static_cast<double>(job.peak)) * job.word);
    }
}

__device__ __forceinline__ float v_at(const Job& job, int row, int column) {
    const int last_row = (job.height + 1) / 2 - 1, last_column = (job.width + 1) / 2 - 1;
    return static_cast<float>(job.chroma[min(max(row, 0), last_row) * job.chroma_pitch + 2 * min(max(column, 0), last_column) + 1]);
}

__device__ __forceinline__ float v_in_row(const Job& job, int row, int x) {
    const int site = x / 2;
#if COSITED_X
    return x % 2 ? 0.5f * (v_at(job, row, site) + v_at(job, row, site + 1)) : v_at(job, row, site);
#else
    return 0.75f * v_at(job, row, site) + 0.25f * v_at(job, row, x % 2 ? site + 1 : site - 1);
#endif
}

// grid: (pieces of luma columns, luma rows, parts)
extern "C" __global__ void __launch_bounds__(256) paint_luma(const __grid_constant__ Job job) {
    const Part& part = job.parts[blockIdx.z];
    const int x = part.x + blockIdx.x * 256 + threadIdx.x, y = part.y + blockIdx.y;
    const float alpha = alpha_at(job, part, y, x);
    if (alpha < 0.f) return;
    const int row = y / 2;
#if COSITED_Y
    const float v = y % 2 ? 0.5f * (v_in_row(job, row, x) + v_in_row(job, row + 1, x)) : v_in_row(job, row, x);
#else
    const float v = 0.75f * v_in_row(job, row, x) + 0.25f * v_in_row(job, y % 2 ? row + 1 : row - 1, x);
#endif
    const float red = __saturatef(fmaf(job.red[0], v, job.red[1]));
    const float exact = fmaf(alpha - red, job.luma_slope, job.black) / job.word;
    const int least = static_cast<int>(job.black) / job.word;
    job.luma[y * job.luma_pitch + x] = static_cast<sample_t>(min(max(__float2int_rn(exact), least), job.peak) * job.word);
}
