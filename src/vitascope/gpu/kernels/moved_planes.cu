// Planes moved by affine maps; the contract and the reference are in moved_planes.py.
//
// A thread makes one sample of all planes of a picture. BEYOND is what lies beyond them; without it their border goes on.

struct Moved {
    const float* planes;  // [pictures, channels, height, width]
    const float* places;  // [pictures, 2, 3]: where each sample of the result lies in the planes
    float* out;           // as planes
    int channels, height, width;
};

__device__ __forceinline__ float read(const float* plane, int x, int y, const Moved& job) {
#ifdef BEYOND
    if (x < 0 || y < 0 || x >= job.width || y >= job.height) return BEYOND;
#else
    x = min(max(x, 0), job.width - 1);
    y = min(max(y, 0), job.height - 1);
#endif
    return plane[static_cast<size_t>(y) * job.width + x];
}

// grid: (columns / 32, rows / 8, pictures)
extern "C" __global__ void moved(const Moved job) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= job.width || y >= job.height) return;
    const float* place = job.places + 6 * blockIdx.z;
    // Far outside, every place is beyond; the bounds keep the cast in range.
    const float column = fminf(fmaxf(place[0] * x + place[1] * y + place[2], -2.f), job.width + 1.f);
    const float row = fminf(fmaxf(place[3] * x + place[4] * y + place[5], -2.f), job.height + 1.f);
    const int left = static_cast<int>(floorf(column)), top = static_cast<int>(floorf(row));
    const float across = column - left, down = row - top;
    const size_t area = static_cast<size_t>(job.height) * job.width;
    for (int channel = 0; channel < job.channels; ++channel) {
        const size_t first = (static_cast<size_t>(blockIdx.z) * job.channels + channel) * area;
        const float* plane = job.planes + first;
        const float a = read(plane, left, top, job), b = read(plane, left + 1, top, job);
        const float c = read(plane, left, top + 1, job), d = read(plane, left + 1, top + 1, job);
        const float above = a + across * (b - a), below = c + across * (d - c);
        job.out[first + static_cast<size_t>(y) * job.width + x] = above + down * (below - above);
    }
}
