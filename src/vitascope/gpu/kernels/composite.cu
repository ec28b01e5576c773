// A picture and its matte to a finished picture in one pass; the contracts and references are in guided.py (alpha),
// foreground.py (decontamination) and composite.py (everything painted).
//
//   alpha = round(clip(gain * grey + offset, 0, 1) * PEAK)        gain, offset: small, bilinear between cell centres
//   out   = round(behind + (sample - behind) * alpha / PEAK)      chroma: alpha at its site, or the block's least
//
// Sample i of a row has its centre at i + 0.5; cells likewise. Chroma is read bilinearly from where its sites sit.
// A block is one warp, which makes a tile of up to 256 columns, each thread 8 of them, row pair by row pair. Between two
// rows of cells gain and offset are linear in y at every column: a thread keeps value and slope of its columns in
// registers and renews them at each row of cells. What it reads of the picture comes through shared memory, copied
// there three row pairs ahead. One translation unit: every part works on a thread's registers and must be inlined.

#include <cuda_fp16.h>

#include "composite_samples.cuh"
#include "composite_cells.cuh"
#include "composite_rows.cuh"
#include "composite_blend.cuh"

// Rows `top` to before `bottom` of a tile.
__device__ __forceinline__ void paint_strip(const Job& job, const Cells& cells, const Eye& eye, const Place& place, int top, int bottom) {
    const int x = place.x, luma_end = job.width - x, chroma_end = (job.width + 1 & ~1) - x;
    const auto exists = [&](int y) { return WHOLE || y < eye.bottom; };
    const auto chroma_row = [&](int row) {
        return row_of(job.frame.chroma, clamped(row, eye.chroma_top, eye.chroma_bottom), job.frame.chroma_pitch) + x;
    };
    // Of the pair that is fetched next. Coefficients need the chroma below a pair too; its own is then here already.
    const sample_t* luma_at = fixed(row_of(job.frame.luma, top, job.frame.luma_pitch) + x);
    const sample_t* chroma_at = fixed(chroma_row(top / 2 + !ALPHA_GIVEN));
    const int after = fixed_own(place.at_right ? 0 : WIDTH);
    const int last_advance = static_cast<int>(fixed(static_cast<unsigned>(2 * (eye.chroma_bottom - !ALPHA_GIVEN))));
    const auto fetch_pair = [&](Octet<sample_t>* slot, int y) {
        const auto octet = [&](int index) -> Octet<sample_t>& { return slot[index * THREADS]; };
        if (y < bottom) {
            if (FRAME_READ) {
                fetch(octet(LUMA), luma_at, luma_end);
                if (exists(y + 1)) luma_at += job.frame.luma_pitch;
                fetch(octet(LUMA + 1), luma_at, luma_end);
                luma_at += job.frame.luma_pitch;
                fetch(octet(CHROMA), chroma_at, chroma_end);
            }
            if (!ALPHA_GIVEN) fetch_word(octet(AFTER), chroma_at + after, false);
            if (!ALPHA_GIVEN && !COSITED_X) fetch_word(octet(BEFORE), place.at_left ? chroma_at : chroma_at - WORD, !place.at_left);
            if (PAINT == PAINT_FRAME) {
                const sample_t* const at = row_of(job.behind.luma, y, job.behind.luma_pitch) + x;
                fetch(octet(BEHIND), at, luma_end);
                fetch(octet(BEHIND + 1), at + (exists(y + 1) ? job.behind.luma_pitch : 0), luma_end);
                fetch(octet(BEHIND + 2), row_of(job.behind.chroma, y / 2, job.behind.chroma_pitch) + x, chroma_end);
            }
            if (ALPHA_GIVEN) {
                const sample_t* const at = row_of(job.alpha, y, job.alpha_pitch) + x;
                fetch(octet(GIVEN), at, luma_end);
                fetch(octet(GIVEN + 1), at + (exists(y + 1) ? job.alpha_pitch : 0), luma_end);
            }
            if (y < last_advance) chroma_at += job.frame.chroma_pitch;
        }
        end_fetch();
    };
    Octet<sample_t>* slot = octets[0][0] + threadIdx.x;
#pragma unroll
    for (int ahead = 0; ahead < DEPTH; ++ahead) fetch_pair(slot + ahead * OCTETS * THREADS, top + 2 * ahead);

    made_t* made_luma = fixed(row_of(job.result.luma, top, job.result.luma_pitch) + x);
    made_t* made_chroma = fixed(row_of(job.result.chroma, top / 2, job.result.chroma_pitch) + (PLANAR ? x / 2 : x));
    Band band;
    // What chroma adds to the next even row, and the part of the site row at hand in the odd row after it.
    Share even_share = {}, odd_part = {};
    Octet<sample_t> sites = {};
    float made[WIDTH];
    AlphaRow previous = {};  // alpha of the row above a pair
    const bool carries = COSITED_Y && CHROMA_WEIGHED && top > eye.top;
    if (!ALPHA_GIVEN) {
        const ChromaRow own = load_chroma(chroma_row(top / 2), place, chroma_end);
        const Share above = share_of(load_chroma(chroma_row(top / 2 - 1), place, chroma_end), job.grey, eye, place);
        const Share here = share_of(own, job.grey, eye, place);
        sites = own.own;
        odd_part = mixed_share(COSITED_Y ? 0.5f : 0.75f, here, 0.f, here);
        even_share = COSITED_Y ? here : mixed_share(0.75f, here, 0.25f, above);
        enter_first_band(band, cells, eye, place, carries ? top - 1 : top);
        if (carries) {
            const Octet<sample_t> row = load(row_of(job.frame.luma, top - 1, job.frame.luma_pitch) + x, luma_end);
            make_alpha(made, band, cells, job, eye, place, top - 1, row, mixed_share(0.5f, here, 0.5f, above));
            previous = alpha_row(made);
        }
    } else if (carries) {
        make_alpha(made, band, cells, job, eye, place, top - 1, load(row_of(job.alpha, top - 1, job.alpha_pitch) + x, luma_end), {});
        previous = alpha_row(made);
    }
#pragma unroll 1
    for (int y = top; y < bottom; y += 2) {
        await_fetch();
        const auto octet = [&](bool is_read, int index) { return is_read ? slot[index * THREADS] : Octet<sample_t>{}; };
        ChromaRow next = {};
        next.own = octet(FRAME_READ, CHROMA);
        next.after = octet(!ALPHA_GIVEN, AFTER).word[0], next.before = octet(!ALPHA_GIVEN && !COSITED_X, BEFORE).word[0];
        AlphaRow alpha[2];
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const Octet<sample_t> luma = octet(FRAME_READ, LUMA + odd), behind = octet(PAINT == PAINT_FRAME, BEHIND + odd);
            Share share = even_share;
            if (!ALPHA_GIVEN && odd) {
                const Share below = share_of(next, job.grey, eye, place);
#pragma unroll
                for (int i = COSITED_X; i < 6; ++i) {
                    share.at[i] = fmaf(COSITED_Y ? 0.5f : 0.25f, below.at[i], odd_part.at[i]);
                    const float part = (COSITED_Y ? 0.5f : 0.75f) * below.at[i];
                    // Three quarters of this row, and a third of three quarters of the one above.
                    even_share.at[i] = COSITED_Y ? below.at[i] : fmaf(1.f / 3.f, odd_part.at[i], part);
                    odd_part.at[i] = part;
                }
            }
            make_alpha(made, band, cells, job, eye, place, y + odd, ALPHA_GIVEN ? octet(true, GIVEN + odd) : luma, share);
            alpha[odd] = alpha_row(made);
            if (PAINT != PAINT_WEIGHTS && (WHOLE || y + odd >= eye.top && y + odd < eye.bottom))
                paint_luma(made_luma, job, place, alpha[odd], luma, behind);
            made_luma += job.result.luma_pitch;
        }
        if (PAINT != PAINT_ALPHA) {
            if (!WHOLE && y + 1 >= eye.bottom) alpha[1] = alpha[0];
            if (COSITED_Y && y == eye.top) previous = alpha[0];
            paint_chroma(made_chroma, job, place, y, alpha, previous, ALPHA_GIVEN ? next.own : sites, octet(PAINT == PAINT_FRAME, BEHIND + 2));
            previous = alpha[1];
        }
        fetch_pair(slot, y + 2 * DEPTH);
        slot += OCTETS * THREADS;
        if (slot >= octets[0][0] + DEPTH * OCTETS * THREADS) slot -= DEPTH * OCTETS * THREADS;
        made_chroma += job.result.chroma_pitch;
        sites = next.own;
    }
}

// grid: (tiles of a row, tiles of a column, eyes); a block is one warp
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) composite(const __grid_constant__ Job job) {
    extern __shared__ float4 shared_cells[];
    const Eye& eye = job.eye[blockIdx.z];
    const int left = (eye.left & ~(WIDTH - 1)) + blockIdx.x * TILE_WIDTH;
    const int top = (eye.top & ~1) + blockIdx.y * job.rows, bottom = min(top + job.rows, eye.bottom);
    if (left >= eye.right || top >= eye.bottom) return;
    Cells cells = {};
    Verdict verdict = OPEN;
    if (!ALPHA_GIVEN)
        verdict = gather_cells(cells, shared_cells, job, eye, left - HALO * WIDTH, top, left + TILE_WIDTH, bottom);

    // Threads beyond the eye repeat its nearest samples and store nothing.
    const int lane = threadIdx.x, own = left + (lane - HALO) * WIDTH;
    Place place;
    place.x = clamped(own, eye.left & ~(WIDTH - 1), eye.right - 1 & ~(WIDTH - 1));
    place.first = eye.left - place.x, place.last = lane < HALO || own >= eye.right ? 0 : eye.right - place.x;
    place.ragged = place.first > 0 || eye.right - place.x < WIDTH;
    place.at_left = place.x / 2 - 1 < eye.chroma_left, place.at_right = place.x / 2 + 4 > eye.chroma_right;
    place.is_first = place.x <= eye.left;
    place.tile_left = left, place.tile_top = top;
    place.float_bits = fixed(job.float_bits), place.half_bits = fixed(job.half_bits);
#if DECONTAMINATE
    if (threadIdx.x == 0) mixed_count = 0;
    __syncthreads();
#endif
    if (verdict == EMPTY || verdict == FULL && PAINT != PAINT_TINT)
        paint_flat(job, place, max(top, eye.top), bottom, verdict == FULL);
    else
        paint_strip(job, cells, eye, place, top, bottom);
#if DECONTAMINATE
    __syncthreads();
    for (int i = threadIdx.x; i < mixed_count; i += THREADS)
        repaint(job, cells, eye, left + mixed[i] % MIXED_SITES * 2, top + mixed[i] / MIXED_SITES * 2);
#endif
}
