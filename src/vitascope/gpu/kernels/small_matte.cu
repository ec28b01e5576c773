// A matte at its own size, of coefficients and the picture they are of; the contract and the reference are in
// small_matte.py.
//
//   mean_of_channels  the picture's grey
//   alpha_at_grey     alpha, 0..1
//   bound_alpha       coefficients whose alpha stays in 0..1, how sure it is, alpha, and how much follows the picture
//
// grid: (samples / 256, pictures)

#ifndef COLOR        // of the picture: float or __half
#define COLOR float
#endif
#ifndef COEFFICIENT  // of gain and offset: float or __half
#define COEFFICIENT float
#endif
#ifndef FLAT_BEYOND
#define FLAT_BEYOND 0.25f
#endif

#include <cuda_fp16.h>

using color_t = COLOR;
using coefficient_t = COEFFICIENT;

constexpr int THREADS = 256;

struct Picture {
    const color_t* first;
    long long step;  // samples from picture to picture
    int channels, height, width;
};

struct Matte {
    const coefficient_t *gain, *offset;
    long long gain_step, offset_step;
};

__device__ __forceinline__ float grey_at(const Picture& picture, long long at) {
    const long long plane = static_cast<long long>(picture.height) * picture.width;
    const color_t* const own = picture.first + blockIdx.y * picture.step + at;
    if (picture.channels == 1) return static_cast<float>(own[0]);
    return (static_cast<float>(own[0]) + static_cast<float>(own[plane]) + static_cast<float>(own[2 * plane])) / 3.f;
}

extern "C" __global__ void __launch_bounds__(THREADS) mean_of_channels(const Picture picture, float* greys) {
    const long long plane = static_cast<long long>(picture.height) * picture.width;
    const long long at = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (at < plane) greys[blockIdx.y * plane + at] = grey_at(picture, at);
}

extern "C" __global__ void __launch_bounds__(THREADS) alpha_at_grey(const Picture picture, const Matte matte, float* alphas) {
    const long long plane = static_cast<long long>(picture.height) * picture.width;
    const long long at = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= plane) return;
    const float gain = static_cast<float>(matte.gain[blockIdx.y * matte.gain_step + at]);
    const float offset = static_cast<float>(matte.offset[blockIdx.y * matte.offset_step + at]);
    alphas[blockIdx.y * plane + at] = __saturatef(fmaf(gain, grey_at(picture, at), offset));
}

// `said` [N, 3, h, w].
extern "C" __global__ void __launch_bounds__(THREADS) bound_alpha(const Picture picture, const Matte matte, float* gains,
                                                                  float* offsets, float* said, int is_mirrored) {
    const long long plane = static_cast<long long>(picture.height) * picture.width;
    const long long at = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= plane) return;
    const float grey = grey_at(picture, at);
    float gain = static_cast<float>(matte.gain[blockIdx.y * matte.gain_step + at]);
    const float free = fmaf(gain, grey, static_cast<float>(matte.offset[blockIdx.y * matte.offset_step + at]));
    const float inside = __saturatef(free);
    gain *= __saturatef(1.f - fabsf(free - inside) / FLAT_BEYOND);
    const float offset = fmaf(-gain, grey, inside), alpha = fmaf(gain, grey, offset);
    const int x = static_cast<int>(at % picture.width);
    const long long to = is_mirrored ? at + picture.width - 1 - 2 * x : at;
    gains[blockIdx.y * plane + to] = gain;
    offsets[blockIdx.y * plane + to] = offset;
    float* const own = said + 3 * blockIdx.y * plane + to;
    own[0] = fabsf(2.f * alpha - 1.f);
    own[plane] = alpha;
    own[2 * plane] = fabsf(gain) * alpha * (1.f - alpha);
}
