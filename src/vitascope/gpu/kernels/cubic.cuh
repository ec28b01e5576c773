// Cubic convolution (Keys, 1981), as OpenCV reads between samples.

// Keys' kernel with a = -0.75: weights of the samples at -1, 0, 1, 2 around a place `t` after sample 0.
__device__ __forceinline__ void cubic_weights(float t, float (&weights)[4]) {
    constexpr float A = -0.75f;
    const float u = t + 1.f, v = 1.f - t;
    weights[0] = ((A * u - 5.f * A) * u + 8.f * A) * u - 4.f * A;
    weights[1] = ((A + 2.f) * t - (A + 3.f)) * t * t + 1.f;
    weights[2] = ((A + 2.f) * v - (A + 3.f)) * v * v + 1.f;
    weights[3] = 1.f - weights[0] - weights[1] - weights[2];
}
