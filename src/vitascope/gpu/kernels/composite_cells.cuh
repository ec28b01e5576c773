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

__device__ float residual_at(const Field& field, const Eye& eye, int channel, float row, float column) {
    const coefficient_t* plane = field.residual + static_cast<long long>(channel) * field.plane;
    const int y = static_cast<int>(floorf(row)), x = static_cast<int>(floorf(column));
    const int upper = max(y, 0) * field.row, lower = min(y + 1, eye.rows - 1) * field.row;
    const int left = max(x, 0) * field.column, right = min(x + 1, eye.columns - 1) * field.column;
    const float a = plane[upper + left], b = plane[upper + right], c = plane[lower + left], d = plane[lower + right];
    const float above = fmaf(column - x, b - a, a), below = fmaf(column - x, d - c, c);
    return fmaf(row - y, below - above, above);
}

// The foreground's Y, U and V in samples.
__device__ float3 foreground_at(const Job& job, const Eye& eye, int x, int y) {
    const float3 yuv = yuv_at(job, eye, x, y);
    const float row = cell_y(eye, y), column = cell_x(eye, x);
    float rgb[3], made[3];
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const float* weights = job.rgb_from_yuv.matrix + 3 * c;
        const float own = weights[0] * yuv.x + weights[1] * yuv.y + weights[2] * yuv.z + job.rgb_from_yuv.offset[c];
        rgb[c] = __saturatef(own + own * residual_at(eye.gain, eye, c, row, column) + residual_at(eye.offset, eye, c, row, column));
    }
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        const float* weights = job.yuv_from_rgb.matrix + 3 * c;
        made[c] = weights[0] * rgb[0] + weights[1] * rgb[1] + weights[2] * rgb[2] + job.yuv_from_rgb.offset[c];
    }
    return make_float3(made[0], made[1], made[2]);
}

__device__ made_t finished(float sample, bool replaced, float alpha, float behind) {
    const float own = replaced ? fminf(fmaxf(rintf(sample / STEP), 0.f), DEEP ? 1023.f : 255.f) : sample / STEP;
    const float code = PAINT == PAINT_FOREGROUND ? own : behind + (own - behind) * (alpha / PEAK);
    return static_cast<made_t>(__float2int_rn(code) << MADE_SHIFT);
}

// One chroma site and its luma samples once more, with the network's foreground where alpha is partial.
__device__ void repaint(const Job& job, const Cells& cells, const Eye& eye, int x, int y) {
    float filtered = 0.f, blue = 0.f, red = 0.f, least = PEAK;
#pragma unroll 1
    for (int dy = -COSITED_Y; dy < 2; ++dy) {
#pragma unroll 1
        for (int dx = -COSITED_X; dx < 2; ++dx) {
            const int column = clamped(x + dx, eye.left, eye.right - 1), row = clamped(y + dy, eye.top, eye.bottom - 1);
            const float weight = (COSITED_X && dx ? 0.25f : 0.5f) * (COSITED_Y && dy ? 0.25f : 0.5f);
            const float alpha = alpha_at(job, cells, eye, column, row) - INTEGER;
            const float3 foreground = foreground_at(job, eye, column, row);
            filtered += weight * alpha, blue += weight * foreground.y, red += weight * foreground.z;
            if (dx < 0 || dy < 0) continue;
            least = fminf(least, alpha);
            if (x + dx >= eye.right || y + dy >= eye.bottom) continue;
            const bool replaced = alpha > 0.f && alpha < PEAK;
            const float own = replaced ? foreground.x : row_of(job.frame.luma, row, job.frame.luma_pitch)[column];
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
    *made = finished(replaced ? blue : own[0], replaced, fmaxf(filtered, least), behind_blue);
    made[PLANAR ? job.result.apart : 1] = finished(replaced ? red : own[1], replaced, fmaxf(filtered, least), behind_red);
}
#endif
