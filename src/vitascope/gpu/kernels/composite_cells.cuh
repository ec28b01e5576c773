// Of composite.cu: cells of coefficients; alpha and foreground of single samples.

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

// R, G and B of one of the colours near a place among the centres of cells.
__device__ void color_at(float (&rgb)[3], const Field& field, const Eye& eye, float row, float column) {
    const int y = static_cast<int>(floorf(row)), x = static_cast<int>(floorf(column));
    const int upper = max(y, 0) * field.row, lower = min(y + 1, eye.rows - 1) * field.row;
    const int left = max(x, 0) * field.column, right = min(x + 1, eye.columns - 1) * field.column;
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const coefficient_t* const plane = field.color + static_cast<long long>(c) * field.plane;
        const float a = plane[upper + left], b = plane[upper + right], c_ = plane[lower + left], d = plane[lower + right];
        const float above = fmaf(column - x, b - a, a), below = fmaf(column - x, d - c_, c_);
        rgb[c] = fmaf(row - y, below - above, above);
    }
}

// Person and scene near a place: of both, Y, U or V in samples.
struct Near {
    float person[3], scene[3];
};

__device__ Near near_at(const Eye& eye, float x, float y) {
    const float column = fminf(fmaf(x - eye.left, eye.x_step, -0.5f), eye.columns - 1.f);
    const float row = fminf(fmaf(y - eye.top, eye.y_step, -0.5f), eye.rows - 1.f);
    Near near;
    color_at(near.person, eye.gain, eye, row, column);
    color_at(near.scene, eye.offset, eye, row, column);
    return near;
}

// What is the person's of a sample of plane `channel` (0 is Y), by blur fusion.
__device__ float fused(const Job& job, const Near& near, int channel, float sample, float alpha) {
    const float* const weights = job.yuv_from_rgb.matrix + 3 * channel;
    const float shift = job.yuv_from_rgb.offset[channel];
    const float person = weights[0] * near.person[0] + weights[1] * near.person[1] + weights[2] * near.person[2] + shift;
    const float scene = weights[0] * near.scene[0] + weights[1] * near.scene[1] + weights[2] * near.scene[2] + shift;
    const float share = alpha * (1.f / PEAK);
    return person + share * (sample - scene - share * (person - scene));
}

__device__ made_t finished(float sample, bool replaced, float alpha, float behind) {
    const float own = replaced ? fminf(fmaxf(rintf(sample / STEP), 0.f), DEEP ? 1023.f : 255.f) : sample / STEP;
    const float code = PAINT == PAINT_FOREGROUND ? own : behind + (own - behind) * (alpha / PEAK);
    return static_cast<made_t>(__float2int_rn(code) << MADE_SHIFT);
}

// One chroma site and its luma samples once more, with the person's own colour where alpha is partial.
__device__ void repaint(const Job& job, const Cells& cells, const Eye& eye, int x, int y) {
    float filtered = 0.f, least = PEAK;
#pragma unroll 1
    for (int dy = -COSITED_Y; dy < 2; ++dy) {
#pragma unroll 1
        for (int dx = -COSITED_X; dx < 2; ++dx) {
            const int column = clamped(x + dx, eye.left, eye.right - 1), row = clamped(y + dy, eye.top, eye.bottom - 1);
            const float weight = (COSITED_X && dx ? 0.25f : 0.5f) * (COSITED_Y && dy ? 0.25f : 0.5f);
            const float alpha = alpha_at(job, cells, eye, column, row) - INTEGER;
            filtered += weight * alpha;
            if (dx < 0 || dy < 0) continue;
            least = fminf(least, alpha);
            if (x + dx >= eye.right || y + dy >= eye.bottom) continue;
            const bool replaced = alpha > 0.f && alpha < PEAK;
            float own = row_of(job.frame.luma, row, job.frame.luma_pitch)[column];
            if (replaced) own = fused(job, near_at(eye, column + 0.5f, row + 0.5f), 0, own, alpha);
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
    float blue = own[0], red = own[1];
    if (replaced) {
        const Near near = near_at(eye, x + (COSITED_X ? 0.5f : 1.f), y + (COSITED_Y ? 0.5f : 1.f));
        blue = fused(job, near, 1, blue, filtered), red = fused(job, near, 2, red, filtered);
    }
    *made = finished(blue, replaced, fmaxf(filtered, least), behind_blue);
    made[PLANAR ? job.result.apart : 1] = finished(red, replaced, fmaxf(filtered, least), behind_red);
}
#endif
