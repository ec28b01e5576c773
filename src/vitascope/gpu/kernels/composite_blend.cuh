// Of composite.cu: rows of luma and chroma, blended with what is behind; as pairs of half floats, or as floats.

#if PAIRED
// Two codes as the bits of half floats are 2^-24 each: sums are exact, and what is scaled is rounded to a code.
__device__ __forceinline__ __half2 halves(unsigned bits) { return *reinterpret_cast<const __half2*>(&bits); }
__device__ __forceinline__ unsigned bits(__half2 pair) { return *reinterpret_cast<const unsigned*>(&pair); }

// Alpha of 8 samples: 0 and 2, 4 and 6; 1 and 3, 5 and 7.
struct AlphaRow {
    __half2 even[2], odd[2];
};

__device__ __forceinline__ AlphaRow alpha_row(const float (&alpha)[WIDTH]) {
    AlphaRow row;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float* at = alpha + 4 * i;
        row.even[i] = halves(__byte_perm(__float_as_uint(at[0]), __float_as_uint(at[2]), 0x5410));
        row.odd[i] = halves(__byte_perm(__float_as_uint(at[1]), __float_as_uint(at[3]), 0x5410));
    }
    return row;
}

// Bytes 0 and 2, or 1 and 3, of a word; and what they become over `behind`. 1024 is added to all.
__device__ __forceinline__ __half2 blended(const Place& place, unsigned word, unsigned behind, const PairBehind color,
                                           int odd, __half2 alpha) {
    const unsigned selector = odd ? 0x4341 : 0x4240;
    const __half2 own = halves(__byte_perm(word, place.half_bits, selector));
    __half2 less = halves(color.less), code = halves(color.code);
    if (PAINT == PAINT_FRAME) {
        code = halves(__byte_perm(behind, place.half_bits, selector));
        less = __hmul2(code, __float2half2_rn(-2.f));
    }
    // 2^24 / 510 is half an alpha of 1 in all the bits that a half float has, and 1 exactly where alpha is 255.
    return __hfma2(__hfma2(own, __float2half2_rn(2.f), less), __hmul2(alpha, __float2half2_rn(32896.f)), code);
}

__device__ __forceinline__ unsigned interleaved(__half2 even, __half2 odd) { return __byte_perm(bits(even), bits(odd), 0x6240); }

__device__ __forceinline__ void paint_luma(made_t* at, const Job& job, const Place& place, const AlphaRow& alpha,
                                           const Octet<sample_t>& luma, const Octet<sample_t>& behind) {
    Octet<made_t> octet;
#pragma unroll
    for (int i = 0; i < 2; ++i)
        octet.word[i] = interleaved(blended(place, luma.word[i], behind.word[i], job.pair_color[0], 0, alpha.even[i]),
                                    blended(place, luma.word[i], behind.word[i], job.pair_color[0], 1, alpha.odd[i]));
    store(at, octet, place.first, place.last);
}

__device__ __forceinline__ void paint_chroma(made_t* at, const Job& job, const Place& place, int y, const AlphaRow (&alpha)[2],
                                             const AlphaRow&, const Octet<sample_t>& sites, const Octet<sample_t>& behind) {
    __half2 even[2], odd[2], weight[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        even[i] = __hadd2(alpha[0].even[i], alpha[1].even[i]);
        odd[i] = __hadd2(alpha[0].odd[i], alpha[1].odd[i]);
    }
    unsigned before = 0;
    if (COSITED_X) {
        before = __shfl_up_sync(~0u, bits(odd[1]), 1);
        if (place.is_first) before = bits(even[0]) << 16;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        __half2 sum = __hadd2(even[i], odd[i]);
        if (COSITED_X) {
            const unsigned left = __byte_perm(i ? bits(odd[0]) : before, bits(odd[i]), 0x5432);
            sum = __hadd2(__hfma2(even[i], __float2half2_rn(2.f), odd[i]), halves(left));
        }
        const __half2 least = __hmin2(__hmin2(alpha[0].even[i], alpha[0].odd[i]), __hmin2(alpha[1].even[i], alpha[1].odd[i]));
        // A block that is kept whole keeps its chroma whole, whatever lies beside it.
        weight[i] = __hmax2(__hmul2(sum, __float2half2_rn(COSITED_X ? 0.125f : 0.25f)), least);
#if DECONTAMINATE
        const unsigned full = (COSITED_X ? 8 : 4) * 255;
        note_mixed(place, y, 2 * i, bits(sum) & 0xffff, full), note_mixed(place, y, 2 * i + 1, bits(sum) >> 16, full);
#endif
    }
    Octet<made_t> octet;
#pragma unroll
    for (int i = 0; i < 2; ++i)
        octet.word[i] = interleaved(blended(place, sites.word[i], behind.word[i], job.pair_color[1], 0, weight[i]),
                                    blended(place, sites.word[i], behind.word[i], job.pair_color[2], 1, weight[i]));
    store_chroma(at, job.result.apart, octet, place.first, place.last);
}
#else
// Alpha of 8 samples, plus INTEGER.
struct AlphaRow {
    float at[WIDTH];
};

__device__ __forceinline__ AlphaRow alpha_row(const float (&alpha)[WIDTH]) {
    AlphaRow row;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) row.at[k] = alpha[k];
    return row;
}

__device__ __forceinline__ Behind behind_number(float number) {
    return {number * (-1.f / (PEAK * STEP)), DEEP ? fmaf(number, 1.f / STEP, INTEGER) : number + (INTEGER - LIFT)};
}

// An integer plus INTEGER: where alpha is PEAK the sample's own code, where alpha is 0 the other's.
__device__ __forceinline__ float blended(float number, const Behind behind, float alpha) {
    return fmaf(fmaf(number, 1.f / (PEAK * STEP), behind.less), alpha, behind.code);
}

__device__ __forceinline__ void paint_luma(made_t* at, const Job& job, const Place& place, const AlphaRow& alpha,
                                           const Octet<sample_t>& luma, const Octet<sample_t>& behind) {
    float raised[WIDTH];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        const float share = alpha.at[k] - INTEGER;
        if (PAINT == PAINT_ALPHA) raised[k] = alpha.at[k];
        if (PAINT == PAINT_MATTE) raised[k] = fmaf(share, (job.code[1] - job.code[0]) * (1.f / PEAK), job.code[0] + INTEGER);
        if (PAINT == PAINT_COLOR || PAINT == PAINT_TINT) raised[k] = blended(number(luma.word, k), job.color[0], share);
        if (PAINT == PAINT_FRAME) raised[k] = blended(number(luma.word, k), behind_number(number(behind.word, k)), share);
    }
    const Octet<made_t> octet = PAINT == PAINT_FOREGROUND ? copied(luma) : packed(raised);
    store(at, octet, place.first, place.last);
}

__device__ __forceinline__ void paint_chroma(made_t* at, const Job& job, const Place& place, int y, const AlphaRow (&alpha)[2],
                                             const AlphaRow& previous, const Octet<sample_t>& sites, const Octet<sample_t>& behind) {
    float column[WIDTH], weight[WIDTH / 2] = {}, raised[WIDTH];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        column[k] = (alpha[0].at[k] - INTEGER) + (alpha[1].at[k] - INTEGER);
        if (COSITED_Y) column[k] += (alpha[0].at[k] - INTEGER) + (previous.at[k] - INTEGER);
    }
    float before = 0.f;
    if (CHROMA_WEIGHED && COSITED_X) {
        before = __shfl_up_sync(~0u, column[WIDTH - 1], 1);
        if (place.is_first) before = column[0];
    }
#pragma unroll
    for (int i = 0; i < WIDTH / 2 && CHROMA_WEIGHED; ++i) {
        constexpr float NORMAL = (COSITED_X ? 0.25f : 0.5f) * (COSITED_Y ? 0.25f : 0.5f);
        float sum = column[2 * i] + column[2 * i + 1];
        if (COSITED_X) sum += column[2 * i] + (i ? column[max(2 * i - 1, 0)] : before);
        const float least = fminf(fminf(alpha[0].at[2 * i], alpha[0].at[2 * i + 1]), fminf(alpha[1].at[2 * i], alpha[1].at[2 * i + 1]));
        // A block that is kept whole keeps its chroma whole, whatever lies beside it.
        weight[i] = fmaxf(fmaf(sum, NORMAL, INTEGER), least) - INTEGER;
#if DECONTAMINATE
        note_mixed(place, y, i, sum, PEAK / NORMAL);
#endif
    }
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        if (PAINT == PAINT_WEIGHTS) raised[k] = weight[k / 2] + INTEGER;
        if (PAINT == PAINT_MATTE) raised[k] = job.code[2] + INTEGER;
        if (PAINT == PAINT_COLOR || PAINT == PAINT_TINT) raised[k] = blended(number(sites.word, k), job.color[1 + k % 2], weight[k / 2]);
        if (PAINT == PAINT_FRAME) raised[k] = blended(number(sites.word, k), behind_number(number(behind.word, k)), weight[k / 2]);
    }
    store_chroma(at, job.result.apart, PAINT == PAINT_FOREGROUND ? copied(sites) : packed(raised), place.first, place.last);
}
#endif
