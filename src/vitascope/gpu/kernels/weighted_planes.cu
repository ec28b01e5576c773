// Sums of planes of several sizes, with weights by cell; the contract and the reference are in weighted_planes.py.

constexpr int BLOCK_X = 32, BLOCK_Y = 8, MOST_PARTS = 4, MOST_SUMS = 2;

struct Grid {
    int height, width;
};

struct Job {
    const float* planes[MOST_SUMS][MOST_PARTS];
    const float* weights[MOST_PARTS];
    float* sums[MOST_SUMS];
    Grid sizes[MOST_PARTS], cells[MOST_PARTS], size;
    int parts, count;
};

struct Place {
    int upper, lower, left, right;
    float down, across;
};

// Where a sample lies in a smaller grid over the same picture, between the centres of its samples; the outermost repeat.
__device__ __forceinline__ Place place_in(Grid grid, Grid size, int x, int y) {
    const float column = fminf(fmaxf((x + 0.5f) * grid.width / size.width - 0.5f, 0.f), grid.width - 1.f);
    const float row = fminf(fmaxf((y + 0.5f) * grid.height / size.height - 0.5f, 0.f), grid.height - 1.f);
    Place place;
    place.left = static_cast<int>(column), place.upper = static_cast<int>(row);
    place.right = min(place.left + 1, grid.width - 1), place.lower = min(place.upper + 1, grid.height - 1);
    place.across = column - place.left, place.down = row - place.upper;
    return place;
}

__device__ __forceinline__ float read(const float* plane, int width, const Place& at) {
    const float* const above = plane + static_cast<long long>(at.upper) * width;
    const float* const below = plane + static_cast<long long>(at.lower) * width;
    const float top = fmaf(at.across, above[at.right] - above[at.left], above[at.left]);
    const float bottom = fmaf(at.across, below[at.right] - below[at.left], below[at.left]);
    return fmaf(at.down, bottom - top, top);
}

// grid: (columns / 32, rows / 8, pictures)
extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) weighted_sums(const Job job) {
    const int x = blockIdx.x * BLOCK_X + threadIdx.x, y = blockIdx.y * BLOCK_Y + threadIdx.y;
    if (x >= job.size.width || y >= job.size.height) return;
    const long long picture = blockIdx.z;
    float sums[MOST_SUMS] = {};
    for (int part = 0; part < job.parts; ++part) {
        const Grid cells = job.cells[part], size = job.sizes[part];
        const float weight =
            read(job.weights[part] + picture * cells.height * cells.width, cells.width, place_in(cells, job.size, x, y));
        const Place place = place_in(size, job.size, x, y);
        const long long first = picture * size.height * size.width;
#pragma unroll
        for (int sum = 0; sum < MOST_SUMS; ++sum)
            if (sum < job.count) sums[sum] = fmaf(weight, read(job.planes[sum][part] + first, size.width, place), sums[sum]);
    }
    const long long to = (picture * job.size.height + y) * job.size.width + x;
#pragma unroll
    for (int sum = 0; sum < MOST_SUMS; ++sum)
        if (sum < job.count) job.sums[sum][to] = sums[sum];
}
