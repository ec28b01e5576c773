// Of composite.cu: a tile's verdict, tiles that are the same everywhere, and alpha of a thread's 8 columns row by row.

// Whether alpha rounds to 0 all over a tile, whatever the picture shows there; or to PEAK; or neither is certain.
enum Verdict { EMPTY, OPEN, FULL };

// Reads the cells of a tile into shared memory.
__device__ __forceinline__ Verdict gather_cells(Cells& cells, float4* shared, const Job& job, const Eye& eye, int left,
                                                int top, int right, int bottom) {
    // One row more above: a cosited chroma site weighs it too.
    cells.left = static_cast<int>(floorf(cell_x(eye, left))), cells.top = static_cast<int>(floorf(cell_y(eye, top - 1)));
    cells.columns = static_cast<int>(floorf(cell_x(eye, right - 1))) + 2 - cells.left, cells.shared = shared;
    const int rows = static_cast<int>(floorf(cell_y(eye, bottom - 1))) + 2 - cells.top;
    if (!SHARED) return OPEN;
    bool visible = false, clear = false;
    for (int i = threadIdx.x; i < cells.columns * rows; i += THREADS) {
        const float4 cell = read_cell(eye, cells.top + i / cells.columns, cells.left + i % cells.columns);
        shared[i] = cell;
        const float dark = cell.x * job.grey.darkest, bright = cell.x * job.grey.brightest;
        visible |= (fmaxf(dark, bright) + cell.y) * PEAK >= 0.5f;
        clear |= !((fminf(dark, bright) + cell.y) * PEAK >= PEAK - 0.5f);
    }
    __syncthreads();
    return !__any_sync(~0u, visible) ? EMPTY : __any_sync(~0u, clear) ? OPEN : FULL;
}

// A tile whose alpha is the same everywhere.
__device__ __forceinline__ void paint_flat(const Job& job, const Place& place, int top, int bottom, bool full) {
    const bool copies = PICTURE && (full || PAINT != PAINT_COLOR);
    const Picture& source = PAINT == PAINT_FRAME && !full ? job.behind : job.frame;
    const float luma = PAINT == PAINT_MATTE ? job.code[full] : PAINT == PAINT_ALPHA ? (full ? PEAK : 0.f) : job.code[0];
    const float blue = PAINT == PAINT_MATTE ? job.code[2] : job.code[1], red = job.code[2];
    const Octet<made_t> flat_luma = filled(luma, luma), flat_chroma = filled(blue, red);
    const int x = place.x;
    constexpr int BATCH = 8;  // rows whose loads are under way together
    for (int y = top & ~1; y < bottom; y += BATCH) {
        Octet<made_t> luma_rows[BATCH], chroma_rows[BATCH / 2];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            luma_rows[i] = flat_luma;
            if (i % 2 == 0) chroma_rows[i / 2] = flat_chroma;
            if (!copies || y + i >= bottom) continue;
            luma_rows[i] = copied(load(row_of(source.luma, y + i, source.luma_pitch) + x, job.width - x));
            if (i % 2 == 0) chroma_rows[i / 2] = copied(load(row_of(source.chroma, (y + i) / 2, source.chroma_pitch) + x, (job.width + 1 & ~1) - x));
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            if (y + i >= bottom) continue;
            if (y + i >= top) store(row_of(job.result.luma, y + i, job.result.luma_pitch) + x, luma_rows[i], place.first, place.last);
            if (PAINT == PAINT_ALPHA || i % 2) continue;
            store_chroma(row_of(job.result.chroma, (y + i) / 2, job.result.chroma_pitch) + (PLANAR ? x / 2 : x), job.result.apart, chroma_rows[i / 2], place.first, place.last);
        }
    }
}

// Gain and offset of a thread's columns between two rows of cells.
struct Band {
    float gain[WIDTH], gain_slope[WIDTH], offset[WIDTH], offset_slope[WIDTH];
    float share;  // of the lower row of cells
    float step;   // how much it grows from row to row
    int row;      // the upper one
    int end;      // first luma row that lies below the lower one
};

__device__ __forceinline__ void place_in_band(Band& band, const Eye& eye, int y) {
    band.share = fmaf(y - eye.top + 0.5f, eye.y_step, -0.5f) - band.row;
    band.end = eye.top + static_cast<int>(ceilf(fmaf(band.row + 1.5f, eye.y_span, -0.5f)));
}

__device__ __forceinline__ float column_position(const Eye& eye, const Place& place, int k) {
    if (!WHOLE) return cell_x(eye, place.x + k);
    return fmaf(place.x - eye.left + (k + 0.5f), eye.x_step, -0.5f);
}

__device__ __forceinline__ void enter_first_band(Band& band, const Cells& cells, const Eye& eye, const Place& place, int y) {
    band.row = static_cast<int>(floorf(cell_y(eye, y))), band.step = fixed(eye.y_step);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        const float position = column_position(eye, place, k);
        const float2 upper = between_columns(cells, eye, band.row, position);
        const float2 lower = between_columns(cells, eye, band.row + 1, position);
        band.gain[k] = upper.x, band.gain_slope[k] = lower.x - upper.x;
        band.offset[k] = upper.y, band.offset_slope[k] = lower.y - upper.y;
    }
    place_in_band(band, eye, y);
}

__device__ __forceinline__ void enter_next_band(Band& band, const Cells& cells, const Eye& eye, const Place& place, int y) {
    ++band.row;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        const float2 lower = between_columns(cells, eye, band.row + 1, column_position(eye, place, k));
        band.gain[k] += band.gain_slope[k], band.offset[k] += band.offset_slope[k];
        band.gain_slope[k] = lower.x - band.gain[k], band.offset_slope[k] = lower.y - band.offset[k];
    }
    place_in_band(band, eye, y);
}

// A row of chroma at a thread's four sites and the two beside them: the last of one word, the first of the other.
struct ChromaRow {
    Octet<sample_t> own;
    unsigned before, after;
};

constexpr int WORD = 4 / sizeof(sample_t);  // samples of a word

__device__ __forceinline__ ChromaRow load_chroma(const sample_t* at, const Place& place, int end) {
    ChromaRow sites = {};
    sites.own = load(at, end);
    if (!ALPHA_GIVEN && !COSITED_X && !place.at_left) sites.before = load_site(at - 2) << (DEEP ? 0 : 16);
    if (!ALPHA_GIVEN && !place.at_right) sites.after = load_site(at + WIDTH);
    return sites;
}

__shared__ Octet<sample_t> octets[DEPTH][OCTETS][THREADS];

#if WHOLE && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <int bytes> __device__ __forceinline__ void copy_async(void* to, const void* at) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(at), "n"(bytes) : "memory");
}
__device__ __forceinline__ void fetch(Octet<sample_t>& to, const sample_t* at, int) { copy_async<sizeof(to)>(&to, at); }
__device__ __forceinline__ void fetch_word(Octet<sample_t>& to, const sample_t* at, bool) { copy_async<4>(to.word, at); }
__device__ __forceinline__ void end_fetch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void await_fetch() { asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 1) : "memory"); }
#else
__device__ __forceinline__ void fetch(Octet<sample_t>& to, const sample_t* at, int end) { to = load(at, end); }
__device__ __forceinline__ void fetch_word(Octet<sample_t>& to, const sample_t* at, bool is_last) {
    to.word[0] = is_last ? load_site(at + WORD - 2) << (DEEP ? 0 : 16) : load_site(at);
}
__device__ __forceinline__ void end_fetch() {}
__device__ __forceinline__ void await_fetch() {}
#endif

// What chroma adds to grey, at the same six sites.
struct Share {
    float at[6];
};

__device__ __forceinline__ Share share_of(const ChromaRow& sites, const Grey& grey, const Eye& eye, const Place& place) {
    const float offset = grey.offset - LIFT * (grey.luma + grey.blue + grey.red);
    Share share = {};
#pragma unroll
    for (int i = COSITED_X; i < 6; ++i) {
        const unsigned* words = i == 0 ? &sites.before : i == 5 ? &sites.after : sites.own.word;
        const int lane = i == 0 ? WORD - 2 : i == 5 ? 0 : 2 * i - 2;
        const float blue = number(words, lane, place.float_bits), red = number(words, lane + 1, place.float_bits);
        share.at[i] = fmaf(grey.blue, blue, fmaf(grey.red, red, offset));
    }
    if (place.at_right) share.at[5] = share.at[4];
    if (!COSITED_X && place.at_left) share.at[0] = share.at[1];
    if (!WHOLE && place.ragged) {
#pragma unroll
        for (int i = COSITED_X + 1; i < 6; ++i)
            if (place.x / 2 + i - 1 > eye.chroma_right) share.at[i] = share.at[i - 1];
#pragma unroll
        for (int i = 4; i >= COSITED_X; --i)
            if (place.x / 2 + i - 1 < eye.chroma_left) share.at[i] = share.at[i + 1];
    }
    return share;
}

// a * x + b * y
__device__ __forceinline__ Share mixed_share(float a, const Share& x, float b, const Share& y) {
    Share share = {};
#pragma unroll
    for (int i = COSITED_X; i < 6; ++i) share.at[i] = fmaf(a, x.at[i], b * y.at[i]);
    return share;
}

// Alpha, plus INTEGER, of 8 samples of row y: `row` is its luma, `chroma` what its sites add to grey; or `row` is its
// given alpha.
__device__ __forceinline__ void make_alpha(float (&alpha)[WIDTH], Band& band, const Cells& cells, const Job& job,
                                           const Eye& eye, const Place& place, int y, const Octet<sample_t>& row,
                                           const Share& chroma) {
    if (ALPHA_GIVEN) {
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) alpha[k] = kept(number(row.word, k) + (INTEGER - LIFT), job);
    } else {
        while (y >= band.end && (WHOLE || y < eye.bottom)) enter_next_band(band, cells, eye, place, y);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            const int i = k / 2 + 1;
            float added = chroma.at[i];
            if (COSITED_X && k % 2) added = fmaf(0.5f, chroma.at[i], 0.5f * chroma.at[i + 1]);
            if (!COSITED_X) added = fmaf(0.25f, chroma.at[k % 2 ? i + 1 : i - 1], 0.75f * chroma.at[i]);
            const float grey = fmaf(job.grey.luma, number(row.word, k, place.float_bits), added);
            const float gain = fmaf(band.share, band.gain_slope[k], band.gain[k]);
            const float offset = fmaf(band.share, band.offset_slope[k], band.offset[k]);
            alpha[k] = kept(fmaf(__saturatef(fmaf(gain, grey, offset)), PEAK, INTEGER), job);
        }
        band.share += band.step;
    }
    if (!WHOLE && CHROMA_WEIGHED && place.ragged) {  // alpha repeats at the border
#pragma unroll
        for (int k = 1; k < WIDTH; ++k)
            if (place.x + k >= eye.right) alpha[k] = alpha[k - 1];
#pragma unroll
        for (int k = WIDTH - 2; k >= 0; --k)
            if (place.x + k < eye.left) alpha[k] = alpha[k + 1];
    }
}
